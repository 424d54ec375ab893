// How a group of pairs is read, turned and written: one type for each number format and pairing.

#pragma once

#include <type_traits>

#include "cpu/numbers-inl.h"
#include "cpu/sincos-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How many times results are rounded to the format T of x: once, at the store, or after every
// product as well, as operations on tensors of T do it. kOnceByInstruction: once, to bfloat16, by
// instructions that the caller knows to be there. A parameter of the kernels, not a flag inside:
// products are rounded and widened again in registers.
enum class Rounding { kOnce, kOnceByInstruction, kAsWritten };

// Both halves of a pair group, a and b, turned by (c, s).
template <typename T, Rounding kRounding, class D, class V = hn::Vec<D>>
HWY_INLINE void turn(D d, V& a, V& b, V c, V s) {
  if constexpr (kRounding != Rounding::kAsWritten) {
    const V turned = hn::MulSub(a, c, hn::Mul(b, s));
    b = hn::MulAdd(b, c, hn::Mul(a, s));
    a = turned;
  } else {
    const V turned = hn::Sub(rounded<T>(d, hn::Mul(a, c)), rounded<T>(d, hn::Mul(b, s)));
    b = hn::Add(rounded<T>(d, hn::Mul(b, c)), rounded<T>(d, hn::Mul(a, s)));
    a = turned;
  }
}

// Cosines and sines of a group in registers: one vector of each, or two.
template <class D>
struct OneVector {
  hn::Vec<D> cosine, sine;
  static constexpr int kVectors = 1;
  HWY_INLINE OneVector(D d, const hn::TFromD<D>* c, const hn::TFromD<D>* s)
      : cosine(hn::Load(d, c)), sine(hn::Load(d, s)) {}
  HWY_INLINE OneVector(const hn::Vec<D>* c, const hn::Vec<D>* s) : cosine(c[0]), sine(s[0]) {}
};
template <class D>
struct TwoVectors {
  static constexpr int kVectors = 2;
  hn::Vec<D> cosine1, cosine2, sine1, sine2;
  HWY_INLINE TwoVectors(D d, const hn::TFromD<D>* c, const hn::TFromD<D>* s)
      : cosine1(hn::Load(d, c)),
        cosine2(hn::Load(d, c + hn::Lanes(d))),
        sine1(hn::Load(d, s)),
        sine2(hn::Load(d, s + hn::Lanes(d))) {}
  HWY_INLINE TwoVectors(const hn::Vec<D>* c, const hn::Vec<D>* s)
      : cosine1(c[0]), cosine2(c[1]), sine1(s[0]), sine2(s[1]) {}
};

// One group of pairs in a row. Its members:
//
//   - kNeighboursIn, kNeighboursOut: whether partners are neighbors where they are read, written
//   - kStreams: whether it can be written past the cache
//   - kOrder: how the group's angles lie in the scratch
//   - kVectors: registers that a group of one row takes
//   - kCopies: scratch numbers per pair, 2 where cosine and sine are written for both partners
//   - Angles: the group's cosines and sines in registers
//   - Group: its numbers as they are read; `far` are the second partners, unused for neighbors
//   - rotate: a Group -> out

template <bool kIn, bool kOut, bool kMayStream = true>
struct Partners {
  static constexpr bool kNeighboursIn = kIn, kNeighboursOut = kOut, kStreams = kMayStream;
};
using FarPartners = Partners<false, false>;
using NeighbouringPartners = Partners<true, true>;

// a0 a1 a2 ... aN-1 (far apart) b0 b1 b2 ... bN-1
template <typename T>
struct HalfRow : FarPartners {
  static constexpr PairOrder kOrder = PairOrder::kNatural;
  static constexpr size_t kCopies = 1;
  static constexpr int kVectors = 2;

  template <class D>
  using Angles = OneVector<D>;

  template <class D>
  struct Group {
    hn::Vec<D> a, b;
    HWY_INLINE void read(D d, const T* in, const T* far) {
      a = load(d, in);
      b = load(d, far);
    }
  };

  template <Store kStore, Rounding kRounding, class D>
  static HWY_INLINE void rotate(D d, Group<D>& group, T* out, T* far, const Angles<D>& angles) {
    auto a = group.a, b = group.b;
    turn<T, kRounding>(d, a, b, angles.cosine, angles.sine);
    store<kStore>(a, d, out);
    store<kStore>(b, d, far);
  }
};

// The same with 2N pairs, read as even and odd ones.
template <>
struct HalfRow<BFloat16> : FarPartners {
  static constexpr PairOrder kOrder = PairOrder::kEvenOdd;
  static constexpr size_t kCopies = 1;
  static constexpr int kVectors = 2;

  template <class D>
  using Angles = TwoVectors<D>;

  template <class D>
  struct Group {
    hn::Vec<hn::RebindToUnsigned<D>> a, b;
    HWY_INLINE void read(D d, const BFloat16* in, const BFloat16* far) {
      a = load_pairs(d, in);
      b = load_pairs(d, far);
    }
  };

  template <Store kStore, Rounding kRounding, class D>
  static HWY_INLINE void rotate(D d, Group<D>& group, BFloat16* out, BFloat16* far,
                                const Angles<D>& angles) {
    hn::Vec<D> a_even, a_odd, b_even, b_odd;
    split_pairs(d, group.a, a_even, a_odd);
    split_pairs(d, group.b, b_even, b_odd);
    turn<BFloat16, kRounding>(d, a_even, b_even, angles.cosine1, angles.sine1);
    turn<BFloat16, kRounding>(d, a_odd, b_odd, angles.cosine2, angles.sine2);
    store_even_odd<kStore, kRounding == Rounding::kOnceByInstruction>(a_even, a_odd, d, out);
    store_even_odd<kStore, kRounding == Rounding::kOnceByInstruction>(b_even, b_odd, d, far);
  }
};

// 2N pairs, converted as they are read, from neighbors or from afar, and written as either.
template <typename T, bool kIn, bool kOut>
struct ConvertedRow : Partners<kIn, kOut, !kOut || std::is_same_v<T, BFloat16>> {
  static constexpr PairOrder kOrder = PairOrder::kTwice;
  static constexpr size_t kCopies = 1;
  static constexpr int kVectors = 4;

  template <class D>
  using Angles = TwoVectors<D>;

  template <class D>
  struct Group {
    hn::Vec<D> a_low, a_high, b_low, b_high;
    HWY_INLINE void read(D d, const T* in, [[maybe_unused]] const T* far) {
      if constexpr (kIn) {
        load_split(d, in, a_low, b_low);
        load_split(d, in + 2 * hn::Lanes(d), a_high, b_high);
      } else {
        load_twice(d, in, a_low, a_high);
        load_twice(d, far, b_low, b_high);
      }
    }
  };

  template <Store kStore, Rounding kRounding, class D>
  static HWY_INLINE void rotate(D d, Group<D>& group, T* out, [[maybe_unused]] T* far,
                                const Angles<D>& angles) {
    turn<T, kRounding>(d, group.a_low, group.b_low, angles.cosine1, angles.sine1);
    turn<T, kRounding>(d, group.a_high, group.b_high, angles.cosine2, angles.sine2);
    if constexpr (kOut) {
      store_joined<kStore>(group.a_low, group.b_low, d, out);
      store_joined<kStore>(group.a_high, group.b_high, d, out + 2 * hn::Lanes(d));
    } else {
      store_twice<kStore>(group.a_low, group.a_high, d, out);
      store_twice<kStore>(group.b_low, group.b_high, d, far);
    }
  }
};

template <>
struct HalfRow<Float16> : ConvertedRow<Float16, false, false> {};

// Pairs that move: neighbors where they are read, or where they are written.
template <typename T>
using SplitRow = ConvertedRow<T, true, false>;
template <typename T>
using JoinRow = ConvertedRow<T, false, true>;

// a0 b0 a1 b1 a2 b2 ...; scratch holds c0 c0 c1 c1 ... and -s0 s0 -s1 s1 ...
template <typename T>
struct InterleavedRow : NeighbouringPartners {
  static constexpr PairOrder kOrder = PairOrder::kInterleave;
  static constexpr size_t kCopies = 2;
  static constexpr int kVectors = 2;

  template <class D>
  using Angles = TwoVectors<D>;

  template <class D>
  struct Group {
    hn::Vec<D> low, high;
    HWY_INLINE void read(D d, const T* in, const T* /*far*/) { load_twice(d, in, low, high); }
  };

  template <Store kStore, Rounding kRounding, class D>
  static HWY_INLINE void rotate(D d, Group<D>& group, T* out, T* /*far*/, const Angles<D>& angles) {
    store_twice<kStore>(turned<T, kRounding>(d, group.low, angles.cosine1, angles.sine1),
                        turned<T, kRounding>(d, group.high, angles.cosine2, angles.sine2), d, out);
  }

  template <typename Format, Rounding kRounding, class D, class V = hn::Vec<D>>
  static HWY_INLINE V turned(D d, V x, V c, V s) {
    const V other = hn::Mul(hn::Reverse2(d, x), s);
    if constexpr (kRounding != Rounding::kAsWritten) return hn::MulAdd(x, c, other);
    return hn::Add(rounded<Format>(d, hn::Mul(x, c)), rounded<Format>(d, other));
  }
};

// bfloat16 pairs are the halves of 32-bit lanes: no shuffle.
template <>
struct InterleavedRow<BFloat16> : NeighbouringPartners {
  static constexpr PairOrder kOrder = PairOrder::kNatural;
  static constexpr size_t kCopies = 1;
  static constexpr int kVectors = 1;

  template <class D>
  using Angles = OneVector<D>;

  template <class D>
  struct Group {
    hn::Vec<hn::RebindToUnsigned<D>> pairs;
    HWY_INLINE void read(D d, const BFloat16* in, const BFloat16* /*far*/) {
      pairs = load_pairs(d, in);
    }
  };

  template <Store kStore, Rounding kRounding, class D>
  static HWY_INLINE void rotate(D d, Group<D>& group, BFloat16* out, BFloat16* /*far*/,
                                const Angles<D>& angles) {
    hn::Vec<D> a, b;
    split_pairs(d, group.pairs, a, b);
    turn<BFloat16, kRounding>(d, a, b, angles.cosine, angles.sine);
    store_even_odd<kStore, kRounding == Rounding::kOnceByInstruction>(a, b, d, out);
  }
};

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
