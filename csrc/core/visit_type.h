// From a dtype to the type of its numbers.
#pragma once

#include "core/half.h"
#include "core/view.h"

namespace posenc {

// Calls visit(a number of the type, zero) for a dtype of real numbers, which has been checked.
template <typename Visit>
auto visit_type(Dtype dtype, const Visit& visit) {
  switch (dtype) {
    case Dtype::kFloat16:
      return visit(Float16{});
    case Dtype::kBFloat16:
      return visit(BFloat16{});
    case Dtype::kFloat32:
      return visit(float{});
    default:
      return visit(double{});
  }
}

}  // namespace posenc
