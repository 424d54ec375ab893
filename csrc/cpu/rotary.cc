// Rotary encoding on the CPU.
//
//   for a group of pairs that fits the scratch            (mostly all of them)
//     for a block of tokens
//       cosines and sines of the block -> scratch         once, for every head of q and k
//       for tensor, head, token (or token, head: whatever is next in memory)
//         rotate the row
//
// How a row is read depends on the number format and the pairing only; see rotary_row-inl.h.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rotary.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/rotary.h"
#include "cpu/elements-inl.h"
#include "cpu/kernels.h"
#include "cpu/numbers-inl.h"
#include "cpu/rotary_row-inl.h"
#include "cpu/sincos-inl.h"
#include "cpu/targets.h"
#include "cpu/unrolled-inl.h"
#include "hwy/cache_control.h"

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
// How far ahead of the rotation memory is requested: into the second-level cache, since what many
// heads request would not fit the ways of the first.
constexpr int64_t kPrefetchBytes = 4096;
// Rows rotated side by side: heads share the loads of their angles, and memory serves several
// streams faster than one. In place as many as there are registers for their pairs; where a second
// stream is written for each, fewer are faster.
constexpr int kRows = 4;
template <class Row>
constexpr int kRowsInPlace =
    (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON) && Row::kVectors <= 2 ? 8 : kRows;

// Heads at multiples of this distance have the same place in first-level caches that find lines by
// a hash of the address (AMD: bits 12 to 27), whatever their ways: side by side they evict each
// other.
constexpr int64_t kCollide = int64_t{1} << 27;

// A piece of the rotated slice: `blocks` blocks of the pairing, of each the pairs
// first .. first + length - 1 (all of them, but where a block is too long for the scratch).
struct Piece {
  int64_t block, blocks, first, length;
};

template <typename T, bool kInterleaved, Rounding kRounding>
class RotaryKernel {
  using Row = std::conditional_t<kInterleaved, InterleavedRow<T>, HalfRow<T>>;
  using Number = Real<T>;
  using D = RealTag<T>;

 public:
  HWY_ATTR void run(const RotaryArgs& args, int64_t begin, int64_t end) {
    const D d;
    // Interleaved pairs are one run of P pairs; otherwise P / half_block blocks.
    const int64_t length = kInterleaved ? args.pairs : args.half_block;
    const int64_t blocks = length == 0 ? 0 : args.pairs / length;
    const int64_t group = static_cast<int64_t>(group_size(d, Row::kOrder));
    const int64_t capacity = static_cast<int64_t>(kMaxPairs);
    bool first_piece = true;
    const auto next = [&](const Piece& piece) HWY_ATTR {
      run_piece(args, piece, begin, end, first_piece);
      first_piece = false;
    };
    if (length <= capacity) {
      const int64_t padded = (length + group - 1) / group * group;
      const int64_t step = padded == 0 ? 1 : capacity / padded;
      for (int64_t block = 0; block < blocks; block += step) {
        next({block, std::min(step, blocks - block), 0, length});
      }
    } else {
      for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t first = 0; first < length; first += capacity) {
          next({block, 1, first, std::min(capacity, length - first)});
        }
      }
    }
    if (first_piece) next({0, 0, 0, 0});  // nothing to rotate: copies the rest
  }

 private:
  // Rotates the piece of every head of the tokens [begin, end).
  HWY_ATTR void run_piece(const RotaryArgs& args, const Piece& piece, int64_t begin, int64_t end,
                          bool copy_rest) {
    const D d;
    padded_ = 0;
    if (args.cosine == nullptr && args.inv_freq.axes == 0) {
      for (int64_t i = 0; i < piece.blocks; ++i) {
        const int64_t from = first_pair(args, piece, i);
        padded_ += arrange_frequencies(
            d, Row::kOrder, {args.frequencies.fraction + from, args.frequencies.whole + from},
            static_cast<size_t>(piece.length), fraction_ + padded_, whole_ + padded_);
      }
    } else {
      const size_t group = group_size(d, Row::kOrder);
      padded_ = static_cast<size_t>(piece.blocks) *
                ((static_cast<size_t>(piece.length) + group - 1) / group * group);
      // Sums of phases are positions, whose frequency is the unit of phases.
      std::fill(fraction_, fraction_ + padded_, uint64_t{1});
      std::fill(whole_, whole_ + padded_, uint64_t{0});
    }
    const size_t per_token = std::max<size_t>(padded_ * Row::kCopies, 1);
    const int64_t block_tokens =
        std::clamp<int64_t>(static_cast<int64_t>(kScratch<Number> / per_token), 1, kMaxBlockTokens);

    while (begin < end) {
      const int64_t batch = begin / args.tokens, token = begin % args.tokens;
      const int64_t count = std::min({block_tokens, end - begin, args.tokens - token});
      for (int64_t i = 0; i < count; ++i) {
        const size_t at = static_cast<size_t>(i) * padded_ * Row::kCopies;
        if (kRounding == Rounding::kAsWritten || args.cosine != nullptr) {
          angles_from_tables(args, piece, batch, token + i, cosine_ + at, sine_ + at);
        } else {
          angles_from_phase(args, piece, batch, token + i, cosine_ + at, sine_ + at);
        }
      }
      for (int i = 0; i < args.tensor_count; ++i) {
        rotate_block(args, args.tensors[i], piece, batch, token, count, copy_rest);
      }
      begin += count;
    }
  }

  static int64_t first_pair(const RotaryArgs& args, const Piece& piece, int64_t i) {
    return (piece.block + i) * args.half_block + piece.first;
  }

  // --- Angles

  static HWY_ATTR void put(D d, hn::Vec<D> c, hn::Vec<D> s, size_t i, Number* cosine,
                           Number* sine) {
    if constexpr (Row::kCopies == 2) {
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
  HWY_ATTR void sincos_row(const RotaryArgs& args, const TokenPosition<kPerPair>& position,
                           Number* cosine, Number* sine) {
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

  HWY_ATTR void angles_from_phase(const RotaryArgs& args, const Piece& piece, int64_t batch,
                                  int64_t token, Number* cosine, Number* sine) {
    const int64_t offset = batch * args.position_batch_stride + token * args.position_token_stride;
    if (args.inv_freq.axes > 0) {
      const size_t padded = padded_ / static_cast<size_t>(std::max<int64_t>(piece.blocks, 1));
      for (int64_t i = 0; i < piece.blocks; ++i) {
        sum_phases(args, offset, first_pair(args, piece, i), static_cast<size_t>(piece.length),
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
      fractional |= arrange_positions(d, Row::kOrder, args.positions, args.axis_map, offset,
                                      static_cast<size_t>(first_pair(args, piece, i)),
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
    const size_t group = group_size(d, Row::kOrder);
    for (size_t lane = 0; lane < group; ++lane) {
      const size_t pair = pair_of_lane(d, Row::kOrder, lane);
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

  // A row of a table as Numbers, one NaN for all: see round_bfloat16.
  template <typename Value>
  static void read_row(const void* table, int64_t at, int64_t step, size_t count, Number* row) {
    const Value* const values = static_cast<const Value*>(table) + at;
    for (size_t i = 0; i < count; ++i) {
      Number value;
      if constexpr (std::is_same_v<Value, double>) {
        value = static_cast<Number>(values[static_cast<int64_t>(i) * step]);
      } else {
        value = to_float(values[static_cast<int64_t>(i) * step]);
      }
      row[i] = value == value ? value : std::numeric_limits<Number>::quiet_NaN();
    }
  }

  static void read_row(const void* table, Dtype dtype, int64_t at, int64_t step, size_t count,
                       Number* row) {
    switch (dtype) {
      case Dtype::kFloat16:
        return read_row<Float16>(table, at, step, count, row);
      case Dtype::kBFloat16:
        return read_row<BFloat16>(table, at, step, count, row);
      case Dtype::kFloat32:
        return read_row<float>(table, at, step, count, row);
      default:
        return read_row<double>(table, at, step, count, row);
    }
  }

  // The pairs of one block of the piece, read in the order of the scratch and padded to groups.
  void arrange_row(const void* table, Dtype dtype, int64_t at, int64_t step, size_t count,
                   size_t padded, Number* arranged) {
    Number* const row = Row::kOrder == PairOrder::kNatural ? arranged : table_row_;
    read_row(table, dtype, at, step, count, row);
    std::fill(row + count, row + padded, Number(0));
    if constexpr (Row::kOrder != PairOrder::kNatural) {
      const D d;
      const size_t group = group_size(d, Row::kOrder);
      for (size_t lane = 0; lane < group; ++lane) {
        const size_t pair = pair_of_lane(d, Row::kOrder, lane);
        for (size_t i = 0; i < padded; i += group) arranged[i + lane] = row[i + pair];
      }
    }
  }

  HWY_ATTR void angles_from_tables(const RotaryArgs& args, const Piece& piece, int64_t batch,
                                   int64_t token, Number* cosine, Number* sine) {
    const D d;
    const auto offset = [&](const int64_t* strides) {
      return batch * strides[0] + token * strides[1];
    };
    const int64_t cosine_at = offset(args.cosine_strides), sine_at = offset(args.sine_strides);
    const auto scale = hn::Set(d, static_cast<Number>(args.scale));
    const auto sine_scale =
        hn::Set(d, static_cast<Number>(args.inverse ? -args.scale : args.scale));
    const size_t count = static_cast<size_t>(piece.length);
    const size_t padded = padded_ / static_cast<size_t>(std::max<int64_t>(piece.blocks, 1));
    for (int64_t block = 0; block < piece.blocks; ++block) {
      const int64_t pair = first_pair(args, piece, block);
      arrange_row(args.cosine, args.table_dtype, cosine_at + pair * args.cosine_strides[2],
                  args.cosine_strides[2], count, padded, arranged_cosine_);
      arrange_row(args.sine, args.table_dtype, sine_at + pair * args.sine_strides[2],
                  args.sine_strides[2], count, padded, arranged_sine_);
      const size_t first = static_cast<size_t>(block) * padded;
      for (size_t i = 0; i < padded; i += hn::Lanes(d)) {
        auto c = hn::Mul(hn::Load(d, arranged_cosine_ + i), scale);
        auto s = hn::Mul(hn::Load(d, arranged_sine_ + i), sine_scale);
        if constexpr (kRounding == Rounding::kAsWritten) {
          c = rounded<T>(d, c);
          s = rounded<T>(d, s);
        }
        put(d, c, s, first + i, cosine, sine);
      }
    }
  }

  // --- Rows

  // Rows one after the other, and beside each some more:
  //
  //   of neighbouring tokens, beside each the same token of other heads
  //   of the heads of a token, beside each the same head of other tokens (kOwnAngles)
  //   of every so-manieth head of a token, beside each the heads up to the next
  struct Run {
    const T* in;
    int64_t in_beside, in_step;  // to the row beside, to the next row
    T* out;
    int64_t out_beside, out_step;
    const Number* cosine;
    const Number* sine;
    int64_t angle_beside, angle_step;
    int64_t count;
    // From a row to one that comes soon: of the run, or (from row `turn` on) of the next.
    int64_t ahead, turn, ahead_next;
  };

  HWY_ATTR void rotate_block(const RotaryArgs& args, const RotaryTensor& tensor, const Piece& piece,
                             int64_t batch, int64_t token, int64_t count, bool copy_rest) {
    const HeadStrides& in_strides = tensor.in_strides;
    const HeadStrides& out_strides = tensor.out_strides;
    const T* in =
        static_cast<const T*>(tensor.in) + batch * in_strides.batch + token * in_strides.token;
    T* out = static_cast<T*>(tensor.out) + batch * out_strides.batch + token * out_strides.token;
    const int64_t per_token = static_cast<int64_t>(padded_ * Row::kCopies);
    const bool contiguous = in_strides.dim == 1 && out_strides.dim == 1;
    const bool in_place = tensor.in == tensor.out;
    const bool stream = args.non_temporal && !in_place && can_stream(args, piece, tensor);
    copy_rest = copy_rest && !in_place && 2 * args.pairs != args.head_dim;

    const int64_t row_bytes = std::max<int64_t>(args.head_dim * static_cast<int64_t>(sizeof(T)), 1);
    const int64_t rows_ahead = std::max<int64_t>(kPrefetchBytes / row_bytes, 1);

    const auto rotate = [&](auto same, auto own, auto beside, const Run& run) HWY_ATTR {
      constexpr int kCount = decltype(beside)::value;
      constexpr bool kOwnAngles = decltype(own)::value;
      if (!contiguous) {
        rotate_strided_run<kCount>(args, piece, tensor, run);
      } else if constexpr (decltype(same)::value) {
        rotate_run<Store::kOrdinary, true, kOwnAngles, kCount>(args, piece, run);
      } else if (stream) {
        rotate_run<Store::kStream, false, kOwnAngles, kCount>(args, piece, run);
      } else {
        rotate_run<Store::kOrdinary, false, kOwnAngles, kCount>(args, piece, run);
      }
      if (copy_rest) copy_outside_run<kCount>(args, tensor, run);
    };
    Run run{};
    const auto start = [&](int64_t i, int64_t head) HWY_ATTR {
      run.in = in + i * in_strides.token + head * in_strides.head;
      run.out = out + i * out_strides.token + head * out_strides.head;
      run.cosine = cosine_ + i * per_token;
      run.sine = sine_ + i * per_token;
    };
    const auto request = [&](int64_t step, int64_t next, int64_t length) {
      run.count = length;
      run.turn = length - rows_ahead;
      run.ahead = rows_ahead * step;
      run.ahead_next = next - run.turn * step;
    };
    // Each for as many groups of kCount heads or tokens from `first` on as there are; and what
    // comes next.
    const auto along_tokens = [&](auto same, auto beside, int64_t first) HWY_ATTR {
      constexpr int kCount = decltype(beside)::value;
      const int64_t last = first + (tensor.heads - first) / kCount * kCount;
      run.in_beside = in_strides.head;
      run.out_beside = out_strides.head;
      run.in_step = in_strides.token;
      run.out_step = out_strides.token;
      run.angle_beside = 0;
      run.angle_step = per_token;
      request(in_strides.token, kCount * in_strides.head, count);
      for (int64_t head = first; head < last; head += kCount) {
        start(0, head);
        rotate(same, std::false_type(), beside, run);
      }
      return last;
    };
    const auto along_heads = [&](auto same, auto beside, int64_t first) HWY_ATTR {
      constexpr int kCount = decltype(beside)::value;
      const int64_t last = first + (count - first) / kCount * kCount;
      run.in_beside = in_strides.token;
      run.out_beside = out_strides.token;
      run.in_step = in_strides.head;
      run.out_step = out_strides.head;
      run.angle_beside = per_token;
      run.angle_step = 0;
      request(in_strides.head, kCount * in_strides.token, tensor.heads);
      for (int64_t i = first; i < last; i += kCount) {
        start(i, 0);
        rotate(same, std::true_type(), beside, run);
      }
      return last;
    };
    const auto along_head_groups = [&](auto same, auto beside, int64_t i, int64_t first) HWY_ATTR {
      constexpr int kCount = decltype(beside)::value;
      const int64_t groups = (tensor.heads - first) / kCount;
      run.in_beside = in_strides.head;
      run.out_beside = out_strides.head;
      run.in_step = kCount * in_strides.head;
      run.out_step = kCount * out_strides.head;
      run.angle_beside = 0;
      run.angle_step = 0;
      request(run.in_step, in_strides.token, groups);
      start(i, first);
      rotate(same, std::false_type(), beside, run);
      return first + groups * kCount;
    };
    const std::integral_constant<int, kRows> some;
    const std::integral_constant<int, 1> one;
    const auto all = [&](auto same) HWY_ATTR {
      const std::integral_constant<int, decltype(same)::value ? kRowsInPlace<Row> : kRows> most;
      // Runs go along memory.
      if (std::abs(in_strides.token) < std::abs(in_strides.head)) {
        const bool collide = in_strides.head * static_cast<int64_t>(sizeof(T)) % kCollide == 0;
        const int64_t head = collide ? 0 : along_tokens(same, some, along_tokens(same, most, 0));
        along_tokens(same, one, head);
        return;
      }
      for (int64_t i = along_heads(same, most, 0); i < count; ++i) {
        along_head_groups(same, one, i, along_head_groups(same, most, i, 0));
      }
    };
    if (in_place && contiguous) {
      all(std::true_type());
    } else {
      all(std::false_type());
    }
  }

  // Dim of the first partner of the first pair of the i-th block of the piece.
  static int64_t first_dim(const RotaryArgs& args, const Piece& piece, int64_t i) {
    return kInterleaved ? args.start + 2 * piece.first
                        : args.start + 2 * args.half_block * (piece.block + i) + piece.first;
  }

  // Whether all full groups lie so that their vectors can be streamed. Not in pieces of 16 bytes:
  // of all the streams that are written side by side, a processor has no room for so many open
  // lines.
  static bool can_stream(const RotaryArgs& args, const Piece& piece, const RotaryTensor& tensor) {
    if (HWY_MAX_BYTES < 32) return false;
    const D d;
    constexpr int64_t kSize = sizeof(T);
    const HeadStrides& strides = tensor.out_strides;
    const int64_t first = reinterpret_cast<int64_t>(tensor.out) + first_dim(args, piece, 0) * kSize;
    const int64_t steps =
        strides.batch | strides.token | strides.head | (kInterleaved ? 0 : args.half_block);
    return can_stream_to(first | steps * kSize,
                         static_cast<int64_t>(hn::Lanes(d) * sizeof(Number)));
  }

  template <Store kStore, bool kInPlace, bool kOwnAngles, int kCount>
  HWY_ATTR void rotate_run(const RotaryArgs& args, const Piece& piece, const Run& run) {
    const D d;
    const int64_t group = static_cast<int64_t>(group_size(d, Row::kOrder));
    const int64_t far = args.half_block;
    const int64_t groups = piece.length / group, rest = piece.length % group;
    const int64_t group_dims = group * (kInterleaved ? 2 : 1);
    const int64_t to_next_block = 2 * args.half_block - groups * group_dims;
    const int64_t to_next_row = -piece.blocks * 2 * args.half_block;
    // One pointer a row, which moves: the sums of every row's address and the distances would be
    // more than there are registers.
    const T* in[kCount];
    T* out[kCount];
    const auto move = [&](int64_t in_dims, int64_t out_dims) HWY_ATTR {
      unrolled<kCount>([&](auto j) HWY_ATTR {
        in[j] += in_dims;
        if constexpr (!kInPlace) out[j] += out_dims;
      });
    };
    unrolled<kCount>([&](auto j) HWY_ATTR {
      in[j] = run.in + j * run.in_beside + first_dim(args, piece, 0);
      out[j] = run.out + j * run.out_beside + first_dim(args, piece, 0);
    });
    for (int64_t i = 0; i < run.count; ++i) {
      const Number* cosine = run.cosine + i * run.angle_step;
      const Number* sine = run.sine + i * run.angle_step;
      const int64_t ahead = i < run.turn ? run.ahead : run.ahead_next;
      for (int64_t block = 0; block < piece.blocks; ++block) {
        for (int64_t at = 0; at < groups; ++at) {
          const typename Row::template Angles<D> shared(d, cosine, sine);
          // All reads before all writes: rows are often a multiple of 4 KiB apart, and processors
          // take a read at such a distance from a fresh write for a read of it.
          typename Row::template Group<D> numbers[kCount];
          unrolled<kCount>([&](auto j) HWY_ATTR {
            prefetch(in[j] + ahead, far);
            numbers[j].read(d, in[j], in[j] + far);
          });
          unrolled<kCount>([&](auto j) HWY_ATTR {
            T* const to = kInPlace ? const_cast<T*>(in[j]) : out[j];
            const int64_t own = kOwnAngles ? j * run.angle_beside : 0;
            const typename Row::template Angles<D> angles =
                kOwnAngles ? typename Row::template Angles<D>(d, cosine + own, sine + own) : shared;
            Row::template rotate<kStore, kRounding>(d, numbers[j], to, to + far, angles);
          });
          move(group_dims, group_dims);
          cosine += group * Row::kCopies;
          sine += group * Row::kCopies;
        }
        if (rest != 0) {
          for (int j = 0; j < kCount; ++j) {
            const int64_t own = kOwnAngles ? j * run.angle_beside : 0;
            rotate_part(in[j], 1, kInPlace ? const_cast<T*>(in[j]) : out[j], 1, far, rest,
                        cosine + own, sine + own);
          }
          cosine += group * Row::kCopies;
          sine += group * Row::kCopies;
        }
        move(to_next_block, to_next_block);
      }
      move(run.in_step + to_next_row, run.out_step + to_next_row);
    }
  }

  static HWY_INLINE void prefetch(const T* group, int64_t far) {
    constexpr int64_t kBytes = static_cast<int64_t>(2 * hn::MaxLanes(D()) * sizeof(T));
    prefetch_later(group);
    if constexpr (!kInterleaved) {
      prefetch_later(group + far);
    } else if constexpr (kBytes > kLineBytes) {
      prefetch_later(group + kBytes / static_cast<int64_t>(2 * sizeof(T)));
    }
  }

  template <int kCount>
  HWY_ATTR void rotate_strided_run(const RotaryArgs& args, const Piece& piece,
                                   const RotaryTensor& tensor, const Run& run) {
    const D d;
    const int64_t group = static_cast<int64_t>(group_size(d, Row::kOrder));
    const int64_t in_dim = tensor.in_strides.dim, out_dim = tensor.out_strides.dim;
    for (int64_t row = 0; row < run.count * kCount; ++row) {
      const int64_t i = row / kCount, j = row % kCount;
      const T* const in = run.in + i * run.in_step + j * run.in_beside;
      T* const out = run.out + i * run.out_step + j * run.out_beside;
      const int64_t angle = i * run.angle_step + j * run.angle_beside;
      const Number* cosine = run.cosine + angle;
      const Number* sine = run.sine + angle;
      for (int64_t block = 0; block < piece.blocks; ++block) {
        for (int64_t pair = 0; pair < piece.length; pair += group) {
          const int64_t at = first_dim(args, piece, block) + pair * (kInterleaved ? 2 : 1);
          rotate_part(in + at * in_dim, in_dim, out + at * out_dim, out_dim, args.half_block,
                      std::min(group, piece.length - pair), cosine, sine);
          cosine += group * Row::kCopies;
          sine += group * Row::kCopies;
        }
      }
    }
  }

  // Numbers `step` apart to the buffer, and back.
  static HWY_ATTR HWY_INLINE void read_part(const T* from, int64_t step, int64_t count, T* buffer) {
    if (step == 1) return read_neighbours(from, count, buffer);
    collect(from, step, count, buffer);
  }
  static HWY_ATTR HWY_INLINE void write_part(const T* buffer, int64_t count, T* to, int64_t step) {
    if (step == 1) return write_neighbours(buffer, count, to);
    distribute(buffer, count, to, step);
  }

  // Up to one group of pairs, through a buffer: row ends, and dims that are not neighbours.
  static HWY_ATTR void rotate_part(const T* in, int64_t in_step, T* out, int64_t out_step,
                                   int64_t far, int64_t count, const Number* cosine,
                                   const Number* sine) {
    const D d;
    constexpr int64_t kGroup = static_cast<int64_t>(2 * hn::MaxLanes(D()));
    HWY_ALIGN T buffer[2 * kGroup] = {};
    // Interleaved partners stay neighbours; far ones are kGroup apart in the buffer.
    if constexpr (kInterleaved) {
      read_part(in, in_step, 2 * count, buffer);
    } else {
      read_part(in, in_step, count, buffer);
      read_part(in + far * in_step, in_step, count, buffer + kGroup);
    }
    const typename Row::template Angles<D> angles(d, cosine, sine);
    typename Row::template Group<D> group;
    group.read(d, buffer, buffer + kGroup);
    Row::template rotate<Store::kOrdinary, kRounding>(d, group, buffer, buffer + kGroup, angles);
    if constexpr (kInterleaved) {
      write_part(buffer, 2 * count, out, out_step);
    } else {
      write_part(buffer, count, out, out_step);
      write_part(buffer + kGroup, count, out + far * out_step, out_step);
    }
  }

  template <int kCount>
  static void copy_outside_run(const RotaryArgs& args, const RotaryTensor& tensor, const Run& run) {
    for (int64_t row = 0; row < run.count * kCount; ++row) {
      const int64_t i = row / kCount, j = row % kCount;
      copy_outside(args, run.in + i * run.in_step + j * run.in_beside, tensor.in_strides.dim,
                   run.out + i * run.out_step + j * run.out_beside, tensor.out_strides.dim);
    }
  }

  static void copy_outside(const RotaryArgs& args, const T* in, int64_t in_step, T* out,
                           int64_t out_step) {
    const auto copy = [&](int64_t from, int64_t to) {
      if (in_step == 1 && out_step == 1) {
        std::memcpy(out + from, in + from, static_cast<size_t>(to - from) * sizeof(T));
      } else {
        for (int64_t i = from; i < to; ++i) out[i * out_step] = in[i * in_step];
      }
    };
    copy(0, args.start);
    copy(args.start + 2 * args.pairs, args.head_dim);
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

template <typename T, Rounding kRounding>
HWY_ATTR void run_rounded(const RotaryArgs& args, int64_t begin, int64_t end) {
  if (args.half_block == 1) {
    RotaryKernel<T, true, kRounding> kernel;
    kernel.run(args, begin, end);
  } else {
    RotaryKernel<T, false, kRounding> kernel;
    kernel.run(args, begin, end);
  }
}

template <typename T>
HWY_ATTR void run_rotary(const RotaryArgs& args, int64_t begin, int64_t end) {
  if (args.as_written) {
    run_rounded<T, Rounding::kAsWritten>(args, begin, end);
  } else if (HWY_TARGET == HWY_AVX3 && std::is_same_v<T, BFloat16> &&
             bfloat16_instructions.load(std::memory_order_relaxed)) {
    constexpr bool kHere = HWY_TARGET == HWY_AVX3 && std::is_same_v<T, BFloat16>;
    run_rounded<T, kHere ? Rounding::kOnceByInstruction : Rounding::kOnce>(args, begin, end);
  } else {
    run_rounded<T, Rounding::kOnce>(args, begin, end);
  }
}

HWY_ATTR void rotary_target(const RotaryArgs& args, int64_t begin, int64_t end) {
  switch (args.dtype) {
    case Dtype::kFloat16:
      run_rotary<Float16>(args, begin, end);
      break;
    case Dtype::kBFloat16:
      run_rotary<BFloat16>(args, begin, end);
      break;
    case Dtype::kFloat32:
      run_rotary<float>(args, begin, end);
      break;
    default:
      run_rotary<double>(args, begin, end);
  }
  if (args.non_temporal) hwy::FlushStream();
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace posenc::cpu {

POSENC_EXPORT(rotary_target);

void rotary(const RotaryArgs& args, int64_t begin, int64_t end) {
  POSENC_DISPATCH(rotary_target)(args, begin, end);
}

}  // namespace posenc::cpu
#endif  // HWY_ONCE
