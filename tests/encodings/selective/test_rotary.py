"""`selective_rotary_qk` against the papers' recipe in float64, and against itself in every way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from arrays import aligned
from hypothesis import given
from hypothesis import strategies as st
from oracle import DTYPES, assert_same_bits
from targets import NEEDS_NATIVE, written_past_the_cache

import posenc_native as pn

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(0)


def recipe(
    x: Array, steps: Array, layout: str, *, pairing: str = "half", rotary_start: int = 0,
    scale: float = 1.0, inverse: bool = False,
) -> Array:  # fmt: skip
    """x turned by cumulative sums of its steps, everything in float64."""
    x, steps = x.astype(np.float64), steps.astype(np.float64)
    angles = np.cumsum(steps, axis=layout.index("s"))
    if "h" in layout:
        heads = layout.index("h")
        angles = np.repeat(angles, x.shape[heads] // steps.shape[heads], axis=heads)
    angles = -angles if inverse else angles
    pairs = steps.shape[-1]
    result = x.copy()
    part = result[..., rotary_start : rotary_start + 2 * pairs]
    a, b = (
        (part[..., :pairs], part[..., pairs:])
        if pairing == "half"
        else (part[..., ::2], part[..., 1::2])
    )
    cos, sin = scale * np.cos(angles), scale * np.sin(angles)
    turned = a * cos - b * sin, b * cos + a * sin
    a[...], b[...] = turned
    return result


LAYOUTS = ["bshd", "bhsd", "sbhd", "hbsd", "shd", "bsd", "sd"]
SIZES = {"b": 2, "s": 9, "h": 6}


def inputs(layout: str, heads: int, dtype: str = "float32", width: int = 12, pairs: int = 4) -> Any:
    def numbers(h: int, last: int) -> Array:
        shape = [h if letter == "h" else SIZES[letter] for letter in layout[:-1]]
        return rng.standard_normal((*shape, last)).astype(dtype)

    return numbers(6, width), numbers(2, width), numbers(heads, pairs)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_recipe(layout: str, tensors: bool) -> None:
    """Every layout with heads of one, of a group and, of k, its own; every option once."""
    options: list[dict[str, Any]] = [
        {},
        {"pairing": "interleaved", "rotary_start": 3},
        {"scale": 1.5, "inverse": True},
    ]
    for heads, option, dtype in zip((1, 2, 2), options, ("float32", "float64", "float32"),
                                    strict=True):  # fmt: skip
        q, k, steps = inputs(layout, heads, dtype)
        given = q, k, steps
        if tensors:
            torch = pytest.importorskip("torch")
            given = tuple(map(torch.from_numpy, given))
        found = pn.selective_rotary_qk(*given, layout=layout, **option)
        for x, y in zip((q, k), found, strict=False):
            expected = recipe(x, steps, layout, **option)
            # The recipe's own sums are off by 1e-15; ours by 1.2e-7 a cosine and one rounding.
            bound = 4e-7 if dtype == "float32" else 4e-15
            assert np.abs(np.asarray(y) - expected).max() < bound * np.abs(x).max() * 1.5
            assert y.dtype == (given[0].dtype)
        letters = [letter for letter in layout if letter in "bh"]
        sizes = {"b": 2, "h": heads}
        assert tuple(found[2].shape) == (*(sizes[n] for n in sorted(letters)), 4)


def ways(tokens: int) -> Iterator[tuple[str, list[int]]]:
    """Lengths of the calls that make a sequence."""
    yield "one by one", [1] * tokens
    yield "in chunks of 64", [min(64, tokens - i) for i in range(0, tokens, 64)]
    cuts = sorted(np.random.default_rng(4).choice(tokens, 9, replace=False).tolist())
    yield "in any chunks", np.diff([0, *cuts, tokens]).tolist()
    yield "prefill, then one by one", [tokens - 100, *[1] * 100]


@pytest.mark.parametrize("tensors", [False, True])
def test_the_same_bits_from_prefill_and_from_decode(tensors: bool) -> None:
    """Ten thousand tokens, each way; enough of them to be cut for two threads."""
    tokens = 10_000
    given: Any = (
        rng.standard_normal((1, tokens, 2, 16)).astype(np.float32),
        rng.standard_normal((1, tokens, 1, 16)).astype(np.float32),
        rng.standard_normal((1, tokens, 1, 8)).astype(np.float32),
    )
    threads = pn.get_num_threads()
    pn.set_num_threads(2)
    whole = pn.selective_rotary_qk(*given, layout="bshd")
    pn.set_num_threads(1)
    parts = pn.selective_rotary_qk(*given, layout="bshd")
    assert all(np.array_equal(a, b) for a, b in zip(parts, whole, strict=True))
    pn.set_num_threads(threads)
    if tensors:
        torch = pytest.importorskip("torch")
        given = tuple(map(torch.from_numpy, given))
    for name, lengths in ways(tokens):
        assert sum(lengths) == tokens
        state, begin = None, 0
        for length in lengths:
            part = [x[:, begin : begin + length] for x in given]
            *rotated, state = pn.selective_rotary_qk(*part, state=state, layout="bshd")
            for a, b in zip(rotated, whole, strict=False):
                assert np.array_equal(np.asarray(a), b[:, begin : begin + length]), name
            begin += length
        assert np.array_equal(np.asarray(state), whole[2])


def in_parts(x: Array, steps: Array, state: Any, layout: str, scale: float, **options: Any) -> Any:
    """The same from phases, tables of them and a rotation by tables of each head."""
    order = [layout.index(letter) for letter in "bhs" if letter in layout] + [len(layout) - 1]
    laid = steps.transpose(order)
    phases = pn.selective.accumulated_phases(laid, axis=laid.ndim - 2, state=state)
    real = "float64" if x.dtype == "float64" else "float32"
    cos, sin = (
        table * table.dtype.type(scale) for table in pn.selective.phase_tables(phases, real)
    )
    if "h" in layout:
        times = x.shape[layout.index("h")] // steps.shape[layout.index("h")]
        cos, sin = cos.repeat(times, -3), sin.repeat(times, -3)
    return pn.apply_rotary(x, None, pn.Tables(cos, sin), layout=layout, **options), phases


@NEEDS_NATIVE
@given(st.data())
def test_one_pass_has_the_bits_of_its_parts(data: Any) -> None:
    """The kernel of all three takes heads and tokens in other runs than each of them alone."""
    layout = data.draw(st.sampled_from(LAYOUTS))
    pairs, start, rest = (data.draw(st.integers(*ends)) for ends in ((1, 40), (0, 3), (0, 3)))
    groups, shared = data.draw(st.sampled_from([(1, 1), (1, 3), (2, 1), (3, 2)]))
    sizes = {"b": 2, "s": data.draw(st.integers(0, 70)), "h": groups * shared}
    width = 2 * pairs + start + rest

    def numbers(dtype: str, heads: int, last: int, apart: int) -> Array:
        """Heads that are slices of longer rows, `apart` heads more."""
        shape = [heads + apart if n == "h" else sizes[n] for n in layout[:-1]]
        made = rng.standard_normal((*shape, last)).astype(dtype)
        return made[tuple(slice(heads) if n == "h" else slice(None) for n in layout)]

    apart = data.draw(st.sampled_from([0, 0, 2]))
    dtype = data.draw(st.sampled_from(["float16", "float32", "float64"]))
    of_steps = data.draw(st.sampled_from(["float16", "float32", "float64"]))
    q = numbers(dtype, groups * shared, width, apart)
    k = numbers(dtype, groups, width, 0) if data.draw(st.booleans()) else None
    steps = numbers(of_steps, groups, pairs, apart) * data.draw(st.sampled_from([0.01, 1, 3000]))
    steps = steps.astype(of_steps)
    letters = [n for n in "bh" if n in layout]
    shape = [{"b": 2, "h": groups}[n] for n in letters] + [pairs]
    state = rng.integers(-(2**63), 2**63 - 1, shape) if data.draw(st.booleans()) else None
    kind = st.sampled_from(["half", "interleaved", 2 * pairs])
    options = {
        "layout": layout, "pairing": data.draw(kind), "rotary_start": start,
        "inverse": data.draw(st.booleans()), "out_pairing": data.draw(kind | st.just("same")),
    }  # fmt: skip
    scale = data.draw(st.sampled_from([1.0, 0.75]))
    wanted = [None if x is None else in_parts(x, steps, state, scale=scale, **options)
              for x in (q, k)]  # fmt: skip
    way = data.draw(st.sampled_from(["new", "out", "in place"]))
    to: dict[str, Any] = {}
    if way == "out":
        to["out"] = tuple(x if x is None else np.empty(x.shape, x.dtype) for x in (q, k))
    elif way == "in place":
        to["inplace"] = True
    *found, after = pn.selective_rotary_qk(
        q, k, steps, state=state, scale=scale, **options, **to
    )  # fmt: skip
    for pair, y in zip(wanted, found, strict=True):
        assert (pair is None) == (y is None)
        if pair is not None:
            np.testing.assert_array_equal(y, pair[0])
    last = np.zeros(shape, np.int64) if state is None else state
    if sizes["s"] > 0:
        assert wanted[0] is not None
        last = wanted[0][1][..., -1, :]
    np.testing.assert_array_equal(after, last)


@pytest.mark.parametrize("past_the_cache", [False, True])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_pass_has_the_bits_of_phases_in_memory(
    dtype: str, pairing: str, past_the_cache: bool, target: str
) -> None:
    """Steps that are no neighbors have phases in memory. Results lie at any address.

    24 and 48 pairs leave a group of vectors alone where two go together.
    """
    sharing = [(1, 1), (4, 1), (5, 2), (17, 1), (3, None), (None, 1), (0, 2), (2, 0)]
    for (of_q, of_k), heads, pairs in itertools.product(sharing, (1, 3), (24, 48, 64)):
        names = [None if n is None else (2, 19, n * heads, 2 * pairs) for n in (of_q, of_k)]
        tensors = [
            None if shape is None else rng.standard_normal(shape).astype(DTYPES[dtype])
            for shape in names
        ]
        apart = (rng.standard_normal((2, 19, heads, 2 * pairs)) * 9).astype(DTYPES[dtype])[..., ::2]
        options = {"layout": "bshd", "pairing": pairing, "inverse": of_q == 4, "scale": 0.75}
        wanted = pn.selective_rotary_qk(*tensors, apart, **options)
        steps = np.ascontiguousarray(apart)
        for offset in (None, 0, DTYPES[dtype].itemsize, 16):
            copies = [x if x is None else _at(x, offset or 0) for x in tensors]
            to: dict[str, Any] = {"inplace": True}
            if offset is not None:
                to = {"out": tuple(x if x is None else _at(x, offset) for x in tensors)}
            with written_past_the_cache() if past_the_cache else nullcontext():
                found = pn.selective_rotary_qk(*copies, steps, **options, **to)
            for one, other in zip(found, wanted, strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    assert_same_bits(one, other)


def _at(x: Array, offset: int) -> Array:
    """A copy that begins so many bytes past a multiple of 64."""
    copy = aligned(x.shape, x.dtype, offset)
    copy[...] = x
    return copy


@NEEDS_NATIVE
@pytest.mark.parametrize("threads", [2, 5])
def test_rows_that_are_cut_for_threads(threads: int) -> None:
    """Each piece begins where the pieces before it end: of long rows, short ones and empty ones."""
    starts = np.cumsum([0, 0, 1, 2900, 63, 65, 0, 1071])
    q = rng.standard_normal((starts[-1], 4, 64)).astype(np.float32)
    steps = rng.standard_normal((starts[-1], 2, 32)).astype(np.float32)
    state = rng.integers(-(2**63), 2**63 - 1, (7, 2, 32))
    before = pn.get_num_threads()
    calls = []
    for count in (1, threads):
        pn.set_num_threads(count)
        calls.append(pn.selective_rotary_qk(q, None, steps, layout="thd", starts=starts,
                                            state=state))  # fmt: skip
    pn.set_num_threads(before)
    np.testing.assert_array_equal(calls[0][0], calls[1][0])
    np.testing.assert_array_equal(calls[0][2], calls[1][2])
    begin, end = starts[3:5]
    row = pn.selective_rotary_qk(q[begin:end], None, steps[begin:end], layout="shd",
                                 state=state[3])  # fmt: skip
    np.testing.assert_array_equal(row[0], calls[1][0][begin:end])
    np.testing.assert_array_equal(row[2], calls[1][2][3])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.booleans(), st.booleans())
def test_packed_rows_are_rows_apart(lengths: list[int], with_states: bool, tensors: bool) -> None:
    starts = np.cumsum([0, *lengths])
    tokens = int(starts[-1])
    q, k = (rng.standard_normal((tokens, h, 8)).astype(np.float32) for h in (4, 2))
    steps = rng.standard_normal((tokens, 2, 4)).astype(np.float32)
    states = rng.integers(-(2**63), 2**63 - 1, (len(lengths), 2, 4)) if with_states else None
    given: list[Any] = [q, k, steps]
    more: dict[str, Any] = {"state": states, "starts": starts}
    if tensors:
        torch = pytest.importorskip("torch")
        given = list(map(torch.from_numpy, given))
        more = {n: v if v is None else torch.from_numpy(v) for n, v in more.items()}
    *rotated, after = pn.selective_rotary_qk(*given, layout="thd", **more)
    for row, (begin, end) in enumerate(itertools.pairwise(starts)):
        own = None if states is None else states[row]
        alone = pn.selective_rotary_qk(
            q[begin:end], k[begin:end], steps[begin:end], layout="shd", state=own
        )
        for a, b in zip(rotated, alone, strict=False):
            assert np.array_equal(np.asarray(a)[begin:end], b)
        assert np.array_equal(np.asarray(after)[row], alone[2])


def test_of_q_alone_and_of_k_alone() -> None:
    q, k, steps = inputs("bshd", 2)
    both = pn.selective_rotary_qk(q, k, steps, layout="bshd")
    of_q = pn.selective_rotary_qk(q, None, steps, layout="bshd")
    of_k = pn.selective_rotary_qk(None, k, steps, layout="bshd")
    assert of_q[1] is None
    assert of_k[0] is None
    assert np.array_equal(of_q[0], both[0])
    assert np.array_equal(of_k[1], both[1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_rounded_once(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    q, k, steps = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in inputs("bshd", 1))
    found = pn.selective_rotary_qk(q, k, steps, layout="bshd")[0]
    wide = pn.selective_rotary_qk(q.float(), k.float(), steps, layout="bshd")[0]
    assert found.dtype == q.dtype
    assert torch.equal(found, wide.to(q.dtype))


def test_where_results_go() -> None:
    q, k, steps = inputs("bshd", 1)
    expected = pn.selective_rotary_qk(q, k, steps, layout="bshd")
    out = np.empty_like(q), np.empty_like(k)
    found = pn.selective_rotary_qk(q, k, steps, out=out, layout="bshd")
    assert (found[0] is out[0], found[1] is out[1]) == (True, True)
    own = q.copy(), k.copy()
    in_place = pn.selective_rotary_qk(*own, steps, inplace=True, layout="bshd")
    assert (in_place[0] is own[0], in_place[1] is own[1]) == (True, True)
    for a, b, c in zip(expected, found, in_place, strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, c)


# --- errors: nothing has been written then ---

WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "fewer tokens": (
        {"steps": np.ones((2, 8, 1, 4))}, ValueError, r"steps: expected shape \[b, s, h, P\] = ",
    ),
    "heads": ({"steps": np.ones((2, 9, 4, 4))}, ValueError, "heads that divide those of q and k"),
    "a NaN": ({"steps": np.full((2, 9, 1, 4), np.nan)}, ValueError, "steps: expected finite"),
    "too many pairs": ({"steps": np.ones((2, 9, 1, 7))}, ValueError, "steps: expected at most 6"),
    "a float state": ({"state": np.zeros((2, 1, 4), np.float32)}, TypeError, r"2\^64 / \(2 pi\)"),
    "a state's shape": (
        {"state": np.zeros((2, 4), np.int64)}, ValueError, r"shape \[b, h, P\] = \[2, 1, 4\]",
    ),
    "starts of a batch": ({"starts": [0, 9]}, ValueError, 'write packed rows as "thd"'),
    "k": ({"k": np.ones((1, 9, 2, 12), np.float32)}, ValueError, "k: expected the shape of q "),
    "neither": ({"q": None, "k": None}, TypeError, "q: expected q, k or both"),
    "groups": ({"layout": "bsghd"}, ValueError, "q: expected 5 axes"),
    "scale": ({"scale": np.inf}, ValueError, "scale: expected a finite number"),
    "a word": ({"positions": 3}, TypeError, "positions: expected a keyword of q, k, steps, state"),
    "pairing": ({"pairing": "whole"}, ValueError, "pairing: expected 'half'"),
    "an order of tokens on one rank": (
        {"order": "zigzag"}, ValueError, "order: expected 'contiguous' unless DTensors are cut",
    ),
    "an unknown order": ({"order": "ring"}, ValueError, "order: expected one of contiguous, zig"),
    "one out": ({"out": (np.ones(3),)}, TypeError, "out: expected a pair"),
    "a bool as out": ({"out": True}, TypeError, "out: expected a pair .*, got bool"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_step_that_is_no_angle_is_seen_at_any_place(dtype: str, backend: str) -> None:
    q, steps = (np.ones((1, 1, 1, n), DTYPES[dtype]) for n in (280, 140))
    for place, wrong in itertools.product(range(140), (np.nan, -(2.0**32))):
        steps[..., place] = wrong
        with pytest.raises(ValueError, match="steps: expected finite"):
            pn.selective_rotary_qk(q, None, steps)
        steps[..., place] = 2.0**31
    pn.selective_rotary_qk(q, None, steps)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str, tensors: bool) -> None:
    changes, kind, words = WRONG[name]
    q, k, steps = inputs("bshd", 1)
    call: dict[str, Any] = {"q": q.copy(), "k": k.copy(), "steps": steps, "inplace": True}
    call |= changes
    if "out" in changes:
        del call["inplace"]
    if tensors:
        torch = pytest.importorskip("torch")
        call = {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in call.items()}
    with pytest.raises(kind, match=f"^selective_rotary_qk: .*{words}"):
        pn.selective_rotary_qk(
            call.pop("q"), call.pop("k"), call.pop("steps"), **{"layout": "bshd", **call}
        )
    if changes.keys().isdisjoint(("q", "k")) and not tensors:
        untouched = {"q": q.copy(), "k": k.copy(), "steps": steps, "inplace": True} | changes
        untouched.pop("inplace" if "out" in changes else "", None)
        given = untouched.pop("q"), untouched.pop("k"), untouched.pop("steps")
        with pytest.raises(kind):
            pn.selective_rotary_qk(*given, **{"layout": "bshd", **untouched})
        assert np.array_equal(given[0], q)
        assert np.array_equal(given[1], k)


def test_integers_that_only_uint64_holds_are_refused_by_name() -> None:
    torch = pytest.importorskip("torch")
    q, steps = np.zeros((3, 2), np.float32), np.zeros((3, 1), np.float32)
    for of in (np.asarray, torch.as_tensor):
        for starts, words in ((2**63, "shape"), (np.array([2**63], np.ulonglong), "rising")):
            with pytest.raises(ValueError, match=f"^selective_rotary_qk: starts: .*{words}"):
                pn.selective_rotary_qk(of(q), of(q), of(steps), starts=starts, layout="td")
        longlong = np.array([0, 3], np.ulonglong)
        rotated = pn.selective_rotary_qk(of(q), of(q), of(steps), starts=longlong, layout="td")
        assert rotated[0].shape == (3, 2)


# --- derivatives ---


def leaves(*shapes: tuple[int, ...]) -> list[Any]:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"pairing": "interleaved", "out_pairing": "half", "inverse": True, "scale": 1.5},
    {"pairing": 4, "rotary_start": 1},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_derivatives(options: dict[str, Any]) -> None:
    """Of the first and of the second order, forwards too, by finite differences."""
    torch = pytest.importorskip("torch")

    def function(q: Any, k: Any, steps: Any) -> Any:
        return pn.selective_rotary_qk(q, k, steps, **{"layout": "bshd", **options})[:2]

    args = leaves((1, 3, 2, 10), (1, 3, 4, 10), (1, 3, 2, 4))
    check, second = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    assert check(function, args, fast_mode=True, check_forward_ad=True)
    assert check(function, args, fast_mode=True, check_batched_grad=True)
    assert second(function, args, fast_mode=True, check_batched_grad=True)


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_that_are_derived_again_are_the_same(options: dict[str, Any]) -> None:
    """torch's operations compute them: gradgradcheck compares them with themselves alone."""
    torch = pytest.importorskip("torch")
    args = leaves((1, 3, 2, 10), (1, 3, 4, 10), (1, 3, 2, 4))
    rotated = pn.selective_rotary_qk(*args, layout="bshd", **options)[:2]
    grads = [torch.randn_like(x) for x in rotated]
    plain = torch.autograd.grad(rotated, args, grads, retain_graph=True)
    again = torch.autograd.grad(rotated, args, grads, create_graph=True)
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)  # of numbers up to 10


def test_derivatives_of_packed_rows() -> None:
    torch = pytest.importorskip("torch")
    starts = torch.tensor([0, 2, 2, 5])

    def function(q: Any, steps: Any) -> Any:
        return pn.selective_rotary_qk(q, None, steps, layout="thd", starts=starts)[0]

    args = leaves((5, 2, 8), (5, 1, 4))
    assert torch.autograd.gradcheck(function, args, fast_mode=True, check_forward_ad=True)


@pytest.mark.parametrize("kind", ["list", "array", "int64", "int32"])
def test_rows_that_change_before_the_backward(kind: str) -> None:
    """Lists and arrays are copied; torch raises an error for a tensor, as for one of the others."""
    torch = pytest.importorskip("torch")
    rows = [0, 2, 5]
    starts: Any = rows.copy()
    if kind != "list":
        starts = (
            np.array(rows) if kind == "array" else torch.tensor(rows, dtype=getattr(torch, kind))
        )
    args = leaves((5, 2, 8), (5, 2, 8), (5, 1, 4))
    rotated = pn.selective_rotary_qk(*args, layout="thd", starts=starts)[:2]
    grads = [torch.randn_like(x) for x in rotated]
    expected = torch.autograd.grad(rotated, args, grads, retain_graph=True)
    starts[1] = 4
    if isinstance(starts, torch.Tensor):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(rotated, args, grads)
    else:
        found = torch.autograd.grad(rotated, args, grads)
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("shape", [(0, 5, 4), (2, 0, 4), (2, 5, 0)])
def test_gradients_of_nothing(shape: tuple[int, ...]) -> None:
    """A rank may have no row, no token or no head."""
    torch = pytest.importorskip("torch")
    q, steps = torch.ones(*shape, 6, requires_grad=True), torch.ones(*shape, 2, requires_grad=True)
    rotated, _, state = pn.selective_rotary_qk(q, None, steps, layout="bshd")
    rotated.sum().backward()
    assert q.grad.shape == q.shape
    assert steps.grad.shape == steps.shape
    assert state.shape == (shape[0], shape[2], 2)
    assert not state.any()


def test_only_inputs_are_kept() -> None:
    q, k, steps = leaves((1, 3, 2, 8), (1, 3, 2, 8), (1, 3, 1, 4))
    rotated, _, state = pn.selective_rotary_qk(q, k, steps, layout="bshd")
    assert [id(x) for x in rotated.grad_fn.saved_tensors if x is not None] == [
        id(x) for x in (q, k, steps)
    ]
    assert not state.requires_grad
    # Gradients of q and k need neither.
    rotated, _, _ = pn.selective_rotary_qk(q, k, steps.detach(), layout="bshd")
    assert [x is None for x in rotated.grad_fn.saved_tensors] == [True, True, False, True, True]


def test_the_gradient_of_a_million_steps() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    tokens = 2**20
    q, grad = torch.randn(2, 1, tokens, 1, 2)
    steps = (0.5 + 0.1 * torch.randn(1, tokens, 1, 1)).requires_grad_()
    pn.selective_rotary_qk(q, None, steps, layout="bshd")[0].backward(grad)
    exact = steps.detach().double().requires_grad_()
    pn.selective_rotary_qk(q.double(), None, exact, layout="bshd")[0].backward(grad.double())
    assert exact.grad is not None
    off = (steps.grad.double() - exact.grad).abs().max() / exact.grad.abs().max()
    assert float(off) < 1e-6
    again = steps.detach().clone().requires_grad_()
    pn.selective_rotary_qk(q, None, again, layout="bshd")[0].backward(grad)
    assert torch.equal(again.grad, steps.grad)


def test_where_steps_learn_results_are_new() -> None:
    q, k, steps = leaves((1, 3, 2, 8), (1, 3, 2, 8), (1, 3, 1, 4))
    for where in ({"inplace": True}, {"out": (q.detach(), k.detach())}):
        with pytest.raises(ValueError, match="new tensors if steps require a gradient"):
            pn.selective_rotary_qk(q, k, steps, layout="bshd", **where)


def test_compiled_with_every_option_at_its_default() -> None:
    """torch.compile does not pass options that have the operator's defaults."""
    torch = pytest.importorskip("torch")
    q, k = (torch.randn(2, 3, 5, 8) for _ in range(2))
    steps = torch.randn(2, 3, 5, 4)
    call = torch.compile(
        partial(pn.selective_rotary_qk, layout="bshd"), fullgraph=True, backend="aot_eager"
    )
    found = call(q, k, steps, layout="bhsd")
    for one, other in zip(found, pn.selective_rotary_qk(q, k, steps, layout="bhsd"), strict=True):
        assert torch.equal(one, other)
    torch.compiler.reset()


def test_torch_func_and_compile() -> None:
    torch = pytest.importorskip("torch")
    q, k, steps = (x.detach().float() for x in leaves((2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 2, 4)))

    def loss(steps: Any) -> Any:
        rotated = pn.selective_rotary_qk(q, k, steps, layout="bshd")
        return (rotated[0] ** 3).sum() + (rotated[1] ** 2 * k).sum()

    own = steps.clone().requires_grad_()
    loss(own).backward()
    by_func = torch.func.grad(loss)(steps)
    torch.testing.assert_close(by_func, own.grad, rtol=1e-4, atol=1e-4)
    per_row = torch.vmap(lambda q, k, s: pn.selective_rotary_qk(q, k, s, layout="shd")[:2])(
        q, k, steps
    )
    expected = pn.selective_rotary_qk(q, k, steps, layout="bshd")
    assert all(torch.equal(a, b) for a, b in zip(per_row, expected, strict=False))
    call: Callable[..., Any] = torch.compile(
        partial(pn.selective_rotary_qk, layout="bshd"), fullgraph=True, backend="aot_eager"
    )
    assert all(
        torch.equal(a, b) for a, b in zip(call(q, k, steps, layout="bshd"), expected, strict=True)
    )
    compiled = steps.clone().requires_grad_()
    (call(q, k, compiled, layout="bshd")[0] ** 3).sum().backward()
    eager = steps.clone().requires_grad_()
    (pn.selective_rotary_qk(q, k, eager, layout="bshd")[0] ** 3).sum().backward()
    torch.testing.assert_close(compiled.grad, eager.grad)
    torch.compiler.reset()


def test_an_exported_model_takes_any_length() -> None:
    torch = pytest.importorskip("torch")

    class Rotates(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, *given: Any) -> Any:
            return pn.selective_rotary_qk(*given, layout="bshd")

    given = tuple(torch.randn(2, 5, h, width) for h, width in ((4, 8), (2, 8), (2, 4)))
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(
        Rotates(), given, dynamic_shapes={"given": ({1: length},) * 3}
    ).module()
    longer = tuple(x.repeat(1, 3, 1, 1) for x in given)
    results = pn.selective_rotary_qk(*longer, layout="bshd")
    for found, expected in zip(program(*longer), results, strict=True):
        assert torch.equal(found, expected)


def test_compiled_code_refuses_what_is_no_angle_or_makes_nan_of_it(backend: str) -> None:
    """The operator looks at steps when it runs; a composition cannot, here as on CUDA."""
    torch = pytest.importorskip("torch")
    from posenc_native.engines.torch.library import operators_in_use

    q, steps = torch.randn(1, 6, 1, 4), torch.zeros(1, 6, 1, 2)
    steps[0, 3, 0, 1] = float("nan")
    torch.compiler.reset()
    call = torch.compile(
        partial(pn.selective_rotary_qk, layout="bshd"), fullgraph=True, backend="aot_eager"
    )
    if operators_in_use():
        with pytest.raises(RuntimeError, match="ValueError: selective_rotary_qk: steps"):
            call(q, None, steps, layout="bshd")
    else:
        wrong = call(q, None, steps, layout="bshd")[0].isnan()[0, :, 0]
        assert wrong.tolist() == [[False] * 4] * 3 + [[False, True, False, True]] * 3
    torch.compiler.reset()
