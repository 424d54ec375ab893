"""The composition of torch operations, for devices without a kernel: what the operators compute.

Tolerances. Angles are exact in both, to 2^-64 of a turn. In the dtype of the arithmetic (float32,
or float64 for float64 x), with u half its spacing at 1 (2^-24, 2^-53):

    the composition   rounds the angle within a quadrant, the factor 2 pi and their product: 3u of
                      at most pi/4; sine and cosine of torch: 2u                       5u
    the operators     within 1.2e-7 = 2.01 u of the exact value in float32, 4u in float64
    tables            differ by up to                                                  9u
    a pair (a, b)     that, for both; two products and a sum rounded on either side:
                      (9u + 2 * 2u) * (|a| + |b|), times the scale
    the result        is rounded once on either side: a unit of its dtype
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch_cases import (  # noqa: E402
    FAR,
    FLOATS,
    FRACTIONAL,
    INTEGERS,
    POSITION_DTYPES,
    dtype_id,
    each_rotary_case,
    plain_operations,
    random,
)

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402
from posenc_native.engines.torch import library  # noqa: E402

pytestmark = torch_cases.needs_operators
device = torch_cases.device

each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
TABLES, PAIR = 9, 13  # in units of u


def unit(dtype):
    """u of the arithmetic on this dtype."""
    return 2.0**-53 if dtype == torch.float64 else 2.0**-24


def assert_near(actual, expected, bound, dtype):
    """Within a bound and one unit of the dtype."""
    assert actual.dtype == expected.dtype == dtype
    assert actual.shape == expected.shape
    difference = (actual.double() - expected.double()).abs().cpu()
    rounding = expected.double().abs().cpu() * torch.finfo(dtype).eps
    assert (difference <= bound + rounding).all(), (difference - rounding - bound).max()


def pair_bound(x, scale=1.0):
    """(|a| + |b|) of any pair is at most twice the largest number."""
    return PAIR * unit(x.dtype) * abs(scale) * 2 * x.detach().double().abs().max().item()


def both(call):
    """(by the operators, by the composition)."""
    native = call()
    with plain_operations():
        return native, call()


# --- Agreement


@each_dtype
@each_rotary_case
def test_apply_rotary(case, dtype, device):
    positional, options = case.arguments(device)
    x = random(case.shape(), dtype, device)
    native, composition = both(lambda: pn.apply_rotary(x, *positional, **options))
    assert_near(composition, native, pair_bound(x, case.scale), dtype)
    assert not torch.equal(native, x)


@each_rotary_case
def test_apply_rotary_by_out_and_in_place(case, device):
    positional, options = case.arguments(device)
    q, k = random(case.shape(), device=device), random(case.shape(h=1), device=device, seed=1)
    with plain_operations():
        expected = pn.apply_rotary_qk(q, k, *positional, **options)
        assert torch.equal(pn.apply_rotary(q, *positional, **options), expected[0])
        out = torch.full_like(q, torch.nan).transpose(0, -1).contiguous().transpose(0, -1)
        version = out._version
        assert pn.apply_rotary(q, *positional, **options, out=out) is out
        assert torch.equal(out, expected[0])
        assert out._version > version
        again = q.clone()
        assert pn.apply_rotary(again, *positional, **options, out=again) is again
        assert torch.equal(again, expected[0])
        q2, k2 = q.clone(), k.clone()
        result = pn.apply_rotary_qk(q2, k2, *positional, **options, inplace=True)
        assert result[0] is q2
        assert result[1] is k2
        assert torch.equal(q2, expected[0])
        assert torch.equal(k2, expected[1])


@each_dtype
@pytest.mark.parametrize("name", ["sbhd-batched", "thd-far", "middle-slice", "sd-blocks"])
def test_rotations_by_tables(name, dtype, device):
    case = {c.name: c for c in torch_cases.ROTARY_CASES}[name]
    x = random(case.shape(), dtype, device)
    for table_dtype in FLOATS:
        cos, sin = case.tables(table_dtype, device)
        native, composition = both(
            lambda cos=cos, sin=sin: pn.apply_rotary(
                x, None, pn.Tables(cos, sin), **case.table_options()
            )
        )
        assert_near(composition, native, pair_bound(x), dtype)
        k = random(case.shape(h=1), dtype, device, seed=1)
        with plain_operations():
            pair = pn.apply_rotary_qk(x, k, None, pn.Tables(cos, sin), **case.table_options())
            assert torch.equal(pair[0], composition)
            assert torch.equal(
                pair[1], pn.apply_rotary(k, None, pn.Tables(cos, sin), **case.table_options())
            )
            places = x.clone(), k.clone()
            result = pn.apply_rotary_qk(
                *places, None, pn.Tables(cos, sin), inplace=True, **case.table_options()
            )
        for place, there, expected in zip(places, result, pair, strict=True):
            assert there is place
            assert torch.equal(place, expected)


@each_dtype
@each_rotary_case
def test_rotary_tables(case, dtype, device):
    native, composition = both(lambda: case.tables(dtype, device))
    for a, b in zip(composition, native, strict=True):
        assert_near(a, b, (TABLES + 2) * unit(dtype) * case.scale, dtype)


@each_dtype
@pytest.mark.parametrize("layout", ["interleaved", "sin_cos", "cos_sin"])
@pytest.mark.parametrize("positions", [INTEGERS, FAR, [FRACTIONAL, FAR], []])
def test_sinusoidal(positions, layout, dtype, device):
    points = torch.tensor(positions, device=device)
    options = {"base": 5e5, "layout": layout, "shift": 1.0, "scale": 1.5, "dtype": dtype}
    native, composition = both(lambda: pn.sinusoidal(points, 18, **options))
    assert_near(composition, native, TABLES * unit(dtype), dtype)
    with plain_operations():
        out = torch.full((*points.shape, 18), torch.nan, dtype=dtype, device=device)
        assert pn.sinusoidal(points, 18, **options, out=out) is out
    assert torch.equal(out, composition)


@pytest.mark.parametrize("dtype", POSITION_DTYPES, ids=dtype_id)
def test_positions_of_every_dtype(dtype, device):
    points = torch.tensor([0, 1, 2, 100, 127]).to(device, dtype)
    native, composition = both(lambda: pn.sinusoidal(points, 18))
    assert_near(composition, native, TABLES * unit(torch.float32), torch.float32)


@pytest.mark.parametrize(
    "values",
    [
        [-(2**63), 2**63 - 1, -(2**62) - 1, 2**53 + 1],
        [2.0**-40, -(2.0**-40), 2.0**40 + 0.125, -1e6 - 0.25, 2.0**62, -(2.0**62)],
        [0.1 + 2.0**31, -0.7, 1e-300, 123456789.123456789],
    ],
    ids=["int64", "dyadic", "decimal"],
)
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_the_far_ends_of_the_positions(values, scale, device):
    points = torch.tensor(values, dtype=torch.float64 if isinstance(values[0], float) else None)
    points = points.to(device)
    options = {"scale": scale, "dtype": torch.float64}
    native, composition = both(lambda: pn.sinusoidal(points, 18, **options))
    # A fraction of a position is cut to 2^-64, and the product with it: two units of 2^-64 turns,
    # times whole turns a position.
    cut = 2 * 6.3 * 2.0**-64 * (1 + scale)
    assert_near(composition, native, TABLES * unit(torch.float64) + cut, torch.float64)


@each_dtype
@pytest.mark.parametrize("positions", [None, FAR, [FAR, FRACTIONAL]], ids=["none", "s", "b,s"])
def test_add_sinusoidal(positions, dtype, device):
    x = random((2, 5, 18), dtype, device)
    points = None if positions is None else torch.tensor(positions, device=device)
    options = {"x_scale": 3.0, "alpha": 0.5, "layout": "cos_sin", "shift": 1.0}
    native, composition = both(lambda: pn.add_sinusoidal(x, points, **options))
    bound = unit(dtype) * (0.5 * TABLES + 4 * (3 * x.double().abs().max().item() + 0.5))
    assert_near(composition, native, bound, dtype)
    with plain_operations():
        again = x.clone()
        assert pn.add_sinusoidal(again, points, **options, out=again) is again
    assert torch.equal(again, composition)


@each_rotary_case
def test_gradients(case, device):
    positional, options = case.arguments(device)
    weights = random(case.shape(), device=device, seed=1)

    def gradient():
        x = random(case.shape(), device=device, requires_grad=True)
        loss = (pn.apply_rotary(x, *positional, **options) * weights).sum()
        return torch.autograd.grad(loss, x)[0]

    native, composition = both(gradient)
    assert_near(composition, native, pair_bound(weights, case.scale), torch.float32)


def test_gradients_of_the_other_functions(device):
    x = random((2, 5, 8), torch.float64, device, requires_grad=True)
    cos, sin = (random((5, 4), torch.float64, device, s, requires_grad=True) for s in (1, 2))
    functions = [
        (lambda: pn.add_sinusoidal(x, x_scale=3.0), (x,)),
        (lambda: pn.apply_rotary(x, None, pn.Tables(cos, sin), layout="bsd"), (x, cos, sin)),
        (
            lambda: pn.apply_rotary_qk(x, x * 2, None, pn.Tables(cos, sin), layout="bsd")[1],
            (x, cos, sin),
        ),
        (lambda: pn.Rotary(8)(x, x * 2, layout="bsd")[1], (x,)),
    ]
    for function, inputs in functions:
        native, composition = both(
            lambda f=function, i=inputs: torch.autograd.grad((f() ** 2).sum(), i)
        )
        for a, b in zip(composition, native, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)
    with plain_operations():
        assert torch.autograd.gradcheck(lambda x: pn.apply_rotary_qk(
            x, x * 2, torch.tensor(FAR, device=device),
            torch.tensor(pn.rotary.rotary_frequencies(8)[0], device=device), layout="bsd",
        ), x)  # fmt: skip


def test_modules(device):
    rope, encode = pnn.RotaryEmbedding(16, base=5e5), pnn.SinusoidalPositionalEncoding(16, 0.0)
    q, k = random((2, 3, 5, 16), device=device), random((2, 1, 5, 16), device=device)
    for function in (lambda: rope(q, k)[0], lambda: rope(q, k)[1], lambda: encode(q)):
        native, composition = both(function)
        assert_near(composition, native, pair_bound(q), torch.float32)


def test_torch_func_of_the_composition(device):
    x = random((4, 3, 5, 8), torch.float64, device)
    points = torch.arange(20, device=device).reshape(4, 5)
    inv_freq = torch.tensor(pn.rotary.rotary_frequencies(8)[0], device=device)

    def rotate(x, p):
        return pn.apply_rotary(x, p, inv_freq, layout="hsd")

    def loss(x, p):
        return (rotate(x, p) ** 3).sum() + (pn.add_sinusoidal(x, p[None].expand(3, 5)) ** 3).sum()

    for function in (rotate, torch.func.grad(loss)):
        expected = torch.stack([function(*each) for each in zip(x, points, strict=True)])
        with torch_cases.plain_operations():
            mapped = torch.vmap(function)(x, points)
        torch.testing.assert_close(mapped, expected, rtol=1e-12, atol=1e-12)


# --- The exactness that is the point: far from 0, and nowhere near float32 phases


def test_far_positions_are_as_good_as_near_ones(device):
    points = torch.tensor([10**6, 2**31 - 1, 2**40 + 12345], device=device)
    with plain_operations():
        table = pn.sinusoidal(points, 64, layout="sin_cos").double().cpu()
    exact = torch.from_numpy(pn.sinusoidal(points.cpu().numpy(), 64, layout="sin_cos"))
    assert (table - exact).abs().max() <= (TABLES + 1) * 2.0**-24
    naive = points.float()[:, None].cpu() * 10000.0 ** (-torch.arange(32) / 32)
    assert (naive.sin().double() - exact[:, :32]).abs().max() > 1e-2


# --- Where there is nothing but torch


@pytest.fixture
def _without_library(monkeypatch):
    """As if the package had been built without the operators."""
    monkeypatch.setattr(library, "LIBRARY", None)
    # That it is slow has been said: tests/engines/test_slower.py.
    monkeypatch.setattr(library, "_warned_of_missing_operators", True)


@pytest.mark.usefixtures("_without_library")
def test_without_the_operators_everything_is_there(device):
    f = torch.tensor(pn.rotary.rotary_frequencies(16)[0], device=device)
    q = random((2, 3, 5, 16), device=device, requires_grad=True)
    k = random((2, 1, 5, 16), device=device)
    calls = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    points = torch.tensor(FAR, device=device)
    with Watch():
        results = [
            pn.sinusoidal(points, 16),
            pn.add_sinusoidal(q, points),
            *pn.rotary_tables(points, f),
            pn.apply_rotary(q, points, f),
            *pn.apply_rotary_qk(q, k, points, f),
            pn.apply_rotary(q, None, pn.Tables(*pn.rotary_tables(points, f))),
            *pn.apply_rotary_qk(q, k, None, pn.Tables(*pn.rotary_tables(points, f))),
            *pn.Rotary(16)(q, k, points),
        ]
        results[4].sum().backward()
    assert calls
    assert not [call for call in calls if "posenc_native" in call]
    numpy_q, numpy_k = q.detach().cpu().numpy(), k.cpu().numpy()
    numpy_points, numpy_f = points.cpu().numpy(), f.cpu().numpy()
    expected = [
        pn.sinusoidal(numpy_points, 16),
        pn.add_sinusoidal(numpy_q, numpy_points),
        *pn.rotary_tables(numpy_points, numpy_f),
        pn.apply_rotary(numpy_q, numpy_points, numpy_f),
        *pn.apply_rotary_qk(numpy_q, numpy_k, numpy_points, numpy_f),
        pn.apply_rotary(numpy_q, None, pn.Tables(*pn.rotary_tables(numpy_points, numpy_f))),
        *pn.apply_rotary_qk(
            numpy_q, numpy_k, None, pn.Tables(*pn.rotary_tables(numpy_points, numpy_f))
        ),
        *pn.Rotary(16)(numpy_q, numpy_k, numpy_points),
    ]
    for result, array in zip(results, expected, strict=True):
        assert_near(result.detach().cpu(), torch.from_numpy(array), pair_bound(q), torch.float32)
    assert q.grad.shape == q.shape


# --- Shapes without data


@each_rotary_case
def test_meta_tensors(case):
    dtype = torch.bfloat16
    positional, options = case.arguments("meta")
    q, k = (torch.empty(case.shape(h=h), dtype=dtype, device="meta") for h in (3, 1))
    (positions, inv_freq) = positional
    results = [
        (pn.apply_rotary(q, *positional, **options), case.shape()),
        (pn.apply_rotary_qk(q, k, *positional, **options)[1], case.shape(h=1)),
        (pn.apply_rotary(q, None, pn.Tables(*meta_tables(case, dtype)), **case.table_options()),
         case.shape()),
        (
            pn.apply_rotary_qk(
                q, k, None, pn.Tables(*meta_tables(case, dtype)), **case.table_options()
            )[1],
            case.shape(h=1),
        ),
        (pn.apply_rotary(q, *positional, **options, out=q), case.shape()),
    ]  # fmt: skip
    if positions is not None:
        tables = pn.rotary_tables(positions, inv_freq, axis_map=options["axis_map"], dtype=dtype)
        rows = positions.shape[1:] if case.axis_map else positions.shape
        results += [(table, (*rows, case.pairs)) for table in tables]
    for result, shape in results:
        assert result.device.type == "meta"
        assert result.dtype == dtype
        assert result.shape == shape


def meta_tables(case, dtype):
    return [table.to("meta") for table in case.tables(dtype)]


@each_dtype
def test_meta_tensors_of_sinusoids(dtype):
    points = torch.empty(2, 5, dtype=torch.long, device="meta")
    for table in (
        pn.sinusoidal(points, 8, dtype=dtype),
        pn.sinusoidal(points, 8, out=torch.empty(2, 5, 8, dtype=dtype, device="meta")),
        pn.add_sinusoidal(torch.empty(2, 5, 8, dtype=dtype, device="meta"), points),
    ):
        assert (table.device.type, table.dtype, table.shape) == ("meta", dtype, (2, 5, 8))
    assert pn.sinusoidal(7, 8, device="meta").shape == (7, 8)


def test_meta_tensors_are_checked():
    x = torch.empty(2, 3, 5, 8, device="meta")
    f = torch.empty(4, dtype=torch.float64, device="meta")
    with pytest.raises(ValueError, match="apply_rotary: positions: "):
        pn.apply_rotary(x, torch.empty(6, device="meta"), f)
    with pytest.raises(ValueError, match="apply_rotary: rotary_start: "):
        pn.apply_rotary(x, None, f, rotary_start=2)
