// Scatter with an index on a GPU, where shared memory has room for rows of gradients: what one
// thread does, and how a launch covers a call. All else is done by scatter.cuh, whose sums these
// are, to the bit.
// Plain C++ as well, which tests run on the host (on_host/).
//
//   block     where the lists of columns begin, and how long they are
//   warp      a row at a time, which it reads from global memory once
//   lane      short lists            a column
//             long ones              every 4th entry, of each of 8 lists
//             very long ones         every 32nd entry
//
// An index of distances has lists of entries one after the other: they are not looked up. Nothing
// waits for another warp.
#pragma once

#include <algorithm>

#include "cuda/lookup.cuh"

namespace posenc::cuda {

struct ScatterPlan : LaunchPlan {
  bool searches = false;
  int64_t tiles = 0;  // of kThreads columns; a block takes every pieces_y-th
  int64_t steps = 0;  // rows of a warp
};

struct ScatterParameters {
  RelativeArgs args;
  ScatterPlan plan;
};

// Whether most entries of a list are in no row's window.
inline bool searches(const RelativeArgs& args) { return args.entries / 4 > args.keys; }

template <typename T, int kVector>
class ScatterWarpThread {
  using Number = Real<T>;
  struct alignas(8) List {
    int at;      // its first entry if they are one after the other, or else where order has it
    int length;  // -1 - length if order has them
  };

 public:
  static constexpr int kBlocks = Policy::kScatterBlocksPerProcessor;
  static constexpr int kLongLists = 8;                // at a time
  static constexpr int64_t kMost = int64_t{1} << 30;  // entries: so that sums have 32 bits

  POSENC_HD ScatterWarpThread(const ScatterParameters& parameters, char* shared, int x, int y)
      : args_(parameters.args),
        plan_(parameters.plan),
        lists_(reinterpret_cast<List*>(shared)),
        columns_(reinterpret_cast<uint16_t*>(lists_ + args_.width)),
        counts_(columns_ + args_.width),
        parts_(reinterpret_cast<Number*>(shared + lists_bytes(args_.width) + y * row_bytes(args_))),
        row_(reinterpret_cast<T*>(parts_ + kParts)),
        x_(x),
        y_(y) {}

  // The lists of all columns ...
  POSENC_HD void stage_lists() {
    for (int column = y_ * kLanes + x_; column < width(); column += plan_.threads()) {
      const int64_t first = bound(column), last = bound(column + 1);
      List list{static_cast<int>(first), static_cast<int>(last > first ? last - first : 0)};
      if (list.length > 0) {
        const int64_t entry = args_.order[first];
        const bool follows = args_.order[last - 1] - entry == list.length - 1;
        if (follows && entry >= 0 && entry < args_.entries) {
          list.at = static_cast<int>(entry);
        } else {
          list.length = -1 - list.length;
        }
      }
      keep(lists_ + column, list);
    }
  }

  // ... how many of kLanes columns are long, and very long ...
  POSENC_HD void count_lists() {
    for (int chunk = y_ * kLanes + x_; chunk < chunks(); chunk += plan_.threads()) {
      int counts[2] = {};
#pragma unroll 1
      for (int i = 0; i < kLanes; ++i) {
        const int column = chunk * kLanes + i;
        if (column >= width()) break;
        const int length = length_of(kept(lists_ + column));
        counts[0] += is_long(length);
        counts[1] += is_very_long(length);
      }
      for (int kind = 0; kind < 2; ++kind) {
        keep(counts_ + 2 * chunk + kind, static_cast<uint16_t>(counts[kind]));
      }
    }
  }

  // ... and which: the long ones from the first column on, the very long ones from the last.
  POSENC_HD void order_lists() {
    long_ = very_long_ = 0;
    for (int chunk = 0; chunk < chunks(); ++chunk) {
      if (chunk % plan_.threads() == y_ * kLanes + x_) order_lists(chunk, long_, very_long_);
      long_ += kept(counts_ + 2 * chunk);
      very_long_ += kept(counts_ + 2 * chunk + 1);
    }
  }

  // Reads the row of a step, if there is one.
  POSENC_HD void stage(int64_t piece_x, int64_t step) {
    const int64_t row = (piece_x * plan_.steps + step) * plan_.threads_y + y_;
    working_ = row < args_.rows();
    if (!working_) return;
    const int64_t plane = divide(row, args_.queries), query = row - plane * args_.queries;
    int64_t offsets[3] = {};
    add_offsets(args_.planes, 0, args_.planes.rank, plane,
                {args_.by_key.plane_strides, args_.by_column.plane_strides, args_.q_offset_strides},
                offsets);
    // Within the entries, which have 31 bits.
    first_entry_ = static_cast<int>(args_.origin_at(offsets[2]) - query);
    to_ = static_cast<T*>(args_.by_column.data) + offsets[1] + query * args_.by_column.row_stride;
    const T* const from =
        static_cast<const T*>(args_.by_key.data) + offsets[0] + query * args_.by_key.row_stride;
    keep_row(from);
    if (kVector > 1 && query + plan_.threads_y < args_.queries) {
      request_row(from + plan_.threads_y * args_.by_key.row_stride);
    }
  }

  POSENC_HD void sum_short() const {
    if (!working_) return;
#pragma unroll 1
    for (int column = x_; column < width(); column += kLanes) {
      const List list = kept(lists_ + column);
      const int length = length_of(list);
      if (is_long(length) || is_very_long(length)) continue;
      Number total = 0;
#pragma unroll 1
      for (int i = 0; i < length; ++i) total += number(key(list, i));
      write(column, total);
    }
  }

  POSENC_HD int long_lists() const { return long_; }
  POSENC_HD int very_long_lists() const { return very_long_; }

  // kLongLists of them: of each, 4 lanes have the sums of every 32nd entry that fold_in_warp of
  // ScatterThread adds up ...
  POSENC_HD void sum_long(int first) {
    const int i = first + x_ / kFolds;
    if (!working_ || i >= long_) return;
    sum_parts<kFolds>(kept(lists_ + kept(columns_ + i)), x_ % kFolds);
    Number total = 0;
#pragma unroll
    for (int j = 0; j < kSums; ++j) total += sums_[j];
    keep(parts_ + x_, total);
  }

  // ... and one of them all.
  POSENC_HD void write_long(int first) const {
    const int i = first + x_ / kFolds;
    if (!working_ || i >= long_ || x_ % kFolds != 0) return;
    Number total = kept(parts_ + x_);
#pragma unroll
    for (int fold = 1; fold < kFolds; ++fold) total += kept(parts_ + x_ + fold);
    write(kept(columns_ + i), total);
  }

  // A list, of which a block of ScatterThread would have kThreads parts: every lane has those of
  // every 32nd entry, of which lanes of the second half give theirs away ...
  POSENC_HD void sum_very_long(int i) {
    if (!working_) return;
    const List list = kept(lists_ + very_long_column(i));
    if (list.length < 0) {
      sum_parts<kLanes>(list, x_);
    } else {
      sum_neighbors(list.at - first_entry_, list.length);
    }
    if (x_ < kHalf) return;
#pragma unroll
    for (int j = 0; j < kSums; ++j) keep(parts_ + j * kHalf + x_ - kHalf, sums_[j]);
  }

  // ... to those of the first half, which add up every 16th part ...
  POSENC_HD void fold_very_long() const {
    if (!working_ || x_ >= kHalf) return;
    Number total = 0;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      total += sums_[j];
      total += kept(parts_ + j * kHalf + x_);
    }
    keep(parts_ + kSums * kHalf + x_, total);
  }

  POSENC_HD void write_very_long(int i) const {
    if (!working_ || x_ != 0) return;
    Number total = 0;
#pragma unroll
    for (int fold = 0; fold < kHalf; ++fold) total += kept(parts_ + kSums * kHalf + fold);
    write(very_long_column(i), total);
  }

  // Warps whose rows there is room for.
  static int64_t warps(const RelativeArgs& args) {
    const int64_t bytes = static_cast<int64_t>(Policy::kSharedBytes) - lists_bytes(args.width);
    return bytes < 0 ? 0 : std::min<int64_t>(bytes / row_bytes(args), Policy::kThreads / kLanes);
  }
  static size_t shared_bytes(const RelativeArgs& args, int64_t warps) {
    return lists_bytes(args.width) + warps * row_bytes(args);
  }

 private:
  static constexpr int kFolds = 4, kHalf = kLanes / 2;
  static constexpr int kSums = Policy::kThreads / kLanes;  // of a lane
  static constexpr int kParts = (kSums + 1) * kHalf;       // of a warp
  static_assert(kFolds * kLongLists == kLanes);
  static_assert(kParts * sizeof(Number) % 16 == 0);

  // Of columns, rounded up so that rows are aligned: lists, those that are long, counts of them.
  static POSENC_HD int64_t lists_bytes(int64_t width) {
    const int64_t chunks = (width + kLanes - 1) / kLanes;
    return (width * (sizeof(List) + 2) + chunks * 4 + 15) / 16 * 16;
  }
  static POSENC_HD int64_t row_bytes(const RelativeArgs& args) {
    return (kParts * sizeof(Number) + args.keys * sizeof(T) + 15) / 16 * 16;
  }
  POSENC_HD int width() const { return static_cast<int>(args_.width); }
  POSENC_HD int keys() const { return static_cast<int>(args_.keys); }
  POSENC_HD int chunks() const { return (width() + kLanes - 1) / kLanes; }

  template <typename Value>
  static POSENC_HD Value kept(const Value* from) {
    return kept_packet<Value, 1>(from).numbers[0];
  }
  template <typename Value>
  static POSENC_HD void keep(Value* to, Value value) {
    keep_packet<Value, 1>({{value}}, to);
  }

  static POSENC_HD int length_of(const List& list) {
    return list.length < 0 ? -1 - list.length : list.length;
  }
  static POSENC_HD bool is_long(int length) {
    return length > Policy::kThreadList && length <= Policy::kWarpList;
  }
  static POSENC_HD bool is_very_long(int length) { return length > Policy::kWarpList; }

  // The caller's bounds, of which nobody has looked at the values.
  POSENC_HD int64_t bound(int column) const {
    const int64_t at = args_.bounds[column];
    return at < 0 ? 0 : at < args_.entries ? at : args_.entries;
  }

  POSENC_HD void order_lists(int chunk, int before, int very_before) const {
#pragma unroll 1
    for (int i = 0; i < kLanes; ++i) {
      const int column = chunk * kLanes + i;
      if (column >= width()) break;
      const int length = length_of(kept(lists_ + column));
      if (is_long(length)) keep(columns_ + before++, static_cast<uint16_t>(column));
      if (is_very_long(length)) {
        keep(columns_ + width() - 1 - very_before++, static_cast<uint16_t>(column));
      }
    }
  }
  POSENC_HD int very_long_column(int i) const { return kept(columns_ + width() - 1 - i); }

  POSENC_HD void keep_row(const T* from) const {
    constexpr int kAtOnce = Policy::kScatterReads;
    const int words = keys() / kVector;
    const int64_t step = kVector == 1 ? args_.by_key.column_stride : kVector;
#pragma unroll 1
    for (int first = x_; first < words; first += kAtOnce * kLanes) {
      WordOf<T, kVector> read[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int word = first + i * kLanes;
        if (word < words) read[i] = read_word<T, kVector>(from + word * step);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int word = first + i * kLanes;
        if (word < words) {
          keep_packet<T, kVector>(unpack<T, kVector>(read[i]), row_ + word * kVector);
        }
      }
    }
  }

  POSENC_HD void request_row(const T* from) const {
    constexpr int kLine = 128 / sizeof(T);
#pragma unroll 1
    for (int at = x_ * kLine; at < keys(); at += kLanes * kLine) request(from + at);
  }

  // Of the i-th entry of a list; outside of the row if the entry is not in its window.
  POSENC_HD int key(const List& list, int i) const {
    if (list.length >= 0) return list.at + i - first_entry_;
    const int64_t key = args_.order[list.at + i] - first_entry_;
    return key >= 0 && key < args_.keys ? static_cast<int>(key) : -1;
  }
  POSENC_HD Number number(int key) const {
    const bool there = static_cast<unsigned>(key) < static_cast<unsigned>(keys());
    return there ? to_real(kept(row_ + key)) : Number(0);
  }

  // sums_[j] of the entries first + j * kStep + t * kSums * kStep of a list.
  template <int kStep>
  POSENC_HD void sum_parts(const List& list, int first) {
    const int length = length_of(list);
#pragma unroll
    for (int j = 0; j < kSums; ++j) sums_[j] = 0;
#pragma unroll 1
    for (int begin = first; begin < length; begin += kSums * kStep) {
      int keys[kSums];
      Number numbers[kSums];
#pragma unroll
      for (int j = 0; j < kSums; ++j) {
        const int i = begin + j * kStep;
        keys[j] = i < length ? key(list, i) : -1;
      }
#pragma unroll
      for (int j = 0; j < kSums; ++j) numbers[j] = number(keys[j]);
#pragma unroll
      for (int j = 0; j < kSums; ++j) sums_[j] += numbers[j];
    }
  }

  // Likewise of all lanes, if entries are one after the other: the first at a key that may be
  // before the row.
  POSENC_HD void sum_neighbors(int key, int length) {
    constexpr int kAll = kSums * kLanes;
    const int end = key + length < keys() ? key + length : keys();
    if (key < 0) key += -key / kAll * kAll;
#pragma unroll
    for (int j = 0; j < kSums; ++j) sums_[j] = 0;
#pragma unroll 1
    for (; key < end; key += kAll) {
      if (key >= 0 && key + kAll <= end) {
        add_neighbors<true>(key, end);
      } else {
        add_neighbors<false>(key, end);
      }
    }
  }

  // kWhole: all are in the row, before `end`.
  template <bool kWhole>
  POSENC_HD void add_neighbors(int key, int end) {
    Number numbers[kSums];
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const int at = key + x_ + j * kLanes;
      const bool there = kWhole || (at >= 0 && at < end);
      numbers[j] = there ? to_real(kept(row_ + at)) : Number(0);
    }
#pragma unroll
    for (int j = 0; j < kSums; ++j) sums_[j] += numbers[j];
  }

  POSENC_HD void write(int column, Number sum) const {
    write_packet<T, 1>({{round_to<T>(sum * static_cast<Number>(args_.scale))}},
                       to_ + column * args_.by_column.column_stride);
  }

  const RelativeArgs& args_;
  const ScatterPlan& plan_;
  List* const lists_;        // [width]
  uint16_t* const columns_;  // [width]: long lists, and from the end very long ones
  uint16_t* const counts_;   // [chunks, 2]
  Number* const parts_;      // of this warp
  T* const row_;             // likewise
  const int x_, y_;

  int long_, very_long_;  // lists
  bool working_;
  int first_entry_;
  T* to_;
  Number sums_[kSums];
};

// Of arranged arguments.
template <typename Thread>
ScatterPlan plan_scatter_warps(const RelativeArgs& args, const Room& room = {}) {
  ScatterPlan plan;
  const int64_t warps = std::min(Thread::warps(args), args.rows());
  if (warps == 0 || args.width == 0) return plan;
  plan.threads_x = kLanes;
  plan.threads_y = static_cast<int>(warps);
  plan.shared_bytes = Thread::shared_bytes(args, warps);
  const int64_t places = room.blocks(plan.threads(), plan.shared_bytes);
  const int64_t rows = divide_up(args.rows(), warps);
  plan.steps = units_of_piece(1, rows, rows / (Policy::kScatterWaves * places), places);
  plan.take_pieces(divide_up(rows, plan.steps), 1, room.limit);
  return plan;
}

// Whether there is room for rows, and work for a warp.
template <typename Thread>
bool takes_warps(const RelativeArgs& args) {
  return !searches(args) && args.keys >= Policy::kScatterKeys && args.width <= args.keys &&
         args.entries < Thread::kMost && Thread::warps(args) >= Policy::kScatterLeastWarps;
}

}  // namespace posenc::cuda
