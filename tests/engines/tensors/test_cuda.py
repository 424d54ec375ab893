"""What only a CUDA device can show: streams, graphs, compiled graphs, no waiting, large tensors.

What runs on every device is tested by the files beside this one: they take a device as a fixture.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import math
import tempfile
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch_cases import FAR, FLOATS, assert_same_bits, dtype_id, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

pytestmark = [torch_cases.needs_operators, torch_cases.needs_cuda]

HEAD_DIM = 16
SHAPE = (2, 3, 5, HEAD_DIM)


@pytest.fixture(autouse=True)
def _kernels():
    if reason := torch_cases.why_no_kernels("cuda"):
        pytest.skip(reason)


def inv_freq(device="cuda", dim=HEAD_DIM):
    return torch.tensor(pn.rotary_frequencies(dim)[0], device=device)


class Inputs:
    """Arguments on a device; made anew, they are the same numbers."""

    def __init__(self, device="cuda", dtype=torch.float32, shape=SHAPE):
        self.x, self.other = (random(shape, dtype, device, seed) for seed in (0, 1))
        self.k = random((shape[0], 1, *shape[2:]), dtype, device, seed=2)
        self.out = torch.full_like(self.x, -7.0)  # no NaN: devices differ in its bits
        self.positions = torch.arange(shape[2], device=device) * 1000 + 2**33
        self.fractions = self.positions.double() + 0.25
        self.axes = torch.stack([self.positions, self.positions - 2**33])
        self.axis_map = torch.arange(HEAD_DIM // 2, device=device) % 2
        self.f = inv_freq(device)
        self.cos, self.sin = pn.rotary_tables(self.positions, self.f)
        self.table = torch.full((shape[2], HEAD_DIM), -7.0, dtype=dtype, device=device)
        # Relative: scores of 5 queries and keys of which there are two windows in longer diagonals.
        queries, keys = shape[2:]
        self.diagonals = random((shape[1], queries + keys + 3), dtype, device, seed=3)
        self.offsets = torch.arange(shape[0], device=device)
        self.window = {"q_offset": self.offsets, "origin": queries + 2}
        self.bias = torch.full_like(self.x, -7.0)
        # Whole numbers: the order of sums does not show.
        self.whole = (self.x * 4).round()
        self.wide = random((*shape[:3], 9), dtype, device, seed=4)
        self.wide_out = torch.full_like(self.wide, -7.0)
        self.index = torch.arange(queries + keys + 3, device=device).clamp(3, 11) - 3
        self.tensors = [self.x, self.other, self.k, self.out, self.table, self.bias, self.wide_out]


ROPE = pn.Rotary(HEAD_DIM, base=5e5)
MODULE = pnn.RotaryEmbedding(HEAD_DIM, base=5e5)
ENCODE = pnn.SinusoidalPositionalEncoding(HEAD_DIM, 0.0, base=5e5)

# Every function of tensors, functional, in place and by out=. Each returns what it wrote.
CALLS = {
    "sinusoidal": lambda i: pn.sinusoidal(i.positions, HEAD_DIM),
    "sinusoidal float64": lambda i: pn.sinusoidal(i.fractions, HEAD_DIM, dtype=torch.float64),
    "sinusoidal of an int": lambda i: pn.sinusoidal(7, HEAD_DIM, device=i.x.device),
    "sinusoidal out": lambda i: pn.sinusoidal(i.positions, HEAD_DIM, out=i.table),
    "add_sinusoidal": lambda i: pn.add_sinusoidal(i.x, i.positions, x_scale=2.0),
    "add_sinusoidal in place": lambda i: pn.add_sinusoidal(i.x, out=i.x),
    "add_sinusoidal out": lambda i: pn.add_sinusoidal(i.x, i.fractions, out=i.out),
    "rotary_tables": lambda i: pn.rotary_tables(i.positions, i.f),
    "rotary_tables axes": lambda i: pn.rotary_tables(i.axes, i.f, axis_map=i.axis_map),
    "apply_rotary": lambda i: pn.apply_rotary(i.x, i.positions, i.f),
    "apply_rotary axes": lambda i: pn.apply_rotary(i.x, i.axes, i.f, axis_map=i.axis_map),
    "apply_rotary in place": lambda i: pn.apply_rotary(i.x, i.fractions, i.f, out=i.x),
    "apply_rotary out": lambda i: pn.apply_rotary(i.x, None, i.f, pairing="interleaved", out=i.out),
    "apply_rotary_qk": lambda i: pn.apply_rotary_qk(i.x, i.k, i.positions, i.f),
    "apply_rotary_qk in place": lambda i: pn.apply_rotary_qk(i.x, i.k, None, i.f, inplace=True),
    "apply_rotary_tables": lambda i: pn.apply_rotary_tables(i.x, i.cos, i.sin),
    "apply_rotary_tables in place": lambda i: pn.apply_rotary_tables(i.x, i.cos, i.sin, out=i.x),
    "apply_rotary_tables out": lambda i: pn.apply_rotary_tables(i.x, i.cos, i.sin, out=i.out),
    "apply_rotary_qk_tables": lambda i: pn.apply_rotary_qk_tables(i.x, i.k, i.cos, i.sin),
    "apply_rotary_qk_tables in place": lambda i: pn.apply_rotary_qk_tables(
        i.x, i.k, i.cos, i.sin, pairing="interleaved", inplace=True
    ),
    "toeplitz_bias": lambda i: pn.toeplitz_bias(i.diagonals, *i.x.shape[2:], **i.window),
    "toeplitz_bias out": lambda i: pn.toeplitz_bias(
        i.diagonals, *i.x.shape[2:], out=i.bias, **i.window
    ),
    "add_toeplitz_bias": lambda i: pn.add_toeplitz_bias(i.x, i.diagonals, **i.window),
    "add_toeplitz_bias in place": lambda i: pn.add_toeplitz_bias(
        i.x, i.diagonals, out=i.x, **i.window
    ),
    "add_toeplitz_bias out": lambda i: pn.add_toeplitz_bias(
        i.x, i.diagonals, out=i.out, **i.window
    ),
    "add_toeplitz_bias of a grid": lambda i: pn.add_toeplitz_bias(
        i.x, i.diagonals[:, : i.x.shape[2] + 15, None], q_len=(i.x.shape[2], 1), k_len=(16, 1)
    ),
    "diagonal_sums": lambda i: pn.diagonal_sums(i.x, entries=i.diagonals.shape[1], **i.window),
    "diagonal_sums kept": lambda i: pn.diagonal_sums(i.x, keep=2),
    "relative_gather": lambda i: pn.relative_gather(i.wide, i.index, 16, **i.window),
    "relative_gather content": lambda i: pn.relative_gather(
        i.wide, i.index, 16, content=i.x, scale=0.3, out=i.out, **i.window
    ),
    "relative_gather shift": lambda i: pn.relative_gather(i.wide, None, 16),
    "relative_scatter": lambda i: pn.relative_scatter(i.whole, i.index, 9, **i.window),
    "relative_scatter out": lambda i: pn.relative_scatter(
        i.whole, i.index, 9, scale=0.5, out=i.wide_out, **i.window
    ),
    "relative_scatter shift": lambda i: pn.relative_scatter(i.x, None, 9, scale=0.3),
    "Rotary": lambda i: ROPE(i.x, i.k, i.positions),
    "Rotary in place": lambda i: ROPE(i.x, i.k, i.positions, inplace=True),
    "Rotary.tables": lambda i: ROPE.tables(i.positions),
    "nn.RotaryEmbedding": lambda i: MODULE(i.x, i.k, i.positions),
    "nn.SinusoidalPositionalEncoding": lambda i: ENCODE(i.x, i.positions),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def assert_all_same(results, expected):
    for result, e in zip(as_tuple(results), as_tuple(expected), strict=True):
        assert_same_bits(result, e)


# --- The bits of the CPU


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
@each_call
def test_results_are_those_of_the_cpu(call, dtype):
    here, there = Inputs("cpu", dtype), Inputs("cuda", dtype)
    # Not what rounding left of tables made on either side: the same tables.
    there.cos, there.sin = here.cos.cuda(), here.sin.cuda()
    expected, results = call(here), call(there)
    assert {r.device.type for r in as_tuple(results)} == {"cuda"}
    assert_all_same(results, expected)
    assert_all_same(tuple(there.tensors), tuple(here.tensors))


# Sizes at which grids, blocks and vectors end: tokens, heads, head_dim, first rotated, pairs.
SIZES = [
    *((s, 3, 16, 0, 8) for s in (1, 2, 31, 33, 127, 129, 1025)),
    *((7, h, 16, 0, 8) for h in (1, 2, 5, 8, 64, 71)),
    *((5, 3, d, 0, d // 2) for d in (2, 4, 6, 10, 24, 62, 64, 80, 96, 128, 130, 256, 512, 1000)),
    *((5, 3, 64, start, pairs) for start, pairs in ((1, 5), (2, 31), (3, 16), (32, 16), (62, 1))),
    (70_000, 1, 8, 0, 4),  # more tokens, rows, heads than the y and z of a grid may count
    (2, 70_000, 8, 0, 4),
]


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(("s", "h", "d", "start", "pairs"), SIZES)
def test_sizes_and_alignments(s, h, d, start, pairs, offset, dtype, pairing):
    memory = random((s, h, d + 3), dtype)
    f = inv_freq("cpu", 2 * pairs)
    options = {"layout": "shd", "pairing": pairing, "rotary_start": start}
    expected = pn.apply_rotary(memory[..., offset : offset + d], None, f, **options)
    there, f = memory.cuda(), f.cuda()
    part = there[..., offset : offset + d]
    assert_same_bits(pn.apply_rotary(part, None, f, **options), expected)
    assert_same_bits(pn.apply_rotary(part.contiguous(), None, f, **options), expected)
    pn.apply_rotary(part, None, f, **options, out=part)
    assert_same_bits(part, expected)
    assert_same_bits(there[..., :offset], memory[..., :offset])
    assert_same_bits(there[..., offset + d :], memory[..., offset + d :])


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(
    "shape", [(8,), (1, 8), (6, 8), (2, 1, 8), (2, 6, 8)], ids=lambda s: "x".join(map(str, s))
)
def test_gradients_of_angles_are_those_of_the_cpu(shape, pairing, dtype):
    """Sums in another order: of float32 products over heads and tokens; x to the bit."""
    axes = shape[:1] if len(shape) == 3 else ()
    for tokens in (1, 37, 3000):
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        q, k, grad_q, grad_k = (random((2, 6, tokens, 20), dtype, seed=i) for i in range(4))
        positions = random((*axes, 2, tokens), wide, seed=4) * 30
        inv_freq = random(shape, wide, seed=5)
        gradients = []
        for device in ("cpu", "cuda", "cuda"):
            leaves = [t.to(device, copy=True).requires_grad_() for t in (q, k, positions, inv_freq)]
            rotated = pn.apply_rotary_qk(*leaves, pairing=pairing, rotary_start=2)
            grads = (grad_q.to(device), grad_k.to(device))
            gradients.append([g.cpu() for g in torch.autograd.grad(rotated, leaves, grads)])
        here, there, again = gradients
        assert_all_same(tuple(there), tuple(again))  # deterministic
        assert_all_same(tuple(there[:2]), tuple(here[:2]))
        # The CPU multiplies gradients of x that are rounded to their format.
        unit = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float64: 2**-53}
        of_x = unit.get(dtype, 2**-24)
        of_sum = 2**-53 if dtype == torch.float64 else 2**-24
        norm = float(
            q.double().norm() * grad_q.double().norm() + k.double().norm() * grad_k.double().norm()
        )
        for a, e, factor, terms in (
            (there[2], here[2], inv_freq, 64),
            (there[3], here[3], positions, tokens + 64),
        ):
            bound = norm * float(factor.abs().max()) * (of_x + terms * of_sum)
            assert float((a.double() - e.double()).abs().max()) <= bound


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
@pytest.mark.parametrize("dim", [2, 6, 64, 130, 1024, 4098])
@pytest.mark.parametrize("rows", [1, 3, 257, 70_000])
def test_sizes_of_sinusoids(rows, dim, dtype):
    rows = min(rows, 2**21 // dim)
    points = torch.arange(rows) * 3 - 1000
    for layout in ("interleaved", "sin_cos", "cos_sin"):
        expected = pn.sinusoidal(points, dim, layout=layout, dtype=dtype)
        table = pn.sinusoidal(points.cuda(), dim, layout=layout, dtype=dtype)
        assert_same_bits(table, expected)
    x = random((rows, dim), dtype)
    memory = torch.nn.functional.pad(x.cuda(), (1, 2))
    out = pn.add_sinusoidal(memory[:, 1:-2], points.cuda(), alpha=0.5, out=memory[:, 1:-2])
    assert_same_bits(out, pn.add_sinusoidal(x, points, alpha=0.5))
    assert not memory[:, 0].any()
    assert not memory[:, -2:].any()


def test_positions_far_away_and_of_every_dtype():
    points = torch.tensor([*FAR, 2**62, -(2**63), 2**63 - 1, 0])
    assert_same_bits(pn.sinusoidal(points.cuda(), 64), pn.sinusoidal(points, 64))
    for dtype in torch_cases.POSITION_DTYPES:
        points = torch.tensor([0, 1, 100, 127]).to(dtype)
        assert_same_bits(pn.sinusoidal(points.cuda(), 64), pn.sinusoidal(points, 64))


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("keys", [1, 8, 63, 64, 200, 1032])
@pytest.mark.parametrize("queries", [1, 7, 8, 65, 520])
def test_sizes_of_relative_encodings(queries, keys, offset, dtype):
    entries = queries + keys - 1
    memory, diagonals = random((3, 2, queries, keys + 3), dtype), random((2, entries))
    x, there, there_diagonals = memory[..., offset : offset + keys], memory.cuda(), diagonals.cuda()
    part = there[..., offset : offset + keys]
    assert_same_bits(pn.diagonal_sums(part), pn.diagonal_sums(x))
    assert_same_bits(
        pn.toeplitz_bias(there_diagonals, queries, keys, dtype=dtype),
        pn.toeplitz_bias(diagonals, queries, keys, dtype=dtype),
    )
    index = torch.arange(entries).clamp(max=max(keys // 2, 0)) % keys
    for columns in (None, index):
        on_device = None if columns is None else columns.cuda()
        expected = pn.relative_gather(x, columns, keys, content=x, scale=0.3)
        assert_same_bits(
            pn.relative_gather(part, on_device, keys, content=part, scale=0.3), expected
        )
    wide = random((3, 2, queries, entries), dtype, seed=1)
    assert_same_bits(
        pn.relative_gather(wide.cuda(), None, keys), pn.relative_gather(wide, None, keys)
    )
    assert_same_bits(
        pn.relative_scatter(part, None, entries), pn.relative_scatter(x, None, entries)
    )
    whole = (x * 4).round()
    for scattered in (index, index.flip(0), torch.zeros_like(index)):
        assert_same_bits(
            pn.relative_scatter(whole.cuda(), scattered.cuda(), keys),
            pn.relative_scatter(whole, scattered, keys),
        )
    expected = pn.add_toeplitz_bias(x, diagonals)
    pn.add_toeplitz_bias(part, there_diagonals, out=part)
    assert_same_bits(part, expected)
    assert_same_bits(there[..., :offset], memory[..., :offset])
    assert_same_bits(there[..., offset + keys :], memory[..., offset + keys :])


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
@pytest.mark.parametrize(
    ("q_len", "k_len"), [((7, 7), (7, 7)), ((8, 8), (8, 8)), ((3, 2, 5), (2, 4, 4))]
)
@pytest.mark.parametrize("batch", [1, 3, 200])
def test_grids_of_queries_and_keys(batch, q_len, k_len, dtype):
    entries = tuple(q + k - 1 for q, k in zip(q_len, k_len, strict=True))
    x = random((batch, 3, math.prod(q_len), math.prod(k_len)), dtype)
    diagonals, grid = random((3, *entries)), {"q_len": q_len, "k_len": k_len}
    for there, here in ((x.cuda(), x), (x.cuda().mT.contiguous().mT, x)):
        assert_same_bits(
            pn.add_toeplitz_bias(there, diagonals.cuda(), **grid),
            pn.add_toeplitz_bias(here, diagonals, **grid),
        )
        assert_same_bits(
            pn.diagonal_sums(there, entries=entries, **grid),
            pn.diagonal_sums(here, entries=entries, **grid),
        )


def test_sums_in_another_order_are_the_same_every_time():
    grad = random((2, 8, 513, 700), torch.bfloat16, "cuda")
    index = torch.arange(513 + 699, device="cuda").clamp(400, 500) - 400
    first = pn.relative_scatter(grad, index, 101)
    for _ in range(3):
        assert_same_bits(pn.relative_scatter(grad, index, 101), first)
    exact = pn.relative_scatter(grad.cpu().double(), index.cpu(), 101)
    torch.testing.assert_close(first.cpu().double(), exact, rtol=2**-8, atol=1e-4)


WILD = [-(2**63), 2**63 - 1, -1, 2**31, -(2**31)]


def test_values_that_nobody_checked_lead_nowhere():
    """Positions and columns on a GPU are not looked at before they are used."""
    x, diagonals = random((5, 2, 8, 16), device="cuda"), random((2, 40), device="cuda")
    wild = torch.tensor(WILD, device="cuda")
    given = {"q_offset": wild, "origin": 20}
    results = [
        pn.toeplitz_bias(diagonals, 8, 16, **given),
        pn.add_toeplitz_bias(x, diagonals, **given),
        pn.diagonal_sums(x, entries=40, **given),
        pn.relative_gather(x, None, 16, **given),
        pn.relative_scatter(x, None, 16, **given),
        pn.relative_gather(x, torch.arange(40, device="cuda") % 16, 16, **given),
        pn.relative_scatter(x, torch.arange(40, device="cuda") % 16, 16, **given),
    ]
    index = torch.zeros(23, dtype=torch.int64, device="cuda")
    index[[0, 5, 11, 17, 22]] = wild
    gathered = pn.relative_gather(x, index, 16)
    known = torch.where((index < 0) | (index >= 16), -1, index)
    assert_same_bits(gathered, pn.relative_gather(x, known, 16, missing=-1))
    whole = (x * 4).round()
    assert_same_bits(
        pn.relative_scatter(whole, index, 16), pn.relative_scatter(whole, known, 16, missing=-1)
    )
    torch.cuda.synchronize()
    assert all(result.isfinite().all() for result in results)


# --- Streams

# Long enough that a kernel on another stream would overtake what is before it on this one.
DELAY = 20_000_000  # cycles, about 10 ms


@each_call
def test_work_goes_to_the_current_stream(call):
    expected = call(Inputs())
    torch.cuda.synchronize()
    inputs, late = Inputs(), Inputs()
    for tensor in (late.x, late.k):
        tensor.zero_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(DELAY)
        # On any other stream the call would see the zeros.
        late.x.copy_(inputs.x)
        late.k.copy_(inputs.k)
        results = call(late)
        copies = tuple(r.clone() for r in as_tuple(results))
    side.synchronize()
    assert_all_same(copies, expected)


def test_two_streams_do_not_disturb_each_other():
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [Inputs(shape=(2, 3, 501 + n, HEAD_DIM)) for n in range(2)]
    expected = [[call(Inputs(shape=i.x.shape)) for call in CALLS.values()] for i in inputs]
    torch.cuda.synchronize()
    for _ in range(5):
        results = [[], []]
        for call in CALLS.values():
            for n, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    fresh = Inputs(shape=inputs[n].x.shape)
                    results[n].append(call(fresh))
        torch.cuda.synchronize()
        for n, result in itertools.product(range(2), range(len(CALLS))):
            assert_all_same(results[n][result], expected[n][result])


# --- CUDA graphs


@each_call
def test_capture_and_replay(call):
    expected = call(Inputs())
    inputs, source = Inputs(), Inputs()
    # What is made once, on the first call, is made before.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(Inputs())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call(inputs)
    # Capturing computes nothing; what is replayed is, with what the arguments hold by then.
    for _ in range(3):
        for tensor, original in zip(inputs.tensors, source.tensors, strict=True):
            tensor.copy_(original)
        graph.replay()
        torch.cuda.synchronize()
        assert_all_same(results, expected)
    assert inputs.positions.equal(source.positions)


def test_a_captured_decoding_step_follows_its_position():
    q, k = random((1, 4, 1, HEAD_DIM), device="cuda"), random((1, 2, 1, HEAD_DIM), device="cuda")
    original_q, original_k = q.clone(), k.clone()
    position, f = torch.tensor([0], device="cuda"), inv_freq()
    graph = torch.cuda.CUDAGraph()
    pn.apply_rotary_qk(q.clone(), k.clone(), position, f, inplace=True)
    with torch.cuda.graph(graph):
        pn.apply_rotary_qk(q, k, position, f, inplace=True)
    for step in (1, 77, 2**40):
        q.copy_(original_q)
        k.copy_(original_k)
        position.fill_(step)
        graph.replay()
        expected = pn.apply_rotary_qk(original_q, original_k, torch.tensor([step]).cuda(), f)
        assert_all_same((q, k), expected)


# --- torch.compile


@pytest.fixture
def _fresh_compiler():
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode):
    def step(q, k, x, positions, f):
        q, k = pn.apply_rotary_qk(q * 2, k * 2, positions, f, inplace=True)
        x = pn.add_sinusoidal(x, positions) + pn.apply_rotary(x, positions, f)
        return q + 1, k + 1, x, *MODULE(q, k, positions)

    fast = torch.compile(step, fullgraph=True, mode=mode)
    with torch.no_grad():
        for seed in range(4):  # the third call of reduce-overhead is the first to replay a graph
            i = Inputs()
            q, k, x = i.x + seed, i.k + seed, i.other + seed
            expected = step(q, k, x, i.positions + seed, i.f)
            torch.compiler.cudagraph_mark_step_begin()
            results = [r.clone() for r in fast(q, k, x, i.positions + seed, i.f)]
            # Inductor may fuse the sums and products around the operators.
            torch.testing.assert_close(results, list(expected), rtol=1e-6, atol=1e-6)
    assert not counters["inductor"]["cudagraph_skips"]


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_module_compiled_before_it_ran_leaves_nothing_on_the_cpu():
    # Frequencies copied to the device in every call would keep the graph from being captured.
    rope, inputs = pnn.RotaryEmbedding(HEAD_DIM, base=3e5), Inputs()
    fast = torch.compile(rope, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        results = tuple(r.clone() for r in fast(inputs.x, inputs.k, inputs.positions))
    assert_all_same(results, rope(inputs.x, inputs.k, inputs.positions))
    assert not counters["inductor"]["cudagraph_skips"]


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_with_gradients(mode):
    def loss(q, k, positions, f):
        q, k = pn.apply_rotary_qk(q, k, positions, f)
        return (q * k).square().mean()

    fast = torch.compile(loss, fullgraph=True, mode=mode)
    for _ in range(4):
        i = Inputs()
        q, k = i.x.requires_grad_(), i.k.requires_grad_()
        torch.compiler.cudagraph_mark_step_begin()
        gradients = [g.clone() for g in torch.autograd.grad(fast(q, k, i.positions, i.f), (q, k))]
        expected = torch.autograd.grad(loss(q, k, i.positions, i.f), (q, k))
        torch.testing.assert_close(gradients, list(expected), rtol=1e-5, atol=1e-6)
    assert not counters["inductor"]["cudagraph_skips"]


# --- Nothing waits for the device


@contextlib.contextmanager
def no_waiting():
    """Within, whatever torch knows to wait for the device is an error."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@each_call
def test_no_call_waits_for_the_device(call):
    call(Inputs())  # what is made once may wait
    inputs = Inputs()
    torch.cuda.synchronize()
    with no_waiting():
        torch.cuda._sleep(10 * DELAY)
        call(inputs)
        # Nor in a way that torch does not know of: the device still sleeps when the call returns.
        busy = not torch.cuda.current_stream().query()
    assert busy
    torch.cuda.synchronize()


@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "grad"])
def test_no_backward_waits_for_the_device(requires_grad):
    def run(i):
        q, k = pn.apply_rotary_qk(i.x, i.k, i.fractions, i.f)
        x = pn.add_sinusoidal(pn.apply_rotary(i.other, i.axes, i.f, axis_map=i.axis_map))
        loss = q.sum() + k.sum() + x.sum()
        if requires_grad:
            loss.backward()

    def inputs():
        i = Inputs()
        for tensor in (i.x, i.k, i.other, i.fractions, i.f):
            tensor.requires_grad_(requires_grad)
        return i

    run(inputs())
    second = inputs()
    with no_waiting():
        run(second)


# --- Devices


def test_errors_name_the_device():
    i = Inputs()
    for argument, call in {
        "positions": lambda: pn.apply_rotary(i.x, i.positions.cpu(), i.f),
        "inv_freq": lambda: pn.apply_rotary_qk(i.x, i.k, None, i.f.cpu(), inplace=True),
        "k": lambda: pn.apply_rotary_qk(i.x, i.k.cpu(), None, i.f, inplace=True),
        "axis_map": lambda: pn.rotary_tables(i.axes, i.f, axis_map=i.axis_map.cpu()),
        "sin": lambda: pn.apply_rotary_tables(i.x, i.cos, i.sin.cpu(), out=i.x),
        "cos": lambda: pn.apply_rotary_qk_tables(i.x, i.k, i.cos.cpu(), i.sin, inplace=True),
        "out": lambda: pn.add_sinusoidal(i.x, out=i.out.cpu()),
    }.items():
        before = i.x.clone()
        with pytest.raises(ValueError, match=rf"\w+: {argument}: expected .*cuda.*, got cpu"):
            call()
        assert i.x.equal(before)
    with pytest.raises(ValueError, match=r"expected .*cpu.*, got cuda"):
        pn.apply_rotary(i.x.cpu(), i.positions, i.f.cpu())


@each_call
def test_a_second_device(call):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs a second CUDA device")
    expected = call(Inputs("cuda:0"))
    # The current device is the first.
    results = call(Inputs("cuda:1"))
    assert {r.device for r in as_tuple(results)} == {torch.device("cuda:1")}
    assert_all_same(results, expected)
    assert torch.cuda.current_device() == 0
    with pytest.raises(ValueError, match=r"expected .*, got cuda:0"):
        pn.apply_rotary(Inputs("cuda:1").x, None, inv_freq("cuda:0"))


# --- Large tensors


def needs_memory(count):
    free, _ = torch.cuda.mem_get_info()
    if free < count:
        pytest.skip(f"needs {count / 1e9:.0f} GB of device memory, {free / 1e9:.0f} GB are free")


@pytest.fixture
def _memory_returned():
    """One test after the other, whatever the number of processes; the memory is then free again."""
    with Path(tempfile.gettempdir(), "posenc-native-large-tests").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        torch.cuda.empty_cache()
        yield
        torch.cuda.empty_cache()


# 2^31 elements and some, in few long rows or in very many short ones.
LARGE = {
    "long rows": (2, 2**19 + 8, 17, 128),  # bshd
    "many tokens": (1, 2**24 + 1, 1, 128),
    "many heads": (1, 129, 2**17 + 3, 128),
}


@pytest.mark.usefixtures("_memory_returned")
@pytest.mark.parametrize("shape", LARGE.values(), ids=LARGE)
def test_more_elements_than_an_int_counts(shape):
    needs_memory(6_000_000_000)
    x = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
    assert x.numel() > 2**31
    # Normal numbers in one pass, with no large temporary; the same in each slice.
    x.normal_(generator=torch.Generator("cuda").manual_seed(0))
    f = inv_freq(dim=128)
    _, s, h, _ = shape
    rows = torch.tensor([0, 1, s // 3, s // 2, s - 2, s - 1])
    heads = torch.tensor(sorted({0, h // 2, h - 1}))
    before = x[:, rows.cuda()][:, :, heads.cuda()].cpu()
    assert pn.apply_rotary(x, None, f, layout="bshd", out=x) is x
    expected = pn.apply_rotary(before, rows, f.cpu(), layout="bshd")
    assert_same_bits(x[:, rows.cuda()][:, :, heads.cuda()], expected)
    pn.apply_rotary(x, None, f, layout="bshd", inverse=True, out=x)
    # Twice rounded to bfloat16, of pairs of magnitude (|a| + |b|).
    back = x[:, rows.cuda()][:, :, heads.cuda()].cpu().float()
    assert (back - before.float()).abs().max() <= 4 * before.abs().max() * 2.0**-8


@pytest.mark.usefixtures("_memory_returned")
def test_large_tables_and_sums():
    needs_memory(6_000_000_000)
    length, dim = 2**20 + 1, 2048
    table = pn.sinusoidal(length, dim, dtype=torch.bfloat16, device="cuda")
    assert table.numel() > 2**31
    rows = torch.tensor([0, 1, length // 2, length - 1])
    expected = pn.sinusoidal(rows, dim, dtype=torch.bfloat16)
    assert_same_bits(table[rows.cuda()], expected)
    pn.add_sinusoidal(table, out=table)
    assert_same_bits(table[rows.cuda()], pn.add_sinusoidal(expected, rows))


@pytest.mark.usefixtures("_memory_returned")
def test_large_biases_and_their_sums():
    needs_memory(10_000_000_000)
    queries, keys = 2**16 + 8, 2**15 + 24
    diagonals = random((1, queries + keys - 1), torch.bfloat16)
    bias = pn.toeplitz_bias(diagonals.cuda(), queries, keys)
    assert bias.numel() > 2**31
    for row in (0, 1, 2**15 + 1, queries - 1):
        begin = queries - 1 - row
        assert_same_bits(bias[0, row], diagonals[0, begin : begin + keys])
    pn.add_toeplitz_bias(bias, -diagonals.cuda(), out=bias)
    assert not bias.any()
    bias.fill_(1.0)
    sums = pn.diagonal_sums(bias)[0].cpu()
    entries = torch.arange(queries + keys - 1)
    lengths = torch.minimum(entries + 1, entries.flip(0) + 1).clamp(max=min(queries, keys))
    assert sums.equal(lengths.float())
    # Of the last rows there are columns, of all others none.
    shifted = pn.relative_gather(bias, None, 64)[0]
    columns = torch.arange(queries).flip(0)[:, None] + torch.arange(64)
    assert shifted.cpu().equal((columns < keys).bfloat16())
