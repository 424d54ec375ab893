"""A program: run vLLM on a checkpoint once; what it generates, and what its rotary layers are.

    {"model": folder, "options": {...}, "prompts": [[token, ...], ...], "tokens": n,
     "repeats": n, "lora": folder}  on stdin
    ─► a line of JSON on stdout, among vLLM's

The environment decides whether the plugin is on (POSENC_VLLM).
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


def main() -> None:
    asked = json.loads(sys.stdin.read())
    _stand_in_for_torchvision()
    from vllm import LLM, SamplingParams

    options = {
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "enforce_eager": True,
        "max_model_len": 512,
        "enable_prefix_caching": False,
        "seed": 0,
        **asked["options"],
    }
    llm = LLM(asked["model"], **options)
    calls: Counter[str] = Counter()
    rotary: dict[str, Any] = {}
    tables: list[str] = []
    if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0":  # its model is in this process
        model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
        rotary = {
            name: layer
            for name, layer in model.named_modules()
            if "Rotary" in type(layer).__name__ and "ApplyRotary" not in type(layer).__name__
        }
        tables = [name for name, _ in model.named_buffers() if "cos_sin" in name]
    for layer in rotary.values():
        name = type(layer).__name__
        layer.register_forward_hook(lambda *_, name=name: calls.update([name]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB
    settings = SamplingParams(
        temperature=0.0, max_tokens=asked["tokens"], logprobs=5, detokenize=False, ignore_eos=True
    )
    extra: dict[str, Any] = {}
    if "lora" in asked:
        from vllm.lora.request import LoRARequest

        extra["lora_request"] = LoRARequest("adapter", 1, asked["lora"])
    runs = []
    for _ in range(asked.get("repeats", 1)):
        prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
        runs.append([
            {
                "tokens": [*out.outputs[0].token_ids],
                "logprobs": [
                    {token: value.logprob for token, value in step.items()}
                    for step in out.outputs[0].logprobs
                ],
                "cached": out.num_cached_tokens,
            }
            for out in llm.generate(prompts, settings, use_tqdm=False, **extra)
        ])  # fmt: skip
    said = {"runs": runs, "classes": sorted({type(x).__name__ for x in rotary.values()}),
            "calls": dict(calls), "tables": tables, "peak": peak}  # fmt: skip
    sys.stdout.write(f"\n{json.dumps(said)}\n")


def _stand_in_for_torchvision() -> None:
    """For models with images, which get none here."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "engines_at_hand"))
    import transformers  # noqa: F401 (it looks for torchvision)
    from served_models import stand_in

    stand_in(*(f"torchvision{name}" for name in ("", ".transforms", ".transforms.v2")))
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()


if __name__ == "__main__":
    main()
