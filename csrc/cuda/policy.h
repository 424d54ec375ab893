// How launches are shaped: the numbers to tune, all of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace posenc::cuda {

struct Policy {
  // Threads of a block.
  static constexpr int kThreads = 256;
  // Blocks that a multiprocessor can hold at least: a thread may use up to 128 registers, which
  // all kernels do with, none in memory (`make gpu-resources`).
  static constexpr int kBlocksPerProcessor = 2;
  // Likewise of threads whose warps wait for nobody: up to 128 registers. With fewer of them some
  // would be in memory, which takes longer than more warps gain.
  static constexpr int kWarpThreads = 128;
  static constexpr int kWarpBlocksPerProcessor = 4;
  // Steps of such a warp that are in shared memory or on their way to it, 2 KiB each.
  static constexpr int kWarpStages = 3;
  // Frequencies of a pair, at most, that they add up: there is shared memory for so many.
  static constexpr int64_t kWarpTerms = 8;
  // And heads of a tensor: steps of all warps have room in 32 bits.
  static constexpr int64_t kWarpHeads = 4096;
  // Likewise of threads that write tables, which wait for arithmetic alone.
  static constexpr int kTableBlocksPerProcessor = 3;
  // Vectors of a row that one block takes, at most; fewer where they need more shared memory.
  static constexpr int kRowVectors = 128;
  static constexpr size_t kSharedBytes = 49152;
  // Below it there is room in 32 bits for what threads beyond the end come to.
  static constexpr int64_t kNarrow = (int64_t{1} << 31) - (1 << 20);
  // Axes of positions, at most, of which a block has frequencies and sums in shared memory: room
  // for a vector of pairs. A call with more goes the way of single numbers, whose threads read
  // frequencies where they lie, and sum up the gradients of so many axes at a time.
  static constexpr int64_t kMostAxes = 128;
  // Heads that a thread reads before it writes the first: 16-byte requests in flight, times two for
  // pairs far apart.
  static constexpr int kHeads = 4;
  // Likewise of a gradient, of which each has two vectors: of x and of the gradient of out.
  static constexpr int kGradientHeads = 2;
  // Blocks of tokens, at most, that a block of threads sums up in float32 one after the other; and
  // pieces of work that there are at least before it takes a second one.
  static constexpr int64_t kGradientRounds = 16;
  static constexpr int64_t kGradientPieces = 2048;
  // Columns of partial sums, and the threads that share out each.
  static constexpr int kSumColumns = 8;
  static constexpr int kSumRows = 32;
  // Likewise, vectors of x that sinusoids are added to.
  static constexpr int kSumWords = 4;
  // Rows that a thread of a table writes, at most, for one reading of the frequencies.
  static constexpr int64_t kRows = 16;

  // Tokens whose angles a block of norm and rotation computes at a time.
  static constexpr int kNormTokens = 4;

  // Rotations by steps. Likewise, of threads that wait for nobody and keep phases of four pairs
  // beside what they read: up to 128 registers.
  static constexpr int kWalkBlocksPerProcessor = 4;
  // And of those that read x beside the gradients: up to 168 registers.
  static constexpr int kWalkBackBlocksPerProcessor = 3;
  // Tokens of a segment; so many threads, or segments are cut shorter: 192 for
  // each multiprocessor of an H100. A row of up to kOneSegment tokens is not cut, which takes one
  // launch instead of three.
  static constexpr int64_t kMostSegment = 32;
  static constexpr int64_t kLeastSegment = 8;
  static constexpr int64_t kOneSegment = 16;
  static constexpr int64_t kSegmentThreads = 25344;
  // Tokens whose steps are read before one is added; tokens whose heads are asked for before they
  // are read.
  static constexpr int kStepReads = 8;
  static constexpr int kTokensAhead = 2;

  // Relative encodings. As kBlocksPerProcessor, of threads that move 4 bytes and less.
  static constexpr int kNarrowBlocksPerProcessor = 3;
  // Vectors of a row that one block takes, at most (or as many as leave no thread idle), and
  // threads that share out its rows: bound its entries in shared memory (at most 1024 rows and 2048
  // columns).
  static constexpr int kTileVectors = 64;
  static constexpr int kTileRowThreads = 32;
  static constexpr int kMostThreadsZ = 64;  // that CUDA allows
  // Rows of a thread's tile: words in flight where scores are added; what is in registers of the
  // entries serves all of them.
  static constexpr int kTileRows = 8;
  // Tiles that a thread goes through, at most, for one staging of the entries.
  static constexpr int kTiles = 4;
  // Lines of a thread's tile; words that it reads before it writes the first.
  static constexpr int kLineRows = 4;
  static constexpr int kLineReads = 4;
  // Rows of rank 1 are joined to a line if they are shorter than a warp's vectors, and often enough
  // repeated to find out the bias of every number.
  static constexpr int64_t kJoinedColumns = 256;
  static constexpr int64_t kJoinedRepetitions = 8;
  // Vectors that a thread of a shift copies at once, of two words each; half as many where content
  // is added or numbers are scaled.
  static constexpr int kShiftReads = 4;
  // Vectors of a row for one thread, at most: 16, and one where a row does not begin with a vector.
  static constexpr int64_t kShiftVectors = 17;
  // As kBlocksPerProcessor, of its threads: up to 80 registers.
  static constexpr int kShiftBlocksPerProcessor = 3;
  // Its pieces for every place, at least: those at the ends of rows write zeros alone.
  static constexpr int64_t kShiftWaves = 16;
  // Likewise of a gather by vectors, of 8 numbers each.
  static constexpr int kGatherRows = 2;
  // Its pieces for every place, at least: those of far distances read little.
  static constexpr int64_t kGatherWaves = 8;
  // Of a gather by warps, which keep rows of x in shared memory: rows at a time; blocks that a
  // multiprocessor can hold at least; warps of a block that there is room for, or it is not done by
  // warps; vectors of a row that a block takes, at most, whose entries are in shared memory.
  static constexpr int kGatherWarpRows = 4;
  static constexpr int kGatherBlocksPerProcessor = 3;
  static constexpr int kGatherLeastWarps = 4;
  static constexpr int kGatherVectors = 512;
  // Rows of diagonal sums that a thread reads at once, of two words each; a divisor of 8.
  static constexpr int kSumsRows = 4;
  // Bytes that neighboring threads read side by side, at least.
  static constexpr int kSumsBytes = 64;
  // Planes whose longest diagonals are summed up first, at most: blocks beside each other, which
  // share what memory delivers at once, are still running together.
  static constexpr int64_t kSumsPlanes = 64;
  // Pieces, at least, or blocks of repetitions are pieces of their own.
  static constexpr int64_t kSumsPieces = 1024;
  // Pieces for every place, at least, as long as threads have enough to read: the longest diagonals
  // take twice the time of the mean.
  static constexpr int64_t kSumsWaves = 4;
  // Blocks of 256 rows for each thread, at least, or it takes 8 rows at a time.
  static constexpr int kSumsRounds = 4;
  // Rows that a block scatters, for one reading of the index; a divisor of 16.
  static constexpr int kScatterRows = 8;
  // Words of 4 bytes that a thread reads of a long list before it adds the first.
  static constexpr int kScatterWords = 32;
  // Entries of a column that one thread, one warp sums up at most.
  static constexpr int kThreadList = 16;
  static constexpr int kWarpList = 512;
  // Of a scatter by warps, which keep a row in shared memory: words that a thread reads before it
  // keeps the first; blocks that a multiprocessor can hold at least; pieces for every place, at
  // least; warps of a block that there is room for, and keys of a row, at least, or it is not done
  // by warps.
  static constexpr int kScatterReads = 4;
  static constexpr int kScatterBlocksPerProcessor = 3;
  static constexpr int64_t kScatterWaves = 2;
  static constexpr int64_t kScatterLeastWarps = 2;
  static constexpr int64_t kScatterKeys = 128;
};

// Of a warp: those that take part where lanes read of each other. A lane that is not among them, or
// that has gone another way, leaves the others waiting, or with any number.
// Threads of a warp.
constexpr int kLanes = 32;
constexpr uint32_t kAllLanes = 0xffffffff;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace posenc::cuda
