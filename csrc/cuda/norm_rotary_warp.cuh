// What stands before attention on a GPU, for the heads that most models have: a norm over the head
// that comes first (or none), heads of 64 or 128 dims in two halves, 16-byte accesses, one
// rotation and one weight for all heads of q, and of k. All else is done by norm_rotary.cuh.
// Plain C++ as well, which tests run on the host (on_host/).
//
//   block     a warp for each token
//   warp      the heads of a token, some at a time: kHeads side by side, kAhead after them
//   lane      of a head, kVector neighbouring dims and their partners half a head away:
//
//             dims of a head   0 ...... 7 | 8 ...... 15 | ...  64 .... 71 | 72 .... 79 | ...
//             lane                  0           1                  0            1
//
//   1. once a token, every lane computes some of the angles and weights, for all of the warp;
//      meanwhile the words of the first kAhead * kHeads heads are on their way
//   2. the sum of the squares: within the lane, then across lanes, in the order of
//      core/norm_rotary.h. Addition commutes: all lanes of a head end with the same bits.
//   3. x r w; a lane has both partners of its pairs; rounded, written: out, a cache, or both
//
// Nothing waits for another warp.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/norm_rotary.cuh"

namespace posenc::cuda {

// How a warp has the dims of heads, and what its lanes keep for each other.
template <typename T, int kVector, int kDims>
class NormRotaryWarp : public NormRotaryBlock<T, 2> {
  using Block = NormRotaryBlock<T, 2>;

 public:
  using typename Block::Number;

  static constexpr int kHalf = kDims / 2;
  static constexpr int kLanesOfHead = kHalf / kVector;
  static constexpr int kHeads = kLanes / kLanesOfHead;
  static constexpr int kSums = kVector / 2;  // partial sums of a lane

  // Of a warp: cosines, sines, and the weights of q and of k.
  static constexpr int kNumbersOfWarp = 2 * kHalf + 2 * kDims;

 protected:
  using Block::args_, Block::rotary_, Block::x_, Block::y_;
  using Block::NormRotaryBlock;

  POSENC_HD Number* cosines() const {
    return reinterpret_cast<Number*>(Block::shared_) + y_ * kNumbersOfWarp;
  }
  POSENC_HD Number* sines() const { return cosines() + kHalf; }
  POSENC_HD Number* weights(int tensor) const { return cosines() + 2 * kHalf + tensor * kDims; }

  // First dim of the lane.
  POSENC_HD int dim() const { return x_ % kLanesOfHead * kVector; }

  // Every lane computes some of the angles of a token, for all of the warp.
  POSENC_HD void keep_angles(int64_t batch, int64_t token) const {
#pragma unroll 1
    for (int pair = x_; pair < kHalf; pair += kLanes) {
      const SinCos<Number> angle = Block::angle_of(batch, token, 0, pair, [&](int64_t term) {
        return rotary_.inv_freq.turns(term, 0, pair);
      });
      cosines()[pair] = angle.cosine;
      sines()[pair] = angle.sine;
    }
  }

  POSENC_HD void keep_weights() const {
    if (!args_.norm) return;
#pragma unroll 1
    for (int dim = x_; dim < kDims; dim += kLanes) {
#pragma unroll 1
      for (int tensor = 0; tensor < 2; ++tensor) {
        weights(tensor)[dim] = Block::factor(tensor, 0, dim);
      }
    }
  }

  // Of product(j) and far_product(j), of the lane's j-th dim and of its partner: q[i] of
  // core/norm_rotary.h, of a head of 64 dims already with q[i + 16], which is half a head away.
  template <typename Product, typename FarProduct>
  static POSENC_HD void partial_sums(const Product& product, const FarProduct& far_product,
                                     Number* sums) {
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      const Number even = product(2 * j), odd = product(2 * j + 1);
      const Number far_even = far_product(2 * j), far_odd = far_product(2 * j + 1);
      if constexpr (kDims == kPartialSums) {
        sums[j] = (even + odd) + (far_even + far_odd);
      } else {
        static_assert(kDims == 2 * kPartialSums);
        sums[j] = (even + far_even) + (odd + far_odd);
      }
    }
  }

  // Once they have been added across lanes.
  static POSENC_HD Number total(Number* sums) {
    Block::template add_halves<kSums / 2>(sums);
    return sums[0];
  }
};

template <typename T, int kVector, int kDims>
class NormRotaryWarpThread : public NormRotaryWarp<T, kVector, kDims> {
  using Warp = NormRotaryWarp<T, kVector, kDims>;
  using Warp::args_, Warp::rotary_, Warp::plan_, Warp::as_written_, Warp::x_, Warp::y_;
  using Warp::kHalf, Warp::kSums, Warp::dim;

  static constexpr int kPairs = 4;  // that are turned at once

 public:
  using typename Warp::Number;
  using Warp::kHeads, Warp::kLanesOfHead;

  static constexpr int kAhead = 2;
  static constexpr int kStepHeads = kHeads * kAhead;
  static constexpr int kAllSums = kAhead * kSums;

  POSENC_HD NormRotaryWarpThread(const NormRotaryParameters& parameters, char* shared, int x, int y)
      : Warp(parameters.args, parameters.plan, parameters.args.rotary.as_written, shared, x, y) {}

  static int64_t steps(int64_t heads) { return divide_up(heads, kStepHeads); }

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const int64_t row = piece_x * plan_.threads_y + y_;
    there_ = row < rotary_.rows();
    batch_ = there_ ? divide(row, rotary_.tokens) : 0;
    token_ = there_ ? row - batch_ * rotary_.tokens : 0;
    first_step_ = static_cast<int>(piece_y * plan_.piece_heads);
    const int64_t left = plan_.heads - first_step_;
    steps_ = static_cast<int>(left < plan_.piece_heads ? left : plan_.piece_heads);
    appends_values_ = there_ && args_.appends() && piece_y == 0;
  }

  POSENC_HD int steps() const { return steps_; }

  // The heads of a step, of which all are of q or all of k.
  POSENC_HD void take(int step) {
    const int q_steps = (static_cast<int>(rotary_.tensors[0].heads) + kStepHeads - 1) / kStepHeads;
    const int at = first_step_ + step;
    tensor_ = at < q_steps ? 0 : 1;
    head_ = (tensor_ == 0 ? at : at - q_steps) * kStepHeads + x_ / kLanesOfHead;
  }

  // The words of the first ones: they are on their way while angles are computed.
  POSENC_HD void request_first() {
    if (steps_ == 0) return;
    take(0);
    for_each_head([&](int /*i*/, const T* from) {
      request(from);
      request(from + kHalf);
    });
  }

  POSENC_HD void read(int step) {
    take(step);
    for_each_head([&](int i, const T* from) {
      near_[i] = read_word<T, kVector>(from);
      far_[i] = read_word<T, kVector>(from + kHalf);
    });
  }

  // Once a token.
  POSENC_HD void angles_and_weights() {
    key_at_ = NormRotaryArgs::kNowhere;
    if (!there_) return;
    if (args_.appends()) key_at_ = args_.place(args_.keys, batch_, token_);
    Warp::keep_angles(batch_, token_);
    Warp::keep_weights();
  }

  POSENC_HD void sum() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const Packet<T, kVector> near = unpack<T, kVector>(near_[i]);
      const Packet<T, kVector> far = unpack<T, kVector>(far_[i]);
      Warp::partial_sums([&](int j) { return square(near.numbers[j]); },
                         [&](int j) { return square(far.numbers[j]); }, sums_ + i * kSums);
    }
  }

  // What is added across kLanesOfHead lanes.
  POSENC_HD Number* sums() { return sums_; }

  POSENC_HD void finish_sums() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      roots_[i] = Warp::inverse_root(Warp::total(sums_ + i * kSums), kDims);
    }
  }

  POSENC_HD void write() const {
    const RotaryTensor& x = rotary_.tensors[tensor_];
    T* const to =
        x.out == nullptr ? nullptr : static_cast<T*>(x.out) + place(x.out_strides) + dim();
    T* const key = tensor_ == 0 || key_at_ == NormRotaryArgs::kNowhere
                       ? nullptr
                       : static_cast<T*>(args_.keys.data) + key_at_ + dim();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (!has(i)) continue;
      Packet<T, kVector> near = unpack<T, kVector>(near_[i]);
      Packet<T, kVector> far = unpack<T, kVector>(far_[i]);
      turn(roots_[i], near, far);
      const int64_t head = head_ + i * kHeads;
      if (to != nullptr) {
        write_packet<T, kVector>(near, to + head * x.out_strides.head);
        write_packet<T, kVector>(far, to + head * x.out_strides.head + kHalf);
      }
      if (key != nullptr) {
        write_packet<T, kVector>(near, key + head * args_.keys.head_stride);
        write_packet<T, kVector>(far, key + head * args_.keys.head_stride + kHalf);
      }
    }
  }

  // The values of the warp's token, bit for bit.
  POSENC_HD void append_values() const {
    if (!appends_values_) return;
    const CacheTarget& cache = args_.values;
    const int64_t slot = args_.place(cache, batch_, token_);
    if (slot == NormRotaryArgs::kNowhere) return;
    const T* const from = static_cast<const T*>(args_.v.in) + place(args_.v.in_strides);
    T* const to = static_cast<T*>(cache.data) + slot;
    const int64_t words = divide(args_.v_dim, kVector);
    for (int64_t i = x_; i < args_.v.heads * words; i += kLanes) {
      const int64_t head = divide(i, words), dim = (i - head * words) * kVector;
      write_packet<T, kVector>(read_packet<T, kVector>(from + head * args_.v.in_strides.head + dim),
                               to + head * cache.head_stride + dim);
    }
  }

 private:
  POSENC_HD bool has(int i) const {
    return there_ && head_ + i * kHeads < rotary_.tensors[tensor_].heads;
  }
  // visit(i, where the lane's dims of the i-th head of the step are).
  template <typename Visit>
  POSENC_HD void for_each_head(const Visit& visit) const {
    const RotaryTensor& x = rotary_.tensors[tensor_];
    const T* const from = static_cast<const T*>(x.in) + place(x.in_strides) + dim();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (has(i)) visit(i, from + (head_ + i * kHeads) * x.in_strides.head);
    }
  }
  POSENC_HD int64_t place(const HeadStrides& strides) const {
    return batch_ * strides.batch + token_ * strides.token;
  }

  static POSENC_HD Number square(T x) {
    const Number real = to_real(x);
    return real * real;
  }

  // Some pairs at a time, for the sake of registers.
  POSENC_HD void turn(Number r, Packet<T, kVector>& near, Packet<T, kVector>& far) const {
    static_assert(kVector % kPairs == 0);
    const Number* const cosines = Warp::cosines() + dim();
    const Number* const sines = Warp::sines() + dim();
    const Number* const weights = Warp::weights(tensor_) + dim();
#pragma unroll
    for (int first = 0; first < kVector; first += kPairs) {
      Number a[kPairs], b[kPairs];
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        a[j] = to_real(near.numbers[first + j]);
        b[j] = to_real(far.numbers[first + j]);
      }
      if (args_.norm) {
        scale(a, r, weights + first);
        scale(b, r, weights + kHalf + first);
      }
      const auto c = kept_packet<Number, kPairs>(cosines + first);
      const auto s = kept_packet<Number, kPairs>(sines + first);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        Warp::turn_pair(a[j], b[j], c.numbers[j], s.numbers[j]);
      }
      put(round_packet<T, kPairs>(a), near.numbers + first);
      put(round_packet<T, kPairs>(b), far.numbers + first);
    }
  }

  static POSENC_HD void put(const Packet<T, kPairs>& packet, T* to) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) to[j] = packet.numbers[j];
  }

  POSENC_HD void scale(Number (&x)[kPairs], Number r, const Number* weights) const {
    const bool round_first = args_.rounded_before_weight[tensor_];
    const auto factors = kept_packet<Number, kPairs>(weights);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      x[j] = Warp::scaled(x[j], r, factors.numbers[j], round_first);
    }
  }

  int64_t batch_, token_, key_at_;
  int first_step_, steps_, head_ = 0, tensor_ = 0;
  bool there_, appends_values_;
  WordOf<T, kVector> near_[kAhead], far_[kAhead];
  Number sums_[kAllSums], roots_[kAhead] = {};
};

// ---------------------------------------------------------------------------------------------
// On the host: which calls, how many warps

// Whether heads are words of 16 bytes everywhere in a tensor.
inline bool fits_words(const void* data, const HeadStrides& strides, int64_t size) {
  const int64_t steps = (strides.batch | strides.token | strides.head) * size;
  return data == nullptr ||
         (strides.dim == 1 && (steps | reinterpret_cast<int64_t>(data)) % 16 == 0);
}

inline bool takes_warps(const NormRotaryArgs& args) {
  const RotaryArgs& rotary = args.rotary;
  const int64_t size = item_size(rotary.dtype), dims = rotary.head_dim;
  bool fits = size <= 4 && (dims == kPartialSums || dims == 2 * kPartialSums) &&
              2 * rotary.half_block == dims && 2 * rotary.pairs == dims && !rotary.rearranged() &&
              rotary.angle_heads() == 1 && (!args.norm || (args.norm_first && !args.over_token)) &&
              args.v_dim * size % 16 == 0;
  for (int i = 0; i < 2; ++i) {
    const RotaryTensor& x = rotary.tensors[i];
    fits = fits && x.heads < Policy::kNarrow && fits_words(x.in, x.in_strides, size) &&
           fits_words(x.out, x.out_strides, size) && args.weights[i].heads == 1;
  }
  fits = fits && fits_words(args.v.in, args.v.in_strides, size);
  for (const CacheTarget* cache : {&args.keys, &args.values}) {
    const HeadStrides strides = {cache->row_stride, cache->slot_stride, cache->head_stride,
                                 cache->dim_stride};
    fits = fits && fits_words(cache->data, strides, size);
  }
  return fits;
}

// Of calls that take warps.
template <template <typename, int, int> class Thread, typename Visit>
auto visit_warp_thread(const RotaryArgs& rotary, const Visit& visit) {
  return visit_type(rotary.dtype, [&](auto type) {
    using T = std::conditional_t<sizeof(type) == 8, float, decltype(type)>;
    constexpr int kVector = 16 / static_cast<int>(sizeof(T));
    if (rotary.head_dim == kPartialSums) {
      return visit(static_cast<Thread<T, kVector, kPartialSums>*>(nullptr));
    }
    return visit(static_cast<Thread<T, kVector, 2 * kPartialSums>*>(nullptr));
  });
}

// `heads` and `piece_heads` of the plan are steps of a warp here.
template <typename Thread>
NormRotaryPlan plan_norm_rotary_warps(const NormRotaryArgs& args, const Room& room) {
  const RotaryArgs& rotary = args.rotary;
  NormRotaryPlan plan;
  const int64_t rows = rotary.rows();
  plan.heads = Thread::steps(rotary.tensors[0].heads) + Thread::steps(rotary.tensors[1].heads);
  if (rows == 0 || (plan.heads == 0 && args.v.heads == 0)) return plan;
  plan.own_angles = true;
  plan.threads_x = kLanes;
  plan.threads_y = static_cast<int>(std::min<int64_t>(rows, Policy::kThreads / kLanes));
  plan.shared_bytes = sizeof(typename Thread::Number) * Thread::kNumbersOfWarp *
                      static_cast<size_t>(plan.threads_y);
  const int64_t pieces = divide_up(rows, plan.threads_y);
  const int64_t places = room.blocks(plan.threads(), plan.shared_bytes);
  const int64_t most = std::max<int64_t>(plan.heads, 1);
  plan.piece_heads = units_of_piece(pieces, most, most, places);
  plan.take_pieces(pieces, divide_up(most, plan.piece_heads), room.limit);
  return plan;
}

}  // namespace posenc::cuda
