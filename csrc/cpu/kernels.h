// The CPU kernels: ranges of rows, so that the caller decides who runs them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/rotary.h"
#include "core/sinusoidal.h"

namespace posenc::cpu {

// Rotates the tokens [begin, end) of the batch * tokens rows, all heads of q and k.
void rotary(const RotaryArgs& args, int64_t begin, int64_t end);

// Writes the rows [begin, end).
void sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t end);

// Names of the compiled SIMD targets that this processor can run, best first; of the one in use.
std::vector<std::string> available_targets();
std::string current_target();

// Chooses one of available_targets(); "" is the best. False if there is no such target.
bool set_target(std::string_view name);

// Rows of at least this many bytes in all are worth a second thread ...
constexpr int64_t kBytesPerThread = int64_t{1} << 19;
// ... and outputs of at least this many bytes are written past the cache: half of the last level,
// since what is read passes through it as well. Settable for tests; 0 restores the default.
int64_t non_temporal_bytes();
void set_non_temporal_bytes(int64_t bytes);

}  // namespace posenc::cpu
