"""Errors: what every message says; any two views that overlap.

The tables of bad calls are those of the families: test_errors.py in their folders.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from bad_calls import DEVICES, FREQ, Call, T, V, assert_held, by_engine, problem_of, steps, x
from hypothesis import given
from hypothesis import strategies as st
from targets import NATIVE, NEEDS_NATIVE

import posenc_native as pn

backend_named = Call("set_backend", name="native")
threads = Call("set_num_threads", n=1)
BAD = [
    backend_named("backend", V, "name", name="cuda"),
    threads("no threads", V, "n", n=0),
    threads("threads beyond int", V, "n", n=2**31),
    threads("threads of float", T, "n", n=2.0),
    threads("threads of bool", T, "n", n=True),
]


@by_engine(BAD)
def test_bad_calls_say_why_and_write_nothing(rows, engine, device):
    assert_held(rows, engine, device)


@pytest.mark.parametrize("device", [None, *DEVICES])
def test_the_table_notices(monkeypatch, backend, device):
    """No error, another one, another argument, an error of a good call, what has been written."""
    rotate = Call("apply_rotary", x=x(), positions=None, inv_freq=FREQ)
    short = {"positions": steps(4)}
    assert problem_of(rotate("too few", V, "positions", **short), device) is None
    assert problem_of(rotate("nothing wrong", V, "positions"), device) == "no error"
    for error, argument in ((T, "positions"), (V, "x"), (V, "positions: expected more")):
        assert "got [4]" in problem_of(rotate("another", error, argument, **short), device)
    assert "got [4]" in problem_of(rotate.good("too few", **short), device)
    whole = pn.apply_rotary

    def hasty(x, *others):
        x[0] = 2
        return whole(x, *others)

    monkeypatch.setattr(pn, "apply_rotary", hasty)
    assert "written" in problem_of(rotate("too few", V, "positions", **short), device)


def test_the_message_of_the_commonest_mistake(backend):
    with pytest.raises(ValueError, match=re.escape("apply_rotary: positions: expected shape")) as e:
        pn.apply_rotary(x(), steps(3, 5), FREQ)
    for part in ("[s] = [5]", "[b, s] = [2, 5]", "got [3, 5]"):
        assert part in str(e.value)


def test_the_message_of_a_huge_factor_is_short(backend):
    with pytest.raises(ValueError, match=r"a finite number in float32, got 1e\+300$"):
        pn.apply_rotary(x(), None, FREQ, scale=1e300)


@pytest.mark.parametrize("dtype", ["bool", "complex64", "float16", ">i4", "U1"])
def test_the_message_names_the_dtype_that_came(backend, dtype):
    with pytest.raises(TypeError, match=re.escape(f"got {np.dtype(dtype)}")):
        pn.apply_rotary(x(5, 8), np.zeros(5, dtype), FREQ, layout="sd")
    with pytest.raises(TypeError, match=re.escape(f"got {np.dtype(dtype)}")):
        pn.sinusoidal(np.zeros(5, dtype), 8)


@NEEDS_NATIVE
def test_a_huge_row_is_refused():
    # Not with the reference, which would first compute every frequency.
    with pytest.raises(ValueError, match="sinusoidal: positions: expected"):
        NATIVE.sinusoidal(1, 2**62, 1e4, "interleaved", 0.0, 1.0, None, None)


# Overlaps of any two views


@given(data=st.data())
def test_overlap_is_an_error_exactly_where_memory_is_shared(backend, data):
    """Two views of one buffer; NumPy decides whether they have an element in common."""
    memory = np.random.default_rng(1).standard_normal((6, 7, 8)).astype(np.float32)

    def axis(length: int, count: int) -> slice:
        step = data.draw(st.sampled_from([1, 1, 2, -1, -2]))
        reach = (count - 1) * abs(step)
        first = data.draw(st.integers(0, max(length - 1 - reach, 0)))
        part = slice(first, first + reach + 1, abs(step))
        return part if step > 0 else slice(first + reach, first - 1 if first else None, step)

    counts = [data.draw(st.integers(1, 3)) for _ in range(2)] + [4]
    views = [
        memory[tuple(axis(length, count) for length, count in zip((6, 7, 8), counts, strict=True))]
        for _ in range(2)
    ]
    if data.draw(st.booleans()) and views[1].shape == views[1].swapaxes(0, 1).shape:
        views[1] = views[1].swapaxes(0, 1)
    source, out = views
    assert source.shape == out.shape == tuple(counts)
    same = source.ctypes.data == out.ctypes.data and all(
        one == other or length == 1
        for one, other, length in zip(source.strides, out.strides, counts, strict=True)
    )
    options = {"layout": "hsd", "out": out}
    if np.shares_memory(source, out) and not same:
        before = memory.copy()
        with pytest.raises(ValueError, match="apply_rotary: out: "):
            pn.apply_rotary(source, None, FREQ, **options)
        np.testing.assert_array_equal(memory, before)
    else:
        expected = pn.apply_rotary(source, None, FREQ, layout="hsd")
        pn.apply_rotary(source, None, FREQ, **options)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_views_side_by_side_are_no_overlap(backend, layout):
    """The views are too large to compare element by element."""
    packed = np.ones((2, 300, 3, 16, 64), np.float16)
    q, k, v = (packed[:, :, i] for i in range(3))
    if layout == "bhsd":
        q, k, v = (part.swapaxes(1, 2) for part in (q, k, v))
    pn.apply_rotary(q, None, FREQ, layout=layout, out=v)
    pn.apply_rotary_qk(q, k, None, FREQ, layout=layout, inplace=True)
    tables = pn.rotary_tables(300, FREQ)
    pn.apply_rotary_qk(q, k, None, pn.Tables(*tables), layout=layout, inplace=True)
    pn.apply_rotary(q[..., ::2], None, FREQ, layout=layout, out=q[..., 1::2])
    pn.apply_rotary(q[..., :32], None, FREQ, layout=layout, out=q[..., 32:])
    with pytest.raises(ValueError, match="apply_rotary: out: "):
        pn.apply_rotary(q[..., :40], None, FREQ, layout=layout, out=q[..., 24:])
