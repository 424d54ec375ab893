"""contiguous=True: results in C order, whatever the strides of what is rotated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import posenc_native as pn
from posenc_native.core.calls.errors import fault_of

ROPE = pn.Rotary(8)
X = np.random.default_rng(0).standard_normal((2, 5, 3, 8)).astype(np.float32)


def inv_freq_for(x: Any) -> Any:
    """The frequencies as x is; torch.compile cannot follow an array of NumPy."""
    return ROPE.inv_freq if isinstance(x, np.ndarray) else ROPE._torch(x.device)[0]


CALLS = {
    "apply_rotary": lambda x, **o: (pn.apply_rotary(x, None, inv_freq_for(x), **o),),
    "apply_rotary_qk": lambda x, **o: pn.apply_rotary_qk(x, x[:, :2], None, inv_freq_for(x), **o),
    "Rotary": lambda x, **o: ROPE(x, x[:, :2], **o),
    "Rotary.apply": lambda x, **o: (ROPE.apply(x, **o),),
}


@pytest.mark.parametrize("name", CALLS)
def test_arrays(name: str, backend: str) -> None:
    x = X.transpose(0, 2, 1, 3)  # bshd, seen as bhsd
    for ours, plain in zip(CALLS[name](x, contiguous=True), CALLS[name](x), strict=True):
        assert ours.flags.c_contiguous
        assert plain.flags.c_contiguous == (backend == "reference")
        np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize(
    "kind", ["plain", "gradient", "vmap", "meta", pytest.param("compiled", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", [*CALLS, "RotaryEmbedding", "XPos"])
def test_tensors(name: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    from posenc_native import nn as pnn

    modules = {"RotaryEmbedding": pnn.RotaryEmbedding(8), "XPos": pnn.XPos(8)}
    call: Any = CALLS.get(name, lambda x, **o: modules[name](x, x[:, :2], **o))
    x = torch.tensor(X, device="meta" if kind == "meta" else "cpu").transpose(1, 2)
    follow = call
    if kind == "gradient":
        x.requires_grad_()
    if kind == "vmap":
        x = torch.stack([x, x + 1])
        call = torch.func.vmap(call)
        follow = call
    if kind == "compiled":
        torch.compiler.reset()
        follow = torch.compile(call, fullgraph=True, backend="eager")
    for ours, plain in zip(follow(x, contiguous=True), call(x), strict=True):
        assert ours.view(-1).shape == (ours.numel(),)
        if kind == "plain":
            assert not plain.is_contiguous()
        if kind != "meta":
            torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: pn.apply_rotary(x, None, ROPE.inv_freq, contiguous=True, out=x),
        lambda x: pn.apply_rotary_qk(x, x * 1, None, ROPE.inv_freq, contiguous=True, inplace=True),
        lambda x: ROPE(x, x * 1, contiguous=True, inplace=True),
        lambda x: ROPE.apply(x, contiguous=True, out=x),
    ],
)
def test_not_where_the_result_has_a_place(call: Any) -> None:
    x = X.copy()
    with pytest.raises(ValueError, match="contiguous") as raised:
        call(x)
    fault = fault_of(raised.value)
    assert fault is not None
    assert fault.argument == "contiguous"
    np.testing.assert_array_equal(x, X)
