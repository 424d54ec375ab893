"""Builders of positions against the projects that have them: all integers, so all exact.

Coordinates are compared in the dtype in which their owner computes them.
"""

from __future__ import annotations

import types

import numpy as np
import pytest
from conversations import FAMILIES, conversation, tensors, their_rope_index
from outside import module, timm_layers

import posenc_native as pn
from posenc_native.encodings.positions import grids, rows, vision_language

# --- Text, images and videos


@pytest.mark.parametrize("padding", ["left", "right", "both"])
@pytest.mark.parametrize("merge", [1, 2, 3])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_vision_language_positions(family, merge, padding):
    torch = module("torch")
    options = FAMILIES[family][2]
    theirs = their_rope_index(family, merge)
    rng = np.random.default_rng(merge)
    for _ in range(6):
        split = options.get("split_frames", False)
        temporal = options.get("temporal_merge_size", 1)
        kinds, mask, images, videos = conversation(
            rng, 3, merge, split=split, temporal=temporal, padding=padding
        )
        ids, there, image_grids, video_grids = tensors(torch, kinds, mask, images, videos)
        given = {}
        ours = dict(options)
        if family == "qwen2_5_vl":
            seconds = torch.from_numpy(rng.choice([1 / 3, 0.5, 1.0, 1.7], len(videos))).float()
            given["second_per_grid_ts"] = seconds
            ours["time_interval"] = 4 * seconds
        expected, deltas = theirs(
            input_ids=ids, mm_token_type_ids=ids, attention_mask=there,
            image_grid_thw=image_grids if len(images) else None,
            video_grid_thw=video_grids if len(videos) else None, **given,
        )  # fmt: skip
        result = pn.positions.vision_language_positions(
            ids, image_grids, video_grids, attention_mask=there, spatial_merge_size=merge, **ours
        )
        assert result[0].dtype == result[1].dtype == torch.int64
        np.testing.assert_array_equal(result[0], expected)
        np.testing.assert_array_equal(result[1], deltas[:, 0])
        # NumPy, narrow integers, bools; another padding.
        if "time_interval" in ours:
            ours["time_interval"] = ours["time_interval"].numpy()
        positions, deltas = pn.positions.vision_language_positions(
            kinds.astype(np.uint8), images.astype(np.int32), videos.astype(np.int16),
            attention_mask=mask > 0, spatial_merge_size=merge, padding=-7, **ours,
        )  # fmt: skip
        assert positions.dtype == deltas.dtype == np.int64
        np.testing.assert_array_equal(positions, np.where(mask, expected.numpy(), -7))
        np.testing.assert_array_equal(deltas, result[1])


def test_without_a_mask_and_without_images():
    positions, deltas = pn.positions.vision_language_positions(np.zeros((2, 5), np.int64))
    np.testing.assert_array_equal(positions, np.broadcast_to(np.arange(5), (3, 2, 5)))
    np.testing.assert_array_equal(deltas, [0, 0])
    positions, deltas = pn.positions.vision_language_positions(np.zeros((2, 0), np.int64))
    assert positions.shape == (3, 2, 0)
    np.testing.assert_array_equal(deltas, [0, 0])


def test_a_delta_continues_the_row():
    # A row cut after its last image: what follows has the positions that the whole row has.
    kinds = np.array([[0, 1, 1, 1, 1, 1, 1, 0, 0, 0]])
    grids = [[1, 4, 6]]
    whole, _ = pn.positions.vision_language_positions(kinds, grids)
    _, deltas = pn.positions.vision_language_positions(kinds[:, :8], grids)
    np.testing.assert_array_equal(whole[:, 0, 8:], np.tile(np.array([8, 9]) + deltas, (3, 1)))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_adjacent_images_need_no_text_between(kind):
    # Two images, 1 x 2 and 2 x 1 tokens, and two rows that share the list of grids.
    kinds = np.array([[1, 1, 1, 1, 0], [0, 0, 0, 1, 1]])
    grids = np.array([[1, 2, 4], [1, 4, 2], [1, 2, 4]])
    if kind == "torch":
        kinds, grids = tensors(module("torch"), kinds, grids)
    positions, deltas = pn.positions.vision_language_positions(kinds, grids)
    np.testing.assert_array_equal(
        positions,
        [
            [[0, 0, 2, 2, 4], [0, 1, 2, 3, 3]],
            [[0, 0, 2, 3, 4], [0, 1, 2, 3, 3]],
            [[0, 1, 2, 2, 4], [0, 1, 2, 3, 4]],
        ],
    )
    np.testing.assert_array_equal(deltas, [0, 0])


@pytest.mark.parametrize("interval", [2, 0.75, np.float32(1.3)])
def test_one_time_interval_for_all_videos(interval):
    kinds, grids = np.full((1, 12), 2), [[3, 2, 4], [3, 2, 4]]
    one, _ = pn.positions.vision_language_positions(kinds, None, grids, spatial_merge_size=2,
                                          time_interval=interval)  # fmt: skip
    both = np.full(2, interval, np.float32)
    each, _ = pn.positions.vision_language_positions(kinds, None, grids, spatial_merge_size=2,
                                           time_interval=both)  # fmt: skip
    np.testing.assert_array_equal(one, each)
    steps = np.trunc(np.arange(3, dtype=np.float32) * np.float32(interval)).repeat(2)
    np.testing.assert_array_equal(one[0, 0, :6], steps)


# --- Rows of tokens


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_packed_positions(dtype):
    torch = module("torch")
    rng = np.random.default_rng(0)
    for count in range(6):
        lengths = rng.integers(0, 5, count)
        bounds = np.concatenate([[0], lengths.cumsum()]).astype(dtype)
        total = int(bounds[-1]) + 2
        begin = rng.integers(0, 100, count)
        expected = [*map(np.arange, lengths), np.arange(2)]
        segments = np.repeat(np.arange(count + 1), [*lengths, 2])
        shifted = np.concatenate([p + b for p, b in zip(expected, [*begin, 0], strict=True)])
        for convert in (np.asarray, lambda array: torch.from_numpy(np.asarray(array))):
            given = convert(bounds)
            ours = pn.positions.packed_positions(given, total)
            np.testing.assert_array_equal(ours, np.concatenate(expected))
            np.testing.assert_array_equal(pn.positions.packed_segments(given, total), segments)
            ours = pn.positions.packed_positions(given, total, start=convert(begin))
            np.testing.assert_array_equal(ours, shifted)
            assert str(ours.dtype).endswith("int64")


def test_padded_positions_of_transformers():
    torch = module("torch")
    mixin = module("transformers.generation.utils").GenerationMixin
    rng = np.random.default_rng(0)
    mask = (rng.random((5, 9)) < 0.6).astype(np.int64)
    mask[0], mask[1] = 0, 1
    owner = types.SimpleNamespace(config=types.SimpleNamespace(is_encoder_decoder=False))
    theirs = mixin._prepare_position_ids_for_generation(
        owner, torch.zeros(5, 9, dtype=torch.int64), {"attention_mask": torch.from_numpy(mask)}
    ).numpy()
    np.testing.assert_array_equal(pn.positions.padded_positions(mask), theirs)
    ours = pn.positions.padded_positions(
        torch.from_numpy(mask > 0), padding=1, start=torch.arange(5)
    )
    expected = np.where(mask, theirs + np.arange(5)[:, None], 1)
    np.testing.assert_array_equal(ours, expected)


# --- Grids


@pytest.mark.parametrize("merge", [1, 2, 3])
@pytest.mark.parametrize("time", [False, True])
def test_packed_grids_of_transformers(merge, time):
    torch = module("torch")
    theirs = module("transformers.vision_utils").get_vision_position_ids
    rng = np.random.default_rng(0)
    for count in (1, 2, 5):
        grids = np.concatenate(
            [rng.integers(1, 4, (count, 1)), merge * rng.integers(1, 5, (count, 2))], 1
        )
        expected = theirs(torch.from_numpy(grids), merge, include_temporal=time).T
        for given in (grids.astype(np.int32), torch.from_numpy(grids)):
            ours = pn.positions.packed_grid_positions(
                given, expected.shape[1], merge_size=merge, time=time
            )
            np.testing.assert_array_equal(ours, expected)
        single = pn.positions.grid_positions(grids[0][0 if time else 1 :], merge_size=merge)
        np.testing.assert_array_equal(single, expected[:, : single.shape[1]])


def test_grids_may_be_empty():
    for merge in (1, 2):
        positions = pn.positions.packed_grid_positions(
            [[1, 2, 2], [0, 0, 0], [1, 2, 2]], 8, merge_size=merge
        )
        np.testing.assert_array_equal(positions, np.tile(pn.positions.grid_positions([2, 2]), 2))
    assert pn.positions.packed_grid_positions(np.zeros((0, 3), np.int64), 0).shape == (2, 0)
    assert pn.positions.grid_positions([0, 4]).shape == (2, 0)
    assert pn.positions.image_coordinates([3, 0]).shape == (2, 0)


@pytest.mark.parametrize("sizes", [[3, 7], [1, 5], [2, 3, 4]])
@pytest.mark.parametrize(
    ("grid", "options", "theirs"),
    [
        ("centers", {}, {"grid_type": "centered"}),
        ("centers", {"normalize": "min"}, {"grid_type": "centered", "normalize_coords": "min"}),
        ("centers", {"normalize": "max", "offset": 0.25},
         {"grid_type": "centered", "normalize_coords": "max", "grid_offset": 0.25}),
        ("centers", {"reference": 4}, {"grid_type": "centered", "ref_feat_shape": 4}),
        ("corners", {}, {"grid_type": "pixel"}),
        ("corners", {"reference": 5}, {"grid_type": "pixel", "ref_feat_shape": 5}),
        ("index", {"offset": -0.5}, {"grid_type": "index", "grid_offset": -0.5}),
        ("index", {"reference": 6}, {"grid_type": "index", "ref_feat_shape": 6}),
    ],
)  # fmt: skip
def test_image_coordinates_of_timm(sizes, grid, options, theirs):
    module("torch")
    build = timm_layers("pos_embed_sincos")._build_grid
    options, theirs = dict(options), dict(theirs)
    if "reference" in options:
        options["reference"] = [options["reference"] + axis for axis in range(len(sizes))]
        theirs["ref_feat_shape"] = options["reference"]
    expected = build(sizes, **theirs).flatten(0, -2).T.numpy()
    ours = pn.positions.image_coordinates(sizes, grid=grid, **options)
    assert ours.dtype == np.float32
    # Theirs is rounded at each of four steps, of numbers up to the largest reference; ours once.
    bound = 5 * 2.0**-24 * max(1.0, np.abs(expected).max())
    assert np.abs(ours - expected).max() <= bound
    exact = pn.positions.image_coordinates(sizes, grid=grid, dtype=np.float64, **options)
    np.testing.assert_array_equal(exact.astype(np.float32), ours)
    np.testing.assert_array_equal(
        pn.positions.image_coordinates(sizes, grid=grid, device="cpu", **options), ours
    )
    swapped = build(sizes, grid_indexing="xy", **theirs).flatten(0, -2).T.numpy()
    if len(sizes) == 2:
        assert np.abs(ours[::-1] - swapped).max() <= bound


def test_augmentation_of_transformers_and_of_timm():
    torch = module("torch")
    dino = module("transformers.models.dinov3_vit.modeling_dinov3_vit")
    timm = timm_layers("pos_embed_sincos")
    coordinates = pn.positions.image_coordinates([3, 5], device="cpu")
    amounts = {"shift": 0.3, "jitter": 1.4, "rescale": 2.0}
    for chosen in ({}, {"shift": 0.3}, {"jitter": 1.4, "rescale": 2.0}, amounts):
        torch.manual_seed(7)
        theirs = dino.augment_patches_center_coordinates(coordinates.T, **chosen).T
        torch.manual_seed(7)
        others = timm._apply_coord_augs(
            coordinates.T, **{f"{name}_coords": amount for name, amount in chosen.items()}
        ).T
        generator = torch.Generator().manual_seed(7)
        ours = pn.positions.augment_coordinates(coordinates, generator=generator, **chosen)
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(ours, others)
        torch.manual_seed(7)
        np.testing.assert_array_equal(
            pn.positions.augment_coordinates(coordinates, **chosen), theirs
        )
        assert bool((ours == coordinates).all()) == (not chosen)
    assert pn.positions.augment_coordinates(coordinates, training=False, **amounts) is coordinates


def test_augmentation_from_numpy():
    coordinates = pn.positions.image_coordinates([4, 6], dtype=np.float64)
    limits = {"shift": 0.5, "jitter": 2.0, "rescale": 3.0}
    results = [
        pn.positions.augment_coordinates(
            coordinates, generator=np.random.default_rng(seed), **limits
        )
        for seed in (0, 0, *range(1, 300))
    ]
    np.testing.assert_array_equal(results[0], results[1])
    assert results[0].dtype == np.float64
    # Straight lines of the coordinates: slope jitter * rescale, at 0 slope * shift.
    slopes, shifts = np.empty((2, len(results), 2))
    for i, result in enumerate(results):
        for axis in range(2):
            slopes[i, axis], at_0 = np.polyfit(coordinates[axis], result[axis], 1)
            shifts[i, axis] = at_0 / slopes[i, axis]
    jitters = np.log(slopes[:, 0] / slopes[:, 1])  # of one axis over that of the other
    for values, limit in ((shifts, 0.5), (np.log(slopes), np.log(6)), (jitters, np.log(4))):
        assert np.abs(values).max() <= limit + 1e-12
        assert np.ptp(values) > 1.4 * limit  # 300 draws fill most of the range


def test_unrotated_tokens():
    torch = module("torch")
    for positions in (np.arange(6).reshape(2, 3) + 1, torch.rand(2, 4, 3), np.float32([5, 6])):
        padded = pn.positions.add_unrotated_tokens(positions, before=2, after=1)
        assert padded.dtype == positions.dtype
        np.testing.assert_array_equal(padded[..., 2:-1], positions)
        assert not padded[..., :2].any()
        assert not padded[..., -1:].any()


# --- Tracing


def builders(torch):
    kinds, mask, images, videos = conversation(
        np.random.default_rng(0), 3, 2, split=True, temporal=1, padding="left"
    )
    kinds, mask, images, videos = tensors(torch, kinds, mask, images, videos)
    bounds = torch.tensor([0, 3, 3, 7], dtype=torch.int32)
    return {
        "packed_positions": (
            lambda b, x: pn.positions.packed_positions(b, x.shape[0], start=b[:-1]),
            (bounds, torch.zeros(9)),
        ),
        "packed_segments": (lambda b, x: pn.positions.packed_segments(b, x.shape[0]),
                            (bounds, torch.zeros(9))),
        "padded_positions": (pn.positions.padded_positions, (mask,)),
        "ContextParallel.positions": (
            lambda x: pn.positions.ContextParallel(1, 2).positions(x.shape[0], device=x.device),
            (torch.zeros(12),)),
        "grid_positions": (
            lambda x: pn.positions.grid_positions(x.shape, merge_size=2, device=x.device),
            (torch.zeros(4, 6),)),
        "packed_grid_positions": (
            lambda g, x: pn.positions.packed_grid_positions(g, x.shape[0], merge_size=2, time=True),
            (torch.tensor([[1, 2, 4], [2, 4, 2]]), torch.zeros(24))),
        "image_coordinates": (lambda x: pn.positions.image_coordinates(x.shape, device=x.device),
                              (torch.zeros(3, 5),)),
        "add_unrotated_tokens": (lambda p: pn.positions.add_unrotated_tokens(p, before=1),
                                 (torch.ones(2, 3),)),
        "vision_language_positions": (
            lambda k, i, v, m: pn.positions.vision_language_positions(
                k, i, v, attention_mask=m, split_frames=True),
            (kinds, images, videos, mask)),
    }  # fmt: skip


BUILDERS = [*rows.__all__, *grids.__all__, *vision_language.__all__]


def test_builders_are_traced_whole():
    torch = module("torch")
    from compiling import together

    made = builders(torch)
    build, arguments = together(made[name] for name in {*BUILDERS} - {"augment_coordinates"})
    expected = build(*arguments)
    torch._dynamo.reset()
    compiled = torch.compile(build, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(*arguments), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted({*BUILDERS} - {"augment_coordinates"}))
def test_results_are_where_the_tensors_are(name):
    torch = module("torch")
    build, arguments = builders(torch)[name]
    expected = build(*arguments)
    results = build(*(argument.to("meta") for argument in arguments))
    for result, other in zip(*([x] if torch.is_tensor(x) else x for x in (results, expected)),
                             strict=True):  # fmt: skip
        assert result.device.type == "meta"
        assert (result.shape, result.dtype) == (other.shape, other.dtype)


def test_positions_of_a_conversation_are_exported():
    torch = module("torch")
    build, arguments = builders(torch)["vision_language_positions"]

    class Index(torch.nn.Module):
        def forward(self, *given):
            return build(*given)

    rows, length = torch.export.Dim("rows"), torch.export.Dim("length")
    program = torch.export.export(
        Index(), arguments,
        dynamic_shapes={"given": ({0: rows, 1: length}, {0: torch.export.Dim("images")},
                                  {0: torch.export.Dim("videos")}, {0: rows, 1: length})},
    )  # fmt: skip
    others = tensors(torch, *conversation(np.random.default_rng(8), 5, 2, split=True, temporal=1,
                                          padding="right"))  # fmt: skip
    others = [others[0], others[2], others[3], others[1]]
    torch.testing.assert_close(program.module()(*others), build(*others), rtol=0, atol=0)


# --- Errors


BAD_CALLS = [
    (ValueError, "packed_positions: cu_seqlens: expected shape",
     lambda: pn.positions.packed_positions(np.zeros(0, int), 0)),
    (ValueError, "packed_positions: start: expected shape",
     lambda: pn.positions.packed_positions([0, 2], 2, start=[1, 2])),
    (
        TypeError,
        "packed_positions: cu_seqlens",
        lambda: pn.positions.packed_positions([0.0, 2.0], 2),
    ),
    (ValueError, "packed_segments: total", lambda: pn.positions.packed_segments([0, 2], -1)),
    (ValueError, "padded_positions: attention_mask: expected shape",
     lambda: pn.positions.padded_positions([1, 1])),
    (TypeError, "padded_positions: attention_mask", lambda: pn.positions.padded_positions([[1.0]])),
    (
        TypeError,
        "padded_positions: padding",
        lambda: pn.positions.padded_positions([[1]], padding=1.0),
    ),
    (ValueError, "ContextParallel: rank",
     lambda: pn.positions.ContextParallel(2, 2)),
    (ValueError, "ContextParallel.positions: length: expected a multiple of 4",
     lambda: pn.positions.ContextParallel(0, 2).positions(6)),
    (ValueError, "ContextParallel: order",
     lambda: pn.positions.ContextParallel(0, 2, order="ring")),
    (ValueError, "grid_positions: sizes: expected multiples",
     lambda: pn.positions.grid_positions([3, 4], merge_size=2)),
    (ValueError, "grid_positions: sizes", lambda: pn.positions.grid_positions([])),
    (ValueError, "packed_grid_positions: grid_sizes",
     lambda: pn.positions.packed_grid_positions([[2, 2]], 4)),
    (ValueError, "packed_grid_positions: merge_size",
     lambda: pn.positions.packed_grid_positions([[1, 2, 2]], 4, merge_size=0)),
    (
        ValueError,
        "image_coordinates: grid",
        lambda: pn.positions.image_coordinates([2], grid="pixel"),
    ),
    (ValueError, "image_coordinates: reference",
     lambda: pn.positions.image_coordinates([2, 3], reference=[2])),
    (TypeError, "image_coordinates: dtype",
     lambda: pn.positions.image_coordinates([2, 3], dtype=np.float16)),
    (ValueError, "augment_coordinates: jitter",
     lambda: pn.positions.augment_coordinates(np.zeros((2, 3)), jitter=0.5)),
    (ValueError, "augment_coordinates: coordinates: expected shape",
     lambda: pn.positions.augment_coordinates(np.zeros(3), shift=0.5)),
    (TypeError, "augment_coordinates: coordinates",
     lambda: pn.positions.augment_coordinates([[1, 2]], shift=0.5)),
    (TypeError, "add_unrotated_tokens: positions",
     lambda: pn.positions.add_unrotated_tokens(np.zeros(2, bool))),
    (ValueError, "vision_language_positions: token_types: expected shape",
     lambda: pn.positions.vision_language_positions([0, 0])),
    (ValueError, "vision_language_positions: attention_mask: expected shape",
     lambda: pn.positions.vision_language_positions([[0, 0]], attention_mask=[[1]])),
    (ValueError, "vision_language_positions: image_grids: expected shape",
     lambda: pn.positions.vision_language_positions([[0, 0]], [1, 2, 2])),
    (ValueError, "vision_language_positions: image_grids: expected grids.* 2, got 1",
     lambda: pn.positions.vision_language_positions([[1, 1]], [[1, 2, 2]])),
    (ValueError, "vision_language_positions: video_grids: expected grids.* 2, got 0",
     lambda: pn.positions.vision_language_positions([[2, 2]])),
    (ValueError, "vision_language_positions: time_interval",
     lambda: pn.positions.vision_language_positions(
         [[2]], None, [[1, 2, 2]], time_interval=[[1.0]]
     )),
    (TypeError, "augment_coordinates: generator: expected a numpy.random.Generator",
     lambda: pn.positions.augment_coordinates(np.zeros((2, 3)), shift=0.5, generator=0)),
    (ValueError, "vision_language_positions: spatial_merge_size, temporal_merge_size",
     lambda: pn.positions.vision_language_positions([[0]], spatial_merge_size=0)),
    (ValueError, "vision_language_positions: time_interval: expected shape .1., got .2.",
     lambda: pn.positions.vision_language_positions(
         [[2]], None, [[1, 2, 2]], time_interval=[1.0, 2.0]
     )),
    (ValueError, "grid_positions: merge_size: expected an int > 0, got 0",
     lambda: pn.positions.grid_positions([2, 2], merge_size=0)),
    (TypeError, "grid_positions: sizes: expected ints, one for each axis, got int",
     lambda: pn.positions.grid_positions(4)),
    (ValueError, "grid_positions: sizes: expected a grid of fewer than 2.63 bytes",
     lambda: pn.positions.grid_positions([2**40, 2**40])),
    (ValueError, "image_coordinates: sizes: expected a grid of fewer than 2.63 bytes",
     lambda: pn.positions.image_coordinates([2**40, 2**40])),
    (ValueError, "image_coordinates: reference: expected 2 sizes of at least 1, got .0, 0.",
     lambda: pn.positions.image_coordinates([2, 2], reference=[0, 0])),
]  # fmt: skip


@pytest.mark.parametrize(("error", "match", "call"), BAD_CALLS)
def test_bad_calls(error, match, call):
    with pytest.raises(error, match=match):
        call()


def test_too_few_tokens_are_seen_in_torch_too():
    torch = module("torch")
    with pytest.raises(ValueError, match="image_grids: expected grids with as many tokens"):
        pn.positions.vision_language_positions(torch.tensor([[1, 1]]), torch.tensor([[1, 2, 2]]))


def vision_language(types, images=None, videos=None, **options):
    return pn.positions.vision_language_positions(types, images, videos, **options)


BAD_VALUES = [
    (
        pn.positions.packed_positions,
        "cu_seqlens: expected bounds that ascend from 0 to at most total = 6",
        ([0, 4, 2], 6),
        {},
    ),
    (pn.positions.packed_positions, "cu_seqlens: expected bounds .* got .1, 4.", ([1, 4], 6), {}),
    (pn.positions.packed_positions, "cu_seqlens: expected bounds .* got .0, 7.", ([0, 7], 6), {}),
    (pn.positions.packed_segments, "cu_seqlens: expected bounds", ([0, 4, 2], 6), {}),
    (pn.positions.packed_grid_positions, "grid_sizes: expected sizes >= 0, multiples of 1, 2, 2",
     ([[1, 2, 3]], 6), {"merge_size": 2}),
    (pn.positions.packed_grid_positions, "grid_sizes: expected sizes >= 0.* got .1, -2, -3.",
     ([[1, -2, -3]], 6), {}),
    (pn.positions.packed_grid_positions, "total: expected the 10 patches of grid_sizes, got 7",
     ([[1, 2, 2], [1, 2, 3]], 7), {}),
    (vision_language, "token_types: expected tokens of .* apart, at .0, 1. and .1, 0.",
     ([[0, 1], [1, 0]], [[1, 2, 4]]), {}),
    (vision_language, "token_types: expected tokens of .* apart, at .0, 1. and .0, 3.",
     ([[0, 1, 0, 1]], [[1, 2, 4]]), {}),
    (vision_language, "token_types: expected tokens of",
     ([[2, 0, 2]], np.zeros((0, 3), int), [[2, 2, 2]]), {}),
    (vision_language, "token_types: expected tokens of",
     ([[2, 0, 2]], np.zeros((0, 3), int), [[1, 2, 4]]), {"split_frames": True}),
    (vision_language, "image_grids: expected sizes >= 0", ([[1]], [[1, -2, -2]]), {}),
    (vision_language, "image_grids: expected sizes >= 0, multiples of 1, 2, 2 .* got .1, 3, 2.",
     ([[1]], [[1, 3, 2]]), {}),
    (vision_language, "video_grids: expected sizes >= 0, multiples of 2, 2, 2 .* got .3, 2, 2.",
     ([[2]], np.zeros((0, 3), int), [[3, 2, 2]]), {"temporal_merge_size": 2}),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(("build", "match", "given", "options"), BAD_VALUES)
def test_bad_values_are_seen_where_they_can_be(build, match, given, options, kind):
    if kind == "torch":
        torch = module("torch")
        given = [x if isinstance(x, int) else torch.from_numpy(np.asarray(x)) for x in given]
    with pytest.raises(ValueError, match=match):
        build(*given, **options)


def test_frames_of_one_video_may_be_apart_where_they_are_split():
    positions, _ = pn.positions.vision_language_positions(
        [[2, 0, 2]], None, [[2, 2, 2]], split_frames=True
    )
    np.testing.assert_array_equal(positions[:, 0], np.tile(np.arange(3), (3, 1)))
    # Padding within an image does not part it.
    positions, _ = pn.positions.vision_language_positions(
        [[1, 0, 1]], [[1, 2, 4]], attention_mask=[[1, 0, 1]]
    )
    np.testing.assert_array_equal(positions[:, 0], [[0, 0, 0], [0, 0, 0], [0, 0, 1]])


def test_a_generator_of_the_other_kind():
    torch = module("torch")
    with pytest.raises(TypeError, match=r"generator: expected a torch\.Generator for a tensor"):
        pn.positions.augment_coordinates(
            torch.zeros(2, 3), shift=0.5, generator=np.random.default_rng(0)
        )
