// The SIMD target that this object file is for. CMakeLists.txt compiles every kernel once for each
// target (POSENC_ONE_TARGET), alone or with those of its group: all cores have work, and a build
// may be for one processor alone. To be included first.
//
// Only what stands between HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE may use the target's
// instructions. An inline function of any other header is compiled for the oldest processor here
// too: the linker keeps one of its copies for all.
#pragma once

#include "hwy/detect_targets.h"
#ifdef POSENC_ONE_TARGET
#undef HWY_TARGET
#define HWY_TARGET POSENC_ONE_TARGET
#endif
// After HWY_TARGET:
#include "core/lookup.h"
#include "core/norm_rotary.h"
#include "core/phases.h"
#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "core/toeplitz.h"
#include "cpu/targets.h"
#include "hwy/highway.h"

// What the target's files define, for its table: target.cc. Plain functions around those of the
// target, since functions of one name and several targets are versions of each other to compilers.
namespace posenc::cpu::HWY_NAMESPACE {

void norm_rotary(const NormRotaryArgs& args, int64_t begin, int64_t end);
void norm_rotary_gradient_piece(const NormRotaryGradientArgs& args, int64_t begin, int64_t end,
                                double* const* weight_sums);
// Of heads that share their frequencies: RotaryArgs::for_each_frequencies.
void rotary(const RotaryArgs& args, int64_t begin, int64_t end);
void rotary_gradient_piece(const RotaryGradientArgs& args, int64_t begin, int64_t end,
                           double* frequency_sums, float* scratch);
void sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t end);
void toeplitz(const ToeplitzArgs& args, int64_t begin, int64_t end);
void diagonal_sums(const ToeplitzArgs& args, int64_t begin, int64_t end);
void relative_gather(const RelativeArgs& args, int64_t begin, int64_t end);
void relative_shift_back(const RelativeArgs& args, int64_t begin, int64_t end);
void relative_scatter(const RelativeArgs& args, int64_t begin, int64_t end);
void phase_tables(const PhaseTablesArgs& args, int64_t begin, int64_t end);
void sum_steps(const StepBlock& block, Sum sum, uint64_t* sums, int64_t* phases, int64_t stride);
bool rotary_by_steps(const RotaryArgs& rows, const StepBlock& block, uint64_t* sums);
bool steps_are_angles(const StepBlock& block);
// For kernels of the target itself: adds neighboring steps of a dtype to their sums.
using SumRow = void (*)(const void* steps, int64_t count, uint64_t* sums);
SumRow row_sums(Dtype dtype);
void angle_gradient(const RotaryArgs& back, const void* const* x, const HeadStrides* x_strides,
                    void* sums);
void step_gradient(const void* angles, Dtype of_angles, double sign, const StepBlock& to,
                   double* sums);

}  // namespace posenc::cpu::HWY_NAMESPACE
