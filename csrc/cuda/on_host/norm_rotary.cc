#include "cuda/norm_rotary.cuh"

#include <type_traits>

#include "cpu/kernels.h"
#include "cuda/norm_rotary_steps.cuh"
#include "cuda/on_host/blocks.h"

namespace posenc::cuda::on_host {
namespace {

void run_norm_rotary_warps(const NormRotaryArgs& args) {
  visit_warp_thread<NormRotaryWarpThread>(args.rotary, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const auto plan = [&](const Room& room) {
      return NormRotaryParameters{args, plan_norm_rotary_warps<Thread>(args, room)};
    };
    launch<Thread>(plan, [&](Block<Thread>& block, int64_t x, int64_t /*y*/) {
      block.each([&](Thread& thread) {
        thread.begin(x);
        thread.read();
      });
      while (block.any([](Thread& thread) { return thread.has_step(); })) {
        block.each([](Thread& thread) {
          thread.ask();
          thread.angles();
        });
        block.each([](Thread& thread) { thread.take(); });
        if (args.norm) {
          block.each([](Thread& thread) { thread.sum(); });
          block.template add_lanes<Thread::kLanesOfHead, Thread::kAllSums>(
              [](Thread& thread) { return thread.sums(); });
          block.each([](Thread& thread) { thread.finish_sums(); });
        }
        block.each([](Thread& thread) { thread.write(); });
      }
    });
  });
}

void run_norm_rotary(const NormRotaryArgs& args) {
  if (takes_warps(args)) return run_norm_rotary_warps(args);
  visit_norm_rotary_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const auto plan = [&](const Room& room) {
      return NormRotaryParameters{args, plan_norm_rotary<Thread>(args, room)};
    };
    launch<Thread>(plan, [](Block<Thread>& block, int64_t x, int64_t y) {
      block.each([&](Thread& thread) {
        thread.begin(x, y);
        thread.frequencies();
      });
      block.each([](Thread& thread) { thread.angles(); });
      const bool last = block.agreed([](Thread& thread) { return thread.norms_last(); });
      for (int pass = block.agreed([](Thread& thread) { return thread.sums_tokens(); }) ? 0 : 1;
           pass < 2; ++pass) {
        for (int64_t round = 0;
             round < block.agreed([](Thread& thread) { return thread.rounds(); }); ++round) {
          block.each([&](Thread& thread) { thread.read(round); });
          if (last) {
            block.each([](Thread& thread) { thread.turn(); });
            block.each([](Thread& thread) { thread.sum(); });
          }
          if (pass == 0) {
            block.each([](Thread& thread) { thread.keep_sum(); });
            continue;
          }
          block.each([](Thread& thread) { thread.scale(); });
          if (!last) block.each([](Thread& thread) { thread.turn(); });
          if (block.agreed([](Thread& thread) { return thread.makes_scales(); })) {
            block.each([](Thread& thread) { thread.keep_largest(); });
          }
          block.each([](Thread& thread) { thread.write(); });
        }
      }
      for (int64_t round = 0;
           round < block.agreed([](Thread& thread) { return thread.value_rounds(); }); ++round) {
        block.each([&](Thread& thread) { thread.read_value(round); });
        block.each([](Thread& thread) { thread.keep_largest_value(); });
        block.each([](Thread& thread) { thread.write_value(); });
      }
      block.each([](Thread& thread) { thread.append_values(); });
    });
  });
}

}  // namespace
}  // namespace posenc::cuda::on_host

namespace posenc::cpu {

// A launch is for all rows: the range that begins the call does them.
void norm_rotary(const NormRotaryArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::on_host::run_norm_rotary(args);
}

}  // namespace posenc::cpu
