"""Calls of one `Rotary` that follow each other: what it remembers of the last ones changes nothing.

A `Rotary` binds itself to calls that are alike (csrc/bindings/numpy/bound_rotary.cc). Each call
here is compared with that of a `Rotary` that has had none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from oracle import DTYPES, assert_same_bits

import posenc_native as pn
from posenc_native.engines import backend

pytestmark = pytest.mark.skipif(backend.native is None, reason="without native code")

OPTIONS: dict[str, Any] = {"head_dim": 16, "rotary_dim": 12, "pairing": "interleaved", "scale": 0.5}


def heads(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


def drawn(rng: np.random.Generator) -> Callable[[pn.Rotary], Any]:
    """A call, in few variants, so that some follow each other."""
    layout = rng.choice(["bhsd", "bshd"])
    tokens, count = int(rng.choice([1, 3])), int(rng.choice([2, 4]))
    dtype = rng.choice(["float32", "bfloat16"])
    width = int(rng.choice([16, 16, 16, 8]))  # some are refused
    options = {
        "layout": None if layout == "bhsd" else "bshd",
        "inverse": bool(rng.choice([False, False, True])),
        "inplace": bool(rng.choice([False, True])),
    }
    of_function = bool(rng.choice([False, True]))
    positions: Any = (7, np.arange(tokens) * 5, np.arange(tokens)[None] + 2, None)[rng.integers(4)]

    def shape(n: int) -> tuple[int, ...]:
        return (1, n, tokens, width) if layout == "bhsd" else (1, tokens, n, width)

    def call(rope: pn.Rotary) -> Any:
        q, k = heads(shape(count), dtype, 1), heads(shape(2), dtype, 2)
        try:
            if of_function:
                rotated = pn.apply_rotary_qk(q, k, positions, rope, **options)
            else:
                rotated = rope(q, k, positions, **options)
        except (ValueError, TypeError) as error:
            return str(error), q, k
        assert (rotated[0] is q) == options["inplace"]
        return (*rotated, q, k)

    return call


def assert_alike(ours: Any, theirs: Any) -> None:
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, str):
            assert a == b
        else:
            assert_same_bits(a, b)


@pytest.mark.parametrize("seed", range(8))
def test_calls_of_many_kinds(seed):
    rng = np.random.default_rng(seed)
    rope = pn.Rotary(**OPTIONS)
    for _ in range(60):
        call = drawn(rng)
        expected = call(pn.Rotary(**OPTIONS))
        for _ in range(int(rng.choice([1, 2, 9]))):  # alike, for some time
            assert_alike(call(rope), expected)


def test_other_frequencies_have_memories_of_their_own():
    q = heads((1, 2, 1, 16), "float32", 0)
    ropes = [pn.Rotary(16, base=base) for base in (1e4, 5e5)]
    for _ in range(4):
        for rope in ropes:
            expected = pn.apply_rotary_qk(q, q, 9, rope.inv_freq)
            assert_alike(rope(q, q.copy(), 9), expected)


def test_views_that_overlap_and_read_only_arrays():
    rope = pn.Rotary(16)
    memory = heads((1, 6, 1, 16), "float32", 3)
    for _ in range(4):
        rope(memory[:, :2].copy(), memory[:, :2].copy(), 5, inplace=True)
    q, k = memory[:, :4], memory[:, 2:]  # k is q in part
    assert_alike(rope(q, k, 5), pn.apply_rotary_qk(q, k, 5, rope))
    with pytest.raises(ValueError, match=r"overlap|memory in common"):
        rope(memory[:, :2], memory[:, 1:3], 5, inplace=True)
    fixed = memory[:, :2].copy()
    fixed.flags.writeable = False
    before = fixed.copy()
    with pytest.raises(ValueError, match="writ"):
        rope(fixed, memory[:, 2:4].copy(), 5, inplace=True)
    assert_same_bits(fixed, before)


def test_tensors_modes_and_gradients():
    torch = pytest.importorskip("torch")
    rope = pn.Rotary(16)
    q, k = (torch.randn(1, heads, 1, 16) for heads in (4, 2))
    expected = pn.apply_rotary_qk(q, k, 3, rope)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(rope(q, k, 3), expected, strict=True))
    learned = q.clone().requires_grad_()
    for _ in range(3):
        rotated, _ = rope(learned, k, 3)
        assert rotated.requires_grad
    torch.autograd.grad(rotated.sum(), learned)
    with torch.device("meta"):  # a mode: nothing goes by it
        assert torch.equal(rope(q, k, 3)[0], expected[0])
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert type(rope(mode.from_tensor(q), mode.from_tensor(k), 3)[0]) is not torch.Tensor
    version = q._version
    rope(q, k, 3, inplace=True)
    rope(q, k, 3, inplace=True)
    assert q._version == version + 2


def test_one_description_in_many_threads():
    rope = pn.Rotary(16)
    failed: list[Exception] = []

    def run(seed: int) -> None:
        q = heads((1, seed + 1, 1 + seed % 2, 16), "float32", seed)
        expected = pn.apply_rotary_qk(q, q, 11, rope.inv_freq)
        try:
            for i in range(300):
                assert_alike(rope(q, q.copy(), 11), expected)
                if i % 7 == seed:
                    rope(q.astype(np.float64), q.astype(np.float64), 11, layout="bshd")
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
