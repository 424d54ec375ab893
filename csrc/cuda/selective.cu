#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/selective.cuh"
#include "cuda/selective_launch.cuh"
#include "cuda/selective_scan.cuh"

namespace posenc::cuda {
namespace {

template <typename Thread>
__global__ void __launch_bounds__(Policy::kWarpThreads, Policy::kWalkBlocksPerProcessor)
    selective_kernel(const __grid_constant__ SelectiveParameters parameters) {
  Thread thread(parameters, nullptr, threadIdx.x, threadIdx.y);
  for_each_piece_apart(parameters.plan, [&](int64_t x, int64_t y) { thread.rotate(x, y); });
}

template <typename Thread>
__global__ void __launch_bounds__(Policy::kWarpThreads, Policy::kWarpBlocksPerProcessor)
    totals_kernel(const __grid_constant__ SelectiveParameters parameters) {
  const Thread thread(parameters, nullptr, threadIdx.x, threadIdx.y);
  for_each_piece_apart(parameters.plan, [&](int64_t x, int64_t y) { thread.sum(x, y); });
}

}  // namespace

cudaError_t begin_segments(const SelectiveArgs& args, Queue queue) {
  if (!cut_selective(args).several) return cudaSuccess;
  const cudaError_t error = visit_totals_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch<Thread>(totals_kernel<Thread>, queue, [&](const Room& room) {
      return SelectiveParameters{args, plan_totals<Thread>(args, room.limit)};
    });
  });
  if (error != cudaSuccess) return error;
  using Scan = SelectiveScanThread<int64_t, 1>;
  return launch_scan<Scan, SelectiveParameters>(queue, [&](const Room& room) {
    return SelectiveParameters{args, plan_scan(args, Scan::kSharedBytes, room.limit)};
  });
}

cudaError_t selective(const SelectiveArgs& args, Queue queue) {
  const cudaError_t error = begin_segments(args, queue);
  if (error != cudaSuccess) return error;
  return visit_selective_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch<Thread>(selective_kernel<Thread>, queue, [&](const Room& room) {
      return SelectiveParameters{args, plan_walk<Thread>(args, room.limit)};
    });
  });
}

int64_t selective_workspace(const SelectiveArgs& args) {
  return SelectiveWorkspace(args, cut_selective(args)).bytes;
}

}  // namespace posenc::cuda
