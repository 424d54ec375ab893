// What stands before attention on a GPU, for the heads that most models have: a norm over the head
// that comes first (or none), heads of 64, 128 or 256 dims of which the first ones are turned, in
// two halves or as neighbors (WarpShape), aligned accesses, one rotation and one weight for all
// heads of q, and of k. All else is done by norm_rotary.cuh.
// Plain C++ as well, which tests run on the host (on_host/).
//
//   block     a warp for each token
//   warp      the heads of a token, some at a time: kHeads side by side, kAhead after them
//   lane      of a head, kVector neighboring dims of every kUnit, so that it has both partners of
//             its pairs:
//
//             dims of a head   0 ...... 7 | 8 ...... 15 | ...  64 .... 71 | 72 .... 79 | ...
//             lane                  0           1                  0            1
//             word                  0           0                  1            1
//
//   1. once a token, every lane computes some of the angles and weights, for all of the warp;
//      meanwhile the words of the first kAhead * kHeads heads are on their way
//   2. the sum of the squares: within the lane, then across lanes, in the order of
//      core/norm_rotary.h. Addition commutes: all lanes of a head end with the same bits.
//   3. x r w; pairs are turned; rounded, written: out, a cache, or both
//
// Nothing waits for another warp.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/norm_rotary.cuh"

namespace posenc::cuda {

// How a warp has the dims of heads, and what its lanes keep for each other. kPairs: those that are
// turned, of the first dims of a head.
template <typename T, int kVector, int kDims, int kPairs, bool kInterleaved>
class NormRotaryWarp : public NormRotaryBlock<T, 2> {
  using Block = NormRotaryBlock<T, 2>;

 public:
  using typename Block::Number;

  static constexpr int kUnit = kPairs < kPartialSums ? kPartialSums / 2 : kPartialSums;
  static constexpr int kWords = kDims / kUnit;             // of a lane and head
  static constexpr int kTurnedWords = 2 * kPairs / kUnit;  // the first ones
  static constexpr int kLanesOfHead = kUnit / kVector;
  static constexpr int kHeads = kLanes / kLanesOfHead;
  static constexpr int kSums = kVector / 2;  // partial sums of a lane
  static_assert(kWords * kUnit == kDims && kTurnedWords * kUnit == 2 * kPairs);

  // Of a warp: cosines, sines, and the weights of q and of k.
  static constexpr int kNumbersOfWarp = 2 * kPairs + 2 * kDims;

 protected:
  using Block::args_, Block::rotary_, Block::plan_, Block::x_, Block::y_;
  using Block::NormRotaryBlock;

  // shared_ is the warp's own.
  POSENC_HD Number* cosines() const { return reinterpret_cast<Number*>(Block::shared_); }
  POSENC_HD Number* sines() const { return cosines() + kPairs; }
  POSENC_HD Number* weights(int tensor) const { return cosines() + 2 * kPairs + tensor * kDims; }

  // First dim of the lane in each kUnit.
  POSENC_HD int dim() const { return x_ % kLanesOfHead * kVector; }

  // Every lane computes some of the angles of a token, for all of the warp.
  POSENC_HD void keep_angles(int64_t batch, int64_t token) const {
#pragma unroll 1
    for (int pair = x_; pair < kPairs; pair += kLanes) {
      const SinCos<Number> angle = Block::angle_of(batch, token, 0, pair, [&](int64_t term) {
        return rotary_.inv_freq.turns(term, 0, pair);
      });
      cosines()[pair] = angle.cosine;
      sines()[pair] = angle.sine;
    }
  }

  // Likewise of the weights; 1 where there are none.
  POSENC_HD void keep_weights() const {
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int dim = kAtOnce * x_; dim < kDims; dim += kAtOnce * kLanes) {
#pragma unroll 1
      for (int tensor = 0; tensor < 2; ++tensor) {
        keep_packet(Block::template factors<kAtOnce>(tensor, dim), weights(tensor) + dim);
      }
    }
  }

  // Of product(word, j), of the lane's j-th dim in a word: q[i] of core/norm_rotary.h, where kUnit
  // is half of kPartialSums already with q[i + 16], which is in every second word.
  template <typename Product>
  static POSENC_HD void partial_sums(const Product& product, Number* sums) {
    constexpr int kStep = kPartialSums / kUnit;  // words from a dim to that of its partial sum
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      Number q[kStep];
#pragma unroll
      for (int first = 0; first < kStep; ++first) {
        Number even = product(first, 2 * j), odd = product(first, 2 * j + 1);
#pragma unroll
        for (int word = first + kStep; word < kWords; word += kStep) {
          even = even + product(word, 2 * j);
          odd = odd + product(word, 2 * j + 1);
        }
        q[first] = even + odd;
      }
      sums[j] = kStep == 1 ? q[0] : q[0] + q[kStep - 1];
    }
  }

  // Once they have been added across lanes.
  static POSENC_HD Number total(Number* sums) {
    if constexpr (kSums > 1) Block::template add_halves<kSums / 2>(sums);
    return sums[0];
  }

  // visit(word, partner's word, first of their pairs) for the words that are turned: a word beside
  // its partners, or a word of neighbors.
  template <typename Visit>
  POSENC_HD void for_turned_words(const Visit& visit) const {
    constexpr int kPartner = kInterleaved ? 0 : kTurnedWords / 2;
#pragma unroll
    for (int word = 0; word < kTurnedWords - kPartner; ++word) {
      const int first = word * kUnit + dim();
      visit(word, word + kPartner, kInterleaved ? first / 2 : first);
    }
  }
};

// A thread goes through the heads of its token in steps: words are read, summed, turned, written.
template <typename T, int kVector, int kDims, int kPairs, bool kInterleaved>
class NormRotaryWarpThread : public NormRotaryWarp<T, kVector, kDims, kPairs, kInterleaved> {
  using Warp = NormRotaryWarp<T, kVector, kDims, kPairs, kInterleaved>;
  using Warp::args_, Warp::rotary_, Warp::plan_, Warp::as_written_, Warp::x_, Warp::y_;
  using Warp::kUnit, Warp::kWords, Warp::kTurnedWords, Warp::kSums, Warp::dim;

  static constexpr int kNumbers = kVector < 4 ? kVector : 4;  // of a word, that are turned at once

 public:
  using typename Warp::Number;
  using Warp::kHeads, Warp::kLanesOfHead;

  // Of a head, that a lane has at most: there are no registers for more.
  static constexpr int kMostNumbers = 64 / static_cast<int>(sizeof(T));
  static constexpr int kAhead = kWords < 4 ? 4 / kWords : 1;
  static constexpr int kStepHeads = kHeads * kAhead;
  static constexpr int kAllSums = kAhead * kSums;

  POSENC_HD NormRotaryWarpThread(const NormRotaryParameters& parameters, char* shared, int x, int y)
      : Warp(parameters.args, parameters.plan, parameters.args.rotary.as_written,
             shared + y * Warp::kNumbersOfWarp * sizeof(Number), x, y) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) roots_[i] = 1;
  }

  static int64_t steps(int64_t heads) { return divide_up(heads, kStepHeads); }

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const int row = static_cast<int>(piece_x) * plan_.threads_y + y_;
    const int tokens = static_cast<int>(rotary_.tokens);
    there_ = row < static_cast<int>(rotary_.rows());
    batch_ = there_ ? row / tokens : 0;
    token_ = there_ ? row - batch_ * tokens : 0;
    first_step_ = static_cast<int>(piece_y * plan_.piece_heads);
    const int left = static_cast<int>(plan_.heads) - first_step_;
    const int most = static_cast<int>(plan_.piece_heads);
    steps_ = left < most ? left : most;
    appends_values_ = args_.appends() && piece_y == 0;
  }

  POSENC_HD int steps() const { return steps_; }

  // Takes up a step's heads, of which all are of q or all of k.
  POSENC_HD void take(int step) {
    if (step >= steps_) return;
    const int q_steps = (static_cast<int>(rotary_.tensors[0].heads) + kStepHeads - 1) / kStepHeads;
    const int at = first_step_ + step;
    tensor_ = at < q_steps ? 0 : 1;
    const RotaryTensor& x = rotary_.tensors[tensor_];
    if (step == 0 || at == q_steps) {
      head_ = (tensor_ == 0 ? at : at - q_steps) * kStepHeads + x_ / kLanesOfHead;
      from_ = static_cast<const T*>(x.in) + place(x.in_strides) + head_ * x.in_strides.head + dim();
      writes_ = x.out != nullptr;
      if (writes_) {
        to_ = static_cast<T*>(x.out) + place(x.out_strides) + head_ * x.out_strides.head + dim();
      }
    } else {
      head_ += kStepHeads;
      from_ += kStepHeads * x.in_strides.head;
      if (writes_) to_ += kStepHeads * x.out_strides.head;
    }
    left_ = there_ ? static_cast<int>(x.heads) - head_ : 0;
  }

  // Its words: they are on their way while angles are computed.
  POSENC_HD void request_words() const {
    for_each_word(0, [&](int /*i*/, int /*word*/, const T* from) { request(from); });
  }
  // And asks for those of the next step.
  POSENC_HD void read() {
    for_each_word(
        0, [&](int i, int word, const T* from) { words_[i][word] = read_word<T, kVector>(from); });
    for_each_word(kAhead, [&](int /*i*/, int /*word*/, const T* from) { request(from); });
  }

  // Once a token.
  POSENC_HD void angles_and_weights() {
    key_at_ = NormRotaryArgs::kNowhere;
    if (!there_) return;
    Warp::keep_angles(batch_, token_);
    Warp::keep_weights();
    if (args_.appends()) key_at_ = args_.place(args_.keys, batch_, token_);
  }

  POSENC_HD void sum() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      Warp::partial_sums(
          [&](int word, int j) {
            const Number x = real_of<T, kVector>(words_[i][word], j);
            return x * x;
          },
          sums_ + i * kSums);
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
    if (as_written_ || args_.rounded_before_weight[tensor_]) {
      write_heads<true>();
    } else {
      write_heads<false>();
    }
  }

  // The values of the warp's token, bit for bit.
  POSENC_HD void append_values() const {
    if (!there_ || !appends_values_) return;
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
  // visit(i, word, where it is), of the lane's words of the heads i of the step, or of the next one
  // where `first` is kAhead.
  template <typename Visit>
  POSENC_HD void for_each_word(int first, const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (!has(first + i)) continue;
      const T* const head = from_ + (first + i) * kHeads * rotary_.tensors[tensor_].in_strides.head;
#pragma unroll
      for (int word = 0; word < kWords; ++word) visit(i, word, head + word * kUnit);
    }
  }

  // Whether the i-th head of the step is there.
  POSENC_HD bool has(int i) const { return left_ > i * kHeads; }

  POSENC_HD int64_t place(const HeadStrides& strides) const {
    return batch_ * strides.batch + token_ * strides.token;
  }

  // kRounds: steps are rounded to the format of x, no product is fused with a sum.
  template <bool kRounds>
  POSENC_HD void write_heads() const {
    const RotaryTensor& x = rotary_.tensors[tensor_];
    const bool caches = tensor_ == 1 && key_at_ != NormRotaryArgs::kNowhere;
    T* const key =
        caches ? static_cast<T*>(args_.keys.data) + key_at_ + head_ * args_.keys.head_stride + dim()
               : nullptr;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (!has(i)) continue;
      const auto put = [&](const Packet<T, kVector>& packet, int word) {
        if (writes_) {
          write_packet<T, kVector>(packet, to_ + i * kHeads * x.out_strides.head + word * kUnit);
        }
        if (caches) {
          write_packet<T, kVector>(packet,
                                   key + i * kHeads * args_.keys.head_stride + word * kUnit);
        }
      };
      Warp::for_turned_words([&](int word, int partner, int pair) {
        Packet<T, kVector> one;
        if constexpr (kInterleaved) {
          turn_neighbours<kRounds>(roots_[i], words_[i][word], word, pair, one);
        } else {
          Packet<T, kVector> other;
          turn_partners<kRounds>(roots_[i], i, word, partner, pair, one, other);
          put(other, partner);
        }
        put(one, word);
      });
#pragma unroll
      for (int word = kTurnedWords; word < kWords; ++word) {
        Packet<T, kVector> one = unpack<T, kVector>(words_[i][word]);
        if (args_.norm) scale_word<kRounds>(roots_[i], words_[i][word], word, one);
        put(one, word);
      }
    }
  }

  // Some numbers of a word, scaled: roots and weights are 1 where there is no norm.
  template <bool kRounds>
  POSENC_HD void take(const WordOf<T, kVector>& word, int first, Number r, int at,
                      Number (&x)[kNumbers]) const {
    const auto factors =
        kept_packet<Number, kNumbers>(Warp::weights(tensor_) + at * kUnit + dim() + first);
    const bool round_first = kRounds && args_.rounded_before_weight[tensor_];
#pragma unroll
    for (int j = 0; j < kNumbers; ++j) {
      const Number number = real_of<T, kVector>(word, first + j), factor = factors.numbers[j];
      x[j] = kRounds ? Warp::scaled(number, r, factor, round_first) : number * r * factor;
    }
  }
  template <bool kRounds>
  POSENC_HD void turn(Number& a, Number& b, Number c, Number s) const {
    if constexpr (kRounds) {
      Warp::turn_pair(a, b, c, s);
    } else {
      Warp::turn_exactly(a, b, c, s);
    }
  }
  static POSENC_HD void put_back(const Number (&x)[kNumbers], int first,
                                 Packet<T, kVector>& packet) {
    const Packet<T, kNumbers> some = round_packet<T, kNumbers>(x);
#pragma unroll
    for (int j = 0; j < kNumbers; ++j) packet.numbers[first + j] = some.numbers[j];
  }

  template <bool kRounds>
  POSENC_HD void scale_word(Number r, const WordOf<T, kVector>& word, int at,
                            Packet<T, kVector>& packet) const {
#pragma unroll
    for (int first = 0; first < kVector; first += kNumbers) {
      Number x[kNumbers];
      take<kRounds>(word, first, r, at, x);
      put_back(x, first, packet);
    }
  }

  template <bool kRounds>
  POSENC_HD void turn_partners(Number r, int i, int word, int partner, int pair,
                               Packet<T, kVector>& one, Packet<T, kVector>& other) const {
#pragma unroll
    for (int first = 0; first < kVector; first += kNumbers) {
      Number a[kNumbers], b[kNumbers];
      take<kRounds>(words_[i][word], first, r, word, a);
      take<kRounds>(words_[i][partner], first, r, partner, b);
      const auto c = kept_packet<Number, kNumbers>(Warp::cosines() + pair + first);
      const auto s = kept_packet<Number, kNumbers>(Warp::sines() + pair + first);
#pragma unroll
      for (int j = 0; j < kNumbers; ++j) turn<kRounds>(a[j], b[j], c.numbers[j], s.numbers[j]);
      put_back(a, first, one);
      put_back(b, first, other);
    }
  }

  template <bool kRounds>
  POSENC_HD void turn_neighbours(Number r, const WordOf<T, kVector>& word, int at, int pair,
                                 Packet<T, kVector>& packet) const {
    constexpr int kHalf = kNumbers / 2;
#pragma unroll
    for (int first = 0; first < kVector; first += kNumbers) {
      Number x[kNumbers];
      take<kRounds>(word, first, r, at, x);
      const auto c = kept_packet<Number, kHalf>(Warp::cosines() + pair + first / 2);
      const auto s = kept_packet<Number, kHalf>(Warp::sines() + pair + first / 2);
#pragma unroll
      for (int j = 0; j < kHalf; ++j) {
        turn<kRounds>(x[2 * j], x[2 * j + 1], c.numbers[j], s.numbers[j]);
      }
      put_back(x, first, packet);
    }
  }

  int batch_, token_;
  int64_t key_at_;
  int first_step_, steps_, tensor_ = 0;
  int head_ = 0, left_ = 0;  // the lane's first head of the step, and how many there are from it on
  bool there_, appends_values_, writes_ = false;
  // The lane's first word of that head.
  const T* from_ = nullptr;
  T* to_ = nullptr;
  WordOf<T, kVector> words_[kAhead][kWords];
  Number sums_[kAllSums], roots_[kAhead];
};

// ---------------------------------------------------------------------------------------------
// On the host: which calls, how many warps

// Heads that warps take: `pairs` of the first dims are turned.
struct WarpShape {
  int dims, pairs;
  bool interleaved;
};

constexpr WarpShape kWarpShapes[] = {
    {64, 32, false},  {128, 64, false}, {256, 128, false},  // whole, in two halves
    {128, 32, false}, {256, 32, false},                     // the first 64 dims of them
    {64, 32, true},   {128, 64, true},                      // whole, of neighbors
};
constexpr int kWarpShapeCount = sizeof(kWarpShapes) / sizeof(kWarpShapes[0]);

// Neighbors that a lane has in a word: 16 bytes, or as many as leave it `most` numbers of a head.
template <typename T>
constexpr int warp_vector(const WarpShape& shape, int most) {
  const int unit = shape.pairs < kPartialSums ? kPartialSums / 2 : kPartialSums;
  return std::min(16 / static_cast<int>(sizeof(T)), most / (shape.dims / unit));
}

// Index of the shape of a call, or -1.
inline int warp_shape(const RotaryArgs& rotary) {
  if (rotary.rearranged() || rotary.start != 0) return -1;
  for (int i = 0; i < kWarpShapeCount; ++i) {
    const WarpShape& shape = kWarpShapes[i];
    if (shape.dims == rotary.head_dim && shape.pairs == rotary.pairs &&
        rotary.half_block == (shape.interleaved ? 1 : shape.pairs)) {
      return i;
    }
  }
  return -1;
}

// Whether heads are words of 16 bytes everywhere in a tensor.
inline bool fits_words(const void* data, const HeadStrides& strides, int64_t size) {
  const int64_t steps = (strides.batch | strides.token | strides.head) * size;
  return data == nullptr ||
         (strides.dim == 1 && (steps | reinterpret_cast<int64_t>(data)) % 16 == 0);
}

inline bool takes_warps(const NormRotaryArgs& args) {
  const RotaryArgs& rotary = args.rotary;
  const int64_t size = item_size(rotary.dtype);
  bool fits = size <= 4 && warp_shape(rotary) >= 0 && rotary.rows() < Policy::kNarrow &&
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

// Calls visit(type of the thread), of calls that take warps.
template <template <typename, int, int, int, bool> class Thread, int kShape = 0, typename Visit>
auto visit_warp_thread(const RotaryArgs& rotary, const Visit& visit) {
  if constexpr (kShape + 1 < kWarpShapeCount) {
    if (warp_shape(rotary) != kShape) {
      return visit_warp_thread<Thread, kShape + 1>(rotary, visit);
    }
  }
  return visit_type(rotary.dtype, [&](auto type) {
    using T = std::conditional_t<sizeof(type) == 8, float, decltype(type)>;
    constexpr WarpShape kOf = kWarpShapes[kShape];
    constexpr int kVector = warp_vector<T>(kOf, Thread<T, 4, 64, 32, false>::kMostNumbers);
    return visit(static_cast<Thread<T, kVector, kOf.dims, kOf.pairs, kOf.interleaved>*>(nullptr));
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
  plan.threads_y = static_cast<int>(std::min<int64_t>(rows, Policy::kWarpThreads / kLanes));
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
