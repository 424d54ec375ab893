"""Views that autograd lets nobody overwrite: refused before anything is written."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402

import posenc_native as pn  # noqa: E402

INV_FREQ = torch.from_numpy(pn.rotary_frequencies(16)[0])
TABLES = pn.rotary_tables(torch.arange(6), INV_FREQ)


class View(torch.autograd.Function):
    """As `DTensor.to_local` is one."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def made_without_gradient(x):
    with torch.no_grad():
        return x.view_as(x)


VIEWS = {
    "of a Function": View.apply,
    "of a Function, seen otherwise": lambda x: View.apply(x).transpose(0, 1).transpose(0, 1),
    "of several": lambda x: x.split([1, 1])[0],
    "made without gradients": made_without_gradient,
}
CALLS = {
    "apply_rotary": lambda x: pn.apply_rotary(x, None, INV_FREQ, out=x),
    "apply_rotary_tables": lambda x: pn.apply_rotary_tables(x, *TABLES, out=x),
    "apply_rotary_qk": lambda x: pn.apply_rotary_qk(
        x, x.detach().clone(), None, INV_FREQ, inplace=True
    ),
    "add_sinusoidal": lambda x: pn.add_sinusoidal(x, out=x),
    "add_toeplitz_bias": lambda x: pn.add_toeplitz_bias(x, torch.zeros(4, 21), out=x),
    "relative_gather": lambda x: pn.relative_gather(
        torch.zeros(*x.shape[:-1], 21), None, 16, content=x, out=x
    ),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", CALLS)
def test_refused_before_writing(name, view):
    x = torch.randn(2, 4, 6, 16, requires_grad=True) * 1
    before = x.detach().clone()
    y = VIEWS[view](x)
    with pytest.raises((RuntimeError, ValueError)):
        CALLS[name](y)
    assert torch.equal(x.detach(), before)


@pytest.mark.usefixtures("backend")
def test_of_a_pair_neither_is_written_where_one_is_a_leaf():
    q, k = torch.randn(1, 4, 6, 16), torch.randn(1, 4, 6, 16, requires_grad=True)
    before = q.clone()
    with pytest.raises(RuntimeError, match="leaf"):
        pn.apply_rotary_qk(q, k, None, INV_FREQ, inplace=True)
    assert torch.equal(q, before)


@torch_cases.needs_operators
@pytest.mark.parametrize("name", [name for name in CALLS if name != "relative_gather"])
def test_other_views_are_written(name):
    """relative_gather takes no out where a gradient is required."""
    x = torch.randn(2, 4, 6, 16, requires_grad=True) * 1
    expected = x.detach().clone()
    CALLS[name](expected)
    y = x.view(2, 4, 6, 16)
    CALLS[name](y)
    assert torch.equal(x.detach(), expected)
