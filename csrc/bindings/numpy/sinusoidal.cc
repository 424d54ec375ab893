// Tables of sines and cosines on NumPy arrays and, at the door, on tensors: sinusoidal
// encodings, and the tables of rotary.

#include "core/sinusoidal.h"

#include <cstdint>
#include <string>

#include "bindings/numpy/arguments.h"
#include "bindings/numpy/methods.h"
#include "bindings/numpy/options.h"
#include "bindings/numpy/run.h"
#include "cpu/run.h"

namespace posenc::numpy {
namespace {

using tensors::Form;
using tensors::Operation;

// All but dim, and not checked.
SinusoidalSpec make_spec(const char* function, py::handle base, py::handle layout, py::handle shift,
                         py::handle scale) {
  SinusoidalSpec spec;
  spec.base = number(function, "base", base);
  spec.layout = text(function, "layout", layout);
  spec.shift = number(function, "shift", shift);
  spec.scale = number(function, "scale", scale);
  return spec;
}

// A call that writes tables, or adds them, and the arrays or tensors behind it.
class Table : CallArguments<3> {
 public:
  // `operand`: positions of a table, x where it is added.
  Table(const char* function, py::handle operand)
      : CallArguments(function, operand), function_(function) {}

  py::object sinusoidal(py::handle positions, const SinusoidalSpec& spec, py::handle dtype,
                        py::handle out) {
    const PositionsArgument given = positions_of(positions);
    const Array* array = given.array.pointer();
    if (!all_read()) return not_mine();
    if (array != nullptr) check_positions(function_, *array);
    const ArrayArgument result =
        out.is_none() ? new_table("out", given, 0, spec.dim, dtype) : output("out", out);
    if (!may_write(Operation::kSinusoid, out.is_none() ? Form::kNew : Form::kOut, result)) {
      return not_mine();
    }
    if (!out.is_none() && !dtype.is_none()) {
      const py::dtype wanted = result_dtype(function_, dtype);
      if (!wanted.is(result.dtype()) && !wanted.equal(result.dtype())) {
        fail_type(function_, "out",
                  "the dtype asked for, " + py::cast<std::string>(py::str(wanted)),
                  result.array().dtype_name);
      }
    }
    write(check_sinusoidal(function_, array, given.count, spec, result.array()), result);
    if (!out.is_none()) written(out);
    return result.object();
  }

  // positions: an int is that of the first token.
  py::object add_sinusoidal(py::handle x, py::handle positions, double x_scale, double alpha,
                            SinusoidalSpec spec, py::handle out) {
    const ArrayArgument from = input("x", x);
    const bool counts = PyLong_CheckExact(positions.ptr());
    const int64_t first = counts ? integer(function_, "positions", positions) : 0;
    const ArrayArgument given = counts ? ArrayArgument() : option("positions", positions);
    if (!all_read() || first > kLastFirst) return not_mine();
    check_real(function_, "x", from.array());
    if (from.array().rank < 2) {
      fail_value(function_, "x", "shape [..., seq, dim]", shape_string(from.array()));
    }
    spec.dim = from.array().shape[from.array().rank - 1];
    check_sinusoidal_spec(function_, spec);
    const ArrayArgument to = out.is_none() ? result(from) : output("out", out);
    const Form form = out.is_none() ? Form::kNew : out.is(x) ? Form::kInPlace : Form::kOut;
    if (!may_write(Operation::kAddSinusoid, form, to)) return not_mine();
    SinusoidalArgs args = check_add_sinusoidal(function_, from.array(), given.pointer(), spec,
                                               x_scale, alpha, to.array());
    args.positions.first = first;
    write(args, to);
    if (!out.is_none()) written(out);
    return to.object();
  }

  py::object rotary_tables(py::handle positions, py::handle inv_freq, py::handle axis_map,
                           py::handle scale, py::handle dtype) {
    const PositionsArgument given = positions_of(positions);
    const Array* array = given.array.pointer();
    const ArrayArgument frequencies = option("inv_freq", inv_freq);
    const ArrayArgument axes = option("axis_map", axis_map);
    if (!all_read()) return not_mine();
    if (array != nullptr) check_positions(function_, *array);
    if (!frequencies) fail_type(function_, "inv_freq", "an array", "None");
    check_frequencies(function_, frequencies.array());
    if (axes && (array == nullptr || array->rank < 1)) {
      fail_value(function_, "positions", "shape [A, ...] with axis_map",
                 array == nullptr ? "a count" : "shape []");
    }
    const int64_t pairs = frequencies.array().shape[0];
    const ArrayArgument cosine = new_table("cos", given, axes ? 1 : 0, pairs, dtype);
    const ArrayArgument sine = new_table("sin", given, axes ? 1 : 0, pairs, dtype);
    if (!may_write(Operation::kRotaryTables, Form::kNew, sine)) return not_mine();
    write(check_rotary_tables(function_, array, given.count, frequencies.array(), axes.pointer(),
                              scale.is_none() ? 1.0 : number(function_, "scale", scale),
                              cosine.array(), sine.array()),
          sine);
    return py::make_tuple(cosine.object(), sine.object());
  }

 private:
  // So that no position is beyond 64 bits, whatever x has of tokens: nobody has as many.
  static constexpr int64_t kLastFirst = INT64_MAX - (int64_t{1} << 48);

  PositionsArgument positions_of(py::handle positions) {
    if (!of_tensors()) return {function_, positions};
    return PositionsArgument(option("positions", positions));
  }

  // positions.shape (less its first `leading` axes) + (last,)
  ArrayArgument new_table(const char* name, const PositionsArgument& positions, int leading,
                          int64_t last, py::handle dtype) {
    int64_t shape[kMaxRank + 1];
    int rank = 0;
    if (positions.array) {
      const Array& array = positions.array.array();
      for (int i = leading; i < array.rank; ++i) shape[rank++] = array.shape[i];
    } else {
      shape[rank++] = positions.count;
    }
    const py::dtype type = of_tensors() ? py::dtype::of<float>() : result_dtype(function_, dtype);
    check_result_size(function_, shape, rank, last, dtype_of(type));
    shape[rank++] = last;
    return of_tensors() ? result_of_tensors(shape, rank, positions.array, true)
                        : result(name, shape, rank, type);
  }

  // False where the operator has to do it.
  bool may_write(Operation operation, Form form, const ArrayArgument& to) const {
    return all_read() && to && has_own_kernels(operation, form);
  }

  void write(const SinusoidalArgs& args, const ArrayArgument& to) const {
    const auto write = [&](const Runners& runners, Place place) {
      runners.write_sinusoidal(function_, place, args);
    };
    if (!run_by_torch(bytes_of(to.array()), write)) cpu::write_sinusoidal(args, run_rows);
  }

  const char* const function_;
};

py::object sinusoidal(py::handle positions, py::handle dim, py::handle base, py::handle layout,
                      py::handle shift, py::handle scale, py::handle dtype, py::handle out) {
  const char* const function = "sinusoidal";
  SinusoidalSpec spec = make_spec(function, base, layout, shift, scale);
  spec.dim = integer(function, "dim", dim);
  check_sinusoidal_spec(function, spec);
  return Table(function, positions).sinusoidal(positions, spec, dtype, out);
}

py::object add_sinusoidal(py::handle x, py::handle positions, py::handle x_scale, py::handle alpha,
                          py::handle base, py::handle layout, py::handle shift, py::handle scale,
                          py::handle out) {
  const char* const function = "add_sinusoidal";
  return Table(function, x)
      .add_sinusoidal(x, positions, number(function, "x_scale", x_scale),
                      number(function, "alpha", alpha),
                      make_spec(function, base, layout, shift, scale), out);
}

py::object rotary_tables(py::handle positions, py::handle inv_freq, py::handle axis_map,
                         py::handle scale, py::handle dtype) {
  return Table("rotary_tables", positions)
      .rotary_tables(positions, inv_freq, axis_map, scale, dtype);
}

// A dtype is a matter of the general path, which has words for those that there are not.
py::object sinusoidal_at_door(py::handle positions, py::handle dim, py::handle base,
                              py::handle layout, py::handle shift, py::handle scale,
                              py::handle dtype, py::handle out) {
  if (!dtype.is_none()) return not_mine();
  return sinusoidal(positions, dim, base, layout, shift, scale, dtype, out);
}

py::object rotary_tables_at_door(py::handle positions, py::handle inv_freq, py::handle axis_map,
                                 py::handle scale, py::handle dtype) {
  if (!dtype.is_none()) return not_mine();
  if (!is_described(inv_freq.ptr())) {
    return rotary_tables(positions, inv_freq, axis_map, scale, dtype);
  }
  const Described rotary(inv_freq.ptr());
  if (!rotary || !axis_map.is_none() || !scale.is_none()) return not_mine();
  if (!tensors::Library::get().is_tensor_elsewhere(positions)) {
    return rotary_tables(positions, rotary->inv_freq, rotary->axis_map, rotary->scale, dtype);
  }
  const py::object pair = rotary.on_device_of(positions.ptr());
  return rotary_tables(positions, PyTuple_GET_ITEM(pair.ptr(), 0), PyTuple_GET_ITEM(pair.ptr(), 1),
                       rotary->scale, dtype);
}

}  // namespace

void define_sinusoidal(py::module_& m, py::module_& door) {
  static PyMethodDef methods[] = {method<&sinusoidal>("sinusoidal"),
                                  method<&add_sinusoidal>("add_sinusoidal"),
                                  method<&rotary_tables>("rotary_tables"),
                                  {nullptr, nullptr, 0, nullptr}};
  add_methods(m, methods);
  static PyMethodDef at_door[] = {method<&sinusoidal_at_door, true>("sinusoidal"),
                                  method<&add_sinusoidal, true>("add_sinusoidal"),
                                  method<&rotary_tables_at_door, true>("rotary_tables"),
                                  {nullptr, nullptr, 0, nullptr}};
  add_methods(door, at_door);
}

}  // namespace posenc::numpy
