"""Type checkers find in the package what a user's code relies on: typing_snippet.py.

pyright is basedpyright's, which carries all it needs in its wheel: the one on PyPI under its own
name downloads itself from npm when it first runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

pytest.importorskip("torch")
SNIPPET = Path(__file__).with_name("typing_snippet.py")
# Some of what a user may do wrong, and how each checker has to answer it.
WRONG = """
import numpy as np
import posenc_native as pn
from typing_extensions import assert_type

x = np.ones((3, 8), np.float32)
assert_type(pn.apply_rotary(x, None, x), str)
pn.sinusoidal(3, 8, layuot="sin_cos")
pn.sinusoidal(3, 8, layout="half")
"""


# What a checker knows of arrays where it knows nothing of torch.
WITHOUT_TORCH = """
from typing import Any

import numpy as np
import numpy.typing as npt
import posenc_native as pn
from typing_extensions import assert_type

Floats = npt.NDArray[np.float32]
x = np.ones((1, 3, 4, 8), np.float32)
assert_type(pn.apply_rotary(x, None, x), Floats)
assert_type(pn.apply_rotary_qk(x, x, None, x), tuple[Floats, Floats])
assert_type(pn.Rotary(8).apply(x), Floats)
assert_type(pn.rotary_tables(3, x), tuple[npt.NDArray[Any], npt.NDArray[Any]])
assert_type(pn.sinusoidal(3, 8, dtype=np.float16), npt.NDArray[Any])
assert_type(pn.add_sinusoidal(x), Floats)
assert_type(pn.relative_position_bucket(x), npt.NDArray[np.int64])
assert_type(pn.add_toeplitz_bias(x, x), Floats)
assert_type(pn.relative_gather(x, None, 3), Floats)
"""


def mypy(*arguments: object, configuration: str = "") -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mypy", reason="needs mypy")
    # Errors of the package itself are not shown, as where it is installed.
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    command += [f"--config-file={configuration}", "--python-version=3.10", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def pyright(tmp_path: Path, snippet: Path) -> list[str]:
    pytest.importorskip("basedpyright", reason="needs basedpyright")
    configuration = tmp_path / "pyrightconfig.json"
    configuration.write_text(
        json.dumps(
            {
                "include": [str(snippet)],
                "typeCheckingMode": "strict",
                "extraPaths": [str(ROOT)],
                "pythonVersion": "3.10",
                "reportUnnecessaryTypeIgnoreComment": "error",
                "enableTypeIgnoreComments": False,
                "reportUnusedExpression": "none",
            }
        )
    )
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(configuration)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return [
        f"{error['range']['start']['line'] + 1}: {error['message']}"
        for error in report["generalDiagnostics"]
    ]


def test_mypy_strict():
    done = mypy(SNIPPET)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_strict(tmp_path):
    assert pyright(tmp_path, SNIPPET) == []


def test_mistakes_are_seen(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    assert set(re.findall(r"wrong.py:(\d+): error", mypy(wrong).stdout)) == {"7", "8", "9"}
    assert {error.partition(":")[0] for error in pyright(tmp_path, wrong)} >= {"7", "8", "9"}


def test_arrays_are_known_without_torch(tmp_path):
    snippet, configuration = tmp_path / "without_torch.py", tmp_path / "mypy.ini"
    snippet.write_text(WITHOUT_TORCH)
    configuration.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    done = mypy(snippet, configuration=str(configuration))
    assert done.returncode == 0, done.stdout + done.stderr


def test_public_types_are_complete():
    pytest.importorskip("basedpyright", reason="needs basedpyright")
    command = [sys.executable, "-m", "basedpyright", "--verifytypes", "posenc_native"]
    command += ["--ignoreexternal", "--outputjson", "--pythonpath", sys.executable]
    # Of an editable installation site-packages has the libraries alone; these are the sources.
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    found = json.loads(done.stdout)["typeCompleteness"]
    assert Path(found["packageRootDirectory"]) == ROOT / "posenc_native"
    unknown = [
        symbol["name"]
        for symbol in found["symbols"]
        if symbol["isExported"] and not symbol["isTypeKnown"]
    ]
    assert found["completenessScore"] >= 0.95, unknown
