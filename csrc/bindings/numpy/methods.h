// Functions of C++ as methods of the module.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <new>
#include <utility>

#include "bindings/numpy/tensors.h"
#include "core/view.h"

namespace posenc::numpy {

namespace py = pybind11;

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

// The functions of each family, put into the module.
void define_sinusoidal(py::module_& m);
void define_rotary(py::module_& m);
void define_relative(py::module_& m);

}  // namespace posenc::numpy
