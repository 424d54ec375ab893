"""One thread for all tests of tiny models."""

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
