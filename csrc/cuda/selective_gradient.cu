#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/selective_gradient.cuh"
#include "cuda/selective_launch.cuh"
#include "cuda/selective_scan.cuh"

namespace posenc::cuda {
namespace {

template <typename Thread>
__global__ void __launch_bounds__(Policy::kWarpThreads, Policy::kWalkBackBlocksPerProcessor)
    selective_gradient_kernel(const __grid_constant__ SelectiveGradientParameters parameters) {
  Thread thread(parameters, nullptr, threadIdx.x, threadIdx.y);
  for_each_piece_apart(parameters.plan, [&](int64_t x, int64_t y) { thread.rotate(x, y); });
}

template <typename Thread>
__global__ void __launch_bounds__(Policy::kWarpThreads, Policy::kWarpBlocksPerProcessor)
    steps_kernel(const __grid_constant__ SelectiveGradientParameters parameters) {
  const Thread thread(parameters, nullptr, threadIdx.x, threadIdx.y);
  for_each_piece_apart(parameters.plan, [&](int64_t x, int64_t y) { thread.sum(x, y); });
}

}  // namespace

cudaError_t selective_gradient(const SelectiveGradientArgs& args, Queue queue) {
  cudaError_t error = begin_segments(args.turned, queue);
  if (error != cudaSuccess) return error;
  error = visit_selective_gradient_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch<Thread>(selective_gradient_kernel<Thread>, queue, [&](const Room& room) {
      return SelectiveGradientParameters{args, plan_walk_back<Thread>(args, room.limit)};
    });
  });
  if (error != cudaSuccess) return error;
  if (cut_selective(args.turned).several) {
    error = visit_number(args, [&](auto number) {
      using Carry = SelectiveCarryThread<double, 1, decltype(number)>;
      return launch_scan<Carry, SelectiveGradientParameters>(queue, [&](const Room& room) {
        return SelectiveGradientParameters{args,
                                           plan_scan(args.turned, Carry::kSharedBytes, room.limit)};
      });
    });
    if (error != cudaSuccess) return error;
  }
  return visit_steps_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch<Thread>(steps_kernel<Thread>, queue, [&](const Room& room) {
      return SelectiveGradientParameters{args, plan_steps<Thread>(args, room.limit)};
    });
  });
}

int64_t selective_gradient_workspace(const SelectiveGradientArgs& args) {
  return SelectiveWorkspace(args.turned, cut_selective(args.turned), true).bytes;
}

}  // namespace posenc::cuda
