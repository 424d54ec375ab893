// Where the angles of an operation come from: positions times frequencies (the exact phase), or
// tables of cosines and sines that the caller made.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/phase.h"
#include "core/view.h"

namespace posenc {

// Positions that follow each other: what stands for positions of which only the first was given.
struct Consecutive {
  int64_t first;
  POSENC_HD int64_t operator[](int64_t offset) const { return first + offset; }
};

template <typename Number>
POSENC_HD Position to_position(Number number) {
  if constexpr (std::is_floating_point_v<Number>) {
    return split_position(to_binary(number));
  } else {
    return {static_cast<int64_t>(number), 0};
  }
}

// One number per token, per axis of multi-axis rotary. Without data they are first, first + 1 ...
// with stride 1.
struct Positions {
  const void* data = nullptr;
  Dtype dtype = Dtype::kInt64;
  int64_t axis_stride = 0;
  int64_t first = 0;

  POSENC_HD bool integers() const {
    return data == nullptr || (dtype != Dtype::kFloat32 && dtype != Dtype::kFloat64);
  }

  // read(from), where from[offset] is the number at `offset` in elements from `data`.
  template <typename Read>
  POSENC_HD auto visit(const Read& read) const {
    switch (data == nullptr ? Dtype::kOther : dtype) {
      case Dtype::kInt64:
      case Dtype::kUInt64:
        return read(static_cast<const int64_t*>(data));
      case Dtype::kInt32:
        return read(static_cast<const int32_t*>(data));
      case Dtype::kUInt32:
        return read(static_cast<const uint32_t*>(data));
      case Dtype::kInt16:
        return read(static_cast<const int16_t*>(data));
      case Dtype::kUInt16:
        return read(static_cast<const uint16_t*>(data));
      case Dtype::kInt8:
        return read(static_cast<const int8_t*>(data));
      case Dtype::kUInt8:
        return read(static_cast<const uint8_t*>(data));
      case Dtype::kFloat32:
        return read(static_cast<const float*>(data));
      case Dtype::kFloat64:
        return read(static_cast<const double*>(data));
      default:
        return read(Consecutive{first});
    }
  }

  // On a GPU what nearly all calls have is read in place, and the other formats once for all of a
  // kernel: inlined wherever a position is read, they took a fifth of its registers.
  POSENC_HD Position at(int64_t offset) const {
#if defined(__CUDA_ARCH__)
    if (data == nullptr) return {first + offset, 0};
    if (dtype == Dtype::kInt64) return {static_cast<const int64_t*>(data)[offset], 0};
    return of_rare_format(data, dtype, offset);
#else
    return in_place_at(offset);
#endif
  }
  // Likewise, without a call, around which a kernel that has no registers left would keep some in
  // memory.
  POSENC_HD Position in_place_at(int64_t offset) const { return visit(ReadOne{offset}); }

  // The integer as an index: uint64 of 2^63 and more, which at() reads as negative, is INT64_MAX.
  POSENC_HD int64_t index_at(int64_t offset) const {
    const int64_t value = at(offset).integer;
    return value < 0 && data != nullptr && dtype == Dtype::kUInt64 ? INT64_MAX : value;
  }

  // The same as a number, for sums. Phases do not mind that uint64 is read as int64, numbers do.
  // By its magnitude: near 0 a negative one would lose its digits.
  template <typename Number>
  POSENC_HD Number number_at(int64_t offset) const {
    const Position p = at(offset);
    const bool negative = p.integer < 0 && !(data != nullptr && dtype == Dtype::kUInt64);
    const uint64_t integer = static_cast<uint64_t>(p.integer);
    const uint64_t whole = negative ? ~integer + (p.fraction == 0) : integer;
    const uint64_t fraction = negative ? ~p.fraction + 1 : p.fraction;
    const Number magnitude = multiply_add(static_cast<Number>(fraction),
                                          static_cast<Number>(0x1p-64), static_cast<Number>(whole));
    return negative ? -magnitude : magnitude;
  }

 private:
  struct ReadOne {  // no lambda: nvcc takes no generic ones
    int64_t offset;
    template <typename From>
    POSENC_HD Position operator()(From from) const {
      return to_position(from[offset]);
    }
  };

#if defined(__CUDACC__)
  static __noinline__ POSENC_HD Position of_rare_format(const void* data, Dtype dtype,
                                                        int64_t offset) {
    return Positions{data, dtype}.in_place_at(offset);
  }
#endif
};

// `count` positions, `stride` apart from `offset` on; returns whether any has a fraction.
bool read_positions(const Positions& positions, int64_t offset, int64_t stride, int64_t count,
                    int64_t* integer, uint64_t* fraction);

// Which position axis drives each pair; no data means axis 0 for all.
struct AxisMap {
  const void* data = nullptr;
  Dtype dtype = Dtype::kInt64;
  int64_t stride = 0;
  int64_t axes = 1;

  POSENC_HD int64_t operator[](int64_t pair) const {
    if (data == nullptr) return 0;
    return Positions{data, dtype, 0}.at(pair * stride).integer;
  }
  // For values that could not be checked, or may have changed since: never outside of the
  // positions.
  POSENC_HD int64_t clamped(int64_t pair) const {
    const int64_t axis = (*this)[pair];
    return axis >= 0 && axis < axes ? axis : 0;
  }
};

// inv_freq as the caller gave them, radians per position:
//
//   [P]          one for each pair; its position is that of token or, by axis_map, of an axis
//   [H, P]       likewise, and every head has its own
//   [A, H, P]    pairs turn by the sum over the axes of positions[a] * inv_freq[a, h, p];
//                H may be 1
//
// Phases are integers that wrap, so such a sum is exact. An axis_map is that sum with zeros left
// out.
struct InverseFrequencies {
  const void* data = nullptr;
  Dtype dtype = Dtype::kFloat64;  // or float32
  int64_t stride = 0;             // from pair to pair
  int64_t head_stride = 0, axis_stride = 0;
  int64_t heads = 1;  // 1: the same for all
  int64_t axes = 0;   // that are summed over; 0: no sum

  // Frequencies of one pair of one head.
  POSENC_HD int64_t terms() const { return axes > 0 ? axes : 1; }

  POSENC_HD int64_t offset(int64_t term, int64_t head, int64_t pair) const {
    return term * axis_stride + head * head_stride + pair * stride;
  }
  // The bits of a frequency, which memory takes a while to deliver, and what they are in turns.
  POSENC_HD uint64_t bits(int64_t term, int64_t head, int64_t pair) const {
    const int64_t at = offset(term, head, pair);
    uint64_t bits = 0;
    if (dtype == Dtype::kFloat32) {
      const float number = static_cast<const float*>(data)[at];
      memcpy(&bits, &number, sizeof number);
    } else {
      const double number = static_cast<const double*>(data)[at];
      memcpy(&bits, &number, sizeof number);
    }
    return bits;
  }
  POSENC_HD Turns turns_of(uint64_t bits) const {
    float narrow;
    double wide;
    memcpy(&narrow, &bits, sizeof narrow);
    memcpy(&wide, &bits, sizeof wide);
    return turns_from_radians(dtype == Dtype::kFloat32 ? to_binary(narrow) : to_binary(wide));
  }
  POSENC_HD Turns turns(int64_t term, int64_t head, int64_t pair) const {
    return turns_of(bits(term, head, pair));
  }
  POSENC_HD double radians(int64_t term, int64_t head, int64_t pair) const {
    const int64_t at = offset(term, head, pair);
    return dtype == Dtype::kFloat32 ? static_cast<const float*>(data)[at]
                                    : static_cast<const double*>(data)[at];
  }
  InverseFrequencies of_head(int64_t head) const {
    InverseFrequencies one = *this;
    one.data = static_cast<const char*>(data) + offset(0, head, 0) * item_size(dtype);
    one.heads = 1;
    return one;
  }
};

// Frequencies in turns, as the CPU's kernels read them: [heads, terms, pairs]; memory is the
// caller's.
struct Frequencies {
  const uint64_t* fraction = nullptr;
  const uint64_t* whole = nullptr;
};

// inv_freq of up to `max_rank` axes: float32 or float64, finite, below kMaxFrequency.
InverseFrequencies check_frequencies(const char* function, const Array& inv_freq, int max_rank = 1);
void turns_from_frequencies(const InverseFrequencies& inv_freq, int64_t pairs, uint64_t* fraction,
                            uint64_t* whole);

// axis_map[P] of integers in 0 .. axes - 1.
AxisMap check_axis_map(const char* function, const Array& axis_map, int64_t pairs, int64_t axes);

}  // namespace posenc
