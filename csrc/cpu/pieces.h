// How sums along diagonals are cut into pieces: the same for every target and number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/toeplitz.h"

namespace posenc::cpu {

// A piece of sums is a range of the entries (of the first axis of a grid) of one kept plane: planes
// are split until there is work for many threads.
constexpr int64_t kManyPieces = 16;
constexpr int64_t kMinSumEntries = 512;  // in a piece, without a grid

inline int64_t parts_of_plane(const ToeplitzArgs& args) {
  const int64_t kept = std::max<int64_t>(args.kept_count(), 1);
  const int64_t wanted = (kManyPieces + kept - 1) / kept;
  const int64_t entries = args.entries[0];
  if (args.grid_rank > 1) return std::min(wanted, entries);
  return std::min(wanted, (entries + kMinSumEntries - 1) / kMinSumEntries);
}

}  // namespace posenc::cpu
