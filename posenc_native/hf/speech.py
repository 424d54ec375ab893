"""Rotary encoders of speech: Wav2Vec2-Conformer, Wav2Vec2-BERT, SeamlessM4T.

The module that makes tables gets hidden states, not positions: token i has position i. Its result
has cos and sin of all tokens, [2, s, 1, 1, head]. Every attention rotates its hidden states, by
heads and before the projections, in a method of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc_native.core.calls.tables import Tables as GivenTables
from posenc_native.encodings.rotary.apply import apply_rotary
from posenc_native.encodings.rotary.tables import rotary_tables

from .forms import Form, NotServed, Orders, Tables, table_dtype
from .instances import with_decorators_of
from .signatures import forward_arguments, with_marked_frequencies, with_own_buffers

__all__ = ["ROTATES", "makes_speech_tables", "rotates_speech", "speech_rotation", "speech_tables"]

ROTATES = "_apply_rotary_embedding"  # the method of an attention


def makes_speech_tables(module: nn.Module) -> bool:
    """Whether a rotary-embedding module makes tables from hidden states alone."""
    return forward_arguments(module) == ["self", "hidden_states"]


def rotates_speech(module: nn.Module) -> bool:
    """Whether an attention module rotates its hidden states in a method of its own."""
    method = inspect.getattr_static(type(module), ROTATES, None)
    kind = getattr(module, "position_embeddings_type", "rotary")  # "relative" has the method, too
    return inspect.isfunction(method) and kind == "rotary"


def speech_tables(module: nn.Module) -> Tables:
    """How a module makes tables from hidden states.

    Raises:
        NotServed: in an unknown way.
    """
    kind, original = type(module).__name__, type(module).forward
    frequencies = cast(Tensor, module._buffers["inv_freq"])
    form = Form((*range(len(frequencies)),) * 2)

    def make(orders: Orders, device: torch.device) -> Callable[..., Any]:
        def forward(self: Any, hidden_states: Tensor) -> Tensor:
            frequencies = self.inv_freq
            tokens = torch.arange(hidden_states.shape[1], device=frequencies.device)
            tables = rotary_tables(tokens, frequencies, dtype=table_dtype(hidden_states))
            # In the model's form: the layers pass it on.
            return torch.stack([torch.cat((table, table), -1) for table in tables])[
                :, :, None, None
            ]

        return with_decorators_of(original, forward)

    exact = make({}, torch.device("cpu"))
    for probe in (with_marked_frequencies(module, ""), with_own_buffers(module)):
        fastest = float(cast(Tensor, probe._buffers["inv_freq"]).abs().max())
        # It keeps the tables of the last length.
        for length in (9, 13, 3000):
            hidden = torch.zeros(1, length, 1, dtype=torch.float32)
            try:
                theirs = original(probe, hidden)
            except Exception as error:  # any error of a model
                raise NotServed(f"{kind} cannot be probed with hidden states: {error}") from error
            ours = exact(probe, hidden)
            bound = 1e-5 + length * fastest * 2.0**-23  # the module rounds a phase
            if not (
                isinstance(theirs, Tensor)
                and theirs.shape == ours.shape
                and float((theirs - ours).abs().max()) <= bound
            ):
                raise NotServed(f"{kind} computes its tables in its own way")
    return Tables((form,), make)


def speech_rotation(module: nn.Module) -> Callable[..., Tensor]:
    """The method that rotates the hidden states of an attention, by tables of `speech_tables`.

    Never in place: the values are projections of the same hidden states.

    Raises:
        NotServed: the module's own method does something else.
    """
    kind = type(module)
    original = getattr(kind, ROTATES)

    def rotate(self: Any, hidden_states: Tensor, relative_position_embeddings: Tensor) -> Tensor:
        heads = hidden_states.unflatten(-1, (self.num_heads, self.head_size))
        tokens, pairs = heads.shape[1], self.head_size // 2
        cos, sin = relative_position_embeddings[:, :tokens, 0, 0, :pairs]
        rotated: Tensor = apply_rotary(
            heads, None, GivenTables(cos, sin), layout="bshd", pairing="half"
        )
        return rotated.flatten(-2)

    random = torch.Generator("cpu").manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float32)

    attention: Any = module
    try:
        heads, size = attention.num_heads, attention.head_size
        # There are more rows than tokens; the rest is left out.
        x, tables = numbers(2, 5, heads * size), numbers(2, 7, 1, 1, size // 2)
        tables = torch.cat((tables, tables), dim=-1)
        ours, theirs = (method(module, x, tables) for method in (rotate, original))
        same = torch.allclose(ours, theirs, 1e-5, 1e-5)
    except Exception as error:  # any error of a model
        raise NotServed(f"{kind.__name__}.{ROTATES} cannot be probed: {error}") from error
    if not same:
        raise NotServed(f"{kind.__name__}.{ROTATES} rotates in an unknown way")
    return with_decorators_of(original, rotate)
