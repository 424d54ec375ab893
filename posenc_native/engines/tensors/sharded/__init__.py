"""Operations on DTensors: taken apart, computed where the parts are, put together again.

    x, cut along some of its axes ──► the part of this rank ──► operation ──► a DTensor, cut as x is
    positions, frequencies ... ──► what belongs to that part    (engines/tensors)

    taken_apart     which operations meet them; rules are imported when one did
    cut             along which axes a DTensor is cut, where the part is, what belongs to it
    rotary  norm_rotary  sinusoids  relative       what the axes of a family's arguments are
    matrices        the same of what modules ask torch for
    errors          a call is checked as a whole before; what is said of a wrong one

An axis is known by its letter. Where an operation looks at no neighbours along it (batch, tokens,
heads), a cut stays and nothing is communicated; else the axis is gathered, and a sum that is still
to be made (Partial) is made first. Positions that nobody gave and the entry of distance 0 count
from where the part begins. Gradients have the placements of their inputs: what all parts of x share
gets a sum over them.

All of it is public torch. A strategy registered with torch would leave a k unrotated in place that
is placed unlike q, could not give `positions=None` an offset, and would not help plain tensors
beside DTensors: these are the whole value, on each rank the same.
"""
