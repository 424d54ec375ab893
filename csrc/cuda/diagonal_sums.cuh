// Sums along diagonals on a GPU: what one thread does, and how a launch covers a call.
//
//   DiagonalSumsThread   the sums of kVector neighboring entries. Threads side by side (y) take
//                        parts of the rows, which are added up in their order.
//
// Blocks start in the order of their pieces: those with the longest diagonals, in the middle, come
// first, of several planes together, so that the last ones running are short.
//
// The order of additions is that of the CPU, so that the bits are. For one entry:
//
//   rank 1   a group is 8 rows of a plane, a block 32 groups
//   grids    a group is one query of 64 repetitions, a block all their queries
//
//   a group is summed up from 0, a block from its groups, the total from the blocks of all summed
//   planes; absent rows are zeros
//
// A sum from 0 is never -0, so that adding 0 changes nothing.
//
// Grids have few entries and many repetitions. Where their pieces would be too few for a GPU, each
// block of 64 repetitions is a piece of its own, whose sums go to the workspace, and a second
// launch adds up those of an entry, in their order (BlockTotalsThread).
#pragma once

#include <algorithm>

#include "core/toeplitz.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/tiles.cuh"

namespace posenc::cuda {

// Pieces are blocks of entries * planes that start together (x), sets of such planes, of each block
// of repetitions where those are apart (y).
struct DiagonalSumsPlan : LaunchPlan {
  int64_t vectors = 0;      // of the entries
  bool by_groups = false;   // what a thread sums up before all parts are put together: or a block
  bool one_origin = false;  // the windows of all summed planes are the same
  int64_t blocks = 0;       // of threads_x vectors of entries
  int64_t together = 1;     // kept planes that start together; a divisor of their number
  int64_t sets = 0;         // of these
  int64_t apart = 0;        // blocks of repetitions with pieces of their own, or 0
};

struct DiagonalSumsParameters {
  ToeplitzArgs args;
  DiagonalSumsPlan plan;
};

constexpr int kGroupRows = 8;
constexpr int kBlockGroups = 32;
constexpr int64_t kBlockRepetitions = 64;

// Of `count` in a row, the one that is number i in the order from `middle` outwards.
POSENC_HD inline int64_t outwards(int64_t i, int64_t middle, int64_t count) {
  const int64_t after = count - 1 - middle;
  const int64_t near = middle < after ? middle : after;
  if (i > 2 * near) return middle < after ? i : count - 1 - i;
  return i % 2 == 0 ? middle + i / 2 : middle - (i + 1) / 2;
}

// Where an entry is in those of a plane.
POSENC_HD inline int64_t entry_offset(const ToeplitzArgs& args, int64_t entry) {
  int64_t offset = 0;
#pragma unroll 1
  for (int axis = args.grid_rank - 1; axis >= 0; --axis) {
    const int64_t outer = axis > 0 ? divide(entry, args.entries[axis]) : 0;
    offset += (entry - outer * args.entries[axis]) * args.entry_strides[axis];
    entry = outer;
  }
  return offset;
}

// The thread (x, y): sums parts of its x's entries, and puts together the parts of one entry.
template <typename T, int kVector, bool kGrid>
class DiagonalSumsThread {
  static_assert(!kGrid || kVector == 1, "keys of neighboring entries are no neighbors in grids");

 public:
  using Number = Real<T>;
  static constexpr int kWidth = kVector;
  static constexpr int kBlocks =
      kGrid ? Policy::kBlocksPerProcessor : blocks_per_processor(kVector * sizeof(T));

  POSENC_HD DiagonalSumsThread(const DiagonalSumsParameters& parameters, char* shared, int x, int y)
      : args_(parameters.args),
        plan_(parameters.plan),
        parts_(reinterpret_cast<Number*>(shared)),
        x_(x),
        y_(y) {}

  POSENC_HD void begin(int64_t piece_x, int64_t piece_y) {
    const int64_t number = divide(piece_x, plan_.together);
    first_plane_ = kGrid && plan_.apart > 0 ? divide(piece_y, plan_.sets) : 0;
    const int64_t set = piece_y - first_plane_ * plan_.sets;
    const int64_t plane = set * plan_.together + piece_x - number * plan_.together;
    kept_plane_ = plane;
    int64_t offsets[3] = {};
    add_offsets(args_.planes, 0, args_.kept, plane,
                {args_.in.plane_strides, args_.diagonal_strides, args_.q_offset_strides}, offsets);
    in_ = offsets[0];
    diagonals_ = offsets[1];
    q_offset_ = offsets[2];
    origin_ = args_.origin_at(q_offset_);
    // Vectors begin where those of rows do that are multiples of a group: with less than a vector.
    const int64_t first =
        kVector == 1 ? 0
                     : (origin_ & (kVector - 1)) - ((origin_ & (kVector - 1)) != 0 ? kVector : 0);
    const int block = plan_.threads_x * kVector;
    const int64_t middle = divide(middle_entry() - first, block);
    block_entry_ = first + outwards(number, middle, plan_.blocks) * block;
    entry_ = block_entry_ + x_ * kVector;
    total_ = block_ = 0;
    if constexpr (kGrid) {
      begin_grid();
    } else {
      begin_rows();
    }
    group_ = first_part_;
  }

  // Of the parts, all of a block's threads in each.
  POSENC_HD int64_t rounds() const {
    return divide(parts_count() + plan_.threads_y - 1, plan_.threads_y);
  }

  POSENC_HD void sum(int64_t round) {
    const int64_t part = round * plan_.threads_y + y_;
    if (part >= parts_count()) return;
    const int64_t plane = divide(part, plane_parts_);
    const int64_t in_plane = first_part_ + part - plane * plane_parts_;
    Number sums[kVector] = {};
    if constexpr (kGrid) {
      sums[0] = sum_queries(first_plane_ + plane, in_plane);
    } else {
      sum_rows(plane, in_plane, sums);
    }
    Number* const to = parts(round) + (y_ * plan_.threads_x + x_) * kVector;
#pragma unroll
    for (int i = 0; i < kVector; ++i) to[i] = sums[i];
  }

  // Meanwhile other threads are at the next round, whose sums go elsewhere.
  POSENC_HD void combine(int64_t round) {
    const int own = own_entry();
    if (own < 0) return;
    const Number* const from = parts(round);
    const int64_t rest = parts_count() - round * plan_.threads_y;
    const int count = rest < plan_.threads_y ? static_cast<int>(rest) : plan_.threads_y;
    for (int i = 0; i < count; ++i) {
      block_ += from[i * plan_.threads_x * kVector + own];
      const bool last = ++group_ == first_part_ + plane_parts_;
      if (!plan_.by_groups || last || (!kGrid && group_ % kBlockGroups == 0)) {
        total_ += block_;
        block_ = 0;
      }
      if (last) group_ = first_part_;
    }
  }

  POSENC_HD void finish() {
    const int own = own_entry();
    const int64_t entry = block_entry_ + own;
    if (own < 0 || entry < 0 || entry >= entry_count()) return;
    if (kGrid && plan_.apart > 0) {
      const int64_t column = kept_plane_ * entry_count() + entry;
      const int64_t columns = args_.kept_count() * entry_count();
      write_packet<Number, 1>(
          {{total_}}, static_cast<Number*>(args_.workspace) + first_plane_ * columns + column);
      return;
    }
    const int64_t offset = diagonals_ + entry_offset(args_, entry);
    write_packet<Number, 1>({{total_}}, static_cast<Number*>(args_.diagonals) + offset);
  }

 private:
  // Of every second round, in turns.
  POSENC_HD Number* parts(int64_t round) const {
    return parts_ + (round & 1) * plan_.threads() * kVector;
  }

  // The entry of the block whose parts this thread puts together, or -1.
  POSENC_HD int own_entry() const {
    const int thread = y_ * plan_.threads_x + x_;
    return thread < plan_.threads_x * kVector ? thread : -1;
  }

  // Those of all planes; for grids a plane is kBlockRepetitions of them.
  POSENC_HD int64_t parts_count() const { return parts_count_; }
  POSENC_HD int64_t entry_count() const { return kGrid ? args_.entry_count() : args_.entries[0]; }

  // That of the longest diagonal.
  POSENC_HD int64_t middle_entry() const {
    if (kGrid) return entry_count() / 2;
    if (args_.queries[0] == 0) return 0;
    return origin_ + (args_.keys[0] - args_.queries[0]) / 2;
  }

  POSENC_HD const T* plane_data(int64_t offset) const {
    return static_cast<const T*>(args_.in.data) + offset;
  }

  // --- Rank 1

  POSENC_HD int part_rows() const {
    return plan_.by_groups ? kGroupRows : kGroupRows * kBlockGroups;
  }

  POSENC_HD void begin_rows() {
    int64_t low = 0, high = args_.queries[0];
    if (plan_.one_origin) {
      // Of the rows that have keys on one of the block's diagonals.
      const int64_t last_entry = block_entry_ + plan_.threads_x * kVector - 1;
      if (origin_ - last_entry > low) low = origin_ - last_entry;
      if (origin_ - block_entry_ + args_.keys[0] < high) {
        high = origin_ - block_entry_ + args_.keys[0];
      }
    }
    first_part_ = divide(low, part_rows());
    plane_parts_ = high > low && args_.keys[0] > 0
                       ? divide(high + part_rows() - 1, part_rows()) - first_part_
                       : 0;
    parts_count_ = plane_parts_ * args_.repetitions();
  }

  POSENC_HD void sum_rows(int64_t plane, int64_t part, Number (&sums)[kVector]) const {
    int64_t offsets[2] = {in_, q_offset_};
    add_offsets(args_.planes, args_.kept, args_.planes.rank, plane,
                {args_.in.plane_strides, args_.q_offset_strides}, offsets);
    const int64_t origin = plan_.one_origin ? origin_ : args_.origin_at(offsets[1]);
    const T* const data = plane_data(offsets[0]);
    const int64_t first = part * part_rows();
    const int64_t last =
        first + part_rows() < args_.queries[0] ? first + part_rows() : args_.queries[0];
    for (int64_t row = first; row < last; row += kGroupRows) {
      // The key of the first entry in the first row: a multiple of kVector.
      const int64_t key = entry_ - origin + row;
      if (key >= args_.keys[0] || key + kGroupRows + kVector - 1 <= 0) continue;
      Number group[kVector] = {};
      if (key >= 0 && key + kGroupRows + (kVector > 1 ? kVector : 0) <= args_.keys[0] &&
          row + kGroupRows <= args_.queries[0]) {
        sum_group<true>(data, row, key, group);
      } else {
        sum_group<false>(data, row, key, group);
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) sums[i] += group[i];
    }
  }

  // kInside: all rows and keys are there.
  template <bool kInside>
  POSENC_HD void sum_group(const T* data, int64_t row, int64_t key,
                           Number (&group)[kVector]) const {
    constexpr int kAtOnce = kVector == 1 ? kGroupRows : Policy::kSumsRows;
    const int64_t step = kVector == 1 ? args_.in.column_stride : 1;
    const T* from = data + row * args_.in.row_stride + key * step;
#pragma unroll
    for (int first = 0; first < kGroupRows; first += kAtOnce) {
      WordOf<T, kVector> low[kAtOnce], high[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int r = first + i, word = r / kVector * kVector;
        low[i] = high[i] = WordOf<T, kVector>{};
        const bool there = kInside || row + r < args_.queries[0];
        if (there && (kInside || in_keys(key + word))) {
          low[i] = read_word<T, kVector>(from + word * step);
        }
        if (r % kVector != 0 && there && (kInside || in_keys(key + word + kVector))) {
          high[i] = read_word<T, kVector>(from + (word + kVector) * step);
        }
        from += args_.in.row_stride;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const int at = (first + i) % kVector + j;
          group[j] += real_of<T, kVector>(at < kVector ? low[i] : high[i], at % kVector);
        }
      }
    }
  }

  POSENC_HD bool in_keys(int64_t key) const { return key >= 0 && key < args_.keys[0]; }

  // --- Grids

  POSENC_HD void begin_grid() {
    int64_t rest = entry_;
#pragma unroll
    for (int axis = kMaxGridRank - 1; axis >= 0; --axis) {
      index_[axis] = 0;
      if (axis >= args_.grid_rank) continue;
      const int64_t outer = axis > 0 ? divide(rest, args_.entries[axis]) : 0;
      index_[axis] = rest - outer * args_.entries[axis];
      rest = outer;
    }
    first_part_ = 0;
    plane_parts_ = plan_.by_groups ? args_.query_count() : 1;
    const int64_t planes =
        plan_.apart > 0 ? 1
                        : divide(args_.repetitions() + kBlockRepetitions - 1, kBlockRepetitions);
    parts_count_ = args_.query_count() > 0 ? planes * plane_parts_ : 0;
  }

  // Of one query or all of them.
  POSENC_HD Number sum_queries(int64_t plane, int64_t part) const {
    const int64_t first = plan_.by_groups ? part : 0;
    const int64_t last = plan_.by_groups ? part + 1 : args_.query_count();
    Number sum = 0;
    if (entry_ >= entry_count()) return sum;
    for (int64_t query = first; query < last; ++query) {
      const int64_t key = key_of(query);
      if (key >= 0) sum += sum_repetitions(plane, query, key);
    }
    return sum;
  }

  // The key that a query has at this thread's entry, or -1.
  POSENC_HD int64_t key_of(int64_t query) const {
    int64_t key = 0, scale = 1;
#pragma unroll
    for (int axis = kMaxGridRank - 1; axis >= 0; --axis) {
      if (axis >= args_.grid_rank) continue;
      const int64_t outer = axis > 0 ? divide(query, args_.queries[axis]) : 0;
      const int64_t one = index_[axis] - args_.origin[axis] + (query - outer * args_.queries[axis]);
      if (one < 0 || one >= args_.keys[axis]) return -1;
      key += one * scale;
      scale *= args_.keys[axis];
      query = outer;
    }
    return key;
  }

  POSENC_HD Number sum_repetitions(int64_t plane, int64_t query, int64_t key) const {
    const int64_t at = in_ + query * args_.in.row_stride + key * args_.in.column_stride;
    const int64_t first = plane * kBlockRepetitions;
    const int64_t rest = args_.repetitions() - first;
    const int count = static_cast<int>(rest < kBlockRepetitions ? rest : kBlockRepetitions);
    Number sum = 0;
    if (args_.planes.rank > args_.kept + 1) {
      for (int i = 0; i < count; ++i) {
        int64_t offsets[1] = {at};
        add_offsets(args_.planes, args_.kept, args_.planes.rank, first + i,
                    {args_.in.plane_strides}, offsets);
        sum += to_real(read_number(plane_data(offsets[0])));
      }
      return sum;
    }
    // Along one axis: no divisions, and several at once.
    constexpr int kAtOnce = kGroupRows;
    const int64_t step = args_.planes.rank > args_.kept ? args_.in.plane_strides[args_.kept] : 0;
    const T* from = plane_data(at + first * step);
    for (int i = 0; i < count; i += kAtOnce) {
      WordOf<T, 1> words[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j < count) words[j] = read_word<T, 1>(from);
        from += step;
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j < count) sum += to_real(unpack<T, 1>(words[j]).numbers[0]);
      }
    }
    return sum;
  }

  const ToeplitzArgs& args_;
  const DiagonalSumsPlan& plan_;
  Number* const parts_;  // [threads_y, threads_x * kVector]
  const int x_, y_;

  int64_t in_, diagonals_, q_offset_, origin_;
  int64_t block_entry_, entry_;
  int64_t kept_plane_, first_plane_;
  int64_t first_part_, plane_parts_, parts_count_;
  int64_t index_[kMaxGridRank];
  // Of the entry that it puts together: groups so far, sums of the block and of all before.
  int64_t group_;
  Number block_, total_;
};

// Adds up the sums of one entry of one plane that lie in the workspace, in their order.
template <typename Number, int kVector>
class BlockTotalsThread {
  static_assert(kVector == 1);

 public:
  POSENC_HD BlockTotalsThread(const DiagonalSumsParameters& parameters, char* /*shared*/, int x)
      : args_(parameters.args), plan_(parameters.plan), x_(x) {}

  POSENC_HD void sum(int64_t piece_x) const {
    const int64_t entries = args_.entry_count(), columns = args_.kept_count() * entries;
    const int64_t column = piece_x * plan_.threads_x + x_;
    if (column >= columns) return;
    const Number* from = static_cast<const Number*>(args_.workspace) + column;
    Number total = 0;
    for (int64_t first = 0; first < plan_.apart; first += kAtOnce) {
      WordOf<Number, 1> words[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < plan_.apart) words[i] = read_word<Number, 1>(from + i * columns);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < plan_.apart) total += unpack<Number, 1>(words[i]).numbers[0];
      }
      from += kAtOnce * columns;
    }
    const int64_t plane = divide(column, entries);
    int64_t offsets[1] = {entry_offset(args_, column - plane * entries)};
    add_offsets(args_.planes, 0, args_.kept, plane, {args_.diagonal_strides}, offsets);
    write_packet<Number, 1>({{total}}, static_cast<Number*>(args_.diagonals) + offsets[0]);
  }

 private:
  static constexpr int kAtOnce = 8;

  const ToeplitzArgs& args_;
  const DiagonalSumsPlan& plan_;
  const int x_;
};

// Whether all summed planes have the same windows.
inline bool one_origin(const ToeplitzArgs& args) {
  if (args.q_offset.data == nullptr) return true;
  return std::all_of(args.q_offset_strides + args.kept, args.q_offset_strides + args.planes.rank,
                     [](int64_t stride) { return stride == 0; });
}

template <typename Visit>
auto visit_diagonal_sums_thread(const ToeplitzArgs& args, const Visit& visit) {
  return visit_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    if (args.grid_rank > 1) return visit(static_cast<DiagonalSumsThread<T, 1, true>*>(nullptr));
    const bool wide = one_origin(args) && aligned(args.in, args.planes, args.queries[0],
                                                  args.keys[0], args.dtype, kWide);
    return wide ? visit(static_cast<DiagonalSumsThread<T, kWide, false>*>(nullptr))
                : visit(static_cast<DiagonalSumsThread<T, 1, false>*>(nullptr));
  });
}

// Blocks of repetitions that are pieces of their own, or 0. The same for every GPU, as callers give
// the workspace.
inline int64_t blocks_apart(const ToeplitzArgs& args) {
  const int64_t blocks = divide_up(args.repetitions(), kBlockRepetitions);
  const int64_t pieces = divide_up(args.entry_count(), Policy::kThreads / 4) * args.kept_count();
  const bool few = args.grid_rank > 1 && blocks > 1 && pieces < Policy::kSumsPieces;
  return few && args.query_count() > 0 ? blocks : 0;
}

// Bytes, which the caller gives.
inline int64_t sums_workspace(const ToeplitzArgs& args) {
  const int64_t size = args.dtype == Dtype::kFloat64 ? 8 : 4;
  return blocks_apart(args) * args.kept_count() * args.entry_count() * size;
}

template <typename Thread>
DiagonalSumsPlan plan_diagonal_sums(const ToeplitzArgs& args, const Room& room = {}) {
  DiagonalSumsPlan plan;
  const int64_t entries = args.entry_count(), kept = args.kept_count();
  if (entries == 0 || kept == 0) return plan;
  constexpr int kWidth = Thread::kWidth;
  // The first vector may begin before the first entry.
  plan.vectors = divide_up(entries + kWidth - 1, kWidth);
  plan.one_origin = one_origin(args);
  const bool grid = args.grid_rank > 1;
  const int64_t group_rows = grid ? 1 : kGroupRows;
  const int64_t block_rows = grid ? args.query_count() : kGroupRows * kBlockGroups;
  plan.apart = blocks_apart(args);
  const int64_t pieces_apart = std::max<int64_t>(plan.apart, 1);
  const int64_t planes = plan.apart > 0 ? 1
                         : grid         ? divide_up(args.repetitions(), kBlockRepetitions)
                                        : args.repetitions();
  const int64_t groups = planes * divide_up(args.query_count(), group_rows);
  const int64_t blocks = block_rows == 0 ? 0 : planes * divide_up(args.query_count(), block_rows);
  const int64_t places = room.blocks(Policy::kThreads);
  // The more blocks, the fewer entries in each, and the more threads for parts of their sums: as
  // long as there are such parts, and neighbors share what memory delivers at once.
  int threads_x = Policy::kThreads / kWidth / (kWidth == 1 ? 4 : 1);
  const int least = std::max(Policy::kSumsBytes / int(item_size(args.dtype)) / kWidth, 1);
  while (threads_x > least && Policy::kThreads / threads_x < groups &&
         divide_up(plan.vectors, threads_x) * kept * pieces_apart < Policy::kSumsWaves * places) {
    threads_x /= 2;
  }
  plan.threads_x = threads_x;
  plan.threads_y = Policy::kThreads / threads_x;
  plan.by_groups = blocks < Policy::kSumsRounds * plan.threads_y;
  plan.blocks = divide_up(plan.vectors, threads_x);
  plan.together = std::min<int64_t>(kept, Policy::kSumsPlanes);
  while (kept % plan.together != 0) --plan.together;
  plan.sets = kept / plan.together;
  plan.take_pieces(plan.blocks * plan.together, plan.sets * pieces_apart, room.limit);
  plan.shared_bytes =
      2 * static_cast<size_t>(plan.threads()) * kWidth * sizeof(typename Thread::Number);
  return plan;
}

// Of the totals of blocks that are apart.
inline DiagonalSumsPlan plan_block_totals(const ToeplitzArgs& args, const Room& room = {}) {
  DiagonalSumsPlan plan;
  plan.apart = blocks_apart(args);
  plan.threads_x = Policy::kThreads / 2;
  const int64_t columns = args.kept_count() * args.entry_count();
  plan.take_pieces(plan.apart > 0 ? divide_up(columns, plan.threads_x) : 0, 1, room.limit);
  return plan;
}

}  // namespace posenc::cuda
