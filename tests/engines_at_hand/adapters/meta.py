"""Meta's code for Llama 2 and 3 (llama-models): a small Transformer, run on a thousand tokens.

The function with which a layer rotates is called once more, with unit vectors, on the phases that
the layer has given it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fairscale.nn.model_parallel.initialize as parallel
from llama_models.llama3 import model as code
from llama_models.llama3.args import ModelArgs
from probe import read_rotation, serve

_LAST = 1000


def rotations(configuration: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """The rotation of every layer."""
    arguments = {**configuration, "max_batch_size": 1, "max_seq_len": _LAST + 1}
    model = code.Transformer(ModelArgs(**arguments)).eval()
    seen: dict[int, Any] = {}
    current = [0]
    for number, layer in enumerate(model.layers):
        layer.register_forward_pre_hook(lambda *_, number=number: current.__setitem__(0, number))
    own = code.apply_rotary_emb

    def spied(xq: Any, xk: Any, freqs_cis: Any) -> Any:
        if current[0] not in seen:
            seen[current[0]] = read_rotation(_rotate(own, freqs_cis), xq.shape[-1])
        return own(xq, xk, freqs_cis)

    code.apply_rotary_emb = spied
    try:
        with torch.no_grad():
            model(torch.zeros(1, _LAST + 1, dtype=torch.long), 0)
    finally:
        code.apply_rotary_emb = own
    return [(number, seen.get(number)) for number in range(len(model.layers))]


def _rotate(function: Any, freqs_cis: Any) -> Any:
    def rotate(x: Any, positions: Any) -> Any:
        tokens = torch.as_tensor(x)[None, :, None]  # [batch, tokens, heads, dims]
        return function(tokens, tokens, freqs_cis[torch.as_tensor(positions)])[0][0, :, 0].numpy()

    return rotate


def _world_of_one() -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29672")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel.initialize_model_parallel(1)
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    _world_of_one()
    serve("llama-models", rotations)
