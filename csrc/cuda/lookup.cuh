// What gather, scatter and shift share on a GPU: parameters, and where the numbers of a piece are.
#pragma once

#include <type_traits>

#include "core/lookup.h"
#include "cuda/packet.cuh"
#include "cuda/policy.h"
#include "cuda/tiles.cuh"

namespace posenc::cuda {

struct RelativeParameters {
  RelativeArgs args;
  TilePlan plan;
  int kept = 0;  // axes along which planes have other windows: the first ones, as in ToeplitzArgs
  bool scatter = false;  // of a shift
  bool copies = false;   // nothing is added, and the scale is 1: bits as they are
};
static_assert(sizeof(RelativeParameters) <= 4096, "kernel parameters");

// (content + x) * scale
template <typename T, int kVector>
POSENC_HD inline Packet<T, kVector> scaled(const RelativeParameters& parameters,
                                           const Packet<T, kVector>& x,
                                           const WordOf<T, kVector>& content_word) {
  const RelativeArgs& args = parameters.args;
  const bool adds = args.content.data != nullptr;
  if (parameters.copies) return x;
  const Real<T> scale = static_cast<Real<T>>(args.scale);
  Real<T> values[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    values[i] = to_real(x.numbers[i]);
    if (adds) values[i] = real_of<T, kVector>(content_word, i) + values[i];
    values[i] *= scale;
  }
  return round_packet<T, kVector>(values);
}

// kVector neighboring numbers of a row, wherever they begin: the one or two words that they are
// in.
template <typename T, int kVector>
class AnyWord {
 public:
  // Those of a row of `size` numbers from a column on. False if their words have numbers that are
  // not the row's: nothing else is read.
  POSENC_HD bool read(const T* row, int64_t column, int64_t size) {
    shift_ = 0;
    if constexpr (kVector == 1) return false;
    if (column < 0 || column + kVector > size) return false;
    const int byte = static_cast<int>(reinterpret_cast<uint64_t>(row + column) & 15);
    const int before = byte / static_cast<int>(sizeof(T));
    if (before == 0) {
      low_ = high_ = read_word<T, kVector>(row + column);
      return true;
    }
    const int64_t first = column - before;
    if (first < 0 || first + 2 * kVector > size) return false;
    low_ = read_word<T, kVector>(row + first);
    high_ = read_word<T, kVector>(row + first + kVector);
    shift_ = byte;
    return true;
  }

  // Zeros; or, once two words are read, what is behind so many bytes of the first.
  POSENC_HD void clear(int bytes = 0) {
    low_ = high_ = WordOf<T, kVector>{};
    shift_ = bytes;
  }
  POSENC_HD void read_both(const T* words) {
    low_ = read_word<T, kVector>(words);
    high_ = read_word<T, kVector>(words + kVector);
  }

  // Otherwise, number(i) for each.
  template <typename NumberOf>
  POSENC_HD void take(const NumberOf& number) {
    Packet<T, kVector> packet;
#pragma unroll
    for (int i = 0; i < kVector; ++i) packet.numbers[i] = number(i);
    memcpy(&low_, packet.numbers, sizeof low_);
    high_ = low_;
  }

  POSENC_HD Packet<T, kVector> numbers() const {
    if constexpr (kVector == 1) {
      return unpack<T, 1>(low_);
    } else {
      uint32_t parts[8];
      memcpy(parts, &low_, 16);
      memcpy(parts + 4, &high_, 16);
#pragma unroll
      for (int i = 0; i < 6; ++i) parts[i] = (shift_ & 8) != 0 ? parts[i + 2] : parts[i];
      if constexpr (sizeof(T) <= 4) {
#pragma unroll
        for (int i = 0; i < 5; ++i) parts[i] = (shift_ & 4) != 0 ? parts[i + 1] : parts[i];
      }
      if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint64_t both = uint64_t{parts[i + 1]} << 32 | parts[i];
          parts[i] = static_cast<uint32_t>(both >> (8 * (shift_ & 2)));
        }
      }
      Packet<T, kVector> packet;
      memcpy(packet.numbers, parts, 16);
      return packet;
    }
  }

 private:
  WordOf<T, kVector> low_, high_;
  int shift_;  // bytes of the first word that are not wanted
};

// What gather and shift have of a piece.
template <typename T, int kVector>
class RelativeThread {
 protected:
  POSENC_HD RelativeThread(const RelativeParameters& parameters, int x, int y, int z)
      : parameters_(parameters),
        args_(parameters.args),
        plan_(parameters.plan),
        x_(x),
        y_(y),
        z_(z) {}

  POSENC_HD void begin(const Tile& tile, const Matrices& from, const Matrices& to) {
    int64_t offsets[4] = {};
    add_offsets(
        args_.planes, 0, parameters_.kept, tile.plane,
        {from.plane_strides, to.plane_strides, args_.content.plane_strides, args_.q_offset_strides},
        offsets);
    const int64_t column = tile.vector * kVector;
    from_ = offsets[0];
    to_ = offsets[1] + column * column_stride(to);
    content_ = offsets[2] + column * column_stride(args_.content);
    origin_ = args_.origin_at(offsets[3]);
    first_repetition_ = tile.repetition;
    working_ = tile.vector < plan_.vectors && first_repetition_ < plan_.repetitions;
  }

  static POSENC_HD int64_t column_stride(const Matrices& matrices) {
    return kVector == 1 ? matrices.column_stride : 1;
  }

  // `from` has no column yet.
  struct Place {
    const T *from, *content;
    T* to;
  };

  POSENC_HD Place place(int64_t repetition, const Matrices& from, const Matrices& to) const {
    int64_t offsets[3] = {from_, to_, content_};
    add_offsets(args_.planes, parameters_.kept, args_.planes.rank, repetition,
                {from.plane_strides, to.plane_strides, args_.content.plane_strides}, offsets);
    return {static_cast<const T*>(from.data) + offsets[0],
            static_cast<const T*>(args_.content.data) + offsets[2],
            static_cast<T*>(to.data) + offsets[1]};
  }

  const RelativeParameters& parameters_;
  const RelativeArgs& args_;
  const TilePlan& plan_;
  const int x_, y_, z_;

  int64_t from_, to_, content_, origin_;
  int64_t first_repetition_;
  bool working_;
};

// The same call with its axes in the order that RelativeParameters wants, as few as strides allow.
inline RelativeParameters arrange(const RelativeArgs& args, bool scatter) {
  RelativeParameters parameters;
  RelativeArgs& to = parameters.args;
  to = args;
  parameters.scatter = scatter;
  parameters.copies = args.content.data == nullptr && args.scale == 1.0;
  int rank = 0;
  for (const bool kept : {true, false}) {
    const int first = rank;
    for (int axis = 0; axis < args.planes.rank; ++axis) {
      const int64_t size = args.planes.shape[axis];
      const bool own = args.q_offset.data != nullptr && args.q_offset_strides[axis] != 0;
      if (size == 1 || own != kept) continue;
      const auto nested = [&](const int64_t* merged, const int64_t* strides) {
        return merged[rank - 1] == strides[axis] * size;
      };
      const bool joins = rank > first &&
                         nested(to.by_column.plane_strides, args.by_column.plane_strides) &&
                         nested(to.by_key.plane_strides, args.by_key.plane_strides) &&
                         nested(to.content.plane_strides, args.content.plane_strides) &&
                         nested(to.q_offset_strides, args.q_offset_strides);
      const int at = joins ? rank - 1 : rank++;
      to.planes.shape[at] = joins ? to.planes.shape[at] * size : size;
      to.by_column.plane_strides[at] = args.by_column.plane_strides[axis];
      to.by_key.plane_strides[at] = args.by_key.plane_strides[axis];
      to.content.plane_strides[at] = args.content.plane_strides[axis];
      to.q_offset_strides[at] = args.q_offset_strides[axis];
    }
    if (kept) parameters.kept = rank;
  }
  to.planes.rank = rank;
  return parameters;
}

// Of arranged arguments.
template <typename Thread>
TilePlan plan_relative(const RelativeParameters& parameters, const Room& room = {}) {
  const RelativeArgs& args = parameters.args;
  const Planes& planes = args.planes;
  const int64_t columns = parameters.scatter ? args.width : args.keys;
  TilePlan plan = plan_tiles(Thread::vectors(parameters, columns), args.queries, Thread::kRows,
                             planes.count(0, parameters.kept),
                             planes.count(parameters.kept, planes.rank), room, Thread::kWaves);
  plan.shared_bytes = Thread::shared_bytes(plan);
  return plan;
}

// Whether every vector of `width` numbers of rows that are written is aligned, and of `content`.
inline bool by_vectors(const RelativeParameters& parameters, int64_t width) {
  const RelativeArgs& args = parameters.args;
  const Matrices& to = parameters.scatter ? args.by_column : args.by_key;
  const Matrices& from = parameters.scatter ? args.by_key : args.by_column;
  const int64_t columns = parameters.scatter ? args.width : args.keys;
  return from.column_stride == 1 &&
         aligned(to, args.planes, args.queries, columns, args.dtype, width) &&
         aligned(args.content, args.planes, args.queries, columns, args.dtype, width);
}

}  // namespace posenc::cuda
