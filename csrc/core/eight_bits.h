// Numbers of 8 bits, as caches have them, one at a time; csrc/cpu/eight_bits-inl.h does it on
// vectors.
//
//   stored = round(x / scale)     x: a float32; to nearest even, saturating
//
// float8 is E4M3 without infinities and E5M2, by the "OCP 8-bit Floating Point Specification". A
// NaN becomes 0x7f, as the conversions of a GPU make it (PTX cvt.satfinite), and 0 in int8.
#pragma once

#include <cstdint>

#include "core/half.h"
#include "core/view.h"

namespace posenc {

// The largest number; what is larger, infinity too, becomes it. int8 also has -128.
POSENC_HD constexpr float largest_of(Dtype dtype) {
  return dtype == Dtype::kFloat8E4M3 ? 448.0f : dtype == Dtype::kFloat8E5M2 ? 57344.0f : 127.0f;
}

template <int kMantissaBits, int kLeastExponent>
struct Float8 {
  static constexpr int kShift = 23 - kMantissaBits;
  // In the bits of a float32: the least normal number, what its exponent is moved by, and a number
  // whose last place is that of the subnormal ones.
  static constexpr uint32_t kLeastNormal = static_cast<uint32_t>(127 + kLeastExponent) << 23;
  static constexpr uint32_t kBias = static_cast<uint32_t>(126 + kLeastExponent) << kMantissaBits;
  static constexpr uint32_t kPlace = static_cast<uint32_t>(127 + kLeastExponent + kShift) << 23;
  static constexpr uint32_t kHalf = (uint32_t{1} << (kShift - 1)) - 1;
};
using E4M3 = Float8<3, -6>;
using E5M2 = Float8<2, -14>;

template <typename Format>
POSENC_HD inline uint8_t round_to_float8(float x, float largest) {
  const uint32_t bits = bits_from_float(x), sign = bits >> 24 & 0x80;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7f;
  const uint32_t most = bits_from_float(largest);
  if (magnitude > most) magnitude = most;
  if (magnitude < Format::kLeastNormal) {
    const float sum = float_from_bits(magnitude) + float_from_bits(Format::kPlace);
    return static_cast<uint8_t>(sign | (bits_from_float(sum) - Format::kPlace));
  }
  const uint32_t odd = magnitude >> Format::kShift & 1;
  const uint32_t rounded = (magnitude + Format::kHalf + odd) >> Format::kShift;
  return static_cast<uint8_t>(sign | (rounded - Format::kBias));
}

POSENC_HD inline uint8_t round_to_int8(float x) {
  if (x != x) return 0;
  const float within = x < -128.0f ? -128.0f : x > 127.0f ? 127.0f : x;
  constexpr float kPlace = 12582912.0f;  // 1.5 * 2^23: the adder rounds at 1
  return static_cast<uint8_t>(bits_from_float(within + kPlace));
}

POSENC_HD inline uint8_t round_to_eight_bits(Dtype dtype, float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t both;
  if (dtype == Dtype::kFloat8E4M3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x));
    return static_cast<uint8_t>(both);
  }
  if (dtype == Dtype::kFloat8E5M2) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x));
    return static_cast<uint8_t>(both);
  }
#else
  const float largest = largest_of(dtype);
  if (dtype == Dtype::kFloat8E4M3) return round_to_float8<E4M3>(x, largest);
  if (dtype == Dtype::kFloat8E5M2) return round_to_float8<E5M2>(x, largest);
#endif
  return round_to_int8(x);
}

// What the numbers of a result in 8 bits are divided by.
struct Scaling {
  Dtype dtype = Dtype::kOther;  // of the result; kOther: that of x, and nothing is divided
  float value = 1.0f;
  const float* of_heads = nullptr;  // in place of `value`, of a head each
  int64_t head_stride = 0;
  // Scales that are made on the way, of a row each: amax / largest. 0 for a row of zeros.
  float* made = nullptr;
  int64_t made_row = 0, made_slot = 0, made_head = 0;

  POSENC_HD bool is_eight_bits() const { return dtype != Dtype::kOther; }
  POSENC_HD float of_head(int64_t head) const {
    return of_heads == nullptr ? value : of_heads[head * head_stride];
  }
  POSENC_HD float of_largest(float amax) const { return amax / largest_of(dtype); }
  // Zeros are divided by 1.
  static POSENC_HD float divisor(float scale) { return scale == 0.0f ? 1.0f : scale; }
};

}  // namespace posenc
