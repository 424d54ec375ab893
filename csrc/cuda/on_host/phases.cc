// Phases that the caller wants themselves. On a GPU torch's operations make them, so no kernel is
// tested here: the module lacks nothing that users' module has.

#include "core/phases.h"

#include <algorithm>

#include "core/visit_type.h"
#include "cpu/kernels.h"
#include "cuda/packet.cuh"

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
  for (int64_t column = begin; column < end; ++column) {
    const int64_t outer = column / args.blocks();
    const int64_t first = column % args.blocks() * AccumulateArgs::kColumns;
    for (int64_t pair = first; pair < std::min(first + args.kColumns, args.pairs()); ++pair) {
      uint64_t sum = 0;
      if (args.has_state) {
        const int64_t at =
            offset_of(args.state, last - 1, outer) + pair * args.state.stride[last - 1];
        sum = static_cast<uint64_t>(static_cast<const int64_t*>(args.state.data)[at]);
      }
      for (int64_t token = 0; token < args.tokens(); ++token) {
        const int64_t at = offset_of(steps, last - 1, outer) + token * steps.stride[last - 1] +
                           pair * steps.stride[last];
        const double step = cuda::number_at<double>(steps.data, steps.dtype, at);
        sum += turns_from_radians(to_binary(step)).fraction;
        args.phases[(outer * args.tokens() + token) * args.pairs() + pair] =
            static_cast<int64_t>(sum);
      }
    }
  }
}

void phase_tables(const PhaseTablesArgs& args, int64_t begin, int64_t end) {
  visit_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = begin; i < end; ++i) {
      const SinCos<Real<T>> angle = sincos<Real<T>>(static_cast<uint64_t>(args.phases[i]));
      static_cast<T*>(args.cosine)[i] = round_to<T>(angle.cosine);
      static_cast<T*>(args.sine)[i] = round_to<T>(angle.sine);
    }
  });
}

}  // namespace posenc::cpu
