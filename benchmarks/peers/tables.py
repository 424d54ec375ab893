"""Sinusoidal tables as other projects compute them: in float32, angles and all."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.clock.harness import Contestant, Skipped

from .contestants import Options, Row, Table, compile_row, missing
from .packages import timm_positions
from .runtimes import bound_session, import_jax, missing_jax, on_threads


@dataclass(frozen=True)
class Positions:
    """What a table is of: 0 .. count-1, the same from an offset on, or any integers."""

    count: int
    offset: int = 0
    scattered: bool = False

    def array(self) -> np.ndarray:
        if self.scattered:
            return np.random.default_rng(0).integers(0, 1 << 17, self.count)
        return np.arange(self.offset, self.offset + self.count)

    @property
    def from_zero(self) -> bool:
        return not (self.offset or self.scattered)

    @property
    def words(self) -> str:
        return ", arbitrary" if self.scattered else f", from {self.offset}" if self.offset else ""


def recipe_frequencies(dim: int, device: torch.device | None = None) -> torch.Tensor:
    """The frequencies of sinusoidal positions as most code has them: an exponential in float32."""
    steps = torch.arange(0, dim, 2, device=device).float()
    return torch.exp(steps * (-math.log(10000.0) / dim))


def recipe_table(table: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
    """The usual float32 recipe of a sinusoidal table, written into `table`."""
    length, dim = table.shape
    if positions is None:
        positions = torch.arange(length, device=table.device)
    angles = positions.unsqueeze(1) * recipe_frequencies(dim, table.device)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles)
    return table


def _recipe_table_numpy(table: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The same in NumPy."""
    dim = table.shape[-1]
    step = np.float32(-math.log(10000.0) / dim)
    angles = positions.astype(np.float32)[:, None] * np.exp(
        np.arange(0, dim, 2, dtype=np.float32) * step
    )
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles)
    return table


def _interleaved(table: Any) -> Any:
    """Sines before cosines, as many have them, in the order that the cases want."""
    pairs = np.asarray(table).reshape(table.shape[0], 2, -1)
    return np.swapaxes(pairs, 1, 2).reshape(table.shape)


def _tensor_interleaved(table: torch.Tensor) -> Any:
    return table.unflatten(-1, (2, -1)).mT.flatten(-2)


def _plain_torch(
    options: Options, positions: torch.Tensor, dim: int, dtype: torch.dtype, main: bool
) -> list[Row]:
    def recipe() -> torch.Tensor:
        return recipe_table(torch.empty(len(positions), dim), positions).to(dtype)

    def call(function: Callable[[], Any], b: Table) -> Any:
        return function()

    rows: list[Row] = [
        Contestant("plain torch", "out=", lambda b: recipe_table(b.table, positions), "fill"),
        Contestant("plain torch", "fresh", lambda b: recipe(), "fill"),
    ]
    compiled = compile_row(options, "plain torch, torch.compile", recipe, call, "fill", main=main)
    return [*rows, compiled]


def _transformers(dim: int, dtype: torch.dtype, positions: Positions) -> Row:
    """GPT-J's; its sines come before its cosines."""
    name = "transformers (GPT-J)"
    if reason := missing("transformers", "transformers.models.gptj.modeling_gptj"):
        return Skipped(name, "fresh", reason)
    if not positions.from_zero:
        return Skipped(name, "fresh", "its positions begin at 0")
    module: Any = importlib.import_module("transformers.models.gptj.modeling_gptj")
    make, count = module.create_sinusoidal_positions, positions.count
    return Contestant(
        name, "fresh", lambda b: make(count, dim).to(dtype), "fill", result=_tensor_interleaved
    )


def _timm(dim: int, dtype: torch.dtype, positions: Positions) -> Row:
    """Its table of a grid, which has one axis here."""
    name = "timm"
    if not positions.from_zero:
        return Skipped(name, "fresh", "its positions begin at 0")
    try:
        make = timm_positions().build_sincos2d_pos_embed
    except ImportError as error:
        return Skipped(name, "fresh", str(error).partition("\n")[0])
    shape = [positions.count]
    return Contestant(
        name,
        "fresh",
        # Of as many columns for each of two axes as one has here.
        lambda b: make(shape, 2 * dim, dtype=dtype),
        "fill",
        result=_tensor_interleaved,
    )


def x_transformers_table(dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Its scale is a parameter, which is 1 here."""
    package: Any = importlib.import_module("x_transformers.x_transformers")
    module = package.ScaledSinusoidalEmbedding(dim).requires_grad_(False)
    module.scale.fill_(1.0)

    def table(positions: torch.Tensor) -> torch.Tensor:
        of_shape = torch.empty(1, len(positions))
        return module(of_shape, pos=positions)

    return table


def _x_transformers(dim: int, dtype: torch.dtype, positions: torch.Tensor) -> Row:
    name = "x-transformers"
    if reason := missing("x_transformers"):
        return Skipped(name, "fresh", reason)
    make = x_transformers_table(dim)
    return Contestant(
        name, "fresh", lambda b: make(positions).to(dtype), "fill", result=_tensor_interleaved
    )


def jax_table(dim: int, number: str) -> Any:
    """The float32 recipe, compiled by JAX; its sines come before its cosines."""
    jnp: Any = importlib.import_module("jax.numpy")

    def make(positions: Any) -> Any:
        frequencies = 10000.0 ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
        angles = positions.astype(jnp.float32)[:, None] * frequencies
        return jnp.concatenate((jnp.sin(angles), jnp.cos(angles)), -1).astype(number)

    return import_jax().jit(make)


def _jax(dim: int, dtype: Any, positions: np.ndarray, threads: int, *, large: bool = True) -> Row:
    name = "JAX, jit"
    if reason := missing_jax():
        return Skipped(name, "fresh", reason)
    number = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else "float32"
    compiled = jax_table(dim, number)
    given = importlib.import_module("jax.numpy").asarray(positions.astype(np.int32))

    def run(b: Table) -> Any:
        return compiled(given).block_until_ready()

    return Contestant(
        name,
        "fresh",
        run,
        "fill",
        result=_interleaved,
        warmups=2,
        context=on_threads(threads, large=large),
    )


def recipe_graph(length: int, frequencies: np.ndarray, *, joined: bool) -> Any:
    """The float32 recipe as exporters write it: sines and cosines, or one table of both."""
    onnx: Any = importlib.import_module("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    nodes = [
        helper.make_node("Cast", ["positions"], ["floats"], to=kinds.FLOAT),
        helper.make_node("Mul", ["floats", "frequencies"], ["angles"]),
        helper.make_node("Sin", ["angles"], ["sin"]),
        helper.make_node("Cos", ["angles"], ["cos"]),
    ]
    columns = dict.fromkeys(("cos", "sin"), len(frequencies))
    if joined:
        nodes.append(helper.make_node("Concat", ["sin", "cos"], ["table"], axis=1))
        columns = {"table": 2 * len(frequencies)}
    return helper.make_graph(
        nodes,
        "tables",
        [helper.make_tensor_value_info("positions", kinds.INT64, [length, 1])],
        [
            helper.make_tensor_value_info(name, kinds.FLOAT, [length, n])
            for name, n in columns.items()
        ],
        [onnx.numpy_helper.from_array(frequencies, "frequencies")],
    )


def _onnxruntime(dim: int, dtype: Any, positions: np.ndarray, threads: int, sets: Any) -> Row:
    """The float32 recipe as nodes of a graph, bound to the case's buffers."""
    name = "ONNX Runtime, IO binding"
    if reason := missing("onnx", "onnxruntime"):
        return Skipped(name, "out=", reason)
    if "float32" not in str(dtype):
        return Skipped(name, "out=", "its Sin and Cos are for float32 on the CPU")
    shape = (len(positions), dim)
    graph = recipe_graph(len(positions), recipe_frequencies(dim).numpy(), joined=True)
    row = bound_session(
        name, graph, threads, sets, {}, {"table": shape},
        {"positions": positions[:, None]}, np.dtype(np.float32),
    )  # fmt: skip
    # The check runs on the first.
    return dataclasses.replace(row, result=lambda _: _interleaved(sets[0].table))


def tables(
    options: Options,
    sets: Sequence[Table],
    positions: Positions,
    dim: int,
    dtype: Any,
    threads: int,
    *,
    main: bool,
) -> list[Row]:
    """Every peer's table; `main`: torch.compile takes part without --exhaustive too."""
    array = positions.array()
    if not isinstance(dtype, torch.dtype):

        def fresh(b: Table) -> np.ndarray:
            return _recipe_table_numpy(np.empty(b.table.shape, np.float32), array)

        return [
            Contestant(
                "plain NumPy", "out=", lambda b: _recipe_table_numpy(b.table, array), "fill"
            ),
            Contestant("plain NumPy", "fresh", fresh, "fill"),
            _jax(dim, dtype, array, threads),
            _onnxruntime(dim, dtype, array, threads, sets),
        ]
    tensor = torch.from_numpy(array)
    return [
        *_plain_torch(options, tensor, dim, dtype, main),
        _transformers(dim, dtype, positions),
        _timm(dim, dtype, positions),
        _x_transformers(dim, dtype, tensor),
        _jax(dim, dtype, array, threads),
        _onnxruntime(dim, dtype, array, threads, sets),
    ]


def of_one_row(position: torch.Tensor, dim: int) -> list[Row]:
    """Those that compute a table of a given position: what a call of theirs costs."""
    rows = [
        Contestant(
            "plain torch", "fresh", lambda b: recipe_table(torch.empty(1, dim), position), "fill"
        ),
        _x_transformers(dim, torch.float32, position),
        _jax(dim, torch.float32, position.numpy(), 1, large=False),
    ]
    return [dataclasses.replace(r, limit="copy") if isinstance(r, Contestant) else r for r in rows]
