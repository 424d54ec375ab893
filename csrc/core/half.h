// float16 and bfloat16 as bits, one number at a time; csrc/cpu/numbers-inl.h does it on vectors.
// Rounding is to nearest even, NaN stays NaN.
//
// Sign and payload of a NaN that was computed are those that the processor gives it, in every
// format: x86 keeps the payload of an operand, and so do its conversions to 16 bits; a GPU makes
// every NaN 0x7fffffff before it is converted, and 0x7fff by the conversion (PTX cvt.rn). To make
// them equal takes a comparison and a selection for every number on one side: on the CPU a third of
// the rounding to bfloat16 (cpu/numbers-inl.h). So compare results of two kinds of processors with
// all NaNs counted as the same. What is copied keeps its bits everywhere.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/phase.h"

namespace posenc {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// What a number of type T is computed in.
template <typename T>
struct Compute {
  using Real = float;
};
template <>
struct Compute<double> {
  using Real = double;
};
template <typename T>
using Real = typename Compute<T>::Real;

POSENC_HD inline float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

POSENC_HD inline uint32_t bits_from_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

POSENC_HD inline float to_float(BFloat16 x) {
  return float_from_bits(static_cast<uint32_t>(x.bits) << 16);
}

POSENC_HD inline float to_float(Float16 x) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
#else
  // Move exponent and mantissa into place and rescale, which also normalizes subnormals.
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  if (magnitude >= 0x0f800000) return float_from_bits(sign | 0x7f800000 | magnitude);
  const float value = float_from_bits(magnitude) * 5.192296858534828e33f;  // 2^112
  return sign ? -value : value;
#endif
}

POSENC_HD inline float to_float(float x) { return x; }

// The number of type T nearest to a result.
template <typename T>
POSENC_HD inline T round_to(Real<T> value) {
  return value;
}

template <>
POSENC_HD inline BFloat16 round_to<BFloat16>(float value) {
#if defined(__CUDA_ARCH__)
  BFloat16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#else
  const uint32_t bits = bits_from_float(value);
  if (value != value) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
#endif
}

template <>
POSENC_HD inline Float16 round_to<Float16>(float value) {
#if defined(__CUDA_ARCH__)
  Float16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#else
  const uint32_t bits = bits_from_float(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t sign = (bits >> 16) & 0x8000;
  if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 0x47800000) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (magnitude < 0x38800000) {
    // Subnormal: the adder itself rounds at 2^-24, the last place of numbers around 0.5.
    const uint32_t sum = bits_from_float(float_from_bits(magnitude) + 0.5f);
    return {static_cast<uint16_t>(sign | (sum - 0x3f000000))};
  }
  // The exponent's bias less 112; a carry may reach infinity.
  const uint32_t rounded = magnitude + 0xc8000fff + ((magnitude >> 13) & 1);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
#endif
}

}  // namespace posenc
