"""Bad calls of what stands before attention: each says why, and has written nothing."""

from __future__ import annotations

import numpy as np
from bad_calls import (
    FREQ,
    INF,
    NAN,
    Call,
    T,
    V,
    assert_held,
    by_engine,
    expanded,
    of_values,
    window,
    x,
)

Q, KEYS = x(), x(2, 3, 9, 8)
PACKED = x(2, 3, 14, 8)  # for keys that share memory with v
append = Call(
    "rotary_append",
    q=Q, k=x(), v=x(), positions=None, inv_freq=FREQ,
    keys=KEYS, values=x(2, 3, 9, 8), slots=np.arange(5),
)  # fmt: skip
norm = Call("norm_rotary_qk", q=Q, k=x(), positions=None, inv_freq=FREQ)

# Four heads of q, two of k.
Q4, K2, V2 = x(2, 4, 5, 8), x(2, 2, 5, 8), x(2, 2, 5, 8)
Q_OUT, K_OUT = x(2, 4, 5, 8), x(2, 2, 5, 8)
CACHE = {"keys": x(2, 2, 9, 8), "values": x(2, 2, 9, 8), "slots": np.arange(5)}
TABLES = {"cos": x(5, 4), "sin": x(5, 4)}
NORMS = [
    norm.but(q=Q4, k=K2),
    Call("norm_rotary_qk by tables", q=Q4, k=K2, **TABLES),
]
APPENDS = [
    append.but(q=Q4, k=K2, v=V2, **CACHE),
    Call("rotary_append by tables", q=Q4, k=K2, v=V2, **TABLES, **CACHE),
]
BOTH = [*NORMS, *(call.but(return_k=True) for call in APPENDS)]
OUTS = [
    ("no pair", T, "out: expected a pair", Q_OUT),
    ("three", T, "out: expected a pair", (Q_OUT, K_OUT, K_OUT)),
    ("None and k", T, "out[0]: expected memory", (None, K_OUT)),
    ("q and a list", T, "out[1]", (Q_OUT, [1.0])),
    ("another shape", V, "out[0]", (K_OUT, K_OUT)),
    ("another dtype", T, "out[1]", (Q_OUT, K_OUT == 0)),
    ("twice the same", V, "out[0]|out[1]", (Q_OUT, Q_OUT[:, :2])),
    ("the other input", V, "out[1]|q", (Q_OUT, Q4[:, 1:3])),
    ("part of itself", V, "out[0]|out[1]", (Q_OUT, Q_OUT[:, 1:3])),
]
OUTS_OF_APPEND = [
    ("v", V, "out[1]", (Q_OUT, V2)),
    ("keys", V, "out[1]|keys", (Q_OUT, CACHE["keys"][:, :, :5])),
    ("values", V, "out[1]|values", (Q_OUT, CACHE["values"][:, :, 2:7])),
]
OUTS_OF_Q = [
    ("a pair", T, "out: expected memory for q", (Q_OUT, K_OUT)),
    ("k's shape", V, "out", K_OUT),
    ("a list", T, "out", [1.0]),
]
BAD = [
    *(
        call(f"to {what}", error, argument, out=out)
        for calls, outs in ((BOTH, OUTS), (BOTH[2:], OUTS_OF_APPEND), (APPENDS, OUTS_OF_Q))
        for call in calls
        for what, error, argument, out in outs
    ),
    *(
        call("in place and to out", V, "inplace: expected False", out=(Q_OUT, K_OUT), inplace=True)
        for call in BOTH
    ),
    # --- What is about the one that is there.
    norm("neither", T, "q: expected q, k or both", q=None, k=None),
    norm("k alone, of int", T, "k", q=None, k=x(dtype=np.int32)),
    norm("k alone, of other rank", V, "k", q=None, k=x(3, 5, 8)),
    norm("q alone without heads", V, "layout: expected letters with h if q or k is None",
         q=x(2, 5, 8), k=None, layout="bsd"),
    norm("k alone, a short weight", V, "k_weight: expected shape [D] or [H, D]", q=None,
         k_weight=np.ones(3)),
    norm("k alone, memory for q", T, "out[0]: expected None, as q is", q=None, out=(x(), x())),
    append("no keys", T, "k: expected keys to write", k=None),
    APPENDS[1]("keys alone, a layout of no text", T, "layout", q=None, layout=True),
    append("keys alone, memory for q", T, "out: expected None, as q is", q=None, out=x()),
    append("few slots", V, "slots", slots=np.arange(4)),
    append("slots of another batch", V, "slots", slots=np.zeros((3, 5), int)),
    append("float slots", T, "slots", slots=np.arange(5.0)),
    append("no slots", T, "slots", slots=None),
    append("a list for keys", T, "keys", keys=[[1.0]]),
    append("keys of another dtype", T, "keys", keys=x(2, 3, 9, 8, dtype=np.float64)),
    append("values of another dtype", T, "values", values=x(2, 3, 9, 8, dtype=np.float16)),
    append("keys of integers", T, "keys", keys=x(2, 3, 9, 8, dtype=np.int32)),
    append("keys of other heads", V, "keys", keys=x(2, 4, 9, 8)),
    append("keys of another batch", V, "keys", keys=x(3, 3, 9, 8)),
    append("narrow values", V, "values", values=x(2, 3, 9, 6)),
    append("fewer values", V, "values", values=x(2, 3, 8, 8)),
    append("keys of three axes", V, "keys", keys=x(3, 9, 8)),
    append("cache of unknown axes", V, "cache_layout", cache_layout="xhsd"),
    append("cache without heads", V, "cache_layout", cache_layout="bsd"),
    append("cache by batch and pages", V, "cache_layout", cache_layout="bpshd"),
    append("cache layout of no text", T, "cache_layout", cache_layout=4),
    append("v of other tokens", V, "v", v=x(2, 3, 4, 8)),
    append("v of another dtype", T, "v", v=x(dtype=np.float64)),
    append("v of integers", T, "v", v=x(dtype=np.int64)),
    append("keys are values", V, "keys|values", values=KEYS),
    append("keys over v", V, "keys", v=PACKED[:, :, 9:], keys=PACKED[:, :, :10],
           values=x(2, 3, 10, 8)),
    append("values over q", V, "values", values=Q, keys=x()),
    append("read-only keys", V, "keys", keys=np.broadcast_to(np.float32(1), (2, 3, 9, 8))),
    append("keys expanded", V, "keys", keys=expanded(x(2, 3, 9, 8))),
    append("values expanded", V, "values", values=expanded(x(2, 3, 9, 8))),
    append("keys over themselves", V, "keys",
           keys=window(x(2, 3, 9, 8), (2, 3, 9, 8), 216, 8, 8, 1)),
    append("scale beyond float32", V, "scale", scale=1e39, norm=True),
    append("a weight and no norm", V, "norm", norm=False, q_weight=np.ones(8)),
    append("q over v in place", V, "q", v=Q, inplace=True),
    norm("weight of other dims", V, "q_weight", q_weight=np.ones(4)),
    norm("weight of other heads", V, "k_weight", k_weight=np.ones((2, 8))),
    norm("weight of a head over a token", V, "q_weight", q_weight=np.ones(8), norm_over="token"),
    norm("weight of integers", T, "q_weight", q_weight=np.ones(8, int)),
    norm("negative eps", V, "eps", eps=-1e-06),
    norm("eps that is none", V, "eps", eps=NAN),
    norm("eps of text", T, "eps", eps="small"),
    norm("mean over nothing known", V, "norm_over", norm_over="batch"),
    norm("mean over no text", T, "norm_over", norm_over=1),
    norm("infinite offset", V, "weight_offset", weight_offset=INF),
    norm("scale beyond float32", V, "scale", scale=1e39),
    norm("unknown rounding", V, "compute", compute="float64"),
    norm("no name of a rounding", V, "compute", compute=""),
    norm("unknown layout", V, "layout", layout="bsh"),
    norm("unknown pairing", V, "pairing", pairing="neox"),
    norm("as written by heads", V, "compute", inv_freq=np.ones((3, 2)), compute="as_written"),
    norm("k of other tokens", V, "k", k=x(2, 3, 4, 8)),
    norm("k of another dtype", T, "k", k=x(dtype=np.float64)),
    norm("q over a weight", V, "q", q_weight=Q[0, 0, 0], inplace=True),
    # --- Values are looked at only where that needs no wait: on the CPU.
    *of_values(
        append("slot outside", V, "slots", slots=np.array([0, 1, 2, 3, 9])),
        append("slot below -1", V, "slots", slots=np.array([0, 1, 2, 3, -2])),
        append("slot of uint64", V, "slots", slots=np.array([0, 1, 2, 3, 2**63], np.uint64)),
        append("slot of uint64 that is -1 as int64", V, "slots",
               slots=np.array([0, 1, 2, 3, 2**64 - 1], np.uint64)),
        append("slot twice", V, "slots", slots=np.array([0, 1, 2, 3, 1])),
        append("slot twice in a row", V, "slots", slots=np.array([range(5), [0, 1, 2, 3, 3]])),
        append("slot twice in a pool", V, "slots", slots=np.array([range(5), range(5)]),
               cache_layout="shd", keys=x(30, 3, 8), values=x(30, 3, 8)),
        # Of two rows of tokens; with -1 alone it would be a good call.
        append("slots for all rows of a pool", V, "slots", cache_layout="shd", keys=x(30, 3, 8),
               values=x(30, 3, 8)),
    ),
]  # fmt: skip


@by_engine(BAD)
def test_bad_calls_say_why_and_write_nothing(rows, engine, device):
    assert_held(rows, engine, device)
