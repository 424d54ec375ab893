"""The examples in docstrings run, and every public function has one."""

from __future__ import annotations

import doctest
import importlib
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
        "sinusoids.tables", "rotary.rotary", "spectra.frequencies", "engines.backend", "nn.biases",
        "plot.tables",
    } <= set(WITH_EXAMPLES)  # fmt: skip


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name, request):
    if name == "flex" or name.startswith("nn."):
        pytest.importorskip("torch")
    if name.startswith("plot."):
        request.getfixturevalue("figures")
    if NATIVE is None and name in ("engines.backend", "rotary.apply"):
        pytest.skip("the examples show the native module")
    module = importlib.import_module(f"posenc_native.{name}")
    with computing("reference" if NATIVE is None else "native"):
        results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0  # what differs is in the captured output


@pytest.mark.parametrize("name", sorted(set(pn.__all__) - {"flex", "hf", "nn", "plot"}))
def test_every_public_name_has_an_example(name):
    text = getattr(pn, name).__doc__
    assert "Example" in text
    assert ">>>" in text
