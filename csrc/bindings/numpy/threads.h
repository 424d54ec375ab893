// Runs ranges of rows on several threads of the NumPy module.
//
// Threads are started for each call that is large enough and joined before it returns. Nothing
// outlives a call, so a forked child has a clean state, and there is no second thread pool beside
// torch's or BLAS's. Starting and joining a thread takes 50 to 80 microseconds. Waking a waiting
// thread takes little less if an idle core must be woken.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace posenc {

// The least work for a thread. Fewer bytes are done before it has begun.
constexpr int64_t kBytesPerThread = int64_t{1} << 22;

// `bytes` is what all rows together read and write. What run(begin, end) throws on any thread, as
// where there is no memory, is thrown here when all have ended.
template <typename Run>
void parallel_rows(int64_t rows, int64_t bytes, int max_threads, int64_t bytes_per_thread,
                   const Run& run) {
  const int64_t threads = std::min<int64_t>({max_threads, bytes / bytes_per_thread, rows});
  if (threads <= 1) {
    run(int64_t{0}, rows);
    return;
  }
  // Each thread has a part of a few ranges, and helps the others when it is done: one of them may
  // have started late, or its core may be slow. The parts are the same in every call, so that
  // memory stays in the cache of a core.
  const int64_t range = std::max<int64_t>((rows + 4 * threads - 1) / (4 * threads), 1);
  const auto begin_of = [&](int64_t part) { return rows * part / threads; };
  std::vector<std::atomic<int64_t>> next(static_cast<size_t>(threads));
  for (int64_t i = 0; i < threads; ++i) next[static_cast<size_t>(i)] = begin_of(i);
  std::exception_ptr failure;
  std::atomic<bool> failed{false};
  const auto do_parts = [&](int64_t own) {
    // The first thread, which is there whatever becomes of the others, looks at all parts. Another
    // one helps those 1, 2, 4 ... further: were all to look at all, the looks would be the square
    // of the threads.
    for (int64_t i = 0; i < threads; i = own == 0 || i == 0 ? i + 1 : 2 * i) {
      const int64_t part = (own + i) % threads, end = begin_of(part + 1);
      for (;;) {
        const int64_t begin =
            next[static_cast<size_t>(part)].fetch_add(range, std::memory_order_relaxed);
        if (begin >= end) break;
        run(begin, std::min(begin + range, end));
      }
    }
  };
  const auto work = [&](int64_t own) {
    try {
      do_parts(own);
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  try {
    others.reserve(static_cast<size_t>(threads - 1));
    for (int64_t i = 1; i < threads; ++i) others.emplace_back(work, i);
  } catch (const std::exception&) {
    // The system has no more threads, or no memory for one: those that there are do the work.
  }
  work(0);
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace posenc
