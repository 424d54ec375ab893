"""Rotary as ONNX Runtime, JAX, numba and NumPy compute it; tables are made before."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.clock.harness import Contestant, Skipped

from .contestants import HEAD_DIM, QueryKey, Row, missing
from .rotation import Rotation, angles
from .runtimes import bound_session, import_jax, jax_array, missing_jax, on_threads

# ------------------------------------------------------------------------------------- ONNX Runtime


def onnxruntime_row(r: Rotation) -> Row:
    """ONNX Runtime's RotaryEmbedding (opset 23) on query and key, bound to the case's buffers."""
    name = "ONNX Runtime, IO binding"
    first = r.sets[0]
    dtype = str(first.q.dtype).removeprefix("torch.")
    if reason := missing("onnx", "onnxruntime"):
        return Skipped(name, "out=", reason)
    if dtype == "bfloat16":
        return Skipped(name, "out=", "its RotaryEmbedding takes no bfloat16 on the CPU")
    onnx: Any = importlib.import_module("onnx")

    half = HEAD_DIM // 2
    number = np.dtype(dtype)
    element = onnx.helper.np_dtype_to_tensor_dtype(number)
    batch, seq = first.q.shape[0], r.positions.shape[-1]
    heads = {x: getattr(first, x).shape[r.heads_axis] for x in ("q", "k")}
    # bshd is a tensor of three axes to it.
    shapes = {
        x: (batch, n, seq, HEAD_DIM) if r.layout == "bhsd" else (batch, seq, n * HEAD_DIM)
        for x, n in heads.items()
    }
    nodes, inputs = [], dict(shapes)
    if first.qkv is not None:
        widths = [n * HEAD_DIM for n in (heads["q"], heads["k"], heads["k"])]
        nodes = [onnx.helper.make_node("Split", ["qkv", "widths"], ["q", "k", "v"], axis=2)]
        inputs = {"qkv": tuple(first.qkv.shape)}
    longest = int(r.positions.max()) + 1

    def value(value_name: str, kind: int, shape: Any) -> Any:
        return onnx.helper.make_tensor_value_info(value_name, kind, list(shape))

    graph = onnx.helper.make_graph(
        nodes
        + [
            onnx.helper.make_node(
                "RotaryEmbedding",
                [x, "cos", "sin", "positions"],
                [f"out_{x}"],
                interleaved=int(r.pairing == "interleaved"),
                num_heads=heads[x],
            )
            for x in shapes
        ],
        "rotary",
        [value(x, element, shape) for x, shape in inputs.items()]
        + [value(table, element, [longest, half]) for table in ("cos", "sin")]
        + [value("positions", onnx.TensorProto.INT64, [batch, seq])],
        [value(f"out_{x}", element, shape) for x, shape in shapes.items()],
        [onnx.numpy_helper.from_array(np.array(widths), "widths")] if nodes else [],
    )
    turned = angles(torch.arange(longest))[0].double()
    constants = {
        "cos": turned.cos().numpy().astype(number),
        "sin": turned.sin().numpy().astype(number),
        "positions": np.ascontiguousarray(np.broadcast_to(r.positions, (batch, seq))),
    }
    outputs = {f"out_{x}": shape for x, shape in shapes.items()}
    return bound_session(name, graph, r.threads, r.sets, inputs, outputs, constants, number)


# ---------------------------------------------------------------------------------------------- JAX


def jax_rotate(pairing: str) -> Callable[..., Any]:
    """Rotary in jax.numpy, in the form that XLA compiles best: computed in float32."""
    jnp: Any = importlib.import_module("jax.numpy")
    lax: Any = importlib.import_module("jax.lax")
    axis = -2 if pairing == "half" else -1

    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        split = (2, x.shape[-1] // 2) if pairing == "half" else (x.shape[-1] // 2, 2)
        pairs = x.reshape(*x.shape[:-1], *split).astype(jnp.float32)
        a, b = (lax.index_in_dim(pairs, i, axis, keepdims=False) for i in range(2))
        turned = jnp.stack((a * cos - b * sin, b * cos + a * sin), axis)
        return turned.reshape(x.shape).astype(x.dtype)

    return rotate


def jax_row(r: Rotation, *, backward: bool = False) -> Row:
    name = "JAX, jit"
    if reason := missing_jax():
        return Skipped(name, "fresh", reason)
    jax = import_jax()
    rotate = jax_rotate(r.pairing)
    turned = angles(torch.from_numpy(r.positions)).unsqueeze(r.heads_axis)
    cos, sin = turned.cos().numpy(), turned.sin().numpy()
    first = r.sets[0]
    heads = [x.shape[r.heads_axis] for x in (first.q, first.k)]

    def both(q: Any, k: Any) -> Any:
        return rotate(q, cos, sin), rotate(k, cos, sin)

    def of_fused(qkv: Any) -> Any:
        x = qkv.reshape(*qkv.shape[:2], -1, HEAD_DIM)
        return both(x[:, :, : heads[0]], x[:, :, heads[0] : sum(heads)])

    def gradient(q: Any, k: Any) -> Any:
        return jax.vjp(both, q, k)[1]((q, k))

    fused = first.qkv is not None
    compiled = jax.jit(of_fused if fused else gradient if backward else both)
    arrays = {
        b.work: tuple(jax_array(x) for x in ((b.qkv,) if fused else (b.q, b.k))) for b in r.sets
    }

    def run(b: QueryKey) -> Any:
        return jax.block_until_ready(compiled(*arrays[b.work]))

    def result(returned: Any) -> Any:
        return [np.asarray(x) for x in returned]

    large = first.nbytes > 1 << 20
    context = on_threads(r.threads, large=large)
    return Contestant(name, "fresh", run, "copy", result=result, warmups=2, context=context)


# ------------------------------------------------------------------------------------- numba, NumPy


@functools.cache
def _numba_loop(
    pairing: str, bfloat16: bool, heads_first: bool, parallel: bool, in_place: bool
) -> Any:
    """Rotary as a loop over heads, tokens and pairs; bfloat16 is computed from its bits."""
    numba: Any = importlib.import_module("numba")
    prange, uint16, uint32, float32 = numba.prange, np.uint16, np.uint32, np.float32
    half = pairing == "half"

    if bfloat16:

        @numba.njit
        def load(bits: Any) -> Any:
            wide = uint32(uint32(bits) << 16)
            return wide.view(float32)

        @numba.njit
        def store(value: Any) -> Any:
            single = float32(value)
            bits = single.view(uint32)
            return uint16((np.int64(bits) + 32767 + ((bits >> 16) & 1)) >> 16)
    else:

        @numba.njit
        def load(value: Any) -> Any:
            return value

        store = load

    def loop(src: Any, dst: Any, cos: Any, sin: Any) -> None:
        batch, outer, inner = src.shape[0], src.shape[1], src.shape[2]
        pairs = src.shape[3] // 2
        for task in prange(batch * outer):  # in the order of memory
            n, i = task // outer, task % outer
            row = min(n, cos.shape[0] - 1)
            for j in range(inner):
                t = j if heads_first else i
                x = src[n, i, j]
                # One array is known not to overlap itself, and becomes vectors.
                y = x if in_place else dst[n, i, j]
                for p in range(pairs):
                    first = p if half else 2 * p
                    second = p + pairs if half else 2 * p + 1
                    c, s = cos[row, t, p], sin[row, t, p]
                    a, b = load(x[first]), load(x[second])
                    y[first] = store(a * c - b * s)
                    y[second] = store(b * c + a * s)

    return numba.njit(fastmath=True, parallel=parallel)(loop)


def numba_rows(r: Rotation, *, sign: float = 1.0) -> list[Row]:
    """A loop that somebody wrote by hand: no library, a yardstick of what compilers do."""
    name = "numba, a loop"
    dtype = str(r.dtype).removeprefix("torch.")
    if reason := missing("numba"):
        return [Skipped(name, "in place", reason)]
    if dtype == "float16":
        return [Skipped(name, "in place", "numba has no float16 on the CPU")]
    numba: Any = importlib.import_module("numba")
    numba.set_num_threads(min(r.threads, numba.config.NUMBA_NUM_THREADS))
    bits = dtype == "bfloat16"
    within, loop = (
        _numba_loop(r.pairing, bits, r.layout == "bhsd", r.threads > 1, in_place)
        for in_place in (True, False)
    )
    turned = angles(torch.from_numpy(r.positions)).numpy()
    cos, sin = np.cos(turned), sign * np.sin(turned)

    def array(x: Any) -> np.ndarray:
        if isinstance(x, torch.Tensor):
            return (x.view(torch.uint16) if bits else x).numpy()
        return x.view(np.uint16) if bits else x

    def views(b: QueryKey) -> list[Any]:
        return [array(x) for x in (b.q, b.out_q, b.k, b.out_k)]

    arrays = {b.work: views(b) for b in r.sets}

    def in_place(b: QueryKey) -> None:
        q, _, k, _ = arrays[b.work]
        within(q, q, cos, sin)
        within(k, k, cos, sin)

    def into(b: QueryKey) -> None:
        q, out_q, k, out_k = arrays[b.work]
        loop(q, out_q, cos, sin)
        loop(k, out_k, cos, sin)

    return [
        Contestant(name, mode, run, limit, yardstick=True)
        for mode, run, limit in (("in place", in_place, "in-place scale"), ("out=", into, "copy"))
    ]


def numpy_row(r: Rotation) -> Row:
    """Rotary in NumPy as it is usually written: float32 tables, x * cos + rotate_half(x) * sin."""
    turned = angles(torch.from_numpy(r.positions)).unsqueeze(r.heads_axis).numpy()
    if r.pairing == "half":
        cos, sin = (np.concatenate((t, t), -1) for t in (np.cos(turned), np.sin(turned)))
    else:
        cos, sin = (np.repeat(t, 2, -1) for t in (np.cos(turned), np.sin(turned)))
    cos, sin = cos.astype(r.dtype), sin.astype(r.dtype)

    def rotate(x: np.ndarray) -> np.ndarray:
        turned = np.empty_like(x)
        if r.pairing == "half":
            half = x.shape[-1] // 2
            np.negative(x[..., half:], out=turned[..., :half])
            turned[..., half:] = x[..., :half]
        else:
            np.negative(x[..., 1::2], out=turned[..., 0::2])
            turned[..., 1::2] = x[..., 0::2]
        turned *= sin
        turned += x * cos
        return turned

    return Contestant(
        "plain NumPy, tables ready", "fresh", lambda b: (rotate(b.q), rotate(b.k)), "copy"
    )
