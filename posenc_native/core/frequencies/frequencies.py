"""Frequencies from the formula ``base^(-i / (dim / 2 - shift))``, exact and rounded once."""

from __future__ import annotations

import decimal
from decimal import Decimal
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.constants import constant_without_tensors

FloatArray = npt.NDArray[np.float64]

# 20 digits for whole turns, 20 for 2^-64 of a turn, 30 in reserve. Overflow gives infinity.
EXACT = decimal.Context(prec=70, rounding=decimal.ROUND_HALF_EVEN, traps=[])

TWO_PI = Decimal(
    "6.2831853071795864769252867665590057683943387987502116419498891846156328125724179973"
)


@constant_without_tensors
def frequencies(dim: int, base: float = 10000.0, *, shift: float = 0.0) -> FloatArray:
    """Frequencies of a sinusoidal encoding.

    Args:
        dim: width of the encoding, even, at most 65,536.
        base: above 0; the longest wavelength is about ``2 * pi * base``.
        shift: 0 for "Attention Is All You Need", 1 for tensor2tensor, fairseq and Whisper; below
            ``dim / 2``.

    Returns:
        float64 [dim // 2], radians per position: ``base ** (-i / (dim / 2 - shift))``, each the
        nearest float64 to the exact value.

    Raises:
        ValueError: dim is odd or negative, base <= 0, shift >= dim / 2, or a frequency is 2^63 or
            more.
        TypeError: an argument is not a number.

    Example:
        >>> frequencies(8)
        array([1.   , 0.1  , 0.01 , 0.001])

    Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.5; `shift` as in
    ``get_timestep_embedding`` in diffusers.
    """
    function = "frequencies"
    arguments.frequency_parameters(function, dim, base, shift)
    arguments.width(function, "dim", dim)
    return np.array(
        rounded_frequencies(*arguments.frequency_parameters(function, dim, base, shift))
    )


@constant_without_tensors
def wavelengths(dim: int, base: float = 10000.0, *, shift: float = 0.0) -> FloatArray:
    """Wavelengths of a sinusoidal encoding, in positions per turn.

    Arguments and errors are those of `frequencies`.

    Returns:
        float64 [dim // 2]: ``2 * pi / frequency``, each the nearest float64 to the exact value.

    Example:
        >>> wavelengths(4)
        array([  6.28318531, 628.31853072])
    """
    arguments.frequency_parameters("wavelengths", dim, base, shift)
    arguments.width("wavelengths", "dim", dim)
    exact = checked_frequencies("wavelengths", dim, base, shift)
    with decimal.localcontext(EXACT):
        return np.array([float(TWO_PI / frequency) for frequency in exact], dtype=np.float64)


def checked_frequencies(
    function: str, dim: object, base: object, shift: object, scale: object = 1.0
) -> tuple[Decimal, ...]:
    """``scale * base ** (-i / (dim / 2 - shift))`` to about 68 digits; errors name `function`."""
    return exact_frequencies(*arguments.frequency_parameters(function, dim, base, shift, scale))


def exact_frequencies(
    dim: int, base: float, shift: float = 0.0, scale: float = 1.0
) -> tuple[Decimal, ...]:
    """As `checked_frequencies`, for arguments that have been checked."""
    # They take 136 bytes each, so those of a wide table are not kept.
    formula = _exact_frequencies if dim <= _KEPT_DIM else _exact_frequencies.__wrapped__
    return formula(dim, base, shift, scale)


_KEPT_DIM = 2**13


@lru_cache(maxsize=64)
def rounded_frequencies(
    dim: int, base: float, shift: float = 0.0, scale: float = 1.0
) -> FloatArray:
    """The nearest float64 to each of `exact_frequencies`; read-only, because it is cached."""
    rounded = np.array(
        [float(frequency) for frequency in exact_frequencies(dim, base, shift, scale)], np.float64
    )
    rounded.flags.writeable = False
    return rounded


@lru_cache(maxsize=64)
def _exact_frequencies(dim: int, base: float, shift: float, scale: float) -> tuple[Decimal, ...]:
    if dim == 0:
        return ()
    with decimal.localcontext(EXACT):
        ratio = Decimal(base) ** (-1 / (Decimal(dim) / 2 - Decimal(shift)))
        result = [Decimal(scale)]
        while 2 * len(result) < dim:
            result.append(result[-1] * ratio)
        return tuple(result)
