"""`python -m benchmarks.studies.trainer_and_server`: the same tokens in transformers and in vLLM.

A Llama of random weights reads the same prompts in both, in one process on the CPU, from positions
0, 32,768 and 131,072 on. The positions that vLLM's model gets are those of its scheduler plus this
start, so that a cache of a few hundred tokens will do. The rotation is each engine's own, or ours:
the plugin `posenc_native.vllm` in the server; `hf.patch`, or the layer of the kernel hook, in the
trainer. Columns:

    rotation    q and k of the server, before its first rotation, rotated by both: numbers that are
                not equal bit for bit, in parts per thousand
    q, k        the same for what the attention of the first layer gets in both
    mean, max   the difference of the log-probabilities of the prompts' tokens
    KL          the mean divergence of the distributions, server from trainer, over all prompts
    own error   the largest difference of the trainer's log-probabilities from those of a model in
                float64 with exact angles, at these weights

This needs an environment with torch, transformers, vLLM and this package, its plugin included:
tests/engines_at_hand/adapters/vllm.txt and vllm.no_deps.txt list the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from types import MethodType
from typing import Any

import torch
from torch import nn

from benchmarks import command
from benchmarks.figures.report import lined_up

_STARTS = (0, 32_768, 131_072)
_PROMPTS, _TOKENS, _VOCABULARY = 8, 96, 256
_CHUNK = 200  # tokens of a step of the server: two prompts and a part of the next
_TRAINERS = ("own", "hook", "hf.patch")
_HEADS, _KV_HEADS, _HEAD_DIM = 4, 2, 64


def _checkpoint(folder: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=_HEADS,
        num_key_value_heads=_KV_HEADS, intermediate_size=512, vocab_size=_VOCABULARY,
        max_position_embeddings=262_144, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:  # attention of a fresh model hardly looks at positions
            nn.init.normal_(parameter, 0.0, 0.1)
    model.bfloat16().save_pretrained(folder)  # the same numbers in every dtype


def _prompts() -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(0, _VOCABULARY, (_PROMPTS, _TOKENS), generator=random)


# --- the server -----------------------------------------------------------------------------------


class _Server:
    """vLLM with the checkpoint: log-probabilities, and q and k around the first rotation."""

    def __init__(self, folder: str, dtype: str, ours: bool) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "POSENC_VLLM": str(int(ours)),
        }  # fmt: skip
        if ours:
            from posenc_native.vllm import register

            register()
        from vllm import LLM

        self._llm: Any = LLM(
            folder, skip_tokenizer_init=True, dtype=dtype, enforce_eager=True, max_model_len=512,
            max_logprobs=_VOCABULARY, disable_log_stats=True, enable_prefix_caching=False,
            max_num_batched_tokens=_CHUNK,
        )  # fmt: skip
        self.start = 0
        self.seen: dict[str, list[Any]] = {"tokens": [], "before": [], "after": []}
        worker = self._llm.llm_engine.model_executor.driver_worker.worker
        model = worker.model_runner.model
        own = model.forward

        def moved(input_ids: Any, positions: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen["tokens"].append((input_ids.clone(), positions.clone()))
            return own(input_ids, positions + self.start, *args, **kwargs)

        model.forward = moved
        attention = model.model.layers[0].self_attn
        if ours == ("cos_sin_cache" in attention.rotary_emb._buffers):
            raise command.Refused("the plugin is off; posenc-native info says why")
        attention.rotary_emb.register_forward_pre_hook(self._before)
        attention.attn.register_forward_pre_hook(self._after)

    def _before(self, _: Any, args: tuple[Any, ...]) -> None:
        if len(self.seen["before"]) < len(self.seen["tokens"]):  # all layers share this module
            self.seen["before"].append(tuple(x.clone() for x in args[1:3]))

    def _after(self, _: Any, args: tuple[Any, ...]) -> None:
        self.seen["after"].append(tuple(x.clone() for x in args[:2]))

    def run(self, prompts: torch.Tensor, start: int) -> torch.Tensor:
        """The log-probabilities [prompts, tokens - 1, vocabulary] of the next token."""
        from vllm import SamplingParams

        self.start = start
        for rows in self.seen.values():
            rows.clear()
        outputs = self._llm.generate(
            [{"prompt_token_ids": row} for row in prompts.tolist()],
            SamplingParams(max_tokens=1, prompt_logprobs=_VOCABULARY, detokenize=False),
            use_tqdm=False,
        )
        result = torch.full((*prompts.shape, _VOCABULARY), float("nan"), dtype=torch.float64)
        for i, output in enumerate(outputs):
            for j, entries in enumerate(output.prompt_logprobs):
                for token, entry in (entries or {}).items():
                    result[i, j, token] = entry.logprob
        return result[:, 1:]

    def heads(self, when: str, prompts: torch.Tensor) -> tuple[Any, ...]:
        """q and k [prompts, heads, tokens, head_dim], before or after the rotation."""
        places = torch.cat([_places(*step, prompts) for step in self.seen["tokens"]])
        assert places.sort().values.equal(torch.arange(prompts.numel()))
        results = []
        for i in range(2):
            rows = torch.cat([step[i].flatten(1) for step in self.seen[when]])
            x = torch.empty_like(rows).index_copy_(0, places, rows)
            results.append(x.reshape(*prompts.shape, -1, _HEAD_DIM).transpose(1, 2))
        return tuple(results)


def _places(tokens: torch.Tensor, positions: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
    """Where in all prompts, one after another, the tokens of a step are."""
    starts = (positions.diff(prepend=positions[:1] - 2) != 1).nonzero().flatten().tolist()
    places = []
    for first, last in zip(starts, [*starts[1:], len(positions)], strict=True):
        part = slice(int(positions[first]), int(positions[first]) + last - first)
        (prompt,) = (prompts[:, part] == tokens[first:last]).all(-1).nonzero().flatten().tolist()
        places.append(prompt * prompts.shape[1] + positions[first:last])
    return torch.cat(places)


# --- the trainer ----------------------------------------------------------------------------------


class _Trainer:
    """transformers with the checkpoint, its rotation, and q and k as the first layer has them."""

    def __init__(self, folder: str, dtype: torch.dtype, rotation: str) -> None:
        from transformers import AttentionInterface, LlamaForCausalLM
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.models.llama import modeling_llama

        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

        def attention(module: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen.append((q.detach().clone(), k.detach().clone()))
            return sdpa_attention_forward(module, q, k, v, *args, **kwargs)

        AttentionInterface.register(f"seen by {rotation}", attention)
        self._own = modeling_llama.apply_rotary_pos_emb
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
        self.model.set_attn_implementation(f"seen by {rotation}")
        self._modeling, self._rotation = modeling_llama, rotation
        if rotation == "hf.patch":
            from posenc_native import hf

            hf.patch(self.model, inplace=False)

    def _function(self) -> Any:
        """The rotary function: the model's own, or the layer that the hook puts in its place."""
        if self._rotation != "hook":
            return self._own
        from posenc_native.hf.kernels import RotaryPosEmb

        class Own(nn.Module):
            kernel_layer_name = "rotary_pos_emb"

            def forward(_, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
                return self._own(q, k, cos, sin, unsqueeze_dim)

        layer = Own()
        layer.forward = MethodType(RotaryPosEmb.forward, layer)  # type: ignore[method-assign]
        return layer

    @torch.no_grad()
    def run(self, prompts: torch.Tensor, start: int) -> torch.Tensor:
        """As `_Server.run`."""
        self.seen.clear()
        self._modeling.apply_rotary_pos_emb = self._function()
        positions = start + torch.arange(prompts.shape[1])[None].expand(len(prompts), -1)
        try:
            logits = self.model(prompts, position_ids=positions, use_cache=False).logits
        finally:
            self._modeling.apply_rotary_pos_emb = self._own
        return logits.float().log_softmax(-1).double()[:, :-1]

    @torch.no_grad()
    def rotated(self, q: torch.Tensor, k: torch.Tensor, start: int) -> tuple[Any, Any]:
        """q and k as the first layer rotates them."""
        layer = self.model.model.layers[0].self_attn
        positions = start + torch.arange(q.shape[2])[None].expand(len(q), -1)
        tables = self.model.model.rotary_emb(q, positions)
        function = layer.forward.__globals__["apply_rotary_pos_emb"]
        function = self._function() if function is self._own else function
        return function(q, k, *tables)


# --- both -----------------------------------------------------------------------------------------


def _unequal(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> float:
    """Parts per thousand of the numbers that are not equal."""
    count = sum(x.numel() for x in ours)
    return 1e3 * sum(int((a != b).sum()) for a, b in zip(ours, theirs, strict=True)) / count


def _compared(
    server: torch.Tensor, trainer: torch.Tensor, exact: torch.Tensor, prompts: torch.Tensor
) -> list[float]:
    """Mean and largest difference at the prompts' tokens, KL, and the trainer's own error."""
    chosen = prompts[:, 1:, None]
    difference = (server - trainer).gather(-1, chosen).abs()
    divergence = (trainer.exp() * (trainer - server)).sum(-1).mean()
    error = (trainer - exact).gather(-1, chosen).abs().max()
    return [float(x) for x in (difference.mean(), difference.max(), divergence, error)]


def _part(folder: str, dtype_name: str, plugin: bool) -> list[dict[str, Any]]:
    """The rows of one server; it needs a process of its own."""
    from transformers import LlamaForCausalLM

    from posenc_native import hf

    dtype, prompts, rows = getattr(torch, dtype_name), _prompts(), []
    server = _Server(folder, dtype_name, plugin)
    trainers = {name: _Trainer(folder, dtype, name) for name in _TRAINERS}
    exact = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64)
    hf.patch(exact)
    for start in _STARTS:
        served = server.run(prompts, start)
        before, after = server.heads("before", prompts), server.heads("after", prompts)
        with torch.no_grad():
            positions = start + torch.arange(_TOKENS)[None]
            reference = exact(prompts, position_ids=positions).logits.log_softmax(-1)[:, :-1]
        for name, trainer in trainers.items():
            logs = trainer.run(prompts, start)
            row = {"dtype": dtype_name, "start": start, "trainer": name, "plugin": plugin}
            row["rotation"] = _unequal(trainer.rotated(*before, start), after)
            row["q, k"] = _unequal(trainer.seen[0], after)
            numbers = _compared(served, logs, reference, prompts)
            row |= dict(zip(("mean", "max", "KL", "own error"), numbers, strict=True))
            rows.append(row)
    return rows


def _table(rows: list[dict[str, Any]]) -> list[list[str]]:
    names = ("rotation", "q, k", "mean", "max", "KL", "own error")
    cells = [["dtype", "from", "server", "trainer", *names]]
    for row in rows:
        server = "plugin" if row["plugin"] else "vLLM"
        numbers = [_number(row[name]) for name in names]
        cells.append([row["dtype"], f"{row['start']:,}", server, row["trainer"], *numbers])
    return cells


def _number(value: float) -> str:
    """Three digits; log-probabilities in float32 give a KL to 1e-8."""
    return "0" if value == 0 else "< 1e-8" if value < 1e-8 else f"{value:.3g}"


def main(part: str = "", folder: str = "") -> None:
    """Print the table: three minutes.

    Args:
        part: of all servers, this alone, as JSON: float32,0 for vLLM's own rotation.
        folder: of the checkpoint, which is made if there is none.
    """
    torch.set_num_threads(2)
    if part:
        dtype, plugin = part.split(",")
        print("rows:" + json.dumps(_part(folder, dtype, plugin == "1")))
        return
    with tempfile.TemporaryDirectory() as made:
        _checkpoint(made)
        rows = []
        for dtype in ("float32", "bfloat16"):
            for plugin in "01":
                options = ["--part", f"{dtype},{plugin}", "--folder", made]
                command_line = [sys.executable, "-m", "benchmarks.studies.trainer_and_server"]
                done = subprocess.run(
                    [*command_line, *options], stdout=subprocess.PIPE, text=True, check=True
                )
                (line,) = (x for x in done.stdout.splitlines() if x.startswith("rows:"))
                rows += json.loads(line.removeprefix("rows:"))
    rows.sort(key=lambda row: (row["dtype"] != "float32", row["start"], row["plugin"]))
    print("\n".join(lined_up(_table(rows))))


if __name__ == "__main__":
    command.run(main)
