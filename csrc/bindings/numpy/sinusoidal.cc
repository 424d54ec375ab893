// Tables of sines and cosines on NumPy arrays: sinusoidal encodings, and the tables of rotary.

#include "core/sinusoidal.h"

#include <cstdint>
#include <string>
#include <vector>

#include "bindings/numpy/arguments.h"
#include "bindings/numpy/methods.h"
#include "bindings/numpy/run.h"
#include "cpu/run.h"

namespace posenc::numpy {
namespace {

SinusoidalSpec make_spec(const char* function, int64_t dim, py::handle base, py::handle layout,
                         py::handle shift, py::handle scale) {
  SinusoidalSpec spec;
  spec.dim = dim;
  spec.base = number(function, "base", base);
  spec.layout = text(function, "layout", layout);
  spec.shift = number(function, "shift", shift);
  spec.scale = number(function, "scale", scale);
  check_sinusoidal_spec(function, spec);
  return spec;
}

// positions.shape (less its first `leading` axes) + (last,)
std::vector<py::ssize_t> table_shape(const char* function, const PositionsArgument& positions,
                                     int leading, int64_t last, Dtype dtype) {
  std::vector<py::ssize_t> shape;
  if (positions.array) {
    const Array& array = positions.array.array();
    for (int i = leading; i < array.rank; ++i) shape.push_back(array.shape[i]);
  } else {
    shape.push_back(positions.count);
  }
  const std::vector<int64_t> rows(shape.begin(), shape.end());
  check_result_size(function, rows.data(), static_cast<int>(rows.size()), last, dtype);
  shape.push_back(last);
  return shape;
}

py::object sinusoidal(py::handle positions, py::handle dim, py::handle base, py::handle layout,
                      py::handle shift, py::handle scale, py::handle dtype, py::handle out) {
  const char* const function = "sinusoidal";
  const PositionsArgument given(function, positions);
  const Array* array = given.array.pointer();
  if (array != nullptr) check_positions(function, *array);
  const SinusoidalSpec spec =
      make_spec(function, integer(function, "dim", dim), base, layout, shift, scale);
  ArrayArgument result;
  if (out.is_none()) {
    const py::dtype type = result_dtype(function, dtype);
    result = {function, "out",
              py::array(type, table_shape(function, given, 0, spec.dim, dtype_of(type)))};
  } else {
    result = output_array(function, "out", out);
    if (!dtype.is_none() && !result_dtype(function, dtype).is(result.dtype()) &&
        !result_dtype(function, dtype).equal(result.dtype())) {
      fail_type(
          function, "out",
          "the dtype asked for, " + py::cast<std::string>(py::str(result_dtype(function, dtype))),
          result.array().dtype_name);
    }
  }
  cpu::write_sinusoidal(check_sinusoidal(function, array, given.count, spec, result.array()),
                        run_rows);
  return result.object();
}

py::object add_sinusoidal(py::handle x, py::handle positions, py::handle x_scale, py::handle alpha,
                          py::handle base, py::handle layout, py::handle shift, py::handle scale,
                          py::handle out) {
  const char* const function = "add_sinusoidal";
  const ArrayArgument input(function, "x", require_array(function, "x", x));
  const ArrayArgument given = optional_array(function, "positions", positions);
  check_real(function, "x", input.array());
  if (input.array().rank < 2) {
    fail_value(function, "x", "shape [..., seq, dim]", shape_string(input.array()));
  }
  const SinusoidalSpec spec =
      make_spec(function, input.array().shape[input.array().rank - 1], base, layout, shift, scale);
  const ArrayArgument result = out.is_none()
                                   ? ArrayArgument(function, "out", empty_like(input.object()))
                                   : output_array(function, "out", out);
  cpu::write_sinusoidal(check_add_sinusoidal(function, input.array(), given.pointer(), spec,
                                             number(function, "x_scale", x_scale),
                                             number(function, "alpha", alpha), result.array()),
                        run_rows);
  return result.object();
}

py::tuple rotary_tables(py::handle positions, py::handle inv_freq, py::handle axis_map,
                        py::handle scale, py::handle dtype) {
  const char* const function = "rotary_tables";
  const PositionsArgument given(function, positions);
  const Array* array = given.array.pointer();
  if (array != nullptr) check_positions(function, *array);
  const ArrayArgument frequencies = optional_array(function, "inv_freq", inv_freq);
  if (!frequencies) fail_type(function, "inv_freq", "an array", "None");
  check_frequencies(function, frequencies.array());
  const ArrayArgument axes = optional_array(function, "axis_map", axis_map);
  if (axes && (array == nullptr || array->rank < 1)) {
    fail_value(function, "positions", "shape [A, ...] with axis_map",
               array == nullptr ? "a count" : "shape []");
  }
  const py::dtype type = result_dtype(function, dtype);
  const auto shape =
      table_shape(function, given, axes ? 1 : 0, frequencies.array().shape[0], dtype_of(type));
  const ArrayArgument cosine(function, "cos", py::array(type, shape));
  const ArrayArgument sine(function, "sin", py::array(type, shape));
  cpu::write_sinusoidal(
      check_rotary_tables(function, array, given.count, frequencies.array(), axes.pointer(),
                          number(function, "scale", scale), cosine.array(), sine.array()),
      run_rows);
  return py::make_tuple(cosine.object(), sine.object());
}

}  // namespace

void define_sinusoidal(py::module_& m) {
  static PyMethodDef methods[] = {method<&sinusoidal>("sinusoidal"),
                                  method<&add_sinusoidal>("add_sinusoidal"),
                                  method<&rotary_tables>("rotary_tables"),
                                  {nullptr, nullptr, 0, nullptr}};
  add_methods(m, methods);
}

}  // namespace posenc::numpy
