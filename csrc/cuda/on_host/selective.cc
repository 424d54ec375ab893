#include "cuda/selective.cuh"

#include <type_traits>

#include "cpu/kernels.h"
#include "cpu/selective.h"
#include "cuda/on_host/blocks.h"
#include "cuda/selective_gradient.cuh"
#include "cuda/selective_scan.cuh"

namespace posenc::cuda::on_host {
namespace {

void begin_segments(const SelectiveArgs& args) {
  if (!cut_selective(args).several) return;
  visit_totals_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const auto plan = [&](const Room& room) {
      return SelectiveParameters{args, plan_totals<Thread>(args, room.limit)};
    };
    launch<Thread>(plan, [](Block<Thread>& block, int64_t x, int64_t y) {
      block.each([&](Thread& thread) { thread.sum(x, y); });
    });
  });
  using Scan = SelectiveScanThread<int64_t, 1>;
  const auto plan = [&](const Room& room) {
    return SelectiveParameters{args, plan_scan(args, Scan::kSharedBytes, room.limit)};
  };
  launch_scan<Scan>(plan);
}

void run_selective(SelectiveArgs args) {
  RotaryArgs& rotary = args.rotary;
  const bool copied = rotary.overwrites_itself();
  const Workspace copy(copied ? rotary.rows() * rotary.row_bytes() : 0);
  if (copied) {
    cpu::rotary(rotary.read_from_copy(copy.data(), 0, rotary.rows()), 0, rotary.rows());
  }
  const Workspace workspace(SelectiveWorkspace(args, cut_selective(args)).bytes);
  args.workspace = workspace.data();
  begin_segments(args);
  visit_selective_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const auto plan = [&](const Room& room) {
      return SelectiveParameters{args, plan_walk<Thread>(args, room.limit)};
    };
    launch<Thread>(plan, [](Block<Thread>& block, int64_t x, int64_t y) {
      block.each([&](Thread& thread) { thread.rotate(x, y); });
    });
  });
}

void run_selective_gradient(SelectiveGradientArgs args) {
  const SelectiveCut cut = cut_selective(args.turned);
  const Workspace workspace(SelectiveWorkspace(args.turned, cut, true).bytes);
  args.turned.workspace = workspace.data();
  begin_segments(args.turned);
  visit_selective_gradient_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const auto plan = [&](const Room& room) {
      return SelectiveGradientParameters{args, plan_walk_back<Thread>(args, room.limit)};
    };
    launch<Thread>(plan, [](Block<Thread>& block, int64_t x, int64_t y) {
      block.each([&](Thread& thread) { thread.rotate(x, y); });
    });
  });
  if (cut.several) {
    visit_number(args, [&](auto number) {
      using Carry = SelectiveCarryThread<double, 1, decltype(number)>;
      const auto plan = [&](const Room& room) {
        return SelectiveGradientParameters{args,
                                           plan_scan(args.turned, Carry::kSharedBytes, room.limit)};
      };
      launch_scan<Carry>(plan);
    });
  }
  visit_steps_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const auto plan = [&](const Room& room) {
      return SelectiveGradientParameters{args, plan_steps<Thread>(args, room.limit)};
    };
    launch<Thread>(plan, [](Block<Thread>& block, int64_t x, int64_t y) {
      block.each([&](Thread& thread) { thread.sum(x, y); });
    });
  });
}

}  // namespace
}  // namespace posenc::cuda::on_host

namespace posenc::cpu {

// Launches are for all rows: the one segment is the call. Steps are not looked at, as on a GPU.
SelectiveRun::SelectiveRun(const SelectiveArgs& args, int64_t /*threads*/)
    : args_(args), heads_(args.heads), segments_(1) {}
int64_t SelectiveRun::step_bytes() const { return 0; }
bool SelectiveRun::are_angles(int64_t /*begin*/, int64_t /*end*/) const { return true; }
void SelectiveRun::add_totals(int64_t /*begin*/, int64_t /*end*/) {}
void SelectiveRun::scan() {}
void SelectiveRun::rotate(int64_t begin, int64_t /*end*/) const {
  if (begin == 0) cuda::on_host::run_selective(args_);
}

int64_t selective_gradient_units(const SelectiveGradientArgs& /*args*/, int64_t /*threads*/) {
  return 1;
}
void rotate_back(const SelectiveGradientArgs& args, int64_t /*units*/, int64_t begin,
                 int64_t /*end*/) {
  if (begin == 0) cuda::on_host::run_selective_gradient(args);
}

}  // namespace posenc::cpu
