// Descriptions of a rotation (posenc_native.Rotary) at the door, in the place of frequencies: what
// else they hold is then no argument of the call.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace posenc::numpy {

namespace py = pybind11;

class BoundCall;

// What a Rotary hands over once, when it is made. Nothing of it ever changes. Frequencies and
// axis_map are arrays; those of a GPU the Rotary has as tensors.
struct Description {
  py::object inv_freq, axis_map, pairing, rotary_start, scale, layout;
  int64_t head_dim = 0;  // the width of the heads that it rotates
  // Of a norm: query_scale, query_beta, query_length, query_shift; None: queries are not scaled.
  py::object query_scale;

  bool scales_queries() const { return !query_scale.is_none(); }
};

// The type posenc_native.Rotary, once the package has brought it.
inline PyTypeObject* rotary_type = nullptr;

// Whether an object is or has a Rotary: its type has __rotary__, which returns that. Frequencies of
// its own, which are learned, are a matter of the general path.
bool is_described(PyObject* object);

// The description of such an object, and what keeps it alive; nothing where there is none.
class Described {
 public:
  explicit Described(PyObject* object);

  // inv_freq and axis_map for a tensor that is not in the memory of the CPU, as a tuple.
  py::object on_device_of(PyObject* tensor) const;

  explicit operator bool() const { return description_ != nullptr; }
  const Description& operator*() const { return *description_; }
  const Description* operator->() const { return description_; }
  // Calls of q and k like recent ones: q, k, positions, layout, inverse, inplace.
  BoundCall& calls() const { return *calls_; }

 private:
  py::object rotary_, keeper_;
  const Description* description_ = nullptr;
  BoundCall* calls_ = nullptr;
};

}  // namespace posenc::numpy
