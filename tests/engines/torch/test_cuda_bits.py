"""On a CUDA device: the bits of the CPU, at every size and position."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

import cuda_calls  # noqa: E402
import torch_cases  # noqa: E402
from cuda_calls import Inputs, as_tuple, assert_all_same, each_call, inv_freq  # noqa: E402
from torch_cases import FAR, FLOATS, assert_same_bits, dtype_id, random  # noqa: E402

import posenc_native as pn  # noqa: E402

pytestmark = [torch_cases.needs_operators, torch_cases.needs_cuda]

kernels = cuda_calls.kernels


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
@each_call
def test_results_are_those_of_the_cpu(call, dtype):
    here, there = Inputs("cpu", dtype), Inputs("cuda", dtype)
    # The same tables on both sides, not two that differ by rounding.
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
    """Sums of float32 products over heads and tokens are in another order; x agrees to the bit."""
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
