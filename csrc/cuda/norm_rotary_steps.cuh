// What stands before attention on a GPU, by warps: what a thread does of the calls that
// norm_rotary_warp.cuh is for.
// Plain C++ as well, which tests run on the host (on_host/).
//
//   block     warps, each of which has as many steps as all others
//   warp      steps of one token after the other: the heads of q, of k, then words of the values
//             that are appended. In a step kHeads are side by side, kAhead after them
//   lane      of a head, kVector neighboring dims of every kUnit, so that it has both partners of
//             its pairs:
//
//             dims of a head   0 ...... 7 | 8 ...... 15 | ...  64 .... 71 | 72 .... 79 | ...
//             lane                  0           1                  0            1
//             word                  0           0                  1            1
//
//   1. once a block: frequencies in turns, weights. Once a token every lane computes some of the
//      angles, for all of the warp
//   2. the words of the next steps are on their way while those of this one are worked on: to
//      shared memory, for which no registers are held
//   3. the sum of the squares: within the lane, then across lanes, in the order of
//      core/norm_rotary.h. Addition commutes: all lanes of a head end with the same bits
//   4. x r w, of queries times the factor of their token; pairs are turned; rounded, written: out,
//      a cache, or both
//
// Once a block has begun, nothing waits for another warp.
#pragma once

#include <algorithm>

#include "cuda/norm_rotary_warp.cuh"

namespace posenc::cuda {

// A thread goes through the steps of its warp. Those of all tokens are counted through, and shared
// out among the warps that a GPU holds at a time: a step is some heads of q, or of k, or words of
// the values that are appended.
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
  static constexpr int kStepWords = kLanes * kAhead * kWords;
  static constexpr int kAllSums = kAhead * kSums;

  using Word = WordOf<T, kVector>;

  // Shared memory of a block: frequencies in turns, weights, and of each warp the words of some
  // steps and the angles of a token.
  static constexpr int kStages = Policy::kWarpStages;
  static constexpr size_t kWordsBytes = kStages * kStepWords * sizeof(Word);
  static constexpr size_t kWarpBytes = kWordsBytes + Warp::kAngles * sizeof(Number);
  static POSENC_HD size_t block_bytes(const NormRotaryArgs& args) {
    return Warp::turns_bytes(args) + Warp::kWeights * sizeof(Number);
  }
  static size_t shared_bytes(const NormRotaryArgs& args, int warps) {
    return block_bytes(args) + static_cast<size_t>(warps) * kWarpBytes;
  }

  POSENC_HD NormRotaryWarpThread(const NormRotaryParameters& parameters, char* shared, int x, int y)
      : NormRotaryWarpThread(parameters, shared,
                             shared + block_bytes(parameters.args) + y * kWarpBytes, x, y) {}

  // Of a token.
  static int64_t steps(const NormRotaryArgs& args) {
    const auto& tensors = args.rotary.tensors;
    const int64_t values = args.appends() ? args.v.heads * (args.v_dim / kVector) : 0;
    return divide_up(tensors[0].heads, kStepHeads) + divide_up(tensors[1].heads, kStepHeads) +
           divide_up(values, kStepWords);
  }

  // Takes up the steps of a piece.
  POSENC_HD void begin(int64_t piece) {
    warp_ = static_cast<int>(piece) * plan_.threads_y + y_;
    const int rest = static_cast<int>(rotary_.rows()) - rest_row();
    const int first = warp_ * plan_.rest_steps, all = rest * steps();
    const int of_rest = first + plan_.rest_steps < all ? plan_.rest_steps : all - first;
    left_ = plan_.rounds * steps() + (of_rest > 0 ? of_rest : 0);
    here_.row = warp_;
    here_.step = 0;
    if (plan_.rounds == 0) begin_rest(here_);
    ahead_ = here_;
    begins_token_ = true;
    stage_ = ahead_stage_ = 0;
  }

  // Asks for the words of the first steps, and reads what the block prepares.
  POSENC_HD void read() {
    if (left_ > 0) {
      enter_reading();
      enter_writing();
    }
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) copy_ahead(i < left_);
    Warp::keep_turns(turns_, Warp::thread(), plan_.threads());
    Warp::keep_weights(Warp::thread(), plan_.threads());
  }

  POSENC_HD bool has_step() const { return left_ > 0; }

  // Asks for the words of a later step: there is room for them, as the last one's have been read.
  POSENC_HD void ask() {
    if (left_ > 0) copy_ahead(kStages - 1 < left_);
  }

  // Whether the step is the warp's first one of a token.
  POSENC_HD bool begins_token() const { return begins_token_; }

  POSENC_HD void angles() {
    if (left_ <= 0 || !begins_token_) return;
    const int batch = plan_.by_tokens.divide(here_.row);
    Warp::keep_angles(batch, here_.row - batch * static_cast<int>(rotary_.tokens), turns_);
  }

  // The words of the step.
  POSENC_HD void take() {
    if (left_ <= 0) return;
    wait_for_copies<kStages - 1>();
#pragma unroll
    for (int i = 0; i < kAhead * kWords; ++i) {
      words_[i / kWords][i % kWords] = *shared_address("take", copied(stage_) + i * kLanes);
    }
    next_stage(stage_);
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

  POSENC_HD void write() {
    if (left_ <= 0) return;
    if (args_.query_scale) scale_roots();
    if (here_.tensor == 2) {
      write_values();
    } else if (as_written_ || args_.rounded_before_weight[here_.tensor]) {
      write_heads<true>();
    } else {
      write_heads<false>();
    }
    if (--left_ == 0) return;
    const int row = here_.row;
    if (pass(here_)) {
      enter_writing();
    } else if (here_.tensor < 2) {
      if (to_ != nullptr) to_ += kStepHeads * rotary_.tensors[here_.tensor].out_strides.head;
      if (key_ != nullptr) key_ += kStepHeads * args_.keys.head_stride;
    }
    begins_token_ = here_.row != row;
  }

 private:
  // A step: of a token's, of which tensor (0: q, 1: k, 2: the values), where the tensor's end, and
  // how many of its heads there are from the lane's first one on.
  struct Step {
    int row, step, tensor, end, heads;
  };

  // own: the warp's part of the shared memory.
  POSENC_HD NormRotaryWarpThread(const NormRotaryParameters& parameters, char* shared, char* own,
                                 int x, int y)
      : Warp(parameters.args, parameters.plan, parameters.args.rotary.as_written,
             reinterpret_cast<Number*>(own + kWordsBytes),
             reinterpret_cast<Number*>(shared + Warp::turns_bytes(parameters.args)), x, y),
        turns_(reinterpret_cast<Turns*>(shared)),
        copied_(reinterpret_cast<Word*>(own)) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) roots_[i] = 1;
  }

  // Of a token.
  POSENC_HD int steps() const { return static_cast<int>(plan_.heads); }
  POSENC_HD int steps_of(int tensor) const {
    return (static_cast<int>(rotary_.tensors[tensor].heads) + kStepHeads - 1) / kStepHeads;
  }

  // Warps take tokens in rounds, so that they are at neighboring ones at a time; then they share
  // out the steps of those that are left, from this row on.
  POSENC_HD int rest_row() const { return plan_.rounds * plan_.warps; }
  POSENC_HD void begin_rest(Step& at) const {
    const int first = warp_ * plan_.rest_steps, row = plan_.by_heads.divide(first);
    at.row = rest_row() + row;
    at.step = first - row * steps();
  }

  // To the warp's next step; whether it is of another tensor or token.
  POSENC_HD bool pass(Step& at) const {
    at.step += 1;
    at.heads -= kStepHeads;
    if (at.step != at.end) return false;
    if (at.step != steps()) return true;
    at.step = 0;
    if (at.row >= rest_row()) {
      at.row += 1;
    } else {
      at.row += plan_.warps;
      if (at.row >= rest_row()) begin_rest(at);
    }
    return true;
  }

  // Finds out the tensor. The lane's first head of the step, in it, or 0 of the values.
  POSENC_HD int enter(Step& at) const {
    const int q_end = steps_of(0), k_end = q_end + steps_of(1);
    at.tensor = at.step < q_end ? 0 : at.step < k_end ? 1 : 2;
    at.end = at.tensor == 0 ? q_end : at.tensor == 1 ? k_end : steps();
    if (at.tensor == 2) return 0;
    const int head = (at.step - (at.tensor == 0 ? 0 : q_end)) * kStepHeads + x_ / kLanesOfHead;
    at.heads = static_cast<int>(rotary_.tensors[at.tensor].heads) - head;
    return head;
  }

  POSENC_HD int64_t place(const HeadStrides& strides, int row, int head) const {
    const int batch = plan_.by_tokens.divide(row);
    const int token = row - batch * static_cast<int>(rotary_.tokens);
    return batch * strides.batch + token * strides.token + head * strides.head;
  }

  // Where the lane's first word of the step ahead is; of the values, their first number.
  POSENC_HD void enter_reading() {
    const int head = enter(ahead_);
    const RotaryTensor& x = ahead_.tensor == 2 ? args_.v : rotary_.tensors[ahead_.tensor];
    from_ = static_cast<const T*>(x.in) + place(x.in_strides, ahead_.row, head);
    if (ahead_.tensor < 2) from_ += dim();
  }

  // Likewise where those of this step go: out, and the cache.
  POSENC_HD void enter_writing() {
    const int head = enter(here_);
    to_ = key_ = nullptr;
    if (here_.tensor < 2) {
      const RotaryTensor& x = rotary_.tensors[here_.tensor];
      if (x.out != nullptr) {
        to_ = static_cast<T*>(x.out) + place(x.out_strides, here_.row, head) + dim();
      }
    }
    if (here_.tensor == 0 || !args_.appends()) return;
    const CacheTarget& cache = here_.tensor == 1 ? args_.keys : args_.values;
    const int batch = plan_.by_tokens.divide(here_.row);
    const int64_t at =
        args_.place(cache, batch, here_.row - batch * static_cast<int>(rotary_.tokens));
    if (at == NormRotaryArgs::kNowhere) return;
    key_ = static_cast<T*>(cache.data) + at;
    if (here_.tensor == 1) key_ += head * cache.head_stride + dim();
  }

  // The lane's first word of a stage; its others are kLanes apart.
  POSENC_HD Word* copied(int stage) const { return copied_ + stage * kStepWords + x_; }
  static POSENC_HD void next_stage(int& stage) { stage = stage + 1 == kStages ? 0 : stage + 1; }

  // visit(number of the word, head, dim) for the lane's words of the values.
  template <typename Visit>
  POSENC_HD void for_each_value(int step, const Visit& visit) const {
    const int heads = static_cast<int>(args_.v.heads);
    const int words = static_cast<int>(args_.v_dim) / kVector;
    const int first = (step - steps_of(0) - steps_of(1)) * kStepWords + x_;
    const int more = kLanes / words, rest = kLanes - more * words;
    int head = first / words, word = first - head * words;
#pragma unroll
    for (int i = 0; i < kAhead * kWords; ++i) {
      if (head < heads) visit(i, head, word * kVector);
      head += more;
      word += rest;
      if (word < words) continue;
      head += 1;
      word -= words;
    }
  }

  // Asks for the words of a step, if there is one.
  POSENC_HD void copy_ahead(bool there) {
    if (there) {
      copy_words();
      next_stage(ahead_stage_);
      if (pass(ahead_)) {
        if (ahead_.row < static_cast<int>(rotary_.rows())) enter_reading();
      } else if (ahead_.tensor < 2) {
        from_ += kStepHeads * rotary_.tensors[ahead_.tensor].in_strides.head;
      }
    }
    end_copies();
  }
  POSENC_HD void copy_words() const {
    Word* const to = copied(ahead_stage_);
    if (ahead_.tensor == 2) {
      for_each_value(ahead_.step, [&](int i, int head, int dim) {
        copy_word<T, kVector>(from_ + head * args_.v.in_strides.head + dim, to + i * kLanes);
      });
      return;
    }
    const int64_t apart = kHeads * rotary_.tensors[ahead_.tensor].in_strides.head;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (ahead_.heads <= i * kHeads) continue;
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
        copy_word<T, kVector>(from_ + i * apart + word * kUnit, to + (i * kWords + word) * kLanes);
      }
    }
  }

  // Without a norm the roots of the step before are still there.
  POSENC_HD void scale_roots() {
    const Number factor = here_.tensor == 0 ? *Warp::query_factor() : Number(1);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) roots_[i] = args_.norm ? roots_[i] * factor : factor;
  }

  // Bit for bit.
  POSENC_HD void write_values() const {
    if (key_ == nullptr) return;
    for_each_value(here_.step, [&](int i, int head, int dim) {
      write_packet<T, kVector>(unpack<T, kVector>(words_[i / kWords][i % kWords]),
                               key_ + head * args_.values.head_stride + dim);
    });
  }

  // kRounds: steps are rounded to the format of x, no product is fused with a sum.
  template <bool kRounds>
  POSENC_HD void write_heads() const {
    const int64_t out_apart = kHeads * rotary_.tensors[here_.tensor].out_strides.head;
    const int64_t key_apart = kHeads * args_.keys.head_stride;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (here_.heads <= i * kHeads) continue;
      const auto put = [&](const Packet<T, kVector>& packet, int word) {
        if (to_ != nullptr) write_packet<T, kVector>(packet, to_ + i * out_apart + word * kUnit);
        if (key_ != nullptr) write_packet<T, kVector>(packet, key_ + i * key_apart + word * kUnit);
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
        if (args_.multiplies()) scale_word<kRounds>(roots_[i], words_[i][word], word, one);
        put(one, word);
      }
    }
  }

  // Some numbers of a word, scaled: weights are 1 where there is no norm, and roots without a
  // factor.
  template <bool kRounds>
  POSENC_HD void take(const WordOf<T, kVector>& word, int first, Number r, int at,
                      Number (&x)[kNumbers]) const {
    const auto factors =
        kept_packet<Number, kNumbers>(Warp::weights(here_.tensor) + at * kUnit + dim() + first);
    const bool round_first = kRounds && args_.rounded_before_weight[here_.tensor];
#pragma unroll
    for (int j = 0; j < kNumbers; ++j) {
      const Number number = real_of<T, kVector>(word, first + j), factor = factors.numbers[j];
      x[j] = kRounds ? Warp::scaled(number, r, factor, round_first) : number * r * factor;
    }
  }
  template <bool kRounds>
  POSENC_HD void turn_numbers(Number& a, Number& b, Number c, Number s) const {
    if constexpr (kRounds) {
      Warp::turn(a, b, c, s);
    } else {
      turn_pair<T, false>(a, b, c, s);
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
      for (int j = 0; j < kNumbers; ++j)
        turn_numbers<kRounds>(a[j], b[j], c.numbers[j], s.numbers[j]);
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
        turn_numbers<kRounds>(x[2 * j], x[2 * j + 1], c.numbers[j], s.numbers[j]);
      }
      put_back(x, first, packet);
    }
  }

  Turns* const turns_;  // [term, pair]
  Word* const copied_;  // [stage, word, lane]
  int warp_;            // of all
  int left_;            // steps of the warp, with this one; not above 0: none
  bool begins_token_;
  Step here_, ahead_;
  int stage_, ahead_stage_;
  const T* from_ = nullptr;
  T *to_ = nullptr, *key_ = nullptr;  // null: nothing goes there
  Word words_[kAhead][kWords];
  Number sums_[kAllSums], roots_[kAhead];
};

// `heads` of the plan are the steps of a token.
template <typename Thread>
NormRotaryPlan plan_norm_rotary_warps(const NormRotaryArgs& args, const Room& room) {
  NormRotaryPlan plan;
  const int64_t rows = args.rotary.rows();
  plan.heads = Thread::steps(args);
  const int64_t all = rows * plan.heads;
  if (all == 0) return plan;
  plan.own_angles = true;
  plan.threads_x = kLanes;
  plan.threads_y = static_cast<int>(std::min<int64_t>(all, Policy::kWarpThreads / kLanes));
  plan.shared_bytes = Thread::shared_bytes(args, plan.threads_y);
  // As many to one warp as to the next, of those that are there at a time: what a block prepares is
  // prepared once, and the words of a step arrive during those before it.
  const int64_t places = room.blocks(plan.threads(), plan.shared_bytes);
  plan.take_pieces(std::min(places, divide_up(all, plan.threads_y)), 1, room.limit);
  plan.warps = static_cast<int>(plan.pieces_x * plan.threads_y);
  plan.rounds = static_cast<int>(rows / plan.warps);
  plan.rest_steps = static_cast<int>(divide_up(rows % plan.warps * plan.heads, plan.warps));
  plan.by_heads = Divisor(plan.heads);
  plan.by_tokens = Divisor(args.rotary.tokens);
  return plan;
}

}  // namespace posenc::cuda
