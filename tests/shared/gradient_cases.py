"""What tests of gradients share."""

from __future__ import annotations

import pytest
import torch
import torch_cases

import posenc_native as pn

device = torch_cases.device


def inv_freq(dim=8, device="cpu"):
    return torch.tensor(pn.rotary_frequencies(dim)[0], device=device)


def f_for(x, dim=8):
    """Frequencies where x is."""
    return inv_freq(dim, x.device)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


IN_PLACE = {
    "apply_rotary": lambda x, f: pn.apply_rotary(x, None, f, out=x),
    "apply_rotary_tables": lambda x, f: pn.apply_rotary_tables(x, *pn.rotary_tables(5, f), out=x),
    "add_sinusoidal": lambda x, f: pn.add_sinusoidal(x, x_scale=3.0, out=x),
    "Rotary.apply": lambda x, f: pn.Rotary(8).apply(x, out=x),
}


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
