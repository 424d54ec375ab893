#include <type_traits>

#include "cuda/diagonal_sums.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace posenc::cuda {
namespace {

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads, Thread::kBlocks)
    diagonal_sums_kernel(const __grid_constant__ DiagonalSumsParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t y) {
    thread.begin(x, y);
    const int64_t rounds = thread.rounds();
    for (int64_t round = 0; round < rounds; ++round) {
      thread.sum(round);
      __syncthreads();
      thread.combine(round);
    }
    thread.finish();
  });
}

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads)
    block_totals_kernel(const __grid_constant__ DiagonalSumsParameters parameters) {
  const Thread thread(parameters, nullptr, threadIdx.x);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t /*y*/) { thread.sum(x); });
}

}  // namespace

cudaError_t diagonal_sums(const ToeplitzArgs& args, Queue queue) {
  return visit_diagonal_sums_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const cudaError_t error =
        launch<Thread>(diagonal_sums_kernel<Thread>, queue, [&](const Room& room) {
          return DiagonalSumsParameters{args, plan_diagonal_sums<Thread>(args, room)};
        });
    if (error != cudaSuccess || blocks_apart(args) == 0) return error;
    using Totals = BlockTotalsThread<typename Thread::Number, 1>;
    return launch<Totals>(block_totals_kernel<Totals>, queue, [&](const Room& room) {
      return DiagonalSumsParameters{args, plan_block_totals(args, room)};
    });
  });
}

int64_t diagonal_sums_workspace(const ToeplitzArgs& args) { return sums_workspace(args); }

}  // namespace posenc::cuda
