// A rotation of tensors by ready tables, with or without a norm before it, as every layer of a
// patched model makes it (posenc_native/hf). Its options are settled once. What a call has in
// common with an earlier one - shapes, strides, dtypes - is looked up in a short memory and not
// checked again: in a model whose products have emptied the caches, every line of code that a call
// does without saves fetching it.

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "bindings/huge_pages.h"
#include "bindings/numpy/arguments.h"
#include "bindings/numpy/bound.h"
#include "bindings/numpy/door.h"
#include "bindings/numpy/methods.h"
#include "bindings/numpy/run.h"
#include "core/norm_rotary.h"
#include "core/rotary.h"
#include "cpu/run.h"

namespace posenc::numpy {
namespace {

using tensors::Form;
using tensors::Operation;

// What a kind of call differs in from others: all of a tensor but where it is.
struct TensorKind {
  Dtype dtype = Dtype::kOther;
  int rank = -1;
  int64_t shape[4] = {}, stride[4] = {};

  static constexpr int kMostAxes = 4;

  void set(const Array& x) {
    dtype = x.dtype;
    rank = x.rank;
    std::memcpy(shape, x.shape, size());
    std::memcpy(stride, x.stride, size());
  }
  bool is(const Array& x) const {
    return x.dtype == dtype && x.rank == rank && std::memcmp(x.shape, shape, size()) == 0 &&
           std::memcmp(x.stride, stride, size()) == 0;
  }

 private:
  size_t size() const { return static_cast<size_t>(rank) * sizeof(int64_t); }
};

class BoundTables final : public BoundCall {
 public:
  // heads: 1 for x, 2 for q and k. ranks: how many axes tables may have, a bit for each. head_dim:
  // the width of a head, or a negative number where it may be wider than what is rotated. trailing:
  // whether the last dims of such a head are rotated. norms: whether norms come before.
  BoundTables(py::handle heads, py::handle layout, py::handle ranks, py::handle pairs,
              py::handle head_dim, py::handle trailing, py::handle pairing, py::handle inverse,
              py::handle out_pairing, py::handle in_place, py::handle norms)
      : heads_(static_cast<size_t>(integer(kFunction, "heads", heads))),
        ranks_(integer(kFunction, "ranks", ranks)),
        pairs_(integer(kFunction, "pairs", pairs)),
        head_dim_(integer(kFunction, "head_dim", head_dim)),
        trailing_(boolean(trailing)),
        inverse_(boolean(inverse)),
        in_place_(boolean(in_place)),
        norms_(boolean(norms)),
        layout_(text(kFunction, "layout", layout)) {
    std::string storage;
    pairing_ = pairing_text(kFunction, "pairing", pairing, false, storage);
    out_pairing_ = pairing_text(kFunction, "out_pairing", out_pairing, true, storage);
  }

  // x or q and k, cos, sin; with norms also the weights of q and k (None: none), eps, what is added
  // to weights, and whether weights of another dtype change that of the result. Weights of more
  // than a head are those of all heads of a token.
  py::object operator()(PyObject* const* arguments, size_t count) override {
    if (count != heads_ + 2 + (norms_ ? 5 : 0)) return not_mine();
    const tensors::Library& library = tensors::Library::get();
    const size_t given = heads_ + 2 + (norms_ ? 2 : 0);
    for (size_t i = 0; i < given; ++i) {
      const bool weight = i >= heads_ + 2;
      if (weight && arguments[i] == Py_None) continue;
      if (weight ? !library.is_tensor_or_parameter(arguments[i])
                 : !library.is_tensor(arguments[i])) {
        return not_mine();
      }
    }
    const tensors::Follower follower = library.follower();
    if (follower == tensors::Follower::kOther) return not_mine();
    const Operation operation = norms_        ? Operation::kNormByTables
                                : heads_ == 2 ? Operation::kRotateTwoByTables
                                              : Operation::kRotateOneByTables;
    Given read;
    for (size_t i = 0; i < given; ++i) {
      if (arguments[i] == Py_None) continue;
      if (follower == tensors::Follower::kAutograd && library.requires_grad(arguments[i])) {
        return not_mine();
      }
      Array& array = read.arrays[place(i)];
      Place where;
      if (!library.describe(arguments[i], array, where)) return not_mine();
      if (array.rank > TensorKind::kMostAxes) return not_mine();
      if (i == 0) read.where = where;
      if (!(read.where == where)) return not_mine();
    }
    if (!library.has_own_kernels(operation, in_place_ ? Form::kInPlace : Form::kNew, read.where)) {
      return not_mine();
    }
    if (norms_) {
      PyObject* const* const numbers = arguments + given;
      if (!PyFloat_CheckExact(numbers[0]) || !PyFloat_CheckExact(numbers[1])) return not_mine();
      read.eps = PyFloat_AS_DOUBLE(numbers[0]);
      read.offset = PyFloat_AS_DOUBLE(numbers[1]);
      const Array& weight = read.arrays[kWeights];
      const Array& x = read.arrays[0];
      if (read.has(kWeights) && weight.rank == 1 && x.rank > 0) {
        read.over_token = weight.shape[0] != x.shape[x.rank - 1];
      }
      for (size_t i = kWeights; i < kArrays && numbers[2] != Py_False; ++i) {
        if (read.has(i) && read.arrays[i].dtype != x.dtype) return not_mine();
      }
    }
    return run(library, arguments, read);
  }

 private:
  static constexpr const char* kFunction = "apply_rotary_qk";
  // Places of arrays, whether they are given or not.
  static constexpr size_t kCos = 2, kSin = 3, kWeights = 4, kArrays = 6;
  // Layers of a model differ little: two widths of a head, two lengths.
  static constexpr size_t kKept = 4;

  struct Given {
    Array arrays[kArrays];  // of rank 0 and of no dtype where nothing is given
    Place where;
    double eps = 0.0, offset = 0.0;
    bool over_token = false;

    bool has(size_t i) const { return arrays[i].dtype != Dtype::kOther; }
  };

  // A call as it was made.
  struct Made {
    TensorKind kinds[kArrays], out[2];
    double eps = 0.0, offset = 0.0;
    NormRotaryArgs args;

    bool is(const Given& given) const {
      for (size_t i = 0; i < kArrays; ++i) {
        if (kinds[i].rank < 0 ? given.has(i) : !kinds[i].is(given.arrays[i])) return false;
      }
      return eps == given.eps && offset == given.offset;
    }
  };

  size_t place(size_t argument) const {
    return argument < heads_ ? argument : argument + 2 - heads_;
  }

  py::object run(const tensors::Library& library, PyObject* const* arguments, Given& given) {
    int64_t all_bytes = 0;
    for (size_t i = 0; i < heads_; ++i) all_bytes += bytes(given.arrays[i]);
    if (!fits(given)) return not_mine();
    py::object made[2];
    Array out[2];
    for (size_t i = 0; i < heads_; ++i) {
      out[i] = given.arrays[i];
      if (in_place_) {
        if (!library.may_be_written(arguments[i])) return not_mine();
        continue;
      }
      made[i] = library.empty_like(arguments[i], given.arrays[i], given.where);
      Place where;
      if (!library.describe(made[i], out[i], where)) return not_mine();
      if (where.is_cpu()) advise_huge_pages(out[i].data, bytes(out[i]));
    }
    NormRotaryArgs args;
    if (!find(given, out, args)) {
      check(given, out, args);
      keep(given, out, args);
    }
    if (in_place_ && share_memory(given)) return not_mine();
    put_addresses(given, out, args);
    run(library, given.where, all_bytes, args);
    PyObject* results[2];
    for (size_t i = 0; i < heads_; ++i) {
      if (in_place_) library.written(arguments[i]);
      results[i] = in_place_ ? arguments[i] : made[i].ptr();
    }
    PyObject* const all =
        heads_ == 2 ? PyTuple_Pack(2, results[0], results[1]) : PyTuple_Pack(1, results[0]);
    if (all == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(all);
  }

  void run(const tensors::Library& library, Place where, int64_t bytes,
           const NormRotaryArgs& args) const {
    const auto by_torch = [&](const Runners& runners) {
      if (norms_) {
        runners.norm_rotate(kFunction, where, args);
      } else {
        runners.rotate(kFunction, where, args.rotary);
      }
    };
    if (library.run_by_torch(where, bytes, by_torch)) return;
    if (norms_) {
      cpu::norm_rotate(args, run_rows);
    } else {
      cpu::rotate(args.rotary, run_rows);
    }
  }

  static int64_t bytes(const Array& x) {
    int64_t size = item_size(x.dtype);
    for (int i = 0; i < x.rank; ++i) size *= x.shape[i];
    return size;
  }

  // Whether tables and heads are those that were bound: the core would rotate a part of a head.
  bool fits(const Given& given) const {
    const Array& x = given.arrays[0];
    const Array& cos = given.arrays[kCos];
    const bool ranks = x.rank == static_cast<int>(layout_.size()) && (ranks_ >> cos.rank & 1) != 0;
    if (cos.rank == 0 || !ranks) return false;
    return cos.shape[cos.rank - 1] == pairs_ && (head_dim_ < 0 || x.shape[x.rank - 1] == head_dim_);
  }

  // The call with all checks: throws the core's errors.
  void check(const Given& given, const Array* out, NormRotaryArgs& args) const {
    NormRotaryCall call;
    call.function = kFunction;
    call.cosine = &given.arrays[kCos];
    call.sine = &given.arrays[kSin];
    call.layout = layout_;
    call.pairing = pairing_;
    call.out_pairing = out_pairing_;
    call.inverse = inverse_;
    const Array& x = given.arrays[0];
    if (trailing_) call.rotary_start = x.shape[x.rank - 1] - 2 * pairs_;
    if (!norms_) {
      RotaryCall rotary;
      static_cast<RotaryOptions&>(rotary) = call;
      rotary.function = kFunction;
      rotary.tensor_count = static_cast<int>(heads_);
      if (heads_ == 2) rotary.names[0] = "q";
      for (size_t i = 0; i < heads_; ++i) {
        rotary.in[i] = &given.arrays[i];
        rotary.out[i] = in_place_ ? rotary.in[i] : &out[i];
      }
      args.rotary = check_rotary_parts(rotary).first;  // options that could be pairs are none here
      return;
    }
    for (size_t i = 0; i < heads_; ++i) {
      call.in[i] = &given.arrays[i];
      call.out[i] = in_place_ ? call.in[i] : &out[i];
      if (given.has(kWeights + i)) call.weights[i] = &given.arrays[kWeights + i];
    }
    call.eps = given.eps;
    call.weight_offset = given.offset;
    call.norm_over = given.over_token ? "token" : "head";
    args = check_norm_rotary(call);
  }

  // Calls that cross each other may be right all the same: the ordinary way finds out.
  bool share_memory(const Given& given) const {
    for (size_t i = 0; i < heads_; ++i) {
      const Bytes written = bytes_of(given.arrays[i]);
      for (size_t j = i + 1; j < kArrays; ++j) {
        if (given.has(j) && written.meet(bytes_of(given.arrays[j]))) return true;
      }
    }
    return false;
  }

  void put_addresses(const Given& given, const Array* out, NormRotaryArgs& args) const {
    RotaryArgs& rotary = args.rotary;
    for (size_t i = 0; i < heads_; ++i) {
      rotary.tensors[i].in = given.arrays[i].data;
      rotary.tensors[i].out = out[i].data;
      if (given.has(kWeights + i)) args.weights[i].data = given.arrays[kWeights + i].data;
    }
    rotary.cosine = given.arrays[kCos].data;
    rotary.sine = given.arrays[kSin].data;
  }

  bool find(const Given& given, const Array* out, NormRotaryArgs& args) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < count_; ++i) {
      const Made& made = made_[i];
      if (!made.is(given)) continue;
      for (size_t j = 0; j < heads_; ++j) {
        if (!made.out[j].is(out[j])) return false;
      }
      args = made.args;
      return true;
    }
    return false;
  }

  void keep(const Given& given, const Array* out, const NormRotaryArgs& args) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Made& made = made_[next_];
    next_ = (next_ + 1) % kKept;
    if (count_ < kKept) ++count_;
    for (size_t i = 0; i < kArrays; ++i) {
      made.kinds[i] = {};
      if (given.has(i)) made.kinds[i].set(given.arrays[i]);
    }
    for (size_t i = 0; i < heads_; ++i) made.out[i].set(out[i]);
    made.eps = given.eps;
    made.offset = given.offset;
    made.args = args;
  }

  const size_t heads_;
  const int64_t ranks_, pairs_, head_dim_;
  const bool trailing_, inverse_, in_place_, norms_;
  const std::string layout_;
  std::string pairing_, out_pairing_;
  std::mutex mutex_;
  size_t count_ = 0, next_ = 0;
  std::array<Made, kKept> made_;
};

py::object bind_tables(py::handle heads, py::handle layout, py::handle ranks, py::handle pairs,
                       py::handle head_dim, py::handle trailing, py::handle pairing,
                       py::handle inverse, py::handle out_pairing, py::handle in_place,
                       py::handle norms) {
  return bound(std::make_unique<BoundTables>(heads, layout, ranks, pairs, head_dim, trailing,
                                             pairing, inverse, out_pairing, in_place, norms));
}

}  // namespace

void define_bound_tables(py::module_& m) {
  static PyMethodDef methods[] = {method<&bind_tables>("bind_tables"),
                                  {nullptr, nullptr, 0, nullptr}};
  add_methods(m, methods);
}

}  // namespace posenc::numpy
