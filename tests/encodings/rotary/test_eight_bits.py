"""Caches of 8 bits: the float32 results divided by a scale, rounded once by ml_dtypes' casts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from matrices import product
from oracle import DTYPES, assert_same_bits
from targets import written_past_the_cache

import posenc_native as pn

FORMATS = {
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, 448),
    "float8_e5m2": (ml_dtypes.float8_e5m2, 57344),
    "int8": (np.int8, 127),
}
HEADS, TOKENS, SLOTS = 3, 5, 9


def rounded(x: np.ndarray, scale: Any, name: str) -> np.ndarray:
    """The bytes of float32 numbers divided by a scale."""
    x = x.astype(np.float32) / np.float32(scale)
    if name == "int8":
        return np.nan_to_num(x.clip(-128, 127).round()).astype(np.int8).view(np.uint8)
    kind, most = FORMATS[name]
    numbers = x.clip(-most, most).astype(kind).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), numbers)


def inputs(dtype: str, dims: int, width: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = (2, 4, TOKENS, dims), (2, HEADS, TOKENS, dims), (2, HEADS, TOKENS, width)
    return [(3 * rng.standard_normal(shape)).astype(DTYPES[dtype]) for shape in shapes]


def caches(dtype: Any, dims: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    empty = np.zeros((2, HEADS, SLOTS, dims + width), np.uint8)
    if np.dtype(dtype).itemsize > 1:
        return tuple(np.zeros((*empty.shape[:-1], d), dtype) for d in (dims, width))
    # Parts of wider rows.
    return empty[..., :dims].view(dtype), empty[..., dims:].view(dtype)


SCALES = ("none", "numbers", "of heads", "made")


@product(
    name=[*FORMATS], dtype=[*DTYPES], dims=[(64, 64), (128, 40), (24, 20), (64, 200)],
    pairing=["half", "interleaved"], norm=[None, "head", "token", "as_written"], scale=SCALES,
    past=[False, True],
)  # fmt: skip
def test_a_row_is_rounded_once(name, dtype, dims, pairing, norm, scale, past, target):
    kind, most = FORMATS[name]
    q, k, v = inputs(dtype, *dims)
    rope = pn.Rotary(dims[0], pairing=pairing)
    slots = np.array([[0, 3, -1, 8, 1], [4, 2, 1, 0, 7]])
    options: dict[str, Any] = {}
    if norm is not None:
        options = {"norm": True, "norm_over": "token" if norm == "token" else "head"}
        options["k_weight"] = np.linspace(-1, 2, HEADS * dims[0], dtype=np.float32)
        options["k_weight"] = options["k_weight"].reshape(HEADS, -1)
    as_written = norm == "as_written"
    if as_written:
        options["compute"] = norm
    wide = [
        x if as_written else x.astype(max(x.dtype, np.dtype("f"), key=_size)) for x in (q, k, v)
    ]
    exact = caches(wide[0].dtype, *dims)
    rope.append(*wide, slots + 2**20, *exact, slots, **options)
    divided = [np.float32(1)] * 2
    of_call: dict[str, Any] = {}
    if scale == "numbers":
        of_call = {"k_scale": 0.013, "v_scale": 2}
        divided = [np.float32(0.013), np.float32(2)]
    elif scale == "of heads":
        of_heads = np.array([0.25, 0.013, 7, 9, 9], np.float32)[:HEADS]
        of_call = {"k_scale": of_heads[::-1], "v_scale": np.array([0.3], np.float32)}
        divided = [of_heads[::-1, None, None], np.float32(0.3)]
    elif scale == "made":
        made = np.full((2, 2, SLOTS, HEADS), 7, np.float32).swapaxes(2, 3)
        of_call["scales"] = tuple(made)
        divided = [np.abs(x.astype("f")).max(-1, keepdims=True) / np.float32(most) for x in exact]
    kept = caches(kind, *dims)
    with written_past_the_cache(1 if past else 1 << 40):
        result, k_result = rope.append(
            q, k, v, slots + 2**20, *kept, slots, return_k=True, **of_call, **options
        )
    for i, (cache, x, by) in enumerate(zip(kept, exact, divided, strict=True)):
        assert_same_bits(cache.view(np.uint8), rounded(x, np.where(by == 0, 1, by), name))
        if scale == "made":
            written = np.zeros((2, HEADS, SLOTS), bool)
            for row in range(2):
                written[row][:, slots[row][slots[row] >= 0]] = True
            assert_same_bits(made[i], np.where(written, by[..., 0], np.float32(7)))
    as_before = caches(k.dtype, *dims)
    wanted = rope.append(q, k, v, slots + 2**20, *as_before, slots, return_k=True, **options)
    assert_same_bits(result, wanted[0])
    assert_same_bits(k_result, wanted[1])


def _size(dtype: np.dtype) -> int:
    return dtype.itemsize


def every_kind_of_number() -> np.ndarray:
    """Numbers around every rounding boundary of the formats, from the bits of float32."""
    upper = np.arange(1 << 12, dtype=np.uint32) << 20
    around = np.array([0, 1, 2], np.uint32) - 1
    boundaries = np.concatenate([upper, upper + (1 << 19), upper + (1 << 20)])
    halves = np.arange(-129, 129, 0.5, dtype=np.float32).view(np.uint32)
    bits = (np.concatenate([boundaries, halves])[:, None] + around).ravel()
    return bits.view(np.float32)


@pytest.mark.parametrize("name", FORMATS)
def test_every_kind_of_number_is_rounded_as_ml_dtypes_does(name, target):
    """Ties, subnormal numbers, both zeros, infinities, NaN; and a NaN anywhere among others."""
    numbers = every_kind_of_number()
    v = np.resize(numbers, (1, 1, -(-len(numbers) // 128), 128))
    nan_among_ones = np.where(np.eye(128, dtype=bool), np.float32(np.nan), np.float32(1))
    v = np.concatenate([v, nan_among_ones[None, None]], 2)
    q = k = np.zeros((*v.shape[:3], 2), np.float32)
    kind = FORMATS[name][0]
    keys, values = np.zeros(k.shape, kind), np.zeros(v.shape, kind)
    for scale in (1, 2.0**-7, 0.37):
        slots = np.arange(v.shape[2])
        with np.errstate(all="ignore"):
            pn.rotary_append(q, k.copy(), v, None, [1.0], keys, values, slots, v_scale=scale)
            wanted = rounded(v, scale, name)
        assert_same_bits(values.view(np.uint8), wanted)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_torch_rounds_as_ml_dtypes_does(name):
    torch = pytest.importorskip("torch", reason="requirements/test.txt has it")
    numbers = every_kind_of_number()
    numbers = numbers[np.abs(numbers) <= FORMATS[name][1]]
    theirs = torch.from_numpy(numbers).to(getattr(torch, name)).view(torch.uint8).numpy()
    assert_same_bits(theirs, rounded(numbers, 1, name))


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_zeros_and_of_nan_have_a_scale(name, target):
    """0 / 0 is no number: zeros stay zeros, with the scale 0. A NaN is the scale of its row."""
    kind = FORMATS[name][0]
    k = np.zeros((1, 1, 3, 64), np.float32)
    k[0, 0, 2, 5] = np.nan
    keys, values = np.ones(k.shape, kind), np.ones(k.shape, kind)
    scales = np.ones((2, 1, 1, 3), np.float32)
    pn.Rotary(64).append(k, k.copy(), k.copy(), 0, keys, values, [0, 1, 2], scales=tuple(scales))
    assert not keys[..., :2, :].view(np.uint8).any()
    np.testing.assert_array_equal(scales, np.tile([0, 0, np.nan], (2, 1, 1, 1)))
    k, keys, values = k[..., :0], keys[..., :0], values[..., :0]
    pn.rotary_append(k, k, k, None, [], keys, values, [0, 1, 2], scales=tuple(scales))
    assert not scales.any(), "a row of no numbers has the scale 0"


LAYOUTS = {
    "bhsd": (2, HEADS, SLOTS, 64), "bshd": (2, SLOTS, HEADS, 64), "shd": (40, HEADS, 64),
    "hsd": (HEADS, 40, 64), "pshd": (7, 4, HEADS, 64), "phsd": (7, HEADS, 4, 64),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_a_cache_and_its_scales(layout, target):
    """Numbers times their scale are where the same call writes numbers of k's dtype."""
    q, k, v = inputs("float32", 64, 64)
    rope = pn.Rotary(64)
    slots = np.array([[0, 3, -1, 8, 1], [4, 2, 6, 5, 7]])
    if "b" not in layout:
        slots[1] += 10
    exact = [np.zeros(LAYOUTS[layout], np.float32) for _ in "kv"]
    rope.append(q, k, v, None, *exact, slots, cache_layout=layout)
    kept = [np.zeros(LAYOUTS[layout], ml_dtypes.float8_e5m2) for _ in "kv"]
    scales = np.zeros((2, *LAYOUTS[layout][:-1]), np.float32)
    rope.append(q, k, v, None, *kept, slots, cache_layout=layout, scales=tuple(scales))
    for cache, scale, x in zip(kept, scales, exact, strict=True):
        assert_same_bits(scale, np.abs(x).max(-1) / np.float32(57344))
        by = np.where(scale == 0, 1, scale)[..., None]
        assert_same_bits(cache.view(np.uint8), rounded(x, by, "float8_e5m2"))


def append(backend_module: Any = pn, **changes: Any) -> None:
    """A call that is right without changes."""
    arguments: dict[str, Any] = {
        "q": np.ones((1, 4, 2, 64), "f"), "k": np.ones((1, 2, 2, 64), "f"),
        "v": np.ones((1, 2, 2, 64), "f"), "positions": None, "inv_freq": pn.Rotary(64),
        "keys": np.zeros((1, 2, 8, 64), np.int8), "values": np.zeros((1, 2, 8, 64), np.int8),
        "slots": [0, 1], **changes,
    }  # fmt: skip
    backend_module.rotary_append(**arguments)


SCALES_OF = np.ones((1, 2, 8), np.float32)
ERRORS = {
    "another format": (
        {"keys": np.zeros((1, 2, 8, 64), np.int16)},
        "keys: expected the dtype of k, float32, or float8_e4m3fn, float8_e5m2 or int8, got int16",
    ),
    "a scale of a cache of floats": (
        {"keys": np.zeros((1, 2, 8, 64), "f"), "k_scale": 0.5},
        "k_scale: expected None, or keys of float8_e4m3fn, float8_e5m2 or int8, got keys of",
    ),
    "scales of a cache of floats": (
        {"values": np.zeros((1, 2, 8, 64), "f"), "scales": (None, SCALES_OF)},
        "scales[1]: expected None, or values of float8_e4m3fn, float8_e5m2 or int8, got values",
    ),
    "zero": ({"v_scale": 0.0}, "v_scale: expected a positive finite number in float32, got 0"),
    "0 in float32": ({"v_scale": 1e-50}, "v_scale: expected a positive finite number in float32"),
    "an int past float64": (
        {"k_scale": 10**400}, "k_scale: expected a positive finite number in float32, got inf",
    ),
    "too large": ({"v_scale": 1e39}, "v_scale: expected a positive finite number in float32"),
    "one of heads": (
        {"k_scale": np.array([1, -1], "f")}, "k_scale: expected positive finite numbers, got -1",
    ),
    "number of heads": (
        {"k_scale": np.ones(3, "f")},
        "k_scale: expected a number, or shape [1] or [H] = [2], got shape [3]",
    ),
    "dtype": ({"k_scale": np.ones(2)}, "k_scale: expected dtype float32, got float64"),
    "kind": ({"k_scale": "1"}, "k_scale: expected a number or an array [1] or [H], got str"),
    "both": (
        {"k_scale": 0.5, "scales": (SCALES_OF.copy(), None)},
        "k_scale: expected None beside memory for scales, got a scale",
    ),
    "shape": (
        {"scales": (None, np.ones((1, 8, 2), "f"))},
        "scales[1]: expected the shape of values without d, [1, 2, 8], got [1, 8, 2]",
    ),
    "a pair": ({"scales": SCALES_OF}, "scales: expected a pair (k_scales, v_scales), got ndarray"),
    "the same memory": (
        {"scales": (SCALES_OF, SCALES_OF)},
        "scales[0]: expected no memory in common with scales[1], got an overlap",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_say_what_to_write(name, native):
    changes, message = ERRORS[name]
    before = {key: value.copy() for key, value in changes.items() if hasattr(value, "copy")}
    with pytest.raises((ValueError, TypeError)) as caught:
        append(**changes)
    assert message in str(caught.value)
    for key, value in before.items():
        np.testing.assert_array_equal(changes[key], value)


@pytest.mark.parametrize("name", [*ERRORS])
def test_the_plain_implementation_refuses_the_same(name, backend):
    with pytest.raises((ValueError, TypeError)):
        append(**ERRORS[name][0])


@pytest.mark.parametrize("scale", [np.float64(0.5), np.float32(0.5), 2.0**128 - 2.0**103.5])
def test_what_rounds_to_a_number_of_float32_is_a_scale(scale, backend):
    values = np.zeros((1, 2, 8, 64), np.int8)
    append(values=values, v_scale=scale)
    assert (values[:, :, :2] == np.rint(1 / np.float32(scale))).all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", FORMATS)
def test_the_plain_implementation_rounds_likewise(name, scale, backend):
    kind, most = FORMATS[name]
    q, k, v = inputs("bfloat16", 64, 40)
    v[0, 0, 0] = 0
    v[1, 0, 2, 0] = -1e6
    slots = np.array([[0, 3, -1, 8, 1], [4, 2, 1, 0, 7]])
    wide = [x.astype(np.float32) for x in (q, k, v)]
    exact, kept = caches(np.float32, 64, 40), caches(kind, 64, 40)
    rope = pn.Rotary(64)
    rope.append(*wide, slots, *exact, slots)
    of_heads = np.array([0.3, 2, 7], np.float32)
    of_call: dict[str, Any] = {
        "none": {}, "numbers": {"k_scale": 0.3, "v_scale": 0.3},
        "of heads": {"k_scale": of_heads, "v_scale": of_heads[::-1]},
        "made": {"scales": tuple(np.zeros((2, 2, HEADS, SLOTS), "f"))},
    }[scale]  # fmt: skip
    rope.append(q, k, v, slots, *kept, slots, **of_call)
    for i in range(2):
        by = {"none": 1, "numbers": 0.3}.get(scale, of_heads[:: 1 - 2 * i, None, None])
        if scale == "made":
            by = np.abs(exact[i]).max(-1, keepdims=True) / np.float32(most)
            assert_same_bits(of_call["scales"][i], by[..., 0])
            by = np.where(by == 0, 1, by)
        assert_same_bits(kept[i].view(np.uint8), rounded(exact[i], by, name))
