// torch tensors as arguments of the fast path (door.h), for calls that finish before torch's
// dispatcher would have found the operator. Nothing of torch is linked: the tensor type has a table
// of C functions that describe its memory. The table is DLPack's and stable across versions; the
// part that is needed is declared below. Functions of torch's libraries provide all other
// information; if one of them is missing, no tensor is read here.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "bindings/numpy/run.h"
#include "bindings/runners.h"
#include "core/view.h"

namespace posenc::tensors {

// As errors write them, in the order of Dtype.
constexpr const char* kDtypeNames[] = {
    "float16", "bfloat16", "float32", "float64", "int8",   "uint8",         "int16",
    "uint16",  "int32",    "uint32",  "int64",   "uint64", "float8_e4m3fn", "float8_e5m2"};
static_assert(sizeof(kDtypeNames) / sizeof(*kDtypeNames) == static_cast<size_t>(Dtype::kOther));

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
  int32_t device_type, device_id;  // 1: the CPU, 2: CUDA
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

// --- Questions to torch

// Functions of torch's libraries, which the package has looked up by their names (door.py says
// which): what takes a Python function 40 nanoseconds they answer in one or two.
struct Questions {
  bool (*has_callbacks)() = nullptr;  // of profilers and observers, here or on all threads
  int64_t (*function_modes)() = nullptr;
  bool (*is_included)(uint16_t dispatch_key) = nullptr;  // on this thread
  bool (*is_inference)() = nullptr;
  bool (*is_grad_enabled)() = nullptr;
  // Of the stable ABI. `tensor` is at::Tensor*; they return 0 unless they fail.
  int32_t (*storage_size)(void* tensor, int64_t* bytes) = nullptr;
  int32_t (*storage_offset)(void* tensor, int64_t* elements) = nullptr;
  int32_t (*empty_strided)(int64_t rank, const int64_t* shape, const int64_t* strides,
                           int32_t dtype, int32_t device_type, int32_t device_id,
                           void** tensor) = nullptr;
  int32_t (*delete_tensor)(void* tensor) = nullptr;
  // Those that a version of torch may lack; Python answers then. All take const at::Tensor&.
  bool (*is_negated)(const void* tensor) = nullptr;
  void (*bump_version)(const void* tensor) = nullptr;
  PyObject* (*wrap)(const void* tensor) = nullptr;
};

// --- Tensors

// What follows the calls on this thread.
enum class Follower {
  kNone,
  kAutograd,  // tensors that require a gradient
  kOther,     // a mode, a transform, a profiler ...: the operator must not be bypassed
};

// Which operator a call stands for, by where its results go.
enum class Form { kNew, kInPlace, kOut };
// And by what it does: the order of the names that the package brings.
enum class Operation {
  kRotateOne,
  kRotateTwo,
  kNorm,
  kAppend,
  kRotateOneByTables,
  kRotateTwoByTables,
  kNormByTables,
  kAppendByTables,
  kRotaryTables,
  kSinusoid,
  kAddSinusoid,
  kBias,
  kAddBias,
  kSums,
  kGather,
  kScatter,
  kRotateOneBySteps,
  kRotateTwoBySteps,
};

constexpr Operation by_tables(Operation operation, bool so) {
  constexpr int kFurther = static_cast<int>(Operation::kRotateOneByTables);
  return static_cast<Operation>(static_cast<int>(operation) + (so ? kFurther : 0));
}

// torch.Tensor, once the Python package has brought it.
class Library {
 public:
  static Library& get() {
    static Library library;
    return library;
  }

  // The package brings
  //   tensor        some torch.Tensor
  //   parameter     torch.nn.Parameter, which options may be
  //   empty_like    torch.empty_like
  //   float32       torch.float32
  //   increment     torch's function that tells autograd of tensors that were overwritten
  //   addresses     of Questions, in their order
  //   keys          of the dispatcher: included on a thread where somebody follows operators
  //   forward_mode  the names in the module of forward mode
  //   registered    the set of the names of all kernels that Python has registered
  //   kernels       the names that kernels over ours would have, by [Operation][Form]
  //   gpu_kernels   the same for tensors of a GPU
  //   runners       the address of Runners
  // Returns false if tensors cannot be read: their type has no table of DLPack, or one of an
  // unknown version, or is laid out in an unknown way.
  bool use(py::handle tensor, py::handle parameter, py::handle empty_like, py::handle float32,
           py::handle increment, const py::tuple& addresses, const py::tuple& keys,
           const py::dict& forward_mode, const py::set& registered, const py::tuple& kernels,
           const py::tuple& gpu_kernels, uintptr_t runners) {
    const py::handle type = py::type::handle_of(tensor);
    if (!py::hasattr(type, "__dlpack_c_exchange_api__")) return false;
    const py::object capsule = type.attr("__dlpack_c_exchange_api__");
    void* const given = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
    if (given == nullptr) throw py::error_already_set();
    const auto* const exchange = static_cast<const Exchange*>(given);
    if (exchange->version.major != 1 || exchange->describe == nullptr) return false;
    if (!find_content(tensor)) return false;
    const auto* const table = reinterpret_cast<const Runners*>(runners);
    if (table->layout != Runners::kLayout) return false;
    runners_ = table;
    size_t next = 0;
    const auto look_up = [&](auto*& function) {
      const auto address = py::cast<uintptr_t>(addresses[next++]);
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    look_up(questions_.has_callbacks);
    look_up(questions_.function_modes);
    look_up(questions_.is_included);
    look_up(questions_.is_inference);
    look_up(questions_.is_grad_enabled);
    look_up(questions_.storage_size);
    look_up(questions_.storage_offset);
    look_up(questions_.empty_strided);
    look_up(questions_.delete_tensor);
    look_up(questions_.is_negated);
    look_up(questions_.bump_version);
    look_up(questions_.wrap);
    key_count_ = 0;
    for (const py::handle key : keys) {
      if (key_count_ == kMaxKeys) return false;
      keys_[key_count_++] = py::cast<uint16_t>(key);
    }
    // Kept for good, as the table is: they may be used until the interpreter is gone.
    const auto keep = [](py::handle object) {
      return py::reinterpret_borrow<py::object>(object).release();
    };
    exchange_ = exchange;
    parameter_type_ = keep(parameter);
    is_negated_ = py::object(type.attr("is_neg")).release();
    empty_like_ = keep(empty_like);
    float32_ = keep(float32);
    increment_ = keep(increment);
    forward_mode_ = keep(forward_mode);
    registered_ = keep(registered);
    kernels_ = keep(kernels);
    gpu_kernels_ = keep(gpu_kernels);
    requires_grad_ = py::str("requires_grad").release();
    version_ = py::str("_version").release();
    new_empty_ = py::str("new_empty").release();
    names_of_new_ = py::make_tuple("dtype").release();
    current_level_ = py::str("_current_level").release();
    // Last: a thread that knows the type knows all the above.
    type_.store(keep(type).ptr(), std::memory_order_release);
    return true;
  }

  // Not subclasses, which have rules of their own.
  bool is_tensor(py::handle object) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) ==
           type_.load(std::memory_order_acquire);
  }

  // Whether an object is a tensor, and not in the memory of the CPU.
  bool is_tensor_elsewhere(py::handle object) const {
    if (!is_tensor(object)) return false;
    Description d;
    if (exchange_->describe(object.ptr(), &d) != 0) {
      PyErr_Clear();
      return false;
    }
    return d.device_type != kCpu || is_elsewhere(Place());
  }

  // Parameters are tensors without rules of their own.
  bool is_tensor_or_parameter(py::handle object) const {
    return is_tensor(object) ||
           (reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == parameter_type_.ptr() &&
            parameter_type_);
  }

  Follower follower() const {
    if (questions_.has_callbacks() || questions_.function_modes() != 0) return Follower::kOther;
    for (int i = 0; i < key_count_; ++i) {
      if (questions_.is_included(keys_[i])) return Follower::kOther;
    }
    const py::object level = item_of(forward_mode_.ptr(), current_level_.ptr());
    const long value = level ? PyLong_AsLong(level.ptr()) : 0;  // -1: none
    if (value != -1 || PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return Follower::kOther;
    }
    return questions_.is_grad_enabled() ? Follower::kAutograd : Follower::kNone;
  }

  // Whether nobody has put a kernel in the place of ours.
  bool has_own_kernels(Operation operation, Form form, Place place) const {
    const py::handle kernels = place.is_cpu() ? kernels_ : gpu_kernels_;
    PyObject* const forms = PyTuple_GET_ITEM(kernels.ptr(), static_cast<int>(operation));
    PyObject* const names = PyTuple_GET_ITEM(forms, static_cast<int>(form));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
      const int is_there = PySet_Contains(registered_.ptr(), PyTuple_GET_ITEM(names, i));
      if (is_there < 0) throw py::error_already_set();
      if (is_there != 0) return false;
    }
    return true;
  }

  // False for a tensor that torch would refuse to overwrite: one of inference mode, outside of
  // that. It is the one without a version.
  bool may_be_written(py::handle tensor) const {
    if (questions_.is_inference()) return true;
    PyObject* const version = PyObject_GetAttr(tensor.ptr(), version_.ptr());
    if (version == nullptr) {
      PyErr_Clear();
      return false;
    }
    Py_DECREF(version);
    return true;
  }

  bool requires_grad(py::handle tensor) const {
    return is_true(PyObject_GetAttr(tensor.ptr(), requires_grad_.ptr()));
  }

  // From now on takes tensors of a GPU, which its kernels have been found to run on.
  void use_gpu(int index) { gpus_.fetch_or(uint64_t{1} << (index & 63)); }

  // For tests and benchmarks: the CPU stands in for a GPU, whose way all calls go then.
  void stand_in(bool so) { stands_in_.store(so); }

  // Whether tensors are where this module has no kernels.
  bool is_elsewhere(Place place) const {
    return !place.is_cpu() || stands_in_.load(std::memory_order_relaxed);
  }

  // Runs work that the torch operators' kernels are for, on torch's threads or a GPU: run(runners).
  // False for other work; `bytes`: what it writes.
  template <typename Run>
  bool run_by_torch(Place place, int64_t bytes, const Run& run) const {
    if (2 * bytes < numpy::kTensorBytes && !is_elsewhere(place)) return false;
    numpy::without_interpreter([&] { run(*runners_); });
    return true;
  }

  // False for a tensor that cannot be read here: the operator takes it, or has words for it.
  bool describe(py::handle tensor, Array& array, Place& place) const {
    Description d;
    if (exchange_->describe(tensor.ptr(), &d) != 0) {
      PyErr_Clear();
      return false;
    }
    array.dtype = dtype_of(d.type);
    array.rank = d.rank;
    if (array.dtype == Dtype::kOther || d.rank > kMaxRank) return false;
    if (d.device_type == kCuda) {
      if (d.device_id >= 64 || (gpus_.load(std::memory_order_relaxed) >> d.device_id & 1) == 0) {
        return false;
      }
      place = {kCudaOfTorch, d.device_id};
    } else if (d.device_type != kCpu) {
      return false;
    }
    array.readable = !is_elsewhere(place);
    array.dtype_name = kDtypeNames[static_cast<int>(array.dtype)];
    array.data = static_cast<char*>(d.data) + d.byte_offset;
    for (int i = 0; i < d.rank; ++i) {
      array.shape[i] = d.shape[i];
      array.stride[i] = d.strides[i];
    }
    // The imaginary part of a conjugate is the negative of what is in memory.
    if (is_real(array.dtype) && is_negated(tensor)) return false;
    if (d.data == nullptr && !array.empty()) return false;  // zeros without memory
    if (!array.aligned()) return false;
    // Its storage may have been freed.
    int64_t offset = 0, bytes = 0;
    void* const content = content_of(tensor);
    return questions_.storage_offset(content, &offset) == 0 &&
           questions_.storage_size(content, &bytes) == 0 &&
           (offset + span(array)) * item_size(array.dtype) <= bytes;
  }

  // Tells autograd that a tensor was overwritten.
  void written(py::handle tensor) const {
    if (questions_.bump_version != nullptr) return questions_.bump_version(content_of(tensor));
    const py::tuple tensors = py::make_tuple(tensor);
    PyObject* const result = PyObject_CallOneArg(increment_.ptr(), tensors.ptr());
    if (result == nullptr) throw py::error_already_set();
    Py_DECREF(result);
  }

  // A new tensor with the shape and, where they leave no gaps, the strides of another one, as
  // torch.empty_like makes it.
  py::object empty_like(py::handle tensor, const Array& like, Place place) const {
    if (is_dense(like)) {
      if (py::object made = empty(like.shape, like.stride, like.rank, like.dtype, place)) {
        return made;
      }
    }
    return there_is(PyObject_CallOneArg(empty_like_.ptr(), tensor.ptr()));
  }

  // A new tensor of int64 of this shape; nothing where this torch has no quick way.
  py::object new_integers(const int64_t* shape, int rank, Place place) const {
    int64_t strides[kMaxRank];
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      strides[i] = stride;
      stride *= std::max(shape[i], int64_t{1});
    }
    return empty(shape, strides, rank, Dtype::kInt64, place);
  }

  // A new tensor of this shape, of the dtype of another one or of float32.
  py::object new_empty(py::handle like, const int64_t* shape, int rank, Dtype dtype,
                       bool of_float32, Place place) const {
    int64_t strides[kMaxRank];
    if (rank <= kMaxRank) {
      int64_t stride = 1;
      for (int i = rank - 1; i >= 0; --i) {
        strides[i] = stride;
        stride *= std::max(shape[i], int64_t{1});
      }
      if (py::object made = empty(shape, strides, rank, dtype, place)) return made;
    }
    py::tuple sizes(static_cast<size_t>(rank));
    for (int i = 0; i < rank; ++i) {
      PyTuple_SET_ITEM(sizes.ptr(), i, py::int_(shape[i]).release().ptr());
    }
    PyObject* const arguments[] = {like.ptr(), sizes.ptr(), float32_.ptr()};
    return there_is(PyObject_VectorcallMethod(new_empty_.ptr(), arguments, 2,
                                              of_float32 ? names_of_new_.ptr() : nullptr));
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
      case 0xa08:
        return Dtype::kFloat8E4M3;
      case 0xc08:
        return Dtype::kFloat8E5M2;
      default:
        return Dtype::kOther;
    }
  }

  // Memory that torch has made. Where there is none, the general path says so.
  static py::object there_is(PyObject* memory) {
    if (memory == nullptr) {
      PyErr_Clear();
      fail_value("", "out", "memory", "none");
    }
    return py::reinterpret_steal<py::object>(memory);
  }

  // Past Python's parser of arguments, which takes longer than the memory does; nothing where this
  // torch has no such way.
  py::object empty(const int64_t* shape, const int64_t* strides, int rank, Dtype dtype,
                   Place place) const {
    const int32_t number = scalar_type(dtype);
    if (questions_.wrap == nullptr || number < 0) return {};
    void* made = nullptr;
    const auto make = [&] {
      return questions_.empty_strided(rank, shape, strides, number, place.type, place.index, &made);
    };
    // The allocator of a GPU may wait for it, or for a thread that wants the interpreter.
    const int32_t error = place.is_cpu() ? make() : numpy::without_interpreter(make);
    if (error != 0) there_is(nullptr);
    PyObject* const wrapped = questions_.wrap(made);
    questions_.delete_tensor(made);  // the reference, not the tensor
    if (wrapped == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(wrapped);
  }

  // The number of a dtype in torch's stable ABI; -1: not one of results.
  static int32_t scalar_type(Dtype dtype) {
    switch (dtype) {
      case Dtype::kInt64:
        return 4;
      case Dtype::kFloat16:
        return 5;
      case Dtype::kFloat32:
        return 6;
      case Dtype::kFloat64:
        return 7;
      case Dtype::kBFloat16:
        return 15;
      default:
        return -1;
    }
  }

  // Whether elements lie side by side without gaps, in any order of the axes.
  static bool is_dense(const Array& array) {
    int64_t count = 1;
    for (int i = 0; i < array.rank; ++i) count *= array.shape[i];
    int64_t stride = 1;
    // The axis that continues the ones before, until all elements are counted.
    for (int axis = 0; stride < count && axis < array.rank;) {
      const bool next = array.shape[axis] != 1 && array.stride[axis] == stride;
      if (next) stride *= array.shape[axis];
      axis = next ? 0 : axis + 1;
    }
    return count != 0 && stride == count;
  }

  // Its at::Tensor.
  void* content_of(py::handle tensor) const {
    return reinterpret_cast<char*>(tensor.ptr()) + content_;
  }

  bool is_negated(py::handle tensor) const {
    if (questions_.is_negated != nullptr) return questions_.is_negated(content_of(tensor));
    return is_true(PyObject_CallOneArg(is_negated_.ptr(), tensor.ptr()));
  }

  // Where the at::Tensor lies within its Python object: torch does not say. An at::Tensor is a
  // pointer, and torch tells its value.
  bool find_content(py::handle tensor) {
    const auto address = py::cast<uintptr_t>(tensor.attr("_cdata"));
    const auto size = static_cast<size_t>(Py_TYPE(tensor.ptr())->tp_basicsize);
    for (size_t at = sizeof(PyObject); at + sizeof(address) <= size; at += sizeof(address)) {
      uintptr_t word = 0;
      std::memcpy(&word, reinterpret_cast<const char*>(tensor.ptr()) + at, sizeof(word));
      if (word != address) continue;
      content_ = at;
      return true;
    }
    return false;
  }

  // What a dict has for a key, which another thread may be changing; nothing where it has none.
  static py::object item_of(PyObject* dict, PyObject* key) {
#if PY_VERSION_HEX >= 0x030d0000
    PyObject* item = nullptr;
    if (PyDict_GetItemRef(dict, key, &item) < 0) PyErr_Clear();
    return py::reinterpret_steal<py::object>(item);
#else
    return py::reinterpret_borrow<py::object>(PyDict_GetItem(dict, key));
#endif
  }

  static bool is_true(PyObject* result) {
    if (result == nullptr) throw py::error_already_set();
    const int truth = PyObject_IsTrue(result);
    Py_DECREF(result);
    if (truth < 0) throw py::error_already_set();
    return truth != 0;
  }

  static constexpr int kMaxKeys = 16;
  static constexpr int32_t kCpu = 1, kCuda = 2;  // of DLPack
  static constexpr int32_t kCudaOfTorch = 1;

  const Exchange* exchange_ = nullptr;
  Questions questions_;
  uint16_t keys_[kMaxKeys];
  int key_count_ = 0;
  size_t content_ = 0;
  std::atomic<PyObject*> type_{nullptr};
  py::handle parameter_type_, is_negated_, empty_like_, increment_, forward_mode_, registered_,
      kernels_;
  py::handle gpu_kernels_;
  const Runners* runners_ = nullptr;
  std::atomic<uint64_t> gpus_{0};  // a bit for each that is in use
  std::atomic<bool> stands_in_{false};
  py::handle float32_, requires_grad_, version_, current_level_, new_empty_, names_of_new_;
};

}  // namespace posenc::tensors
