// What stands before attention on a GPU: what one thread does, and how a launch covers a call. This
// is for calls of any kind; those that most models make are norm_rotary_warp.cuh's.
// Plain C++ as well, which tests run on the host (on_host/).
//
//   block     some tokens, whose angles are in shared memory; a warp (y) for each head, one after
//             the other of q and k
//   lane      the dims 64 j + 2 lane and the next one: what it adds up is q[lane] of the sum of
//             core/norm_rotary.h, and the first step of all is within the lane
//
//   1. a head -> shared memory, as float32 (float64); its 32 sums beside it
//   2. every lane adds the 32 sums, in the order of the CPU: r, of a query times the factor of its
//      token; x r w, in place
//   3. pairs are turned in shared memory, whatever their partners are; a lane has both of a pair
//   4. rounded, and written: out, a cache, or both
//   5. values -> their slots; into a cache of 8 bits by heads too, a warp for each
//
// All threads of a block take the same steps: none of them waits in a branch. kVector: numbers of
// an access, 2 where memory allows it.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "core/norm_rotary.h"
#include "core/visit_type.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/room.h"
#include "cuda/turning.cuh"

namespace posenc::cuda {

struct NormRotaryPlan : LaunchPlan {
  int tokens = 1;           // of a piece
  int64_t heads = 0;        // of q and k, counted through
  int64_t piece_heads = 0;  // of a piece
  int row_numbers = 0;      // of a head in shared memory: even
  bool own_angles = false;  // computed by whoever turns a pair: heads differ, or there is no room
  // Of warps: all of them, the tokens that each has, steps of each of what is left of the tokens,
  // and what numbers are divided by to find their places.
  int warps = 0, rounds = 0, rest_steps = 0;
  Divisor by_heads, by_tokens;
};

struct NormRotaryParameters {
  NormRotaryArgs args;
  NormRotaryPlan plan;
};

POSENC_HD inline float square_root(float x) { return sqrtf(x); }
POSENC_HD inline double square_root(double x) { return sqrt(x); }

// The lane x of the warp y of a block, at one head at a time.
template <typename T, int kVector>
class NormRotaryBlock {
 public:
  using Number = Real<T>;

  // Of a block: frequencies, angles of its tokens; `rows` heads and `sums` numbers beside for each
  // warp; and factors of queries of its tokens.
  static size_t shared_bytes(const NormRotaryArgs& args, const NormRotaryPlan& plan, int rows,
                             int sums) {
    const size_t pairs = static_cast<size_t>(args.rotary.pairs);
    const size_t angles = plan.own_angles
                              ? 0
                              : pairs * (static_cast<size_t>(terms(args)) * sizeof(Turns) +
                                         2 * sizeof(Number) * static_cast<size_t>(plan.tokens));
    const size_t numbers = static_cast<size_t>(rows * plan.row_numbers + sums);
    const size_t factors = args.query_scale ? static_cast<size_t>(plan.tokens) : 0;
    return angles + (static_cast<size_t>(plan.threads_y) * numbers + factors) * sizeof(Number);
  }

  static POSENC_HD int64_t terms(const NormRotaryArgs& args) {
    return args.rotary.inv_freq.data == nullptr ? 0 : args.rotary.inv_freq.terms();
  }

  POSENC_HD bool has_frequencies() const {
    return !plan_.own_angles && rotary_.inv_freq.data != nullptr;
  }

  // Once a piece.
  POSENC_HD void frequencies() const {
    if (!has_frequencies()) return;
    const int64_t count = rotary_.inv_freq.terms() * rotary_.pairs;
    for (int64_t i = thread(); i < count; i += plan_.threads()) {
      const int64_t term = divide(i, rotary_.pairs);
      turns()[i] = rotary_.inv_freq.turns(term, 0, i - term * rotary_.pairs);
    }
  }

  // Of `count` tokens from a row of batch and tokens on; and the factors of their queries.
  POSENC_HD void angles(int64_t first_row, int count) const {
    if (args_.query_scale) keep_query_factors(first_row, count);
    if (plan_.own_angles) return;
    const int64_t pairs = rotary_.pairs;
    for (int64_t i = thread(); i < count * pairs; i += plan_.threads()) {
      const int64_t token = divide(i, pairs), pair = i - token * pairs;
      if (first_row + token >= rotary_.rows()) continue;
      const Turns* const kept = turns();
      const int64_t row = first_row + token, batch = divide(row, rotary_.tokens);
      const SinCos<Number> angle =
          angle_of(batch, row - batch * rotary_.tokens, 0, pair,
                   [&](int64_t term) { return kept[term * pairs + pair]; });
      cosines()[i] = angle.cosine;
      sines()[i] = angle.sine;
    }
  }

 protected:
  POSENC_HD NormRotaryBlock(const NormRotaryArgs& args, const NormRotaryPlan& plan, bool as_written,
                            char* shared, int x, int y)
      : args_(args),
        rotary_(args.rotary),
        plan_(plan),
        as_written_(as_written),
        shared_(shared),
        x_(x),
        y_(y) {}

  POSENC_HD int thread() const { return y_ * plan_.threads_x + x_; }

  // Shared memory: turns, cosines and sines, then what each warp has.
  POSENC_HD Turns* turns() const { return reinterpret_cast<Turns*>(shared_); }
  POSENC_HD Number* cosines() const {
    const int64_t count = has_frequencies() ? rotary_.inv_freq.terms() * rotary_.pairs : 0;
    return reinterpret_cast<Number*>(turns() + count);
  }
  POSENC_HD Number* sines() const { return cosines() + plan_.tokens * rotary_.pairs; }
  POSENC_HD Number* of_warps() const {
    return plan_.own_angles ? reinterpret_cast<Number*>(shared_)
                            : sines() + plan_.tokens * rotary_.pairs;
  }

  // At the end, behind what else a thread has there.
  POSENC_HD Number* query_factors() const {
    return reinterpret_cast<Number*>(shared_ + plan_.shared_bytes) - plan_.tokens;
  }
  POSENC_HD void keep_query_factors(int64_t first_row, int count) const {
    for (int token = thread(); token < count; token += plan_.threads()) {
      const int64_t row = first_row + token, batch = divide(row, rotary_.tokens);
      if (row >= rotary_.rows()) continue;
      query_factors()[token] = query_factor(batch, row - batch * rotary_.tokens);
    }
  }
  // Of a token whose queries have one.
  POSENC_HD Number query_factor(int64_t batch, int64_t token) const {
#if defined(__CUDA_ARCH__)
    return static_cast<Number>(
        called_query_factor(args_.query_scale, rotary_.positions, position_at(batch, token)));
#else
    return args_.template query_factor<Number>(batch, token);
#endif
  }
#if defined(__CUDACC__)
  // Logarithms in float64 take many registers and instructions, which are not inlined.
  static __noinline__ POSENC_HD double called_query_factor(QueryScale scale, Positions positions,
                                                           int64_t at) {
    return scale.at(positions.number_at<double>(at));
  }
#endif

  // A head of a token: which tensor's, and where.
  struct Head {
    int tensor;
    int64_t head, batch, token, row;
    int local_token;  // of those whose angles are there
    bool there;
  };

  POSENC_HD Head head_of(int64_t row, int local_token, int64_t count, bool there) const {
    const int64_t q_heads = rotary_.tensors[0].heads;
    const bool of_q = count < q_heads;
    const int64_t batch = divide(row, rotary_.tokens);
    return {of_q ? 0 : 1, of_q ? count : count - q_heads,
            batch,        row - batch * rotary_.tokens,
            row,          local_token,
            there};
  }

  POSENC_HD bool has_factor(const Head& at) const { return args_.query_scale && at.tensor == 0; }

  static POSENC_HD int64_t place(const HeadStrides& strides, const Head& at) {
    return at.batch * strides.batch + at.token * strides.token + at.head * strides.head;
  }

  // visit(dim, how many) for the dims of a lane.
  template <typename Visit>
  POSENC_HD void for_own_dims(const Visit& visit) const {
    for_own_dims(rotary_.head_dim, visit);
  }
  template <typename Visit>
  POSENC_HD void for_own_dims(int64_t of_head, const Visit& visit) const {
    const int dims = static_cast<int>(of_head);
    for (int dim = 2 * x_; dim < dims; dim += kPartialSums) {
      visit(dim, dim + 1 < dims ? 2 : 1);
    }
  }

  // Into shared memory, with a zero behind an odd last dim.
  POSENC_HD void read_row(const T* from, int64_t step, Number* row) const {
    for_own_dims([&](int dim, int count) {
      if constexpr (kVector == 2) {
        const Packet<T, 2> both = read_packet<T, 2>(from + dim);
        row[dim] = to_real(both.numbers[0]);
        row[dim + 1] = to_real(both.numbers[1]);
      } else {
        row[dim] = to_real(read_packet<T, 1>(from + dim * step).numbers[0]);
        row[dim + 1] =
            count == 2 ? to_real(read_packet<T, 1>(from + (dim + 1) * step).numbers[0]) : 0;
      }
    });
  }

  POSENC_HD void write_row(const Number* row, T* to, int64_t step) const {
    for_own_dims([&](int dim, int count) {
      if constexpr (kVector == 2) {
        const Number both[2] = {row[dim], row[dim + 1]};
        write_packet<T, 2>(round_packet<T, 2>(both), to + dim);
      } else {
        for (int i = 0; i < count; ++i) {
          const Number one[1] = {row[dim + i]};
          write_packet<T, 1>(round_packet<T, 1>(one), to + (dim + i) * step);
        }
      }
    });
  }

  // q[lane] of the sum of the products of two rows.
  POSENC_HD Number lane_sum(const Number* a, const Number* b) const {
    Number even = 0, odd = 0;
    for_own_dims([&](int dim, int /*count*/) {
      even = even + a[dim] * b[dim];
      odd = odd + a[dim + 1] * b[dim + 1];
    });
    return even + odd;
  }

  // The lanes' sums added as csrc/cpu/square_sums-inl.h does.
  static POSENC_HD Number tree_sum(const Number* lanes) {
    Number sums[kLanes / 2];
#pragma unroll
    for (int i = 0; i < kLanes / 2; ++i) sums[i] = lanes[i] + lanes[i + kLanes / 2];
    add_halves<kLanes / 4>(sums);
    return sums[0];
  }

  // Written out by the compiler: what a loop indexed would be in memory.
  template <int kHalf>
  static POSENC_HD void add_halves(Number* sums) {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) sums[i] = sums[i] + sums[i + kHalf];
    if constexpr (kHalf > 1) add_halves<kHalf / 2>(sums);
  }

  POSENC_HD Number inverse_root(Number sum, int64_t count) const {
    const Number mean = sum / static_cast<Number>(count);
    return Number(1) / square_root(mean + static_cast<Number>(args_.eps));
  }

  // weight + offset, or 1.
  POSENC_HD Number factor(int tensor, int64_t head, int64_t dim) const {
    const NormWeight& weight = args_.weights[tensor];
    if (weight.data == nullptr) return 1;
    const int64_t at = weight.offset(weight.heads == 1 ? 0 : head, dim);
    return number_at<Number>(weight.data, weight.dtype, at) +
           static_cast<Number>(args_.weight_offset);
  }

  // Of neighboring dims of a weight that all heads share.
  template <int kCount>
  POSENC_HD Packet<Number, kCount> factors(int tensor, int64_t dim) const {
    const NormWeight& weight = args_.weights[tensor];
    const bool there = weight.data != nullptr;
    Packet<Number, kCount> factors;
    if (there) {
      factors = numbers_at<Number, kCount>(weight.data, weight.dtype, weight.offset(0, dim),
                                           weight.dim_stride);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      factors.numbers[i] =
          there ? factors.numbers[i] + static_cast<Number>(args_.weight_offset) : Number(1);
    }
    return factors;
  }

  POSENC_HD Number scaled(Number x, Number r, Number factor, bool round_first) const {
    Number y = x * r;
    if (round_first) y = rounded<T>(y);
    y = y * factor;
    return as_written_ ? rounded<T>(y) : y;
  }

  // kBack: the transpose. Every pair is turned by one lane.
  template <bool kBack>
  POSENC_HD void turn_row(const Head& at, Number* row) const {
    const int64_t half = rotary_.half_block;
    for (int64_t pair = x_; pair < rotary_.pairs; pair += kLanes) {
      const int64_t block = half == 1 ? pair : divide(pair, half);
      const int64_t a = rotary_.start + 2 * half * block + (pair - block * half), b = a + half;
      Number c, s;
      if (plan_.own_angles) {
        const SinCos<Number> angle = angle_of(at.batch, at.token, at.head, pair, [&](int64_t term) {
          const int64_t own = rotary_.inv_freq.heads == 1 ? 0 : at.head;
          return rotary_.inv_freq.turns(term, own, pair);
        });
        c = angle.cosine;
        s = angle.sine;
      } else {
        c = cosines()[at.local_token * rotary_.pairs + pair];
        s = sines()[at.local_token * rotary_.pairs + pair];
      }
      if (kBack) s = -s;
      turn(row[a], row[b], c, s);
    }
  }

  // As written: the sums are rounded too, which a norm after them takes.
  POSENC_HD void turn(Number& a, Number& b, Number c, Number s) const {
    if (!as_written_) return turn_pair<T, false>(a, b, c, s);
    turn_pair<T, true>(a, b, c, s);
    a = rounded<T>(a);
    b = rounded<T>(b);
  }

  // Cosine and sine of a pair, as they are multiplied; turns(term) are those of its frequencies.
  template <typename TurnsOf>
  POSENC_HD SinCos<Number> angle_of(int64_t batch, int64_t token, int64_t head, int64_t pair,
                                    const TurnsOf& turns) const {
    if (rotary_.cosine != nullptr) {
      return multiplied({table(rotary_.sine, rotary_.sine_strides, batch, token, head, pair),
                         table(rotary_.cosine, rotary_.cosine_strides, batch, token, head, pair)});
    }
    const int64_t axes = rotary_.inv_freq.axes;
    uint64_t turned = 0;
    for (int64_t term = 0; term < (axes > 0 ? axes : 1); ++term) {
      const int64_t axis = axes > 0 ? term : rotary_.axis_map.clamped(pair);
      turned += phase(position_of(batch, token, axis), turns(term));
    }
    return angle_of_phase(turned);
  }

  POSENC_HD SinCos<Number> angle_of_phase(uint64_t turned) const {
    return multiplied(sincos<Number>(turned));
  }

  // Whether one position of a token is that of all pairs.
  POSENC_HD bool has_one_position() const {
    return rotary_.cosine == nullptr && rotary_.axis_map.data == nullptr &&
           rotary_.inv_freq.axes == 0;
  }
  POSENC_HD Position position_of(int64_t batch, int64_t token, int64_t axis) const {
    return rotary_.positions.at(position_at(batch, token) + axis * rotary_.positions.axis_stride);
  }
  POSENC_HD int64_t position_at(int64_t batch, int64_t token) const {
    return batch * rotary_.position_batch_stride + token * rotary_.position_token_stride;
  }

  POSENC_HD SinCos<Number> multiplied(SinCos<Number> angle) const {
    return cuda::multiplied<T>(rotary_, angle, as_written_);
  }

  POSENC_HD Number table(const void* data, const TableStrides& strides, int64_t batch,
                         int64_t token, int64_t head, int64_t pair) const {
    int64_t at = rotary_.table_rows.offset(batch, token, strides) + head * strides.head +
                 pair * strides.pair;
    if (rotary_.axis_map.data != nullptr) at += rotary_.axis_map.clamped(pair) * strides.axis;
    return number_at<Number>(data, rotary_.table_dtype, at);
  }

  const NormRotaryArgs& args_;
  const RotaryArgs& rotary_;
  const NormRotaryPlan& plan_;
  const bool as_written_;
  char* const shared_;
  const int x_, y_;
};

// At its work on one of the pieces that the grid consists of.
template <typename T, int kVector>
class NormRotaryThread : public NormRotaryBlock<T, kVector> {
  using Block = NormRotaryBlock<T, kVector>;
  using Block::args_, Block::rotary_, Block::plan_, Block::as_written_, Block::x_, Block::y_;
  using typename Block::Head, typename Block::Number;

 public:
  POSENC_HD NormRotaryThread(const NormRotaryParameters& parameters, char* shared, int x, int y)
      : Block(parameters.args, parameters.plan, parameters.args.rotary.as_written, shared, x, y) {}

  // Beside the heads of the warps, sums: of the lanes, and of all heads of a token.
  static size_t shared_bytes(const NormRotaryArgs& args, const NormRotaryPlan& plan) {
    const size_t all = args.norm && args.over_token ? static_cast<size_t>(plan.heads) : 0;
    return Block::shared_bytes(args, plan, 1, kLanes) + all * sizeof(Number);
  }

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    first_row_ = piece_x * plan_.tokens;
    first_head_ = piece_y * plan_.piece_heads;
    const int64_t left = plan_.heads - first_head_;
    heads_ = left < plan_.piece_heads ? left : plan_.piece_heads;
    appends_values_ = args_.appends() && piece_y == 0;
  }

  POSENC_HD void angles() const { Block::angles(first_row_, plan_.tokens); }

  // Rounds of the piece: a head for each warp.
  POSENC_HD int64_t rounds() const {
    return divide(plan_.tokens * heads_ + plan_.threads_y - 1, plan_.threads_y);
  }
  POSENC_HD bool sums_tokens() const { return args_.norm && args_.over_token; }
  POSENC_HD bool norms_last() const { return args_.norm && !args_.norm_first; }

  POSENC_HD void read(int64_t round) {
    const int64_t i = round * plan_.threads_y + y_;
    const int64_t token = divide(i, heads_);
    const int64_t row = first_row_ + token;
    const bool there = token < plan_.tokens && row < rotary_.rows();
    at_ = Block::head_of(there ? row : 0, static_cast<int>(token),
                         first_head_ + (i - token * heads_), there);
    if (!there) return;
    const RotaryTensor& x = rotary_.tensors[at_.tensor];
    const T* const from = static_cast<const T*>(x.in) + Block::place(x.in_strides, at_);
    Block::read_row(from, x.in_strides.dim, row_numbers());
    if (args_.norm && args_.norm_first) sum();
  }

  // Of the squares of a lane's dims.
  POSENC_HD void sum() const {
    if (at_.there) lane_sums()[x_] = Block::lane_sum(row_numbers(), row_numbers());
  }

  // Of a head, for the mean over a token: a piece has one.
  POSENC_HD void keep_sum() const {
    if (!at_.there || x_ != 0) return;
    head_sums()[at_.tensor * rotary_.tensors[0].heads + at_.head] = Block::tree_sum(lane_sums());
  }

  POSENC_HD void scale() const {
    const bool has_factor = Block::has_factor(at_);
    if (!(args_.norm || has_factor) || !at_.there) return;
    Number r = 1;
    if (!args_.norm) {
      // The factor alone.
    } else if (args_.over_token) {
      const int64_t heads = rotary_.tensors[at_.tensor].heads;
      const Number* const sums = head_sums() + at_.tensor * rotary_.tensors[0].heads;
      Number sum = 0;
      for (int64_t head = 0; head < heads; ++head) sum = sum + sums[head];
      r = Block::inverse_root(sum, heads * rotary_.head_dim);
    } else {
      r = Block::inverse_root(Block::tree_sum(lane_sums()), rotary_.head_dim);
    }
    if (has_factor) r = r * Block::query_factors()[at_.local_token];
    Number* const row = row_numbers();
    const bool round_first = args_.rounded_before_weight[at_.tensor];
    Block::for_own_dims([&](int dim, int count) {
      for (int i = 0; i < count; ++i) {
        const Number factor = Block::factor(at_.tensor, at_.head, dim + i);
        row[dim + i] = Block::scaled(row[dim + i], r, factor, round_first);
      }
    });
  }

  POSENC_HD void turn() const {
    if (at_.there) Block::template turn_row<false>(at_, row_numbers());
  }

  POSENC_HD void write() const {
    if (!at_.there) return;
    const RotaryTensor& x = rotary_.tensors[at_.tensor];
    if (x.out != nullptr) {
      T* const to = static_cast<T*>(x.out) + Block::place(x.out_strides, at_);
      Block::write_row(row_numbers(), to, x.out_strides.dim);
    }
    if (at_.tensor == 0 || !args_.appends()) return;
    if (args_.keys.scaling.is_eight_bits()) return write_eight_bits(args_.keys, rotary_.head_dim);
    const int64_t place = args_.place(args_.keys, at_.batch, at_.token);
    if (place == NormRotaryArgs::kNowhere) return;
    T* const to = static_cast<T*>(args_.keys.data) + place + at_.head * args_.keys.head_stride;
    Block::write_row(row_numbers(), to, args_.keys.dim_stride);
  }

  // Of the magnitudes of a row that goes into a cache of 8 bits, for the scale that is made of
  // them.
  POSENC_HD bool makes_scales() const { return args_.keys.scaling.made != nullptr; }
  POSENC_HD void keep_largest() const { keep_largest(rotary_.head_dim); }
  POSENC_HD void keep_largest_value() const { keep_largest(args_.v_dim); }

  // Rounds of heads of values, where these become numbers of 8 bits.
  POSENC_HD int64_t value_rounds() const {
    if (!appends_values_ || !args_.values.scaling.is_eight_bits()) return 0;
    return divide(plan_.tokens * args_.v.heads + plan_.threads_y - 1, plan_.threads_y);
  }
  POSENC_HD void read_value(int64_t round) {
    const int64_t i = round * plan_.threads_y + y_;
    const int64_t token = args_.v.heads == 0 ? plan_.tokens : divide(i, args_.v.heads);
    const int64_t row = first_row_ + token;
    const bool there = token < plan_.tokens && row < rotary_.rows();
    const int64_t batch = divide(there ? row : 0, rotary_.tokens);
    at_ = {1,   i - token * args_.v.heads, batch, (there ? row : 0) - batch * rotary_.tokens,
           row, static_cast<int>(token),   there};
    if (!there) return;
    const HeadStrides& in = args_.v.in_strides;
    const T* const from = static_cast<const T*>(args_.v.in) + Block::place(in, at_);
    Number* const numbers = row_numbers();
    Block::for_own_dims(args_.v_dim, [&](int dim, int count) {
      numbers[dim] = to_real(read_packet<T, 1>(from + dim * in.dim).numbers[0]);
      numbers[dim + 1] =
          count == 2 ? to_real(read_packet<T, 1>(from + (dim + 1) * in.dim).numbers[0]) : 0;
    });
  }
  POSENC_HD void write_value() const {
    if (at_.there) write_eight_bits(args_.values, args_.v_dim);
  }

  // The values of the piece's tokens, bit for bit.
  POSENC_HD void append_values() const {
    if (!appends_values_ || args_.values.scaling.is_eight_bits()) return;
    const int64_t of_head = divide(args_.v_dim, kVector), of_token = args_.v.heads * of_head;
    const HeadStrides& in = args_.v.in_strides;
    const CacheTarget& cache = args_.values;
    for (int64_t i = Block::thread(); i < plan_.tokens * of_token; i += plan_.threads()) {
      const int64_t local = divide(i, of_token), row = first_row_ + local;
      if (row >= rotary_.rows()) continue;
      const int64_t batch = divide(row, rotary_.tokens), token = row - batch * rotary_.tokens;
      const int64_t place = args_.place(cache, batch, token);
      if (place == NormRotaryArgs::kNowhere) continue;
      const int64_t within = i - local * of_token, head = divide(within, of_head);
      const int64_t dim = (within - head * of_head) * kVector;
      const T* const from = static_cast<const T*>(args_.v.in) + batch * in.batch +
                            token * in.token + head * in.head + dim * (kVector == 1 ? in.dim : 1);
      T* const to = static_cast<T*>(cache.data) + place + head * cache.head_stride +
                    dim * (kVector == 1 ? cache.dim_stride : 1);
      write_packet<T, kVector>(read_packet<T, kVector>(from), to);
    }
  }

 private:
  POSENC_HD Number* row_numbers() const { return Block::of_warps() + y_ * plan_.row_numbers; }
  POSENC_HD Number* lane_sums() const {
    return Block::of_warps() + plan_.threads_y * plan_.row_numbers + y_ * kLanes;
  }
  POSENC_HD Number* head_sums() const {
    return Block::of_warps() + plan_.threads_y * (plan_.row_numbers + kLanes);
  }

  // By their bits: a NaN is larger than all others.
  POSENC_HD void keep_largest(int64_t dims) const {
    if (!at_.there) return;
    uint32_t most = 0;
    const Number* const row = row_numbers();
    Block::for_own_dims(dims, [&](int dim, int count) {
      for (int i = 0; i < count; ++i) {
        const uint32_t bits = bits_from_float(static_cast<float>(row[dim + i])) & 0x7fffffff;
        most = bits > most ? bits : most;
      }
    });
    lane_sums()[x_] = static_cast<Number>(float_from_bits(most));
  }

  POSENC_HD float largest_of_lanes() const {
    uint32_t most = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t bits = bits_from_float(static_cast<float>(lane_sums()[lane]));
      most = bits > most ? bits : most;
    }
    return float_from_bits(most);
  }

  // The row in shared memory into the slot of its token.
  POSENC_HD void write_eight_bits(const CacheTarget& cache, int64_t dims) const {
    const int64_t slot = args_.slot(at_.batch, at_.token);
    if (slot == NormRotaryArgs::kNowhere) return;
    const Scaling& scaling = cache.scaling;
    float scale = scaling.of_head(at_.head);
    if (scaling.made != nullptr) {
      const float made = scaling.of_largest(largest_of_lanes());
      if (x_ == 0) {
        const int64_t place = args_.place_of_scale(scaling, at_.batch, slot, at_.head);
        write_packet<float, 1>({{made}}, scaling.made + place);
      }
      scale = Scaling::divisor(made);
    }
    uint8_t* const to = static_cast<uint8_t*>(cache.data) +
                        args_.place_of_slot(cache, at_.batch, slot) + at_.head * cache.head_stride;
    const Number* const row = row_numbers();
    Block::for_own_dims(dims, [&](int dim, int count) {
      for (int i = 0; i < count; ++i) {
        const float x = static_cast<float>(row[dim + i]) / scale;
        write_packet<uint8_t, 1>({{round_to_eight_bits(scaling.dtype, x)}},
                                 to + (dim + i) * cache.dim_stride);
      }
    });
  }

  int64_t first_row_, first_head_, heads_;
  bool appends_values_;
  Head at_;
};

// ---------------------------------------------------------------------------------------------
// On the host: which threads, how many of them

// Whether two numbers are one access everywhere in a tensor.
inline bool fits_two(const void* data, const HeadStrides& strides, int64_t size) {
  const int64_t steps = strides.batch | strides.token | strides.head;
  return data == nullptr ||
         (strides.dim == 1 && steps % 2 == 0 && reinterpret_cast<int64_t>(data) % (2 * size) == 0);
}

inline bool fits_two(const NormRotaryArgs& args) {
  const RotaryArgs& rotary = args.rotary;
  const int64_t size = item_size(rotary.dtype);
  bool fits = rotary.head_dim % 2 == 0 && args.v_dim % 2 == 0;
  for (const RotaryTensor& x : rotary.tensors) {
    fits = fits && fits_two(x.in, x.in_strides, size) && fits_two(x.out, x.out_strides, size);
  }
  fits = fits && fits_two(args.v.in, args.v.in_strides, size);
  for (const CacheTarget* cache : {&args.keys, &args.values}) {
    const HeadStrides strides = {cache->row_stride, cache->slot_stride, cache->head_stride,
                                 cache->dim_stride};
    fits = fits && (cache->scaling.is_eight_bits() || fits_two(cache->data, strides, size));
  }
  return fits;
}

template <template <typename, int> class Thread, typename Visit>
auto visit_norm_thread(Dtype dtype, bool two, const Visit& visit) {
  return visit_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (two) return visit(static_cast<Thread<T, 2>*>(nullptr));
    return visit(static_cast<Thread<T, 1>*>(nullptr));
  });
}

template <typename Visit>
auto visit_norm_rotary_thread(const NormRotaryArgs& args, const Visit& visit) {
  return visit_norm_thread<NormRotaryThread>(args.rotary.dtype, fits_two(args), visit);
}

// Dims of the rows that go through shared memory.
inline int64_t widest_row(const NormRotaryArgs& args) {
  const int64_t dims = args.rotary.head_dim;
  return args.values.scaling.is_eight_bits() ? std::max(dims, args.v_dim) : dims;
}

// Shared memory has room for one head, or the call is an error before anything is launched.
template <typename Bytes>
void check_head_dim(const NormRotaryArgs& args, NormRotaryPlan plan, const Bytes& bytes) {
  plan.threads_x = kLanes;
  plan.threads_y = plan.tokens = 1;
  plan.own_angles = true;
  const auto bytes_of = [&](int numbers) {
    plan.row_numbers = numbers;
    return static_cast<int64_t>(bytes(plan));
  };
  const int64_t fixed = bytes_of(0), of_two = bytes_of(2) - fixed;
  const int64_t left = static_cast<int64_t>(Policy::kSharedBytes) - fixed;
  const int64_t most = left < 0 ? 0 : left / of_two * 2;
  if (widest_row(args) <= most) return;
  std::string expected = "a head_dim of at most " + std::to_string(most) + " on CUDA";
  if (args.over_token) expected += " for a mean over " + std::to_string(plan.heads) + " heads";
  fail_value(args.function, "q", expected, std::to_string(widest_row(args)));
}

// Warps and tokens of a block, as many as shared memory has room for: bytes(plan) of it.
template <typename Bytes>
void fit_shared_memory(const NormRotaryArgs& args, NormRotaryPlan& plan, int most_tokens,
                       const Bytes& bytes) {
  check_head_dim(args, plan, bytes);
  plan.row_numbers = static_cast<int>((widest_row(args) + 1) / 2 * 2);
  plan.own_angles = args.rotary.angle_heads() != 1;
  plan.threads_x = kLanes;
  plan.threads_y = Policy::kThreads / kLanes;
  plan.tokens = most_tokens;
  const auto too_much = [&] {
    plan.shared_bytes = bytes(plan);
    return plan.shared_bytes > Policy::kSharedBytes;
  };
  while (too_much() && plan.tokens > 1) plan.tokens /= 2;
  while (too_much() && plan.threads_y > 1) {
    plan.own_angles = true;  // they take more room than a head
    if (too_much()) plan.threads_y /= 2;
  }
}

template <typename Thread>
NormRotaryPlan plan_norm_rotary(const NormRotaryArgs& args, const Room& room) {
  const RotaryArgs& rotary = args.rotary;
  NormRotaryPlan plan;
  plan.heads = rotary.tensors[0].heads + rotary.tensors[1].heads;
  const int64_t rows = rotary.rows();
  if (rows == 0 || (plan.heads == 0 && args.v.heads == 0)) return plan;
  const bool whole_tokens = args.norm && args.over_token;
  const auto bytes = [&](const NormRotaryPlan& of) { return Thread::shared_bytes(args, of); };
  // Tokens share the frequencies, heads the angles: both as long as there is work for all.
  const int64_t places = room.blocks(Policy::kThreads);
  const int64_t most =
      whole_tokens ? 1 : std::clamp<int64_t>(rows / places, 1, Policy::kNormTokens);
  fit_shared_memory(args, plan, static_cast<int>(most), bytes);
  const int64_t pieces = divide_up(rows, plan.tokens);
  const int64_t groups =
      whole_tokens ? 1
                   : std::clamp<int64_t>(places / pieces, 1, divide_up(plan.heads, plan.threads_y));
  plan.piece_heads = std::max<int64_t>(divide_up(plan.heads, std::max<int64_t>(groups, 1)), 1);
  plan.take_pieces(pieces, std::max<int64_t>(divide_up(plan.heads, plan.piece_heads), 1),
                   room.limit);
  return plan;
}

}  // namespace posenc::cuda
