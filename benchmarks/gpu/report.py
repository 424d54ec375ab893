"""What the times say: the GPU, a text table, JSON."""

from __future__ import annotations

import platform
import statistics
from datetime import datetime, timezone
from typing import Any

import torch

from benchmarks.figures import report
from benchmarks.gpu.device import Device
from benchmarks.gpu.timing import Goal, Ours, Result, Timed
from posenc_native import configuration

_PACKAGES = ("posenc-native", "torch", "triton", "transformers", "liger-kernel", "flash-attn",
             "vllm")  # fmt: skip


def machine(device: Device) -> dict[str, Any]:
    """What the times depend on."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        **device.description(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "packages": {package: report.version(package) for package in _PACKAGES},
        "posenc_native": configuration.configuration(),
    }


def _bandwidth(result: Result, row: Timed) -> float:
    """Bytes a second: what is read once, what is written once; a table reads nothing."""
    times = {"fill": 1, "read": 1, "two reads": 3}.get(row.contestant.limit or "", 2)
    return times * result.case.buffers[0].nbytes / row.seconds


def _goal(goal: Goal, of_copy: float, row: Timed) -> dict[str, Any]:
    if goal.unit == "x":
        return {"of_copy_at_least": 1 / goal.at_most, "met": of_copy * goal.at_most >= 1}
    return {
        "host_microseconds_at_most": goal.at_most,
        "met": row.host_seconds * 1e6 <= goal.at_most,
    }


def as_json(result: Result) -> dict[str, Any]:
    """A case with all its figures; its first row is the copy."""
    copied = _bandwidth(result, result.rows[0])
    best = min((r.seconds for r in result.rows if r.contestant.ours), default=None)
    rows = []
    for row in result.rows:
        of_copy = _bandwidth(result, row) / copied
        figures: dict[str, Any] = {
            "contestant": row.contestant.name,
            "ours": row.contestant.ours,
            "mode": row.contestant.mode,
            "microseconds": row.seconds * 1e6,
            "quartiles": [s * 1e6 for s in _quartiles(row.device_seconds)],
            "host_microseconds": row.host_seconds * 1e6,
            "samples": len(row.device),
            "samples_not_clean": row.not_clean,
            "calls_per_sample": row.calls,
            "gigabytes_per_second": _bandwidth(result, row) / 1e9,
            "of_copy": of_copy,
        }
        if best is not None and not row.contestant.ours:
            figures["times_ours"] = row.seconds / best
        if isinstance(row.contestant, Ours) and row.contestant.goal:
            figures["goals"] = [_goal(row.contestant.goal, of_copy, row)]
        rows.append(figures)
    return {
        "case": result.case.name,
        "bytes": result.case.buffers[0].nbytes,
        "buffer_sets": len(result.case.buffers),
        "rows": rows,
        "skipped": [
            {"contestant": s.name, "mode": s.mode, "reason": s.reason} for s in result.skipped
        ],
    }


def _quartiles(samples: list[float]) -> list[float]:
    if len(samples) < 2:
        return [samples[0], samples[0]]
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return [low, high]


def goals_missed(cases: list[dict[str, Any]]) -> int:
    """How many goals of rows are not reached."""
    rows = [row for case in cases for row in case.get("rows", ())]
    return sum(not goal["met"] for row in rows for goal in row.get("goals", ()))


HEADINGS = f"{'':<46} {'device µs':>10} {'':>5} {'GB/s':>7} {'of copy':>8} {'host µs':>8}"


def as_text(case: dict[str, Any]) -> str:
    """One case of as_json, with when and of what it was timed, for the eye."""
    when = f"{case['date']}, {case['commit'] or 'commit unknown'}"
    if reason := case.get("not_run"):
        return f"{case['case']}; {when}\n  not run: {reason}\n"
    sets = case["buffer_sets"]
    many = f"{sets} buffer sets in turn" if sets > 1 else "in cache"
    lines = [f"{case['case']}: {case['bytes'] / 1e6:.3g} MB, {many}; {when}"]
    for row in case["rows"]:
        name = ("> " if row["ours"] else "  ") + row["contestant"]
        width = (row["quartiles"][1] - row["quartiles"][0]) / 2 / row["microseconds"]
        line = (
            f"  {name:<34} {row['mode']:<9} {row['microseconds']:>10.1f} ±{width:>4.0%} "
            f"{row['gigabytes_per_second']:>7.0f} {row['of_copy']:>8.2f} "
            f"{row['host_microseconds']:>8.1f}"
        )
        for goal in row.get("goals", ()):
            verdict = "met" if goal["met"] else "MISSED"
            if "of_copy_at_least" in goal:
                line += f"   goal: {goal['of_copy_at_least']:.2f} of the copy, {verdict}"
            else:
                line += f"   goal: {goal['host_microseconds_at_most']:g} µs of host, {verdict}"
        if (
            "goals" not in row
            and row["contestant"] not in ("copy", "fill", "sum")
            and "times_ours" in row
        ):
            line += f"   {row['times_ours']:.1f} x ours"
        if many := row["samples_not_clean"]:
            left_out = "left out" if many < row["samples"] else "no other"
            line += f"   ! {many} samples have time of the host in them: {left_out}"
        lines.append(line)
    lines += [
        f"    {row['contestant']:<34} {row['mode']:<9} skipped: {row['reason']}"
        for row in case["skipped"]
    ]
    return "\n".join(lines) + "\n"


def machine_text(description: dict[str, Any]) -> str:
    """The GPU and the versions, for the eye."""
    first = (
        f"{description['device']}, compute capability {description['compute_capability']}, "
        f"{description['multiprocessors']} multiprocessors, "
        f"{description['memory_bytes'] / 1e9:.0f} GB, L2 {description['l2_bytes'] >> 20} MiB, "
        f"driver {description['driver']}"
    )
    packages = ", ".join(f"{name} {v}" for name, v in description["packages"].items() if v)
    lines = [first, f"CUDA {description['cuda']}, Python {description['python']}, {packages}"]
    lines.append(f"CUDA kernels: {description['posenc_native'].get('CUDA kernels', 'unknown')}")
    lines.append(description["date"])
    return "\n".join(lines) + "\n"
