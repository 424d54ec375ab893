// Toeplitz operations on the CPU: a bias of diagonals, written down or added.
//
//   long rows, no grid     for tile of rows, tile of columns
//                            the window of the entries -> scratch, in the format that is wanted
//                            for repetition, row: a run of the window, one further back each row
//   short rows, grids      for block of rows
//                            their bias -> scratch, once
//                            for repetition: the block is one run

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/toeplitz.h"
#include "core/visit_type.h"
#include "cpu/elements-inl.h"
#include "cpu/numbers-inl.h"
#include "cpu/planes-inl.h"

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
    origin_ = args.origin_at(offset(args.q_offset_strides));
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
        const int64_t entry = origin_ - (first + count - 1) + column;
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
    const int64_t keys = args.keys[0], entry = origin_ - (first + rows - 1);
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
          const Bias* from = entries_ + grid.origin[2] - i2;
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
        const Bias* from = all + i2 * runs * run + (grid.origin[1] - i1) * run;
        for (int64_t j0 = 0; j0 < grid.keys[0]; ++j0) {
          copy_over(from + (grid.origin[0] - i0 + j0) * grid.entries[1] * run, grid.keys[1] * run,
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
  int64_t diagonals_ = 0, in_ = 0, out_ = 0, origin_ = 0;
  int64_t held_ = INT64_MIN;  // the diagonals whose entries are held, of a grid
  bool unrolled_ = false;     // and their runs for each query of the last axis
  HWY_ALIGN Bias entries_[kHeld + kSlack];
  HWY_ALIGN Bias block_[kBlock + kSlack];
  const Bias* pairs_of_ = nullptr;
  HWY_ALIGN float pairs_[2][kPairs ? (kTileRows + kTileColumns) / 2 + kSlack : 1];
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

HWY_ATTR void lay_rows(const ToeplitzArgs& args, int64_t begin, int64_t end) {
  visit_type(args.dtype, [&](auto type) { run_toeplitz<decltype(type)>(args, begin, end); });
  if (args.non_temporal) hwy::FlushStream();
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void toeplitz(const ToeplitzArgs& args, int64_t begin, int64_t end) { lay_rows(args, begin, end); }

}  // namespace posenc::cpu::HWY_NAMESPACE
