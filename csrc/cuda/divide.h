// Quotients of indices: a GPU has no instruction for them.
#pragma once

#include <cstdint>

#include "core/phase.h"

namespace posenc::cuda {

// Unsigned quotient; 64-bit division takes a GPU five times as long as 32-bit.
POSENC_HD inline int64_t divide(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

// A divisor that the host knows. A quotient of 31 bits is a product and a shift, one of 64 bits is
// divide().
//
// With 2^(l - 1) < b <= 2^l, m = floor(2^(31 + l) / b) + 1 has 32 bits, and a m / 2^(31 + l) is
// more than a / b by a part of 1 / b at most for a < 2^31: no next integer is reached.
class Divisor {
 public:
  Divisor() : Divisor(1) {}
  explicit Divisor(int64_t b) : b_(b) {  // b > 0
    while (shift_ < 62 && (int64_t{1} << (shift_ - 31)) < b) ++shift_;
    multiplier_ = static_cast<uint32_t>((uint64_t{1} << shift_) / static_cast<uint64_t>(b)) + 1;
  }

  POSENC_HD int64_t value() const { return b_; }

  POSENC_HD int32_t divide(int32_t a) const {
    return static_cast<int32_t>((static_cast<uint64_t>(static_cast<uint32_t>(a)) * multiplier_) >>
                                shift_);
  }
  POSENC_HD int64_t divide(int64_t a) const { return cuda::divide(a, b_); }

 private:
  int64_t b_;
  uint32_t multiplier_;
  int shift_ = 31;
};

}  // namespace posenc::cuda
