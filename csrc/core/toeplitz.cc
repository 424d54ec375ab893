#include "core/toeplitz.h"

#include <algorithm>
#include <string>

namespace posenc {
namespace {

std::string name_of(const char* name, int axis, int rank) {
  return rank == 1 ? name : std::string(name) + "[" + std::to_string(axis) + "]";
}

// Of lengths that check_lengths has seen: too large only beside a 0, which then counts.
int64_t product(const int64_t* sizes, int count) {
  uint64_t result = 1;
  for (int i = 0; i < count; ++i) result *= static_cast<uint64_t>(sizes[i]);
  return static_cast<int64_t>(result);
}

int leading_rank(const ToeplitzCall& call) { return call.diagonals->rank - call.grid_rank; }

// Before anything that multiplies them.
void check_lengths(const ToeplitzCall& call) {
  const char* const function = call.function;
  for (int axis = 0; axis < call.grid_rank; ++axis) {
    check_length(function, name_of("q_len", axis, call.grid_rank), call.q_len[axis]);
    check_length(function, name_of("k_len", axis, call.grid_rank), call.k_len[axis]);
  }
  check_size(function, call.q_len, call.grid_rank);
  check_size(function, call.k_len, call.grid_rank);
}

void check_grid(const ToeplitzCall& call) {
  const char* const function = call.function;
  const Array& diagonals = *call.diagonals;
  check_real(function, "diagonals", diagonals);
  if (diagonals.rank < call.grid_rank) {
    fail_value(function, "diagonals",
               "a leading axis of heads and " + std::to_string(call.grid_rank) +
                   " of entries, one for each axis of q_len and k_len",
               "shape " + shape_string(diagonals));
  }
  if (call.q_offset != nullptr && call.grid_rank != 1) {
    fail_value(function, "q_offset", "None if q_len and k_len are tuples",
               "shape " + shape_string(*call.q_offset));
  }
  for (int axis = 0; axis < call.grid_rank; ++axis) {
    check_windows(function, "diagonals", diagonals.shape[leading_rank(call) + axis],
                  call.q_len[axis], call.k_len[axis], call.origin[axis], call.q_offset);
  }
}

// The strides of diagonals along the `rank` leading axes of a call: 0 along those it has not. The
// last leading axis, of heads, is never repeated.
void match_heads(const ToeplitzCall& call, const int64_t* leading, int rank, int64_t* strides) {
  const Array& diagonals = *call.diagonals;
  const int own = leading_rank(call);
  const bool empty = diagonals.empty();
  bool matches = own <= rank;
  for (int i = 0; matches && i < own; ++i) {
    const int64_t size = diagonals.shape[own - 1 - i], of_call = leading[rank - 1 - i];
    matches = size == of_call || (size == 1 && i > 0);
    // NumPy's empty arrays have strides of 0 for axes that repeat nothing.
    const int64_t stride = empty ? 1 : diagonals.stride[own - 1 - i];
    strides[rank - 1 - i] = size == 1 ? 0 : stride;
  }
  if (matches) return;
  fail_value(call.function, "diagonals",
             "the leading axes of the scores, heads last: " + to_string(leading, rank),
             to_string(diagonals.shape, own));
}

// Axes of size 1 are dropped, neighboring ones that step alike in every array joined.
class PlaneAxes {
 public:
  struct Axis {
    int64_t size, in, out, diagonals, q_offset;
    bool kept;
  };

  void add(const Axis& axis) {
    if (axis.size == 1) return;
    if (count_ > 0) {
      Axis& last = axes_[count_ - 1];
      // Unsigned: of nothing, strides may be any numbers.
      const auto whole = [&](int64_t stride) {
        return static_cast<int64_t>(static_cast<uint64_t>(stride) *
                                    static_cast<uint64_t>(axis.size));
      };
      if (last.in == whole(axis.in) && last.out == whole(axis.out) &&
          last.diagonals == whole(axis.diagonals) && last.q_offset == whole(axis.q_offset) &&
          last.kept == axis.kept) {
        const int64_t size = last.size * axis.size;
        last = axis;
        last.size = size;
        return;
      }
    }
    axes_[count_++] = axis;
  }

  void write(ToeplitzArgs& args) const {
    for (const bool kept : {true, false}) {
      for (int i = 0; i < count_; ++i) {
        const Axis& axis = axes_[i];
        if (axis.kept != kept) continue;
        const int to = args.planes.rank++;
        args.planes.shape[to] = axis.size;
        args.in.plane_strides[to] = axis.in;
        args.out.plane_strides[to] = axis.out;
        args.diagonal_strides[to] = axis.diagonals;
        args.q_offset_strides[to] = axis.q_offset;
        args.kept += kept;
      }
    }
  }

 private:
  int count_ = 0;
  Axis axes_[kMaxRank];
};

ToeplitzArgs make_toeplitz(const ToeplitzCall& call, const Array& shape) {
  const int leading = shape.rank - 2;
  int64_t diagonal_strides[kMaxRank] = {};
  match_heads(call, shape.shape, leading, diagonal_strides);
  if (call.q_offset != nullptr) {
    check_q_offset(call.function, *call.q_offset, shape.shape, leading);
  }
  ToeplitzArgs args;
  args.grid_rank = call.grid_rank;
  std::copy_n(call.q_len, call.grid_rank, args.queries);
  std::copy_n(call.k_len, call.grid_rank, args.keys);
  std::copy_n(call.origin, call.grid_rank, args.origin);
  args.dtype = shape.dtype;
  if (call.scores != nullptr) args.in = matrices(*call.scores, leading);
  if (call.out != nullptr) args.out = matrices(*call.out, leading);
  const Array& diagonals = *call.diagonals;
  args.diagonals = diagonals.data;
  args.diagonals_dtype = diagonals.dtype;
  std::copy_n(diagonals.shape + leading_rank(call), call.grid_rank, args.entries);
  std::copy_n(diagonals.stride + leading_rank(call), call.grid_rank, args.entry_strides);
  PlaneAxes axes;
  for (int i = 0; i < leading; ++i) {
    const bool has_offset = call.q_offset != nullptr && i < call.q_offset->rank;
    const int64_t offset = has_offset ? call.q_offset->stride[i] : 0;
    const bool sums = call.out == nullptr;
    axes.add({shape.shape[i], args.in.plane_strides[i], args.out.plane_strides[i],
              diagonal_strides[i], offset, diagonal_strides[i] != 0 || (offset != 0 && !sums)});
  }
  for (int i = 0; i < kMaxRank; ++i) args.in.plane_strides[i] = args.out.plane_strides[i] = 0;
  axes.write(args);
  // Without elements there is nothing to read, and no plane to read it for.
  if (call.q_offset != nullptr && !call.q_offset->empty()) {
    args.q_offset = {call.q_offset->data, call.q_offset->dtype, 0};
  }
  return args;
}

void check_matrices(const ToeplitzCall& call, const char* name, const Array& array) {
  check_real(call.function, name, array);
  const int64_t expected[] = {product(call.q_len, call.grid_rank),
                              product(call.k_len, call.grid_rank)};
  const int leading = array.rank - 2;
  if (leading < 0 || !std::equal(expected, expected + 2, array.shape + leading)) {
    fail_value(call.function, name,
               "shape [..., q_len = " + std::to_string(expected[0]) +
                   ", k_len = " + std::to_string(expected[1]) + "]",
               shape_string(array));
  }
}

}  // namespace

int check_toeplitz_shape(const ToeplitzCall& call, int64_t* shape) {
  check_lengths(call);
  check_grid(call);
  const Array& diagonals = *call.diagonals;
  const int own = leading_rank(call), heads = std::min(own, 1);
  const int batch = call.q_offset != nullptr ? call.q_offset->rank : own - heads;
  if (batch + heads + 2 > kMaxRank) {
    fail_value(call.function, "diagonals", "at most " + std::to_string(kMaxRank - 1) + " axes",
               std::to_string(diagonals.rank));
  }
  std::copy_n(call.q_offset != nullptr ? call.q_offset->shape : diagonals.shape, batch, shape);
  if (heads > 0) shape[batch] = diagonals.shape[own - 1];
  int rank = batch + heads;
  shape[rank++] = product(call.q_len, call.grid_rank);
  shape[rank++] = product(call.k_len, call.grid_rank);
  check_size(call.function, shape, rank);
  return rank;
}

ToeplitzArgs check_toeplitz(const ToeplitzCall& call) {
  const Array& out = *call.out;
  if (call.scores == nullptr) {
    check_real(call.function, "out", out);
    int64_t shape[kMaxRank];
    const int rank = check_toeplitz_shape(call, shape);
    check_output(call.function, "out", out, shape, rank, out);
  } else {
    check_lengths(call);
    check_matrices(call, "scores", *call.scores);
    check_grid(call);
    check_output(call.function, "out", out, call.scores->shape, call.scores->rank, *call.scores);
    check_overlap(call.function, "out", out, "scores", *call.scores);
  }
  if (may_overlap(out, *call.diagonals)) {
    fail_value(call.function, "out", "no memory in common with diagonals", "an overlap");
  }
  if (call.q_offset != nullptr && may_overlap(out, *call.q_offset)) {
    fail_value(call.function, "out", "no memory in common with q_offset", "an overlap");
  }
  return make_toeplitz(call, out);
}

Dtype sum_dtype(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
}

ToeplitzArgs check_diagonal_sums(const ToeplitzCall& call) {
  check_lengths(call);
  check_matrices(call, "grad", *call.scores);
  check_grid(call);
  return make_toeplitz(call, *call.scores);
}

}  // namespace posenc
