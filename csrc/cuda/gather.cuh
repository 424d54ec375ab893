// Gather with an index on a GPU: what one thread does, and how a launch covers a call that is not
// one for gather_warp.cuh.
//
//   GatherThread   8 rows of a vector's columns at a time. They read kVector + 7 columns of the
//                  index: from row to row the window moves by one, so they stay in registers.
//
// An index of distances is mostly one column, for all that are too far away, or one column after
// the other. A window that is reads a number, or a word, for each row instead of kVector numbers.
#pragma once

#include <type_traits>

#include "cuda/gather_warp.cuh"
#include "cuda/lookup.cuh"

namespace posenc::cuda {

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
  static constexpr int64_t kWaves = Policy::kGatherWaves;
  static_assert(kRows % kVector == 0, "windows of tiles are aligned in shared memory");

  POSENC_HD GatherThread(const RelativeParameters& parameters, char* shared, int x, int y, int z)
      : Base(parameters, x, y, z), index_(reinterpret_cast<Column*>(shared)) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const Tile tile(plan_, kRows, piece_x, piece_y, this->x_, this->z_);
    Base::begin(tile, args_.by_column, args_.by_key);
    block_row_ = tile.block_row;
    first_entry_ =
        this->origin_ + tile.block_vector * kVector - (block_row_ + plan_.block_rows(kRows) - 1);
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
      const Window window = this->window();
      const Column first = window_[0];
      for (int64_t i = this->first_repetition_; i < plan_.repetitions; i += plan_.repetition_step) {
        const Place place = this->place(i, args_.by_column, args_.by_key);
        if (window == Window::kAny) {
          copy(place, row);
        } else {
          copy_run(place, row, first, window);
        }
      }
    }
  }

  // Of a row.
  static int64_t vectors(const RelativeParameters& /*parameters*/, int64_t columns) {
    return columns / kVector;
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
        const auto packet = kept_packet<Column, kVector>(index_ + window_at_ + i);
#pragma unroll
        for (int j = 0; j < kVector; ++j) window_[i + j] = packet.numbers[j];
      }
    }
  }

  enum class Window { kAny, kOne, kNeighbours };

  // Of what rows need of it: all but the last column.
  POSENC_HD Window window() const {
    if constexpr (kVector == 1) return Window::kAny;
    bool one = true, neighbors = window_[0] >= 0;
#pragma unroll
    for (int i = 1; i < kWindow - 1; ++i) {
      one = one && window_[i] == window_[0];
      neighbors = neighbors && window_[i] == window_[0] + i;
    }
    return one ? Window::kOne : neighbors ? Window::kNeighbours : Window::kAny;
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
    const int count = rows_from(row);
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
          if (column >= 0) x[i].numbers[j] = read_number(from + column * step);
        }
        read_content(place, row + r, content[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < count) put(place, row + first + i, x[i], content[i]);
      }
    }
  }

  // Of a window that begins with a column, and is nothing but it or goes on with the next ones.
  POSENC_HD void copy_run(const Place& place, int64_t row, Column first, Window window) const {
    if (window == Window::kOne) return copy_number(place, row, first);
    constexpr int kAtOnce = Policy::kGatherRows;
    const int count = rows_from(row);
#pragma unroll 1
    for (int r = 0; r < count; r += kAtOnce) {
      AnyWord<T, kVector> x[kAtOnce];
      WordOf<T, kVector> content[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (r + i >= count) continue;
        const T* const from = place.from + (row + r + i) * args_.by_column.row_stride;
        const Column column = first + kRows - 1 - r - i;
        if (!x[i].read(from, column, args_.width)) {
          x[i].take([&](int j) { return read_number(from + column + j); });
        }
        read_content(place, row + r + i, content[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (r + i < count) put(place, row + r + i, x[i].numbers(), content[i]);
      }
    }
  }

  // A number of each row.
  POSENC_HD void copy_number(const Place& place, int64_t row, Column column) const {
    constexpr int kAtOnce = 4, kContents = Policy::kGatherRows;
    const int count = rows_from(row);
#pragma unroll 1
    for (int r = 0; r < count; r += kAtOnce) {
      T numbers[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const T* const from = place.from + (row + r + i) * args_.by_column.row_stride;
        numbers[i] = r + i >= count || column < 0 ? T{} : read_number(from + column);
      }
#pragma unroll
      for (int first = 0; first < kAtOnce; first += kContents) {
        WordOf<T, kVector> content[kContents];
#pragma unroll
        for (int i = 0; i < kContents; ++i) {
          if (r + first + i < count) read_content(place, row + r + first + i, content[i]);
        }
#pragma unroll
        for (int i = 0; i < kContents; ++i) {
          if (r + first + i >= count) continue;
          Packet<T, kVector> x;
#pragma unroll
          for (int j = 0; j < kVector; ++j) x.numbers[j] = numbers[first + i];
          put(place, row + r + first + i, x, content[i]);
        }
      }
    }
  }

  POSENC_HD int rows_from(int64_t row) const {
    return plan_.rows - row < kRows ? static_cast<int>(plan_.rows - row) : kRows;
  }
  POSENC_HD void read_content(const Place& place, int64_t row, WordOf<T, kVector>& word) const {
    if (args_.content.data == nullptr) return;
    word = read_word<T, kVector>(place.content + row * args_.content.row_stride);
  }
  POSENC_HD void put(const Place& place, int64_t row, const Packet<T, kVector>& x,
                     const WordOf<T, kVector>& content) const {
    write_packet<T, kVector>(scaled<T, kVector>(parameters_, x, content),
                             place.to + row * args_.by_key.row_stride);
  }

  Column* const index_;
  int64_t block_row_, first_entry_;
  int window_at_;
  Column window_[kWindow];
};

// Calls by_warps(thread type) or by_tiles(thread type) for a call with an index.
template <typename ByWarps, typename ByTiles>
auto visit_gather_thread(const RelativeParameters& parameters, const ByWarps& by_warps,
                         const ByTiles& by_tiles) {
  return visit_type(parameters.args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    using Warp = GatherWarpThread<T, kWide>;
    if (takes_warps<Warp>(parameters)) return by_warps(static_cast<Warp*>(nullptr));
    return by_vectors(parameters, kWide) && parameters.args.width <= INT32_MAX
               ? by_tiles(static_cast<GatherThread<T, kWide>*>(nullptr))
               : by_tiles(static_cast<GatherThread<T, 1>*>(nullptr));
  });
}

}  // namespace posenc::cuda
