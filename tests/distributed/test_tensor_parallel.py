"""Attention whose projections are parallel by columns and rows, and whose bias is by heads."""

from __future__ import annotations

import pytest
from processes import run

torch = pytest.importorskip("torch")

from attention import BIASES, attention, gradients, tokens  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from posenc_native import nn as pnn  # noqa: E402

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


def refused() -> list[str]:
    mesh = init_device_mesh("cpu", (2,))
    words = []
    for module in (torch.nn.Linear(2, 2), pnn.ALiBi(3), pnn.ALiBi(4, heads=(0, 2))):
        try:
            parallelize_module(module, mesh, pnn.HeadParallel())
        except (TypeError, ValueError) as error:
            words.append(f"{type(error).__name__}: {error}")
    return words


def test_errors() -> None:
    for words in run(2, refused):
        assert words == [
            (
                "TypeError: HeadParallel: module: expected one that owns heads, as T5RelativeBias "
                "does, got Linear"
            ),
            "ValueError: ALiBi: heads: expected ranks that divide 3 heads, got 2",
            (
                "ValueError: HeadParallel: module: expected one with all of its heads, got "
                "heads=range(0, 2)"
            ),
        ]
