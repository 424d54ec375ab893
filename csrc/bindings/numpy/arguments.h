// Arguments of the NumPy module: Python objects become core structs, and results get NumPy's
// memory.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/numpy/tensors.h"
#include "core/view.h"

namespace posenc::numpy {

namespace py = pybind11;

inline std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

// ml_dtypes registers formats with NumPy at run time; their numbers are known once they have been
// seen.
inline Dtype registered_dtype(const py::dtype& dtype) {
  struct Format {
    const char* name;
    Dtype dtype;
    std::atomic<int> number{-1};
  };
  static Format formats[] = {{"bfloat16", Dtype::kBFloat16},
                             {"float8_e4m3fn", Dtype::kFloat8E4M3},
                             {"float8_e5m2", Dtype::kFloat8E5M2}};
  const int num = dtype.num();
  if (num < 256) return Dtype::kOther;
  for (const Format& format : formats) {
    if (num == format.number.load(std::memory_order_relaxed)) return format.dtype;
  }
  const std::string name = py::cast<std::string>(dtype.attr("name"));
  for (Format& format : formats) {
    if (name != format.name) continue;
    format.number.store(num, std::memory_order_relaxed);
    return format.dtype;
  }
  return Dtype::kOther;
}

inline Dtype dtype_of(const py::dtype& dtype) {
  const char order = dtype.byteorder();
  if (order != '=' && order != '|') return Dtype::kOther;
  const char kind = dtype.kind();
  const auto size = dtype.itemsize();
  if (kind == 'f' && size > 1) {
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
  return registered_dtype(dtype);
}

// `storage` keeps the name of a dtype that we do not have.
inline const char* dtype_name(Dtype dtype, const py::dtype& object,
                              std::shared_ptr<const std::string>& storage) {
  if (dtype != Dtype::kOther) return tensors::kDtypeNames[static_cast<int>(dtype)];
  storage = std::make_shared<const std::string>(py::cast<std::string>(py::str(object)));
  return storage->c_str();
}

// A NumPy array, or a tensor, and its description; keeps both alive.
class ArrayArgument {
 public:
  ArrayArgument() = default;

  // Nothing for a tensor that cannot be read here.
  static ArrayArgument of_tensor(py::object tensor) {
    ArrayArgument argument;
    if (tensors::Library::get().describe(tensor, argument.array_, argument.place_)) {
      argument.object_ = std::move(tensor);
    }
    return argument;
  }

  // A list of ints, whose values the caller keeps.
  static ArrayArgument of_integers(py::object list, int64_t* values, int64_t count) {
    ArrayArgument argument;
    argument.array_.dtype = Dtype::kInt64;
    argument.array_.dtype_name = "int64";
    argument.array_.data = values;
    argument.array_.rank = 1;
    argument.array_.shape[0] = count;
    argument.array_.stride[0] = 1;
    argument.object_ = std::move(list);
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
    // Sizes are powers of two. To divide by them takes longer than all else here.
    const py::ssize_t size = array_.dtype == Dtype::kOther ? 1 : item_size(array_.dtype);
    const int shift = size == 8 ? 3 : size == 4 ? 2 : size == 2 ? 1 : 0;
    const py::ssize_t* const shape = object.shape();
    const py::ssize_t* const strides = object.strides();
    py::ssize_t odd = 0;
    for (int i = 0; i < array_.rank; ++i) {
      array_.shape[i] = shape[i];
      array_.stride[i] = strides[i] >> shift;
      odd |= strides[i];
    }
    const bool whole = (odd & (size - 1)) == 0;
    if (!array_.aligned() || (!whole && !array_.empty())) {
      fail_value(function, name, "aligned memory and strides of whole elements",
                 "an unaligned view; np.ascontiguousarray makes an aligned copy");
    }
    object_ = std::move(object);
  }

  explicit operator bool() const { return static_cast<bool>(object_); }
  const Array* pointer() const { return object_ ? &array_ : nullptr; }
  const Array& array() const { return array_; }
  const py::object& object() const { return object_; }
  Place place() const { return place_; }  // of a tensor
  // Only where it is an array.
  py::dtype dtype() const { return py::reinterpret_borrow<py::array>(object_).dtype(); }

 private:
  py::object object_;
  Array array_;
  Place place_;
  std::shared_ptr<const std::string> storage_;  // does not move when this does
};

inline py::array require_array(const char* function, const char* name, py::handle object) {
  if (!py::isinstance<py::array>(object)) {
    fail_type(function, name, "a NumPy array", type_name(object));
  }
  return py::reinterpret_borrow<py::array>(object);
}

// An array, or what NumPy makes one of; nothing for None.
inline ArrayArgument optional_array(const char* function, const char* name, py::handle object) {
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

inline ArrayArgument output_array(const char* function, const char* name, py::handle object) {
  py::array array = require_array(function, name, object);
  if (!array.writeable()) fail_value(function, name, "a writable array", "a read-only one");
  return {function, name, std::move(array)};
}

// Positions as an array, or a count n for 0 .. n - 1.
struct PositionsArgument {
  ArrayArgument array;
  int64_t count = 0;

  explicit PositionsArgument(ArrayArgument positions) : array(std::move(positions)) {}

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

inline std::string_view text(const char* function, const char* name, py::handle object) {
  if (!PyUnicode_Check(object.ptr())) fail_type(function, name, "a string", type_name(object));
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<size_t>(size)};
}

// 'half', 'interleaved' or a block size, perhaps also 'same'; `storage` keeps the number's text.
inline std::string_view pairing_text(const char* function, const char* argument, py::handle object,
                                     bool same, std::string& storage) {
  const auto expected = [&](const char* last) {
    return std::string(same ? "'same', " : "") + "'half', 'interleaved' or an " + last;
  };
  if (PyUnicode_Check(object.ptr())) {
    const std::string_view name = text(function, argument, object);
    if (name != "half" && name != "interleaved" && !(same && name == "same")) {
      fail_value(function, argument, expected("even block size"), "'" + std::string(name) + "'");
    }
    return name;
  }
  if (PyBool_Check(object.ptr()) || !PyIndex_Check(object.ptr())) {
    fail_type(function, argument, expected("int"), type_name(object));
  }
  storage = py::cast<std::string>(py::str(object));
  return storage;
}

// As core/calls/arguments.py has it: bools and arrays of one number have a value and may be none.
inline bool is_number(py::handle object) {
  if (PyBool_Check(object.ptr())) return false;
  if (PyLong_Check(object.ptr())) return true;
  return py::isinstance(object, py::module_::import("numbers").attr("Real"));
}

inline double number(const char* function, const char* name, py::handle object) {
  if (!PyFloat_Check(object.ptr()) && !is_number(object)) {
    fail_type(function, name, "a real number", type_name(object));
  }
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    fail_type(function, name, "a real number", type_name(object));
  }
  return value;
}

inline int64_t integer(const char* function, const char* name, py::handle object) {
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

inline bool boolean(py::handle object) {
  const int truth = PyObject_IsTrue(object.ptr());
  if (truth < 0) throw py::error_already_set();
  return truth == 1;
}

inline py::dtype result_dtype(const char* function, py::handle object) {
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

// numpy.empty_like. Found when the module is loaded, not by the first call: an import lets other
// threads run, and those would wait for it with the interpreter that it needs.
class EmptyLike {
 public:
  void load() {
    // Never released, because they may be used until the interpreter is gone.
    function_ = py::object(py::module_::import("numpy").attr("empty_like")).release();
    names_ = py::make_tuple("subok").release();
  }

  py::array operator()(const py::object& x) const {
    // Not subok: subclasses would run code of their own on the result.
    PyObject* const arguments[] = {x.ptr(), Py_False};
    PyObject* const result = PyObject_Vectorcall(function_.ptr(), arguments, 1, names_.ptr());
    if (result == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::array>(result);
  }

 private:
  py::handle function_, names_;
};
inline EmptyLike empty_like;

// Sums of a gradient, to which kernels add.
inline py::array_t<double> zero_sums(const std::vector<py::ssize_t>& shape) {
  py::array_t<double> sums(shape);
  std::fill(sums.mutable_data(), sums.mutable_data() + sums.size(), 0.0);
  return sums;
}

// The same, with sums for each piece of the work in a row of its own; the first row gets the total.
inline py::array_t<double> zero_sums_of_pieces(int64_t pieces, std::vector<py::ssize_t> shape) {
  shape.insert(shape.begin(), std::max<int64_t>(pieces, 1));
  return zero_sums(shape);
}

}  // namespace posenc::numpy
