"""`python -m benchmarks.studies.growth`: time per element as work grows, beside the memory limit's.

Curves against length, heads, head_dim, threads and the distance of buffers modulo 4 KiB. A cliff is
a step at which the time per element rises by 1.3 and more and that of the memory limit does not.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

import posenc_native as pn
from benchmarks.clock import harness
from benchmarks.clock.harness import Case, Contestant
from benchmarks.clock.progress import Progress
from benchmarks.figures import report

RESULTS = Path(__file__).parents[1] / "results"
HEAD_DIM = 128
DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# In the second-level cache of any processor of today, and in no cache.
IN_CACHE, FROM_MEMORY, LARGE = 256 * KIB, 128 * MIB, 512 * MIB
CLIFF = 1.3


@dataclass(frozen=True)
class Sizes:
    """What the command line chose."""

    largest: int = 4 * GIB  # bytes of a buffer
    quick: bool = False  # few points, tiny

    def buffer(self, nbytes: int) -> int:
        return min(nbytes, self.largest, 64 * KIB if self.quick else nbytes)

    def some(self, points: Sequence[int]) -> Sequence[int]:
        return points[:2] if self.quick else points

    def sample(
        self,
        x: int,
        room: Room,
        elements: int,
        rows: Sequence[tuple[str, str, Callable[[], object]]],
        threads: int = 1,
    ) -> Sample:
        """Rows are names, memory limits and calls."""
        # So many that neither what others have left in the caches nor waking a thread counts.
        calls = 2 if self.quick else max(1, 32 * MIB * threads // room.nbytes)

        def contestant(name: str, limit: str, call: Callable[[], object]) -> Contestant:
            return Contestant(name, "", lambda b: call(), limit, ours=True, calls=calls)

        case = Case(
            name=f"{x:,}: {room.nbytes:,} bytes",
            threads=threads,
            buffers=[room],
            contestants=[contestant(*row) for row in rows],
            in_cache=calls > 1,
        )
        return Sample(x, case, elements)


# ------------------------------------------------------------------------------------------ buffers


class Room:
    """Memory full of normally distributed numbers, from the beginning of a page on.

    Its first `nbytes` are worked on; results begin `place` bytes behind their beginning.
    """

    def __init__(self, dtype: np.dtype, size: int) -> None:
        self.dtype, self.nbytes, self.place = dtype, size, 0
        room = np.empty(size + 4096, np.uint8)
        begin = -room.ctypes.data % 4096
        self._bytes = room[begin : begin + size]
        some = np.random.default_rng(0).standard_normal(MIB, np.float32).astype(dtype)
        numbers = some.view(np.uint8)
        for begin in range(0, size, len(numbers)):
            self._bytes[begin : begin + len(numbers)] = numbers[: size - begin]

    def using(self, nbytes: int, place: int = 0) -> Room:
        """The same memory, used so."""
        room = copy.copy(self)
        room.nbytes, room.place = nbytes, place
        return room

    @property
    def work(self) -> int:
        return int(self._bytes.ctypes.data)

    @property
    def out(self) -> int:
        return self.work + self.place

    def array(self, *shape: int) -> np.ndarray:
        """What is worked on."""
        return self._view(0, shape)

    def result(self, *shape: int) -> np.ndarray:
        return self._view(self.place, shape)

    def _view(self, begin: int, shape: tuple[int, ...]) -> np.ndarray:
        nbytes = math.prod(shape) * self.dtype.itemsize
        return self._bytes[begin : begin + nbytes].view(self.dtype).reshape(shape)


# ------------------------------------------------------------------------------------------- curves


@dataclass(frozen=True)
class Sample:
    """A point of one line or more: contestants, whose names are the lines'."""

    x: int
    case: Case
    elements: int  # of the result, the same for all of them


@dataclass(frozen=True)
class Curve:
    """Some lines over one axis."""

    title: str
    axis: str
    samples: Callable[[Sizes], Iterator[Sample]]
    logarithmic: bool = True


def _rotate(x: Any, out: Any = None, **options: Any) -> Callable[[], object]:
    inv_freq: Any = pn.rotary_frequencies(x.shape[-1], 500000.0)[0]
    if isinstance(x, torch.Tensor):
        inv_freq = torch.from_numpy(inv_freq)
    out = x if out is None else out
    return lambda: pn.apply_rotary(x, None, inv_freq, out=out, **options)


def _length(heads: int, sizes: Sizes) -> Iterator[Sample]:
    """From 16 tokens on."""
    dim = 64
    for name in ("float32", "bfloat16"):
        dtype = DTYPES[name]
        row = heads * dim * dtype.itemsize
        most = sizes.buffer((1 << 24) * row // heads) // row
        # Inputs and results as far from each other, modulo 4 KiB, as they can be: see `_distance`.
        place = most * row + 2048
        whole = Room(dtype, place + most * row)
        for tokens in (1 << n for n in range(4, most.bit_length())):
            room = whole.using(tokens * row, place)
            shape = (1, heads, tokens, dim)
            x, out = room.array(*shape), room.result(*shape)
            rows = [
                (f"rotary, {name}, in place", "in-place scale", _rotate(x)),
                (f"rotary, {name}, out=", "copy", _rotate(x, out)),
            ]
            if heads == 1:
                table = functools.partial(pn.sinusoidal, tokens, dim, out=out[0, 0])
                add = functools.partial(pn.add_sinusoidal, x, out=x)
                rows += [
                    (f"sinusoidal table, {name}, out=", "fill", table),
                    (f"add_sinusoidal, {name}, in place", "in-place scale", add),
                ]
            yield sizes.sample(tokens, room, x.size, rows)


def _heads(nbytes: int, sizes: Sizes) -> Iterator[Sample]:
    """As many bytes whatever the number of heads."""
    nbytes = sizes.buffer(nbytes)
    points = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 40, 48, 64)
    for name in ("float32", "bfloat16"):
        dtype = DTYPES[name]
        whole = Room(dtype, nbytes)
        for heads in sizes.some(points):
            tokens = nbytes // (heads * HEAD_DIM * dtype.itemsize)
            x = whole.array(1, heads, tokens, HEAD_DIM)
            inside = whole.array(1, tokens, heads, HEAD_DIM)
            rows = [
                (f"{name}, bhsd", "in-place scale", _rotate(x)),
                (f"{name}, bshd", "in-place scale", _rotate(inside, layout="bshd")),
            ]
            yield sizes.sample(heads, whole.using(x.nbytes), x.size, rows)


def _dim(nbytes: int, sizes: Sizes) -> Iterator[Sample]:
    """As many bytes whatever the head_dim; 8 heads."""
    nbytes = sizes.buffer(nbytes)
    points = (2, 4, 8, 16, 18, 24, 32, 40, 48, 64, 80, 96, 100, 112, 128, 160, 192, 256)
    for name, dtype in DTYPES.items():
        whole = Room(dtype, nbytes)
        for dim in sizes.some(points):
            x = whole.array(1, 8, nbytes // (8 * dim * dtype.itemsize), dim)
            rows = [
                (f"{name}, {pairing}", "in-place scale", _rotate(x, pairing=pairing))
                for pairing in ("half", "interleaved")
            ]
            yield sizes.sample(dim, whole.using(x.nbytes), x.size, rows)


def _threads(sizes: Sizes) -> Iterator[Sample]:
    """8 heads from 16 tokens on, on one thread and on two, of NumPy's functions and of torch's."""
    dtype = DTYPES["float32"]
    row = 8 * HEAD_DIM * dtype.itemsize
    whole = Room(dtype, sizes.buffer(FROM_MEMORY))
    for threads in (1, 2):
        torch.set_num_threads(threads)
        pn.set_num_threads(threads)
        for tokens in (1 << n for n in range(4, 16)):
            if tokens * row > whole.nbytes:
                break
            x = whole.array(1, 8, tokens, HEAD_DIM)
            suffix = f"{threads} thread{'s' * (threads > 1)}"
            rows = [
                (f"NumPy, {suffix}", "in-place scale", _rotate(x)),
                (f"torch, {suffix}", "in-place scale", _rotate(torch.from_numpy(x))),
            ]
            yield sizes.sample(tokens, whole.using(x.nbytes), x.size, rows, threads)
    torch.set_num_threads(1)
    pn.set_num_threads(1)


_DISTANCES = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 3584, 3840, 3968, 4032, 4064, 4080)


def _distance(nbytes: int, sizes: Sizes) -> Iterator[Sample]:
    """From the input to the output, modulo 4 KiB; 8 heads."""
    nbytes = sizes.buffer(nbytes)
    for name in ("float32", "bfloat16"):
        dtype = DTYPES[name]
        shape = (1, 8, nbytes // (8 * HEAD_DIM * dtype.itemsize), HEAD_DIM)
        for distance in sizes.some(_DISTANCES):
            place = -(-nbytes // 4096) * 4096 + distance
            room = Room(dtype, place + nbytes).using(nbytes, place)
            x, out = room.array(*shape), room.result(*shape)
            rows = [
                (f"{name}, {pairing}", "copy", _rotate(x, out, pairing=pairing))
                for pairing in ("half", "interleaved")
            ]
            yield sizes.sample(distance, room, x.size, rows)


def _stride(nbytes: int, sizes: Sizes) -> Iterator[Sample]:
    """From one head to the next, modulo 4 KiB, in place; 8 heads with gaps between them."""
    nbytes = sizes.buffer(nbytes)
    for name in ("float32", "bfloat16"):
        dtype = DTYPES[name]
        tokens = nbytes // (8 * HEAD_DIM * dtype.itemsize)
        for distance in sizes.some(_DISTANCES):
            step = tokens * HEAD_DIM + distance // dtype.itemsize
            room = Room(dtype, 8 * step * dtype.itemsize)
            x = room.array(8, step)[:, : tokens * HEAD_DIM].reshape(8, tokens, HEAD_DIM)[None]
            rows = [
                (f"{name}, {pairing}", "in-place scale", _rotate(x, pairing=pairing))
                for pairing in ("half", "interleaved")
            ]
            yield sizes.sample(distance, room.using(x.size * dtype.itemsize), x.size, rows)


CURVES = {
    "length": Curve("one head x 64", "tokens", functools.partial(_length, 1)),
    "length-heads": Curve("8 heads x 64", "tokens", functools.partial(_length, 8)),
    "threads": Curve("rotary in place, 8 heads x 128, float32", "tokens", _threads),
    "heads": Curve("rotary in place, 128 MiB", "heads", functools.partial(_heads, FROM_MEMORY)),
    "heads-cached": Curve(
        "rotary in place, 256 KiB in cache", "heads", functools.partial(_heads, IN_CACHE)
    ),
    "dim": Curve(
        "rotary in place, 8 heads, 128 MiB", "head_dim", functools.partial(_dim, FROM_MEMORY)
    ),
    "dim-cached": Curve(
        "rotary in place, 8 heads, 256 KiB in cache", "head_dim", functools.partial(_dim, IN_CACHE)
    ),
    "distance": Curve(
        "rotary out=, 8 heads x 128, 128 MiB",
        "bytes from input to output, modulo 4096",
        functools.partial(_distance, FROM_MEMORY),
        logarithmic=False,
    ),
    "distance-cached": Curve(
        "rotary out=, 8 heads x 128, 256 KiB in cache",
        "bytes from input to output, modulo 4096",
        functools.partial(_distance, IN_CACHE),
        logarithmic=False,
    ),
    "stride-cached": Curve(
        "rotary in place, 8 heads x 128, 256 KiB in cache",
        "bytes from head to head, modulo 4096",
        functools.partial(_stride, IN_CACHE),
        logarithmic=False,
    ),
}


# ------------------------------------------------------------------------------------- measurement


def _point(
    sample: Sample, result: harness.Result, contestant: Contestant, times: list[float]
) -> Any:
    seconds = statistics.median(times)
    kind = str(contestant.limit)
    variant, limit = result.limit(kind)
    if sample.case.threads > 1:  # whatever is faster
        limit = min(limit, limit * result.limit_gain(kind))
    return {
        "x": sample.x,
        "nanoseconds": round(seconds / sample.elements * 1e9, 5),
        "limit_nanoseconds": round(limit / sample.elements * 1e9, 5),
        "limit": f"{kind}: {variant}",
        "cores_used_by_others": result.others,
    }


def measure(curve: Curve, sizes: Sizes, rounds: int, shown: Progress) -> dict[str, Any]:
    """All points of a curve: by line, in the order of x."""
    lines: dict[str, list[Any]] = {}
    for sample in curve.samples(sizes):
        shown.begin(f"{curve.title}: {sample.x:,} {curve.axis}")
        few = sample.case.buffers[0].nbytes > LARGE  # they take long and vary little
        result = harness.measure(sample.case, 1 if few else rounds)
        for contestant, times in result.rows:
            points = lines.setdefault(contestant.name, [])
            points.append(_point(sample, result, contestant, times))
    return {
        "title": curve.title,
        "axis": curve.axis,
        "logarithmic": curve.logarithmic,
        "lines": lines,
    }


def cliffs(curve: dict[str, Any]) -> list[str]:
    """Steps at which the time per element rises, and the memory limit's does not, in words."""
    found = []
    for name, points in curve["lines"].items():
        for before, after in itertools.pairwise(points):
            rise = after["nanoseconds"] / before["nanoseconds"]
            of_limit = after["limit_nanoseconds"] / before["limit_nanoseconds"]
            if rise / max(1.0, of_limit) >= CLIFF:
                found.append(
                    f"{name}: {rise:.2f} x from {before['x']:,} to {after['x']:,} "
                    f"{curve['axis']}, the limit {of_limit:.2f} x"
                )
    return found


def as_text(name: str, curve: dict[str, Any]) -> str:
    """A table: x in rows; for each line nanoseconds an element, and the multiple of the limit."""
    lines = curve["lines"]
    text = [f"{name}: {curve['title']}; picoseconds an element, and the multiple of the limit"]
    text.append("  !: other processes used over a tenth of a core meanwhile")
    text += [f"  {letter}  {line}" for letter, line in zip(_LETTERS, lines, strict=False)]
    heading = "".join(f"{letter:>16}" for letter, _ in zip(_LETTERS, lines, strict=False))
    text.append(f"  {curve['axis'][:14]:>14}{heading}")
    by_line = [{point["x"]: point for point in points} for points in lines.values()]
    for x in sorted({x for points in by_line for x in points}):
        cells = []
        for points in by_line:
            if point := points.get(x):
                multiple = point["nanoseconds"] / point["limit_nanoseconds"]
                mark = "!" if (point["cores_used_by_others"] or 0.0) > report.QUIET else " "
                cells.append(f"{1e3 * point['nanoseconds']:8.1f}{mark}{multiple:5.2f} x")
            else:
                cells.append("-")
        text.append(f"  {x:>14,}" + "".join(f"{cell:>16}" for cell in cells))
    text += [f"  cliff: {cliff}" for cliff in cliffs(curve)]
    return "\n".join(text) + "\n"


_LETTERS = "abcdefghijklmnop"


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.growth", description=__doc__
    )
    parser.add_argument(
        "--curve",
        action="append",
        choices=CURVES,
        help="only this one; given again, these. Figures of the others are kept",
    )
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument(
        "--largest",
        type=float,
        default=4.0,
        metavar="GIB",
        help="the largest buffer, and never more than a third of the memory that is free "
        "(default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="few points, tiny: does it run?")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        help="the figures (default: benchmarks/results/growth-PROCESSOR.json); the text and a "
        "picture are written beside them",
    )
    return parser.parse_args(arguments)


def largest_buffer(wanted: int) -> int:
    """Bytes that can be had beside a result of as many, and leave the machine something."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return wanted
    available = re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo.read_text("ascii"), re.M)
    return min(wanted, int(available[1]) * KIB // 3) if available else wanted


def main(arguments: list[str] | None = None) -> None:
    options = _arguments(arguments)
    sizes = Sizes(largest_buffer(int(options.largest * GIB)), options.quick)
    print(f"the largest buffer: {sizes.largest / GIB:.2f} GiB")
    machine = report.machine()
    path = options.json or RESULTS / f"growth-{report.machine_name(machine)}.json"
    if options.quick and not options.json:
        sys.exit(
            "python -m benchmarks.studies.growth: --quick wants --json: its times are no results"
        )
    chosen = options.curve or list(CURVES)
    found: dict[str, Any] = {}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))["curves"]
    torch.set_num_threads(1)
    pn.set_num_threads(1)
    with Progress(len(chosen)) as shown:
        for name in chosen:
            found[name] = measure(CURVES[name], sizes, options.rounds, shown)
            found[name] |= {"date": machine["date"], "commit": machine["commit"]}
            shown.advance()
            shown.say(as_text(name, found[name]))
    curves = {name: found[name] for name in CURVES if name in found}
    figures = {"machine": machine, "quick": options.quick, "curves": curves}
    path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = [report.machine_text(machine), *(as_text(*entry) for entry in curves.items())]
    path.with_suffix(".txt").write_text("\n".join(text), encoding="utf-8")
    print(report.draw(path))


if __name__ == "__main__":
    main()
