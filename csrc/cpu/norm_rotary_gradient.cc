// Gradients of norm and rotation: with respect to x and to the weights, in one pass.
//
//   y = R(w x r):   h = R^-1 g,  u = w h
//   y = w r R(x):   z = R(x) in the place of x,  h = g,  u = w h
//
//   dx = r (u - x r^2 mean(u x)), turned back where the norm was last;   dw = sum of h x r
//
// r is computed again: x alone was kept. A piece is some tokens with all their heads. Its sums of
// dw are float32 for 32 tokens, then float64; neither pieces nor the order of a sum depends on who
// does them.

#include "cpu/one_target.h"
// After one_target.h:
#include <algorithm>
#include <vector>

#include "core/norm_rotary.h"
#include "cpu/elements-inl.h"
#include "cpu/norm_rotary_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace posenc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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
        T* const to = static_cast<T*>(x.out) + at(x.out_strides, batch, token, head);
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

  static int64_t at(const HeadStrides& strides, int64_t batch, int64_t token, int64_t head) {
    return batch * strides.batch + token * strides.token + head * strides.head;
  }

  // x (or z), h and u of a row.
  HWY_ATTR void read(int tensor, int64_t batch, int64_t token, int64_t head) {
    const RotaryTensor& x = forward_.rotary.tensors[tensor];
    const HeadStrides& strides = args_.grad_strides[tensor];
    x_.template read<T>(static_cast<const T*>(x.in) + at(x.in_strides, batch, token, head),
                        x.in_strides.dim);
    h_.template read<T>(
        static_cast<const T*>(args_.grads[tensor]) + at(strides, batch, token, head), strides.dim);
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
  RowBuffer<Number> x_, h_, u_;
  std::vector<T> rounded_;
  std::vector<Number> factors_[2], sums_[2];  // rows of padded() Numbers
};

template <typename T>
HWY_ATTR void run_norm_gradient(const NormRotaryGradientArgs& args, int64_t begin, int64_t end,
                                double* const* weight_sums) {
  NormRotaryGradient<T> gradient(args);
  gradient.run(begin, end, weight_sums);
}

HWY_ATTR void norm_rotate_piece_back(const NormRotaryGradientArgs& args, int64_t begin, int64_t end,
                                     double* const* weight_sums) {
  switch (args.forward.rotary.dtype) {
    case Dtype::kFloat16:
      return run_norm_gradient<Float16>(args, begin, end, weight_sums);
    case Dtype::kBFloat16:
      return run_norm_gradient<BFloat16>(args, begin, end, weight_sums);
    case Dtype::kFloat32:
      return run_norm_gradient<float>(args, begin, end, weight_sums);
    default:
      return run_norm_gradient<double>(args, begin, end, weight_sums);
  }
}

}  // namespace posenc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::cpu::HWY_NAMESPACE {

void norm_rotary_gradient_piece(const NormRotaryGradientArgs& args, int64_t begin, int64_t end,
                                double* const* weight_sums) {
  norm_rotate_piece_back(args, begin, end, weight_sums);
}

}  // namespace posenc::cpu::HWY_NAMESPACE
