// Gather on the CPU: what each key of a row is worth, looked up by its distance from the query.
//
//   for row
//     for stretch of the index (IndexRun) in the row's window
//       a copy, a fill, a reversal or a look-up of each -> scratch; long copies stay in x
//     scratch -> the row, with what is to be added and the scale
//
// A shift, or an index with one long stretch like it, reads a part of each row of x, always another
// one: the processor's own requests for memory end with each part, and come too late. So rows are
// copied in groups, a cache line of each in turn, while the next group is requested.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/lookup.h"
#include "core/visit_type.h"
#include "cpu/elements-inl.h"
#include "cpu/numbers-inl.h"
#include "cpu/runs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Stretches of so many neighboring columns are read where they lie.
constexpr int64_t kLongCopy = 64;

// The rows of a plane that are read and written: x, what is added, the result.
template <typename T>
struct Rows {
  const T* x;
  int64_t x_row, x_step;
  const T* in;  // null: nothing is added
  int64_t in_row, in_step;
  T* out;
  int64_t out_row, out_step;
  Real<T> scale;
  bool stream;

  HWY_INLINE bool adds() const { return in != nullptr; }

  HWY_INLINE Result<T, T, true> result(int64_t row) const {
    return {adds() ? in + row * in_row : nullptr,
            in_step,
            out + row * out_row,
            out_step,
            scale,
            stream};
  }
};

// Puts rows together from stretches of x.
template <typename T>
class RowCopier {
 public:
  // `count` rows of one plane; the first begins at `entry`, each further one `move` entries later.
  HWY_ATTR HWY_INLINE void rows(const RelativeArgs& args, const Rows<T>& all, int64_t count,
                                int64_t entry, int64_t move) {
    // The longest stretch of neighboring columns.
    IndexRun longest;
    for (int64_t i = 0; i < args.run_count; ++i) {
      const IndexRun& run = args.runs[i];
      if (run.step == 1 && run.column >= 0 && run.length > longest.length) longest = run;
    }
    const bool neighbors = all.x_step == 1 && all.out_step == 1 &&
                           (!all.adds() || all.in_step == 1) &&
                           all.out_row * kSize % kLineBytes == 0;
    const int64_t beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(all.out) / kSize);
    for (int64_t row = 0; row < count;) {
      // The keys that all rows of a group find in it, from a cache line of the result on.
      const int64_t here = entry + row * move, last = here + (kGroup - 1) * move;
      int64_t low = std::max<int64_t>(longest.first - std::min(here, last), 0);
      low += (kLine - (beyond + low) % kLine) % kLine;
      const int64_t high =
          std::min(longest.first + longest.length - std::max(here, last), args.keys);
      const int64_t lines = (high - low) / kLine;
      if (!neighbors || count - row < kGroup || lines < kGroupLines) {
        // Look-ups take columns in no order that the processor could guess.
        if (all.x_step == 1 && row + kRowsAhead < count) {
          const T* const x = all.x + (row + kRowsAhead) * all.x_row;
          const int64_t wanted = std::min(args.width, kRequested);
          for (int64_t i = 0; i < wanted; i += kLine) prefetch_later(x + i);
        }
        part(args, all, row, here, move, 0, args.keys);
        ++row;
        continue;
      }
      const int64_t end = low + lines * kLine;
      const T* const x = all.x + row * all.x_row + longest.column + (here + low - longest.first);
      group(all, row, x, move, low, lines * kLine);
      for (int64_t r = row; r < row + kGroup; ++r) {
        part(args, all, r, entry + r * move, move, 0, low);
        part(args, all, r, entry + r * move, move, end, args.keys);
      }
      row += kGroup;
    }
  }

 private:
  static constexpr int64_t kSize = sizeof(T);
  static constexpr int64_t kLine = kLineBytes / kSize;
  static constexpr int64_t kGroup = 8;
  static constexpr int64_t kGroupLines = 32;  // of each row, to be worth a group
  static constexpr int64_t kTile = 8192 / kSize;
  // Rows that are not of a group: how much of one is requested, how many before.
  static constexpr int64_t kRequested = 4096 / kSize;
  static constexpr int64_t kRowsAhead = 4;

  // The keys low .. low + count - 1 of kGroup rows, whose windows of x move from row to row.
  HWY_ATTR HWY_INLINE void group(const Rows<T>& all, int64_t row, const T* x, int64_t move,
                                 int64_t low, int64_t count) const {
    Rows<T> here = all;
    here.x = x;
    here.x_row += move;
    here.in = all.adds() ? all.in + row * all.in_row + low : nullptr;
    here.out = all.out + row * all.out_row + low;
    for (int64_t at = 0; at < count; at += kTile) {
      const int64_t n = std::min(kTile, count - at);
      const bool more = at + kTile < count;
      if (all.adds()) {
        all.stream ? tile<true, true, true>(here, at, n, more)
                   : tile<false, true, true>(here, at, n, more);
      } else if (all.scale != 1) {
        all.stream ? tile<true, false, true>(here, at, n, more)
                   : tile<false, false, true>(here, at, n, more);
      } else {
        all.stream ? tile<true, false, false>(here, at, n, more)
                   : tile<false, false, false>(here, at, n, more);
      }
    }
  }

  // The elements at .. at + n - 1 of kGroup rows, whole lines; `more` of these rows follow.
  template <bool kStream, bool kAdd, bool kScale>
  HWY_ATTR HWY_NOINLINE static void tile(const Rows<T>& rows, int64_t at, int64_t n, bool more) {
    using Operation = std::conditional_t<kScale, Combine<T, T, kAdd, true>, Copy<T>>;
    constexpr Store kStore = kStream ? Store::kStream : Store::kOrdinary;
    // What comes next: the next tile, or the first one of the next group, and the ends of its rows.
    const int64_t ahead = more ? kTile : kGroup * rows.x_row - at;
    const int64_t in_ahead = more ? kTile : kGroup * rows.in_row - at;
    if (!more) {
      for (int64_t r = kGroup; r < 2 * kGroup; ++r) {
        prefetch_later(rows.x + r * rows.x_row - kLine);
        prefetch_later(rows.x + r * rows.x_row + at + n);
        __builtin_prefetch(rows.out + r * rows.out_row - 1, 1, 3);
      }
    }
    for (int64_t i = at; i < at + n; i += kLine) {
      const T* from = rows.x + i;
      const T* in = rows.in + (kAdd ? i : 0);
      T* to = rows.out + i;
#pragma GCC unroll 8
      for (int64_t r = 0; r < kGroup; ++r) {
        prefetch_later(from + ahead);
        if constexpr (kAdd) prefetch_later(in + in_ahead);
        Operation operation;
        if constexpr (kScale) {
          operation = {in, from, to, rows.scale, {}, {}};
        } else {
          operation = {from, to, {}};
        }
        for (int64_t j = 0; j < kLine; j += lanes(typename Operation::D())) {
          operation.template vector<kStore>(j);
        }
        from += rows.x_row;
        to += rows.out_row;
        if constexpr (kAdd) in += rows.in_row;
      }
    }
  }

  // The keys [begin, end) of a row whose first entry is `entry`.
  HWY_ATTR HWY_INLINE void part(const RelativeArgs& args, const Rows<T>& all, int64_t row,
                                int64_t entry, int64_t move, int64_t begin, int64_t end) {
    if (begin >= end) return;
    const T* const x = all.x + row * all.x_row;
    const Result<T, T, true> result = all.result(row);
    // Whole cache lines are written at once, whatever stretches they come from.
    const int64_t beyond =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(result.out) / kSize) % kLine;
    int64_t first = begin, count = 0;  // of the row, in scratch
    const auto finish = [&]() HWY_ATTR {
      if (count > 0) result(values_, values_, first, count);
      first += count;
      count = 0;
    };
    for_each_run(args, entry + begin, end - begin,
                 [&](const IndexRun& run, int64_t k, int64_t n, int64_t position) HWY_ATTR {
                   const int64_t head = (2 * kLine - (beyond + begin + position) % kLine) % kLine;
                   const int64_t lines =
                       run.step == 1 && all.x_step == 1 && n >= kLongCopy ? (n - head) / kLine : 0;
                   const int64_t stop = k + (lines > 0 ? head : n);
                   while (k < stop) {
                     // As much as ends with a line.
                     const int64_t room = kScratch - (beyond + first) % kLine - count;
                     const int64_t some = std::min(stop - k, room);
                     look_up(args, run, k, some, x, all.x_step, values_ + count);
                     count += some;
                     k += some;
                     if (some == room) finish();
                   }
                   if (lines == 0) return;
                   finish();
                   const T* const from = x + run.column + k;
                   result(from, from + all.x_row + move, first, lines * kLine);
                   first += lines * kLine;
                   k += lines * kLine;
                   n -= head + lines * kLine;
                   look_up(args, run, k, n, x, all.x_step, values_);
                   count = n;
                 });
    finish();
  }

  static HWY_ATTR HWY_INLINE void look_up(const RelativeArgs& args, const IndexRun& run, int64_t k,
                                          int64_t n, const T* x, int64_t x_step, T* to) {
    if (run.step == IndexRun::kLookUp) {
      const int32_t* const columns = args.columns + (run.column + k);
      if (x_step == 1) {
        for (int64_t i = 0; i < n; ++i) to[i] = columns[i] < 0 ? T{} : x[columns[i]];
      } else {
        for (int64_t i = 0; i < n; ++i) to[i] = columns[i] < 0 ? T{} : x[columns[i] * x_step];
      }
    } else if (run.column < 0) {
      fill(T{}, n, to);
    } else if (run.step == 0) {
      fill(x[run.column * x_step], n, to);
    } else {
      const T* const from = x + (run.column + k * run.step) * x_step;
      const int64_t step = run.step * x_step;
      if (step == 1) {
        std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
      } else if (step == -1) {
        reverse(from, n, to);
      } else {
        collect(from, step, n, to);
      }
    }
  }

  // to[i] = from[-i]
  static HWY_ATTR HWY_INLINE void reverse(const T* from, int64_t count, T* to) {
    const hn::ScalableTag<Bits<T>> d;
    int64_t i = 0;
    for (; i + lanes(d) <= count; i += lanes(d)) {
      const auto v = hn::LoadU(d, reinterpret_cast<const Bits<T>*>(from - i - lanes(d) + 1));
      hn::StoreU(hn::Reverse(d, v), d, reinterpret_cast<Bits<T>*>(to + i));
    }
    for (; i < count; ++i) to[i] = from[-i];
  }

  static constexpr int64_t kScratch = 2048;
  HWY_ALIGN T values_[kScratch + kSlack];
};

template <typename T>
class GatherKernel {
 public:
  HWY_ATTR void gather(const RelativeArgs& args, int64_t begin, int64_t end) {
    copy_rows(args, args, args.by_column, args.by_key, -1, begin, end);
  }

  // Without an index every key has a column of its own: a gather the other way round.
  HWY_ATTR void shift_back(const RelativeArgs& args, int64_t begin, int64_t end) {
    constexpr int64_t kFar = int64_t{1} << 62;
    const IndexRun runs[] = {{-kFar, kFar, -1, 0}, {0, args.keys, 0, 1}, {args.keys, kFar, -1, 0}};
    RelativeArgs mirrored;
    mirrored.keys = args.width;
    mirrored.runs = runs;
    mirrored.run_count = 3;
    copy_rows(args, mirrored, args.by_key, args.by_column, 1, begin, end);
  }

 private:
  // `read` has the stretches of the index; each row begins `move` entries after the one before it.
  HWY_ATTR HWY_NOINLINE void copy_rows(const RelativeArgs& args, const RelativeArgs& read,
                                       const Matrices& from, const Matrices& to, int64_t move,
                                       int64_t begin, int64_t end) {
    const bool stream = args.non_temporal && args.content.data != to.data;
    for_each_plane(args, begin, end,
                   [&](int64_t plane, int64_t query, int64_t count, int64_t entry) HWY_ATTR {
                     const auto first = [&](const Matrices& m) HWY_ATTR {
                       return static_cast<T*>(m.data) + query * m.row_stride +
                              plane_offset(args.planes, m.plane_strides, plane);
                     };
                     const Rows<T> all{first(from),
                                       from.row_stride,
                                       from.column_stride,
                                       args.content.data == nullptr ? nullptr : first(args.content),
                                       args.content.row_stride,
                                       args.content.column_stride,
                                       first(to),
                                       to.row_stride,
                                       to.column_stride,
                                       static_cast<Real<T>>(args.scale),
                                       stream};
                     copier_.rows(read, all, count, move < 0 ? entry : -entry, move);
                   });
  }

  RowCopier<T> copier_;
};

template <typename T>
HWY_ATTR HWY_NOINLINE void run_gather(const RelativeArgs& args, bool back, int64_t begin,
                                      int64_t end) {
  GatherKernel<T> kernel;  // not {}: its scratch needs no zeros
  if (back) {
    kernel.shift_back(args, begin, end);
  } else {
    kernel.gather(args, begin, end);
  }
}

HWY_ATTR void gather_rows(const RelativeArgs& args, bool back, int64_t begin, int64_t end) {
  visit_type(args.dtype, [&](auto type) { run_gather<decltype(type)>(args, back, begin, end); });
  if (args.non_temporal) hwy::FlushStream();
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void relative_gather(const RelativeArgs& args, int64_t begin, int64_t end) {
  gather_rows(args, false, begin, end);
}

void relative_shift_back(const RelativeArgs& args, int64_t begin, int64_t end) {
  gather_rows(args, true, begin, end);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
