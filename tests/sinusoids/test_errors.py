"""Bad calls of sinusoidal tables: each says why, and has written nothing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from bad_calls import (
    BIG_ENDIAN,
    INF,
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
    of_tensors,
    of_values,
    read_only,
    repeated,
    steps,
    window,
    x,
)

X, OUT, LONG, TABLE, SMALL = x(), x(), x(480), x(5, 8), x(5, 8)
TIMES, SUMS = np.zeros((5, 8)), np.zeros((2, 5, 8))
HALVES = np.zeros(80, np.float32)  # each position is a float32 of the result and one beside it
PLACES = np.arange(5)
table = Call("sinusoidal", positions=3, dim=8)
add = Call("add_sinusoidal", x=SMALL)
shift = Call("shift_matrix", offset=1, dim=8)
whole_table = table.but(positions=PLACES)
whole_add = add.but(x=X, positions=PLACES)

BAD = [
    table("negative count", V, "positions", positions=-3),
    table("odd dim", V, "dim", dim=7),
    table("negative dim", V, "dim", dim=-2),
    table("dim of float", T, "dim", dim=8.0),
    table("dim of bool", T, "dim", dim=True),
    table("dim of None", T, "dim", dim=None),
    table("dim of None at positions", T, "dim", positions=np.arange(3), dim=None),
    table("count beyond memory", V, "positions|result", positions=2**62),
    table("count beyond int64", V, "positions|result", positions=2**80),
    table("product overflows", V, "positions|result", positions=2**46, dim=2**16),
    table(
        "product of array overflows",
        V,
        "positions|result",
        positions=np.broadcast_to(np.int64(1), (2**52,)),
        dim=2**10,
    ),
    table(
        "product of axes overflows",
        V,
        "positions|result",
        positions=np.broadcast_to(np.int8(1), (2**20, 2**20, 2**19)),
        dim=64,
    ),
    table("base zero", V, "base", base=0),
    table("base negative", V, "base", base=-1.0),
    table("base nan", V, "base", base=NAN),
    table("base inf", V, "base", base=INF),
    table("base subnormal", V, "base", base=1e-320),
    table("base subnormal for one pair", V, "base", dim=2, base=1e-320),
    table("frequencies too far apart", V, "shift", dim=4, base=1e300, shift=1.5),
    table("dim beyond memory", V, "dim|positions|result", dim=2**62),
    table("base text", T, "base", base="1e4"),
    table("base complex", T, "base", base=1j),
    table("shift dim / 2", V, "shift", shift=4),
    table("shift above", V, "shift", shift=100.0),
    table("shift nan", V, "shift", shift=NAN),
    table("shift -inf", V, "shift", shift=-INF),
    table("shift None", T, "shift", shift=None),
    table("scale nan", V, "scale", scale=NAN),
    table("scale inf", V, "scale", scale=INF),
    table("scale True", T, "scale", scale=True),
    table("scale text", T, "scale", scale="2"),
    table("frequencies too large", V, "scale", scale=1e30),
    table("table layout", V, "layout", layout="sincos"),
    table("table layout of int", T, "layout", layout=1),
    table("table layout of None", T, "layout", layout=None),
    table("table of int32", T, "dtype", dtype=np.int32),
    table("table of complex", T, "dtype", dtype="c8"),
    table("table of longdouble", T, "dtype", dtype=np.longdouble),
    table("table big-endian", T, "dtype", dtype=BIG_ENDIAN),
    table("table of no dtype", T, "dtype", dtype="floaty"),
    table("table of float8", T, "dtype", dtype=ml_dtypes.float8_e4m3fn),
    table("bool count", T, "positions", positions=True),
    table("no positions", T, "positions", positions=None),
    table("text positions", T, "positions", positions="abc"),
    table("ragged positions", T, "positions", positions=[[1, 2], [3]]),
    *(
        table(f"positions of {dtype}", T, "positions", positions=np.ones(3, dtype))
        for dtype in [
            *("bool", "complex64", "complex128", "float16", "bfloat16", "longdouble", "object"),
            *(">i8", ">f4", "U3", "m8[s]", "int4", "float8_e5m2", "float8_e4m3fn"),
        ]
    ),
    table("position 2^63", V, "positions", positions=[0, 2.0**63]),
    table("position -2^63 as a float", V, "positions", positions=[0, -(2.0**63)]),
    table("table out of other shape", V, "out", out=x(3, 6)),
    table("table out transposed", V, "out", out=x(8, 3)),
    table("table out with an axis more", V, "out", out=x(1, 3, 8)),
    table("table out of int64", T, "out|dtype", out=x(3, 8, dtype=int)),
    table("table out of other dtype", T, "out", out=x(3, 8), dtype=np.float64),
    table("table out big-endian", T, "out|dtype", out=x(3, 8, dtype=BIG_ENDIAN)),
    table("table out read-only", V, "out", out=read_only(x(3, 8))),
    table("table out of stride 0", V, "out", out=expanded(x(3, 8))),
    table("table out is a list", T, "out", out=[1.0]),
    table("table out of touching windows", V, "out", positions=5, out=window(x(36), (5, 8), 7, 1)),
    add("sum with None", T, "x", x=None),
    add("sum of one axis", V, "x", x=x(8)),
    add("sum of odd dim", V, "dim", x=x(5, 7)),
    add("sum of int32", T, "x", x=x(5, 8, dtype=np.int32)),
    add("sum of complex", T, "x", x=x(5, 8, dtype=np.complex64)),
    add("sum of longdouble", T, "x", x=x(5, 8, dtype=np.longdouble)),
    add("sum big-endian", T, "x", x=x(5, 8, dtype=BIG_ENDIAN)),
    add("sum at too many positions", V, "positions", x=x(2, 5, 8), positions=steps(6)),
    add("sum at [1, t]", V, "positions", x=x(2, 5, 8), positions=steps(1, 4)),
    add("sum at [b, 1]", V, "positions", x=x(2, 5, 8), positions=steps(2, 1)),
    add("sum from beyond 64 bits", V, "positions", x=x(2, 5, 8), positions=2**63),
    add("sum at a float", T, "positions", x=x(2, 5, 8), positions=5.0),
    table("a float for a count", T, "positions", positions=4096.0),
    table("a NumPy float for a count", T, "positions", positions=np.float32(7.5)),
    add("sum at [s, b]", V, "positions", x=x(2, 5, 8), positions=steps(5, 2)),
    add("sum layout", V, "layout", layout="bhsd"),
    add("sum base subnormal", V, "base", base=1e-320),
    add("sum base", V, "base", base=-2),
    add("sum shift", V, "shift", shift=4.0),
    add("x_scale nan", V, "x_scale", x_scale=NAN),
    add("x_scale text", T, "x_scale", x_scale="1"),
    add("alpha inf", V, "alpha", alpha=INF),
    add("x_scale beyond float32", V, "x_scale", x_scale=-1e39),
    add("alpha complex", T, "alpha", alpha=1j),
    add("sum out of other shape", V, "out", out=x(4, 8)),
    add("sum out of other dtype", T, "out", out=x(5, 8, dtype=np.float64)),
    add("sum out read-only", V, "out", out=read_only(x(5, 8))),
    add("sum out of stride 0", V, "out", out=expanded(x(5, 8))),
    add("sum out over x", V, "out", x=(a := x(3, 3, 5, 8))[:2], out=a[1:]),
    add("sum out over x backwards", V, "out", out=SMALL[::-1]),
    shift("shift by an array", T, "offset", offset=[1, 2]),
    shift("shift of odd dim", V, "dim", dim=7),
    shift("shift by nan", V, "offset", offset=NAN),
    shift("shift by text", T, "offset", offset="1"),
    shift("shift layout", V, "layout", layout="sin"),
    table("out over positions", V, "out", positions=TIMES[:, 0], out=TIMES),
    table(
        "out over halves of positions",
        V,
        "out",
        positions=HALVES[:40].view(np.int64)[:20].reshape(5, 4)[:, 3],
        out=HALVES[1::2].reshape(5, 8),
    ),
    add(
        "sum out over positions",
        V,
        "out",
        x=x(2, 5, 8, dtype="f8"),
        positions=SUMS[0, :, 0],
        out=SUMS,
    ),
    *(
        add(f"sum at {dtype}", T, "positions", positions=np.ones(5, dtype))
        for dtype in ("complex64", "bool", "float16", "bfloat16", "float8_e4m3fn")
    ),
    whole_add("add: positions too long", V, "positions", positions=np.arange(6)),
    whole_add(
        "add: positions [b, s] for [b, h, s, d]", V, "positions", positions=np.tile(PLACES, (2, 1))
    ),
    whole_table("odd dim, again", V, "dim", dim=7),
    whole_table("negative dim, again", V, "dim", dim=-2),
    whole_table("negative count, again", V, "positions", positions=-1, device="cpu"),
    whole_table("unknown table layout", V, "layout", layout="half"),
    whole_add("table layout of None", T, "layout", layout=None),
    whole_add("8-bit x to add to", T, "x", x=X.astype("float8_e5m2")),
    whole_table("integer table", T, "dtype", dtype=np.dtype("int32")),
    whole_table("8-bit table", T, "dtype", dtype=np.dtype("float8_e4m3fn")),
    whole_table("a dtype by an unknown name", T, "dtype", dtype="float99"),
    whole_table("a NumPy dtype that torch has not", T, "dtype", dtype="longdouble"),
    whole_table("dim of a fraction", T, "dim", dim=8.0),
    whole_table("dim of a bool", T, "dim", dim=True),
    whole_table("base 0", V, "base", base=0.0),
    whole_add("negative base", V, "base", base=-1.0, out=X),
    whole_table("base NaN", V, "base", base=NAN),
    whole_table("base infinite", V, "base", base=INF),
    whole_table("base of text", T, "base", base="1e4"),
    whole_table("shift of dim / 2", V, "shift", shift=4.0),
    whole_add("scale NaN", V, "scale", scale=NAN, out=X),
    whole_table("scale too large", V, "scale", scale=2.0**63),
    whole_add("x_scale beyond float32, again", V, "x_scale", x_scale=1e39),
    whole_add("alpha beyond float32, again", V, "alpha", alpha=1e39, out=X),
    whole_table("base subnormal, again", V, "base", base=1e-320),
    whole_add("alpha of None", T, "alpha", alpha=None),
    whole_add("out of a list", T, "out", out=OUT.tolist()),
    whole_add("add: out of another shape", V, "out", out=OUT[:, :, :4]),
    whole_add("add: out of another dtype", T, "out", out=OUT.astype("f2")),
    whole_add("add: expanded out", V, "out", out=expanded(OUT)),
    whole_table("table: out of another shape", V, "out", dim=6, out=TABLE),
    whole_table("table: out of integers", T, "out|dtype", out=TABLE.astype("i4")),
    whole_table("table: out of an array", T, "out", out=among_tensors(TABLE)),
    whole_table("table: out elsewhere", V, "out", device="meta", out=TABLE),
    whole_add("add: one element on", V, "out", x=at(LONG, 0), out=at(LONG, 1)),
    whole_table(
        "a table in its positions", V, "out", positions=LONG[3:8], out=LONG[:40].reshape(5, 8)
    ),
    whole_add("add: positions elsewhere", V, "positions", positions=elsewhere(PLACES)),
    whole_add("add: out elsewhere", V, "out", out=elsewhere(X)),
    whole_table(
        "table: positions elsewhere", V, "positions", positions=elsewhere(PLACES), out=TABLE
    ),
    whole_table("table: positions here, result there", V, "positions", device="meta"),
    whole_table("a count past all memory", V, "positions|result", positions=2**62, device="cpu"),
    *of_tensors(
        whole_table(
            "a count past int64", V, "positions|result", positions=2**70, dtype=np.dtype("float32")
        )
    ),
    whole_table(
        "a count times dim", V, "positions|result|dim", positions=2**40, dim=2**30, device="cpu"
    ),
    whole_table("a dim past int64", V, "dim", dim=2**64),
    whole_table("dim past all memory", V, "positions|result|dim", dim=2**62),
    whole_table(
        "expanded positions", V, "positions|result", positions=repeated(steps(1), 2**60), dim=16
    ),
    whole_add("add: x of a list", T, "x", x=X.tolist()),
    whole_add("add: x of an array, out a tensor", T, "out", x=among_tensors(X), out=OUT),
    whole_table("a bool for a count", T, "positions", positions=True, device="cpu"),
    whole_add(
        "followed: positions too long", V, "positions", x=followed(X), positions=np.arange(6)
    ),
    whole_add("frequencies too large", V, "scale", scale=1e19),
    # --- Values are looked at only where that needs no wait: on the CPU.
    *of_values(
        table("nan position", V, "positions", positions=np.array([1, NAN])),
        table("inf position", V, "positions", positions=np.array([1, -INF], np.float32)),
        add("sum at nan", V, "positions", positions=np.full(5, NAN)),
        whole_table(
            "NaN positions for a table", V, "positions", positions=np.array([0, 1, NAN, 3, 4], "f4")
        ),
        whole_add(
            "NaN positions to add",
            V,
            "positions",
            positions=np.array([0, 1, NAN, 3, 4], "f4"),
            out=X,
        ),
    ),
]
GOOD = [
    whole_table.good("a table"),
    whole_add.good("a sum"),
    whole_table.good("a dtype by its name", dtype="float16"),
    whole_table.good("a dtype of NumPy", dtype=np.float64),
]


@by_engine([*BAD, *GOOD])
def test_bad_calls_say_why_and_write_nothing(rows, engine, device):
    assert_held(rows, engine, device)
