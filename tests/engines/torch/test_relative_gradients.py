"""Gradients of relative encodings: finite differences, autograd, the same bits on every call."""

from __future__ import annotations

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from relative_cases import (  # noqa: E402
    INDEX,
    TOEPLITZ,
    add_arguments,
    bias_options,
    each_differentiable,
    each_dtype,
    each_look_up,
    gather_arguments,
    inputs_of,
    leaf,
    sums_options,
)
from torch_cases import assert_same_bits, plain_operations, random  # noqa: E402

import posenc_native as pn  # noqa: E402

pytestmark = torch_cases.needs_operators
device = torch_cases.device


# --- Gradients

gradcheck = functools.partial(torch.autograd.gradcheck, check_batched_grad=True)
gradgradcheck = functools.partial(
    torch.autograd.gradgradcheck, check_batched_grad=True, fast_mode=True
)
SMALL = [name for name, (shape, _, _) in TOEPLITZ.items() if 0 < np.prod(shape) <= 200]
each_small = pytest.mark.parametrize("name", SMALL)


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
    with plain_operations():
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
