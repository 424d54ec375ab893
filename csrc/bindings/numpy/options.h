// The arguments of a call whose options the core declares with a for_each: NumPy arrays or, on the
// fast path (door.h), tensors. Options come by position; None stands for the default.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/huge_pages.h"
#include "bindings/numpy/arguments.h"
#include "bindings/numpy/description.h"
#include "bindings/numpy/door.h"
#include "bindings/numpy/run.h"
#include "core/norm_rotary.h"

namespace posenc::numpy {

// The order of RotaryOptions by positions; a norm has its own `compute` behind them.
enum Option : size_t {
  kPositions,
  kInvFreq,
  kLayout,
  kPairing,
  kRotaryStart,
  kAxisMapOfAngles,
  kScale,
  kInverse,
  kPositionsOfK,
  kStartOfK,
  kOutPairing,
  kComputeOfNorm,
  kWeightOfQ,
  kWeightOfK,
  kNorm,
  kEps,
  kNormOver,
  kWeightOffset,
  kNormFirst,
  kQueryScale,  // and its three numbers
};
constexpr size_t kOptionsOfQueryScale = 4;

// The options of a call by frequencies, made of those of a call that has a Rotary in their place.
class DescribedArguments {
 public:
  // `operand`: what is rotated, or the first of two.
  DescribedArguments(PyObject* const* options, size_t count, const Described& rotary,
                     py::handle operand)
      : count_(count) {
    std::copy(options, options + count, arguments_);
    if (options[kLayout] == Py_None) arguments_[kLayout] = rotary->layout.ptr();
    fill(kPairing, rotary->pairing);
    fill(kRotaryStart, rotary->rotary_start);
    fill(kScale, rotary->scale);
    fill(kAxisMapOfAngles, rotary->axis_map);
    arguments_[kInvFreq] = rotary->inv_freq.ptr();
    for (size_t i = 0; rotary->scales_queries() && count > kQueryScale + i; ++i) {
      if (i == kOptionsOfQueryScale) break;
      PyObject* const value =
          PyTuple_GET_ITEM(rotary->query_scale.ptr(), static_cast<Py_ssize_t>(i));
      arguments_[kQueryScale + i] = value;
    }
    if (!fit_ || !tensors::Library::get().is_tensor_elsewhere(operand)) return;
    on_device_ = rotary.on_device_of(operand.ptr());
    arguments_[kInvFreq] = PyTuple_GET_ITEM(on_device_.ptr(), 0);
    arguments_[kAxisMapOfAngles] = PyTuple_GET_ITEM(on_device_.ptr(), 1);
  }

  // False where an option stands beside the Rotary, which has it.
  bool fit() const { return fit_; }
  PyObject* const* arguments() const { return arguments_; }
  size_t count() const { return count_; }

 private:
  void fill(Option at, const py::object& value) {
    fit_ = fit_ && arguments_[at] == Py_None;
    arguments_[at] = value.ptr();
  }

  PyObject* arguments_[NormRotaryOptionCount(AnglesFrom::kPositions, true).all];
  const size_t count_;
  py::object on_device_;  // frequencies and axis_map
  bool fit_ = true;
};

// The options of a call by tables in the order of RotaryOptions (and of NormRotaryOptions), made of
// those of a call by positions that has Tables for frequencies.
class TableArguments {
 public:
  // `two`: whether there are a q and a k, for which tables may be pairs.
  TableArguments(const char* function, PyObject* const* options, size_t count, bool two) {
    const auto none_beside = [&](size_t at, const char* name) {
      if (at < count && options[at] != Py_None && !is_one(options[at])) {
        fail_value(function, name, "None, which Tables stand for", "a value");
      }
    };
    none_beside(kPositions, "positions");
    none_beside(kAxisMapOfAngles, "axis_map");
    none_beside(kScale, "scale");
    none_beside(kPositionsOfK, "positions");
    none_beside(kComputeOfNorm, "compute");
    PyObject* const tables = options[kInvFreq];
    if (PyTuple_GET_ITEM(tables, kCompute) == Py_None) {
      fail_type(function, "compute", "a str", "None");
    }
    PyObject *of_q[kTablePairs], *of_k[kTablePairs];
    for (size_t i = 0; i < kTablePairs; ++i) {
      PyObject* const value = PyTuple_GET_ITEM(tables, static_cast<Py_ssize_t>(i));
      const bool pair = PyTuple_CheckExact(value);
      if (pair && (!two || PyTuple_GET_SIZE(value) != 2)) {
        fail_value(function, "inv_freq", two ? "Tables with pairs (q, k)" : "Tables without pairs",
                   "a tuple");
      }
      of_q[i] = pair ? PyTuple_GET_ITEM(value, 0) : value;
      of_k[i] = pair ? PyTuple_GET_ITEM(value, 1) : Py_None;
    }
    if ((of_k[kCos] == Py_None) != (of_k[kSin] == Py_None)) {
      fail_value(function, "inv_freq", "Tables with pairs for both cos and sin", "one pair");
    }
    for (PyObject* const argument :
         {of_q[kCos], of_q[kSin], options[kLayout], options[kPairing], options[kRotaryStart],
          options[kInverse], PyTuple_GET_ITEM(tables, kCompute), of_q[kRows],
          PyTuple_GET_ITEM(tables, kAxisMap), of_k[kCos], of_k[kSin], of_k[kRows]}) {
      arguments_[count_++] = argument;
    }
    for (size_t at = kStartOfK; at < count; ++at) {
      if (at != kComputeOfNorm) arguments_[count_++] = options[at];
    }
  }

  PyObject* const* arguments() const { return arguments_; }
  size_t count() const { return count_; }

 private:
  static constexpr size_t kTablePairs = 3;
  static constexpr size_t kMost = NormRotaryOptionCount(AnglesFrom::kTables, true).all;

  static bool is_one(PyObject* value) {
    return PyFloat_CheckExact(value) && PyFloat_AS_DOUBLE(value) == 1.0;
  }

  PyObject* arguments_[kMost];
  size_t count_ = 0;
};

// use(options, head_dim) with the options of a call, by frequencies or by tables. A Rotary stands
// for frequencies and options of its own, and for heads of one width; head_dim is negative for any.
template <typename ByTables, typename ByPositions, typename Use>
py::object with_angles(const char* function, py::handle operand, ByPositions options, bool two,
                       const Use& use) {
  PyObject* const from = options.arguments[kInvFreq];
  if (is_tables(from)) {
    const TableArguments tables(function, options.arguments, options.count, two);
    return use(ByTables{tables.arguments(), tables.count()}, -1);
  }
  if (!is_described(from)) return use(options, -1);
  const Described rotary(from);
  if (!rotary) return not_mine();
  const DescribedArguments described(options.arguments, options.count, rotary, operand);
  if (!described.fit()) return not_mine();
  return use(ByPositions{described.arguments(), described.count()}, rotary->head_dim);
}

// kMaxArrays: how many arrays the options may have.
template <size_t kMaxArrays>
class CallArguments {
 public:
  // `x`: what is computed with, or the first of several. Arrays go with arrays, tensors with
  // tensors; options of tensors may be arrays.
  CallArguments(const char* function, py::handle x)
      : function_(function), of_tensors_(tensors::Library::get().is_tensor(x)) {}
  CallArguments(const CallArguments&) = delete;
  CallArguments& operator=(const CallArguments&) = delete;

  bool of_tensors() const { return of_tensors_; }

  // False once a tensor has come that cannot be read here, or that is elsewhere than the others. To
  // be asked when all have been read; until then nothing is computed.
  bool all_read() const { return all_read_ && !(has_host_memory_ && is_elsewhere()); }

  // Whether the tensors are in the memory of a GPU.
  bool is_elsewhere() const { return of_tensors_ && tensors::Library::get().is_elsewhere(place_); }

  // Runs work on tensors that the torch operators' kernels are for: run(runners, place). False for
  // other work; `bytes`: what it writes.
  template <typename Run>
  bool run_by_torch(int64_t bytes, const Run& run) const {
    return of_tensors_ && tensors::Library::get().run_by_torch(
                              place_, bytes, [&](const Runners& runners) { run(runners, place_); });
  }

  // Reads the options of a call, one argument after the other.
  struct Reader {
    CallArguments& call;
    PyObject* const* next;
    PyObject* const* const end;  // options behind it have been left out: they have their defaults

    void array(const char* name, const Array*& value) {
      optional_array(name, value);
      if (value != nullptr || !call.all_read_) return;
      fail_type(call.function_, name, "an array", "None");
    }
    void output(const char* name, const Array*& value) {
      std::optional<ArrayArgument>& array = call.arrays_[call.array_count_++];
      call.outputs_[call.output_count_++] = *next;
      array.emplace(call.output(name, *next++));
      value = array->pointer();
    }
    void optional_array(const char* name, const Array*& value) {
      if (!is_given()) return;
      std::optional<ArrayArgument>& array = call.arrays_[call.array_count_++];
      array.emplace(call.option(name, *next++));
      value = array->pointer();
    }
    void optional_output(const char* name, const Array*& value) {
      if (is_given()) output(name, value);
    }
    // An int is the position of the first token.
    void positions(const char* name, const Array*& value, int64_t& first) {
      if (next == end || !PyLong_CheckExact(*next)) return optional_array(name, value);
      first = numpy::integer(call.function_, name, *next++);
      // So that no position is beyond 64 bits, whatever x has of tokens: nobody has as many.
      if (first > INT64_MAX - (int64_t{1} << 48)) call.all_read_ = false;
    }
    void text(const char* name, std::string_view& value) {
      if (has_default(name) ? !is_given() : next == end) return;
      value = numpy::text(call.function_, name, *next++);
    }
    void pairing(const char* name, std::string_view& value) {
      if (value == "same" ? next == end : !is_given()) return;
      value = pairing_text(call.function_, name, *next++, value == "same",
                           call.pairings_[call.pairing_count_++]);
    }
    void integer(const char* name, int64_t& value) {
      if (!is_given() || !is_plain()) return;
      value = numpy::integer(call.function_, name, *next++);
    }
    void number(const char* name, double& value) {
      if (is_optional_number(name) ? !is_given() : next == end) return;
      value = numpy::number(call.function_, name, *next++);
    }
    void boolean(const char* /*name*/, bool& value) {
      if (next == end || !is_plain()) return;
      value = numpy::boolean(*next++);
    }
    // A tensor of one element would pass for a number; about it the operator decides.
    bool is_plain() {
      if (!tensors::Library::get().is_tensor_or_parameter(*next)) return true;
      ++next;
      call.all_read_ = false;
      return false;
    }
    static bool has_default(std::string_view name) {
      return name == "layout" || name == "compute" || name == "query_scale";
    }
    static bool is_optional_number(std::string_view name) {
      return name == "scale" || name == "query_beta" || name == "query_length" ||
             name == "query_shift";
    }
    bool is_given() {
      if (next == end) return false;
      if (*next != Py_None) return true;
      ++next;
      return false;
    }
  };

  Reader reader(PyObject* const* arguments, size_t count) {
    return {*this, arguments, arguments + count};
  }

  ArrayArgument input(const char* name, py::handle object) {
    if (of_tensors_) return tensor(object);
    return {function_, name, require_array(function_, name, object)};
  }

  ArrayArgument output(const char* name, py::handle object) {
    if (!of_tensors_) return output_array(function_, name, object);
    if (!tensors::Library::get().may_be_written(object)) all_read_ = false;
    return tensor(object);
  }

  // An option, an array or a tensor; nothing for None.
  ArrayArgument option(const char* name, py::handle object) {
    if (object.is_none()) return {};
    if (PyList_CheckExact(object.ptr())) return list(name, object);
    if (of_tensors_ && tensors::Library::get().is_tensor_or_parameter(object)) {
      return described(object);
    }
    if (of_tensors_ && is_factor(name)) all_read_ = false;
    has_host_memory_ = true;
    return optional_array(function_, name, object);
  }

  // A new one of this shape; of tensors, one of the dtype of `like`, or of float32.
  ArrayArgument result(const char* name, const int64_t* shape, int rank, const py::dtype& dtype) {
    return {function_, name, py::array(dtype, std::vector<py::ssize_t>(shape, shape + rank))};
  }
  ArrayArgument result_of_tensors(const int64_t* shape, int rank, const ArrayArgument& like,
                                  bool of_float32 = false) {
    const Dtype dtype = of_float32 ? Dtype::kFloat32 : like.array().dtype;
    if (!all_read()) return {};
    return made(
        tensors::Library::get().new_empty(like.object(), shape, rank, dtype, of_float32, place_));
  }

  // New integers of this shape.
  ArrayArgument integers(const char* name, const int64_t* shape, int rank) {
    if (!of_tensors_) return result(name, shape, rank, py::dtype::of<int64_t>());
    py::object integers = tensors::Library::get().new_integers(shape, rank, place_);
    if (!integers) {
      all_read_ = false;
      return {};
    }
    return made(std::move(integers));
  }

  // A new one like it.
  ArrayArgument result(const ArrayArgument& like) {
    if (!of_tensors_) return {function_, "out", empty_like(like.object())};
    if (!all_read()) return {};
    return made(tensors::Library::get().empty_like(like.object(), like.array(), place_));
  }

  static int64_t bytes_of(const Array& array) {
    int64_t bytes = item_size(array.dtype);
    for (int i = 0; i < array.rank; ++i) bytes *= array.shape[i];
    return bytes;
  }

  // Whether the operator's kernels are ours.
  bool has_own_kernels(tensors::Operation operation, tensors::Form form) const {
    return !of_tensors_ || tensors::Library::get().has_own_kernels(operation, form, place_);
  }

  void written(py::handle object) const {
    if (of_tensors_) tensors::Library::get().written(object);
  }
  // All options that were read as outputs.
  void outputs_written() const {
    for (size_t i = 0; i < output_count_; ++i) written(outputs_[i]);
  }

 private:
  // Of what is multiplied with or added: beside tensors it is one.
  static bool is_factor(std::string_view name) {
    return name == "cos" || name == "sin" || name == "q_weight" || name == "k_weight" ||
           name == "k_scale_of_heads" || name == "v_scale_of_heads" || name == "diagonals" ||
           name == "content";
  }

  // A few ints, read once: what is read and how much of it cannot differ. Beside tensors, other
  // lists are left to the general path; beside arrays they are what NumPy makes of them.
  ArrayArgument list(const char* name, py::handle object) {
    int64_t* const values = integers_[integer_count_];
    Py_ssize_t count = 0;
    bool are_ints = true;
    while (are_ints) {
      const py::object item = item_of(object.ptr(), count);
      if (!item) break;
      int overflow = 0;
      are_ints = count < kMaxListed && PyLong_CheckExact(item.ptr());
      if (are_ints) values[count++] = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
      are_ints = are_ints && overflow == 0;
    }
    if (are_ints && count > 0) {
      ++integer_count_;
      has_host_memory_ = true;
      return ArrayArgument::of_integers(py::reinterpret_borrow<py::object>(object), values, count);
    }
    if (!of_tensors_) return optional_array(function_, name, object);
    all_read_ = false;
    return {};
  }

  ArrayArgument tensor(py::handle object) {
    if (!tensors::Library::get().is_tensor(object)) {
      all_read_ = false;
      return {};
    }
    return described(object);
  }

  ArrayArgument described(py::handle object) {
    ArrayArgument argument = ArrayArgument::of_tensor(py::reinterpret_borrow<py::object>(object));
    if (!argument) {
      all_read_ = false;
    } else if (!has_place_) {
      has_place_ = true;
      place_ = argument.place();
    } else if (!(place_ == argument.place())) {
      all_read_ = false;
    }
    return argument;
  }

  ArrayArgument made(py::object tensor) {
    ArrayArgument argument = described(tensor);
    if (argument && place_.is_cpu()) {
      advise_huge_pages(argument.array().data, bytes_of(argument.array()));
    }
    return argument;
  }

  const char* const function_;
  const bool of_tensors_;
  bool all_read_ = true;
  bool has_host_memory_ = false;  // options that are no tensors
  bool has_place_ = false;
  Place place_;                                      // of the tensors
  std::optional<ArrayArgument> arrays_[kMaxArrays];  // few are given
  size_t array_count_ = 0;
  py::handle outputs_[kMaxArrays];
  size_t output_count_ = 0;
  int64_t integers_[kMaxArrays][kMaxListed];
  size_t integer_count_ = 0;
  std::string pairings_[2];  // that are numbers
  size_t pairing_count_ = 0;
};

}  // namespace posenc::numpy
