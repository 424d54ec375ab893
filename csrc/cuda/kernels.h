// The CUDA kernels: mostly one launch for a whole call. Nothing waits for the GPU; memory is the
// caller's.
//
// A kernel is a thin shell around a __host__ __device__ body, the thread of a .cuh. Steps between
// barriers are methods, so that the host can run the threads (on_host/): what tests see there is
// the kernel's own arithmetic, and that its bits depend neither on the order of blocks and threads
// nor on when they see what others write. `make gpu-resources` shows what the host cannot:
// registers, spills, length of code, width of loads and stores, and that float32 kernels have no
// float64 arithmetic.
//
// Frequencies are converted on the GPU, in integers: inv_freq is read where it lies, and a table's
// sequence comes with the call (GeometricTurns). Nothing of ours stays in GPU memory between calls,
// where it could become stale, be cast or be captured in a graph.
#pragma once

#include <cuda_runtime_api.h>

#include "core/lookup.h"
#include "core/norm_rotary.h"
#include "core/phases.h"
#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "core/toeplitz.h"

namespace posenc::cuda {

// Where a call runs.
struct Queue {
  int device;  // the current one, which has all memory
  cudaStream_t stream;
  // Programmatic dependent launch: rotation and norm may be launched while the kernel before them
  // in the stream still runs, for which they wait. Of GPUs of compute capability 9.0 and newer.
  bool programmatic = false;
};

// Arguments are checked. Errors are those of the launch.
cudaError_t rotary(const RotaryArgs& args, Queue queue);
// All sums are written; `radians` are not needed. Two launches.
cudaError_t rotary_gradient(const RotaryGradientArgs& args, Queue queue);
int64_t gradient_workspace(const RotaryGradientArgs& args);  // bytes, which the caller gives
// Rotations by steps. Three launches, or one for rows of few tokens; values of steps, and where
// packed rows begin, are not looked at before.
cudaError_t selective(const SelectiveArgs& args, Queue queue);
int64_t selective_workspace(const SelectiveArgs& args);  // bytes, which the caller gives
// Five launches, or two.
cudaError_t selective_gradient(const SelectiveGradientArgs& args, Queue queue);
int64_t selective_gradient_workspace(const SelectiveGradientArgs& args);  // likewise
cudaError_t norm_rotary(const NormRotaryArgs& args, Queue queue);
// All sums are written. Two launches, three where the mean is over all heads of a token.
cudaError_t norm_rotary_gradient(const NormRotaryGradientArgs& args, Queue queue);
int64_t norm_gradient_workspace(
    const NormRotaryGradientArgs& args);  // bytes, which the caller gives
cudaError_t sinusoidal(const SinusoidalArgs& args, Queue queue);
// Steps that are no angles count as 0.
cudaError_t accumulated_phases(const AccumulateArgs& args, Queue queue);
cudaError_t phase_tables(const PhaseTablesArgs& args, Queue queue);
cudaError_t toeplitz(const ToeplitzArgs& args, Queue queue);
// Two launches where a grid has few entries.
cudaError_t diagonal_sums(const ToeplitzArgs& args, Queue queue);
int64_t diagonal_sums_workspace(const ToeplitzArgs& args);  // bytes, which the caller gives
cudaError_t relative_gather(const RelativeArgs& args, Queue queue);
// With an index, `order` and `bounds` of the arguments are needed.
cudaError_t relative_scatter(const RelativeArgs& args, Queue queue);
// Either of them without an index.
cudaError_t relative_shift(const RelativeArgs& args, bool scatter, Queue queue);

// Whether the current device can run them: all are compiled for the same architectures.
cudaError_t load_kernels();

}  // namespace posenc::cuda
