"""Relative encodings on tensors: the calls that tests share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch_cases
from torch_cases import FLOATS, dtype_id, random

import posenc_native as pn

device = torch_cases.device

each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)

# name: (shape of the scores, of the diagonals, how they are read)
TOEPLITZ = {
    "plain": ((2, 3, 4, 6), (3, 9), {}),
    "one step": ((2, 3, 1, 7), (3, 7), {}),
    "one key": ((3, 5, 1), (3, 5), {}),
    "no heads": ((4, 6), (9,), {}),
    "no heads, batch": ((2, 4, 6), (9,), {}),
    "each batch its own": ((2, 3, 4, 6), (2, 3, 9), {}),
    "batch of one": ((2, 3, 4, 6), (1, 3, 9), {}),
    "five axes": ((2, 2, 3, 4, 5), (3, 8), {}),
    "origin": ((2, 3, 4, 6), (3, 20), {"origin": 9}),
    "q_offset": ((2, 3, 4, 6), (3, 20), {"origin": 12, "q_offset": 5}),
    "q_offset [B]": ((2, 3, 4, 6), (3, 20), {"origin": 12, "q_offset": [5, -1]}),
    "q_offset []": ((2, 3, 4, 6), (2, 3, 20), {"origin": 12, "q_offset": 5 * np.ones((), int)}),
    "q_offset [B], five axes": ((2, 2, 3, 2, 3), (3, 9), {"origin": 6, "q_offset": [5, 1]}),
    "q_offset [B, C]": ((2, 2, 3, 2, 3), (3, 9), {"origin": 6, "q_offset": [[5, 1], [0, 2]]}),
    "grid": ((2, 3, 6, 12), (3, 4, 6), {"q_len": (2, 3), "k_len": (3, 4)}),
    "grid, origin": (
        (2, 6, 12), (2, 6, 9), {"q_len": (2, 3), "k_len": (3, 4), "origin": (2, 4)},
    ),
    "grid of three": ((2, 8, 4), (2, 3, 3, 2), {"q_len": (2, 2, 2), "k_len": (2, 2, 1)}),
    "no queries": ((2, 3, 0, 4), (3, 3), {}),
    "nothing": ((3, 0, 0), (3, 0), {}),
}  # fmt: skip
# name: (shape of x, index, k_len, options)
LOOKED_UP = {
    "index": ((2, 3, 4, 5), [0, 0, 1, 2, 3, 4, 4, 4], 5, {}),
    "shift": ((2, 3, 4, 8), None, 5, {}),
    "shift past the columns": ((3, 4, 3), None, 6, {}),
    "skew": ((3, 4, 6), None, 4, {"origin": 5}),
    "missing": ((2, 4, 3), [-1, 0, 1, -1, 2, -1], 3, {"missing": -1, "scale": 0.5}),
    "origin": ((2, 3, 2, 3), [0, 1, 2, 1, 0, 1, 2, 2], 3, {"origin": 4, "q_offset": 1}),
    "q_offset [B]": ((2, 3, 2, 3), [0, 1, 2, 1, 0, 1, 2, 2], 3, {"origin": 5, "q_offset": [1, 3]}),
    "shift, q_offset [B]": ((2, 3, 2, 4), None, 3, {"origin": 2, "q_offset": [1, -2]}),
    "matrix": ((3, 5), [4, 3, 2, 1, 0], 3, {"scale": -2.0}),
    "no columns": ((2, 3, 0), None, 4, {}),
    "no keys": ((2, 3, 4), [0, 1], 0, {}),
}  # fmt: skip
each_look_up = pytest.mark.parametrize("name", LOOKED_UP)


def of_tensors(options, device="cpu"):
    """Options with q_offset as a tensor where it is no int."""
    offset = options.get("q_offset", 0)
    if isinstance(offset, int):
        return dict(options)
    return options | {"q_offset": torch.tensor(offset, device=device)}


def add_arguments(name, dtype=torch.float32, device="cpu", diagonals_dtype=None):
    """scores, diagonals, options of `add_toeplitz_bias`."""
    shape, diagonals, _ = TOEPLITZ[name]
    return (
        random(shape, dtype, device),
        random(diagonals, diagonals_dtype or dtype, device, seed=1),
        add_options(name, device),
    )


def add_options(name, device="cpu"):
    """Options of `add_toeplitz_bias`, for scores on the device."""
    return of_tensors(TOEPLITZ[name][2], device)


def bias_options(name, device="cpu"):
    """Options of `toeplitz_bias` for the same."""
    shape, _, options = TOEPLITZ[name]
    lengths = dict(zip(("q_len", "k_len"), shape[-2:], strict=True))
    return lengths | of_tensors(options, device)


def sums_options(name, device="cpu"):
    """Options of `diagonal_sums` for the same."""
    _, diagonals, options = TOEPLITZ[name]
    keep = len(diagonals) - len(options.get("q_len", (0,)))
    options = of_tensors(options, device) | {"keep": keep}
    return options | {"entries": diagonals[keep:]} if "origin" in options else options


def gather_arguments(name, dtype=torch.float32, device="cpu"):
    """(x, index, k_len), content, options of `relative_gather`."""
    shape, index, k_len, options = LOOKED_UP[name]
    index = None if index is None else torch.tensor(index, device=device)
    content = random((*shape[:-1], k_len), dtype, device, seed=1)
    return (random(shape, dtype, device), index, k_len), content, of_tensors(options, device)


def leaf(x):
    return x.detach().clone().requires_grad_()


# name: f(inputs) and the shapes of these, to differentiate
INDEX = torch.tensor([0, 0, 1, 2, 3, 4, 4])
DIFFERENTIABLE = {
    "add": (lambda s, d: pn.add_toeplitz_bias(s, d), ((2, 3, 4, 4), (3, 7))),
    "add in place": (
        lambda s, d: (y := s * 2, pn.add_toeplitz_bias(y, d, out=y))[1], ((2, 3, 4, 4), (3, 7)),
    ),
    "add with q_offset": (
        lambda s, d: pn.add_toeplitz_bias(s, d, q_offset=torch.tensor([1, 0]), origin=4),
        ((2, 3, 4, 4), (3, 9)),
    ),
    "add to a grid": (
        lambda s, d: pn.add_toeplitz_bias(s, d, q_len=(2, 2), k_len=(2, 2)),
        ((2, 3, 4, 4), (3, 3, 3)),
    ),
    "bias": (lambda d: pn.toeplitz_bias(d, d.shape[-1] - 3, 4), ((3, 7),)),
    "bias of a table": (
        lambda d: pn.toeplitz_bias(d, 4, 4, q_offset=torch.tensor([1, 0]), origin=4), ((3, 9),),
    ),
    "sums": (lambda g: pn.diagonal_sums(g), ((2, 3, 4, 4),)),
    "sums of all": (lambda g: pn.diagonal_sums(g, keep=0, entries=9, origin=4), ((2, 3, 4, 4),)),
    "gather": (lambda x: pn.relative_gather(x, INDEX, 4, scale=0.5), ((2, 4, 5),)),
    "gather and content": (
        lambda x, c: pn.relative_gather(x, INDEX, c.shape[-1], content=c, scale=0.5),
        ((2, 4, 5), (2, 4, 4)),
    ),
    "shift": (lambda x: pn.relative_gather(x, None, 4), ((2, 4, 5),)),
    "scatter": (lambda g: pn.relative_scatter(g, INDEX, 5, scale=0.5), ((2, 4, 4),)),
}  # fmt: skip
each_differentiable = pytest.mark.parametrize(
    ("function", "shapes"), DIFFERENTIABLE.values(), ids=DIFFERENTIABLE
)


def inputs_of(shapes, dtype=torch.float64, requires_grad=True):
    return [random(s, dtype, seed=i, requires_grad=requires_grad) for i, s in enumerate(shapes)]
