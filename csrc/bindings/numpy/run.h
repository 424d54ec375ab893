// How the rows of a call are run: the Runners of cpu/run.h.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "bindings/numpy/threads.h"

namespace posenc::numpy {

namespace py = pybind11;

inline std::atomic<int> num_threads{1};
inline std::atomic<int64_t> bytes_per_thread{kBytesPerThread};

// Work of fewer bytes than this is over before another thread could use the interpreter.
constexpr int64_t kKeepInterpreterBytes = int64_t{1} << 17;

// While it lives, other threads may use the interpreter.
//
// Before 3.14, CPython ends a daemon thread that comes back while the interpreter finalizes, by
// pthread_exit. That unwinds the stack as an exception would: destructors would touch objects
// without the lock, and where nothing may be thrown the process is aborted. So such a thread stays
// here until the process has ended, as in 3.14.
class InterpreterReleased {
 public:
  InterpreterReleased() : state_(PyEval_SaveThread()) {}
  InterpreterReleased(const InterpreterReleased&) = delete;
  InterpreterReleased& operator=(const InterpreterReleased&) = delete;
  ~InterpreterReleased() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // that unwinding: nothing else comes out of a C function
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }

 private:
  PyThreadState* const state_;
};

template <typename Run>
auto without_interpreter(const Run& run) {
  const InterpreterReleased released;
  return run();
}

// Runs on threads of our own, without the interpreter lock.
inline constexpr auto run_rows = [](int64_t rows, int64_t bytes, const auto& run) {
  if (bytes < kKeepInterpreterBytes) {
    run(int64_t{0}, rows);
    return;
  }
  const InterpreterReleased released;
  parallel_rows(rows, bytes, num_threads.load(std::memory_order_relaxed),
                bytes_per_thread.load(std::memory_order_relaxed), run);
};

// Work on tensors that reads and writes so much is worth several threads, which are torch's
// (bindings/runners.h).
constexpr int64_t kTensorBytes = int64_t{1} << 20;

}  // namespace posenc::numpy
