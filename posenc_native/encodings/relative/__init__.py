"""Relative encodings: one number for each distance between key and query, or a look-up by distance.

Variants differ only in data: the number, or the column, of each distance.

    diagonals   [H, D]     bias[h, i, j] = diagonals[h, j - i + q_len - 1]        ALiBi, T5, KERPLE
    columns     int64 [D]  out[..., i, j] = x[..., i, columns[j - i + q_len - 1]]  Shaw, DeBERTa

D = q_len + k_len - 1. Entry e of both is for the distance, key minus query,
``e - (q_len - 1) - q_offset``: queries are at q_offset .. q_offset + q_len - 1, keys at 0 ..
k_len - 1. A decoding step has q_len 1 and q_offset k_len - 1. If every row of a batch has its own
offset, q_offset is ``[B]`` and results have a first axis B.

Functions that count distances from q_len and k_len (ALiBi, T5, KERPLE, Sandwich, FIRE, clipped
distances, buckets) treat q_offset None, the default, as 0 if the lengths are equal, and require it
if they differ: no shape would reveal a forgotten offset. Functions that read existing diagonals or
columns (`toeplitz_bias`, `relative_gather` and the like) default to 0: diagonals made for the call
already include the offset, and `origin` specifies the entry of distance 0. Shaw's and
Transformer-XL's modules attend to a memory before the queries: their queries end where the keys do.

Results are arrays; they are tensors if an argument is a tensor or a torch dtype, or if device is
set. Numbers are computed in float64 and rounded at the end, to float32 unless `dtype` is float16,
bfloat16 or float64 (to 16 bits via float32). Gradients reach every tensor of numbers. Values from a
table keep its dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_native.encodings.namespaces import lazy

if TYPE_CHECKING:
    from .alibi import alibi_columns as alibi_columns
    from .alibi import alibi_diagonals as alibi_diagonals
    from .alibi import alibi_slopes as alibi_slopes
    from .anywhere import bias_at_positions as bias_at_positions
    from .buckets import deberta_bucket as deberta_bucket
    from .buckets import relative_position_bucket as relative_position_bucket
    from .columns import clipped_index as clipped_index
    from .columns import deberta_index as deberta_index
    from .distances import relative_positions as relative_positions
    from .kernels import fire_bias as fire_bias
    from .kernels import kerple_diagonals as kerple_diagonals
    from .kernels import sandwich_diagonals as sandwich_diagonals
    from .tables import clipped_diagonals as clipped_diagonals
    from .tables import t5_diagonals as t5_diagonals
    from .windows import decomposed_scores as decomposed_scores
    from .windows import swin_diagonals as swin_diagonals
    from .windows import swin_v2_coordinates as swin_v2_coordinates
else:
    __all__, __getattr__, __dir__ = lazy(
        __name__,
        {
            "alibi": "alibi_columns alibi_diagonals alibi_slopes",
            "anywhere": "bias_at_positions",
            "buckets": "deberta_bucket relative_position_bucket",
            "columns": "clipped_index deberta_index",
            "distances": "relative_positions",
            "kernels": "fire_bias kerple_diagonals sandwich_diagonals",
            "tables": "clipped_diagonals t5_diagonals",
            "windows": "decomposed_scores swin_diagonals swin_v2_coordinates",
        },
    )
