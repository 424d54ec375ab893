// Angles of a table's rows: sines and cosines of vectors of pairs, row after row.
//
//   equal steps          additions to phases that are kept from row to row, of groups of vectors
//   any integers         a product for each pair, rows with fractions and what is behind the groups
//                        likewise
//   in 16-bit formats    rows of integer positions with the same anchor (phase.h) turn its sines
//   and
//                        cosines, which stay in registers, by those of their steps

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/phase.h"
#include "core/sinusoidal.h"
#include "cpu/numbers-inl.h"
#include "cpu/sincos-inl.h"
#include "cpu/unrolled-inl.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A vector of pairs in the order of memory, scaled: sines and cosines, or the first and the second
// half of a stream.
template <class D>
struct OrderedPairs {
  hn::Vec<D> first, second;
};

// Of the pairs at hand, a group that fits the scratch. kOrder is that of the memory they go to.
template <typename T, PairOrder kOrder>
class SinusoidalAngles {
 protected:
  using Number = Real<T>;
  using D = RealTag<T>;
  using Vector = hn::Vec<D>;
  using Ordered = OrderedPairs<D>;
  static constexpr bool kHalf = !std::is_same_v<T, Number>;
  static constexpr int64_t kLanes = hn::MaxLanes(D());
  // Frequencies held at a time: 32 KiB of them, or of sines and cosines of steps.
  static constexpr int64_t kMaxPairs = kHalf ? 512 : 2048;
  static constexpr int64_t kBlock = 64;  // rows at a time

  // Takes up the pairs from `first` on.
  HWY_ATTR void enter(const SinusoidalArgs& args, int64_t first) {
    first_ = first;
    count_ = std::min<int64_t>(kMaxPairs, args.pairs - first_);
    padded_ = static_cast<int64_t>(arrange_frequencies(
        D(), kOrder, {args.frequencies.fraction + first_, args.frequencies.whole + first_},
        static_cast<size_t>(count_), fraction_, whole_));
    walking_ = false;
    steps_made_ = 0;
    if (!kHalf) place_phases(args);
  }

  // `rows` <= kBlock rows, whose positions lie `stride` apart from `offset` on, in their order:
  // exact(angles, first, count), where angles(row, pair) is a vector of the table in row
  // first + row, to be called for vectors of all of the `count` rows once, row by row; or, of those
  // with one anchor, in steps of 1, turned(anchor, first step, count). How angles come about is
  // decided for all rows of a stretch: constants then stay in registers. walks: whether there is
  // something to call angles for in equal steps.
  template <typename Exact, typename Turned>
  HWY_ATTR HWY_INLINE void for_each_stretch(const SinusoidalArgs& args, int64_t offset,
                                            int64_t stride, int64_t rows, bool walks,
                                            const Exact& exact, const Turned& turned) {
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
          0, rows);
      return;
    }
    int64_t* const integer = integer_;
    uint64_t* const fraction = row_fraction_;
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
          first, count);
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
    } else if (walks && rows >= kFewestSteps && equal_steps(integer, rows)) {
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
          0, rows);
      next_ += step_ * static_cast<uint64_t>(rows);
    } else {
      exact(
          [&](int64_t row, int64_t pair) POSENC_INLINED {
            const TokenPosition<false> position{{integer[row], 0}, nullptr, nullptr};
            Vector s, c;
            sincos<false, false>(d, position, frequencies, static_cast<size_t>(pair), s, c);
            return ordered(s, c);
          },
          0, rows);
    }
  }

  // A vector of the row `row` of the stretch at hand, with the bits that exact's angles have: for
  // what is left of rows, so that it is not compiled for each way to these.
  HWY_ATTR HWY_NOINLINE void angles_at(const SinusoidalArgs& args, int64_t row, int64_t pair,
                                       Ordered& table) const {
    const D d;
    const Frequencies frequencies{fraction_, whole_};
    const size_t i = static_cast<size_t>(pair);
    Vector s, c;
    if (args.axis_map.data == nullptr) {
      const TokenPosition<false> position{{integer_[row], row_fraction_[row]}, nullptr, nullptr};
      sincos<false, true>(d, position, frequencies, i, s, c);
    } else {
      sincos<true, true>(d, TokenPosition<true>{{}, pair_integer_, pair_fraction_}, frequencies, i,
                         s, c);
    }
    if (args.scale != 1.0) {
      const auto scale = hn::Set(d, static_cast<Number>(args.scale));
      s = hn::Mul(s, scale);
      c = hn::Mul(c, scale);
    }
    if (kHalf && args.axis_map.data != nullptr) {
      Vector step_sine, step_cosine;
      sincos<true, false>(d, TokenPosition<true>{{}, pair_step_, nullptr}, frequencies, i,
                          step_sine, step_cosine);
      turn(step_sine, step_cosine, d, s, c);
    }
    table = in_order(s, c);
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

  // The pairs at hand, first_ .. first_ + count_ - 1; count_ filled up to whole vectors.
  int64_t first_ = 0, count_ = 0, padded_ = 0;

 private:
  static constexpr int64_t kFewestSteps = 8;  // rows from which on the products of a first sum pay
  static constexpr uintptr_t kPage = 4096;    // bytes

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

  static HWY_ATTR HWY_INLINE Ordered in_order(Vector s, Vector c) {
    if constexpr (kOrder == PairOrder::kInterleave) {
      const D d;
      return {hn::InterleaveLower(d, s, c), hn::InterleaveUpper(d, s, c)};
    } else {
      return {s, c};
    }
  }

  unsigned steps_made_ = 0;  // a bit for each
  // Whether phases_ are those of position next_, in steps of step_.
  bool walking_ = false;
  uint64_t next_ = 0, step_ = 0;

  HWY_ALIGN uint64_t fraction_[kMaxPairs];
  HWY_ALIGN uint64_t whole_[kMaxPairs];
  // Positions of rows, or of the pairs of one row.
  int64_t integer_[kBlock];
  uint64_t row_fraction_[kBlock];
  HWY_ALIGN int64_t pair_integer_[kMaxPairs];
  HWY_ALIGN uint64_t pair_fraction_[kMaxPairs];
  HWY_ALIGN int64_t pair_step_[kHalf ? kMaxPairs : 1];
  HWY_ALIGN Number step_table_[kHalf ? 2 * kSteps * kMaxPairs : 1];
  HWY_ALIGN PhaseWord<D>
      phase_memory_[kHalf ? 1 : 2 * kMaxPairs * kPhaseWords<D> + kPage / sizeof(Number)];
  PhaseWord<D>* phases_ = nullptr;
  PhaseWord<D>* steps_ = nullptr;
};

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
