"""Gradients of what makes the angles of a rotation: frequencies and positions.

They are compared with finite differences, and the fused backward with the composition of torch
operations, whose derivatives are torch's own.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import FLOATS, assert_same_bits, dtype_id, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

pytestmark = torch_cases.needs_operators

device = torch_cases.device

SIZES = {"b": 2, "h": 3, "s": 5, "t": 5, "d": 11}
KINDS = ["[P]", "[H, P]", "[P] by axis", "[H, P] by axis", "[A, H, P]", "[A, 1, P]"]
LAYOUTS = ["bhsd", "bshd", "sbhd", "thd", "sd", "bsd"]


def case(kind, layout, dtype=torch.float64, device="cpu", batched=True, seed=0):
    """x, positions, inv_freq that require gradients, and the other arguments."""
    torch.manual_seed(seed)
    heads = SIZES["h"] if "h" in layout else 1
    axes = (2,) if "A" in kind or "axis" in kind else ()
    shapes = {"[P]": (4,), "[H, P]": (heads, 4), "[A, H, P]": (2, heads, 4), "[A, 1, P]": (2, 1, 4)}
    tokens = (SIZES["b"], SIZES["s"]) if "b" in layout and batched else (SIZES["s"],)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.randn([SIZES[axis] for axis in layout], dtype=torch.float64).to(dtype)
    positions = torch.rand(axes + tokens, dtype=real) * 10
    inv_freq = torch.rand(shapes[kind.removesuffix(" by axis")], dtype=real)
    leaves = [t.to(device).requires_grad_() for t in (x, positions, inv_freq)]
    options = {"layout": layout, "rotary_start": 2, "scale": 1.25}
    if "axis" in kind:
        options["axis_map"] = torch.tensor([0, 1, 1, 0], device=device)
    return leaves, options


def weighted(result):
    return (
        result * torch.linspace(-1, 1, result.numel(), device=result.device).view_as(result)
    ).sum()


@pytest.mark.parametrize("pairing", ["half", "interleaved", 4])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind, pairing, device):
    for i, layout in enumerate(LAYOUTS):
        leaves, options = case(kind, layout, device=device, batched=i % 2 == 0)

        def rotate(x, positions, inv_freq, inverse=i % 3 == 0, options=options):
            return pn.apply_rotary(
                x, positions, inv_freq, **options, pairing=pairing, inverse=inverse
            )

        assert torch.autograd.gradcheck(rotate, leaves, fast_mode=True)
        assert torch.autograd.gradgradcheck(rotate, leaves, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_q_and_k(kind, device):
    (q, positions, inv_freq), options = case(kind, "bhsd", device=device)
    k = torch.randn_like(q).requires_grad_()

    def both(q, k, positions, inv_freq):
        return pn.apply_rotary_qk(q, k, positions, inv_freq, **options)

    assert torch.autograd.gradcheck(both, (q, k, positions, inv_freq), fast_mode=True)
    alone = torch.autograd.grad(sum(map(weighted, both(q, k, positions, inv_freq))), inv_freq)
    each = [pn.apply_rotary(x, positions, inv_freq, **options) for x in (q, k)]
    apart = torch.autograd.grad(sum(map(weighted, each)), inv_freq)
    torch.testing.assert_close(alone, apart, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_backward_is_the_composition(kind, dtype):
    """What the fused backward adds up, next to the composition in float64.

    Relative to the magnitudes of what is summed, a gradient of x that is not yet rounded is off by
    4 units of float32, sums of 15 terms by another 15; frequencies come in float32.
    """
    relative = 2.0**-50 if dtype == torch.float64 else 20 * 2.0**-24
    for layout in LAYOUTS:
        leaves, options = case(kind, layout, dtype)
        grad = torch.randn_like(leaves[0])
        actual = torch.autograd.grad(pn.apply_rotary(*leaves, **options), leaves, grad)
        # The same leaves in float64; all terms of the sums positive for their magnitudes.
        double = [t.detach().double().requires_grad_() for t in leaves]
        try:
            pn.set_backend("reference")
            exact = torch.autograd.grad(pn.apply_rotary(*double, **options), double, grad.double())
        finally:
            pn.set_backend("native")
        norm = float(leaves[0].detach().double().norm() * grad.double().norm() * 1.25)
        for a, e, other in zip(actual[1:], exact[1:], (leaves[2], leaves[1]), strict=True):
            bound = 2 * norm * float(other.detach().abs().max()) * relative
            assert float((a.double() - e).abs().max()) <= bound
            assert a.dtype == other.dtype


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_with_any_number_of_threads(kind):
    torch.manual_seed(1)
    leaves, options = case(kind, "bhsd")
    x = torch.randn(2, 3, 1000, 256, requires_grad=True)
    positions = torch.rand(*leaves[1].shape[:-2], 1000).requires_grad_()
    inv_freq = torch.rand(*leaves[2].shape[:-1], 128).requires_grad_()
    options = dict(options, rotary_start=0)
    if "axis_map" in options:
        options["axis_map"] = torch.arange(128) % 2
    grad = torch.randn_like(x)

    def gradients():
        rotated = pn.apply_rotary(x, positions, inv_freq, **options)
        return torch.autograd.grad(rotated, (x, positions, inv_freq), grad)

    torch.set_num_threads(1)
    one = gradients()
    torch.set_num_threads(2)
    two = gradients()
    for a, b in zip(one, two, strict=True):
        assert_same_bits(a, b)


def test_only_what_is_asked_for():
    (x, positions, inv_freq), options = case("[P]", "bhsd")
    (alone,) = torch.autograd.grad(
        weighted(pn.apply_rotary(x.detach(), positions.detach(), inv_freq, **options)), inv_freq
    )
    _, _, together = torch.autograd.grad(
        weighted(pn.apply_rotary(x, positions, inv_freq, **options)), (x, positions, inv_freq)
    )
    assert_same_bits(alone, together)
    counted = pn.apply_rotary(x, None, inv_freq, **options)
    (of_count,) = torch.autograd.grad(weighted(counted), inv_freq)
    named = pn.apply_rotary(x, torch.arange(5), inv_freq, **options)
    assert_same_bits(of_count, torch.autograd.grad(weighted(named), inv_freq)[0])


def test_strided_and_expanded_inputs():
    (x, positions, inv_freq), options = case("[P]", "bhsd")
    rows = torch.randn(2, 3, 5, 22, dtype=torch.float64)
    for strided in (rows[..., ::2], rows[:, :1, :, :11].expand(2, 3, 5, 11)):
        fresh = strided.clone()
        pair = []
        for y in (strided, fresh):
            rotated = pn.apply_rotary(y, positions, inv_freq, **options)
            pair.append(torch.autograd.grad(weighted(rotated), (positions, inv_freq)))
        torch.testing.assert_close(pair[0], pair[1], rtol=1e-12, atol=1e-12)
    # A gradient of stride 0: that of a sum.
    total = pn.apply_rotary(x, positions, inv_freq, **options).sum()
    whole = torch.autograd.grad(total, (x, positions, inv_freq), retain_graph=True)
    rotated = pn.apply_rotary(x, positions, inv_freq, **options)
    ones = torch.autograd.grad(rotated, (x, positions, inv_freq), torch.ones_like(rotated))
    for a, b in zip(whole, ones, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled(kind):
    leaves, options = case(kind, "bhsd", torch.float32)

    def rotate(x, positions, inv_freq):
        return pn.apply_rotary(x, positions, inv_freq, **options)

    compiled = torch.compile(rotate, fullgraph=True, backend="aot_eager")
    expected = rotate(*leaves)
    actual = compiled(*leaves)
    assert_same_bits(actual.detach(), expected.detach())
    for a, b in zip(
        torch.autograd.grad(weighted(actual), leaves),
        torch.autograd.grad(weighted(expected), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["[P]", "[A, H, P]"])
def test_under_torch_func(kind):
    (x, positions, inv_freq), options = case(kind, "bhsd")
    x, positions, inv_freq = x.detach(), positions.detach(), inv_freq.detach()

    def loss(inv_freq, positions, x):
        return weighted(pn.apply_rotary(x, positions, inv_freq, **options) ** 2)

    leaves = [t.clone().requires_grad_() for t in (inv_freq, positions, x)]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    actual = torch.func.grad(loss, argnums=(0, 1, 2))(inv_freq, positions, x)
    torch.testing.assert_close(actual, expected)
    tangents = [torch.randn_like(t) for t in (inv_freq, positions, x)]
    _, tangent = torch.func.jvp(loss, (inv_freq, positions, x), tuple(tangents))
    torch.testing.assert_close(
        tangent, sum((g * t).sum() for g, t in zip(expected, tangents, strict=True))
    )
    many = torch.stack([inv_freq, inv_freq * 0.5, inv_freq * 2])
    each = torch.vmap(torch.func.grad(loss), in_dims=(0, None, None))(many, positions, x)
    for one, grad in zip(many, each, strict=True):
        torch.testing.assert_close(torch.func.grad(loss)(one, positions, x), grad)


def test_tables_have_gradients_too(device):
    (_, positions, inv_freq), options = case("[P] by axis", "bhsd", device=device)

    def tables(positions, inv_freq):
        return pn.rotary_tables(positions, inv_freq, axis_map=options["axis_map"], scale=1.5)

    exact = pn.rotary_tables(
        positions.detach(), inv_freq.detach(), axis_map=options["axis_map"], scale=1.5
    )
    for a, e in zip(tables(positions, inv_freq), exact, strict=True):
        torch.testing.assert_close(a.detach(), e, rtol=0, atol=3e-7)
    assert torch.autograd.gradcheck(
        lambda p, f: pn.rotary_tables(p, f, axis_map=options["axis_map"], dtype=torch.float64),
        (positions, inv_freq),
    )


def test_far_positions_stay_exact():
    """Forwards, the angle has no rounding that float64 would bring: 2^40 is far from 0."""
    x = random((1, 3, 8))
    inv_freq = torch.tensor(pn.rotary.rotary_frequencies(8)[0]).requires_grad_()
    positions = torch.tensor([2**40, 2**40 + 1, 2**52 + 3])
    assert_same_bits(
        pn.apply_rotary(x, positions, inv_freq, layout="hsd").detach(),
        pn.apply_rotary(x, positions, inv_freq.detach(), layout="hsd"),
    )


def test_no_result_is_overwritten_where_angles_want_a_gradient():
    (x, positions, inv_freq), options = case("[P]", "bhsd")
    x = x.detach()
    with pytest.raises(ValueError, match="out"):
        pn.apply_rotary(x, positions, inv_freq, **options, out=x)
    with pytest.raises(ValueError, match="inplace"):
        pn.apply_rotary_qk(x, x.clone(), positions, inv_freq, **options, inplace=True)


def test_training_finds_the_frequencies():
    """Frequencies of another rotation are found by descent."""
    torch.manual_seed(3)
    target, learned = torch.tensor([0.9, 0.31]), torch.tensor([0.8, 0.4]).requires_grad_()
    optimizer = torch.optim.Adam([learned], lr=0.01)
    for _ in range(200):
        x = torch.randn(4, 8, 4)
        wanted = pn.apply_rotary(x, None, target, layout="bsd")
        loss = (pn.apply_rotary(x, None, learned, layout="bsd") - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(learned.detach(), target, rtol=0, atol=1e-3)


@pytest.mark.parametrize("shape", [(8,), (4, 8), (2, 4, 8)])
def test_the_module_learns_its_frequencies(shape, device):
    torch.manual_seed(4)
    rope = pnn.LearnedRotaryEmbedding(20, inv_freq=torch.rand(shape), rotary_start=4).to(device)
    assert list(rope.state_dict()) == ["inv_freq"]
    q, k = torch.randn(2, 2, 4, 5, 20, device=device)
    axes = (2,) if len(shape) == 3 else ()
    positions = torch.rand(*axes, 2, 5, device=device) * 9
    compiled = torch.compile(rope, fullgraph=True, backend="aot_eager")
    for module in (rope, compiled):
        rope.zero_grad()
        rotated = module(q, k, positions)
        sum(map(weighted, rotated)).backward()
        assert rope.inv_freq.grad.shape == shape
        assert rope.inv_freq.grad.abs().min() > 0
        expected = pn.apply_rotary_qk(q, k, positions, rope.inv_freq, rotary_start=4)
        for a, b in zip(rotated, expected, strict=True):
            assert_same_bits(a.detach(), b.detach())
    for a, b in zip(compiled(q, q, positions), rope(q, q, positions), strict=True):
        assert_same_bits(a.detach(), b.detach())
    assert rope.bfloat16()(q, k, positions)[0].shape == q.shape
    torch._dynamo.reset()


def test_modules_begin_as_others():
    q, k = torch.randn(2, 1, 4, 5, 16)
    fixed = pnn.RotaryEmbedding(16, base=500.0)
    for rope in (
        pnn.LearnedRotaryEmbedding(16, base=500.0),
        pnn.LearnedRotaryEmbedding(16, base=500.0, num_heads=4),
    ):
        for a, b in zip(rope(q, k), fixed(q, k), strict=True):
            torch.testing.assert_close(a.detach(), b, rtol=0, atol=2e-6)
    with pytest.raises(ValueError, match="none beside inv_freq"):
        pnn.LearnedRotaryEmbedding(16, inv_freq=torch.rand(8), num_heads=4)
    with pytest.raises(ValueError, match="heads of q"):
        pnn.LearnedRotaryEmbedding(16, num_heads=3)(q, k)
