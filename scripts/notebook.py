"""Run the notebooks of examples/ and compare what they show with what is stored in them.

    python scripts/notebook.py            says which cells differ
    python scripts/notebook.py --write    stores what they show now

It needs matplotlib and Pillow, and no Jupyter. Cells run in one namespace, in an empty folder. As
in Jupyter, the value of the last expression is shown, and after it the figures that pyplot has
open. Nothing about the machine is stored.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
DOTS_PER_INCH = 100
COLORS = 128  # a third of the file of full color, and nothing to be seen of it
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

Notebook = dict[str, Any]
Outputs = list[dict[str, Any]]


def run(notebook: Notebook) -> Iterator[Outputs]:
    """The outputs of each code cell, in the form in which notebooks store them."""
    import matplotlib as mpl
    from matplotlib import pyplot

    mpl.use("Agg")
    pyplot.close("all")
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch, mpl.rc_context():
        mpl.rcdefaults()
        os.chdir(scratch)
        try:
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
                outputs += map(_picture, map(pyplot.figure, pyplot.get_fignums()))
                pyplot.close("all")
                yield outputs
        finally:
            os.chdir(before)
            pyplot.close("all")


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    """The cells that run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def stored(notebook: Notebook, outputs: list[Outputs]) -> str:
    """The file of a notebook with these outputs."""
    for number, (cell, shown) in enumerate(zip(code_cells(notebook), outputs, strict=True), 1):
        cell.update(execution_count=number, metadata={}, outputs=shown)
    whole = {**notebook, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def texts(outputs: Outputs) -> list[Any]:
    """The outputs without their pictures."""
    without = []
    for one in outputs:
        data = {kind: value for kind, value in one.get("data", {}).items() if "image" not in kind}
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


def _picture(figure: Any) -> dict[str, Any]:
    """A figure as a PNG file of few colors."""
    from PIL import Image

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, dpi=DOTS_PER_INCH, bbox_inches="tight", metadata={"Software": None})
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize(COLORS).save(small, "png", optimize=True)
    data = {
        "image/png": base64.b64encode(small.getvalue()).decode() + "\n",
        "text/plain": [repr(figure)],
    }
    return {"data": data, "metadata": {}, "output_type": "display_data"}


def main() -> None:
    write = sys.argv[1:] == ["--write"]
    if sys.argv[1:] and not write:
        sys.exit(__doc__)
    differ = []
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        outputs = list(run(notebook))
        for cell, now in zip(code_cells(notebook), outputs, strict=True):
            if texts(cell.get("outputs", [])) != texts(now):
                differ.append(f"{path.name}: cell {cell['id']} shows something else than is stored")
        if write:
            path.write_text(stored(notebook, outputs), encoding="utf-8")
            print(f"wrote {path}")
    if differ and not write:
        sys.exit("\n".join(differ))


if __name__ == "__main__":
    main()
