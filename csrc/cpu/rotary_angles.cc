// Angles of rotary, compiled once for all kernels that turn pairs by them.

#include "cpu/one_target.h"
// After one_target.h:
#include "cpu/rotary_angles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {

POSENC_ROTARY_ANGLES();

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
