"""Plain operations on NumPy arrays against 200-bit arithmetic and rotations written as loops."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from rotating import turned_by

from posenc_native.core.frequencies.scaling import rotary_frequencies
from posenc_native.engines.plain import arrays as reference
from posenc_native.engines.plain import phases
from posenc_native.engines.plain.numbers import round_once

POWERS = [sign * 2**k for k in range(32) for sign in (1, -1)]
FRACTIONAL = [0.5, 998.39, 1e6 + 0.25, -0.5, -998.39, 2.0**-40, 2.0**40 + 0.125]
BASES = [1e4, 5e5, 1e6]


def table(positions, dim=128, base=1e4, layout="sin_cos", shift=0.0, scale=1.0, dtype="float64"):
    """reference.sinusoidal with defaults; positions may be a list."""
    if not isinstance(positions, (int, np.ndarray)):
        positions = np.array(positions)
    dtype = bfloat16() if dtype == "bfloat16" else dtype
    return reference.sinusoidal(positions, dim, base, layout, shift, scale, dtype, None)


def bfloat16():
    return np.dtype(pytest.importorskip("ml_dtypes", reason="bfloat16 of NumPy").bfloat16)


def exact_table(positions, dim=128, base=1e4, shift=0.0, scale=1.0):
    """[sin | cos] in 200-bit arithmetic, as an object array."""
    with mpmath.workprec(200):
        exponent = 1 / (mpmath.mpf(dim) / 2 - mpmath.mpf(shift))
        frequencies = [scale * mpmath.mpf(base) ** (-i * exponent) for i in range(dim // 2)]
        rows = []
        for position in positions:
            pairs = [mpmath.cos_sin(mpmath.mpf(position) * w) for w in frequencies]
            rows.append([sin for _, sin in pairs] + [cos for cos, _ in pairs])
        return np.array(rows, dtype=object)


def worst_error(actual, exact, positions, per_position):
    with mpmath.workprec(200):
        errors = np.abs(actual.astype(np.float64).astype(object) - exact).astype(np.float64)
    return (errors - np.abs(np.array(positions, dtype=np.float64))[:, None] * per_position).max()


# Accuracy


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("positions", [POWERS, FRACTIONAL], ids=["powers of two", "fractional"])
def test_sine_and_cosine_are_exact(base, positions):
    exact = exact_table(positions, base=base)
    assert worst_error(table(positions, base=base), exact, positions, 2.0**-60) <= 4e-16
    single = table(positions, base=base, dtype="float32")
    assert worst_error(single, exact, positions, 2.0**-60) <= 1.2e-7


def test_shift_and_scale_are_exact():
    options = {"base": 1e4, "shift": 1.0, "scale": 0.37}
    exact = exact_table(POWERS, **options)
    assert worst_error(table(POWERS, **options), exact, POWERS, 2.0**-60) <= 4e-16


def test_frequencies_of_many_turns_a_position():
    options = {"dim": 32, "base": 0.5, "scale": 2.0**10 * math.pi}
    positions = [0.3, -0.7, 1.1, 12345.678, -5]
    exact = exact_table(positions, **options)
    assert worst_error(table(positions, **options), exact, positions, 2.0**-60) <= 4e-16


def test_every_int64_and_uint64_is_a_position():
    positions = [-(2**63), -(2**62) - 1, 2**62 + 1, 2**63 - 1, 2**64 - 1]
    frequency = 0.7
    (turns,) = phases.fixed_point((frequency,))
    with mpmath.workprec(200):
        assert abs(turns - mpmath.mpf(frequency) / (2 * mpmath.pi) * 2**64) <= 0.5
        angles = [2 * mpmath.pi * (p * turns % 2**64) / 2**64 for p in positions]
        expected = [[float(f(angle)) for angle in angles] for f in (mpmath.cos, mpmath.sin)]
    for some, dtype in [(slice(0, 4), np.int64), (slice(2, 5), np.uint64)]:
        cos, sin = reference.rotary_tables(
            np.array(positions[some], dtype), np.array([frequency]), None, 1.0, np.float64
        )
        np.testing.assert_allclose(cos[:, 0], expected[0][some], atol=4e-16)
        np.testing.assert_allclose(sin[:, 0], expected[1][some], atol=4e-16)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "float32", "float64"])
def test_every_dtype_of_positions_means_the_same(dtype):
    positions = np.array([-128, -1, 0, 1, 127])
    np.testing.assert_array_equal(table(positions.astype(dtype)), table(positions))


def test_small_angles_keep_their_relative_accuracy():
    frequency = 1e-9
    _, sin = reference.rotary_tables(np.array([1]), np.array([frequency]), None, 1.0, np.float64)
    assert sin[0, 0] == pytest.approx(frequency, rel=2.0**-30)


def nearest(value, dtype):
    """The value of dtype nearest to a float64, ties to even, by comparing exact fractions."""
    close = np.array([value]).astype(np.float32).astype(dtype)
    below, above = (np.nextafter(close, dtype.type(sign * np.inf)) for sign in (-1, 1))
    candidates = np.concatenate([close, below, above])
    distances = [abs(Fraction(float(c)) - Fraction(value)) for c in candidates]
    odd = candidates.view(np.uint16) % 2
    return candidates[min(range(3), key=lambda i: (distances[i], odd[i]))]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(name):
    dtype = bfloat16() if name == "bfloat16" else np.dtype(name)
    steps = np.array([-1.5, -0.3, 0.01, 0.7, 1.0, 1e-7, 6e-5, 1e-39]).astype(dtype)
    next_steps = np.nextafter(steps, dtype.type(np.inf))
    steps, next_steps = steps.astype(np.float64), next_steps.astype(np.float64)
    ties = (steps + next_steps) / 2
    # A float32 in between would round a value so close to a tie onto it, and the tie to even.
    off = np.abs(ties) * 2.0**-40
    values = np.concatenate([steps, ties, ties + off, ties - off, steps + (ties - steps) / 3])
    expected = [float(nearest(float(value), dtype)) for value in values]
    np.testing.assert_array_equal(round_once(values, dtype).astype(np.float64), expected)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_rounding_of_special_values(name):
    dtype = bfloat16() if name == "bfloat16" else np.dtype(name)
    values = np.array([np.inf, -np.inf, 1e300, -1e300, np.nan, -0.0])
    rounded = round_once(values, dtype).astype(np.float64)
    np.testing.assert_array_equal(rounded, [np.inf, -np.inf, np.inf, -np.inf, np.nan, -0.0])
    assert np.signbit(rounded[-1])


# Sinusoidal


def test_layouts_are_permutations_of_each_other():
    sin_cos = table(50, dim=16)
    np.testing.assert_array_equal(table(50, dim=16, layout="cos_sin"), np.roll(sin_cos, 8, axis=-1))
    interleaved = table(50, dim=16, layout="interleaved")
    np.testing.assert_array_equal(interleaved[:, 0::2], sin_cos[:, :8])
    np.testing.assert_array_equal(interleaved[:, 1::2], sin_cos[:, 8:])


def test_sinusoidal_takes_positions_of_any_shape():
    positions = np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(table(positions, dim=6), table(24, dim=6).reshape(2, 3, 4, 6))
    assert table(np.array(3), dim=6).shape == (6,)
    assert table(0, dim=6).shape == (0, 6)
    assert table(3, dim=0).shape == (3, 0)


def test_sinusoidal_writes_to_out():
    out = np.zeros((8, 20), dtype=np.float32)[:, ::-2]
    result = reference.sinusoidal(8, 10, 1e4, "interleaved", 0.0, 1.0, None, out)
    assert result is out
    np.testing.assert_array_equal(out, table(8, dim=10, layout="interleaved", dtype="float32"))


@pytest.mark.parametrize("positions", [None, np.arange(5) * 7, np.arange(10).reshape(2, 5) - 3])
def test_add_sinusoidal_is_a_scaled_sum(positions, rng):
    x = rng.standard_normal((2, 5, 8))
    result = reference.add_sinusoidal(x, positions, 3.0, 0.5, 1e4, "interleaved", 0.0, 1.0, None)
    points = np.arange(5) if positions is None else positions
    expected = x * 3 + 0.5 * table(points, dim=8, layout="interleaved")
    np.testing.assert_allclose(result, expected, rtol=1e-15)
    again = reference.add_sinusoidal(x, positions, 3.0, 0.5, 1e4, "interleaved", 0.0, 1.0, x)
    assert again is x
    np.testing.assert_array_equal(x, result)


# Rotary


@pytest.fixture
def rng():
    return np.random.default_rng(7)


SIZES = {"b": 2, "s": 5, "t": 6, "h": 3, "d": 12}
LAYOUTS = ["bhsd", "bshd", "sbhd", "hbsd", "shbd", "bsd", "sbd", "hsd", "shd", "thd", "htd", "sd"]
INV_FREQ = np.array([1.0, 0.3, 0.1, 0.02])  # 4 pairs: 8 of the 12 dims


def rotate_by_loops(x, layout, position, block, start, scale=1.0, inverse=False):
    """The definition; position(indices by letter, pair) gives the position."""
    expected = x.astype(np.float64)
    for index in np.ndindex(x.shape[:-1]):
        head = x[index].astype(np.float64)
        for pair, frequency in enumerate(INV_FREQ):
            first = start + pair // (block // 2) * block + pair % (block // 2)
            second = first + block // 2
            angle = position(dict(zip(layout, index, strict=False)), pair) * frequency
            cos, sin = scale * math.cos(angle), scale * math.sin(-angle if inverse else angle)
            expected[(*index, first)] = head[first] * cos - head[second] * sin
            expected[(*index, second)] = head[second] * cos + head[first] * sin
    return expected


def rotate(x, layout, positions=None, pairing="half", start=0, axis_map=None, **options):
    scale, inverse, out = (
        options.pop(k, d) for k, d in [("scale", 1.0), ("inverse", False), ("out", None)]
    )
    return reference.apply_rotary(
        x, positions, INV_FREQ, layout, pairing, start, axis_map, scale, inverse, out
    )


def random_x(rng, layout):
    return rng.standard_normal([SIZES[letter] for letter in layout])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("pairing", "block"), [("half", 8), ("interleaved", 2), (4, 4)])
def test_rotation_of_every_layout_and_pairing(layout, pairing, block, rng):
    x = random_x(rng, layout)
    token = "t" if "t" in layout else "s"
    for start in (0, 3):
        result = rotate(x, layout, pairing=pairing, start=start, scale=1.5)
        expected = rotate_by_loops(x, layout, lambda i, _: i[token], block, start, 1.5)
        np.testing.assert_allclose(result, expected, atol=1e-14)
    if "b" in layout:
        positions = rng.integers(-50, 50, size=(SIZES["b"], SIZES["s"]))
        result = rotate(x, layout, positions, pairing=pairing, inverse=True)
        expected = rotate_by_loops(
            x, layout, lambda i, _: positions[i["b"], i["s"]], block, 0, inverse=True
        )
        np.testing.assert_allclose(result, expected, atol=1e-14)


def test_axis_map_chooses_the_position_of_each_pair(rng):
    x = random_x(rng, "bhsd")
    axis_map = np.array([2, 0, 1, 0])
    positions = rng.integers(0, 99, size=(3, SIZES["b"], SIZES["s"]))
    result = rotate(x, "bhsd", positions, axis_map=axis_map)
    expected = rotate_by_loops(
        x, "bhsd", lambda i, pair: positions[axis_map[pair], i["b"], i["s"]], 8, 0
    )
    np.testing.assert_allclose(result, expected, atol=1e-14)
    np.testing.assert_array_equal(
        rotate(x[:1], "bhsd", positions[:, 0], axis_map=axis_map), result[:1]
    )


def test_dims_outside_the_slice_keep_their_bits():
    x = np.array([[0x7FA00001, 0x3F800000, 0x3F800000, 0xFFC12345]], np.uint32).view(np.float32)
    result = reference.apply_rotary(
        x, np.array([5]), np.array([1.0]), "sd", "half", 1, None, 1.0, False, None
    )
    np.testing.assert_array_equal(result.view(np.uint32)[:, [0, 3]], x.view(np.uint32)[:, [0, 3]])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_rotation_rounds_once(name, rng):
    dtype = bfloat16() if name == "bfloat16" else np.dtype(name)
    x = random_x(rng, "bhsd").astype(dtype)
    result = rotate(x, "bhsd")
    assert result.dtype == dtype
    np.testing.assert_array_equal(
        result[..., :8], round_once(rotate(x.astype(np.float64), "bhsd"), dtype)[..., :8]
    )


def test_strides_do_not_matter(rng):
    wide = rng.standard_normal((5, 2, 24, 3))
    x = wide[::-1, :, ::-2].transpose(1, 3, 0, 2)  # bhsd
    np.testing.assert_array_equal(rotate(x, "bhsd"), rotate(x.copy(), "bhsd"))
    expanded = np.broadcast_to(x[:, :1], x.shape)
    np.testing.assert_array_equal(rotate(expanded, "bhsd"), rotate(expanded.copy(), "bhsd"))
    positions = np.broadcast_to(np.array([3]), (2, 5))
    np.testing.assert_array_equal(
        rotate(x, "bhsd", positions), rotate(x, "bhsd", np.full((2, 5), 3))
    )


@pytest.mark.parametrize("shape", [(0, 3, 5, 12), (2, 0, 5, 12), (2, 3, 0, 12)])
def test_empty_axes(shape):
    x = np.ones(shape, np.float32)
    assert rotate(x, "bhsd").shape == shape
    assert rotate(x, "bhsd", out=x) is x


def test_no_frequencies_is_a_copy(rng):
    x = random_x(rng, "bhsd")
    none = np.zeros(0)
    for pairing in ("half", "interleaved", 6):
        result = reference.apply_rotary(x, None, none, "bhsd", pairing, 0, None, 1.0, False, None)
        np.testing.assert_array_equal(result, x)
        assert result is not x


def test_inverse_undoes(rng):
    x = random_x(rng, "bhsd")
    positions = np.arange(5) + 1_000_000
    back = rotate(rotate(x, "bhsd", positions), "bhsd", positions, inverse=True)
    np.testing.assert_allclose(back, x, atol=1e-14)


def test_in_place_gives_the_same_bits(rng):
    x = random_x(rng, "bshd").astype(np.float32)
    expected = rotate(x, "bshd")
    assert rotate(x, "bshd", out=x) is x
    np.testing.assert_array_equal(x, expected)


def rotate_qk(q, k, positions=None, inplace=False):
    return reference.apply_rotary_qk(
        q, k, positions, INV_FREQ, "bshd", "half", 0, None, 1.0, False, inplace
    )


def test_q_and_k_are_rotated_as_each_alone(rng):
    packed = rng.standard_normal((2, 5, 7, 12)).astype(np.float32)
    q, k, v = packed[:, :, :3], packed[:, :, 3:5], packed[:, :, 5:].copy()
    positions = rng.integers(0, 10**9, size=(2, 5))
    rotated_q, rotated_k = rotate_qk(q, k, positions)
    np.testing.assert_array_equal(rotated_q, rotate(q, "bshd", positions))
    np.testing.assert_array_equal(rotated_k, rotate(k, "bshd", positions))
    same_q, same_k = rotate_qk(q, k, positions, inplace=True)
    assert same_q is q
    assert same_k is k
    np.testing.assert_array_equal(packed, np.concatenate([rotated_q, rotated_k, v], axis=2))


@pytest.mark.parametrize("layout", ["bhsd", "sbhd", "thd"])
def test_ready_tables_rotate_the_same(layout, rng):
    x = random_x(rng, layout)
    shape = (SIZES["t"],) if "t" in layout else (SIZES["b"], SIZES["s"])
    positions = rng.integers(0, 10**6, size=shape)
    cos, sin = reference.rotary_tables(positions, INV_FREQ, None, 1.0, np.float64)
    for inverse in (False, True):
        result = reference.apply_rotary(
            x, *turned_by(cos, sin, layout, "half", 2, inverse=inverse), None
        )
        np.testing.assert_array_equal(
            result, rotate(x, layout, positions, start=2, inverse=inverse)
        )


def rotate_qk_tables(q, k, cos, sin, inplace=False, inverse=False):
    turned = turned_by(cos, sin, "bshd", "half", 2, inverse=inverse)
    return reference.apply_rotary_qk(q, k, *turned, inplace)


def test_ready_tables_rotate_q_and_k_as_each_alone(rng):
    packed = rng.standard_normal((2, 5, 7, 12)).astype(np.float32)
    q, k, v = packed[:, :, :3], packed[:, :, 3:5], packed[:, :, 5:].copy()
    positions = rng.integers(0, 10**9, size=(2, 5))
    cos, sin = reference.rotary_tables(positions, INV_FREQ, None, 1.0, np.float64)
    for inverse in (False, True):
        rotated_q, rotated_k = rotate_qk_tables(q, k, cos, sin, inverse=inverse)
        options = {"start": 2, "inverse": inverse}
        np.testing.assert_array_equal(rotated_q, rotate(q, "bshd", positions, **options))
        np.testing.assert_array_equal(rotated_k, rotate(k, "bshd", positions, **options))
    same_q, same_k = rotate_qk_tables(q, k, cos, sin, inplace=True, inverse=True)
    assert same_q is q
    assert same_k is k
    np.testing.assert_array_equal(packed, np.concatenate([rotated_q, rotated_k, v], axis=2))


def test_rotary_tables_match_sinusoidal():
    inv_freq, _ = rotary_frequencies(64)
    cos, sin = reference.rotary_tables(100, inv_freq, None, 2.0, np.float64)
    np.testing.assert_allclose(np.hstack([sin, cos]), 2 * table(100, dim=64), atol=1e-13)


def test_rotary_tables_with_axis_map():
    positions = np.array([[1, 2, 3], [10, 20, 30]])
    cos, _ = reference.rotary_tables(positions, INV_FREQ, np.array([0, 1, 1, 0]), 1.0, np.float64)
    np.testing.assert_allclose(cos, np.cos(positions[[0, 1, 1, 0]].T * INV_FREQ), atol=1e-15)


# Errors: the tables of bad calls have those of public calls; only here is what these convert


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x", [[1.0] * 12]),
        ("inv_freq", INV_FREQ.tolist()),
        ("axis_map", [0, 1, 1, 0]),
        ("layout", None),
        ("pairing", None),
    ],
)
def test_the_reference_takes_arrays_alone(argument, value):
    given = {
        "x": np.ones((5, 12)), "positions": np.zeros((2, 5), int), "inv_freq": INV_FREQ,
        "layout": "sd", "pairing": "half", "start": 0, "axis_map": np.array([0, 1, 1, 0]),
        "scale": 1.0, "inverse": False, "out": None, argument: value,
    }  # fmt: skip
    with pytest.raises(TypeError, match=f"^apply_rotary: {argument}: expected .*, got "):
        reference.apply_rotary(*given.values())


def test_the_reference_takes_arrays_of_positions_alone():
    with pytest.raises(
        TypeError, match=r"^sinusoidal: positions: expected an int or an array, got"
    ):
        reference.sinusoidal([1, 2], 8, 1e4, "interleaved", 0.0, 1.0, None, None)
