"""What torch refuses to overwrite, and memory that has been freed: nothing is read or written.

The same for small calls, operators and the composition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native.engines import backend  # noqa: E402

pytestmark = torch_cases.needs_operators
INV_FREQ = torch.tensor([1.0, 0.1, 0.01, 0.001])
COS, SIN = pn.rotary_tables(torch.arange(3), INV_FREQ)


def of_inference(tensor):
    with torch.inference_mode():
        return tensor.clone()


def assert_refused(write, target, error, match):
    before = target.clone() if target.untyped_storage().nbytes() else None
    for door in (backend.door, backend.ClosedDoor()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backend, "door", door)
            with pytest.raises(error, match=match):
                write(target)
    with torch_cases.composed(), pytest.raises(error, match=match):
        write(target)
    if before is not None:
        assert torch.equal(target, before)


BIAS = torch.ones(2, 10)
INDEX = torch.zeros(10, dtype=torch.int64)
# On a tensor [1, 2, 3, 8].
WRITERS: dict[str, Callable[[Any], Any]] = {
    "apply_rotary, in place": lambda y: pn.apply_rotary(y, None, INV_FREQ, out=y),
    "apply_rotary, out": lambda y: pn.apply_rotary(torch.ones(1, 2, 3, 8), None, INV_FREQ, out=y),
    "apply_rotary_qk, q": lambda y: pn.apply_rotary_qk(
        y, torch.ones(1, 1, 3, 8), None, INV_FREQ, inplace=True
    ),
    "apply_rotary_qk, k": lambda y: pn.apply_rotary_qk(
        torch.ones(1, 1, 3, 8), y, None, INV_FREQ, inplace=True
    ),
    "Rotary": lambda y: pn.Rotary(8)(y, torch.ones(1, 1, 3, 8), inplace=True),
    "apply_rotary_tables": lambda y: pn.apply_rotary_tables(y, COS, SIN, out=y),
    "apply_rotary_qk_tables": lambda y: pn.apply_rotary_qk_tables(
        torch.ones(1, 1, 3, 8), y, COS, SIN, inplace=True
    ),
    "sinusoidal": lambda y: pn.sinusoidal(torch.arange(6).view(1, 2, 3), 8, out=y),
    "add_sinusoidal": lambda y: pn.add_sinusoidal(y, out=y),
    "add_toeplitz_bias": lambda y: pn.add_toeplitz_bias(y, BIAS, out=y),
    "toeplitz_bias": lambda y: pn.toeplitz_bias(BIAS.expand(1, 2, 10), 3, 8, out=y),
}
each_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@each_writer
def test_tensors_of_inference_mode_are_not_overwritten_outside_of_it(write):
    target = of_inference(random((1, 2, 3, 8)))
    with pytest.raises(RuntimeError) as torchs:
        target[:0].zero_()
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            assert_refused(write, target, RuntimeError, "Inplace update to inference tensor")
    with pytest.raises(RuntimeError) as refused:
        write(target)
    assert str(refused.value) == str(torchs.value)
    with torch.inference_mode():
        write(target)


@each_writer
def test_writing_counts_as_one_version_both_ways(write):
    for door in (backend.door, backend.ClosedDoor()):
        target = random((1, 2, 3, 8))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backend, "door", door)
            write(target)
        assert target._version == 1


@each_writer
@pytest.mark.parametrize("bytes_left", [0, 191])
def test_memory_that_was_freed_is_not_written(write, bytes_left):
    target = random((1, 2, 3, 8))
    target.untyped_storage().resize_(bytes_left)
    got = "one that has been freed" if bytes_left == 0 else "191 bytes"
    for door in (backend.door, backend.ClosedDoor()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backend, "door", door)
            with pytest.raises(
                ValueError, match=f"expected a storage of at least 192 .* got {got}"
            ):
                write(target)
    with torch_cases.composed(), pytest.raises(ValueError, match=f"storage .* got {got}"):
        write(target)


def lost(tensor):
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


X = random((1, 2, 3, 8))
POSITIONS = torch.arange(3)
READERS: dict[str, Callable[[], Any]] = {
    "apply_rotary: x": lambda: pn.apply_rotary(lost(X), None, INV_FREQ),
    "apply_rotary: positions": lambda: pn.apply_rotary(X, lost(POSITIONS), INV_FREQ),
    "apply_rotary: inv_freq": lambda: pn.apply_rotary(X, POSITIONS, lost(INV_FREQ)),
    "apply_rotary: axis_map": lambda: pn.apply_rotary(
        X, POSITIONS[None], INV_FREQ, axis_map=lost(torch.zeros(4, dtype=torch.int64))
    ),
    "apply_rotary_qk: q": lambda: pn.apply_rotary_qk(lost(X), X, None, INV_FREQ),
    "apply_rotary_qk: k": lambda: pn.apply_rotary_qk(X, lost(X), None, INV_FREQ),
    "apply_rotary_qk: positions": lambda: pn.apply_rotary_qk(X, X, lost(POSITIONS), INV_FREQ),
    "apply_rotary_tables: cos": lambda: pn.apply_rotary_tables(X, lost(COS), SIN),
    "apply_rotary_qk_tables: sin": lambda: pn.apply_rotary_qk_tables(X, X, COS, lost(SIN)),
    "rotary_tables: positions": lambda: pn.rotary_tables(lost(POSITIONS), INV_FREQ),
    "rotary_tables: inv_freq": lambda: pn.rotary_tables(POSITIONS, lost(INV_FREQ)),
    "sinusoidal: positions": lambda: pn.sinusoidal(lost(POSITIONS), 8),
    "add_sinusoidal: x": lambda: pn.add_sinusoidal(lost(X)),
    "add_sinusoidal: positions": lambda: pn.add_sinusoidal(X, lost(POSITIONS)),
    "toeplitz_bias: diagonals": lambda: pn.toeplitz_bias(lost(BIAS), 3, 8),
    "toeplitz_bias: q_offset": lambda: pn.toeplitz_bias(
        BIAS, 3, 8, origin=2, q_offset=lost(torch.zeros(1, dtype=torch.int64))
    ),
    "add_toeplitz_bias: scores": lambda: pn.add_toeplitz_bias(lost(X), BIAS),
    "add_toeplitz_bias: diagonals": lambda: pn.add_toeplitz_bias(X, lost(BIAS)),
    "diagonal_sums: grad": lambda: pn.diagonal_sums(lost(X)),
    "relative_gather: x": lambda: pn.relative_gather(lost(X), INDEX[:5].clone(), 3),
    "relative_gather: index": lambda: pn.relative_gather(X, lost(INDEX[:5]), 3),
    "relative_scatter: grad": lambda: pn.relative_scatter(lost(X), INDEX, 3),
}


@pytest.mark.parametrize("operand", READERS)
def test_memory_that_was_freed_is_not_read(operand):
    for door in (backend.door, backend.ClosedDoor()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backend, "door", door)
            with pytest.raises(ValueError, match=f"^{operand}: expected a storage of at least"):
                READERS[operand]()
    with torch_cases.composed(), pytest.raises(ValueError, match=f"^{operand}: expected a storage"):
        READERS[operand]()


def test_large_calls_read_no_freed_memory():
    x = torch.ones(1, 4, 1024, 256)
    for write in (False, True):
        with pytest.raises(ValueError, match="x: expected a storage"):
            pn.apply_rotary(y := lost(x), None, torch.ones(128), out=y if write else None)
