// The NumPy module, posenc_native._core: arrays to core structs, checks, kernels. Functions take
// their arguments by position; posenc_native/reference.py has the same ones in plain NumPy. Those
// of rotations take tensors as well, for small calls (tensors.h). Tests build the module once more,
// over the CUDA kernels run on the host (csrc/cuda/on_host.cu).

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/tensors.h"
#include "bindings/threads.h"
#include "core/lookup.h"
#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "core/toeplitz.h"
#include "cpu/kernels.h"
#include "cpu/run.h"

namespace py = pybind11;

namespace posenc {
namespace {

std::atomic<int> num_threads{1};
std::atomic<int64_t> bytes_per_thread{kBytesPerThread};

// Work of fewer bytes than this is over before another thread could use the interpreter.
constexpr int64_t kKeepInterpreterBytes = int64_t{1} << 17;

// --- Arguments

std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

// ml_dtypes registers bfloat16 with NumPy at run time; its number is known once it was seen.
bool is_bfloat16(const py::dtype& dtype) {
  static std::atomic<int> number{-1};
  const int num = dtype.num();
  if (num == number.load(std::memory_order_relaxed)) return true;
  if (num < 256 || py::cast<std::string>(dtype.attr("name")) != "bfloat16") return false;
  number.store(num, std::memory_order_relaxed);
  return true;
}

Dtype dtype_of(const py::dtype& dtype) {
  const char order = dtype.byteorder();
  if (order != '=' && order != '|') return Dtype::kOther;
  const char kind = dtype.kind();
  const auto size = dtype.itemsize();
  if (kind == 'f') {
    return size == 4   ? Dtype::kFloat32
           : size == 8 ? Dtype::kFloat64
           : size == 2 ? Dtype::kFloat16
                       : Dtype::kOther;
  }
  if (kind == 'i') {
    return size == 8   ? Dtype::kInt64
           : size == 4 ? Dtype::kInt32
           : size == 2 ? Dtype::kInt16
                       : Dtype::kInt8;
  }
  if (kind == 'u') {
    return size == 8   ? Dtype::kUInt64
           : size == 4 ? Dtype::kUInt32
           : size == 2 ? Dtype::kUInt16
                       : Dtype::kUInt8;
  }
  return is_bfloat16(dtype) ? Dtype::kBFloat16 : Dtype::kOther;
}

// `storage` keeps a name that is none of ours.
const char* dtype_name(Dtype dtype, const py::dtype& object,
                       std::shared_ptr<const std::string>& storage) {
  static const char* const names[] = {"float16", "bfloat16", "float32", "float64",
                                      "int8",    "uint8",    "int16",   "uint16",
                                      "int32",   "uint32",   "int64",   "uint64"};
  if (dtype != Dtype::kOther) return names[static_cast<int>(dtype)];
  storage = std::make_shared<const std::string>(py::cast<std::string>(py::str(object)));
  return storage->c_str();
}

// A NumPy array, or a tensor, and its description; keeps both alive.
class ArrayArgument {
 public:
  ArrayArgument() = default;

  static ArrayArgument of_tensor(py::object tensor) {
    ArrayArgument argument;
    argument.array_ = tensors::Library::get().describe(tensor);
    argument.object_ = std::move(tensor);
    return argument;
  }

  ArrayArgument(const char* function, const char* name, py::array object) {
    const py::dtype dtype = object.dtype();
    array_.dtype = dtype_of(dtype);
    array_.dtype_name = dtype_name(array_.dtype, dtype, storage_);
    array_.data = const_cast<void*>(object.data());
    array_.rank = static_cast<int>(object.ndim());
    if (array_.rank > kMaxRank) {
      fail_value(function, name, "at most " + std::to_string(kMaxRank) + " axes",
                 std::to_string(array_.rank));
    }
    const py::ssize_t size = array_.dtype == Dtype::kOther ? 1 : item_size(array_.dtype);
    bool whole = reinterpret_cast<uintptr_t>(array_.data) % static_cast<uintptr_t>(size) == 0;
    for (int i = 0; i < array_.rank; ++i) {
      array_.shape[i] = object.shape(i);
      array_.stride[i] = object.strides(i) / size;
      whole = whole && object.strides(i) % size == 0;
    }
    if (!whole && !array_.empty()) {
      fail_value(function, name, "aligned memory and strides of whole elements",
                 "an unaligned view; np.ascontiguousarray makes one that is");
    }
    object_ = std::move(object);
  }

  explicit operator bool() const { return static_cast<bool>(object_); }
  const Array* pointer() const { return object_ ? &array_ : nullptr; }
  const Array& array() const { return array_; }
  const py::object& object() const { return object_; }
  // Of an array.
  py::dtype dtype() const { return py::reinterpret_borrow<py::array>(object_).dtype(); }

 private:
  py::object object_;
  Array array_;
  std::shared_ptr<const std::string> storage_;  // does not move when this does
};

py::array require_array(const char* function, const char* name, py::handle object) {
  if (!py::isinstance<py::array>(object)) {
    fail_type(function, name, "a NumPy array", type_name(object));
  }
  return py::reinterpret_borrow<py::array>(object);
}

// An array, or what NumPy makes one of; nothing for None.
ArrayArgument optional_array(const char* function, const char* name, py::handle object) {
  if (object.is_none()) return {};
  if (py::isinstance<py::array>(object)) {
    return {function, name, py::reinterpret_borrow<py::array>(object)};
  }
  py::array array = py::array::ensure(object);
  if (!array) {
    PyErr_Clear();
    fail_type(function, name, "an array", type_name(object));
  }
  return {function, name, std::move(array)};
}

ArrayArgument output_array(const char* function, const char* name, py::handle object) {
  py::array array = require_array(function, name, object);
  if (!array.writeable()) fail_value(function, name, "a writable array", "a read-only one");
  return {function, name, std::move(array)};
}

// Positions as an array, or a count n for 0 .. n - 1.
struct PositionsArgument {
  ArrayArgument array;
  int64_t count = 0;

  PositionsArgument(const char* function, py::handle object) {
    if (PyBool_Check(object.ptr())) fail_type(function, "positions", "an int or an array", "bool");
    if (!py::isinstance<py::array>(object) && PyIndex_Check(object.ptr())) {
      const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
      if (!index) throw py::error_already_set();
      int overflow = 0;
      count = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
      if (overflow != 0 || count < 0) {
        fail_value(function, "positions", "a count in 0 .. 2^63 - 1",
                   py::cast<std::string>(py::str(index)));
      }
      return;
    }
    if (object.is_none()) fail_type(function, "positions", "an int or an array", "None");
    array = optional_array(function, "positions", object);
  }
};

std::string_view text(const char* function, const char* name, py::handle object) {
  if (!PyUnicode_Check(object.ptr())) fail_type(function, name, "a string", type_name(object));
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<size_t>(size)};
}

// 'half', 'interleaved' or a block size; `storage` keeps the number's text.
std::string_view pairing_text(const char* function, py::handle object, std::string& storage) {
  if (PyUnicode_Check(object.ptr())) {
    const std::string_view name = text(function, "pairing", object);
    if (name != "half" && name != "interleaved") {
      fail_value(function, "pairing", "'half', 'interleaved' or an even block size",
                 "'" + std::string(name) + "'");
    }
    return name;
  }
  if (PyBool_Check(object.ptr()) || !PyIndex_Check(object.ptr())) {
    fail_type(function, "pairing", "'half', 'interleaved' or an int", type_name(object));
  }
  storage = py::cast<std::string>(py::str(object));
  return storage;
}

double number(const char* function, const char* name, py::handle object) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    fail_type(function, name, "a number", type_name(object));
  }
  return value;
}

int64_t integer(const char* function, const char* name, py::handle object) {
  if (PyBool_Check(object.ptr()) || !PyIndex_Check(object.ptr())) {
    fail_type(function, name, "an int", type_name(object));
  }
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (!index) throw py::error_already_set();
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) {
    fail_value(function, name, "an int of 64 bits", py::cast<std::string>(py::str(index)));
  }
  return value;
}

bool boolean(py::handle object) {
  const int truth = PyObject_IsTrue(object.ptr());
  if (truth < 0) throw py::error_already_set();
  return truth == 1;
}

py::dtype result_dtype(const char* function, py::handle object) {
  if (object.is_none()) return py::dtype::of<float>();
  py::dtype dtype = py::dtype::from_args(py::reinterpret_borrow<py::object>(object));
  const Dtype known = dtype_of(dtype);
  if (!is_real(known)) {
    std::shared_ptr<const std::string> storage;
    fail_type(function, "dtype", "float16, bfloat16, float32 or float64",
              dtype_name(known, dtype, storage));
  }
  return dtype;
}

py::array empty_like(const py::object& x) {
  // Never released: they may be used until the interpreter is gone.
  static const py::handle function =
      py::object(py::module_::import("numpy").attr("empty_like")).release();
  static const py::handle names = py::make_tuple("subok").release();
  // Not subok: subclasses would run code of their own on the result.
  PyObject* const arguments[] = {x.ptr(), Py_False};
  PyObject* const result = PyObject_Vectorcall(function.ptr(), arguments, 1, names.ptr());
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::array>(result);
}

// --- Running

// The Runner of cpu/run.h: our threads, without the interpreter lock.
constexpr auto run_rows = [](int64_t rows, int64_t bytes, const auto& run) {
  if (bytes < kKeepInterpreterBytes) {
    run(int64_t{0}, rows);
    return;
  }
  const py::gil_scoped_release release;
  parallel_rows(rows, bytes, num_threads.load(std::memory_order_relaxed),
                bytes_per_thread.load(std::memory_order_relaxed), run);
};

// Work on tensors that is worth several threads is the operator's: it has those of torch.
constexpr int64_t kTensorBytes = int64_t{1} << 21;
constexpr auto run_rows_of_tensors = [](int64_t rows, int64_t bytes, const auto& run) {
  if (bytes >= kTensorBytes) throw tensors::Elsewhere{};
  run_rows(rows, bytes, run);
};

// --- Functions

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

// --- Relative

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

  // `out`, or a new array of the shape.
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

// --- Calls from Python

template <typename Result, typename... Handles>
constexpr std::index_sequence_for<Handles...> positions_of(Result (*)(Handles...)) {
  return {};
}

template <auto function, size_t... i>
PyObject* invoke(PyObject* const* args, std::index_sequence<i...>) {
  return function(py::handle(args[i])...).release().ptr();
}

// A function of handles as the interpreter calls it. Past pybind11, which looks for an overload by
// the types of the arguments: that takes longer than to rotate a token.
template <auto function>
PyObject* call(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  constexpr auto each = positions_of(function);
  try {
    if (count != static_cast<Py_ssize_t>(each.size())) {
      PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd",
                   static_cast<Py_ssize_t>(each.size()), count);
      return nullptr;
    }
    return invoke<function>(args, each);
  } catch (const tensors::Elsewhere&) {
    return py::reinterpret_borrow<py::object>(Py_NotImplemented).release().ptr();
  } catch (const Error& error) {
    PyErr_SetString(error.kind == Error::kType ? PyExc_TypeError : PyExc_ValueError,
                    error.message.c_str());
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <auto function>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call<function>)),
          METH_FASTCALL, nullptr};
}

}  // namespace
}  // namespace posenc

PYBIND11_MODULE(POSENC_MODULE, m, py::mod_gil_not_used()) {
  using namespace posenc;
  static PyMethodDef methods[] = {method<&sinusoidal>("sinusoidal"),
                                  method<&add_sinusoidal>("add_sinusoidal"),
                                  method<&rotary_tables>("rotary_tables"),
                                  method<&apply_rotary>("apply_rotary"),
                                  method<&apply_rotary_qk>("apply_rotary_qk"),
                                  method<&rotary_backward>("rotary_backward"),
                                  method<&apply_rotary_tables>("apply_rotary_tables"),
                                  method<&apply_rotary_qk_tables>("apply_rotary_qk_tables"),
                                  method<&toeplitz_bias>("toeplitz_bias"),
                                  method<&add_toeplitz_bias>("add_toeplitz_bias"),
                                  method<&diagonal_sums>("diagonal_sums"),
                                  method<&relative_gather>("relative_gather"),
                                  method<&relative_scatter>("relative_scatter"),
                                  {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) throw py::error_already_set();
  m.def("use_tensors", [](py::handle tensor_type, py::handle empty_like, py::handle is_grad_enabled,
                          const py::tuple& followers, const py::dict& forward_mode) {
    return tensors::Library::get().use(tensor_type, empty_like, is_grad_enabled, followers,
                                       forward_mode);
  });
  m.def("set_num_threads", [](int n) { num_threads.store(n, std::memory_order_relaxed); });
  m.def("get_num_threads", [] { return num_threads.load(std::memory_order_relaxed); });
  // For tests: small calls on several threads. 0 restores the default.
  m.def("set_bytes_per_thread", [](int64_t bytes) {
    bytes_per_thread.store(bytes > 0 ? bytes : kBytesPerThread, std::memory_order_relaxed);
  });
  m.def("available_targets", &cpu::available_targets);
  m.def("current_target", &cpu::current_target);
  m.def("set_target", &cpu::set_target);
  m.def("set_non_temporal_bytes", &cpu::set_non_temporal_bytes);
}
