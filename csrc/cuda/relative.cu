#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/relative.cuh"

namespace posenc::cuda {
namespace {

// Of the threads that stage something in shared memory and then write tiles.
template <typename Thread, typename Parameters>
__global__ void __launch_bounds__(Policy::kThreads, Thread::kBlocks)
    tile_kernel(const __grid_constant__ Parameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y, threadIdx.z);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t y) {
    thread.begin(x, y);
    thread.stage();
    __syncthreads();
    thread.write();
  });
}

template <typename Thread, typename Parameters>
cudaError_t launch_tiles(const Parameters& parameters, cudaStream_t stream) {
  const TilePlan& plan = parameters.plan;
  return launch(tile_kernel<Thread, Parameters>, parameters,
                dim3(plan.threads_x, plan.threads_y, plan.threads_z), stream);
}

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads, Thread::kBlocks)
    diagonal_sums_kernel(const __grid_constant__ DiagonalSumsParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t y) {
    thread.begin(x, y);
    const int64_t rounds = thread.rounds();
    for (int64_t round = 0; round < rounds; ++round) {
      thread.sum(round);
      __syncthreads();
      thread.combine(round);
      __syncthreads();
    }
    thread.finish();
  });
}

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads, Thread::kBlocks)
    scatter_kernel(const __grid_constant__ ScatterParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t y) {
    thread.begin(x);
    __syncthreads();
    thread.read_rows();
    for (int64_t tile = y; tile < parameters.plan.tiles; tile += parameters.plan.pieces_y) {
      const auto list = thread.short_list(tile);
      if (!__syncthreads_or(list != Thread::kShort)) continue;
      for (int slot = threadIdx.x / Thread::kWarp; slot < Policy::kThreads;
           slot += Thread::kWarps) {
        if (thread.list(slot) != Thread::kLong) continue;
        thread.sum_in_warp(slot);
        __syncwarp();
        thread.fold_in_warp();
        __syncwarp();
        thread.write_in_warp(slot);
        __syncwarp();
      }
      if (__syncthreads_or(list == Thread::kVeryLong)) {
        for (int slot = 0; slot < Policy::kThreads; ++slot) {
          if (thread.list(slot) != Thread::kVeryLong) continue;
          thread.sum_in_block(slot);
          __syncthreads();
          thread.fold_in_block();
          __syncthreads();
          thread.write_in_block(slot);
          __syncthreads();
        }
        __syncthreads();  // the lengths of the lists are written anew
      }
    }
  });
}

}  // namespace

cudaError_t toeplitz(const ToeplitzArgs& args, cudaStream_t stream) {
  return visit_toeplitz_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch_tiles<Thread>(ToeplitzParameters{args, plan_toeplitz<Thread>(args)}, stream);
  });
}

cudaError_t diagonal_sums(const ToeplitzArgs& args, cudaStream_t stream) {
  return visit_diagonal_sums_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const DiagonalSumsParameters parameters{args, plan_diagonal_sums<Thread>(args)};
    return launch(diagonal_sums_kernel<Thread>, parameters,
                  dim3(parameters.plan.threads_x, parameters.plan.threads_y), stream);
  });
}

cudaError_t relative_gather(const RelativeArgs& args, cudaStream_t stream) {
  return visit_relative_launch(args, false, {}, [&](const auto& parameters, auto* type) {
    return launch_tiles<std::remove_pointer_t<decltype(type)>>(parameters, stream);
  });
}

cudaError_t relative_scatter(const RelativeArgs& args, cudaStream_t stream) {
  if (args.index.data == nullptr) {
    return visit_relative_launch(args, true, {}, [&](const auto& parameters, auto* type) {
      return launch_tiles<std::remove_pointer_t<decltype(type)>>(parameters, stream);
    });
  }
  if (args.order == nullptr || args.bounds == nullptr) return cudaErrorInvalidValue;
  return visit_scatter_launch(args, {}, [&](const ScatterParameters& parameters, auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch(scatter_kernel<Thread>, parameters, dim3(Policy::kThreads), stream);
  });
}

}  // namespace posenc::cuda
