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
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/angles.h"
#include "core/view.h"

namespace posenc {

// Strides of one tensor, in elements; an axis that the layout has not is 0.
struct HeadStrides {
  int64_t batch = 0, token = 0, head = 0, dim = 1;
};

struct RotaryTensor {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t heads = 0;
  HeadStrides in_strides, out_strides;
};

struct RotaryArgs {
  RotaryTensor tensors[2];  // q and k share the angles; a single x is the first
  int tensor_count = 0;
  Dtype dtype = Dtype::kFloat32;
  int64_t batch = 0, tokens = 0, head_dim = 0;

  int64_t pairs = 0;       // P
  int64_t start = 0;       // first rotated dim
  int64_t half_block = 0;  // b/2, the distance between the partners of a pair

  // Angles from positions ...
  Positions positions;
  int64_t position_batch_stride = 0, position_token_stride = 0;
  AxisMap axis_map;
  InverseFrequencies inv_freq;
  Frequencies frequencies;  // the same in turns, where the caller has prepared them
  // ... or from tables, if `cosine` is set.
  const void* cosine = nullptr;
  const void* sine = nullptr;
  Dtype table_dtype = Dtype::kFloat32;
  int64_t cosine_strides[3] = {}, sine_strides[3] = {};  // batch, token, pair

  double scale = 1.0;
  bool inverse = false;
  // Of tables: cosine, sine, each product and the sum rounded to `dtype`, as operations of their
  // own on tensors of it would. Else all is in float32 (float64) and rounded once.
  bool as_written = false;
  bool non_temporal = false;  // write past the cache: set for large outputs by the caller

  POSENC_HD int64_t rows() const { return batch * tokens; }

  // The call for one head alone, where each has its own frequencies.
  RotaryArgs of_head(int64_t head) const {
    RotaryArgs one = *this;
    one.inv_freq = inv_freq.of_head(head);
    if (frequencies.fraction != nullptr) {
      const int64_t first = head * inv_freq.terms() * pairs;
      one.frequencies = {frequencies.fraction + first, frequencies.whole + first};
    }
    for (int i = 0; i < tensor_count; ++i) {
      RotaryTensor& x = one.tensors[i];
      const int64_t size = item_size(dtype);
      x.in = static_cast<const char*>(x.in) + head * x.in_strides.head * size;
      x.out = static_cast<char*>(x.out) + head * x.out_strides.head * size;
      x.heads = 1;
    }
    return one;
  }

  // visit(args) once, or for one head after the other where their frequencies differ.
  template <typename Visit>
  void for_each_frequencies(const Visit& visit) const {
    if (inv_freq.heads == 1) return visit(*this);
    for (int64_t head = 0; head < inv_freq.heads; ++head) visit(of_head(head));
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

enum class AnglesFrom { kPositions, kTables };

// The options of a rotation: what a rotary function takes beside the tensors that it turns.
//
// This is their one declaration below Python. The bindings read their arguments by `for_each`, and
// torch's schemas, defaults included, are made of it. A new option is a field, a line of `for_each`
// and a check in rotary.cc; a reader gets a new method only for a new kind of value.
struct RotaryOptions {
  const Array* positions = nullptr;  // null: 0, 1, 2 ...
  const Array* inv_freq = nullptr;
  const Array* axis_map = nullptr;  // may be null
  const Array* cosine = nullptr;
  const Array* sine = nullptr;
  std::string_view layout = "bhsd";   // letters of b, s, h, d or t, h, d in memory-axis order
  std::string_view pairing = "half";  // or "interleaved", or the block size as a number
  int64_t rotary_start = 0;
  double scale = 1.0;
  bool inverse = false;
  std::string_view compute = "float32";  // or "as_written"
  // Of k, where they are not those of q.
  const Array* k_positions = nullptr;
  const Array* k_cosine = nullptr;
  const Array* k_sine = nullptr;
  int64_t k_start = -1;  // negative: that of q

  // Shows a reader each option with its name, in the order in which all functions take them.
  template <typename Reader>
  constexpr void for_each(AnglesFrom angles, Reader& reader) {
    const bool computed = angles == AnglesFrom::kPositions;
    if (computed) {
      reader.optional_array("positions", positions);
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
    if (!computed) reader.text("compute", compute);
    if (computed) {
      reader.optional_array("k_positions", k_positions);
    } else {
      reader.optional_array("k_cos", k_cosine);
      reader.optional_array("k_sin", k_sine);
    }
    reader.integer("k_start", k_start);
  }

  // Whether q and k have tokens of their own; and whether they are turned one by one.
  bool own_tokens() const { return k_positions != nullptr || k_cosine != nullptr; }
  bool apart() const { return own_tokens() || k_start >= 0; }

  AnglesFrom angles() const {
    return cosine != nullptr ? AnglesFrom::kTables : AnglesFrom::kPositions;
  }
};

// How many options there are, and how many of them are arrays and texts, whose memory somebody has
// to hold.
struct RotaryOptionCount {
  size_t all = 0, arrays = 0, texts = 0;

  constexpr explicit RotaryOptionCount(AnglesFrom angles) {
    RotaryOptions options;
    options.for_each(angles, *this);
  }

  constexpr void array(const char* /*name*/, const Array* /*value*/) { ++all, ++arrays; }
  constexpr void optional_array(const char* /*name*/, const Array* /*value*/) { ++all, ++arrays; }
  constexpr void text(const char* /*name*/, std::string_view /*value*/) { ++all, ++texts; }
  constexpr void pairing(const char* /*name*/, std::string_view /*value*/) { ++all, ++texts; }
  constexpr void integer(const char* /*name*/, int64_t /*value*/) { ++all; }
  constexpr void number(const char* /*name*/, double /*value*/) { ++all; }
  constexpr void boolean(const char* /*name*/, bool /*value*/) { ++all; }
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

// The same for callers that have one part: others are refused.
RotaryArgs check_rotary(const RotaryCall& call);

// `call` is the rotation forwards, but for its tensors, which are the gradients of out and of x;
// x[i] has the shape and dtype of in[i]. Memory of sums and radians is left to the caller.
RotaryGradientArgs check_rotary_gradient(RotaryCall call, const Array* const* x);

}  // namespace posenc
