// Functions of C++ as methods of the module.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <exception>
#include <new>
#include <tuple>
#include <type_traits>

#include "bindings/numpy/door.h"
#include "core/view.h"

namespace posenc::numpy {

namespace py = pybind11;

// How many arguments of the interpreter a parameter of a function takes. A handle takes one;
// another type says how many it takes, how many of them it needs, and is constructed from the place
// where they begin and how many there are. A function has at most one such parameter.
template <typename Parameter>
constexpr size_t arguments_of() {
  if constexpr (std::is_same_v<Parameter, py::handle>) {
    return 1;
  } else {
    return Parameter::kArguments;
  }
}

template <typename Parameter>
constexpr size_t optional_arguments_of() {
  if constexpr (std::is_same_v<Parameter, py::handle>) {
    return 0;
  } else {
    return Parameter::kArguments - Parameter::kRequired;
  }
}

// `missing`: arguments that are left out.
template <typename Parameter>
Parameter take(PyObject* const*& next, size_t missing) {
  PyObject* const* const first = next;
  if constexpr (std::is_same_v<Parameter, py::handle>) {
    ++next;
    return *first;
  } else {
    const size_t count = Parameter::kArguments - missing;
    next += count;
    return Parameter{first, count};
  }
}

template <typename Function>
struct Signature;

template <typename Result, typename... Parameters>
struct Signature<Result (*)(Parameters...)> {
  static constexpr size_t kArguments = (arguments_of<Parameters>() + ...);
  static constexpr size_t kRequired = kArguments - (optional_arguments_of<Parameters>() + ...);

  static PyObject* invoke(Result (*function)(Parameters...), PyObject* const* next, size_t count) {
    // From left to right.
    const std::tuple<Parameters...> arguments{take<Parameters>(next, kArguments - count)...};
    return std::apply(function, arguments).release().ptr();
  }
};

// Sets the Python exception that the error stands for. Python code makes it, as it makes its own.
inline void set_error(const Error& error) {
  PyObject* const kind = error.kind == Error::kType ? PyExc_TypeError : PyExc_ValueError;
  try {
    const py::module_ errors = py::module_::import("posenc_native.core.calls.errors");
    const py::object fault =
        errors.attr("Fault")(error.function, error.argument, error.expected, error.got);
    PyErr_SetObject(kind, errors.attr("error_of")(py::handle(kind), fault).ptr());
  } catch (py::error_already_set& another) {
    another.restore();
  }
}

// What a function returns; where it throws, null with Python's exception set. At the door an error
// about an argument is the answer that the call is not for it: the general path, which converts
// arguments and has hints, calls again and gets the error.
template <bool at_door, typename Function>
PyObject* guarded(const Function& function) {
  try {
    return function();
  } catch (const Error& error) {
    if (at_door) return not_mine().release().ptr();
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
template <auto function, bool at_door>
PyObject* call(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  using Signature = Signature<decltype(function)>;
  const auto given = static_cast<size_t>(count);
  if (given < Signature::kRequired || given > Signature::kArguments) {
    PyErr_Format(PyExc_TypeError, "expected %zd to %zd arguments, got %zd",
                 static_cast<Py_ssize_t>(Signature::kRequired),
                 static_cast<Py_ssize_t>(Signature::kArguments), count);
    return nullptr;
  }
  return guarded<at_door>([&] {
    if (at_door && !may_enter(args, given)) return not_mine().release().ptr();
    return Signature::invoke(function, args, given);
  });
}

inline PyCFunction as_method(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

template <auto function, bool at_door = false>
PyMethodDef method(const char* name) {
  return {name, as_method(&call<function, at_door>), METH_FASTCALL, nullptr};
}

// Puts the functions of a table, which has to outlive the module, into it.
inline void add_methods(py::module_& m, PyMethodDef* methods) {
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) throw py::error_already_set();
}

// q and k rotated by a Rotary that scales queries, as apply_rotary_qk with its first `count`
// options does it; NotImplemented for calls of the general path.
py::object scaled_rotary_qk(py::handle q, py::handle k, PyObject* const* options, size_t count,
                            py::handle to);

// The functions of each family, put into the module.
void define_sinusoidal(py::module_& m, py::module_& door);
void define_rotary(py::module_& m, py::module_& door);
void define_norm_rotary(py::module_& m, py::module_& door);
void define_bound(py::module_& door);  // the type of bound calls, made when the module is
void define_bound_rotary(py::module_& m);
void define_bound_tables(py::module_& m);
void define_relative(py::module_& m);
void define_phases(py::module_& m);
void define_relative_door(py::module_& door);
void define_cuda_on_host(py::module_& m);  // where its kernels are those

}  // namespace posenc::numpy
