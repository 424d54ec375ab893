#include "cuda/toeplitz.cuh"

#include <type_traits>

#include "cpu/kernels.h"
#include "cuda/diagonal_sums.cuh"
#include "cuda/on_host/blocks.h"

namespace posenc::cuda::on_host {
namespace {

void run_toeplitz(const ToeplitzArgs& args) {
  visit_toeplitz_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    launch_tiles<Thread>([&](const Room& room) {
      return ToeplitzParameters{args, plan_toeplitz<Thread>(args, room)};
    });
  });
}

void run_diagonal_sums(ToeplitzArgs args) {
  const Workspace workspace(sums_workspace(args));
  args.workspace = workspace.data();
  visit_diagonal_sums_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const auto plan = [&](const Room& room) {
      return DiagonalSumsParameters{args, plan_diagonal_sums<Thread>(args, room)};
    };
    launch<Thread>(plan, [](Block<Thread>& block, int64_t x, int64_t y) {
      block.each([&](Thread& thread) { thread.begin(x, y); });
      const int64_t rounds = block.agreed([](Thread& thread) { return thread.rounds(); });
      if (rounds > 0) block.each([](Thread& thread) { thread.sum(0); });
      for (int64_t round = 0; round < rounds; ++round) {
        block.each([&](Thread& thread) {
          thread.combine(round);
          if (round + 1 < rounds) thread.sum(round + 1);
        });
      }
      block.each([](Thread& thread) { thread.finish(); });
    });
    if (blocks_apart(args) == 0) return;
    using Totals = BlockTotalsThread<typename Thread::Number, 1>;
    const auto totals = [&](const Room& room) {
      return DiagonalSumsParameters{args, plan_block_totals(args, room)};
    };
    launch<Totals>(totals, [](Block<Totals>& block, int64_t x, int64_t /*y*/) {
      block.each([&](Totals& thread) { thread.sum(x); });
    });
  });
}

}  // namespace
}  // namespace posenc::cuda::on_host

namespace posenc::cpu {

void toeplitz(const ToeplitzArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::on_host::run_toeplitz(args);
}

int64_t diagonal_sum_pieces(const ToeplitzArgs& /*args*/) { return 1; }

void diagonal_sums(const ToeplitzArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::on_host::run_diagonal_sums(args);
}

}  // namespace posenc::cpu
