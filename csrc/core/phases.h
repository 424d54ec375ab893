// Angles that data decide: steps in radians summed to phases, in units of 2^-64 turn, and the
// cosines and sines of phases.
//
//   steps [..., s, P]  ->  phases [..., s, P], each the sum of all steps of its column up to it
//
// A step is rounded once, to the nearest unit. Integers are summed exactly, and they wrap as angles
// do: the same phases come out of one call and of many.
#pragma once

#include <cstdint>

#include "core/phase.h"
#include "core/view.h"

namespace posenc {

// Steps of some tokens, as kernels sum them; strides in elements.
struct StepBlock {
  const void* steps = nullptr;
  Dtype dtype = Dtype::kFloat32;
  int64_t tokens = 0, heads = 0, pairs = 0;
  int64_t token_stride = 0, head_stride = 0, pair_stride = 0;

  int64_t columns() const { return heads * pairs; }
};

// What is summed, from sums [heads, pairs] on: to the last token; likewise, and every token's
// phase is written; from the last token back, whose phase the sums were.
enum class Sum { kTotals, kForwards, kBackwards };

// Steps are radians of at most this size, where they can be looked at.
constexpr double kMaxStep = 2147483648.0;  // 2^31

struct AccumulateArgs {
  // Columns that are summed side by side: a line of the cache of float32 steps is read at once.
  static constexpr int64_t kColumns = 64;

  Array steps;
  bool has_state = false;
  Array state;                // int64 [..., P], before the first step
  int64_t* phases = nullptr;  // in C order

  POSENC_HD int64_t tokens() const { return steps.shape[steps.rank - 2]; }
  POSENC_HD int64_t pairs() const { return steps.shape[steps.rank - 1]; }
  int64_t blocks() const { return (pairs() + kColumns - 1) / kColumns; }
  int64_t outer() const {
    int64_t count = 1;
    for (int i = 0; i < steps.rank - 2; ++i) count *= steps.shape[i];
    return count;
  }
  // What can be summed apart.
  int64_t columns() const { return outer() * blocks(); }
};

// steps of real numbers, of two axes at least; state may be null. `phases` has memory for as many
// numbers as steps has.
AccumulateArgs check_accumulate(const char* function, const Array& steps, const Array* state,
                                const Array& phases);

struct PhaseTablesArgs {
  const int64_t* phases = nullptr;
  int64_t count = 0;
  Dtype dtype = Dtype::kFloat32;
  void* cosine = nullptr;
  void* sine = nullptr;
};

// All of one shape, and in C order.
PhaseTablesArgs check_phase_tables(const char* function, const Array& phases, const Array& cosine,
                                   const Array& sine);

}  // namespace posenc
