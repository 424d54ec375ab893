// Bound calls: their options, shapes and strides were checked once. The interpreter calls these
// objects without keywords and without a tuple. A call checks only what may differ from call to
// call, and returns NotImplemented if anything does: its caller then takes the general path, which
// serves the call or raises its error.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/view.h"

namespace posenc::numpy {

namespace py = pybind11;

// The bytes of a view, from its lowest address to the end of its highest element.
struct Bytes {
  const char* begin;
  const char* end;

  bool meet(const Bytes& other) const { return begin < other.end && other.begin < end; }
};

inline Bytes bytes_of(const void* data, Dtype dtype, int rank, const int64_t* shape,
                      const int64_t* stride) {
  const int64_t size = item_size(dtype);
  const auto* const first = static_cast<const char*>(data);
  Bytes bytes{first, first + size};
  for (int i = 0; i < rank; ++i) {
    const int64_t far = (shape[i] - 1) * stride[i] * size;
    (far < 0 ? bytes.begin : bytes.end) += far;
  }
  return bytes;
}

inline Bytes bytes_of(const Array& x) {
  return bytes_of(x.data, x.dtype, x.rank, x.shape, x.stride);
}

struct Description;

// What is called.
class BoundCall {
 public:
  BoundCall() = default;
  BoundCall(const BoundCall&) = delete;
  BoundCall& operator=(const BoundCall&) = delete;
  virtual ~BoundCall() = default;

  // Arguments by place.
  virtual py::object operator()(PyObject* const* args, size_t count) = 0;

  // Of a Rotary, whose calls these are.
  virtual const Description* description() const { return nullptr; }
};

// As an object of the interpreter.
py::object bound(std::unique_ptr<BoundCall> call);

}  // namespace posenc::numpy
