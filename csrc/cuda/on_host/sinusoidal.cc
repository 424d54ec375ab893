#include "cuda/sinusoidal.cuh"

#include <type_traits>

#include "cpu/kernels.h"
#include "cuda/on_host/blocks.h"

namespace posenc::cuda::on_host {
namespace {

void run_sinusoidal(const SinusoidalArgs& args) {
  for_each_sinusoidal_launch(args, [&](SinusoidalParameters& parameters, auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const auto plan = [&](const Room& room) -> const SinusoidalParameters& {
      parameters.plan = plan_sinusoidal<Thread>(parameters.args, room);
      return parameters;
    };
    launch<Thread>(plan, [](Block<Thread>& block, int64_t x, int64_t y) {
      block.each([&](Thread& thread) {
        thread.begin(x, y);
        thread.frequencies();
        thread.positions();
      });
      block.each([](Thread& thread) { thread.steps(); });
      block.each([](Thread& thread) { thread.rows(); });
    });
    return true;
  });
}

}  // namespace
}  // namespace posenc::cuda::on_host

namespace posenc::cpu {

void sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::on_host::run_sinusoidal(args);
}

}  // namespace posenc::cpu
