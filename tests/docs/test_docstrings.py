"""The examples in docstrings run, and every public function has one."""

from __future__ import annotations

import doctest
import importlib
import operator
from pathlib import Path

import pytest
from rotating import computing
from targets import NATIVE

import posenc_native as pn

SOURCES = Path(pn.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(source.relative_to(SOURCES).with_suffix("").parts)
    for source in SOURCES.rglob("*.py")
    if source.stem != "__init__" and ">>>" in source.read_text(encoding="utf-8")
)


def test_examples_are_found():
    assert {
        "encodings.sinusoids.tables", "encodings.rotary.rotary", "core.frequencies.frequencies",
        "core.calls.tables", "engines.backend", "nn.biases", "plot.tables",
    } <= set(WITH_EXAMPLES)  # fmt: skip


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name, request):
    if name == "flex" or name.startswith("nn."):
        pytest.importorskip("torch")
    if name.startswith("plot."):
        request.getfixturevalue("figures")
    if NATIVE is None and name in ("engines.backend", "encodings.rotary.apply"):
        pytest.skip("the examples show the native module")
    module = importlib.import_module(f"posenc_native.{name}")
    with computing("reference" if NATIVE is None else "native"):
        results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0  # what differs is in the captured output


NAMESPACES = (
    "absolute",
    "checkpoints",
    "positions",
    "relative",
    "rotary",
    "selective",
    "sinusoids",
)
PUBLIC = sorted(
    [name for name in pn.__all__ if name not in (*NAMESPACES, "flex", "hf", "nn", "plot")]
    + [f"{module}.{name}" for module in NAMESPACES for name in getattr(pn, module).__all__]
)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example(name):
    text = operator.attrgetter(name)(pn).__doc__
    assert "Example" in text
    assert ">>>" in text
