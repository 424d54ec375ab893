#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/shift.cuh"

namespace posenc::cuda {

cudaError_t relative_shift(const RelativeArgs& args, bool scatter, cudaStream_t stream) {
  return visit_shift_launch(args, scatter, {}, [&](const auto& parameters, auto* type) {
    return launch_tiles<std::remove_pointer_t<decltype(type)>>(parameters, stream);
  });
}

}  // namespace posenc::cuda
