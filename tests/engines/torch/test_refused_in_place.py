"""Views that autograd lets nobody overwrite: refused before anything is written."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from gradient_cases import IN_PLACE, ONE_OF_TWO, each_of, inv_freq  # noqa: E402

import posenc_native as pn  # noqa: E402

OVERWRITE = (
    IN_PLACE
    | ONE_OF_TWO
    | {
        # Where a gradient is required it takes no out at all.
        "relative_gather": lambda x: pn.relative_gather(
            torch.zeros(*x.shape[:-1], 12), None, 8, content=x, out=x
        )
    }
)


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


@pytest.mark.parametrize("view", VIEWS)
@each_of(OVERWRITE)
def test_refused_before_writing(write, view):
    x = torch.randn(2, 3, 5, 8, requires_grad=True) * 1
    before = x.detach().clone()
    y = VIEWS[view](x)
    with pytest.raises((RuntimeError, ValueError)):
        write(y)
    assert torch.equal(x.detach(), before)


@pytest.mark.usefixtures("backend")
def test_of_a_pair_neither_is_written_where_one_is_a_leaf():
    q, k = torch.randn(1, 4, 6, 16), torch.randn(1, 4, 6, 16, requires_grad=True)
    before = q.clone()
    with pytest.raises(RuntimeError, match="leaf"):
        pn.apply_rotary_qk(q, k, None, inv_freq(16), inplace=True)
    assert torch.equal(q, before)


@torch_cases.needs_operators
@each_of(IN_PLACE | ONE_OF_TWO)
def test_other_views_are_written(write):
    x = torch.randn(2, 3, 5, 8, requires_grad=True) * 1
    expected = x.detach().clone()
    write(expected)
    y = x.view(2, 3, 5, 8)
    write(y)
    assert torch.equal(x.detach(), expected)
