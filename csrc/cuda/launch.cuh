// What all kernels share: how they are launched, and how a block goes through its pieces.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/policy.h"

namespace posenc::cuda {

// The pieces (x, y) of a call, which may be more than a grid can have blocks: one launch is enough
// for a call of any size. Gradients of angles take two, frequencies of their own for every head one
// a head, and tables wider than 8192 one for each 4096 pairs (GeometricTurns::kMaxPairs).
template <typename Plan, typename Work>
__device__ void for_each_piece(const Plan& plan, const Work& work) {
  bool first = true;
  for (int64_t y = blockIdx.y; y < plan.pieces_y; y += gridDim.y) {
    for (int64_t x = blockIdx.x; x < plan.pieces_x; x += gridDim.x) {
      if (!first) __syncthreads();  // shared memory is written anew
      first = false;
      work(x, y);
    }
  }
}

// kernel(parameters) on the grid of parameters.plan. The error is that of this launch, not what an
// earlier one may have left behind.
template <typename Parameters>
cudaError_t launch(void (*kernel)(Parameters), const Parameters& parameters, dim3 block,
                   cudaStream_t stream) {
  const auto& plan = parameters.plan;
  if (plan.pieces_x == 0 || plan.pieces_y == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(plan.grid_x), static_cast<unsigned>(plan.grid_y));
  void* arguments[] = {const_cast<Parameters*>(&parameters)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments,
                          plan.shared_bytes, stream);
}

// Of the threads that stage something in shared memory and then write tiles.
template <typename Thread, typename Parameters>
__global__ void __launch_bounds__(Policy::kThreads, Thread::kBlocks)
    tile_kernel(const __grid_constant__ Parameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y, threadIdx.z);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t y) {
    thread.begin(x, y);
    thread.stage();
    __syncthreads();
    thread.write();
  });
}

template <typename Thread, typename Parameters>
cudaError_t launch_tiles(const Parameters& parameters, cudaStream_t stream) {
  const auto& plan = parameters.plan;
  return launch(tile_kernel<Thread, Parameters>, parameters,
                dim3(plan.threads_x, plan.threads_y, plan.threads_z), stream);
}

}  // namespace posenc::cuda
