"""Rotations by tables as a patched model binds them: the public functions' bits, or no answer.

A bound call keeps what earlier calls had in common, so each test makes several kinds in turns.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch_cases import bits, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native.engines import backend, late  # noqa: E402

pytestmark = [
    torch_cases.needs_operators,
    pytest.mark.skipif(
        not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
        reason="this torch does not exchange tensors; any later one does",
    ),
]

PAIRS = 4


def bind(
    layout: str = "bhsd", *, inplace: bool = False, norms: bool = False, **options: Any
) -> Any:
    late.torch_operations()
    ranks = 1 << (2 + ("b" in layout))
    return backend.native.bind_tables(
        options.get("heads", 2), layout, ranks, PAIRS, options.get("head_dim", -1),
        options.get("trailing", False), options.get("pairing", "half"),
        options.get("inverse", False), options.get("out_pairing", "same"), inplace, norms,
    )  # fmt: skip


def call(bound: Any, *arguments: Any) -> Any:
    return backend.native.door.call_bound(bound, *arguments)


def same(ours: Any, theirs: Any) -> bool:
    return all(
        a.dtype == b.dtype and a.stride() == b.stride() and np.array_equal(bits(a), bits(b))
        for a, b in zip(ours, theirs, strict=True)
    )


def heads_and_tables(draw: Any, layout: str, batch: int, tokens: int, width: int) -> Any:
    """q and k with strides of their own, cos and sin."""
    dtype = draw(st.sampled_from((torch.float32, torch.bfloat16, torch.float16, torch.float64)))
    sizes = {"b": batch, "s": tokens}
    heads = []
    for count, seed in ((4, 1), (2, 2)):
        shape = [{"h": count, **sizes}[letter] for letter in layout[:-1]]
        x = random((*shape, width + 3), dtype, seed=seed)[..., :width]
        if draw(st.booleans()):
            x = x.transpose(0, 1).contiguous().transpose(0, 1)
        heads.append(x)
    rows = draw(st.sampled_from((1, batch))) if "b" in layout else None
    position = draw(st.integers(-(2**30), 2**30))
    positions = position + torch.arange(tokens).expand(*([rows] if rows else []), tokens)
    tables = pn.rotary_tables(positions, torch.tensor([1.0, 0.3, 0.02, 1e-4]))
    return heads, tables


@given(data=st.data())
def test_it_is_the_public_function(data: Any) -> None:
    draw = data.draw
    layout = draw(st.sampled_from(("bhsd", "bshd", "shd", "hsd")))
    pairing = draw(st.sampled_from(("half", "interleaved", 4)))
    out_pairing = draw(st.sampled_from(("same", "half", "interleaved")))
    trailing, inverse, inplace = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    bound = bind(
        layout, pairing=pairing, out_pairing=out_pairing, trailing=trailing, inverse=inverse,
        inplace=inplace,
    )  # fmt: skip
    taken = 0
    for _ in range(3):
        width = draw(st.sampled_from((8, 11)))
        batch, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        (q, k), (cos, sin) = heads_and_tables(draw, layout, batch, tokens, width)
        expected = pn.apply_rotary_qk(
            q, k, None, pn.Tables(cos, sin), layout=layout, pairing=pairing,
            out_pairing=out_pairing, rotary_start=width - 8 if trailing else 0, inverse=inverse,
        )  # fmt: skip
        for _ in range(2):  # checked, then looked up
            mine = (q.clone(), k.clone()) if inplace else (q, k)
            with torch.no_grad():
                rotated = call(bound, *mine, cos, sin)
            assert rotated is not NotImplemented
            taken += 1
            if inplace:
                assert rotated[0] is mine[0]
                assert rotated[1] is mine[1]
                assert np.array_equal(bits(rotated[0]), bits(expected[0]))
                assert np.array_equal(bits(rotated[1]), bits(expected[1]))
            else:
                assert same(rotated, expected)
    assert taken == 6


@given(data=st.data())
def test_norms_are_those_of_the_public_function(data: Any) -> None:
    draw = data.draw
    bound = bind(norms=True)
    for _ in range(3):
        (q, k), (cos, sin) = heads_and_tables(draw, "bhsd", 2, draw(st.integers(1, 3)), 8)
        whole = draw(st.booleans())  # weights of all heads of a token
        weights = [
            random((x.shape[1] * 8 if whole else 8,), q.dtype, seed=7 + i)
            for i, x in enumerate((q, k))
        ]
        if draw(st.booleans()) and not whole:
            weights = [None, None]
        eps, offset = draw(st.sampled_from(((1e-6, 0.0), (1e-5, 1.0))))
        expected = pn.norm_rotary_qk(
            q, k, None, pn.Tables(cos, sin), q_weight=weights[0], k_weight=weights[1], eps=eps,
            weight_offset=offset if weights[0] is not None else 0.0,
            norm_over="token" if whole else "head",
        )  # fmt: skip
        if weights[0] is None:
            offset = 0.0
        for _ in range(2):
            assert same(call(bound, q, k, cos, sin, *weights, eps, offset, False), expected)


def of_one_token() -> Any:
    q, k = random((1, 4, 1, 8)), random((1, 2, 1, 8), seed=1)
    return (q, k, *pn.rotary_tables(torch.tensor([[7]]), torch.tensor([1.0, 0.3, 0.02, 1e-4])))


def test_large_calls_have_the_same_bits() -> None:
    bound = bind(head_dim=8)
    q, k = random((1, 4, 70000, 8)), random((1, 2, 70000, 8), seed=1)
    cos, sin = pn.rotary_tables(torch.arange(70000), torch.tensor([1.0, 0.1, 0.01, 0.001]))
    with torch.no_grad():
        results = call(bound, q, k, cos[None], sin[None])
    for ours, theirs in zip(results, by_operators(q, k, cos, sin), strict=True):
        assert torch.equal(ours, theirs)


def by_operators(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    with torch_cases.without_the_door():
        return pn.apply_rotary_qk(q, k, None, pn.Tables(cos, sin))


def test_what_it_leaves_to_others() -> None:
    bound = bind(head_dim=8)
    q, k, cos, sin = of_one_token()
    with torch.no_grad():
        assert call(bound, q, k, cos, sin) is not NotImplemented
        one_more = random((1, 4, 1, 9)), random((1, 2, 1, 9), seed=1)
        others = {
            "heads of another width": (*one_more, cos, sin),
            "tables of fewer columns": (q, k, cos[..., :3], sin[..., :3]),
            "tables of other axes": (q, k, cos[0], sin[0]),
            "tables of each head": (q, k, cos[:, None], sin[:, None]),
            "too few tables": (q, k, cos[:, :0], sin[:, :0]),
            "one without sines": (q, k, cos),
            "an array": (q.numpy(), k, cos, sin),
            "None": (q, None, cos, sin),
            "of two dtypes": (q, k.double(), cos, sin),
            "on another device": (q.to("meta"), k, cos, sin),
            "a parameter": (torch.nn.Parameter(q), k, cos, sin),
        }
        for name, arguments in others.items():
            assert call(bound, *arguments) is NotImplemented, name
    # Where a gradient is recorded autograd has to know.
    for i in range(4):
        arguments = [x.clone().requires_grad_(i == j) for j, x in enumerate((q, k, cos, sin))]
        assert call(bound, *arguments) is NotImplemented
        with torch.no_grad():
            assert call(bound, *arguments) is not NotImplemented
    assert call(object(), q, k, cos, sin) is NotImplemented
    with pytest.raises(TypeError, match="by place"):
        bound(q=q)


def test_weights_of_another_dtype_that_change_the_result() -> None:
    bound = bind(norms=True)
    q, k, cos, sin = of_one_token()
    weight = torch.ones(8)
    q, k = q.bfloat16(), k.bfloat16()
    assert call(bound, q, k, cos, sin, weight, weight, 1e-6, 0.0, True) is NotImplemented
    assert call(bound, q, k, cos, sin, weight, weight, 1e-6, 0.0, False)[0].dtype == torch.bfloat16
    assert call(bound, q, k, cos, sin, weight, weight, 1, 0.0, False) is NotImplemented


def test_in_place_memory_that_is_shared_is_left_to_others() -> None:
    bound = bind(inplace=True)
    _, _, cos, sin = of_one_token()
    memory = random((1, 6, 1, 8))
    before = memory.clone()
    with torch.no_grad():
        apart = memory[:, :4], memory[:, 4:]
        assert call(bound, *apart, cos, sin) is not NotImplemented
        # The same kinds of tensors, now looked up: only their places are others.
        memory.copy_(before)
        assert call(bound, memory[:, :4], memory[:, 3:5], cos, sin) is NotImplemented
        assert call(bound, memory[:, :4], memory[:, :2], cos, sin) is NotImplemented
        table = torch.empty(1, 1, 16)
        q = table[..., :8].unsqueeze(1)
        crossing = table[..., 4:8]
        crossing.copy_(cos)
        assert call(bound, q, random((1, 2, 1, 8)), crossing, sin) is NotImplemented
        repeated = random((1, 1, 1, 8)).expand(1, 4, 1, 8)
        assert call(bound, repeated, apart[1], cos, sin) is NotImplemented
    assert torch.equal(memory, before)


def test_autograd_learns_that_tensors_were_overwritten() -> None:
    q, k, cos, sin = of_one_token()
    with torch.no_grad():
        call(bind(inplace=True), q, k, cos, sin)
    assert (q._version, k._version) == (1, 1)


def test_many_threads_use_one() -> None:
    bound, wrong = bind(), []

    def work(seed: int) -> None:
        for i in range(200):
            tokens = 1 + (seed + i) % 6  # more kinds than are kept
            q, k = random((1, 4, tokens, 8), seed=seed), random((1, 2, tokens, 8), seed=i)
            cos, sin = pn.rotary_tables(torch.arange(tokens)[None] + i, torch.ones(4))
            expected = pn.apply_rotary_qk(q, k, None, pn.Tables(cos, sin))
            if not same(call(bound, q, k, cos, sin), expected):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
