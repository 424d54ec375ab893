"""Builders inside of torch.compile, whatever the default device: the arrays of ordinary calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import posenc_native as pn  # noqa: E402
from posenc_native.engines import late  # noqa: E402

late.torch_operations()  # as where torch is imported first; not while it traces

CALLS: dict[str, Callable[[], Any]] = {
    "mrope_axis_map": lambda: pn.rotary.mrope_axis_map([2, 3, 3]),
    "mrope_axis_map, interleaved": lambda: pn.rotary.mrope_axis_map([4, 2, 2], order="interleaved"),
    "mrope_axis_map, spatial": lambda: pn.rotary.mrope_axis_map([3, 3, 2], order="spatial_first"),
    "mrope_axis_map, in turns": lambda: pn.rotary.mrope_axis_map([3, 3, 2], order="round_robin"),
    "ContextParallel.positions": lambda: pn.positions.ContextParallel(0, 2).positions(8),
    "ContextParallel.positions, striped": lambda: pn.positions.ContextParallel(
        rank=1, ranks=2, order="striped"
    ).positions(8),
    "grid_positions": lambda: pn.positions.grid_positions([2, 4], merge_size=2),
    "packed_grid_positions": lambda: pn.positions.packed_grid_positions([[1, 2, 2], [1, 1, 3]], 7),
    "image_coordinates": lambda: pn.positions.image_coordinates([1, 4], grid="corners"),
    "add_unrotated_tokens": lambda: pn.positions.add_unrotated_tokens([[3, 4], [5, 6]], before=1),
    "augment_coordinates": lambda: pn.positions.augment_coordinates([[0.5, 1.0]], training=False),
    "packed_positions": lambda: pn.positions.packed_positions([0, 3, 5], 6),
    "packed_segments": lambda: pn.positions.packed_segments([0, 3, 5], 6),
    "padded_positions": lambda: pn.positions.padded_positions([[0, 0, 1, 1], [1, 1, 1, 0]]),
    "vision_language_positions": lambda: pn.positions.vision_language_positions(
        [[0, 1, 1, 1, 1, 1, 1, 0]], [[1, 4, 6]]
    ),
    "frequencies": lambda: pn.sinusoids.frequencies(8),
    "wavelengths": lambda: pn.sinusoids.wavelengths(8),
    "rotary_frequencies": lambda: pn.rotary.rotary_frequencies(
        8, scaling={"rope_type": "linear", "factor": 2.0}
    ),
    "relative_positions": lambda: pn.relative.relative_positions(2, 3, q_offset=1),
    "alibi_slopes": lambda: pn.relative.alibi_slopes(6),
    "alibi_diagonals": lambda: pn.relative.alibi_diagonals(2, 2, 3, q_offset=1),
    "alibi_columns": lambda: pn.relative.alibi_columns(1, 4, key_mask=[[0, 1, 1, 1]]),
}
OF_TENSORS: dict[str, Callable[[], Any]] = {
    "ContextParallel.positions": lambda: pn.positions.ContextParallel(0, 2).positions(
        8, device="cpu"
    ),
    "grid_positions": lambda: pn.positions.grid_positions([2, 3], device="cpu"),
    "image_coordinates": lambda: pn.positions.image_coordinates(
        [2, 3], dtype=torch.float64, device="cpu"
    ),
    "packed_positions": lambda: pn.positions.packed_positions(
        torch.tensor([0, 3, 5], device="cpu"), 6
    ),
    "padded_positions": lambda: pn.positions.padded_positions(
        torch.tensor([[0, 1, 1]], device="cpu")
    ),
    "alibi_diagonals": lambda: pn.relative.alibi_diagonals(2, 2, 3, q_offset=1, device="cpu"),
}


@pytest.fixture(params=[None, "cpu", "meta"])
def default_device(request: pytest.FixtureRequest) -> Iterator[str | None]:
    torch.set_default_device(request.param)
    yield request.param
    torch.set_default_device(None)


def parts(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def compiled(call: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    torch.compiler.reset()
    return parts(torch.compile(call, fullgraph=True, backend="eager")(*arguments))


def test_arrays(default_device: str | None) -> None:
    expected = {name: parts(call()) for name, call in CALLS.items()}
    torch.compiler.reset()
    follow = torch.compile(
        lambda: [parts(call()) for call in CALLS.values()], fullgraph=True, backend="eager"
    )
    for (name, theirs), ours in zip(expected.items(), follow(), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert type(a) is type(b), name
            assert np.asarray(a).dtype == np.asarray(b).dtype, name
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_tensors(default_device: str | None) -> None:
    torch.compiler.reset()
    follow = torch.compile(
        lambda: [call() for call in OF_TENSORS.values()], fullgraph=True, backend="eager"
    )
    for (name, call), ours in zip(OF_TENSORS.items(), follow(), strict=True):
        assert torch.equal(ours, call()), name


def test_as_a_part_of_a_graph() -> None:
    x = torch.randn(2, 6)

    def shifted(x: Any) -> Any:
        return x + torch.as_tensor(pn.positions.packed_positions([0, 2, x.shape[1]], x.shape[1]))

    (ours,) = compiled(shifted, x)
    assert torch.equal(ours, shifted(x))


def test_errors_are_those_of_an_ordinary_call() -> None:
    def build(x: Any) -> Any:
        return x + torch.as_tensor(pn.positions.ContextParallel(0, 2).positions(7))

    with pytest.raises(
        Exception, match='length: expected a multiple of 4 for order="zigzag", got 7'
    ):
        compiled(build, torch.zeros(7))
