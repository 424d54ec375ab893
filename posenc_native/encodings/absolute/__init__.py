"""Simple absolute encodings, and learned tables resampled to another length.

    rows of a table     `learned_positions`      BERT, GPT-2, ViT
                        `resample_positions`     such a table for another length or grid
    numbers             `linear_positions`       the positions themselves, scaled
                        `normalized_positions`   as a fraction of the length
    a recurrence        `recurrent_positions`    states of a GRU without input
    with embeddings     `combine`                added, multiplied or concatenated

All take positions as an int (0 .. n - 1), an array or a tensor, and return rows to add to
embeddings, arrays or tensors like their arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_native.encodings.namespaces import lazy

if TYPE_CHECKING:
    from .encodings import combine as combine
    from .encodings import learned_positions as learned_positions
    from .encodings import linear_positions as linear_positions
    from .encodings import normalized_positions as normalized_positions
    from .encodings import recurrent_positions as recurrent_positions
    from .resampling import resample_positions as resample_positions
else:
    __all__, __getattr__, __dir__ = lazy(
        __name__,
        {
            "encodings": (
                "combine learned_positions linear_positions normalized_positions "
                "recurrent_positions"
            ),
            "resampling": "resample_positions",
        },
    )
