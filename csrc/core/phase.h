// The exact phase: angles counted in turns, as 64-bit fixed point.
//
//     frequency w  [radians per position]  ->  Turns T = round(w / 2 pi * 2^64)   (whole, fraction)
//     position p = n + f                   ->  phase   = n * T + f * T   mod one turn
//     phase                                ->  quadrant and t in [-1/8, 1/8] turn -> sine, cosine
//
//     63 62 61                             0
//     +----+-----------------------------+     one turn is 2^64, so the overflow of the integer
//     |quad| angle within the quadrant   |     product *is* the range reduction: every position is
//     +----+-----------------------------+     as good as any other.
//
// Tables in 16-bit formats take the angles of integer positions in two parts:
//
//     p = 8 m + r              sine, cosine of 8 m, once for eight rows, turned by those of r
//
// Plain C++17 that nvcc takes for GPUs as well; csrc/cpu/sincos-inl.h is the same algorithm on
// vectors.
// The polynomials were fitted by scripts/fit_sincos.py.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define POSENC_HD __host__ __device__
#else
#define POSENC_HD
#endif

namespace posenc {

// A frequency in turns per position, as signed 64.64 fixed point in two's complement. Only the
// fraction matters to integer positions; fractional ones need the whole turns too.
struct Turns {
  uint64_t fraction;
  uint64_t whole;
};

// Frequencies are smaller than this, in radians per position, so that whole turns fit.
constexpr double kMaxFrequency = 9223372036854775808.0;  // 2^63

// A position as an integer and a fraction in units of 2^-64.
struct Position {
  int64_t integer;
  uint64_t fraction;
};

// ---------------------------------------------------------------------------------------------
// Polynomials. With y = t * t and |t| <= 1/8 turn:
//   sin(2 pi t) = t * (tau_high + (tau_low + y * S(y)))      cos(2 pi t) = 1 + y * C(y)
// tau is split in two, because its rounding error would be the largest of all.
//
// float32 is within 7.4e-8. What is left is the rounding of t (1.7e-8), of y (1.8e-8) and of the
// sum with 1 (3e-8). With t in two parts and what y lost added to the cosine before its 1, 5.3e-8
// were measured, and a table took 1.25 times as long; without y's part 6.0e-8 and 1.16 (AVX-512,
// Zen 5).

template <typename Real>
struct SinCosCoefficients;

template <>
struct SinCosCoefficients<float> {
  static constexpr float kTauHigh = 6.2831855f;
  static constexpr float kTauLow = -1.7484555e-07f;
  static constexpr int kSineTerms = 3;
  static constexpr int kCosineTerms = 4;
  POSENC_HD static constexpr float sine(int k) {
    constexpr float c[] = {-41.3416626f, 81.5919835f, -75.3696488f};
    return c[k];
  }
  POSENC_HD static constexpr float cosine(int k) {
    constexpr float c[] = {-19.7392087f, 64.9393265f, -85.4437417f, 59.2459642f};
    return c[k];
  }
};

template <>
struct SinCosCoefficients<double> {
  static constexpr double kTauHigh = 6.283185307179586;
  static constexpr double kTauLow = 2.4492935982947064e-16;
  static constexpr int kSineTerms = 6;
  static constexpr int kCosineTerms = 7;
  POSENC_HD static constexpr double sine(int k) {
    constexpr double c[] = {-41.341702240399596, 81.605249275910032,  -76.705859693773862,
                            42.058683750912523,  -15.093733873392846, 3.7794058939037829};
    return c[k];
  }
  POSENC_HD static constexpr double cosine(int k) {
    constexpr double c[] = {-19.739208802178717, 64.939394022668013,  -85.456817206540052,
                            60.244641331611647,  -26.426251140426807, 7.9031016378489808,
                            -1.6970200768053643};
    return c[k];
  }
};

// ---------------------------------------------------------------------------------------------
// Integer arithmetic

// High 64 bits of the 128-bit product.
POSENC_HD inline uint64_t multiply_high(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#elif defined(__SIZEOF_INT128__)
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
#else
  const uint64_t mask = 0xffffffffu;
  const uint64_t low = (a & mask) * (b & mask);
  const uint64_t cross1 = (a >> 32) * (b & mask) + (low >> 32);
  const uint64_t cross2 = (a & mask) * (b >> 32) + (cross1 & mask);
  return (a >> 32) * (b >> 32) + (cross1 >> 32) + (cross2 >> 32);
#endif
}

// Phase of a position, in units of 2^-64 turn.
POSENC_HD inline uint64_t phase(Position p, Turns turns) {
  const uint64_t integer = static_cast<uint64_t>(p.integer) * turns.fraction;
  if (p.fraction == 0) return integer;
  return integer + multiply_high(p.fraction, turns.fraction) + p.fraction * turns.whole;
}

// ---------------------------------------------------------------------------------------------
// Floating-point numbers to fixed point, in integers alone: exact, and no float64 arithmetic on
// GPUs, which have little of it.

// (-1)^negative * mantissa * 2^exponent, mantissa 0 or in 2^52 .. 2^53 - 1.
struct Binary {
  uint64_t mantissa;
  int exponent;
  bool negative;
};

// Subnormal numbers count as 0: they are far below anything that matters to positions and
// frequencies. Infinities and NaN have an exponent beyond every number's.
POSENC_HD inline Binary to_binary(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  const int biased = static_cast<int>((bits >> 52) & 0x7ff);
  const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | (uint64_t{1} << 52);
  return {biased == 0 ? 0 : mantissa, biased - 1075, (bits >> 63) != 0};
}

POSENC_HD inline Binary to_binary(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const int biased = static_cast<int>((bits >> 23) & 0xff);
  const uint64_t mantissa = (uint64_t{bits & 0x7fffff} << 29) | (uint64_t{1} << 52);
  const int exponent = biased == 0xff ? 1024 : biased - 179;
  return {biased == 0 ? 0 : mantissa, exponent, (bits >> 31) != 0};
}

// The greatest exponent of a number below 2^63, the limit of positions and frequencies. What lies
// beyond is refused where values can be looked at, and counts as 0 elsewhere.
constexpr int kMaxExponent = 10;

// -2^63 <= p < 2^63; what is below 2^-64 is cut off.
POSENC_HD inline Position split_position(Binary p) {
  if (p.exponent > kMaxExponent + 1) return {0, 0};
  uint64_t integer, fraction;
  if (p.exponent >= 0) {
    integer = p.mantissa << p.exponent;
    fraction = 0;
  } else if (p.exponent > -64) {
    integer = p.mantissa >> -p.exponent;
    fraction = p.mantissa << (64 + p.exponent);
  } else {
    integer = 0;
    fraction = p.exponent > -128 ? p.mantissa >> (-64 - p.exponent) : 0;
  }
  if (p.negative) {
    fraction = ~fraction + 1;
    integer = ~integer + (fraction == 0);
  }
  return {static_cast<int64_t>(integer), fraction};
}

// 1 / (2 pi) as a fixed-point fraction, most significant word first.
constexpr uint64_t kInverseTau0 = 0x28be60db9391054a, kInverseTau1 = 0x7f09d5f47d4d3770,
                   kInverseTau2 = 0x36d8a5664f10e410, kInverseTau3 = 0x7f9458eaf7aef158;
// 2 / pi = 4 / (2 pi), likewise.
constexpr uint64_t kTwoByPi0 = kInverseTau0 << 2 | kInverseTau1 >> 62,
                   kTwoByPi1 = kInverseTau1 << 2 | kInverseTau2 >> 62;

// The nearest multiple of 2^-64 turn to w radians; |w| < kMaxFrequency.
POSENC_HD inline Turns turns_from_radians(Binary w) {
  // Below 2^-63 radians not even half a unit.
  if (w.exponent < -115 || w.exponent > kMaxExponent) return {0, 0};
  uint64_t fraction, whole;
  if (w.exponent < -51) {
    // Less than 2 radians, nearly every frequency there is: less than a turn, and 128 bits of
    // 2 / pi are enough. Both factors are as large as 64 bits can hold them, so that the high word
    // of the product has all bits of the result. This decides how long a decoding step takes.
    const uint64_t mantissa = w.mantissa << 11;
    const uint64_t low = mantissa * kTwoByPi0;
    const uint64_t middle = low + multiply_high(mantissa, kTwoByPi1);
    const uint64_t high = multiply_high(mantissa, kTwoByPi0) + (middle < low);
    fraction = ((high >> (-52 - w.exponent)) + 1) >> 1;  // by 0 .. 63, and the last with rounding
    whole = 0;
  } else {
    // mantissa * 2^10 / 2 pi, 64 bits before the point and 128 behind it, then back by `shift`.
    const uint64_t mantissa = w.mantissa << kMaxExponent;
    uint64_t word0 = multiply_high(mantissa, kInverseTau2);
    uint64_t word1 = multiply_high(mantissa, kInverseTau1);
    uint64_t word2 = multiply_high(mantissa, kInverseTau0);
    const uint64_t low1 = mantissa * kInverseTau1, low2 = mantissa * kInverseTau0;
    word0 += low1;
    uint64_t carry = word0 < low1;
    word1 += carry;
    carry = word1 < carry;
    word1 += low2;
    word2 += carry + (word1 < low2);
    const int shift = kMaxExponent - w.exponent;  // in 0 .. 61
    if (shift != 0) {
      word0 = (word0 >> shift) | (word1 << (64 - shift));
      word1 = (word1 >> shift) | (word2 << (64 - shift));
      word2 >>= shift;
    }
    fraction = word1 + (word0 >> 63);
    whole = word2 + (fraction < word1);
  }
  if (!w.negative) return {fraction, whole};
  return {~fraction + 1, ~whole + (fraction == 0)};
}

// ---------------------------------------------------------------------------------------------
// Sine and cosine of a phase

template <typename Real>
struct SinCos {
  Real sine, cosine;
};

// A phase as a quadrant (0..3) and the distance t in turns, |t| <= 1/8, from its middle.
template <typename Real>
struct Reduced {
  Real t;
  unsigned quadrant;
};

template <typename Real>
POSENC_HD inline Reduced<Real> reduce(uint64_t phase);

// Rounded to 2^-32 turn, plus what that left over: two exact numbers and one rounding, since few
// processors convert 64-bit integers to float.
template <>
POSENC_HD inline Reduced<float> reduce<float>(uint64_t phase) {
  const uint32_t rounded =
      static_cast<uint32_t>((phase + (uint64_t{1} << 61) + (uint64_t{1} << 31)) >> 32);
  const int32_t high = static_cast<int32_t>(rounded & 0x3fffffff) - (1 << 29);
  const int32_t low = static_cast<int32_t>(static_cast<uint32_t>(phase));
  return {
      fmaf(static_cast<float>(low), 5.42101086e-20f, static_cast<float>(high) * 2.32830644e-10f),
      rounded >> 30};
}

template <>
POSENC_HD inline Reduced<double> reduce<double>(uint64_t phase) {
  const uint64_t eighth = uint64_t{1} << 61;
  const int64_t offset =
      static_cast<int64_t>((phase + eighth) & (2 * eighth - 1)) - static_cast<int64_t>(eighth);
  return {static_cast<double>(offset) * 5.421010862427522e-20,
          static_cast<unsigned>((phase + eighth) >> 62)};
}

POSENC_HD inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
POSENC_HD inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// value, or -value where bit 1 of `quadrant` is set: one exclusive or.
POSENC_HD inline float flip(float value, unsigned quadrant) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits ^= (quadrant & 2) << 30;
  memcpy(&value, &bits, sizeof value);
  return value;
}
POSENC_HD inline double flip(double value, unsigned quadrant) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits ^= uint64_t{quadrant & 2} << 62;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Valid: every phase. Error: at most 9e-8 (float), 3e-16 (double), absolute; relative near zeros.
template <typename Real>
POSENC_HD inline SinCos<Real> sincos(uint64_t phase) {
  using C = SinCosCoefficients<Real>;
  const Reduced<Real> angle = reduce<Real>(phase);
  const Real t = angle.t, y = t * t;
  Real s = C::sine(C::kSineTerms - 1);
  for (int k = C::kSineTerms - 2; k >= 0; --k) s = multiply_add(s, y, C::sine(k));
  s = multiply_add(t, C::kTauHigh, t * multiply_add(s, y, C::kTauLow));
  Real c = C::cosine(C::kCosineTerms - 1);
  for (int k = C::kCosineTerms - 2; k >= 0; --k) c = multiply_add(c, y, C::cosine(k));
  c = multiply_add(c, y, Real(1));

  //  quadrant   0        1        2        3
  //  sin, cos   s,  c    c, -s   -s, -c   -c,  s
  const Real sine = (angle.quadrant & 1) ? c : s;
  const Real cosine = (angle.quadrant & 1) ? s : c;
  return {flip(sine, angle.quadrant), flip(cosine, angle.quadrant + 1)};
}

// ---------------------------------------------------------------------------------------------
// Angles in two parts. A part of an integer position is of the position alone, wherever its table
// begins: rows have the same bits by themselves and among others. A fractional position is its own
// anchor.

constexpr int64_t kSteps = 8;

POSENC_HD inline int64_t step_of(Position p) {
  return p.fraction == 0 ? p.integer & (kSteps - 1) : 0;
}
POSENC_HD inline Position anchor_of(Position p) { return {p.integer - step_of(p), p.fraction}; }

// Error: at most 2e-7, absolute.
POSENC_HD inline SinCos<float> turn(SinCos<float> anchor, SinCos<float> step) {
  return {multiply_add(anchor.cosine, step.sine, anchor.sine * step.cosine),
          multiply_add(-anchor.sine, step.sine, anchor.cosine * step.cosine)};
}

}  // namespace posenc
