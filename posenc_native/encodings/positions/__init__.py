"""Positions from the inputs of a model: packed rows, masks, grids, images within text.

    sequences packed in a row       `packed_positions`, `packed_segments`     [t]
    rows with padding               `padded_positions`                        [b, s]
    a part of a row, on many devices  `ContextParallel`                       [s / ranks]
    patches of an image, a video    `grid_positions`, `packed_grid_positions` [A, s]
    the same as coordinates         `image_coordinates`, `augment_coordinates`
    text, images and videos         `vision_language_positions`               [3, b, s]

`apply_rotary` takes the results as positions (several axes with its axis_map). Arguments are
integers of any width, results are int64. Tensors give tensors on their device.

The shape of a result never depends on the values of arguments: lengths are given, or come from the
shapes of the arguments. So torch.compile(fullgraph=True) and torch.export support all functions.
Errors depend on values only if these can be read (NumPy, tensors on the CPU that are not traced).

Tokens that are not rotated (prefixes, class tokens, excluded keys) have position 0 on every axis;
no operation treats them specially.
"""
