// Tables of sines and cosines on the CPU: one position a row, written down or added to x.
//
//   for a group of pairs that fits the scratch            (mostly all of them)
//     for a block of rows
//       how do their positions go on: in equal steps, as any integers, with fractions?
//       for row
//         for the vectors of pairs that fill a cache line
//           phase -> sine, cosine -> (+ x) -> two halves, or one interleaved stream
//
// Where angles come from: sinusoidal_angles-inl.h. How vectors are written:
// sinusoidal_vectors-inl.h. In 16-bit formats rows of integer positions are the last loop and not
// the first. Aligned rows of large tables are written past the cache, by whole lines.
//
// Where x repeats the same positions (a batch), a block of rows stays in scratch when it has been
// added to the first repetition, for the others.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/sinusoidal.h"
#include "core/visit_type.h"
#include "cpu/sinusoidal_angles-inl.h"
#include "cpu/sinusoidal_vectors-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T, bool kInterleaved, bool kAdd>
class SinusoidalKernel : SinusoidalAngles<T, SinusoidalVectors<T, kInterleaved, kAdd>::kOrder> {
  using Vectors = SinusoidalVectors<T, kInterleaved, kAdd>;
  using Angles = SinusoidalAngles<T, Vectors::kOrder>;
  using Angles::first_, Angles::count_, Angles::padded_, Angles::kLanes, Angles::kBlock;
  using typename Angles::D, typename Angles::Number, typename Angles::Ordered;
  static constexpr auto kNumbers = Vectors::kNumbers;
  static constexpr auto kGroup = Vectors::kGroup;

 public:
  HWY_ATTR void run(const SinusoidalArgs& args, int64_t begin, int64_t end) {
    contiguous_ = kInterleaved ||
                  (args.sine_step == 1 && args.cosine_step == 1 && (!kAdd || args.x_step == 1));
    for (int64_t first = 0; first < args.pairs; first += Angles::kMaxPairs) {
      Angles::enter(args, first);
      stream_ =
          Vectors::kStreams && args.non_temporal && contiguous_ && Vectors::streams(args, first_);
      run_pairs(args, begin, end);
    }
  }

 private:
  // How far ahead of an addition memory is requested, in numbers: in a single row, and in each of
  // those that are turned together.
  static constexpr int64_t kAhead = 2048 / sizeof(T), kAheadOfEach = 512 / sizeof(T);
  // Bytes of rows for repetitions: fewer leave x more often.
  static constexpr int64_t kScratch = 131072;
  static constexpr int64_t kScratchPairs = kAdd ? kScratch / (2 * sizeof(Number)) : 1;

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
      compute_rows(args, offsets.position, stride, rows,
                   Vectors::row_pointers(args, offsets, first_), nullptr);
      begin += rows;
    }
  }

  // Rows from `at` on, whose positions lie `stride` apart from `offset` on. They are kept as well,
  // unless `kept` is null.
  HWY_ATTR HWY_NOINLINE void compute_rows(const SinusoidalArgs& args, int64_t offset,
                                          int64_t stride, int64_t rows, RowPointers<T> at,
                                          Number* kept) {
    const int64_t kept_row = 2 * padded_, grouped = grouped_pairs();
    const auto move = [&](int64_t count) HWY_ATTR {
      Vectors::move_rows(args, count, at);
      if (kept != nullptr) kept += kept_row * count;
    };
    Angles::for_each_stretch(
        args, offset, stride, rows, grouped != 0,
        [&](const auto& angles, int64_t first, int64_t count) HWY_ATTR {
          const RowPointers<T> next = Vectors::moved(args, count, at);
          put_rows(args, angles, count, at, next, kept);
          if (grouped != count_) put_rest(args, first, count, grouped, at, kept, false);
          move(count);
        },
        [&](auto anchor, int64_t step, int64_t count) HWY_ATTR {
          turn_rows(args, anchor, step, count, at, kept);
          move(count);
        });
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
      compute_rows(args, begin * stride, stride, rows, Vectors::row_pointers(args, offsets, first_),
                   scratch_);
      const Number* const scratch = scratch_;
      const auto angles = [=](int64_t row, int64_t pair) POSENC_INLINED -> Ordered {
        const Number* const from = scratch + 2 * (row * padded + pair);
        return {hn::Load(d, from), hn::Load(d, from + kLanes)};
      };
      const auto rows_of = [&](int64_t repetition, int64_t row) {
        offsets = row_offsets(args, last, repetition);
        offsets.move(args, last, row);
        return Vectors::row_pointers(args, offsets, first_);
      };
      RowPointers<T> at = rows_of(1, begin);
      for (int64_t repetition = 1; repetition < repetitions; ++repetition) {
        const bool ends = repetition + 1 == repetitions;
        const RowPointers<T> next =
            ends ? rows_of(0, begin + rows) : rows_of(repetition + 1, begin);
        put_rows(args, angles, rows, at, next, nullptr);
        const int64_t grouped = grouped_pairs();
        if (grouped != count_) put_rest(args, 0, rows, grouped, at, scratch_, true);
        at = next;
      }
    }
  }

  // --- Rows of integer positions in 16-bit formats

  // The rows anchor + step, anchor + step + 1 ...; the first one is at `first`. They are kept as
  // well, unless `kept` is null.
  HWY_ATTR void turn_rows(const SinusoidalArgs& args, Position anchor, int64_t step, int64_t count,
                          const RowPointers<T>& first, Number* kept) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (std::is_same_v<T, BFloat16> && !kAdd) {
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
    if (Vectors::kStreams && stream_) {
      turn_whole<Vectors::kStreams ? Store::kStream : Store::kOrdinary, kSmallest, kGroup>(
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
      RowPointers<T> at = Vectors::from_pair(first, pair);
      // Behind the end of a row comes the next one that is not at work.
      const bool ends = (end - pair) / kLanes * kNumbers <= kAheadOfEach;
      const int64_t x_ahead = kAheadOfEach + (ends ? count * x_stride - length : 0);
      const int64_t ahead = kAheadOfEach + (ends ? count * sine_stride - length : 0);
      Number* to = kept == nullptr ? nullptr : kept + 2 * pair;
      Angles::template turn_vectors<kVectors>(
          args, anchor, pair, step, count, [&](const Ordered(&tables)[kVectors]) POSENC_INLINED {
            if constexpr (kAdd) {
              Vectors::template request<kStore>(at, x_ahead, ahead);
              if (to != nullptr) {
                unrolled<kVectors>(
                    [&](auto v) POSENC_INLINED { Vectors::keep(tables[v], to + 2 * kLanes * v); });
                to += 2 * padded_;
              }
            }
            Vectors::template put<kStore, kSmallest>(tables, x_scale, at);
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
      Angles::template turn_vectors<1>(
          args, anchor, pair, step, count, [&](const Ordered(&table)[1]) POSENC_INLINED {
            if (to != nullptr) {
              Vectors::keep(table[0], to);
              to += 2 * padded_;
            }
            Vectors::put_part(args, table[0], pair, std::min(kLanes, count_ - pair), at);
            Vectors::move_rows(args, 1, at);
          });
    }
  }

  // Where in memory pairs are neighbors: those of whole vectors, and of groups of them.
  int64_t whole_pairs() const { return contiguous_ ? count_ / kLanes * kLanes : 0; }
  int64_t grouped_pairs() const {
    constexpr int64_t kPairs = kGroup * kLanes;
    return contiguous_ ? count_ / kPairs * kPairs : 0;
  }

  // --- Any rows

  // The groups of vectors of rows along the last axis, the first one at `first`, before those at
  // `next`: in a single loop over the rows, and not with what is left of each row, since a loop
  // within a loop, or one that calls a function, would load its constants anew for each row.
  template <typename Angles>
  HWY_ATTR HWY_INLINE void put_rows(const SinusoidalArgs& args, const Angles& angles, int64_t rows,
                                    const RowPointers<T>& first, const RowPointers<T>& next,
                                    Number* kept) {
    const int64_t grouped = grouped_pairs();
    if (Vectors::kStreams && stream_) {
      put_whole<Vectors::kStreams ? Store::kStream : Store::kOrdinary>(args, angles, rows, grouped,
                                                                       first, next, kept);
    } else {
      put_whole<Store::kOrdinary>(args, angles, rows, grouped, first, next, kept);
    }
  }

  // The vectors of the pairs 0 .. grouped - 1 of each row.
  template <Store kStore, typename Angles>
  HWY_ATTR HWY_INLINE void put_whole(const SinusoidalArgs& args, const Angles angles, int64_t rows,
                                     int64_t grouped, RowPointers<T> at,
                                     [[maybe_unused]] const RowPointers<T>& next,
                                     [[maybe_unused]] Number* kept) {
    constexpr int64_t kPairs = kGroup * kLanes, kStep = kGroup * kNumbers;
    const auto x_scale = hn::Set(D(), static_cast<Number>(args.x_scale));
    const int last = std::max(args.rank - 1, 0);
    // From the end of a row to the next.
    const int64_t written = grouped / kPairs * kStep;
    const int64_t sine_gap = args.sine_strides[last] - written;
    const int64_t cosine_gap = args.cosine_strides[last] - written;
    const int64_t x_gap = args.x_strides[last] - written;
    const RowPointers<T> end = Vectors::moved(args, rows, at);
    const int64_t x_jump = kAdd ? next.x_sine - end.x_sine : 0, jump = next.sine - end.sine;
    [[maybe_unused]] const int64_t kept_gap = 2 * (padded_ - grouped);
    int64_t row = 0, pair = 0;
    for (int64_t groups = rows * (grouped / kPairs); groups > 0; --groups) {
      if constexpr (kAdd) {
        const bool beyond = groups <= kAhead / kStep;
        Vectors::template request<kStore>(at, kAhead + (beyond ? x_jump : 0),
                                          kAhead + (beyond ? jump : 0));
      }
      Ordered tables[kGroup];
      unrolled<kGroup>([&](auto v) POSENC_INLINED { tables[v] = angles(row, pair + v * kLanes); });
      if constexpr (kAdd) {
        if (kept != nullptr) {
          unrolled<kGroup>([&](auto v)
                               POSENC_INLINED { Vectors::keep(tables[v], kept + 2 * kLanes * v); });
          kept += 2 * kPairs + (pair + kPairs == grouped ? kept_gap : 0);
        }
      }
      Vectors::template put<kStore, Smallest::kAny>(tables, x_scale, at);
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

  // The pairs of rows from `grouped` on, with row `first` of those at hand at `at`: kept as well,
  // unless `kept` is null, or of those that are kept.
  HWY_ATTR HWY_NOINLINE void put_rest(const SinusoidalArgs& args, int64_t first, int64_t rows,
                                      int64_t grouped, RowPointers<T> at, Number* kept,
                                      bool are_kept) {
    const D d;
    const auto x_scale = hn::Set(d, static_cast<Number>(args.x_scale));
    const int64_t count = count_, whole = whole_pairs();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t pair = grouped; pair < count; pair += kLanes) {
        Ordered table[1];
        Number* const keep = kept == nullptr ? nullptr : kept + 2 * (row * padded_ + pair);
        if (kAdd && are_kept) {
          table[0] = {hn::Load(d, keep), hn::Load(d, keep + kLanes)};
        } else {
          Angles::angles_at(args, first + row, pair, table[0]);
          if (kAdd && keep != nullptr) Vectors::keep(table[0], keep);
        }
        if (pair < whole) {
          Vectors::template put<Store::kOrdinary, Smallest::kAny>(table, x_scale,
                                                                  Vectors::from_pair(at, pair));
        } else {
          Vectors::put_part(args, table[0], pair, std::min(kLanes, count - pair), at);
        }
      }
      Vectors::move_rows(args, 1, at);
    }
  }

  bool contiguous_ = true;
  bool stream_ = false;
  HWY_ALIGN Number scratch_[2 * kScratchPairs];
};

template <typename T, bool kInterleaved, bool kAdd>
HWY_ATTR HWY_INLINE void run_kernel(const SinusoidalArgs& args, int64_t begin, int64_t end) {
  SinusoidalKernel<T, kInterleaved, kAdd> kernel;  // not {}: its scratch needs no zeros
  kernel.run(args, begin, end);
}

template <typename T>
HWY_ATTR void run_sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t end) {
  // One stream only if the numbers of a row are neighbors; otherwise two halves with a step.
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
  visit_type(args.dtype, [&](auto type) { run_sinusoidal<decltype(type)>(args, begin, end); });
  if (args.non_temporal) hwy::FlushStream();
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t end) {
  write_table_rows(args, begin, end);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
