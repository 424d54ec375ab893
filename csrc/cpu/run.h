// A whole call on the CPU, from checked arguments to kernels: what both bindings share. They differ
// in the Runner, which runs the rows: runner(rows, bytes, run) calls run(begin, end) for ranges
// that together are 0 .. rows; `bytes` is what they read and write, or would in the same time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/lookup.h"
#include "core/norm_rotary.h"
#include "core/phases.h"
#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "core/toeplitz.h"
#include "cpu/kept.h"
#include "cpu/kernels.h"
#include "cpu/selective.h"

namespace posenc::cpu {

// Below so many bytes rows are not cut for threads.
constexpr int64_t kBytesOfSeveralThreads = int64_t{1} << 21;

template <typename Runner>
void write_sinusoidal(SinusoidalArgs args, const Runner& runner) {
  const int64_t bytes = args.positions_count() * args.pairs * 2 * item_size(args.dtype);
  if (bytes == 0) return;
  args.non_temporal = bytes >= non_temporal_bytes();
  std::optional<ConvertedFrequencies> converted;
  std::optional<FormulaFrequencies> formula;
  args.frequencies = args.inv_freq.data != nullptr
                         ? converted.emplace(args.inv_freq, args.pairs).get()
                         : formula.emplace(args.spec).get();
  // To compute a sine takes as long as to read one.
  runner(args.rows(), 2 * bytes, [&](int64_t begin, int64_t end) { sinusoidal(args, begin, end); });
}

// Of what is written.
inline int64_t result_bytes(const RotaryArgs& args) {
  int64_t heads = 0;
  for (int i = 0; i < args.tensor_count; ++i) heads += args.tensors[i].heads;
  return args.rows() * heads * args.head_dim * item_size(args.dtype);
}

inline int64_t result_bytes(const NormRotaryArgs& args) {
  const RotaryArgs& rotary = args.rotary;
  int64_t dims = args.v.heads * args.v_dim;
  for (const RotaryTensor& x : rotary.tensors) dims += x.heads * rotary.head_dim;
  for (const CacheTarget* cache : {&args.keys, &args.values}) {  // rows without dims have a scale
    if (cache->scaling.made != nullptr) dims += args.v.heads;
  }
  return rotary.rows() * dims * item_size(rotary.dtype);
}

// The same call of one head, where every head has tables of its own and follows, as its tables do,
// on the one before: its tokens come after theirs. Rows of the batch likewise. Else itself.
inline RotaryArgs as_one_head(RotaryArgs args) {
  if (args.cosine == nullptr || args.table_rows.numbers.data != nullptr) return args;
  const auto follow = [&](int64_t HeadStrides::* step, int64_t TableStrides::* table_step) {
    bool all = true;
    for (int i = 0; i < args.tensor_count; ++i) {
      for (const HeadStrides& strides : {args.tensors[i].in_strides, args.tensors[i].out_strides}) {
        all = all && strides.*step == args.tokens * strides.token && strides.group_heads == 0;
      }
    }
    return all && args.cosine_strides.*table_step == args.tokens * args.cosine_strides.token &&
           args.sine_strides.*table_step == args.tokens * args.sine_strides.token;
  };
  if (args.table_heads > 1 && follow(&HeadStrides::head, &TableStrides::head)) {
    args.tokens *= args.table_heads;
    args.table_heads = 1;
    for (RotaryTensor& x : args.tensors) x.heads = std::min<int64_t>(x.heads, 1);
  }
  bool alone = args.batch > 1;
  for (int i = 0; i < args.tensor_count; ++i) alone = alone && args.tensors[i].heads == 1;
  if (alone && follow(&HeadStrides::batch, &TableStrides::batch)) {
    args.tokens *= args.batch;
    args.batch = 1;
  }
  return args;
}

template <typename Runner>
void rotate(RotaryArgs args, const Runner& runner) {
  const int64_t bytes = result_bytes(args);
  if (bytes == 0) return;
  args = as_one_head(args);
  args.non_temporal = bytes >= non_temporal_bytes();
  std::optional<ConvertedFrequencies> converted;
  if (args.inv_freq.data != nullptr) {
    args.frequencies = converted.emplace(args.inv_freq, args.pairs).get();
  }
  runner(args.rows(), 2 * bytes, [&](int64_t begin, int64_t end) { rotary(args, begin, end); });
}

// threads: that the runner has.
template <typename Runner>
void rotate_by_steps(const char* function, SelectiveArgs args, int64_t threads,
                     const Runner& runner) {
  const int64_t bytes = result_bytes(args.rotary);
  args.rotary.non_temporal = bytes >= non_temporal_bytes();
  if (2 * bytes < kBytesOfSeveralThreads) threads = 1;
  SelectiveRun run(args, threads);
  std::atomic<bool> good{true};
  runner(run.segments(), run.step_bytes(), [&](int64_t begin, int64_t end) {
    if (!run.are_angles(begin, end)) good.store(false, std::memory_order_relaxed);
  });
  if (!good.load()) {
    fail_value(function, "steps", "finite radians of at most 2^31", "larger ones or NaN");
  }
  if (run.is_cut()) {
    run.begin_totals();
    runner(run.segments(), 4 * run.step_bytes(),
           [&](int64_t begin, int64_t end) { run.add_totals(begin, end); });
    run.scan();
  }
  runner(run.segments(), 2 * bytes + run.step_bytes(),
         [&](int64_t begin, int64_t end) { run.rotate(begin, end); });
}

template <typename Runner>
void rotate_back_by_steps(SelectiveGradientArgs args, int64_t threads, const Runner& runner) {
  const int64_t bytes = result_bytes(args.turned.rotary);
  args.turned.rotary.non_temporal = false;  // what is written is read at once
  const int64_t units = selective_gradient_units(args, threads);
  runner(units, 4 * bytes,
         [&](int64_t begin, int64_t end) { rotate_back(args, units, begin, end); });
}

// The sums of all pieces are left in those of the first one.
template <typename Runner>
void rotate_back(RotaryGradientArgs args, const Runner& runner) {
  RotaryArgs& turned = args.turned;
  const InverseFrequencies& inv_freq = turned.inv_freq;
  const int64_t count = args.frequency_count();
  const int64_t bytes = result_bytes(turned);
  if (bytes == 0) return;
  const ConvertedFrequencies converted(inv_freq, turned.pairs);
  turned.frequencies = converted.get();
  std::vector<double> radians;
  for (int64_t term = 0; term < inv_freq.terms(); ++term) {
    for (int64_t head = 0; head < inv_freq.heads; ++head) {
      for (int64_t pair = 0; pair < turned.pairs; ++pair) {
        radians.push_back(inv_freq.radians(term, head, pair));
      }
    }
  }
  args.radians = radians.data();
  runner(args.pieces(), 3 * bytes,
         [&](int64_t begin, int64_t end) { rotary_gradient(args, begin, end); });
  for (int64_t piece = 1; piece < args.pieces(); ++piece) {
    for (int64_t i = 0; i < count; ++i) {
      args.frequency_sums[i] += args.frequency_sums[piece * count + i];
    }
  }
}

template <typename Runner>
void norm_rotate(NormRotaryArgs args, const Runner& runner) {
  RotaryArgs& rotary = args.rotary;
  const int64_t bytes = result_bytes(args);
  if (bytes == 0) return;
  rotary.non_temporal = bytes >= non_temporal_bytes();
  std::optional<ConvertedFrequencies> converted;
  if (rotary.inv_freq.data != nullptr) {
    rotary.frequencies = converted.emplace(rotary.inv_freq, rotary.pairs).get();
  }
  runner(rotary.rows(), 2 * bytes,
         [&](int64_t begin, int64_t end) { norm_rotary(args, begin, end); });
}

// The sums of all pieces are left in those of the first one.
template <typename Runner>
void norm_rotate_back(NormRotaryGradientArgs args, const Runner& runner) {
  RotaryArgs& rotary = args.forward.rotary;
  int64_t heads = 0;
  for (const RotaryTensor& x : rotary.tensors) heads += x.heads;
  const int64_t bytes = rotary.rows() * heads * rotary.head_dim * item_size(rotary.dtype);
  if (bytes == 0) return;
  rotary.non_temporal = bytes >= non_temporal_bytes();
  std::optional<ConvertedFrequencies> converted;
  if (rotary.inv_freq.data != nullptr) {
    rotary.frequencies = converted.emplace(rotary.inv_freq, rotary.pairs).get();
  }
  runner(args.pieces(), 3 * bytes,
         [&](int64_t begin, int64_t end) { norm_rotary_gradient(args, begin, end); });
  for (int i = 0; i < 2; ++i) {
    double* const sums = args.weight_sums[i];
    const int64_t count = args.weight_count(i);
    for (int64_t piece = 1; sums != nullptr && piece < args.pieces(); ++piece) {
      for (int64_t j = 0; j < count; ++j) sums[j] += sums[piece * count + j];
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

template <typename Runner>
void gather(RelativeArgs args, const Runner& runner) {
  const int64_t bytes = args.rows() * args.keys * item_size(args.dtype);
  if (bytes == 0) return;
  args.non_temporal = bytes >= non_temporal_bytes();
  const IndexRuns runs(args);
  runs.give_to(args);
  runner(args.rows(), bytes * (args.content.data != nullptr ? 3 : 2),
         [&](int64_t begin, int64_t end) { relative_gather(args, begin, end); });
}

template <typename Runner>
void scatter(RelativeArgs args, const Runner& runner) {
  const int64_t bytes = args.rows() * args.width * item_size(args.dtype);
  if (bytes == 0) return;
  args.non_temporal = bytes >= non_temporal_bytes();
  const IndexRuns runs(args);
  runs.give_to(args);
  runner(args.rows(), bytes + args.rows() * args.keys * item_size(args.dtype),
         [&](int64_t begin, int64_t end) { relative_scatter(args, begin, end); });
}

// A step takes as long as to read or to write 64 bytes.
template <typename Runner>
void accumulate_phases(const AccumulateArgs& args, const Runner& runner) {
  if (args.tokens() == 0 || args.columns() == 0) return;
  const int64_t bytes = args.outer() * args.tokens() * args.pairs() * 64;
  runner(args.columns(), bytes, [&](int64_t begin, int64_t end) { accumulate(args, begin, end); });
}

template <typename Runner>
void write_phase_tables(const PhaseTablesArgs& args, const Runner& runner) {
  if (args.count == 0) return;
  const int64_t bytes = args.count * (8 + 2 * item_size(args.dtype));
  runner(args.count, bytes, [&](int64_t begin, int64_t end) { phase_tables(args, begin, end); });
}

}  // namespace posenc::cpu
