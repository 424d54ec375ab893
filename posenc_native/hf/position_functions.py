"""Rotary functions that make their tables themselves, from heads and positions.

V-JEPA 2's ``rotate(x, pos)`` computes frequencies, angles, cos and sin in every call. The angles
whose cosine it computes at position 1 are its frequencies, bit for bit. Its result for unit vectors
shows how it uses cos and sin; the two dims of a pair need not share an angle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from posenc_native.encodings.rotary.tables import rotary_tables

from .forms import NotServed, match_columns, table_dtype
from .signatures import title_of

__all__ = ["position_function"]


def position_function(original: Callable[..., Any], sizes: Sequence[int]) -> Callable[..., Tensor]:
    """``original(x, pos)`` with an exact phase.

    x is ``[b, h, s, size]``, pos ``[s]`` or ``[b, h, s]``; computed in float32 (float64 for
    float64) and rounded once.

    Args:
        original: the model's function.
        sizes: the wanted sizes. Each has its own frequencies. Odd ones are left out;
            x of another size goes to the model's own function.

    Raises:
        NotServed: it is not a rotation of x by angles pos * frequency.
    """
    title = title_of(original)
    probed = {size: _probe_size(original, title, size) for size in sizes if size % 2 == 0}

    def rotary(x: Tensor, pos: Tensor) -> Tensor:
        if x.shape[-1] not in probed:
            return original(x, pos)  # type: ignore[no-any-return]
        frequencies, angle, partner, sign = (tensor.to(x.device) for tensor in probed[x.shape[-1]])
        dtype = table_dtype(x)
        cos, sin = rotary_tables(pos, frequencies, dtype=dtype)
        wide = x.to(dtype)
        turned = wide * cos[..., angle] + wide[..., partner] * (sin[..., angle] * sign)
        result: Tensor = turned.to(x.dtype)
        return result

    rotary.__name__ = title
    return rotary


class _KeepAngles(TorchDispatchMode):
    """Records the arguments of cos."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.cos.default:
            self.seen.append(args[0])
        return func(*args, **(kwargs or {}))


def _probe_size(original: Callable[..., Any], title: str, size: int) -> tuple[Tensor, ...]:
    """Frequencies; and for every dim its frequency, its partner, and the partner's sign."""
    # One head per dim; far tokens distinguish low frequencies.
    tokens = torch.tensor([1, 2, 5, 13, 40, 111, 1000, 4000])
    unit = torch.eye(size, dtype=torch.float32)[None, :, None].expand(1, size, len(tokens), size)
    try:
        with _KeepAngles() as angles:
            original(unit[:, :, :1], pos=torch.ones(1, dtype=torch.float32))
        result = original(unit, pos=tokens.float())
    except Exception as error:  # any error of a model
        raise NotServed(f"{title} cannot be probed: {error}") from error
    if len(angles.seen) == 1 and isinstance(result, Tensor) and result.shape == unit.shape:
        frequencies = angles.seen[0].flatten()
        shares = result[0].permute(1, 2, 0)  # [token, dim of the result, dim of x]
        cos = shares.diagonal(dim1=1, dim2=2)
        others = shares - torch.diag_embed(cos)
        partner = others[0].abs().argmax(dim=1)
        sin = others.gather(2, partner[None, :, None].expand(len(tokens), -1, 1))[..., 0]
        sign = sin[0].sign()
        columns = match_columns((cos, sin * sign), tokens[None], frequencies)
        alone = others.abs().sum(dim=2) - sin.abs()
        if columns is not None and float(alone.max()) < 1e-6:
            every = columns.frequency[torch.tensor(columns.form.columns)]
            return frequencies, every, partner, sign
    raise NotServed(f"{title} rotates in an unknown way")
