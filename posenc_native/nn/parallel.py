"""Tensor parallelism: modules with part of the heads on each rank.

This module is imported on first use: torch.distributed takes a while to import, and may be missing.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel.style import ParallelStyle

from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.encodings.relative.heads import heads_of

__all__ = ["HeadParallel"]


class HeadParallel(ParallelStyle):
    """Let a module compute with the heads of a rank, for ``parallelize_module``.

    This is for modules with parameters, or whose heads differ, beside ``ColwiseParallel``
    projections: each rank then has local heads, and its queries, keys and scores are local tensors.
    Parameters become DTensors. Parameters with an axis of heads (slopes, tables, frequencies, the
    last layer of a network) are sharded along it, and the module computes as if it had been made
    with ``heads=(rank, ranks)``. Parameters that heads share (the weights of `NormRotaryEmbedding`,
    Shaw's tables, the first layer of `FIRE`) are replicated, and their gradients are summed over
    the ranks. Modules without parameters whose heads are all alike (rotary, sinusoidal) need no
    style.

    Raises:
        TypeError: the module has nothing that belongs to heads.
        ValueError: the ranks do not divide the heads; the mesh has several dimensions; or the norm
            is over all heads of a token, which needs all heads (queries and keys as DTensors).

    Example:
        >>> from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
        >>> from posenc_native import nn as pnn
        >>> plan = {
        ...     "q_proj": ColwiseParallel(), "k_proj": ColwiseParallel(),
        ...     "v_proj": ColwiseParallel(), "o_proj": RowwiseParallel(),
        ...     "rope": pnn.HeadParallel(), "bias": pnn.HeadParallel(),
        ... }  # for parallelize_module(attention, mesh, plan)
    """

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        function, owner = "HeadParallel", type(module).__name__
        axes: dict[str, int | None] | None = getattr(module, "head_axes", None)
        if axes is None:
            wrong_type(function, "module", "a module with heads, such as T5RelativeBias", owner)
        if device_mesh.ndim != 1:
            wrong_value(function, "device_mesh", "one dimension", f"{device_mesh.ndim} dimensions")
        whole: Any = module
        if hasattr(whole, "num_heads"):
            if len(whole.heads) != whole.num_heads:
                got = f"heads={whole.heads}"
                wrong_value(function, "module", "a module with all of its heads", got)
            share = (device_mesh.get_local_rank(), device_mesh.size())
            whole.heads = heads_of(owner, share, whole.num_heads)
        whole.head_mesh = device_mesh
        for name, axis in axes.items():
            _take(module, name, axis, device_mesh)
        return module


def _take(module: nn.Module, name: str, axis: int | None, mesh: Any) -> None:
    """Make a parameter a DTensor, sharded along its axis of heads, if it has that axis."""
    parameter = dict(module.named_parameters()).get(name)
    if parameter is None:
        return
    layer, _, own = name.rpartition(".")
    holder = module.get_submodule(layer)
    placement: Any = Replicate()
    if axis is not None:
        placement = Shard(axis % parameter.ndim)
        if parameter.shape[axis] % mesh.size():
            expected = f"a multiple of {mesh.size()} ranks along axis {placement.dim}"
            wrong_value(type(module).__name__, name, expected, list(parameter.shape))
    cut = distribute_tensor(parameter.detach(), mesh, [placement])
    holder.register_parameter(own, nn.Parameter(cut, parameter.requires_grad))
