"""Types of arguments, for type checkers: the names that overloads of public functions use.

`TensorLike` and `TorchDtype`, not torch's own classes, decide between overloads. If torch is not
installed, a checker does not know its classes and would match them with anything.

Keywords that overloads share are TypedDicts beside the function; those here are for functions with
a dtype and a device. Nothing needs these names, or typing_extensions, at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from typing_extensions import NotRequired, TypedDict

    from .tables import Tables

# The dtype of an array, which is also the dtype of the result.
Number = TypeVar("Number", bound=np.generic)
Number_co = TypeVar("Number_co", bound=np.generic, covariant=True)
Item = TypeVar("Item")


class SupportsArray(Protocol[Number_co]):
    """An array of NumPy or of a library that NumPy can read: pandas, xarray, JAX.

    A tensor matches this too, so overloads list tensors first.
    """

    def __array__(self) -> np.ndarray[Any, np.dtype[Number_co]]: ...


class TensorLike(Protocol):
    """A tensor, identified by an attribute that only tensors have."""

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are recorded."""


class SupportsRotary(Protocol):
    """A `Rotary`, or an object that rotates like it, such as a module of posenc_native.nn."""

    def __rotary__(self) -> Any:
        """The `Rotary`; its class is in a higher layer."""


class TorchDtype(Protocol):
    """A torch dtype, identified by an attribute that only torch dtypes have."""

    @property
    def is_floating_point(self) -> bool:
        """Whether it is a floating-point dtype."""


if TYPE_CHECKING:
    Tensor = torch.Tensor
    Array = npt.NDArray[Number]
    Pair = tuple[Item, Item]
    Device = str | int | torch.device
    Integers = int | npt.ArrayLike | torch.Tensor
    Numbers = npt.ArrayLike | torch.Tensor
    # Radians per position, or a description that has them.
    Frequencies = npt.ArrayLike | torch.Tensor | SupportsRotary
    # Where angles come from: these, or tables.
    Angles = Frequencies | Tables
    FrequencyAxes = Literal["p", "hp", "ahp", "bp"]
    Pairing = Literal["half", "interleaved"] | int
    # Positions of q and k: the same for both, or a pair.
    NumbersOfTwo = Numbers | tuple[Numbers | None, Numbers | None] | None
    # Neither a tensor nor an array of another library.
    Plain = float | npt.NDArray[Any] | Sequence[Any]
    # A result whose type a checker cannot tell; a union would force every caller to check it.
    ArrayOrTensor = Any
    # The memory that a result is written to.
    OutArray = npt.NDArray[Any] | None
    OutTensor = torch.Tensor | None
    NumPyDtype = npt.DTypeLike | None
    Dtype = npt.DTypeLike | TorchDtype | None

    # Names that arguments accept; tests/core/calls/test_kinds.py compares them with the code.
    AxialPairing = Pairing | Literal["per_axis"]
    SinusoidalLayout = Literal["interleaved", "sin_cos", "cos_sin"]
    AxisPlace = Literal["outer", "middle", "inner"]
    Remainder = Literal["error", "zeros", "drop", "cut"]
    MropeOrder = Literal["sectioned", "interleaved", "spatial_first", "round_robin"]
    AxialOrder = Literal["sectioned", "interleaved"]
    Spectrum = Literal["per_axis", "shared", "rising"]
    Combination = Literal["add", "multiply", "concatenate"]
    EmbeddingScale = float | Literal["sqrt"]
    Interpolation = Literal["linear", "cubic"]
    Spacing = Literal["even", "geometric"]
    InitialTable = Literal["normal", "truncated_normal", "zeros", "uniform", "sinusoidal"]
    KerpleKind = Literal["log", "power"]
    AlibiRounding = Literal["float32", "bfloat16"] | None
    CellPlace = Literal["index", "corners", "centers"]
    CellCount = Literal["separate", "min", "max"]
    ShardOrder = Literal["contiguous", "zigzag", "striped", "head_tail"]

    class OfNumPy(TypedDict, total=False):
        """Keywords for a result that is an array."""

        dtype: NumPyDtype
        device: None

    class OfTorch(TypedDict, total=False):
        """Keywords of a call with a tensor."""

        dtype: Dtype
        device: Device | None

    class ByDtype(TypedDict):
        """Keywords with a dtype that makes the result a tensor."""

        dtype: TorchDtype
        device: NotRequired[Device | None]

    class OnDevice(TypedDict):
        """Keywords with a device, which makes the result a tensor."""

        dtype: NotRequired[Dtype]
        device: Device
