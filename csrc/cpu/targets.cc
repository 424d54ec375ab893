#include "cpu/targets.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "cpu/kernels.h"

namespace posenc::cpu {
namespace {

hwy::ChosenTarget& mutable_target() {
  static hwy::ChosenTarget target;
  static std::once_flag once;
  std::call_once(once, [] {
    target.Update(hwy::SupportedTargets());
    const char* wanted = std::getenv("POSENC_ISA");
    if (wanted == nullptr) return;
    // An unknown name is reported by the Python side, which reads the same variable.
    for (const int64_t each : hwy::SupportedAndGeneratedTargets()) {
      if (std::string_view(wanted) == hwy::TargetName(each)) target.Update(each);
    }
  });
  return target;
}

int64_t default_non_temporal_bytes() {
  int64_t cache = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
  cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  // Where the system does not tell, or has no third level: 32 MiB, a common size.
  return (cache > 0 ? cache : int64_t{32} << 20) / 2;
}

std::atomic<int64_t>& non_temporal() {
  static std::atomic<int64_t> bytes{default_non_temporal_bytes()};
  return bytes;
}

}  // namespace

const hwy::ChosenTarget& chosen_target() { return mutable_target(); }

std::vector<std::string> available_targets() {
  std::vector<std::string> names;
  for (const int64_t each : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(each));
  }
  return names;
}

std::string current_target() {
  for (const int64_t each : hwy::SupportedAndGeneratedTargets()) {
    hwy::ChosenTarget one;
    one.Update(each);
    if (one.GetIndex() == chosen_target().GetIndex()) return hwy::TargetName(each);
  }
  return "";
}

bool set_target(std::string_view name) {
  if (name.empty()) {
    mutable_target().Update(hwy::SupportedTargets());
    return true;
  }
  for (const int64_t each : hwy::SupportedAndGeneratedTargets()) {
    if (name == hwy::TargetName(each)) {
      mutable_target().Update(each);
      return true;
    }
  }
  return false;
}

int64_t non_temporal_bytes() { return non_temporal().load(std::memory_order_relaxed); }

void set_non_temporal_bytes(int64_t bytes) {
  non_temporal().store(bytes > 0 ? bytes : default_non_temporal_bytes(), std::memory_order_relaxed);
}

}  // namespace posenc::cpu
