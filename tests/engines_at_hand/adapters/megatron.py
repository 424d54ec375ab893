"""Megatron: a small GPTModel of megatron-core, run on a thousand tokens.

The function with which a layer rotates its queries is called once more, with unit vectors, on the
phases that the layer has given it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer import TransformerConfig, attention, multi_latent_attention
from megatron.core.transformer.transformer_config import MLATransformerConfig
from probe import read_rotation, serve

_POSITIONS = [0, 1, 1000]  # 0 for the order of the dims
# Arguments of pretrain_gpt whose names the model has not.
_NAMES = {
    "seq_length": "max_sequence_length",
    "use_rope_scaling": "rope_scaling",
    "rotary_seq_len_interpolation_factor": "seq_len_interpolation_factor",
}
_OF_MODEL = {"position_embedding_type", "rotary_percent", "rotary_base", "rope_scaling",
             "rope_scaling_factor", "seq_len_interpolation_factor"}  # fmt: skip


def rotations(configuration: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """The rotation of every layer."""
    given = {_NAMES.get(key, key): value for key, value in configuration.items()}
    if given.pop("use_rotary_position_embeddings", False):  # as the parser of arguments does
        given["position_embedding_type"] = "rope"
    kind = MLATransformerConfig if given.get("multi_latent_attention") else TransformerConfig
    known = {field.name for field in dataclasses.fields(kind)}
    model_words = {key: given[key] for key in _OF_MODEL & {*given}}
    config = kind(
        use_cpu_initialization=True,
        **{key: value for key, value in given.items() if key in known and key not in _OF_MODEL},
        **{key: given[key] for key in ("rotary_base", "rotary_percent") if key in known & {*given}},
    )
    for key in [key for key in given if key.startswith("yarn_")]:  # read as attributes
        setattr(config, key, given.pop(key))
    unknown = {*given} - known - _OF_MODEL - {"max_position_embeddings", "max_sequence_length"}
    if unknown:
        raise TypeError(f"no such arguments: {sorted(unknown)}")
    latent = bool(given.get("multi_latent_attention"))
    spec = get_gpt_layer_local_spec(multi_latent_attention=latent)
    spec.submodules.self_attention.submodules.core_attention = _Core
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=64,
        max_sequence_length=2048,
        **model_words,
    ).eval()
    seen: dict[int, Any] = {}
    layers = model.decoder.layers
    current = [0]
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, number=number: current.__setitem__(0, number))
    own = attention.apply_rotary_pos_emb
    axes = len(config.mrope_section or [0]) if model.position_embedding_type == "mrope" else 1

    def spied(t: Any, freqs: Any, *args: Any, **kwargs: Any) -> Any:
        if current[0] not in seen:
            rotation = _after(own, args, kwargs)
            seen[current[0]] = (
                _read(rotation, t, freqs) if axes == 1 else _read_axes(rotation, t, model, axes)
            )
        return own(t, freqs, *args, **kwargs)

    modules = (attention, multi_latent_attention)
    for module in modules:
        module.apply_rotary_pos_emb = spied
    try:
        tokens = torch.zeros(1, _POSITIONS[-1] + 1, dtype=torch.long)
        places = torch.arange(tokens.shape[1])[None]
        if axes > 1:
            places = places.expand(axes, 1, -1)
        with torch.no_grad():
            model(tokens, places, torch.zeros(1, 1, 1, 1, dtype=torch.bool))
    finally:
        for module in modules:
            module.apply_rotary_pos_emb = own
    if latent:
        for number in seen:
            part = layers[number].self_attention
            correction = part.softmax_scale * part.q_head_dim**0.5
            seen[number] = {**seen[number], "softmax_correction": round(correction, 6)}
    return [(number, seen.get(number)) for number in range(len(layers))]


class _Core(torch.nn.Module):
    """In the place of scores and softmax, which want a GPU's random numbers."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return value.flatten(2)


def _after(own: Any, args: Any, kwargs: Any) -> Any:
    """The function, with what follows the tensor and the phases."""
    return lambda t, freqs: own(t, freqs, *args, **kwargs)


def _read(function: Any, t: Any, freqs: Any) -> Any:
    dims = t.shape[-1]
    units = torch.eye(dims)[None, None].expand(len(_POSITIONS), 1, dims, dims)  # [s, b, h, d]
    rows = function(units.contiguous(), freqs[_POSITIONS])[:, 0].double().numpy()
    start = rows[0]
    magnitude = np.sqrt(np.einsum("ij,ij->i", start, start)).max()

    def rotate(_: Any, positions: Any) -> Any:
        return rows[_POSITIONS.index(int(positions[0]))] @ start.T / magnitude

    return read_rotation(rotate, dims)


def _read_axes(function: Any, t: Any, model: Any, axes: int) -> Any:
    def rotate(x: Any, positions: Any) -> Any:
        freqs = model.rotary_pos_emb(torch.as_tensor(positions)[:, None], model.mrope_section)
        return function(torch.as_tensor(x)[:, None, None], freqs)[:, 0, 0].numpy()

    return read_rotation(rotate, t.shape[-1], axes)


def _world_of_one() -> None:
    # The modules move their frequencies to the device of this process: here the CPU.
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29671")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()


if __name__ == "__main__":
    _world_of_one()
    serve("megatron-core", rotations)
