// Gradients of norm and rotation on a GPU, with respect to x and to the weights, of the calls whose
// forward is norm_rotary_warp.cuh's. All else is done by norm_rotary_gradient.cuh. Formulas:
// csrc/cpu/norm_rotary_gradient.cc.
//
//   block     a piece of tokens, which its warps take in turns
//   warp      a token: its heads of q, then of k, kHeads side by side in a step
//   lane      as in norm_rotary_warp.cuh; what its heads give to dw stays with it: of the tensor at
//             hand in registers, of the other one in shared memory
//
// Once a token angles are computed, for all of its heads. In a step g is turned back, both sums of
// a head are added across lanes, dx is written; the next step's words are on their way meanwhile.
// At the end of a piece the lanes that have the same dims are added up: a row of partial sums for
// each warp and tensor. Once a piece has begun, nothing waits for another warp.
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
  static constexpr int kLaneWeights = kWords * kVector;

  // Shared memory of a block: frequencies in turns, weights, and of each warp angles and the sums
  // for dw of the tensor that is not at hand.
  static constexpr int kNumbersOfWarp = Warp::kAngles + kLaneWeights * kLanes;
  static POSENC_HD size_t block_bytes(const NormRotaryArgs& args) {
    return Warp::turns_bytes(args) + Warp::kWeights * sizeof(Number);
  }
  static size_t shared_bytes(const NormRotaryArgs& args, int warps) {
    return block_bytes(args) + static_cast<size_t>(warps * kNumbersOfWarp) * sizeof(Number);
  }

  POSENC_HD NormGradientWarpThread(const NormGradientParameters& parameters, char* shared, int x,
                                   int y)
      : Warp(parameters.args.forward, parameters.plan, false,
             reinterpret_cast<Number*>(shared + block_bytes(parameters.args.forward)) +
                 y * kNumbersOfWarp,
             reinterpret_cast<Number*>(shared + Warp::turns_bytes(parameters.args.forward)), x, y),
        gradient_(parameters.args),
        tokens_(static_cast<int>(parameters.plan.rounds)),
        turns_(reinterpret_cast<Turns*>(shared)) {}

  POSENC_HD int tokens() const { return tokens_; }

  POSENC_HD void begin(int64_t piece) {
    piece_ = static_cast<int>(piece);
    q_steps_ = steps_of(0);
    steps_ = q_steps_ + steps_of(1);
    for_each_number([&](int word, int j) { weights_[word][j] = 0; });
    swap_weights(true);
    Warp::keep_turns(turns_, Warp::thread(), plan_.threads());
    Warp::keep_weights(Warp::thread(), plan_.threads());
  }

  // Heads of the warp's token are done in so many steps.
  POSENC_HD int steps() const { return steps_; }

  // Takes up a token of the piece, and asks for its first heads.
  POSENC_HD void begin_token(int token) {
    const int row = (piece_ * tokens_ + token) * plan_.threads_y + y_;
    const int tokens = static_cast<int>(rotary_.tokens);
    there_ = row < static_cast<int>(rotary_.rows());
    batch_ = there_ ? row / tokens : 0;
    token_ = there_ ? row - batch_ * tokens : 0;
    take(0);
    request_words();
  }

  POSENC_HD void angles() const {
    if (there_) Warp::keep_angles(batch_, token_, turns_);
  }

  // Heads of q, then of k.
  POSENC_HD void take(int step) {
    if (step >= steps_) {
      if (tensor_ == 1) swap_weights();
      tensor_ = 0;
      return;
    }
    const int tensor = step < q_steps_ ? 0 : 1;
    const RotaryTensor& x = rotary_.tensors[tensor];
    const HeadStrides& of_g = gradient_.grad_strides[tensor];
    if (step == 0 || step == q_steps_) {
      if (tensor != tensor_) swap_weights();
      tensor_ = tensor;
      const int head = x_ / kLanesOfHead;
      left_ = there_ ? static_cast<int>(x.heads) - head : 0;
      x_at_ = static_cast<const T*>(x.in) + place(x.in_strides, head);
      g_at_ = static_cast<const T*>(gradient_.grads[tensor]) + place(of_g, head);
      out_at_ = static_cast<T*>(x.out) + place(x.out_strides, head);
    } else {
      left_ -= kHeads;
      x_at_ += kHeads * x.in_strides.head;
      g_at_ += kHeads * of_g.head;
      out_at_ += kHeads * x.out_strides.head;
    }
  }

  // The words that read() takes.
  POSENC_HD void request_words() const {
    if (left_ <= 0) return;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      request(x_at_ + word * kUnit);
      request(g_at_ + word * kUnit);
    }
  }

  // And asks for those of the next step.
  POSENC_HD void read() {
    if (left_ <= 0) return;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      x_words_[word] = read_word<T, kVector>(x_at_ + word * kUnit);
      g_words_[word] = read_word<T, kVector>(g_at_ + word * kUnit);
    }
    if (left_ <= kHeads) return;
    const T* const x = x_at_ + kHeads * rotary_.tensors[tensor_].in_strides.head;
    const T* const g = g_at_ + kHeads * gradient_.grad_strides[tensor_].head;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      request(x + word * kUnit);
      request(g + word * kUnit);
    }
  }

  // h in the place of g; of x x, and of u x.
  POSENC_HD void sum() {
    for_each_number([&](int word, int j) { h_[word][j] = real_of<T, kVector>(g_words_[word], j); });
    if (args_.query_scale && tensor_ == 0) {
      const Number factor = *shared_address("sum", Warp::query_factor());
      for_each_number([&](int word, int j) { h_[word][j] = h_[word][j] * factor; });
    }
    Warp::for_turned_words([&](int word, int partner, int pair) {
      constexpr int kTurned = kInterleaved ? kVector / 2 : kVector;
      constexpr int kAtOnce = kTurned < 4 ? kTurned : 4;
#pragma unroll
      for (int first = 0; first < kTurned; first += kAtOnce) {
        const auto c = kept_packet<Number, kAtOnce>(Warp::cosines() + pair + first);
        const auto s = kept_packet<Number, kAtOnce>(Warp::sines() + pair + first);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int j = first + i;
          turn_pair<T, false>(h_[word][kInterleaved ? 2 * j : j],
                              h_[partner][kInterleaved ? 2 * j + 1 : j], c.numbers[i],
                              -s.numbers[i]);
        }
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
  POSENC_HD void finish() {
    const Number r = Warp::inverse_root(Warp::total(sums_), kDims);
    const Number pull = r * r * (Warp::total(sums_ + kSums) / static_cast<Number>(kDims));
    if (left_ <= 0) return;
    for_each_number([&](int word, int j) {
      const Number h = h_[word][j];
      weights_[word][j] = multiply_add(h, x(word, j) * r, weights_[word][j]);
      h_[word][j] = r * multiply_add(x(word, j), -pull, h * factor(word, j));
    });
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      write_packet<T, kVector>(round_packet<T, kVector>(h_[word]), out_at_ + word * kUnit);
    }
  }

  // The sums for dw of the tensor at hand, which are added across the lanes of the same dims.
  POSENC_HD Number* weights() { return weights_[0]; }

  // A row of partial sums of the tensor at hand; then the other one is.
  POSENC_HD void write_weights(int tensor) {
    if (gradient_.weight_sums[tensor] != nullptr && x_ < kLanesOfHead) {
      const int64_t row = tensor * plan_.pieces_x * plan_.threads_y +
                          static_cast<int64_t>(piece_) * plan_.threads_y + y_;
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
    if (tensor == 0) swap_weights();
  }

 private:
  POSENC_HD int steps_of(int tensor) const {
    return (static_cast<int>(rotary_.tensors[tensor].heads) + kHeads - 1) / kHeads;
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

  POSENC_HD Number x(int word, int j) const { return real_of<T, kVector>(x_words_[word], j); }
  POSENC_HD Number factor(int word, int j) const {
    return *shared_address("factor", Warp::weights(tensor_) + word * kUnit + dim() + j);
  }

  // The lane's first number of a head of its token.
  POSENC_HD int64_t place(const HeadStrides& strides, int head) const {
    return batch_ * strides.batch + token_ * strides.token + head * strides.head + dim();
  }

  // The sums of both tensors take each other's places. only_keep: nothing has been kept yet.
  POSENC_HD void swap_weights(bool only_keep = false) {
    constexpr int kAtOnce = kVector < 4 ? kVector : 4;
    // Neighboring lanes beside each other.
    Number* kept = Warp::cosines() + Warp::kAngles + kAtOnce * x_;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
#pragma unroll
      for (int j = 0; j < kVector; j += kAtOnce) {
        Packet<Number, kAtOnce> some, other = {};
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) some.numbers[i] = weights_[word][j + i];
        if (!only_keep) other = kept_packet<Number, kAtOnce>(kept);
        keep_packet(some, kept);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) weights_[word][j + i] = other.numbers[i];
        kept += kAtOnce * kLanes;
      }
    }
  }

  const NormRotaryGradientArgs& gradient_;
  const int tokens_;
  Turns* const turns_;
  int piece_ = 0, q_steps_ = 0, steps_ = 0, batch_ = 0, token_ = 0, tensor_ = 0;
  int left_ = 0;  // heads of the tensor from the lane's on
  bool there_ = false;
  // The lane's first word of its head.
  const T *x_at_ = nullptr, *g_at_ = nullptr;
  T* out_at_ = nullptr;
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

// The same for every GPU, as the order of sums follows from it.
template <typename Thread>
NormGradientPlan plan_norm_gradient_warps(const NormRotaryGradientArgs& args,
                                          GridLimit limit = {}) {
  const RotaryArgs& rotary = args.forward.rotary;
  NormGradientPlan plan;
  plan.heads = rotary.tensors[0].heads + rotary.tensors[1].heads;
  if (rotary.rows() == 0 || plan.heads == 0) return plan;
  plan.own_angles = true;
  plan.threads_x = kLanes;
  plan.threads_y = Policy::kThreads / kLanes;
  plan.shared_bytes = Thread::shared_bytes(args.forward, plan.threads_y);
  // Tokens of each warp.
  plan.rounds = divide_up(rotary.rows(), plan.threads_y * NormRotaryGradientArgs::kMostPieces);
  plan.take_pieces(divide_up(rotary.rows(), plan.rounds * plan.threads_y), 1, limit);
  plan.parts[0] = plan.parts[1] = plan.pieces_x * plan.threads_y;
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
