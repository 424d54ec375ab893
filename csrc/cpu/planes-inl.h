// The planes of a Toeplitz operation, and the cells of a grid: what laying a bias down and summing
// along diagonals share.

#pragma once

#include "core/toeplitz.h"
#include "cpu/numbers-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {

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
  int64_t queries[3] = {1, 1, 1}, keys[3] = {1, 1, 1}, origin[3] = {}, entries[3] = {1, 1, 1};
  int64_t dense[3] = {};    // strides of entries in C order
  int64_t strides[3] = {};  // in memory

  explicit Grid(const ToeplitzArgs& args) {
    const int skipped = 3 - args.grid_rank;
    for (int axis = 0; axis < args.grid_rank; ++axis) {
      queries[skipped + axis] = args.queries[axis];
      keys[skipped + axis] = args.keys[axis];
      origin[skipped + axis] = args.origin[axis];
      entries[skipped + axis] = args.entries[axis];
      strides[skipped + axis] = args.entry_strides[axis];
    }
    dense[2] = 1;
    dense[1] = entries[2];
    dense[0] = entries[1] * entries[2];
  }

  // Calls visit(entry, at, length) for runs of neighboring entries of a row. They are those of the
  // keys [prefix, end) of the first two axes in C order, and of these [from, to) of the last one;
  // `entry` counts in the given strides, `at` from the first of them.
  template <typename Visit>
  HWY_ATTR HWY_INLINE void for_each_run(int64_t row, const int64_t* steps, int64_t prefix,
                                        int64_t end, int64_t from, int64_t to,
                                        const Visit& visit) const {
    const int64_t i2 = row % queries[2], i1 = row / queries[2] % queries[1],
                  i0 = row / queries[2] / queries[1];
    const int64_t base = (origin[0] - i0) * steps[0] + (origin[1] - i1) * steps[1] +
                         (origin[2] - i2 + from) * steps[2];
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

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
