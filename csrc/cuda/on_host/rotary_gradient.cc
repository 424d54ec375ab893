#include "cuda/rotary_gradient.cuh"

#include <type_traits>
#include <vector>

#include "cpu/kernels.h"
#include "cuda/on_host/blocks.h"

namespace posenc::cuda {
namespace {

template <typename Partial>
void run_column_sums(const ColumnSumsParameters& parameters) {
  using Thread = ColumnSumsThread<double, 1, Partial>;
  for_each_block(parameters.plan, [&](char* shared, int64_t piece_x, int64_t /*piece_y*/) {
    std::vector<Thread> threads;
    for (int y = 0; y < Policy::kSumRows; ++y) {
      for (int x = 0; x < Policy::kSumColumns; ++x) threads.emplace_back(parameters, shared, x, y);
    }
    for (Thread& thread : threads) thread.sum(piece_x);
    for (Thread& thread : threads) thread.finish();
  });
}

void run_rotary_gradient(RotaryGradientArgs args) {
  visit_rotary_gradient_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const RotaryGradientPlan plan = plan_rotary_gradient<Thread>(args, kRoom.limit);
    std::vector<unsigned char> workspace(static_cast<size_t>(partial_bytes(args, plan)), kPoison);
    args.workspace = workspace.data();
    const RotaryGradientParameters parameters{args, plan};
    for_each_block(plan, [&](char* shared, int64_t piece_x, int64_t piece_y) {
      auto threads = threads_of<Thread>(parameters, plan, shared);
      const auto each = [&](const auto& step) {
        for (Thread& thread : threads) step(thread);
      };
      each([&](Thread& thread) { thread.begin(piece_x, piece_y); });
      each([](Thread& thread) { thread.frequencies(); });
      each([](Thread& thread) { thread.request(0); });
      for (int round = 0; round < threads[0].rounds(); ++round) {
        each([](Thread& thread) { thread.angles(); });
        each([&](Thread& thread) {
          thread.rotate(round);
          thread.request(round + 1);
        });
        each([](Thread& thread) { thread.sum_heads(); });
        for (int axis = 0; axis < threads[0].axes(); ++axis) {
          each([&](Thread& thread) { thread.stage_positions(axis); });
          each([&](Thread& thread) { thread.sum_tokens(axis); });
          each([&](Thread& thread) { thread.write_positions(axis); });
        }
      }
      each([](Thread& thread) { thread.finish(); });
    });
    run_column_sums<typename Thread::Partial>(column_sums(args, plan, kRoom.limit));
  });
}

}  // namespace
}  // namespace posenc::cuda

namespace posenc::cpu {

// The sums of the first piece are those of all.
void rotary_gradient(const RotaryGradientArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::run_rotary_gradient(args);
}

}  // namespace posenc::cpu
