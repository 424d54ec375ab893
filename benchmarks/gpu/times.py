"""Time this library, its peers and a copy on a device; a table on the output, figures in a file.

    python -m pytest -s -p benchmarks.gpu.resume --progress FILE --results FILE.json \\
        benchmarks/gpu/times.py

A case is a test, so that the next call goes on at the first one that has not been timed. A goal
that is missed is no failure: the table says it. One of our rows that has less than SLOWER of the
best that is recorded of it on this device is one.
"""

from __future__ import annotations

import gc
import platform
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.figures.report import version
from benchmarks.gpu import device, record, rows, timing
from posenc_native.engines import configuration

# Times of one row lie within two hundredths of each other on one GPU, from day to day.
SLOWER = 0.9

_PACKAGES = ("posenc-native", "torch", "triton", "transformers", "liger-kernel", "flash-attn",
             "vllm")  # fmt: skip


@pytest.fixture(scope="session")
def machine(on: device.Cuda) -> dict[str, Any]:
    """The device and the versions."""
    return {
        "date": record.now()[:10],
        **on.description(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "packages": {package: version(package) for package in _PACKAGES},
        "posenc_native": configuration.configuration_texts(),
    }


@pytest.fixture(scope="session")
def clock(on: device.Cuda) -> timing.Clock:
    return timing.Clock(on)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("name", rows.cases(metafunc.config.getoption("quick")))


def test_times(
    name: str, clock: timing.Clock, machine: dict[str, Any], pytestconfig: pytest.Config
) -> None:
    quick, path = pytestconfig.getoption("quick"), pytestconfig.getoption("results")
    options = rows.Options(quick, not quick, cache_bytes=machine["l2_bytes"])
    case = _measured(clock, name, options)
    case |= {"date": record.now(), "commit": pytestconfig.getoption("commit")}
    print(f"\n{as_text(case)}", flush=True)
    keep(path, machine, quick, case)
    if "not_run" in case:
        pytest.fail(case["not_run"], pytrace=False)
    if slower := [f"{row['contestant']}, {row['mode']}" for row in case["rows"] if is_slower(row)]:
        pytest.fail(f"slower than recorded: {'; '.join(slower)}", pytrace=False)


def _measured(clock: timing.Clock, name: str, options: rows.Options) -> dict[str, Any]:
    """A case's figures, or why it has none. An error goes no further: it would hold the memory."""
    try:
        case = rows.build(name, options, clock.on.kind)
        return timing.measure(clock, case, 2 if options.quick else 9)
    except Exception as error:  # the device's memory may be too small for this case
        traceback.print_exc()
        return {"case": name, "not_run": device.in_a_line(error)}
    finally:
        gc.collect()  # graphs of autograd and closures may be cycles
        torch.compiler.reset()  # or compiled kernels would be generalized to any shape
        if not device.lost(clock.on):
            clock.on.release_memory()


def keep(path: Path, machine: dict[str, Any], quick: bool, case: dict[str, Any]) -> None:
    """Record a case among those of earlier calls, as figures and as text."""
    found = record.load(path) | {"machine": machine, "quick": quick}
    if not quick:
        compare(case, found["cases"].get(case["case"], {}))
    found["cases"][case["case"]] = case
    record.save(path, found)
    cases = "\n".join(map(as_text, found["cases"].values()))
    path.with_suffix(".txt").write_text(f"{_head(machine)}\n{cases}", encoding="utf-8")


def compare(case: dict[str, Any], before: dict[str, Any]) -> None:
    """Each of our rows has the best of what is recorded of it, this time included."""
    recorded = {(row["contestant"], row["mode"]): row for row in before.get("rows", ())}
    for row in case.get("rows", ()):
        if row["ours"]:
            last = recorded.get((row["contestant"], row["mode"]), row)
            best = last.get("best_of_copy", last["of_copy"])
            row["best_of_copy"] = max(best, row["of_copy"])


def is_slower(row: dict[str, Any]) -> bool:
    return bool(row["of_copy"] < SLOWER * row.get("best_of_copy", 0))


def _head(machine: dict[str, Any]) -> str:
    """The device, the versions, and what the columns are."""
    packages = ", ".join(f"{name} {v}" for name, v in machine["packages"].items() if v)
    return (
        f"{machine['device']}, compute capability {machine['compute_capability']}, "
        f"{machine['multiprocessors']} multiprocessors, {machine['memory_bytes'] / 1e9:.0f} GB, "
        f"L2 {machine['l2_bytes'] >> 20} MiB, driver {machine['driver']}\n"
        f"CUDA {machine['cuda']}, Python {machine['python']}, {packages}\n"
        f"CUDA kernels: {machine['posenc_native'].get('CUDA kernels', 'unknown')}\n"
        f"{machine['date']}\n\n"
        f"{'':<46} {'device µs':>10} {'':>5} {'GB/s':>7} {'of copy':>8} {'host µs':>8}\n"
    )


def as_text(case: dict[str, Any]) -> str:
    """A case, with when and of what it was timed."""
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
        if goal := row.get("goal"):
            line += f"   goal: {goal['is']}, {'met' if goal['met'] else 'MISSED'}"
        if is_slower(row):
            line += f"   SLOWER: was {row['best_of_copy']:.2f}"
        if "times_ours" in row and row["contestant"] not in ("copy", "fill", "sum"):
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
