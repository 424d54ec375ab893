// Which SIMD target runs. Highway's own choice is process-wide and would be shared with other
// libraries, so we keep ours, and with it need nothing of Highway but its headers.
#pragma once

#include <atomic>
#include <cstdint>

namespace posenc {
struct NormRotaryArgs;
struct NormRotaryGradientArgs;
struct PhaseTablesArgs;
struct RelativeArgs;
struct RotaryArgs;
struct RotaryGradientArgs;
struct SinusoidalArgs;
struct ToeplitzArgs;
}  // namespace posenc

namespace posenc::cpu {

// The kernels of one target, as kernels.h describes them.
struct Kernels {
  void (*norm_rotary)(const NormRotaryArgs& args, int64_t begin, int64_t end);
  // The tokens [begin, end) of one piece, which add to its sums.
  void (*norm_rotary_gradient_piece)(const NormRotaryGradientArgs& args, int64_t begin, int64_t end,
                                     double* const* weight_sums);
  void (*rotary)(const RotaryArgs& args, int64_t begin, int64_t end);
  // The tokens [begin, end) of one piece. scratch: of 16-bit formats, 2 numbers for each pair of
  // them.
  void (*rotary_gradient_piece)(const RotaryGradientArgs& args, int64_t begin, int64_t end,
                                double* frequency_sums, float* scratch);
  void (*sinusoidal)(const SinusoidalArgs& args, int64_t begin, int64_t end);
  void (*toeplitz)(const ToeplitzArgs& args, int64_t begin, int64_t end);
  void (*diagonal_sums)(const ToeplitzArgs& args, int64_t begin, int64_t end);
  void (*relative_gather)(const RelativeArgs& args, int64_t begin, int64_t end);
  void (*relative_scatter)(const RelativeArgs& args, int64_t begin, int64_t end);
  void (*relative_shift_back)(const RelativeArgs& args, int64_t begin, int64_t end);
  void (*phase_tables)(const PhaseTablesArgs& args, int64_t begin, int64_t end);
};

// Of a target of Highway's that was compiled: target.cc.
template <int64_t kTarget>
const Kernels& kernels_of();

// Of the target in use.
const Kernels& kernels();

// Whether AVX3 kernels may use AVX512_BF16, which Highway's AVX3 does not ask for.
extern std::atomic<bool> bfloat16_instructions;

}  // namespace posenc::cpu
