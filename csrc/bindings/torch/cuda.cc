#include "bindings/torch/cuda.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <optional>

#include "cuda/kernels.h"

namespace posenc::cuda {
namespace {

// torch's function is looked up at run time. A link to it would need libtorch_cuda, which a build
// of torch without CUDA lacks. From torch 2.13 on, Stream::nativeHandle() of the stable ABI
// replaces it.
cudaStream_t current_stream(int32_t device) {
  using GetStream = AOTITorchError (*)(int32_t, void**);
  static const GetStream get_stream = [] {
    void* const library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    return library == nullptr
               ? nullptr
               : reinterpret_cast<GetStream>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
  }();
  STD_TORCH_CHECK(get_stream != nullptr, "posenc_native: this build of torch has no CUDA");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(get_stream(device, &stream));
  return static_cast<cudaStream_t>(stream);
}

// Programmatic dependent launches: unless POSENC_PDL=0 in the environment, with drivers that can
// capture them in graphs.
bool launches_programmatically() {
  static const bool programmatic = [] {
    const char* const wanted = std::getenv("POSENC_PDL");
    return (wanted == nullptr || std::strcmp(wanted, "0") != 0) && driver_version() >= 12040;
  }();
  return programmatic;
}

template <typename Args>
void run_kernel(const char* function, int32_t device, const Args& args,
                cudaError_t (*kernel)(const Args&, Queue)) {
  // Mostly the device is the current one, and to ask takes less time than a guard.
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (torch::stable::accelerator::getCurrentDeviceIndex() != device) guard.emplace(device);
  const cudaError_t error =
      kernel(args, {device, current_stream(device), launches_programmatically()});
  STD_TORCH_CHECK(error == cudaSuccess, function, ": CUDA: ", cudaGetErrorString(error));
}

}  // namespace

void run(const char* function, int32_t device, const RotaryArgs& args) {
  run_kernel(function, device, args, &rotary);
}

void run(const char* function, int32_t device, const SinusoidalArgs& args) {
  run_kernel(function, device, args, &sinusoidal);
}

void rotate_back(const char* function, int32_t device, const RotaryGradientArgs& args) {
  run_kernel(function, device, args, &rotary_gradient);
}

void rotate_by_steps(const char* function, int32_t device, const SelectiveArgs& args) {
  run_kernel(function, device, args, &selective);
}

void rotate_back_by_steps(const char* function, int32_t device, const SelectiveGradientArgs& args) {
  run_kernel(function, device, args, &selective_gradient);
}

void run(const char* function, int32_t device, const NormRotaryArgs& args) {
  run_kernel(function, device, args, &norm_rotary);
}

void norm_rotate_back(const char* function, int32_t device, const NormRotaryGradientArgs& args) {
  run_kernel(function, device, args, &norm_rotary_gradient);
}

void accumulate_phases(const char* function, int32_t device, const AccumulateArgs& args) {
  run_kernel(function, device, args, &accumulated_phases);
}

void write_phase_tables(const char* function, int32_t device, const PhaseTablesArgs& args) {
  run_kernel(function, device, args, &phase_tables);
}

void lay_diagonals(const char* function, int32_t device, const ToeplitzArgs& args) {
  run_kernel(function, device, args, &toeplitz);
}

void sum_diagonals(const char* function, int32_t device, const ToeplitzArgs& args) {
  run_kernel(function, device, args, &diagonal_sums);
}

void gather(const char* function, int32_t device, const RelativeArgs& args) {
  run_kernel(function, device, args, &relative_gather);
}

void scatter(const char* function, int32_t device, const RelativeArgs& args) {
  run_kernel(function, device, args, &relative_scatter);
}

std::string architectures() { return POSENC_CUDA_ARCHITECTURES; }

std::string failure(int32_t device) {
  const torch::stable::accelerator::DeviceGuard guard(device);
  const cudaError_t error = load_kernels();
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

int64_t runtime_version() { return CUDART_VERSION; }

// Asks the driver itself: the runtime would initialize it first, and no forked process could use
// CUDA after that.
int64_t driver_version() {
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY);
  if (library == nullptr) return 0;
  using GetVersion = int (*)(int*);
  const auto get_version = reinterpret_cast<GetVersion>(dlsym(library, "cuDriverGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) version = 0;
  dlclose(library);
  return version;
}

}  // namespace posenc::cuda
