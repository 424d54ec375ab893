// Which SIMD target runs. Every kernel file keeps a table of its function per target (HWY_EXPORT);
// Highway's own choice is process-wide and would be shared with other libraries, so we keep ours.
#pragma once

#include "hwy/highway.h"

namespace posenc::cpu {

const hwy::ChosenTarget& chosen_target();

}  // namespace posenc::cpu

// Like HWY_DYNAMIC_DISPATCH, with our choice.
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
#define POSENC_DISPATCH(FUNCTION) HWY_STATIC_DISPATCH(FUNCTION)
#else
#define POSENC_DISPATCH(FUNCTION) \
  (*(HWY_DISPATCH_TABLE(FUNCTION)[::posenc::cpu::chosen_target().GetIndex()]))
#endif
