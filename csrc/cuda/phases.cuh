// Phases that the caller wants themselves, and cosines and sines of phases, on a GPU. Plain C++ as
// well, which tests run on the host (on_host/).
//
//   phases   a block: some pairs (x) of a row, whose tokens its threads (y) share out. Each sums
//   its
//            own tokens, then goes through them again from what those before it have
//   tables   a thread: neighboring phases
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/phases.h"
#include "core/visit_type.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/room.h"
#include "cuda/selective_segments.cuh"
#include "cuda/selective_steps.cuh"

namespace posenc::cuda {

struct PhasesParameters {
  AccumulateArgs args;
  LaunchPlan plan;
};

struct PhaseTablesParameters {
  PhaseTablesArgs args;
  LaunchPlan plan;
};

// ---------------------------------------------------------------------------------------------
// Phases

// Step: float for steps of 16 and 32 bits, else double. kCount: of the name alone.
template <typename Step, int kCount>
class PhasesThread {
  static constexpr int kColumns = Policy::kSumColumns, kRows = Policy::kSumRows;
  // Steps that are read before one is added.
  static constexpr int kAtOnce = Policy::kStepReads * 4 / static_cast<int>(sizeof(Step));

 public:
  static constexpr size_t kSharedBytes = sizeof(uint64_t) * kColumns * kRows;

  POSENC_HD PhasesThread(const PhasesParameters& parameters, char* shared, int x, int y)
      : args_(parameters.args), totals_(reinterpret_cast<uint64_t*>(shared)), x_(x), y_(y) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const Array& steps = args_.steps;
    pair_ = piece_x * kColumns + x_;
    there_ = pair_ < args_.pairs();
    const int64_t tokens = args_.tokens(), each = (tokens + kRows - 1) / kRows;
    const int64_t before = y_ * each, rest = tokens - before;
    count_ = rest < 0 ? 0 : rest < each ? rest : each;
    if (!there_) return;
    outer_ = piece_y;
    token_stride_ = steps.stride[steps.rank - 2];
    from_ = offset(steps, steps.rank - 2) + pair_ * steps.stride[steps.rank - 1] +
            before * token_stride_;
    to_ = (outer_ * tokens + before) * args_.pairs() + pair_;
    uint64_t total = 0;
    walk([&](int64_t /*token*/, uint64_t turns) { total += turns; });
    keep_packet<uint64_t, 1>({{total}}, totals_ + y_ * kColumns + x_);
  }

  POSENC_HD void write() const {
    if (!there_ || count_ == 0) return;
    uint64_t sum = 0;
    if (args_.has_state) {
      const Array& state = args_.state;
      const int64_t at = offset(state, state.rank - 1) + pair_ * state.stride[state.rank - 1];
      const auto* const data = static_cast<const int64_t*>(state.data);
      sum = static_cast<uint64_t>(read_packet<int64_t, 1>(data + at).numbers[0]);
    }
    for (int y = 0; y < y_; ++y) {
      sum += kept_packet<uint64_t, 1>(totals_ + y * kColumns + x_).numbers[0];
    }
    walk([&](int64_t token, uint64_t turns) {
      sum += turns;
      write_packet<int64_t, 1>({{static_cast<int64_t>(sum)}},
                               args_.phases + to_ + token * args_.pairs());
    });
  }

 private:
  // Of the row, in an array whose first `axes` axes are those of rows.
  POSENC_HD int64_t offset(const Array& array, int axes) const {
    int64_t offset = 0, index = outer_;
    for (int i = axes - 1; i >= 0; --i) {
      offset += index % array.shape[i] * array.stride[i];
      index /= array.shape[i];
    }
    return offset;
  }

  POSENC_HD Step step_at(int64_t at) const {
    if constexpr (sizeof(Step) == 8) {
      return read_packet<double, 1>(static_cast<const double*>(args_.steps.data) + at).numbers[0];
    } else {
      return number_at<Step>(args_.steps.data, args_.steps.dtype, at);
    }
  }

  // visit(token, turns), of the thread's tokens, whose first is 0.
  template <typename Visit>
  POSENC_HD void walk(const Visit& visit) const {
    for (int64_t token = 0; token < count_; token += kAtOnce) {
      Step steps[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (token + i >= count_) continue;
        steps[i] = step_at(from_ + (token + i) * token_stride_);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (token + i < count_) visit(token + i, turns_of_step(steps[i]));
      }
    }
  }

  const AccumulateArgs& args_;
  uint64_t* const totals_;
  const int x_, y_;

  bool there_;
  int64_t outer_ = 0, pair_, count_, token_stride_ = 0, from_ = 0, to_ = 0;
};

// ---------------------------------------------------------------------------------------------
// Tables

template <typename T, int kCount>
class PhaseTablesThread {
 public:
  static constexpr int kWidth = kCount;

  POSENC_HD PhaseTablesThread(const PhaseTablesParameters& parameters, char* /*shared*/, int x)
      : args_(parameters.args), x_(x) {}

  POSENC_HD void write(int64_t piece_x) const {
    const int64_t at = (piece_x * Policy::kThreads + x_) * kCount;
    if (at >= args_.count) return;
    int64_t phases[kCount];
    read_neighbours<int64_t, kCount>(args_.phases + at, phases);
    T cosines[kCount], sines[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const SinCos<Real<T>> angle = sincos<Real<T>>(static_cast<uint64_t>(phases[i]));
      cosines[i] = round_to<T>(angle.cosine);
      sines[i] = round_to<T>(angle.sine);
    }
    write_neighbours<T, kCount>(cosines, static_cast<T*>(args_.cosine) + at);
    write_neighbours<T, kCount>(sines, static_cast<T*>(args_.sine) + at);
  }

 private:
  const PhaseTablesArgs& args_;
  const int x_;
};

// ---------------------------------------------------------------------------------------------
// On the host: which threads, how many of them

inline PhasesParameters plan_phases(const AccumulateArgs& args, size_t shared_bytes,
                                    GridLimit limit = {}) {
  PhasesParameters parameters{args, {}};
  LaunchPlan& plan = parameters.plan;
  plan.threads_x = Policy::kSumColumns;
  plan.threads_y = Policy::kSumRows;
  plan.shared_bytes = shared_bytes;
  const int64_t rows = args.tokens() == 0 ? 0 : args.outer();
  plan.take_pieces(divide_up(args.pairs(), Policy::kSumColumns), rows, limit);
  return parameters;
}

template <typename Visit>
auto visit_phases_thread(const AccumulateArgs& args, const Visit& visit) {
  if (args.steps.dtype == Dtype::kFloat64) {
    return visit(static_cast<PhasesThread<double, 1>*>(nullptr));
  }
  return visit(static_cast<PhasesThread<float, 1>*>(nullptr));
}

inline PhaseTablesParameters plan_phase_tables(const PhaseTablesArgs& args, int width,
                                               GridLimit limit = {}) {
  PhaseTablesParameters parameters{args, {}};
  parameters.plan.threads_x = Policy::kThreads;
  parameters.plan.take_pieces(divide_up(args.count, int64_t{Policy::kThreads} * width),
                              args.count == 0 ? 0 : 1, limit);
  return parameters;
}

// Several at once, where all begin at addresses for that.
template <typename Visit>
auto visit_phase_tables_thread(const PhaseTablesArgs& args, const Visit& visit) {
  const auto is_at = [](const void* data, int64_t bytes) {
    return reinterpret_cast<int64_t>(data) % bytes == 0;
  };
  return visit_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = sizeof(T) == 8 ? 2 : 4;
    constexpr int64_t kBytes = kWide * sizeof(T);
    if (args.count % kWide == 0 && is_at(args.phases, 16) && is_at(args.cosine, kBytes) &&
        is_at(args.sine, kBytes)) {
      return visit(static_cast<PhaseTablesThread<T, kWide>*>(nullptr));
    }
    return visit(static_cast<PhaseTablesThread<T, 1>*>(nullptr));
  });
}

}  // namespace posenc::cuda
