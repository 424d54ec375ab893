// Relative operators on a GPU: how matrices are shared out among threads. Plain C++ as well, which
// tests run on the host (on_host/).
//
// kVector numbers of a thread are one access of 16 bytes; kVector == 1 is the way for whatever is
// not aligned, not contiguous or not a multiple.
#pragma once

#include <algorithm>

#include "core/half.h"
#include "core/visit_type.h"
#include "core/windows.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/room.h"

namespace posenc::cuda {

// How matrices [rows, columns] of `kept` planes, each with repetitions, are shared out.
//
//   block    vectors of a row (x), tiles of rows (y), repetitions (z)
//   thread   `tiles` of them one after another, for its repetitions
//   pieces   row blocks * column blocks (x), kept * repetition blocks (y)
struct TilePlan : LaunchPlan {
  int64_t vectors = 0, rows = 0, repetitions = 0;
  int tiles = 1;
  int turns = 1;  // vectors of a row that a thread of a GatherWarpThread has
  int64_t column_blocks = 1, repetition_blocks = 1;
  int64_t repetition_step = 1;  // from one repetition of a thread to its next
  int64_t rounds = 1;           // repetitions of a thread, at most

  // Of a block with tiles of so many rows.
  POSENC_HD int block_rows(int tile_rows) const { return threads_y * tiles * tile_rows; }
};

// Where a thread (x, y, z) of a block is in a piece.
struct Tile {
  int64_t plane, repetition;
  int64_t block_row, block_vector;  // the first ones of its block
  int64_t vector;                   // the first of `turns`, threads_x apart

  POSENC_HD Tile(const TilePlan& plan, int tile_rows, int64_t piece_x, int64_t piece_y, int x,
                 int z, int turns = 1) {
    const int64_t row_block = divide(piece_x, plan.column_blocks);
    block_row = row_block * plan.block_rows(tile_rows);
    block_vector = (piece_x - row_block * plan.column_blocks) * plan.threads_x * turns;
    vector = block_vector + x;
    plane = divide(piece_y, plan.repetition_blocks);
    const int64_t repetition_block = piece_y - plane * plan.repetition_blocks;
    repetition = repetition_block * plan.threads_z + z;
  }
};

// Accesses of a few bytes leave little in flight: more threads make up for it.
constexpr int blocks_per_processor(size_t bytes) {
  return bytes <= 4 ? Policy::kNarrowBlocksPerProcessor : Policy::kBlocksPerProcessor;
}

// Adds to offsets in several arrays those of one plane, counted in C order over some of the axes.
template <int kCount>
POSENC_HD inline void add_offsets(const Planes& planes, int first, int last, int64_t plane,
                                  const int64_t* const (&strides)[kCount],
                                  int64_t (&offsets)[kCount]) {
#pragma unroll 1
  for (int axis = last - 1; axis >= first; --axis) {
    int64_t step = plane;
    if (axis > first) {
      plane = divide(step, planes.shape[axis]);
      step -= plane * planes.shape[axis];
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) offsets[i] += step * strides[i][axis];
  }
}

// Whether rows of matrices are contiguous, and every vector of `width` numbers in them aligned.
inline bool aligned(const Matrices& matrices, const Planes& planes, int64_t rows, int64_t columns,
                    Dtype dtype, int64_t width) {
  if (matrices.data == nullptr) return true;
  int64_t multiples = columns;
  if (rows > 1) multiples |= matrices.row_stride;
  for (int axis = 0; axis < planes.rank; ++axis) {
    if (planes.shape[axis] > 1) multiples |= matrices.plane_strides[axis];
  }
  return matrices.column_stride == 1 && multiples % width == 0 &&
         reinterpret_cast<int64_t>(matrices.data) % (width * item_size(dtype)) == 0;
}

// Whether vectors of `width` numbers, where memory has them, are the same ones in both.
inline bool alike(const Matrices& a, const Matrices& b, const Planes& planes, int64_t rows,
                  Dtype dtype, int64_t width) {
  int64_t multiples = 0;
  if (rows > 1) multiples |= a.row_stride - b.row_stride;
  for (int axis = 0; axis < planes.rank; ++axis) {
    if (planes.shape[axis] > 1) multiples |= a.plane_strides[axis] - b.plane_strides[axis];
  }
  const int64_t apart = reinterpret_cast<int64_t>(a.data) - reinterpret_cast<int64_t>(b.data);
  return a.column_stride == 1 && b.column_stride == 1 && multiples % width == 0 &&
         apart % (width * item_size(dtype)) == 0;
}

// Cuts the rows and repetitions of a plan, whose blocks and column blocks are known, into pieces.
// waves: of them for every place, at least, as far as there are repetitions: pieces that do not
// take the same time need some.
inline void cut_rows(TilePlan& plan, int tile_rows, int64_t kept, int64_t places, int64_t waves,
                     GridLimit limit) {
  const int64_t row_tiles = divide_up(plan.rows, plan.threads_y * tile_rows);
  plan.tiles = static_cast<int>(
      units_of_piece(plan.column_blocks * kept, row_tiles, Policy::kTiles, places));
  const int64_t pieces_x = divide_up(row_tiles, plan.tiles) * plan.column_blocks;
  const int64_t turns = divide_up(plan.repetitions, plan.threads_z);
  const int64_t most =
      waves == 0 ? turns : std::max<int64_t>(turns * pieces_x * kept / (waves * places), 1);
  plan.repetition_blocks = divide_up(turns, units_of_piece(pieces_x * kept, turns, most, places));
  plan.repetition_step = plan.repetition_blocks * plan.threads_z;
  plan.rounds = divide_up(plan.repetitions, plan.repetition_step);
  plan.take_pieces(pieces_x, kept * plan.repetition_blocks, limit);
}

inline TilePlan plan_tiles(int64_t vectors, int64_t rows, int tile_rows, int64_t kept,
                           int64_t repetitions, const Room& room, int64_t waves = 0) {
  TilePlan plan;
  plan.vectors = vectors;
  plan.rows = rows;
  plan.repetitions = repetitions;
  if (vectors == 0 || rows == 0 || kept == 0 || repetitions == 0) return plan;
  const auto clamp = [](int64_t value, int64_t least, int64_t most) {
    return std::max(least, std::min(value, most));
  };
  // As many vectors to one block as to the next, and what they leave of it to rows, then to
  // repetitions; more vectors where there are few of both.
  const int64_t others = std::min<int64_t>(divide_up(rows, tile_rows), Policy::kThreads) *
                         std::min<int64_t>(repetitions, Policy::kThreads);
  plan.column_blocks =
      divide_up(vectors, std::max<int64_t>(Policy::kTileVectors, Policy::kThreads / others));
  plan.threads_x = static_cast<int>(divide_up(vectors, plan.column_blocks));
  plan.threads_y =
      static_cast<int>(clamp(divide_up(rows, tile_rows), 1,
                             std::min(Policy::kThreads / plan.threads_x, Policy::kTileRowThreads)));
  plan.threads_z = static_cast<int>(clamp(Policy::kThreads / (plan.threads_x * plan.threads_y), 1,
                                          std::min<int64_t>(repetitions, Policy::kMostThreadsZ)));
  cut_rows(plan, tile_rows, kept, room.blocks(plan.threads()), waves, room.limit);
  return plan;
}

}  // namespace posenc::cuda
