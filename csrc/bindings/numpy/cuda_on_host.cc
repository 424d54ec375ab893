// How the CUDA kernels are run on the host, and what was launched: for tests.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/numpy/arguments.h"
#include "bindings/numpy/methods.h"
#include "bindings/numpy/run.h"
#include "core/rotary.h"
#include "cpu/run.h"
#include "cuda/on_host/blocks.h"
#include "cuda/selective_steps.cuh"

namespace posenc::numpy {
namespace {

using cuda::on_host::simulation;

// All of it: what is not given is as it was in the beginning. Calls are planned for a GPU with so
// many multiprocessors; those that are not run, for its whole grid and kernels with so many
// registers.
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
      simulation.room.registers = registers;
    }
    simulation.room.gpu.multiprocessors = multiprocessors;
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

// Gradients of what q and k (one of them, or both) were rotated to, and q and k: those of q and k,
// and that of the steps, which the last argument gets.
py::tuple selective_rotary_backward(const py::tuple& grads, const py::tuple& inputs,
                                    py::handle steps, py::handle state, py::handle starts,
                                    const std::string& layout, py::handle pairing,
                                    int64_t rotary_start, double scale, bool inverse,
                                    py::handle out_pairing, py::handle steps_gradient) {
  const char* const function = "selective_rotary_qk";
  RotaryCall call;
  call.function = function;
  call.tensor_count = static_cast<int>(inputs.size());
  if (call.tensor_count < 1 || call.tensor_count > 2 || grads.size() != inputs.size()) {
    throw py::value_error("selective_rotary_backward: expected one or two tensors");
  }
  if (call.tensor_count == 2) call.names[0] = "q";
  ArrayArgument in[2], out[2], x[2];
  const Array* turned[2] = {};
  py::tuple results(inputs.size());
  for (int i = 0; i < call.tensor_count; ++i) {
    const size_t at = static_cast<size_t>(i);
    in[i] = {function, "grad", require_array(function, "grad", grads[at])};
    x[i] = {function, call.names[i], require_array(function, call.names[i], inputs[at])};
    out[i] = {function, "out", empty_like(in[i].object())};
    call.in[i] = &in[i].array();
    call.out[i] = &out[i].array();
    turned[i] = &x[i].array();
    results[at] = out[i].object();
  }
  const ArrayArgument given = optional_array(function, "steps", steps);
  const ArrayArgument before = optional_array(function, "state", state);
  const ArrayArgument rows = optional_array(function, "starts", starts);
  Array where = rows.array();
  where.readable = false;  // as on a GPU: kernels have to be content with any
  const ArrayArgument to = output_array(function, "steps", steps_gradient);
  call.steps = given.pointer();
  call.state = before.pointer();
  call.starts = rows ? &where : nullptr;
  call.layout = layout;
  std::string texts[2];
  call.pairing = pairing_text(function, "pairing", pairing, false, texts[0]);
  call.out_pairing = pairing_text(function, "out_pairing", out_pairing, true, texts[1]);
  call.rotary_start = rotary_start;
  call.scale = scale;
  call.inverse = inverse;
  cpu::rotate_back_by_steps(check_selective_gradient(call, turned, to.array()), 1, run_rows);
  return results;
}

// What kernels make of steps: turns times 2^64, as int64.
py::array_t<int64_t> turns_of_steps(const py::array& steps) {
  const auto count = steps.size();
  py::array_t<int64_t> turns(count);
  int64_t* const to = turns.mutable_data();
  const auto fill = [&](const auto* from) {
    for (py::ssize_t i = 0; i < count; ++i) {
      to[i] = static_cast<int64_t>(cuda::turns_of_step(from[i]));
    }
  };
  if (steps.itemsize() == 4) {
    fill(static_cast<const float*>(steps.data()));
  } else {
    fill(static_cast<const double*>(steps.data()));
  }
  return turns;
}

}  // namespace

void define_cuda_on_host(py::module_& m) {
  m.def("simulate", &simulate, py::arg("seed") = 1, py::arg("writes_at_the_end") = false,
        py::arg("run") = "all", py::arg("multiprocessors") = 132, py::arg("registers") = 128);
  m.def("launches", &launches);
  m.def("selective_rotary_backward", &selective_rotary_backward);
  m.def("turns_of_steps", &turns_of_steps);
}

}  // namespace posenc::numpy
