// Runs of neighboring numbers: read, combined with a second run, written into the cache or past
// it. Nothing outside of a run is read or written.

#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/half.h"
#include "core/view.h"
#include "cpu/numbers-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How far ahead of its use memory is requested: the processor's own requests end with a page.
constexpr int64_t kAheadBytes = 1024;

template <typename T>
constexpr bool kIsHalf = !std::is_same_v<T, Real<T>>;

template <typename D>
HWY_INLINE int64_t lanes(D d) {
  return static_cast<int64_t>(hn::Lanes(d));
}

// Requests a cache line that is wanted later than at once: it waits in the second level.
HWY_INLINE void prefetch_later(const void* line) { __builtin_prefetch(line, 0, 2); }

// Requests what comes after the i-th element of a run of `count`: behind its end `next` is read.
template <typename T>
class Ahead {
 public:
  Ahead() = default;
  Ahead(const T* from, const T* next, int64_t count)
      : here_(from + kDistance), after_(next - (count - kDistance)), turn_(count - kDistance) {}

  HWY_INLINE void operator()(int64_t i) const { hwy::Prefetch((i < turn_ ? here_ : after_) + i); }

 private:
  static constexpr int64_t kDistance = kAheadBytes / static_cast<int64_t>(sizeof(T));
  const T* here_ = nullptr;
  const T* after_ = nullptr;
  int64_t turn_ = 0;
};

// --- From one format to another

// To float32, towards zero with the last bit set if inexact: 16-bit formats then round once.
inline float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || value != value) return nearest;
  const double magnitude = nearest < 0 ? -static_cast<double>(nearest) : nearest;
  const uint32_t beyond = magnitude > (value < 0 ? -value : value) ? 1 : 0;
  return float_from_bits((bits_from_float(nearest) - beyond) | 1);
}

// The number of type To nearest to the value. Numbers of the same type are copied bit for bit, if
// asked to; else there is one NaN for all: see round_bfloat16.
template <bool kBits, typename To, typename From>
HWY_INLINE To convert(From from) {
  if constexpr (kBits && std::is_same_v<To, From>) {
    return from;
  } else {
    constexpr Real<To> kNaN = std::numeric_limits<Real<To>>::quiet_NaN();
    Real<To> value;
    if constexpr (!std::is_same_v<From, double>) {
      value = to_float(from);
    } else if constexpr (kIsHalf<To>) {
      value = round_to_odd(from);
    } else {
      value = static_cast<Real<To>>(from);
    }
    return round_to<To>(value == value ? value : kNaN);
  }
}

template <bool kBits, typename To, typename From>
HWY_ATTR void convert_run(const From* from, int64_t step, int64_t count, To* to) {
  int64_t i = 0;
  if constexpr (kBits && std::is_same_v<To, From>) {
    if (step == 1) {
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(To));
      return;
    }
  } else if constexpr (std::is_same_v<Real<To>, float> && std::is_same_v<Real<From>, float>) {
    if (step == 1) {
      const RealTag<To> d;
      const auto nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
      for (; i + lanes(d) <= count; i += lanes(d)) {
        const auto value = load(d, from + i);
        store<Store::kOrdinary>(hn::IfThenElse(hn::IsNaN(value), nan, value), d, to + i);
      }
    }
  }
  for (; i < count; ++i) to[i] = convert<kBits, To>(from[i * step]);
}

// Of any dtype; offset and step in elements.
template <bool kBits, typename To>
void convert_run(const void* from, Dtype dtype, int64_t offset, int64_t step, int64_t count,
                 To* to) {
  switch (dtype) {
    case Dtype::kFloat16:
      return convert_run<kBits>(static_cast<const Float16*>(from) + offset, step, count, to);
    case Dtype::kBFloat16:
      return convert_run<kBits>(static_cast<const BFloat16*>(from) + offset, step, count, to);
    case Dtype::kFloat32:
      return convert_run<kBits>(static_cast<const float*>(from) + offset, step, count, to);
    default:
      return convert_run<kBits>(static_cast<const double*>(from) + offset, step, count, to);
  }
}

template <typename T>
constexpr Dtype dtype_of() {
  return std::is_same_v<T, Float16>    ? Dtype::kFloat16
         : std::is_same_v<T, BFloat16> ? Dtype::kBFloat16
         : std::is_same_v<T, float>    ? Dtype::kFloat32
                                       : Dtype::kFloat64;
}

template <typename T>
using Bits = std::conditional_t<sizeof(T) == 2, uint16_t,
                                std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

// Part of a vector or two: a few neighbors, to a buffer that has room for whole vectors, and back.
// By whole vectors where memory has masks: what reads the buffer next, at once, needs not wait for
// many small writes.
template <typename T>
HWY_INLINE void read_neighbours(const T* from, int64_t count, T* buffer) {
#if HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<Bits<T>> d;
  for (int64_t i = 0; i < count; i += lanes(d)) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(std::min(count - i, lanes(d))));
    hn::Store(hn::MaskedLoad(mask, d, reinterpret_cast<const Bits<T>*>(from + i)), d,
              reinterpret_cast<Bits<T>*>(buffer + i));
  }
#else
  std::memcpy(buffer, from, static_cast<size_t>(count) * sizeof(T));
#endif
}
template <typename T>
HWY_INLINE void write_neighbours(const T* buffer, int64_t count, T* to) {
#if HWY_TARGET == HWY_AVX3
  const hn::ScalableTag<Bits<T>> d;
  for (int64_t i = 0; i < count; i += lanes(d)) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(std::min(count - i, lanes(d))));
    hn::BlendedStore(hn::Load(d, reinterpret_cast<const Bits<T>*>(buffer + i)), mask, d,
                     reinterpret_cast<Bits<T>*>(to + i));
  }
#else
  std::memcpy(to, buffer, static_cast<size_t>(count) * sizeof(T));
#endif
}

// Numbers `step` apart, neighbors at `to`; and back.
template <typename T>
HWY_INLINE void collect(const T* from, int64_t step, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i * step];
}
template <typename T>
HWY_INLINE void distribute(const T* from, int64_t count, T* to, int64_t step) {
  for (int64_t i = 0; i < count; ++i) to[i * step] = from[i];
}

// --- What is done with a run

// out = in, bit for bit.
template <typename Element>
struct Copy {
  using T = Element;
  using D = hn::ScalableTag<Bits<T>>;

  const T* in;
  T* out;
  Ahead<T> in_ahead;

  HWY_INLINE void ahead(int64_t i) const { in_ahead(i); }

  template <Store kStore>
  HWY_ATTR HWY_INLINE void vector(int64_t i) const {
    const D d;
    const auto v = hn::LoadU(d, reinterpret_cast<const Bits<T>*>(in + i));
    store_as<kStore>(v, d, reinterpret_cast<Bits<T>*>(out + i));
  }

  HWY_ATTR HWY_INLINE void part(int64_t i, int64_t count) const {
    std::memcpy(out + i, in + i, static_cast<size_t>(count) * sizeof(T));
  }
};

// out = in + value, or value alone, times a scale; `value` are Ts or Reals.
template <typename Element, typename Value, bool kAdd, bool kScale>
struct Combine {
  using T = Element;
  using D = RealTag<T>;

  const T* in;
  const Value* value;
  T* out;
  Real<T> scale;
  Ahead<T> in_ahead;
  Ahead<Value> value_ahead;

  // The bias of a Toeplitz operation is in the cache.
  HWY_INLINE void ahead(int64_t i) const {
    if constexpr (kAdd) in_ahead(i);
    if constexpr (kScale) value_ahead(i);
  }

  template <Store kStore>
  HWY_ATTR HWY_INLINE void vector(int64_t i) const {
    run<kStore>(in + (kAdd ? i : 0), value + i, out + i);
  }

  HWY_ATTR HWY_INLINE void part(int64_t i, int64_t count) const {
    if constexpr (!kIsHalf<T>) {
      for (int64_t j = i; j < i + count; ++j) {
        Real<T> result = value[j];
        if constexpr (kAdd) result = in[j] + result;
        if constexpr (kScale) result *= scale;
        out[j] = result;
      }
    } else {
      constexpr int64_t kLanes = hn::MaxLanes(D());
      HWY_ALIGN T in_part[kLanes] = {};
      HWY_ALIGN T out_part[kLanes];
      HWY_ALIGN Value value_part[kLanes] = {};
      for (; count > 0; i += lanes(D()), count -= lanes(D())) {
        const size_t n = static_cast<size_t>(std::min(count, lanes(D())));
        if constexpr (kAdd) std::memcpy(in_part, in + i, n * sizeof(T));
        std::memcpy(value_part, value + i, n * sizeof(Value));
        run<Store::kOrdinary>(in_part, value_part, out_part);
        std::memcpy(out + i, out_part, n * sizeof(T));
      }
    }
  }

 private:
  template <Store kStore>
  HWY_ATTR HWY_INLINE void run(const T* a, const Value* b, T* to) const {
    const D d;
    auto v = load(d, b);
    if constexpr (kAdd) v = hn::Add(load(d, a), v);
    if constexpr (kScale) v = hn::Mul(v, hn::Set(d, scale));
    store<kStore>(v, d, to);
  }
};

template <Store kStore, class Operation>
HWY_ATTR HWY_INLINE int64_t run_lines(const Operation& operation, int64_t i, int64_t count) {
  using T = typename Operation::T;
  const int64_t step = lanes(typename Operation::D());
  const int64_t line = std::max(step, kLineBytes / static_cast<int64_t>(sizeof(T)));
  for (; i + line <= count; i += line) {
    operation.ahead(i);
    for (int64_t j = 0; j < line; j += step) operation.template vector<kStore>(i + j);
  }
  return i;
}

// The operation on `count` elements: the first ones up to a cache line of `out`, whole lines, rest.
template <class Operation>
HWY_ATTR HWY_INLINE void run_elements(const Operation& operation, int64_t count, bool stream) {
  using T = typename Operation::T;
  constexpr int64_t kSize = sizeof(T);
  const int64_t step = lanes(typename Operation::D());
  const int64_t beyond =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(operation.out) % kLineBytes);
  int64_t i = 0;
  // The line that this run shares with the next one is not written past the cache: a store that
  // waits for it holds up all others.
  if (stream) hwy::Prefetch(operation.out + count);
  // Short runs are not worth the way to a line.
  if (beyond != 0 && count >= 8 * kLineBytes / kSize && beyond % kSize == 0) {
    i = (kLineBytes - beyond) / kSize;
    operation.part(0, i);
  }
  if (stream && (beyond == 0 || i != 0)) {
    i = run_lines<Store::kStream>(operation, i, count);
  } else {
    i = run_lines<Store::kOrdinary>(operation, i, count);
  }
  for (; i + step <= count; i += step) operation.template vector<Store::kOrdinary>(i);
  if (i < count) operation.part(i, count - i);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
