// Rows of 8 bits in a cache: divided by a scale and rounded, as core/eight_bits.h does it with one
// number.

#pragma once

#include <algorithm>
#include <type_traits>

#include "core/norm_rotary.h"
#include "cpu/elements-inl.h"
#include "cpu/numbers-inl.h"
#include "cpu/unrolled-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using ByteLanes = hn::Vec<hn::RebindToUnsigned<D>>;  // in each a number of 8 bits

template <typename Format>
struct ToFloat8 {
  static constexpr Dtype kDtype =
      std::is_same_v<Format, E4M3> ? Dtype::kFloat8E4M3 : Dtype::kFloat8E5M2;

  // Of numbers without a NaN. The adder rounds at the last place of `unit`, so that the lower bits
  // of the sum count places: from the exponent of the number, or from that of the least normal one.
  template <class D>
  static HWY_INLINE ByteLanes<D> round(D d, hn::Vec<D> v) {
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, v);
    const auto most = hn::Set(du, bits_from_float(largest_of(kDtype)));
    const auto magnitude = hn::Min(hn::And(bits, hn::Set(du, 0x7fffffff)), most);
    const auto exponent =
        hn::Max(hn::And(magnitude, hn::Set(du, 0x7f800000)), hn::Set(du, Format::kLeastNormal));
    constexpr uint32_t kUnit = static_cast<uint32_t>(Format::kShift) << 23;
    const auto unit = hn::Add(exponent, hn::Set(du, kUnit));
    const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, unit));
    const auto places = hn::Sub(hn::BitCast(du, sum), unit);
    const auto of_exponent = hn::Sub(hn::ShiftRight<Format::kShift>(exponent),
                                     hn::Set(du, Format::kLeastNormal >> Format::kShift));
    const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(du, 0x80));
    return hn::Or(hn::Add(of_exponent, places), sign);
  }
};

struct ToInt8 {
  static constexpr Dtype kDtype = Dtype::kInt8;

  template <class D>
  static HWY_INLINE ByteLanes<D> round(D d, hn::Vec<D> v) {
    const auto within = hn::Min(hn::Max(v, hn::Set(d, -128.0f)), hn::Set(d, 127.0f));
    const hn::RebindToUnsigned<D> du;
    return hn::And(hn::BitCast(du, hn::Add(within, hn::Set(d, 12582912.0f))), hn::Set(du, 0xff));
  }
};

// Of a number of any format.
template <typename From>
HWY_INLINE float as_float(From x) {
  if constexpr (std::is_same_v<From, double>) {
    return static_cast<float>(x);
  } else {
    return to_float(x);
  }
}

// Four vectors at a time, which are one of bytes. kExact: `factor` is the reciprocal of the scale;
// else it is the scale itself.
template <class To, bool kExact, Store kStore, typename From>
HWY_ATTR int64_t round_vectors(const From* from, int64_t count, float factor, uint8_t* to) {
  const hn::ScalableTag<float> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  const hn::Repartition<uint8_t, decltype(d)> d8;
  const int64_t step = lanes(d);
  const auto by = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + 4 * step <= count; i += 4 * step) {
    hn::Vec<decltype(d)> v[4];
    unrolled<4>([&](auto j) POSENC_INLINED {
      v[j] = load(d, from + i + j * step);
      v[j] = kExact ? hn::Mul(v[j], by) : hn::Div(v[j], by);
    });
    const auto some = hn::Add(hn::Add(v[0], v[1]), hn::Add(v[2], v[3]));
    if (HWY_UNLIKELY(!hn::AllFalse(d, hn::IsNaN(some)))) return i;  // infinities may meet, too
    hn::Vec<decltype(d16)> part[4];
    unrolled<4>([&](auto j) POSENC_INLINED { part[j] = hn::BitCast(d16, To::round(d, v[j])); });
    const auto first = hn::ConcatEven(d16, part[1], part[0]);
    const auto second = hn::ConcatEven(d16, part[3], part[2]);
    const auto all = hn::ConcatEven(d8, hn::BitCast(d8, second), hn::BitCast(d8, first));
    store_as<kStore>(all, d8, to + i);
  }
  return i;
}

template <class To, typename From>
HWY_ATTR void round_row(const From* from, int64_t step, int64_t count, float scale, uint8_t* to,
                        int64_t to_step, bool stream) {
  int64_t i = 0;
  const auto round_one = [&] {
    to[i * to_step] = round_to_eight_bits(To::kDtype, as_float(from[i * step]) / scale);
  };
  if constexpr (!std::is_same_v<From, double>) {
    // Of a power of two the reciprocal is exact.
    const bool exact =
        (bits_from_float(scale) & 0x7fffff) == 0 && scale > 0x1p-100f && scale < 0x1p100f;
    const int64_t part = 4 * lanes(hn::ScalableTag<float>());
    while (step == 1 && to_step == 1 && i + part <= count) {
      const From* const rest = from + i;
      i += exact && stream
               ? round_vectors<To, true, Store::kStream>(rest, count - i, 1 / scale, to + i)
           : exact  ? round_vectors<To, true, Store::kOrdinary>(rest, count - i, 1 / scale, to + i)
           : stream ? round_vectors<To, false, Store::kStream>(rest, count - i, scale, to + i)
                    : round_vectors<To, false, Store::kOrdinary>(rest, count - i, scale, to + i);
      // A NaN has stopped it.
      for (const int64_t end = i + part; i < end && end <= count; ++i) round_one();
    }
  }
  for (; i < count; ++i) round_one();
}

// By their bits: a NaN is larger than all others.
template <typename From>
HWY_ATTR float largest_magnitude(const From* from, int64_t step, int64_t count) {
  int64_t i = 0;
  uint32_t most = 0;
  if constexpr (!std::is_same_v<From, double>) {
    const hn::ScalableTag<float> d;
    const hn::RebindToSigned<decltype(d)> di;
    auto all = hn::Zero(di);
    for (; step == 1 && i + lanes(d) <= count; i += lanes(d)) {
      all = hn::Max(all, hn::BitCast(di, hn::Abs(load(d, from + i))));
    }
    most = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, all)));
  }
  for (; i < count; ++i) {
    most = std::max(most, bits_from_float(as_float(from[i * step])) & 0x7fffffff);
  }
  return float_from_bits(most);
}

// A row of keys or values into the slot of its token.
template <typename From>
HWY_ATTR void append_eight_bits(const NormRotaryArgs& args, const CacheTarget& cache, int64_t batch,
                                int64_t slot, int64_t head, const From* from, int64_t step,
                                int64_t count, bool stream = false) {
  if (slot == NormRotaryArgs::kNowhere) return;
  const Scaling& scaling = cache.scaling;
  float scale;
  if (scaling.made == nullptr) {
    scale = scaling.of_head(head);
  } else {
    const float made = scaling.of_largest(largest_magnitude(from, step, count));
    scaling.made[args.place_of_scale(scaling, batch, slot, head)] = made;
    scale = Scaling::divisor(made);
  }
  uint8_t* const to = static_cast<uint8_t*>(cache.data) + args.place_of_slot(cache, batch, slot) +
                      head * cache.head_stride;
  const auto round = [&](auto rounding) HWY_ATTR {
    const bool in_lines = reinterpret_cast<uintptr_t>(to) % kLineBytes == 0;
    round_row<decltype(rounding)>(from, step, count, scale, to, cache.dim_stride,
                                  stream && in_lines);
  };
  if (scaling.dtype == Dtype::kFloat8E4M3) return round(ToFloat8<E4M3>());
  if (scaling.dtype == Dtype::kFloat8E5M2) return round(ToFloat8<E5M2>());
  round(ToInt8());
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
