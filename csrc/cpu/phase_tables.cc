// Cosines and sines of phases, number by number.

#include "cpu/one_target.h"
// After one_target.h:
#include <cstdint>

#include "core/phases.h"
#include "core/visit_type.h"
#include "cpu/numbers-inl.h"
#include "cpu/sincos-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
HWY_ATTR void write_tables(const PhaseTablesArgs& args, int64_t begin, int64_t end) {
  const RealTag<T> d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(RealTag<T>()));
  const uint64_t* const phases = reinterpret_cast<const uint64_t*>(args.phases);
  T* const cosine = static_cast<T*>(args.cosine);
  T* const sine = static_cast<T*>(args.sine);
  const auto write = [&](const uint64_t* from, T* to_cosine, T* to_sine) HWY_ATTR {
    hn::Vec<decltype(d)> s, c;
    sincos(d, phases_from(d, from), s, c);
    store<Store::kOrdinary>(c, d, to_cosine);
    store<Store::kOrdinary>(s, d, to_sine);
  };
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) write(phases + i, cosine + i, sine + i);
  if (i == end) return;
  HWY_ALIGN uint64_t rest[kLanes] = {};
  HWY_ALIGN T cosines[kLanes], sines[kLanes];
  for (int64_t j = i; j < end; ++j) rest[j - i] = phases[j];
  write(rest, cosines, sines);
  for (int64_t j = i; j < end; ++j) {
    cosine[j] = cosines[j - i];
    sine[j] = sines[j - i];
  }
}

HWY_ATTR void write_phase_tables(const PhaseTablesArgs& args, int64_t begin, int64_t end) {
  visit_type(args.dtype, [&](auto type) { write_tables<decltype(type)>(args, begin, end); });
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void phase_tables(const PhaseTablesArgs& args, int64_t begin, int64_t end) {
  write_phase_tables(args, begin, end);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
