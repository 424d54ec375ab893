"""One number can ask for more than there is: it is answered at once, and takes no memory.

A number that says how much is to be computed by formula has a limit. One that says the size of the
result has none but memory: then NumPy's MemoryError comes before any work.
"""

from __future__ import annotations

import re
import tracemalloc

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.core.calls import arguments
from posenc_native.engines.plain import arrays as reference

HUGE = [2**40, 2**62]

BY_FORMULA = {
    "alibi_slopes": ("num_heads", lambda n: pn.relative.alibi_slopes(n)),
    "alibi_diagonals": ("num_heads", lambda n: pn.relative.alibi_diagonals(n, 1, 1)),
    "alibi_columns": ("num_heads", lambda n: pn.relative.alibi_columns(n, 1, rounding="float32")),
    "sandwich_diagonals": ("num_heads", lambda n: pn.relative.sandwich_diagonals(n, 1, 1)),
    "mixed_frequencies": ("num_heads", lambda n: pn.rotary.mixed_frequencies(8, n)),
    "Rotary": ("head_dim", lambda n: pn.Rotary(n)),
    "Rotary of a part": ("rotary_dim", lambda n: pn.Rotary(n, rotary_dim=n)),
    "rotary_frequencies": ("rotary_dim", lambda n: pn.rotary.rotary_frequencies(n)),
    "frequencies": ("dim", lambda n: pn.sinusoids.frequencies(n)),
    "wavelengths": ("dim", lambda n: pn.sinusoids.wavelengths(n)),
    "axial_rotary": ("rotary_dim", lambda n: pn.rotary.axial_rotary(n)),
    "axial_rotary of axes": ("rotary_dim", lambda n: pn.rotary.axial_rotary(2 * n, n)),
    "mrope_axis_map": ("section", lambda n: pn.rotary.mrope_axis_map([n, 1, 1])),
    "mrope_axis_map of turns": (
        "section", lambda n: pn.rotary.mrope_axis_map([n, n, n], order="round_robin"),
    ),
    "mrope_axis_map of pairs": (
        "pairs", lambda n: pn.rotary.mrope_axis_map([1, 1, 1], order="interleaved", pairs=n),
    ),
    "relative_position_bucket": (
        "num_buckets",
        lambda n: pn.relative.relative_position_bucket(np.arange(3), True, n, 2**62 + 1),
    ),
    "deberta_bucket": (
        "bucket_size",
        lambda n: pn.relative.deberta_bucket(np.arange(3), n, 2**62 + 1),
    ),
    "permute_qk": ("head_dim", lambda n: pn.checkpoints.permute_qk(np.zeros(8), n, to="half")),
    "SinusoidalSpec.preset": (
        "dim", lambda n: pn.SinusoidalSpec.preset("timm_fourier", n),
    ),
    "SinusoidalSpec.preset of axes": (
        "axes", lambda n: pn.SinusoidalSpec.preset("nerf", 63, axes=n),
    ),
    "swin_v2_coordinates": (
        "window", lambda n: pn.relative.swin_v2_coordinates((1,) * min(n, 1000)),
    ),
}  # fmt: skip

OF_THE_RESULT = {
    "sinusoidal": lambda n: pn.sinusoidal(1, n),
    "sinusoidal by rows": lambda n: pn.sinusoidal(n, 8),
    "rotary_tables": lambda n: pn.rotary_tables(n, np.ones(4)),
    "alibi_diagonals": lambda n: pn.relative.alibi_diagonals(2, n, 1, q_offset=0),
    "alibi_columns": lambda n: pn.relative.alibi_columns(2, n),
    "relative_positions": lambda n: pn.relative.relative_positions(n, 1, q_offset=0),
    "kerple_diagonals": lambda n: pn.relative.kerple_diagonals([1.0], [1.0], n, 1, q_offset=0),
    "add_unrotated_tokens": lambda n: pn.positions.add_unrotated_tokens(np.zeros((2, 3)), before=n),
    "grid_positions": lambda n: pn.positions.grid_positions((n, 1)),
    "recurrent_positions": lambda n: pn.absolute.recurrent_positions(
        n, np.zeros(2), np.zeros((6, 2)), np.zeros(6), np.zeros(6)
    ),
    "resample_positions": lambda n: pn.absolute.resample_positions(np.zeros((9, 2)), n),
    "diagonal_sums": lambda n: pn.diagonal_sums(np.zeros((1, 2, 2)), entries=n, origin=1),
    "swin_v2_coordinates": lambda n: pn.relative.swin_v2_coordinates((n, n)),
    "shift_matrix": lambda n: pn.sinusoids.shift_matrix(1, n),
}


def peak(call):
    """The most memory that a call has at a time, in bytes."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("n", HUGE)
@pytest.mark.parametrize("name", BY_FORMULA)
def test_numbers_to_compute_have_a_limit(name, n, backend):
    argument, call = BY_FORMULA[name]

    def refused():
        with pytest.raises(ValueError, match=r"^[\w.]+: \w+: expected .*, got ") as caught:
            call(n)
        if argument != "rotary_dim":
            assert caught.value.fault.argument == argument

    refused()  # the first call imports modules, which are larger
    assert peak(refused) < 2**20


@pytest.mark.parametrize("n", HUGE)
@pytest.mark.parametrize("name", OF_THE_RESULT)
def test_results_beyond_memory_are_refused_before_any_work(name, n, backend):
    with pytest.raises((ValueError, MemoryError)) as caught:
        OF_THE_RESULT[name](n)
    assert isinstance(caught.value, MemoryError) or re.match(
        r"\w+: \w+: expected ", str(caught.value)
    )


@pytest.mark.parametrize("positions", [0, np.zeros((3, 0))], ids=["count", "array"])
@pytest.mark.parametrize("dim", [2**24, 2**40])
def test_an_empty_table_needs_no_frequency(positions, dim):
    results = []

    def call():
        results.append(reference.sinusoidal(positions, dim, 1e4, "interleaved", 0, 1, None, None))

    assert peak(call) < 2**20
    assert results[0].shape == ((3, 0, dim) if np.ndim(positions) else (0, dim))


def test_as_many_buckets_as_there_may_be():
    """Each by whole numbers of thousands of digits, they took a minute."""
    most = 2**14
    buckets = pn.relative.relative_position_bucket(np.array([0, -1, -(2**62)]), False, most, 2**62)
    np.testing.assert_array_equal(buckets, [0, 1, most - 1])
    np.testing.assert_array_equal(
        pn.relative.deberta_bucket([0, 1, 2**62], most, 2**40), [0, 1, most]
    )


def steps_by_whole_numbers(buckets, last):
    """T5's steps, from n ** power >= last ** k * first ** (power - k) alone."""
    first = buckets // 2
    power = buckets - first
    steps = list(range(1, first + 1))
    n = first
    for k in range(1, power):
        while n**power < last**k * first ** (power - k):
            n += 1
        steps.append(n)
    return steps


@pytest.mark.parametrize(
    ("buckets", "last"), [(2, 3), (3, 9), (4, 8), (8, 64), (8, 65), (8, 63), (16, 128), (17, 2187)]
)
def test_steps_of_buckets_where_they_are_whole_numbers(buckets, last):
    distances = np.arange(last + 2)
    got = pn.relative.relative_position_bucket(-distances, False, buckets, last)
    expected = np.searchsorted(steps_by_whole_numbers(buckets, last), distances, side="right")
    np.testing.assert_array_equal(got, expected)


def test_what_is_long_is_cut_in_an_error():
    for value in (10**5000, [1] * 10**5):
        with pytest.raises(ValueError, match=r"^f: x: expected another, got ") as caught:
            arguments.wrong_value("f", "x", "another", value)
        assert len(str(caught.value)) < 1100


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan")])
def test_numbers_beyond_float64_are_not_finite(value):
    with pytest.raises(ValueError, match=r"^f: x: expected a finite number, got "):
        arguments.finite_number("f", "x", value)
