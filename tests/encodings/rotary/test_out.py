"""out= of norm_rotary_qk and rotary_append: the same bits, in memory that the caller has."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from oracle import assert_same_bits
from targets import written_past_the_cache

import posenc_native as pn

D, S = 16, 5
INV_FREQ = pn.rotary.rotary_frequencies(D)[0]
TABLES = pn.rotary_tables(S, INV_FREQ)
COMPILED = pytest.param("compiled", marks=pytest.mark.slow)
WEIGHT = np.linspace(0.5, 1.5, D, dtype=np.float32)


def heads(count: int, seed: int, tokens: int = S) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, count, tokens, D)).astype(np.float32)


class Inputs:
    """q, k, v, caches and memory for results of NumPy or torch; made anew, the same numbers."""

    def __init__(self, of: Any = lambda a: a, repeat: int = 1) -> None:
        arrays = [heads(4 * repeat, 0), heads(2, 1), heads(2, 2)]
        self.q, self.k, self.v = map(of, arrays)
        self.q_out, self.k_out = of(np.full_like(arrays[0], -7)), of(np.full_like(arrays[1], -7))
        self.keys, self.values = (of(np.zeros((2, 2, 9, D), np.float32)) for _ in range(2))
        self.slots = of(np.array([[3, 0, 8, -1, 1], [0, 1, 2, 3, 4]]))
        self.inv_freq, self.cos, self.sin = of(INV_FREQ), of(TABLES[0]), of(TABLES[1])
        self.weight = of(WEIGHT)
        self.all = [self.q, self.k, self.v, self.q_out, self.k_out, self.keys, self.values]


def norm(i: Inputs, **options: Any) -> Any:
    return pn.norm_rotary_qk(i.q, i.k, None, i.inv_freq, q_weight=i.weight, **options)


def norm_by_tables(i: Inputs, **options: Any) -> Any:
    return pn.norm_rotary_qk(i.q, i.k, None, pn.Tables(i.cos, i.sin), k_weight=i.weight, **options)


def append(i: Inputs, **options: Any) -> Any:
    cache = i.keys, i.values, i.slots
    return pn.rotary_append(i.q, i.k, i.v, None, i.inv_freq, *cache, q_weight=i.weight, **options)


def append_by_tables(i: Inputs, **options: Any) -> Any:
    return pn.rotary_append(
        i.q, i.k, i.v, None, pn.Tables(i.cos, i.sin), i.keys, i.values, i.slots, **options
    )


BOTH = {
    "norm": norm,
    "norm by tables": norm_by_tables,
    "append": lambda i, **o: append(i, return_k=True, **o),
    "append by tables": lambda i, **o: append_by_tables(i, return_k=True, **o),
}
ALONE = {"append": append, "append by tables": append_by_tables}


def tensors(torch: Any) -> Any:
    return lambda a: torch.tensor(np.asarray(a))


def same(ours: Any, theirs: Any) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert_same_bits(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", BOTH)
def test_both(name: str, backend: str) -> None:
    plain, given = Inputs(), Inputs()
    expected = BOTH[name](plain)
    results = BOTH[name](given, out=(given.q_out, given.k_out))
    assert results[0] is given.q_out
    assert results[1] is given.k_out
    same(results, expected)
    same((given.keys, given.values), (plain.keys, plain.values))
    same((given.q, given.k, given.v), (plain.q, plain.k, plain.v))
    # One of them where it is.
    half = Inputs()
    results = BOTH[name](half, out=(half.q, half.k_out))
    assert results[0] is half.q
    same(results, expected)


@pytest.mark.parametrize("name", ALONE)
def test_q_alone(name: str, backend: str) -> None:
    plain, given = Inputs(), Inputs()
    expected = ALONE[name](plain)
    assert ALONE[name](given, out=given.q_out) is given.q_out
    same([given.q_out], [expected])
    same((given.keys, given.values), (plain.keys, plain.values))
    assert (given.k_out == -7).all()
    assert ALONE[name](given, out=given.q) is given.q
    same([given.q], [expected])


@pytest.mark.parametrize("name", BOTH)
def test_on_every_target(name: str, target: str) -> None:
    """In the cache, and past it, as results of 1 MiB are written here."""
    plain = Inputs(repeat=1000)
    expected = BOTH[name](plain)
    for threshold in (1 << 40, 1 << 20):
        given = Inputs(repeat=1000)
        with written_past_the_cache(threshold):
            same(BOTH[name](given, out=(given.q_out, given.k_out)), expected)
        same((given.keys, given.values), (plain.keys, plain.values))


@pytest.mark.parametrize("way", ["door", "operators", "plain", COMPILED])
@pytest.mark.parametrize("name", BOTH)
def test_tensors(name: str, way: str) -> None:
    torch = pytest.importorskip("torch")
    from torch_cases import plain_operations, without_the_door

    plain, given = (Inputs(tensors(torch)) for _ in range(2))
    expected = BOTH[name](plain)
    versions = [x._version for x in (given.q_out, given.k_out)]
    call = BOTH[name]
    if way == "compiled":
        torch.compiler.reset()
        call = torch.compile(call, fullgraph=True)
    if way == "plain":
        plain = Inputs(tensors(torch))
        with plain_operations():
            expected = call(plain)
            results = call(given, out=(given.q_out, given.k_out))
    else:
        with without_the_door() if way == "operators" else contextlib.nullcontext():
            results = call(given, out=(given.q_out, given.k_out))
    if way != "compiled":
        assert results[0] is given.q_out
        assert results[1] is given.k_out
        assert all(
            x._version > before
            for x, before in zip((given.q_out, given.k_out), versions, strict=True)
        )
    same(results, expected)
    same((given.q_out, given.k_out), expected)
    same((given.keys, given.values), (plain.keys, plain.values))


@pytest.mark.parametrize("name", BOTH)
def test_another_view_of_the_same_memory(name: str, backend: str) -> None:
    torch = pytest.importorskip("torch")
    plain, given = (Inputs(tensors(torch)) for _ in range(2))
    expected = BOTH[name](plain)
    same(BOTH[name](given, out=(given.q.view_as(given.q), given.k_out)), expected)
    same((given.q, given.k_out), expected)


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("way", ["small", "operators", COMPILED])
def test_q_alone_of_tensors(name: str, way: str) -> None:
    torch = pytest.importorskip("torch")
    plain, given = (Inputs(tensors(torch), 1000 if way == "operators" else 1) for _ in range(2))
    expected, call = ALONE[name](plain), ALONE[name]
    if way == "compiled":
        torch.compiler.reset()
        call = torch.compile(call, fullgraph=True)
    call(given, out=given.q_out)
    same((given.q_out, given.keys, given.values), (expected, plain.keys, plain.values))


@pytest.mark.parametrize("name", BOTH)
def test_no_gradient(name: str) -> None:
    torch = pytest.importorskip("torch")
    i = Inputs(tensors(torch))
    i.q.requires_grad_()
    with pytest.raises(ValueError, match="out: expected no out if a gradient is required"):
        BOTH[name](i, out=(i.q_out, i.k_out))
    with torch.no_grad():
        BOTH[name](i, out=(i.q_out, i.k_out))


@pytest.mark.parametrize("name", BOTH)
def test_out_requires_no_gradient(name: str) -> None:
    torch = pytest.importorskip("torch")
    i = Inputs(tensors(torch))
    i.k_out.requires_grad_()
    expected = r"out\[1\]: expected a tensor that requires no gradient"
    with pytest.raises(ValueError, match=expected):
        BOTH[name](i, out=(i.q_out, i.k_out))
    assert (i.q_out == -7).all()
