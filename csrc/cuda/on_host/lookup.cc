#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpu/kernels.h"
#include "cuda/gather.cuh"
#include "cuda/on_host/blocks.h"
#include "cuda/scatter.cuh"
#include "cuda/shift.cuh"

namespace posenc::cuda::on_host {
namespace {

void run_shift(const RelativeArgs& args, bool scatter) {
  RelativeParameters parameters = arrange(args, scatter);
  visit_shift_thread(parameters, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    launch_tiles<Thread>([&](const Room& room) {
      parameters.plan = plan_shift<Thread>(parameters, room);
      return parameters;
    });
  });
}

void run_gather(const RelativeArgs& args) {
  RelativeParameters parameters = arrange(args, false);
  visit_gather_thread(
      parameters,
      [&](auto* type) {
        using Thread = std::remove_pointer_t<decltype(type)>;
        const TilePlan& plan = parameters.plan;
        const auto arrange_in = [&](const Room& room) {
          parameters.plan = plan_gather_warps<Thread>(parameters, room);
          return parameters;
        };
        launch<Thread>(arrange_in, [&](Block<Thread>& block, int64_t x, int64_t y) {
          block.each([&](Thread& thread) {
            thread.begin(x, y);
            thread.stage_index();
          });
          for (int64_t round = 0; round < plan.rounds; ++round) {
            for (int tile = 0; tile < plan.tiles; ++tile) {
              block.each([&](Thread& thread) { thread.stage(round, tile); });
              block.each([](Thread& thread) { thread.write(); });
            }
          }
        });
      },
      [&](auto* type) {
        using Thread = std::remove_pointer_t<decltype(type)>;
        launch_tiles<Thread>([&](const Room& room) {
          parameters.plan = plan_relative<Thread>(parameters, room);
          return parameters;
        });
      });
}

// What warps do with the lists that are theirs: slots warp, warp + kWarps ...
template <typename Thread>
void sum_in_warps(Block<Thread>& block) {
  for (int first = 0; first < Policy::kThreads; first += Thread::kWarps) {
    const auto each_of_warps = [&](const auto& step) {
      block.each([&](Thread& thread, int number) {
        const int slot = first + number / kLanes;
        if (thread.list(slot) == Thread::kLong) step(thread, slot);
      });
    };
    each_of_warps([](Thread& thread, int slot) { thread.sum_in_warp(slot); });
    each_of_warps([](Thread& thread, int) { thread.fold_in_warp(); });
    each_of_warps([](Thread& thread, int slot) { thread.write_in_warp(slot); });
  }
}

template <typename Thread>
void sum_in_block(Block<Thread>& block) {
  int buffer = 0;
  for (int slot = block.agreed([](Thread& thread) { return thread.next_very_long(0); });
       slot < Policy::kThreads;
       slot = block.agreed([&](Thread& thread) { return thread.next_very_long(slot + 1); })) {
    block.each([&](Thread& thread) { thread.sum_in_block(slot, buffer); });
    block.each([&](Thread& thread) { thread.fold_in_block(buffer); });
    block.each([&](Thread& thread) { thread.write_in_block(slot, buffer); });
    buffer = 1 - buffer;
  }
}

// What a warp does with a row.
template <typename Thread>
void scatter_rows(Block<Thread>& block, int64_t piece, int64_t step) {
  block.each([&](Thread& thread) { thread.stage(piece, step); });
  block.each([](Thread& thread) { thread.sum_short(); });
  const int longs = block.agreed([](Thread& thread) { return thread.long_lists(); });
  for (int first = 0; first < longs; first += Thread::kLongLists) {
    block.each([&](Thread& thread) { thread.sum_long(first); });
    block.each([&](Thread& thread) { thread.write_long(first); });
  }
  const int very_long = block.agreed([](Thread& thread) { return thread.very_long_lists(); });
  for (int list = 0; list < very_long; ++list) {
    block.each([&](Thread& thread) { thread.sum_very_long(list); });
    block.each([](Thread& thread) { thread.fold_very_long(); });
    block.each([&](Thread& thread) { thread.write_very_long(list); });
  }
}

template <typename Thread>
void scatter_by_warps(const RelativeArgs& args) {
  int64_t steps = 0;
  const auto plan = [&](const Room& room) {
    const ScatterParameters parameters{args, plan_scatter_warps<Thread>(args, room)};
    steps = parameters.plan.steps;
    return parameters;
  };
  launch<Thread>(plan, [&](Block<Thread>& block, int64_t x, int64_t /*y*/) {
    block.each([](Thread& thread) { thread.stage_lists(); });
    block.each([](Thread& thread) { thread.count_lists(); });
    block.each([](Thread& thread) { thread.order_lists(); });
    for (int64_t step = 0; step < steps; ++step) scatter_rows(block, x, step);
  });
}

template <typename Thread>
void scatter_by_blocks(const RelativeArgs& args) {
  int64_t tiles = 0, tile_step = 0;
  const auto plan = [&](const Room& room) {
    const ScatterParameters parameters{args, plan_scatter<Thread>(args, room)};
    tiles = parameters.plan.tiles;
    tile_step = parameters.plan.pieces_y;
    return parameters;
  };
  launch<Thread>(plan, [&](Block<Thread>& block, int64_t x, int64_t y) {
    block.each([&](Thread& thread) { thread.begin(x); });
    block.each([](Thread& thread) { thread.read_rows(); });
    for (int64_t tile = y; tile < tiles; tile += tile_step) {
      block.each([&](Thread& thread) { thread.short_list(tile); });
      sum_in_warps(block);
      sum_in_block(block);
    }
  });
}

void run_scatter(const RelativeArgs& args) {
  const RelativeArgs arranged = arrange(args, true).args;
  visit_scatter_thread(
      arranged,
      [&](auto* type) { scatter_by_warps<std::remove_pointer_t<decltype(type)>>(arranged); },
      [&](auto* type) { scatter_by_blocks<std::remove_pointer_t<decltype(type)>>(arranged); });
}

}  // namespace
}  // namespace posenc::cuda::on_host

namespace posenc::cpu {

void relative_gather(const RelativeArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin != 0) return;
  if (args.index.data == nullptr) return cuda::on_host::run_shift(args, false);
  cuda::on_host::run_gather(args);
}

void relative_scatter(const RelativeArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin != 0) return;
  if (args.index.data == nullptr) return cuda::on_host::run_shift(args, true);
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
  cuda::on_host::run_scatter(sorted);
}

}  // namespace posenc::cpu
