"""Relative modules that tests share."""

from __future__ import annotations

import pytest
import torch
from torch_cases import random


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def randomized(module):
    """With no parameter left at 0 or 1."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(random(parameter.shape, seed=100 + i).abs() / 2)
    return module


def close(actual, expected, **options):
    torch.testing.assert_close(actual, expected, **options)
