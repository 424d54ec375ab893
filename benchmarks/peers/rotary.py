"""Rotary as other projects compute it, each in the form that serves it best: tables made before."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from benchmarks.clock.harness import Contestant, Skipped

from .contestants import (
    BASE,
    HEAD_DIM,
    Options,
    QueryKey,
    Row,
    address,
    missing,
    not_compiled,
)

Rotate = Callable[[torch.Tensor, torch.Tensor], Any]


@dataclass(frozen=True)
class Rotation:
    """A case of rotary, as far as peers have to know it."""

    options: Options
    sets: Sequence[QueryKey]
    dtype: Any
    pairing: str
    positions: np.ndarray  # [s] or [b, s]
    threads: int
    main: bool = True  # whether torch.compile takes part without --exhaustive too

    @property
    def layout(self) -> str:
        return self.sets[0].layout

    @property
    def heads_axis(self) -> int:
        return self.layout.index("h")

    def heads_first(self, x: torch.Tensor) -> torch.Tensor:
        """As bhsd, for those who know no other; and back."""
        return x if self.layout == "bhsd" else x.transpose(1, 2)

    def sequence_first(self, x: torch.Tensor) -> torch.Tensor:
        """As bshd, and back."""
        return x if self.layout == "bshd" else x.transpose(1, 2)


def frequencies() -> torch.Tensor:
    """The frequencies as most code has them, in float32."""
    return 1.0 / (BASE ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float) / HEAD_DIM))


def angles(positions: torch.Tensor) -> torch.Tensor:
    """[1 or b, s, HEAD_DIM / 2], in float32."""
    inv_freq = frequencies().to(positions.device)
    return positions.reshape(-1, positions.shape[-1], 1).float() * inv_freq


# ------------------------------------------------------------------------- functions of two tensors


class _Unsuited(Exception):
    """A peer does not do this, and why."""


@dataclass(frozen=True)
class TorchPeer:
    """A function that rotates tensors, given as functions of q and k in the layout of the case."""

    name: str
    make: Callable[[Rotation], Rotate]
    compiled: bool = False  # whether a row of torch.compile stands beside it
    modules: tuple[str, ...] = ()
    yardstick: bool = False


def _transformers(family: str, r: Rotation) -> Rotate:
    wanted = "half" if family == "llama" else "interleaved"
    assert r.pairing == wanted
    return _with_tables(family, r.dtype, torch.from_numpy(r.positions), r.heads_axis)


def _with_tables(
    family: str, dtype: torch.dtype, positions: torch.Tensor, heads_axis: int
) -> Rotate:
    """The rotary function of a family of transformers, its tables made."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    turned = angles(positions)
    both = torch.cat((turned, turned), -1) if family == "llama" else turned.repeat_interleave(2, -1)
    return functools.partial(
        module.apply_rotary_pos_emb,
        cos=both.cos().to(dtype),
        sin=both.sin().to(dtype),
        unsqueeze_dim=heads_axis,
    )


FAMILIES = {"half": "llama", "interleaved": "cohere"}


def transformers_rotary(
    options: Options,
    pairing: str,
    dtype: torch.dtype,
    positions: torch.Tensor,
    heads_axis: int = 1,
) -> list[Row]:
    """The rotary function of transformers for this pairing, eager and compiled, of q and k.

    Its cos and sin are made beforehand, in float32 and cast to the model's dtype, as its models do
    once per forward pass.
    """
    family = FAMILIES[pairing]
    name = f"transformers ({family.capitalize()})"
    if reason := missing("transformers", f"transformers.models.{family}.modeling_{family}"):
        return [Skipped(name, "fresh", reason)]
    rotate = _with_tables(family, dtype, positions, heads_axis)
    return list(_forward(options, name, rotate, compiled=True, main=True))


def _rotary_embedding_torch(r: Rotation) -> Rotate:
    """It takes the cosine and sine of its cached angles in every call."""
    _only(r, "interleaved")
    package: Any = importlib.import_module("rotary_embedding_torch")
    module = package.RotaryEmbedding(HEAD_DIM, theta=BASE)
    freqs = module(torch.from_numpy(r.positions).float()).detach()
    # A head's axis beside that of the batch, where every sequence has positions of its own.
    by_row = freqs.ndim == 3
    if r.layout == "bshd":
        freqs = freqs.unsqueeze(-2)
    elif by_row:
        freqs = freqs.unsqueeze(1)
    axis = -2 if r.layout == "bhsd" else -3

    def rotate(q: torch.Tensor, k: torch.Tensor) -> Any:
        return tuple(package.apply_rotary_emb(freqs, x, seq_dim=axis) for x in (q, k))

    return rotate


def _x_transformers(r: Rotation) -> Rotate:
    """It takes the cosine and sine of its cached angles in every call."""
    _only(r, "interleaved")
    package: Any = importlib.import_module("x_transformers.x_transformers")
    freqs, scale = package.RotaryEmbedding(HEAD_DIM, base=BASE)(torch.from_numpy(r.positions))
    turn = r.heads_first

    def rotate(q: torch.Tensor, k: torch.Tensor) -> Any:
        return tuple(turn(package.apply_rotary_pos_emb(turn(x), freqs, scale)) for x in (q, k))

    return rotate


def torchtune_positions() -> ModuleType:
    """torchtune's file of position embeddings; the rest of it needs an older torchao."""
    return without_its_packages("torchtune", "modules", "position_embeddings")


@functools.cache
def without_its_packages(*path: str) -> ModuleType:
    """A module of a package of whose `__init__` files it needs nothing, and which may fail here."""
    spec = importlib.util.find_spec(path[0])
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"No module named '{path[0]}'")
    before = dict(sys.modules)
    for depth in range(1, len(path)):
        package = ".".join(path[:depth])
        empty = ModuleSpec(package, None, is_package=True)
        empty.submodule_search_locations = [
            str(Path(spec.submodule_search_locations[0], *path[1:depth]))
        ]
        sys.modules[package] = importlib.util.module_from_spec(empty)
    try:
        return importlib.import_module(".".join(path))
    finally:  # whoever asks for the package next gets all of it
        for name in [name for name in sys.modules if name.partition(".")[0] == path[0]]:
            del sys.modules[name]
        sys.modules.update(before)


def _torchtune(r: Rotation) -> Rotate:
    _only(r, "interleaved")
    longest = int(r.positions.max()) + 1
    rope = torchtune_positions().RotaryPositionalEmbeddings(HEAD_DIM, longest, BASE)
    seq = r.positions.shape[-1]
    from_zero = r.positions.ndim == 1 and np.array_equal(r.positions, np.arange(seq))
    input_pos = None if from_zero else torch.from_numpy(r.positions.reshape(-1, seq))
    turn = r.sequence_first

    def rotate(q: torch.Tensor, k: torch.Tensor) -> Any:
        return tuple(turn(rope(turn(x), input_pos=input_pos)) for x in (q, k))

    return rotate


def timm_positions() -> ModuleType:
    """timm's file of sinusoids and rotations; the rest of timm needs torchvision."""
    return without_its_packages("timm", "layers", "pos_embed_sincos")


def _timm(r: Rotation) -> Rotate:
    package = timm_positions()
    turned = angles(torch.from_numpy(r.positions))
    both = (
        torch.cat((turned, turned), -1) if r.pairing == "half" else turned.repeat_interleave(2, -1)
    )
    table = torch.cat((both.sin(), both.cos()), -1).to(r.dtype).unsqueeze(r.heads_axis)

    def rotate(q: torch.Tensor, k: torch.Tensor) -> Any:
        return tuple(
            package.apply_rot_embed_cat(x, table, half=r.pairing == "half") for x in (q, k)
        )

    return rotate


def _only(r: Rotation, pairing: str) -> None:
    if r.pairing != pairing:
        raise _Unsuited(f"it rotates {pairing} pairs")


def torch_peers(pairing: str) -> list[TorchPeer]:
    family = FAMILIES[pairing]
    return [
        TorchPeer(
            f"transformers ({family.capitalize()})",
            functools.partial(_transformers, family),
            compiled=True,
            modules=("transformers", f"transformers.models.{family}.modeling_{family}"),
        ),
        TorchPeer(
            "rotary-embedding-torch",
            _rotary_embedding_torch,
            modules=("rotary_embedding_torch",),
        ),
        TorchPeer("x-transformers", _x_transformers, modules=("x_transformers",)),
        TorchPeer("torchtune", _torchtune),
        TorchPeer("timm", _timm),
    ]


def _forward(
    options: Options, name: str, rotate: Rotate, *, compiled: bool, main: bool
) -> Iterator[Row]:
    """The rows of a function of q and k."""
    eager = f"{name}, eager" if compiled else name
    yield Contestant(eager, "fresh", lambda b: rotate(b.q, b.k), "copy")
    if not compiled:
        return
    name += ", torch.compile"
    if reason := not_compiled(options, main):
        yield Skipped(name, "fresh", reason, left_out=True)
        return
    fast = torch.compile(rotate, dynamic=False)
    yield Contestant(name, "fresh", lambda b: fast(b.q, b.k), "copy", warmups=3)


def _backward(
    options: Options, name: str, rotate: Rotate, first: QueryKey, *, compiled: bool, main: bool
) -> Iterator[Row]:
    """The same of their gradients."""
    yield gradient_row(f"{name}, eager" if compiled else name, rotate, first)
    if not compiled:
        return
    name += ", torch.compile"
    if reason := not_compiled(options, main):
        yield Skipped(name, "fresh", reason, left_out=True)
        return
    functorch: Any = importlib.import_module("torch._functorch.config")
    # Its graph is kept, for as many backward passes as there are samples.
    with functorch.patch(donated_buffer=False):
        yield gradient_row(name, torch.compile(rotate, dynamic=False), first, warmups=3)


def gradient_row(
    name: str, rotate: Rotate, first: QueryKey, *, ours: bool = False, **more: Any
) -> Contestant:
    """Backward through autograd: a case's q and k are the gradients that come in.

    The forward pass runs once, here, and its graph is kept: what is timed is the backward alone.
    """
    q, k = (torch.randn_like(x).requires_grad_() for x in (first.q, first.k))
    results = rotate(q, k)

    def run(b: QueryKey) -> Any:
        return torch.autograd.grad(results, (q, k), (b.q, b.k), retain_graph=True)

    return Contestant(name, "fresh", run, "copy", ours=ours, **more)


def _torch_rows(r: Rotation, *, backward: bool) -> Iterator[Row]:
    for peer in torch_peers(r.pairing):
        if reason := missing(*peer.modules):
            yield Skipped(peer.name, "fresh", reason)
            continue
        try:
            rotate = peer.make(r)
        except (_Unsuited, ImportError) as error:
            yield Skipped(peer.name, "fresh", str(error).partition("\n")[0])
            continue
        if backward:
            yield from _backward(
                r.options, peer.name, rotate, r.sets[0], compiled=peer.compiled, main=r.main
            )
        else:
            yield from _forward(r.options, peer.name, rotate, compiled=peer.compiled, main=r.main)


def _addcmul(r: Rotation, *, sign: float = 1.0) -> Row:
    """The best that we know to write with operations of torch: no temporary, results reused."""
    turned = angles(torch.from_numpy(r.positions)).unsqueeze(r.heads_axis)
    cos, sin = turned.cos().to(r.dtype), (sign * turned.sin()).to(r.dtype)
    negative = -sin

    def halves(x: torch.Tensor) -> Sequence[torch.Tensor]:
        return x.chunk(2, -1) if r.pairing == "half" else (x[..., 0::2], x[..., 1::2])

    def run(b: QueryKey) -> None:
        for x, out in ((b.q, b.out_q), (b.k, b.out_k)):
            (a, b_), (to_a, to_b) = halves(x), halves(out)
            torch.mul(a, cos, out=to_a).addcmul_(b_, negative)
            torch.mul(b_, cos, out=to_b).addcmul_(a, sin)

    return Contestant("hand-written, addcmul_", "out=", run, "copy", yardstick=True)


# ------------------------------------------------------------------------------------ ONNX Runtime


def _onnxruntime(r: Rotation) -> Row:
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


def bound_session(
    name: str,
    graph: Any,
    threads: int,
    sets: Sequence[Any],
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    constants: dict[str, np.ndarray],
    number: np.dtype,
) -> Contestant:
    """A graph of ONNX Runtime, whose inputs and outputs are bound to attributes of the buffers."""
    onnx: Any = importlib.import_module("onnx")
    runtime: Any = importlib.import_module("onnxruntime")
    opset = [onnx.helper.make_opsetid("", 23)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=11)
    settings = runtime.SessionOptions()
    settings.log_severity_level = 3
    settings.intra_op_num_threads = threads
    # Its idle threads would spin while the other contestants run.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = runtime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )

    def bind(b: Any) -> Any:
        binding = session.io_binding()
        for array, shape in inputs.items():
            binding.bind_input(array, "cpu", 0, number, shape, address(getattr(b, array)))
        for array, shape in outputs.items():
            binding.bind_output(array, "cpu", 0, number, shape, address(getattr(b, array)))
        for constant, array in constants.items():
            binding.bind_ortvalue_input(constant, runtime.OrtValue.ortvalue_from_numpy(array))
        return binding

    bindings = {b.out: bind(b) for b in sets}
    limit = "copy" if inputs else "fill"
    return Contestant(name, "out=", lambda b: session.run_with_iobinding(bindings[b.out]), limit)


# -------------------------------------------------------------------------------------------- JAX


def import_jax() -> Any:
    """JAX, for the CPU."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return importlib.import_module("jax")


def missing_jax() -> str | None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return missing("jax")


@functools.cache
def _jax_pool() -> list[int]:
    """The threads that JAX starts, which it has no setting for."""

    def tasks() -> set[int]:
        return {int(task) for task in os.listdir("/proc/self/task")}

    if not hasattr(os, "sched_setaffinity"):
        return []
    before = tasks()
    jax = import_jax()
    jax.jit(lambda x: x + 1)(np.zeros(1 << 20, np.float32)).block_until_ready()
    return sorted(tasks() - before)


def on_threads(threads: int, *, large: bool = True) -> Callable[[], AbstractContextManager[object]]:
    """The context of a run of JAX: with one thread it and its pool share one core, or the pool
    would help.
    """
    if not (pool := _jax_pool()):
        return nullcontext
    cores = sorted(os.sched_getaffinity(0))
    allowed = set(cores[:1]) if threads == 1 else set(cores)
    for task in pool:
        os.sched_setaffinity(task, allowed)
    if threads > 1 or not large:  # JAX computes what is small in the thread that calls
        return nullcontext

    @contextmanager
    def pinned() -> Iterator[None]:
        os.sched_setaffinity(0, allowed)
        try:
            yield
        finally:
            os.sched_setaffinity(0, cores)

    return pinned


def jax_array(array: Any) -> Any:
    """The same memory as an array of JAX; a copy where its alignment is not JAX's."""
    jnp: Any = importlib.import_module("jax.numpy")
    return jnp.from_dlpack(array)


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


def _jax(r: Rotation, *, backward: bool = False) -> Row:
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


# ----------------------------------------------------------------------------------- numba, NumPy


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


def _numba(r: Rotation, *, sign: float = 1.0) -> list[Row]:
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


def _numpy(r: Rotation) -> Row:
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


# --------------------------------------------------------------------------------------- all peers


def forward(r: Rotation) -> list[Row]:
    """Every peer's rotation of q and k."""
    if not isinstance(r.dtype, torch.dtype):
        return [_numpy(r), _onnxruntime(r), _jax(r), *_numba(r)]
    return [*_torch_rows(r, backward=False), _onnxruntime(r), _jax(r), _addcmul(r), *_numba(r)]


def backward(r: Rotation) -> list[Row]:
    """Every peer's gradient of q and k, whose incoming gradients are the case's q and k."""
    return [
        *_torch_rows(r, backward=True),
        Skipped("ONNX Runtime, IO binding", "out=", "its RotaryEmbedding has no gradient"),
        _jax(r, backward=True),
        _addcmul(r, sign=-1.0),
        *_numba(r, sign=-1.0),
    ]


def tolerance(dtype: Any, positions: np.ndarray, base_error: float = 2.0**-22) -> float:
    """What peers may be off, relative to the largest number: 8 roundings to the format, and an
    angle that float32 holds to `base_error` of itself.
    """
    name = str(dtype).removeprefix("torch.")
    epsilon = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[
        name if name in ("float16", "bfloat16") else "float32"
    ]
    return 8 * epsilon + float(np.abs(positions).max(initial=0)) * base_error * math.sqrt(2)
