// Angles of rotary: cosines and sines of a block of tokens, from positions, tables or phases, in
// the order in which rows read them.

#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/rotary.h"
#include "cpu/elements-inl.h"
#include "cpu/numbers-inl.h"
#include "cpu/sincos-inl.h"
#include "cpu/unrolled-inl.h"
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
// How far ahead of a row of a table memory is requested, in bytes; of rows that are longer than
// kLongRowBytes nothing is: the processor's own requests follow them.
constexpr size_t kTableAheadBytes = 4096;
template <typename Number>
constexpr size_t kTableAhead = kTableAheadBytes / sizeof(Number);
constexpr size_t kLongRowBytes = 1024;

// A piece of the rotated slice: `blocks` blocks of the pairing, of each the pairs
// first .. first + length - 1 (all of them, but where a block is too long for the scratch).
struct Piece {
  int64_t block, blocks, first, length;

  // Of the i-th block.
  int64_t first_pair(const RotaryArgs& args, int64_t i) const {
    return (block + i) * args.half_block + first;
  }

  // All pairs, where they are neighbors or one block.
  static Piece whole(const RotaryArgs& args) { return {0, args.pairs == 0 ? 0 : 1, 0, args.pairs}; }
};

// kOrder and kCopies are those of the row that reads them.
template <typename Number, PairOrder kOrder, size_t kCopies>
class RotaryAngles {
  using D = hn::ScalableTag<Number>;
  static constexpr size_t kLineNumbers = static_cast<size_t>(kLineBytes) / sizeof(Number);

 public:
  // Calls visit(piece) for each piece that there is room for. Neighboring pairs are one run of P
  // pairs; otherwise there are P / half_block blocks.
  template <typename Visit>
  static HWY_ATTR void for_each_piece(const RotaryArgs& args, bool neighbors, const Visit& visit) {
    const int64_t capacity = static_cast<int64_t>(kMaxPairs);
    const int64_t group = static_cast<int64_t>(group_size(D(), kOrder));
    const int64_t length = neighbors ? args.pairs : args.half_block;
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
  HWY_ATTR HWY_NOINLINE void enter(const RotaryArgs& args, const Piece& piece) {
    const D d;
    padded_ = 0;
    if (args.cosine == nullptr && args.inv_freq.axes == 0 && args.phases == nullptr) {
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
    }
    for (size_t lane = 0; lane < hn::Lanes(d); ++lane) {
      pairs_of_lanes_[lane] =
          static_cast<hn::TFromD<hn::RebindToSigned<D>>>(pair_of_lane(d, kOrder, lane));
    }
  }

  // Of one token.
  size_t numbers() const { return padded_ * kCopies; }

  // As many as there is room for. Angles that no other head shares are read once: they stay in the
  // first-level cache then.
  // From tables they are few at a time: what is read of tables and what is rotated take turns, and
  // short turns keep both on the way from memory.
  int64_t tokens(bool shared = true, bool of_tables = false) const {
    const size_t part = shared ? 1 : of_tables ? 32 : 8;
    const size_t room = kScratch<Number> / part;
    const size_t most = room / std::max<size_t>(numbers(), 1);
    return std::clamp<int64_t>(static_cast<int64_t>(most), 1, kMaxBlockTokens);
  }

  // Once a block of tokens, hence no part of the kernels of every format, which would all have a
  // copy.
  HWY_ATTR HWY_NOINLINE void compute(const RotaryArgs& args, const Piece& piece, int64_t batch,
                                     int64_t token, int64_t count) {
    if (whole_rows(args, piece)) return from_whole_rows(args, piece, batch, token, count);
    for (int64_t i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>(i) * numbers();
      if (args.cosine != nullptr) {
        from_tables(args, piece, batch, token + i, cosine_ + at, sine_ + at);
      } else {
        from_phase(args, piece, batch, token + i, cosine_ + at, sine_ + at);
      }
    }
  }

  // Rounds the cosines and sines of `count` tokens to the Format.
  template <typename Format>
  HWY_ATTR HWY_NOINLINE void round_to(int64_t count) {
    const D d;
    const size_t end = static_cast<size_t>(count) * numbers();
    for (size_t i = 0; i < end; i += hn::Lanes(d)) {
      hn::Store(rounded<Format>(d, hn::Load(d, cosine_ + i)), d, cosine_ + i);
      hn::Store(rounded<Format>(d, hn::Load(d, sine_ + i)), d, sine_ + i);
    }
  }

  const Number* cosine() const { return cosine_; }
  const Number* sine() const { return sine_; }

  // Where both tables have the angles of a token, and how far it is to those of the next one.
  struct Rows {
    const Number* cosine;
    int64_t cosine_step;
    const Number* sine;
    int64_t sine_step;
  };

  // Whether rows of both tables lie in whole groups of Numbers. Nothing is asked row by row then,
  // and whoever needs them once reads them where they are.
  bool whole_rows(const RotaryArgs& args, const Piece& piece) const {
    constexpr Dtype kOwn = sizeof(Number) == 4 ? Dtype::kFloat32 : Dtype::kFloat64;
    return args.cosine != nullptr && args.table_dtype == kOwn && args.axis_map.data == nullptr &&
           args.table_rows.numbers.data == nullptr && piece.blocks == 1 &&
           static_cast<size_t>(piece.length) == padded_ && args.cosine_strides.pair == 1 &&
           args.sine_strides.pair == 1;
  }

  static Rows rows(const RotaryArgs& args, const Piece& piece, int64_t batch, int64_t token) {
    const auto at = [&](const void* table, const TableStrides& strides) {
      return static_cast<const Number*>(table) + batch * strides.batch + token * strides.token +
             piece.first_pair(args, 0);
    };
    return {at(args.cosine, args.cosine_strides), args.cosine_strides.token,
            at(args.sine, args.sine_strides), args.sine_strides.token};
  }

  // What is done to numbers of tables before they turn anything.
  struct Scales {
    hn::Vec<D> cosine, sine;
    explicit Scales(const RotaryArgs& args)
        : cosine(hn::Set(D(), static_cast<Number>(args.scale))),
          sine(hn::Set(D(), static_cast<Number>(args.inverse ? -args.scale : args.scale))) {}
  };

  // A group of a row of both tables, as the scratch has it. kOneNan: see load_group.
  template <bool kOneNan>
  HWY_ATTR HWY_INLINE void read_group(D d, const Number* cosines, const Number* sines,
                                      const Scales& scales, hn::Vec<D>* cosine,
                                      hn::Vec<D>* sine) const {
    hn::Vec<D> c[kVectors], s[kVectors];
    load_group<kOneNan>(d, cosines, c);
    load_group<kOneNan>(d, sines, s);
    for (size_t i = 0; i < kVectors; ++i) {
      c[i] = hn::Mul(c[i], scales.cosine);
      s[i] = hn::Mul(s[i], scales.sine);
      copy_each(d, c[i], s[i], cosine + i * kCopies, sine + i * kCopies);
    }
  }

  // Likewise of a group of phases, in the order of the pairs.
  HWY_ATTR HWY_INLINE void phase_group(D d, const uint64_t* phases, const Scales& scales,
                                       hn::Vec<D>* cosine, hn::Vec<D>* sine) const {
    hn::Vec<D> c[kVectors], s[kVectors];
    unrolled<kVectors>([&](auto i) POSENC_INLINED {
      sincos(d, phases_from(d, phases + i * hn::Lanes(d)), s[i], c[i]);
    });
    arrange(d, c);
    arrange(d, s);
    unrolled<kVectors>([&](auto i) POSENC_INLINED {
      copy_each(d, hn::Mul(c[i], scales.cosine), hn::Mul(s[i], scales.sine), cosine + i * kCopies,
                sine + i * kCopies);
    });
  }

 private:
  static constexpr size_t kVectors = group_size(D(), kOrder) / hn::MaxLanes(D());

  // Cosine and sine of each pair for both partners, where the row reads them so.
  static HWY_ATTR HWY_INLINE void copy_each(D d, hn::Vec<D> c, hn::Vec<D> s, hn::Vec<D>* cosine,
                                            hn::Vec<D>* sine) {
    if constexpr (kCopies == 2) {
      const auto minus = hn::Neg(s);
      cosine[0] = hn::InterleaveLower(d, c, c);
      cosine[1] = hn::InterleaveUpper(d, c, c);
      sine[0] = hn::InterleaveLower(d, minus, s);
      sine[1] = hn::InterleaveUpper(d, minus, s);
    } else {
      cosine[0] = c;
      sine[0] = s;
    }
  }

  template <size_t kCount>
  static HWY_ATTR HWY_INLINE void put(D d, const hn::Vec<D> (&c)[kCount],
                                      const hn::Vec<D> (&s)[kCount], Number* cosine, Number* sine) {
    for (size_t i = 0; i < kCount; ++i) {
      hn::Store(c[i], d, cosine + i * hn::Lanes(d));
      hn::Store(s[i], d, sine + i * hn::Lanes(d));
    }
  }

  template <bool kPerPair, bool kFraction>
  HWY_ATTR HWY_INLINE void sincos_row(const RotaryArgs& args,
                                      const TokenPosition<kPerPair>& position, Number* cosine,
                                      Number* sine) {
    const D d;
    const Scales scales(args);
    for (size_t i = 0; i < padded_; i += hn::Lanes(d)) {
      hn::Vec<D> s, c;
      sincos<kPerPair, kFraction>(d, position, {fraction_, whole_}, i, s, c);
      hn::Vec<D> cosines[kCopies], sines[kCopies];
      copy_each(d, hn::Mul(c, scales.cosine), hn::Mul(s, scales.sine), cosines, sines);
      put(d, cosines, sines, cosine + i * kCopies, sine + i * kCopies);
    }
  }

  HWY_ATTR HWY_INLINE void from_phase(const RotaryArgs& args, const Piece& piece, int64_t batch,
                                      int64_t token, Number* cosine, Number* sine) {
    const int64_t offset = batch * args.position_batch_stride + token * args.position_token_stride;
    if (args.inv_freq.axes > 0 || args.phases != nullptr) {
      const Scales scales(args);
      const size_t padded = padded_ / static_cast<size_t>(std::max<int64_t>(piece.blocks, 1));
      for (int64_t i = 0; i < piece.blocks; ++i) {
        const int64_t first = piece.first_pair(args, i);
        const uint64_t* phases = sums_;
        if (args.phases != nullptr) {
          phases = reinterpret_cast<const uint64_t*>(args.phases) +
                   (batch * args.tokens + token) * args.pairs + first;
        } else {
          sum_phases(args, offset, first, static_cast<size_t>(piece.length), padded);
        }
        const size_t at = static_cast<size_t>(i) * padded * kCopies;
        put_phases(phases, padded, scales, cosine + at, sine + at);
      }
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

  // The phases of the pairs of one block of the piece, summed over the axes of the position and
  // padded to groups.
  HWY_ATTR void sum_phases(const RotaryArgs& args, int64_t offset, int64_t first, size_t count,
                           size_t padded) {
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
  }

  // Phases in the order of the pairs, whole groups of them -> scratch.
  HWY_ATTR HWY_INLINE void put_phases(const uint64_t* phases, size_t padded, const Scales& scales,
                                      Number* cosine, Number* sine) const {
    const D d;
    for (size_t i = 0; i < padded; i += kVectors * hn::Lanes(d)) {
      hn::Vec<D> cosines[kVectors * kCopies], sines[kVectors * kCopies];
      phase_group(d, phases + i, scales, cosines, sines);
      put(d, cosines, sines, cosine + i * kCopies, sine + i * kCopies);
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

  // `count` numbers of a table as Numbers. offset(i): of the i-th.
  template <typename Value, typename Offset>
  static void read_row(const Value* values, const Offset& offset, size_t count, Number* row) {
    for (size_t i = 0; i < count; ++i) {
      const Value value = values[offset(static_cast<int64_t>(i))];
      if constexpr (std::is_same_v<Value, double>) {
        row[i] = static_cast<Number>(value);
      } else {
        row[i] = to_float(value);
      }
    }
  }

  // Neighbors, by vectors where there is a conversion of these.
  template <typename Value>
  static HWY_ATTR void read_neighbours(const Value* values, size_t count, Number* row) {
    const D d;
    size_t i = 0;
    if constexpr (std::is_same_v<Value, Number> ||
                  (std::is_same_v<Number, float> && sizeof(Value) == 2)) {
      for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
        hn::StoreU(load(d, values + i), d, row + i);
      }
    }
    read_row(values + i, [](int64_t j) { return j; }, count - i, row + i);
  }

  // What a table has for the pairs of one block of the piece, in their order and padded to groups:
  // in the table itself or, where something has to be done to it, in `copy`.
  template <typename Value>
  HWY_ATTR HWY_INLINE const Number* row_of(const RotaryArgs& args, const Value* table,
                                           const TableStrides& strides, int64_t first, size_t count,
                                           size_t padded, Number* copy) const {
    const int64_t step = strides.pair;
    const Value* const values = table + first * step;
    if (args.axis_map.data != nullptr) {
      const auto by_axis = [&](int64_t i) {
        return i * step + args.axis_map.clamped(first + i) * strides.axis;
      };
      read_row(values, by_axis, count, copy);
    } else if (step != 1) {
      read_row(values, [step](int64_t i) { return i * step; }, count, copy);
    } else {
      if constexpr (std::is_same_v<Value, Number>) {
        if (count == padded) return values;
      }
      read_neighbours(values, count, copy);
    }
    std::fill(copy + count, copy + padded, Number(0));
    return copy;
  }

  HWY_ATTR HWY_INLINE const Number* row_of(const RotaryArgs& args, const void* table,
                                           const TableStrides& strides, int64_t at, int64_t first,
                                           size_t count, size_t padded, Number* copy) const {
    const auto of = [&](auto type) HWY_ATTR {
      const auto* const values = static_cast<const decltype(type)*>(table) + at;
      return row_of(args, values, strides, first, count, padded, copy);
    };
    switch (args.table_dtype) {
      case Dtype::kFloat16:
        return of(Float16());
      case Dtype::kBFloat16:
        return of(BFloat16());
      case Dtype::kFloat32:
        return of(float());
      default:
        return of(double());
    }
  }

  // A group of a row in the order of the scratch; with one NaN for all, where results are rounded:
  // see round_bfloat16.
  template <bool kOneNan>
  HWY_ATTR HWY_INLINE void load_group(D d, const Number* row, hn::Vec<D>* group) const {
    for (size_t i = 0; i < kVectors; ++i) {
      const auto v = hn::LoadU(d, row + i * hn::Lanes(d));
      const auto nan = hn::Set(d, std::numeric_limits<Number>::quiet_NaN());
      group[i] = kOneNan ? hn::IfThenElse(hn::IsNaN(v), nan, v) : v;
    }
    arrange(d, group);
  }

  // A group in the order of the pairs -> in that of the scratch.
  HWY_ATTR HWY_INLINE void arrange(D d, hn::Vec<D>* group) const {
    if constexpr (kOrder == PairOrder::kInterleave) {
      group[0] = hn::TableLookupLanes(group[0], hn::SetTableIndices(d, pairs_of_lanes_));
    } else if constexpr (kOrder == PairOrder::kEvenOdd) {
      const auto low = group[0], high = group[1];
      group[0] = hn::ConcatEven(d, high, low);
      group[1] = hn::ConcatOdd(d, high, low);
    }
  }

  HWY_ATTR HWY_INLINE void from_tables(const RotaryArgs& args, const Piece& piece, int64_t batch,
                                       int64_t token, Number* cosine, Number* sine) {
    const int64_t cosine_at = args.table_rows.offset(batch, token, args.cosine_strides);
    const int64_t sine_at = args.table_rows.offset(batch, token, args.sine_strides);
    const Scales scales(args);
    const size_t count = static_cast<size_t>(piece.length);
    const size_t padded = padded_ / static_cast<size_t>(std::max<int64_t>(piece.blocks, 1));
    for (int64_t block = 0; block < piece.blocks; ++block) {
      const int64_t pair = piece.first_pair(args, block);
      const Number* const cosines = row_of(args, args.cosine, args.cosine_strides, cosine_at, pair,
                                           count, padded, cosine_row_);
      const Number* const sines =
          row_of(args, args.sine, args.sine_strides, sine_at, pair, count, padded, sine_row_);
      const size_t first = static_cast<size_t>(block) * padded;
      put_row(cosines, sines, padded, scales, cosine + first * kCopies, sine + first * kCopies);
    }
  }

  // Numbers of a row in the order of the pairs, in whole groups -> scratch.
  HWY_ATTR HWY_INLINE void put_row(const Number* cosines, const Number* sines, size_t padded,
                                   const Scales& scales, Number* cosine, Number* sine) const {
    const D d;
    for (size_t i = 0; i < padded; i += kVectors * hn::Lanes(d)) {
      hn::Vec<D> c[kVectors * kCopies], s[kVectors * kCopies];
      read_group<true>(d, cosines + i, sines + i, scales, c, s);
      put(d, c, s, cosine + i * kCopies, sine + i * kCopies);
    }
  }

  // The block of tokens, of whole rows.
  HWY_ATTR HWY_INLINE void from_whole_rows(const RotaryArgs& args, const Piece& piece,
                                           int64_t batch, int64_t token, int64_t count) {
    const Scales scales(args);
    Rows row = rows(args, piece, batch, token);
    const size_t requested = padded_ * sizeof(Number) <= kLongRowBytes ? padded_ : 0;
    for (int64_t i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>(i) * numbers();
      for (size_t j = 0; j < requested; j += kLineNumbers) {
        prefetch_later(row.cosine + j + kTableAhead<Number>);
        prefetch_later(row.sine + j + kTableAhead<Number>);
      }
      put_row(row.cosine, row.sine, padded_, scales, cosine_ + at, sine_ + at);
      row.cosine += row.cosine_step;
      row.sine += row.sine_step;
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
  HWY_ALIGN Number cosine_row_[kMaxPairs];
  HWY_ALIGN Number sine_row_[kMaxPairs];
  // Of one vector, where the order of the scratch is not that of the pairs.
  HWY_ALIGN hn::TFromD<hn::RebindToSigned<D>> pairs_of_lanes_[hn::MaxLanes(D())];
  size_t padded_ = 0;
};

// What is called once a piece or a block of tokens is compiled once, in rotary_angles.cc.
#define POSENC_ANGLES_OF(prefix, ...)                                                      \
  prefix template void RotaryAngles<__VA_ARGS__>::enter(const RotaryArgs&, const Piece&);  \
  prefix template void RotaryAngles<__VA_ARGS__>::compute(const RotaryArgs&, const Piece&, \
                                                          int64_t, int64_t, int64_t)
#define POSENC_ROTARY_ANGLES(prefix)                           \
  POSENC_ANGLES_OF(prefix, float, PairOrder::kNatural, 1);     \
  POSENC_ANGLES_OF(prefix, float, PairOrder::kInterleave, 2);  \
  POSENC_ANGLES_OF(prefix, float, PairOrder::kEvenOdd, 1);     \
  POSENC_ANGLES_OF(prefix, float, PairOrder::kTwice, 1);       \
  POSENC_ANGLES_OF(prefix, double, PairOrder::kNatural, 1);    \
  POSENC_ANGLES_OF(prefix, double, PairOrder::kInterleave, 2); \
  POSENC_ANGLES_OF(prefix, double, PairOrder::kTwice, 1)
POSENC_ROTARY_ANGLES(extern);

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
