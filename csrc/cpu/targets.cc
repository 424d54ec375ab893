#include "cpu/targets.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "cpu/kernels.h"
#include "hwy/targets.h"

namespace posenc::cpu {
namespace {

#if HWY_ARCH_X86
// What Highway has the compiler use in its AVX2 and AVX3 kernels. The builtin also asks whether the
// operating system keeps the registers; not every compiler's knows F16C.
bool has_avx2() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  return has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

bool has_avx3() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512cd");
}

bool has_avx512_bf16() { return has_avx3() && __builtin_cpu_supports("avx512bf16"); }
#else
bool has_avx512_bf16() { return false; }
#endif

// POSENC_TARGETS, of CMakeLists.txt: the targets that were compiled. Elsewhere than on x86 that is
// one.
#ifdef POSENC_TARGETS
constexpr int64_t kCompiled = POSENC_TARGETS;
#else
constexpr int64_t kCompiled = HWY_STATIC_TARGET;
#endif

struct Choice {
  std::string name;
  const Kernels* kernels;
  bool bfloat16_instructions;
};

template <int64_t kTarget>
void add_choice(std::vector<Choice>& choices, bool runs_here) {
  if constexpr ((kCompiled & kTarget) != 0) {
    if (!runs_here) return;
    const Kernels* const kernels = &kernels_of<kTarget>();
    // Instructions that a single number format gains from are no target of Highway's with kernels
    // of its own, but a choice all the same.
    if (kTarget == HWY_AVX3 && has_avx512_bf16()) choices.push_back({"AVX3_BF16", kernels, true});
    choices.push_back({hwy::TargetName(kTarget), kernels, false});
  }
}

// Everything that can be chosen, the best first. Nothing where a build is for a newer processor.
const std::vector<Choice>& choices() {
  static const std::vector<Choice> all = [] {
    std::vector<Choice> found;
#if HWY_ARCH_X86
    add_choice<HWY_AVX3>(found, has_avx3());
    add_choice<HWY_AVX2>(found, has_avx2());
    add_choice<HWY_SSE4>(found, true);
#else
    add_choice<HWY_STATIC_TARGET>(found, true);
#endif
    return found;
  }();
  return all;
}

struct State {
  std::atomic<const Choice*> choice{nullptr};  // one of choices()

  void choose(const Choice& one) {
    choice.store(&one, std::memory_order_relaxed);
    bfloat16_instructions.store(one.bfloat16_instructions, std::memory_order_relaxed);
  }
};

// Every kernel call asks, on threads that may have just begun. Hence no std::call_once: it sets
// variables of the thread each time, whose memory is taken when a thread first does so, and where
// there is none glibc ends the process.
State& state() {
  static State chosen;
  static const bool is_chosen = [] {
    if (choices().empty()) return false;
    chosen.choose(choices().front());
    const char* wanted = std::getenv("POSENC_ISA");
    if (wanted == nullptr) return true;
    // An unknown name is reported by the Python side, which reads the same variable.
    for (const Choice& choice : choices()) {
      if (wanted == choice.name) chosen.choose(choice);
    }
    return true;
  }();
  static_cast<void>(is_chosen);
  return chosen;
}

// A quarter of the last level: then results and what they are made of fill half of it. All of it
// counts, not a core's share, since a core whose neighbors rest fills what it likes, and others
// may work on the same call. But a virtual machine of two cores may tell of the cache of sixty:
// hence the bound. Both were measured, on buffers in the cache and on others:
// benchmarks/studies/past_cache.py.
int64_t default_non_temporal_bytes() {
  constexpr int64_t kMost = int64_t{8} << 20;
  int kib = 0;
  // Not by sysconf: glibc 2.36 takes the caches of all cores of an AMD machine together.
  if (std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r")) {
    if (std::fscanf(file, "%dK", &kib) != 1) kib = 0;
    std::fclose(file);
  }
  return kib > 0 ? std::min((int64_t{kib} << 10) / 4, kMost) : kMost;
}

std::atomic<int64_t>& non_temporal() {
  static std::atomic<int64_t> bytes{default_non_temporal_bytes()};
  return bytes;
}

}  // namespace

std::atomic<bool> bfloat16_instructions{false};

const Kernels& kernels() { return *state().choice.load(std::memory_order_relaxed)->kernels; }

std::vector<std::string> available_targets() {
  std::vector<std::string> names;
  for (const Choice& choice : choices()) names.push_back(choice.name);
  return names;
}

std::string current_target() {
  const Choice* const choice = state().choice.load(std::memory_order_relaxed);
  return choice == nullptr ? "" : choice->name;
}

bool set_target(std::string_view name) {
  for (const Choice& choice : choices()) {
    if (name == choice.name || name.empty()) {
      state().choose(choice);
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
