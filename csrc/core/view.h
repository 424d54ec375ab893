// What a caller hands over: arrays described by pointer, shape and strides, and the checks that all
// operations share. Whatever memory safety needs is checked before any byte is touched.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace posenc {

enum class Dtype : uint8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kUInt8,
  kInt16,
  kUInt16,
  kInt32,
  kUInt32,
  kInt64,
  kUInt64,
  kFloat8E4M3,  // without infinities
  kFloat8E5M2,
  kOther,  // bool, complex and whatever else nobody can use here
};

constexpr int64_t item_size(Dtype dtype) {
  switch (dtype) {
    case Dtype::kInt8:
    case Dtype::kUInt8:
    case Dtype::kFloat8E4M3:
    case Dtype::kFloat8E5M2:
      return 1;
    case Dtype::kFloat16:
    case Dtype::kBFloat16:
    case Dtype::kInt16:
    case Dtype::kUInt16:
      return 2;
    case Dtype::kFloat32:
    case Dtype::kInt32:
    case Dtype::kUInt32:
      return 4;
    default:
      return 8;
  }
}

constexpr bool is_integer(Dtype dtype) { return dtype >= Dtype::kInt8 && dtype <= Dtype::kUInt64; }
constexpr bool is_real(Dtype dtype) { return dtype <= Dtype::kFloat64; }
// What a result may be kept in, divided by a scale.
constexpr bool is_eight_bits(Dtype dtype) {
  return dtype == Dtype::kFloat8E4M3 || dtype == Dtype::kFloat8E5M2 || dtype == Dtype::kInt8;
}

constexpr int kMaxRank = 16;

// Strides are in elements, of any sign; 0 repeats an element.
struct Array {
  void* data = nullptr;
  Dtype dtype = Dtype::kOther;
  int rank = 0;
  const char* dtype_name = "";  // for messages
  bool readable = true;         // its values can be looked at: it is not in a GPU's memory
  int64_t shape[kMaxRank];      // of `rank` numbers each
  int64_t stride[kMaxRank];

  bool empty() const;
  // Whether its elements begin at multiples of their size: kernels rely on it.
  bool aligned() const;
};

// visit(element offset) for every index of the first `axes` axes of an array that is not empty.
template <typename Visit>
void for_each_offset(const Array& array, int axes, const Visit& visit) {
  int64_t index[kMaxRank] = {};
  int64_t offset = 0;
  for (;;) {
    visit(offset);
    int axis = axes - 1;
    for (; axis >= 0; --axis) {
      offset += array.stride[axis];
      if (++index[axis] < array.shape[axis]) break;
      offset -= array.stride[axis] * array.shape[axis];
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

// Becomes ValueError or TypeError in Python, with these fields: core/calls/errors.py.
struct Error {
  enum Kind { kValue, kType } kind;
  std::string function, argument, expected, got;

  // "<function>: <argument>: expected ..., got ..."
  std::string message() const;
};

[[noreturn]] void fail_value(std::string_view function, std::string_view argument,
                             const std::string& expected, const std::string& got);
[[noreturn]] void fail_type(std::string_view function, std::string_view argument,
                            const std::string& expected, const std::string& got);

// Numbers as an error has them: six digits of one that is fractional or has more than 15.
std::string shown(double number);
std::string shown(int64_t number);

std::string to_string(const int64_t* numbers, int count);
std::string shape_string(const Array& array);

// float16, bfloat16, float32 or float64.
void check_real(std::string_view function, std::string_view argument, const Array& array);

void check_finite(std::string_view function, std::string_view argument, double value);

// What a result of this dtype is multiplied by: finite, also in float32 where that computes it.
void check_factor(std::string_view function, std::string_view argument, double value, Dtype dtype);

// An integer dtype, float32 or float64; floats finite and within the int64 range.
void check_positions(std::string_view function, const Array& positions);

// An out= of the given shape and dtype, in which no two indices name the same memory.
void check_output(std::string_view function, std::string_view name, const Array& out,
                  const int64_t* shape, int rank, const Array& like);

// An output may be the very view of an input, or share no byte with it.
void check_overlap(std::string_view function, std::string_view out_name, const Array& out,
                   std::string_view in_name, const Array& in);

// The lowest byte of a view and one past its highest; of an empty one there is none.
struct Bounds {
  int64_t low = 0, high = 0;

  Bounds() = default;
  explicit Bounds(const Array& array);

  bool meet(const Bounds& other) const {
    return low < other.high && other.low < high && low < high && other.low < other.high;
  }
};

// Whether two views name a common byte. A search over the strides decides it exactly (a bounded
// Diophantine problem; undecided after the bound counts as yes). So q and k may be slices of one
// packed buffer and be rotated in place.
bool may_overlap(const Array& a, const Array& b);

bool same_view(const Array& a, const Array& b);

// How many elements a view spans from its first to its last, without negative strides; 0 if empty.
int64_t span(const Array& array);

}  // namespace posenc
