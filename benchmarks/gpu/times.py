"""Time this library, its peers and a copy on a GPU; a table on the output, figures in a file.

python -m benchmarks.gpu.times --out FOLDER
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import report, rows, timing


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.times", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does all of it run?")
    parser.add_argument("--filter", default="", metavar="TEXT", help="cases that have TEXT")
    parser.add_argument("--seconds", type=float, default=1e9, help="cases begun later are left out")
    parser.add_argument("--rounds", type=int, help="rounds of every case (default: 9; quick: 2)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the .json and .txt")
    options = parser.parse_args(arguments)

    began = time.monotonic()
    machine = report.machine(options.device)
    choices = rows.Options(
        quick=options.quick,
        compiled=not options.quick,
        cache_bytes=machine.get("l2_bytes", 1 << 20),
    )
    clock = timing.Clock(torch.device(options.device))
    text = [report.machine_text(machine), report.HEADINGS]
    print("\n".join(text), flush=True)
    cases: list[dict[str, Any]] = []
    for name, build in rows.cases(choices, options.device):
        if options.filter not in name:
            continue
        if time.monotonic() - began > options.seconds:
            cases.append({"case": name, "not_run": "out of time"})
        else:
            cases.append(_case(clock, name, build, options.rounds or (2 if options.quick else 9)))
        text.append(report.as_text(cases[-1]))
        print(text[-1], flush=True)
        _write(options.out, machine, options.quick, cases, text)
    print(f"goals missed: {report.goals_missed(cases)}")
    left_out = [case["case"] for case in cases if "not_run" in case]
    if left_out:
        raise SystemExit(f"not run: {'; '.join(left_out)}")


def _case(clock: timing.Clock, name: str, build: Any, rounds: int) -> dict[str, Any]:
    try:
        return report.as_json(timing.measure(clock, build(), rounds))
    except Exception as error:  # the device's memory may be too small for this case, or all is lost
        traceback.print_exc()
        return {"case": name, "not_run": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    finally:
        if clock.cuda:
            gc.collect()  # graphs of autograd and closures may be cycles
            torch.compiler.reset()  # or compiled kernels would be generalised to any shape
            torch.cuda.empty_cache()


def _write(
    folder: Path, machine: dict[str, Any], quick: bool, cases: list[Any], text: list[str]
) -> None:
    """After every case: what stops the run half way leaves what there is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.file_name(machine)}.json"
    figures = {"machine": machine, "quick": quick, "cases": cases}
    path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".txt").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
