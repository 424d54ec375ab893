// Gradients of rotations by angles that data decide, on a GPU: of x and of the steps.
//
//   of x (ga, gb)     x (a, b)     of an angle  gb a - ga b, summed over the heads that share it
//   of a step         the sum of those of its token and of all tokens after it in the row
//
//   1., 2.  totals and scan of the phases, as forwards (selective_scan.cuh)
//   3. back    the gradients of out are turned back and written; beside them x is read, and the
//              gradients of angles are kept, and their sum over the segment
//   4. carry   what the segments after each one of a row sum up to, in float64
//   5. steps   from the end of each segment on, in float64
//
// A row of few tokens is one segment, and then 3 and 5 are all. The sizes of the call alone decide
// who sums what, in which order.
//
// That gradients of angles are kept, in the format that x is computed in, takes 8 bytes for each
// pair and token of float32. To read x and the gradients once more instead would take 16 for each
// head of q and k. So of one head of q and one of k, all of float32: gradients of out, x and
// gradients of x 48 bytes, steps 4 + 4, gradients of angles 4 + 4, of steps 4, segments 4.5; in all
// 72.5, where to read the gradients, x and the steps and to write gradients takes 56: 0.77.
//
// The sum of a segment is kept in two float32 numbers, exact to 2^-48 of what is added: 3 has no
// arithmetic in float64, of which many GPUs have little.
#pragma once

#include "core/rotary.h"
#include "cuda/selective.cuh"

namespace posenc::cuda {

struct SelectiveGradientParameters {
  SelectiveGradientArgs args;
  SelectivePlan plan;
};

// A sum and what its rounding lost.
template <typename Number>
struct ExactSum {
  static constexpr int kNumbers = sizeof(Number) == 8 ? 1 : 2;

  Number sum, lost;

  POSENC_HD void add(Number x) {
    const Number total = sum + x;
    if constexpr (kNumbers == 2) {
      const Number of_x = total - sum;
      lost = lost + ((sum - (total - of_x)) + (x - of_x));
    }
    sum = total;
  }
};

// ---------------------------------------------------------------------------------------------
// 3. Back

template <typename T, int kVector, bool kInterleaved, typename Step>
class SelectiveGradientThread : public SelectiveWalk<T, kVector, kInterleaved, Step> {
  using Walk = SelectiveWalk<T, kVector, kInterleaved, Step>;
  using Block = RotaryBlock<T, kVector, kInterleaved>;
  using typename Walk::Number, typename Walk::Next;
  using Walk::heads, Walk::of_q, Walk::plan_, Walk::segment_, Walk::in_, Walk::out_;

 public:
  using Walk::kPairs;
  static constexpr int kHeads = Policy::kGradientHeads;

  POSENC_HD SelectiveGradientThread(const SelectiveGradientParameters& parameters, char* /*shared*/,
                                    int x, int y)
      : Walk(parameters.args.turned, parameters.plan, x, y), gradient_(parameters.args) {}

  POSENC_HD void rotate(int64_t piece_x, int64_t piece_y) {
    this->begin(piece_x, piece_y);
    if (!this->working_) return;
    if (!this->rotates_) return this->copy_tokens();
    x_at_ = this->first(this->dim_, gradient_.x[0], gradient_.x_strides[0], gradient_.x[1],
                        gradient_.x_strides[1]);
    this->begin_phases();
    const int64_t columns = this->selective_.heads * this->args_.pairs;
    const SelectiveWorkspace to(this->selective_, plan_.cut, true);
    const int64_t column = this->head_ * this->args_.pairs + this->pair_;
    Number* angles = static_cast<Number*>(to.angles) +
                     (segment_.batch * this->args_.tokens + segment_.first) * columns + column;
    ExactSum<Number> sums[kPairs] = {};
    const int count = static_cast<int>(segment_.count);
    if (count > 0) this->read_steps();
    for (int token = 0; token < count; ++token, angles += columns) {
      Number gradients[kPairs] = {};
      rotate_token(count - 1 - token, gradients);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        if (gradient_.inverse) gradients[j] = -gradients[j];
        sums[j].add(gradients[j]);
      }
      write_neighbours<Number, kPairs>(gradients, angles);
    }
    if (!plan_.cut.several) return;
    constexpr int kNumbers = ExactSum<Number>::kNumbers;
    Number numbers[kNumbers * kPairs];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      numbers[kNumbers * j] = sums[j].sum;
      if constexpr (kNumbers == 2) numbers[2 * j + 1] = sums[j].lost;
    }
    write_neighbours<Number, kNumbers * kPairs>(
        numbers, reinterpret_cast<Number*>(to.carried + this->number_ * columns + column));
  }

 private:
  // rest: tokens behind it. Its steps have been read.
  POSENC_HD void rotate_token(int rest, Number* gradients) {
    const HeadStrides& q = this->args_.tensors[0].out_strides;
    const HeadStrides& k = this->args_.tensors[1].out_strides;
    const auto steps = this->steps_;
    Next in = in_, out = out_, x_at = x_at_;
    read(0, in, x_at);
    if (rest > 0) this->read_steps();
    if (rest >= kAhead) request_token();
    Packet<Number, kPairs> c, s;
    this->take_angles(steps, c, s);
    for (int head = 0; head < heads(); head += kHeads) {
      if (head > 0) read(head, in, x_at);
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        if (head + i >= heads()) continue;
        const bool is_q = of_q(head + i);
        const int second = kInterleaved ? 0 : i;
        auto of_x = Block::template turn<false>(Block::pairs_of(first_[i], second_[second]), c, s);
        const auto x = Block::pairs_of(first_of_x_[i], second_of_x_[second]);
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {  // of what is written
          of_x.a[j] = rounded<T>(of_x.a[j]);
          of_x.b[j] = rounded<T>(of_x.b[j]);
          gradients[j] = gradients[j] + multiply_add(of_x.b[j], x.a[j], -(of_x.a[j] * x.b[j]));
        }
        Block::write(of_x, Block::at(this->args_.tensors[0].out, Block::take(out, plan_.out, is_q)),
                     Block::partner(this->args_.half_block, q, k, is_q));
      }
    }
    Walk::next_token(in_, plan_.in_token);
    Walk::next_token(out_, plan_.out_token);
    Walk::next_token(x_at_, plan_.x_token);
  }

  // Nothing is looked at here, so that all of it is on its way at once.
  POSENC_HD void read(int head, Next& in, Next& x_at) {
    const HeadStrides& q = this->args_.tensors[0].in_strides;
    const HeadStrides& k = this->args_.tensors[1].in_strides;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (head + i >= heads()) continue;
      const bool is_q = of_q(head + i);
      const T* const data = Block::at(this->args_.tensors[0].in, Block::take(in, plan_.in, is_q));
      const T* const x = Block::at(gradient_.x[0], Block::take(x_at, plan_.x, is_q));
      first_[i] = read_word<T, kVector>(data);
      first_of_x_[i] = read_word<T, kVector>(x);
      if constexpr (!kInterleaved) {
        second_[i] =
            read_word<T, kVector>(data + Block::partner(this->in_half_block(), q, k, is_q));
        second_of_x_[i] = read_word<T, kVector>(x + partner_of_x(is_q));
      }
    }
  }

  POSENC_HD int64_t partner_of_x(bool is_q) const {
    return Block::partner(this->args_.half_block, gradient_.x_strides[0], gradient_.x_strides[1],
                          is_q);
  }

  // The first heads of the token kAhead tokens on.
  POSENC_HD void request_token() const {
    const HeadStrides& q = this->args_.tensors[0].in_strides;
    const HeadStrides& k = this->args_.tensors[1].in_strides;
    Next in{in_.q + kAhead * plan_.in_token.q, in_.k + kAhead * plan_.in_token.k};
    Next x_at{x_at_.q + kAhead * plan_.x_token.q, x_at_.k + kAhead * plan_.x_token.k};
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (i >= heads()) continue;
      const bool is_q = of_q(i);
      const T* const data = Block::at(this->args_.tensors[0].in, Block::take(in, plan_.in, is_q));
      const T* const x = Block::at(gradient_.x[0], Block::take(x_at, plan_.x, is_q));
      request(data);
      request(x);
      if constexpr (!kInterleaved) {
        request(data + Block::partner(this->in_half_block(), q, k, is_q));
        request(x + partner_of_x(is_q));
      }
    }
  }

  static constexpr int kAhead = Policy::kTokensAhead;

  const SelectiveGradientArgs& gradient_;
  Next x_at_;
  WordOf<T, kVector> first_[kHeads], first_of_x_[kHeads];
  WordOf<T, kVector> second_[kInterleaved ? 1 : kHeads];
  WordOf<T, kVector> second_of_x_[kInterleaved ? 1 : kHeads];
};

// ---------------------------------------------------------------------------------------------
// 4. Carry

// As SelectiveScanThread, from the end. Number: in which segments were summed.
template <typename Sum, int kCount, typename Number>
class SelectiveCarryThread {
  static constexpr int kColumns = Policy::kSumColumns, kRows = Policy::kSumRows;
  static constexpr int kAtOnce = 8;

 public:
  static constexpr size_t kSharedBytes = sizeof(Sum) * kColumns * kRows;

  POSENC_HD SelectiveCarryThread(const SelectiveGradientParameters& parameters, char* shared, int x,
                                 int y)
      : args_(parameters.args.turned),
        plan_(parameters.plan),
        shared_(reinterpret_cast<Sum*>(shared)),
        x_(x),
        y_(y) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    column_ = piece_x * kColumns + x_;
    there_ = column_ < columns();
    const RowSegments segments = row_segments(args_, plan_.cut, piece_y);
    const int64_t each = (segments.count + kRows - 1) / kRows;
    const int64_t before = y_ * each, rest = segments.count - before;
    first_ = segments.first + before;
    count_ = rest < 0 ? 0 : rest < each ? rest : each;
    if (!there_) return;
    Sum total = 0;
    walk([&](int64_t /*segment*/, Sum own) { total = total + own; });
    keep_packet<Sum, 1>({{total}}, shared_ + y_ * kColumns + x_);
  }

  POSENC_HD void write() const {
    if (!there_ || count_ == 0) return;
    Sum sum = 0;
    for (int y = kRows - 1; y > y_; --y) {
      sum = sum + kept_packet<Sum, 1>(shared_ + y * kColumns + x_).numbers[0];
    }
    const SelectiveWorkspace to(args_, plan_.cut, true);
    walk([&](int64_t segment, Sum own) {
      write_packet<Sum, 1>({{sum}}, to.carried + segment * columns() + column_);
      sum = sum + own;
    });
  }

 private:
  POSENC_HD int64_t columns() const { return args_.heads * args_.rotary.pairs; }

  // visit(segment, sum), from the last one back.
  template <typename Visit>
  POSENC_HD void walk(const Visit& visit) const {
    constexpr int kNumbers = ExactSum<Number>::kNumbers;
    const SelectiveWorkspace from(args_, plan_.cut, true);
    for (int64_t rest = count_; rest > 0; rest -= kAtOnce) {
      Packet<Number, kNumbers> sums[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (j >= rest) continue;
        const int64_t at = (first_ + rest - 1 - j) * columns() + column_;
        sums[j] = read_packet<Number, kNumbers>(reinterpret_cast<const Number*>(from.carried + at));
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (j >= rest) continue;
        Sum own = static_cast<Sum>(sums[j].numbers[0]);
        if constexpr (kNumbers == 2) own = own + static_cast<Sum>(sums[j].numbers[1]);
        visit(first_ + rest - 1 - j, own);
      }
    }
  }

  const SelectiveArgs& args_;
  const SelectivePlan& plan_;
  Sum* const shared_;
  const int x_, y_;

  bool there_;
  int64_t column_, first_, count_;
};

// ---------------------------------------------------------------------------------------------
// 5. Steps

template <typename Sum, int kPairs, typename Number>
class SelectiveStepsThread {
  static constexpr int kAtOnce = Policy::kStepReads * 4 / static_cast<int>(sizeof(Number));

 public:
  static constexpr int kWidth = kPairs;

  POSENC_HD SelectiveStepsThread(const SelectiveGradientParameters& parameters, char* /*shared*/,
                                 int x, int y)
      : gradient_(parameters.args),
        args_(parameters.args.turned),
        plan_(parameters.plan),
        x_(x),
        y_(y) {}

  POSENC_HD void sum(int64_t piece_x, int64_t piece_y) const {
    const int64_t column = piece_y * plan_.threads_x + x_;
    if (column >= plan_.columns) return;
    const int64_t number = piece_x * plan_.threads_y + y_;
    const Segment segment = segment_of(args_, plan_.cut, number);
    if (!segment.there) return;
    const int64_t pairs = args_.rotary.pairs, columns = args_.heads * pairs;
    const int64_t packs = pairs / kPairs;
    const int64_t head = divide(column, packs), pair = (column - head * packs) * kPairs;
    const SelectiveWorkspace from(args_, plan_.cut, true);
    Sum sums[kPairs] = {};
    if (plan_.cut.several) {
      read_neighbours<Sum, kPairs>(from.carried + number * columns + head * pairs + pair, sums);
    }
    const Number* const angles = static_cast<const Number*>(from.angles) +
                                 (segment.batch * args_.rotary.tokens + segment.first) * columns +
                                 head * pairs + pair;
    const int64_t to =
        place_of_step(gradient_.gradient_strides, segment.batch, segment.first, head, pair);
    for (int64_t rest = segment.count; rest > 0; rest -= kAtOnce) {
      Number read[kAtOnce][kPairs];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i < rest) read_neighbours<Number, kPairs>(angles + (rest - 1 - i) * columns, read[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i >= rest) continue;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) sums[j] = sums[j] + static_cast<Sum>(read[i][j]);
        write(sums, to + (rest - 1 - i) * gradient_.gradient_strides.token);
      }
    }
  }

 private:
  POSENC_HD void write(const Sum* sums, int64_t at) const {
    switch (args_.steps_dtype) {
      case Dtype::kFloat16:
        return write_as<Float16>(sums, at);
      case Dtype::kBFloat16:
        return write_as<BFloat16>(sums, at);
      case Dtype::kFloat32:
        return write_as<float>(sums, at);
      default:
        return write_as<double>(sums, at);
    }
  }

  template <typename T>
  POSENC_HD void write_as(const Sum* sums, int64_t at) const {
    T rounded[kPairs];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if constexpr (sizeof(T) == 2) {
        rounded[j] = round_to<T>(float_rounded_to_odd(sums[j]));
      } else {
        rounded[j] = static_cast<T>(sums[j]);
      }
    }
    T* const to = static_cast<T*>(gradient_.steps_gradient) + at;
    if (plan_.wide_gradient) {
      write_neighbours<T, kPairs>(rounded, to);
      return;
    }
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      write_packet<T, 1>({{rounded[j]}}, to + j * gradient_.gradient_strides.dim);
    }
  }

  const SelectiveGradientArgs& gradient_;
  const SelectiveArgs& args_;
  const SelectivePlan& plan_;
  const int x_, y_;
};

// ---------------------------------------------------------------------------------------------
// On the host

template <typename Visit>
auto visit_selective_gradient_thread(const SelectiveGradientArgs& args, const Visit& visit) {
  RotaryArgs of_x = args.turned.rotary;
  for (int i = 0; i < of_x.tensor_count; ++i) {
    of_x.tensors[i].in = args.x[i];
    of_x.tensors[i].in_strides = args.x_strides[i];
  }
  return visit_walk<SelectiveGradientThread>(
      args.turned,
      [&](int width, bool near) {
        return fits(args.turned.rotary, width, near) && fits(of_x, width, near);
      },
      visit);
}

template <typename Thread>
SelectivePlan plan_walk_back(const SelectiveGradientArgs& args, GridLimit limit = {}) {
  SelectivePlan plan = plan_walk<Thread>(args.turned, limit);
  const int64_t size = item_size(args.turned.rotary.dtype);
  plan.x = {args.x_strides[0].head * size, args.x_strides[1].head * size};
  plan.x_token = token_steps(args.x_strides[0], args.x_strides[1], size);
  return plan;
}

// visit(a number of the type in which x is computed)
template <typename Visit>
auto visit_number(const SelectiveGradientArgs& args, const Visit& visit) {
  if (args.turned.rotary.dtype == Dtype::kFloat64) return visit(double{});
  return visit(float{});
}

template <typename Visit>
auto visit_steps_thread(const SelectiveGradientArgs& args, const Visit& visit) {
  return visit_number(args, [&](auto number) {
    using Number = decltype(number);
    if (args.turned.rotary.pairs % 4 == 0) {
      return visit(static_cast<SelectiveStepsThread<double, 4, Number>*>(nullptr));
    }
    return visit(static_cast<SelectiveStepsThread<double, 1, Number>*>(nullptr));
  });
}

template <typename Thread>
SelectivePlan plan_steps(const SelectiveGradientArgs& args, GridLimit limit = {}) {
  const SelectiveArgs& turned = args.turned;
  SelectivePlan plan = plan_segments(cut_selective(turned),
                                     turned.heads * turned.rotary.pairs / Thread::kWidth, limit);
  plan.wide_gradient = is_wide(turned, args.steps_gradient, args.gradient_strides, Thread::kWidth);
  return plan;
}

}  // namespace posenc::cuda
