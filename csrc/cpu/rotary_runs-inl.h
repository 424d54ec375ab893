// Rotary's rows: how the heads of a block of tokens are rotated, in runs along memory.

#if defined(POSENC_CPU_ROTARY_RUNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_CPU_ROTARY_RUNS_INL_H_
#undef POSENC_CPU_ROTARY_RUNS_INL_H_
#else
#define POSENC_CPU_ROTARY_RUNS_INL_H_
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "core/rotary.h"
#include "cpu/elements-inl.h"
#include "cpu/numbers-inl.h"
#include "cpu/rotary_angles-inl.h"
#include "cpu/rotary_row-inl.h"
#include "cpu/unrolled-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How far ahead of the rotation memory is requested: into the second-level cache, since what many
// heads request would not fit the ways of the first.
constexpr int64_t kPrefetchBytes = 4096;
// Rows rotated side by side: heads share the loads of their angles, and memory serves several
// streams faster than one. In place as many as there are registers for their pairs; where a second
// stream is written for each, fewer are faster.
constexpr int kRows = 4;
template <class Row>
constexpr int kRowsInPlace =
    (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON) && Row::kVectors <= 2 ? 8 : kRows;

// Heads at multiples of this distance have the same place in first-level caches that find lines by
// a hash of the address (AMD: bits 12 to 27), whatever their ways: side by side they evict each
// other.
constexpr int64_t kCollide = int64_t{1} << 27;

// The tokens first .. first + count - 1 of one batch row.
struct Tokens {
  int64_t batch, first, count;
};

// One piece of one tensor's heads, for a block of tokens whose angles are at hand.
template <typename T, bool kInterleaved, Rounding kRounding>
class RotaryRuns {
  using Row = std::conditional_t<kInterleaved, InterleavedRow<T>, HalfRow<T>>;
  using Number = Real<T>;
  using D = RealTag<T>;

 public:
  using Angles = RotaryAngles<Number, Row::kOrder, Row::kCopies>;

  // copy_rest: of what is not rotated, if it is to be anywhere else.
  RotaryRuns(const RotaryArgs& args, const RotaryTensor& tensor, const Piece& piece,
             const Tokens& tokens, const Angles& angles, bool copy_rest)
      : args_(args), tensor_(tensor), piece_(piece), tokens_(tokens) {
    const int64_t batch = tokens.batch, token = tokens.first;
    in_ = static_cast<const T*>(tensor.in) + batch * tensor.in_strides.batch +
          token * tensor.in_strides.token;
    out_ = static_cast<T*>(tensor.out) + batch * tensor.out_strides.batch +
           token * tensor.out_strides.token;
    cosine_ = angles.cosine();
    sine_ = angles.sine();
    per_token_ = static_cast<int64_t>(angles.numbers());
    contiguous_ = tensor.in_strides.dim == 1 && tensor.out_strides.dim == 1;
    in_place_ = tensor.in == tensor.out;
    stream_ = kStreams && args.non_temporal && !in_place_ && can_stream();
    copy_rest_ = copy_rest && !in_place_ && 2 * args.pairs != args.head_dim;
    const int64_t row_bytes = std::max<int64_t>(args.head_dim * static_cast<int64_t>(sizeof(T)), 1);
    rows_ahead_ = std::max<int64_t>(kPrefetchBytes / row_bytes, 1);
  }

  HWY_ATTR void rotate() const {
    if (in_place_ && contiguous_) {
      rotate_all<true>();
    } else {
      rotate_all<false>();
    }
  }

 private:
  // Streams are written in whole vectors of 32 bytes or more: of all those that are written side by
  // side, a processor has no room for so many open lines in pieces of 16 bytes. NumPy aligns memory
  // to 16 bytes only; ordinary stores are faster there than such pieces.
  static constexpr bool kStreams = HWY_MAX_BYTES >= 32;

  // Rows one after the other, and beside each some more:
  //
  //   of neighbouring tokens, beside each the same token of other heads
  //   of the heads of a token, beside each the same head of other tokens (kOwnAngles)
  //   of every n-th head of a token, beside each the heads up to the next
  struct Run {
    const T* in;
    int64_t in_beside, in_step;  // to the row beside, to the next row
    T* out;
    int64_t out_beside, out_step;
    const Number* cosine;
    const Number* sine;
    int64_t angle_beside, angle_step;
    int64_t count;
    // From a row to one that comes soon: of the run, or (from row `turn` on) of the next.
    int64_t ahead, turn, ahead_next;
  };

  // kInPlace: rows of neighbouring numbers that are written where they are read.
  template <bool kInPlace>
  HWY_ATTR void rotate_all() const {
    constexpr int kMost = kInPlace ? kRowsInPlace<Row> : kRows;
    const HeadStrides& strides = tensor_.in_strides;
    // Runs go along memory.
    if (std::abs(strides.token) < std::abs(strides.head)) {
      int64_t head = 0;
      if (strides.head * static_cast<int64_t>(sizeof(T)) % kCollide != 0) {
        head = along_tokens<kInPlace, kMost>(head);
        if constexpr (kMost > kRows) head = along_tokens<kInPlace, kRows>(head);
      }
      along_tokens<kInPlace, 1>(head);
      return;
    }
    for (int64_t token = along_heads<kInPlace, kMost>(); token < tokens_.count; ++token) {
      const int64_t head = along_head_groups<kInPlace, kMost>(token, 0);
      along_head_groups<kInPlace, 1>(token, head);
    }
  }

  // The tokens of kCount heads side by side, for as many such groups as there are from a head on.
  // Returns the first head that is left.
  template <bool kInPlace, int kCount>
  HWY_ATTR int64_t along_tokens(int64_t first) const {
    const HeadStrides& in = tensor_.in_strides;
    const HeadStrides& out = tensor_.out_strides;
    const int64_t last = first + (tensor_.heads - first) / kCount * kCount;
    Run run{};
    set_steps(run, in.head, out.head, 0, in.token, out.token, per_token_);
    set_length(run, tokens_.count, in.token, kCount * in.head);
    for (int64_t head = first; head < last; head += kCount) {
      set_start(run, 0, head);
      rotate<kInPlace, false, kCount>(run);
    }
    return last;
  }

  // The heads of kCount tokens side by side, likewise. Returns the first token that is left.
  template <bool kInPlace, int kCount>
  HWY_ATTR int64_t along_heads() const {
    const HeadStrides& in = tensor_.in_strides;
    const HeadStrides& out = tensor_.out_strides;
    const int64_t last = tokens_.count / kCount * kCount;
    Run run{};
    set_steps(run, in.token, out.token, per_token_, in.head, out.head, 0);
    set_length(run, tensor_.heads, in.head, kCount * in.token);
    for (int64_t token = 0; token < last; token += kCount) {
      set_start(run, token, 0);
      rotate<kInPlace, true, kCount>(run);
    }
    return last;
  }

  // The heads of one token from `first` on, kCount of them side by side. Returns the first head
  // that is left.
  template <bool kInPlace, int kCount>
  HWY_ATTR int64_t along_head_groups(int64_t token, int64_t first) const {
    const HeadStrides& in = tensor_.in_strides;
    const HeadStrides& out = tensor_.out_strides;
    const int64_t groups = (tensor_.heads - first) / kCount;
    Run run{};
    set_steps(run, in.head, out.head, 0, kCount * in.head, kCount * out.head, 0);
    set_length(run, groups, kCount * in.head, in.token);
    set_start(run, token, first);
    rotate<kInPlace, false, kCount>(run);
    return first + groups * kCount;
  }

  static HWY_INLINE void set_steps(Run& run, int64_t in_beside, int64_t out_beside,
                                   int64_t angle_beside, int64_t in_step, int64_t out_step,
                                   int64_t angle_step) {
    run.in_beside = in_beside;
    run.out_beside = out_beside;
    run.angle_beside = angle_beside;
    run.in_step = in_step;
    run.out_step = out_step;
    run.angle_step = angle_step;
  }

  // How many rows there are, and how far it is from a row to the next and from a run to the next.
  HWY_INLINE void set_length(Run& run, int64_t count, int64_t step, int64_t next) const {
    run.count = count;
    run.turn = count - rows_ahead_;
    run.ahead = rows_ahead_ * step;
    run.ahead_next = next - run.turn * step;
  }

  HWY_INLINE void set_start(Run& run, int64_t token, int64_t head) const {
    run.in = in_ + token * tensor_.in_strides.token + head * tensor_.in_strides.head;
    run.out = out_ + token * tensor_.out_strides.token + head * tensor_.out_strides.head;
    run.cosine = cosine_ + token * per_token_;
    run.sine = sine_ + token * per_token_;
  }

  template <bool kInPlace, bool kOwnAngles, int kCount>
  HWY_ATTR void rotate(const Run& run) const {
    if constexpr (kInPlace) {
      rotate_run<Store::kOrdinary, true, kOwnAngles, kCount>(run);
    } else {
      if (!contiguous_) {
        rotate_strided_run<kCount>(run);
      } else if (kStreams && stream_) {
        rotate_run<kStreams ? Store::kStream : Store::kOrdinary, false, kOwnAngles, kCount>(run);
      } else {
        rotate_run<Store::kOrdinary, false, kOwnAngles, kCount>(run);
      }
      if (copy_rest_) copy_outside_run<kCount>(run);
    }
  }

  // Dim of the first partner of the first pair of the i-th block of the piece.
  int64_t first_dim(int64_t i) const {
    return kInterleaved ? args_.start + 2 * piece_.first
                        : args_.start + 2 * args_.half_block * (piece_.block + i) + piece_.first;
  }

  // Whether all full groups lie so that their vectors can be streamed.
  bool can_stream() const {
    const D d;
    constexpr int64_t kSize = sizeof(T);
    const HeadStrides& strides = tensor_.out_strides;
    const int64_t first = reinterpret_cast<int64_t>(tensor_.out) + first_dim(0) * kSize;
    const int64_t steps =
        strides.batch | strides.token | strides.head | (kInterleaved ? 0 : args_.half_block);
    return can_stream_to(first | steps * kSize,
                         static_cast<int64_t>(hn::Lanes(d) * sizeof(Number)));
  }

  template <Store kStore, bool kInPlace, bool kOwnAngles, int kCount>
  HWY_ATTR void rotate_run(const Run& run) const {
    const D d;
    const int64_t group = static_cast<int64_t>(group_size(d, Row::kOrder));
    const int64_t far = args_.half_block;
    const int64_t groups = piece_.length / group, rest = piece_.length % group;
    const int64_t group_dims = group * (kInterleaved ? 2 : 1);
    const int64_t to_next_block = 2 * args_.half_block - groups * group_dims;
    const int64_t to_next_row = -piece_.blocks * 2 * args_.half_block;
    // One pointer a row, which moves: the sums of every row's address and the distances would be
    // more than there are registers.
    const T* in[kCount];
    T* out[kCount];
    const auto move = [&](int64_t in_dims, int64_t out_dims) HWY_ATTR {
      unrolled<kCount>([&](auto j) HWY_ATTR {
        in[j] += in_dims;
        if constexpr (!kInPlace) out[j] += out_dims;
      });
    };
    unrolled<kCount>([&](auto j) HWY_ATTR {
      in[j] = run.in + j * run.in_beside + first_dim(0);
      out[j] = run.out + j * run.out_beside + first_dim(0);
    });
    for (int64_t i = 0; i < run.count; ++i) {
      const Number* cosine = run.cosine + i * run.angle_step;
      const Number* sine = run.sine + i * run.angle_step;
      const int64_t ahead = i < run.turn ? run.ahead : run.ahead_next;
      for (int64_t block = 0; block < piece_.blocks; ++block) {
        for (int64_t at = 0; at < groups; ++at) {
          const typename Row::template Angles<D> shared(d, cosine, sine);
          // All reads before all writes: rows are often a multiple of 4 KiB apart, and processors
          // take a read at such a distance from a fresh write for a read of it.
          typename Row::template Group<D> numbers[kCount];
          unrolled<kCount>([&](auto j) HWY_ATTR {
            prefetch(in[j] + ahead, far);
            numbers[j].read(d, in[j], in[j] + far);
          });
          unrolled<kCount>([&](auto j) HWY_ATTR {
            T* const to = kInPlace ? const_cast<T*>(in[j]) : out[j];
            const int64_t own = kOwnAngles ? j * run.angle_beside : 0;
            const typename Row::template Angles<D> angles =
                kOwnAngles ? typename Row::template Angles<D>(d, cosine + own, sine + own) : shared;
            Row::template rotate<kStore, kRounding>(d, numbers[j], to, to + far, angles);
          });
          move(group_dims, group_dims);
          cosine += group * Row::kCopies;
          sine += group * Row::kCopies;
        }
        if (rest != 0) {
          for (int j = 0; j < kCount; ++j) {
            const int64_t own = kOwnAngles ? j * run.angle_beside : 0;
            rotate_part(in[j], 1, kInPlace ? const_cast<T*>(in[j]) : out[j], 1, far, rest,
                        cosine + own, sine + own);
          }
          cosine += group * Row::kCopies;
          sine += group * Row::kCopies;
        }
        move(to_next_block, to_next_block);
      }
      move(run.in_step + to_next_row, run.out_step + to_next_row);
    }
  }

  static HWY_INLINE void prefetch(const T* group, int64_t far) {
    constexpr int64_t kBytes = static_cast<int64_t>(2 * hn::MaxLanes(D()) * sizeof(T));
    prefetch_later(group);
    if constexpr (!kInterleaved) {
      prefetch_later(group + far);
    } else if constexpr (kBytes > kLineBytes) {
      prefetch_later(group + kBytes / static_cast<int64_t>(2 * sizeof(T)));
    }
  }

  template <int kCount>
  HWY_ATTR void rotate_strided_run(const Run& run) const {
    const D d;
    const int64_t group = static_cast<int64_t>(group_size(d, Row::kOrder));
    const int64_t in_dim = tensor_.in_strides.dim, out_dim = tensor_.out_strides.dim;
    for (int64_t row = 0; row < run.count * kCount; ++row) {
      const int64_t i = row / kCount, j = row % kCount;
      const T* const in = run.in + i * run.in_step + j * run.in_beside;
      T* const out = run.out + i * run.out_step + j * run.out_beside;
      const int64_t angle = i * run.angle_step + j * run.angle_beside;
      const Number* cosine = run.cosine + angle;
      const Number* sine = run.sine + angle;
      for (int64_t block = 0; block < piece_.blocks; ++block) {
        for (int64_t pair = 0; pair < piece_.length; pair += group) {
          const int64_t at = first_dim(block) + pair * (kInterleaved ? 2 : 1);
          rotate_part(in + at * in_dim, in_dim, out + at * out_dim, out_dim, args_.half_block,
                      std::min(group, piece_.length - pair), cosine, sine);
          cosine += group * Row::kCopies;
          sine += group * Row::kCopies;
        }
      }
    }
  }

  // Numbers `step` apart to the buffer, and back.
  static HWY_ATTR HWY_INLINE void read_part(const T* from, int64_t step, int64_t count, T* buffer) {
    if (step == 1) return read_neighbours(from, count, buffer);
    collect(from, step, count, buffer);
  }
  static HWY_ATTR HWY_INLINE void write_part(const T* buffer, int64_t count, T* to, int64_t step) {
    if (step == 1) return write_neighbours(buffer, count, to);
    distribute(buffer, count, to, step);
  }

  // Up to one group of pairs, through a buffer: row ends, and dims that are not neighbours.
  static HWY_ATTR void rotate_part(const T* in, int64_t in_step, T* out, int64_t out_step,
                                   int64_t far, int64_t count, const Number* cosine,
                                   const Number* sine) {
    const D d;
    constexpr int64_t kGroup = static_cast<int64_t>(2 * hn::MaxLanes(D()));
    HWY_ALIGN T buffer[2 * kGroup] = {};
    // Interleaved partners stay neighbours; far ones are kGroup apart in the buffer.
    if constexpr (kInterleaved) {
      read_part(in, in_step, 2 * count, buffer);
    } else {
      read_part(in, in_step, count, buffer);
      read_part(in + far * in_step, in_step, count, buffer + kGroup);
    }
    const typename Row::template Angles<D> angles(d, cosine, sine);
    typename Row::template Group<D> group;
    group.read(d, buffer, buffer + kGroup);
    Row::template rotate<Store::kOrdinary, kRounding>(d, group, buffer, buffer + kGroup, angles);
    if constexpr (kInterleaved) {
      write_part(buffer, 2 * count, out, out_step);
    } else {
      write_part(buffer, count, out, out_step);
      write_part(buffer + kGroup, count, out + far * out_step, out_step);
    }
  }

  template <int kCount>
  void copy_outside_run(const Run& run) const {
    for (int64_t row = 0; row < run.count * kCount; ++row) {
      const int64_t i = row / kCount, j = row % kCount;
      copy_outside(run.in + i * run.in_step + j * run.in_beside, tensor_.in_strides.dim,
                   run.out + i * run.out_step + j * run.out_beside, tensor_.out_strides.dim);
    }
  }

  void copy_outside(const T* in, int64_t in_step, T* out, int64_t out_step) const {
    const auto copy = [&](int64_t from, int64_t to) {
      if (in_step == 1 && out_step == 1) {
        std::memcpy(out + from, in + from, static_cast<size_t>(to - from) * sizeof(T));
      } else {
        for (int64_t i = from; i < to; ++i) out[i * out_step] = in[i * in_step];
      }
    };
    copy(0, args_.start);
    copy(args_.start + 2 * args_.pairs, args_.head_dim);
  }

  const RotaryArgs& args_;
  const RotaryTensor& tensor_;
  const Piece& piece_;
  const Tokens tokens_;
  // Of the first head of the first token.
  const T* in_;
  T* out_;
  const Number* cosine_;
  const Number* sine_;
  int64_t per_token_;  // angles
  int64_t rows_ahead_;
  bool contiguous_, in_place_, stream_, copy_rest_;
};

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // POSENC_CPU_ROTARY_RUNS_INL_H_
