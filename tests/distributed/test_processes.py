"""What tests of several processes stand on: a rank that fails makes the test fail."""

from __future__ import annotations

import pytest
from processes import run

torch = pytest.importorskip("torch")


def sum_of_ranks(more: int) -> int:
    total = torch.tensor(torch.distributed.get_rank() + more)
    torch.distributed.all_reduce(total)
    return int(total)


def fail_on_one() -> None:
    assert torch.distributed.get_rank() != 1, "so it is"
    torch.distributed.barrier()


def test_all_ranks_answer() -> None:
    assert run(2, sum_of_ranks, 10) == [21, 21]


def test_one_that_fails_is_seen() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"(?s)rank 1: .*so it is"):
        run(2, fail_on_one)
    assert run(2, sum_of_ranks, 0) == [1, 1]  # others take their places
