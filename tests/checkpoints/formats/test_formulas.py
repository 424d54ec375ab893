"""Meta's, Mistral's, Megatron's and torchtitan's rotations, derived again, position by position.

Each function here is that engine's formula for q alone, from its settings alone; what is compared
is q turned by the `Rotary` that the settings are read as.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import posenc_native as pn

Array = np.ndarray[Any, np.dtype[np.float64]]
POSITIONS = np.array([0, 1, 2, 77, 8191, 8192, 131071])


def plain(dim: int, base: float) -> Array:
    return base ** (-np.arange(0, dim, 2) / dim)


def llama3(inv_freq: Array, factor: float, low: float, high: float, trained: int) -> Array:
    """Of llama-models' apply_scaling: by wavelength, one after another."""
    found = []
    for frequency in inv_freq.tolist():
        wavelength = 2 * math.pi / frequency
        if wavelength < trained / high:
            found.append(frequency)
        elif wavelength > trained / low:
            found.append(frequency / factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            found.append((1 - smooth) * frequency / factor + smooth * frequency)
    return np.array(found)


def yarn(
    dim: int, base: float, factor: float, trained: int, fast: float, slow: float, rounds: bool
) -> Array:
    """Of Megatron's and torchtitan's YaRN: a ramp between two dims."""

    def dim_of(turns: float) -> float:
        return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dim_of(fast), dim_of(slow)
    if rounds:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    inv_freq = plain(dim, base)
    return inv_freq / factor * ramp + inv_freq * (1 - ramp)


def neighbors(q: Array, inv_freq: Array, scale: float = 1.0) -> Array:
    """Complex numbers of neighboring dims, as Meta, Mistral and torchtitan multiply them."""
    turned = (q[..., ::2] + 1j * q[..., 1::2]) * scale
    turned = turned * np.exp(1j * POSITIONS[:, None] * inv_freq)
    return np.stack((turned.real, turned.imag), -1).reshape(q.shape)


def halves(q: Array, inv_freq: Array, scale: float = 1.0) -> Array:
    """The first and the second half of the rotated dims; the dims behind them stay."""
    pairs = len(inv_freq)
    angle = POSITIONS[:, None] * inv_freq
    a, b, rest = q[..., :pairs], q[..., pairs : 2 * pairs], q[..., 2 * pairs :]
    cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
    return np.concatenate((a * cos - b * sin, b * cos + a * sin, rest), -1)


META = {"dim": 512, "n_layers": 2, "n_heads": 8, "rope_theta": 500000.0}
MISTRAL = {"dim": 512, "n_layers": 2, "n_heads": 8, "head_dim": 64, "hidden_dim": 9,
           "rope_theta": 1e6}  # fmt: skip
STRETCHED = {"factor": 16, "original_max_position_embeddings": 16384, "beta": 32, "alpha": 1}
MEGATRON = {"num_layers": 2, "hidden_size": 512, "num_attention_heads": 8, "rotary_base": 150000,
            "position_embedding_type": "rope"}  # fmt: skip
TITAN = {"dim": 512, "n_layers": 2, "n_heads": 8, "rope_theta": 500000}

CASES: dict[str, tuple[dict[str, Any], Callable[[Array], Array]]] = {
    "Meta": ({**META, "use_scaled_rope": False}, lambda q: neighbors(q, plain(64, 5e5))),
    "Meta, scaled": ({**META, "use_scaled_rope": True},
                     lambda q: neighbors(q, llama3(plain(64, 5e5), 8, 1, 4, 8192))),
    "Mistral": (MISTRAL, lambda q: neighbors(q, plain(64, 1e6))),
    "Mistral, YaRN": ({**MISTRAL, "yarn": {**STRETCHED, "apply_scale": False}},
                      lambda q: neighbors(q, yarn(64, 1e6, 16, 16384, 32, 1, True))),
    "Mistral, YaRN, scaled": (
        {**MISTRAL, "yarn": {**STRETCHED, "apply_scale": True}},
        lambda q: neighbors(q, yarn(64, 1e6, 16, 16384, 32, 1, True), 1 + 0.1 * math.log(16))),
    "Megatron": (MEGATRON, lambda q: halves(q, plain(64, 150000))),
    "Megatron, neighbors": ({**MEGATRON, "rotary_interleaved": True},
                             lambda q: neighbors(q, plain(64, 150000))),
    "Megatron, a part": ({**MEGATRON, "rotary_percent": 0.5},
                         lambda q: halves(q, plain(32, 150000))),
    "Megatron, longer": ({**MEGATRON, "rotary_seq_len_interpolation_factor": 4},
                         lambda q: halves(q, plain(64, 150000) / 4)),
    "Megatron, Llama 3": ({**MEGATRON, "use_rope_scaling": True},
                          lambda q: halves(q, llama3(plain(64, 150000), 8, 1, 4, 8192))),
    "Megatron, YaRN": (
        {**MEGATRON, "position_embedding_type": "yarn", "yarn_rotary_scaling_factor": 32.0,
         "yarn_original_max_position_embeddings": 4096, "yarn_mscale": 0.9,
         "yarn_mscale_all_dim": 0.4, "yarn_correction_range_round_to_int": False},
        lambda q: halves(q, yarn(64, 150000, 32, 4096, 32, 1, False),
                         (1 + 0.09 * math.log(32)) / (1 + 0.04 * math.log(32)))),
    "torchtitan": (
        {**TITAN, "rope_scaling_args": {"scaling_factor": 8.0, "high_freq_factor": 4.0}},
        lambda q: neighbors(q, llama3(plain(64, 5e5), 8, 1, 4, 8192))),
    "torchtitan, gpt_oss": (
        {**TITAN, "head_dim": 64, "rope_theta": 150000, "ntk_alpha": 1.0, "ntk_beta": 32.0,
         "rope_factor": 32.0, "original_seq_len": 4096},
        lambda q: halves(q, yarn(64, 150000, 32, 4096, 32, 1, False), 1 + 0.1 * math.log(32))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rotations_are_those_of_the_formula(name: str) -> None:
    settings, formula = CASES[name]
    rotary = pn.explain(settings).layers[0].rotary
    assert rotary is not None
    q = np.random.default_rng(0).standard_normal((len(POSITIONS), 64))
    found, _ = rotary(q[None], None, POSITIONS, layout="hsd")
    # Angles of the formulas are float64 products: off by 131071 * 2^-53.
    np.testing.assert_allclose(found[0], formula(q), rtol=0, atol=1e-9)
