"""What torch refuses to overwrite, and memory that has been freed: nothing is read or written.

The same for small calls, operators and the composition.
"""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from gradient_cases import WRITERS, each_of  # noqa: E402
from operations import OPERATIONS  # noqa: E402
from rotating import computing  # noqa: E402
from torch_cases import random  # noqa: E402

import posenc_native as pn  # noqa: E402

pytestmark = torch_cases.needs_operators
ENGINES = ("small", "operators", "plain")


@each_of(WRITERS)
def test_tensors_of_inference_mode_are_not_overwritten_outside_of_it(write):
    with torch.inference_mode():
        target = random((2, 3, 5, 8)).clone()
    before = target.clone()
    with pytest.raises(RuntimeError) as torchs:
        target[:0].zero_()
    for engine in ENGINES:
        for mode in (torch.enable_grad, torch.no_grad):
            with computing(engine), mode(), pytest.raises(RuntimeError) as refused:
                write(target)
            assert "Inplace update to inference tensor" in str(refused.value)
            assert engine == "plain" or str(refused.value) == str(torchs.value)
    assert torch.equal(target, before)
    with torch.inference_mode():
        write(target)


@pytest.mark.parametrize("left", ["nothing", "all but a byte"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_memory_that_was_freed_is_neither_read_nor_written(name, left, subtests):
    operation = OPERATIONS[name]
    for operand, engine in itertools.product(operation.operands, ENGINES):
        tensors = {of: torch.tensor(array) for of, array in operation.arrays().items()}
        storage = tensors[operand].untyped_storage()
        needed = storage.nbytes()
        storage.resize_(0 if left == "nothing" else needed - 1)
        got = "one that has been freed" if left == "nothing" else f"{needed - 1} bytes"
        words = f"^{operation.function}: {operand}: expected a storage of at least {needed} .*{got}"
        with (
            subtests.test(f"{operand}, {engine}"),
            computing(engine),
            pytest.raises(ValueError, match=words),
        ):
            operation.call(**tensors)


def test_nothing_else_reads_freed_memory(backend):
    """Compositions, parameters that become arrays of NumPy, weights."""
    numbers, phases = torch.ones(32, 8), torch.ones(3, 8, dtype=torch.int64)
    inv_freq = torch.ones(4, dtype=torch.float64)
    for tensor in (numbers, phases, inv_freq):
        tensor.untyped_storage().resize_(0)
    calls = {
        "phases": lambda: pn.selective.phase_tables(phases),
        "table": lambda: pn.relative.t5_diagonals(numbers, 9, 9, bidirectional=True),
        "inv_freq": lambda: pn.Rotary(8, inv_freq=inv_freq),
        "weight": lambda: pn.checkpoints.permute_qk(numbers, 8, to="half"),
        "q_weight": lambda: pn.checkpoints.guess_pairing([(numbers, numbers)], 8),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f": {name}: expected a storage of at least"):
            call()


def test_large_calls_read_no_freed_memory():
    for write in (False, True):
        x = torch.ones(1, 4, 1024, 256)
        x.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="x: expected a storage"):
            pn.apply_rotary(x, None, torch.ones(128), out=x if write else None)
