// Memory with a guard behind it that nobody may touch: a thread that goes too far ends the process.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>

namespace posenc::cuda::on_host {

class GuardedMemory {
 public:
  // It begins at a multiple of kAlignment, so that up to kAlignment - 1 bytes are between it and
  // the guard. All are 0, and take no memory until they are touched.
  static constexpr size_t kAlignment = 16;
  static constexpr size_t kGuardBytes = size_t{1} << 20;

  explicit GuardedMemory(size_t bytes)
      : there_(round_up(bytes, kAlignment)),
        mapped_(round_up(there_, static_cast<size_t>(sysconf(_SC_PAGESIZE))) + kGuardBytes) {
    void* const memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<char*>(memory);
    guard_ = memory_ + mapped_ - kGuardBytes;
    if (mprotect(guard_, kGuardBytes, PROT_NONE) != 0) throw std::bad_alloc();
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() { munmap(memory_, mapped_); }

  char* data() const { return guard_ - there_; }
  char* guard() const { return guard_; }

 private:
  static size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

  const size_t there_, mapped_;
  char *memory_, *guard_;
};

}  // namespace posenc::cuda::on_host
