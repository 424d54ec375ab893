// What gather and scatter share: rows as stretches of the index (IndexRun), and how a row is
// written.

#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/lookup.h"
#include "cpu/elements-inl.h"
#include "cpu/numbers-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE int64_t plane_offset(const Planes& planes, const int64_t* strides, int64_t plane) {
  int64_t offset = 0;
  for (int axis = planes.rank - 1; axis >= 0; --axis) {
    offset += plane % planes.shape[axis] * strides[axis];
    plane /= planes.shape[axis];
  }
  return offset;
}

// Calls rows(plane, query, count, entry) for the rows [begin, end), as many at a time as are of one
// plane; `entry` is the first one of the first of them.
template <typename Rows>
HWY_ATTR HWY_INLINE void for_each_plane(const RelativeArgs& args, int64_t begin, int64_t end,
                                        const Rows& rows) {
  while (begin < end) {
    const int64_t plane = begin / args.queries, query = begin % args.queries;
    const int64_t count = std::min(args.queries - query, end - begin);
    const int64_t origin = args.origin_at(plane_offset(args.planes, args.q_offset_strides, plane));
    rows(plane, query, count, origin - query);
    begin += count;
  }
}

// Calls visit(run, k, n, position): n entries of a run from its k-th on, those of the keys
// position ..., for the keys of a row whose first entry is `entry`.
template <typename Visit>
HWY_ATTR HWY_INLINE void for_each_run(const RelativeArgs& args, int64_t entry, int64_t keys,
                                      const Visit& visit) {
  const IndexRun* run = std::upper_bound(
      args.runs, args.runs + args.run_count, entry,
      [](int64_t at, const IndexRun& other) { return at < other.first + other.length; });
  for (int64_t position = 0; position < keys; ++run) {
    const int64_t k = entry + position - run->first;
    const int64_t n = std::min(run->length - k, keys - position);
    visit(*run, k, n, position);
    position += n;
  }
}

template <typename T>
HWY_ATTR HWY_INLINE void fill(T value, int64_t count, T* to) {
  const hn::ScalableTag<Bits<T>> d;
  Bits<T> bits;
  std::memcpy(&bits, &value, sizeof bits);
  const auto v = hn::Set(d, bits);
  for (int64_t i = 0; i < count; i += lanes(d)) {
    hn::StoreU(v, d, reinterpret_cast<Bits<T>*>(to + i));
  }
}

// out = (in + value) * scale of a row, or what of it is there.
template <typename T, typename Value, bool kMayAdd>
struct Result {
  const T* in;  // null, as it always is without kMayAdd: nothing is added
  int64_t in_step;
  T* out;
  int64_t out_step;
  Real<T> scale;
  bool stream;

  // `next` is read after the values.
  HWY_ATTR void operator()(const Value* values, const Value* next, int64_t at,
                           int64_t count) const {
    const bool adds = kMayAdd && in != nullptr;
    const T* const from = adds ? in + at * in_step : nullptr;
    T* const to = out + at * out_step;
    if (out_step == 1 && (!adds || in_step == 1)) {
      run(from, values, next, count, to, stream);
      return;
    }
    constexpr int64_t kPart = 256;
    HWY_ALIGN T in_part[kPart];
    HWY_ALIGN T out_part[kPart];
    for (int64_t i = 0; i < count; i += kPart) {
      const int64_t n = std::min(kPart, count - i);
      if (adds) collect(from + i * in_step, in_step, n, in_part);
      run(adds ? in_part : nullptr, values + i, values + i, n, out_part, false);
      distribute(out_part, n, to + i * out_step, out_step);
    }
  }

 private:
  HWY_ATTR HWY_INLINE void run(const T* from, const Value* values, const Value* next, int64_t count,
                               T* to, bool past_cache) const {
    const Ahead<Value> values_ahead(values, next, count);
    if constexpr (kMayAdd) {
      if (from != nullptr) {
        const Ahead<T> from_ahead(from, from + count, count);
        run_elements(
            Combine<T, Value, true, true>{from, values, to, scale, from_ahead, values_ahead}, count,
            past_cache);
        return;
      }
    }
    if constexpr (std::is_same_v<T, Value>) {
      if (scale == 1) {
        run_elements(Copy<T>{values, to, values_ahead}, count, past_cache);
        return;
      }
    }
    run_elements(
        Combine<T, Value, false, true>{nullptr, values, to, scale, Ahead<T>(), values_ahead}, count,
        past_cache);
  }
};

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
