// Sums of squares and of products of the dims of a head, in the one order that core/norm_rotary.h
// describes: product and sum are rounded each, on targets with fused multiply-add too.

#pragma once

#include "core/norm_rotary.h"
#include "cpu/numbers-inl.h"
#include "cpu/unrolled-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A chunk: 2N neighboring numbers in two vectors, the even and the odd ones of bfloat16, and else
// the first and the second half.
template <typename T>
constexpr bool kEvenOddChunks = std::is_same_v<T, BFloat16>;

template <typename T, class D>
HWY_INLINE void load_chunk(D d, const T* from, hn::Vec<D>& x0, hn::Vec<D>& x1) {
  if constexpr (kEvenOddChunks<T>) {
    split_pairs(d, load_pairs(d, from), x0, x1);
  } else {
    load_twice(d, from, x0, x1);
  }
}

// kInstructions: as of store_even_odd.
template <Store kStore, bool kInstructions, typename T, class D>
HWY_INLINE void store_chunk(hn::Vec<D> x0, hn::Vec<D> x1, D d, T* to) {
  if constexpr (kEvenOddChunks<T>) {
    store_even_odd<kStore, kInstructions>(x0, x1, d, to);
  } else {
    store_twice<kStore>(x0, x1, d, to);
  }
}

// The last of a row's partial sums, in 16 bytes: their sum, by halves, is the row's.
template <typename Number>
using LastSumsTag = hn::CappedTag<Number, 16 / sizeof(Number)>;
template <typename Number>
using LastSums = hn::Vec<LastSumsTag<Number>>;

// Whether sums of pairs stay in their blocks of 16 bytes: AVX2 would take an instruction more for
// each to bring them in order, and the last sum is in order again.
template <typename T>
constexpr bool kPairsInBlocks = HWY_TARGET == HWY_AVX2 && !kEvenOddChunks<T>;

// Of a chunk's halves, p: p[2 i] + p[2 i + 1]; with kPairsInBlocks, of two blocks each,
//
//   first    p0 .. p3 │ p4 .. p7 ┐   ┌ q0 q1 q4 q5 │ q2 q3 q6 q7     4 numbers in a block
//   second   p8 .. pB │ pC .. pF ┘──►└ q0 q2 │ q1 q3                 2 of them
template <typename T, class D>
HWY_INLINE hn::Vec<D> pair_sums([[maybe_unused]] D d, hn::Vec<D> first, hn::Vec<D> second) {
  if constexpr (!kPairsInBlocks<T>) {
    return hn::Add(hn::ConcatEven(d, second, first), hn::ConcatOdd(d, second, first));
  } else {
#if HWY_TARGET == HWY_AVX2
    if constexpr (sizeof(hn::TFromD<D>) == 4) {
      const hn::Vec<D> even{_mm256_shuffle_ps(first.raw, second.raw, _MM_SHUFFLE(2, 0, 2, 0))};
      const hn::Vec<D> odd{_mm256_shuffle_ps(first.raw, second.raw, _MM_SHUFFLE(3, 1, 3, 1))};
      return hn::Add(even, odd);
    } else {
      return hn::Add(hn::InterleaveLower(d, first, second), hn::InterleaveUpper(d, first, second));
    }
#endif
  }
}

// v[i] + v[i + N / 2], as often as it takes.
template <class D>
HWY_INLINE LastSums<hn::TFromD<D>> halved_to_last(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<D>) > 16) {
    const hn::Half<D> half;
    return halved_to_last(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return v;
  }
}

// The same of sums of pairs.
template <typename T, class D>
HWY_INLINE LastSums<hn::TFromD<D>> pairs_to_last(D d, hn::Vec<D> v) {
  if constexpr (kPairsInBlocks<T>) {
    const hn::Half<D> half;
    const auto low = hn::LowerHalf(half, v), high = hn::UpperHalf(half, v);
    return hn::Add(hn::ConcatLowerLower(half, high, low), hn::ConcatUpperUpper(half, high, low));
  } else {
    return halved_to_last(d, v);
  }
}

template <typename Number>
HWY_INLINE Number sum_of_last(LastSums<Number> v) {
  const LastSumsTag<Number> d;
  if constexpr (sizeof(Number) == 4) v = hn::Add(v, hn::Shuffle1032(v));
  return hn::GetLane(hn::Add(v, hn::Reverse2(d, v)));
}

// 1 / sqrt(sum / count + eps) of each lane.
template <class D, typename Number = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> inverse_roots(D d, hn::Vec<D> sums, Number count, Number eps) {
  const auto mean = hn::Div(sums, hn::Set(d, count));
  return hn::Div(hn::Set(d, Number(1)), hn::Sqrt(hn::Add(mean, hn::Set(d, eps))));
}

template <typename Number>
HWY_INLINE Number inverse_root(Number sum, Number count, Number eps) {
  const hn::CappedTag<Number, 1> d;
  return hn::GetLane(inverse_roots(d, hn::Set(d, sum), count, eps));
}

// use(i, sums) for the sums of the rows i, i + 1 ... of four, whose latencies overlap.
template <typename Number, class Use>
HWY_INLINE void sums_of_four(const LastSums<Number>* last, const Use& use) {
  const LastSumsTag<Number> d;
  if constexpr (sizeof(Number) == 4) {
    const auto of01 = hn::Add(hn::ConcatLowerLower(d, last[1], last[0]),
                              hn::ConcatUpperUpper(d, last[1], last[0]));
    const auto of23 = hn::Add(hn::ConcatLowerLower(d, last[3], last[2]),
                              hn::ConcatUpperUpper(d, last[3], last[2]));
    use(0, hn::Add(hn::ConcatEven(d, of23, of01), hn::ConcatOdd(d, of23, of01)));
  } else {
    for (int i = 0; i < 4; i += 2) {
      use(i, hn::Add(hn::ConcatLowerLower(d, last[i + 1], last[i]),
                     hn::ConcatUpperUpper(d, last[i + 1], last[i])));
    }
  }
}

template <typename Number>
HWY_INLINE void inverse_roots_of_four(const LastSums<Number>* last, Number count, Number eps,
                                      Number* roots) {
  const LastSumsTag<Number> d;
  sums_of_four<Number>(last, [&](int i, LastSums<Number> sums) POSENC_INLINED {
    hn::StoreU(inverse_roots(d, sums, count, eps), d, roots + i);
  });
}

// The partial sums of a row, in registers.
template <typename T>
class PartialSums {
  using D = RealTag<T>;
  using V = hn::Vec<D>;

 public:
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  static constexpr int kChunk = 2 * kLanes;
  static constexpr int kChunks = kPartialSums / kChunk;  // of a round

  HWY_INLINE PartialSums() {
    const D d;
    unrolled<kChunks>([&](auto i) POSENC_INLINED { first_[i] = second_[i] = hn::Zero(d); });
  }

  // The products of a chunk, the i-th of its round.
  HWY_INLINE void add(int i, V x0, V x1, V y0, V y1) {
    first_[i] = hn::Add(first_[i], hn::Mul(x0, y0));
    second_[i] = hn::Add(second_[i], hn::Mul(x1, y1));
  }

  // The first ones: squares are not -0, and a sum with 0 gives their bits.
  HWY_INLINE void begin_squares(int i, V x0, V x1) {
    first_[i] = hn::Mul(x0, x0);
    second_[i] = hn::Mul(x1, x1);
  }

  HWY_INLINE LastSums<Real<T>> last() {
    [[maybe_unused]] const D d;
    V sums[kChunks];
    unrolled<kChunks>([&](auto i) POSENC_INLINED {
      if constexpr (kEvenOddChunks<T>) {
        sums[i] = hn::Add(first_[i], second_[i]);
      } else {
        sums[i] = pair_sums<T>(d, first_[i], second_[i]);
      }
    });
    return halved<kChunks>(sums);
  }

 private:
  template <int kCount>
  static HWY_INLINE LastSums<Real<T>> halved(V* sums) {
    if constexpr (kCount == 1) {
      return pairs_to_last<T>(D(), sums[0]);
    } else {
      unrolled<kCount / 2>(
          [&](auto i) POSENC_INLINED { sums[i] = hn::Add(sums[i], sums[i + kCount / 2]); });
      return halved<kCount / 2>(sums);
    }
  }

  V first_[kChunks], second_[kChunks];
};

// Of the squares of a row: neighbors, whole chunks of them.
template <typename T>
HWY_INLINE LastSums<Real<T>> sum_of_squares(const T* row, int64_t dims) {
  using Sums = PartialSums<T>;
  const RealTag<T> d;
  Sums sums;
  int64_t dim = 0;
  hn::Vec<RealTag<T>> x0, x1;
  if (dims >= kPartialSums) {
    unrolled<Sums::kChunks>([&](auto i) POSENC_INLINED {
      load_chunk(d, row + i * Sums::kChunk, x0, x1);
      sums.begin_squares(i, x0, x1);
    });
    dim = kPartialSums;
  }
  for (; dim + kPartialSums <= dims; dim += kPartialSums) {
    unrolled<Sums::kChunks>([&](auto i) POSENC_INLINED {
      load_chunk(d, row + dim + i * Sums::kChunk, x0, x1);
      sums.add(i, x0, x1, x0, x1);
    });
  }
  if (dim == dims) return sums.last();
  unrolled<Sums::kChunks>([&](auto i) POSENC_INLINED {
    if (dim + i * Sums::kChunk < dims) {
      load_chunk(d, row + dim + i * Sums::kChunk, x0, x1);
      sums.add(i, x0, x1, x0, x1);
    }
  });
  return sums.last();
}

// Of the products of two rows of Numbers, padded with zeros to whole rounds.
template <typename Number>
HWY_INLINE Number sum_of_products(const Number* a, const Number* b, int64_t padded) {
  using Sums = PartialSums<Number>;
  const RealTag<Number> d;
  Sums sums;
  for (int64_t dim = 0; dim < padded; dim += kPartialSums) {
    unrolled<Sums::kChunks>([&](auto i) POSENC_INLINED {
      hn::Vec<RealTag<Number>> x0, x1, y0, y1;
      load_chunk(d, a + dim + i * Sums::kChunk, x0, x1);
      load_chunk(d, b + dim + i * Sums::kChunk, y0, y1);
      sums.add(i, x0, x1, y0, y1);
    });
  }
  return sum_of_last<Number>(sums.last());
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
