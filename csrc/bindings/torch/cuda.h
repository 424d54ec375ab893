// The CUDA kernels as the torch operators call them: on torch's current stream.
#pragma once

#include <cstdint>
#include <string>

#include "core/lookup.h"
#include "core/norm_rotary.h"
#include "core/phases.h"
#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "core/toeplitz.h"

namespace posenc::cuda {

// Calls on tensors of the device; errors name `function`.
void run(const char* function, int32_t device, const RotaryArgs& args);
void run(const char* function, int32_t device, const SinusoidalArgs& args);
// args.workspace has gradient_workspace(args) bytes, which the caller gives.
void rotate_back(const char* function, int32_t device, const RotaryGradientArgs& args);
int64_t gradient_workspace(const RotaryGradientArgs& args);
// args.workspace, and that of args.turned, has selective_workspace(args) and
// selective_gradient_workspace(args) bytes, which the caller gives.
void rotate_by_steps(const char* function, int32_t device, const SelectiveArgs& args);
int64_t selective_workspace(const SelectiveArgs& args);
void rotate_back_by_steps(const char* function, int32_t device, const SelectiveGradientArgs& args);
int64_t selective_gradient_workspace(const SelectiveGradientArgs& args);
void run(const char* function, int32_t device, const NormRotaryArgs& args);
// args.workspace has norm_gradient_workspace(args) bytes, which the caller gives.
void norm_rotate_back(const char* function, int32_t device, const NormRotaryGradientArgs& args);
int64_t norm_gradient_workspace(const NormRotaryGradientArgs& args);
void accumulate_phases(const char* function, int32_t device, const AccumulateArgs& args);
void write_phase_tables(const char* function, int32_t device, const PhaseTablesArgs& args);
void lay_diagonals(const char* function, int32_t device, const ToeplitzArgs& args);
// args.workspace has diagonal_sums_workspace(args) bytes, which the caller gives.
void sum_diagonals(const char* function, int32_t device, const ToeplitzArgs& args);
int64_t diagonal_sums_workspace(const ToeplitzArgs& args);
void gather(const char* function, int32_t device, const RelativeArgs& args);
void scatter(const char* function, int32_t device, const RelativeArgs& args);

// What the kernels were built for, as CMake writes it: "80-real,90-real,120", where no "-real"
// means PTX as well.
std::string architectures();

// Why kernels cannot be loaded on a device, in the words of CUDA; empty if they can.
std::string failure(int32_t device);

// CUDA versions as 1000 * major + 10 * minor: of the runtime that is linked in, and the newest that
// the driver supports; 0 where there is none.
int64_t runtime_version();
int64_t driver_version();

}  // namespace posenc::cuda
