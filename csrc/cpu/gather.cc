// Gather on the CPU: what each key of a row is worth, looked up by its distance from the query.
//
//   for row
//     for stretch of the index (IndexRun) in the row's window
//       a copy, a fill, a reversal or a look-up of each -> scratch; long copies stay in x
//     scratch -> the row, with what is to be added and the scale

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gather.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>

#include "core/lookup.h"
#include "cpu/elements-inl.h"
#include "cpu/kernels.h"
#include "cpu/numbers-inl.h"
#include "cpu/runs-inl.h"
#include "cpu/targets.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
class GatherKernel {
 public:
  HWY_ATTR void run(const RelativeArgs& args, int64_t begin, int64_t end) {
    const bool stream = args.non_temporal && args.content.data != args.by_key.data;
    for_each_plane(
        args, begin, end, [&](int64_t plane, int64_t query, int64_t count, int64_t entry) HWY_ATTR {
          const auto first = [&](const Matrices& m) HWY_ATTR {
            return static_cast<T*>(m.data) + query * m.row_stride +
                   plane_offset(args.planes, m.plane_strides, plane);
          };
          const Rows<T, true> all{first(args.by_column),
                                  args.by_column.row_stride,
                                  args.by_column.column_stride,
                                  args.content.data == nullptr ? nullptr : first(args.content),
                                  args.content.row_stride,
                                  args.content.column_stride,
                                  first(args.by_key),
                                  args.by_key.row_stride,
                                  args.by_key.column_stride,
                                  static_cast<Real<T>>(args.scale),
                                  stream};
          copier_.rows(args, all, count, entry, -1);
        });
  }

 private:
  RowCopier<T, true> copier_;
};

template <typename T>
HWY_ATTR HWY_NOINLINE void run_gather(const RelativeArgs& args, int64_t begin, int64_t end) {
  GatherKernel<T> kernel;  // not {}: its scratch needs no zeros
  kernel.run(args, begin, end);
}

HWY_ATTR void gather_target(const RelativeArgs& args, int64_t begin, int64_t end) {
  switch (args.dtype) {
    case Dtype::kFloat16:
      run_gather<Float16>(args, begin, end);
      break;
    case Dtype::kBFloat16:
      run_gather<BFloat16>(args, begin, end);
      break;
    case Dtype::kFloat32:
      run_gather<float>(args, begin, end);
      break;
    default:
      run_gather<double>(args, begin, end);
  }
  if (args.non_temporal) hwy::FlushStream();
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace posenc::cpu {

POSENC_EXPORT(gather_target);

void relative_gather(const RelativeArgs& args, int64_t begin, int64_t end) {
  POSENC_DISPATCH(gather_target)(args, begin, end);
}

}  // namespace posenc::cpu
#endif  // HWY_ONCE
