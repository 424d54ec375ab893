// Rotations as operators.

#include "core/rotary.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <tuple>
#include <vector>

#include "bindings/torch/library.h"
#include "bindings/torch/run.h"
#include "bindings/torch/tensors.h"

namespace posenc::operators {
namespace {

// Where angles come from and how they are applied; what every rotary operator has in common.
struct RotaryOptions {
  const char* function;
  const Tensor* positions = nullptr;
  const Tensor* inv_freq = nullptr;
  const Tensor* axis_map = nullptr;
  const Tensor* cosine = nullptr;
  const Tensor* sine = nullptr;
  std::string_view layout = {}, pairing = {};
  int64_t rotary_start = 0;
  double scale = 1.0;
  bool inverse = false;
  std::string_view compute = "float32";
};

const Tensor* pointer(const OptionalTensor& tensor) { return tensor ? &*tensor : nullptr; }

// The call in[i] -> out[i] for one tensor x or two, q and k, as `use` wants it.
template <typename Use>
void with_call(const RotaryOptions& options, std::initializer_list<const Tensor*> in,
               std::initializer_list<const Tensor*> out, const Use& use) {
  translate_errors([&] {
    const Call tensors(options.function, *in.begin()[0]);
    RotaryCall call;
    call.function = options.function;
    call.tensor_count = static_cast<int>(in.size());
    if (call.tensor_count == 2) call.names[0] = "q";
    Array inputs[2], outputs[2];
    for (int i = 0; i < call.tensor_count; ++i) {
      const Tensor* const from = in.begin()[i];
      const Tensor* const to = out.begin()[i];
      inputs[i] = tensors.describe(call.names[i], *from);
      call.in[i] = &inputs[i];
      call.out[i] = &inputs[i];
      if (from == to) continue;
      outputs[i] = tensors.describe("out", *to);
      call.out[i] = &outputs[i];
    }
    Array others[5];
    int count = 0;
    const auto other = [&](const char* name, const Tensor* tensor) -> const Array* {
      if (tensor == nullptr) return nullptr;
      others[count] = tensors.describe(name, *tensor);
      return &others[count++];
    };
    call.positions = other("positions", options.positions);
    call.inv_freq = other("inv_freq", options.inv_freq);
    call.axis_map = other("axis_map", options.axis_map);
    call.cosine = other("cos", options.cosine);
    call.sine = other("sin", options.sine);
    call.layout = options.layout;
    call.pairing = options.pairing;
    call.rotary_start = options.rotary_start;
    call.scale = options.scale;
    call.inverse = options.inverse;
    call.compute = options.compute;
    use(tensors, call);
  });
}

void rotate(const RotaryOptions& options, std::initializer_list<const Tensor*> in,
            std::initializer_list<const Tensor*> out) {
  with_call(options, in, out,
            [](const Call& tensors, const RotaryCall& call) { run(tensors, check_rotary(call)); });
}

RotaryOptions phase_options(const char* function, const OptionalTensor& positions,
                            const Tensor& inv_freq, std::string_view layout,
                            std::string_view pairing, int64_t rotary_start,
                            const OptionalTensor& axis_map, double scale, bool inverse) {
  RotaryOptions options{function};
  options.positions = pointer(positions);
  options.inv_freq = &inv_freq;
  options.axis_map = pointer(axis_map);
  options.layout = layout;
  options.pairing = pairing;
  options.rotary_start = rotary_start;
  options.scale = scale;
  options.inverse = inverse;
  return options;
}

RotaryOptions table_options(const char* function, const Tensor& cosine, const Tensor& sine,
                            std::string_view layout, std::string_view pairing, int64_t rotary_start,
                            bool inverse, std::string_view compute) {
  RotaryOptions options{function};
  options.cosine = &cosine;
  options.sine = &sine;
  options.layout = layout;
  options.pairing = pairing;
  options.rotary_start = rotary_start;
  options.inverse = inverse;
  options.compute = compute;
  return options;
}

void rotary_out(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq,
                std::string_view layout, std::string_view pairing, int64_t rotary_start,
                const OptionalTensor& axis_map, double scale, bool inverse, const Tensor& out) {
  rotate(phase_options("apply_rotary", positions, inv_freq, layout, pairing, rotary_start, axis_map,
                       scale, inverse),
         {&x}, {&out});
}

Tensor rotary(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq,
              std::string_view layout, std::string_view pairing, int64_t rotary_start,
              const OptionalTensor& axis_map, double scale, bool inverse) {
  const Tensor out = new_like(x);
  rotary_out(x, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse, out);
  return out;
}

void rotary_in_place(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq,
                     std::string_view layout, std::string_view pairing, int64_t rotary_start,
                     const OptionalTensor& axis_map, double scale, bool inverse) {
  rotary_out(x, positions, inv_freq, layout, pairing, rotary_start, axis_map, scale, inverse, x);
}

std::tuple<Tensor, Tensor> rotary_qk(const Tensor& q, const Tensor& k,
                                     const OptionalTensor& positions, const Tensor& inv_freq,
                                     std::string_view layout, std::string_view pairing,
                                     int64_t rotary_start, const OptionalTensor& axis_map,
                                     double scale, bool inverse) {
  const Tensor q_out = new_like(q), k_out = new_like(k);
  rotate(phase_options("apply_rotary_qk", positions, inv_freq, layout, pairing, rotary_start,
                       axis_map, scale, inverse),
         {&q, &k}, {&q_out, &k_out});
  return {q_out, k_out};
}

void rotary_qk_in_place(const Tensor& q, const Tensor& k, const OptionalTensor& positions,
                        const Tensor& inv_freq, std::string_view layout, std::string_view pairing,
                        int64_t rotary_start, const OptionalTensor& axis_map, double scale,
                        bool inverse) {
  rotate(phase_options("apply_rotary_qk", positions, inv_freq, layout, pairing, rotary_start,
                       axis_map, scale, inverse),
         {&q, &k}, {&q, &k});
}

// Gradients of frequencies and positions, in float64: like inv_freq, and [axes, b, s] if wanted.
std::tuple<Tensor, Tensor> rotate_back(const RotaryOptions& options,
                                       std::initializer_list<const Tensor*> grad,
                                       std::initializer_list<const Tensor*> x,
                                       std::initializer_list<const Tensor*> grad_x,
                                       bool of_positions) {
  std::tuple<Tensor, Tensor> result;
  with_call(options, grad, grad_x, [&](const Call& tensors, const RotaryCall& call) {
    Array arrays[2];
    const Array* given[2] = {};
    for (int i = 0; i < call.tensor_count; ++i) {
      arrays[i] = tensors.describe(call.names[i], *x.begin()[i]);
      given[i] = &arrays[i];
    }
    RotaryGradientArgs args = check_rotary_gradient(call, given);
    // The CPU adds to its sums, and has those of all pieces beside each other.
    const auto sums = [&](const std::vector<int64_t>& shape) {
      Tensor tensor = new_tensor(shape, ScalarType::Double, tensors.device);
      if (tensors.device.is_cpu()) torch::stable::zero_(tensor);
      return tensor;
    };
    std::vector<int64_t> shape(call.inv_freq->shape, call.inv_freq->shape + call.inv_freq->rank);
    shape.insert(shape.begin(),
                 tensors.device.is_cpu() ? std::max<int64_t>(args.pieces(), 1) : int64_t{1});
    const Tensor frequencies = sums(shape);
    const Tensor positions =
        of_positions ? sums({args.position_axes(), args.turned.batch, args.turned.tokens})
                     : sums({0});
    args.frequency_sums = static_cast<double*>(frequencies.data_ptr());
    args.position_sums = of_positions ? static_cast<double*>(positions.data_ptr()) : nullptr;
    run(tensors, args);
    result = {torch::stable::select(frequencies, 0, 0), positions};
  });
  return result;
}

std::tuple<Tensor, Tensor, Tensor> rotary_backward(const Tensor& grad, const Tensor& x,
                                                   const OptionalTensor& positions,
                                                   const Tensor& inv_freq, std::string_view layout,
                                                   std::string_view pairing, int64_t rotary_start,
                                                   const OptionalTensor& axis_map, double scale,
                                                   bool inverse, bool of_positions) {
  const Tensor grad_x = new_like(x);
  const auto [frequencies, points] =
      rotate_back(phase_options("apply_rotary", positions, inv_freq, layout, pairing, rotary_start,
                                axis_map, scale, inverse),
                  {&grad}, {&x}, {&grad_x}, of_positions);
  return {grad_x, frequencies, points};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> rotary_qk_backward(
    const Tensor& grad_q, const Tensor& grad_k, const Tensor& q, const Tensor& k,
    const OptionalTensor& positions, const Tensor& inv_freq, std::string_view layout,
    std::string_view pairing, int64_t rotary_start, const OptionalTensor& axis_map, double scale,
    bool inverse, bool of_positions) {
  const Tensor q_out = new_like(q), k_out = new_like(k);
  const auto [frequencies, points] =
      rotate_back(phase_options("apply_rotary_qk", positions, inv_freq, layout, pairing,
                                rotary_start, axis_map, scale, inverse),
                  {&grad_q, &grad_k}, {&q, &k}, {&q_out, &k_out}, of_positions);
  return {q_out, k_out, frequencies, points};
}

void rotary_from_tables_out(const Tensor& x, const Tensor& cosine, const Tensor& sine,
                            std::string_view layout, std::string_view pairing, int64_t rotary_start,
                            bool inverse, std::string_view compute, const Tensor& out) {
  rotate(table_options("apply_rotary_tables", cosine, sine, layout, pairing, rotary_start, inverse,
                       compute),
         {&x}, {&out});
}

Tensor rotary_from_tables(const Tensor& x, const Tensor& cosine, const Tensor& sine,
                          std::string_view layout, std::string_view pairing, int64_t rotary_start,
                          bool inverse, std::string_view compute) {
  const Tensor out = new_like(x);
  rotary_from_tables_out(x, cosine, sine, layout, pairing, rotary_start, inverse, compute, out);
  return out;
}

void rotary_from_tables_in_place(const Tensor& x, const Tensor& cosine, const Tensor& sine,
                                 std::string_view layout, std::string_view pairing,
                                 int64_t rotary_start, bool inverse, std::string_view compute) {
  rotary_from_tables_out(x, cosine, sine, layout, pairing, rotary_start, inverse, compute, x);
}

std::tuple<Tensor, Tensor> rotary_qk_from_tables(const Tensor& q, const Tensor& k,
                                                 const Tensor& cosine, const Tensor& sine,
                                                 std::string_view layout, std::string_view pairing,
                                                 int64_t rotary_start, bool inverse,
                                                 std::string_view compute) {
  const Tensor q_out = new_like(q), k_out = new_like(k);
  rotate(table_options("apply_rotary_qk_tables", cosine, sine, layout, pairing, rotary_start,
                       inverse, compute),
         {&q, &k}, {&q_out, &k_out});
  return {q_out, k_out};
}

void rotary_qk_from_tables_in_place(const Tensor& q, const Tensor& k, const Tensor& cosine,
                                    const Tensor& sine, std::string_view layout,
                                    std::string_view pairing, int64_t rotary_start, bool inverse,
                                    std::string_view compute) {
  rotate(table_options("apply_rotary_qk_tables", cosine, sine, layout, pairing, rotary_start,
                       inverse, compute),
         {&q, &k}, {&q, &k});
}

}  // namespace

// Defaults, because reading an argument takes torch longer than a few of them are worth in
// decoding: calls leave out what they need not say.
#define POSENC_ROTARY                                                               \
  "Tensor? positions, Tensor inv_freq, str layout=\"bhsd\", str pairing=\"half\", " \
  "int rotary_start=0, Tensor? axis_map=None, float scale=1.0, bool inverse=False"
// The same of a backward, which says everything.
#define POSENC_ANGLES                                                                       \
  "Tensor? positions, Tensor inv_freq, str layout, str pairing, int rotary_start, Tensor? " \
  "axis_map, float scale, bool inverse"
#define POSENC_TABLES                                                                       \
  "Tensor cos, Tensor sin, str layout=\"bhsd\", str pairing=\"half\", int rotary_start=0, " \
  "bool inverse=False, str compute=\"float32\""

void define_rotary(Library& m) {
  m.def("rotary(Tensor x, " POSENC_ROTARY ") -> Tensor");
  m.def("rotary_(Tensor(a!) x, " POSENC_ROTARY ") -> ()");
  m.def("rotary_out(Tensor x, " POSENC_ROTARY ", *, Tensor(a!) out) -> ()");
  m.def("rotary_qk(Tensor q, Tensor k, " POSENC_ROTARY ") -> (Tensor, Tensor)");
  m.def("rotary_qk_(Tensor(a!) q, Tensor(b!) k, " POSENC_ROTARY ") -> ()");
  m.def("rotary_backward(Tensor grad, Tensor x, " POSENC_ANGLES
        ", bool of_positions) -> (Tensor, Tensor, Tensor)");
  m.def("rotary_qk_backward(Tensor grad_q, Tensor grad_k, Tensor q, Tensor k, " POSENC_ANGLES
        ", bool of_positions) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("rotary_from_tables(Tensor x, " POSENC_TABLES ") -> Tensor");
  m.def("rotary_from_tables_(Tensor(a!) x, " POSENC_TABLES ") -> ()");
  m.def("rotary_from_tables_out(Tensor x, " POSENC_TABLES ", *, Tensor(a!) out) -> ()");
  m.def("rotary_qk_from_tables(Tensor q, Tensor k, " POSENC_TABLES ") -> (Tensor, Tensor)");
  m.def("rotary_qk_from_tables_(Tensor(a!) q, Tensor(b!) k, " POSENC_TABLES ") -> ()");
}

void implement_rotary(Library& m) {
  m.impl("rotary", TORCH_BOX(&rotary));
  m.impl("rotary_", TORCH_BOX(&rotary_in_place));
  m.impl("rotary_out", TORCH_BOX(&rotary_out));
  m.impl("rotary_qk", TORCH_BOX(&rotary_qk));
  m.impl("rotary_qk_", TORCH_BOX(&rotary_qk_in_place));
  m.impl("rotary_backward", TORCH_BOX(&rotary_backward));
  m.impl("rotary_qk_backward", TORCH_BOX(&rotary_qk_backward));
  m.impl("rotary_from_tables", TORCH_BOX(&rotary_from_tables));
  m.impl("rotary_from_tables_", TORCH_BOX(&rotary_from_tables_in_place));
  m.impl("rotary_from_tables_out", TORCH_BOX(&rotary_from_tables_out));
  m.impl("rotary_qk_from_tables", TORCH_BOX(&rotary_qk_from_tables));
  m.impl("rotary_qk_from_tables_", TORCH_BOX(&rotary_qk_from_tables_in_place));
}

}  // namespace posenc::operators
