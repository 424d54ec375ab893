"""Runs SGLang's own models: a server's settings -> how each attention layer rotates.

{"model-path": {...config...}, "json-model-override-args": {...}, "context-length": n}
    ─► config.json ─► SGLang's get_config ─► its model class, without weights
    ─► forward of each attention: is its rotary_emb called? ─► unit vectors through it
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", SGLANG_LOG_LEVEL="ERROR")

# This file has the engine's name: its folder must not hide the engine.
_HERE = Path(__file__).resolve().parent
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != _HERE]
sys.path.append(str(_HERE.parent))

import torch  # noqa: E402
import transformers  # noqa: E402, F401
from probe import serve  # noqa: E402
from served_models import attention_rotations, stand_in  # noqa: E402

stand_in("gguf", *(f"torchvision{name}" for name in ("", ".transforms", ".transforms.functional")))

import sglang.srt.distributed.parallel_state as groups  # noqa: E402
from sglang.srt.layers.radix_attention import RadixAttention  # noqa: E402
from sglang.srt.layers.rotary_embedding import factory  # noqa: E402
from sglang.srt.models.registry import ModelRegistry  # noqa: E402
from sglang.srt.runtime_context import SpawnRanks, publish  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402
from sglang.srt.utils.hf_transformers.config import get_config  # noqa: E402


def rotations(settings: Any) -> Iterator[tuple[int, Any]]:
    """(layer, rotation) of every attention layer of the model, as SGLang serves it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(settings["model-path"]))
        _start(folder)
        factory._ROPE_DICT.clear()
        overrides = settings.get("json-model-override-args") or {}
        config = get_config(folder, trust_remote_code=False, model_override_args=overrides)
        model_class, _ = ModelRegistry.resolve_model_cls(config.architectures)
        model = model_class(config)
        sizes = config.get_text_config()
        yield from attention_rotations(model, RadixAttention, sizes.hidden_size)


def _start(folder: str) -> None:
    """What a server sets up: its arguments, and a world of one process."""
    arguments = ServerArgs(
        model_path=folder,
        device="cpu",
        skip_tokenizer_init=True,
        attention_backend="torch_native",
    )
    publish(arguments, role="scheduler", ranks=SpawnRanks(0))
    if not torch.distributed.is_initialized():
        address = f"file://{tempfile.mktemp()}"
        groups.init_distributed_environment(
            1, 0, distributed_init_method=address, local_rank=0, backend="gloo"
        )
        groups.initialize_model_parallel(backend="gloo")
        torch.set_default_dtype(torch.float32)


if __name__ == "__main__":
    serve("sglang", rotations)
