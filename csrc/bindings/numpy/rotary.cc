// Rotations of NumPy arrays, and of small tensors (tensors.h). Options come by position and are
// read by the one declaration of them, RotaryOptions::for_each.

#include "core/rotary.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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
  static constexpr size_t kRequired = from == AnglesFrom::kPositions ? 8 : 7;

  PyObject* const* arguments;
  size_t count;
};
using tensors::Form;
using PositionOptions = Options<AnglesFrom::kPositions>;
using TableOptions = Options<AnglesFrom::kTables>;

constexpr size_t kMaxArrays = std::max(RotaryOptionCount(AnglesFrom::kPositions).arrays,
                                       RotaryOptionCount(AnglesFrom::kTables).arrays);

// One call of a rotation, and the arrays or tensors behind its options.
class Rotation : CallArguments<kMaxArrays> {
 public:
  // `x`: what is rotated, or the first of two. Arrays go with arrays, tensors with tensors.
  template <AnglesFrom from>
  Rotation(const char* function, py::handle x, Options<from> options)
      : CallArguments(function, x), from_(from) {
    call_.function = function;
    Reader options_reader = reader(options.arguments, options.count);
    call_.for_each(from, options_reader);
  }

  // x -> out, or a new array.
  py::object rotate(py::handle x, py::handle out) {
    check_kernels(1, out.is_none() ? Form::kNew : out.is(x) ? Form::kInPlace : Form::kOut);
    const ArrayArgument from = input("x", x);
    const ArrayArgument to = out.is_none() ? result(from) : output("out", out);
    call_.tensor_count = 1;
    call_.in[0] = &from.array();
    // In place, what is wrong with a tensor is wrong with x, as it is for the operator.
    call_.out[0] = of_tensors() && out.is(x) ? call_.in[0] : &to.array();
    rotate();
    if (!out.is_none()) written(out);
    return to.object();
  }

  // q and k to new arrays (`to` is false), where they are (true), or to the two of a tuple. Heads
  // of another width than `head_dim`, where it is not negative, are left to the caller, who has
  // words for them.
  py::tuple rotate(py::handle q, py::handle k, py::handle to, int64_t head_dim = -1) {
    if (PyTuple_CheckExact(to.ptr())) return rotate_to(q, k, py::reinterpret_borrow<py::tuple>(to));
    const bool in_place = boolean(plain(to, {&PyBool_Type}));
    check_kernels(2, in_place ? Form::kInPlace : Form::kNew);
    const auto read = [&](const char* name, py::handle object) {
      return in_place ? output(name, object) : input(name, object);
    };
    const ArrayArgument query = read("q", q), key = read("k", k);
    const Array& x = query.array();
    if (head_dim >= 0 && x.rank > 0 && x.shape[x.rank - 1] != head_dim) throw tensors::Elsewhere{};
    call_.names[0] = "q";
    call_.tensor_count = 2;
    call_.in[0] = call_.out[0] = &query.array();
    call_.in[1] = call_.out[1] = &key.array();
    if (in_place) {
      rotate();
      written(q);
      written(k);
      return pair(query, key);
    }
    const ArrayArgument query_out = result(query), key_out = result(key);
    call_.out[0] = &query_out.array();
    call_.out[1] = &key_out.array();
    rotate();
    return pair(query_out, key_out);
  }

  // Each of q and k to memory that the caller has, which may be its own.
  py::tuple rotate_to(py::handle q, py::handle k, const py::tuple& to) {
    if (to.size() != 2) fail_type(call_.function, "out", "a pair (q_out, k_out)", "another tuple");
    const py::handle given[2] = {q, k};
    const py::handle outs[2] = {PyTuple_GET_ITEM(to.ptr(), 0), PyTuple_GET_ITEM(to.ptr(), 1)};
    const bool in_place = outs[0].is(q) && outs[1].is(k);
    check_kernels(2, in_place ? Form::kInPlace : Form::kOut);
    call_.names[0] = "q";
    call_.out_names[0] = "out[0]";
    call_.out_names[1] = "out[1]";
    call_.tensor_count = 2;
    ArrayArgument in[2], out[2];
    for (int i = 0; i < 2; ++i) {
      const bool itself = outs[i].is(given[i]);
      in[i] = itself ? output(call_.names[i], given[i]) : input(call_.names[i], given[i]);
      call_.in[i] = call_.out[i] = &in[i].array();
      if (itself) continue;
      out[i] = output(call_.out_names[i], outs[i]);
      call_.out[i] = &out[i].array();
    }
    rotate();
    for (const py::handle written_to : outs) written(written_to);
    return to;
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
    std::vector<py::ssize_t> shape(like.shape, like.shape + like.rank);
    shape.insert(shape.begin(), std::max<int64_t>(args.pieces(), 1));
    const auto zeros = [](const std::vector<py::ssize_t>& of) {
      py::array_t<double> array(of);
      std::fill(array.mutable_data(), array.mutable_data() + array.size(), 0.0);
      return array;
    };
    py::array_t<double> frequencies = zeros(shape);
    args.frequency_sums = frequencies.mutable_data();
    py::object positions = py::none();
    if (of_positions) {
      py::array_t<double> sums =
          zeros({args.position_axes(), args.turned.batch, args.turned.tokens});
      args.position_sums = sums.mutable_data();
      positions = std::move(sums);
    }
    cpu::rotate_back(args, run_rows);
    return py::make_tuple(results, frequencies[py::int_(0)], positions);
  }

 private:
  void check_kernels(int tensor_count, Form form) const {
    CallArguments::check_kernels(
        from_ == AnglesFrom::kTables,
        tensor_count == 2 ? tensors::Operation::kRotateTwo : tensors::Operation::kRotateOne, form);
  }

  static py::tuple pair(const ArrayArgument& q, const ArrayArgument& k) {
    PyObject* const both = PyTuple_Pack(2, q.object().ptr(), k.object().ptr());
    if (both == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::tuple>(both);
  }

  void rotate() const {
    const RotaryParts parts = check_rotary_parts(call_);
    rotate(parts.first);
    if (parts.second) rotate(*parts.second);
  }

  void rotate(const RotaryArgs& args) const {
    of_tensors() ? cpu::rotate(args, run_rows_of_tensors) : cpu::rotate(args, run_rows);
  }

  RotaryCall call_;
  const AnglesFrom from_;
};

py::object apply_rotary(py::handle x, PositionOptions options, py::handle out) {
  return Rotation("apply_rotary", x, options).rotate(x, out);
}

py::tuple apply_rotary_qk(py::handle q, py::handle k, PositionOptions options, py::handle inplace) {
  return Rotation("apply_rotary_qk", q, options).rotate(q, k, inplace);
}

// As apply_rotary_qk, for heads of one width: to ask Python for a shape takes a tensor as long as a
// twentieth of a token's rotation.
py::tuple rotate_heads(py::handle q, py::handle k, PositionOptions options, py::handle inplace,
                       py::handle head_dim) {
  const int64_t width = integer("apply_rotary_qk", "head_dim", head_dim);
  return Rotation("apply_rotary_qk", q, options).rotate(q, k, inplace, width);
}

py::tuple rotary_backward(py::handle grads, py::handle inputs, PositionOptions options,
                          py::handle of_positions) {
  return Rotation("rotary_backward", grads, options)
      .rotate_back(grads, inputs, boolean(of_positions));
}

py::object apply_rotary_tables(py::handle x, TableOptions options, py::handle out) {
  return Rotation("apply_rotary_tables", x, options).rotate(x, out);
}

py::tuple apply_rotary_qk_tables(py::handle q, py::handle k, TableOptions options,
                                 py::handle inplace) {
  return Rotation("apply_rotary_qk_tables", q, options).rotate(q, k, inplace);
}

}  // namespace

void define_rotary(py::module_& m) {
  static PyMethodDef methods[] = {method<&apply_rotary>("apply_rotary"),
                                  method<&apply_rotary_qk>("apply_rotary_qk"),
                                  method<&rotate_heads>("rotate_heads"),
                                  method<&rotary_backward>("rotary_backward"),
                                  method<&apply_rotary_tables>("apply_rotary_tables"),
                                  method<&apply_rotary_qk_tables>("apply_rotary_qk_tables"),
                                  {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace posenc::numpy
