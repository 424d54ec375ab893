"""Gradients: checked against finite differences, under torch.func, in place, and none lost.

Rotation is linear, so that finite differences in float64 are as exact as arithmetic allows.
"""

from __future__ import annotations

import contextlib
import functools

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import FAR, FRACTIONAL, INTEGERS, ROTARY_CASES, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

device = torch_cases.device
kernel_device = torch_cases.kernel_device

BY_NAME = {case.name: case for case in ROTARY_CASES}
# Small: a gradcheck calls the function once for every element.
SMALL = {"b": 2, "s": 5, "t": 5, "h": 1, "d": 16}
each_case = pytest.mark.parametrize(
    "case",
    [BY_NAME[n] for n in ("bhsd", "thd-far", "middle-slice", "batched-axes-blocks", "inverse")],
    ids=lambda case: case.name,
)

gradcheck = functools.partial(torch.autograd.gradcheck, check_batched_grad=True)
gradgradcheck = functools.partial(torch.autograd.gradgradcheck, check_batched_grad=True)


def leaf(case, device, seed=0):
    return random(case.shape(**SMALL), torch.float64, device, seed, requires_grad=True)


def inv_freq(dim=8, device="cpu"):
    return torch.tensor(pn.rotary_frequencies(dim)[0], device=device)


def f_for(x, dim=8):
    """Frequencies where x is."""
    return inv_freq(dim, x.device)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


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
def test_apply_rotary_tables(name, learned, device):
    case = BY_NAME[name]
    x = leaf(case, device)
    # Not sines and cosines: whatever the tables hold, the gradient is that of the formula.
    cos, sin = (random(t.shape, torch.float64, device, i) for i, t in enumerate(case.tables()))
    cos.requires_grad_(learned)
    sin.requires_grad_(learned)

    def rotate(x, cos, sin):
        return pn.apply_rotary_tables(x, cos, sin, **case.table_options())

    assert gradcheck(rotate, (x, cos, sin))
    assert gradgradcheck(rotate, (x, cos, sin))

    def rotate_qk(q, k, cos, sin):
        return pn.apply_rotary_qk_tables(q, k, cos, sin, **case.table_options())

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


IN_PLACE = {
    "apply_rotary": lambda x, f: pn.apply_rotary(x, None, f, out=x),
    "apply_rotary_tables": lambda x, f: pn.apply_rotary_tables(x, *pn.rotary_tables(5, f), out=x),
    "add_sinusoidal": lambda x, f: pn.add_sinusoidal(x, x_scale=3.0, out=x),
    "Rotary.apply": lambda x, f: pn.Rotary(8).apply(x, out=x),
}


@pytest.mark.parametrize("write", IN_PLACE.values(), ids=IN_PLACE)
@pytest.mark.parametrize("view", [False, True], ids=["whole", "view"])
def test_in_place_on_what_is_no_leaf(write, view, device):
    def f(x):
        y = x * 2  # not x itself, which gradcheck goes on using
        target = y[:, 1:] if view else y
        assert write(target, inv_freq(device=device)) is target
        return y * y

    x = random((1, 2, 5, 8), torch.float64, device, requires_grad=True)
    assert gradcheck(f, x)
    assert gradgradcheck(f, x)


def rotate_qk_by_tables(q, k, positions, f, **options):
    """`apply_rotary_qk` in layout bhsd with the tables of its positions."""
    steps = torch.arange(q.shape[2], device=q.device) if positions is None else positions
    tables = pn.rotary_tables(steps, f, scale=options.pop("scale", 1.0), dtype=torch.float64)
    return pn.apply_rotary_qk_tables(q, k, *tables, **options)


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
    for function, angles in (
        (pn.apply_rotary_qk, {"positions": None, "inv_freq": frequencies}),
        (pn.apply_rotary_qk_tables, dict(zip(("cos", "sin"), tables, strict=True))),
    ):
        rotate = functools.partial(function, **angles)
        assert gradcheck(f, packed)


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
    with torch_cases.composed():
        composed = gradients()
    # Angles are exact in both to 2^-64 of a turn; float64 sine and cosine within 4e-16.
    for a, b in zip(native, composed, strict=True):
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


FUNCTIONS = {
    "apply_rotary": lambda x, f: pn.apply_rotary(x, None, f),
    "apply_rotary_qk": lambda x, f: pn.apply_rotary_qk(x, x * 2, None, f)[1],
    "apply_rotary_tables": lambda x, f: pn.apply_rotary_tables(x, *pn.rotary_tables(5, f)),
    "apply_rotary_qk_tables": lambda x, f: pn.apply_rotary_qk_tables(
        x, x * 2, *pn.rotary_tables(5, f)
    )[1],
    "add_sinusoidal": lambda x, f: pn.add_sinusoidal(x, x_scale=3.0),
}
each_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


@each_function
def test_expanded_gradients(function, device):
    # The gradient of a sum is one number, repeated with stride 0; that of a mean over heads too.
    x = random((2, 3, 5, 8), torch.float64, device, requires_grad=True)
    for reduce in (lambda y: y.sum(), lambda y: (y.mean(1) ** 2).sum()):
        (grad,) = torch.autograd.grad(reduce(function(x, inv_freq(device=device))), x)
        # The same with gradients that own their memory.
        y = function(x, inv_freq(device=device))
        detached = y.detach().requires_grad_()
        (seed,) = torch.autograd.grad(reduce(detached), detached)
        (expected,) = torch.autograd.grad(y, x, seed.contiguous())
        close(grad, expected)


@each_function
def test_gradients_accumulate_and_graphs_are_kept(function, device):
    x = random((2, 3, 5, 8), torch.float64, device, requires_grad=True)
    y = function(x, inv_freq(device=device)).sum()
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    close(x.grad, 2 * once)


@each_function
def test_checkpointing_gives_the_same_gradient(function, device):
    from torch.utils.checkpoint import checkpoint

    x = random((2, 3, 5, 8), torch.float64, device, requires_grad=True)
    block = lambda x: (function(x, inv_freq(device=device)) ** 2).sum()  # noqa: E731
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


# --- torch.func


def rotate_sd(x, f=None, **options):
    f = f_for(x) if f is None else f
    return pn.apply_rotary(x, None, f, layout="sd", **options)


def jacobian_by_columns(f, x):
    """The Jacobian of a linear f, column by column, without autograd."""
    units = torch.eye(x.numel(), dtype=x.dtype, device=x.device)
    columns = [f(e.view_as(x)).flatten() for e in units]
    return torch.stack(columns, 1).reshape(*x.shape, *x.shape)


@torch_cases.needs_operators
def test_func_grad_and_its_gradient(device):
    x = random((2, 3, 5, 8), torch.float64, device)
    for function in FUNCTIONS.values():

        def loss(x, function=function):
            return (function(x, inv_freq(device=device)) ** 3).sum()

        tracked = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(tracked), tracked, create_graph=True)
        close(torch.func.grad(loss)(x), expected.detach())

        def squared(x, loss=loss):
            return (torch.func.grad(loss)(x) ** 2).sum()

        (second,) = torch.autograd.grad((expected**2).sum(), tracked)
        close(torch.func.grad(squared)(x), second)


@torch_cases.needs_operators
@pytest.mark.parametrize("write", IN_PLACE.values(), ids=IN_PLACE)
def test_func_grad_in_place(write, device):
    def loss(x):
        y = x * 2
        write(y, inv_freq(device=device))
        return (y**3).sum()

    x = random((2, 3, 5, 8), torch.float64, device)
    tracked = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(tracked), tracked)
    close(torch.func.grad(loss)(x), expected)


@torch_cases.needs_operators
def test_jacrev_is_the_matrix_of_the_rotation(device):
    x = random((3, 8), torch.float64, device)
    close(torch.func.jacrev(rotate_sd)(x), jacobian_by_columns(rotate_sd, x))
    cos, sin = pn.rotary_tables(3, inv_freq(device=device), dtype=torch.float64)

    def by_tables(x):
        return pn.apply_rotary_tables(x, cos, sin, layout="sd")

    close(torch.func.jacrev(by_tables)(x), jacobian_by_columns(by_tables, x))

    def q_and_k(x):
        return pn.apply_rotary_qk(x, x * 2, None, inv_freq(device=device), layout="sd")[1]

    close(torch.func.jacrev(q_and_k)(x), jacobian_by_columns(q_and_k, x))

    def q_and_k_by_tables(x):
        return pn.apply_rotary_qk_tables(x, x * 2, cos, sin, layout="sd")[1]

    close(torch.func.jacrev(q_and_k_by_tables)(x), jacobian_by_columns(q_and_k_by_tables, x))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "grad"])
@each_function
def test_forward_mode_is_right_or_refused(function, requires_grad, device):
    f = inv_freq(device=device)
    x = random((2, 3, 5, 8), torch.float64, device, requires_grad=requires_grad)
    tangent = random((2, 3, 5, 8), torch.float64, device, seed=1)
    zero = function(torch.zeros_like(tangent), f)  # the part that does not depend on x
    expected = function(tangent, f) - zero
    with contextlib.suppress(NotImplementedError, RuntimeError):
        _, result = torch.func.jvp(lambda x: function(x, f), (x,), (tangent,))
        close(result, expected)
    with contextlib.suppress(NotImplementedError, RuntimeError):
        jacobian = torch.func.jacfwd(lambda x: function(x, f).sum())(x)
        close(jacobian, torch.func.jacrev(lambda x: function(x, f).sum())(x))
    forward = torch.autograd.forward_ad
    with contextlib.suppress(NotImplementedError, RuntimeError), forward.dual_level():
        dual = function(forward.make_dual(x, tangent), f)
        assert forward.unpack_dual(dual).tangent is not None
        close(forward.unpack_dual(dual).tangent, expected)


# vmap against a loop: (f(x, positions), shape of an example of x, of positions or None)
MAPPED = {
    "hsd": (lambda x, p: pn.apply_rotary(x, p, f_for(x), layout="hsd"), (3, 5, 8), (5,)),
    "sd": (lambda x, p: pn.apply_rotary(x, p, f_for(x), layout="sd"), (5, 8), (5,)),
    "bhsd [s]": (lambda x, p: pn.apply_rotary(x, p, f_for(x)), (2, 3, 5, 8), (5,)),
    "bhsd [b, s]": (lambda x, p: pn.apply_rotary(x, p, f_for(x)), (2, 3, 5, 8), (2, 5)),
    "sbhd [b, s]": (
        lambda x, p: pn.apply_rotary(x, p, f_for(x), layout="sbhd"),
        (5, 2, 3, 8),
        (2, 5),
    ),
    "thd": (lambda x, p: pn.apply_rotary(x, p, f_for(x), layout="thd"), (5, 3, 8), (5,)),
    "options": (
        lambda x, p: pn.apply_rotary(
            x, p, f_for(x, 4), layout="hsd", pairing="interleaved", rotary_start=2, scale=2.0,
            inverse=True,
        ),
        (3, 5, 8),
        (5,),
    ),
    "axis_map [A, s]": (
        lambda x, p: pn.apply_rotary(x, p, f_for(x), layout="hsd", axis_map=[0, 1, 1, 0]),
        (3, 5, 8),
        (2, 5),
    ),
    "axis_map [A, b, s]": (
        lambda x, p: pn.apply_rotary(x, p, f_for(x), axis_map=[0, 1, 1, 0]),
        (2, 3, 5, 8),
        (2, 2, 5),
    ),
    "qk": (
        lambda x, p: pn.apply_rotary_qk(x, x[:, :1] * 2, p, f_for(x))[1],
        (2, 3, 5, 8),
        (2, 5),
    ),
    "tables": (
        lambda x, p: pn.apply_rotary_tables(x, *pn.rotary_tables(p, f_for(x))),
        (2, 3, 5, 8),
        (2, 5),
    ),
    "qk by tables": (
        lambda x, p: pn.apply_rotary_qk_tables(
            x, x[:, :1] * 2, *pn.rotary_tables(p, f_for(x)), pairing="interleaved", inverse=True
        )[1],
        (2, 3, 5, 8),
        (2, 5),
    ),
    "rotary_tables": (
        lambda x, p: x[0, 0, 0, 0] * pn.rotary_tables(p, f_for(x), axis_map=[0, 1, 1, 0])[1],
        (2, 3, 5, 8),
        (2, 5),
    ),
    "sinusoidal": (lambda x, p: x[0, 0] * pn.sinusoidal(p, 8), (5, 8), (2, 5)),
    "add [s]": (lambda x, p: pn.add_sinusoidal(x, p, x_scale=2.0), (2, 5, 8), (5,)),
    "add [b, s]": (lambda x, p: pn.add_sinusoidal(x, p), (2, 5, 8), (2, 5)),
    "Rotary": (lambda x, p: pn.Rotary(8)(x, x * 2, p, layout="hsd")[1], (3, 5, 8), (5,)),
}  # fmt: skip
each_mapped = pytest.mark.parametrize(("function", "shape", "points"), MAPPED.values(), ids=MAPPED)


def looped(function, x, positions, x_dim, p_dim):
    """What vmap promises, spelled out."""
    count = x.shape[x_dim] if x_dim is not None else positions.shape[p_dim]
    return torch.stack(
        [
            function(
                x if x_dim is None else x.select(x_dim, i),
                positions if p_dim is None else positions.select(p_dim, i),
            )
            for i in range(count)
        ]
    )


def mapped_arguments(shape, points, x_dim, p_dim, device, count=4):
    x_shape, p_shape = list(shape), list(points)
    if x_dim is not None:
        x_shape.insert(x_dim % (len(shape) + 1), count)
    if p_dim is not None:
        p_shape.insert(p_dim % (len(points) + 1), count)
    positions = torch.arange(torch.Size(p_shape).numel(), device=device).reshape(p_shape)
    return random(x_shape, torch.float64, device), positions * 17 - 40


@each_mapped
@pytest.mark.parametrize(
    ("x_dim", "p_dim"), [(0, None), (None, 0), (0, 0), (1, -1), (-1, 1), (2, None)]
)
def test_vmap_is_a_loop(function, shape, points, x_dim, p_dim, device):
    x, positions = mapped_arguments(shape, points, x_dim, p_dim, device)
    mapped = torch.vmap(function, in_dims=(x_dim, p_dim))(x, positions)
    assert torch.equal(mapped, looped(function, x, positions, x_dim, p_dim))


def test_vmap_in_out_dims_and_nested(device):
    function, shape, points = MAPPED["hsd"]
    x, positions = mapped_arguments(shape, points, 1, None, device)
    mapped = torch.vmap(function, in_dims=(1, None), out_dims=2)(x, positions)
    assert torch.equal(mapped, looped(function, x, positions, 1, None).movedim(0, 2))
    whole = random((2, 3, 5, 8), torch.float64, device)
    nested = torch.vmap(torch.vmap(rotate_sd))(whole)
    assert torch.equal(nested, pn.apply_rotary(whole, None, inv_freq(device=device)))
    mixed = torch.vmap(torch.vmap(rotate_sd, in_dims=1, out_dims=1), in_dims=3, out_dims=3)
    x = random((5, 3, 8, 2), torch.float64, device)
    expected = pn.apply_rotary(x.permute(3, 1, 0, 2), None, inv_freq(device=device))
    assert torch.equal(mixed(x), expected.permute(2, 1, 3, 0))


def test_vmap_of_scalars_makes_rows(device):
    positions, f = torch.tensor(FAR, device=device), inv_freq(device=device)
    rows = torch.vmap(lambda p: pn.sinusoidal(p, 8))(positions)
    assert torch.equal(rows, pn.sinusoidal(positions, 8))
    cos, sin = torch.vmap(lambda p: pn.rotary_tables(p, f))(positions)
    expected = pn.rotary_tables(positions, f)
    assert torch.equal(cos, expected[0])
    assert torch.equal(sin, expected[1])


def test_vmap_over_tables_that_differ(device):
    x = random((4, 2, 3, 5, 8), torch.float64, device)
    cos = random((5, 4, 4), torch.float64, device, seed=1)
    sin = random((4, 2, 5, 4), torch.float64, device, seed=2)
    apply = torch.vmap(pn.apply_rotary_tables, in_dims=(0, 1, 0))
    expected = [pn.apply_rotary_tables(x[i], cos[:, i], sin[i]) for i in range(4)]
    assert torch.equal(apply(x, cos, sin), torch.stack(expected))
    k = random((2, 1, 5, 8), torch.float64, device, seed=3)  # the same for all
    apply = torch.vmap(pn.apply_rotary_qk_tables, in_dims=(0, None, 1, 0))
    pairs = [pn.apply_rotary_qk_tables(x[i], k, cos[:, i], sin[i]) for i in range(4)]
    for mapped, each in zip(apply(x, k, cos, sin), zip(*pairs, strict=True), strict=True):
        assert torch.equal(mapped, torch.stack(each))


@torch_cases.needs_operators
@each_mapped
def test_vmap_of_grad_gives_gradients_of_every_example(function, shape, points, device):
    x, positions = mapped_arguments(shape, points, 0, 0, device)

    def loss(x, p):
        return (function(x, p) ** 3).sum()

    per_example = torch.vmap(torch.func.grad(loss))(x, positions)
    tracked = x.clone().requires_grad_()
    total = sum(loss(tracked[i], positions[i]) for i in range(len(x)))
    (expected,) = torch.autograd.grad(total, tracked)
    close(per_example, expected)


@torch_cases.needs_operators
def test_vmap_over_frequencies(device):
    x = random((2, 5, 8), torch.float64, device)
    frequencies = inv_freq(device=device) * torch.tensor([[1.0], [0.5]], device=device)
    each = torch.vmap(lambda x, f: rotate_sd(x, f))(x, frequencies)
    close(each, torch.stack([rotate_sd(y, f) for y, f in zip(x, frequencies, strict=True)]))
    cos, _ = torch.vmap(lambda f: pn.rotary_tables(5, f, dtype=torch.float64))(frequencies)
    close(cos, torch.cos(torch.arange(5, device=device)[:, None] * frequencies[:, None]))


@torch_cases.needs_operators
def test_functional_call_gives_gradients_of_a_model(device):
    torch.manual_seed(0)
    linear = torch.nn.Linear(8, 8, dtype=torch.float64, device=device)
    rope = pnn.RotaryEmbedding(8)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.rope = linear, rope

        def forward(self, x):
            q, k = self.rope(self.linear(x), x, layout="bsd")
            return (q @ k.transpose(-1, -2)).square().sum()

    model = Model()
    x = random((3, 5, 8), torch.float64, device)

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,))

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    one = torch.func.grad(loss)(parameters, x)
    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x.unsqueeze(1))
    model(x).backward()
    for name, parameter in model.named_parameters():
        close(one[name], parameter.grad)
        torch.testing.assert_close(each[name].sum(0), parameter.grad)
