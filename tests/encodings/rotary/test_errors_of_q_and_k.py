"""Bad calls of q and k: each says why, and has written nothing."""

from __future__ import annotations

import numpy as np
from bad_calls import (
    FREQ,
    NAN,
    Call,
    T,
    V,
    among_tensors,
    assert_held,
    at,
    by_engine,
    elsewhere,
    expanded,
    followed,
    of_values,
    read_only,
    steps,
    x,
)

import posenc_native as pn

PLACES, WHOLE = np.arange(5), pn.sinusoids.frequencies(8)
Q, K, LONG = x(), x(2, 1, 5, 8), x(480)
COS, SIN = x(5, 4), x(5, 4)
PACKED = x(2, 5, 5, 8)
PLACES_IN_Q = x(dtype="f8")
rotate_qk = Call("apply_rotary_qk", q=Q, k=x(), positions=None, inv_freq=FREQ)
rotate_qk_by = Call("apply_rotary_qk by tables", q=Q, k=x(), cos=x(5, 2), sin=x(5, 2))
# Of whole heads, one of k for three of q.
whole_qk = rotate_qk.but(k=K, positions=PLACES, inv_freq=WHOLE)
whole_qk_by = rotate_qk_by.but(k=K, cos=COS, sin=SIN)
# q of 5 tokens, k of 7; heads of 8 dims beside heads of 6.
lengths = rotate_qk.but(k=x(2, 1, 7, 8), inplace=True)
lengths_by = rotate_qk_by.but(k=x(2, 1, 7, 8), inplace=True)
widths = rotate_qk.but(k=x(2, 1, 5, 6), inplace=True)


def pair(first=5, second=7, pairs=2, dtype="f4"):
    return x(first, pairs, dtype=dtype), x(second, pairs, dtype=dtype)


ONE = np.arange(5)
OTHER = np.arange(7)
AT_NAN = np.array([0.0, np.nan, 1, 2, 3, 4, 5])


def alike(call):
    """What is wrong with q and k, with what there is of a rotation, and with memory for both."""
    yield call("q is a list", T, "q", q=[1.0])
    yield call("k is a list", T, "k", k=[1.0])
    yield call("q of int64", T, "q", q=x(dtype=int))
    yield call("k of int64", T, "k", k=x(dtype=int))
    yield call("q and k of int32", T, "q", q=Q.astype("i4"), k=K.astype("i4"))
    yield call("k of float16", T, "k", k=K.astype("f2"))
    yield call("k of float64", T, "k", k=K.astype("f8"), inplace=True)
    yield call("q of other rank", V, "q", q=Q[0], inplace=True)
    yield call("k of other rank", V, "k", k=K[0], inplace=True)
    yield call("k of fewer tokens", V, "k", k=K[:, :, :4], inplace=True)
    yield call("k of more tokens", V, "k", k=x(2, 3, 6, 8))
    yield call("k of other batch", V, "k", k=K[:1], inplace=True)
    yield call("k of other head_dim", V, "k|inv_freq|cos", k=K[..., :6], inplace=True)
    yield call("k of an array", T, "k", k=among_tensors(K), inplace=True)
    yield call("q of an array", T, "k|q", q=among_tensors(Q), inplace=True)
    yield call("k elsewhere", V, "k", k=elsewhere(K), inplace=True)
    for layout in ("bhds", "bhdS", "s"):
        yield call(f"layout {layout}", V, "layout", layout=layout, inplace=True)
    yield call("layout of bytes", T, "layout", layout=b"x")
    for pairing in ("neox", "gptj", 3, -2):
        yield call(f"pairing {pairing}", V, "pairing", pairing=pairing, inplace=True)
    yield call("pairing of bytes", T, "pairing", pairing=b"x")
    yield call("slice past the head", V, "rotary_start", rotary_start=1, inplace=True)
    for start in (0.0, False):
        yield call(f"start {start}", T, "rotary_start", rotary_start=start, inverse=True)
    yield call("in place, read-only q", V, "q", q=read_only(x()), inplace=True)
    yield call("in place, read-only k", V, "k", k=read_only(x(2, 1, 5, 8)), inplace=True)
    yield call("in place, expanded q", V, "q", q=expanded(x()), inplace=True)
    yield call("in place, expanded k", V, "k|out", k=expanded(K), inplace=True)
    yield call("in place, one array", V, "q", k=Q, inplace=True)
    yield call("in place, shared heads", V, "q", q=PACKED[:, :3], k=PACKED[:, 2:], inplace=True)
    yield call("in place, q in k", V, "q|k", q=at(LONG, 0), k=at(LONG, 200)[:, :1], inplace=True)
    yield call("in place and to out", V, "inplace", inplace=True, out=(Q, K))
    yield call("to out, contiguous", V, "contiguous", contiguous=True, out=(Q, K))
    for what, error, argument, out in (
        ("one array", T, "out", Q),
        ("a list", T, "out", [Q, K]),
        ("three", T, "out", (Q, K, K)),
        ("None and k", T, "out[0]", (None, K)),
        ("q and a list", T, "out[1]", (Q, [1.0])),
        ("another shape", V, "out[0]", (x(2, 3, 5, 6), K)),
        ("another dtype", T, "out[1]", (Q, x(2, 1, 5, 8, dtype="f8"))),
        ("each other", V, "out[0]", (K, Q)),
        ("an overlap", V, "out[1]", (PACKED[:, :3], PACKED[:, :1])),
        ("k over q", V, "out[1]", (x(), Q[:, :1])),
        ("read-only", V, "out[1]", (Q, read_only(x(2, 1, 5, 8)))),
        ("q backwards", V, "out[0]", (Q[:, :, ::-1], K)),
    ):
        yield call(f"to {what}", error, argument, out=out)


BAD = [
    *alike(whole_qk),
    *alike(whole_qk_by),
    rotate_qk("scale True, which is 1", T, "scale", scale=True),
    rotate_qk("scale 1 + 0j, which is 1", T, "scale", scale=1 + 0j),
    rotate_qk("scale of q and k beyond float32", V, "scale", scale=-1e39, inplace=True),
    rotate_qk("qk at [3, s]", V, "positions", positions=steps(3, 5)),
    rotate_qk("qk in place over positions", V, "q", q=PLACES_IN_Q, k=x(dtype="f8"),
              positions=PLACES_IN_Q[0, 0, :, 0], inplace=True),
    rotate_qk_by("of q and k: cos of None", T, "cos", cos=None),
    rotate_qk_by("of q and k: sin of None", T, "sin", sin=None),
    rotate_qk_by("q alone of two starts, narrow tables", V, "cos", k=None, rotary_start=(4, 0),
                 cos=x(5, 8), sin=x(5, 4)),
    rotate_qk_by("of q and k: cos of int64", T, "cos", cos=steps(5, 2)),
    rotate_qk_by("of q and k: cos of [3, s, P]", V, "cos", cos=x(3, 5, 2), sin=x(3, 5, 2)),
    rotate_qk_by("of q and k: a scalar cos", V, "cos", cos=np.array(1.0), sin=np.array(0.0)),
    rotate_qk_by("of q and k: cos of full width", V, "cos", cos=x(5, 8), sin=x(5, 8)),
    lengths("lengths without a pair", V, "k", positions=None),
    lengths("positions of q too long", V, "positions[0]", positions=(OTHER, OTHER)),
    lengths("positions of k too short", V, "positions[1]", positions=(ONE, ONE)),
    lengths("positions of q of bools", T, "positions[0]", positions=(ONE > 1, OTHER)),
    lengths("positions of k of text", T, "positions[1]", positions=(ONE, "1234567")),
    lengths("k from beyond 64 bits", V, "positions[1]", positions=(None, 2**63)),
    lengths("axes of k alone", V, "positions[1]", positions=(np.stack([ONE, ONE]), OTHER),
            axis_map=np.array([0, 1])),
    lengths("three positions", T, "positions", positions=(ONE, OTHER, OTHER)),
    rotate_qk("k of other dtype, again", T, "k", k=x(2, 1, 7, 8, dtype="f8"),
              positions=(ONE, OTHER)),
    rotate_qk("k of other width", V, "k", k=x(2, 1, 7, 6), positions=(ONE, OTHER)),
    rotate_qk("k of other rank, again", V, "k", k=x(1, 7, 8), positions=(ONE, OTHER)),
    rotate_qk("pair, one array", V, "q", k=Q, positions=(ONE, ONE), inplace=True),
    widths("starts of k past the head", V, "rotary_start[1]", rotary_start=(0, 3)),
    widths("starts of q past the head", V, "rotary_start[0]", rotary_start=(5, 0)),
    widths("starts negative", V, "rotary_start[1]", rotary_start=(0, -1)),
    widths("starts of a float", T, "rotary_start[0]", rotary_start=(0.0, 1)),
    widths("three starts", T, "rotary_start", rotary_start=(0, 1, 2)),
    widths("a list of starts", T, "rotary_start", rotary_start=[0, 1]),
    widths("one start for two widths", V, "k", rotary_start=0),
    lengths_by("cos a pair, sin not", T, "sin", cos=pair(), sin=x(5, 2)),
    lengths_by("sin a pair, cos not", T, "cos", cos=x(5, 2), sin=pair()),
    lengths_by("tables of k too short", V, "cos[1]", cos=pair(5, 5), sin=pair(5, 5)),
    lengths_by("tables of q too long", V, "cos[0]", cos=pair(7, 7), sin=pair(5, 7)),
    lengths_by("sines of k too wide", V, "sin[1]", cos=pair(), sin=(x(5, 2), x(7, 3))),
    lengths_by("cosines of int", T, "cos[0]", cos=pair(dtype="i4"), sin=pair()),
    lengths_by("sines of other dtype", T, "sin[1]", cos=pair(), sin=(x(5, 2), x(7, 2, dtype="f8"))),
    lengths_by("tables, lengths without a pair", V, "k", cos=x(5, 2), sin=x(5, 2)),
    lengths_by("tables, starts past the head", V, "rotary_start[1]", cos=pair(), sin=pair(),
               rotary_start=(0, 5)),
    rotate_qk("no q and no k", T, "q", q=None, k=None),
    rotate_qk("k alone, positions too short", V, "positions", q=None, k=x(2, 1, 7, 8),
              positions=ONE, inplace=True),
    rotate_qk("k alone, of int", T, "k", q=None, k=x(dtype="i4")),
    rotate_qk("q alone, memory for k", T, "out[1]", k=None, out=(x(), x())),
    rotate_qk_by("k alone, memory of other shape", V, "out[1]", q=None, out=(None, x(2, 3, 5, 6))),
    lengths_by("rows of q too few", V, "rows[0]", cos=x(9, 2), sin=x(9, 2),
               rows=(np.arange(4), np.arange(7))),
    lengths_by("rows of k of floats", T, "rows[1]", cos=x(9, 2), sin=x(9, 2),
               rows=(np.arange(5), np.arange(7) / 2)),
    rotate_qk_by("k over sin", V, "k", k=PACKED[:, :1], sin=PACKED[1, 0, :, :2], inplace=True),
    *(
        whole_qk(f"{dtype} positions", T, "positions", positions=np.ones(5, dtype))
        for dtype in ("complex64", "bool", "float16", "bfloat16", "float8_e4m3fn")
    ),
    whole_qk("positions [3, b, s] without axis_map", V, "positions",
             positions=np.tile(PLACES, (3, 2, 1))),
    whole_qk_by("by tables: cos of wrong length", V, "cos", cos=COS[:4], inplace=True),
    whole_qk_by("by tables: sin of other width", V, "sin", sin=SIN[:, :3], inplace=True),
    whole_qk_by("by tables: integer cos", T, "cos", cos=COS.astype("i4")),
    whole_qk_by("by tables: sin of another dtype", T, "sin", sin=SIN.astype("f8"), inplace=True),
    whole_qk("scale of bytes", T, "scale", scale=b"x"),
    whole_qk("q elsewhere", V, "k|inv_freq|positions", q=elsewhere(Q), inplace=True),
    whole_qk("qk: positions elsewhere", V, "positions", positions=elsewhere(PLACES), inplace=True),
    whole_qk("qk: inv_freq elsewhere", V, "inv_freq", inv_freq=elsewhere(WHOLE), inplace=True),
    whole_qk_by("by tables: cos elsewhere", V, "cos", cos=elsewhere(COS), inplace=True),
    whole_qk_by("by tables: sin elsewhere", V, "sin", sin=elsewhere(SIN), inplace=True),
    whole_qk_by("by tables: sin of an array", T, "sin", sin=among_tensors(SIN), inplace=True),
    whole_qk("positions of a dict", T, "positions", positions={}),
    # --- Where q requires a gradient, the call goes another way.
    whole_qk("followed: unknown pairing", V, "pairing", q=followed(Q), pairing="neox"),
    whole_qk_by("followed: cos of wrong length", V, "cos", q=followed(Q), cos=followed(COS[:4])),
    whole_qk_by("followed: k of another dtype", T, "k", q=followed(Q), k=K.astype("f8")),
    # --- Values are looked at only where that needs no wait: on the CPU.
    *of_values(
        lengths("positions of k not a number", V, "positions[1]", positions=(ONE, AT_NAN)),
        lengths("an axis that positions of k lack", V, "axis_map",
                positions=(np.stack([ONE, ONE]), OTHER[None]), axis_map=np.array([0, 1])),
        lengths_by("rows of k beyond", V, "rows[1]", cos=x(9, 2), sin=x(9, 2),
                   rows=(np.arange(5), np.arange(7) + 3)),
        whole_qk("NaN positions in qk", V, "positions", positions=np.array([0, 1, NAN, 3, 4], "f4"),
                 inplace=True),
    ),
]  # fmt: skip
GOOD = [
    whole_qk.good("whole heads"),
    whole_qk_by.good("by tables of whole heads"),
    whole_qk.good("q and k in one memory", q=LONG.reshape(2, 3, 5, 16)[..., :8],
                  k=LONG.reshape(2, 3, 5, 16)[..., 8:], inplace=True),
    whole_qk_by.good("by tables: q and k in one memory", q=LONG.reshape(2, 3, 5, 16)[..., :8],
                     k=LONG.reshape(2, 3, 5, 16)[..., 8:], inplace=True),
    whole_qk_by.good("by tables: a number of NumPy as start", rotary_start=np.int64(0),
                     pairing=np.int32(4)),
    whole_qk.good("a number of NumPy as scale", scale=np.float32(2)),
]  # fmt: skip


@by_engine([*BAD, *GOOD])
def test_bad_calls_say_why_and_write_nothing(rows, engine, device):
    assert_held(rows, engine, device)
