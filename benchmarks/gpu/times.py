"""Time this library, its peers and a copy on a GPU; a table on the output, figures in a file.

    python -m benchmarks.gpu.times --results FILE.json

Cases that the file has of the same package are kept, those that it lacks are timed first.
"""

from __future__ import annotations

import argparse
import gc
import math
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.clock.harness import Case
from benchmarks.figures.report import version
from benchmarks.gpu import device, record, rows, timing
from benchmarks.gpu.steps import MORE_TO_DO
from posenc_native import configuration

_PACKAGES = ("posenc-native", "torch", "triton", "transformers", "liger-kernel", "flash-attn",
             "vllm")  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.times", description=__doc__)
    parser.add_argument("--device", choices=list(device.DEVICES), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does all of it run?")
    parser.add_argument("--filter", default="", metavar="TEXT", help="cases that have TEXT")
    parser.add_argument("--again", action="store_true", help="also cases that have been timed")
    parser.add_argument(
        "--until", type=float, default=math.inf, metavar="TIME",
        help="seconds since 1970 after which no case is begun; the exit status is 75 then",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help="rounds of every case (default: 9; quick: 2)")
    parser.add_argument("--results", type=Path, required=True, help="the .json; a .txt beside it")
    parser.add_argument("--of", default="", help="what is timed: times of the same are kept")
    parser.add_argument("--commit", help="its commit, for people to read")
    options = parser.parse_args(arguments)

    on = device.DEVICES[options.device]()
    machine = {
        "date": record.now()[:10],
        **on.description(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "packages": {package: version(package) for package in _PACKAGES},
        "posenc_native": configuration.configuration(),
    }
    choices = rows.Options(options.quick, not options.quick, cache_bytes=machine["l2_bytes"])
    cases = rows.cases(choices, on.kind)

    def of_this() -> dict[str, Any]:
        recorded = record.load(options.results)["cases"]
        return {name: case for name, case in recorded.items() if case["of"] == options.of}

    known = of_this()
    wanted = [name for name in cases if options.filter in name]
    if not options.again:  # what has not been timed, then what failed: that may end the program
        wanted = sorted((name for name in wanted if "rows" not in known.get(name, {})),
                        key=lambda name: name in known)  # fmt: skip
    print(machine_text(machine) + HEADINGS, flush=True)
    clock, end = timing.Clock(on) if wanted else None, ""
    rounds = options.rounds or (2 if options.quick else 9)
    for name in wanted:
        if time.time() > options.until or end:
            break
        try:
            case, end = _case(clock, name, cases[name], rounds)
        except KeyboardInterrupt:
            end = f"interrupted in {name}"
            break
        case |= {"of": options.of, "date": record.now(), "commit": options.commit}
        print(as_text(case), flush=True)
        # After every case: what stops the run half way leaves what there is.
        found = record.load(options.results) | {"machine": machine, "quick": options.quick}
        found["cases"][name] = case
        record.save(options.results, found)
        text = "\n".join(map(as_text, found["cases"].values()))
        options.results.with_suffix(".txt").write_text(
            machine_text(machine) + HEADINGS + "\n" + text, encoding="utf-8"
        )

    known = of_this()
    failed = [name for name in cases if "not_run" in known.get(name, {})]
    timed = [name for name in cases if "rows" in known.get(name, {})]
    goals = [row["goal"]["met"] for name in timed for row in known[name]["rows"] if "goal" in row]
    print(f"cases: {len(timed)} of {len(cases)} timed, {len(failed)} failed; "
          f"goals missed: {goals.count(False)}")  # fmt: skip
    if end:
        sys.exit(f"times: {end}")
    if len(timed) + len(failed) < len(cases):
        sys.exit(MORE_TO_DO)
    if failed:
        sys.exit(f"times: failed: {'; '.join(failed)}")


def _case(
    clock: Any, name: str, build: Callable[[], Case], rounds: int
) -> tuple[dict[str, Any], str]:
    """A case's figures, or why it has none; and why no other case can be timed, or nothing."""
    try:
        return timing.measure(clock, build(), rounds), ""
    except Exception as error:  # the device's memory may be too small for this case, or all is lost
        traceback.print_exc()
        end = device.lost(clock.on)
        if end:
            end = f"the device is lost since {name}: {end}; later cases cannot be timed"
        return {"case": name, "not_run": device.in_a_line(error)}, end
    finally:
        gc.collect()  # graphs of autograd and closures may be cycles
        torch.compiler.reset()  # or compiled kernels would be generalised to any shape
        if not device.lost(clock.on):
            clock.on.release_memory()


# --- For the eye

HEADINGS = f"{'':<46} {'device µs':>10} {'':>5} {'GB/s':>7} {'of copy':>8} {'host µs':>8}"


def machine_text(machine: dict[str, Any]) -> str:
    """The GPU and the versions."""
    packages = ", ".join(f"{name} {v}" for name, v in machine["packages"].items() if v)
    return (
        f"{machine['device']}, compute capability {machine['compute_capability']}, "
        f"{machine['multiprocessors']} multiprocessors, {machine['memory_bytes'] / 1e9:.0f} GB, "
        f"L2 {machine['l2_bytes'] >> 20} MiB, driver {machine['driver']}\n"
        f"CUDA {machine['cuda']}, Python {machine['python']}, {packages}\n"
        f"CUDA kernels: {machine['posenc_native'].get('CUDA kernels', 'unknown')}\n"
        f"{machine['date']}\n\n"
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
            verdict = "met" if goal["met"] else "MISSED"
            if "of_copy_at_least" in goal:
                line += f"   goal: {goal['of_copy_at_least']:.2f} of the copy, {verdict}"
            else:
                line += f"   goal: {goal['host_microseconds_at_most']:g} µs of host, {verdict}"
        elif row["contestant"] not in ("copy", "fill", "sum") and "times_ours" in row:
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


if __name__ == "__main__":
    main()
