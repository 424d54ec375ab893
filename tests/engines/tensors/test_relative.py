"""Relative encodings on tensors: the bits of NumPy, the composition, gradients, tracing, errors."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from compiling import assert_like_eager, compiled  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch_cases import FLOATS, assert_same_bits, composed, dtype_id, random, to_numpy  # noqa: E402

import posenc_native as pn  # noqa: E402

pytestmark = [
    torch_cases.needs_operators,
    pytest.mark.filterwarnings(
        "ignore:.*should not be instantiated:DeprecationWarning",
        "ignore:.*treespec.*:FutureWarning",
    ),
]
device = torch_cases.device
kernel_device = torch_cases.kernel_device
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)

# name: (shape of the scores, of the diagonals, how they are read)
TOEPLITZ = {
    "plain": ((2, 3, 4, 6), (3, 9), {}),
    "one step": ((2, 3, 1, 7), (3, 7), {}),
    "one key": ((3, 5, 1), (3, 5), {}),
    "no heads": ((4, 6), (9,), {}),
    "no heads, batch": ((2, 4, 6), (9,), {}),
    "each batch its own": ((2, 3, 4, 6), (2, 3, 9), {}),
    "batch of one": ((2, 3, 4, 6), (1, 3, 9), {}),
    "five axes": ((2, 2, 3, 4, 5), (3, 8), {}),
    "origin": ((2, 3, 4, 6), (3, 20), {"origin": 9}),
    "q_offset": ((2, 3, 4, 6), (3, 20), {"origin": 12, "q_offset": 5}),
    "q_offset [B]": ((2, 3, 4, 6), (3, 20), {"origin": 12, "q_offset": [5, -1]}),
    "q_offset []": ((2, 3, 4, 6), (2, 3, 20), {"origin": 12, "q_offset": 5 * np.ones((), int)}),
    "q_offset [B], five axes": ((2, 2, 3, 2, 3), (3, 9), {"origin": 6, "q_offset": [5, 1]}),
    "q_offset [B, C]": ((2, 2, 3, 2, 3), (3, 9), {"origin": 6, "q_offset": [[5, 1], [0, 2]]}),
    "grid": ((2, 3, 6, 12), (3, 4, 6), {"q_len": (2, 3), "k_len": (3, 4)}),
    "grid, origin": (
        (2, 6, 12), (2, 6, 9), {"q_len": (2, 3), "k_len": (3, 4), "origin": (2, 4)},
    ),
    "grid of three": ((2, 8, 4), (2, 3, 3, 2), {"q_len": (2, 2, 2), "k_len": (2, 2, 1)}),
    "no queries": ((2, 3, 0, 4), (3, 3), {}),
    "nothing": ((3, 0, 0), (3, 0), {}),
}  # fmt: skip
# name: (shape of x, index, k_len, options)
LOOKED_UP = {
    "index": ((2, 3, 4, 5), [0, 0, 1, 2, 3, 4, 4, 4], 5, {}),
    "shift": ((2, 3, 4, 8), None, 5, {}),
    "shift past the columns": ((3, 4, 3), None, 6, {}),
    "skew": ((3, 4, 6), None, 4, {"origin": 5}),
    "missing": ((2, 4, 3), [-1, 0, 1, -1, 2, -1], 3, {"missing": -1, "scale": 0.5}),
    "origin": ((2, 3, 2, 3), [0, 1, 2, 1, 0, 1, 2, 2], 3, {"origin": 4, "q_offset": 1}),
    "q_offset [B]": ((2, 3, 2, 3), [0, 1, 2, 1, 0, 1, 2, 2], 3, {"origin": 5, "q_offset": [1, 3]}),
    "shift, q_offset [B]": ((2, 3, 2, 4), None, 3, {"origin": 2, "q_offset": [1, -2]}),
    "matrix": ((3, 5), [4, 3, 2, 1, 0], 3, {"scale": -2.0}),
    "no columns": ((2, 3, 0), None, 4, {}),
    "no keys": ((2, 3, 4), [0, 1], 0, {}),
}  # fmt: skip
each_toeplitz = pytest.mark.parametrize("name", TOEPLITZ)
each_look_up = pytest.mark.parametrize("name", LOOKED_UP)


def of_tensors(options, device="cpu"):
    """Options with q_offset as a tensor where it is no int."""
    offset = options.get("q_offset", 0)
    if isinstance(offset, int):
        return dict(options)
    return options | {"q_offset": torch.tensor(offset, device=device)}


def add_arguments(name, dtype=torch.float32, device="cpu", diagonals_dtype=None):
    """scores, diagonals, options of `add_toeplitz_bias`."""
    shape, diagonals, options = TOEPLITZ[name]
    return (
        random(shape, dtype, device),
        random(diagonals, diagonals_dtype or dtype, device, seed=1),
        of_tensors(options, device),
    )


def bias_options(name, device="cpu"):
    """Options of `toeplitz_bias` for the same."""
    shape, _, options = TOEPLITZ[name]
    lengths = dict(zip(("q_len", "k_len"), shape[-2:], strict=True))
    return lengths | of_tensors(options, device)


def sums_options(name, device="cpu"):
    """Options of `diagonal_sums` for the same."""
    _, diagonals, options = TOEPLITZ[name]
    keep = len(diagonals) - len(options.get("q_len", (0,)))
    options = of_tensors(options, device) | {"keep": keep}
    return options | {"entries": diagonals[keep:]} if "origin" in options else options


def sums_shape(name):
    """Of `diagonal_sums`: the diagonals', where no axis is repeated."""
    shape, diagonals, options = TOEPLITZ[name]
    rank = len(options.get("q_len", (0,)))
    keep = len(diagonals) - rank
    return (*shape[len(shape) - 2 - keep : -2], *diagonals[keep:])


def gather_arguments(name, dtype=torch.float32, device="cpu"):
    """(x, index, k_len), content, options of `relative_gather`."""
    shape, index, k_len, options = LOOKED_UP[name]
    index = None if index is None else torch.tensor(index, device=device)
    content = random((*shape[:-1], k_len), dtype, device, seed=1)
    return (random(shape, dtype, device), index, k_len), content, of_tensors(options, device)


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
    with composed():
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
    offset = torch.tensor([5, 1], dtype=dtype, device=kernel_device)
    spaced = torch.stack([offset, offset * 0], 1)[:, 0]
    for given in (offset, spaced, to_numpy(offset)):
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
    with composed():
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
    with composed():
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
            "add": lambda s, d, o=options: pn.add_toeplitz_bias(s, d, **o),
            "in place": lambda s, d, o=options: pn.add_toeplitz_bias(s, d, **o, out=s),
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


# --- Gradients

gradcheck = functools.partial(torch.autograd.gradcheck, check_batched_grad=True)
gradgradcheck = functools.partial(
    torch.autograd.gradgradcheck, check_batched_grad=True, fast_mode=True
)
SMALL = [name for name, (shape, _, _) in TOEPLITZ.items() if 0 < np.prod(shape) <= 200]
each_small = pytest.mark.parametrize("name", SMALL)


def leaf(x):
    return x.detach().clone().requires_grad_()


def check(function, *inputs):
    """First and second derivatives, and with only one of the inputs wanting any."""
    inputs = tuple(map(leaf, inputs))
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)
    for i in range(len(inputs) * (len(inputs) > 1)):
        only = [x if i == j else x.detach() for j, x in enumerate(inputs)]
        assert torch.autograd.gradcheck(function, tuple(only), fast_mode=True)


def test_most_cases_are_small():
    assert len(SMALL) >= len(TOEPLITZ) - 4


@each_small
def test_gradients_of_add_toeplitz_bias(name, device):
    scores, diagonals, options = add_arguments(name, torch.float64, device)
    check(lambda s, d: pn.add_toeplitz_bias(s, d, **options), scores, diagonals)

    def in_place(s, d):
        place = s * 2
        assert pn.add_toeplitz_bias(place, d, **options, out=place) is place
        return place * place

    assert gradcheck(in_place, (leaf(scores), leaf(diagonals)))
    assert gradcheck(lambda d: in_place(scores, d), (leaf(diagonals),))
    assert gradgradcheck(in_place, (leaf(scores), leaf(diagonals)))


@each_small
def test_gradients_of_bias_and_sums(name, device):
    scores, diagonals, _ = add_arguments(name, torch.float64, device)
    bias, sums = bias_options(name, device), sums_options(name, device)
    check(lambda d: pn.toeplitz_bias(d, **bias), diagonals)
    check(lambda g: pn.diagonal_sums(g, **sums), scores)


@each_look_up
def test_gradients_of_gather_and_scatter(name, device):
    (x, index, k_len), content, options = gather_arguments(name, torch.float64, device)
    if not x.numel() or not content.numel():
        pytest.skip("nothing to differentiate")
    check(lambda x: pn.relative_gather(x, index, k_len, **options), x)
    check(lambda x, c: pn.relative_gather(x, index, k_len, content=c, **options), x, content)
    check(lambda g: pn.relative_scatter(g, index, x.shape[-1], **options), content)


# name: f(inputs) and the shapes of these, to differentiate
INDEX = torch.tensor([0, 0, 1, 2, 3, 4, 4])
DIFFERENTIABLE = {
    "add": (lambda s, d: pn.add_toeplitz_bias(s, d), ((2, 3, 4, 4), (3, 7))),
    "add in place": (
        lambda s, d: (y := s * 2, pn.add_toeplitz_bias(y, d, out=y))[1], ((2, 3, 4, 4), (3, 7)),
    ),
    "add with q_offset": (
        lambda s, d: pn.add_toeplitz_bias(s, d, q_offset=torch.tensor([1, 0]), origin=4),
        ((2, 3, 4, 4), (3, 9)),
    ),
    "add to a grid": (
        lambda s, d: pn.add_toeplitz_bias(s, d, q_len=(2, 2), k_len=(2, 2)),
        ((2, 3, 4, 4), (3, 3, 3)),
    ),
    "bias": (lambda d: pn.toeplitz_bias(d, d.shape[-1] - 3, 4), ((3, 7),)),
    "bias of a table": (
        lambda d: pn.toeplitz_bias(d, 4, 4, q_offset=torch.tensor([1, 0]), origin=4), ((3, 9),),
    ),
    "sums": (lambda g: pn.diagonal_sums(g), ((2, 3, 4, 4),)),
    "sums of all": (lambda g: pn.diagonal_sums(g, keep=0, entries=9, origin=4), ((2, 3, 4, 4),)),
    "gather": (lambda x: pn.relative_gather(x, INDEX, 4, scale=0.5), ((2, 4, 5),)),
    "gather and content": (
        lambda x, c: pn.relative_gather(x, INDEX, c.shape[-1], content=c, scale=0.5),
        ((2, 4, 5), (2, 4, 4)),
    ),
    "shift": (lambda x: pn.relative_gather(x, None, 4), ((2, 4, 5),)),
    "scatter": (lambda g: pn.relative_scatter(g, INDEX, 5, scale=0.5), ((2, 4, 4),)),
}  # fmt: skip
each_differentiable = pytest.mark.parametrize(
    ("function", "shapes"), DIFFERENTIABLE.values(), ids=DIFFERENTIABLE
)


def inputs_of(shapes, dtype=torch.float64, requires_grad=True):
    return [random(s, dtype, seed=i, requires_grad=requires_grad) for i, s in enumerate(shapes)]


@each_differentiable
def test_gradients_of_any_strides(function, shapes):
    inputs = inputs_of(shapes)
    for reduce in (
        lambda y: y.sum(),  # one number, repeated with stride 0
        lambda y: (y.mean(0) ** 2).sum(),
        lambda y: (y.movedim(-1, 0).flatten() * torch.arange(y.numel())).sum(),
    ):
        actual = torch.autograd.grad(reduce(function(*inputs)), inputs)
        y = function(*inputs)
        detached = leaf(y)
        (seed,) = torch.autograd.grad(reduce(detached), detached)
        expected = torch.autograd.grad(y, inputs, seed.contiguous())
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@each_differentiable
def test_gradients_accumulate_and_graphs_are_kept(function, shapes):
    inputs = inputs_of(shapes)
    y = (function(*inputs) ** 2).sum()
    y.backward(retain_graph=True)
    once = [x.grad.clone() for x in inputs]
    y.backward()
    for x, grad in zip(inputs, once, strict=True):
        assert torch.equal(x.grad, 2 * grad)


@each_dtype
@each_differentiable
def test_gradients_have_the_dtype_of_the_input(function, shapes, dtype):
    inputs = inputs_of(shapes, dtype)
    grads = torch.autograd.grad(function(*inputs).sum(), inputs)
    with composed():
        expected = torch.autograd.grad(function(*inputs).sum(), inputs)
    for x, grad, e in zip(inputs, grads, expected, strict=True):
        assert grad.dtype == dtype
        assert grad.shape == x.shape
        torch.testing.assert_close(grad, e)


@each_differentiable
def test_modes(function, shapes):
    inputs = inputs_of(shapes, torch.float32)
    expected = function(*inputs)
    assert expected.requires_grad
    with torch.no_grad():
        result = function(*inputs)
    assert not result.requires_grad
    assert_same_bits(result, expected)
    with torch.inference_mode():
        assert_same_bits(function(*inputs), expected)
        assert_same_bits(function(*(x.clone() for x in inputs)), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same_bits(function(*inputs), expected)

    class Tagged(torch.Tensor):
        pass

    tagged = function(*(x.detach().as_subclass(Tagged) for x in inputs))
    assert isinstance(tagged, Tagged)
    assert_same_bits(tagged.as_subclass(torch.Tensor), expected)


def test_a_leaf_is_not_overwritten():
    scores, diagonals = random((3, 4, 4), requires_grad=True), random((3, 7))
    before = scores.detach().clone()
    for target in (scores, scores[:]):
        with pytest.raises(RuntimeError, match="leaf"):
            pn.add_toeplitz_bias(target, diagonals, out=target)
        assert torch.equal(scores, before)
    with torch.no_grad():
        pn.add_toeplitz_bias(scores, diagonals, out=scores)
    assert not torch.equal(scores, before)


def test_diagonals_with_gradient_added_in_place():
    # The scores themselves want none: they do afterwards.
    scores, diagonals = random((2, 3, 4, 4)), random((3, 7), requires_grad=True)
    result = pn.add_toeplitz_bias(scores, diagonals, out=scores)
    assert result is scores
    assert scores.requires_grad
    (grad,) = torch.autograd.grad(scores.sum(), diagonals)
    assert_same_bits(grad, pn.diagonal_sums(torch.ones(2, 3, 4, 4)))


OUT = {
    "bias": lambda x, out: pn.toeplitz_bias(x[0], 2, 3, out=out),
    "add": lambda x, out: pn.add_toeplitz_bias(x[:, :2, :3], x[0], out=out),
    "gather": lambda x, out: pn.relative_gather(x[:, :2], None, 3, out=out),
    "scatter": lambda x, out: pn.relative_scatter(x[:, :2, :2], None, 3, out=out),
}


@pytest.mark.parametrize("write", OUT.values(), ids=OUT)
def test_out_does_not_take_part_in_autograd(write):
    x, out = random((4, 4, 4)), torch.zeros(4, 2, 3)
    with pytest.raises(ValueError, match=": out: "):
        write(x.clone().requires_grad_(), out)
    with pytest.raises(ValueError, match=": out: "):
        write(x, out.clone().requires_grad_())
    assert not out.any()
    with torch.no_grad():
        write(x.clone().requires_grad_(), out)
    assert out.any()


def test_offsets_overwritten_before_the_backward_are_noticed():
    offset = torch.tensor([1, 0])
    diagonals = random((3, 9), requires_grad=True)
    x = random((2, 4, 5), requires_grad=True)
    index = INDEX.clone()
    window = {"q_offset": offset, "origin": 4}
    for result, overwritten in (
        (pn.toeplitz_bias(diagonals, 4, 4, **window), offset),
        (pn.add_toeplitz_bias(torch.zeros(2, 3, 4, 4), diagonals, **window), offset),
        (pn.relative_gather(x, index, 4), index),
    ):  # fmt: skip
        overwritten += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
        overwritten -= 1


def test_no_copy_of_scores_is_saved():
    saved = []
    scores, diagonals = random((2, 3, 64, 64), requires_grad=True), random((3, 127))
    diagonals.requires_grad_()
    x = random((2, 3, 64, 127), requires_grad=True)

    def pack(tensor):
        saved.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        pn.add_toeplitz_bias(scores, diagonals)
        pn.toeplitz_bias(diagonals, 64, 64)
        pn.relative_gather(x, None, 64, content=scores)
        pn.relative_scatter(scores, None, 127)
        pn.diagonal_sums(scores)
    assert max(saved, default=0) <= diagonals.nbytes


# --- The same bits on every call


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize("keep", [0, 1, 2])
def test_the_gradient_of_diagonals_has_the_same_bits_on_every_call(keep):
    grad = random((3, 4, 200, 310))
    diagonals = random((*(3, 4)[2 - keep :], 509), requires_grad=True)
    results = []
    for threads in (1, 2, 4, 1):
        torch.set_num_threads(threads)
        scores = torch.zeros_like(grad)
        added = pn.add_toeplitz_bias(scores, diagonals)
        results.append(torch.autograd.grad(added, diagonals, grad)[0])
        results.append(pn.diagonal_sums(grad, keep=keep))
    for result in results[1:]:
        assert_same_bits(result, results[0])


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize(
    "call",
    [
        lambda x, d: pn.add_toeplitz_bias(x, d),
        lambda x, d: pn.toeplitz_bias(d, 200, 310),
        lambda x, d: pn.relative_gather(x, torch.arange(509) % 310, 310, content=x),
        lambda x, d: pn.relative_scatter(x, torch.arange(509) // 9, 57),
        lambda x, d: pn.relative_scatter(x, None, 509),
    ],
    ids=["add", "bias", "gather", "scatter", "unshift"],
)
def test_threads_do_not_change_bits(call):
    x, d = random((3, 4, 200, 310)), random((4, 509))
    torch.set_num_threads(1)
    one = call(x, d)
    for threads in (2, 4):
        torch.set_num_threads(threads)
        assert_same_bits(call(x, d), one)


# --- torch.compile, torch.export, torch.func


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh")
@each_differentiable
def test_compiled_functions_are_like_eager_ones(function, shapes):
    inputs = inputs_of(shapes, torch.float32, requires_grad=False)
    assert_like_eager(function, *inputs, requires_grad=True)


OTHERS = {
    "add on the input": (
        lambda s, d: pn.add_toeplitz_bias(s, d, out=s), ((2, 3, 4, 4), (3, 7)),
    ),
    "bias out": (
        lambda d: pn.toeplitz_bias(d, 4, 4, out=torch.empty(3, 4, 4)), ((3, 7),),
    ),
    "gather on the content": (
        lambda x, c: pn.relative_gather(x, INDEX, 4, content=c, out=c), ((2, 4, 5), (2, 4, 4)),
    ),
    "scatter out": (
        lambda g: pn.relative_scatter(g, INDEX, 5, out=torch.empty(2, 4, 5)), ((2, 4, 4),),
    ),
}  # fmt: skip


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("function", "shapes"), OTHERS.values(), ids=OTHERS)
def test_compiled_calls_with_out(function, shapes):
    assert_like_eager(function, *inputs_of(shapes, torch.float32, requires_grad=False))


@pytest.mark.usefixtures("fresh")
def test_compiled_by_inductor_a_table_trains():
    table = random((3, 9), requires_grad=True)
    q, k = random((2, 3, 5, 8)), random((2, 3, 5, 8), seed=1)

    def loss(q, k, table):
        scores = pn.add_toeplitz_bias(q @ k.mT, table * 2)
        shifted = pn.relative_gather(torch.cat([q, q[..., :1]], -1), None, 5, content=scores)
        return (torch.softmax(shifted, -1) ** 2).sum()

    fast = compiled(loss, "inductor")
    for inputs in ((q, k), (k, q)):
        expected = torch.autograd.grad(loss(*inputs, table), table)
        torch.testing.assert_close(torch.autograd.grad(fast(*inputs, table), table), expected)


TABLE = random((3, 120), seed=5)
VARYING = {
    "add": lambda s, d: pn.add_toeplitz_bias(s, d),
    "bias": lambda s, d: pn.toeplitz_bias(d, s.shape[-2], s.shape[-1]),
    "sums": lambda s, d: pn.diagonal_sums(s, keep=2) * d,
    "shift": lambda s, d: pn.relative_gather(pn.toeplitz_bias(d, *s.shape[-2:]), None, s.shape[-1]),
    "scatter": lambda s, d: pn.relative_scatter(s, None, d.shape[-1]),
    "window": lambda s, d: pn.add_toeplitz_bias(s, TABLE, q_offset=1, origin=60),
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", VARYING.values(), ids=VARYING)
def test_lengths_do_not_recompile(function):
    counter = CompileCounterWithBackend("aot_eager")
    fast = compiled(function, counter)
    counts = []
    for q_len, k_len in ((4, 5), (6, 9), (7, 30), (50, 8)):
        scores, diagonals = random((2, 3, q_len, k_len)), random((3, q_len + k_len - 1))
        diagonals.requires_grad_()
        results = [f(scores, diagonals) for f in (fast, function)]
        assert_same_bits(results[0], results[1])
        if results[1].requires_grad:
            grads = [torch.autograd.grad(r.sum(), diagonals)[0] for r in results]
            assert_same_bits(grads[0], grads[1])
        counts.append(counter.frame_count)
    assert counts[-1] == counts[1], counts


@pytest.mark.usefixtures("fresh")
def test_decoding_steps_do_not_recompile():
    counter = CompileCounterWithBackend("aot_eager")
    table = random((3, 63))
    add = lambda s, o: pn.add_toeplitz_bias(s, table, q_offset=o, origin=40, out=s)  # noqa: E731
    fast = compiled(add, counter)
    scores = random((2, 3, 1, 16))
    for step in range(3, 8):
        offset = torch.tensor([step, step - 2])
        assert_same_bits(fast(scores.clone(), offset), add(scores.clone(), offset))
    assert counter.frame_count == 1


@pytest.mark.usefixtures("fresh")
def test_the_graph_has_one_node_for_a_call(kernel_device):
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    scores, diagonals = (
        random((3, 4, 4), device=kernel_device),
        random((3, 7), device=kernel_device),
    )
    compiled(lambda s, d: pn.add_toeplitz_bias(s, d, out=s), keep)(scores, diagonals)
    targets = [n.target for n in graphs[0].graph.nodes if n.op == "call_function"]
    calls = [t for t in targets if "posenc_native" in str(t)]
    assert calls == [torch.ops.posenc_native.add_toeplitz_bias_.default]


class Exported(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(random((3, 7)))

    def forward(self, scores):
        scores = pn.add_toeplitz_bias(scores, self.table)
        return pn.relative_gather(scores, None, 4, origin=0)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict, kernel_device):
    model = Exported().to(kernel_device).requires_grad_(False)
    scores = random((2, 3, 4, 4), device=kernel_device)
    exported = torch.export.export(copy.deepcopy(model), (scores,), strict=strict)
    targets = [str(n.target) for n in exported.graph.nodes if n.op == "call_function"]
    assert "posenc_native.add_toeplitz_bias.default" in targets
    assert "posenc_native.relative_gather_out.default" in targets
    torch.testing.assert_close(exported.module()(scores), model(scores), rtol=0, atol=0)


@each_differentiable
def test_torch_func(function, shapes):
    inputs = inputs_of(shapes, requires_grad=False)
    tracked = [leaf(x) for x in inputs]

    def loss(*inputs):
        return (function(*inputs) ** 3).sum()

    argnums = tuple(range(len(inputs)))
    expected = torch.autograd.grad(loss(*tracked), tracked)
    for a, e in zip(torch.func.grad(loss, argnums)(*inputs), expected, strict=True):
        torch.testing.assert_close(a, e)
    # Linear: the derivative in a direction is the function there.
    tangents = [random(s, torch.float64, seed=9 + i) for i, s in enumerate(shapes)]
    value, derivative = torch.func.jvp(function, tuple(inputs), tuple(tangents))
    torch.testing.assert_close(value, function(*inputs))
    torch.testing.assert_close(derivative, function(*tangents))
    # Mapped over copies of all inputs, and over those of one.
    stacked = [torch.stack([x, t]) for x, t in zip(inputs, tangents, strict=True)]
    mapped = torch.vmap(function)(*stacked)
    torch.testing.assert_close(mapped[1], function(*tangents))
    for i in argnums:
        if function is DIFFERENTIABLE["add in place"][0] and i == 1:
            continue  # as torch has it: what is not mapped over cannot hold what is
        others = [stacked[j] if i == j else inputs[j] for j in argnums]
        dims = tuple(0 if i == j else None for j in argnums)
        expected = [
            function(*(o[n] if i == j else o for j, o in enumerate(others))) for n in range(2)
        ]
        torch.testing.assert_close(torch.vmap(function, dims)(*others), torch.stack(expected))


# --- Bad calls: the error names the argument, and nothing has been written


class Inputs:
    """Good arguments, to make bad ones of."""

    def __init__(self):
        self.s, self.d = random((2, 3, 4, 5)), random((3, 8), seed=1)
        self.x, self.index = random((2, 3, 4, 6)), torch.tensor([0, 1, 2, 3, 4, 5, 5, 5])
        self.c, self.memory = random((2, 3, 4, 5), seed=2), random((240,), seed=3)
        self.written = [self.s, self.d, self.x, self.c, self.memory]


def lay(i, d=None, q_len=4, k_len=5, **options):
    return pn.toeplitz_bias(i.d if d is None else d, q_len, k_len, **options)


def add(i, s=None, d=None, **options):
    return pn.add_toeplitz_bias(i.s if s is None else s, i.d if d is None else d, **options)


def sums(i, g=None, **options):
    return pn.diagonal_sums(i.s if g is None else g, **options)


def gather(i, x=None, k_len=5, **options):
    index = options.pop("index", i.index)
    return pn.relative_gather(i.x if x is None else x, index, k_len, **options)


def scatter(i, g=None, width=6, **options):
    index = options.pop("index", i.index)
    return pn.relative_scatter(i.s if g is None else g, index, width, **options)


V, T = ValueError, TypeError
META = torch.zeros(2, 3, 4, 5, device="meta")
B = torch.tensor([1, 0])
BAD = {
    "lay: too few diagonals": (V, "diagonals", lambda i: lay(i, q_len=6)),
    "lay: too many without origin": (V, "diagonals", lambda i: lay(i, k_len=4)),
    "lay: a negative length": (V, "q_len", lambda i: lay(i, q_len=-1)),
    "lay: a length of a fraction": (T, "k_len", lambda i: lay(i, k_len=5.0)),
    "lay: a length of a bool": (T, "q_len", lambda i: lay(i, q_len=True)),
    "lay: four axes": (V, "q_len", lambda i: lay(i, q_len=(1,) * 4, k_len=(1,) * 4)),
    "lay: a grid and a length": (V, "k_len", lambda i: lay(i, q_len=(2, 2))),
    "lay: a grid of too few axes": (V, "diagonals", lambda i: lay(i, i.d[0], (2, 2), (2, 2))),
    "lay: offset without origin": (V, "origin", lambda i: lay(i, q_offset=1)),
    "lay: offsets without origin": (V, "origin", lambda i: lay(i, q_offset=B)),
    "lay: offsets for a grid": (
        V, "q_offset",
        lambda i: lay(i, i.s, (1, 1), (1, 1), origin=(2, 2), q_offset=B),
    ),
    "lay: an offset for a grid": (
        V, "q_offset", lambda i: lay(i, i.s, (1, 1), (1, 1), origin=(2, 2), q_offset=1),
    ),
    "lay: origin too small": (V, "diagonals", lambda i: lay(i, origin=2)),
    "lay: origin too large": (V, "diagonals", lambda i: lay(i, origin=4)),
    "lay: an offset too large": (V, "diagonals", lambda i: lay(i, origin=3, q_offset=1)),
    "lay: one offset too large": (V, "diagonals", lambda i: lay(i, origin=3, q_offset=B)),
    "lay: far offsets": (
        V, "diagonals", lambda i: lay(i, origin=3, q_offset=torch.tensor([-(2**63), 0])),
    ),
    "lay: offsets of floats": (T, "q_offset", lambda i: lay(i, origin=3, q_offset=B.float())),
    "lay: offsets of bools": (T, "q_offset", lambda i: lay(i, origin=3, q_offset=B > 0)),
    "lay: an offset of text": (T, "q_offset", lambda i: lay(i, origin=3, q_offset="1")),
    "lay: origin of a fraction": (T, "origin", lambda i: lay(i, origin=3.0)),
    "lay: origin of two numbers": (V, "origin", lambda i: lay(i, origin=(3, 3))),
    "lay: origin far away": (V, "origin", lambda i: lay(i, origin=2**62)),
    "lay: batch of another size": (
        V, "diagonals", lambda i: lay(i, torch.zeros(3, 3, 9), origin=4, q_offset=B),
    ),
    "lay: integers": (T, "diagonals", lambda i: lay(i, i.d.int())),
    "lay: complex": (T, "diagonals", lambda i: lay(i, i.d + 0j)),
    "lay: dtype of integers": (T, "dtype", lambda i: lay(i, dtype=torch.int32)),
    "lay: dtype and out": (T, "out", lambda i: lay(i, dtype=torch.float64, out=i.c[0])),
    "lay: out of another shape": (V, "out", lambda i: lay(i, out=i.c)),
    "lay: out of integers": (T, "out", lambda i: lay(i, out=i.c[0].int())),
    "lay: out an array": (T, "out", lambda i: lay(i, out=np.zeros((3, 4, 5)))),
    "lay: out a list": (T, "out", lambda i: lay(i, out=[])),
    "lay: out expanded": (V, "out", lambda i: lay(i, out=i.c[:1, :1].expand(1, 3, 4, 5)[0])),
    "lay: out elsewhere": (V, "out", lambda i: lay(i, out=META[0])),
    "lay: offsets elsewhere": (
        V, "q_offset", lambda i: lay(i, origin=3, q_offset=B.to("meta")),
    ),
    "lay: no matrix has so many": (V, "result|k_len|q_len", lambda i: lay(
        i, torch.zeros(1).expand(2**31, 2**32 - 1), 2**31, 2**31)),
    "add: scores of one axis": (V, "scores", lambda i: add(i, i.s[0, 0, 0])),
    "add: scores of integers": (T, "scores", lambda i: add(i, i.s.int())),
    "add: diagonals of integers": (T, "diagonals", lambda i: add(i, d=i.d.int())),
    "add: integers for diagonals": (T, "diagonals", lambda i: add(i, d=i.d.long().numpy())),
    "add: too few diagonals": (V, "diagonals", lambda i: add(i, d=i.d[:, 1:], out=i.s)),
    "add: too many diagonals": (V, "diagonals", lambda i: add(i, i.s[..., 1:])),
    "add: other heads": (V, "diagonals", lambda i: add(i, d=i.d[:2], out=i.s)),
    "add: one head": (V, "diagonals", lambda i: add(i, d=i.d[:1], out=i.s)),
    "add: one head of scores": (V, "diagonals", lambda i: add(i, i.s[:, :1])),
    "add: batch of another size": (V, "diagonals", lambda i: add(i, d=i.d.expand(3, 3, 8))),
    "add: more axes than scores": (V, "diagonals", lambda i: add(i, i.s[0], i.d[None])),
    "add: lengths not the scores'": (V, "scores", lambda i: add(i, q_len=5, k_len=4, out=i.s)),
    "add: a grid not the scores'": (V, "scores", lambda i: add(i, q_len=(2, 2), k_len=(2, 2))),
    "add: offset without origin": (V, "origin", lambda i: add(i, q_offset=1, out=i.s)),
    "add: offsets of another batch": (
        V, "q_offset", lambda i: add(i, origin=3, q_offset=torch.zeros(3).long(), out=i.s),
    ),
    "add: an offset too large": (V, "diagonals", lambda i: add(i, origin=3, q_offset=B, out=i.s)),
    "add: diagonals elsewhere": (V, "diagonals", lambda i: add(i, d=i.d.to("meta"), out=i.s)),
    "add: scores elsewhere": (V, "diagonals", lambda i: add(i, META)),
    "add: offsets elsewhere": (
        V, "q_offset", lambda i: add(i, origin=3, q_offset=B.to("meta"), out=i.s),
    ),
    "add: out elsewhere": (V, "out", lambda i: add(i, out=META)),
    "add: out of another shape": (V, "out", lambda i: add(i, out=i.c[:1])),
    "add: out of another dtype": (T, "out", lambda i: add(i, out=i.c.double())),
    "add: out of a list": (T, "out", lambda i: add(i, out=[])),
    "add: out expanded": (V, "out", lambda i: add(i, out=i.c[:1].expand(2, 3, 4, 5))),
    "sums: one axis": (V, "grad", lambda i: sums(i, i.s[0, 0, 0])),
    "sums: integers": (T, "grad", lambda i: sums(i, i.s.int())),
    "sums: more axes than there are": (V, "keep", lambda i: sums(i, keep=3)),
    "sums: fewer than no axes": (V, "keep", lambda i: sums(i, keep=-1)),
    "sums: keep of a fraction": (T, "keep", lambda i: sums(i, keep=1.0)),
    "sums: too few entries": (V, "diagonals|entries", lambda i: sums(i, entries=7)),
    "sums: entries of a grid": (V, "entries", lambda i: sums(i, entries=(8, 1))),
    "sums: entries without origin": (V, "diagonals|entries", lambda i: sums(i, entries=9)),
    "sums: origin too small": (V, "diagonals|entries", lambda i: sums(i, entries=9, origin=2)),
    "sums: offset without origin": (V, "origin", lambda i: sums(i, q_offset=B)),
    "sums: offsets elsewhere": (
        V, "q_offset", lambda i: sums(i, entries=9, origin=4, q_offset=B.to("meta")),
    ),
    "gather: x of one axis": (V, "x", lambda i: gather(i, i.x[0, 0, 0])),
    "gather: x of integers": (T, "x", lambda i: gather(i, i.x.int())),
    "gather: negative k_len": (V, "k_len", lambda i: gather(i, k_len=-1)),
    "gather: k_len of None": (T, "k_len", lambda i: gather(i, k_len=None)),
    "gather: index too short": (V, "index", lambda i: gather(i, k_len=6)),
    "gather: index too long": (V, "index", lambda i: gather(i, k_len=4, out=i.c[..., :4])),
    "gather: index of two axes": (V, "index", lambda i: gather(i, index=i.index[None])),
    "gather: index of floats": (T, "index", lambda i: gather(i, index=i.index.float(), out=i.c)),
    "gather: index of bools": (T, "index", lambda i: gather(i, index=i.index > 0)),
    "gather: index of text": (T, "index", lambda i: gather(i, index=["0"] * 8)),
    "gather: a column too far": (V, "index", lambda i: gather(i, index=i.index + 1, out=i.c)),
    "gather: a column below 0": (V, "index", lambda i: gather(i, index=i.index - 1, out=i.c)),
    "gather: another is missing": (
        V, "index", lambda i: gather(i, index=i.index - 1, missing=-2, out=i.c),
    ),
    "gather: missing a column": (V, "missing", lambda i: gather(i, missing=5, out=i.c)),
    "gather: missing of a fraction": (T, "missing", lambda i: gather(i, missing=-1.0)),
    "gather: missing of a bool": (T, "missing", lambda i: gather(i, missing=True)),
    "gather: missing far away": (V, "missing", lambda i: gather(i, missing=2**63)),
    "gather: offset without origin": (V, "origin", lambda i: gather(i, q_offset=1, out=i.c)),
    "gather: shift, offsets without origin": (
        V, "origin", lambda i: gather(i, index=None, q_offset=B),
    ),
    "gather: an offset too large": (V, "index", lambda i: gather(i, origin=3, q_offset=B)),
    "gather: offsets of another batch": (
        V, "q_offset", lambda i: gather(i, index=None, origin=3, q_offset=torch.arange(3)),
    ),
    "gather: content of another shape": (V, "content", lambda i: gather(i, content=i.c[:1])),
    "gather: content of another dtype": (
        T, "content", lambda i: gather(i, content=i.c.double(), out=i.c),
    ),
    "gather: content an array": (T, "content", lambda i: gather(i, content=i.c.numpy())),
    "gather: content elsewhere": (V, "content", lambda i: gather(i, content=META, out=i.c)),
    "gather: index elsewhere": (V, "index", lambda i: gather(i, index=i.index.to("meta"))),
    "gather: scale not finite": (V, "scale", lambda i: gather(i, scale=float("nan"), out=i.c)),
    "gather: scale of text": (T, "scale", lambda i: gather(i, scale="2")),
    "gather: out of another shape": (V, "out", lambda i: gather(i, out=i.x)),
    "gather: out of another dtype": (T, "out", lambda i: gather(i, out=i.c.half())),
    "gather: out elsewhere": (V, "out", lambda i: gather(i, out=META)),
    "gather: out is x": (V, "out", lambda i: gather(i, i.x, 6, index=None, out=i.x)),
    "scatter: grad of one axis": (V, "grad", lambda i: scatter(i, i.s[0, 0, 0])),
    "scatter: grad of integers": (T, "grad", lambda i: scatter(i, i.s.int())),
    "scatter: negative width": (V, "width", lambda i: scatter(i, width=-1)),
    "scatter: a column too far": (V, "index", lambda i: scatter(i, width=5, out=i.c)),
    "scatter: index too short": (V, "index", lambda i: scatter(i, index=i.index[1:], out=i.x)),
    "scatter: index elsewhere": (V, "index", lambda i: scatter(i, index=i.index.to("meta"))),
    "scatter: missing a column": (V, "missing", lambda i: scatter(i, missing=0, out=i.x)),
    "scatter: out of another shape": (V, "out", lambda i: scatter(i, out=i.c)),
    "scatter: out is grad": (V, "out", lambda i: scatter(i, width=5, index=None, out=i.s)),
    "scatter: offset without origin": (V, "origin", lambda i: scatter(i, q_offset=B, out=i.x)),
}  # fmt: skip
# The composition compares addresses as the operators do.
OVERLAPS = {
    "lay": lambda i: lay(i, i.memory[:24].view(3, 8), out=i.memory[:60].view(3, 4, 5)),
    "add": lambda i: add(i, i.memory[:120].view(2, 3, 4, 5), out=i.memory[1:121].view(2, 3, 4, 5)),
    "add, diagonals": lambda i: add(
        i, d=i.memory[:24].view(3, 8), out=i.memory[:120].view(2, 3, 4, 5)
    ),
    "gather": lambda i: gather(
        i, i.memory[:144].view(2, 3, 4, 6), out=i.memory[120:].view(2, 3, 4, 5)
    ),
    "gather, content": lambda i: gather(
        i, content=i.memory[:120].view(2, 3, 4, 5), out=i.memory[5:125].view(2, 3, 4, 5)
    ),
    "scatter": lambda i: scatter(
        i, i.memory[:120].view(2, 3, 4, 5), out=i.memory[96:].view(2, 3, 4, 6)
    ),
}
BAD |= {f"overlap: {name}": (V, "out", call) for name, call in OVERLAPS.items()}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", BAD)
def test_bad_calls(name):
    error, argument, call = BAD[name]
    inputs = Inputs()
    before = [t.clone() for t in inputs.written]
    with pytest.raises(error, match=rf"^\w+: ({argument}): expected .*, got ") as caught:
        call(inputs)
    assert caught.value.__cause__ is None
    for tensor, kept in zip(inputs.written, before, strict=True):
        assert torch.equal(tensor, kept), "written in spite of the error"


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("diagonals", lambda i: add(i, i.s.requires_grad_(), i.d[:2])),
        ("diagonals", lambda i: add(i, d=i.d[:, 1:].requires_grad_())),
        ("diagonals", lambda i: add(i, i.s.requires_grad_() * 1, origin=3, q_offset=B)),
        ("diagonals", lambda i: lay(i, i.d.requires_grad_(), origin=3, q_offset=B)),
        ("index", lambda i: gather(i, i.x.requires_grad_(), index=i.index + 1)),
        ("index", lambda i: scatter(i, i.s.requires_grad_(), width=5)),
    ],
)
@pytest.mark.usefixtures("backend")
def test_bad_calls_with_gradients(argument, call):
    with pytest.raises(ValueError, match=rf"^\w+: {argument}: expected .*, got "):
        call(Inputs())


GOOD = {
    "an int of NumPy": lambda i: add(i, origin=np.int64(4), q_offset=np.int32(1)),
    "a list of lengths": lambda i: lay(i, q_len=[4], k_len=[5]),
    "an array of offsets": lambda i: add(
        i, d=random((3, 9)), origin=4, q_offset=np.array([1, 0], np.uint8)
    ),
    "a dtype by its name": lambda i: lay(i, dtype="float16"),
    "a dtype of NumPy": lambda i: lay(i, dtype=np.float64),
    "scale of an int": lambda i: gather(i, scale=2),
    "missing of NumPy": lambda i: gather(i, missing=np.int64(-(2**63))),
    "a bias between the scores": lambda i: add(
        i, i.memory.view(2, 3, 4, 10)[..., :5], out=i.memory.view(2, 3, 4, 10)[..., 5:]
    ),
    "diagonals that repeat": lambda i: add(i, d=i.d[:1].expand(3, 8)),
}  # fmt: skip


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("call", GOOD.values(), ids=GOOD)
def test_good_calls(call):
    assert call(Inputs()).isfinite().all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_arrays_of_diagonals_are_for_tensors_too(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 of NumPy")
    diagonals = pn.alibi_diagonals(3, 4, 5, dtype=dtype)
    scores = random((2, 3, 4, 5), torch.bfloat16)
    tensor = torch.as_tensor(diagonals.astype(np.float64))
    assert_same_bits(pn.add_toeplitz_bias(scores, diagonals), pn.add_toeplitz_bias(scores, tensor))
