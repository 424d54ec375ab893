"""The operators compute the bits of NumPy, however they are called and on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from rotating import public  # noqa: E402
from torch_cases import (  # noqa: E402
    FAR,
    FLOATS,
    FRACTIONAL,
    INTEGERS,
    POSITION_DTYPES,
    ROTARY_CASES,
    assert_same_bits,
    dtype_id,
    each_rotary_case,
    random,
    to_numpy,
)

import posenc_native as pn  # noqa: E402
from posenc_native.engines.torch import library, recurrent  # noqa: E402, F401 - operators

pytestmark = torch_cases.needs_operators
kernel_device = torch_cases.kernel_device
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
BY_NAME = {case.name: case for case in ROTARY_CASES}


def as_array(value):
    return to_numpy(value) if isinstance(value, torch.Tensor) else value


def assert_bits_of_numpy(one, two, q, k, *angles, **options):
    """Of q and k, each alone and both: new, where a gradient is wanted, to out, and in place."""
    arrays = [as_array(t) for t in angles], {name: as_array(t) for name, t in options.items()}
    expected = two(to_numpy(q), to_numpy(k), *arrays[0], **arrays[1])
    for x, bits in zip((q, k), expected, strict=True):
        assert not np.array_equal(torch_cases.bits(bits), torch_cases.bits(x))
        assert_same_bits(one(to_numpy(x), *arrays[0], **arrays[1]), bits)
        assert_same_bits(one(x, *angles, **options), bits)
        assert_same_bits(one(x.clone().requires_grad_(), *angles, **options), bits)
        again = x.clone()
        for given, out in ((x, torch.full_like(x, torch.nan)), (again, again)):
            assert one(given, *angles, **options, out=out) is out
            assert_same_bits(out, bits)
    places = q.clone(), k.clone()
    in_place = two(*places, *angles, **options, inplace=True)
    assert all(ours is place for ours, place in zip(in_place, places, strict=True))
    with_grad = two(q.clone().requires_grad_(), k, *angles, **options)
    for pair in (two(q, k, *angles, **options), with_grad, in_place):
        for rotated, bits in zip(pair, expected, strict=True):
            assert_same_bits(rotated, bits)


@each_dtype
@each_rotary_case
def test_rotations_have_the_bits_of_numpy(case, dtype, kernel_device):
    q, k = (random(case.shape(h=h), dtype, kernel_device, seed=h) for h in (4, 2))
    angles, options = case.arguments(kernel_device)
    assert_bits_of_numpy(pn.apply_rotary, pn.apply_rotary_qk, q, k, *angles, **options)


@pytest.mark.parametrize("table_dtype", FLOATS, ids=lambda d: f"tables-{dtype_id(d)}")
@each_dtype
@pytest.mark.parametrize("name", ["bhsd", "sbhd-batched", "thd-far", "middle-slice", "inverse"])
def test_rotations_by_tables_have_the_bits_of_numpy(name, dtype, table_dtype, kernel_device):
    case = BY_NAME[name]
    q, k = (random(case.shape(h=h), dtype, kernel_device, seed=h) for h in (4, 2))
    tables, options = case.tables(table_dtype, kernel_device), case.table_options()
    of_one, of_two = public("apply_rotary by tables"), public("apply_rotary_qk by tables")
    assert_bits_of_numpy(of_one, of_two, q, k, *tables, **options)


@each_dtype
@each_rotary_case
def test_rotary_tables_have_the_bits_of_numpy(case, dtype, kernel_device):
    cos, sin = case.tables(dtype, kernel_device)
    (positions, inv_freq), options = case.numpy_arguments()
    positions = 5 if positions is None else positions
    expected = pn.rotary_tables(
        positions, inv_freq, axis_map=options["axis_map"], scale=case.scale,
        dtype=to_numpy(cos).dtype,
    )  # fmt: skip
    assert_same_bits(cos, expected[0])
    assert_same_bits(sin, expected[1])


@each_dtype
@pytest.mark.parametrize("layout", ["interleaved", "sin_cos", "cos_sin"])
@pytest.mark.parametrize("positions", [INTEGERS, FAR, FRACTIONAL, [INTEGERS, FAR], []])
def test_sinusoidal_has_the_bits_of_numpy(positions, layout, dtype, kernel_device):
    points = torch.tensor(positions, device=kernel_device)
    options = {"base": 5e5, "layout": layout, "shift": 1.0, "scale": 1.5}
    table = pn.sinusoidal(points, 18, dtype=dtype, **options)
    expected = pn.sinusoidal(to_numpy(points), 18, dtype=to_numpy(table).dtype, **options)
    assert table.shape == (*points.shape, 18)
    assert_same_bits(table, expected)
    out = torch.full((*points.shape, 18), torch.nan, dtype=dtype, device=kernel_device)
    assert pn.sinusoidal(points, 18, out=out, **options) is out
    assert_same_bits(out, expected)


@pytest.mark.parametrize("dtype", POSITION_DTYPES, ids=dtype_id)
def test_positions_of_every_dtype_have_the_bits_of_numpy(dtype, kernel_device):
    long = torch.tensor([0, 1, 2, 100, 127])
    whole, long = long.to(dtype).to(kernel_device), long.to(kernel_device)
    assert_same_bits(pn.sinusoidal(whole, 8), pn.sinusoidal(to_numpy(whole), 8))
    assert_same_bits(pn.sinusoidal(whole, 8), pn.sinusoidal(long, 8))
    case = BY_NAME["bhsd"]
    x, inv_freq = random(case.shape(), device=kernel_device), case.inv_freq(kernel_device)
    assert_same_bits(pn.apply_rotary(x, whole, inv_freq), pn.apply_rotary(x, long, inv_freq))


def test_an_int_makes_a_tensor_where_a_torch_dtype_or_device_is_given(kernel_device):
    expected = pn.sinusoidal(7, 8)
    assert_same_bits(pn.sinusoidal(7, 8, dtype=torch.float32), expected)
    table = pn.sinusoidal(7, 8, device=kernel_device)
    assert table.device.type == kernel_device
    assert_same_bits(table, expected)
    out = torch.empty(7, 8, device=kernel_device)
    assert_same_bits(pn.sinusoidal(7, 8, out=out), expected)
    cos, sin = pn.rotary_tables(7, BY_NAME["bhsd"].inv_freq(kernel_device))
    expected = pn.rotary_tables(7, BY_NAME["bhsd"].inv_freq().numpy())
    assert_same_bits(cos, expected[0])
    assert_same_bits(sin, expected[1])


@each_dtype
@pytest.mark.parametrize("layout", ["interleaved", "sin_cos", "cos_sin"])
@pytest.mark.parametrize("positions", [None, FAR, [FAR, FRACTIONAL]], ids=["none", "s", "b,s"])
def test_add_sinusoidal_has_the_bits_of_numpy(positions, layout, dtype, kernel_device):
    x = random((2, 5, 18), dtype, kernel_device)
    points = None if positions is None else torch.tensor(positions, device=kernel_device)
    options = {"x_scale": 3.0, "alpha": 0.5, "layout": layout, "shift": 1.0, "base": 5e5}
    numpy_points = None if points is None else to_numpy(points)
    expected = pn.add_sinusoidal(to_numpy(x), numpy_points, **options)
    assert_same_bits(pn.add_sinusoidal(x, points, **options), expected)
    assert_same_bits(pn.add_sinusoidal(x.clone().requires_grad_(), points, **options), expected)
    out = torch.full_like(x, torch.nan)
    assert pn.add_sinusoidal(x, points, **options, out=out) is out
    assert_same_bits(out, expected)
    again = x.clone()
    assert pn.add_sinusoidal(again, points, **options, out=again) is again
    assert_same_bits(again, expected)


# Enough bytes that a call is divided, and a number of rows that does not divide evenly.
@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize(
    "call",
    [
        lambda x, inv_freq: pn.apply_rotary(x, None, inv_freq, pairing="interleaved"),
        lambda x, inv_freq: pn.apply_rotary_qk(x, x[:, :3] * 2, None, inv_freq)[1],
        lambda x, inv_freq: pn.apply_rotary(x * 1, None, inv_freq, out=x * 1),
        lambda x, inv_freq: pn.add_sinusoidal(x, layout="sin_cos"),
        lambda x, inv_freq: pn.sinusoidal(torch.arange(4001), 128),
        lambda x, inv_freq: pn.rotary_tables(torch.arange(8001), inv_freq)[1],
        lambda x, inv_freq: pn.apply_rotary_qk(
            x, x[:, :3] * 2, None, pn.Tables(*pn.rotary_tables(torch.arange(701), inv_freq))
        )[1],
    ],
    ids=["rotary", "qk", "in place", "add", "sinusoidal", "tables", "qk by tables"],
)
def test_threads_do_not_change_bits(call):
    x = random((1, 7, 701, 128))
    inv_freq = torch.tensor(pn.rotary.rotary_frequencies(128)[0])
    torch.set_num_threads(1)
    one = call(x, inv_freq)
    torch.set_num_threads(2)
    assert_same_bits(call(x, inv_freq), one)
