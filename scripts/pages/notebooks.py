"""The notebooks of examples/ and what is stored in them.

Cells run in one namespace, in an empty folder, without Jupyter. As there, the value of the last
expression is shown, and after it the figures that pyplot has open. Nothing about the machine is
stored. tests/docs/test_notebooks.py runs them.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import ROOT, drawing

DOTS_PER_INCH = 100
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

Notebook = dict[str, Any]
Outputs = list[dict[str, Any]]


def files() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.ipynb"))


def check(path: Path, write: bool = False) -> list[str]:
    """What differs, a line each; with ``write``, it is stored."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    outputs = list(run(notebook))
    differing = [
        f"{path.name}: cell {cell['id']} shows something else than is stored"
        for cell, now in zip(code_cells(notebook), outputs, strict=True)
        if not same(cell.get("outputs", []), now)
    ]
    if differing and write:
        path.write_text(stored(notebook, outputs), encoding="utf-8")
    return differing


def run(notebook: Notebook) -> Iterator[Outputs]:
    """The outputs of each code cell, in the form in which notebooks store them."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with drawing.alone():
        for number, cell in enumerate(code_cells(notebook), 1):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                value = _run("".join(cell["source"]), names)
            outputs: Outputs = []
            if printed.getvalue():
                lines = printed.getvalue().splitlines(True)
                outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
            if value is not None:
                outputs.append(
                    {
                        "data": _shown(value),
                        "execution_count": number,
                        "metadata": {},
                        "output_type": "execute_result",
                    }
                )
            outputs += [_picture(*each) for each in drawing.open_figures(DOTS_PER_INCH)]
            drawing.plt.close("all")
            yield outputs


def same(stored: Outputs, now: Outputs) -> bool:
    """Whether a reader sees the same: words to the letter, pictures as `drawing.same` says."""
    return _texts(stored) == _texts(now) and all(
        drawing.same(*(base64.b64decode(of["data"]["image/png"]) for of in both))
        for both in zip(stored, now, strict=True)
        if "image/png" in both[1].get("data", {})
    )


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    """The cells that run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def stored(notebook: Notebook, outputs: list[Outputs]) -> str:
    """The file of a notebook with these outputs."""
    for number, (cell, shown) in enumerate(zip(code_cells(notebook), outputs, strict=True), 1):
        cell.update(execution_count=number, metadata={}, outputs=shown)
    whole = {**notebook, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def _texts(outputs: Outputs) -> list[Any]:
    """The outputs without the files of pictures."""
    without = []
    for one in outputs:
        data = {
            kind: None if kind == "image/png" else of for kind, of in one.get("data", {}).items()
        }
        without.append({**one, "data": data})
    return without


def _run(code: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last expression, unless a semicolon follows."""
    tree = ast.parse(code)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or code.rstrip().endswith(";"):
        exec(compile(tree, "cell", "exec"), names)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def _shown(value: Any) -> dict[str, list[str]]:
    """A value as IPython shows it, as text and, if it has that form, as HTML."""
    plain = [repr(value)]
    if hasattr(value, "_repr_pretty_"):
        plain = []
        value._repr_pretty_(type("Printer", (), {"text": staticmethod(plain.append)}), False)
    data = {"text/plain": "".join(plain).splitlines(True)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(True)
    return data


def _picture(figure: Any, png: bytes) -> dict[str, Any]:
    data = {"image/png": f"{base64.b64encode(png).decode()}\n", "text/plain": [repr(figure)]}
    return {"data": data, "metadata": {}, "output_type": "display_data"}
