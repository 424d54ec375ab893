// What is looked up by key - query: gather and its transpose (see core/windows.h for the entry e).
//
//   gather          out[..., i, j] = (content[..., i, j] + x[..., i, index[e]]) * scale
//   scatter         out[..., i, w] = scale * sum of grad[..., i, j] with index[e] == w (transpose)
#pragma once

#include <cstdint>

#include "core/angles.h"
#include "core/view.h"
#include "core/windows.h"

namespace posenc {

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
  int64_t origin = 0;
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
  POSENC_HD int64_t origin_at(int64_t offset) const {
    if (q_offset.data == nullptr) return origin;
    const bool bounded = index.data != nullptr;  // else beyond these no column is there
    return clamped_origin(origin, q_offset.index_at(offset), bounded ? queries - 1 : -keys,
                          bounded ? entries - keys : width + queries);
  }
};

// What a caller passes, before any check. Optional arrays are null.
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
  int64_t origin = 0;
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
