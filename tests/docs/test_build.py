"""The documentation is built strictly: what is broken in a page makes `make docs` fail.

Small pages are built with docs/conf.py and the options that the Makefile has.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

for needed in ("sphinx", "myst_parser", "furo"):
    pytest.importorskip(needed, reason="requirements/docs.txt has it")

# All that these pages may refer to.
REFERENCE = """\
# Reference

```{reference} posenc_native.sinusoids
frequencies
wavelengths
```
"""


CONF = """\
import runpy

globals().update(runpy.run_path({conf!r}))
public_modules = {public_modules!r}
html_static_path = []  # 24 MB of MathJax, which nobody looks at
"""


def build(folder: Path, pages: dict[str, str], public_modules: list[str]) -> tuple[int, str]:
    """Exit status and warnings of a build; the index leads to every page but "lost"."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    conf = CONF.format(conf=str(ROOT / "docs" / "conf.py"), public_modules=public_modules)
    (source / "conf.py").write_text(conf, encoding="utf-8")
    listed = "\n".join(name for name in pages if name != "lost")
    index = f"# Pages\n\n```{{toctree}}\n{listed}\n```\n"
    for name, text in {**pages, "index": index}.items():
        (source / f"{name}.md").write_text(text, encoding="utf-8")
    return build_again(folder)


def build_again(folder: Path) -> tuple[int, str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    options = re.search(r"^SPHINX_BUILD = \$\(BIN\)/python -m sphinx (.*?) \\$", makefile, re.M)
    assert options
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options[1].split(), folder / "source", folder / "html"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stderr


IN_ORDER = """\
# Page

See [the reference](reference.md), `pn.sinusoids.wavelengths`,
{py:func}`posenc_native.sinusoids.wavelengths`, $x^2$.
And [a file](../FILE.md).

<img src="line.png" width="100" alt="A line from 0 to 1.">

<!-- site
Read on.
-->
"""

# Beside docs/, with links as they are there; the page `shown` shows it.
FILE = """\
# File

[A page](source/in-order.md), <img src="source/line.png" alt="The same line.">
"""

MISTAKES = {
    "page": ("[there](nowhere.md)", "nowhere.md"),
    "heading-of-a-page": ("[there](reference.md#nowhere)", "nowhere"),
    "heading": ("[there](#nowhere)", "nowhere"),
    "label": ("{ref}`nowhere`", "nowhere"),
    "name-in-code": ("`pn.wavelength`", "posenc_native.wavelength"),
    "name": ("{py:func}`posenc_native.wavelength`", "posenc_native.wavelength"),
    "image": ("![a picture](nowhere.png)", "nowhere.png"),
    "directive": ("```{nodirective}\n```", "nodirective"),
    "html-image": ('<img src="nowhere.png" alt="x">', "nowhere.png"),
    "site-only": ("<!-- site\n[there](nowhere.md)\n-->", "nowhere.md"),
    "reference-of-no-name": ("```{reference} posenc_native\nwavelengths_\n```", "wavelengths_"),
    "lost": ("", "isn't included in any toctree"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("docs")


@pytest.fixture(scope="module")
def mistaken(folder: Path) -> tuple[int, str]:
    pages = {name: f"# Page\n\n{text}\n" for name, (text, _) in MISTAKES.items()}
    pages |= {"in-order": IN_ORDER, "reference": REFERENCE, "shown": "[FILE.md](../FILE.md)\n"}
    (folder / "FILE.md").write_text(FILE, encoding="utf-8")
    (folder / "source").mkdir()
    shutil.copy(ROOT / "benchmarks/results/readme-speed.png", folder / "source" / "line.png")
    return build(folder, pages, ["posenc_native.encodings.rotary.rerotate"])


def test_a_page_in_order_is_built_and_not_named(mistaken: tuple[int, str], folder: Path) -> None:
    assert "in-order.md" not in mistaken[1]
    html = (folder / "html" / "in-order.html").read_text(encoding="utf-8")
    assert html.count('href="reference.html#posenc_native.sinusoids.wavelengths"') == 2
    assert 'href="shown.html"' in html
    (picture,) = re.findall(r'<img alt="A line from 0 to 1." src="([^"]+)"', html)
    assert (folder / "html" / picture).stat().st_size > 1000
    assert "Read on." in html


def test_a_page_that_is_a_link_shows_the_file(mistaken: tuple[int, str], folder: Path) -> None:
    assert "shown.md" not in mistaken[1]
    html = (folder / "html" / "shown.html").read_text(encoding="utf-8")
    assert re.search(r'href="in-order\.html"', html)
    assert re.search(r'alt="The same line\." src="_images/line\.png"', html)


def test_mistakes_fail(mistaken: tuple[int, str]) -> None:
    assert mistaken[0] != 0


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_named_with_its_page(name: str, mistaken: tuple[int, str]) -> None:
    warnings = re.split(r"\n(?=\S+:(?:\d+:)? (?:WARNING|ERROR))", mistaken[1])
    of_page = [warning for warning in warnings if f"/{name}.md" in warning.split()[0]]
    assert MISTAKES[name][1] in "\n".join(of_page)


@pytest.mark.slow
def test_a_mistake_that_is_still_there_fails_again(tmp_path: Path) -> None:
    first = build(tmp_path, {"page": "# Page\n\n[there](nowhere.md)\n"}, [])
    assert first[0] != 0
    assert build_again(tmp_path) == first


def test_a_public_name_that_no_page_has_is_named(mistaken: tuple[int, str]) -> None:
    assert (
        "posenc_native.encodings.rotary.rerotate.rerotate is public, but no page has it"
        in mistaken[1]
    )
