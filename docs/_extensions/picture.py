"""The directive ``picture``: code, and what it draws, drawn when the page is built.

    ```{picture}
    :alt: What there is to see, for those who do not see it.
    :caption: One sentence below the picture.

    import posenc_native as pn
    pn.plot.heatmap(128)
    ```

The code stands alone. It is shown above the picture (``:hide-code:`` leaves it out), and tests run
it like any other block (tests/docs/test_code_blocks.py). Pictures are the figures that pyplot has
open at its end, then the files .gif and .png that it has written into the working directory, a
temporary one.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from pathlib import Path
from typing import Any, ClassVar

import matplotlib
from docutils import nodes
from docutils.parsers.rst import directives
from matplotlib import pyplot
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

matplotlib.use("Agg")

CSS_PIXELS_PER_INCH = 96
DOTS_PER_INCH = 2 * CSS_PIXELS_PER_INCH  # sharp on screens of two dots a pixel


class Picture(SphinxDirective):
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "alt": directives.unchanged_required,
        "caption": directives.unchanged_required,
        "hide-code": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        if "alt" not in self.options:
            raise self.error("picture: needs :alt:, a sentence that says what there is to see")
        code = "\n".join(self.content) + "\n"
        number = self.env.temp_data["pictures"] = self.env.temp_data.get("pictures", 0) + 1
        folder = Path(self.env.doctreedir).parent / "pictures"
        folder.mkdir(parents=True, exist_ok=True)
        source, line = self.get_source_info()
        try:
            files = _draw(code, folder / f"{self.env.docname.replace('/', '-')}-{number}", source)
        except Exception:
            raise self.error(f"picture: the code fails\n{traceback.format_exc()}") from None
        if not files:
            raise self.error("picture: the code draws nothing")
        made: list[nodes.Node] = []
        if "hide-code" not in self.options:
            made.append(nodes.literal_block(code, code, language="python"))
        here = Path(self.env.doc2path(self.env.docname)).parent
        for file in files:
            image = nodes.image(
                uri=Path(os.path.relpath(file, here)).as_posix(), alt=self.options["alt"]
            )
            if file.suffix == ".png":
                pixels = pyplot.imread(file).shape[1]
                image["width"] = f"{round(pixels * CSS_PIXELS_PER_INCH / DOTS_PER_INCH)}px"
            figure = nodes.figure("", image, classes=["picture"])
            if "caption" in self.options and file == files[-1]:
                words, messages = self.parse_inline(self.options["caption"], lineno=line)
                figure += nodes.caption("", "", *words)
                made += messages
            made.append(figure)
        return made


def _draw(code: str, stem: Path, source: str) -> list[Path]:
    """Run the code; the pictures it leaves, as files whose names begin with the stem."""
    pyplot.close("all")
    before = Path.cwd()
    files: list[Path] = []
    with tempfile.TemporaryDirectory() as scratch, matplotlib.rc_context():
        os.chdir(scratch)
        try:
            exec(compile(code, source, "exec"), {"__name__": "__main__"})
            written = sorted(p for p in Path().iterdir() if p.suffix in (".gif", ".png"))
            for number, figure in enumerate(map(pyplot.figure, pyplot.get_fignums())):
                file = Path(f"{stem}-{number}.png")
                figure.savefig(file, dpi=DOTS_PER_INCH, bbox_inches="tight", facecolor="white")
                files.append(file)
            for path in written:
                file = Path(f"{stem}-{path.name}")
                file.write_bytes(path.read_bytes())
                files.append(file)
        finally:
            os.chdir(before)
            pyplot.close("all")
    return files


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
