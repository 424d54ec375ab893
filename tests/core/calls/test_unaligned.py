"""Operands whose memory begins between two elements: kernels refuse them, the reference reads them.

Results are written past the cache whatever their size: that is where whole lines are counted from
the first element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from bad_calls import FREQ, unaligned, x
from operations import OPERATIONS
from targets import NATIVE, written_past_the_cache

import posenc_native as pn


@pytest.fixture(autouse=True)
def any_size_is_written_past_the_cache() -> Iterator[None]:
    if NATIVE is None:
        yield
        return
    with written_past_the_cache(1):
        yield


@pytest.mark.parametrize("name", OPERATIONS)
def test_unaligned_arrays(backend, name, subtests):
    operation = OPERATIONS[name]
    expected = operation.call(**operation.arrays())
    for operand in operation.operands:
        arrays = operation.arrays()
        arrays[operand] = unaligned(arrays[operand])
        with subtests.test(operand):
            if backend == "reference":
                np.testing.assert_equal(operation.call(**arrays), expected)
                continue
            before = {of: array.tobytes() for of, array in arrays.items()}
            with pytest.raises(ValueError, match=f"{operation.function}: {operand}: .* unaligned"):
                operation.call(**arrays)
            assert {of: array.tobytes() for of, array in arrays.items()} == before


def test_elements_of_records(backend):
    """Aligned to the byte, but not in whole elements from one to the next."""
    records = np.ones((2, 3, 5, 8), [("x", "f4"), ("tag", "u1")])["x"]
    if backend == "native":
        with pytest.raises(ValueError, match=r"apply_rotary: x: .* unaligned"):
            pn.apply_rotary(records, None, FREQ)
        return
    np.testing.assert_array_equal(
        pn.apply_rotary(records, None, FREQ), pn.apply_rotary(x(), None, FREQ)
    )


def unaligned_tensor(torch: Any, array: np.ndarray) -> Any:
    """As torch.frombuffer gives it at an odd offset of a file that was read."""
    memory = bytearray(array.nbytes + 1)
    dtype = torch.from_numpy(array).dtype
    tensor = torch.frombuffer(memory, dtype=dtype, count=array.size, offset=1)
    return tensor.view(array.shape).copy_(torch.from_numpy(array))


@pytest.mark.parametrize("name", OPERATIONS)
def test_unaligned_tensors(native, name, subtests):
    torch = pytest.importorskip("torch")
    from torch_cases import why_no_kernels

    if why_no_kernels("cpu"):
        pytest.skip(why_no_kernels("cpu"))
    operation = OPERATIONS[name]
    for operand in operation.operands:
        arrays = operation.arrays()
        tensors = {of: torch.from_numpy(array) for of, array in arrays.items()}
        tensors[operand] = unaligned_tensor(torch, arrays[operand])
        before = {of: tensor.clone() for of, tensor in tensors.items()}
        with subtests.test(operand):
            with pytest.raises(ValueError, match=f"{operation.function}: {operand}: .* unaligned"):
                operation.call(**tensors)
            for of, tensor in tensors.items():
                assert torch.equal(tensor, before[of])
