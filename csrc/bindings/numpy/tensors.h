// Tensors of torch as arguments of the NumPy module, for calls that are over before torch's
// dispatcher would have found the operator. Nothing of torch is linked: the tensor type carries a
// table of C functions that describe its memory. The table is DLPack's and stable across versions;
// the part that is needed is declared below.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "core/view.h"

namespace posenc::tensors {

namespace py = pybind11;

// --- The part of DLPack 1 in use

struct Version {
  uint32_t major, minor;
};

struct ElementType {
  uint8_t code;  // 0 int, 1 unsigned int, 2 float, 4 bfloat16
  uint8_t bits;
  uint16_t lanes;
};

struct Description {
  void* data;
  int32_t device_type, device_id;  // 1: the CPU
  int32_t rank;
  ElementType type;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct Managed;

struct Exchange {
  Version version;
  Exchange* previous;
  int (*allocate)(Description* like, Managed** out, void* context,
                  void (*fail)(void* context, const char* kind, const char* message));
  int (*take)(void* object, Managed** out);
  int (*give)(Managed* managed, void** out);
  int (*describe)(void* object, Description* out);
  int (*stream)(int32_t device_type, int32_t device_id, void** out);
};

// --- Tensors

// Thrown where a tensor cannot be read here, or is too large to be worth it. Nothing has been
// written; the function returns NotImplemented, and its caller takes the operator.
struct Elsewhere {};

// torch.Tensor, once the Python package has brought it.
class Library {
 public:
  static Library& get() {
    static Library library;
    return library;
  }

  // The package brings torch.Tensor, torch.empty_like and torch.is_grad_enabled, functions that are
  // true where somebody follows what operators do, and the names in the module of forward mode.
  // Returns false if the type has no such table, or one of an unknown version.
  bool use(py::handle tensor_type, py::handle empty_like, py::handle is_grad_enabled,
           const py::tuple& followers, const py::dict& forward_mode) {
    if (!py::hasattr(tensor_type, "__dlpack_c_exchange_api__")) return false;
    const py::object capsule = tensor_type.attr("__dlpack_c_exchange_api__");
    void* const table = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
    if (table == nullptr) throw py::error_already_set();
    const auto* const exchange = static_cast<const Exchange*>(table);
    if (exchange->version.major != 1 || exchange->describe == nullptr) return false;
    exchange_ = exchange;
    // Kept for good, as the table is: they may be used until the interpreter is gone.
    const auto keep = [](py::handle object) {
      return py::reinterpret_borrow<py::object>(object).release();
    };
    type_ = keep(tensor_type);
    is_negated_ = py::object(tensor_type.attr("is_neg")).release();
    empty_like_ = keep(empty_like);
    is_grad_enabled_ = keep(is_grad_enabled);
    followers_ = keep(followers);
    forward_mode_ = keep(forward_mode);
    requires_grad_ = py::str("requires_grad").release();
    current_level_ = py::str("_current_level").release();
    return true;
  }

  // Not subclasses, which have rules of their own.
  bool is_tensor(py::handle object) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == type_.ptr();
  }

  // Throws Elsewhere where the operator must not be bypassed. True where autograd may record it.
  bool records() const {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(followers_.ptr()); ++i) {
      if (is_true(PyObject_CallNoArgs(PyTuple_GET_ITEM(followers_.ptr(), i)))) throw Elsewhere{};
    }
    PyObject* const level = PyDict_GetItem(forward_mode_.ptr(), current_level_.ptr());
    const long value = level == nullptr ? 0 : PyLong_AsLong(level);  // -1: none
    if (value != -1 || PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      throw Elsewhere{};
    }
    return is_true(PyObject_CallNoArgs(is_grad_enabled_.ptr()));
  }

  bool requires_grad(py::handle tensor) const {
    return is_true(PyObject_GetAttr(tensor.ptr(), requires_grad_.ptr()));
  }

  Array describe(py::handle tensor) const {
    Description d;
    if (exchange_->describe(tensor.ptr(), &d) != 0) {
      PyErr_Clear();
      throw Elsewhere{};
    }
    Array array;
    array.dtype = dtype_of(d.type);
    array.rank = d.rank;
    if (d.device_type != 1 || array.dtype == Dtype::kOther || d.rank > kMaxRank) throw Elsewhere{};
    static const char* const names[] = {"float16", "bfloat16", "float32", "float64",
                                        "int8",    "uint8",    "int16",   "uint16",
                                        "int32",   "uint32",   "int64",   "uint64"};
    array.dtype_name = names[static_cast<int>(array.dtype)];
    array.data = static_cast<char*>(d.data) + d.byte_offset;
    for (int i = 0; i < d.rank; ++i) {
      array.shape[i] = d.shape[i];
      array.stride[i] = d.strides[i];
    }
    // The imaginary part of a conjugate is the negative of what is in memory.
    if (is_real(array.dtype) && is_true(PyObject_CallOneArg(is_negated_.ptr(), tensor.ptr()))) {
      throw Elsewhere{};
    }
    if (d.data == nullptr && !array.empty()) throw Elsewhere{};  // zeros without memory
    if (!array.aligned()) throw Elsewhere{};                     // the operator says why
    return array;
  }

  py::object empty_like(py::handle tensor) const {
    PyObject* const result = PyObject_CallOneArg(empty_like_.ptr(), tensor.ptr());
    if (result == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(result);
  }

 private:
  static Dtype dtype_of(ElementType type) {
    if (type.lanes != 1) return Dtype::kOther;
    switch (type.code << 8 | type.bits) {
      case 0x008:
        return Dtype::kInt8;
      case 0x010:
        return Dtype::kInt16;
      case 0x020:
        return Dtype::kInt32;
      case 0x040:
        return Dtype::kInt64;
      case 0x108:
        return Dtype::kUInt8;
      case 0x110:
        return Dtype::kUInt16;
      case 0x120:
        return Dtype::kUInt32;
      case 0x140:
        return Dtype::kUInt64;
      case 0x210:
        return Dtype::kFloat16;
      case 0x220:
        return Dtype::kFloat32;
      case 0x240:
        return Dtype::kFloat64;
      case 0x410:
        return Dtype::kBFloat16;
      default:
        return Dtype::kOther;
    }
  }

  static bool is_true(PyObject* result) {
    if (result == nullptr) throw py::error_already_set();
    const int truth = PyObject_IsTrue(result);
    Py_DECREF(result);
    if (truth < 0) throw py::error_already_set();
    return truth != 0;
  }

  const Exchange* exchange_ = nullptr;
  py::handle type_, is_negated_, empty_like_, is_grad_enabled_, followers_, forward_mode_;
  py::handle requires_grad_, current_level_;
};

}  // namespace posenc::tensors
