// Runs a checked call with the kernels of its tensors' device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "bindings/torch/cuda.h"
#include "bindings/torch/tensors.h"
#include "core/lookup.h"
#include "core/norm_rotary.h"
#include "core/phases.h"
#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "core/toeplitz.h"
#include "cpu/run.h"

namespace posenc::operators {

// The Runner of cpu/run.h: torch's threads, for work that takes longer than waking them. Each gets
// so many bytes; two share what is more than one's. Below that, two threads are no faster than one.
constexpr int64_t kBytesPerTorchThread = int64_t{1} << 20;
inline constexpr auto run_rows = [](int64_t rows, int64_t bytes, const auto& run) {
  if (bytes < kBytesPerTorchThread) {
    run(int64_t{0}, rows);
    return;
  }
  const int64_t ranges = std::min(std::max<int64_t>(bytes / kBytesPerTorchThread, 2), rows);
  torch::stable::parallel_for(0, rows, (rows + ranges - 1) / ranges, run);
};

inline void run([[maybe_unused]] const Call& call, const SinusoidalArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) return cuda::run(call.function, call.device.index, args);
#endif
  cpu::write_sinusoidal(args, run_rows);
}

inline void run([[maybe_unused]] const Call& call, RotaryArgs args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) {
    std::optional<Tensor> copy;
    if (args.overwrites_itself()) {
      copy = new_tensor({args.rows() * args.row_bytes()}, ScalarType::Byte, call.device);
      cuda::run(call.function, call.device.index,
                args.read_from_copy(copy->data_ptr(), 0, args.rows()));
    }
    return cuda::run(call.function, call.device.index, args);
  }
#endif
  cpu::rotate(args, run_rows);
}

inline void run([[maybe_unused]] const Call& call, RotaryGradientArgs args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) {
    const Tensor workspace =
        new_tensor({cuda::gradient_workspace(args)}, ScalarType::Byte, call.device);
    args.workspace = workspace.data_ptr();
    return cuda::rotate_back(call.function, call.device.index, args);
  }
#endif
  cpu::rotate_back(args, run_rows);
}

inline void run([[maybe_unused]] const Call& call, SelectiveArgs args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) {
    RotaryArgs& rotary = args.rotary;
    std::optional<Tensor> copy;
    if (rotary.overwrites_itself()) {
      copy = new_tensor({rotary.rows() * rotary.row_bytes()}, ScalarType::Byte, call.device);
      cuda::run(call.function, call.device.index,
                rotary.read_from_copy(copy->data_ptr(), 0, rotary.rows()));
    }
    const Tensor workspace =
        new_tensor({cuda::selective_workspace(args)}, ScalarType::Byte, call.device);
    args.workspace = workspace.data_ptr();
    return cuda::rotate_by_steps(call.function, call.device.index, args);
  }
#endif
  cpu::rotate_by_steps(call.function, args, torch::stable::get_num_threads(), run_rows);
}

inline void run([[maybe_unused]] const Call& call, SelectiveGradientArgs args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) {
    const Tensor workspace =
        new_tensor({cuda::selective_gradient_workspace(args)}, ScalarType::Byte, call.device);
    args.turned.workspace = workspace.data_ptr();
    return cuda::rotate_back_by_steps(call.function, call.device.index, args);
  }
#endif
  cpu::rotate_back_by_steps(args, torch::stable::get_num_threads(), run_rows);
}

inline void run([[maybe_unused]] const Call& call, const NormRotaryArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) return cuda::run(call.function, call.device.index, args);
#endif
  cpu::norm_rotate(args, run_rows);
}

inline void run([[maybe_unused]] const Call& call, NormRotaryGradientArgs args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) {
    const Tensor workspace =
        new_tensor({cuda::norm_gradient_workspace(args)}, ScalarType::Byte, call.device);
    args.workspace = workspace.data_ptr();
    return cuda::norm_rotate_back(call.function, call.device.index, args);
  }
#endif
  cpu::norm_rotate_back(args, run_rows);
}

inline void accumulate_phases([[maybe_unused]] const Call& call, const AccumulateArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) return cuda::accumulate_phases(call.function, call.device.index, args);
#endif
  cpu::accumulate_phases(args, run_rows);
}

inline void write_phase_tables([[maybe_unused]] const Call& call, const PhaseTablesArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) {
    return cuda::write_phase_tables(call.function, call.device.index, args);
  }
#endif
  cpu::write_phase_tables(args, run_rows);
}

inline void lay_diagonals([[maybe_unused]] const Call& call, const ToeplitzArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) return cuda::lay_diagonals(call.function, call.device.index, args);
#endif
  cpu::lay_diagonals(args, run_rows);
}

inline void sum_diagonals([[maybe_unused]] const Call& call, ToeplitzArgs args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) {
    const Tensor workspace =
        new_tensor({cuda::diagonal_sums_workspace(args)}, ScalarType::Byte, call.device);
    args.workspace = workspace.data_ptr();
    return cuda::sum_diagonals(call.function, call.device.index, args);
  }
#endif
  cpu::sum_diagonals(args, run_rows);
}

inline void gather([[maybe_unused]] const Call& call, const RelativeArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) return cuda::gather(call.function, call.device.index, args);
#endif
  cpu::gather(args, run_rows);
}

inline void scatter([[maybe_unused]] const Call& call, const RelativeArgs& args) {
#ifdef POSENC_CUDA_ARCHITECTURES
  if (!call.device.is_cpu()) return cuda::scatter(call.function, call.device.index, args);
#endif
  cpu::scatter(args, run_rows);
}

}  // namespace posenc::operators
