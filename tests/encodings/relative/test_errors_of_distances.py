"""Bad calls of what makes diagonals and indices: each says why."""

from __future__ import annotations

import numpy as np
from bad_calls import INF, NAN, Call, T, V, assert_held, by_engine, elsewhere, steps, x

INTEGER, FLOATS = np.arange(4), np.ones((8, 2))


def same(x):
    return x


positions = Call("relative_positions", q_len=1, k_len=2)
alibi = Call("alibi_diagonals", num_heads=2, q_len=1, k_len=1)
columns = Call("alibi_columns", num_heads=2, k_len=2)
index = Call("clipped_index", q_len=1, k_len=1, left=1)
slopes = Call("alibi_slopes", num_heads=8)
bucket = Call("relative_position_bucket", relative_position=INTEGER)
t5 = Call("t5_diagonals", table=x(32, 3), q_len=1, k_len=1)
kerple = Call("kerple_diagonals", r1=[1.0], r2=[1.0], q_len=1, k_len=1)
sandwich = Call("sandwich_diagonals", num_heads=2, q_len=1, k_len=1)
clipped = Call("clipped_diagonals", table=FLOATS, q_len=1, k_len=1)
swin = Call("swin_diagonals", table=FLOATS, window=(2, 2))
coordinates = Call("swin_v2_coordinates", window=(2, 2))
deberta = Call("deberta_bucket", relative_position=INTEGER, bucket_size=16)
deberta_index = Call("deberta_index", q_len=1, k_len=1)
fire = Call("fire_bias", q_len=1, k_len=1, function=same)
BAD = [
    positions("q_len below 0", V, "q_len", q_len=-1),
    positions("q_len a float", T, "q_len", q_len=1.0),
    positions("too long", V, "result", q_len=2**62, k_len=2**62),
    positions("q_offset a float", T, "q_offset", q_offset=1.0),
    positions("q_offset a bool", T, "q_offset", q_offset=True),
    positions("q_offset of two axes", V, "q_offset", q_offset=[[1]]),
    positions("q_offset too large", V, "q_offset", q_offset=2**62),
    alibi("k_len below 0", V, "k_len", q_len=2, k_len=-1),
    alibi("symmetric an int", T, "symmetric", symmetric=1),
    alibi("slopes too few", V, "slopes", num_heads=3, slopes=[1.0, 2.0]),
    alibi("slopes of three axes", V, "slopes", slopes=np.ones((1, 1, 2))),
    alibi("slopes ints", T, "slopes", num_heads=4, slopes=INTEGER),
    alibi("slopes of another batch", V, "slopes", slopes=FLOATS, q_offset=[1, 2]),
    alibi("dtype an integer", T, "dtype", dtype=np.int32),
    alibi("dtype unknown", T, "dtype", dtype="float31"),
    alibi("slopes elsewhere", V, "slopes", num_heads=3, slopes=elsewhere(x(3)), device="cpu"),
    alibi("slopes of two axes too few", V, "slopes", slopes=x(2, 3)),
    alibi("slopes ints of tensors", T, "slopes", slopes=np.arange(2)),
    alibi("slopes complex", T, "slopes", num_heads=3, slopes=x(2, 3)[0] * 1j),
    alibi("dtype an integer of tensors", T, "dtype", dtype=np.dtype("int8")),
    columns("k_len below 0 of columns", V, "k_len", k_len=-1),
    columns("key_mask of one axis", V, "key_mask", k_len=4, key_mask=INTEGER),
    columns("key_mask too long", V, "key_mask", k_len=3, key_mask=INTEGER[None]),
    columns("key_mask floats", T, "key_mask", key_mask=FLOATS),
    columns("rounding unknown", V, "rounding", rounding="float16"),
    columns("key_mask floats of tensors", T, "key_mask", num_heads=3, k_len=3, key_mask=x(2, 3)),
    index("k_len a bool", T, "k_len", k_len=True),
    index("q_offset floats", T, "q_offset", k_len=2, q_offset=[1.0]),
    index("left below 0", V, "left", left=-1),
    index("right below 0", V, "right", right=-1),
    index("q_offset of two axes", V, "q_offset", q_offset=steps(2, 5)),
    index("q_offset floats of tensors", T, "q_offset", q_offset=x(3)),
    slopes("num_heads below 0", V, "num_heads", num_heads=-1),
    slopes("num_heads a float", T, "num_heads", num_heads=8.0),
    slopes("max_bias 0", V, "max_bias", max_bias=0),
    slopes("max_bias a str", T, "max_bias", max_bias="8"),
    bucket("relative_position floats", T, "relative_position", relative_position=[1.0]),
    bucket("relative_position bools", T, "relative_position", relative_position=[True]),
    bucket("num_buckets odd", V, "num_buckets", bidirectional=True, num_buckets=31),
    bucket("num_buckets 2, bidirectional", V, "num_buckets", bidirectional=True, num_buckets=2),
    bucket("num_buckets 1", V, "num_buckets", bidirectional=False, num_buckets=1),
    bucket("max_distance of the near", V, "max_distance", bidirectional=False, num_buckets=32,
           max_distance=16),
    bucket("bidirectional an int", T, "bidirectional", bidirectional=1),
    bucket("relative_position floats of tensors", T, "relative_position",
           relative_position=x(2, 3)),
    t5("table of one axis", V, "table", table=np.ones(32)),
    t5("table ints", T, "table", table=np.ones((32, 1), int)),
    t5("table odd", V, "num_buckets", table=np.ones((31, 1))),
    t5("q_offset elsewhere", V, "q_offset", q_offset=elsewhere(steps(2))),
    t5("table of three axes", V, "table", table=x(32, 3)[None]),
    kerple("kind unknown", V, "kind", kind="exp"),
    kerple("r1 a number", V, "r1", r1=1.0),
    kerple("r1 negative", V, "r1", r1=[1.0, -0.5], r2=[1.0, 1.0]),
    kerple("r1 zero", V, "r1", r1=[0.0]),
    kerple("r1 nan", V, "r1", r1=[NAN]),
    kerple("r2 negative", V, "r2", r2=[-1.0]),
    kerple("r2 infinite", V, "r2", r2=[INF]),
    kerple("r2 above 2", V, "r2", r2=[2.5], kind="power"),
    kerple("r2 too long", V, "r2", r2=[1.0, 2.0]),
    kerple("r2 ints", T, "r2", r2=[1]),
    kerple("tensors on two devices", V, "r2", r1=x(3), r2=elsewhere(x(3))),
    sandwich("dim odd", V, "dim", dim=3),
    sandwich("base 0", V, "base", base=0.0),
    clipped("no middle row", V, "table"),
    clipped("an empty table", V, "table", table=FLOATS[:0], left=0),
    clipped("left outside", V, "left", left=8),
    swin("window of 0", V, "window", window=(0, 2)),
    swin("window an int", T, "window", window=2),
    swin("window of another size", V, "table"),
    swin("table bools", T, "table", table=x(32, 3) > 0, window=(1, 1)),
    coordinates("window empty", V, "window", window=()),
    coordinates("pretrained_window too long", V, "pretrained_window", pretrained_window=(2, 2, 2)),
    deberta("bucket_size 1", V, "bucket_size", bucket_size=1),
    deberta("bucket_size a float", T, "bucket_size", bucket_size=8.0),
    deberta("max_position of the near", V, "max_position", max_position=9),
    deberta("relative_position bools", T, "relative_position", relative_position=x(2, 3) > 0),
    deberta_index("span 0", V, "span", span=0),
    deberta_index("transposed an int", T, "transposed", transposed=1),
    fire("function no function", T, "function", function=FLOATS),
    fire("function of another shape", V, "function", q_len=2, k_len=3, function=lambda x: x[..., 0],
         q_offset=0),
    fire("c 0", V, "c", c=0.0),
    fire("c two numbers", V, "c", c=np.ones(2)),
    fire("threshold a str", T, "threshold", threshold="512"),
    fire("eps not finite", V, "eps", eps=INF),
    fire("c two numbers of tensors", V, "c", c=x(3)),
]  # fmt: skip


@by_engine(BAD)
def test_bad_calls_say_why_and_write_nothing(rows, engine, device):
    assert_held(rows, engine, device)
