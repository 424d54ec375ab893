"""What notebooks show of `explain` and `compare`: the words of their text, as safe HTML."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from published import PUBLISHED, sizes

import posenc_native as pn

TAGS = {"div", "p", "strong", "ul", "li", "table", "tr", "th", "td"}
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
SIZES = sizes(4096, 32, 5e5, 131072)


class Page(HTMLParser):
    """The words of a page. Its tags are known ones, closed in order and without attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert not attrs
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data.split()


def assert_same_words(found: Any) -> None:
    text = [word for word in str(found).split() if word != "-"]
    assert Page(found._repr_html_()).words == text


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_explanation_has_the_words_of_its_text(name: str) -> None:
    assert_same_words(pn.explain(PUBLISHED[name]))


@pytest.mark.parametrize(
    "sources",
    [
        ("llama-3", "llama-3.1"),
        ("llama-3.1", "llama-3.3"),
        ("llama-3.1", "deepseek-v3", "qwen3"),
        ("gemma-3-27b", "smollm3"),
    ],
)
def test_a_comparison_has_the_words_of_its_text(sources: tuple[str, ...]) -> None:
    found = pn.compare(*sources, at=[10, 10**12])
    assert_same_words(found)
    assert ("<table>" in found._repr_html_()) is bool(found.errors)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": HOSTILE, **SIZES},
        {"model_type": "llama", **SIZES, f"rope_scaling{HOSTILE[:8]}": 2},
        {"model_type": "llama", **SIZES, "layer_types": [HOSTILE] * 32, "num_hidden_layers": 32},
    ],
    ids=["model_type", "an unread entry", "layer_types"],
)
def test_words_from_a_file_are_words(config: dict[str, Any]) -> None:
    found = pn.explain(config)
    assert HOSTILE[:8] in str(found)
    assert_same_words(found)
    assert_same_words(pn.compare("llama-3", config))


def test_names_of_files_are_words(tmp_path: Any) -> None:
    folder = tmp_path / "<b>"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "head_dim": 64}')
    assert_same_words(pn.compare(str(folder), "llama-3"))
