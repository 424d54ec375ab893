// Phases that data decide, on NumPy arrays.

#include "core/phases.h"

#include <cstdint>
#include <vector>

#include "bindings/numpy/arguments.h"
#include "bindings/numpy/methods.h"
#include "bindings/numpy/run.h"
#include "cpu/run.h"

namespace posenc::numpy {
namespace {

// Steps [..., s, P] and a state [..., P], or None: phases like steps.
py::object accumulated_phases(py::handle steps, py::handle state) {
  const char* const function = "accumulated_phases";
  const ArrayArgument given(function, "steps", require_array(function, "steps", steps));
  const ArrayArgument before = optional_array(function, "state", state);
  const Array& array = given.array();
  const std::vector<py::ssize_t> shape(array.shape, array.shape + array.rank);
  const py::array_t<int64_t> phases(shape);
  const ArrayArgument result(function, "phases", phases);
  cpu::accumulate_phases(check_accumulate(function, array, before.pointer(), result.array()),
                         run_rows);
  return phases;
}

// phases in C order: cos and sin like them.
py::object phase_tables(py::handle phases, py::handle dtype) {
  const char* const function = "phase_tables";
  const ArrayArgument given(function, "phases", require_array(function, "phases", phases));
  const Array& array = given.array();
  const std::vector<py::ssize_t> shape(array.shape, array.shape + array.rank);
  const py::dtype type = py::reinterpret_borrow<py::dtype>(dtype);
  const py::array cosine(type, shape), sine(type, shape);
  const ArrayArgument to_cosine(function, "cos", cosine), to_sine(function, "sin", sine);
  cpu::write_phase_tables(check_phase_tables(function, array, to_cosine.array(), to_sine.array()),
                          run_rows);
  return py::make_tuple(cosine, sine);
}

}  // namespace

void define_phases(py::module_& m) {
  static PyMethodDef methods[] = {method<&accumulated_phases>("accumulated_phases"),
                                  method<&phase_tables>("phase_tables"),
                                  {nullptr, nullptr, 0, nullptr}};
  add_methods(m, methods);
}

}  // namespace posenc::numpy
