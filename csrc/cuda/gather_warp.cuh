// Gather with an index on a GPU, where shared memory has room for rows of x: what one thread does,
// and how a launch covers a call. All else is done by gather.cuh.
// Plain C++ as well, which tests run on the host (on_host/).
//
//   block     the entries of the index that its rows and columns need: where the warps have their
//             columns, in 16 bits
//   warp      kRows rows of x at a time, column by column: the numbers of a column are one word
//   thread    vectors of these rows. From row to row the window moves by one entry:
//
//             word of entry       0 1 2 3 4 5 6 7 8 9 10
//             columns of row 0          . . . . . . . .
//             columns of row 1        . . . . . . . .
//             columns of row 3    . . . . . . . .
//
// A vector takes as long whatever the index is, and nothing waits for another warp.
#pragma once

#include <algorithm>

#include "cuda/lookup.cuh"

namespace posenc::cuda {

template <typename T, int kVector>
class GatherWarpThread : RelativeThread<T, kVector> {
  using Base = RelativeThread<T, kVector>;
  using Base::args_;
  using Base::parameters_;
  using Base::plan_;
  using typename Base::Place;

 public:
  static constexpr int kWidth = kVector;
  static constexpr int kBlocks = Policy::kGatherBlocksPerProcessor;
  static constexpr int kRows = std::min<int>(Policy::kGatherWarpRows, kVector);

  POSENC_HD GatherWarpThread(const RelativeParameters& parameters, char* shared, int x, int y,
                             int z)
      : Base(parameters, x, y, z),
        index_(reinterpret_cast<uint16_t*>(shared)),
        columns_(shared + index_bytes(block_vectors(plan_), plan_.block_rows(kRows)) +
                 (z * plan_.threads_y + y) * columns_bytes(static_cast<int>(args_.width))) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const Tile tile(plan_, kRows, piece_x, piece_y, this->x_, this->z_, plan_.turns);
    Base::begin(tile, args_.by_column, args_.by_key);
    block_row_ = tile.block_row;
    const int64_t vectors = plan_.vectors - tile.vector;
    vectors_ = static_cast<int>(vectors < block_vectors(plan_) ? vectors : block_vectors(plan_));
    first_entry_ =
        this->origin_ + tile.block_vector * kVector - (block_row_ + plan_.block_rows(kRows) - 1);
  }

  // Where the columns of entries are. Those beyond the index are of rows and columns that are not
  // there.
  POSENC_HD void stage_index() {
    const int thread = (this->z_ * plan_.threads_y + this->y_) * plan_.threads_x + this->x_;
    const int count = block_vectors(plan_) * kVector + plan_.block_rows(kRows);
    for (int i = thread; i < count; i += plan_.threads()) {
      const int64_t at = first_entry_ + i;
      const int64_t column = at >= 0 && at < args_.entries ? args_.index[at] : -1;
      const int there = static_cast<int>(column < 0 ? args_.width : column);
      index_[i] = static_cast<uint16_t>(column_at(there));
    }
  }

  // Reads a tile of rows of x in one of the warp's repetitions, and zeros as a column that is not
  // there.
  POSENC_HD void stage(int64_t round, int tile) {
    const int64_t repetition = this->first_repetition_ + round * plan_.repetition_step;
    tile_row_ = (tile * plan_.threads_y + this->y_) * kRows;
    const int64_t row = block_row_ + tile_row_;
    rows_ = 0;
    if (row >= plan_.rows || repetition >= plan_.repetitions) return;
    rows_ = plan_.rows - row < kRows ? static_cast<int>(plan_.rows - row) : kRows;
    place_ = this->place(repetition, args_.by_column, args_.by_key);
    place_.to += row * args_.by_key.row_stride;
    place_.content += row * args_.content.row_stride;
    keep_rows(place_.from + row * args_.by_column.row_stride);
  }

  POSENC_HD void write() const {
    if (rows_ == 0) return;
#pragma unroll 1
    for (int vector = 0; vector < vectors_; vector += kLanes) copy(vector * kVector);
  }

  // Warps whose columns there is room for, beside the index of a block.
  static int64_t warps(int64_t width) {
    constexpr int kMost = Policy::kThreads / kLanes;
    constexpr int kIndex = index_bytes(Policy::kGatherVectors, kMost * Policy::kTiles * kRows);
    constexpr int64_t kBytes = Policy::kSharedBytes - kIndex;
    return std::min<int64_t>(kBytes / columns_bytes(width), kMost);
  }
  static POSENC_HD int block_vectors(const TilePlan& plan) { return plan.threads_x * plan.turns; }
  static size_t shared_bytes(const TilePlan& plan, int64_t width) {
    return index_bytes(block_vectors(plan), plan.block_rows(kRows)) +
           plan.threads_y * plan.threads_z * columns_bytes(width);
  }

 private:
  // Columns that a thread reads before it keeps the first, of kRows numbers each.
  static constexpr int kAtOnce = 16 / kRows;
  static constexpr int kWindow = kVector + kRows - 1;

  static constexpr POSENC_HD int index_bytes(int vectors, int rows) {
    return ((vectors * kVector + rows) * static_cast<int>(sizeof(uint16_t)) + 15) / 16 * 16;
  }
  // Of a warp.
  template <typename Int>
  static POSENC_HD Int columns_bytes(Int width) {
    return (column_at(width + 1) + 15) / 16 * 16;
  }
  // In bytes. A gap after 8 columns: neighboring threads, whose columns are kVector apart where
  // entries are one column after the other, use different banks.
  template <typename Int>
  static POSENC_HD Int column_at(Int column) {
    return (column + column / 8) * static_cast<int>(sizeof(Packet<T, kRows>));
  }
  POSENC_HD T* numbers(int at) const { return reinterpret_cast<T*>(columns_ + at); }

  // Of rows that are not there, numbers of the last one.
  POSENC_HD void keep_rows(const T* from) const {
    const int width = static_cast<int>(args_.width);
    const T* rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      rows[r] = from + (r < rows_ ? r : rows_ - 1) * args_.by_column.row_stride + this->x_;
    }
#pragma unroll 1
    for (int first = this->x_; first <= width; first += kAtOnce * kLanes) {
      Packet<T, kRows> columns[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          columns[i].numbers[r] =
              first + i * kLanes < width ? read_number(rows[r] + i * kLanes) : T{};
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) rows[r] += kAtOnce * kLanes;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int column = first + i * kLanes;
        if (column <= width) keep_packet<T, kRows>(columns[i], numbers(column_at(column)));
      }
    }
  }

  // A vector of every row, so many columns after the thread's first one.
  POSENC_HD void copy(int column) const {
    WordOf<T, kVector> content[kRows];
    if (args_.content.data != nullptr) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= rows_) continue;
        content[r] = read_word<T, kVector>(place_.content + r * args_.content.row_stride + column);
      }
    }
    Packet<T, kRows> words[kWindow];
    const uint16_t* const window =
        index_ + this->x_ * kVector + column + plan_.block_rows(kRows) - tile_row_ - kRows;
#pragma unroll
    for (int first = 0; first < kWindow; first += kRows) {
      const auto at = kept_packet<uint16_t, kRows>(window + first);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (first + i >= kWindow) continue;
        words[first + i] = kept_packet<T, kRows>(numbers(at.numbers[i]));
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows_) continue;
      Packet<T, kVector> x;
#pragma unroll
      for (int j = 0; j < kVector; ++j) x.numbers[j] = words[kRows - 1 - r + j].numbers[r];
      write_packet<T, kVector>(scaled<T, kVector>(parameters_, x, content[r]),
                               place_.to + r * args_.by_key.row_stride + column);
    }
  }

  uint16_t* const index_;
  char* const columns_;  // of this warp
  int64_t block_row_, first_entry_;
  int vectors_;          // from this thread's first one on, which has every kLanes-th
  int tile_row_, rows_;  // of a step: the first one, in the block, and how many
  Place place_;
};

// Of arranged arguments.
template <typename Thread>
TilePlan plan_gather_warps(const RelativeParameters& parameters, const Room& room = {}) {
  const RelativeArgs& args = parameters.args;
  const Planes& planes = args.planes;
  TilePlan plan;
  plan.vectors = args.keys / Thread::kWidth;
  plan.rows = args.queries;
  plan.repetitions = planes.count(parameters.kept, planes.rank);
  const int64_t kept = planes.count(0, parameters.kept);
  if (plan.vectors == 0 || plan.rows == 0 || kept == 0 || plan.repetitions == 0) return plan;
  plan.threads_x = kLanes;
  const int64_t warps = Thread::warps(args.width), row_tiles = divide_up(plan.rows, Thread::kRows);
  plan.threads_y = static_cast<int>(std::min(row_tiles, warps));
  plan.threads_z = static_cast<int>(std::min(warps / plan.threads_y, plan.repetitions));
  // Places where a block takes the most that it can.
  constexpr int kMostTurns = Policy::kGatherVectors / kLanes;
  plan.tiles = Policy::kTiles;
  plan.turns = kMostTurns;
  const int64_t places = room.blocks(plan.threads(), Thread::shared_bytes(plan, args.width));
  const int64_t blocks =
      divide_up(row_tiles, plan.threads_y) * divide_up(plan.repetitions, plan.threads_z) * kept;
  const int64_t turns = divide_up(plan.vectors, kLanes);
  plan.column_blocks = divide_up(turns, units_of_piece(blocks, turns, kMostTurns, places));
  plan.turns = static_cast<int>(divide_up(turns, plan.column_blocks));
  plan.column_blocks = divide_up(turns, plan.turns);
  cut_rows(plan, Thread::kRows, kept, places, Policy::kGatherWaves, room.limit);
  plan.shared_bytes = Thread::shared_bytes(plan, args.width);
  return plan;
}

// Whether there is room for rows of x, and work for a warp. Rows of x are not longer than those of
// the result: most of what is read is likely to be needed.
template <typename Thread>
bool takes_warps(const RelativeParameters& parameters) {
  const RelativeArgs& args = parameters.args;
  return by_vectors(parameters, Thread::kWidth) && args.queries >= Thread::kRows &&
         args.keys >= kLanes * Thread::kWidth && args.width <= args.keys &&
         Thread::warps(args.width) >= Policy::kGatherLeastWarps;
}

}  // namespace posenc::cuda
