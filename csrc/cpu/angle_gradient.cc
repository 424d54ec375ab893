// Gradients of angles: of every pair what a rotation back and its result say, summed over the heads
// that share the angle.
//
//   of x  (ga, gb)      x  (a, b)      of the angle  gb a - ga b
//
// A step turns its token and all after it: its gradient is the sum of theirs, from the end.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <cstdint>

#include "core/half.h"
#include "core/rotary.h"
#include "core/visit_type.h"
#include "cpu/elements-inl.h"
#include "cpu/numbers-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A row of one head: neighboring pairs of a block, or pairs of neighbors.
template <typename T>
struct PairRow {
  const T* first;
  int64_t far;   // to the partner
  int64_t step;  // to the next pair

  Real<T> a(int64_t pair) const { return convert<false, Real<T>>(first[pair * step]); }
  Real<T> b(int64_t pair) const { return convert<false, Real<T>>(first[pair * step + far]); }
};

// kAdd: to what other heads have said.
template <bool kAdd, typename T>
HWY_ATTR void add_row(const PairRow<T>& x, const PairRow<T>& grad, int64_t count, Real<T>* sums) {
  const RealTag<T> d;
  using V = hn::Vec<decltype(d)>;
  int64_t pair = 0;
  const auto add = [&](V xa, V xb, V ga, V gb) HWY_ATTR {
    V one = hn::MulSub(gb, xa, hn::Mul(ga, xb));
    if constexpr (kAdd) one = hn::Add(hn::LoadU(d, sums + pair), one);
    hn::StoreU(one, d, sums + pair);
  };
  if (x.step == 1 && grad.step == 1) {
    for (; pair + lanes(d) <= count; pair += lanes(d)) {
      add(load(d, x.first + pair), load(d, x.first + pair + x.far), load(d, grad.first + pair),
          load(d, grad.first + pair + grad.far));
    }
  } else if (x.step == 2 && x.far == 1 && grad.step == 2 && grad.far == 1) {
    for (; pair + lanes(d) <= count; pair += lanes(d)) {
      V xa, xb, ga, gb;
      load_split(d, x.first + 2 * pair, xa, xb);
      load_split(d, grad.first + 2 * pair, ga, gb);
      add(xa, xb, ga, gb);
    }
  }
  for (; pair < count; ++pair) {
    const Real<T> one = grad.b(pair) * x.a(pair) - grad.a(pair) * x.b(pair);
    sums[pair] = kAdd ? sums[pair] + one : one;
  }
}

template <typename T>
HWY_ATTR void sum_heads(const RotaryArgs& back, const void* const* given,
                        const HeadStrides* given_strides, Real<T>* sums) {
  const int64_t half = back.half_block;
  const int64_t length = half == 1 ? back.pairs : half;  // pairs that lie side by side
  for (int64_t token = 0; token < back.tokens; ++token, sums += back.pairs) {
    for (int64_t first = 0; first < back.pairs; first += length) {
      const int64_t dim = back.start + 2 * first;
      bool add = false;
      for (int i = 0; i < back.tensor_count; ++i) {
        const RotaryTensor& tensor = back.tensors[i];
        const auto row = [&](const void* data, const HeadStrides& strides, int64_t head) {
          const T* const from = static_cast<const T*>(data) + token * strides.token +
                                head * strides.head + dim * strides.dim;
          return PairRow<T>{from, half * strides.dim, (half == 1 ? 2 : 1) * strides.dim};
        };
        for (int64_t head = 0; head < tensor.heads; ++head, add = true) {
          const PairRow<T> x = row(given[i], given_strides[i], head);
          const PairRow<T> grad = row(tensor.out, tensor.out_strides, head);
          add ? add_row<true>(x, grad, length, sums + first)
              : add_row<false>(x, grad, length, sums + first);
        }
      }
      if (!add) std::fill_n(sums + first, length, Real<T>(0));  // no head
    }
  }
}

HWY_ATTR void sum_heads_of(const RotaryArgs& back, const void* const* x,
                           const HeadStrides* x_strides, void* sums) {
  visit_type(back.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    sum_heads<T>(back, x, x_strides, static_cast<Real<T>*>(sums));
  });
}

// A row of angles' gradients added to the sums, and the sums written as gradients of steps.
template <typename T, typename Number>
HWY_ATTR void write_row(const Number* angles, double sign, int64_t count, double* sums, T* to,
                        int64_t step) {
  int64_t i = 0;
  if constexpr (sizeof(T) != 8 && sizeof(Number) == 4) {
    const hn::ScalableTag<float> d;
    const hn::ScalableTag<double> d64;
    const hn::Half<decltype(d)> half;
    const int64_t wide = lanes(d64);
    const auto signs = hn::Set(d64, sign);
    for (; step == 1 && i + lanes(d) <= count; i += lanes(d)) {
      const auto row = hn::LoadU(d, angles + i);
      const auto low =
          hn::MulAdd(hn::PromoteTo(d64, hn::LowerHalf(half, row)), signs, hn::LoadU(d64, sums + i));
      const auto high = hn::MulAdd(hn::PromoteTo(d64, hn::UpperHalf(half, row)), signs,
                                   hn::LoadU(d64, sums + i + wide));
      hn::StoreU(low, d64, sums + i);
      hn::StoreU(high, d64, sums + i + wide);
      store<Store::kOrdinary>(hn::Combine(d, hn::DemoteTo(half, high), hn::DemoteTo(half, low)), d,
                              to + i);
    }
  }
  for (; i < count; ++i) {
    sums[i] += sign * static_cast<double>(angles[i]);
    if constexpr (sizeof(T) == 8) {
      to[i * step] = sums[i];
    } else {
      to[i * step] = round_to<T>(static_cast<float>(sums[i]));
    }
  }
}

// [tokens, columns] of angles, from the last token on, to the gradients of a block of steps.
template <typename T, typename Number>
HWY_ATTR void write_sums(const Number* angles, double sign, const StepBlock& block, double* sums) {
  for (int64_t token = block.tokens - 1; token >= 0; --token) {
    for (int64_t head = 0; head < block.heads; ++head) {
      const int64_t first = head * block.pairs;
      T* const to = static_cast<T*>(const_cast<void*>(block.steps)) + token * block.token_stride +
                    head * block.head_stride;
      write_row(angles + token * block.columns() + first, sign, block.pairs, sums + first, to,
                block.pair_stride);
    }
  }
}

HWY_ATTR void write_sums_of(const void* angles, Dtype of_angles, double sign, const StepBlock& to,
                            double* sums) {
  visit_type(to.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    if (of_angles == Dtype::kFloat64) {
      write_sums<T>(static_cast<const double*>(angles), sign, to, sums);
    } else {
      write_sums<T>(static_cast<const float*>(angles), sign, to, sums);
    }
  });
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void angle_gradient(const RotaryArgs& back, const void* const* x, const HeadStrides* x_strides,
                    void* sums) {
  sum_heads_of(back, x, x_strides, sums);
}

void step_gradient(const void* angles, Dtype of_angles, double sign, const StepBlock& to,
                   double* sums) {
  write_sums_of(angles, of_angles, sign, to, sums);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
