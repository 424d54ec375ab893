// The phases that segments begin with, for rotations by angles that data decide (selective.cuh).
// A kernel sums the steps of each segment, and another scans the sums of each row. Plain C++ as
// well, which tests run on the host (on_host/).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/rotary.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/room.h"
#include "cuda/selective_segments.cuh"
#include "cuda/selective_steps.cuh"

namespace posenc::cuda {

// ---------------------------------------------------------------------------------------------
// 1. Totals

template <typename Step, int kPairs>
class SelectiveTotalsThread {
  // Tokens that are read before one is added.
  static constexpr int kAtOnce = Policy::kStepReads * 4 / static_cast<int>(sizeof(Step));

 public:
  static constexpr int kWidth = kPairs;

  POSENC_HD SelectiveTotalsThread(const SelectiveParameters& parameters, char* /*shared*/, int x,
                                  int y)
      : args_(parameters.args), plan_(parameters.plan), x_(x), y_(y) {}

  POSENC_HD void sum(int64_t piece_x, int64_t piece_y) const {
    const int64_t column = piece_y * plan_.threads_x + x_;
    if (column >= plan_.columns) return;
    const int64_t number = piece_x * plan_.threads_y + y_;
    const Segment segment = segment_of(args_, plan_.cut, number);
    // Nothing begins where the last one ends.
    if (!segment.there || segment.last) return;
    const int64_t packs = args_.rotary.pairs / kPairs;
    const int64_t head = divide(column, packs), pair = (column - head * packs) * kPairs;
    int64_t at = place_of_step(args_.steps_strides, segment.batch, segment.first, head, pair);
    Phases<Step, kPairs> phases;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) phases.sums[j] = 0;
    for (int64_t token = 0; token < segment.count; token += kAtOnce) {
      Steps<Step, kPairs> steps[kAtOnce];
      const int64_t here = segment.count - token;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i >= here) continue;
        steps[i].read(args_, plan_.wide_steps, at);
        at += args_.steps_strides.token;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i < here) phases.add(steps[i], args_.steps_dtype);
      }
    }
    uint16_t flags[kPairs];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) flags[j] = phases.lost >> j & 1;
    const SelectiveWorkspace to(args_, plan_.cut);
    const int64_t there = (number * args_.heads + head) * args_.rotary.pairs + pair;
    write_neighbours<uint64_t, kPairs>(phases.sums, to.phases + there);
    write_neighbours<uint16_t, kPairs>(flags, to.flags + there);
  }

 private:
  const SelectiveArgs& args_;
  const SelectivePlan& plan_;
  const int x_, y_;
};

// ---------------------------------------------------------------------------------------------
// 2. Scan

// A thread takes some of the segments of a row, one after the other; those of a row share out all
// of them, and each adds up what those before it have. T: int64_t, as whose bits phases lie there.
template <typename T, int kCount>
class SelectiveScanThread {
  static constexpr int kColumns = Policy::kSumColumns, kRows = Policy::kSumRows;
  static constexpr int kAtOnce = 8;

 public:
  static constexpr size_t kSharedBytes = (sizeof(uint64_t) + sizeof(uint32_t)) * kColumns * kRows;

  POSENC_HD SelectiveScanThread(const SelectiveParameters& parameters, char* shared, int x, int y)
      : args_(parameters.args), plan_(parameters.plan), shared_(shared), x_(x), y_(y) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    row_ = piece_y;
    column_ = piece_x * kColumns + x_;
    there_ = column_ < columns();
    const RowSegments segments = row_segments(args_, plan_.cut, row_);
    const int64_t each = (segments.count + kRows - 1) / kRows;
    const int64_t before = y_ * each, rest = segments.count - before;
    first_ = segments.first + before;
    count_ = rest < 0 ? 0 : rest < each ? rest : each;
    summed_ = before + count_ == segments.count ? count_ - 1 : count_;
    if (!there_) return;
    uint64_t total = 0;
    uint32_t lost = 0;
    walk([&](int64_t /*segment*/, uint64_t own, uint32_t own_lost) {
      total += own;
      lost |= own_lost;
    });
    keep_packet<uint64_t, 1>({{total}}, totals() + y_ * kColumns + x_);
    keep_packet<uint32_t, 1>({{lost}}, losses() + y_ * kColumns + x_);
  }

  POSENC_HD void write() const {
    if (!there_ || count_ == 0) return;
    const int64_t pairs = args_.rotary.pairs;
    const int64_t head = divide(column_, pairs);
    uint64_t sum = state_before(args_, row_, head, column_ - head * pairs);
    uint32_t lost = 0;
    for (int y = 0; y < y_; ++y) {
      sum += kept_packet<uint64_t, 1>(totals() + y * kColumns + x_).numbers[0];
      lost |= kept_packet<uint32_t, 1>(losses() + y * kColumns + x_).numbers[0];
    }
    const SelectiveWorkspace to(args_, plan_.cut);
    walk([&](int64_t segment, uint64_t own, uint32_t own_lost) {
      const int64_t at = segment * columns() + column_;
      write_packet<uint64_t, 1>({{sum}}, to.phases + at);
      write_packet<uint16_t, 1>({{static_cast<uint16_t>(lost)}}, to.flags + at);
      sum += own;
      lost |= own_lost;
    });
  }

 private:
  POSENC_HD int64_t columns() const { return args_.heads * args_.rotary.pairs; }
  POSENC_HD uint64_t* totals() const { return reinterpret_cast<uint64_t*>(shared_); }
  POSENC_HD uint32_t* losses() const {
    return reinterpret_cast<uint32_t*>(totals() + kColumns * kRows);
  }

  // visit(segment, total, lost). The last segment of a row has no total.
  template <typename Visit>
  POSENC_HD void walk(const Visit& visit) const {
    const SelectiveWorkspace from(args_, plan_.cut);
    for (int64_t i = 0; i < count_; i += kAtOnce) {
      uint64_t totals[kAtOnce];
      uint16_t lost[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        totals[j] = lost[j] = 0;
        if (i + j >= summed_) continue;
        const int64_t at = (first_ + i + j) * columns() + column_;
        totals[j] = read_packet<uint64_t, 1>(from.phases + at).numbers[0];
        lost[j] = read_packet<uint16_t, 1>(from.flags + at).numbers[0];
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j < count_) visit(first_ + i + j, totals[j], lost[j]);
      }
    }
  }

  const SelectiveArgs& args_;
  const SelectivePlan& plan_;
  char* const shared_;
  const int x_, y_;

  bool there_;
  int64_t row_, column_, first_, count_;
  int64_t summed_;  // of count_, those that have totals
};

// ---------------------------------------------------------------------------------------------
// On the host: which threads, how many of them

template <typename Thread>
SelectivePlan plan_totals(const SelectiveArgs& args, GridLimit limit = {}) {
  SelectivePlan plan =
      plan_segments(cut_selective(args), args.heads * args.rotary.pairs / Thread::kWidth, limit);
  plan.wide_steps = is_wide(args, args.steps, args.steps_strides, Thread::kWidth);
  return plan;
}

inline SelectivePlan plan_scan(const SelectiveArgs& args, size_t shared_bytes,
                               GridLimit limit = {}) {
  SelectivePlan plan;
  plan.cut = cut_selective(args);
  plan.threads_x = Policy::kSumColumns;
  plan.threads_y = Policy::kSumRows;
  plan.shared_bytes = shared_bytes;
  plan.take_pieces(divide_up(args.heads * args.rotary.pairs, Policy::kSumColumns), args.rows,
                   limit);
  return plan;
}

template <typename Visit>
auto visit_totals_thread(const SelectiveArgs& args, const Visit& visit) {
  return visit_step(args, [&](auto step) {
    using Step = decltype(step);
    if (is_wide(args, args.steps, args.steps_strides, 4)) {
      return visit(static_cast<SelectiveTotalsThread<Step, 4>*>(nullptr));
    }
    return visit(static_cast<SelectiveTotalsThread<Step, 1>*>(nullptr));
  });
}

}  // namespace posenc::cuda
