"""What tests of gradients share: calls on a tensor x [..., 5, 8], and calls that overwrite it."""

from __future__ import annotations

import pytest
import torch
import torch_cases

import posenc_native as pn

device = torch_cases.device


def inv_freq(dim=8, device="cpu"):
    return torch.tensor(pn.rotary.rotary_frequencies(dim)[0], device=device)


def f_for(x, dim=8):
    """Frequencies where x is."""
    return inv_freq(dim, x.device)


def tables_for(x):
    return pn.rotary_tables(5, f_for(x))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


FUNCTIONS = {
    "apply_rotary": lambda x: pn.apply_rotary(x, None, f_for(x)),
    "apply_rotary_qk": lambda x: pn.apply_rotary_qk(x, x * 2, None, f_for(x))[1],
    "apply_rotary by tables": lambda x: pn.apply_rotary(x, None, pn.Tables(*tables_for(x))),
    "apply_rotary_qk by tables": lambda x: pn.apply_rotary_qk(
        x, x * 2, None, pn.Tables(*tables_for(x))
    )[1],
    "add_sinusoidal": lambda x: pn.add_sinusoidal(x, x_scale=3.0),
    "Rotary": lambda x: pn.Rotary(8)(x, x * 2)[0],
    "Rotary.apply": lambda x: pn.Rotary(8).apply(x),
}
each_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def ones(y):
    return torch.ones_like(y)


def biases(y):
    """Diagonals of y."""
    return torch.linspace(-2, 2, 12, dtype=y.dtype, device=y.device)


# Those that return what they overwrite and are given.
IN_PLACE = {
    "apply_rotary": lambda y: pn.apply_rotary(y, None, f_for(y), out=y),
    "apply_rotary by tables": lambda y: pn.apply_rotary(y, None, pn.Tables(*tables_for(y)), out=y),
    "add_sinusoidal": lambda y: pn.add_sinusoidal(y, x_scale=3.0, out=y),
    "Rotary.apply": lambda y: pn.Rotary(8).apply(y, out=y),
    "add_toeplitz_bias": lambda y: pn.add_toeplitz_bias(y, biases(y), out=y),
}
ONE_OF_TWO = {
    "q": lambda y: pn.apply_rotary_qk(y, ones(y), None, f_for(y), inplace=True),
    "k": lambda y: pn.apply_rotary_qk(ones(y), y, None, f_for(y), inplace=True),
    "k, options": lambda y: pn.apply_rotary_qk(ones(y), y, None, f_for(y), inplace=True, scale=2.0),
    "q, tables": lambda y: pn.apply_rotary_qk(
        y, ones(y), None, pn.Tables(*tables_for(y)), inplace=True
    ),
    "k, tables": lambda y: pn.apply_rotary_qk(
        ones(y), y, None, pn.Tables(*tables_for(y)), inplace=True
    ),
    "q, Rotary": lambda y: pn.Rotary(8)(y, ones(y), inplace=True),
}
OUT = {
    "apply_rotary": lambda y: pn.apply_rotary(ones(y), None, f_for(y), out=y),
    "apply_rotary by tables": lambda y: pn.apply_rotary(
        ones(y), None, pn.Tables(*tables_for(y)), out=y
    ),
    "add_sinusoidal": lambda y: pn.add_sinusoidal(ones(y), out=y),
    "sinusoidal": lambda y: pn.sinusoidal(
        torch.arange(y[..., 0].numel(), device=y.device).view(y.shape[:-1]), 8, out=y
    ),
    "Rotary.apply": lambda y: pn.Rotary(8).apply(ones(y), out=y),
    "toeplitz_bias": lambda y: pn.toeplitz_bias(biases(y).expand(*y.shape[:-2], 12), 5, 8, out=y),
    "relative_gather": lambda y: pn.relative_gather(
        ones(y), torch.arange(12, device=y.device) % 8, 8, out=y
    ),
}
WRITERS = {
    f"{name}, {how}": write
    for how, writers in (("in place", IN_PLACE), ("of two", ONE_OF_TWO), ("out", OUT))
    for name, write in writers.items()
}


def each_of(writers):
    """Parametrize `write` by such a table."""
    return pytest.mark.parametrize("write", writers.values(), ids=writers)
