// The arguments of a call whose options the core declares with a for_each: arrays of NumPy, or
// small tensors (tensors.h). Options come by position.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "bindings/numpy/arguments.h"
#include "bindings/numpy/run.h"

namespace posenc::numpy {

// kMaxArrays: how many arrays the options may have.
template <size_t kMaxArrays>
class CallArguments {
 public:
  // `x`: what is computed with, or the first of several. Arrays go with arrays, tensors with
  // tensors. exact: all else than NumPy's own arrays is left to the caller, who converts it and
  // asks again.
  CallArguments(const char* function, py::handle x, bool exact = false)
      : function_(function),
        exact_(exact),
        of_tensors_(tensors::Library::get().is_tensor(x)),
        records_(of_tensors_ && tensors::Library::get().records()) {}
  CallArguments(const CallArguments&) = delete;
  CallArguments& operator=(const CallArguments&) = delete;

  bool of_tensors() const { return of_tensors_; }

  // Reads the options of a call, one argument after the other.
  //
  // In a call on tensors it takes only plain values. About all others the operator decides, in
  // words of its own: a number may be a tensor, for instance, even one with a gradient.
  struct Reader {
    CallArguments& call;
    PyObject* const* next;
    PyObject* const* const end;  // options behind it have been left out: they have their defaults

    void array(const char* name, const Array*& value) {
      optional_array(name, value);
      if (value != nullptr) return;
      if (call.of_tensors_) throw tensors::Elsewhere{};
      fail_type(call.function_, name, "an array", "None");
    }
    void output(const char* name, const Array*& value) {
      std::optional<ArrayArgument>& array = call.arrays_[call.array_count_++];
      array.emplace(call.output(name, *next++));
      value = array->pointer();
    }
    void optional_array(const char* name, const Array*& value) {
      if (next == end || *next == Py_None) {
        if (next != end) ++next;
        return;
      }
      std::optional<ArrayArgument>& array = call.arrays_[call.array_count_++];
      array.emplace(call.option(name, *next++));
      value = array->pointer();
    }
    void text(const char* name, std::string_view& value) {
      if (next == end) return;
      value = numpy::text(call.function_, name, plain({&PyUnicode_Type}));
    }
    void pairing(const char* name, std::string_view& value) {
      if (next == end) return;
      const py::handle object = plain({&PyUnicode_Type, &PyLong_Type});
      value = pairing_text(call.function_, name, object, value == "same",
                           call.pairings_[call.pairing_count_++]);
    }
    void integer(const char* name, int64_t& value) {
      if (next == end) return;
      value = numpy::integer(call.function_, name, plain({&PyLong_Type}));
    }
    void number(const char* name, double& value) {
      if (next == end) return;
      value = numpy::number(call.function_, name, plain({&PyFloat_Type, &PyLong_Type}));
    }
    void boolean(const char* /*name*/, bool& value) {
      if (next == end) return;
      value = numpy::boolean(plain({&PyBool_Type}));
    }
    py::handle plain(std::initializer_list<PyTypeObject*> types) {
      return call.plain(*next++, types);
    }
  };

  Reader reader(PyObject* const* arguments, size_t count) {
    return {*this, arguments, arguments + count};
  }

  py::handle plain(py::handle object, std::initializer_list<PyTypeObject*> types) const {
    if (of_tensors_ &&
        std::find(types.begin(), types.end(), Py_TYPE(object.ptr())) == types.end()) {
      throw tensors::Elsewhere{};
    }
    return object;
  }

  ArrayArgument input(const char* name, py::handle object) const {
    if (of_tensors_) return tensor(object);
    check_exact(object);
    return {function_, name, require_array(function_, name, object)};
  }

  ArrayArgument output(const char* name, py::handle object) const {
    if (!of_tensors_) {
      check_exact(object);
      return output_array(function_, name, object);
    }
    ArrayArgument argument = tensor(object);
    tensors::Library::get().check_version(object);
    return argument;
  }

  // A new one like it.
  ArrayArgument result(const ArrayArgument& like) const {
    if (!of_tensors_) return {function_, "out", empty_like(like.object())};
    const Array& x = like.array();
    double bytes = static_cast<double>(item_size(x.dtype));
    for (int i = 0; i < x.rank; ++i) bytes *= static_cast<double>(x.shape[i]);
    if (bytes >= static_cast<double>(kTensorBytes)) throw tensors::Elsewhere{};
    return ArrayArgument::of_tensor(tensors::Library::get().empty_like(like.object()));
  }

  // Throws Elsewhere where somebody has put a kernel in the place of the operator's.
  void check_kernels(bool from_tables, tensors::Operation operation, tensors::Form form) const {
    if (of_tensors_) tensors::Library::get().check_kernels(from_tables, operation, form);
  }

  void written(py::handle object) const {
    if (of_tensors_) tensors::Library::get().written(object);
  }

 private:
  ArrayArgument option(const char* name, py::handle object) const {
    if (of_tensors_) return tensor(object);
    check_exact(object);
    return optional_array(function_, name, object);
  }

  void check_exact(py::handle object) const {
    if (exact_ && Py_TYPE(object.ptr()) != py::detail::npy_api::get().PyArray_Type_) {
      throw tensors::Elsewhere{};
    }
  }

  ArrayArgument tensor(py::handle object) const {
    const tensors::Library& library = tensors::Library::get();
    if (!library.is_tensor(object) || (records_ && library.requires_grad(object))) {
      throw tensors::Elsewhere{};
    }
    return ArrayArgument::of_tensor(py::reinterpret_borrow<py::object>(object));
  }

  const char* const function_;
  const bool exact_, of_tensors_, records_;
  std::optional<ArrayArgument> arrays_[kMaxArrays];  // few are given
  size_t array_count_ = 0;
  std::string pairings_[2];  // that are numbers
  size_t pairing_count_ = 0;
};

}  // namespace posenc::numpy
