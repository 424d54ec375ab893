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
from posenc_native.hf.patching import Patch
from posenc_native.nn import DecomposedRelativePosition

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
    assert_type(pn.SinusoidalSpec(dim=8)(sizes=(3,)), Any_)
    assert_type(pn.sinusoids.frequencies(8), npt.NDArray[np.float64])
    inv_freq, factor = pn.rotary.rotary_frequencies(
        8, 10000.0, {"rope_type": "linear", "factor": 2.0}
    )
    assert_type(factor, float)
    assert_type(pn.rotary_tables(3, inv_freq), tuple[Any_, Any_])
    assert_type(pn.apply_rotary(x, None, inv_freq), Floats)
    assert_type(pn.apply_rotary(x, [1, 2], inv_freq, layout="sd", pairing=4, out=x), Floats)
    assert_type(
        pn.apply_rotary_qk(k, k, ints, inv_freq, inplace=True),
        tuple[npt.NDArray[np.float16], npt.NDArray[np.float16]],
    )
    pairs = pn.apply_rotary_qk(x, x, (ints, None), inv_freq, rotary_start=(0, 4), out=(x, x))
    assert_type(pairs, tuple[Floats, Floats])
    assert_type(pn.apply_rotary_qk(None, x, None, inv_freq), tuple[None, Floats])
    tables = pn.rotary_tables(3, inv_freq)
    assert_type(
        pn.apply_rotary_qk(x, None, None, pn.Tables(*tables, rows=ints)), tuple[Floats, None]
    )
    rope = pn.Rotary(64, base=500000.0)
    q, rotated_k = rope(x, x, ints)
    assert_type(q, Floats)
    assert_type(rotated_k, Floats)
    assert_type(rope.apply(k), npt.NDArray[np.float16])
    assert_type(rope.tables(5), tuple[Any_, Any_])
    assert_type(rope.inv_freq, npt.NDArray[np.float64])
    assert_type(pn.rerotate(x, ints, None, rope), Floats)
    assert_type(pn.relative.alibi_diagonals(8, 3, 3), Any_)
    assert_type(pn.toeplitz_bias(x, 3, 4), Any_)
    assert_type(pn.add_toeplitz_bias(x, pn.relative.alibi_diagonals(8, 3, 3), out=x), Floats)
    assert_type(pn.relative.relative_position_bucket(ints), npt.NDArray[np.int64])
    assert_type(pn.relative_gather(x, [0, 1, 2, 2], 3), Floats)
    assert_type(pn.absolute.linear_positions(3, 2), Any_)
    assert_type(pn.absolute.combine(x, x), Floats)
    assert_type(pn.absolute.learned_positions(x, 3), Floats)
    assert_type(pn.positions.grid_positions([2, 3]), npt.NDArray[np.int64])
    assert_type(pn.checkpoints.permute_qk(k, 8, to="half"), npt.NDArray[np.float16])
    assert_type(pn.apply_rotary(x=x, positions=[1, 2], inv_freq=inv_freq, inverse=True), Floats)
    assert_type(
        pn.apply_rotary_qk(q=x, k=x, positions=None, inv_freq=inv_freq, axis_map=ints),
        tuple[Floats, Floats],
    )
    assert_type(
        pn.apply_rotary(k, None, pn.Tables(x, x, compute="as_written")), npt.NDArray[np.float16]
    )
    assert_type(
        pn.apply_rotary_qk(x, x, None, pn.Tables(x, x), inplace=True), tuple[Floats, Floats]
    )
    assert_type(rope.apply(x=x, positions=[1], layout="sd", out=x), Floats)
    assert_type(pn.rotary.xpos_tables(5, inv_freq, gamma=0.3), pn.Tables)
    assert_type(
        pn.SinusoidalSpec(8, axis_order=(0, 1), axis_place="inner")((3, 4), dtype="float64"), Any_
    )
    assert_type(pn.sinusoids.GridCoordinates().of_shape((3, 4)), tuple[Any_, ...])
    assert_type(pn.sinusoids.GridCoordinates().of_mask(ints > 0, 2), tuple[Any_, ...])
    assert_type(pn.relative.kerple_diagonals([1.0], [2.0], 3, 3, kind="power"), Any_)
    assert_type(pn.relative.sandwich_diagonals(2, 3, 3, dim=64), Any_)
    assert_type(pn.relative.fire_bias(3, 3, widened), Floats)
    assert_type(pn.relative.alibi_columns(8, 4, key_mask=ints > 0), Any_)
    assert_type(pn.positions.packed_positions([0, 3, 5], 6, start=ints), npt.NDArray[np.int64])
    assert_type(pn.positions.packed_segments(ints, 6), npt.NDArray[np.int64])
    assert_type(pn.positions.augment_coordinates(x, shift=0.5, training=False), Any_)
    assert_type(pn.relative_gather([[1.0, 2.0]], None, 3), Any_)
    assert_type(pn.positions.image_coordinates([2, 3], grid="corners"), Any_)


def widened(x: Any) -> Floats:
    return np.asarray(x, np.float32).repeat(8, -1)


def arrays_of_others(x: Foreign) -> None:
    assert_type(pn.apply_rotary(x, None, [1.0]), Any_)
    assert_type(pn.sinusoidal(x, 8), Any_)
    assert_type(pn.add_sinusoidal(x), Any_)
    assert_type(pn.apply_rotary_qk(x, x, x, x), tuple[Any_, Any_])
    assert_type(pn.sinusoidal(x, 8, device="cpu"), torch.Tensor)
    assert_type(pn.relative.relative_position_bucket(x), npt.NDArray[np.int64])
    assert_type(pn.positions.padded_positions(x), Any)


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
    assert_type(pn.relative.alibi_diagonals(8, 3, 3, device="cpu"), torch.Tensor)
    assert_type(pn.toeplitz_bias(x, 3, 4), torch.Tensor)
    assert_type(pn.add_toeplitz_bias(x, pn.relative.alibi_diagonals(8, 3, 3)), torch.Tensor)
    assert_type(pn.relative.relative_position_bucket(x), torch.Tensor)
    assert_type(pn.absolute.combine(x, x), torch.Tensor)
    assert_type(pn.relative.decomposed_scores(x, (x, x), (2, 2)), torch.Tensor)
    assert_type(pn.checkpoints.permute_qk(x, 8, to="half"), torch.Tensor)
    assert_type(pn.apply_rotary(parameter, x, x, layout="sd", out=x), torch.Tensor)
    assert_type(
        pn.apply_rotary_qk(q=x, k=x, positions=None, inv_freq=pn.Tables(cos=x, sin=x)),
        tuple[torch.Tensor, torch.Tensor],
    )
    assert_type(pn.rotary_tables([1.0], x), tuple[torch.Tensor, torch.Tensor])
    assert_type(pn.rotary_tables(3, [1.0], dtype=torch.half), tuple[torch.Tensor, torch.Tensor])
    assert_type(pn.Rotary(8).tables(5, dtype=torch.half), tuple[torch.Tensor, torch.Tensor])
    assert_type(pn.absolute.linear_positions(4, 2, device="cpu"), torch.Tensor)
    assert_type(pn.relative.alibi_diagonals(8, 3, 3, slopes=x), torch.Tensor)
    assert_type(pn.relative.alibi_diagonals(8, 3, 3, q_offset=x, symmetric=False), torch.Tensor)
    assert_type(pn.relative.alibi_diagonals(8, 3, 3, dtype=torch.half), torch.Tensor)
    assert_type(pn.positions.image_coordinates([2, 3], dtype=torch.float32), torch.Tensor)
    assert_type(pn.positions.packed_segments(x, 6), torch.Tensor)
    assert_type(pn.sinusoids.GridCoordinates().of_mask(x, 2), tuple[torch.Tensor, ...])
    # Which they are depends on all arguments.
    assert_type(pn.relative.kerple_diagonals(parameter, x, 3, 3), Any)
    assert_type(pn.SinusoidalSpec(8, axis_order=(0, 1))((x, x)), torch.Tensor)


def modules(x: torch.Tensor, model: torch.nn.Module) -> None:
    rope = pnn.RotaryEmbedding(64, base=500000.0)
    assert_type(rope.rope, pn.Rotary)
    assert_type(pnn.Kerple(8).r1, torch.nn.Parameter)
    assert_type(pnn.ALiBi(8).slopes, torch.nn.Parameter | None)
    assert_type(pnn.T5RelativeBias(8).max_distance, int)
    assert_type(rope.forward(x, x, layout="bshd"), tuple[torch.Tensor, torch.Tensor])
    assert_type(pnn.SinusoidalPositionalEncoding(8)(x), torch.Tensor)
    assert_type(pnn.NormalizedPositionalEncoding(8)(x, length=3), torch.Tensor)
    assert_type(pnn.SinusoidalEmbedding(8)(sizes=(2,)), torch.Tensor)
    assert_type(pnn.TimestepEmbedding(8)(x), torch.Tensor)
    assert_type(pnn.ALiBi(8, causal=True)(x, q_offset=2), torch.Tensor)
    assert_type(pnn.FIRE(8)(x), torch.Tensor)
    assert_type(pnn.SwinRelativeBias(8, 7)(x, inplace=True), torch.Tensor)
    assert_type(pnn.ShawRelativePosition(8, 7)(x, x), torch.Tensor)
    assert_type(DecomposedRelativePosition(8, 7)(x, x), torch.Tensor)
    assert_type(pnn.T5RelativeBias(8).bias(3, 4), torch.Tensor)
    handle = hf.patch(model)
    assert_type(handle, Patch)
    assert_type(handle.patched, tuple[str, ...])
    handle.undo()


def mistakes(x: Floats, tensor: torch.Tensor) -> None:
    pn.Rotary("64")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pn.SinusoidalSpec(8, bsae=2.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    print(pn.rotray)  # type: ignore[attr-defined]  # pyright: ignore
    print(pnn.ALiBy, hf.Patch)  # type: ignore[attr-defined]  # pyright: ignore
    pn.apply_rotary([1.0], None, x)  # type: ignore[call-overload]  # pyright: ignore
    pn.apply_rotary(x, None, x, out=tensor)  # type: ignore[call-overload]  # pyright: ignore
    pn.apply_rotary(x, None, x, paring="half")  # type: ignore[call-overload]  # pyright: ignore
    pn.Tables(x, x, compute="float64")  # type: ignore[arg-type]  # pyright: ignore
    pn.Rotary(64)(x, x, layout=3)  # type: ignore[call-overload]  # pyright: ignore
    pn.sinusoidal(3, 8, dtype=torch.half, out=x)  # type: ignore[call-overload]  # pyright: ignore
