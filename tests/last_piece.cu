// Runs the last piece of launches of 2^33 + 5 rows on the host, for test_cuda_on_host.py. All rows
// lie in the same place (stride 0); the last one is written last and stays.
//
//   nothing  ->  x = 0 1 2 ... 63 rotated by inv_freq = 1, 1/2, 1/3 ...; a row of a table

#include <cstdio>
#include <type_traits>
#include <vector>

#include "cuda/rotary.cuh"
#include "cuda/sinusoidal.cuh"

namespace {

constexpr int64_t kRows = (int64_t{1} << 33) + 5;

// Every thread of the last piece, from step to step together.
template <typename Thread, typename Step>
void each(std::vector<Thread>& threads, const Step& step) {
  for (Thread& thread : threads) step(thread);
}

void print_rotated() {
  alignas(128) static char shared[49152];
  alignas(16) float x[64], out[64];
  double inv_freq[32];
  for (int i = 0; i < 64; ++i) x[i] = static_cast<float>(i);
  for (int i = 0; i < 32; ++i) inv_freq[i] = 1.0 / (1.0 + i);
  posenc::RotaryArgs args;
  args.tensor_count = 1;
  args.tensors[0].in = x;
  args.tensors[0].out = out;
  args.tensors[0].heads = 1;
  args.batch = 1;
  args.tokens = kRows;
  args.head_dim = 64;
  args.pairs = args.half_block = 32;
  args.position_token_stride = 1;
  args.inv_freq = {inv_freq, posenc::Dtype::kFloat64, 1};
  posenc::cuda::visit_rotary_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const posenc::cuda::RotaryParameters parameters{args, posenc::cuda::plan_rotary<Thread>(args)};
    const auto& plan = parameters.plan;
    std::vector<Thread> threads;
    for (int z = 0; z < plan.threads_z; ++z) {
      for (int y = 0; y < plan.threads_y; ++y) {
        for (int i = 0; i < plan.threads_x; ++i) threads.emplace_back(parameters, shared, i, y, z);
      }
    }
    each(threads, [&](Thread& one) { one.begin(plan.pieces_x - 1, plan.pieces_y - 1); });
    each(threads, [](Thread& one) { one.frequencies(); });
    each(threads, [](Thread& one) { one.angles(); });
    each(threads, [](Thread& one) { one.rotate(); });
  });
  std::fwrite(out, sizeof out, 1, stdout);
}

void print_table() {
  alignas(128) static char shared[49152];
  alignas(16) float out[64];
  posenc::SinusoidalArgs args;
  args.rank = 1;
  args.shape[0] = kRows;
  args.position_strides[0] = 1;
  args.spec.dim = 64;
  args.pairs = 32;
  args.sine = out;
  args.cosine = out + 1;
  args.sine_step = args.cosine_step = 2;
  args.interleaved = true;
  posenc::cuda::for_each_sinusoidal_launch(args, {}, [&](const auto& parameters, auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    const auto& plan = parameters.plan;
    std::vector<Thread> threads;
    for (int y = 0; y < plan.threads_y; ++y) {
      for (int x = 0; x < plan.threads_x; ++x) threads.emplace_back(parameters, shared, x, y);
    }
    each(threads, [&](Thread& one) { one.begin(plan.pieces_x - 1, plan.pieces_y - 1); });
    each(threads, [](Thread& one) { one.frequencies(); });
    each(threads, [](Thread& one) { one.rows(); });
    return true;
  });
  std::fwrite(out, sizeof out, 1, stdout);
}

}  // namespace

int main() {
  print_rotated();
  print_table();
  return 0;
}
