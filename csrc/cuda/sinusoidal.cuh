// Tables of sines and cosines on a GPU, written or added to x: what one thread does, and how a
// launch covers a call. Plain C++ as well, which tests run on the host (on_host/).
//
//   block     some vectors of a row (x), some rows (y)
//
//   1. frequencies  in turns, in shared memory       once a block
//      positions    likewise, where they are whole numbers, one for all pairs
//   2. steps        of tables in 16-bit formats (phase.h): their sines and cosines, likewise
//   3. rows         a thread goes through its rows: position, sines and cosines, x, result; where
//                   all axes but the last only repeat the positions, through the repetitions of
//                   each, reading some before it writes the first. In 16-bit formats its rows are
//                   neighbors, and those of one anchor turn its sines and cosines
//
//   a thread's vector of a row:
//     kInterleaved     s0 c0 s1 c1 ...       kVector / 2 pairs in one access
//     otherwise        s0 s1 s2 s3 ...       kVector pairs in two accesses: c0 c1 ... lie elsewhere
//   kVector == 1 is the way for whatever is not aligned, not contiguous or not a multiple.
#pragma once

#include <algorithm>

#include "core/frequency.h"
#include "core/sinusoidal.h"
#include "core/visit_type.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/room.h"

namespace posenc::cuda {

// Pieces are along rows (x), and along the vectors of a row and the repetitions (y).
struct SinusoidalPlan : LaunchPlan {
  int64_t vectors = 0;      // of a row
  int64_t repetitions = 1;  // of the positions
  int64_t rows_per_thread = 1;
  int64_t vector_blocks = 0;
  int64_t repetition_blocks = 1;
  bool plain = false;  // see plain: positions are in shared memory
  bool steps = false;  // are too

  POSENC_HD int block_rows() const { return threads_y * static_cast<int>(rows_per_thread); }
};

struct SinusoidalParameters {
  SinusoidalArgs args;
  GeometricTurns turns;  // where args.inv_freq has no data
  SinusoidalPlan plan;
};
// What a launch could always take. 32 KiB need newer drivers.
static_assert(sizeof(SinusoidalParameters) <= 4096, "kernel parameters");

// Rows have one stride, positions are integers, and the same for all pairs.
POSENC_HD inline bool plain(const SinusoidalArgs& args) {
  return (args.rank == 1 || args.repeated) && args.positions.integers() &&
         args.axis_map.data == nullptr;
}

// The thread (x, y) of a block, at its work on one of the pieces that the grid consists of.
template <typename T, int kVector, bool kInterleaved, bool kAdd>
class SinusoidalThread {
  using Number = Real<T>;

 public:
  static constexpr int kBlocks =
      kAdd ? Policy::kBlocksPerProcessor : Policy::kTableBlocksPerProcessor;
  static constexpr int kPairs = kInterleaved ? kVector / 2 : kVector;
  static constexpr bool kHalf = !std::is_same_v<T, Number>;

  POSENC_HD SinusoidalThread(const SinusoidalParameters& parameters, char* shared, int x, int y)
      : parameters_(parameters),
        args_(parameters.args),
        plan_(parameters.plan),
        turns_(reinterpret_cast<Turns*>(shared)),
        positions_(reinterpret_cast<int64_t*>(turns_ + kPairs * plan_.threads_x)),
        steps_(
            reinterpret_cast<SinCos<float>*>(positions_ + (plan_.plain ? plan_.block_rows() : 0))),
        x_(x),
        y_(y) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    first_repetition_ = divide(piece_y, plan_.vector_blocks);
    first_vector_ = (piece_y - first_repetition_ * plan_.vector_blocks) * plan_.threads_x;
    block_row_ = piece_x * plan_.block_rows();
    const int64_t left = args_.rows() - block_row_;
    block_rows_ = left < plan_.block_rows() ? static_cast<int>(left) : plan_.block_rows();
  }

  // Each for all threads, of rows that one of them looks up.
  POSENC_HD void positions() {
    if (!plan_.plain || adds_phases()) return;
    const int64_t stride = args_.position_strides[row_axis()];
    for (int i = y_ * plan_.threads_x + x_; i < block_rows_; i += plan_.threads()) {
      positions_[i] = args_.positions.at((block_row_ + i) * stride).integer;
    }
  }

  POSENC_HD void frequencies() {
    // Shared memory lies as threads read it, each its own pairs: neighbors side by side.
    for (int i = y_; i < kPairs; i += plan_.threads_y) {
      if (first_vector_ + x_ >= plan_.vectors) continue;
      const int64_t pair = first_pair() + i;
      turns_[i * plan_.threads_x + x_] = args_.inv_freq.data != nullptr
                                             ? args_.inv_freq.turns(0, 0, pair)
                                             : parameters_.turns[pair];
    }
  }

  // Once all frequencies are there.
  POSENC_HD void steps() {
    if constexpr (kHalf) {
      if (!plan_.steps || first_vector_ + x_ >= plan_.vectors) return;
      for (int i = y_; i < static_cast<int>(kSteps) * kPairs; i += plan_.threads_y) {
        const Position step{i / kPairs, 0};
        steps_[i * plan_.threads_x + x_] =
            sincos<float>(phase(step, turns_[i % kPairs * plan_.threads_x + x_]));
      }
    }
  }

  POSENC_HD void rows() {
    if (first_vector_ + x_ >= plan_.vectors) return;
    // Tables are bound by arithmetic: whatever most calls can do without is decided here, once.
    if (plan_.plain) {
      plain_rows();
    } else {
      any_rows();
    }
  }

 private:
  // Offsets of a row, in elements.
  struct Row {
    int64_t position, sine, cosine, x;
  };
  // The numbers of x where the vector is, as they are read.
  struct Words {
    WordOf<T, kVector> sine, cosine;  // interleaved, the first holds both
  };
  // Repetitions of a row that are read before the first is written.
  static constexpr int kReads = kInterleaved ? Policy::kSumWords : Policy::kSumWords / 2;

  // `index` steps along one axis.
  POSENC_HD Row along(int axis, int64_t index) const {
    return {index * args_.position_strides[axis], index * args_.sine_strides[axis],
            index * args_.cosine_strides[axis], kAdd ? index * args_.x_strides[axis] : 0};
  }

  static POSENC_HD void add(Row& row, const Row& more) {
    row.position += more.position;
    row.sine += more.sine;
    row.cosine += more.cosine;
    row.x += more.x;
  }

  // The angles of an anchor, which the next row may share.
  struct Anchor {
    int64_t integer = 1;  // none
    Number sine[kPairs], cosine[kPairs];
  };

  // In C order over all axes.
  POSENC_HD Row row_at(int64_t index) const {
    if (args_.rank == 0) return {0, 0, 0, 0};
    Row row{0, 0, 0, 0};
    for (int axis = args_.rank - 1; axis > 0; --axis) {
      const int64_t outer = divide(index, args_.shape[axis]);
      add(row, along(axis, index - outer * args_.shape[axis]));
      index = outer;
    }
    add(row, along(0, index));
    return row;
  }

  // The axis along which rows have positions of their own, where it is the only one.
  POSENC_HD int row_axis() const { return args_.repeated ? 1 : 0; }

  // A thread's rows of a block: the first one, and from one to the next.
  POSENC_HD int first_row() const {
    return y_ * (kHalf ? static_cast<int>(plan_.rows_per_thread) : 1);
  }
  POSENC_HD int row_step() const { return kHalf ? 1 : plan_.threads_y; }

  // Positions that nobody gave are as far apart as rows are: what their phases differ by is added.
  POSENC_HD bool adds_phases() const { return !kHalf && args_.positions.data == nullptr; }

  POSENC_HD void any_rows() const {
    int index = first_row();
    for (int i = 0; i < plan_.rows_per_thread && index < block_rows_; ++i, index += row_step()) {
      const Row row = args_.repeated ? along(1, block_row_ + index) : row_at(block_row_ + index);
      // Before x is: its words would hold registers meanwhile.
      uint64_t phases[kPairs];
      int steps[kPairs];
      read_phases(row.position, phases, steps);
      one_row(row, [&](Number(&sine)[kPairs], Number(&cosine)[kPairs]) {
        angles(phases, steps, sine, cosine);
      });
    }
  }

  POSENC_HD void plain_rows() const {
    int index = first_row();
    Row row = along(row_axis(), block_row_ + index);
    const Row next = along(row_axis(), row_step());
    [[maybe_unused]] Anchor anchor;
    const bool added = adds_phases();
    uint64_t phases[kPairs], turns[kPairs];
    if constexpr (!kHalf) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        turns[i] = this->turns(i).fraction;
        phases[i] = static_cast<uint64_t>(row.position + args_.positions.first) * turns[i];
        if (added) turns[i] *= static_cast<uint64_t>(next.position);
      }
    }
    for (int i = 0; i < plan_.rows_per_thread && index < block_rows_; ++i, index += row_step()) {
      one_row(row, [&](Number(&sine)[kPairs], Number(&cosine)[kPairs]) {
        if constexpr (kHalf) {
          turn_anchor(positions_[index], anchor, sine, cosine);
        } else {
#pragma unroll
          for (int j = 0; j < kPairs; ++j) {
            if (!added) phases[j] = static_cast<uint64_t>(positions_[index]) * turns[j];
          }
          sines_of(phases, sine, cosine);
#pragma unroll
          for (int j = 0; j < kPairs; ++j) phases[j] += turns[j];
        }
      });
      add(row, next);
    }
  }

  // With the sines and cosines that angles(sine, cosine) gives.
  template <typename Angles>
  POSENC_HD void one_row(const Row& row, const Angles& angles) const {
    Number sine[kPairs], cosine[kPairs];
    if constexpr (!kAdd) {
      angles(sine, cosine);
      write(row, {}, sine, cosine);
      return;
    }
    // Angles are computed while the first words arrive.
    Words words[kReads];
    read(row, first_repetition_, words);
    angles(sine, cosine);
    for (int64_t i = first_repetition_; i < plan_.repetitions;) {
      request_words(row, i + kReads * plan_.repetition_blocks);
#pragma unroll
      for (int j = 0; j < kReads; ++j) {
        const int64_t one = i + j * plan_.repetition_blocks;
        if (one < plan_.repetitions) write(repetition(row, one), words[j], sine, cosine);
      }
      i += kReads * plan_.repetition_blocks;
      read(row, i, words);
    }
  }

  POSENC_HD void read(const Row& row, int64_t first, Words (&words)[kReads]) const {
#pragma unroll
    for (int j = 0; j < kReads; ++j) {
      const int64_t one = first + j * plan_.repetition_blocks;
      if (one < plan_.repetitions) words[j] = read(repetition(row, one));
    }
  }

  // What is read next.
  POSENC_HD void request_words(const Row& row, int64_t first) const {
#pragma unroll
    for (int j = 0; j < kReads; ++j) {
      const int64_t one = first + j * plan_.repetition_blocks;
      if (one >= plan_.repetitions) continue;
      const int64_t at = repetition(row, one).x + along_row(args_.x_step);
      request(static_cast<const T*>(args_.x_sine) + at);
      if constexpr (!kInterleaved) request(static_cast<const T*>(args_.x_cosine) + at);
    }
  }

  POSENC_HD Row repetition(Row row, int64_t index) const {
    if (args_.repeated) add(row, along(0, index));
    return row;
  }

  POSENC_HD int64_t first_pair() const { return (first_vector_ + x_) * kPairs; }

  // Of any positions, those from `offset` on: phases, and of 16-bit formats the steps to turn by.
  POSENC_HD void read_phases(int64_t offset, uint64_t (&phases)[kPairs],
                             int (&steps)[kPairs]) const {
    const bool by_axis = args_.axis_map.data != nullptr;
    Position position{0, 0};
    if (!by_axis) position = args_.positions.in_place_at(offset);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (by_axis) {
        const int64_t axis = args_.axis_map.clamped(first_pair() + i);
        position = args_.positions.in_place_at(offset + axis * args_.positions.axis_stride);
      }
      phases[i] = phase(kHalf ? anchor_of(position) : position, turns(i));
      steps[i] = kHalf ? static_cast<int>(step_of(position)) : 0;
    }
  }
  POSENC_HD void angles(const uint64_t (&phases)[kPairs], const int (&steps)[kPairs],
                        Number (&sine)[kPairs], Number (&cosine)[kPairs]) const {
    sines_of(phases, sine, cosine);
    if constexpr (kHalf) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        turn_by(sincos<float>(phase({steps[i], 0}, turns(i))), sine[i], cosine[i]);
      }
    }
  }

  POSENC_HD const Turns& turns(int i) const { return turns_[i * plan_.threads_x + x_]; }

  POSENC_HD void sines_of(const uint64_t (&phases)[kPairs], Number (&sine)[kPairs],
                          Number (&cosine)[kPairs]) const {
    const Number scale = static_cast<Number>(args_.scale);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const SinCos<Number> angle = sincos<Number>(phases[i]);
      sine[i] = angle.sine * scale;
      cosine[i] = angle.cosine * scale;
    }
  }

  static POSENC_HD void turn_by(SinCos<float> step, float& sine, float& cosine) {
    const SinCos<float> turned = turn({sine, cosine}, step);
    sine = turned.sine;
    cosine = turned.cosine;
  }

  POSENC_HD void turn_anchor(int64_t position, Anchor& anchor, Number (&sine)[kPairs],
                             Number (&cosine)[kPairs]) const {
    const int step = static_cast<int>(step_of({position, 0}));
    if (position - step != anchor.integer) {
      anchor.integer = position - step;
      uint64_t phases[kPairs];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        phases[i] = static_cast<uint64_t>(anchor.integer) * turns(i).fraction;
      }
      sines_of(phases, anchor.sine, anchor.cosine);
    }
    const SinCos<float>* const from = steps_ + step * kPairs * plan_.threads_x + x_;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      sine[i] = anchor.sine[i];
      cosine[i] = anchor.cosine[i];
      turn_by(plan_.steps ? from[i * plan_.threads_x] : sincos<float>(phase({step, 0}, turns(i))),
              sine[i], cosine[i]);
    }
  }

  // From the beginning of a row to the vector: neighbors, but on the way of single numbers.
  POSENC_HD int64_t along_row(int64_t step) const {
    return first_pair() * (kInterleaved ? 2 : kVector == 1 ? step : 1);
  }

  POSENC_HD Words read(const Row& row) const {
    const int64_t at = row.x + along_row(args_.x_step);
    Words words;
    words.sine = read_word<T, kVector>(static_cast<const T*>(args_.x_sine) + at);
    if constexpr (!kInterleaved) {
      words.cosine = read_word<T, kVector>(static_cast<const T*>(args_.x_cosine) + at);
    }
    return words;
  }

  POSENC_HD void write(const Row& row, const Words& words, const Number (&sine)[kPairs],
                       const Number (&cosine)[kPairs]) const {
    T* const to_sine = static_cast<T*>(args_.sine) + row.sine + along_row(args_.sine_step);
    if constexpr (kInterleaved) {
      Number both[kVector];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        both[2 * i] = sine[i];
        both[2 * i + 1] = cosine[i];
      }
      write_sum(words.sine, both, to_sine);
    } else {
      T* const to_cosine =
          static_cast<T*>(args_.cosine) + row.cosine + along_row(args_.cosine_step);
      write_sum(words.sine, sine, to_sine);
      write_sum(words.cosine, cosine, to_cosine);
    }
  }

  POSENC_HD void write_sum(const WordOf<T, kVector>& word, const Number (&table)[kVector],
                           T* to) const {
    Number values[kVector];
    [[maybe_unused]] const Number x_scale = static_cast<Number>(args_.x_scale);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = table[i];
      if constexpr (kAdd) {
        values[i] = multiply_add(real_of<T, kVector>(word, i), x_scale, values[i]);
      }
    }
    write_packet<T, kVector>(round_packet<T, kVector>(values), to);
  }

  const SinusoidalParameters& parameters_;
  const SinusoidalArgs& args_;
  const SinusoidalPlan& plan_;
  Turns* const turns_;          // [kPairs, threads_x]
  int64_t* const positions_;    // [rows of the block]
  SinCos<float>* const steps_;  // [kSteps, kPairs, threads_x]
  const int x_, y_;
  int64_t first_vector_, first_repetition_;
  int64_t block_row_;  // the first of the block,
  int block_rows_;     // and how many it has
};

// ---------------------------------------------------------------------------------------------
// On the host: which thread, how many of them

// Whether every access of `width` numbers is aligned and neighbors only neighbors.
inline bool fits(const SinusoidalArgs& args, int width, bool interleaved) {
  const bool add = args.x_sine != nullptr;
  const int64_t step = interleaved ? 2 : 1;
  if (interleaved && !args.interleaved) return false;
  if (args.sine_step != step || args.cosine_step != step || (add && args.x_step != step)) {
    return false;
  }
  int64_t multiples = args.pairs * step;
  for (int i = 0; i < args.rank; ++i) {
    if (args.shape[i] == 1) continue;
    multiples |= args.sine_strides[i] | args.cosine_strides[i];
    if (add) multiples |= args.x_strides[i];
  }
  const int64_t bytes = width * item_size(args.dtype);
  const auto aligned = [&](const void* data) {
    return reinterpret_cast<int64_t>(data) % bytes == 0;
  };
  // Interleaved, the cosines are the neighbors of the sines; without x their pointers are null.
  return multiples % width == 0 && aligned(args.sine) && aligned(args.x_sine) &&
         (interleaved || (aligned(args.cosine) && aligned(args.x_cosine)));
}

// Calls visit(thread type) for the widest access that fits.
template <typename T, bool kAdd, typename Visit>
auto visit_sinusoidal_thread(const SinusoidalArgs& args, const Visit& visit) {
  constexpr int kWide = 16 / sizeof(T);
  if (fits(args, kWide, true)) {
    return visit(static_cast<SinusoidalThread<T, kWide, true, kAdd>*>(nullptr));
  }
  // A vector has twice the pairs where they are apart: of 16 bits alone, half a word leaves room
  // for more threads.
  constexpr int kApart = kAdd ? kWide : std::min(kWide, 4);
  if (fits(args, kApart, false)) {
    return visit(static_cast<SinusoidalThread<T, kApart, false, kAdd>*>(nullptr));
  }
  return visit(static_cast<SinusoidalThread<T, 1, false, kAdd>*>(nullptr));
}

template <typename Visit>
auto visit_sinusoidal_thread(const SinusoidalArgs& args, const Visit& visit) {
  return visit_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    return args.x_sine != nullptr ? visit_sinusoidal_thread<T, true>(args, visit)
                                  : visit_sinusoidal_thread<T, false>(args, visit);
  });
}

// The same rows with as few axes as their strides allow, for fewer divisions. Repeated rows have
// two afterwards, that of the repetitions and that of the positions; with more they count as any
// others.
inline void merge_axes(SinusoidalArgs& args) {
  // The last axis of repeated rows is that of the positions and stays by itself.
  const int count = args.repeated ? args.rank - 1 : args.rank;
  int kept = 0;
  const auto move = [&](int from, int to) {
    args.shape[to] = args.shape[from];
    args.position_strides[to] = args.position_strides[from];
    args.sine_strides[to] = args.sine_strides[from];
    args.cosine_strides[to] = args.cosine_strides[from];
    args.x_strides[to] = args.x_strides[from];
  };
  for (int i = 0; i < count; ++i) {
    const int64_t size = args.shape[i];
    const auto nested = [&](const int64_t* strides) {
      return strides[kept - 1] == strides[i] * size;
    };
    if (kept > 0 && nested(args.position_strides) && nested(args.sine_strides) &&
        nested(args.cosine_strides) && nested(args.x_strides)) {
      const int64_t outer = args.shape[kept - 1];
      move(i, kept - 1);
      args.shape[kept - 1] = outer * size;
    } else {
      move(i, kept++);
    }
  }
  if (args.repeated) {
    move(args.rank - 1, kept++);
    args.repeated = kept == 2;
  }
  args.rank = kept;
}

template <typename Thread>
SinusoidalPlan plan_sinusoidal(const SinusoidalArgs& args, const Room& room = {}) {
  SinusoidalPlan plan;
  const int64_t rows = args.rows();
  plan.vectors = args.pairs / Thread::kPairs;
  if (rows == 0 || plan.vectors == 0) return plan;
  plan.repetitions = args.positions_count() / rows;
  const auto clamp = [](int64_t value, int64_t least, int64_t most) {
    return std::max(least, std::min(value, most));
  };
  // With their steps, pairs take five times the shared memory.
  constexpr int64_t kBytes =
      Thread::kPairs * (sizeof(Turns) + (Thread::kHalf ? kSteps * sizeof(SinCos<float>) : 0));
  constexpr int64_t kMost = kBytes * Policy::kRowVectors > Policy::kSharedBytes
                                ? Policy::kRowVectors / 2
                                : Policy::kRowVectors;
  constexpr int64_t kPositionBytes = Policy::kThreads * Policy::kRows * sizeof(int64_t);
  static_assert(kPositionBytes + kBytes <= Policy::kSharedBytes &&
                    kPositionBytes / kMost + kBytes * kMost <= Policy::kSharedBytes,
                "shared memory: of one vector, or of as many as there may be");
  plan.threads_x = static_cast<int>(clamp(plan.vectors, 1, kMost));
  plan.vector_blocks = divide_up(plan.vectors, plan.threads_x);
  plan.threads_y = static_cast<int>(clamp(Policy::kThreads / plan.threads_x, 1, rows));
  const int64_t places = room.blocks(plan.threads(), plan.threads_x * kBytes);
  plan.rows_per_thread =
      units_of_piece(plan.vector_blocks, divide_up(rows, plan.threads_y), Policy::kRows, places);
  const int64_t pieces_x = divide_up(rows, plan.threads_y * plan.rows_per_thread);
  const int64_t each =
      units_of_piece(pieces_x * plan.vector_blocks, plan.repetitions, plan.repetitions, places);
  plan.repetition_blocks = divide_up(plan.repetitions, each);
  plan.take_pieces(pieces_x, plan.vector_blocks * plan.repetition_blocks, room.limit);
  plan.plain = plain(args);
  // For fewer rows it is more to make all steps than the one that each needs.
  plan.steps = Thread::kHalf && plan.plain && plan.block_rows() >= 2 * kSteps;
  plan.shared_bytes = static_cast<size_t>(plan.threads_x) * Thread::kPairs *
                          (sizeof(Turns) + (plan.steps ? kSteps * sizeof(SinCos<float>) : 0)) +
                      (plan.plain ? plan.block_rows() * sizeof(int64_t) : 0);
  return plan;
}

// Of the pairs first .. first + count - 1. A thread keeps the last ones, as on the CPU.
inline const GeometricTurns& formula_turns(const SinusoidalSpec& spec, int64_t first,
                                           int64_t count) {
  static thread_local SinusoidalSpec last;  // of dim 0
  static thread_local int64_t last_first = 0;
  static thread_local GeometricTurns turns;
  if (!spec.same_frequencies(last) || first != last_first) {
    turns = GeometricTurns(spec.dim / 2, spec.base, spec.shift, spec.scale, first, count);
    last = spec;
    last.layout = {};  // the caller's memory
    last_first = first;
  }
  return turns;
}

// Calls visit(parameters without a plan, thread type) for each launch of a call: one, but for
// tables from a formula that are wider than GeometricTurns can be.
template <typename Visit>
void for_each_sinusoidal_launch(const SinusoidalArgs& args, const Visit& visit) {
  if (args.positions_count() == 0) return;
  const bool formula = args.inv_freq.data == nullptr;
  const int64_t most = formula ? GeometricTurns::kMaxPairs : args.pairs;
  const int64_t size = item_size(args.dtype);
  for (int64_t first = 0; first < args.pairs; first += most) {
    SinusoidalParameters parameters;
    SinusoidalArgs& part = parameters.args;
    part = args;
    merge_axes(part);
    part.pairs = std::min(most, args.pairs - first);
    const auto skip = [&](auto* data, int64_t step) {
      using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>,
                                      const char, char>;
      return data == nullptr ? nullptr : static_cast<Byte*>(data) + first * step * size;
    };
    part.sine = skip(args.sine, args.sine_step);
    part.cosine = skip(args.cosine, args.cosine_step);
    part.x_sine = skip(args.x_sine, args.x_step);
    part.x_cosine = skip(args.x_cosine, args.x_step);
    if (formula) parameters.turns = formula_turns(args.spec, first, part.pairs);
    const bool go_on =
        visit_sinusoidal_thread(part, [&](auto* thread) { return visit(parameters, thread); });
    if (!go_on) return;
  }
}

}  // namespace posenc::cuda
