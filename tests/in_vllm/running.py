"""Run vLLM in a process of its own; transformers with exact angles, to compare with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

import posenc_native.hf

SERVE = Path(__file__).with_name("serve.py")
PROMPTS = [[(7 * i * i + 3 + shift) % 256 for i in range(n)] for shift, n in ((0, 5), (9, 90))]


def served(
    model: Path, plugin: bool = True, prompts: list[list[int]] = PROMPTS, tokens: int = 8,
    lora: Path | None = None, repeats: int = 1, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """What vLLM generates, and what its rotary layers are (serve.py)."""
    asked = {"model": str(model), "options": options, "prompts": prompts, "tokens": tokens,
             "repeats": repeats} | ({"lora": str(lora)} if lora else {})  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-P", str(SERVE)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "POSENC_VLLM": str(int(plugin))},
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:] + done.stdout[-4000:])
    said = json.loads(next(x for x in done.stdout.splitlines() if x.startswith('{"runs"')))
    said["log"] = done.stderr + done.stdout
    return said


def exact_logprobs(
    model: Path, tokens: list[int], dtype: torch.dtype = torch.float64, first: int = 0
) -> torch.Tensor:
    """Log-probabilities after each of the tokens, by transformers with exact angles.

    Args:
        first: the position of the first token.
    """
    config = transformers.AutoConfig.from_pretrained(model)
    kind = transformers.AutoModelForCausalLM
    if type(config) not in kind._model_mapping:
        kind = transformers.AutoModelForImageTextToText
    network = kind.from_pretrained(model, dtype=dtype, attn_implementation="eager").eval()
    posenc_native.hf.patch(network)
    ids = torch.tensor([tokens])
    places = torch.arange(first, first + len(tokens))[None]
    with torch.no_grad():
        logits = network(ids, position_ids=places, use_cache=False).logits[0]
    return logits.double().log_softmax(-1)


def errors(model: Path, prompts: list[list[int]], run: list[Any], **options: Any) -> list[float]:
    """The largest error of a log-probability in each answer, against `exact_logprobs`."""
    found = []
    for prompt, answer in zip(prompts, run, strict=True):
        wanted = exact_logprobs(model, prompt + answer["tokens"][:-1], **options)
        wanted = wanted[len(prompt) - 1 :]
        found.append(max(
            abs(wanted[step, int(token)].item() - value)
            for step, values in enumerate(answer["logprobs"])
            for token, value in values.items()
        ))  # fmt: skip
    return found
