// Tensors of torch, through its stable ABI: how they are described as core structs, how new ones
// are made, and how errors cross torch.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/huge_pages.h"
#include "bindings/runners.h"
#include "core/view.h"

namespace posenc::operators {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

struct DtypeEntry {
  ScalarType torch;
  Dtype ours;
  const char* name;
};

constexpr DtypeEntry kDtypes[] = {
    {ScalarType::Half, Dtype::kFloat16, "float16"},
    {ScalarType::BFloat16, Dtype::kBFloat16, "bfloat16"},
    {ScalarType::Float, Dtype::kFloat32, "float32"},
    {ScalarType::Double, Dtype::kFloat64, "float64"},
    {ScalarType::Char, Dtype::kInt8, "int8"},
    {ScalarType::Byte, Dtype::kUInt8, "uint8"},
    {ScalarType::Short, Dtype::kInt16, "int16"},
    {ScalarType::UInt16, Dtype::kUInt16, "uint16"},
    {ScalarType::Int, Dtype::kInt32, "int32"},
    {ScalarType::UInt32, Dtype::kUInt32, "uint32"},
    {ScalarType::Long, Dtype::kInt64, "int64"},
    {ScalarType::UInt64, Dtype::kUInt64, "uint64"},
    {ScalarType::Float8_e4m3fn, Dtype::kFloat8E4M3, "float8_e4m3fn"},
    {ScalarType::Float8_e5m2, Dtype::kFloat8E5M2, "float8_e5m2"},
    {ScalarType::Bool, Dtype::kOther, "bool"},
    {ScalarType::ComplexFloat, Dtype::kOther, "complex64"},
    {ScalarType::ComplexDouble, Dtype::kOther, "complex128"},
};

inline DtypeEntry dtype_of(ScalarType type) {
  for (const DtypeEntry& entry : kDtypes) {
    if (entry.torch == type) return entry;
  }
  return {type, Dtype::kOther, "a dtype that is none of these"};
}

// Where the first tensor of a call is. All others have to be there too.
struct Device {
  int32_t type = aoti_torch_device_type_cpu(), index = 0;

  Device() = default;
  explicit Device(Place place) : type(place.type), index(place.index) {}
  explicit Device(const Tensor& tensor) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &index));
  }
  bool is_cpu() const { return type == aoti_torch_device_type_cpu(); }
  bool operator!=(const Device& other) const {
    return type != other.type || (index != other.index && !is_cpu());
  }
  std::string name() const {
    if (is_cpu()) return "cpu";
    const char* const kind = type == aoti_torch_device_type_cuda() ? "cuda" : "another kind";
    return std::string(kind) + ":" + std::to_string(index);
  }
};

// One call: its function's name, for messages, and its device.
struct Call {
  const char* function;
  Device device;

  Call(const char* name, const Tensor& first) : function(name), device(first) {}
  Call(const char* name, const Device& where) : function(name), device(where) {}

  Array describe(const char* name, const Tensor& tensor) const {
    if (const Device other(tensor); other != device) {
      fail_value(function, name, "a tensor on " + device.name(), other.name());
    }
    Array array;
    const DtypeEntry dtype = dtype_of(tensor.scalar_type());
    array.dtype = dtype.ours;
    array.dtype_name = dtype.name;
    array.readable = device.is_cpu();
    array.data = tensor.data_ptr();
    array.rank = static_cast<int>(tensor.dim());
    if (array.rank > kMaxRank) {
      fail_value(function, name, "at most " + std::to_string(kMaxRank) + " axes",
                 std::to_string(array.rank));
    }
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    for (int i = 0; i < array.rank; ++i) {
      array.shape[i] = sizes[i];
      array.stride[i] = strides[i];
    }
    if (!array.aligned()) {
      fail_value(function, name, "memory aligned to its elements",
                 "an unaligned view; clone() makes an aligned copy");
    }
    check_storage(name, tensor, array);
    return array;
  }

  // A storage may be smaller than the views on it: resize_(0) frees the parameters of a model that
  // is sharded. No tensor tells.
  void check_storage(const char* name, const Tensor& tensor, const Array& array) const {
    int64_t offset = 0, bytes = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_offset(tensor.get(), &offset));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(tensor.get(), &bytes));
    const int64_t elements = span(array);
    const int64_t needed = (offset + elements) * static_cast<int64_t>(tensor.element_size());
    if (elements == 0 || needed <= bytes) return;
    fail_value(function, name, "a storage of at least " + std::to_string(needed) + " bytes",
               bytes == 0 ? "one that has been freed" : std::to_string(bytes) + " bytes");
  }

  std::optional<Array> describe(const char* name, const OptionalTensor& tensor) const {
    if (!tensor.has_value()) return std::nullopt;
    return describe(name, *tensor);
  }
};

inline const Array* pointer(const std::optional<Array>& array) { return array ? &*array : nullptr; }

inline void advise_huge_pages(const Tensor& result) {
  const auto size = static_cast<int64_t>(result.element_size());
  posenc::advise_huge_pages(result.data_ptr(), result.numel() * size);
}

// An error crosses torch as a RuntimeError. Its text begins with the name of the Python exception
// that it stands for, which the Python package raises.
template <typename Body>
auto translate_errors(Body body) {
  try {
    return body();
  } catch (const Error& error) {
    throw std::runtime_error((error.kind == Error::kType ? "TypeError: " : "ValueError: ") +
                             error.message());
  }
}

// All results are made here, without the dispatcher, which would take longer than a small call.
inline Tensor allocate(const int64_t* shape, const int64_t* strides, int rank, ScalarType dtype,
                       const Device& device) {
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      rank, shape, strides,
      static_cast<int32_t>(torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype))),
      device.type, device.is_cpu() ? 0 : device.index, &handle));
  Tensor tensor(handle);
  if (device.is_cpu()) advise_huge_pages(tensor);
  return tensor;
}

inline Tensor new_tensor(const std::vector<int64_t>& shape, ScalarType dtype,
                         const Device& device) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return allocate(shape.data(), strides.data(), static_cast<int>(shape.size()), dtype, device);
}

// Sums of a gradient over so many rows of work, in float64. Kernels of the CPU add to them, so they
// begin at 0; so do those of no rows, which CUDA may leave as they are.
inline Tensor new_sums(const std::vector<int64_t>& shape, int64_t rows, const Device& device) {
  Tensor sums = new_tensor(shape, ScalarType::Double, device);
  if (device.is_cpu() || rows == 0) torch::stable::zero_(sums);
  return sums;
}

// The same, with sums for each piece of the CPU's work in a row of its own; the first row gets the
// total.
inline Tensor new_sums_of_pieces(std::vector<int64_t> shape, int64_t pieces, int64_t rows,
                                 const Device& device) {
  shape.insert(shape.begin(), device.is_cpu() ? std::max<int64_t>(pieces, 1) : int64_t{1});
  return new_sums(shape, rows, device);
}

// Whether a tensor's elements fill their memory: then empty_like keeps its strides.
inline bool is_dense(const int64_t* shape, const int64_t* strides, int rank) {
  int axes[kMaxRank], count = 0;
  for (int i = 0; i < rank; ++i) {
    if (shape[i] == 0) return false;
    if (shape[i] > 1) axes[count++] = i;
  }
  std::sort(axes, axes + count, [&](int a, int b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  for (int i = 0; i < count; ++i) {
    if (strides[axes[i]] != expected) return false;
    expected *= shape[axes[i]];
  }
  return true;
}

// torch.empty_like.
inline Tensor new_like(const Tensor& x) {
  const auto shape = x.sizes(), strides = x.strides();
  const int rank = static_cast<int>(x.dim());
  if (rank <= kMaxRank && is_dense(shape.data(), strides.data(), rank)) {
    return allocate(shape.data(), strides.data(), rank, x.scalar_type(), Device(x));
  }
  Tensor tensor = torch::stable::empty_like(x);
  if (tensor.is_cpu()) advise_huge_pages(tensor);
  return tensor;
}

}  // namespace posenc::operators
