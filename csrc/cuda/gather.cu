#include <type_traits>

#include "cuda/gather.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"

namespace posenc::cuda {

cudaError_t relative_gather(const RelativeArgs& args, Queue queue) {
  if (args.index.data == nullptr) return relative_shift(args, false, queue);
  RelativeParameters parameters = arrange(args, false);
  return visit_gather_thread(parameters, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch_tiles<Thread, RelativeParameters>(queue, [&](const Room& room) {
      parameters.plan = plan_relative<Thread>(parameters, room);
      return parameters;
    });
  });
}

}  // namespace posenc::cuda
