"""What `import posenc_native` brings along: no warning, no framework, little of anything.

A command says how long it takes, not a test: ``python -X importtime -c "import posenc_native"``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from interpreters import WITHOUT_OPTIONAL, output_of

import posenc_native as pn

# Of the standard library, beside what NumPy imports itself in one version or another;
# importlib.util finds an editable install.
STANDARD = {"__future__", "_decimal", "decimal", "numbers", "importlib.machinery",
            "importlib.util", "importlib._abc"}  # fmt: skip
FAMILIES = ("absolute", "positions", "relative", "rotary", "selective", "sinusoids")
# Of the package: what chooses an engine, what it says errors with, and where names are.
OWN = {"posenc_native", *(f"posenc_native.{name}" for name in (
    "_core", "_core.door", "core", "core.calls", "core.calls.arguments", "core.calls.errors",
    "core.calls.tables", "encodings.namespaces", "engines", "engines.backend", "engines.late",
    "checkpoints", "encodings", *FAMILIES, *(f"encodings.{name}" for name in FAMILIES),
))}  # fmt: skip


@pytest.fixture(scope="module")
def fresh() -> dict[str, Any]:
    """What an interpreter without typing_extensions loads: of NumPy, the package, a first call."""
    code = """
        import json, sys
        sys.modules["typing_extensions"] = None
        import numpy as np, numpy.typing
        before = set(sys.modules)
        import posenc_native as pn
        brought = set(sys.modules) - before
        pn.apply_rotary(np.ones((1, 1, 1, 4)), None, np.ones(2))
        called = list(sys.modules)
        import posenc_native.core.calls.kinds, posenc_native.core.calls.rotation
        number = float(pn.sinusoidal(1, 2)[0, 1])
        print(json.dumps({"brought": list(brought), "called": called, "number": number}))
        """
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no warning
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_nothing_heavy_comes_along(fresh):
    brought = set(fresh["brought"])
    ours = {name for name in brought if name.partition(".")[0] == "posenc_native"}
    assert ours - OWN == set()
    assert brought - ours - STANDARD == set()


def test_what_is_not_called_is_not_loaded(fresh):
    assert "posenc_native.encodings.rotary.apply" in fresh["called"]
    # The reference, configurations of models, what draws, speaks torch, is for the command line.
    for name in (
        "engines.plain.arrays",
        "models",
        "encodings.sinusoids.tables",
        "engines.torch",
        "nn",
        "cli",
        "plot",
    ):
        part = f"posenc_native.{name}."
        assert not [module for module in fresh["called"] if f"{module}.".startswith(part)]


def test_typing_extensions_is_for_type_checkers_alone(fresh):
    assert fresh["number"] == 1.0


def test_modules_for_torch_come_when_they_are_asked_for():
    pytest.importorskip("torch")
    code = """
        import sys, posenc_native as pn
        assert "torch" not in sys.modules
        print(*(getattr(pn, name).__name__ for name in ("nn", "hf", "flex")))
        assert "torch" in sys.modules
        """
    assert output_of(code).split() == [f"posenc_native.{name}" for name in ("nn", "hf", "flex")]


def test_parts_whose_packages_are_missing_can_be_looked_at():
    """help(), inspect and hasattr look at every name; only a use needs the package."""
    code = """
        import copy, inspect, pydoc, sys
        from types import ModuleType
        import posenc_native as pn
        from posenc_native import *
        from posenc_native import nn as pnn

        members = dict(inspect.getmembers(pn))
        assert members.keys() >= set(pn.__all__)
        assert "posenc_native.nn" in pydoc.render_doc(pn)
        for name in ("flex", "hf", "nn"):
            assert hasattr(pn, name)
            part = getattr(pn, name)
            assert part is members[name] is globals()[name]
            assert isinstance(part, ModuleType) and part.__name__ == f"posenc_native.{name}"
            assert f"posenc_native.{name} needs" in pydoc.render_doc(part) and repr(part)
            assert all(key.startswith("__") for key in dict(inspect.getmembers(part)))
            assert inspect.unwrap(part) is part
            assert f"posenc_native.{name}" not in sys.modules
        assert "A table as shades" in pydoc.render_doc(pn.plot.heatmap)
        for use in (lambda: pnn.RotaryEmbedding, lambda: isinstance(pn, pn.nn.ALiBi),
                    lambda: pn.hf.patch(pn), lambda: pn.plot.heatmap(8)):
            try:
                use()
            except ImportError as error:
                print(str(error).partition(": pip install ")[0])
        """
    assert output_of(WITHOUT_OPTIONAL + textwrap.dedent(code)).splitlines() == [
        "posenc_native.nn needs torch",
        "posenc_native.nn needs torch",
        "posenc_native.hf needs torch (and transformers, for a model)",
        "posenc_native.plot needs matplotlib",
    ]


def test_public_names_are_all_there():
    assert set(pn.__all__) <= set(dir(pn))
    assert len(set(pn.__all__)) == len(pn.__all__)
    for name in set(pn.__all__) - {"flex", "hf", "nn", "plot"}:  # these need torch or matplotlib
        assert hasattr(pn, name), name
    with pytest.raises(AttributeError, match="no attribute 'rotray'"):
        _ = pn.rotray


@pytest.mark.parametrize("room", ["", "flex", "nn", "plot"])
def test_names_that_are_completed_are_public(room):
    if room:
        pytest.importorskip("matplotlib" if room == "plot" else "torch")
    module = getattr(pn, room) if room else pn
    shown = {name for name in dir(module) if not name.startswith("__")}
    assert shown == {*module.__all__, *(["HeadParallel"] if room == "nn" else [])}
    assert {"__all__", "__doc__", "__name__"} <= set(dir(module))


@pytest.mark.skipif(pn.engines.backend.native is None, reason="the native module is not built")
def test_the_native_module_refuses_sub_interpreters():
    # pybind11 would wait for the main interpreter's lock there, for ever.
    pytest.importorskip(
        "_xxsubinterpreters", reason="CPython 3.13 has another name for it: runs on 3.10 to 3.12"
    )
    inner = """
        import warnings
        warnings.simplefilter("ignore")  # of NumPy, which does not support them either, and ours
        import posenc_native as pn
        assert pn.engines.backend.native is None
        assert "sub-interpreters" in pn.engines.backend.missing, pn.engines.backend.missing
        assert pn.sinusoidal(2, 4).shape == (2, 4)
        """
    program = f"""
        import _xxsubinterpreters as interpreters
        import textwrap
        one = interpreters.create(isolated=False)
        interpreters.run_string(one, textwrap.dedent({inner!r}))
        print("done")
        interpreters.destroy(one)
        """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "done\n", done.stderr
