"""Runs of pytest that need not import torch first: each is a fork of a process that has.

Half of the time of a mutant was imports. Each run imports what is under test, and the tests: a
mutant of Python is in a file.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

# What most tests import, from the quickest on; what is not installed is left out.
MODULES = (
    "numpy", "ml_dtypes", "mpmath", "hypothesis", "torch", "torch._dynamo", "torch.export",
    "transformers", "transformers.modeling_utils", "matplotlib.pyplot",
)  # fmt: skip


class Warm:
    """Such a process, of the Python of a tree and in it."""

    def __init__(
        self,
        python: Path | str,
        tree: Path,
        environment: dict[str, str],
        modules: Sequence[str] = MODULES,
    ) -> None:
        self.process = subprocess.Popen(
            [python, "-m", "mutants.warm", *modules],
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, arguments: list[str], variables: dict[str, str], timeout: float) -> int | None:
        """The status of pytest with these variables besides; None if it took longer."""
        assert self.process.stdin
        assert self.process.stdout
        order = {"arguments": arguments, "variables": variables, "timeout": timeout}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def main() -> None:
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(nothing, descriptor)
            os.environ.update(order["variables"])
            status = 70
            try:
                status = int(pytest.main(order["arguments"]))
            finally:
                os._exit(status)
        print(json.dumps(_wait(pid, order["timeout"])), flush=True)


def _wait(pid: int, timeout: float) -> int | None:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


if __name__ == "__main__":
    main()
