// Runs the last piece of launches of 2^33 + 5 rows on the host, for test_cuda_on_host.py. All rows
// lie in the same place (stride 0); the last one is written last and stays.
//
//   nothing  ->  x = 0 1 2 ... 63 rotated by inv_freq = 1, 1/2, 1/3 ...; a row of a table
//
// Gradients of the same rotation, if that of its result is 63 62 ... 0: of x, of frequencies as far
// as the last piece adds to them, how many tokens that has, and of the last position.
//
// Relative encodings: memory for the last rows only (and for the first entries, which are theirs),
// at an address that is as far back as the others would take. Of sums, the last entries, which are
// those of the first rows.
//
//   nothing  ->  the last 5 rows of (scores + bias) twice, shift, gather, scatter; 64 diagonal sums
#include <algorithm>
#include <cstdio>
#include <type_traits>
#include <vector>

#include "cuda/diagonal_sums.cuh"
#include "cuda/gather.cuh"
#include "cuda/rotary_gradient.cuh"
#include "cuda/rotary_plan.cuh"
#include "cuda/scatter.cuh"
#include "cuda/shift.cuh"
#include "cuda/sinusoidal.cuh"
#include "cuda/toeplitz.cuh"

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
  args.pairs = args.half_block = args.in_half_block = 32;
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
    each(threads, [](Thread& one) { one.read(); });
    each(threads, [](Thread& one) { one.frequencies(); });
    each(threads, [](Thread& one) { one.angles(); });
    each(threads, [](Thread& one) { one.rotate(); });
  });
  std::fwrite(out, sizeof out, 1, stdout);
}

// Partial sums lie where memory for one piece is the end of that for all.
void print_gradients() {
  alignas(128) static char shared[49152];
  alignas(16) static float positions[4096];
  alignas(16) float x[64], grad[64], out[64], sums[32];
  float& position = positions[4095];
  double inv_freq[32], unused = 0;
  for (int i = 0; i < 64; ++i) x[i] = static_cast<float>(i), grad[i] = static_cast<float>(63 - i);
  for (int i = 0; i < 32; ++i) inv_freq[i] = 1.0 / (1.0 + i);
  posenc::RotaryGradientArgs args;
  posenc::RotaryArgs& turned = args.turned;
  turned.tensor_count = 1;
  turned.tensors[0].in = grad;
  turned.tensors[0].out = out;
  turned.tensors[0].heads = 1;
  turned.batch = 1;
  turned.tokens = kRows;
  turned.head_dim = 64;
  turned.pairs = turned.half_block = turned.in_half_block = 32;
  turned.position_token_stride = 1;
  turned.inv_freq = {inv_freq, posenc::Dtype::kFloat64, 1};
  turned.inverse = true;
  args.x[0] = x;
  float tokens = 0;
  posenc::cuda::visit_rotary_gradient_thread(args, [&](auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    for (const bool of_positions : {false, true}) {
      args.position_sums = of_positions ? &unused : nullptr;
      const posenc::cuda::RotaryGradientPlan plan =
          posenc::cuda::plan_rotary_gradient<Thread>(args);
      const int64_t before =
          of_positions ? plan.frequency_parts * 32 + kRows - 1 : (plan.frequency_parts - 1) * 32;
      args.workspace =
          reinterpret_cast<void*>(reinterpret_cast<intptr_t>(of_positions ? &position : sums) -
                                  before * int64_t{sizeof(float)});
      const posenc::cuda::RotaryGradientParameters parameters{args, plan};
      std::vector<Thread> threads;
      for (int z = 0; z < plan.threads_z; ++z) {
        for (int y = 0; y < plan.threads_y; ++y) {
          for (int i = 0; i < plan.threads_x; ++i) {
            threads.emplace_back(parameters, shared, i, y, z);
          }
        }
      }
      each(threads, [&](Thread& one) { one.begin(plan.pieces_x - 1, plan.pieces_y - 1); });
      each(threads, [](Thread& one) { one.frequencies(); });
      for (int step = -1; step < threads[0].steps(); ++step) {
        each(threads, [&](Thread& one) { one.step(step); });
      }
      if (!of_positions) each(threads, [](Thread& one) { one.finish(); });
      const int64_t piece = plan.rounds * plan.threads_y;
      tokens = static_cast<float>(kRows - (plan.pieces_x - 1) * piece);
    }
  });
  std::fwrite(out, sizeof out, 1, stdout);
  std::fwrite(sums, sizeof sums, 1, stdout);
  std::fwrite(&tokens, sizeof tokens, 1, stdout);
  std::fwrite(&position, sizeof position, 1, stdout);
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
  posenc::cuda::for_each_sinusoidal_launch(args, [&](auto& parameters, auto* type) {
    using Thread = std::remove_pointer_t<decltype(type)>;
    parameters.plan = posenc::cuda::plan_sinusoidal<Thread>(parameters.args);
    const auto& plan = parameters.plan;
    std::vector<Thread> threads;
    for (int y = 0; y < plan.threads_y; ++y) {
      for (int x = 0; x < plan.threads_x; ++x) threads.emplace_back(parameters, shared, x, y);
    }
    each(threads, [&](Thread& one) { one.begin(plan.pieces_x - 1, plan.pieces_y - 1); });
    each(threads, [](Thread& one) { one.frequencies(); });
    each(threads, [](Thread& one) { one.positions(); });
    each(threads, [](Thread& one) { one.rows(); });
    return true;
  });
  std::fwrite(out, sizeof out, 1, stdout);
}

// Rows that have memory, of kColumns numbers each, and numbers of which no two are alike.
constexpr int64_t kThere = 2048, kColumns = 80, kKeys = 64, kLast = 5;
alignas(16) float numbers[kThere * kColumns];
alignas(16) float results[kThere * kColumns];
alignas(128) char shared_memory[49152];

posenc::Matrices last_rows(float* data) {
  posenc::Matrices matrices;
  matrices.data = reinterpret_cast<void*>(reinterpret_cast<intptr_t>(data) -
                                          (kRows - kThere) * kColumns * int64_t{sizeof(float)});
  matrices.row_stride = kColumns;
  matrices.column_stride = 1;
  return matrices;
}

// The first `count` columns of the last rows, once.
void print_last(int64_t count) {
  for (int64_t row = kThere - kLast; row < kThere; ++row) {
    std::fwrite(results + row * kColumns, sizeof(float), static_cast<size_t>(count), stdout);
  }
  std::fill(results, results + kThere * kColumns, 0.0f);
}

template <typename Thread, typename Parameters>
void run_last_tile(const Parameters& parameters) {
  const posenc::cuda::TilePlan& plan = parameters.plan;
  std::vector<Thread> threads;
  for (int z = 0; z < plan.threads_z; ++z) {
    for (int y = 0; y < plan.threads_y; ++y) {
      for (int x = 0; x < plan.threads_x; ++x) {
        threads.emplace_back(parameters, shared_memory, x, y, z);
      }
    }
  }
  each(threads, [&](Thread& one) { one.begin(plan.pieces_x - 1, plan.pieces_y - 1); });
  each(threads, [](Thread& one) { one.stage(); });
  each(threads, [](Thread& one) { one.write(); });
}

template <typename Thread>
void print_bias() {
  posenc::ToeplitzArgs args;
  args.queries[0] = kRows;
  args.keys[0] = kKeys;
  args.origin[0] = kRows - 1;
  args.entries[0] = kRows + kKeys - 1;
  args.entry_strides[0] = 1;
  args.in = last_rows(numbers);
  args.out = last_rows(results);
  args.diagonals = numbers;
  run_last_tile<Thread>(
      posenc::cuda::ToeplitzParameters{args, posenc::cuda::plan_toeplitz<Thread>(args)});
  print_last(kKeys);
}

posenc::RelativeArgs relative_args(float* by_column, float* by_key) {
  posenc::RelativeArgs args;
  args.queries = kRows;
  args.keys = kKeys;
  args.width = kColumns;
  args.origin = kRows - 1;
  args.by_column = last_rows(by_column);
  args.by_key = last_rows(by_key);
  return args;
}

template <typename Thread>
void print_gather(const posenc::RelativeArgs& args) {
  posenc::cuda::RelativeParameters parameters = posenc::cuda::arrange(args, false);
  parameters.plan = posenc::cuda::plan_relative<Thread>(parameters);
  run_last_tile<Thread>(parameters);
  print_last(kKeys);
}

void print_shift() {
  using Thread = posenc::cuda::ShiftThread<float, 4>;
  posenc::cuda::RelativeParameters parameters =
      posenc::cuda::arrange(relative_args(numbers, results), false);
  parameters.plan = posenc::cuda::plan_shift<Thread>(parameters);
  run_last_tile<Thread>(parameters);
  print_last(kKeys);
}

void print_scatter() {
  // As many lists as columns, of the entries column, column + kColumns ... Bounds that a caller got
  // wrong, of the first and the last list, add none of what lies beside the order: entries 0.
  constexpr int64_t kLength = kThere / kColumns, kEntries = kLength * kColumns, kBeside = 7;
  static int64_t order[kEntries + 2 * kBeside], bounds[kColumns + 1];
  for (int64_t i = 0; i < kEntries; ++i) {
    order[kBeside + i] = i / kLength + i % kLength * kColumns;
  }
  for (int64_t column = 0; column <= kColumns; ++column) bounds[column] = column * kLength;
  bounds[0] -= kBeside;
  bounds[kColumns] += kBeside;
  posenc::RelativeArgs args = relative_args(results, numbers);
  args.entries = kEntries;
  args.order = order + kBeside;
  args.bounds = bounds;
  using Thread = posenc::cuda::ScatterThread<float, 1>;
  const posenc::cuda::ScatterParameters parameters{args, posenc::cuda::plan_scatter<Thread>(args)};
  std::vector<Thread> threads;
  for (int i = 0; i < posenc::cuda::Policy::kThreads; ++i) {
    threads.emplace_back(parameters, shared_memory, i);
  }
  each(threads, [&](Thread& one) { one.begin(parameters.plan.pieces_x - 1); });
  each(threads, [](Thread& one) { one.read_rows(); });
  each(threads, [&](Thread& one) { one.short_list(parameters.plan.tiles - 1); });
  print_last(kColumns);
}

void print_sums() {
  posenc::ToeplitzArgs args;
  args.queries[0] = kRows;
  args.keys[0] = kKeys;
  args.origin[0] = kRows - 1;
  args.entries[0] = kRows + kKeys - 1;
  args.entry_strides[0] = 1;
  args.in = last_rows(numbers);
  args.in.data = numbers;
  args.diagonals = reinterpret_cast<void*>(reinterpret_cast<intptr_t>(results) -
                                           (args.entries[0] - kThere) * int64_t{sizeof(float)});
  using Thread = posenc::cuda::DiagonalSumsThread<float, 4, false>;
  const posenc::cuda::DiagonalSumsParameters parameters{
      args, posenc::cuda::plan_diagonal_sums<Thread>(args)};
  const auto& plan = parameters.plan;
  std::vector<Thread> threads;
  for (int y = 0; y < plan.threads_y; ++y) {
    for (int x = 0; x < plan.threads_x; ++x) threads.emplace_back(parameters, shared_memory, x, y);
  }
  each(threads, [&](Thread& one) { one.begin(plan.pieces_x - 1, plan.pieces_y - 1); });
  for (int64_t round = 0; round < threads[0].rounds(); ++round) {
    each(threads, [&](Thread& one) { one.sum(round); });
    each(threads, [&](Thread& one) { one.combine(round); });
  }
  each(threads, [](Thread& one) { one.finish(); });
  std::fwrite(results + kThere - kKeys, sizeof(float), kKeys, stdout);
}

void print_relative() {
  for (int64_t i = 0; i < kThere * kColumns; ++i) numbers[i] = static_cast<float>(i % 4099);
  print_bias<posenc::cuda::ToeplitzTileThread<float, 4>>();
  print_bias<posenc::cuda::ToeplitzLineThread<float, 4>>();
  print_shift();
  // Every entry's column is 79 less itself, over and over.
  static int64_t index[kThere];
  for (int64_t i = 0; i < kThere; ++i) index[i] = kColumns - 1 - i % kColumns;
  posenc::RelativeArgs args = relative_args(numbers, results);
  args.index = {index, posenc::Dtype::kInt64, 1, kColumns};
  args.entries = kRows + kKeys - 1;
  print_gather<posenc::cuda::GatherThread<float, 4>>(args);
  print_scatter();
  print_sums();
}

}  // namespace

int main() {
  print_rotated();
  print_table();
  print_gradients();
  print_relative();
  return 0;
}
