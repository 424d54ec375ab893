"""`python -m benchmarks.studies.growth`: time per element as work grows, beside the memory limit's.

Curves against length, heads, head_dim, threads and the distance of buffers modulo 4 KiB. A cliff is
a step at which the time per element rises by 1.3 and more and that of the memory limit does not.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import re
import statistics
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

import posenc_native as pn
from benchmarks import command
from benchmarks.clock import harness
from benchmarks.clock.harness import Case, Contestant
from benchmarks.clock.progress import Progress
from benchmarks.figures import records, report
from benchmarks.peers.contestants import BASE, HEAD_DIM

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
TWO = ("float32", "bfloat16")
PAIRINGS = ("half", "interleaved")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE = 4 * KIB
# In the second-level cache of any processor of today, and in no cache.
IN_CACHE, FROM_MEMORY, LARGE = 256 * KIB, 128 * MIB, 512 * MIB
CLIFF = 1.3


# ------------------------------------------------------------------------------------------ buffers


class Room:
    """Memory full of normally distributed numbers, from the beginning of a page on: a buffer set.

    Its first `nbytes` are worked on; results begin `distance` behind a page of their own.
    """

    def __init__(self, dtype: Any, nbytes: int) -> None:
        self.dtype, self.nbytes, self.distance = np.dtype(dtype), nbytes, 0
        self._behind = -(-nbytes // PAGE) * PAGE
        size = 2 * (self._behind + PAGE)
        room = np.empty(size + PAGE, np.uint8)
        begin = -room.ctypes.data % PAGE
        self._bytes = room[begin : begin + size]
        some = np.random.default_rng(0).standard_normal(MIB, np.float32).astype(dtype)
        numbers = some.view(np.uint8)
        for begin in range(0, size, len(numbers)):
            self._bytes[begin : begin + len(numbers)] = numbers[: size - begin]

    def using(self, nbytes: int) -> Room:
        """The same memory, of which so much is worked on."""
        room = copy.copy(self)
        room.nbytes = nbytes
        return room

    @property
    def work(self) -> int:
        return int(self._bytes.ctypes.data)

    @property
    def out(self) -> int:
        return self.work + self._behind + self.distance

    def array(self, *shape: int) -> np.ndarray:
        """What is worked on; -1 is as much as there is."""
        return self._view(0, shape)

    def result(self, *shape: int) -> np.ndarray:
        return self._view(self._behind + self.distance, shape)

    def _view(self, begin: int, shape: tuple[int, ...]) -> np.ndarray:
        count = math.prod(shape)
        if count < 0:
            count = self.nbytes // self.dtype.itemsize // -count * -count
        nbytes = count * self.dtype.itemsize
        return self._bytes[begin : begin + nbytes].view(self.dtype).reshape(shape)


# ------------------------------------------------------------------------------------------- curves

# A line's name, the memory limit of its work, the call.
Row = tuple[str, str, Callable[[], object]]


@dataclass(frozen=True)
class Curve:
    """Some lines over one axis: `rows` has what is worked on at a point, and what works on it."""

    title: str
    axis: str
    points: Sequence[int]
    rows: Callable[[Room, str, int], tuple[np.ndarray, list[Row]]]
    nbytes: int = FROM_MEMORY
    elements: int = 0  # of a token; 0: as many bytes at every point
    dtypes: Sequence[str] = TWO
    threads: Sequence[int] = (1,)
    logarithmic: bool = True


def _rotate(x: Any, out: Any = None, **options: Any) -> Callable[[], object]:
    inv_freq: Any = pn.rotary.rotary_frequencies(x.shape[-1], BASE)[0]
    if isinstance(x, torch.Tensor):
        inv_freq = torch.from_numpy(inv_freq)
    out = x if out is None else out
    return lambda: pn.apply_rotary(x, None, inv_freq, out=out, **options)


def _by_pairing(name: str, limit: str, x: Any, out: Any = None) -> list[Row]:
    return [(f"{name}, {pairs}", limit, _rotate(x, out, pairing=pairs)) for pairs in PAIRINGS]


def _length(heads: int, room: Room, name: str, tokens: int) -> tuple[np.ndarray, list[Row]]:
    # Inputs and results as far from each other, modulo 4 KiB, as they can be: see `_distance`.
    room.distance = PAGE // 2
    shape = (1, heads, tokens, 64)
    x, out = room.array(*shape), room.result(*shape)
    rows = [
        (f"rotary, {name}, in place", "in-place scale", _rotate(x)),
        (f"rotary, {name}, out=", "copy", _rotate(x, out)),
    ]
    if heads == 1:
        table = functools.partial(pn.sinusoidal, tokens, 64, out=out[0, 0])
        add = functools.partial(pn.add_sinusoidal, x, out=x)
        rows += [
            (f"sinusoidal table, {name}, out=", "fill", table),
            (f"add_sinusoidal, {name}, in place", "in-place scale", add),
        ]
    return x, rows


def _heads(room: Room, name: str, heads: int) -> tuple[np.ndarray, list[Row]]:
    """As many bytes whatever the number of heads."""
    x, inside = room.array(1, heads, -1, HEAD_DIM), room.array(1, -1, heads, HEAD_DIM)
    return x, [
        (f"{name}, bhsd", "in-place scale", _rotate(x)),
        (f"{name}, bshd", "in-place scale", _rotate(inside, layout="bshd")),
    ]


def _dim(room: Room, name: str, dim: int) -> tuple[np.ndarray, list[Row]]:
    """As many bytes whatever the head_dim; 8 heads."""
    x = room.array(1, 8, -1, dim)
    return x, _by_pairing(name, "in-place scale", x)


def _threads(room: Room, name: str, tokens: int) -> tuple[np.ndarray, list[Row]]:
    """Of NumPy's functions and of torch's; 8 heads."""
    x, threads = room.array(1, 8, tokens, HEAD_DIM), pn.get_num_threads()
    suffix = f"{threads} thread{'s' * (threads > 1)}"
    return x, [
        (f"NumPy, {suffix}", "in-place scale", _rotate(x)),
        (f"torch, {suffix}", "in-place scale", _rotate(torch.from_numpy(x))),
    ]


def _distance(room: Room, name: str, distance: int) -> tuple[np.ndarray, list[Row]]:
    """From the input to the output, modulo 4 KiB; 8 heads."""
    room.distance = distance
    x, out = (of(1, 8, -1, HEAD_DIM) for of in (room.array, room.result))
    return x, _by_pairing(name, "copy", x, out)


def _stride(room: Room, name: str, distance: int) -> tuple[np.ndarray, list[Row]]:
    """From one head to the next, modulo 4 KiB, in place; 8 heads with gaps between them."""
    size = room.array(8, -1, HEAD_DIM).shape[1] * HEAD_DIM
    apart = room.array(8, size + distance // room.dtype.itemsize)
    x = apart[:, :size].reshape(1, 8, -1, HEAD_DIM)
    return x, _by_pairing(name, "in-place scale", x)


_POWERS = [1 << n for n in range(4, 25)]
_HEADS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 40, 48, 64)
_DIMS = (2, 4, 8, 16, 18, 24, 32, 40, 48, 64, 80, 96, 100, 112, 128, 160, 192, 256)
_DISTANCES = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 3584, 3840, 3968, 4032, 4064, 4080)
_OF_DIM = functools.partial(Curve, axis="head_dim", points=_DIMS, rows=_dim, dtypes=tuple(DTYPES))
_OF_HEADS = functools.partial(Curve, axis="heads", points=_HEADS, rows=_heads)
_OF_DISTANCE = functools.partial(
    Curve,
    axis="bytes from input to output, modulo 4096",
    points=_DISTANCES,
    rows=_distance,
    logarithmic=False,
)
CURVES = {
    "length": Curve(
        "one head x 64", "tokens", _POWERS, functools.partial(_length, 1), 4 * GIB, 64
    ),
    "length-heads": Curve(
        "8 heads x 64", "tokens", _POWERS[:-3], functools.partial(_length, 8), 4 * GIB, 8 * 64
    ),
    "threads": Curve(
        "rotary in place, 8 heads x 128, float32", "tokens", _POWERS[:12], _threads,
        elements=8 * HEAD_DIM, dtypes=("float32",), threads=(1, 2),
    ),
    "heads": _OF_HEADS("rotary in place, 128 MiB"),
    "heads-cached": _OF_HEADS("rotary in place, 256 KiB in cache", nbytes=IN_CACHE),
    "dim": _OF_DIM("rotary in place, 8 heads, 128 MiB"),
    "dim-cached": _OF_DIM("rotary in place, 8 heads, 256 KiB in cache", nbytes=IN_CACHE),
    "distance": _OF_DISTANCE("rotary out=, 8 heads x 128, 128 MiB"),
    "distance-cached": _OF_DISTANCE(
        "rotary out=, 8 heads x 128, 256 KiB in cache", nbytes=IN_CACHE
    ),
    "stride-cached": _OF_DISTANCE(
        "rotary in place, 8 heads x 128, 256 KiB in cache", nbytes=IN_CACHE, rows=_stride,
        axis="bytes from head to head, modulo 4096",
    ),
}  # fmt: skip


# ------------------------------------------------------------------------------------- measurement


def _point(
    at: int, elements: int, result: harness.Result, contestant: Contestant, times: list[float]
) -> dict[str, Any]:
    seconds = statistics.median(times)
    kind = str(contestant.limit)
    variant, limit = result.limit(kind)
    if result.case.threads > 1:  # whatever is faster
        limit = min(limit, limit * result.limit_gain(kind))
    return {
        "x": at,
        "nanoseconds": round(seconds / elements * 1e9, 5),
        "limit_nanoseconds": round(limit / elements * 1e9, 5),
        "limit": f"{kind}: {variant}",
        "cores_used_by_others": result.others,
    }


def measure(
    curve: Curve, largest: int, rounds: int, shown: Progress, *, quick: bool = False
) -> dict[str, Any]:
    """All points of a curve that a buffer of `largest` bytes has room for: by line, in order.

    `quick`: few points, tiny.
    """
    lines: dict[str, list[Any]] = {}
    nbytes = min(curve.nbytes, largest, 64 * KIB if quick else largest)
    for threads, name in itertools.product(curve.threads, curve.dtypes):
        torch.set_num_threads(threads)
        pn.set_num_threads(threads)
        room = Room(DTYPES[name], nbytes)
        for at in curve.points[: 2 if quick else None]:
            if at * curve.elements * room.dtype.itemsize > nbytes:
                break
            shown.begin(f"{curve.title}: {at:,} {curve.axis}")
            x, rows = curve.rows(room, name, at)
            # So many that neither what others have left in the caches nor waking a thread counts.
            calls = 2 if quick else max(1, 32 * MIB * threads // x.nbytes)
            case = Case(
                f"{at:,}: {x.nbytes:,} bytes",
                threads,
                [room.using(x.nbytes)],
                [
                    Contestant(line, "", lambda b, call=call: call(), limit, ours=True, calls=calls)
                    for line, limit, call in rows
                ],
                in_cache=calls > 1,
            )
            # What is large takes long and varies little.
            result = harness.measure(case, 1 if x.nbytes > LARGE else rounds)
            for contestant, times in result.rows:
                points = lines.setdefault(contestant.name, [])
                points.append(_point(at, x.size, result, contestant, times))
    about = {"title": curve.title, "axis": curve.axis, "logarithmic": curve.logarithmic}
    return {**about, "lines": lines}


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
    lines = dict(zip(string.ascii_lowercase, curve["lines"], strict=False))
    columns = [{point["x"]: point for point in points} for points in curve["lines"].values()]
    rows = [[curve["axis"][:14], *lines]]
    rows += [
        [f"{x:,}", *(_cell(column.get(x)) for column in columns)]
        for x in sorted({x for column in columns for x in column})
    ]
    text = [
        f"{name}: {curve['title']}; picoseconds an element, and the multiple of the limit",
        "  !: other processes used over a tenth of a core meanwhile",
        *(f"  {letter}  {line}" for letter, line in lines.items()),
        *report.lined_up(rows, words=0),
        *(f"  cliff: {cliff}" for cliff in cliffs(curve)),
    ]
    return "\n".join(text) + "\n"


def _cell(point: dict[str, Any] | None) -> str:
    if point is None:
        return "-"
    multiple = point["nanoseconds"] / point["limit_nanoseconds"]
    mark = "!" if (point["cores_used_by_others"] or 0.0) > report.QUIET else " "
    return f"{1e3 * point['nanoseconds']:.1f}{mark}{multiple:5.2f} x"


def largest_buffer(wanted: int) -> int:
    """Bytes that can be had beside a result of as many, and leave the machine something."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return wanted
    available = re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo.read_text("ascii"), re.M)
    return min(wanted, int(available[1]) * KIB // 3) if available else wanted


def main(
    curve: Sequence[str] = (),
    rounds: int = 7,
    largest: float = 4.0,
    quick: bool = False,
    json: Path | None = None,
) -> None:
    """Measure and record curves.

    Args:
        curve: only this one; given again, these. Figures of the others are kept
        rounds: of every point (default: 7)
        largest: GiB of the largest buffer, and never more than a third of the memory that is free
            (default: 4)
        quick: few points, tiny: does it run?
        json: the figures (default: benchmarks/results/growth-PROCESSOR.json); the text and a
            picture are written beside them
    """
    if unknown := set(curve) - set(CURVES):
        raise command.Refused(f"no curve {', '.join(unknown)}; there are {', '.join(CURVES)}")
    if quick and not json:
        raise command.Refused("--quick wants --json: its times are no results")
    machine = report.machine()
    path = json or records.RESULTS / f"growth-{report.machine_name(machine)}.json"
    found = records.load(path)["curves"] if path.exists() else {}
    size = largest_buffer(int(largest * GIB))
    print(f"the largest buffer: {size / GIB:.2f} GiB")
    chosen = curve or list(CURVES)
    with Progress(len(chosen)) as shown:
        for name in chosen:
            measured = measure(CURVES[name], size, rounds, shown, quick=quick)
            found[name] = measured | {"date": machine["date"], "commit": machine["commit"]}
            shown.advance()
            shown.say(as_text(name, found[name]))
    curves = {name: found[name] for name in CURVES if name in found}
    text = [report.machine_text(machine), *(as_text(*entry) for entry in curves.items())]
    figures = {"machine": machine, "quick": quick, "curves": curves}
    print(records.keep(path, figures, "\n".join(text)))


if __name__ == "__main__":
    command.run(main)
