"""SECURITY.md names all that the sources read, and what it promises of files and imports holds."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from interpreters import output_of
from places import ROOT

import posenc_native

PACKAGE = Path(posenc_native.__file__).parent
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
# What reads a file, a variable or a library: names of functions, and of what is subscripted.
READERS = {"open", "read_text", "read_bytes", "load", "loads", "fromfile", "memmap", "genfromtxt",
           "loadtxt", "load_file", "safe_open", "from_pretrained", "load_library", "CDLL", "getenv",
           "environ", "unpickle", "literal_eval", "urlopen"}  # fmt: skip
ANONYMOUS = re.compile(r"\bmmap\([^;]*MAP_ANON[^;]*;")  # memory, and no file
C_READERS = re.compile(r"\b(getenv|fopen|open|ifstream|dlopen|popen|system|mmap)\s*\(")


def in_the_table() -> set[str]:
    table = PAGE.partition("## What is read")[2].partition("\n## ")[0]
    return set(re.findall(r"`((?:posenc_native|csrc)/[\w./]+)`", table))


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.Module]:
    """The package's, by their paths."""
    return {
        f"posenc_native/{file.relative_to(PACKAGE).as_posix()}": ast.parse(
            file.read_text(encoding="utf-8")
        )
        for file in PACKAGE.rglob("*.py")
    }


def reads(module: ast.Module) -> set[str]:
    """The readers that a module calls or subscripts, less files opened to write."""
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and node.attr in READERS - {"open"}:
            found.add(node.attr)
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = getattr(function, "id", getattr(function, "attr", None))
        words = [each.value for each in node.args if isinstance(each, ast.Constant)]
        written = any(isinstance(word, str) and word[:1] in {"w", "x", "a"} for word in words)
        # Image.open(buffer) opens no file; path.open() and path.open("rb") do.
        opens_other = isinstance(function, ast.Attribute) and node.args and not words
        if name in READERS and not (name == "open" and (written or opens_other)):
            found.add(name)
    return found


def test_the_table_names_all_that_reads(modules):
    reading = {name for name, module in modules.items() if reads(module)}
    sources = {
        file.relative_to(ROOT).as_posix()
        for pattern in ("*.cc", "*.h", "*.cu", "*.cuh")
        for file in (ROOT / "csrc").rglob(pattern)
        if C_READERS.search(ANONYMOUS.sub("", file.read_text(encoding="utf-8")))
    }
    writes_or_closes = {"posenc_native/cli/__init__.py"}  # os.devnull, for a closed output
    assert reading - writes_or_closes | sources == in_the_table()


def test_what_reads_is_seen():
    for code in ("open(path)", "open(path, 'rb')", "path.open('rb')", "path.open()",
                 "path.read_text()", "open(path, encoding='utf-8')",
                 "np.load(p)", "json.loads(text)", "os.environ['HOME']", "os.getenv('HOME')",
                 "torch.ops.load_library(path)"):  # fmt: skip
        assert reads(ast.parse(code)), code
    for code in ("path.open('wb')", "open(path, 'w')", "path.write_text('')"):
        assert not reads(ast.parse(code)), code


def test_nothing_imports_a_network_or_a_pickle(modules):
    kinds = {"socket", "ssl", "http", "urllib", "requests", "ftplib", "pickle", "marshal", "shelve"}
    for file, module in modules.items():
        for node in ast.walk(module):
            names = [each.name for each in getattr(node, "names", []) if hasattr(each, "name")]
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert not kinds & {name.partition(".")[0] for name in names}, file


# Before anything else is imported: every event that the interpreter knows from then on.
WATCH = """
import os, sys
import numpy  # what it does is its own
seen = []
def watch(event, arguments):
    kind = event.partition(".")[0]
    writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or kind in {"socket", "urllib", "http", "subprocess", "pickle", "shutil", "tempfile"}:
        seen.append((event, str(arguments)))
    if event in {"os.system", "os.exec", "os.posix_spawn", "os.fork", "_thread.start_new_thread",
                 "os.mkdir", "os.remove", "os.rename", "os.putenv"}:
        seen.append((event, str(arguments)))
sys.dont_write_bytecode = True
sys.addaudithook(watch)
"""


def test_neither_an_import_nor_a_configuration_does_more_than_read(tmp_path):
    config = {"model_type": "llama", "head_dim": 64, "rope_theta": 1e4, "num_hidden_layers": 2}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    asked = f"""
import posenc_native as pn
print("imported", seen)
pn.explain({str(path)!r})
pn.Rotary.preset("llama-3.1")
print("asked", seen)
"""
    assert output_of(WATCH + asked) == "imported []\nasked []\n"


def test_the_bounds_are_those_of_the_sources():
    from posenc_native.cli import _LONGEST
    from posenc_native.cli.demo import measure
    from posenc_native.models import files

    said = " ".join(PAGE.split())
    assert f"{files.MOST_BYTES >> 20} MiB, {files.MOST_LEVELS} levels" in said
    assert f"its first {measure.FULL.context} bytes" in said
    assert f"at most {_LONGEST} characters" in said
