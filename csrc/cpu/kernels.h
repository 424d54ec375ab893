// The CPU kernels: ranges of rows, so that the caller decides who runs them.
//
// Every element of a result is computed from its position alone, by the same instructions: its bits
// do not depend on ranges, threads, layout or whether the call is in place. AVX2, AVX-512 and NEON
// agree too (scripts/result_bits.py). SSE4 does not, as it has no fused multiply-add, nor do
// gradients of frequencies and positions, which are sums in vectors of different lengths.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/lookup.h"
#include "core/norm_rotary.h"
#include "core/phases.h"
#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "core/toeplitz.h"

namespace posenc::cpu {

// Norms, rotates and appends the tokens [begin, end) of the batch * tokens rows.
void norm_rotary(const NormRotaryArgs& args, int64_t begin, int64_t end);

// Does the pieces [begin, end): their rows of the gradient of q and k, their sums.
void norm_rotary_gradient(const NormRotaryGradientArgs& args, int64_t begin, int64_t end);

// Rotates the tokens [begin, end) of the batch * tokens rows, all heads of q and k.
void rotary(const RotaryArgs& args, int64_t begin, int64_t end);

// Does the pieces [begin, end): their rows of the gradient of x, their sums.
void rotary_gradient(const RotaryGradientArgs& args, int64_t begin, int64_t end);

// Writes the rows [begin, end).
void sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t end);

// Writes the rows [begin, end) of the kept_count() * query_count() rows that differ, with all their
// repetitions.
void toeplitz(const ToeplitzArgs& args, int64_t begin, int64_t end);

// Sums the pieces [begin, end) of the diagonals. The pieces of a call are the same whoever sums
// them, and so is the order of a sum.
int64_t diagonal_sum_pieces(const ToeplitzArgs& args);
void diagonal_sums(const ToeplitzArgs& args, int64_t begin, int64_t end);

// Write the rows [begin, end).
void relative_gather(const RelativeArgs& args, int64_t begin, int64_t end);
void relative_scatter(const RelativeArgs& args, int64_t begin, int64_t end);
// Scatter without an index.
void relative_shift_back(const RelativeArgs& args, int64_t begin, int64_t end);

// Sums the columns [begin, end).
void accumulate(const AccumulateArgs& args, int64_t begin, int64_t end);
// Writes the numbers [begin, end).
void phase_tables(const PhaseTablesArgs& args, int64_t begin, int64_t end);

// Names of the compiled SIMD targets that this processor can run, best first; of the one in use.
std::vector<std::string> available_targets();
std::string current_target();

// Chooses one of available_targets(); "" is the best. False if there is no such target.
bool set_target(std::string_view name);

// Outputs of at least this many bytes are written past the cache: a quarter of the last level, and
// 8 MiB at most. Settable for tests; 0 restores the default.
int64_t non_temporal_bytes();
void set_non_temporal_bytes(int64_t bytes);

}  // namespace posenc::cpu
