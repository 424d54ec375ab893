"""Positions from the inputs of a model: packed rows, masks, grids, images within text.

    sequences packed in a row       `packed_positions`, `packed_segments`     [t]
    rows with padding, or samples   `padded_positions`                        [b, s]
    a part of a row, on many devices  `ContextParallel`                       [s / ranks]
    patches of an image, a video    `grid_positions`, `packed_grid_positions` [A, s]
    the same as coordinates         `image_coordinates`, `augment_coordinates`
    text, images and videos         `vision_language_positions`               [3, b, s], [3, t]

`apply_rotary` takes the results as positions (several axes with its axis_map). Arguments are
integers of any width, results are int64. Tensors give tensors on their device.

The shape of a result never depends on the values of arguments: lengths are arguments, or come from
the shapes of arguments. So torch.compile(fullgraph=True) and torch.export support all functions.
Errors depend on values only if these can be read (NumPy, tensors on the CPU that are not traced).

Tokens that are not rotated (prefixes, class tokens, excluded keys) have position 0 on every axis;
no operation treats them specially.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_native.encodings.namespaces import lazy

if TYPE_CHECKING:
    from .context_parallel import ContextParallel as ContextParallel
    from .grids import add_unrotated_tokens as add_unrotated_tokens
    from .grids import augment_coordinates as augment_coordinates
    from .grids import grid_positions as grid_positions
    from .grids import image_coordinates as image_coordinates
    from .grids import packed_grid_positions as packed_grid_positions
    from .rows import packed_positions as packed_positions
    from .rows import packed_segments as packed_segments
    from .rows import padded_positions as padded_positions
    from .vision_language import vision_language_positions as vision_language_positions
else:
    __all__, __getattr__, __dir__ = lazy(
        __name__,
        {
            "context_parallel": "ContextParallel",
            "grids": (
                "add_unrotated_tokens augment_coordinates grid_positions image_coordinates "
                "packed_grid_positions"
            ),
            "rows": "packed_positions packed_segments padded_positions",
            "vision_language": "vision_language_positions",
        },
    )
