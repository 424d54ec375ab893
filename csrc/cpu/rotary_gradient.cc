// Gradients of what turns the pairs: frequencies and positions.
//
//   out = R(t) x,  t[token, head, pair] = sum of position * frequency
//
//   grad of x             y = R(-t) grad: the rotation backwards, scale included
//   grad of t             sum of x_a y_b - x_b y_a over the heads that share the angle: the cross
//                         product of x and y, which turning both would not change
//   grad of a frequency   sum over tokens of position * grad of t
//   grad of a position    sum over pairs of frequency * grad of t
//
// A piece is some tokens with all their heads: they are turned and, while both sides are in the
// cache, summed. Neither the pieces nor the order of a sum depends on who does them. Numbers of 16
// bits are turned in float32, in memory for one piece: sums are of what has not been rounded.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/rotary.h"
#include "core/visit_type.h"
#include "cpu/elements-inl.h"
#include "cpu/kernels.h"
#include "cpu/numbers-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Pairs summed at a time.
constexpr int64_t kPairsAtOnce = 1024;
// How far ahead of the sums x is requested.
constexpr int64_t kTokensAhead = 8;

inline double as_real(double x) { return x; }
template <typename T>
inline float as_real(T x) {
  return to_float(x);
}

// x is of the type T; its gradient, as `turned` says, of Real<T>.
template <typename T, bool kInterleaved>
class GradientSums {
  using Number = Real<T>;
  using D = RealTag<T>;

 public:
  GradientSums(const RotaryGradientArgs& args, const RotaryArgs& turned)
      : args_(args), turned_(turned) {}

  // The tokens [begin, end), which add to the sums of one piece.
  HWY_ATTR void run(int64_t begin, int64_t end, double* frequency_sums) {
    const RotaryArgs& turned = turned_;
    const int64_t own = turned.inv_freq.heads;  // heads with frequencies of their own, or 1 for all
    take_up(begin, end);
    for (int64_t first = 0; first < turned.pairs; first += kPairsAtOnce) {
      const int64_t count = std::min(kPairsAtOnce, turned.pairs - first);
      first_block_ = first / turned.half_block;
      for (int64_t head = 0; head < own; ++head) {
        for (int64_t row = begin; row < end; ++row) {
          std::fill(sums_, sums_ + 2 * count, Number(0));
          const Token& token = tokens_[row - begin];
          for (int i = 0; i < turned.tensor_count; ++i) {
            const int64_t last = own == 1 ? turned.tensors[i].heads : head + 1;
            for (int64_t h = own == 1 ? 0 : head; h < last; ++h) {
              add_head(i, h, token, first, count);
            }
          }
          finish_token(head, token, row, first, count, frequency_sums);
        }
      }
    }
  }

 private:
  struct Token {
    int64_t batch, token;
    const double* positions;  // of every term or axis
  };

  // The tokens of a piece: heads look at them one after the other.
  void take_up(int64_t begin, int64_t end) {
    const RotaryArgs& turned = turned_;
    const int64_t axes = args_.position_axes();
    positions_.resize(static_cast<size_t>((end - begin) * axes));
    double* next = positions_.data();
    for (int64_t row = begin; row < end; ++row) {
      const int64_t batch = row / turned.tokens, token = row % turned.tokens;
      tokens_[row - begin] = {batch, token, next};
      const int64_t offset =
          batch * turned.position_batch_stride + token * turned.position_token_stride;
      for (int64_t axis = 0; axis < axes; ++axis) {
        *next++ = turned.positions.number_at<double>(offset + axis * turned.positions.axis_stride);
      }
    }
  }

  // One head of one token: its pairs first .. first + count - 1.
  HWY_ATTR void add_head(int tensor, int64_t head, const Token& at, int64_t first, int64_t count) {
    const RotaryArgs& turned = turned_;
    const auto offset = [&](const HeadStrides& strides, int64_t start) {
      return at.batch * strides.batch + at.token * strides.token + head * strides.head +
             start * strides.dim;
    };
    const HeadStrides& x_strides = args_.x_strides[tensor];
    const HeadStrides& y_strides = turned.tensors[tensor].out_strides;
    const T* const x =
        static_cast<const T*>(args_.x[tensor]) + offset(x_strides, args_.turned.start);
    const Number* const y =
        static_cast<const Number*>(turned.tensors[tensor].out) + offset(y_strides, turned.start);
    const int64_t half = turned.half_block;
    // A few tokens later, of this piece or of the next: y has just been written, x comes from
    // memory.
    const int64_t ahead = kTokensAhead * x_strides.token;
    if (x_strides.dim != 1 || y_strides.dim != 1) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t pair = first + i;
        const int64_t a = kInterleaved ? 2 * pair : pair + pair / half * half, b = a + half;
        add_pair(as_real(x[a * x_strides.dim]), as_real(x[b * x_strides.dim]), y[a * y_strides.dim],
                 y[b * y_strides.dim], i);
      }
    } else if (kInterleaved) {
      add_neighbours(x + 2 * first, y + 2 * first, count, ahead);
    } else {
      int64_t block = first_block_, within = first - block * half;
      for (int64_t i = 0; i < count; ++block, within = 0) {
        const int64_t run = std::min(half - within, count - i), at = 2 * half * block + within;
        add_partners(x + at, y + at, half, run, ahead, i);
        i += run;
      }
    }
  }

  // Sums of the products: x_a y_b and x_b y_a of a pair beside each other where the pairs are
  // neighbors, else their difference.
  void add_pair(Number xa, Number xb, Number ya, Number yb, int64_t i) {
    if (kInterleaved) {
      sums_[2 * i] += xa * yb;
      sums_[2 * i + 1] += xb * ya;
    } else {
      sums_[i] += xa * yb - xb * ya;
    }
  }

  HWY_ATTR void add_neighbours(const T* x, const Number* y, int64_t pairs, int64_t ahead) {
    const D d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t i = 0;
    for (; i + lanes <= 2 * pairs; i += lanes) {
      prefetch_later(x + i + ahead);
      const auto other = hn::Reverse2(d, load(d, y + i));
      hn::Store(hn::MulAdd(load(d, x + i), other, hn::Load(d, sums_ + i)), d, sums_ + i);
    }
    for (; i < 2 * pairs; i += 2) {
      add_pair(as_real(x[i]), as_real(x[i + 1]), y[i], y[i + 1], i / 2);
    }
  }

  HWY_ATTR void add_partners(const T* x, const Number* y, int64_t far, int64_t pairs, int64_t ahead,
                             int64_t first) {
    const D d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    Number* const sums = sums_ + first;
    int64_t i = 0;
    for (; i + lanes <= pairs; i += lanes) {
      prefetch_later(x + i + ahead);
      prefetch_later(x + i + far + ahead);
      auto sum = hn::LoadU(d, sums + i);
      sum = hn::MulAdd(load(d, x + i), load(d, y + i + far), sum);
      sum = hn::NegMulAdd(load(d, x + i + far), load(d, y + i), sum);
      hn::StoreU(sum, d, sums + i);
    }
    for (; i < pairs; ++i) {
      add_pair(as_real(x[i]), as_real(x[i + far]), y[i], y[i + far], first + i);
    }
  }

  // From the gradient of a token's angles to those of frequencies and positions.
  HWY_ATTR void finish_token(int64_t head, const Token& token, int64_t row, int64_t first,
                             int64_t count, double* frequency_sums) {
    const RotaryArgs& turned = turned_;
    if constexpr (kInterleaved) subtract_neighbours(count);
    to_angles(count, args_.inverse ? -1.0 : 1.0);
    const int64_t heads = turned.inv_freq.heads, terms = turned.inv_freq.terms();
    for (int64_t term = 0; term < terms; ++term) {
      double* const of_frequencies = frequency_sums + (term * heads + head) * turned.pairs + first;
      const double* const radians = args_.radians + (term * heads + head) * turned.pairs + first;
      double* const of_positions =
          args_.position_sums == nullptr ? nullptr : args_.position_sums + row;
      const int64_t rows = turned.rows();
      if (turned.axis_map.data != nullptr) {
        for (int64_t i = 0; i < count; ++i) {
          const int64_t axis = turned.axis_map.clamped(first + i);
          of_frequencies[i] += token.positions[axis] * angle_[i];
          if (of_positions != nullptr) of_positions[axis * rows] += radians[i] * angle_[i];
        }
        continue;
      }
      add_scaled(token.positions[term], count, of_frequencies);
      if (of_positions == nullptr) continue;
      double sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += radians[i] * angle_[i];
      of_positions[term * rows] += sum;
    }
  }

  // sums[i] = sums[2 i] - sums[2 i + 1]
  HWY_ATTR void subtract_neighbours(int64_t count) {
    const D d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      hn::Vec<D> first, second;
      hn::LoadInterleaved2(d, sums_ + 2 * i, first, second);
      hn::StoreU(hn::Sub(first, second), d, sums_ + i);
    }
    for (; i < count; ++i) sums_[i] = sums_[2 * i] - sums_[2 * i + 1];
  }

  // The sums in float64, of either sign.
  HWY_ATTR void to_angles(int64_t count, double sign) {
    const hn::ScalableTag<double> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      hn::Vec<decltype(d)> sum;
      if constexpr (std::is_same_v<Number, double>) {
        sum = hn::LoadU(d, sums_ + i);
      } else {
        sum = hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, decltype(d)>(), sums_ + i));
      }
      hn::StoreU(hn::Mul(sum, hn::Set(d, sign)), d, angle_ + i);
    }
    for (; i < count; ++i) angle_[i] = sign * static_cast<double>(sums_[i]);
  }

  // to[i] += factor * angle[i]
  HWY_ATTR void add_scaled(double factor, int64_t count, double* to) const {
    const hn::ScalableTag<double> d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      const auto product = hn::Mul(hn::Set(d, factor), hn::LoadU(d, angle_ + i));
      hn::StoreU(hn::Add(hn::LoadU(d, to + i), product), d, to + i);
    }
    for (; i < count; ++i) to[i] += factor * angle_[i];
  }

  const RotaryGradientArgs& args_;
  const RotaryArgs& turned_;
  HWY_ALIGN Number sums_[2 * kPairsAtOnce];
  double angle_[kPairsAtOnce];
  Token tokens_[RotaryGradientArgs::kTokensOfPiece];
  std::vector<double> positions_;
  int64_t first_block_ = 0;
};

// From numbers of 16 bits to float32, and back; of the rotated slice alone.
template <typename T>
HWY_ATTR void widen(const T* from, int64_t step, int64_t count, float* to) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; step == 1 && i + lanes <= count; i += lanes) hn::StoreU(load(d, from + i), d, to + i);
  for (; i < count; ++i) to[i] = to_float(from[i * step]);
}

template <typename T>
HWY_ATTR void narrow(const float* from, int64_t count, T* to, int64_t step) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; step == 1 && i + lanes <= count; i += lanes) {
    store<Store::kOrdinary>(hn::LoadU(d, from + i), d, to + i);
  }
  for (; i < count; ++i) to[i * step] = round_to<T>(from[i]);
}

// visit(in, out, scratch) for every head of the tokens [begin, end).
template <typename T, typename Visit>
HWY_ATTR void each_row(const RotaryArgs& turned, const RotaryArgs& wide, int64_t begin, int64_t end,
                       const Visit& visit) {
  for (int i = 0; i < turned.tensor_count; ++i) {
    const RotaryTensor& x = turned.tensors[i];
    const RotaryTensor& scratch = wide.tensors[i];
    for (int64_t head = 0; head < x.heads; ++head) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t batch = row / turned.tokens, token = row % turned.tokens;
        const auto offset = [&](const HeadStrides& strides) {
          return batch * strides.batch + token * strides.token + head * strides.head;
        };
        visit(x, static_cast<const T*>(x.in) + offset(x.in_strides),
              static_cast<T*>(x.out) + offset(x.out_strides),
              static_cast<float*>(scratch.out) + offset(scratch.out_strides));
      }
    }
  }
}

template <typename T>
HWY_ATTR void sum_turned(const RotaryGradientArgs& args, const RotaryArgs& turned, int64_t begin,
                         int64_t end, double* sums) {
  if (turned.half_block == 1) {
    GradientSums<T, true>(args, turned).run(begin, end, sums);
  } else {
    GradientSums<T, false>(args, turned).run(begin, end, sums);
  }
}

template <typename T>
HWY_ATTR void run_piece(const RotaryGradientArgs& args, int64_t begin, int64_t end, double* sums,
                        float* scratch) {
  const RotaryArgs& turned = args.turned;
  if constexpr (sizeof(T) != 2) {
    cpu::rotary(turned, begin, end);  // that of kernels.h: heads may have frequencies of their own
    sum_turned<T>(args, turned, begin, end, sums);
    return;
  } else {
    // [tensor, head, token, 2P], the first token that of `begin`.
    RotaryArgs wide = turned;
    const int64_t width = 2 * turned.pairs, head_stride = (end - begin) * width;
    wide.dtype = Dtype::kFloat32;
    wide.head_dim = width;
    wide.start = 0;
    for (int i = 0; i < turned.tensor_count; ++i) {
      RotaryTensor& x = wide.tensors[i];
      x.in_strides = x.out_strides = {turned.tokens * width, width, head_stride, 1};
      x.in = x.out = scratch - begin * width;
      scratch += x.heads * head_stride;
    }
    const int64_t start = turned.start;
    each_row<T>(turned, wide, begin, end,
                [&](const RotaryTensor& x, const T* in, T*, float* row) HWY_ATTR {
                  widen(in + start * x.in_strides.dim, x.in_strides.dim, width, row);
                });
    cpu::rotary(wide, begin, end);
    sum_turned<T>(args, wide, begin, end, sums);
    each_row<T>(turned, wide, begin, end,
                [&](const RotaryTensor& x, const T* in, T* out, const float* row) HWY_ATTR {
                  const int64_t from = x.in_strides.dim, to = x.out_strides.dim;
                  for (int64_t i = 0; i < start; ++i) out[i * to] = in[i * from];
                  narrow(row, width, out + start * to, to);
                  for (int64_t i = start + width; i < turned.head_dim; ++i) {
                    out[i * to] = in[i * from];
                  }
                });
  }
}

HWY_ATTR void turn_back(const RotaryGradientArgs& args, int64_t begin, int64_t end, double* sums,
                        float* scratch) {
  visit_type(args.turned.dtype,
             [&](auto type) { run_piece<decltype(type)>(args, begin, end, sums, scratch); });
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void rotary_gradient_piece(const RotaryGradientArgs& args, int64_t begin, int64_t end,
                           double* frequency_sums, float* scratch) {
  turn_back(args, begin, end, frequency_sums, scratch);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
