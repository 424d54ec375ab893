// Gather and scatter without an index on a GPU: rows copied to another place in a row. A warp
// copies a row or a part of it, or several short rows.
//
//   row that is written    numbers | zeros | numbers | copied vectors | numbers | zeros | numbers
//   row that is read                       |        whole words         |
//
// A vector is an aligned word of the row that is written. Its numbers are in two neighboring words
// of the row that is read, as many bytes further on for all vectors of a row. So a thread reads two
// words and writes one, or writes zeros. Words that reach beyond a row are neither read nor written
// as a whole: their numbers are copied one by one.
#pragma once

#include <algorithm>

#include "cuda/lookup.cuh"

namespace posenc::cuda {

// Without an index, gather and scatter are the same but for the direction. kVector == 1: all
// numbers are copied one by one, whatever their stride.
template <typename T, int kVector>
class ShiftThread : RelativeThread<T, kVector> {
  using Base = RelativeThread<T, kVector>;
  using Base::args_;
  using Base::column_stride;
  using Base::parameters_;
  using Base::plan_;
  using Base::x_;
  using typename Base::Place;

 public:
  static constexpr int kBlocks = Policy::kShiftBlocksPerProcessor;

  POSENC_HD ShiftThread(const RelativeParameters& parameters, char* /*shared*/, int x, int y, int z)
      : Base(parameters, x, y, z) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    Tile tile(plan_, 1, piece_x, piece_y, x_, this->z_, plan_.turns);
    first_row_ = tile.block_row + this->y_;
    first_vector_ = tile.block_vector;
    tile.vector = 0;  // column 0 is anywhere in the first vector of a row
    Base::begin(tile, from(), to());
  }

  POSENC_HD void stage() {}

  POSENC_HD void write() {
    if (!this->working_) return;
    for (int64_t i = this->first_repetition_; i < plan_.repetitions; i += plan_.repetition_step) {
      const Place place = this->place(i, from(), to());
      for (int tile = 0; tile < plan_.tiles; ++tile) {
        const int64_t row = first_row_ + tile * plan_.threads_y;
        if (row < plan_.rows) copy(part(place, row));
      }
    }
  }

  // Of a row, wherever it begins.
  static int64_t vectors(int64_t columns) {
    return columns == 0 ? 0 : divide_up(columns + kVector - 1, kVector);
  }

 private:
  // The part of a row that a warp copies. Places are counted from its first vector's first number;
  // every range ends before its `end`.
  struct Part {
    T* to;
    const T *from, *content;
    int bytes;                     // that the first vector begins behind a word
    int begin, end;                // numbers that are written
    int read_begin, read_end;      // numbers that the other row has
    int whole_begin, whole_end;    // vectors all of whose numbers are written,
    int filled_begin, filled_end;  // of these: vectors that are not all zeros,
    int copied_begin, copied_end;  // of these: vectors whose two words the other row has
  };

  POSENC_HD const Matrices& from() const {
    return parameters_.scatter ? args_.by_key : args_.by_column;
  }
  POSENC_HD const Matrices& to() const {
    return parameters_.scatter ? args_.by_column : args_.by_key;
  }

  // Numbers that are before it in its word.
  static POSENC_HD int numbers_before(const T* number) {
    return static_cast<int>(reinterpret_cast<uint64_t>(number) / sizeof(T)) & (kVector - 1);
  }
  template <typename Number>
  static POSENC_HD int between(Number number, Number least, Number most) {
    return static_cast<int>(number < least ? least : number > most ? most : number);
  }

  POSENC_HD Part part(const Place& place, int64_t row) const {
    const int64_t columns = parameters_.scatter ? args_.width : args_.keys;
    const int64_t size = parameters_.scatter ? args_.keys : args_.width;
    const int64_t numbers = int64_t{plan_.threads_x} * plan_.turns * kVector;
    Part part;
    T* const to_row = place.to + row * to().row_stride;
    const int64_t column = first_vector_ * kVector - numbers_before(to_row);
    part.to = to_row + column * column_stride(to());
    part.content =
        place.content + row * args_.content.row_stride + column * column_stride(args_.content);
    part.begin = between<int64_t>(-column, 0, kVector);
    part.end = between<int64_t>(columns - column, 0, numbers);
    part.whole_begin = part.begin > 0 ? 1 : 0;
    part.whole_end = part.end < kVector ? part.whole_begin : part.end / kVector;

    // The column of the other row. Beyond the row, it does not matter how far.
    int64_t source = parameters_.scatter ? row - this->origin_ : this->origin_ - row;
    source = source + column;
    source = source < -numbers ? -numbers : source > size ? size : source;
    part.from = place.from + row * from().row_stride + source * column_stride(from());
    part.read_begin = between<int64_t>(-source, -kVector, numbers);
    part.read_end = between<int64_t>(size - source, 0, numbers + 2 * kVector);
    part.filled_begin = between(part.read_begin / kVector, part.whole_begin, part.whole_end);
    part.filled_end =
        between((part.read_end + kVector - 1) / kVector, part.filled_begin, part.whole_end);
    if constexpr (kVector == 1) {
      part.bytes = 0;
      part.copied_begin = part.filled_begin;
      part.copied_end = part.filled_end;
    } else {
      const int before = numbers_before(part.from);
      part.bytes = before * static_cast<int>(sizeof(T));
      part.copied_begin = between((part.read_begin + before + kVector - 1) / kVector,
                                  part.filled_begin, part.filled_end);
      part.copied_end =
          between((part.read_end + before - kVector) / kVector, part.copied_begin, part.filled_end);
    }
    return part;
  }

  POSENC_HD void copy(const Part& part) const {
    if (part.end <= part.begin) return;
    // Vectors last: words take the most registers, and need the least of the part.
    if constexpr (kVector > 1) copy_numbers(part);
    if (parameters_.copies) {
      write_vectors<true>(part);
    } else {
      write_vectors<false>(part);
    }
  }

  template <bool kCopies>
  POSENC_HD void write_vectors(const Part& part) const {
#pragma unroll 1
    for (int side = 0; side < 2; ++side) {
      write_vectors<kCopies, false>(part, side == 0 ? part.whole_begin : part.filled_end,
                                    side == 0 ? part.filled_begin : part.whole_end);
    }
    write_vectors<kCopies, true>(part, part.copied_begin, part.copied_end);
  }

  // The thread's vectors of begin .. end - 1, zeros unless it reads. kCopies: bits as they are.
  template <bool kCopies, bool kReads>
  POSENC_HD void write_vectors(const Part& part, int begin, int end) const {
    constexpr int kAtOnce = kCopies ? Policy::kShiftReads : Policy::kShiftReads / 2;
    constexpr int kStep = kLanes * kVector;
    const bool adds = !kCopies && args_.content.data != nullptr;
    const int64_t from_step = kStep * column_stride(from());
    const int64_t to_step = kStep * column_stride(to());
    const int64_t content_step = kStep * column_stride(args_.content);
    const int first = (begin + x_) * kVector;
    T* to = part.to + first * column_stride(this->to());
    const T* from = part.from + first * column_stride(this->from()) - part.bytes / sizeof(T);
    const T* content = part.content + first * column_stride(args_.content);
#pragma unroll 1
    for (int left = end - begin - x_; left > 0; left -= kAtOnce * kLanes) {
      // Cleared: a register that is not written in all cases would be taken from the beginning on.
      AnyWord<T, kVector> words[kAtOnce];
      WordOf<T, kVector> content_words[kAtOnce] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        words[i].clear(part.bytes);
        if (i * kLanes >= left) continue;
        if constexpr (kReads && kVector == 1) {
          words[i].take([&](int) { return read_number(from + i * from_step); });
        } else if constexpr (kReads) {
          words[i].read_both(from + i * from_step);
        }
        if (adds) content_words[i] = read_word<T, kVector>(content + i * content_step);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i * kLanes >= left) continue;
        auto packet = words[i].numbers();
        if constexpr (!kCopies) packet = scaled<T, kVector>(parameters_, packet, content_words[i]);
        write_packet<T, kVector>(packet, to + i * to_step);
      }
      from += kAtOnce * from_step;
      to += kAtOnce * to_step;
      if (adds) content += kAtOnce * content_step;
    }
  }

  // Those that are in no vector: fewer than a vector's at both ends, at most two vectors' where
  // vectors of zeros and copied ones meet.
  POSENC_HD void copy_numbers(const Part& part) const {
    for (int i = x_; i < 6 * kVector; i += plan_.threads_x) {
      int at, end;
      if (i < kVector) {
        at = part.begin + i;
        end = part.whole_begin * kVector;
      } else if (i < 3 * kVector) {
        at = part.filled_begin * kVector + i - kVector;
        end = part.copied_begin * kVector;
      } else if (i < 5 * kVector) {
        at = part.copied_end * kVector + i - 3 * kVector;
        end = part.filled_end * kVector;
      } else {
        at = part.whole_end * kVector + i - 5 * kVector;
        end = part.end;
      }
      if (at >= end || at >= part.end) continue;
      const bool reads = at >= part.read_begin && at < part.read_end;
      const Packet<T, 1> number{{reads ? read_number(part.from + at) : T{}}};
      WordOf<T, 1> content{};
      if (args_.content.data != nullptr) content = read_word<T, 1>(part.content + at);
      write_packet<T, 1>(scaled<T, 1>(parameters_, number, content), part.to + at);
    }
  }

  int64_t first_row_, first_vector_;
};

// Of arranged arguments. A thread has several vectors of a row if there are enough for all threads.
template <typename Thread>
TilePlan plan_shift(const RelativeParameters& parameters, const Room& room = {}) {
  const RelativeArgs& args = parameters.args;
  const Planes& planes = args.planes;
  const int64_t kept = planes.count(0, parameters.kept);
  TilePlan plan;
  plan.vectors = Thread::vectors(parameters.scatter ? args.width : args.keys);
  plan.rows = args.queries;
  plan.repetitions = planes.count(parameters.kept, planes.rank);
  const int64_t all = plan.vectors * plan.rows * kept * plan.repetitions;
  if (all == 0) return plan;
  plan.threads_x = kLanes;
  while (plan.threads_x / 2 >= plan.vectors) plan.threads_x /= 2;
  plan.threads_y =
      static_cast<int>(std::min<int64_t>(plan.rows, Policy::kThreads / plan.threads_x));
  plan.threads_z = static_cast<int>(std::min<int64_t>(
      {plan.repetitions, Policy::kThreads / plan.threads(), Policy::kMostThreadsZ}));
  const int64_t places = room.blocks(plan.threads());
  const int64_t turns =
      std::min(std::max<int64_t>(all / (places * plan.threads()), 1), Policy::kShiftVectors);
  plan.column_blocks = divide_up(plan.vectors, plan.threads_x * turns);
  plan.turns = static_cast<int>(divide_up(plan.vectors, plan.threads_x * plan.column_blocks));
  cut_rows(plan, 1, kept, places, Policy::kShiftWaves, room.limit);
  return plan;
}

// Whether rows have vectors in memory, and `content` has them at the same columns.
inline bool has_vectors(const RelativeParameters& parameters, int64_t width) {
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
    if (has_vectors(parameters, kWide)) {
      return visit(static_cast<ShiftThread<T, kWide>*>(nullptr));
    }
    return visit(static_cast<ShiftThread<T, 1>*>(nullptr));
  });
}

}  // namespace posenc::cuda
