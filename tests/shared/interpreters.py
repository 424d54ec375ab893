"""Fresh interpreters: what the environment, a signal or the end of memory does to one.

A program that waits for ever is told apart from a slow one: it is ended, with the stacks of all its
threads in its error output.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from places import SHARED

SECONDS = 240

# Before anything else in the program. The shared modules are for programs that want them.
WATCHDOG = f"""
import faulthandler, sys
faulthandler.dump_traceback_later({SECONDS - 10}, exit=True)
sys.path.append({str(SHARED)!r})
"""

# What only parts of the library need.
OPTIONAL = ("torch", "transformers", "matplotlib", "rich", "rich_argparse", "safetensors",
            "ml_dtypes")  # fmt: skip

# Before anything else in the program: none of these can be imported.
WITHOUT_OPTIONAL = f"""
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
import importlib.util
find_spec = importlib.util.find_spec
def found(name, *more):
    return None if name in {OPTIONAL} else find_spec(name, *more)
importlib.util.find_spec = found
sys.meta_path.insert(0, Blocked())
"""


def python(code: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter; a variable that is None is unset."""
    return _run(["-c", textwrap.dedent(code)], environment)


def output_of(code: str, **environment: str | None) -> str:
    """What the code prints. It ends well, and says nothing else."""
    return _output(python(code, **environment))


def watched(code: str, **environment: str | None) -> str:
    """As `output_of`, for programs in which threads may wait for each other."""
    return output_of(WATCHDOG + textwrap.dedent(code), **environment)


def program(path: Path | str, *arguments: str) -> str:
    """What a program in a file prints, such as one whose processes import it again."""
    paths = filter(None, (str(SHARED), os.environ.get("PYTHONPATH")))
    return _output(_run([str(path), *arguments], {"PYTHONPATH": os.pathsep.join(paths)}))


def _run(
    arguments: list[str], environment: dict[str, str | None]
) -> subprocess.CompletedProcess[str]:
    names = ("POSENC_BACKEND", "POSENC_ISA", "OMP_NUM_THREADS")
    variables = {name: value for name, value in os.environ.items() if name not in names}
    variables.update({name: value for name, value in environment.items() if value is not None})
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def _output(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, f"exit status {result.returncode}\n{result.stderr}"
    assert result.stderr == ""
    return result.stdout
