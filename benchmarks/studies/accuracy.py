"""How exact each way to cosine and sine is, at positions near and far.

In float32. Tables in 16-bit formats take angles in two parts (csrc/core/phase.h), which adds 1e-7:
their rounding hides it here, and tests/engines/test_phase.py holds them to it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import posenc_native as pn
from benchmarks.peers import packages, rotation
from benchmarks.peers import tables as table_peers
from benchmarks.peers.contestants import BASE, HEAD_DIM
from benchmarks.peers.runtimes import import_jax
from posenc_native.engines import reference

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
    return pn.rotary_tables(positions, pn.rotary_frequencies(HEAD_DIM, BASE)[0])


def _plain_torch(positions: np.ndarray) -> tuple[Any, Any]:
    angles = rotation.angles(torch.from_numpy(positions))[0]
    return angles.cos(), angles.sin()


def _plain_numpy(positions: np.ndarray) -> tuple[Any, Any]:
    steps = np.arange(0, HEAD_DIM, 2, dtype=np.float32) / np.float32(HEAD_DIM)
    angles = positions.astype(np.float32)[:, None] / np.float32(BASE) ** steps
    return np.cos(angles), np.sin(angles)


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


def _by_rotating(rotate: Callable[[torch.Tensor], torch.Tensor], count: int) -> tuple[Any, Any]:
    """The vectors (1, 0), rotated: their cosines and sines. Interleaved pairs of bhsd."""
    x = torch.zeros(1, 1, count, HEAD_DIM)
    x[..., 0::2] = 1.0
    turned = rotate(x)[0, 0]
    return turned[:, 0::2], turned[:, 1::2]


def _rotary_embedding_torch(positions: np.ndarray) -> tuple[Any, Any]:
    package: Any = importlib.import_module("rotary_embedding_torch")
    freqs = package.RotaryEmbedding(HEAD_DIM, theta=BASE)(torch.from_numpy(positions)).detach()
    return _by_rotating(lambda x: package.apply_rotary_emb(freqs, x), len(positions))


def _x_transformers(positions: np.ndarray) -> tuple[Any, Any]:
    package: Any = importlib.import_module("x_transformers.x_transformers")
    freqs, _ = package.RotaryEmbedding(HEAD_DIM, base=BASE)(torch.from_numpy(positions))
    return _by_rotating(lambda x: package.apply_rotary_pos_emb(x, freqs), len(positions))


# Some have nothing but a table of all positions.
_LONGEST_TABLE = 1 << 20


def _length_of_table(positions: np.ndarray) -> int:
    longest = int(positions[-1]) + 1
    if longest > _LONGEST_TABLE + 1:
        raise MemoryError(f"its table would take {longest * HEAD_DIM * 4 / 1e9:.1f} GB")
    return longest


def _torchtune(positions: np.ndarray) -> tuple[Any, Any]:
    longest = _length_of_table(positions)
    rope = packages.torchtune_positions().RotaryPositionalEmbeddings(HEAD_DIM, longest, BASE)
    at = torch.from_numpy(positions)[None]

    def rotate(x: torch.Tensor) -> torch.Tensor:
        turned: torch.Tensor = rope(x.transpose(1, 2), input_pos=at).transpose(1, 2)
        return turned

    return _by_rotating(rotate, len(positions))


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


def _onnxruntime(positions: np.ndarray) -> tuple[Any, Any]:
    return _onnx_tables(positions, rotation.frequencies().numpy())


def _onnx_tables(positions: np.ndarray, inv_freq: np.ndarray) -> tuple[Any, Any]:
    """Nodes of a graph in float32, as exporters write them."""
    onnx: Any = importlib.import_module("onnx")
    runtime: Any = importlib.import_module("onnxruntime")
    helper, kinds = onnx.helper, onnx.TensorProto
    shape = [len(positions), len(inv_freq)]
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["positions"], ["floats"], to=kinds.FLOAT),
            helper.make_node("Mul", ["floats", "inv_freq"], ["angles"]),
            helper.make_node("Cos", ["angles"], ["cos"]),
            helper.make_node("Sin", ["angles"], ["sin"]),
        ],
        "tables",
        [helper.make_tensor_value_info("positions", kinds.INT64, [shape[0], 1])],
        [helper.make_tensor_value_info(name, kinds.FLOAT, shape) for name in ("cos", "sin")],
        [onnx.numpy_helper.from_array(inv_freq, "inv_freq")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
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

_WAYS: dict[str, list[tuple[str, Way | str]]] = {
    ROTARY: [
        ("posenc_native", _native),
        ("transformers (Llama)", _transformers),
        ("rotary-embedding-torch", _rotary_embedding_torch),
        ("x-transformers", _x_transformers),
        ("torchtune", _torchtune),
        ("timm", _timm),
        ("ONNX Runtime (Mul, Cos, Sin)", _onnxruntime),
        ("JAX, jit", _jax),
        ("numba, a loop", "takes tables that are ready"),
        ("plain torch", _plain_torch),
        ("plain NumPy", _plain_numpy),
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
        inv_freq = pn.rotary_frequencies(HEAD_DIM, BASE)[0]
        return reference.rotary_tables(window, inv_freq, None, 1.0, np.float64)
    return _halves(
        reference.sinusoidal(window, HEAD_DIM, 10000.0, "sin_cos", 0.0, 1.0, np.float64, None)
    )


def accuracy(positions: Sequence[int] = POSITIONS) -> list[Accuracy]:
    """Errors against engines.reference in float64, over the positions that end at each given.

    Rotary tables with head_dim 128 and base 5e5, sinusoidal tables with 128 columns and base 1e4.
    Every peer gets what it is made for: integers of these positions, and its own way to angles.
    """
    results = []
    for quantity, ways in _WAYS.items():
        for last in positions:
            window = np.arange(last - WINDOW + 1, last + 1)
            exact = _exact(quantity, window)
            for peer, way in ways:
                if isinstance(way, str):
                    results.append(Accuracy(peer, quantity, last, skipped=way))
                    continue
                try:
                    found = way(window)
                except Exception as error:
                    if peer == "posenc_native":
                        raise
                    reason = str(error).partition("\n")[0] or type(error).__name__
                    results.append(Accuracy(peer, quantity, last, skipped=reason))
                    continue
                # np.max, not max: a NaN of either is to come through.
                error = np.max(
                    [
                        np.abs(np.asarray(got, np.float64) - np.asarray(want)).max()
                        for got, want in zip(found, exact, strict=True)
                    ]
                )
                results.append(Accuracy(peer, quantity, last, float(error)))
    return results
