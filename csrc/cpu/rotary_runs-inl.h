// Rotary's rows: how the heads of a block of tokens are rotated, in runs along memory.
//
//   tokens of a head are neighbors (bhsd)       heads of a token are neighbors (bshd)
//
//   head 0  t0 t1 t2 t3 ...  ─►                  token 0  h0 h1 h2 ... ─►  token 1  h0 h1 h2 ... ─►
//   head 1  t0 t1 t2 t3 ...  ─►  side by side:
//   head 2  t0 t1 t2 t3 ...  ─►  they share the  one run through memory, as long as there are no
//   head 3  t0 t1 t2 t3 ...  ─►  loads of angles gaps; with gaps (fused qkv) tokens side by side,
//                                                in place heads

#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "core/rotary.h"
#include "cpu/elements-inl.h"
#include "cpu/kernels.h"
#include "cpu/lines-inl.h"
#include "cpu/numbers-inl.h"
#include "cpu/rotary_angles-inl.h"
#include "cpu/rotary_row-inl.h"
#include "cpu/unrolled-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How far ahead of the rotation memory is requested, all rows side by side together: into the
// second-level cache, since what many heads request would not fit the ways of the first.
constexpr int64_t kPrefetchBytes = 32768;
// Heads rotated side by side: they share the loads of their angles, and memory serves several
// streams faster than one that ends every few pages. In place as many as there are registers for
// their pairs; where a second stream is written for each, fewer are faster. A run without gaps goes
// alone, and nothing is requested for it, where others go side by side: the processor's own
// requests follow it, and do not follow several runs side by side.
constexpr int kHeads = 4;
template <class Row>
constexpr int kHeadsInPlace =
    (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON) && Row::kVectors <= 2 ? 8 : kHeads;
constexpr int64_t kPageBytes = 4096;

// Heads at multiples of this distance have the same place in first-level caches that find lines by
// a hash of the address (AMD: bits 12 to 27), whatever their ways: side by side they evict each
// other.
constexpr int64_t kCollide = int64_t{1} << 27;

// The last-level cache in multiples of non_temporal_bytes(), and of that a part that is in a cache
// which needs no requests: it has just been written.
constexpr int64_t kLastLevel = 4, kNear = 4;

// Buffers of LineWriters: of all rows that are written side by side.
constexpr int64_t kLineBuffer = 16384;
// How much of them is filled before it is written: little, so that the first-level cache keeps it.
constexpr int64_t kLinesAtOnce = 2048;

// The tokens first .. first + count - 1 of one batch row.
struct Tokens {
  int64_t batch, first, count;
};

// One piece of one tensor's heads, for a block of tokens whose angles are at hand.
template <typename T, class Row, Rounding kRounding>
class RotaryRuns {
  using Number = Real<T>;
  using D = RealTag<T>;

 public:
  using Angles = RotaryAngles<Number, Row::kOrder, Row::kCopies>;

  // copy_rest: of what is not rotated, if it is to be anywhere else. lines: kLineBuffer bytes.
  RotaryRuns(const RotaryArgs& args, const RotaryTensor& tensor, const Piece& piece,
             const Tokens& tokens, const Angles& angles, bool copy_rest, char* lines)
      : args_(args),
        tensor_(tensor),
        piece_(piece),
        tokens_(tokens),
        angles_(angles),
        lines_(lines) {
    const int64_t batch = tokens.batch, token = tokens.first;
    in_ = static_cast<const T*>(tensor.in) + batch * tensor.in_strides.batch +
          token * tensor.in_strides.token;
    out_ = static_cast<T*>(tensor.out) + batch * tensor.out_strides.batch +
           token * tensor.out_strides.token;
    cosine_ = angles.cosine();
    sine_ = angles.sine();
    per_token_ = static_cast<int64_t>(angles.numbers());
    const bool contiguous = tensor.in_strides.dim == 1 && tensor.out_strides.dim == 1;
    const bool in_place = tensor.in == tensor.out;
    // Runs go along memory; but where there are gaps between the tokens, as in a packed projection,
    // in place go the heads of a token side by side, by angles that are read once. Only float32
    // that no cache holds waits for memory, which serves several tokens side by side faster.
    const HeadStrides& strides = tensor.in_strides;
    gaps_ = strides.token != tensor.heads * strides.head || strides.head != args.head_dim;
    along_tokens_ = std::abs(strides.token) < std::abs(strides.head);
    const int64_t bytes = args.rows() * tensor.heads * args.head_dim * kSize;
    by_token_ = kSideBySide && in_place && gaps_ && !along_tokens_ &&
                (kSize == 2 || bytes / kLastLevel < non_temporal_bytes());
    near_ = bytes * kNear < non_temporal_bytes();
    copy_rest_ = copy_rest && !in_place && 2 * args.pairs != args.head_dim;
    if (!contiguous) {
      way_ = Way::kStrided;
    } else if (in_place) {
      way_ = Way::kInPlace;
    } else if (args.non_temporal && kStreams && can_stream()) {
      way_ = Way::kStream;
    } else {
      way_ = Way::kOrdinary;
      by_lines_ = args.non_temporal && kPastCache && fills_lines();
    }
  }

  HWY_ATTR void rotate() const {
    switch (way_) {
      case Way::kStrided:
        if constexpr (!kRearranges) return rotate_all<Way::kStrided, 1>();
        break;
      case Way::kInPlace:
        if constexpr (!kRearranges) {
          return rotate_all<Way::kInPlace, kSideBySide ? kHeadsInPlace<Row> : 1>();
        }
        break;
      case Way::kStream:
        return rotate_all<kStreams ? Way::kStream : Way::kOrdinary, kSideBySide ? kHeads : 1>();
      default:
        return rotate_all<Way::kOrdinary, kSideBySide ? kHeads : 1>();
    }
  }

  // Heads that are all turned at once: rows of the tables are read where they are.
  static bool reads_tables(const RotaryArgs& args) {
    const RotaryTensor& x = args.tensors[0];
    return kSideBySide && args.tensor_count == 1 && (x.heads == 1 || x.heads == kHeads) &&
           x.in_strides.dim == 1 && x.out_strides.dim == 1;
  }
  HWY_ATTR void rotate_by_tables() const {
    if constexpr (kSideBySide) {
      switch (way_) {
        case Way::kStrided:
          break;
        case Way::kInPlace:
          return by_tables<Way::kInPlace>();
        case Way::kStream:
          return by_tables<kStreams ? Way::kStream : Way::kOrdinary>();
        default:
          return by_tables<Way::kOrdinary>();
      }
    }
  }

 private:
  static constexpr int64_t kSize = static_cast<int64_t>(sizeof(T));
  static constexpr int64_t kGroup = static_cast<int64_t>(group_size(D(), Row::kOrder));
  // Neighboring dims of a group, where they are written and read.
  static constexpr int64_t kGroupDims = kGroup * (Row::kNeighboursOut ? 2 : 1);
  static constexpr int64_t kGroupInDims = kGroup * (Row::kNeighboursIn ? 2 : 1);
  static constexpr int64_t kLineNumbers = kLineBytes / static_cast<int64_t>(sizeof(Number));
  // Then all dims are neighbors, and written elsewhere: the caller sees to it.
  static constexpr bool kRearranges = Row::kNeighboursIn != Row::kNeighboursOut;
  // Each way through memory is compiled for every format, pairing and rounding. Rows side by side,
  // and rows of tables that are read where they are, are for what models are trained and served in.
  // All else is rarer and goes row by row.
  static constexpr bool kSideBySide =
      HWY_TARGET != HWY_SSE4 && sizeof(T) <= 4 && !kRearranges && kRounding != Rounding::kAsWritten;
  // Whether lines are written past the cache, by LineWriters or, where a group fills lines, by the
  // stores of the rotation.
  static constexpr bool kPastCache = HWY_ARCH_X86 != 0;
  static constexpr bool kStreams =
      kPastCache && Row::kStreams && kGroupDims * kSize % kLineBytes == 0;

  // kStrided: dims are no neighbors. kInPlace: they are written where they are read. Else they
  // are written elsewhere: past the cache (kStream), or into it (kOrdinary; by_lines_: into the
  // buffers of LineWriters, and from there past it).
  enum class Way { kStrided, kInPlace, kStream, kOrdinary };

  // Rows one after the other, and beside each some more:
  //
  //   of the tokens of a head, beside each the same token of other heads   (kShared)
  //   of the heads of a token, beside each the same head of other tokens   (kOwn)
  //   of the tokens of the only head, by rows of the tables                (kOfTables)
  enum class AnglesOf { kShared, kOwn, kOfTables };
  struct Run {
    const T* in;
    int64_t in_beside, in_step;  // to the row beside, to the next row
    T* out;
    int64_t out_beside, out_step;
    const Number* cosine;
    const Number* sine;
    int64_t angle_beside, cosine_step, sine_step;
    int64_t count;
    // From a row to one that comes soon: of the run, or (from row `turn` on) of a later one.
    int64_t ahead, turn, ahead_later;
  };

  template <Way kWay, int kSide>
  HWY_ATTR void rotate_all() const {
    const HeadStrides& strides = tensor_.in_strides;
    const bool beside = strides.head * kSize % kCollide != 0;
    if constexpr (kWay == Way::kInPlace) {
      if (by_token_ && near_) return heads_beside<kWay, kSide, false>(beside);
    }
    if (along_tokens_ || by_token_) {
      constexpr bool kAhead = kSideBySide && kWay != Way::kStrided;
      return heads_beside<kWay, kSide, kAhead>(beside);
    }
    int64_t token = 0;
    if (kSide > 1 && gaps_) token = along_heads<kWay, kSide>(token);
    along_heads<kWay, 1>(token);
  }

  template <Way kWay, int kSide, bool kAhead>
  HWY_ATTR void heads_beside(bool beside) const {
    int64_t head = 0;
    if (kSide > 1 && beside) {
      head = along_tokens<kWay, kSide, kAhead>(head);
      if constexpr (kSide > kHeads) head = along_tokens<kWay, kHeads, kAhead>(head);
    }
    along_tokens<kWay, 1, kAhead>(head);
  }

  // The tokens of kCount heads side by side, for as many such groups as there are from a head on.
  // Returns the first head that is left.
  template <Way kWay, int kCount, bool kAhead>
  HWY_ATTR int64_t along_tokens(int64_t first) const {
    const HeadStrides& in = tensor_.in_strides;
    const HeadStrides& out = tensor_.out_strides;
    const int64_t last = first + (tensor_.heads - first) / kCount * kCount;
    if (first == last) return last;
    Run run = start(0, first);
    run.in_beside = in.head;
    run.out_beside = out.head;
    run.in_step = in.token;
    run.out_step = out.token;
    run.cosine_step = run.sine_step = per_token_;
    run.count = tokens_.count;
    // Behind the last heads come the next tokens.
    const bool last_heads = tensor_.heads <= kCount;
    look_ahead(run, kCount, last_heads ? run.count * in.token : kCount * in.head);
    Writers<kWay, kCount> writers(by_lines_ ? lines_ : nullptr, row_bytes());
    for (int64_t head = first; head < last; head += kCount) {
      if constexpr (kCount == 1 && !kAhead) {
        rotate_alone(run, writers);
      } else {
        rotate_run<kWay, kAhead, AnglesOf::kShared>(run, writers);
      }
      run.in += kCount * in.head;
      run.out += kCount * out.head;
    }
    writers.finish();
    return last;
  }

  // The heads of kCount tokens side by side, likewise. Returns the first token that is left.
  template <Way kWay, int kCount>
  HWY_ATTR int64_t along_heads(int64_t first) const {
    const HeadStrides& in = tensor_.in_strides;
    const HeadStrides& out = tensor_.out_strides;
    const int64_t last = first + (tokens_.count - first) / kCount * kCount;
    if (first == last || tensor_.heads == 0) return last;
    Run run = start(first, 0);
    run.in_beside = in.token;
    run.out_beside = out.token;
    run.angle_beside = per_token_;
    run.in_step = in.head;
    run.out_step = out.head;
    run.count = tensor_.heads;
    look_ahead(run, kCount, kCount * in.token);
    Writers<kWay, kCount> writers(by_lines_ ? lines_ : nullptr, row_bytes());
    for (int64_t token = first; token < last; token += kCount) {
      if constexpr (kCount == 1) {
        rotate_alone(run, writers);
      } else {
        rotate_run<kWay, true, AnglesOf::kOwn>(run, writers);
      }
      run.in += kCount * in.token;
      run.out += kCount * out.token;
      run.cosine += kCount * per_token_;
      run.sine += kCount * per_token_;
    }
    writers.finish();
    return last;
  }

  template <Way kWay>
  HWY_ATTR void by_tables() const {
    if (tensor_.heads == 1) return by_tables_beside<kWay, 1>();
    by_tables_beside<kWay, kHeads>();
  }

  template <Way kWay, int kCount>
  HWY_ATTR void by_tables_beside() const {
    const typename Angles::Rows rows = Angles::rows(args_, piece_, tokens_.batch, tokens_.first);
    Run run = start(0, 0);
    run.in_beside = tensor_.in_strides.head;
    run.out_beside = tensor_.out_strides.head;
    run.in_step = tensor_.in_strides.token;
    run.out_step = tensor_.out_strides.token;
    run.cosine = rows.cosine;
    run.sine = rows.sine;
    run.cosine_step = rows.cosine_step;
    run.sine_step = rows.sine_step;
    run.count = tokens_.count;
    look_ahead(run, kCount, run.count * run.in_step);
    Writers<kWay, kCount> writers(by_lines_ ? lines_ : nullptr, row_bytes());
    rotate_run<kWay, true, AnglesOf::kOfTables>(run, writers);
    writers.finish();
  }

  HWY_INLINE Run start(int64_t token, int64_t head) const {
    Run run{};
    run.in = in_ + token * tensor_.in_strides.token + head * tensor_.in_strides.head;
    run.out = out_ + token * tensor_.out_strides.token + head * tensor_.out_strides.head;
    run.cosine = cosine_ + token * per_token_;
    run.sine = sine_ + token * per_token_;
    return run;
  }

  // How far it is to what is requested, in a run of `beside` rows side by side, `next` before the
  // next run.
  HWY_INLINE void look_ahead(Run& run, int64_t beside, int64_t next) const {
    const int64_t rows = std::max<int64_t>(kPrefetchBytes / (beside * row_bytes()), 1);
    const int64_t runs = rows / run.count, rest = rows % run.count;
    run.turn = run.count - rest;
    run.ahead = runs * next + rest * run.in_step;
    run.ahead_later = run.ahead + next - run.count * run.in_step;
  }

  int64_t row_bytes() const { return std::max<int64_t>(args_.head_dim * kSize, 1); }

  // Dim of the first partner of the first pair of the i-th block of the piece, where it is written.
  int64_t first_dim(int64_t i) const {
    return Row::kNeighboursOut
               ? args_.start + 2 * piece_.first
               : args_.start + 2 * args_.half_block * (piece_.block + i) + piece_.first;
  }

  // Of the first block, where it is read.
  int64_t first_in_dim() const {
    if (!kRearranges) return first_dim(0);
    return args_.start + (Row::kNeighboursIn ? 2 : 1) * piece_.first_pair(args_, 0);
  }

  // Whether what a group writes, whole lines of numbers, lies in whole lines of memory.
  bool can_stream() const {
    const HeadStrides& strides = tensor_.out_strides;
    const int64_t first = reinterpret_cast<int64_t>(tensor_.out) + first_dim(0) * kSize;
    const int64_t steps =
        strides.batch | strides.token | strides.head | (Row::kNeighboursOut ? 0 : args_.half_block);
    return (first | steps * kSize) % kLineBytes == 0;
  }

  // Whether LineWriters can take the rows: all of a row is written, in whole vectors, and lines
  // begin with rows, or rows follow each other without gaps.
  bool fills_lines() const {
    const bool rotated = piece_.blocks * piece_.length == args_.pairs;
    const bool copied = copy_rest_ || 2 * args_.pairs == args_.head_dim;
    const int64_t parts = args_.start | 2 * args_.half_block | args_.head_dim |
                          (Row::kNeighboursOut ? 2 * args_.pairs : args_.half_block);
    const HeadStrides& strides = tensor_.out_strides;
    const int64_t target = reinterpret_cast<int64_t>(tensor_.out) |
                           (strides.batch | strides.token | strides.head) * kSize;
    const int64_t step = along_tokens_ ? strides.token : strides.head;
    return rotated && copied && parts * kSize % LineWriter::kVectorBytes == 0 &&
           target % (step == args_.head_dim ? LineWriter::kAlignment : kLineBytes) == 0 &&
           kHeads * (row_bytes() + 2 * kLineBytes) <= kLineBuffer;
  }

  // Of rows side by side, where there is a buffer.
  template <Way kWay, int kCount>
  class Writers {
   public:
    static constexpr bool kUsed = kPastCache && kWay == Way::kOrdinary;

    Writers(char* buffer, int64_t row_bytes) : used_(kUsed && buffer != nullptr) {
      if (used()) {
        const int64_t row = (row_bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
        const int64_t bytes = std::max(row, kLinesAtOnce / kCount) + kLineBytes;
        for (int j = 0; j < kCount; ++j) writers_[j] = LineWriter(buffer + j * bytes, bytes);
      }
    }

    bool used() const { return kUsed && used_; }

    HWY_ATTR HWY_INLINE T* place(int j, T* to, int64_t count) {
      return reinterpret_cast<T*>(writers_[j].place(reinterpret_cast<char*>(to), count * kSize));
    }

    HWY_ATTR void finish() {
      if (used()) {
        for (LineWriter& writer : writers_) writer.finish();
      }
    }

   private:
    const bool used_;
    LineWriter writers_[kUsed ? kCount : 1];
  };

  // Where a row has the pairs of the piece.
  struct Pairs {
    int64_t first;        // dim of the first one
    int64_t far;          // from a pair's first partner to its second one
    int64_t blocks;       // of the pairing
    int64_t groups_dims;  // of a block, in whole groups
    int64_t rest;         // pairs after them
    int64_t block_dims;   // from a block to the next
  };

  HWY_INLINE Pairs pairs() const {
    return {first_dim(0),           args_.half_block,
            piece_.blocks,          piece_.length / kGroup * kGroupDims,
            piece_.length % kGroup, 2 * args_.half_block};
  }

  // Where a group is read that is written at `dim`, in a block that begins at `first`; and how far
  // its second partners are. (No members of Pairs: with two more the compiler keeps it in memory.)
  HWY_INLINE int64_t in_dim(const Pairs& pairs, int64_t first, int64_t dim) const {
    if constexpr (!kRearranges) return dim;
    return first_in_dim() + (first - pairs.first) + (dim - first) / kGroupDims * kGroupInDims;
  }
  HWY_INLINE int64_t in_far(const Pairs& pairs) const {
    if constexpr (!kRearranges) return pairs.far;
    return args_.in_half_block;
  }

  // Rows without others beside them, along tokens or heads, compiled once for both where nothing is
  // requested along tokens. Memory is requested for them where no rows go side by side.
  template <Way kWay>
  HWY_ATTR HWY_NOINLINE void rotate_alone(const Run& run, Writers<kWay, 1>& writers) const {
    constexpr bool kAhead = !kSideBySide && kWay != Way::kStrided;
    rotate_run<kWay, kAhead, AnglesOf::kShared>(run, writers);
  }

  template <Way kWay, bool kAhead, AnglesOf kAngles, int kCount>
  HWY_ATTR HWY_INLINE void rotate_run(const Run& given, Writers<kWay, kCount>& writers) const {
    // Copies: what is written might be members of anything.
    const Run run = given;
    const Pairs pairs = this->pairs();
    const int64_t head_dim = args_.head_dim;
    const bool copy_rest = copy_rest_;
    const typename Angles::Scales scales(args_);
    const Number* cosine = run.cosine;
    const Number* sine = run.sine;
    const T* in = run.in;
    T* to = run.out;
    for (int64_t i = 0; i < run.count; ++i) {
      const T* from[kCount];
      T* out[kCount];
      unrolled<kCount>([&](auto j) POSENC_INLINED {
        from[j] = in + j * run.in_beside;
        out[j] = kWay == Way::kInPlace ? const_cast<T*>(from[j]) : to + j * run.out_beside;
      });
      if (writers.used()) {
        for (int j = 0; j < kCount; ++j) out[j] = writers.place(j, out[j], head_dim);
      }
      // The processor's own requests end with a page: the next one is looked up before.
      if constexpr (!kAhead) prefetch_later(reinterpret_cast<const char*>(in) + kPageBytes);
      if constexpr (kWay == Way::kStrided) {
        rotate_strided(from[0], out[0], cosine, sine);
      } else {
        constexpr Store kStore = kWay == Way::kStream ? Store::kStream : Store::kOrdinary;
        const int64_t ahead = i < run.turn ? run.ahead : run.ahead_later;
        rotate_rows<kStore, kAhead, kAngles, kCount>(pairs, from, out, cosine, sine,
                                                     run.angle_beside, scales, ahead);
      }
      if constexpr (kWay != Way::kInPlace) {
        if (copy_rest) {
          const bool by_lines = writers.used();
          for (int j = 0; j < kCount; ++j) copy_outside<kWay>(from[j], out[j], by_lines);
        }
      }
      in += run.in_step;
      to += run.out_step;
      cosine += run.cosine_step;
      sine += run.sine_step;
    }
  }

  // Whether a group, so many dims after the first one, begins a line; with whole lines each does.
  static HWY_INLINE bool begins_line(int64_t dims) {
    constexpr int64_t kBytes = kGroupInDims * kSize;
    return kBytes >= kLineBytes || (dims * kSize & (kLineBytes - 1)) < kBytes;
  }

  // Requests what a group reads, if it begins a line.
  static HWY_INLINE void prefetch(const T* group, int64_t far, int64_t dims) {
    constexpr int64_t kBytes = kGroupInDims * kSize;
    if (!begins_line(dims)) return;
    for (int64_t at = 0; at < kBytes; at += kLineBytes) {
      prefetch_later(reinterpret_cast<const char*>(group) + at);
      if (!Row::kNeighboursIn) prefetch_later(reinterpret_cast<const char*>(group + far) + at);
    }
  }

  // Cosines and sines of a group, at hand or of the tables.
  template <AnglesOf kAngles>
  HWY_ATTR HWY_INLINE typename Row::template Angles<D> angles_at(
      D d, const Number* cosine, const Number* sine,
      [[maybe_unused]] const typename Angles::Scales& scales) const {
    using Vectors = typename Row::template Angles<D>;
    if constexpr (kAngles == AnglesOf::kOfTables) {
      hn::Vec<D> c[Vectors::kVectors], s[Vectors::kVectors];
      angles_.template read_group<!std::is_same_v<T, Number>>(d, cosine, sine, scales, c, s);
      return Vectors(c, s);
    } else {
      return Vectors(d, cosine, sine);
    }
  }

  template <Store kStore, bool kAhead, AnglesOf kAngles, int kCount>
  HWY_ATTR HWY_INLINE void rotate_rows(const Pairs& pairs, const T* const* in, T* const* out,
                                       const Number* cosine, const Number* sine,
                                       int64_t angle_beside, const typename Angles::Scales& scales,
                                       [[maybe_unused]] int64_t ahead) const {
    const D d;
    // Of a group, where they are read.
    constexpr int64_t kAnglesOfGroup =
        kGroup * (kAngles == AnglesOf::kOfTables ? 1 : static_cast<int64_t>(Row::kCopies));
    // Whole rows of tables are those of one block: see whole_rows.
    const int64_t blocks = kAngles == AnglesOf::kOfTables ? 1 : pairs.blocks;
    int64_t first = pairs.first;
    for (int64_t block = 0; block < blocks; ++block) {
      int64_t dim = first;
      for (const int64_t end = first + pairs.groups_dims; dim < end; dim += kGroupDims) {
        const int64_t dims = in_dim(pairs, first, dim) - in_dim(pairs, first, first);
        if (kAngles == AnglesOf::kOfTables && (kGroup >= kLineNumbers || begins_line(dims))) {
          for (int64_t at = 0; at < kGroup; at += kLineNumbers) {
            prefetch_later(cosine + at + kTableAhead<Number>);
            prefetch_later(sine + at + kTableAhead<Number>);
          }
        }
        const auto shared = angles_at<kAngles>(d, cosine, sine, scales);
        // All reads before all writes: rows are often a multiple of 4 KiB apart, and processors
        // take a read at such a distance from a fresh write for a read of it.
        typename Row::template Group<D> numbers[kCount];
        unrolled<kCount>([&](auto j) POSENC_INLINED {
          const T* const group = in[j] + in_dim(pairs, first, dim);
          if constexpr (kAhead) prefetch(group + ahead, in_far(pairs), dims);
          numbers[j].read(d, group, group + in_far(pairs));
        });
        unrolled<kCount>([&](auto j) POSENC_INLINED {
          T* const to = out[j] + dim;
          const int64_t own = j * angle_beside;
          const auto angles = kAngles == AnglesOf::kOwn
                                  ? angles_at<kAngles>(d, cosine + own, sine + own, scales)
                                  : shared;
          Row::template rotate<kStore, kRounding>(d, numbers[j], to, to + pairs.far, angles);
        });
        cosine += kAnglesOfGroup;
        sine += kAnglesOfGroup;
      }
      if (kAngles != AnglesOf::kOfTables && pairs.rest != 0) {
        for (int j = 0; j < kCount; ++j) {
          const int64_t own = kAngles == AnglesOf::kOwn ? j * angle_beside : 0;
          rotate_part(in[j] + in_dim(pairs, first, dim), 1, in_far(pairs), out[j] + dim, 1,
                      pairs.far, pairs.rest, cosine + own, sine + own);
        }
        cosine += kAnglesOfGroup;
        sine += kAnglesOfGroup;
      }
      first += pairs.block_dims;
    }
  }

  HWY_ATTR void rotate_strided(const T* in, T* out, const Number* cosine,
                               const Number* sine) const {
    const int64_t in_dim = tensor_.in_strides.dim, out_dim = tensor_.out_strides.dim;
    for (int64_t block = 0; block < piece_.blocks; ++block) {
      for (int64_t pair = 0; pair < piece_.length; pair += kGroup) {
        const int64_t at = first_dim(block) + pair * (Row::kNeighboursOut ? 2 : 1);
        const int64_t far = args_.half_block;
        rotate_part(in + at * in_dim, in_dim, far, out + at * out_dim, out_dim, far,
                    std::min(kGroup, piece_.length - pair), cosine, sine);
        cosine += kGroup * Row::kCopies;
        sine += kGroup * Row::kCopies;
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

  // Up to one group of pairs, through a buffer: row ends, and dims that are not neighbors.
  static HWY_ATTR void rotate_part(const T* in, int64_t in_step, int64_t in_far, T* out,
                                   int64_t out_step, int64_t out_far, int64_t count,
                                   const Number* cosine, const Number* sine) {
    const D d;
    constexpr int64_t kGroup = static_cast<int64_t>(2 * hn::MaxLanes(D()));
    HWY_ALIGN T buffer[2 * kGroup] = {};
    // Neighboring partners stay that; far ones are kGroup apart in the buffer.
    if constexpr (Row::kNeighboursIn) {
      read_part(in, in_step, 2 * count, buffer);
    } else {
      read_part(in, in_step, count, buffer);
      read_part(in + in_far * in_step, in_step, count, buffer + kGroup);
    }
    const typename Row::template Angles<D> angles(d, cosine, sine);
    typename Row::template Group<D> group;
    group.read(d, buffer, buffer + kGroup);
    Row::template rotate<Store::kOrdinary, kRounding>(d, group, buffer, buffer + kGroup, angles);
    if constexpr (Row::kNeighboursOut) {
      write_part(buffer, 2 * count, out, out_step);
    } else {
      write_part(buffer, count, out, out_step);
      write_part(buffer + kGroup, count, out + out_far * out_step, out_step);
    }
  }

  template <Way kWay>
  HWY_ATTR void copy_outside(const T* in, T* out, bool by_lines) const {
    copy<kWay>(in, out, 0, args_.start, by_lines);
    copy<kWay>(in, out, args_.start + 2 * args_.pairs, args_.head_dim, by_lines);
  }

  // The dims [first, last).
  template <Way kWay>
  HWY_ATTR HWY_INLINE void copy(const T* in, T* out, int64_t first, int64_t last,
                                bool by_lines) const {
    if (by_lines) {
      // By the vectors that a LineWriter reads.
      const hn::CappedTag<Bits<T>, LineWriter::kVectorBytes / sizeof(T)> d;
      for (int64_t i = first; i < last; i += lanes(d)) {
        hn::StoreU(hn::LoadU(d, reinterpret_cast<const Bits<T>*>(in + i)), d,
                   reinterpret_cast<Bits<T>*>(out + i));
      }
    } else if (kWay != Way::kStrided) {
      std::memcpy(out + first, in + first, static_cast<size_t>(last - first) * sizeof(T));
    } else {
      const int64_t in_step = tensor_.in_strides.dim, out_step = tensor_.out_strides.dim;
      for (int64_t i = first; i < last; ++i) out[i * out_step] = in[i * in_step];
    }
  }

  const RotaryArgs& args_;
  const RotaryTensor& tensor_;
  const Piece& piece_;
  const Tokens tokens_;
  const Angles& angles_;
  // Of the first head of the first token.
  const T* in_;
  T* out_;
  const Number* cosine_;
  const Number* sine_;
  int64_t per_token_;  // angles
  char* lines_;
  Way way_;
  bool along_tokens_, by_token_, near_, gaps_, copy_rest_, by_lines_ = false;
};

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
