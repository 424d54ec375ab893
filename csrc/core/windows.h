// What all relative operators share: rows that are windows of entries, as distances give them.
//
//   entry of query i and key j:   e = origin + j - i       origin: the entry of query 0 and key 0
//
//     e    j ->                     A row is a window of the entries; from row to row it moves back
//     i    3 4 5 6 7                by one. With q_offset, query i is at position q_offset + i: the
//     |    2 3 4 5 6                windows of a plane begin that much earlier.
//     v    1 2 3 4 5
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/angles.h"
#include "core/view.h"

namespace posenc {

// The matrices [queries, keys] (or [queries, width]) of all planes; strides in elements.
struct Matrices {
  void* data = nullptr;
  int64_t plane_strides[kMaxRank] = {};
  int64_t row_stride = 0, column_stride = 0;
};

// The leading axes of a call, in C order.
struct Planes {
  int rank = 0;
  int64_t shape[kMaxRank] = {};

  POSENC_HD int64_t count(int first, int last) const {
    int64_t product = 1;
    for (int axis = first; axis < last; ++axis) product *= shape[axis];
    return product;
  }
};

// origin - q_offset. Values that could not be checked, in a GPU's memory, do not lead out of
// bounds.
POSENC_HD inline int64_t clamped_origin(int64_t origin, int64_t q_offset, int64_t low,
                                        int64_t high) {
  const int64_t first =
      static_cast<int64_t>(static_cast<uint64_t>(origin) - static_cast<uint64_t>(q_offset));
  return first < low ? low : first > high ? high : first;
}

Matrices matrices(const Array& array, int leading);

// The whole array fits into memory's address range.
void check_size(const char* function, const int64_t* shape, int rank);

// 0 .. 2^61 - 1
void check_length(const char* function, const std::string& name, int64_t length);

// Within 2^61, or what else is the most: origins beyond that are of no use, and sums with them and
// with lengths cannot overflow.
constexpr int64_t kMaxOrigin = int64_t{1} << 61;
void check_origin(const char* function, int64_t origin, int64_t most = kMaxOrigin);

// A call's q_offset: integers for the first leading axes.
void check_q_offset(const char* function, const Array& q_offset, const int64_t* leading, int rank);

// Windows of `queries` rows and `keys` columns stay within the entries, wherever q_offset puts
// them. `entries` names what has them.
void check_windows(const char* function, const std::string& name, int64_t entries, int64_t queries,
                   int64_t keys, int64_t origin, const Array* q_offset);

// Calls visit(value) for the values of an integer array that can be looked at.
template <typename Visit>
void for_each_integer(const Array& array, const Visit& visit) {
  if (array.empty() || !array.readable) return;
  // The last axis by itself: a loop without a question for each.
  const int last = std::max(array.rank - 1, 0);
  const int64_t length = array.rank == 0 ? 1 : array.shape[last];
  const int64_t step = array.rank == 0 ? 0 : array.stride[last];
  const bool is_unsigned = array.dtype == Dtype::kUInt64;
  // What the values are is asked once, not for each.
  Positions{array.data, array.dtype, 0}.visit([&](auto values) {
    for_each_offset(array, last, [&](int64_t offset) {
      for (int64_t i = 0; i < length; ++i) {
        const int64_t value = to_position(values[offset + i * step]).integer;
        const bool too_large = is_unsigned && value < 0;  // 2^63 and more
        visit(too_large ? INT64_MAX : value);
      }
    });
  });
}

}  // namespace posenc
