"""Rotary layers in place of vLLM's: a mixin in front of vLLM's class.

vLLM's constructor runs first, but makes no table. The frequencies are those that vLLM's class
computes. A call rotates query and key with one call of a `Rotary`: the fast path of small calls, an
operator in a compiled graph. The layers of a long step share tables (step), but not in a compiled
graph: torch.compile does not merge equal operators without gradients.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc_native.core.calls.constants import constant
from posenc_native.encodings.rotary.apply import apply_rotary_qk
from posenc_native.engines.torch.door import is_dynamo_compiling

from .rotations import Known
from .step import shared_tables

__all__ = ["ExactRotary", "arguments_of"]

# vLLM shows messages of its own loggers.
log = logging.getLogger("vllm.posenc_native")

_TABLES = ("cos_sin_cache", "long_short_cos_sin_cache")


def arguments_of(theirs: type) -> tuple[str, ...]:
    """The arguments of a class's constructor; those of its base where it only passes them on."""
    return tuple(_signature(theirs).parameters)[1:]


def _signature(theirs: type) -> inspect.Signature:
    signature = inspect.Signature()
    for kind in theirs.__mro__:
        if "__init__" in kind.__dict__:
            signature = inspect.signature(kind.__dict__["__init__"])
            kinds = {argument.kind for argument in signature.parameters.values()}
            if inspect.Parameter.VAR_POSITIONAL not in kinds:
                break
    return signature


class ExactRotary:
    """A rotary layer of vLLM with exact angles and no table.

    A layer that cannot be expressed becomes one of vLLM's class again.

    Attributes:
        theirs: the class of vLLM that it replaces.
        known: the arguments of that class and the rotations that they make.
        reason: the reason why all layers of this class stay vLLM's; "" if there is none.
    """

    theirs: ClassVar[type]
    known: ClassVar[Known]
    reason: ClassVar[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        layer: Any = self
        name, reason = self.theirs.__name__, self.reason
        if not reason:
            super().__init__(*args, **kwargs)
            bound = _signature(self.theirs).bind(self, *args, **kwargs)
            bound.apply_defaults()
            try:
                rotations = self.known.rotations(bound.arguments, self)
            except (ValueError, TypeError, AttributeError) as error:
                reason = str(error)
        if reason:
            log.warning("posenc_native: vLLM's own %s stays: %s", name, reason)
            layer.__class__ = self.theirs
            layer.__init__(*args, **kwargs)
            return
        log.info("posenc_native: exact angles and no table in a layer %s", name)
        for name in _TABLES:
            layer._buffers.pop(name, None)
            layer._non_persistent_buffers_set.discard(name)
        self._rotary, self._by_axis, self._rows = rotations
        self._device = torch.get_default_device()
        # vLLM rounds its table to the model's dtype, with these exceptions.
        wide = getattr(self, "use_flashinfer", False) or self.known.part == "last"
        self._table_dtype = torch.float32 if wide else bound.arguments["dtype"]

    def forward(
        self,
        positions: Tensor,
        query: Tensor,
        key: Tensor | None = None,
        offsets: Tensor | None = None,
        inverse: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Rotate query and key, in place if vLLM's class does it, and not in a graph.

        Args:
            positions: ``[tokens]``, or ``[axes, tokens]`` if the layer has axes.
            query, key: ``[tokens, heads * head_size]`` or ``[tokens, heads, width]``.
            offsets: added to positions.
            inverse: rotate by the negative angles.
        """
        if offsets is not None:
            positions = positions + offsets
        rotary = self._rotary
        if positions.ndim == 2:
            if self._by_axis is None:
                positions = positions.flatten()
            else:
                rotary = self._by_axis
        tokens = positions.shape[-1]
        q = self._heads(query, tokens)
        k: Any = None if key is None else self._heads(key, tokens)
        # In a graph the results are new tensors. vLLM's Inductor would copy the packed query, key
        # and value once for each tensor that an operator unknown to it overwrites.
        is_whole = self.known.part is None or (q is query and k is key)
        is_traced = is_dynamo_compiling()
        inplace = self.known.overwrites and not (is_traced and is_whole)
        options: Any = {"inplace": inplace, "inverse": inverse}
        tables = None
        if not is_traced:
            tables = shared_tables(rotary, positions, torch.promote_types(q.dtype, torch.float32))
        if tables is None:
            rotated = rotary(q, k, positions, **options)
        else:
            options.update(pairing=rotary.pairing, rotary_start=rotary.rotary_start)
            rotated = apply_rotary_qk(q, k, None, tables, layout=rotary.layout, **options)
        if inplace:
            return query, key
        q, k = rotated
        return q.reshape(query.shape), k if key is None else k.reshape(key.shape)

    def _heads(self, x: Tensor, tokens: int) -> Tensor:
        """A view of the heads, or of their rotated dims."""
        part, layer = self.known.part, self.__dict__
        if part is None:
            return x.view(tokens, -1, layer["head_size"])
        dims = layer["rotary_dim"]
        if x.shape[-1] == dims:
            return x
        return x[..., :dims] if part == "first" else x[..., -dims:]

    forward_cpu = forward_cuda = forward

    def forward_native(
        self, positions: Tensor, query: Tensor, key: Tensor | None = None, *options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """As `forward`, but query and key keep their values."""
        key = None if key is None else key.clone()
        return self.forward(positions, query.clone(), key, *options)

    def _compute_cos_sin_cache(self, *args: Any) -> Tensor:
        """Nothing, for vLLM's constructors."""
        return torch.empty(0)

    def get_cos_sin(self, seqlen: int) -> tuple[Tensor, Tensor]:
        """The cosines and sines of the first positions, exact, in the dtype of vLLM's table."""
        positions = torch.arange(seqlen, device=self._device)
        return self._rotary.tables(positions, dtype=self._table_dtype)

    def __getattr__(self, name: str) -> Any:
        """vLLM's table, exact, made when other code of vLLM asks for it."""
        if name in _TABLES and "_rows" in self.__dict__:
            self._make_table(name)
            return self.__dict__["_buffers"][name]
        return super().__getattr__(name)  # type: ignore[misc]

    @constant
    def _make_table(self, name: str) -> None:
        """Make the table, also while torch.compile traces: the graph then reads a ready table."""
        with torch.inference_mode(False):
            table = torch.cat([self._table(*part) for part in self._rows])
        self.__dict__["_buffers"][name] = table
        self.__dict__["_non_persistent_buffers_set"].add(name)

    def _table(self, rotary: Any, rows: int) -> Tensor:
        positions = torch.arange(rows, device=self._device)
        return torch.cat(rotary.tables(positions, dtype=self._table_dtype), -1)
