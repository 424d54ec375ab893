// Neighboring numbers as a thread reads and writes them: one access of up to 16 bytes. Kernels
// touch tensors and sums in no other way: what an access has to be is looked at on the host.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/half.h"
#include "core/view.h"
#include "cuda/divide.h"
#if !defined(__CUDACC__)
#include "cuda/on_host/accesses.h"
#endif

namespace posenc::cuda {

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Packet {
  T numbers[kCount];
};

#if !defined(__CUDACC__)
// As CUDA has them.
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
#endif

// What the hardware moves at once.
template <int kBytes>
struct Word;
template <>
struct Word<16> {
  using type = uint4;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<4> {
  using type = uint32_t;
};
template <>
struct Word<2> {
  using type = uint16_t;
};
template <>
struct Word<1> {
  using type = uint8_t;
};

template <typename T, int kCount>
using WordOf = typename Word<(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16)>::type;

// An address that is about to be used: the host looks at it, for the GPU's sake.
template <typename Word>
POSENC_HD inline Word* global_address([[maybe_unused]] const char* access, Word* address) {
#if !defined(__CUDACC__)
  on_host::accesses.look_at(access, address, sizeof(Word));
#endif
  return address;
}
template <typename Word>
POSENC_HD inline Word* shared_address([[maybe_unused]] const char* access, Word* address) {
#if !defined(__CUDACC__)
  on_host::accesses.look_at_shared(access, address, sizeof(Word));
#endif
  return address;
}

#if defined(__CUDA_ARCH__)
// Accesses of global memory are spelled out, because the compiler may take an assignment apart into
// single numbers. Loads are ordinary ones: what is read may be what others write.
__device__ inline void load(const void* from, uint4& word) {
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
}
__device__ inline void load(const void* from, uint2& word) {
  asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
               : "=r"(word.x), "=r"(word.y)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
}
__device__ inline void load(const void* from, uint32_t& word) {
  asm volatile("ld.global.b32 %0, [%1];"
               : "=r"(word)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
}
__device__ inline void load(const void* from, uint16_t& word) {
  asm volatile("ld.global.b16 %0, [%1];"
               : "=h"(word)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
}

// From global to shared memory, past the registers: on its way until wait_for_copies.
template <int kBytes>
__device__ inline void load_into_shared(const void* from, void* to) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at),
                 "l"(__cvta_generic_to_global(from)), "n"(kBytes)
                 : "memory");
  }
}

__device__ inline void store(void* to, const uint4& word) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
               : "memory");
}
__device__ inline void store(void* to, const uint2& word) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(word.x),
               "r"(word.y)
               : "memory");
}
__device__ inline void store(void* to, uint32_t word) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(word) : "memory");
}
__device__ inline void store(void* to, uint16_t word) {
  asm volatile("st.global.b16 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "h"(word) : "memory");
}
__device__ inline void store(void* to, uint8_t word) {
  asm volatile("st.global.b8 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
               "r"(static_cast<uint32_t>(word))
               : "memory");
}
#endif

// Of global memory. Reading and taking apart are two steps: a thread that reads several words
// before it looks at the first waits for memory once.
template <typename T, int kCount>
POSENC_HD inline WordOf<T, kCount> read_word(const T* from) {
  static_assert(sizeof(T) * kCount <= 16);
#if defined(__CUDA_ARCH__)
  WordOf<T, kCount> word;
  load(from, word);
  return word;
#else
  return *global_address("read_word", reinterpret_cast<const WordOf<T, kCount>*>(from));
#endif
}

template <typename T, int kCount>
POSENC_HD inline Packet<T, kCount> unpack(const WordOf<T, kCount>& word) {
  Packet<T, kCount> packet;
  memcpy(packet.numbers, &word, sizeof word);
  return packet;
}

template <typename T, int kCount>
POSENC_HD inline Packet<T, kCount> read_packet(const T* from) {
  return unpack<T, kCount>(read_word<T, kCount>(from));
}

template <typename T, int kCount>
POSENC_HD inline void write_packet(const Packet<T, kCount>& packet, T* to) {
  WordOf<T, kCount> word;
  memcpy(&word, packet.numbers, sizeof word);
#if defined(__CUDA_ARCH__)
  store(to, word);
#elif defined(__CUDACC__)
  *reinterpret_cast<WordOf<T, kCount>*>(to) = word;
#else
  on_host::accesses.write("write_packet", to, &word, sizeof word);
#endif
}

// Asks for what is read from there soon, and takes no register for it.
template <typename T>
POSENC_HD inline void request(const T* from) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
#else
  global_address("request", from);
#endif
}

// A word of global memory to one of shared memory, which the same thread reads after
// wait_for_copies.
template <typename T, int kCount>
POSENC_HD inline void copy_word(const T* from, WordOf<T, kCount>* to) {
#if defined(__CUDA_ARCH__)
  load_into_shared<sizeof(*to)>(from, to);
#else
  *shared_address("copy_word", to) =
      *global_address("copy_word", reinterpret_cast<const WordOf<T, kCount>*>(from));
#endif
}
// Copies up to here are a group: some, or none.
POSENC_HD inline void end_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until all groups but the last kLater are there.
template <int kLater>
POSENC_HD inline void wait_for_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
#endif
}

// Of global memory, when and how the compiler likes.
template <typename T>
POSENC_HD inline const T& read_number(const T* from) {
  return *global_address("read_number", from);
}

// Of shared memory.
template <typename T, int kCount>
POSENC_HD inline Packet<T, kCount> kept_packet(const T* from) {
  using Type = WordOf<T, kCount>;
  Packet<T, kCount> packet;
#pragma unroll
  for (size_t i = 0; i < sizeof packet / sizeof(Type); ++i) {
    const Type word = *shared_address("kept_packet", reinterpret_cast<const Type*>(from) + i);
    memcpy(reinterpret_cast<char*>(packet.numbers) + i * sizeof word, &word, sizeof word);
  }
  return packet;
}

template <typename T, int kCount>
POSENC_HD inline void keep_packet(const Packet<T, kCount>& packet, T* to) {
  using Type = WordOf<T, kCount>;
#pragma unroll
  for (size_t i = 0; i < sizeof packet / sizeof(Type); ++i) {
    Type word;
    memcpy(&word, reinterpret_cast<const char*>(packet.numbers) + i * sizeof word, sizeof word);
    *shared_address("keep_packet", reinterpret_cast<Type*>(to) + i) = word;
  }
}

POSENC_HD inline double to_real(double x) { return x; }
template <typename T>
POSENC_HD inline float to_real(T x) {
  return to_float(x);
}

// The i-th number of a word, to compute with: of 16 bits in one instruction.
template <typename T, int kCount>
POSENC_HD inline Real<T> real_of(const WordOf<T, kCount>& word, int i) {
  if constexpr (sizeof(T) == 2 && kCount > 1) {
    uint32_t two[kCount / 2];
    memcpy(two, &word, sizeof two);
    if constexpr (std::is_same_v<T, BFloat16>) {
      return float_from_bits(i % 2 == 0 ? two[i / 2] << 16 : two[i / 2] & 0xffff0000u);
    }
#if defined(__CUDA_ARCH__)
    float number;
    if (i % 2 == 0) {
      asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a;}"
          : "=f"(number)
          : "r"(two[i / 2]));
    } else {
      asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b;}"
          : "=f"(number)
          : "r"(two[i / 2]));
    }
    return number;
#endif
  }
  return to_real(unpack<T, kCount>(word).numbers[i]);
}

// Of real numbers of any dtype that is known when the kernel runs: of a table, of weights. Some of
// them, `step` apart.
template <typename Number, int kCount>
POSENC_HD inline Packet<Number, kCount> numbers_at(const void* data, Dtype dtype, int64_t at,
                                                   int64_t step) {
  Packet<Number, kCount> packet;
  const auto fill = [&](const auto* from) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      packet.numbers[i] = static_cast<Number>(to_real(from[at + i * step]));
    }
  };
  switch (dtype) {
    case Dtype::kFloat16:
      fill(static_cast<const Float16*>(data));
      break;
    case Dtype::kBFloat16:
      fill(static_cast<const BFloat16*>(data));
      break;
    case Dtype::kFloat32:
      fill(static_cast<const float*>(data));
      break;
    default:
      fill(static_cast<const double*>(data));
  }
  return packet;
}

template <typename Number>
POSENC_HD inline Number number_at(const void* data, Dtype dtype, int64_t at) {
  return numbers_at<Number, 1>(data, dtype, at, 0).numbers[0];
}

// A float64 number towards zero, with the last bit set if that changed it: rounded again, to fewer
// bits, it is what rounding it once would have given. No arithmetic in float64.
POSENC_HD inline float float_rounded_to_odd(double value) {
#if defined(__CUDA_ARCH__)
  const float cut = __double2float_rz(value);
  const bool exact = __double_as_longlong(static_cast<double>(cut)) == __double_as_longlong(value);
  return exact ? cut : float_from_bits(bits_from_float(cut) | 1);
#else
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  if (back == value || value != value) return nearest;
  const bool away = (back < 0 ? -back : back) > (value < 0 ? -value : value);
  return float_from_bits((bits_from_float(nearest) - away) | 1);
#endif
}

// Two results at once: one instruction where they are 16 bits wide.
template <typename T>
POSENC_HD inline void round_two(Real<T> first, Real<T> second, T* to) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2) {
    uint32_t both;
    if constexpr (std::is_same_v<T, BFloat16>) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    } else {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    }
    memcpy(to, &both, sizeof both);
    return;
  }
#endif
  to[0] = round_to<T>(first);
  to[1] = round_to<T>(second);
}

template <typename T, int kCount>
POSENC_HD inline Packet<T, kCount> round_packet(const Real<T> (&values)[kCount]) {
  Packet<T, kCount> packet;
  if constexpr (kCount == 1) {
    packet.numbers[0] = round_to<T>(values[0]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      round_two<T>(values[i], values[i + 1], packet.numbers + i);
    }
  }
  return packet;
}

}  // namespace posenc::cuda
