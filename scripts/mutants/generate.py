"""Mutants chosen by a seed: operators, constants, conditions, arguments, statements."""

from __future__ import annotations

import ast
import dataclasses
import random
import re
from collections.abc import Iterator
from pathlib import Path

from mutants.mutant import ROOT, Mutant, load
from mutants.switches import woven

# How many of each part: where a wrong number hides best, most.
PARTS = {
    "csrc/core": 24,
    "csrc/cpu": 28,
    "csrc/cuda": 22,
    "csrc/bindings": 22,
    "posenc_native/engines": 18,
    "posenc_native": 36,  # everywhere else
    "posenc_native/nn": 6,
    "posenc_native/checkpoints/formats": 6,
    "posenc_native/checkpoints/explanations": 6,
    "posenc_native/cli": 6,
    "posenc_native/plot": 6,
    "posenc_native/encodings/selective": 6,
}
PER_FILE = 3

# What clang-format's spaces make certain: ` < ` compares, ` * ` multiplies.
_CXX = (
    ("comparison", r" (<=?|>=?) ", {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}),
    ("comparison", r" (==|!=) ", {"==": "!=", "!=": "=="}),
    ("arithmetic", r" ([-+*/%]) ", {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/"}),
    ("logic", r" (&&|\|\|) ", {"&&": "||", "||": "&&"}),
    ("off by one", r"[ (\[](\d)(?=[);,\]])", {str(n): str(n + 1) for n in range(10)}),
    ("negation", r"[ (](!)(?=\w)", {"!": ""}),
    ("minimum", r"std::(min|max)\b", {"min": "max", "max": "min"}),
    (
        "vector",
        r"\b(Add|Sub|MulAdd|NegMulAdd|Min|Max|Lt|Le)\(",
        {
            "Add": "Sub",
            "Sub": "Add",
            "MulAdd": "NegMulAdd",
            "NegMulAdd": "MulAdd",
            "Min": "Max",
            "Max": "Min",
            "Lt": "Le",
            "Le": "Lt",
        },
    ),
)
_CONDITION = re.compile(r"^(?:\} else )?if \((.+)\) (?:\{|return|continue|break|throw)")
_CALL = re.compile(r"^[a-z]\w*(?:(?:\.|->)\w+)*\([^{}]*\);$|^[A-Z]\w+\([^{}]*\);$")
_TWO = re.compile(r"\((\w+), (\w+)([,)])")


def candidates(file: Path) -> Iterator[tuple[str, int, str, str]]:
    """(kind, index of the line, the line, what may stand there instead)."""
    text = file.read_text(encoding="utf-8")
    yield from _of_python(text) if file.suffix == ".py" else _of_cxx(text)


def _of_cxx(text: str) -> Iterator[tuple[str, int, str, str]]:
    previous = ";"
    for at, whole in enumerate(text.splitlines()):
        line = whole.strip()
        before, previous = previous, line or previous
        if (
            not line
            or line.startswith(
                ("//", "#", "template", "using", "static_assert", "case ", "const char*")
            )
            or re.search(r'constexpr|//|\\$|"|<<|operator|namespace', line)
            or not before.endswith((";", "{", "}", "(", ",", ":", "&&", "||", "=", "?", "//"))
        ):
            continue
        for kind, pattern, other in _CXX:
            for found in re.finditer(pattern, line):
                new = line[: found.start(1)] + other[found[1]] + line[found.end(1) :]
                yield from _if_whole(kind, at, line, new)
        if found := _CONDITION.match(line):
            new = line.replace(f"({found[1]})", f"(!({found[1]}))", 1)
            yield from _if_whole("condition", at, line, new)
            new = line.replace(f"({found[1]})", f"(({found[1]}) && false)", 1)
            yield from _if_whole("dropped branch", at, line, new)
        if _CALL.match(line) and before.endswith((";", "{", "}")):
            yield "dropped call", at, line, ""
        for found in _TWO.finditer(line):
            if found[1] != found[2] and not re.match(
                r"(const|int|float|bool|auto|size_t)\b", found[1]
            ):
                new = (
                    f"{line[: found.start()]}({found[2]}, {found[1]}{found[3]}{line[found.end() :]}"
                )
                yield from _if_whole("swapped arguments", at, line, new)


def _if_whole(kind: str, at: int, line: str, new: str) -> Iterator[tuple[str, int, str, str]]:
    """Nothing where the expression that would change is not all in this line."""
    try:
        woven(line, [Mutant("g0", "", line, new, kind)])
    except ValueError:
        return
    yield kind, at, line, new


_COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_COMPARED |= {ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}
_OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_OTHER |= {"is": "is not", "is not": "is", "in": "not in", "not in": "in"}
_COUNTED = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+")}
_COUNTED |= {ast.FloorDiv: ("//", "*"), ast.Div: ("/", "*"), ast.Mod: ("%", "*")}


def _of_python(text: str) -> Iterator[tuple[str, int, str, str]]:
    lines = text.splitlines()
    tree = ast.parse(text)
    typing = {
        id(inner)
        for node in ast.walk(tree)
        for part in ("annotation", "returns")
        if isinstance(getattr(node, part, None), ast.AST)
        for inner in ast.walk(getattr(node, part))
    }

    def changed(kind: str, row: int, start: int, stop: int, new: str) -> tuple[str, int, str, str]:
        whole = lines[row - 1]
        return kind, row - 1, whole.strip(), (whole[:start] + new + whole[stop:]).strip()

    def between(kind: str, left: ast.expr, right: ast.expr, sign: str, new: str):
        row, start, stop = left.end_lineno, left.end_col_offset, right.col_offset
        if row != right.lineno or not lines[row - 1].isascii():
            return
        if (at := lines[row - 1].find(sign, start, stop)) >= 0:
            yield changed(kind, row, at, at + len(sign), new)

    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
                sign = _COMPARED[type(op)]
                yield from between("comparison", left, right, sign, _OTHER[sign])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _COUNTED:
                if not any(
                    isinstance(x, (ast.Constant, ast.JoinedStr))
                    and not isinstance(getattr(x, "value", ""), (int, float))
                    for x in (left, right)
                ):
                    yield from between("arithmetic", left, right, *_COUNTED[type(op)])
            case ast.BoolOp(op=op, values=[left, right]):
                signs = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                yield from between("logic", left, right, *signs)
            case ast.Constant(value=int() as value) if (
                not isinstance(value, bool) and value < 9 and node.lineno == node.end_lineno
            ):
                yield changed(
                    "off by one", node.lineno, node.col_offset, node.end_col_offset, str(value + 1)
                )
            case ast.If(test=test, body=[ast.Raise(), *_]) if test.lineno == test.end_lineno:
                whole = lines[test.lineno - 1]
                old = whole[test.col_offset : test.end_col_offset]
                if whole.strip().startswith("if "):
                    yield changed(
                        "dropped check",
                        test.lineno,
                        test.col_offset,
                        test.end_col_offset,
                        f"({old}) and False",
                    )
            case ast.If(test=test) if test.lineno == test.end_lineno:
                whole = lines[test.lineno - 1]
                old = whole[test.col_offset : test.end_col_offset]
                if whole.strip().startswith(("if ", "elif ")) and "TYPE_CHECKING" not in old:
                    yield changed(
                        "condition",
                        test.lineno,
                        test.col_offset,
                        test.end_col_offset,
                        f"not ({old})",
                    )
            case ast.Call(args=[ast.Name(id=one) as first, ast.Name(id=other) as second, *_]) if (
                first.lineno == second.lineno and one != other
            ):
                yield changed(
                    "swapped arguments",
                    first.lineno,
                    first.col_offset,
                    second.end_col_offset,
                    f"{other}, {one}",
                )
            case ast.Expr(value=ast.Call()) if node.lineno == node.end_lineno:
                yield changed(
                    "dropped call", node.lineno, node.col_offset, node.end_col_offset, "pass"
                )


def _part(file: str) -> str:
    return max((part for part in PARTS if file.startswith(part + "/")), key=len)


def generate(seed: int, refused: frozenset[tuple[str, str, str]] = frozenset()) -> list[Mutant]:
    """As many mutants of each part as PARTS says, without those that did not compile."""
    chooser = random.Random(seed)
    files: dict[str, list[Path]] = {part: [] for part in PARTS}
    for folder, suffixes in (("csrc", (".h", ".cc", ".cuh")), ("posenc_native", (".py",))):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in suffixes and "on_host" not in file.parts:
                files[_part(str(file.relative_to(ROOT)))].append(file)
    chosen: list[Mutant] = []
    for part, count in PARTS.items():
        drawn = _drawn(chooser, files[part])
        own = [next(drawn) for _ in range(count)]
        # One that is refused leaves its place to the next: the others keep their names.
        for i, mutant in enumerate(own):
            while (mutant.file, mutant.before, mutant.after) in refused:
                own[i] = mutant = next(drawn)
        chosen += own
    return [dataclasses.replace(m, name=f"g{i:03}") for i, m in enumerate(chosen, 1)]


def _drawn(chooser: random.Random, files: list[Path]) -> Iterator[Mutant]:
    """Mutants of these files: kinds as often as each other, no line twice, none of planted.toml."""
    chooser = random.Random(chooser.random())
    kinds: dict[str, list[tuple[Path, int, str, str]]] = {}
    for file in files:
        for kind, at, line, new in candidates(file):
            kinds.setdefault(kind, []).append((file, at, line, new))
    names = sorted(kinds)
    by_hand = {(m.file, m.before) for m in load() if m.name.startswith("h")}
    taken: dict[Path, set[int]] = {}
    while True:
        kind = chooser.choice(names)
        file, at, line, new = chooser.choice(kinds[kind])
        lines = taken.setdefault(file, set())
        name = str(file.relative_to(ROOT))
        if len(lines) >= PER_FILE or at in lines or (name, line) in by_hand:
            continue
        lines.add(at)
        before = file.read_text(encoding="utf-8").splitlines()[: at + 1]
        nth = sum(other.strip() == line for other in before)
        yield Mutant("", name, line, new, kind, nth)
