// Which SIMD target runs. Every kernel file keeps a table of its function per target
// (POSENC_EXPORT). Highway's own choice is process-wide and would be shared with other libraries,
// so we keep ours, and with it need nothing of Highway but its headers.
#pragma once

#include <atomic>

#include "hwy/highway.h"

namespace posenc::cpu {

const hwy::ChosenTarget& chosen_target();

// Whether AVX3 kernels may use AVX512_BF16, which Highway's AVX3 does not ask for.
extern std::atomic<bool> bfloat16_instructions;

}  // namespace posenc::cpu

// Like HWY_EXPORT and HWY_DYNAMIC_DISPATCH, with our choice. The first entry of Highway's table
// calls its library to choose a target; ours is never read, since one has been chosen before.
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
#define POSENC_EXPORT(FUNCTION) HWY_EXPORT(FUNCTION)
#define POSENC_DISPATCH(FUNCTION) HWY_STATIC_DISPATCH(FUNCTION)
#else
#define POSENC_EXPORT(FUNCTION)                                                            \
  static decltype(&HWY_STATIC_DISPATCH(FUNCTION)) const HWY_DISPATCH_TABLE(                \
      FUNCTION)[HWY_MAX_DYNAMIC_TARGETS + 2] = {nullptr, HWY_CHOOSE_TARGET_LIST(FUNCTION), \
                                                HWY_CHOOSE_FALLBACK(FUNCTION)}
#define POSENC_DISPATCH(FUNCTION) \
  (*(HWY_DISPATCH_TABLE(FUNCTION)[::posenc::cpu::chosen_target().GetIndex()]))
#endif
