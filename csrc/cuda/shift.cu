#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/shift.cuh"

namespace posenc::cuda {

cudaError_t relative_shift(const RelativeArgs& args, bool scatter, Queue queue) {
  RelativeParameters parameters = arrange(args, scatter);
  return visit_shift_thread(parameters, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    return launch_tiles<Thread, RelativeParameters>(queue, [&](const Room& room) {
      parameters.plan = plan_shift<Thread>(parameters, room);
      return parameters;
    });
  });
}

}  // namespace posenc::cuda
