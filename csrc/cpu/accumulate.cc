// Steps summed to phases that the caller wants themselves: columns that lie side by side at a time.

#include <algorithm>
#include <cstdint>

#include "core/phases.h"
#include "cpu/kernels.h"
#include "cpu/targets.h"

namespace posenc::cpu {
namespace {

// The offset of an index of the first `axes` axes.
int64_t offset_of(const Array& array, int axes, int64_t index) {
  int64_t offset = 0;
  for (int i = axes - 1; i >= 0; --i) {
    offset += index % array.shape[i] * array.stride[i];
    index /= array.shape[i];
  }
  return offset;
}

}  // namespace

void accumulate(const AccumulateArgs& args, int64_t begin, int64_t end) {
  const Array& steps = args.steps;
  const int last = steps.rank - 1;
  const int64_t tokens = args.tokens(), pairs = args.pairs(), blocks = args.blocks();
  const int64_t stride = steps.stride[last];
  for (int64_t column = begin; column < end; ++column) {
    const int64_t outer = column / blocks, first = column % blocks * AccumulateArgs::kColumns;
    const int64_t count = std::min(AccumulateArgs::kColumns, pairs - first);
    const int64_t at = offset_of(steps, last - 1, outer) + first * stride;
    StepBlock block;
    block.steps = static_cast<const char*>(steps.data) + at * item_size(steps.dtype);
    block.dtype = steps.dtype;
    block.tokens = tokens;
    block.heads = 1;
    block.pairs = count;
    block.token_stride = steps.stride[last - 1];
    block.pair_stride = stride;
    uint64_t sums[AccumulateArgs::kColumns] = {};
    if (args.has_state) {
      const int64_t pair_stride = args.state.stride[last - 1];
      const int64_t* const state = static_cast<const int64_t*>(args.state.data) +
                                   offset_of(args.state, last - 1, outer) + first * pair_stride;
      for (int64_t i = 0; i < count; ++i) sums[i] = static_cast<uint64_t>(state[i * pair_stride]);
    }
    int64_t* const to = args.phases + outer * tokens * pairs + first;
    kernels().sum_steps(block, Sum::kForwards, sums, to, pairs);
  }
}

}  // namespace posenc::cpu
