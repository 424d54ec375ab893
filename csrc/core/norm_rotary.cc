#include "core/norm_rotary.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace posenc {
namespace {

constexpr const char* kWeightNames[] = {"q_weight", "k_weight"};
constexpr const char* kNames[] = {"q", "k"};
constexpr const char* kCacheNames[] = {"keys", "values"};
constexpr const char* kScaleNames[] = {"k_scale", "v_scale"};
constexpr const char* kMadeScaleNames[] = {"scales[0]", "scales[1]"};

// The rotation alone.
RotaryCall rotation_of(const NormRotaryCall& call) {
  RotaryCall rotation;
  static_cast<RotaryOptions&>(rotation) = call;
  rotation.function = call.function;
  rotation.tensor_count = 2;
  rotation.names[0] = kNames[0];
  for (int i = 0; i < 2; ++i) {
    rotation.in[i] = call.in[i];
    rotation.out[i] = call.out[i];
    rotation.out_names[i] = call.out_names[i];
  }
  return rotation;
}

void check_weight(const NormRotaryCall& call, int tensor, NormRotaryArgs& args) {
  if (call.weights[tensor] == nullptr) return;
  const Array& weight = *call.weights[tensor];
  const char* const name = kWeightNames[tensor];
  check_real(call.function, name, weight);
  const int64_t heads = args.rotary.tensors[tensor].heads, dims = args.rotary.head_dim;
  NormWeight& read = args.weights[tensor];
  read = {weight.data, weight.dtype, 1, 0, 1};
  if (weight.rank == 2 && weight.shape[0] == heads && weight.shape[1] == dims) {
    read.heads = heads;
    read.head_stride = weight.stride[0];
    read.dim_stride = weight.stride[1];
  } else if (weight.rank == 1 && weight.shape[0] == (args.over_token ? heads * dims : dims)) {
    read.heads = args.over_token ? heads : 1;
    read.head_stride = args.over_token ? dims * weight.stride[0] : 0;
    read.dim_stride = weight.stride[0];
  } else {
    const std::string by_head = "[" + std::to_string(heads) + ", " + std::to_string(dims) + "]";
    const std::string expected =
        args.over_token
            ? "[H, D] or [H * D] = " + by_head + " or [" + std::to_string(heads * dims) + "]"
            : "[D] or [H, D] = [" + std::to_string(dims) + "] or " + by_head;
    fail_value(call.function, name, "shape " + expected, shape_string(weight));
  }
  // As in the code of models: a weight of the format of x is multiplied with what has been rounded.
  args.rounded_before_weight[tensor] =
      args.rotary.as_written && weight.dtype == args.rotary.dtype && call.weight_offset == 0;
}

void check_norm(const NormRotaryCall& call, NormRotaryArgs& args) {
  check_finite(call.function, "eps", call.eps);
  if (call.eps < 0) fail_value(call.function, "eps", "a number >= 0", shown(call.eps));
  if (call.norm_over != "head" && call.norm_over != "token") {
    fail_value(call.function, "norm_over", "one of head, token",
               "'" + std::string(call.norm_over) + "'");
  }
  check_factor(call.function, "weight_offset", call.weight_offset, args.rotary.dtype);
  if (!call.norm && (call.weights[0] != nullptr || call.weights[1] != nullptr)) {
    fail_value(call.function, "norm", "True if a weight is given", "False");
  }
  if (args.rotary.as_written && call.inv_freq != nullptr && call.inv_freq->rank != 1) {
    fail_value(call.function, "compute",
               "'float32' with frequencies per head (no library has tables for these)",
               "'as_written'");
  }
  args.norm = call.norm;
  args.over_token = call.norm && call.norm_over == "token";
  args.norm_first = call.norm_first;
  args.eps = call.eps;
  args.weight_offset = call.weight_offset;
  check_weight(call, 0, args);
  check_weight(call, 1, args);
}

void check_query_scale(const NormRotaryCall& call, NormRotaryArgs& args) {
  if (call.query_scale == "none") return;
  QueryScale& scale = args.query_scale;
  if (call.query_scale == "llama4") {
    scale.kind = QueryScale::Kind::kLlama4;
  } else if (call.query_scale == "logn") {
    scale.kind = QueryScale::Kind::kLogn;
  } else {
    fail_value(call.function, "query_scale", "one of none, llama4, logn",
               "'" + std::string(call.query_scale) + "'");
  }
  scale.beta = call.query_beta;
  scale.length = call.query_length;
  scale.shift = call.query_shift;
  check_finite(call.function, "query_beta", scale.beta);
  check_finite(call.function, "query_length", scale.length);
  check_finite(call.function, "query_shift", scale.shift);
  if (scale.length <= (scale.kind == QueryScale::Kind::kLogn ? 1 : 0)) {
    fail_value(call.function, "query_length", "a number > 0, or > 1 of logn", shown(scale.length));
  }
  if (call.inv_freq == nullptr || call.axis_map != nullptr || args.rotary.inv_freq.axes > 0) {
    fail_value(call.function, "query_scale", "'none' beside tables or several axes",
               "'" + std::string(call.query_scale) + "'");
  }
  if (args.rotary.as_written) {
    fail_value(call.function, "compute", "'float32' beside a factor of queries", "'as_written'");
  }
}

// The axis of a letter; -1 where a layout has none.
int axis_of(std::string_view layout, char letter) {
  const size_t at = layout.find(letter);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

int64_t stride_of(const Array& array, int axis) { return axis < 0 ? 0 : array.stride[axis]; }

// b, s, h and d of x, whose layout has been checked.
struct Axes {
  int batch, token, head, dim;
  char token_letter;

  explicit Axes(std::string_view layout)
      : batch(axis_of(layout, 'b')),
        token(std::max(axis_of(layout, 's'), axis_of(layout, 't'))),
        head(axis_of(layout, 'h')),
        dim(static_cast<int>(layout.size()) - 1),
        token_letter(axis_of(layout, 't') < 0 ? 's' : 't') {}
};

void check_values(const NormRotaryCall& call, NormRotaryArgs& args) {
  const Array &v = *call.v, &k = *call.in[1];
  check_real(call.function, "v", v);
  if (v.dtype != k.dtype) {
    fail_type(call.function, "v", std::string("the dtype of k, ") + k.dtype_name, v.dtype_name);
  }
  if (v.rank != k.rank || !std::equal(k.shape, k.shape + k.rank - 1, v.shape)) {
    fail_value(call.function, "v", "the shape of k except for d, " + shape_string(k),
               shape_string(v));
  }
  const Axes axes(call.layout);
  args.v_dim = v.shape[axes.dim];
  args.v.in = v.data;
  args.v.heads = args.rotary.tensors[1].heads;
  args.v.in_strides = {stride_of(v, axes.batch), stride_of(v, axes.token), stride_of(v, axes.head),
                       stride_of(v, axes.dim)};
}

bool is_scale(float value) { return value > 0 && value <= std::numeric_limits<float>::max(); }

// What the numbers of a cache are divided by: one number, or of one or all heads.
void check_scale(const NormRotaryCall& call, int i, int64_t heads, Scaling& scaling) {
  const char* const name = kScaleNames[i];
  const Array* const of_heads = call.scales_of_heads[i];
  scaling.value = static_cast<float>(call.scales[i]);
  if (of_heads == nullptr) {
    if (is_scale(scaling.value)) return;
    fail_value(call.function, name, "a positive finite number in float32", shown(call.scales[i]));
  }
  if (of_heads->dtype != Dtype::kFloat32) {
    fail_type(call.function, name, "dtype float32", of_heads->dtype_name);
  }
  const int64_t count = of_heads->rank == 1 ? of_heads->shape[0] : of_heads->rank == 0 ? 1 : -1;
  if (count != 1 && count != heads) {
    fail_value(call.function, name,
               "a number, or shape [1] or [H] = [" + std::to_string(heads) + "]",
               "shape " + shape_string(*of_heads));
  }
  scaling.of_heads = static_cast<const float*>(of_heads->data);
  scaling.head_stride = count == 1 ? 0 : of_heads->stride[0];
  for (int64_t head = 0; of_heads->readable && head < count; ++head) {
    const float value = scaling.of_head(head);
    if (is_scale(value)) continue;
    fail_value(call.function, name, "positive finite numbers", shown(static_cast<double>(value)));
  }
}

// Memory for the scales of a cache: its axes without d.
void check_made_scales(const NormRotaryCall& call, int i, Scaling& scaling) {
  const Array &cache = *call.caches[i], &made = *call.made_scales[i];
  const char* const name = kMadeScaleNames[i];
  if (made.dtype != Dtype::kFloat32) {
    fail_type(call.function, name, "dtype float32", made.dtype_name);
  }
  if (made.rank != cache.rank - 1 || !std::equal(made.shape, made.shape + made.rank, cache.shape)) {
    fail_value(call.function, name,
               std::string("the shape of ") + kCacheNames[i] + " without d, " +
                   to_string(cache.shape, cache.rank - 1),
               shape_string(made));
  }
  const std::string_view layout = call.cache_layout;
  scaling.made = static_cast<float*>(made.data);
  scaling.made_row = stride_of(made, std::max(axis_of(layout, 'b'), axis_of(layout, 'p')));
  scaling.made_slot = made.stride[axis_of(layout, 's')];
  scaling.made_head = made.stride[axis_of(layout, 'h')];
}

void check_scaling(const NormRotaryCall& call, int i, int64_t heads, Scaling& scaling) {
  const Array& cache = *call.caches[i];
  const bool divides = call.scales_of_heads[i] != nullptr || call.scales[i] != 1.0;
  const char* const name = divides ? kScaleNames[i] : kMadeScaleNames[i];
  const bool makes = call.made_scales[i] != nullptr;
  if (!is_eight_bits(cache.dtype)) {
    if (!divides && !makes) return;
    fail_value(call.function, name,
               std::string("None, or ") + kCacheNames[i] + " of float8_e4m3fn, float8_e5m2 or int8",
               std::string(kCacheNames[i]) + " of " + cache.dtype_name);
  }
  if (divides && makes) {
    fail_value(call.function, name, "None beside memory for scales", "a scale");
  }
  scaling.dtype = cache.dtype;
  check_scale(call, i, heads, scaling);
  if (makes) check_made_scales(call, i, scaling);
}

void check_caches(const NormRotaryCall& call, NormRotaryArgs& args) {
  const std::string_view layout = call.cache_layout;
  const int row = std::max(axis_of(layout, 'b'), axis_of(layout, 'p')), slot = axis_of(layout, 's'),
            head = axis_of(layout, 'h'), dim = axis_of(layout, 'd');
  const int rank = row < 0 ? 3 : 4;
  if (static_cast<int>(layout.size()) != rank || slot < 0 || head < 0 || dim != rank - 1) {
    fail_value(call.function, "cache_layout",
               "letters s, h, d and optionally b (batch) or p (pages), each once, ending in d",
               "'" + std::string(layout) + "'");
  }
  args.cache_batch = axis_of(layout, 'b') >= 0;
  args.paged = axis_of(layout, 'p') >= 0;
  CacheTarget* const targets[] = {&args.keys, &args.values};
  const int64_t dims[] = {args.rotary.head_dim, args.v_dim};
  for (int i = 0; i < 2; ++i) {
    const Array& cache = *call.caches[i];
    const char* const name = kCacheNames[i];
    if (cache.dtype != args.rotary.dtype && !is_eight_bits(cache.dtype)) {
      fail_type(call.function, name,
                std::string("the dtype of k, ") + call.in[1]->dtype_name +
                    ", or float8_e4m3fn, float8_e5m2 or int8",
                cache.dtype_name);
    }
    if (cache.rank != rank) {
      fail_value(call.function, name,
                 std::to_string(rank) + " axes for cache_layout '" + std::string(layout) + "'",
                 "shape " + shape_string(cache));
    }
    const int64_t heads = args.rotary.tensors[1].heads;
    if (cache.shape[head] != heads || cache.shape[dim] != dims[i] ||
        (args.cache_batch && cache.shape[row] != args.rotary.batch)) {
      std::string expected =
          "a cache of h = " + std::to_string(heads) + ", d = " + std::to_string(dims[i]);
      if (args.cache_batch) expected += ", b = " + std::to_string(args.rotary.batch);
      fail_value(call.function, name, expected, "shape " + shape_string(cache));
    }
    if (i == 0) {
      args.row_slots = cache.shape[slot];
      args.cache_rows = row < 0 ? 1 : cache.shape[row];
    } else if (cache.shape[slot] != args.row_slots ||
               (row >= 0 && cache.shape[row] != args.cache_rows)) {
      fail_value(call.function, name, "as many slots as keys, " + shape_string(*call.caches[0]),
                 "shape " + shape_string(cache));
    }
    *targets[i] = {cache.data,         stride_of(cache, row), cache.stride[slot],
                   cache.stride[head], cache.stride[dim],     {}};
    check_scaling(call, i, heads, targets[i]->scaling);
  }
}

// Within the cache, and none of them twice: in a row of its batch, or in all of it.
void check_slot_values(const NormRotaryCall& call, const NormRotaryArgs& args) {
  const int64_t all = args.paged ? args.cache_rows * args.row_slots : args.row_slots;
  const bool one_row = args.cache_batch && args.slot_batch_stride == 0;
  const int64_t batches = one_row ? std::min<int64_t>(args.rotary.batch, 1) : args.rotary.batch;
  // Read as int64, what is 2^63 and more is negative.
  const bool is_unsigned = args.slots.dtype == Dtype::kUInt64;
  const int64_t least = is_unsigned ? 0 : -1;
  std::vector<int64_t> written;
  const auto check_once = [&] {
    bool rising = true;
    for (size_t i = 1; i < written.size(); ++i) rising = rising && written[i - 1] < written[i];
    if (rising) return;
    std::sort(written.begin(), written.end());
    const auto twice = std::adjacent_find(written.begin(), written.end());
    if (twice != written.end()) {
      fail_value(call.function, "slots", "no slot twice", std::to_string(*twice) + " twice");
    }
  };
  for (int64_t batch = 0; batch < batches; ++batch) {
    if (args.cache_batch) written.clear();
    for (int64_t token = 0; token < args.rotary.tokens; ++token) {
      const int64_t at = batch * args.slot_batch_stride + token * args.slot_token_stride;
      const int64_t slot = args.slots.at(at).integer;
      if (slot < least || slot >= all) {
        fail_value(call.function, "slots", "-1, or slots 0 .. " + std::to_string(all - 1),
                   is_unsigned ? std::to_string(static_cast<uint64_t>(slot)) : shown(slot));
      }
      if (slot >= 0) written.push_back(slot);
    }
    if (args.cache_batch) check_once();
  }
  if (!args.cache_batch) check_once();
}

void check_slots(const NormRotaryCall& call, NormRotaryArgs& args) {
  const Array& slots = *call.slots;
  if (!is_integer(slots.dtype)) {
    fail_type(call.function, "slots",
              "a dtype of int8, int16, int32, int64, uint8, uint16, uint32, uint64",
              slots.dtype_name);
  }
  const int64_t tokens = args.rotary.tokens, batch = args.rotary.batch;
  const Axes axes(call.layout);
  const bool one_row = slots.rank == 2 && slots.shape[0] == 1;
  if (slots.rank == 1 && slots.shape[0] == tokens) {
    args.slot_token_stride = slots.stride[0];
  } else if (slots.rank == 2 && axes.batch >= 0 && (one_row || slots.shape[0] == batch) &&
             slots.shape[1] == tokens) {
    args.slot_batch_stride = one_row ? 0 : slots.stride[0];
    args.slot_token_stride = slots.stride[1];
  } else {
    std::string expected =
        std::string("shape [") + axes.token_letter + "] = [" + std::to_string(tokens) + "]";
    if (axes.batch >= 0) {
      expected +=
          ", [1, s] or [b, s] = [" + std::to_string(batch) + ", " + std::to_string(tokens) + "]";
    }
    fail_value(call.function, "slots", expected, shape_string(slots));
  }
  // Of no tokens there may be no memory.
  static constexpr int64_t kNone = -1;
  args.slots = {slots.data != nullptr ? slots.data : &kNone, slots.dtype, 0};
  if (slots.readable && !slots.empty()) check_slot_values(call, args);
}

// An array of a call, by its name, and where it is.
struct Named {
  const char* name;
  const Array* array;
  Bounds bounds;

  Named(const char* of, const Array* one)
      : name(of), array(one), bounds(one == nullptr ? Bounds() : Bounds(*one)) {}
};

// What is written has memory of its own, apart from all that is read.
void check_memory(const NormRotaryCall& call) {
  const Named read[] = {{"q", call.in[0]},
                        {"k", call.in[1]},
                        {"v", call.v},
                        {"q_weight", call.weights[0]},
                        {"k_weight", call.weights[1]},
                        {"slots", call.slots},
                        {kScaleNames[0], call.scales_of_heads[0]},
                        {kScaleNames[1], call.scales_of_heads[1]},
                        {"positions", call.positions},
                        {"inv_freq", call.inv_freq},
                        {"axis_map", call.axis_map},
                        {"cos", call.cosine},
                        {"sin", call.sine},
                        {"rows", call.rows}};
  const Named written[] = {{kCacheNames[0], call.caches[0]},
                           {kCacheNames[1], call.caches[1]},
                           {kMadeScaleNames[0], call.made_scales[0]},
                           {kMadeScaleNames[1], call.made_scales[1]}};
  const auto check = [&](const Named& out, const Named& other) {
    if (other.array == nullptr || other.array == out.array || !out.bounds.meet(other.bounds) ||
        !may_overlap(*out.array, *other.array)) {
      return;
    }
    fail_value(call.function, out.name, std::string("no memory in common with ") + other.name,
               "an overlap");
  };
  for (const Named& to : written) {
    if (to.array == nullptr) continue;
    const Array& array = *to.array;
    check_output(call.function, to.name, array, array.shape, array.rank, array);
    for (const Named& one : read) check(to, one);
    for (const Named& other : written) check(to, other);
  }
  // The rest of what a rotation reads has been looked at.
  for (int i = 0; i < 2; ++i) {
    if (call.out[i] == nullptr) continue;
    const Named out(call.out[i] == call.in[i] ? kNames[i] : call.out_names[i], call.out[i]);
    for (const Named& other : written) check(out, other);
    for (int j = 2; j < 8; ++j) check(out, read[j]);
  }
}

}  // namespace

NormRotaryArgs check_norm_rotary(const NormRotaryCall& call) {
  NormRotaryArgs args;
  args.function = call.function;
  if (axis_of(call.layout, 'g') >= 0) {
    fail_value(call.function, "layout",
               "letters of b, s, h, d (or t, h, d), with the heads along one axis",
               "'" + std::string(call.layout) + "'");
  }
  args.rotary = check_rotary(rotation_of(call));
  if (args.rotary.rearranged()) {
    fail_value(call.function, "out_pairing", "that of q and k", std::string(call.out_pairing));
  }
  check_norm(call, args);
  check_query_scale(call, args);
  if (call.v != nullptr) {
    check_values(call, args);
    check_caches(call, args);
    check_slots(call, args);
  }
  check_memory(call);
  return args;
}

NormRotaryGradientArgs check_norm_rotary_gradient(const NormRotaryCall& call,
                                                  const Array* const* grads) {
  NormRotaryGradientArgs args;
  args.forward = check_norm_rotary(call);
  if (!call.norm) fail_value(call.function, "norm", "True for a gradient of the norm", "False");
  const Axes axes(call.layout);
  for (int i = 0; i < 2; ++i) {
    const Array &grad = *grads[i], &x = *call.in[i];
    if (grad.dtype != x.dtype) {
      fail_type(call.function, "grad", x.dtype_name, grad.dtype_name);
    }
    if (grad.rank != x.rank || !std::equal(x.shape, x.shape + x.rank, grad.shape)) {
      fail_value(call.function, "grad", "shape " + shape_string(x), shape_string(grad));
    }
    args.grads[i] = grad.data;
    args.grad_strides[i] = {stride_of(grad, axes.batch), stride_of(grad, axes.token),
                            stride_of(grad, axes.head), stride_of(grad, axes.dim)};
  }
  return args;
}

}  // namespace posenc
