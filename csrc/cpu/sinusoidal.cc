// Tables of sines and cosines on the CPU: one position a row, written down or added to x.
//
//   for a group of pairs that fits the scratch            (mostly all of them)
//     for a block of rows
//       how do their positions go on: in equal steps, as any integers, with fractions?
//       for row
//         for the vectors of pairs that fill a cache line
//           phase -> sine, cosine -> (+ x) -> two halves, or one interleaved stream
//
// Equal steps are additions to phases that are kept from row to row. In 16-bit formats rows of
// integer positions are the last loop and not the first: those with the same anchor (phase.h) turn
// its sines and cosines, which stay in registers, by those of their steps. Aligned rows of large
// tables are written past the cache, by whole lines.
//
// Where x repeats the same positions (a batch), a block of rows stays in scratch when it has been
// added to the first repetition, for the others.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/phase.h"
#include "core/sinusoidal.h"
#include "cpu/numbers-inl.h"
#include "cpu/sincos-inl.h"
#include "cpu/unrolled-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kScratch = 131072;  // bytes of rows for repetitions: fewer leave x more often
constexpr uintptr_t kPage = 4096;     // bytes
constexpr int64_t kBlock = 64;        // rows at a time
constexpr int64_t kFewestSteps = 8;   // rows from which on the products of a first sum pay

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
class SinusoidalKernel {
  using Number = Real<T>;
  using D = RealTag<T>;
  static constexpr bool kBFloat16 = std::is_same_v<T, BFloat16>;
  static constexpr bool kHalf = !std::is_same_v<T, Number>;
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
      steps_made_ = 0;
      if (!kHalf) place_phases(args);
      stream_ = kStreams && args.non_temporal && contiguous_ && streams(args);
      run_pairs(args, begin, end);
    }
  }

 private:
  using Vector = hn::Vec<D>;
  static constexpr int64_t kLanes = hn::MaxLanes(D());
  // Frequencies held at a time: 32 KiB of them, or of sines and cosines of steps.
  static constexpr int64_t kMaxPairs = kHalf ? 512 : 2048;
  // Numbers of one stream in a vector of pairs, and the vectors of pairs that fill a cache line of
  // each stream: a line that is written past the cache bit by bit may be written more than once.
  static constexpr int64_t kNumbers = (kInterleaved ? 2 : 1) * kLanes;
  static constexpr int kGroup = static_cast<int>(
      std::clamp<int64_t>(kLineBytes / (kNumbers * static_cast<int64_t>(sizeof(T))), 1, 4));
  // Whether stores past the cache are others: not in pieces of 16 bytes, see store16.
  static constexpr bool kStreams = HWY_MAX_BYTES >= 32 || !std::is_same_v<Number, float> ||
                                   std::is_same_v<T, float> || (kInterleaved && kBFloat16);
  static constexpr int64_t kScratchPairs = kAdd ? kScratch / (2 * sizeof(Number)) : 1;
  // How far ahead of an addition memory is requested, in numbers: in a single row, and in each of
  // those that are turned together.
  static constexpr int64_t kAhead = 2048 / sizeof(T), kAheadOfEach = 512 / sizeof(T);

  // A vector of pairs in the order of memory, scaled: sines and cosines, or the first and the
  // second half of a stream.
  struct Ordered {
    Vector first, second;
  };

  HWY_ATTR void run_pairs(const SinusoidalArgs& args, int64_t begin, int64_t end) {
    if constexpr (kAdd) {  // nothing else repeats
      int64_t repetitions = 1;
      for (int axis = 0; args.repeated && axis < args.rank - 1; ++axis) {
        repetitions *= args.shape[axis];
      }
      if (repetitions > 1) return run_repeated(args, repetitions, begin, end);
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
      RowPointers<T> at = row_pointers(args, offsets);
      for_each_stretch(
          args, offsets.position, stride, rows,
          [&](const auto& angles, int64_t count) HWY_ATTR {
            put_rows(args, angles, count, at, moved(args, count, at));
            move_rows(args, count, at);
          },
          [&](auto anchor, int64_t step, int64_t count) HWY_ATTR {
            turn_rows(args, anchor, step, count, at, nullptr);
            move_rows(args, count, at);
          });
      begin += rows;
    }
  }

  HWY_ATTR void run_repeated(const SinusoidalArgs& args, int64_t repetitions, int64_t begin,
                             int64_t end) {
    const D d;
    const int last = args.rank - 1;
    const int64_t stride = args.position_strides[last];
    const int64_t padded = padded_;
    const int64_t block = std::min(kBlock, kScratchPairs / padded);
    for (; begin < end; begin += block) {
      const int64_t rows = std::min(block, end - begin);
      RowOffsets offsets;
      offsets.move(args, last, begin);
      RowPointers<T> at = row_pointers(args, offsets);
      Number* kept = scratch_;
      const auto move = [&](int64_t count) HWY_ATTR {
        move_rows(args, count, at);
        kept += 2 * padded * count;
      };
      for_each_stretch(
          args, begin * stride, stride, rows,
          [&](const auto& angles, int64_t count) HWY_ATTR {
            Number* const to = kept;
            const auto and_keep = [=](int64_t row, int64_t pair) POSENC_INLINED {
              const Ordered table = angles(row, pair);
              keep(table, to + 2 * (row * padded + pair));
              return table;
            };
            put_rows(args, and_keep, count, at, moved(args, count, at));
            move(count);
          },
          [&](auto anchor, int64_t step, int64_t count) HWY_ATTR {
            turn_rows(args, anchor, step, count, at, kept);
            move(count);
          });
      const Number* const scratch = scratch_;
      const auto angles = [=](int64_t row, int64_t pair) POSENC_INLINED -> Ordered {
        const Number* const from = scratch + 2 * (row * padded + pair);
        return {hn::Load(d, from), hn::Load(d, from + kLanes)};
      };
      const auto rows_of = [&](int64_t repetition, int64_t row) {
        offsets = row_offsets(args, last, repetition);
        offsets.move(args, last, row);
        return row_pointers(args, offsets);
      };
      at = rows_of(1, begin);
      for (int64_t repetition = 1; repetition < repetitions; ++repetition) {
        const bool ends = repetition + 1 == repetitions;
        const RowPointers<T> next =
            ends ? rows_of(0, begin + rows) : rows_of(repetition + 1, begin);
        put_rows(args, angles, rows, at, next);
        at = next;
      }
    }
  }

  static HWY_ATTR HWY_INLINE void keep(const Ordered& table, Number* to) {
    const D d;
    hn::Store(table.first, d, to);
    hn::Store(table.second, d, to + kLanes);
  }

  // `rows` <= kBlock rows, whose positions lie `stride` apart from `offset` on, in their order:
  // exact(angles, count), where angles(row, pair) is a vector of the table, to be called for all of
  // the `count` next rows once, row by row; or, of those with one anchor, in steps of 1,
  // turned(anchor, first step, count). How angles come about is decided for all rows of a stretch:
  // constants then stay in registers.
  template <typename Exact, typename Turned>
  HWY_ATTR HWY_INLINE void for_each_stretch(const SinusoidalArgs& args, int64_t offset,
                                            int64_t stride, int64_t rows, const Exact& exact,
                                            const Turned& turned) {
    const D d;
    const Frequencies frequencies{fraction_, whole_};
    const auto scale = hn::Set(d, static_cast<Number>(args.scale));
    const bool scaled = args.scale != 1.0;
    const auto multiply = [=](Vector& s, Vector& c) POSENC_INLINED {
      if (scaled) {
        s = hn::Mul(s, scale);
        c = hn::Mul(c, scale);
      }
    };
    const auto ordered = [=](Vector s, Vector c) POSENC_INLINED {
      multiply(s, c);
      return in_order(s, c);
    };
    if (args.axis_map.data != nullptr) {
      arrange_positions(d, kOrder, args.positions, args.axis_map, offset,
                        static_cast<size_t>(first_), static_cast<size_t>(count_), pair_integer_,
                        pair_fraction_);
      if constexpr (kHalf) split_pair_positions();
      const TokenPosition<true> position{{}, pair_integer_, pair_fraction_};
      const TokenPosition<true> step{{}, pair_step_, nullptr};
      exact(
          [=](int64_t /*row*/, int64_t pair) POSENC_INLINED {
            const size_t i = static_cast<size_t>(pair);
            Vector s, c;
            sincos<true, true>(d, position, frequencies, i, s, c);
            multiply(s, c);
            if constexpr (kHalf) {
              Vector step_sine, step_cosine;
              sincos<true, false>(d, step, frequencies, i, step_sine, step_cosine);
              turn(step_sine, step_cosine, d, s, c);
            }
            return in_order(s, c);
          },
          rows);
      return;
    }
    int64_t integer[kBlock];
    uint64_t fraction[kBlock];
    const bool fractional = read_positions(args.positions, offset, stride, rows, integer, fraction);
    const auto with_fractions = [&](int64_t first, int64_t count) HWY_ATTR {
      exact(
          [&](int64_t row, int64_t pair) POSENC_INLINED {
            const TokenPosition<false> position{
                {integer[first + row], fraction[first + row]}, nullptr, nullptr};
            Vector s, c;
            sincos<false, true>(d, position, frequencies, static_cast<size_t>(pair), s, c);
            return ordered(s, c);
          },
          count);
    };
    if constexpr (kHalf) {
      for (int64_t row = 0; row < rows;) {
        int64_t count = 1;
        if (fraction[row] == 0) {
          const int64_t step = step_of({integer[row], 0});
          while (row + count < rows && step + count < kSteps && fraction[row + count] == 0 &&
                 integer[row + count] == integer[row] + count) {
            ++count;
          }
          make_steps(step, count);
          turned(anchor_of({integer[row], 0}), step, count);
        } else {
          while (row + count < rows && fraction[row + count] != 0) ++count;
          with_fractions(row, count);
        }
        row += count;
      }
    } else if (fractional) {
      with_fractions(0, rows);
    } else if (rows >= kFewestSteps && equal_steps(integer, rows)) {
      walk_from(integer[0], difference(integer[1], integer[0]));
      PhaseWord<D>* const phases = phases_;
      const PhaseWord<D>* const steps = steps_;
      exact(
          [=](int64_t /*row*/, int64_t pair) POSENC_INLINED {
            PhaseWord<D>* const at = phases + kPhaseWords<D> * pair;
            const auto phase = load_phases(d, at);
            store_phases(d, add(d, phase, load_phases(d, steps + kPhaseWords<D> * pair)), at);
            Vector s, c;
            sincos(d, phase, s, c);
            return ordered(s, c);
          },
          rows);
      next_ += step_ * static_cast<uint64_t>(rows);
    } else {
      exact(
          [&](int64_t row, int64_t pair) POSENC_INLINED {
            const TokenPosition<false> position{{integer[row], 0}, nullptr, nullptr};
            Vector s, c;
            sincos<false, false>(d, position, frequencies, static_cast<size_t>(pair), s, c);
            return ordered(s, c);
          },
          rows);
    }
  }

  void split_pair_positions() {
    for (int64_t pair = 0; pair < padded_; ++pair) {
      const Position position{pair_integer_[pair], pair_fraction_[pair]};
      pair_step_[pair] = step_of(position);
      pair_integer_[pair] = anchor_of(position).integer;
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

  // The same rows from their pair `pair` on, where pairs are neighbours.
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

  // --- Rows of integer positions in 16-bit formats

  // The sines and cosines of `count` steps from `step` on, unless they are there.
  HWY_ATTR void make_steps(int64_t step, int64_t count) {
    const D d;
    const Frequencies frequencies{fraction_, whole_};
    for (; count > 0; ++step, --count) {
      if ((steps_made_ >> step & 1) != 0) continue;
      steps_made_ |= 1u << step;
      const TokenPosition<false> position{{step, 0}, nullptr, nullptr};
      for (int64_t pair = 0; pair < padded_; pair += kLanes) {
        Vector s, c;
        sincos<false, false>(d, position, frequencies, static_cast<size_t>(pair), s, c);
        Number* const to = step_table(pair, step);
        hn::Store(s, d, to);
        hn::Store(c, d, to + kLanes);
      }
    }
  }

  // The sines of a step for a vector of pairs, before its cosines; those of the next step follow.
  Number* step_table(int64_t pair, int64_t step) {
    return step_table_ + 2 * (pair * kSteps + step * kLanes);
  }

  // put(tables) for the vectors of pairs from `pair` on, row by row.
  template <int kVectors, typename Put>
  HWY_ATTR HWY_INLINE void turn_vectors(const SinusoidalArgs& args, Position anchor, int64_t pair,
                                        int64_t step, int64_t count, const Put& put) {
    const D d;
    const TokenPosition<false> position{anchor, nullptr, nullptr};
    const Frequencies frequencies{fraction_, whole_};
    const auto scale = hn::Set(d, static_cast<Number>(args.scale));
    Vector s[kVectors], c[kVectors];
    unrolled<kVectors>([&](auto v) POSENC_INLINED {
      const size_t i = static_cast<size_t>(pair + v * kLanes);
      sincos<false, false>(d, position, frequencies, i, s[v], c[v]);
      if (args.scale != 1.0) {
        s[v] = hn::Mul(s[v], scale);
        c[v] = hn::Mul(c[v], scale);
      }
    });
    const Number* from = step_table(pair, step);
    for (; count > 0; --count, from += 2 * kLanes) {
      Ordered tables[kVectors];
      unrolled<kVectors>([&](auto v) POSENC_INLINED {
        const Number* const of_step = from + 2 * kSteps * kLanes * v;
        Vector turned_s = s[v], turned_c = c[v];
        turn(hn::Load(d, of_step), hn::Load(d, of_step + kLanes), d, turned_s, turned_c);
        tables[v] = in_order(turned_s, turned_c);
      });
      put(tables);
    }
  }

  // The rows anchor + step, anchor + step + 1 ...; the first one is at `first`. They are kept as
  // well, unless `kept` is null.
  HWY_ATTR void turn_rows(const SinusoidalArgs& args, Position anchor, int64_t step, int64_t count,
                          const RowPointers<T>& first, Number* kept) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (kBFloat16 && !kAdd) {
      if (std::abs(args.scale) > kLeastNormal &&
          bfloat16_instructions.load(std::memory_order_relaxed)) {
        return turn_rows_as<Smallest::kNormal>(args, anchor, step, count, first, kept);
      }
    }
#endif
    turn_rows_as<Smallest::kAny>(args, anchor, step, count, first, kept);
  }

  template <Smallest kSmallest>
  HWY_ATTR HWY_INLINE void turn_rows_as(const SinusoidalArgs& args, Position anchor, int64_t step,
                                        int64_t count, const RowPointers<T>& first, Number* kept) {
    const int64_t grouped = grouped_pairs(), whole = whole_pairs();
    if (kStreams && stream_) {
      turn_whole<kStreams ? Store::kStream : Store::kOrdinary, kSmallest, kGroup>(
          args, anchor, step, count, 0, grouped, first, kept);
    } else {
      turn_whole<Store::kOrdinary, kSmallest, kGroup>(args, anchor, step, count, 0, grouped, first,
                                                      kept);
    }
    if (grouped != whole) {
      turn_whole<Store::kOrdinary, kSmallest, 1>(args, anchor, step, count, grouped, whole, first,
                                                 kept);
    }
    if (whole != count_) turn_rest(args, anchor, step, count, whole, first, kept);
  }

  template <Store kStore, Smallest kSmallest, int kVectors>
  HWY_ATTR HWY_INLINE void turn_whole(const SinusoidalArgs& args, Position anchor, int64_t step,
                                      int64_t count, int64_t begin, int64_t end,
                                      const RowPointers<T>& first, Number* kept) {
    const auto x_scale = hn::Set(D(), static_cast<Number>(args.x_scale));
    const int last = std::max(args.rank - 1, 0);
    const int64_t sine_stride = args.sine_strides[last], cosine_stride = args.cosine_strides[last];
    const int64_t x_stride = args.x_strides[last];
    const int64_t length = (end - begin) / kLanes * kNumbers;
    for (int64_t pair = begin; pair < end; pair += kVectors * kLanes) {
      RowPointers<T> at = from_pair(first, pair);
      // Behind the end of a row comes the next one that is not at work.
      const bool ends = (end - pair) / kLanes * kNumbers <= kAheadOfEach;
      const int64_t x_ahead = kAheadOfEach + (ends ? count * x_stride - length : 0);
      const int64_t ahead = kAheadOfEach + (ends ? count * sine_stride - length : 0);
      Number* to = kept == nullptr ? nullptr : kept + 2 * pair;
      turn_vectors<kVectors>(
          args, anchor, pair, step, count, [&](const Ordered(&tables)[kVectors]) POSENC_INLINED {
            if constexpr (kAdd) {
              request<kStore>(at, x_ahead, ahead);
              if (to != nullptr) {
                unrolled<kVectors>([&](auto v)
                                       POSENC_INLINED { keep(tables[v], to + 2 * kLanes * v); });
                to += 2 * padded_;
              }
            }
            put<kStore, kSmallest>(tables, x_scale, at);
            at.sine += sine_stride;
            if constexpr (!kInterleaved) at.cosine += cosine_stride;
            if constexpr (kAdd) {
              at.x_sine += x_stride;
              if constexpr (!kInterleaved) at.x_cosine += x_stride;
            }
          });
    }
  }

  HWY_ATTR HWY_NOINLINE void turn_rest(const SinusoidalArgs& args, Position anchor, int64_t step,
                                       int64_t count, int64_t whole, const RowPointers<T>& first,
                                       Number* kept) {
    for (int64_t pair = whole; pair < count_; pair += kLanes) {
      RowPointers<T> at = first;
      Number* to = kept == nullptr ? nullptr : kept + 2 * pair;
      turn_vectors<1>(args, anchor, pair, step, count,
                      [&](const Ordered(&table)[1]) POSENC_INLINED {
                        if (to != nullptr) {
                          keep(table[0], to);
                          to += 2 * padded_;
                        }
                        put_part(args, table[0], pair, std::min(kLanes, count_ - pair), at);
                        move_rows(args, 1, at);
                      });
    }
  }

  // Where in memory pairs are neighbours: those of whole vectors, and of groups of them.
  int64_t whole_pairs() const { return contiguous_ ? count_ / kLanes * kLanes : 0; }
  int64_t grouped_pairs() const {
    constexpr int64_t kPairs = kGroup * kLanes;
    return contiguous_ ? count_ / kPairs * kPairs : 0;
  }

  // --- Any rows

  // Rows along the last axis, the first one at `first`, before those at `next`. Groups of vectors
  // come first, in a single loop over the rows, and then what is left of each row: a loop within a
  // loop, or one that calls a function, would load its constants anew for each row.
  template <typename Angles>
  HWY_ATTR HWY_INLINE void put_rows(const SinusoidalArgs& args, const Angles& angles, int64_t rows,
                                    const RowPointers<T>& first, const RowPointers<T>& next) {
    const int64_t grouped = grouped_pairs(), whole = whole_pairs();
    if (kStreams && stream_) {
      put_whole<kStreams ? Store::kStream : Store::kOrdinary>(args, angles, rows, grouped, first,
                                                              next);
    } else {
      put_whole<Store::kOrdinary>(args, angles, rows, grouped, first, next);
    }
    if (grouped != count_) put_rest(args, angles, rows, grouped, whole, first);
  }

  // The vectors of the pairs 0 .. grouped - 1 of each row.
  template <Store kStore, typename Angles>
  HWY_ATTR HWY_INLINE void put_whole(const SinusoidalArgs& args, const Angles angles, int64_t rows,
                                     int64_t grouped, RowPointers<T> at,
                                     [[maybe_unused]] const RowPointers<T>& next) {
    constexpr int64_t kPairs = kGroup * kLanes, kStep = kGroup * kNumbers;
    const auto x_scale = hn::Set(D(), static_cast<Number>(args.x_scale));
    const int last = std::max(args.rank - 1, 0);
    // From the end of a row to the next.
    const int64_t written = grouped / kPairs * kStep;
    const int64_t sine_gap = args.sine_strides[last] - written;
    const int64_t cosine_gap = args.cosine_strides[last] - written;
    const int64_t x_gap = args.x_strides[last] - written;
    const RowPointers<T> end = moved(args, rows, at);
    const int64_t x_jump = kAdd ? next.x_sine - end.x_sine : 0, jump = next.sine - end.sine;
    int64_t row = 0, pair = 0;
    for (int64_t groups = rows * (grouped / kPairs); groups > 0; --groups) {
      if constexpr (kAdd) {
        const bool beyond = groups <= kAhead / kStep;
        request<kStore>(at, kAhead + (beyond ? x_jump : 0), kAhead + (beyond ? jump : 0));
      }
      Ordered tables[kGroup];
      unrolled<kGroup>([&](auto v) POSENC_INLINED { tables[v] = angles(row, pair + v * kLanes); });
      put<kStore, Smallest::kAny>(tables, x_scale, at);
      pair += kPairs;
      const bool ends = pair == grouped;
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

  // The further pairs of each row, of which those before `whole` fill vectors.
  template <typename Angles>
  HWY_ATTR HWY_NOINLINE void put_rest(const SinusoidalArgs& args, const Angles angles, int64_t rows,
                                      int64_t grouped, int64_t whole, RowPointers<T> at) {
    const auto x_scale = hn::Set(D(), static_cast<Number>(args.x_scale));
    const int64_t count = count_;
    for (int64_t row = 0; row < rows; ++row) {
      int64_t pair = grouped;
      for (; pair < whole; pair += kLanes) {
        const Ordered table[1] = {angles(row, pair)};
        put<Store::kOrdinary, Smallest::kAny>(table, x_scale, from_pair(at, pair));
      }
      for (; pair < count; pair += kLanes) {
        put_part(args, angles(row, pair), pair, std::min(kLanes, count - pair), at);
      }
      move_rows(args, 1, at);
    }
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

  static HWY_ATTR HWY_INLINE Ordered in_order(Vector s, Vector c) {
    if constexpr (kOrder == PairOrder::kInterleave) {
      const D d;
      return {hn::InterleaveLower(d, s, c), hn::InterleaveUpper(d, s, c)};
    } else {
      return {s, c};
    }
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
    const Ordered tables[1] = {table};
    put<Store::kOrdinary, Smallest::kAny>(tables, x_scale,
                                          {buffer, buffer + kOther, x_buffer, x_buffer + kOther});
    for (int64_t j = 0; j < count; ++j) {
      pointers.sine[(i + j) * args.sine_step] = buffer[j * kStep];
      pointers.cosine[(i + j) * args.cosine_step] = buffer[j * kStep + kOther];
    }
  }

  // Whether all groups are aligned for streams past the cache.
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
    return can_stream_to(all, kLineBytes);
  }

  // The pairs at hand, first_ .. first_ + count_ - 1; count_ filled up to whole vectors.
  int64_t first_ = 0, count_ = 0, padded_ = 0;
  bool contiguous_ = true;
  bool stream_ = false;
  unsigned steps_made_ = 0;  // a bit for each
  // Whether phases_ are those of position next_, in steps of step_.
  bool walking_ = false;
  uint64_t next_ = 0, step_ = 0;

  HWY_ALIGN uint64_t fraction_[kMaxPairs];
  HWY_ALIGN uint64_t whole_[kMaxPairs];
  HWY_ALIGN int64_t pair_integer_[kMaxPairs];
  HWY_ALIGN uint64_t pair_fraction_[kMaxPairs];
  HWY_ALIGN int64_t pair_step_[kHalf ? kMaxPairs : 1];
  HWY_ALIGN Number step_table_[kHalf ? 2 * kSteps * kMaxPairs : 1];
  HWY_ALIGN PhaseWord<D>
      phase_memory_[kHalf ? 1 : 2 * kMaxPairs * kPhaseWords<D> + kPage / sizeof(Number)];
  PhaseWord<D>* phases_ = nullptr;
  PhaseWord<D>* steps_ = nullptr;
  HWY_ALIGN Number scratch_[2 * kScratchPairs];
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

HWY_ATTR void write_table_rows(const SinusoidalArgs& args, int64_t begin, int64_t end) {
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

namespace posenc::cpu::HWY_NAMESPACE {

void sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t end) {
  write_table_rows(args, begin, end);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
