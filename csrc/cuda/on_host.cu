// The CUDA kernels run on the host, thread by thread, in the place of the CPU's kernels: for tests
// on machines without a GPU. Linked with csrc/bindings/numpy.cc it makes a module like
// posenc_native._core, which all tests of that one can take instead.

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cpu/kernels.h"
#include "cuda/rotary.cuh"
#include "cuda/sinusoidal.cuh"

namespace posenc::cuda {
namespace {

// Small, so that blocks have several pieces to do.
constexpr GridLimit kLimit{3, 2};

// Threads begin with what is not a number, and so does shared memory: what is read without having
// been written shows.
constexpr unsigned char kPoison = 0xff;

// run_piece(shared, x, y) for the pieces of every block, in the order in which a block has them.
template <typename Plan, typename RunPiece>
void for_each_block(const Plan& plan, const RunPiece& run_piece) {
  std::vector<unsigned char> memory(plan.shared_bytes + 128);
  const size_t misaligned = reinterpret_cast<uintptr_t>(memory.data()) % 128;
  unsigned char* const shared = memory.data() + (128 - misaligned);
  for (int64_t block_y = 0; block_y < plan.grid_y; ++block_y) {
    for (int64_t block_x = 0; block_x < plan.grid_x; ++block_x) {
      std::memset(shared, kPoison, plan.shared_bytes);
      for (int64_t y = block_y; y < plan.pieces_y; y += plan.grid_y) {
        for (int64_t x = block_x; x < plan.pieces_x; x += plan.grid_x) {
          run_piece(reinterpret_cast<char*>(shared), x, y);
        }
      }
    }
  }
}

void run_rotary(const RotaryArgs& args) {
  visit_rotary_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const RotaryParameters parameters{args, plan_rotary<Thread>(args, kLimit)};
    const RotaryPlan& plan = parameters.plan;
    for_each_block(plan, [&](char* shared, int64_t piece_x, int64_t piece_y) {
      std::vector<Thread> threads;
      for (int z = 0; z < plan.threads_z; ++z) {
        for (int y = 0; y < plan.threads_y; ++y) {
          for (int x = 0; x < plan.threads_x; ++x)
            threads.emplace_back(parameters, shared, x, y, z);
        }
      }
      for (Thread& thread : threads) thread.begin(piece_x, piece_y);
      for (Thread& thread : threads) thread.frequencies();
      for (Thread& thread : threads) thread.angles();
      for (Thread& thread : threads) thread.rotate();
    });
  });
}

void run_sinusoidal(const SinusoidalArgs& args) {
  for_each_sinusoidal_launch(args, kLimit, [&](const SinusoidalParameters& parameters, auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const SinusoidalPlan& plan = parameters.plan;
    for_each_block(plan, [&](char* shared, int64_t piece_x, int64_t piece_y) {
      std::vector<Thread> threads;
      for (int y = 0; y < plan.threads_y; ++y) {
        for (int x = 0; x < plan.threads_x; ++x) threads.emplace_back(parameters, shared, x, y);
      }
      for (Thread& thread : threads) thread.begin(piece_x, piece_y);
      for (Thread& thread : threads) thread.frequencies();
      for (Thread& thread : threads) thread.rows();
    });
    return true;
  });
}

}  // namespace
}  // namespace posenc::cuda

namespace posenc::cpu {

// A launch is for all rows: the range that begins the call does them.
void rotary(const RotaryArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::run_rotary(args);
}

void sinusoidal(const SinusoidalArgs& args, int64_t begin, int64_t /*end*/) {
  if (begin == 0) cuda::run_sinusoidal(args);
}

std::vector<std::string> available_targets() { return {current_target()}; }
std::string current_target() { return "CUDA"; }
bool set_target(std::string_view name) { return name.empty() || name == current_target(); }
int64_t non_temporal_bytes() { return INT64_MAX; }
void set_non_temporal_bytes(int64_t /*bytes*/) {}

}  // namespace posenc::cpu
