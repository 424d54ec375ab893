// The CUDA kernels run on the host, thread by thread, in the place of the CPU's kernels: for tests
// on machines without a GPU. Linked with csrc/bindings/numpy.cc it makes a module like
// posenc_native._core, which all tests of that one can take instead.

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cpu/kernels.h"
#include "cuda/relative.cuh"
#include "cuda/rotary.cuh"
#include "cuda/rotary_gradient.cuh"
#include "cuda/sinusoidal.cuh"

namespace posenc::cuda {
namespace {

// Small, so that blocks have several pieces to do.
constexpr GridLimit kLimit{3, 2};

// Threads begin with what is not a number, and so does shared memory: what is read without having
// been written shows.
constexpr unsigned char kPoison = 0xff;

// run_piece(shared, x, y) for the pieces of every block, in the order in which a block has them.
template <typename Plan, typename RunPiece>
void for_each_block(const Plan& plan, const RunPiece& run_piece) {
  std::vector<unsigned char> memory(plan.shared_bytes + 128);
  const size_t misaligned = reinterpret_cast<uintptr_t>(memory.data()) % 128;
  unsigned char* const shared = memory.data() + (128 - misaligned);
  for (int64_t block_y = 0; block_y < plan.grid_y; ++block_y) {
    for (int64_t block_x = 0; block_x < plan.grid_x; ++block_x) {
      std::memset(shared, kPoison, plan.shared_bytes);
      for (int64_t y = block_y; y < plan.pieces_y; y += plan.grid_y) {
        for (int64_t x = block_x; x < plan.pieces_x; x += plan.grid_x) {
          run_piece(reinterpret_cast<char*>(shared), x, y);
        }
      }
    }
  }
}

// The threads of a block, x running fastest.
template <typename Thread, typename Parameters, typename Plan>
std::vector<Thread> threads_of(const Parameters& parameters, const Plan& plan, char* shared) {
  std::vector<Thread> threads;
  for (int z = 0; z < plan.threads_z; ++z) {
    for (int y = 0; y < plan.threads_y; ++y) {
      for (int x = 0; x < plan.threads_x; ++x) threads.emplace_back(parameters, shared, x, y, z);
    }
  }
  return threads;
}

void run_rotary(const RotaryArgs& args) {
  visit_rotary_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const RotaryParameters parameters{args, plan_rotary<Thread>(args, kLimit)};
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
    const RotaryGradientPlan plan = plan_rotary_gradient<Thread>(args, kLimit);
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
      for (int round = 0; round < threads[0].rounds(); ++round) {
        each([&](Thread& thread) { thread.begin_round(round); });
        each([](Thread& thread) { thread.angles(); });
        each([](Thread& thread) { thread.rotate(); });
        each([](Thread& thread) { thread.sum_heads(); });
        for (int axis = 0; axis < threads[0].axes(); ++axis) {
          each([&](Thread& thread) { thread.stage_positions(axis); });
          each([&](Thread& thread) { thread.sum_tokens(axis); });
          each([&](Thread& thread) { thread.write_positions(axis); });
        }
      }
      each([](Thread& thread) { thread.finish(); });
    });
    run_column_sums<typename Thread::Partial>(column_sums(args, plan, kLimit));
  });
}

void run_sinusoidal(const SinusoidalArgs& args) {
  for_each_sinusoidal_launch(args, kLimit, [&](const SinusoidalParameters& parameters, auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const SinusoidalPlan& plan = parameters.plan;
    for_each_block(plan, [&](char* shared, int64_t piece_x, int64_t piece_y) {
      std::vector<Thread> threads;
      for (int y = 0; y < plan.threads_y; ++y) {
        for (int x = 0; x < plan.threads_x; ++x) threads.emplace_back(parameters, shared, x, y);
      }
      for (Thread& thread : threads) thread.begin(piece_x, piece_y);
      for (Thread& thread : threads) thread.frequencies();
      for (Thread& thread : threads) thread.rows();
    });
    return true;
  });
}

template <typename Thread, typename Parameters>
void run_tiles(const Parameters& parameters) {
  for_each_block(parameters.plan, [&](char* shared, int64_t piece_x, int64_t piece_y) {
    auto threads = threads_of<Thread>(parameters, parameters.plan, shared);
    for (Thread& thread : threads) thread.begin(piece_x, piece_y);
    for (Thread& thread : threads) thread.stage();
    for (Thread& thread : threads) thread.write();
  });
}

void run_toeplitz(const ToeplitzArgs& args) {
  visit_toeplitz_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    run_tiles<Thread>(ToeplitzParameters{args, plan_toeplitz<Thread>(args, kLimit)});
  });
}

void run_diagonal_sums(const ToeplitzArgs& args) {
  visit_diagonal_sums_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const DiagonalSumsParameters parameters{args, plan_diagonal_sums<Thread>(args, kLimit)};
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

void run_relative(const RelativeArgs& args, bool scatter) {
  visit_relative_launch(args, scatter, kLimit, [](const auto& parameters, auto* type) {
    run_tiles<std::remove_pointer_t<decltype(type)>>(parameters);
  });
}

void run_scatter(const RelativeArgs& args) {
  visit_scatter_launch(args, kLimit, [](const ScatterParameters& parameters, auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const ScatterPlan& plan = parameters.plan;
    for_each_block(plan, [&](char* shared, int64_t piece_x, int64_t piece_y) {
      std::vector<Thread> threads;
      for (int i = 0; i < Policy::kThreads; ++i) threads.emplace_back(parameters, shared, i);
      for (Thread& thread : threads) thread.begin(piece_x);
      for (Thread& thread : threads) thread.read_rows();
      for (int64_t tile = piece_y; tile < plan.tiles; tile += plan.pieces_y) {
        for (Thread& thread : threads) thread.short_list(tile);
        // Warps have lists of their own: slots warp, warp + kWarps ...
        for (int first = 0; first < Policy::kThreads; first += Thread::kWarps) {
          const auto each = [&](const auto& step) {
            for (int i = 0; i < Policy::kThreads; ++i) {
              const int slot = first + i / Thread::kWarp;
              if (threads[i].list(slot) == Thread::kLong) step(threads[i], slot);
            }
          };
          each([](Thread& thread, int slot) { thread.sum_in_warp(slot); });
          each([](Thread& thread, int) { thread.fold_in_warp(); });
          each([](Thread& thread, int slot) { thread.write_in_warp(slot); });
        }
        for (int slot = 0; slot < Policy::kThreads; ++slot) {
          if (threads[0].list(slot) != Thread::kVeryLong) continue;
          for (Thread& thread : threads) thread.sum_in_block(slot);
          for (Thread& thread : threads) thread.fold_in_block();
          for (Thread& thread : threads) thread.write_in_block(slot);
        }
      }
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

// The sums of the first piece are those of all.
void rotary_gradient(const RotaryGradientArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::run_rotary_gradient(args);
}

void sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::run_sinusoidal(args);
}

void toeplitz(const ToeplitzArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::run_toeplitz(args);
}

int64_t diagonal_sum_pieces(const ToeplitzArgs& /*args*/) { return 1; }

void diagonal_sums(const ToeplitzArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::run_diagonal_sums(args);
}

void relative_gather(const RelativeArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::run_relative(args, false);
}

void relative_scatter(const RelativeArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin != 0) return;
  if (args.index.data == nullptr) return cuda::run_relative(args, true);
  // In torch's stead.
  std::vector<int64_t> order(static_cast<size_t>(args.entries));
  for (int64_t i = 0; i < args.entries; ++i) order[static_cast<size_t>(i)] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return args.index[a] < args.index[b]; });
  std::vector<int64_t> bounds;
  for (int64_t column = 0; column <= args.width; ++column) {
    bounds.push_back(std::partition_point(order.begin(), order.end(),
                                          [&](int64_t i) { return args.index[i] < column; }) -
                     order.begin());
  }
  RelativeArgs sorted = args;
  sorted.order = order.data();
  sorted.bounds = bounds.data();
  cuda::run_scatter(sorted);
}

std::vector<std::string> available_targets() { return {current_target()}; }
std::string current_target() { return "CUDA"; }
bool set_target(std::string_view name) { return name.empty() || name == current_target(); }
int64_t non_temporal_bytes() { return INT64_MAX; }
void set_non_temporal_bytes(int64_t /*bytes*/) {}

}  // namespace posenc::cpu
