// A Toeplitz bias on a GPU: what one thread does, and how a launch covers a call.
//
//   ToeplitzTileThread   8 rows of a vector's columns at a time. They read kVector + 7 entries:
//                        from row to row the window moves by one, so they stay in registers. A
//                        block has its entries in shared memory, rounded.
//   ToeplitzLineThread   a vector wherever memory has one, for any length and address of rows: of
//                        a line, which is a row, or a plane whose rows follow one another without
//                        a gap. The first and last ones of a line may have fewer numbers. Grids;
//                        few queries, as in decoding; windows. A block has its bias in shared
//                        memory, for all lines and repetitions
#pragma once

#include <type_traits>

#include "core/toeplitz.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/tiles.cuh"

namespace posenc::cuda {

// Rows, for ToeplitzTileThread, or lines.
struct ToeplitzPlan : TilePlan {
  int64_t length = 0;  // numbers of a line
  int tile_rows = 1;   // lines of a thread's tile
  // What a block of a line thread stages: the bias of every number of its lines. Or the entries
  // of them all, which are fewer, if they are rows of rank 1.
  bool by_numbers = false;
  int64_t in_step = 0, out_step = 0;  // from a thread's line to its next
  // And from its repetition to its next, where these lie along one axis.
  bool one_axis = false;
  int64_t in_turn = 0, out_turn = 0;
};

struct ToeplitzParameters {
  ToeplitzArgs args;
  ToeplitzPlan plan;
};
static_assert(sizeof(ToeplitzParameters) <= 4096, "kernel parameters");

// An entry as it is added to numbers of type T, or as such a number itself where there is nothing
// to add it to: rounded once.
template <typename T, typename Entry>
POSENC_HD inline Real<T> rounded(Entry entry, bool alone) {
  if constexpr (sizeof(T) == 2) {
    if constexpr (std::is_same_v<Entry, double>) {
      if (alone) return to_float(round_to<T>(float_rounded_to_odd(entry)));
    } else {
      if (alone) return to_float(round_to<T>(to_real(entry)));
    }
  }
  return static_cast<Real<T>>(to_real(entry));
}

// Calls visit(the entries from `offset` on).
template <typename Visit>
POSENC_HD inline void visit_entries(const ToeplitzArgs& args, int64_t offset, const Visit& visit) {
  switch (args.diagonals_dtype) {
    case Dtype::kFloat16:
      return visit(static_cast<const Float16*>(args.diagonals) + offset);
    case Dtype::kBFloat16:
      return visit(static_cast<const BFloat16*>(args.diagonals) + offset);
    case Dtype::kFloat32:
      return visit(static_cast<const float*>(args.diagonals) + offset);
    default:
      return visit(static_cast<const double*>(args.diagonals) + offset);
  }
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

  // Number of the thread in its block.
  POSENC_HD int thread() const { return (z_ * plan_.threads_y + y_) * plan_.threads_x + x_; }

  // Stages `count` entries of rank 1, those that are not there left out; reads several before it
  // looks at the first.
  template <int kReads, typename Place>
  POSENC_HD void stage_entries(int64_t first_entry, int count, Number* to,
                               const Place& place) const {
    const int64_t rest = args_.entries[0] - first_entry;
    const int first = first_entry < 0 ? static_cast<int>(-first_entry) : 0;
    const int last = rest < count ? static_cast<int>(rest) : count;
    const int64_t stride = args_.entry_strides[0];
    const int threads = plan_.threads();
    visit_entries(args_, diagonals_ + (first_entry + thread()) * stride, [&](const auto* from) {
      for (int i = thread(); i < last; i += kReads * threads) {
        std::remove_const_t<std::remove_pointer_t<decltype(from)>> entries[kReads];
#pragma unroll
        for (int j = 0; j < kReads; ++j) {
          const int at = i + j * threads;
          if (at >= first && at < last) entries[j] = *from;
          from += threads * stride;
        }
#pragma unroll
        for (int j = 0; j < kReads; ++j) {
          const int at = i + j * threads;
          if (at >= first && at < last) to[place(at)] = rounded<T>(entries[j], !adds());
        }
      }
    });
  }

  static POSENC_HD int64_t column_stride(const Matrices& matrices) {
    return kVector == 1 ? matrices.column_stride : 1;
  }

  // bias, with what was read added.
  POSENC_HD Packet<T, kVector> sum(const WordOf<T, kVector>& word,
                                   const Number (&bias)[kVector]) const {
    Number values[kVector];
    if (adds()) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = real_of<T, kVector>(word, i) + bias[i];
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = bias[i];
    }
    return round_packet<T, kVector>(values);
  }

  const ToeplitzArgs& args_;
  const ToeplitzPlan& plan_;
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
    this->template stage_entries<1>(first_entry_,
                                    plan_.threads_x * kVector + plan_.block_rows(kRows), entries_,
                                    [](int i) { return i; });
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

  static ToeplitzPlan plan(const ToeplitzArgs& args, const Room& room) {
    const int64_t rows = args.query_count(), columns = args.key_count();
    ToeplitzPlan plan{
        plan_tiles(columns / kVector, rows, kRows, args.kept_count(), args.repetitions(), room),
        columns, kRows, false};
    plan.shared_bytes =
        static_cast<size_t>(plan.threads_x * kVector + plan.block_rows(kRows)) * sizeof(Number);
    return plan;
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

  // Of the vector in a row and a repetition.
  POSENC_HD int64_t at(const Matrices& matrices, int64_t first, int64_t row,
                       int64_t repetition) const {
    int64_t offsets[1] = {first + row * matrices.row_stride};
    add_offsets(args_.planes, args_.kept, args_.planes.rank, repetition, {matrices.plane_strides},
                offsets);
    return offsets[0];
  }

  POSENC_HD void read(int64_t row, int64_t repetition) {
    const T* from = static_cast<const T*>(args_.in.data) + at(args_.in, this->in_, row, repetition);
    const int count = rows_from(row);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < count) words_[r] = read_word<T, kVector>(from);
      from += args_.in.row_stride;
    }
  }

  POSENC_HD void write(int64_t row, int64_t repetition) const {
    T* to = static_cast<T*>(args_.out.data) + at(args_.out, this->out_, row, repetition);
    const int count = rows_from(row);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Number bias[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) bias[i] = window_[kRows - 1 - r + i];
      if (r < count) write_packet<T, kVector>(this->sum(words_[r], bias), to);
      to += args_.out.row_stride;
    }
  }

  static constexpr int kWindow = kVector == 1 ? kRows : kRows + kVector;

  Number* const entries_;
  int64_t block_row_, first_entry_;
  Number window_[kWindow];
  WordOf<T, kVector> words_[kRows];
};

// For all grids; with kVector == 1 for all strides.
template <typename T, int kVector>
class ToeplitzLineThread : ToeplitzThread<T, kVector> {
  using Base = ToeplitzThread<T, kVector>;
  using Base::args_;
  using Base::plan_;
  using typename Base::Number;

 public:
  static constexpr int kBlocks = blocks_per_processor(kVector * sizeof(T));

  POSENC_HD ToeplitzLineThread(const ToeplitzParameters& parameters, char* shared, int x, int y,
                               int z)
      : Base(parameters, x, y, z), bias_(reinterpret_cast<Number*>(shared)) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const Tile tile(plan_, plan_.tile_rows, piece_x, piece_y, this->x_, this->z_);
    Base::begin(tile);
    block_line_ = tile.block_row;
    block_number_ = tile.block_vector * kVector;
    const int64_t lines = plan_.rows - block_line_, numbers = plan_.length - block_number_;
    lines_ = lines < block_lines() ? static_cast<int>(lines) : block_lines();
    first_ = block_number_ == 0 ? 0 : -kBefore;
    last_ =
        numbers < plan_.threads_x * kVector ? static_cast<int>(numbers) : plan_.threads_x * kVector;
    this->in_ += (block_line_ + this->y_) * args_.in.row_stride;
    this->out_ += (block_line_ + this->y_) * args_.out.row_stride;
  }

  POSENC_HD void stage() {
    if (plan_.by_numbers) return stage_numbers();
    this->template stage_entries<kVector / 2 + 1>(
        this->origin_ + block_number_ - kBefore - (block_line_ + block_lines() - 1),
        width(plan_) + block_lines(), bias_, [](int i) { return place(i); });
  }

  POSENC_HD void write() {
    if (!this->working_ || this->y_ >= lines_) return;
    int64_t repetition = this->first_repetition_;
    int line = this->y_;
    int64_t offsets[2], begins[2];
    begin_lines(repetition, begins);
    offsets[0] = begins[0];
    offsets[1] = begins[1];
    while (repetition < plan_.repetitions) {
      Part parts[kReads];
      WordOf<T, kVector> words[kReads];
#pragma unroll
      for (int i = 0; i < kReads; ++i) {
        parts[i].to = nullptr;
        if (repetition >= plan_.repetitions) continue;
        parts[i] = part(line, offsets);
        if (this->adds()) {
          words[i] = read(parts[i]);
          request_next(parts[i], line, repetition);
        }
        line += plan_.threads_y;
        offsets[0] += plan_.in_step;
        offsets[1] += plan_.out_step;
        if (line < lines_) continue;
        line = this->y_;
        repetition += plan_.repetition_step;
        if (plan_.one_axis) {
          begins[0] += plan_.in_turn;
          begins[1] += plan_.out_turn;
        } else if (repetition < plan_.repetitions) {
          begin_lines(repetition, begins);
        }
        offsets[0] = begins[0];
        offsets[1] = begins[1];
      }
#pragma unroll
      for (int i = 0; i < kReads; ++i) {
        if (parts[i].to != nullptr) write(words[i], parts[i]);
      }
    }
  }

  static ToeplitzPlan plan(const ToeplitzArgs& args, const Room& room) {
    const int64_t rows = args.query_count(), columns = args.key_count();
    const bool joins = kVector > 1 && rows > 1 && follow(args.out, columns) &&
                       (args.in.data == nullptr || follow(args.in, columns)) &&
                       (args.grid_rank > 1 || (columns < Policy::kJoinedColumns &&
                                               args.repetitions() >= Policy::kJoinedRepetitions));
    const int64_t lines = joins ? 1 : rows, length = joins ? rows * columns : columns;
    const bool by_numbers = joins || args.grid_rank > 1;
    const int tile_rows = by_numbers ? 1 : Policy::kLineRows;
    // Of a line that begins anywhere in a vector.
    const bool whole = aligned(args.out, args.planes, lines, 0, args.dtype, kVector);
    const int64_t vectors = divide_up(whole || length == 0 ? length : length + kBefore, kVector);
    ToeplitzPlan plan{
        plan_tiles(vectors, lines, tile_rows, args.kept_count(), args.repetitions(), room), length,
        tile_rows, by_numbers};
    const int numbers =
        by_numbers ? plan.block_rows(1) * width(plan) : plan.block_rows(tile_rows) + width(plan);
    plan.shared_bytes = static_cast<size_t>(place(numbers)) * sizeof(Number);
    plan.one_axis = args.planes.rank - args.kept <= 1;
    if (plan.one_axis && args.planes.rank > args.kept) {
      plan.in_turn = plan.repetition_step * args.in.plane_strides[args.kept];
      plan.out_turn = plan.repetition_step * args.out.plane_strides[args.kept];
    }
    plan.in_step = plan.threads_y * args.in.row_stride;
    plan.out_step = plan.threads_y * args.out.row_stride;
    return plan;
  }

 private:
  static constexpr int kBefore = kVector - 1;  // numbers of a line's first vector before the line
  static constexpr int kReads = Policy::kLineReads;
  static_assert(Policy::kTiles * (Policy::kThreads * kVector + Policy::kTileRowThreads * kBefore) *
                        (kVector + 1) / kVector * sizeof(Number) <=
                    Policy::kSharedBytes,
                "the bias of every number of a block");

  // A vector of a line. What may not be in the line are its first numbers and its last.
  struct Part {
    const T* from;
    T* to;
    int number;  // its first one's, in the block
    int bias;    // and where its bias is
  };

  static bool follow(const Matrices& matrices, int64_t columns) {
    return matrices.column_stride == 1 && matrices.row_stride == columns;
  }

  POSENC_HD int block_lines() const { return plan_.block_rows(plan_.tile_rows); }

  // The numbers of a line that vectors of a block may have, wherever it begins.
  static POSENC_HD int width(const ToeplitzPlan& plan) {
    return plan.threads_x * kVector + kBefore;
  }

  // In shared memory: neighboring threads read from different banks.
  static POSENC_HD int place(int i) {
    return kVector == 1 ? i : i + static_cast<int>(static_cast<unsigned>(i) / kVector);
  }

  POSENC_HD void stage_numbers() const {
    for (int i = this->thread(); i < lines_ * width(plan_); i += plan_.threads()) {
      const int line = static_cast<int>(divide(i, width(plan_)));
      const int number = i - line * width(plan_) - kBefore;
      if (number < first_ || number >= last_) continue;
      const int64_t of_plane = (block_line_ + line) * plan_.length + block_number_ + number;
      visit_entries(args_, this->diagonals_ + entry_offset(of_plane), [&](const auto* entry) {
        bias_[place(i)] = rounded<T>(*entry, !this->adds());
      });
    }
  }

  // Sum of (origin_a + j_a - i_a) * stride_a for a number of a plane.
  POSENC_HD int64_t entry_offset(int64_t number) const {
    int64_t keys = args_.key_count(), query = divide(number, keys), key = number - query * keys;
    int64_t offset = 0;
#pragma unroll
    for (int axis = kMaxGridRank - 1; axis >= 0; --axis) {
      if (axis >= args_.grid_rank) continue;
      const int64_t outer_key = axis > 0 ? divide(key, args_.keys[axis]) : 0;
      const int64_t outer_query = axis > 0 ? divide(query, args_.queries[axis]) : 0;
      const int64_t j = key - outer_key * args_.keys[axis];
      const int64_t i = query - outer_query * args_.queries[axis];
      const int64_t origin = axis > 0 ? args_.origin[axis] : this->origin_;
      offset += (origin + j - i) * args_.entry_strides[axis];
      key = outer_key;
      query = outer_query;
    }
    return offset;
  }

  // What is read kReads vectors later: of the same repetition, or a thread's only line of another.
  POSENC_HD void request_next(const Part& part, int line, int64_t repetition) const {
    if (line + kReads * plan_.threads_y < lines_) {
      request(part.from + kReads * plan_.in_step);
    } else if (plan_.one_axis && line + plan_.threads_y >= lines_ && line == this->y_ &&
               repetition + kReads * plan_.repetition_step < plan_.repetitions) {
      request(part.from + kReads * plan_.in_turn);
    }
  }

  // Where the thread's first line is in a repetition.
  POSENC_HD void begin_lines(int64_t repetition, int64_t (&offsets)[2]) const {
    offsets[0] = this->in_;
    offsets[1] = this->out_;
    add_offsets(args_.planes, args_.kept, args_.planes.rank, repetition,
                {args_.in.plane_strides, args_.out.plane_strides}, offsets);
  }

  POSENC_HD Part part(int line, const int64_t (&offsets)[2]) const {
    Part part;
    part.from = static_cast<const T*>(args_.in.data) + offsets[0];
    part.to = static_cast<T*>(args_.out.data) + offsets[1];
    // The line begins so many numbers after a vector in memory does.
    const int late = static_cast<int>(reinterpret_cast<uintptr_t>(part.to) / sizeof(T)) & kBefore;
    if (this->adds()) part.from -= late;  // else it is null
    part.to -= late;
    part.number = this->x_ * kVector - late;
    part.bias =
        part.number + kBefore + (plan_.by_numbers ? line * width(plan_) : block_lines() - 1 - line);
    return part;
  }

  POSENC_HD bool whole(const Part& part) const {
    return kVector == 1 || (part.number >= first_ && part.number + kVector <= last_);
  }
  POSENC_HD bool has(const Part& part, int i) const {
    return part.number + i >= first_ && part.number + i < last_;
  }

  POSENC_HD WordOf<T, kVector> read(const Part& part) const {
    if (whole(part)) return read_word<T, kVector>(part.from);
    Packet<T, kVector> packet;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      packet.numbers[i] = T{};
      if (has(part, i)) packet.numbers[i] = read_number(part.from + i);
    }
    WordOf<T, kVector> word;
    memcpy(&word, packet.numbers, sizeof word);
    return word;
  }

  POSENC_HD void write(const WordOf<T, kVector>& word, const Part& part) const {
    Number bias[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) bias[i] = bias_[place(part.bias + i)];
    const auto packet = this->sum(word, bias);
    if (whole(part)) return write_packet<T, kVector>(packet, part.to);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (has(part, i)) write_packet<T, 1>({{packet.numbers[i]}}, part.to + i);
    }
  }

  Number* const bias_;
  int64_t block_line_, block_number_;  // the block's first ones
  int lines_;                          // of the block
  int first_, last_;                   // its numbers of a line, from one to before the other
};

// Calls visit(thread type) for the one that suits a call.
template <typename Visit>
auto visit_toeplitz_thread(const ToeplitzArgs& args, const Visit& visit) {
  return visit_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    const int64_t rows = args.query_count();
    const Matrices& in = args.in.data != nullptr ? args.in : args.out;
    const bool tiles = args.grid_rank == 1 && rows >= Policy::kTileRows;
    if (alike(in, args.out, args.planes, rows, args.dtype, kWide)) {
      return tiles && aligned(args.out, args.planes, rows, args.key_count(), args.dtype, kWide)
                 ? visit(static_cast<ToeplitzTileThread<T, kWide>*>(nullptr))
                 : visit(static_cast<ToeplitzLineThread<T, kWide>*>(nullptr));
    }
    return tiles ? visit(static_cast<ToeplitzTileThread<T, 1>*>(nullptr))
                 : visit(static_cast<ToeplitzLineThread<T, 1>*>(nullptr));
  });
}

template <typename Thread>
ToeplitzPlan plan_toeplitz(const ToeplitzArgs& args, const Room& room = {}) {
  return Thread::plan(args, room);
}

}  // namespace posenc::cuda
