#include <type_traits>

#include "cuda/gather.cuh"
#include "cuda/gather_warp.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace posenc::cuda {
namespace {

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads, Thread::kBlocks)
    gather_warp_kernel(const __grid_constant__ RelativeParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y, threadIdx.z);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t y) {
    thread.begin(x, y);
    thread.stage_index();
    __syncthreads();
    for (int64_t round = 0; round < parameters.plan.rounds; ++round) {
      for (int tile = 0; tile < parameters.plan.tiles; ++tile) {
        thread.stage(round, tile);
        __syncwarp();
        thread.write();
        __syncwarp();
      }
    }
  });
}

}  // namespace

cudaError_t relative_gather(const RelativeArgs& args, Queue queue) {
  if (args.index.data == nullptr) return relative_shift(args, false, queue);
  RelativeParameters parameters = arrange(args, false);
  return visit_gather_thread(
      parameters,
      [&](auto* type) {
        using Thread = std::remove_pointer_t<decltype(type)>;
        return launch<Thread>(gather_warp_kernel<Thread>, queue, [&](const Room& room) {
          parameters.plan = plan_gather_warps<Thread>(parameters, room);
          return parameters;
        });
      },
      [&](auto* type) {
        using Thread = std::remove_pointer_t<decltype(type)>;
        return launch_tiles<Thread, RelativeParameters>(queue, [&](const Room& room) {
          parameters.plan = plan_relative<Thread>(parameters, room);
          return parameters;
        });
      });
}

}  // namespace posenc::cuda
