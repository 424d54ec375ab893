// Tables of sines and cosines on the CPU: one position a row, written down or added to x.
//
//   for a group of pairs that fits the scratch            (mostly all of them)
//     for row
//       for a vector of pairs
//         phase -> sine, cosine -> (+ x) -> two halves, or one interleaved stream
//
// Where x repeats the same positions (a batch), a block of rows goes through scratch instead and is
// added to every repetition.

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
constexpr size_t kScratch = 4096;   // sines, and as many cosines: 16 KiB each in float32

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
    contiguous_ = kInterleaved ||
                  (args.sine_step == 1 && args.cosine_step == 1 && (!kAdd || args.x_step == 1));
    for (first_ = 0; first_ < args.pairs; first_ += kMaxPairs) {
      count_ = std::min<int64_t>(kMaxPairs, args.pairs - first_);
      arrange_frequencies(D(), kOrder,
                          {args.frequencies.fraction + first_, args.frequencies.whole + first_},
                          static_cast<size_t>(count_), fraction_, whole_);
      how_ = args.non_temporal && contiguous_ ? streaming(args) : Store::kOrdinary;
      // How positions are read, decided once: constants then stay in registers from row to row.
      if (args.axis_map.data != nullptr) {
        run_pairs<true, true>(args, begin, end);
      } else if (args.positions.data != nullptr && !is_integer(args.positions.dtype)) {
        run_pairs<false, true>(args, begin, end);
      } else {
        run_pairs<false, false>(args, begin, end);
      }
    }
  }

 private:
  using Vector = hn::Vec<D>;
  // How far ahead of the addition x is requested.
  static constexpr int64_t kAhead = 2048 / sizeof(T);

  template <bool kPerPair, bool kFraction>
  HWY_ATTR void run_pairs(const SinusoidalArgs& args, int64_t begin, int64_t end) {
    if (args.repeated) {
      run_repeated<kPerPair, kFraction>(args, begin, end);
    } else {
      run_rows<kPerPair, kFraction>(args, begin, end);
    }
  }

  template <bool kPerPair, bool kFraction>
  HWY_ATTR void run_rows(const SinusoidalArgs& args, int64_t begin, int64_t end) {
    const int last = args.rank - 1;
    while (begin < end) {
      RowOffsets offsets = row_offsets(args, args.rank, begin);
      // Runs along the last axis; no axis at all is a single row.
      const int64_t length = last < 0 ? 1 : args.shape[last];
      const int64_t run = std::min(length - begin % length, end - begin);
      for (int64_t i = 0; i < run; ++i) {
        row(args, angles_at<kPerPair, kFraction>(args, offsets.position),
            row_pointers(args, offsets));
        if (last >= 0) offsets.move(args, last, 1);
      }
      begin += run;
    }
  }

  template <bool kPerPair, bool kFraction>
  HWY_ATTR void run_repeated(const SinusoidalArgs& args, int64_t begin, int64_t end) {
    const D d;
    const int last = args.rank - 1;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const int64_t padded = (count_ + lanes - 1) / lanes * lanes;
    const int64_t block = static_cast<int64_t>(kScratch) / padded;
    int64_t repetitions = 1;
    for (int axis = 0; axis < last; ++axis) repetitions *= args.shape[axis];
    for (; begin < end; begin += block) {
      const int64_t rows = std::min(block, end - begin);
      for (int64_t i = 0; i < rows; ++i) {
        const auto angles =
            angles_at<kPerPair, kFraction>(args, (begin + i) * args.position_strides[last]);
        for (int64_t pair = 0; pair < padded; pair += lanes) {
          Vector s, c;
          angles(pair, s, c);
          hn::Store(s, d, sine_ + i * padded + pair);
          hn::Store(c, d, cosine_ + i * padded + pair);
        }
      }
      for (int64_t repetition = 0; repetition < repetitions; ++repetition) {
        RowOffsets offsets = row_offsets(args, last, repetition);
        offsets.move(args, last, begin);
        for (int64_t i = 0; i < rows; ++i) {
          const auto angles = [&](int64_t pair, Vector& s, Vector& c) HWY_ATTR {
            s = hn::Load(d, sine_ + i * padded + pair);
            c = hn::Load(d, cosine_ + i * padded + pair);
          };
          row(args, angles, row_pointers(args, offsets));
          offsets.move(args, last, 1);
        }
      }
    }
  }

  RowPointers<T> row_pointers(const SinusoidalArgs& args, const RowOffsets& offsets) const {
    const auto half = [&](const void* base, int64_t offset, int64_t step) {
      return static_cast<const T*>(base) + offset + first_ * step;
    };
    return {const_cast<T*>(half(args.sine, offsets.sine, args.sine_step)),
            const_cast<T*>(half(args.cosine, offsets.cosine, args.cosine_step)),
            kAdd ? half(args.x_sine, offsets.x, args.x_step) : nullptr,
            kAdd ? half(args.x_cosine, offsets.x, args.x_step) : nullptr};
  }

  // A function (i, s, c) that computes sines and cosines of the pairs i .. i + N - 1 at a position.
  template <bool kPerPair, bool kFraction>
  HWY_ATTR HWY_INLINE auto angles_at(const SinusoidalArgs& args, int64_t offset) {
    TokenPosition<kPerPair> position{{}, pair_integer_, pair_fraction_};
    if constexpr (kPerPair) {
      arrange_positions(D(), kOrder, args.positions, args.axis_map, offset,
                        static_cast<size_t>(first_), static_cast<size_t>(count_), pair_integer_,
                        pair_fraction_);
    } else {
      position.all = args.positions.at(offset);
    }
    return [this, position](int64_t i, Vector& s, Vector& c) HWY_ATTR {
      const D d;
      sincos<kPerPair, kFraction>(d, position, {fraction_, whole_}, static_cast<size_t>(i), s, c);
    };
  }

  template <typename Angles>
  HWY_ATTR HWY_INLINE void row(const SinusoidalArgs& args, const Angles& angles,
                               const RowPointers<T>& pointers) {
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
    for (int64_t i = 0; i < count_; i += lanes) {
      Vector s, c;
      angles(i, s, c);
      if (!contiguous_ || i + lanes > count_) {
        put_part(args, s, c, i, std::min(lanes, count_ - i), pointers);
        continue;
      }
      const int64_t at = i * (kInterleaved ? 2 : 1);
      T* const sine = pointers.sine + at;
      T* const cosine = pointers.cosine + at;
      const T* const x_sine = kAdd ? pointers.x_sine + at : nullptr;
      const T* const x_cosine = kAdd ? pointers.x_cosine + at : nullptr;
      if constexpr (kAdd) {
        hwy::Prefetch(x_sine + kAhead);
        hwy::Prefetch(kInterleaved ? x_sine + kAhead + lanes : x_cosine + kAhead);
      }
      if (how_ == Store::kStream) {
        put<Store::kStream>(args, s, c, sine, cosine, x_sine, x_cosine);
      } else if (how_ == Store::kStreamBlocks) {
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
        split_pairs(d, load_pairs(d, x_sine), x_even, x_odd);
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
  Store streaming(const SinusoidalArgs& args) const {
    constexpr int64_t kSize = sizeof(T);
    const D d;
    if (args.x_sine == args.sine) return Store::kOrdinary;  // in place, in the cache already
    int64_t all = reinterpret_cast<int64_t>(args.sine) + first_ * args.sine_step * kSize;
    if (!kInterleaved) {
      all |= reinterpret_cast<int64_t>(args.cosine) + first_ * args.cosine_step * kSize;
    }
    for (int i = 0; i < args.rank; ++i) {
      if (args.shape[i] > 1) all |= (args.sine_strides[i] | args.cosine_strides[i]) * kSize;
    }
    return stream_to(all, static_cast<int64_t>(hn::Lanes(d) * sizeof(Number)));
  }

  // The pairs at hand, first_ .. first_ + count_ - 1, and how their rows are written.
  int64_t first_ = 0, count_ = 0;
  bool contiguous_ = true;
  Store how_ = Store::kOrdinary;

  HWY_ALIGN uint64_t fraction_[kMaxPairs];
  HWY_ALIGN uint64_t whole_[kMaxPairs];
  HWY_ALIGN int64_t pair_integer_[kMaxPairs];
  HWY_ALIGN uint64_t pair_fraction_[kMaxPairs];
  HWY_ALIGN Number sine_[kScratch];
  HWY_ALIGN Number cosine_[kScratch];
};

template <typename T, bool kInterleaved, bool kAdd>
HWY_ATTR HWY_INLINE void run_kernel(const SinusoidalArgs& args, int64_t begin, int64_t end) {
  SinusoidalKernel<T, kInterleaved, kAdd> kernel;  // not {}: its scratch needs no zeros
  kernel.run(args, begin, end);
}

template <typename T>
HWY_ATTR void run_sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t end) {
  // One stream only if the numbers of a row are neighbours; otherwise two halves with a step.
  const bool interleaved =
      args.interleaved && args.sine_step == 2 && (args.x_sine == nullptr || args.x_step == 2);
  if (args.x_sine == nullptr) {
    if (interleaved) {
      run_kernel<T, true, false>(args, begin, end);
    } else {
      run_kernel<T, false, false>(args, begin, end);
    }
  } else if (interleaved) {
    run_kernel<T, true, true>(args, begin, end);
  } else {
    run_kernel<T, false, true>(args, begin, end);
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

POSENC_EXPORT(sinusoidal_target);

void sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t end) {
  POSENC_DISPATCH(sinusoidal_target)(args, begin, end);
}

}  // namespace posenc::cpu
#endif  // HWY_ONCE
