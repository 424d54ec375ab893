// What stands before attention on the CPU: norm, rotation, append.
//
//   for a block of tokens
//     cosines and sines of the block -> scratch          once, for every head of q and k
//     for tensor, then along memory: some rows together
//       r of each row                                    their latencies overlap
//       norm, turn and write, a few rows at once         they come from the first-level cache
//     v -> its slots
//
// How a row is read, turned and written: norm_rotary_rows-inl.h.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include "core/norm_rotary.h"
#include "core/visit_type.h"
#include "cpu/eight_bits-inl.h"
#include "cpu/elements-inl.h"
#include "cpu/norm_rotary_rows-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows that are summed before the first of them is written: as many as hide the latency of a square
// root and two divisions, and no more than the first-level cache holds. A multiple of four.
constexpr int kRowsTogether = 16;
// Rows that are written at once, where their angles and factors are the same: these are read once.
template <typename T>
constexpr int kRowsAtOnce = HWY_TARGET == HWY_AVX3        ? (sizeof(T) == 2 ? 4 : 2)
                            : std::is_same_v<T, BFloat16> ? 1
                                                          : 2;
// How far ahead of what is written memory is requested, at least.
constexpr int64_t kNormAheadBytes = 8192;

// Where the heads of a token go in a cache, `step` apart; null: nowhere.
template <typename T>
struct CachePlace {
  T* first = nullptr;
  int64_t head_step = 0;

  CachePlace() = default;
  CachePlace(const NormRotaryArgs& args, const CacheTarget& cache, int64_t batch, int64_t token)
      : head_step(cache.head_stride) {
    if (!args.appends()) return;
    const int64_t at = args.place(cache, batch, token);
    if (at != NormRotaryArgs::kNowhere) first = static_cast<T*>(cache.data) + at;
  }
  T* of_head(int64_t head) const { return first == nullptr ? nullptr : first + head * head_step; }
};

// From a token to the one whose memory is requested while this one is worked on: another one, since
// what lies between their heads may be of no interest here.
inline int64_t tokens_ahead(const HeadStrides& strides, int64_t size) {
  const int64_t token = std::max<int64_t>(std::abs(strides.token) * size, 1);
  return (kNormAheadBytes + token - 1) / token * strides.token;
}

template <typename T>
HWY_ATTR void copy_row(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t count,
                       bool stream) {
  if (from_step == 1 && to_step == 1) {
    run_elements(Copy<T>{from, to, Ahead<T>(from, from, count)}, count, stream);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i * to_step] = from[i * from_step];
  }
}

template <typename T>
HWY_INLINE void request_later(const T* row, int64_t count) {
  constexpr int64_t kLine = kLineBytes / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < count; i += kLine) prefetch_later(row + i);
}

// The values of a token into their cache.
template <typename T>
HWY_ATTR void append_values(const NormRotaryArgs& args, int64_t batch, int64_t token) {
  const HeadStrides& strides = args.v.in_strides;
  const T* const from =
      static_cast<const T*>(args.v.in) + batch * strides.batch + token * strides.token;
  if (args.values.scaling.is_eight_bits()) {
    const int64_t slot = args.slot(batch, token);
    const int64_t next = tokens_ahead(strides, static_cast<int64_t>(sizeof(T)));
    for (int64_t head = 0; head < args.v.heads; ++head) {
      const T* const row = from + head * strides.head;
      request_later(row + next, strides.dim == 1 ? args.v_dim : 0);
      append_eight_bits(args, args.values, batch, slot, head, row, strides.dim, args.v_dim,
                        args.rotary.non_temporal);
    }
    return;
  }
  const CachePlace<T> place(args, args.values, batch, token);
  if (place.first == nullptr) return;
  int64_t heads = args.v.heads, count = args.v_dim;
  if (strides.dim == 1 && strides.head == count && args.values.dim_stride == 1 &&
      args.values.head_stride == count) {  // one run
    count *= heads;
    heads = std::min<int64_t>(heads, 1);
  }
  const int64_t ahead = tokens_ahead(strides, static_cast<int64_t>(sizeof(T)));
  for (int64_t head = 0; head < heads; ++head) {
    const T* const row = from + head * strides.head;
    request_later(row + ahead, strides.dim == 1 ? count : 0);
    copy_row(row, strides.dim, place.of_head(head), args.values.dim_stride, count,
             args.rotary.non_temporal);
  }
}

template <typename T>
const T* row_of(const RotaryTensor& x, int64_t batch, int64_t token, int64_t head) {
  return static_cast<const T*>(x.in) + batch * x.in_strides.batch + token * x.in_strides.token +
         head * x.in_strides.head;
}
template <typename T>
T* result_of(const RotaryTensor& x, int64_t batch, int64_t token, int64_t head) {
  if (x.out == nullptr) return nullptr;
  return static_cast<T*>(x.out) + batch * x.out_strides.batch + token * x.out_strides.token +
         head * x.out_strides.head;
}

// --- Heads of whole vectors

template <typename T, bool kInterleaved, Rounding kRounding, bool kMultiplies>
class WholeRows {
  using Row = WholeRow<T, kInterleaved, kRounding, kMultiplies>;
  using Number = Real<T>;

 public:
  explicit WholeRows(const NormRotaryArgs& args)
      : args_(args),
        row_(args.rotary),
        factors_{{args, 0, PartialSums<T>::kChunk, kEvenOddChunks<T>},
                 {args, 1, PartialSums<T>::kChunk, kEvenOddChunks<T>}} {
    if (keys_have_eight_bits()) {
      numbers_.resize(static_cast<size_t>(args.rotary.head_dim));
      return;
    }
    if (!args.appends() || args.rotary.tensors[1].out == nullptr) return;
    // Rows go to two places from a line's beginning: they are copied by whole lines.
    staged_.resize(static_cast<size_t>(args.rotary.head_dim + kLineBytes));
    const auto beyond = reinterpret_cast<uintptr_t>(staged_.data()) % kLineBytes;
    stage_ = staged_.data() + (kLineBytes - static_cast<int64_t>(beyond)) % kLineBytes / kSize;
  }

  HWY_ATTR void run(int64_t begin, int64_t end) {
    const RotaryArgs& rotary = args_.rotary;
    const Piece piece = Piece::whole(rotary);
    angles_.enter(rotary, piece);
    while (begin < end) {
      const int64_t batch = begin / rotary.tokens, token = begin % rotary.tokens;
      const int64_t count = std::min({angles_.tokens(), end - begin, rotary.tokens - token});
      angles_.compute(rotary, piece, batch, token, count);
      run_block({batch, token, count});
      begin += count;
    }
  }

 private:
  static constexpr int64_t kSize = static_cast<int64_t>(sizeof(T));
  // Where nothing is multiplied memory is what they wait for, and several rows at once ask it for
  // too much.
  static constexpr int kAtOnce = kMultiplies ? kRowsAtOnce<T> : 1;

  // The tokens first .. first + count - 1 of one batch row.
  struct Block {
    int64_t batch, first, count;
  };

  // Rows one after the other in memory: tokens of a head, or heads of a token.
  struct Run {
    int tensor;
    const T* in;
    T* out;              // null: nowhere
    T* const* place;     // of the first row's token; null: no cache
    int64_t first_slot;  // of the first row, from its place
    int64_t count, in_step, out_step, place_step, slot_step;
    const Number* cosine;
    const Number* sine;
    int64_t angle_step;
    const Number* factor;
    int64_t factor_step;
    const Number* query;  // factors of the rows' tokens; null: none
    int64_t query_step;
    int64_t batch, first_token, first_head, token_step, head_step;  // of rows, for 8 bits
    bool stream_out, stream_slots;
    bool alike;     // angles, factors and places of all rows
    int64_t ahead;  // from a row to one that comes later
  };

  // Along memory. Where the heads of a token are neighbors, q, k and v of a token may be too.
  HWY_ATTR void run_block(const Block& block) {
    const bool places = args_.appends() && !keys_have_eight_bits();
    for (int64_t t = 0; places && t < block.count; ++t) {
      places_[t] = CachePlace<T>(args_, args_.keys, block.batch, block.first + t).first;
    }
    for (int64_t t = 0; args_.query_scale && t < block.count; ++t) {
      queries_[t] = args_.template query_factor<Number>(block.batch, block.first + t);
    }
    Run runs[2];
    bool along_tokens[2];
    for (int i = 0; i < 2; ++i) {
      const RotaryTensor& x = args_.rotary.tensors[i];
      along_tokens[i] =
          std::abs(x.in_strides.token) < std::abs(x.in_strides.head) && !args_.over_token;
      runs[i] = start(i, block, along_tokens[i]);
      for (int64_t head = 0; along_tokens[i] && head < x.heads; ++head) {
        run_rows(of_head(runs[i], head), 1);
      }
    }
    for (int64_t t = 0; t < block.count; ++t) {
      for (int i = 0; i < 2; ++i) {
        if (along_tokens[i]) continue;
        const Run run = of_token(runs[i], t);
        run_rows(run, args_.over_token ? token_root(run) : Number(1));
      }
      if (args_.appends()) append_values<T>(args_, block.batch, block.first + t);
    }
  }

  HWY_ATTR Run start(int tensor, const Block& block, bool along_tokens) const {
    const RotaryTensor& x = args_.rotary.tensors[tensor];
    const int64_t per_token = static_cast<int64_t>(angles_.numbers());
    const int64_t of_head = factors_[tensor].stride();
    const bool cached = tensor == 1 && args_.appends() && !keys_have_eight_bits();
    const bool streams = args_.rotary.non_temporal && HWY_ARCH_X86 != 0;
    const HeadStrides &in = x.in_strides, &out = x.out_strides;
    Run run{};
    run.tensor = tensor;
    run.in = row_of<T>(x, block.batch, block.first, 0);
    run.out = result_of<T>(x, block.batch, block.first, 0);
    run.place = cached ? places_ : nullptr;
    run.cosine = angles_.cosine();
    run.sine = angles_.sine();
    run.factor = factors_[tensor].of_head(0);
    run.query = tensor == 0 && args_.query_scale ? queries_ : nullptr;
    run.query_step = along_tokens ? 1 : 0;
    run.stream_out = streams && x.in != x.out && in_lines(x.out, out.batch | out.token | out.head);
    run.stream_slots = streams && cached &&
                       in_lines(args_.keys.data, args_.keys.row_stride | args_.keys.slot_stride |
                                                     args_.keys.head_stride);
    run.ahead = tokens_ahead(in, kSize);
    run.batch = block.batch;
    run.first_token = block.first;
    run.token_step = along_tokens ? 1 : 0;
    run.head_step = along_tokens ? 0 : 1;
    run.alike = !along_tokens && of_head == 0 && (run.out == nullptr || run.place == nullptr);
    if (along_tokens) {
      run.count = block.count;
      run.in_step = in.token;
      run.out_step = out.token;
      run.place_step = 1;
      run.angle_step = per_token;
    } else {
      run.count = x.heads;
      run.in_step = in.head;
      run.out_step = out.head;
      run.slot_step = args_.keys.head_stride;
      run.factor_step = of_head;
    }
    return run;
  }

  HWY_ATTR Run of_head(Run run, int64_t head) const {
    const RotaryTensor& x = args_.rotary.tensors[run.tensor];
    run.in += head * x.in_strides.head;
    if (run.out != nullptr) run.out += head * x.out_strides.head;
    run.factor = factors_[run.tensor].of_head(head);
    run.slot_step = 0;
    run.first_slot = head * args_.keys.head_stride;
    run.first_head = head;
    return run;
  }

  HWY_ATTR Run of_token(Run run, int64_t t) const {
    const RotaryTensor& x = args_.rotary.tensors[run.tensor];
    const int64_t per_token = static_cast<int64_t>(angles_.numbers());
    run.in += t * x.in_strides.token;
    if (run.out != nullptr) run.out += t * x.out_strides.token;
    if (run.place != nullptr) run.place += t;
    if (run.query != nullptr) run.query += t;
    run.first_token += t;
    run.cosine += t * per_token;
    run.sine += t * per_token;
    return run;
  }

  HWY_ATTR Number token_root(const Run& run) const {
    Number sum = 0;
    for (int64_t i = 0; i < run.count; ++i) {
      sum += sum_of_last<Number>(row_.squares(run.in + i * run.in_step));
    }
    const Number dims = static_cast<Number>(args_.rotary.head_dim * run.count);
    return inverse_root(sum, dims, static_cast<Number>(args_.eps));
  }

  // given_root: of all rows, where the mean is over all heads of a token. Else the squares of many
  // rows are summed before these are written: nothing waits for a square root.
  HWY_ATTR void run_rows(const Run& given, Number given_root) {
    const Run run = given;  // and the row: copies, since what is written might be members of them
    const Row row = row_;
    Number roots[kRowsTogether];
    const bool sums_here = kMultiplies && args_.norm && !args_.over_token;
    for (int64_t i = 0; i < run.count; i += kRowsTogether) {
      const int64_t end = std::min(i + kRowsTogether, run.count);
      if (sums_here) {
        find_roots(run, row, i, end, roots);
      } else {
        std::fill(roots, roots + kRowsTogether, given_root);
      }
      if (kMultiplies && run.query != nullptr) {
        for (int64_t j = i; j < end; ++j) roots[j - i] *= run.query[j * run.query_step];
      }
      int64_t j = i;
      for (; run.tensor == 1 && keys_have_eight_bits() && j < end; ++j) {
        request(run, j);
        write_eight_bits(run, row, j, roots + (j - i));
      }
      if constexpr (kAtOnce > 1) {
        for (; run.alike && j + kAtOnce <= end; j += kAtOnce) {
          for (int k = 0; k < kAtOnce; ++k) request(run, j + k);
          write<kAtOnce>(run, row, j, roots + (j - i));
        }
      }
      for (; j < end; ++j) {
        request(run, j);
        write<1>(run, row, j, roots + (j - i));
      }
    }
  }

  HWY_ATTR HWY_INLINE void find_roots(const Run& run, const Row& row, int64_t first, int64_t end,
                                      Number* roots) const {
    LastSums<Number> sums[kRowsTogether];
    const int64_t count = end - first;
    for (int64_t i = 0; i < count; ++i) sums[i] = row.squares(run.in + (first + i) * run.in_step);
    for (int64_t i = count; i % 4 != 0; ++i) sums[i] = hn::Zero(LastSumsTag<Number>());
    for (int64_t i = 0; i < count; i += 4) {
      inverse_roots_of_four<Number>(sums + i, static_cast<Number>(args_.rotary.head_dim),
                                    static_cast<Number>(args_.eps), roots + i);
    }
  }

  // Row by row: the processor has few requests at a time, and those of several rows at once would
  // wait for each other.
  HWY_INLINE void request(const Run& run, int64_t i) const {
    const char* const row = reinterpret_cast<const char*>(run.in + i * run.in_step + run.ahead);
    const int64_t bytes = args_.rotary.head_dim * kSize;
    int64_t at = 0;
    for (; at + 4 * kLineBytes <= bytes; at += 4 * kLineBytes) {
      unrolled<4>([&](auto line) POSENC_INLINED { hwy::Prefetch(row + at + line * kLineBytes); });
    }
    for (; at < bytes; at += kLineBytes) hwy::Prefetch(row + at);
  }

  // Whether rows at these steps are whole lines of the cache.
  bool in_lines(const void* data, int64_t steps) const {
    const int64_t parts = steps | args_.rotary.head_dim | args_.rotary.start |
                          (kInterleaved ? 0 : args_.rotary.half_block);
    return data != nullptr && (reinterpret_cast<int64_t>(data) | parts * kSize) % kLineBytes == 0;
  }

  // The rows i .. i + kCount - 1; several only where they are alike.
  template <int kCount>
  HWY_ATTR HWY_INLINE void write(const Run& run, const Row& row, int64_t i,
                                 const Number* roots) const {
    const T* const in = run.in + i * run.in_step;
    const Number* const cosine = run.cosine + i * run.angle_step;
    const Number* const sine = run.sine + i * run.angle_step;
    const Number* const factor = run.factor + i * run.factor_step;
    T* const out = run.out == nullptr ? nullptr : run.out + i * run.out_step;
    T* slot = run.place == nullptr ? nullptr : run.place[i * run.place_step];
    if (slot != nullptr) slot += run.first_slot + i * run.slot_step;
    const bool staged = kCount == 1 && out != nullptr && slot != nullptr;
    T* const to = staged ? stage_ : out != nullptr ? out : slot;
    const int64_t step = out != nullptr ? run.out_step : run.slot_step;
    if (to == nullptr) return;
    if (!staged && (to == out ? run.stream_out : run.stream_slots)) {
      row.template write<Store::kStream, kCount>(in, run.in_step, to, step, roots, factor, cosine,
                                                 sine);
    } else {
      row.template write<Store::kOrdinary, kCount>(in, run.in_step, to, step, roots, factor, cosine,
                                                   sine);
    }
    if (staged) {
      const int64_t dims = args_.rotary.head_dim;
      copy_row<T>(stage_, 1, out, 1, dims, run.stream_out);
      copy_row<T>(stage_, 1, slot, 1, dims, run.stream_slots);
    }
  }

  bool keys_have_eight_bits() const { return args_.keys.scaling.is_eight_bits(); }

  // A row of keys, as Numbers first: it is rounded once for each place.
  HWY_ATTR void write_eight_bits(const Run& run, const Row& row, int64_t i, const Number* roots) {
    row.template write<Store::kOrdinary, 1>(
        run.in + i * run.in_step, 0, numbers_.data(), 0, roots, run.factor + i * run.factor_step,
        run.cosine + i * run.angle_step, run.sine + i * run.angle_step);
    const int64_t token = run.first_token + i * run.token_step;
    append_eight_bits(args_, args_.keys, run.batch, args_.slot(run.batch, token),
                      run.first_head + i * run.head_step, numbers_.data(), 1, args_.rotary.head_dim,
                      args_.rotary.non_temporal);
    if (run.out == nullptr) return;
    convert_run<true>(numbers_.data(), 1, args_.rotary.head_dim, run.out + i * run.out_step);
  }

  const NormRotaryArgs& args_;
  const Row row_;
  const NormFactors<Number> factors_[2];
  std::vector<Number> numbers_;
  std::vector<T> staged_;
  T* stage_ = nullptr;
  T* places_[kMaxBlockTokens];       // in the cache of keys, of the block's tokens; null: nowhere
  Number queries_[kMaxBlockTokens];  // factors of queries, of the block's tokens
  typename Row::Angles angles_;
};

// --- All others

template <typename T>
class AnyRows {
  using Number = Real<T>;

 public:
  explicit AnyRows(const NormRotaryArgs& args)
      : args_(args),
        factors_{{args, 0, 1, false}, {args, 1, 1, false}},
        rotation_(args.rotary, args.rotary.as_written),
        row_(args.rotary.head_dim),
        rounded_(static_cast<size_t>(args.rotary.head_dim + kPartialSums)) {}

  HWY_ATTR void run(int64_t begin, int64_t end) {
    const RotaryArgs& rotary = args_.rotary;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t batch = row / rotary.tokens, token = row % rotary.tokens;
      rotation_.go_to(batch, token);
      const bool eight_bits = args_.keys.scaling.is_eight_bits();
      const CachePlace<T> place =
          eight_bits ? CachePlace<T>() : CachePlace<T>(args_, args_.keys, batch, token);
      for (int i = 0; i < rotary.tensor_count; ++i) {
        const RotaryTensor& x = rotary.tensors[i];
        const Number query = i == 0 ? args_.template query_factor<Number>(batch, token) : Number(1);
        const bool multiplies = args_.norm || (i == 0 && args_.query_scale);
        Number token_root = 1;
        if (args_.over_token) {
          Number sum = 0;
          for (int64_t head = 0; head < x.heads; ++head) {
            read(x, batch, token, head);
            sum += square_sum();
          }
          token_root = root(sum, rotary.head_dim * x.heads);
        }
        for (int64_t head = 0; head < x.heads; ++head) {
          read(x, batch, token, head);
          if (multiplies) {
            const bool sums_here = args_.norm && !args_.over_token;
            scale(i, head, query * (sums_here ? root(square_sum(), rotary.head_dim) : token_root));
          }
          if (args_.norm_first || !args_.norm) rotation_.template turn<false>(row_, head);
          row_.round_to_row(rounded_.data());
          write(result_of<T>(x, batch, token, head), x.out_strides.dim);
          if (i == 1 && eight_bits) {
            append_eight_bits(args_, args_.keys, batch, args_.slot(batch, token), head, row_.data(),
                              1, rotary.head_dim);
          } else if (i == 1) {
            write(place.of_head(head), args_.keys.dim_stride);
          }
        }
      }
      if (args_.appends()) append_values<T>(args_, batch, token);
    }
  }

 private:
  // The row as the norm finds it.
  HWY_ATTR void read(const RotaryTensor& x, int64_t batch, int64_t token, int64_t head) {
    row_.template read<T>(row_of<T>(x, batch, token, head), x.in_strides.dim);
    if (args_.norm && !args_.norm_first) rotation_.template turn<false>(row_, head);
  }

  HWY_ATTR Number square_sum() const {
    return sum_of_products(row_.data(), row_.data(), row_.padded());
  }

  HWY_ATTR Number root(Number sum, int64_t count) const {
    return inverse_root(sum, static_cast<Number>(count), static_cast<Number>(args_.eps));
  }

  HWY_ATTR void scale(int tensor, int64_t head, Number r) {
    const Number* const factor = factors_[tensor].of_head(head);
    if (!args_.rotary.as_written) {
      row_.template scale<T, false, false>(r, factor);
    } else if (args_.rounded_before_weight[tensor]) {
      row_.template scale<T, true, true>(r, factor);
    } else {
      row_.template scale<T, false, true>(r, factor);
    }
  }

  HWY_ATTR void write(T* to, int64_t step) const {
    if (to != nullptr) copy_row<T>(rounded_.data(), 1, to, step, args_.rotary.head_dim, false);
  }

  const NormRotaryArgs& args_;
  const NormFactors<Number> factors_[2];
  BufferRotation<T> rotation_;
  RowBuffer<Number> row_;
  std::vector<T> rounded_;
};

template <typename T, bool kInterleaved, Rounding kRounding>
HWY_ATTR void run_whole(const NormRotaryArgs& args, int64_t begin, int64_t end) {
  if (args.multiplies()) {
    WholeRows<T, kInterleaved, kRounding, true> rows(args);
    rows.run(begin, end);
  } else {
    WholeRows<T, kInterleaved, kRounding, false> rows(args);
    rows.run(begin, end);
  }
}

template <typename T, bool kInterleaved>
HWY_ATTR bool run_if_whole(const NormRotaryArgs& args, int64_t begin, int64_t end) {
  constexpr bool kMayConvert = HWY_TARGET == HWY_AVX3 && std::is_same_v<T, BFloat16>;
  if (!WholeRow<T, kInterleaved, Rounding::kOnce, true>::fits(args)) return false;
  if (kMayConvert && bfloat16_instructions.load(std::memory_order_relaxed)) {
    run_whole<T, kInterleaved, kMayConvert ? Rounding::kOnceByInstruction : Rounding::kOnce>(
        args, begin, end);
  } else {
    run_whole<T, kInterleaved, Rounding::kOnce>(args, begin, end);
  }
  return true;
}

template <typename T>
HWY_ATTR void run_norm_rotary(const NormRotaryArgs& args, int64_t begin, int64_t end) {
  const bool interleaved = args.rotary.half_block == 1;
  if (interleaved ? run_if_whole<T, true>(args, begin, end)
                  : run_if_whole<T, false>(args, begin, end)) {
    return;
  }
  AnyRows<T> rows(args);
  rows.run(begin, end);
}

HWY_ATTR void norm_rotate_tokens(const NormRotaryArgs& args, int64_t begin, int64_t end) {
  visit_type(args.rotary.dtype,
             [&](auto type) { run_norm_rotary<decltype(type)>(args, begin, end); });
  if (args.rotary.non_temporal) hwy::FlushStream();
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void norm_rotary(const NormRotaryArgs& args, int64_t begin, int64_t end) {
  norm_rotate_tokens(args, begin, end);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
