"""Keys rotated into a cache, values copied into one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from bad_calls import FREQ
from norms import CASES, Case
from oracle import DTYPES, assert_same_bits
from targets import written_past_the_cache

import posenc_native as pn

CASE = CASES[0]
HEADS, GROUPS = 4, 2


def step(tokens: int, dtype: Any, seed: int, layout: str = "bshd") -> list[np.ndarray]:
    """q, k and v of so many tokens; values are wider."""
    rng = np.random.default_rng(seed)
    sizes = {"b": 1, "s": tokens, "t": tokens}
    return [
        rng.standard_normal([{**sizes, "h": h, "d": d}[letter] for letter in layout]).astype(dtype)
        for h, d in ((HEADS, 128), (GROUPS, 128), (GROUPS, 48))
    ]


def caches(shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of keys and values, of numbers that nobody wrote."""
    return np.full((*shape, 128), 7, dtype), np.full((*shape, 48), 7, dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("normed", [True, False])
def test_decoding_through_three_kinds_of_cache(normed, dtype, target):
    """200 tokens, one after the other, are what all of them at once are: to the bit."""
    tokens, window, page = 200, 16, 8
    rng = np.random.default_rng(0)
    options = {"layout": "bshd"}
    if normed:
        options |= {f"{x}_weight": rng.standard_normal(128).astype(dtype) for x in "qk"}
    q, k, v = step(tokens, dtype, 1)
    positions = np.arange(tokens) + 2**30
    rotate = pn.norm_rotary_qk if normed else pn.apply_rotary_qk
    all_q, all_k = rotate(q, k, positions, CASE.inv_freq, **options)
    static = caches((1, tokens, GROUPS), dtype)
    ring = caches((1, GROUPS, window), dtype)
    paged = caches((40, page, GROUPS), dtype)
    table = rng.permutation(40)  # of the page that each run of tokens is on
    for t in range(tokens):
        one = [x[:, t : t + 1] for x in (q, k, v)]
        where = [positions[t : t + 1], CASE.inv_freq]
        slot = int(table[t // page] * page + t % page)
        for cache, cache_layout, at in (
            (static, "bshd", t), (ring, "bhsd", t % window), (paged, "pshd", slot)
        ):  # fmt: skip
            result = pn.rotary_append(
                *one, *where, *cache, [at], cache_layout=cache_layout, **options
            )
            assert_same_bits(result, all_q[:, t : t + 1])
    for y, cache in ((all_k, 0), (v, 1)):
        assert_same_bits(static[cache], y)
        pages = np.stack([paged[cache][table[t // page], t % page] for t in range(tokens)])
        assert_same_bits(pages, y[0])
        last = {t % window: t for t in range(tokens)}
        for slot, t in last.items():
            assert_same_bits(ring[cache][0, :, slot], y[0, t])


LAYOUTS = {"bshd": "bs", "bhsd": "bs", "thd": "t", "sbhd": "bs"}
CACHES = ["bhsd", "bshd", "shd", "hsd", "pshd", "phsd"]


@pytest.mark.parametrize("cache_layout", CACHES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_heads_and_caches(layout, cache_layout, target):
    """Prefill: k and v are where their slots say, and nothing else has been written."""
    dtype = np.float32
    rng = np.random.default_rng(5)
    tokens, batch = 6, 2 if "b" in layout else 1
    sizes = {"b": batch, "s": tokens, "t": tokens}
    q, k, v = (
        rng.standard_normal([{**sizes, "h": h, "d": d}[x] for x in layout]).astype(dtype)
        for h, d in ((HEADS, 128), (GROUPS, 128), (GROUPS, 48))
    )
    of_cache = {"b": batch, "p": 5, "s": 8, "h": GROUPS}
    if cache_layout in ("shd", "hsd"):
        of_cache["s"] = 40
    keys, values = caches(tuple(of_cache[x] for x in cache_layout[:-1]), dtype)
    most = 8 if "b" in cache_layout else 40
    slots = np.stack([rng.permutation(most)[:tokens] for _ in range(batch)])
    if "b" not in cache_layout:
        slots = rng.permutation(most)[: batch * tokens].reshape(batch, tokens)
    slots[0, 2] = -1
    for past, return_k in itertools.product((1, 1 << 40), (True, False)):
        keys[...], values[...] = 7, 7
        with written_past_the_cache(past):
            results = pn.rotary_append(
                q, k, v, None, CASE.inv_freq, keys, values, slots if "b" in layout else slots[0],
                layout=layout, cache_layout=cache_layout, return_k=return_k, norm=True,
            )  # fmt: skip
        expected = pn.norm_rotary_qk(q, k, None, CASE.inv_freq, layout=layout)
        for result, value in zip(results if return_k else [results], expected, strict=False):
            assert_same_bits(result, value)
        order = [cache_layout.index(x) for x in "bpshd" if x in cache_layout]
        letters = layout.replace("t", "s")
        for cache, y in ((keys, expected[1]), (values, v)):
            by_token = y[None] if "b" not in letters else y
            by_token = by_token.transpose(
                [("b" * ("b" not in letters) + letters).index(letter) for letter in "bshd"]
            )
            filled = np.full_like(cache, 7)
            by_slot = filled.transpose(order)
            for b, t in np.ndindex(batch, tokens):
                slot = slots[b, t]
                if slot < 0:
                    continue
                if "b" in cache_layout:
                    by_slot[b, slot] = by_token[b, t]
                elif "p" in cache_layout:
                    by_slot[slot // 8, slot % 8] = by_token[b, t]
                else:
                    by_slot[slot] = by_token[b, t]
            assert_same_bits(cache, filled)


@pytest.mark.parametrize(("cache_layout", "axis"), [
    *((layout, letter) for layout in ("bhsd", "pshd") for letter in layout), ("shd", "s"),
])  # fmt: skip
def test_caches_of_negative_strides(axis, cache_layout, target):
    """Reversed along any axis, a cache has what it has in the usual order; -1 goes nowhere."""
    rng = np.random.default_rng(6)
    tokens, dim = 6, 128 if axis != "d" else 16
    q, k, v = (rng.standard_normal((2, tokens, h, dim)).astype("f") for h in (HEADS, GROUPS, 2))
    of_cache = {"b": 2, "p": 4, "s": 8 if len(cache_layout) == 4 else 32, "h": GROUPS, "d": dim}
    slots = rng.permutation(8 if "b" in cache_layout else 32)[: 2 * tokens]
    slots = np.resize(slots, (2, tokens)) if len(slots) < 12 else slots.reshape(2, tokens)
    slots[0, 3] = -1
    written = []
    for turned in (False, True):
        keys, values = (np.full([of_cache[x] for x in cache_layout], 7, "f") for _ in range(2))
        if turned:
            keys, values = (np.flip(x, cache_layout.index(axis)) for x in (keys, values))
        for cos_sin in (False, True):
            angles = pn.Tables(*pn.rotary_tables(tokens, FREQ[:1])) if cos_sin else FREQ[:1]
            pn.rotary_append(
                q, k, v, None, angles, keys, values, slots, layout="bshd", cache_layout=cache_layout
            )
            written += [keys.copy(), values.copy()]
    assert np.count_nonzero(written[0] != 7) == (2 * tokens - 1) * GROUPS * dim
    for ordinary, reversed_ in zip(written[:4], written[4:], strict=True):
        assert_same_bits(reversed_, ordinary)


def test_values_are_copied_bit_for_bit(target):
    """Numbers that are none keep what they carry; so do strided values and caches."""
    q, k, _ = step(3, np.float32, 0)
    bits = np.random.default_rng(0).integers(0, 2**32, (1, 3, GROUPS, 48), np.uint32)
    bits[0, 0, 0, :3] = 0x7FA00001, 0xFFFFFFFF, 0x80000000
    v = bits.view(np.float32)
    for take in (lambda x: x, lambda x: np.stack([x, x], -1)[..., 0]):
        keys, values = (take(x) for x in caches((1, 5, GROUPS), np.float32))
        pn.rotary_append(
            q, k, take(v), None, CASE.inv_freq, keys, values, [4, 0, 2], layout="bshd",
            cache_layout="bshd",
        )  # fmt: skip
        assert_same_bits(np.ascontiguousarray(values[:, [4, 0, 2]]), v)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_without_a_norm_it_is_the_rotation(dtype, case: Case, target):
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((2, 5, h, case.dims)).astype(dtype) for h in (3, 2))
    keys, values = np.zeros((2, *k.shape), dtype)
    slots = np.arange(5)
    options = {"layout": "bshd", **case.options}
    results = pn.rotary_append(
        q, k, k.copy(), None, case.inv_freq, keys, values, slots, cache_layout="bshd",
        return_k=True, **options,
    )  # fmt: skip
    for result, value in zip(
        (*results, keys), (*(e := pn.apply_rotary_qk(q, k, None, case.inv_freq, **options)), e[1]),
        strict=True,
    ):  # fmt: skip
        assert_same_bits(result, value)


def test_in_place_k_is_overwritten_where_it_is_returned(backend):
    for return_k in (True, False):
        q, k, v = step(3, np.float32, 0)
        before = k.copy()
        keys, values = caches((1, 5, GROUPS), np.float32)
        results = pn.rotary_append(
            q, k, v, None, CASE.inv_freq, keys, values, [0, 1, 2], layout="bshd",
            cache_layout="bshd", return_k=return_k, inplace=True,
        )  # fmt: skip
        assert (results[0] if return_k else results) is q
        assert_same_bits(k, keys[:, :3] if return_k else before)


def test_gradients_reach_what_is_returned_and_not_the_cache():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in step(3, np.float32, 0))
    keys, values = (torch.from_numpy(x) for x in caches((1, 5, GROUPS), np.float32))
    inv_freq = torch.from_numpy(CASE.inv_freq)
    where = {"layout": "bshd", "cache_layout": "bshd", "return_k": True, "norm": True}
    results = pn.rotary_append(q, k, v, None, inv_freq, keys, values, [1, 4, 0], **where)
    sum(x.sum() for x in results).backward()
    assert v.grad is None
    assert not keys.requires_grad
    expected = [x.detach().requires_grad_() for x in (q, k)]
    both = pn.norm_rotary_qk(*expected, None, inv_freq, layout="bshd")
    sum(x.sum() for x in both).backward()
    assert torch.equal(q.grad, expected[0].grad)
    assert torch.equal(k.grad, expected[1].grad)
    assert torch.equal(keys[:, [1, 4, 0]], both[1].detach())
    with pytest.raises(ValueError, match="keys: expected a tensor that requires no gradient"):
        pn.rotary_append(q, k, v, None, inv_freq, keys.requires_grad_(), values, [1, 4, 0], **where)


@pytest.mark.parametrize(("compute", "pairing"), [(None, 4), ("as_written", "half")])
def test_a_gradient_without_a_norm_is_that_of_the_rotation(compute, pairing):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in step(3, np.float32, 0))
    keys, values = (torch.from_numpy(x) for x in caches((1, 5, GROUPS), np.float32))
    where = {"layout": "bshd", "cache_layout": "bshd", "return_k": True, "compute": compute}
    rope = pn.Rotary(128, layout="bshd", pairing=pairing)
    results = pn.rotary_append(q, k, v, None, rope, keys, values, [1, 4, 0], **where)
    sum((x * x.detach()).sum() for x in results).backward()
    expected = [x.detach().requires_grad_() for x in (q, k)]
    both = pn.apply_rotary_qk(*expected, None, rope)
    sum((x * x.detach()).sum() for x in both).backward()
    for x, y in zip((q, k), expected, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=2e-6)
    with pytest.raises(ValueError, match=r"^rotary_append: "):
        pn.rotary_append(q, k, v, None, torch.rand(99, 4), keys, values, [1, 4, 0], **where)


def test_compiled_steps_write_the_cache():
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    inv_freq = torch.from_numpy(CASE.inv_freq)

    def decode(q, k, v, position, keys, values):
        return pn.rotary_append(
            q, k, v, position, inv_freq, keys, values, position, layout="bshd",
            cache_layout="bshd", norm=True,
        )  # fmt: skip

    compiled = torch.compile(decode, fullgraph=True, backend="aot_eager")
    written = []
    for function in (decode, compiled):
        keys, values = (torch.from_numpy(x) for x in caches((1, 9, GROUPS), np.float32))
        with torch.no_grad():
            results = [
                function(
                    *map(torch.from_numpy, step(1, np.float32, t)), torch.tensor([t]), keys, values
                )
                for t in range(4)
            ]
        written.append([*results, keys, values])
    for a, b in zip(*written, strict=True):
        assert torch.equal(a, b)
