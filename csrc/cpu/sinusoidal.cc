// Tables of sines and cosines on the CPU: one position a row, written down or added to x.
//
//   for a group of pairs that fits the scratch            (mostly all of them)
//     for row
//       for a vector of pairs
//         phase -> sine, cosine -> (+ x) -> two halves, or one interleaved stream

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/sinusoidal.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <type_traits>

#include "core/sinusoidal.h"
#include "cpu/kernels.h"
#include "cpu/numbers-inl.h"
#include "cpu/sincos-inl.h"
#include "cpu/targets.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kMaxPairs = 2048;  // frequencies held at a time: 32 KiB

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

// visit(offsets) for the rows [begin, end) in C order.
template <typename Visit>
HWY_INLINE void for_rows(const SinusoidalArgs& args, int64_t begin, int64_t end,
                         const Visit& visit) {
  const int last = args.rank - 1;
  if (last < 0) {  // one row
    if (begin < end) visit(RowOffsets());
    return;
  }
  while (begin < end) {
    RowOffsets offsets;
    int64_t outer = begin;
    for (int axis = last; axis >= 0; --axis) {
      offsets.move(args, axis, outer % args.shape[axis]);
      outer /= args.shape[axis];
    }
    const int64_t run = std::min(args.shape[last] - begin % args.shape[last], end - begin);
    for (int64_t i = 0; i < run; ++i) {
      visit(offsets);
      offsets.move(args, last, 1);
    }
    begin += run;
  }
}

// Where the two halves of a row begin.
template <typename T>
struct RowPointers {
  T* sine;
  T* cosine;
  const T* x_sine;
  const T* x_cosine;
};

template <typename T, bool kInterleaved, bool kAdd>
class SinusoidalKernel {
  using Number = Real<T>;
  using D = RealTag<T>;
  static constexpr bool kBFloat16 = std::is_same_v<T, BFloat16>;
  // Interleaved bfloat16 pairs are the halves of 32-bit lanes and need no shuffle.
  static constexpr PairOrder kOrder =
      kInterleaved && !kBFloat16 ? PairOrder::kInterleave : PairOrder::kNatural;

 public:
  HWY_ATTR void run(const SinusoidalArgs& args, int64_t begin, int64_t end) {
    const bool contiguous =
        kInterleaved ? true
                     : args.sine_step == 1 && args.cosine_step == 1 && (!kAdd || args.x_step == 1);
    for (int64_t first = 0; first < args.pairs; first += kMaxPairs) {
      const int64_t count = std::min<int64_t>(kMaxPairs, args.pairs - first);
      arrange_frequencies(D(), kOrder,
                          {args.frequencies.fraction + first, args.frequencies.whole + first},
                          static_cast<size_t>(count), fraction_, whole_);
      const Store how = args.non_temporal && contiguous ? streaming(args, first) : Store::kOrdinary;
      for_rows(args, begin, end, [&](const RowOffsets& offsets) HWY_ATTR {
        const auto half = [&](const void* base, int64_t offset, int64_t step) {
          return static_cast<const T*>(base) + offset + first * step;
        };
        const RowPointers<T> pointers{
            const_cast<T*>(half(args.sine, offsets.sine, args.sine_step)),
            const_cast<T*>(half(args.cosine, offsets.cosine, args.cosine_step)),
            kAdd ? half(args.x_sine, offsets.x, args.x_step) : nullptr,
            kAdd ? half(args.x_cosine, offsets.x, args.x_step) : nullptr};
        positioned_row(args, offsets.position, first, count, pointers, contiguous, how);
      });
    }
  }

 private:
  // Chooses how positions are read.
  HWY_ATTR void positioned_row(const SinusoidalArgs& args, int64_t offset, int64_t first,
                               int64_t count, const RowPointers<T>& pointers, bool contiguous,
                               Store how) {
    if (args.axis_map.data == nullptr) {
      const Position p = args.positions.at(offset);
      const TokenPosition<false> position{p, nullptr, nullptr};
      if (p.fraction == 0) {
        row<false, false>(args, position, count, pointers, contiguous, how);
      } else {
        row<false, true>(args, position, count, pointers, contiguous, how);
      }
      return;
    }
    arrange_positions(D(), kOrder, args.positions, args.axis_map, offset,
                      static_cast<size_t>(first), static_cast<size_t>(count), pair_integer_,
                      pair_fraction_);
    const TokenPosition<true> position{{}, pair_integer_, pair_fraction_};
    row<true, true>(args, position, count, pointers, contiguous, how);
  }

  template <bool kPerPair, bool kFraction>
  HWY_ATTR void row(const SinusoidalArgs& args, const TokenPosition<kPerPair>& position,
                    int64_t count, const RowPointers<T>& pointers, bool contiguous, Store how) {
    const D d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    for (int64_t i = 0; i < count; i += lanes) {
      hn::Vec<D> s, c;
      sincos<kPerPair, kFraction>(d, position, {fraction_, whole_}, static_cast<size_t>(i), s, c);
      if (!contiguous || i + lanes > count) {
        put_part(args, s, c, i, std::min(lanes, count - i), pointers);
        continue;
      }
      const int64_t at = i * (kInterleaved ? 2 : 1);
      T* const sine = pointers.sine + at;
      T* const cosine = pointers.cosine + at;
      const T* const x_sine = kAdd ? pointers.x_sine + at : nullptr;
      const T* const x_cosine = kAdd ? pointers.x_cosine + at : nullptr;
      if (how == Store::kStream) {
        put<Store::kStream>(args, s, c, sine, cosine, x_sine, x_cosine);
      } else if (how == Store::kStreamBlocks) {
        put<Store::kStreamBlocks>(args, s, c, sine, cosine, x_sine, x_cosine);
      } else {
        put<Store::kOrdinary>(args, s, c, sine, cosine, x_sine, x_cosine);
      }
    }
  }

  // A vector of pairs, scaled and added, to memory.
  template <Store kStore>
  HWY_ATTR HWY_INLINE void put(const SinusoidalArgs& args, hn::Vec<D> s, hn::Vec<D> c, T* sine,
                               T* cosine, const T* x_sine, const T* x_cosine) {
    const D d;
    if (args.scale != 1.0) {
      const auto scale = hn::Set(d, static_cast<Number>(args.scale));
      s = hn::Mul(s, scale);
      c = hn::Mul(c, scale);
    }
    const auto x_scale = hn::Set(d, static_cast<Number>(args.x_scale));
    if constexpr (kInterleaved && kBFloat16) {
      if constexpr (kAdd) {
        hn::Vec<D> x_even, x_odd;
        load_even_odd(d, x_sine, x_even, x_odd);
        s = hn::MulAdd(x_even, x_scale, s);
        c = hn::MulAdd(x_odd, x_scale, c);
      }
      store_even_odd<kStore>(s, c, d, sine);
    } else if constexpr (kInterleaved) {
      const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
      auto low = hn::InterleaveLower(d, s, c), high = hn::InterleaveUpper(d, s, c);
      if constexpr (kAdd) {
        low = hn::MulAdd(load(d, x_sine), x_scale, low);
        high = hn::MulAdd(load(d, x_sine + lanes), x_scale, high);
      }
      store<kStore>(low, d, sine);
      store<kStore>(high, d, sine + lanes);
    } else {
      if constexpr (kAdd) {
        s = hn::MulAdd(load(d, x_sine), x_scale, s);
        c = hn::MulAdd(load(d, x_cosine), x_scale, c);
      }
      store<kStore>(s, d, sine);
      store<kStore>(c, d, cosine);
    }
  }

  // `count` pairs from the i-th on through a buffer: row ends, and numbers that are not neighbours.
  HWY_ATTR HWY_NOINLINE void put_part(const SinusoidalArgs& args, hn::Vec<D> s, hn::Vec<D> c,
                                      int64_t i, int64_t count, const RowPointers<T>& pointers) {
    // In the buffers pairs lie as the kernel wants them, in memory `step`s apart.
    constexpr int64_t kLanes = hn::MaxLanes(D());
    constexpr int64_t kStep = kInterleaved ? 2 : 1, kOther = kInterleaved ? 1 : kLanes;
    HWY_ALIGN T buffer[2 * kLanes] = {};
    HWY_ALIGN T x_buffer[2 * kLanes] = {};
    if constexpr (kAdd) {
      for (int64_t j = 0; j < count; ++j) {
        x_buffer[j * kStep] = pointers.x_sine[(i + j) * args.x_step];
        x_buffer[j * kStep + kOther] = pointers.x_cosine[(i + j) * args.x_step];
      }
    }
    put<Store::kOrdinary>(args, s, c, buffer, buffer + kOther, x_buffer, x_buffer + kOther);
    for (int64_t j = 0; j < count; ++j) {
      pointers.sine[(i + j) * args.sine_step] = buffer[j * kStep];
      pointers.cosine[(i + j) * args.cosine_step] = buffer[j * kStep + kOther];
    }
  }

  // How the alignment of all full vectors lets them be streamed.
  static Store streaming(const SinusoidalArgs& args, int64_t first) {
    constexpr int64_t kSize = sizeof(T);
    const D d;
    if (args.x_sine == args.sine) return Store::kOrdinary;  // in place, in the cache already
    int64_t all = reinterpret_cast<int64_t>(args.sine) + first * args.sine_step * kSize;
    if (!kInterleaved) {
      all |= reinterpret_cast<int64_t>(args.cosine) + first * args.cosine_step * kSize;
    }
    for (int i = 0; i < args.rank; ++i) {
      if (args.shape[i] > 1) all |= (args.sine_strides[i] | args.cosine_strides[i]) * kSize;
    }
    return stream_to(all, static_cast<int64_t>(hn::Lanes(d) * sizeof(Number)));
  }

  HWY_ALIGN uint64_t fraction_[kMaxPairs];
  HWY_ALIGN uint64_t whole_[kMaxPairs];
  HWY_ALIGN int64_t pair_integer_[kMaxPairs];
  HWY_ALIGN uint64_t pair_fraction_[kMaxPairs];
};

template <typename T>
HWY_ATTR void run_sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t end) {
  // One stream only if the numbers of a row are neighbours; otherwise two halves with a step.
  const bool interleaved =
      args.interleaved && args.sine_step == 2 && (args.x_sine == nullptr || args.x_step == 2);
  const auto run = [&](auto kernel) HWY_ATTR { kernel.run(args, begin, end); };
  if (args.x_sine == nullptr) {
    interleaved ? run(SinusoidalKernel<T, true, false>())
                : run(SinusoidalKernel<T, false, false>());
  } else {
    interleaved ? run(SinusoidalKernel<T, true, true>()) : run(SinusoidalKernel<T, false, true>());
  }
}

HWY_ATTR void sinusoidal_target(const SinusoidalArgs& args, int64_t begin, int64_t end) {
  switch (args.dtype) {
    case Dtype::kFloat16:
      run_sinusoidal<Float16>(args, begin, end);
      break;
    case Dtype::kBFloat16:
      run_sinusoidal<BFloat16>(args, begin, end);
      break;
    case Dtype::kFloat32:
      run_sinusoidal<float>(args, begin, end);
      break;
    default:
      run_sinusoidal<double>(args, begin, end);
  }
  if (args.non_temporal) hwy::FlushStream();
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace posenc::cpu {

HWY_EXPORT(sinusoidal_target);

void sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t end) {
  POSENC_DISPATCH(sinusoidal_target)(args, begin, end);
}

}  // namespace posenc::cpu
#endif  // HWY_ONCE
