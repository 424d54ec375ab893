// Vectors of a table's pairs in memory: where rows are, and how a vector is added to x, rounded and
// written, as two halves or as one interleaved stream.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/sinusoidal.h"
#include "cpu/numbers-inl.h"
#include "cpu/sincos-inl.h"
#include "cpu/sinusoidal_angles-inl.h"
#include "cpu/unrolled-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Offsets of rows, in runs along the last axis.
struct RowOffsets {
  int64_t position = 0, sine = 0, cosine = 0, x = 0;

  void move(const SinusoidalArgs& args, int axis, int64_t steps) {
    position += steps * args.position_strides[axis];
    sine += steps * args.sine_strides[axis];
    cosine += steps * args.cosine_strides[axis];
    x += steps * args.x_strides[axis];
  }
};

// The row of a number in C order over the first `axes` axes.
HWY_INLINE RowOffsets row_offsets(const SinusoidalArgs& args, int axes, int64_t row) {
  RowOffsets offsets;
  for (int axis = axes - 1; axis >= 0; --axis) {
    offsets.move(args, axis, row % args.shape[axis]);
    row /= args.shape[axis];
  }
  return offsets;
}

// Where the two halves of a row are.
template <typename T>
struct RowPointers {
  T* sine;
  T* cosine;
  const T* x_sine;
  const T* x_cosine;
};

// The smallest of the numbers that are rounded: kNormal, none that is subnormal in bfloat16.
enum class Smallest { kAny, kNormal };
// Of a table with a factor beyond this none is: angles are multiples of 2^-64 turn, and what is
// left where two products cancel of their last places.
constexpr double kLeastNormal = 0x1p-8;

template <typename T, bool kInterleaved, bool kAdd>
class SinusoidalVectors {
  using Number = Real<T>;
  using D = RealTag<T>;
  using Vector = hn::Vec<D>;
  using Ordered = OrderedPairs<D>;
  static constexpr bool kBFloat16 = std::is_same_v<T, BFloat16>;
  static constexpr int64_t kLanes = hn::MaxLanes(D());

 public:
  // Interleaved bfloat16 pairs are the halves of 32-bit lanes and need no shuffle.
  static constexpr PairOrder kOrder =
      kInterleaved && !kBFloat16 ? PairOrder::kInterleave : PairOrder::kNatural;
  // Numbers of one stream in a vector of pairs, and the vectors of pairs that fill a cache line of
  // each stream: a line that is written past the cache bit by bit may be written more than once.
  static constexpr int64_t kNumbers = (kInterleaved ? 2 : 1) * kLanes;
  static constexpr int kGroup = static_cast<int>(
      std::clamp<int64_t>(kLineBytes / (kNumbers * static_cast<int64_t>(sizeof(T))), 1, 4));
  // Whether stores past the cache are others: not in pieces of 16 bytes, see store16.
  static constexpr bool kStreams = HWY_MAX_BYTES >= 32 || !std::is_same_v<Number, float> ||
                                   std::is_same_v<T, float> || (kInterleaved && kBFloat16);

  // The halves of a row from the pair `first` on.
  static RowPointers<T> row_pointers(const SinusoidalArgs& args, const RowOffsets& offsets,
                                     int64_t first) {
    const auto half = [&](const void* base, int64_t offset, int64_t step) {
      return static_cast<const T*>(base) + offset + first * step;
    };
    return {const_cast<T*>(half(args.sine, offsets.sine, args.sine_step)),
            const_cast<T*>(half(args.cosine, offsets.cosine, args.cosine_step)),
            kAdd ? half(args.x_sine, offsets.x, args.x_step) : nullptr,
            kAdd ? half(args.x_cosine, offsets.x, args.x_step) : nullptr};
  }

  static HWY_INLINE void move_rows(const SinusoidalArgs& args, int64_t rows, RowPointers<T>& at) {
    const int last = std::max(args.rank - 1, 0);
    at.sine += rows * args.sine_strides[last];
    at.cosine += rows * args.cosine_strides[last];
    if constexpr (kAdd) {
      at.x_sine += rows * args.x_strides[last];
      at.x_cosine += rows * args.x_strides[last];
    }
  }

  static HWY_INLINE RowPointers<T> moved(const SinusoidalArgs& args, int64_t rows,
                                         RowPointers<T> at) {
    move_rows(args, rows, at);
    return at;
  }

  // The same rows from their pair `pair` on, where pairs are neighbors.
  static HWY_INLINE RowPointers<T> from_pair(RowPointers<T> at, int64_t pair) {
    const int64_t numbers = (kInterleaved ? 2 : 1) * pair;
    at.sine += numbers;
    at.cosine += numbers;
    if constexpr (kAdd) {
      at.x_sine += numbers;
      at.x_cosine += numbers;
    }
    return at;
  }

  // Requests the lines of an addition later on.
  template <Store kStore>
  static HWY_INLINE void request(const RowPointers<T>& at, int64_t x_ahead, int64_t ahead) {
    constexpr int64_t kLine = kLineBytes / static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < kGroup * kNumbers; i += kLine) {
      hwy::Prefetch(at.x_sine + x_ahead + i);
      if (!kInterleaved) hwy::Prefetch(at.x_cosine + x_ahead + i);
      if (kStore == Store::kOrdinary) {
        __builtin_prefetch(at.sine + ahead + i, 1);
        if (!kInterleaved) __builtin_prefetch(at.cosine + ahead + i, 1);
      }
    }
  }

  static HWY_ATTR HWY_INLINE void keep(const Ordered& table, Number* to) {
    const D d;
    hn::Store(table.first, d, to);
    hn::Store(table.second, d, to + kLanes);
  }

  // Vectors of pairs, added to x, to memory: one stream after the other.
  template <Store kStore, Smallest kSmallest, int kVectors>
  static HWY_ATTR HWY_INLINE void put(const Ordered (&tables)[kVectors], Vector x_scale,
                                      const RowPointers<T>& at) {
    Ordered sums[kVectors];
    unrolled<kVectors>([&](auto v) POSENC_INLINED {
      sums[v] = tables[v];
      if constexpr (kAdd) add_x(x_scale, from_pair(at, v * kLanes), sums[v]);
    });
#if HWY_TARGET == HWY_AVX3
    if constexpr (kSmallest == Smallest::kNormal) {
      return put_normal<kStore>(sums, at);
    }
#endif
    const D d;
    unrolled<kVectors>([&](auto v) POSENC_INLINED {
      if constexpr (kInterleaved && kBFloat16) {
        store_even_odd<kStore>(sums[v].first, sums[v].second, d, at.sine + v * kNumbers);
      } else {
        store<kStore>(sums[v].first, d, at.sine + v * kNumbers);
        if (kInterleaved) store<kStore>(sums[v].second, d, at.sine + v * kNumbers + kLanes);
      }
    });
    if constexpr (!kInterleaved) {
      unrolled<kVectors>(
          [&](auto v) POSENC_INLINED { store<kStore>(sums[v].second, d, at.cosine + v * kLanes); });
    }
  }

  // `count` pairs from the i-th on through a buffer: row ends, and numbers that are not neighbors.
  static HWY_ATTR HWY_NOINLINE void put_part(const SinusoidalArgs& args, Ordered table, int64_t i,
                                             int64_t count, const RowPointers<T>& pointers) {
    // In the buffers pairs lie as the kernel wants them, in memory `step`s apart.
    constexpr int64_t kStep = kInterleaved ? 2 : 1, kOther = kInterleaved ? 1 : kLanes;
    HWY_ALIGN T buffer[2 * kLanes] = {};
    HWY_ALIGN T x_buffer[2 * kLanes] = {};
    if constexpr (kAdd) {
      for (int64_t j = 0; j < count; ++j) {
        x_buffer[j * kStep] = pointers.x_sine[(i + j) * args.x_step];
        x_buffer[j * kStep + kOther] = pointers.x_cosine[(i + j) * args.x_step];
      }
    }
    const auto x_scale = hn::Set(D(), static_cast<Number>(args.x_scale));
    const Ordered tables[1] = {table};
    put<Store::kOrdinary, Smallest::kAny>(tables, x_scale,
                                          {buffer, buffer + kOther, x_buffer, x_buffer + kOther});
    for (int64_t j = 0; j < count; ++j) {
      pointers.sine[(i + j) * args.sine_step] = buffer[j * kStep];
      pointers.cosine[(i + j) * args.cosine_step] = buffer[j * kStep + kOther];
    }
  }

  // Whether all groups from the pair `first` on are aligned for streams past the cache.
  static bool streams(const SinusoidalArgs& args, int64_t first) {
    constexpr int64_t kSize = sizeof(T);
    if (args.x_sine == args.sine) return false;  // in place, in the cache already
    int64_t all = reinterpret_cast<int64_t>(args.sine) + first * args.sine_step * kSize;
    if (!kInterleaved) {
      all |= reinterpret_cast<int64_t>(args.cosine) + first * args.cosine_step * kSize;
    }
    for (int i = 0; i < args.rank; ++i) {
      if (args.shape[i] > 1) all |= (args.sine_strides[i] | args.cosine_strides[i]) * kSize;
    }
    return can_stream_to(all, kLineBytes);
  }

 private:
#if HWY_TARGET == HWY_AVX3
  // bfloat16 numbers none of which is subnormal.
  template <Store kStore, int kVectors>
  static HWY_ATTR HWY_INLINE void put_normal(const Ordered (&sums)[kVectors],
                                             const RowPointers<T>& at) {
    const hn::ScalableTag<uint32_t> d;
    const auto write = [&](const __m512i& bits, T* to) POSENC_INLINED {
      store_as<kStore>(hn::Vec<decltype(d)>{bits}, d, reinterpret_cast<uint32_t*>(to));
    };
    if constexpr (kInterleaved) {
      unrolled<kVectors>([&](auto v) POSENC_INLINED {
        __m512i bits;
        convert_bfloat16(sums[v].first.raw, sums[v].second.raw, bits);
        write(bits, at.sine + v * kNumbers);
      });
    } else if constexpr (kVectors == 2) {
      const auto write_two = [&](Vector low, Vector high, T* to) POSENC_INLINED {
        __m512i bits;
        asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(bits) : "v"(low.raw), "v"(high.raw));
        write(bits, to);
      };
      write_two(sums[0].first, sums[1].first, at.sine);
      write_two(sums[0].second, sums[1].second, at.cosine);
    } else {
      const D number;
      store<Store::kOrdinary>(sums[0].first, number, at.sine);
      store<Store::kOrdinary>(sums[0].second, number, at.cosine);
    }
  }
#endif

  static HWY_ATTR HWY_INLINE void add_x(Vector x_scale, const RowPointers<T>& at, Ordered& table) {
    const D d;
    Vector x_first, x_second;
    if constexpr (kInterleaved && kBFloat16) {
      split_pairs(d, load_pairs(d, at.x_sine), x_first, x_second);
    } else {
      x_first = load(d, at.x_sine);
      x_second = load(d, kInterleaved ? at.x_sine + kLanes : at.x_cosine);
    }
    table.first = hn::MulAdd(x_first, x_scale, table.first);
    table.second = hn::MulAdd(x_second, x_scale, table.second);
  }
};

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
