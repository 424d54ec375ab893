#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/toeplitz.cuh"

namespace posenc::cuda {

cudaError_t toeplitz(const ToeplitzArgs& args, cudaStream_t stream) {
  return visit_toeplitz_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch_tiles<Thread>(ToeplitzParameters{args, plan_toeplitz<Thread>(args)}, stream);
  });
}

}  // namespace posenc::cuda
