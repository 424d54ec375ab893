"""The notebooks of examples/ run, and show what is stored in them.

In this process and without Jupyter: scripts/pages/notebooks.py runs the cells.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

for needed in ("torch", "ml_dtypes", "matplotlib"):
    pytest.importorskip(needed, reason="requirements/test.txt has it")

from pages import notebooks  # noqa: E402

NOTEBOOKS = notebooks.files()
CELL = {"cell_type", "id", "metadata", "source"}


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_there_is_a_notebook_of_pictures() -> None:
    assert [path.name for path in NOTEBOOKS] == ["pictures.ipynb"]


def test_it_is_a_notebook_of_version_4(path: Path) -> None:
    """The keys that nbformat's schema requires, and none about this machine."""
    found = read(path)
    assert found.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert found["metadata"] == notebooks.METADATA
    ids = [cell["id"] for cell in found["cells"]]
    assert len({*ids}) == len(ids)
    for cell in found["cells"]:
        code = cell["cell_type"] == "code"
        assert cell.keys() == (CELL | {"execution_count", "outputs"} if code else CELL)
        assert cell["cell_type"] in ("code", "markdown")
        assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert cell["metadata"] == {}
    counts = [cell["execution_count"] for cell in notebooks.code_cells(found)]
    assert counts == [*range(1, len(counts) + 1)]
    text = path.read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert not re.search(r"/(home|root|tmp|Users)/|site-packages", text)
    assert path.read_text(encoding="utf-8") == notebooks.stored(
        found, [cell["outputs"] for cell in notebooks.code_cells(found)]
    )


def test_it_shows_what_is_stored(path: Path) -> None:
    assert notebooks.check(path) == [], "`make pages` stores what it shows"


@pytest.mark.parametrize("kind", ["text/plain", "text/html", "image/png"])
def test_something_else_is_found(path: Path, kind: str) -> None:
    outputs = [
        one
        for cell in notebooks.code_cells(read(path))
        for one in cell["outputs"]
        if kind in one.get("data", {})
    ]
    assert notebooks.same(outputs, outputs)
    first, last = outputs[0], outputs[-1]
    assert not notebooks.same(
        [first], [{**first, "data": {**first["data"], kind: last["data"][kind]}}]
    )


def test_what_a_cell_shows() -> None:
    """What it prints, the value of its last expression unless a semicolon follows, its figures."""
    sources = [
        "import posenc_native as pn\nx = 5",
        "print(x)\nprint('b')\nx + 1",
        "x + 1;",
        "pn.plot.waves(8);\npn.Rotary(8)",
    ]
    cells = [{"cell_type": "code", "id": str(i), "source": [s]} for i, s in enumerate(sources)]
    nothing, printed, silent, drawn = notebooks.run({"cells": cells})
    assert nothing == silent == []
    assert [one["output_type"] for one in printed] == ["stream", "execute_result"]
    assert printed[0]["text"] == ["5\n", "b\n"]
    assert printed[1]["data"] == {"text/plain": ["6"]}
    value, picture = drawn
    assert value["data"].keys() == {"text/plain", "text/html"}
    assert base64.b64decode(picture["data"]["image/png"]).startswith(b"\x89PNG")
    assert picture["data"]["text/plain"] == ["<Figure size 800x370 with 1 Axes>"]


def test_the_notebook_is_listed() -> None:
    readme = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert "examples/pictures.ipynb" in readme
