// Rotations of NumPy arrays, and of small tensors (tensors.h).

#include "core/rotary.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "bindings/numpy/arguments.h"
#include "bindings/numpy/methods.h"
#include "bindings/numpy/run.h"
#include "cpu/kernels.h"
#include "cpu/run.h"

namespace posenc::numpy {
namespace {

// The arguments that all rotations share, and the arrays or tensors behind them.
struct RotaryArguments {
  ArrayArgument positions, inv_freq, axis_map, cosine, sine;
  std::string pairing_storage;
  RotaryCall call;
  bool of_tensors, records;

  // `x`: what is rotated, or the first of two. Arrays go with arrays, tensors with tensors.
  RotaryArguments(const char* function, py::handle x, py::handle layout, py::handle pairing,
                  py::handle rotary_start, py::handle inverse)
      : of_tensors(tensors::Library::get().is_tensor(x)),
        records(of_tensors && tensors::Library::get().records()) {
    call.function = function;
    plain({&PyUnicode_Type}, layout);
    plain({&PyUnicode_Type, &PyLong_Type}, pairing);
    plain({&PyLong_Type}, rotary_start);
    plain({&PyBool_Type}, inverse);
    call.layout = text(function, "layout", layout);
    call.pairing = pairing_text(function, pairing, pairing_storage);
    call.rotary_start = integer(function, "rotary_start", rotary_start);
    call.inverse = boolean(inverse);
  }

  void from_phases(py::handle given_positions, py::handle given_frequencies, py::handle given_axes,
                   py::handle scale) {
    positions = option("positions", given_positions);
    inv_freq = option("inv_freq", given_frequencies);
    axis_map = option("axis_map", given_axes);
    if (!inv_freq) missing("inv_freq");
    plain({&PyFloat_Type, &PyLong_Type}, scale);
    call.positions = positions.pointer();
    call.inv_freq = inv_freq.pointer();
    call.axis_map = axis_map.pointer();
    call.scale = number(call.function, "scale", scale);
  }

  void from_tables(py::handle given_cosine, py::handle given_sine, py::handle compute) {
    plain({&PyUnicode_Type}, compute);
    call.compute = text(call.function, "compute", compute);
    cosine = option("cos", given_cosine);
    sine = option("sin", given_sine);
    if (!cosine) missing("cos");
    if (!sine) missing("sin");
    call.cosine = cosine.pointer();
    call.sine = sine.pointer();
  }

  // What else an operator takes or refuses, it decides, with words of its own: a number may be a
  // tensor, with a gradient.
  void plain(std::initializer_list<PyTypeObject*> types, py::handle object) const {
    if (of_tensors && std::find(types.begin(), types.end(), Py_TYPE(object.ptr())) == types.end()) {
      throw tensors::Elsewhere{};
    }
  }

  void missing(const char* name) const {
    if (of_tensors) throw tensors::Elsewhere{};
    fail_type(call.function, name, "an array", "None");
  }

  ArrayArgument option(const char* name, py::handle object) const {
    if (!of_tensors || object.is_none()) return optional_array(call.function, name, object);
    return tensor(object);
  }

  ArrayArgument tensor(py::handle object) const {
    const tensors::Library& library = tensors::Library::get();
    if (!library.is_tensor(object) || (records && library.requires_grad(object))) {
      throw tensors::Elsewhere{};
    }
    return ArrayArgument::of_tensor(py::reinterpret_borrow<py::object>(object));
  }

  ArrayArgument input(const char* name, py::handle object) const {
    return of_tensors
               ? tensor(object)
               : ArrayArgument(call.function, name, require_array(call.function, name, object));
  }

  ArrayArgument output(const char* name, py::handle object) const {
    return of_tensors ? tensor(object) : output_array(call.function, name, object);
  }

  // A new one like it.
  ArrayArgument result(const ArrayArgument& like) const {
    if (!of_tensors) return {call.function, "out", empty_like(like.object())};
    const Array& x = like.array();
    double bytes = static_cast<double>(item_size(x.dtype));
    for (int i = 0; i < x.rank; ++i) bytes *= static_cast<double>(x.shape[i]);
    if (bytes >= static_cast<double>(kTensorBytes)) throw tensors::Elsewhere{};
    return ArrayArgument::of_tensor(tensors::Library::get().empty_like(like.object()));
  }

  void rotate() const {
    const RotaryArgs args = check_rotary(call);
    of_tensors ? cpu::rotate(args, run_rows_of_tensors) : cpu::rotate(args, run_rows);
  }

  // x -> out, or a new array.
  py::object rotate(py::handle x, py::handle out) {
    const ArrayArgument from = input("x", x);
    const ArrayArgument to = out.is_none() ? result(from) : output("out", out);
    call.tensor_count = 1;
    call.in[0] = &from.array();
    call.out[0] = &to.array();
    rotate();
    return to.object();
  }

  // Gradients of out and x, of both q and k or of one -> those of x, then of frequencies and, if
  // asked for, of positions.
  py::tuple rotate_back(py::handle grads, py::handle inputs, bool of_positions) {
    const auto given_grads = py::cast<py::tuple>(grads), given = py::cast<py::tuple>(inputs);
    call.tensor_count = static_cast<int>(given.size());
    if (call.tensor_count == 2) call.names[0] = "q";
    ArrayArgument in[2], out[2], x[2];
    const Array* turned[2] = {};
    py::tuple results(given.size());
    for (int i = 0; i < call.tensor_count; ++i) {
      const size_t at = static_cast<size_t>(i);
      in[i] = {call.function, "grad", require_array(call.function, "grad", given_grads[at])};
      x[i] = {call.function, call.names[i], require_array(call.function, call.names[i], given[at])};
      out[i] = {call.function, "out", empty_like(in[i].object())};
      call.in[i] = &in[i].array();
      call.out[i] = &out[i].array();
      turned[i] = &x[i].array();
      results[at] = out[i].object();
    }
    RotaryGradientArgs args = check_rotary_gradient(call, turned);
    const Array& like = inv_freq.array();
    std::vector<py::ssize_t> shape(like.shape, like.shape + like.rank);
    shape.insert(shape.begin(), std::max<int64_t>(args.pieces(), 1));
    const auto zeros = [](const std::vector<py::ssize_t>& of) {
      py::array_t<double> array(of);
      std::fill(array.mutable_data(), array.mutable_data() + array.size(), 0.0);
      return array;
    };
    py::array_t<double> frequencies = zeros(shape);
    args.frequency_sums = frequencies.mutable_data();
    py::object positions = py::none();
    if (of_positions) {
      py::array_t<double> sums =
          zeros({args.position_axes(), args.turned.batch, args.turned.tokens});
      args.position_sums = sums.mutable_data();
      positions = std::move(sums);
    }
    cpu::rotate_back(args, run_rows);
    return py::make_tuple(results, frequencies[py::int_(0)], positions);
  }

  // q and k where they are, or to new arrays.
  py::tuple rotate(py::handle q, py::handle k, py::handle inplace) {
    plain({&PyBool_Type}, inplace);
    const bool in_place = boolean(inplace);
    const auto read = [&](const char* name, py::handle object) {
      return in_place ? output(name, object) : input(name, object);
    };
    const ArrayArgument query = read("q", q), key = read("k", k);
    call.names[0] = "q";
    call.tensor_count = 2;
    call.in[0] = call.out[0] = &query.array();
    call.in[1] = call.out[1] = &key.array();
    if (in_place) {
      rotate();
      return py::make_tuple(query.object(), key.object());
    }
    const ArrayArgument query_out = result(query), key_out = result(key);
    call.out[0] = &query_out.array();
    call.out[1] = &key_out.array();
    rotate();
    return py::make_tuple(query_out.object(), key_out.object());
  }
};

py::object apply_rotary(py::handle x, py::handle positions, py::handle inv_freq, py::handle layout,
                        py::handle pairing, py::handle rotary_start, py::handle axis_map,
                        py::handle scale, py::handle inverse, py::handle out) {
  RotaryArguments arguments("apply_rotary", x, layout, pairing, rotary_start, inverse);
  arguments.from_phases(positions, inv_freq, axis_map, scale);
  return arguments.rotate(x, out);
}

py::tuple apply_rotary_qk(py::handle q, py::handle k, py::handle positions, py::handle inv_freq,
                          py::handle layout, py::handle pairing, py::handle rotary_start,
                          py::handle axis_map, py::handle scale, py::handle inverse,
                          py::handle inplace) {
  RotaryArguments arguments("apply_rotary_qk", q, layout, pairing, rotary_start, inverse);
  arguments.from_phases(positions, inv_freq, axis_map, scale);
  return arguments.rotate(q, k, inplace);
}

py::tuple rotary_backward(py::handle grads, py::handle inputs, py::handle positions,
                          py::handle inv_freq, py::handle layout, py::handle pairing,
                          py::handle rotary_start, py::handle axis_map, py::handle scale,
                          py::handle inverse, py::handle of_positions) {
  RotaryArguments arguments("rotary_backward", grads, layout, pairing, rotary_start, inverse);
  arguments.from_phases(positions, inv_freq, axis_map, scale);
  return arguments.rotate_back(grads, inputs, boolean(of_positions));
}

py::object apply_rotary_tables(py::handle x, py::handle cosine, py::handle sine, py::handle layout,
                               py::handle pairing, py::handle rotary_start, py::handle inverse,
                               py::handle compute, py::handle out) {
  RotaryArguments arguments("apply_rotary_tables", x, layout, pairing, rotary_start, inverse);
  arguments.from_tables(cosine, sine, compute);
  return arguments.rotate(x, out);
}

py::tuple apply_rotary_qk_tables(py::handle q, py::handle k, py::handle cosine, py::handle sine,
                                 py::handle layout, py::handle pairing, py::handle rotary_start,
                                 py::handle inverse, py::handle compute, py::handle inplace) {
  RotaryArguments arguments("apply_rotary_qk_tables", q, layout, pairing, rotary_start, inverse);
  arguments.from_tables(cosine, sine, compute);
  return arguments.rotate(q, k, inplace);
}

}  // namespace

void define_rotary(py::module_& m) {
  static PyMethodDef methods[] = {method<&apply_rotary>("apply_rotary"),
                                  method<&apply_rotary_qk>("apply_rotary_qk"),
                                  method<&rotary_backward>("rotary_backward"),
                                  method<&apply_rotary_tables>("apply_rotary_tables"),
                                  method<&apply_rotary_qk_tables>("apply_rotary_qk_tables"),
                                  {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace posenc::numpy
