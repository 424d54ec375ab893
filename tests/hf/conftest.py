"""What all tests of tiny models share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """These models are too small to share."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _in_place_however_small() -> Any:
    """As for long prompts, whose heads are rotated in place if nobody else sees them."""
    pytest.importorskip("torch")
    from posenc_native.hf import holders

    before, holders.SMALLEST = holders.SMALLEST, 0
    yield
    holders.SMALLEST = before
