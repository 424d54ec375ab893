// Rotations of NumPy arrays and, at the door, of tensors. Options come by position and are
// read by the one declaration of them, RotaryOptions::for_each.

#include "core/rotary.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <utility>

#include "bindings/numpy/arguments.h"
#include "bindings/numpy/methods.h"
#include "bindings/numpy/options.h"
#include "bindings/numpy/run.h"
#include "cpu/kernels.h"
#include "cpu/run.h"

namespace posenc::numpy {
namespace {

// The options of a rotation among the arguments of a function. They stay where the interpreter has
// them, by position: small calls have no time for names.
template <AnglesFrom from>
struct Options {
  static constexpr size_t kArguments = RotaryOptionCount(from).all;
  // The last ones may be left out, which takes no time then.
  static constexpr size_t kRequired = 8;

  PyObject* const* arguments;
  size_t count;
};
using tensors::Form;
using PositionOptions = Options<AnglesFrom::kPositions>;
using TableOptions = Options<AnglesFrom::kTables>;
using StepOptions = Options<AnglesFrom::kSteps>;

constexpr size_t kMaxArrays = std::max({RotaryOptionCount(AnglesFrom::kPositions).arrays,
                                        RotaryOptionCount(AnglesFrom::kTables).arrays,
                                        RotaryOptionCount(AnglesFrom::kSteps).arrays});

// One call of a rotation, and the arrays or tensors behind its options.
class Rotation : CallArguments<kMaxArrays> {
 public:
  // `x`: what is rotated, or the first of two. Arrays go with arrays, tensors with tensors. Heads
  // of another width than `head_dim`, where it is not negative, are left to the caller.
  template <AnglesFrom from>
  Rotation(const char* function, py::handle x, Options<from> options, int64_t head_dim = -1)
      : CallArguments(function, x), from_(from), head_dim_(head_dim) {
    call_.function = function;
    Reader options_reader = reader(options.arguments, options.count);
    call_.for_each(from, options_reader);
  }

  // x -> out, or a new array.
  py::object rotate(py::handle x, py::handle out) {
    const ArrayArgument from = input("x", x);
    if (!is_wide(from.array())) return not_mine();
    const ArrayArgument to = out.is_none() ? result(from) : output("out", out);
    call_.tensor_count = 1;
    call_.in[0] = &from.array();
    call_.out[0] = &to.array();
    const Form form = out.is_none() ? Form::kNew : out.is(x) ? Form::kInPlace : Form::kOut;
    if (!rotate(form)) return not_mine();
    if (!out.is_none()) written(out);
    return to.object();
  }

  // q and k to new arrays (`to` is false), where they are (true), or to the two of a tuple. One of
  // them may be None, and is then in the result.
  py::object rotate(py::handle q, py::handle k, py::handle to) {
    if (!take(q, k, to) || !rotate(form_)) return not_mine();
    tell_written();
    if (PyTuple_CheckExact(to.ptr())) return py::reinterpret_borrow<py::object>(to);
    return tuple_of({results_[0], results_[1]});
  }

  // The same, with the states after the tokens behind both.
  py::object rotate_by_steps(py::handle q, py::handle k, py::handle to) {
    if (!take(q, k, to)) return not_mine();
    const auto operation = call_.tensor_count == 2 ? tensors::Operation::kRotateTwoBySteps
                                                   : tensors::Operation::kRotateOneBySteps;
    if (!all_read() || !has_own_kernels(operation, form_)) return not_mine();
    StateShape states;
    SelectiveArgs args = check_selective(call_, states);
    const bool large = 2 * cpu::result_bytes(args.rotary) >= kTensorBytes;
    if (of_tensors() && (large || is_elsewhere())) return not_mine();
    const ArrayArgument after = integers("state", states.shape, states.rank);
    if (!all_read()) return not_mine();
    args.after = static_cast<int64_t*>(after.array().data);
    cpu::rotate_by_steps(call_.function, args, num_threads.load(std::memory_order_relaxed),
                         run_rows);
    tell_written();
    return tuple_of({results_[0], results_[1], after.object()});
  }

  // Takes the gradients of what x (or q and k) was rotated to, and x itself. Returns the gradients
  // of x (or of q and k), of frequencies and, if asked for, of positions.
  py::tuple rotate_back(py::handle grads, py::handle inputs, bool of_positions) {
    const auto given_grads = py::cast<py::tuple>(grads), given = py::cast<py::tuple>(inputs);
    const auto count = static_cast<int64_t>(given.size());
    if (count < 1 || count > 2 || given_grads.size() != given.size()) {
      fail_value(call_.function, "grad", "one or two tensors, with a gradient for each",
                 std::to_string(count) + " with " + std::to_string(given_grads.size()));
    }
    call_.tensor_count = static_cast<int>(count);
    if (call_.tensor_count == 2) call_.names[0] = "q";
    ArrayArgument in[2], out[2], x[2];
    const Array* turned[2] = {};
    py::tuple results(given.size());
    for (int i = 0; i < call_.tensor_count; ++i) {
      const size_t at = static_cast<size_t>(i);
      in[i] = {call_.function, "grad", require_array(call_.function, "grad", given_grads[at])};
      x[i] = {call_.function, call_.names[i],
              require_array(call_.function, call_.names[i], given[at])};
      out[i] = {call_.function, "out", empty_like(in[i].object())};
      call_.in[i] = &in[i].array();
      call_.out[i] = &out[i].array();
      turned[i] = &x[i].array();
      results[at] = out[i].object();
    }
    RotaryGradientArgs args = check_rotary_gradient(call_, turned);
    const Array& like = *call_.inv_freq;
    py::array_t<double> frequencies =
        zero_sums_of_pieces(args.pieces(), {like.shape, like.shape + like.rank});
    args.frequency_sums = frequencies.mutable_data();
    py::object positions = py::none();
    if (of_positions) {
      py::array_t<double> sums =
          zero_sums({args.position_axes(), args.turned.batch, args.turned.tokens});
      args.position_sums = sums.mutable_data();
      positions = std::move(sums);
    }
    cpu::rotate_back(args, run_rows);
    return py::make_tuple(results, frequencies[py::int_(0)], positions);
  }

 private:
  static constexpr const char* kNames[2] = {"q", "k"};
  static constexpr const char* kOutNames[2] = {"out[0]", "out[1]"};

  // Takes q and k, one of which may be None, and where they go. False where they are left to the
  // caller.
  bool take(py::handle q, py::handle k, py::handle to) {
    const py::handle given[2] = {q, k};
    bool new_memory = false, in_place = true;
    for (int i = 0; i < 2; ++i) {
      results_[i] = given[i];
      outs_[i] = memory(to, given[i], static_cast<size_t>(i));
      if (given[i].is_none()) {
        if (outs_[i] && !outs_[i].is_none()) return false;  // memory for nothing
        continue;
      }
      const int at = call_.tensor_count++;
      call_.names[at] = kNames[i];
      call_.out_names[at] = kOutNames[i];
      const bool itself = outs_[i].is(given[i]);
      in_place = in_place && itself;
      in_[i] = itself ? output(kNames[i], given[i]) : input(kNames[i], given[i]);
      call_.in[at] = call_.out[at] = &in_[i].array();
      if (!is_wide(in_[i].array())) return false;
      if (itself) continue;
      new_memory = !outs_[i];
      out_[i] = new_memory ? result(in_[i]) : output(kOutNames[i], outs_[i]);
      call_.out[at] = &out_[i].array();
      results_[i] = out_[i].object();
    }
    form_ = in_place ? Form::kInPlace : new_memory ? Form::kNew : Form::kOut;
    return call_.tensor_count > 0;
  }

  bool is_wide(const Array& x) const {
    return head_dim_ < 0 || x.rank == 0 || x.shape[x.rank - 1] == head_dim_;
  }

  void tell_written() const {
    for (const py::handle out : outs_) {
      if (out && !out.is_none()) written(out);
    }
  }

  static py::object tuple_of(std::initializer_list<py::handle> values) {
    PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(values.size()));
    if (tuple == nullptr) throw py::error_already_set();
    Py_ssize_t i = 0;
    for (const py::handle value : values) PyTuple_SET_ITEM(tuple, i++, value.inc_ref().ptr());
    return py::reinterpret_steal<py::object>(tuple);
  }

  // Of the caller, where the result of q (0) or k (1) goes; nothing for new memory.
  py::handle memory(py::handle to, py::handle given, size_t i) const {
    if (!PyTuple_CheckExact(to.ptr())) return boolean(to) ? given : py::handle();
    if (PyTuple_GET_SIZE(to.ptr()) != 2) {
      fail_type(call_.function, "out", "a pair (q_out, k_out)", "another tuple");
    }
    return PyTuple_GET_ITEM(to.ptr(), static_cast<Py_ssize_t>(i));
  }

  // False where the operator has to do it.
  bool rotate(Form form) const {
    const auto operation =
        call_.tensor_count == 2 ? tensors::Operation::kRotateTwo : tensors::Operation::kRotateOne;
    const bool tables = from_ == AnglesFrom::kTables;
    if (!all_read() || !has_own_kernels(by_tables(operation, tables), form)) return false;
    const RotaryParts parts = check_rotary_parts(call_);
    run(parts.first);
    if (parts.second) run(*parts.second);
    return true;
  }

  void run(const RotaryArgs& args) const {
    const auto rotate = [&](const Runners& runners, Place place) {
      runners.rotate(call_.function, place, args);
    };
    if (!run_by_torch(cpu::result_bytes(args), rotate)) cpu::rotate(args, run_rows);
  }

  RotaryCall call_;
  const AnglesFrom from_;
  const int64_t head_dim_;
  // Of q and k.
  ArrayArgument in_[2], out_[2];
  py::handle outs_[2], results_[2];
  Form form_ = Form::kNew;
};

py::object apply_rotary(py::handle x, PositionOptions options, py::handle out) {
  const char* const function = "apply_rotary";
  return with_angles<TableOptions>(function, x, options, false, [&](auto angles, int64_t head_dim) {
    return Rotation(function, x, angles, head_dim).rotate(x, out);
  });
}

py::handle operand(py::handle q, py::handle k) { return q.is_none() ? k : q; }

py::object apply_rotary_qk(py::handle q, py::handle k, PositionOptions options, py::handle to) {
  const char* const function = "apply_rotary_qk";
  const py::handle first = operand(q, k);
  if (is_described(options.arguments[kInvFreq])) {
    const Described rotary(options.arguments[kInvFreq]);
    if (rotary && rotary->scales_queries()) {
      return scaled_rotary_qk(q, k, options.arguments, options.count, to);
    }
  }
  const bool two = !q.is_none() && !k.is_none();
  return with_angles<TableOptions>(
      function, first, options, two, [&](auto angles, int64_t head_dim) {
        return Rotation(function, first, angles, head_dim).rotate(q, k, to);
      });
}

// A call with a Rotary that is like recent ones is not checked again.
PyObject* apply_rotary_qk_at_door(PyObject* module, PyObject* const* args, Py_ssize_t count) {
  constexpr size_t kOptions = 2, kTo = kOptions + PositionOptions::kArguments;
  PyObject* const* const options = args + kOptions;
  const auto is_left_out = [&](Option option) { return options[option] == Py_None; };
  static PyObject* const same = PyUnicode_InternFromString("same");
  if (count == kTo + 1 && Py_TYPE(options[kInvFreq]) == rotary_type && PyBool_Check(args[kTo]) &&
      is_left_out(kPairing) && is_left_out(kRotaryStart) && is_left_out(kAxisMapOfAngles) &&
      is_left_out(kScale) && is_left_out(kPositionsOfK) && is_left_out(kStartOfK) &&
      PyBool_Check(options[kInverse]) && options[kOutPairing] == same) {
    PyObject* const rotated = guarded<true>([&]() -> PyObject* {
      const Described rotary(options[kInvFreq]);
      if (!rotary) return not_mine().release().ptr();
      PyObject* const layout = is_left_out(kLayout) ? rotary->layout.ptr() : options[kLayout];
      PyObject* const call[] = {args[0], args[1],           options[kPositions],
                                layout,  options[kInverse], args[kTo]};
      return rotary.calls()(call, std::size(call)).release().ptr();
    });
    if (rotated != Py_NotImplemented) return rotated;
    Py_DECREF(rotated);
  }
  return call<&apply_rotary_qk, true>(module, args, count);
}

py::tuple rotary_backward(py::handle grads, py::handle inputs, PositionOptions options,
                          py::handle of_positions) {
  return Rotation("rotary_backward", grads, options)
      .rotate_back(grads, inputs, boolean(of_positions));
}

py::object selective_rotary_qk(py::handle q, py::handle k, StepOptions options, py::handle to) {
  return Rotation("selective_rotary_qk", operand(q, k), options).rotate_by_steps(q, k, to);
}

}  // namespace

void define_rotary(py::module_& m, py::module_& door) {
  static PyMethodDef methods[] = {method<&apply_rotary>("apply_rotary"),
                                  method<&apply_rotary_qk>("apply_rotary_qk"),
                                  method<&rotary_backward>("rotary_backward"),
                                  method<&selective_rotary_qk>("selective_rotary_qk"),
                                  {nullptr, nullptr, 0, nullptr}};
  add_methods(m, methods);
  static PyMethodDef at_door[] = {
      method<&apply_rotary, true>("apply_rotary"),
      {"apply_rotary_qk", as_method(&apply_rotary_qk_at_door), METH_FASTCALL, nullptr},
      method<&selective_rotary_qk, true>("selective_rotary_qk"),
      {nullptr, nullptr, 0, nullptr}};
  add_methods(door, at_door);
}

}  // namespace posenc::numpy
