// How the rows of a call are run: the Runners of cpu/run.h.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>

#include "bindings/numpy/tensors.h"
#include "bindings/numpy/threads.h"

namespace posenc::numpy {

namespace py = pybind11;

inline std::atomic<int> num_threads{1};
inline std::atomic<int64_t> bytes_per_thread{kBytesPerThread};

// Work of fewer bytes than this is over before another thread could use the interpreter.
constexpr int64_t kKeepInterpreterBytes = int64_t{1} << 17;

// Runs on threads of our own, without the interpreter lock.
inline constexpr auto run_rows = [](int64_t rows, int64_t bytes, const auto& run) {
  if (bytes < kKeepInterpreterBytes) {
    run(int64_t{0}, rows);
    return;
  }
  const py::gil_scoped_release release;
  parallel_rows(rows, bytes, num_threads.load(std::memory_order_relaxed),
                bytes_per_thread.load(std::memory_order_relaxed), run);
};

// Work on tensors that is worth several threads goes to the operator, which has torch's threads.
constexpr int64_t kTensorBytes = int64_t{1} << 21;
inline constexpr auto run_rows_of_tensors = [](int64_t rows, int64_t bytes, const auto& run) {
  if (bytes >= kTensorBytes) throw tensors::Elsewhere{};
  run_rows(rows, bytes, run);
};

}  // namespace posenc::numpy
