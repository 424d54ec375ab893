// Steps of rotations by angles that data decide (selective.cuh): how a thread reads steps, converts
// them to turns, and sums them to phases. Plain C++ as well, which tests run on the host
// (on_host/).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/phase.h"
#include "core/rotary.h"
#include "cuda/packet.cuh"

namespace posenc::cuda {

// 1 / pi, most significant word first.
constexpr uint32_t kInversePi[] = {0x517cc1b7, 0x27220a94, 0xfe13abe8, 0xfa9a6ee0, 0x6db14acc};

// The lower word of (high, low) >> shift; shift in 0 .. 31.
POSENC_HD inline uint32_t funnel(uint32_t low, uint32_t high, int shift) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(low, high, shift);
#else
  return static_cast<uint32_t>(((uint64_t{high} << 32) | low) >> shift);
#endif
}

POSENC_HD inline bool is_angle(float step) {
  return (bits_from_float(step) & 0x7fffffff) <= 0x4f000000;  // 2^31
}
POSENC_HD inline bool is_angle(double step) {
  uint64_t bits;
  memcpy(&bits, &step, sizeof bits);
  return (bits & ~(uint64_t{1} << 63)) <= uint64_t{0x41e} << 52;
}

// What turns_from_radians has for the fraction, of a float32 that is an angle; else 0. Its 24 bits
// times 1 / pi in words of 32 bits: four products of 64 bits, where those of 64-bit numbers take
// ten. Of the 160 bits the lowest that counts is the 64th from below, so that the rest decides
// correctly unless a number is nearer than 2^-60 to the middle between two turns. None is.
POSENC_HD inline uint64_t turns_of_step(float step) {
  const uint32_t bits = bits_from_float(step), magnitude = bits & 0x7fffffff;
  if (!is_angle(step)) return 0;
  const uint32_t mantissa = (magnitude << 8) | 0x80000000;
  const uint64_t m = mantissa;
  const uint64_t word0 = m * kInversePi[3] + ((m * kInversePi[4]) >> 32);
  const uint64_t word1 = m * kInversePi[2] + (word0 >> 32);
  const uint64_t word2 = m * kInversePi[1] + (word1 >> 32);
  const uint64_t word3 = m * kInversePi[0] + (word2 >> 32);
  // Twice the turns, and behind them the bit that rounds: the upper three words, shifted.
  const int shift = 158 - static_cast<int>(magnitude >> 23);
  uint32_t low = static_cast<uint32_t>(word2), middle = static_cast<uint32_t>(word3);
  uint32_t high = static_cast<uint32_t>(word3 >> 32);
  if (shift >= 32) low = middle, middle = high, high = 0;
  if (shift >= 64) low = middle, middle = 0;
  if (shift >= 96) low = 0;  // less than half a unit, subnormal numbers among them
  const int within = shift & 31;
  low = funnel(low, middle, within);
  middle = funnel(middle, high, within);
  high = high >> within;
  const uint64_t turns =
      ((uint64_t{funnel(middle, high, 1)} << 32) | funnel(low, middle, 1)) + (low & 1);
  return (bits >> 31) != 0 ? ~turns + 1 : turns;
}

POSENC_HD inline uint64_t turns_of_step(double step) {
  return is_angle(step) ? turns_from_radians(to_binary(step)).fraction : 0;
}

// Steps of neighboring pairs as they were read: nothing waits for them before they are looked at.
// Step: float for those of 16 and 32 bits, whichever they are, else double.
template <typename Step, int kPairs>
class Steps {
 public:
  // wide: all of them in one access (or two).
  POSENC_HD void read(const SelectiveArgs& args, bool wide, int64_t at) {
    if constexpr (sizeof(Step) == 8) {
      read_as<double>(args, wide, at);
    } else if (args.steps_dtype == Dtype::kFloat32) {
      read_as<float>(args, wide, at);
    } else {
      read_as<uint16_t>(args, wide, at);
    }
  }

  POSENC_HD Step at(int pair, Dtype dtype) const {
    if constexpr (sizeof(Step) == 8) {
      double step;
      memcpy(&step, words_ + 2 * pair, sizeof step);
      return step;
    } else {
      if (dtype == Dtype::kFloat32) return float_from_bits(words_[pair]);
      const uint32_t two = words_[pair / 2];
      const uint32_t bits = pair % 2 == 0 ? two & 0xffff : two >> 16;
      if (dtype == Dtype::kBFloat16) return float_from_bits(bits << 16);
      return to_float(Float16{static_cast<uint16_t>(bits)});
    }
  }

 private:
  static constexpr int kWords = kPairs * static_cast<int>(sizeof(Step)) / 4;

  template <typename T>
  POSENC_HD void read_as(const SelectiveArgs& args, bool wide, int64_t at) {
    constexpr int kMost = 16 / sizeof(T), kCount = kPairs < kMost ? kPairs : kMost;
    const T* const from = static_cast<const T*>(args.steps) + at;
    if (kPairs > 1 && wide) {
#pragma unroll
      for (int i = 0; i < kPairs; i += kCount) {
        const auto word = read_word<T, kCount>(from + i);
        memcpy(reinterpret_cast<char*>(words_) + i * sizeof(T), &word, sizeof word);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const auto word = read_word<T, 1>(from + i * args.steps_strides.dim);
      if constexpr (sizeof(T) == 2) {
        words_[i / 2] = i % 2 == 0 ? word : words_[i / 2] | uint32_t{word} << 16;
      } else {
        memcpy(reinterpret_cast<char*>(words_) + i * sizeof(T), &word, sizeof word);
      }
    }
  }

  uint32_t words_[kWords];
};

// Where the step of a head and pair is, in elements.
POSENC_HD inline int64_t place_of_step(const HeadStrides& strides, int64_t batch, int64_t token,
                                       int64_t head, int64_t pair) {
  return batch * strides.batch + token * strides.token + head * strides.head + pair * strides.dim;
}

POSENC_HD inline uint64_t state_before(const SelectiveArgs& args, int64_t row, int64_t head,
                                       int64_t pair) {
  if (args.state == nullptr) return 0;
  const int64_t* const from = args.state + place_of_step(args.state_strides, row, 0, head, pair);
  return static_cast<uint64_t>(read_packet<int64_t, 1>(from).numbers[0]);
}

// Phases of neighboring pairs, and which of them are angles no more.
template <typename Step, int kPairs>
struct Phases {
  uint64_t sums[kPairs];
  uint32_t lost = 0;  // a bit for each

  POSENC_HD void add(const Steps<Step, kPairs>& steps, Dtype dtype) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const Step step = steps.at(j, dtype);
      sums[j] += turns_of_step(step);
      if (!is_angle(step)) lost |= uint32_t{1} << j;
    }
  }
};

// ---------------------------------------------------------------------------------------------
// On the host: how wide a read of steps is, in which type they are added

// Whether steps (or their gradients) of `count` pairs lie side by side, at addresses for one access
// or two.
inline bool is_wide(const SelectiveArgs& args, const void* data, const HeadStrides& strides,
                    int count) {
  const int64_t bytes = std::min<int64_t>(count * item_size(args.steps_dtype), 16);
  int64_t multiples = args.rotary.pairs;
  if (args.rotary.batch > 1) multiples |= strides.batch;
  if (args.rotary.tokens > 1) multiples |= strides.token;
  if (args.heads > 1) multiples |= strides.head;
  return strides.dim == 1 && multiples % count == 0 && reinterpret_cast<int64_t>(data) % bytes == 0;
}

// visit(a float64 number, or a float32 number): in which steps are added.
template <typename Visit>
auto visit_step(const SelectiveArgs& args, const Visit& visit) {
  if (args.steps_dtype == Dtype::kFloat64) return visit(double{});
  return visit(float{});
}

}  // namespace posenc::cuda
