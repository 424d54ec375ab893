#include "core/angles.h"

#include <cmath>
#include <string>

namespace posenc {
bool read_positions(const Positions& positions, int64_t offset, int64_t stride, int64_t count,
                    int64_t* integer, uint64_t* fraction) {
  return positions.visit([&](auto from) {
    bool fractional = false;
    for (int64_t i = 0; i < count; ++i) {
      const Position position = to_position(from[offset + i * stride]);
      integer[i] = position.integer;
      fraction[i] = position.fraction;
      fractional = fractional || position.fraction != 0;
    }
    return fractional;
  });
}

namespace {

// By as many numbers at once as the processor compares: a call for one token notices.
template <typename Number>
bool all_within_range(const Number* frequencies, int64_t count) {
  bool within = true;
  for (int64_t i = 0; i < count; ++i) {
    within &= std::fabs(frequencies[i]) < static_cast<Number>(kMaxFrequency);
  }
  return within;
}

// Whether a row of frequencies is known to be; false for one that is no run of numbers.
bool all_within_range(const InverseFrequencies& inv_freq, int64_t term, int64_t head,
                      int64_t count) {
  if (inv_freq.stride != 1) return false;
  const int64_t first = inv_freq.offset(term, head, 0);
  return inv_freq.dtype == Dtype::kFloat32
             ? all_within_range(static_cast<const float*>(inv_freq.data) + first, count)
             : all_within_range(static_cast<const double*>(inv_freq.data) + first, count);
}

}  // namespace

InverseFrequencies check_frequencies(const char* function, const Array& inv_freq, int max_rank) {
  if (inv_freq.dtype != Dtype::kFloat32 && inv_freq.dtype != Dtype::kFloat64) {
    fail_type(function, "inv_freq", "dtype float32 or float64", inv_freq.dtype_name);
  }
  const int rank = inv_freq.rank;
  if (rank < 1 || rank > max_rank) {
    fail_value(function, "inv_freq", max_rank == 1 ? "shape [P]" : "shape [P], [H, P] or [A, H, P]",
               shape_string(inv_freq));
  }
  InverseFrequencies result{inv_freq.data, inv_freq.dtype, inv_freq.stride[rank - 1]};
  const int64_t pairs = inv_freq.shape[rank - 1];
  if (rank > 1) {
    result.heads = inv_freq.shape[rank - 2];
    result.head_stride = inv_freq.stride[rank - 2];
  }
  if (rank > 2) {
    result.axes = inv_freq.shape[0];
    result.axis_stride = inv_freq.stride[0];
    if (result.axes == 0) {
      fail_value(function, "inv_freq", "[A, H, P] with A >= 1", shape_string(inv_freq));
    }
  }
  if (!inv_freq.readable) return result;
  for (int64_t term = 0; term < result.terms(); ++term) {
    for (int64_t head = 0; head < result.heads; ++head) {
      if (all_within_range(result, term, head, pairs)) continue;
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const double w = result.radians(term, head, pair);
        if (std::fabs(w) < kMaxFrequency) continue;
        std::string at = std::to_string(pair);
        if (rank > 1) at = std::to_string(head) + ", " + at;
        if (rank > 2) at = std::to_string(term) + ", " + at;
        fail_value(function, "inv_freq", "finite values of magnitude below 2^63",
                   shown(w) + " at [" + at + "]");
      }
    }
  }
  return result;
}

void turns_from_frequencies(const InverseFrequencies& inv_freq, int64_t pairs, uint64_t* fraction,
                            uint64_t* whole) {
  int64_t i = 0;
  for (int64_t head = 0; head < inv_freq.heads; ++head) {
    for (int64_t term = 0; term < inv_freq.terms(); ++term) {
      for (int64_t pair = 0; pair < pairs; ++pair, ++i) {
        const Turns turns = inv_freq.turns(term, head, pair);
        fraction[i] = turns.fraction;
        whole[i] = turns.whole;
      }
    }
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
                 shown(map[i]) + " at [" + std::to_string(i) + "]");
    }
  }
  return map;
}

}  // namespace posenc
