"""What is timed for one new token: little but the price of a call."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import torch

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant, Job, Skipped
from benchmarks.figures.judging import AtLeast, AtMost, Rule
from benchmarks.peers import rotary as rotary_peers
from benchmarks.peers import tables as table_peers
from benchmarks.peers.contestants import (
    BASE,
    HEAD_DIM,
    NOTHING,
    Activations,
    Options,
    QueryKey,
    Row,
    compile_row,
    label,
    many,
    missing,
    normal,
    ours,
    tolerance,
    yardstick,
)
from benchmarks.peers.rotation import Rotation
from posenc_native import nn

from .rotary import NUMBA
from .scores import frozen

# What is to be reached. Memory is no limit to one token: a call is counted in calls of torch.neg on
# the same q, in the same run, so that a goal means the same on every processor.
_CALL = "torch.neg"
_ROTARY = r"^decode, \d+ x \("
_ONE_TOKEN = r"^decode, 1 x \("
_APPLY = "^torch: apply_rotary_qk$"
_OBJECT = r"^torch: (Rotary|nn\.RotaryEmbedding)$"
_BY_ROTARY = "apply_rotary_qk, Rotary"
GOALS = (
    Rule(_ONE_TOKEN, "in place", (AtMost(2.2, of=_CALL),), _APPLY),
    Rule(_ONE_TOKEN, "in place", (AtMost(2.5, of=_CALL),), _OBJECT),
    Rule(_ONE_TOKEN, "in place", (AtMost(1.2, of=_CALL),), "^NumPy: "),
    *(
        Rule(
            _ONE_TOKEN, "in place", (AtMost(1.1, of=f"{kind}: apply_rotary_qk"),), f"{kind}: {row}$"
        )
        for kind in ("torch", "NumPy")
        for row in (_BY_ROTARY, "Rotary")
    ),
    Rule(_ROTARY, None, (AtLeast(8.0, of="transformers"),)),
    Rule(_ROTARY, "in place", (AtLeast(1.0, of="ONNX Runtime"), NUMBA), "^torch: "),
    Rule(_ROTARY, "in place", (AtLeast(2.0, of="ONNX Runtime"), NUMBA), "^NumPy: "),
)

# ------------------------------------------------------------------------------------------- rotary


def _decode(
    options: Options, batch: int, dtype: torch.dtype, pairing: str, compiled: bool, name: str
) -> Case:
    """One new token of every sequence: little but the price of a call."""
    buffers = QueryKey(1, dtype, batch=batch)
    array_dtype = {torch.bfloat16: ml_dtypes.bfloat16}.get(dtype, str(dtype)[6:])
    arrays = QueryKey(1, np.dtype(array_dtype), batch=batch)
    inv_freq = pn.rotary.rotary_frequencies(HEAD_DIM, BASE)[0]
    inv_freq_torch = torch.from_numpy(inv_freq)
    # One sequence, or several of different lengths.
    position = np.array([4095]) if batch == 1 else 4095 - 3 * np.arange(batch)[:, None]
    position_torch = torch.from_numpy(position)
    rope = pn.Rotary(HEAD_DIM, base=BASE, pairing=pairing)
    module = nn.RotaryEmbedding(HEAD_DIM, base=BASE, pairing=pairing)
    step = rope.bind(buffers.q, buffers.k, inplace=True)
    array_step = rope.bind(arrays.q, arrays.k, inplace=True)

    def from_torch(b: QueryKey) -> None:
        pn.apply_rotary_qk(b.q, b.k, position_torch, inv_freq_torch, pairing=pairing, inplace=True)

    def from_torch_by_rotary(b: QueryKey) -> None:
        pn.apply_rotary_qk(b.q, b.k, position_torch, rope, inplace=True)

    def from_numpy(b: QueryKey) -> None:
        pn.apply_rotary_qk(q, k, position, inv_freq, pairing=pairing, inplace=True)

    def from_numpy_by_rotary(b: QueryKey) -> None:
        pn.apply_rotary_qk(q, k, position, rope, inplace=True)

    q, k = arrays.q, arrays.k
    rotation = Rotation(options, [buffers], dtype, pairing, position, 1, compiled)

    # These rows work on arrays of their own, which no job looks at.
    def numpy_row(name: str, mode: str, run: Callable[[QueryKey], Any]) -> Contestant:
        return dataclasses.replace(ours(name, mode, run), checked=False)

    rows: list[Row] = [
        ours("torch: apply_rotary_qk", "in place", from_torch),
        ours(f"torch: {_BY_ROTARY}", "in place", from_torch_by_rotary),
        ours("torch: Rotary", "in place", lambda b: rope(b.q, b.k, position_torch, inplace=True)),
        ours("torch: Rotary.bind", "in place", lambda b: step(b.q, b.k, position_torch)),
        ours(
            "torch: nn.RotaryEmbedding",
            "in place",
            lambda b: module(b.q, b.k, position_torch, inplace=True),
        ),
        ours("torch: nn.RotaryEmbedding", "fresh", lambda b: module(b.q, b.k, position_torch)),
        numpy_row("NumPy: apply_rotary_qk", "in place", from_numpy),
        numpy_row(f"NumPy: {_BY_ROTARY}", "in place", from_numpy_by_rotary),
        numpy_row("NumPy: Rotary", "in place", lambda b: rope(q, k, position, inplace=True)),
        numpy_row("NumPy: Rotary.bind", "in place", lambda b: array_step(q, k, position)),
        numpy_row("NumPy: Rotary", "fresh", lambda b: rope(q, k, position)),
        *rotary_peers.forward(rotation),
        yardstick(_CALL, "fresh", lambda b: torch.neg(b.q), "copy"),
        NOTHING,
    ]
    job = rotation.job(
        lambda b: pn.apply_rotary_qk(b.q, b.k, position_torch, inv_freq_torch, pairing=pairing)
    )
    return Case(name, 1, [buffers], many(options, rows), True, job)


def _decode_attention(options: Options, name: str) -> Case:
    """One token through an attention of transformers, as it is and as hf.patch leaves it.

    Its projections are those of a small model, so that the rotation is a part that shows.
    """
    buffers = Activations((1, 1, 64), torch.float32)
    peer = "transformers (Llama), its attention"
    rows: list[Row] = [NOTHING]
    if reason := missing("transformers"):
        rows.append(Skipped(peer, "fresh", reason))
        return Case(name, 1, [buffers], rows, in_cache=True)
    package: Any = importlib.import_module("transformers")
    hf: Any = importlib.import_module("posenc_native.hf")
    config = package.LlamaConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=HEAD_DIM,
        vocab_size=16,
        attn_implementation="sdpa",
    )
    position = torch.tensor([[4095]])

    def attention(model: Any) -> Callable[[Activations], Any]:
        layer, rotary = model.model.layers[0].self_attn, model.model.rotary_emb

        def run(b: Activations) -> Any:
            with torch.inference_mode():
                return layer(b.x, rotary(b.x, position), attention_mask=None)[0]

        return run

    plain = package.LlamaForCausalLM(config).eval()
    rows.append(Contestant(peer, "fresh", attention(plain), "copy"))
    for i, inplace in enumerate((None, True)):
        model = package.LlamaForCausalLM(config).eval()
        model.load_state_dict(plain.state_dict())
        hf.patch(model, inplace=inplace)
        words = "hf.patch, inplace=True" if inplace else "hf.patch"
        row = ours(f"{words}: its attention", "fresh", attention(model))
        rows.insert(i, row)
    job = Job(attention(plain), lambda b: b.x, lambda b: b.x, 1e-3)
    return Case(name, 1, [buffers], many(options, rows), True, job)


# --------------------------------------------------------------------------------------- sinusoidal


def _decode_sinusoidal(options: Options, name: str) -> Case:
    """One row of a table, for one token, and x plus it."""
    dim = 1024
    buffers = Activations((1, dim), torch.float32)
    position = torch.tensor([4095])
    array, x = position.numpy(), normal(dim, np.float32).reshape(1, dim)
    table = torch.empty(4096, dim)
    table_peers.recipe_table(table)

    def own(row: Contestant) -> Contestant:
        return dataclasses.replace(row, checked=False)

    rows: list[Row] = [
        ours("torch: sinusoidal", "out=", lambda b: pn.sinusoidal(position, dim, out=b.result)),
        ours("torch: sinusoidal", "fresh", lambda b: pn.sinusoidal(position, dim)),
        own(
            ours(
                "torch: add_sinusoidal",
                "in place",
                lambda b: pn.add_sinusoidal(b.x, position, out=b.x),
            )
        ),
        own(ours("NumPy: sinusoidal", "out=", lambda b: pn.sinusoidal(array, dim, out=x))),
        own(ours("NumPy: sinusoidal", "fresh", lambda b: pn.sinusoidal(array, dim))),
        *table_peers.of_one_row(position, dim),
        dataclasses.replace(
            Contestant("table[position], table ready", "fresh", lambda b: table[position], "copy"),
            yardstick=True,
        ),
        NOTHING,
    ]
    job = Job(
        lambda b: pn.sinusoidal(position, dim),
        lambda b: b.x,
        lambda b: b.result,
        tolerance(torch.float32, array, base_error=2.0**-21),
    )
    return Case(name, 1, [buffers], many(options, rows), True, job)


# ------------------------------------------------------------------------------------------- scores


def relative_scores(options: Options, heads: int, keys: int, threads: int, name: str) -> Case:
    """One new query of one sequence, its scores in cache: mostly the price of a call."""
    buffers = Activations((1, heads, 1, keys), torch.float32)
    array = normal(heads * keys, np.float32).reshape(1, heads, 1, keys)
    last = keys - 1
    # Made once for all calls: entry `last` is distance 0.
    table = torch.randn(heads, keys)
    numpy_table = table.numpy().copy()
    t5 = frozen(nn.T5RelativeBias(heads, bidirectional=False))
    alibi = nn.ALiBi(heads)
    positions = torch.randn(1, heads, 1, keys)

    def from_numpy(b: Activations) -> None:
        pn.add_toeplitz_bias(array, numpy_table, out=array)

    rows: list[Row] = [
        ours(
            "torch: add_toeplitz_bias",
            "in place",
            lambda b: pn.add_toeplitz_bias(b.x, table, q_offset=last, origin=last, out=b.x),
        ),
        ours(
            "torch: relative_gather, content",
            "in place",
            lambda b: pn.relative_gather(positions, None, keys, content=b.x, origin=0, out=b.x),
        ),
        ours("torch: nn.T5RelativeBias", "in place", lambda b: t5(b.x, last, inplace=True)),
        ours("torch: nn.T5RelativeBias", "fresh", lambda b: t5(b.x, last)),
        ours("torch: nn.ALiBi", "in place", lambda b: alibi(b.x, last, inplace=True)),
        ours("NumPy: add_toeplitz_bias", "in place", from_numpy),
    ]
    peer = "transformers (T5)"
    if reason := missing("transformers", "transformers.models.t5.modeling_t5"):
        rows.append(Skipped(peer, "in place", reason))
    else:
        module = importlib.import_module("transformers.models.t5.modeling_t5")
        config = importlib.import_module("transformers").T5Config(num_heads=heads, is_decoder=True)
        attention = frozen(module.T5Attention(config, True, layer_idx=0))

        def add(x: torch.Tensor) -> torch.Tensor:
            return x + attention.compute_bias(1, keys, past_seen_tokens=last)

        def call(function: Callable[..., Any], b: Activations) -> Any:
            return function(b.x)

        rows += [
            Contestant(f"{peer}, eager", "fresh", functools.partial(call, add), "copy"),
            compile_row(options, f"{peer}, torch.compile", add, call, "copy"),
        ]
    ready = table[None, :, None]
    rows += [
        Contestant(
            "scores.add_(bias), bias ready", "in place", lambda b: b.x.add_(ready), "in-place scale"
        ),
        NOTHING,
    ]
    return Case(name, threads, [buffers], many(options, rows), in_cache=True)


# -------------------------------------------------------------------------------------------- cases


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """As rotary.cases, for one token; a second thread has nothing to do."""
    if threads > 1:
        return
    suffix = f"{threads} thread{'s' if threads > 1 else ''}"
    for batch, dtype, pairing, compiled in (
        (1, torch.bfloat16, "half", True),
        (1, torch.float32, "half", True),
        (1, torch.float16, "half", False),
        (1, torch.bfloat16, "interleaved", False),
        (1, torch.float32, "interleaved", False),
        (32, torch.bfloat16, "half", False),
        (32, torch.float32, "half", False),
        (32, torch.float32, "interleaved", False),
    ):
        shape = f"{batch} x (q 32 + k 8 heads x 1 x {HEAD_DIM})"
        name = f"decode, {shape}, {label(dtype)}, {pairing}, {suffix}"
        yield name, functools.partial(_decode, options, batch, dtype, pairing, compiled, name)
    name = f"decode, an attention, q 32 + k 8 heads x 1 x {HEAD_DIM}, torch float32, {suffix}"
    yield name, functools.partial(_decode_attention, options, name)
    name = f"decode, a sinusoidal row, 1 x 1024, torch float32, {suffix}"
    yield name, functools.partial(_decode_sinusoidal, options, name)
