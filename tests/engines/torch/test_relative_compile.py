"""Relative encodings under torch.compile, torch.export and torch.func."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from compiling import assert_like_eager, compiled, needs_inductor  # noqa: E402
from relative_cases import DIFFERENTIABLE, INDEX, each_differentiable, inputs_of, leaf  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch_cases import assert_same_bits, random  # noqa: E402

import posenc_native as pn  # noqa: E402

pytestmark = torch_cases.needs_operators
kernel_device = torch_cases.kernel_device


@pytest.mark.usefixtures("nothing_compiled")
@each_differentiable
def test_compiled_functions_are_like_eager_ones(function, shapes):
    inputs = inputs_of(shapes, torch.float32, requires_grad=False)
    assert_like_eager(function, *inputs, requires_grad=True)


OTHERS = {
    "add on the input": (lambda s, d: pn.add_toeplitz_bias(s, d, out=s), ((2, 3, 4, 4), (3, 7))),
    "bias out": (lambda d: pn.toeplitz_bias(d, 4, 4, out=torch.empty(3, 4, 4)), ((3, 7),)),
    "gather on the content": (lambda x, c: pn.relative_gather(x, INDEX, 4, content=c, out=c),
                              ((2, 4, 5), (2, 4, 4))),
    "scatter out": (lambda g: pn.relative_scatter(g, INDEX, 5, out=torch.empty(2, 4, 5)),
                    ((2, 4, 4),)),
}  # fmt: skip


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize(("function", "shapes"), OTHERS.values(), ids=OTHERS)
def test_compiled_calls_with_out(function, shapes):
    assert_like_eager(function, *inputs_of(shapes, torch.float32, requires_grad=False))


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.slow
def test_compiled_by_inductor_a_table_trains():
    needs_inductor()
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


@pytest.mark.usefixtures("nothing_compiled")
def test_lengths_do_not_recompile():
    def function(scores, diagonals):
        return tuple(one(scores, diagonals) for one in VARYING.values())

    counter = CompileCounterWithBackend("aot_eager")
    fast = compiled(function, counter)
    counts = []
    for q_len, k_len in ((4, 5), (6, 9), (7, 30), (50, 8)):
        scores, diagonals = random((2, 3, q_len, k_len)), random((3, q_len + k_len - 1))
        diagonals.requires_grad_()
        results = [f(scores, diagonals) for f in (fast, function)]
        for name, ours, wanted in zip(VARYING, *results, strict=True):
            assert torch.equal(ours, wanted), name
        sums = [sum(r.sum() for r in some if r.requires_grad) for some in results]
        grads = [torch.autograd.grad(total, diagonals)[0] for total in sums]
        torch.testing.assert_close(grads[0], grads[1])
        counts.append(counter.frame_count)
    assert counts[-1] == counts[1], counts


@pytest.mark.usefixtures("nothing_compiled")
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


@pytest.mark.usefixtures("nothing_compiled")
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
