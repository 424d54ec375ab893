// Angles of rotary: cosines and sines of a block of tokens, from positions or from tables, in the
// order in which rows read them.

#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/rotary.h"
#include "cpu/numbers-inl.h"
#include "cpu/sincos-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Frequencies held at a time.
constexpr size_t kMaxPairs = 2048;
// Cosines of a block, and as many sines: the second-level cache holds them and what is rotated.
// Long blocks keep the runs through memory long.
template <typename Number>
constexpr size_t kScratch = 65536 / sizeof(Number);
// A block never spans more tokens than this.
constexpr int64_t kMaxBlockTokens = 256;

// A piece of the rotated slice: `blocks` blocks of the pairing, of each the pairs
// first .. first + length - 1 (all of them, but where a block is too long for the scratch).
struct Piece {
  int64_t block, blocks, first, length;

  // Of the i-th block.
  int64_t first_pair(const RotaryArgs& args, int64_t i) const {
    return (block + i) * args.half_block + first;
  }

  // All pairs, where they are neighbours or one block.
  static Piece whole(const RotaryArgs& args) { return {0, args.pairs == 0 ? 0 : 1, 0, args.pairs}; }
};

// kOrder and kCopies are those of the row that reads them.
template <typename Number, PairOrder kOrder, size_t kCopies>
class RotaryAngles {
  using D = hn::ScalableTag<Number>;

 public:
  // Calls visit(piece) for each piece that there is room for. Neighbouring pairs are one run of P
  // pairs; otherwise there are P / half_block blocks.
  template <typename Visit>
  static HWY_ATTR void for_each_piece(const RotaryArgs& args, bool neighbours, const Visit& visit) {
    const int64_t capacity = static_cast<int64_t>(kMaxPairs);
    const int64_t group = static_cast<int64_t>(group_size(D(), kOrder));
    const int64_t length = neighbours ? args.pairs : args.half_block;
    const int64_t blocks = length == 0 ? 0 : args.pairs / length;
    if (length <= capacity) {
      const int64_t padded = (length + group - 1) / group * group;
      const int64_t step = padded == 0 ? 1 : capacity / padded;
      for (int64_t block = 0; block < blocks; block += step) {
        visit(Piece{block, std::min(step, blocks - block), 0, length});
      }
      return;
    }
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t first = 0; first < length; first += capacity) {
        visit(Piece{block, 1, first, std::min(capacity, length - first)});
      }
    }
  }

  // Takes up a piece.
  HWY_ATTR void enter(const RotaryArgs& args, const Piece& piece) {
    const D d;
    padded_ = 0;
    if (args.cosine == nullptr && args.inv_freq.axes == 0) {
      for (int64_t i = 0; i < piece.blocks; ++i) {
        const int64_t from = piece.first_pair(args, i);
        padded_ += arrange_frequencies(
            d, kOrder, {args.frequencies.fraction + from, args.frequencies.whole + from},
            static_cast<size_t>(piece.length), fraction_ + padded_, whole_ + padded_);
      }
    } else {
      const size_t group = group_size(d, kOrder);
      padded_ = static_cast<size_t>(piece.blocks) *
                ((static_cast<size_t>(piece.length) + group - 1) / group * group);
      // Sums of phases are positions, whose frequency is the unit of phases.
      std::fill(fraction_, fraction_ + padded_, uint64_t{1});
      std::fill(whole_, whole_ + padded_, uint64_t{0});
    }
  }

  // Of one token.
  size_t numbers() const { return padded_ * kCopies; }

  // As many as there is room for.
  int64_t tokens() const {
    const size_t most = kScratch<Number> / std::max<size_t>(numbers(), 1);
    return std::clamp<int64_t>(static_cast<int64_t>(most), 1, kMaxBlockTokens);
  }

  // Once a block of tokens, hence no part of the kernels of every format, which would all have a
  // copy.
  HWY_ATTR HWY_NOINLINE void compute(const RotaryArgs& args, const Piece& piece, int64_t batch,
                                     int64_t token, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>(i) * numbers();
      if (args.cosine != nullptr) {
        from_tables<void>(args, piece, batch, token + i, cosine_ + at, sine_ + at);
      } else {
        from_phase(args, piece, batch, token + i, cosine_ + at, sine_ + at);
      }
    }
  }

  // Rounded to the Format.
  template <typename Format>
  HWY_ATTR HWY_NOINLINE void compute_as_written(const RotaryArgs& args, const Piece& piece,
                                                int64_t batch, int64_t token, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>(i) * numbers();
      if (args.cosine != nullptr) {
        from_tables<Format>(args, piece, batch, token + i, cosine_ + at, sine_ + at);
        continue;
      }
      from_phase(args, piece, batch, token + i, cosine_ + at, sine_ + at);
      const D d;
      for (size_t j = at; j < at + numbers(); j += hn::Lanes(d)) {
        hn::Store(rounded<Format>(d, hn::Load(d, cosine_ + j)), d, cosine_ + j);
        hn::Store(rounded<Format>(d, hn::Load(d, sine_ + j)), d, sine_ + j);
      }
    }
  }

  const Number* cosine() const { return cosine_; }
  const Number* sine() const { return sine_; }

 private:
  static HWY_ATTR void put(D d, hn::Vec<D> c, hn::Vec<D> s, size_t i, Number* cosine,
                           Number* sine) {
    if constexpr (kCopies == 2) {
      const auto minus = hn::Neg(s);
      hn::Store(hn::InterleaveLower(d, c, c), d, cosine + 2 * i);
      hn::Store(hn::InterleaveUpper(d, c, c), d, cosine + 2 * i + hn::Lanes(d));
      hn::Store(hn::InterleaveLower(d, minus, s), d, sine + 2 * i);
      hn::Store(hn::InterleaveUpper(d, minus, s), d, sine + 2 * i + hn::Lanes(d));
    } else {
      hn::Store(c, d, cosine + i);
      hn::Store(s, d, sine + i);
    }
  }

  template <bool kPerPair, bool kFraction>
  HWY_ATTR HWY_INLINE void sincos_row(const RotaryArgs& args,
                                      const TokenPosition<kPerPair>& position, Number* cosine,
                                      Number* sine) {
    const D d;
    const auto scale = hn::Set(d, static_cast<Number>(args.scale));
    const auto sine_scale =
        hn::Set(d, static_cast<Number>(args.inverse ? -args.scale : args.scale));
    for (size_t i = 0; i < padded_; i += hn::Lanes(d)) {
      hn::Vec<D> s, c;
      sincos<kPerPair, kFraction>(d, position, {fraction_, whole_}, i, s, c);
      put(d, hn::Mul(c, scale), hn::Mul(s, sine_scale), i, cosine, sine);
    }
  }

  HWY_ATTR HWY_INLINE void from_phase(const RotaryArgs& args, const Piece& piece, int64_t batch,
                                      int64_t token, Number* cosine, Number* sine) {
    const int64_t offset = batch * args.position_batch_stride + token * args.position_token_stride;
    if (args.inv_freq.axes > 0) {
      const size_t padded = padded_ / static_cast<size_t>(std::max<int64_t>(piece.blocks, 1));
      for (int64_t i = 0; i < piece.blocks; ++i) {
        sum_phases(args, offset, piece.first_pair(args, i), static_cast<size_t>(piece.length),
                   padded, pair_integer_ + static_cast<size_t>(i) * padded);
      }
      sincos_row<true, false>(args, {{}, pair_integer_, pair_fraction_}, cosine, sine);
      return;
    }
    if (args.axis_map.data == nullptr) {
      const Position p = args.positions.at(offset);
      const TokenPosition<false> position{p, nullptr, nullptr};
      if (p.fraction == 0) {
        sincos_row<false, false>(args, position, cosine, sine);
      } else {
        sincos_row<false, true>(args, position, cosine, sine);
      }
      return;
    }
    const D d;
    bool fractional = false;
    const size_t length = padded_ / static_cast<size_t>(std::max<int64_t>(piece.blocks, 1));
    for (int64_t i = 0; i < piece.blocks; ++i) {
      const size_t at = static_cast<size_t>(i) * length;
      fractional |= arrange_positions(d, kOrder, args.positions, args.axis_map, offset,
                                      static_cast<size_t>(piece.first_pair(args, i)),
                                      static_cast<size_t>(piece.length), pair_integer_ + at,
                                      pair_fraction_ + at);
    }
    const TokenPosition<true> position{{}, pair_integer_, pair_fraction_};
    if (fractional) {
      sincos_row<true, true>(args, position, cosine, sine);
    } else {
      sincos_row<true, false>(args, position, cosine, sine);
    }
  }

  // The phases of the pairs of one block of the piece, summed over the axes of the position, in
  // the order of the scratch and padded to groups.
  HWY_ATTR void sum_phases(const RotaryArgs& args, int64_t offset, int64_t first, size_t count,
                           size_t padded, int64_t* arranged) {
    std::fill(sums_, sums_ + padded, uint64_t{0});
    for (int64_t axis = 0; axis < args.inv_freq.axes; ++axis) {
      const Position position = args.positions.at(offset + axis * args.positions.axis_stride);
      const int64_t from = axis * args.pairs + first;
      const Frequencies frequencies{args.frequencies.fraction + from,
                                    args.frequencies.whole + from};
      if (position.fraction == 0) {
        add_phases<false>(position, frequencies, count);
      } else {
        add_phases<true>(position, frequencies, count);
      }
    }
    const D d;
    const size_t group = group_size(d, kOrder);
    for (size_t lane = 0; lane < group; ++lane) {
      const size_t pair = pair_of_lane(d, kOrder, lane);
      for (size_t i = 0; i < padded; i += group) {
        arranged[i + lane] = static_cast<int64_t>(sums_[i + pair]);
      }
    }
  }

  template <bool kFraction>
  HWY_ATTR void add_phases(Position position, const Frequencies& frequencies, size_t count) {
    const hn::ScalableTag<uint64_t> du;
    const TokenPosition<false> token{position, nullptr, nullptr};
    size_t i = 0;
    for (; i + hn::Lanes(du) <= count; i += hn::Lanes(du)) {
      const auto phase = phases<false, kFraction>(du, token, frequencies, i);
      hn::Store(hn::Add(hn::Load(du, sums_ + i), phase), du, sums_ + i);
    }
    for (; i < count; ++i) {
      sums_[i] += phase(position, {frequencies.fraction[i], frequencies.whole[i]});
    }
  }

  // A row of a table as Numbers, one NaN for all: see round_bfloat16. offset(i): of its i-th
  // number.
  template <typename Value, typename Offset>
  static void read_row(const void* table, int64_t at, const Offset& offset, size_t count,
                       Number* row) {
    const Value* const values = static_cast<const Value*>(table) + at;
    for (size_t i = 0; i < count; ++i) {
      Number value;
      if constexpr (std::is_same_v<Value, double>) {
        value = static_cast<Number>(values[offset(static_cast<int64_t>(i))]);
      } else {
        value = to_float(values[offset(static_cast<int64_t>(i))]);
      }
      row[i] = value == value ? value : std::numeric_limits<Number>::quiet_NaN();
    }
  }

  template <typename Offset>
  static void read_row(const void* table, Dtype dtype, int64_t at, const Offset& offset,
                       size_t count, Number* row) {
    switch (dtype) {
      case Dtype::kFloat16:
        return read_row<Float16>(table, at, offset, count, row);
      case Dtype::kBFloat16:
        return read_row<BFloat16>(table, at, offset, count, row);
      case Dtype::kFloat32:
        return read_row<float>(table, at, offset, count, row);
      default:
        return read_row<double>(table, at, offset, count, row);
    }
  }

  // The pairs of one block of the piece, read in the order of the scratch and padded to groups.
  void arrange_row(const RotaryArgs& args, const void* table, const TableStrides& strides,
                   int64_t at, int64_t first, size_t count, size_t padded, Number* arranged) {
    Number* const row = kOrder == PairOrder::kNatural ? arranged : table_row_;
    const int64_t step = strides.pair;
    at += first * step;
    if (args.axis_map.data == nullptr) {
      read_row(table, args.table_dtype, at, [step](int64_t i) { return i * step; }, count, row);
    } else {
      const auto by_axis = [&](int64_t i) {
        return i * step + args.axis_map.clamped(first + i) * strides.axis;
      };
      read_row(table, args.table_dtype, at, by_axis, count, row);
    }
    std::fill(row + count, row + padded, Number(0));
    if constexpr (kOrder != PairOrder::kNatural) {
      const D d;
      const size_t group = group_size(d, kOrder);
      for (size_t lane = 0; lane < group; ++lane) {
        const size_t pair = pair_of_lane(d, kOrder, lane);
        for (size_t i = 0; i < padded; i += group) arranged[i + lane] = row[i + pair];
      }
    }
  }

  // Format: what cosines and sines are rounded to, or void.
  template <typename Format>
  HWY_ATTR HWY_INLINE void from_tables(const RotaryArgs& args, const Piece& piece, int64_t batch,
                                       int64_t token, Number* cosine, Number* sine) {
    const D d;
    const int64_t cosine_at = args.table_rows.offset(batch, token, args.cosine_strides);
    const int64_t sine_at = args.table_rows.offset(batch, token, args.sine_strides);
    const auto scale = hn::Set(d, static_cast<Number>(args.scale));
    const auto sine_scale =
        hn::Set(d, static_cast<Number>(args.inverse ? -args.scale : args.scale));
    const size_t count = static_cast<size_t>(piece.length);
    const size_t padded = padded_ / static_cast<size_t>(std::max<int64_t>(piece.blocks, 1));
    for (int64_t block = 0; block < piece.blocks; ++block) {
      const int64_t pair = piece.first_pair(args, block);
      arrange_row(args, args.cosine, args.cosine_strides, cosine_at, pair, count, padded,
                  arranged_cosine_);
      arrange_row(args, args.sine, args.sine_strides, sine_at, pair, count, padded, arranged_sine_);
      const size_t first = static_cast<size_t>(block) * padded;
      for (size_t i = 0; i < padded; i += hn::Lanes(d)) {
        auto c = hn::Mul(hn::Load(d, arranged_cosine_ + i), scale);
        auto s = hn::Mul(hn::Load(d, arranged_sine_ + i), sine_scale);
        if constexpr (!std::is_void_v<Format>) {
          c = rounded<Format>(d, c);
          s = rounded<Format>(d, s);
        }
        put(d, c, s, first + i, cosine, sine);
      }
    }
  }

  // Frequencies of the piece and, for multi-axis rotary, the positions of one token; then the
  // angles of a block of tokens. Padding of the last groups included.
  HWY_ALIGN Number cosine_[kScratch<Number>];
  HWY_ALIGN Number sine_[kScratch<Number>];
  HWY_ALIGN uint64_t fraction_[kMaxPairs];
  HWY_ALIGN uint64_t whole_[kMaxPairs];
  HWY_ALIGN int64_t pair_integer_[kMaxPairs];
  HWY_ALIGN uint64_t pair_fraction_[kMaxPairs];
  HWY_ALIGN uint64_t sums_[kMaxPairs];
  // One row of the tables instead.
  HWY_ALIGN Number table_row_[kMaxPairs];
  HWY_ALIGN Number arranged_cosine_[kMaxPairs];
  HWY_ALIGN Number arranged_sine_[kMaxPairs];
  size_t padded_ = 0;
};

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
