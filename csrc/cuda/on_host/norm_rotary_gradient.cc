#include "cuda/norm_rotary_gradient.cuh"

#include <type_traits>

#include "cpu/kernels.h"
#include "cuda/norm_rotary_warp_gradient.cuh"
#include "cuda/on_host/blocks.h"

namespace posenc::cuda::on_host {
namespace {

template <typename Thread>
void run_tokens(Block<Thread>& block, int64_t round) {
  block.each([&](Thread& thread) { thread.angles(round); });
  for (int token = 0; token < block.agreed([](Thread& thread) { return thread.tokens(); });
       ++token) {
    block.each([&](Thread& thread) { thread.read(round, token); });
    block.each([](Thread& thread) { thread.turn(); });
    block.each([](Thread& thread) { thread.sum(); });
    if (block.agreed([](Thread& thread) { return thread.sums_only(); })) {
      block.each([](Thread& thread) { thread.keep_sums(); });
      continue;
    }
    block.each([](Thread& thread) {
      thread.finish();
      if (!thread.turns_x()) thread.write();
    });
    if (!block.agreed([](Thread& thread) { return thread.turns_x(); })) continue;
    block.each([](Thread& thread) { thread.turn_back(); });
    block.each([](Thread& thread) { thread.write(); });
  }
}

template <typename T, int kVector>
void run_piece(Block<NormGradientThread<T, kVector>>& block, int64_t x, int64_t y) {
  using Thread = NormGradientThread<T, kVector>;
  block.each([&](Thread& thread) {
    thread.begin(x, y);
    thread.frequencies();
  });
  for (int64_t round = 0; round < block.agreed([](Thread& thread) { return thread.rounds(); });
       ++round) {
    run_tokens(block, round);
  }
  if (block.agreed([](Thread& thread) { return thread.sums_only(); })) return;
  block.each([](Thread& thread) { thread.write_weights(); });
}

template <typename T, int kVector, int kDims, int kPairs, bool kInterleaved>
void run_piece(Block<NormGradientWarpThread<T, kVector, kDims, kPairs, kInterleaved>>& block,
               int64_t x, int64_t /*y*/) {
  using Thread = NormGradientWarpThread<T, kVector, kDims, kPairs, kInterleaved>;
  block.each([&](Thread& thread) { thread.begin(x); });
  for (int token = 0; token < block.agreed([](Thread& thread) { return thread.tokens(); });
       ++token) {
    block.each([&](Thread& thread) {
      thread.begin_token(token);
      thread.angles();
    });
    for (int step = 0; step < block.agreed([](Thread& thread) { return thread.steps(); }); ++step) {
      block.each([&](Thread& thread) {
        thread.read();
        thread.sum();
      });
      block.template add_lanes<Thread::kLanesOfHead, Thread::kAllSums>(
          [](Thread& thread) { return thread.sums(); });
      block.each([&](Thread& thread) {
        thread.finish();
        thread.take(step + 1);
      });
    }
  }
  for (int tensor = 0; tensor < 2; ++tensor) {
    block.template add_lanes<kLanes, Thread::kLaneWeights, Thread::kLanesOfHead>(
        [](Thread& thread) { return thread.weights(); });
    block.each([&](Thread& thread) { thread.write_weights(tensor); });
  }
}

void run_norm_gradient(NormRotaryGradientArgs args) {
  visit_norm_gradient(args, simulation.room.limit, [&](auto* type, NormGradientPlan plan) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const Workspace workspace(workspace_bytes(args, plan));
    args.workspace = workspace.data();
    for (int pass = args.forward.over_token ? 0 : 1; pass < 2; ++pass) {
      plan.sums_only = pass == 0;
      const auto parameters = [&](const Room& /*room*/) {
        return NormGradientParameters{args, plan};
      };
      launch<Thread>(parameters,
                     [](Block<Thread>& block, int64_t x, int64_t y) { run_piece(block, x, y); });
    }
    using Sums = ColumnSumsThread<double, 1, typename Thread::Partial>;
    launch_column_sums<Sums>([&](const Room& room) { return weight_sums(args, plan, room.limit); });
  });
}

}  // namespace
}  // namespace posenc::cuda::on_host

namespace posenc::cpu {

// The sums of the first piece are those of all.
void norm_rotary_gradient(const NormRotaryGradientArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::on_host::run_norm_gradient(args);
}

}  // namespace posenc::cpu
