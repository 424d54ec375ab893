"""The notebooks of examples/ run, and show what is stored in them.

In this process and without Jupyter: scripts/notebook.py runs the cells.
"""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import notebook
import numpy as np
import pytest
from places import ROOT

NOTEBOOKS = sorted(notebook.EXAMPLES.glob("*.ipynb"))
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
    assert found["metadata"] == notebook.METADATA
    ids = [cell["id"] for cell in found["cells"]]
    assert len({*ids}) == len(ids)
    for cell in found["cells"]:
        code = cell["cell_type"] == "code"
        assert cell.keys() == (CELL | {"execution_count", "outputs"} if code else CELL)
        assert cell["cell_type"] in ("code", "markdown")
        assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert cell["metadata"] == {}
    counts = [cell["execution_count"] for cell in notebook.code_cells(found)]
    assert counts == [*range(1, len(counts) + 1)]
    text = path.read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert not re.search(r"/(home|root|tmp|work|Users)/|site-packages", text)
    assert path.read_text(encoding="utf-8") == notebook.stored(
        found, [cell["outputs"] for cell in notebook.code_cells(found)]
    )


def thumbnail(output: dict[str, Any]) -> Any:
    """A picture in a few shades of gray: the digits of a rounding error are not seen."""
    image = pytest.importorskip("PIL.Image")
    png = base64.b64decode(output["data"]["image/png"])
    with image.open(io.BytesIO(png)) as picture:
        gray = picture.convert("L")
        return np.asarray(gray.resize((gray.width // 16, gray.height // 16)), float)


def test_it_shows_what_is_stored(path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = read(path)
    pictures = 0
    for cell, now in zip(notebook.code_cells(found), notebook.run(found), strict=True):
        stored = cell["outputs"]
        said = f"cell {cell['id']}: run python scripts/notebook.py --write"
        assert notebook.texts(stored) == notebook.texts(now), said
        for one, other in zip(stored, now, strict=True):
            if "image/png" in one.get("data", {}):
                pictures += 1
                shades = thumbnail(one), thumbnail(other)
                assert shades[0].shape == shades[1].shape, said
                assert np.abs(shades[0] - shades[1]).max() < 24, said
    assert pictures > 10


def test_what_a_cell_shows() -> None:
    """What it prints, the value of its last expression unless a semicolon follows, its figures."""
    pytest.importorskip("matplotlib")
    sources = [
        "import posenc_native as pn\nx = 5",
        "print(x)\nprint('b')\nx + 1",
        "x + 1;",
        "pn.plot.waves(8);\npn.Rotary(8)",
    ]
    cells = [{"cell_type": "code", "id": str(i), "source": [s]} for i, s in enumerate(sources)]
    nothing, printed, silent, drawn = notebook.run({"cells": cells})
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
