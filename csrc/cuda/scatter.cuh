// Scatter with an index on a GPU: what one thread does, and how a launch covers a call that is not
// one for scatter_warp.cuh.
//
//   ScatterThread   sums over the entries of a column, for 8 rows at a time: by one thread, by a
//                   warp or by the block, as many as there are. Of a block's lists the next is
//                   read while the last one's parts are put together
#pragma once

#include <algorithm>

#include "cuda/lookup.cuh"
#include "cuda/scatter_warp.cuh"

namespace posenc::cuda {

// The thread of a block that has kRows rows, of any planes. A column has a list of entries.
template <typename T, int kVector>
class ScatterThread {
  using Number = Real<T>;
  static constexpr int kRows = Policy::kScatterRows;
  static constexpr int kThreads = Policy::kThreads;
  static constexpr int kStride = kThreads + 1;  // rows of parts, in different banks
  static constexpr int kBuffers = 2;            // of parts
  // Entries of a long list that a thread reads before it adds the first.
  static constexpr int kEntries =
      Policy::kScatterWords * 4 / (kRows * static_cast<int>(sizeof(Number)));
  static_assert(kVector == 1);
  struct alignas(16) Row {
    int64_t first;  // entry
    int64_t from;   // where entry 0 would be
    int64_t to;
  };

 public:
  static constexpr int kWidth = 1;
  static constexpr int kBlocks = Policy::kBlocksPerProcessor;
  static constexpr int kWarps = kThreads / kLanes;
  enum List : unsigned char { kShort, kLong, kVeryLong };

  POSENC_HD ScatterThread(const ScatterParameters& parameters, char* shared, int thread)
      : args_(parameters.args),
        plan_(parameters.plan),
        rows_(reinterpret_cast<Row*>(shared)),
        parts_(reinterpret_cast<Number*>(rows_ + kRows)),
        lists_(reinterpret_cast<unsigned char*>(parts_ + kBuffers * kRows * kStride)),
        thread_(thread) {}

  // A thread for each row finds out where it is ...
  POSENC_HD void begin(int64_t piece_x) {
    first_row_ = piece_x * kRows;
    const int64_t row = first_row_ + thread_;
    if (thread_ >= kRows) return;
    if (row >= args_.rows()) {
      rows_[thread_] = {INT64_MIN / 2, 0, 0};  // no entry is in its window
      return;
    }
    const int64_t plane = divide(row, args_.queries), query = row - plane * args_.queries;
    int64_t offsets[3] = {};
    add_offsets(args_.planes, 0, args_.planes.rank, plane,
                {args_.by_key.plane_strides, args_.by_column.plane_strides, args_.q_offset_strides},
                offsets);
    const int64_t first = args_.origin_at(offsets[2]) - query;
    const int64_t from = offsets[0] + query * args_.by_key.row_stride;
    rows_[thread_] = {first, from - first * args_.by_key.column_stride,
                      offsets[1] + query * args_.by_column.row_stride};
  }

  // ... and all find out which entries may be in their windows.
  POSENC_HD void read_rows() {
    low_ = INT64_MAX;
    high_ = INT64_MIN;
    for (int r = 0; r < kRows; ++r) {
      if (first_row_ + r >= args_.rows()) break;
      const int64_t first = rows_[r].first;
      low_ = first < low_ ? first : low_;
      high_ = first + args_.keys > high_ ? first + args_.keys : high_;
    }
  }

  // Sums the list of this thread's column of the tile if it is short; how long it is.
  POSENC_HD List short_list(int64_t tile) {
    tile_column_ = tile * kThreads;
    const int64_t column = tile_column_ + thread_;
    List list = kShort;
    if (column < args_.width) {
      const Range range = entries_of(column);
      const int64_t length = range.last - range.first;
      list = length <= Policy::kThreadList ? kShort
             : length <= Policy::kWarpList ? kLong
                                           : kVeryLong;
      if (list == kShort) {
        Number sums[kRows];
        sum<1>(range.first, range.last, 1, sums);
#pragma unroll
        for (int r = 0; r < kRows; ++r) write(r, column, sums[r]);
      }
    }
    lists_[thread_] = list;
    return list;
  }

  POSENC_HD List list(int slot) const { return static_cast<List>(lists_[slot]); }

  // The first column of the tile from `slot` on with a very long list, or kThreads.
  POSENC_HD int next_very_long(int slot) const {
    constexpr int kAtOnce = 16;
    while (slot < kThreads) {
      const int begin = slot / kAtOnce * kAtOnce;
      const auto lists = kept_packet<unsigned char, kAtOnce>(lists_ + begin);
      unsigned very_long = 0;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        very_long |= static_cast<unsigned>(lists.numbers[i] == kVeryLong) << i;
      }
      very_long >>= slot - begin;
      if (very_long == 0) {
        slot = begin + kAtOnce;
        continue;
      }
      for (; (very_long & 1) == 0; very_long >>= 1) ++slot;
      break;
    }
    return slot;
  }

  // A list that this thread's warp sums up: each thread its part of it, then groups of them ...
  POSENC_HD void sum_in_warp(int slot) { sum_part(slot, thread_ % kLanes, kLanes, parts_); }

  POSENC_HD void fold_in_warp() {
    constexpr int kEach = kLanes / kRows;  // threads for a row
    const int lane = thread_ % kLanes, row = lane / kEach, first = lane % kEach;
    fold(parts_ + row * kStride + thread_ - lane + first, kEach, kLanes / kEach);
  }

  POSENC_HD void write_in_warp(int slot) {
    constexpr int kEach = kLanes / kRows;
    const int lane = thread_ % kLanes;
    if (lane >= kRows) return;
    write(lane, tile_column_ + slot, fold(parts_ + lane * kStride + thread_ - lane, 1, kEach));
  }

  // ... and one that the block does, in one of two buffers: while some warps, for each row some
  // threads of one, put together what is in it, the others sum up the next list in the other.
  POSENC_HD void sum_in_block(int slot, int buffer) {
    sum_part(slot, thread_, kThreads, parts_ + buffer * kRows * kStride);
  }

  POSENC_HD void fold_in_block(int buffer) {
    const int thread = folding(buffer);
    if (thread >= 0) fold(folded(buffer, thread), kFolds, kThreads / kFolds);
  }

  POSENC_HD void write_in_block(int slot, int buffer) {
    const int thread = folding(buffer);
    if (thread < 0 || thread % kFolds != 0) return;
    write(thread / kFolds, tile_column_ + slot, fold(folded(buffer, thread), 1, kFolds));
  }

  static constexpr size_t kSharedBytes =
      kRows * (sizeof(Row) + kBuffers * kStride * sizeof(Number)) + kThreads;

 private:
  static constexpr int kFolds = 16;  // threads that put together a row's parts
  static_assert(kFolds * kRows * kBuffers <= kThreads && kLanes % kRows == 0 &&
                kLanes % kFolds == 0);
  static_assert(kBuffers * kRows * kStride * sizeof(Number) % 16 == 0 && kSharedBytes <= 49152);

  struct Range {
    int64_t first, last;
  };

  // The caller's bounds, of which nobody has looked at the values.
  POSENC_HD int64_t bound(int64_t column) const {
    const int64_t at = args_.bounds[column];
    return at < 0 ? 0 : at < args_.entries ? at : args_.entries;
  }

  // Of a column's list, those that may be in a window.
  POSENC_HD Range entries_of(int64_t column) const {
    Range range{bound(column), bound(column + 1)};
    if (plan_.searches) {
      range.first = search(range, low_);
      range.last = search(range, high_);
    }
    return range;
  }

  // The first of a range that is at `entry` or beyond.
  POSENC_HD int64_t search(Range range, int64_t entry) const {
    while (range.first < range.last) {
      const int64_t middle = range.first + (range.last - range.first) / 2;
      if (args_.order[middle] < entry) {
        range.first = middle + 1;
      } else {
        range.last = middle;
      }
    }
    return range.first;
  }

  // Every step-th entry of a list, from one to before another, for every row; reads kAtOnce of
  // them, and where the next ones are, before it adds the first.
  template <int kAtOnce>
  POSENC_HD void sum(int64_t first, int64_t last, int step, Number (&sums)[kRows]) const {
    const T* const data = static_cast<const T*>(args_.by_key.data);
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] = 0;
    int64_t entries[kAtOnce];
    const auto look_up = [&](int64_t i) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        entries[j] = INT64_MAX;  // in no window
        if (i + j * step < last) entries[j] = args_.order[i + j * step];
      }
    };
    look_up(first);
    for (int64_t i = first; i < last; i += kAtOnce * step) {
      Number values[kAtOnce][kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t first_entry = rows_[r].first, from = rows_[r].from;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          values[j][r] = 0;
          const bool there =
              static_cast<uint64_t>(entries[j]) - static_cast<uint64_t>(first_entry) <
              static_cast<uint64_t>(args_.keys);
          if (there) {
            values[j][r] =
                to_real(read_number(data + from + entries[j] * args_.by_key.column_stride));
          }
        }
      }
      look_up(i + kAtOnce * step);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) sums[r] += values[j][r];
      }
    }
  }

  POSENC_HD void sum_part(int slot, int first, int step, Number* parts) const {
    const Range range = entries_of(tile_column_ + slot);
    Number sums[kRows];
    sum<kEntries>(range.first + first, range.last, step, sums);
#pragma unroll
    for (int r = 0; r < kRows; ++r) parts[r * kStride + thread_] = sums[r];
  }

  // Number of this thread among those that put together what is in a buffer, or -1.
  POSENC_HD int folding(int buffer) const {
    const int thread = thread_ - buffer * kFolds * kRows;
    return thread >= 0 && thread < kFolds * kRows ? thread : -1;
  }
  POSENC_HD Number* folded(int buffer, int thread) const {
    return parts_ + (buffer * kRows + thread / kFolds) * kStride + thread % kFolds;
  }

  // Adds up `count` parts, `step` apart, where the first of them is.
  static POSENC_HD Number fold(Number* part, int step, int count) {
    Number sum = *part;
    for (int i = 1; i < count; ++i) sum += part[i * step];
    *part = sum;
    return sum;
  }

  POSENC_HD void write(int r, int64_t column, Number sum) const {
    if (first_row_ + r >= args_.rows()) return;
    const int64_t at = rows_[r].to + column * args_.by_column.column_stride;
    write_packet<T, 1>({{round_to<T>(sum * static_cast<Number>(args_.scale))}},
                       static_cast<T*>(args_.by_column.data) + at);
  }

  const RelativeArgs& args_;
  const ScatterPlan& plan_;
  Row* const rows_;
  Number* const parts_;         // [kBuffers, kRows, kThreads], rows kStride apart
  unsigned char* const lists_;  // how long those of the tile's columns are
  const int thread_;

  int64_t first_row_, tile_column_;
  int64_t low_, high_;  // all windows together
};

// Of arranged arguments.
template <typename Thread>
ScatterPlan plan_scatter(const RelativeArgs& args, const Room& room = {}) {
  ScatterPlan plan;
  plan.searches = searches(args);
  plan.tiles = divide_up(args.width, Policy::kThreads);
  plan.threads_x = Policy::kThreads;
  plan.shared_bytes = Thread::kSharedBytes;
  const int64_t rows = divide_up(args.rows(), Policy::kScatterRows);
  if (rows == 0 || plan.tiles == 0) return plan;
  const int64_t places = room.blocks(plan.threads(), plan.shared_bytes);
  const int64_t tiles = units_of_piece(rows, plan.tiles, plan.tiles, places);
  plan.take_pieces(rows, divide_up(plan.tiles, tiles), room.limit);
  return plan;
}

// Calls by_warps(thread type) or by_blocks(thread type).
template <typename ByWarps, typename ByBlocks>
auto visit_scatter_thread(const RelativeArgs& args, const ByWarps& by_warps,
                          const ByBlocks& by_blocks) {
  return visit_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    using Warp = ScatterWarpThread<T, kWide>;
    if (takes_warps<Warp>(args)) {
      return aligned(args.by_key, args.planes, args.queries, args.keys, args.dtype, kWide)
                 ? by_warps(static_cast<Warp*>(nullptr))
                 : by_warps(static_cast<ScatterWarpThread<T, 1>*>(nullptr));
    }
    return by_blocks(static_cast<ScatterThread<T, 1>*>(nullptr));
  });
}

}  // namespace posenc::cuda
