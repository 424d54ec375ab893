"""Decomposed relative positions, against the code of Segment Anything and of MViT v2."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import relative_modules  # noqa: E402
import torch_cases  # noqa: E402
from compiling import compiled  # noqa: E402
from posenc_native.relative import decomposed_scores  # noqa: E402
from relative_modules import close, randomized  # noqa: E402
from torch_cases import assert_same_bits, random  # noqa: E402

from posenc_native.nn import DecomposedRelativePosition  # noqa: E402

device = torch_cases.device
seed = relative_modules.seed
H, D = 3, 8


def sam(size):
    """An attention of transformers' Segment Anything, whose relative positions are not zeros."""
    pytest.importorskip("transformers", reason="the model's own code")
    from transformers.models.sam import configuration_sam, modeling_sam

    config = configuration_sam.SamVisionConfig(hidden_size=H * D, num_attention_heads=H)
    return randomized(modeling_sam.SamVisionAttention(config, window_size=size))


def mvit(**options):
    """An attention of timm's MViT v2."""
    if importlib.util.find_spec("timm") is None:  # it is not imported: torchvision may not be there
        pytest.skip("needs timm")
    import timm_models  # noqa: F401 (imports timm without torchvision)
    from timm.models import mvitv2

    attention = mvitv2.MultiScaleAttention(H * D, H * D, num_heads=H, **options)
    return mvitv2, randomized(attention)


def by_definition(q, tables, q_size, k_size):
    """The term of equal or of evenly pooled sizes, from a row for each pair: [q, k, d]."""
    total = 0
    axes = list(zip(tables, q_size, k_size, strict=True))
    for axis, (table, rows, keys) in enumerate(axes):
        s, t = max(keys // rows, 1), max(rows // keys, 1)
        index = torch.arange(rows)[:, None] * s - torch.arange(keys) * t + (keys - 1) * t
        q_shape = [rows if other == axis else 1 for other in range(len(axes))]
        k_shape = [keys if other == axis else 1 for other in range(len(axes))]
        index = index.view(*q_shape, *k_shape).expand(*q_size, *k_size)
        index = index.reshape(int(np.prod(q_size)), int(np.prod(k_size)))
        total = total + torch.einsum("...id,ijd->...ij", q, table[index])
    return total


def test_segment_anything():
    """All ratios of sizes, in float64: other roundings of a ratio would select another row."""
    theirs = sam(9).double()
    tables = theirs.rel_pos_h.detach(), theirs.rel_pos_w.detach()
    sizes = (1, 2, 3, 4, 6, 7, 8, 13, 14)
    for rows, keys in itertools.product(sizes, sizes):
        q_size, k_size = (rows, 3), (keys, 5)
        q = random((2, rows * 3, D), torch.float64)
        expected = theirs.get_decomposed_rel_pos(q, *tables, q_size, k_size)
        expected = expected.reshape(2, rows * 3, keys * 5)
        found = decomposed_scores(q, tables, q_size, k_size)
        # Sums of 16 products, of numbers below 4.
        close(found, expected, rtol=0, atol=16 * 16 * 2.0**-52)
        arrays = decomposed_scores(q.numpy(), [table.numpy() for table in tables], q_size, k_size)
        close(torch.from_numpy(arrays), expected, rtol=0, atol=16 * 16 * 2.0**-52)


@pytest.mark.parametrize("size", [(5, 5), (6, 4)])
def test_an_attention_of_segment_anything(size):
    """Its output from our scores; other sizes than those of its tables, which are resampled."""
    theirs = sam(5)
    ours = DecomposedRelativePosition(D, 5)
    ours.load_state_dict({n: p for n, p in theirs.state_dict().items() if "rel_pos" in n})
    x = random((2, *size, H * D))
    qkv = theirs.qkv(x).flatten(1, 2).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind()
    for scores in (ours(q, k, size), q * D**-0.5 @ k.mT + ours.bias(q, size)):
        out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, *size, H * D)
        close(theirs.proj(out), theirs(x)[0])


@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize("strides", [((1, 1), (2, 2)), ((2, 2), (1, 1)), ((1, 1), (1, 1))])
def test_mvit(strides, class_token):
    """Pooled keys, pooled queries, and the token to which no position belongs."""
    stride_q, stride_kv = strides
    mvitv2, theirs = mvit(
        feat_size=(8, 8), stride_q=stride_q, stride_kv=stride_kv, has_cls_token=class_token
    )
    q_size, k_size = (8 // stride_q[0],) * 2, (8 // stride_kv[0],) * 2
    ours = DecomposedRelativePosition(D, q_size, k_size=k_size, class_token=class_token)
    ours.load_state_dict({n: p for n, p in theirs.state_dict().items() if "rel_pos" in n})
    lengths = (n[0] * n[1] + class_token for n in (q_size, k_size))
    q, k = (random((2, H, n, D), seed=n, requires_grad=True) for n in lengths)
    tables = theirs.rel_pos_h, theirs.rel_pos_w
    content = q * theirs.scale @ k.mT
    expected = mvitv2.cal_rel_pos_type(content, q, class_token, q_size, k_size, *tables)
    found = ours(q, k)
    close(found, expected)
    weights = random(expected.shape)
    for ours_, theirs_ in zip(
        torch.autograd.grad((found * weights).sum(), [q, k, ours.rel_pos_h, ours.rel_pos_w]),
        torch.autograd.grad((expected * weights).sum(), [q, k, *tables]),
        strict=True,
    ):
        close(ours_, theirs_)


@pytest.mark.parametrize(("q_size", "k_size"), [((2, 3, 4), (2, 3, 4)), ((2, 4, 6), (1, 2, 3)),
                                                ((5,), (5,))])  # fmt: skip
def test_any_number_of_axes(q_size, k_size):
    tables = [
        random((2 * max(pair) - 1, D), torch.float64, seed=i)
        for i, pair in enumerate(zip(q_size, k_size, strict=True))
    ]
    q = random((2, H, int(np.prod(q_size)), D), torch.float64)
    expected = by_definition(q, tables, q_size, k_size)
    close(decomposed_scores(q, tables, q_size, k_size), expected)
    content = random(expected.shape, torch.float64)
    found = decomposed_scores(q, tables, q_size, k_size, content=content)
    close(found, content + expected)


def test_a_video_of_mvit():
    module = randomized(DecomposedRelativePosition(D, (2, 4, 6), k_size=(2, 2, 3)))
    assert [*module.state_dict()] == ["rel_pos_t", "rel_pos_h", "rel_pos_w"]
    q, k = random((1, H, 48, D)), random((1, H, 12, D))
    term = by_definition(q, [*module.parameters()], (2, 4, 6), (2, 2, 3))
    close(module(q, k), q @ k.mT * D**-0.5 + term)


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_in_place_and_rounded_once(dtype, prefix, device):
    q, content = (random((2, H, prefix + 12, n), dtype, device) for n in (D, prefix + 12))
    tables = [random((n, D), dtype, device) for n in (5, 7)]
    call = {"tables": tables, "q_size": (3, 4), "prefix": prefix}
    found = decomposed_scores(q, content=content, **call)
    wide = decomposed_scores(q.float(), content=content.float(), **call)
    assert_same_bits(found, wide.to(dtype))
    assert_same_bits(found[..., :prefix, :], content[..., :prefix, :])
    assert_same_bits(found[..., :prefix], content[..., :prefix])
    place = content.clone()
    assert decomposed_scores(q, content=place, inplace=True, **call) is place
    assert_same_bits(place, found)
    zeros = torch.zeros_like(content)
    alone = decomposed_scores(q, **call)
    assert_same_bits(alone, decomposed_scores(q, content=zeros, **call))


def test_arrays_in_place():
    rng = np.random.default_rng(0)
    q, content = rng.standard_normal((2, 6, D)), rng.standard_normal((2, 6, 6))
    tables = [rng.standard_normal((n, D)) for n in (3, 5)]
    found = decomposed_scores(q, tables, (2, 3), content=content)
    place = content.astype(np.float16)
    assert decomposed_scores(q, tables, (2, 3), content=place, inplace=True) is place
    # Rounded at the start and at the end.
    np.testing.assert_allclose(place, found, rtol=2.0**-11, atol=2.0**-10)
    for size in ((0, 3), (2, 0)):
        empty = decomposed_scores(q[:, :0], tables, size)
        assert empty.shape == (2, 0, 0)
    none = decomposed_scores(q, tables, (2, 3), (0, 3))
    assert none.shape == (2, 6, 0)


def test_one_graph_for_sizes_that_change():
    """The rows of each size are constants of a graph; NumPy's operations are not traced."""
    tables = [random((9, D)), random((7, D))]

    def call(q, rows):
        return decomposed_scores(q, tables, (rows, 4), (2, 2))

    run = compiled(call)
    for rows in (4, 5, 6):
        q = random((2, rows * 4, D))
        close(run(q, rows), call(q, rows))


def ones(*shape):
    return np.ones(shape, np.float32)


GOOD = {"q": ones(3, 4, 8), "tables": (ones(3, 8), ones(3, 8)), "q_size": (2, 2)}
BAD = [
    ({"q_size": (2, 3)}, ValueError, r"q: expected shape \[..., prefix \+ q_len = 6, d\]"),
    ({"prefix": 1}, ValueError, r"q: expected shape .* = 5"),
    ({"q": np.ones((4, 8), int)}, TypeError, "q: expected a dtype of float16"),
    ({"q_size": 2}, TypeError, "q_size: expected a sequence of ints"),
    ({"k_size": (2, 2, 2)}, ValueError, "k_size: expected 2 sizes, as in q_size, got 3"),
    ({"tables": ones(2, 3, 8)}, TypeError, "tables: expected a tuple, with a table for each axis"),
    ({"q_size": (4,)}, ValueError, "tables: expected 1 tables, one per axis, got 2"),
    (
        {"tables": (ones(3, 8), ones(3, 7))},
        ValueError,
        r"tables\[1\]: .*\[rows, d = 8",
    ),
    ({"tables": (ones(0, 8), ones(3, 8))}, ValueError, r"tables\[0\]: .* at least one row"),
    (
        {"content": ones(3, 4, 3)},
        ValueError,
        r"content: expected shape \[3, 4, 4\]",
    ),
    ({"content": np.ones((3, 4, 4), int)}, TypeError, "content: expected a dtype of float16"),
    ({"inplace": True}, ValueError, "inplace: expected False without content"),
    ({"inplace": 1}, TypeError, "inplace: expected a bool"),
]


@pytest.mark.parametrize("engine", ["numpy", "torch"])
@pytest.mark.parametrize(("wrong", "kind", "text"), BAD, ids=[text[:20] for *_, text in BAD])
def test_errors(engine, wrong, kind, text):
    def given(value):
        if engine == "numpy":
            return value
        if isinstance(value, tuple):
            return tuple(map(given, value))
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    with pytest.raises(kind, match=f"^decomposed_scores: {text}"):
        decomposed_scores(**{name: given(value) for name, value in (GOOD | wrong).items()})


def test_errors_of_mixed_arguments():
    with pytest.raises(TypeError, match=r"tables\[0\]: expected a tensor, like q, got ndarray"):
        decomposed_scores(**(GOOD | {"q": torch.ones(3, 4, 8)}))
    with pytest.raises(ValueError, match=r"k_size: expected 2 sizes, as in size, got 3"):
        DecomposedRelativePosition(8, 4, k_size=(2, 2, 2))
    with pytest.raises(ValueError, match=r"size: expected an int, \(rows, columns\) or"):
        DecomposedRelativePosition(8, (4,))


def test_made_again():
    """Its text, and its tables after reset_parameters, are those of the call."""
    module = DecomposedRelativePosition(D, (2, 4), k_size=(1, 2), class_token=True)
    shown = f"DecomposedRelativePosition({D}, (2, 4), k_size=(1, 2), class_token=True)"
    assert repr(module) == shown
    before = [table.clone() for table in module.parameters()]
    assert [table.shape for table in before] == [(3, D), (7, D)]
    torch.manual_seed(1)
    module.reset_parameters()
    again = DecomposedRelativePosition(D, (2, 4), k_size=(1, 2))
    torch.manual_seed(1)
    again.reset_parameters()
    for one, other, old in zip(module.parameters(), again.parameters(), before, strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(one, old)
