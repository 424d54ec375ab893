// Functions of C++ as methods of the module.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <exception>
#include <new>
#include <tuple>
#include <type_traits>

#include "bindings/numpy/tensors.h"
#include "core/view.h"

namespace posenc::numpy {

namespace py = pybind11;

// How many arguments of the interpreter a parameter of a function takes. A handle takes one;
// another type says how many it takes, and is constructed from the place where they begin.
template <typename Parameter>
constexpr size_t arguments_of() {
  if constexpr (std::is_same_v<Parameter, py::handle>) {
    return 1;
  } else {
    return Parameter::kArguments;
  }
}

template <typename Parameter>
Parameter take(PyObject* const*& next) {
  PyObject* const* const first = next;
  next += arguments_of<Parameter>();
  if constexpr (std::is_same_v<Parameter, py::handle>) {
    return *first;
  } else {
    return Parameter{first};
  }
}

template <typename Function>
struct Signature;

template <typename Result, typename... Parameters>
struct Signature<Result (*)(Parameters...)> {
  static constexpr size_t kArguments = (arguments_of<Parameters>() + ...);

  static PyObject* invoke(Result (*function)(Parameters...), PyObject* const* next) {
    const std::tuple<Parameters...> arguments{take<Parameters>(next)...};  // from left to right
    return std::apply(function, arguments).release().ptr();
  }
};

// Sets the Python exception that the error stands for. Python code makes it, as it makes its own.
inline void set_error(const Error& error) {
  PyObject* const kind = error.kind == Error::kType ? PyExc_TypeError : PyExc_ValueError;
  try {
    const py::module_ errors = py::module_::import("posenc_native.base.errors");
    const py::object fault =
        errors.attr("Fault")(error.function, error.argument, error.expected, error.got);
    PyErr_SetObject(kind, errors.attr("error_of")(py::handle(kind), fault).ptr());
  } catch (py::error_already_set& another) {
    another.restore();
  }
}

// What a function returns; where it throws, NotImplemented or null with Python's exception set.
template <typename Function>
PyObject* guarded(const Function& function) {
  try {
    return function();
  } catch (const tensors::Elsewhere&) {
    return py::reinterpret_borrow<py::object>(Py_NotImplemented).release().ptr();
  } catch (const Error& error) {
    set_error(error);
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

// A function as the interpreter calls it. It does without pybind11, which would look for an
// overload by the types of the arguments, and without keywords: either takes longer than rotating a
// token.
template <auto function>
PyObject* call(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  using Signature = Signature<decltype(function)>;
  if (count != static_cast<Py_ssize_t>(Signature::kArguments)) {
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd",
                 static_cast<Py_ssize_t>(Signature::kArguments), count);
    return nullptr;
  }
  return guarded([&] { return Signature::invoke(function, args); });
}

template <auto function>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call<function>)),
          METH_FASTCALL, nullptr};
}

// The functions of each family, put into the module.
void define_sinusoidal(py::module_& m);
void define_rotary(py::module_& m);
void define_norm_rotary(py::module_& m);
void define_bound_rotary(py::module_& m);
void define_relative(py::module_& m);
void define_cuda_on_host(py::module_& m);  // where its kernels are those

}  // namespace posenc::numpy
