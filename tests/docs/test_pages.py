"""Parts of pages that records and code determine: scripts/pages. `make docs` draws pictures."""

from __future__ import annotations

import re
import shutil

import pytest
from places import ROOT

for needed in ("torch", "ml_dtypes", "matplotlib"):
    pytest.importorskip(needed, reason="requirements/test.txt has it")

import pages  # noqa: E402
from pages import __main__ as program  # noqa: E402
from pages import blocks, pictures  # noqa: E402

DRAWS = "from matplotlib import pyplot as plt\nplt.figure(figsize=(2, 1)).text(0.1, 0.3, '{}')\n"
IMAGE = '<img src="pictures/p.png" alt="A word.">\n'


def test_text_of_every_page_is_what_records_and_code_say():
    assert [line for page in pages.files() for line in program.check(page, pictures=False)] == []


def test_every_mark_has_its_end_and_a_maker():
    for page in pages.files():
        text = page.read_text(encoding="utf-8")
        names = re.findall(r"^<!-- (\w+)(?:: .+?)? -->$", text, re.M)
        ends = re.findall(r"^<!-- /(\w+) -->$", text, re.M)
        assert [name for name in names if name in blocks.MAKERS] == ends


@pytest.fixture
def page(tmp_path, monkeypatch):
    for module in (pages, pictures, program):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(pictures, "FOLDER", tmp_path / "pictures")
    pictures.FOLDER.mkdir()
    return tmp_path / "page.md"


@pytest.mark.parametrize("mark", ["measured: goals", "docstring: posenc_native.plot", "rooms"])
def test_other_text_between_marks_is_found_and_mended(page, mark):
    name = mark.partition(":")[0]
    page.write_text(f"a\n<!-- {mark} -->\nold\n<!-- /{name} -->\n<!-- other -->\n", "utf-8")
    assert "page.md: " in program.check(page, pictures=False)[0]
    program.check(page, write=True, pictures=False)
    assert program.check(page, pictures=False) == []
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"a\n<!-- {mark} -->\n")
    assert text.endswith(f"\n<!-- /{name} -->\n<!-- other -->\n")
    assert "old" not in text


@pytest.mark.parametrize("form", ["```python\n{}```\n\n", "<!-- draws\n{}-->\n"])
def test_another_picture_than_the_code_draws_is_found_and_mended(page, form):
    page.write_text(form.format(DRAWS.format("word")) + IMAGE, "utf-8")
    assert "than docs/pictures/p.png" in program.check(page)[0]
    program.check(page, write=True)
    assert program.check(page) == []
    assert re.search(r'p\.png" width="\d+" alt="A word\."', page.read_text("utf-8"))
    page.write_text(page.read_text("utf-8").replace("'word'", "'ward'"), "utf-8")
    assert "than docs/pictures/p.png" in program.check(page)[0]


@pytest.mark.parametrize(
    ("code", "images"),
    [("x = 1\n", IMAGE), (2 * DRAWS.format(1), IMAGE), (DRAWS.format(1), IMAGE.replace("alt", ""))],
    ids=["draws nothing", "draws two", "no alt"],
)  # fmt: skip
def test_an_image_for_each_figure(page, code, images):
    page.write_text(f"```python\n{code}```\n{images}", "utf-8")
    with pytest.raises(ValueError, match=r"page\.md: line 1: expected an image"):
        program.check(page)


def test_a_picture_that_no_page_shows_is_found(page):
    shutil.copy(ROOT / "docs" / "pictures" / "heatmap.png", pictures.FOLDER / "left.png")
    page.write_text("No picture.\n", "utf-8")
    assert [path.name for path in pictures.unused([page])] == ["left.png"]
