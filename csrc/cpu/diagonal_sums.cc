// Sums along diagonals on the CPU: the transpose of laying a bias down.
//
// Sums keep one order, whoever forms them: core/toeplitz.h. One lane is one diagonal. Eight rows
// are summed at a time, while memory of the next group is requested: as in gather.cc, the
// processor's own requests end with each part of a row.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/toeplitz.h"
#include "core/visit_type.h"
#include "cpu/elements-inl.h"
#include "cpu/numbers-inl.h"
#include "cpu/pieces.h"
#include "cpu/planes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kMaxSumEntries = 4096;  // at a time

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
      // Neighboring pieces of a plane at once.
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
      const int64_t origin = args.origin_at(q_offset_ + offset(args.q_offset_strides));
      for (int64_t row = 0; row < queries; row += kRowBlock) {
        const int64_t end = std::min(row + kRowBlock, queries);
        const int64_t low = std::max(origin - (end - 1), first),
                      high = std::min(origin - row + keys, last);
        if (low >= high) continue;
        const int64_t whole = (low - first) / lanes(D()) * lanes(D());
        std::fill(block_ + whole, block_ + (high - first), Number(0));
        for (int64_t i = row; i < end; i += kRows) {
          const int64_t later = i + distance, stride = args.in.row_stride;
          const int64_t ahead =
              later < queries ? distance * stride
                              : next - plane + ((later - queries) / kRows * kRows - i) * stride;
          sum_rows(args, plane, origin - i, i, std::min(kRows, end - i), ahead);
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
    const T* base;  // row 0 at entry 0
    int64_t row_stride, column_stride, start, keys, rows, ahead;

    // Row r at an entry.
    const T* at(int64_t r, int64_t entry) const {
      return base + r * (row_stride + column_stride) + entry * column_stride;
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
    const T* const row = group.base;
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

  // Entries that not all rows have, or that are not neighbors: through a buffer of zeros.
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
    // The keys of a row whose entries are asked for; neighbors at once.
    const int64_t run = grid.keys[2];
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t query[3] = {row / grid.queries[2] / grid.queries[1],
                                row / grid.queries[2] % grid.queries[1], row % grid.queries[2]};
      int64_t low[3], high[3];
      for (int i = 0; i < 3; ++i) {
        const int64_t start = grid.origin[i] - query[i];
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
HWY_ATTR HWY_NOINLINE void run_sums(const ToeplitzArgs& args, int64_t begin, int64_t end) {
  SumKernel<T> kernel;
  kernel.run(args, begin, end);
}

HWY_ATTR void sum_pieces(const ToeplitzArgs& args, int64_t begin, int64_t end) {
  visit_type(args.dtype, [&](auto type) { run_sums<decltype(type)>(args, begin, end); });
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void diagonal_sums(const ToeplitzArgs& args, int64_t begin, int64_t end) {
  sum_pieces(args, begin, end);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
