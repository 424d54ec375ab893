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

template <typename T, int kVector, int kDims, int kPairs, bool kInterleaved>
class NormGradientWarpThread : public NormRotaryWarp<T, kVector, kDims, kPairs, kInterleaved> {
  using Warp = NormRotaryWarp<T, kVector, kDims, kPairs, kInterleaved>;
  using Warp::args_, Warp::rotary_, Warp::plan_, Warp::x_, Warp::y_;
  using Warp::kUnit, Warp::kWords, Warp::kSums, Warp::dim;

 public:
  using typename Warp::Number;
  using Partial = Number;
  using Warp::kHeads, Warp::kLanesOfHead;

  // Of a head, that a lane has at most: there are no registers for more.
  static constexpr int kMostNumbers = 16;
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
    for_each_number([&](int word, int j) { weights_[word][j] = 0; });
    Warp::keep_weights();
    request(0);
  }

  // What the next read() takes, if there is such a token.
  POSENC_HD void request(int64_t token) const {
    for_words(token, [&](int /*word*/, const T* x, const T* g) {
      cuda::request(x);
      cuda::request(g);
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
    for_words(token, [&](int word, const T* x, const T* g) {
      there_ = true;
      x_words_[word] = read_word<T, kVector>(x);
      g_words_[word] = read_word<T, kVector>(g);
    });
  }

  // h in the place of g; of x x, and of u x.
  POSENC_HD void sum() {
    for_each_number([&](int word, int j) {
      h_[word][j] = to_real(unpack<T, kVector>(g_words_[word]).numbers[j]);
    });
    Warp::for_turned_words([&](int word, int partner, int pair) {
      constexpr int kTurned = kInterleaved ? kVector / 2 : kVector;
#pragma unroll
      for (int j = 0; j < kTurned; ++j) {
        Warp::turn_pair(h_[word][kInterleaved ? 2 * j : j],
                        h_[partner][kInterleaved ? 2 * j + 1 : j],
                        *kept(Warp::cosines() + pair + j), -*kept(Warp::sines() + pair + j));
      }
    });
    Warp::partial_sums([&](int word, int j) { return x(word, j) * x(word, j); }, sums_);
    // From 0, so that no sum is a negative zero.
    Warp::partial_sums(
        [&](int word, int j) { return 0 + h_[word][j] * factor(word, j) * x(word, j); },
        sums_ + kSums);
  }

  // What is added across kLanesOfHead lanes.
  POSENC_HD Number* sums() { return sums_; }

  // dx, and dw.
  POSENC_HD void finish(int64_t token) {
    const Number r = Warp::inverse_root(Warp::total(sums_), kDims);
    const Number pull = r * r * (Warp::total(sums_ + kSums) / static_cast<Number>(kDims));
    if (!there_) return;
    for_each_number([&](int word, int j) {
      const Number h = h_[word][j];
      weights_[word][j] = multiply_add(h, x(word, j) * r, weights_[word][j]);
      h_[word][j] = r * multiply_add(x(word, j), -pull, h * factor(word, j));
    });
    const RotaryTensor& x = rotary_.tensors[tensor_];
    T* const to = static_cast<T*>(x.out) + place(x.out_strides, token) + dim();
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      write_packet<T, kVector>(round_packet<T, kVector>(h_[word]), to + word * kUnit);
    }
  }

  // The sums of a head over the tokens of the piece.
  POSENC_HD void write_weights() const {
    if (!is_head_ || gradient_.weight_sums[tensor_] == nullptr) return;
    const int64_t before = tensor_ == 0 ? 0 : rotary_.tensors[0].heads;
    const int64_t row = plan_.pieces_x * before + piece_ * rotary_.tensors[tensor_].heads + head_;
    Number* const to = static_cast<Number*>(gradient_.workspace) + row * kDims + dim();
    constexpr int kAtOnce = kVector < 4 ? kVector : 4;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
#pragma unroll
      for (int j = 0; j < kVector; j += kAtOnce) {
        Packet<Number, kAtOnce> some;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) some.numbers[i] = weights_[word][j + i];
        write_packet<Number, kAtOnce>(some, to + word * kUnit + j);
      }
    }
  }

 private:
  static POSENC_HD const Number* kept(const Number* number) {
    return shared_address("kept", number);
  }

  // visit(word, j) for each of the lane's numbers of a head.
  template <typename Visit>
  static POSENC_HD void for_each_number(const Visit& visit) {
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) visit(word, j);
    }
  }

  POSENC_HD Number x(int word, int j) const {
    return to_real(unpack<T, kVector>(x_words_[word]).numbers[j]);
  }
  POSENC_HD Number factor(int word, int j) const {
    return *kept(Warp::weights(tensor_) + word * kUnit + dim() + j);
  }

  POSENC_HD int64_t place(const HeadStrides& strides, int64_t token) const {
    const int64_t row = piece_ * tokens_ + token, batch = divide(row, rotary_.tokens);
    return batch * strides.batch + (row - batch * rotary_.tokens) * strides.token +
           head_ * strides.head;
  }

  // visit(word, x, g), of the lane's words of a token.
  template <typename Visit>
  POSENC_HD void for_words(int64_t token, const Visit& visit) const {
    if (!is_head_ || token >= tokens_ || piece_ * tokens_ + token >= rotary_.rows()) return;
    const RotaryTensor& x = rotary_.tensors[tensor_];
    const T* const x_at = static_cast<const T*>(x.in) + place(x.in_strides, token) + dim();
    const T* const g_at = static_cast<const T*>(gradient_.grads[tensor_]) +
                          place(gradient_.grad_strides[tensor_], token) + dim();
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      visit(word, x_at + word * kUnit, g_at + word * kUnit);
    }
  }

  const NormRotaryGradientArgs& gradient_;
  const int64_t tokens_;
  int64_t piece_ = 0;
  int tensor_ = 0, head_ = 0;
  bool is_head_ = false, there_ = false;
  WordOf<T, kVector> x_words_[kWords], g_words_[kWords];
  Number h_[kWords][kVector], weights_[kWords][kVector];
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
