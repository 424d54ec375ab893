#include "cuda/phases.cuh"

#include <type_traits>

#include "cpu/kernels.h"
#include "cuda/on_host/blocks.h"

namespace posenc::cuda::on_host {
namespace {

void run_phases(const AccumulateArgs& args) {
  visit_phases_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const auto plan = [&](const Room& room) {
      return plan_phases(args, Thread::kSharedBytes, room.limit);
    };
    launch_scan<Thread>(plan);
  });
}

void run_phase_tables(const PhaseTablesArgs& args) {
  visit_phase_tables_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const auto plan = [&](const Room& room) {
      return plan_phase_tables(args, Thread::kWidth, room.limit);
    };
    launch<Thread>(plan, [](Block<Thread>& block, int64_t x, int64_t /*y*/) {
      block.each([&](Thread& thread) { thread.write(x); });
    });
  });
}

}  // namespace
}  // namespace posenc::cuda::on_host

namespace posenc::cpu {

// One launch does all: the range that begins it, and not the others.
void accumulate(const AccumulateArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::on_host::run_phases(args);
}

void phase_tables(const PhaseTablesArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::on_host::run_phase_tables(args);
}

}  // namespace posenc::cpu
