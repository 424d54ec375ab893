#include "cuda/sinusoidal.cuh"

#include <type_traits>
#include <vector>

#include "cpu/kernels.h"
#include "cuda/on_host/blocks.h"

namespace posenc::cuda {
namespace {

void run_sinusoidal(const SinusoidalArgs& args) {
  for_each_sinusoidal_launch(args, [&](SinusoidalParameters& parameters, auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    parameters.plan = plan_sinusoidal<Thread>(parameters.args, kRoom);
    const SinusoidalPlan& plan = parameters.plan;
    for_each_block(plan, [&](char* shared, int64_t piece_x, int64_t piece_y) {
      std::vector<Thread> threads;
      for (int y = 0; y < plan.threads_y; ++y) {
        for (int x = 0; x < plan.threads_x; ++x) threads.emplace_back(parameters, shared, x, y);
      }
      for (Thread& thread : threads) thread.begin(piece_x, piece_y);
      for (Thread& thread : threads) thread.frequencies();
      for (Thread& thread : threads) thread.positions();
      for (Thread& thread : threads) thread.steps();
      for (Thread& thread : threads) thread.rows();
    });
    return true;
  });
}

}  // namespace
}  // namespace posenc::cuda

namespace posenc::cpu {

void sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::run_sinusoidal(args);
}

}  // namespace posenc::cpu
