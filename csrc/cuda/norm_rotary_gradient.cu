#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/norm_rotary_gradient.cuh"
#include "cuda/norm_rotary_warp_gradient.cuh"

namespace posenc::cuda {
namespace {

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocksPerProcessor)
    norm_gradient_kernel(const __grid_constant__ NormGradientParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t y) {
    thread.begin(x, y);
    thread.frequencies();
    __syncthreads();
    for (int64_t round = 0; round < thread.rounds(); ++round) {
      thread.angles(round);
      if (thread.scales_queries()) __syncthreads();  // factors are there when g is read
      for (int token = 0; token < thread.tokens(); ++token) {
        thread.read(round, token);
        __syncthreads();
        thread.turn();
        __syncthreads();
        thread.sum();
        __syncthreads();
        if (thread.sums_only()) {
          thread.keep_sums();
        } else {
          thread.finish();
          if (thread.turns_x()) {
            __syncthreads();
            thread.turn_back();
            __syncthreads();
          }
          thread.write();
        }
        __syncthreads();
      }
    }
    if (!thread.sums_only()) thread.write_weights();
  });
}

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocksPerProcessor)
    norm_gradient_warp_kernel(const __grid_constant__ NormGradientParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t /*y*/) {
    thread.begin(x);
    __syncthreads();
    for (int token = 0; token < thread.tokens(); ++token) {
      __syncwarp();
      thread.begin_token(token);
      thread.angles();
      __syncwarp();
      for (int step = 0; step < thread.steps(); ++step) {
        thread.read();
        thread.sum();
        add_lanes<Thread::kLanesOfHead, Thread::kAllSums>(thread.sums());
        thread.finish();
        thread.take(step + 1);
      }
    }
    for (int tensor = 0; tensor < 2; ++tensor) {
      add_lanes<kLanes, Thread::kLaneWeights, Thread::kLanesOfHead>(thread.weights());
      thread.write_weights(tensor);
    }
  });
}

template <typename T, int kVector>
auto kernel_of(const NormGradientThread<T, kVector>* /*thread*/) {
  return norm_gradient_kernel<NormGradientThread<T, kVector>>;
}
template <typename T, int kVector, int kDims, int kPairs, bool kInterleaved>
auto kernel_of(const NormGradientWarpThread<T, kVector, kDims, kPairs, kInterleaved>* /*thread*/) {
  return norm_gradient_warp_kernel<NormGradientWarpThread<T, kVector, kDims, kPairs, kInterleaved>>;
}

}  // namespace

cudaError_t norm_rotary_gradient(const NormRotaryGradientArgs& args, Queue queue) {
  return visit_norm_gradient(args, {}, [&](auto* type, const NormGradientPlan& plan) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    NormGradientParameters parameters{args, plan};
    const auto run = [&](bool sums_only) {
      parameters.plan.sums_only = sums_only;
      return launch<Thread>(kernel_of(type), queue,
                            [&](const Room& /*room*/) { return parameters; });
    };
    if (args.forward.over_token) {
      const cudaError_t error = run(true);
      if (error != cudaSuccess) return error;
    }
    const cudaError_t error = run(false);
    if (error != cudaSuccess) return error;
    using Sums = ColumnSumsThread<double, 1, typename Thread::Partial>;
    return launch_column_sums<Sums>(queue, weight_sums(args, parameters.plan));
  });
}

int64_t norm_gradient_workspace(const NormRotaryGradientArgs& args) {
  return visit_norm_gradient(args, {}, [&](auto* /*type*/, const NormGradientPlan& plan) {
    return workspace_bytes(args, plan);
  });
}

}  // namespace posenc::cuda
