#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/rotary_plan.cuh"

namespace posenc::cuda {
namespace {

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads, Thread::kBlocks)
    rotary_kernel(const __grid_constant__ RotaryParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y, threadIdx.z);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t y) {
    thread.begin(x, y);
    wait_for_others(parameters.plan);
    thread.read();
    thread.frequencies();
    if (thread.has_frequencies()) __syncthreads();
    thread.angles();
    __syncthreads();
    thread.rotate();
  });
}

cudaError_t rotary_of_group(const RotaryArgs& args, Queue queue) {
  return visit_rotary_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch<Thread, true>(rotary_kernel<Thread>, queue, [&](const Room& room) {
      return RotaryParameters{args, plan_rotary<Thread>(args, room)};
    });
  });
}

}  // namespace

cudaError_t rotary(const RotaryArgs& args, Queue queue) {
  cudaError_t status = cudaSuccess;
  args.for_each_group([&](const RotaryArgs& group) {
    if (status == cudaSuccess) status = rotary_of_group(group, queue);
  });
  return status;
}

cudaError_t load_kernels() {
  cudaFuncAttributes attributes;
  const auto kernel = rotary_kernel<RotaryThread<float, 4, false>>;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

}  // namespace posenc::cuda
