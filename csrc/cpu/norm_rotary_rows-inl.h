// Rows that are normed and rotated: one head of one token each, read once from memory.
//
//   x ──► sum of squares ──► r          while the first-level cache has it:
//   x ──► x * r * (weight + offset) ──► turned ──► rounded ──► written
//
// WholeRow is for heads of whole vectors, in registers. AnyRow is for all others, and for whatever
// is rare (a norm after the rotation, rounding as written, blocks): in a buffer of float32
// (float64) numbers. Both give the same bits.

#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/norm_rotary.h"
#include "cpu/elements-inl.h"
#include "cpu/numbers-inl.h"
#include "cpu/rotary_angles-inl.h"
#include "cpu/rotary_row-inl.h"
#include "cpu/square_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What x r is multiplied by, weight + offset, [heads, dims]; ones where there is no weight.
template <typename Number>
class NormFactors {
 public:
  // even_odd: of each chunk the even ones first, as load_chunk has them. With one head for all the
  // stride is 0.
  HWY_ATTR NormFactors(const NormRotaryArgs& args, int tensor, int64_t chunk, bool even_odd) {
    if (!args.multiplies()) return;
    const NormWeight& weight = args.weights[tensor];
    const int64_t dims = args.rotary.head_dim;
    if (weight.data == nullptr) {
      numbers_.assign(static_cast<size_t>(dims), Number(1));
      return;
    }
    stride_ = weight.heads > 1 ? dims : 0;
    numbers_.resize(static_cast<size_t>(weight.heads * dims + (even_odd ? dims : 0)));
    const Number offset = static_cast<Number>(args.weight_offset);
    Number* const spare = numbers_.data() + weight.heads * dims;
    for (int64_t head = 0; head < weight.heads; ++head) {
      Number* const to = numbers_.data() + head * dims;
      Number* const row = even_odd ? spare : to;
      convert_run<false>(weight.data, weight.dtype, weight.offset(head, 0), weight.dim_stride, dims,
                         row);
      if (!even_odd) {
        for (int64_t dim = 0; dim < dims; ++dim) to[dim] += offset;
        continue;
      }
      const int64_t half = chunk / 2;
      for (int64_t first = 0; first < dims; first += chunk) {
        for (int64_t i = 0; i < half; ++i) {
          to[first + i] = row[first + 2 * i] + offset;
          to[first + half + i] = row[first + 2 * i + 1] + offset;
        }
      }
    }
  }

  int64_t stride() const { return stride_; }  // from head to head
  const Number* of_head(int64_t head) const { return numbers_.data() + head * stride_; }

 private:
  int64_t stride_ = 0;
  std::vector<Number> numbers_;
};

// Of neighboring dims, whole chunks of them before, in and after the rotated slice.
template <typename T, bool kInterleaved, Rounding kRounding, bool kMultiplies>
class WholeRow {
  using Row = std::conditional_t<kInterleaved, InterleavedRow<T>, HalfRow<T>>;
  using D = RealTag<T>;
  using V = hn::Vec<D>;
  static constexpr int64_t kChunk = PartialSums<T>::kChunk;
  static constexpr bool kInstructions = kRounding == Rounding::kOnceByInstruction;

 public:
  using Number = Real<T>;
  using Angles = RotaryAngles<Number, Row::kOrder, Row::kCopies>;

  static bool fits(const NormRotaryArgs& args) {
    const RotaryArgs& rotary = args.rotary;
    const int64_t turned = kInterleaved ? 2 * rotary.pairs : rotary.half_block;
    const bool one_block = kInterleaved || rotary.half_block == rotary.pairs;
    const int64_t dims = rotary.head_dim | rotary.start | turned;
    bool neighbors = args.v.in == nullptr || args.keys.dim_stride == 1;
    for (const RotaryTensor& tensor : rotary.tensors) {
      neighbors = neighbors && tensor.in_strides.dim == 1 && tensor.out_strides.dim == 1;
    }
    return one_block && dims % kChunk == 0 && neighbors && !rotary.as_written &&
           (args.norm_first || !args.norm) && rotary.angle_heads() == 1 &&
           rotary.pairs <= static_cast<int64_t>(kMaxPairs);
  }

  explicit WholeRow(const RotaryArgs& rotary)
      : start_(rotary.start),
        end_(rotary.start + 2 * rotary.pairs),
        dims_(rotary.head_dim),
        half_(rotary.half_block) {}

  HWY_INLINE LastSums<Number> squares(const T* in) const { return sum_of_squares(in, dims_); }

  // Numbers of the angles that a chunk of neighbors has.
  static constexpr int64_t kAnglesOfChunk = kChunk / 2 * static_cast<int64_t>(Row::kCopies);

  // A chunk of pairs of neighbors.
  static HWY_INLINE void turn_chunk(V& x0, V& x1, const Number* cosine, const Number* sine) {
    const D d;
    const typename Row::template Angles<D> angles(d, cosine, sine);
    if constexpr (kEvenOddChunks<T>) {
      turn<T, kRounding>(d, x0, x1, angles.cosine, angles.sine);
    } else {
      x0 = Row::template turned<T, kRounding>(d, x0, angles.cosine1, angles.sine1);
      x1 = Row::template turned<T, kRounding>(d, x1, angles.cosine2, angles.sine2);
    }
  }

  // Two chunks of partners.
  static HWY_INLINE void turn_chunks(V& a0, V& a1, V& b0, V& b1, const Number* cosine,
                                     const Number* sine) {
    const D d;
    const TwoVectors<D> angles(d, cosine, sine);
    turn<T, kRounding>(d, a0, b0, angles.cosine1, angles.sine1);
    turn<T, kRounding>(d, a1, b1, angles.cosine2, angles.sine2);
  }

  // kCount rows at these steps, each with a root of its own. `to` may be `in`. To: T, or Number for
  // results that are not rounded.
  template <Store kStore, int kCount, typename To>
  HWY_ATTR HWY_INLINE void write(const T* in, int64_t in_step, To* to, int64_t to_step,
                                 const Number* roots, const Number* factor, const Number* cosine,
                                 const Number* sine) const {
    Rows<kCount, To> rows;
    unrolled<kCount>([&](auto j) POSENC_INLINED {
      rows.in[j] = in + j * in_step;
      rows.to[j] = to + j * to_step;
      rows.root[j] = hn::Set(D(), roots[j]);
    });
    for (int64_t dim = 0; dim < start_; dim += kChunk) copy<kStore>(rows, dim, factor);
    if constexpr (kInterleaved) {
      for (int64_t dim = start_; dim < end_; dim += kChunk) {
        turn_neighbours<kStore>(rows, dim, factor, cosine, sine);
        cosine += kAnglesOfChunk;
        sine += kAnglesOfChunk;
      }
    } else {
      for (int64_t dim = start_; dim < start_ + half_; dim += kChunk) {
        turn_partners<kStore>(rows, dim, factor, cosine, sine);
        cosine += kChunk;
        sine += kChunk;
      }
    }
    for (int64_t dim = end_; dim < dims_; dim += kChunk) copy<kStore>(rows, dim, factor);
  }

 private:
  template <int kCount, typename To>
  struct Rows {
    const T* in[kCount];
    To* to[kCount];
    V root[kCount];
  };

  template <Store kStore, typename To>
  static HWY_INLINE void store(V x0, V x1, To* to) {
    const D d;
    if constexpr (std::is_same_v<To, T>) {
      store_chunk<kStore, kInstructions>(x0, x1, d, to);
    } else if constexpr (kEvenOddChunks<T>) {
      hn::StoreInterleaved2(x0, x1, d, to);
    } else {
      store_twice<kStore>(x0, x1, d, to);
    }
  }

  // Of a chunk, in registers.
  struct Factors {
    V first, second;
    explicit HWY_INLINE Factors([[maybe_unused]] const Number* factor) {
      if constexpr (kMultiplies) {
        const D d;
        first = hn::LoadU(d, factor);
        second = hn::LoadU(d, factor + hn::Lanes(d));
      }
    }
    HWY_INLINE void scale(V& x0, V& x1, V root) const {
      if constexpr (kMultiplies) {
        x0 = hn::Mul(hn::Mul(x0, root), first);
        x1 = hn::Mul(hn::Mul(x1, root), second);
      }
    }
  };

  template <Store kStore, int kCount, typename To>
  static HWY_INLINE void copy(const Rows<kCount, To>& rows, int64_t dim, const Number* factor) {
    const D d;
    if constexpr (kMultiplies || !std::is_same_v<To, T>) {
      const Factors factors(factor + dim);
      unrolled<kCount>([&](auto j) POSENC_INLINED {
        V x0, x1;
        load_chunk(d, rows.in[j] + dim, x0, x1);
        factors.scale(x0, x1, rows.root[j]);
        store<kStore>(x0, x1, rows.to[j] + dim);
      });
    } else {  // bit for bit
      const hn::Repartition<Bits<T>, D> bits;
      unrolled<kCount>([&](auto j) POSENC_INLINED {
        for (int64_t i = dim; i < dim + kChunk; i += lanes(bits)) {
          const auto v = hn::LoadU(bits, reinterpret_cast<const Bits<T>*>(rows.in[j] + i));
          store_as<kStore>(v, bits, reinterpret_cast<Bits<T>*>(rows.to[j] + i));
        }
      });
    }
  }

  template <Store kStore, int kCount, typename To>
  HWY_INLINE void turn_partners(const Rows<kCount, To>& rows, int64_t dim, const Number* factor,
                                const Number* cosine, const Number* sine) const {
    const D d;
    const Factors of_a(factor + dim), of_b(factor + dim + half_);
    const TwoVectors<D> angles(d, cosine, sine);
    unrolled<kCount>([&](auto j) POSENC_INLINED {
      V a0, a1, b0, b1;
      load_chunk(d, rows.in[j] + dim, a0, a1);
      load_chunk(d, rows.in[j] + dim + half_, b0, b1);
      of_a.scale(a0, a1, rows.root[j]);
      of_b.scale(b0, b1, rows.root[j]);
      turn<T, kRounding>(d, a0, b0, angles.cosine1, angles.sine1);
      turn<T, kRounding>(d, a1, b1, angles.cosine2, angles.sine2);
      store<kStore>(a0, a1, rows.to[j] + dim);
      store<kStore>(b0, b1, rows.to[j] + dim + half_);
    });
  }

  template <Store kStore, int kCount, typename To>
  static HWY_INLINE void turn_neighbours(const Rows<kCount, To>& rows, int64_t dim,
                                         const Number* factor, const Number* cosine,
                                         const Number* sine) {
    const D d;
    const Factors factors(factor + dim);
    unrolled<kCount>([&](auto j) POSENC_INLINED {
      V x0, x1;
      load_chunk(d, rows.in[j] + dim, x0, x1);
      factors.scale(x0, x1, rows.root[j]);
      turn_chunk(x0, x1, cosine, sine);
      store<kStore>(x0, x1, rows.to[j] + dim);
    });
  }

  const int64_t start_, end_, dims_, half_;
};

// One head as Numbers in memory, padded with zeros to whole rounds of the sums.
template <typename Number>
class RowBuffer {
  using D = hn::ScalableTag<Number>;

 public:
  explicit RowBuffer(int64_t dims)
      : dims_(dims),
        padded_((dims + kPartialSums - 1) / kPartialSums * kPartialSums),
        numbers_(static_cast<size_t>(padded_), Number(0)) {}

  Number* data() { return numbers_.data(); }
  const Number* data() const { return numbers_.data(); }
  int64_t padded() const { return padded_; }

  template <typename T>
  HWY_ATTR void read(const T* in, int64_t step) {
    const D d;
    int64_t dim = 0;
    if (step == 1) {
      for (; dim + lanes(d) <= dims_; dim += lanes(d)) {
        hn::StoreU(load(d, in + dim), d, data() + dim);
      }
    }
    for (; dim < dims_; ++dim) {
      if constexpr (std::is_same_v<T, double>) {
        data()[dim] = in[dim * step];
      } else {
        data()[dim] = to_float(in[dim * step]);
      }
    }
  }

  // Rounded to the format of `to`, which has room for the padding.
  template <typename T>
  HWY_ATTR void round_to_row(T* to) const {
    const D d;
    for (int64_t dim = 0; dim < dims_; dim += lanes(d)) {
      store<Store::kOrdinary>(hn::LoadU(d, data() + dim), d, to + dim);
    }
  }

  HWY_ATTR void multiply(Number by) {
    const D d;
    const auto factor = hn::Set(d, by);
    for (int64_t dim = 0; dim < padded_; dim += lanes(d)) {
      hn::StoreU(hn::Mul(hn::LoadU(d, data() + dim), factor), d, data() + dim);
    }
  }

  // x = round(round(x r) factor), or without the roundings.
  template <typename T, bool kRoundFirst, bool kRound>
  HWY_ATTR void scale(Number r, const Number* factor) {
    const D d;
    const auto root = hn::Set(d, r);
    int64_t dim = 0;
    for (; dim + lanes(d) <= dims_; dim += lanes(d))
      scale_vector<T, kRoundFirst, kRound>(d, root, factor, dim);
    const hn::CappedTag<Number, 1> one;
    const auto one_root = hn::Set(one, r);
    for (; dim < dims_; ++dim) scale_vector<T, kRoundFirst, kRound>(one, one_root, factor, dim);
  }

  // Turns pairs of Numbers: `count` of them, neighbors from a on, their second partners from b on.
  template <typename T, Rounding kRounding, bool kBack>
  HWY_ATTR void turn_partners(int64_t a, int64_t b, int64_t count, const Number* cosine,
                              const Number* sine) {
    int64_t i = 0;
    const D d;
    for (; i + lanes(d) <= count; i += lanes(d)) {
      auto x = hn::LoadU(d, data() + a + i), y = hn::LoadU(d, data() + b + i);
      turn_vectors<T, kRounding, kBack>(d, x, y, cosine + i, sine + i);
      hn::StoreU(x, d, data() + a + i);
      hn::StoreU(y, d, data() + b + i);
    }
    for (; i < count; ++i) turn_pair<T, kRounding, kBack>(a + i, b + i, cosine + i, sine + i);
  }

  // The same of pairs of neighbors.
  template <typename T, Rounding kRounding, bool kBack>
  HWY_ATTR void turn_neighbours(int64_t first, int64_t count, const Number* cosine,
                                const Number* sine) {
    int64_t i = 0;
    const D d;
    for (; i + lanes(d) <= count; i += lanes(d)) {
      hn::Vec<D> x, y;
      hn::LoadInterleaved2(d, data() + first + 2 * i, x, y);
      turn_vectors<T, kRounding, kBack>(d, x, y, cosine + i, sine + i);
      hn::StoreInterleaved2(x, y, d, data() + first + 2 * i);
    }
    for (; i < count; ++i) {
      const int64_t at = first + 2 * i;
      turn_pair<T, kRounding, kBack>(at, at + 1, cosine + i, sine + i);
    }
  }

 private:
  template <typename T, bool kRoundFirst, bool kRound, class Tag>
  HWY_INLINE void scale_vector(Tag d, hn::Vec<Tag> root, const Number* factor, int64_t dim) {
    auto x = hn::Mul(hn::LoadU(d, data() + dim), root);
    if constexpr (kRoundFirst) x = rounded<T>(d, x);
    x = hn::Mul(x, hn::LoadU(d, factor + dim));
    if constexpr (kRound) x = rounded<T>(d, x);
    hn::StoreU(x, d, data() + dim);
  }

  template <typename T, Rounding kRounding, bool kBack, class Tag>
  static HWY_INLINE void turn_vectors(Tag d, hn::Vec<Tag>& x, hn::Vec<Tag>& y, const Number* cosine,
                                      const Number* sine) {
    auto s = hn::LoadU(d, sine);
    if constexpr (kBack) s = hn::Neg(s);
    turn<T, kRounding>(d, x, y, hn::LoadU(d, cosine), s);
    if constexpr (kRounding == Rounding::kAsWritten) {
      x = rounded<T>(d, x);
      y = rounded<T>(d, y);
    }
  }

  // By the same instructions, of one lane.
  template <typename T, Rounding kRounding, bool kBack>
  HWY_INLINE void turn_pair(int64_t a, int64_t b, const Number* cosine, const Number* sine) {
    const hn::CappedTag<Number, 1> d;
    auto x = hn::LoadU(d, data() + a), y = hn::LoadU(d, data() + b);
    turn_vectors<T, kRounding, kBack>(d, x, y, cosine, sine);
    hn::StoreU(x, d, data() + a);
    hn::StoreU(y, d, data() + b);
  }

  const int64_t dims_, padded_;
  std::vector<Number> numbers_;
};

// The rotation of rows in such buffers, of any head and pairing. T: the format of x.
template <typename T>
class BufferRotation {
  using Number = Real<T>;
  using Angles = RotaryAngles<Number, PairOrder::kNatural, 1>;

 public:
  // as_written: whether the call's rounding is done too; gradients are of what is not rounded.
  BufferRotation(const RotaryArgs& args, bool as_written) : args_(args), as_written_(as_written) {
    Angles::for_each_piece(args, args.half_block == 1,
                           [&](const Piece& piece) { pieces_.push_back(piece); });
    shared_ = pieces_.size() == 1 && args.angle_heads() == 1;
    if (shared_) angles_.enter(args, pieces_[0]);
  }

  // Goes to a token: computes what its heads share.
  HWY_ATTR void go_to(int64_t batch, int64_t token) {
    batch_ = batch;
    token_ = token;
    if (shared_) compute(args_, pieces_[0]);
  }

  // kBack: the transpose.
  template <bool kBack>
  HWY_ATTR void turn(RowBuffer<Number>& row, int64_t head) {
    if (shared_) return turn_piece<kBack>(row, pieces_[0]);
    const RotaryArgs of_head = args_.angle_heads() == 1 ? args_ : args_.of_head(head);
    for (const Piece& piece : pieces_) {
      angles_.enter(of_head, piece);
      compute(of_head, piece);
      turn_piece<kBack>(row, piece);
    }
  }

 private:
  static int64_t padded(int64_t length) {
    constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<Number>()));
    return (length + kLanes - 1) / kLanes * kLanes;
  }

  HWY_ATTR void compute(const RotaryArgs& args, const Piece& piece) {
    angles_.compute(args, piece, batch_, token_, 1);
    if (as_written_) angles_.template round_to<T>(1);
  }

  template <bool kBack>
  HWY_ATTR void turn_piece(RowBuffer<Number>& row, const Piece& piece) {
    if (as_written_) {
      turn_rounded<kBack, Rounding::kAsWritten>(row, piece);
    } else {
      turn_rounded<kBack, Rounding::kOnce>(row, piece);
    }
  }

  template <bool kBack, Rounding kRounding>
  HWY_ATTR void turn_rounded(RowBuffer<Number>& row, const Piece& piece) {
    const Number* cosine = angles_.cosine();
    const Number* sine = angles_.sine();
    const int64_t half = args_.half_block;
    if (half == 1) {
      row.template turn_neighbours<T, kRounding, kBack>(args_.start + 2 * piece.first, piece.length,
                                                        cosine, sine);
      return;
    }
    for (int64_t i = 0; i < piece.blocks; ++i) {
      const int64_t a = args_.start + 2 * half * (piece.block + i) + piece.first;
      row.template turn_partners<T, kRounding, kBack>(a, a + half, piece.length, cosine, sine);
      cosine += padded(piece.length);
      sine += padded(piece.length);
    }
  }

  const RotaryArgs& args_;
  const bool as_written_;
  bool shared_ = false;
  int64_t batch_ = 0, token_ = 0;
  std::vector<Piece> pieces_;
  Angles angles_;
};

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
