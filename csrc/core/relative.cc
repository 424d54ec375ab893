#include "core/relative.h"

#include <algorithm>
#include <limits>

namespace posenc {
namespace {

// Starts beyond this are of no use, and sums with them cannot overflow below it.
constexpr int64_t kMaxStart = int64_t{1} << 61;

std::string name_of(const char* name, int axis, int rank) {
  return rank == 1 ? name : std::string(name) + "[" + std::to_string(axis) + "]";
}

int64_t product(const int64_t* sizes, int count) {
  int64_t result = 1;
  for (int i = 0; i < count; ++i) result *= sizes[i];
  return result;
}

// The whole array fits into memory's address range.
void check_size(const char* function, const int64_t* shape, int rank) {
  if (std::any_of(shape, shape + rank, [](int64_t size) { return size == 0; })) return;
  int64_t bytes = 8;
  for (int i = 0; i < rank; ++i) {
    if (bytes > std::numeric_limits<int64_t>::max() / shape[i]) {
      fail_value(function, "result", "less than 2^63 bytes", "shape " + to_string(shape, rank));
    }
    bytes *= shape[i];
  }
}

void check_length(const char* function, const std::string& name, int64_t length) {
  if (length < 0 || length >= kMaxStart) {
    fail_value(function, name, "a length in 0 .. 2^61 - 1", std::to_string(length));
  }
}

// A call's q_offset: integers for the first leading axes.
void check_q_offset(const char* function, const Array& q_offset, const int64_t* leading, int rank) {
  if (!is_integer(q_offset.dtype)) {
    fail_type(function, "q_offset", "an int or an integer dtype", q_offset.dtype_name);
  }
  if (q_offset.rank > rank ||
      !std::equal(q_offset.shape, q_offset.shape + q_offset.rank, leading)) {
    fail_value(function, "q_offset", "the first sizes of " + to_string(leading, rank),
               "shape " + shape_string(q_offset));
  }
}

// Calls visit(value) for the values of an integer array that can be looked at.
template <typename Visit>
void for_each_integer(const Array& array, const Visit& visit) {
  if (array.empty() || !array.readable) return;
  const Positions values{array.data, array.dtype, 0};
  int64_t index[kMaxRank] = {};
  int64_t offset = 0;
  for (;;) {
    visit(values.at(offset).integer);
    int axis = array.rank - 1;
    for (; axis >= 0; --axis) {
      offset += array.stride[axis];
      if (++index[axis] < array.shape[axis]) break;
      offset -= array.stride[axis] * array.shape[axis];
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

// Windows of `queries` rows and `keys` columns stay within the entries, wherever q_offset puts
// them. `entries` names what has them.
void check_windows(const char* function, const std::string& name, int64_t entries, int64_t queries,
                   int64_t keys, int64_t start, const Array* q_offset) {
  if (start <= -kMaxStart || start >= kMaxStart) {
    fail_value(function, "origin", "an int within 2^61", std::to_string(start));
  }
  if (queries == 0 || keys == 0) return;
  const auto check = [&](int64_t offset) {
    int64_t first = 0;
    const bool overflow = __builtin_sub_overflow(start, offset, &first);
    if (!overflow && first >= queries - 1 && first <= entries - keys) return;
    const std::string at =
        " with query 0 and key 0 at entry " + std::to_string(start) +
        (q_offset != nullptr ? " less q_offset = " + std::to_string(offset) : std::string());
    fail_value(function, name,
               "entries for all distances of " + std::to_string(queries) + " queries and " +
                   std::to_string(keys) + " keys, at least " + std::to_string(queries + keys - 1),
               std::to_string(entries) + at);
  };
  if (q_offset == nullptr) return check(0);
  for_each_integer(*q_offset, check);
}

Matrices matrices(const Array& array, int leading) {
  Matrices result;
  result.data = array.data;
  std::copy_n(array.stride, leading, result.plane_strides);
  result.row_stride = array.stride[leading];
  result.column_stride = array.stride[leading + 1];
  return result;
}

// --- Toeplitz

int leading_rank(const ToeplitzCall& call) { return call.diagonals->rank - call.grid_rank; }

void check_grid(const ToeplitzCall& call) {
  const char* const function = call.function;
  for (int axis = 0; axis < call.grid_rank; ++axis) {
    check_length(function, name_of("q_len", axis, call.grid_rank), call.q_len[axis]);
    check_length(function, name_of("k_len", axis, call.grid_rank), call.k_len[axis]);
  }
  check_size(function, call.q_len, call.grid_rank);
  check_size(function, call.k_len, call.grid_rank);
  const Array& diagonals = *call.diagonals;
  check_real(function, "diagonals", diagonals);
  if (diagonals.rank < call.grid_rank) {
    fail_value(function, "diagonals",
               "a leading axis of heads and " + std::to_string(call.grid_rank) +
                   " of entries, one for each axis of q_len and k_len",
               "shape " + shape_string(diagonals));
  }
  if (call.q_offset != nullptr && call.grid_rank != 1) {
    fail_value(function, "q_offset", "none where q_len and k_len are tuples",
               "shape " + shape_string(*call.q_offset));
  }
  for (int axis = 0; axis < call.grid_rank; ++axis) {
    check_windows(function, "diagonals", diagonals.shape[leading_rank(call) + axis],
                  call.q_len[axis], call.k_len[axis], call.start[axis], call.q_offset);
  }
}

// The strides of diagonals along the `rank` leading axes of a call: 0 along those it has not. The
// last leading axis, of heads, is never repeated.
void match_heads(const ToeplitzCall& call, const int64_t* leading, int rank, int64_t* strides) {
  const Array& diagonals = *call.diagonals;
  const int own = leading_rank(call);
  bool matches = own <= rank;
  for (int i = 0; matches && i < own; ++i) {
    const int64_t size = diagonals.shape[own - 1 - i], of_call = leading[rank - 1 - i];
    matches = size == of_call || (size == 1 && i > 0);
    strides[rank - 1 - i] = size == 1 ? 0 : diagonals.stride[own - 1 - i];
  }
  if (matches) return;
  fail_value(call.function, "diagonals",
             "leading axes, heads last, that are those of the scores, " + to_string(leading, rank),
             to_string(diagonals.shape, own));
}

// Axes of size 1 are dropped, neighbouring ones that step alike in every array joined.
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
      if (last.in == axis.in * axis.size && last.out == axis.out * axis.size &&
          last.diagonals == axis.diagonals * axis.size &&
          last.q_offset == axis.q_offset * axis.size && last.kept == axis.kept) {
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
  std::copy_n(call.start, call.grid_rank, args.start);
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
  if (call.q_offset != nullptr) args.q_offset = {call.q_offset->data, call.q_offset->dtype, 0};
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
  check_matrices(call, "grad", *call.scores);
  check_grid(call);
  return make_toeplitz(call, *call.scores);
}

// --- Gather and scatter

namespace {

RelativeArgs make_relative(const RelativeCall& call, const Array& by_column, const Array& by_key) {
  const int leading = by_key.rank - 2;
  RelativeArgs args;
  args.planes.rank = leading;
  std::copy_n(by_key.shape, leading, args.planes.shape);
  args.queries = by_key.shape[leading];
  args.keys = by_key.shape[leading + 1];
  args.width = by_column.shape[leading + 1];
  args.start = call.start;
  args.dtype = by_key.dtype;
  args.scale = call.scale;
  args.by_column = matrices(by_column, leading);
  args.by_key = matrices(by_key, leading);
  if (call.content != nullptr) args.content = matrices(*call.content, leading);
  args.index.width = args.width;
  if (call.index != nullptr) {
    args.index.data = call.index->data;
    args.index.dtype = call.index->dtype;
    args.index.stride = call.index->stride[0];
    args.entries = call.index->shape[0];
  }
  if (call.q_offset != nullptr) {
    args.q_offset = {call.q_offset->data, call.q_offset->dtype, 0};
    std::copy_n(call.q_offset->stride, call.q_offset->rank, args.q_offset_strides);
  }
  return args;
}

// The arguments that gather and scatter share; the in's last axis is `in_size` long.
int check_relative(const RelativeCall& call, const char* in_name, bool gather, int64_t* shape) {
  const char* const function = call.function;
  const Array& in = *call.in;
  check_real(function, in_name, in);
  const char* const size_name = gather ? "k_len" : "width";
  if (in.rank < 2) {
    fail_value(function, in_name,
               gather ? "shape [..., q_len, width]" : "shape [..., q_len, k_len]",
               shape_string(in));
  }
  check_length(function, size_name, call.size);
  check_finite(function, "scale", call.scale);
  std::copy_n(in.shape, in.rank, shape);
  shape[in.rank - 1] = call.size;
  check_size(function, shape, in.rank);
  const int leading = in.rank - 2;
  const int64_t queries = in.shape[leading];
  const int64_t keys = gather ? call.size : in.shape[leading + 1];
  const int64_t width = gather ? in.shape[leading + 1] : call.size;
  if (call.q_offset != nullptr) check_q_offset(function, *call.q_offset, in.shape, leading);
  if (call.index == nullptr) {
    if (call.start <= -kMaxStart || call.start >= kMaxStart) {
      fail_value(function, "origin", "an int within 2^61", std::to_string(call.start));
    }
    return in.rank;
  }
  const Array& index = *call.index;
  if (!is_integer(index.dtype)) {
    fail_type(function, "index", "an integer dtype", index.dtype_name);
  }
  if (index.rank != 1) {
    fail_value(function, "index", "shape [q_len + k_len - 1]", shape_string(index));
  }
  if (call.has_missing && call.missing >= 0 && call.missing < width) {
    fail_value(function, "missing", "none of the columns 0 .. " + std::to_string(width - 1),
               std::to_string(call.missing));
  }
  check_windows(function, "index", index.shape[0], queries, keys, call.start, call.q_offset);
  int64_t at = 0;
  for_each_integer(index, [&](int64_t column) {
    if ((column < 0 || column >= width) && !(call.has_missing && column == call.missing)) {
      fail_value(function, "index", "columns 0 .. " + std::to_string(width - 1),
                 std::to_string(column) + " at [" + std::to_string(at) + "]");
    }
    ++at;
  });
  return in.rank;
}

void check_result(const RelativeCall& call, const char* in_name, const int64_t* shape, int rank) {
  const Array& out = *call.out;
  check_output(call.function, "out", out, shape, rank, *call.in);
  if (may_overlap(out, *call.in)) {
    fail_value(call.function, "out", std::string("no memory in common with ") + in_name,
               "an overlap");
  }
  for (const Array* other : {call.index, call.q_offset, call.order, call.bounds}) {
    if (other != nullptr && may_overlap(out, *other)) {
      fail_value(call.function, "out", "no memory in common with index or q_offset", "an overlap");
    }
  }
}

}  // namespace

int check_relative_gather_shape(const RelativeCall& call, int64_t* shape) {
  const int rank = check_relative(call, "x", true, shape);
  if (call.content == nullptr) return rank;
  check_real(call.function, "content", *call.content);
  if (call.content->dtype != call.in->dtype) {
    fail_type(call.function, "content", std::string("the dtype of x, ") + call.in->dtype_name,
              call.content->dtype_name);
  }
  if (call.content->rank != rank || !std::equal(shape, shape + rank, call.content->shape)) {
    fail_value(call.function, "content", "shape " + to_string(shape, rank),
               shape_string(*call.content));
  }
  return rank;
}

RelativeArgs check_relative_gather(const RelativeCall& call) {
  int64_t shape[kMaxRank];
  const int rank = check_relative_gather_shape(call, shape);
  check_result(call, "x", shape, rank);
  if (call.content != nullptr) {
    check_overlap(call.function, "out", *call.out, "content", *call.content);
  }
  return make_relative(call, *call.in, *call.out);
}

int check_relative_scatter_shape(const RelativeCall& call, int64_t* shape) {
  return check_relative(call, "grad", false, shape);
}

RelativeArgs check_relative_scatter(const RelativeCall& call) {
  int64_t shape[kMaxRank];
  const int rank = check_relative_scatter_shape(call, shape);
  check_result(call, "grad", shape, rank);
  RelativeArgs args = make_relative(call, *call.out, *call.in);
  if (call.order != nullptr && call.bounds != nullptr) {
    const auto check = [&](const char* name, const Array& array, int64_t size) {
      if (array.dtype != Dtype::kInt64) fail_type(call.function, name, "int64", array.dtype_name);
      if (array.rank != 1 || array.shape[0] != size || (size > 1 && array.stride[0] != 1)) {
        fail_value(call.function, name, "contiguous [" + std::to_string(size) + "]",
                   shape_string(array));
      }
      return static_cast<const int64_t*>(array.data);
    };
    args.order = check("order", *call.order, args.entries);
    args.bounds = check("bounds", *call.bounds, args.width + 1);
  }
  return args;
}

}  // namespace posenc
