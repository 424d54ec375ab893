// Norm and rotation by warps on a GPU, for the heads that most models have: a norm over the head
// that comes first (or none), heads of 64, 128 or 256 dims of which the first ones are turned, in
// two halves or as neighbors (WarpShape), aligned accesses, one rotation and one weight for all
// heads of q, and of k. Here is what norm_rotary_steps.cuh and its gradient share; all else is done
// by norm_rotary.cuh. Plain C++ as well, which tests run on the host (on_host/).
//
//   lane      of a head, kVector neighboring dims of every kUnit, so that it has both partners of
//             its pairs:
//
//             dims of a head   0 ...... 7 | 8 ...... 15 | ...  64 .... 71 | 72 .... 79 | ...
//             lane                  0           1                  0            1
//             word                  0           0                  1            1
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

  // In shared memory: cosines and sines of a token, and the factor of its queries in a word of 16
  // bytes; weights of q and of k; frequencies in turns.
  static constexpr int kAngles = 2 * kPairs + 4, kWeights = 2 * kDims;
  static POSENC_HD size_t turns_bytes(const NormRotaryArgs& args) {
    return static_cast<size_t>(Block::terms(args)) * kPairs * sizeof(Turns);
  }

 protected:
  using Block::args_, Block::rotary_, Block::plan_, Block::x_, Block::y_;

  POSENC_HD NormRotaryWarp(const NormRotaryArgs& args, const NormRotaryPlan& plan, bool as_written,
                           Number* angles, Number* weights, int x, int y)
      : Block(args, plan, as_written, reinterpret_cast<char*>(angles), x, y), weights_(weights) {}

  POSENC_HD Number* cosines() const { return reinterpret_cast<Number*>(Block::shared_); }
  POSENC_HD Number* sines() const { return cosines() + kPairs; }
  // Only there where queries have factors.
  POSENC_HD Number* query_factor() const { return cosines() + 2 * kPairs; }
  POSENC_HD Number* weights(int tensor) const { return weights_ + tensor * kDims; }

  // First dim of the lane in each kUnit.
  POSENC_HD int dim() const { return x_ % kLanesOfHead * kVector; }

  // Frequencies in turns, [term, pair], shared out among `threads`.
  POSENC_HD void keep_turns(Turns* turns, int thread, int threads) const {
    const int count = static_cast<int>(Block::terms(args_)) * kPairs;
#pragma unroll 1
    for (int i = thread; i < count; i += threads) {
      turns[i] = rotary_.inv_freq.turns(i / kPairs, 0, i % kPairs);
    }
  }

  // Every lane computes some of the angles of a token, for all of the warp; one of them the factor.
  POSENC_HD void keep_angles(int64_t batch, int64_t token, const Turns* turns) const {
    if (args_.query_scale && x_ == 0) *query_factor() = Block::query_factor(batch, token);
    const bool one_position = Block::has_one_position();
    const Position position = one_position ? Block::position_of(batch, token, 0) : Position{0, 0};
#pragma unroll 1
    for (int pair = x_; pair < kPairs; pair += kLanes) {
      const SinCos<Number> angle =
          one_position ? Block::angle_of_phase(phase(position, turns[pair]))
                       : Block::angle_of(batch, token, 0, pair,
                                         [&](int64_t term) { return turns[term * kPairs + pair]; });
      cosines()[pair] = angle.cosine;
      sines()[pair] = angle.sine;
    }
  }

  // Weights, likewise; 1 where there are none.
  POSENC_HD void keep_weights(int thread, int threads) const {
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int dim = kAtOnce * thread; dim < kDims; dim += kAtOnce * threads) {
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

  Number* const weights_;
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
              rotary.angle_heads() == 1 && rotary.inv_freq.terms() <= Policy::kWarpTerms &&
              !args.has_eight_bits() && (!args.norm || (args.norm_first && !args.over_token)) &&
              args.v_dim * size % 16 == 0 && args.v.heads * args.v_dim < Policy::kWarpHeads * 512;
  for (int i = 0; i < 2; ++i) {
    const RotaryTensor& x = rotary.tensors[i];
    fits = fits && x.heads < Policy::kWarpHeads && fits_words(x.in, x.in_strides, size) &&
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

}  // namespace posenc::cuda
