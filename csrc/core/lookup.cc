#include "core/lookup.h"

#include <algorithm>
#include <string>

namespace posenc {
namespace {

RelativeArgs make_relative(const RelativeCall& call, const Array& by_column, const Array& by_key) {
  const int leading = by_key.rank - 2;
  RelativeArgs args;
  args.planes.rank = leading;
  std::copy_n(by_key.shape, leading, args.planes.shape);
  args.queries = by_key.shape[leading];
  args.keys = by_key.shape[leading + 1];
  args.width = by_column.shape[leading + 1];
  args.origin = call.origin;
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
  if (call.q_offset != nullptr && !call.q_offset->empty()) {
    args.q_offset = {call.q_offset->data, call.q_offset->dtype, 0};
    std::copy_n(call.q_offset->stride, call.q_offset->rank, args.q_offset_strides);
  }
  return args;
}

// An index has an entry for every distance, and leads to columns that are there (but for the one
// declared missing).
void check_index(const RelativeCall& call, int64_t queries, int64_t keys, int64_t width) {
  const char* const function = call.function;
  const Array& index = *call.index;
  if (!is_integer(index.dtype)) {
    fail_type(function, "index", "an integer dtype", index.dtype_name);
  }
  if (index.rank != 1) {
    fail_value(function, "index", "shape [q_len + k_len - 1]", shape_string(index));
  }
  if (call.has_missing && call.missing >= 0 && call.missing < width) {
    fail_value(function, "missing", "none of the columns 0 .. " + std::to_string(width - 1),
               shown(call.missing));
  }
  check_windows(function, "index", index.shape[0], queries, keys, call.origin, call.q_offset);
  // With a branch for each and what an error needs, this takes longer than a small gather.
  const int64_t missing = call.missing;
  const bool has_missing = call.has_missing;
  bool found = true;
  for_each_integer(index, [&found, width, has_missing, missing](int64_t column) {
    found &= (column >= 0 && column < width) || (has_missing && column == missing);
  });
  if (found) return;
  int64_t at = 0;
  for_each_integer(index, [&](int64_t column) {
    if ((column < 0 || column >= width) && !(call.has_missing && column == call.missing)) {
      fail_value(function, "index", "columns 0 .. " + std::to_string(width - 1),
                 shown(column) + " at [" + std::to_string(at) + "]");
    }
    ++at;
  });
}

// The arguments that gather and scatter share; writes the shape of the result, returns its rank.
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
  check_factor(function, "scale", call.scale, in.dtype);
  std::copy_n(in.shape, in.rank, shape);
  shape[in.rank - 1] = call.size;
  check_size(function, shape, in.rank);
  const int leading = in.rank - 2;
  const int64_t queries = in.shape[leading];
  const int64_t keys = gather ? call.size : in.shape[leading + 1];
  const int64_t width = gather ? in.shape[leading + 1] : call.size;
  if (call.q_offset != nullptr) check_q_offset(function, *call.q_offset, in.shape, leading);
  if (call.index == nullptr) {
    // With an int of q_offset taken off, of which the caller has looked at both.
    check_origin(function, call.origin, 2 * kMaxOrigin);
  } else {
    check_index(call, queries, keys, width);
  }
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
