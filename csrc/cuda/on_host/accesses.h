// What threads do with memory, looked at while the host runs them: x86 takes addresses that a GPU
// faults on, and blocks that run one after the other hide what they would read of each other.
// packet.cuh reports its accesses here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace posenc::cuda::on_host {

// What becomes of what threads write to global memory.
enum class Writes {
  kAtOnce,
  kAtTheEnd,  // of the launch, the last one first: until then all blocks read what was there before
  kNever,     // they are only counted
};

class Accesses {
 public:
  // A kernel begins ...
  void begin(const std::string& kernel, Writes writes) {
    kernel_ = kernel;
    writes_ = writes;
  }

  // ... what it wrote can be read ...
  void write_held() {
    for (auto write = held_.rbegin(); write != held_.rend(); ++write) {
      std::memcpy(write->to, write->numbers, write->bytes);
    }
  }

  // ... and it has ended, or failed.
  void end() {
    kernel_.clear();
    writes_ = Writes::kAtOnce;
    held_.clear();
    use_shared(nullptr, 0, nullptr);
  }

  // The block that runs has this shared memory; there is nothing else up to `end`.
  void use_shared(const char* begin, size_t bytes, const char* end) {
    shared_ = reinterpret_cast<uintptr_t>(begin);
    shared_bytes_ = bytes;
    shared_end_ = reinterpret_cast<uintptr_t>(end);
  }

  // Of global memory.
  void look_at(const char* access, const void* address, size_t bytes) {
    aligned(access, address, bytes);
    if (offset(address) < shared_end_ - shared_) {
      fail(std::string(access) + ": expected an address in global memory, got byte " +
           std::to_string(offset(address)) + " of shared memory");
    }
    global_bytes_ += static_cast<int64_t>(bytes);
  }

  void look_at_shared(const char* access, const void* address, size_t bytes) {
    aligned(access, address, bytes);
    if (kernel_.empty() || offset(address) + bytes <= shared_bytes_) return;
    fail(std::string(access) + ": expected an address in the " + std::to_string(shared_bytes_) +
         " bytes of shared memory that the plan has, got byte " +
         std::to_string(static_cast<int64_t>(offset(address))));
  }

  // To global memory.
  void write(const char* access, void* to, const void* numbers, size_t bytes) {
    look_at(access, to, bytes);
    if (writes_ == Writes::kAtOnce) {
      std::memcpy(to, numbers, bytes);
    } else if (writes_ == Writes::kAtTheEnd) {
      Write& write = held_.emplace_back();
      write.to = to;
      write.bytes = bytes;
      std::memcpy(write.numbers, numbers, bytes);
    }
  }

  // Bytes of global memory that were read and written since the last question.
  int64_t take_global_bytes() {
    const int64_t bytes = global_bytes_;
    global_bytes_ = 0;
    return bytes;
  }

  [[noreturn]] void fail(const std::string& words) const {
    throw std::logic_error((kernel_.empty() ? "" : kernel_ + ": ") + words);
  }

 private:
  void aligned(const char* access, const void* address, size_t bytes) const {
    const size_t rest = reinterpret_cast<uintptr_t>(address) % bytes;
    if (rest == 0) return;
    fail(std::string(access) + " of " + std::to_string(bytes) +
         " bytes: expected an address that is a multiple of them, got one " + std::to_string(rest) +
         " bytes beyond");
  }

  uintptr_t offset(const void* address) const {
    return reinterpret_cast<uintptr_t>(address) - shared_;
  }

  struct Write {
    void* to;
    size_t bytes;
    unsigned char numbers[16];
  };

  std::string kernel_;
  Writes writes_ = Writes::kAtOnce;
  std::vector<Write> held_;
  uintptr_t shared_ = 0, shared_end_ = 0;
  size_t shared_bytes_ = 0;
  int64_t global_bytes_ = 0;
};

// Of the one launch that runs.
inline Accesses accesses;

}  // namespace posenc::cuda::on_host
