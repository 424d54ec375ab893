"""The peak memory of an operation is its inputs and its results, and nothing else.

The kernel counts for the whole process, memory that no allocator of NumPy or torch knows included.
Inputs and results are 16 MiB each, or nearly nothing (frequencies, diagonals, columns). An operator
also keeps nothing when its results are gone; that is counted too, since the next call's peak would
not show it.
"""

import functools
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import posenc_native as pn

torch = pytest.importorskip("torch")

from places import ROOT, SHARED  # noqa: E402
from targets import NOT_SANITIZED  # noqa: E402
from torch_cases import needs_operators  # noqa: E402

from posenc_native import nn as pnn  # noqa: E402

CLEAR_REFS = Path("/proc/self/clear_refs")
pytestmark = [
    needs_operators,
    NOT_SANITIZED,
    pytest.mark.skipif(
        not os.access(CLEAR_REFS, os.W_OK), reason="needs a /proc where peaks can be forgotten"
    ),
]

MIB = 1 << 20
LARGE = 16 * MIB
# Frequencies, columns, angles of a block, sums of pieces: at most 1 MiB here; and the rest of a
# page, which is one of 2 MiB where NumPy asks for such.
SLACK = 3 * MIB
HEADS, TOKENS, HEAD_DIM = 16, 2048, 128
# The sides of square scores, and of those with a column for each distance.
HEADS_OF_SCORES, LENGTH = 1, 2048
INV_FREQ = pn.rotary.rotary_frequencies(HEAD_DIM, 500000.0)[0]


# --- Arrays of both libraries: full of ones, so that their pages are there


def ones(library, *shape, dtype="float32"):
    return library.ones(shape, dtype=getattr(library, dtype))


def vectors(library, dtype="float32"):
    """[1, heads, tokens, head_dim], LARGE."""
    x = ones(library, 1, HEADS * (1 if dtype == "float32" else 2), TOKENS, HEAD_DIM, dtype=dtype)
    assert x.nbytes == LARGE
    return x


def scores(library):
    x = ones(library, HEADS_OF_SCORES, LENGTH, LENGTH)
    assert x.nbytes == LARGE
    return x


def diagonals(library):
    return ones(library, HEADS_OF_SCORES, 2 * LENGTH - 1)


def by_distance(library):
    """Scores with a column for each distance."""
    return ones(library, HEADS_OF_SCORES, LENGTH // 2, LENGTH * 2 - 1)


def frequencies(library):
    return INV_FREQ if library is np else torch.from_numpy(INV_FREQ)


# --- Operations: each makes its inputs and returns what is to be counted

OPERATIONS = {}


def operation(results, *libraries):
    """Enter an operation, for each of the libraries, with the bytes of its new results."""

    def enter(make):
        for library in libraries or (np, torch):
            name = f"{make.__name__}, {library.__name__}"
            OPERATIONS[name] = (results, functools.partial(make, library))
        return make

    return enter


@operation(0)
def rotary_in_place(library):
    x, inv_freq = vectors(library), frequencies(library)
    return lambda: pn.apply_rotary(x, None, inv_freq, out=x)


@operation(0)
def rotary_into_another(library):
    x, out, inv_freq = vectors(library), vectors(library), frequencies(library)
    return lambda: pn.apply_rotary(x, None, inv_freq, out=out)


@operation(LARGE)
def rotary_fresh(library):
    x, inv_freq = vectors(library), frequencies(library)
    return lambda: pn.apply_rotary(x, None, inv_freq)


@operation(LARGE)
def rotary_interleaved_with_a_layout(library):
    x, inv_freq = vectors(library).swapaxes(1, 2), frequencies(library)
    return lambda: pn.apply_rotary(x, None, inv_freq, layout="bshd", pairing="interleaved")


@operation(0, torch)
def rotary_in_place_bfloat16(library):
    x, inv_freq = vectors(library, "bfloat16"), frequencies(library)
    return lambda: pn.apply_rotary(x, None, inv_freq, out=x)


@operation(2 * LARGE)
def rotary_of_q_and_k(library):
    q, k, inv_freq = vectors(library), vectors(library), frequencies(library)
    return lambda: pn.apply_rotary_qk(q, k, None, inv_freq)


@operation(0)
def rotary_of_q_and_k_in_place(library):
    q, k, inv_freq = vectors(library), vectors(library), frequencies(library)
    return lambda: pn.apply_rotary_qk(q, k, None, inv_freq, inplace=True)


@operation(0)
def rotary_by_tables_in_place(library):
    x, tables = vectors(library), pn.rotary_tables(np.arange(TOKENS), INV_FREQ)
    cos, sin = tables if library is np else map(torch.from_numpy, tables)
    return lambda: pn.apply_rotary(x, None, pn.Tables(cos, sin), out=x)


@operation(LARGE)
def rotary_by_tables_fresh(library):
    x, tables = vectors(library), pn.rotary_tables(np.arange(TOKENS), INV_FREQ)
    cos, sin = tables if library is np else map(torch.from_numpy, tables)
    return lambda: pn.apply_rotary(x, None, pn.Tables(cos, sin))


@operation(LARGE)
def rotary_tables(library):
    positions, inv_freq = library.arange(LARGE // HEAD_DIM // 4), frequencies(library)
    return lambda: pn.rotary_tables(positions, inv_freq)


@operation(0)
def rerotation_in_place(library):
    keys, rope = vectors(library), pn.Rotary(HEAD_DIM)
    positions = library.arange(24, 24 + TOKENS)
    return lambda: pn.rerotate(keys, positions, None, rope, out=keys)


@operation(LARGE)
def sinusoidal(library):
    options = {} if library is np else {"dtype": torch.float32}
    return lambda: pn.sinusoidal(LARGE // 4 // 512, 512, **options)


@operation(0)
def sinusoidal_into_another(library):
    out = ones(library, LARGE // 4 // 512, 512)
    return lambda: pn.sinusoidal(len(out), 512, out=out)


@operation(0)
def addition_of_sinusoids_in_place(library):
    x = ones(library, 8, LARGE // 8 // 4 // 512, 512)
    return lambda: pn.add_sinusoidal(x, out=x)


@operation(LARGE)
def addition_of_sinusoids(library):
    x = ones(library, 8, LARGE // 8 // 4 // 512, 512)
    return lambda: pn.add_sinusoidal(x)


@operation(LARGE)
def toeplitz_bias(library):
    given = diagonals(library)
    return lambda: pn.toeplitz_bias(given, LENGTH, LENGTH)


@operation(0)
def addition_of_a_toeplitz_bias_in_place(library):
    given, x = diagonals(library), scores(library)
    return lambda: pn.add_toeplitz_bias(x, given, out=x)


@operation(LARGE)
def addition_of_a_toeplitz_bias(library):
    given, x = diagonals(library), scores(library)
    return lambda: pn.add_toeplitz_bias(x, given)


@operation(0)
def sums_along_diagonals(library):
    x = scores(library)
    return lambda: pn.diagonal_sums(x)


@operation(LARGE // 4)
def relative_shift(library):
    x = by_distance(library)
    return lambda: pn.relative_gather(x, None, LENGTH // 2, origin=LENGTH)


@operation(0)
def relative_shift_onto_content(library):
    x, content = by_distance(library), ones(library, HEADS_OF_SCORES, LENGTH // 2, LENGTH // 2)
    return lambda: pn.relative_gather(
        x, None, LENGTH // 2, origin=LENGTH, content=content, out=content
    )


@operation(LARGE)
def relative_look_up(library):
    x, index = (
        ones(library, HEADS_OF_SCORES, LENGTH, 33),
        pn.relative.clipped_index(LENGTH, LENGTH, 16),
    )
    index = index if library is np else torch.as_tensor(index)
    return lambda: pn.relative_gather(x, index, LENGTH)


@operation(0)
def relative_scatter(library):
    x, index = scores(library), pn.relative.clipped_index(LENGTH, LENGTH, 16)
    index = index if library is np else torch.as_tensor(index)
    return lambda: pn.relative_scatter(x, index, 33)


# --- Gradients: results have been made, and only the way back is counted


def backward(result, *wanted):
    grad = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, wanted, grad, retain_graph=True)


@operation(LARGE, torch)
def backward_of_rotary(library):
    x = vectors(library).requires_grad_()
    return backward(pn.apply_rotary(x, None, frequencies(library)), x)


@operation(LARGE, torch)
def backward_of_rotary_bfloat16(library):
    x = vectors(library, "bfloat16").requires_grad_()
    return backward(pn.apply_rotary(x, None, frequencies(library)), x)


@operation(LARGE, torch)
def backward_of_rotary_in_place(library):
    x = vectors(library).requires_grad_()
    y = x.clone()  # its gradient is that of x
    return backward(pn.apply_rotary(y, None, frequencies(library), out=y), x)


@operation(LARGE, torch)
def backward_of_rotary_by_tables(library):
    x = vectors(library).requires_grad_()
    cos, sin = map(torch.from_numpy, pn.rotary_tables(np.arange(TOKENS), INV_FREQ))
    return backward(pn.apply_rotary(x, None, pn.Tables(cos, sin)), x)


@operation(LARGE, torch)
def backward_of_rotary_to_frequencies(library):
    x, inv_freq = vectors(library).requires_grad_(), frequencies(library).requires_grad_()
    return backward(pn.apply_rotary(x, None, inv_freq), x, inv_freq)


@operation(LARGE, torch)
def backward_of_rotary_to_frequencies_of_heads(library):
    x = vectors(library).requires_grad_()
    inv_freq = frequencies(library).expand(HEADS, -1).clone().requires_grad_()
    return backward(pn.apply_rotary(x, None, inv_freq), x, inv_freq)


@operation(LARGE, torch)
def backward_of_rotary_to_positions(library):
    x = vectors(library).requires_grad_()
    positions = torch.arange(TOKENS, dtype=torch.float64).requires_grad_()
    return backward(pn.apply_rotary(x, positions, frequencies(library)), x, positions)


@operation(0, torch)
def backward_of_addition_of_sinusoids(library):
    x = ones(library, 8, LARGE // 8 // 4 // 512, 512).requires_grad_()
    return backward(pn.add_sinusoidal(x), x)


@operation(0, torch)
def backward_of_toeplitz_bias(library):
    given = diagonals(library).requires_grad_()
    return backward(pn.toeplitz_bias(given, LENGTH, LENGTH), given)


@operation(0, torch)
def backward_of_addition_of_a_toeplitz_bias(library):
    given, x = diagonals(library).requires_grad_(), scores(library).requires_grad_()
    return backward(pn.add_toeplitz_bias(x, given), x, given)


@operation(LARGE, torch)
def backward_of_sums_along_diagonals(library):
    x = scores(library).requires_grad_()
    return backward(pn.diagonal_sums(x), x)


@operation(4 * HEADS_OF_SCORES * (LENGTH // 2) * (LENGTH * 2 - 1), torch)
def backward_of_relative_shift(library):
    x = by_distance(library).requires_grad_()
    return backward(pn.relative_gather(x, None, LENGTH // 2, origin=LENGTH), x)


@operation(0, torch)
def backward_of_relative_look_up(library):
    x = ones(library, HEADS_OF_SCORES, LENGTH, 33).requires_grad_()
    index = torch.as_tensor(pn.relative.clipped_index(LENGTH, LENGTH, 16))
    return backward(pn.relative_gather(x, index, LENGTH), x)


# --- Modules that are a bias: forward, in place and not, and backward


def windows(library):
    """Scores of Swin: windows of 7 x 7 patches, 3 heads."""
    return ones(library, LARGE // (3 * 49 * 49 * 4), 3, 49, 49)


def forward_of(module, make_scores, inplace):
    layer, x = module().requires_grad_(False), make_scores(torch)
    return lambda: layer(x, inplace=inplace)


def backward_of(module, make_scores):
    layer, x = module(), make_scores(torch).requires_grad_()
    return backward(layer(x), x, *layer.parameters())


for _name, _of in {
    "T5": (lambda: pnn.T5RelativeBias(HEADS_OF_SCORES), scores),
    "ALiBi": (lambda: pnn.ALiBi(HEADS_OF_SCORES, learned=True), scores),
    "Swin": (lambda: pnn.SwinRelativeBias(3, 7), windows),
}.items():
    OPERATIONS[f"{_name}, in place"] = 0, functools.partial(forward_of, *_of, inplace=True)
    OPERATIONS[f"{_name}, fresh"] = LARGE, functools.partial(forward_of, *_of, inplace=False)
    OPERATIONS[f"{_name}, backward"] = 0, functools.partial(backward_of, *_of)


# --- What must be noticed: an operation with a copy of a part of its input, and one that keeps it


def with_a_copy():
    x, inv_freq = vectors(torch), frequencies(torch)

    def work():
        part = x[:, : HEADS // 2].clone()
        pn.apply_rotary(x, None, inv_freq, out=x)
        return part

    return work


def keeping_a_copy():
    x, inv_freq, kept = vectors(torch), frequencies(torch), {}

    def work():
        if not kept:
            kept["workspace"] = x[:, : HEADS // 2].clone()
        pn.apply_rotary(x, None, inv_freq, out=x)

    return work


# --- Counting


def status(name):
    """Bytes of an entry of /proc/self/status."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


def growth(make):
    """How far memory in use goes up: what a first call keeps, and the peak within a second one."""
    work = make()
    gc.collect()
    before = status("VmRSS")
    work()
    gc.collect()
    CLEAR_REFS.write_text("5", encoding="ascii")  # the peak is what is in use now
    after = status("VmRSS")
    result = work()
    peak = status("VmHWM") - after
    del result
    return {"kept": after - before, "peak": peak}


def write_growths():
    """Run by the fixture below in a process of its own."""
    pn.set_num_threads(2)
    torch.set_num_threads(2)
    gc.freeze()  # what modules made: to look through it takes longer than the operations
    found = {name: growth(make) for name, (_, make) in OPERATIONS.items()}
    found |= {"with a copy": growth(with_a_copy), "keeping a copy": growth(keeping_a_copy)}
    sys.stdout.write(json.dumps(found))


@pytest.fixture(scope="module")
def growths():
    folders = map(str, (Path(__file__).parent, SHARED, ROOT))
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    # What is freed goes back to the system: else a second call would find it in use already.
    environment = os.environ | {"PYTHONPATH": path, "MALLOC_MMAP_THRESHOLD_": str(MIB // 8)}
    code = f"import {Path(__file__).stem} as t; t.write_growths()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_peak_is_inputs_and_results(name, growths):
    results, _ = OPERATIONS[name]
    beyond = growths[name]["peak"] - results
    assert beyond <= SLACK, f"{beyond / MIB:.1f} MiB beside {results / MIB:.1f} MiB of results"


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_is_kept(name, growths):
    kept = growths[name]["kept"]
    assert kept <= SLACK, f"{kept / MIB:.1f} MiB"


def test_results_and_copies_are_noticed(growths):
    assert growths["rotary_fresh, numpy"]["peak"] > LARGE - SLACK
    assert growths["rotary_fresh, torch"]["peak"] > LARGE - SLACK
    assert growths["with a copy"]["peak"] > 2 * SLACK
    assert growths["keeping a copy"]["kept"] > 2 * SLACK
