// How many blocks of a kernel a GPU has room for at a time (a wave), and what that means for
// cutting a call into pieces.
//
//   a GPU of 132 multiprocessors, 2 blocks in each: 264 places
//
//     pieces of 1 unit     320 of them          264 at once, then 56: the time of 2
//     pieces of 2 units    160                  all at once: the time of 2, prepared once
//     pieces of 3 units    107                  the time of 3
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/phase.h"
#include "cuda/policy.h"

namespace posenc::cuda {

// What a GPU has; an H100, unless somebody has asked one.
struct Gpu {
  int64_t multiprocessors = 132;
  // Of each:
  int64_t blocks = 32, threads = 2048, registers = 65536, shared_bytes = 228 * 1024;
  int64_t reserved_bytes = 1024;  // of shared memory that each block takes beside its own
};

// The most blocks of a launch; more work than that is done in turns. Smaller only in tests.
struct GridLimit {
  int64_t x = 2147483647;
  int64_t y = 65535;
};

struct Room {
  Gpu gpu;
  int64_t registers = 128;  // of a thread of the kernel
  GridLimit limit;
  // Compute capability, times 10, of the PTX that its machine code was made of: what __CUDA_ARCH__
  // said. That of the machine code itself may be higher.
  int compiled_for = 90;

  // All that blocks() depends on.
  std::array<int64_t, 7> key() const {
    return {registers,     gpu.multiprocessors, gpu.blocks,        gpu.threads,
            gpu.registers, gpu.shared_bytes,    gpu.reserved_bytes};
  }

  // Blocks of so many threads and bytes of shared memory, on all multiprocessors.
  int64_t blocks(int64_t threads, size_t shared_bytes = 0) const {
    // Warps take registers by 256, blocks shared memory by 128 bytes.
    constexpr int64_t kRegisters = 256, kBytes = 128;
    const int64_t warps = divide_up(threads, kLanes);
    const int64_t of_warp = divide_up(registers * kLanes, kRegisters) * kRegisters;
    const int64_t bytes =
        divide_up(static_cast<int64_t>(shared_bytes), kBytes) * kBytes + gpu.reserved_bytes;
    const int64_t each = std::min({gpu.blocks, gpu.threads / (warps * kLanes),
                                   gpu.registers / of_warp / warps, gpu.shared_bytes / bytes});
    return gpu.multiprocessors * std::max<int64_t>(each, 1);
  }
};

// compute() for a key, or what it was for a key that this thread has had not long ago: a step of
// decoding plans nothing anew. Few are kept, each in the place that its key decides.
template <typename Key, typename Compute>
auto remembered(const Key& key, const Compute& compute) {
  struct Kept {
    Key key;
    decltype(compute()) value;
    bool there = false;
  };
  constexpr uint64_t kPlaces = 16;
  static thread_local Kept places[kPlaces];
  uint64_t hash = 0;
  for (const int64_t number : key) {
    hash = (hash ^ static_cast<uint64_t>(number)) * 0x9e3779b97f4a7c15;
  }
  Kept& kept = places[(hash >> 32) % kPlaces];
  if (!kept.there || kept.key != key) kept = {key, compute(), true};
  return kept.value;
}

// Units of work that a piece takes, at most `most`, where `units` of each of `others` are cut into
// pieces: so that the last wave leaves no places empty, as far as that can be, and that no more is
// prepared than need be. A piece takes the time of its units and of one more.
inline int64_t units_of_piece(int64_t others, int64_t units, int64_t most, int64_t places) {
  constexpr int64_t kWaves = 8;  // with more of them the last one matters little
  most = std::max<int64_t>(std::min(most, units), 1);
  const auto time = [&](int64_t each) {
    return divide_up(others * divide_up(units, each), places) * (each + 1);
  };
  int64_t best = most;
  int64_t least = time(most);
  for (int64_t waves = 1; waves <= kWaves; ++waves) {
    const int64_t pieces = waves * places / std::max<int64_t>(others, 1);  // of each, at most
    if (pieces == 0) continue;
    const int64_t each = divide_up(units, pieces);
    if (each > most) continue;
    if (time(each) < least) {
      best = each;
      least = time(each);
    }
    if (each <= 1) break;
  }
  return std::max<int64_t>(best, 1);
}

// What all plans have: the threads of a block, and the pieces (x, y) that the blocks of a grid do.
struct LaunchPlan {
  int threads_x = 1, threads_y = 1, threads_z = 1;
  int64_t pieces_x = 0, pieces_y = 0;
  int64_t grid_x = 0, grid_y = 0;
  size_t shared_bytes = 0;
  bool programmatic = false;  // launched while the kernel before it still runs

  POSENC_HD int threads() const { return threads_x * threads_y * threads_z; }

  void take_pieces(int64_t x, int64_t y, GridLimit limit) {
    pieces_x = x;
    pieces_y = y;
    grid_x = std::min(x, limit.x);
    grid_y = std::min(y, limit.y);
  }
};

}  // namespace posenc::cuda
