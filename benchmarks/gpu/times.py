"""Time this library, its peers and a copy on a GPU; a table on the output, figures in a file.

    python -m benchmarks.gpu.times --results FILE.json

Cases that the file has of the same package are kept, those that it lacks are timed first.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import device, record, report, rows, timing
from benchmarks.gpu.checks import MORE_TO_DO


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.times", description=__doc__)
    device.add_argument(parser)
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

    on = device.named(options.device)
    machine = report.machine(on)
    choices = rows.Options(
        quick=options.quick, compiled=not options.quick, cache_bytes=machine["l2_bytes"]
    )
    everything = rows.cases(choices, on.kind)
    wanted = [(name, build) for name, build in everything if options.filter in name]
    waiting = wanted if options.again else _in_order(wanted, options)
    print(report.machine_text(machine) + "\n" + report.HEADINGS, flush=True)
    end, clock = "", timing.Clock(on) if waiting else None
    for name, build in waiting:
        if time.time() > options.until:
            break
        try:
            case, end = _case(clock, name, build, options.rounds or (2 if options.quick else 9))
        except KeyboardInterrupt:
            end = f"interrupted in {name}"
            break
        case |= {"of": options.of, "date": record.now(), "commit": options.commit}
        print(report.as_text(case), flush=True)
        figures = record.load(options.results) | {"machine": machine, "quick": options.quick}
        record.put_case(figures, case)
        _write(options.results, figures)
        if end:
            break

    recorded = record.load(options.results)["cases"]
    of_this = {case["case"]: case for case in recorded if case["of"] == options.of}
    timed = [name for name, _ in everything if "rows" in of_this.get(name, {})]
    failed = [name for name, case in of_this.items() if "not_run" in case]
    print(f"cases: {len(timed)} of {len(everything)} timed, {len(failed)} failed; "
          f"goals missed: {report.goals_missed(list(of_this.values()))}")  # fmt: skip
    if end:
        sys.exit(f"times: {end}")
    if len(timed) + len(failed) < len(everything):
        sys.exit(MORE_TO_DO)
    if failed:
        sys.exit(f"times: failed: {'; '.join(failed)}")


def _in_order(wanted: list[rows.Named], options: argparse.Namespace) -> list[rows.Named]:
    """What this package has not been timed at, then what failed: that may end the program."""
    known = {c["case"]: c for c in record.load(options.results)["cases"] if c["of"] == options.of}
    failed = [case for case in wanted if "not_run" in known.get(case[0], {})]
    return [case for case in wanted if case[0] not in known] + failed


def _case(clock: timing.Clock, name: str, build: Any, rounds: int) -> tuple[dict[str, Any], str]:
    """A case's figures, or why it has none; and why no other case can be timed, or nothing."""
    try:
        return report.as_json(timing.measure(clock, build(), rounds)), ""
    except Exception as error:  # the device's memory may be too small for this case, or all is lost
        traceback.print_exc()
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        end = device.lost(clock.on)
        if end:
            end = f"the device is lost since {name}: {end}; later cases cannot be timed"
        return {"case": name, "not_run": said}, end
    finally:
        gc.collect()  # graphs of autograd and closures may be cycles
        torch.compiler.reset()  # or compiled kernels would be generalised to any shape
        if not device.lost(clock.on):
            clock.on.release_memory()


def _write(path: Path, figures: dict[str, Any]) -> None:
    """After every case: what stops the run half way leaves what there is."""
    record.save(path, figures)
    text = [report.machine_text(figures["machine"]), report.HEADINGS]
    text += map(report.as_text, figures["cases"])
    path.with_suffix(".txt").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
