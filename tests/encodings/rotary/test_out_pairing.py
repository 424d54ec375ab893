"""out_pairing: pairs are written as another pairing has them, to the bits of a rotation and a move.

interleaved    a0 b0 a1 b1 a2 b2 a3 b3
half           a0 a1 a2 a3 b0 b1 b2 b3      DeepSeek-V3, Megatron's multi-head latent attention
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
from arrays import number_views
from hypothesis import given
from hypothesis import strategies as st
from oracle import assert_same_bits
from targets import written_past_the_cache

import posenc_native as pn

PAIRINGS = ("interleaved", "half", 4, 8)
MOVES = [(a, b) for a, b in itertools.product(PAIRINGS, PAIRINGS) if a != b]
OPTIONS = [
    {"pairing": a, "out_pairing": b}
    for a, b in [("interleaved", "half"), ("half", "interleaved"), (4, 8)]
]
DTYPES = ["float16", "bfloat16", "float32", "float64"]


def dims_of_pairs(pairing: Any, pairs: int) -> np.ndarray:
    """[P, 2]: where the partners of each pair are, counted out one by one."""
    block = {"half": 2 * pairs, "interleaved": 2}.get(pairing, pairing)
    dims = []
    for first in range(0, 2 * pairs, block):
        dims += [(first + i, first + i + block // 2) for i in range(block // 2)]
    return np.array(dims, int).reshape(-1, 2)


def moved(x: np.ndarray, pairing: Any, out_pairing: Any, start: int, pairs: int) -> np.ndarray:
    """x with its pairs where out_pairing has them."""
    result = x.copy()
    result[..., start + dims_of_pairs(out_pairing, pairs)] = x[
        ..., start + dims_of_pairs(pairing, pairs)
    ]
    return result


def heads(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(shape)
    if dtype == "bfloat16":
        ml_dtypes = pytest.importorskip("ml_dtypes")
        return x.astype(ml_dtypes.bfloat16)
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("pairing", "out_pairing"), MOVES)
def test_to_the_bits_of_a_rotation_and_a_move(
    target: str, pairing: Any, out_pairing: Any, dtype: str
) -> None:
    """Heads of whole vectors and others, with and without dims that stay."""
    for pairs, start, rest in [(64, 0, 0), (32, 64, 32), (8, 3, 5), (24, 0, 1), (4, 1, 0)]:
        if any(type(b) is int and 2 * pairs % b for b in (pairing, out_pairing)):
            continue
        inv_freq = pn.rotary.rotary_frequencies(2 * pairs)[0]
        x = heads((2, 3, 7, start + 2 * pairs + rest), dtype)
        options: Any = {"pairing": pairing, "rotary_start": start}
        plain = pn.apply_rotary(x, None, inv_freq, **options)
        ours = pn.apply_rotary(x, None, inv_freq, out_pairing=out_pairing, **options)
        assert_same_bits(ours, moved(plain, pairing, out_pairing, start, pairs))
        pn.apply_rotary(x, None, inv_freq, out_pairing=out_pairing, out=x, **options)
        assert_same_bits(x, ours)


@given(data=st.data())
def test_any_strides(target: str, data: st.DataObject) -> None:
    """Slices, steps and turned axes, in place and not."""
    pairing, out_pairing = data.draw(st.sampled_from(MOVES))
    pairs = data.draw(st.sampled_from([4, 8, 20]))
    layout = data.draw(st.sampled_from(["bhsd", "bshd", "thd", "sd", "sbghd"]))
    start = data.draw(st.integers(0, 3))
    if any(type(b) is int and 2 * pairs % b for b in (pairing, out_pairing)):
        return
    sizes = {"b": 2, "h": 3, "s": 4, "t": 5, "g": 2, "d": start + 2 * pairs + 1}
    x = data.draw(
        number_views(tuple(sizes[letter] for letter in layout), np.dtype("float32"))
    ).array
    inv_freq = pn.rotary.rotary_frequencies(2 * pairs)[0]
    options: Any = {"layout": layout, "pairing": pairing, "rotary_start": start}
    plain = pn.apply_rotary(x, None, inv_freq, **options)
    expected = moved(plain, pairing, out_pairing, start, pairs)
    ours = pn.apply_rotary(x, None, inv_freq, out_pairing=out_pairing, **options)
    assert_same_bits(ours, expected)
    pn.apply_rotary(x, None, inv_freq, out_pairing=out_pairing, out=x, **options)
    assert_same_bits(x, expected)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_more_pairs_than_are_held_at_a_time(target: str, options: Any) -> None:
    pairs = 2500
    x = heads((2, 3, 2 * pairs))
    inv_freq = pn.rotary.rotary_frequencies(2 * pairs)[0]
    plain = pn.apply_rotary(x, None, inv_freq, layout="hsd", pairing=options["pairing"])
    expected = moved(plain, options["pairing"], options["out_pairing"], 0, pairs)
    assert_same_bits(pn.apply_rotary(x, None, inv_freq, layout="hsd", **options), expected)
    pn.apply_rotary(x, None, inv_freq, layout="hsd", out=x, **options)
    assert_same_bits(x, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_large_results(target: str, options: Any, dtype: str) -> None:
    """Those that are written past the cache, with and without dims that stay."""
    inv_freq = pn.rotary.rotary_frequencies(64)[0]
    for start, width, layout in [(0, 64, "bshd"), (0, 64, "bhsd"), (32, 128, "bshd")]:
        with written_past_the_cache(1 << 20):
            x = heads((1, 80, 80, width), dtype)
            rotation: Any = {"layout": layout, "rotary_start": start}
            plain = pn.apply_rotary(x, None, inv_freq, pairing=options["pairing"], **rotation)
            ours = pn.apply_rotary(x, None, inv_freq, **options, **rotation)
        expected = moved(plain, options["pairing"], options["out_pairing"], start, 32)
        assert_same_bits(ours, expected)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_q_and_k_by_positions_and_by_tables(backend: str, options: Any) -> None:
    """Also apart, alone, by rows, rounded as written, and turned back."""
    inv_freq = pn.rotary.rotary_frequencies(16)[0]
    q, k = heads((2, 4, 5, 24)), heads((2, 1, 5, 24), seed=1)
    kept = {"pairing": options["pairing"]}
    move = (options["pairing"], options["out_pairing"])
    tables = pn.rotary_tables(9, inv_freq)
    cos, sin = tables[0][:5], tables[1][:5]
    rows = np.array([3, 0, 8, 1, 1])
    calls: list[tuple[Any, Any]] = [
        (0, lambda q, k, **o: pn.apply_rotary_qk(q, k, None, inv_freq, **o)),
        (0, lambda q, k, **o: pn.apply_rotary_qk(q, k, (None, rows), inv_freq, **o)),
        (8, lambda q, k, **o: pn.apply_rotary_qk(q, k, None, inv_freq, rotary_start=8, **o)),
        (0, lambda q, k, **o: pn.apply_rotary_qk(q, k, None, pn.Tables(cos, sin), **o)),
        (0, lambda q, k, **o: pn.apply_rotary_qk(q, k, None, pn.Tables(*tables, rows=rows), **o)),
        (
            0,
            lambda q, k, **o: pn.apply_rotary_qk(
                q, k, None, pn.Tables(cos, sin, compute="as_written"), inverse=True, **o
            ),
        ),
    ]
    for start, call in calls:
        for of_q, of_k in [(q, k), (q, None), (None, k)]:
            plain, ours = call(of_q, of_k, **kept), call(of_q, of_k, **options)
            for before, after in zip(plain, ours, strict=True):
                if before is None:
                    assert after is None
                else:
                    assert_same_bits(after, moved(before, *move, start, 8))
        into = np.empty_like(q), np.empty_like(k)
        call(q, k, out=into, **options)
        in_place = call(q.copy(), k.copy(), inplace=True, **options)
        for i, x in enumerate(call(q, k, **options)):
            assert_same_bits(into[i], x)
            assert_same_bits(in_place[i], x)
    x = pn.apply_rotary(q, None, pn.Tables(*tables, rows=rows), **options)
    assert_same_bits(x, calls[4][1](q, k, **options)[0])


def test_two_pairings_that_are_one(backend: str) -> None:
    x, inv_freq = heads((1, 2, 3, 16)), pn.rotary.rotary_frequencies(16)[0]
    plain = pn.apply_rotary(x, None, inv_freq)
    for out_pairing in ("same", "half", 16):
        ours = pn.apply_rotary(x, None, inv_freq, out_pairing=out_pairing)
        assert_same_bits(ours, plain)


def test_there_and_back(backend: str) -> None:
    x, inv_freq = heads((1, 2, 3, 16), "float64"), pn.rotary.rotary_frequencies(16)[0]
    there = pn.apply_rotary(x, None, inv_freq, pairing=4, out_pairing="half")
    back = pn.apply_rotary(there, None, inv_freq, pairing="half", out_pairing=4, inverse=True)
    np.testing.assert_allclose(back, x, rtol=0, atol=1e-14)


# --- tensors


def torch_and_heads(*shape: int, dtype: str = "float32") -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    return torch, torch.randn(shape, generator=generator, dtype=getattr(torch, dtype))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_have_the_bits_of_arrays(options: Any, dtype: str) -> None:
    torch, x = torch_and_heads(2, 3, 64, 32)
    x = x.to(getattr(torch, dtype))
    inv_freq = torch.tensor(pn.rotary.rotary_frequencies(32)[0])
    plain = pn.apply_rotary(x, None, inv_freq, pairing=options["pairing"])
    expected = x.clone()
    taken, given = (torch.tensor(dims_of_pairs(pairing, 16)) for pairing in options.values())
    expected[..., given] = plain[..., taken]
    from torch_cases import without_the_door

    for way in (contextlib.nullcontext, without_the_door):
        many = x.repeat(1, 40, 1, 1)
        whole = expected.repeat(1, 40, 1, 1)
        with way():
            assert torch.equal(pn.apply_rotary(many, None, inv_freq, **options), whole)
            pair = pn.apply_rotary_qk(many, x, None, inv_freq, **options)
            assert torch.equal(pair[0], whole)
            assert torch.equal(pair[1], expected)
            assert torch.equal(pn.apply_rotary(many, None, inv_freq, out=many, **options), whole)
    meta = pn.apply_rotary(x.to("meta"), None, inv_freq.to("meta"), **options)
    assert meta.shape == x.shape
    twice = torch.func.vmap(lambda x: pn.apply_rotary(x, None, inv_freq, **options))(
        torch.stack([x, x])
    )
    assert torch.equal(twice[1], expected)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients(options: Any) -> None:
    torch, x = torch_and_heads(2, 2, 3, 20, dtype="float64")
    inv_freq = torch.tensor(pn.rotary.rotary_frequencies(16)[0], dtype=torch.float64)
    positions = torch.tensor([0.5, 3.0, 7.25], dtype=torch.float64)
    tables = pn.rotary_tables(positions, inv_freq, dtype=torch.float64)

    def by_positions(x, positions, inv_freq):
        return pn.apply_rotary(x, positions, inv_freq, rotary_start=2, **options)

    def of_two(q, k):
        return pn.apply_rotary_qk(q, k, positions, inv_freq, rotary_start=2, **options)

    def by_tables(x):
        return pn.apply_rotary(x, None, pn.Tables(*tables), rotary_start=2, **options)

    def in_place(x):
        return pn.apply_rotary(y := x * 1, positions, inv_freq, out=y, **options)

    inputs = [t.clone().requires_grad_() for t in (x, positions, inv_freq)]
    assert torch.autograd.gradcheck(by_positions, inputs)
    assert torch.autograd.gradgradcheck(by_positions, inputs, fast_mode=True)
    for call in (by_tables, in_place):
        assert torch.autograd.gradcheck(call, inputs[:1])
        assert torch.autograd.gradgradcheck(call, inputs[:1], fast_mode=True)
    of_k = (2 * x).requires_grad_()
    assert torch.autograd.gradcheck(of_two, (inputs[0], of_k))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_of_frequencies_are_those_of_a_rotation_and_a_move(
    options: Any, dtype: str, target: str
) -> None:
    """The same numbers, which the CPU sums in the same order."""
    from posenc_native.engines import backend

    native = backend.implementation
    x, grad = heads((2, 4, 70, 24), dtype), heads((2, 4, 70, 24), dtype, seed=1)
    inv_freq, positions = pn.rotary.rotary_frequencies(16)[0], np.arange(70.0)
    move = (options["pairing"], options["out_pairing"])
    rotation = (positions, inv_freq, "bhsd", move[0], 2, None, 1.0, False)
    expected = native.rotary_backward((grad,), (x,), *rotation, True)
    rotation = (*rotation, None, -1, move[1])
    ours = native.rotary_backward((moved(grad, *move, 2, 8),), (x,), *rotation, True)
    assert_same_bits(ours[0][0], expected[0][0])
    # An angle's gradient is at most the product of the lengths of its pairs of x and grad.
    dims = 2 + dims_of_pairs(move[0], 8)
    lengths = [np.hypot(*np.moveaxis(t.astype(np.float64)[..., dims], -1, 0)) for t in (x, grad)]
    most = lengths[0] * lengths[1]  # [b, h, s, P]
    magnitudes = (most * positions[:, None]).sum((0, 1, 2)), (most * inv_freq).sum((1, 3))[None]
    counts = 2 * 4 * 70, 4 * 8
    for summed, same, magnitude, count in zip(
        ours[1:], expected[1:], magnitudes, counts, strict=True
    ):
        if target != "CUDA":
            assert_same_bits(summed, same)
        else:  # other threads sum up what: both are off by a rounding of float32 for each term
            assert np.all(np.abs(summed - same) <= 2 * (count + 4) * 2.0**-24 * magnitude)


def test_compiled() -> None:
    torch, x = torch_and_heads(2, 3, 5, 16)
    inv_freq = torch.tensor(pn.rotary.rotary_frequencies(16)[0])
    options: Any = OPTIONS[0]

    def call(x):
        return pn.apply_rotary(x, None, inv_freq, **options)

    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True)
    for one in (call, compiled):
        y = x.clone().requires_grad_()
        rotated = one(y)
        rotated.square().sum().backward()
        assert torch.equal(rotated, call(x))
        np.testing.assert_allclose(y.grad, 2 * x, atol=1e-5)


def test_deepseek_of_transformers() -> None:
    """An oracle that is not ours: it splits interleaved heads and rotates halves."""
    torch, q = torch_and_heads(2, 4, 6, 16)
    reason = "transformers, whose DeepSeek-V3 is the oracle, is not installed"
    module = pytest.importorskip(
        "transformers.models.deepseek_v3.modeling_deepseek_v3", reason=reason
    )
    k = q[:, :1].flip(-1)
    inv_freq = pn.rotary.rotary_frequencies(16)[0]
    cos, sin = (torch.cat((t, t), -1)[None] for t in pn.rotary_tables(torch.arange(6), inv_freq))
    theirs = module.apply_rotary_pos_emb_interleave(q, k, cos, sin)
    ours = pn.apply_rotary_qk(q, k, None, inv_freq, **OPTIONS[0])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("bad", ["neox", 3, 6, None, True, 2.0])
def test_errors(bad: Any, backend: str) -> None:
    """In the words of the caller, from arrays and tensors alike, with nothing written."""
    x, inv_freq = heads((1, 2, 3, 16)), pn.rotary.rotary_frequencies(16)[0]
    torch = pytest.importorskip("torch")
    kind = TypeError if bad in (None, 2.0) or bad is True else ValueError
    for to in (lambda a: a.copy(), torch.tensor):
        given = to(x)
        with pytest.raises(kind, match="apply_rotary: out_pairing: expected"):
            pn.apply_rotary(given, None, inv_freq, out=given, out_pairing=bad)
        assert bool((given == to(x)).all())


def test_functions_that_norm_have_none() -> None:
    """Their operators, which share the options of a rotation, refuse it."""
    torch, x = torch_and_heads(1, 2, 3, 16)
    from posenc_native.engines.torch.library import ops

    inv_freq = torch.tensor(pn.rotary.rotary_frequencies(16)[0])
    given = {"q": x, "k": x.clone(), "inv_freq": inv_freq, "out_pairing": "interleaved"}
    plain = {"layout": "bhsd", "pairing": "half", "rotary_start": 0, "scale": 1.0, "norm": True,
             "inverse": False, "k_start": -1, "compute": "float32", "eps": 1e-6,
             "norm_over": "head", "weight_offset": 0.0, "norm_first": True, "query_scale": "none",
             "query_beta": 0.0, "query_length": 1.0, "query_shift": 0.0}  # fmt: skip
    names = [argument.name for argument in ops.norm_rotary_qk.default._schema.arguments]
    values = [(given | plain).get(name) for name in names]
    with pytest.raises(RuntimeError, match="out_pairing: expected that of q and k"):
        ops.norm_rotary_qk(*values)
    values[names.index("out_pairing")] = "same"
    assert ops.norm_rotary_qk(*values)[0].shape == x.shape
