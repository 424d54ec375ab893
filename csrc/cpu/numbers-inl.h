// Loading and storing vectors of float16, bfloat16, float32 and float64 as the float32 or float64
// they are computed in. Rounding is to nearest even, NaN stays NaN; Highway 1.0 truncates bfloat16
// and its software float16 differs between targets, so both are done here in integers.

#pragma once

#include <type_traits>

#include "core/half.h"
#include "cpu/targets.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kLineBytes = 64;  // of the cache

// The widest vector of what a number of type T is computed in.
template <typename T>
using RealTag = hn::ScalableTag<Real<T>>;

// Numbers behind scratch, over whose end vectors may run.
constexpr int64_t kSlack = 64;

// How results are written: into the cache, or past it, which needs aligned vectors.
enum class Store { kOrdinary, kStream };

// Whether vectors can be written past the cache at multiples of these bytes: addresses and steps.
HWY_INLINE bool can_stream_to(int64_t multiples, int64_t vector_bytes) {
  return multiples % vector_bytes == 0;
}

template <Store kStore, class D>
HWY_INLINE void store_as(hn::Vec<D> v, D d, hn::TFromD<D>* to) {
  if constexpr (kStore == Store::kStream) {
    hn::Stream(v, d, to);
  } else {
    hn::StoreU(v, d, to);
  }
}

// --- float32, float64

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* from) {
  return hn::LoadU(d, from);
}

template <Store kStore, class D>
HWY_INLINE void store(hn::Vec<D> v, D d, hn::TFromD<D>* to) {
  store_as<kStore>(v, d, to);
}

// --- bfloat16: the upper half of a float32

// The float32 bits, rounded so that their upper half is the bfloat16. A NaN stays one as long as
// its lower half is empty, or the carry could run through it; so it is after any arithmetic on
// loaded bfloat16 numbers and finite others, and testing for it would cost a third of the rounding.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> round_bfloat16(D /*d*/, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  return hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const BFloat16* from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

// Half as many bytes as in float32; streams need 16 of them.
template <Store kStore, class D>
HWY_INLINE void store16(hn::Vec<hn::Rebind<uint16_t, D>> bits, D, void* to) {
  const hn::Rebind<uint16_t, D> d16;
  constexpr bool kWide = HWY_MAX_BYTES >= 32;
  store_as<kWide ? kStore : Store::kOrdinary>(bits, d16, static_cast<uint16_t*>(to));
}

#if HWY_TARGET == HWY_AVX3
// The conversions of AVX512_BF16, written in assembly language: a function for these instructions
// could not be inlined into one for AVX3. They round as we do, but turn subnormal numbers into
// zeros; the mask has every zero, which may have been one of them. Rows of true zeros take a tenth
// longer than without these instructions, others up to a quarter less.

// Read from memory: registers are scarce where this is used.
alignas(64) constexpr uint64_t kMagnitudes[8] = {
    0x7fff7fff7fff7fff, 0x7fff7fff7fff7fff, 0x7fff7fff7fff7fff, 0x7fff7fff7fff7fff,
    0x7fff7fff7fff7fff, 0x7fff7fff7fff7fff, 0x7fff7fff7fff7fff, 0x7fff7fff7fff7fff};

HWY_INLINE __mmask16 convert_bfloat16(__m512 v, __m256i& bits) {
  asm("vcvtneps2bf16 %1, %0" : "=v"(bits) : "v"(v));
  __mmask16 zeros;
  asm("vptestnmw %2, %1, %0"
      : "=k"(zeros)
      : "v"(bits), "m"(*reinterpret_cast<const __m256i*>(kMagnitudes)));
  return zeros;
}

// Of two vectors, whose numbers take turns.
HWY_INLINE __mmask32 convert_bfloat16(__m512 even, __m512 odd, __m512i& bits) {
  alignas(64) static constexpr uint16_t kTurns[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(bits) : "v"(even), "v"(odd));
  bits = _mm512_permutexvar_epi16(_mm512_load_si512(kTurns), bits);
  __mmask32 zeros;
  asm("vptestnmw %2, %1, %0"
      : "=k"(zeros)
      : "v"(bits), "m"(*reinterpret_cast<const __m512i*>(kMagnitudes)));
  return zeros;
}
#endif

template <Store kStore, class D>
HWY_INLINE void store(hn::Vec<D> v, D d, BFloat16* to) {
  const hn::Rebind<uint16_t, D> d16;
#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(v.raw) == 64) {
    __m256i bits;
    if (HWY_LIKELY(bfloat16_instructions.load(std::memory_order_relaxed) &&
                   convert_bfloat16(v.raw, bits) == 0)) {
      store16<kStore>(hn::Vec<decltype(d16)>{bits}, d, to);
      return;
    }
  }
#endif
  const hn::RebindToSigned<D> di;
  // Shifted down, so that the saturation of a signed demotion never sets in.
  const auto upper = hn::ShiftRight<16>(hn::BitCast(di, round_bfloat16(d, v)));
  const hn::RebindToSigned<decltype(d16)> di16;
  store16<kStore>(hn::BitCast(d16, hn::DemoteTo(di16, upper)), d, to);
}

// 2N neighboring bfloat16 numbers in one register, and without a shuffle the even and the odd ones
// of them.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> load_pairs(D /*d*/, const BFloat16* from) {
  return hn::LoadU(hn::RebindToUnsigned<D>(), reinterpret_cast<const uint32_t*>(from));
}

template <class D>
HWY_INLINE void split_pairs(D d, hn::Vec<hn::RebindToUnsigned<D>> both, hn::Vec<D>& even,
                            hn::Vec<D>& odd) {
  even = hn::BitCast(d, hn::ShiftLeft<16>(both));
  odd = hn::BitCast(d, hn::And(both, hn::Set(hn::RebindToUnsigned<D>(), 0xffff0000)));
}

// kInstructions: the caller has looked whether there are any.
template <Store kStore, bool kInstructions = false, class D>
HWY_INLINE void store_even_odd(hn::Vec<D> even, hn::Vec<D> odd, D /*d*/, BFloat16* to) {
  const hn::RebindToUnsigned<D> du;
#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(even.raw) == 64) {
    __m512i bits;
    if (HWY_LIKELY((kInstructions || bfloat16_instructions.load(std::memory_order_relaxed)) &&
                   convert_bfloat16(even.raw, odd.raw, bits) == 0)) {
      store_as<kStore>(hn::Vec<decltype(du)>{bits}, du, reinterpret_cast<uint32_t*>(to));
      return;
    }
  }
#endif
  // In lanes of 16 bits, whose upper halves take turns with their lower ones: a carry out of
  // lower + 0x7fff + (the last bit of upper) is the upper bit of their mean.
  const hn::Repartition<uint16_t, D> d16;
  const auto upper = hn::OddEven(hn::BitCast(d16, odd),
                                 hn::BitCast(d16, hn::ShiftRight<16>(hn::BitCast(du, even))));
  const auto lower = hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(hn::BitCast(du, odd))),
                                 hn::BitCast(d16, even));
  const auto half = hn::Add(hn::And(upper, hn::Set(d16, 1)), hn::Set(d16, 0x7ffe));
  const auto carry = hn::ShiftRight<15>(hn::AverageRound(lower, half));
  store_as<kStore>(hn::BitCast(du, hn::Add(upper, carry)), du, reinterpret_cast<uint32_t*>(to));
}

// --- float16

// Where the processor converts float16 itself: to nearest even, NaN kept.
#undef POSENC_HARDWARE_FLOAT16
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_EMU128
#define POSENC_HARDWARE_FLOAT16 0
#else
#define POSENC_HARDWARE_FLOAT16 1
#endif

template <class D>
HWY_INLINE hn::Vec<D> from_float16(D d, hn::Vec<hn::Rebind<uint16_t, D>> half) {
#if POSENC_HARDWARE_FLOAT16
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
#else
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::PromoteTo(du, half);
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fff)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)));
  // Rescaling by 2^112 moves the exponent and normalizes subnormals; infinity and NaN are set.
  const auto value = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 5.192296858534828e33f));
  const auto special = hn::Gt(hn::BitCast(hn::RebindToSigned<D>(), magnitude),
                              hn::Set(hn::RebindToSigned<D>(), 0x0f7fffff));
  const auto special_bits = hn::Or(magnitude, hn::Set(du, 0x7f800000));
  const auto result =
      hn::IfThenElse(hn::RebindMask(du, special), special_bits, hn::BitCast(du, value));
  return hn::BitCast(d, hn::Or(result, sign));
#endif
}

template <class D>
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> to_float16([[maybe_unused]] D d, hn::Vec<D> v) {
  const hn::Rebind<uint16_t, D> d16;
#if POSENC_HARDWARE_FLOAT16
  return hn::BitCast(d16, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
#else
  const hn::RebindToSigned<D> di;
  const hn::Rebind<int16_t, D> di16;
  const auto bits = hn::BitCast(di, v);
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7fffffff));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, static_cast<int>(0xffff8000)));
  // Normal: shift the exponent's bias and round the mantissa in one addition; a carry may reach
  // infinity. Subnormal: adding 0.5 makes the adder itself round at 2^-24.
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
  const auto rebias = hn::Set(di, static_cast<int>(0xc8000000u + 0xfffu));
  const auto normal = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(rebias, odd)));
  const auto half = hn::Set(d, 0.5f);
  const auto subnormal =
      hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(di, half));
  const auto infinity = hn::Set(di, 0x7c00);
  auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x38800000)), subnormal, normal);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x477fffff)), infinity, result);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7f800000)), hn::Set(di, 0x7e00), result);
  return hn::BitCast(d16, hn::DemoteTo(di16, hn::Or(result, sign)));
#endif
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Float16* from) {
  const hn::Rebind<uint16_t, D> d16;
  return from_float16(d, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from)));
}

template <Store kStore, class D>
HWY_INLINE void store(hn::Vec<D> v, D d, Float16* to) {
  store16<kStore>(to_float16(d, v), d, to);
}

// --- Any of them

// 2N neighboring numbers. Halves of a register would have to be taken apart and joined: two reads
// and two writes are faster.
template <typename T, class D>
HWY_INLINE void load_twice(D d, const T* from, hn::Vec<D>& low, hn::Vec<D>& high) {
  low = load(d, from);
  high = load(d, from + hn::Lanes(d));
}

template <Store kStore, typename T, class D>
HWY_INLINE void store_twice(hn::Vec<D> low, hn::Vec<D> high, D d, T* to) {
  store<kStore>(low, d, to);
  store<kStore>(high, d, to + hn::Lanes(d));
}

// 2N neighboring numbers, the even and the odd ones apart, each in their order.
template <typename T, class D>
HWY_INLINE void load_split(D d, const T* from, hn::Vec<D>& even, hn::Vec<D>& odd) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    split_pairs(d, load_pairs(d, from), even, odd);
  } else if constexpr (std::is_same_v<T, Float16>) {
    const hn::Rebind<uint16_t, D> d16;
    hn::Vec<decltype(d16)> first, second;
    hn::LoadInterleaved2(d16, reinterpret_cast<const uint16_t*>(from), first, second);
    even = from_float16(d, first);
    odd = from_float16(d, second);
  } else {
    hn::LoadInterleaved2(d, from, even, odd);
  }
}

// And joined again. Of bfloat16 alone past the cache.
template <Store kStore, typename T, class D>
HWY_INLINE void store_joined(hn::Vec<D> even, hn::Vec<D> odd, D d, T* to) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    store_even_odd<kStore>(even, odd, d, to);
  } else if constexpr (std::is_same_v<T, Float16>) {
    const hn::Rebind<uint16_t, D> d16;
    hn::StoreInterleaved2(to_float16(d, even), to_float16(d, odd), d16,
                          reinterpret_cast<uint16_t*>(to));
  } else {
    hn::StoreInterleaved2(even, odd, d, to);
  }
}

// Numbers rounded to the format T, still in what they are computed in.
template <typename T, class D>
HWY_INLINE hn::Vec<D> rounded(D d, hn::Vec<D> v) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const auto upper = hn::Set(hn::RebindToUnsigned<D>(), 0xffff0000);
    return hn::BitCast(d, hn::And(round_bfloat16(d, v), upper));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return from_float16(d, to_float16(d, v));
  } else {
    return v;
  }
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
