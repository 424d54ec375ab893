#include "cuda/toeplitz.cuh"

#include <type_traits>
#include <vector>

#include "cpu/kernels.h"
#include "cuda/diagonal_sums.cuh"
#include "cuda/on_host/blocks.h"

namespace posenc::cuda {
namespace {

void run_toeplitz(const ToeplitzArgs& args) {
  visit_toeplitz_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    run_tiles<Thread>(ToeplitzParameters{args, plan_toeplitz<Thread>(args, kRoom)});
  });
}

void run_diagonal_sums(const ToeplitzArgs& args) {
  visit_diagonal_sums_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const DiagonalSumsParameters parameters{args, plan_diagonal_sums<Thread>(args, kRoom)};
    const DiagonalSumsPlan& plan = parameters.plan;
    for_each_block(plan, [&](char* shared, int64_t piece_x, int64_t piece_y) {
      std::vector<Thread> threads;
      for (int y = 0; y < plan.threads_y; ++y) {
        for (int x = 0; x < plan.threads_x; ++x) threads.emplace_back(parameters, shared, x, y);
      }
      for (Thread& thread : threads) thread.begin(piece_x, piece_y);
      for (int64_t round = 0; round < threads[0].rounds(); ++round) {
        for (Thread& thread : threads) thread.sum(round);
        for (Thread& thread : threads) thread.combine(round);
      }
      for (Thread& thread : threads) thread.finish();
    });
  });
}

}  // namespace
}  // namespace posenc::cuda

namespace posenc::cpu {

void toeplitz(const ToeplitzArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::run_toeplitz(args);
}

int64_t diagonal_sum_pieces(const ToeplitzArgs& /*args*/) { return 1; }

void diagonal_sums(const ToeplitzArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::run_diagonal_sums(args);
}

}  // namespace posenc::cpu
