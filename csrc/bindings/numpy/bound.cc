#include "bindings/numpy/bound.h"

// Not before Python.h.
#include <structmember.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "bindings/numpy/description.h"
#include "bindings/numpy/methods.h"

namespace posenc::numpy {
namespace {

struct Bound {
  PyObject_HEAD vectorcallfunc vectorcall;
  BoundCall* call;
};

PyObject* call_bound(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  if (names != nullptr && PyTuple_GET_SIZE(names) != 0) {
    PyErr_SetString(PyExc_TypeError, "expected arguments by place");
    return nullptr;
  }
  BoundCall& call = *reinterpret_cast<Bound*>(self)->call;
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  return guarded<true>([&] { return call(args, count).release().ptr(); });
}

void delete_bound(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete reinterpret_cast<Bound*>(self)->call;
  type->tp_free(self);
  Py_DECREF(type);
}

PyTypeObject* bound_type() {
  static PyTypeObject* const type = [] {
    static PyMemberDef members[] = {
        {"__vectorcalloffset__", T_PYSSIZET, offsetof(Bound, vectorcall), READONLY, nullptr},
        {nullptr, 0, 0, 0, nullptr}};
    static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(&delete_bound)},
                                  {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                                  {Py_tp_members, members},
                                  {0, nullptr}};
    static PyType_Spec spec = {"posenc_native._core.BoundCall", sizeof(Bound), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};
    return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  }();
  if (type == nullptr) throw py::error_already_set();
  return type;
}

// A bound call through the door: what closes it, or traces past it, does so for bound calls too.
PyObject* call_at_door(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  if (count < 1 || Py_TYPE(args[0]) != bound_type()) return not_mine().release().ptr();
  return call_bound(args[0], args + 1, static_cast<size_t>(count) - 1, nullptr);
}

}  // namespace

py::object bound(std::unique_ptr<BoundCall> call) {
  PyTypeObject* const type = bound_type();
  PyObject* const object = type->tp_alloc(type, 0);
  if (object == nullptr) throw py::error_already_set();
  auto* const made = reinterpret_cast<Bound*>(object);
  made->vectorcall = &call_bound;
  made->call = call.release();
  return py::reinterpret_steal<py::object>(object);
}

bool is_described(PyObject* object) {
  static PyObject* const names[] = {PyUnicode_InternFromString("__rotary__"),
                                    PyUnicode_InternFromString("__frequencies__")};
  PyTypeObject* const type = Py_TYPE(object);
  if (type == rotary_type) return true;
  if (type == py::detail::npy_api::get().PyArray_Type_) return false;
  if (tensors::Library::get().is_tensor_or_parameter(object)) return false;
  return _PyType_Lookup(type, names[0]) != nullptr && _PyType_Lookup(type, names[1]) == nullptr;
}

Described::Described(PyObject* object) {
  static PyObject* const method = PyUnicode_InternFromString("__rotary__");
  static PyObject* const name = PyUnicode_InternFromString("_native");
  rotary_ = py::reinterpret_borrow<py::object>(object);
  if (Py_TYPE(object) != rotary_type) {
    rotary_ = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object, method));
    if (!rotary_) throw py::error_already_set();
    if (rotary_type == nullptr || PyObject_TypeCheck(rotary_.ptr(), rotary_type) == 0) return;
  }
  keeper_ = py::reinterpret_steal<py::object>(PyObject_GetAttr(rotary_.ptr(), name));
  if (!keeper_) throw py::error_already_set();
  if (Py_TYPE(keeper_.ptr()) != bound_type()) return;
  calls_ = reinterpret_cast<Bound*>(keeper_.ptr())->call;
  description_ = calls_->description();
}

py::object Described::on_device_of(PyObject* tensor) const {
  static PyObject* const method = PyUnicode_InternFromString("_of");
  py::object both =
      py::reinterpret_steal<py::object>(PyObject_CallMethodOneArg(rotary_.ptr(), method, tensor));
  if (!both) throw py::error_already_set();
  if (!PyTuple_CheckExact(both.ptr()) || PyTuple_GET_SIZE(both.ptr()) != 2) {
    throw py::type_error("Rotary._of: expected a pair");
  }
  return both;
}

void define_bound(py::module_& door) {
  static PyMethodDef methods[] = {{"call_bound", as_method(&call_at_door), METH_FASTCALL, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};
  bound_type();
  add_methods(door, methods);
}

}  // namespace posenc::numpy
