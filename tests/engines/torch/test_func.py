"""torch.func: gradients of gradients, Jacobians, vmap, calls of modules as functions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from gradient_cases import (  # noqa: E402
    FUNCTIONS,
    IN_PLACE,
    close,
    each_function,
    each_of,
    f_for,
    inv_freq,
)
from rotating import public  # noqa: E402
from torch_cases import FAR, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

device = torch_cases.device


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
            return (function(x) ** 3).sum()

        tracked = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(tracked), tracked, create_graph=True)
        close(torch.func.grad(loss)(x), expected.detach())

        def squared(x, loss=loss):
            return (torch.func.grad(loss)(x) ** 2).sum()

        (second,) = torch.autograd.grad((expected**2).sum(), tracked)
        close(torch.func.grad(squared)(x), second)


@torch_cases.needs_operators
@each_of(IN_PLACE)
def test_func_grad_in_place(write, device):
    def loss(x):
        y = x * 2
        write(y)
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
        return pn.apply_rotary(x, None, pn.Tables(cos, sin), layout="sd")

    close(torch.func.jacrev(by_tables)(x), jacobian_by_columns(by_tables, x))

    def q_and_k(x):
        return pn.apply_rotary_qk(x, x * 2, None, inv_freq(device=device), layout="sd")[1]

    close(torch.func.jacrev(q_and_k)(x), jacobian_by_columns(q_and_k, x))

    def q_and_k_by_tables(x):
        return pn.apply_rotary_qk(x, x * 2, None, pn.Tables(cos, sin), layout="sd")[1]

    close(torch.func.jacrev(q_and_k_by_tables)(x), jacobian_by_columns(q_and_k_by_tables, x))


forward = torch.autograd.forward_ad


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "grad"])
@each_function
def test_forward_mode(function, requires_grad, device):
    x = random((2, 3, 5, 8), torch.float64, device, requires_grad=requires_grad)
    tangent = random((2, 3, 5, 8), torch.float64, device, seed=1)
    zero = function(torch.zeros_like(tangent))  # the part that does not depend on x
    expected = function(tangent) - zero
    _, result = torch.func.jvp(function, (x,), (tangent,))
    close(result, expected)
    jacobian = torch.func.jacfwd(lambda x: function(x).sum())(x)
    close(jacobian, torch.func.jacrev(lambda x: function(x).sum())(x))
    with forward.dual_level():
        dual = function(forward.make_dual(x, tangent))
        close(forward.unpack_dual(dual).tangent, expected)


# A call by everything that may have a tangent: x, positions, inv_freq, cos, sin.
OF_ALL = {
    "apply_rotary": lambda x, p, f, cos, sin: pn.apply_rotary(x, p, f),
    "apply_rotary_qk": lambda x, p, f, cos, sin: pn.apply_rotary_qk(x, x * 2, p, f)[1],
    "apply_rotary by tables": lambda x, p, f, cos, sin: pn.apply_rotary(
        x, None, pn.Tables(cos, sin)
    ),
    "apply_rotary_qk by tables": lambda x, p, f, cos, sin: pn.apply_rotary_qk(
        x, x * 2, None, pn.Tables(cos, sin)
    )[1],
}
each_of_all = pytest.mark.parametrize("function", OF_ALL.values(), ids=OF_ALL)


def arguments_of_all(device):
    f = inv_freq(device=device).double()
    positions = torch.arange(5, dtype=torch.float64, device=device) + 0.25
    tables = pn.rotary_tables(positions, f, dtype=torch.float64)
    arguments = random((1, 2, 5, 8), torch.float64, device), positions, f, *tables
    return arguments, [random(a.shape, torch.float64, device, seed=1) for a in arguments]


def by_differences(function, arguments, tangents):
    """The derivative along the tangents: off by 1e-12 of step 1e-6, and by rounding / 1e-6."""
    there, back = ([a + s * t for a, t in zip(arguments, tangents, strict=True)]
                   for s in (1e-6, -1e-6))  # fmt: skip
    return (function(*there) - function(*back)) / 2e-6


@torch_cases.needs_operators
@each_of_all
def test_forward_mode_by_every_argument_and_over_reverse(function, device):
    arguments, tangents = arguments_of_all(device)

    def along(tangents):
        return torch.func.jvp(function, arguments, tuple(tangents))[1]

    expected = by_differences(function, arguments, tangents)
    torch.testing.assert_close(along(tangents), expected, rtol=1e-7, atol=1e-7)
    twice = [torch.stack([t, 2 * t]) for t in tangents]
    close(torch.vmap(along)(twice), torch.stack([along(tangents), 2 * along(tangents)]))

    def gradients(*arguments):
        every = torch.func.grad(lambda a: (function(*a) ** 3).sum())(arguments)
        return torch.cat([g.flatten() for g in every])

    _, over_reverse = torch.func.jvp(gradients, arguments, tuple(tangents))
    expected = by_differences(gradients, arguments, tangents)
    torch.testing.assert_close(over_reverse, expected, rtol=1e-6, atol=1e-6)


@torch_cases.needs_operators
@each_of_all
def test_hessian(function, device):
    (x, *others), _ = arguments_of_all(device)

    def loss(row):
        return (function(torch.cat([row, x[:, :, 1:]], 2), *others) ** 3).sum()

    row = x[:, :1, :1].expand(1, 2, 1, 8).clone()
    expected = torch.autograd.functional.hessian(loss, row)
    close(torch.func.hessian(loss)(row), expected)
    assert expected.abs().max() > 1


@torch_cases.needs_operators
@pytest.mark.parametrize("learned", [False, True], ids=["x", "all"])
@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@each_of_all
def test_a_backward_takes_gradients_with_tangents(function, learned, second, device):
    arguments, _ = arguments_of_all(device)
    inputs = [a.requires_grad_() for a in arguments[: 5 if learned else 1]]
    y = function(*arguments)
    grad, tangent = torch.ones_like(y), random(y.shape, torch.float64, device, seed=2)
    options = {"allow_unused": True, "retain_graph": True}
    expected = torch.autograd.grad(y, inputs, tangent, **options)  # a backward is linear
    with forward.dual_level():
        found = torch.autograd.grad(
            y, inputs, forward.make_dual(grad, tangent), create_graph=second, **options
        )
        for ours, theirs in zip(found, expected, strict=True):
            if theirs is not None:
                close(forward.unpack_dual(ours).tangent.detach(), theirs)


IN_PLACE_OF_ALL = {
    "apply_rotary": lambda q, k, f, cos, sin: (pn.apply_rotary(q, None, f, out=q), k),
    "apply_rotary_qk": lambda q, k, f, cos, sin: pn.apply_rotary_qk(q, k, None, f, inplace=True),
    "apply_rotary_qk, out": lambda q, k, f, cos, sin: pn.apply_rotary_qk(
        q, k, None, f, out=(torch.empty_like(q), torch.empty_like(k))
    ),
    "apply_rotary by tables": lambda q, k, f, cos, sin: (
        pn.apply_rotary(q, None, pn.Tables(cos, sin), out=q),
        k,
    ),
    "apply_rotary_qk by tables": lambda q, k, f, cos, sin: pn.apply_rotary_qk(
        q, k, None, pn.Tables(cos, sin), inplace=True
    ),
}


@torch_cases.needs_operators
@pytest.mark.parametrize("write", IN_PLACE_OF_ALL.values(), ids=IN_PLACE_OF_ALL)
def test_forward_mode_in_place(write, device):
    (x, _, *others), (of_x, _, *of_others) = arguments_of_all(device)
    arguments, tangents = (x, x * 2, *others), (of_x, of_x * 3, *of_others)

    def both(q, k, *others):
        return torch.cat(write(q.clone(), k.clone(), *others))

    expected = by_differences(both, arguments, tangents)
    with forward.dual_level():
        duals = [
            forward.make_dual(a.clone(), t.clone())
            for a, t in zip(arguments, tangents, strict=True)
        ]
        found = torch.cat([forward.unpack_dual(y).tangent for y in write(*duals)])
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    _, found = torch.func.jvp(both, arguments, tangents)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@torch_cases.needs_operators
def test_a_transform_writes_to_nothing_from_outside(device):
    (x, _, f, *_), (tangent, *_) = arguments_of_all(device)
    k, before = x.clone(), x.clone()

    def rotate(q):
        return pn.apply_rotary_qk(q, k, None, f, inplace=True)

    with pytest.raises(
        ValueError, match=r"apply_rotary_qk: k: .* torch\.func, got a tensor from outside"
    ):
        torch.func.jvp(rotate, (x,), (tangent,))
    assert torch.equal(x, before)
    assert torch.equal(k, before)


# vmap against a loop: (f(x, positions), shape of an example of x, of positions or None)
MAPPED = {
    "hsd": (lambda x, p: pn.apply_rotary(x, p, f_for(x), layout="hsd"), (3, 5, 8), (5,)),
    "sd": (lambda x, p: pn.apply_rotary(x, p, f_for(x), layout="sd"), (5, 8), (5,)),
    "bhsd [s]": (lambda x, p: pn.apply_rotary(x, p, f_for(x)), (2, 3, 5, 8), (5,)),
    "bhsd [b, s]": (lambda x, p: pn.apply_rotary(x, p, f_for(x)), (2, 3, 5, 8), (2, 5)),
    "sbhd [b, s]": (lambda x, p: pn.apply_rotary(x, p, f_for(x), layout="sbhd"), (5, 2, 3, 8),
                    (2, 5)),
    "thd": (lambda x, p: pn.apply_rotary(x, p, f_for(x), layout="thd"), (5, 3, 8), (5,)),
    "options": (
        lambda x, p: pn.apply_rotary(
            x, p, f_for(x, 4), layout="hsd", pairing="interleaved", rotary_start=2, scale=2.0,
            inverse=True,
        ),
        (3, 5, 8), (5,),
    ),
    "axis_map [A, s]": (
        lambda x, p: pn.apply_rotary(x, p, f_for(x), layout="hsd", axis_map=[0, 1, 1, 0]),
        (3, 5, 8), (2, 5),
    ),
    "axis_map [A, b, s]": (lambda x, p: pn.apply_rotary(x, p, f_for(x), axis_map=[0, 1, 1, 0]),
                           (2, 3, 5, 8), (2, 2, 5)),
    "qk": (lambda x, p: pn.apply_rotary_qk(x, x[:, :1] * 2, p, f_for(x))[1], (2, 3, 5, 8), (2, 5)),
    "tables": (
        lambda x, p: pn.apply_rotary(x, None, pn.Tables(*pn.rotary_tables(p, f_for(x)))),
        (2, 3, 5, 8),
        (2, 5),
    ),
    "qk by tables": (
        lambda x, p: pn.apply_rotary_qk(
            x,
            x[:, :1] * 2,
            None,
            pn.Tables(*pn.rotary_tables(p, f_for(x))),
            pairing="interleaved",
            inverse=True,
        )[1],
        (2, 3, 5, 8),
        (2, 5),
    ),
    "rotary_tables": (
        lambda x, p: x[0, 0, 0, 0] * pn.rotary_tables(p, f_for(x), axis_map=[0, 1, 1, 0])[1],
        (2, 3, 5, 8), (2, 5),
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
    apply = torch.vmap(public("apply_rotary by tables"), in_dims=(0, 1, 0))
    expected = [pn.apply_rotary(x[i], None, pn.Tables(cos[:, i], sin[i])) for i in range(4)]
    assert torch.equal(apply(x, cos, sin), torch.stack(expected))
    k = random((2, 1, 5, 8), torch.float64, device, seed=3)  # the same for all
    apply = torch.vmap(public("apply_rotary_qk by tables"), in_dims=(0, None, 1, 0))
    pairs = [pn.apply_rotary_qk(x[i], k, None, pn.Tables(cos[:, i], sin[i])) for i in range(4)]
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


AXES = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1]])


@torch_cases.needs_operators
def test_vmap_over_the_offset_of_queries(device):
    """Its values are not known: entries that the offset 0 would not find are no error."""
    diagonals = random((3, 12), torch.float32, device)
    offsets = torch.tensor([1, 4, 6], device=device)

    def bias(at):
        return pn.toeplitz_bias(diagonals, q_offset=at, origin=10, q_len=4, k_len=3)

    expected = torch.stack([bias(int(at)) for at in offsets])
    assert torch.equal(torch.func.vmap(bias)(offsets), expected)


@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (lambda x, axes: pn.apply_rotary(x, torch.ones(2, 5), torch.ones(4), axis_map=axes),
         (torch.ones(2, 1, 3, 5, 8), AXES)),
        (lambda p, axes: pn.rotary_tables(p, torch.ones(4), axis_map=axes),
         (torch.ones(2, 2, 5), AXES)),
        (lambda x, t: pn.apply_rotary(x, None, pn.Tables(t, t, rows=torch.arange(5))),
         (torch.ones(2, 1, 3, 5, 8), torch.ones(2, 9, 4))),
    ],
    ids=["apply_rotary", "rotary_tables", "rows"],
)  # fmt: skip
def test_vmap_over_what_no_kernel_takes_by_example_is_refused(call, inputs):
    with pytest.raises(NotImplementedError, match="an axis_map or tables with rows"):
        torch.vmap(call)(*inputs)


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
