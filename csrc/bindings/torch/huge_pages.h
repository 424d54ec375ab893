// Huge pages for large results. The system clears fresh memory page by page when it is first
// written; for a large result that takes several times as long as the operation itself. In pages of
// 2 MiB it takes a quarter of that. Where Linux gives them on request alone (transparent_hugepage
// "madvise", the default of many), we ask for them, as NumPy does for its arrays; elsewhere there
// is nothing to ask. A result takes no more memory by it: such a page lies within the result or is
// not used. Memory that an allocator gives out again keeps the advice, as after NumPy's arrays.
//
// A result given as `out` costs no page fault at all, but reuse ends there: no module keeps results
// behind its caller's back.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace posenc {

// Results from two such pages on, as NumPy does.
constexpr int64_t kHugePageBytes = int64_t{1} << 22;

// `data` is the memory of a new result. The call may fail: the result is the same.
inline void advise_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__)
  if (bytes < kHugePageBytes) return;
  // Whole pages: the first one begins with the allocator's header, the last one is left out.
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const auto end =
      (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) / page * page;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
}

}  // namespace posenc
