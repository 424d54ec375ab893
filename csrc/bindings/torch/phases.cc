// Phases that data decide, as operators.

#include "core/phases.h"

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "bindings/torch/library.h"
#include "bindings/torch/run.h"
#include "bindings/torch/tensors.h"

namespace posenc::operators {
namespace {

Tensor accumulated_phases(const Tensor& steps, const OptionalTensor& state) {
  return translate_errors([&] {
    const Call call("accumulated_phases", steps);
    const Array given = call.describe("steps", steps);
    const std::optional<Array> before = call.describe("state", state);
    const std::vector<int64_t> shape(given.shape, given.shape + given.rank);
    const Tensor phases = new_tensor(shape, ScalarType::Long, call.device);
    accumulate_phases(call, check_accumulate(call.function, given, pointer(before),
                                             call.describe("phases", phases)));
    return phases;
  });
}

std::tuple<Tensor, Tensor> phase_tables(const Tensor& phases, ScalarType dtype) {
  return translate_errors([&] {
    const Call call("phase_tables", phases);
    const Array given = call.describe("phases", phases);
    const std::vector<int64_t> shape(given.shape, given.shape + given.rank);
    const Tensor cosine = new_tensor(shape, dtype, call.device);
    const Tensor sine = new_tensor(shape, dtype, call.device);
    write_phase_tables(call, check_phase_tables(call.function, given, call.describe("cos", cosine),
                                                call.describe("sin", sine)));
    return std::tuple(cosine, sine);
  });
}

}  // namespace

void define_phases(Library& m) {
  m.def("accumulated_phases(Tensor steps, Tensor? state) -> Tensor");
  m.def("phase_tables(Tensor phases, ScalarType dtype) -> (Tensor, Tensor)");
}

void implement_phases(Library& m) {
  m.impl("accumulated_phases", TORCH_BOX(&accumulated_phases));
  m.impl("phase_tables", TORCH_BOX(&phase_tables));
}

}  // namespace posenc::operators
