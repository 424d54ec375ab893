// A rotation of q and k, like those that were bound, at positions that come with each call; and one
// that binds itself when calls are alike.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/huge_pages.h"
#include "bindings/numpy/arguments.h"
#include "bindings/numpy/bound.h"
#include "bindings/numpy/description.h"
#include "bindings/numpy/door.h"
#include "bindings/numpy/methods.h"
#include "bindings/numpy/run.h"
#include "core/rotary.h"
#include "cpu/kernels.h"
#include "cpu/run.h"

namespace posenc::numpy {
namespace {

// q or k as it was when the rotation was bound.
class Kind {
 public:
  Kind() = default;
  Kind(const ArrayArgument& argument, bool of_tensors) : array_(argument.array()) {
    array_.dtype_name = "";
    if (!of_tensors) dtype_ = argument.dtype();
  }

  // Where the elements of an array are; null if it is of another kind, or none.
  void* data(const ArrayArgument& other) const {
    const Array& x = other.array();
    const size_t size = static_cast<size_t>(array_.rank) * sizeof(int64_t);
    const bool same = x.dtype == array_.dtype && x.rank == array_.rank &&
                      std::memcmp(x.shape, array_.shape, size) == 0 &&
                      std::memcmp(x.stride, array_.stride, size) == 0;
    return same && other ? x.data : nullptr;
  }

  // Of a NumPy array, without a description of all of it.
  void* data(py::handle object, bool to_write) const {
    if (Py_TYPE(object.ptr()) != py::detail::npy_api::get().PyArray_Type_) return nullptr;
    const auto* const x = py::detail::array_proxy(object.ptr());
    const int needed = py::detail::npy_api::NPY_ARRAY_ALIGNED_ |
                       (to_write ? py::detail::npy_api::NPY_ARRAY_WRITEABLE_ : 0);
    if (x->descr != dtype_.ptr() || x->nd != array_.rank || (x->flags & needed) != needed) {
      return nullptr;
    }
    const int64_t size = item_size(array_.dtype);
    for (int i = 0; i < array_.rank; ++i) {
      if (x->dimensions[i] != array_.shape[i] || x->strides[i] != array_.stride[i] * size) {
        return nullptr;
      }
    }
    return x->data;
  }

  const Array& array() const { return array_; }
  Bytes bytes(const void* data) const {
    return bytes_of(data, array_.dtype, array_.rank, array_.shape, array_.stride);
  }

 private:
  Array array_;
  py::dtype dtype_;
};

class BoundRotation final : public BoundCall {
 public:
  // The arguments are those of apply_rotary_qk, without positions.
  BoundRotation(py::handle q, py::handle k, py::handle inv_freq, py::handle layout,
                py::handle pairing, py::handle start, py::handle scale, py::handle inverse,
                py::handle inplace)
      : of_tensors_(tensors::Library::get().is_tensor(q)), in_place_(boolean(inplace)) {
    const char* const function = kFunction;
    const ArrayArgument frequencies(function, "inv_freq",
                                    require_array(function, "inv_freq", inv_freq));
    RotaryCall call;
    std::string pairing_storage;
    call.function = function;
    call.names[0] = "q";
    call.inv_freq = frequencies.pointer();
    call.layout = text(function, "layout", layout);
    call.pairing = pairing_text(function, "pairing", pairing, false, pairing_storage);
    call.rotary_start = integer(function, "rotary_start", start);
    call.scale = number(function, "scale", scale);
    call.inverse = boolean(inverse);
    call.tensor_count = 2;
    ArrayArgument in[2] = {argument(function, "q", q), argument(function, "k", k)};
    bytes_ = bytes(in[0]) + bytes(in[1]);
    ArrayArgument out[2];
    for (int i = 0; i < 2; ++i) {
      in_[i] = Kind(in[i], of_tensors_);
      call.in[i] = call.out[i] = &in[i].array();
      if (!in[i] || in[i].array().empty()) return;
      if (in_place_) continue;
      out[i] = result(in[i].object(), in[i].array());
      if (!out[i]) return;
      out_[i] = Kind(out[i], of_tensors_);
      call.out[i] = &out[i].array();
    }
    args_ = check_rotary_parts(call).first;  // options that could be pairs are none here
    // Of each head or of several axes: every call looks them up.
    if (args_.inv_freq.heads != 1 || args_.inv_freq.terms() != 1) return;
    has_batch_ = call.layout.find('b') != std::string_view::npos;
    const auto pairs = static_cast<size_t>(args_.pairs);
    turns_.resize(2 * pairs);
    turns_from_frequencies(args_.inv_freq, args_.pairs, turns_.data(), turns_.data() + pairs);
    args_.frequencies = {turns_.data(), turns_.data() + pairs};
    args_.inv_freq.data = nullptr;  // what they were made of is not kept
    is_bound_ = true;
  }

  // False where ordinary calls serve q and k.
  bool is_bound() const { return is_bound_; }

  int64_t head_dim() const { return args_.head_dim; }

  py::object operator()(PyObject* const* arguments, size_t count) override {
    if (count != 3) throw py::type_error("expected q, k and position, by place");
    const py::handle q = arguments[0], k = arguments[1], position = arguments[2];
    const tensors::Library& library = tensors::Library::get();
    bool records = false;
    if (of_tensors_) {
      const tensors::Follower follower = library.follower();
      if (follower == tensors::Follower::kOther) return not_mine();
      records = follower == tensors::Follower::kAutograd;
      const tensors::Form form = in_place_ ? tensors::Form::kInPlace : tensors::Form::kNew;
      if (!library.has_own_kernels(tensors::Operation::kRotateTwo, form, Place()))
        return not_mine();
    }
    RotaryArgs args = args_;
    Bytes bytes[3];
    const py::handle given[2] = {q, k};
    for (int i = 0; i < 2; ++i) {
      void* const data =
          of_tensors_ ? in_[i].data(tensor(given[i], records)) : in_[i].data(given[i], in_place_);
      if (data == nullptr) return not_mine();
      if (of_tensors_ && in_place_ && !library.may_be_written(given[i])) return not_mine();
      args.tensors[i].in = args.tensors[i].out = data;
      bytes[i] = in_[i].bytes(data);
    }
    if (!place(position, records, args, bytes[2])) return not_mine();
    // Views that cross each other may be right all the same, as slices of a packed projection are:
    // the ordinary way finds out, which is how they were bound where they lie as far apart.
    const bool as_bound = distance(args.tensors[0].in, args.tensors[1].in) ==
                          distance(in_[0].array().data, in_[1].array().data);
    if (bytes[0].meet(bytes[1]) && !as_bound) return not_mine();
    if (bytes[0].meet(bytes[2]) || bytes[1].meet(bytes[2])) return not_mine();
    if (in_place_) {
      run(args);
      if (of_tensors_) {
        library.written(q);
        library.written(k);
      }
      return pair(q, k);
    }
    const ArrayArgument out[2] = {result(q, in_[0].array()), result(k, in_[1].array())};
    for (int i = 0; i < 2; ++i) {
      args.tensors[i].out = out_[i].data(out[i]);
      if (args.tensors[i].out == nullptr) return not_mine();
    }
    run(args);
    return pair(out[0].object(), out[1].object());
  }

 private:
  static constexpr const char* kFunction = "apply_rotary_qk";

  void run(const RotaryArgs& args) const {
    const auto rotate = [&](const Runners& runners) { runners.rotate(kFunction, Place(), args); };
    if (of_tensors_ && tensors::Library::get().run_by_torch(Place(), bytes_, rotate)) return;
    cpu::rotate(args, run_rows);
  }

  static uintptr_t distance(const void* q, const void* k) {
    return reinterpret_cast<uintptr_t>(k) - reinterpret_cast<uintptr_t>(q);
  }

  static py::object pair(py::handle q, py::handle k) {
    PyObject* const both = PyTuple_Pack(2, q.ptr(), k.ptr());
    if (both == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(both);
  }

  ArrayArgument argument(const char* function, const char* name, py::handle object) const {
    if (of_tensors_) return tensor(object, false);
    return {function, name, require_array(function, name, object)};
  }

  static int64_t bytes(const ArrayArgument& argument) {
    if (!argument) return 0;
    const Array& x = argument.array();
    int64_t size = item_size(x.dtype);
    for (int i = 0; i < x.rank; ++i) size *= x.shape[i];
    return size;
  }

  // Nothing where it cannot be read here.
  static ArrayArgument tensor(py::handle object, bool records) {
    const tensors::Library& library = tensors::Library::get();
    if (!library.is_tensor(object) || (records && library.requires_grad(object))) return {};
    ArrayArgument argument = ArrayArgument::of_tensor(py::reinterpret_borrow<py::object>(object));
    // The frequencies are in the memory of the CPU.
    return library.is_elsewhere(argument.place()) ? ArrayArgument() : std::move(argument);
  }

  ArrayArgument result(py::handle like, const Array& array) const {
    if (of_tensors_) {
      ArrayArgument made =
          ArrayArgument::of_tensor(tensors::Library::get().empty_like(like, array, Place()));
      if (made) advise_huge_pages(made.array().data, bytes(made));
      return made;
    }
    return {"", "", empty_like(py::reinterpret_borrow<py::object>(like))};
  }

  // Positions of the tokens: an int p for p, p + 1 ..., or integers [s], [1, s] or [b, s]. False
  // for others; `bytes`: where they are.
  bool place(py::handle position, bool records, RotaryArgs& args, Bytes& bytes) const {
    bytes = {nullptr, nullptr};
    args.position_batch_stride = 0;
    args.position_token_stride = 1;
    if (PyLong_CheckExact(position.ptr())) {
      int overflow = 0;
      const int64_t first = PyLong_AsLongLongAndOverflow(position.ptr(), &overflow);
      args.positions = {};
      args.positions.first = first;
      return overflow == 0 && (first <= 0 || args.tokens - 1 <= INT64_MAX - first);
    }
    if (!of_tensors_ &&
        (Py_TYPE(position.ptr()) != py::detail::npy_api::get().PyArray_Type_ ||
         !py::detail::check_flags(position.ptr(), py::detail::npy_api::NPY_ARRAY_ALIGNED_))) {
      return false;
    }
    const ArrayArgument argument =
        of_tensors_ ? tensor(position, records)
                    : ArrayArgument("", "", py::reinterpret_borrow<py::array>(position));
    if (!argument) return false;
    const Array& x = argument.array();
    const bool by_row = x.rank == 2 && has_batch_ && x.shape[0] == args.batch;
    const bool one_row = x.rank == 1 || (x.rank == 2 && has_batch_ && x.shape[0] == 1);
    if (!is_integer(x.dtype) || !(by_row || one_row) || x.shape[x.rank - 1] != args.tokens) {
      return false;
    }
    args.positions = {x.data, x.dtype};
    args.position_batch_stride = one_row ? 0 : x.stride[0];
    args.position_token_stride = x.stride[x.rank - 1];
    bytes = bytes_of(x.data, x.dtype, x.rank, x.shape, x.stride);
    return true;
  }

  const bool of_tensors_, in_place_;
  bool is_bound_ = false, has_batch_ = false;
  int64_t bytes_ = 0;  // of q and k
  Kind in_[2], out_[2];
  std::vector<uint64_t> turns_;
  RotaryArgs args_;  // without addresses of q, k and positions
};

// The rotation of a description: calls like the last ones go by a rotation that is bound to these.
// NotImplemented, before anything has been written, for all others.
class RememberedRotation final : public BoundCall {
 public:
  explicit RememberedRotation(Description description) : description_(std::move(description)) {}

  const Description* description() const override { return &description_; }

  // q, k, positions, layout, inverse, inplace. Options are the same if they are the same objects.
  py::object operator()(PyObject* const* arguments, size_t count) override {
    if (count != 6) throw py::type_error("expected q, k, positions, layout, inverse and inplace");
    if (arguments[0] == Py_None || arguments[1] == Py_None || arguments[2] == Py_None ||
        !description_.axis_map.is_none() || description_.scales_queries()) {
      return not_mine();
    }
    if (const std::shared_ptr<Bound> bound = std::atomic_load(&bound_)) {
      if (bound->is_for(arguments)) {
        py::object rotated = bound->rotation(arguments, 3);
        if (rotated.ptr() != Py_NotImplemented) {
          const int wait = wait_.load(std::memory_order_relaxed);
          if (wait > 1) wait_.store(wait - 1, std::memory_order_relaxed);
          return rotated;
        }
      }
    }
    return bind_and_rotate(arguments);
  }

 private:
  struct Bound {
    BoundRotation rotation;
    py::object layout, inverse, inplace;

    Bound(const Description& of, PyObject* const* arguments)
        : rotation(arguments[0], arguments[1], of.inv_freq, arguments[3], of.pairing,
                   of.rotary_start, of.scale, arguments[4], arguments[5]),
          layout(kept(arguments[3])),
          inverse(kept(arguments[4])),
          inplace(kept(arguments[5])) {}

    bool is_for(PyObject* const* arguments) const {
      return layout.ptr() == arguments[3] && inverse.ptr() == arguments[4] &&
             inplace.ptr() == arguments[5];
    }
  };

  static py::object kept(py::handle object) { return py::reinterpret_borrow<py::object>(object); }

  // To bind takes longer than a call. Where calls that follow are not alike it would do so in vain:
  // after each time it waits for twice as many such calls, less one for each that was alike.
  py::object bind_and_rotate(PyObject* const* arguments) {
    if (calls_to_wait_.fetch_sub(1, std::memory_order_relaxed) > 0) return not_mine();
    const int wait = std::min(2 * wait_.load(std::memory_order_relaxed), kLongestWait);
    wait_.store(wait, std::memory_order_relaxed);
    calls_to_wait_.store(wait, std::memory_order_relaxed);
    if (!may_enter(arguments, 2)) return not_mine();
    std::shared_ptr<Bound> bound;
    try {
      bound = std::make_shared<Bound>(description_, arguments);
    } catch (const std::exception&) {  // the ordinary way says what is wrong
      return not_mine();
    }
    if (!bound->rotation.is_bound()) return not_mine();
    if (bound->rotation.head_dim() != description_.head_dim) return not_mine();
    std::atomic_store(&bound_, bound);
    return bound->rotation(arguments, 3);
  }

  static constexpr int kLongestWait = 1 << 16;

  const Description description_;
  std::shared_ptr<Bound> bound_;
  std::atomic<int> calls_to_wait_{0}, wait_{1};
};

// What a Rotary keeps: its description, and calls of it like recent ones.
py::object describe_rotation(py::handle inv_freq, py::handle axis_map, py::handle pairing,
                             py::handle start, py::handle scale, py::handle layout,
                             py::handle head_dim, py::handle query_scale) {
  const auto kept = [](py::handle object) { return py::reinterpret_borrow<py::object>(object); };
  return bound(std::make_unique<RememberedRotation>(
      Description{kept(inv_freq), kept(axis_map), kept(pairing), kept(start), kept(scale),
                  kept(layout), integer("Rotary", "head_dim", head_dim), kept(query_scale)}));
}

py::object bind_rotary_qk(py::handle q, py::handle k, py::handle inv_freq, py::handle layout,
                          py::handle pairing, py::handle start, py::handle scale,
                          py::handle inverse, py::handle inplace) {
  auto rotation = std::make_unique<BoundRotation>(q, k, inv_freq, layout, pairing, start, scale,
                                                  inverse, inplace);
  return rotation->is_bound() ? bound(std::move(rotation)) : not_mine();
}

}  // namespace

void define_bound_rotary(py::module_& m) {
  static PyMethodDef methods[] = {method<&bind_rotary_qk>("bind_rotary_qk"),
                                  method<&describe_rotation>("describe_rotation"),
                                  {nullptr, nullptr, 0, nullptr}};
  add_methods(m, methods);
}

}  // namespace posenc::numpy
