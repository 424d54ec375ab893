// Memory written past the cache a whole line at once, whatever vectors and addresses are.
//
// A processor gathers what is written past the cache in a few buffers of a line each. A line that
// is written in pieces, and others in between, leaves its buffer half full; then memory is written
// in parts of lines, at a fraction of its speed. So numbers are written into a buffer in the cache
// first, and from there in whole lines.
//
//     buffer     |......aa|aaaaaaaa|aaaaaaaa|      what a line lacked, then numbers, in whole
//     vectors target           |aaaaaaaa|aaaaaaaa|aa...    lines; the last one waits for more
//
// The buffer is read by the vectors that it was written by, and these are shifted into place in
// registers. A read across two of them would have to wait until both have left the processor's
// queue of writes, behind all that goes to memory.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/elements-inl.h"
#include "cpu/numbers-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

class LineWriter {
  // Half a line at most: rows are whole vectors, but need not be whole lines.
  using D = hn::CappedTag<uint16_t, 16>;

 public:
  static constexpr int64_t kVectorBytes = static_cast<int64_t>(hn::MaxLanes(D()) * 2);
  // Targets are multiples of this.
  static constexpr int64_t kAlignment = HWY_TARGET == HWY_AVX3 ? 2 : 16;

  LineWriter() = default;
  // `buffer`: `bytes` of them at a multiple of a line.
  LineWriter(char* buffer, int64_t bytes)
      : buffer_(buffer + kLineBytes), room_(bytes - kLineBytes) {}

  // Where to write `bytes` that belong at `target`: whole vectors, no more than fit into the buffer
  // less a line. They are there when it is called the next time.
  HWY_ATTR HWY_INLINE char* place(char* target, int64_t bytes) {
    if (target != target_ + end_) {
      finish();
      target_ = target;
    } else if (end_ + bytes > room_) {
      write_lines();
    }
    char* const place = buffer_ + end_;
    end_ += bytes;
    return place;
  }

  // Writes what has been left.
  HWY_ATTR HWY_NOINLINE void finish() {
    write_lines();
    write_part(-begin_);
  }

 private:
  // The first bytes that wait.
  void write_part(int64_t count) {
    std::memcpy(target_ + begin_, buffer_ + begin_, static_cast<size_t>(count));
    begin_ += count;
  }

  // Writes what comes before a line, and lines that are full.
  HWY_ATTR HWY_INLINE void write_lines() {
    const int64_t beyond =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(target_ + begin_) % kLineBytes);
    if (beyond != 0) write_part(std::min(kLineBytes - beyond, end_ - begin_));
    const int64_t shift = begin_ & (kVectorBytes - 1);
    const int64_t full = (end_ - begin_) / kLineBytes * kLineBytes;
    if (shift == 0) {
      write_vectors<false>(shift, full);
    } else {
      write_vectors<true>(shift, full);
    }
    // The rest moves before the buffer's first vector.
    const D d;
    for (int64_t at = 0; at < kLineBytes; at += kVectorBytes) {
      hn::Store(hn::Load(d, vector(end_ - kLineBytes + at)), d, vector(at - kLineBytes));
    }
    target_ += end_;
    begin_ += full - end_;
    end_ = 0;
  }

  // From begin_ on; `shift` bytes beyond a vector.
  template <bool kShifted>
  HWY_ATTR HWY_INLINE void write_vectors(int64_t shift, int64_t full) const {
    const D d;
    uint16_t* to = reinterpret_cast<uint16_t*>(target_ + begin_);
    const uint16_t* from = vector(begin_ - shift);
    constexpr int64_t kLanes = kVectorBytes / 2;
    if constexpr (!kShifted) {
      for (int64_t i = 0; i < full / 2; i += kLanes) hn::Stream(hn::Load(d, from + i), d, to + i);
    } else {
#if HWY_TARGET == HWY_AVX3
      const auto index = hn::Iota(d, static_cast<uint16_t>(shift / 2));
      auto low = hn::Load(d, from);
      for (int64_t i = 0; i < full / 2; i += kLanes) {
        const auto high = hn::Load(d, from + i + kLanes);
        const hn::Vec<D> joined{_mm256_permutex2var_epi16(low.raw, index.raw, high.raw)};
        hn::Stream(joined, d, to + i);
        low = high;
      }
#elif HWY_TARGET == HWY_AVX2
      // By half a vector: see kAlignment.
      auto low = hn::Load(d, from);
      for (int64_t i = 0; i < full / 2; i += kLanes) {
        const auto high = hn::Load(d, from + i + kLanes);
        hn::Stream(hn::ConcatLowerUpper(d, high, low), d, to + i);
        low = high;
      }
#endif
    }
  }

  uint16_t* vector(int64_t at) const { return reinterpret_cast<uint16_t*>(buffer_ + at); }

  // Of what is written next, which belongs at target_.
  char* buffer_ = nullptr;
  int64_t room_ = 0;
  char* target_ = nullptr;
  // The bytes that wait are begin_ .. end_; begin_ may be as low as a line before the buffer.
  int64_t begin_ = 0, end_ = 0;
};

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
