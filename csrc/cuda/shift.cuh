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
      const int64_t shift = this->origin_ - one;
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
      const T* const at = row + one * Base::column_stride(from());
      if (one >= 0 && one < size) packet.numbers[i] = read_number(at);
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
