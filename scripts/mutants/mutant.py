"""A mutant: one line of the sources, and what stands there instead."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "tests" / "mutants"
FOUND = TABLES / "killed.csv"
ALONE = "no test of another file"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`before`, whole lines without their indentation, becomes `after` in `file`.

    `nth` tells lines that stand several times in a file apart; `kind` is the operator of a
    generated mutant, and of one planted by hand the words for what goes wrong.
    """

    name: str
    file: str
    before: str
    after: str
    kind: str
    nth: int = 1

    @property
    def native(self) -> bool:
        """Whether it is in C++: compiled behind a switch, and not written into the file."""
        return self.file.startswith("csrc/")

    @property
    def number(self) -> int:
        """What its switch is called: natural, the same in every run."""
        return int(self.name[1:]) + (1000 if self.name[0] == "h" else 0)

    def line(self, text: str) -> int:
        """Index of its first line in its file's text; LookupError if the sources have moved on."""
        lines = [line.strip() for line in text.splitlines()]
        wanted = self.before.splitlines()
        at = [i for i in range(len(lines)) if lines[i : i + len(wanted)] == wanted]
        if len(at) < self.nth:
            raise LookupError(
                f"{self.name}: {self.file}: expected {self.nth} x {self.before!r}, found "
                f"{len(at)}; write what stands there now, or take the mutant out"
            )
        return at[self.nth - 1]

    def written(self, text: str) -> str:
        """The text of its file with the mutant in place."""
        lines = text.splitlines(keepends=True)
        at = self.line(text)
        count = len(self.before.splitlines())
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        new = [f"{indent}{line}\n" for line in self.after.splitlines()]
        return "".join(lines[:at] + new + lines[at + count :])


def load() -> list[Mutant]:
    """Every mutant of the repository, generated and planted by hand."""
    return [
        Mutant(**row)
        for table in ("generated", "planted")
        if (file := TABLES / f"{table}.toml").exists()
        for row in tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]
    ]


def save_generated(mutants: Iterable[Mutant]) -> None:
    """Write generated.toml."""
    lines = ["# Written by `make mutants ARGS=--generate`: not by hand, which is planted.toml.\n"]
    for mutant in mutants:
        lines.append("\n[[mutant]]\n")
        for key, value in dataclasses.asdict(mutant).items():
            if (key, value) != ("nth", 1):
                lines.append(f"{key} = {_toml(value)}\n")
    (TABLES / "generated.toml").write_text("".join(lines), encoding="utf-8")


def _toml(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    if "'" not in value:
        return f"'{value}'"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclasses.dataclass(frozen=True)
class Found:
    """A row of the matrix: which test killed a mutant, or "" and the judgment of why none does.

    reached_by: how many test files reach it; 0 where nobody has counted. also_killed_by: a test of
    another file, ALONE where none was found in time, or "" where nobody has looked for one.
    """

    name: str
    file: str
    killed_by: str
    seconds: float
    reached_by: int
    judgment: str = ""
    also_killed_by: str = ""

    @property
    def by_a_test(self) -> bool:
        """Whether a test failed: not that one crashed or ran for ever, nor the fuzzer."""
        return "::" in self.killed_by and not self.killed_by.endswith(")")


def load_found() -> dict[str, Found]:
    """The matrix, by names of mutants."""
    if not FOUND.exists():
        return {}
    with FOUND.open(encoding="utf-8", newline="") as file:
        return {
            row["name"]: Found(
                row["name"],
                row["file"],
                row["killed_by"],
                float(row["seconds"]),
                int(row["reached_by"]),
                row["judgment"],
                row["also_killed_by"],
            )
            for row in csv.DictReader(file)
        }


def save_found(rows: dict[str, Found]) -> None:
    """Write the matrix, in the order of the mutants."""
    fields = [field.name for field in dataclasses.fields(Found)]
    with FOUND.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(rows[m.name]) for m in load() if m.name in rows)
