"""Namespaces: names that are imported when they are first used, and that type checkers see."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
from interpreters import output_of

import posenc_native as pn
from posenc_native.core.calls.optional import Unavailable

FAMILIES = ("absolute", "positions", "relative", "rotary", "selective", "sinusoids")
NAMESPACES = ["posenc_native", "posenc_native.checkpoints", *(
    f"posenc_native.encodings.{name}" for name in FAMILIES
)]  # fmt: skip


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_type_checkers_are_told_where_public_names_are(namespace):
    package = importlib.import_module(namespace)
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    told: dict[str, str] = {}
    loaded: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            told |= {
                alias.name: statement.module
                for statement in node.body
                if isinstance(statement, ast.ImportFrom) and statement.module
                for alias in statement.names
            }
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy":
            places = ast.literal_eval(node.args[1])
            loaded |= {name: module for module, names in places.items() for name in names.split()}
    assert told == loaded
    assert told.keys() <= {*package.__all__}


def test_namespaces_can_be_imported():
    code = "\n".join(f"from posenc_native.{name} import *" for name in (*FAMILIES, "checkpoints"))
    code += "\nprint(alibi_slopes.__name__, permute_qk.__module__, posenc_native.relative.__name__)"
    found = output_of(f"import posenc_native\n{code}").split()
    assert found == [
        "alibi_slopes",
        "posenc_native.checkpoints",
        "posenc_native.encodings.relative",
    ]


@pytest.mark.parametrize("namespace", NAMESPACES[1:])
def test_a_name_of_a_namespace_says_where_it_is(namespace):
    package = importlib.import_module(namespace)
    place = namespace.replace("encodings.", "")
    for name in package.__all__:
        with pytest.raises(AttributeError, match=rf"; use {place}\.{name}$"):
            getattr(pn, name)
    with pytest.raises(AttributeError, match=f"{place}' has no attribute 'no_such_name'"):
        package.no_such_name  # noqa: B018


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_names_are_listed(namespace):
    package = importlib.import_module(namespace)
    assert set(package.__all__) <= set(dir(package))
    assert list(package.__all__) == sorted(package.__all__)


# What replaces a name that is gone, by the module that users may look for it in.
GONE = {
    "apply_rotary_tables": ("", "write apply_rotary(x, None, Tables(cos, sin))"),
    "sinusoidal_preset": (
        "sinusoids", "write posenc_native.SinusoidalSpec.preset(name, dim, ...)(positions)"),
    "sinusoidal_presets": ("sinusoids", "write posenc_native.SinusoidalSpec.presets()"),
    "sinusoidal_grid": (
        "sinusoids", "write posenc_native.SinusoidalSpec(dim, axis_order=(0, 1), ...)(positions)"),
    "rotary_presets": ("rotary", "write posenc_native.Rotary.presets()"),
    "context_parallel_positions": (
        "positions",
        "write posenc_native.positions.ContextParallel(rank, ranks, order).positions(length)"),
    "PairingEvidence": ("checkpoints", "is posenc_native.checkpoints.weights.PairingEvidence"),
    "SelectiveState": ("nn", "is posenc_native.nn.selective.SelectiveState"),
    "Patch": ("hf", "is posenc_native.hf.patching.Patch"),
}  # fmt: skip


@pytest.mark.parametrize("name", GONE)
def test_a_name_that_is_gone_says_what_to_write(name):
    namespace, said = GONE[name]
    for module in (pn, getattr(pn, namespace)) if namespace else (pn,):
        if isinstance(module, Unavailable):
            pytest.skip("needs torch")
        with pytest.raises(
            AttributeError, match=rf"has no attribute '{name}'; .*{re.escape(said)}$"
        ):
            getattr(module, name)


def test_names_are_few():
    """A new name says what no other one says; this number is raised with it."""
    pytest.importorskip("torch")
    spaces = (*FAMILIES, "checkpoints", "flex", "hf", "nn", "plot")
    public = {*pn.__all__} - {*spaces}
    assert len(public) + sum(len(getattr(pn, name).__all__) for name in spaces) <= 115
