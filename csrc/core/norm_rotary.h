// What stands before attention, in one pass over q, k and v: an RMS norm, the rotation, the append
// to a cache.
//
//   y = R(x r (weight + offset)),  r = 1 / sqrt(mean(x^2) + eps)
//
//   q ──► y ──► out           k ──► y ──► out, or the slot of its token, or both
//                             v ────────► the slot of its token, bit for bit
//
// A cache of 8 bits has y, or v, divided by a scale (core/eight_bits.h). Queries may be multiplied
// by a factor of their positions, too, before they are rounded (QueryScale).
//
// The mean is over the dims of a head, or over all heads of a token. The sum of the squares has one
// order, in which vectors of any length and the threads of a warp can add:
//
//   p[l] = sum over j of x[64 j + l]^2, one after the other, product and sum rounded each
//   q[i] = p[2 i] + p[2 i + 1];  then q[i] + q[i + 16], and + 8, + 4, + 2, + 1
//
// Of a token: the sums of its heads, one after the other.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "core/eight_bits.h"
#include "core/rotary.h"

namespace posenc {

constexpr int kPartialSums = 64;

// The options of a norm and of a cache, declared as RotaryOptions are and read by the same readers.
struct NormRotaryOptions : RotaryOptions {
  const Array* weights[2] = {};  // of q and k; null: none
  bool norm = true;
  double eps = 1e-6;
  std::string_view norm_over = "head";  // or "token"
  double weight_offset = 0.0;
  bool norm_first = true;
  // The factor of queries, as QueryScale has it.
  std::string_view query_scale = "none";  // or "llama4", "logn"
  double query_beta = 0.0, query_length = 1.0, query_shift = 0.0;

  const Array* caches[2] = {};  // of keys and values
  const Array* slots = nullptr;
  std::string_view cache_layout = "bhsd";  // letters of s, h, d, and b or p or neither
  bool return_k = false;
  // Of caches of 8 bits, of keys and values: what numbers are divided by, or memory for that.
  double scales[2] = {1.0, 1.0};
  const Array* scales_of_heads[2] = {};
  const Array* made_scales[2] = {};

  template <typename Reader>
  constexpr void for_each(AnglesFrom angles, bool append, Reader& reader) {
    RotaryOptions::for_each(angles, reader);
    if (angles == AnglesFrom::kPositions) reader.text("compute", compute);
    reader.optional_array("q_weight", weights[0]);
    reader.optional_array("k_weight", weights[1]);
    reader.boolean("norm", norm);
    reader.number("eps", eps);
    reader.text("norm_over", norm_over);
    reader.number("weight_offset", weight_offset);
    reader.boolean("norm_first", norm_first);
    reader.text("query_scale", query_scale);
    reader.number("query_beta", query_beta);
    reader.number("query_length", query_length);
    reader.number("query_shift", query_shift);
    if (!append) return;
    reader.output("keys", caches[0]);
    reader.output("values", caches[1]);
    reader.array("slots", slots);
    reader.text("cache_layout", cache_layout);
    reader.boolean("return_k", return_k);
    reader.number("k_scale", scales[0]);
    reader.number("v_scale", scales[1]);
    reader.optional_array("k_scale_of_heads", scales_of_heads[0]);
    reader.optional_array("v_scale_of_heads", scales_of_heads[1]);
    reader.optional_output("k_scales", made_scales[0]);
    reader.optional_output("v_scales", made_scales[1]);
  }
};

struct NormRotaryOptionCount : RotaryOptionCount {
  constexpr NormRotaryOptionCount(AnglesFrom angles, bool append) : RotaryOptionCount() {
    NormRotaryOptions options;
    options.for_each(angles, append, *this);
  }
};

// What a caller passes, before any check.
struct NormRotaryCall : NormRotaryOptions {
  const char* function = "";
  const Array* in[2] = {};                          // q, k
  const Array* out[2] = {};                         // of k null where it goes to the cache alone
  const char* out_names[2] = {"out[0]", "out[1]"};  // where out is not in
  const Array* v = nullptr;                         // null: nothing is appended
};

// Weights of a tensor, [head, dim].
struct NormWeight {
  const void* data = nullptr;  // null: 1
  Dtype dtype = Dtype::kFloat32;
  int64_t heads = 1;  // 1: the same for all
  int64_t head_stride = 0, dim_stride = 0;

  POSENC_HD int64_t offset(int64_t head, int64_t dim) const {
    return head * head_stride + dim * dim_stride;
  }
};

// The factor of queries by the position p of their token
// (posenc_native/engines/plain/query_scale.py has the sources). L: the length of the original
// training.
//
//   llama4   1 + beta ln(1 + floor((p + shift) / L)), and 1 below p = L - shift
//   logn     max(1, ln(p + 1) / ln(L))
struct QueryScale {
  enum class Kind : int8_t { kNone, kLlama4, kLogn };
  Kind kind = Kind::kNone;
  double beta = 0.0, length = 1.0, shift = 0.0;

  POSENC_HD explicit operator bool() const { return kind != Kind::kNone; }

  POSENC_HD double at(double position) const {
    if (kind == Kind::kLogn) {
      const double count = position + 1.0;
      return ::log(count < length ? length : count) / ::log(length);
    }
    const double steps = ::floor((position + shift) / length);
    return steps < 0 ? 1.0 : 1.0 + beta * ::log1p(steps);
  }
};

// Where a token's heads go. Strides in elements.
struct CacheTarget {
  void* data = nullptr;
  int64_t row_stride = 0;   // from batch to batch, or from page to page
  int64_t slot_stride = 0;  // within a row
  int64_t head_stride = 0, dim_stride = 1;
  Scaling scaling;
};

struct NormRotaryArgs {
  const char* function = "";  // of the call, for what kernels alone find out
  RotaryArgs rotary;          // of q and k; out is null where nothing goes there

  bool norm = true, over_token = false, norm_first = true;
  double eps = 1e-6, weight_offset = 0.0;
  NormWeight weights[2];
  // As written: x r is rounded before it is multiplied by the weight.
  bool rounded_before_weight[2] = {};
  QueryScale query_scale;

  // The append; `slots.data` is null without one.
  Positions slots;  // their memory; those of a batch row and a token are apart by
  int64_t slot_batch_stride = 0, slot_token_stride = 0;
  int64_t row_slots = 0;     // in a row of the cache
  int64_t cache_rows = 1;    // of its batch, or pages, or 1
  bool cache_batch = false;  // its rows are those of the batch
  bool paged = false;        // its rows are pages, and slots are counted through them
  CacheTarget keys, values;
  RotaryTensor v;
  int64_t v_dim = 0;

  POSENC_HD bool appends() const { return slots.data != nullptr; }

  // Whether heads are multiplied at all: by what a norm says, or queries by their positions.
  POSENC_HD bool multiplies() const { return norm || query_scale; }

  // The factor of the queries of a token; 1 without one.
  template <typename Number>
  POSENC_HD Number query_factor(int64_t batch, int64_t token) const {
    if (!query_scale) return 1;
    const int64_t at = batch * rotary.position_batch_stride + token * rotary.position_token_stride;
    return static_cast<Number>(query_scale.at(rotary.positions.template number_at<double>(at)));
  }

  // No place of a cache: places may be negative, as strides may.
  static constexpr int64_t kNowhere = INT64_MIN;

  // The slot of a token, or kNowhere.
  POSENC_HD int64_t slot(int64_t batch, int64_t token) const {
    const int64_t slot = slots.at(batch * slot_batch_stride + token * slot_token_stride).integer;
    const int64_t all = paged ? cache_rows * row_slots : row_slots;
    return slot < 0 || slot >= all ? kNowhere : slot;
  }

  POSENC_HD bool has_eight_bits() const {
    return keys.scaling.is_eight_bits() || values.scaling.is_eight_bits();
  }

  // Where the heads of a slot are in a cache, in elements, or kNowhere.
  POSENC_HD int64_t place_of_slot(const CacheTarget& cache, int64_t batch, int64_t slot) const {
    if (slot == kNowhere) return kNowhere;
    return place_of_slot(cache.row_stride, cache.slot_stride, batch, slot);
  }
  POSENC_HD int64_t place_of_slot(int64_t row_stride, int64_t slot_stride, int64_t batch,
                                  int64_t slot) const {
    const int64_t row = paged ? slot / row_slots : cache_batch ? batch : 0;
    return row * row_stride + (paged ? slot % row_slots : slot) * slot_stride;
  }
  // The place of a scale that is made for a head of a slot, which is not kNowhere.
  POSENC_HD int64_t place_of_scale(const Scaling& scaling, int64_t batch, int64_t slot,
                                   int64_t head) const {
    return place_of_slot(scaling.made_row, scaling.made_slot, batch, slot) +
           head * scaling.made_head;
  }
  // Likewise those of a token.
  POSENC_HD int64_t place(const CacheTarget& cache, int64_t batch, int64_t token) const {
    return place_of_slot(cache, batch, slot(batch, token));
  }
};

// Gradients with respect to q, k and the weights; see cpu/norm_rotary_gradient.cc.
struct NormRotaryGradientArgs {
  // Of the sums in float32; beyond, they are added in float64.
  static constexpr int64_t kTokensOfSum = 32;
  static constexpr int64_t kMostPieces = 256;

  // `in` of its tensors is x and `out` its gradient.
  NormRotaryArgs forward;
  const void* grads[2] = {};  // of what came out
  HeadStrides grad_strides[2];
  // Of the weights, [pieces, heads, head_dim] each, with the heads of the weights; null where there
  // are none. Those of the CPU begin at 0.
  double* weight_sums[2] = {};
  void* workspace = nullptr;  // of a GPU: partial sums

  POSENC_HD int64_t weight_count(int tensor) const {
    return forward.weights[tensor].heads * forward.rotary.head_dim;
  }
  // What one thread does: the call alone decides.
  POSENC_HD int64_t tokens_of_piece() const {
    const int64_t most = kTokensOfSum * kMostPieces;
    return (forward.rotary.rows() + most - 1) / most * kTokensOfSum;
  }
  POSENC_HD int64_t pieces() const {
    const int64_t tokens = tokens_of_piece();
    return tokens == 0 ? 0 : (forward.rotary.rows() + tokens - 1) / tokens;
  }
};

// Frequencies in turns are left to the caller, as of check_rotary.
NormRotaryArgs check_norm_rotary(const NormRotaryCall& call);

// `call` is the forward one, its tensors x -> gradient of x; grads have the shape and dtype of x.
// Memory of sums is left to the caller.
NormRotaryGradientArgs check_norm_rotary_gradient(const NormRotaryCall& call,
                                                  const Array* const* grads);

}  // namespace posenc
