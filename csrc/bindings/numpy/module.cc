// The NumPy module, posenc_native._core: arrays to core structs, checks, kernels. Functions take
// their arguments by position; the reference has the same ones in plain NumPy. Those of the
// submodule `door` are what public functions ask first (door.h). Tests build the module once more,
// over the CUDA kernels run on the host (csrc/cuda/on_host).

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <cstdint>

#include "bindings/numpy/arguments.h"
#include "bindings/numpy/description.h"
#include "bindings/numpy/methods.h"
#include "bindings/numpy/run.h"
#include "bindings/numpy/tensors.h"
#include "cpu/kernels.h"

// The module without its guard (below).
PYBIND11_MODULE(unguarded, m, pybind11::mod_gil_not_used()) {
  namespace cpu = posenc::cpu;
  using namespace posenc::numpy;
  if (cpu::available_targets().empty()) {
    throw py::import_error("it was built for a newer processor (POSENC_TARGETS)");
  }
  empty_like.load();
  // pybind11 finds NumPy in its first use, without the interpreter lock: a daemon thread whose
  // first call the end of the interpreter meets there would abort the process.
  py::detail::npy_api::get();
  cpu::set_non_temporal_bytes(0);  // reads a file: not by the first call, beside which one may fork
  py::module_ door = m.def_submodule("door");
  define_sinusoidal(m, door);
  define_rotary(m, door);
  define_norm_rotary(m, door);
  define_relative(m);
  define_phases(m);
  define_relative_door(door);
  define_bound(door);
  define_bound_rotary(m);
  define_bound_tables(m);
#if defined(POSENC_CUDA_ON_HOST)
  define_cuda_on_host(m);
#endif
  m.def("use_tensors",
        [](py::handle tensor, py::handle parameter, py::handle empty_like, py::handle float32,
           py::handle increment, const py::tuple& addresses, const py::tuple& keys,
           const py::dict& forward_mode, const py::set& registered, const py::tuple& kernels,
           const py::tuple& gpu_kernels, uintptr_t runners) {
          return posenc::tensors::Library::get().use(tensor, parameter, empty_like, float32,
                                                     increment, addresses, keys, forward_mode,
                                                     registered, kernels, gpu_kernels, runners);
        });
  m.def("use_gpu", [](int index) { posenc::tensors::Library::get().use_gpu(index); });
  m.def("stand_in", [](bool so) { posenc::tensors::Library::get().stand_in(so); });
  m.def("use_tables", [](const py::type& type) {
    tables_type = reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr());
  });
  m.def("use_rotary", [](const py::type& type) {
    rotary_type = reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr());
  });
  m.def("set_num_threads", [](int n) { num_threads.store(n, std::memory_order_relaxed); });
  m.def("get_num_threads", [] { return num_threads.load(std::memory_order_relaxed); });
  // For tests: small calls on several threads. 0 restores the default.
  m.def("set_bytes_per_thread", [](int64_t bytes) {
    bytes_per_thread.store(bytes > 0 ? bytes : posenc::kBytesPerThread, std::memory_order_relaxed);
  });
  m.def("available_targets", &cpu::available_targets);
  m.def("current_target", &cpu::current_target);
  m.def("set_target", &cpu::set_target);
  m.def("set_non_temporal_bytes", &cpu::set_non_temporal_bytes);
}

// The entry point. In a sub-interpreter pybind11 would wait for the lock of the main one, which its
// own thread holds: for ever.
#define POSENC_ENTRY_OF(name) PyInit_##name
#define POSENC_ENTRY(name) POSENC_ENTRY_OF(name)
extern "C" PYBIND11_EXPORT PyObject* POSENC_ENTRY(POSENC_MODULE)() {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError,
                    "posenc_native: the native module runs in the main interpreter only, not in "
                    "sub-interpreters");
    return nullptr;
  }
  return PyInit_unguarded();
}
