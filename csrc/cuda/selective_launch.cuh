// What the launches of rotations by steps share, forwards and back.
#pragma once

#include "core/rotary.h"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace posenc::cuda {

// for_each_piece of threads that share nothing: none waits for another.
template <typename Plan, typename Work>
__device__ void for_each_piece_apart(const Plan& plan, const Work& work) {
  for (int64_t y = blockIdx.y; y < plan.pieces_y; y += gridDim.y) {
    for (int64_t x = blockIdx.x; x < plan.pieces_x; x += gridDim.x) work(x, y);
  }
}

// The phases that segments begin with, into the workspace: two launches, or none.
cudaError_t begin_segments(const SelectiveArgs& args, Queue queue);

}  // namespace posenc::cuda
