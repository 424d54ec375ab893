// Frequencies of the sinusoidal table, scale * base^(-i / D), in turns and good to the last bit of
// 2^-64: float64 would already be off by 1e-7 radians at position 2^30. Double-double arithmetic
// (about 100 bits); needs a compiler that does not reassociate floating point.
#pragma once

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

// e^x for |x| < 700; relative error about 2^-100.
inline DoubleDouble exp(DoubleDouble x) {
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

// turns[i] = scale * base^(-i / (pairs - shift)) / 2 pi for i < pairs. The caller has checked that
// base is positive, shift < pairs, and every frequency is below kMaxFrequency.
template <typename Store>
inline void sinusoidal_turns(int64_t pairs, double base, double shift, double scale, Store store) {
  DoubleDouble w{scale, 0};
  DoubleDouble ratio{1, 0};
  if (pairs > 1) {
    const DoubleDouble denominator = two_sum(static_cast<double>(pairs), -shift);
    // 1 / (h + l) = (1 / h) (1 - l / h) to the precision carried here: l is 0 or tiny.
    const DoubleDouble inverse = DoubleDouble{1, 0} / denominator.high *
                                 DoubleDouble{1, -denominator.low / denominator.high};
    ratio = exp(-(log(base) * inverse));
  }
  for (int64_t i = 0; i < pairs; ++i) {
    store(i, round_turns(add(wide_turns(w.high), wide_turns(w.low))));
    w = w * ratio;
  }
}

}  // namespace posenc
