// Kernels with a mistake that no GPU forgives and a host that runs threads in their order does not
// notice, for test_cuda_on_host.py.
//
//   MISTAKE SEED WRITES  ->  the numbers that it leaves, or an error
//
// Each copies or moves 64 numbers in pieces of 8, a thread for each of them.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "cuda/on_host/blocks.h"
#include "cuda/packet.cuh"

namespace {

using namespace posenc::cuda;

constexpr int kCount = 64, kThreads = 8;
alignas(16) float numbers[kCount + kThreads];

struct Parameters {
  std::string mistake;
  LaunchPlan plan;
};

class PlantedThread {
 public:
  PlantedThread(const Parameters& parameters, char* shared, int x)
      : mistake_(parameters.mistake), shared_(reinterpret_cast<float*>(shared)), x_(x) {}

  void read(int64_t piece) {
    at_ = piece * kThreads + x_;
    shared_[x_] = read_packet<float, 1>(numbers + at_).numbers[0];
    if (mistake_ == "address" && x_ == 0) read_packet<float, 4>(numbers + at_ + 1);
    if (mistake_ == "shared memory, next to it" && x_ == 7) shared_[x_ + 1] = 0;
    if (mistake_ == "shared memory, less than 16 bytes on" && x_ == 6) shared_[x_ + 1] = 0;
    if (mistake_ == "shared memory, far on") shared_[x_ + 65536] = 0;
    if (mistake_ == "shared memory, a packet") keep_packet<float, 4>({}, shared_ + 8);
    // What another block writes.
    if (mistake_ == "blocks") shared_[x_] = read_packet<float, 1>(numbers + at_ + 8).numbers[0];
    if (mistake_ == "blocks, backwards" && at_ >= 8) {
      shared_[x_] = read_packet<float, 1>(numbers + at_ - 8).numbers[0];
    }
    // What another thread writes in the same step.
    if (mistake_ == "threads" && x_ > 0) shared_[x_] = shared_[x_ - 1] + 1;
    // What another piece left behind.
    if (mistake_ == "pieces") shared_[x_] = sum_ += shared_[x_];
  }

  float* sum() { return &sum_; }
  int rounds() const { return 1 + x_ % 2; }

  void write() {
    if (mistake_ == "twice") write_packet<float, 1>({{float(x_)}}, numbers);
    write_packet<float, 1>({{shared_[x_]}}, numbers + at_);
  }

 private:
  const std::string& mistake_;
  float* const shared_;
  const int x_;
  int64_t at_;
  float sum_ = 0;
};

}  // namespace

int main(int /*count*/, char** arguments) {
  Parameters parameters{arguments[1], {}};
  on_host::simulation.seed = std::strtoull(arguments[2], nullptr, 10);
  on_host::simulation.writes = std::string(arguments[3]) == "at the end"
                                   ? on_host::Writes::kAtTheEnd
                                   : on_host::Writes::kAtOnce;
  for (int i = 0; i < kCount + kThreads; ++i) numbers[i] = static_cast<float>(i);
  LaunchPlan& plan = parameters.plan;
  plan.threads_x = kThreads;
  plan.take_pieces(kCount / kThreads, 1, {3, 1});
  plan.shared_bytes = kThreads * sizeof(float);
  if (parameters.mistake == "a mask too small") plan.threads_x = 32, plan.shared_bytes *= 4;
  if (parameters.mistake == "threads along z") plan.threads_x = 1, plan.threads_z = 65;
  if (parameters.mistake == "threads of a block") plan.threads_x = 16, plan.threads_y = 17;
  if (parameters.mistake == "shared memory, less than 16 bytes on")
    plan.shared_bytes -= 4, --plan.threads_x;
  if (parameters.mistake == "shared memory") plan.shared_bytes = 49153;
  if (parameters.mistake == "grid along y") plan.pieces_y = plan.grid_y = 65536;
  if (parameters.mistake == "grid along x") plan.pieces_x = plan.grid_x = int64_t{1} << 31;
  if (parameters.mistake == "no grid") plan.grid_x = 0;
  if (parameters.mistake == "grid beyond the pieces") plan.grid_x = 9;
  try {
    on_host::launch<PlantedThread>(
        [&](const Room& /*room*/) { return parameters; },
        [&](on_host::Block<PlantedThread>& block, int64_t x, int64_t /*y*/) {
          block.each([&](PlantedThread& thread) { thread.read(x); });
          const auto sum = [](PlantedThread& thread) { return thread.sum(); };
          if (parameters.mistake == "no warps") block.add_lanes<8, 1>(sum);
          if (parameters.mistake == "a mask too small") block.add_lanes<8, 1>(sum, 0xfffffffb);
          // A loop of as many rounds as the lane has; a branch for some of the lanes.
          const auto rounds = [](PlantedThread& thread) { return thread.rounds(); };
          const auto turns = [](PlantedThread& thread) { return thread.rounds() > 1; };
          if (parameters.mistake == "a lane that left early") {
            for (int round = 0; round < block.agreed(rounds); ++round) block.add_lanes<8, 1>(sum);
          }
          if (parameters.mistake == "a branch" && block.agreed(turns)) block.add_lanes<8, 1>(sum);
          block.each([](PlantedThread& thread) { thread.write(); });
        });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s", error.what());
    return 1;
  }
  std::fwrite(numbers, sizeof(float), kCount, stdout);
  return 0;
}
