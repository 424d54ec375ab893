"""q or k that is None: what the other one becomes is what it becomes beside it, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import assert_same_bits
from targets import CUDA_ON_HOST, NEEDS_CUDA_ON_HOST

import posenc_native as pn
from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.rotation import Rotation

B, S, D = 2, 5, 64
HEADS = {"q": 4, "k": 2}
INV_FREQ = pn.rotary.rotary_frequencies(D)[0]
TABLES = pn.rotary_tables(S, INV_FREQ)
WAYS = ("phases", "tables")
OPTIONS = [{}, {"norm_over": "token"}, {"pairing": "interleaved", "norm_first": False}]


def heads(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((B, count, S, D)).astype(np.float32)


def weights(of: Any = lambda a: a) -> dict[str, Any]:
    """By head, so that one for no heads would not fit."""
    return {
        f"{name}_weight": of(np.linspace(0.5, 1.5, count * D).reshape(count, D))
        for name, count in HEADS.items()
    }


def angles(way: str, of: Any) -> Any:
    return of(INV_FREQ) if way == "phases" else pn.Tables(*map(of, TABLES))


def norm(way: str, q: Any, k: Any, of: Any = lambda a: a, **options: Any) -> Any:
    return pn.norm_rotary_qk(q, k, None, angles(way, of), **{**weights(of), **options})


def fill(way: str, q: Any, k: Any, of: Any = lambda a: a, **options: Any) -> tuple[Any, Any]:
    """What rotary_append returns, and the caches."""
    keys, values = (of(np.zeros((B, HEADS["k"], 9, D), np.float32)) for _ in range(2))
    slots, given = of(np.arange(S) + 3), {**weights(of), **options}
    results = pn.rotary_append(q, k, k * 2, None, angles(way, of), keys, values, slots, **given)
    return results, (keys, values)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_norm(way: str, options: dict[str, Any], backend: str) -> None:
    q, k = heads(4, 0), heads(2, 1)
    expected = norm(way, q, k, **options)
    q_alone, none = norm(way, q, None, **options)
    assert none is None
    none, k_alone = norm(way, None, k, **options)
    assert none is None
    assert_same_bits(q_alone, expected[0])
    assert_same_bits(k_alone, expected[1])
    k_out = np.empty_like(k)
    assert norm(way, None, k, out=(None, k_out), **options)[1] is k_out
    assert_same_bits(k_out, expected[1])
    assert norm(way, q, None, inplace=True, **options)[0] is q
    assert_same_bits(q, expected[0])


@pytest.mark.parametrize("way", WAYS)
def test_append(way: str, backend: str) -> None:
    q, k = heads(4, 0), heads(2, 1)
    (_, rotated), caches = fill(way, q, k, return_k=True)
    result, alone = fill(way, None, k)
    assert result is None
    k_out = np.empty_like(k)
    (none, result), given = fill(way, None, k, return_k=True, out=(None, k_out))
    assert none is None
    assert result is k_out
    assert_same_bits(k_out, rotated)
    for expected, *filled in zip(caches, alone, given, strict=True):
        for one in filled:
            assert_same_bits(one, expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "how", ["operators", "plain", pytest.param("compiled", marks=pytest.mark.slow)]
)
def test_tensors(way: str, how: str) -> None:
    torch = pytest.importorskip("torch")
    import torch_cases

    of = torch.as_tensor
    q, k = of(heads(4, 0)), of(heads(2, 1))
    expected = [np.asarray(x) for x in norm(way, q, k, of)]
    q.requires_grad_()
    k.requires_grad_()
    results = norm(way, q, k, of)
    grads = torch.autograd.grad([x.sum() for x in results], [q, k])
    call = norm
    if how == "compiled":
        torch.compiler.reset()
        call = torch.compile(norm, fullgraph=True)
    if how == "plain":
        with torch_cases.plain_operations():
            alone = norm(way, q, None, of)[0], norm(way, None, k, of)[1]
    else:
        alone = call(way, q, None, of)[0], call(way, None, k, of)[1]
    for ours, theirs, grad, x in zip(alone, expected, grads, (q, k), strict=True):
        # The composition adds squares in torch's order.
        bound = 1e-5 if how == "plain" else 0
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=0, atol=bound)
        (own,) = torch.autograd.grad(ours.sum(), x)
        torch.testing.assert_close(own, grad, rtol=0, atol=bound)
    with torch.no_grad():
        place = q.detach().clone()
        assert norm(way, place, None, of, inplace=True)[0] is place
        assert_same_bits(place.numpy(), expected[0])
        (_, rotated), caches = fill(way, q, k, of, return_k=True)
        (none, result), filled = fill(way, None, k, of, return_k=True)
    assert none is None
    for ours, theirs in zip((result, *filled), (rotated, *caches), strict=True):
        assert_same_bits(ours.numpy(), theirs.numpy())


def test_tensors_on_a_device_without_kernels() -> None:
    torch = pytest.importorskip("torch")
    k = torch.empty(B, 2, S, D, device="meta")
    none, result = pn.norm_rotary_qk(None, k, None, torch.empty(D // 2, device="meta"))
    assert none is None
    assert result.shape == k.shape


@NEEDS_CUDA_ON_HOST
def test_no_heads_on_a_gpu() -> None:
    q, k = heads(4, 0), heads(2, 1)
    rotation = Rotation(None, INV_FREQ)
    given = (*rotation, "float32", *Norm())
    expected = CUDA_ON_HOST.norm_rotary_qk(q, k, *given, False)
    assert_same_bits(CUDA_ON_HOST.norm_rotary_qk(q, k[:, :0], *given, False)[0], expected[0])
    assert_same_bits(CUDA_ON_HOST.norm_rotary_qk(q[:, :0], k, *given, False)[1], expected[1])
