"""Rotations with data-dependent angles: the angle of a token is the sum of all steps up to it.

    steps [radians] ──► turns, int64 ──► summed along the tokens, from a state ──► phases
    phases ──► cos, sin ──► pairs of q and k rotated by them

A step becomes an integer, turns times 2^64, rounded once. Sums of integers are exact, and they
wrap where angles do. One call and many calls, with any chunks and ranks, therefore give the same
phases without drift; float32 is off by up to 0.8 in a cosine after a million tokens.

Source: Selective RoPE (Movahedi et al., ICLR 2026, arXiv:2511.17388), Mamba-3 (ICLR 2026).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_native.encodings.namespaces import lazy

if TYPE_CHECKING:
    from .phases import accumulated_phases as accumulated_phases
    from .phases import phase_tables as phase_tables
else:
    __all__, __getattr__, __dir__ = lazy(
        __name__,
        {
            "phases": "accumulated_phases phase_tables",
        },
    )
