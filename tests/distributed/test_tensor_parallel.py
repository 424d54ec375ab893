"""Attention whose projections are parallel by columns and rows, and whose bias is by heads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from processes import run

torch = pytest.importorskip("torch")

from attention import BIASES, HEADS, attention, gradients, tokens  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from posenc_native import nn as pnn  # noqa: E402
from posenc_native.nn import DecomposedRelativePosition  # noqa: E402

# The rows' products are added by rank: a sum of 32 terms of the order of 1 in another order.
BOUND = 32 * 2.0**-23


def parallel(name: str, learned: bool) -> list[str]:
    """What is not as in one process."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    layer, x = attention(name, learned), tokens()
    expected, wanted = gradients(attention(name, learned), x)
    plan = {
        "q_proj": ColwiseParallel(), "k_proj": ColwiseParallel(), "v_proj": ColwiseParallel(),
        "o_proj": RowwiseParallel(), "bias": pnn.HeadParallel(),
    }  # fmt: skip
    if learned:
        plan["rope"] = pnn.HeadParallel()
    layer = parallelize_module(layer, mesh, plan)
    result, found = gradients(layer, x)
    wrong = [] if torch.allclose(result, expected, rtol=0, atol=BOUND) else ["result"]
    for key, grad in found.items():
        # Of the square's sum: products of results and their errors, over tokens and rows.
        bound = BOUND * 4 * float(wanted[key].abs().max() + 1)
        if not torch.allclose(grad, wanted[key], rtol=0, atol=bound):
            wrong.append(f"gradient of {key}: {(grad - wanted[key]).abs().max()} > {bound}")
    for module in (layer.bias, layer.rope) if learned else (layer.bias,):
        placements = [p.placements for p in module.parameters()]
        if not all(any(isinstance(p, Shard) for p in own) for own in placements):
            wrong.append(f"{type(module).__name__} is not sharded: {placements}")
        torch.manual_seed(9)
        module.reset_parameters()
        state = {key: p.full_tensor() for key, p in module.named_parameters()}
        again = attention(name, learned)
        plain = again.bias if module is layer.bias else again.rope
        torch.manual_seed(9)
        plain.reset_parameters()
        for key, parameter in plain.named_parameters():
            if not torch.equal(state[key], parameter):
                wrong.append(f"{key} is not reset as the whole is")
    return wrong


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", BIASES)
def test_bias_by_head(name: str, count: int) -> None:
    assert run(count, parallel, name, False) == [[]] * count


def test_learned_frequencies_by_head() -> None:
    assert run(2, parallel, "T5", True) == [[], []]


WIDTH = 8
MODULES: dict[str, Any] = {
    "norm": lambda: pnn.NormRotaryEmbedding(WIDTH),
    "norm, weights by head": lambda: pnn.NormRotaryEmbedding(WIDTH, heads=HEADS, kv_heads=HEADS),
    "learned frequencies": lambda: pnn.LearnedRotaryEmbedding(WIDTH),
    "Shaw": lambda: pnn.ShawRelativePosition(WIDTH, 2),
    "decomposed": lambda: DecomposedRelativePosition(WIDTH, (2, 3)),
    "Transformer-XL": lambda: pnn.RelativePositionalEncoding(HEADS * WIDTH, HEADS),
    "FIRE": lambda: pnn.FIRE(HEADS),
    "Swin v2": lambda: pnn.SwinV2RelativeBias(HEADS, (2, 3), hidden=16),
}


def results_of(module: Any, q: Any, k: Any) -> tuple[Any, ...]:
    """What a module makes of q and k, or of their scores; [b, h, ...] each."""
    if isinstance(module, (pnn.FIRE, pnn.SwinV2RelativeBias)):
        return (module(q @ k.mT),)
    result = module(q, k)
    if isinstance(module, pnn.ShawRelativePosition):
        return result, module.attend(result.softmax(-1), k)
    return result if isinstance(result, tuple) else (result,)


def of_local_heads(name: str) -> list[str]:
    """What is not as in one process, of a module that is given local heads."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(4)
    q, k = torch.randn(2, 2, HEADS, 6, WIDTH).unbind()
    torch.manual_seed(5)
    whole = MODULES[name]()
    with torch.no_grad():  # zeros and ones would hide a mistake
        for parameter in whole.parameters():
            parameter.add_(torch.rand_like(parameter))
    layer = parallelize_module(copy.deepcopy(whole), mesh, pnn.HeadParallel())
    expected = results_of(whole, q, k)
    sum((result**2).sum() for result in expected).backward()
    own = slice(rank * HEADS // ranks, (rank + 1) * HEADS // ranks)
    found = results_of(layer, q[:, own], k[:, own])
    sum((result**2).sum() for result in found).backward()
    wrong = []
    for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if not torch.allclose(ours, theirs[:, own], rtol=1e-6, atol=1e-6):
            wrong.append(f"result {i}")
    for (key, ours), theirs in zip(layer.named_parameters(), whole.parameters(), strict=True):
        grad = ours.grad.full_tensor()
        # Sums of some hundred terms in another order.
        if not torch.allclose(grad, theirs.grad, rtol=1e-4, atol=1e-4 * float(grad.abs().max())):
            wrong.append(f"gradient of {key}")
        if not torch.equal(ours.full_tensor(), theirs):
            wrong.append(key)
    layer.reset_parameters()
    return wrong


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_local_heads(name: str) -> None:
    """What heads have of their own is cut, what they share gets the sum of all gradients."""
    assert run(2, of_local_heads, name) == [[], []]


def refused() -> list[str]:
    mesh = init_device_mesh("cpu", (2,))
    words = []
    for module in (
        torch.nn.Linear(2, 2), pnn.ALiBi(3), pnn.ALiBi(4, heads=(0, 2)), pnn.FIRE(3),
        pnn.NormRotaryEmbedding(8, norm_over="token", heads=4),
    ):  # fmt: skip
        try:
            parallelize_module(module, mesh, pnn.HeadParallel())
        except (TypeError, ValueError) as error:
            words.append(f"{type(error).__name__}: {error}")
    return words


def test_errors() -> None:
    for words in run(2, refused):
        assert words == [
            (
                "TypeError: HeadParallel: module: expected a module with heads, such as "
                "T5RelativeBias, got Linear"
            ),
            "ValueError: ALiBi: heads: expected ranks that divide 3 heads, got 2",
            (
                "ValueError: HeadParallel: module: expected a module with all of its heads, got "
                "heads=range(0, 2)"
            ),
            (
                "ValueError: FIRE: network.2.weight: expected a multiple of 2 ranks along axis 0, "
                "got [3, 32]"
            ),
            (
                "ValueError: HeadParallel: norm_over: expected 'head', or queries and keys that "
                "are DTensors: the mean is over all heads, got token"
            ),
        ]
