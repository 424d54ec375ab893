#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/norm_rotary.cuh"
#include "cuda/norm_rotary_steps.cuh"

namespace posenc::cuda {
namespace {

template <typename Thread>
__global__ void __launch_bounds__(Policy::kThreads, Policy::kBlocksPerProcessor)
    norm_rotary_kernel(const __grid_constant__ NormRotaryParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  wait_for_others(parameters.plan);
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t y) {
    thread.begin(x, y);
    thread.frequencies();
    __syncthreads();
    thread.angles();
    __syncthreads();
    // Over a token, once to sum and once to write.
    for (int pass = thread.sums_tokens() ? 0 : 1; pass < 2; ++pass) {
      for (int64_t round = 0; round < thread.rounds(); ++round) {
        thread.read(round);
        __syncthreads();
        if (thread.norms_last()) {
          thread.turn();
          __syncthreads();
          thread.sum();
          __syncthreads();
        }
        if (pass == 0) {
          thread.keep_sum();
        } else {
          thread.scale();
          __syncthreads();
          if (!thread.norms_last()) {
            thread.turn();
            __syncthreads();
          }
          if (thread.makes_scales()) {
            thread.keep_largest();
            __syncthreads();
          }
          thread.write();
        }
        __syncthreads();
      }
    }
    for (int64_t round = 0; round < thread.value_rounds(); ++round) {
      thread.read_value(round);
      __syncthreads();
      thread.keep_largest_value();
      __syncthreads();
      thread.write_value();
      __syncthreads();
    }
    thread.append_values();
  });
}

template <typename Thread>
__global__ void __launch_bounds__(Policy::kWarpThreads, Policy::kWarpBlocksPerProcessor)
    norm_rotary_warp_kernel(const __grid_constant__ NormRotaryParameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, number_of_warp());
  for_each_piece(parameters.plan, [&](int64_t x, int64_t /*y*/) {
    thread.begin(x);
    wait_for_others(parameters.plan);
    thread.read();
    __syncthreads();
    while (thread.has_step()) {
      thread.ask();
      if (thread.begins_token()) {
        __syncwarp();
        thread.angles();
        __syncwarp();
      }
      thread.take();
      if (parameters.args.norm) {
        thread.sum();
        add_lanes<Thread::kLanesOfHead, Thread::kAllSums>(thread.sums());
        thread.finish_sums();
      }
      thread.write();
    }
  });
}

}  // namespace

cudaError_t norm_rotary(const NormRotaryArgs& args, Queue queue) {
  if (takes_warps(args)) {
    return visit_warp_thread<NormRotaryWarpThread>(args.rotary, [&](auto* type) {
      using Thread = std::remove_pointer_t<decltype(type)>;
      return launch<Thread, true>(norm_rotary_warp_kernel<Thread>, queue, [&](const Room& room) {
        return NormRotaryParameters{args, plan_norm_rotary_warps<Thread>(args, room)};
      });
    });
  }
  return visit_norm_rotary_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch<Thread, true>(norm_rotary_kernel<Thread>, queue, [&](const Room& room) {
      return NormRotaryParameters{args, plan_norm_rotary<Thread>(args, room)};
    });
  });
}

}  // namespace posenc::cuda
