// A whole call on the CPU, from checked arguments to kernels: what both bindings share. They differ
// in the Runner, which has the rows done: runner(rows, bytes, run) calls run(begin, end) for ranges
// that together are 0 .. rows; `bytes` is what they read and write.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "cpu/kernels.h"

namespace posenc::cpu {

// Room for the frequencies of a call; common sizes need no allocation.
class FrequencyBuffer {
 public:
  explicit FrequencyBuffer(int64_t pairs) {
    if (pairs <= kInline) return;
    large_ = std::make_unique<uint64_t[]>(static_cast<size_t>(2 * pairs));
    fraction_ = large_.get();
    whole_ = fraction_ + pairs;
  }
  uint64_t* fraction() { return fraction_; }
  uint64_t* whole() { return whole_; }
  Frequencies frequencies() const { return {fraction_, whole_}; }

 private:
  static constexpr int64_t kInline = 256;
  uint64_t inline_[2 * kInline];
  std::unique_ptr<uint64_t[]> large_;
  uint64_t* fraction_ = inline_;
  uint64_t* whole_ = inline_ + kInline;
};

// The frequencies of a formula. A thread keeps its last ones: decoding asks for the same in every
// step, and they take longer than a row of the table.
inline Frequencies formula_frequencies(const SinusoidalSpec& spec) {
  static thread_local SinusoidalSpec last;  // of dim 0: no frequencies
  static thread_local std::vector<uint64_t> turns;
  const size_t pairs = static_cast<size_t>(spec.dim / 2);
  if (!spec.same_frequencies(last)) {
    last = {};
    turns.resize(2 * pairs);
    turns_from_spec(spec, turns.data(), turns.data() + pairs);
    last = spec;
    last.layout = {};  // the caller's memory
  }
  return {turns.data(), turns.data() + pairs};
}

template <typename Runner>
void write_sinusoidal(SinusoidalArgs args, const Runner& runner) {
  FrequencyBuffer buffer(args.inv_freq.data != nullptr ? args.pairs : 0);
  if (args.inv_freq.data != nullptr) {
    turns_from_frequencies(args.inv_freq, args.pairs, buffer.fraction(), buffer.whole());
    args.frequencies = buffer.frequencies();
  } else {
    args.frequencies = formula_frequencies(args.spec);
  }
  const int64_t bytes = args.positions_count() * args.pairs * 2 * item_size(args.dtype);
  args.non_temporal = bytes >= non_temporal_bytes();
  if (bytes == 0) return;
  runner(args.rows(), bytes * (args.x_sine != nullptr ? 2 : 1),
         [&](int64_t begin, int64_t end) { sinusoidal(args, begin, end); });
}

template <typename Runner>
void rotate(RotaryArgs args, const Runner& runner) {
  FrequencyBuffer buffer(args.pairs);
  if (args.inv_freq.data != nullptr) {
    turns_from_frequencies(args.inv_freq, args.pairs, buffer.fraction(), buffer.whole());
    args.frequencies = buffer.frequencies();
  }
  int64_t heads = 0;
  for (int i = 0; i < args.tensor_count; ++i) heads += args.tensors[i].heads;
  const int64_t bytes = args.rows() * heads * args.head_dim * item_size(args.dtype);
  args.non_temporal = bytes >= non_temporal_bytes();
  if (bytes == 0) return;
  runner(args.rows(), 2 * bytes, [&](int64_t begin, int64_t end) { rotary(args, begin, end); });
}

}  // namespace posenc::cpu
