"""Operations on DTensors: split into local parts, computed locally, joined again.

    x, sharded along some axes ──► the part of this rank ──► operation ──► a DTensor, sharded like x
    positions, frequencies ... ──► their values for that part   (engines/torch)

    taken_apart     detects operations on DTensors, and imports the rules when needed.
    cut             the sharded axes of a DTensor, the place of the local part, and its values.
    rotary  norm_rotary  sinusoids  relative       the axes of the arguments of each family.
    matrices        the same for torch operations that modules use.
    recorded        one autograd node for a call.
    errors          checks of whole calls in advance, and their errors.

An axis is identified by its letter. If an operation needs no neighbors along it (batch, tokens,
heads), it stays sharded and nothing is communicated. Otherwise the axis is gathered, after pending
sums (Partial) are computed. Omitted positions and the entry of distance 0 count from the beginning
of the part. Gradients have the placements of their inputs; a value that all parts of x share gets a
sum over them.

All of it uses public torch functions. A strategy registered with torch would leave k unrotated in
place if it is placed unlike q, could not give `positions=None` an offset, and would not help plain
tensors beside DTensors, which hold the whole value, the same on every rank.
"""
