"""What every file of rows is written in: options, buffer sets, rows of ours and of peers."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import posenc_native as pn
from benchmarks.clock.harness import Contestant, Skipped

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
    exhaustive: bool = False  # every combination of shapes, dtypes and layouts
    cache_bytes: int = 32 << 20  # the last-level cache

    def sets(self, nbytes: int) -> int:
        """How many buffer sets of nbytes keep each other out of the cache."""
        return 2 if self.quick else max(2, math.ceil(CACHES * self.cache_bytes / nbytes))

    def make_sets(self, make: Callable[[], Any]) -> list[Any]:
        """As many of what `make` makes as a case wants."""
        first = make()
        return [first, *(make() for _ in range(self.sets(first.nbytes) - 1))]

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full


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
    """Query and key, one after the other in one piece of memory, and the same for their results.

    With layout "qkv" they are slices of what a fused projection wrote, [b, s, heads of q, k and v
    times head_dim]; their results are contiguous. The memory limits work on as many bytes.
    """

    def __init__(
        self,
        seq: int,
        dtype: Any,
        q_heads: int = 32,
        k_heads: int = 8,
        *,
        batch: int = 1,
        layout: str = "bhsd",
    ) -> None:
        split = batch * q_heads * seq * HEAD_DIM
        count = split + batch * k_heads * seq * HEAD_DIM
        fused = count + batch * k_heads * seq * HEAD_DIM if layout == "qkv" else count
        work, out = normal(fused, dtype), normal(count, dtype)
        self.work, self.out = address(work), address(out)
        self.nbytes = count * work.itemsize
        # The axes of q and k, as the library's functions name them.
        self.layout = "bhsd" if layout == "bhsd" else "bshd"

        def shape(heads: int) -> tuple[int, ...]:
            if self.layout == "bhsd":
                return batch, heads, seq, HEAD_DIM
            return batch, seq, heads, HEAD_DIM

        def parts(array: Any) -> tuple[Any, Any]:
            return array[:split].reshape(shape(q_heads)), array[split:].reshape(shape(k_heads))

        self.out_q, self.out_k = parts(out)
        self.qkv = None
        if layout == "qkv":
            self.qkv = work.reshape(batch, seq, -1)
            heads = work.reshape(batch, seq, -1, HEAD_DIM)
            self.q, self.k = heads[:, :, :q_heads], heads[:, :, q_heads : q_heads + k_heads]
        else:
            self.q, self.k = parts(work)


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


# ------------------------------------------------------------------------------------------- rows


def many(options: Options, rows: Sequence[Row], calls: int = 200) -> list[Row]:
    """Rows of which a sample is many calls."""
    calls = options.size(calls, min(calls, 5))
    return [
        dataclasses.replace(row, calls=calls) if isinstance(row, Contestant) else row
        for row in rows
    ]


def label(dtype: Any) -> str:
    """Whose array, and of what: "torch bfloat16", "NumPy float32"."""
    if isinstance(dtype, torch.dtype):
        return str(dtype).replace(".", " ")
    return f"NumPy {np.dtype(dtype).name}"


def missing(*modules: str) -> str | None:
    """Why an optional peer cannot run here; None if it can."""
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception as error:  # not there, or made for another torch, driver or processor
        return str(error).partition("\n")[0] or type(error).__name__
    return None


def ours(
    name: str, mode: str, run: Callable[[Any], object], *, limit: str | None = None
) -> Contestant:
    """A row of this library. Its limit is the copy, or the scaling where it works in place."""
    bound = limit or ("in-place scale" if mode == "in place" else "copy")
    return Contestant(name, mode, run, bound, ours=True)


def yardstick(
    name: str, mode: str, run: Callable[[Any], object], limit: str | None = None
) -> Contestant:
    """A row of other work than the case's, to tell what the machine does."""
    return Contestant(name, mode, run, limit, yardstick=True, checked=False)


NOTHING = yardstick("a call of nothing", "", lambda b: None)


@contextmanager
def _one_thread() -> Any:
    before = torch.get_num_threads(), pn.get_num_threads()
    torch.set_num_threads(1)
    pn.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        pn.set_num_threads(before[1])


def and_alone(threads: int, row: Contestant) -> list[Contestant]:
    """A row of ours; in cases of several threads beside one of the same work on one thread."""
    if threads == 1:
        return [row]

    def run(b: Any) -> object:
        with _one_thread():
            return row.run(b)

    alone = Contestant(f"{row.name}, 1 thread", row.mode, run, row.limit, ours=True)
    return [row, alone]


def compile_row(
    options: Options,
    name: str,
    function: Callable[..., Any],
    call: Any,
    limit: str | None,
    mode: str = "fresh",
    *,
    main: bool = True,
    result: Callable[[Any], Any] | None = None,
) -> Row:
    """The row of torch.compile(function), which `call` calls with a buffer set.

    Rows that are not `main` are compiled with --exhaustive only: each takes seconds to compile.
    """
    if reason := not_compiled(options, main):
        return Skipped(name, mode, reason, left_out=True)
    # Shapes are fixed in a case; a kernel for any shape would be slower.
    compiled = torch.compile(function, dynamic=False)
    run = functools.partial(call, compiled)
    return Contestant(name, mode, run, limit, result=result, warmups=3)


def not_compiled(options: Options, main: bool) -> str | None:
    """Why torch.compile is left out; None if it is not."""
    if not options.compiled:
        return "torch.compile is left out"
    return None if main or options.exhaustive else "torch.compile: with --exhaustive"


def tolerance(dtype: Any, positions: np.ndarray, base_error: float = 2.0**-22) -> float:
    """What peers may be off, relative to the largest number: 8 roundings to the format, and an
    angle that float32 holds to `base_error` of itself.
    """
    name = str(dtype).removeprefix("torch.")
    epsilon = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[
        name if name in ("float16", "bfloat16") else "float32"
    ]
    return 8 * epsilon + float(np.abs(positions).max(initial=0)) * base_error * math.sqrt(2)
