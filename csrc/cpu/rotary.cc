// Rotary encoding on the CPU.
//
//   for a group of pairs that fits the scratch            (mostly all of them)
//     for a block of tokens
//       cosines and sines of the block -> scratch         once, for every head of q and k
//       for tensor, head, token (or token, head: whatever is next in memory)
//         rotate the row
//
// Angles are those of rotary_angles-inl.h, rows go through memory as rotary_runs-inl.h says; how
// one is read depends on the number format and the pairing only, see rotary_row-inl.h.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <type_traits>

#include "core/rotary.h"
#include "core/visit_type.h"
#include "cpu/numbers-inl.h"
#include "cpu/rotary_angles-inl.h"
#include "cpu/rotary_row-inl.h"
#include "cpu/rotary_runs-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T, class Row, Rounding kRounding>
class RotaryKernel {
  using Runs = RotaryRuns<T, Row, kRounding>;

 public:
  HWY_ATTR void run(const RotaryArgs& args, int64_t begin, int64_t end) {
    bool first_piece = true;
    const auto next = [&](const Piece& piece) HWY_ATTR {
      run_piece(args, piece, begin, end, first_piece);
      first_piece = false;
    };
    Runs::Angles::for_each_piece(args, Row::kNeighboursOut, next);
    if (first_piece) next({0, 0, 0, 0});  // nothing to rotate: copies the rest
  }

 private:
  // Rotates the piece of every head of the tokens [begin, end).
  HWY_ATTR void run_piece(const RotaryArgs& args, const Piece& piece, int64_t begin, int64_t end,
                          bool copy_rest) {
    angles_.enter(args, piece);
    const bool by_tables = Runs::reads_tables(args) && angles_.whole_rows(args, piece);
    const bool shared = args.tensor_count > 1 || args.tensors[0].heads > 1;
    const int64_t block_tokens =
        by_tables ? args.tokens : angles_.tokens(shared, args.cosine != nullptr);
    while (begin < end) {
      const int64_t batch = begin / args.tokens, token = begin % args.tokens;
      const int64_t count = std::min({block_tokens, end - begin, args.tokens - token});
      if (by_tables) {
        Runs(args, args.tensors[0], piece, {batch, token, count}, angles_, copy_rest, lines_)
            .rotate_by_tables();
        begin += count;
        continue;
      }
      angles_.compute(args, piece, batch, token, count);
      if constexpr (kRounding == Rounding::kAsWritten) angles_.template round_to<T>(count);
      for (int i = 0; i < args.tensor_count; ++i) {
        const RotaryTensor* heads = &args.tensors[i];
        RotaryTensor of_group;
        const int64_t groups = heads->groups();
        for (int64_t group = 0; group < groups; ++group) {
          if (groups > 1) {
            of_group = args.tensors[i].of_group(group, item_size(args.dtype));
            heads = &of_group;
          }
          Runs(args, *heads, piece, {batch, token, count}, angles_, copy_rest, lines_).rotate();
        }
      }
      begin += count;
    }
  }

  typename Runs::Angles angles_;
  HWY_ALIGN char lines_[kLineBuffer];
};

template <typename T, class Row, Rounding kRounding>
HWY_ATTR void run_kernel(const RotaryArgs& args, int64_t begin, int64_t end) {
  RotaryKernel<T, Row, kRounding> kernel;
  kernel.run(args, begin, end);
}

template <typename T, Rounding kRounding>
HWY_ATTR void run_rounded(const RotaryArgs& args, int64_t begin, int64_t end) {
  const bool neighbors = args.half_block == 1;
  if (args.rearranged()) {  // rarer: by instructions only where a look at each vector says so
    constexpr Rounding kThis = kRounding == Rounding::kAsWritten ? kRounding : Rounding::kOnce;
    neighbors ? run_kernel<T, JoinRow<T>, kThis>(args, begin, end)
              : run_kernel<T, SplitRow<T>, kThis>(args, begin, end);
  } else {
    neighbors ? run_kernel<T, InterleavedRow<T>, kRounding>(args, begin, end)
              : run_kernel<T, HalfRow<T>, kRounding>(args, begin, end);
  }
}

template <typename T>
HWY_ATTR void run_rotary(const RotaryArgs& args, int64_t begin, int64_t end) {
  // Without fused multiply-add, and without a rounding of products to T, both are the same.
  constexpr bool kSame = HWY_TARGET == HWY_SSE4 && sizeof(T) != 2;
  if (args.as_written && !kSame) {
    run_rounded<T, kSame ? Rounding::kOnce : Rounding::kAsWritten>(args, begin, end);
  } else if (HWY_TARGET == HWY_AVX3 && std::is_same_v<T, BFloat16> &&
             bfloat16_instructions.load(std::memory_order_relaxed)) {
    constexpr bool kHere = HWY_TARGET == HWY_AVX3 && std::is_same_v<T, BFloat16>;
    run_rounded<T, kHere ? Rounding::kOnceByInstruction : Rounding::kOnce>(args, begin, end);
  } else {
    run_rounded<T, Rounding::kOnce>(args, begin, end);
  }
}

HWY_ATTR void rotate_tokens(const RotaryArgs& args, int64_t begin, int64_t end) {
  visit_type(args.dtype, [&](auto type) { run_rotary<decltype(type)>(args, begin, end); });
  if (args.non_temporal) hwy::FlushStream();
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void rotary(const RotaryArgs& args, int64_t begin, int64_t end) { rotate_tokens(args, begin, end); }

}  // namespace posenc::cpu::HWY_NAMESPACE
