// Segments of rotations by angles that data decide (selective.cuh): how rows are cut, which tokens
// and which parts of the workspace a segment has, and which threads. Plain C++ as well, which tests
// run on the host (on_host/).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/rotary.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/room.h"
#include "cuda/rotary_plan.cuh"

namespace posenc::cuda {

// How the rows of a call are cut: by its sizes alone, as the order of sums in gradients follows
// from it. Packed rows begin where the GPU knows, and so a row has a place for a segment more than
// it may need: row i has those from start / length + i on.
struct SelectiveCut {
  int64_t length = 1;  // tokens of a segment
  int64_t of_row = 1;  // segments of a row that is not packed
  int64_t count = 0;   // of all rows
  bool several = false;
};

struct SelectivePlan : RotaryPlan {
  SelectiveCut cut;
  int64_t columns = 0;            // threads of a segment: vectors, or pairs, of all heads of steps
  bool wide_steps = false;        // the steps of a thread are read at once
  HeadSteps in_token, out_token;  // from token to token, in bytes
  HeadSteps x, x_token;           // likewise, of what was rotated: of gradients alone
  bool wide_gradient = false;     // as wide_steps, of their gradient
};

struct SelectiveParameters {
  SelectiveArgs args;
  SelectivePlan plan;
};

// Memory of a call that is cut: phases where segments begin, [segments, heads, P], their flags
// likewise, and what gradients need.
struct SelectiveWorkspace {
  uint64_t* phases = nullptr;
  uint16_t* flags = nullptr;
  double* carried = nullptr;  // [segments, heads, P]: of gradients, from the end
  void* angles = nullptr;     // [rows, tokens, heads, P]: gradients of angles, as x is computed
  int64_t bytes = 0;

  POSENC_HD SelectiveWorkspace(const SelectiveArgs& args, const SelectiveCut& cut,
                               bool gradient = false) {
    const int64_t columns = args.heads * args.rotary.pairs;
    const int64_t size = args.rotary.dtype == Dtype::kFloat64 ? 8 : 4;
    char* const memory = static_cast<char*>(args.workspace);
    const auto take = [&](int64_t count) {
      char* const at = memory + bytes;
      bytes += (count + 15) / 16 * 16;
      return at;
    };
    if (cut.several) {
      phases = reinterpret_cast<uint64_t*>(take(8 * cut.count * columns));
      flags = reinterpret_cast<uint16_t*>(take(2 * cut.count * columns));
      if (gradient) carried = reinterpret_cast<double*>(take(8 * cut.count * columns));
    }
    if (gradient) angles = take(size * args.rotary.rows() * columns);
  }
};

// Some tokens of a row.
struct Segment {
  int64_t row = 0, batch = 0, first = 0, count = 0;
  bool there = false, last = false;  // last: of its row
};

// Where packed rows begin; starts may be anything.
POSENC_HD inline int64_t row_start(const SelectiveArgs& args, int64_t row) {
  const int64_t start = args.starts.index_at(row * args.starts_stride), tokens = args.rotary.tokens;
  return start < 0 ? 0 : start < tokens ? start : tokens;
}

// The segments of a row: the first one's number, and how many have to be gone through.
struct RowSegments {
  int64_t first, count, start, tokens;
};

POSENC_HD inline RowSegments row_segments(const SelectiveArgs& args, const SelectiveCut& cut,
                                          int64_t row) {
  if (args.starts.data == nullptr) return {row * cut.of_row, cut.of_row, 0, args.rotary.tokens};
  const int64_t start = row_start(args, row), end = row_start(args, row + 1);
  const int64_t tokens = end > start ? end - start : 0;
  if (!cut.several) return {row, 1, start, tokens};
  const int64_t count = divide(tokens + cut.length - 1, cut.length);
  return {divide(start, cut.length) + row, count > 1 ? count : 1, start, tokens};
}

// The row that has a segment: the last one that begins with it or before it.
POSENC_HD inline int64_t row_of_segment(const SelectiveArgs& args, const SelectiveCut& cut,
                                        int64_t number) {
  if (!cut.several) return number;
  if (args.starts.data == nullptr) return divide(number, cut.of_row);
  int64_t low = 0, high = args.rows;  // the answer is low, or between them
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (divide(row_start(args, middle), cut.length) + middle <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

POSENC_HD inline Segment segment_of(const SelectiveArgs& args, const SelectiveCut& cut,
                                    int64_t number) {
  Segment segment;
  if (number >= cut.count) return segment;
  segment.row = row_of_segment(args, cut, number);
  segment.batch = args.starts.data == nullptr ? segment.row : 0;
  const RowSegments of_row = row_segments(args, cut, segment.row);
  const int64_t i = number - of_row.first;
  if (i < 0 || i >= of_row.count) return segment;
  const int64_t rest = of_row.tokens - i * cut.length;
  segment.there = true;
  segment.last = i == of_row.count - 1;
  segment.first = of_row.start + i * cut.length;
  segment.count = rest < cut.length ? rest : cut.length;
  return segment;
}

// Neighboring numbers of a workspace, which are aligned.
template <typename T, int kCount>
POSENC_HD inline void read_neighbours(const T* from, T* to) {
  constexpr int kMost = 16 / sizeof(T), kAtOnce = kCount < kMost ? kCount : kMost;
#pragma unroll
  for (int i = 0; i < kCount; i += kAtOnce) {
    const auto packet = read_packet<T, kAtOnce>(from + i);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) to[i + j] = packet.numbers[j];
  }
}

template <typename T, int kCount>
POSENC_HD inline void write_neighbours(const T* numbers, T* to) {
  constexpr int kMost = 16 / sizeof(T), kAtOnce = kCount < kMost ? kCount : kMost;
#pragma unroll
  for (int i = 0; i < kCount; i += kAtOnce) {
    Packet<T, kAtOnce> packet;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) packet.numbers[j] = numbers[i + j];
    write_packet<T, kAtOnce>(packet, to + i);
  }
}

// ---------------------------------------------------------------------------------------------
// On the host: how rows are cut, how many threads segments take

inline SelectiveCut cut_selective(const SelectiveArgs& args) {
  const int64_t tokens = args.rotary.tokens;
  const bool packed = args.starts.data != nullptr;
  if (tokens <= Policy::kOneSegment) return {std::max<int64_t>(tokens, 1), 1, args.rows, false};
  const int64_t work =
      (packed ? 1 : args.rows) * tokens * args.heads * std::max<int64_t>(args.rotary.pairs / 4, 1);
  SelectiveCut cut;
  cut.several = true;
  cut.length = Policy::kMostSegment;
  while (cut.length > Policy::kLeastSegment && work / cut.length < Policy::kSegmentThreads) {
    cut.length /= 2;
  }
  cut.of_row = divide_up(tokens, cut.length);
  cut.count = packed ? tokens / cut.length + args.rows : args.rows * cut.of_row;
  return cut;
}

// Threads for `columns` of every segment.
inline SelectivePlan plan_segments(const SelectiveCut& cut, int64_t columns, GridLimit limit) {
  SelectivePlan plan;
  plan.cut = cut;
  plan.columns = columns;
  if (columns == 0 || cut.count == 0) return plan;
  plan.threads_x = static_cast<int>(std::min<int64_t>(columns, Policy::kWarpThreads));
  plan.threads_y = static_cast<int>(
      std::min<int64_t>(std::max(Policy::kWarpThreads / plan.threads_x, 1), cut.count));
  plan.take_pieces(divide_up(cut.count, plan.threads_y), divide_up(columns, plan.threads_x), limit);
  return plan;
}

}  // namespace posenc::cuda
