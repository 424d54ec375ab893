// Rotary encoding on a GPU: what one thread does; rotary_plan.cuh has how a launch covers a call.
// Plain C++ as well, which tests run on the host (on_host/).
//
//   block     some tokens (y), some vectors of a head (x), groups of heads (z)
//
//   1. frequencies  inv_freq -> turns in shared memory      once a block; of very many axes they
//                   are converted where they are needed
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

#include "core/rotary.h"
#include "core/visit_type.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/room.h"
#include "cuda/turning.cuh"

namespace posenc::cuda {

// From a thread's head to its next, in bytes.
struct HeadSteps {
  int64_t q = 0, k = 0;
};

// Pieces are of rows = batch * tokens (x), and of groups of heads that share their frequencies, of
// heads and of vectors (y).
struct RotaryPlan : LaunchPlan {
  int64_t rotated = 0;             // vectors of a head that hold pairs ...
  int64_t vectors = 0;             // ... and those that are only copied, after them
  int64_t groups = 1;              // heads with angles of their own, or 1
  int64_t q_heads = 0, heads = 0;  // of a group: of q, of both
  int64_t vector_blocks = 0;       // pieces along the vectors of a head
  int64_t head_blocks = 1;         // and along the heads of a group
  // A thread's heads are head_step() apart. It has so many of them, those of q among them, and one
  // more if its first one is below the rest.
  int thread_heads = 0, thread_q_heads = 0;
  int64_t rest = 0, q_rest = 0;
  HeadSteps in, out;
  // What a piece's numbers are divided by to find its place.
  Divisor by_tokens, by_vector_blocks, by_head_blocks;
  bool narrow = false;  // 32 bits hold every index and offset
  bool staged = true;  // frequencies are in shared memory: always, but on the way of single numbers

  POSENC_HD int64_t head_step() const { return head_blocks * threads_z; }
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

  static size_t shared_bytes(const RotaryArgs& args, int64_t vectors, const RotaryPlan& plan) {
    const int64_t terms = plan.staged ? args.inv_freq.terms() : 0;
    return static_cast<size_t>(vectors * kPairs) *
           (static_cast<size_t>(terms) * sizeof(Turns) +
            2 * sizeof(Number) * static_cast<size_t>(plan.threads_y));
  }

 protected:
  using Number = Real<T>;

  POSENC_HD RotaryBlock(const RotaryArgs& args, const RotaryPlan& plan, char* shared, int x, int y,
                        int z)
      : args_(args), plan_(plan), shared_(shared), x_(x), y_(y), z_(z) {}

  // Takes up heads and vectors of a piece.
  template <typename Index>
  POSENC_HD void take_heads(int64_t piece_y) {
    const Index piece = static_cast<Index>(piece_y);
    Index head_block = 0, vector_block = 0, group = 0;
    if (plan_.pieces_y > 1) {
      head_block = plan_.by_vector_blocks.divide(piece);
      vector_block = piece - head_block * static_cast<Index>(plan_.vector_blocks);
      group = plan_.by_head_blocks.divide(head_block);
      head_block -= group * static_cast<Index>(plan_.head_blocks);
    }
    group_ = group;
    first_head_ = head_block * static_cast<Index>(plan_.threads_z) + z_;
    take_vectors<Index>(vector_block * plan_.threads_x);
  }

  template <typename Index>
  POSENC_HD void take_vectors(Index first_vector) {
    const Index rotated = static_cast<Index>(plan_.rotated);
    const Index count = rotated - first_vector;
    const int here = count < plan_.threads_x ? static_cast<int>(count) : plan_.threads_x;
    first_pair_ = first_vector * kPairs;
    block_pairs_ = here > 0 ? here * kPairs : 0;
    const Index vector = first_vector + x_;
    rotates_ = vector < rotated;
    there_ = vector < static_cast<Index>(plan_.vectors);
    dim_ = rotates_ ? rotated_dim<Index>(vector, args_.half_block)
                    : copied_dim<Index>(vector - rotated);
    if constexpr (kRearranges) {
      in_dim_ = rotates_ ? rotated_dim<Index>(vector, args_.in_half_block) : dim_;
    }
  }

  template <typename Index>
  POSENC_HD void take_row(Index row) {
    const Index tokens = static_cast<Index>(args_.tokens);
    in_range_ = row < static_cast<Index>(args_.batch) * tokens;
    working_ = in_range_ && there_;
    const Index batch = plan_.by_tokens.divide(row);
    batch_ = batch;
    token_ = row - batch * tokens;
  }

  // Of numbers that are not negative.
  template <typename Index>
  static POSENC_HD Index quotient(Index a, int64_t b) {
    if constexpr (sizeof(Index) == 8) return divide(a, b);
    return static_cast<Index>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b));
  }

  // Reads the thread's first frequency, which frequencies() takes: memory delivers it meanwhile.
  POSENC_HD void read_frequency() {
    if (!has_frequencies() || !staged() || thread() >= block_pairs_) return;
    first_frequency_ = args_.inv_freq.bits(0, group_, first_pair_ + thread());
  }

  // Of the group.
  POSENC_HD void frequencies() {
    if (!has_frequencies() || !staged()) return;
    uint64_t bits = first_frequency_;
    for (int term = 0; term < args_.inv_freq.terms(); ++term) {
      for (int i = thread(); i < block_pairs_; i += threads()) {
        if (term > 0 || i != thread()) bits = args_.inv_freq.bits(term, group_, first_pair_ + i);
        turns()[term * block_pairs_ + i] = args_.inv_freq.turns_of(bits);
      }
    }
  }

  // Whether threads wait for frequencies of each other.
  POSENC_HD bool has_frequencies() const { return args_.inv_freq.data != nullptr; }

  // The position of the row, where all pairs have the same one.
  POSENC_HD Position row_position() const {
    if (!in_range_ || !has_frequencies() || args_.axis_map.data != nullptr ||
        args_.inv_freq.axes > 0) {
      return {0, 0};
    }
    return args_.positions.at(position_offset());
  }

  // Of the token of this y, shared out over x and z. kTables: whether they may come from tables.
  template <bool kTables>
  POSENC_HD void angles(Position position, int buffer = 0) {
    if (!in_range_) return;
    Number* const cosine = cosines(buffer) + y_ * block_pairs_;
    Number* const sine = sines(buffer) + y_ * block_pairs_;
    const int64_t offset = position_offset();
    const bool summed = args_.inv_freq.axes > 0;
    const bool from_tables = kTables && args_.cosine != nullptr;
    const int64_t row = from_tables ? args_.table_rows.row(batch_, token_) : 0;
    for (int i = z_ * plan_.threads_x + x_; i < block_pairs_;
         i += plan_.threads_x * plan_.threads_z) {
      SinCos<Number> angle;
      const bool by_axis = args_.axis_map.data != nullptr;
      const int64_t axis = by_axis ? args_.axis_map.clamped(first_pair_ + i) : 0;
      if (!from_tables) {
        if (by_axis) position = args_.positions.at(offset + axis * args_.positions.axis_stride);
        uint64_t turned = 0;
        if (summed) {
          for (int axis = 0; axis < args_.inv_freq.axes; ++axis) {
            const int64_t at = offset + axis * args_.positions.axis_stride;
            turned += phase(args_.positions.at(at), turns_of(axis, i));
          }
        } else {
          turned = phase(position, turns()[i]);
        }
        angle = sincos<Number>(turned);
      } else {
        angle.cosine = table(args_.cosine, args_.cosine_strides, row, axis, first_pair_ + i);
        angle.sine = table(args_.sine, args_.sine_strides, row, axis, first_pair_ + i);
      }
      angle = multiplied<T>(args_, angle, args_.as_written);
      cosine[i] = angle.cosine;
      sine[i] = angle.sine;
    }
  }

  POSENC_HD int64_t position_offset() const {
    return batch_ * args_.position_batch_stride + token_ * args_.position_token_stride;
  }

  POSENC_HD int threads() const { return plan_.threads(); }
  POSENC_HD int thread() const { return (z_ * plan_.threads_y + y_) * plan_.threads_x + x_; }

  // Shared memory: turns[terms, block_pairs] if they are staged, then cosines and sines,
  // [threads_y, block_pairs] each, for each buffer.
  POSENC_HD bool staged() const { return kVector > 1 || plan_.staged; }
  POSENC_HD Turns* turns() const { return reinterpret_cast<Turns*>(shared_); }
  POSENC_HD Turns turns_of(int term, int i) const {
    if (staged()) return turns()[term * block_pairs_ + i];
    return args_.inv_freq.turns(term, group_, first_pair_ + i);
  }
  POSENC_HD Number* cosines(int buffer = 0) const {
    const int64_t terms = staged() ? args_.inv_freq.terms() : 0;
    return reinterpret_cast<Number*>(turns() + terms * block_pairs_) +
           2 * buffer * plan_.threads_y * block_pairs_;
  }
  POSENC_HD Number* sines(int buffer = 0) const {
    return cosines(buffer) + plan_.threads_y * block_pairs_;
  }

  template <typename Index>
  POSENC_HD int64_t rotated_dim(Index vector, int64_t half) const {
    const Index pair = vector * kVector, half_block = static_cast<Index>(half);
    const bool later = !kInterleaved && pair >= half_block;
    return args_.start + pair + (later ? quotient<Index>(pair, half_block) * half_block : 0);
  }

  // Before the slice, then after it.
  template <typename Index>
  POSENC_HD int64_t copied_dim(Index vector) const {
    const Index dim = vector * kVector;
    return dim < args_.start ? dim : dim + 2 * args_.pairs;
  }

  POSENC_HD Number table(const void* data, const TableStrides& strides, int64_t row, int64_t axis,
                         int64_t pair) const {
    const int64_t at = batch_ * strides.batch + row * strides.token + group_ * strides.head +
                       axis * strides.axis + pair * strides.pair;
    return number_at<Number>(data, args_.table_dtype, at);
  }

  // Where pairs are read, and how far apart: elsewhere than where they are written on the way of
  // single numbers alone.
  static constexpr bool kRearranges = kVector == 1;
  POSENC_HD int64_t in_dim() const { return kRearranges ? in_dim_ : dim_; }
  POSENC_HD int64_t in_half_block() const {
    return kRearranges ? args_.in_half_block : args_.half_block;
  }

  // Element strides of the dims are 1 but on the way of single numbers.
  static POSENC_HD int64_t dim_stride(const HeadStrides& strides) {
    return kVector == 1 ? strides.dim : 1;
  }

  // Where the token's and thread's numbers of a head are, in bytes from the first of all.
  template <typename Index>
  POSENC_HD int64_t place(const HeadStrides& strides, int64_t head, int64_t dim) const {
    const auto along = [](int64_t index, int64_t stride) {
      return static_cast<Index>(index) * static_cast<Index>(stride);
    };
    const Index elements = along(batch_, strides.batch) + along(token_, strides.token) +
                           along(head, strides.head) + along(dim, dim_stride(strides));
    return elements * static_cast<int64_t>(sizeof(T));
  }

  // Where a thread's next head is, if it is one of q and if it is one of k: multiplied out once,
  // and then only added to. In bytes from the first number of q, a pointer of which the compiler
  // knows that it leads to global memory.
  struct Next {
    int64_t q, k;
  };

  template <typename Index>
  POSENC_HD Next first(int64_t dim, const void* q, const HeadStrides& q_strides, const void* k,
                       const HeadStrides& k_strides) const {
    const int64_t head = group_ + first_head_;
    const int64_t apart = reinterpret_cast<int64_t>(k) - reinterpret_cast<int64_t>(q);
    return {place<Index>(q_strides, head, dim),
            apart + place<Index>(k_strides, head - plan_.q_heads, dim)};
  }

  static POSENC_HD int64_t take(Next& next, const HeadSteps& steps, bool of_q) {
    const int64_t offset = of_q ? next.q : next.k;
    next.q += steps.q;
    next.k += steps.k;
    return offset;
  }

  static POSENC_HD const T* at(const void* first, int64_t bytes) {
    return reinterpret_cast<const T*>(static_cast<const char*>(first) + bytes);
  }
  static POSENC_HD T* at(void* first, int64_t bytes) {
    return reinterpret_cast<T*>(static_cast<char*>(first) + bytes);
  }

  // From the first number of a pair to the second.
  static POSENC_HD int64_t partner(int64_t half, const HeadStrides& q, const HeadStrides& k,
                                   bool of_q) {
    return half * (of_q ? dim_stride(q) : dim_stride(k));
  }

  // Heads are shared out over z and the head blocks, and counted through q and k.
  POSENC_HD int heads() const { return plan_.thread_heads + (first_head_ < plan_.rest); }
  POSENC_HD int q_heads() const { return plan_.thread_q_heads + (first_head_ < plan_.q_rest); }

  // Turned pairs, not yet rounded.
  struct Turned {
    Number a[kPairs], b[kPairs];
  };

  // The pairs of one access, or of two.
  static POSENC_HD Turned pairs_of(const WordOf<T, kVector>& first_word,
                                   const WordOf<T, kVector>& second_word) {
    Turned pairs;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      pairs.a[j] = real_of<T, kVector>(first_word, kInterleaved ? 2 * j : j);
      pairs.b[j] = kInterleaved ? real_of<T, kVector>(first_word, (2 * j + 1) % kVector)
                                : real_of<T, kVector>(second_word, j);
    }
    return pairs;
  }

  template <bool kAsWritten>
  static POSENC_HD Turned turn(Turned x, const Packet<Number, kPairs>& c,
                               const Packet<Number, kPairs>& s) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      turn_pair<T, kAsWritten>(x.a[j], x.b[j], c.numbers[j], s.numbers[j]);
    }
    return x;
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

  // The thread's heads, as they are.
  POSENC_HD void copy(Next in, Next out) const {
    for (int head = 0; head < heads(); ++head) {
      const bool of_q = head < q_heads();
      const T* const from = at(args_.tensors[0].in, take(in, plan_.in, of_q));
      T* const to = at(args_.tensors[0].out, take(out, plan_.out, of_q));
      write_packet<T, kVector>(read_packet<T, kVector>(from), to);
    }
  }

  const RotaryArgs& args_;
  const RotaryPlan& plan_;
  char* const shared_;
  const int x_, y_, z_;

  bool in_range_, there_, working_, rotates_;
  int block_pairs_;
  int64_t first_pair_, batch_, token_, dim_, in_dim_;
  int64_t group_, first_head_;
  uint64_t first_frequency_;
};

// At its work on one of the pieces that the grid consists of.
template <typename T, int kVector, bool kInterleaved>
class RotaryThread : public RotaryBlock<T, kVector, kInterleaved> {
  using Block = RotaryBlock<T, kVector, kInterleaved>;
  using Block::args_, Block::plan_, Block::take, Block::partner;
  using typename Block::Number, typename Block::Next;

 public:
  using Block::kPairs;
  static constexpr int kHeads = Policy::kHeads;
  // Two words of a head at a time need more registers than one.
  static constexpr int kBlocks =
      Policy::kBlocksPerProcessor + (kInterleaved || kVector * sizeof(T) < 16 ? 1 : 0);

  POSENC_HD RotaryThread(const RotaryParameters& parameters, char* shared, int x, int y, int z)
      : Block(parameters.args, parameters.plan, shared, x, y, z) {}

  // Takes up a piece.
  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    if (plan_.narrow) {
      take<int32_t>(piece_x, piece_y);
    } else {
      take<int64_t>(piece_x, piece_y);
    }
  }

  // Reads what angles are made of, for which others wait, and the first heads, which arrive while
  // angles are computed.
  POSENC_HD void read() {
    this->read_frequency();
    position_ = this->row_position();
    if (this->working_ && this->rotates_) read_heads(0);
  }

  using Block::frequencies, Block::has_frequencies;

  POSENC_HD void angles() { Block::template angles<true>(position_); }

  POSENC_HD void rotate() {
    if (!this->working_) return;
    if (!this->rotates_) return this->copy(in_, out_);
    if (args_.as_written) {
      rotate_heads<true>();
    } else {
      rotate_heads<false>();
    }
  }

 private:
  template <typename Index>
  POSENC_HD void take(int64_t piece_x, int64_t piece_y) {
    this->template take_heads<Index>(piece_y);
    this->template take_row<Index>(static_cast<Index>(piece_x) * plan_.threads_y + this->y_);
    // No index into args_.tensors that is not known to the compiler: kernel parameters would be
    // copied to memory for it.
    const RotaryTensor &q = args_.tensors[0], &k = args_.tensors[1];
    in_ = this->template first<Index>(this->in_dim(), q.in, q.in_strides, k.in, k.in_strides);
    out_ = this->template first<Index>(this->dim_, q.out, q.out_strides, k.out, k.out_strides);
  }

  template <bool kAsWritten>
  POSENC_HD void rotate_heads() {
    const int at = this->y_ * this->block_pairs_ + this->x_ * kPairs;
    const auto c = kept_packet<Number, kPairs>(this->cosines() + at);
    const auto s = kept_packet<Number, kPairs>(this->sines() + at);
    const HeadStrides &q = args_.tensors[0].out_strides, &k = args_.tensors[1].out_strides;
    const int heads = this->heads(), q_heads = this->q_heads();
    for (int head = 0; head < heads; head += kHeads) {
      if (head > 0) read_heads(head);
      request_heads(head + kHeads);
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (head + i >= heads) continue;
        const bool of_q = head + i < q_heads;
        const auto x = Block::pairs_of(first_[i], second_[kInterleaved ? 0 : i]);
        Block::write(Block::template turn<kAsWritten>(x, c, s),
                     Block::at(args_.tensors[0].out, take(out_, plan_.out, of_q)),
                     partner(args_.half_block, q, k, of_q));
      }
    }
  }

  // Nothing is looked at here, so that all of it is on its way at once.
  POSENC_HD void read_heads(int head) {
    const HeadStrides &q = args_.tensors[0].in_strides, &k = args_.tensors[1].in_strides;
    const int heads = this->heads(), q_heads = this->q_heads();
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (head + i >= heads) continue;
      const bool of_q = head + i < q_heads;
      const T* const data = Block::at(args_.tensors[0].in, take(in_, plan_.in, of_q));
      first_[i] = read_word<T, kVector>(data);
      if constexpr (!kInterleaved) {
        second_[i] = read_word<T, kVector>(data + partner(this->in_half_block(), q, k, of_q));
      }
    }
  }

  // What is read next.
  POSENC_HD void request_heads(int head) const {
    const HeadStrides &q = args_.tensors[0].in_strides, &k = args_.tensors[1].in_strides;
    const int heads = this->heads(), q_heads = this->q_heads();
    Next in = in_;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (head + i >= heads) continue;
      const bool of_q = head + i < q_heads;
      const T* const data = Block::at(args_.tensors[0].in, take(in, plan_.in, of_q));
      request(data);
      if constexpr (!kInterleaved) request(data + partner(this->in_half_block(), q, k, of_q));
    }
  }

  Position position_;
  Next in_, out_;
  WordOf<T, kVector> first_[kHeads];
  WordOf<T, kVector> second_[kInterleaved ? 1 : kHeads];
};

}  // namespace posenc::cuda
