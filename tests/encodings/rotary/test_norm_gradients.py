"""Gradients of norm and rotation: finite differences, the composition, what is kept, their sums."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from norms import CASES  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native.core.calls.norms import Norm  # noqa: E402
from posenc_native.core.calls.rotation import Rotation  # noqa: E402
from posenc_native.engines.plain import norm_rotary as plain  # noqa: E402
from posenc_native.engines.torch.turns import frequency_turns  # noqa: E402

pytestmark = torch_cases.needs_operators

device = torch_cases.device
SMALL = [
    {"rotary_start": 2},
    {"rotary_start": 0, "pairing": "interleaved"},
    {"rotary_start": 1, "pairing": 2, "norm_first": False},
    {"norm_over": "token", "scale": 1.5},
    {"norm_over": "token", "norm_first": False, "weight_offset": 1.0},
]


def leaves(shape=(2, 3, 2, 8), heads=1, dtype=torch.float64, device="cpu", over="head"):
    """q, k and weights of both that require gradients."""
    torch.manual_seed(0)
    k_shape = (*shape[:2], heads, shape[-1])
    weights = [(shape[2], shape[-1]), (heads, shape[-1])] if over == "token" else [shape[-1:]] * 2
    made = [torch.randn(s, dtype=torch.float64).to(dtype) for s in (shape, k_shape, *weights)]
    return [x.to(device).requires_grad_() for x in made]


def frequencies(pairs, device="cpu"):
    return torch.tensor(pn.rotary.rotary_frequencies(2 * pairs)[0], device=device)


@pytest.mark.parametrize("options", SMALL, ids=str)
def test_gradients_are_those_of_finite_differences(options, device):
    inv_freq = frequencies(3, device)
    over = options.get("norm_over", "head")
    q, k, w_q, w_k = leaves(device=device, over=over)
    positions = torch.tensor([3, 1, 7], device=device)

    def run(q, k, w_q, w_k):
        return pn.norm_rotary_qk(
            q, k, positions, inv_freq, q_weight=w_q, k_weight=w_k, layout="bshd", **options
        )

    def by_tables(q, k, w_q, w_k):
        cos, sin = pn.rotary_tables(positions, inv_freq, dtype=torch.float64)
        given = {name: x for name, x in options.items() if name != "scale"}
        return pn.norm_rotary_qk(
            q, k, None, pn.Tables(cos, sin), q_weight=w_q, k_weight=w_k, layout="bshd", **given
        )

    for function in (run, by_tables):
        assert torch.autograd.gradcheck(function, (q, k, w_q, w_k))
        # Along a random direction: in every one it takes as many calls as there are numbers.
        assert torch.autograd.gradgradcheck(function, (q, k, w_q, w_k), fast_mode=True)


def test_positions_and_frequencies_have_gradients(device):
    q, k, w, _ = leaves(device=device)
    positions = torch.tensor([0.5, 3.0, 7.25], dtype=torch.float64, device=device)
    inv_freq = frequencies(4, device)

    def run(positions, inv_freq):
        return pn.norm_rotary_qk(q, k, positions, inv_freq, q_weight=w, layout="bshd")

    inputs = positions.requires_grad_(), inv_freq.requires_grad_()
    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("dtype", torch_cases.FLOATS, ids=torch_cases.dtype_id)
@pytest.mark.parametrize("case", CASES[:8], ids=str)
def test_one_pass_agrees_with_the_composition(case, dtype, device):
    """q and k to a rounding of their dtype, weights to that of sums in float32."""
    for over, first, kind in itertools.product(
        ("head", "token"), (True, False), ("none", "[D]", "[H, D]")
    ):
        if over == "token" and kind == "[D]":
            continue
        torch.manual_seed(1)
        q = torch.randn(2, 35, 3, case.dims, device=device).to(dtype).requires_grad_()
        k = torch.randn(2, 35, 2, case.dims, device=device).to(dtype).requires_grad_()
        shapes = {"[D]": [(case.dims,)] * 2, "[H, D]": [(3, case.dims), (2, case.dims)], "none": []}
        weights = [torch.randn(s, device=device).requires_grad_() for s in shapes[kind]]
        named = dict(zip(("q_weight", "k_weight"), weights, strict=False))
        options = {
            "layout": "bshd", "norm_over": over, "norm_first": first, "weight_offset": 0.25,
            **case.options,
        }  # fmt: skip
        inv_freq = frequencies(case.pairs, device)
        grads = torch.randn_like(q), torch.randn_like(k)

        def gradients(q, k, options=options, named=named, inv_freq=inv_freq, grads=grads):
            results = pn.norm_rotary_qk(q, k, None, inv_freq, **named, **options)
            inputs = [q, k, *named.values()]
            return torch.autograd.grad(results, inputs, [g.to(q.dtype) for g in grads])

        exact = q.detach().double().requires_grad_(), k.detach().double().requires_grad_()
        before = pn.engines.backend.implementation
        pn.set_backend("reference")
        expected = gradients(*exact)
        pn.engines.backend.use(before)
        for i, (one, value) in enumerate(zip(gradients(q, k), expected, strict=True)):
            # Rounded once to the dtype; sums of 70 tokens, in float32 for 32 of them. Heads of one
            # or two numbers are nearly their sign: their gradients are small beside their terms.
            unit = torch.finfo(dtype if i < 2 else torch.float32).eps
            scale = max(value.abs().max().item(), 1.0)
            assert (one.double() - value).abs().max().item() <= max(2 * unit, 3e-6) * scale


@pytest.mark.usefixtures("torch_threads")
def test_gradients_are_the_same_on_any_number_of_threads():
    q, k, w_q, w_k = leaves((2, 700, 4, 64), 2, torch.float32)
    inv_freq = frequencies(32)
    results = []
    for threads in (1, 2, 1):
        torch.set_num_threads(threads)
        y = pn.norm_rotary_qk(q, k, None, inv_freq, q_weight=w_q, k_weight=w_k, layout="bshd")
        results.append(torch.autograd.grad(y[0].sum() + y[1].sum(), (q, k, w_q, w_k)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_what_is_kept_for_the_backward_are_the_arguments():
    q, k, w_q, w_k = leaves((2, 5, 4, 64), 2, torch.bfloat16)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        pn.norm_rotary_qk(q, k, None, frequencies(32), q_weight=w_q, k_weight=w_k, layout="bshd")
    given = {x.data_ptr() for x in (q, k, w_q, w_k)}
    activations = [x for x in kept if x.numel() >= k.numel()]
    assert {x.data_ptr() for x in activations} <= given
    assert sum(x.nbytes for x in activations) == q.nbytes + k.nbytes


def test_one_tensor_for_both_and_a_weight_for_both(device):
    q, _, w, _ = leaves(device=device)
    inv_freq = frequencies(4, device)

    def run(q, w):
        both = pn.norm_rotary_qk(q, q, None, inv_freq, q_weight=w, k_weight=w, layout="bshd")
        return both[0].sum() + (both[1] * torch.arange(8, device=device)).sum()

    assert torch.autograd.gradcheck(run, (q, w))
    assert torch.autograd.gradgradcheck(run, (q, w))


def test_in_place_is_refused_where_a_gradient_is_wanted():
    q, k, w, _ = leaves()
    with pytest.raises(ValueError, match="inplace: expected False if a gradient is required"):
        pn.norm_rotary_qk(
            q.detach(), k.detach(), None, frequencies(4), q_weight=w, layout="bshd", inplace=True
        )
    with torch.no_grad():
        pn.norm_rotary_qk(q, k, None, frequencies(4), q_weight=w, layout="bshd", inplace=True)


def test_compiled(device):
    """One graph, the same bits, forwards and backwards; another length without a new graph."""
    inv_freq = frequencies(3, device)

    def run(*inputs):
        results = []
        for i, options in enumerate(SMALL):
            q, k, w_q, w_k = inputs[4 * i : 4 * i + 4]
            results += pn.norm_rotary_qk(
                q, k, None, inv_freq, q_weight=w_q, k_weight=w_k, layout="bshd", **options
            )
        return tuple(results)

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (3, 6):
        inputs = []
        for options in SMALL:
            over = options.get("norm_over", "head")
            inputs += leaves((2, tokens, 2, 8), dtype=torch.float32, device=device, over=over)
        results = []
        for function in (run, compiled):
            turned = function(*inputs)
            total = sum(
                q.sum() + k.square().sum() for q, k in zip(turned[::2], turned[1::2], strict=True)
            )
            results.append([*turned, *torch.autograd.grad(total, inputs)])
        for a, b in zip(*results, strict=True):
            assert torch.equal(a, b)


def test_transforms_of_torch_func():
    q, k, w, _ = (x.detach() for x in leaves())
    inv_freq = frequencies(4)

    def run(q, k, w=w):
        return pn.norm_rotary_qk(q, k, None, inv_freq, q_weight=w, layout="bshd")

    many = torch.stack([q, 2 * q, q + 1])
    mapped = torch.func.vmap(run, in_dims=(0, None))(many, k)[0]
    for one, x in zip(mapped, many, strict=True):
        torch.testing.assert_close(one, run(x, k)[0])
    gradient = torch.func.grad(lambda w: run(q, k, w)[0].sum())(w)
    x = w.clone().requires_grad_()
    run(q, k, x)[0].sum().backward()
    torch.testing.assert_close(gradient, x.grad)
    _, tangent = torch.func.jvp(lambda q: run(q, k)[0], (q,), (torch.ones_like(q),))
    difference = (run(q + 1e-6, k)[0] - run(q - 1e-6, k)[0]) / 2e-6
    torch.testing.assert_close(tangent, difference, rtol=1e-6, atol=1e-8)


def test_the_composition_is_what_other_devices_run():
    """On meta, and on the CPU where the operators are switched off."""
    q, k, w, _ = (x.detach() for x in leaves(dtype=torch.float32))
    inv_freq = frequencies(4)
    meta = pn.norm_rotary_qk(q.to("meta"), k.to("meta"), None, inv_freq.to("meta"), layout="bshd")
    assert meta[0].shape == q.shape
    norm = Norm(w, None)
    rotation = Rotation(None, inv_freq, "bshd")
    results = plain.norm_rotary("f", q, k, rotation, False, norm, frequency_turns)
    for one, value in zip(
        results, pn.norm_rotary_qk(q, k, None, inv_freq, q_weight=w, layout="bshd"), strict=True
    ):
        torch.testing.assert_close(one, value, rtol=1e-6, atol=1e-6)
