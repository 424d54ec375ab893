// What stands before attention, as operators, boxed by hand as rotations are (rotary.cc).

#include "core/norm_rotary.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "bindings/torch/library.h"
#include "bindings/torch/options.h"
#include "bindings/torch/run.h"
#include "bindings/torch/tensors.h"

namespace posenc::operators {
namespace {

constexpr NormRotaryOptionCount kByPositions(AnglesFrom::kPositions, true);
constexpr NormRotaryOptionCount kByTables(AnglesFrom::kTables, true);
using Options = CallOptions<NormRotaryOptions, std::max(kByPositions.arrays, kByTables.arrays),
                            std::max(kByPositions.texts, kByTables.texts)>;

// The public function that error messages name.
constexpr const char* function_name(bool append) {
  return append ? "rotary_append" : "norm_rotary_qk";
}

enum class Result { kNew, kInPlace, kOut };

// q and k, described: in[i] -> out[i], where `out` may be `in`. A second result that has no tensor
// goes nowhere.
struct Pair {
  Array in[2], out[2];

  Pair(const Call& tensors, const Tensor* from, const Tensor* to, bool with_k,
       NormRotaryCall& call) {
    for (int i = 0; i < 2; ++i) {
      in[i] = tensors.describe(i == 0 ? "q" : "k", from[i]);
      call.in[i] = call.out[i] = &in[i];
      if (i == 1 && !with_k) {
        call.out[i] = nullptr;
      } else if (from != to) {
        out[i] = tensors.describe(call.out_names[i], to[i]);
        call.out[i] = &out[i];
      }
    }
  }
};

template <AnglesFrom from, Result result>
void norm_rotary(StableIValue* values, uint64_t size, uint64_t /*results*/) {
  Stack stack(values, size);
  const Tensor in[] = {stack.take<Tensor>(), stack.take<Tensor>()};
  Options options(stack, from, false);
  const auto rotate_to = [&](const Tensor* out) {
    stack.all_taken();
    translate_errors([&] {
      const Call tensors(function_name(false), in[0]);
      NormRotaryCall call;
      static_cast<NormRotaryOptions&>(call) = options.describe(tensors);
      call.function = tensors.function;
      const Pair pair(tensors, in, out, true, call);
      run(tensors, check_norm_rotary(call));
    });
  };
  if constexpr (result == Result::kInPlace) {
    rotate_to(in);
  } else if constexpr (result == Result::kOut) {
    const Tensor out[] = {stack.take<Tensor>(), stack.take<Tensor>()};
    rotate_to(out);
  } else {
    const Tensor out[] = {new_like(in[0]), new_like(in[1])};
    rotate_to(out);
    stack.give(out[0], out[1]);
  }
}

template <AnglesFrom from, Result result>
void append(StableIValue* values, uint64_t size, uint64_t /*results*/) {
  Stack stack(values, size);
  const Tensor in[] = {stack.take<Tensor>(), stack.take<Tensor>()};
  const Tensor v = stack.take<Tensor>();
  Options options(stack, from, true);
  const auto rotate_to = [&](const Tensor* out) {
    stack.all_taken();
    translate_errors([&] {
      const Call tensors(function_name(true), in[0]);
      NormRotaryCall call;
      static_cast<NormRotaryOptions&>(call) = options.describe(tensors);
      call.function = tensors.function;
      if (!call.return_k) call.out_names[0] = "out";
      const Array value = tensors.describe("v", v);
      call.v = &value;
      const Pair pair(tensors, in, out, call.return_k, call);
      run(tensors, check_norm_rotary(call));
    });
  };
  if constexpr (result == Result::kInPlace) {
    rotate_to(in);
  } else if constexpr (result == Result::kOut) {
    const Tensor out_q = stack.take<Tensor>();
    const OptionalTensor out_k = stack.take<OptionalTensor>();
    const bool with_k = options.options().return_k;
    STD_TORCH_CHECK(with_k == out_k.has_value(), function_name(true),
                    ": out_k: expected a tensor where return_k is True, else None");
    const Tensor out[] = {out_q, with_k ? *out_k : in[1]};
    rotate_to(out);
  } else {
    const bool with_k = options.options().return_k;
    const Call tensors(function_name(true), in[0]);
    const Tensor out[] = {
        new_like(in[0]),
        with_k ? new_like(in[1]) : new_tensor({0}, in[1].scalar_type(), tensors.device)};
    rotate_to(out);
    stack.give(out[0], out[1]);
  }
}

// Gradients of q, k and their weights; those are float64, [heads of the weights * head_dim], and
// empty where there are no weights.
template <AnglesFrom from>
void norm_rotary_backward(StableIValue* values, uint64_t size, uint64_t /*results*/) {
  Stack stack(values, size);
  const Tensor grads[] = {stack.take<Tensor>(), stack.take<Tensor>()};
  const Tensor x[] = {stack.take<Tensor>(), stack.take<Tensor>()};
  Options options(stack, from, false);
  stack.all_taken();
  const Tensor out[] = {new_like(x[0]), new_like(x[1])};
  Tensor weights[2];
  translate_errors([&] {
    const Call tensors(function_name(false), x[0]);
    NormRotaryCall call;
    static_cast<NormRotaryOptions&>(call) = options.describe(tensors);
    call.function = tensors.function;
    const Pair pair(tensors, x, out, true, call);
    const Array described[] = {tensors.describe("grad", grads[0]),
                               tensors.describe("grad", grads[1])};
    const Array* const given[] = {&described[0], &described[1]};
    NormRotaryGradientArgs args = check_norm_rotary_gradient(call, given);
    for (int i = 0; i < 2; ++i) {
      if (call.weights[i] == nullptr) {
        weights[i] = new_tensor({0}, ScalarType::Double, tensors.device);
        continue;
      }
      const Tensor sums = new_sums_of_pieces({args.weight_count(i)}, args.pieces(),
                                             args.forward.rotary.rows(), tensors.device);
      args.weight_sums[i] = static_cast<double*>(sums.data_ptr());
      weights[i] = torch::stable::select(sums, 0, 0);
    }
    run(tensors, args);
  });
  stack.give(out[0], out[1], weights[0], weights[1]);
}

void define(Library& m, AnglesFrom from, const std::string& suffix) {
  const auto options = [&](bool append) {
    return schema_of<NormRotaryOptions>(false, from, append);
  };
  const auto define_one = [&](const std::string& schema) { m.def(schema.c_str()); };
  const std::string norm = "norm_rotary_qk" + suffix, append = "rotary_append" + suffix;
  define_one(norm + "(Tensor q, Tensor k, " + options(false) + ") -> (Tensor, Tensor)");
  define_one(norm + "_(Tensor(a!) q, Tensor(b!) k, " + options(false) + ") -> ()");
  define_one(norm + "_out(Tensor q, Tensor k, " + options(false) +
             ", *, Tensor(a!) out_q, Tensor(b!) out_k) -> ()");
  define_one(norm + "_backward(Tensor grad_q, Tensor grad_k, Tensor q, Tensor k, " +
             options(false) + ") -> (Tensor, Tensor, Tensor, Tensor)");
  define_one(append + "(Tensor q, Tensor k, Tensor v, " + options(true) + ") -> (Tensor, Tensor)");
  define_one(append + "_(Tensor(a!) q, Tensor(b!) k, Tensor v, " + options(true) + ") -> ()");
  define_one(append + "_out(Tensor q, Tensor k, Tensor v, " + options(true) +
             ", *, Tensor(e!) out_q, Tensor(f!)? out_k=None) -> ()");
}

template <AnglesFrom from>
void implement(Library& m, const std::string& suffix) {
  const std::string norm = "norm_rotary_qk" + suffix, append_name = "rotary_append" + suffix;
  m.impl(norm.c_str(), &norm_rotary<from, Result::kNew>);
  m.impl((norm + "_").c_str(), &norm_rotary<from, Result::kInPlace>);
  m.impl((norm + "_out").c_str(), &norm_rotary<from, Result::kOut>);
  m.impl((norm + "_backward").c_str(), &norm_rotary_backward<from>);
  m.impl(append_name.c_str(), &append<from, Result::kNew>);
  m.impl((append_name + "_").c_str(), &append<from, Result::kInPlace>);
  m.impl((append_name + "_out").c_str(), &append<from, Result::kOut>);
}

}  // namespace

void define_norm_rotary(Library& m) {
  define(m, AnglesFrom::kPositions, "");
  define(m, AnglesFrom::kTables, "_from_tables");
}

void implement_norm_rotary(Library& m) {
  implement<AnglesFrom::kPositions>(m, "");
  implement<AnglesFrom::kTables>(m, "_from_tables");
}

}  // namespace posenc::operators
