#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/toeplitz.cuh"

namespace posenc::cuda {

cudaError_t toeplitz(const ToeplitzArgs& args, Queue queue) {
  return visit_toeplitz_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch_tiles<Thread, ToeplitzParameters>(queue, [&](const Room& room) {
      return ToeplitzParameters{args, plan_toeplitz<Thread>(args, room)};
    });
  });
}

}  // namespace posenc::cuda
