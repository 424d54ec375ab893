#include "cuda/rotary.cuh"

#include <type_traits>
#include <vector>

#include "cpu/kernels.h"
#include "cuda/on_host/blocks.h"

namespace posenc::cuda {
namespace {

void run_rotary(const RotaryArgs& args) {
  visit_rotary_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const RotaryParameters parameters{args, plan_rotary<Thread>(args, kRoom)};
    const RotaryPlan& plan = parameters.plan;
    for_each_block(plan, [&](char* shared, int64_t piece_x, int64_t piece_y) {
      auto threads = threads_of<Thread>(parameters, plan, shared);
      for (Thread& thread : threads) thread.begin(piece_x, piece_y);
      for (Thread& thread : threads) thread.frequencies();
      for (Thread& thread : threads) thread.angles();
      for (Thread& thread : threads) thread.rotate();
    });
  });
}

}  // namespace
}  // namespace posenc::cuda

namespace posenc::cpu {

// A launch is for all rows: the range that begins the call does them.
void rotary(const RotaryArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::run_rotary(args);
}

}  // namespace posenc::cpu
