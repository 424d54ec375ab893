#include "cuda/sinusoidal.cuh"

#include <type_traits>

#include "cpu/kernels.h"
#include "cuda/on_host/blocks.h"

namespace posenc::cuda::on_host {
namespace {

void run_sinusoidal(const SinusoidalArgs& args) {
  for_each_sinusoidal_launch(
      args, simulation.grid_limit(), [&](const SinusoidalParameters& parameters, auto* type) {
        using Thread = std::remove_pointer_t<decltype(type)>;
        launch<Thread>(parameters, {parameters.plan.threads_x, parameters.plan.threads_y},
                       [](Block<Thread>& block, int64_t x, int64_t y) {
                         block.each([&](Thread& thread) { thread.begin(x, y); });
                         block.each([](Thread& thread) { thread.frequencies(); });
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
