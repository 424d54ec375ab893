"""Type checkers find in the package what a user's code relies on: typing_snippet.py.

pyright is basedpyright's, which carries all it needs in its wheel: the one on PyPI under its own
name downloads itself from npm when it first runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
assert_type(pn.relative.relative_position_bucket(x), npt.NDArray[np.int64])
assert_type(pn.add_toeplitz_bias(x, x), Floats)
assert_type(pn.relative_gather(x, None, 3), Floats)
"""


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("typing") / "wrong.py"
    file.write_text(WRONG)
    return file


def run_mypy(*arguments: object, configuration: str = "") -> list[str]:
    """Lines about errors, each beginning with a file."""
    pytest.importorskip("mypy", reason="needs mypy")
    # Errors of the package itself are not shown, as where it is installed.
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    command += [f"--config-file={configuration}", "--python-version=3.10", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert done.returncode == bool(errors), done.stdout + done.stderr
    return errors


@pytest.fixture(scope="module")
def mypy(wrong: Path) -> list[str]:
    return run_mypy(SNIPPET, wrong)


def run_basedpyright(*arguments: object, **environment: str) -> dict[str, Any]:
    pytest.importorskip("basedpyright", reason="needs basedpyright")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", *map(str, arguments)]
    command += ["--pythonpath", sys.executable]
    environment = {**os.environ, **environment}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def pyright(wrong: Path) -> list[str]:
    """Lines about errors, each beginning with a file."""
    settings = {
        "include": [str(SNIPPET), str(wrong)],
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.10",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "enableTypeIgnoreComments": False,
        "reportUnusedExpression": "none",
    }
    configuration = wrong.with_name("pyrightconfig.json")
    configuration.write_text(json.dumps(settings))
    report = run_basedpyright("-p", configuration)
    assert report["summary"]["filesAnalyzed"] == 2
    return [
        f"{error['file']}:{error['range']['start']['line'] + 1}: error: {error['message']}"
        for error in report["generalDiagnostics"]
    ]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_what_users_rely_on_is_known_and_mistakes_are_seen(checker, request, wrong):
    errors = request.getfixturevalue(checker)
    seen = [line for line in errors if Path(line.partition(":")[0]).name == wrong.name]
    assert [line for line in errors if line not in seen] == []
    lines = {line.split(":")[1] for line in seen}
    assert lines == {"7", "8", "9"} if checker == "mypy" else lines >= {"7", "8", "9"}


def test_arrays_are_known_without_torch(tmp_path):
    snippet, configuration = tmp_path / "without_torch.py", tmp_path / "mypy.ini"
    snippet.write_text(WITHOUT_TORCH)
    configuration.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    assert run_mypy(snippet, configuration=str(configuration)) == []


def test_public_types_are_complete():
    # Of an editable installation site-packages has the libraries alone; these are the sources.
    options = ("--verifytypes", "posenc_native", "--ignoreexternal")
    found = run_basedpyright(*options, PYTHONPATH=str(ROOT))["typeCompleteness"]
    assert Path(found["packageRootDirectory"]) == ROOT / "posenc_native"
    unknown = [
        symbol["name"]
        for symbol in found["symbols"]
        if symbol["isExported"] and not symbol["isTypeKnown"]
    ]
    assert found["completenessScore"] >= 0.95, unknown
