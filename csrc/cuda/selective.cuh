// Rotations by angles that data decide, on a GPU: core/rotary.h has what they are. Plain C++ as
// well, which tests run on the host (on_host/).
//
//   row       | segment | segment | segment |      some tokens each
//   thread    a few neighboring pairs of one head of steps, in one segment
//
//   1. totals    the steps of each segment, summed                     no rotation yet
//   2. scan      what the segments of a row begin with, state included
//   3. walk      token by token: the step is added, the pairs of all heads of q and k that share it
//                are turned and written
//
// 1 and 2 are in selective_scan.cuh, 3 is here. All use selective_segments.cuh and
// selective_steps.cuh.
//
// A row of few tokens is one segment, and then 3 is all. Phases are integers, so the results do not
// depend on how rows are cut.
//
// A step that is no angle (NaN, infinite, above 2^31) makes the angles of its pair NaN from its
// token to the end of the row. Phases cannot say so: a flag goes with each of them.
//
// Bytes for each pair and token, of one head of q and one of k for each of steps, in segments of 16
// tokens (4096 tokens of 8 heads): q and k are read and written, steps are read twice, and phases
// and flags are written, read, written and read, 10 bytes each time, once a segment.
//
//                        q and k       steps     segments     all    copy of q, k and steps
//   float32              16 + 16       4 + 4     40 / 16      42.5   36     0.85
//   bfloat16              8 +  8       2 + 2     40 / 16      22.5   18     0.80
//   bfloat16, float32     8 +  8       4 + 4     40 / 16      26.5   20     0.75
//
// The scan reads its phases once more, from a cache. Where the second-level cache (50 MB on an
// H100) still has the steps (8 MiB in float32), memory delivers less, and the last column is 0.94,
// 0.88 and 0.89. More heads of q for each of steps bring it nearer to 1.
#pragma once

#include <cstdint>

#include "core/rotary.h"
#include "core/visit_type.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/room.h"
#include "cuda/rotary_plan.cuh"
#include "cuda/selective_segments.cuh"
#include "cuda/selective_steps.cuh"

namespace posenc::cuda {

// A thread's place in the call and its phases: of the rotation, forwards or back.
template <typename T, int kVector, bool kInterleaved, typename Step>
class SelectiveWalk : public RotaryBlock<T, kVector, kInterleaved> {
  using Block = RotaryBlock<T, kVector, kInterleaved>;

 public:
  using Block::kPairs;
  using typename Block::Next;
  using typename Block::Number;

 protected:
  POSENC_HD SelectiveWalk(const SelectiveArgs& args, const SelectivePlan& plan, int x, int y)
      : Block(args.rotary, plan, nullptr, x, y, 0), selective_(args), plan_(plan) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const int64_t column = piece_y * plan_.threads_x + this->x_;
    number_ = piece_x * plan_.threads_y + this->y_;
    segment_ = segment_of(selective_, plan_.cut, number_);
    this->working_ = segment_.there && column < plan_.columns;
    if (!this->working_) return;
    head_ = divide(column, plan_.vectors);
    const int64_t vector = column - head_ * plan_.vectors;
    this->rotates_ = vector < plan_.rotated;
    pair_ = vector * kPairs;
    this->dim_ = this->rotates_
                     ? this->template rotated_dim<int64_t>(vector, this->args_.half_block)
                     : this->template copied_dim<int64_t>(vector - plan_.rotated);
    if constexpr (Block::kRearranges) {
      this->in_dim_ = this->rotates_
                          ? this->template rotated_dim<int64_t>(vector, this->args_.in_half_block)
                          : this->dim_;
    }
    this->batch_ = segment_.batch;
    this->token_ = segment_.first;
    const RotaryTensor &q = this->args_.tensors[0], &k = this->args_.tensors[1];
    in_ = first(this->in_dim(), q.in, q.in_strides, k.in, k.in_strides);
    out_ = first(this->dim_, q.out, q.out_strides, k.out, k.out_strides);
  }

  // Where the heads of the first token are; see RotaryBlock::first. They are counted through q and
  // k.
  POSENC_HD Next first(int64_t dim, const void* q, const HeadStrides& q_strides, const void* k,
                       const HeadStrides& k_strides) const {
    const int64_t apart = reinterpret_cast<int64_t>(k) - reinterpret_cast<int64_t>(q);
    const int64_t k_heads = plan_.heads - plan_.q_heads;
    return {this->template place<int64_t>(q_strides, head_ * plan_.q_heads, dim),
            apart + this->template place<int64_t>(k_strides, head_ * k_heads - plan_.q_heads, dim)};
  }

  static POSENC_HD void next_token(Next& at, const HeadSteps& steps) {
    at.q += steps.q;
    at.k += steps.k;
  }

  POSENC_HD int heads() const { return plan_.thread_heads; }
  POSENC_HD bool of_q(int head) const { return head < plan_.thread_q_heads; }

  // The phases before the segment.
  POSENC_HD void begin_phases() {
    const int64_t pairs = this->args_.pairs;
    step_at_ =
        place_of_step(selective_.steps_strides, segment_.batch, segment_.first, head_, pair_);
    phases_.lost = 0;
    if (!plan_.cut.several) {
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        phases_.sums[j] = state_before(selective_, segment_.row, head_, pair_ + j);
      }
      return;
    }
    const SelectiveWorkspace from(selective_, plan_.cut);
    const int64_t at = (number_ * selective_.heads + head_) * pairs + pair_;
    uint16_t flags[kPairs];
    read_neighbours<uint64_t, kPairs>(from.phases + at, phases_.sums);
    read_neighbours<uint16_t, kPairs>(from.flags + at, flags);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) phases_.lost |= uint32_t{flags[j]} << j;
  }

  // The steps of the next token.
  POSENC_HD void read_steps() {
    steps_.read(selective_, plan_.wide_steps, step_at_);
    step_at_ += selective_.steps_strides.token;
  }

  // Cosines and sines of the token that has these steps.
  POSENC_HD void take_angles(const Steps<Step, kPairs>& steps, Packet<Number, kPairs>& c,
                             Packet<Number, kPairs>& s) {
    phases_.add(steps, selective_.steps_dtype);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const auto angle = multiplied<T>(this->args_, sincos<Number>(phases_.sums[j]), false);
      c.numbers[j] = angle.cosine;
      s.numbers[j] = angle.sine;
    }
    if (phases_.lost == 0) return;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if ((phases_.lost >> j & 1) == 0) continue;
      c.numbers[j] = s.numbers[j] = static_cast<Number>(float_from_bits(0x7fffffff));
    }
  }

  POSENC_HD void write_after() const {
    if (!segment_.last || selective_.after == nullptr) return;
    int64_t* const to =
        selective_.after + (segment_.row * selective_.heads + head_) * this->args_.pairs + pair_;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      write_packet<int64_t, 1>({{static_cast<int64_t>(phases_.sums[j])}}, to + j);
    }
  }

  // The thread's dims of all tokens and heads, as they are: some tokens at a time.
  POSENC_HD void copy_tokens() const {
    constexpr int kTokens = Policy::kHeads;
    Next in = in_, out = out_;
    for (int head = 0; head < heads(); ++head) {
      int64_t from = Block::take(in, plan_.in, of_q(head));
      int64_t to = Block::take(out, plan_.out, of_q(head));
      const int64_t from_step = of_q(head) ? plan_.in_token.q : plan_.in_token.k;
      const int64_t to_step = of_q(head) ? plan_.out_token.q : plan_.out_token.k;
      for (int64_t token = 0; token < segment_.count; token += kTokens) {
        WordOf<T, kVector> words[kTokens];
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
          if (token + i >= segment_.count) continue;
          words[i] = read_word<T, kVector>(Block::at(this->args_.tensors[0].in, from));
          from += from_step;
        }
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
          if (token + i >= segment_.count) continue;
          write_packet<T, kVector>(unpack<T, kVector>(words[i]),
                                   Block::at(this->args_.tensors[0].out, to));
          to += to_step;
        }
      }
    }
  }

  const SelectiveArgs& selective_;
  const SelectivePlan& plan_;

  Segment segment_;
  int64_t number_, head_, pair_, step_at_;
  Phases<Step, kPairs> phases_;
  Steps<Step, kPairs> steps_;
  Next in_, out_;
};

template <typename T, int kVector, bool kInterleaved, typename Step>
class SelectiveThread : public SelectiveWalk<T, kVector, kInterleaved, Step> {
  using Walk = SelectiveWalk<T, kVector, kInterleaved, Step>;
  using Block = RotaryBlock<T, kVector, kInterleaved>;
  using typename Walk::Number, typename Walk::Next;
  using Walk::heads, Walk::of_q, Walk::plan_, Walk::segment_, Walk::in_, Walk::out_;

 public:
  using Walk::kPairs;
  static constexpr int kHeads = Policy::kHeads;

  POSENC_HD SelectiveThread(const SelectiveParameters& parameters, char* /*shared*/, int x, int y)
      : Walk(parameters.args, parameters.plan, x, y) {}

  POSENC_HD void rotate(int64_t piece_x, int64_t piece_y) {
    this->begin(piece_x, piece_y);
    if (!this->working_) return;
    if (!this->rotates_) return this->copy_tokens();
    this->begin_phases();
    const int count = static_cast<int>(segment_.count);
    if (count > 0) this->read_steps();
    for (int token = 0; token < count; ++token) rotate_token(count - 1 - token);
    this->write_after();
  }

 private:
  // rest: tokens behind it. Its steps have been read; its first heads and the next token's steps
  // are on their way while its angles are computed.
  POSENC_HD void rotate_token(int rest) {
    const RotaryArgs& args = this->args_;
    const HeadStrides &q = args.tensors[0].out_strides, &k = args.tensors[1].out_strides;
    const auto steps = this->steps_;
    Next in = in_, out = out_;
    read(0, in);
    if (rest > 0) this->read_steps();
    if (rest >= kAhead) request_token();
    Packet<Number, kPairs> c, s;
    this->take_angles(steps, c, s);
    for (int head = 0; head < heads(); head += kHeads) {
      if (head > 0) read(head, in);
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (head + i >= heads()) continue;
        const bool is_q = of_q(head + i);
        const auto x = Block::pairs_of(first_[i], second_[kInterleaved ? 0 : i]);
        Block::write(Block::template turn<false>(x, c, s),
                     Block::at(args.tensors[0].out, Block::take(out, plan_.out, is_q)),
                     Block::partner(args.half_block, q, k, is_q));
      }
    }
    Walk::next_token(in_, plan_.in_token);
    Walk::next_token(out_, plan_.out_token);
  }

  // Nothing is looked at here, so that all of it is on its way at once.
  POSENC_HD void read(int head, Next& in) {
    const HeadStrides &q = this->args_.tensors[0].in_strides,
                      &k = this->args_.tensors[1].in_strides;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (head + i >= heads()) continue;
      const bool is_q = of_q(head + i);
      const T* const data = Block::at(this->args_.tensors[0].in, Block::take(in, plan_.in, is_q));
      first_[i] = read_word<T, kVector>(data);
      if constexpr (!kInterleaved) {
        second_[i] =
            read_word<T, kVector>(data + Block::partner(this->in_half_block(), q, k, is_q));
      }
    }
  }

  // The first heads of the token kAhead tokens on.
  POSENC_HD void request_token() const {
    const HeadStrides &q = this->args_.tensors[0].in_strides,
                      &k = this->args_.tensors[1].in_strides;
    Next in{in_.q + kAhead * plan_.in_token.q, in_.k + kAhead * plan_.in_token.k};
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (i >= heads()) continue;
      const bool is_q = of_q(i);
      const T* const data = Block::at(this->args_.tensors[0].in, Block::take(in, plan_.in, is_q));
      request(data);
      if constexpr (!kInterleaved) {
        request(data + Block::partner(this->in_half_block(), q, k, is_q));
      }
    }
  }

  static constexpr int kAhead = Policy::kTokensAhead;

  WordOf<T, kVector> first_[kHeads];
  WordOf<T, kVector> second_[kInterleaved ? 1 : kHeads];
};

// ---------------------------------------------------------------------------------------------
// On the host: which threads, how many of them

inline HeadSteps token_steps(const HeadStrides& q, const HeadStrides& k, int64_t size) {
  return {q.token * size, k.token * size};
}

template <typename Thread>
SelectivePlan plan_walk(const SelectiveArgs& args, GridLimit limit = {}) {
  const RotaryArgs& rotary = args.rotary;
  const RotaryTensor &q = rotary.tensors[0], &k = rotary.tensors[1];
  bool in_place = true;
  for (int i = 0; i < rotary.tensor_count; ++i) {
    in_place = in_place && rotary.tensors[i].in == rotary.tensors[i].out;
  }
  const int64_t rotated = rotary.pairs / Thread::kPairs;
  const int64_t copied = in_place ? 0 : (rotary.head_dim - 2 * rotary.pairs) / Thread::kWidth;
  SelectivePlan plan = plan_segments(cut_selective(args), args.heads * (rotated + copied), limit);
  if (plan.pieces_x == 0) return plan;
  plan.rotated = rotated;
  plan.vectors = rotated + copied;
  plan.q_heads = q.heads / args.heads;
  plan.heads = plan.q_heads + k.heads / args.heads;
  plan.thread_heads = static_cast<int>(plan.heads);
  plan.thread_q_heads = static_cast<int>(plan.q_heads);
  const int64_t size = item_size(rotary.dtype);
  plan.in = {q.in_strides.head * size, k.in_strides.head * size};
  plan.out = {q.out_strides.head * size, k.out_strides.head * size};
  plan.in_token = token_steps(q.in_strides, k.in_strides, size);
  plan.out_token = token_steps(q.out_strides, k.out_strides, size);
  plan.wide_steps = is_wide(args, args.steps, args.steps_strides, Thread::kPairs);
  return plan;
}

// The widest thread of which fits(width, interleaved) is true: of four pairs, or two, or one. Steps
// of float64 beside x of another format are few calls: they go the way of single numbers, so that
// there are three kernels for them instead of nine.
template <template <typename, int, bool, typename> class Thread, typename T, typename Step,
          typename Fits, typename Visit>
auto visit_walk(const Fits& fits, const Visit& visit) {
  if constexpr (sizeof(Step) <= sizeof(Real<T>)) {
    constexpr int kWide = 16 / sizeof(T), kNear = kWide < 4 ? kWide : 4;
    if (fits(kWide, true)) return visit(static_cast<Thread<T, kWide, true, Step>*>(nullptr));
    if (fits(kNear, false)) return visit(static_cast<Thread<T, kNear, false, Step>*>(nullptr));
  }
  return visit(static_cast<Thread<T, 1, false, Step>*>(nullptr));
}

template <template <typename, int, bool, typename> class Thread, typename Fits, typename Visit>
auto visit_walk(const SelectiveArgs& args, const Fits& fits, const Visit& visit) {
  return visit_type(args.rotary.dtype, [&](auto type) {
    return visit_step(args, [&](auto step) {
      return visit_walk<Thread, decltype(type), decltype(step)>(fits, visit);
    });
  });
}

template <typename Visit>
auto visit_selective_thread(const SelectiveArgs& args, const Visit& visit) {
  return visit_walk<SelectiveThread>(
      args, [&](int width, bool near) { return fits(args.rotary, width, near); }, visit);
}

}  // namespace posenc::cuda
