// How a pair is turned, and what its cosine and sine are multiplied by: what kernels of rotations
// have in common, whatever else they do. Plain C++ as well, which tests run on the host (on_host/).
#pragma once

#include "core/half.h"
#include "core/phase.h"
#include "core/rotary.h"

namespace posenc::cuda {

// As a number of the format T.
template <typename T>
POSENC_HD inline Real<T> rounded(Real<T> value) {
  return to_real(round_to<T>(value));
}

// Cosine and sine as they are multiplied: by the scale, of the inverse; as_written: rounded to T.
template <typename T>
POSENC_HD inline SinCos<Real<T>> multiplied(const RotaryArgs& args, SinCos<Real<T>> angle,
                                            bool as_written) {
  const Real<T> scale = static_cast<Real<T>>(args.scale);
  angle.cosine = angle.cosine * scale;
  angle.sine = angle.sine * (args.inverse ? -scale : scale);
  if (as_written) {
    angle.cosine = rounded<T>(angle.cosine);
    angle.sine = rounded<T>(angle.sine);
  }
  return angle;
}

// Both numbers of a pair. kAsWritten: every product is rounded to T; the sums are, as they are
// written.
template <typename T, bool kAsWritten>
POSENC_HD inline void turn_pair(Real<T>& a, Real<T>& b, Real<T> c, Real<T> s) {
  const Real<T> x = a, y = b;
  if constexpr (kAsWritten) {
    a = rounded<T>(x * c) - rounded<T>(y * s);
    b = rounded<T>(y * c) + rounded<T>(x * s);
  } else {
    a = multiply_add(x, c, -(y * s));
    b = multiply_add(y, c, x * s);
  }
}

}  // namespace posenc::cuda
