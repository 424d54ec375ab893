// What harnesses share: choices from the fuzzer's bytes, and arrays described by them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/view.h"

namespace posenc::fuzz {

// A statement that must hold of whatever the fuzzer tries.
#define POSENC_FUZZ_EXPECT(condition, ...)                                 \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                   \
      std::fputc('\n', stderr);                                            \
      std::abort();                                                        \
    }                                                                      \
  } while (false)

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return at_ >= size_; }

  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }

  // 0 .. n - 1, n <= 256
  int below(int n) { return byte() % n; }

  bool flag() { return (byte() & 1) != 0; }

  template <typename T>
  T number() {
    T value{};
    const size_t count = std::min(sizeof(T), size_ - std::min(at_, size_));
    std::memcpy(&value, data_ + at_, count);
    at_ += count;
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

inline const char* name_of(Dtype dtype) {
  static const char* const names[] = {"float16", "bfloat16", "float32", "float64", "int8",
                                      "uint8",   "int16",    "uint16",  "int32",   "uint32",
                                      "int64",   "uint64",   "other"};
  return names[static_cast<int>(dtype)];
}

// Lowest and highest offset of an element, in elements, of an array that is not empty.
struct Reach {
  __int128 low = 0, high = 0;

  void add(__int128 stride, __int128 count) {
    const __int128 extent = stride * (count - 1);
    (extent < 0 ? low : high) += extent;
  }
};

inline Reach reach_of(const Array& array) {
  Reach reach;
  for (int i = 0; i < array.rank; ++i) reach.add(array.stride[i], array.shape[i]);
  return reach;
}

// A length or a stride, as arrays have them; strides of axes of which no second element exists may
// be anything.
inline void draw_axes(Input& input, Array& array, int largest) {
  for (int i = 0; i < array.rank; ++i) array.shape[i] = input.below(largest + 1);
  const bool nothing = array.empty();
  for (int i = 0; i < array.rank; ++i) {
    const int8_t small = static_cast<int8_t>(input.byte());
    array.stride[i] = small / 5;
    if (small == 127 && (nothing || array.shape[i] == 1)) array.stride[i] = input.number<int64_t>();
  }
}

// The strides of a contiguous array, axes in C order, now and then with one larger or negative.
inline void draw_plain_axes(Input& input, Array& array) {
  int64_t stride = 1;
  for (int i = array.rank - 1; i >= 0; --i) {
    const uint8_t style = input.byte();
    if (style < 32) stride += style % 5;
    array.stride[i] = style % 16 == 15 ? -stride : stride;
    stride *= array.shape[i] > 0 ? array.shape[i] : 1;
  }
}

// Arrays of one call. Those whose values are looked at have memory of exactly their extent, which
// the sanitizer guards; the others share a space of addresses that nobody may touch.
class Arrays {
 public:
  explicit Arrays(Input& input) : input_(input) {}

  // Only described. `index` tells spaces apart that do not overlap, unless the fuzzer wants it.
  Array described(Dtype dtype, int rank, const int64_t* shape) {
    Array array = of_shape(dtype, rank, shape);
    const int64_t item = item_size(dtype);
    const int64_t space = input_.flag() ? next_++ : input_.below(static_cast<int>(next_) + 1);
    const int64_t address = (int64_t{1} << 40) + space * (1 << 20) + input_.byte() * item;
    array.data = reinterpret_cast<void*>(address);
    return array;
  }

  // With memory, filled by fill(i) for each of its numbers in turn.
  template <typename Fill>
  Array real(Dtype dtype, int rank, const int64_t* shape, const Fill& fill) {
    Array array = of_shape(dtype, rank, shape);
    const size_t item = static_cast<size_t>(item_size(dtype));
    if (array.empty()) {
      memory_.emplace_back(new char[1]);
      array.data = memory_.back().get() + 1;  // behind its end: nothing of it may be read
      return array;
    }
    const Reach reach = reach_of(array);
    const size_t count = static_cast<size_t>(reach.high - reach.low) + 1;
    memory_.emplace_back(new char[count * item]);
    char* const first = memory_.back().get();
    for (size_t i = 0; i < count; ++i) fill(first + i * item, i);
    array.data = first + static_cast<int64_t>(-reach.low) * static_cast<int64_t>(item);
    return array;
  }

 private:
  Array of_shape(Dtype dtype, int rank, const int64_t* shape) {
    Array array;
    array.dtype = dtype;
    array.dtype_name = name_of(dtype);
    array.rank = rank;
    std::copy_n(shape, rank, array.shape);
    if (input_.flag()) {
      draw_plain_axes(input_, array);
    } else {
      Array drawn = array;
      draw_axes(input_, drawn, 1);
      std::copy_n(drawn.stride, rank, array.stride);
      for (int i = 0; i < rank; ++i) {
        if (array.shape[i] > 1 && !array.empty() && std::llabs(array.stride[i]) > 64) {
          array.stride[i] = 1;
        }
      }
    }
    return array;
  }

  Input& input_;
  int64_t next_ = 0;
  std::vector<std::unique_ptr<char[]>> memory_;
};

inline Dtype draw_real(Input& input) { return static_cast<Dtype>(input.below(4)); }

// Mostly one of the four floats.
inline Dtype draw_any(Input& input) {
  const uint8_t choice = input.byte();
  return choice < 240 ? static_cast<Dtype>(choice % 4) : static_cast<Dtype>(choice % 13);
}

// Offsets of an operation, of one axis after the other, lie in an array: `reach` against its own.
inline void expect_inside(const Array& array, const Reach& reach, __int128 first,
                          const char* what) {
  const Reach own = reach_of(array);
  POSENC_FUZZ_EXPECT(first + reach.low >= own.low && first + reach.high <= own.high,
                     "%s: from %lld to %lld, but the array is from %lld to %lld", what,
                     static_cast<long long>(first + reach.low),
                     static_cast<long long>(first + reach.high), static_cast<long long>(own.low),
                     static_cast<long long>(own.high));
}

// Where `data` lies in an array, in elements.
inline __int128 first_of(const Array& array, const void* data) {
  const int64_t bytes = reinterpret_cast<int64_t>(data) - reinterpret_cast<int64_t>(array.data);
  POSENC_FUZZ_EXPECT(bytes % item_size(array.dtype) == 0, "%lld bytes",
                     static_cast<long long>(bytes));
  return bytes / item_size(array.dtype);
}

}  // namespace posenc::fuzz
