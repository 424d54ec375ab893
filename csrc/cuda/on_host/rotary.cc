#include <type_traits>

#include "cpu/kernels.h"
#include "cuda/on_host/blocks.h"
#include "cuda/rotary_plan.cuh"

namespace posenc::cuda::on_host {
namespace {

void run_rotary(const RotaryArgs& args) {
  visit_rotary_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const auto plan = [&](const Room& room) {
      return RotaryParameters{args, plan_rotary<Thread>(args, room)};
    };
    launch<Thread>(plan, [](Block<Thread>& block, int64_t x, int64_t y) {
      block.each([&](Thread& thread) {
        thread.begin(x, y);
        thread.read();
        thread.frequencies();
        if (!thread.has_frequencies()) thread.angles();
      });
      block.each([](Thread& thread) {
        if (thread.has_frequencies()) thread.angles();
      });
      block.each([](Thread& thread) { thread.rotate(); });
    });
  });
}

}  // namespace
}  // namespace posenc::cuda::on_host

namespace posenc::cpu {

// A launch is for all rows: the range that begins the call does them.
void rotary(const RotaryArgs& given, int64_t begin, int64_t /*end*/) {
  if (begin != 0) return;
  RotaryArgs args = given;
  const bool copied = args.overwrites_itself();
  const cuda::on_host::Workspace copy(copied ? args.rows() * args.row_bytes() : 0);
  if (copied) {
    args.read_from_copy(copy.data(), 0, args.rows()).for_each_group(cuda::on_host::run_rotary);
  }
  args.for_each_group(cuda::on_host::run_rotary);
}

}  // namespace posenc::cpu
