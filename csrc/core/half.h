// float16 and bfloat16 as bits, one number at a time; csrc/cpu/numbers-inl.h does it on vectors.
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

POSENC_HD inline float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

POSENC_HD inline float to_float(BFloat16 x) {
  return float_from_bits(static_cast<uint32_t>(x.bits) << 16);
}

POSENC_HD inline float to_float(Float16 x) {
  // Move exponent and mantissa into place and rescale, which also normalises subnormals.
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  if (magnitude >= 0x0f800000) return float_from_bits(sign | 0x7f800000 | magnitude);
  const float value = float_from_bits(magnitude) * 5.192296858534828e33f;  // 2^112
  return sign ? -value : value;
}

POSENC_HD inline float to_float(float x) { return x; }

}  // namespace posenc
