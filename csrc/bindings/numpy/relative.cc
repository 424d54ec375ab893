// Biases by distance and look-ups by distance: on NumPy arrays, with lengths and entries that the
// caller has found, and at the door, where tensors come too and arguments are the public
// ones.

#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bindings/numpy/arguments.h"
#include "bindings/numpy/methods.h"
#include "bindings/numpy/run.h"
#include "core/lookup.h"
#include "core/toeplitz.h"
#include "cpu/run.h"

namespace posenc::numpy {
namespace {

// A tuple of ints, one for each axis of the grid.
struct Lengths {
  int count = 0;
  int64_t values[kMaxGridRank] = {};

  Lengths(const char* function, const char* name, py::handle object) {
    const auto tuple = py::cast<py::tuple>(object);
    count = static_cast<int>(tuple.size());
    if (count < 1 || count > kMaxGridRank) {
      fail_value(function, name, "1 to " + std::to_string(kMaxGridRank) + " axes",
                 std::to_string(tuple.size()));
    }
    for (int i = 0; i < count; ++i)
      values[i] = integer(function, name, tuple[static_cast<size_t>(i)]);
  }
};

// What all operations on diagonals take.
struct ToeplitzArguments {
  ToeplitzArguments(const char* function, py::handle diagonals, py::handle q_len, py::handle k_len,
                    py::handle start, py::handle q_offset)
      : diagonals(function, "diagonals", require_array(function, "diagonals", diagonals)),
        q_offset(optional_array(function, "q_offset", q_offset)),
        q_len(function, "q_len", q_len),
        k_len(function, "k_len", k_len),
        start(function, "origin", start) {
    if (this->k_len.count != this->q_len.count || this->start.count != this->q_len.count) {
      fail_value(function, "k_len", "as many axes as q_len", std::to_string(this->k_len.count));
    }
    call.function = function;
    call.diagonals = &this->diagonals.array();
    call.q_offset = this->q_offset.pointer();
    call.grid_rank = this->q_len.count;
    call.q_len = this->q_len.values;
    call.k_len = this->k_len.values;
    call.origin = this->start.values;
  }

  ArrayArgument diagonals, q_offset;
  Lengths q_len, k_len, start;
  ToeplitzCall call;
};

std::vector<py::ssize_t> shape_of(const int64_t* shape, int rank) { return {shape, shape + rank}; }

py::object toeplitz_bias(py::handle diagonals, py::handle q_len, py::handle k_len, py::handle start,
                         py::handle q_offset, py::handle dtype, py::handle out) {
  const char* const function = "toeplitz_bias";
  ToeplitzArguments arguments(function, diagonals, q_len, k_len, start, q_offset);
  ArrayArgument result;
  if (out.is_none()) {
    int64_t shape[kMaxRank];
    const int rank = check_toeplitz_shape(arguments.call, shape);
    const py::dtype type =
        dtype.is_none() ? arguments.diagonals.dtype() : result_dtype(function, dtype);
    result = {function, "out", py::array(type, shape_of(shape, rank))};
  } else {
    result = output_array(function, "out", out);
    if (!dtype.is_none() && !result_dtype(function, dtype).equal(result.dtype())) {
      fail_type(
          function, "out",
          "the dtype asked for, " + py::cast<std::string>(py::str(result_dtype(function, dtype))),
          result.array().dtype_name);
    }
  }
  arguments.call.out = &result.array();
  cpu::lay_diagonals(check_toeplitz(arguments.call), run_rows);
  return result.object();
}

py::object add_toeplitz_bias(py::handle scores, py::handle diagonals, py::handle q_len,
                             py::handle k_len, py::handle start, py::handle q_offset,
                             py::handle out) {
  const char* const function = "add_toeplitz_bias";
  const ArrayArgument input(function, "scores", require_array(function, "scores", scores));
  ToeplitzArguments arguments(function, diagonals, q_len, k_len, start, q_offset);
  const ArrayArgument result = out.is_none()
                                   ? ArrayArgument(function, "out", empty_like(input.object()))
                                   : output_array(function, "out", out);
  arguments.call.scores = &input.array();
  arguments.call.out = &result.array();
  cpu::lay_diagonals(check_toeplitz(arguments.call), run_rows);
  return result.object();
}

// `shape` is that of the result.
py::object diagonal_sums(py::handle grad, py::handle shape, py::handle q_len, py::handle k_len,
                         py::handle start, py::handle q_offset) {
  const char* const function = "diagonal_sums";
  const ArrayArgument input(function, "grad", require_array(function, "grad", grad));
  check_real(function, "grad", input.array());
  const py::dtype type = sum_dtype(input.array().dtype) == Dtype::kFloat64 ? py::dtype::of<double>()
                                                                           : py::dtype::of<float>();
  const py::array result(type, py::cast<std::vector<py::ssize_t>>(shape));
  ToeplitzArguments arguments(function, result, q_len, k_len, start, q_offset);
  arguments.call.scores = &input.array();
  cpu::sum_diagonals(check_diagonal_sums(arguments.call), run_rows);
  return result;
}

// What gather and scatter take; `call` points into the arrays.
struct RelativeArguments {
  RelativeArguments(const char* function, const char* in_name, py::handle in, py::handle index,
                    py::handle size, py::handle start, py::handle q_offset, py::handle missing,
                    py::handle scale)
      : in(function, in_name, require_array(function, in_name, in)),
        index(optional_array(function, "index", index)),
        q_offset(optional_array(function, "q_offset", q_offset)) {
    call.function = function;
    call.in = &this->in.array();
    call.index = this->index.pointer();
    call.q_offset = this->q_offset.pointer();
    call.size = integer(function, "size", size);
    call.origin = integer(function, "origin", start);
    call.has_missing = !missing.is_none();
    if (call.has_missing) call.missing = integer(function, "missing", missing);
    call.scale = number(function, "scale", scale);
  }

  // `out`, or a new array of this shape.
  ArrayArgument result(const int64_t* shape, int rank, py::handle out) const {
    return out.is_none()
               ? ArrayArgument(call.function, "out", py::array(in.dtype(), shape_of(shape, rank)))
               : output_array(call.function, "out", out);
  }

  ArrayArgument in, index, q_offset;
  RelativeCall call;
};

py::object relative_gather(py::handle x, py::handle index, py::handle k_len, py::handle start,
                           py::handle q_offset, py::handle missing, py::handle content,
                           py::handle scale, py::handle out) {
  const char* const function = "relative_gather";
  RelativeArguments arguments(function, "x", x, index, k_len, start, q_offset, missing, scale);
  ArrayArgument added;
  if (!content.is_none()) {
    added = {function, "content", require_array(function, "content", content)};
    arguments.call.content = &added.array();
  }
  int64_t shape[kMaxRank];
  const int rank = check_relative_gather_shape(arguments.call, shape);
  const ArrayArgument result = arguments.result(shape, rank, out);
  arguments.call.out = &result.array();
  cpu::gather(check_relative_gather(arguments.call), run_rows);
  return result.object();
}

py::object relative_scatter(py::handle grad, py::handle index, py::handle width, py::handle start,
                            py::handle q_offset, py::handle missing, py::handle scale,
                            py::handle out) {
  const char* const function = "relative_scatter";
  RelativeArguments arguments(function, "grad", grad, index, width, start, q_offset, missing,
                              scale);
  int64_t shape[kMaxRank];
  const int rank = check_relative_scatter_shape(arguments.call, shape);
  const ArrayArgument result = arguments.result(shape, rank, out);
  arguments.call.out = &result.array();
  cpu::scatter(check_relative_scatter(arguments.call), run_rows);
  return result.object();
}

}  // namespace

void define_relative(py::module_& m) {
  static PyMethodDef methods[] = {method<&toeplitz_bias>("toeplitz_bias"),
                                  method<&add_toeplitz_bias>("add_toeplitz_bias"),
                                  method<&diagonal_sums>("diagonal_sums"),
                                  method<&relative_gather>("relative_gather"),
                                  method<&relative_scatter>("relative_scatter"),
                                  {nullptr, nullptr, 0, nullptr}};
  add_methods(m, methods);
}

}  // namespace posenc::numpy
