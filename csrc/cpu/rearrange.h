// Pairs moved from the dims of one pairing to those of another.
//
//   interleaved    a0 b0 a1 b1 a2 b2 a3 b3
//                   │  └──────┐
//   half           a0 a1 a2 a3 b0 b1 b2 b3
#pragma once

#include <cstdint>

#include "core/rotary.h"

namespace posenc::cpu {

// Copies the rows [begin, end) of x to out, their pairs to where they are written. Returns the rest
// of the call, a rotation of out where it is.
RotaryArgs rearrange(const RotaryArgs& args, int64_t begin, int64_t end);

}  // namespace posenc::cpu
