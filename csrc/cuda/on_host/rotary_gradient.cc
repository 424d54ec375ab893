#include "cuda/rotary_gradient.cuh"

#include <type_traits>

#include "cpu/kernels.h"
#include "cuda/on_host/blocks.h"

namespace posenc::cuda::on_host {
namespace {

void run_rotary_gradient(RotaryGradientArgs args) {
  visit_rotary_gradient_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const RotaryGradientPlan plan = plan_rotary_gradient<Thread>(args, simulation.room.limit);
    const Workspace workspace(partial_bytes(args, plan));
    args.workspace = workspace.data();
    const auto parameters = [&](const Room& /*room*/) {
      return RotaryGradientParameters{args, plan};
    };
    launch<Thread>(parameters, [](Block<Thread>& block, int64_t x, int64_t y) {
      block.each([&](Thread& thread) {
        thread.begin(x, y);
        thread.frequencies();
      });
      for (int step = -1; step < block.agreed([](Thread& thread) { return thread.steps(); });
           ++step) {
        block.each([&](Thread& thread) { thread.step(step); });
      }
      block.each([](Thread& thread) { thread.finish(); });
    });
    using Sums = ColumnSumsThread<double, 1, typename Thread::Partial>;
    launch_column_sums<Sums>([&](const Room& room) { return column_sums(args, plan, room.limit); });
  });
}

}  // namespace
}  // namespace posenc::cuda::on_host

namespace posenc::cpu {

// The sums of the first piece are those of all.
void rotary_gradient(const RotaryGradientArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::on_host::run_rotary_gradient(args);
}

}  // namespace posenc::cpu
