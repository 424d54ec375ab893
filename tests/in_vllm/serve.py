"""A program: run vLLM on a checkpoint once; what it generates, and what its rotary layers are.

    {"model": folder, "options": {...}, "prompts": [[token, ...], ...], "tokens": n}  on stdin
    ─► a JSON object: the last line of stdout

The environment decides whether the plugin is on (POSENC_VLLM).
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import Counter
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


def main() -> None:
    asked = json.loads(sys.stdin.read())
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
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    rotary: dict[str, Any] = {
        name: layer
        for name, layer in runner.model.named_modules()
        if "Rotary" in type(layer).__name__ and "ApplyRotary" not in type(layer).__name__
    }
    calls: Counter[str] = Counter()
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
    tables = [name for name, _ in runner.model.named_buffers() if "cos_sin" in name]
    said = {"runs": runs, "classes": sorted({type(x).__name__ for x in rotary.values()}),
            "calls": dict(calls), "tables": tables, "peak": peak}  # fmt: skip
    sys.stdout.flush()
    print("\n" + json.dumps(said))


if __name__ == "__main__":
    main()
