"""The exact phase: sines and cosines against 200-bit arithmetic, on every SIMD target.

The bounds, without the rounding of frequencies far away:
    float32             1.2e-7 absolute
    float16, bfloat16   the correctly rounded value, but where the exact one is within 2e-7 of
                        where rounding changes
    float64             4e-16 + |position| * 2^-60
"""

from __future__ import annotations

import math
import shutil
import subprocess
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import oracle
import pytest
from oracle import DTYPES, Exact
from places import CSRC

import posenc_native as pn

POWERS = np.array(
    [
        *(0, 3, 998, 4095, 131071, 1_000_003, -12345),
        *(sign * 2**k for k in range(32) for sign in (1, -1)),
        *(sign * (2**31 + step) for sign in (1, -1) for step in (1, -1)),
    ]
)
# Negative ones close to 0 have bits below those of the integer that they are counted from.
FRACTIONAL = np.array(
    [
        *(0.5, 998.39, 1e6 + 0.25, -0.5, -998.39, -1e6 - 0.25, 0.1, -0.1, -0.3, 1e-3, -1e-3),
        *(1e-10, -1e-10, 2.0**-40, -(2.0**-40), 2.0**28 + 0.125, -(2.0**28) - 0.125),
    ]
)
TINY = np.array([sign * 10.0**-k for k in (12, 15, 16, 17, 19, 20, 30, 300) for sign in (1, -1)])
BASES = [1e4, 5e5, 1e6]
DIM = 128
NERF = {"dim": 20, "base": 2.0**-10, "scale": math.pi}  # pi 2^i for i < 10: up to 256 turns
NERF_POSITIONS = np.concatenate(
    [np.linspace(-1, 1, 101), FRACTIONAL[:-2], [1 / 3, -1 / 3, 12345.678, -12345.678]]
)


@lru_cache(maxsize=32)
def _exact_table(positions: tuple[float, ...], options: tuple[tuple[str, float], ...]) -> Exact:
    frequencies = oracle.exact_frequencies(**dict(options))
    return oracle.concatenate(list(oracle.exact_sincos(positions, frequencies)))


def exact_table(positions: np.ndarray, **options: float) -> Exact:
    """[sin | cos]; computed once for all targets and dtypes."""
    return _exact_table(tuple(positions.tolist()), tuple(sorted(options.items())))


def assert_exact(actual: np.ndarray, exact: Exact, positions: np.ndarray) -> None:
    """The bound of the dtype of `actual`, whose first axis are the positions."""
    assert actual.shape == exact.high.shape
    if actual.dtype.itemsize == 2:
        worst = oracle.distance_to_rounding_interval(actual, exact).max()
        assert worst <= 2e-7
    elif actual.dtype == np.float32:
        worst = exact.error(actual).max()
        assert worst <= 1.2e-7
    else:
        per_position = np.abs(positions.astype(np.float64)) * 2.0**-60
        worst = (exact.error(actual) - per_position[:, None]).max()
        assert worst <= 4e-16


def table(positions: np.ndarray, dtype: str, **options: float) -> np.ndarray:
    result = pn.sinusoidal(positions, layout="sin_cos", dtype=DTYPES[dtype], **options)
    assert result.dtype == DTYPES[dtype]
    return result


# Sinusoidal tables: exact for the mathematical frequencies


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("base", BASES)
def test_every_power_of_two(target, base, dtype):
    exact = exact_table(POWERS, dim=DIM, base=base)
    assert_exact(table(POWERS, dtype, dim=DIM, base=base), exact, POWERS)


@pytest.mark.parametrize("base", BASES)
def test_far_away_the_rounding_of_frequencies_shows_and_no_more(target, base):
    positions = np.array([2**38, -(2**38), 2**38 - 1, 2**45 + 1, 2**52, -(2**52) + 3])
    exact = exact_table(positions, dim=DIM, base=base)
    # A frequency is off by half of 2^-64 turns at most.
    rounding = np.abs(positions.astype(np.float64)) * 2 * np.pi * 2.0**-65
    error = exact.error(table(positions, "float32", dim=DIM, base=base))
    assert (error <= 7.2e-8 + rounding[:, None]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position_dtype", ["float32", "float64"])
@pytest.mark.parametrize("base", BASES)
def test_fractional_positions(target, base, position_dtype, dtype):
    positions = FRACTIONAL.astype(position_dtype)
    exact = exact_table(positions, dim=DIM, base=base)
    assert_exact(table(positions, dtype, dim=DIM, base=base), exact, positions)


@pytest.mark.parametrize("dtype", DTYPES)
def test_positions_next_to_zero(target, dtype):
    exact = exact_table(TINY, dim=DIM, base=1e4)
    assert_exact(table(TINY, dtype, dim=DIM, base=1e4), exact, TINY)


@pytest.mark.parametrize("dtype", DTYPES)
def test_frequencies_above_one_turn_a_position(target, dtype):
    exact = exact_table(NERF_POSITIONS, **NERF)
    assert_exact(table(NERF_POSITIONS, dtype, **NERF), exact, NERF_POSITIONS)
    integers = POWERS[np.abs(POWERS) < 2**40]
    exact = exact_table(integers, **NERF)
    assert_exact(table(integers, dtype, **NERF), exact, integers)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "options",
    [
        {"dim": DIM, "base": 1e4, "shift": 1.0},
        {"dim": DIM, "base": 1e4, "shift": 0.3, "scale": 0.37},
        {"dim": DIM, "base": 1e4, "shift": -5.25, "scale": -1000.0},
        {"dim": 30, "base": 0.9},
        {"dim": 10, "base": 1.0, "scale": 1 / 3},
        {"dim": 2, "base": 1e4, "scale": 0.01},
        {"dim": 4, "base": 1e300},
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()),
)
def test_shift_and_scale(target, options, dtype):
    assert_exact(table(POWERS, dtype, **options), exact_table(POWERS, **options), POWERS)


def test_small_angles_keep_their_relative_accuracy(target):
    positions = np.array([1, 2, 5, -7])
    options = {"dim": 64, "base": 1e8}
    exact = exact_table(positions, **options)
    for dtype, bound in {"float32": 4 * 2.0**-24, "float64": 1e-9}.items():
        # In float64 the frequency 1e-8, rounded to 2^-64 turn, is the limit.
        sine = table(positions, dtype, **options)[:, :32]
        error = np.abs(exact.minus(table(positions, dtype, **options).astype(np.float64)))[:, :32]
        assert np.all(error <= bound * np.abs(sine.astype(np.float64)))


def test_errors_are_as_small_as_documented(target):
    """9e-8 in float32 and 3e-16 in float64: what the tolerances of all other tests build on."""
    rng = np.random.default_rng(17)
    positions = rng.integers(-(2**63), 2**63 - 1, 500_000)
    inv_freq = np.array([0.7])
    exact = pn.rotary_tables(positions, inv_freq, dtype=np.float64)
    for actual, near in zip(pn.rotary_tables(positions, inv_freq), exact, strict=True):
        assert np.abs(actual - near).max() <= 9e-8
    some = positions[:5000]
    truth = _exact_sincos_of_turns(tuple(some.tolist()), oracle.fixed_turns(0.7))
    for actual, other in zip(exact[::-1], truth, strict=True):
        assert other.error(actual[:5000]).max() <= 3e-16


@pytest.mark.parametrize("dtype", oracle.HALF_DTYPES)
def test_angles_in_two_parts_are_as_exact_as_documented(target, dtype):
    """2e-7 in 16-bit formats: anchors and steps of any angle."""
    positions = np.random.default_rng(18).integers(-(2**63), 2**63 - 1, 20_000)
    inv_freq = np.array([0.7, 1.9, 3.1, 1e-3, -0.05])
    exact = pn.rotary_tables(positions, inv_freq, dtype=np.float64)
    tables = pn.rotary_tables(positions, inv_freq, dtype=DTYPES[dtype])
    for actual, near in zip(tables, exact, strict=True):
        assert_exact(actual, Exact(near, 0 * near), positions)


@lru_cache(maxsize=1)
def _exact_sincos_of_turns(positions: tuple[int, ...], turns: int) -> tuple[Exact, Exact]:
    return oracle.exact_sincos_of_turns(positions, [turns])


EXTREMES = [2**62, -(2**62), 2**62 + 1, -(2**62) - 12345, 2**63 - 1, -(2**63), -(2**63) + 1]


@pytest.mark.parametrize(
    ("positions", "dtype"),
    [
        (EXTREMES, np.int64),
        ([2**62, 2**63, 2**64 - 1, 2**63 + 12345], np.uint64),
        ([2.0**62, -(2.0**62), -(2.0**63) + 1024, 2.0**62 * 1.7], np.float64),
        ([2.0**62, -(2.0**62), 2.0**62 * 1.75], np.float32),
        ([2**32 - 1, 2**31], np.uint32),
        ([-(2**31), 2**31 - 1], np.int32),
        ([-(2**15), 2**15 - 1], np.int16),
        ([2**16 - 1], np.uint16),
        ([-128, 127], np.int8),
        ([255, 128], np.uint8),
    ],
    ids=["int64", "uint64", "float64", "float32", "uint32", "int32", "int16", "uint16", "int8",
         "uint8"],
)  # fmt: skip
def test_positions_are_exact_over_the_range_of_their_dtype(target, positions, dtype):
    # The product of a position with the frequency in units of 2^-64 turn is exact, so that is
    # what is compared with: rounding the frequency itself loses 4 radians at 2^62.
    array = np.array(positions, dtype)
    turns = [oracle.fixed_turns(w) for w in oracle.exact_frequencies(DIM, 1e4)]
    exact = oracle.concatenate(list(oracle.exact_sincos_of_turns(array.tolist(), turns)))
    for name in DTYPES:
        assert_exact(table(array, name, dim=DIM), exact, np.zeros(len(array)))


# Rotary tables: exact for the frequencies given


def inverse_frequencies(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(5)
    plain = 5e5 ** (-np.arange(32) / 32)
    others = [0.0, -0.0, -0.7, 1e-30, -1e-18, 2 * math.pi, math.pi, 3.0, 1234.5, -9e5, 2.0**40]
    spread = rng.choice([-1, 1], 21) * np.exp(rng.uniform(-30, 10, 21))
    return np.concatenate([plain, others, spread]).astype(dtype)


@lru_cache(maxsize=8)
def _exact_rotary(positions: tuple[float, ...], dtype: str) -> tuple[Exact, Exact]:
    return oracle.exact_sincos(positions, inverse_frequencies(dtype).tolist())


@pytest.mark.parametrize("frequency_dtype", ["float32", "float64"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_tables(target, dtype, frequency_dtype):
    sines, cosines = _exact_rotary(tuple(POWERS.tolist()), frequency_dtype)
    cos, sin = pn.rotary_tables(POWERS, inverse_frequencies(frequency_dtype), dtype=DTYPES[dtype])
    assert cos.dtype == sin.dtype == DTYPES[dtype]
    assert_exact(cos, cosines, POWERS)
    assert_exact(sin, sines, POWERS)


@pytest.mark.parametrize("position_dtype", ["float32", "float64"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_tables_at_fractional_positions(target, dtype, position_dtype):
    positions = FRACTIONAL.astype(position_dtype)
    # A position is cut at 2^-64, which is 4e-16 radians and more at frequencies above 2^13.
    keep = np.abs(inverse_frequencies("float64")) < 1000
    sines, cosines = _exact_rotary(tuple(positions.tolist()), "float64")
    cos, sin = pn.rotary_tables(
        positions, inverse_frequencies("float64")[keep], dtype=DTYPES[dtype]
    )
    assert_exact(cos, Exact(cosines.high[:, keep], cosines.low[:, keep]), positions)
    assert_exact(sin, Exact(sines.high[:, keep], sines.low[:, keep]), positions)


def test_rotary_tables_at_extreme_positions(target):
    frequencies = inverse_frequencies("float64")
    turns = [oracle.fixed_turns(w) for w in frequencies]
    sines, cosines = oracle.exact_sincos_of_turns(EXTREMES, turns)
    for name in ("float32", "float64"):
        cos, sin = pn.rotary_tables(np.array(EXTREMES), frequencies, dtype=name)
        assert_exact(cos, cosines, np.zeros(len(EXTREMES)))
        assert_exact(sin, sines, np.zeros(len(EXTREMES)))


def test_scale_multiplies_rotary_tables(target):
    frequencies = 1e4 ** (-np.arange(16) / 16)
    sines, cosines = oracle.exact_sincos(POWERS.tolist(), frequencies.tolist())
    for name in DTYPES:
        cos, sin = pn.rotary_tables(POWERS, frequencies, scale=1.3466, dtype=DTYPES[name])
        more = np.abs(POWERS[:, None]) * oracle.PER_POSITION
        more = more + (oracle.IN_TWO_PARTS * 1.3466 if DTYPES[name].itemsize == 2 else 0)
        oracle.assert_close(cos, cosines.high * 1.3466, 1.3466, more)
        oracle.assert_close(sin, sines.high * 1.3466, 1.3466, more)


# The same bits from csrc/core/phase.h, one number at a time

WITHOUT_FUSED_MULTIPLY_ADD = ("SSE2", "SSSE3", "SSE4")


@pytest.fixture(scope="module")
def phase_bits(tmp_path_factory):
    """phase_bits.cc, compiled: (mode, *arguments, input) -> output in raw memory."""
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    if not CSRC.is_dir():
        pytest.skip("the C++ sources are not beside the tests")
    program = tmp_path_factory.mktemp("phase") / "phase_bits"
    source = Path(__file__).with_name("phase_bits.cc")
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-I", CSRC, source, "-o", program], check=True)

    def run(*arguments: object, data: bytes = b"") -> bytes:
        command = [program, *map(str, arguments)]
        return subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout

    return run


def split_by_program(phase_bits, positions: np.ndarray) -> np.ndarray:
    """Positions as records (integer, fraction in units of 2^-64)."""
    if positions.dtype.kind == "i":
        records = np.zeros(len(positions), "i8,u8")
        records["f0"] = positions
        return records
    return np.frombuffer(phase_bits("split", data=positions.tobytes()), "i8,u8")


@pytest.mark.parametrize(
    "positions", [POWERS, FRACTIONAL, np.array(EXTREMES)], ids=["powers", "fractional", "extreme"]
)
def test_vectors_and_scalars_give_the_same_bits(phase_bits, target, positions):
    if target in WITHOUT_FUSED_MULTIPLY_ADD:
        pytest.skip(f"{target} has no fused multiply-add")
    frequencies = inverse_frequencies("float64")
    records = np.empty(
        (len(positions), len(frequencies)), [("position", "i8,u8"), ("frequency", "f8")]
    )
    records["position"] = split_by_program(phase_bits, positions)[:, None]
    records["frequency"] = frequencies
    scalars = np.frombuffer(
        phase_bits("sincos", data=records.tobytes()),
        [("sin", "f8"), ("cos", "f8"), ("sin_float", "f4"), ("cos_float", "f4")],
    ).reshape(records.shape)
    cos, sin = pn.rotary_tables(positions, frequencies, dtype=np.float64)
    oracle.assert_same_bits(sin, scalars["sin"])
    oracle.assert_same_bits(cos, scalars["cos"])
    cos, sin = pn.rotary_tables(positions, frequencies, dtype=np.float32)
    oracle.assert_same_bits(sin, scalars["sin_float"])
    oracle.assert_same_bits(cos, scalars["cos_float"])


def edge_frequencies() -> np.ndarray:
    rng = np.random.default_rng(11)
    spread = np.exp2(rng.uniform(-80, 62.9, 2000)) * rng.choice([-1, 1], 2000)
    # Around the exponents at which turns_from_radians changes its ways, and the ends of doubles.
    exponents = [-1074, -1023, -1022, -140, -130, -65, -64, -63, -62, -61, -12, -11, -10, -1, 0, 1]
    powers = np.ldexp(1.0, np.array([*exponents, 2, 10, 51, 52, 53, 61, 62]))
    near = np.concatenate([powers, np.nextafter(powers, 0), np.nextafter(powers, np.inf)])
    near = near[near < 2.0**63]
    return np.concatenate([spread, near, -near, [0.0, -0.0, 2 * math.pi, math.pi, math.pi / 2]])


def signed_turns(raw: bytes) -> list[int]:
    pairs = np.frombuffer(raw, np.uint64).reshape(-1, 2).tolist()
    values = [fraction + whole * 2**64 for fraction, whole in pairs]
    return [value - 2**128 if value >= 2**127 else value for value in values]


def test_frequencies_are_rounded_to_the_nearest_turns(phase_bits):
    frequencies = edge_frequencies()
    turns = signed_turns(phase_bits("turns", data=frequencies.tobytes()))
    assert turns == [oracle.fixed_turns(w) for w in frequencies.tolist()]


@pytest.mark.parametrize(
    ("dim", "base", "shift", "scale"),
    [(128, 1e4, 0, 1), (128, 5e5, 1, 0.37), (600, 1e6, 0.25, -3.5), (2, 10, 0, 1e-3),
     (20, 2.0**-10, 0, math.pi), (64, 1e-6, -3, 2.0**20), (20000, 1e4, 0, 1)],
)  # fmt: skip
def test_table_frequencies_are_rounded_to_the_nearest_turns(phase_bits, dim, base, shift, scale):
    output = phase_bits(
        "table", dim // 2, *(value.hex() for value in map(float, (base, shift, scale)))
    )
    exact = oracle.exact_frequencies(dim, base, shift, scale)
    for actual, expected in zip(signed_turns(output), map(oracle.fixed_turns, exact), strict=True):
        # About 100 bits are carried: far above a thousand turns a position the last may be off.
        assert abs(actual - expected) <= (abs(expected) >= 2**76)


def test_positions_are_split_exactly(phase_bits):
    rng = np.random.default_rng(3)
    spread = np.exp2(rng.uniform(-70, 62.9, 500)) * rng.choice([-1, 1], 500)
    positions = np.concatenate(
        [spread, FRACTIONAL, TINY, [0.0, -0.0, -(2.0**63) + 1024, -(2.0**63)]]
    )
    for position, (integer, fraction) in zip(
        positions.tolist(), split_by_program(phase_bits, positions).tolist(), strict=True
    ):
        # Cut at 2^-64, whichever way.
        units = Fraction(position) * 2**64
        assert abs(integer * 2**64 + fraction - units) < 1, position
