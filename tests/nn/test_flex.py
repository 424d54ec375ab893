"""score_mod factories: flex_attention with them is attention with the bias in memory."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import random  # noqa: E402

flex_attention = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention

import posenc_native as pn  # noqa: E402
from posenc_native import flex  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

pytestmark = [
    torch_cases.needs_operators,
    # Called eagerly, flex_attention traces itself, and opens lengths that were others before.
    pytest.mark.usefixtures("nothing_compiled"),
    pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile"),
    # torch itself asks for it, with diagonals that are not a leaf
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
B, H, Q_LEN, K_LEN, D = 2, 4, 6, 9, 8
Q = random((B, H, Q_LEN, D))
K, V = random((B, H, K_LEN, D), seed=1), random((B, H, K_LEN, D), seed=2)
attention = torch.nn.functional.scaled_dot_product_attention


# name: (shape of the diagonals, q_len, k_len, options)
TOEPLITZ = {
    "plain": ((H, 14), Q_LEN, K_LEN, {}),
    "each batch its own": ((B, H, 14), Q_LEN, K_LEN, {}),
    "origin": ((H, 30), Q_LEN, K_LEN, {"origin": 12}),
    "q_offset": ((H, 30), Q_LEN, K_LEN, {"origin": 15, "q_offset": 3}),
    "q_offset [B]": ((H, 30), Q_LEN, K_LEN, {"origin": 15, "q_offset": torch.tensor([3, -2])}),
    "q_offset []": ((H, 30), Q_LEN, K_LEN, {"origin": 15, "q_offset": torch.tensor(3)}),
    "q_offset of an array": ((H, 30), Q_LEN, K_LEN, {"origin": 15, "q_offset": np.array([3, 1])}),
    "grid": ((H, 4, 5), (2, 3), (3, 3), {}),
    "grid, origin": ((B, H, 6, 9), (2, 3), (3, 3), {"origin": (2, 5)}),
    "grid of three": ((H, 4, 2, 3), (2, 1, 3), (3, 2, 1), {}),
}
# name: (width, index, options)
GATHERED = {
    "index": (5, [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4], {}),
    "array": (5, np.repeat([4, 2, 0], [5, 5, 4]), {"scale": 0.5}),
    "shift": (14, None, {}),
    "shift, some not there": (7, None, {"scale": -2.0}),
    "origin": (5, np.arange(24) % 5, {"origin": 9, "q_offset": 2}),
    "q_offset [B]": (5, np.arange(24) % 5, {"origin": 9, "q_offset": torch.tensor([2, 0])}),
}


def toeplitz(name):
    """(score_mod, bias, diagonals); the bias is of the same diagonals."""
    shape, q_len, k_len, options = TOEPLITZ[name]
    diagonals = random(shape, seed=3, requires_grad=True)
    mod = flex.toeplitz_score_mod(diagonals, q_len, k_len, **options)
    bias = pn.toeplitz_bias(diagonals, q_len, k_len, **options)
    return mod, bias.expand(B, H, *bias.shape[-2:]), diagonals


def gathered(name):
    width, index, options = GATHERED[name]
    x = random((B, H, Q_LEN, width), seed=3, requires_grad=True)
    index = torch.tensor(index) if isinstance(index, list) else index
    mod = flex.gather_score_mod(x, index, K_LEN, **options)
    return mod, pn.relative_gather(x, index, K_LEN, **options), x


CASES = [(toeplitz, name) for name in TOEPLITZ] + [(gathered, name) for name in GATHERED]
each_case = pytest.mark.parametrize(
    ("make", "name"), CASES, ids=[f"{make.__name__}-{name}" for make, name in CASES]
)


def inputs_of(bias):
    """q, k, v for as many queries and keys."""
    q_len, k_len = bias.shape[-2:]
    return tuple(random((B, H, n, D), seed=i) for i, n in enumerate((q_len, k_len, k_len)))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@each_case
def test_score_mod_adds_the_bias(make, name):
    mod, bias, _ = make(name)
    indices = torch.meshgrid(*map(torch.arange, bias.shape), indexing="ij")
    with torch.no_grad():
        torch.testing.assert_close(mod(torch.zeros(()), *indices), bias, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (toeplitz, "each batch its own"), (toeplitz, "q_offset [B]"), (toeplitz, "grid, origin"),
        (gathered, "array"), (gathered, "shift, some not there"), (gathered, "q_offset [B]"),
    ],
)  # fmt: skip
def test_flex_attention_is_attention_with_the_bias(make, name):
    mod, bias, data = make(name)
    q, k, v = inputs_of(bias)  # without gradients: on a CPU flex_attention has those of the data
    for scale in (None, 1.0):
        actual = flex_attention(q, k, v, score_mod=mod, scale=scale)
        expected = attention(q, k, v, attn_mask=bias, scale=scale)
        close(actual, expected)
    weights = random(actual.shape, seed=9)
    grads = [torch.autograd.grad((r * weights).sum(), data)[0] for r in (actual, expected)]
    assert grads[0].any()
    close(*grads)


@pytest.mark.slow  # inductor's template of attention takes half a minute of compiling
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (toeplitz, "q_offset [B]"),
        (toeplitz, "grid"),
        (gathered, "q_offset [B]"),
        (gathered, "shift"),
    ],
    ids=["q_offset", "grid", "index", "shift"],
)
def test_compiled_flex_attention(make, name):
    # Lengths of captured tensors that are open do not compile for CPUs (torch 2.13).
    fast = torch.compile(flex_attention, dynamic=False)
    with torch.no_grad():
        mod, bias, _ = make(name)
        q, k, v = inputs_of(bias)
        try:
            actual = fast(q, k, v, score_mod=mod)
        except torch._inductor.exc.InductorError as error:
            pytest.skip(f"flex_attention does not compile here: {str(error)[:200]}")
        close(actual, attention(q, k, v, attn_mask=bias))


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("kind", ["diagonals", "grid", "index", "shift"])
def test_parts_of_a_row(kind, order):
    """Context parallelism: each rank has its queries and the keys of all, in the ranks' order."""
    length, ranks = 24, 4
    x = random((B, H, length, 2 * length - 1), seed=3)
    index = torch.arange(2 * length - 1) % 5 if kind == "index" else None
    diagonals = random((H, 7, 11) if kind == "grid" else (H, 2 * length - 1), seed=4)
    q, k, v = (random((B, H, length, D), seed=i) for i in range(3))
    if kind in ("diagonals", "grid"):
        lengths = ((4, 6), (4, 6)) if kind == "grid" else (length, length)
        bias = pn.toeplitz_bias(diagonals, *lengths)
    else:
        bias = pn.relative_gather(x, index, length)
    expected = attention(q, k, v, attn_mask=bias)
    for rank in range(ranks):
        part = pn.positions.ContextParallel(rank, ranks, order)
        rows = part.positions(length, device="cpu")
        columns = part.gathered_positions(length, device="cpu")
        positions = {"q_positions": rows, "k_positions": columns}
        if kind in ("diagonals", "grid"):
            mod = flex.toeplitz_score_mod(diagonals, *lengths, **positions)
        else:
            mod = flex.gather_score_mod(
                x[:, :, rows], index, length, origin=length - 1, **positions
            )
        own = flex_attention(q[:, :, rows], k[:, :, columns], v[:, :, columns], score_mod=mod)
        close(own, expected[:, :, rows])


@pytest.mark.parametrize(
    "make", [lambda: pnn.T5RelativeBias(H), lambda: pnn.ALiBi(H, learned=True)]
)
def test_modules_by_mask_by_score_mod_and_by_scores(make):
    torch.manual_seed(0)
    module = make()
    weights = random(Q.shape, seed=9)
    mod = flex.toeplitz_score_mod(module.diagonals(Q_LEN, K_LEN, 3), Q_LEN, K_LEN)
    results = [
        torch.softmax(module(Q @ K.mT / D**0.5, q_offset=3), -1) @ V,
        attention(Q, K, V, attn_mask=module.bias(Q_LEN, K_LEN, 3)[None]),
        flex_attention(Q, K, V, score_mod=mod),
    ]
    grads = [
        torch.autograd.grad((r * weights).sum(), module.parameters(), retain_graph=True)[0]
        for r in results
    ]
    for result, grad in zip(results, grads, strict=True):
        assert grad.any()
        close(result, results[0])
        close(grad, grads[0])


def test_decoding_with_an_offset_for_each_row():
    table = random((H, 2 * K_LEN - 1), seed=3)
    offsets = torch.tensor([K_LEN - 1, 4])
    mod = flex.toeplitz_score_mod(table, 1, K_LEN, q_offset=offsets, origin=K_LEN - 1)
    full = pn.toeplitz_bias(table, K_LEN, K_LEN)
    rows = torch.stack([full[:, i : i + 1] for i in offsets])
    q = Q[:, :, :1]
    close(flex_attention(q, K, V, score_mod=mod), attention(q, K, V, attn_mask=rows))


DIAGONALS, X = random((H, 14)), random((B, H, Q_LEN, 5))
INDEX = torch.zeros(14, dtype=torch.long)


def lay(diagonals=DIAGONALS, q_len=Q_LEN, k_len=K_LEN, **options):
    return flex.toeplitz_score_mod(diagonals, q_len, k_len, **options)


def gather(x=X, index=INDEX, k_len=K_LEN, **options):
    return flex.gather_score_mod(x, index, k_len, **options)


VALUE, TYPE = ValueError, TypeError
OFFSETS = torch.tensor([0, 1])
# (error, argument that the message names, call)
BAD = [
    (TYPE, "diagonals", lambda: lay(DIAGONALS.numpy())),
    (TYPE, "diagonals", lambda: lay(DIAGONALS.int())),
    (VALUE, "diagonals", lambda: lay(DIAGONALS[0])),
    (VALUE, "diagonals", lambda: lay(DIAGONALS[None, None])),
    (VALUE, "diagonals", lambda: lay(DIAGONALS[:, 1:])),
    (VALUE, "diagonals", lambda: lay(origin=4)),
    (VALUE, "diagonals", lambda: lay(origin=6)),
    (VALUE, "diagonals", lambda: lay(origin=5, q_offset=OFFSETS)),
    (VALUE, "diagonals", lambda: lay(random((H, 4, 5)), (2, 3), (3, 3), origin=(0, 2))),
    (VALUE, "origin", lambda: lay(q_offset=1)),
    (VALUE, "q_offset", lambda: lay(random((H, 30)), origin=9, q_offset=OFFSETS[None])),
    (TYPE, "q_offset", lambda: lay(random((H, 30)), origin=9, q_offset=OFFSETS.float())),
    (VALUE, "k_len", lambda: lay(q_len=(2, 3))),
    (TYPE, "q_len", lambda: lay(q_len=6.0)),
    (VALUE, "q_positions", lambda: lay(q_positions=torch.tensor([0, Q_LEN]))),
    (VALUE, "k_positions", lambda: lay(k_positions=torch.tensor([-1]))),
    (VALUE, "k_positions", lambda: lay(k_positions=torch.tensor([[1]]))),
    (TYPE, "k_positions", lambda: lay(k_positions=torch.tensor([1.0]))),
    (VALUE, "origin", lambda: gather(q_positions=torch.arange(Q_LEN))),
    (VALUE, "q_positions", lambda: gather(q_positions=torch.arange(2), origin=5)),
    (TYPE, "x", lambda: gather(X.numpy())),
    (VALUE, "x", lambda: gather(X[0])),
    (TYPE, "index", lambda: gather(index=INDEX.float())),
    (VALUE, "index", lambda: gather(index=INDEX[1:])),
    (VALUE, "index", lambda: gather(index=INDEX[None], origin=5)),
    (VALUE, "index", lambda: gather(index=INDEX, origin=4)),
    (VALUE, "index", lambda: gather(origin=5, q_offset=OFFSETS)),
    (VALUE, "origin", lambda: gather(index=None, q_offset=OFFSETS)),
    (VALUE, "k_len", lambda: gather(k_len=-1)),
    (VALUE, "scale", lambda: gather(scale=float("inf"))),
]


@pytest.mark.parametrize(("error", "argument", "call"), BAD)
def test_bad_arguments(error, argument, call):
    with pytest.raises(error, match=rf"^\w+_score_mod: {argument}: expected .*, got "):
        call()
