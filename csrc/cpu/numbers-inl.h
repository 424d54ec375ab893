// Loading and storing vectors of float16, bfloat16, float32 and float64 as the float32 or float64
// they are computed in. Rounding is to nearest even, NaN stays NaN; Highway 1.0 truncates bfloat16
// and its software float16 differs between targets, so both are done here in integers.

#if defined(POSENC_CPU_NUMBERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_CPU_NUMBERS_INL_H_
#undef POSENC_CPU_NUMBERS_INL_H_
#else
#define POSENC_CPU_NUMBERS_INL_H_
#endif

#include <type_traits>

#include "core/half.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The widest vector of what a number of type T is computed in.
template <typename T>
using RealTag = hn::ScalableTag<Real<T>>;

// How results are written: into the cache, or past it. Memory of NumPy is aligned to 16 bytes only,
// so that wider vectors go there in blocks of 16; the processor joins them to cache lines.
enum class Store { kOrdinary, kStreamBlocks, kStream };

// The fastest way past the cache to an address that is a multiple of the vector's size or less.
HWY_INLINE Store stream_to(int64_t address, int64_t vector_bytes) {
  return address % vector_bytes == 0 ? Store::kStream
         : address % 16 == 0         ? Store::kStreamBlocks
                                     : Store::kOrdinary;
}

template <class D>
HWY_INLINE void stream_blocks(hn::Vec<D> v, D d, hn::TFromD<D>* to) {
  if constexpr (HWY_HAVE_SCALABLE || hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) <= 16) {
    hn::Stream(v, d, to);
  } else {
    const hn::Half<D> half;
    stream_blocks(hn::LowerHalf(half, v), half, to);
    stream_blocks(hn::UpperHalf(half, v), half, to + hn::Lanes(half));
  }
}

template <Store kStore, class D>
HWY_INLINE void store_as(hn::Vec<D> v, D d, hn::TFromD<D>* to) {
  if constexpr (kStore == Store::kStream) {
    hn::Stream(v, d, to);
  } else if constexpr (kStore == Store::kStreamBlocks) {
    stream_blocks(v, d, to);
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

template <Store kStore, class D>
HWY_INLINE void store(hn::Vec<D> v, D d, BFloat16* to) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToSigned<D> di;
  // Shifted down, so that the saturation of a signed demotion never sets in.
  const auto upper = hn::ShiftRight<16>(hn::BitCast(di, round_bfloat16(d, v)));
  const hn::RebindToSigned<decltype(d16)> di16;
  store16<kStore>(hn::BitCast(d16, hn::DemoteTo(di16, upper)), d, to);
}

// 2N neighbouring bfloat16 numbers in one register, and without a shuffle the even and the odd ones
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

template <Store kStore, class D>
HWY_INLINE void store_even_odd(hn::Vec<D> even, hn::Vec<D> odd, D d, BFloat16* to) {
  const hn::RebindToUnsigned<D> du;
  const auto low = hn::ShiftRight<16>(round_bfloat16(d, even));
  const auto high = hn::And(round_bfloat16(d, odd), hn::Set(du, 0xffff0000));
  store_as<kStore>(hn::Or(low, high), du, reinterpret_cast<uint32_t*>(to));
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
  // Rescaling by 2^112 moves the exponent and normalises subnormals; infinity and NaN are set.
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
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> to_float16(D d, hn::Vec<D> v) {
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

// 2N neighbouring numbers in one register: whole cache lines are read and written at once.
template <class D>
HWY_INLINE hn::Vec<hn::Repartition<uint16_t, D>> load_twice(D /*d*/, const Float16* from) {
  return hn::LoadU(hn::Repartition<uint16_t, D>(), reinterpret_cast<const uint16_t*>(from));
}

template <class D>
HWY_INLINE void split_twice(D d, hn::Vec<hn::Repartition<uint16_t, D>> both, hn::Vec<D>& low,
                            hn::Vec<D>& high) {
  const hn::Rebind<uint16_t, D> d16;
  low = from_float16(d, hn::LowerHalf(d16, both));
  high = from_float16(d, hn::UpperHalf(d16, both));
}

template <Store kStore, class D>
HWY_INLINE void store_twice(hn::Vec<D> low, hn::Vec<D> high, D d, Float16* to) {
  const hn::Repartition<uint16_t, D> d16;
  store_as<kStore>(hn::Combine(d16, to_float16(d, high), to_float16(d, low)), d16,
                   reinterpret_cast<uint16_t*>(to));
}

// --- Any of them

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

#endif  // POSENC_CPU_NUMBERS_INL_H_
