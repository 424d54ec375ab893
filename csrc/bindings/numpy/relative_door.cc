// Biases by distance and look-ups by distance at the door: plain arrays and tensors,
// with the arguments of the public functions.

#include <algorithm>
#include <cstdint>

#include "bindings/numpy/arguments.h"
#include "bindings/numpy/methods.h"
#include "bindings/numpy/options.h"
#include "bindings/numpy/run.h"
#include "core/lookup.h"
#include "core/toeplitz.h"
#include "cpu/run.h"

namespace posenc::numpy {
namespace {

using tensors::Form;
using tensors::Operation;

// A call with the arguments of a public function. Grids, masks and what has to be converted first
// are left to the general path, and so is what is wrong.
class AtDistances : CallArguments<3> {
 public:
  AtDistances(const char* function, py::handle operand)
      : CallArguments(function, operand), function_(function) {}

  py::object toeplitz_bias(py::handle diagonals, py::handle q_len, py::handle k_len,
                           py::handle q_offset, py::handle origin, py::handle out) {
    const ArrayArgument given = option("diagonals", diagonals);
    if (!has_axes(given, 1) || !read_length(q_len, queries_) || !read_length(k_len, keys_) ||
        !find_entry(q_offset, origin, last_size(given))) {
      return not_mine();
    }
    ToeplitzCall call = toeplitz_call(given);
    ArrayArgument to;
    if (out.is_none()) {
      int64_t shape[kMaxRank];
      const int rank = check_toeplitz_shape(call, shape);
      to = new_array(shape, rank, given);
    } else {
      to = output("out", out);
    }
    if (!may_run(Operation::kBias, out.is_none() ? Form::kNew : Form::kOut, to)) return not_mine();
    call.out = &to.array();
    lay_diagonals(check_toeplitz(call), to);
    return done(to, out);
  }

  py::object add_toeplitz_bias(py::handle scores, py::handle diagonals, py::handle q_offset,
                               py::handle origin, py::handle out) {
    const ArrayArgument from = input("scores", scores);
    const ArrayArgument given = option("diagonals", diagonals);
    if (!has_axes(from, 2) || !has_axes(given, 1) || !read_lengths(from.array()) ||
        !find_entry(q_offset, origin, last_size(given))) {
      return not_mine();
    }
    ToeplitzCall call = toeplitz_call(given);
    const ArrayArgument to = out.is_none() ? result(from) : output("out", out);
    const Form form = out.is_none() ? Form::kNew : out.is(scores) ? Form::kInPlace : Form::kOut;
    if (!may_run(Operation::kAddBias, form, to)) return not_mine();
    call.scores = &from.array();
    call.out = &to.array();
    lay_diagonals(check_toeplitz(call), to);
    return done(to, out);
  }

  py::object diagonal_sums(py::handle grad, py::handle keep, py::handle q_offset,
                           py::handle origin) {
    const ArrayArgument from = input("grad", grad);
    int64_t kept = 0;
    if (!has_axes(from, 2) || !read_lengths(from.array()) || !read_length(keep, kept)) {
      return not_mine();
    }
    const Array& x = from.array();
    const int leading = x.rank - 2;
    if (!is_real(x.dtype) || kept > leading) return not_mine();
    int64_t shape[kMaxRank];
    int rank = 0;
    for (int i = leading - static_cast<int>(kept); i < leading; ++i) shape[rank++] = x.shape[i];
    shape[rank++] = distances();
    if (!find_entry(q_offset, origin, distances())) return not_mine();
    const bool wide = x.dtype == Dtype::kFloat64;
    const ArrayArgument to =
        of_tensors()
            ? result_of_tensors(shape, rank, from, !wide)
            : result("out", shape, rank, wide ? py::dtype::of<double>() : py::dtype::of<float>());
    if (!may_run(Operation::kSums, Form::kNew, to)) return not_mine();
    ToeplitzCall call = toeplitz_call(to);
    call.scores = &x;
    const ToeplitzArgs args = check_diagonal_sums(call);
    const auto sum = [&](const Runners& runners, Place place) {
      runners.sum_diagonals(function_, place, args);
    };
    if (!run_by_torch(bytes_of(x), sum)) cpu::sum_diagonals(args, run_rows);
    return to.object();
  }

  py::object relative_gather(py::handle x, py::handle index, py::handle k_len, py::handle content,
                             py::handle scale, py::handle q_offset, py::handle origin,
                             py::handle missing, py::handle out) {
    const ArrayArgument from = input("x", x), added = option("content", content);
    if (!has_axes(from, 2) || !read_length(k_len, keys_)) return not_mine();
    queries_ = from.array().shape[from.array().rank - 2];
    RelativeCall call;
    call.size = keys_;
    call.content = added.pointer();
    if (!read_look_up(from, index, scale, q_offset, origin, missing, call)) return not_mine();
    int64_t shape[kMaxRank];
    const int rank = check_relative_gather_shape(call, shape);
    const ArrayArgument to = out.is_none() ? new_array(shape, rank, from) : output("out", out);
    if (!may_run(Operation::kGather, out.is_none() ? Form::kNew : Form::kOut, to)) {
      return not_mine();
    }
    call.out = &to.array();
    const RelativeArgs args = check_relative_gather(call);
    const auto gather = [&](const Runners& runners, Place place) {
      runners.gather(function_, place, args);
    };
    if (!run_by_torch(bytes_of(to.array()), gather)) cpu::gather(args, run_rows);
    return done(to, out);
  }

  py::object relative_scatter(py::handle grad, py::handle index, py::handle width, py::handle scale,
                              py::handle q_offset, py::handle origin, py::handle missing,
                              py::handle out) {
    const ArrayArgument from = input("grad", grad);
    RelativeCall call;
    if (!has_axes(from, 2) || !read_lengths(from.array()) || !read_length(width, call.size) ||
        !read_look_up(from, index, scale, q_offset, origin, missing, call)) {
      return not_mine();
    }
    int64_t shape[kMaxRank];
    const int rank = check_relative_scatter_shape(call, shape);
    const ArrayArgument to = out.is_none() ? new_array(shape, rank, from) : output("out", out);
    if (!may_run(Operation::kScatter, out.is_none() ? Form::kNew : Form::kOut, to)) {
      return not_mine();
    }
    if (is_elsewhere() && call.index != nullptr) return not_mine();  // an order has to be made
    call.out = &to.array();
    const RelativeArgs args = check_relative_scatter(call);
    const auto scatter = [&](const Runners& runners, Place place) {
      runners.scatter(function_, place, args);
    };
    if (!run_by_torch(bytes_of(from.array()), scatter)) cpu::scatter(args, run_rows);
    return done(to, out);
  }

 private:
  // Of lengths and entries: sums and differences of a few are numbers of 64 bits.
  static constexpr int64_t kMost = int64_t{1} << 61;

  bool has_axes(const ArrayArgument& given, int count) const {
    return all_read() && given && given.array().rank >= count;
  }

  static int64_t last_size(const ArrayArgument& given) {
    return given.array().shape[given.array().rank - 1];
  }

  bool read_lengths(const Array& matrices) {
    queries_ = matrices.shape[matrices.rank - 2];
    keys_ = matrices.shape[matrices.rank - 1];
    return true;
  }

  // How many entries there are for all distances.
  int64_t distances() const { return std::max<int64_t>(queries_ + keys_ - 1, 0); }

  static bool read_integer(py::handle object, int64_t& value) {
    if (!PyLong_CheckExact(object.ptr())) return false;
    int overflow = 0;
    value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    return overflow == 0 && -kMost < value && value < kMost;
  }

  static bool read_length(py::handle object, int64_t& value) {
    return read_integer(object, value) && value >= 0;
  }

  // The entry of query 0 and key 0, and the q_offset to be taken off it. `entries`: how many there
  // are, which says where distance 0 is if nobody does; -1 where any number will do.
  bool find_entry(py::handle q_offset, py::handle origin, int64_t entries) {
    int64_t offset = 0;
    const bool same_offset = read_integer(q_offset, offset);
    if (origin.is_none()) {
      start_ = queries_ - 1;
      return same_offset && offset == 0 && (entries < 0 || entries == distances());
    }
    if (!read_integer(origin, start_)) return false;
    if (same_offset) {
      start_ -= offset;
      return true;
    }
    if (PyLong_Check(q_offset.ptr())) return false;
    offsets_ = option("q_offset", q_offset);
    return has_axes(offsets_, 1);
  }

  ToeplitzCall toeplitz_call(const ArrayArgument& diagonals) const {
    ToeplitzCall call;
    call.function = function_;
    call.diagonals = &diagonals.array();
    call.q_offset = offsets_.pointer();
    call.grid_rank = 1;
    call.q_len = &queries_;
    call.k_len = &keys_;
    call.origin = &start_;
    return call;
  }

  bool read_look_up(const ArrayArgument& in, py::handle index, py::handle scale,
                    py::handle q_offset, py::handle origin, py::handle missing,
                    RelativeCall& call) {
    index_ = option("index", index);
    if (!all_read() || (index_ && index_.array().rank != 1)) return false;
    if (!find_entry(q_offset, origin, index_ ? index_.array().shape[0] : -1)) return false;
    call.has_missing = !missing.is_none();
    if (call.has_missing && !read_integer(missing, call.missing)) return false;
    call.function = function_;
    call.in = &in.array();
    call.index = index_.pointer();
    call.q_offset = offsets_.pointer();
    call.origin = start_;
    call.scale = number(function_, "scale", scale);
    return true;
  }

  ArrayArgument new_array(const int64_t* shape, int rank, const ArrayArgument& like) {
    if (of_tensors()) return result_of_tensors(shape, rank, like);
    return result("out", shape, rank, like.dtype());
  }

  // False where the operator has to do it.
  bool may_run(Operation operation, Form form, const ArrayArgument& to) const {
    return all_read() && to && has_own_kernels(operation, form);
  }

  void lay_diagonals(const ToeplitzArgs& args, const ArrayArgument& to) const {
    const auto lay = [&](const Runners& runners, Place place) {
      runners.lay_diagonals(function_, place, args);
    };
    if (!run_by_torch(bytes_of(to.array()), lay)) cpu::lay_diagonals(args, run_rows);
  }

  py::object done(const ArrayArgument& to, py::handle out) const {
    if (!out.is_none()) written(out);
    return to.object();
  }

  const char* const function_;
  int64_t queries_ = 0, keys_ = 0, start_ = 0;
  ArrayArgument index_, offsets_;
};

py::object lay_down(py::handle diagonals, py::handle q_len, py::handle k_len, py::handle q_offset,
                    py::handle origin, py::handle causal, py::handle dtype, py::handle out) {
  if (causal.ptr() != Py_False || !dtype.is_none()) return not_mine();
  return AtDistances("toeplitz_bias", diagonals)
      .toeplitz_bias(diagonals, q_len, k_len, q_offset, origin, out);
}

py::object add_to_scores(py::handle scores, py::handle diagonals, py::handle q_len,
                         py::handle k_len, py::handle q_offset, py::handle origin,
                         py::handle causal, py::handle out) {
  if (causal.ptr() != Py_False || !q_len.is_none() || !k_len.is_none()) return not_mine();
  return AtDistances("add_toeplitz_bias", scores)
      .add_toeplitz_bias(scores, diagonals, q_offset, origin, out);
}

py::object sums(py::handle grad, py::handle keep, py::handle q_len, py::handle k_len,
                py::handle entries, py::handle q_offset, py::handle origin) {
  if (!q_len.is_none() || !k_len.is_none() || !entries.is_none()) return not_mine();
  return AtDistances("diagonal_sums", grad).diagonal_sums(grad, keep, q_offset, origin);
}

py::object look_up(py::handle x, py::handle index, py::handle k_len, py::handle content,
                   py::handle scale, py::handle q_offset, py::handle origin, py::handle missing,
                   py::handle out) {
  return AtDistances("relative_gather", x)
      .relative_gather(x, index, k_len, content, scale, q_offset, origin, missing, out);
}

py::object add_up(py::handle grad, py::handle index, py::handle width, py::handle scale,
                  py::handle q_offset, py::handle origin, py::handle missing, py::handle out) {
  return AtDistances("relative_scatter", grad)
      .relative_scatter(grad, index, width, scale, q_offset, origin, missing, out);
}

}  // namespace

void define_relative_door(py::module_& door) {
  static PyMethodDef at_door[] = {
      method<&lay_down, true>("toeplitz_bias"),  method<&add_to_scores, true>("add_toeplitz_bias"),
      method<&sums, true>("diagonal_sums"),      method<&look_up, true>("relative_gather"),
      method<&add_up, true>("relative_scatter"), {nullptr, nullptr, 0, nullptr}};
  add_methods(door, at_door);
}

}  // namespace posenc::numpy
