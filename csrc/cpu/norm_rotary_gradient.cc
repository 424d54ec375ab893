// Gradients of norm and rotation: with respect to x and to the weights, in one pass.
//
//   y = R(w x r):   h = R^-1 g,  u = w h
//   y = w r R(x):   z = R(x) in the place of x,  h = g,  u = w h
//
//   dx = r (u - x r^2 mean(u x)), turned back where the norm was last;   dw = sum of h x r
//
// Of queries with a factor of their positions, g times that factor stands for g.
//
// r is computed again: x alone was kept. A piece is some tokens with all their heads. Its sums of
// dw are float32 for 32 tokens, then float64; neither pieces nor the order of a sum depends on who
// does them.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <vector>

#include "core/norm_rotary.h"
#include "core/visit_type.h"
#include "cpu/elements-inl.h"
#include "cpu/norm_rotary_rows-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How many tokens ahead rows are requested.
constexpr int64_t kGradientTokensAhead = 2;

inline int64_t place_of(const HeadStrides& strides, int64_t batch, int64_t token, int64_t head) {
  return batch * strides.batch + token * strides.token + head * strides.head;
}

// --- Heads of whole vectors, of which a norm over each comes first
//
//   four rows:   g turned back -> h, in memory
//                x, h -> the sums of x^2 and u x           latencies of the four overlap
//                x, h -> dx, and dw added up               x and h come from the first-level cache

template <typename T, bool kInterleaved>
class WholeRowsGradient {
  using Row = WholeRow<T, kInterleaved, Rounding::kOnce, true>;
  using Number = Real<T>;
  using D = RealTag<T>;
  using V = hn::Vec<D>;
  using Sums = PartialSums<T>;
  static constexpr int64_t kChunk = Sums::kChunk;
  static constexpr int64_t kSize = static_cast<int64_t>(sizeof(T));
  static constexpr int kRows = 4;

 public:
  static bool fits(const NormRotaryGradientArgs& args) {
    NormRotaryArgs forward = args.forward;
    forward.rotary.as_written = false;  // gradients are of what is not rounded
    return Row::fits(forward) && forward.norm_first && !forward.over_token &&
           args.grad_strides[0].dim == 1 && args.grad_strides[1].dim == 1;
  }

  explicit WholeRowsGradient(const NormRotaryGradientArgs& args)
      : args_(args),
        forward_(args.forward),
        back_(args.forward.rotary),
        dims_(args.forward.rotary.head_dim),
        factors_{{forward_, 0, kChunk, kEvenOddChunks<T>},
                 {forward_, 1, kChunk, kEvenOddChunks<T>}},
        h_(static_cast<size_t>(kRows * dims_)) {
    back_.inverse = !back_.inverse;
    for (int i = 0; i < 2; ++i) {
      if (args.weight_sums[i] == nullptr) continue;
      sums_[i].resize(static_cast<size_t>(args.weight_count(i)));
    }
  }

  // The tokens [begin, end) of a piece.
  HWY_ATTR void run(int64_t begin, int64_t end, double* const* weight_sums) {
    const Piece piece = Piece::whole(back_);
    angles_.enter(back_, piece);
    const int64_t most = std::min(NormRotaryGradientArgs::kTokensOfSum, angles_.tokens());
    for (int64_t first = begin; first < end;) {
      const int64_t last = std::min(first + NormRotaryGradientArgs::kTokensOfSum, end);
      for (std::vector<Number>& sums : sums_) std::fill(sums.begin(), sums.end(), Number(0));
      while (first < last) {
        const int64_t batch = first / back_.tokens, token = first % back_.tokens;
        const int64_t count = std::min({most, last - first, back_.tokens - token});
        angles_.compute(back_, piece, batch, token, count);
        for (int64_t t = 0; t < count; ++t) run_token(batch, token + t, t);
        first += count;
      }
      for (int i = 0; i < 2; ++i) add_sums(i, weight_sums[i]);
    }
  }

 private:
  HWY_ATTR void run_token(int64_t batch, int64_t token, int64_t t) {
    const int64_t at = t * static_cast<int64_t>(angles_.numbers());
    const Number* const cosine = angles_.cosine() + at;
    const Number* const sine = angles_.sine() + at;
    query_ = forward_.template query_factor<Number>(batch, token);
    for (int i = 0; i < 2; ++i) {
      const RotaryTensor& tensor = forward_.rotary.tensors[i];
      const HeadStrides& strides = args_.grad_strides[i];
      const T* const x =
          static_cast<const T*>(tensor.in) + place_of(tensor.in_strides, batch, token, 0);
      const T* const g = static_cast<const T*>(args_.grads[i]) + place_of(strides, batch, token, 0);
      T* const out = static_cast<T*>(tensor.out) + place_of(tensor.out_strides, batch, token, 0);
      const bool stream =
          back_.non_temporal && HWY_ARCH_X86 != 0 &&
          (reinterpret_cast<int64_t>(tensor.out) |
           (tensor.out_strides.batch | tensor.out_strides.token | tensor.out_strides.head | dims_) *
               kSize) %
                  kLineBytes ==
              0;
      for (int64_t head = 0; head < tensor.heads; head += kRows) {
        const int64_t count = std::min<int64_t>(kRows, tensor.heads - head);
        run_rows(i, head, count, x + head * tensor.in_strides.head, tensor.in_strides,
                 g + head * strides.head, strides, out + head * tensor.out_strides.head,
                 tensor.out_strides.head, cosine, sine, stream);
      }
    }
  }

  HWY_ATTR HWY_INLINE void run_rows(int tensor, int64_t head, int64_t count, const T* x,
                                    const HeadStrides& x_strides, const T* g,
                                    const HeadStrides& g_strides, T* out, int64_t out_step,
                                    const Number* cosine, const Number* sine, bool stream) {
    LastSums<Number> squares[kRows], products[kRows];
    for (int64_t j = 0; j < kRows; ++j) {
      const int64_t row = std::min(j, count - 1);  // beyond the last one: that one again
      const T* const x_row = x + row * x_strides.head;
      const T* const g_row = g + row * g_strides.head;
      for (int64_t at = 0; at < dims_; at += kLineBytes / kSize) {
        prefetch_later(x_row + kGradientTokensAhead * x_strides.token + at);
        prefetch_later(g_row + kGradientTokensAhead * g_strides.token + at);
      }
      Number* const h = h_.data() + row * dims_;
      turn_back(g_row, h, cosine, sine, tensor == 0 ? query_ : Number(1));
      sum(x_row, h, factors_[tensor].of_head(head + row), squares[j], products[j]);
    }
    Number roots[kRows], pulls[kRows];
    roots_and_pulls(squares, products, roots, pulls);
    for (int64_t j = 0; j < count; ++j) {
      const T* const x_row = x + j * x_strides.head;
      const Number* const h = h_.data() + j * dims_;
      const Number* const factor = factors_[tensor].of_head(head + j);
      Number* const sums = sums_of(tensor, head + j);
      T* const to = out + j * out_step;
      if (stream) {
        finish<Store::kStream>(x_row, h, factor, roots[j], pulls[j], sums, to);
      } else {
        finish<Store::kOrdinary>(x_row, h, factor, roots[j], pulls[j], sums, to);
      }
    }
  }

  Number* sums_of(int tensor, int64_t head) {
    if (sums_[tensor].empty()) return nullptr;
    return sums_[tensor].data() + (forward_.weights[tensor].heads == 1 ? 0 : head) * dims_;
  }

  // Numbers in chunks; `query`: what g is multiplied by.
  HWY_ATTR HWY_INLINE void turn_back(const T* g, Number* h, const Number* cosine,
                                     const Number* sine, Number query) const {
    const D d;
    const V factor = hn::Set(d, query);
    const auto load_scaled = [&](const T* from, V& x0, V& x1) POSENC_INLINED {
      load_chunk(d, from, x0, x1);
      x0 = hn::Mul(x0, factor);
      x1 = hn::Mul(x1, factor);
    };
    const int64_t start = back_.start, end = start + 2 * back_.pairs, half = back_.half_block;
    for (int64_t dim = 0; dim < dims_; dim += kChunk) {
      if (dim == start) dim = end;
      if (dim >= dims_) break;
      V x0, x1;
      load_scaled(g + dim, x0, x1);
      keep(x0, x1, h + dim);
    }
    if constexpr (kInterleaved) {
      for (int64_t dim = start; dim < end; dim += kChunk) {
        V x0, x1;
        load_scaled(g + dim, x0, x1);
        Row::turn_chunk(x0, x1, cosine, sine);
        keep(x0, x1, h + dim);
        cosine += Row::kAnglesOfChunk;
        sine += Row::kAnglesOfChunk;
      }
    } else {
      for (int64_t dim = start; dim < start + half; dim += kChunk) {
        V a0, a1, b0, b1;
        load_scaled(g + dim, a0, a1);
        load_scaled(g + dim + half, b0, b1);
        Row::turn_chunks(a0, a1, b0, b1, cosine, sine);
        keep(a0, a1, h + dim);
        keep(b0, b1, h + dim + half);
        cosine += kChunk;
        sine += kChunk;
      }
    }
  }

  static HWY_INLINE void keep(V x0, V x1, Number* to) {
    const D d;
    hn::StoreU(x0, d, to);
    hn::StoreU(x1, d, to + hn::Lanes(d));
  }

  HWY_ATTR HWY_INLINE void sum(const T* x, const Number* h, const Number* factor,
                               LastSums<Number>& squares, LastSums<Number>& products) const {
    const D d;
    Sums of_squares, of_products;
    const auto add = [&](auto i, int64_t dim) POSENC_INLINED {
      V x0, x1;
      load_chunk(d, x + dim, x0, x1);
      const V u0 = hn::Mul(hn::LoadU(d, h + dim), hn::LoadU(d, factor + dim));
      const V u1 =
          hn::Mul(hn::LoadU(d, h + dim + hn::Lanes(d)), hn::LoadU(d, factor + dim + hn::Lanes(d)));
      of_squares.add(i, x0, x1, x0, x1);
      of_products.add(i, u0, u1, x0, x1);
    };
    int64_t dim = 0;
    for (; dim + kPartialSums <= dims_; dim += kPartialSums) {
      unrolled<Sums::kChunks>([&](auto i) POSENC_INLINED { add(i, dim + i * kChunk); });
    }
    unrolled<Sums::kChunks>([&](auto i) POSENC_INLINED {
      if (dim + i * kChunk < dims_) add(i, dim + i * kChunk);
    });
    squares = of_squares.last();
    products = of_products.last();
  }

  HWY_ATTR HWY_INLINE void roots_and_pulls(const LastSums<Number>* squares,
                                           const LastSums<Number>* products, Number* roots,
                                           Number* pulls) const {
    const Number count = static_cast<Number>(dims_);
    inverse_roots_of_four<Number>(squares, count, static_cast<Number>(forward_.eps), roots);
    const LastSumsTag<Number> d;
    sums_of_four<Number>(products, [&](int i, LastSums<Number> sums) POSENC_INLINED {
      const auto r = hn::LoadU(d, roots + i);
      hn::StoreU(hn::Mul(hn::Mul(r, r), hn::Div(sums, hn::Set(d, count))), d, pulls + i);
    });
  }

  // dx, and the sums of h x r.
  template <Store kStore>
  HWY_ATTR HWY_INLINE void finish(const T* x, const Number* h, const Number* factor, Number r,
                                  Number pull, Number* sums, T* to) const {
    const D d;
    const V root = hn::Set(d, r), minus_pull = hn::Set(d, -pull);
    for (int64_t dim = 0; dim < dims_; dim += kChunk) {
      V x0, x1;
      load_chunk(d, x + dim, x0, x1);
      const auto one = [&](V x, int64_t at) POSENC_INLINED {
        const V h_at = hn::LoadU(d, h + at);
        if (sums != nullptr) {
          const V sum = hn::MulAdd(h_at, hn::Mul(x, root), hn::LoadU(d, sums + at));
          hn::StoreU(sum, d, sums + at);
        }
        const V u = hn::Mul(h_at, hn::LoadU(d, factor + at));
        return hn::Mul(root, hn::MulAdd(x, minus_pull, u));
      };
      x0 = one(x0, dim);
      x1 = one(x1, dim + static_cast<int64_t>(hn::Lanes(d)));
      store_chunk<kStore, false>(x0, x1, d, to + dim);
    }
  }

  // From the order of chunks.
  void add_sums(int tensor, double* to) const {
    if (sums_[tensor].empty()) return;
    constexpr int64_t kHalf = kChunk / 2;
    const int64_t count = static_cast<int64_t>(sums_[tensor].size());
    const Number* const sums = sums_[tensor].data();
    for (int64_t first = 0; first < count; first += kChunk) {
      for (int64_t i = 0; i < kChunk; ++i) {
        const int64_t at = kEvenOddChunks<T> ? i / 2 + i % 2 * kHalf : i;
        to[first + i] += static_cast<double>(sums[first + at]);
      }
    }
  }

  const NormRotaryGradientArgs& args_;
  const NormRotaryArgs& forward_;
  RotaryArgs back_;
  const int64_t dims_;
  const NormFactors<Number> factors_[2];
  std::vector<Number> h_;
  std::vector<Number> sums_[2];
  Number query_ = 1;  // the factor of the token's queries
  typename Row::Angles angles_;
};

// --- All others

template <typename T>
class NormRotaryGradient {
  using Number = Real<T>;
  using D = RealTag<T>;

 public:
  explicit NormRotaryGradient(const NormRotaryGradientArgs& args)
      : args_(args),
        forward_(args.forward),
        dims_(args.forward.rotary.head_dim),
        rotation_(args.forward.rotary, false),
        x_(dims_),
        h_(dims_),
        u_(dims_),
        rounded_(static_cast<size_t>(dims_ + kPartialSums)) {
    for (int i = 0; i < 2; ++i) {
      const NormFactors<Number> factors(forward_, i, 1, false);
      const int64_t heads = forward_.weights[i].heads;
      factors_[i].assign(static_cast<size_t>(heads * x_.padded()), Number(0));
      for (int64_t head = 0; head < heads; ++head) {
        std::copy_n(factors.of_head(head), dims_, factors_[i].data() + head * x_.padded());
      }
      if (args.weight_sums[i] != nullptr) sums_[i].resize(factors_[i].size());
    }
  }

  // The tokens [begin, end) of a piece.
  HWY_ATTR void run(int64_t begin, int64_t end, double* const* weight_sums) {
    for (int64_t first = begin; first < end; first += NormRotaryGradientArgs::kTokensOfSum) {
      const int64_t last = std::min(first + NormRotaryGradientArgs::kTokensOfSum, end);
      for (std::vector<Number>& sums : sums_) std::fill(sums.begin(), sums.end(), Number(0));
      for (int64_t row = first; row < last; ++row) run_token(row);
      for (int i = 0; i < 2; ++i) add_sums(i, weight_sums[i]);
    }
  }

 private:
  HWY_ATTR void run_token(int64_t row) {
    const RotaryArgs& rotary = forward_.rotary;
    const int64_t batch = row / rotary.tokens, token = row % rotary.tokens;
    rotation_.go_to(batch, token);
    query_ = forward_.template query_factor<Number>(batch, token);
    for (int i = 0; i < rotary.tensor_count; ++i) {
      const RotaryTensor& x = rotary.tensors[i];
      Number squares = 0, products = 0;
      if (forward_.over_token) {
        for (int64_t head = 0; head < x.heads; ++head) {
          read(i, batch, token, head);
          squares += sum_of_products(x_.data(), x_.data(), x_.padded());
          products += sum_of_products(u_.data(), x_.data(), x_.padded());
        }
      }
      const int64_t count = forward_.over_token ? dims_ * x.heads : dims_;
      for (int64_t head = 0; head < x.heads; ++head) {
        read(i, batch, token, head);
        if (!forward_.over_token) {
          squares = sum_of_products(x_.data(), x_.data(), x_.padded());
          products = sum_of_products(u_.data(), x_.data(), x_.padded());
        }
        const Number total = static_cast<Number>(count);
        const Number r = inverse_root(squares, total, static_cast<Number>(forward_.eps));
        finish(i, head, r, r * r * (products / total));
        if (!forward_.norm_first) rotation_.template turn<true>(u_, head);
        u_.round_to_row(rounded_.data());
        T* const to = static_cast<T*>(x.out) + place_of(x.out_strides, batch, token, head);
        if (x.out_strides.dim == 1) {
          std::copy_n(rounded_.data(), dims_, to);
        } else {
          for (int64_t dim = 0; dim < dims_; ++dim) {
            to[dim * x.out_strides.dim] = rounded_[static_cast<size_t>(dim)];
          }
        }
      }
    }
  }

  // x (or z), h and u of a row.
  HWY_ATTR void read(int tensor, int64_t batch, int64_t token, int64_t head) {
    const RotaryTensor& x = forward_.rotary.tensors[tensor];
    const HeadStrides& strides = args_.grad_strides[tensor];
    x_.template read<T>(static_cast<const T*>(x.in) + place_of(x.in_strides, batch, token, head),
                        x.in_strides.dim);
    h_.template read<T>(
        static_cast<const T*>(args_.grads[tensor]) + place_of(strides, batch, token, head),
        strides.dim);
    if (tensor == 0 && forward_.query_scale) h_.multiply(query_);
    if (forward_.norm_first) {
      rotation_.template turn<true>(h_, head);
    } else {
      rotation_.template turn<false>(x_, head);
    }
    const D d;
    const Number* const factor = factor_of(tensor, head);
    for (int64_t dim = 0; dim < x_.padded(); dim += lanes(d)) {
      const auto u = hn::Mul(hn::LoadU(d, h_.data() + dim), hn::LoadU(d, factor + dim));
      hn::StoreU(u, d, u_.data() + dim);
    }
  }

  const Number* factor_of(int tensor, int64_t head) const {
    const int64_t row = forward_.weights[tensor].heads == 1 ? 0 : head;
    return factors_[tensor].data() + row * x_.padded();
  }

  // u = r (u - x pull), and the sums of h x r.
  HWY_ATTR void finish(int tensor, int64_t head, Number r, Number pull) {
    const D d;
    const auto root = hn::Set(d, r), minus_pull = hn::Set(d, -pull);
    Number* const sums =
        sums_[tensor].empty()
            ? nullptr
            : sums_[tensor].data() + (factor_of(tensor, head) - factors_[tensor].data());
    for (int64_t dim = 0; dim < dims_; dim += lanes(d)) {
      const auto x = hn::LoadU(d, x_.data() + dim), u = hn::LoadU(d, u_.data() + dim);
      hn::StoreU(hn::Mul(root, hn::MulAdd(x, minus_pull, u)), d, u_.data() + dim);
      if (sums != nullptr) {
        const auto xr = hn::Mul(x, root);
        const auto h = hn::LoadU(d, h_.data() + dim);
        hn::StoreU(hn::MulAdd(h, xr, hn::LoadU(d, sums + dim)), d, sums + dim);
      }
    }
  }

  void add_sums(int tensor, double* to) const {
    if (sums_[tensor].empty()) return;
    for (int64_t head = 0; head < forward_.weights[tensor].heads; ++head) {
      const Number* const sums = sums_[tensor].data() + head * x_.padded();
      for (int64_t dim = 0; dim < dims_; ++dim) *to++ += static_cast<double>(sums[dim]);
    }
  }

  const NormRotaryGradientArgs& args_;
  const NormRotaryArgs& forward_;
  const int64_t dims_;
  BufferRotation<T> rotation_;
  Number query_ = 1;  // the factor of the token's queries
  RowBuffer<Number> x_, h_, u_;
  std::vector<T> rounded_;
  std::vector<Number> factors_[2], sums_[2];  // rows of padded() Numbers
};

template <typename T>
HWY_ATTR void run_norm_gradient(const NormRotaryGradientArgs& args, int64_t begin, int64_t end,
                                double* const* weight_sums) {
  const bool interleaved = args.forward.rotary.half_block == 1;
  if (interleaved && WholeRowsGradient<T, true>::fits(args)) {
    WholeRowsGradient<T, true> gradient(args);
    gradient.run(begin, end, weight_sums);
  } else if (!interleaved && WholeRowsGradient<T, false>::fits(args)) {
    WholeRowsGradient<T, false> gradient(args);
    gradient.run(begin, end, weight_sums);
  } else {
    NormRotaryGradient<T> gradient(args);
    gradient.run(begin, end, weight_sums);
  }
}

HWY_ATTR void norm_rotate_piece_back(const NormRotaryGradientArgs& args, int64_t begin, int64_t end,
                                     double* const* weight_sums) {
  visit_type(args.forward.rotary.dtype,
             [&](auto type) { run_norm_gradient<decltype(type)>(args, begin, end, weight_sums); });
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void norm_rotary_gradient_piece(const NormRotaryGradientArgs& args, int64_t begin, int64_t end,
                                double* const* weight_sums) {
  norm_rotate_piece_back(args, begin, end, weight_sums);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
