#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/rotary_gradient.cuh"

namespace posenc::cuda {
namespace {

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocksPerProcessor)
    rotary_gradient_kernel(const __grid_constant__ RotaryGradientParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y, threadIdx.z);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t y) {
    thread.begin(x, y);
    thread.frequencies();
    __syncthreads();
    for (int step = -1; step < thread.steps(); ++step) {
      thread.step(step);
      __syncthreads();
    }
    thread.finish();
  });
}

}  // namespace

cudaError_t rotary_gradient(const RotaryGradientArgs& args, Queue queue) {
  return visit_rotary_gradient_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const RotaryGradientParameters parameters{args, plan_rotary_gradient<Thread>(args)};
    const cudaError_t error = launch<Thread>(rotary_gradient_kernel<Thread>, queue,
                                             [&](const Room& /*room*/) { return parameters; });
    if (error != cudaSuccess) return error;
    using Sums = ColumnSumsThread<double, 1, typename Thread::Partial>;
    return launch_column_sums<Sums>(queue, column_sums(args, parameters.plan));
  });
}

int64_t gradient_workspace(const RotaryGradientArgs& args) {
  return visit_rotary_gradient_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return partial_bytes(args, plan_rotary_gradient<Thread>(args));
  });
}

}  // namespace posenc::cuda
