// What the torch operators do with a checked call, for the door of the NumPy module: kernels on
// torch's threads, or those of a GPU. The modules do not link each other. The operator `runners`
// tells the address of this table, and Python passes it on.
#pragma once

#include <cstdint>

#include "core/lookup.h"
#include "core/norm_rotary.h"
#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "core/toeplitz.h"

namespace posenc {

// Where the tensors of a call are: torch's number for the type of device, and which of them.
struct Place {
  int32_t type = 0, index = 0;  // of the CPU

  bool is_cpu() const { return type == 0; }
  bool operator==(const Place& other) const {
    return type == other.type && (is_cpu() || index == other.index);
  }
};

struct Runners {
  // What both modules have to agree on; another build may have laid out a struct otherwise.
  uint64_t layout = kLayout;
  void (*rotate)(const char* function, Place place, const RotaryArgs& args) = nullptr;
  void (*norm_rotate)(const char* function, Place place, const NormRotaryArgs& args) = nullptr;
  void (*write_sinusoidal)(const char* function, Place place, const SinusoidalArgs& args) = nullptr;
  void (*lay_diagonals)(const char* function, Place place, const ToeplitzArgs& args) = nullptr;
  void (*sum_diagonals)(const char* function, Place place, const ToeplitzArgs& args) = nullptr;
  void (*gather)(const char* function, Place place, const RelativeArgs& args) = nullptr;
  void (*scatter)(const char* function, Place place, const RelativeArgs& args) = nullptr;

  static constexpr uint64_t kLayout =
      ((((sizeof(RotaryArgs) * 4099 + sizeof(NormRotaryArgs)) * 4099 + sizeof(SinusoidalArgs)) *
            4099 +
        sizeof(ToeplitzArgs)) *
           4099 +
       sizeof(RelativeArgs)) *
          4099 +
      1;  // of this struct: one more with every change of it
};

}  // namespace posenc
