"""heads=: a module, or a function, of some of the heads is that part of the whole."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

H, S = 6, 5
MODULES = {
    "ALiBi": lambda **o: pnn.ALiBi(H, **o),
    "ALiBi, learned": lambda **o: pnn.ALiBi(H, learned=True, symmetric=False, **o),
    "Kerple": lambda **o: pnn.Kerple(H, **o),
    "Sandwich": lambda **o: pnn.Sandwich(H, **o),
    "T5RelativeBias": lambda **o: pnn.T5RelativeBias(H, **o),
    "ClippedRelativeBias": lambda **o: pnn.ClippedRelativeBias(H, 3, **o),
}
HEADS = [range(1, 4), slice(2, None), slice(0, 2), (2, 3), (0, 1), range(0)]


def seeded(make, **options):
    torch.manual_seed(1)
    return make(**options)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, heads):
    whole, part = seeded(MODULES[name]), seeded(MODULES[name], heads=heads)
    scores = torch.randn(2, H, S, S)
    own = range(*heads.indices(H)) if isinstance(heads, slice) else heads
    if isinstance(heads, tuple):
        share = H // heads[1]
        own = range(heads[0] * share, (heads[0] + 1) * share)
    expected = whole(scores)[:, own.start : own.stop]
    assert torch.equal(part(scores[:, own.start : own.stop]), expected)
    assert part.heads == own or not len(own)
    assert part.num_heads == H
    again = copy.deepcopy(part)
    assert torch.equal(again(scores[:, own.start : own.stop]), expected)
    assert ("heads=" in repr(part)) == (list(own) != list(range(H)))


@pytest.mark.parametrize("name", [name for name in MODULES if seeded(MODULES[name]).state_dict()])
def test_parts_of_all_ranks_are_the_whole(name):
    whole = seeded(MODULES[name])
    parts = [seeded(MODULES[name], heads=(rank, 3)) for rank in range(3)]
    for key, value in whole.state_dict().items():
        axis = whole.head_axes[key]
        joined = torch.cat([part.state_dict()[key] for part in parts], axis)
        assert torch.equal(joined, value)


def test_windows_and_frequencies():
    whole = seeded(lambda: pnn.SwinRelativeBias(H, 3, class_token=True))
    part = seeded(lambda: pnn.SwinRelativeBias(H, 3, class_token=True, heads=(1, 2)))
    assert torch.equal(part.bias(), whole.bias()[3:])
    inv_freq = np.random.default_rng(0).random((H, 8))
    q = torch.randn(1, H, S, 16)
    whole = pnn.LearnedRotaryEmbedding(16, inv_freq=inv_freq)
    part = pnn.LearnedRotaryEmbedding(16, inv_freq=inv_freq, heads=slice(2, 5))
    assert torch.equal(part(q[:, 2:5], q[:, 2:5])[0], whole(q, q)[0][:, 2:5])
    assert "heads=range(2, 5)" in repr(part)


def test_functions():
    np.testing.assert_array_equal(
        pn.relative.alibi_slopes(12, heads=(1, 4)), pn.relative.alibi_slopes(12)[3:6]
    )
    for function in (pn.relative.alibi_diagonals, pn.relative.sandwich_diagonals):
        whole = function(12, 4, 4)
        np.testing.assert_array_equal(function(12, 4, 4, heads=range(5, 9)), whole[5:9])
    slopes = np.linspace(0.1, 0.4, 4)
    np.testing.assert_array_equal(
        pn.relative.alibi_diagonals(12, 4, 4, heads=range(5, 9), slopes=slopes),
        pn.relative.alibi_diagonals(4, 4, 4, slopes=slopes),
    )


@pytest.mark.parametrize(
    ("heads", "error", "words"),
    [
        (range(4, 8), ValueError, r"heads: expected a range .* in 0 .. 6, .* got range\(4, 8\)"),
        (range(0, 6, 2), ValueError, "heads: expected a range"),
        (slice(0, 8), ValueError, "heads: expected a range"),
        ((3, 3), ValueError, r"heads\[0\]: expected a rank below ranks = 3, got 3"),
        ((0, 4), ValueError, "heads: expected ranks that divide 6 heads, got 4"),
        (2, TypeError, "heads: expected a range .*, got int"),
        ((1, 2, 3), TypeError, "heads: expected a range"),
    ],
)
def test_errors(heads, error, words):
    with pytest.raises(error, match=f"alibi_slopes: {words}"):
        pn.relative.alibi_slopes(6, heads=heads)
    with pytest.raises(error, match=f"T5RelativeBias: {words}"):
        pnn.T5RelativeBias(6, heads=heads)
