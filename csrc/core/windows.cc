#include "core/windows.h"

#include <algorithm>
#include <limits>

namespace posenc {

Matrices matrices(const Array& array, int leading) {
  Matrices result;
  result.data = array.data;
  std::copy_n(array.stride, leading, result.plane_strides);
  result.row_stride = array.stride[leading];
  result.column_stride = array.stride[leading + 1];
  return result;
}

void check_size(const char* function, const int64_t* shape, int rank) {
  if (std::any_of(shape, shape + rank, [](int64_t size) { return size == 0; })) return;
  int64_t bytes = 8;
  for (int i = 0; i < rank; ++i) {
    if (bytes > std::numeric_limits<int64_t>::max() / shape[i]) {
      fail_value(function, "result", "less than 2^63 bytes", "shape " + to_string(shape, rank));
    }
    bytes *= shape[i];
  }
}

void check_length(const char* function, const std::string& name, int64_t length) {
  if (length < 0 || length >= kMaxOrigin) {
    fail_value(function, name, "a length in 0 .. 2^61 - 1", shown(length));
  }
}

void check_origin(const char* function, int64_t origin, int64_t most) {
  if (origin <= -most || origin >= most) {
    fail_value(function, "origin", "an int within 2^61", shown(origin));
  }
}

void check_q_offset(const char* function, const Array& q_offset, const int64_t* leading, int rank) {
  if (!is_integer(q_offset.dtype)) {
    fail_type(function, "q_offset", "an int or an integer dtype", q_offset.dtype_name);
  }
  if (q_offset.rank > rank ||
      !std::equal(q_offset.shape, q_offset.shape + q_offset.rank, leading)) {
    fail_value(function, "q_offset", "the first sizes of " + to_string(leading, rank),
               "shape " + shape_string(q_offset));
  }
}

void check_windows(const char* function, const std::string& name, int64_t entries, int64_t queries,
                   int64_t keys, int64_t origin, const Array* q_offset) {
  check_origin(function, origin);
  if (queries == 0 || keys == 0) return;
  const auto check = [&](int64_t offset) {
    int64_t first = 0;
    const bool overflow = __builtin_sub_overflow(origin, offset, &first);
    if (!overflow && first >= queries - 1 && first <= entries - keys) return;
    const std::string at =
        " with query 0 and key 0 at entry " + std::to_string(origin) +
        (q_offset != nullptr ? " minus q_offset = " + std::to_string(offset) : std::string());
    fail_value(function, name,
               "entries for all distances of " + std::to_string(queries) + " queries and " +
                   std::to_string(keys) + " keys, at least " + std::to_string(queries + keys - 1),
               std::to_string(entries) + at);
  };
  if (q_offset == nullptr) return check(0);
  for_each_integer(*q_offset, check);
}

}  // namespace posenc
