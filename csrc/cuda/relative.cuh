// Relative encodings on a GPU: what one thread does, and how a launch covers a call. Plain C++ as
// well, which tests run on the host (on_host.cu).
//
//   ToeplitzTileThread   8 rows of a vector's columns at a time. They read kVector + 7 entries:
//                        from row to row the window moves by one, so they stay in registers. A
//                        block has its entries in shared memory, rounded.
//   ToeplitzRowThread    a vector of one row, whose entries are read where they lie and kept for
//                        all repetitions: grids; few queries, as in decoding
//   DiagonalSumsThread   the sums of kVector neighbouring entries. Threads side by side (y) take
//                        parts of the rows, which are added up in their order.
//   ShiftThread          rows copied from another place in a row
//   GatherThread         8 rows of a vector's columns at a time, their index as entries are above
//   ScatterThread        sums over the entries of a column, for 8 rows at a time: by one thread, by
//                        a warp or by the block, as many as there are
//
// kVector numbers are one access of 16 bytes; kVector == 1 is the way for whatever is not aligned,
// not contiguous or not a multiple.
#pragma once

#include <algorithm>

#include "core/lookup.h"
#include "core/toeplitz.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"

namespace posenc::cuda {

// ---------------------------------------------------------------------------------------------
// What several of them share

// How matrices [rows, columns] of `kept` planes, each with repetitions, are shared out.
//
//   block    vectors of a row (x), tiles of rows (y), repetitions (z)
//   thread   `tiles` of them one after another, for its repetitions
struct TilePlan {
  int64_t vectors = 0, rows = 0, repetitions = 0;
  int threads_x = 1, threads_y = 1, threads_z = 1;
  int tiles = 1;
  int64_t pieces_x = 0, pieces_y = 0;  // row blocks * column blocks, kept * repetition blocks
  int64_t column_blocks = 1, repetition_blocks = 1;
  int64_t repetition_step = 1;  // from one repetition of a thread to its next
  int64_t grid_x = 0, grid_y = 0;
  size_t shared_bytes = 0;

  // Of a block with tiles of so many rows.
  POSENC_HD int block_rows(int tile_rows) const { return threads_y * tiles * tile_rows; }
  POSENC_HD int threads() const { return threads_x * threads_y * threads_z; }
};

struct ToeplitzParameters {
  ToeplitzArgs args;
  TilePlan plan;
};

struct RelativeParameters {
  RelativeArgs args;
  TilePlan plan;
  int kept = 0;  // axes along which planes have other windows: the first ones, as in ToeplitzArgs
  bool scatter = false;  // of a shift
  bool copies = false;   // nothing is added, and the scale is 1: bits as they are
};
static_assert(sizeof(ToeplitzParameters) <= 4096 && sizeof(RelativeParameters) <= 4096,
              "kernel parameters");

// Where a thread (x, y, z) of a block is in a piece.
struct Tile {
  int64_t plane, repetition;
  int64_t block_row, block_vector;  // the first ones of its block
  int64_t vector;

  POSENC_HD Tile(const TilePlan& plan, int tile_rows, int64_t piece_x, int64_t piece_y, int x,
                 int z) {
    const int64_t row_block = divide(piece_x, plan.column_blocks);
    block_row = row_block * plan.block_rows(tile_rows);
    block_vector = (piece_x - row_block * plan.column_blocks) * plan.threads_x;
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

inline TilePlan plan_tiles(int64_t vectors, int64_t rows, int tile_rows, int64_t kept,
                           int64_t repetitions, GridLimit limit) {
  TilePlan plan;
  plan.vectors = vectors;
  plan.rows = rows;
  plan.repetitions = repetitions;
  if (vectors == 0 || rows == 0 || kept == 0 || repetitions == 0) return plan;
  const auto clamp = [](int64_t value, int64_t least, int64_t most) {
    return std::max(least, std::min(value, most));
  };
  // As many vectors to one block as to the next, and what they leave of it to rows, then to
  // repetitions.
  plan.column_blocks = divide_up(vectors, Policy::kTileVectors);
  plan.threads_x = static_cast<int>(divide_up(vectors, plan.column_blocks));
  plan.threads_y =
      static_cast<int>(clamp(divide_up(rows, tile_rows), 1,
                             std::min(Policy::kThreads / plan.threads_x, Policy::kTileRowThreads)));
  plan.threads_z = static_cast<int>(clamp(Policy::kThreads / (plan.threads_x * plan.threads_y), 1,
                                          std::min<int64_t>(repetitions, Policy::kMostThreadsZ)));
  const int64_t row_tiles = divide_up(rows, plan.threads_y * tile_rows);
  const int64_t blocks = row_tiles * plan.column_blocks * kept;
  plan.tiles = static_cast<int>(
      clamp(blocks / Policy::kBlocks, 1, std::min<int64_t>(row_tiles, Policy::kTiles)));
  plan.pieces_x = divide_up(row_tiles, plan.tiles) * plan.column_blocks;
  plan.repetition_blocks = clamp(Policy::kBlocks / std::max<int64_t>(plan.pieces_x * kept, 1), 1,
                                 divide_up(repetitions, plan.threads_z));
  plan.repetition_step = plan.repetition_blocks * plan.threads_z;
  plan.pieces_y = kept * plan.repetition_blocks;
  plan.grid_x = std::min(plan.pieces_x, limit.x);
  plan.grid_y = std::min(plan.pieces_y, limit.y);
  return plan;
}

// Calls visit(a number of the type, null) for a dtype of numbers.
template <typename Visit>
auto visit_type(Dtype dtype, const Visit& visit) {
  switch (dtype) {
    case Dtype::kFloat16:
      return visit(Float16{});
    case Dtype::kBFloat16:
      return visit(BFloat16{});
    case Dtype::kFloat32:
      return visit(float{});
    default:
      return visit(double{});
  }
}

// ---------------------------------------------------------------------------------------------
// Toeplitz

// An entry as it is added to numbers of type T, or as such a number itself where there is nothing
// to add it to: rounded once.
template <typename T>
POSENC_HD inline Real<T> entry(const ToeplitzArgs& args, int64_t at) {
  const bool alone = args.in.data == nullptr;
  if (args.diagonals_dtype == Dtype::kFloat64) {
    const double value = static_cast<const double*>(args.diagonals)[at];
    if constexpr (sizeof(T) == 2) {
      if (alone) return to_float(round_to<T>(float_rounded_to_odd(value)));
    }
    return static_cast<Real<T>>(value);
  }
  float value;
  if (args.diagonals_dtype == Dtype::kFloat16) {
    value = to_float(static_cast<const Float16*>(args.diagonals)[at]);
  } else if (args.diagonals_dtype == Dtype::kBFloat16) {
    value = to_float(static_cast<const BFloat16*>(args.diagonals)[at]);
  } else {
    value = static_cast<const float*>(args.diagonals)[at];
  }
  if constexpr (sizeof(T) == 2) {
    if (alone) return to_float(round_to<T>(value));
  }
  return value;
}

// What both threads have of a piece: where the numbers of a vector are.
template <typename T, int kVector>
class ToeplitzThread {
 protected:
  using Number = Real<T>;

  POSENC_HD ToeplitzThread(const ToeplitzParameters& parameters, int x, int y, int z)
      : args_(parameters.args), plan_(parameters.plan), x_(x), y_(y), z_(z) {}

  // Takes up the piece whose plane this is.
  POSENC_HD void begin(const Tile& tile) {
    int64_t offsets[4] = {};
    add_offsets(args_.planes, 0, args_.kept, tile.plane,
                {args_.in.plane_strides, args_.out.plane_strides, args_.diagonal_strides,
                 args_.q_offset_strides},
                offsets);
    const int64_t column = tile.vector * kVector;
    in_ = offsets[0] + column * column_stride(args_.in);
    out_ = offsets[1] + column * column_stride(args_.out);
    diagonals_ = offsets[2];
    start_ = args_.start_at(offsets[3]);
    first_repetition_ = tile.repetition;
    working_ = tile.vector < plan_.vectors && first_repetition_ < plan_.repetitions;
  }

  POSENC_HD bool adds() const { return args_.in.data != nullptr; }

  static POSENC_HD int64_t column_stride(const Matrices& matrices) {
    return kVector == 1 ? matrices.column_stride : 1;
  }

  // Of the vector in a row and a repetition.
  POSENC_HD const T* in(int64_t row, int64_t repetition) const {
    return static_cast<const T*>(args_.in.data) + at(args_.in, in_, row, repetition);
  }
  POSENC_HD T* out(int64_t row, int64_t repetition) const {
    return static_cast<T*>(args_.out.data) + at(args_.out, out_, row, repetition);
  }

  // bias, with what was read added.
  POSENC_HD void write(const WordOf<T, kVector>& word, const Number (&bias)[kVector], T* to) const {
    Number values[kVector];
    if (adds()) {
      const auto scores = unpack<T, kVector>(word);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = to_real(scores.numbers[i]) + bias[i];
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = bias[i];
    }
    write_packet<T, kVector>(round_packet<T, kVector>(values), to);
  }

  POSENC_HD int64_t at(const Matrices& matrices, int64_t first, int64_t row,
                       int64_t repetition) const {
    int64_t offsets[1] = {first + row * matrices.row_stride};
    add_offsets(args_.planes, args_.kept, args_.planes.rank, repetition, {matrices.plane_strides},
                offsets);
    return offsets[0];
  }

  const ToeplitzArgs& args_;
  const TilePlan& plan_;
  const int x_, y_, z_;

  int64_t in_, out_, diagonals_, start_;
  int64_t first_repetition_;
  bool working_;
};

// For grids of rank 1.
template <typename T, int kVector>
class ToeplitzTileThread : ToeplitzThread<T, kVector> {
  using Base = ToeplitzThread<T, kVector>;
  using Base::args_;
  using Base::first_repetition_;
  using Base::plan_;
  using typename Base::Number;

 public:
  static constexpr int kWidth = kVector;
  static constexpr int kBlocks = blocks_per_processor(kVector * sizeof(T));
  static constexpr int kRows = Policy::kTileRows;
  static_assert(kRows % kVector == 0, "windows of tiles are aligned in shared memory");

  POSENC_HD ToeplitzTileThread(const ToeplitzParameters& parameters, char* shared, int x, int y,
                               int z)
      : Base(parameters, x, y, z), entries_(reinterpret_cast<Number*>(shared)) {}

  // Takes up a piece and requests the first scores, which arrive while entries are rounded.
  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const Tile tile(plan_, kRows, piece_x, piece_y, this->x_, this->z_);
    Base::begin(tile);
    block_row_ = tile.block_row;
    first_entry_ =
        this->start_ + tile.block_vector * kVector - (block_row_ + plan_.block_rows(kRows) - 1);
    if (this->working_ && this->adds()) read(row_of(0), first_repetition_);
  }

  // The entries of all rows and columns of the block, those that are not there left out.
  POSENC_HD void stage() {
    const int thread = (this->z_ * plan_.threads_y + this->y_) * plan_.threads_x + this->x_;
    const int count = plan_.threads_x * kVector + plan_.block_rows(kRows);
    for (int i = thread; i < count; i += plan_.threads()) {
      const int64_t at = first_entry_ + i;
      if (at < 0 || at >= args_.entries[0]) continue;
      entries_[i] = entry<T>(args_, this->diagonals_ + at * args_.entry_strides[0]);
    }
  }

  POSENC_HD void write() {
    if (!this->working_) return;
    for (int tile = 0; tile < plan_.tiles; ++tile) {
      const int64_t row = row_of(tile);
      if (row >= plan_.rows) return;
      read_window(row);
      for (int64_t i = first_repetition_; i < plan_.repetitions; i += plan_.repetition_step) {
        if (this->adds() && (tile > 0 || i > first_repetition_)) read(row, i);
        write(row, i);
      }
    }
  }

  static size_t shared_bytes(const TilePlan& plan) {
    return static_cast<size_t>(plan.threads_x * kVector + plan.block_rows(kRows)) * sizeof(Number);
  }

 private:
  POSENC_HD int64_t row_of(int tile) const {
    return block_row_ + (tile * plan_.threads_y + this->y_) * kRows;
  }

  // Row r reads kVector of them from kRows - 1 - r on.
  POSENC_HD void read_window(int64_t row) {
    const int last_row = static_cast<int>(row - block_row_) + kRows;
    const Number* const from = entries_ + this->x_ * kVector + plan_.block_rows(kRows) - last_row;
#pragma unroll
    for (int i = 0; i < kWindow; i += kVector) {
      const auto packet = read_packet<Number, kVector>(from + i);
#pragma unroll
      for (int j = 0; j < kVector; ++j) window_[i + j] = packet.numbers[j];
    }
  }

  // Of its rows, those that are there.
  POSENC_HD int rows_from(int64_t row) const {
    return plan_.rows - row < kRows ? static_cast<int>(plan_.rows - row) : kRows;
  }

  POSENC_HD void read(int64_t row, int64_t repetition) {
    const T* from = this->in(row, repetition);
    const int count = rows_from(row);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < count) words_[r] = read_word<T, kVector>(from);
      from += args_.in.row_stride;
    }
  }

  POSENC_HD void write(int64_t row, int64_t repetition) const {
    T* to = this->out(row, repetition);
    const int count = rows_from(row);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Number bias[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) bias[i] = window_[kRows - 1 - r + i];
      if (r < count) Base::write(words_[r], bias, to);
      to += args_.out.row_stride;
    }
  }

  static constexpr int kWindow = kVector == 1 ? kRows : kRows + kVector;

  Number* const entries_;
  int64_t block_row_, first_entry_;
  Number window_[kWindow];
  WordOf<T, kVector> words_[kRows];
};

// For all grids.
template <typename T, int kVector>
class ToeplitzRowThread : ToeplitzThread<T, kVector> {
  using Base = ToeplitzThread<T, kVector>;
  using Base::args_;
  using Base::plan_;
  using typename Base::Number;

 public:
  static constexpr int kWidth = kVector;
  static constexpr int kBlocks = blocks_per_processor(kVector * sizeof(T));
  static constexpr int kRows = 1;

  POSENC_HD ToeplitzRowThread(const ToeplitzParameters& parameters, char* /*shared*/, int x, int y,
                              int z)
      : Base(parameters, x, y, z) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const Tile tile(plan_, kRows, piece_x, piece_y, this->x_, this->z_);
    Base::begin(tile);
    first_row_ = tile.block_row + this->y_;
    if (this->working_) columns(tile.vector * kVector);
  }

  POSENC_HD void stage() {}

  POSENC_HD void write() {
    if (!this->working_) return;
    for (int tile = 0; tile < plan_.tiles; ++tile) {
      const int64_t row = first_row_ + tile * plan_.threads_y;
      if (row >= plan_.rows) return;
      write(row);
    }
  }

  static size_t shared_bytes(const TilePlan& /*plan*/) { return 0; }

 private:
  static constexpr int kReads = kVector == 1 ? 2 * Policy::kSumWords : Policy::kSumWords;

  // The part of its offset in the diagonals that an entry has of its key: sum of j_a * stride_a.
  POSENC_HD void columns(int64_t key) {
    int64_t index[kMaxGridRank] = {};
    int64_t offset = 0;
#pragma unroll
    for (int axis = kMaxGridRank - 1; axis >= 0; --axis) {
      if (axis >= args_.grid_rank) continue;
      const int64_t outer = axis > 0 ? divide(key, args_.keys[axis]) : 0;
      index[axis] = key - outer * args_.keys[axis];
      offset += index[axis] * args_.entry_strides[axis];
      key = outer;
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      columns_[i] = offset;
#pragma unroll
      for (int axis = kMaxGridRank - 1; axis >= 0; --axis) {
        if (axis >= args_.grid_rank) continue;
        offset += args_.entry_strides[axis];
        if (++index[axis] < args_.keys[axis]) break;
        offset -= index[axis] * args_.entry_strides[axis];
        index[axis] = 0;
      }
    }
  }

  // ... and of its query: sum of (start_a - i_a) * stride_a.
  POSENC_HD int64_t query_offset(int64_t query) const {
    int64_t offset = 0;
#pragma unroll
    for (int axis = kMaxGridRank - 1; axis >= 0; --axis) {
      if (axis >= args_.grid_rank) continue;
      const int64_t outer = axis > 0 ? divide(query, args_.queries[axis]) : 0;
      const int64_t start = axis > 0 ? args_.start[axis] : this->start_;
      offset += (start - (query - outer * args_.queries[axis])) * args_.entry_strides[axis];
      query = outer;
    }
    return offset;
  }

  POSENC_HD void write(int64_t row) const {
    const int64_t offset = this->diagonals_ + query_offset(row);
    Number bias[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) bias[i] = entry<T>(args_, offset + columns_[i]);
    if (args_.planes.rank <= args_.kept + 1) {
      write_in_steps(row, bias);
    } else {
      for (int64_t i = this->first_repetition_; i < plan_.repetitions; i += plan_.repetition_step) {
        WordOf<T, kVector> word{};
        if (this->adds()) word = read_word<T, kVector>(this->in(row, i));
        Base::write(word, bias, this->out(row, i));
      }
    }
  }

  // Repetitions along one axis: no divisions, and several of them at once.
  POSENC_HD void write_in_steps(int64_t row, const Number (&bias)[kVector]) const {
    const bool repeats = args_.planes.rank > args_.kept;
    const int64_t step = plan_.repetition_step;
    const int64_t in_step = repeats ? step * args_.in.plane_strides[args_.kept] : 0;
    const int64_t out_step = repeats ? step * args_.out.plane_strides[args_.kept] : 0;
    const T* from = this->in(row, this->first_repetition_);
    T* to = this->out(row, this->first_repetition_);
    for (int64_t i = this->first_repetition_; i < plan_.repetitions; i += kReads * step) {
      WordOf<T, kVector> words[kReads];
#pragma unroll
      for (int j = 0; j < kReads; ++j) {
        if (this->adds() && i + j * step < plan_.repetitions) {
          words[j] = read_word<T, kVector>(from);
        }
        from += in_step;
      }
#pragma unroll
      for (int j = 0; j < kReads; ++j) {
        if (i + j * step < plan_.repetitions) Base::write(words[j], bias, to);
        to += out_step;
      }
    }
  }

  int64_t first_row_;
  int64_t columns_[kVector];
};

// Calls visit(thread type) for the one that suits a call.
template <typename Visit>
auto visit_toeplitz_thread(const ToeplitzArgs& args, const Visit& visit) {
  return visit_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    const int64_t rows = args.query_count();
    const bool wide = aligned(args.in, args.planes, rows, args.key_count(), args.dtype, kWide) &&
                      aligned(args.out, args.planes, rows, args.key_count(), args.dtype, kWide);
    if (args.grid_rank == 1 && rows >= Policy::kTileRows) {
      return wide ? visit(static_cast<ToeplitzTileThread<T, kWide>*>(nullptr))
                  : visit(static_cast<ToeplitzTileThread<T, 1>*>(nullptr));
    }
    return wide ? visit(static_cast<ToeplitzRowThread<T, kWide>*>(nullptr))
                : visit(static_cast<ToeplitzRowThread<T, 1>*>(nullptr));
  });
}

template <typename Thread>
TilePlan plan_toeplitz(const ToeplitzArgs& args, GridLimit limit = {}) {
  TilePlan plan = plan_tiles(args.key_count() / Thread::kWidth, args.query_count(), Thread::kRows,
                             args.kept_count(), args.repetitions(), limit);
  plan.shared_bytes = Thread::shared_bytes(plan);
  return plan;
}

// ---------------------------------------------------------------------------------------------
// Diagonal sums
//
// The order of additions is that of the CPU, so that the bits are. For one entry:
//
//   rank 1   a group is 8 rows of a plane, a block 32 groups
//   grids    a group is one query of 64 repetitions, a block all their queries
//
//   a group is summed up from 0, a block from its groups, the total from the blocks of all summed
//   planes; absent rows are zeros
//
// A sum from 0 is never -0, so that adding 0 changes nothing.

struct DiagonalSumsPlan {
  int64_t vectors = 0;     // of the entries
  bool by_groups = false;  // what a thread sums up before all parts are put together: or a block
  bool one_start = false;  // the windows of all summed planes are the same
  int threads_x = 1, threads_y = 1;
  int64_t pieces_x = 0, pieces_y = 0;  // of entries, of kept planes
  int64_t grid_x = 0, grid_y = 0;
  size_t shared_bytes = 0;
};

struct DiagonalSumsParameters {
  ToeplitzArgs args;
  DiagonalSumsPlan plan;
};

constexpr int kGroupRows = 8;
constexpr int kBlockGroups = 32;
constexpr int kBlockRepetitions = 64;

// The thread (x, y): sums parts of its x's entries, and puts together the parts of one entry.
template <typename T, int kVector, bool kGrid>
class DiagonalSumsThread {
  static_assert(!kGrid || kVector == 1, "keys of neighbouring entries are no neighbours in grids");

 public:
  using Number = Real<T>;
  static constexpr int kWidth = kVector;
  static constexpr int kBlocks =
      kGrid ? Policy::kBlocksPerProcessor : blocks_per_processor(kVector * sizeof(T));

  POSENC_HD DiagonalSumsThread(const DiagonalSumsParameters& parameters, char* shared, int x, int y)
      : args_(parameters.args),
        plan_(parameters.plan),
        parts_(reinterpret_cast<Number*>(shared)),
        x_(x),
        y_(y) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    int64_t offsets[3] = {};
    add_offsets(args_.planes, 0, args_.kept, piece_y,
                {args_.in.plane_strides, args_.diagonal_strides, args_.q_offset_strides}, offsets);
    in_ = offsets[0];
    diagonals_ = offsets[1];
    q_offset_ = offsets[2];
    start_ = args_.start_at(q_offset_);
    // Vectors begin where those of rows do that are multiples of a group: with less than a vector.
    const int64_t first =
        kVector == 1 ? 0 : (start_ & (kVector - 1)) - ((start_ & (kVector - 1)) != 0 ? kVector : 0);
    block_entry_ = first + piece_x * plan_.threads_x * kVector;
    entry_ = block_entry_ + x_ * kVector;
    total_ = block_ = 0;
    if constexpr (kGrid) {
      begin_grid();
    } else {
      begin_rows();
    }
    group_ = first_part_;
  }

  // Of the parts, all of a block's threads in each.
  POSENC_HD int64_t rounds() const {
    return divide(parts_count() + plan_.threads_y - 1, plan_.threads_y);
  }

  POSENC_HD void sum(int64_t round) {
    const int64_t part = round * plan_.threads_y + y_;
    if (part >= parts_count()) return;
    const int64_t plane = divide(part, plane_parts_);
    const int64_t in_plane = first_part_ + part - plane * plane_parts_;
    Number sums[kVector] = {};
    if constexpr (kGrid) {
      sums[0] = sum_queries(plane, in_plane);
    } else {
      sum_rows(plane, in_plane, sums);
    }
    Number* const to = parts_ + (y_ * plan_.threads_x + x_) * kVector;
#pragma unroll
    for (int i = 0; i < kVector; ++i) to[i] = sums[i];
  }

  POSENC_HD void combine(int64_t round) {
    const int own = own_entry();
    if (own < 0) return;
    const int64_t rest = parts_count() - round * plan_.threads_y;
    const int count = rest < plan_.threads_y ? static_cast<int>(rest) : plan_.threads_y;
    for (int i = 0; i < count; ++i) {
      block_ += parts_[i * plan_.threads_x * kVector + own];
      const bool last = ++group_ == first_part_ + plane_parts_;
      if (!plan_.by_groups || last || (!kGrid && group_ % kBlockGroups == 0)) {
        total_ += block_;
        block_ = 0;
      }
      if (last) group_ = first_part_;
    }
  }

  POSENC_HD void finish() {
    const int own = own_entry();
    const int64_t entry = block_entry_ + own;
    if (own < 0 || entry < 0 || entry >= entry_count()) return;
    int64_t offset = diagonals_, rest = entry;
#pragma unroll 1
    for (int axis = args_.grid_rank - 1; axis >= 0; --axis) {
      const int64_t outer = axis > 0 ? divide(rest, args_.entries[axis]) : 0;
      offset += (rest - outer * args_.entries[axis]) * args_.entry_strides[axis];
      rest = outer;
    }
    static_cast<Number*>(args_.diagonals)[offset] = total_;
  }

 private:
  // The entry of the block whose parts this thread puts together, or -1.
  POSENC_HD int own_entry() const {
    const int thread = y_ * plan_.threads_x + x_;
    return thread < plan_.threads_x * kVector ? thread : -1;
  }

  // Those of all planes; for grids a plane is kBlockRepetitions of them.
  POSENC_HD int64_t parts_count() const { return parts_count_; }
  POSENC_HD int64_t entry_count() const { return kGrid ? args_.entry_count() : args_.entries[0]; }

  POSENC_HD const T* plane_data(int64_t offset) const {
    return static_cast<const T*>(args_.in.data) + offset;
  }

  // --- Rank 1

  POSENC_HD int part_rows() const {
    return plan_.by_groups ? kGroupRows : kGroupRows * kBlockGroups;
  }

  POSENC_HD void begin_rows() {
    int64_t low = 0, high = args_.queries[0];
    if (plan_.one_start) {
      // Of the rows that have keys on one of the block's diagonals.
      const int64_t last_entry = block_entry_ + plan_.threads_x * kVector - 1;
      if (start_ - last_entry > low) low = start_ - last_entry;
      if (start_ - block_entry_ + args_.keys[0] < high) {
        high = start_ - block_entry_ + args_.keys[0];
      }
    }
    first_part_ = divide(low, part_rows());
    plane_parts_ = high > low && args_.keys[0] > 0
                       ? divide(high + part_rows() - 1, part_rows()) - first_part_
                       : 0;
    parts_count_ = plane_parts_ * args_.repetitions();
  }

  POSENC_HD void sum_rows(int64_t plane, int64_t part, Number (&sums)[kVector]) const {
    int64_t offsets[2] = {in_, q_offset_};
    add_offsets(args_.planes, args_.kept, args_.planes.rank, plane,
                {args_.in.plane_strides, args_.q_offset_strides}, offsets);
    const int64_t start = plan_.one_start ? start_ : args_.start_at(offsets[1]);
    const T* const data = plane_data(offsets[0]);
    const int64_t first = part * part_rows();
    const int64_t last =
        first + part_rows() < args_.queries[0] ? first + part_rows() : args_.queries[0];
    for (int64_t row = first; row < last; row += kGroupRows) {
      // The key of the first entry in the first row: a multiple of kVector.
      const int64_t key = entry_ - start + row;
      if (key >= args_.keys[0] || key + kGroupRows + kVector - 1 <= 0) continue;
      Number group[kVector] = {};
      if (key >= 0 && key + kGroupRows + (kVector > 1 ? kVector : 0) <= args_.keys[0] &&
          row + kGroupRows <= args_.queries[0]) {
        sum_group<true>(data, row, key, group);
      } else {
        sum_group<false>(data, row, key, group);
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) sums[i] += group[i];
    }
  }

  // kInside: all rows and keys are there.
  template <bool kInside>
  POSENC_HD void sum_group(const T* data, int64_t row, int64_t key,
                           Number (&group)[kVector]) const {
    constexpr int kAtOnce = kVector == 1 ? kGroupRows : Policy::kSumsRows;
    const int64_t step = kVector == 1 ? args_.in.column_stride : 1;
    const T* from = data + row * args_.in.row_stride + key * step;
#pragma unroll
    for (int first = 0; first < kGroupRows; first += kAtOnce) {
      WordOf<T, kVector> low[kAtOnce], high[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int r = first + i, word = r / kVector * kVector;
        low[i] = high[i] = WordOf<T, kVector>{};
        const bool there = kInside || row + r < args_.queries[0];
        if (there && (kInside || in_keys(key + word))) {
          low[i] = read_word<T, kVector>(from + word * step);
        }
        if (r % kVector != 0 && there && (kInside || in_keys(key + word + kVector))) {
          high[i] = read_word<T, kVector>(from + (word + kVector) * step);
        }
        from += args_.in.row_stride;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const auto left = unpack<T, kVector>(low[i]), right = unpack<T, kVector>(high[i]);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const int at = (first + i) % kVector + j;
          group[j] +=
              to_real(at < kVector ? left.numbers[at % kVector] : right.numbers[at % kVector]);
        }
      }
    }
  }

  POSENC_HD bool in_keys(int64_t key) const { return key >= 0 && key < args_.keys[0]; }

  // --- Grids

  POSENC_HD void begin_grid() {
    int64_t rest = entry_;
#pragma unroll
    for (int axis = kMaxGridRank - 1; axis >= 0; --axis) {
      index_[axis] = 0;
      if (axis >= args_.grid_rank) continue;
      const int64_t outer = axis > 0 ? divide(rest, args_.entries[axis]) : 0;
      index_[axis] = rest - outer * args_.entries[axis];
      rest = outer;
    }
    first_part_ = 0;
    plane_parts_ = plan_.by_groups ? args_.query_count() : 1;
    const int64_t planes =
        divide(args_.repetitions() + kBlockRepetitions - 1, int64_t{kBlockRepetitions});
    parts_count_ = args_.query_count() > 0 ? planes * plane_parts_ : 0;
  }

  // Of one query or all of them.
  POSENC_HD Number sum_queries(int64_t plane, int64_t part) const {
    const int64_t first = plan_.by_groups ? part : 0;
    const int64_t last = plan_.by_groups ? part + 1 : args_.query_count();
    Number sum = 0;
    if (entry_ >= entry_count()) return sum;
    for (int64_t query = first; query < last; ++query) {
      const int64_t key = key_of(query);
      if (key >= 0) sum += sum_repetitions(plane, query, key);
    }
    return sum;
  }

  // The key that a query has at this thread's entry, or -1.
  POSENC_HD int64_t key_of(int64_t query) const {
    int64_t key = 0, scale = 1;
#pragma unroll
    for (int axis = kMaxGridRank - 1; axis >= 0; --axis) {
      if (axis >= args_.grid_rank) continue;
      const int64_t outer = axis > 0 ? divide(query, args_.queries[axis]) : 0;
      const int64_t one = index_[axis] - args_.start[axis] + (query - outer * args_.queries[axis]);
      if (one < 0 || one >= args_.keys[axis]) return -1;
      key += one * scale;
      scale *= args_.keys[axis];
      query = outer;
    }
    return key;
  }

  POSENC_HD Number sum_repetitions(int64_t plane, int64_t query, int64_t key) const {
    const int64_t at = in_ + query * args_.in.row_stride + key * args_.in.column_stride;
    const int64_t first = plane * kBlockRepetitions;
    const int64_t rest = args_.repetitions() - first;
    const int count = static_cast<int>(rest < kBlockRepetitions ? rest : kBlockRepetitions);
    Number sum = 0;
    if (args_.planes.rank > args_.kept + 1) {
      for (int i = 0; i < count; ++i) {
        int64_t offsets[1] = {at};
        add_offsets(args_.planes, args_.kept, args_.planes.rank, first + i,
                    {args_.in.plane_strides}, offsets);
        sum += to_real(*plane_data(offsets[0]));
      }
      return sum;
    }
    // Along one axis: no divisions, and several at once.
    constexpr int kAtOnce = kGroupRows;
    const int64_t step = args_.planes.rank > args_.kept ? args_.in.plane_strides[args_.kept] : 0;
    const T* from = plane_data(at + first * step);
    for (int i = 0; i < count; i += kAtOnce) {
      WordOf<T, 1> words[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j < count) words[j] = read_word<T, 1>(from);
        from += step;
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j < count) sum += to_real(unpack<T, 1>(words[j]).numbers[0]);
      }
    }
    return sum;
  }

  const ToeplitzArgs& args_;
  const DiagonalSumsPlan& plan_;
  Number* const parts_;  // [threads_y, threads_x * kVector]
  const int x_, y_;

  int64_t in_, diagonals_, q_offset_, start_;
  int64_t block_entry_, entry_;
  int64_t first_part_, plane_parts_, parts_count_;
  int64_t index_[kMaxGridRank];
  // Of the entry that it puts together: groups so far, sums of the block and of all before.
  int64_t group_;
  Number block_, total_;
};

// Whether all summed planes have the same windows.
inline bool one_start(const ToeplitzArgs& args) {
  if (args.q_offset.data == nullptr) return true;
  return std::all_of(args.q_offset_strides + args.kept, args.q_offset_strides + args.planes.rank,
                     [](int64_t stride) { return stride == 0; });
}

template <typename Visit>
auto visit_diagonal_sums_thread(const ToeplitzArgs& args, const Visit& visit) {
  return visit_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    if (args.grid_rank > 1) return visit(static_cast<DiagonalSumsThread<T, 1, true>*>(nullptr));
    const bool wide = one_start(args) && aligned(args.in, args.planes, args.queries[0],
                                                 args.keys[0], args.dtype, kWide);
    return wide ? visit(static_cast<DiagonalSumsThread<T, kWide, false>*>(nullptr))
                : visit(static_cast<DiagonalSumsThread<T, 1, false>*>(nullptr));
  });
}

template <typename Thread>
DiagonalSumsPlan plan_diagonal_sums(const ToeplitzArgs& args, GridLimit limit = {}) {
  DiagonalSumsPlan plan;
  const int64_t entries = args.entry_count(), kept = args.kept_count();
  if (entries == 0 || kept == 0) return plan;
  constexpr int kWidth = Thread::kWidth;
  // The first vector may begin before the first entry.
  plan.vectors = divide_up(entries + kWidth - 1, kWidth);
  plan.one_start = one_start(args);
  const bool grid = args.grid_rank > 1;
  const int64_t group_rows = grid ? 1 : kGroupRows;
  const int64_t block_rows = grid ? args.query_count() : kGroupRows * kBlockGroups;
  const int64_t planes =
      grid ? divide_up(args.repetitions(), kBlockRepetitions) : args.repetitions();
  const int64_t groups = planes * divide_up(args.query_count(), group_rows);
  const int64_t blocks = block_rows == 0 ? 0 : planes * divide_up(args.query_count(), block_rows);
  // The more blocks, the fewer entries in each, and the more threads for parts of their sums: as
  // long as there are such parts, and neighbours share what memory delivers at once.
  int threads_x = Policy::kThreads / kWidth / (kWidth == 1 ? 4 : 1);
  const int least = std::max(Policy::kSumsBytes / int(item_size(args.dtype)) / kWidth, 1);
  while (threads_x > least && Policy::kThreads / threads_x < groups &&
         divide_up(plan.vectors, threads_x) * kept < Policy::kBlocks) {
    threads_x /= 2;
  }
  plan.threads_x = threads_x;
  plan.threads_y = Policy::kThreads / threads_x;
  plan.by_groups = blocks < Policy::kSumsRounds * plan.threads_y;
  plan.pieces_x = divide_up(plan.vectors, threads_x);
  plan.pieces_y = kept;
  plan.grid_x = std::min(plan.pieces_x, limit.x);
  plan.grid_y = std::min(plan.pieces_y, limit.y);
  plan.shared_bytes = static_cast<size_t>(plan.threads_x) * plan.threads_y * kWidth *
                      sizeof(typename Thread::Number);
  return plan;
}

// ---------------------------------------------------------------------------------------------
// Gather and scatter

// (content + x) * scale
template <typename T, int kVector>
POSENC_HD inline void write_scaled(const RelativeParameters& parameters,
                                   const Packet<T, kVector>& x,
                                   const WordOf<T, kVector>& content_word, T* to) {
  const RelativeArgs& args = parameters.args;
  const bool adds = args.content.data != nullptr;
  if (parameters.copies) return write_packet<T, kVector>(x, to);
  const Real<T> scale = static_cast<Real<T>>(args.scale);
  const auto content = unpack<T, kVector>(content_word);
  Real<T> values[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    values[i] = to_real(x.numbers[i]);
    if (adds) values[i] = to_real(content.numbers[i]) + values[i];
    values[i] *= scale;
  }
  write_packet<T, kVector>(round_packet<T, kVector>(values), to);
}

// What gather and shift have of a piece.
template <typename T, int kVector>
class RelativeThread {
 protected:
  POSENC_HD RelativeThread(const RelativeParameters& parameters, int x, int y, int z)
      : parameters_(parameters),
        args_(parameters.args),
        plan_(parameters.plan),
        x_(x),
        y_(y),
        z_(z) {}

  POSENC_HD void begin(const Tile& tile, const Matrices& from, const Matrices& to) {
    int64_t offsets[4] = {};
    add_offsets(
        args_.planes, 0, parameters_.kept, tile.plane,
        {from.plane_strides, to.plane_strides, args_.content.plane_strides, args_.q_offset_strides},
        offsets);
    const int64_t column = tile.vector * kVector;
    from_ = offsets[0];
    to_ = offsets[1] + column * column_stride(to);
    content_ = offsets[2] + column * column_stride(args_.content);
    start_ = args_.start_at(offsets[3]);
    first_repetition_ = tile.repetition;
    working_ = tile.vector < plan_.vectors && first_repetition_ < plan_.repetitions;
  }

  static POSENC_HD int64_t column_stride(const Matrices& matrices) {
    return kVector == 1 ? matrices.column_stride : 1;
  }

  // `from` has no column yet.
  struct Place {
    const T *from, *content;
    T* to;
  };

  POSENC_HD Place place(int64_t repetition, const Matrices& from, const Matrices& to) const {
    int64_t offsets[3] = {from_, to_, content_};
    add_offsets(args_.planes, parameters_.kept, args_.planes.rank, repetition,
                {from.plane_strides, to.plane_strides, args_.content.plane_strides}, offsets);
    return {static_cast<const T*>(from.data) + offsets[0],
            static_cast<const T*>(args_.content.data) + offsets[2],
            static_cast<T*>(to.data) + offsets[1]};
  }

  const RelativeParameters& parameters_;
  const RelativeArgs& args_;
  const TilePlan& plan_;
  const int x_, y_, z_;

  int64_t from_, to_, content_, start_;
  int64_t first_repetition_;
  bool working_;
};

// Without an index, gather and scatter are the same but for the direction.
template <typename T, int kVector>
class ShiftThread : RelativeThread<T, kVector> {
  using Base = RelativeThread<T, kVector>;
  using Base::args_;
  using Base::parameters_;
  using Base::plan_;
  using typename Base::Place;

 public:
  static constexpr int kWidth = kVector;
  static constexpr int kBlocks = blocks_per_processor(kVector * sizeof(T));
  static constexpr int kRows = Policy::kShiftRows;

  POSENC_HD ShiftThread(const RelativeParameters& parameters, char* /*shared*/, int x, int y, int z)
      : Base(parameters, x, y, z) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const Tile tile(plan_, kRows, piece_x, piece_y, this->x_, this->z_);
    Base::begin(tile, from(), to());
    first_row_ = tile.block_row + this->y_;
    column_ = tile.vector * kVector;
  }

  POSENC_HD void stage() {}

  POSENC_HD void write() {
    if (!this->working_) return;
    for (int64_t i = this->first_repetition_; i < plan_.repetitions; i += plan_.repetition_step) {
      const Place place = this->place(i, from(), to());
      for (int tile = 0; tile < plan_.tiles; ++tile) {
        copy(place, first_row_ + tile * plan_.threads_y * kRows);
      }
    }
  }

  static size_t shared_bytes(const TilePlan& /*plan*/) { return 0; }

 private:
  // Two neighbouring words, and from which byte of the first on are the numbers wanted.
  struct Words {
    WordOf<T, kVector> low, high;
    int shift;
  };

  POSENC_HD const Matrices& from() const {
    return parameters_.scatter ? args_.by_key : args_.by_column;
  }
  POSENC_HD const Matrices& to() const {
    return parameters_.scatter ? args_.by_column : args_.by_key;
  }

  POSENC_HD void copy(const Place& place, int64_t row) const {
    Words words[kRows];
    WordOf<T, kVector> content[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t one = row + r * plan_.threads_y;
      if (one >= plan_.rows) continue;
      const int64_t shift = this->start_ - one;
      read(place.from + one * from().row_stride, column_ + (parameters_.scatter ? -shift : shift),
           words[r]);
      if (args_.content.data != nullptr) {
        content[r] = read_word<T, kVector>(place.content + one * args_.content.row_stride);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t one = row + r * plan_.threads_y;
      if (one >= plan_.rows) continue;
      write_scaled<T, kVector>(parameters_, shifted(words[r]), content[r],
                               place.to + one * to().row_stride);
    }
  }

  // The numbers of a row from a column on; zeros where there are none.
  POSENC_HD void read(const T* row, int64_t column, Words& words) const {
    const int64_t size = parameters_.scatter ? args_.keys : args_.width;
    words.shift = 0;
    if constexpr (kVector > 1) {
      if (column >= 0 && column + kVector <= size) {
        const int byte = static_cast<int>(reinterpret_cast<uint64_t>(row + column) & 15);
        const int before = byte / static_cast<int>(sizeof(T));
        if (before == 0) {
          words.low = words.high = read_word<T, kVector>(row + column);
          return;
        }
        // Words that lie in the row as a whole: nothing else is read.
        const int64_t first = column - before;
        if (first >= 0 && first + 2 * kVector <= size) {
          words.low = read_word<T, kVector>(row + first);
          words.high = read_word<T, kVector>(row + first + kVector);
          words.shift = byte;
          return;
        }
      }
    }
    Packet<T, kVector> packet;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      packet.numbers[i] = T{};
      const int64_t one = column + i;
      if (one >= 0 && one < size) packet.numbers[i] = row[one * Base::column_stride(from())];
    }
    memcpy(&words.low, packet.numbers, sizeof words.low);
    words.high = words.low;
  }

  static POSENC_HD Packet<T, kVector> shifted(const Words& words) {
    if constexpr (kVector == 1) {
      return unpack<T, 1>(words.low);
    } else {
      uint32_t parts[8];
      memcpy(parts, &words.low, 16);
      memcpy(parts + 4, &words.high, 16);
#pragma unroll
      for (int i = 0; i < 6; ++i) parts[i] = (words.shift & 8) != 0 ? parts[i + 2] : parts[i];
      if constexpr (sizeof(T) <= 4) {
#pragma unroll
        for (int i = 0; i < 5; ++i) parts[i] = (words.shift & 4) != 0 ? parts[i + 1] : parts[i];
      }
      if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          parts[i] = (words.shift & 2) != 0 ? (parts[i] >> 16) | (parts[i + 1] << 16) : parts[i];
        }
      }
      Packet<T, kVector> packet;
      memcpy(packet.numbers, parts, 16);
      return packet;
    }
  }

  int64_t first_row_, column_;
};

// Gather with an index.
template <typename T, int kVector>
class GatherThread : RelativeThread<T, kVector> {
  using Base = RelativeThread<T, kVector>;
  using Base::args_;
  using Base::parameters_;
  using Base::plan_;
  using typename Base::Place;
  // Columns beyond 32 bits, one number at a time.
  using Column = std::conditional_t<kVector == 1, int64_t, int32_t>;

 public:
  static constexpr int kWidth = kVector;
  static constexpr int kBlocks = Policy::kBlocksPerProcessor;
  static constexpr int kRows = Policy::kTileRows;
  static_assert(kRows % kVector == 0, "windows of tiles are aligned in shared memory");

  POSENC_HD GatherThread(const RelativeParameters& parameters, char* shared, int x, int y, int z)
      : Base(parameters, x, y, z), index_(reinterpret_cast<Column*>(shared)) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const Tile tile(plan_, kRows, piece_x, piece_y, this->x_, this->z_);
    Base::begin(tile, args_.by_column, args_.by_key);
    block_row_ = tile.block_row;
    first_entry_ =
        this->start_ + tile.block_vector * kVector - (block_row_ + plan_.block_rows(kRows) - 1);
  }

  POSENC_HD void stage() {
    const int thread = (this->z_ * plan_.threads_y + this->y_) * plan_.threads_x + this->x_;
    const int count = plan_.threads_x * kVector + plan_.block_rows(kRows);
    for (int i = thread; i < count; i += plan_.threads()) {
      const int64_t at = first_entry_ + i;
      if (at >= 0 && at < args_.entries) index_[i] = static_cast<Column>(args_.index[at]);
    }
  }

  POSENC_HD void write() {
    if (!this->working_) return;
    for (int tile = 0; tile < plan_.tiles; ++tile) {
      const int64_t row = block_row_ + (tile * plan_.threads_y + this->y_) * kRows;
      if (row >= plan_.rows) return;
      read_window(row);
      for (int64_t i = this->first_repetition_; i < plan_.repetitions; i += plan_.repetition_step) {
        copy(this->place(i, args_.by_column, args_.by_key), row);
      }
    }
  }

  static size_t shared_bytes(const TilePlan& plan) {
    return static_cast<size_t>(plan.threads_x * kVector + plan.block_rows(kRows)) * sizeof(Column);
  }

 private:
  static constexpr int kWindow = kVector == 1 ? 1 : kRows + kVector;

  // As that of ToeplitzTileThread; single numbers read shared memory where they need it.
  POSENC_HD void read_window(int64_t row) {
    const int last_row = static_cast<int>(row - block_row_) + kRows;
    window_at_ = this->x_ * kVector + plan_.block_rows(kRows) - last_row;
    if constexpr (kVector > 1) {
#pragma unroll
      for (int i = 0; i < kWindow; i += kVector) {
        const auto packet = read_packet<Column, kVector>(index_ + window_at_ + i);
#pragma unroll
        for (int j = 0; j < kVector; ++j) window_[i + j] = packet.numbers[j];
      }
    }
  }

  POSENC_HD Column column(int i) const {
    if constexpr (kVector == 1) {
      return index_[window_at_ + i];
    } else {
      return window_[i];
    }
  }

  POSENC_HD void copy(const Place& place, int64_t row) const {
    constexpr int kAtOnce = kVector == 1 ? kRows : Policy::kGatherRows;
    const int64_t step = Base::column_stride(args_.by_column);
    const int count = plan_.rows - row < kRows ? static_cast<int>(plan_.rows - row) : kRows;
#pragma unroll
    for (int first = 0; first < kRows; first += kAtOnce) {
      Packet<T, kVector> x[kAtOnce];
      WordOf<T, kVector> content[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int r = first + i;
        if (r >= count) continue;
        const T* const from = place.from + (row + r) * args_.by_column.row_stride;
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const Column column = this->column(kRows - 1 - r + j);
          x[i].numbers[j] = T{};
          if (column >= 0) x[i].numbers[j] = from[column * step];
        }
        if (args_.content.data != nullptr) {
          content[i] = read_word<T, kVector>(place.content + (row + r) * args_.content.row_stride);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int r = first + i;
        if (r >= count) continue;
        write_scaled<T, kVector>(parameters_, x[i], content[i],
                                 place.to + (row + r) * args_.by_key.row_stride);
      }
    }
  }

  Column* const index_;
  int64_t block_row_, first_entry_;
  int window_at_;
  Column window_[kWindow];
};

// The same call with its axes in the order that RelativeParameters wants, as few as strides allow.
inline RelativeParameters arrange(const RelativeArgs& args, bool scatter) {
  RelativeParameters parameters;
  RelativeArgs& to = parameters.args;
  to = args;
  parameters.scatter = scatter;
  parameters.copies = args.content.data == nullptr && args.scale == 1.0;
  int rank = 0;
  for (const bool kept : {true, false}) {
    const int first = rank;
    for (int axis = 0; axis < args.planes.rank; ++axis) {
      const int64_t size = args.planes.shape[axis];
      const bool own = args.q_offset.data != nullptr && args.q_offset_strides[axis] != 0;
      if (size == 1 || own != kept) continue;
      const auto nested = [&](const int64_t* merged, const int64_t* strides) {
        return merged[rank - 1] == strides[axis] * size;
      };
      const bool joins = rank > first &&
                         nested(to.by_column.plane_strides, args.by_column.plane_strides) &&
                         nested(to.by_key.plane_strides, args.by_key.plane_strides) &&
                         nested(to.content.plane_strides, args.content.plane_strides) &&
                         nested(to.q_offset_strides, args.q_offset_strides);
      const int at = joins ? rank - 1 : rank++;
      to.planes.shape[at] = joins ? to.planes.shape[at] * size : size;
      to.by_column.plane_strides[at] = args.by_column.plane_strides[axis];
      to.by_key.plane_strides[at] = args.by_key.plane_strides[axis];
      to.content.plane_strides[at] = args.content.plane_strides[axis];
      to.q_offset_strides[at] = args.q_offset_strides[axis];
    }
    if (kept) parameters.kept = rank;
  }
  to.planes.rank = rank;
  return parameters;
}

// Of arranged arguments.
template <typename Thread>
TilePlan plan_relative(const RelativeParameters& parameters, GridLimit limit = {}) {
  const RelativeArgs& args = parameters.args;
  const Planes& planes = args.planes;
  const int64_t columns = parameters.scatter ? args.width : args.keys;
  TilePlan plan = plan_tiles(columns / Thread::kWidth, args.queries, Thread::kRows,
                             planes.count(0, parameters.kept),
                             planes.count(parameters.kept, planes.rank), limit);
  plan.shared_bytes = Thread::shared_bytes(plan);
  return plan;
}

// Calls visit(parameters, thread type) for calls that shift and for gather.
template <typename Visit>
auto visit_relative_launch(const RelativeArgs& given, bool scatter, GridLimit limit,
                           const Visit& visit) {
  RelativeParameters parameters = arrange(given, scatter);
  const RelativeArgs& args = parameters.args;
  const Matrices& to = scatter ? args.by_column : args.by_key;
  const Matrices& from = scatter ? args.by_key : args.by_column;
  const int64_t columns = scatter ? args.width : args.keys;
  const auto visit_one = [&](auto* thread) {
    parameters.plan = plan_relative<std::remove_pointer_t<decltype(thread)>>(parameters, limit);
    return visit(parameters, thread);
  };
  return visit_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    const bool wide = from.column_stride == 1 &&
                      aligned(to, args.planes, args.queries, columns, args.dtype, kWide) &&
                      aligned(args.content, args.planes, args.queries, columns, args.dtype, kWide);
    if (args.index.data == nullptr) {
      return wide ? visit_one(static_cast<ShiftThread<T, kWide>*>(nullptr))
                  : visit_one(static_cast<ShiftThread<T, 1>*>(nullptr));
    }
    return wide && args.width <= INT32_MAX
               ? visit_one(static_cast<GatherThread<T, kWide>*>(nullptr))
               : visit_one(static_cast<GatherThread<T, 1>*>(nullptr));
  });
}

// --- Scatter with an index

struct ScatterPlan {
  bool searches = false;  // most entries of a list are in no row's window
  int64_t tiles = 0;      // of kThreads columns; a block takes every pieces_y-th
  int64_t pieces_x = 0, pieces_y = 0;
  int64_t grid_x = 0, grid_y = 0;
  size_t shared_bytes = 0;
};

struct ScatterParameters {
  RelativeArgs args;
  ScatterPlan plan;
};

// The thread of a block that has kRows rows, of any planes. A column has a list of entries.
template <typename T, int kVector>
class ScatterThread {
  using Number = Real<T>;
  static constexpr int kRows = Policy::kScatterRows;
  static constexpr int kThreads = Policy::kThreads;
  static constexpr int kStride = kThreads + 1;  // rows of parts, in different banks
  static_assert(kVector == 1);
  struct Row {
    int64_t first;  // entry
    int64_t from;   // where entry 0 would be
    int64_t to;
  };

 public:
  static constexpr int kWidth = 1;
  static constexpr int kBlocks = Policy::kBlocksPerProcessor;
  static constexpr int kWarp = 32, kWarps = kThreads / kWarp;
  enum List : unsigned char { kShort, kLong, kVeryLong };

  POSENC_HD ScatterThread(const ScatterParameters& parameters, char* shared, int thread)
      : args_(parameters.args),
        plan_(parameters.plan),
        rows_(reinterpret_cast<Row*>(shared)),
        parts_(reinterpret_cast<Number*>(rows_ + kRows)),
        lists_(reinterpret_cast<unsigned char*>(parts_ + kRows * kStride)),
        thread_(thread) {}

  // A thread for each row finds out where it is ...
  POSENC_HD void begin(int64_t piece_x) {
    first_row_ = piece_x * kRows;
    const int64_t row = first_row_ + thread_;
    if (thread_ >= kRows || row >= args_.rows()) return;
    const int64_t plane = divide(row, args_.queries), query = row - plane * args_.queries;
    int64_t offsets[3] = {};
    add_offsets(args_.planes, 0, args_.planes.rank, plane,
                {args_.by_key.plane_strides, args_.by_column.plane_strides, args_.q_offset_strides},
                offsets);
    const int64_t first = args_.start_at(offsets[2]) - query;
    const int64_t from = offsets[0] + query * args_.by_key.row_stride;
    rows_[thread_] = {first, from - first * args_.by_key.column_stride,
                      offsets[1] + query * args_.by_column.row_stride};
  }

  // ... for all.
  POSENC_HD void read_rows() {
    low_ = INT64_MAX;
    high_ = INT64_MIN;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      first_entries_[r] = INT64_MIN / 2;  // no entry is in its window
      from_[r] = 0;
      if (first_row_ + r >= args_.rows()) continue;
      const int64_t first = rows_[r].first;
      first_entries_[r] = first;
      from_[r] = rows_[r].from;
      low_ = first < low_ ? first : low_;
      high_ = first + args_.keys > high_ ? first + args_.keys : high_;
    }
  }

  // Sums the list of this thread's column of the tile if it is short; how long it is.
  POSENC_HD List short_list(int64_t tile) {
    tile_column_ = tile * kThreads;
    const int64_t column = tile_column_ + thread_;
    List list = kShort;
    if (column < args_.width) {
      const Range range = entries_of(column);
      const int64_t length = range.last - range.first;
      list = length <= Policy::kThreadList ? kShort
             : length <= Policy::kWarpList ? kLong
                                           : kVeryLong;
      if (list == kShort) {
        Number sums[kRows];
        sum(range.first, range.last, 1, sums);
#pragma unroll
        for (int r = 0; r < kRows; ++r) write(r, column, sums[r]);
      }
    }
    lists_[thread_] = list;
    return list;
  }

  POSENC_HD List list(int slot) const { return static_cast<List>(lists_[slot]); }

  // A list that this thread's warp sums up: each thread its part of it, then groups of them ...
  POSENC_HD void sum_in_warp(int slot) { sum_part(slot, thread_ % kWarp, kWarp); }

  POSENC_HD void fold_in_warp() {
    constexpr int kEach = kWarp / kRows;  // threads for a row
    const int lane = thread_ % kWarp, row = lane / kEach, first = lane % kEach;
    fold(row, thread_ - lane + first, kEach, kWarp / kEach);
  }

  POSENC_HD void write_in_warp(int slot) {
    constexpr int kEach = kWarp / kRows;
    const int lane = thread_ % kWarp;
    if (lane >= kRows) return;
    fold(lane, thread_ - lane, 1, kEach);
    write(lane, tile_column_ + slot, parts_[lane * kStride + thread_ - lane]);
  }

  // ... and one that the block does.
  POSENC_HD void sum_in_block(int slot) { sum_part(slot, thread_, kThreads); }

  POSENC_HD void fold_in_block() {
    const int row = thread_ / kFolds;
    if (row < kRows) fold(row, thread_ % kFolds, kFolds, kThreads / kFolds);
  }

  POSENC_HD void write_in_block(int slot) {
    if (thread_ >= kRows) return;
    fold(thread_, 0, 1, kFolds);
    write(thread_, tile_column_ + slot, parts_[thread_ * kStride]);
  }

  static constexpr size_t kSharedBytes =
      kRows * (sizeof(Row) + kStride * sizeof(Number)) + kThreads;

 private:
  static constexpr int kFolds = 16;
  static_assert(kFolds * kRows <= kThreads && kWarp % kRows == 0);

  struct Range {
    int64_t first, last;
  };

  // Of a column's list, those that may be in a window.
  POSENC_HD Range entries_of(int64_t column) const {
    Range range{args_.bounds[column], args_.bounds[column + 1]};
    if (plan_.searches) {
      range.first = search(range, low_);
      range.last = search(range, high_);
    }
    return range;
  }

  // The first of a range that is at `entry` or beyond.
  POSENC_HD int64_t search(Range range, int64_t entry) const {
    while (range.first < range.last) {
      const int64_t middle = range.first + (range.last - range.first) / 2;
      if (args_.order[middle] < entry) {
        range.first = middle + 1;
      } else {
        range.last = middle;
      }
    }
    return range.first;
  }

  // Every step-th entry of a list, from one to before another, for every row.
  POSENC_HD void sum(int64_t first, int64_t last, int step, Number (&sums)[kRows]) const {
    const T* const data = static_cast<const T*>(args_.by_key.data);
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] = 0;
    for (int64_t i = first; i < last; i += step) {
      const int64_t entry = args_.order[i];
      const int64_t offset = entry * args_.by_key.column_stride;
      Number values[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        values[r] = 0;
        const bool there =
            static_cast<uint64_t>(entry - first_entries_[r]) < static_cast<uint64_t>(args_.keys);
        if (there) values[r] = to_real(data[from_[r] + offset]);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] += values[r];
    }
  }

  POSENC_HD void sum_part(int slot, int first, int step) {
    const Range range = entries_of(tile_column_ + slot);
    Number sums[kRows];
    sum(range.first + first, range.last, step, sums);
#pragma unroll
    for (int r = 0; r < kRows; ++r) parts_[r * kStride + thread_] = sums[r];
  }

  // Adds up `count` parts of a row, `step` apart, where the first of them is.
  POSENC_HD void fold(int row, int first, int step, int count) {
    Number* const part = parts_ + row * kStride + first;
    Number sum = *part;
    for (int i = 1; i < count; ++i) sum += part[i * step];
    *part = sum;
  }

  POSENC_HD void write(int r, int64_t column, Number sum) const {
    if (first_row_ + r >= args_.rows()) return;
    const int64_t at = rows_[r].to + column * args_.by_column.column_stride;
    static_cast<T*>(args_.by_column.data)[at] = round_to<T>(sum * static_cast<Number>(args_.scale));
  }

  const RelativeArgs& args_;
  const ScatterPlan& plan_;
  Row* const rows_;
  Number* const parts_;         // [kRows, kThreads], rows kStride apart
  unsigned char* const lists_;  // how long those of the tile's columns are
  const int thread_;

  int64_t first_row_, tile_column_;
  int64_t low_, high_;  // all windows together
  int64_t first_entries_[kRows];
  int64_t from_[kRows];
};

// Of arranged arguments.
template <typename Thread>
ScatterPlan plan_scatter(const RelativeArgs& args, GridLimit limit = {}) {
  ScatterPlan plan;
  plan.searches = args.entries / 4 > args.keys;
  plan.tiles = divide_up(args.width, Policy::kThreads);
  plan.pieces_x = divide_up(args.rows(), Policy::kScatterRows);
  if (plan.pieces_x > 0 && plan.tiles > 0) {
    plan.pieces_y = std::max<int64_t>(1, std::min(plan.tiles, Policy::kBlocks / plan.pieces_x));
  }
  plan.grid_x = std::min(plan.pieces_x, limit.x);
  plan.grid_y = std::min(plan.pieces_y, limit.y);
  plan.shared_bytes = Thread::kSharedBytes;
  return plan;
}

// Calls visit(parameters, thread type).
template <typename Visit>
auto visit_scatter_launch(const RelativeArgs& args, GridLimit limit, const Visit& visit) {
  return visit_type(args.dtype, [&](auto type) {
    using Thread = ScatterThread<decltype(type), 1>;
    ScatterParameters parameters{arrange(args, true).args, {}};
    parameters.plan = plan_scatter<Thread>(parameters.args, limit);
    return visit(parameters, static_cast<Thread*>(nullptr));
  });
}

}  // namespace posenc::cuda
