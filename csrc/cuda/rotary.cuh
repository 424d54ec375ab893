// Rotary encoding on a GPU: what one thread does, and how a launch covers a call. Plain C++ as
// well, which tests run on the host (on_host/).
//
//   block     some tokens (y), some vectors of a head (x), groups of heads (z)
//
//   1. frequencies  inv_freq -> turns in shared memory      once a block
//   2. angles       cosines and sines in shared memory      once for each token and pair
//   3. rotation     a thread keeps its token's and vector's angles in registers and goes through
//                   its heads, of q and of k: reads some, then turns and writes them
//
//   a thread's vector of a head, kVector numbers in one access:
//     kInterleaved     a0 b0 a1 b1 ...        kVector / 2 pairs
//     otherwise        a0 a1 a2 a3 ...        kVector pairs; the partners b0 b1 ... lie half_block
//                                             further on, in a second access
//   kVector == 1 is the way for whatever is not aligned, not contiguous or not a multiple.
#pragma once

#include <algorithm>

#include "core/rotary.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"

namespace posenc::cuda {

struct RotaryPlan {
  int64_t rotated = 0;  // vectors of a head that hold pairs ...
  int64_t vectors = 0;  // ... and those that are only copied, after them
  int threads_x = 1, threads_y = 1, threads_z = 1;
  int64_t pieces_x = 0, pieces_y = 0;  // along rows = batch * tokens; along the other two:
  int64_t vector_blocks = 0;           // pieces along the vectors of a head
  int64_t head_blocks = 1;             // and along heads
  int64_t grid_x = 0, grid_y = 0;
  size_t shared_bytes = 0;
};

struct RotaryParameters {
  RotaryArgs args;
  RotaryPlan plan;
};

// The thread (x, y, z) of a block: its place in the call, and the angles that the block shares.
template <typename T, int kVector, bool kInterleaved>
class RotaryBlock {
 public:
  static constexpr int kWidth = kVector;
  static constexpr int kPairs = kInterleaved ? kVector / 2 : kVector;

  static size_t shared_bytes(int64_t vectors, int64_t terms, const RotaryPlan& plan) {
    return static_cast<size_t>(vectors * kPairs) *
           (static_cast<size_t>(terms) * sizeof(Turns) +
            2 * sizeof(Number) * static_cast<size_t>(plan.threads_y));
  }

 protected:
  using Number = Real<T>;

  POSENC_HD RotaryBlock(const RotaryArgs& args, const RotaryPlan& plan, char* shared, int x, int y,
                        int z)
      : args_(args), plan_(plan), shared_(shared), x_(x), y_(y), z_(z) {}

  POSENC_HD void take_vectors(int64_t vector_block) {
    const int64_t first_vector = vector_block * plan_.threads_x;
    const int64_t last_vector = min64(first_vector + plan_.threads_x, plan_.rotated);
    first_pair_ = first_vector * kPairs;
    block_pairs_ = last_vector > first_vector ? int(last_vector - first_vector) * kPairs : 0;
    const int64_t vector = first_vector + x_;
    rotates_ = vector < plan_.rotated;
    there_ = vector < plan_.vectors;
    dim_ = rotates_ ? rotated_dim(vector) : copied_dim(vector - plan_.rotated);
  }

  POSENC_HD void take_row(int64_t row) {
    in_range_ = row < args_.rows();
    working_ = in_range_ && there_;
    batch_ = divide(row, args_.tokens);
    token_ = row - batch_ * args_.tokens;
  }

  // Of one head, where each has its own.
  POSENC_HD void frequencies(int64_t head) {
    if (args_.inv_freq.data == nullptr) return;
    for (int term = 0; term < args_.inv_freq.terms(); ++term) {
      for (int i = thread(); i < block_pairs_; i += threads()) {
        turns()[term * block_pairs_ + i] = args_.inv_freq.turns(term, head, first_pair_ + i);
      }
    }
  }

  // Of the token of this y, shared out over x and z.
  POSENC_HD void angles() {
    if (!in_range_) return;
    const Number scale = static_cast<Number>(args_.scale);
    const Number sine_scale = args_.inverse ? -scale : scale;
    Number* const cosine = cosines() + y_ * block_pairs_;
    Number* const sine = sines() + y_ * block_pairs_;
    const int64_t offset =
        batch_ * args_.position_batch_stride + token_ * args_.position_token_stride;
    Position position{0, 0};
    const bool summed = args_.inv_freq.axes > 0;
    if (args_.cosine == nullptr && args_.axis_map.data == nullptr && !summed) {
      position = args_.positions.at(offset);
    }
    for (int i = z_ * plan_.threads_x + x_; i < block_pairs_;
         i += plan_.threads_x * plan_.threads_z) {
      Number c, s;
      if (args_.cosine == nullptr) {
        if (args_.axis_map.data != nullptr) {
          const int64_t axis = args_.axis_map.clamped(first_pair_ + i);
          position = args_.positions.at(offset + axis * args_.positions.axis_stride);
        }
        uint64_t turned = 0;
        if (summed) {
          for (int axis = 0; axis < args_.inv_freq.axes; ++axis) {
            const int64_t at = offset + axis * args_.positions.axis_stride;
            turned += phase(args_.positions.at(at), turns()[axis * block_pairs_ + i]);
          }
        } else {
          turned = phase(position, turns()[i]);
        }
        const SinCos<Number> angle = sincos<Number>(turned);
        c = angle.cosine;
        s = angle.sine;
      } else {
        c = table(args_.cosine, args_.cosine_strides, first_pair_ + i);
        s = table(args_.sine, args_.sine_strides, first_pair_ + i);
      }
      cosine[i] = args_.as_written ? rounded(c * scale) : c * scale;
      sine[i] = args_.as_written ? rounded(s * sine_scale) : s * sine_scale;
    }
  }

  static POSENC_HD int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

  // As a number of the format of x.
  static POSENC_HD Number rounded(Number value) { return to_real(round_to<T>(value)); }

  POSENC_HD int threads() const { return plan_.threads_x * plan_.threads_y * plan_.threads_z; }
  POSENC_HD int thread() const { return (z_ * plan_.threads_y + y_) * plan_.threads_x + x_; }

  // Shared memory: turns[terms, block_pairs], then cosines and sines, [threads_y, block_pairs]
  // each.
  POSENC_HD Turns* turns() const { return reinterpret_cast<Turns*>(shared_); }
  POSENC_HD Number* cosines() const {
    return reinterpret_cast<Number*>(turns() + args_.inv_freq.terms() * block_pairs_);
  }
  POSENC_HD Number* sines() const { return cosines() + plan_.threads_y * block_pairs_; }

  POSENC_HD int64_t rotated_dim(int64_t vector) const {
    if (kInterleaved) return args_.start + vector * kVector;
    const int64_t pair = vector * kVector;
    const int64_t block = divide(pair, args_.half_block);
    return args_.start + pair + block * args_.half_block;
  }

  // Before the slice, then after it.
  POSENC_HD int64_t copied_dim(int64_t vector) const {
    const int64_t dim = vector * kVector;
    return dim < args_.start ? dim : dim + 2 * args_.pairs;
  }

  POSENC_HD Number table(const void* data, const int64_t* strides, int64_t pair) const {
    const int64_t at = batch_ * strides[0] + token_ * strides[1] + pair * strides[2];
    switch (args_.table_dtype) {
      case Dtype::kFloat16:
        return to_float(static_cast<const Float16*>(data)[at]);
      case Dtype::kBFloat16:
        return to_float(static_cast<const BFloat16*>(data)[at]);
      case Dtype::kFloat32:
        return static_cast<const float*>(data)[at];
      default:
        return static_cast<Number>(static_cast<const double*>(data)[at]);
    }
  }

  // Element strides of the dims are 1 but on the way of single numbers.
  static POSENC_HD int64_t dim_stride(const HeadStrides& strides) {
    return kVector == 1 ? strides.dim : 1;
  }

  // Where the token's and thread's numbers of head 0 are.
  POSENC_HD int64_t row(const HeadStrides& strides) const {
    return batch_ * strides.batch + token_ * strides.token + dim_ * dim_stride(strides);
  }

  // Where the next head is, if it is one of q and if it is one of k: multiplied out once, and then
  // only added to.
  struct Offsets {
    int64_t q, k;
  };
  struct Place {
    int64_t offset, partner;
  };

  // Of the head that is `steps` heads after the next one.
  POSENC_HD Place place(const Offsets& next, const HeadStrides& q, const HeadStrides& k, bool of_q,
                        int64_t steps) const {
    return {of_q ? next.q + steps * q.head : next.k + steps * k.head,
            args_.half_block * (of_q ? dim_stride(q) : dim_stride(k))};
  }

  static POSENC_HD void advance(Offsets& next, const HeadStrides& q, const HeadStrides& k,
                                int64_t steps) {
    next.q += steps * q.head;
    next.k += steps * k.head;
  }

  // Heads are shared out over z and the head blocks, and counted through q and k.
  POSENC_HD int64_t head_step() const { return plan_.head_blocks * plan_.threads_z; }

  // Turned pairs, not yet rounded.
  struct Turned {
    Number a[kPairs], b[kPairs];
  };

  // The pairs of one access, or of two.
  static POSENC_HD Turned pairs_of(const WordOf<T, kVector>& first_word,
                                   const WordOf<T, kVector>& second_word) {
    const auto first = unpack<T, kVector>(first_word);
    const auto second = unpack<T, kVector>(second_word);
    Turned pairs;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      pairs.a[j] = to_real(first.numbers[kInterleaved ? 2 * j : j]);
      pairs.b[j] = to_real(kInterleaved ? first.numbers[(2 * j + 1) % kVector] : second.numbers[j]);
    }
    return pairs;
  }

  POSENC_HD Turned turn(const Turned& x, const Packet<Number, kPairs>& c,
                        const Packet<Number, kPairs>& s) const {
    Turned turned;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if (args_.as_written) {
        turned.a[j] = rounded(x.a[j] * c.numbers[j]) - rounded(x.b[j] * s.numbers[j]);
        turned.b[j] = rounded(x.b[j] * c.numbers[j]) + rounded(x.a[j] * s.numbers[j]);
      } else {
        turned.a[j] = multiply_add(x.a[j], c.numbers[j], -(x.b[j] * s.numbers[j]));
        turned.b[j] = multiply_add(x.b[j], c.numbers[j], x.a[j] * s.numbers[j]);
      }
    }
    return turned;
  }

  static POSENC_HD void write(const Turned& turned, T* to, int64_t partner) {
    if constexpr (kInterleaved) {
      Number both[kVector];
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        both[2 * j] = turned.a[j];
        both[2 * j + 1] = turned.b[j];
      }
      write_packet<T, kVector>(round_packet<T, kVector>(both), to);
    } else {
      write_packet<T, kVector>(round_packet<T, kVector>(turned.a), to);
      write_packet<T, kVector>(round_packet<T, kVector>(turned.b), to + partner);
    }
  }

  // Heads first .. heads - 1 of this thread, of which q_heads are of q.
  POSENC_HD void copy(const Offsets& in, const Offsets& out, int64_t first, int64_t q_heads,
                      int64_t heads) const {
    const RotaryTensor& q = args_.tensors[0];
    const RotaryTensor& k = args_.tensors[1];
    for (int64_t head = first; head < heads; head += head_step()) {
      const bool of_q = head < q_heads;
      const Place from = place(in, q.in_strides, k.in_strides, of_q, head - first);
      const Place to = place(out, q.out_strides, k.out_strides, of_q, head - first);
      const T* const data = static_cast<const T*>(of_q ? q.in : k.in) + from.offset;
      write_packet<T, kVector>(read_packet<T, kVector>(data),
                               static_cast<T*>(of_q ? q.out : k.out) + to.offset);
    }
  }

  const RotaryArgs& args_;
  const RotaryPlan& plan_;
  char* const shared_;
  const int x_, y_, z_;

  bool in_range_, there_, working_, rotates_;
  int block_pairs_;
  int64_t first_pair_, batch_, token_, dim_;
};

// At its work on one of the pieces that the grid consists of.
template <typename T, int kVector, bool kInterleaved>
class RotaryThread : public RotaryBlock<T, kVector, kInterleaved> {
  using Block = RotaryBlock<T, kVector, kInterleaved>;
  using Block::args_, Block::plan_, Block::row, Block::place, Block::head_step;
  using typename Block::Number, typename Block::Offsets, typename Block::Place;

 public:
  using Block::kPairs;

  POSENC_HD RotaryThread(const RotaryParameters& parameters, char* shared, int x, int y, int z)
      : Block(parameters.args, parameters.plan, shared, x, y, z) {}

  // Takes up a piece and requests the first heads, which arrive while angles are computed.
  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const int64_t head_block = divide(piece_y, plan_.vector_blocks);
    this->take_vectors(piece_y - head_block * plan_.vector_blocks);
    this->take_row(piece_x * plan_.threads_y + this->y_);
    first_head_ = head_block * plan_.threads_z + this->z_;
    in_ = first_offsets(args_.tensors[0].in_strides, args_.tensors[1].in_strides);
    out_ = first_offsets(args_.tensors[0].out_strides, args_.tensors[1].out_strides);
    if (this->working_ && this->rotates_) read(first_head_);
  }

  POSENC_HD void frequencies() { Block::frequencies(0); }

  using Block::angles;

  POSENC_HD void rotate() {
    if (!this->working_) return;
    if (!this->rotates_) {
      return this->copy(in_, out_, first_head_, args_.tensors[0].heads, heads());
    }
    const int at = this->y_ * this->block_pairs_ + this->x_ * kPairs;
    const auto c = kept_packet<Number, kPairs>(this->cosines() + at);
    const auto s = kept_packet<Number, kPairs>(this->sines() + at);
    const RotaryTensor& q = args_.tensors[0];
    const RotaryTensor& k = args_.tensors[1];
    const int64_t step = head_step();
    for (int64_t head = first_head_; head < heads(); head += Policy::kHeads * step) {
      if (head != first_head_) read(head);
#pragma unroll
      for (int i = 0; i < Policy::kHeads; ++i) {
        const int64_t one = head + i * step;
        if (one >= heads()) continue;
        const bool of_q = one < q.heads;
        const Place to = place(out_, q.out_strides, k.out_strides, of_q, i * step);
        const auto x = Block::pairs_of(first_[i], second_[kInterleaved ? 0 : i]);
        Block::write(this->turn(x, c, s), static_cast<T*>(of_q ? q.out : k.out) + to.offset,
                     to.partner);
      }
      Block::advance(out_, q.out_strides, k.out_strides, Policy::kHeads * step);
    }
  }

 private:
  // No index into args_.tensors that is not known to the compiler: kernel parameters would be
  // copied to memory for it.
  POSENC_HD int64_t heads() const { return args_.tensors[0].heads + args_.tensors[1].heads; }

  POSENC_HD Offsets first_offsets(const HeadStrides& q, const HeadStrides& k) const {
    return {row(q) + first_head_ * q.head,
            row(k) + (first_head_ - args_.tensors[0].heads) * k.head};
  }

  // Nothing is looked at here, so that all of it is on its way at once.
  POSENC_HD void read(int64_t head) {
    const RotaryTensor& q = args_.tensors[0];
    const RotaryTensor& k = args_.tensors[1];
    const int64_t step = head_step();
#pragma unroll
    for (int i = 0; i < Policy::kHeads; ++i) {
      const int64_t one = head + i * step;
      if (one >= heads()) continue;
      const bool of_q = one < q.heads;
      const Place from = place(in_, q.in_strides, k.in_strides, of_q, i * step);
      const T* const data = static_cast<const T*>(of_q ? q.in : k.in) + from.offset;
      first_[i] = read_word<T, kVector>(data);
      if constexpr (!kInterleaved) second_[i] = read_word<T, kVector>(data + from.partner);
    }
    Block::advance(in_, q.in_strides, k.in_strides, Policy::kHeads * step);
  }

  int64_t first_head_;
  Offsets in_, out_;
  WordOf<T, kVector> first_[Policy::kHeads];
  WordOf<T, kVector> second_[kInterleaved ? 1 : Policy::kHeads];
};

// ---------------------------------------------------------------------------------------------
// On the host: which thread, how many of them

// Whether every access of `width` numbers is aligned and lies inside its part of a head.
inline bool fits(const RotaryArgs& args, int width, bool interleaved) {
  if (interleaved && args.half_block != 1) return false;
  const int64_t run = interleaved ? 2 * args.pairs : args.half_block;
  int64_t multiples = run | args.start | (args.head_dim - args.start - 2 * args.pairs);
  for (int i = 0; i < args.tensor_count; ++i) {
    const RotaryTensor& tensor = args.tensors[i];
    if (tensor.heads == 0) continue;
    for (const HeadStrides* strides : {&tensor.in_strides, &tensor.out_strides}) {
      if (strides->dim != 1) return false;
      if (args.batch > 1) multiples |= strides->batch;
      if (args.tokens > 1) multiples |= strides->token;
      if (tensor.heads > 1) multiples |= strides->head;
    }
    const int64_t size = item_size(args.dtype);
    for (const void* data : {tensor.in, static_cast<const void*>(tensor.out)}) {
      if (reinterpret_cast<int64_t>(data) % (width * size) != 0) return false;
    }
  }
  return multiples % width == 0;
}

// Calls visit(thread type) for the widest access of which fits(width, interleaved) is true.
template <template <typename, int, bool> class Thread, typename T, typename Fits, typename Visit>
auto visit_access(const Fits& fits, const Visit& visit) {
  constexpr int kWide = 16 / sizeof(T), kHalf = kWide / 2;
  if (fits(kWide, true)) return visit(static_cast<Thread<T, kWide, true>*>(nullptr));
  if constexpr (kHalf > 1) {
    if (fits(kHalf, true)) return visit(static_cast<Thread<T, kHalf, true>*>(nullptr));
  }
  if (fits(kWide, false)) return visit(static_cast<Thread<T, kWide, false>*>(nullptr));
  if constexpr (kHalf > 1) {
    if (fits(kHalf, false)) return visit(static_cast<Thread<T, kHalf, false>*>(nullptr));
  }
  return visit(static_cast<Thread<T, 1, false>*>(nullptr));
}

template <template <typename, int, bool> class Thread, typename Fits, typename Visit>
auto visit_access(Dtype dtype, const Fits& fits, const Visit& visit) {
  switch (dtype) {
    case Dtype::kFloat16:
      return visit_access<Thread, Float16>(fits, visit);
    case Dtype::kBFloat16:
      return visit_access<Thread, BFloat16>(fits, visit);
    case Dtype::kFloat32:
      return visit_access<Thread, float>(fits, visit);
    default:
      return visit_access<Thread, double>(fits, visit);
  }
}

template <typename Visit>
auto visit_rotary_thread(const RotaryArgs& args, const Visit& visit) {
  return visit_access<RotaryThread>(
      args.dtype, [&](int width, bool interleaved) { return fits(args, width, interleaved); },
      visit);
}

template <typename Thread>
RotaryPlan plan_rotary(const RotaryArgs& args, GridLimit limit = {},
                       int64_t most_vectors = Policy::kRowVectors) {
  RotaryPlan plan;
  const int64_t heads = args.tensors[0].heads + args.tensors[1].heads;
  bool in_place = true;
  for (int i = 0; i < args.tensor_count; ++i) {
    in_place = in_place && args.tensors[i].in == args.tensors[i].out;
  }
  plan.rotated = args.pairs / Thread::kPairs;
  plan.vectors = plan.rotated;
  if (!in_place) plan.vectors += (args.head_dim - 2 * args.pairs) / Thread::kWidth;
  if (args.rows() == 0 || heads == 0 || plan.vectors == 0) return plan;

  const auto clamp = [](int64_t value, int64_t least, int64_t most) {
    return static_cast<int>(std::max(least, std::min(value, most)));
  };
  plan.threads_x = clamp(plan.vectors, 1, most_vectors);
  plan.vector_blocks = divide_up(plan.vectors, plan.threads_x);
  // As many heads to a thread as it keeps in flight; fewer where that would leave the GPU idle, and
  // the heads of a token in several blocks where even all their threads would.
  const int64_t rows = args.rows();
  const int64_t most_groups = std::min<int64_t>(Policy::kThreads / plan.threads_x, 64);
  const int64_t all = rows * plan.vectors * heads;
  const int64_t wanted = clamp(all / (Policy::kBlocks * Policy::kThreads), 1, Policy::kHeads);
  if (rows * plan.vector_blocks < Policy::kBlocks) {
    plan.head_blocks = clamp(Policy::kBlocks / (rows * plan.vector_blocks), 1,
                             divide_up(divide_up(heads, wanted), most_groups));
  }
  const int64_t block_heads = divide_up(heads, plan.head_blocks);
  const int64_t thread_heads = std::max(wanted, divide_up(block_heads, most_groups));
  plan.threads_z = static_cast<int>(divide_up(block_heads, thread_heads));
  plan.threads_y = clamp(Policy::kThreads / (plan.threads_x * plan.threads_z), 1,
                         std::max<int64_t>(rows / Policy::kBlocks, 1));
  plan.pieces_x = divide_up(rows, plan.threads_y);
  plan.pieces_y = plan.vector_blocks * plan.head_blocks;
  plan.grid_x = std::min(plan.pieces_x, limit.x);
  plan.grid_y = std::min(plan.pieces_y, limit.y);
  plan.shared_bytes = Thread::shared_bytes(std::min<int64_t>(plan.threads_x, plan.rotated),
                                           args.inv_freq.terms(), plan);
  // Sums over many axes have many frequencies.
  if (plan.shared_bytes > Policy::kSharedBytes && plan.threads_x > 1) {
    return plan_rotary<Thread>(args, limit, plan.threads_x / 2);
  }
  return plan;
}

}  // namespace posenc::cuda
