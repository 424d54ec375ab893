// The torch operators, on libtorch's stable ABI: tensors to core structs, checks, and kernels,
// those of the CPU on torch's thread pool or those of CUDA (torch_cuda.cc). No autograd here;
// posenc_native/torch_ops.py adds it, with the fake tensors and vmap rules. Error messages begin
// with the Python exception they stand for, which the same file raises.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bindings/huge_pages.h"
#include "bindings/torch_cuda.h"
#include "core/lookup.h"
#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "core/toeplitz.h"
#include "cpu/kernels.h"
#include "cpu/run.h"

namespace posenc {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

// --- Arguments

struct DtypeEntry {
  ScalarType torch;
  Dtype ours;
  const char* name;
};

constexpr DtypeEntry kDtypes[] = {
    {ScalarType::Half, Dtype::kFloat16, "float16"},
    {ScalarType::BFloat16, Dtype::kBFloat16, "bfloat16"},
    {ScalarType::Float, Dtype::kFloat32, "float32"},
    {ScalarType::Double, Dtype::kFloat64, "float64"},
    {ScalarType::Char, Dtype::kInt8, "int8"},
    {ScalarType::Byte, Dtype::kUInt8, "uint8"},
    {ScalarType::Short, Dtype::kInt16, "int16"},
    {ScalarType::UInt16, Dtype::kUInt16, "uint16"},
    {ScalarType::Int, Dtype::kInt32, "int32"},
    {ScalarType::UInt32, Dtype::kUInt32, "uint32"},
    {ScalarType::Long, Dtype::kInt64, "int64"},
    {ScalarType::UInt64, Dtype::kUInt64, "uint64"},
    {ScalarType::Bool, Dtype::kOther, "bool"},
    {ScalarType::ComplexFloat, Dtype::kOther, "complex64"},
    {ScalarType::ComplexDouble, Dtype::kOther, "complex128"},
};

DtypeEntry dtype_of(ScalarType type) {
  for (const DtypeEntry& entry : kDtypes) {
    if (entry.torch == type) return entry;
  }
  return {type, Dtype::kOther, "a dtype that is none of these"};
}

// Where the first tensor of a call is, and all others have to be.
struct Device {
  int32_t type = aoti_torch_device_type_cpu(), index = 0;

  Device() = default;
  explicit Device(const Tensor& tensor) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &index));
  }
  bool is_cpu() const { return type == aoti_torch_device_type_cpu(); }
  bool operator!=(const Device& other) const {
    return type != other.type || (index != other.index && !is_cpu());
  }
  std::string name() const {
    if (is_cpu()) return "cpu";
    const char* const kind = type == aoti_torch_device_type_cuda() ? "cuda" : "another kind";
    return std::string(kind) + ":" + std::to_string(index);
  }
};

// One call: its function's name, for messages, and its device.
struct Call {
  const char* function;
  Device device;

  Call(const char* name, const Tensor& first) : function(name), device(first) {}

  Array describe(const char* name, const Tensor& tensor) const {
    if (const Device other(tensor); other != device) {
      fail_value(function, name, "a tensor on " + device.name(), other.name());
    }
    Array array;
    const DtypeEntry dtype = dtype_of(tensor.scalar_type());
    array.dtype = dtype.ours;
    array.dtype_name = dtype.name;
    array.readable = device.is_cpu();
    array.data = tensor.data_ptr();
    array.rank = static_cast<int>(tensor.dim());
    if (array.rank > kMaxRank) {
      fail_value(function, name, "at most " + std::to_string(kMaxRank) + " axes",
                 std::to_string(array.rank));
    }
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    for (int i = 0; i < array.rank; ++i) {
      array.shape[i] = sizes[i];
      array.stride[i] = strides[i];
    }
    return array;
  }

  std::optional<Array> describe(const char* name, const OptionalTensor& tensor) const {
    if (!tensor.has_value()) return std::nullopt;
    return describe(name, *tensor);
  }
};

const Array* pointer(const std::optional<Array>& array) { return array ? &*array : nullptr; }

void advise_huge_pages(const Tensor& result) {
  const auto size = static_cast<int64_t>(result.element_size());
  posenc::advise_huge_pages(result.data_ptr(), result.numel() * size);
}

// Past this boundary an error is a RuntimeError with a text.
template <typename Body>
auto translate_errors(Body body) {
  try {
    return body();
  } catch (const Error& error) {
    throw std::runtime_error((error.kind == Error::kType ? "TypeError: " : "ValueError: ") +
                             error.message);
  }
}

// All results come from here: past the dispatcher, which would take longer than small calls do.
Tensor allocate(const int64_t* shape, const int64_t* strides, int rank, ScalarType dtype,
                const Device& device) {
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      rank, shape, strides,
      static_cast<int32_t>(torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype))),
      device.type, device.is_cpu() ? 0 : device.index, &handle));
  Tensor tensor(handle);
  if (device.is_cpu()) advise_huge_pages(tensor);
  return tensor;
}

Tensor new_tensor(const std::vector<int64_t>& shape, ScalarType dtype, const Device& device) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return allocate(shape.data(), strides.data(), static_cast<int>(shape.size()), dtype, device);
}

// Whether a tensor's elements fill their memory: then empty_like keeps its strides.
bool is_dense(const int64_t* shape, const int64_t* strides, int rank) {
  int axes[kMaxRank], count = 0;
  for (int i = 0; i < rank; ++i) {
    if (shape[i] == 0) return false;
    if (shape[i] > 1) axes[count++] = i;
  }
  std::sort(axes, axes + count, [&](int a, int b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  for (int i = 0; i < count; ++i) {
    if (strides[axes[i]] != expected) return false;
    expected *= shape[axes[i]];
  }
  return true;
}

// torch.empty_like.
Tensor new_like(const Tensor& x) {
  const auto shape = x.sizes(), strides = x.strides();
  const int rank = static_cast<int>(x.dim());
  if (rank <= kMaxRank && is_dense(shape.data(), strides.data(), rank)) {
    return allocate(shape.data(), strides.data(), rank, x.scalar_type(), Device(x));
  }
  Tensor tensor = torch::stable::empty_like(x);
  if (tensor.is_cpu()) advise_huge_pages(tensor);
  return tensor;
}

// --- Running

// The Runner of cpu/run.h: torch's threads, for what takes longer than to wake them: below, two are
// no faster than one.
constexpr int64_t kBytesPerTorchThread = int64_t{1} << 20;
constexpr auto run_rows = [](int64_t rows, int64_t bytes, const auto& run) {
  if (bytes < 2 * kBytesPerTorchThread) {
    run(int64_t{0}, rows);
    return;
  }
  const int64_t ranges = std::min(bytes / kBytesPerTorchThread, rows);
  torch::stable::parallel_for(0, rows, (rows + ranges - 1) / ranges, run);
};

void run([[maybe_unused]] const Call& call, const SinusoidalArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) return cuda::run(call.function, call.device.index, args);
#endif
  cpu::write_sinusoidal(args, run_rows);
}

void run([[maybe_unused]] const Call& call, const RotaryArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) return cuda::run(call.function, call.device.index, args);
#endif
  cpu::rotate(args, run_rows);
}

void run([[maybe_unused]] const Call& call, RotaryGradientArgs args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) {
    const Tensor workspace =
        new_tensor({cuda::gradient_workspace(args)}, ScalarType::Byte, call.device);
    args.workspace = workspace.data_ptr();
    return cuda::rotate_back(call.function, call.device.index, args);
  }
#endif
  cpu::rotate_back(args, run_rows);
}

void lay_diagonals([[maybe_unused]] const Call& call, const ToeplitzArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) return cuda::lay_diagonals(call.function, call.device.index, args);
#endif
  cpu::lay_diagonals(args, run_rows);
}

void sum_diagonals([[maybe_unused]] const Call& call, const ToeplitzArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) return cuda::sum_diagonals(call.function, call.device.index, args);
#endif
  cpu::sum_diagonals(args, run_rows);
}

void gather([[maybe_unused]] const Call& call, const RelativeArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) return cuda::gather(call.function, call.device.index, args);
#endif
  cpu::gather(args, run_rows);
}

void scatter([[maybe_unused]] const Call& call, const RelativeArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) return cuda::scatter(call.function, call.device.index, args);
#endif
  cpu::scatter(args, run_rows);
}

// --- Sinusoidal

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

// --- Rotary

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

// --- Relative. Lengths are those of the tensors where a list is empty: a traced call then holds
// for every length. For the same reason tracing has results made before the call, by the operators
// with `out`; those that make them, of lengths that are numbers, are for all other calls.

using Integers = std::vector<int64_t>;
// Not given where tensors say it. An empty list would do as well, but torch 2.13 leaves those out
// of what it compiles ahead of time (AOTInductor).
using GivenIntegers = std::optional<Integers>;

// Whether the shape is the right one is seen where the result is described.
Tensor new_result(const char* function, const Tensor& like, const Integers& shape,
                  ScalarType dtype) {
  return translate_errors([&] {
    const Call call(function, like);
    if (std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; })) {
      fail_value(function, "result", "lengths >= 0",
                 to_string(shape.data(), static_cast<int>(shape.size())));
    }
    return new_tensor(shape, dtype, call.device);
  });
}

// The shape of a tensor but for its last axis.
Integers with_last(const Tensor& tensor, int64_t last) {
  const auto sizes = tensor.sizes();
  Integers shape(sizes.begin(), sizes.end());
  if (!shape.empty()) shape.back() = last;
  return shape;
}

class ToeplitzOptions {
 public:
  // `matrices`: [..., q_len, k_len].
  ToeplitzOptions(const Call& call, const Array& matrices, const Array& diagonals,
                  const GivenIntegers& q_len, const GivenIntegers& k_len,
                  const GivenIntegers& start, const std::optional<Array>& q_offset)
      : q_len_(q_len.value_or(Integers())),
        k_len_(k_len.value_or(Integers())),
        start_(start.value_or(Integers())) {
    if (q_len_.empty() && k_len_.empty()) {
      if (matrices.rank < 2) {
        fail_value(call.function, "scores", "shape [..., H, q_len, k_len]", shape_string(matrices));
      }
      q_len_ = {matrices.shape[matrices.rank - 2]};
      k_len_ = {matrices.shape[matrices.rank - 1]};
    }
    if (start_.empty()) {
      for (const int64_t length : q_len_) start_.push_back(length - 1);
    }
    if (k_len_.size() != q_len_.size() || start_.size() != q_len_.size() ||
        q_len_.size() > static_cast<size_t>(kMaxGridRank)) {
      fail_value(call.function, "q_len", "as many lengths as k_len, at most three",
                 std::to_string(q_len_.size()));
    }
    call_.function = call.function;
    call_.diagonals = &diagonals;
    call_.q_offset = pointer(q_offset);
    call_.grid_rank = static_cast<int>(q_len_.size());
    call_.q_len = q_len_.data();
    call_.k_len = k_len_.data();
    call_.origin = start_.data();
  }
  ToeplitzOptions(const ToeplitzOptions&) = delete;
  ToeplitzOptions& operator=(const ToeplitzOptions&) = delete;

  ToeplitzCall of(const Array* scores, const Array* out) const {
    ToeplitzCall call = call_;
    call.scores = scores;
    call.out = out;
    return call;
  }

 private:
  Integers q_len_, k_len_, start_;
  ToeplitzCall call_;
};

void toeplitz_bias_out(const Tensor& diagonals, const GivenIntegers& q_len,
                       const GivenIntegers& k_len, const GivenIntegers& start,
                       const OptionalTensor& q_offset, const Tensor& out) {
  translate_errors([&] {
    const Call call("toeplitz_bias", diagonals);
    const Array given = call.describe("diagonals", diagonals);
    const std::optional<Array> offset = call.describe("q_offset", q_offset);
    const Array result = call.describe("out", out);
    const ToeplitzOptions options(call, result, given, q_len, k_len, start, offset);
    lay_diagonals(call, check_toeplitz(options.of(nullptr, &result)));
  });
}

Tensor toeplitz_bias(const Tensor& diagonals, Integers shape, ScalarType dtype,
                     const GivenIntegers& q_len, const GivenIntegers& k_len,
                     const GivenIntegers& start, const OptionalTensor& q_offset) {
  const Tensor out = new_result("toeplitz_bias", diagonals, shape, dtype);
  toeplitz_bias_out(diagonals, q_len, k_len, start, q_offset, out);
  return out;
}

void add_toeplitz_bias_out(const Tensor& scores, const Tensor& diagonals,
                           const GivenIntegers& q_len, const GivenIntegers& k_len,
                           const GivenIntegers& start, const OptionalTensor& q_offset,
                           const Tensor& out) {
  translate_errors([&] {
    const Call call("add_toeplitz_bias", scores);
    const Array input = call.describe("scores", scores);
    const Array given = call.describe("diagonals", diagonals);
    const std::optional<Array> offset = call.describe("q_offset", q_offset);
    const Array result = call.describe("out", out);
    const ToeplitzOptions options(call, input, given, q_len, k_len, start, offset);
    lay_diagonals(call, check_toeplitz(options.of(&input, &result)));
  });
}

void add_toeplitz_bias_in_place(const Tensor& scores, const Tensor& diagonals,
                                const GivenIntegers& q_len, const GivenIntegers& k_len,
                                const GivenIntegers& start, const OptionalTensor& q_offset) {
  add_toeplitz_bias_out(scores, diagonals, q_len, k_len, start, q_offset, scores);
}

Tensor add_toeplitz_bias(const Tensor& scores, const Tensor& diagonals, const GivenIntegers& q_len,
                         const GivenIntegers& k_len, const GivenIntegers& start,
                         const OptionalTensor& q_offset) {
  const Tensor out = new_like(scores);
  add_toeplitz_bias_out(scores, diagonals, q_len, k_len, start, q_offset, out);
  return out;
}

// The result has the last `keep` leading axes of grad, and as many entries as there are distances
// where `entries` are not given.
Tensor diagonal_sums(const Tensor& grad, int64_t keep, const GivenIntegers& q_len,
                     const GivenIntegers& k_len, const GivenIntegers& entries,
                     const GivenIntegers& start, const OptionalTensor& q_offset) {
  return translate_errors([&] {
    const Call call("diagonal_sums", grad);
    const Array input = call.describe("grad", grad);
    check_real(call.function, "grad", input);
    const std::optional<Array> offset = call.describe("q_offset", q_offset);
    if (input.rank < 2 || keep < 0 || keep > input.rank - 2) {
      fail_value(call.function, "grad", "shape [..., q_len, k_len] with the leading axes to keep",
                 shape_string(input));
    }
    Integers shape(input.shape + input.rank - 2 - keep, input.shape + input.rank - 2);
    if (entries) {
      shape.insert(shape.end(), entries->begin(), entries->end());
    } else {
      const bool grid = q_len && k_len && q_len->size() == k_len->size();
      for (size_t i = 0; i < (grid ? q_len->size() : 1); ++i) {
        const int64_t queries = grid ? (*q_len)[i] : input.shape[input.rank - 2];
        const int64_t keys = grid ? (*k_len)[i] : input.shape[input.rank - 1];
        shape.push_back(std::max<int64_t>(queries + keys - 1, 0));
      }
    }
    const bool wide = sum_dtype(input.dtype) == Dtype::kFloat64;
    const Tensor sums =
        new_tensor(shape, wide ? ScalarType::Double : ScalarType::Float, call.device);
    const Array result = call.describe("diagonals", sums);
    const ToeplitzOptions options(call, input, result, q_len, k_len, start, offset);
    sum_diagonals(call, check_diagonal_sums(options.of(&input, nullptr)));
    return sums;
  });
}

// What gather and scatter take; `call` points into the arrays. k_len is that of the result, as is
// the width of a scatter.
struct RelativeOptions {
  RelativeOptions(const Call& tensors, const char* in_name, const Tensor& x,
                  const OptionalTensor& indices, std::optional<int64_t> start,
                  const OptionalTensor& offsets, std::optional<int64_t> missing, double scale,
                  const Tensor& out)
      : in(tensors.describe(in_name, x)),
        result(tensors.describe("out", out)),
        index(tensors.describe("index", indices)),
        q_offset(tensors.describe("q_offset", offsets)) {
    call.function = tensors.function;
    call.in = &in;
    call.index = pointer(index);
    call.q_offset = pointer(q_offset);
    call.out = &result;
    call.size = result.rank > 0 ? result.shape[result.rank - 1] : 0;
    call.origin = start.value_or(in.rank > 1 ? in.shape[in.rank - 2] - 1 : 0);
    call.has_missing = missing.has_value();
    call.missing = missing.value_or(0);
    call.scale = scale;
  }
  RelativeOptions(const RelativeOptions&) = delete;
  RelativeOptions& operator=(const RelativeOptions&) = delete;

  Array in, result;
  std::optional<Array> index, q_offset;
  RelativeCall call;
};

void relative_gather_out(const Tensor& x, const OptionalTensor& index, std::optional<int64_t> start,
                         const OptionalTensor& q_offset, std::optional<int64_t> missing,
                         const OptionalTensor& content, double scale, const Tensor& out) {
  translate_errors([&] {
    const Call call("relative_gather", x);
    RelativeOptions options(call, "x", x, index, start, q_offset, missing, scale, out);
    const std::optional<Array> added = call.describe("content", content);
    options.call.content = pointer(added);
    gather(call, check_relative_gather(options.call));
  });
}

Tensor relative_gather(const Tensor& x, const OptionalTensor& index, std::optional<int64_t> start,
                       const OptionalTensor& q_offset, std::optional<int64_t> missing,
                       const OptionalTensor& content, double scale, int64_t k_len) {
  const Tensor out = new_result("relative_gather", x, with_last(x, k_len), x.scalar_type());
  relative_gather_out(x, index, start, q_offset, missing, content, scale, out);
  return out;
}

// `order` and `bounds`: see core/lookup.h.
void relative_scatter_out(const Tensor& grad, const OptionalTensor& index,
                          std::optional<int64_t> start, const OptionalTensor& q_offset,
                          std::optional<int64_t> missing, double scale, const OptionalTensor& order,
                          const OptionalTensor& bounds, const Tensor& out) {
  translate_errors([&] {
    const Call call("relative_scatter", grad);
    RelativeOptions options(call, "grad", grad, index, start, q_offset, missing, scale, out);
    const std::optional<Array> by_column = call.describe("order", order);
    const std::optional<Array> begins = call.describe("bounds", bounds);
    options.call.order = pointer(by_column);
    options.call.bounds = pointer(begins);
    scatter(call, check_relative_scatter(options.call));
  });
}

Tensor relative_scatter(const Tensor& grad, const OptionalTensor& index,
                        std::optional<int64_t> start, const OptionalTensor& q_offset,
                        std::optional<int64_t> missing, double scale, const OptionalTensor& order,
                        const OptionalTensor& bounds, int64_t width) {
  const Tensor out =
      new_result("relative_scatter", grad, with_last(grad, width), grad.scalar_type());
  relative_scatter_out(grad, index, start, q_offset, missing, scale, order, bounds, out);
  return out;
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

// --- SIMD targets, as in the NumPy module

std::string current_target() { return cpu::current_target(); }
bool set_target(std::string_view name) { return cpu::set_target(name); }

// --- What CUDA kernels there are, for posenc_native/torch_cuda.py to judge

#ifdef POSENC_CUDA_ARCHITECTURES
std::string cuda_architectures() { return cuda::architectures(); }
std::tuple<int64_t, int64_t> cuda_versions() {
  return {cuda::runtime_version(), cuda::driver_version()};
}
std::string cuda_failure(int64_t device) { return cuda::failure(static_cast<int32_t>(device)); }
#else
std::string cuda_architectures() { return ""; }
std::string cuda_failure(int64_t /*device*/) { return "not built"; }
std::tuple<int64_t, int64_t> cuda_versions() { return {0, 0}; }
#endif

}  // namespace
}  // namespace posenc

#define POSENC_SPEC "float base, str layout, float shift, float scale"
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

#define POSENC_DIAGONALS \
  "int[]? q_len=None, int[]? k_len=None, int[]? start=None, Tensor? q_offset=None"
#define POSENC_COLUMNS "Tensor? index, int? start, Tensor? q_offset, int? missing"

STABLE_TORCH_LIBRARY(posenc_native, m) {
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
  m.def("toeplitz_bias(Tensor diagonals, int[] shape, ScalarType dtype, " POSENC_DIAGONALS
        ") -> Tensor");
  m.def("toeplitz_bias_out(Tensor diagonals, " POSENC_DIAGONALS ", *, Tensor(a!) out) -> ()");
  m.def("add_toeplitz_bias(Tensor scores, Tensor diagonals, " POSENC_DIAGONALS ") -> Tensor");
  m.def("add_toeplitz_bias_(Tensor(a!) scores, Tensor diagonals, " POSENC_DIAGONALS ") -> ()");
  m.def("add_toeplitz_bias_out(Tensor scores, Tensor diagonals, " POSENC_DIAGONALS
        ", *, Tensor(a!) out) -> ()");
  m.def(
      "diagonal_sums(Tensor grad, int keep, int[]? q_len, int[]? k_len, int[]? entries, int[]? "
      "start, "
      "Tensor? q_offset) -> Tensor");
  m.def("relative_gather(Tensor x, " POSENC_COLUMNS
        ", Tensor? content, float scale, int k_len) -> Tensor");
  m.def("relative_gather_out(Tensor x, " POSENC_COLUMNS
        ", Tensor? content, float scale, *, Tensor(a!) out) -> ()");
  m.def("relative_scatter(Tensor grad, " POSENC_COLUMNS
        ", float scale, Tensor? order, Tensor? bounds, int width) -> Tensor");
  m.def("relative_scatter_out(Tensor grad, " POSENC_COLUMNS
        ", float scale, Tensor? order, Tensor? bounds, *, Tensor(a!) out) -> ()");
  m.def("frequency_turns(Tensor inv_freq) -> Tensor");
  m.def("sinusoidal_turns(int dim, float base, float shift, float scale) -> Tensor");
  m.def("current_target() -> str");
  m.def("set_target(str name) -> bool");
  m.def("cuda_architectures() -> str");
  m.def("cuda_versions() -> (int, int)");
  m.def("cuda_failure(int device) -> str");
}

// The same functions for every device: they look where their tensors are.
template <typename Library>
void implement(Library& m) {
  m.impl("sinusoidal", TORCH_BOX(&posenc::sinusoidal));
  m.impl("sinusoidal_out", TORCH_BOX(&posenc::sinusoidal_out));
  m.impl("add_sinusoidal", TORCH_BOX(&posenc::add_sinusoidal));
  m.impl("add_sinusoidal_", TORCH_BOX(&posenc::add_sinusoidal_in_place));
  m.impl("add_sinusoidal_out", TORCH_BOX(&posenc::add_sinusoidal_out));
  m.impl("rotary_tables", TORCH_BOX(&posenc::rotary_tables));
  m.impl("rotary", TORCH_BOX(&posenc::rotary));
  m.impl("rotary_", TORCH_BOX(&posenc::rotary_in_place));
  m.impl("rotary_out", TORCH_BOX(&posenc::rotary_out));
  m.impl("rotary_qk", TORCH_BOX(&posenc::rotary_qk));
  m.impl("rotary_qk_", TORCH_BOX(&posenc::rotary_qk_in_place));
  m.impl("rotary_backward", TORCH_BOX(&posenc::rotary_backward));
  m.impl("rotary_qk_backward", TORCH_BOX(&posenc::rotary_qk_backward));
  m.impl("rotary_from_tables", TORCH_BOX(&posenc::rotary_from_tables));
  m.impl("rotary_from_tables_", TORCH_BOX(&posenc::rotary_from_tables_in_place));
  m.impl("rotary_from_tables_out", TORCH_BOX(&posenc::rotary_from_tables_out));
  m.impl("rotary_qk_from_tables", TORCH_BOX(&posenc::rotary_qk_from_tables));
  m.impl("rotary_qk_from_tables_", TORCH_BOX(&posenc::rotary_qk_from_tables_in_place));
  m.impl("toeplitz_bias", TORCH_BOX(&posenc::toeplitz_bias));
  m.impl("toeplitz_bias_out", TORCH_BOX(&posenc::toeplitz_bias_out));
  m.impl("add_toeplitz_bias", TORCH_BOX(&posenc::add_toeplitz_bias));
  m.impl("add_toeplitz_bias_", TORCH_BOX(&posenc::add_toeplitz_bias_in_place));
  m.impl("add_toeplitz_bias_out", TORCH_BOX(&posenc::add_toeplitz_bias_out));
  m.impl("diagonal_sums", TORCH_BOX(&posenc::diagonal_sums));
  m.impl("relative_gather", TORCH_BOX(&posenc::relative_gather));
  m.impl("relative_gather_out", TORCH_BOX(&posenc::relative_gather_out));
  m.impl("relative_scatter", TORCH_BOX(&posenc::relative_scatter));
  m.impl("relative_scatter_out", TORCH_BOX(&posenc::relative_scatter_out));
}

STABLE_TORCH_LIBRARY_IMPL(posenc_native, CPU, m) {
  implement(m);
  m.impl("frequency_turns", TORCH_BOX(&posenc::frequency_turns));
}

#ifdef POSENC_CUDA_ARCHITECTURES
STABLE_TORCH_LIBRARY_IMPL(posenc_native, CUDA, m) { implement(m); }
#endif

STABLE_TORCH_LIBRARY_IMPL(posenc_native, CompositeExplicitAutograd, m) {
  m.impl("sinusoidal_turns", TORCH_BOX(&posenc::sinusoidal_turns));
  m.impl("current_target", TORCH_BOX(&posenc::current_target));
  m.impl("set_target", TORCH_BOX(&posenc::set_target));
  m.impl("cuda_architectures", TORCH_BOX(&posenc::cuda_architectures));
  m.impl("cuda_versions", TORCH_BOX(&posenc::cuda_versions));
  m.impl("cuda_failure", TORCH_BOX(&posenc::cuda_failure));
}
