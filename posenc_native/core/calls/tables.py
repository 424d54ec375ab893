"""Precomputed cosines and sines as a value, which stands where a rotation takes frequencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch


class Tables(NamedTuple):
    """Where the angles of a rotation come from, if not from positions: cosines and sines.

    ``apply_rotary(x, None, Tables(cos, sin))``; so too for q and k, with a norm, and into a cache.
    Positions, axis_map and scale of the call then stay None: the tables include them.

    Args:
        cos, sin: ``[s, P]``, ``[b, s, P]`` or ``[1, s, P]`` (``[t, P]`` for packed tokens), one
            value per pair, of any of the four float dtypes. For different tables per head,
            ``[b, h, s, P]`` or ``[1, h, s, P]`` (``[h, s, P]`` if the layout has no b). With
            `rows`, ``[n, P]``; with `axis_map`, an axis ``[A, ...]`` before the others. Or tuples
            ``(cos_q, cos_k)`` and ``(sin_q, sin_k)``: q and k may then differ in length and batch.
        rows: ``[s]``, ``[b, s]`` or ``[1, s]`` integers, the row of `cos` and `sin` for each token;
            nothing is copied. Or a tuple ``(q_rows, k_rows)``. On CUDA rows are not checked: a row
            outside the tables is replaced by the nearest.
        axis_map: ``[P]`` ints, which of the A tables drives each pair.
        compute: "float32": everything in float32 (float64 for a float64 x), rounded once.
            "as_written": cos and sin, each product and the sum are rounded to x's dtype, as in
            ``x * cos + rotate_half(x) * sin`` on tensors of that dtype. This matches, bit for bit,
            the forward and backward passes of Llama and similar models in transformers in eager
            mode.

    A call checks them against x. Gradients reach cos and sin if they require them.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(4)
        >>> tables = pn.Tables(*rope.tables(3))  # once for all layers
        >>> x = np.ones((3, 4), np.float32)
        >>> same = pn.apply_rotary(x, None, rope, layout="sd")
        >>> bool((pn.apply_rotary(x, None, tables, layout="sd") == same).all())
        True
    """

    # The native module knows this order (csrc/bindings/numpy/door.h).
    cos: npt.ArrayLike | torch.Tensor | tuple[Any, Any]
    sin: npt.ArrayLike | torch.Tensor | tuple[Any, Any]
    rows: npt.ArrayLike | torch.Tensor | tuple[Any, Any] | None = None
    axis_map: npt.ArrayLike | torch.Tensor | None = None
    compute: Literal["float32", "as_written"] = "float32"

    def __repr__(self) -> str:
        options = {"rows": self.rows, "axis_map": self.axis_map}
        shown = [_shown(self.cos), _shown(self.sin)]
        shown += [f"{name}={_shown(value)}" for name, value in options.items() if value is not None]
        if self.compute != "float32":
            shown.append(f"compute={self.compute!r}")
        return f"Tables({', '.join(shown)})"

    def of_one(self, i: int) -> Tables:
        """The tables of q (0) or of k (1)."""
        fields: tuple[Any, ...] = self.cos, self.sin, self.rows
        cos, sin, rows = (value[i] if type(value) is tuple else value for value in fields)
        return Tables(cos, sin, rows, self.axis_map, self.compute)


def _shown(table: Any) -> str:
    if type(table) is tuple:
        return f"({', '.join(map(_shown, table))})"
    if not hasattr(table, "shape"):
        return repr(table)
    return f"{table.dtype} {list(table.shape)}"
