"""Rotations that turn the partners of a pair by different angles, as in V-JEPA 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_type, wrong_value
from posenc_native.core.calls.pairs import as_operands
from posenc_native.core.calls.suggestions.vocabulary import answer_methods
from posenc_native.core.calls.views import check_same_tokens, rotary_view
from posenc_native.core.documents.reprs import call
from posenc_native.engines.arrays import Arrays

from .apply import apply_rotary, apply_rotary_qk
from .rotary import Rotary, rotary_of

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from posenc_native.core.calls.kinds import (
        Array,
        Number,
        Numbers,
        OutArray,
        OutTensor,
        Pair,
        Pairing,
        SupportsArray,
        Tensor,
        TensorLike,
    )
    from posenc_native.core.calls.rotation import CallOptions

__all__ = [
    "FullWidthRotary",
]


@answer_methods
@dataclass(frozen=True)
class FullWidthRotary:
    """A rotation with one frequency per dim: the partners of a pair may turn by different angles.

    Many libraries store cosines and sines "of full width", with a separate value for every dim:

        (a, b)  ->  (a cos s - b sin s,  b cos t + a sin t),    s = t in a true rotation

    Some models were trained with unequal s and t: V-JEPA 2 (`axial_rotary` with tiled), and
    HunYuan-VL as in transformers 5.23. This class composes two rotations by exact angles; each
    gives one half of the result and of the gradients. (A separate kernel would serve only these
    models.) Immutable, comparable, without buffers.

    With ``inverse`` it is the transpose, as in `apply_rotary`: the map of gradients,

        (a, b)  ->  (a cos s + b sin t,  b cos t - a sin s)

    Unlike the transpose of a true rotation, this does not undo the rotation if s and t differ. A
    FullWidthRotary is called like a `Rotary`, but has no ``tables``: `Tables`
    have one cosine and one sine for both partners.

    Attributes:
        first, second: the `Rotary` of the first partners, by s, and the `Rotary` of the second
            partners, by t, or modules that have them. Their head_dim, pairing and slice are equal.

    Raises:
        ValueError: the two do not have equal head_dim, pairing and slice.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.rotary.FullWidthRotary.of_dims(2, [1.0, 0.0], pairing="interleaved")
        >>> rope.apply(np.ones((1, 2)), np.array([2]), layout="sd").round(4)  # cos 2 - sin 2, 1
        array([[-1.3254,  1.    ]])
    """

    first: Rotary
    second: Rotary

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            rope = rotary_of("FullWidthRotary", name, getattr(self, name))
            object.__setattr__(self, name, rope)
        shapes = [
            (rope.head_dim, rope.pairing, rope.rotary_start, len(rope.inv_freq))
            for rope in (self.first, self.second)
        ]
        if shapes[0] != shapes[1]:
            expected = f"head_dim, pairing, rotary_start and pairs of first, {shapes[0]}"
            wrong_value("FullWidthRotary", "second", expected, shapes[1])

    def __repr__(self) -> str:
        return call(self, first=self.first, second=self.second)

    @classmethod
    def of_dims(
        cls,
        head_dim: int,
        inv_freq: npt.ArrayLike,
        *,
        axis_map: npt.ArrayLike | None = None,
        pairing: Pairing = "half",
        rotary_start: int = 0,
        scale: float = 1.0,
        vision: str | None = None,
    ) -> FullWidthRotary:
        """Make a FullWidthRotary from one frequency, and one axis, for each rotated dim.

        Args:
            head_dim: width of a head.
            inv_freq: ``[2P]``, radians per position, in the order of the dims.
            axis_map: ``[2P]`` ints, the position axis that drives each dim.
            pairing, rotary_start, scale, vision: as in `Rotary`.

        Raises:
            ValueError, TypeError: as in `Rotary`.
        """
        function = "FullWidthRotary"
        head_dim = arguments.size(function, "head_dim", head_dim)
        frequencies_of_dims = arguments.as_array(function, "inv_freq", inv_freq)
        if frequencies_of_dims.ndim != 1 or len(frequencies_of_dims) % 2:
            wrong_value(function, "inv_freq", "shape [2P]", list(frequencies_of_dims.shape))
        view = rotary_view(
            function, (1, head_dim), "sd", pairing, rotary_start, len(frequencies_of_dims) // 2
        )
        axes = None
        if axis_map is not None:
            axes = arguments.as_array(function, "axis_map", axis_map)
            arguments.check_shape(function, "axis_map", axes.shape, frequencies_of_dims.shape)

        def of_partner(values: npt.NDArray[Any], partner: int) -> npt.NDArray[Any]:
            return values.reshape(-1, 2, view.block // 2)[:, partner].ravel()

        return cls(
            *(
                Rotary(
                    head_dim,
                    inv_freq=of_partner(frequencies_of_dims, partner),
                    axis_map=None if axes is None else of_partner(axes, partner),
                    pairing=pairing,
                    rotary_start=rotary_start,
                    scale=scale,
                    vision=vision,
                )
                for partner in range(2)
            )
        )

    def grid(self, height: int, width: int, **options: Any) -> Any:
        """The positions of a grid of patches: ``Rotary.grid`` with its options."""
        return self.first.grid(height, width, **options)

    @overload
    def __call__(self, q: TensorLike, k: TensorLike, positions: Numbers | None = ..., *,
                 inplace: bool = ..., **turn: Unpack[CallOptions]) -> Pair[Tensor]: ...  # fmt: skip
    @overload
    def __call__(self, q: SupportsArray[Number], k: SupportsArray[Number],
        positions: Numbers | None = ..., *, inplace: bool = ..., **turn: Unpack[CallOptions],
    ) -> Pair[Array[Number]]: ...  # fmt: skip
    def __call__(
        self,
        q: Any,
        k: Any,
        positions: npt.ArrayLike | torch.Tensor | None = None,
        *,
        layout: str | None = None,
        inverse: bool = False,
        inplace: bool = False,
    ) -> tuple[Any, Any]:
        """Rotate queries and keys.

        Args:
            q, k, positions, layout, inplace: as in `apply_rotary_qk`.
            inverse: apply the transpose, which undoes the rotation only if partners turn alike.
        """
        function, rope = "FullWidthRotary", self.first
        layout = rope.layout if layout is None else layout
        originals = q, k
        if not is_tensor(q):
            q, k = as_operands(function, q, k, inplace)
        rope._check_width(function, "q", q)
        q_view, k_view = (
            rotary_view(
                function, tuple(x.shape), layout, rope.pairing, rope.rotary_start,
                len(rope.inv_freq), argument,
            )
            for argument, x in (("q", q), ("k", k))
        )  # fmt: skip
        check_same_tokens(function, q_view, k_view)
        if q.dtype != k.dtype:
            wrong_type(function, "k", f"the dtype of q, {q.dtype}", k.dtype)
        if inplace and not is_tensor(q):
            # Rotates no pair, but raises before anything is written if q or k cannot be written.
            apply_rotary_qk(q, k, None, np.zeros(0), layout=layout, inplace=True)
        rotated_q = self._rotated(q, positions, layout, inverse)
        rotated_k = self._rotated(k, positions, layout, inverse)
        if not inplace:
            return rotated_q, rotated_k
        _written(q, q, rotated_q, layout)
        _written(k, k, rotated_k, layout)
        return originals

    @overload
    def apply(self, x: TensorLike, positions: Numbers | None = ..., *, out: OutTensor = ...,
              **turn: Unpack[CallOptions]) -> Tensor: ...  # fmt: skip
    @overload
    def apply(self, x: SupportsArray[Number], positions: Numbers | None = ..., *,
              out: OutArray = ..., **turn: Unpack[CallOptions]) -> Array[Number]: ...  # fmt: skip
    def apply(
        self,
        x: Any,
        positions: npt.ArrayLike | torch.Tensor | None = None,
        *,
        layout: str | None = None,
        inverse: bool = False,
        out: Any = None,
    ) -> Any:
        """Rotate one array or tensor.

        Args:
            x, positions, layout, out: as in `apply_rotary`.
            inverse: apply the transpose, which undoes the rotation only if partners turn alike.
        """
        if not is_tensor(x):
            x = arguments.as_operand("FullWidthRotary", "x", x)
        self.first._check_width("FullWidthRotary", "x", x)
        layout = self.first.layout if layout is None else layout
        rotated = self._rotated(x, positions, layout, inverse)
        return rotated if out is None else _written(out, x, rotated, layout)

    def _rotated(self, x: Any, positions: Any, layout: str, inverse: bool) -> Any:
        arguments.check_dtype("FullWidthRotary", "x", x.dtype, arguments.FLOAT_DTYPES)
        arrays = Arrays("FullWidthRotary", x.dtype, None, x=x)
        of_second, where = self._of_second(arrays), arrays.xp.where
        if not inverse:  # each rotation gives the half of the result that its angles rotate
            first = self.first.apply(x, positions, layout=layout)
            second = self.second.apply(x, positions, layout=layout)
            return where(of_second, second, first)
        # Each rotation takes the half of x that its angles have rotated.
        x = arrays.real(x)
        first = self.first.apply(where(of_second, 0.0, x), positions, layout=layout, inverse=True)
        second = self.second.apply(where(of_second, x, 0.0), positions, layout=layout, inverse=True)
        return arrays.rounded(first + second)

    def _of_second(self, arrays: Arrays) -> Any:
        rope = self.first
        pairs = len(rope.inv_freq)
        block = {"half": 2 * pairs, "interleaved": 2}.get(str(rope.pairing), rope.pairing)
        return second_partners(arrays, rope.head_dim, rope.rotary_start, int(block))


def second_partners(arrays: Arrays, head_dim: int, start: int, block: int) -> Any:
    """Bools [head_dim]: True for second partners; arbitrary for dims that are not rotated."""
    place = (arrays.arange(head_dim) - start) % max(block, 1)
    return 2 * place >= block


def _written(out: Any, x: Any, result: Any, layout: str) -> Any:
    """Write the result to `out`: `apply_rotary` of no pairs is a copy with all its checks."""
    if out is x and is_tensor(x):
        return x.copy_(result)
    return apply_rotary(result, None, np.zeros(0), layout=layout, out=out)
