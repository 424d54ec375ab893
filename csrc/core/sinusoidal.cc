#include "core/sinusoidal.h"

#include <cmath>
#include <limits>
#include <string>

#include "core/frequency.h"

namespace posenc {
namespace {

void copy_strides(const Array& array, int first, int count, int64_t* to) {
  for (int i = 0; i < count; ++i) to[i] = array.stride[first + i];
}

// Points the two halves of a row at the memory of `array`, as the layout says.
template <typename Pointer>
void split_row(const SinusoidalSpec& spec, const Array& array, Pointer& sine, Pointer& cosine,
               int64_t& step) {
  const int64_t stride = array.stride[array.rank - 1];
  const int64_t size = item_size(array.dtype);
  char* const first = static_cast<char*>(array.data);
  const bool interleaved = spec.layout == "interleaved";
  // Of nothing, strides may be any numbers.
  const int64_t apart = array.empty() ? 0 : size * stride * (interleaved ? 1 : spec.dim / 2);
  char* const second = first + apart;
  const bool sine_first = spec.layout != "cos_sin";
  sine = sine_first ? first : second;
  cosine = sine_first ? second : first;
  step = interleaved && !array.empty() ? 2 * stride : stride;
}

void set_rows(SinusoidalArgs& args, const int64_t* shape, int rank) {
  args.rank = rank;
  for (int i = 0; i < rank; ++i) args.shape[i] = shape[i];
}

// Rows from positions (minus `leading` axes), or `count` of them.
void set_positions(SinusoidalArgs& args, const Array* positions, int64_t count, int leading) {
  if (positions == nullptr) {
    set_rows(args, &count, 1);
    args.position_strides[0] = 1;
    return;
  }
  set_rows(args, positions->shape + leading, positions->rank - leading);
  copy_strides(*positions, leading, args.rank, args.position_strides);
  args.positions = {positions->data, positions->dtype, leading ? positions->stride[0] : 0};
}

void set_output(SinusoidalArgs& args, const SinusoidalSpec& spec, const Array& out) {
  args.dtype = out.dtype;
  args.spec = spec;
  args.pairs = spec.dim / 2;
  copy_strides(out, 0, args.rank, args.sine_strides);
  copy_strides(out, 0, args.rank, args.cosine_strides);
  split_row(spec, out, args.sine, args.cosine, args.sine_step);
  args.cosine_step = args.sine_step;
  args.interleaved = spec.layout == "interleaved";
}

}  // namespace

void check_sinusoidal_spec(const char* function, const SinusoidalSpec& spec) {
  if (spec.dim < 0 || spec.dim % 2 != 0) {
    fail_value(function, "dim", "an even number of dimensions", shown(spec.dim));
  }
  if (spec.layout != "interleaved" && spec.layout != "sin_cos" && spec.layout != "cos_sin") {
    fail_value(function, "layout", "'interleaved', 'sin_cos' or 'cos_sin'",
               "'" + std::string(spec.layout) + "'");
  }
  if (!(spec.base >= std::numeric_limits<double>::min()) || std::isinf(spec.base)) {
    fail_value(function, "base", "a positive finite number", shown(spec.base));
  }
  const double pairs = static_cast<double>(spec.dim / 2);
  if (!std::isfinite(spec.shift) || (pairs > 0 && !(spec.shift < pairs))) {
    fail_value(function, "shift", "a number below dim / 2 = " + std::to_string(spec.dim / 2),
               shown(spec.shift));
  }
  // Frequencies rise or fall along the pairs: the ends bound them all. Past e^700 the exponential
  // itself overflows.
  const double power = pairs > 1 ? -std::log(spec.base) * (pairs - 1) / (pairs - spec.shift) : 0.0;
  if (!(std::fabs(spec.scale) * std::exp(std::fmax(power, 0.0)) < kMaxFrequency)) {
    fail_value(function, "scale", "frequencies scale * base^(-i / (dim/2 - shift)) below 2^63",
               "scale = " + shown(spec.scale) + ", base = " + shown(spec.base));
  }
  const double step = pairs > 1 ? std::log(spec.base) / (pairs - spec.shift) : 0.0;
  if (!(std::fabs(step) < 700.0)) {
    fail_value(function, "shift", "a ratio of neighboring frequencies below e^700",
               shown(spec.shift));
  }
}

void turns_from_spec(const SinusoidalSpec& spec, uint64_t* fraction, uint64_t* whole) {
  sinusoidal_turns(spec.dim / 2, spec.base, spec.shift, spec.scale, [&](int64_t i, Turns turns) {
    fraction[i] = turns.fraction;
    whole[i] = turns.whole;
  });
}

void check_result_size(const char* function, const int64_t* shape, int rank, int64_t dim,
                       Dtype dtype) {
  if (rank + 1 > kMaxRank) {
    fail_value(function, "positions", "at most " + std::to_string(kMaxRank - 1) + " axes",
               std::to_string(rank));
  }
  bool empty = dim == 0;
  for (int i = 0; i < rank; ++i) empty = empty || shape[i] == 0;
  if (empty) return;
  int64_t bytes = item_size(dtype);
  const auto grow = [&](int64_t size) {
    if (bytes > std::numeric_limits<int64_t>::max() / size) {
      fail_value(function, "positions", "a result of less than 2^63 bytes",
                 "shape " + to_string(shape, rank) + " with dim = " + std::to_string(dim));
    }
    bytes *= size;
  };
  grow(dim);
  for (int i = 0; i < rank; ++i) grow(shape[i]);
}

SinusoidalArgs check_sinusoidal(const char* function, const Array* positions, int64_t count,
                                const SinusoidalSpec& spec, const Array& out) {
  check_real(function, "out", out);
  SinusoidalArgs args;
  if (positions != nullptr) check_positions(function, *positions);
  set_positions(args, positions, count, 0);
  int64_t shape[kMaxRank];
  for (int i = 0; i < args.rank; ++i) shape[i] = args.shape[i];
  shape[args.rank] = spec.dim;
  check_output(function, "out", out, shape, args.rank + 1, out);
  if (positions != nullptr && may_overlap(out, *positions)) {
    fail_value(function, "out", "no memory in common with positions", "an overlap");
  }
  set_output(args, spec, out);
  return args;
}

SinusoidalArgs check_add_sinusoidal(const char* function, const Array& x, const Array* positions,
                                    const SinusoidalSpec& spec, double x_scale, double alpha,
                                    const Array& out) {
  check_real(function, "x", x);
  check_factor(function, "x_scale", x_scale, x.dtype);
  check_factor(function, "alpha", alpha, x.dtype);
  if (x.rank < 2) fail_value(function, "x", "shape [..., seq, dim]", shape_string(x));
  check_output(function, "out", out, x.shape, x.rank, x);
  check_overlap(function, "out", out, "x", x);
  SinusoidalArgs args;
  set_rows(args, x.shape, x.rank - 1);
  const int last = args.rank - 1;
  if (positions == nullptr) {
    args.position_strides[last] = 1;
  } else {
    check_positions(function, *positions);
    // One for every row; axes of 1 before the last stand for any number of rows.
    const auto repeats = [&](int i) { return i < last && positions->shape[i] == 1; };
    bool full = positions->rank == args.rank;
    for (int i = 0; full && i < args.rank; ++i) {
      full = positions->shape[i] == x.shape[i] || repeats(i);
    }
    if (full) {
      for (int i = 0; i < args.rank; ++i) {
        args.position_strides[i] = repeats(i) ? 0 : positions->stride[i];
      }
    } else if (positions->rank == 1 && positions->shape[0] == x.shape[last]) {
      args.position_strides[last] = positions->stride[0];
    } else {
      fail_value(function, "positions",
                 "shape [seq] = " + to_string(x.shape + last, 1) + " or x.shape[:-1] = " +
                     to_string(x.shape, args.rank) + " (any axis except seq may be 1)",
                 shape_string(*positions));
    }
    args.positions = {positions->data, positions->dtype, 0};
    if (may_overlap(out, *positions)) {
      fail_value(function, "out", "no memory in common with positions", "an overlap");
    }
  }
  set_output(args, spec, out);
  copy_strides(x, 0, args.rank, args.x_strides);
  split_row(spec, x, args.x_sine, args.x_cosine, args.x_step);
  args.repeated = args.rank > 1;
  for (int i = 0; i < last; ++i) args.repeated = args.repeated && args.position_strides[i] == 0;
  args.scale = alpha;
  args.x_scale = x_scale;
  return args;
}

SinusoidalArgs check_rotary_tables(const char* function, const Array* positions, int64_t count,
                                   const Array& inv_freq, const Array* axis_map, double scale,
                                   const Array& cosine, const Array& sine) {
  SinusoidalArgs args;
  args.inv_freq = check_frequencies(function, inv_freq);
  check_real(function, "dtype", cosine);
  check_factor(function, "scale", scale, cosine.dtype);
  args.pairs = inv_freq.shape[0];
  if (positions != nullptr) check_positions(function, *positions);
  if (axis_map != nullptr) {
    if (positions == nullptr || positions->rank < 1) {
      fail_value(function, "positions", "shape [A, ...] with axis_map",
                 positions == nullptr ? "a count" : shape_string(*positions));
    }
    args.axis_map = check_axis_map(function, *axis_map, args.pairs, positions->shape[0]);
  }
  set_positions(args, positions, count, axis_map != nullptr);
  int64_t shape[kMaxRank];
  for (int i = 0; i < args.rank; ++i) shape[i] = args.shape[i];
  shape[args.rank] = args.pairs;
  check_output(function, "cos", cosine, shape, args.rank + 1, cosine);
  check_output(function, "sin", sine, shape, args.rank + 1, cosine);
  args.dtype = cosine.dtype;
  args.cosine = cosine.data;
  args.sine = sine.data;
  copy_strides(cosine, 0, args.rank, args.cosine_strides);
  copy_strides(sine, 0, args.rank, args.sine_strides);
  args.cosine_step = cosine.stride[args.rank];
  args.sine_step = sine.stride[args.rank];
  args.scale = scale;
  return args;
}

}  // namespace posenc
