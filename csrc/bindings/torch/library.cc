// The torch operators, torch.ops.posenc_native, on libtorch's stable ABI. An operator describes its
// tensors as core structs, has them checked, and calls kernels: those of the CPU on torch's thread
// pool, or those of CUDA (cuda.cc). Gradients, fake tensors and vmap rules are added in Python
// (posenc_native/engines/torch).
//
// The stable ABI is that of torch 2.10, so one binary serves every later torch and, since it has no
// Python symbol, every Python.

#include "bindings/torch/library.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "bindings/torch/cuda.h"
#include "cpu/kernels.h"

namespace posenc::operators {
namespace {

// SIMD targets, as in the NumPy module.

std::string current_target() { return cpu::current_target(); }
bool set_target(std::string_view name) { return cpu::set_target(name); }

// What CUDA kernels there are: the Python package judges whether they can run.

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

// What every kind of device has.
void implement(Library& m) {
  implement_sinusoidal(m);
  implement_rotary(m);
  implement_norm_rotary(m);
  implement_relative(m);
  implement_phases(m);
}

}  // namespace
}  // namespace posenc::operators

STABLE_TORCH_LIBRARY(posenc_native, m) {
  using namespace posenc::operators;
  define_sinusoidal(m);
  define_rotary(m);
  define_norm_rotary(m);
  define_relative(m);
  define_phases(m);
  define_runners(m);
  m.def("current_target() -> str");
  m.def("set_target(str name) -> bool");
  m.def("cuda_architectures() -> str");
  m.def("cuda_versions() -> (int, int)");
  m.def("cuda_failure(int device) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(posenc_native, CPU, m) {
  posenc::operators::implement(m);
  posenc::operators::implement_turns_on_cpu(m);
}

#ifdef POSENC_CUDA_ARCHITECTURES
STABLE_TORCH_LIBRARY_IMPL(posenc_native, CUDA, m) { posenc::operators::implement(m); }
#endif

STABLE_TORCH_LIBRARY_IMPL(posenc_native, CompositeExplicitAutograd, m) {
  using namespace posenc::operators;
  implement_turns_anywhere(m);
  implement_runners(m);
  m.impl("current_target", TORCH_BOX(&current_target));
  m.impl("set_target", TORCH_BOX(&set_target));
  m.impl("cuda_architectures", TORCH_BOX(&cuda_architectures));
  m.impl("cuda_versions", TORCH_BOX(&cuda_versions));
  m.impl("cuda_failure", TORCH_BOX(&cuda_failure));
}
