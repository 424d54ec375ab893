// What a program that runs under valgrind --tool=callgrind may ask of it, for ctypes.
#include <valgrind/callgrind.h>

extern "C" void start_counting() { CALLGRIND_ZERO_STATS; }

// Writes what has been counted since into a file of its own, which has the name in it.
extern "C" void write_counts(const char* name) { CALLGRIND_DUMP_STATS_AT(name); }
