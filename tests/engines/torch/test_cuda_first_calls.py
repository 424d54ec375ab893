"""The very first call of a process, on a CUDA device: in a new thread, and in a graph's capture.

Kernels are loaded then, and what is kept for later calls is made. A capture forbids much that a
call outside of one may do; so each kernel has a process in which nothing came before it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import SHARED

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402

# Of x [1, 2, 5, 16], positions [5], f [8], scores [1, 2, 5, 7] and diagonals [2, 11].
CALLS = {
    "rotary": "pn.apply_rotary_qk(x, x, positions, f)",
    "rotary in place": "pn.apply_rotary(x, positions, f, out=x)",
    "rotary gradient": "ops.rotary_backward("
    "x.round(), x.round(), 0 * positions, f.round(), of_positions=True)",
    "sinusoidal": "pn.add_sinusoidal(x, positions)",
    "toeplitz": "pn.add_toeplitz_bias(scores, diagonals)",
    "diagonal sums": "pn.diagonal_sums(scores)",
    "gather": "pn.relative_gather(x, None, 12)",
    "scatter": "pn.relative_scatter(scores, None, 11)",
}
PROGRAM = """
import sys
import threading

import torch

import posenc_native as pn

shared, device, way, expression = sys.argv[1:]
sys.path.insert(0, shared)
ops = torch.ops.posenc_native

def inputs(device):
    generator = torch.Generator().manual_seed(0)
    x, scores, diagonals = (
        torch.randn(shape, generator=generator) for shape in ((1, 2, 5, 16), (1, 2, 5, 7), (2, 11))
    )
    positions, f = torch.arange(5) * 1000, 10000.0 ** -(torch.arange(8) / 8)
    named = {"x": x, "positions": positions, "f": f, "scores": scores, "diagonals": diagonals}
    return {name: tensor.to(device) for name, tensor in named.items()}

def call(given):
    if "ops." in expression:
        from posenc_native.engines import torch as tensors  # loads the operators
    results = eval(expression, {"pn": pn, "ops": ops}, given)
    return results if isinstance(results, tuple) else (results,)

failures = []

def first():
    try:
        given = inputs(device)
        if way == "eager":
            results = call(given)
        else:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                results = call(given)
            graph.replay()
            torch.cuda.synchronize()
        from torch_cases import assert_same_bits
        for result, expected in zip(results, call(inputs("cpu")), strict=True):
            assert_same_bits(result, expected)
    except BaseException as error:
        failures.append(error)

thread = threading.Thread(target=first)
thread.start()
thread.join()
if failures:
    raise failures[0]
print("the same")
"""


def first_call(device, way, expression):
    """What the first call of a process says, from a thread of its own."""
    command = [sys.executable, "-c", PROGRAM, str(SHARED), device, way, expression]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the same\n"


@torch_cases.needs_operators
@torch_cases.needs_cuda
@pytest.mark.parametrize("way", ["captured", "eager"])
@pytest.mark.parametrize("expression", CALLS.values(), ids=CALLS)
def test_the_first_call_on_cuda_comes_from_a_new_thread(expression, way):
    if reason := torch_cases.why_no_kernels("cuda"):
        pytest.skip(reason)
    first_call("cuda", way, expression)


@torch_cases.needs_operators
@pytest.mark.parametrize("expression", [CALLS["rotary gradient"]])
def test_the_first_call_on_the_cpu_comes_from_a_new_thread(expression):
    first_call("cpu", "eager", expression)
