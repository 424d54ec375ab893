"""`python -m benchmarks.studies.vllm_latency`: vLLM's own benchmark of latency, with the plugin.

A Llama of the widths of a model of 1B (2,048; 32 + 8 heads of 64) and four layers, with random
weights in bfloat16, on the CPU. `vllm.benchmarks.latency` times requests of three kinds; processes
with the plugin and without it take turns. A row has the medians of all of them, in milliseconds for
a token, and their ratio. The rotation is a small part of a step, so a ratio of 1 is expected.

This needs an environment with torch, vLLM and this package, its plugin included:
tests/engines_at_hand/adapters/vllm.txt and vllm.no_deps.txt list the others.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import command
from benchmarks.figures.report import lined_up

# name: prompt tokens, new tokens, requests at once
_KINDS = {
    "prefill, 1,024 tokens": (1024, 1, 1),
    "decode, 1 sequence": (16, 32, 1),
    "decode, 16 sequences": (16, 32, 16),
}
_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
    "intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 16384, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "max_position_embeddings": 131_072, "rope_theta": 500_000.0,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_PROGRAM = """
import sys
from vllm.benchmarks import latency
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
latency.add_cli_args(parser)
latency.main(parser.parse_args(sys.argv[1:]))
"""


def _latencies(model: str, kind: tuple[int, int, int], plugin: bool, repeats: int) -> list[float]:
    """Seconds of each run of a process of its own."""
    prompt, new, requests = kind
    result = Path(model) / "latency.json"
    options = {
        "model": model, "load-format": "dummy", "max-model-len": 2048, "input-len": prompt,
        "output-len": new, "batch-size": requests, "num-iters-warmup": 1, "num-iters": repeats,
        "output-json": result,
    }  # fmt: skip
    given = [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *given, "--skip-tokenizer-init", "--disable-detokenize",
         "--enforce-eager", "--disable-log-stats"],
        env={**os.environ, "POSENC_VLLM": str(int(plugin)), "HF_HUB_OFFLINE": "1",
             "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise command.Refused(f"vLLM ended: {done.stderr[-2000:]}")
    used = "exact angles and no table" in done.stdout + done.stderr
    if used != plugin:
        raise command.Refused(f"the plugin was {'on' if used else 'off'}: see posenc-native info")
    found: list[float] = json.loads(result.read_text(encoding="utf-8"))["latencies"]
    return found


def main(rounds: int = 3, repeats: int = 5) -> None:
    """Print the table.

    Args:
        rounds: processes of each, in turn.
        repeats: runs of a process.
    """
    rows = [["", "vLLM, ms", "with the plugin, ms", "ratio"]]
    with tempfile.TemporaryDirectory() as model:
        (Path(model) / "config.json").write_text(json.dumps(_CONFIG), encoding="utf-8")
        for name, kind in _KINDS.items():
            times: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(rounds):
                for plugin, of in times.items():
                    of += _latencies(model, kind, plugin, repeats)
            tokens = kind[0] if kind[1] == 1 else kind[1]
            theirs, ours = (statistics.median(of) / tokens * 1e3 for of in times.values())
            rows.append([name, f"{theirs:.2f}", f"{ours:.2f}", f"{ours / theirs:.3f}"])
    print("\n".join(lined_up(rows)))


if __name__ == "__main__":
    command.run(main)
