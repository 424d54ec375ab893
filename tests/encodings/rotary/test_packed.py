"""Queries, keys and values out of one matrix, `Rotary.split_qkv`, beside the calls one by one."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import posenc_native as pn

torch = pytest.importorskip("torch")

HEADS, GROUPS, D = 4, 2, 16
ROPE = pn.Rotary(D, rotary_dim=8)
WIDTH = (HEADS + 2 * GROUPS) * D
LAYOUTS = {"bhsd": (2, 5), "bshd": (2, 5), "sbhd": (5, 2), "thd": (7,), "hsd": (5,)}
WEIGHTS = {"q_weight": np.linspace(0.5, 2, D, dtype=np.float32),
           "k_weight": np.linspace(1, 3, D, dtype=np.float32)}  # fmt: skip


def matrix(layout, dtype=np.float32):
    return np.random.default_rng(0).standard_normal((*LAYOUTS[layout], WIDTH)).astype(dtype)


def split_by_hand(x, layout, grouped):
    """The three parts with the axes of the layout, new."""
    x = np.asarray(x)
    heads = x.reshape(*x.shape[:-1], -1, D)
    each = HEADS // GROUPS
    group = [*range(each)]
    of_q = [g * (each + 2) + i for g in range(GROUPS) for i in group]
    of_k = [g * (each + 2) + each for g in range(GROUPS)]
    of_v = [g * (each + 2) + each + 1 for g in range(GROUPS)]
    if not grouped:
        of_q, of_k, of_v = range(4), range(4, 6), range(6, 8)
    tokens = layout.replace("h", "").replace("d", "") + "hd"
    axes = [tokens.index(letter) for letter in layout]
    return [heads[..., list(i), :].transpose(axes).copy() for i in (of_q, of_k, of_v)]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("normed", [False, True])
def test_is_what_the_calls_make(layout, grouped, normed, library):
    x = matrix(layout)
    options = {**WEIGHTS, "eps": 1e-3} if normed else {}
    q, k, v = split_by_hand(x, layout, grouped)
    verb = ROPE.norm if normed else ROPE
    q, k = verb(q, k, 3, layout=layout, **options)
    results = ROPE.split_qkv(
        x if library == "numpy" else torch.from_numpy(x), 3, heads=HEADS, kv_heads=GROUPS,
        grouped=grouped, layout=layout, **options,
    )  # fmt: skip
    for result, wanted in zip(results, (q, k, v), strict=True):
        result = np.asarray(result)
        assert result.flags.c_contiguous
        assert (result == wanted).all()


def calls():
    angles = {"from 3": 3, "of tokens": torch.arange(5) * 7, "rows": torch.arange(10).view(2, 5)}
    for name, positions in angles.items():
        for grouped in (False, True):
            for normed in (False, True):
                yield pytest.param(positions, grouped, normed, id=f"{name} {grouped} {normed}")


def composed(x, positions, grouped, weights, layout="bhsd"):
    """The same by operations of torch and public calls."""
    heads = x.unflatten(-1, (-1, D))
    if grouped:
        heads = heads.unflatten(-2, (GROUPS, -1))
        q, k, v = heads.split((HEADS // GROUPS, 1, 1), -2)
        q, k, v = q.flatten(-3, -2), k.flatten(-3, -2), v.flatten(-3, -2)
    else:
        q, k, v = heads.split((HEADS, GROUPS, GROUPS), -2)
    if weights:
        q, k = ROPE.norm(q, k, positions, layout="bshd", q_weight=weights[0], k_weight=weights[1])
    else:
        q, k = ROPE(q, k, positions, layout="bshd")
    return [x.transpose(1, 2) for x in (q, k, v)]


def split(x, positions, grouped, weights, **more):
    options = dict(zip(("q_weight", "k_weight"), weights, strict=False))
    return ROPE.split_qkv(
        x, positions, heads=HEADS, kv_heads=GROUPS, grouped=grouped, **options, **more
    )


@pytest.mark.parametrize(("positions", "grouped", "normed"), [*calls()])
def test_gradients(positions, grouped, normed):
    x = torch.from_numpy(matrix("bhsd", np.float64)).requires_grad_()
    weights = [torch.from_numpy(w.astype(np.float64)).requires_grad_() for w in WEIGHTS.values()]
    weights = weights if normed else []
    generator = torch.Generator().manual_seed(0)
    results, wanted = (
        split(x, positions, grouped, weights),
        composed(x, positions, grouped, weights),
    )
    grads = [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in results]
    ours = torch.autograd.grad(results, [x, *weights], grads)
    theirs = torch.autograd.grad(wanted, [x, *weights], grads)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert ours[0].is_contiguous()
    # One result alone: the others have a gradient of zero.
    alone = torch.autograd.grad(split(x, positions, grouped, weights)[2].sum(), x)[0]
    assert int((alone != 0).sum()) == alone.numel() // 4


@pytest.mark.parametrize("normed", [False, True])
def test_second_derivatives(normed):
    x = torch.from_numpy(matrix("bhsd", np.float64)[:1, :2]).requires_grad_()
    weights = [torch.from_numpy(w.astype(np.float64)).requires_grad_() for w in WEIGHTS.values()]
    weights = weights if normed else []
    assert torch.autograd.gradgradcheck(lambda x, *w: split(x, 3, True, w), (x, *weights))


def test_compiled_and_transformed():
    x = torch.from_numpy(matrix("bhsd"))
    compiled = torch.compile(lambda x: split(x, 3, True, []), fullgraph=True, backend="aot_eager")
    wanted = split(x, 3, True, [])
    for result, y in zip(compiled(x), wanted, strict=True):
        torch.testing.assert_close(result, y, rtol=1e-6, atol=1e-6)
    mapped = torch.func.vmap(lambda x: split(x, 3, True, []))(x[None])
    assert all(torch.equal(a[0], b) for a, b in zip(mapped, wanted, strict=True))


@pytest.mark.parametrize("grouped", [False, True])
def test_factors_of_queries(grouped):
    """Gradients too, which are written to the matrix."""
    x = torch.from_numpy(matrix("bhsd")).double().requires_grad_()
    scale = {"beta": 1.0, "original_max_position_embeddings": 2}
    scaled = pn.Rotary(D, rotary_dim=8, query_scale=scale)
    ours = scaled.split_qkv(x, 3, heads=HEADS, kv_heads=GROUPS, grouped=grouped)
    plain = ROPE.split_qkv(x, 3, heads=HEADS, kv_heads=GROUPS, grouped=grouped)
    factors = scaled.query_factors(torch.arange(3, 8), dtype=torch.float64)[:, None]
    wanted = plain[0] * factors, *plain[1:]
    grads = [torch.randn_like(y) for y in ours]
    close = functools.partial(torch.testing.assert_close, rtol=1e-13, atol=1e-13)
    close(ours, wanted)
    close(torch.autograd.grad(ours, x, grads), torch.autograd.grad(wanted, x, grads))


def test_positions_that_were_overwritten_are_noticed():
    x = torch.from_numpy(matrix("bhsd")).requires_grad_()
    positions = torch.arange(5)
    results = split(x, positions, False, [])
    positions += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        results[0].sum().backward()


def test_parts_of_a_long_sequence():
    """Ranks of a context-parallel group have positions of their own."""
    x = torch.from_numpy(matrix("bhsd"))[:, :4]
    whole = split(x, None, False, [])
    for rank in range(2):
        parallel = pn.positions.ContextParallel(rank, 2, "zigzag")
        positions = parallel.positions(4)
        part = split(x[:, positions], positions, False, [])
        assert all(torch.equal(a, b[:, :, positions]) for a, b in zip(part, whole, strict=True))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kv_heads": 3}, "kv_heads: expected a divisor of heads = 4, got 3"),
        ({"heads": 0}, "heads: expected an int >= 1, got 0"),
        ({"heads": 5, "kv_heads": 5}, "(heads + 2 kv_heads) head_dim = 240] for layout 'bhsd'"),
        ({"layout": "thd"}, "qkv: expected shape [t, (heads"),
        ({"layout": "sd"}, "layout: expected letters of b, s (or t), h and d"),
    ],
)
def test_errors(change, text):
    options = {"heads": HEADS, "kv_heads": GROUPS, **change}
    with pytest.raises(ValueError, match=r"^Rotary\.split_qkv: ") as raised:
        ROPE.split_qkv(matrix("bhsd"), **options)
    assert text in str(raised.value)
