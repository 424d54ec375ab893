// Frequencies of the sinusoidal table, scale * base^(-i / D), in turns and good to the last bit of
// 2^-64: float64 would already be off by 1e-7 radians at position 2^30. Double-double arithmetic
// (about 100 bits); needs a compiler that does not reassociate floating point.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/phase.h"

namespace posenc {

// The unevaluated sum high + low, |low| <= ulp(high) / 2.
struct DoubleDouble {
  double high, low;
};

inline DoubleDouble two_sum(double a, double b) {
  const double sum = a + b;
  const double part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}

inline DoubleDouble renormalise(double high, double low) {
  const double sum = high + low;
  return {sum, low - (sum - high)};
}

inline DoubleDouble operator+(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble high = two_sum(a.high, b.high);
  const DoubleDouble low = two_sum(a.low, b.low);
  const DoubleDouble sum = renormalise(high.high, high.low + low.high);
  return renormalise(sum.high, sum.low + low.low);
}

inline DoubleDouble operator*(DoubleDouble a, DoubleDouble b) {
  const double product = a.high * b.high;
  const double error = std::fma(a.high, b.high, -product);
  return renormalise(product, error + (a.high * b.low + a.low * b.high));
}

inline DoubleDouble operator-(DoubleDouble a) { return {-a.high, -a.low}; }

inline DoubleDouble operator/(DoubleDouble a, double b) {
  const double quotient = a.high / b;
  const double remainder = std::fma(-quotient, b, a.high) + a.low;
  return renormalise(quotient, remainder / b);
}

// e^x for x < 700; relative error about 2^-100.
inline DoubleDouble exp(DoubleDouble x) {
  if (x.high < -800) return {0, 0};
  constexpr DoubleDouble kLn2{0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};
  const double k = std::nearbyint(x.high / kLn2.high);
  const DoubleDouble r = x + DoubleDouble{-k, 0} * kLn2;
  DoubleDouble term{1, 0}, sum{1, 0};
  for (int n = 1; std::fabs(term.high) > 0x1p-110; ++n) {
    term = term * r / n;
    sum = sum + term;
  }
  const double power = std::ldexp(1.0, static_cast<int>(k));
  return {sum.high * power, sum.low * power};
}

// ln x for a normal x > 0: one Newton step on the float64 logarithm.
inline DoubleDouble log(double x) {
  const double y = std::log(x);
  const DoubleDouble ratio = DoubleDouble{x, 0} * exp({-y, 0});
  return DoubleDouble{y, 0} + (ratio + DoubleDouble{-1, 0});
}

// ---------------------------------------------------------------------------------------------
// Wide fixed point

// Turns with 128 bits behind the point, and never negative: products still round right.
struct WideTurns {
  uint64_t whole, high, low;
};

// |w| / 2 pi of a number below kMaxFrequency; cut at 2^-128.
inline WideTurns wide_turns(double w) {
  const Binary number = to_binary(w);
  if (number.mantissa == 0) return {0, 0, 0};
  // mantissa * 1 / 2 pi, 320 bits, least significant word first; the point is at bit 256.
  constexpr uint64_t kWords[4] = {kInverseTau3, kInverseTau2, kInverseTau1, kInverseTau0};
  uint64_t product[6] = {0, 0, 0, 0, 0, 0};
  uint64_t carry = 0;
  for (int i = 0; i < 4; ++i) {
    const uint64_t low = number.mantissa * kWords[i];
    product[i] = low + carry;
    carry = multiply_high(number.mantissa, kWords[i]) + (product[i] < low);
  }
  product[4] = carry;
  // Keep 128 bits behind the point of product * 2^exponent.
  const int shift = 128 - number.exponent;
  if (shift >= 320) return {0, 0, 0};
  const int word = shift / 64, bit = shift % 64;
  const auto shifted = [&](int i) -> uint64_t {
    if (i + word > 4) return 0;
    const uint64_t low = product[i + word] >> bit;
    return bit == 0 ? low : low | (product[i + word + 1] << (64 - bit));
  };
  return {shifted(2), shifted(1), shifted(0)};
}

// w / 2 pi for w >= 0.
inline WideTurns wide_turns(DoubleDouble w) {
  const WideTurns a = wide_turns(w.high), b = wide_turns(w.low);
  WideTurns sum;
  if (w.low >= 0) {
    sum.low = a.low + b.low;
    const uint64_t carry = sum.low < a.low;
    const uint64_t high = a.high + b.high;
    sum.high = high + carry;
    sum.whole = a.whole + b.whole + (high < a.high) + (sum.high < high);
  } else {
    sum.low = a.low - b.low;
    const uint64_t borrow = a.low < b.low;
    const uint64_t high = a.high - b.high;
    sum.high = high - borrow;
    sum.whole = a.whole - b.whole - (a.high < b.high) - (high < borrow);
  }
  return sum;
}

// A factor in 0 .. 1 with 127 bits behind the point.
struct WideFactor {
  uint64_t high, low;
};

inline WideFactor wide_factor(DoubleDouble x) {
  const auto fixed = [](double value) -> WideFactor {
    const uint64_t high = static_cast<uint64_t>(value * 9223372036854775808.0);  // 2^63
    const double rest = value - static_cast<double>(high) / 9223372036854775808.0;
    return {high,
            static_cast<uint64_t>(rest * 170141183460469231731687303715884105728.0)};  // 2^127
  };
  const WideFactor a = fixed(x.high), b = fixed(std::fabs(x.low));
  if (x.low >= 0) {
    const uint64_t low = a.low + b.low;
    return {a.high + b.high + (low < a.low), low};
  }
  return {a.high - b.high - (a.low < b.low), a.low - b.low};
}

// ---------------------------------------------------------------------------------------------
// The geometric sequence scale * base^(-i / (pairs - shift)) / 2 pi

// Two short tables and their products, pair by pair, in integers: little enough to be passed to a
// GPU with every call, and computed there with the same bits as here.
//
//     i = 2^shift * a + b      turns[i] = high[a] * low[b]      low[b] = ratio^b <= 1
//
// A rising sequence (base < 1) is counted from its end.
class GeometricTurns {
 public:
  static constexpr int64_t kMaxPairs = 4096;

  GeometricTurns() = default;

  // The pairs first .. first + count - 1 of them all; count <= kMaxPairs. The caller has checked
  // that base is positive, shift < pairs, and every frequency is below kMaxFrequency.
  GeometricTurns(int64_t pairs, double base, double shift, double scale, int64_t first,
                 int64_t count) {
    negative_ = scale < 0;
    DoubleDouble exponent{0, 0};  // of the ratio
    if (pairs > 1) {
      const DoubleDouble denominator = two_sum(static_cast<double>(pairs), -shift);
      // 1 / (h + l) = (1 / h) (1 - l / h) to the precision carried here: l is 0 or tiny.
      const DoubleDouble inverse = DoubleDouble{1, 0} / denominator.high *
                                   DoubleDouble{1, -denominator.low / denominator.high};
      exponent = -(log(base) * inverse);
    }
    const auto power = [&](int64_t n) {
      return exponent * DoubleDouble{static_cast<double>(n), 0};
    };
    last_ = exponent.high > 0 ? count - 1 : -1;
    // In two halves, since the whole may be too large for a double before it is scaled.
    const DoubleDouble half_start = exp(power(last_ < 0 ? first : first + last_) / 2.0);
    if (last_ >= 0) exponent = -exponent;
    while ((int64_t{1} << 2 * shift_) < count) ++shift_;
    const DoubleDouble ratio = exp(exponent);
    DoubleDouble factor{1, 0};
    for (int64_t b = 0; b < (int64_t{1} << shift_); ++b) {
      low_[b] = wide_factor(factor);
      factor = factor * ratio;
    }
    const DoubleDouble jump = exp(power(int64_t{1} << shift_));
    DoubleDouble w = half_start * DoubleDouble{std::fabs(scale), 0} * half_start;
    for (int64_t a = 0; a <= (count - 1) >> shift_; ++a) {
      high_[a] = wide_turns(w);
      w = w * jump;
    }
  }

  // Of the i-th of the pairs it was made for.
  POSENC_HD Turns operator[](int64_t i) const {
    const int64_t from_largest = last_ < 0 ? i : last_ - i;
    const WideTurns h = high_[from_largest >> shift_];
    const WideFactor l = low_[from_largest & ((int64_t{1} << shift_) - 1)];
    // 64.128 times 1.127 bits: the words 2, 3 and 4 of the product, and what carries into them.
    uint64_t word1 = multiply_high(h.low, l.low);
    uint64_t word2 = 0, word3 = 0, word4 = 0;
    accumulate(word1, word2, h.high * l.low);
    accumulate(word1, word2, h.low * l.high);
    const auto add = [&](uint64_t term) {
      word2 += term;
      const uint64_t carry = word2 < term;
      word3 += carry;
      word4 += word3 < carry;
    };
    add(multiply_high(h.high, l.low));
    add(multiply_high(h.low, l.high));
    add(h.whole * l.low);
    add(h.high * l.high);
    accumulate(word3, word4, multiply_high(h.whole, l.low));
    accumulate(word3, word4, multiply_high(h.high, l.high));
    accumulate(word3, word4, h.whole * l.high);
    word4 += multiply_high(h.whole, l.high);
    // The point is at bit 63 of word 3.
    uint64_t fraction = (word2 >> 63) | (word3 << 1);
    uint64_t whole = (word3 >> 63) | (word4 << 1);
    const uint64_t half = (word2 >> 62) & 1;
    fraction += half;
    whole += fraction < half;
    if (!negative_) return {fraction, whole};
    return {~fraction + 1, ~whole + (fraction == 0)};
  }

 private:
  POSENC_HD static void accumulate(uint64_t& word, uint64_t& next, uint64_t term) {
    word += term;
    next += word < term;
  }

  WideTurns high_[64];
  WideFactor low_[64];
  int64_t last_ = -1;  // of a rising sequence
  int shift_ = 0;
  bool negative_ = false;
};

// store(i, turns) for every pair.
template <typename Store>
inline void sinusoidal_turns(int64_t pairs, double base, double shift, double scale, Store store) {
  for (int64_t first = 0; first < pairs; first += GeometricTurns::kMaxPairs) {
    const int64_t count = std::min(pairs - first, GeometricTurns::kMaxPairs);
    const GeometricTurns turns(pairs, base, shift, scale, first, count);
    for (int64_t i = 0; i < count; ++i) store(first + i, turns[i]);
  }
}

}  // namespace posenc
