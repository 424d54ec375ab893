// Toeplitz operations: what depends on key - query alone (see core/windows.h for the entry e).
//
//   Toeplitz        out[..., i, j] = scores[..., i, j] + diagonals[..., e]
//   diagonal sums   diagonals[..., e] = sum of grad[..., i, j] over the diagonal       (transpose)
//
// Queries and keys of a Toeplitz operation may be the cells of a grid (Swin's windows), in C order:
// an entry then has one index for each axis of the grid, e_a = origin_a + j_a - i_a.
#pragma once

#include <cstdint>

#include "core/angles.h"
#include "core/view.h"
#include "core/windows.h"

namespace posenc {

constexpr int kMaxGridRank = 3;

struct ToeplitzArgs {
  // Along the first `kept` axes planes have other diagonals, or other windows of them; the further
  // ones repeat the bias. Diagonal sums: planes of the first ones have diagonals of their own, and
  // the further axes are summed over, in C order.
  Planes planes;
  int kept = 0;

  int grid_rank = 1;
  int64_t queries[kMaxGridRank] = {}, keys[kMaxGridRank] = {}, origin[kMaxGridRank] = {};

  Dtype dtype = Dtype::kFloat32;  // of the matrices
  Matrices in;                    // scores, or grad; no data: the bias alone
  Matrices out;                   // of a Toeplitz operation

  void* diagonals = nullptr;  // read by a Toeplitz operation, written by sums
  Dtype diagonals_dtype = Dtype::kFloat32;
  int64_t diagonal_strides[kMaxRank] = {};  // of planes: 0 beyond `kept`
  int64_t entries[kMaxGridRank] = {}, entry_strides[kMaxGridRank] = {};

  Positions q_offset;  // of a plane; for grids of rank 1
  int64_t q_offset_strides[kMaxRank] = {};

  void* workspace = nullptr;  // of sums, of CUDA alone: cuda::diagonal_sums_workspace(args) bytes
  bool non_temporal = false;

  POSENC_HD int64_t query_count() const { return product(queries); }
  POSENC_HD int64_t key_count() const { return product(keys); }
  POSENC_HD int64_t entry_count() const { return product(entries); }
  POSENC_HD int64_t kept_count() const { return planes.count(0, kept); }
  POSENC_HD int64_t repetitions() const { return planes.count(kept, planes.rank); }

  // The entry of query 0 and key 0 in the plane whose q_offset lies at `offset` (in elements).
  POSENC_HD int64_t origin_at(int64_t offset) const {
    if (q_offset.data == nullptr) return origin[0];
    return clamped_origin(origin[0], q_offset.index_at(offset), queries[0] - 1,
                          entries[0] - keys[0]);
  }

 private:
  POSENC_HD int64_t product(const int64_t* sizes) const {
    uint64_t count = 1;  // unsigned: beside a 0 there may be sizes whose product is too large
    for (int axis = 0; axis < grid_rank; ++axis) count *= static_cast<uint64_t>(sizes[axis]);
    return static_cast<int64_t>(count);
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
  const int64_t* origin = nullptr;
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
// -0.0. No atomics.
ToeplitzArgs check_diagonal_sums(const ToeplitzCall& call);
Dtype sum_dtype(Dtype dtype);

}  // namespace posenc
