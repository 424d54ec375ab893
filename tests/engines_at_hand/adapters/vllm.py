"""Runs vLLM's own models: a server's settings -> how each attention layer rotates.

{"model": {...config...}, "hf_overrides": {...}, "max_model_len": n}
    ─► config.json ─► EngineArgs ─► vLLM's configuration ─► its model class, without weights
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

for name, value in {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_MLA_DISABLE": "1",  # the attention that runs on a CPU
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}.items():
    os.environ[name] = value

# This file has the engine's name: its folder must not hide the engine.
_HERE = Path(__file__).resolve().parent
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != _HERE]
sys.path.append(str(_HERE.parent))

import torch  # noqa: E402
import transformers  # noqa: E402, F401
from probe import serve  # noqa: E402
from served_models import attention_rotations, stand_in  # noqa: E402

stand_in(*(f"torchvision{name}" for name in ("", ".transforms", ".transforms.v2")))

from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import (  # noqa: E402
    destroy_model_parallel,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.layers import rotary_embedding  # noqa: E402
from vllm.model_executor.layers.attention import Attention  # noqa: E402
from vllm.model_executor.layers.linear import LinearBase  # noqa: E402
from vllm.model_executor.model_loader.utils import initialize_model  # noqa: E402
from vllm.model_executor.models import registry  # noqa: E402

registry._run_in_subprocess = lambda function: function()  # it would lack the stand-ins


def rotations(settings: Any) -> Iterator[tuple[int, Any]]:
    """(layer, rotation) of every attention layer of the model, as vLLM serves it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(settings["model"]))
        options = {key: value for key, value in settings.items() if key != "model"}
        engine = EngineArgs(
            model=folder,
            dtype="float32",
            load_format="dummy",
            enforce_eager=True,
            skip_tokenizer_init=True,
            language_model_only=True,
            **options,
        ).create_engine_config()
        rotary_embedding._ROPE_DICT.clear()
        with set_current_vllm_config(engine):
            _world_of_one()
            torch.set_default_dtype(torch.float32)
            model = initialize_model(engine)
            sizes = engine.model_config.hf_text_config
            yield from attention_rotations(model, Attention, sizes.hidden_size, _prepare)


def _prepare(attention: torch.nn.Module) -> None:
    for parameter in attention.parameters():
        torch.nn.init.zeros_(parameter)
    for module in attention.modules():
        if isinstance(module, LinearBase):
            module.quant_method.process_weights_after_loading(module)


def _world_of_one() -> None:
    """The groups of one process; models with experts need more of them."""
    if not torch.distributed.is_initialized():
        address = f"file://{tempfile.mktemp()}"
        init_distributed_environment(1, 0, address, 0, backend="gloo")
    destroy_model_parallel()
    initialize_model_parallel(1, 1, backend="gloo")


if __name__ == "__main__":
    serve("vllm-cpu", rotations)
