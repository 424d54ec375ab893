"""Tables of cosines and sines that the layers of a step share."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, dtype

from posenc_native.core.calls.tables import Tables
from posenc_native.encodings.rotary.rotary import Rotary

__all__ = ["shared_tables"]

# Tokens. Below, a call with frequencies is no slower than with tables (benchmarks: packed).
_SHARED_FROM = 128


def shared_tables(rotary: Rotary, positions: Tensor, numbers: dtype) -> Tables | None:
    """Tables for positions that an earlier layer of this step has had; None otherwise.

    vLLM makes a context for each run of a model and drops it after the run. The tables are kept
    there, so that no step reads those of another. The second layer makes them: a draft model of a
    single layer makes none. A GPU computes angles while it waits for its memory, and shares none.

    Args:
        numbers: the dtype of the tables.
    """
    if positions.shape[-1] < _SHARED_FROM or not positions.is_cpu:
        return None
    contexts = importlib.import_module("vllm.forward_context")
    if not contexts.is_forward_context_available():
        return None
    step: dict[Any, Any] = vars(contexts.get_forward_context()).setdefault(__name__, {})
    key = id(rotary), id(positions), numbers
    if key not in step:
        # Both stay alive as long as their ids are keys.
        step[key] = rotary, positions, None
        return None
    tables: Tables | None = step[key][-1]
    if tables is None:
        tables = Tables(*rotary.tables(positions, dtype=numbers))
        step[key] = rotary, positions, tables
    return tables
