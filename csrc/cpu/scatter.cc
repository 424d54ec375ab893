// Scatter on the CPU: the transpose of a gather, sums over the entries of a column.
//
//   for row
//     for stretch of the index (IndexRun) in the row's window
//       its sums -> scratch
//     scratch -> the row, with the scale
//
// One order of sums for every SIMD target: core/lookup.h.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <type_traits>

#include "core/lookup.h"
#include "core/visit_type.h"
#include "cpu/elements-inl.h"
#include "cpu/numbers-inl.h"
#include "cpu/runs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
class ScatterKernel {
  using Number = Real<T>;
  using D = RealTag<T>;

 public:
  HWY_ATTR void run(const RelativeArgs& args, int64_t begin, int64_t end) {
    for_each_plane(
        args, begin, end, [&](int64_t plane, int64_t query, int64_t count, int64_t entry) HWY_ATTR {
          const auto first = [&](const Matrices& m) HWY_ATTR {
            return static_cast<T*>(m.data) + query * m.row_stride +
                   plane_offset(args.planes, m.plane_strides, plane);
          };
          const T* const from = first(args.by_key);
          T* const to = first(args.by_column);
          for (int64_t row = 0; row < count; ++row) {
            sum_row(args, from + row * args.by_key.row_stride, entry - row,
                    {nullptr, 0, to + row * args.by_column.row_stride, args.by_column.column_stride,
                     static_cast<Number>(args.scale), args.non_temporal});
          }
        });
  }

 private:
  HWY_ATTR HWY_INLINE void sum_row(const RelativeArgs& args, const T* from, int64_t entry,
                                   const Result<T, Number, false>& result) {
    for (int64_t first = 0; first < args.width; first += kTile) {
      const int64_t width = std::min(kTile, args.width - first);
      fill(Number(0), width, sums_);
      for_each_run(args, entry, args.keys,
                   [&](const IndexRun& run, int64_t k, int64_t n, int64_t position) HWY_ATTR {
                     add_run(args, run, k, n, from + position * args.by_key.column_stride, first,
                             width);
                   });
      result(sums_, sums_, first, width);
    }
  }

  // Adds n elements of a run from its k-th on to the columns first .. first + width - 1.
  HWY_ATTR HWY_INLINE void add_run(const RelativeArgs& args, const IndexRun& run, int64_t k,
                                   int64_t n, const T* from, int64_t first, int64_t width) {
    const int64_t step = args.by_key.column_stride;
    if (run.step == IndexRun::kLookUp) {
      const int32_t* const columns = args.columns + (run.column + k);
      for (int64_t i = 0; i < n;) {
        // Neighbors of one column without a way through memory for each.
        const int32_t column = columns[i];
        const uint64_t at = static_cast<uint64_t>(column - first);
        if (at >= static_cast<uint64_t>(width)) {
          ++i;
          continue;
        }
        Number sum = sums_[at];
        do sum += to_real(from[i * step]);
        while (++i < n && columns[i] == column);
        sums_[at] = sum;
      }
      return;
    }
    if (run.column < 0) return;
    const int64_t column = run.column + k * run.step - first;
    if (run.step == 0) {
      if (column >= 0 && column < width) sums_[column] += sum(from, step, n);
      return;
    }
    // The elements low .. high - 1 are in the tile.
    const int64_t low = std::clamp<int64_t>(run.step > 0 ? -column : column - width + 1, 0, n),
                  high = std::clamp<int64_t>(run.step > 0 ? width - column : column + 1, low, n);
    int64_t i = low;
    if (step == 1) {
      const D d;
      for (; i + lanes(d) <= high; i += lanes(d)) {
        const auto v = load(d, from + i);
        Number* const to = sums_ + (run.step > 0 ? column + i : column - i - lanes(d) + 1);
        hn::StoreU(hn::Add(hn::LoadU(d, to), run.step > 0 ? v : hn::Reverse(d, v)), d, to);
      }
    }
    for (; i < high; ++i) sums_[column + i * run.step] += to_real(from[i * step]);
  }

  // The sum of n elements: kPartial sums of each kPartial-th one, added up in pairs.
  static HWY_ATTR HWY_INLINE Number sum(const T* from, int64_t step, int64_t n) {
    const D d;
    constexpr int64_t kVectors = kPartial / hn::MaxLanes(D());
    HWY_ALIGN T part[kPartial];
    hn::Vec<D> sums[kVectors];
    for (auto& each : sums) each = hn::Zero(d);
    const auto add = [&](const T* at) HWY_ATTR {
      for (int64_t j = 0; j < kVectors; ++j) {
        sums[j] = hn::Add(sums[j], load(d, at + j * lanes(d)));
      }
    };
    int64_t i = 0;
    for (; i + kPartial <= n; i += kPartial) {
      if (step == 1) {
        hwy::Prefetch(from + i + kAheadBytes / static_cast<int64_t>(sizeof(T)));
        add(from + i);
      } else {
        collect(from + i * step, step, kPartial, part);
        add(part);
      }
    }
    if (i < n) {
      collect(from + i * step, step, n - i, part);
      std::fill(part + (n - i), part + kPartial, T{});
      add(part);
    }
    for (int64_t j = kVectors / 2; j > 0; j /= 2) {
      for (int64_t l = 0; l < j; ++l) sums[l] = hn::Add(sums[l], sums[l + j]);
    }
    HWY_ALIGN Number rest[hn::MaxLanes(D())];
    hn::Store(sums[0], d, rest);
    for (int64_t j = lanes(d) / 2; j > 0; j /= 2) {
      for (int64_t l = 0; l < j; ++l) rest[l] += rest[l + j];
    }
    return rest[0];
  }

  static HWY_INLINE Number to_real(T value) {
    if constexpr (std::is_same_v<T, double>) {
      return value;
    } else {
      return to_float(value);
    }
  }

  static constexpr int64_t kPartial = 32;
  static constexpr int64_t kTile = 4096;
  HWY_ALIGN Number sums_[kTile + kSlack];
};

template <typename T>
HWY_ATTR HWY_NOINLINE void run_scatter(const RelativeArgs& args, int64_t begin, int64_t end) {
  ScatterKernel<T> kernel;
  kernel.run(args, begin, end);
}

HWY_ATTR void scatter_rows(const RelativeArgs& args, int64_t begin, int64_t end) {
  visit_type(args.dtype, [&](auto type) { run_scatter<decltype(type)>(args, begin, end); });
  if (args.non_temporal) hwy::FlushStream();
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void relative_scatter(const RelativeArgs& args, int64_t begin, int64_t end) {
  scatter_rows(args, begin, end);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
