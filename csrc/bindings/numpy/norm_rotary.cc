// What stands before attention, of NumPy arrays and, at the door, of tensors. Options come by
// position and are read by the one declaration of them, NormRotaryOptions::for_each.

#include "core/norm_rotary.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "bindings/numpy/arguments.h"
#include "bindings/numpy/methods.h"
#include "bindings/numpy/options.h"
#include "bindings/numpy/run.h"
#include "cpu/kernels.h"
#include "cpu/run.h"

namespace posenc::numpy {
namespace {

// The options among the arguments of a function, by position.
template <AnglesFrom from, bool append>
struct NormRotaryArguments {
  static constexpr AnglesFrom kFrom = from;
  static constexpr bool kAppend = append;
  static constexpr size_t kArguments = NormRotaryOptionCount(from, append).all;
  static constexpr size_t kRequired = kArguments;

  PyObject* const* arguments;
  size_t count;
};

constexpr size_t kMaxNormArrays =
    std::max(NormRotaryOptionCount(AnglesFrom::kPositions, true).arrays,
             NormRotaryOptionCount(AnglesFrom::kTables, true).arrays);

class NormRotation : CallArguments<kMaxNormArrays> {
 public:
  // Heads of another width than `head_dim`, where it is not negative, are left to the caller.
  template <typename Options>
  NormRotation(const char* function, py::handle q, Options options, int64_t head_dim = -1)
      : CallArguments(function, q),
        from_tables_(Options::kFrom == AnglesFrom::kTables),
        head_dim_(head_dim) {
    call_.function = function;
    Reader options_reader = reader(options.arguments, options.count);
    call_.for_each(Options::kFrom, Options::kAppend, options_reader);
  }

  // q and k to new arrays (`to` is false), where they are (true), or to those of a tuple.
  py::object rotate(py::handle q, py::handle k, py::handle to) {
    return run(q, k, to, tensors::Operation::kNorm, 2);
  }

  // Also into the caches; k only there, unless it is to be returned.
  py::object append(py::handle q, py::handle k, py::handle v, py::handle to) {
    const ArrayArgument value = input("v", v);
    call_.v = &value.array();
    py::object results = run(q, k, to, tensors::Operation::kAppend, call_.return_k ? 2 : 1);
    if (results.ptr() == Py_NotImplemented) return results;
    outputs_written();
    return results;
  }

  // Gradients of q, k and their weights, of what came out; float64 for the weights, None without.
  py::tuple rotate_back(py::handle grad_q, py::handle grad_k, py::handle q, py::handle k) {
    const ArrayArgument grads[] = {input("grad", grad_q), input("grad", grad_k)};
    const ArrayArgument inputs[] = {input("q", q), input("k", k)};
    const ArrayArgument out[] = {result(inputs[0]), result(inputs[1])};
    const Array* given[2];
    for (int i = 0; i < 2; ++i) {
      given[i] = &grads[i].array();
      call_.in[i] = &inputs[i].array();
      call_.out[i] = &out[i].array();
    }
    NormRotaryGradientArgs args = check_norm_rotary_gradient(call_, given);
    py::object weights[2];
    for (int i = 0; i < 2; ++i) {
      if (call_.weights[i] == nullptr) {
        weights[i] = py::none();
        continue;
      }
      py::array_t<double> sums = zero_sums_of_pieces(args.pieces(), {args.weight_count(i)});
      args.weight_sums[i] = sums.mutable_data();
      weights[i] = std::move(sums);
    }
    cpu::norm_rotate_back(args, run_rows);
    for (py::object& sums : weights) {
      if (!sums.is_none()) sums = sums[py::int_(0)];
    }
    return py::make_tuple(out[0].object(), out[1].object(), weights[0], weights[1]);
  }

 private:
  // `count`: of q and k, those that go anywhere but into a cache.
  py::object run(py::handle q, py::handle k, py::handle to, tensors::Operation operation,
                 size_t count) {
    static constexpr const char* kNames[] = {"q", "k"};
    const py::handle given[] = {q, k};
    const bool to_others = PyTuple_CheckExact(to.ptr());
    const bool in_place = !to_others && boolean(to);
    py::handle places[2];
    for (size_t i = 0; i < count; ++i) {
      if (in_place) places[i] = given[i];
      if (to_others) places[i] = place_of(to, i, count);
    }
    if (count == 1) call_.out_names[0] = "out";
    bool all_in_place = true;
    for (size_t i = 0; i < count; ++i) all_in_place = all_in_place && places[i].is(given[i]);
    const tensors::Form form = all_in_place ? tensors::Form::kInPlace
                               : to_others  ? tensors::Form::kOut
                                            : tensors::Form::kNew;
    ArrayArgument in[2], out[2];
    for (size_t i = 0; i < 2; ++i) {
      const bool itself = i < count && places[i].is(given[i]);
      in[i] = itself ? output(kNames[i], given[i]) : input(kNames[i], given[i]);
      const Array& x = in[i].array();
      if (head_dim_ >= 0 && x.rank > 0 && x.shape[x.rank - 1] != head_dim_) return not_mine();
      call_.in[i] = &x;
      call_.out[i] = itself ? call_.in[i] : nullptr;
    }
    for (size_t i = 0; i < count; ++i) {
      if (call_.out[i] != nullptr) continue;
      out[i] = to_others ? output(call_.out_names[i], places[i]) : result(in[i]);
      call_.out[i] = &out[i].array();
    }
    if (!all_read() || !has_own_kernels(by_tables(operation, from_tables_), form))
      return not_mine();
    const NormRotaryArgs args = check_norm_rotary(call_);
    const auto rotate = [&](const Runners& runners, Place place) {
      runners.norm_rotate(call_.function, place, args);
    };
    if (!run_by_torch(cpu::result_bytes(args), rotate)) cpu::norm_rotate(args, run_rows);
    for (const py::handle place : places) {
      if (place) written(place);
    }
    const auto object = [&](size_t i) {
      return (call_.out[i] == call_.in[i] ? in[i] : out[i]).object().ptr();
    };
    PyObject* const all =
        count == 2 ? PyTuple_Pack(2, object(0), object(1)) : PyTuple_Pack(1, object(0));
    if (all == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(all);
  }

  py::handle place_of(py::handle to, size_t i, size_t count) const {
    if (static_cast<size_t>(PyTuple_GET_SIZE(to.ptr())) != count) {
      fail_type(call_.function, "out", count == 2 ? "a pair (q_out, k_out)" : "memory for q",
                "another tuple");
    }
    return PyTuple_GET_ITEM(to.ptr(), static_cast<Py_ssize_t>(i));
  }

  NormRotaryCall call_;
  const bool from_tables_;
  const int64_t head_dim_;
};

using NormByPositions = NormRotaryArguments<AnglesFrom::kPositions, false>;
using NormByTables = NormRotaryArguments<AnglesFrom::kTables, false>;
using AppendByPositions = NormRotaryArguments<AnglesFrom::kPositions, true>;
using AppendByTables = NormRotaryArguments<AnglesFrom::kTables, true>;

py::object norm_rotary_qk(py::handle q, py::handle k, NormByPositions options, py::handle to) {
  const char* const function = "norm_rotary_qk";
  return with_angles<NormByTables>(function, q, options, false, [&](auto angles, int64_t head_dim) {
    return NormRotation(function, q, angles, head_dim).rotate(q, k, to);
  });
}

py::tuple norm_rotary_backward(py::handle grad_q, py::handle grad_k, py::handle q, py::handle k,
                               NormByPositions options) {
  return NormRotation("norm_rotary_backward", q, options).rotate_back(grad_q, grad_k, q, k);
}

py::object rotary_append(py::handle q, py::handle k, py::handle v, AppendByPositions options,
                         py::handle to) {
  const char* const function = "rotary_append";
  return with_angles<AppendByTables>(
      function, q, options, false, [&](auto angles, int64_t head_dim) {
        return NormRotation(function, q, angles, head_dim).append(q, k, v, to);
      });
}

}  // namespace

py::object scaled_rotary_qk(py::handle q, py::handle k, PyObject* const* options, size_t count,
                            py::handle to) {
  const auto is_given = [&](size_t at, PyObject* unless) {
    return at < count && options[at] != Py_None && options[at] != unless;
  };
  static PyObject* const same = PyUnicode_InternFromString("same");
  if (q.is_none() || k.is_none() || is_given(kPositionsOfK, nullptr) ||
      is_given(kStartOfK, nullptr) || is_given(kOutPairing, same)) {
    return not_mine();
  }
  static PyObject* const eps = PyFloat_FromDouble(0.0);
  static PyObject* const over = PyUnicode_InternFromString("head");
  PyObject* arguments[NormByPositions::kArguments];
  std::fill(std::begin(arguments), std::end(arguments), Py_None);
  std::copy(options, options + std::min<size_t>(count, kOutPairing), arguments);
  arguments[kOutPairing] = same;
  arguments[kNorm] = Py_False;
  arguments[kEps] = arguments[kWeightOffset] = eps;
  arguments[kNormOver] = over;
  arguments[kNormFirst] = Py_True;
  const char* const function = "apply_rotary_qk";
  const NormByPositions scaled{arguments, NormByPositions::kArguments};
  return with_angles<NormByTables>(function, q, scaled, false, [&](auto angles, int64_t head_dim) {
    return NormRotation(function, q, angles, head_dim).rotate(q, k, to);
  });
}

void define_norm_rotary(py::module_& m, py::module_& door) {
  static PyMethodDef methods[] = {method<&norm_rotary_qk>("norm_rotary_qk"),
                                  method<&norm_rotary_backward>("norm_rotary_backward"),
                                  method<&rotary_append>("rotary_append"),
                                  {nullptr, nullptr, 0, nullptr}};
  add_methods(m, methods);
  static PyMethodDef at_door[] = {method<&norm_rotary_qk, true>("norm_rotary_qk"),
                                  method<&rotary_append, true>("rotary_append"),
                                  {nullptr, nullptr, 0, nullptr}};
  add_methods(door, at_door);
}

}  // namespace posenc::numpy
