"""Parts of a document as lines and as HTML."""

from __future__ import annotations

from posenc_native.core.documents.html import as_html
from posenc_native.core.documents.parts import GAP, Part, as_text

PARTS = [
    Part("heading", "A <b> & its heading"),
    Part("paragraph", "some words that go on and on"),
    GAP,
    Part("fact", "one"),
    Part("fact", "two"),
    Part("remark", "apart"),
    Part("table", rows=(("position", 'a "name"'), ("1,024", "<i>"))),
    Part("item", "three has more words than fit"),
    Part("entry", "file: a format that has a name"),
]


def test_as_lines():
    assert as_text(PARTS, 24).splitlines() == [
        "A <b> & its heading",
        "some words that go on",
        "and on",
        "",
        "  one",
        "  two",
        "  apart",
        '     position      a "name"',
        "        1,024           <i>",
        "  - three has more words",
        "    than fit",
        "file: a format that has",
        "  a name",
    ]


def test_as_html():
    """A list for each run of list items; every word is escaped."""
    assert as_html(PARTS).splitlines() == [
        "<div>",
        "<p><strong>A &lt;b&gt; &amp; its heading</strong></p>",
        "<p>some words that go on and on</p>",
        "<ul>",
        "<li>one</li>",
        "<li>two</li>",
        "</ul>",
        "<p>apart</p>",
        "<table>",
        "<tr><th>position</th><th>a &quot;name&quot;</th></tr>",
        "<tr><td>1,024</td><td>&lt;i&gt;</td></tr>",
        "</table>",
        "<ul>",
        "<li>three has more words than fit</li>",
        "</ul>",
        "<p>file: a format that has a name</p>",
        "</div>",
    ]
