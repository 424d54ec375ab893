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
    for (int round = 0; round < thread.rounds(); ++round) {
      thread.begin_round(round);
      if (round == 0) __syncthreads();
      thread.angles();
      __syncthreads();
      thread.rotate();
      __syncthreads();
      thread.sum_heads();
      for (int axis = 0; axis < thread.axes(); ++axis) {
        thread.stage_positions(axis);
        __syncthreads();
        thread.sum_tokens(axis);
        __syncthreads();
        thread.write_positions(axis);
      }
    }
    thread.finish();
  });
}

template <typename Thread>
__global__ void __launch_bounds__(Policy::kSumColumns* Policy::kSumRows)
    column_sums_kernel(const __grid_constant__ ColumnSumsParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t /*y*/) {
    thread.sum(x);
    __syncthreads();
    thread.finish();
  });
}

}  // namespace

cudaError_t rotary_gradient(const RotaryGradientArgs& args, cudaStream_t stream) {
  return visit_rotary_gradient_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const RotaryGradientParameters parameters{args, plan_rotary_gradient<Thread>(args)};
    const RotaryGradientPlan& plan = parameters.plan;
    const cudaError_t error = launch(rotary_gradient_kernel<Thread>, parameters,
                                     dim3(plan.threads_x, plan.threads_y, plan.threads_z), stream);
    if (error != cudaSuccess) return error;
    return launch(column_sums_kernel<ColumnSumsThread<double, 1, typename Thread::Partial>>,
                  column_sums(args, plan), dim3(Policy::kSumColumns, Policy::kSumRows), stream);
  });
}

int64_t gradient_workspace(const RotaryGradientArgs& args) {
  return visit_rotary_gradient_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return partial_bytes(args, plan_rotary_gradient<Thread>(args));
  });
}

}  // namespace posenc::cuda
