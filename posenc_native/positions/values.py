"""Values of positions, where they can be looked at without a wait, and how messages show them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.engines.arrays import Arrays


def seen_values(arrays: Arrays, values: Any) -> npt.NDArray[Any] | None:
    """The values as an array where they can be looked at without a wait, else None."""
    if not arrays.is_torch:
        return np.asarray(values)
    if not arrays.readable or type(values) is not arrays.xp.Tensor:
        return None
    return values.numpy()  # type: ignore[no-any-return]


def shown_values(values: npt.NDArray[Any]) -> str:
    """Values as a message shows them; of many the first ones."""
    shown = values[:8].tolist()
    return f"{shown}" if len(values) <= 8 else f"{shown}, the first of {len(values)}"
