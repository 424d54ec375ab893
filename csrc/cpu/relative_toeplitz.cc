// Toeplitz operations on the CPU: a bias of diagonals, written down or added, and its transpose.
//
//   long rows, no grid     for tile of rows, tile of columns
//                            the window of the entries -> scratch, in the format that is wanted
//                            for repetition, row: a run of the window, one further back each row
//   short rows, grids      for block of rows
//                            their bias -> scratch, once
//                            for repetition: the block is one run
//
// Sums keep one order, whoever forms them: core/toeplitz.h. One lane is one diagonal.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/relative_toeplitz.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/toeplitz.h"
#include "cpu/elements-inl.h"
#include "cpu/kernels.h"
#include "cpu/numbers-inl.h"
#include "cpu/targets.h"

// Included once for each target.
#ifndef POSENC_CPU_RELATIVE_TOEPLITZ_ONCE
#define POSENC_CPU_RELATIVE_TOEPLITZ_ONCE
namespace posenc::cpu {

// A piece of sums is a range of the entries (of the first axis of a grid) of one kept plane: planes
// are split until there is work for many threads.
constexpr int64_t kManyPieces = 16;
constexpr int64_t kMinSumEntries = 512;   // in a piece, without a grid
constexpr int64_t kMaxSumEntries = 4096;  // at a time

inline int64_t parts_of_plane(const ToeplitzArgs& args) {
  const int64_t kept = std::max<int64_t>(args.kept_count(), 1);
  const int64_t wanted = (kManyPieces + kept - 1) / kept;
  const int64_t entries = args.entries[0];
  if (args.grid_rank > 1) return std::min(wanted, entries);
  return std::min(wanted, (entries + kMinSumEntries - 1) / kMinSumEntries);
}

}  // namespace posenc::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows of this many keys are runs of their own.
constexpr int64_t kLongRow = 256;
constexpr int64_t kTileRows = 256, kTileColumns = 4096;
// Bias of a block of rows: in the first-level cache.
constexpr int64_t kBlock = 4096;
// Entries held at once: a window, or those of a grid.
constexpr int64_t kHeld = 9216;
// Vectors may run over the end of scratch.
constexpr int64_t kSlack = 64;

HWY_INLINE int64_t plane_offset(const Planes& planes, int first, int last, const int64_t* strides,
                                int64_t plane) {
  int64_t offset = 0;
  for (int axis = last - 1; axis >= first; --axis) {
    offset += plane % planes.shape[axis] * strides[axis];
    plane /= planes.shape[axis];
  }
  return offset;
}

// The axes of a grid, as three; the first ones have size 1 where it has fewer.
struct Grid {
  int64_t queries[3] = {1, 1, 1}, keys[3] = {1, 1, 1}, start[3] = {}, entries[3] = {1, 1, 1};
  int64_t dense[3] = {};    // strides of entries in C order
  int64_t strides[3] = {};  // in memory

  explicit Grid(const ToeplitzArgs& args) {
    const int skipped = 3 - args.grid_rank;
    for (int axis = 0; axis < args.grid_rank; ++axis) {
      queries[skipped + axis] = args.queries[axis];
      keys[skipped + axis] = args.keys[axis];
      start[skipped + axis] = args.start[axis];
      entries[skipped + axis] = args.entries[axis];
      strides[skipped + axis] = args.entry_strides[axis];
    }
    dense[2] = 1;
    dense[1] = entries[2];
    dense[0] = entries[1] * entries[2];
  }

  // Calls visit(entry, at, length) for runs of neighbouring entries of a row. They are those of the
  // keys [prefix, end) of the first two axes in C order, and of these [from, to) of the last one;
  // `entry` counts in the given strides, `at` from the first of them.
  template <typename Visit>
  HWY_ATTR HWY_INLINE void for_each_run(int64_t row, const int64_t* steps, int64_t prefix,
                                        int64_t end, int64_t from, int64_t to,
                                        const Visit& visit) const {
    const int64_t i2 = row % queries[2], i1 = row / queries[2] % queries[1],
                  i0 = row / queries[2] / queries[1];
    const int64_t base =
        (start[0] - i0) * steps[0] + (start[1] - i1) * steps[1] + (start[2] - i2 + from) * steps[2];
    int64_t j0 = prefix / keys[1], j1 = prefix % keys[1], at = 0;
    for (; prefix < end; ++prefix) {
      visit(base + j0 * steps[0] + j1 * steps[1], at, to - from);
      at += to - from;
      if (++j1 == keys[1]) {
        j1 = 0;
        ++j0;
      }
    }
  }
};

// Whether rows of matrices follow each other without gaps.
inline bool is_dense(const Matrices& m, int64_t keys) {
  return m.column_stride == 1 && m.row_stride == keys;
}

// Whether the kept planes do.
inline bool is_joined(const ToeplitzArgs& args, const Matrices& m) {
  return args.kept == 0 || (args.kept == 1 && is_dense(m, args.key_count()) &&
                            m.plane_strides[0] == args.query_count() * args.key_count());
}

// What an addition reads next, in runs of one after another: `later`, the next run. Without, rows
// that follow each other: what comes soon.
template <typename T>
HWY_INLINE void request(const T* in, const T* later, int64_t i) {
  if (later != nullptr) {
    prefetch_later(later + i);
  } else {
    hwy::Prefetch(in + i + kAheadBytes / static_cast<int64_t>(sizeof(T)));
  }
}

// out = in + bias
template <typename Element>
struct AddBias : Combine<Element, Real<Element>, true, false> {
  const Element* next;
  bool apart;  // from the scores: rows that are written where they are read want no request

  HWY_INLINE void ahead(int64_t i) const {
    if (next != nullptr || apart) request(this->in, next, i);
  }
};

// The same for bfloat16, which is taken as pairs; the bias is at hand as pairs too, its even and
// its odd elements.
struct AddPairs : AddBias<BFloat16> {
  using D = hn::ScalableTag<uint16_t>;

  const float* pairs[2];
  int64_t offset;  // of the bias, among all elements

  template <Store kStore>
  HWY_ATTR HWY_INLINE void vector(int64_t i) const {
    const RealTag<BFloat16> d;
    const int64_t at = offset + i, odd = at & 1;
    hn::Vec<RealTag<BFloat16>> a, b;
    split_pairs(d, load_pairs(d, this->in + i), a, b);
    a = hn::Add(a, hn::LoadU(d, pairs[odd] + at / 2));
    b = hn::Add(b, hn::LoadU(d, pairs[1 - odd] + (at + 1) / 2));
    store_even_odd<kStore>(a, b, d, this->out + i);
  }
};

template <typename T, bool kAdd>
class ToeplitzKernel {
  // The bias is rounded once: to the format of its sum with scores, or to that of the result.
  using Bias = std::conditional_t<kAdd, Real<T>, T>;
  static constexpr bool kPairs = kAdd && std::is_same_v<T, BFloat16>;
  // A NaN among diagonals is left as it is, unless a sum with it is to be rounded to 16 bits.
  static constexpr bool kBits = !(kAdd && kIsHalf<T>);

 public:
  HWY_ATTR void run(const ToeplitzArgs& args, int64_t begin, int64_t end) {
    const int64_t queries = args.query_count();
    stream_ = args.non_temporal && args.in.data != args.out.data;
    const int64_t keys = args.key_count();
    const bool long_rows = args.grid_rank == 1 && (keys >= kLongRow || args.query_count() == 1);
    // Blocks of planes that follow each other are one run too.
    const int64_t block = keys > kBlock ? 1 : kBlock / keys;
    const bool joined = is_joined(args, args.out) && (!kAdd || is_joined(args, args.in));
    while (begin < end) {
      const int64_t plane = begin / queries, query = begin % queries;
      int64_t rows = std::min(queries - query, end - begin);
      enter(args, plane);
      if (long_rows) {
        lay_long_rows(args, query, rows);
      } else if (keys > kBlock) {
        lay_huge_rows(args, query, rows);
      } else {
        rows = std::min(joined ? end - begin : rows, block);
        for (int64_t i = 0; i < rows;) {
          const int64_t first = (begin + i) % queries;
          const int64_t count = std::min(queries - first, rows - i);
          enter(args, (begin + i) / queries);
          if (args.grid_rank > 1) {
            fill_grid_rows(args, first, count, block_ + i * keys);
          } else {
            fill_rows(args, first, count, block_ + i * keys);
          }
          i += count;
        }
        enter(args, plane);
        lay_pairs(block_, rows * keys);
        apply_block(args, query, rows, 0, keys);
      }
      begin += rows;
    }
  }

 private:
  HWY_ATTR HWY_INLINE void enter(const ToeplitzArgs& args, int64_t plane) {
    const auto offset = [&](const int64_t* strides) HWY_ATTR {
      return plane_offset(args.planes, 0, args.kept, strides, plane);
    };
    diagonals_ = offset(args.diagonal_strides);
    in_ = offset(args.in.plane_strides);
    out_ = offset(args.out.plane_strides);
    start_ = args.start_at(offset(args.q_offset_strides));
  }

  HWY_ATTR void lay_long_rows(const ToeplitzArgs& args, int64_t query, int64_t rows) {
    const bool direct =
        kBits && args.diagonals_dtype == dtype_of<Bias>() && args.entry_strides[0] == 1;
    const int64_t keys = args.keys[0], repetitions = args.repetitions();
    for (int64_t first = query; first < query + rows; first += kTileRows) {
      const int64_t count = std::min(kTileRows, query + rows - first);
      for (int64_t column = 0; column < keys; column += kTileColumns) {
        const int64_t columns = std::min(kTileColumns, keys - column);
        // The window of the last row begins first.
        const int64_t entry = start_ - (first + count - 1) + column;
        const Bias* window = entries_;
        if (direct) {
          window = static_cast<const Bias*>(args.diagonals) + diagonals_ + entry;
        } else {
          convert_run<kBits>(args.diagonals, args.diagonals_dtype,
                             diagonals_ + entry * args.entry_strides[0], args.entry_strides[0],
                             columns + count - 1, entries_);
        }
        lay_pairs(window, columns + count - 1);
        for (int64_t repetition = 0; repetition < repetitions; ++repetition) {
          const Place place = place_of(args, repetition, first, column);
          for (int64_t i = 0; i < count; ++i) {
            apply(args, row_of(args, place, i), nullptr, window + (count - 1 - i), columns);
          }
        }
      }
    }
  }

  HWY_ATTR void fill_rows(const ToeplitzArgs& args, int64_t first, int64_t rows, Bias* to) {
    const int64_t keys = args.keys[0], entry = start_ - (first + rows - 1);
    convert_run<kBits>(args.diagonals, args.diagonals_dtype,
                       diagonals_ + entry * args.entry_strides[0], args.entry_strides[0],
                       keys + rows - 1, entries_);
    for (int64_t i = 0; i < rows; ++i) {
      copy_over(entries_ + (rows - 1 - i), keys, to + i * keys);
    }
  }

  HWY_ATTR void fill_grid_rows(const ToeplitzArgs& args, int64_t first, int64_t rows, Bias* to) {
    const Grid grid(args);
    const int64_t keys = args.key_count(), entries = args.entry_count();
    const int64_t prefixes = grid.keys[0] * grid.keys[1], run = grid.keys[2];
    // For each query of the last axis the entries of its keys, run after run. The keys of the last
    // two axes are one run of them.
    const int64_t runs = grid.entries[0] * grid.entries[1], unrolled = grid.queries[2] * runs * run;
    Bias* const all = entries_ + entries + kSlack;
    if (held_ != diagonals_ && entries <= std::min(kHeld, 2 * rows * keys)) {
      held_ = diagonals_;
      hold(args, grid);
      unrolled_ = entries + kSlack + unrolled <= kHeld && unrolled <= 4 * rows * keys;
      if (unrolled_) {
        Bias* at = all;
        for (int64_t i2 = 0; i2 < grid.queries[2]; ++i2) {
          const Bias* from = entries_ + grid.start[2] - i2;
          for (int64_t i = 0; i < runs; ++i, at += run)
            copy_over(from + i * grid.dense[1], run, at);
        }
      }
    }
    const bool held = held_ == diagonals_;
    for (int64_t row = first; row < first + rows; ++row, to += keys) {
      if (held && unrolled_) {
        const int64_t i2 = row % grid.queries[2], i1 = row / grid.queries[2] % grid.queries[1],
                      i0 = row / grid.queries[2] / grid.queries[1];
        const Bias* from = all + i2 * runs * run + (grid.start[1] - i1) * run;
        for (int64_t j0 = 0; j0 < grid.keys[0]; ++j0) {
          copy_over(from + (grid.start[0] - i0 + j0) * grid.entries[1] * run, grid.keys[1] * run,
                    to + j0 * grid.keys[1] * run);
        }
      } else if (held) {
        grid.for_each_run(row, grid.dense, 0, prefixes, 0, run,
                          [&](int64_t entry, int64_t at, int64_t length)
                              HWY_ATTR { copy_over(entries_ + entry, length, to + at); });
      } else {
        convert_row(args, grid, row, 0, prefixes, 0, run, to);
      }
    }
  }

  // Rows that scratch has no room for.
  HWY_ATTR void lay_huge_rows(const ToeplitzArgs& args, int64_t query, int64_t rows) {
    const Grid grid(args);
    const int64_t prefixes = grid.keys[0] * grid.keys[1], run = grid.keys[2];
    const int64_t step = std::max<int64_t>(kBlock / run, 1);
    for (int64_t row = query; row < query + rows; ++row) {
      for (int64_t prefix = 0; prefix < prefixes; prefix += step) {
        const int64_t end = std::min(prefix + step, prefixes);
        for (int64_t from = 0; from < run; from += kBlock) {
          const int64_t to = std::min(from + kBlock, run);
          convert_row(args, grid, row, prefix, end, from, to, block_);
          lay_pairs(block_, (end - prefix) * (to - from));
          apply_block(args, row, 1, prefix * run + from, (end - prefix) * (to - from));
        }
      }
    }
  }

  HWY_ATTR void convert_row(const ToeplitzArgs& args, const Grid& grid, int64_t row, int64_t prefix,
                            int64_t end, int64_t from, int64_t to, Bias* bias) {
    grid.for_each_run(row, grid.strides, prefix, end, from, to,
                      [&](int64_t entry, int64_t at, int64_t length) HWY_ATTR {
                        convert_run<kBits>(args.diagonals, args.diagonals_dtype, diagonals_ + entry,
                                           grid.strides[2], length, bias + at);
                      });
  }

  HWY_ATTR void hold(const ToeplitzArgs& args, const Grid& grid) {
    Bias* to = entries_;
    if (grid.strides[1] == grid.dense[1] && grid.strides[0] == grid.dense[0] &&
        grid.strides[2] == 1) {
      return convert_run<kBits>(args.diagonals, args.diagonals_dtype, diagonals_, 1,
                                args.entry_count(), to);
    }
    for (int64_t e0 = 0; e0 < grid.entries[0]; ++e0) {
      for (int64_t e1 = 0; e1 < grid.entries[1]; ++e1) {
        convert_run<kBits>(args.diagonals, args.diagonals_dtype,
                           diagonals_ + e0 * grid.strides[0] + e1 * grid.strides[1],
                           grid.strides[2], grid.entries[2], to);
        to += grid.entries[2];
      }
    }
  }

  // From scratch to scratch, in whole vectors; what is behind the end is written afterwards.
  static HWY_ATTR HWY_INLINE void copy_over(const Bias* from, int64_t count, Bias* to) {
    const hn::ScalableTag<Bits<Bias>> d;
    for (int64_t i = 0; i < count; i += lanes(d)) {
      hn::StoreU(hn::LoadU(d, reinterpret_cast<const Bits<Bias>*>(from + i)), d,
                 reinterpret_cast<Bits<Bias>*>(to + i));
    }
  }

  // The rows at hand, from a column on, of one repetition.
  struct Place {
    const T* in;
    T* out;
  };

  HWY_ATTR HWY_INLINE Place place_of(const ToeplitzArgs& args, int64_t repetition, int64_t row,
                                     int64_t column) const {
    const Planes& planes = args.planes;
    const auto offset = [&](const Matrices& m) HWY_ATTR {
      return plane_offset(planes, args.kept, planes.rank, m.plane_strides, repetition) +
             row * m.row_stride + column * m.column_stride;
    };
    return {kAdd ? static_cast<const T*>(args.in.data) + in_ + offset(args.in) : nullptr,
            static_cast<T*>(args.out.data) + out_ + offset(args.out)};
  }

  // The bias of a block of rows to every repetition.
  HWY_ATTR void apply_block(const ToeplitzArgs& args, int64_t first, int64_t rows, int64_t column,
                            int64_t columns) {
    const int64_t keys = args.key_count(), repetitions = args.repetitions();
    const bool one_run =
        rows == 1 || (is_dense(args.out, keys) && (!kAdd || is_dense(args.in, keys)));
    Place next = place_of(args, 0, first, column);
    for (int64_t repetition = 0; repetition < repetitions; ++repetition) {
      const Place place = next;
      if (repetition + 1 < repetitions) next = place_of(args, repetition + 1, first, column);
      if (one_run) {
        apply(args, place, next.in, block_, rows * columns);
        continue;
      }
      for (int64_t i = 0; i < rows; ++i) {
        apply(args, row_of(args, place, i), row_of(args, place, i + 1).in, block_ + i * columns,
              columns);
      }
    }
  }

  static HWY_INLINE Place row_of(const ToeplitzArgs& args, const Place& place, int64_t row) {
    return {kAdd ? place.in + row * args.in.row_stride : nullptr,
            place.out + row * args.out.row_stride};
  }

  // A run of the bias to elements of a row; `next` is read after them, if it is not what follows.
  HWY_ATTR HWY_INLINE void apply(const ToeplitzArgs& args, const Place& place, const T* next,
                                 const Bias* bias, int64_t count) {
    const Matrices &in = args.in, &out = args.out;
    if (out.column_stride == 1 && (!kAdd || in.column_stride == 1)) {
      apply_run(place.in, next, bias, count, place.out, stream_);
    } else {
      apply_strided(place.in, in.column_stride, bias, count, place.out, out.column_stride);
    }
  }

  HWY_ATTR HWY_INLINE void apply_run(const T* from, const T* next, const Bias* bias, int64_t count,
                                     T* to, bool stream) const {
    if constexpr (kPairs) {
      const AddBias<T> add{{from, bias, to, 1.0f, {}, {}}, next, from != to};
      run_elements(AddPairs{add, {pairs_[0], pairs_[1]}, bias - pairs_of_}, count, stream);
    } else if constexpr (kAdd) {
      const AddBias<T> add{{from, bias, to, Real<T>(1), {}, {}}, next, from != to};
      run_elements(add, count, stream);
    } else {
      run_elements(Copy<T>{bias, to, {bias, bias, count}}, count, stream);
    }
  }

  // The even and the odd ones of the first `count` elements of the bias at hand.
  HWY_ATTR HWY_INLINE void lay_pairs(const Bias* bias, int64_t count) {
    if constexpr (kPairs) {
      pairs_of_ = bias;
      const hn::ScalableTag<float> d;
      for (int64_t i = 0; i < count; i += 2 * lanes(d)) {
        hn::Vec<decltype(d)> even, odd;
        hn::LoadInterleaved2(d, bias + i, even, odd);
        hn::StoreU(even, d, pairs_[0] + i / 2);
        hn::StoreU(odd, d, pairs_[1] + i / 2);
      }
    }
  }

  HWY_ATTR HWY_NOINLINE void apply_strided(const T* from, int64_t from_step, const Bias* bias,
                                           int64_t count, T* to, int64_t to_step) const {
    constexpr int64_t kPart = 256;
    HWY_ALIGN T in[kPart];
    HWY_ALIGN T out[kPart];
    for (int64_t i = 0; i < count; i += kPart) {
      const int64_t n = std::min(kPart, count - i);
      if constexpr (kAdd) collect(from + i * from_step, from_step, n, in);
      apply_run(in, in, bias + i, n, out, false);
      distribute(out, n, to + i * to_step, to_step);
    }
  }

  bool stream_ = false;
  // Of the plane at hand: offsets, and the entry of query 0 and key 0.
  int64_t diagonals_ = 0, in_ = 0, out_ = 0, start_ = 0;
  int64_t held_ = INT64_MIN;  // the diagonals whose entries are held, of a grid
  bool unrolled_ = false;     // and their runs for each query of the last axis
  HWY_ALIGN Bias entries_[kHeld + kSlack];
  HWY_ALIGN Bias block_[kBlock + kSlack];
  const Bias* pairs_of_ = nullptr;
  HWY_ALIGN float pairs_[2][kPairs ? (kTileRows + kTileColumns) / 2 + kSlack : 1];
};

// --- Sums

template <typename T>
class SumKernel {
  using Number = Real<T>;
  using D = RealTag<T>;
  using Vector = hn::Vec<D>;
  static constexpr int64_t kRows = 8;           // summed before anything is added to
  static constexpr int64_t kRowBlock = 256;     // summed by themselves
  static constexpr int64_t kRepetitions = 64;   // of a grid, summed by themselves
  static constexpr int64_t kPart = 64;          // entries of which not all rows are there
  static constexpr int64_t kRowsAhead = 16384;  // bytes of rows, or at least the next group of them
  static constexpr int64_t kMatrix = 4096;      // of a grid, summed over repetitions

 public:
  HWY_ATTR void run(const ToeplitzArgs& args, int64_t begin, int64_t end) {
    const int64_t parts = parts_of_plane(args), entries = args.entries[0];
    // Planes of a grid that follow each other, as many as scratch has room for.
    const int64_t elements = args.query_count() * args.key_count();
    const bool several = args.grid_rank > 1 && is_joined(args, args.in) && elements > 0;
    const int64_t planes =
        several ? std::min(kMatrix / elements, kMaxSumEntries / args.entry_count()) : 1;
    while (begin < end) {
      // Neighbouring pieces of a plane at once.
      const int64_t plane = begin / parts, part = begin % parts;
      const int64_t count = std::min(parts - part, end - begin);
      const int64_t first = part * entries / parts, last = (part + count) * entries / parts;
      diagonals_ = plane_offset(args.planes, 0, args.kept, args.diagonal_strides, plane);
      in_ = static_cast<const T*>(args.in.data) +
            plane_offset(args.planes, 0, args.kept, args.in.plane_strides, plane);
      q_offset_ = plane_offset(args.planes, 0, args.kept, args.q_offset_strides, plane);
      const int64_t whole = part == 0 ? std::min(planes, (end - begin) / parts) : 0;
      if (whole > 1) {
        sum_planes(args, whole);
        begin += whole * parts;
        continue;
      }
      if (args.grid_rank > 1) {
        sum_grid(args, first, last);
      } else {
        for (int64_t entry = first; entry < last; entry += kMaxSumEntries) {
          sum_entries(args, entry, std::min(entry + kMaxSumEntries, last));
        }
      }
      begin += count;
    }
  }

 private:
  // --- Without a grid

  HWY_ATTR void sum_entries(const ToeplitzArgs& args, int64_t first, int64_t last) {
    const Planes& planes = args.planes;
    const int64_t repetitions = args.repetitions(), keys = args.keys[0], queries = args.queries[0];
    first_ = first;
    last_ = last;
    std::fill(total_, total_ + (last - first), Number(0));
    const T* next = in_;
    // How many rows ahead memory is requested: whole groups.
    const int64_t bytes = std::max<int64_t>(
        std::min(keys, last - first) * kRows * static_cast<int64_t>(sizeof(T)), 1);
    const int64_t distance =
        kRows * std::min((kRowsAhead + bytes - 1) / bytes, (queries + kRows - 1) / kRows);
    for (int64_t repetition = 0; keys > 0 && repetition < repetitions; ++repetition) {
      const auto offset = [&](const int64_t* strides) HWY_ATTR {
        return plane_offset(planes, args.kept, planes.rank, strides, repetition);
      };
      const T* const plane = next;
      next = in_ + plane_offset(planes, args.kept, planes.rank, args.in.plane_strides,
                                repetition + 1 < repetitions ? repetition + 1 : 0);
      const int64_t start = args.start_at(q_offset_ + offset(args.q_offset_strides));
      for (int64_t row = 0; row < queries; row += kRowBlock) {
        const int64_t end = std::min(row + kRowBlock, queries);
        const int64_t low = std::max(start - (end - 1), first),
                      high = std::min(start - row + keys, last);
        if (low >= high) continue;
        const int64_t whole = (low - first) / lanes(D()) * lanes(D());
        std::fill(block_ + whole, block_ + (high - first), Number(0));
        for (int64_t i = row; i < end; i += kRows) {
          const int64_t later = i + distance, stride = args.in.row_stride;
          const int64_t ahead =
              later < queries ? distance * stride
                              : next - plane + ((later - queries) / kRows * kRows - i) * stride;
          sum_rows(args, plane, start - i, i, std::min(kRows, end - i), ahead);
        }
        add(block_ + (low - first), high - low, total_ + (low - first));
      }
    }
    Number* const to = static_cast<Number*>(args.diagonals) + diagonals_;
    const int64_t step = args.entry_strides[0];
    if (step == 1) {
      std::memcpy(to + first, total_, static_cast<size_t>(last - first) * sizeof(Number));
    } else {
      distribute(total_, last - first, to + first * step, step);
    }
  }

  // Adds the sums of `rows` rows from the row-th on, whose windows begin at start, start - 1 ...;
  // afterwards the rows `ahead` elements further are read.
  HWY_ATTR void sum_rows(const ToeplitzArgs& args, const T* plane, int64_t start, int64_t row,
                         int64_t rows, int64_t ahead) {
    const int64_t keys = args.keys[0];
    const int64_t row_stride = args.in.row_stride, column_stride = args.in.column_stride;
    // Entries that some row has, and those that all rows have.
    int64_t low = std::max(start - (rows - 1), first_);
    const int64_t high = std::min(start + keys, last_);
    if (low >= high) return;
    const Group group{plane + row * row_stride - start * column_stride,
                      row_stride,
                      column_stride,
                      start,
                      keys,
                      rows,
                      ahead};
    if (column_stride != 1 || keys < lanes(D())) return sum_parts(group, low, high);
    // Vectors of the sums are the same in every group: what is stored is loaded again.
    low -= (low - first_) % lanes(D());
    for (; low < std::min(start, high); low += lanes(D())) sum_vector(group, low);
    const int64_t whole = std::min(start - (rows - 1) + keys, high);
    low = rows == kRows ? sum_whole(group, low, whole) : sum_few(group, low, whole);
    for (; low < high; low += lanes(D())) sum_vector(group, low);
  }

  struct Group {
    const T* origin;  // row 0 at entry 0
    int64_t row_stride, column_stride, start, keys, rows, ahead;

    // Row r at an entry.
    const T* at(int64_t r, int64_t entry) const {
      return origin + r * (row_stride + column_stride) + entry * column_stride;
    }
  };

  // Entries that all of a few rows have: those at the end of a plane, or of decoding.
  HWY_ATTR HWY_INLINE int64_t sum_few(const Group& group, int64_t from, int64_t to) {
    const D d;
    Number* const sums = block_ - first_;
    for (; from + lanes(d) <= to; from += lanes(d)) {
      Vector sum = hn::Zero(d);
      for (int64_t r = 0; r < group.rows; ++r) sum = hn::Add(sum, load(d, group.at(r, from)));
      hn::StoreU(hn::Add(hn::LoadU(d, sums + from), sum), d, sums + from);
    }
    return from;
  }

  // A vector of entries that not all rows have; rows have vectors of keys at least.
  HWY_ATTR HWY_INLINE void sum_vector(const Group& group, int64_t entry) {
    const D d;
    const hn::RebindToSigned<D> di;
    const int64_t n = lanes(d);
    Vector sum = hn::Zero(d);
    for (int64_t r = 0; r < group.rows; ++r) {
      const int64_t begin = group.start - r, end = begin + group.keys;  // its entries
      if (entry >= end || entry + n <= begin) continue;
      // The vector of the row that is nearest, moved to its place.
      const int64_t at = std::clamp(entry, begin, end - n);
      const T* const from = group.at(r, at);
      prefetch_later(from + group.ahead);
      Vector v = load(d, from);
      if (at != entry) {
        const auto lane = hn::Iota(di, static_cast<hn::TFromD<decltype(di)>>(entry - at));
        const auto wrapped =
            hn::And(lane, hn::Set(di, static_cast<hn::TFromD<decltype(di)>>(n - 1)));
        const auto there = hn::RebindMask(d, hn::Eq(lane, wrapped));
        v = hn::IfThenElseZero(there, hn::TableLookupLanes(v, hn::IndicesFromVec(d, wrapped)));
      }
      sum = hn::Add(sum, v);
    }
    Number* const sums = block_ + (entry - first_);
    hn::StoreU(hn::Add(hn::LoadU(d, sums), sum), d, sums);
  }

  // Entries that all of 8 rows have, as many as fill vectors; returns the end of them.
  HWY_ATTR HWY_INLINE int64_t sum_whole(const Group& group, int64_t from, int64_t to) {
    const D d;
    const int64_t diagonal = group.row_stride + 1;
    const T* const row = group.origin;
    const T* const ahead = row + group.ahead;
    Number* const sums = block_ - first_;
    const int64_t line = std::max(lanes(d), kLineBytes / static_cast<int64_t>(sizeof(T)));
    const auto vector = [&](int64_t entry) HWY_ATTR {
      // From 0.0 on: -0.0 is nowhere then, and rows that are not there may be zeros.
      Vector sum = hn::Add(load(d, row + entry), hn::Zero(d));
#pragma GCC unroll 8
      for (int64_t r = 1; r < kRows; ++r) sum = hn::Add(sum, load(d, row + r * diagonal + entry));
      hn::StoreU(hn::Add(hn::LoadU(d, sums + entry), sum), d, sums + entry);
    };
    for (; from + line <= to; from += line) {
#pragma GCC unroll 8
      for (int64_t r = 0; r < kRows; ++r) prefetch_later(ahead + r * diagonal + from);
      for (int64_t i = 0; i < line; i += lanes(d)) vector(from + i);
    }
    for (; from + lanes(d) <= to; from += lanes(d)) vector(from);
    return from;
  }

  // Entries that not all rows have, or that are not neighbours: through a buffer of zeros.
  HWY_ATTR HWY_NOINLINE void sum_parts(const Group& group, int64_t from, int64_t to) {
    const D d;
    HWY_ALIGN Number rows[kRows][kPart];
    for (; from < to; from += kPart) {
      const int64_t end = std::min(from + kPart, to);
      const int64_t padded = (end - from + lanes(d) - 1) / lanes(d) * lanes(d);
      for (int64_t r = 0; r < group.rows; ++r) {
        const int64_t low = std::clamp(group.start - r, from, end),
                      high = std::clamp(group.start - r + group.keys, low, end);
        std::fill(rows[r], rows[r] + (low - from), Number(0));
        const T* const at = group.at(r, low);
        for (int64_t i = 0; i < high - low; ++i) {
          rows[r][low - from + i] = to_real(at[i * group.column_stride]);
        }
        std::fill(rows[r] + (high - from), rows[r] + padded, Number(0));
      }
      Number* const sums = block_ + (from - first_);
      for (int64_t i = 0; i < padded; i += lanes(d)) {
        Vector sum = hn::Zero(d);
        for (int64_t r = 0; r < group.rows; ++r) sum = hn::Add(sum, hn::Load(d, rows[r] + i));
        hn::StoreU(hn::Add(hn::LoadU(d, sums + i), sum), d, sums + i);
      }
    }
  }

  static HWY_INLINE Number to_real(T value) {
    if constexpr (std::is_same_v<T, double>) {
      return value;
    } else {
      return to_float(value);
    }
  }

  // --- Grids

  // All entries of `planes` kept planes that are one run.
  HWY_ATTR void sum_planes(const ToeplitzArgs& args, int64_t planes) {
    const Grid grid(args);
    const int64_t rows = args.query_count(), keys = args.key_count(), entries = args.entry_count();
    const int64_t repetitions = args.repetitions();
    std::fill(total_, total_ + planes * entries, Number(0));
    for (int64_t begin = 0; begin < repetitions; begin += kRepetitions) {
      std::fill(block_, block_ + planes * entries, Number(0));
      sum_block(args, 0, planes * rows, 0, keys, begin,
                std::min(begin + kRepetitions, repetitions));
      for (int64_t row = 0; row < planes * rows; ++row) {
        add_row(grid, grid.dense, row % rows, 0, grid.keys[0] * grid.keys[1], 0, grid.keys[2],
                matrix_ + row * keys, block_ + row / rows * entries);
      }
      add(block_, planes * entries, total_);
    }
    Box all;
    for (int i = 0; i < 3; ++i) all.end[i] = grid.entries[i];
    for (int64_t plane = 0; plane < planes; ++plane) {
      write(args, grid, all, total_ + plane * entries,
            diagonals_ + plane * args.diagonal_strides[0]);
    }
  }

  // The entries [first, last) along the first axis: in boxes that scratch has room for.
  HWY_ATTR void sum_grid(const ToeplitzArgs& args, int64_t first, int64_t last) {
    const Grid grid(args);
    // A grid of rank 2 has its first axis in the second place.
    const int axis = 3 - args.grid_rank;
    Box all;
    for (int i = 0; i < 3; ++i) all.end[i] = grid.entries[i];
    all.begin[axis] = first;
    all.end[axis] = last;
    int64_t step[3], room = kMaxSumEntries;
    for (int i = 2; i >= 0; --i) {
      step[i] = std::clamp<int64_t>(room, 1, std::max<int64_t>(grid.entries[i], 1));
      room = step[i] == grid.entries[i] ? room / step[i] : 1;
    }
    Box box;
    const auto next = [&](int i) {
      box.end[i] = std::min(box.begin[i] + step[i], all.end[i]);
      return box.begin[i] < all.end[i];
    };
    for (box.begin[0] = all.begin[0]; next(0); box.begin[0] += step[0]) {
      for (box.begin[1] = all.begin[1]; next(1); box.begin[1] += step[1]) {
        for (box.begin[2] = all.begin[2]; next(2); box.begin[2] += step[2]) {
          sum_box(args, grid, box);
        }
      }
    }
  }

  // Entries of a grid.
  struct Box {
    int64_t begin[3] = {}, end[3] = {};

    int64_t size(int axis) const { return end[axis] - begin[axis]; }
  };

  HWY_ATTR void sum_box(const ToeplitzArgs& args, const Grid& grid, const Box& box) {
    const int64_t count = box.size(0) * box.size(1) * box.size(2);
    std::fill(total_, total_ + count, Number(0));
    const int64_t repetitions = args.key_count() > 0 ? args.repetitions() : 0;
    for (int64_t begin = 0; begin < repetitions; begin += kRepetitions) {
      std::fill(block_, block_ + count, Number(0));
      sum_repetitions(args, grid, box, begin, std::min(begin + kRepetitions, repetitions));
      add(block_, count, total_);
    }
    write(args, grid, box, total_, diagonals_);
  }

  // total += sums
  static HWY_ATTR HWY_INLINE void add(const Number* sums, int64_t count, Number* total) {
    const D d;
    int64_t i = 0;
    for (; i + lanes(d) <= count; i += lanes(d)) {
      hn::StoreU(hn::Add(hn::LoadU(d, total + i), hn::LoadU(d, sums + i)), d, total + i);
    }
    for (; i < count; ++i) total[i] += sums[i];
  }

  // The sums of a box to where they belong.
  static void write(const ToeplitzArgs& args, const Grid& grid, const Box& box, const Number* total,
                    int64_t diagonals) {
    Number* const to = static_cast<Number*>(args.diagonals) + diagonals;
    for (int64_t e0 = box.begin[0]; e0 < box.end[0]; ++e0) {
      for (int64_t e1 = box.begin[1]; e1 < box.end[1]; ++e1) {
        Number* const row = to + e0 * grid.strides[0] + e1 * grid.strides[1];
        distribute(total, box.size(2), row + box.begin[2] * grid.strides[2], grid.strides[2]);
        total += box.size(2);
      }
    }
  }

  HWY_ATTR void sum_repetitions(const ToeplitzArgs& args, const Grid& grid, const Box& box,
                                int64_t begin, int64_t end) {
    const int64_t rows = args.query_count(), keys = args.key_count();
    const int64_t steps[3] = {box.size(1) * box.size(2), box.size(2), 1};
    Number* const sums =
        block_ - (box.begin[0] * steps[0] + box.begin[1] * steps[1] + box.begin[2]);
    if (box.size(0) * box.size(1) * box.size(2) == args.entry_count() && keys <= kMatrix) {
      // Blocks of rows, of about the same size.
      const int64_t most = kMatrix / keys, blocks = (rows + most - 1) / most;
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t row = rows * block / blocks, count = rows * (block + 1) / blocks - row;
        sum_block(args, row, count, 0, keys, begin, end);
        for (int64_t i = 0; i < count; ++i) {
          add_row(grid, steps, row + i, 0, grid.keys[0] * grid.keys[1], 0, grid.keys[2],
                  matrix_ + i * keys, sums);
        }
      }
      return;
    }
    // The keys of a row whose entries are asked for; neighbours at once.
    const int64_t run = grid.keys[2];
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t query[3] = {row / grid.queries[2] / grid.queries[1],
                                row / grid.queries[2] % grid.queries[1], row % grid.queries[2]};
      int64_t low[3], high[3];
      for (int i = 0; i < 3; ++i) {
        const int64_t start = grid.start[i] - query[i];
        low[i] = std::clamp<int64_t>(box.begin[i] - start, 0, grid.keys[i]);
        high[i] = std::clamp<int64_t>(box.end[i] - start, low[i], grid.keys[i]);
      }
      const bool whole = low[2] == 0 && high[2] == run;
      const int64_t most = whole ? std::max<int64_t>(kMatrix / run, 1) : 1;
      for (int64_t j0 = low[0]; j0 < high[0]; ++j0) {
        const int64_t stop = j0 * grid.keys[1] + high[1];
        for (int64_t prefix = j0 * grid.keys[1] + low[1]; prefix < stop; prefix += most) {
          const int64_t count = std::min(most, stop - prefix);
          for (int64_t from = low[2]; from < high[2]; from += kMatrix) {
            const int64_t to = std::min(from + kMatrix, high[2]);
            sum_block(args, row, 1, prefix * run + from, count * (to - from), begin, end);
            add_row(grid, steps, row, prefix, prefix + count, from, to, matrix_, sums);
          }
        }
      }
    }
  }

  // A row of sums over repetitions to its entries, of which it has each once.
  HWY_ATTR HWY_INLINE void add_row(const Grid& grid, const int64_t* steps, int64_t row,
                                   int64_t prefix, int64_t end, int64_t from, int64_t to,
                                   const Number* values, Number* sums) {
    const D d;
    grid.for_each_run(
        row, steps, prefix, end, from, to, [&](int64_t entry, int64_t at, int64_t length) HWY_ATTR {
          for (int64_t i = 0; i < length; i += lanes(d)) {
            // Zeros behind the run change nothing: no sum is -0.0.
            const auto there = hn::FirstN(d, static_cast<size_t>(std::min(length - i, lanes(d))));
            const auto more = hn::IfThenElseZero(there, hn::LoadU(d, values + at + i));
            Number* const sum = sums + entry + i;
            hn::StoreU(hn::Add(hn::LoadU(d, sum), more), d, sum);
          }
        });
  }

  // matrix_ = sums over the repetitions [begin, end) of a block of rows.
  HWY_ATTR void sum_block(const ToeplitzArgs& args, int64_t row, int64_t rows, int64_t column,
                          int64_t columns, int64_t begin, int64_t end) {
    const Planes& planes = args.planes;
    const Matrices& in = args.in;
    const bool one_run = rows == 1 ? in.column_stride == 1 : is_dense(in, args.key_count());
    const int64_t place = row * in.row_stride + column * in.column_stride;
    const T* planes_at[kRows];
    const T* next_at[kRows];
    std::fill(next_at, next_at + kRows, in_);
    const auto find = [&](int64_t repetition, const T** at, int64_t from) HWY_ATTR {
      for (int64_t r = 0; r < kRows && repetition + r < args.repetitions(); ++r) {
        at[r] = in_ + from +
                plane_offset(planes, args.kept, planes.rank, in.plane_strides, repetition + r);
      }
    };
    find(begin, next_at, place);
    for (int64_t repetition = begin; repetition < end; repetition += kRows) {
      const int64_t count = std::min(kRows, end - repetition);
      std::copy_n(next_at, kRows, planes_at);
      if (repetition + kRows < end) {
        find(repetition + kRows, next_at, place);
      } else if (row + rows < args.query_count() || end >= args.repetitions()) {
        find(begin, next_at, place + rows * in.row_stride);
      } else {
        find(end, next_at, column * in.column_stride);
      }
      const bool fresh = repetition == begin;
      if (one_run) {
        sum_runs(planes_at, next_at, count, rows * columns, fresh, matrix_);
        continue;
      }
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t from = 0; from < columns; from += kPart) {
          const int64_t n = std::min(kPart, columns - from);
          HWY_ALIGN T buffer[kRows][kPart];
          const T* parts[kRows];
          for (int64_t r = 0; r < count; ++r) {
            const T* const at = planes_at[r] + i * in.row_stride + from * in.column_stride;
            parts[r] = in.column_stride == 1 ? at : buffer[r];
            if (in.column_stride != 1) collect(at, in.column_stride, n, buffer[r]);
          }
          sum_runs(parts, parts, count, n, fresh, matrix_ + i * columns + from);
        }
      }
    }
  }

  // sums += each of `runs` runs in turn; or, if fresh, 0.0 + them.
  HWY_ATTR HWY_INLINE void sum_runs(const T* const* from, const T* const* next, int64_t runs,
                                    int64_t count, bool fresh, Number* sums) {
    const D d;
    int64_t i = 0;
    if (runs == kRows) {
      const T* at[kRows];
      std::copy_n(from, kRows, at);
      const int64_t line = std::max(lanes(d), kLineBytes / static_cast<int64_t>(sizeof(T)));
      for (; i + line <= count; i += line) {
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; ++r) prefetch_later(next[r] + i);
        for (int64_t j = i; j < i + line; j += lanes(d)) {
          Vector sum = fresh ? hn::Zero(d) : hn::LoadU(d, sums + j);
#pragma GCC unroll 8
          for (int64_t r = 0; r < kRows; ++r) sum = hn::Add(sum, load(d, at[r] + j));
          hn::StoreU(sum, d, sums + j);
        }
      }
    }
    const auto vector = [&](int64_t j) HWY_ATTR {
      Vector sum = fresh ? hn::Zero(d) : hn::LoadU(d, sums + j);
      for (int64_t r = 0; r < runs; ++r) sum = hn::Add(sum, load(d, from[r] + j));
      return sum;
    };
    for (; i + lanes(d) <= count; i += lanes(d)) hn::StoreU(vector(i), d, sums + i);
    if (i == count) return;
    if (count >= lanes(d)) {
      // The last vector again, of which some are done.
      const int64_t last = count - lanes(d);
      const auto done = hn::FirstN(d, static_cast<size_t>(i - last));
      const Vector sum = vector(last);
      hn::StoreU(hn::IfThenElse(done, hn::LoadU(d, sums + last), sum), d, sums + last);
      return;
    }
    for (; i < count; ++i) {
      Number sum = fresh ? Number(0) : sums[i];
      for (int64_t r = 0; r < runs; ++r) sum += to_real(from[r][i]);
      sums[i] = sum;
    }
  }

  const T* in_ = nullptr;  // of the kept plane at hand
  int64_t diagonals_ = 0, q_offset_ = 0;
  int64_t first_ = 0, last_ = 0;  // entries at hand
  HWY_ALIGN Number total_[kMaxSumEntries + kSlack];
  HWY_ALIGN Number block_[kMaxSumEntries + kSlack];
  HWY_ALIGN Number matrix_[kMatrix + kSlack];
};

template <typename T>
HWY_ATTR HWY_NOINLINE void run_toeplitz(const ToeplitzArgs& args, int64_t begin, int64_t end) {
  if (args.in.data != nullptr) {
    ToeplitzKernel<T, true> kernel;  // not {}: its scratch needs no zeros
    kernel.run(args, begin, end);
  } else {
    ToeplitzKernel<T, false> kernel;
    kernel.run(args, begin, end);
  }
}

template <typename T>
HWY_ATTR HWY_NOINLINE void run_sums(const ToeplitzArgs& args, int64_t begin, int64_t end) {
  SumKernel<T> kernel;
  kernel.run(args, begin, end);
}

HWY_ATTR void toeplitz_target(const ToeplitzArgs& args, int64_t begin, int64_t end) {
  switch (args.dtype) {
    case Dtype::kFloat16:
      run_toeplitz<Float16>(args, begin, end);
      break;
    case Dtype::kBFloat16:
      run_toeplitz<BFloat16>(args, begin, end);
      break;
    case Dtype::kFloat32:
      run_toeplitz<float>(args, begin, end);
      break;
    default:
      run_toeplitz<double>(args, begin, end);
  }
  if (args.non_temporal) hwy::FlushStream();
}

HWY_ATTR void sums_target(const ToeplitzArgs& args, int64_t begin, int64_t end) {
  switch (args.dtype) {
    case Dtype::kFloat16:
      run_sums<Float16>(args, begin, end);
      break;
    case Dtype::kBFloat16:
      run_sums<BFloat16>(args, begin, end);
      break;
    case Dtype::kFloat32:
      run_sums<float>(args, begin, end);
      break;
    default:
      run_sums<double>(args, begin, end);
  }
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace posenc::cpu {

POSENC_EXPORT(toeplitz_target);
POSENC_EXPORT(sums_target);

void toeplitz(const ToeplitzArgs& args, int64_t begin, int64_t end) {
  POSENC_DISPATCH(toeplitz_target)(args, begin, end);
}

int64_t diagonal_sum_pieces(const ToeplitzArgs& args) {
  return args.kept_count() * parts_of_plane(args);
}

void diagonal_sums(const ToeplitzArgs& args, int64_t begin, int64_t end) {
  POSENC_DISPATCH(sums_target)(args, begin, end);
}

}  // namespace posenc::cpu
#endif  // HWY_ONCE
