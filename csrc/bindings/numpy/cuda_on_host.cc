// How the CUDA kernels are run on the host, and what was launched: for tests.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/numpy/methods.h"
#include "cuda/on_host/blocks.h"

namespace posenc::numpy {
namespace {

using cuda::on_host::simulation;

// All of it: what is not given is as it was in the beginning. Calls that are not run are planned
// for a GPU with so many multiprocessors, and kernels with so many registers.
void simulate(uint64_t seed, bool writes_at_the_end, const std::string& run,
              int64_t multiprocessors, int64_t registers) {
  using cuda::on_host::Run, cuda::on_host::Writes;
  const auto runs = {
      std::pair{"all", Run::kAll}, {"nothing", Run::kNothing}, {"samples", Run::kSamples}};
  for (const auto& [name, value] : runs) {
    if (run != name) continue;
    simulation.seed = seed;
    simulation.writes = writes_at_the_end ? Writes::kAtTheEnd : Writes::kAtOnce;
    simulation.run = value;
    simulation.room = cuda::on_host::kSmallRoom;
    if (value != Run::kAll) {
      simulation.room = {};
      simulation.room.gpu.multiprocessors = multiprocessors;
      simulation.room.registers = registers;
    }
    return;
  }
  throw py::value_error("simulate: run: expected 'all', 'nothing' or 'samples', got '" + run + "'");
}

// Those since the last question, of calls that were not run.
py::list launches() {
  py::list list;
  for (const cuda::on_host::Launch& launch : std::exchange(simulation.launches, {})) {
    py::dict one;
    one["kernel"] = launch.kernel;
    one["pieces"] = py::make_tuple(launch.pieces_x, launch.pieces_y);
    one["grid"] = py::make_tuple(launch.grid_x, launch.grid_y);
    one["block"] = py::make_tuple(launch.threads_x, launch.threads_y, launch.threads_z);
    one["shared_bytes"] = launch.shared_bytes;
    one["places"] = launch.places;
    one["sampled"] = py::make_tuple(launch.sampled_x, launch.sampled_y);
    one["bytes"] = launch.bytes;
    list.append(one);
  }
  return list;
}

}  // namespace

void define_cuda_on_host(py::module_& m) {
  m.def("simulate", &simulate, py::arg("seed") = 1, py::arg("writes_at_the_end") = false,
        py::arg("run") = "all", py::arg("multiprocessors") = 132, py::arg("registers") = 128);
  m.def("launches", &launches);
}

}  // namespace posenc::numpy
