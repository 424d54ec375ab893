"""Memory that results do without: none of its own, none at all, none that is left.

Bad calls with tensors are rows of the families' tables: test_errors.py in their folders.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native.engines.torch import results  # noqa: E402

device = torch_cases.device


def test_what_has_no_memory_does_not_overlap():
    memory = torch.empty(2, 9, 8, device="meta")
    x, out = memory[:, :5], memory[:, 1:6]
    assert pn.apply_rotary(x, None, pn.sinusoids.frequencies(8), layout="bsd", out=out) is out
    assert not results.overlap(x, out)


@pytest.mark.usefixtures("backend")
def test_out_may_lie_beside_x(device):
    memory, inv_freq = random((2, 3, 5, 16), device=device), pn.sinusoids.frequencies(8)
    x, out = memory[..., :8], memory[..., 8:]
    expected, before = pn.apply_rotary(x.clone(), None, inv_freq), x.clone()
    pn.apply_rotary(x, None, inv_freq, out=out)
    assert torch.equal(out, expected)
    assert torch.equal(x, before)


@torch_cases.needs_operators
@pytest.mark.parametrize(
    "call",
    [
        lambda x, f: pn.apply_rotary(x, None, f),
        lambda x, f: pn.apply_rotary_qk(x, x, None, f),
        lambda x, f: pn.sinusoidal(torch.tensor([1]).expand(2**36), 2**13, dtype=torch.float64),
    ],
    ids=["apply_rotary", "apply_rotary_qk", "sinusoidal"],
)
def test_no_memory_for_the_result_is_an_error_of_its_kind(call):
    """Code that looks for the largest batch expects that, also through the stable ABI."""
    x = torch.zeros(1, 1, 1, 2**13).expand(2**36, 1, 1, 2**13)  # 2 PiB, but for the strides
    with pytest.raises(torch.OutOfMemoryError, match="no memory for the result"):
        call(x, torch.ones(2**12, dtype=torch.float64))
