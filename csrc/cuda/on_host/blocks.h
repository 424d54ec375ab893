// The CUDA kernels run on the host, thread by thread, in the place of the CPU's kernels: for tests
// on machines without a GPU. Linked with the NumPy module's sources these files make a module like
// posenc_native._core, which all tests of that one can take instead. The host's compiler takes
// them: what a thread does is plain C++.
//
// A kernel here is the steps that a block takes for a piece. All else is the same for every kernel:
//
//   limits    of CUDA and of what the kernels are compiled for
//   order     of blocks, piece by piece, and of threads within a step: shuffled
//   memory    shared memory is not a number until it is written, and ends where it ends; addresses
//             are what a GPU takes; what is written can be read at once, or when all has been read
//   records   launches as they are planned, and the bytes that their pieces move
//   (bindings/numpy/cuda_on_host.cc)
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/on_host/accesses.h"
#include "cuda/on_host/memory.h"
#include "cuda/room.h"

namespace posenc::cuda::on_host {

enum class Run {
  kAll,
  kNothing,  // launches are only recorded
  kSamples,  // likewise, with the bytes that some of the pieces move; nothing is written
};

// A grid so small that blocks have several pieces to do.
constexpr Room kSmallRoom{{}, 128, {3, 2}};

struct Launch {
  std::string kernel;
  int64_t pieces_x, pieces_y, grid_x, grid_y;
  int threads_x, threads_y, threads_z;
  size_t shared_bytes;
  int64_t places;                             // blocks that run at a time
  std::vector<int64_t> sampled_x, sampled_y;  // pieces whose bytes are known
  std::vector<int64_t> bytes;                 // [sampled_y, sampled_x]
};

// How launches are run: for tests to change. One launch at a time.
struct Simulation {
  uint64_t seed = 1;  // of the order of blocks and threads; 0 is that of their numbers
  Writes writes = Writes::kAtOnce;
  Run run = Run::kAll;
  Room room = kSmallRoom;  // what launches are planned for
  std::vector<Launch> launches;
  std::mutex running;
};
inline Simulation simulation;

// What is read without having been written shows: as floats, these bytes are not numbers.
constexpr unsigned char kPoison = 0xff;

// Global memory of a call's own.
class Workspace : public GuardedMemory {
 public:
  explicit Workspace(int64_t bytes) : GuardedMemory(static_cast<size_t>(bytes)) {
    if (simulation.run == Run::kAll) std::memset(data(), kPoison, static_cast<size_t>(bytes));
  }
};

// Numbers that look random (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  int64_t below(int64_t count) {
    uint64_t x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return static_cast<int64_t>((x ^ (x >> 31)) % static_cast<uint64_t>(count));
  }

 private:
  uint64_t state_;
};

// As a kernel is called with the coordinates of a thread: those that its threads have.
template <typename Thread, typename Parameters>
void add_thread(std::vector<Thread>& threads, const Parameters& parameters, char* shared, int x,
                int y, int z) {
  if constexpr (std::is_constructible_v<Thread, const Parameters&, char*, int, int, int>) {
    threads.emplace_back(parameters, shared, x, y, z);
  } else if constexpr (std::is_constructible_v<Thread, const Parameters&, char*, int, int>) {
    threads.emplace_back(parameters, shared, x, y);
  } else {
    threads.emplace_back(parameters, shared, x);
  }
}

// The threads of a block, which go through all its pieces, and their memory.
template <typename Thread>
class Block {
 public:
  template <typename Parameters>
  Block(const Parameters& parameters, Random* random)
      : shared_bytes_(parameters.plan.shared_bytes),
        lanes_(parameters.plan.threads_x),
        memory_(shared_bytes_),
        random_(random) {
    std::memset(memory_.data(), kPoison, memory_.guard() - memory_.data());
    const LaunchPlan& plan = parameters.plan;
    threads_.reserve(static_cast<size_t>(plan.threads()));
    for (int z = 0; z < plan.threads_z; ++z) {
      for (int y = 0; y < plan.threads_y; ++y) {
        for (int x = 0; x < plan.threads_x; ++x) {
          add_thread(threads_, parameters, memory_.data(), x, y, z);
        }
      }
    }
  }

  // What threads do between two barriers: step(thread), or step(thread, its number), for all of
  // them, beginning with any and going on in steps that reach all.
  template <typename Step>
  void each(const Step& step) {
    const auto count = static_cast<int64_t>(threads_.size());
    int64_t next = 0, stride = 1;
    if (random_ != nullptr) {
      next = random_->below(count);
      do {
        stride = 1 + random_->below(count);
      } while (std::gcd(stride, count) != 1);
    }
    for (int64_t i = 0; i < count; ++i) {
      Thread& thread = threads_[static_cast<size_t>(next)];
      if constexpr (std::is_invocable_v<Step, Thread&, int>) {
        step(thread, static_cast<int>(next));
      } else {
        step(thread);
      }
      next += stride;
      if (next >= count) next -= count;
    }
  }

  // What decides whether threads go on to a barrier, or to what lanes do together: one that leaves
  // a loop early or takes another branch leaves the others waiting on a GPU.
  template <typename Answer>
  auto agreed(const Answer& answer) {
    const auto first = answer(threads_.front());
    for (Thread& thread : threads_) {
      if (answer(thread) == first) continue;
      accesses.fail("expected all threads of a block to take the same steps, got some that do not");
    }
    return first;
  }

  // Likewise where every warp goes its own way: whether one of them goes on.
  template <typename Answer>
  bool any(const Answer& answer) {
    bool found = false;
    for (size_t i = 0; i < threads_.size(); ++i) {
      const bool own = answer(threads_[i]);
      found = found || own;
      if (own == answer(threads_[i - i % static_cast<size_t>(lanes_)])) continue;
      accesses.fail("expected all lanes of a warp to take the same steps, got some that do not");
    }
    return found;
  }

  // As add_lanes of launch.cuh: values(thread) are the kCount numbers of a thread. Every lane reads
  // what the others had before the step, in whatever order they take it. mask: those that take
  // part.
  template <int kWidth, int kCount, int kApart = 1, typename Values>
  void add_lanes(const Values& values, uint32_t mask = kAllLanes) {
    static_assert(kWidth <= 32 && (kWidth & (kWidth - 1)) == 0);
    if (lanes_ != 32) {
      accesses.fail("add_lanes: expected rows of threads to be warps of 32, got rows of " +
                    std::to_string(lanes_));
    }
    for (int lane = 0; lane < 32; ++lane) {
      if ((mask >> lane & 1) != 0) continue;
      accesses.fail(
          "add_lanes: expected all lanes of a warp to take part, got a mask without lane " +
          std::to_string(lane));
    }
    using Number = std::remove_pointer_t<std::invoke_result_t<Values, Thread&>>;
    std::vector<Number> before(threads_.size() * kCount);
    for (int offset = kWidth / 2; offset >= kApart; offset /= 2) {
      each([&](Thread& thread, int i) {
        std::copy_n(values(thread), kCount, before.data() + static_cast<size_t>(i) * kCount);
      });
      each([&](Thread& thread, int i) {
        const Number* const theirs = before.data() + static_cast<size_t>(i ^ offset) * kCount;
        for (int j = 0; j < kCount; ++j) values(thread)[j] = values(thread)[j] + theirs[j];
      });
    }
  }

  template <typename RunPiece>
  void run(const RunPiece& run_piece, int64_t x, int64_t y) {
    accesses.use_shared(memory_.data(), shared_bytes_, memory_.guard() + memory_.kGuardBytes);
    run_piece(*this, x, y);
    if (std::any_of(memory_.data() + shared_bytes_, memory_.guard(),
                    [](char byte) { return static_cast<unsigned char>(byte) != kPoison; })) {
      accesses.fail("expected threads to write the " + std::to_string(shared_bytes_) +
                    " bytes of shared memory that the plan has, got some that write behind them");
    }
  }

 private:
  const size_t shared_bytes_;
  const int lanes_;
  const GuardedMemory memory_;
  Random* const random_;
  std::vector<Thread> threads_;
};

// The pieces of one block of a grid, one after the other, as for_each_piece of launch.cuh has them.
class Pieces {
 public:
  Pieces(const LaunchPlan& plan, int64_t block_x, int64_t block_y)
      : x_(block_x),
        y_(block_y),
        first_x_(block_x),
        step_x_(plan.grid_x),
        step_y_(plan.grid_y),
        count_x_(plan.pieces_x),
        count_y_(plan.pieces_y) {}

  bool done() const { return y_ >= count_y_; }
  int64_t x() const { return x_; }
  int64_t y() const { return y_; }

  void advance() {
    x_ += step_x_;
    if (x_ < count_x_) return;
    x_ = first_x_;
    y_ += step_y_;
  }

 private:
  int64_t x_, y_;
  int64_t first_x_, step_x_, step_y_, count_x_, count_y_;
};

// What CUDA takes; of threads and shared memory, what all our kernels are made for.
inline void check_limits(const Launch& launch) {
  struct Limit {
    const char* what;
    int64_t least, got, most;
  };
  const int64_t threads = int64_t{launch.threads_x} * launch.threads_y * launch.threads_z;
  for (const Limit& limit : {
           Limit{"blocks of the grid along x", 1, launch.grid_x, 2147483647},
           Limit{"blocks of the grid along y", 1, launch.grid_y, 65535},
           Limit{"blocks along x, of the pieces", 1, launch.grid_x, launch.pieces_x},
           Limit{"blocks along y, of the pieces", 1, launch.grid_y, launch.pieces_y},
           Limit{"threads of a block along x", 1, launch.threads_x, 1024},
           Limit{"threads of a block along y", 1, launch.threads_y, 1024},
           Limit{"threads of a block along z", 1, launch.threads_z, Policy::kMostThreadsZ},
           Limit{"threads of a block", 1, threads, Policy::kThreads},
           Limit{"bytes of shared memory", 0, static_cast<int64_t>(launch.shared_bytes),
                 static_cast<int64_t>(Policy::kSharedBytes)},
       }) {
    if (limit.got >= limit.least && limit.got <= limit.most) continue;
    accesses.fail(std::string(limit.what) + ": expected " + std::to_string(limit.least) + " .. " +
                  std::to_string(limit.most) + ", got " + std::to_string(limit.got));
  }
}

// The name of a type as it is written, without its namespaces.
template <typename Type>
std::string name_of() {
  std::string name = __PRETTY_FUNCTION__;
  name = name.substr(name.find("Type = ") + std::strlen("Type = "));
  name = name.substr(0, name.find_first_of(";]"));
  for (const char* space : {"posenc::cuda::", "posenc::"}) {
    for (size_t at; (at = name.find(space)) != std::string::npos;) {
      name.erase(at, std::strlen(space));
    }
  }
  return name;
}

// A few of so many pieces: all, or some that are as far apart, with those at both ends.
inline std::vector<int64_t> some_of(int64_t count) {
  constexpr int64_t kMost = 9;
  std::vector<int64_t> some;
  for (int64_t i = 0; i < std::min(count, kMost); ++i) {
    some.push_back(count <= kMost ? i : (count - 2) * i / (kMost - 1));
  }
  if (count > kMost) some.push_back(count - 1);
  return some;
}

// Blocks take turns, a piece at a time.
template <typename Thread, typename Parameters, typename RunPiece>
void run_blocks(const Parameters& parameters, const RunPiece& run_piece, Random* random) {
  struct Running {
    std::unique_ptr<Block<Thread>> block;
    Pieces pieces;
  };
  std::vector<Running> running;
  for (int64_t y = 0; y < parameters.plan.grid_y; ++y) {
    for (int64_t x = 0; x < parameters.plan.grid_x; ++x) {
      running.push_back(
          {std::make_unique<Block<Thread>>(parameters, random), Pieces(parameters.plan, x, y)});
    }
  }
  while (!running.empty()) {
    const int64_t one = random == nullptr ? 0 : random->below(int64_t(running.size()));
    Running& next = running[static_cast<size_t>(one)];
    next.block->run(run_piece, next.pieces.x(), next.pieces.y());
    next.pieces.advance();
    if (next.pieces.done()) running.erase(running.begin() + one);
  }
}

// parameters = plan(room), as for the launch of the kernel (launch.cuh); run_piece(block, x, y) is
// what a block of these threads does with a piece.
template <typename Thread, typename Plan, typename RunPiece>
void launch(const Plan& plan, const RunPiece& run_piece) {
  const std::lock_guard<std::mutex> alone(simulation.running);
  const auto parameters = plan(simulation.room);
  const LaunchPlan& shape = parameters.plan;
  if (shape.pieces_x == 0 || shape.pieces_y == 0) return;
  static const std::string kernel = name_of<Thread>();
  const bool all = simulation.run == Run::kAll;
  struct Running {
    explicit Running(Writes writes) { accesses.begin(kernel, writes); }
    ~Running() { accesses.end(); }
  } running(all ? simulation.writes : Writes::kNever);
  Launch launch{kernel,
                shape.pieces_x,
                shape.pieces_y,
                shape.grid_x,
                shape.grid_y,
                shape.threads_x,
                shape.threads_y,
                shape.threads_z,
                shape.shared_bytes,
                simulation.room.blocks(shape.threads(), shape.shared_bytes),
                {},
                {},
                {}};
  check_limits(launch);
  Random random(simulation.seed);
  Random* const shuffled = simulation.seed == 0 ? nullptr : &random;
  if (all) {
    run_blocks<Thread>(parameters, run_piece, shuffled);
    accesses.write_held();
    return;
  }
  if (simulation.run == Run::kSamples) {
    launch.sampled_x = some_of(shape.pieces_x);
    launch.sampled_y = some_of(shape.pieces_y);
    Block<Thread> block(parameters, shuffled);
    for (const int64_t y : launch.sampled_y) {
      for (const int64_t x : launch.sampled_x) {
        accesses.take_global_bytes();
        block.run(run_piece, x, y);
        launch.bytes.push_back(accesses.take_global_bytes());
      }
    }
  }
  simulation.launches.push_back(std::move(launch));
}

// Of threads that stage something in shared memory and then write tiles.
template <typename Thread, typename Plan>
void launch_tiles(const Plan& plan) {
  launch<Thread>(plan, [](Block<Thread>& block, int64_t x, int64_t y) {
    block.each([&](Thread& thread) {
      thread.begin(x, y);
      thread.stage();
    });
    block.each([](Thread& thread) { thread.write(); });
  });
}

// Of the threads that share out a row.
template <typename Thread, typename Plan>
void launch_scan(const Plan& plan) {
  launch<Thread>(plan, [](Block<Thread>& block, int64_t x, int64_t y) {
    block.each([&](Thread& thread) { thread.begin(x, y); });
    block.each([](Thread& thread) { thread.write(); });
  });
}

// Of the threads that sum columns of partial sums.
template <typename Thread, typename Plan>
void launch_column_sums(const Plan& plan) {
  launch<Thread>(plan, [](Block<Thread>& block, int64_t x, int64_t /*y*/) {
    block.each([&](Thread& thread) { thread.sum(x); });
    block.each([](Thread& thread) { thread.finish(); });
  });
}

}  // namespace posenc::cuda::on_host
