// Rotary encoding: the one operation  out = rotate(x, angles)  and what is a valid call of it.
//
//   x, seen as [batch, token, head, dim] through strides, whatever its memory layout
//
//   dim:   | start |  block 0  |  block 1  | ... |  rest  |     inside a block of b dims, dim i
//          | copied|  b dims   |           |     | copied |     pairs with i + b/2:
//
//   b = 2                  x0 x1 | x2 x3 | x4 x5 ...      interleaved (GPT-J)
//   b = 2P (one block)     x0 x1 x2 ... | xP xP+1 ...     half (NeoX, Hugging Face): i with i + P
//
//   (a, b) of a pair  ->  (a cos - b sin, b cos + a sin)
//
// Pairs may be written in blocks of another size than they are read from (out_pairing).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/angles.h"
#include "core/phases.h"
#include "core/view.h"

namespace posenc {

// Strides of one tensor, in elements; an axis that the layout has not is 0.
//
// Heads lie `head` apart. Where they come in groups that are not, those begin `group` apart, and
// each has group_heads of them; else group_heads is 0.
struct HeadStrides {
  int64_t batch = 0, token = 0, head = 0, dim = 1;
  int64_t group = 0, group_heads = 0;

  int64_t of_head(int64_t i) const {
    return group_heads == 0 ? i * head : i / group_heads * group + i % group_heads * head;
  }
  HeadStrides in_a_group() const { return {batch, token, head, dim}; }
};

struct RotaryTensor {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t heads = 0;
  HeadStrides in_strides, out_strides;

  // Groups of heads that have one stride.
  int64_t groups() const { return group_heads() == 0 ? 1 : heads / group_heads(); }
  int64_t group_heads() const {
    return in_strides.group_heads != 0 ? in_strides.group_heads : out_strides.group_heads;
  }

  // `count` heads that have one stride, from the i-th on, of elements of `size` bytes.
  RotaryTensor heads_from(int64_t i, int64_t count, int64_t size) const {
    return {static_cast<const char*>(in) + in_strides.of_head(i) * size,
            static_cast<char*>(out) + out_strides.of_head(i) * size, count, in_strides.in_a_group(),
            out_strides.in_a_group()};
  }
  RotaryTensor of_group(int64_t i, int64_t size) const {
    const int64_t count = group_heads();
    return count == 0 ? *this : heads_from(i * count, count, size);
  }
};

// Of cosines or of sines; an axis that the table has not is 0.
struct TableStrides {
  int64_t batch = 0, token = 0, pair = 0, head = 0, axis = 0;
};

// Rows of a table by token: integers, `count` is how many rows there are. Without data a token has
// the row of its own.
struct TableRows {
  Positions numbers;
  int64_t batch_stride = 0, token_stride = 0, count = 0;

  // Never outside of the table: numbers may not have been looked at, or have changed since.
  POSENC_HD int64_t row(int64_t batch, int64_t token) const {
    if (numbers.data == nullptr) return token;
    const int64_t row = numbers.at(batch * batch_stride + token * token_stride).integer;
    return row < 0 ? 0 : row < count ? row : count - 1;
  }
  // From the first number of a table; one with rows has no axis of a batch.
  POSENC_HD int64_t offset(int64_t batch, int64_t token, const TableStrides& strides) const {
    return batch * strides.batch + row(batch, token) * strides.token;
  }
};

struct RotaryArgs {
  RotaryTensor tensors[2];  // q and k share the angles; a single x is the first
  int tensor_count = 0;
  Dtype dtype = Dtype::kFloat32;
  int64_t batch = 0, tokens = 0, head_dim = 0;

  int64_t pairs = 0;  // P
  int64_t start = 0;  // first rotated dim
  // b/2, the distance between the partners of a pair: where they are written, and where they are
  // read.
  int64_t half_block = 0, in_half_block = 0;

  // Angles from positions ...
  Positions positions;
  int64_t position_batch_stride = 0, position_token_stride = 0;
  AxisMap axis_map;
  InverseFrequencies inv_freq;
  Frequencies frequencies;  // the same in turns, where the caller has prepared them
  // ... or from tables, if `cosine` is set. With an axis_map it chooses a table for each pair.
  const void* cosine = nullptr;
  const void* sine = nullptr;
  Dtype table_dtype = Dtype::kFloat32;
  TableStrides cosine_strides, sine_strides;
  int64_t table_heads = 1;  // 1: the same for all
  TableRows table_rows;     // which row a token has, where that is not its own
  // ... or from phases, if they are set: turns times 2^64, [batch, tokens, P] in C order. Vectors
  // are read whole: kPhasesBehind numbers have to follow the last one.
  const int64_t* phases = nullptr;
  static constexpr int64_t kPhasesBehind = 64;

  double scale = 1.0;
  bool inverse = false;
  // Of tables: cosine, sine, each product and the sum rounded to `dtype`, as operations of their
  // own on tensors of it would. Else all is in float32 (float64) and rounded once.
  bool as_written = false;
  bool non_temporal = false;  // write past the cache: set for large outputs by the caller

  POSENC_HD int64_t rows() const { return batch * tokens; }

  // Whether pairs are written to other dims than they are read from.
  POSENC_HD bool rearranged() const { return in_half_block != half_block; }

  // Heads that have angles of their own; 1: the same for all.
  POSENC_HD int64_t angle_heads() const { return cosine != nullptr ? table_heads : inv_freq.heads; }

  // The call for one head alone, where each has its own angles.
  RotaryArgs of_head(int64_t head) const {
    RotaryArgs one = *this;
    if (cosine != nullptr) {
      const int64_t size = item_size(table_dtype);
      one.cosine = static_cast<const char*>(cosine) + head * cosine_strides.head * size;
      one.sine = static_cast<const char*>(sine) + head * sine_strides.head * size;
      one.table_heads = 1;
    } else {
      one.inv_freq = inv_freq.of_head(head);
    }
    if (frequencies.fraction != nullptr) {
      const int64_t first = head * inv_freq.terms() * pairs;
      one.frequencies = {frequencies.fraction + first, frequencies.whole + first};
    }
    for (int i = 0; i < tensor_count; ++i) {
      one.tensors[i] = tensors[i].heads_from(head, 1, item_size(dtype));
    }
    return one;
  }

  // Whether one head is turned, by the same angles in every row of the batch.
  bool batch_shares_angles() const {
    for (int i = 0; i < tensor_count; ++i) {
      if (tensors[i].heads != 1) return false;
    }
    if (cosine == nullptr) return position_batch_stride == 0;
    return cosine_strides.batch == 0 && sine_strides.batch == 0 &&
           (table_rows.numbers.data == nullptr || table_rows.batch_stride == 0);
  }

  // `count` rows of the batch, from the i-th on, as heads of one row: what shares angles is turned
  // side by side, as heads are. Where batch_shares_angles().
  RotaryArgs batch_as_heads(int64_t i, int64_t count) const {
    RotaryArgs one = *this;
    one.batch = 1;
    for (int t = 0; t < tensor_count; ++t) {
      RotaryTensor& x = one.tensors[t];
      x.in = static_cast<const char*>(x.in) + i * x.in_strides.batch * item_size(dtype);
      x.out = static_cast<char*>(x.out) + i * x.out_strides.batch * item_size(dtype);
      x.heads = count;
      x.in_strides = {0, x.in_strides.token, x.in_strides.batch, x.in_strides.dim};
      x.out_strides = {0, x.out_strides.token, x.out_strides.batch, x.out_strides.dim};
    }
    return one;
  }

  // Whether pairs are written to dims that are still to be read: a copy has to be read instead.
  bool overwrites_itself() const {
    bool in_place = false;
    for (int i = 0; i < tensor_count; ++i) {
      in_place = in_place || tensors[i].in == tensors[i].out;
    }
    return rearranged() && in_place;
  }

  int64_t row_bytes() const {
    int64_t heads = 0;
    for (int i = 0; i < tensor_count; ++i) heads += tensors[i].heads;
    return heads * head_dim * item_size(dtype);
  }

  // Makes the call for `row_count` rows from `first` on read from a copy in memory for so many
  // row_bytes(); returns the call that makes the copy, a rotation of no pairs.
  RotaryArgs read_from_copy(void* memory, int64_t first, int64_t row_count) {
    RotaryArgs copying;
    copying.tensor_count = tensor_count;
    copying.dtype = dtype;
    copying.batch = batch;
    copying.tokens = tokens;
    copying.head_dim = head_dim;
    char* next = static_cast<char*>(memory);
    for (int i = 0; i < tensor_count; ++i) {
      const int64_t row = tensors[i].heads * head_dim;
      copying.tensors[i] = tensors[i];
      copying.tensors[i].out = next - first * row * item_size(dtype);
      copying.tensors[i].out_strides = {tokens * row, row, head_dim};
      tensors[i].in = copying.tensors[i].out;
      tensors[i].in_strides = copying.tensors[i].out_strides;
      next += row_count * row * item_size(dtype);
    }
    return copying;
  }

  // visit(args) once, or for calls in which the heads of every tensor have one stride.
  template <typename Visit>
  void for_each_group(const Visit& visit) const {
    int64_t groups = 1;
    for (int i = 0; i < tensor_count; ++i) groups = std::max(groups, tensors[i].groups());
    if (groups == 1) return visit(*this);
    if (angle_heads() != 1) {
      for (int64_t head = 0; head < angle_heads(); ++head) visit(of_head(head));
      return;
    }
    for (int64_t group = 0; group < groups; ++group) {
      RotaryArgs one = *this;
      one.tensor_count = 0;
      for (int i = 0; i < tensor_count; ++i) {
        if (group >= tensors[i].groups()) continue;
        one.tensors[one.tensor_count++] = tensors[i].of_group(group, item_size(dtype));
      }
      for (int i = one.tensor_count; i < tensor_count; ++i) one.tensors[i] = RotaryTensor{};
      visit(one);
    }
  }

  // visit(args) once, or for one head after the other where their angles differ.
  template <typename Visit>
  void for_each_frequencies(const Visit& visit) const {
    const int64_t heads = angle_heads();
    if (heads == 1) return visit(*this);
    for (int64_t head = 0; head < heads; ++head) visit(of_head(head));
  }
};

// Gradients of a rotation x -> out with respect to x, frequencies and positions; see
// cpu/rotary_gradient.cc. Sums are float64.
struct RotaryGradientArgs {
  static constexpr int64_t kTokensOfPiece = 32;

  RotaryArgs turned;      // the rotation backwards: gradient of out -> gradient of x
  const void* x[2] = {};  // what was rotated, with strides in elements
  HeadStrides x_strides[2];
  bool inverse = false;              // of the rotation forwards
  const double* radians = nullptr;   // inv_freq, [terms, heads, pairs]; of the CPU alone
  double* frequency_sums = nullptr;  // [terms, heads, pairs]; the CPU's [pieces, ...], zeros
  double* position_sums = nullptr;   // [axes, rows], the CPU's zeros; null if nobody asks
  void* workspace = nullptr;         // of CUDA alone: cuda::gradient_workspace(args) bytes

  int64_t pieces() const { return (turned.rows() + kTokensOfPiece - 1) / kTokensOfPiece; }
  POSENC_HD int64_t frequency_count() const {
    return turned.inv_freq.terms() * turned.inv_freq.heads * turned.pairs;
  }
  POSENC_HD int64_t position_axes() const {
    return turned.axis_map.data != nullptr ? turned.axis_map.axes : turned.inv_freq.terms();
  }
};

// A rotation by angles that data decide: in the row of a token and pair, the state before the row
// and all steps of the pair up to the token, summed as phases (core/phases.h).
struct SelectiveArgs {
  RotaryArgs rotary;  // whose phases are set for some tokens at a time
  const void* steps = nullptr;
  Dtype steps_dtype = Dtype::kFloat32;
  HeadStrides steps_strides;  // dim: from pair to pair
  int64_t heads = 1;          // of steps; so many neighbors of q, and of k, share those of one
  const int64_t* state = nullptr;
  HeadStrides state_strides;  // batch: from row to row
  // Packed rows begin at these tokens, [rows + 1]. Else every row of the batch is one.
  Positions starts;
  int64_t starts_stride = 0, rows = 0;
  int64_t* after = nullptr;   // the states after the rows, [rows, heads, P] in C order
  void* workspace = nullptr;  // of CUDA alone: cuda::selective_workspace(args) bytes

  // Of row i; never outside of the tokens, since starts may have changed since they were looked at.
  int64_t first_token(int64_t i) const {
    if (starts.data == nullptr) return 0;
    return std::clamp<int64_t>(starts.at(i * starts_stride).integer, 0, rotary.tokens);
  }
  int64_t token_count(int64_t i) const {
    if (starts.data == nullptr) return rotary.tokens;
    return std::max<int64_t>(first_token(i + 1) - first_token(i), 0);
  }
  StepBlock block(int64_t batch, int64_t first_head, int64_t head_count, int64_t first_token,
                  int64_t token_count) const {
    const HeadStrides& strides = steps_strides;
    const int64_t at =
        batch * strides.batch + first_head * strides.head + first_token * strides.token;
    StepBlock block;
    block.steps = static_cast<const char*>(steps) + at * item_size(steps_dtype);
    block.dtype = steps_dtype;
    block.tokens = token_count;
    block.heads = head_count;
    block.pairs = rotary.pairs;
    block.token_stride = strides.token;
    block.head_stride = strides.head;
    block.pair_stride = strides.dim;
    return block;
  }
};

// Its gradients: the rotation backwards, gradient of out -> gradient of x, and of the steps.
struct SelectiveGradientArgs {
  SelectiveArgs turned;
  const void* x[2] = {};  // what was rotated, with strides in elements
  HeadStrides x_strides[2];
  bool inverse = false;  // of the rotation forwards
  void* steps_gradient = nullptr;
  HeadStrides gradient_strides;  // dim: from pair to pair
};

enum class AnglesFrom { kPositions, kTables, kSteps };

// The options of a rotation: what a rotary function takes beside the tensors that it turns.
//
// This is their one declaration below Python. The bindings read their arguments by `for_each`, and
// torch's schemas, defaults included, are made of it. A new option is a field, a line of `for_each`
// and a check in rotary.cc; a reader gets a new method only for a new kind of value.
struct RotaryOptions {
  const Array* positions = nullptr;  // null: first_position, first_position + 1 ...
  int64_t first_position = 0;
  const Array* inv_freq = nullptr;
  const Array* axis_map = nullptr;  // may be null
  const Array* cosine = nullptr;
  const Array* sine = nullptr;
  const Array* rows = nullptr;  // of the tables; null: every token has its own
  const Array* steps = nullptr;
  const Array* state = nullptr;   // may be null
  const Array* starts = nullptr;  // may be null
  // Letters of b, s, g, h, d or t, g, h, d in memory-axis order; g: groups of heads, h: of a group.
  std::string_view layout = "bhsd";
  std::string_view pairing = "half";  // or "interleaved", or the block size as a number
  int64_t rotary_start = 0;
  double scale = 1.0;
  bool inverse = false;
  std::string_view compute = "float32";  // or "as_written"
  // Of k, where they are not those of q.
  const Array* k_positions = nullptr;
  const Array* k_cosine = nullptr;
  const Array* k_sine = nullptr;
  const Array* k_rows = nullptr;
  int64_t k_start = -1;                   // negative: that of q
  std::string_view out_pairing = "same";  // as `pairing`, or as that is written

  // Shows a reader each option with its name, in the order in which all functions take them.
  template <typename Reader>
  constexpr void for_each(AnglesFrom angles, Reader& reader) {
    const bool computed = angles == AnglesFrom::kPositions;
    if (angles == AnglesFrom::kSteps) return for_each_of_steps(reader);
    if (computed) {
      reader.positions("positions", positions, first_position);
      reader.array("inv_freq", inv_freq);
    } else {
      reader.array("cos", cosine);
      reader.array("sin", sine);
    }
    reader.text("layout", layout);
    reader.pairing("pairing", pairing);
    reader.integer("rotary_start", rotary_start);
    if (computed) {
      reader.optional_array("axis_map", axis_map);
      reader.number("scale", scale);
    }
    reader.boolean("inverse", inverse);
    if (computed) {
      reader.optional_array("k_positions", k_positions);
    } else {
      reader.text("compute", compute);
      reader.optional_array("rows", rows);
      reader.optional_array("axis_map", axis_map);
      reader.optional_array("k_cos", k_cosine);
      reader.optional_array("k_sin", k_sine);
      reader.optional_array("k_rows", k_rows);
    }
    reader.integer("k_start", k_start);
    reader.pairing("out_pairing", out_pairing);
  }

  template <typename Reader>
  constexpr void for_each_of_steps(Reader& reader) {
    reader.array("steps", steps);
    reader.optional_array("state", state);
    reader.optional_array("starts", starts);
    reader.text("layout", layout);
    reader.pairing("pairing", pairing);
    reader.integer("rotary_start", rotary_start);
    reader.number("scale", scale);
    reader.boolean("inverse", inverse);
    reader.pairing("out_pairing", out_pairing);
  }

  // Whether q and k have tokens of their own; and whether they are turned one by one.
  bool own_tokens() const {
    return k_positions != nullptr || k_cosine != nullptr || k_sine != nullptr || k_rows != nullptr;
  }
  bool apart() const { return own_tokens() || k_start >= 0; }

  AnglesFrom angles() const {
    return steps != nullptr    ? AnglesFrom::kSteps
           : cosine != nullptr ? AnglesFrom::kTables
                               : AnglesFrom::kPositions;
  }
};

// How many options there are, and how many of them are arrays and texts, whose memory somebody has
// to hold.
struct RotaryOptionCount {
  size_t all = 0, arrays = 0, texts = 0;

  constexpr RotaryOptionCount() = default;
  constexpr explicit RotaryOptionCount(AnglesFrom angles) {
    RotaryOptions options;
    options.for_each(angles, *this);
  }

  constexpr void array(const char* /*name*/, const Array* /*value*/) { ++all, ++arrays; }
  constexpr void output(const char* /*name*/, const Array* /*value*/) { ++all, ++arrays; }
  constexpr void optional_array(const char* /*name*/, const Array* /*value*/) { ++all, ++arrays; }
  constexpr void positions(const char* name, const Array* value, int64_t /*first*/) {
    optional_array(name, value);
  }
  constexpr void text(const char* /*name*/, std::string_view /*value*/) { ++all, ++texts; }
  constexpr void pairing(const char* /*name*/, std::string_view /*value*/) { ++all, ++texts; }
  constexpr void integer(const char* /*name*/, int64_t /*value*/) { ++all; }
  constexpr void number(const char* /*name*/, double /*value*/) { ++all; }
  constexpr void boolean(const char* /*name*/, bool /*value*/) { ++all; }
  constexpr void optional_output(const char* name, const Array* value) {
    optional_array(name, value);
  }
};

// What a caller passes, before any check: the options and the tensors in[i] -> out[i].
struct RotaryCall : RotaryOptions {
  const char* function = "";
  const char* names[2] = {"x", "k"};
  const char* out_names[2] = {"out", "out"};  // where out is not in
  const Array* in[2] = {};
  const Array* out[2] = {};
  int tensor_count = 0;
};

// What a call comes to: all its tensors at once, or q and then k where they share no angles. All of
// it is checked before any of it runs.
struct RotaryParts {
  RotaryArgs first;
  std::optional<RotaryArgs> second;
};

// Frequencies in turns are left to the caller, who owns their memory (turns_from_frequencies).
RotaryParts check_rotary_parts(const RotaryCall& call);

// The same for callers that know one part, and one stride of heads: others are refused.
RotaryArgs check_rotary(const RotaryCall& call);

// `call` is the rotation forwards, but for its tensors, which are the gradients of out and of x;
// x[i] has the shape and dtype of in[i]. Memory of sums and radians is left to the caller.
RotaryGradientArgs check_rotary_gradient(RotaryCall call, const Array* const* x);

// The shape of the states of a call: without the axes that its layout lacks.
struct StateShape {
  int64_t shape[3];
  int rank = 0;
};

// `call` has steps; memory for the states after it is the caller's, who sets `after`.
SelectiveArgs check_selective(const RotaryCall& call, StateShape& states);

// As check_rotary_gradient; steps_gradient is like the steps.
SelectiveGradientArgs check_selective_gradient(RotaryCall call, const Array* const* x,
                                               const Array& steps_gradient);

}  // namespace posenc
