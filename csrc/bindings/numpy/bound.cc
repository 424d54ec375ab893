#include "bindings/numpy/bound.h"

// Not before Python.h.
#include <structmember.h>

#include <cstddef>
#include <memory>
#include <utility>

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

void define_bound(py::module_& door) {
  static PyMethodDef methods[] = {
      {"call_bound", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_at_door)),
       METH_FASTCALL, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  bound_type();
  add_methods(door, methods);
}

}  // namespace posenc::numpy
