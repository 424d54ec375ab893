// Huge pages for large results. The system clears new memory page by page when it is first written;
// for a large result this takes several times as long as the operation itself. With pages of 2 MiB
// it takes a quarter of that. If Linux provides them only on request (transparent_hugepage
// "madvise", the default of many distributions), we request them, as NumPy does for its arrays;
// elsewhere no request is needed. A result takes no more memory: such a page is used only if it is
// within the result. Memory that an allocator reuses keeps the advice, as after NumPy's arrays.
//
// A result in `out` causes no page faults at all, but there is no further reuse: no module keeps
// results without its caller's knowledge.
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
