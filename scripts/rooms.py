"""Draw the package by its imports: rooms, the floor of each, and what it stands on.

    python scripts/rooms.py    the picture, as `make pages` puts it into ARCHITECTURE.md

Imports in functions count too; those for type checkers alone do not. tests/packaging/test_rooms.py
keeps files free of circles and imports downward.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "posenc_native"

# From the ground up. A room imports from floors below its own, and within its floor from rooms to
# the left. So do the rooms within a room.
FLOORS = (
    ("core",),
    ("engines", "models"),
    ("encodings",),
    ("nn", "hf", "flex", "vllm", "checkpoints"),
    ("plot", "posenc_native"),  # posenc_native: the public names
    ("cli",),
)
INNER = {
    "core": ("calls", "frequencies", "documents"),
    "encodings": ("positions", "absolute", "rotary", "selective", "sinusoids", "relative"),
    "checkpoints": ("formats", "explanations"),
}


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Files of a package by their dotted names."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = (package.name, *file.relative_to(package).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Which modules of the package each of them imports."""
    known = modules(package)
    return {
        name: {
            target
            for imported in _imported(name, file)
            if (target := _nearest(imported, known)) not in (None, name)
        }
        for name, file in known.items()
    }


def _imported(name: str, file: Path) -> Iterator[str]:
    """Dotted names, absolute, of what a file imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    # What the package itself shows type checkers, it loads when somebody asks for it.
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        if "." in name or not getattr(statement, "module", None)
        for inner in ast.walk(statement)
    }
    folder = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def _nearest(imported: str, known: dict[str, Path]) -> str | None:
    """The module that has the name: itself, or the one it is taken from."""
    while imported and imported not in known:
        imported = imported.rpartition(".")[0]
    return imported or None


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules of which each imports all others, directly or not (Tarjan)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for target in sorted(arrows[name]):
            if target not in order:
                visit(target)
            if target in stack:
                lowest[name] = min(lowest[name], lowest[target])
        if lowest[name] == order[name]:
            at = stack.index(name)
            if len(stack) > at + 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in sorted(arrows):
        if name not in order:
            visit(name)
    return found


def room(module: str) -> str:
    """The room of a module: its folder right below the package, or the module itself."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] or package


def inner(module: str) -> str:
    """The room of a module within its room, if it has some."""
    name = (*module.split("."), "", "")[2]
    return name if name in INNER.get(room(module), ()) else ""


def rooms(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Which rooms each of them imports from."""
    found: dict[str, set[str]] = {room(module): set() for module in arrows}
    for module, targets in arrows.items():
        found[room(module)] |= {room(target) for target in targets} - {room(module)}
    return found


def upward(arrows: dict[str, set[str]]) -> list[str]:
    """Imports that do not go down, in words."""
    place = {name: (floor, i) for floor, row in enumerate(FLOORS) for i, name in enumerate(row)}
    place["__main__"] = (len(FLOORS), 0)

    def goes_down(module: str, target: str) -> bool:
        if room(module) != room(target):
            return place[room(target)] < place[room(module)]
        mine, other = inner(module), inner(target)
        if mine == other or not (mine and other):  # files beside inner rooms: `circles` alone
            return True
        order = INNER[room(module)]
        return order.index(other) < order.index(mine)

    return [
        f"{module} imports {target}"
        for module, targets in sorted(arrows.items())
        for target in sorted(targets)
        if not goes_down(module, target)
    ]


def picture() -> str:
    """The rooms from the top down."""
    stands_on, known = rooms(imports()), modules()

    @functools.cache
    def below(name: str) -> frozenset[str]:
        return frozenset(stands_on[name]).union(*map(below, stands_on[name]))

    lines = ["```text"]
    for floor, row in reversed(list(enumerate(FLOORS))):
        for i, name in enumerate(row):
            # What a room stands on by way of another one is not said again.
            direct = {r for r in stands_on[name] if not any(r in below(s) for s in stands_on[name])}
            files = sum(room(module) == name for module in known)
            number = str(floor) if i == 0 else ""
            on = " ".join(sorted(direct))
            lines.append(f"{number:>2}  {name:14}{files:3} files   {on}".rstrip())
            lines += [
                f"      {within:12}{sum((room(m), inner(m)) == (name, within) for m in known):3}"
                for within in reversed(INNER.get(name, ()))
            ]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    print(picture(), end="")
