#include "core/view.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace posenc {

bool Array::empty() const {
  return std::any_of(shape, shape + rank, [](int64_t n) { return n == 0; });
}

bool Array::aligned() const {
  if (dtype == Dtype::kOther) return true;
  const auto beyond = static_cast<uintptr_t>(item_size(dtype) - 1);
  return (reinterpret_cast<uintptr_t>(data) & beyond) == 0 || empty();
}

std::string Error::message() const {
  return function + ": " + argument + ": expected " + expected + ", got " + got;
}

void fail_value(std::string_view function, std::string_view argument, const std::string& expected,
                const std::string& got) {
  throw Error{Error::kValue, std::string(function), std::string(argument), expected, got};
}

void fail_type(std::string_view function, std::string_view argument, const std::string& expected,
               const std::string& got) {
  throw Error{Error::kType, std::string(function), std::string(argument), expected, got};
}

std::string shown(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

std::string shown(int64_t number) {
  constexpr int64_t kLong = 1000000000000000;
  const bool is_long = number >= kLong || number <= -kLong;
  return is_long ? shown(static_cast<double>(number)) : std::to_string(number);
}

std::string to_string(const int64_t* numbers, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) {
    if (i) text += ", ";
    text += shown(numbers[i]);
  }
  return text + "]";
}

std::string shape_string(const Array& array) { return to_string(array.shape, array.rank); }

void check_real(std::string_view function, std::string_view argument, const Array& array) {
  if (!is_real(array.dtype)) {
    fail_type(function, argument, "dtype float16, bfloat16, float32 or float64", array.dtype_name);
  }
}

void check_finite(std::string_view function, std::string_view argument, double value) {
  if (!std::isfinite(value)) {
    fail_value(function, argument, "a finite number", shown(value));
  }
}

void check_factor(std::string_view function, std::string_view argument, double value, Dtype dtype) {
  check_finite(function, argument, value);
  // From 2^128 - 2^103 on, a number rounds to infinity.
  if (dtype != Dtype::kFloat64 && !(std::fabs(value) < 0x1.ffffffp127)) {
    fail_value(function, argument, "a finite number in float32", shown(value));
  }
}

namespace {

template <typename Real>
void check_finite_positions(std::string_view function, const Array& positions) {
  const Real* data = static_cast<const Real*>(positions.data);
  if (positions.empty() || !positions.readable) return;
  for_each_offset(positions, positions.rank, [&](int64_t offset) {
    // Also false for NaN.
    if (std::fabs(data[offset]) < Real(9223372036854775808.0)) return;
    fail_value(function, "positions", "finite values of magnitude below 2^63",
               shown(static_cast<double>(data[offset])));
  });
}

// One term of  sum_k stride_k * x_k = target,  low_k <= x_k <= high_k,  with stride_k > 0.
struct Term {
  int64_t stride, low, high;
};

// Whether a solution exists; terms in order of falling stride. Such strides are mostly nested, so
// that few x_k are left to try at each level.
bool solvable(const Term* terms, int count, int64_t target, int& budget) {
  if (count == 0) return target == 0;
  if (--budget < 0) return true;
  int64_t rest_low = 0, rest_high = 0;
  for (int i = 1; i < count; ++i) {
    rest_low += terms[i].stride * terms[i].low;
    rest_high += terms[i].stride * terms[i].high;
  }
  const auto floor_divide = [](int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0); };
  const Term& term = terms[0];
  const int64_t first = std::max(term.low, -floor_divide(-(target - rest_high), term.stride));
  const int64_t last = std::min(term.high, floor_divide(target - rest_low, term.stride));
  for (int64_t x = first; x <= last; ++x) {
    if (solvable(terms + 1, count - 1, target - term.stride * x, budget)) return true;
  }
  return false;
}

void add_terms(const Array& array, int sign, Term* terms, int& count, int64_t& offset) {
  const int64_t size = item_size(array.dtype);
  for (int i = 0; i < array.rank; ++i) {
    const int64_t reach = array.shape[i] - 1;
    if (reach == 0 || array.stride[i] == 0) continue;  // a stride to nowhere may be any number
    const int64_t stride = array.stride[i] * size;
    const int64_t magnitude = std::llabs(stride);
    // x runs over 0..reach with the sign of the stride: measured from the lowest address.
    if (stride < 0) offset += sign * stride * reach;
    const int64_t low = sign > 0 ? 0 : -reach, high = sign > 0 ? reach : 0;
    Term* same = std::find_if(terms, terms + count,
                              [&](const Term& term) { return term.stride == magnitude; });
    if (same == terms + count) {
      terms[count++] = {magnitude, low, high};
    } else {
      same->low += low;
      same->high += high;
    }
  }
}

// No two indices of a view name the same memory. Sufficient, and exact for nested strides.
bool distinct_elements(const Array& array) {
  if (array.empty()) return true;
  int order[kMaxRank], count = 0;
  for (int i = 0; i < array.rank; ++i) {
    if (array.shape[i] > 1) order[count++] = i;
  }
  const auto stride = [&](int i) { return std::llabs(array.stride[i]); };
  std::sort(order, order + count, [&](int a, int b) { return stride(a) < stride(b); });
  int64_t extent = 0;
  for (int i = 0; i < count; ++i) {
    if (stride(order[i]) <= extent) return false;
    extent += stride(order[i]) * (array.shape[order[i]] - 1);
  }
  return true;
}

}  // namespace

void check_positions(std::string_view function, const Array& positions) {
  if (positions.dtype == Dtype::kFloat32) {
    check_finite_positions<float>(function, positions);
  } else if (positions.dtype == Dtype::kFloat64) {
    check_finite_positions<double>(function, positions);
  } else if (!is_integer(positions.dtype)) {
    const bool half = is_real(positions.dtype);
    const bool mask = std::strcmp(positions.dtype_name, "bool") == 0;
    fail_type(function, "positions",
              std::string("an integer dtype, float32 or float64") +
                  (half   ? " (16-bit floats cannot tell positions apart)"
                   : mask ? " (padded_positions makes positions from a mask)"
                          : ""),
              positions.dtype_name);
  }
}

bool same_view(const Array& a, const Array& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.shape[i] != b.shape[i]) return false;
    if (a.stride[i] != b.stride[i] && a.shape[i] > 1) return false;
  }
  return true;
}

int64_t span(const Array& array) {
  if (array.empty()) return 0;
  int64_t last = 0;
  for (int i = 0; i < array.rank; ++i) last += array.stride[i] * (array.shape[i] - 1);
  return last + 1;
}

Bounds::Bounds(const Array& array) {
  const int64_t size = item_size(array.dtype);
  low = high = reinterpret_cast<int64_t>(array.data);
  bool empty = false;
  for (int i = 0; i < array.rank; ++i) {
    const int64_t extent = array.stride[i] * (array.shape[i] - 1) * size;
    (extent < 0 ? low : high) += extent;
    empty = empty || array.shape[i] == 0;
  }
  high = empty ? low : high + size;
}

bool may_overlap(const Array& a, const Array& b) {
  if (!Bounds(a).meet(Bounds(b))) return false;
  // Some byte of an element of a is some byte of an element of b:
  //   a.data + sum(stride_a * i) + byte_a = b.data + sum(stride_b * j) + byte_b
  Term terms[2 * kMaxRank + 1];
  int count = 0;
  int64_t offset = 0;
  add_terms(a, 1, terms, count, offset);
  add_terms(b, -1, terms, count, offset);
  std::sort(terms, terms + count, [](const Term& x, const Term& y) { return x.stride > y.stride; });
  terms[count++] = {1, 1 - item_size(b.dtype), item_size(a.dtype) - 1};
  const int64_t target =
      reinterpret_cast<int64_t>(b.data) - reinterpret_cast<int64_t>(a.data) - offset;
  int budget = 10000;
  return solvable(terms, count, target, budget);
}

void check_output(std::string_view function, std::string_view name, const Array& out,
                  const int64_t* shape, int rank, const Array& like) {
  if (out.dtype != like.dtype) fail_type(function, name, like.dtype_name, out.dtype_name);
  if (out.rank != rank || !std::equal(shape, shape + rank, out.shape)) {
    fail_value(function, name, "shape " + to_string(shape, rank), shape_string(out));
  }
  if (!distinct_elements(out)) {
    fail_value(function, name, "separate memory for every element",
               "strides " + to_string(out.stride, out.rank) + " (in elements) for shape " +
                   shape_string(out));
  }
}

void check_overlap(std::string_view function, std::string_view out_name, const Array& out,
                   std::string_view in_name, const Array& in) {
  if (same_view(out, in) || !may_overlap(out, in)) return;
  const std::string name(in_name);
  fail_value(function, out_name, "the same view as " + name + ", or no memory in common with it",
             "a partial overlap");
}

}  // namespace posenc
