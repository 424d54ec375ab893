"""The operators on strided memory: packed q, k and v, any strides, expanded and empty tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import (  # noqa: E402
    FAR,
    FLOATS,
    ROTARY_CASES,
    assert_same_bits,
    dtype_id,
    each_rotary_case,
    padded,
    random,
)

import posenc_native as pn  # noqa: E402
from posenc_native.engines.torch import library, recurrent  # noqa: E402, F401 - operators

pytestmark = torch_cases.needs_operators
kernel_device = torch_cases.kernel_device
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
BY_NAME = {case.name: case for case in ROTARY_CASES}


@each_dtype
def test_slices_of_a_packed_qkv_are_rotated_where_they_are(dtype, kernel_device):
    b, s, heads, kv_heads, d = 2, 5, 4, 2, 16
    packed = random((b, s, (heads + 2 * kv_heads) * d), dtype, kernel_device)
    inv_freq = BY_NAME["bhsd"].inv_freq(kernel_device)
    positions = torch.tensor(FAR, device=kernel_device)

    def split(qkv):
        q, k, v = qkv.split([heads * d, kv_heads * d, kv_heads * d], -1)
        return q.unflatten(-1, (heads, d)), k.unflatten(-1, (kv_heads, d)), v

    q, k, v = (t.clone() for t in split(packed))
    expected = pn.apply_rotary_qk(q, k, positions, inv_freq, layout="bshd")
    for layout in ("bshd", "bhsd"):
        work = packed.clone()
        views = split(work)[:2]
        if layout == "bhsd":
            views = [t.transpose(1, 2) for t in views]
        functional = pn.apply_rotary_qk(*views, positions, inv_freq, layout=layout)
        torch.testing.assert_close(work, packed, rtol=0, atol=0)
        by_tables = work.clone()
        there = split(by_tables)[:2]
        if layout == "bhsd":
            there = [t.transpose(1, 2) for t in there]
        real = torch.float64 if dtype == torch.float64 else torch.float32
        tables = pn.rotary_tables(positions, inv_freq, dtype=real)
        pn.apply_rotary_qk(*there, None, pn.Tables(*tables), layout=layout, inplace=True)
        assert_same_bits(split(by_tables)[2], v)
        result = pn.apply_rotary_qk(*views, positions, inv_freq, layout=layout, inplace=True)
        assert result[0] is views[0]
        assert result[1] is views[1]
        for new, same, view in zip(functional, there, views, strict=True):
            assert_same_bits(new, view)
            assert_same_bits(same, view)
        in_q, in_k, in_v = split(work)
        assert_same_bits(in_q, expected[0])
        assert_same_bits(in_k, expected[1])
        assert_same_bits(in_v, v)


@each_rotary_case
def test_any_strides_of_x_positions_and_out_give_the_same_bits(case, kernel_device):
    x = random(case.shape(), device=kernel_device)
    (positions, inv_freq), options = case.arguments(kernel_device)
    expected = pn.apply_rotary(x, positions, inv_freq, **options)
    backwards = tuple(reversed(range(x.ndim)))
    views = {
        "axes reversed": x.permute(backwards).contiguous().permute(backwards),
        "every other": torch.repeat_interleave(x, 2, -1)[..., ::2],
        "offset": torch.cat([x[:1], x])[1:],
        "padded": padded(x),
    }
    for name, view in views.items():
        assert torch.equal(view, x), name
        assert_same_bits(pn.apply_rotary(view, positions, inv_freq, **options), expected)
        out = torch.zeros_like(torch.cat([view, view], -1))[..., 1 : 1 + x.shape[-1]]
        pn.apply_rotary(x, positions, inv_freq, **options, out=out)
        assert_same_bits(out, expected)
        around = torch.cat([view, view + 1], -1)
        part = around[..., : x.shape[-1]]
        pn.apply_rotary(part, positions, inv_freq, **options, out=part)
        assert_same_bits(part, expected)
        assert torch.equal(around[..., x.shape[-1] :], view + 1)
    if positions is not None:
        strided = torch.stack([positions, positions * 0], -1)[..., 0]
        assert not strided.is_contiguous()
        frequencies = torch.stack([inv_freq, inv_freq * 0], -1)[:, 0]
        assert_same_bits(pn.apply_rotary(x, strided, frequencies, **options), expected)


def test_expanded_inputs_give_the_bits_of_their_copies(kernel_device):
    case = BY_NAME["sbhd-batched"]
    (_, inv_freq), options = case.arguments(kernel_device)
    x = random(case.shape(), device=kernel_device)[:, :1].expand(case.shape())
    positions = torch.tensor(FAR, device=kernel_device).expand(2, 5)
    assert 0 in x.stride()
    assert 0 in positions.stride()
    expected = pn.apply_rotary(x.contiguous(), positions.contiguous(), inv_freq, **options)
    assert_same_bits(pn.apply_rotary(x, positions, inv_freq, **options), expected)
    cos, sin = case.tables(device=kernel_device)
    cos, sin = cos[:1, :1].expand(cos.shape), sin[:1, :1].expand(sin.shape)
    options = case.table_options()
    expected = pn.apply_rotary(
        x.contiguous(), None, pn.Tables(cos.contiguous(), sin.contiguous()), **options
    )
    assert_same_bits(pn.apply_rotary(x, None, pn.Tables(cos, sin), **options), expected)
    for rotated in pn.apply_rotary_qk(x, x, None, pn.Tables(cos, sin), **options):
        assert_same_bits(rotated, expected)
    row = random((5, 8), device=kernel_device)[:1].expand(2, 5, 8)
    assert_same_bits(pn.add_sinusoidal(row), pn.add_sinusoidal(row.contiguous()))


@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.transpose(1, 2),
        lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(3, -1, -1, -1),
        lambda x: x[:, :, :0],
    ],
    ids=["contiguous", "transposed", "permuted", "step", "expanded", "empty"],
)
def test_results_have_the_strides_of_empty_like(view, requires_grad, kernel_device):
    x = view(random((2, 4, 6, 16), device=kernel_device)).requires_grad_(requires_grad)
    like = torch.empty_like(x).stride()
    inv_freq = BY_NAME["bhsd"].inv_freq(kernel_device)
    tables = pn.rotary_tables(torch.arange(x.shape[2], device=kernel_device), inv_freq)
    assert pn.apply_rotary(x, None, inv_freq).stride() == like
    assert [t.stride() for t in pn.apply_rotary_qk(x, x, None, inv_freq)] == [like, like]
    assert pn.apply_rotary(x, None, pn.Tables(*tables)).stride() == like
    assert [t.stride() for t in pn.apply_rotary_qk(x, x, None, pn.Tables(*tables))] == [like, like]
    assert pn.add_sinusoidal(x).stride() == like


def test_a_negated_view_is_read_as_its_values(kernel_device):
    # The imaginary part of a conjugate: memory with the other sign, and a bit that says so.
    parts = (random((2, 3, 5, 8), device=kernel_device, seed=seed) for seed in (0, 1))
    z = torch.complex(*parts).conj().imag
    assert z.is_neg()
    inv_freq = torch.tensor(pn.rotary.rotary_frequencies(8)[0], device=kernel_device)
    expected = pn.apply_rotary(z.resolve_neg(), None, inv_freq)
    assert_same_bits(pn.apply_rotary(z, None, inv_freq), expected)


def test_gradients_of_empty_tensors(kernel_device):
    """Their rotations are among those of engines/test_empty_axes.py."""
    inv_freq = BY_NAME["bhsd"].inv_freq(kernel_device)
    for shape in [(0, 3, 5, 16), (2, 0, 5, 16), (2, 3, 0, 16)]:
        x = torch.empty(shape, device=kernel_device, requires_grad=True)
        pn.apply_rotary(x, None, inv_freq).sum().backward()
        assert x.grad.shape == x.shape
