#include "core/angles.h"

#include <cmath>

namespace posenc {

InverseFrequencies check_frequencies(const char* function, const Array& inv_freq) {
  if (inv_freq.dtype != Dtype::kFloat32 && inv_freq.dtype != Dtype::kFloat64) {
    fail_type(function, "inv_freq", "dtype float32 or float64", inv_freq.dtype_name);
  }
  if (inv_freq.rank != 1) fail_value(function, "inv_freq", "shape [P]", shape_string(inv_freq));
  for (int64_t i = 0; inv_freq.readable && i < inv_freq.shape[0]; ++i) {
    const int64_t at = i * inv_freq.stride[0];
    const double w = inv_freq.dtype == Dtype::kFloat32 ? static_cast<float*>(inv_freq.data)[at]
                                                       : static_cast<double*>(inv_freq.data)[at];
    if (!(std::fabs(w) < kMaxFrequency)) {
      fail_value(function, "inv_freq", "finite values of magnitude below 2^63",
                 std::to_string(w) + " at [" + std::to_string(i) + "]");
    }
  }
  return {inv_freq.data, inv_freq.dtype, inv_freq.stride[0]};
}

void turns_from_frequencies(const InverseFrequencies& inv_freq, int64_t pairs, uint64_t* fraction,
                            uint64_t* whole) {
  for (int64_t i = 0; i < pairs; ++i) {
    const Turns turns = inv_freq[i];
    fraction[i] = turns.fraction;
    whole[i] = turns.whole;
  }
}

AxisMap check_axis_map(const char* function, const Array& axis_map, int64_t pairs, int64_t axes) {
  if (!is_integer(axis_map.dtype)) {
    fail_type(function, "axis_map", "an integer dtype", axis_map.dtype_name);
  }
  if (axis_map.rank != 1 || axis_map.shape[0] != pairs) {
    fail_value(function, "axis_map", "shape [P] = [" + std::to_string(pairs) + "]",
               shape_string(axis_map));
  }
  const AxisMap map{axis_map.data, axis_map.dtype, axis_map.stride[0], axes};
  for (int64_t i = 0; axis_map.readable && i < pairs; ++i) {
    if (map[i] < 0 || map[i] >= axes) {
      fail_value(function, "axis_map", "values in 0 .. " + std::to_string(axes - 1),
                 std::to_string(map[i]) + " at [" + std::to_string(i) + "]");
    }
  }
  return map;
}

}  // namespace posenc
