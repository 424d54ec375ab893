"""Gradients of sinusoids by their positions: timesteps, boxes, coordinates.

The oracles are finite differences (gradcheck), 200-bit arithmetic, and torch's own autograd of the
formula in float64.
"""

from __future__ import annotations

import itertools

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from compiling import needs_inductor  # noqa: E402
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch_cases import assert_same_bits, random  # noqa: E402

import posenc_native as pn  # noqa: E402

device = torch_cases.device

LAYOUTS = ["interleaved", "sin_cos", "cos_sin"]
SPEC = {"base": 20.0, "shift": 0.5, "scale": -1.7}


def written_out(positions, dim, base, layout, shift, scale):
    """The formula in torch operations, float64."""
    steps = torch.arange(dim // 2, dtype=torch.float64, device=positions.device)
    angle = positions.double()[..., None] * scale * base ** (-steps / (dim / 2 - shift))
    sin, cos = angle.sin(), angle.cos()
    if layout == "interleaved":
        return torch.stack([sin, cos], -1).flatten(-2)
    return torch.cat([cos, sin] if layout == "cos_sin" else [sin, cos], -1)


def numbers(*shape, device, seed=0):
    return random(shape, torch.float64, device, seed, requires_grad=True)


# --- The derivative


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_those_of_finite_differences(layout, device):
    def table(p):
        return pn.sinusoidal(p, 6, layout=layout, dtype=torch.float64, **SPEC)

    def total(x, p):
        return pn.add_sinusoidal(x, p, x_scale=1.4, alpha=0.3, layout=layout, **SPEC)

    points = numbers(2, 3, device=device)
    assert gradcheck(table, points)
    assert gradgradcheck(table, points)
    x = numbers(2, 3, 6, device=device, seed=1)
    for p in (points, numbers(3, device=device)):
        assert gradcheck(total, (x, p))
        assert gradgradcheck(total, (x, p))
        assert gradcheck(lambda p: total(x.detach(), p), p)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_far_out_are_exact(layout, dtype, device):
    """At a million and a half the float32 angle is off by 0.06; the gradient is as at the start."""
    dim, far = 16, [1_500_000.25, -77.5, 0.0, 131071.75]
    weight = random((4, dim), dtype, device)
    points = torch.tensor(far, dtype=torch.float64, device=device, requires_grad=True)
    (pn.sinusoidal(points, dim, layout=layout, dtype=dtype) * weight).sum().backward()
    w = oracle.exact_frequencies(dim, 1e4)
    sin, cos = (part.high for part in oracle.exact_sincos(far, w))
    g = weight.double().cpu().numpy()
    halves = {"interleaved": (g[:, ::2], g[:, 1::2]), "sin_cos": (g[:, :8], g[:, 8:]),
              "cos_sin": (g[:, 8:], g[:, :8])}  # fmt: skip
    of_sin, of_cos = halves[layout]
    rates = np.array([float(f) for f in w])
    exact = ((of_sin * cos - of_cos * sin) * rates).sum(-1)
    # Each term: the entry, two products and a difference; then eight terms are summed.
    unit = 2.0 ** (-24 if dtype == torch.float32 else -53)
    terms = ((np.abs(of_sin) + np.abs(of_cos)) * rates).sum(-1)
    error = np.abs(points.grad.cpu().numpy() - exact)
    entry = oracle.COMPUTATION[oracle.dtype_name(dtype)] + np.abs(far) * oracle.PER_POSITION
    assert (error <= terms * (entry + 12 * unit)).all()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_sums_in_float32(half, device):
    points = random((50,), torch.float32, device) * 40
    weight = random((50, 64), half, device, seed=1)
    x = random((3, 50, 64), half, device, seed=2)
    grads = []
    for dtype in (half, torch.float32):
        p = points.clone().requires_grad_()
        table = pn.sinusoidal(p, 64, dtype=dtype)
        (of_table,) = torch.autograd.grad(table, p, weight.to(dtype))
        total = pn.add_sinusoidal(x.to(dtype), p, alpha=0.7)
        (of_sum,) = torch.autograd.grad(total, p, x.to(dtype))
        grads.append((of_table, of_sum))
    for rounded, single in zip(*grads, strict=True):
        assert rounded.dtype == torch.float32
        assert_same_bits(rounded, single)


@torch_cases.needs_operators
@pytest.mark.usefixtures("torch_threads")
def test_gradients_are_the_same_bits_again(device):
    points = (random((3000,), torch.float32, device) * 1000).requires_grad_()
    x = random((4, 3000, 96), torch.float32, device)
    results = []
    for count in (1, 1, 2):
        torch.set_num_threads(count)
        total = pn.add_sinusoidal(x, points, layout="sin_cos")
        results.append(torch.autograd.grad((total**2).sum(), points)[0])
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


# --- Where the gradient is asked for


def losses(device):
    x = random((2, 5, 8), torch.float64, device, 3)
    mix = random((8,), torch.float64, device, 4)
    table = {"layout": "cos_sin", **SPEC}
    return {
        "table": (
            lambda p: (pn.sinusoidal(p, 8, dtype=torch.float64, **table) ** 3 @ mix).sum(),
            lambda p: (written_out(p, 8, **table) ** 3 @ mix).sum(),
        ),
        "sum": (
            lambda p: (pn.add_sinusoidal(x, p, alpha=0.3, x_scale=2.0, **table) ** 3 @ mix).sum(),
            lambda p: ((x * 2.0 + 0.3 * written_out(p, 8, **table)) ** 3 @ mix).sum(),
        ),
    }


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", ["table", "sum"])
def test_torch_func(name, device):
    ours, formula = losses(device)[name]
    p = random((5,), torch.float64, device)
    several = random((3, 5), torch.float64, device, 1)
    func = torch.func
    for transform in (func.grad, func.jacrev, func.jacfwd, func.hessian,
                      lambda f: func.jacrev(func.jacrev(f)),
                      lambda f: func.grad(lambda p: (func.grad(f)(p) ** 2).sum())):  # fmt: skip
        close(transform(ours)(p), transform(formula)(p))
    close(func.vmap(func.grad(ours))(several), func.vmap(func.grad(formula))(several))
    tangent = random((5,), torch.float64, device, 2)
    for result, expected in zip(
        func.jvp(ours, (p,), (tangent,)), func.jvp(formula, (p,), (tangent,)), strict=True
    ):
        close(result, expected)
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        result, expected = (forward.unpack_dual(f(forward.make_dual(p, tangent))).tangent
                            for f in (ours, formula))  # fmt: skip
    close(result, expected)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", ["table", "sum"])
def test_compiled(name, device):
    ours, formula = losses(device)[name]
    p = numbers(5, device=device)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    (grad,) = torch.autograd.grad(compiled(p), p)
    close(grad, torch.autograd.grad(formula(p), p)[0])
    if name == "table":
        return  # what follows is the same for both
    of_grad = torch.compile(torch.func.grad(ours), fullgraph=True, backend="aot_eager")
    close(of_grad(p.detach()), grad)


@pytest.mark.slow
@torch_cases.needs_operators
def test_compiled_by_inductor(device):
    needs_inductor(device)
    ours, formula = losses(device)["sum"]
    p = numbers(5, device=device)
    (grad,) = torch.autograd.grad(torch.compile(ours, fullgraph=True)(p), p)
    close(grad, torch.autograd.grad(formula(p), p)[0])


@pytest.mark.usefixtures("backend")
def test_in_place(device):
    p = numbers(5, device=device)
    x = numbers(2, 5, 8, device=device, seed=1)
    expected = torch.autograd.grad((pn.add_sinusoidal(x, p) ** 3).sum(), (x, p))
    for y in (x * 1, x.detach().clone()):
        assert pn.add_sinusoidal(y, p, out=y) is y
        assert y.requires_grad
        (grad,) = torch.autograd.grad((y**3).sum(), p)
        close(grad, expected[1])


def test_other_outputs_are_refused(device):
    p = numbers(5, device=device)
    x = random((2, 5, 8), torch.float64, device)
    with pytest.raises(ValueError, match=r"sinusoidal: out: .*gradient"):
        pn.sinusoidal(p, 8, out=torch.empty(5, 8, device=device))
    with pytest.raises(ValueError, match=r"add_sinusoidal: out: .*gradient"):
        pn.add_sinusoidal(x, p, out=torch.empty_like(x))
    with torch.no_grad():
        pn.sinusoidal(p, 8, out=torch.empty(5, 8, device=device))
        pn.add_sinusoidal(x, p, out=x)


def test_positions_that_are_written_over_are_noticed(device):
    p = numbers(5, device=device) * 1
    table = pn.sinusoidal(p, 8)
    p += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        table.sum().backward()


@pytest.mark.usefixtures("backend")
def test_only_what_asks_gets_a_gradient(device):
    p = numbers(5, device=device)
    x = random((2, 5, 8), torch.float64, device)
    assert not pn.sinusoidal(p.detach(), 8).requires_grad
    assert not pn.sinusoidal(torch.arange(5, device=device), 8).requires_grad
    with torch.no_grad():
        assert not pn.sinusoidal(p, 8).requires_grad
        assert not pn.add_sinusoidal(x, p).requires_grad
    for layout, dim in itertools.product(LAYOUTS, (0, 2)):
        (grad,) = torch.autograd.grad(pn.sinusoidal(p, dim, layout=layout).sum(), p)
        expected = (p.cos() - p.sin()).detach() if dim else torch.zeros_like(p)
        torch.testing.assert_close(grad, expected, rtol=0, atol=1e-6)
    empty = numbers(0, device=device)
    assert torch.autograd.grad(pn.sinusoidal(empty, 8).sum(), empty)[0].shape == (0,)
