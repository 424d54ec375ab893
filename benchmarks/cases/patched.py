"""What is timed inside a model that decodes: the parts of a step that `posenc_native.hf` replaces.

Between two rotations a model multiplies by its weights, which empties the caches: a call that takes
2 microseconds in a loop of its own takes ten times as long there. So these rows run a whole step
and count only the nanoseconds of one part of it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.clock.harness import Case, Contestant, Skipped
from benchmarks.figures.judging import AtMost, Rule
from benchmarks.peers.contestants import HEAD_DIM, Activations, Options, Row, label, missing

_PEER = "transformers"
_LAYERS, _PROMPT, _STEPS = 4, 32, 64
# What is to be reached: of the time that transformers' own part takes, in the same run.
_LLAMA, _QWEN3 = f"{_PEER} (Llama)", f"{_PEER} (Qwen3)"
GOALS = (
    Rule("in a model, rotation of a layer", None, (AtMost(0.35, of=_LLAMA),), "^hf.patch"),
    Rule("in a model, cos and sin of a step", None, (AtMost(0.4, of=_LLAMA),), "^hf.patch"),
    Rule("in a model, norm and rotation", None, (AtMost(0.3, of=_QWEN3),), "^hf.patch"),
    Rule("in a model, a step", None, (AtMost(0.95, of=_LLAMA),), "^hf.patch"),
)


class _Watch:
    """Nanoseconds that functions have taken."""

    def __init__(self) -> None:
        self.spent = 0

    def over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, watched."""

        def watched(*arguments: Any, **options: Any) -> Any:
            begun = time.perf_counter_ns()
            result = function(*arguments, **options)
            self.spent += time.perf_counter_ns() - begun
            return result

        return watched

    def seconds(self) -> float:
        return self.spent * 1e-9


class _Model:
    """A small model with a prompt behind it; `patched` None: as transformers has it."""

    def __init__(self, kind: str, dtype: torch.dtype, cache: str, patched: dict[str, Any] | None):
        package: Any = importlib.import_module("transformers")
        config = getattr(package, f"{kind}Config")(
            hidden_size=256, intermediate_size=512, num_hidden_layers=_LAYERS,
            num_attention_heads=32, num_key_value_heads=8, head_dim=HEAD_DIM, vocab_size=1000,
        )  # fmt: skip
        torch.manual_seed(0)
        self.model: Any = getattr(package, f"{kind}ForCausalLM")(config).to(dtype).eval()
        self.of_layer, self.of_step = _Watch(), _Watch()
        self._watch_norms = kind == "Qwen3" and patched is None
        if patched is not None:
            importlib.import_module("posenc_native.hf").patch(self.model, **patched)
        self._watch_functions()
        self._make_cache = (
            functools.partial(package.StaticCache, config=config, max_cache_len=_PROMPT + _STEPS)
            if cache == "static"
            else functools.partial(package.DynamicCache, config=config)
        )
        self._left = 0

    def _watch_functions(self) -> None:
        rotary = self.model.model.rotary_emb
        rotary.forward = self.of_step.over(rotary.forward)
        for layer in self.model.model.layers:
            attention = layer.self_attn
            method = inspect.unwrap(attention.forward.__func__)
            # Its own globals, in which what belongs to norm and rotation is watched.
            scope = dict(method.__globals__)
            for name, function in scope.items():
                if name == "apply_rotary_pos_emb" or name.startswith("_posenc_"):
                    scope[name] = self.of_layer.over(function)
            watched = types.FunctionType(
                method.__code__, scope, method.__name__, method.__defaults__, method.__closure__
            )
            watched.__kwdefaults__ = method.__kwdefaults__
            attention.forward = types.MethodType(watched, attention)
            if self._watch_norms:
                for norm in (attention.q_norm, attention.k_norm):
                    norm.forward = self.of_layer.over(norm.forward)

    def step(self) -> float:
        """The seconds of one token; a text that has become long begins anew."""
        if self._left == 0:
            self._cache, self._left = self._make_cache(), _STEPS
            self._forward(torch.arange(_PROMPT)[None])
        self._left -= 1
        self.of_layer.spent = self.of_step.spent = 0
        begun = time.perf_counter_ns()
        self._forward(torch.ones(1, 1, dtype=torch.int64))
        return (time.perf_counter_ns() - begun) * 1e-9

    def _forward(self, ids: torch.Tensor) -> None:
        with torch.inference_mode():
            self.model(input_ids=ids, past_key_values=self._cache, use_cache=True)


_PARTS: dict[str, Callable[[_Model], float]] = {
    "rotation of a layer": lambda model: model.of_layer.seconds() / _LAYERS,
    "norm and rotation of a layer": lambda model: model.of_layer.seconds() / _LAYERS,
    "cos and sin of a step": lambda model: model.of_step.seconds(),
}


def _case(kind: str, part: str, dtype: torch.dtype, cache: str, name: str) -> Case:
    buffers = Activations((1, 1, HEAD_DIM), dtype)
    peer = f"{_PEER} ({kind})"
    if reason := missing("transformers"):
        return Case(name, 1, [buffers], [Skipped(peer, "fresh", reason)], in_cache=True)
    fused = {"fuse_norm": True} if part.startswith("norm") else {}
    said = "hf.patch, fuse_norm=True" if fused else "hf.patch"

    def row(title: str, patched: dict[str, Any] | None, ours: bool) -> Contestant:
        model = _Model(kind, dtype, cache, patched)

        def seconds(_: Activations) -> float:
            whole = model.step()
            return _PARTS[part](model) if part in _PARTS else whole

        return Contestant(title, "fresh", seconds, ours=ours, checked=False, tells_seconds=True)

    rows: list[Row] = [row(said, fused, True), row(peer, None, False)]
    if not fused and part != "cos and sin of a step":
        rows.append(row("hf.patch, inplace=True", {"inplace": True}, True))
    return Case(name, 1, [buffers], rows, in_cache=True)


def cases(_options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """As rotary.cases, for one token; a second thread has nothing to do."""
    if threads > 1:
        return
    for kind, part in (
        ("Llama", "rotation of a layer"),
        ("Llama", "cos and sin of a step"),
        ("Llama", "a step"),
        ("Qwen3", "norm and rotation of a layer"),
    ):
        for dtype, cache in (
            (torch.float32, "dynamic"),
            (torch.bfloat16, "dynamic"),
            (torch.bfloat16, "static"),
        ):
            name = (
                f"decode in a model, {part} (q 32 + k 8 heads x 1 x {HEAD_DIM}, {_LAYERS} layers, "
                f"{cache} cache), {label(dtype)}, 1 thread"
            )
            yield name, functools.partial(_case, kind, part, dtype, cache, name)
