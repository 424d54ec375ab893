"""The goals of all cases; each stands at the head of the file of its case."""

from __future__ import annotations

from . import (
    decode,
    functions,
    gathers,
    packed,
    patched,
    qkv,
    rotary,
    rotary_variants,
    sinusoidal,
    toeplitz,
)

RULES = (
    *rotary.GOALS,
    *sinusoidal.GOALS,
    *decode.GOALS,
    *patched.GOALS,
    *functions.GOALS,
    *qkv.GOALS,
    *packed.GOALS,
    *rotary_variants.GOALS,
    *toeplitz.GOALS,
    *gathers.GOALS,
    *rotary.TWO_THREADS,
)
