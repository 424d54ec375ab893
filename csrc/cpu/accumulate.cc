// Steps summed to phases, column by column: each step becomes an integer (core/phase.h), which is
// added to the sum so far. Multiplications of 64 by 64 bits are scalar on every processor here.

#include <algorithm>
#include <cstdint>

#include "core/half.h"
#include "core/phase.h"
#include "core/phases.h"
#include "core/visit_type.h"
#include "cpu/kernels.h"

namespace posenc::cpu {
namespace {

template <typename T>
uint64_t turns_of(T step) {
  if constexpr (sizeof(T) == 8) {
    return turns_from_radians(to_binary(step)).fraction;
  } else {
    return turns_from_radians(to_binary(to_float(step))).fraction;
  }
}

// The offset of an index of the first `axes` axes.
int64_t offset_of(const Array& array, int axes, int64_t index) {
  int64_t offset = 0;
  for (int i = axes - 1; i >= 0; --i) {
    offset += index % array.shape[i] * array.stride[i];
    index /= array.shape[i];
  }
  return offset;
}

template <typename T>
void accumulate_columns(const AccumulateArgs& args, int64_t begin, int64_t end) {
  const Array& steps = args.steps;
  const int last = steps.rank - 1;
  const int64_t tokens = args.tokens(), pairs = args.pairs(), blocks = args.blocks();
  const int64_t token_stride = steps.stride[last - 1], stride = steps.stride[last];
  for (int64_t column = begin; column < end; ++column) {
    const int64_t outer = column / blocks, first = column % blocks * AccumulateArgs::kColumns;
    const int64_t count = std::min(AccumulateArgs::kColumns, pairs - first);
    const T* from =
        static_cast<const T*>(steps.data) + offset_of(steps, last - 1, outer) + first * stride;
    int64_t* to = args.phases + outer * tokens * pairs + first;
    uint64_t sums[AccumulateArgs::kColumns] = {};
    if (args.has_state) {
      const int64_t pair_stride = args.state.stride[last - 1];
      const int64_t* const state = static_cast<const int64_t*>(args.state.data) +
                                   offset_of(args.state, last - 1, outer) + first * pair_stride;
      for (int64_t i = 0; i < count; ++i) sums[i] = static_cast<uint64_t>(state[i * pair_stride]);
    }
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t i = 0; i < count; ++i) {
        sums[i] += turns_of(from[i * stride]);
        to[i] = static_cast<int64_t>(sums[i]);
      }
      from += token_stride;
      to += pairs;
    }
  }
}

}  // namespace

void accumulate(const AccumulateArgs& args, int64_t begin, int64_t end) {
  visit_type(args.steps.dtype,
             [&](auto type) { accumulate_columns<decltype(type)>(args, begin, end); });
}

}  // namespace posenc::cpu
