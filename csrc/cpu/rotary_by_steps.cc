// Rotations by steps in one pass: what is turned comes from memory while angles are computed.
//
//   for a token
//     sums += turns of its steps                  of all heads that are neighbors: step_sums.cc
//     for a head of steps, a group of pairs or two
//       cosines and sines of the sums             in registers
//       for a head of q or of k that shares them
//         rotate the groups
//
// This is for calls of the usual kind: dims and steps that are neighbors, whole groups of pairs,
// one block of the pairing, and nothing to copy beside it. Others go the way of
// csrc/cpu/selective.cc, with phases, cosines and sines in memory. The bits are the same.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/phases.h"
#include "core/rotary.h"
#include "core/visit_type.h"
#include "cpu/elements-inl.h"
#include "cpu/lines-inl.h"
#include "cpu/numbers-inl.h"
#include "cpu/rotary_angles-inl.h"
#include "cpu/rotary_row-inl.h"
#include "cpu/unrolled-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Heads of q and k, at most, that share the angles of a head of steps.
constexpr int kMostSharing = 16;
// How far ahead memory is requested, for all of them together.
constexpr int64_t kSharingAheadBytes = 16384;
// Buffers of LineWriters, one for each tensor; and how much of each is filled before it is written.
constexpr int64_t kTensorLines = 8192;
constexpr int64_t kTensorLinesAtOnce = 1024;

template <typename T, class Row, Rounding kRounding>
class RotaryBySteps {
  using Number = Real<T>;
  using D = RealTag<T>;
  using Angles = RotaryAngles<Number, Row::kOrder, Row::kCopies>;
  using Vectors = typename Row::template Angles<D>;

  static constexpr bool kPastCache = HWY_ARCH_X86 != 0;
  static constexpr int64_t kSize = static_cast<int64_t>(sizeof(T));
  static constexpr int64_t kGroup = static_cast<int64_t>(group_size(D(), Row::kOrder));
  static constexpr int64_t kGroupDims = kGroup * (Row::kNeighboursOut ? 2 : 1);
  // A head takes groups up to a line at a time, so that a line is requested and written at once.
  static constexpr int kTogether = kGroupDims * kSize < kLineBytes ? 2 : 1;
  static constexpr bool kStreams =
      kPastCache && Row::kStreams && kTogether * kGroupDims * kSize % kLineBytes == 0;

 public:
  static bool fits(const RotaryArgs& rows, const StepBlock& block) {
    if (rows.rearranged() || rows.half_block != (Row::kNeighboursOut ? 1 : rows.pairs) ||
        rows.pairs == 0 || rows.pairs % kGroup != 0 || block.pair_stride != 1) {
      return false;
    }
    bool neighbors = true, in_place = true, apart = 2 * rows.pairs == rows.head_dim;
    int64_t sharing = 0;
    for (int i = 0; i < rows.tensor_count; ++i) {
      const RotaryTensor& x = rows.tensors[i];
      if (x.heads == 0) continue;
      sharing += x.heads;
      neighbors = neighbors && x.in_strides.dim == 1 && x.out_strides.dim == 1;
      in_place = in_place && x.in == x.out;
      apart = apart && x.in != x.out;
    }
    return neighbors && (in_place || apart) && sharing <= kMostSharing;
  }

  HWY_ATTR void run(const RotaryArgs& rows, const StepBlock& block, uint64_t* sums) {
    angles_.enter(rows, Piece::whole(rows));
    begin(rows);
    if (way_ == Way::kStream) {
      run_rows<kStreams ? Way::kStream : Way::kOrdinary>(rows, block, sums);
    } else if (way_ == Way::kLines) {
      run_rows<kPastCache ? Way::kLines : Way::kOrdinary>(rows, block, sums);
      for (int i = 0; i < rows.tensor_count; ++i) {
        if (rows.tensors[i].heads > 0) writers_[i].finish();
      }
    } else {
      run_rows<Way::kOrdinary>(rows, block, sums);
    }
  }

 private:
  // How results are written: past the cache, directly or by LineWriters, or as they come.
  enum class Way { kStream, kLines, kOrdinary };

  // Takes up the heads of the first row, and decides how they are written.
  void begin(const RotaryArgs& rows) {
    bool stream = kStreams, lines = rows.pairs * kSize % LineWriter::kVectorBytes == 0;
    for (int i = 0; i < rows.tensor_count; ++i) {
      const RotaryTensor& x = rows.tensors[i];
      if (x.heads == 0) continue;
      const HeadStrides& strides = x.out_strides;
      const int64_t first = reinterpret_cast<int64_t>(x.out);
      const int64_t far = Row::kNeighboursOut ? 0 : rows.half_block;
      const int64_t steps = strides.token | strides.head | far;
      stream = stream && x.in != x.out && (first | steps * kSize) % kLineBytes == 0;
      const int64_t row_bytes = x.heads * rows.head_dim * kSize;
      const bool one_run =
          strides.token * kSize == row_bytes && (x.heads == 1 || strides.head == rows.head_dim);
      lines = lines && x.in != x.out && one_run && first % LineWriter::kAlignment == 0 &&
              row_bytes + 2 * kLineBytes <= kTensorLines;
      const int64_t whole_row = (row_bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
      const int64_t bytes = std::max(whole_row, kTensorLinesAtOnce) + kLineBytes;
      writers_[i] = LineWriter(lines_ + i * kTensorLines, std::min(bytes, kTensorLines));
      for (int64_t head = 0; head < x.heads; ++head, ++count_) {
        in_[count_] = static_cast<const T*>(x.in) + head * x.in_strides.head + rows.start;
        out_[count_] = static_cast<T*>(x.out) + head * strides.head + rows.start;
        in_steps_[count_] = x.in_strides.token;
        out_steps_[count_] = strides.token;
      }
    }
    const bool past_cache = rows.non_temporal && kPastCache;
    way_ = past_cache && stream ? Way::kStream : past_cache && lines ? Way::kLines : Way::kOrdinary;
    const int64_t rows_bytes = std::max<int64_t>(count_ * rows.head_dim * kSize, 1);
    const int64_t rows_ahead = std::max<int64_t>(kSharingAheadBytes / rows_bytes, 1);
    for (int i = 0; i < count_; ++i) later_[i] = in_[i] + rows_ahead * in_steps_[i];
  }

  template <Way kWay>
  HWY_ATTR void run_rows(const RotaryArgs& rows, const StepBlock& block, uint64_t* sums) {
    const SumRow sum_row = row_sums(block.dtype);
    const typename Angles::Scales scales(rows);
    const int64_t size = item_size(block.dtype), pairs = block.pairs;
    const bool joined = block.head_stride == pairs || block.heads == 1;
    const int64_t parts = joined ? 1 : block.heads, columns = joined ? block.columns() : pairs;
    for (int64_t token = 0; token < block.tokens; ++token) {
      const char* from = static_cast<const char*>(block.steps) + token * block.token_stride * size;
      for (int64_t part = 0; part < parts; ++part, from += block.head_stride * size) {
        uint64_t* const phases = sums + part * columns;
        sum_row(from, columns, phases);
        for (int64_t first = 0; first < columns; first += pairs) {
          rotate_row<kWay>(rows, scales, phases + first);
        }
      }
    }
  }

  template <Way kWay>
  HWY_ATTR HWY_INLINE void rotate_row(const RotaryArgs& rows, const typename Angles::Scales& scales,
                                      const uint64_t* phases) {
    T* placed[kMostSharing];
    T* const* to = out_;
    if constexpr (kWay == Way::kLines) {
      place_lines(rows, placed);
      to = placed;
    }
    const int64_t pairs = rows.pairs, far = rows.half_block;
    const int count = count_;
    int64_t group = 0, dim = 0;
    for (; group + kTogether * kGroup <= pairs; group += kTogether * kGroup) {
      rotate_groups<kWay, kTogether>(phases + group, scales, dim, far, to, count);
      dim += kTogether * kGroupDims;
    }
    if (group < pairs) rotate_groups<kWay, 1>(phases + group, scales, dim, far, to, count);
    for (int head = 0; head < count; ++head) {
      in_[head] += in_steps_[head];
      later_[head] += in_steps_[head];
      out_[head] += out_steps_[head];
    }
  }

  // Where the heads of a row are written first.
  HWY_ATTR HWY_INLINE void place_lines(const RotaryArgs& rows, T** to) {
    int at = 0;
    for (int i = 0; i < rows.tensor_count; ++i) {
      const int heads = static_cast<int>(rows.tensors[i].heads);
      if (heads == 0) continue;
      const int64_t bytes = heads * rows.head_dim * kSize;
      T* place = reinterpret_cast<T*>(writers_[i].place(reinterpret_cast<char*>(out_[at]), bytes));
      for (const int end = at + heads; at < end; ++at, place += rows.head_dim) to[at] = place;
    }
  }

  template <Way kWay, int kGroups>
  HWY_ATTR HWY_INLINE void rotate_groups(const uint64_t* phases,
                                         const typename Angles::Scales& scales, int64_t dim,
                                         int64_t far, T* const* to, int count) {
    constexpr int kHeads = 2 / kTogether;
    const D d;
    hn::Vec<D> c[kGroups * Vectors::kVectors], s[kGroups * Vectors::kVectors];
    unrolled<kGroups>([&](auto i) POSENC_INLINED {
      constexpr int kFirst = i * Vectors::kVectors;
      angles_.phase_group(d, phases + i * kGroup, scales, c + kFirst, s + kFirst);
    });
    int head = 0;
    for (; head + kHeads <= count; head += kHeads) {
      rotate_heads<kWay, kGroups, kHeads>(head, dim, far, to, c, s);
    }
    if (head < count) rotate_heads<kWay, kGroups, 1>(head, dim, far, to, c, s);
  }

  // All reads before all writes, for the reason that rotary_runs-inl.h has.
  template <Way kWay, int kGroups, int kHeads>
  HWY_ATTR HWY_INLINE void rotate_heads(int head, int64_t dim, int64_t far, T* const* to,
                                        const hn::Vec<D>* c, const hn::Vec<D>* s) const {
    constexpr Store kStore = kWay == Way::kStream ? Store::kStream : Store::kOrdinary;
    const D d;
    typename Row::template Group<D> numbers[kGroups * kHeads];
    unrolled<kHeads>([&](auto j) POSENC_INLINED {
      const T* const in = in_[head + j] + dim;
      const T* const later = later_[head + j] + dim;
      for (int64_t at = 0; at < kGroups * kGroupDims; at += kLineBytes / kSize) {
        prefetch_later(later + at);
        if (!Row::kNeighboursIn) prefetch_later(later + far + at);
      }
      unrolled<kGroups>([&](auto i) POSENC_INLINED {
        const T* const group = in + i * kGroupDims;
        numbers[j * kGroups + i].read(d, group, group + far);
      });
    });
    unrolled<kHeads>([&](auto j) POSENC_INLINED {
      unrolled<kGroups>([&](auto i) POSENC_INLINED {
        constexpr int kFirst = i * Vectors::kVectors;
        T* const out = to[head + j] + dim + i * kGroupDims;
        Row::template rotate<kStore, kRounding>(d, numbers[j * kGroups + i], out, out + far,
                                                Vectors(c + kFirst, s + kFirst));
      });
    });
  }

  Angles angles_;
  Way way_;
  // Heads that share angles, of the next row and of one that is requested; and from row to row.
  int count_ = 0;
  const T* in_[kMostSharing];
  const T* later_[kMostSharing];
  T* out_[kMostSharing];
  int64_t in_steps_[kMostSharing], out_steps_[kMostSharing];
  LineWriter writers_[2];
  HWY_ALIGN char lines_[2 * kTensorLines];
};

template <typename T, class Row, Rounding kRounding>
HWY_ATTR bool run_by_steps(const RotaryArgs& rows, const StepBlock& block, uint64_t* sums) {
  using Kernel = RotaryBySteps<T, Row, kRounding>;
  if (!Kernel::fits(rows, block)) return false;
  Kernel kernel;
  kernel.run(rows, block, sums);
  return true;
}

template <typename T, Rounding kRounding>
HWY_ATTR bool run_by_steps(const RotaryArgs& rows, const StepBlock& block, uint64_t* sums) {
  return rows.half_block == 1 ? run_by_steps<T, InterleavedRow<T>, kRounding>(rows, block, sums)
                              : run_by_steps<T, HalfRow<T>, kRounding>(rows, block, sums);
}

template <typename T>
HWY_ATTR bool run_by_steps(const RotaryArgs& rows, const StepBlock& block, uint64_t* sums) {
  constexpr bool kInstruction = HWY_TARGET == HWY_AVX3 && std::is_same_v<T, BFloat16>;
  if (kInstruction && bfloat16_instructions.load(std::memory_order_relaxed)) {
    constexpr Rounding kThis = kInstruction ? Rounding::kOnceByInstruction : Rounding::kOnce;
    return run_by_steps<T, kThis>(rows, block, sums);
  }
  return run_by_steps<T, Rounding::kOnce>(rows, block, sums);
}

HWY_ATTR bool rotate_by_steps(RotaryArgs rows, const StepBlock& block, uint64_t* sums) {
  rows.phases = reinterpret_cast<const int64_t*>(sums);  // angles are from phases
  bool done = false;
  visit_type(rows.dtype,
             [&](auto type) HWY_ATTR { done = run_by_steps<decltype(type)>(rows, block, sums); });
  if (done && rows.non_temporal) hwy::FlushStream();
  return done;
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

bool rotary_by_steps(const RotaryArgs& rows, const StepBlock& block, uint64_t* sums) {
  return rotate_by_steps(rows, block, sums);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
