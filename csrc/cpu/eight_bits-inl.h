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

// The bytes of four vectors of numbers, from two of words: low bytes of the words are the first
// two. A vector of words is packed from two of numbers block by block (128 bits), which is undone
// here.
template <class D8, class Words>
HWY_INLINE hn::Vec<D8> bytes_in_order(D8 d8, Words words) {
  HWY_ALIGN static constexpr uint8_t kLowThenHigh[] = {0, 2, 4, 6, 8, 10, 12, 14,
                                                       1, 3, 5, 7, 9, 11, 13, 15};
  const auto blocks =
      hn::TableLookupBytes(hn::BitCast(d8, words), hn::LoadDup128(d8, kLowThenHigh));
  constexpr size_t kBlocks = hn::MaxLanes(D8()) / 16;
  if constexpr (kBlocks == 1) {
    return blocks;
  } else {
    HWY_ALIGN static constexpr int32_t kOfTwo[] = {0, 4, 1, 5, 2, 6, 3, 7};
    HWY_ALIGN static constexpr int32_t kOfFour[] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                    2, 6, 10, 14, 3, 7, 11, 15};
    const hn::Repartition<int32_t, D8> di;
    const auto order = hn::SetTableIndices(di, kBlocks == 2 ? kOfTwo : kOfFour);
    return hn::BitCast(d8, hn::TableLookupLanes(hn::BitCast(di, blocks), order));
  }
}

// Vectors round numbers of at most kMost; what is larger, and a NaN, is rounded by itself.

template <typename Format>
struct ToFloat8 {
  static constexpr Dtype kDtype =
      std::is_same_v<Format, E4M3> ? Dtype::kFloat8E4M3 : Dtype::kFloat8E5M2;
  static constexpr float kMost = 0x1p100f;  // no sum overflows

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE hn::Vec<hn::Repartition<uint8_t, D>> bytes(D d, const V (&v)[4]) {
    const hn::RebindToSigned<D> di;
    const hn::Repartition<int16_t, D> d16;
    const hn::Repartition<uint16_t, D> du16;
    const auto least =
        hn::Set(d16, static_cast<int16_t>((Format::kLeastNormal >> 16) + (Format::kShift << 7)));
    const auto largest =
        hn::Set(d16, static_cast<int16_t>((kDtype == Dtype::kFloat8E4M3 ? 0x7e : 0x7b) << kBelow));
    const auto codes = [&](int i) POSENC_INLINED {
      const auto words = hn::ReorderDemote2To(d16, word(d, v[i]), word(d, v[i + 1]));
      return hn::BitCast(du16, hn::Min(hn::Sub(words, least), largest));
    };
    const auto sign_bit = hn::Set(du16, 0x8000);
    const auto signs = [&](int i) POSENC_INLINED {
      const auto words =
          hn::ReorderDemote2To(d16, hn::BitCast(di, v[i]), hn::BitCast(di, v[i + 1]));
      return hn::And(hn::BitCast(du16, words), sign_bit);
    };
    const auto low = hn::Or(hn::ShiftRight<kBelow>(codes(0)), hn::ShiftRight<8>(signs(0)));
    const auto high = hn::Or(hn::ShiftLeft<8 - kBelow>(codes(2)), signs(2));
    return bytes_in_order(hn::Repartition<uint8_t, D>(), hn::Or(low, high));
  }

 private:
  static constexpr int kBelow = Format::kShift - 16;  // bits of a word that are below its code

  // A magnitude rounded: its code in `largest` and above `kBelow`, more by `least`. The adder
  // rounds at the last place of 2^kShift times the number's power of two, or that of the least
  // normal one: the lower half of the sum counts places, and the upper half has the exponent.
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE hn::Vec<hn::RebindToSigned<D>> word(D d, V v) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto power = hn::Max(hn::And(hn::BitCast(du, v), hn::Set(du, 0x7f800000)),
                               hn::Set(du, Format::kLeastNormal));
    const auto shift = hn::Set(d, static_cast<float>(1 << Format::kShift));
    const auto sum = hn::MulAdd(hn::BitCast(d, power), shift, hn::Abs(v));
#if HWY_ARCH_X86  // one instruction multiplies both halves and adds
    const hn::Repartition<int16_t, D> d16;
    const auto weights = hn::BitCast(d16, hn::Set(du, 1u << 16 | 1u << kBelow));
    auto unused = hn::Zero(di);
    return hn::ReorderWidenMulAccumulate(di, hn::BitCast(d16, sum), weights, hn::Zero(di), unused);
#else
    const auto bits = hn::BitCast(du, sum);
    const auto places = hn::ShiftLeft<kBelow>(hn::And(bits, hn::Set(du, 0xffff)));
    return hn::BitCast(di, hn::Add(hn::ShiftRight<16>(bits), places));
#endif
  }
};

struct ToInt8 {
  static constexpr Dtype kDtype = Dtype::kInt8;
  static constexpr float kMost = 0x1p21f;  // the sum below has a last place of 1

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE hn::Vec<hn::Repartition<uint8_t, D>> bytes(D d, const V (&v)[4]) {
    const hn::RebindToSigned<D> di;
    const hn::Repartition<int16_t, D> d16;
    const hn::Repartition<uint16_t, D> du16;
    const auto place = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: the adder rounds at 1
    const auto number = [&](int i) POSENC_INLINED {
      return hn::Sub(hn::BitCast(di, hn::Add(v[i], place)), hn::BitCast(di, place));
    };
    const auto pair = [&](int i) POSENC_INLINED {
      const auto words = hn::ReorderDemote2To(d16, number(i), number(i + 1));
      const auto within = hn::Max(hn::Min(words, hn::Set(d16, 127)), hn::Set(d16, -128));
      return hn::BitCast(du16, within);
    };
    const auto low = hn::And(pair(0), hn::Set(du16, 0xff));
    return bytes_in_order(hn::Repartition<uint8_t, D>(), hn::Or(low, hn::ShiftLeft<8>(pair(2))));
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
  const hn::Repartition<uint8_t, decltype(d)> d8;
  const hn::RebindToSigned<decltype(d)> di;
  const auto most = hn::BitCast(di, hn::Set(d, To::kMost));  // less than any NaN by its bits
  const auto bits = [di](auto v) POSENC_INLINED { return hn::BitCast(di, hn::Abs(v)); };
  const int64_t step = lanes(d);
  const auto by = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + 4 * step <= count; i += 4 * step) {
    hn::Vec<decltype(d)> v[4];
    unrolled<4>([&](auto j) POSENC_INLINED {
      v[j] = load(d, from + i + j * step);
      v[j] = kExact ? hn::Mul(v[j], by) : hn::Div(v[j], by);
    });
    const auto largest = hn::Max(hn::Max(bits(v[0]), bits(v[1])), hn::Max(bits(v[2]), bits(v[3])));
    if (HWY_UNLIKELY(!hn::AllFalse(di, hn::Gt(largest, most)))) return i;
    const auto all = To::bytes(d, v);
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
      // A NaN or a number beyond To::kMost has stopped it.
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
