#include "core/phases.h"

namespace posenc {
namespace {

void check_in_order(const char* function, const char* name, const Array& array) {
  int64_t stride = 1;
  for (int i = array.rank - 1; i >= 0; --i) {
    if (array.shape[i] > 1 && array.stride[i] != stride && !array.empty()) {
      fail_value(function, name, "memory in C order", "other strides");
    }
    stride *= array.shape[i];
  }
}

void check_shape(const char* function, const char* name, const Array& array, const int64_t* shape,
                 int rank) {
  bool same = array.rank == rank;
  for (int i = 0; same && i < rank; ++i) same = array.shape[i] == shape[i];
  if (!same) {
    fail_value(function, name, "shape " + to_string(shape, rank), "shape " + shape_string(array));
  }
}

void check_int64(const char* function, const char* name, const Array& array) {
  if (array.dtype != Dtype::kInt64) fail_type(function, name, "int64", array.dtype_name);
}

}  // namespace

AccumulateArgs check_accumulate(const char* function, const Array& steps, const Array* state,
                                const Array& phases) {
  check_real(function, "steps", steps);
  if (steps.rank < 2) fail_value(function, "steps", "shape [..., s, P]", shape_string(steps));
  check_int64(function, "phases", phases);
  check_shape(function, "phases", phases, steps.shape, steps.rank);
  check_in_order(function, "phases", phases);
  AccumulateArgs args;
  args.steps = steps;
  args.phases = static_cast<int64_t*>(phases.data);
  if (state != nullptr) {
    check_int64(function, "state", *state);
    int64_t shape[kMaxRank];
    const int rank = steps.rank - 1;
    for (int i = 0; i < rank; ++i) shape[i] = steps.shape[i == rank - 1 ? i + 1 : i];
    check_shape(function, "state", *state, shape, rank);
    args.has_state = true;
    args.state = *state;
  }
  return args;
}

PhaseTablesArgs check_phase_tables(const char* function, const Array& phases, const Array& cosine,
                                   const Array& sine) {
  check_int64(function, "phases", phases);
  check_in_order(function, "phases", phases);
  const Array* const tables[] = {&cosine, &sine};
  const char* const names[] = {"cos", "sin"};
  for (int i = 0; i < 2; ++i) {
    check_real(function, names[i], *tables[i]);
    check_shape(function, names[i], *tables[i], phases.shape, phases.rank);
    check_in_order(function, names[i], *tables[i]);
  }
  if (cosine.dtype != sine.dtype) fail_type(function, "sin", cosine.dtype_name, sine.dtype_name);
  int64_t count = 1;
  for (int i = 0; i < phases.rank; ++i) count *= phases.shape[i];
  return {static_cast<const int64_t*>(phases.data), count, cosine.dtype, cosine.data, sine.data};
}

}  // namespace posenc
