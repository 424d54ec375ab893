#include "cpu/rearrange.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace posenc::cpu {
namespace {

// Where a pair's first partner is in the rotated slice.
int64_t first_dim(int64_t pair, int64_t half_block) {
  return pair / half_block * 2 * half_block + pair % half_block;
}

template <typename Bits>
class Rearrangement {
 public:
  explicit Rearrangement(const RotaryArgs& args)
      : args_(args),
        sources_(static_cast<size_t>(2 * args.pairs)),
        slice_(static_cast<size_t>(2 * args.pairs)) {
    for (int64_t pair = 0; pair < args.pairs; ++pair) {
      const int64_t from = first_dim(pair, args.in_half_block);
      const int64_t to = first_dim(pair, args.half_block);
      sources_[static_cast<size_t>(to)] = from;
      sources_[static_cast<size_t>(to + args.half_block)] = from + args.in_half_block;
    }
  }

  void run(const RotaryTensor& x, int64_t begin, int64_t end) {
    for (int64_t head = 0; head < x.heads; ++head) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t batch = row / args_.tokens, token = row % args_.tokens;
        const auto offset = [&](const HeadStrides& strides) {
          return batch * strides.batch + token * strides.token + strides.of_head(head);
        };
        move(static_cast<const Bits*>(x.in) + offset(x.in_strides), x.in_strides.dim,
             static_cast<Bits*>(x.out) + offset(x.out_strides), x.out_strides.dim);
      }
    }
  }

 private:
  void move(const Bits* in, int64_t in_step, Bits* out, int64_t out_step) {
    const int64_t end = args_.start + 2 * args_.pairs;
    const Bits* const from = in + args_.start * in_step;
    for (size_t i = 0; i < slice_.size(); ++i) slice_[i] = from[sources_[i] * in_step];
    if (in != out) {
      for (int64_t i = 0; i < args_.start; ++i) out[i * out_step] = in[i * in_step];
      for (int64_t i = end; i < args_.head_dim; ++i) out[i * out_step] = in[i * in_step];
    }
    Bits* const to = out + args_.start * out_step;
    for (size_t i = 0; i < slice_.size(); ++i) to[static_cast<int64_t>(i) * out_step] = slice_[i];
  }

  const RotaryArgs& args_;
  std::vector<int64_t> sources_;  // of every dim of the slice as it is written
  std::vector<Bits> slice_;
};

template <typename Bits>
void move_rows(const RotaryArgs& args, int64_t begin, int64_t end) {
  Rearrangement<Bits> rearrangement(args);
  for (int i = 0; i < args.tensor_count; ++i) rearrangement.run(args.tensors[i], begin, end);
}

}  // namespace

RotaryArgs rearrange(const RotaryArgs& args, int64_t begin, int64_t end) {
  switch (item_size(args.dtype)) {
    case 2:
      move_rows<uint16_t>(args, begin, end);
      break;
    case 4:
      move_rows<uint32_t>(args, begin, end);
      break;
    default:
      move_rows<uint64_t>(args, begin, end);
  }
  RotaryArgs rest = args;
  rest.in_half_block = args.half_block;
  for (int i = 0; i < args.tensor_count; ++i) {
    rest.tensors[i].in = args.tensors[i].out;
    rest.tensors[i].in_strides = args.tensors[i].out_strides;
  }
  return rest;
}

}  // namespace posenc::cpu
