// Gradients of norm and rotation on a GPU, with respect to x and to the weights, of the calls whose
// forward is norm_rotary_warp.cuh's. All else is done by norm_rotary_gradient.cuh. Formulas:
// csrc/cpu/norm_rotary_gradient.cc.
//
//   block     a piece of tokens (x), kHeads heads side by side for each warp (y)
//   lane      as in norm_rotary_warp.cuh; the sums of its dims of dw stay in its registers
//
// For each token: angles are computed while the words of the next token are on their way; g is
// turned back, both sums of a head are added across lanes, dx is written. Nothing waits for another
// warp. Sums of dw are those of norm_rotary_gradient.cuh, in the same workspace and order.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/norm_rotary_gradient.cuh"
#include "cuda/norm_rotary_warp.cuh"

namespace posenc::cuda {

template <typename T, int kVector, int kDims>
class NormGradientWarpThread : public NormRotaryWarp<T, kVector, kDims> {
  using Warp = NormRotaryWarp<T, kVector, kDims>;
  using Warp::args_, Warp::rotary_, Warp::plan_, Warp::x_, Warp::y_;
  using Warp::kHalf, Warp::kSums, Warp::dim;

 public:
  using typename Warp::Number;
  using Partial = Number;
  using Warp::kHeads, Warp::kLanesOfHead;

  static constexpr int kAllSums = 2 * kSums;

  POSENC_HD NormGradientWarpThread(const NormGradientParameters& parameters, char* shared, int x,
                                   int y)
      : Warp(parameters.args.forward, parameters.plan, false, shared, x, y),
        gradient_(parameters.args),
        tokens_(parameters.plan.rounds) {}

  static int64_t groups(int64_t heads) { return divide_up(heads, kHeads); }

  POSENC_HD int64_t tokens() const { return tokens_; }

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    piece_ = piece_x;
    const int q_groups = (static_cast<int>(rotary_.tensors[0].heads) + kHeads - 1) / kHeads;
    const int group = static_cast<int>(piece_y * plan_.threads_y + y_);
    tensor_ = group < q_groups ? 0 : 1;
    head_ = (tensor_ == 0 ? group : group - q_groups) * kHeads + x_ / kLanesOfHead;
    is_head_ = head_ < rotary_.tensors[tensor_].heads;
#pragma unroll
    for (int j = 0; j < kVector; ++j) near_weights_[j] = far_weights_[j] = 0;
    Warp::keep_weights();
    request(0);
  }

  // What the next read() takes, if there is such a token.
  POSENC_HD void request(int64_t token) const {
    for_words(token, [&](const T* x, const T* g) {
      cuda::request(x);
      cuda::request(x + kHalf);
      cuda::request(g);
      cuda::request(g + kHalf);
    });
  }

  POSENC_HD void angles(int64_t token) const {
    const int64_t row = piece_ * tokens_ + token;
    if (row >= rotary_.rows()) return;
    const int64_t batch = divide(row, rotary_.tokens);
    Warp::keep_angles(batch, row - batch * rotary_.tokens);
  }

  POSENC_HD void read(int64_t token) {
    there_ = false;
    for_words(token, [&](const T* x, const T* g) {
      there_ = true;
      near_x_ = read_word<T, kVector>(x);
      far_x_ = read_word<T, kVector>(x + kHalf);
      near_ = read_word<T, kVector>(g);
      far_ = read_word<T, kVector>(g + kHalf);
    });
  }

  // h in the place of g; of x x, and of u x.
  POSENC_HD void sum() {
    const Packet<T, kVector> near_g = unpack<T, kVector>(near_), far_g = unpack<T, kVector>(far_);
    const Packet<T, kVector> near_x = unpack<T, kVector>(near_x_);
    const Packet<T, kVector> far_x = unpack<T, kVector>(far_x_);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      near_h_[j] = to_real(near_g.numbers[j]);
      far_h_[j] = to_real(far_g.numbers[j]);
      Warp::turn_pair(near_h_[j], far_h_[j], *kept(Warp::cosines() + dim() + j),
                      -*kept(Warp::sines() + dim() + j));
    }
    Warp::partial_sums([&](int j) { return square(near_x.numbers[j]); },
                       [&](int j) { return square(far_x.numbers[j]); }, sums_);
    // From 0, so that no sum is a negative zero.
    Warp::partial_sums(
        [&](int j) { return 0 + near_h_[j] * factor(j) * to_real(near_x.numbers[j]); },
        [&](int j) { return 0 + far_h_[j] * factor(kHalf + j) * to_real(far_x.numbers[j]); },
        sums_ + kSums);
  }

  // What is added across kLanesOfHead lanes.
  POSENC_HD Number* sums() { return sums_; }

  // dx, and dw.
  POSENC_HD void finish(int64_t token) {
    const Number r = Warp::inverse_root(Warp::total(sums_), kDims);
    const Number pull = r * r * (Warp::total(sums_ + kSums) / static_cast<Number>(kDims));
    if (!there_) return;
    const Packet<T, kVector> near_x = unpack<T, kVector>(near_x_);
    const Packet<T, kVector> far_x = unpack<T, kVector>(far_x_);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      near_h_[j] =
          gradient(to_real(near_x.numbers[j]), near_h_[j], factor(j), r, pull, near_weights_[j]);
      far_h_[j] = gradient(to_real(far_x.numbers[j]), far_h_[j], factor(kHalf + j), r, pull,
                           far_weights_[j]);
    }
    const RotaryTensor& x = rotary_.tensors[tensor_];
    T* const to = static_cast<T*>(x.out) + place(x.out_strides, token) + dim();
    write_packet<T, kVector>(round_packet<T, kVector>(near_h_), to);
    write_packet<T, kVector>(round_packet<T, kVector>(far_h_), to + kHalf);
  }

  // The sums of a head over the tokens of the piece.
  POSENC_HD void write_weights() const {
    if (!is_head_ || gradient_.weight_sums[tensor_] == nullptr) return;
    const int64_t before = tensor_ == 0 ? 0 : rotary_.tensors[0].heads;
    const int64_t row = plan_.pieces_x * before + piece_ * rotary_.tensors[tensor_].heads + head_;
    Number* const to = static_cast<Number*>(gradient_.workspace) + row * kDims + dim();
#pragma unroll
    for (int j = 0; j < kVector; j += 4) {
      write_packet<Number, 4>(four(near_weights_ + j), to + j);
      write_packet<Number, 4>(four(far_weights_ + j), to + kHalf + j);
    }
  }

 private:
  static POSENC_HD Number square(T x) {
    const Number real = to_real(x);
    return real * real;
  }

  static POSENC_HD const Number* kept(const Number* number) {
    return shared_address("kept", number);
  }

  static POSENC_HD Packet<Number, 4> four(const Number* numbers) {
    return {{numbers[0], numbers[1], numbers[2], numbers[3]}};
  }

  // Of the lane's j-th dim.
  POSENC_HD Number factor(int j) const { return *kept(Warp::weights(tensor_) + dim() + j); }

  static POSENC_HD Number gradient(Number x, Number h, Number factor, Number r, Number pull,
                                   Number& weight) {
    weight = multiply_add(h, x * r, weight);
    return r * multiply_add(x, -pull, h * factor);
  }

  POSENC_HD int64_t place(const HeadStrides& strides, int64_t token) const {
    const int64_t row = piece_ * tokens_ + token, batch = divide(row, rotary_.tokens);
    return batch * strides.batch + (row - batch * rotary_.tokens) * strides.token +
           head_ * strides.head;
  }

  // visit(x, g), of the lane's dims of a token.
  template <typename Visit>
  POSENC_HD void for_words(int64_t token, const Visit& visit) const {
    if (!is_head_ || token >= tokens_ || piece_ * tokens_ + token >= rotary_.rows()) return;
    const RotaryTensor& x = rotary_.tensors[tensor_];
    visit(static_cast<const T*>(x.in) + place(x.in_strides, token) + dim(),
          static_cast<const T*>(gradient_.grads[tensor_]) +
              place(gradient_.grad_strides[tensor_], token) + dim());
  }

  const NormRotaryGradientArgs& gradient_;
  const int64_t tokens_;
  int64_t piece_ = 0;
  int tensor_ = 0, head_ = 0;
  bool is_head_ = false, there_ = false;
  WordOf<T, kVector> near_x_, far_x_, near_, far_;
  Number near_h_[kVector], far_h_[kVector], near_weights_[kVector], far_weights_[kVector];
  Number sums_[kAllSums];
};

// ---------------------------------------------------------------------------------------------
// On the host: which calls, how many warps

inline bool takes_warps(const NormRotaryGradientArgs& args) {
  bool fits = args.forward.norm && takes_warps(args.forward);
  for (int i = 0; i < 2; ++i) {
    fits = fits &&
           fits_words(args.grads[i], args.grad_strides[i], item_size(args.forward.rotary.dtype));
  }
  return fits;
}

// The same for every GPU, and the pieces are those of plan_norm_gradient.
template <typename Thread>
NormGradientPlan plan_norm_gradient_warps(const NormRotaryGradientArgs& args,
                                          GridLimit limit = {}) {
  const RotaryArgs& rotary = args.forward.rotary;
  NormGradientPlan plan;
  plan.heads = rotary.tensors[0].heads + rotary.tensors[1].heads;
  if (rotary.rows() == 0 || plan.heads == 0) return plan;
  const int64_t groups =
      Thread::groups(rotary.tensors[0].heads) + Thread::groups(rotary.tensors[1].heads);
  const int64_t blocks = divide_up(groups, Policy::kThreads / kLanes);
  plan.own_angles = true;
  plan.threads_x = kLanes;
  plan.threads_y = static_cast<int>(divide_up(groups, blocks));
  plan.shared_bytes = sizeof(typename Thread::Number) * Thread::kNumbersOfWarp *
                      static_cast<size_t>(plan.threads_y);
  plan.rounds = args.tokens_of_piece();
  plan.take_pieces(divide_up(rotary.rows(), plan.rounds), blocks, limit);
  return plan;
}

// visit(type of the thread, its plan) for the launch of a call.
template <typename Visit>
auto visit_norm_gradient(const NormRotaryGradientArgs& args, GridLimit limit, const Visit& visit) {
  if (takes_warps(args)) {
    return visit_warp_thread<NormGradientWarpThread>(args.forward.rotary, [&](auto* type) {
      using Thread = std::remove_pointer_t<decltype(type)>;
      return visit(type, plan_norm_gradient_warps<Thread>(args, limit));
    });
  }
  return visit_norm_gradient_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return visit(type, plan_norm_gradient<Thread>(args, limit));
  });
}

}  // namespace posenc::cuda
