// The CUDA kernels: mostly one launch for a whole call. Nothing waits for the GPU; memory is the
// caller's.
#pragma once

#include <cuda_runtime_api.h>

#include "core/lookup.h"
#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "core/toeplitz.h"

namespace posenc::cuda {

// Arguments are checked; all memory is that of the current device. Errors are those of the launch.
cudaError_t rotary(const RotaryArgs& args, cudaStream_t stream);
// All sums are written; `radians` are not needed. Two launches.
cudaError_t rotary_gradient(const RotaryGradientArgs& args, cudaStream_t stream);
int64_t gradient_workspace(const RotaryGradientArgs& args);  // bytes, which the caller gives
cudaError_t sinusoidal(const SinusoidalArgs& args, cudaStream_t stream);
cudaError_t toeplitz(const ToeplitzArgs& args, cudaStream_t stream);
cudaError_t diagonal_sums(const ToeplitzArgs& args, cudaStream_t stream);
cudaError_t relative_gather(const RelativeArgs& args, cudaStream_t stream);
// With an index, `order` and `bounds` of the arguments are needed.
cudaError_t relative_scatter(const RelativeArgs& args, cudaStream_t stream);
// Either of them without an index.
cudaError_t relative_shift(const RelativeArgs& args, bool scatter, cudaStream_t stream);

// Whether the current device can run them: all are compiled for the same architectures.
cudaError_t load_kernels();

}  // namespace posenc::cuda
