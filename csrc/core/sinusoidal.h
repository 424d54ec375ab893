// Tables of sines and cosines: written down (sinusoidal tables, rotary tables) or added to x.
//
//   layout        a row of `dim` = 2P numbers
//   interleaved   s0 c0 s1 c1 s2 c2 ...     the Transformer paper
//   sin_cos       s0 s1 s2 ... c0 c1 c2 ...   tensor2tensor, fairseq, Whisper
//   cos_sin       c0 c1 c2 ... s0 s1 s2 ...   DiT, GLIDE
//
// The halves may as well be two arrays: rotary tables are "sin_cos" with two outputs.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/angles.h"
#include "core/view.h"

namespace posenc {

// The frequencies of sinusoidal(): base, shift, scale, and dim = 2P.
struct SinusoidalSpec {
  int64_t dim = 0;
  double base = 10000.0, shift = 0.0, scale = 1.0;
  std::string_view layout = "interleaved";

  bool same_frequencies(const SinusoidalSpec& other) const {
    return dim == other.dim && base == other.base && shift == other.shift && scale == other.scale;
  }
};

struct SinusoidalArgs {
  // Rows: one position each, in C order over `shape`; strides in elements.
  int rank = 0;
  // All axes but the last only repeat its positions: kernels then count the positions of the last
  // axis and do each with all its repetitions, for one computation of the angles.
  bool repeated = false;
  int64_t shape[kMaxRank] = {};
  int64_t position_strides[kMaxRank] = {};
  int64_t sine_strides[kMaxRank] = {};
  int64_t cosine_strides[kMaxRank] = {};
  int64_t x_strides[kMaxRank] = {};

  Positions positions;
  AxisMap axis_map;
  int64_t pairs = 0;
  InverseFrequencies inv_freq;  // of rotary tables, or, if it has no data:
  SinusoidalSpec spec;
  Frequencies frequencies;  // the same in turns, where the caller has prepared them

  Dtype dtype = Dtype::kFloat32;
  void* sine = nullptr;  // where pair 0 goes, and the stride from pair to pair
  void* cosine = nullptr;
  int64_t sine_step = 1, cosine_step = 1;
  bool interleaved = false;  // cosine == sine + 1, both with step 2: written as one stream

  const void* x_sine = nullptr;  // x where the sines (cosines) are added; null for a plain table
  const void* x_cosine = nullptr;
  int64_t x_step = 1;

  double scale = 1.0;    // of sine and cosine
  double x_scale = 1.0;  // of x
  bool non_temporal = false;

  POSENC_HD int64_t rows() const { return repeated ? shape[rank - 1] : positions_count(); }
  POSENC_HD int64_t positions_count() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= shape[i];
    return count;
  }
};

void check_sinusoidal_spec(const char* function, const SinusoidalSpec& spec);
void turns_from_spec(const SinusoidalSpec& spec, uint64_t* fraction, uint64_t* whole);

// The whole result fits into memory's address range.
void check_result_size(const char* function, const int64_t* shape, int rank, int64_t dim,
                       Dtype dtype);

// out[positions.shape + (dim,)]. `count` positions 0, 1, 2 ... where positions is null.
SinusoidalArgs check_sinusoidal(const char* function, const Array* positions, int64_t count,
                                const SinusoidalSpec& spec, const Array& out);

// out = x * x_scale + alpha * table; x [..., seq, dim], positions null, [seq] or x.shape[:-1].
SinusoidalArgs check_add_sinusoidal(const char* function, const Array& x, const Array* positions,
                                    const SinusoidalSpec& spec, double x_scale, double alpha,
                                    const Array& out);

// cos and sin, each positions.shape + (P,); with axis_map positions are [A, ...].
SinusoidalArgs check_rotary_tables(const char* function, const Array* positions, int64_t count,
                                   const Array& inv_freq, const Array* axis_map, double scale,
                                   const Array& cosine, const Array& sine);

}  // namespace posenc
