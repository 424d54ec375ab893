// Fresh memory of large results: the system clears it page by page when it is first written, which
// takes several times as long as what an operation does there. In pages of 2 MiB it takes a quarter
// of that. Where Linux gives them on request alone (transparent_hugepage "madvise", the default of
// many), memory is asked for them, as NumPy does for its arrays; elsewhere there is nothing to ask.
// The memory of a result does not grow by it: such a page lies within the result or is not used.
// What an allocator gives out again after the result keeps the advice, as after NumPy's arrays.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace posenc {

// Results that are as large as NumPy's for which it asks: two such pages.
constexpr int64_t kHugePageBytes = int64_t{1} << 22;

// `data`: memory of a result that was just allocated. What the system answers changes no result.
inline void advise_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__)
  if (bytes < kHugePageBytes) return;
  // Whole pages: the first one has the allocator's header, the last one its rest.
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
