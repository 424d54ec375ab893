// Steps summed to phases: each becomes an integer, which is added to the sum of its column.
//
//   steps of a token  p0 p1 p2 ...      sums  += turns(step), and there is the token's phase
//
// A step of float32 or less becomes turns in float64. 1 / (2 pi) times 2^64 is a float64 c1 and a
// rest c2. The product with c1 is a float64 p and what that lacks, exactly:
//
//   p                            whole numbers of 2^32, and below them whole numbers and a rest
//   step * c1 - p + step * c2                                                           a rest
//
// Both rests are rounded together, once. Their sum is off by less than 2^-35 there, and no float32
// from 2^-64 to 2^8 comes nearer than 2^-31 to the middle between two integers (all were tried:
// benchmarks/studies/turns_of_steps.py): so it is the nearest integer, bit for bit what
// core/phase.h has. Larger steps and float64 go its way.
//
// A step of 16 bits has at most 11 of them in its number, so that step times 42 bits is exact and
// two parts do. tests/encodings/selective/test_phases.py tries every float16 and bfloat16.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/half.h"
#include "core/phase.h"
#include "core/phases.h"
#include "core/visit_type.h"
#include "cpu/elements-inl.h"
#include "cpu/numbers-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Below it the products in float64 are exact enough.
constexpr float kMostOnVectors = 256.0f;

template <typename T>
uint64_t turns_of(T step) {
  if constexpr (sizeof(T) == 8) {
    return turns_from_radians(to_binary(step)).fraction;
  } else {
    return turns_from_radians(to_binary(to_float(step))).fraction;
  }
}

// Added to a number below 2^51, kMagic leaves the nearest integer in the lowest bits. kHighMagic
// leaves the nearest multiple of 2^32, and takes away there what the bits of kMagic add.
constexpr double kMagic = 0x1.8p52;
constexpr double kHighMagic = 0x1.8p84 + 0xbcc80000 * 0x1p32;

// 2^64 / (2 pi) is kTurns and kTurnsRest; kTurns is kTurnsHigh, of 27 bits, and kTurnsLow.
constexpr double kTurns = 0x1.45f306dc9c883p+61, kTurnsRest = -0x1.6b01ec5417056p+7;
constexpr double kTurnsHigh = 683565272.0 * 0x1p32, kTurnsLow = kTurns - kTurnsHigh;

// What `product` lacks of step * kTurns, exactly, for steps of at most 24 bits.
template <class D>
HWY_INLINE hn::Vec<D> product_lacks(D d, hn::Vec<D> step, hn::Vec<D> product) {
#if HWY_NATIVE_FMA
  return hn::MulSub(step, hn::Set(d, kTurns), product);
#else  // both products are exact, and so is each sum
  const auto high = hn::Sub(hn::Mul(step, hn::Set(d, kTurnsHigh)), product);
  return hn::Add(high, hn::Mul(step, hn::Set(d, kTurnsLow)));
#endif
}

// Turns times 2^64 of steps of at most 24 bits, below kMostOnVectors.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> turns_of(D d, hn::Vec<D> step) {
  const hn::RebindToUnsigned<D> du;
  const auto magic = hn::Set(d, kMagic), high_magic = hn::Set(d, kHighMagic);
  const auto product = hn::Mul(step, hn::Set(d, kTurns));
  const auto lacks = hn::MulAdd(step, hn::Set(d, kTurnsRest), product_lacks(d, step, product));
  const auto high = hn::Add(product, high_magic);
  const auto below = hn::Sub(product, hn::Sub(high, high_magic));  // exact
  const auto whole = hn::Add(below, magic);
  const auto rest = hn::Sub(below, hn::Sub(whole, magic));  // exact
  const auto low = hn::Add(whole, hn::Add(rest, lacks));
  return hn::Add(hn::ShiftLeft<32>(hn::BitCast(du, high)), hn::BitCast(du, low));
}

// The same of steps of at most 11 bits.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> turns_of_short(D d, hn::Vec<D> step) {
  const hn::RebindToUnsigned<D> du;
  const auto magic = hn::Set(d, kMagic), high_magic = hn::Set(d, kHighMagic);
  const auto c1 = hn::Set(d, 2799883368761.0 * 0x1p20), c2 = hn::Set(d, 0x1.054a7f09d5f48p+16);
  const auto high = hn::MulAdd(step, c1, high_magic);
  const auto below = hn::MulSub(step, c1, hn::Sub(high, high_magic));  // exact
  const auto low = hn::Add(hn::MulAdd(step, c2, below), magic);
  return hn::Add(hn::ShiftLeft<32>(hn::BitCast(du, high)), hn::BitCast(du, low));
}

// Neighboring columns of a token.
template <Sum kSum, class DU>
HWY_INLINE void add(DU du, hn::Vec<DU> turns, uint64_t* sums, uint64_t* phases) {
  const auto before = hn::LoadU(du, sums);
  if constexpr (kSum == Sum::kBackwards) {
    hn::StoreU(before, du, phases);
    hn::StoreU(hn::Sub(before, turns), du, sums);
  } else {
    const auto sum = hn::Add(before, turns);
    hn::StoreU(sum, du, sums);
    if constexpr (kSum == Sum::kForwards) hn::StoreU(sum, du, phases);
  }
}

template <Sum kSum>
HWY_INLINE void add(uint64_t turns, uint64_t& sum, uint64_t* phase) {
  if constexpr (kSum == Sum::kBackwards) {
    *phase = sum;
    sum -= turns;
  } else {
    sum += turns;
    if constexpr (kSum == Sum::kForwards) *phase = sum;
  }
}

template <typename T, Sum kSum>
HWY_NOINLINE void add_one_by_one(const T* steps, int64_t count, uint64_t* sums, uint64_t* phases) {
  for (int64_t i = 0; i < count; ++i) add<kSum>(turns_of(steps[i]), sums[i], phases + i);
}

// Whole vectors, up to one with a step for which they are not exact: how many columns that is. It
// calls nothing, so that constants stay in registers.
template <typename T, Sum kSum>
HWY_NOINLINE HWY_ATTR int64_t add_vectors(const T* steps, int64_t count, uint64_t* sums,
                                          uint64_t* phases) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<double> d64;
  const hn::RebindToUnsigned<decltype(d64)> du64;
  const hn::Half<decltype(d)> half;
  const int64_t step = lanes(d), wide = lanes(d64);
  const auto turns = [&](hn::Vec<decltype(half)> some) HWY_ATTR {
    const auto wide_steps = hn::PromoteTo(d64, some);
    if constexpr (sizeof(T) == 2) {
      return turns_of_short(d64, wide_steps);
    } else {
      return turns_of(d64, wide_steps);
    }
  };
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    const auto radians = load(d, steps + i);
    if (!hn::AllTrue(d, hn::Lt(hn::Abs(radians), hn::Set(d, kMostOnVectors)))) break;
    const auto low = turns(hn::LowerHalf(half, radians));
    const auto high = turns(hn::UpperHalf(half, radians));
    add<kSum>(du64, low, sums + i, phases + i);
    add<kSum>(du64, high, sums + i + wide, phases + i + wide);
  }
  return i;
}

template <typename T, Sum kSum>
HWY_ATTR void sum_columns(const T* steps, int64_t count, uint64_t* sums, uint64_t* phases) {
  int64_t i = 0;
  if constexpr (sizeof(T) != 8) {
    const int64_t step = lanes(hn::ScalableTag<float>());
    while (i + step <= count) {
      i += add_vectors<T, kSum>(steps + i, count - i, sums + i, phases + i);
      if (i + step > count) break;
      add_one_by_one<T, kSum>(steps + i, step, sums + i, phases + i);
      i += step;
    }
  }
  add_one_by_one<T, kSum>(steps + i, count - i, sums + i, phases + i);
}

template <typename T, Sum kSum>
HWY_ATTR void sum_block(const StepBlock& block, uint64_t* sums, uint64_t* phases, int64_t stride) {
  constexpr int64_t kApart = 256;  // columns collected at a time
  const bool neighbors = block.pair_stride == 1 || block.pairs == 1;
  const bool joined = neighbors && (block.head_stride == block.pairs || block.heads == 1);
  const int64_t heads = joined ? 1 : block.heads;
  const int64_t pairs = joined ? block.columns() : block.pairs;
  for (int64_t i = 0; i < block.tokens; ++i) {
    const int64_t token = kSum == Sum::kBackwards ? block.tokens - 1 - i : i;
    const T* from = static_cast<const T*>(block.steps) + token * block.token_stride;
    // Of totals nothing is written.
    uint64_t* const to = kSum == Sum::kTotals ? sums : phases + token * stride;
    for (int64_t head = 0; head < heads; ++head, from += block.head_stride) {
      const int64_t first = head * pairs;
      if (neighbors) {
        sum_columns<T, kSum>(from, pairs, sums + first, to + first);
        continue;
      }
      for (int64_t pair = 0; pair < pairs; pair += kApart) {
        const int64_t count = std::min(kApart, pairs - pair);
        T collected[kApart];
        collect(from + pair * block.pair_stride, block.pair_stride, count, collected);
        sum_columns<T, kSum>(collected, count, sums + first + pair, to + first + pair);
      }
    }
  }
}

template <typename T>
HWY_ATTR bool are_angles(const StepBlock& block) {
  const RealTag<T> d;
  const auto most = hn::Set(d, static_cast<Real<T>>(kMaxStep));
  const bool neighbors = block.pair_stride == 1;
  const bool joined = neighbors && block.head_stride == block.pairs;
  const int64_t heads = joined ? 1 : block.heads;
  const int64_t pairs = joined ? block.columns() : block.pairs;
  for (int64_t token = 0; token < block.tokens; ++token) {
    const T* from = static_cast<const T*>(block.steps) + token * block.token_stride;
    for (int64_t head = 0; head < heads; ++head, from += block.head_stride) {
      int64_t i = 0;
      const auto good = [&](int64_t at) HWY_ATTR {  // false of NaN, too
        return hn::Le(hn::Abs(load(d, from + at)), most);
      };
      for (; neighbors && i + 4 * lanes(d) <= pairs; i += 4 * lanes(d)) {
        const auto first = hn::And(good(i), good(i + lanes(d)));
        const auto last = hn::And(good(i + 2 * lanes(d)), good(i + 3 * lanes(d)));
        if (!hn::AllTrue(d, hn::And(first, last))) return false;
      }
      for (; neighbors && i + lanes(d) <= pairs; i += lanes(d)) {
        if (!hn::AllTrue(d, good(i))) return false;
      }
      for (; i < pairs; ++i) {
        const Real<T> step = convert<false, Real<T>>(from[i * block.pair_stride]);
        if (!(step <= kMaxStep && step >= -kMaxStep)) return false;
      }
    }
  }
  return true;
}

HWY_ATTR void run_sums(const StepBlock& block, Sum sum, uint64_t* sums, uint64_t* phases,
                       int64_t stride) {
  visit_type(block.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    switch (sum) {
      case Sum::kTotals:
        return sum_block<T, Sum::kTotals>(block, sums, phases, stride);
      case Sum::kForwards:
        return sum_block<T, Sum::kForwards>(block, sums, phases, stride);
      case Sum::kBackwards:
        return sum_block<T, Sum::kBackwards>(block, sums, phases, stride);
    }
  });
}

template <typename T>
HWY_ATTR void sum_row_of(const void* steps, int64_t count, uint64_t* sums) {
  sum_columns<T, Sum::kTotals>(static_cast<const T*>(steps), count, sums, sums);
}

HWY_ATTR bool check_steps(const StepBlock& block) {
  bool good = true;
  visit_type(block.dtype, [&](auto type) HWY_ATTR { good = are_angles<decltype(type)>(block); });
  return good;
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void sum_steps(const StepBlock& block, Sum sum, uint64_t* sums, int64_t* phases, int64_t stride) {
  run_sums(block, sum, sums, reinterpret_cast<uint64_t*>(phases), stride);
}

SumRow row_sums(Dtype dtype) {
  return visit_type(dtype, [](auto type) -> SumRow { return &sum_row_of<decltype(type)>; });
}

bool steps_are_angles(const StepBlock& block) { return check_steps(block); }

}  // namespace posenc::cpu::HWY_NAMESPACE
