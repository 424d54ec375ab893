"""What `import posenc_native` brings along: no warning, no framework, little of anything.

A command says how long it takes, not a test: ``python -X importtime -c "import posenc_native"``.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import posenc_native as pn

# Of the standard library, beside what NumPy imports itself in one version or another;
# importlib.util finds an editable install.
STANDARD = {"__future__", "_bisect", "_decimal", "bisect", "copy", "dataclasses", "decimal",
            "inspect", "numbers", "ast", "dis", "opcode", "_opcode", "tokenize", "token",
            "linecache", "importlib.machinery", "importlib.util", "importlib._abc", "copyreg",
            "keyword", "reprlib", "textwrap", "annotationlib", "_opcode_metadata"}  # fmt: skip


def run(program: str, *options: str) -> str:
    command = [sys.executable, *options, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_without_a_warning():
    run("import posenc_native", "-W", "error", "-X", "dev")


def test_nothing_heavy_comes_along():
    brought = run(
        """
        import sys, numpy, numpy.typing
        before = set(sys.modules)
        import posenc_native
        print(*sorted(set(sys.modules) - before))
        """
    ).split()
    ours = {name for name in brought if name.partition(".")[0] == "posenc_native"}
    assert ours
    assert set(brought) - ours - STANDARD == set()
    # What draws, what speaks torch, what is for the command line.
    for name in ("nn", "flex", "hf", "engines.tensors", "cli", "plot"):
        assert not any(f"{module}.".startswith(f"posenc_native.{name}.") for module in ours), name


def test_typing_extensions_is_for_type_checkers_alone():
    program = """
        import sys
        sys.modules["typing_extensions"] = None
        import posenc_native as pn
        import posenc_native.base.kinds, posenc_native.base.rotation
        print(pn.sinusoidal(1, 2)[0, 1])
        """
    assert run(program) == "1.0\n"


@pytest.mark.parametrize("name", ["flex", "hf", "nn"])
def test_modules_for_torch_come_when_they_are_asked_for(name):
    pytest.importorskip("torch")
    program = f"""
        import sys, posenc_native as pn
        assert "torch" not in sys.modules
        print(pn.{name}.__name__, "torch" in sys.modules)
        """
    assert run(program) == f"posenc_native.{name} True\n"


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
