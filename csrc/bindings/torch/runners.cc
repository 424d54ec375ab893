#include "bindings/runners.h"

#include <cstdint>

#include "bindings/torch/library.h"
#include "bindings/torch/run.h"
#include "bindings/torch/tensors.h"

namespace posenc::operators {
namespace {

#define POSENC_RUNNER(function, Args) \
  [](const char* name, Place place, const Args& args) { function(Call(name, Device(place)), args); }

int64_t runners() {
  static const Runners table = {Runners::kLayout,
                                POSENC_RUNNER(run, RotaryArgs),
                                POSENC_RUNNER(run, NormRotaryArgs),
                                POSENC_RUNNER(run, SinusoidalArgs),
                                POSENC_RUNNER(lay_diagonals, ToeplitzArgs),
                                POSENC_RUNNER(sum_diagonals, ToeplitzArgs),
                                POSENC_RUNNER(gather, RelativeArgs),
                                POSENC_RUNNER(scatter, RelativeArgs)};
  return reinterpret_cast<int64_t>(&table);
}

}  // namespace

void define_runners(Library& m) { m.def("runners() -> int"); }
void implement_runners(Library& m) { m.impl("runners", TORCH_BOX(&runners)); }

}  // namespace posenc::operators
