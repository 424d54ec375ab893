// The table of one target's kernels.

#include "cpu/one_target.h"

namespace posenc::cpu {

template <>
const Kernels& kernels_of<HWY_TARGET>() {
  static constexpr Kernels kKernels = {
      HWY_NAMESPACE::norm_rotary,      HWY_NAMESPACE::norm_rotary_gradient_piece,
      HWY_NAMESPACE::rotary,           HWY_NAMESPACE::rotary_gradient_piece,
      HWY_NAMESPACE::sinusoidal,       HWY_NAMESPACE::toeplitz,
      HWY_NAMESPACE::diagonal_sums,    HWY_NAMESPACE::relative_gather,
      HWY_NAMESPACE::relative_scatter, HWY_NAMESPACE::relative_shift_back,
      HWY_NAMESPACE::phase_tables,     HWY_NAMESPACE::sum_steps,
      HWY_NAMESPACE::rotary_by_steps,  HWY_NAMESPACE::steps_are_angles,
      HWY_NAMESPACE::angle_gradient,   HWY_NAMESPACE::step_gradient,
  };
  return kKernels;
}

}  // namespace posenc::cpu
