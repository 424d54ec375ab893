// Runs ranges of rows on several threads of the NumPy module.
//
// Threads are started for each call that is large enough (about 20 microseconds against the 100
// and more that such a call takes) and joined before it returns: nothing outlives a call, so a
// forked child starts from nothing, and no second thread pool lives beside torch's or BLAS's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "cpu/kernels.h"

namespace posenc {

// run(begin, end) must not throw. `bytes` is what all rows together read and write.
template <typename Run>
void parallel_rows(int64_t rows, int64_t bytes, int max_threads, const Run& run) {
  const int64_t threads = std::min<int64_t>({max_threads, bytes / cpu::kBytesPerThread, rows});
  if (threads <= 1) {
    run(int64_t{0}, rows);
    return;
  }
  // A few ranges per thread, so that one slow core does not hold up the others.
  const int64_t range = std::max<int64_t>((rows + 4 * threads - 1) / (4 * threads), 1);
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (;;) {
      const int64_t begin = next.fetch_add(range, std::memory_order_relaxed);
      if (begin >= rows) return;
      run(begin, std::min(begin + range, rows));
    }
  };
  std::vector<std::thread> others;
  try {
    others.reserve(static_cast<size_t>(threads - 1));
    for (int64_t i = 1; i < threads; ++i) others.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads to be had: those there are do the work.
  }
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace posenc
