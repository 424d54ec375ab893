// Tables of sines and cosines on the CPU: one position a row, written down or added to x.
//
//   for a group of pairs that fits the scratch            (mostly all of them)
//     for a block of rows
//       how do their positions go on: in equal steps, as any integers, with fractions?
//       for row
//         for a vector of pairs
//           phase -> sine, cosine -> (+ x) -> two halves, or one interleaved stream
//
// Equal steps are additions to phases that are kept from row to row. Aligned rows of large tables
// are written past the cache.
//
// Where x repeats the same positions (a batch), a block of rows goes through scratch instead and is
// added to every repetition.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/sinusoidal.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <cstdint>
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

// Of functions without a name that must not become calls: constants would be loaded in each.
#undef POSENC_INLINED
#define POSENC_INLINED HWY_ATTR __attribute__((always_inline))

constexpr size_t kMaxPairs = 2048;   // frequencies held at a time: 32 KiB
constexpr int64_t kScratch = 4096;   // pairs of sines and cosines: 32 KiB in float32
constexpr uintptr_t kPage = 4096;    // bytes
constexpr int64_t kBlock = 64;       // rows at a time
constexpr int64_t kFewestSteps = 8;  // rows from which on the products of a first sum pay

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
      padded_ = static_cast<int64_t>(arrange_frequencies(
          D(), kOrder, {args.frequencies.fraction + first_, args.frequencies.whole + first_},
          static_cast<size_t>(count_), fraction_, whole_));
      walking_ = false;
      place_phases(args);
      stream_ = kStreams && args.non_temporal && contiguous_ && streams(args);
      run_pairs(args, begin, end);
    }
  }

 private:
  using Vector = hn::Vec<D>;
  static constexpr int64_t kLanes = hn::MaxLanes(D());
  // Whether stores past the cache are others: not in pieces of 16 bytes, see store16.
  static constexpr bool kStreams = HWY_MAX_BYTES >= 32 || !std::is_same_v<Number, float> ||
                                   std::is_same_v<T, float> || (kInterleaved && kBFloat16);
  // How far ahead of the addition x is requested.
  static constexpr int64_t kAhead = 2048 / sizeof(T);

  // A vector of pairs in the order of memory, scaled: sines and cosines, or the first and the
  // second half of a stream.
  struct Ordered {
    Vector first, second;
  };

  HWY_ATTR void run_pairs(const SinusoidalArgs& args, int64_t begin, int64_t end) {
    if constexpr (kAdd) {  // nothing else repeats
      if (args.repeated) return run_repeated(args, begin, end);
    }
    run_rows(args, begin, end);
  }

  HWY_ATTR void run_rows(const SinusoidalArgs& args, int64_t begin, int64_t end) {
    const int last = args.rank - 1;
    // With positions of their own the pairs of each row are arranged anew.
    const int64_t block = args.axis_map.data != nullptr ? 1 : kBlock;
    while (begin < end) {
      const RowOffsets offsets = row_offsets(args, args.rank, begin);
      // Runs along the last axis; no axis at all is a single row.
      const int64_t length = last < 0 ? 1 : args.shape[last];
      const int64_t rows = std::min({length - begin % length, end - begin, block});
      const int64_t stride = last < 0 ? 0 : args.position_strides[last];
      const RowPointers<T> first = row_pointers(args, offsets);
      with_angles(args, offsets.position, stride, rows,
                  [&](const auto& angles) HWY_ATTR { put_rows(args, angles, rows, first); });
      begin += rows;
    }
  }

  HWY_ATTR void run_repeated(const SinusoidalArgs& args, int64_t begin, int64_t end) {
    const D d;
    const int last = args.rank - 1;
    const int64_t stride = args.position_strides[last];
    const int64_t padded = padded_;
    const int64_t block = std::min(kBlock, kScratch / padded);
    int64_t repetitions = 1;
    for (int axis = 0; axis < last; ++axis) repetitions *= args.shape[axis];
    for (; begin < end; begin += block) {
      const int64_t rows = std::min(block, end - begin);
      Number* const scratch = scratch_;
      with_angles(args, begin * stride, stride, rows, [&](const auto& angles) HWY_ATTR {
        for (int64_t row = 0; row < rows; ++row) {
          Number* const to = scratch + 2 * row * padded;
          for (int64_t pair = 0; pair < padded; pair += kLanes) {
            const Ordered table = angles(row, pair);
            hn::Store(table.first, d, to + 2 * pair);
            hn::Store(table.second, d, to + 2 * pair + kLanes);
          }
        }
      });
      const auto angles = [=](int64_t row, int64_t pair) POSENC_INLINED -> Ordered {
        const Number* const from = scratch + 2 * (row * padded + pair);
        return {hn::Load(d, from), hn::Load(d, from + kLanes)};
      };
      for (int64_t repetition = 0; repetition < repetitions; ++repetition) {
        RowOffsets offsets = row_offsets(args, last, repetition);
        offsets.move(args, last, begin);
        put_rows(args, angles, rows, row_pointers(args, offsets));
      }
    }
  }

  // use(angles) for `rows` <= kBlock rows, whose positions lie `stride` apart from `offset` on.
  // angles(row, pair) is a vector of the table; it is called for all of them once, row by row. How
  // angles come about is decided for all of the rows: constants then stay in registers.
  template <typename Use>
  HWY_ATTR HWY_INLINE void with_angles(const SinusoidalArgs& args, int64_t offset, int64_t stride,
                                       int64_t rows, const Use& use) {
    const D d;
    const Frequencies frequencies{fraction_, whole_};
    const auto scale = hn::Set(d, static_cast<Number>(args.scale));
    const bool scaled = args.scale != 1.0;
    const auto ordered = [=](Vector s, Vector c) POSENC_INLINED {
      if (scaled) {
        s = hn::Mul(s, scale);
        c = hn::Mul(c, scale);
      }
      return in_order(s, c);
    };
    if (args.axis_map.data != nullptr) {
      const TokenPosition<true> position{{}, pair_integer_, pair_fraction_};
      arrange_positions(d, kOrder, args.positions, args.axis_map, offset,
                        static_cast<size_t>(first_), static_cast<size_t>(count_), pair_integer_,
                        pair_fraction_);
      use([=](int64_t /*row*/, int64_t pair) POSENC_INLINED {
        Vector s, c;
        sincos<true, true>(d, position, frequencies, static_cast<size_t>(pair), s, c);
        return ordered(s, c);
      });
      return;
    }
    int64_t integer[kBlock];
    uint64_t fraction[kBlock];
    if (read_positions(args.positions, offset, stride, rows, integer, fraction)) {
      use([&](int64_t row, int64_t pair) POSENC_INLINED {
        const TokenPosition<false> position{{integer[row], fraction[row]}, nullptr, nullptr};
        Vector s, c;
        sincos<false, true>(d, position, frequencies, static_cast<size_t>(pair), s, c);
        return ordered(s, c);
      });
    } else if (rows >= kFewestSteps && equal_steps(integer, rows)) {
      walk_from(integer[0], difference(integer[1], integer[0]));
      PhaseWord<D>* const phases = phases_;
      const PhaseWord<D>* const steps = steps_;
      use([=](int64_t /*row*/, int64_t pair) POSENC_INLINED {
        PhaseWord<D>* const at = phases + kPhaseWords<D> * pair;
        const auto phase = load_phases(d, at);
        store_phases(d, add(d, phase, load_phases(d, steps + kPhaseWords<D> * pair)), at);
        Vector s, c;
        sincos(d, phase, s, c);
        return ordered(s, c);
      });
      next_ += step_ * static_cast<uint64_t>(rows);
    } else {
      use([&](int64_t row, int64_t pair) POSENC_INLINED {
        const TokenPosition<false> position{{integer[row], 0}, nullptr, nullptr};
        Vector s, c;
        sincos<false, false>(d, position, frequencies, static_cast<size_t>(pair), s, c);
        return ordered(s, c);
      });
    }
  }

  // Positions wrap, as their phases do.
  static uint64_t difference(int64_t a, int64_t b) {
    return static_cast<uint64_t>(a) - static_cast<uint64_t>(b);
  }

  static bool equal_steps(const int64_t* positions, int64_t count) {
    const uint64_t step = difference(positions[1], positions[0]);
    for (int64_t i = 2; i < count; ++i) {
      if (difference(positions[i], positions[i - 1]) != step) return false;
    }
    return true;
  }

  // Phases begin as far into a page as the output does: a load may have to wait for unfinished
  // stores with the same low bits of their addresses. Elsewhere in the page, a table with rows of
  // 512 bytes takes up to a quarter longer.
  void place_phases(const SinusoidalArgs& args) {
    constexpr uintptr_t kLine = 64;
    const uintptr_t output = reinterpret_cast<uintptr_t>(args.sine) / kLine * kLine;
    const uintptr_t from = reinterpret_cast<uintptr_t>(phase_memory_);
    const uintptr_t bytes = (output - from) % kPage;
    phases_ = phase_memory_ + bytes / sizeof(PhaseWord<D>);
    steps_ = phases_ + kMaxPairs * kPhaseWords<D>;
  }

  // Leaves the phases of `position` in phases_ and what is added to them for each step in steps_,
  // unless the last rows have done so.
  HWY_ATTR HWY_NOINLINE void walk_from(int64_t position, uint64_t step) {
    const uint64_t first = static_cast<uint64_t>(position);
    if (walking_ && first == next_ && step == step_) return;
    const D d;
    const Frequencies frequencies{fraction_, whole_};
    const TokenPosition<false> start{{position, 0}, nullptr, nullptr};
    const TokenPosition<false> between{{static_cast<int64_t>(step), 0}, nullptr, nullptr};
    for (int64_t pair = 0; pair < padded_; pair += kLanes) {
      const size_t i = static_cast<size_t>(pair);
      const size_t word = i * kPhaseWords<D>;
      store_phases(d, phases_at<false, false>(d, start, frequencies, i), phases_ + word);
      store_phases(d, phases_at<false, false>(d, between, frequencies, i, 0), steps_ + word);
    }
    walking_ = true;
    step_ = step;
    next_ = first;
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

  // Rows along the last axis, the first one at `first`. Whole vectors come first, in a single loop
  // over the rows, and then what is left of each row: a loop within a loop, or one that calls a
  // function, would load its constants anew for each row.
  template <typename Angles>
  HWY_ATTR HWY_INLINE void put_rows(const SinusoidalArgs& args, const Angles& angles, int64_t rows,
                                    const RowPointers<T>& first) {
    const int64_t whole = contiguous_ ? count_ / kLanes * kLanes : 0;
    if (kStreams && stream_) {
      put_whole<kStreams ? Store::kStream : Store::kOrdinary>(args, angles, rows, whole, first);
    } else {
      put_whole<Store::kOrdinary>(args, angles, rows, whole, first);
    }
    if (whole != count_) put_rest(args, angles, rows, whole, first);
  }

  // The vectors of the pairs 0 .. whole - 1 of each row.
  template <Store kStore, typename Angles>
  HWY_ATTR HWY_INLINE void put_whole(const SinusoidalArgs& args, const Angles angles, int64_t rows,
                                     int64_t whole, RowPointers<T> at) {
    constexpr int64_t kStep = (kInterleaved ? 2 : 1) * kLanes;
    const auto x_scale = hn::Set(D(), static_cast<Number>(args.x_scale));
    const int last = std::max(args.rank - 1, 0);
    // From the end of a row to the next.
    const int64_t written = whole / kLanes * kStep;
    const int64_t sine_gap = args.sine_strides[last] - written;
    const int64_t cosine_gap = args.cosine_strides[last] - written;
    const int64_t x_gap = args.x_strides[last] - written;
    int64_t row = 0, pair = 0;
    for (int64_t vectors = rows * (whole / kLanes); vectors > 0; --vectors) {
      if constexpr (kAdd) {
        hwy::Prefetch(at.x_sine + kAhead);
        hwy::Prefetch((kInterleaved ? at.x_sine + kLanes : at.x_cosine) + kAhead);
      }
      put<kStore>(angles(row, pair), x_scale, at);
      pair += kLanes;
      const bool ends = pair == whole;
      if (ends) pair = 0;
      row += ends;
      at.sine += kStep + (ends ? sine_gap : 0);
      at.cosine += kStep + (ends ? cosine_gap : 0);
      if constexpr (kAdd) {
        at.x_sine += kStep + (ends ? x_gap : 0);
        at.x_cosine += kStep + (ends ? x_gap : 0);
      }
    }
  }

  // The further pairs of each row.
  template <typename Angles>
  HWY_ATTR HWY_NOINLINE void put_rest(const SinusoidalArgs& args, const Angles angles, int64_t rows,
                                      int64_t whole, RowPointers<T> at) {
    const int last = std::max(args.rank - 1, 0);
    const int64_t count = count_;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t pair = whole; pair < count; pair += kLanes) {
        put_part(args, angles(row, pair), pair, std::min(kLanes, count - pair), at);
      }
      at.sine += args.sine_strides[last];
      at.cosine += args.cosine_strides[last];
      if constexpr (kAdd) {
        at.x_sine += args.x_strides[last];
        at.x_cosine += args.x_strides[last];
      }
    }
  }

  static HWY_ATTR HWY_INLINE Ordered in_order(Vector s, Vector c) {
    if constexpr (kOrder == PairOrder::kInterleave) {
      const D d;
      return {hn::InterleaveLower(d, s, c), hn::InterleaveUpper(d, s, c)};
    } else {
      return {s, c};
    }
  }

  // A vector of pairs, added to x, to memory.
  template <Store kStore>
  static HWY_ATTR HWY_INLINE void put(Ordered table, Vector x_scale, const RowPointers<T>& at) {
    const D d;
    if constexpr (kAdd) {
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
    if constexpr (kInterleaved && kBFloat16) {
      store_even_odd<kStore>(table.first, table.second, d, at.sine);
    } else {
      store<kStore>(table.first, d, at.sine);
      store<kStore>(table.second, d, kInterleaved ? at.sine + kLanes : at.cosine);
    }
  }

  // `count` pairs from the i-th on through a buffer: row ends, and numbers that are not neighbours.
  HWY_ATTR HWY_NOINLINE void put_part(const SinusoidalArgs& args, Ordered table, int64_t i,
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
    put<Store::kOrdinary>(table, x_scale, {buffer, buffer + kOther, x_buffer, x_buffer + kOther});
    for (int64_t j = 0; j < count; ++j) {
      pointers.sine[(i + j) * args.sine_step] = buffer[j * kStep];
      pointers.cosine[(i + j) * args.cosine_step] = buffer[j * kStep + kOther];
    }
  }

  // Whether all full vectors are aligned for streams past the cache.
  bool streams(const SinusoidalArgs& args) const {
    constexpr int64_t kSize = sizeof(T);
    if (args.x_sine == args.sine) return false;  // in place, in the cache already
    int64_t all = reinterpret_cast<int64_t>(args.sine) + first_ * args.sine_step * kSize;
    if (!kInterleaved) {
      all |= reinterpret_cast<int64_t>(args.cosine) + first_ * args.cosine_step * kSize;
    }
    for (int i = 0; i < args.rank; ++i) {
      if (args.shape[i] > 1) all |= (args.sine_strides[i] | args.cosine_strides[i]) * kSize;
    }
    return can_stream_to(all, kLanes * static_cast<int64_t>(sizeof(Number)));
  }

  // The pairs at hand, first_ .. first_ + count_ - 1; count_ filled up to whole vectors.
  int64_t first_ = 0, count_ = 0, padded_ = 0;
  bool contiguous_ = true;
  bool stream_ = false;
  // Whether phases_ are those of position next_, in steps of step_.
  bool walking_ = false;
  uint64_t next_ = 0, step_ = 0;

  HWY_ALIGN uint64_t fraction_[kMaxPairs];
  HWY_ALIGN uint64_t whole_[kMaxPairs];
  HWY_ALIGN int64_t pair_integer_[kMaxPairs];
  HWY_ALIGN uint64_t pair_fraction_[kMaxPairs];
  HWY_ALIGN PhaseWord<D> phase_memory_[2 * kMaxPairs * kPhaseWords<D> + kPage / sizeof(Number)];
  PhaseWord<D>* phases_ = nullptr;
  PhaseWord<D>* steps_ = nullptr;
  HWY_ALIGN Number scratch_[2 * kScratch];
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
