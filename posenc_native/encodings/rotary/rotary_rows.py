"""A rotation for each row of the batch: `Rotary.rows`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.calls.constants import constant
from posenc_native.core.documents.reprs import call
from posenc_native.engines.arrays import Arrays
from posenc_native.engines.plain.phases import frequency_turns

from .rows import FrequencyRows
from .verbs import Verbs

if TYPE_CHECKING:
    from posenc_native.core.calls.kinds import Pairing

    from .rotary import Rotary

__all__ = ["RotaryRows"]


# What all rows have alike, beside the axis_map.
_SHARED = ("head_dim", "rotary_dim", "pairing", "rotary_start", "layout", "query_scale")


class RotaryRows(FrequencyRows, Verbs):
    """A rotation for each row of the batch, made by `Rotary.rows`; called like a `Rotary`.

    Attributes:
        ropes: a `Rotary` for each row. They have one head_dim, rotary_dim, pairing, rotary_start,
            axis_map and query_scale.
    """

    ropes: tuple[Rotary, ...]
    head_dim: int
    layout: str
    pairing: Pairing
    rotary_start: int
    axis_map: npt.NDArray[np.int64] | None
    query_scale: Mapping[str, Any] | None
    scale: Any  # a factor for each row, or None

    def __init__(self, ropes: Iterable[Rotary]) -> None:
        ropes = tuple(ropes)
        for i, rope in enumerate(ropes):
            if getattr(type(rope), "__rotary__", None) is None:
                wrong_type("Rotary.rows", f"ropes[{i}]", "a Rotary", type(rope).__name__)
        if not ropes:
            wrong_value("Rotary.rows", "ropes", "a Rotary for each row of the batch", "none")
        self.ropes = tuple(rope.__rotary__() for rope in ropes)
        first = self.ropes[0]
        for i, rope in enumerate(self.ropes):
            for name in _SHARED:
                own, wanted = getattr(rope, name), getattr(first, name)
                if own != wanted:
                    expected = f"{name} = {wanted!r}, as ropes[0] has"
                    wrong_value("Rotary.rows", f"ropes[{i}]", expected, repr(own))
            maps: Any = rope.axis_map, first.axis_map
            if not np.array_equal(*maps):
                wrong_value("Rotary.rows", f"ropes[{i}]", "the axis_map of ropes[0]", "another")
        super().__init__(np.stack([rope.inv_freq for rope in self.ropes]))
        self._on_devices: dict[Any, Any] = {}
        self.head_dim, self.layout = first.head_dim, first.layout
        self.pairing, self.rotary_start = first.pairing, first.rotary_start
        self.axis_map, self.query_scale = first.axis_map, first.query_scale
        scales = tuple(float(rope.scale) for rope in self.ropes)
        self.scale = None if set(scales) == {1.0} else scales

    def __repr__(self) -> str:
        return call(self, ropes=self.ropes)

    def __len__(self) -> int:
        return len(self.ropes)

    def rotation_of_rows(self, function: str, names: Any, inputs: Any, rotation: Any) -> Any:
        """As of frequencies; heads have the width head_dim."""
        for name, x in zip(names, inputs, strict=False):
            self._check_width(function, name, x)
        return super().rotation_of_rows(function, names, inputs, rotation)

    def _beside(self, arrays: Arrays) -> Any:
        self._prepare(arrays.device)
        return self._on_devices[arrays.device][0]

    def _turns_beside(self, arrays: Arrays, inv_freq: Any) -> Any:
        return self._on_devices[arrays.device][1]

    @constant
    def _prepare(self, device: Any) -> None:
        """Make frequencies and turns for a device, once: a GPU would wait for them.

        torch.compile runs this function while it traces; the graph then reads ready tensors.
        """
        if device in self._on_devices:
            return
        inv_freq, turns = self.inv_freq, frequency_turns("Rotary.rows", self.inv_freq)
        if device is not None:
            import torch

            with torch.inference_mode(False):
                inv_freq, turns = (torch.from_numpy(x).to(device) for x in (inv_freq, turns))
        self._on_devices[device] = inv_freq, turns
