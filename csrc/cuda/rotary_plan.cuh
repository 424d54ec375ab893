// How a launch of rotary encodings covers a call: which thread, how many of them, and their shares
// of tokens and heads. On the host.
#pragma once

#include <algorithm>
#include <array>

#include "cuda/rotary.cuh"

namespace posenc::cuda {

// Whether every access of `width` numbers is aligned and lies inside its part of a head.
inline bool fits(const RotaryArgs& args, int width, bool interleaved) {
  if (interleaved && args.half_block != 1) return false;
  if (args.rearranged() || args.inv_freq.terms() > Policy::kMostAxes) return false;
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
  return visit_type(dtype,
                    [&](auto type) { return visit_access<Thread, decltype(type)>(fits, visit); });
}

template <typename Visit>
auto visit_rotary_thread(const RotaryArgs& args, const Visit& visit) {
  return visit_access<RotaryThread>(
      args.dtype, [&](int width, bool interleaved) { return fits(args, width, interleaved); },
      visit);
}

// In the time that a thread takes for a head: a frequency, an angle, and to begin a piece. (Of
// 16-bit numbers on sm_90, in instructions: 190, 100 and 250 to 65.)
constexpr int64_t kFrequencyTime = 3, kAngleTime = 2, kPieceTime = 4;

// So many warps of a multiprocessor are at work while one of them waits.
constexpr int64_t kWarpsAtOnce = 20;

struct BlockShape {
  int y = 1, z = 1;
  int64_t head_blocks = 1;
};

// How heads, then tokens, are shared out among blocks and their threads: so that most places of the
// GPU are taken, and most of a thread's requests. Where threads are few the blocks of this launch
// and of the one before run beside each other, so that work counts wherever it is done. (Tokens
// with 32 + 8 heads of 128 on an H100: 64 of them take 2.5 us with a head a thread, 2.3 with two;
// 256 of them 3.6 and, with four, 3.3.)
template <typename Thread>
BlockShape best_shape(const RotaryPlan& plan, int64_t rows, int64_t most_tokens, const Room& room) {
  BlockShape best;
  const int64_t most_groups = std::min(Policy::kThreads / plan.threads_x, Policy::kMostThreadsZ);
  const bool few = rows * plan.vectors * plan.groups * plan.heads <=
                   2 * room.blocks(Policy::kThreads) * Policy::kThreads;
  int64_t least = INT64_MAX, most_pieces = 0;
  const auto consider = [&](int64_t head_blocks, int64_t thread_heads, int64_t y) {
    const int64_t others = plan.vector_blocks * head_blocks * plan.groups;
    const int64_t block_heads = divide_up(plan.heads, head_blocks);
    const int64_t z = divide_up(block_heads, thread_heads);
    const int64_t threads = plan.threads_x * y * z;
    const int64_t places = room.blocks(threads);
    const int64_t pairs = plan.threads_x * Thread::kPairs;
    const int64_t pieces = divide_up(rows, y) * others;
    const int64_t of_heads =
        few ? thread_heads : divide_up(thread_heads, Thread::kHeads) * Thread::kHeads;
    const int64_t of_piece = of_heads + kFrequencyTime * divide_up(pairs, threads) +
                             kAngleTime * divide_up(y * pairs, threads) + kPieceTime;
    int64_t time = kWarpsAtOnce * of_piece * divide_up(pieces, places);
    if (few) time += pieces * divide_up(threads, kLanes) * of_piece / room.gpu.multiprocessors;
    if (time > least || (time == least && pieces <= most_pieces)) return;
    least = time;
    most_pieces = pieces;
    best = {static_cast<int>(y), static_cast<int>(z), head_blocks};
  };
  // What a thread has in flight, or as much as all heads come to; more where there are more heads
  // than threads.
  constexpr int64_t kRounds = 4, kWaves = 8;
  for (int64_t head_blocks = few ? 1 : plan.head_blocks; head_blocks <= plan.head_blocks;
       ++head_blocks) {
    const int64_t others = plan.vector_blocks * head_blocks * plan.groups;
    const int64_t block_heads = divide_up(plan.heads, head_blocks);
    const int64_t first = divide_up(block_heads, most_groups);
    for (int64_t heads = 1; heads <= kRounds * Thread::kHeads;
         heads += heads < Thread::kHeads ? 1 : Thread::kHeads) {
      const int64_t thread_heads = std::max(first, heads);
      const int64_t z = divide_up(block_heads, thread_heads);
      const int64_t most = std::min({Policy::kThreads / (plan.threads_x * z), rows, most_tokens});
      // Of many waves the last one matters little.
      const bool many =
          divide_up(rows, most) * others > kWaves * room.blocks(plan.threads_x * most * z);
      for (int64_t y = most; y >= 1; y = many ? 0 : y / 2) consider(head_blocks, thread_heads, y);
      if (thread_heads >= block_heads) break;
    }
  }
  return best;
}

template <typename Thread>
void share_out(RotaryPlan& plan, int64_t rows, int64_t most_tokens, const Room& room) {
  const std::array<int64_t, 7> call = {
      rows,        most_tokens,      plan.threads_x, plan.vector_blocks,
      plan.groups, plan.head_blocks, plan.heads};
  const auto of_room = room.key();
  std::array<int64_t, call.size() + of_room.size()> key;
  std::copy(of_room.begin(), of_room.end(), std::copy(call.begin(), call.end(), key.begin()));
  const BlockShape shape =
      remembered(key, [&] { return best_shape<Thread>(plan, rows, most_tokens, room); });
  plan.threads_y = shape.y;
  plan.threads_z = shape.z;
  plan.head_blocks = shape.head_blocks;
}

// Whether offsets of threads' first heads in a tensor do, also where a thread is beyond the end, or
// has no head of q or of k.
inline bool fits_in_32_bits(const RotaryArgs& args, const RotaryPlan& plan,
                            const HeadStrides& strides) {
  const auto reach = [](int64_t size, int64_t stride) {
    return static_cast<double>(size) * std::abs(static_cast<double>(stride));
  };
  const int64_t heads = plan.groups + plan.head_step() + plan.q_heads;
  constexpr int64_t kDims = 16 * Policy::kRowVectors;  // of a block, which may have that many less
  return reach(args.batch + 1, strides.batch) + reach(args.tokens, strides.token) +
             reach(heads, strides.head) + reach(args.head_dim + kDims, strides.dim) <
         static_cast<double>(Policy::kNarrow);
}

inline HeadSteps head_steps(const RotaryPlan& plan, const HeadStrides& q, const HeadStrides& k,
                            int64_t size) {
  return {plan.head_step() * q.head * size, plan.head_step() * k.head * size};
}

template <typename Thread>
RotaryPlan plan_rotary(const RotaryArgs& args, const Room& room = {},
                       int64_t most_vectors = Policy::kRowVectors,
                       int64_t most_tokens = Policy::kThreads) {
  RotaryPlan plan;
  const RotaryTensor &q = args.tensors[0], &k = args.tensors[1];
  plan.staged = args.inv_freq.terms() <= Policy::kMostAxes;
  plan.groups = args.angle_heads();
  const bool shared = plan.groups == 1;
  plan.q_heads = shared ? q.heads : 1;
  plan.heads = shared ? q.heads + k.heads : args.tensor_count;
  bool in_place = true;
  for (int i = 0; i < args.tensor_count; ++i) {
    in_place = in_place && args.tensors[i].in == args.tensors[i].out;
  }
  plan.rotated = args.pairs / Thread::kPairs;
  plan.vectors = plan.rotated;
  if (!in_place) plan.vectors += (args.head_dim - 2 * args.pairs) / Thread::kWidth;
  const int64_t rows = args.rows();
  if (rows == 0 || plan.groups == 0 || plan.heads == 0 || plan.vectors == 0) return plan;

  plan.threads_x = static_cast<int>(std::clamp<int64_t>(plan.vectors, 1, most_vectors));
  plan.vector_blocks = divide_up(plan.vectors, plan.threads_x);
  // Where tokens are too few for the GPU, their heads go to several blocks, which then compute the
  // same angles: as many as a head for each thread takes.
  const int64_t pieces = rows * plan.vector_blocks * plan.groups;
  const int64_t places = room.blocks(Policy::kThreads);
  plan.head_blocks = std::clamp<int64_t>(places / pieces, 1,
                                         divide_up(plan.heads * plan.threads_x, Policy::kThreads));
  // A thread counts its heads in 32 bits.
  plan.head_blocks = std::max(plan.head_blocks, divide_up(plan.heads, int64_t{1} << 30));
  share_out<Thread>(plan, rows, most_tokens, room);
  const int64_t step = plan.head_step();
  plan.thread_heads = static_cast<int>(plan.heads / step);
  plan.rest = plan.heads % step;
  plan.thread_q_heads = static_cast<int>(plan.q_heads / step);
  plan.q_rest = plan.q_heads % step;
  plan.in = head_steps(plan, q.in_strides, k.in_strides, item_size(args.dtype));
  plan.out = head_steps(plan, q.out_strides, k.out_strides, item_size(args.dtype));
  plan.take_pieces(divide_up(rows, plan.threads_y),
                   plan.groups * plan.head_blocks * plan.vector_blocks, room.limit);
  plan.by_tokens = Divisor(args.tokens);
  plan.by_vector_blocks = Divisor(plan.vector_blocks);
  plan.by_head_blocks = Divisor(plan.head_blocks);
  plan.narrow = std::max({rows, args.head_dim, plan.pieces_y}) < Policy::kNarrow;
  for (int i = 0; i < args.tensor_count; ++i) {
    const RotaryTensor& x = args.tensors[i];
    plan.narrow = plan.narrow && fits_in_32_bits(args, plan, x.in_strides) &&
                  fits_in_32_bits(args, plan, x.out_strides);
  }
  plan.shared_bytes =
      Thread::shared_bytes(args, std::min<int64_t>(plan.threads_x, plan.rotated), plan);
  // Sums over many axes have many frequencies, and tokens many positions.
  if (plan.shared_bytes > Policy::kSharedBytes && plan.threads_x > 1) {
    return plan_rotary<Thread>(args, room, plan.threads_x / 2);
  }
  if (plan.shared_bytes > Policy::kSharedBytes && plan.threads_y > 1) {
    return plan_rotary<Thread>(args, room, 1, plan.threads_y / 2);
  }
  return plan;
}

}  // namespace posenc::cuda
