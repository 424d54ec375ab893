"""What costs speed without being asked for says so once, with the command that mends it."""

from __future__ import annotations

import pytest
from interpreters import python

from posenc_native.engines import backend

# Finds no native module: as where it was not built, or for another Python.
WITHOUT_NATIVE = """
import sys
sys.modules["posenc_native._core"] = None
"""
WITHOUT_OPERATORS = """
import posenc_native.engines.backend as backend
backend.torch_library = lambda: None
import torch
import posenc_native as pn
from posenc_native.engines import late
late.torch_operations()  # as where torch was imported first
"""
ROTATE = """
q = torch.ones(1, 2, 3, 8)
rope = pn.Rotary(8)
rotate = lambda: rope(q, q)
"""


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("without the native module",
         WITHOUT_NATIVE + "import posenc_native as pn; pn.sinusoidal(3, 4)",
         ("its native module is not available", "`pip install .`", "POSENC_BACKEND=reference")),
        ("without operators",
         WITHOUT_OPERATORS + ROTATE + "rotate(); rotate(); pn.sinusoidal(3, 4)",
         ("without its operators for torch", "`pip install --no-build-isolation .`")),
        pytest.param("without operators, compiled first",
                     WITHOUT_OPERATORS + ROTATE + "torch.compile(rotate, backend='eager')()",
                     ("without its operators for torch", "`pip install --no-build-isolation .`"),
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_says_so_once(name, code, said):
    if "torch" in code:
        pytest.importorskip("torch")
    record = "import warnings; warnings.simplefilter('always')\n"
    done = python(record + code)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning: posenc_native") == 1
    for words in said:
        assert words in done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.environ['POSENC_BACKEND'] = 'reference'\n"
        + WITHOUT_NATIVE
        + "import posenc_native as pn; pn.sinusoidal(3, 4)",
        WITHOUT_OPERATORS
        + "pn.sinusoidal(3, 4)\n"
        + ROTATE
        + "pn.set_backend('reference'); rotate()",
        "import torch\nimport posenc_native as pn\n" + ROTATE + "rotate()",
    ],
    ids=["reference chosen", "no tensors, reference chosen for tensors", "all is built"],
)
def test_says_nothing(code):
    if "torch" in code:
        pytest.importorskip("torch")
    if code.startswith("import torch") and backend.torch_library() is None:
        pytest.skip("the torch operators were not built")
    done = python(code)  # where warnings are errors
    assert (done.returncode, done.stderr) == (0, "")
