#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/sinusoidal.cuh"

namespace posenc::cuda {
namespace {

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads, Thread::kBlocks)
    sinusoidal_kernel(const __grid_constant__ SinusoidalParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t y) {
    thread.begin(x, y);
    thread.frequencies();
    thread.positions();
    __syncthreads();
    if (Thread::kHalf && parameters.plan.steps) {
      thread.steps();
      __syncthreads();
    }
    thread.rows();
  });
}

}  // namespace

cudaError_t sinusoidal(const SinusoidalArgs& args, Queue queue) {
  cudaError_t error = cudaSuccess;
  for_each_sinusoidal_launch(args, [&](SinusoidalParameters& parameters, auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    error = launch<Thread>(sinusoidal_kernel<Thread>, queue, [&](const Room& room) {
      parameters.plan = plan_sinusoidal<Thread>(parameters.args, room);
      return parameters;
    });
    return error == cudaSuccess;
  });
  return error;
}

}  // namespace posenc::cuda
