// Relative encodings: what depends on key - query alone, or is looked up by it.
//
//   entry of query i and key j:   e = start + j - i       start: the entry of query 0 and key 0
//
//     e    j ->                     A row is a window of the entries; from row to row it moves back
//     i    3 4 5 6 7                by one. With q_offset, query i is at position q_offset + i: the
//     |    2 3 4 5 6                windows of a plane begin that much earlier.
//     v    1 2 3 4 5
//
//   Toeplitz        out[..., i, j] = scores[..., i, j] + diagonals[..., e]
//   diagonal sums   diagonals[..., e] = sum of grad[..., i, j] over the diagonal       (transpose)
//   gather          out[..., i, j] = (content[..., i, j] + x[..., i, index[e]]) * scale
//   scatter         out[..., i, w] = scale * sum of grad[..., i, j] with index[e] == w (transpose)
//
// Queries and keys of a Toeplitz operation may be the cells of a grid (Swin's windows), in C order:
// an entry then has one index for each axis of the grid, e_a = start_a + j_a - i_a.
#pragma once

#include <cstdint>

#include "core/angles.h"
#include "core/view.h"

namespace posenc {

constexpr int kMaxGridRank = 3;

// The matrices [queries, keys] (or [queries, width]) of all planes; strides in elements.
struct Matrices {
  void* data = nullptr;
  int64_t plane_strides[kMaxRank] = {};
  int64_t row_stride = 0, column_stride = 0;
};

// The leading axes of a call, in C order.
struct Planes {
  int rank = 0;
  int64_t shape[kMaxRank] = {};

  POSENC_HD int64_t count(int first, int last) const {
    int64_t product = 1;
    for (int axis = first; axis < last; ++axis) product *= shape[axis];
    return product;
  }
};

// start - q_offset. Values that could not be checked, in a GPU's memory, do not lead out of bounds.
POSENC_HD inline int64_t clamped_start(int64_t start, int64_t q_offset, int64_t low, int64_t high) {
  const int64_t first =
      static_cast<int64_t>(static_cast<uint64_t>(start) - static_cast<uint64_t>(q_offset));
  return first < low ? low : first > high ? high : first;
}

struct ToeplitzArgs {
  // Along the first `kept` axes planes have other diagonals, or other windows of them; the further
  // ones repeat the bias. Diagonal sums: planes of the first ones have diagonals of their own, and
  // the further axes are summed over, in C order.
  Planes planes;
  int kept = 0;

  int grid_rank = 1;
  int64_t queries[kMaxGridRank] = {}, keys[kMaxGridRank] = {}, start[kMaxGridRank] = {};

  Dtype dtype = Dtype::kFloat32;  // of the matrices
  Matrices in;                    // scores, or grad; no data: the bias alone
  Matrices out;                   // of a Toeplitz operation

  void* diagonals = nullptr;  // read by a Toeplitz operation, written by sums
  Dtype diagonals_dtype = Dtype::kFloat32;
  int64_t diagonal_strides[kMaxRank] = {};  // of planes: 0 beyond `kept`
  int64_t entries[kMaxGridRank] = {}, entry_strides[kMaxGridRank] = {};

  Positions q_offset;  // of a plane; for grids of rank 1
  int64_t q_offset_strides[kMaxRank] = {};

  bool non_temporal = false;

  POSENC_HD int64_t query_count() const { return product(queries); }
  POSENC_HD int64_t key_count() const { return product(keys); }
  POSENC_HD int64_t entry_count() const { return product(entries); }
  POSENC_HD int64_t kept_count() const { return planes.count(0, kept); }
  POSENC_HD int64_t repetitions() const { return planes.count(kept, planes.rank); }

  // The entry of query 0 and key 0 in the plane whose q_offset lies at `offset` (in elements).
  POSENC_HD int64_t start_at(int64_t offset) const {
    if (q_offset.data == nullptr) return start[0];
    return clamped_start(start[0], q_offset.at(offset).integer, queries[0] - 1,
                         entries[0] - keys[0]);
  }

 private:
  POSENC_HD int64_t product(const int64_t* sizes) const {
    int64_t count = 1;
    for (int axis = 0; axis < grid_rank; ++axis) count *= sizes[axis];
    return count;
  }
};

// index[e]; without data e itself is the column.
struct ColumnIndex {
  const void* data = nullptr;
  Dtype dtype = Dtype::kInt64;
  int64_t stride = 1;
  int64_t width = 0;

  // -1 for a column that is not there, whose values are zeros: the index is the one declared
  // `missing`; or, in a GPU's memory, could not be checked and is outside 0 .. width - 1.
  POSENC_HD int64_t operator[](int64_t entry) const {
    const int64_t column =
        data == nullptr ? entry : Positions{data, dtype, 0}.at(entry * stride).integer;
    return column >= 0 && column < width ? column : -1;
  }
};

// A stretch of the index: the entries first .. first + length - 1 are at the columns column,
// column + step, column + 2 * step ..., or nowhere if `column` is -1 (step is 0 then).
//
// An irregular stretch has the step kLookUp: its columns are args.columns[column ...].
struct IndexRun {
  static constexpr int64_t kLookUp = 2;

  int64_t first = 0, length = 0, column = -1, step = 0;
};

struct RelativeArgs {
  Planes planes;
  int64_t queries = 0, keys = 0, width = 0;
  int64_t entries = 0;  // of the index; without an index all integers are entries
  int64_t start = 0;
  Positions q_offset;  // of a plane
  int64_t q_offset_strides[kMaxRank] = {};
  ColumnIndex index;

  Dtype dtype = Dtype::kFloat32;
  double scale = 1.0;
  Matrices by_column;  // [queries, width]: x of gather, the result of scatter
  Matrices by_key;     // [queries, keys]: the result of gather, grad of scatter
  Matrices content;    // [queries, keys], gather only; no data: zeros

  // The index in stretches, in the order of entries and without gaps; as the CPU's kernels read it,
  // memory is the caller's.
  const IndexRun* runs = nullptr;
  int64_t run_count = 0;
  const int32_t* columns = nullptr;  // of irregular stretches; -1: none

  // Scatter on a GPU: the entries in the order of their columns, and where each column begins
  // among them, [width + 1]; int64, contiguous.
  const int64_t* order = nullptr;
  const int64_t* bounds = nullptr;

  bool non_temporal = false;

  POSENC_HD int64_t rows() const { return planes.count(0, planes.rank) * queries; }

  // The entry of query 0 and key 0 in the plane whose q_offset lies at `offset` (in elements).
  POSENC_HD int64_t start_at(int64_t offset) const {
    if (q_offset.data == nullptr) return start;
    const bool bounded = index.data != nullptr;  // else beyond these no column is there
    return clamped_start(start, q_offset.at(offset).integer, bounded ? queries - 1 : -keys,
                         bounded ? entries - keys : width + queries);
  }
};

// What a caller passes, before any check. Optional arrays are null.
struct ToeplitzCall {
  const char* function = "";
  const Array* scores = nullptr;  // "grad" of sums
  const Array* diagonals = nullptr;
  const Array* q_offset = nullptr;
  const Array* out = nullptr;  // none for sums
  int grid_rank = 0;
  const int64_t* q_len = nullptr;  // of grid_rank numbers each
  const int64_t* k_len = nullptr;
  const int64_t* start = nullptr;
};

// Shape of the bias for given diagonals and q_offset: leading axes, q_len, k_len. Returns its rank.
int check_toeplitz_shape(const ToeplitzCall& call, int64_t* shape);

// out = scores + bias, or without scores out = bias.
ToeplitzArgs check_toeplitz(const ToeplitzCall& call);

// diagonals = sums of scores along diagonals; over all leading axes of scores that diagonals have
// not, or of size 1. The dtype is the one sums are formed in.
//
// The order of a sum is the same on every device, so that its bits are. All sums begin from 0.0,
// elements are converted to sum_dtype first, and no addition is fused with anything. Of one entry,
// without a grid:
//     the total of    the summed planes in C order, and in each plane   (one chain of additions)
//       sums of       256 rows, those from a multiple of 256 on, ascending, of
//         sums of     8 rows, those from a multiple of 8 on, ascending.
// For a grid:
//     the total of    64 repetitions, those from a multiple of 64 on, ascending, of
//       the sum over  queries, ascending, of
//         sums over   the repetitions, ascending, at that query and its one key.
// Rows and keys that an entry has not are left out; adding 0.0 instead is the same, as no sum is
// -0.0.
ToeplitzArgs check_diagonal_sums(const ToeplitzCall& call);
Dtype sum_dtype(Dtype dtype);

struct RelativeCall {
  const char* function = "";
  const Array* in = nullptr;  // x of gather, grad of scatter
  const Array* index = nullptr;
  const Array* q_offset = nullptr;
  const Array* content = nullptr;  // of gather
  const Array* order = nullptr;    // of scatter, on a GPU
  const Array* bounds = nullptr;
  const Array* out = nullptr;
  int64_t size = 0;  // k_len of gather, width of scatter
  int64_t start = 0;
  bool has_missing = false;
  int64_t missing = 0;
  double scale = 1.0;
};

// Check all of the call but its result, whose shape they give. They return its rank.
int check_relative_gather_shape(const RelativeCall& call, int64_t* shape);
int check_relative_scatter_shape(const RelativeCall& call, int64_t* shape);

// Gather adds in sum_dtype, multiplies by the scale in that dtype, and rounds once; of a scale of 1
// and no content it copies bits. Scatter on the CPU: the stretches (IndexRun) in the order of
// entries, each sum from 0.0; a stretch of one column is added as a whole, of 32 sums of every 32nd
// element that are added in pairs (0 + 16 ..., 0 + 8 ...). Then the scale, and one rounding.
RelativeArgs check_relative_gather(const RelativeCall& call);
RelativeArgs check_relative_scatter(const RelativeCall& call);

}  // namespace posenc
