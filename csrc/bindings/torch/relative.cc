// Biases by distance and look-ups by distance as operators.
//
// Where a list of lengths is empty, the tensors tell the lengths, so that a traced call holds for
// every length. For the same reason a traced call makes its result first and passes it as `out`.
// The operators that make results themselves take lengths as numbers and serve all other calls.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/torch/library.h"
#include "bindings/torch/run.h"
#include "bindings/torch/tensors.h"
#include "core/lookup.h"
#include "core/toeplitz.h"

namespace posenc::operators {
namespace {

using Integers = std::vector<int64_t>;
// Without a value where the tensors tell it. An empty list would do as well, but torch 2.13 leaves
// empty lists out of what it compiles ahead of time (AOTInductor).
using GivenIntegers = std::optional<Integers>;

// The shape itself is checked later, where the result is described.
Tensor new_result(const char* function, const Tensor& like, const Integers& shape,
                  ScalarType dtype) {
  return translate_errors([&] {
    const Call call(function, like);
    if (std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; })) {
      fail_value(function, "result", "lengths >= 0",
                 to_string(shape.data(), static_cast<int>(shape.size())));
    }
    return new_tensor(shape, dtype, call.device);
  });
}

// The shape of a tensor but for its last axis.
Integers with_last(const Tensor& tensor, int64_t last) {
  const auto sizes = tensor.sizes();
  Integers shape(sizes.begin(), sizes.end());
  if (!shape.empty()) shape.back() = last;
  return shape;
}

class ToeplitzOptions {
 public:
  // `matrices`: [..., q_len, k_len].
  ToeplitzOptions(const Call& call, const Array& matrices, const Array& diagonals,
                  const GivenIntegers& q_len, const GivenIntegers& k_len,
                  const GivenIntegers& start, const std::optional<Array>& q_offset)
      : q_len_(q_len.value_or(Integers())),
        k_len_(k_len.value_or(Integers())),
        start_(start.value_or(Integers())) {
    if (q_len_.empty() && k_len_.empty()) {
      if (matrices.rank < 2) {
        fail_value(call.function, "scores", "shape [..., H, q_len, k_len]", shape_string(matrices));
      }
      q_len_ = {matrices.shape[matrices.rank - 2]};
      k_len_ = {matrices.shape[matrices.rank - 1]};
    }
    if (start_.empty()) {
      for (const int64_t length : q_len_) start_.push_back(length - 1);
    }
    if (k_len_.size() != q_len_.size() || start_.size() != q_len_.size() ||
        q_len_.size() > static_cast<size_t>(kMaxGridRank)) {
      fail_value(call.function, "q_len", "as many lengths as k_len, at most three",
                 std::to_string(q_len_.size()));
    }
    call_.function = call.function;
    call_.diagonals = &diagonals;
    call_.q_offset = pointer(q_offset);
    call_.grid_rank = static_cast<int>(q_len_.size());
    call_.q_len = q_len_.data();
    call_.k_len = k_len_.data();
    call_.origin = start_.data();
  }
  ToeplitzOptions(const ToeplitzOptions&) = delete;
  ToeplitzOptions& operator=(const ToeplitzOptions&) = delete;

  ToeplitzCall of(const Array* scores, const Array* out) const {
    ToeplitzCall call = call_;
    call.scores = scores;
    call.out = out;
    return call;
  }

 private:
  Integers q_len_, k_len_, start_;
  ToeplitzCall call_;
};

void toeplitz_bias_out(const Tensor& diagonals, const GivenIntegers& q_len,
                       const GivenIntegers& k_len, const GivenIntegers& start,
                       const OptionalTensor& q_offset, const Tensor& out) {
  translate_errors([&] {
    const Call call("toeplitz_bias", diagonals);
    const Array given = call.describe("diagonals", diagonals);
    const std::optional<Array> offset = call.describe("q_offset", q_offset);
    const Array result = call.describe("out", out);
    const ToeplitzOptions options(call, result, given, q_len, k_len, start, offset);
    lay_diagonals(call, check_toeplitz(options.of(nullptr, &result)));
  });
}

Tensor toeplitz_bias(const Tensor& diagonals, Integers shape, ScalarType dtype,
                     const GivenIntegers& q_len, const GivenIntegers& k_len,
                     const GivenIntegers& start, const OptionalTensor& q_offset) {
  const Tensor out = new_result("toeplitz_bias", diagonals, shape, dtype);
  toeplitz_bias_out(diagonals, q_len, k_len, start, q_offset, out);
  return out;
}

void add_toeplitz_bias_out(const Tensor& scores, const Tensor& diagonals,
                           const GivenIntegers& q_len, const GivenIntegers& k_len,
                           const GivenIntegers& start, const OptionalTensor& q_offset,
                           const Tensor& out) {
  translate_errors([&] {
    const Call call("add_toeplitz_bias", scores);
    const Array input = call.describe("scores", scores);
    const Array given = call.describe("diagonals", diagonals);
    const std::optional<Array> offset = call.describe("q_offset", q_offset);
    const Array result = call.describe("out", out);
    const ToeplitzOptions options(call, input, given, q_len, k_len, start, offset);
    lay_diagonals(call, check_toeplitz(options.of(&input, &result)));
  });
}

void add_toeplitz_bias_in_place(const Tensor& scores, const Tensor& diagonals,
                                const GivenIntegers& q_len, const GivenIntegers& k_len,
                                const GivenIntegers& start, const OptionalTensor& q_offset) {
  add_toeplitz_bias_out(scores, diagonals, q_len, k_len, start, q_offset, scores);
}

Tensor add_toeplitz_bias(const Tensor& scores, const Tensor& diagonals, const GivenIntegers& q_len,
                         const GivenIntegers& k_len, const GivenIntegers& start,
                         const OptionalTensor& q_offset) {
  const Tensor out = new_like(scores);
  add_toeplitz_bias_out(scores, diagonals, q_len, k_len, start, q_offset, out);
  return out;
}

// The result has the last `keep` leading axes of grad. Without `entries` it has as many as there
// are distances.
Tensor diagonal_sums(const Tensor& grad, int64_t keep, const GivenIntegers& q_len,
                     const GivenIntegers& k_len, const GivenIntegers& entries,
                     const GivenIntegers& start, const OptionalTensor& q_offset) {
  return translate_errors([&] {
    const Call call("diagonal_sums", grad);
    const Array input = call.describe("grad", grad);
    check_real(call.function, "grad", input);
    const std::optional<Array> offset = call.describe("q_offset", q_offset);
    if (input.rank < 2 || keep < 0 || keep > input.rank - 2) {
      fail_value(call.function, "grad", "shape [..., q_len, k_len] with the leading axes to keep",
                 shape_string(input));
    }
    Integers shape(input.shape + input.rank - 2 - keep, input.shape + input.rank - 2);
    if (entries) {
      shape.insert(shape.end(), entries->begin(), entries->end());
    } else {
      const bool grid = q_len && k_len && q_len->size() == k_len->size();
      for (size_t i = 0; i < (grid ? q_len->size() : 1); ++i) {
        const int64_t queries = grid ? (*q_len)[i] : input.shape[input.rank - 2];
        const int64_t keys = grid ? (*k_len)[i] : input.shape[input.rank - 1];
        shape.push_back(std::max<int64_t>(queries + keys - 1, 0));
      }
    }
    const bool wide = sum_dtype(input.dtype) == Dtype::kFloat64;
    const Tensor sums =
        new_tensor(shape, wide ? ScalarType::Double : ScalarType::Float, call.device);
    const Array result = call.describe("diagonals", sums);
    const ToeplitzOptions options(call, input, result, q_len, k_len, start, offset);
    sum_diagonals(call, check_diagonal_sums(options.of(&input, nullptr)));
    return sums;
  });
}

// What gather and scatter take; `call` points into the arrays. The result tells k_len and the width
// of a scatter.
struct RelativeOptions {
  RelativeOptions(const Call& tensors, const char* in_name, const Tensor& x,
                  const OptionalTensor& indices, std::optional<int64_t> start,
                  const OptionalTensor& offsets, std::optional<int64_t> missing, double scale,
                  const Tensor& out)
      : in(tensors.describe(in_name, x)),
        result(tensors.describe("out", out)),
        index(tensors.describe("index", indices)),
        q_offset(tensors.describe("q_offset", offsets)) {
    call.function = tensors.function;
    call.in = &in;
    call.index = pointer(index);
    call.q_offset = pointer(q_offset);
    call.out = &result;
    call.size = result.rank > 0 ? result.shape[result.rank - 1] : 0;
    call.origin = start.value_or(in.rank > 1 ? in.shape[in.rank - 2] - 1 : 0);
    call.has_missing = missing.has_value();
    call.missing = missing.value_or(0);
    call.scale = scale;
  }
  RelativeOptions(const RelativeOptions&) = delete;
  RelativeOptions& operator=(const RelativeOptions&) = delete;

  Array in, result;
  std::optional<Array> index, q_offset;
  RelativeCall call;
};

void relative_gather_out(const Tensor& x, const OptionalTensor& index, std::optional<int64_t> start,
                         const OptionalTensor& q_offset, std::optional<int64_t> missing,
                         const OptionalTensor& content, double scale, const Tensor& out) {
  translate_errors([&] {
    const Call call("relative_gather", x);
    RelativeOptions options(call, "x", x, index, start, q_offset, missing, scale, out);
    const std::optional<Array> added = call.describe("content", content);
    options.call.content = pointer(added);
    gather(call, check_relative_gather(options.call));
  });
}

Tensor relative_gather(const Tensor& x, const OptionalTensor& index, std::optional<int64_t> start,
                       const OptionalTensor& q_offset, std::optional<int64_t> missing,
                       const OptionalTensor& content, double scale, int64_t k_len) {
  const Tensor out = new_result("relative_gather", x, with_last(x, k_len), x.scalar_type());
  relative_gather_out(x, index, start, q_offset, missing, content, scale, out);
  return out;
}

// `order` and `bounds`: see core/lookup.h.
void relative_scatter_out(const Tensor& grad, const OptionalTensor& index,
                          std::optional<int64_t> start, const OptionalTensor& q_offset,
                          std::optional<int64_t> missing, double scale, const OptionalTensor& order,
                          const OptionalTensor& bounds, const Tensor& out) {
  translate_errors([&] {
    const Call call("relative_scatter", grad);
    RelativeOptions options(call, "grad", grad, index, start, q_offset, missing, scale, out);
    const std::optional<Array> by_column = call.describe("order", order);
    const std::optional<Array> begins = call.describe("bounds", bounds);
    options.call.order = pointer(by_column);
    options.call.bounds = pointer(begins);
    scatter(call, check_relative_scatter(options.call));
  });
}

Tensor relative_scatter(const Tensor& grad, const OptionalTensor& index,
                        std::optional<int64_t> start, const OptionalTensor& q_offset,
                        std::optional<int64_t> missing, double scale, const OptionalTensor& order,
                        const OptionalTensor& bounds, int64_t width) {
  const Tensor out =
      new_result("relative_scatter", grad, with_last(grad, width), grad.scalar_type());
  relative_scatter_out(grad, index, start, q_offset, missing, scale, order, bounds, out);
  return out;
}

}  // namespace

#define POSENC_DIAGONALS \
  "int[]? q_len=None, int[]? k_len=None, int[]? start=None, Tensor? q_offset=None"
#define POSENC_COLUMNS "Tensor? index, int? start, Tensor? q_offset, int? missing"

void define_relative(Library& m) {
  m.def("toeplitz_bias(Tensor diagonals, int[] shape, ScalarType dtype, " POSENC_DIAGONALS
        ") -> Tensor");
  m.def("toeplitz_bias_out(Tensor diagonals, " POSENC_DIAGONALS ", *, Tensor(a!) out) -> ()");
  m.def("add_toeplitz_bias(Tensor scores, Tensor diagonals, " POSENC_DIAGONALS ") -> Tensor");
  m.def("add_toeplitz_bias_(Tensor(a!) scores, Tensor diagonals, " POSENC_DIAGONALS ") -> ()");
  m.def("add_toeplitz_bias_out(Tensor scores, Tensor diagonals, " POSENC_DIAGONALS
        ", *, Tensor(a!) out) -> ()");
  m.def(
      "diagonal_sums(Tensor grad, int keep, int[]? q_len, int[]? k_len, int[]? entries, int[]? "
      "start, "
      "Tensor? q_offset) -> Tensor");
  m.def("relative_gather(Tensor x, " POSENC_COLUMNS
        ", Tensor? content, float scale, int k_len) -> Tensor");
  m.def("relative_gather_out(Tensor x, " POSENC_COLUMNS
        ", Tensor? content, float scale, *, Tensor(a!) out) -> ()");
  m.def("relative_scatter(Tensor grad, " POSENC_COLUMNS
        ", float scale, Tensor? order, Tensor? bounds, int width) -> Tensor");
  m.def("relative_scatter_out(Tensor grad, " POSENC_COLUMNS
        ", float scale, Tensor? order, Tensor? bounds, *, Tensor(a!) out) -> ()");
}

void implement_relative(Library& m) {
  m.impl("toeplitz_bias", TORCH_BOX(&toeplitz_bias));
  m.impl("toeplitz_bias_out", TORCH_BOX(&toeplitz_bias_out));
  m.impl("add_toeplitz_bias", TORCH_BOX(&add_toeplitz_bias));
  m.impl("add_toeplitz_bias_", TORCH_BOX(&add_toeplitz_bias_in_place));
  m.impl("add_toeplitz_bias_out", TORCH_BOX(&add_toeplitz_bias_out));
  m.impl("diagonal_sums", TORCH_BOX(&diagonal_sums));
  m.impl("relative_gather", TORCH_BOX(&relative_gather));
  m.impl("relative_gather_out", TORCH_BOX(&relative_gather_out));
  m.impl("relative_scatter", TORCH_BOX(&relative_scatter));
  m.impl("relative_scatter_out", TORCH_BOX(&relative_scatter_out));
}

}  // namespace posenc::operators
