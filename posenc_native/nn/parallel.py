"""Tensor parallelism: modules that own heads, with a part of their heads on each rank.

Imported when it is asked for: a torch may lack torch.distributed, which takes a while to import.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel.style import ParallelStyle

from posenc_native.base.arguments import wrong_type, wrong_value
from posenc_native.relative.heads import heads_of

__all__ = ["HeadParallel"]


class HeadParallel(ParallelStyle):
    """Shard a module that owns heads by them, for ``parallelize_module``.

    For `ALiBi`, `T5RelativeBias`, `Kerple`, `Sandwich`, `ClippedRelativeBias`, `SwinRelativeBias`
    and `LearnedRotaryEmbedding` with frequencies by head, beside projections that are
    ``ColwiseParallel``: each rank then has local heads, and its scores are local tensors.
    Parameters become DTensors that are cut along their heads; the module computes with the local
    ones, as if it had been made with ``heads=(rank, ranks)``. Modules whose heads are all alike
    (rotary, sinusoidal, Shaw's) need nothing.

    Raises:
        TypeError: a module that owns no heads.
        ValueError: ranks that do not divide its heads; a mesh of several dimensions.

    Example:
        >>> from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
        >>> from posenc_native import nn as pnn
        >>> plan = {
        ...     "q_proj": ColwiseParallel(), "k_proj": ColwiseParallel(),
        ...     "v_proj": ColwiseParallel(), "o_proj": RowwiseParallel(),
        ...     "bias": pnn.HeadParallel(),
        ... }  # for parallelize_module(attention, mesh, plan)
    """

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        function, owner = "HeadParallel", type(module).__name__
        axes: dict[str, int] | None = getattr(module, "head_axes", None)
        if axes is None:
            wrong_type(function, "module", "one that owns heads, as T5RelativeBias does", owner)
        if device_mesh.ndim != 1:
            wrong_value(function, "device_mesh", "one dimension", f"{device_mesh.ndim} of them")
        whole: Any = module
        if len(whole.heads) != whole.num_heads:
            wrong_value(function, "module", "one with all of its heads", f"heads={whole.heads}")
        share = (device_mesh.get_local_rank(), device_mesh.size())
        whole.heads = heads_of(owner, share, whole.num_heads)
        whole.head_mesh = device_mesh
        for name, axis in axes.items():
            given = getattr(module, name, None)
            if isinstance(given, nn.Parameter):
                cut = distribute_tensor(given.detach(), device_mesh, [Shard(axis % given.ndim)])
                module.register_parameter(name, nn.Parameter(cut, given.requires_grad))
        return module
