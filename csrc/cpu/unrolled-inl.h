// Loops whose steps are known when they are compiled, written out: at -O2 the compiler leaves loops
// over registers as loops, and what they keep goes through memory.

#pragma once

#include <type_traits>
#include <utility>

#include "hwy/highway.h"

// Of a step, behind its parameters: never a call, which would take vectors through memory. What
// sanitizers add to inlined steps takes a compiler a quarter of an hour.
#undef POSENC_INLINED
#ifdef POSENC_SANITIZED
#define POSENC_INLINED HWY_ATTR
#else
#define POSENC_INLINED HWY_ATTR __attribute__((always_inline))
#endif

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {

template <class Step, int... kSteps>
HWY_ATTR HWY_INLINE void unrolled(const Step& step, std::integer_sequence<int, kSteps...>) {
  (step(std::integral_constant<int, kSteps>()), ...);
}

// step(0) .. step(kCount - 1), the numbers as constants. At -O2 a loop stays one, and the vectors
// that its steps leave for a later loop go through memory.
template <int kCount, class Step>
HWY_ATTR HWY_INLINE void unrolled(const Step& step) {
  unrolled(step, std::make_integer_sequence<int, kCount>());
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
