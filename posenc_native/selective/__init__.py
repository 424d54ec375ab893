"""Rotations whose angles the data decide: the angle of a token is the sum of all steps up to it.

    steps [radians] ──► turns, int64 ──► summed along the tokens, from a state ──► phases
    phases ──► cos, sin ──► pairs of q and k turned by them

A step becomes an integer, turns times 2^64, rounded once. Sums of integers are exact, and they
wrap where angles do. So the same phases come out of one call and of many, of any chunks and ranks,
and none drifts: float32 is off by up to 0.8 in a cosine after a million tokens.

Source: Selective RoPE (Movahedi et al., ICLR 2026, arXiv:2511.17388), Mamba-3 (ICLR 2026).
"""
