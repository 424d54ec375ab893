"""Bad calls of rotations: each says why, and has written nothing."""

from __future__ import annotations

import numpy as np
from bad_calls import (
    BIG_ENDIAN,
    FREQ,
    INF,
    NAN,
    SHAPE,
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
    repeated,
    steps,
    window,
    x,
)

import posenc_native as pn

MEMORY = np.zeros((2, 3, 5, 8))
X, OUT, LONG = x(), x(), x(480)
COS, SIN, FEW = x(5, 4), x(5, 4), x(5, 4)
PLACES, WHOLE = np.arange(5), pn.sinusoids.frequencies(8)
ROWS = np.array([0, 1, 2, 3, 9])
tables = Call("rotary_tables", positions=3, inv_freq=FREQ)
rotate = Call("apply_rotary", x=X, positions=None, inv_freq=FREQ)
rotate_by = Call("apply_rotary by tables", x=X, cos=x(5, 2), sin=x(5, 2))
# Of whole heads.
whole_tables = tables.but(positions=PLACES, inv_freq=WHOLE)
whole = rotate.but(positions=PLACES, inv_freq=WHOLE)
whole_by = rotate_by.but(cos=COS, sin=SIN)
describe = Call("Rotary", head_dim=8)


def by_rows(what, error, argument, cos, **options):
    """x [2, 3, 5, 8] by tables of this shape, in place."""
    cos, sin = x(*cos), x(*cos)
    return rotate_by(what, error, argument, cos=cos, sin=sin, out=X, **options)


BAD = [
    tables("tables of negative count", V, "positions", positions=-1),
    *(
        tables(f"tables at {dtype}", T, "positions", positions=steps(dtype=dtype))
        for dtype in ("bool", "complex64", "complex128", "float16", "bfloat16", "float8_e4m3fn")
    ),
    tables("tables at None", T, "positions", positions=None),
    tables("tables beyond memory", V, "positions|result", positions=2**62, inv_freq=np.ones(8)),
    tables("tables of int frequencies", T, "inv_freq", inv_freq=np.array([1, 2])),
    tables("tables of half frequencies", T, "inv_freq", inv_freq=np.ones(2, np.float16)),
    tables("tables of no frequencies", T, "inv_freq", inv_freq=None),
    tables("tables of [1, P]", V, "inv_freq", inv_freq=np.ones((1, 2))),
    tables("tables of a scalar", V, "inv_freq", inv_freq=0.5),
    *(
        tables(f"tables scale {scale!r}", V, "scale", scale=scale, dtype=dtype)
        for scale, dtype in ((NAN, "f4"), (1e39, "f4"), (1e300, "f2"))
    ),
    *(tables(f"tables scale {scale!r}", T, "scale", scale=scale) for scale in ("1", True)),
    tables("tables of uint8", T, "dtype", dtype="u1"),
    tables("tables axis_map of a count", V, "positions", axis_map=[0, 0]),
    tables("tables axis_map of a scalar", V, "positions", positions=np.array(3), axis_map=[0, 0]),
    tables("tables axis_map too long", V, "axis_map", positions=steps(2, 5), axis_map=[0, 1, 1]),
    # --- apply_rotary: x, layout, pairing, slice, positions, frequencies, axes, out
    rotate("rotate a list", T, "x", x=[1.0]),
    rotate("rotate None", T, "x", x=None),
    *(
        rotate(f"rotate {dtype}", T, "x", x=x(dtype=dtype))
        for dtype in (
            *("bool", "int32", "complex64", "longdouble", BIG_ENDIAN),
            *("float8_e5m2", "float8_e4m3fn"),
        )
    ),
    rotate("rank below the layout's", V, "x", x=x(3, 5, 8)),
    rotate("rank above the layout's", V, "x", x=x(1, 2, 3, 5, 8)),
    *(
        rotate(f"layout {layout!r}", V, "layout", layout=layout, out=X)
        for layout in (
            *("", "d", "bhd", "tsd", "sthd", "stsd", "bhds", "bhsx", "bhss", "bsdd", "bbsd"),
            *("xhsd", "BHSD", "bhtd", "dbhs", "bhsdd", "bhs d", "bhs", "hbd", "bhdd", "bhxd"),
        )
    ),
    *(
        rotate(f"layout {layout!r}", T, "layout", layout=layout)
        for layout in (tuple("bhsd"), list("bhsd"), b"bhsd")
    ),
    *(
        rotate(f"pairing {pairing!r}", V, "pairing", pairing=pairing)
        for pairing in (
            *("neox", "none", "", "4", " 4", "4.0", "Half"),
            *(0, -2, 3, 6, 8, 10, 16, 2**64, 10**30),
        )
    ),
    *(
        rotate(f"pairing {pairing!r}", T, "pairing", pairing=pairing)
        for pairing in [4.0, True, (2,)]
    ),
    *(
        rotate(f"scale {scale!r}", T, "scale", scale=scale) for scale in (True, "2", np.array(2.0))
    ),
    *(
        rotate(f"scale {scale!r}", V, "scale", scale=scale, out=X)
        for scale in (NAN, INF, 1e39, 2.0**128 - 2.0**103)
    ),
    rotate("odd head", V, "inv_freq", x=x(5, 3), layout="sd"),
    *(
        rotate(f"slice at {start}", V, "rotary_start", rotary_start=start, out=X)
        for start in (-2, 5, 2**62, 2**63 - 1, 2**64)
    ),
    rotate("slice of float", T, "rotary_start", rotary_start=2.0),
    rotate("slice of bool", T, "rotary_start", rotary_start=True),
    rotate("[1, s] of another s", V, "positions", positions=steps(1, 4)),
    rotate("[b, 1] of a length", V, "positions", positions=steps(2, 1)),
    rotate("[2, s] without a batch", V, "positions", x=x(3, 5, 8), positions=steps(2, 5),
           layout="hsd"),
    rotate_by("a column too many", V, "cos", cos=x(5, 5), sin=x(5, 5)),
    rotate("[s, 1]", V, "positions", positions=steps(5, 1)),
    rotate("[1, b, s] without axis_map", V, "positions", positions=steps(1, 2, 5)),
    rotate("[s, b]", V, "positions", positions=steps(5, 2)),
    rotate("[b, s] without a batch", V, "positions", x=x(3, 5, 8), positions=steps(3, 5),
           layout="hsd"),
    rotate("[1, t] of packed tokens", V, "positions", x=x(5, 3, 8), positions=steps(1, 5),
           layout="thd"),
    *(rotate(f"{n} positions", V, "positions", positions=steps(n)) for n in (1, 4, 6)),
    rotate("scalar position", V, "positions", positions=np.array(5)),
    rotate("first of tokens beyond 64 bits", V, "positions", positions=2**63 - 2),
    rotate("first of tokens below 64 bits", V, "positions", positions=-(2**63) - 1),
    rotate("rotate at True", T, "positions", positions=True),
    rotate("rotate at text", T, "positions", positions="12345"),
    *(
        rotate(f"rotate at {dtype}", T, "positions", x=x(dtype="f2"), positions=steps(dtype=dtype))
        for dtype in (
            *("bool", "complex64", "complex128", "float16", "bfloat16", "longdouble", ">i4"),
            *("object", "float8_e4m3fn"),
        )
    ),
    *(
        rotate(f"frequencies {f!r}", T, "inv_freq", inv_freq=f)
        for f in ([1, 2], "ab", None, *map(FREQ.astype, ("f2", "i4", "c16")))
    ),
    rotate("[1, 1, 1, P] frequencies", V, "inv_freq", inv_freq=FREQ[None, None, None]),
    rotate("[2, P] frequencies for 3 heads", V, "inv_freq", inv_freq=np.stack([FREQ] * 2)),
    rotate("[A, 1, P] frequencies without positions", V, "positions", inv_freq=FREQ[None, None]),
    rotate("[0, 1, P] frequencies", V, "inv_freq", positions=np.ones((0, 5)),
           inv_freq=FREQ[None, None][:0]),
    rotate("[A, 1, P] frequencies of other axes", V, "positions", positions=np.ones((3, 5)),
           inv_freq=FREQ[None, None]),
    rotate("[A, 1, P] frequencies and an axis_map", V, "axis_map", positions=np.ones((1, 5)),
           inv_freq=FREQ[None, None], axis_map=np.zeros(4, int)),
    rotate("axis_map without positions", V, "positions", axis_map=[0, 0]),
    rotate("axis_map with [s]", V, "positions", positions=steps(5), axis_map=[0, 0]),
    rotate("axis_map with [A, b, s] of other b", V, "positions", positions=steps(3, 4, 5),
           axis_map=[0, 0]),
    rotate("axis_map with [b, s, A]", V, "positions", positions=steps(2, 5, 3), axis_map=[0, 0]),
    rotate("axis_map too short", V, "axis_map", positions=steps(3, 5), axis_map=[0]),
    rotate("axis_map of two axes", V, "axis_map", positions=steps(3, 5), axis_map=[[0, 1]]),
    *(
        rotate(f"axis_map {axes!r}", T, "axis_map", positions=steps(3, 5), axis_map=axes)
        for given in ([0.0, 1.0], [False, True])
        for axes in (given, np.array(given))
    ),
    rotate("out of other shape", V, "out", out=x(2, 3, 5, 6)),
    rotate("out of other rank", V, "out", out=x(6, 5, 8)),
    rotate("out of other dtype", T, "out", out=x(dtype=np.float64)),
    rotate("out of bits", T, "out", out=x(dtype=np.int32)),
    rotate("out big-endian", T, "out", out=x(dtype=BIG_ENDIAN)),
    rotate("out is a list", T, "out", out=[1]),
    rotate("out read-only", V, "out", out=read_only(x())),
    rotate("in place read-only", V, "out", x=(a := read_only(x())), out=a),
    rotate("out of stride 0", V, "out", out=expanded(x())),
    rotate("in place of stride 0", V, "out|x", x=(a := expanded(x())), out=a),
    *(
        rotate(f"out {strides}", V, "out", x=FEW, out=window(x(40), (5, 4), *strides), layout="sd")
        for strides in [(0, 1), (1, 1), (3, 1), (2, 4)]
    ),
    rotate("out over x", V, "out", x=(a := x(3, 3, 5, 8))[:2], out=a[1:]),
    rotate("out over x backwards", V, "out", out=X[:, :, ::-1]),
    rotate("out over x transposed", V, "out", x=(a := x(5, 5, 8)), out=a.swapaxes(0, 1),
           layout="hsd"),
    rotate("out over x by one element", V, "out", x=(a := x(41))[:40].reshape(5, 8),
           out=a[1:].reshape(5, 8), layout="sd"),
    rotate_by("another compute", V, "compute", compute="fp32"),
    rotate_by("compute of None", T, "compute", compute=None),
    rotate_by("tables for int32", T, "x", x=x(dtype="i4")),
    rotate_by("cos of int64", T, "cos", cos=steps(5, 2)),
    rotate_by("cos of None", T, "cos", cos=None),
    rotate_by("sin of None", T, "sin", sin=None),
    rotate_by("cos of complex", T, "cos", cos=x(5, 2) * 1j),
    rotate_by("sin of other dtype", T, "sin", sin=x(5, 2, dtype=np.float64)),
    rotate_by("cos of other length", V, "cos", cos=x(4, 2), sin=x(4, 2)),
    rotate_by("cos of [P]", V, "cos", cos=x(2), sin=x(2)),
    rotate_by("cos of a scalar", V, "cos", cos=np.array(1.0), sin=np.array(0.0)),
    rotate_by("sin of other shape", V, "sin", sin=x(5, 1)),
    rotate_by("tables of whole heads", V, "cos", cos=x(5, 8), sin=x(5, 8)),
    rotate_by("tables out of other shape", V, "out", out=x(2, 3, 5, 7)),
    rotate_by("tables pairing", V, "pairing", pairing="gptj"),
    describe("description of odd head", V, "head_dim", head_dim=7),
    describe("description of odd part", V, "rotary_dim", rotary_dim=3),
    describe("description past the head", V, "rotary_start", rotary_dim=6, rotary_start=4),
    describe("description of no pairing", V, "pairing", pairing="neox"),
    describe("description of float axes", T, "axis_map", head_dim=4, axis_map=[0.0, 1.0]),
    describe("description of few axes", V, "axis_map", axis_map=[0, 1]),
    rotate("out over positions", V, "out", x=x(dtype=np.float64), positions=MEMORY[0, 0, :, 0],
           out=MEMORY),
    rotate("out over inv_freq", V, "out", x=x(dtype=np.float64), inv_freq=MEMORY[0, 0, 0, :2],
           out=MEMORY),
    rotate_by("tables out over cos", V, "out", cos=OUT[0, 0, :, :2], out=OUT),
    by_rows("rows of floats", T, "rows", (10, 2), rows=ROWS * 1.0),
    by_rows("rows of bools", T, "rows", (10, 2), rows=ROWS > 2),
    by_rows("rows of text", T, "rows", (10, 2), rows="01234"),
    by_rows("too few rows", V, "rows", (10, 2), rows=ROWS[:4]),
    by_rows("rows of another batch", V, "rows", (10, 2), rows=np.stack([ROWS] * 3)),
    by_rows("rows of tables by token", V, "cos|rows", (2, 10, 2), rows=ROWS),
    by_rows("rows of no row", V, "cos|rows", (0, 2), rows=ROWS),
    by_rows("rows and axes", V, "axis_map", (10, 2), rows=ROWS, axis_map=np.array([0, 0])),
    by_rows("tables of other heads", V, "cos", (2, 4, 5, 2)),
    by_rows("tables of heads, another batch", V, "cos", (3, 3, 5, 2)),
    by_rows("tables of heads, another length", V, "cos", (2, 3, 4, 2)),
    by_rows("tables of heads and no batch", V, "cos", (3, 5, 2)),
    by_rows("tables of five axes", V, "cos", (1, 2, 3, 5, 2)),
    by_rows("axes of tables, too many", V, "axis_map", (3, 5, 2), axis_map=np.array([0, 1, 2])),
    by_rows("axes of tables, of floats", T, "axis_map", (3, 5, 2), axis_map=np.array([0.0, 1.0])),
    by_rows("axes of tables without an axis", V, "cos", (5, 2), axis_map=np.array([0, 0])),
    rotate_by("axes of cosines and sines", V, "sin", cos=x(3, 5, 2), sin=x(2, 5, 2),
              axis_map=np.array([0, 1])),
    rotate_by("rows of more cosines than sines", V, "sin", cos=x(10, 2), sin=x(9, 2), rows=ROWS),
    rotate_by("out over rows", V, "out", x=x(dtype="f8"), cos=x(10, 2), sin=x(10, 2), out=MEMORY,
              rows=MEMORY.view(np.int64)[0, 0, :, 0]),
    whole("x without axes", V, "x", x=np.array(1.0, "f4")),
    whole("positions [3, s] without axis_map", V, "positions", positions=np.tile(PLACES, (3, 1)),
          out=X),
    whole("positions [b, s] for packed tokens", V, "positions", x=X[0], layout="htd",
          positions=np.tile(PLACES, (2, 1))),
    whole_tables("axis_map of wrong rank", V, "axis_map", positions=PLACES[None],
                 axis_map=steps(1, 4)),
    whole_tables("inv_freq without axes", V, "inv_freq", inv_freq=np.array(1.0, "f4")),
    whole_by("sin of wrong length", V, "sin", sin=SIN[:4], out=X),
    whole_by("cos [s, 1, P]", V, "cos", cos=COS[:, None]),
    whole("more frequencies than pairs", V, "inv_freq", inv_freq=np.ones(5, "f4"), out=X),
    whole_by("layout of a list", T, "layout", layout=list("bhsd")),
    whole_by("8-bit cos", T, "cos", cos=COS.astype("float8_e4m3fn")),
    whole_tables("complex inv_freq", T, "inv_freq", inv_freq=WHOLE.astype("c16")),
    whole_tables("complex table", T, "dtype", dtype=np.dtype("complex64")),
    whole("out that broadcasts", V, "out", x=X[:1], out=OUT),
    whole("out of another kind", T, "out", out=among_tensors(OUT)),
    whole_by("tables: out of another dtype", T, "out", out=OUT.astype("bfloat16")),
    whole("one element on", V, "out", x=at(LONG, 0), out=at(LONG, 1)),
    whole("one row on", V, "out", x=at(LONG, 8), out=at(LONG, 0)),
    whole("the same memory in another order", V, "out", x=at(LONG, 0),
          out=window(LONG, SHAPE, 120, 8, 24, 1)),
    whole("tokens over each other", V, "out", out=window(LONG, SHAPE, 120, 40, 4, 1)),
    whole_by("tables: one row on", V, "out", x=at(LONG, 0), out=at(LONG, 8)),
    whole_by("out in its own table", V, "out", cos=LONG[:20].reshape(5, 4), out=at(LONG, 0)),
    whole("out in its own positions", V, "out", positions=LONG[100:105], out=at(LONG, 0)),
    whole("positions elsewhere", V, "positions", positions=elsewhere(PLACES)),
    whole("inv_freq elsewhere", V, "inv_freq", inv_freq=elsewhere(WHOLE), out=X),
    whole("x elsewhere", V, "inv_freq|positions|x", x=elsewhere(X)),
    whole("out elsewhere", V, "out", out=elsewhere(X)),
    whole("axis_map elsewhere", V, "axis_map", positions=PLACES[None],
          axis_map=elsewhere(steps(4))),
    whole_by("cos elsewhere", V, "cos", cos=elsewhere(COS), out=X),
    whole_by("sin elsewhere", V, "sin", sin=elsewhere(SIN), out=X),
    whole_tables("tables: inv_freq elsewhere", V, "inv_freq", inv_freq=elsewhere(WHOLE)),
    whole_tables("expanded positions of tables", V, "positions|result",
                 positions=repeated(steps(1), 2**62)),
    whole_tables("expanded positions by axes", V, "positions|result",
                 positions=repeated(steps(1), 2, 2**60), axis_map=np.array([0, 0, 1, 1])),
    whole_by("tables: x of an array, cos a tensor elsewhere", T, "cos", x=among_tensors(X),
             cos=elsewhere(COS)),
    whole_by("cos of an array", T, "cos", cos=among_tensors(COS)),
    whole("x of an array, out a tensor", T, "out", x=among_tensors(X), out=OUT),
    whole("x of an array, positions elsewhere", T, "positions", x=among_tensors(X),
          positions=elsewhere(PLACES)),
    whole("x of an array, positions of bfloat16", T, "positions", x=among_tensors(X),
          positions=PLACES.astype("bfloat16")),
    whole("x of an array, positions with gradient", (V, T), "positions", x=among_tensors(X),
          positions=followed(PLACES.astype("f4"))),
    whole("ragged positions", (V, T), "positions", positions=[[0, 1], [2]]),
    whole("bool positions in a list", T, "positions", positions=[True] * 5),
    # --- Where x requires a gradient, the call goes another way.
    whole("followed: positions too long", V, "positions", x=followed(X), positions=np.arange(6)),
    whole("followed: slice past the head", V, "rotary_start", x=followed(X), rotary_start=1),
    whole("followed: positions elsewhere", V, "positions", x=followed(X),
          positions=elsewhere(PLACES)),
    whole_by("followed: cos of wrong length", V, "cos", x=followed(X), cos=followed(COS[:4])),
    # --- Values are looked at only where that needs no wait: on the CPU.
    *of_values(
        tables("tables at nan", V, "positions", positions=[NAN]),
        tables("tables of nan", V, "inv_freq", inv_freq=np.array([1, NAN])),
        tables("tables of 2^63", V, "inv_freq", inv_freq=np.array([2.0**63])),
        tables("tables axis_map too large", V, "axis_map", positions=steps(2, 5), axis_map=[0, 2]),
        rotate("rotate at nan", V, "positions", positions=[0, 1, 2, 3, NAN]),
        rotate("rotate at inf", V, "positions", positions=np.full((2, 5), INF)),
        *(
            rotate(f"frequencies {f!r}", V, "inv_freq", inv_freq=f)
            for given in ([1, NAN], [1, INF], [1, -(2.0**63)])
            for f in (given, np.array(given))
        ),
        *(
            rotate(f"axis_map {axes!r}", V, "axis_map", positions=steps(3, 5), axis_map=axes)
            for given in ([0, 3], [0, -1])
            for axes in (given, np.array(given))
        ),
        rotate("axis_map beyond int64", V, "axis_map", positions=steps(3, 5),
               axis_map=np.array([0, 2**63], np.uint64)),
        by_rows("a row beyond", V, "rows", (9, 2), rows=ROWS),
        by_rows("a row before", V, "rows", (10, 2), rows=ROWS - 1),
        by_rows("a row beyond int64", V, "rows", (9, 2),
                rows=np.array([0, 1, 2, 3, 2**64 - 1], np.uint64)),
        by_rows("axes of tables, too large", V, "axis_map", (3, 5, 2), axis_map=np.array([0, 3])),
        by_rows("axes of tables, negative", V, "axis_map", (3, 5, 2), axis_map=np.array([-1, 0])),
        whole_tables("inv_freq too large", V, "inv_freq", inv_freq=WHOLE * 1e30),
        whole("NaN positions", V, "positions", positions=np.array([0, 1, NAN, 3, 4], "f4"), out=X),
        whole("positions of 2^63", V, "positions", positions=np.array([0, 1, 2, 3, 2.0**63], "f4"),
              out=X),
    ),
]  # fmt: skip
GOOD = [
    rotate.good("out (1, 5)", x=FEW, out=window(x(40), (5, 4), 1, 5), layout="sd"),
    whole.good("whole heads"),
    whole_by.good("by tables of whole heads"),
    whole_tables.good("tables of whole heads"),
    whole.good("a list of positions", positions=[0, 1, 2, 3, 4]),
    whole.good("an array of positions", positions=np.arange(5)),
    whole.good("an int of positions", positions=5),
    whole.good("a list of frequencies", inv_freq=[1.0, 0.5, 0.25, 0.125]),
    whole.good("a list as axis_map", positions=PLACES[None], axis_map=[0] * 4),
    whole.good("frequencies of no pair", inv_freq=np.zeros(0, "f4")),
    whole.good("out beside x in one memory", x=at(LONG, 0)[..., :8], out=at(LONG, 240)),
    whole.good(
        "out between the rows of x",
        x=LONG.reshape(2, 3, 5, 16)[..., :8],
        out=LONG.reshape(2, 3, 5, 16)[..., 8:],
    ),
    whole.good(
        "an array with tensors as positions", x=among_tensors(X), positions=PLACES, inv_freq=WHOLE
    ),
    whole.good("a number of NumPy as start", rotary_start=np.int64(0)),
    whole.good("a number of NumPy as pairing", pairing=np.int32(4)),
    whole.good("an int as scale", scale=2),
]


@by_engine([*BAD, *GOOD])
def test_bad_calls_say_why_and_write_nothing(rows, engine, device):
    assert_held(rows, engine, device)
