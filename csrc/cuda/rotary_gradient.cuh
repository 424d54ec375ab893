// Gradients of a rotation with respect to x, frequencies and positions on a GPU:
// cpu/rotary_gradient.cc says what they are. Two launches.
//
//   1. A block takes some tokens after some others, some vectors of a head and either all heads or,
//      where each has its own frequencies, one head of q and of k. It turns the gradient of out
//      back as rotary.cuh does, reads x beside it and sums up, in float32 (float64):
//
//        a thread    x_a y_b - x_b y_a of its pairs over its heads, in registers
//        the block   that over its threads: the gradient of the angle of a token and pair;
//                    this times the position, over the tokens of the block
//                    and times the frequency, over the pairs of the block
//
//   2. A column of these partial sums is added up in float64.
//
// Of very many axes, a block sums up those of a slice of them, Policy::kMostAxes: blocks of all
// slices turn the same tokens, and those of the first one write.
//
// The sizes of the call alone decide who sums what, in which order. No atomics.
#pragma once

#include "core/rotary.h"
#include "cuda/rotary_plan.cuh"

namespace posenc::cuda {

struct RotaryGradientPlan : RotaryPlan {
  HeadSteps x;
  int64_t rounds = 1;          // of threads_y tokens each, that a piece has
  int64_t all_rounds = 0;      // of all pieces
  int64_t rotated_blocks = 0;  // of the vector blocks, those with pairs
  int64_t slice_pieces = 1;    // pieces_y of each slice of the axes
  bool positions = false;      // have a gradient

  // Partial sums: frequencies [frequency_parts, terms, heads, pairs], then positions
  // [position_parts, axes, rows].
  int64_t frequency_parts = 0, position_parts = 0;
};

struct RotaryGradientParameters {
  RotaryGradientArgs args;
  RotaryGradientPlan plan;
};

template <typename T, int kVector, bool kInterleaved>
class RotaryGradientThread : public RotaryBlock<T, kVector, kInterleaved> {
  using Block = RotaryBlock<T, kVector, kInterleaved>;
  using Block::args_, Block::take, Block::partner, Block::threads, Block::thread, Block::x_,
      Block::y_, Block::z_, Block::block_pairs_, Block::first_pair_, Block::group_;
  using typename Block::Number, typename Block::Next, typename Block::Turned;

 public:
  using Block::kPairs;
  static constexpr int kHeads = Policy::kGradientHeads;
  using Partial = Number;

  POSENC_HD RotaryGradientThread(const RotaryGradientParameters& parameters, char* shared, int x,
                                 int y, int z)
      : Block(parameters.args.turned, parameters.plan, shared, x, y, z),
        gradient_(parameters.args),
        plan_(parameters.plan) {}

  // Takes up a piece. What can be had again from its number is not kept in registers.
  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    piece_x_ = piece_x;
    if constexpr (kSlices) {
      slice_ = divide(piece_y, plan_.slice_pieces);
      piece_y -= slice_ * plan_.slice_pieces;
    }
    piece_y_ = piece_y;
    if (plan_.narrow) {
      this->template take_heads<int32_t>(piece_y);
    } else {
      this->template take_heads<int64_t>(piece_y);
    }
    this->read_frequency();
  }

  POSENC_HD void frequencies() {
    Block::frequencies();
    const int count = static_cast<int>(terms()) * block_pairs_;
    for (int i = thread(); i < count; i += threads()) frequency_sums()[i] = 0;
  }

  POSENC_HD int rounds() const {
    return static_cast<int>(min64(plan_.rounds, plan_.all_rounds - piece_x_ * plan_.rounds));
  }

  // Steps of the piece, the first one being -1. In a step r, between two barriers, a round r is
  // turned; the next one's first heads are requested and its angles computed; the last one's cross
  // products are summed up; and sums over pairs, of the one before it, are written. What one step
  // leaves for the next lies in one of two buffers.
  POSENC_HD int steps() const { return rounds() + (plan_.positions ? 2 : 1); }

  POSENC_HD void step(int r) {
    if (is_round(r)) rotate(r);
    if (is_round(r + 1)) {
      request(r + 1);
      // The position is not kept for it, as the forward does: there are no registers for that.
      Block::template angles<false>(this->row_position(), buffer(r + 1));
    }
    if (is_round(r)) stage_positions(r);
    if (is_round(r - 1)) {
      sum_tokens(r - 1);
      if (plan_.positions) sum_pairs(r - 1);
    }
    if (plan_.positions && is_round(r - 2)) write_positions(r - 2);
  }

  // Frequencies of the piece; what a thread has summed itself.
  POSENC_HD void finish() {
    const int64_t head_block = divide(this->first_head_, plan_.threads_z);
    Number* const to =
        partials() + (piece_x_ * plan_.head_blocks + head_block) * gradient_.frequency_count();
    for (int term = 0; term < terms(); ++term) {
      for (int i = thread(); i < block_pairs_; i += threads()) {
        if (kSlices && !sums_up(i)) continue;
        const int64_t row = (this->term(0) + term) * args_.inv_freq.heads + group_;
        const int64_t at = row * args_.pairs + first_pair_ + i;
        write_packet<Number, 1>({{frequency_sums()[term * block_pairs_ + i]}}, to + at);
      }
    }
  }

  static size_t shared_bytes(const RotaryArgs& args, int64_t vectors, const RotaryPlan& plan) {
    const int64_t pairs = vectors * kPairs;
    const int64_t terms = min64(args.inv_freq.terms(), Policy::kMostAxes);
    const int64_t axes =
        args.axis_map.data != nullptr ? min64(args.axis_map.axes, Policy::kMostAxes) : terms;
    // The second buffer of angles, and two of the rest.
    const int64_t numbers = terms * pairs + 2 * plan.threads_y * pairs +
                            2 * plan.threads_z * plan.threads_y * pairs +
                            2 * axes * plan.threads_y * (1 + plan.threads_x);
    return Block::shared_bytes(args, vectors, plan) + sizeof(Number) * static_cast<size_t>(numbers);
  }

 private:
  // Whether there may be several slices.
  static constexpr bool kSlices = kVector == 1;

  static POSENC_HD int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

  POSENC_HD bool is_round(int round) const { return round >= 0 && round < rounds(); }
  static POSENC_HD int buffer(int round) { return round & 1; }

  // Takes up the tokens of a round and requests their first heads, which arrive while those of the
  // round before are summed up.
  POSENC_HD void request(int round) {
    if (plan_.narrow) {
      take_row<int32_t>(round);
    } else {
      take_row<int64_t>(round);
    }
    if (this->working_ && this->rotates_) read(0);
  }

  // The gradient of x; cross products to shared memory.
  POSENC_HD void rotate(int round) {
    if (!this->working_) return;
    if (!this->rotates_) {
      if (writes()) this->copy(in_, out_);
      return;
    }
    const int at = y_ * block_pairs_ + x_ * kPairs;
    const auto c = kept_packet<Number, kPairs>(this->cosines(buffer(round)) + at);
    const auto s = kept_packet<Number, kPairs>(this->sines(buffer(round)) + at);
    const HeadStrides &q = args_.tensors[0].out_strides, &k = args_.tensors[1].out_strides;
    const int heads = this->heads(), q_heads = this->q_heads();
    Packet<Number, kPairs> sum{};
    // Unrolled, this loop and that over `radians` below take more registers than there are.
#pragma unroll 1
    for (int head = 0; head < heads; head += kHeads) {
      if (head > 0) read(head);
      request_heads(head + kHeads);
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (head + i >= heads) continue;
        const bool of_q = head + i < q_heads;
        const int second = kInterleaved ? 0 : i;
        const Turned y =
            Block::template turn<false>(Block::pairs_of(first_[i], second_[second]), c, s);
        T* const to = Block::at(args_.tensors[0].out, take(out_, plan_.out, of_q));
        if (writes()) Block::write(y, to, partner(args_.half_block, q, k, of_q));
        const Turned x = Block::pairs_of(first_of_x_[i], second_of_x_[second]);
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          sum.numbers[j] = multiply_add(x.a[j], y.b[j], sum.numbers[j]);
          sum.numbers[j] = multiply_add(-x.b[j], y.a[j], sum.numbers[j]);
        }
      }
    }
    keep_packet<Number, kPairs>(sum, turned(round) + z_ * plan_.threads_y * block_pairs_ + at);
  }

  // Axes are counted from the first one of the slice.
  POSENC_HD int64_t first_axis() const { return kSlices ? slice_ * Policy::kMostAxes : 0; }
  POSENC_HD int axes() const {
    const int64_t rest = gradient_.position_axes() - first_axis();
    return static_cast<int>(kSlices ? min64(rest, Policy::kMostAxes) : rest);
  }
  POSENC_HD bool writes() const { return !kSlices || slice_ == 0; }

  // The frequencies of an axis: among the sums of the slice, and in inv_freq.
  POSENC_HD int sum_of(int axis) const { return args_.axis_map.data != nullptr ? 0 : axis; }
  POSENC_HD int64_t term(int axis) const {
    return args_.axis_map.data != nullptr ? 0 : first_axis() + axis;
  }

  POSENC_HD void stage_positions(int round) {
    for (int i = thread(); i < axes() * plan_.threads_y; i += threads()) {
      const int axis = i / plan_.threads_y, token = i - axis * plan_.threads_y;
      if (token >= tokens(round)) continue;
      const int64_t row = first_row(round) + token;
      const int64_t batch = divide(row, args_.tokens);
      positions(round)[i] = args_.positions.template number_at<Number>(
          batch * args_.position_batch_stride +
          (row - batch * args_.tokens) * args_.position_token_stride +
          (first_axis() + axis) * args_.positions.axis_stride);
    }
  }

  // Over the threads that have heads of a token: the gradient of its i-th angle.
  POSENC_HD Number of_angle(int round, int token, int i) const {
    const int stride = plan_.threads_y * block_pairs_;
    const Number* const products = turned(round) + token * block_pairs_ + i;
    Number sum = 0;
    for (int z = 0; z < plan_.threads_z; ++z) sum += products[z * stride];
    return gradient_.inverse ? -sum : sum;
  }

  POSENC_HD void sum_tokens(int round) {
    for (int i = thread(); i < block_pairs_; i += threads()) {
      for (int token = 0; token < tokens(round); ++token) {
        const Number gradient = of_angle(round, token, i);
        for (int axis = 0; axis < axes(); ++axis) {
          if (!driven(i, axis)) continue;
          Number& sum = frequency_sums()[sum_of(axis) * block_pairs_ + i];
          sum = multiply_add(positions(round)[axis * plan_.threads_y + token], gradient, sum);
        }
      }
    }
  }

  // Of the pairs of a vector, for each token and axis of positions.
  POSENC_HD void sum_pairs(int round) {
    if (z_ != 0 || y_ >= tokens(round) || !this->rotates_) return;
#pragma unroll 1
    for (int axis = 0; axis < axes(); ++axis) {
      Number sum = 0;
#pragma unroll 1
      for (int j = 0; j < kPairs; ++j) {
        const int i = x_ * kPairs + j;
        if (!driven(i, axis)) continue;
        const Number radians =
            static_cast<Number>(args_.inv_freq.radians(term(axis), group_, first_pair_ + i));
        sum = multiply_add(radians, of_angle(round, y_, i), sum);
      }
      of_vectors(round)[(axis * plan_.threads_y + y_) * plan_.threads_x + x_] = sum;
    }
  }

  POSENC_HD void write_positions(int round) {
    if (block_pairs_ == 0) return;
    const int64_t head_piece = divide(piece_y_, plan_.vector_blocks);
    const int64_t part =
        head_piece * plan_.rotated_blocks + (piece_y_ - head_piece * plan_.vector_blocks);
    for (int i = thread(); i < axes() * plan_.threads_y; i += threads()) {
      const int axis = i / plan_.threads_y, token = i - axis * plan_.threads_y;
      if (token >= tokens(round)) continue;
      Number sum = 0;
      for (int x = 0; x < block_pairs_ / kPairs; ++x) {
        sum += of_vectors(round)[i * plan_.threads_x + x];
      }
      Number* const to = partials() + plan_.frequency_parts * gradient_.frequency_count() +
                         (part * gradient_.position_axes() + first_axis() + axis) * args_.rows();
      write_packet<Number, 1>({{sum}}, to + first_row(round) + token);
    }
  }

  // The tokens of a round.
  POSENC_HD int64_t first_row(int round) const {
    return (piece_x_ * plan_.rounds + round) * plan_.threads_y;
  }
  POSENC_HD int tokens(int round) const {
    return static_cast<int>(min64(plan_.threads_y, args_.rows() - first_row(round)));
  }

  // Shared memory, after two buffers of angles; of each of what follows two as well, but for the
  // sums of frequencies [terms, block_pairs], which are first: cross products [threads_z,
  // threads_y, block_pairs], positions [axes, threads_y], and sums over pairs [axes, threads_y,
  // threads_x].
  POSENC_HD Number* frequency_sums() const { return this->cosines(2); }
  POSENC_HD Number* turned(int round) const {
    return frequency_sums() + terms() * block_pairs_ +
           buffer(round) * plan_.threads_z * plan_.threads_y * block_pairs_;
  }
  POSENC_HD Number* positions(int round) const {
    return turned(0) + 2 * plan_.threads_z * plan_.threads_y * block_pairs_ +
           buffer(round) * axes() * plan_.threads_y;
  }
  POSENC_HD Number* of_vectors(int round) const {
    return positions(0) + 2 * axes() * plan_.threads_y +
           buffer(round) * axes() * plan_.threads_y * plan_.threads_x;
  }

  POSENC_HD Number* partials() const { return static_cast<Number*>(gradient_.workspace); }
  // Frequencies of a pair, of the slice.
  POSENC_HD int64_t terms() const {
    return kSlices && args_.axis_map.data == nullptr ? axes() : args_.inv_freq.terms();
  }

  // Whether a pair of the block turns with the position along an axis.
  POSENC_HD bool driven(int i, int axis) const {
    return args_.axis_map.data == nullptr ||
           args_.axis_map.clamped(first_pair_ + i) == first_axis() + axis;
  }
  // Whether along an axis of the slice.
  POSENC_HD bool sums_up(int i) const {
    if (args_.axis_map.data == nullptr) return true;
    const int64_t axis = args_.axis_map.clamped(first_pair_ + i) - first_axis();
    return axis >= 0 && axis < axes();
  }

  template <typename Index>
  POSENC_HD void take_row(int round) {
    Block::take_row(static_cast<Index>(first_row(round)) + y_);
    const RotaryTensor &q = args_.tensors[0], &k = args_.tensors[1];
    in_ = this->template first<Index>(this->in_dim(), q.in, q.in_strides, k.in, k.in_strides);
    out_ = this->template first<Index>(this->dim_, q.out, q.out_strides, k.out, k.out_strides);
    x_at_ = this->template first<Index>(this->dim_, gradient_.x[0], gradient_.x_strides[0],
                                        gradient_.x[1], gradient_.x_strides[1]);
  }

  POSENC_HD void read(int head) {
    const RotaryTensor &q = args_.tensors[0], &k = args_.tensors[1];
    const int heads = this->heads(), q_heads = this->q_heads();
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (head + i >= heads) continue;
      const bool of_q = head + i < q_heads;
      const auto read_one = [&](const T* at, int64_t partner, WordOf<T, kVector>& first,
                                WordOf<T, kVector>& second) {
        first = read_word<T, kVector>(at);
        if constexpr (!kInterleaved) second = read_word<T, kVector>(at + partner);
      };
      const int second = kInterleaved ? 0 : i;
      read_one(Block::at(q.in, take(in_, plan_.in, of_q)),
               partner(this->in_half_block(), q.in_strides, k.in_strides, of_q), first_[i],
               second_[second]);
      read_one(Block::at(gradient_.x[0], take(x_at_, plan_.x, of_q)),
               partner(args_.half_block, gradient_.x_strides[0], gradient_.x_strides[1], of_q),
               first_of_x_[i], second_of_x_[second]);
    }
  }

  // What is read next.
  POSENC_HD void request_heads(int head) const {
    const RotaryTensor &q = args_.tensors[0], &k = args_.tensors[1];
    const int heads = this->heads(), q_heads = this->q_heads();
    Next in = in_, x_at = x_at_;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (head + i >= heads) continue;
      const bool of_q = head + i < q_heads;
      const auto request_one = [&](const T* at, int64_t partner) {
        cuda::request(at);
        if constexpr (!kInterleaved) cuda::request(at + partner);
      };
      request_one(Block::at(q.in, take(in, plan_.in, of_q)),
                  partner(this->in_half_block(), q.in_strides, k.in_strides, of_q));
      request_one(Block::at(gradient_.x[0], take(x_at, plan_.x, of_q)),
                  partner(args_.half_block, gradient_.x_strides[0], gradient_.x_strides[1], of_q));
    }
  }

  const RotaryGradientArgs& gradient_;
  const RotaryGradientPlan& plan_;

  int64_t piece_x_, piece_y_, slice_;
  Next in_, out_, x_at_;
  WordOf<T, kVector> first_[kHeads], first_of_x_[kHeads];
  WordOf<T, kVector> second_[kInterleaved ? 1 : kHeads];
  WordOf<T, kVector> second_of_x_[kInterleaved ? 1 : kHeads];
};

// ---------------------------------------------------------------------------------------------
// Partial sums

// out[column] = sum over parts of in[part, column]
struct ColumnSums {
  const void* in = nullptr;
  double* out = nullptr;
  int64_t parts = 0, columns = 0;
};

struct ColumnSumsPlan : LaunchPlan {
  int64_t first_tiles = 0;  // pieces are tiles of columns of the first sums, then of the second
};

struct ColumnSumsParameters {
  ColumnSums sums[2];
  ColumnSumsPlan plan;
};

// A thread takes every kSumRows-th part of a column; the first one of the column adds them up.
template <typename Sum, int kVector, typename Partial>
class ColumnSumsThread {
 public:
  POSENC_HD ColumnSumsThread(const ColumnSumsParameters& parameters, char* shared, int x, int y)
      : parameters_(parameters), shared_(reinterpret_cast<Sum*>(shared)), x_(x), y_(y) {}

  POSENC_HD void sum(int64_t piece) {
    const bool first = piece < parameters_.plan.first_tiles;
    const ColumnSums& a = parameters_.sums[0];
    const ColumnSums& b = parameters_.sums[1];
    const int64_t tile = first ? piece : piece - parameters_.plan.first_tiles;
    const int64_t column = tile * Policy::kSumColumns + x_;
    const int64_t parts = first ? a.parts : b.parts, columns = first ? a.columns : b.columns;
    out_ = column < columns ? (first ? a.out : b.out) + column : nullptr;
    if (out_ == nullptr) return;
    const Partial* const in = static_cast<const Partial*>(first ? a.in : b.in) + column;
    Sum sum = 0;
#pragma unroll 8
    for (int64_t part = y_; part < parts; part += Policy::kSumRows) sum += in[part * columns];
    shared_[y_ * Policy::kSumColumns + x_] = sum;
  }

  POSENC_HD void finish() const {
    if (out_ == nullptr || y_ != 0) return;
    Sum sum = 0;
    for (int y = 0; y < Policy::kSumRows; ++y) sum += shared_[y * Policy::kSumColumns + x_];
    write_packet<Sum, 1>({{sum}}, out_);
  }

 private:
  const ColumnSumsParameters& parameters_;
  Sum* const shared_;
  const int x_, y_;
  Sum* out_;
};

// ---------------------------------------------------------------------------------------------
// On the host: which threads, how many of them

template <typename Visit>
auto visit_rotary_gradient_thread(const RotaryGradientArgs& args, const Visit& visit) {
  RotaryArgs of_x = args.turned;
  for (int i = 0; i < of_x.tensor_count; ++i) {
    of_x.tensors[i].in = args.x[i];
    of_x.tensors[i].in_strides = args.x_strides[i];
  }
  return visit_access<RotaryGradientThread>(
      of_x.dtype,
      [&](int width, bool interleaved) {
        return args.position_axes() <= Policy::kMostAxes && fits(args.turned, width, interleaved) &&
               fits(of_x, width, interleaved);
      },
      visit);
}

// The same for every GPU, as the order of sums follows from it.
template <typename Thread>
RotaryGradientPlan plan_rotary_gradient(const RotaryGradientArgs& args, GridLimit limit = {}) {
  const RotaryArgs& turned = args.turned;
  RotaryGradientPlan plan;
  plan.positions = args.position_sums != nullptr;
  static_cast<RotaryPlan&>(plan) = plan_rotary<Thread>(turned);
  if (plan.pieces_x == 0) return plan;
  plan.x = head_steps(plan, args.x_strides[0], args.x_strides[1], item_size(turned.dtype));
  for (int i = 0; i < turned.tensor_count; ++i) {
    plan.narrow = plan.narrow && fits_in_32_bits(turned, plan, args.x_strides[i]);
  }
  plan.rounds = std::clamp(plan.pieces_x * plan.pieces_y / Policy::kGradientPieces, int64_t{1},
                           Policy::kGradientRounds);
  plan.all_rounds = plan.pieces_x;
  plan.slice_pieces = plan.pieces_y;
  const int64_t slices = divide_up(args.position_axes(), Policy::kMostAxes);
  plan.take_pieces(divide_up(plan.all_rounds, plan.rounds), slices * plan.pieces_y, limit);
  plan.rotated_blocks = divide_up(plan.rotated, plan.threads_x);
  plan.frequency_parts = plan.pieces_x * plan.head_blocks;
  if (plan.positions) plan.position_parts = plan.groups * plan.head_blocks * plan.rotated_blocks;
  return plan;
}

// Bytes of the partial sums, which the workspace has to hold.
inline int64_t partial_bytes(const RotaryGradientArgs& args, const RotaryGradientPlan& plan) {
  const int64_t count = plan.frequency_parts * args.frequency_count() +
                        plan.position_parts * args.position_axes() * args.turned.rows();
  return count * (args.turned.dtype == Dtype::kFloat64 ? 8 : 4);
}

inline ColumnSumsParameters column_sums(const RotaryGradientArgs& args,
                                        const RotaryGradientPlan& plan, GridLimit limit = {}) {
  ColumnSumsParameters parameters;
  const int64_t count = args.frequency_count();
  parameters.sums[0] = {args.workspace, args.frequency_sums, plan.frequency_parts, count};
  if (args.position_sums != nullptr) {
    const int64_t size = args.turned.dtype == Dtype::kFloat64 ? 8 : 4;
    parameters.sums[1] = {
        static_cast<const char*>(args.workspace) + plan.frequency_parts * count * size,
        args.position_sums, plan.position_parts, args.position_axes() * args.turned.rows()};
  }
  ColumnSumsPlan& of_sums = parameters.plan;
  of_sums.first_tiles = divide_up(count, Policy::kSumColumns);
  of_sums.threads_x = Policy::kSumColumns;
  of_sums.threads_y = Policy::kSumRows;
  of_sums.shared_bytes = sizeof(double) * Policy::kSumColumns * Policy::kSumRows;
  of_sums.take_pieces(
      of_sums.first_tiles + divide_up(parameters.sums[1].columns, Policy::kSumColumns), 1, limit);
  return parameters;
}

}  // namespace posenc::cuda
