"""Training with a relative bias takes no memory for the bias: no [H, q_len, k_len] beside scores.

Counted twice: every allocation that torch makes, from its profiler, and what the process has in
memory at most, from the kernel. The same counts say that they notice what they are there to forbid.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from places import ROOT, SHARED  # noqa: E402
from targets import NOT_SANITIZED  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

pytestmark = torch_cases.needs_operators

HEAD_DIM = 16


# --- One layer: scores of queries and keys, the bias, and back to the table


def in_place(module, scores):
    return module(scores, inplace=True)


def by_function(module, scores):
    diagonals = pn.relative.t5_diagonals(module.weight, *scores.shape[-2:])
    return pn.add_toeplitz_bias(scores, diagonals, out=scores)


def out_of_place(module, scores):
    return module(scores)


def bias_added(module, scores):
    return scores.add_(module.bias(*scores.shape[-2:]))


def without_bias(module, scores):
    return scores


def table_by_index(module, scores):
    """As transformers has it: a bucket for every query and key, and its row of the table."""
    distances = pn.relative.relative_positions(*scores.shape[-2:], device="cpu")
    buckets = pn.relative.relative_position_bucket(distances)
    steps = torch.arange(scores.shape[-1])
    index = buckets[steps - steps[:, None] + (scores.shape[-1] - 1)]
    return scores.add_(module.weight[index].permute(2, 0, 1))


class Layer:
    """Queries, keys, a table; and the gradient of the scores, as what follows them would give."""

    def __init__(self, heads, length, dtype):
        torch.manual_seed(0)
        self.q, self.k = (
            torch.randn(1, heads, length, HEAD_DIM, dtype=dtype, requires_grad=True)
            for _ in range(2)
        )
        self.module = pnn.T5RelativeBias(heads).to(dtype)
        self.grad = torch.full((1, heads, length, length), 0.5, dtype=dtype)

    def train(self, add):
        add(self.module, self.q @ self.k.mT).backward(self.grad)


# --- What torch allocates


@dataclass
class Allocations:
    sizes: list[int]  # bytes of each
    peak: int  # bytes at one time, beyond those at the beginning


def allocations(work, path):
    """Every allocation of a tensor's memory on the processor during work(), by any operator."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    profile.export_chrome_trace(str(path))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = [
        event["args"]["Bytes"]
        for event in sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: e["ts"])
        if event["args"]["Device Type"] == 0
    ]
    total = peak = 0
    for change in changes:
        total += change
        peak = max(peak, total)
    return Allocations([change for change in changes if change > 0], peak)


def check(found, bare, heads, length, itemsize):
    """The scores, and nothing more of [length, length], be its elements a quarter of a byte.

    bare: those of the layer without a bias. Some processors' products in bfloat16 have a matrix in
    float32 to themselves (oneDNN's, on a Xeon with AMX); it is none of the bias.
    """
    scores = heads * length * length * itemsize
    small = length * length // 4
    large, products = ([n for n in a.sizes if n >= small] for a in (found, bare))
    assert products.count(scores) == 1
    assert large == products, f"{len(large)} large allocations: {large}"
    assert found.peak < bare.peak + small


def count(add, heads, length, dtype, path):
    for once in (add, without_bias):
        Layer(heads, 64, dtype).train(once)  # what is made once
    layer = Layer(heads, length, dtype)
    found = allocations(lambda: layer.train(add), path)
    assert all(t.grad is not None for t in (layer.q, layer.k, layer.module.weight))
    bare = allocations(lambda: layer.train(without_bias), path)
    check(found, bare, heads, length, dtype.itemsize)


@pytest.mark.parametrize(
    ("add", "heads", "dtype"),
    [(in_place, 1, torch.float32), (by_function, 2, torch.bfloat16)],
    ids=["module", "function"],
)
def test_a_bias_of_8192_trains_without_a_matrix_beside_the_scores(add, heads, dtype, tmp_path):
    count(add, heads, 8192, dtype, tmp_path / "trace.json")


@pytest.mark.parametrize(
    "add", [out_of_place, bias_added, table_by_index], ids=lambda add: add.__name__
)
def test_the_count_notices_matrices(add, tmp_path):
    with pytest.raises(AssertionError, match="large allocations"):
        count(add, 1, 1024, torch.float32, tmp_path / "trace.json")


# --- What the process has in memory: also what no allocator of torch knows of


def status(name):
    """Bytes of an entry of /proc/self/status."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


def growth(add, layer):
    """How far above the memory now in use that of training goes."""
    before = status("VmRSS")
    layer.train(add)
    return status("VmHWM") - before


def write_growths(heads, length):
    """Run by the test below in a process of its own. The larger comes last: peaks never fall."""
    for add in (in_place, out_of_place):
        Layer(heads, 256, torch.float32).train(add)
    layer = Layer(heads, length, torch.float32)
    sys.stdout.write(f"{growth(in_place, layer)} {growth(out_of_place, layer)}")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@NOT_SANITIZED
def test_the_process_grows_by_the_scores_alone():
    heads, length = 1, 8192
    folders = map(str, (Path(__file__).parent, SHARED, ROOT))
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    # Two threads: others' stacks and buffers would count.
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "2"}
    code = f"import {Path(__file__).stem} as t; t.write_growths({heads}, {length})"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    mine, another_matrix = map(int, done.stdout.split())
    scores, bytes_of_a_matrix = heads * length * length * 4, length * length
    assert abs(mine - scores) < bytes_of_a_matrix / 2
    assert another_matrix > mine + scores - bytes_of_a_matrix / 2  # it would be noticed
