// What a thread keeps from call to call, since making it anew takes longer than a small call does:
// frequencies in turns, and memory for the stretches of an index.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/angles.h"
#include "core/lookup.h"
#include "core/sinusoidal.h"

namespace posenc::cpu {

// What is larger is given back when the call ends: to make it anew is little beside such a call.
constexpr size_t kMaxKeptBytes = size_t{1} << 20;

template <typename Number>
bool too_large_to_keep(const std::vector<Number>& numbers) {
  return numbers.capacity() * sizeof(Number) > kMaxKeptBytes;
}

template <typename Number>
void give_back(std::vector<Number>& numbers) {
  std::vector<Number>().swap(numbers);
}

// The frequencies of a formula. A thread keeps its last ones: decoding asks for the same in every
// step, and they take longer than a row of the table.
class FormulaFrequencies {
 public:
  explicit FormulaFrequencies(const SinusoidalSpec& spec)
      : kept_(kept()), pairs_(static_cast<size_t>(spec.dim / 2)) {
    if (spec.same_frequencies(kept_.spec)) return;
    kept_.spec = {};  // should there be no memory
    kept_.turns.resize(2 * pairs_);
    turns_from_spec(spec, kept_.turns.data(), kept_.turns.data() + pairs_);
    kept_.spec = spec;
    kept_.spec.layout = {};  // the caller's memory
  }
  FormulaFrequencies(const FormulaFrequencies&) = delete;
  FormulaFrequencies& operator=(const FormulaFrequencies&) = delete;
  ~FormulaFrequencies() {
    if (!too_large_to_keep(kept_.turns)) return;
    kept_.spec = {};
    give_back(kept_.turns);
  }

  Frequencies get() const { return {kept_.turns.data(), kept_.turns.data() + pairs_}; }

 private:
  struct Kept {
    SinusoidalSpec spec;  // of dim 0: no frequencies
    std::vector<uint64_t> turns;
  };
  static Kept& kept() {
    static thread_local Kept kept;
    return kept;
  }

  Kept& kept_;
  size_t pairs_;
};

// inv_freq in turns. A thread keeps the last few, for the layers of a model, with the numbers they
// were made of, for the same reason: to compare takes a tenth of what converting does. By what they
// are and not by where they lie: memory changes hands.
class ConvertedFrequencies {
 public:
  ConvertedFrequencies(const InverseFrequencies& inv_freq, int64_t pairs)
      : kept_(find(inv_freq, pairs)) {}
  ConvertedFrequencies(const ConvertedFrequencies&) = delete;
  ConvertedFrequencies& operator=(const ConvertedFrequencies&) = delete;
  ~ConvertedFrequencies();

  Frequencies get() const;

 private:
  class Kept;
  static Kept& find(const InverseFrequencies& inv_freq, int64_t pairs);

  Kept& kept_;
};

class ConvertedFrequencies::Kept {
 public:
  bool same(const InverseFrequencies& inv_freq, int64_t pairs) const {
    if (shape_[0] != inv_freq.heads || shape_[1] != inv_freq.terms() || shape_[2] != pairs) {
      return false;
    }
    return inv_freq.dtype == Dtype::kFloat32 ? same_as<float>(inv_freq, pairs)
                                             : same_as<double>(inv_freq, pairs);
  }

  void keep_if_small() {
    if (!too_large_to_keep(turns_)) return;
    shape_[0] = -1;
    give_back(radians_);
    give_back(turns_);
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

  template <typename Real>
  bool same_as(const InverseFrequencies& inv_freq, int64_t pairs) const {
    const double* radians = radians_.data();
    return for_each_row(inv_freq, [&](int64_t term, int64_t head) {
      const Real* row = static_cast<const Real*>(inv_freq.data) + inv_freq.offset(term, head, 0);
      const double* const kept = radians;
      radians += pairs;
      return inv_freq.stride == 1 ? same_row(kept, row, std::integral_constant<int64_t, 1>(), pairs)
                                  : same_row(kept, row, inv_freq.stride, pairs);
    });
  }

  // To the end of the row: no branch for each, and many at once where they are neighbors.
  template <typename Real, typename Stride>
  static bool same_row(const double* kept, const Real* row, Stride stride, int64_t pairs) {
    bool equal = true;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      equal &= kept[pair] == static_cast<double>(row[pair * stride]);
    }
    return equal;
  }

  int64_t shape_[3] = {-1, 0, 0};  // heads, terms, pairs
  std::vector<double> radians_;
  std::vector<uint64_t> turns_;
};

inline ConvertedFrequencies::~ConvertedFrequencies() { kept_.keep_if_small(); }

inline Frequencies ConvertedFrequencies::get() const { return kept_.frequencies(); }

inline ConvertedFrequencies::Kept& ConvertedFrequencies::find(const InverseFrequencies& inv_freq,
                                                              int64_t pairs) {
  static thread_local Kept kept[4];
  static thread_local unsigned oldest = 0;
  for (Kept& one : kept) {
    if (one.same(inv_freq, pairs)) return one;
  }
  Kept& one = kept[oldest];
  oldest = (oldest + 1) % 4;
  one.convert(inv_freq, pairs);
  return one;
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

  IndexRuns(const IndexRuns&) = delete;
  IndexRuns& operator=(const IndexRuns&) = delete;
  ~IndexRuns() {
    if (too_large_to_keep(runs_)) give_back(runs_);
    if (too_large_to_keep(columns_)) give_back(columns_);
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

  // The entries [first, last) in stretches; neighboring ones shorter than that are joined.
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

}  // namespace posenc::cpu
