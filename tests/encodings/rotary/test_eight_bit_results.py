"""Results of 8 bits in `out=`, beside exact rounding of the rotation in float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import posenc_native as pn

torch = pytest.importorskip("torch")

FORMATS = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}
LAYOUTS = {"bhsd": (2, 3, 5, 16), "bshd": (2, 5, 3, 16), "sbhd": (5, 2, 3, 16), "thd": (5, 3, 16),
           "hsd": (3, 5, 16), "bsd": (2, 5, 16), "sd": (5, 16)}  # fmt: skip
ROPE = pn.Rotary(16, rotary_dim=8, rotary_start=2)


def rounded(x, scale, name):
    """x / scale rounded to the format; scale broadcasts with x."""
    x = np.asarray(x, np.float32) / np.asarray(scale, np.float32)
    if name == "int8":
        return np.clip(np.rint(x), -128, 127).astype(np.int8)
    of = getattr(ml_dtypes, name)
    return np.clip(x, -FORMATS[name], FORMATS[name]).astype(of)


def randn(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 3


def numbers(x):
    return np.asarray(x.float() if isinstance(x, torch.Tensor) else x, np.float32)


def memory(shape, name, library):
    if library == "numpy":
        return np.zeros(shape, np.int8 if name == "int8" else getattr(ml_dtypes, name))
    return torch.zeros(shape, dtype=getattr(torch, name))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotations_and_norms(layout, name, library):
    shape = LAYOUTS[layout]
    q, k = randn(shape), randn(shape, 1)
    weight = np.linspace(0.5, 2, 16, dtype=np.float32)
    of_heads = np.array([0.05, 0.5, 0.1], np.float32)[: 3 if "h" in layout else 1]
    along = [3 if a == "h" else 1 for a in layout]
    convert = np.asarray if library == "numpy" else torch.from_numpy
    scales = 0.03, convert(of_heads)
    outs = tuple(memory(shape, name, library) for _ in "qk")
    inputs = convert(q), convert(k)
    results = pn.apply_rotary_qk(*inputs, 7, ROPE, layout=layout, out=outs, q_scale=scales[0],
                                 k_scale=scales[1])  # fmt: skip
    assert results[0] is outs[0]
    assert results[1] is outs[1]
    wanted = ROPE(q, k, 7, layout=layout)
    by_head = of_heads.reshape(along) if "h" in layout else of_heads[0]
    assert (numbers(outs[0]) == numbers(rounded(wanted[0], 0.03, name))).all()
    assert (numbers(outs[1]) == numbers(rounded(wanted[1], by_head, name))).all()
    ROPE.norm(*inputs, 7, layout=layout, q_weight=convert(weight), out=outs, q_scale=scales[0],
              k_scale=scales[1])  # fmt: skip
    wanted = ROPE.norm(q, k, 7, layout=layout, q_weight=weight)
    assert (numbers(outs[0]) == numbers(rounded(wanted[0], 0.03, name))).all()
    assert (numbers(outs[1]) == numbers(rounded(wanted[1], by_head, name))).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_rounded_once(dtype):
    """From float32, never through the dtype of q."""
    q, k = (torch.from_numpy(randn((1, 2, 300, 64), i)).to(getattr(torch, dtype)) for i in (0, 1))
    rope = pn.Rotary(64)
    outs = tuple(torch.zeros(x.shape, dtype=torch.float8_e4m3fn) for x in (q, k))
    pn.apply_rotary_qk(q, k, None, rope, out=outs)
    wide = [x if dtype == "float64" else x.float() for x in (q, k)]
    wanted = rope(*wide)
    for out, exact in zip(outs, wanted, strict=True):
        exact = exact.float().clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(out.float(), exact.float())


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_one_alone_pairs_and_one_of_each_kind(library):
    convert = np.asarray if library == "numpy" else torch.from_numpy
    q, k = convert(randn((1, 2, 5, 64))), convert(randn((1, 2, 7, 64), 1))
    rope = pn.Rotary(64)
    positions = convert(np.arange(5)), convert(np.arange(7) + 90)
    wanted = rope(q, k, positions)
    out = memory((1, 2, 5, 64), "int8", library)
    alone = pn.apply_rotary_qk(q, None, positions[0], rope, out=(out, None), q_scale=0.1)
    assert alone[1] is None
    first = numbers(rounded(numbers(wanted[0]), 0.1, "int8"))
    assert (numbers(out) == first).all()
    out[...] = 0
    kept = np.zeros_like(k) if library == "numpy" else torch.zeros_like(k)
    pn.apply_rotary_qk(q, k, positions, rope, out=(out, kept), q_scale=0.1)
    assert (numbers(out) == first).all()
    assert (numbers(kept) == numbers(wanted[1])).all()


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("return_k", [False, True])
def test_queries_of_an_append(return_k, norm):
    q, k, v = (torch.from_numpy(randn((1, h, 5, 64), h)).bfloat16() for h in (4, 2, 2))
    rope = pn.Rotary(64)
    caches = torch.zeros(4, 1, 2, 9, 64, dtype=torch.float8_e4m3fn)
    place = torch.zeros(q.shape, dtype=torch.float8_e4m3fn)
    options = {"norm": norm, "k_scale": 0.1, "return_k": return_k}
    other = torch.zeros_like(k)
    out = (place, other) if return_k else place
    results = rope.append(q, k, v, 3, *caches[:2], range(5), q_scale=0.2, out=out, **options)
    assert (results[0] if return_k else results) is place
    wanted = rope.append(q.float(), k.float(), v.float(), 3, *caches[2:], range(5), **options)
    wanted = wanted[0] if return_k else wanted
    assert torch.equal(caches[:2].float(), caches[2:].float())
    assert (numbers(place) == numbers(rounded(wanted, 0.2, "float8_e4m3fn"))).all()
    if return_k:
        assert (other == rope.norm(None, k, 3)[1] if norm else other == rope.apply(k, 3)).all()


def test_nothing_is_written_by_a_wrong_call():
    q, k = (torch.from_numpy(randn((1, 2, 5, 64), i)) for i in (0, 1))
    rope = pn.Rotary(64)
    of_q, of_k = (torch.zeros(x.shape, dtype=torch.int8) for x in (q, k))
    narrow = torch.zeros(1, 2, 4, 64, dtype=torch.int8)
    cases = {
        "out[1]: expected shape [1, 2, 5, 64]": {"out": (of_q, narrow)},
        "out[1]: expected no memory in common": {"out": (of_q, of_q)},
        "q_scale: expected None without out= of 8 bits": {"q_scale": 0.1},
        "k_scale: expected None, as the result has no 8 bits": {
            "out": (of_q, torch.zeros_like(k)),
            "k_scale": 0.5,
        },
        "k_scale: ": {"out": (of_q, of_k), "k_scale": -1.0},
        "compute: expected 'float32' beside such results of 8 bits": {
            "out": (of_q, of_k),
            "inverse": True,
            "positions": None,
            "inv_freq": pn.Tables(*rope.tables(5), compute="as_written"),
        },
    }
    for text, options in cases.items():
        with pytest.raises(ValueError, match=r"^apply_rotary_qk: ") as raised:
            pn.apply_rotary_qk(q, k, **{"positions": 1, "inv_freq": rope, **options})
        assert text in str(raised.value)
        assert not of_q.any(), text
    with pytest.raises(ValueError, match="gradient"):
        pn.apply_rotary_qk(q.requires_grad_(), k, 1, rope, out=(of_q, of_k))
    keys = torch.zeros(2, 1, 2, 9, 64)
    with pytest.raises(ValueError, match=r"q_scale: expected None, as q is, got 0\.1"):
        rope.append(None, k, k.clone(), 1, *keys, range(5), q_scale=0.1, out=(None, k.clone()),
                    return_k=True)  # fmt: skip
    with pytest.raises(ValueError, match=r"slots"):
        rope.append(q.detach(), k, k.clone(), 1, *keys, [0, 1, 2, 3, 99], out=of_q)
    assert not of_q.any()


SCALED = pn.Rotary(16, query_scale={"beta": 0.5, "original_max_position_embeddings": 8})


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("sbghd", {}), ("bghsd", {"inverse": True}), ("bhsd", {"inverse": True}),
        ("thd", {"out_pairing": "interleaved"}), ("bshd", {"inv_freq": SCALED}),
        ("sbghd", {"inv_freq": SCALED}), ("bsd", {"inv_freq": SCALED}),
    ],
)  # fmt: skip
def test_what_no_cache_has(layout, options, name, library):
    """Groups, the inverse, pairs that move, a factor of queries: rounded once all the same."""
    sizes = {"b": 2, "s": 5, "t": 5, "h": 3, "g": 2, "d": 16}
    shape = [sizes[letter] for letter in layout]
    q, k = randn(shape), randn(shape, 1)
    options = {"inv_freq": pn.Rotary(16), "positions": 7, "layout": layout, **options}
    wanted = pn.apply_rotary_qk(q, k, **options)
    heads = [sizes[x] for x in layout if x in "gh"]
    of_heads = np.linspace(0.05, 0.5, int(np.prod(heads)), dtype=np.float32)
    along = [sizes[x] if x in "gh" else 1 for x in layout]
    convert = np.asarray if library == "numpy" else torch.from_numpy
    outs = tuple(memory(shape, name, library) for _ in "qk")
    pn.apply_rotary_qk(convert(q), convert(k), out=outs, q_scale=0.03,
                       k_scale=convert(of_heads), **options)  # fmt: skip
    for out, x, scale in zip(outs, wanted, (0.03, of_heads.reshape(along)), strict=True):
        assert (numbers(out) == numbers(rounded(x, scale, name))).all()


@pytest.mark.parametrize("norm", [False, True])
def test_scaled_queries_of_norms_and_appends(norm):
    q, k = (torch.from_numpy(randn((2, 3, 5, 16), i)).bfloat16() for i in (0, 1))
    place, caches = torch.zeros(q.shape, dtype=torch.int8), torch.zeros(2, 2, 3, 9, 16)
    SCALED.append(q, k, k.clone(), 30, *caches.bfloat16(), range(5), q_scale=0.1, out=place,
                  norm=norm)  # fmt: skip
    wide = q.float(), k.float()
    wanted = SCALED.norm(*wide, 30)[0] if norm else SCALED(*wide, 30)[0]
    assert (numbers(place) == numbers(rounded(wanted, 0.1, "int8"))).all()
    if norm:
        other = torch.zeros(k.shape, dtype=torch.int8)
        SCALED.norm(q, k, 30, q_scale=0.1, out=(place.zero_(), other))
        assert (numbers(place) == numbers(rounded(wanted, 0.1, "int8"))).all()
