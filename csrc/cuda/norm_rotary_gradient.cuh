// Gradients of norm and rotation on a GPU: with respect to x and to the weights. This is for calls
// of any kind; those that most models make are norm_rotary_warp_gradient.cuh's. Formulas:
// csrc/cpu/norm_rotary_gradient.cc.
//
//   block     a piece of tokens (x), a head for each warp (y): the same for all its tokens
//   lane      its dims of x, h and dw, as in norm_rotary.cuh
//
// A warp adds dw up over its tokens, in float32, in shared memory; pieces are added in float64 by
// ColumnSumsThread, in their order. No atomics: the same bits every time. Where the mean is over a
// token, a first launch leaves the sums of every head in the workspace.
//
// Of queries that the forward call multiplied by factors of their tokens, g times the factor stands
// for g.
#pragma once

#include "cuda/norm_rotary.cuh"
#include "cuda/rotary_gradient.cuh"

namespace posenc::cuda {

struct NormGradientPlan : NormRotaryPlan {
  int64_t rounds = 1;      // of plan.tokens tokens, in a piece
  bool sums_only = false;  // the first launch
  int64_t parts[2] = {};   // of dw: rows of partial sums, of head_dim numbers each
};

struct NormGradientParameters {
  NormRotaryGradientArgs args;
  NormGradientPlan plan;
};

template <typename T, int kVector>
class NormGradientThread : public NormRotaryBlock<T, kVector> {
  using Block = NormRotaryBlock<T, kVector>;
  using Block::args_, Block::rotary_, Block::plan_, Block::x_, Block::y_;
  using typename Block::Head;

 public:
  using typename Block::Number;
  using Partial = Number;

  POSENC_HD NormGradientThread(const NormGradientParameters& parameters, char* shared, int x, int y)
      : Block(parameters.args.forward, parameters.plan, false, shared, x, y),
        gradient_(parameters.args),
        rounds_(parameters.plan.rounds),
        sums_only_(parameters.plan.sums_only) {}

  // x, h and dw of every warp, and two sums of every lane.
  static size_t shared_bytes(const NormRotaryArgs& args, const NormRotaryPlan& plan) {
    return Block::shared_bytes(args, plan, 3, 2 * kLanes);
  }

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    piece_ = piece_x;
    count_ = piece_y * plan_.threads_y + y_;
    Block::for_own_dims([&](int dim, int /*count*/) {
      weight_row()[dim] = 0;
      weight_row()[dim + 1] = 0;
    });
  }

  POSENC_HD int64_t rounds() const { return rounds_; }
  POSENC_HD int tokens() const { return plan_.tokens; }
  POSENC_HD bool scales_queries() const { return static_cast<bool>(args_.query_scale); }
  POSENC_HD bool turns_x() const { return !args_.norm_first; }
  POSENC_HD bool sums_only() const { return sums_only_; }

  POSENC_HD void angles(int64_t round) { Block::angles(first_row(round), plan_.tokens); }

  POSENC_HD void read(int64_t round, int token) {
    const int64_t row = first_row(round) + token;
    const bool there = row < rotary_.rows() && count_ < plan_.heads;
    at_ = Block::head_of(there ? row : 0, token, there ? count_ : 0, there);
    if (!there) return;
    const RotaryTensor& x = rotary_.tensors[at_.tensor];
    const HeadStrides& strides = gradient_.grad_strides[at_.tensor];
    Block::read_row(static_cast<const T*>(x.in) + Block::place(x.in_strides, at_), x.in_strides.dim,
                    x_row());
    Block::read_row(static_cast<const T*>(gradient_.grads[at_.tensor]) + Block::place(strides, at_),
                    strides.dim, h_row());
    if (!Block::has_factor(at_)) return;
    const Number factor = Block::query_factors()[at_.local_token];
    Block::for_own_dims([&](int dim, int count) {
      for (int i = 0; i < count; ++i) h_row()[dim + i] = h_row()[dim + i] * factor;
    });
  }

  POSENC_HD void turn() const {
    if (!at_.there) return;
    if (args_.norm_first) {
      Block::template turn_row<true>(at_, h_row());
    } else {
      Block::template turn_row<false>(at_, x_row());
    }
  }

  // Of a lane's dims: x x, and u x.
  POSENC_HD void sum() const {
    if (!at_.there) return;
    Number even = 0, odd = 0;
    Block::for_own_dims([&](int dim, int count) {
      even = even + u(dim) * x_row()[dim];
      if (count == 2) odd = odd + u(dim + 1) * x_row()[dim + 1];
    });
    lane_sums()[x_] = Block::lane_sum(x_row(), x_row());
    lane_sums()[kLanes + x_] = even + odd;
  }

  // Of a head of a token, for the second launch.
  POSENC_HD void keep_sums() const {
    if (!at_.there || x_ != 0) return;
    Number* const to = head_sums(at_.tensor, at_.head);
    write_packet<Number, 1>({{Block::tree_sum(lane_sums())}}, to);
    write_packet<Number, 1>({{Block::tree_sum(lane_sums() + kLanes)}}, to + 1);
  }

  // dx in the place of h, and dw.
  POSENC_HD void finish() const {
    if (!at_.there) return;
    Number squares, products;
    int64_t count = rotary_.head_dim;
    if (args_.over_token) {
      const int64_t heads = rotary_.tensors[at_.tensor].heads;
      squares = products = 0;
      for (int64_t head = 0; head < heads; ++head) {
        const Number* const sums = head_sums(at_.tensor, head);
        squares = squares + read_packet<Number, 1>(sums).numbers[0];
        products = products + read_packet<Number, 1>(sums + 1).numbers[0];
      }
      count *= heads;
    } else {
      squares = Block::tree_sum(lane_sums());
      products = Block::tree_sum(lane_sums() + kLanes);
    }
    const Number r = Block::inverse_root(squares, count);
    const Number pull = r * r * (products / static_cast<Number>(count));
    Block::for_own_dims([&](int dim, int dims) {
      for (int i = dim; i < dim + dims; ++i) {
        const Number x = x_row()[i], h = h_row()[i];
        weight_row()[i] = multiply_add(h, x * r, weight_row()[i]);
        h_row()[i] = r * multiply_add(x, -pull, u(i));
      }
    });
  }

  POSENC_HD void turn_back() const {
    if (at_.there) Block::template turn_row<true>(at_, h_row());
  }

  POSENC_HD void write() const {
    if (!at_.there) return;
    const RotaryTensor& x = rotary_.tensors[at_.tensor];
    Block::write_row(h_row(), static_cast<T*>(x.out) + Block::place(x.out_strides, at_),
                     x.out_strides.dim);
  }

  // The sums of a head over the tokens of the piece.
  POSENC_HD void write_weights() const {
    if (count_ >= plan_.heads) return;
    const Head at = Block::head_of(0, 0, count_, true);
    if (gradient_.weight_sums[at.tensor] == nullptr) return;
    const int64_t heads = rotary_.tensors[at.tensor].heads;
    Number* const to = partial(at.tensor) + (piece_ * heads + at.head) * rotary_.head_dim;
    Block::for_own_dims([&](int dim, int count) {
      for (int i = dim; i < dim + count; ++i) write_packet<Number, 1>({{weight_row()[i]}}, to + i);
    });
  }

 private:
  POSENC_HD int64_t first_row(int64_t round) const {
    return (piece_ * rounds_ + round) * plan_.tokens;
  }

  POSENC_HD Number u(int64_t dim) const {
    return h_row()[dim] * Block::factor(at_.tensor, at_.head, dim);
  }

  POSENC_HD Number* row(int which) const {
    return Block::of_warps() + (y_ * 3 + which) * plan_.row_numbers;
  }
  POSENC_HD Number* x_row() const { return row(0); }
  POSENC_HD Number* h_row() const { return row(1); }
  POSENC_HD Number* weight_row() const { return row(2); }
  POSENC_HD Number* lane_sums() const {
    return Block::of_warps() + plan_.threads_y * 3 * plan_.row_numbers + y_ * 2 * kLanes;
  }

  // The workspace: the sums of q's weights, [pieces, heads, head_dim], of k's, then two of every
  // head of every token.
  POSENC_HD Number* partial(int tensor) const {
    const int64_t before = tensor == 0 ? 0 : rotary_.tensors[0].heads;
    return static_cast<Number*>(gradient_.workspace) + plan_.pieces_x * before * rotary_.head_dim;
  }
  POSENC_HD Number* head_sums(int tensor, int64_t head) const {
    const int64_t count = head + (tensor == 0 ? 0 : rotary_.tensors[0].heads);
    return static_cast<Number*>(gradient_.workspace) +
           plan_.pieces_x * plan_.heads * rotary_.head_dim + 2 * (at_.row * plan_.heads + count);
  }

  const NormRotaryGradientArgs& gradient_;
  const int64_t rounds_;
  const bool sums_only_;
  int64_t piece_, count_;
  Head at_;
};

// ---------------------------------------------------------------------------------------------
// On the host: which threads, how many of them

template <typename Visit>
auto visit_norm_gradient_thread(const NormRotaryGradientArgs& args, const Visit& visit) {
  bool two = fits_two(args.forward);
  for (int i = 0; i < 2; ++i) {
    two =
        two && fits_two(args.grads[i], args.grad_strides[i], item_size(args.forward.rotary.dtype));
  }
  return visit_norm_thread<NormGradientThread>(args.forward.rotary.dtype, two, visit);
}

// The same for every GPU, as the order of sums follows from it.
template <typename Thread>
NormGradientPlan plan_norm_gradient(const NormRotaryGradientArgs& args, GridLimit limit = {}) {
  const RotaryArgs& rotary = args.forward.rotary;
  NormGradientPlan plan;
  plan.heads = rotary.tensors[0].heads + rotary.tensors[1].heads;
  if (rotary.rows() == 0 || plan.heads == 0) return plan;
  fit_shared_memory(args.forward, plan, Policy::kNormTokens, [&](const NormRotaryPlan& of) {
    return Thread::shared_bytes(args.forward, of);
  });
  plan.rounds = divide_up(args.tokens_of_piece(), plan.tokens);
  plan.take_pieces(divide_up(rotary.rows(), plan.rounds * plan.tokens),
                   divide_up(plan.heads, plan.threads_y), limit);
  for (int i = 0; i < 2; ++i) plan.parts[i] = plan.pieces_x * rotary.tensors[i].heads;
  return plan;
}

// Bytes of what the workspace has to hold.
inline int64_t workspace_bytes(const NormRotaryGradientArgs& args, const NormGradientPlan& plan) {
  const RotaryArgs& rotary = args.forward.rotary;
  const int64_t sums = args.forward.over_token ? 2 * rotary.rows() * plan.heads : 0;
  const int64_t numbers = (plan.parts[0] + plan.parts[1]) * rotary.head_dim + sums;
  return numbers * (rotary.dtype == Dtype::kFloat64 ? 8 : 4);
}

// Of weights for all heads, the sums of every head are a part.
inline ColumnSumsParameters weight_sums(const NormRotaryGradientArgs& args,
                                        const NormGradientPlan& plan, GridLimit limit = {}) {
  const RotaryArgs& rotary = args.forward.rotary;
  ColumnSumsParameters parameters;
  const int64_t size = rotary.dtype == Dtype::kFloat64 ? 8 : 4;
  int64_t before = 0;
  for (int i = 0; i < 2; ++i) {
    const int64_t numbers = plan.parts[i] * rotary.head_dim;
    if (args.weight_sums[i] != nullptr) {
      const int64_t columns = args.weight_count(i);
      parameters.sums[i] = {static_cast<const char*>(args.workspace) + before * size,
                            args.weight_sums[i], columns == 0 ? 0 : numbers / columns, columns};
    }
    before += numbers;
  }
  ColumnSumsPlan& of_sums = parameters.plan;
  of_sums.first_tiles = divide_up(parameters.sums[0].columns, Policy::kSumColumns);
  of_sums.threads_x = Policy::kSumColumns;
  of_sums.threads_y = Policy::kSumRows;
  of_sums.shared_bytes = sizeof(double) * Policy::kSumColumns * Policy::kSumRows;
  of_sums.take_pieces(
      of_sums.first_tiles + divide_up(parameters.sums[1].columns, Policy::kSumColumns), 1, limit);
  return parameters;
}

}  // namespace posenc::cuda
