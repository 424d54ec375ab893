// A Toeplitz bias on a GPU: what one thread does, and how a launch covers a call.
//
//   ToeplitzTileThread   8 rows of a vector's columns at a time. They read kVector + 7 entries:
//                        from row to row the window moves by one, so they stay in registers. A
//                        block has its entries in shared memory, rounded.
//   ToeplitzRowThread    a vector of one row, whose entries are read where they lie and kept for
//                        all repetitions: grids; few queries, as in decoding
#pragma once

#include "core/toeplitz.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/tiles.cuh"

namespace posenc::cuda {

struct ToeplitzParameters {
  ToeplitzArgs args;
  TilePlan plan;
};
static_assert(sizeof(ToeplitzParameters) <= 4096, "kernel parameters");

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
    origin_ = args_.origin_at(offsets[3]);
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

  int64_t in_, out_, diagonals_, origin_;
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
        this->origin_ + tile.block_vector * kVector - (block_row_ + plan_.block_rows(kRows) - 1);
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
      const auto packet = kept_packet<Number, kVector>(from + i);
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

  // ... and of its query: sum of (origin_a - i_a) * stride_a.
  POSENC_HD int64_t query_offset(int64_t query) const {
    int64_t offset = 0;
#pragma unroll
    for (int axis = kMaxGridRank - 1; axis >= 0; --axis) {
      if (axis >= args_.grid_rank) continue;
      const int64_t outer = axis > 0 ? divide(query, args_.queries[axis]) : 0;
      const int64_t origin = axis > 0 ? args_.origin[axis] : this->origin_;
      offset += (origin - (query - outer * args_.queries[axis])) * args_.entry_strides[axis];
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
TilePlan plan_toeplitz(const ToeplitzArgs& args, const Room& room = {}) {
  TilePlan plan = plan_tiles(args.key_count() / Thread::kWidth, args.query_count(), Thread::kRows,
                             args.kept_count(), args.repetitions(), room);
  plan.shared_bytes = Thread::shared_bytes(plan);
  return plan;
}

}  // namespace posenc::cuda
