"""The walk through a new variant in docs/maintaining.md: its diff applies, and its tests pass.

So do the tests of every rope_type: explain, compare and the writers know the new one.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from places import ROOT

import posenc_native
from posenc_native.engines import backend

# An editable install finds the package by a hook; the copy is to be found instead.
RUN = """
import sys
sys.meta_path = [each for each in sys.meta_path if "Scikit" not in type(each).__name__]
sys.path[:0] = sys.argv[1:2]
import posenc_native, pytest
assert posenc_native.__file__.startswith(sys.argv[1]), posenc_native.__file__
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def test_the_walk_through_a_new_variant(tmp_path):
    page = (ROOT / "docs" / "maintaining.md").read_text(encoding="utf-8")
    (diff,) = re.findall(r"^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    leave_out = shutil.ignore_patterns("__pycache__")
    package = Path(posenc_native.__file__).parent
    shutil.copytree(package, tmp_path / "posenc_native", ignore=leave_out)
    for part in (
        "tests/shared",
        "tests/core/frequencies",
        "tests/checkpoints/explanations",
        "tests/checkpoints/formats",
    ):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=leave_out)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    if backend.native is not None:
        shutil.copy(backend.native.__file__, tmp_path / "posenc_native")
    applied = subprocess.run(
        ["git", "apply", "-"], cwd=tmp_path, input=diff, text=True, capture_output=True, check=False
    )
    assert applied.returncode == 0, applied.stderr
    described = "tests/checkpoints/explanations/test_every_scaling.py"
    written = "tests/checkpoints/formats/test_writing.py"
    tests = (
        "tests/core/frequencies/test_resonance.py",
        "tests/core/frequencies/test_scaling.py",
        described,
        written,
    )
    assert (tmp_path / tests[0]).exists()
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), "-rA", *tests],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for test in (
        f"{described}::test_explain_and_compare_know_every_type[resonance]",
        f"{described}::test_a_configuration_may_name_every_type[resonance]",
        f"{written}::test_every_rope_type_is_written_or_said_to_be_lost[resonance-gguf]",
    ):
        assert f"PASSED {test}" in done.stdout
