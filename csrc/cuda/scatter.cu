#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/scatter.cuh"

namespace posenc::cuda {
namespace {

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
      for (int slot = threadIdx.x / kLanes; slot < Policy::kThreads; slot += Thread::kWarps) {
        if (thread.list(slot) != Thread::kLong) continue;
        thread.sum_in_warp(slot);
        __syncwarp();
        thread.fold_in_warp();
        __syncwarp();
        thread.write_in_warp(slot);
        __syncwarp();
      }
      if (__syncthreads_or(list == Thread::kVeryLong)) {
        int buffer = 0;
        for (int slot = thread.next_very_long(0); slot < Policy::kThreads;
             slot = thread.next_very_long(slot + 1)) {
          thread.sum_in_block(slot, buffer);
          // After it, too, nobody reads the other buffer any more.
          __syncthreads();
          thread.fold_in_block(buffer);
          __syncwarp();
          thread.write_in_block(slot, buffer);
          buffer = 1 - buffer;
        }
        __syncthreads();  // the lengths of the lists are written anew
      }
    }
  });
}

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads, Thread::kBlocks)
    scatter_warp_kernel(const __grid_constant__ ScatterParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t /*y*/) {
    thread.stage_lists();
    __syncthreads();
    thread.count_lists();
    __syncthreads();
    thread.order_lists();
    __syncthreads();
    for (int64_t step = 0; step < parameters.plan.steps; ++step) {
      thread.stage(x, step);
      __syncwarp();
      thread.sum_short();
      for (int first = 0; first < thread.long_lists(); first += Thread::kLongLists) {
        thread.sum_long(first);
        __syncwarp();
        thread.write_long(first);
        __syncwarp();
      }
      for (int list = 0; list < thread.very_long_lists(); ++list) {
        thread.sum_very_long(list);
        __syncwarp();
        thread.fold_very_long();
        __syncwarp();
        thread.write_very_long(list);
      }
      __syncwarp();
    }
  });
}

}  // namespace

cudaError_t relative_scatter(const RelativeArgs& args, Queue queue) {
  if (args.index.data == nullptr) return relative_shift(args, true, queue);
  if (args.order == nullptr || args.bounds == nullptr) return cudaErrorInvalidValue;
  const RelativeArgs arranged = arrange(args, true).args;
  return visit_scatter_thread(
      arranged,
      [&](auto* type) {
        using Thread = std::remove_pointer_t<decltype(type)>;
        return launch<Thread>(scatter_warp_kernel<Thread>, queue, [&](const Room& room) {
          return ScatterParameters{arranged, plan_scatter_warps<Thread>(arranged, room)};
        });
      },
      [&](auto* type) {
        using Thread = std::remove_pointer_t<decltype(type)>;
        return launch<Thread>(scatter_kernel<Thread>, queue, [&](const Room& room) {
          return ScatterParameters{arranged, plan_scatter<Thread>(arranged, room)};
        });
      });
}

}  // namespace posenc::cuda
