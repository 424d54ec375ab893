// Which SIMD target runs. Highway's own choice is process-wide and would be shared with other
// libraries, so we keep ours, and with it need nothing of Highway but its headers.
#pragma once

#include <atomic>
#include <cstdint>

namespace posenc {
struct HeadStrides;
struct NormRotaryArgs;
struct NormRotaryGradientArgs;
struct PhaseTablesArgs;
struct RelativeArgs;
struct RotaryArgs;
struct RotaryGradientArgs;
struct SinusoidalArgs;
struct StepBlock;
struct ToeplitzArgs;
enum class Dtype : uint8_t;
enum class Sum;
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
  // phases: of the block, tokens `stride` apart; of Sum::kTotals none.
  void (*sum_steps)(const StepBlock& block, Sum sum, uint64_t* sums, int64_t* phases,
                    int64_t stride);
  // Both in one pass: rows [tokens * heads] of the block turned, and the sums after it. False, and
  // nothing is done, where there is no such pass for the call.
  bool (*rotary_by_steps)(const RotaryArgs& rows, const StepBlock& block, uint64_t* sums);
  bool (*steps_are_angles)(const StepBlock& block);
  // Of the tokens of one row that were rotated back, [tokens, P], in float32, or float64 for
  // float64; x is what had been rotated.
  void (*angle_gradient)(const RotaryArgs& back, const void* const* x, const HeadStrides* x_strides,
                         void* sums);
  // To the block, from the gradients of its angles; sums: of all tokens after it.
  void (*step_gradient)(const void* angles, Dtype of_angles, double sign, const StepBlock& to,
                        double* sums);
};

// Of a target of Highway's that was compiled: target.cc.
template <int64_t kTarget>
const Kernels& kernels_of();

// Of the target in use.
const Kernels& kernels();

// Whether AVX3 kernels may use AVX512_BF16, which Highway's AVX3 does not ask for.
extern std::atomic<bool> bfloat16_instructions;

}  // namespace posenc::cpu
