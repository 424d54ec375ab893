// Prints what csrc/core/phase.h and frequency.h compute, for test_phase.py to compare bit by bit.
// Numbers go in and come out as raw memory.
//
//   turns               w (double) ...                    ->  fraction, whole
//   split               p (double) ...                    ->  integer, fraction
//   sincos              integer, fraction, w (double) ... ->  sin, cos in double; in float
//   table PAIRS BASE SHIFT SCALE                          ->  fraction, whole of each pair

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/frequency.h"
#include "core/phase.h"

namespace {

template <typename T>
bool read(T* value) {
  return std::fread(value, sizeof(T), 1, stdin) == 1;
}

template <typename T>
void write(const T& value) {
  std::fwrite(&value, sizeof(T), 1, stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  double number;
  posenc::Position position;
  if (mode == "turns") {
    while (read(&number)) write(posenc::turns_from_radians(posenc::to_binary(number)));
  } else if (mode == "split") {
    while (read(&number)) write(posenc::split_position(posenc::to_binary(number)));
  } else if (mode == "sincos") {
    while (read(&position) && read(&number)) {
      const uint64_t phase =
          posenc::phase(position, posenc::turns_from_radians(posenc::to_binary(number)));
      write(posenc::sincos<double>(phase));
      write(posenc::sincos<float>(phase));
    }
  } else if (mode == "table" && argc == 6) {
    posenc::sinusoidal_turns(std::atoll(argv[2]), std::atof(argv[3]), std::atof(argv[4]),
                             std::atof(argv[5]),
                             [](int64_t, posenc::Turns turns) { write(turns); });
  } else {
    return 1;
  }
  return 0;
}
