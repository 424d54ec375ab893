"""The way of a call on tensors of a GPU, which no machine of continuous integration has.

The CPU stands in for one: no values are looked at, memory is torch's, kernels are those that the
operators' library hands over. `make gpu` runs the same on a GPU (test_cuda.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from many_calls import calls_of_tensors  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native.engines import backend  # noqa: E402
from posenc_native.engines.torch import door  # noqa: E402

pytestmark = [
    torch_cases.needs_operators,
    pytest.mark.skipif(not door.IS_OPEN, reason="this torch does not exchange tensors"),
]
ROPE = pn.Rotary(16, axis_map=[0, 1] * 4)


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """The CPU stands in for a GPU."""
    backend.native.stand_in(True)
    yield
    backend.native.stand_in(False)


# A gradient has an operator of its own, and an index on a GPU is put in order first.
OTHERS = ("backward", "relative_scatter")


@pytest.mark.parametrize("name", [n for n in calls_of_tensors() if not n.startswith(OTHERS)])
def test_every_function_takes_the_fast_path(name: str, elsewhere: None, answers: Any) -> None:
    call = calls_of_tensors()[name]
    answers.clear()
    ours = call()
    assert answers
    assert all(took for _, took in answers), answers
    backend.native.stand_in(False)
    for a, b in zip(ours, call(), strict=True):
        np.testing.assert_array_equal(a, b)


def heads(count: int) -> Any:
    return torch.randn(2, count, 3, 16, generator=torch.Generator().manual_seed(count))


def results(rope: Any, positions: Any, slots: Any) -> list[Any]:
    q, k, v = heads(4), heads(2), heads(1)[:, [0, 0]]
    caches = torch.zeros(2, 2, 2, 8, 16)
    weight = torch.linspace(-1, 1, 16)
    return [
        *pn.apply_rotary_qk(q, k, positions, rope),
        *pn.norm_rotary_qk(q, k, positions, rope, q_weight=weight, inplace=True),
        pn.rotary_append(q, k, v, positions, rope, *caches, slots),
        *caches,
    ]


def test_a_description_has_its_frequencies_there(elsewhere: None, answers: Any) -> None:
    at, slots = torch.tensor([[5, 6, 7], [1, 1, 2]]), torch.arange(3)
    ours = results(ROPE, at, slots)
    assert all(took for _, took in answers), answers
    backend.native.stand_in(False)
    for a, b in zip(ours, results(ROPE, at, slots), strict=True):
        assert torch.equal(a, b)


def test_what_lies_in_the_memory_of_the_host_is_moved_first(elsewhere: None, answers: Any) -> None:
    """Arrays and lists are left to the general path, which makes tensors of them."""
    plain = pn.Rotary(16)
    ours = results(plain.inv_freq, np.arange(3), [0, 1, 2])
    assert not any(took for _, took in answers), answers
    backend.native.stand_in(False)
    for a, b in zip(ours, results(plain, torch.arange(3), torch.arange(3)), strict=True):
        assert torch.equal(a, b)
