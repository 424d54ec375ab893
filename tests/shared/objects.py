"""One or more objects of every public class, for the tests that hold for all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

import posenc_native as pn
from posenc_native.checkpoints.weights import PairingEvidence

try:
    import posenc_native.nn as pnn
except ImportError:  # no torch
    pnn = None

LINEAR = {"rope_type": "linear", "factor": 4.0}

OBJECTS: dict[str, Callable[[], Any]] = {
    "Rotary": lambda: pn.Rotary(64),
    "Rotary with all": lambda: pn.Rotary(
        16, base=500000.0, rotary_dim=8, pairing="interleaved", scaling=LINEAR,
        axis_map=[0, 1, 0, 1], rotary_start=4, scale=0.5),
    "Rotary of frequencies": lambda: pn.Rotary(4, inv_freq=[1.0, 0.1]),
    "Rotary of a preset": lambda: pn.Rotary.preset("qwen2-vl"),
    "FullWidthRotary": lambda: pn.rotary.FullWidthRotary.of_dims(4, [1.0, 0.5, 0.25, 0.0]),
    "GridCoordinates": lambda: pn.sinusoids.GridCoordinates(first=0.5, extent=(1.0, 2.0)),
    "SinusoidalSpec": lambda: pn.SinusoidalSpec(dim=8, layout="sin_cos", shift=1),
    "SinusoidalSpec of a preset": lambda: pn.SinusoidalSpec.preset("detr", 8, normalize=True),
    "ContextParallel": lambda: pn.positions.ContextParallel(1, 4),
    "ContextParallel, striped": lambda: pn.positions.ContextParallel(np.int64(1), 4, "striped"),
    "PairingEvidence": lambda: PairingEvidence("half", {"half": 4.0, "interleaved": 0.5}),
}  # fmt: skip

MODULES: dict[str, Callable[[], Any]] = {
    "ALiBi": lambda: pnn.ALiBi(8),
    "ALiBi, learned": lambda: pnn.ALiBi(6, symmetric=False, learned=True),
    "ClippedRelativeBias": lambda: pnn.ClippedRelativeBias(4, 8),
    "ClippedRelativeBias to one side": lambda: pnn.ClippedRelativeBias(4, 8, 0),
    "FIRE": lambda: pnn.FIRE(4, hidden=8, threshold=100.0),
    "FourierFeatures": lambda: pnn.FourierFeatures(2, 8, std=3.0, learned=True),
    "Kerple": lambda: pnn.Kerple(4, kind="power"),
    "LearnedPositionalEncoding": lambda: pnn.LearnedPositionalEncoding(
        20, 8, offset=2, padding_idx=1),
    "LearnedRotaryEmbedding": lambda: pnn.LearnedRotaryEmbedding(8, num_heads=2, scale=0.5),
    "LinearPositionalEncoding": lambda: pnn.LinearPositionalEncoding(8, 0.0, scale=0.01),
    "NormRotaryEmbedding": lambda: pnn.NormRotaryEmbedding(
        8, rotary_dim=4, norm_over="token", weight_offset=1.0, heads=4, kv_heads=2),
    "DecomposedRelativePosition": lambda: pnn.DecomposedRelativePosition(8, (4, 6), k_size=(2, 3)),
    "NormalizedPositionalEncoding": lambda: pnn.NormalizedPositionalEncoding(8, low=-1.0),
    "RecurrentPositionalEncoding": lambda: pnn.RecurrentPositionalEncoding(8, hidden=4),
    "RelativePositionalEncoding": lambda: pnn.RelativePositionalEncoding(16, 4, causal=True),
    "RotaryEmbedding": lambda: pnn.RotaryEmbedding(16, base=500000.0, scaling=LINEAR),
    "Sandwich": lambda: pnn.Sandwich(4, dim=64),
    "SelectiveRotaryEmbedding": lambda: pnn.SelectiveRotaryEmbedding(
        8, 32, 4, rank=2, gate="pair", gate_rank=2, layout="bshd"),
    "ShawRelativePosition": lambda: pnn.ShawRelativePosition(8, 4, values=False),
    "SinusoidalEmbedding": lambda: pnn.SinusoidalEmbedding(8, "detr", learned_scale=0.5),
    "SinusoidalPositionalEncoding": lambda: pnn.SinusoidalPositionalEncoding(
        8, 0.25, x_scale="sqrt", alpha=2.0),
    "SwinRelativeBias": lambda: pnn.SwinRelativeBias(4, 7, class_token=True),
    "SwinV2RelativeBias": lambda: pnn.SwinV2RelativeBias(4, 7, pretrained_window=6, hidden=16),
    "T5RelativeBias": lambda: pnn.T5RelativeBias(8, bidirectional=False),
    "TimestepEmbedding": lambda: pnn.TimestepEmbedding(8, 16),
    "XPos": lambda: pnn.XPos(16, pairing="interleaved", gamma=0.5),
}  # fmt: skip
# To be derived from: they say no encoding of their own.
ABSTRACT = {"PositionalEncoding", "ToeplitzBias"}


def class_of(name: str) -> str:
    return name.replace(",", "").partition(" ")[0]


# Functions and classes are names of these, too.
NAMESPACES = (
    *(pn.absolute, pn.checkpoints, pn.positions, pn.relative, pn.rotary, pn.selective),
    pn.sinusoids,
)


def all_classes() -> dict[str, type]:
    """The public classes that need no torch, by name, and those that functions return."""
    found = {n: getattr(m, n) for m in (pn, *NAMESPACES) for n in public_classes(m)}
    return {**found, "PairingEvidence": PairingEvidence}


def public_classes(module: Any) -> set[str]:
    classes = [name for name in module.__all__ if name[0].isupper()]  # not modules for torch
    return {name for name in classes if inspect.isclass(getattr(module, name))}
