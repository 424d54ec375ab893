#include "cpu/selective.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/phases.h"
#include "cpu/kernels.h"
#include "cpu/targets.h"

namespace posenc::cpu {
namespace {

// Phases at a time: the second-level cache holds them and what they turn.
constexpr int64_t kPhases = 8192;
// Tokens of a segment, at least: a call for fewer is not worth another thread.
constexpr int64_t kSegmentTokens = 64;
constexpr int64_t kSegmentsPerThread = 4;

// Whether the heads of a token follow each other as those of the next token follow them: all heads
// that share angles are rows then, [tokens * heads], and go through memory in one run.
bool in_one_run(const HeadStrides& strides, int64_t heads, int64_t tokens) {
  return strides.group_heads == 0 && (tokens <= 1 || strides.token == heads * strides.head);
}

bool heads_in_one_run(const SelectiveArgs& args) {
  if (args.heads == 1) return true;
  for (int i = 0; i < args.rotary.tensor_count; ++i) {
    const RotaryTensor& x = args.rotary.tensors[i];
    if (!in_one_run(x.in_strides, x.heads, args.rotary.tokens) ||
        !in_one_run(x.out_strides, x.heads, args.rotary.tokens)) {
      return false;
    }
  }
  return true;
}

// Strides of `shared` heads for each of the rows that have angles of their own. A single one goes
// along the rows.
HeadStrides of_rows(HeadStrides strides, int64_t step_heads, int64_t shared, int64_t rows) {
  if (step_heads > 1) strides.token = shared * strides.head;
  if (shared == 1) strides.head = (rows + 1) * strides.token;
  strides.batch = 0;
  return strides;
}

// The rotation of some tokens by `heads` of steps, from `head` on: rows [count * heads] that each
// have angles of their own.
RotaryArgs rows_of(const SelectiveArgs& args, int64_t batch, int64_t head, int64_t heads,
                   int64_t first, int64_t count, const int64_t* phases) {
  RotaryArgs rows = args.rotary;
  rows.batch = 1;
  rows.tokens = count * heads;
  rows.phases = phases;
  const int64_t size = item_size(rows.dtype);
  for (int i = 0; i < rows.tensor_count; ++i) {
    const int64_t shared = rows.tensors[i].heads / args.heads;
    RotaryTensor x =
        heads > 1 ? rows.tensors[i] : rows.tensors[i].heads_from(head * shared, shared, size);
    const auto move = [&](const HeadStrides& strides) {
      return (batch * strides.batch + first * strides.token) * size;
    };
    x.in = static_cast<const char*>(x.in) + move(x.in_strides);
    x.out = static_cast<char*>(x.out) + move(x.out_strides);
    x.heads = shared;
    x.in_strides = of_rows(x.in_strides, heads, shared, rows.tokens);
    x.out_strides = of_rows(x.out_strides, heads, shared, rows.tokens);
    rows.tensors[i] = x;
  }
  return rows;
}

int64_t batch_of(const SelectiveArgs& args, int64_t row) {
  return args.starts.data == nullptr ? row : 0;
}

// The states of a row before its first token, of heads from `head` on.
void read_state(const SelectiveArgs& args, int64_t row, int64_t head, int64_t heads,
                uint64_t* sums) {
  const int64_t pairs = args.rotary.pairs;
  if (args.state == nullptr) {
    std::fill_n(sums, heads * pairs, uint64_t{0});
    return;
  }
  const HeadStrides& strides = args.state_strides;
  for (int64_t i = 0; i < heads; ++i) {
    const int64_t* const from = args.state + row * strides.batch + (head + i) * strides.head;
    if (strides.dim == 1) {
      std::copy_n(from, pairs, reinterpret_cast<int64_t*>(sums + i * pairs));
      continue;
    }
    for (int64_t pair = 0; pair < pairs; ++pair) {
      sums[i * pairs + pair] = static_cast<uint64_t>(from[pair * strides.dim]);
    }
  }
}

int64_t tokens_at_once(int64_t columns, int64_t tokens) {
  return std::clamp<int64_t>(kPhases / std::max<int64_t>(columns, 1), 1,
                             std::max<int64_t>(tokens, 1));
}

}  // namespace

SelectiveRun::SelectiveRun(const SelectiveArgs& args, int64_t threads)
    : args_(args), heads_(heads_in_one_run(args) ? std::max<int64_t>(args.heads, 1) : 1) {
  const int64_t tokens = args.rotary.tokens, parts = args.heads / heads_;
  const int64_t units = std::max<int64_t>(args.rows * parts, 1);
  int64_t length = std::max<int64_t>(tokens, 1);
  if (threads > 1 && units < kSegmentsPerThread * threads) {
    const int64_t all = args.starts.data == nullptr ? units * tokens : parts * tokens;
    const int64_t wanted = kSegmentsPerThread * threads;
    length = std::min(length, std::max((all + wanted - 1) / wanted, kSegmentTokens));
  }
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t first = args.first_token(row), count = args.token_count(row);
    for (int64_t head = 0; head < args.heads; head += heads_) {
      int64_t at = 0;
      do {
        const int64_t some = std::min(length, count - at);
        segments_.push_back({row, head, first + at, some, at + some == count});
        cut_ = cut_ || at > 0;
        at += some;
      } while (at < count);
    }
  }
}

int64_t SelectiveRun::step_bytes() const {
  const RotaryArgs& rotary = args_.rotary;
  return rotary.rows() * args_.heads * rotary.pairs * item_size(args_.steps_dtype);
}

bool SelectiveRun::are_angles(int64_t begin, int64_t end) const {
  for (int64_t i = begin; i < end; ++i) {
    const Segment& s = segments_[static_cast<size_t>(i)];
    const int64_t batch = batch_of(args_, s.row);
    if (!kernels().steps_are_angles(args_.block(batch, s.head, heads_, s.first, s.count))) {
      return false;
    }
  }
  return true;
}

void SelectiveRun::add_totals(int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const Segment& s = segments_[static_cast<size_t>(i)];
    if (s.is_last) continue;  // nothing begins where it ends
    const StepBlock block = args_.block(batch_of(args_, s.row), s.head, heads_, s.first, s.count);
    kernels().sum_steps(block, Sum::kTotals, totals(i), nullptr, 0);
  }
}

void SelectiveRun::scan() {
  const auto columns = static_cast<size_t>(heads_ * args_.rotary.pairs);
  std::vector<uint64_t> sums(columns);
  bool begins = true;
  for (int64_t i = 0; i < segments(); ++i) {
    const Segment& s = segments_[static_cast<size_t>(i)];
    if (begins) read_state(args_, s.row, s.head, heads_, sums.data());
    begins = s.is_last;
    uint64_t* const total = totals(i);
    for (size_t j = 0; j < columns; ++j) {
      const uint64_t own = total[j];
      total[j] = sums[j];
      sums[j] += own;
    }
  }
}

void SelectiveRun::rotate(int64_t begin, int64_t end) const {
  const int64_t columns = heads_ * args_.rotary.pairs;
  std::vector<uint64_t> sums(static_cast<size_t>(columns));
  for (int64_t i = begin; i < end; ++i) {
    const Segment& s = segments_[static_cast<size_t>(i)];
    if (cut_) {
      std::copy_n(totals_.data() + i * columns, columns, sums.data());
    } else {
      read_state(args_, s.row, s.head, heads_, sums.data());
    }
    const int64_t batch = batch_of(args_, s.row);
    const RotaryArgs rows = rows_of(args_, batch, s.head, heads_, s.first, s.count, nullptr);
    const StepBlock block = args_.block(batch, s.head, heads_, s.first, s.count);
    if (!kernels().rotary_by_steps(rows, block, sums.data())) rotate_by_phases(s, sums.data());
    if (!s.is_last) continue;
    int64_t* const after = args_.after + (s.row * args_.heads + s.head) * args_.rotary.pairs;
    std::copy_n(reinterpret_cast<const int64_t*>(sums.data()), columns, after);
  }
}

void SelectiveRun::rotate_by_phases(const Segment& s, uint64_t* sums) const {
  const int64_t columns = heads_ * args_.rotary.pairs, batch = batch_of(args_, s.row);
  const int64_t some = tokens_at_once(columns, s.count);
  std::vector<int64_t> phases(static_cast<size_t>(some * columns + RotaryArgs::kPhasesBehind));
  for (int64_t at = 0; at < s.count; at += some) {
    const int64_t first = s.first + at, count = std::min(some, s.count - at);
    const StepBlock block = args_.block(batch, s.head, heads_, first, count);
    kernels().sum_steps(block, Sum::kForwards, sums, phases.data(), columns);
    const RotaryArgs rows = rows_of(args_, batch, s.head, heads_, first, count, phases.data());
    rotary(rows, 0, rows.tokens);
  }
}

int64_t selective_gradient_units(const SelectiveGradientArgs& args, int64_t threads) {
  const SelectiveArgs& turned = args.turned;
  if (turned.heads == 0) return 0;
  bool together = threads == 1 && heads_in_one_run(turned);
  for (int i = 0; together && turned.heads > 1 && i < turned.rotary.tensor_count; ++i) {
    together = in_one_run(args.x_strides[i], turned.rotary.tensors[i].heads, turned.rotary.tokens);
  }
  return turned.rows * (together ? 1 : turned.heads);
}

void rotate_back(const SelectiveGradientArgs& args, int64_t units, int64_t begin, int64_t end) {
  if (begin == end) return;  // no rows
  const SelectiveArgs& turned = args.turned;
  const int64_t parts = units / std::max<int64_t>(turned.rows, 1);
  const int64_t heads = turned.heads / parts, columns = heads * turned.rotary.pairs;
  const int64_t size = item_size(turned.rotary.dtype);
  const int64_t some = tokens_at_once(columns, turned.rotary.tokens);
  std::vector<uint64_t> sums(static_cast<size_t>(columns));
  std::vector<int64_t> phases(static_cast<size_t>(some * columns + RotaryArgs::kPhasesBehind));
  std::vector<double> angles(static_cast<size_t>(some * columns)), carried(sums.size());
  const Dtype of_angles = size == 8 ? Dtype::kFloat64 : Dtype::kFloat32;
  SelectiveArgs to = turned;  // where gradients of steps go
  to.steps = args.steps_gradient;
  to.steps_strides = args.gradient_strides;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row = unit / parts, head = unit % parts * heads, batch = batch_of(turned, row);
    const int64_t first = turned.first_token(row), count = turned.token_count(row);
    read_state(turned, row, head, heads, sums.data());
    kernels().sum_steps(turned.block(batch, head, heads, first, count), Sum::kTotals, sums.data(),
                        nullptr, 0);
    std::fill(carried.begin(), carried.end(), 0.0);
    for (int64_t last = count; last > 0; last -= some) {
      const int64_t now = std::min(some, last), at = first + last - now;
      const StepBlock block = turned.block(batch, head, heads, at, now);
      kernels().sum_steps(block, Sum::kBackwards, sums.data(), phases.data(), columns);
      const RotaryArgs rows = rows_of(turned, batch, head, heads, at, now, phases.data());
      rotary(rows, 0, rows.tokens);
      const void* x[2] = {};
      HeadStrides strides[2];
      for (int i = 0; i < rows.tensor_count; ++i) {
        const HeadStrides& own = args.x_strides[i];
        const int64_t shared = rows.tensors[i].heads;
        const int64_t moved = batch * own.batch + at * own.token + head * shared * own.head;
        x[i] = static_cast<const char*>(args.x[i]) + moved * size;
        strides[i] = of_rows(own, heads, shared, rows.tokens);
      }
      kernels().angle_gradient(rows, x, strides, angles.data());
      kernels().step_gradient(angles.data(), of_angles, args.inverse ? -1.0 : 1.0,
                              to.block(batch, head, heads, at, now), carried.data());
    }
  }
}

}  // namespace posenc::cpu
