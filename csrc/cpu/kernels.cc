// What is the same for every target of the kernels.

#include "cpu/kernels.h"

#include <algorithm>
#include <vector>

#include "cpu/pieces.h"
#include "cpu/rearrange.h"
#include "cpu/targets.h"

namespace posenc::cpu {

void norm_rotary(const NormRotaryArgs& args, int64_t begin, int64_t end) {
  kernels().norm_rotary(args, begin, end);
}

void norm_rotary_gradient(const NormRotaryGradientArgs& args, int64_t begin, int64_t end) {
  const int64_t tokens = args.tokens_of_piece(), rows = args.forward.rotary.rows();
  for (int64_t piece = begin; piece < end; ++piece) {
    double* sums[2] = {};
    for (int i = 0; i < 2; ++i) {
      if (args.weight_sums[i] != nullptr) {
        sums[i] = args.weight_sums[i] + piece * args.weight_count(i);
      }
    }
    kernels().norm_rotary_gradient_piece(args, piece * tokens, std::min((piece + 1) * tokens, rows),
                                         sums);
  }
}

namespace {

// Whether kernels rearrange what they turn, if it is written elsewhere: from neighbors to any
// blocks, or from halves to neighbors. In a copy, too, dims are neighbors.
bool turned_and_rearranged(const RotaryArgs& args, bool copied) {
  bool fits = args.in_half_block == 1 || (args.half_block == 1 && args.in_half_block == args.pairs);
  for (int i = 0; i < args.tensor_count; ++i) {
    const RotaryTensor& x = args.tensors[i];
    fits = fits && (copied || x.in_strides.dim == 1) && x.out_strides.dim == 1;
  }
  return fits;
}

// Some rows at a time, which the cache holds: copied, or rearranged before they are turned where
// they are.
void rotary_rearranged(const RotaryArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t kRows = 16;
  std::vector<char> copy;
  for (int64_t first = begin; first < end; first += kRows) {
    const int64_t last = std::min(first + kRows, end);
    if (!turned_and_rearranged(args, true)) {
      rotary(rearrange(args, first, last), first, last);
      continue;
    }
    copy.resize(static_cast<size_t>(kRows * args.row_bytes()));
    RotaryArgs of_copy = args;
    of_copy.non_temporal = false;
    rotary(of_copy.read_from_copy(copy.data(), first, last - first), first, last);
    rotary(of_copy, first, last);
  }
}

}  // namespace

void rotary(const RotaryArgs& args, int64_t begin, int64_t end) {
  if (args.overwrites_itself() || (args.rearranged() && !turned_and_rearranged(args, false))) {
    return rotary_rearranged(args, begin, end);
  }
  // Whole rows of the batch.
  const bool whole = begin % args.tokens == 0 && end % args.tokens == 0;
  const int64_t rows = whole ? (end - begin) / args.tokens : 0;
  args.for_each_frequencies([&](const RotaryArgs& part) {
    if (rows > 1 && part.batch_shares_angles()) {
      kernels().rotary(part.batch_as_heads(begin / args.tokens, rows), 0, args.tokens);
    } else {
      kernels().rotary(part, begin, end);
    }
  });
}

void rotary_gradient(const RotaryGradientArgs& args, int64_t begin, int64_t end) {
  const RotaryArgs& turned = args.turned;
  const int64_t tokens = std::min(RotaryGradientArgs::kTokensOfPiece, turned.rows());
  int64_t heads = 0;
  for (int i = 0; i < turned.tensor_count; ++i) heads += turned.tensors[i].heads;
  std::vector<float> scratch;
  if (item_size(turned.dtype) == 2) {
    scratch.resize(static_cast<size_t>(tokens * heads * 2 * turned.pairs));
  }
  for (int64_t piece = begin; piece < end; ++piece) {
    const int64_t first = piece * RotaryGradientArgs::kTokensOfPiece;
    const int64_t last = std::min(first + RotaryGradientArgs::kTokensOfPiece, turned.rows());
    double* const sums = args.frequency_sums + piece * args.frequency_count();
    kernels().rotary_gradient_piece(args, first, last, sums, scratch.data());
  }
}

void sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t end) {
  kernels().sinusoidal(args, begin, end);
}

void toeplitz(const ToeplitzArgs& args, int64_t begin, int64_t end) {
  kernels().toeplitz(args, begin, end);
}

int64_t diagonal_sum_pieces(const ToeplitzArgs& args) {
  return args.kept_count() * parts_of_plane(args);
}

void diagonal_sums(const ToeplitzArgs& args, int64_t begin, int64_t end) {
  kernels().diagonal_sums(args, begin, end);
}

void relative_gather(const RelativeArgs& args, int64_t begin, int64_t end) {
  kernels().relative_gather(args, begin, end);
}

void relative_scatter(const RelativeArgs& args, int64_t begin, int64_t end) {
  if (args.index.data == nullptr) return relative_shift_back(args, begin, end);
  kernels().relative_scatter(args, begin, end);
}

void relative_shift_back(const RelativeArgs& args, int64_t begin, int64_t end) {
  kernels().relative_shift_back(args, begin, end);
}

void phase_tables(const PhaseTablesArgs& args, int64_t begin, int64_t end) {
  kernels().phase_tables(args, begin, end);
}

}  // namespace posenc::cpu
