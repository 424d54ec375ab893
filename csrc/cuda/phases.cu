#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/phases.cuh"

namespace posenc::cuda {
namespace {

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads, Policy::kTableBlocksPerProcessor)
    phase_tables_kernel(const __grid_constant__ PhaseTablesParameters parameters) {
  const Thread thread(parameters, nullptr, threadIdx.x);
  for (int64_t x = blockIdx.x; x < parameters.plan.pieces_x; x += gridDim.x) thread.write(x);
}

}  // namespace

cudaError_t accumulated_phases(const AccumulateArgs& args, Queue queue) {
  return visit_phases_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch_scan<Thread, PhasesParameters>(queue, [&](const Room& room) {
      return plan_phases(args, Thread::kSharedBytes, room.limit);
    });
  });
}

cudaError_t phase_tables(const PhaseTablesArgs& args, Queue queue) {
  return visit_phase_tables_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch<Thread>(phase_tables_kernel<Thread>, queue, [&](const Room& room) {
      return plan_phase_tables(args, Thread::kWidth, room.limit);
    });
  });
}

}  // namespace posenc::cuda
