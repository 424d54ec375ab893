// The checks of all operations on arbitrary descriptions: they read nothing out of bounds, and what
// they accept lies inside the arrays, at the extremes of every index.

#include <algorithm>
#include <cmath>
#include <string>

#include "core/angles.h"
#include "core/lookup.h"
#include "core/rotary.h"
#include "core/sinusoidal.h"
#include "core/toeplitz.h"
#include "input.h"

namespace posenc::fuzz {
namespace {

Dtype draw_position_dtype(Input& input) {
  static constexpr Dtype kAll[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kInt8,
                                   Dtype::kUInt8,   Dtype::kInt16,   Dtype::kUInt16,
                                   Dtype::kInt32,   Dtype::kUInt32,  Dtype::kInt64,
                                   Dtype::kUInt64,  Dtype::kOther,   Dtype::kFloat16};
  return kAll[std::min(input.below(24), 11)];
}

// Small whole numbers of a dtype, now and then raw bits.
auto small_numbers(Input& input, Dtype dtype, int largest) {
  return [&input, dtype, largest](char* to, size_t) {
    const uint8_t choice = input.byte();
    if (choice >= 250) {
      const auto bits = input.number<uint64_t>();
      std::memcpy(to, &bits, static_cast<size_t>(item_size(dtype)));
      return;
    }
    const int value = choice % (largest + 1) - (choice >= 200 ? 2 : 0);
    const auto store = [&](auto number) { std::memcpy(to, &number, sizeof number); };
    switch (dtype) {
      case Dtype::kFloat32:
        return store(static_cast<float>(value) + 0.25f);
      case Dtype::kFloat64:
        return store(static_cast<double>(value) + 0.25);
      case Dtype::kInt8:
      case Dtype::kUInt8:
        return store(static_cast<int8_t>(value));
      case Dtype::kInt16:
      case Dtype::kUInt16:
      case Dtype::kFloat16:
      case Dtype::kBFloat16:
        return store(static_cast<int16_t>(value));
      case Dtype::kInt32:
      case Dtype::kUInt32:
        return store(static_cast<int32_t>(value));
      default:
        return store(static_cast<int64_t>(value));
    }
  };
}

Array draw_real_array(Input& input, Arrays& arrays, Dtype dtype, int rank, const int64_t* shape,
                      int largest) {
  return arrays.real(dtype, rank, shape, small_numbers(input, dtype, largest));
}

// Changes a shape now and then.
void disturb(Input& input, int& rank, int64_t* shape) {
  const uint8_t choice = input.byte();
  if (choice < 244) return;
  if (choice < 250 && rank > 0) {
    shape[input.below(rank)] = input.below(4);
  } else if (choice < 253 && rank > 0) {
    --rank;
  } else if (rank < kMaxRank) {
    shape[rank++] = input.below(3);
  }
}

double draw_number(Input& input) {
  static constexpr double kSome[] = {1.0, 0.5, -2.0, 0.0, 1e4, 1e300, 1e-300};
  const uint8_t choice = input.byte();
  return choice < 200 ? kSome[choice % 7] : input.number<double>();
}

// --- Rotary

void expect_rows(const RotaryArgs& args, const Array& array, const void* data,
                 const HeadStrides& strides, int64_t heads, const char* what) {
  if (args.batch == 0 || args.tokens == 0 || heads == 0 || args.head_dim == 0) return;
  Reach reach;
  reach.add(strides.batch, args.batch);
  reach.add(strides.token, args.tokens);
  reach.add(strides.head, heads);
  reach.add(strides.dim, args.head_dim);
  expect_inside(array, reach, first_of(array, data), what);
}

void try_rotary(Input& input) {
  static const std::string kLayouts[] = {"sd", "bsd", "hsd",  "bhsd", "bshd", "sbhd", "thd",
                                         "td", "shd", "hbsd", "bhtd", "ssd",  "d",    ""};
  Arrays arrays(input);
  RotaryCall call;
  call.function = "rotary";
  const std::string layout = kLayouts[input.below(14)];
  call.layout = layout;
  int64_t sizes[256] = {};
  for (const char letter : {'b', 's', 't', 'h', 'd'})
    sizes[static_cast<int>(letter)] = input.below(7);
  sizes['d'] = input.below(20);
  const int64_t pairs = input.below(11);
  static const std::string kPairings[] = {
      "half", "interleaved", "4", "2", "6", "-2", "x", "9223372036854775807", "9223372036854775808",
      "3"};
  const std::string pairing = kPairings[input.below(10)];
  call.pairing = pairing;
  call.rotary_start = input.byte() < 220 ? input.below(6) : input.number<int64_t>();
  call.scale = draw_number(input);
  call.inverse = input.flag();
  call.tensor_count = 1 + input.below(2);
  const Dtype dtype = draw_any(input);
  Array in[2], out[2], x[2];
  for (int i = 0; i < call.tensor_count; ++i) {
    int64_t shape[kMaxRank];
    int rank = 0;
    for (const char letter : layout) shape[rank++] = sizes[static_cast<int>(letter)];
    const size_t head = layout.find('h');
    if (i == 1 && head != std::string::npos) shape[head] = input.below(4);
    disturb(input, rank, shape);
    in[i] = arrays.described(dtype, rank, shape);
    out[i] = input.flag() ? in[i] : arrays.described(dtype, rank, shape);
    x[i] = arrays.described(dtype, rank, shape);
    call.in[i] = &in[i];
    call.out[i] = input.flag() ? &in[i] : &out[i];
  }
  const int64_t tokens = layout.find('t') != std::string::npos ? sizes['t'] : sizes['s'];
  Array positions, inv_freq, axis_map, cosine, sine;
  int64_t shape[kMaxRank];
  const auto tokens_shape = [&](int rank) {
    if (input.flag() && layout.find('b') != std::string::npos) shape[rank++] = sizes['b'];
    shape[rank++] = tokens;
    return rank;
  };
  if (input.byte() < 80) {
    for (Array* table : {&cosine, &sine}) {
      int rank = tokens_shape(0);
      shape[rank++] = pairs;
      disturb(input, rank, shape);
      *table = arrays.described(input.byte() < 240 ? dtype : draw_any(input), rank, shape);
    }
    call.cosine = &cosine;
    call.sine = &sine;
    call.compute = input.flag() ? "as_written" : input.byte() < 240 ? "float32" : "x";
  } else {
    const int64_t axes = 1 + input.below(3);
    const int kind = input.below(4);
    int rank = 0;
    if (kind == 2) shape[rank++] = axes;
    if (kind == 2 || kind == 1) shape[rank++] = input.flag() ? sizes['h'] : 1;
    shape[rank++] = pairs;
    disturb(input, rank, shape);
    const Dtype frequency = input.byte() < 240 ? (input.flag() ? Dtype::kFloat32 : Dtype::kFloat64)
                                               : draw_position_dtype(input);
    inv_freq = draw_real_array(input, arrays, frequency, rank, shape, 3);
    call.inv_freq = &inv_freq;
    if (kind == 3) {
      shape[0] = pairs;
      rank = 1;
      disturb(input, rank, shape);
      axis_map = draw_real_array(input, arrays, draw_position_dtype(input), rank, shape,
                                 static_cast<int>(axes) - 1);
      call.axis_map = &axis_map;
    }
    if (input.byte() < 200) {
      rank = 0;
      if (kind >= 2) shape[rank++] = axes;
      rank = tokens_shape(rank);
      disturb(input, rank, shape);
      positions = draw_real_array(input, arrays, draw_position_dtype(input), rank, shape, 9);
      call.positions = &positions;
    }
  }
  const bool gradient = input.byte() < 60 && call.inv_freq != nullptr;
  if (input.byte() < 80) call.out_pairing = kPairings[input.below(10)];
  RotaryArgs args;
  if (gradient) {
    const Array* const given[2] = {&x[0], &x[1]};
    const RotaryGradientArgs back = check_rotary_gradient(call, given);
    args = back.turned;
    for (int i = 0; i < args.tensor_count; ++i) {
      expect_rows(args, x[i], back.x[i], back.x_strides[i], args.tensors[i].heads, "x");
    }
  } else {
    args = check_rotary(call);
  }
  POSENC_FUZZ_EXPECT(
      args.start >= 0 && args.pairs >= 0 && args.start + 2 * args.pairs <= args.head_dim,
      "start %lld", static_cast<long long>(args.start));
  for (const int64_t half : {args.half_block, args.in_half_block}) {
    POSENC_FUZZ_EXPECT(args.pairs == 0 || (half >= 1 && args.pairs % half == 0), "half block %lld",
                       static_cast<long long>(half));
  }
  for (int i = 0; i < args.tensor_count; ++i) {
    const RotaryTensor& tensor = args.tensors[i];
    expect_rows(args, *call.in[i], tensor.in, tensor.in_strides, tensor.heads, "in");
    expect_rows(args, *call.out[i], tensor.out, tensor.out_strides, tensor.heads, "out");
    if (args.inv_freq.data != nullptr) {
      POSENC_FUZZ_EXPECT(args.inv_freq.heads == 1 || args.inv_freq.heads == tensor.heads, "heads");
    }
  }
  if (args.batch == 0 || args.tokens == 0) return;
  if (args.positions.data != nullptr) {
    Reach reach;
    reach.add(args.position_batch_stride, args.batch);
    reach.add(args.position_token_stride, args.tokens);
    const int64_t axes = args.axis_map.data != nullptr ? args.axis_map.axes : args.inv_freq.terms();
    if (axes > 1) reach.add(args.positions.axis_stride, axes);
    if (axes > 0) expect_inside(positions, reach, 0, "positions");
  }
  if (args.pairs == 0) return;
  if (args.inv_freq.data != nullptr && args.inv_freq.heads > 0) {
    Reach reach;
    reach.add(args.inv_freq.stride, args.pairs);
    if (args.inv_freq.heads > 1) reach.add(args.inv_freq.head_stride, args.inv_freq.heads);
    if (args.inv_freq.axes > 1) reach.add(args.inv_freq.axis_stride, args.inv_freq.axes);
    expect_inside(inv_freq, reach, 0, "inv_freq");
  }
  if (args.axis_map.data != nullptr) {
    for (int64_t p = 0; p < args.pairs; ++p) {
      POSENC_FUZZ_EXPECT(args.axis_map[p] >= 0 && args.axis_map[p] < args.axis_map.axes, "axis");
    }
  }
  if (args.cosine != nullptr) {
    for (const auto& [table, strides] :
         {std::pair(&cosine, args.cosine_strides), std::pair(&sine, args.sine_strides)}) {
      Reach reach;
      reach.add(strides[0], args.batch);
      reach.add(strides[1], args.tokens);
      reach.add(strides[2], args.pairs);
      expect_inside(*table, reach, 0, "table");
    }
  }
}

// --- Sinusoidal

SinusoidalSpec draw_spec(Input& input, int64_t dim) {
  SinusoidalSpec spec;
  spec.dim = input.byte() < 245 ? dim : input.below(40);
  spec.base = draw_number(input);
  spec.shift = draw_number(input);
  spec.scale = draw_number(input);
  static constexpr std::string_view kNames[] = {"interleaved", "sin_cos", "cos_sin", "x"};
  spec.layout = kNames[input.below(4)];
  return spec;
}

void expect_columns(const SinusoidalArgs& args, const Array& array, const void* data,
                    const int64_t* strides, int64_t step, const char* what) {
  if (args.positions_count() == 0 || args.pairs == 0) return;
  Reach reach;
  for (int i = 0; i < args.rank; ++i) reach.add(strides[i], args.shape[i]);
  reach.add(step, args.pairs);
  expect_inside(array, reach, first_of(array, data), what);
}

void try_sinusoidal(Input& input) {
  Arrays arrays(input);
  int64_t shape[kMaxRank];
  int rank = input.below(4);
  for (int i = 0; i < rank; ++i) shape[i] = input.below(6);
  const int64_t dim = 2 * input.below(7);
  const Dtype dtype = draw_any(input);
  const int kind = input.below(3);
  Array positions, out, x, inv_freq, axis_map;
  const Array* given = nullptr;
  SinusoidalArgs args;
  int64_t count = 0;
  if (kind == 0) {
    if (input.byte() < 200) {
      positions = draw_real_array(input, arrays, draw_position_dtype(input), rank, shape, 9);
      given = &positions;
    } else {
      count = input.below(9);
      shape[0] = count;
      rank = 1;
    }
    const SinusoidalSpec spec = draw_spec(input, dim);
    shape[rank++] = dim;
    disturb(input, rank, shape);
    out = arrays.described(dtype, rank, shape);
    check_sinusoidal_spec("sinusoidal", spec);
    args = check_sinusoidal("sinusoidal", given, count, spec, out);
  } else if (kind == 1) {
    int own = rank;
    int64_t of_positions[kMaxRank];
    std::copy_n(shape, rank, of_positions);
    if (input.flag() && rank > 0) {
      of_positions[0] = shape[rank - 1];
      own = 1;
    }
    disturb(input, own, of_positions);
    if (input.byte() < 200) {
      positions = draw_real_array(input, arrays, draw_position_dtype(input), own, of_positions, 9);
      given = &positions;
    }
    shape[rank++] = dim;
    x = arrays.described(dtype, rank, shape);
    disturb(input, rank, shape);
    out = input.flag() ? x : arrays.described(dtype, rank, shape);
    const SinusoidalSpec spec = draw_spec(input, dim);
    check_sinusoidal_spec("add_sinusoidal", spec);
    if (x.rank > 0 && spec.dim != x.shape[x.rank - 1]) return;  // the caller takes it from x
    args = check_add_sinusoidal("add_sinusoidal", x, given, spec, draw_number(input),
                                draw_number(input), out);
    expect_columns(args, x, args.x_sine, args.x_strides, args.x_step, "x");
    expect_columns(args, x, args.x_cosine, args.x_strides, args.x_step, "x");
  } else {
    const int64_t axes = 1 + input.below(3), pairs = dim / 2;
    const bool by_axis = input.flag();
    int64_t of_positions[kMaxRank];
    int own = 0;
    if (by_axis) of_positions[own++] = axes;
    std::copy_n(shape, rank, of_positions + own);
    own += rank;
    if (input.byte() < 200) {
      positions = draw_real_array(input, arrays, draw_position_dtype(input), own, of_positions, 9);
      given = &positions;
    } else {
      count = input.below(9);
      shape[0] = count;
      rank = 1;
    }
    int one = 1;
    int64_t of_pairs[kMaxRank] = {pairs};
    disturb(input, one, of_pairs);
    inv_freq = draw_real_array(input, arrays, input.flag() ? Dtype::kFloat32 : Dtype::kFloat64, one,
                               of_pairs, 3);
    one = 1;
    of_pairs[0] = pairs;
    disturb(input, one, of_pairs);
    axis_map = draw_real_array(input, arrays, draw_position_dtype(input), one, of_pairs,
                               static_cast<int>(axes) - 1);
    shape[rank++] = pairs;
    out = arrays.described(dtype, rank, shape);
    x = arrays.described(dtype, rank, shape);
    args = check_rotary_tables("rotary_tables", given, count, inv_freq,
                               by_axis ? &axis_map : nullptr, draw_number(input), out, x);
    if (args.pairs > 0) {
      Reach reach;
      reach.add(args.inv_freq.stride, args.pairs);
      expect_inside(inv_freq, reach, 0, "inv_freq");
    }
  }
  const Array& sine = kind == 2 ? x : out;
  expect_columns(args, out, args.cosine, args.cosine_strides, args.cosine_step, "cosine");
  expect_columns(args, sine, args.sine, args.sine_strides, args.sine_step, "sine");
  if (given != nullptr && args.positions_count() > 0) {
    Reach reach;
    for (int i = 0; i < args.rank; ++i) reach.add(args.position_strides[i], args.shape[i]);
    if (args.axis_map.data != nullptr && args.pairs > 0) {
      reach.add(args.positions.axis_stride, args.axis_map.axes);
    }
    expect_inside(positions, reach, 0, "positions");
  }
}

// --- Relative

void add_planes(Reach& reach, const Planes& planes, const int64_t* strides) {
  for (int i = 0; i < planes.rank; ++i) reach.add(strides[i], planes.shape[i]);
}

void expect_matrices(const Array& array, const Matrices& matrices, const Planes& planes,
                     int64_t rows, int64_t columns, const char* what) {
  if (planes.count(0, planes.rank) == 0 || rows == 0 || columns == 0) return;
  Reach reach;
  add_planes(reach, planes, matrices.plane_strides);
  reach.add(matrices.row_stride, rows);
  reach.add(matrices.column_stride, columns);
  expect_inside(array, reach, first_of(array, matrices.data), what);
}

int64_t draw_length(Input& input) {
  const uint8_t choice = input.byte();
  return choice < 250 ? choice % 8 : input.number<int64_t>();
}

void try_toeplitz(Input& input) {
  Arrays arrays(input);
  ToeplitzCall call;
  call.function = "toeplitz";
  call.grid_rank = 1 + (input.byte() < 80 ? input.below(kMaxGridRank) : 0);
  int64_t queries[kMaxGridRank], keys[kMaxGridRank], origin[kMaxGridRank];
  int64_t entries[kMaxGridRank], query_count = 1, key_count = 1;
  for (int i = 0; i < call.grid_rank; ++i) {
    queries[i] = draw_length(input);
    keys[i] = draw_length(input);
    const int64_t spare = input.below(4);
    origin[i] = input.byte() < 245 ? static_cast<int64_t>(static_cast<uint64_t>(queries[i]) - 1 +
                                                          static_cast<uint64_t>(spare))
                                   : input.number<int64_t>();
    const bool small = queries[i] >= 0 && queries[i] < 64 && keys[i] >= 0 && keys[i] < 64;
    entries[i] = small ? std::max<int64_t>(queries[i] + keys[i] - 1 + spare + input.below(3), 0)
                       : input.below(8);
    query_count = small ? query_count * queries[i] : 3;
    key_count = small ? key_count * keys[i] : 3;
  }
  call.q_len = queries;
  call.k_len = keys;
  call.origin = origin;
  int64_t shape[kMaxRank];
  int leading = input.below(4);
  for (int i = 0; i < leading; ++i) shape[i] = input.below(4);
  Array scores, diagonals, q_offset, out;
  // Diagonals have the last of the leading axes.
  int64_t of_diagonals[kMaxRank];
  const int own = input.below(leading + 1);
  int rank = 0;
  for (int i = leading - own; i < leading; ++i) {
    of_diagonals[rank++] = input.byte() < 230 ? shape[i] : 1;
  }
  for (int i = 0; i < call.grid_rank; ++i) of_diagonals[rank++] = entries[i];
  disturb(input, rank, of_diagonals);
  diagonals = arrays.described(draw_any(input), rank, of_diagonals);
  call.diagonals = &diagonals;
  if (input.flag()) {
    int64_t of_offset[kMaxRank];
    rank = input.below(leading + 1);
    std::copy_n(shape, rank, of_offset);
    disturb(input, rank, of_offset);
    q_offset = draw_real_array(input, arrays, draw_position_dtype(input), rank, of_offset, 3);
    call.q_offset = &q_offset;
  }
  rank = leading;
  shape[rank++] = query_count;
  shape[rank++] = key_count;
  disturb(input, rank, shape);
  const Dtype dtype = draw_any(input);
  scores = arrays.described(dtype, rank, shape);
  const bool sums = input.byte() < 80;
  ToeplitzArgs args;
  if (sums) {
    call.scores = &scores;
    args = check_diagonal_sums(call);
  } else {
    if (input.flag()) call.scores = &scores;
    disturb(input, rank, shape);
    out = input.flag() ? scores : arrays.described(dtype, rank, shape);
    call.out = &out;
    args = check_toeplitz(call);
    expect_matrices(out, args.out, args.planes, args.query_count(), args.key_count(), "out");
  }
  if (call.scores != nullptr) {
    expect_matrices(scores, args.in, args.planes, args.query_count(), args.key_count(), "in");
  }
  const int64_t planes = args.planes.count(0, args.planes.rank);
  if (planes == 0 || args.query_count() == 0 || args.key_count() == 0) return;
  Reach offsets;
  if (args.q_offset.data != nullptr) {
    add_planes(offsets, args.planes, args.q_offset_strides);
    expect_inside(q_offset, offsets, 0, "q_offset");
  }
  // Every plane's windows, by every value that q_offset has in the reach of its strides.
  const auto each_plane = [&](const auto& visit) {
    for (int64_t plane = 0; plane < planes; ++plane) {
      int64_t rest = plane, offset = 0;
      for (int i = args.planes.rank - 1; i >= 0; --i) {
        offset += rest % args.planes.shape[i] * args.q_offset_strides[i];
        rest /= args.planes.shape[i];
      }
      visit(args.origin_at(offset));
    }
  };
  each_plane([&](int64_t first) {
    Reach reach;
    __int128 at = 0;
    for (int i = 0; i < args.grid_rank; ++i) {
      const int64_t start = i == 0 ? first : args.origin[i];
      POSENC_FUZZ_EXPECT(
          start - (args.queries[i] - 1) >= 0 && start + args.keys[i] <= args.entries[i],
          "a window from entry %lld of %lld", static_cast<long long>(start),
          static_cast<long long>(args.entries[i]));
      reach.add(args.entry_strides[i], args.entries[i]);
    }
    add_planes(reach, args.planes, args.diagonal_strides);
    expect_inside(diagonals, reach, at, "diagonals");
  });
}

void try_lookup(Input& input) {
  Arrays arrays(input);
  RelativeCall call;
  call.function = "relative";
  const bool gather = input.flag();
  const int leading = input.below(4);
  int64_t shape[kMaxRank];
  for (int i = 0; i < leading; ++i) shape[i] = input.below(4);
  const int64_t queries = input.below(8), keys = input.below(8), width = input.below(8);
  const Dtype dtype = draw_any(input);
  int rank = leading;
  shape[rank++] = queries;
  shape[rank++] = gather ? width : keys;
  disturb(input, rank, shape);
  const Array in = arrays.described(dtype, rank, shape);
  call.in = &in;
  call.size = input.byte() < 245 ? (gather ? keys : width) : input.number<int64_t>();
  const int64_t spare = input.below(4);
  call.origin = input.byte() < 240 ? queries - 1 + spare : input.number<int64_t>();
  call.scale = draw_number(input);
  call.has_missing = input.flag();
  call.missing = input.byte() < 240 ? -1 : input.number<int64_t>();
  Array index, q_offset, content, out;
  if (input.byte() < 180) {
    int64_t entries[kMaxRank] = {std::max<int64_t>(queries + keys - 1 + spare + input.below(3), 0)};
    rank = 1;
    disturb(input, rank, entries);
    index = draw_real_array(input, arrays, draw_position_dtype(input), rank, entries,
                            static_cast<int>(std::max<int64_t>(width - 1, 0)));
    call.index = &index;
  }
  if (input.flag()) {
    int64_t of_offset[kMaxRank];
    rank = input.below(leading + 1);
    std::copy_n(shape, rank, of_offset);
    disturb(input, rank, of_offset);
    q_offset = draw_real_array(input, arrays, draw_position_dtype(input), rank, of_offset, 3);
    call.q_offset = &q_offset;
  }
  rank = leading;
  for (int i = 0; i < leading; ++i) shape[i] = i < in.rank ? in.shape[i] : 1;
  shape[rank++] = queries;
  shape[rank++] = gather ? keys : width;
  disturb(input, rank, shape);
  if (gather && input.flag()) {
    content = arrays.described(dtype, rank, shape);
    call.content = &content;
  }
  disturb(input, rank, shape);
  out = gather && call.content != nullptr && input.flag() ? content
                                                          : arrays.described(dtype, rank, shape);
  call.out = &out;
  const RelativeArgs args = gather ? check_relative_gather(call) : check_relative_scatter(call);
  expect_matrices(gather ? in : out, args.by_column, args.planes, args.queries, args.width,
                  "by column");
  expect_matrices(gather ? out : in, args.by_key, args.planes, args.queries, args.keys, "by key");
  if (call.content != nullptr) {
    expect_matrices(content, args.content, args.planes, args.queries, args.keys, "content");
  }
  const int64_t planes = args.planes.count(0, args.planes.rank);
  if (planes == 0 || args.queries == 0 || args.keys == 0) return;
  for (int64_t plane = 0; plane < planes; ++plane) {
    int64_t rest = plane, offset = 0;
    for (int i = args.planes.rank - 1; i >= 0; --i) {
      offset += rest % args.planes.shape[i] * args.q_offset_strides[i];
      rest /= args.planes.shape[i];
    }
    if (args.q_offset.data != nullptr) {
      Reach reach;
      expect_inside(q_offset, reach, offset, "q_offset");
    }
    const int64_t first = args.origin_at(offset);
    if (args.index.data == nullptr) continue;
    POSENC_FUZZ_EXPECT(first - (args.queries - 1) >= 0 && first + args.keys <= args.entries,
                       "a window from entry %lld of %lld", static_cast<long long>(first),
                       static_cast<long long>(args.entries));
  }
  for (int64_t entry = 0; args.index.data != nullptr && entry < args.entries; ++entry) {
    const int64_t column = args.index[entry];
    POSENC_FUZZ_EXPECT(column < args.width && (column >= 0 || call.has_missing), "column %lld",
                       static_cast<long long>(column));
  }
}

}  // namespace
}  // namespace posenc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  posenc::fuzz::Input input(data, size);
  try {
    switch (input.below(5)) {
      case 0:
      case 1:
        posenc::fuzz::try_rotary(input);
        break;
      case 2:
        posenc::fuzz::try_sinusoidal(input);
        break;
      case 3:
        posenc::fuzz::try_toeplitz(input);
        break;
      default:
        posenc::fuzz::try_lookup(input);
    }
  } catch (const posenc::Error& error) {
    POSENC_FUZZ_EXPECT(!error.function.empty() && !error.argument.empty() &&
                           !error.expected.empty() && !error.got.empty(),
                       "an error that does not say it all: %s", error.message().c_str());
  }
  return 0;
}
