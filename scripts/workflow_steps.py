"""Run the steps of a workflow's job here: those that are commands; actions are named and left out.

    python scripts/workflow_steps.py release sdist GITHUB_REF_NAME=v0.1.0

Takes a fresh clone of the last commit and a fresh virtual environment, first on PATH. Conditions of
steps are printed and taken to hold. A step that fails ends the run with its status.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def steps(workflow: str, job: str) -> list[dict[str, str]]:
    path = ROOT / ".github" / "workflows" / f"{workflow}.yml"
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    if job not in jobs:
        raise SystemExit(f"{workflow}.yml has the jobs {', '.join(jobs)}, not {job}")
    return list(jobs[job]["steps"])


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 2 or not all("=" in each for each in arguments[2:]):
        raise SystemExit((__doc__ or "").strip())
    chosen = steps(*arguments[:2])
    with tempfile.TemporaryDirectory(prefix="posenc-workflow-") as scratch:
        clone, environment = Path(scratch) / "clone", Path(scratch) / "environment"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        variables = os.environ | dict(each.split("=", 1) for each in arguments[2:])
        variables["PATH"] = f"{environment / 'bin'}{os.pathsep}{variables['PATH']}"
        for step in chosen:
            name = step.get("name") or step.get("uses") or step["run"].splitlines()[0]
            condition = f" (if {step['if']})" if "if" in step else ""
            if "run" not in step:
                print(f"==> left out: {name}{condition}", flush=True)
                continue
            if "${{" in step["run"]:
                raise SystemExit(f"{name}: an expression of GitHub's in a command: {step['run']}")
            print(f"==> {name}{condition}", flush=True)
            command = ["bash", "-eo", "pipefail", "-c", step["run"]]
            done = subprocess.run(command, cwd=clone, env=variables, check=False)
            if done.returncode:
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
