"""What is timed: rotary, sinusoidal tables, x + table, decode; and how exact each way is.

Variants of rotary and relative encodings have files of their own.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch

import posenc_native as pn
from benchmarks.harness import Case, Contestant, Goal, Skipped
from posenc_native import nn, reference

Row = Contestant | Skipped

HEAD_DIM = 128
BASE = 500000.0
# The buffer sets of a case together are this many times as large as the last-level cache.
CACHES = 4


@dataclass(frozen=True)
class Options:
    """What the command line chose."""

    quick: bool = False  # small sizes, no torch.compile: does it run at all?
    compiled: bool = True
    cache_bytes: int = 32 << 20  # the last-level cache

    def sets(self, nbytes: int) -> int:
        """How many buffer sets of nbytes keep each other out of the cache."""
        return 2 if self.quick else max(2, math.ceil(CACHES * self.cache_bytes / nbytes))

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def goal(self, threads: int, at_most: float, unit: str) -> Goal | None:
        """A goal, where it applies: goals are set for one thread and the full sizes."""
        return Goal(at_most, unit) if threads == 1 and not self.quick else None


# ------------------------------------------------------------------------------------ buffer sets


def address(array: Any) -> int:
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data


def normal(count: int, dtype: Any) -> Any:
    """Normally distributed numbers, none of them zero; a tensor where dtype is torch's.

    Each library allocates its own: what pages the memory lies on is part of its speed.
    """
    if isinstance(dtype, torch.dtype):
        return torch.randn(count).to(dtype)
    return np.random.default_rng(0).standard_normal(count, dtype=np.float32).astype(dtype)


class QueryKey:
    """Query and key, one after the other in one piece of memory, and the same for their results."""

    def __init__(self, seq: int, dtype: Any, q_heads: int = 32, k_heads: int = 8) -> None:
        split = q_heads * seq * HEAD_DIM
        count = split + k_heads * seq * HEAD_DIM
        work, out = normal(count, dtype), normal(count, dtype)
        self.q, self.out_q = (a[:split].reshape(1, q_heads, seq, HEAD_DIM) for a in (work, out))
        self.k, self.out_k = (a[split:].reshape(1, k_heads, seq, HEAD_DIM) for a in (work, out))
        self.work, self.out, self.nbytes = address(work), address(out), work.nbytes


class Activations:
    """x, and a result of its shape."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.x, self.result = (normal(math.prod(shape), dtype).reshape(shape) for _ in range(2))
        self.work, self.out, self.nbytes = address(self.x), address(self.result), self.x.nbytes


class Table:
    """Room for a table."""

    work = 0  # nothing is read

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.table = normal(math.prod(shape), dtype).reshape(shape)
        self.out, self.nbytes = address(self.table), self.table.nbytes


# ------------------------------------------------------------------------------------------ peers


def missing(*modules: str) -> str | None:
    """Why an optional peer cannot run here; None if it can."""
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception as error:  # not there, or made for another torch, driver or processor
        return str(error).partition("\n")[0] or type(error).__name__
    return None


def ours(
    name: str,
    mode: str,
    run: Callable[[Any], object],
    goal: Goal | None = None,
    *,
    limit: str | None = None,
) -> Contestant:
    """A row of this library. Its limit is the copy, or the scaling where it works in place."""
    bound = limit or ("in-place scale" if mode == "in place" else "copy")
    return Contestant(name, mode, run, bound, ours=True, goal=goal)


def compile_row(
    options: Options,
    name: str,
    function: Callable[..., Any],
    call: Any,
    limit: str | None,
    mode: str = "fresh",
) -> Row:
    """The row of torch.compile(function), which `call` calls with a buffer set."""
    if not options.compiled:
        return Skipped(name, mode, "torch.compile is left out")
    # Shapes are fixed in a case; a kernel for any shape would be slower.
    compiled = torch.compile(function, dynamic=False)
    return Contestant(name, mode, functools.partial(call, compiled), limit, warmups=3)


def transformers_rotary(
    options: Options,
    pairing: str,
    dtype: torch.dtype,
    positions: torch.Tensor,
    heads_axis: int = 1,
) -> list[Row]:
    """The rotary function of transformers for this pairing, eager and compiled.

    Its cos and sin are made beforehand, in float32 and cast to the model's dtype, as its models do
    once per forward pass.
    """
    family = {"half": "llama", "interleaved": "cohere"}[pairing]
    name = f"transformers ({family.capitalize()})"
    module_name = f"transformers.models.{family}.modeling_{family}"
    if reason := missing("transformers", module_name):
        return [Skipped(name, "fresh", reason)]
    module = importlib.import_module(module_name)
    inv_freq = 1.0 / (BASE ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float) / HEAD_DIM))
    angles = positions[None, :, None].float() * inv_freq.to(positions.device)
    both = torch.cat((angles, angles), -1) if family == "llama" else angles.repeat_interleave(2, -1)
    cos, sin = both.cos().to(dtype), both.sin().to(dtype)

    def call(function: Callable[..., Any], b: QueryKey) -> Any:
        return function(b.q, b.k, cos, sin, unsqueeze_dim=heads_axis)

    eager = module.apply_rotary_pos_emb
    return [
        Contestant(f"{name}, eager", "fresh", functools.partial(call, eager), "copy"),
        compile_row(options, f"{name}, torch.compile", eager, call, "copy"),
    ]


def _onnxruntime_rotary(sets: list[QueryKey], pairing: str, threads: int) -> Row:
    """ONNX Runtime's RotaryEmbedding (opset 23) on query and key, bound to the case's buffers."""
    name = "ONNX Runtime"
    dtype = str(sets[0].q.dtype).removeprefix("torch.")
    if reason := missing("onnx", "onnxruntime"):
        return Skipped(name, "out=", reason)
    if dtype == "bfloat16":
        return Skipped(name, "out=", "its RotaryEmbedding takes no bfloat16 on the CPU")
    onnx: Any = importlib.import_module("onnx")
    runtime: Any = importlib.import_module("onnxruntime")

    seq = sets[0].q.shape[2]
    half = HEAD_DIM // 2
    number = np.dtype(dtype)
    element = onnx.helper.np_dtype_to_tensor_dtype(number)
    integer = onnx.TensorProto.INT64
    shapes = {"q": sets[0].q.shape, "k": sets[0].k.shape}

    def value(value_name: str, kind: int, shape: Any) -> Any:
        return onnx.helper.make_tensor_value_info(value_name, kind, list(shape))

    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node(
                "RotaryEmbedding",
                [x, "cos", "sin", "positions"],
                [f"out_{x}"],
                interleaved=int(pairing == "interleaved"),
            )
            for x in shapes
        ],
        "rotary",
        [value(x, element, shape) for x, shape in shapes.items()]
        + [value(table, element, [seq, half]) for table in ("cos", "sin")]
        + [value("positions", integer, [1, seq])],
        [value(f"out_{x}", element, shape) for x, shape in shapes.items()],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=11
    )
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = threads
    # Its idle threads would spin while the other contestants run.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = runtime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    angles = np.arange(seq)[:, None] * BASE ** (-np.arange(half) / half)
    constants = {
        "cos": np.cos(angles).astype(number),
        "sin": np.sin(angles).astype(number),
        "positions": np.arange(seq)[None],
    }

    def bind(b: QueryKey) -> Any:
        binding = session.io_binding()
        for x, shape in shapes.items():
            places = address(getattr(b, x)), address(getattr(b, f"out_{x}"))
            binding.bind_input(x, "cpu", 0, number, shape, places[0])
            binding.bind_output(f"out_{x}", "cpu", 0, number, shape, places[1])
        for constant, array in constants.items():
            binding.bind_ortvalue_input(constant, runtime.OrtValue.ortvalue_from_numpy(array))
        return binding

    bindings = {b.work: bind(b) for b in sets}
    return Contestant(name, "out=", lambda b: session.run_with_iobinding(bindings[b.work]), "copy")


def _numpy_rotary(pairing: str, positions: np.ndarray) -> Row:
    """Rotary in NumPy as it is usually written: float32 tables, x * cos + rotate_half(x) * sin."""
    inv_freq = 1.0 / (BASE ** (np.arange(0, HEAD_DIM, 2, dtype=np.float32) / HEAD_DIM))
    angles = positions[:, None].astype(np.float32) * inv_freq.astype(np.float32)
    if pairing == "half":
        cos, sin = (np.concatenate((t, t), -1) for t in (np.cos(angles), np.sin(angles)))
    else:
        cos, sin = (np.repeat(t, 2, -1) for t in (np.cos(angles), np.sin(angles)))

    def rotate(x: np.ndarray) -> np.ndarray:
        turned = np.empty_like(x)
        if pairing == "half":
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


def _recipe_frequencies(dim: int, device: torch.device | None = None) -> torch.Tensor:
    """The frequencies of sinusoidal positions as most code has them: an exponential in float32."""
    steps = torch.arange(0, dim, 2, device=device).float()
    return torch.exp(steps * (-math.log(10000.0) / dim))


def recipe_table(table: torch.Tensor) -> torch.Tensor:
    """The usual float32 recipe of a sinusoidal table, written into `table`."""
    length, dim = table.shape
    steps = torch.arange(length, device=table.device).unsqueeze(1)
    angles = steps * _recipe_frequencies(dim, table.device)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles)
    return table


def _recipe_table_numpy(table: np.ndarray) -> np.ndarray:
    """The same in NumPy."""
    length, dim = table.shape
    step = np.float32(-math.log(10000.0) / dim)
    angles = np.arange(length, dtype=np.float32)[:, None] * np.exp(
        np.arange(0, dim, 2, dtype=np.float32) * step
    )
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles)
    return table


# ------------------------------------------------------------------------------------------ cases


def _rotary(options: Options, seq: int, dtype: Any, pairing: str, threads: int, name: str) -> Case:
    first = QueryKey(seq, dtype)
    sets = [first, *(QueryKey(seq, dtype) for _ in range(options.sets(first.nbytes) - 1))]
    inv_freq: Any = pn.rotary_frequencies(HEAD_DIM, BASE)[0]
    positions: Any = np.arange(seq)
    peers: list[Row]
    if isinstance(dtype, torch.dtype):
        positions, inv_freq = torch.from_numpy(positions), torch.from_numpy(inv_freq)
        peers = [
            Contestant("copy_", "out=", lambda b: (b.out_q.copy_(b.q), b.out_k.copy_(b.k)), "copy"),
            Contestant("clone", "fresh", lambda b: (b.q.clone(), b.k.clone()), "copy"),
            *transformers_rotary(options, pairing, dtype, positions),
        ]
    else:
        peers = [_numpy_rotary(pairing, positions)]

    def rotate_in_place(b: QueryKey) -> None:
        pn.apply_rotary_qk(b.q, b.k, positions, inv_freq, pairing=pairing, inplace=True)

    def rotate_into(b: QueryKey) -> None:
        pn.apply_rotary(b.q, positions, inv_freq, pairing=pairing, out=b.out_q)
        pn.apply_rotary(b.k, positions, inv_freq, pairing=pairing, out=b.out_k)

    def rotate(b: QueryKey) -> Any:
        return pn.apply_rotary_qk(b.q, b.k, positions, inv_freq, pairing=pairing)

    goal = options.goal(threads, 1.3 if first.q.itemsize == 4 else 1.5, "x")
    mine = [
        ours("apply_rotary_qk", "in place", rotate_in_place, goal),
        ours("apply_rotary, twice", "out=", rotate_into),
        ours("apply_rotary_qk", "fresh", rotate),
    ]
    return Case(name, threads, sets, [*mine, *peers, _onnxruntime_rotary(sets, pairing, threads)])


def _sinusoidal(
    options: Options, shape: tuple[int, int], dtype: Any, threads: int, name: str
) -> Case:
    first = Table(shape, dtype)
    sets = [first, *(Table(shape, dtype) for _ in range(options.sets(first.nbytes) - 1))]
    length, dim = shape

    def write(b: Table) -> None:
        pn.sinusoidal(length, dim, out=b.table)

    def make(b: Table) -> Any:
        return pn.sinusoidal(length, dim, dtype=dtype)

    single = dim == HEAD_DIM and first.table.itemsize == 4
    goal = options.goal(threads, 1.7, "x") if single else None
    rows: list[Row] = [
        ours("sinusoidal", "out=", write, goal, limit="fill"),
        ours("sinusoidal", "fresh", make, limit="fill"),
    ]
    if isinstance(dtype, torch.dtype):

        def recipe() -> torch.Tensor:
            return recipe_table(torch.empty(shape)).to(dtype)

        def call(function: Callable[[], Any], b: Table) -> Any:
            return function()

        rows += [
            Contestant("plain torch", "out=", lambda b: recipe_table(b.table), "fill"),
            Contestant("plain torch", "fresh", functools.partial(call, recipe), "fill"),
            compile_row(options, "plain torch, torch.compile", recipe, call, "fill"),
        ]
    else:

        def recipe_numpy(b: Table) -> np.ndarray:
            return _recipe_table_numpy(np.empty(shape, np.float32))

        rows += [
            Contestant("plain NumPy", "out=", lambda b: _recipe_table_numpy(b.table), "fill"),
            Contestant("plain NumPy", "fresh", recipe_numpy, "fill"),
        ]
    return Case(name, threads, sets, rows)


def _add_sinusoidal(
    options: Options, shape: tuple[int, ...], dtype: torch.dtype, threads: int, name: str
) -> Case:
    first = Activations(shape, dtype)
    sets = [first, *(Activations(shape, dtype) for _ in range(options.sets(first.nbytes) - 1))]
    table = recipe_table(torch.empty(shape[-2:])).to(dtype)

    def add(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return x + table

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return function(b.x, table)

    peer = "x + table, table ready"
    rows: list[Row] = [
        ours("add_sinusoidal", "in place", lambda b: pn.add_sinusoidal(b.x, out=b.x)),
        ours("add_sinusoidal", "out=", lambda b: pn.add_sinusoidal(b.x, out=b.result)),
        ours("add_sinusoidal", "fresh", lambda b: pn.add_sinusoidal(b.x)),
        Contestant(peer, "in place", lambda b: b.x.add_(table), "in-place scale"),
        Contestant(peer, "out=", lambda b: torch.add(b.x, table, out=b.result), "copy"),
        Contestant(peer, "fresh", functools.partial(call, add), "copy"),
        compile_row(options, f"{peer}, torch.compile", add, call, "copy"),
    ]
    return Case(name, threads, sets, rows)


def _decode(options: Options, threads: int, name: str) -> Case:
    """One new token of one sequence: nothing but the price of a call."""
    calls = options.size(200, 5)
    buffers = QueryKey(1, torch.bfloat16)
    arrays = QueryKey(1, np.dtype(ml_dtypes.bfloat16))
    inv_freq = pn.rotary_frequencies(HEAD_DIM, BASE)[0]
    inv_freq_torch = torch.from_numpy(inv_freq)
    position = np.array([4095])
    position_torch = torch.from_numpy(position)
    rope = pn.Rotary(HEAD_DIM, base=BASE)
    module = nn.RotaryEmbedding(HEAD_DIM, base=BASE)

    def from_torch(b: QueryKey) -> None:
        pn.apply_rotary_qk(b.q, b.k, position_torch, inv_freq_torch, inplace=True)

    def from_numpy(b: QueryKey) -> None:
        pn.apply_rotary_qk(q, k, position, inv_freq, inplace=True)

    torch_goal, numpy_goal = (options.goal(threads, at_most, "µs") for at_most in (4, 2.5))
    q, k = arrays.q, arrays.k
    rows: list[Row] = [
        ours("torch: apply_rotary_qk", "in place", from_torch, torch_goal),
        ours(
            "torch: Rotary",
            "in place",
            lambda b: rope(b.q, b.k, position_torch, inplace=True),
            torch_goal,
        ),
        ours(
            "torch: nn.RotaryEmbedding",
            "in place",
            lambda b: module(b.q, b.k, position_torch, inplace=True),
            torch_goal,
        ),
        ours("torch: nn.RotaryEmbedding", "fresh", lambda b: module(b.q, b.k, position_torch)),
        ours("NumPy: apply_rotary_qk", "in place", from_numpy, numpy_goal),
        ours("NumPy: Rotary", "in place", lambda b: rope(q, k, position, inplace=True), numpy_goal),
        ours("NumPy: Rotary", "fresh", lambda b: rope(q, k, position)),
        *transformers_rotary(options, "half", torch.bfloat16, position_torch),
        _onnxruntime_rotary([buffers], "half", threads),
        Contestant("a call of nothing", "", lambda b: None),
    ]
    many = [
        dataclasses.replace(row, calls=calls) if isinstance(row, Contestant) else row
        for row in rows
    ]
    return Case(name, threads, [buffers], many, in_cache=True)


def label(dtype: Any) -> str:
    """Whose array, and of what: "torch bfloat16", "NumPy float32"."""
    if isinstance(dtype, torch.dtype):
        return str(dtype).replace(".", " ")
    return f"NumPy {np.dtype(dtype).name}"


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """The names of all cases with a given number of threads, and what builds each."""
    suffix = f"{threads} thread{'s' if threads > 1 else ''}"
    torch_dtypes = (torch.float32, torch.bfloat16, torch.float16)
    seq = options.size(4096, 64)
    for dtype, pairing in itertools.product((*torch_dtypes, np.float32), ("half", "interleaved")):
        name = f"rotary, q 32 + k 8 heads x {seq} x {HEAD_DIM}, {label(dtype)}, {pairing}, {suffix}"
        yield name, functools.partial(_rotary, options, seq, dtype, pairing, threads, name)
    long, wide = (options.size(131072, 256), HEAD_DIM), (options.size(4096, 64), 1024)
    for shape, dtype in (
        *((long, dtype) for dtype in (torch.float32, np.float32)),
        *((wide, dtype) for dtype in (torch.float32, torch.bfloat16)),
        (long, torch.bfloat16),
    ):
        name = f"sinusoidal table, {shape[0]} x {shape[1]}, {label(dtype)}, {suffix}"
        yield name, functools.partial(_sinusoidal, options, shape, dtype, threads, name)
    activations = (options.size(8, 2), options.size(1024, 32), 768)
    for dtype in (torch.float32, torch.bfloat16):
        size = " x ".join(map(str, activations))
        name = f"add sinusoidal, {size}, {label(dtype)}, {suffix}"
        yield name, functools.partial(_add_sinusoidal, options, activations, dtype, threads, name)
    name = f"decode, q 32 + k 8 heads x 1 x {HEAD_DIM}, bfloat16, {suffix}"
    yield name, functools.partial(_decode, options, threads, name)


# --------------------------------------------------------------------------------------- accuracy


@dataclass(frozen=True)
class Accuracy:
    """The largest errors of cos and sin in float32 over the positions that end at `position`."""

    position: int
    rotary: float
    rotary_recipe: float
    sinusoidal: float
    sinusoidal_recipe: float


def accuracy(positions: Sequence[int] = (4096, 131072, 1 << 20, 1 << 24)) -> list[Accuracy]:
    """Errors against posenc_native.reference in float64, over 64 positions ending at each given.

    Rotary tables with head_dim 128 and base 5e5, sinusoidal tables with 128 columns and base 1e4.
    The recipe computes the angle in float32, position times frequency, as transformers and most
    implementations do.
    """
    inv_freq = pn.rotary_frequencies(HEAD_DIM, BASE)[0]
    rounded = 1.0 / (BASE ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float) / HEAD_DIM))
    results = []
    for last in positions:
        window = np.arange(last - 63, last + 1)
        exact = reference.rotary_tables(window, inv_freq, None, 1.0, np.float64)
        mine = pn.rotary_tables(window, inv_freq)
        angles = torch.from_numpy(window)[:, None].float() * rounded
        usual = angles.cos().numpy(), angles.sin().numpy()

        exact_table = reference.sinusoidal(
            window, HEAD_DIM, 10000.0, "sin_cos", 0.0, 1.0, np.float64, None
        )
        my_table = pn.sinusoidal(window, HEAD_DIM, layout="sin_cos")
        angles = torch.from_numpy(window)[:, None].float() * _recipe_frequencies(HEAD_DIM)
        usual_table = torch.cat((angles.sin(), angles.cos()), -1).numpy()

        def error(got: Any, want: Any) -> float:
            return float(np.max(np.abs(np.asarray(got, np.float64) - np.asarray(want))))

        results.append(
            Accuracy(
                last,
                error(mine, exact),
                error(usual, exact),
                error(my_table, exact_table),
                error(usual_table, exact_table),
            )
        )
    return results
