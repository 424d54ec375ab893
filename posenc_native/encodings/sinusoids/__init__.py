"""Sinusoidal encodings beyond the table: frequencies, shifts, coordinates of grids.

    frequencies       `frequencies`, `wavelengths`     radians per position, positions per turn
    shift             `shift_matrix`                   table(p) @ T == table(p + offset)
    grids             `GridCoordinates`                how a cell becomes a coordinate

`sinusoidal`, `add_sinusoidal` and `SinusoidalSpec` are names of posenc_native. A `SinusoidalSpec`
is any convention, of one coordinate or of several (pixels, voxels, frames); its `preset` has those
of other projects by name.

Source: Vaswani et al. 2017, "Attention Is All You Need".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_native.encodings.namespaces import lazy

if TYPE_CHECKING:
    from posenc_native.core.frequencies.frequencies import frequencies as frequencies
    from posenc_native.core.frequencies.frequencies import wavelengths as wavelengths

    from .grid import GridCoordinates as GridCoordinates
    from .tables import shift_matrix as shift_matrix
else:
    __all__, __getattr__, __dir__ = lazy(
        __name__,
        {
            "grid": "GridCoordinates",
            "tables": "shift_matrix",
            "posenc_native.core.frequencies.frequencies": "frequencies wavelengths",
        },
    )
