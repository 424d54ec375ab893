// Gather and scatter without an index on a GPU: rows copied from another place in a row. A thread
// writes vectors wherever memory has them, of rows of any length and address.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/lookup.cuh"

namespace posenc::cuda {

// Without an index, gather and scatter are the same but for the direction. kAnywhere: rows begin
// anywhere in a vector.
template <typename T, int kVector, bool kAnywhere>
class ShiftThread : RelativeThread<T, kVector> {
  using Base = RelativeThread<T, kVector>;
  using Base::args_;
  using Base::parameters_;
  using Base::plan_;
  using typename Base::Place;
  // Columns beyond 32 bits, one number at a time.
  using Column = std::conditional_t<kVector == 1, int64_t, int32_t>;

 public:
  static constexpr int kWidth = kVector;
  static constexpr int kBlocks = blocks_per_processor(kVector * sizeof(T));
  static constexpr int kRows = Policy::kShiftRows;
  static constexpr int64_t kWaves = kAnywhere ? Policy::kShiftWaves : 0;
  // Rows, and columns, where they have 32 bits: so that sums of all have room.
  static constexpr int64_t kMost = int64_t{1} << 28;

  POSENC_HD ShiftThread(const RelativeParameters& parameters, char* /*shared*/, int x, int y, int z)
      : Base(parameters, x, y, z) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const Tile tile(plan_, kRows, piece_x, piece_y, this->x_, this->z_);
    Base::begin(tile, from(), to());
    first_row_ = static_cast<Column>(tile.block_row) + this->y_;
    column_ = static_cast<Column>(tile.vector) * kVector;
    // From the column of a row that is written to that which is read; row 0's. Where it is beyond
    // all columns, no matter how far.
    const int64_t apart = parameters_.scatter ? -this->origin_ : this->origin_;
    constexpr int64_t kFar = sizeof(Column) == 4 ? 2 * kMost : INT64_MAX;
    apart_ = static_cast<Column>(apart < -kFar ? -kFar : apart > kFar ? kFar : apart);
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

  // Of a row.
  static int64_t vectors(const RelativeParameters& /*parameters*/, int64_t columns) {
    if (!kAnywhere) return columns / kVector;
    return columns == 0 ? 0 : divide_up(columns + kBefore, kVector);
  }
  static size_t shared_bytes(const TilePlan& /*plan*/) { return 0; }

 private:
  static constexpr int kBefore = kVector - 1;  // numbers of a row's first vector before the row

  POSENC_HD const Matrices& from() const {
    return parameters_.scatter ? args_.by_key : args_.by_column;
  }
  POSENC_HD const Matrices& to() const {
    return parameters_.scatter ? args_.by_column : args_.by_key;
  }
  POSENC_HD Column columns() const {
    return static_cast<Column>(parameters_.scatter ? args_.width : args_.keys);
  }

  // The vector of a row, wherever memory has it: it begins `late` columns before column_.
  struct Part {
    T* to;
    Column column;
    bool whole;  // all of its numbers are the row's
  };
  POSENC_HD Part part(const Place& place, Column row) const {
    T* const to_row = place.to + row * to().row_stride;
    if constexpr (!kAnywhere) return {to_row, column_, true};
    const int late = static_cast<int>(reinterpret_cast<uint64_t>(to_row) / sizeof(T)) & kBefore;
    const Column column = column_ - late;
    return {to_row - late, column, column >= 0 && column + kVector <= columns()};
  }
  POSENC_HD bool has(const Part& part, int i) const {
    return part.column + i >= 0 && part.column + i < columns();
  }

  POSENC_HD void copy(const Place& place, Column row) const {
    const Column size = static_cast<Column>(parameters_.scatter ? args_.keys : args_.width);
    const Column rows = static_cast<Column>(plan_.rows);
    const int64_t stride = Base::column_stride(from());
    AnyWord<T, kVector> words[kRows];
    WordOf<T, kVector> content[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Column one = row + r * plan_.threads_y;
      if (one >= rows) continue;
      const Part to = part(place, one);
      const T* const from_row = place.from + one * from().row_stride;
      const Column first = to.column + apart_ + (parameters_.scatter ? one : -one);
      if (first <= -kVector || first >= size) {
        words[r].clear();
      } else if (!words[r].read(from_row, first, size)) {
        words[r].take([&](int i) {
          const Column column = first + i;
          return column >= 0 && column < size ? read_number(from_row + column * stride) : T{};
        });
      }
      if (args_.content.data != nullptr) content[r] = read_content(place, one, to);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Column one = row + r * plan_.threads_y;
      if (one >= rows) continue;
      const Part to = part(place, one);
      const auto packet = scaled<T, kVector>(parameters_, words[r].numbers(), content[r]);
      if (to.whole) {
        write_packet<T, kVector>(packet, to.to);
        continue;
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (has(to, i)) write_packet<T, 1>({{packet.numbers[i]}}, to.to + i);
      }
    }
  }

  POSENC_HD WordOf<T, kVector> read_content(const Place& place, Column row,
                                            const Part& part) const {
    const T* const from = place.content + row * args_.content.row_stride + (part.column - column_);
    if (part.whole) return read_word<T, kVector>(from);
    Packet<T, kVector> packet;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      packet.numbers[i] = has(part, i) ? read_number(from + i) : T{};
    }
    WordOf<T, kVector> word;
    memcpy(&word, packet.numbers, sizeof word);
    return word;
  }

  Column first_row_, column_, apart_;
};

// Whether rows that are written have vectors in memory, those of `content` the same ones.
inline bool begins_anywhere(const RelativeParameters& parameters, int64_t width) {
  const RelativeArgs& args = parameters.args;
  const Matrices& to = parameters.scatter ? args.by_column : args.by_key;
  const Matrices& from = parameters.scatter ? args.by_key : args.by_column;
  return from.column_stride == 1 && to.column_stride == 1 &&
         (args.content.data == nullptr ||
          alike(args.content, to, args.planes, args.queries, args.dtype, width));
}

// Calls visit(thread type) for a call without an index.
template <typename Visit>
auto visit_shift_thread(const RelativeParameters& parameters, const Visit& visit) {
  return visit_type(parameters.args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    const RelativeArgs& args = parameters.args;
    const int64_t longest = std::max({args.queries, args.keys, args.width});
    if (longest < ShiftThread<T, kWide, false>::kMost) {
      if (by_vectors(parameters, kWide)) {
        return visit(static_cast<ShiftThread<T, kWide, false>*>(nullptr));
      }
      if (begins_anywhere(parameters, kWide)) {
        return visit(static_cast<ShiftThread<T, kWide, true>*>(nullptr));
      }
    }
    return visit(static_cast<ShiftThread<T, 1, false>*>(nullptr));
  });
}

}  // namespace posenc::cuda
