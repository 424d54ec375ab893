"""What tests of several position axes share."""

from __future__ import annotations

import numpy as np

U = 2.0**-24


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def blocks(x, pairing):
    """The partners (a, b) of the last axis, each [..., P], by the module's rule for blocks."""
    width = x.shape[-1]
    block = {"half": width, "interleaved": 2}.get(pairing, pairing)
    split = x.reshape(*x.shape[:-1], width // block, 2, block // 2)
    return (split[..., i, :].reshape(*x.shape[:-1], width // 2) for i in range(2))


def joined(a, b, pairing):
    width = 2 * a.shape[-1]
    block = {"half": width, "interleaved": 2}.get(pairing, pairing)
    split = [c.reshape(*c.shape[:-1], width // block, block // 2) for c in (a, b)]
    return np.stack(split, -2).reshape(*a.shape[:-1], width)


def assert_rotations_agree(ours, theirs, x, angle, pairing, relative=1.0, absolute=9.0):
    """Within (relative * u * |angle| + absolute * u) * (|a| + |b|); angle broadcasts to pairs."""
    a, b = blocks(np.abs(np.asarray(x, np.float64)), pairing)
    bound = (relative * U * np.abs(angle) + absolute * U) * (a + b)
    excess = np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))
    excess -= joined(bound, bound, pairing)
    assert ours.shape == theirs.shape
    assert (excess <= 0).all(), f"beyond the bound by {excess.max()}"
