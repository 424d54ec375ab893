"""What a user of the types relies on, checked by mypy and pyright: test_typing.py.

Nothing here runs. NumPy in, NumPy out, with the dtype; tensors in, tensors out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import assert_type

import posenc_native as pn
from posenc_native import hf
from posenc_native import nn as pnn

Floats = npt.NDArray[np.float32]
Any_ = npt.NDArray[Any]


class Foreign:
    """As pandas and xarray have it."""

    def __array__(self) -> Any_:
        return np.zeros(3)


def arrays(x: Floats, k: npt.NDArray[np.float16], ints: npt.NDArray[np.int64]) -> None:
    assert_type(pn.sinusoidal(4096, 512), Any_)
    assert_type(pn.sinusoidal(ints, 8, layout="sin_cos", dtype=np.float64), Any_)
    assert_type(pn.sinusoidal([0, 5], 8, dtype="float16"), Any_)
    assert_type(pn.add_sinusoidal(x, out=x), Floats)
    assert_type(pn.SinusoidalSpec(dim=8)(3), Any_)
    assert_type(pn.frequencies(8), npt.NDArray[np.float64])
    inv_freq, factor = pn.rotary_frequencies(8, 10000.0, {"rope_type": "linear", "factor": 2.0})
    assert_type(factor, float)
    assert_type(pn.rotary_tables(3, inv_freq), tuple[Any_, Any_])
    assert_type(pn.apply_rotary(x, None, inv_freq), Floats)
    assert_type(pn.apply_rotary(x, [1, 2], inv_freq, layout="sd", pairing=4, out=x), Floats)
    assert_type(
        pn.apply_rotary_qk(k, k, ints, inv_freq, inplace=True),
        tuple[npt.NDArray[np.float16], npt.NDArray[np.float16]],
    )
    rope = pn.Rotary(64, base=500000.0)
    q, rotated_k = rope(x, x, ints)
    assert_type(q, Floats)
    assert_type(rotated_k, Floats)
    assert_type(rope.apply(k), npt.NDArray[np.float16])
    assert_type(rope.tables(5), tuple[Any_, Any_])
    assert_type(rope.inv_freq, npt.NDArray[np.float64])
    assert_type(pn.rerotate(x, ints, None, rope), Floats)
    assert_type(pn.apply_xpos(x, x, None, inv_freq), tuple[Floats, Floats])
    assert_type(pn.alibi_diagonals(8, 3, 4), Any_)
    assert_type(pn.toeplitz_bias(x, 3, 4), Any_)
    assert_type(pn.add_toeplitz_bias(x, pn.alibi_diagonals(8, 3, 4), out=x), Floats)
    assert_type(pn.relative_position_bucket(ints), npt.NDArray[np.int64])
    assert_type(pn.relative_gather(x, [0, 1, 2, 2], 3), Floats)
    assert_type(pn.linear_positions(3, 2), Any_)
    assert_type(pn.combine(x, x), Floats)
    assert_type(pn.learned_positions(x, 3), Floats)
    assert_type(pn.grid_positions([2, 3]), npt.NDArray[np.int64])
    assert_type(pn.permute_qk(k, 8, to="half"), npt.NDArray[np.float16])


def arrays_of_others(x: Foreign) -> None:
    assert_type(pn.apply_rotary(x, None, [1.0]), Any_)
    assert_type(pn.sinusoidal(x, 8), Any_)
    assert_type(pn.add_sinusoidal(x), Any_)


def tensors(x: torch.Tensor, parameter: torch.nn.Parameter) -> None:
    assert_type(pn.sinusoidal(4096, 512, dtype=torch.float16), torch.Tensor)
    assert_type(pn.sinusoidal(4096, 512, device="cpu"), torch.Tensor)
    assert_type(pn.sinusoidal(x, 512), torch.Tensor)
    assert_type(pn.add_sinusoidal(parameter, out=x), torch.Tensor)
    assert_type(pn.SinusoidalSpec(dim=8)(x), torch.Tensor)
    assert_type(pn.apply_rotary(x, None, x), torch.Tensor)
    assert_type(pn.apply_rotary_qk(x, x, x, x, inplace=True), tuple[torch.Tensor, torch.Tensor])
    assert_type(pn.rotary_tables(x, x), tuple[torch.Tensor, torch.Tensor])
    assert_type(pn.Rotary(8)(x, x), tuple[torch.Tensor, torch.Tensor])
    assert_type(pn.Rotary(8).apply(x), torch.Tensor)
    assert_type(pn.alibi_diagonals(8, 3, 4, device="cpu"), torch.Tensor)
    assert_type(pn.toeplitz_bias(x, 3, 4), torch.Tensor)
    assert_type(pn.add_toeplitz_bias(x, pn.alibi_diagonals(8, 3, 4)), torch.Tensor)
    assert_type(pn.relative_position_bucket(x), torch.Tensor)
    assert_type(pn.combine(x, x), torch.Tensor)
    assert_type(pn.permute_qk(x, 8, to="half"), torch.Tensor)


def modules(x: torch.Tensor, model: torch.nn.Module) -> None:
    rope = pnn.RotaryEmbedding(64, base=500000.0)
    assert_type(rope.rope, pn.Rotary)
    assert_type(rope.forward(x, x, layout="bshd"), tuple[torch.Tensor, torch.Tensor])
    assert_type(pnn.SinusoidalPositionalEncoding(8).forward(x), torch.Tensor)
    assert_type(pnn.T5RelativeBias(8).bias(3, 4), torch.Tensor)
    handle = hf.patch(model)
    assert_type(handle, hf.Patch)
    assert_type(handle.patched, tuple[str, ...])
    handle.undo()


def mistakes(x: Floats, tensor: torch.Tensor) -> None:
    pn.Rotary("64")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pn.SinusoidalSpec(8, bsae=2.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    print(pn.rotray)  # type: ignore[attr-defined]  # pyright: ignore
    pn.apply_rotary([1.0], None, x)  # type: ignore[call-overload]  # pyright: ignore
    pn.apply_rotary(x, None, x, out=tensor)  # type: ignore[call-overload]  # pyright: ignore
    pn.sinusoidal(3, 8, dtype=torch.half, out=x)  # type: ignore[call-overload]  # pyright: ignore
