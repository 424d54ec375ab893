// Rotations by angles that data decide, on a GPU: core/rotary.h has what they are. Plain C++ as
// well, which tests run on the host (on_host/).
//
//   row       | segment | segment | segment |      some tokens each
//   thread    a few neighboring pairs of one head of steps, in one segment
//
//   1. totals    the steps of each segment, summed                     no rotation yet
//   2. scan      what the segments of a row begin with, state included
//   3. walk      token by token: the step is added, the pairs of all heads of q and k that share it
//                are turned and written
//
// A row of few tokens is one segment, and then 3 is all. Phases are integers, so the results do not
// depend on how rows are cut.
//
// A step that is no angle (NaN, infinite, above 2^31) makes the angles of its pair NaN from its
// token to the end of the row. Phases cannot say so: a flag goes with each of them.
//
// Bytes for each pair and token, of one head of q and one of k for each of steps, in segments of 16
// tokens (4096 tokens of 8 heads): q and k are read and written, steps are read twice, and phases
// and flags are written, read, written and read, 10 bytes each time, once a segment.
//
//                        q and k       steps     segments     all    copy of q, k and steps
//   float32              16 + 16       4 + 4     40 / 16      42.5   36     0.85
//   bfloat16              8 +  8       2 + 2     40 / 16      22.5   18     0.80
//   bfloat16, float32     8 +  8       4 + 4     40 / 16      26.5   20     0.75
//
// The scan reads its phases once more, from a cache. Where the second-level cache (50 MB on an
// H100) still has the steps (8 MiB in float32), memory delivers less, and the last column is 0.94,
// 0.88 and 0.89. More heads of q for each of steps bring it nearer to 1.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/phases.h"
#include "core/rotary.h"
#include "core/visit_type.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/room.h"
#include "cuda/rotary.cuh"

namespace posenc::cuda {

// ---------------------------------------------------------------------------------------------
// Turns of steps

// 1 / pi, most significant word first.
constexpr uint32_t kInversePi[] = {0x517cc1b7, 0x27220a94, 0xfe13abe8, 0xfa9a6ee0, 0x6db14acc};

// The lower word of (high, low) >> shift; shift in 0 .. 31.
POSENC_HD inline uint32_t funnel(uint32_t low, uint32_t high, int shift) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(low, high, shift);
#else
  return static_cast<uint32_t>(((uint64_t{high} << 32) | low) >> shift);
#endif
}

POSENC_HD inline bool is_angle(float step) {
  return (bits_from_float(step) & 0x7fffffff) <= 0x4f000000;  // 2^31
}
POSENC_HD inline bool is_angle(double step) {
  uint64_t bits;
  memcpy(&bits, &step, sizeof bits);
  return (bits & ~(uint64_t{1} << 63)) <= uint64_t{0x41e} << 52;
}

// What turns_from_radians has for the fraction, of a float32 that is an angle; else 0. Its 24 bits
// times 1 / pi in words of 32 bits: four products of 64 bits, where those of 64-bit numbers take
// ten. Of the 160 bits the lowest that counts is the 64th from below, so that the rest decides
// correctly unless a number is nearer than 2^-60 to the middle between two turns. None is.
POSENC_HD inline uint64_t turns_of_step(float step) {
  const uint32_t bits = bits_from_float(step), magnitude = bits & 0x7fffffff;
  if (!is_angle(step)) return 0;
  const uint32_t mantissa = (magnitude << 8) | 0x80000000;
  const uint64_t m = mantissa;
  const uint64_t word0 = m * kInversePi[3] + ((m * kInversePi[4]) >> 32);
  const uint64_t word1 = m * kInversePi[2] + (word0 >> 32);
  const uint64_t word2 = m * kInversePi[1] + (word1 >> 32);
  const uint64_t word3 = m * kInversePi[0] + (word2 >> 32);
  // Twice the turns, and behind them the bit that rounds: the upper three words, shifted.
  const int shift = 158 - static_cast<int>(magnitude >> 23);
  uint32_t low = static_cast<uint32_t>(word2), middle = static_cast<uint32_t>(word3);
  uint32_t high = static_cast<uint32_t>(word3 >> 32);
  if (shift >= 32) low = middle, middle = high, high = 0;
  if (shift >= 64) low = middle, middle = 0;
  if (shift >= 96) low = 0;  // less than half a unit, subnormal numbers among them
  const int within = shift & 31;
  low = funnel(low, middle, within);
  middle = funnel(middle, high, within);
  high = high >> within;
  const uint64_t turns =
      ((uint64_t{funnel(middle, high, 1)} << 32) | funnel(low, middle, 1)) + (low & 1);
  return (bits >> 31) != 0 ? ~turns + 1 : turns;
}

POSENC_HD inline uint64_t turns_of_step(double step) {
  return is_angle(step) ? turns_from_radians(to_binary(step)).fraction : 0;
}

// Steps of neighboring pairs as they were read: nothing waits for them before they are looked at.
// Step: float for those of 16 and 32 bits, whichever they are, else double.
template <typename Step, int kPairs>
class Steps {
 public:
  // wide: all of them in one access (or two).
  POSENC_HD void read(const SelectiveArgs& args, bool wide, int64_t at) {
    if constexpr (sizeof(Step) == 8) {
      read_as<double>(args, wide, at);
    } else if (args.steps_dtype == Dtype::kFloat32) {
      read_as<float>(args, wide, at);
    } else {
      read_as<uint16_t>(args, wide, at);
    }
  }

  POSENC_HD Step at(int pair, Dtype dtype) const {
    if constexpr (sizeof(Step) == 8) {
      double step;
      memcpy(&step, words_ + 2 * pair, sizeof step);
      return step;
    } else {
      if (dtype == Dtype::kFloat32) return float_from_bits(words_[pair]);
      const uint32_t two = words_[pair / 2];
      const uint32_t bits = pair % 2 == 0 ? two & 0xffff : two >> 16;
      if (dtype == Dtype::kBFloat16) return float_from_bits(bits << 16);
      return to_float(Float16{static_cast<uint16_t>(bits)});
    }
  }

 private:
  static constexpr int kWords = kPairs * static_cast<int>(sizeof(Step)) / 4;

  template <typename T>
  POSENC_HD void read_as(const SelectiveArgs& args, bool wide, int64_t at) {
    constexpr int kMost = 16 / sizeof(T), kCount = kPairs < kMost ? kPairs : kMost;
    const T* const from = static_cast<const T*>(args.steps) + at;
    if (kPairs > 1 && wide) {
#pragma unroll
      for (int i = 0; i < kPairs; i += kCount) {
        const auto word = read_word<T, kCount>(from + i);
        memcpy(reinterpret_cast<char*>(words_) + i * sizeof(T), &word, sizeof word);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const auto word = read_word<T, 1>(from + i * args.steps_strides.dim);
      if constexpr (sizeof(T) == 2) {
        words_[i / 2] = i % 2 == 0 ? word : words_[i / 2] | uint32_t{word} << 16;
      } else {
        memcpy(reinterpret_cast<char*>(words_) + i * sizeof(T), &word, sizeof word);
      }
    }
  }

  uint32_t words_[kWords];
};

// ---------------------------------------------------------------------------------------------
// Segments

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

// Where the step of a head and pair is, in elements.
POSENC_HD inline int64_t place_of_step(const HeadStrides& strides, int64_t batch, int64_t token,
                                       int64_t head, int64_t pair) {
  return batch * strides.batch + token * strides.token + head * strides.head + pair * strides.dim;
}

POSENC_HD inline uint64_t state_before(const SelectiveArgs& args, int64_t row, int64_t head,
                                       int64_t pair) {
  if (args.state == nullptr) return 0;
  const int64_t* const from = args.state + place_of_step(args.state_strides, row, 0, head, pair);
  return static_cast<uint64_t>(read_packet<int64_t, 1>(from).numbers[0]);
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

// Phases of neighboring pairs, and which of them are angles no more.
template <typename Step, int kPairs>
struct Phases {
  uint64_t sums[kPairs];
  uint32_t lost = 0;  // a bit for each

  POSENC_HD void add(const Steps<Step, kPairs>& steps, Dtype dtype) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const Step step = steps.at(j, dtype);
      sums[j] += turns_of_step(step);
      if (!is_angle(step)) lost |= uint32_t{1} << j;
    }
  }
};

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

  // visit(segment, total, lost). The last segment of a row has no total: what is read in its place
  // goes into sums that nobody uses.
  template <typename Visit>
  POSENC_HD void walk(const Visit& visit) const {
    const SelectiveWorkspace from(args_, plan_.cut);
    for (int64_t i = 0; i < count_; i += kAtOnce) {
      uint64_t totals[kAtOnce];
      uint16_t lost[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j >= count_) continue;
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
};

// ---------------------------------------------------------------------------------------------
// 3. Walk

// A thread's place in the call and its phases: of the rotation, forwards or back.
template <typename T, int kVector, bool kInterleaved, typename Step>
class SelectiveWalk : public RotaryBlock<T, kVector, kInterleaved> {
  using Block = RotaryBlock<T, kVector, kInterleaved>;

 public:
  using Block::kPairs;
  using typename Block::Next;
  using typename Block::Number;

 protected:
  POSENC_HD SelectiveWalk(const SelectiveArgs& args, const SelectivePlan& plan, int x, int y)
      : Block(args.rotary, plan, nullptr, x, y, 0), selective_(args), plan_(plan) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const int64_t column = piece_y * plan_.threads_x + this->x_;
    number_ = piece_x * plan_.threads_y + this->y_;
    segment_ = segment_of(selective_, plan_.cut, number_);
    this->working_ = segment_.there && column < plan_.columns;
    if (!this->working_) return;
    head_ = divide(column, plan_.vectors);
    const int64_t vector = column - head_ * plan_.vectors;
    this->rotates_ = vector < plan_.rotated;
    pair_ = vector * kPairs;
    this->dim_ = this->rotates_
                     ? this->template rotated_dim<int64_t>(vector, this->args_.half_block)
                     : this->template copied_dim<int64_t>(vector - plan_.rotated);
    if constexpr (Block::kRearranges) {
      this->in_dim_ = this->rotates_
                          ? this->template rotated_dim<int64_t>(vector, this->args_.in_half_block)
                          : this->dim_;
    }
    this->batch_ = segment_.batch;
    this->token_ = segment_.first;
    const RotaryTensor &q = this->args_.tensors[0], &k = this->args_.tensors[1];
    in_ = first(this->in_dim(), q.in, q.in_strides, k.in, k.in_strides);
    out_ = first(this->dim_, q.out, q.out_strides, k.out, k.out_strides);
  }

  // Where the heads of the first token are; see RotaryBlock::first. They are counted through q and
  // k.
  POSENC_HD Next first(int64_t dim, const void* q, const HeadStrides& q_strides, const void* k,
                       const HeadStrides& k_strides) const {
    const int64_t apart = reinterpret_cast<int64_t>(k) - reinterpret_cast<int64_t>(q);
    const int64_t k_heads = plan_.heads - plan_.q_heads;
    return {this->template place<int64_t>(q_strides, head_ * plan_.q_heads, dim),
            apart + this->template place<int64_t>(k_strides, head_ * k_heads - plan_.q_heads, dim)};
  }

  static POSENC_HD void next_token(Next& at, const HeadSteps& steps) {
    at.q += steps.q;
    at.k += steps.k;
  }

  POSENC_HD int heads() const { return plan_.thread_heads; }
  POSENC_HD bool of_q(int head) const { return head < plan_.thread_q_heads; }

  // The phases before the segment.
  POSENC_HD void begin_phases() {
    const int64_t pairs = this->args_.pairs;
    step_at_ =
        place_of_step(selective_.steps_strides, segment_.batch, segment_.first, head_, pair_);
    phases_.lost = 0;
    if (!plan_.cut.several) {
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        phases_.sums[j] = state_before(selective_, segment_.row, head_, pair_ + j);
      }
      return;
    }
    const SelectiveWorkspace from(selective_, plan_.cut);
    const int64_t at = (number_ * selective_.heads + head_) * pairs + pair_;
    uint16_t flags[kPairs];
    read_neighbours<uint64_t, kPairs>(from.phases + at, phases_.sums);
    read_neighbours<uint16_t, kPairs>(from.flags + at, flags);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) phases_.lost |= uint32_t{flags[j]} << j;
  }

  // The steps of the next token.
  POSENC_HD void read_steps() {
    steps_.read(selective_, plan_.wide_steps, step_at_);
    step_at_ += selective_.steps_strides.token;
  }

  // Cosines and sines of the token that has these steps.
  POSENC_HD void take_angles(const Steps<Step, kPairs>& steps, Packet<Number, kPairs>& c,
                             Packet<Number, kPairs>& s) {
    const Number scale = static_cast<Number>(this->args_.scale);
    const Number sine_scale = this->args_.inverse ? -scale : scale;
    phases_.add(steps, selective_.steps_dtype);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const SinCos<Number> angle = sincos<Number>(phases_.sums[j]);
      c.numbers[j] = angle.cosine * scale;
      s.numbers[j] = angle.sine * sine_scale;
    }
    if (phases_.lost == 0) return;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if ((phases_.lost >> j & 1) == 0) continue;
      c.numbers[j] = s.numbers[j] = static_cast<Number>(float_from_bits(0x7fffffff));
    }
  }

  POSENC_HD void write_after() const {
    if (!segment_.last || selective_.after == nullptr) return;
    int64_t* const to =
        selective_.after + (segment_.row * selective_.heads + head_) * this->args_.pairs + pair_;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      write_packet<int64_t, 1>({{static_cast<int64_t>(phases_.sums[j])}}, to + j);
    }
  }

  // The thread's dims of all tokens and heads, as they are: some tokens at a time.
  POSENC_HD void copy_tokens() const {
    constexpr int kTokens = Policy::kHeads;
    Next in = in_, out = out_;
    for (int head = 0; head < heads(); ++head) {
      int64_t from = Block::take(in, plan_.in, of_q(head));
      int64_t to = Block::take(out, plan_.out, of_q(head));
      const int64_t from_step = of_q(head) ? plan_.in_token.q : plan_.in_token.k;
      const int64_t to_step = of_q(head) ? plan_.out_token.q : plan_.out_token.k;
      for (int64_t token = 0; token < segment_.count; token += kTokens) {
        WordOf<T, kVector> words[kTokens];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
          if (token + i >= segment_.count) continue;
          words[i] = read_word<T, kVector>(Block::at(this->args_.tensors[0].in, from));
          from += from_step;
        }
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
          if (token + i >= segment_.count) continue;
          write_packet<T, kVector>(unpack<T, kVector>(words[i]),
                                   Block::at(this->args_.tensors[0].out, to));
          to += to_step;
        }
      }
    }
  }

  const SelectiveArgs& selective_;
  const SelectivePlan& plan_;

  Segment segment_;
  int64_t number_, head_, pair_, step_at_;
  Phases<Step, kPairs> phases_;
  Steps<Step, kPairs> steps_;
  Next in_, out_;
};

template <typename T, int kVector, bool kInterleaved, typename Step>
class SelectiveThread : public SelectiveWalk<T, kVector, kInterleaved, Step> {
  using Walk = SelectiveWalk<T, kVector, kInterleaved, Step>;
  using Block = RotaryBlock<T, kVector, kInterleaved>;
  using typename Walk::Number, typename Walk::Next;
  using Walk::heads, Walk::of_q, Walk::plan_, Walk::segment_, Walk::in_, Walk::out_;

 public:
  using Walk::kPairs;
  static constexpr int kHeads = Policy::kHeads;

  POSENC_HD SelectiveThread(const SelectiveParameters& parameters, char* /*shared*/, int x, int y)
      : Walk(parameters.args, parameters.plan, x, y) {}

  POSENC_HD void rotate(int64_t piece_x, int64_t piece_y) {
    this->begin(piece_x, piece_y);
    if (!this->working_) return;
    if (!this->rotates_) return this->copy_tokens();
    this->begin_phases();
    const int count = static_cast<int>(segment_.count);
    if (count > 0) this->read_steps();
    for (int token = 0; token < count; ++token) rotate_token(count - 1 - token);
    this->write_after();
  }

 private:
  // rest: tokens behind it. Its steps have been read; its first heads and the next token's steps
  // are on their way while its angles are computed.
  POSENC_HD void rotate_token(int rest) {
    const RotaryArgs& args = this->args_;
    const HeadStrides &q = args.tensors[0].out_strides, &k = args.tensors[1].out_strides;
    const auto steps = this->steps_;
    Next in = in_, out = out_;
    read(0, in);
    if (rest > 0) this->read_steps();
    if (rest >= kAhead) request_token();
    Packet<Number, kPairs> c, s;
    this->take_angles(steps, c, s);
    for (int head = 0; head < heads(); head += kHeads) {
      if (head > 0) read(head, in);
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (head + i >= heads()) continue;
        const bool is_q = of_q(head + i);
        const auto x = Block::pairs_of(first_[i], second_[kInterleaved ? 0 : i]);
        Block::write(Block::template turn<false>(x, c, s),
                     Block::at(args.tensors[0].out, Block::take(out, plan_.out, is_q)),
                     Block::partner(args.half_block, q, k, is_q));
      }
    }
    Walk::next_token(in_, plan_.in_token);
    Walk::next_token(out_, plan_.out_token);
  }

  // Nothing is looked at here, so that all of it is on its way at once.
  POSENC_HD void read(int head, Next& in) {
    const HeadStrides &q = this->args_.tensors[0].in_strides,
                      &k = this->args_.tensors[1].in_strides;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (head + i >= heads()) continue;
      const bool is_q = of_q(head + i);
      const T* const data = Block::at(this->args_.tensors[0].in, Block::take(in, plan_.in, is_q));
      first_[i] = read_word<T, kVector>(data);
      if constexpr (!kInterleaved) {
        second_[i] =
            read_word<T, kVector>(data + Block::partner(this->in_half_block(), q, k, is_q));
      }
    }
  }

  // The first heads of the token kAhead tokens on.
  POSENC_HD void request_token() const {
    const HeadStrides &q = this->args_.tensors[0].in_strides,
                      &k = this->args_.tensors[1].in_strides;
    Next in{in_.q + kAhead * plan_.in_token.q, in_.k + kAhead * plan_.in_token.k};
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (i >= heads()) continue;
      const bool is_q = of_q(i);
      const T* const data = Block::at(this->args_.tensors[0].in, Block::take(in, plan_.in, is_q));
      request(data);
      if constexpr (!kInterleaved) {
        request(data + Block::partner(this->in_half_block(), q, k, is_q));
      }
    }
  }

  static constexpr int kAhead = Policy::kTokensAhead;

  WordOf<T, kVector> first_[kHeads];
  WordOf<T, kVector> second_[kInterleaved ? 1 : kHeads];
};

// ---------------------------------------------------------------------------------------------
// On the host: which threads, how many of them

// Whether steps (or their gradients) of `count` pairs lie side by side, at addresses for one access
// or two.
inline bool is_wide(const SelectiveArgs& args, const void* data, const HeadStrides& strides,
                    int count) {
  const int64_t bytes = std::min<int64_t>(count * item_size(args.steps_dtype), 16);
  int64_t multiples = args.rotary.pairs;
  if (args.rotary.batch > 1) multiples |= strides.batch;
  if (args.rotary.tokens > 1) multiples |= strides.token;
  if (args.heads > 1) multiples |= strides.head;
  return strides.dim == 1 && multiples % count == 0 && reinterpret_cast<int64_t>(data) % bytes == 0;
}

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

inline HeadSteps token_steps(const HeadStrides& q, const HeadStrides& k, int64_t size) {
  return {q.token * size, k.token * size};
}

template <typename Thread>
SelectivePlan plan_walk(const SelectiveArgs& args, GridLimit limit = {}) {
  const RotaryArgs& rotary = args.rotary;
  const RotaryTensor &q = rotary.tensors[0], &k = rotary.tensors[1];
  bool in_place = true;
  for (int i = 0; i < rotary.tensor_count; ++i) {
    in_place = in_place && rotary.tensors[i].in == rotary.tensors[i].out;
  }
  const int64_t rotated = rotary.pairs / Thread::kPairs;
  const int64_t copied = in_place ? 0 : (rotary.head_dim - 2 * rotary.pairs) / Thread::kWidth;
  SelectivePlan plan = plan_segments(cut_selective(args), args.heads * (rotated + copied), limit);
  if (plan.pieces_x == 0) return plan;
  plan.rotated = rotated;
  plan.vectors = rotated + copied;
  plan.q_heads = q.heads / args.heads;
  plan.heads = plan.q_heads + k.heads / args.heads;
  plan.thread_heads = static_cast<int>(plan.heads);
  plan.thread_q_heads = static_cast<int>(plan.q_heads);
  const int64_t size = item_size(rotary.dtype);
  plan.in = {q.in_strides.head * size, k.in_strides.head * size};
  plan.out = {q.out_strides.head * size, k.out_strides.head * size};
  plan.in_token = token_steps(q.in_strides, k.in_strides, size);
  plan.out_token = token_steps(q.out_strides, k.out_strides, size);
  plan.wide_steps = is_wide(args, args.steps, args.steps_strides, Thread::kPairs);
  return plan;
}

// visit(a float64 number, or a float32 number): in which steps are added.
template <typename Visit>
auto visit_step(const SelectiveArgs& args, const Visit& visit) {
  if (args.steps_dtype == Dtype::kFloat64) return visit(double{});
  return visit(float{});
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

// The widest thread of which fits(width, interleaved) is true: of four pairs, or two, or one.
template <template <typename, int, bool, typename> class Thread, typename Fits, typename Visit>
auto visit_walk(const SelectiveArgs& args, const Fits& fits, const Visit& visit) {
  return visit_type(args.rotary.dtype, [&](auto type) {
    return visit_step(args, [&](auto step) {
      using T = decltype(type);
      using Step = decltype(step);
      constexpr int kWide = 16 / sizeof(T), kNear = kWide < 4 ? kWide : 4;
      if (fits(kWide, true)) return visit(static_cast<Thread<T, kWide, true, Step>*>(nullptr));
      if (fits(kNear, false)) return visit(static_cast<Thread<T, kNear, false, Step>*>(nullptr));
      return visit(static_cast<Thread<T, 1, false, Step>*>(nullptr));
    });
  });
}

template <typename Visit>
auto visit_selective_thread(const SelectiveArgs& args, const Visit& visit) {
  return visit_walk<SelectiveThread>(
      args, [&](int width, bool near) { return fits(args.rotary, width, near); }, visit);
}

}  // namespace posenc::cuda
