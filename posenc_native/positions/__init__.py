"""Builders of positions, from what a model is given: packed rows, masks, grids, images among text.

    sequences packed in a row       `packed_positions`, `packed_segments`     [t]
    rows with padding               `padded_positions`                        [b, s]
    a shard of a long row           `context_parallel_positions`              [s / ranks]
    patches of an image, a video    `grid_positions`, `packed_grid_positions` [A, s]
    the same as coordinates         `image_coordinates`, `augment_coordinates`
    text, images and videos         `vision_language_positions`               [3, b, s]

Results are what `apply_rotary` takes as positions (several axes with its axis_map). Integers of any
width come in, int64 goes out. Tensors give tensors on their device. Only the values of a result
depend on the values of arguments, and errors do where values can be seen (NumPy, tensors on the CPU
that are not traced). Shapes never do: lengths are given, or are those of the arguments, so that
torch.compile(fullgraph=True) and torch.export take all of it.
"""
