// Rotations as operators. These are boxed by hand: each takes its arguments from torch's stack. The
// one declaration of the options, RotaryOptions, says in which order they come, both there and in
// the schemas.

#include "core/rotary.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/torch/library.h"
#include "bindings/torch/options.h"
#include "bindings/torch/run.h"
#include "bindings/torch/tensors.h"

namespace posenc::operators {
namespace {

// --- Arguments

// One tensor, x, or two, q and k.
template <size_t count>
using Tensors = std::array<Tensor, count>;

template <size_t count>
Tensors<count> take_tensors(Stack& stack) {
  if constexpr (count == 1) {
    return {stack.take<Tensor>()};
  } else {
    return {stack.take<Tensor>(), stack.take<Tensor>()};  // from left to right
  }
}

template <size_t count>
Tensors<count> new_like(const Tensors<count>& x) {
  if constexpr (count == 1) {
    return {operators::new_like(x[0])};
  } else {
    return {operators::new_like(x[0]), operators::new_like(x[1])};
  }
}

constexpr RotaryOptionCount kPositionOptions(AnglesFrom::kPositions);
constexpr RotaryOptionCount kTableOptions(AnglesFrom::kTables);
constexpr RotaryOptionCount kStepOptions(AnglesFrom::kSteps);
constexpr size_t kMaxArrays =
    std::max({kPositionOptions.arrays, kTableOptions.arrays, kStepOptions.arrays});
constexpr size_t kMaxTexts =
    std::max({kPositionOptions.texts, kTableOptions.texts, kStepOptions.texts});

using Options = CallOptions<RotaryOptions, kMaxArrays, kMaxTexts>;

// --- Operators

// The public function that error messages name.
constexpr const char* function_name(AnglesFrom from, size_t count) {
  if (from == AnglesFrom::kSteps) return "selective_rotary_qk";
  return count == 1 ? "apply_rotary" : "apply_rotary_qk";
}

// Describes the call in[i] -> out[i] and passes it to `use`. In place, `in` and `out` are one
// object.
template <size_t count, typename Use>
void with_call(const char* function, const Tensors<count>& in, const Tensors<count>& out,
               Options& options, const Use& use) {
  translate_errors([&] {
    const Call tensors(function, in[0]);
    RotaryCall call;
    call.function = function;
    call.tensor_count = count;
    if (count == 2) call.names[0] = "q";
    Array inputs[count], outputs[count];
    for (size_t i = 0; i < count; ++i) {
      inputs[i] = tensors.describe(call.names[i], in[i]);
      call.in[i] = call.out[i] = &inputs[i];
      if (&in == &out) continue;
      if (count == 2) call.out_names[i] = i == 0 ? "out[0]" : "out[1]";
      outputs[i] = tensors.describe(call.out_names[i], out[i]);
      call.out[i] = &outputs[i];
    }
    static_cast<RotaryOptions&>(call) = options.describe(tensors);
    use(tensors, call);
  });
}

enum class Result { kNew, kInPlace, kOut };

template <AnglesFrom from, size_t count, Result result>
void rotary(StableIValue* values, uint64_t size, uint64_t /*results*/) {
  Stack stack(values, size);
  const Tensors<count> in = take_tensors<count>(stack);
  Options options(stack, from);
  const auto rotate_to = [&](const Tensors<count>& out) {
    stack.all_taken();
    with_call(function_name(from, count), in, out, options,
              [](const Call& tensors, const RotaryCall& call) {
                const RotaryParts parts = check_rotary_parts(call);
                run(tensors, parts.first);
                if (parts.second) run(tensors, *parts.second);
              });
  };
  if constexpr (result == Result::kInPlace) {
    rotate_to(in);
  } else if constexpr (result == Result::kOut) {
    rotate_to(take_tensors<count>(stack));
  } else {
    const Tensors<count> out = new_like(in);
    rotate_to(out);
    std::apply([&](const auto&... tensors) { stack.give(tensors...); }, out);
  }
}

// As `rotary`, with the states after the tokens behind the results.
template <size_t count, Result result>
void rotary_by_steps(StableIValue* values, uint64_t size, uint64_t /*results*/) {
  Stack stack(values, size);
  const Tensors<count> in = take_tensors<count>(stack);
  Options options(stack, AnglesFrom::kSteps);
  const auto rotate_to = [&](const Tensors<count>& out) {
    stack.all_taken();
    std::optional<Tensor> after;
    with_call(function_name(AnglesFrom::kSteps, count), in, out, options,
              [&](const Call& tensors, const RotaryCall& call) {
                StateShape states;
                SelectiveArgs args = check_selective(call, states);
                after = new_tensor({states.shape, states.shape + states.rank}, ScalarType::Long,
                                   tensors.device);
                args.after = static_cast<int64_t*>(after->data_ptr());
                run(tensors, args);
              });
    return *after;
  };
  if constexpr (result == Result::kInPlace) {
    stack.give(rotate_to(in));
  } else if constexpr (result == Result::kOut) {
    stack.give(rotate_to(take_tensors<count>(stack)));
  } else {
    const Tensors<count> out = new_like(in);
    const Tensor after = rotate_to(out);
    std::apply([&](const auto&... tensors) { stack.give(tensors..., after); }, out);
  }
}

// Gradients of x, or of q and k, and of the steps.
template <size_t count>
void rotary_by_steps_backward(StableIValue* values, uint64_t size, uint64_t /*results*/) {
  Stack stack(values, size);
  const Tensors<count> grad = take_tensors<count>(stack), x = take_tensors<count>(stack);
  const Tensor steps_gradient = stack.take<Tensor>();
  Options options(stack, AnglesFrom::kSteps);
  stack.all_taken();
  const Tensors<count> grad_x = new_like(x);
  with_call(function_name(AnglesFrom::kSteps, count), grad, grad_x, options,
            [&](const Call& tensors, const RotaryCall& call) {
              Array arrays[count];
              const Array* given[count];
              for (size_t i = 0; i < count; ++i) {
                arrays[i] = tensors.describe(call.names[i], x[i]);
                given[i] = &arrays[i];
              }
              const Array to = tensors.describe("steps", steps_gradient);
              run(tensors, check_selective_gradient(call, given, to));
            });
  std::apply([&](const auto&... tensors) { stack.give(tensors...); }, grad_x);
}

// Writes grad_x. Returns the gradients of frequencies (like inv_freq) and of positions ([axes, b,
// s], or nothing if not wanted), in float64.
template <size_t count>
std::tuple<Tensor, Tensor> rotate_back(const Tensors<count>& grad, const Tensors<count>& x,
                                       const Tensors<count>& grad_x, Options& options,
                                       bool of_positions) {
  std::tuple<Tensor, Tensor> result;
  with_call(
      function_name(AnglesFrom::kPositions, count), grad, grad_x, options,
      [&](const Call& tensors, const RotaryCall& call) {
        Array arrays[count];
        const Array* given[count];
        for (size_t i = 0; i < count; ++i) {
          arrays[i] = tensors.describe(call.names[i], x[i]);
          given[i] = &arrays[i];
        }
        RotaryGradientArgs args = check_rotary_gradient(call, given);
        const Array& like = *call.inv_freq;
        const int64_t rows = args.turned.rows();
        const Tensor frequencies = new_sums_of_pieces({like.shape, like.shape + like.rank},
                                                      args.pieces(), rows, tensors.device);
        const Tensor positions =
            of_positions ? new_sums({args.position_axes(), args.turned.batch, args.turned.tokens},
                                    rows, tensors.device)
                         : new_sums({0}, rows, tensors.device);
        args.frequency_sums = static_cast<double*>(frequencies.data_ptr());
        args.position_sums = of_positions ? static_cast<double*>(positions.data_ptr()) : nullptr;
        run(tensors, args);
        result = {torch::stable::select(frequencies, 0, 0), positions};
      });
  return result;
}

template <size_t count>
void rotary_backward(StableIValue* values, uint64_t size, uint64_t /*results*/) {
  Stack stack(values, size);
  const Tensors<count> grad = take_tensors<count>(stack), x = take_tensors<count>(stack);
  Options options(stack, AnglesFrom::kPositions);
  const bool of_positions = stack.take<bool>();
  stack.all_taken();
  const Tensors<count> grad_x = new_like(x);
  const auto [frequencies, positions] = rotate_back(grad, x, grad_x, options, of_positions);
  if constexpr (count == 1) {
    stack.give(grad_x[0], frequencies, positions);
  } else {
    stack.give(grad_x[0], grad_x[1], frequencies, positions);
  }
}

// --- Schemas

// Defines the operators on one tensor and on two, with angles from positions or from tables.
void define_rotations(Library& m, AnglesFrom from, const std::string& suffix) {
  // With defaults, so that calls can leave options out: torch needs so long to read one that
  // decoding would notice a few of them.
  const std::string options = schema_of<RotaryOptions>(true, from);
  const std::string one = "rotary" + suffix, two = "rotary_qk" + suffix;
  const auto define = [&](const std::string& schema) { m.def(schema.c_str()); };
  define(one + "(Tensor x, " + options + ") -> Tensor");
  define(one + "_(Tensor(a!) x, " + options + ") -> ()");
  define(one + "_out(Tensor x, " + options + ", *, Tensor(a!) out) -> ()");
  define(two + "(Tensor q, Tensor k, " + options + ") -> (Tensor, Tensor)");
  define(two + "_(Tensor(a!) q, Tensor(b!) k, " + options + ") -> ()");
  define(two + "_out(Tensor q, Tensor k, " + options +
         ", *, Tensor(a!) out_q, Tensor(b!) out_k) -> ()");
}

}  // namespace

void define_rotary(Library& m) {
  define_rotations(m, AnglesFrom::kPositions, "");
  define_rotations(m, AnglesFrom::kTables, "_from_tables");
  const std::string options = schema_of<RotaryOptions>(true, AnglesFrom::kPositions);
  m.def(("rotary_backward(Tensor grad, Tensor x, " + options +
         ", *, bool of_positions) -> (Tensor, Tensor, Tensor)")
            .c_str());
  m.def(("rotary_qk_backward(Tensor grad_q, Tensor grad_k, Tensor q, Tensor k, " + options +
         ", *, bool of_positions) -> (Tensor, Tensor, Tensor, Tensor)")
            .c_str());
  const std::string steps = schema_of<RotaryOptions>(true, AnglesFrom::kSteps);
  const auto define = [&](const std::string& schema) { m.def(schema.c_str()); };
  define("rotary_by_steps(Tensor x, " + steps + ") -> (Tensor, Tensor)");
  define("rotary_by_steps_(Tensor(a!) x, " + steps + ") -> Tensor");
  define("rotary_by_steps_out(Tensor x, " + steps + ", *, Tensor(a!) out) -> Tensor");
  define("rotary_qk_by_steps(Tensor q, Tensor k, " + steps + ") -> (Tensor, Tensor, Tensor)");
  define("rotary_qk_by_steps_(Tensor(a!) q, Tensor(b!) k, " + steps + ") -> Tensor");
  define("rotary_qk_by_steps_out(Tensor q, Tensor k, " + steps +
         ", *, Tensor(a!) out_q, Tensor(b!) out_k) -> Tensor");
  define("rotary_by_steps_backward(Tensor grad, Tensor x, Tensor(a!) grad_steps, " + steps +
         ") -> Tensor");
  define(
      "rotary_qk_by_steps_backward(Tensor grad_q, Tensor grad_k, Tensor q, Tensor k, "
      "Tensor(a!) grad_steps, " +
      steps + ") -> (Tensor, Tensor)");
}

void implement_rotary(Library& m) {
  constexpr AnglesFrom kPositions = AnglesFrom::kPositions, kTables = AnglesFrom::kTables;
  m.impl("rotary", &rotary<kPositions, 1, Result::kNew>);
  m.impl("rotary_", &rotary<kPositions, 1, Result::kInPlace>);
  m.impl("rotary_out", &rotary<kPositions, 1, Result::kOut>);
  m.impl("rotary_qk", &rotary<kPositions, 2, Result::kNew>);
  m.impl("rotary_qk_", &rotary<kPositions, 2, Result::kInPlace>);
  m.impl("rotary_qk_out", &rotary<kPositions, 2, Result::kOut>);
  m.impl("rotary_backward", &rotary_backward<1>);
  m.impl("rotary_qk_backward", &rotary_backward<2>);
  m.impl("rotary_from_tables", &rotary<kTables, 1, Result::kNew>);
  m.impl("rotary_from_tables_", &rotary<kTables, 1, Result::kInPlace>);
  m.impl("rotary_from_tables_out", &rotary<kTables, 1, Result::kOut>);
  m.impl("rotary_qk_from_tables", &rotary<kTables, 2, Result::kNew>);
  m.impl("rotary_qk_from_tables_", &rotary<kTables, 2, Result::kInPlace>);
  m.impl("rotary_qk_from_tables_out", &rotary<kTables, 2, Result::kOut>);
  m.impl("rotary_by_steps", &rotary_by_steps<1, Result::kNew>);
  m.impl("rotary_by_steps_", &rotary_by_steps<1, Result::kInPlace>);
  m.impl("rotary_by_steps_out", &rotary_by_steps<1, Result::kOut>);
  m.impl("rotary_qk_by_steps", &rotary_by_steps<2, Result::kNew>);
  m.impl("rotary_qk_by_steps_", &rotary_by_steps<2, Result::kInPlace>);
  m.impl("rotary_qk_by_steps_out", &rotary_by_steps<2, Result::kOut>);
  m.impl("rotary_by_steps_backward", &rotary_by_steps_backward<1>);
  m.impl("rotary_qk_by_steps_backward", &rotary_by_steps_backward<2>);
}

}  // namespace posenc::operators
