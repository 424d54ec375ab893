"""How a model and its data lie on processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model import Row, Transformer
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import posenc_native as pn
from posenc_native import nn as pnn


@dataclass(frozen=True)
class Plan:
    """By how many processes rows, their tokens, and heads are shared.

    Weights are sharded (FSDP2) over all processes that do not share heads.
    """

    name: str
    rows: int = 1
    tokens: int = 1
    heads: int = 1


PLANS = (
    Plan("FSDP2 2 x tensor parallel 2", rows=2, heads=2),
    Plan("context parallel 4", tokens=4),
    Plan("context parallel 2 x tensor parallel 2", tokens=2, heads=2),
)


class Placed:
    """A model laid out by a plan, and what of a batch this process reads."""

    def __init__(self, plan: Plan, model: Transformer, length: int) -> None:
        self.plan = plan
        # Rows and tokens are one dimension to FSDP2, two to who shares what.
        sizes = (plan.rows * plan.tokens, plan.heads)
        sharding = init_device_mesh("cpu", sizes, mesh_dim_names=("shard", "heads"))
        sharing = init_device_mesh(
            "cpu", (plan.rows, plan.tokens, plan.heads), mesh_dim_names=("rows", "tokens", "heads")
        )
        if plan.heads > 1:
            share_heads(model, sharding["heads"])
        for block in model.blocks:
            fully_shard(block, mesh=sharding["shard"])
        fully_shard(model, mesh=sharding["shard"])
        self.model = model
        self.batch_rank = sharing["rows"].get_local_rank()
        self.row = Row(length)
        if plan.tokens > 1:
            mesh = sharing["tokens"]
            part = pn.positions.ContextParallel(mesh.get_local_rank(), mesh.size(), "zigzag")
            self.row = Row(length, part, mesh)

    def own(self, batch: Tensor) -> Tensor:
        """Of tokens ``[b, length]`` what this process reads."""
        return self.row.shard(batch.chunk(self.plan.rows)[self.batch_rank])


def share_heads(model: Transformer, mesh: Any) -> None:
    """Tensor parallelism: projections by columns and rows, encodings by heads."""
    plan = {
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        # All heads share the weights of the norm: their gradients are summed.
        "attention.rope": pnn.HeadParallel(),
        "attention.t5": pnn.HeadParallel(),
        "attention.out": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    for block in model.blocks:
        has_bias = block.attention.t5 is not None
        own = {name: style for name, style in plan.items() if has_bias or name != "attention.t5"}
        parallelize_module(block, mesh, own)
