"""Steps as exact turns, their sums and the tables of them, against Python's integers and mpmath."""

from __future__ import annotations

import itertools
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import DTYPES

import posenc_native as pn

TURN = 2**64
# 1 / (2 pi) to 400 bits: an integer times 2^-400.
with mpmath.workprec(500):
    INVERSE_TAU = int(mpmath.floor(mpmath.mpf(2) ** 400 / (2 * mpmath.pi)))


def wrapped(number: int) -> int:
    return (number + TURN // 2) % TURN - TURN // 2


def turns(step: Any) -> int:
    """The nearest integer to a step in turns times 2^64, not wrapped."""
    numerator, denominator = float(step).as_integer_ratio()
    # Half a unit is added, and all that is below a unit cut off.
    bits = 400 - 64
    return (2 * numerator * INVERSE_TAU + denominator * 2**bits) // (denominator * 2 ** (bits + 1))


def steps_of(dtype: str, count: int = 4000) -> np.ndarray[Any, Any]:
    """Numbers of every size, and those at the ends."""
    rng = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        numbers = rng.standard_normal(count) * np.exp2(rng.uniform(-70, 30, count))
        numbers = np.concatenate((numbers, [0.0, -0.0, 1e-45, -1e-38, 2.0**31, -(2.0**31), np.pi]))
        numbers = numbers.astype(dtype)
    return numbers[np.abs(numbers.astype(np.float64)) <= 2.0**31]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_each_step_is_rounded_once(dtype: str, backend: str) -> None:
    steps = steps_of(dtype)
    expected = [wrapped(turns(step)) for step in steps]
    assert pn.selective.accumulated_phases(steps[:, None], axis=1)[:, 0].tolist() == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_every_step_of_16_bits_and_many_of_32(dtype: str, target: str) -> None:
    """As neighbors: on vectors they become turns by products in float64."""
    steps = np.arange(-(2**15), 2**15, dtype=np.int16)
    steps = steps_of(dtype, 60000) if dtype == "float32" else steps.view(DTYPES[dtype])
    with np.errstate(invalid="ignore"):  # signaling NaN
        steps = steps[np.abs(steps.astype(np.float64)) <= 2.0**31]
    rows = steps[: len(steps) // 64 * 64].reshape(1, -1)
    found = pn.selective.accumulated_phases(rows, axis=0)[0]
    assert found.tolist() == [wrapped(turns(step)) for step in rows[0].astype(np.float64)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_have_the_same_phases(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    steps = torch.from_numpy(steps_of("float32")).to(getattr(torch, dtype))
    steps = steps[steps.double().abs() <= 2.0**31]
    found = pn.selective.accumulated_phases(steps[:, None], axis=1)[:, 0]
    assert found.tolist() == [wrapped(turns(step)) for step in steps.double()]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.sampled_from(["float32", "float64"]),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2),
)
def test_sums_of_integers_in_any_chunks(
    lengths: list[int], dtype: str, before: int, axis: int
) -> None:
    rng = np.random.default_rng(len(lengths))
    tokens = sum(lengths)
    steps = rng.standard_normal((tokens, 2, 3)).astype(dtype) * 1000
    state = np.full((2, 3), before)
    expected = np.empty(steps.shape, np.int64)
    for i in np.ndindex(2, 3):
        total = before
        for t in range(tokens):
            total = wrapped(total + turns(steps[(t, *i)]))
            expected[(t, *i)] = total
    order = [1, 2]
    order.insert(axis, 0)
    laid = steps.transpose(order)
    whole = pn.selective.accumulated_phases(laid, axis=axis, state=state)
    assert np.array_equal(np.moveaxis(whole, axis, 0), expected)
    begin = 0
    for length in lengths:
        part = pn.selective.accumulated_phases(steps[begin : begin + length], axis=0, state=state)
        assert np.array_equal(part, expected[begin : begin + length])
        state, begin = part[-1], begin + length


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.booleans(), st.booleans())
def test_packed_rows(lengths: list[int], with_states: bool, tensors: bool) -> None:
    """As apart; a row without a token keeps its state out of the way."""
    starts = np.cumsum([0, *lengths])
    rng = np.random.default_rng(1)
    steps = rng.standard_normal((2, int(starts[-1]), 3))
    states = rng.integers(-(2**63), 2**63 - 1, (len(lengths), 2, 3)) if with_states else None
    given: list[Any] = [steps, states, starts]
    if tensors:
        torch = pytest.importorskip("torch")
        given = [each if each is None else torch.from_numpy(each) for each in given]
    found = np.asarray(
        pn.selective.accumulated_phases(given[0], axis=1, state=given[1], starts=given[2])
    )
    for row, (begin, end) in enumerate(itertools.pairwise(starts)):
        own = None if states is None else states[row]
        alone = pn.selective.accumulated_phases(steps[:, begin:end], axis=1, state=own)
        assert np.array_equal(found[:, begin:end], alone)


def test_a_state_and_columns_of_any_strides(backend: str) -> None:
    """More columns than are summed at once, of which two threads have some each."""
    rng = np.random.default_rng(5)
    steps = rng.standard_normal((3, 150, 2, 11)).astype(np.float32)[::-1].transpose(2, 0, 3, 1)
    state = rng.integers(-(2**63), 2**63 - 1, (150, 3, 2)).T
    found = pn.selective.accumulated_phases(steps, axis=2, state=state)
    threads = pn.get_num_threads()
    for count in (1, 3):
        pn.set_num_threads(count)
        assert np.array_equal(pn.selective.accumulated_phases(steps, axis=2, state=state), found)
    pn.set_num_threads(threads)
    for i in [(0, 0, 0), (1, 2, 149), (1, 0, 64), (0, 1, 63)]:
        total, column = int(state[i]), steps[i[0], i[1], :, i[2]]
        for t, step in enumerate(column):
            total = wrapped(total + turns(step))
            assert found[i[0], i[1], t, i[2]] == total


def test_no_drift() -> None:
    """Steps of which a sum in float32 is lost; ours is off by that many roundings."""
    steps = (0.5 + 0.1 * np.random.default_rng(0).standard_normal(2**18)).astype(np.float32)
    cos, _ = pn.selective.phase_tables(
        pn.selective.accumulated_phases(steps, axis=0)[-1:], np.float64
    )
    total = sum(turns(step) for step in steps)
    with mpmath.workprec(200):
        exact = float(mpmath.cos(2 * mpmath.pi * mpmath.mpf(total % TURN) / TURN))
        angle = mpmath.fsum(map(float, steps))
        near = float(mpmath.cos(angle))
    assert abs(cos[0] - exact) < 1e-15
    assert abs(cos[0] - near) < 2**18 * 2.0**-65 * 2 * np.pi
    assert abs(np.cos(np.cumsum(steps, dtype=np.float32)[-1]) - near) > 1e-3


# --- tables ---


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [("float64", 3e-16), ("float32", 1.2e-7), ("float16", 2.0**-11 + 1e-7)],
)
def test_tables_of_phases(dtype: str, bound: float, backend: str) -> None:
    rng = np.random.default_rng(2)
    phases = np.concatenate(
        [rng.integers(-(2**63), 2**63 - 1, 300), [0, 1, -1, 2**62, -(2**62), -(2**63), 2**61]]
    )
    with mpmath.workprec(200):
        angles = [2 * mpmath.pi * mpmath.mpf(int(phase)) / TURN for phase in phases]
        exact = [[float(f(angle)) for angle in angles] for f in (mpmath.cos, mpmath.sin)]
    for shape in [(-1,), (1, -1), (-1, 1)]:
        tables = pn.selective.phase_tables(phases.reshape(shape), dtype)
        for table, expected in zip(tables, exact, strict=True):
            assert table.dtype == dtype
            assert table.shape == phases.reshape(shape).shape
            assert np.abs(table.ravel().astype(np.float64) - expected).max() <= bound


def test_tables_of_one_phase_and_of_none() -> None:
    cos, sin = pn.selective.phase_tables(np.int64(2**62))
    assert (float(abs(cos)), float(sin)) == (0.0, 1.0)
    for shape in [(0,), (2, 0, 3), (2, 3, 0)]:
        cos, sin = pn.selective.phase_tables(np.zeros(shape, np.int64))
        assert cos.shape == sin.shape == shape


def test_tables_by_head_turn_what_they_should() -> None:
    rng = np.random.default_rng(3)
    q, k = rng.standard_normal((2, 2, 4, 7, 16)).astype(np.float32)
    steps = rng.standard_normal((2, 4, 7, 8)).astype(np.float32)
    tables = pn.selective.phase_tables(pn.selective.accumulated_phases(steps, axis=2))
    ours = pn.apply_rotary_qk(q, k, None, pn.Tables(*tables))
    expected = pn.selective_rotary_qk(q, k, steps, layout="bhsd")
    assert all(np.array_equal(a, b) for a, b in zip(ours, expected, strict=False))


# --- errors ---

STEPS = np.ones((3, 2), np.float32)
WRONG: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "a NaN": (np.array([1, np.nan]), {"axis": 0}, ValueError, "steps: expected finite radians"),
    "infinite": (np.array([np.inf]), {"axis": 0}, ValueError, "of at most 2\\^31"),
    "too large": (np.array([3e9]), {"axis": 0}, ValueError, "of at most 2\\^31"),
    "integers": (np.ones(3, np.int64), {"axis": 0}, TypeError, "steps: expected a dtype of float"),
    "an axis": (STEPS, {"axis": 2}, ValueError, r"expected an axis of steps, -2 \.\. 1, got 2"),
    "no axis": (np.float32(1), {"axis": 0}, ValueError, "axis: expected steps with an axis"),
    "a float state": (
        STEPS, {"axis": 0, "state": np.zeros(2)}, TypeError,
        r"state: expected int64, got float64; a state is in turns: radians times 2\^64",
    ),
    "a state's shape": (
        STEPS, {"axis": 0, "state": np.zeros(3, np.int64)}, ValueError, r"= \[2\], got shape \[3\]",
    ),
    "starts": (STEPS, {"axis": 0, "starts": [0, 2]}, ValueError, "starts: expected rising"),
    "falling starts": (STEPS, {"axis": 0, "starts": [0, 2, 1, 3]}, ValueError, "from 0 to 3"),
    "a start": (STEPS, {"axis": 0, "starts": [0]}, ValueError, "starts: expected rising"),
    "starts in rows": (STEPS, {"axis": 0, "starts": [[0, 3]]}, ValueError, r"shape \[rows \+ 1\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    steps, options, kind, words = WRONG[name]
    with pytest.raises(kind, match=f"^accumulated_phases: .*{words}"):
        pn.selective.accumulated_phases(steps, **options)


def test_phases_are_int64() -> None:
    with pytest.raises(TypeError, match="phase_tables: phases: expected a dtype of int64"):
        pn.selective.phase_tables(np.zeros(3))
    with pytest.raises(TypeError, match="dtype"):
        pn.selective.phase_tables(np.zeros(3, np.int64), np.int32)


# --- torch's transforms ---


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_phases_of_a_batch_have_the_same_bits(dtype: str) -> None:
    """torch's operations compute them: also the last bit, which tables do not show."""
    torch = pytest.importorskip("torch")
    steps = (1000 * torch.randn(5, 70, 3, dtype=torch.float64)).to(getattr(torch, dtype))

    def phases(steps: Any) -> Any:
        return pn.selective.accumulated_phases(steps, axis=0)

    assert torch.equal(torch.vmap(phases)(steps), torch.stack([phases(one) for one in steps]))


def test_compiled_and_batched() -> None:
    torch = pytest.importorskip("torch")
    steps = torch.randn(5, 7, 3)
    starts = torch.tensor([0, 4, 7])

    def tables(steps: Any, starts: Any = starts) -> Any:
        return pn.selective.phase_tables(
            pn.selective.accumulated_phases(steps, axis=0, starts=starts)
        )

    expected = [tables(one) for one in steps]
    batched = torch.vmap(tables)(steps)
    compiled = torch.compile(tables, fullgraph=True, backend="aot_eager")
    for i, one in enumerate(expected):
        for a, b, c in zip(one, batched, compiled(steps[i]), strict=True):
            assert torch.equal(a, b[i])
            assert torch.equal(a, c)
    meta = tables(steps[0].to("meta"), starts.to("meta"))
    assert meta[0].shape == (7, 3)
    torch.compiler.reset()
