"""The fuzzer's corpus: cases that were found once, and some of every function.

`python -m fuzz` looks for new ones (fuzz/README.md). A case is an integer; what it found is in the
corpus beside it. As long as the generator is the same, so is the case.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from places import ROOT
from targets import NEEDS_NATIVE

pytestmark = [
    NEEDS_NATIVE,
    pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect as Linux has it"),
]


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: a crash is to be told, and the root may not be on our path."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "fuzz", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip


def test_the_corpus_finds_nothing():
    done = fuzz("--corpus", "--seconds", "120")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " 0 findings" in done.stdout


@pytest.mark.parametrize(
    ("seed", "call"),
    [
        ("105", "pn.apply_rotary("),
        ("60", "positions=None, inv_freq=pn.Tables(cos=cos, sin=sin)"),
        ("19", "\nbound_steps("),
    ],
)
def test_a_case_is_printed_as_python_that_runs(seed, call):
    done = fuzz("--show", seed)
    assert done.returncode == 0, done.stderr
    assert call in done.stdout
    ran = subprocess.run(
        [sys.executable, "-c", done.stdout], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
