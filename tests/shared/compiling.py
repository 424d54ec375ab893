"""Functions compiled as a whole, and compared with themselves run eagerly."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import pytest
import torch

# What inductor has its code compiled by: Triton's launchers are C, loops of the processor C++.
_COMPILERS = {"cuda": ("CC", "gcc", "clang", "cc"), "cpu": ("CXX", "g++", "clang++", "c++")}


def why_no_inductor(device: str) -> str | None:
    """Why code that inductor generates for this kind of device cannot be built; None if it can."""
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        return "inductor needs Triton for a CUDA device"
    variable, *names = _COMPILERS[device]
    if not any(map(shutil.which, filter(None, (os.environ.get(variable), *names)))):
        return f"inductor needs a compiler: {', '.join(names)} or ${variable}"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return f"inductor needs Python.h, which is not in {sysconfig.get_path('include')}"
    return None


def needs_inductor(device: str = "cpu") -> None:
    """Skip the test where inductor cannot build its code for this kind of device."""
    if reason := why_no_inductor(device):
        pytest.skip(f"{reason}: runs where that is installed")


def compiled(function, backend="aot_eager", **options):
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def together(cases):
    """One function of several, and its inputs: most of what a compilation takes, it takes once.

    cases: (function, inputs) of each; results are those of all, one after the other.
    """
    cases = list(cases)

    def all_of_them(*inputs):
        results, at = [], 0
        for function, own in cases:
            results += as_tuple(function(*inputs[at : at + len(own)]))
            at += len(own)
        return tuple(results)

    return all_of_them, [x for _, own in cases for x in own]


def groups(*tables, size=8):
    """Parametrize by `together` of so many cases at a time: name -> (function, inputs)."""
    table = {name: case for each in tables for name, case in each.items()}
    names = list(table)
    parts = [names[first : first + size] for first in range(0, len(names), size)]
    return pytest.mark.parametrize(
        ("function", "inputs"),
        [together(table[name] for name in part) for part in parts],
        ids=[f"{part[0]} .. {part[-1]}" for part in parts],
    )


def run(function, inputs, requires_grad):
    """(results, inputs afterwards, gradients)."""
    inputs = [t.clone().requires_grad_(requires_grad and t.is_floating_point()) for t in inputs]
    results = as_tuple(function(*inputs))
    grads = []
    if requires_grad:
        leaves = [t for t in inputs if t.requires_grad]
        outputs = [r for r in results if r.requires_grad]
        weights = [torch.linspace(-1, 1, r.numel()).reshape(r.shape).to(r) for r in outputs]
        grads = list(torch.autograd.grad(outputs, leaves, weights))
    return [*results, *inputs, *grads]


def assert_like_eager(
    function,
    *inputs,
    device="cpu",
    requires_grad=False,
    backend="aot_eager",
    same_strides=True,
    **options,
):
    inputs = [t.to(device) for t in inputs]
    expected = run(function, inputs, requires_grad)
    actual = run(compiled(function, backend, **options), inputs, requires_grad)
    for a, e in zip(actual, expected, strict=True):
        assert a.requires_grad == e.requires_grad
        assert a.stride() == e.stride() or not same_strides
        torch.testing.assert_close(a, e, rtol=0, atol=0)
