"""Several samples in a row: each has the positions, deltas and biases of a call of its own."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from conversations import FAMILIES, conversation, tensors, their_rope_index
from outside import module

import posenc_native as pn

VISION = pn.positions.vision_language_positions


class Packed(NamedTuple):
    """Rows of samples, and what transformers says of each sample alone."""

    kinds: np.ndarray[Any, Any]  # [b, s]
    numbers: np.ndarray[Any, Any]  # [b, s], 0 for padding
    images: np.ndarray[Any, Any]
    videos: np.ndarray[Any, Any]
    seconds: np.ndarray[Any, Any]  # of each video
    positions: np.ndarray[Any, Any]  # [3, b, s], 0 for padding
    deltas: list[list[int]]  # of the samples of each row


def packed(rng: Any, family: str, rows: int, merge: int = 2) -> Packed:
    torch = module("torch")
    options = FAMILIES[family][2]
    theirs = their_rope_index(family, merge)
    lines, images, videos, seconds = [], [], [], []
    for _ in range(rows):
        line = [np.zeros((5, rng.integers(0, 3)), np.int64)]  # kinds, numbers, positions
        deltas = []
        for number in range(1, rng.integers(2, 6)):
            kinds, _, *grids = conversation(
                rng, 1, merge, split=options.get("split_frames", False),
                temporal=options.get("temporal_merge_size", 1), padding="right",
            )  # fmt: skip
            ids, *given = tensors(torch, kinds, *(g if len(g) else None for g in grids))
            spans = rng.choice([1 / 3, 0.5, 1.0, 1.7], len(grids[1])).astype(np.float32)
            more = {"second_per_grid_ts": torch.tensor(spans)} if family == "qwen2_5_vl" else {}
            positions, delta = theirs(
                input_ids=ids, mm_token_type_ids=ids, image_grid_thw=given[0],
                video_grid_thw=given[1], **more,
            )  # fmt: skip
            numbered = np.full_like(kinds, number)
            line.append(np.concatenate([kinds, numbered, positions[:, 0].numpy()]))
            if rng.random() < 0.3:
                line.append(np.zeros((5, rng.integers(1, 3)), np.int64))
            deltas.append(int(delta))
            images.append(grids[0])
            videos.append(grids[1])
            seconds.append(spans)
        lines.append((np.concatenate(line, 1), deltas))
    length = max(line.shape[1] for line, _ in lines)
    whole = np.stack([np.pad(line, ((0, 0), (0, length - line.shape[1]))) for line, _ in lines], 1)
    return Packed(
        whole[0], whole[1], *map(np.concatenate, (images, videos, seconds)), whole[2:],
        [deltas for _, deltas in lines],
    )  # fmt: skip


def options_of(family: str, row: Packed) -> dict[str, Any]:
    options = dict(FAMILIES[family][2])
    if family == "qwen2_5_vl":
        options["time_interval"] = 4 * row.seconds
    return options


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_numbered_samples_are_those_of_calls_of_their_own(family, kind):
    torch = module("torch")
    rng = np.random.default_rng(3)
    of = torch.from_numpy if kind == "torch" else np.asarray
    for trial in range(8):
        row = packed(rng, family, 1 + trial % 3)
        options = {name: of(x) if isinstance(x, np.ndarray) else x
                   for name, x in options_of(family, row).items()}  # fmt: skip
        positions, deltas = VISION(
            *map(of, (row.kinds, row.images, row.videos)), attention_mask=of(row.numbers), **options
        )
        assert str(positions.dtype).endswith("int64")
        np.testing.assert_array_equal(positions, row.positions)
        np.testing.assert_array_equal(deltas, [of_row[-1] for of_row in row.deltas])
        # All rows as one packed row: padding belongs to the sample before it.
        begins = [np.flatnonzero(line == n)[0] + i * len(line) for i, line in enumerate(row.numbers)
                  for n in range(1, line.max() + 1)]  # fmt: skip
        starts = np.array([0, *begins[1:], row.kinds.size], np.int32)
        for shape in ((-1,), (1, -1)):
            positions, deltas = VISION(
                *map(of, (row.kinds.reshape(shape), row.images, row.videos)), starts=of(starts),
                attention_mask=of(row.numbers.reshape(shape) != 0), padding=-1, **options,
            )  # fmt: skip
            expected = np.where(row.numbers, row.positions, -1).reshape(3, *shape)
            np.testing.assert_array_equal(positions, expected)
            np.testing.assert_array_equal(deltas, [*itertools.chain(*row.deltas)])


def test_rows_of_starts_may_be_empty():
    positions, deltas = VISION([0, 1, 1, 0], [[1, 2, 4]], starts=[0, 0, 3, 3, 4, 4])
    np.testing.assert_array_equal(positions, [[0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 2, 0]])
    np.testing.assert_array_equal(deltas, [0, 0, 0, 0, 0])
    positions, deltas = VISION(np.zeros(0, int), starts=[0, 0])
    assert positions.shape == (3, 0)
    np.testing.assert_array_equal(deltas, [0])


def test_a_delta_of_each_sample_is_of_its_own_end():
    # A video of more frames than rows ends later than the text after it begins.
    kinds, grids = [2, 2, 2, 2, 2, 0, 0, 2, 2, 2], [[5, 2, 2], [3, 2, 2]]
    _, deltas = VISION(kinds, None, grids, starts=[0, 6, 10])
    alone = [VISION([kinds[:6]], None, grids[:1])[1], VISION([kinds[6:]], None, grids[1:])[1]]
    np.testing.assert_array_equal(deltas, np.concatenate(alone))
    _, last = VISION([kinds], None, grids, attention_mask=[[1] * 6 + [2] * 4])
    np.testing.assert_array_equal(last, deltas[1:])


# --- Masks of other functions


def random_numbers(rng: Any) -> np.ndarray[Any, Any]:
    """A mask of four rows: 0 for padding, numbers of samples that ascend, not always by one."""
    numbers = rng.integers(0, 3, (4, 12)).cumsum(1) // 3 * 2
    return np.where(rng.random(numbers.shape) < 0.2, 0, numbers)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_masks_that_number_samples(kind):
    torch = module("torch")
    of = torch.from_numpy if kind == "torch" else np.asarray
    rng = np.random.default_rng(0)
    for _ in range(20):
        numbers = random_numbers(rng)
        first = rng.integers(0, 9, 4)
        positions = np.full((4, 12), -2)
        shares, columns = np.zeros((4, 12, 1), np.float32), np.zeros((4, 2, 1, 12), np.float32)
        for row, number in {(r, n) for r, line in enumerate(numbers) for n in line if n}:
            there = numbers[row] == number
            alone = there[None].astype(int)[:, there]
            positions[row, there] = pn.positions.padded_positions(alone, start=first[[row]])
            shares[row, there] = pn.absolute.normalized_positions(mask=alone)
            columns[row, :, 0, there] = pn.relative.alibi_columns(2, there.sum())[:, 0].T
        for given in (of(numbers), of(numbers.astype(np.int32))):
            ours = pn.positions.padded_positions(given, padding=-2, start=of(first))
            np.testing.assert_array_equal(ours, positions)
            np.testing.assert_array_equal(pn.absolute.normalized_positions(mask=given), shares)
            ours = pn.relative.alibi_columns(2, 12, key_mask=given)
            np.testing.assert_array_equal(ours, columns)


def test_one_number_in_a_row_is_one_sample():
    mask = np.array([[0, 255, 255, 0, 255]], np.uint8)
    for numbers in (mask, mask > 0, mask.astype(np.uint64) << np.uint64(56)):
        np.testing.assert_array_equal(pn.positions.padded_positions(numbers), [[0, 0, 1, 0, 2]])
        np.testing.assert_array_equal(
            pn.relative.alibi_columns(1, 5, key_mask=numbers),
            pn.relative.alibi_columns(1, 5, key_mask=mask > 0),
        )


# --- Tracing


def test_packed_samples_are_traced_whole():
    torch = module("torch")
    rng = np.random.default_rng(1)

    def build(kinds: Any, images: Any, videos: Any, mask: Any, starts: Any) -> Any:
        return (
            VISION(kinds, images, videos, attention_mask=mask),
            VISION(kinds.reshape(-1), images, videos, attention_mask=mask.reshape(-1) != 0,
                   starts=starts),
            pn.positions.padded_positions(mask),
        )  # fmt: skip

    torch._dynamo.reset()
    follow = torch.compile(build, fullgraph=True, backend="eager", dynamic=True)
    for rows in (2, 3):
        row = packed(rng, "qwen2_vl", rows)
        given = tensors(torch, *row[:1], *row[2:4], row.numbers)
        given.append(torch.arange(rows + 1) * row.kinds.shape[1])
        expected = build(*given)
        torch.testing.assert_close(follow(*given), expected, rtol=0, atol=0)
        on_meta = build(*(tensor.to("meta") for tensor in given))
        assert [x.shape for x in (*on_meta[0], *on_meta[1])] == [
            x.shape for x in (*expected[0], *expected[1])
        ]


# --- Errors


def falling(function: Any, argument: str, **more: Any) -> Any:
    return lambda of: function(**{argument: of([[1, 1, 2, 0, 1]])}, **more)


ONE = "; write {} != 0 for one sample in each row"
BAD: dict[str, tuple[Any, str]] = {
    "two samples in turn": (
        falling(VISION, "attention_mask", token_types=[[0] * 5]),
        "vision_language_positions: attention_mask: expected 0 for padding and in each row "
        "ascending numbers of samples, got [1, 1, 2, 0, 1]" + ONE.format("attention_mask"),
    ),
    "padded_positions": (
        falling(pn.positions.padded_positions, "attention_mask"), ONE.format("attention_mask"),
    ),
    "normalized_positions": (
        falling(pn.absolute.normalized_positions, "mask"), ONE.format("mask"),
    ),
    "alibi_columns": (
        falling(pn.relative.alibi_columns, "key_mask", num_heads=1, k_len=5),
        ONE.format("key_mask"),
    ),
    "negative": (
        lambda of: pn.positions.padded_positions(of([[1, 1], [0, -1]])),
        "ascending numbers of samples, got [0, -1]",
    ),
    "an image in two samples": (
        lambda of: VISION(of([[1, 1]]), [[1, 2, 4]], attention_mask=[[1, 2]]),
        ("token_types: expected tokens of an image or video next to each other in one row and "
         "sample, got two apart, at [0, 0] and [0, 1]"),
    ),
    "an image in two rows of starts": (
        lambda of: VISION(of([1, 1]), [[1, 2, 4]], starts=[0, 1, 2]), "in one row and sample",
    ),
    "frames of a video in two samples": (
        lambda of: VISION(of([[2, 2]]), None, [[2, 2, 2]], attention_mask=[[1, 2]],
                          split_frames=True),
        "in one row and sample",
    ),
    "starts of a batch": (
        lambda of: VISION(of([[0, 0], [0, 0]]), starts=[0, 4]),
        ("token_types: expected shape [t] or [1, t] with starts, got [2, 2]; number the samples of "
         "several rows in attention_mask: 1, 1, 2, 2, 2, 0"),
    ),
    "starts and numbers": (
        lambda of: VISION(of([0, 0, 0]), attention_mask=[1, 2, 0], starts=[0, 1, 3]),
        ("attention_mask: expected no more than one number other than 0 beside starts, got [1, 2]; "
         "write attention_mask != 0, or omit starts if these are the numbers of samples"),
    ),
    "starts that end early": (
        lambda of: VISION(of([0, 0, 0]), starts=[0, 2]),
        "starts: expected rising integers from 0 to 3, the number of tokens, got [0, 2]",
    ),
    "packed tokens without starts": (
        lambda of: VISION(of([0, 0, 0])), "token_types: expected shape [b, s], got [3]",
    ),
    "cu_seqlens": (
        lambda of: VISION(of([0, 0, 0]), cu_seqlens=[0, 3]), "got cu_seqlens=...; write starts=...",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", sorted(BAD))
def test_what_is_wrong_is_said(name, kind):
    call, words = BAD[name]
    of = module("torch").tensor if kind == "torch" else np.asarray
    with pytest.raises((ValueError, TypeError)) as caught:
        call(of)
    assert words in str(caught.value)
