#include "cuda/rotary.cuh"

#include <type_traits>

#include "cpu/kernels.h"
#include "cuda/on_host/blocks.h"

namespace posenc::cuda::on_host {
namespace {

void run_rotary(const RotaryArgs& args) {
  visit_rotary_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const RotaryParameters parameters{args, plan_rotary<Thread>(args, simulation.grid_limit())};
    const RotaryPlan& plan = parameters.plan;
    launch<Thread>(parameters, {plan.threads_x, plan.threads_y, plan.threads_z},
                   [](Block<Thread>& block, int64_t x, int64_t y) {
                     block.each([&](Thread& thread) { thread.begin(x, y); });
                     block.each([](Thread& thread) { thread.frequencies(); });
                     block.each([](Thread& thread) { thread.angles(); });
                     block.each([](Thread& thread) { thread.rotate(); });
                   });
  });
}

}  // namespace
}  // namespace posenc::cuda::on_host

namespace posenc::cpu {

// A launch is for all rows: the range that begins the call does them.
void rotary(const RotaryArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::on_host::run_rotary(args);
}

}  // namespace posenc::cpu
