// The memory limits that every benchmark row is a multiple of: scale a buffer in place, copy one
// buffer to another, fill one, sum one up, add one to another. Each comes in several variants
// (vector width, prefetch distance, ordinary or non-temporal stores); the harness runs them all and
// keeps the fastest, because a slow yardstick would flatter what it measures.
//
// limits.py compiles this file with -march=native on the machine that runs it, so the instruction
// sets are chosen by the preprocessor. Elsewhere than on x86 the plain loops remain.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

constexpr size_t kLine = 16;        // floats in one cache line of 64 bytes
constexpr size_t kPage = 4096 / 4;  // floats in one page: threads share the work by pages
enum Kind { kScale, kCopy, kFill, kSum, kAdd, kKinds };

// The work of one thread. `src` is read by copies, sums and additions, `value` by the others. A sum
// writes one number, dst[0].
using Kernel = void (*)(float* dst, const float* src, size_t n, float value);

struct Variant {
  const char* name;
  Kernel run;
};

void ScalePlain(float* dst, const float*, size_t n, float value) {
  for (size_t i = 0; i < n; ++i) dst[i] *= value;
}
void CopyPlain(float* dst, const float* src, size_t n, float) { std::memcpy(dst, src, n * 4); }
void FillPlain(float* dst, const float*, size_t n, float value) { std::fill(dst, dst + n, value); }
void AddPlain(float* dst, const float* src, size_t n, float) {
  for (size_t i = 0; i < n; ++i) dst[i] += src[i];
}
// Eight sums side by side, or each addition would wait for the one before.
void SumPlain(float* dst, const float* src, size_t n, float) {
  constexpr size_t kSums = 8;
  float sums[kSums] = {};
  for (size_t i = 0; i < n / kSums * kSums; ++i) sums[i % kSums] += src[i];
  for (size_t i = n / kSums * kSums; i < n; ++i) sums[0] += src[i];
  *dst = 0.0f;
  for (const float sum : sums) *dst += sum;
}

#if defined(__SSE2__)

enum Hint { kNone, kT0, kT1, kNta };
enum Writes { kOrdinary, kStreaming };

inline void StreamVector(float* p, __m128 v) { _mm_stream_ps(p, v); }
#if defined(__AVX__)
inline void StreamVector(float* p, __m256 v) { _mm256_stream_ps(p, v); }
using Middle = __m256;
#else
using Middle = __m128;
#endif
#if defined(__AVX512F__)
inline void StreamVector(float* p, __m512 v) { _mm512_stream_ps(p, v); }
using Widest = __m512;
#else
using Widest = Middle;
#endif

template <class V>
inline V LoadVector(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

// Runs `line(offset)` for every cache line of dst and `one(offset)` for the floats before the first
// and after the last whole line. kWays > 1 walks that many equal parts side by side, which gives
// the memory controller more open pages to work on.
template <int kWays, class Line, class One>
inline void ForLines(float* dst, size_t n, Line line, One one) {
  const size_t misaligned = reinterpret_cast<uintptr_t>(dst) / 4 % kLine;
  const size_t head = std::min(n, (kLine - misaligned) % kLine);
  for (size_t i = 0; i < head; ++i) one(i);
  const size_t part = (n - head) / kLine / kWays * kLine;
  for (size_t i = 0; i < part; i += kLine) {
    for (int way = 0; way < kWays; ++way) line(head + way * part + i);
  }
  for (size_t i = head + kWays * part; i < n; ++i) one(i);
}

// A prefetch may run past the end of the buffer: on x86 it never faults.
template <Hint kHint, size_t kAhead>
inline void Prefetch(const float* p) {
  const char* ahead = reinterpret_cast<const char*>(p) + kAhead;
  if constexpr (kHint == kT0) _mm_prefetch(ahead, _MM_HINT_T0);
  if constexpr (kHint == kT1) _mm_prefetch(ahead, _MM_HINT_T1);
  if constexpr (kHint == kNta) _mm_prefetch(ahead, _MM_HINT_NTA);
}

template <Writes kWrites, class V>
inline void Write(float* p, V v) {
  if constexpr (kWrites == kStreaming) {
    StreamVector(p, v);
  } else {
    std::memcpy(p, &v, sizeof(V));
  }
}

template <class V, Hint kHint, size_t kAhead, Writes kWrites, int kWays>
void Scale(float* dst, const float*, size_t n, float value) {
  const V factor = V{} + value;
  ForLines<kWays>(
      dst, n,
      [=](size_t at) {
        Prefetch<kHint, kAhead>(dst + at);
        for (size_t i = at; i < at + kLine; i += sizeof(V) / 4) {
          Write<kWrites>(dst + i, LoadVector<V>(dst + i) * factor);
        }
      },
      [=](size_t at) { dst[at] *= value; });
  if constexpr (kWrites == kStreaming) _mm_sfence();
}

template <class V, Hint kHint, size_t kAhead, int kWays>
void CopyStreaming(float* dst, const float* src, size_t n, float) {
  ForLines<kWays>(
      dst, n,
      [=](size_t at) {
        Prefetch<kHint, kAhead>(src + at);
        for (size_t i = at; i < at + kLine; i += sizeof(V) / 4) {
          StreamVector(dst + i, LoadVector<V>(src + i));
        }
      },
      [=](size_t at) { dst[at] = src[at]; });
  _mm_sfence();
}

template <class V, int kWays>
void FillStreaming(float* dst, const float*, size_t n, float value) {
  const V values = V{} + value;
  ForLines<kWays>(
      dst, n,
      [=](size_t at) {
        for (size_t i = at; i < at + kLine; i += sizeof(V) / 4) StreamVector(dst + i, values);
      },
      [=](size_t at) { dst[at] = value; });
  _mm_sfence();
}

template <class V, Hint kHint, size_t kAhead, int kWays>
void Add(float* dst, const float* src, size_t n, float) {
  ForLines<kWays>(
      dst, n,
      [=](size_t at) {
        Prefetch<kHint, kAhead>(dst + at);
        Prefetch<kHint, kAhead>(src + at);
        for (size_t i = at; i < at + kLine; i += sizeof(V) / 4) {
          Write<kOrdinary>(dst + i, LoadVector<V>(dst + i) + LoadVector<V>(src + i));
        }
      },
      [=](size_t at) { dst[at] += src[at]; });
}

// Four lines at a time and way, added to sums of their own: many loads under way, and no addition
// that waits for the one before.
template <class V, Hint kHint, size_t kAhead, int kWays>
void Sum(float* dst, const float* src, size_t n, float) {
  constexpr size_t kLanes = sizeof(V) / 4;
  constexpr size_t kStep = 4 * kLine;
  constexpr size_t kSums = 16;
  V sums[kSums] = {};
  const size_t misaligned = reinterpret_cast<uintptr_t>(src) / 4 % kLine;
  const size_t head = std::min(n, (kLine - misaligned) % kLine);
  const size_t part = (n - head) / kStep / kWays * kStep;
  for (size_t i = 0; i < part; i += kStep) {
    for (int way = 0; way < kWays; ++way) {
      const float* step = src + head + way * part + i;
      for (size_t at = 0; at < kStep; at += kLine) Prefetch<kHint, kAhead>(step + at);
      for (size_t at = 0; at < kStep; at += kLanes) {
        sums[(at / kLanes + way * (kStep / kLanes)) % kSums] += LoadVector<V>(step + at);
      }
    }
  }
  for (size_t i = 1; i < kSums; ++i) sums[0] += sums[i];
  float total = 0.0f;
  for (size_t lane = 0; lane < kLanes; ++lane) total += sums[0][lane];
  for (size_t i = 0; i < head; ++i) total += src[i];
  for (size_t i = head + kWays * part; i < n; ++i) total += src[i];
  *dst = total;
}

#if defined(__x86_64__)
// The string instructions: microcode that many processors turn into stores without a read first.
void CopyString(float* dst, const float* src, size_t n, float) {
  size_t bytes = n * 4;
  asm volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes)::"memory");
}
void FillString(float* dst, const float*, size_t n, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  asm volatile("rep stosl" : "+D"(dst), "+c"(n) : "a"(bits) : "memory");
}
#endif

const std::vector<Variant> kVariants[kKinds] = {
    {
        {"plain", ScalePlain},
        {"widest, T1 4K ahead", Scale<Widest, kT1, 4096, kOrdinary, 1>},
        {"widest, T0 4K ahead", Scale<Widest, kT0, 4096, kOrdinary, 1>},
        {"widest, NTA 4K ahead", Scale<Widest, kNta, 4096, kOrdinary, 1>},
        {"widest, two ways", Scale<Widest, kNone, 0, kOrdinary, 2>},
        {"widest, T0 1K ahead, four ways", Scale<Widest, kT0, 1024, kOrdinary, 4>},
        {"widest, T1 4K ahead, four ways", Scale<Widest, kT1, 4096, kOrdinary, 4>},
        {"widest, T1 4K ahead, eight ways", Scale<Widest, kT1, 4096, kOrdinary, 8>},
        {"widest, NTA 1K ahead, streaming", Scale<Widest, kNta, 1024, kStreaming, 1>},
        {"widest, NTA 4K ahead, streaming", Scale<Widest, kNta, 4096, kStreaming, 1>},
        {"middle, T1 4K ahead", Scale<Middle, kT1, 4096, kOrdinary, 1>},
        {"128 bit, T0 1K ahead, streaming", Scale<__m128, kT0, 1024, kStreaming, 1>},
    },
    {
        {"memcpy", CopyPlain},
        {"widest, streaming", CopyStreaming<Widest, kNone, 0, 1>},
        {"widest, NTA 1K ahead, streaming", CopyStreaming<Widest, kNta, 1024, 1>},
        {"widest, NTA 4K ahead, streaming", CopyStreaming<Widest, kNta, 4096, 1>},
        {"widest, NTA 8K ahead, streaming", CopyStreaming<Widest, kNta, 8192, 1>},
        {"widest, T0 16K ahead, streaming", CopyStreaming<Widest, kT0, 16384, 1>},
        {"widest, NTA 4K ahead, streaming, two ways", CopyStreaming<Widest, kNta, 4096, 2>},
        {"widest, T1 4K ahead, streaming, four ways", CopyStreaming<Widest, kT1, 4096, 4>},
        {"middle, NTA 4K ahead, streaming", CopyStreaming<Middle, kNta, 4096, 1>},
        {"128 bit, NTA 4K ahead, streaming", CopyStreaming<__m128, kNta, 4096, 1>},
#if defined(__x86_64__)
        {"rep movsb", CopyString},
#endif
    },
    {
        {"plain", FillPlain},
        {"widest, streaming", FillStreaming<Widest, 1>},
        {"widest, streaming, four ways", FillStreaming<Widest, 4>},
        {"middle, streaming", FillStreaming<Middle, 1>},
        {"middle, streaming, two ways", FillStreaming<Middle, 2>},
        {"128 bit, streaming", FillStreaming<__m128, 1>},
#if defined(__x86_64__)
        {"rep stosl", FillString},
#endif
    },
    {
        {"plain", SumPlain},
        {"widest", Sum<Widest, kNone, 0, 1>},
        {"widest, T0 1K ahead", Sum<Widest, kT0, 1024, 1>},
        {"widest, T0 4K ahead", Sum<Widest, kT0, 4096, 1>},
        {"widest, NTA 1K ahead", Sum<Widest, kNta, 1024, 1>},
        {"widest, NTA 4K ahead", Sum<Widest, kNta, 4096, 1>},
        {"widest, two ways", Sum<Widest, kNone, 0, 2>},
        {"widest, T0 1K ahead, two ways", Sum<Widest, kT0, 1024, 2>},
        {"widest, T0 1K ahead, four ways", Sum<Widest, kT0, 1024, 4>},
        {"middle, T0 4K ahead", Sum<Middle, kT0, 4096, 1>},
        {"middle, T0 1K ahead, four ways", Sum<Middle, kT0, 1024, 4>},
    },
    {
        {"plain", AddPlain},
        {"widest", Add<Widest, kNone, 0, 1>},
        {"widest, T0 1K ahead", Add<Widest, kT0, 1024, 1>},
        {"widest, T0 4K ahead", Add<Widest, kT0, 4096, 1>},
        {"widest, NTA 4K ahead", Add<Widest, kNta, 4096, 1>},
        {"widest, two ways", Add<Widest, kNone, 0, 2>},
        {"widest, T0 1K ahead, four ways", Add<Widest, kT0, 1024, 4>},
        {"middle, T0 4K ahead", Add<Middle, kT0, 4096, 1>},
    },
};

#else  // not x86: what the compiler makes of plain loops

const std::vector<Variant> kVariants[kKinds] = {
    {{"plain", ScalePlain}}, {{"memcpy", CopyPlain}}, {{"plain", FillPlain}},
    {{"plain", SumPlain}},   {{"plain", AddPlain}},
};

#endif

}  // namespace

extern "C" {

int limit_count(int kind) { return static_cast<int>(kVariants[kind].size()); }

const char* limit_name(int kind, int variant) { return kVariants[kind][variant].name; }

// Does the work on n floats `repeats` times; a sum leaves one number for each thread in dst. The
// threads beyond the caller's own are started for each repeat: 8 microseconds for one, which a pool
// of waiting threads does not better.
void limit_run(int kind, int variant, float* dst, const float* src, size_t n, float value,
               int threads, int repeats) {
  const Kernel kernel = kVariants[kind][variant].run;
  const size_t pages = (n + kPage - 1) / kPage;
  const size_t share = (pages + threads - 1) / threads * kPage;
  const auto work = [=](int thread) {
    const size_t begin = std::min(n, thread * share), end = std::min(n, begin + share);
    float* to = kind == kSum ? dst + thread : dst + begin;
    kernel(to, src ? src + begin : nullptr, end - begin, value);
  };
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
    work(0);
    for (auto& other : others) other.join();
  }
}

}  // extern "C"
