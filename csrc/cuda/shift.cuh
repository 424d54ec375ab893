// Gather and scatter without an index on a GPU: rows copied from another place in a row.
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
  static constexpr int64_t kWaves = 0;

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
  POSENC_HD const Matrices& from() const {
    return parameters_.scatter ? args_.by_key : args_.by_column;
  }
  POSENC_HD const Matrices& to() const {
    return parameters_.scatter ? args_.by_column : args_.by_key;
  }

  POSENC_HD void copy(const Place& place, int64_t row) const {
    const int64_t size = parameters_.scatter ? args_.keys : args_.width;
    const int64_t stride = Base::column_stride(from());
    AnyWord<T, kVector> words[kRows];
    WordOf<T, kVector> content[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t one = row + r * plan_.threads_y;
      if (one >= plan_.rows) continue;
      const int64_t shift = this->origin_ - one;
      const T* const from_row = place.from + one * from().row_stride;
      const int64_t first = column_ + (parameters_.scatter ? -shift : shift);
      if (!words[r].read(from_row, first, size)) {
        words[r].take([&](int i) {
          const int64_t column = first + i;
          return column >= 0 && column < size ? read_number(from_row + column * stride) : T{};
        });
      }
      if (args_.content.data != nullptr) {
        content[r] = read_word<T, kVector>(place.content + one * args_.content.row_stride);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t one = row + r * plan_.threads_y;
      if (one >= plan_.rows) continue;
      write_scaled<T, kVector>(parameters_, words[r].numbers(), content[r],
                               place.to + one * to().row_stride);
    }
  }

  int64_t first_row_, column_;
};

// Calls visit(thread type) for a call without an index.
template <typename Visit>
auto visit_shift_thread(const RelativeParameters& parameters, const Visit& visit) {
  return visit_type(parameters.args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    return by_vectors(parameters, kWide) ? visit(static_cast<ShiftThread<T, kWide>*>(nullptr))
                                         : visit(static_cast<ShiftThread<T, 1>*>(nullptr));
  });
}

}  // namespace posenc::cuda
