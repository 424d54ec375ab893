// What all kernels share: how they are launched, and how a block goes through its pieces.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "cuda/kernels.h"
#include "cuda/room.h"

namespace posenc::cuda {

// The pieces (x, y) of a call, which may be more than a grid can have blocks: one launch is enough
// for a call of any size. Gradients of angles take two, and tables wider than 8192 one for each
// 4096 pairs (GeometricTurns::kMaxPairs).
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

// Of a kernel that may be launched while the one before it still runs: until all that was launched
// before it has ended and can be read. Before this a kernel neither reads nor writes global memory.
// The next kernel may be launched from then on, and waits likewise.
__device__ inline void wait_for_others([[maybe_unused]] const LaunchPlan& plan) {
#if __CUDA_ARCH__ >= 900
  if (!plan.programmatic) return;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// threadIdx.y where a row of threads is a warp: the compiler then knows that what follows from it
// is the same for all lanes, and keeps it once.
__device__ inline int number_of_warp() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.y), 0);
}

// values[i] of every lane -> the sum of values[i] of kWidth neighboring lanes, by halves: with the
// lane kWidth / 2 away, then kWidth / 4 ... Of those alone that are kApart apart. All lanes of the
// warp take part.
template <int kWidth, int kCount, int kApart = 1, typename Number>
__device__ void add_lanes(Number* values) {
#pragma unroll
  for (int offset = kWidth / 2; offset >= kApart; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = values[i] + __shfl_xor_sync(kAllLanes, values[i], offset);
    }
  }
}

// Asks the device and the kernel.
template <typename Parameters>
cudaError_t ask_room(void (*kernel)(Parameters), int device, Room& room) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  if (error != cudaSuccess) return error;
  room.registers = attributes.numRegs;
  room.compiled_for = attributes.ptxVersion;
  const auto ask = [&](int64_t& to, cudaDeviceAttr attribute) {
    int value = 0;
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, attribute, device);
    to = value;
  };
  ask(room.gpu.multiprocessors, cudaDevAttrMultiProcessorCount);
  ask(room.gpu.blocks, cudaDevAttrMaxBlocksPerMultiprocessor);
  ask(room.gpu.threads, cudaDevAttrMaxThreadsPerMultiProcessor);
  ask(room.gpu.registers, cudaDevAttrMaxRegistersPerMultiprocessor);
  ask(room.gpu.shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  ask(room.gpu.reserved_bytes, cudaDevAttrReservedSharedMemoryPerBlock);
  return error;
}

// kernel(parameters) on the grid of parameters.plan, where parameters = plan(room). The room is
// asked for once: of every kernel, which is the only one of its Thread, and device. The error is
// that of this launch, not what an earlier one may have left behind.
// kWaits: the kernel calls wait_for_others().
template <typename Thread, bool kWaits = false, typename Parameters, typename Plan>
cudaError_t launch(void (*kernel)(Parameters), Queue queue, const Plan& plan) {
  constexpr int kDevices = 64;                      // beyond them it is asked for anew
  static std::atomic<const Room*> rooms[kDevices];  // never freed
  const bool kept = queue.device >= 0 && queue.device < kDevices;
  const Room* known = kept ? rooms[queue.device].load(std::memory_order_acquire) : nullptr;
  Room room;
  if (known == nullptr) {
    const cudaError_t error = ask_room(kernel, queue.device, room);
    if (error != cudaSuccess) return error;
    if (kept) {
      auto* const own = new Room(room);
      if (!rooms[queue.device].compare_exchange_strong(known, own)) delete own;
    }
    known = &room;
  }
  Parameters parameters = plan(*known);
  LaunchPlan& shape = parameters.plan;
  if (shape.pieces_x == 0 || shape.pieces_y == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(shape.grid_x), static_cast<unsigned>(shape.grid_y));
  const dim3 block(shape.threads_x, shape.threads_y, shape.threads_z);
  shape.programmatic = kWaits && queue.programmatic && known->compiled_for >= 90;
  void* arguments[] = {&parameters};
  const auto* const function = reinterpret_cast<const void*>(kernel);
  if (!shape.programmatic) {
    return cudaLaunchKernel(function, grid, block, arguments, shape.shared_bytes, queue.stream);
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{grid, block, shape.shared_bytes, queue.stream, &attribute, 1};
  return cudaLaunchKernelExC(&config, function, arguments);
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

template <typename Thread, typename Parameters, typename Plan>
cudaError_t launch_tiles(Queue queue, const Plan& plan) {
  return launch<Thread>(tile_kernel<Thread, Parameters>, queue, plan);
}

// Of the threads that share out a row: each keeps a sum of its part in shared memory, and then goes
// through the part again from what those before it have.
template <typename Thread, typename Parameters>
__global__ void __launch_bounds__(Policy::kSumColumns* Policy::kSumRows)
    scan_kernel(const __grid_constant__ Parameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t y) {
    thread.begin(x, y);
    __syncthreads();
    thread.write();
  });
}

template <typename Thread, typename Parameters, typename Plan>
cudaError_t launch_scan(Queue queue, const Plan& plan) {
  return launch<Thread>(scan_kernel<Thread, Parameters>, queue, plan);
}

// Of the threads that sum columns of partial sums.
template <typename Thread, typename Parameters>
__global__ void __launch_bounds__(Policy::kSumColumns* Policy::kSumRows)
    column_sums_kernel(const __grid_constant__ Parameters parameters) {
  extern __shared__ __align__(128) char shared[];
  Thread thread(parameters, shared, threadIdx.x, threadIdx.y);
  for_each_piece(parameters.plan, [&](int64_t x, int64_t /*y*/) {
    thread.sum(x);
    __syncthreads();
    thread.finish();
  });
}

template <typename Thread, typename Parameters>
cudaError_t launch_column_sums(Queue queue, const Parameters& parameters) {
  return launch<Thread>(column_sums_kernel<Thread, Parameters>, queue,
                        [&](const Room& /*room*/) { return parameters; });
}

}  // namespace posenc::cuda
