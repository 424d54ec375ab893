"""How exact each way to cosine and sine is, at positions near and far.

In float32. Tables in 16-bit formats take angles in two parts (csrc/core/phase.h), which adds 1e-7:
their rounding hides it here, and tests/engines/test_phase.py holds them to it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import posenc_native as pn
from benchmarks.peers import packages, rotation
from benchmarks.peers import rotary as rotary_peers
from benchmarks.peers import tables as table_peers
from benchmarks.peers.contestants import BASE, HEAD_DIM, Options
from benchmarks.peers.rotation import Rotation
from benchmarks.peers.runtimes import import_jax
from posenc_native.engines.plain import arrays as reference

POSITIONS = (4096, 131072, 1 << 20, 1 << 24)
ROTARY, SINUSOIDAL = "rotary base 5e5", "sinusoidal base 1e4"
# Positions that are looked at before the one named, and it.
WINDOW = 64


@dataclass(frozen=True)
class Accuracy:
    """The largest error of a peer's cos and sin in float32, over positions that end at one."""

    peer: str
    quantity: str  # ROTARY, SINUSOIDAL
    position: int
    error: float | None = None
    skipped: str | None = None  # why there is no error


# What a way computes: from int64 positions [n], cos and sin [n, HEAD_DIM / 2] each.
Way = Callable[[np.ndarray], tuple[Any, Any]]


def _halves(table: Any) -> tuple[Any, Any]:
    """Cosines and sines of a table that has its sines first."""
    half = table.shape[-1] // 2
    return table[..., half:], table[..., :half]


# ----------------------------------------------------------------------------------------- rotary


def _native(positions: np.ndarray) -> tuple[Any, Any]:
    return pn.rotary_tables(positions, pn.rotary.rotary_frequencies(HEAD_DIM, BASE)[0])


def _plain_torch(positions: np.ndarray) -> tuple[Any, Any]:
    angles = rotation.angles(torch.from_numpy(positions))[0]
    return angles.cos(), angles.sin()


def _plain_numpy(positions: np.ndarray) -> tuple[Any, Any]:
    steps = np.arange(0, HEAD_DIM, 2, dtype=np.float32) / np.float32(HEAD_DIM)
    angles = positions.astype(np.float32)[:, None] / np.float32(BASE) ** steps
    return np.cos(angles), np.sin(angles)


def _double(positions: np.ndarray) -> tuple[Any, Any]:
    """What a careful program without this library computes, where it has float64."""
    steps = np.arange(0, HEAD_DIM, 2) / HEAD_DIM
    angles = positions.astype(np.float64)[:, None] / BASE**steps
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _transformers(positions: np.ndarray) -> tuple[Any, Any]:
    package: Any = importlib.import_module("transformers")
    llama: Any = importlib.import_module("transformers.models.llama.modeling_llama")
    config = package.LlamaConfig(
        head_dim=HEAD_DIM,
        rope_parameters={"rope_type": "default", "rope_theta": BASE},
        max_position_embeddings=1 << 25,
    )
    both = llama.LlamaRotaryEmbedding(config)(torch.zeros(1), torch.from_numpy(positions)[None])
    cos, sin = (table[0, :, : HEAD_DIM // 2] for table in both)
    return cos, sin


def _rotated(peer: str, positions: np.ndarray) -> tuple[Any, Any]:
    """The vectors (1, 0), rotated: their cosines and sines. Interleaved pairs of bhsd."""
    (make,) = (of.make for of in rotary_peers.torch_peers("interleaved") if of.name == peer)
    bhsd: Any = SimpleNamespace(layout="bhsd")
    case = Rotation(Options(), [bhsd], torch.float32, "interleaved", positions, threads=1)
    x = torch.zeros(1, 1, len(positions), HEAD_DIM)
    x[..., 0::2] = 1.0
    turned = make(case)(x, x)[0][0, 0].detach()
    return turned[:, 0::2], turned[:, 1::2]


# Some have nothing but a table of all positions.
_LONGEST_TABLE = 1 << 20


def _length_of_table(positions: np.ndarray) -> int:
    longest = int(positions[-1]) + 1
    if longest > _LONGEST_TABLE + 1:
        raise MemoryError(f"its table would take {longest * HEAD_DIM * 4 / 1e9:.1f} GB")
    return longest


def _torchtune(positions: np.ndarray) -> tuple[Any, Any]:
    _length_of_table(positions)
    return _rotated("torchtune", positions)


def _timm(positions: np.ndarray) -> tuple[Any, Any]:
    make = packages.timm_positions().build_rotary_pos_embed
    sin, cos = make(
        [len(positions)],
        # Its columns are for two axes; there is one.
        dim=2 * HEAD_DIM,
        temperature=BASE,
        in_pixels=False,
        grid_offset=float(positions[0]),
        rotate_half=True,
    )
    return cos[:, : HEAD_DIM // 2], sin[:, : HEAD_DIM // 2]


def _jax(positions: np.ndarray) -> tuple[Any, Any]:
    jax = import_jax()
    jnp: Any = importlib.import_module("jax.numpy")

    def make(positions: Any) -> Any:
        inv_freq = 1.0 / BASE ** (jnp.arange(0, HEAD_DIM, 2, dtype=jnp.float32) / HEAD_DIM)
        angles = positions.astype(jnp.float32)[:, None] * inv_freq
        return jnp.cos(angles), jnp.sin(angles)

    cos, sin = jax.jit(make)(positions.astype(np.int32))
    return np.asarray(cos), np.asarray(sin)


def _numba(positions: np.ndarray) -> tuple[Any, Any]:
    raise NotImplementedError("takes tables that are ready")


def _onnxruntime(positions: np.ndarray) -> tuple[Any, Any]:
    return _onnx_tables(positions, rotation.frequencies().numpy())


def _onnx_tables(positions: np.ndarray, inv_freq: np.ndarray) -> tuple[Any, Any]:
    onnx: Any = importlib.import_module("onnx")
    runtime: Any = importlib.import_module("onnxruntime")
    graph = table_peers.recipe_graph(len(positions), inv_freq, joined=False)
    opset = [onnx.helper.make_opsetid("", 23)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=11)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    cos, sin = session.run(["cos", "sin"], {"positions": positions[:, None]})
    return cos, sin


# ------------------------------------------------------------------------------------- sinusoidal


def _native_table(positions: np.ndarray) -> tuple[Any, Any]:
    return _halves(pn.sinusoidal(positions, HEAD_DIM, layout="sin_cos"))


def _recipe_table(positions: np.ndarray) -> tuple[Any, Any]:
    table = torch.empty(len(positions), HEAD_DIM)
    table_peers.recipe_table(table, torch.from_numpy(positions))
    return table[:, 1::2], table[:, 0::2]


def _transformers_table(positions: np.ndarray) -> tuple[Any, Any]:
    """GPT-J's."""
    longest = _length_of_table(positions)
    module: Any = importlib.import_module("transformers.models.gptj.modeling_gptj")
    return _halves(module.create_sinusoidal_positions(longest, HEAD_DIM)[positions])


def _timm_table(positions: np.ndarray) -> tuple[Any, Any]:
    make = packages.timm_positions().build_sincos2d_pos_embed
    # Its columns are for two axes; there is one.
    return _halves(make([_length_of_table(positions)], 2 * HEAD_DIM)[positions])


def _x_transformers_table(positions: np.ndarray) -> tuple[Any, Any]:
    return _halves(table_peers.x_transformers_table(HEAD_DIM)(torch.from_numpy(positions)))


def _jax_table(positions: np.ndarray) -> tuple[Any, Any]:
    table = table_peers.jax_table(HEAD_DIM, "float32")(positions.astype(np.int32))
    return _halves(np.asarray(table))


def _onnxruntime_table(positions: np.ndarray) -> tuple[Any, Any]:
    return _onnx_tables(positions, table_peers.recipe_frequencies(HEAD_DIM).numpy())


# -------------------------------------------------------------------------------------- all peers

_WAYS: dict[str, list[tuple[str, Way]]] = {
    ROTARY: [
        ("posenc_native", _native),
        ("transformers (Llama)", _transformers),
        ("rotary-embedding-torch", functools.partial(_rotated, "rotary-embedding-torch")),
        ("x-transformers", functools.partial(_rotated, "x-transformers")),
        ("torchtune", _torchtune),
        ("timm", _timm),
        ("ONNX Runtime (Mul, Cos, Sin)", _onnxruntime),
        ("JAX, jit", _jax),
        ("numba, a loop", _numba),
        ("plain torch", _plain_torch),
        ("plain NumPy", _plain_numpy),
        ("float64 angle, rounded", _double),
    ],
    SINUSOIDAL: [
        ("posenc_native", _native_table),
        ("transformers (GPT-J)", _transformers_table),
        ("x-transformers", _x_transformers_table),
        ("timm", _timm_table),
        ("ONNX Runtime (Mul, Cos, Sin)", _onnxruntime_table),
        ("JAX, jit", _jax_table),
        ("plain torch", _recipe_table),
    ],
}


def _exact(quantity: str, window: np.ndarray) -> Sequence[Any]:
    """Cos and sin in float64."""
    if quantity == ROTARY:
        inv_freq = pn.rotary.rotary_frequencies(HEAD_DIM, BASE)[0]
        return reference.rotary_tables(window, inv_freq, None, 1.0, np.float64)
    return _halves(
        reference.sinusoidal(window, HEAD_DIM, 10000.0, "sin_cos", 0.0, 1.0, np.float64, None)
    )


def accuracy(positions: Sequence[int] = POSITIONS) -> list[Accuracy]:
    """Errors against engines.plain in float64, over the positions that end at each given.

    Rotary tables with head_dim 128 and base 5e5, sinusoidal tables with 128 columns and base 1e4.
    Every peer gets what it is made for: integers of these positions, and its own way to angles.
    """
    results = []
    for quantity, ways in _WAYS.items():
        for last in positions:
            window = np.arange(last - WINDOW + 1, last + 1)
            exact = _exact(quantity, window)
            for peer, way in ways:
                try:
                    error, skipped = _error(way, window, exact), None
                except Exception as reason:
                    if peer == "posenc_native":
                        raise
                    error, skipped = None, str(reason).partition("\n")[0] or type(reason).__name__
                results.append(Accuracy(peer, quantity, last, error, skipped))
    return results


def _error(way: Way, window: np.ndarray, exact: Sequence[Any]) -> float:
    # np.max, not max: a NaN of either is to come through.
    found = zip(way(window), exact, strict=True)
    return float(
        np.max([np.abs(np.asarray(a, np.float64) - np.asarray(b)).max() for a, b in found])
    )
