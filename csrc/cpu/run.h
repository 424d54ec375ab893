// A whole call on the CPU, from checked arguments to kernels: what both bindings share. They differ
// in the Runner, which has the rows done: runner(rows, bytes, run) calls run(begin, end) for ranges
// that together are 0 .. rows; `bytes` is what they read and write, or would in the same time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/lookup.h"
#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "core/toeplitz.h"
#include "cpu/kernels.h"

namespace posenc::cpu {

// The frequencies of a formula. A thread keeps its last ones: decoding asks for the same in every
// step, and they take longer than a row of the table.
inline Frequencies formula_frequencies(const SinusoidalSpec& spec) {
  static thread_local SinusoidalSpec last;  // of dim 0: no frequencies
  static thread_local std::vector<uint64_t> turns;
  const size_t pairs = static_cast<size_t>(spec.dim / 2);
  if (!spec.same_frequencies(last)) {
    last = {};
    turns.resize(2 * pairs);
    turns_from_spec(spec, turns.data(), turns.data() + pairs);
    last = spec;
    last.layout = {};  // the caller's memory
  }
  return {turns.data(), turns.data() + pairs};
}

// inv_freq in turns. A thread keeps the last few, for the layers of a model, with the numbers they
// were made of, for the same reason: to compare takes a tenth of what converting does. By what they
// are and not by where they lie: memory changes hands.
class ConvertedFrequencies {
 public:
  static Frequencies of(const InverseFrequencies& inv_freq, int64_t pairs) {
    static thread_local ConvertedFrequencies kept[4];
    static thread_local unsigned oldest = 0;
    for (const ConvertedFrequencies& one : kept) {
      if (one.same(inv_freq, pairs)) return one.frequencies();
    }
    ConvertedFrequencies& one = kept[oldest];
    oldest = (oldest + 1) % 4;
    one.convert(inv_freq, pairs);
    return one.frequencies();
  }

 private:
  template <typename Visit>
  static bool for_each_row(const InverseFrequencies& inv_freq, const Visit& visit) {
    for (int64_t head = 0; head < inv_freq.heads; ++head) {
      for (int64_t term = 0; term < inv_freq.terms(); ++term) {
        if (!visit(term, head)) return false;
      }
    }
    return true;
  }

  bool same(const InverseFrequencies& inv_freq, int64_t pairs) const {
    if (shape_[0] != inv_freq.heads || shape_[1] != inv_freq.terms() || shape_[2] != pairs) {
      return false;
    }
    return inv_freq.dtype == Dtype::kFloat32 ? same_as<float>(inv_freq, pairs)
                                             : same_as<double>(inv_freq, pairs);
  }

  template <typename Real>
  bool same_as(const InverseFrequencies& inv_freq, int64_t pairs) const {
    const double* radians = radians_.data();
    return for_each_row(inv_freq, [&](int64_t term, int64_t head) {
      const Real* row = static_cast<const Real*>(inv_freq.data) + inv_freq.offset(term, head, 0);
      bool equal = true;  // to the end of the row: no branch for each
      for (int64_t pair = 0; pair < pairs; ++pair) {
        equal &= *radians++ == static_cast<double>(row[pair * inv_freq.stride]);
      }
      return equal;
    });
  }

  void convert(const InverseFrequencies& inv_freq, int64_t pairs) {
    shape_[0] = -1;  // nothing, should there be no memory
    const auto count = static_cast<size_t>(inv_freq.heads * inv_freq.terms() * pairs);
    radians_.resize(count);
    turns_.resize(2 * count);
    double* radians = radians_.data();
    for_each_row(inv_freq, [&](int64_t term, int64_t head) {
      for (int64_t pair = 0; pair < pairs; ++pair) {
        *radians++ = inv_freq.radians(term, head, pair);
      }
      return true;
    });
    turns_from_frequencies(inv_freq, pairs, turns_.data(), turns_.data() + count);
    shape_[0] = inv_freq.heads;
    shape_[1] = inv_freq.terms();
    shape_[2] = pairs;
  }

  Frequencies frequencies() const { return {turns_.data(), turns_.data() + radians_.size()}; }

  int64_t shape_[3] = {-1, 0, 0};  // heads, terms, pairs
  std::vector<double> radians_;
  std::vector<uint64_t> turns_;
};

template <typename Runner>
void write_sinusoidal(SinusoidalArgs args, const Runner& runner) {
  args.frequencies = args.inv_freq.data != nullptr
                         ? ConvertedFrequencies::of(args.inv_freq, args.pairs)
                         : formula_frequencies(args.spec);
  const int64_t bytes = args.positions_count() * args.pairs * 2 * item_size(args.dtype);
  args.non_temporal = bytes >= non_temporal_bytes();
  if (bytes == 0) return;
  // To compute a sine takes as long as to read one.
  runner(args.rows(), 2 * bytes, [&](int64_t begin, int64_t end) { sinusoidal(args, begin, end); });
}

template <typename Runner>
void rotate(RotaryArgs args, const Runner& runner) {
  if (args.inv_freq.data != nullptr) {
    args.frequencies = ConvertedFrequencies::of(args.inv_freq, args.pairs);
  }
  int64_t heads = 0;
  for (int i = 0; i < args.tensor_count; ++i) heads += args.tensors[i].heads;
  const int64_t bytes = args.rows() * heads * args.head_dim * item_size(args.dtype);
  args.non_temporal = bytes >= non_temporal_bytes();
  if (bytes == 0) return;
  runner(args.rows(), 2 * bytes, [&](int64_t begin, int64_t end) {
    args.for_each_frequencies([&](const RotaryArgs& part) { rotary(part, begin, end); });
  });
}

// The sums of all pieces are left in those of the first one.
template <typename Runner>
void rotate_back(RotaryGradientArgs args, const Runner& runner) {
  RotaryArgs& turned = args.turned;
  const InverseFrequencies& inv_freq = turned.inv_freq;
  const int64_t count = args.frequency_count();
  turned.frequencies = ConvertedFrequencies::of(inv_freq, turned.pairs);
  std::vector<double> radians;
  for (int64_t term = 0; term < inv_freq.terms(); ++term) {
    for (int64_t head = 0; head < inv_freq.heads; ++head) {
      for (int64_t pair = 0; pair < turned.pairs; ++pair) {
        radians.push_back(inv_freq.radians(term, head, pair));
      }
    }
  }
  args.radians = radians.data();
  int64_t heads = 0;
  for (int i = 0; i < turned.tensor_count; ++i) heads += turned.tensors[i].heads;
  const int64_t bytes = turned.rows() * heads * turned.head_dim * item_size(turned.dtype);
  if (bytes == 0) return;
  runner(args.pieces(), 3 * bytes,
         [&](int64_t begin, int64_t end) { rotary_gradient(args, begin, end); });
  for (int64_t piece = 1; piece < args.pieces(); ++piece) {
    for (int64_t i = 0; i < count; ++i) {
      args.frequency_sums[i] += args.frequency_sums[piece * count + i];
    }
  }
}

inline int64_t matrix_bytes(const ToeplitzArgs& args) {
  return args.kept_count() * args.repetitions() * args.query_count() * args.key_count() *
         item_size(args.dtype);
}

template <typename Runner>
void lay_diagonals(ToeplitzArgs args, const Runner& runner) {
  const int64_t bytes = matrix_bytes(args);
  args.non_temporal = bytes >= non_temporal_bytes();
  if (bytes == 0) return;
  runner(args.kept_count() * args.query_count(), bytes * (args.in.data != nullptr ? 2 : 1),
         [&](int64_t begin, int64_t end) { toeplitz(args, begin, end); });
}

template <typename Runner>
void sum_diagonals(const ToeplitzArgs& args, const Runner& runner) {
  // Diagonals without an element have sums too: bytes may be 0.
  runner(diagonal_sum_pieces(args), matrix_bytes(args),
         [&](int64_t begin, int64_t end) { diagonal_sums(args, begin, end); });
}

// The index of a call in stretches; of it what the call reads. A thread keeps the memory.
class IndexRuns {
 public:
  explicit IndexRuns(const RelativeArgs& args) : runs_(kept_runs()), columns_(kept_columns()) {
    runs_.clear();
    if (args.index.data == nullptr) {
      constexpr int64_t kFar = int64_t{1} << 62;
      runs_.push_back({-kFar, kFar, -1, 0});
      runs_.push_back({0, args.width, 0, 1});
      runs_.push_back({args.width, kFar, -1, 0});
      return;
    }
    int64_t first = 0, last = args.entries;
    if (args.q_offset.data == nullptr) {  // else windows may begin anywhere
      first = args.origin - (args.queries - 1);
      last = args.origin + args.keys;
    }
    if (first >= last || args.queries == 0 || args.keys == 0) return;
    if (args.width > std::numeric_limits<int32_t>::max()) {
      // Such columns are not looked up: their runs stay as short as they are.
      find(first, last, 1, [&](int64_t entry) { return args.index[entry]; });
      return;
    }
    read(args.index, first, last);
    const int32_t* const columns = columns_.data();
    find(first, last, kShortRun, [=](int64_t entry) { return int64_t{columns[entry - first]}; });
  }

  void give_to(RelativeArgs& args) const {
    args.runs = runs_.data();
    args.run_count = static_cast<int64_t>(runs_.size());
    args.columns = columns_.data();
  }

 private:
  // Shorter runs are looked up element by element.
  static constexpr int64_t kShortRun = 16;

  void read(const ColumnIndex& index, int64_t first, int64_t last) {
    columns_.resize(static_cast<size_t>(last - first));
    switch (index.dtype) {
      case Dtype::kInt64:
        return read_as<int64_t>(index, first);
      case Dtype::kInt32:
        return read_as<int32_t>(index, first);
      default:
        for (int64_t entry = first; entry < last; ++entry) {
          columns_[static_cast<size_t>(entry - first)] = static_cast<int32_t>(index[entry]);
        }
    }
  }

  template <typename Integer>
  void read_as(const ColumnIndex& index, int64_t first) {
    const Integer* from = static_cast<const Integer*>(index.data) + first * index.stride;
    for (int32_t& column : columns_) {
      column = *from >= 0 && *from < index.width ? static_cast<int32_t>(*from) : -1;
      from += index.stride;
    }
  }

  // The entries [first, last) in stretches; neighbouring ones shorter than that are joined.
  template <typename Column>
  void find(int64_t first, int64_t last, int64_t shortest, const Column& column) {
    int64_t irregular = first;
    const auto look_up = [&](int64_t end) {
      if (irregular < end) {
        runs_.push_back({irregular, end - irregular, irregular - first, IndexRun::kLookUp});
      }
    };
    for (int64_t entry = first; entry < last;) {
      const int64_t from = column(entry);
      int64_t end = entry + 1, step = 0;
      if (end < last) {
        const int64_t next = column(end);
        step = next - from;
        if (step < -1 || step > 1 || (step != 0 && (from < 0 || next < 0))) {
          step = 0;
        } else {
          // Downwards a run ends at column 0: the -1 behind it is none.
          int64_t expected = next + step;
          for (++end; end < last && column(end) == expected; ++end) expected += step;
          if (step < 0) end = std::min(end, entry + from + 1);
        }
      }
      if (end - entry >= shortest) {
        look_up(entry);
        runs_.push_back({entry, end - entry, from, step});
        irregular = end;
      }
      entry = end;
    }
    look_up(last);
  }

  static std::vector<IndexRun>& kept_runs() {
    static thread_local std::vector<IndexRun> runs;
    return runs;
  }
  static std::vector<int32_t>& kept_columns() {
    static thread_local std::vector<int32_t> columns;
    return columns;
  }

  std::vector<IndexRun>& runs_;
  std::vector<int32_t>& columns_;
};

template <typename Runner>
void gather(RelativeArgs args, const Runner& runner) {
  const IndexRuns runs(args);
  runs.give_to(args);
  const int64_t bytes = args.rows() * args.keys * item_size(args.dtype);
  args.non_temporal = bytes >= non_temporal_bytes();
  if (bytes == 0) return;
  runner(args.rows(), bytes * (args.content.data != nullptr ? 3 : 2),
         [&](int64_t begin, int64_t end) { relative_gather(args, begin, end); });
}

template <typename Runner>
void scatter(RelativeArgs args, const Runner& runner) {
  const IndexRuns runs(args);
  runs.give_to(args);
  const int64_t bytes = args.rows() * args.width * item_size(args.dtype);
  args.non_temporal = bytes >= non_temporal_bytes();
  if (bytes == 0) return;
  runner(args.rows(), bytes + args.rows() * args.keys * item_size(args.dtype),
         [&](int64_t begin, int64_t end) { relative_scatter(args, begin, end); });
}

}  // namespace posenc::cpu
