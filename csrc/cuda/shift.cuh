// Gather and scatter without an index on a GPU: rows copied from another place in a row. A thread
// writes vectors wherever memory has them, of rows of any length and address.
#pragma once

#include "cuda/lookup.cuh"

namespace posenc::cuda {

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
  static constexpr int64_t kWaves = Policy::kShiftWaves;

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
      const int step = plan_.threads_y * kRows;
      for (int tile = 0; tile < plan_.tiles; ++tile) {
        const int64_t row = first_row_ + tile * step;
        if (tile + 1 < plan_.tiles) request_rows(place, row + step);
        copy(place, row);
      }
    }
  }

  // Of a row that begins anywhere in a vector.
  static int64_t vectors(const RelativeParameters& parameters, int64_t columns) {
    if (columns == 0 || by_vectors(parameters, kVector)) return columns / kVector;
    return divide_up(columns + kBefore, kVector);
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

  // The vector of a row, wherever memory has it: it begins `late` columns before column_.
  struct Part {
    T* to;
    int64_t column;
    bool whole;  // all of its numbers are the row's
  };
  POSENC_HD Part part(const Place& place, int64_t row) const {
    T* const to_row = place.to + row * to().row_stride;
    if constexpr (kVector == 1) return {to_row, column_, true};
    const int late = static_cast<int>(reinterpret_cast<uint64_t>(to_row) / sizeof(T)) & kBefore;
    const int64_t column = column_ - late;
    return {to_row - late, column, column >= 0 && column + kVector <= columns()};
  }
  POSENC_HD int64_t columns() const { return parameters_.scatter ? args_.width : args_.keys; }

  POSENC_HD void copy(const Place& place, int64_t row) const {
    const int64_t size = parameters_.scatter ? args_.keys : args_.width;
    const int64_t stride = Base::column_stride(from());
    AnyWord<T, kVector> words[kRows];
    WordOf<T, kVector> content[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t one = row + r * plan_.threads_y;
      if (one >= plan_.rows) continue;
      const Part to = part(place, one);
      const int64_t shift = this->origin_ - one;
      const T* const from_row = place.from + one * from().row_stride;
      const int64_t first = to.column + (parameters_.scatter ? -shift : shift);
      if (!words[r].read(from_row, first, size)) {
        words[r].take([&](int i) {
          const int64_t column = first + i;
          return column >= 0 && column < size ? read_number(from_row + column * stride) : T{};
        });
      }
      if (args_.content.data != nullptr) content[r] = read_content(place, one, to);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t one = row + r * plan_.threads_y;
      if (one >= plan_.rows) continue;
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

  // What is read next.
  POSENC_HD void request_rows(const Place& place, int64_t row) const {
    if constexpr (kVector == 1) return;
    const int64_t size = parameters_.scatter ? args_.keys : args_.width;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t one = row + r * plan_.threads_y, shift = this->origin_ - one;
      const int64_t column = column_ + (parameters_.scatter ? -shift : shift);
      if (one >= plan_.rows || column < 0 || column >= size) continue;
      request(place.from + one * from().row_stride + column);
    }
  }

  POSENC_HD bool has(const Part& part, int i) const {
    return part.column + i >= 0 && part.column + i < columns();
  }

  POSENC_HD WordOf<T, kVector> read_content(const Place& place, int64_t row,
                                            const Part& part) const {
    const T* const from = place.content + row * args_.content.row_stride + part.column - column_;
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

  int64_t first_row_, column_;
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
    return begins_anywhere(parameters, kWide) ? visit(static_cast<ShiftThread<T, kWide>*>(nullptr))
                                              : visit(static_cast<ShiftThread<T, 1>*>(nullptr));
  });
}

}  // namespace posenc::cuda
