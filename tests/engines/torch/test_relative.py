"""Relative encodings on tensors: the bits of NumPy, and the composition."""

from __future__ import annotations

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from relative_cases import (  # noqa: E402
    TOEPLITZ,
    add_arguments,
    add_options,
    bias_options,
    each_dtype,
    each_look_up,
    gather_arguments,
    sums_options,
)
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch_cases import FLOATS, assert_same_bits, dtype_id, plain_operations, random, to_numpy  # noqa: E402

import posenc_native as pn  # noqa: E402

pytestmark = torch_cases.needs_operators
device = torch_cases.device
kernel_device = torch_cases.kernel_device

each_toeplitz = pytest.mark.parametrize("name", TOEPLITZ)


def sums_shape(name):
    """Of `diagonal_sums`: the diagonals', where no axis is repeated."""
    shape, diagonals, options = TOEPLITZ[name]
    rank = len(options.get("q_len", (0,)))
    keep = len(diagonals) - rank
    return (*shape[len(shape) - 2 - keep : -2], *diagonals[keep:])


def scatter_arguments(name, dtype=torch.float32, device="cpu"):
    """(grad, index, width), options of `relative_scatter`."""
    (x, index, _), grad, options = gather_arguments(name, dtype, device)
    return (grad, index, x.shape[-1]), options


def as_numpy(values):
    """The same call's arguments as arrays."""
    if isinstance(values, dict):
        return {name: as_numpy(value) for name, value in values.items()}
    if isinstance(values, tuple):
        return tuple(map(as_numpy, values))
    return to_numpy(values) if isinstance(values, torch.Tensor) else values


def strided(x):
    """The same numbers in other memory: axes in another order, with gaps."""
    axes = tuple(reversed(range(x.ndim)))
    wide = torch.stack([x, x + 1], -1)[..., 0]
    return wide.permute(axes).contiguous().permute(axes) if x.ndim % 2 else wide


def assert_writes(write, target, expected):
    """write(target) leaves the result there, and autograd is told."""
    version = target._version
    assert write(target) is target
    assert_same_bits(target, expected)
    assert target._version > version


# --- The same bits from NumPy and from torch, however the call is made


@each_dtype
@each_toeplitz
def test_add_toeplitz_bias_has_the_bits_of_numpy(name, dtype, kernel_device):
    scores, diagonals, options = add_arguments(name, dtype, kernel_device)
    expected = pn.add_toeplitz_bias(*as_numpy((scores, diagonals)), **as_numpy(options))
    add = functools.partial(pn.add_toeplitz_bias, diagonals=diagonals, **options)
    assert_same_bits(add(scores), expected)
    assert_same_bits(add(strided(scores)), expected)
    assert_same_bits(add(scores.clone().requires_grad_()), expected)
    assert_same_bits(
        pn.add_toeplitz_bias(scores, strided(diagonals).requires_grad_(), **options), expected
    )
    assert_writes(lambda out: add(scores, out=out), torch.full_like(scores, torch.nan), expected)
    for place in (scores.clone(), strided(scores)):
        assert_writes(lambda out: add(out, out=out), place, expected)
    part = torch.cat([scores, scores + 1], -1)
    if scores.shape[-1]:
        assert_writes(lambda out: add(out, out=out), part[..., : scores.shape[-1]], expected)
        assert torch.equal(part[..., scores.shape[-1] :], scores + 1)


@each_dtype
@each_toeplitz
def test_toeplitz_bias_has_the_bits_of_numpy(name, dtype, kernel_device):
    _, diagonals, _ = add_arguments(name, dtype, kernel_device)
    options = bias_options(name, kernel_device)
    bias = functools.partial(pn.toeplitz_bias, **options)
    expected = pn.toeplitz_bias(to_numpy(diagonals), **as_numpy(options))
    assert_same_bits(bias(diagonals), expected)
    assert_same_bits(bias(strided(diagonals)), expected)
    assert_same_bits(bias(diagonals.clone().requires_grad_()), expected)
    out = torch.full(expected.shape, torch.nan, dtype=dtype, device=kernel_device)
    assert_writes(lambda out: bias(diagonals, out=out), out, expected)
    assert_writes(lambda out: bias(diagonals, out=out), strided(out), expected)
    for other in FLOATS:
        zeros = torch.zeros(expected.shape, dtype=other, device=kernel_device)
        if {dtype, other} != {torch.float64, torch.float32}:
            continue
        assert_same_bits(bias(diagonals, dtype=other), bias(diagonals).to(other))
        assert_same_bits(bias(diagonals, out=zeros), bias(diagonals).to(other))


@each_dtype
@each_toeplitz
def test_diagonal_sums_have_the_bits_of_numpy(name, dtype, kernel_device):
    grad = random(TOEPLITZ[name][0], dtype, kernel_device)
    options = sums_options(name, kernel_device)
    expected = pn.diagonal_sums(to_numpy(grad), **as_numpy(options))
    assert expected.shape == sums_shape(name)
    assert_same_bits(pn.diagonal_sums(grad, **options), expected)
    assert_same_bits(pn.diagonal_sums(strided(grad), **options), expected)
    assert_same_bits(pn.diagonal_sums(grad.clone().requires_grad_(), **options), expected)


@pytest.mark.parametrize("diagonals_dtype", FLOATS, ids=lambda d: f"diagonals-{dtype_id(d)}")
@each_dtype
def test_scores_and_diagonals_of_two_dtypes(dtype, diagonals_dtype, kernel_device):
    scores, diagonals, options = add_arguments("grid", dtype, kernel_device, diagonals_dtype)
    result = pn.add_toeplitz_bias(scores, diagonals, **options)
    expected = pn.add_toeplitz_bias(*as_numpy((scores, diagonals)), **as_numpy(options))
    assert_same_bits(result, expected)
    with plain_operations():
        assert_same_bits(pn.add_toeplitz_bias(scores, diagonals, **options), expected)
    scores.requires_grad_()
    diagonals.requires_grad_()
    pn.add_toeplitz_bias(scores, diagonals, **options).sum().backward()
    assert (scores.grad.dtype, diagonals.grad.dtype) == (dtype, diagonals_dtype)


@each_dtype
@each_look_up
def test_relative_gather_has_the_bits_of_numpy(name, dtype, kernel_device):
    (x, index, k_len), content, options = gather_arguments(name, dtype, kernel_device)
    gather = functools.partial(pn.relative_gather, index=index, k_len=k_len, **options)
    arrays = as_numpy(((x, index, k_len), options))
    for added in (None, content):
        expected = pn.relative_gather(*arrays[0], **arrays[1], content=as_numpy(added))
        assert_same_bits(gather(x, content=added), expected)
        assert_same_bits(gather(x.clone().requires_grad_(), content=added), expected)
        # Axes whose order is another take another path to the same numbers.
        other = None if added is None else strided(added)
        assert_same_bits(gather(strided(x), content=other), expected)
        out = torch.full_like(content, torch.nan)
        assert_writes(lambda out, a=added: gather(x, content=a, out=out), out, expected)
    assert_writes(lambda out: gather(x, content=out, out=out), content.clone(), expected)
    if index is not None:
        for kind in (torch.int8, torch.uint8, torch.int32, torch.uint64):
            if name != "missing" or kind.is_signed:
                again = gather(x, index=index.to(kind), content=content)
                assert_same_bits(again, expected)


@each_dtype
@each_look_up
def test_relative_scatter_has_the_bits_of_numpy(name, dtype, kernel_device):
    (grad, index, width), options = scatter_arguments(name, dtype, kernel_device)
    scatter = functools.partial(pn.relative_scatter, index=index, width=width, **options)
    arrays = as_numpy(((grad, index, width), options))
    expected = pn.relative_scatter(*arrays[0], **arrays[1])
    assert_same_bits(scatter(grad), expected)
    assert_same_bits(scatter(strided(grad)), expected)
    assert_same_bits(scatter(grad.clone().requires_grad_()), expected)
    out = torch.full((*grad.shape[:-1], width), torch.nan, dtype=dtype, device=kernel_device)
    assert_writes(lambda out: scatter(grad, out=out), out, expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.uint64], ids=str)
def test_offsets_of_every_integer_dtype(dtype, kernel_device):
    scores, diagonals, _ = add_arguments("q_offset [B]", device=kernel_device)
    expected = pn.add_toeplitz_bias(scores, diagonals, origin=12, q_offset=[5, 1])
    # Made on the CPU: torch does not multiply uint64 on CUDA.
    offset = torch.tensor([5, 1], dtype=dtype)
    pairs = torch.stack([offset, offset * 0], 1).to(kernel_device)
    for given in (offset.to(kernel_device), pairs[:, 0], to_numpy(offset)):
        assert_same_bits(
            pn.add_toeplitz_bias(scores, diagonals, origin=12, q_offset=given), expected
        )


@pytest.mark.usefixtures("backend")
def test_any_array_is_an_index(device):
    x = random((2, 3, 4), device=device)
    index = np.array([3, 2, 1, 0, 0])
    expected = pn.relative_gather(x, torch.tensor(index, device=device), 3)
    backwards, repeated = index[::-1].copy()[::-1], np.broadcast_to(np.int32(2), 5)
    assert_same_bits(pn.relative_gather(x, backwards, 3), expected)
    assert_same_bits(pn.relative_gather(x, index.tolist(), 3), expected)
    assert_same_bits(pn.relative_gather(x, repeated, 3), x[..., 2:3].expand(2, 3, 3))
    offset = np.array([1, 0])[::-1]
    rows = pn.relative_gather(x, None, 2, q_offset=offset, origin=2)
    assert_same_bits(rows[1], pn.relative_gather(x[1], None, 2, q_offset=1, origin=2))


# --- The composition


def count_of(x):
    """As many terms as any sum can have."""
    return max(x.numel(), 1)


@each_dtype
@each_toeplitz
def test_the_composition_has_the_same_numbers(name, dtype, device):
    scores, diagonals, options = add_arguments(name, dtype, device)
    bias, sums = bias_options(name, device), sums_options(name, device)

    def calls():
        out = torch.empty_like(scores)
        pn.add_toeplitz_bias(scores, diagonals, **options, out=out)
        place = scores.clone()
        version = place._version
        assert pn.add_toeplitz_bias(place, diagonals, **options, out=place) is place
        assert place._version > version
        added = pn.add_toeplitz_bias(scores, diagonals, **options)
        return added, out, place, pn.toeplitz_bias(diagonals, **bias)

    native, native_sums = calls(), pn.diagonal_sums(scores, **sums)
    with plain_operations():
        for a, b in zip(calls(), native, strict=True):
            assert_same_bits(a, b)
        actual = pn.diagonal_sums(scores, **sums)
    assert actual.dtype == native_sums.dtype
    # Sums in two orders: each is off by at most its terms' magnitude, a unit for each of them.
    real = torch.float64 if dtype == torch.float64 else torch.float32
    bound = pn.diagonal_sums(scores.abs(), **sums) * count_of(scores) * torch.finfo(real).eps
    assert ((actual - native_sums).abs() <= bound).all()


@each_dtype
@each_look_up
def test_the_composition_looks_up_the_same(name, dtype, device):
    arguments, content, options = gather_arguments(name, dtype, device)
    scatter, scatter_options = scatter_arguments(name, dtype, device)

    def calls():
        out = torch.empty_like(content)
        pn.relative_gather(*arguments, content=content, **options, out=out)
        place = content.clone()
        pn.relative_gather(*arguments, content=place, **options, out=place)
        return pn.relative_gather(*arguments, **options), out, place

    native, native_sums = calls(), pn.relative_scatter(*scatter, **scatter_options)
    with plain_operations():
        for a, b in zip(calls(), native, strict=True):
            assert_same_bits(a, b)
        sums = pn.relative_scatter(*scatter, **scatter_options)
    magnitude = scatter[0].abs().sum(-1, keepdim=True).double()
    scale = abs(options.get("scale", 1.0))
    bound = magnitude * scale * (5 * 2.0**-24 + torch.finfo(dtype).eps)
    assert ((sums.double() - native_sums.double()).abs() <= bound).all()


def test_meta_and_fake_tensors(kernel_device):
    for name in TOEPLITZ:
        scores, diagonals, options = add_arguments(name, torch.bfloat16)
        calls = {
            "add": lambda s, d, n=name: pn.add_toeplitz_bias(s, d, **add_options(n, s.device)),
            "in place": lambda s, d, n=name: pn.add_toeplitz_bias(
                s, d, **add_options(n, s.device), out=s
            ),
            "bias": lambda s, d, n=name: pn.toeplitz_bias(d, **bias_options(n, d.device)),
            "sums": lambda s, d, n=name: pn.diagonal_sums(s, **sums_options(n, s.device)),
        }
        for call in calls.values():
            expected = call(scores.clone(), diagonals)
            if "q_offset" not in options or isinstance(options["q_offset"], int):
                meta = call(scores.to("meta"), diagonals.to("meta"))
                assert (meta.shape, meta.dtype) == (expected.shape, expected.dtype)
            with FakeTensorMode(allow_non_fake_inputs=True):
                fake = call(
                    torch.empty_like(scores, device=kernel_device),
                    torch.empty_like(diagonals, device=kernel_device),
                )
            assert (fake.shape, fake.dtype) == (expected.shape, expected.dtype)
            assert not expected.numel() or fake.stride() == expected.stride()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_arrays_of_diagonals_are_for_tensors_too(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 of NumPy")
    diagonals = pn.relative.alibi_diagonals(3, 4, 5, dtype=dtype, q_offset=0)
    scores = random((2, 3, 4, 5), torch.bfloat16)
    tensor = torch.as_tensor(diagonals.astype(np.float64))
    assert_same_bits(pn.add_toeplitz_bias(scores, diagonals), pn.add_toeplitz_bias(scores, tensor))
