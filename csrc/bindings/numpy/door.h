// The fast path ("door"): the functions that public Python functions try first, with their original
// arguments. It takes plain arrays, and plain tensors without torch's dispatcher. For all
// other calls it returns NotImplemented before anything has been written. The caller then takes the
// general path, which converts arguments, selects the engine and makes the errors. "Not mine" is a
// value, since a C++ exception takes longer than the rotation of a token.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>

#include "bindings/numpy/description.h"
#include "bindings/numpy/tensors.h"

namespace posenc::numpy {

namespace py = pybind11;

// Ints of a list that is read here: positions or slots of a token or two.
constexpr Py_ssize_t kMaxListed = 8;

// The type of what may stand where frequencies do: Tables (posenc_native.Tables), a named tuple of
// cos, sin, rows, axis_map and compute; each of the first three may be a pair for q and k.
enum TablesField : Py_ssize_t { kCos, kSin, kRows, kAxisMap, kCompute };
inline PyTypeObject* tables_type = nullptr;
inline bool is_tables(PyObject* object) {
  return Py_TYPE(object) == tables_type && PyTuple_GET_SIZE(object) == kCompute + 1;
}

// An item of a list, which another thread may be changing; nothing where the list has ended.
inline py::object item_of(PyObject* list, Py_ssize_t at) {
#if PY_VERSION_HEX >= 0x030d0000
  PyObject* const item = PyList_GetItemRef(list, at);
  if (item == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(item);
#else
  if (at >= PyList_GET_SIZE(list)) return {};
  return py::reinterpret_borrow<py::object>(PyList_GET_ITEM(list, at));
#endif
}

inline py::object not_mine() { return py::reinterpret_borrow<py::object>(Py_NotImplemented); }

// Whether arguments are of the kinds that are read here. The operand, an array or a tensor, is the
// first of them or, where that is None, the second; where results go is the last, perhaps a tuple.
class Screen {
 public:
  explicit Screen(PyObject* operand)
      : library_(tensors::Library::get()),
        array_type_(py::detail::npy_api::get().PyArray_Type_),
        of_tensors_(library_.is_tensor(operand)),
        follower_(of_tensors_ ? library_.follower() : tensors::Follower::kNone) {}

  bool takes_operand(PyObject* operand) const {
    return of_tensors_ ? follower_ != tensors::Follower::kOther : is_array(operand);
  }

  bool takes(PyObject* argument) const {
    PyTypeObject* const type = Py_TYPE(argument);
    if (type == array_type_ || type == &PyUnicode_Type || argument == Py_None ||
        type == &PyBool_Type || type == &PyFloat_Type || type == &PyLong_Type) {
      return true;
    }
    if (of_tensors_ && library_.is_tensor_or_parameter(argument)) {
      return follower_ == tensors::Follower::kNone || !library_.requires_grad(argument);
    }
    return type == &PyList_Type && takes_list(argument);
  }

  // Tables: arrays or tensors, and pairs of them.
  bool takes_tables(PyObject* tables) const {
    for (Py_ssize_t i = kCos; i <= kCompute; ++i) {
      PyObject* const part = PyTuple_GET_ITEM(tables, i);
      if (!PyTuple_CheckExact(part)) {
        if (!takes(part)) return false;
        continue;
      }
      for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(part); ++j) {
        if (!takes(PyTuple_GET_ITEM(part, j))) return false;
      }
    }
    return true;
  }

  // Two of the memory that is written to.
  bool takes_tuple(PyObject* tuple) const {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
      PyObject* const one = PyTuple_GET_ITEM(tuple, i);
      if (!(of_tensors_ ? library_.is_tensor(one) : is_array(one)) || !takes(one)) return false;
    }
    return true;
  }

 private:
  bool is_array(PyObject* object) const { return Py_TYPE(object) == array_type_; }

  // One that is short; its items are looked at when they are read.
  static bool takes_list(PyObject* list) {
    const Py_ssize_t count = PyList_GET_SIZE(list);
    return 0 < count && count <= kMaxListed;
  }

  const tensors::Library& library_;
  PyTypeObject* const array_type_;
  const bool of_tensors_;
  const tensors::Follower follower_;
};

inline bool may_enter(PyObject* const* args, size_t count) {
  PyObject* const operand = args[args[0] == Py_None ? 1 : 0];
  const Screen screen(operand);
  if (!screen.takes_operand(operand)) return false;
  for (size_t i = 0; i + 1 < count; ++i) {
    if (screen.takes(args[i])) continue;
    if (is_tables(args[i]) ? screen.takes_tables(args[i]) : is_described(args[i])) continue;
    return false;
  }
  PyObject* const last = args[count - 1];
  return PyTuple_CheckExact(last) ? screen.takes_tuple(last) : screen.takes(last);
}

}  // namespace posenc::numpy
