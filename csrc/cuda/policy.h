// How launches are shaped: the numbers to tune, all of them.
#pragma once

#include <cstdint>

namespace posenc::cuda {

struct Policy {
  // Threads of a block.
  static constexpr int kThreads = 256;
  // Blocks that a multiprocessor can hold at least: a thread may use up to 128 registers, which
  // all kernels do with, none in memory (`make gpu-resources`).
  static constexpr int kBlocksPerProcessor = 2;
  // Vectors of a row that one block takes, at most: bounds its shared memory (48 KiB).
  static constexpr int kRowVectors = 128;
  // Heads that a thread reads before it writes the first: 16-byte requests in flight, times two for
  // pairs far apart.
  static constexpr int kHeads = 4;
  // Likewise, vectors of x that sinusoids are added to.
  static constexpr int kSumWords = 4;
  // Blocks enough to fill a GPU, about four for each multiprocessor of a large one: with fewer, the
  // heads of a token (the repetitions of a row) are shared out among several blocks, which then
  // compute the same angles.
  static constexpr int64_t kBlocks = 512;
  // Rows that a thread of a table writes, at most, for one reading of the frequencies.
  static constexpr int64_t kRows = 16;
};

// The most blocks of a launch; more work than that is done in turns. Smaller only in tests.
struct GridLimit {
  int64_t x = 2147483647;
  int64_t y = 65535;
};

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace posenc::cuda
