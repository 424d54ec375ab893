"""Gradients: against finite differences, in place, of every kind, and none lost."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from gradient_cases import IN_PLACE, close, each_function, each_of, f_for, inv_freq  # noqa: E402
from torch_cases import FAR, FRACTIONAL, INTEGERS, ROTARY_CASES, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

device = torch_cases.device


BY_NAME = {case.name: case for case in ROTARY_CASES}
# Small: a gradcheck calls the function once for every element.
SMALL = {"b": 2, "s": 5, "t": 5, "h": 1, "d": 16}
each_case = pytest.mark.parametrize(
    "case",
    [BY_NAME[n] for n in ("bhsd", "thd-far", "middle-slice", "batched-axes-blocks", "inverse")],
    ids=lambda case: case.name,
)

gradcheck = functools.partial(torch.autograd.gradcheck, check_batched_grad=True)
# Along a random direction: in every one it takes as many calls as there are numbers.
gradgradcheck = functools.partial(
    torch.autograd.gradgradcheck, check_batched_grad=True, fast_mode=True
)


def leaf(case, device, seed=0):
    return random(case.shape(**SMALL), torch.float64, device, seed, requires_grad=True)


# --- Against finite differences


@each_case
def test_apply_rotary(case, device):
    positional, options = case.arguments(device)

    def rotate(x):
        return pn.apply_rotary(x, *positional, **options)

    x = leaf(case, device)
    assert gradcheck(rotate, x)
    assert gradgradcheck(rotate, x)


@each_case
def test_apply_rotary_qk(case, device):
    positional, options = case.arguments(device)

    def rotate(q, k):
        return pn.apply_rotary_qk(q, k, *positional, **options)

    q, k = leaf(case, device), leaf(case, device, seed=1)
    assert gradcheck(rotate, (q, k))
    assert gradgradcheck(rotate, (q, k))


@pytest.mark.parametrize("name", ["sbhd-batched", "thd-far", "middle-slice", "inverse"])
@pytest.mark.parametrize("learned", [False, True], ids=["fixed tables", "learned tables"])
def test_rotations_by_tables(name, learned, device):
    case = BY_NAME[name]
    x = leaf(case, device)
    # No sines and cosines: whatever the tables hold, the gradient is that of the formula.
    cos, sin = (random(t.shape, torch.float64, device, i) for i, t in enumerate(case.tables()))
    cos.requires_grad_(learned)
    sin.requires_grad_(learned)

    def rotate(x, cos, sin):
        return pn.apply_rotary(x, None, pn.Tables(cos, sin), **case.table_options())

    assert gradcheck(rotate, (x, cos, sin))
    assert gradgradcheck(rotate, (x, cos, sin))

    def rotate_qk(q, k, cos, sin):
        return pn.apply_rotary_qk(q, k, None, pn.Tables(cos, sin), **case.table_options())

    k = leaf(case, device, seed=3)
    assert gradcheck(rotate_qk, (x, k, cos, sin))
    assert gradgradcheck(rotate_qk, (x, k, cos, sin))
    # Only one of them wants a gradient.
    assert gradcheck(lambda k: rotate_qk(x.detach(), k, cos, sin), k)


@pytest.mark.parametrize("positions", [None, FRACTIONAL, [INTEGERS, FAR]], ids=["none", "s", "b,s"])
def test_add_sinusoidal(positions, device):
    x = random((2, 5, 6), torch.float64, device, requires_grad=True)
    points = None if positions is None else torch.tensor(positions, device=device)

    def add(x):
        return pn.add_sinusoidal(x, points, x_scale=3.0, alpha=0.5, layout="sin_cos")

    assert gradcheck(add, x)
    assert gradgradcheck(lambda x: add(x) ** 2, x)


def test_modules(device):
    x = random((2, 5, 6), torch.float64, device, requires_grad=True)
    encode = pnn.SinusoidalPositionalEncoding(6, 0.0, x_scale="sqrt")
    assert gradcheck(encode, x)
    assert gradgradcheck(encode, x)
    rope = pnn.RotaryEmbedding(8, rotary_dim=4, pairing="interleaved", rotary_start=2)
    q = random((1, 2, 3, 8), torch.float64, device, requires_grad=True)
    k = random((1, 1, 3, 8), torch.float64, device, 1, requires_grad=True)
    assert gradcheck(rope, (q, k))
    assert gradgradcheck(rope, (q, k))


@each_of(IN_PLACE)
@pytest.mark.parametrize("view", [False, True], ids=["whole", "view"])
def test_in_place_on_what_is_no_leaf(write, view, device):
    def f(x):
        y = x * 2  # not x itself, which gradcheck goes on using
        target = y[:, 1:] if view else y
        assert write(target) is target
        return y * y

    x = random((1, 2, 5, 8), torch.float64, device, requires_grad=True)
    assert gradcheck(f, x)
    assert gradgradcheck(f, x)


def rotate_qk_by_tables(q, k, positions, f, **options):
    """`apply_rotary_qk` in layout bhsd with the tables of its positions."""
    steps = torch.arange(q.shape[2], device=q.device) if positions is None else positions
    tables = pn.rotary_tables(steps, f, scale=options.pop("scale", 1.0), dtype=torch.float64)
    return pn.apply_rotary_qk(q, k, None, pn.Tables(*tables), **options)


@pytest.mark.parametrize("rotate", [pn.apply_rotary_qk, rotate_qk_by_tables])
@pytest.mark.parametrize("options", [{}, {"pairing": "interleaved", "scale": 2.0}])
def test_q_and_k_in_place(options, rotate, device):
    def f(q, k):
        q, k = q * 2, k * 3
        result = rotate(q, k, None, inv_freq(device=device), inplace=True, **options)
        assert result[0] is q
        assert result[1] is k
        return q * k

    q = random((1, 2, 3, 8), torch.float64, device, requires_grad=True)
    k = random((1, 2, 3, 8), torch.float64, device, 1, requires_grad=True)
    assert gradcheck(f, (q, k))
    assert gradgradcheck(f, (q, k))
    # Only one of them wants a gradient.
    assert gradcheck(lambda q: f(q, k.detach()), q)
    assert gradcheck(lambda k: f(q.detach(), k), k)


def test_q_and_k_in_place_as_slices_of_a_packed_qkv(device):
    def f(packed):
        qkv = packed * 2
        q, k = qkv[..., :16].unflatten(-1, (2, 8)), qkv[..., 16:24].unflatten(-1, (1, 8))
        rotate(q, k, layout="bshd", inplace=True)
        return qkv * qkv

    packed = random((1, 3, 32), torch.float64, device, requires_grad=True)
    frequencies = inv_freq(device=device)
    tables = pn.rotary_tables(torch.arange(3, device=device), frequencies, dtype=torch.float64)
    for angles in (frequencies, pn.Tables(*tables)):
        rotate = functools.partial(pn.apply_rotary_qk, positions=None, inv_freq=angles)
        assert gradcheck(f, packed)


# --- Batches of gradients

BATCHED = {
    "apply_rotary": lambda x, f: pn.apply_rotary(x, None, f.detach()),
    "apply_rotary-f": lambda x, f: pn.apply_rotary(x, None, f),
    "apply_rotary-in place": lambda x, f: pn.apply_rotary(y := x * 2, None, f.detach(), out=y),
    "apply_rotary_qk-f": lambda x, f: pn.apply_rotary_qk(x, x * 2, None, f),
    "norm_rotary_qk": lambda x, f: pn.norm_rotary_qk(
        x, x * 2, None, f.detach(), q_weight=f.repeat(2), k_weight=f.repeat(2)
    ),
    "add_sinusoidal": lambda x, f: pn.add_sinusoidal(x, f[:3]),
    "selective_rotary_qk": lambda x, f: pn.selective_rotary_qk(
        x, x * 2, f.expand(2, 2, 3, 4), layout="bhsd"
    )[:2],
    "selective_rotary_qk-packed": lambda x, f: pn.selective_rotary_qk(
        x[0], None, f.expand(2, 1, 4), layout="thd", starts=[0, 1, 2]
    )[0],
    "toeplitz_bias": lambda x, f: pn.toeplitz_bias(f, 2, 3),
    "add_toeplitz_bias": lambda x, f: pn.add_toeplitz_bias(x, f.repeat(3)[:10]),
    "diagonal_sums": lambda x, f: pn.diagonal_sums(x),
    "relative_gather": lambda x, f: pn.relative_gather(
        x, torch.arange(4, device=x.device), 2, content=f.sum() * x[..., :2]
    ),
    "relative_scatter": lambda x, f: pn.relative_scatter(
        x, torch.arange(10, device=x.device) % 4, 4
    ),
}


@pytest.mark.parametrize("function", BATCHED.values(), ids=BATCHED)
@pytest.mark.usefixtures("backend")
def test_batches_of_gradients(function, device):
    """They are those of single calls, and have the same derivatives, by incoming gradients too."""
    x = random((2, 2, 3, 8), torch.float64, device, requires_grad=True)
    leaves = x, FREQUENCIES.clone().to(device).requires_grad_()
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    seeds = [random((3, *y.shape), y.dtype, device, 2, requires_grad=True) for y in results]

    def gradients(grads, batched, create_graph):
        found = torch.autograd.grad(
            results, leaves, grads, retain_graph=True, create_graph=create_graph,
            is_grads_batched=batched, allow_unused=True,
        )  # fmt: skip
        return [grad for grad in found if grad is not None]

    def one_by_one(create_graph):
        calls = [gradients(grads, False, create_graph) for grads in zip(*seeds, strict=True)]
        return [torch.stack(column) for column in zip(*calls, strict=True)]

    for batched, single in zip(gradients(seeds, True, False), one_by_one(False), strict=True):
        assert torch.equal(batched, single)
    inputs, second = [*leaves, *seeds], []
    for grads in (gradients(seeds, True, True), one_by_one(True)):
        loss = sum((grad**3).sum() for grad in grads)
        options = {"retain_graph": True, "materialize_grads": True}
        second.append([*grads, *torch.autograd.grad(loss, inputs, **options)])
    assert all(grad.any() for grad in second[1][-len(seeds) :])
    for batched, single in zip(*second, strict=True):
        close(batched, single)


@pytest.mark.parametrize("create_graph", [False, True])
def test_vectorized_jacobians_and_hessians(create_graph, device):
    def rotate(x, steps):
        return pn.selective_rotary_qk(x, x * 2, steps, layout="bhsd")[0] ** 3

    inputs = (
        random((1, 2, 3, 8), torch.float64, device),
        random((1, 2, 3, 4), torch.float64, device),
    )
    vectorized, single = (
        torch.autograd.functional.jacobian(rotate, inputs, create_graph, vectorize=vectorize)
        for vectorize in (True, False)
    )
    for ours, theirs in zip(vectorized, single, strict=True):
        close(ours, theirs)
    vectorized, single = (
        torch.autograd.functional.hessian(
            lambda x, steps: rotate(x, steps).sum(), inputs, create_graph, vectorize=vectorize
        )
        for vectorize in (True, False)
    )
    for ours, theirs in zip(sum(vectorized, ()), sum(single, ()), strict=True):
        close(ours, theirs)


# --- Gradients of every kind


@torch_cases.each_rotary_case
def test_the_gradient_is_the_opposite_rotation(case, device):
    positional, options = case.arguments(device)
    x = random(case.shape(), torch.float64, device, requires_grad=True)
    grad = random(case.shape(), torch.float64, device, seed=1)
    pn.apply_rotary(x, *positional, **options).backward(grad)
    options["inverse"] = not options["inverse"]
    close(x.grad, pn.apply_rotary(grad, *positional, **options))


@torch_cases.each_rotary_case
def test_the_gradient_is_that_of_the_composition(case, device):
    positional, options = case.arguments(device)
    q = random(case.shape(), torch.float64, device, requires_grad=True)
    k = random(case.shape(h=1), torch.float64, device, 1, requires_grad=True)
    seeds = [random(t.shape, torch.float64, device, 2) for t in (q, k)]

    def gradients():
        return torch.autograd.grad(pn.apply_rotary_qk(q, k, *positional, **options), (q, k), seeds)

    native = gradients()
    with torch_cases.plain_operations():
        plain = gradients()
    # Angles are exact in both to 2^-64 of a turn; float64 sine and cosine within 4e-16.
    for a, b in zip(native, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", torch_cases.FLOATS, ids=torch_cases.dtype_id)
def test_gradients_have_the_dtype_of_x(dtype, device):
    q = random((2, 3, 5, 8), dtype, device, requires_grad=True)
    k = random((2, 1, 5, 8), dtype, device, requires_grad=True)
    q2, k2 = pn.apply_rotary_qk(q, k, None, inv_freq(device=device))
    (q2.sum() + k2.sum()).backward()
    assert q.grad.dtype == k.grad.dtype == dtype
    one = torch.ones_like(q)
    expected = pn.apply_rotary(one, None, inv_freq(device=device), inverse=True)
    assert torch.equal(q.grad, expected)


@each_function
def test_expanded_gradients(function, device):
    # The gradient of a sum is one number, repeated with stride 0; that of a mean over heads too.
    x = random((2, 3, 5, 8), torch.float64, device, requires_grad=True)
    for reduce in (lambda y: y.sum(), lambda y: (y.mean(1) ** 2).sum()):
        (grad,) = torch.autograd.grad(reduce(function(x)), x)
        # The same with gradients that own their memory.
        y = function(x)
        detached = y.detach().requires_grad_()
        (seed,) = torch.autograd.grad(reduce(detached), detached)
        (expected,) = torch.autograd.grad(y, x, seed.contiguous())
        close(grad, expected)


@each_function
def test_gradients_accumulate_and_graphs_are_kept(function, device):
    x = random((2, 3, 5, 8), torch.float64, device, requires_grad=True)
    y = function(x).sum()
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    close(x.grad, 2 * once)


@each_function
def test_checkpointing_gives_the_same_gradient(function, device):
    from torch.utils.checkpoint import checkpoint

    x = random((2, 3, 5, 8), torch.float64, device, requires_grad=True)
    block = lambda x: (function(x) ** 2).sum()  # noqa: E731
    (expected,) = torch.autograd.grad(block(x), x)
    (grad,) = torch.autograd.grad(checkpoint(block, x, use_reentrant=False), x)
    assert torch.equal(grad, expected)


def test_one_unused_result_has_a_gradient_of_zero(device):
    q = random((2, 3, 5, 8), torch.float64, device, requires_grad=True)
    k = random((2, 3, 5, 8), torch.float64, device, 1, requires_grad=True)
    _, rotated = pn.apply_rotary_qk(q, k, None, inv_freq(device=device))
    grad_q, grad_k = torch.autograd.grad(rotated.sum(), (q, k), allow_unused=True)
    assert grad_q is None or not grad_q.any()
    close(grad_k, pn.apply_rotary(torch.ones_like(k), None, inv_freq(device=device), inverse=True))


def test_q_and_k_may_be_one_tensor(device):
    x = random((2, 3, 5, 8), torch.float64, device, requires_grad=True)
    f = inv_freq(device=device)
    for rotate in (pn.apply_rotary_qk, rotate_qk_by_tables):
        q, k = rotate(x, x, None, f)
        (grad,) = torch.autograd.grad((q * k).sum(), x)
        close(grad, 2 * x.detach())  # |R x|^2 = |x|^2
    rotated = pn.apply_rotary(x, None, f)
    (again,) = torch.autograd.grad((rotated**2).sum(), x)
    close(grad, again)


# --- No gradient is lost silently

POSITIONS = torch.tensor([0.0, 1, 2, 3, 4], dtype=torch.float64)
FREQUENCIES = torch.tensor([1.0, 0.5, 0.25, 0.125], dtype=torch.float64)
WIDE = {"dtype": torch.float64}
REACHED = {
    "rotary_tables": (POSITIONS, lambda x, p: pn.rotary_tables(p, f_for(x), **WIDE)[1]),
    "rotary_tables-f": (
        FREQUENCIES,
        lambda x, f: pn.rotary_tables(torch.arange(5, device=x.device), f, **WIDE)[1],
    ),
    "apply_rotary": (POSITIONS, lambda x, p: pn.apply_rotary(x, p, f_for(x))),
    "apply_rotary-f": (FREQUENCIES, lambda x, f: pn.apply_rotary(x, None, f)),
    "apply_rotary_qk": (POSITIONS, lambda x, p: pn.apply_rotary_qk(x, x, p, f_for(x))[1]),
    "apply_rotary_qk-f": (FREQUENCIES, lambda x, f: pn.apply_rotary_qk(x, x, None, f)[0]),
    "Rotary": (POSITIONS, lambda x, p: pn.Rotary(8)(x, x, p)[0]),
}


@pytest.mark.parametrize("requires_grad", [False, True], ids=["x plain", "x with grad"])
@pytest.mark.parametrize(("values", "call"), REACHED.values(), ids=REACHED)
@pytest.mark.usefixtures("backend")
def test_gradients_reach_positions_and_frequencies(values, call, requires_grad, device):
    x = random((2, 3, 5, 8), torch.float64, device, requires_grad=requires_grad)
    leaf = values.to(device).requires_grad_()
    loss = lambda leaf: call(x, leaf).square().sum() * call(x, leaf).sum()  # noqa: E731
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    assert expected.abs().min() > 0 or values is POSITIONS
    close(torch.func.grad(loss)(leaf.detach()), expected)
    with torch.no_grad():
        assert not call(x.detach(), leaf).requires_grad
