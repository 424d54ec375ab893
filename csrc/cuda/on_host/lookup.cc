#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpu/kernels.h"
#include "cuda/gather.cuh"
#include "cuda/on_host/blocks.h"
#include "cuda/scatter.cuh"
#include "cuda/shift.cuh"

namespace posenc::cuda {
namespace {

void run_shift(const RelativeArgs& args, bool scatter) {
  RelativeParameters parameters = arrange(args, scatter);
  visit_shift_thread(parameters, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    parameters.plan = plan_relative<Thread>(parameters, kRoom);
    run_tiles<Thread>(parameters);
  });
}

void run_gather(const RelativeArgs& args) {
  RelativeParameters parameters = arrange(args, false);
  visit_gather_thread(parameters, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    parameters.plan = plan_relative<Thread>(parameters, kRoom);
    run_tiles<Thread>(parameters);
  });
}

void run_scatter(const RelativeArgs& args) {
  const RelativeArgs arranged = arrange(args, true).args;
  visit_scatter_thread(arranged, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const ScatterParameters parameters{arranged, plan_scatter<Thread>(arranged, kRoom)};
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
          const auto each_of_warps = [&](const auto& step) {
            for (int i = 0; i < Policy::kThreads; ++i) {
              const int slot = first + i / Thread::kWarp;
              if (threads[i].list(slot) == Thread::kLong) step(threads[i], slot);
            }
          };
          each_of_warps([](Thread& thread, int slot) { thread.sum_in_warp(slot); });
          each_of_warps([](Thread& thread, int) { thread.fold_in_warp(); });
          each_of_warps([](Thread& thread, int slot) { thread.write_in_warp(slot); });
        }
        int buffer = 0;
        for (int slot = threads[0].next_very_long(0); slot < Policy::kThreads;
             slot = threads[0].next_very_long(slot + 1)) {
          for (Thread& thread : threads) thread.sum_in_block(slot, buffer);
          for (Thread& thread : threads) thread.fold_in_block(buffer);
          for (Thread& thread : threads) thread.write_in_block(slot, buffer);
          buffer = 1 - buffer;
        }
      }
    });
  });
}

}  // namespace
}  // namespace posenc::cuda

namespace posenc::cpu {

void relative_gather(const RelativeArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin != 0) return;
  if (args.index.data == nullptr) return cuda::run_shift(args, false);
  cuda::run_gather(args);
}

void relative_scatter(const RelativeArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin != 0) return;
  if (args.index.data == nullptr) return cuda::run_shift(args, true);
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

}  // namespace posenc::cpu
