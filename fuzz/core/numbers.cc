// Phases, frequencies and 16-bit floats against wider arithmetic: integers of any size, long
// double.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/frequency.h"
#include "core/half.h"
#include "core/phase.h"
#include "input.h"

namespace posenc::fuzz {
namespace {

using Wide = unsigned __int128;

constexpr long double kTau = 6.283185307179586476925286766559005768L;
// 1 / (2 pi), 384 bits behind the point in words of 32, most significant first.
constexpr uint32_t kInverseTau[12] = {0x28be60db, 0x9391054a, 0x7f09d5f4, 0x7d4d3770,
                                      0x36d8a566, 0x4f10e410, 0x7f9458ea, 0xf7aef158,
                                      0x6dc91b8e, 0x909374b8, 0x01924bba, 0x82746487};

// |w| / 2 pi * 2^64 in units of 2^-32: whole turns, fractions of a turn and 32 bits below.
struct ExactTurns {
  uint64_t whole, fraction;
  uint32_t below;
};

ExactTurns exact_turns(double w) {
  int exponent = 0;
  const double mantissa = std::frexp(std::fabs(w), &exponent);  // 0.5 .. 1
  const uint64_t bits = static_cast<uint64_t>(std::ldexp(mantissa, 53));
  exponent -= 53;
  // bits * kInverseTau, 14 words of 32 bits, least significant first; the point is at bit 384.
  uint32_t product[16] = {};
  for (int half = 0; half < 2; ++half) {
    const uint64_t factor = half == 0 ? bits & 0xffffffffu : bits >> 32;
    uint64_t carry = 0;
    for (int i = 0; i < 12; ++i) {
      const uint64_t sum = factor * kInverseTau[11 - i] + product[i + half] + carry;
      product[i + half] = static_cast<uint32_t>(sum);
      carry = sum >> 32;
    }
    for (int i = 12 + half; carry != 0; ++i) {
      carry += product[i];
      product[i] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
  }
  // The bits from 2^-96 turns on: shift by 384 - 96 - exponent.
  const int shift = 384 - 96 - exponent;
  const auto word = [&](int k) -> uint32_t {  // k-th of the result
    const int from = shift + 32 * k;
    if (from >= 512 || from <= -32) return 0;
    const int at = from >= 0 ? from / 32 : -1, bit = from - 32 * at;
    const uint64_t low = at >= 0 ? product[at] : 0, high = at < 15 ? product[at + 1] : 0;
    return static_cast<uint32_t>((low | high << 32) >> bit);
  };
  return {word(3) | static_cast<uint64_t>(word(4)) << 32,
          word(1) | static_cast<uint64_t>(word(2)) << 32, word(0)};
}

void try_turns(double w) {
  if (!(std::fabs(w) < kMaxFrequency)) return;
  if (std::fabs(w) < 1e-300) return;  // subnormal numbers count as 0
  const Turns turns = turns_from_radians(to_binary(w));
  const ExactTurns exact = exact_turns(w);
  const Wide magnitude = static_cast<Wide>(exact.whole) << 64 | exact.fraction;
  Wide actual = static_cast<Wide>(turns.whole) << 64 | turns.fraction;
  if (w < 0) actual = ~actual + 1;
  // The nearest, but for ties that the last of 128 bits would decide.
  const bool up = actual == magnitude + 1, down = actual == magnitude;
  POSENC_FUZZ_EXPECT((down && exact.below <= 0x80000001u) || (up && exact.below >= 0x7fffffffu),
                     "turns of %a", w);
}

void try_position(double p, Turns turns) {
  if (!(std::fabs(p) < 9223372036854775808.0)) return;
  const Position position = split_position(to_binary(p));
  const bool subnormal = std::fabs(p) < 2.3e-308;
  // p * 2^64, cut towards zero: exact, since a double has 53 bits.
  const double scaled = subnormal ? 0.0 : std::trunc(std::ldexp(p, 64));
  const __int128 expected = static_cast<__int128>(scaled);
  const __int128 actual = static_cast<__int128>(
      static_cast<Wide>(static_cast<uint64_t>(position.integer)) << 64 | position.fraction);
  POSENC_FUZZ_EXPECT(actual == expected, "position %a", p);
  // phase = (p * 2^64) * (T * 2^64) / 2^64 mod 2^64, T of two words.
  const Wide whole_part = static_cast<Wide>(position.fraction) * turns.whole;
  const Wide product = static_cast<Wide>(position.fraction) * turns.fraction;
  const uint64_t expected_phase = static_cast<uint64_t>(
      static_cast<Wide>(static_cast<uint64_t>(position.integer)) * turns.fraction +
      (product >> 64) + whole_part);
  POSENC_FUZZ_EXPECT(phase(position, turns) == expected_phase, "phase at %a", p);
}

void try_phase(uint64_t phase) {
  const long double angle =
      static_cast<long double>(static_cast<int64_t>(phase)) * (kTau / 2) / 9223372036854775808.0L;
  const long double sine = std::sin(angle), cosine = std::cos(angle);
  const SinCos<float> narrow = sincos<float>(phase);
  const SinCos<double> wide = sincos<double>(phase);
  POSENC_FUZZ_EXPECT(
      std::fabs(narrow.sine - sine) <= 9e-8L && std::fabs(narrow.cosine - cosine) <= 9e-8L,
      "float at phase %llx", static_cast<unsigned long long>(phase));
  POSENC_FUZZ_EXPECT(
      std::fabs(wide.sine - sine) <= 3e-16L && std::fabs(wide.cosine - cosine) <= 3e-16L,
      "double at phase %llx", static_cast<unsigned long long>(phase));
}

bool is_nan(uint16_t bits, int mantissa) {
  return (bits & 0x7fff) > (((1 << (15 - mantissa)) - 1) << mantissa);
}

void try_half(uint32_t bits) {
  const float value = float_from_bits(bits);
  const auto native = [](auto number) {
    uint16_t result;
    std::memcpy(&result, &number, sizeof result);
    return result;
  };
  const uint16_t half = round_to<Float16>(value).bits;
  const uint16_t expected = native(static_cast<_Float16>(value));
  POSENC_FUZZ_EXPECT(half == expected || (is_nan(half, 10) && value != value), "float16 of %a",
                     static_cast<double>(value));
  // The nearest bfloat16, ties to even: by distance, of those on both sides.
  const uint16_t brain = round_to<BFloat16>(value).bits;
  if (value != value) {
    POSENC_FUZZ_EXPECT(is_nan(brain, 7), "bfloat16 of NaN");
  } else {
    const uint32_t low = bits & 0xffff0000u, rest = bits & 0xffffu;
    const bool up = rest > 0x8000u || (rest == 0x8000u && (low >> 16 & 1) != 0);
    POSENC_FUZZ_EXPECT(brain == static_cast<uint16_t>((low >> 16) + up), "bfloat16 of %a",
                       static_cast<double>(value));
  }
  const uint16_t narrow = static_cast<uint16_t>(bits);
  _Float16 same;
  std::memcpy(&same, &narrow, sizeof same);
  const float widened = to_float(Float16{narrow});
  POSENC_FUZZ_EXPECT(
      widened == static_cast<float>(same) || (widened != widened && is_nan(narrow, 10)),
      "float of float16 %x", narrow);
}

// scale * base^(-i / (pairs - shift)): long double is good to some units of 2^-64 of itself.
void try_frequencies(Input& input) {
  const int64_t pairs = 1 + input.number<uint16_t>() % (input.flag() ? 64 : 5000);
  const double base = std::ldexp(1.0 + input.byte() / 256.0, input.below(60) - 20);
  static constexpr double kShifts[] = {0.0, 0.5, -1.0, -100.0};
  const double shift = std::min(kShifts[input.below(4)], static_cast<double>(pairs) - 0.5);
  const double scale =
      std::ldexp(1.0 + input.byte() / 256.0, input.below(40) - 30) * (input.flag() ? 1 : -1);
  const long double exponent =
      -std::log(static_cast<long double>(base)) / (static_cast<long double>(pairs) - shift);
  if (std::fabs(scale) *
          std::exp(std::max<long double>(exponent * static_cast<long double>(pairs - 1), 0)) >
      1e12L)
    return;
  const int64_t looked_at = input.number<uint16_t>() % pairs;
  sinusoidal_turns(pairs, base, shift, scale, [&](int64_t i, Turns turns) {
    if (i != looked_at && i != 0 && i != pairs - 1) return;
    const long double w =
        static_cast<long double>(scale) * std::exp(exponent * static_cast<long double>(i));
    const long double expected = w / kTau * 18446744073709551616.0L;
    const __int128 fixed =
        static_cast<__int128>(static_cast<Wide>(turns.whole) << 64 | turns.fraction);
    const long double error = std::fabs(static_cast<long double>(fixed) - expected);
    const long double relative =
        (8 + 4 * std::fabs(exponent * static_cast<long double>(i))) / 18446744073709551616.0L;
    POSENC_FUZZ_EXPECT(error <= 0.51L + std::fabs(expected) * relative,
                       "pair %lld of %lld, base %a, shift %a, scale %a: off by %Lg of %Lg",
                       static_cast<long long>(i), static_cast<long long>(pairs), base, shift, scale,
                       error, expected);
  });
}

}  // namespace
}  // namespace posenc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace posenc::fuzz;
  Input input(data, size);
  switch (input.below(8)) {
    case 0:
      try_frequencies(input);
      break;
    case 1:
    case 2:
      try_turns(input.number<double>());
      break;
    case 3:
      // Exponents that matter.
      try_turns(std::ldexp(1.0 + input.number<uint64_t>() * 0x1p-64, input.below(130) - 66));
      break;
    case 4: {
      const double position =
          input.flag()
              ? input.number<double>()
              : std::ldexp(static_cast<double>(input.number<int64_t>()), -input.below(140));
      const uint64_t fraction = input.number<uint64_t>(), whole = input.number<uint64_t>();
      try_position(position, {fraction, whole});
      break;
    }
    case 5:
      try_phase(input.number<uint64_t>());
      break;
    default:
      try_half(input.number<uint32_t>());
  }
  return 0;
}
