#include <type_traits>

#include "cuda/gather.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace posenc::cuda {

cudaError_t relative_gather(const RelativeArgs& args, cudaStream_t stream) {
  if (args.index.data == nullptr) return relative_shift(args, false, stream);
  return visit_gather_launch(args, {}, [&](const auto& parameters, auto* type) {
    return launch_tiles<std::remove_pointer_t<decltype(type)>>(parameters, stream);
  });
}

}  // namespace posenc::cuda
