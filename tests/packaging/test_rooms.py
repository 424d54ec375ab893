"""Rooms and floors of the package, by its imports: scripts/rooms.py."""

from __future__ import annotations

from collections import Counter

import pytest
import rooms

# What a room may hold before it is two.
LINES, FILES = 520, 14


@pytest.fixture(scope="module")
def arrows() -> dict[str, set[str]]:
    return rooms.imports()


def test_no_circles_among_files(arrows):
    assert rooms.circles(arrows) == []


def test_imports_go_down(arrows):
    assert rooms.upward(arrows) == []


def test_every_room_is_on_a_floor(arrows):
    on_floors = {name for row in rooms.FLOORS for name in row}
    assert set(rooms.rooms(arrows)) - {"__main__"} == on_floors


def test_rooms_are_small():
    """About 500 lines a file and a dozen files a folder."""
    files = rooms.modules().values()
    names = {file: file.relative_to(rooms.PACKAGE).as_posix() for file in files}
    lines = {names[file]: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {name for name, n in lines.items() if n > LINES} == set()
    folders = Counter(file.parent.name for file in files)
    assert {name: n for name, n in folders.items() if n > FILES} == {}


@pytest.mark.parametrize(
    ("statement", "seen"),
    [
        ("from posenc.upper import f", True),
        ("from . import upper", True),
        ("from .upper import f", True),
        ("import posenc.upper", True),
        ("def g():\n    from .upper import f", True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .upper import f", False),
    ],
)
def test_a_circle_is_seen(tmp_path, statement, seen):
    package = tmp_path / "posenc"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "lower.py").write_text(statement + "\n")
    (package / "upper.py").write_text("from .lower import g\n")
    expected = [["posenc.lower", "posenc.upper"]] if seen else []
    assert rooms.circles(rooms.imports(package)) == expected


def test_an_import_upward_is_seen():
    arrows = {"posenc_native.core.calls.views": {"posenc_native.encodings.rotary.apply"}}
    assert rooms.upward(arrows) == [
        "posenc_native.core.calls.views imports posenc_native.encodings.rotary.apply"
    ]
