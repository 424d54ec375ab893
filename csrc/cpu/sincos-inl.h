// Phases, sines and cosines of csrc/core/phase.h on vectors: the same algorithm, step by step, and
// the same bits where the target has fused multiply-add.

#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/angles.h"
#include "core/phase.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// High 64 bits of the 128-bit products, from four 32-bit ones.
template <class DU>
HWY_INLINE hn::Vec<DU> multiply_high(DU du, hn::Vec<DU> a, hn::Vec<DU> b) {
  const hn::Repartition<uint32_t, DU> du32;
  const auto half = [&](hn::Vec<DU> v) HWY_ATTR { return hn::BitCast(du32, v); };
  const auto mask = hn::Set(du, 0xffffffffu);
  const auto a_high = hn::ShiftRight<32>(a), b_high = hn::ShiftRight<32>(b);
  const auto low = hn::MulEven(half(a), half(b));
  const auto cross1 = hn::Add(hn::MulEven(half(a_high), half(b)), hn::ShiftRight<32>(low));
  const auto cross2 = hn::Add(hn::MulEven(half(a), half(b_high)), hn::And(cross1, mask));
  return hn::Add(hn::MulEven(half(a_high), half(b_high)),
                 hn::Add(hn::ShiftRight<32>(cross1), hn::ShiftRight<32>(cross2)));
}

// The position of one token, for all pairs or (kPerPair, multi-axis rotary) pair by pair.
template <bool kPerPair>
struct TokenPosition {
  Position all;
  const int64_t* integer;  // [pairs], in the order of the frequencies
  const uint64_t* fraction;
};

// Phases of the lanes from `i` on. kFraction: some position has a fractional part.
template <bool kPerPair, bool kFraction, class DU>
HWY_INLINE hn::Vec<DU> phases(DU du, const TokenPosition<kPerPair>& position,
                              const Frequencies& frequencies, size_t i) {
  const auto frequency = hn::LoadU(du, frequencies.fraction + i);
  const auto integer = kPerPair
                           ? hn::LoadU(du, reinterpret_cast<const uint64_t*>(position.integer) + i)
                           : hn::Set(du, static_cast<uint64_t>(position.all.integer));
  auto phase = hn::Mul(integer, frequency);
  if (kFraction) {
    const auto fraction =
        kPerPair ? hn::LoadU(du, position.fraction + i) : hn::Set(du, position.all.fraction);
    const auto whole = hn::LoadU(du, frequencies.whole + i);
    phase =
        hn::Add(phase, hn::Add(multiply_high(du, fraction, frequency), hn::Mul(fraction, whole)));
  }
  return phase;
}

// Horner's rule from the coefficient kTerm - 1 down to 0. Recursive, because at -O2 a loop stays
// one.
template <class C, int kTerm, class D>
HWY_INLINE hn::Vec<D> sine_terms(D d, hn::Vec<D> y, hn::Vec<D> sum) {
  if constexpr (kTerm == 0) {
    return sum;
  } else {
    constexpr auto coefficient = C::sine(kTerm - 1);
    return sine_terms<C, kTerm - 1>(d, y, hn::MulAdd(sum, y, hn::Set(d, coefficient)));
  }
}
template <class C, int kTerm, class D>
HWY_INLINE hn::Vec<D> cosine_terms(D d, hn::Vec<D> y, hn::Vec<D> sum) {
  if constexpr (kTerm == 0) {
    return sum;
  } else {
    constexpr auto coefficient = C::cosine(kTerm - 1);
    return cosine_terms<C, kTerm - 1>(d, y, hn::MulAdd(sum, y, hn::Set(d, coefficient)));
  }
}

template <class D, class C = SinCosCoefficients<hn::TFromD<D>>>
HWY_INLINE void polynomials(D d, hn::Vec<D> t, hn::Vec<D>& sine, hn::Vec<D>& cosine) {
  const auto y = hn::Mul(t, t);
  constexpr auto first_sine = C::sine(C::kSineTerms - 1);
  constexpr auto first_cosine = C::cosine(C::kCosineTerms - 1);
  sine = sine_terms<C, C::kSineTerms - 1>(d, y, hn::Set(d, first_sine));
  sine = hn::MulAdd(sine, y, hn::Set(d, C::kTauLow));
  sine = hn::MulAdd(t, hn::Set(d, C::kTauHigh), hn::Mul(t, sine));
  cosine = cosine_terms<C, C::kCosineTerms - 1>(d, y, hn::Set(d, first_cosine));
  cosine = hn::MulAdd(cosine, y, hn::Set(d, hn::TFromD<D>(1)));
}

// v, negated where the top bit of `words` is set.
template <class D, class DU = hn::RebindToUnsigned<D>>
HWY_INLINE hn::Vec<D> negate_where(D d, hn::Vec<DU> words, hn::Vec<D> v) {
  const DU du;
  constexpr int kBits = sizeof(hn::TFromD<D>) * 8;
  const auto sign = hn::Set(du, hn::TFromD<DU>(1) << (kBits - 1));
#if HWY_TARGET <= HWY_AVX3
  if constexpr (sizeof(v.raw) == 64) {  // in one instruction
    return hn::BitCast(d, hn::Vec<DU>{_mm512_ternarylogic_epi64(hn::BitCast(du, v).raw, words.raw,
                                                                sign.raw, 0x78)});
  }
#endif
  return hn::Xor(v, hn::BitCast(d, hn::And(words, sign)));
}

// Exchanges and negates sine and cosine as the quadrant says; it is the top two bits of each lane.
template <class D, class DU = hn::RebindToUnsigned<D>>
HWY_INLINE void turn_quadrant(D d, hn::Vec<DU> quadrant, hn::Vec<D>& sine, hn::Vec<D>& cosine) {
  // A quarter turn is (c, -s), half a turn negates both.
#if HWY_TARGET <= HWY_AVX3
  const DU du;
  constexpr int kBits = sizeof(hn::TFromD<D>) * 8;
  const auto odd =
      hn::RebindMask(d, hn::TestBit(quadrant, hn::Set(du, hn::TFromD<DU>(1) << (kBits - 2))));
  const auto s = hn::IfThenElse(odd, cosine, sine);
  const auto c = hn::IfThenElse(odd, hn::Neg(sine), cosine);
#else
  const auto odd = hn::BitCast(d, hn::ShiftLeft<1>(quadrant));
  const auto s = hn::IfNegativeThenElse(odd, cosine, sine);
  const auto c = hn::IfNegativeThenElse(odd, hn::Neg(sine), cosine);
#endif
  sine = negate_where(d, quadrant, s);
  cosine = negate_where(d, quadrant, c);
}

// --- Phases in the words that the polynomials take
//
// For float32: rounded to 2^-32 turn and moved by an eighth of a turn, so that the top two bits are
// the quadrant; and, signed, what the rounding left over. For float64 one word, moved.

template <class D, bool kSingle = sizeof(hn::TFromD<D>) == 4>
struct Phases {
  hn::Vec<hn::RebindToUnsigned<D>> rounded;
  hn::Vec<hn::RebindToSigned<D>> rest;
};
template <class D>
struct Phases<D, false> {
  hn::Vec<hn::RebindToUnsigned<D>> moved;
};

// What is added to a phase; its carry into the upper 32 bits rounds them.
template <class D>
constexpr uint64_t kMoved =
    (uint64_t{1} << 61) + (sizeof(hn::TFromD<D>) == 4 ? uint64_t{1} << 31 : 0);

// Neighboring phases.
template <class D>
HWY_INLINE Phases<D> phases_from(D /*d*/, const uint64_t* from) {
  const hn::Repartition<uint64_t, D> du64;
  const auto move = hn::Set(du64, kMoved<D>);
  const auto phase0 = hn::LoadU(du64, from);
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const hn::RebindToUnsigned<D> du32;
    const hn::RebindToSigned<D> di32;
    const auto phase1 = hn::LoadU(du64, from + hn::Lanes(du64));
    return {hn::ConcatOdd(du32, hn::BitCast(du32, hn::Add(phase1, move)),
                          hn::BitCast(du32, hn::Add(phase0, move))),
            hn::ConcatEven(di32, hn::BitCast(di32, phase1), hn::BitCast(di32, phase0))};
  } else {
    return {hn::Add(phase0, move)};
  }
}

// The lanes from `i` on at a position; `moved` is kMoved, or 0 for the difference of two phases.
template <bool kPerPair, bool kFraction, class D>
HWY_INLINE Phases<D> phases_at(D /*d*/, const TokenPosition<kPerPair>& position,
                               const Frequencies& frequencies, size_t i,
                               uint64_t moved = kMoved<D>) {
  const hn::Repartition<uint64_t, D> du64;
  const auto move = hn::Set(du64, moved);
  const auto phase0 = phases<kPerPair, kFraction>(du64, position, frequencies, i);
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const hn::RebindToUnsigned<D> du32;
    const hn::RebindToSigned<D> di32;
    const auto phase1 =
        phases<kPerPair, kFraction>(du64, position, frequencies, i + hn::Lanes(du64));
    return {hn::ConcatOdd(du32, hn::BitCast(du32, hn::Add(phase1, move)),
                          hn::BitCast(du32, hn::Add(phase0, move))),
            hn::ConcatEven(di32, hn::BitCast(di32, phase1), hn::BitCast(di32, phase0))};
  } else {
    return {hn::Add(phase0, move)};
  }
}

// The next position's: integers that wrap, as the product does.
template <class D>
HWY_INLINE Phases<D> add(D /*d*/, const Phases<D>& phase, const Phases<D>& step) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const hn::RebindToUnsigned<D> du32;
    const auto rest = hn::Add(phase.rest, step.rest);
    const auto carry = hn::RebindMask(du32, hn::Lt(rest, phase.rest));
    const auto rounded = hn::Add(phase.rounded, step.rounded);
#if HWY_TARGET <= HWY_AVX3
    return {hn::IfThenElse(carry, hn::Add(rounded, hn::Set(du32, 1)), rounded), rest};
#else  // there a mask is a vector of -1 and 0
    return {hn::Sub(rounded, hn::VecFromMask(du32, carry)), rest};
#endif
  } else {
    return {hn::Add(phase.moved, step.moved)};
  }
}

// In memory a lane's phase takes so many words, 8 bytes.
template <class D>
using PhaseWord = hn::TFromD<hn::RebindToUnsigned<D>>;
template <class D>
constexpr size_t kPhaseWords = 8 / sizeof(PhaseWord<D>);

template <class D>
HWY_INLINE Phases<D> load_phases(D d, const PhaseWord<D>* from) {
  const hn::RebindToUnsigned<D> du;
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return {hn::Load(du, from),
            hn::BitCast(hn::RebindToSigned<D>(), hn::Load(du, from + hn::Lanes(d)))};
  } else {
    return {hn::Load(du, from)};
  }
}

template <class D>
HWY_INLINE void store_phases(D d, const Phases<D>& phase, PhaseWord<D>* to) {
  const hn::RebindToUnsigned<D> du;
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    hn::Store(phase.rounded, du, to);
    hn::Store(hn::BitCast(du, phase.rest), du, to + hn::Lanes(d));
  } else {
    hn::Store(phase.moved, du, to);
  }
}

// Valid: every phase. Error: at most 9e-8 (float32), 3e-16 (float64), absolute; relative near
// zeros.
template <class D>
HWY_INLINE void sincos(D d, const Phases<D>& phase, hn::Vec<D>& sine, hn::Vec<D>& cosine) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const auto high = hn::Sub(hn::BitCast(di, hn::And(phase.rounded, hn::Set(du, 0x3fffffff))),
                              hn::Set(di, 1 << 29));
    const auto t = hn::MulAdd(hn::ConvertTo(d, phase.rest), hn::Set(d, 5.42101086e-20f),
                              hn::Mul(hn::ConvertTo(d, high), hn::Set(d, 2.32830644e-10f)));
    polynomials(d, t, sine, cosine);
    turn_quadrant(d, phase.rounded, sine, cosine);
  } else {
    const auto offset =
        hn::Sub(hn::BitCast(di, hn::And(phase.moved, hn::Set(du, (uint64_t{1} << 62) - 1))),
                hn::Set(di, int64_t{1} << 61));
    const auto t = hn::Mul(hn::ConvertTo(d, offset), hn::Set(d, 5.421010862427522e-20));
    polynomials(d, t, sine, cosine);
    turn_quadrant(d, phase.moved, sine, cosine);
  }
}

// Sine and cosine for the pairs i .. i + N - 1.
template <bool kPerPair, bool kFraction, class D>
HWY_INLINE void sincos(D d, const TokenPosition<kPerPair>& position, const Frequencies& frequencies,
                       size_t i, hn::Vec<D>& sine, hn::Vec<D>& cosine) {
  sincos(d, phases_at<kPerPair, kFraction>(d, position, frequencies, i), sine, cosine);
}

// The angle of `anchor` and that of `step` in one: see csrc/core/phase.h.
template <class D>
HWY_INLINE void turn(hn::Vec<D> step_sine, hn::Vec<D> step_cosine, D /*d*/, hn::Vec<D>& sine,
                     hn::Vec<D>& cosine) {
  const auto s = hn::MulAdd(cosine, step_sine, hn::Mul(sine, step_cosine));
  cosine = hn::NegMulAdd(sine, step_sine, hn::Mul(cosine, step_cosine));
  sine = s;
}

// --- Orders of the pairs within a group of lanes
//
// The frequencies of a group are laid out once so that the sines and cosines come out in the order
// that the stores want, and no lane ever crosses a vector for it.

enum class PairOrder {
  kNatural,  // lane l is pair l
  // InterleaveLower(s, c), InterleaveUpper(s, c) are pairs 0 .. N/2-1 and N/2 .. N-1:
  // both work in blocks of 16 bytes.
  kInterleave,
  kEvenOdd,  // a group of 2N: the even pairs, then the odd ones (split_pairs)
  kTwice,    // a group of 2N as they are (load_twice)
};

// All targets have vectors of known size: Lanes is MaxLanes.
template <class D>
constexpr size_t group_size(D d, PairOrder order) {
  const bool twice = order == PairOrder::kEvenOdd || order == PairOrder::kTwice;
  return (twice ? 2 : 1) * hn::MaxLanes(d);
}

// The pair, within its group, of position l.
template <class D>
HWY_INLINE size_t pair_of_lane(D d, PairOrder order, size_t l) {
  const size_t lanes = hn::Lanes(d);
  if (order == PairOrder::kInterleave) {
    const size_t block = 16 / sizeof(hn::TFromD<D>), half = block / 2;
    const size_t within = l % block, upper = within / half;
    return upper * (lanes / 2) + (l / block) * half + within % half;
  }
  if (order == PairOrder::kEvenOdd) return l < lanes ? 2 * l : 2 * (l - lanes) + 1;
  return l;
}

// Copies the frequencies of `count` pairs, padded with zeros to whole groups; returns their number.
template <class D>
size_t arrange_frequencies(D d, PairOrder order, const Frequencies& from, size_t count,
                           uint64_t* fraction, uint64_t* whole) {
  const size_t group = group_size(d, order);
  const size_t padded = (count + group - 1) / group * group;
  if (order == PairOrder::kNatural || order == PairOrder::kTwice) {
    const std::pair<const uint64_t*, uint64_t*> both[] = {{from.fraction, fraction},
                                                          {from.whole, whole}};
    for (const auto& [given, to] : both) std::fill(std::copy_n(given, count, to), to + padded, 0);
    return padded;
  }
  for (size_t i = 0; i < padded; ++i) {
    const size_t pair = i / group * group + pair_of_lane(d, order, i % group);
    fraction[i] = pair < count ? from.fraction[pair] : 0;
    whole[i] = pair < count ? from.whole[pair] : 0;
  }
  return padded;
}

// Likewise for the position of every pair, from the axis that drives it. `first` is the pair that
// position 0 stands for. Returns whether any is fractional.
template <class D>
bool arrange_positions(D d, PairOrder order, const Positions& positions, const AxisMap& axis_map,
                       int64_t offset, size_t first, size_t count, int64_t* integer,
                       uint64_t* fraction) {
  const size_t group = group_size(d, order);
  const size_t padded = (count + group - 1) / group * group;
  bool fractional = false;
  for (size_t i = 0; i < padded; ++i) {
    const size_t pair = i / group * group + pair_of_lane(d, order, i % group);
    if (pair >= count) {
      integer[i] = 0;
      fraction[i] = 0;
      continue;
    }
    // Checked, but another thread may have written to it since.
    const int64_t axis = axis_map.clamped(static_cast<int64_t>(first + pair));
    const Position p = positions.at(offset + axis * positions.axis_stride);
    integer[i] = p.integer;
    fraction[i] = p.fraction;
    fractional = fractional || p.fraction != 0;
  }
  return fractional;
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
