// Tables of sines and cosines as operators: sinusoidal encodings, the tables of rotary, and
// frequencies in turns, from which compositions of torch operations make such tables.

#include "core/sinusoidal.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "bindings/torch/library.h"
#include "bindings/torch/run.h"
#include "bindings/torch/tensors.h"
#include "core/angles.h"

namespace posenc::operators {
namespace {

SinusoidalSpec make_spec(const char* function, int64_t dim, double base, std::string_view layout,
                         double shift, double scale) {
  const SinusoidalSpec spec{dim, base, shift, scale, layout};
  check_sinusoidal_spec(function, spec);
  return spec;
}

// positions.shape (less its first `leading` axes) + (last,)
Tensor new_table(const Call& call, const Array& positions, int leading, int64_t last,
                 ScalarType dtype) {
  const DtypeEntry entry = dtype_of(dtype);
  if (!is_real(entry.ours)) {
    fail_type(call.function, "dtype", "float16, bfloat16, float32 or float64", entry.name);
  }
  std::vector<int64_t> shape(positions.shape + leading, positions.shape + positions.rank);
  check_result_size(call.function, shape.data(), static_cast<int>(shape.size()), last, entry.ours);
  shape.push_back(last);
  return new_tensor(shape, dtype, call.device);
}

Tensor sinusoidal(const Tensor& positions, int64_t dim, double base, std::string_view layout,
                  double shift, double scale, ScalarType dtype) {
  return translate_errors([&] {
    const Call call("sinusoidal", positions);
    const Array given = call.describe("positions", positions);
    check_positions(call.function, given);
    const SinusoidalSpec spec = make_spec(call.function, dim, base, layout, shift, scale);
    const Tensor out = new_table(call, given, 0, dim, dtype);
    run(call, check_sinusoidal(call.function, &given, 0, spec, call.describe("out", out)));
    return out;
  });
}

// Without positions, the rows of `out` are 0, 1, 2 ... fresh: `out` was allocated for this call.
void sinusoidal_out(const OptionalTensor& positions, int64_t dim, double base,
                    std::string_view layout, double shift, double scale, const Tensor& out,
                    bool fresh) {
  if (fresh && out.is_cpu()) advise_huge_pages(out);
  translate_errors([&] {
    const Call call("sinusoidal", out);
    const std::optional<Array> given = call.describe("positions", positions);
    const Array result = call.describe("out", out);
    const int64_t count = result.rank > 0 ? result.shape[0] : 0;
    const SinusoidalSpec spec = make_spec(call.function, dim, base, layout, shift, scale);
    run(call, check_sinusoidal(call.function, pointer(given), count, spec, result));
  });
}

void add_sinusoidal_out(const Tensor& x, const OptionalTensor& positions, double x_scale,
                        double alpha, double base, std::string_view layout, double shift,
                        double scale, const Tensor& out) {
  translate_errors([&] {
    const Call call("add_sinusoidal", x);
    const Array input = call.describe("x", x);
    const std::optional<Array> given = call.describe("positions", positions);
    check_real(call.function, "x", input);
    const int64_t dim = input.rank > 0 ? input.shape[input.rank - 1] : 0;
    const SinusoidalSpec spec = make_spec(call.function, dim, base, layout, shift, scale);
    run(call, check_add_sinusoidal(call.function, input, pointer(given), spec, x_scale, alpha,
                                   call.describe("out", out)));
  });
}

void add_sinusoidal_in_place(const Tensor& x, const OptionalTensor& positions, double x_scale,
                             double alpha, double base, std::string_view layout, double shift,
                             double scale) {
  add_sinusoidal_out(x, positions, x_scale, alpha, base, layout, shift, scale, x);
}

Tensor add_sinusoidal(const Tensor& x, const OptionalTensor& positions, double x_scale,
                      double alpha, double base, std::string_view layout, double shift,
                      double scale) {
  const Tensor out = new_like(x);
  add_sinusoidal_out(x, positions, x_scale, alpha, base, layout, shift, scale, out);
  return out;
}

std::tuple<Tensor, Tensor> rotary_tables(const Tensor& positions, const Tensor& inv_freq,
                                         const OptionalTensor& axis_map, double scale,
                                         ScalarType dtype) {
  return translate_errors([&] {
    const Call call("rotary_tables", positions);
    const Array given = call.describe("positions", positions);
    check_positions(call.function, given);
    const Array frequencies = call.describe("inv_freq", inv_freq);
    check_frequencies(call.function, frequencies);
    const std::optional<Array> axes = call.describe("axis_map", axis_map);
    const int leading = axes ? 1 : 0;
    if (given.rank < leading) {
      fail_value(call.function, "positions", "shape [A, ...] with axis_map", shape_string(given));
    }
    const Tensor cosine = new_table(call, given, leading, frequencies.shape[0], dtype);
    const Tensor sine = new_table(call, given, leading, frequencies.shape[0], dtype);
    run(call, check_rotary_tables(call.function, &given, 0, frequencies, pointer(axes), scale,
                                  call.describe("cos", cosine), call.describe("sin", sine)));
    return std::tuple(cosine, sine);
  });
}

// --- Frequencies in turns, for compositions of torch operations on other devices: [2, P] of
// 64-bit patterns, fractions and whole turns.

Tensor frequency_turns(const Tensor& inv_freq) {
  return translate_errors([&] {
    const Call call("frequency_turns", inv_freq);
    const Array array = call.describe("inv_freq", inv_freq);
    const InverseFrequencies frequencies = check_frequencies(call.function, array);
    const int64_t pairs = array.shape[0];
    const Tensor turns = new_tensor({2, pairs}, ScalarType::Long, call.device);
    uint64_t* const data = static_cast<uint64_t*>(turns.data_ptr());
    turns_from_frequencies(frequencies, pairs, data, data + pairs);
    return turns;
  });
}

Tensor sinusoidal_turns(int64_t dim, double base, double shift, double scale) {
  return translate_errors([&] {
    const SinusoidalSpec spec = make_spec("sinusoidal", dim, base, "interleaved", shift, scale);
    const Tensor turns = new_tensor({2, dim / 2}, ScalarType::Long, Device());
    uint64_t* const data = static_cast<uint64_t*>(turns.data_ptr());
    turns_from_spec(spec, data, data + dim / 2);
    return turns;
  });
}

}  // namespace

#define POSENC_SPEC "float base, str layout, float shift, float scale"

void define_sinusoidal(Library& m) {
  m.def("sinusoidal(Tensor positions, int dim, " POSENC_SPEC ", ScalarType dtype) -> Tensor");
  m.def("sinusoidal_out(Tensor? positions, int dim, " POSENC_SPEC
        ", *, Tensor(a!) out, bool fresh=False) -> ()");
  m.def("add_sinusoidal(Tensor x, Tensor? positions, float x_scale, float alpha, " POSENC_SPEC
        ") -> Tensor");
  m.def("add_sinusoidal_(Tensor(a!) x, Tensor? positions, float x_scale, float alpha, " POSENC_SPEC
        ") -> ()");
  m.def("add_sinusoidal_out(Tensor x, Tensor? positions, float x_scale, float alpha, " POSENC_SPEC
        ", *, Tensor(a!) out) -> ()");
  m.def(
      "rotary_tables(Tensor positions, Tensor inv_freq, Tensor? axis_map, float scale, "
      "ScalarType dtype) -> (Tensor, Tensor)");
  m.def("frequency_turns(Tensor inv_freq) -> Tensor");
  m.def("sinusoidal_turns(int dim, float base, float shift, float scale) -> Tensor");
}

void implement_sinusoidal(Library& m) {
  m.impl("sinusoidal", TORCH_BOX(&sinusoidal));
  m.impl("sinusoidal_out", TORCH_BOX(&sinusoidal_out));
  m.impl("add_sinusoidal", TORCH_BOX(&add_sinusoidal));
  m.impl("add_sinusoidal_", TORCH_BOX(&add_sinusoidal_in_place));
  m.impl("add_sinusoidal_out", TORCH_BOX(&add_sinusoidal_out));
  m.impl("rotary_tables", TORCH_BOX(&rotary_tables));
}

void implement_turns_on_cpu(Library& m) { m.impl("frequency_turns", TORCH_BOX(&frequency_turns)); }

void implement_turns_anywhere(Library& m) {
  m.impl("sinusoidal_turns", TORCH_BOX(&sinusoidal_turns));
}

}  // namespace posenc::operators
