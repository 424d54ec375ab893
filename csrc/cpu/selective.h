// Rotations by angles that data decide: a call cut into segments, which threads take.
//
//   row, heads   | segment | segment | segment |      steps ─► phases ─► rotated
//
// That is one pass of a kernel (rotary_by_steps.cc), or takes the phases of some tokens after the
// other through memory.
//
// With one thread a row is a segment. With more, and rows too few for them, rows are cut along the
// tokens: a first pass has the totals of the segments, and each begins where those before it end.
// Phases are integers, so the results are the same.
#pragma once

#include <cstdint>
#include <vector>

#include "core/rotary.h"

namespace posenc::cpu {

class SelectiveRun {
 public:
  SelectiveRun(const SelectiveArgs& args, int64_t threads);

  int64_t segments() const { return static_cast<int64_t>(segments_.size()); }
  int64_t step_bytes() const;

  // Of the segments [begin, end): whether their steps are angles; their totals; their rotation.
  bool are_angles(int64_t begin, int64_t end) const;
  bool is_cut() const { return cut_; }
  void begin_totals() {
    totals_.resize(static_cast<size_t>(segments() * heads_ * args_.rotary.pairs));
  }
  void add_totals(int64_t begin, int64_t end);
  // Makes of the totals where segments begin.
  void scan();
  void rotate(int64_t begin, int64_t end) const;

 private:
  struct Segment {
    int64_t row, head, first, count;  // count: of tokens
    bool is_last;                     // of its row
  };

  // Some tokens at a time: their phases first. `sums`: of the steps before the segment; after it,
  // those of the next one.
  void rotate_by_phases(const Segment& s, uint64_t* sums) const;

  uint64_t* totals(int64_t segment) {
    return totals_.data() + segment * heads_ * args_.rotary.pairs;
  }

  const SelectiveArgs& args_;
  int64_t heads_;  // of steps in a segment
  bool cut_ = false;
  std::vector<Segment> segments_;
  std::vector<uint64_t> totals_;
};

// Units that are worked on from the end, each by one thread: a sum of gradients has one order.
int64_t selective_gradient_units(const SelectiveGradientArgs& args, int64_t threads);
void rotate_back(const SelectiveGradientArgs& args, int64_t units, int64_t begin, int64_t end);

}  // namespace posenc::cpu
