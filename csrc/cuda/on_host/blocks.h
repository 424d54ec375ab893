// The CUDA kernels run on the host, thread by thread, in the place of the CPU's kernels: for tests
// on machines without a GPU. Linked with the NumPy module's sources these files make a module like
// posenc_native._core, which all tests of that one can take instead. The host's compiler takes
// them: what a thread does is plain C++.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/room.h"

namespace posenc::cuda {

// A grid so small that blocks have several pieces to do.
constexpr Room kRoom{{}, 128, {3, 2}};

// Threads begin with what is not a number, and so does shared memory: what is read without having
// been written shows.
constexpr unsigned char kPoison = 0xff;

// run_piece(shared, x, y) for the pieces of every block, in the order in which a block has them.
template <typename Plan, typename RunPiece>
void for_each_block(const Plan& plan, const RunPiece& run_piece) {
  std::vector<unsigned char> memory(plan.shared_bytes + 128);
  const size_t misaligned = reinterpret_cast<uintptr_t>(memory.data()) % 128;
  unsigned char* const shared = memory.data() + (128 - misaligned);
  for (int64_t block_y = 0; block_y < plan.grid_y; ++block_y) {
    for (int64_t block_x = 0; block_x < plan.grid_x; ++block_x) {
      std::memset(shared, kPoison, plan.shared_bytes);
      for (int64_t y = block_y; y < plan.pieces_y; y += plan.grid_y) {
        for (int64_t x = block_x; x < plan.pieces_x; x += plan.grid_x) {
          run_piece(reinterpret_cast<char*>(shared), x, y);
        }
      }
    }
  }
}

// The threads of a block, x running fastest.
template <typename Thread, typename Parameters, typename Plan>
std::vector<Thread> threads_of(const Parameters& parameters, const Plan& plan, char* shared) {
  std::vector<Thread> threads;
  for (int z = 0; z < plan.threads_z; ++z) {
    for (int y = 0; y < plan.threads_y; ++y) {
      for (int x = 0; x < plan.threads_x; ++x) threads.emplace_back(parameters, shared, x, y, z);
    }
  }
  return threads;
}

// Calls step(thread) for all of them.
template <typename Thread, typename Step>
void each(std::vector<Thread>& threads, const Step& step) {
  for (Thread& thread : threads) step(thread);
}

// Of a launch whose threads stage something in shared memory and then write tiles.
template <typename Thread, typename Parameters>
void run_tiles(const Parameters& parameters) {
  for_each_block(parameters.plan, [&](char* shared, int64_t piece_x, int64_t piece_y) {
    auto threads = threads_of<Thread>(parameters, parameters.plan, shared);
    each(threads, [&](Thread& thread) { thread.begin(piece_x, piece_y); });
    each(threads, [](Thread& thread) { thread.stage(); });
    each(threads, [](Thread& thread) { thread.write(); });
  });
}

}  // namespace posenc::cuda
