#include "core/rotary.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>

namespace posenc {
namespace {

// Which axis of an array is which; -1 where the layout has none.
struct Layout {
  int batch = -1, token = -1, group = -1, head = -1, dim = -1;
  char token_letter = 's';
};

Layout parse_layout(const RotaryCall& call) {
  Layout layout;
  const auto fail = [&] {
    fail_value(call.function, "layout",
               "distinct letters of b, s, h, d (or t, h, d), with s or t, ending in d; g is "
               "allowed with h",
               "'" + std::string(call.layout) + "'");
  };
  for (size_t i = 0; i < call.layout.size(); ++i) {
    const char letter = call.layout[i];
    int* axis = letter == 'b'                    ? &layout.batch
                : letter == 's' || letter == 't' ? &layout.token
                : letter == 'g'                  ? &layout.group
                : letter == 'h'                  ? &layout.head
                : letter == 'd'                  ? &layout.dim
                                                 : nullptr;
    if (axis == nullptr || *axis >= 0) fail();
    *axis = static_cast<int>(i);
    if (axis == &layout.token) layout.token_letter = letter;
  }
  const bool packed_batch = layout.token_letter == 't' && layout.batch >= 0;
  const bool dim_last = layout.dim >= 0 && layout.dim + 1 == static_cast<int>(call.layout.size());
  const bool groups_of_nothing = layout.group >= 0 && layout.head < 0;
  if (layout.token < 0 || !dim_last || packed_batch || groups_of_nothing) fail();
  return layout;
}

int64_t parse_block(const RotaryCall& call, const char* name, std::string_view pairing,
                    int64_t pairs) {
  if (pairing == "half") return 2 * pairs;
  if (pairing == "interleaved") return 2;
  const std::string text(pairing);
  char* end = nullptr;
  const int64_t block = std::strtoll(text.c_str(), &end, 10);
  const bool number = !text.empty() && *end == '\0';
  if (!number || block < 2 || block % 2 != 0 || (2 * pairs) % block != 0) {
    fail_value(call.function, name,
               std::string(name == std::string_view("pairing") ? "" : "'same', ") +
                   "'half', 'interleaved' or an even block size that divides 2P = " +
                   std::to_string(2 * pairs),
               number ? text : "'" + text + "'");
  }
  return block;
}

int64_t size_of(const Array& x, int axis) { return axis < 0 ? 1 : x.shape[axis]; }
int64_t stride_of(const Array& x, int axis) { return axis < 0 ? 0 : x.stride[axis]; }

HeadStrides head_strides(const Array& x, const Layout& layout) {
  HeadStrides strides{stride_of(x, layout.batch), stride_of(x, layout.token),
                      stride_of(x, layout.head), stride_of(x, layout.dim)};
  const int64_t groups = size_of(x, layout.group), heads = size_of(x, layout.head);
  const int64_t apart = stride_of(x, layout.group);
  if (groups <= 1 || apart == heads * strides.head) return strides;
  if (heads == 1) {
    strides.head = apart;
  } else if (heads > 1) {
    strides.group = apart;
    strides.group_heads = heads;
  }
  return strides;
}

// [s], [1, s] or [b, s], after `leading` axes of other meaning; strides for batch and token.
void check_token_axes(const RotaryCall& call, const char* name, const Array& array, int leading,
                      int trailing, const Layout& layout, const RotaryArgs& args,
                      int64_t& batch_stride, int64_t& token_stride) {
  const int rank = array.rank - leading - trailing;
  const int64_t* shape = array.shape + leading;
  const int64_t* stride = array.stride + leading;
  if (rank == 1 && shape[0] == args.tokens) {
    batch_stride = 0;
    token_stride = stride[0];
    return;
  }
  const bool one_row = rank == 2 && shape[0] == 1;  // for the whole batch
  if (rank == 2 && layout.batch >= 0 && (one_row || shape[0] == args.batch) &&
      shape[1] == args.tokens) {
    batch_stride = one_row ? 0 : stride[0];
    token_stride = stride[1];
    return;
  }
  const std::string before = leading ? "A, " : "", after = trailing ? ", P" : "";
  const std::string before_size =
      leading ? std::to_string(array.rank > 0 ? array.shape[0] : 0) + ", " : "";
  const std::string after_size = trailing ? ", " + std::to_string(args.pairs) : "";
  const std::string tokens = std::to_string(args.tokens);
  std::string expected = "shape [" + before + layout.token_letter + after + "] = [" + before_size +
                         tokens + after_size + "]";
  if (layout.batch >= 0) {
    expected += ", [" + before + "1, s" + after + "] or [" + before + "b, s" + after + "] = [" +
                before_size + std::to_string(args.batch) + ", " + tokens + after_size + "]";
  }
  if (!leading && name == std::string("positions") && array.rank > 1) {
    expected += " (an extra axis, [A, ...], needs axis_map or inv_freq [A, H, P])";
  }
  fail_value(call.function, name, expected, shape_string(array));
}

std::string sizes_string(std::initializer_list<int64_t> sizes) {
  Array array;
  for (const int64_t size : sizes) array.shape[array.rank++] = size;
  return shape_string(array);
}

// Which rows of the tables tokens have: integers by token, of a table's `count` rows.
void check_rows(const RotaryCall& call, const Layout& layout, RotaryArgs& args) {
  const Array& rows = *call.rows;
  if (!is_integer(rows.dtype)) {
    fail_type(call.function, "rows", "an integer dtype", rows.dtype_name);
  }
  if (call.axis_map != nullptr) fail_value(call.function, "axis_map", "None with rows", "an array");
  check_token_axes(call, "rows", rows, 0, 0, layout, args, args.table_rows.batch_stride,
                   args.table_rows.token_stride);
  args.table_rows.numbers = {rows.data, rows.dtype, 0};
  const int64_t count = call.cosine->rank > 0 ? call.cosine->shape[0] : 0;
  args.table_rows.count = count;
  if (rows.empty()) return;
  if (count == 0) fail_value(call.function, "cos", "at least one row", shape_string(*call.cosine));
  if (!rows.readable) return;
  for_each_offset(rows, rows.rank, [&](int64_t offset) {
    const int64_t row = args.table_rows.numbers.at(offset).integer;
    if (row < 0 || row >= count) {
      fail_value(call.function, "rows", "rows of cos, 0 .. " + std::to_string(count - 1),
                 shown(row));
    }
  });
}

// [n, P] with rows. Else by token as check_token_axes has it; by head [b, h, s, P] or [1, h, s, P],
// and [h, s, P] where the layout has no b; each after an axis [A] with an axis_map.
void check_table_axes(const RotaryCall& call, const char* name, const Array& table,
                      const Layout& layout, RotaryArgs& args, TableStrides& strides) {
  strides.pair = table.stride[table.rank - 1];
  if (call.rows != nullptr) {
    if (table.rank != 2 || table.shape[0] != args.table_rows.count) {
      const int64_t count = args.table_rows.count;
      fail_value(call.function, name, "shape [n, P] = " + sizes_string({count, args.pairs}),
                 shape_string(table));
    }
    strides.token = table.stride[0];
    return;
  }
  const int leading = call.axis_map != nullptr;
  if (leading) strides.axis = table.stride[0];
  const int head_axis = leading + (layout.batch >= 0);
  if (layout.head < 0 || table.rank != head_axis + 3) {
    return check_token_axes(call, name, table, leading, 1, layout, args, strides.batch,
                            strides.token);
  }
  const int64_t heads = table.shape[head_axis], rows = layout.batch < 0 ? 1 : table.shape[leading];
  if (table.shape[head_axis + 1] != args.tokens || (rows != 1 && rows != args.batch)) {
    const std::string axes = leading ? "A, " : "";
    fail_value(call.function, name,
               layout.batch < 0
                   ? "shape [" + axes + "h, s, P] with s = " + std::to_string(args.tokens)
                   : "shape [" + axes + "b, h, s, P] with b = " + std::to_string(args.batch) +
                         (args.batch == 1 ? "" : " or 1") +
                         " and s = " + std::to_string(args.tokens),
               shape_string(table));
  }
  for (int i = 0; i < call.tensor_count; ++i) {
    if (heads == 1 || heads == args.tensors[i].heads) continue;
    fail_value(call.function, name,
               "tables for " + std::to_string(args.tensors[i].heads) + " heads of " +
                   call.names[i] + ", or one for all heads",
               shape_string(table));
  }
  strides.batch = rows == 1 ? 0 : table.stride[leading];
  strides.token = table.stride[head_axis + 1];
  if (heads == 1) return;
  strides.head = table.stride[head_axis];
  args.table_heads = heads;
}

void check_tables(const RotaryCall& call, const Layout& layout, RotaryArgs& args) {
  const struct {
    const char* name;
    const Array& table;
    TableStrides& strides;
  } tables[] = {{"cos", *call.cosine, args.cosine_strides}, {"sin", *call.sine, args.sine_strides}};
  if (call.rows != nullptr) check_rows(call, layout, args);
  for (const auto& [name, table, strides] : tables) {
    check_real(call.function, name, table);
    if (table.rank == 0 || table.shape[table.rank - 1] != args.pairs) {
      fail_value(call.function, name, "shape [..., P] with P = " + std::to_string(args.pairs),
                 shape_string(table));
    }
    check_table_axes(call, name, table, layout, args, strides);
  }
  if (call.cosine->dtype != call.sine->dtype) {
    fail_type(call.function, "sin", std::string("the dtype of cos, ") + call.cosine->dtype_name,
              call.sine->dtype_name);
  }
  if (call.axis_map != nullptr) {
    const int64_t axes = call.cosine->shape[0];
    if (call.sine->shape[0] != axes) {
      fail_value(call.function, "sin", "the shape of cos, " + shape_string(*call.cosine),
                 shape_string(*call.sine));
    }
    args.axis_map = check_axis_map(call.function, *call.axis_map, args.pairs, axes);
  }
  args.cosine = call.cosine->data;
  args.sine = call.sine->data;
  args.table_dtype = call.cosine->dtype;
}

// What is turned: every tensor with its heads, of one shape but where q and k are turned apart.
void check_tensors(const RotaryCall& call, const Layout& layout, RotaryArgs& args) {
  args.tensor_count = call.tensor_count;
  const Array& first = *call.in[0];
  for (int i = 0; i < call.tensor_count; ++i) {
    const Array& x = *call.in[i];
    check_real(call.function, call.names[i], x);
    if (x.rank != static_cast<int>(call.layout.size())) {
      fail_value(call.function, call.names[i],
                 std::to_string(call.layout.size()) + " axes for layout '" +
                     std::string(call.layout) + "'",
                 "shape " + shape_string(x));
    }
    if (i == 0) {
      args.dtype = x.dtype;
      args.batch = size_of(x, layout.batch);
      args.tokens = size_of(x, layout.token);
      args.head_dim = size_of(x, layout.dim);
    } else if (x.dtype != args.dtype) {
      fail_type(call.function, call.names[i],
                std::string("the dtype of ") + call.names[0] + ", " + first.dtype_name,
                x.dtype_name);
    } else if ((!call.own_tokens() && (size_of(x, layout.batch) != args.batch ||
                                       size_of(x, layout.token) != args.tokens)) ||
               (call.k_start < 0 && size_of(x, layout.dim) != args.head_dim)) {
      const char* const free = call.own_tokens()   ? " except for heads, batch and length, "
                               : call.k_start >= 0 ? " except for heads and head_dim, "
                                                   : " except for heads, ";
      fail_value(call.function, call.names[i],
                 std::string("the shape of ") + call.names[0] + free + shape_string(first),
                 shape_string(x));
    }
    args.tensors[i].in = x.data;
    args.tensors[i].heads = size_of(x, layout.group) * size_of(x, layout.head);
    args.tensors[i].in_strides = head_strides(x, layout);
  }
}

// How many pairs there are: as many as frequencies, or as numbers in a row of the tables.
void check_pairs(const RotaryCall& call, RotaryArgs& args) {
  if (call.inv_freq == nullptr) {
    args.pairs = call.cosine->rank > 0 ? call.cosine->shape[call.cosine->rank - 1] : 0;
    return;
  }
  args.inv_freq = check_frequencies(call.function, *call.inv_freq, 3);
  args.pairs = call.inv_freq->shape[call.inv_freq->rank - 1];
  for (int i = 0; i < call.tensor_count && args.inv_freq.heads != 1; ++i) {
    if (args.tensors[i].heads != args.inv_freq.heads) {
      fail_value(call.function, "inv_freq",
                 "frequencies for " + std::to_string(args.tensors[i].heads) + " heads of " +
                     call.names[i] + ", or one row for all heads",
                 "shape " + shape_string(*call.inv_freq));
    }
  }
}

// Which dims are turned, and how.
void check_turn(const RotaryCall& call, RotaryArgs& args) {
  args.start = call.rotary_start;
  if (args.pairs > args.head_dim / 2) {
    const bool by_steps = call.steps != nullptr, by_tables = call.cosine != nullptr;
    const char* const each = by_steps ? " pairs" : by_tables ? " columns" : " frequencies";
    fail_value(
        call.function,
        by_steps    ? "steps"
        : by_tables ? "cos"
                    : "inv_freq",
        "at most " + std::to_string(args.head_dim / 2) + each + ", 2 dims each, for head_dim " +
            std::to_string(args.head_dim),
        std::to_string(args.pairs) + ", which turn " + std::to_string(2 * args.pairs) + " dims");
  }
  if (args.start < 0 || args.start > args.head_dim ||
      args.pairs > (args.head_dim - args.start) / 2) {
    fail_value(
        call.function, "rotary_start",
        "0 <= rotary_start and rotary_start + 2P <= head_dim = " + std::to_string(args.head_dim),
        "rotary_start = " + shown(args.start) + " with P = " + std::to_string(args.pairs));
  }
  args.in_half_block = parse_block(call, "pairing", call.pairing, args.pairs) / 2;
  args.half_block = args.in_half_block;
  if (call.out_pairing != "same") {
    const int64_t block = parse_block(call, "out_pairing", call.out_pairing, args.pairs);
    if (args.pairs != 0) args.half_block = block / 2;
  }
  check_factor(call.function, "scale", call.scale, args.dtype);
  args.scale = call.scale;
  args.inverse = call.inverse;
  args.as_written = call.compute == "as_written";
  if (!args.as_written && call.compute != "float32") {
    fail_value(call.function, "compute", "'float32' or 'as_written'",
               "'" + std::string(call.compute) + "'");
  }
}

// Where tokens are: positions of their own, on several axes by axis_map or inv_freq, or 0, 1, 2 ...
void check_places(const RotaryCall& call, const Layout& layout, RotaryArgs& args) {
  args.position_token_stride = 1;
  const bool by_axis = call.axis_map != nullptr || args.inv_freq.axes > 0;
  if (by_axis && call.positions == nullptr) {
    fail_value(call.function, "positions",
               std::string("shape [A, s] or [A, b, s] with ") +
                   (call.axis_map != nullptr ? "axis_map" : "inv_freq [A, H, P]"),
               "None");
  }
  if (call.axis_map != nullptr && args.inv_freq.axes > 0) {
    fail_value(call.function, "axis_map",
               "None with inv_freq [A, H, P], which already maps the axes", "an array");
  }
  args.positions.first = call.first_position;
  if (call.positions == nullptr) return;
  const Array& positions = *call.positions;
  if (positions.dtype == Dtype::kOther) check_positions(call.function, positions);
  check_token_axes(call, "positions", positions, by_axis, 0, layout, args,
                   args.position_batch_stride, args.position_token_stride);
  check_positions(call.function, positions);
  args.positions = {positions.data, positions.dtype, by_axis ? positions.stride[0] : 0};
  if (args.inv_freq.axes > 0 && positions.shape[0] != args.inv_freq.axes) {
    fail_value(call.function, "positions",
               std::to_string(args.inv_freq.axes) + " axes, as inv_freq has",
               "shape " + shape_string(positions));
  }
  if (call.axis_map != nullptr) {
    args.axis_map = check_axis_map(call.function, *call.axis_map, args.pairs, positions.shape[0]);
  }
}

// Into `args`, fresh ones: to copy them would take a hundredth of a token's rotation.
void check_angles(const RotaryCall& call, const Layout& layout, RotaryArgs& args) {
  check_tensors(call, layout, args);
  check_pairs(call, args);
  check_turn(call, args);
  if (call.cosine != nullptr) {
    check_tables(call, layout, args);
  } else {
    check_places(call, layout, args);
  }
}

// q (0) or k (1) of a call alone. Errors about an option that is a pair say which one of it.
void check_angles_of(const RotaryCall& call, const Layout& layout, int i, RotaryArgs& args) {
  RotaryCall one = call;
  one.tensor_count = 1;
  one.names[0] = call.names[i];
  one.in[0] = call.in[i];
  if (i == 1) {
    if (call.k_positions != nullptr) one.positions = call.k_positions;
    if (call.k_cosine != nullptr) one.cosine = call.k_cosine;
    if (call.k_sine != nullptr) one.sine = call.k_sine;
    if (call.k_rows != nullptr) one.rows = call.k_rows;
    if (call.k_start >= 0) one.rotary_start = call.k_start;
  }
  try {
    check_angles(one, layout, args);
  } catch (Error& error) {
    const std::string& name = error.argument;
    if ((name == "positions" && call.k_positions != nullptr) ||
        (name == "cos" && call.k_cosine != nullptr) || (name == "sin" && call.k_sine != nullptr) ||
        (name == "rows" && call.k_rows != nullptr) ||
        (name == "rotary_start" && call.k_start >= 0)) {
      error.argument += i == 0 ? "[0]" : "[1]";
    }
    throw;
  }
}

// A reader of options: an output has no memory in common with any of their arrays.
struct NoOverlapWithOptions {
  const char* function;
  const char* out_name;
  const Array& out;
  const Bounds bounds{out};

  void array(const char* name, const Array* value) const {
    if (value != nullptr && bounds.meet(Bounds(*value)) && may_overlap(out, *value)) {
      fail_value(function, out_name, std::string("no memory in common with ") + name, "an overlap");
    }
  }
  void optional_array(const char* name, const Array* value) const { array(name, value); }
  void positions(const char* name, const Array* value, int64_t /*first*/) const {
    array(name, value);
  }
  void text(const char* /*name*/, std::string_view /*value*/) const {}
  void pairing(const char* /*name*/, std::string_view /*value*/) const {}
  void integer(const char* /*name*/, int64_t /*value*/) const {}
  void number(const char* /*name*/, double /*value*/) const {}
  void boolean(const char* /*name*/, bool /*value*/) const {}
};

void check_outputs(const RotaryCall& call, const Layout& layout, RotaryTensor* const* tensors) {
  RotaryOptions options = call;
  for (int i = 0; i < call.tensor_count; ++i) {
    if (call.out[i] == nullptr) continue;  // it goes nowhere
    const Array& out = *call.out[i];
    const bool in_place = call.out[i] == call.in[i];
    const char* name = in_place ? call.names[i] : call.out_names[i];
    check_output(call.function, name, out, call.in[i]->shape, call.in[i]->rank, *call.in[i]);
    for (int j = 0; j < call.tensor_count; ++j) {
      if (i == j) {
        check_overlap(call.function, name, out, call.names[j], *call.in[j]);
      } else if (may_overlap(out, *call.in[j])) {
        fail_value(call.function, name, std::string("no memory in common with ") + call.names[j],
                   "an overlap");
      }
    }
    // An output that is an input has been compared with the others already.
    if (i == 1 && !in_place && call.out[0] != call.in[0] && may_overlap(out, *call.out[0])) {
      fail_value(call.function, name, std::string("no memory in common with ") + call.out_names[0],
                 "an overlap");
    }
    NoOverlapWithOptions reader{call.function, name, out};
    options.for_each(options.angles(), reader);
    tensors[i]->out = out.data;
    tensors[i]->out_strides = head_strides(out, layout);
  }
}

}  // namespace

RotaryParts check_rotary_parts(const RotaryCall& call) {
  const Layout layout = parse_layout(call);
  RotaryParts parts;
  if (!call.apart() || call.tensor_count < 2) {
    check_angles(call, layout, parts.first);
    RotaryTensor* const tensors[] = {&parts.first.tensors[0], &parts.first.tensors[1]};
    check_outputs(call, layout, tensors);
    return parts;
  }
  RotaryArgs both;
  check_tensors(call, layout, both);
  check_angles_of(call, layout, 0, parts.first);
  check_angles_of(call, layout, 1, parts.second.emplace());
  RotaryTensor* const tensors[] = {&parts.first.tensors[0], &parts.second->tensors[0]};
  check_outputs(call, layout, tensors);
  return parts;
}

RotaryArgs check_rotary(const RotaryCall& call) {
  RotaryParts parts = check_rotary_parts(call);
  if (parts.second) {
    fail_value(call.function,
               call.own_tokens() ? call.cosine != nullptr ? "cos" : "positions" : "rotary_start",
               "the same for q and k", "a pair");
  }
  for (int i = 0; i < call.tensor_count; ++i) {
    if (parts.first.tensors[i].groups() == 1) continue;
    fail_value(call.function, "layout", "heads at one distance in memory from each other",
               "groups that are not, in layout '" + std::string(call.layout) + "'");
  }
  return parts.first;
}

namespace {

// What was rotated, with the shape and dtype of its gradient.
void check_same(const RotaryCall& call, const Array* const* x, const void** data,
                HeadStrides* strides) {
  const Layout layout = parse_layout(call);
  for (int i = 0; i < call.tensor_count; ++i) {
    const Array& given = *x[i];
    const Array& grad = *call.in[i];
    if (given.dtype != grad.dtype) {
      fail_type(call.function, call.names[i], grad.dtype_name, given.dtype_name);
    }
    if (given.rank != grad.rank || !std::equal(grad.shape, grad.shape + grad.rank, given.shape)) {
      fail_value(call.function, call.names[i], "shape " + shape_string(grad), shape_string(given));
    }
    data[i] = given.data;
    strides[i] = head_strides(given, layout);
  }
}

}  // namespace

RotaryGradientArgs check_rotary_gradient(RotaryCall call, const Array* const* x) {
  RotaryGradientArgs args;
  args.inverse = call.inverse;
  call.inverse = !call.inverse;
  if (call.out_pairing != "same") std::swap(call.pairing, call.out_pairing);
  args.turned = check_rotary(call);
  for (int i = 0; i < call.tensor_count; ++i) {
    if (args.turned.tensors[i].groups() > 1 || call.layout.find('g') != std::string_view::npos) {
      fail_value(call.function, "layout", "letters without g",
                 "'" + std::string(call.layout) + "'");
    }
  }
  check_same(call, x, args.x, args.x_strides);
  return args;
}

namespace {

// [b, s, h, P] in the order of the layout, with heads that divide those of the tensors.
void check_steps(const RotaryCall& call, const Layout& layout, SelectiveArgs& args) {
  const Array& steps = *call.steps;
  check_real(call.function, "steps", steps);
  bool fits = steps.rank == static_cast<int>(call.layout.size());
  for (int i = 0; fits && i + 1 < steps.rank; ++i) {
    fits = i == layout.head || steps.shape[i] == call.in[0]->shape[i];
  }
  const int64_t heads = fits ? size_of(steps, layout.head) : 0;
  for (int i = 0; fits && i < call.tensor_count; ++i) {
    const int64_t own = args.rotary.tensors[i].heads;
    fits = heads == 0 ? own == 0 : own % heads == 0;
  }
  if (!fits) {
    fail_value(call.function, "steps", "the axes of q, with P for d and heads that divide its",
               "shape " + shape_string(steps));
  }
  args.steps = steps.data;
  args.steps_dtype = steps.dtype;
  args.steps_strides = head_strides(steps, layout);
  args.heads = heads;
}

void check_starts(const RotaryCall& call, const Layout& layout, SelectiveArgs& args) {
  const int64_t tokens = args.rotary.tokens;
  args.rows = args.rotary.batch;
  if (call.starts == nullptr) return;
  const Array& starts = *call.starts;
  if (layout.batch >= 0) {
    fail_value(call.function, "starts", "None with a layout that has b", "an array");
  }
  if (!is_integer(starts.dtype)) {
    fail_type(call.function, "starts", "an integer dtype", starts.dtype_name);
  }
  args.starts = {starts.data, starts.dtype, 0};
  args.starts_stride = starts.rank == 1 ? starts.stride[0] : 0;
  args.rows = starts.rank == 1 ? starts.shape[0] - 1 : 0;
  bool rising = args.rows > 0 && starts.rank == 1;
  // On a GPU they are not looked at, and its kernels stay within the tokens whatever they are.
  for (int64_t i = 0, before = 0; rising && starts.readable && i <= args.rows; ++i) {
    const int64_t start = args.starts.index_at(i * args.starts_stride);
    rising = start >= before && (i > 0 || start == 0) && (i < args.rows || start == tokens);
    before = start;
  }
  if (!rising) {
    fail_value(call.function, "starts",
               "rising integers from 0 to " + std::to_string(tokens) + ", the number of tokens",
               "others");
  }
}

void check_state(const RotaryCall& call, const Layout& layout, SelectiveArgs& args,
                 StateShape& states) {
  const bool by_row = layout.batch >= 0 || call.starts != nullptr;
  if (by_row) states.shape[states.rank++] = args.rows;
  if (layout.head >= 0) states.shape[states.rank++] = args.heads;
  states.shape[states.rank++] = args.rotary.pairs;
  if (call.state == nullptr) return;
  const Array& state = *call.state;
  if (state.dtype != Dtype::kInt64) {
    fail_type(call.function, "state", "int64", state.dtype_name);
  }
  if (state.rank != states.rank ||
      !std::equal(states.shape, states.shape + states.rank, state.shape)) {
    Array expected;
    expected.rank = states.rank;
    std::copy_n(states.shape, states.rank, expected.shape);
    fail_value(call.function, "state", "shape " + shape_string(expected),
               "shape " + shape_string(state));
  }
  args.state = static_cast<const int64_t*>(state.data);
  int axis = 0;
  if (by_row) args.state_strides.batch = state.stride[axis++];
  if (layout.head >= 0) args.state_strides.head = state.stride[axis++];
  args.state_strides.dim = state.stride[axis];
}

}  // namespace

SelectiveArgs check_selective(const RotaryCall& call, StateShape& states) {
  const Layout layout = parse_layout(call);
  if (layout.group >= 0) {
    fail_value(call.function, "layout", "letters of b, s, h, t and d",
               "'" + std::string(call.layout) + "'");
  }
  SelectiveArgs args;
  check_tensors(call, layout, args.rotary);
  check_steps(call, layout, args);
  args.rotary.pairs = call.steps->shape[call.steps->rank - 1];
  check_turn(call, args.rotary);
  check_starts(call, layout, args);
  check_state(call, layout, args, states);
  RotaryTensor* const tensors[] = {&args.rotary.tensors[0], &args.rotary.tensors[1]};
  check_outputs(call, layout, tensors);
  return args;
}

SelectiveGradientArgs check_selective_gradient(RotaryCall call, const Array* const* x,
                                               const Array& steps_gradient) {
  SelectiveGradientArgs args;
  args.inverse = call.inverse;
  call.inverse = !call.inverse;
  if (call.out_pairing != "same") std::swap(call.pairing, call.out_pairing);
  StateShape states;
  args.turned = check_selective(call, states);
  const Layout layout = parse_layout(call);
  check_same(call, x, args.x, args.x_strides);
  const Array& steps = *call.steps;
  check_output(call.function, "steps", steps_gradient, steps.shape, steps.rank, steps);
  args.steps_gradient = steps_gradient.data;
  args.gradient_strides = head_strides(steps_gradient, layout);
  return args;
}

}  // namespace posenc
