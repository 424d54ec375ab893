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
// Plain C++17 that nvcc accepts as well; csrc/cpu/sincos-inl.h is the same algorithm on vectors.
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

// Splits a finite position with |p| < 2^63; what is below 2^-64 is cut off. By magnitude, since
// 1 - p of a small negative p would round.
POSENC_HD inline Position split_position(double p) {
  const double magnitude = fabs(p), whole = floor(magnitude);
  uint64_t integer = static_cast<uint64_t>(whole);
  uint64_t fraction = static_cast<uint64_t>((magnitude - whole) * 18446744073709551616.0);
  if (p < 0) {
    fraction = ~fraction + 1;
    integer = ~integer + (fraction == 0);
  }
  return {static_cast<int64_t>(integer), fraction};
}

// ---------------------------------------------------------------------------------------------
// Frequencies in turns

// 1 / (2 pi) as a fixed-point fraction, most significant word first.
constexpr uint64_t kInverseTau[4] = {0x28be60db9391054a, 0x7f09d5f47d4d3770, 0x36d8a5664f10e410,
                                     0x7f9458eaf7aef158};

// w / 2 pi with 128 bits behind the point: the sum of two such numbers still rounds right.
struct WideTurns {
  uint64_t whole, high, low;
};

inline WideTurns add(WideTurns a, WideTurns b) {
  WideTurns sum;
  sum.low = a.low + b.low;
  const uint64_t carry_low = sum.low < a.low;
  const uint64_t high = a.high + b.high;
  const uint64_t carry_high = high < a.high;
  sum.high = high + carry_low;
  sum.whole = a.whole + b.whole + carry_high + (sum.high < high);
  return sum;
}

inline WideTurns negate(WideTurns a) {
  WideTurns result{~a.whole, ~a.high, ~a.low + 1};
  if (result.low == 0 && ++result.high == 0) ++result.whole;
  return result;
}

inline Turns round_turns(WideTurns a) {
  const uint64_t fraction = a.high + (a.low >> 63);
  return {fraction, a.whole + (fraction < a.high)};
}

// |w| < kMaxFrequency, radians per position.
inline WideTurns wide_turns(double w) {
  uint64_t bits;
  std::memcpy(&bits, &w, sizeof bits);
  const int biased = static_cast<int>((bits >> 52) & 0x7ff);
  if (biased == 0) return {0, 0, 0};  // below 2^-1022: no part of 2^-128 turn
  const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | (uint64_t{1} << 52);
  const int exponent = biased - 1075;  // |w| = mantissa * 2^exponent, exponent <= 10

  // mantissa * kInverseTau, 320 bits, least significant word first; the point is at bit 256.
  uint64_t product[6] = {0, 0, 0, 0, 0, 0};
  uint64_t carry = 0;
  for (int i = 0; i < 4; ++i) {
    const uint64_t word = kInverseTau[3 - i];
    const uint64_t low = mantissa * word;
    product[i] = low + carry;
    carry = multiply_high(mantissa, word) + (product[i] < low);
  }
  product[4] = carry;

  // Keep 128 bits behind the point of product * 2^exponent.
  const int shift = 128 - exponent;
  if (shift >= 320) return {0, 0, 0};
  const int word = shift / 64, bit = shift % 64;
  const auto shifted = [&](int i) -> uint64_t {
    if (i + word > 4) return 0;
    const uint64_t low = product[i + word] >> bit;
    return bit == 0 ? low : low | (product[i + word + 1] << (64 - bit));
  };
  const WideTurns magnitude{shifted(2), shifted(1), shifted(0)};
  return (bits >> 63) ? negate(magnitude) : magnitude;
}

// The nearest multiple of 2^-64 turn to w radians; |w| < kMaxFrequency.
inline Turns turns_from_radians(double w) {
  uint64_t bits;
  std::memcpy(&bits, &w, sizeof bits);
  const int biased = static_cast<int>((bits >> 52) & 0x7ff);
  if (biased > 1023 || biased < 960) return round_turns(wide_turns(w));
  // 2^-63 <= |w| < 2, nearly every frequency there is: less than a turn, and 128 bits of 1 / 2 pi
  // are enough. This decides how long a decoding step takes.
  const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | (uint64_t{1} << 52);
  const uint64_t low = mantissa * kInverseTau[0];
  const uint64_t middle = low + multiply_high(mantissa, kInverseTau[1]);
  const uint64_t high = multiply_high(mantissa, kInverseTau[0]) + (middle < low);
  const int shift = 1075 - biased;  // of (high, middle), in 52 .. 115, with rounding
  const uint64_t magnitude =
      shift < 64    ? (high << (64 - shift)) + (middle >> shift) + ((middle >> (shift - 1)) & 1)
      : shift == 64 ? high + (middle >> 63)
                    : (high >> (shift - 64)) + ((high >> (shift - 65)) & 1);
  const uint64_t sign = bits >> 63;
  return {sign ? ~magnitude + 1 : magnitude, sign && magnitude != 0 ? ~uint64_t{0} : 0};
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
  return {(angle.quadrant & 2) ? -sine : sine, ((angle.quadrant + 1) & 2) ? -cosine : cosine};
}

}  // namespace posenc
