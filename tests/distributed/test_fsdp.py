"""FSDP2, DDP and checkpoints of modules of this library, beside one process."""

from __future__ import annotations

from typing import Any

import pytest
from processes import run

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from attention import BIASES, HEADS, SHARED, TOKENS, attention, tokens  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from posenc_native import nn as pnn  # noqa: E402

# One step of SGD by the mean over two ranks, of gradients that are sums of tens of terms.
BOUND = 2.0**-18


def stepped(layer: nn.Module, x: Any) -> None:
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    (layer(x) ** 2).mean().backward()
    optimizer.step()


def sharded_step(name: str) -> list[str]:
    """Each rank has one of two rows: the mean of their gradients is that of both."""
    rank = torch.distributed.get_rank()
    mesh = init_device_mesh("cpu", (2,))
    whole, layer, x = attention(name, True), attention(name, True), tokens()
    stepped(whole, x)
    for module in (layer.bias, layer.rope, layer):
        fully_shard(module, mesh=mesh)
    stepped(layer, x[rank : rank + 1])
    wrong = []
    for (key, ours), theirs in zip(layer.named_parameters(), whole.parameters(), strict=True):
        if not torch.allclose(ours.full_tensor(), theirs, rtol=0, atol=BOUND):
            wrong.append(f"{key}: {(ours.full_tensor() - theirs).abs().max()}")
    return wrong


@pytest.mark.parametrize("name", [*BIASES, *SHARED])
def test_step_of_sharded_layers(name: str) -> None:
    """ALiBi is a module without parameters."""
    assert run(2, sharded_step, name) == [[], []]


def bias_outside_of_forward() -> list[str]:
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    expected = pnn.T5RelativeBias(HEADS)
    torch.manual_seed(0)
    t5 = fully_shard(pnn.T5RelativeBias(HEADS), mesh=mesh)
    register_fsdp_forward_method(t5, "bias")
    wrong = []
    found = t5.bias(TOKENS, TOKENS)
    if not torch.equal(found, expected.bias(TOKENS, TOKENS)):
        wrong.append("bias")
    return wrong


def test_bias_outside_of_forward() -> None:
    assert run(2, bias_outside_of_forward) == [[], []]


def from_meta() -> list[str]:
    mesh = init_device_mesh("cpu", (2,))
    wrong = []
    for name, make in {
        **BIASES,
        **SHARED,
        "Transformer-XL": lambda: pnn.RelativePositionalEncoding(16, 4),
        "Swin v2": lambda: pnn.SwinV2RelativeBias(4, 3, hidden=8),
        "GRU": lambda: pnn.RecurrentPositionalEncoding(8, hidden=4),
        "Learned": lambda: pnn.LearnedPositionalEncoding(6, 8, padding_idx=1),
        "frequencies": lambda: pnn.LearnedRotaryEmbedding(16, num_heads=4),
    }.items():
        with torch.device("meta"):
            module = make()
        fully_shard(module, mesh=mesh)
        module.to_empty(device="cpu")
        torch.manual_seed(3)
        module.reset_parameters()
        torch.manual_seed(3)
        fresh = make()
        for (key, ours), theirs in zip(module.named_parameters(), fresh.parameters(), strict=True):
            if not torch.equal(ours.full_tensor(), theirs):
                wrong.append(f"{name}: {key}")
    return wrong


def test_sharded_on_meta_then_reset() -> None:
    assert run(2, from_meta) == [[], []]


def ddp_gradients() -> list[Any]:
    rank = torch.distributed.get_rank()
    layer = DistributedDataParallel(attention("T5"))
    (layer(tokens()[rank : rank + 1]) ** 2).mean().backward()
    return layer.module.bias.weight.grad.flatten().tolist()  # type: ignore[no-any-return]


def test_ddp_gives_the_same_bits_each_time() -> None:
    first, again = run(2, ddp_gradients), run(2, ddp_gradients)
    assert first == again
    assert first[0] == first[1]
    assert any(first[0])


def frequencies() -> Any:
    torch.manual_seed(2)
    return torch.rand(HEADS, 8)


def save(folder: str) -> None:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    rope = pnn.LearnedRotaryEmbedding(16, inv_freq=frequencies())
    rope.inv_freq = nn.Parameter(distribute_tensor(rope.inv_freq.detach(), mesh, [Shard(0)]))
    dcp.save(rope.state_dict(), checkpoint_id=folder)


def load(folder: str) -> bool:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    rope = pnn.LearnedRotaryEmbedding(16, num_heads=HEADS)
    rope.inv_freq = nn.Parameter(distribute_tensor(rope.inv_freq.detach(), mesh, [Shard(0)]))
    state = rope.state_dict()
    dcp.load(state, checkpoint_id=folder)
    return torch.equal(state["inv_freq"].full_tensor(), frequencies())


def test_frequencies_of_two_ranks_are_loaded_by_four(tmp_path: Any) -> None:
    run(2, save, str(tmp_path))
    assert run(4, load, str(tmp_path)) == [True] * 4


def stages(send: bool) -> bool:
    """Two layers, one on each rank; positions go on with what the first one made."""
    rank = torch.distributed.get_rank()
    x, positions = tokens(), torch.arange(TOKENS) * 3 + 1
    first, second = attention("T5"), attention("Kerple")
    expected = second(first(x, positions), positions)
    if rank == 0:
        torch.distributed.send(first(x, positions).detach(), 1)
        torch.distributed.send(positions, 1)
        return True
    received, given = torch.empty_like(x), torch.empty_like(positions)
    torch.distributed.recv(received, 0)
    torch.distributed.recv(given, 0)
    return torch.equal(second(received, given), expected)


def test_stages_of_a_pipeline_are_given_positions() -> None:
    assert run(2, stages, True) == [True, True]
