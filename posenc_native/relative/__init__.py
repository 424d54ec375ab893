"""Relative encodings: one number for each distance between key and query, or a look-up by it.

Variants are data: what a distance is worth, or which column it takes.

    diagonals   [H, D]     bias[h, i, j] = diagonals[h, j - i + q_len - 1]        ALiBi, T5, KERPLE
    columns     int64 [D]  out[..., i, j] = x[..., i, columns[j - i + q_len - 1]]  Shaw, DeBERTa

D = q_len + k_len - 1. Entry e of both is about the distance, key minus query,
``e - (q_len - 1) - q_offset``: queries are at q_offset .. q_offset + q_len - 1, keys at 0 ..
k_len - 1. A decoding step has q_len 1 and q_offset k_len - 1. Where every row of a batch has its
own offset, q_offset is ``[B]`` and results have a first axis B.

What counts distances from q_len and k_len (ALiBi, T5, KERPLE, Sandwich, FIRE, clipped distances,
buckets) takes q_offset None, the default, as 0 where the two are equal, and asks for it where they
differ: a forgotten offset would show in no shape. What reads diagonals or columns that are there
already (`toeplitz_bias`, `relative_gather` and the like) has 0: those made for the call include the
offset, and with `origin` the caller says where distance 0 is. Shaw's and Transformer-XL's modules
attend to a memory before the queries: their queries end where the keys do.

Results are arrays; they are tensors if an argument is a tensor or a torch dtype, or if a device is
given. Numbers are computed in float64 and rounded at the end, to float32 unless `dtype` is float16,
bfloat16 or float64 (to 16 bits by way of float32); gradients reach every tensor of numbers. What a
table holds keeps its dtype.
"""
