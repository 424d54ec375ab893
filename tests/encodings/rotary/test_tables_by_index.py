"""Tables by row, by head and by axis: the same as tables that were gathered and expanded first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rotating
from rotating import Call, each_engine, each_writing_engine

import posenc_native as pn
from posenc_native.engines.plain import arrays as reference

FREQ = pn.rotary.rotary_frequencies(8)[0]
CACHE = pn.rotary_tables(50, FREQ)  # [50, 4]
AXES = np.array([0, 2, 1, 0])
ROWS = np.array([7, 0, 49, 7, 3])
EACH = np.stack([ROWS, ROWS[::-1]])


def heads(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def angles(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of their own for every index."""
    at = np.random.default_rng(len(shape)).uniform(-3, 3, shape).astype(np.float32)
    return np.cos(at), np.sin(at)


Q, K = heads(2, 4, 5, 8), heads(2, 4, 5, 8, seed=1)

# name: layout, what is rotated, tables, options.
CALLS: dict[str, tuple[str, np.ndarray, tuple[np.ndarray, np.ndarray], dict[str, Any]]] = {
    "rows [s]": ("bhsd", Q, CACHE, {"rows": ROWS}),
    "rows [1, s]": ("bhsd", Q, CACHE, {"rows": ROWS[None]}),
    "rows [b, s]": ("bhsd", Q, CACHE, {"rows": EACH, "pairing": "interleaved"}),
    "rows [t]": ("thd", heads(5, 3, 8), CACHE, {"rows": ROWS.astype(np.int32)}),
    "rows of bytes": ("bhsd", Q, CACHE, {"rows": EACH.astype(np.uint8), "inverse": True}),
    "rows of a strided table": (
        "bhsd", Q, tuple(t[::-2] for t in CACHE), {"rows": EACH // 3, "compute": "as_written"}
    ),
    "rows of a part": (
        "bhsd", Q, tuple(t[:, :2] for t in CACHE), {"rows": ROWS, "rotary_start": 3}
    ),
    "of heads [b, h, s, P]": ("bhsd", Q, angles(2, 4, 5, 4), {}),
    "of heads [1, h, s, P]": ("bhsd", Q, angles(1, 4, 5, 4), {"pairing": "interleaved"}),
    "of heads, bshd": ("bshd", heads(2, 5, 4, 8), angles(2, 4, 5, 4), {"pairing": 4}),
    "of heads [h, s, P]": ("hsd", Q[0], angles(4, 5, 4), {"inverse": True}),
    "of heads, packed": ("thd", heads(5, 4, 8), angles(4, 5, 4), {"rotary_start": 0}),
    "one for all heads": ("bhsd", Q, angles(2, 1, 5, 4), {}),
    "axes [A, s, P]": ("bhsd", Q, angles(3, 5, 4), {"axis_map": AXES}),
    "axes [A, b, s, P]": ("bhsd", Q, angles(3, 2, 5, 4), {"axis_map": AXES, "pairing": 4}),
    "axes [A, 1, s, P]": (
        "bhsd", Q, angles(3, 1, 5, 4), {"axis_map": AXES.astype(np.uint8), "compute": "as_written"}
    ),
    "axes and heads": ("bhsd", Q, angles(3, 2, 4, 5, 4), {"axis_map": AXES}),
    "axes and heads, no batch": ("hsd", Q[0], angles(3, 4, 5, 4), {"axis_map": AXES}),
}  # fmt: skip


def plain(layout: str, table: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """The table as [b, h, s, P], each 1 where all have the same; gathered and expanded."""
    if "rows" in options:
        table = table[options["rows"]]
    if "axis_map" in options:
        table = np.stack([table[a, ..., p] for p, a in enumerate(options["axis_map"])], -1)
    if "h" in layout and table.ndim == ("b" in layout) + 3:
        return table if "b" in layout else table[None]
    return table[:, None] if table.ndim == 3 else table[None, None]


def head_by_head(layout: str, x: np.ndarray, tables: Any, options: dict[str, Any]) -> np.ndarray:
    """By calls for one head each, of the reference in float64."""
    wide = [plain(layout, table, options) for table in tables]
    order = [
        layout.replace("t", "s").index(axis) for axis in "bhsd" if axis in layout or axis == "s"
    ]
    moved = x.transpose(order).astype(np.float64)
    moved = moved if "b" in layout else moved[None]
    of_call = {"compute", "pairing", "rotary_start", "inverse"}
    kept = {name: value for name, value in options.items() if name in of_call}
    kept.pop("compute", None)
    results = []
    for head in range(moved.shape[1]):
        cos, sin = (table[:, head % table.shape[1]] for table in wide)
        record = rotating.turned_by(cos, sin, "bsd", **kept)
        results.append(reference.apply_rotary(moved[:, head], *record, None))
    stacked = np.stack(results, 1)
    return (stacked if "b" in layout else stacked[0]).transpose(np.argsort(order))


def call_of(name: str, **more: Any) -> Call:
    layout, x, tables, options = CALLS[name]
    return Call("apply_rotary by tables", (x,), tables, {"layout": layout, **options, **more})


@each_engine
def test_as_gathered_tables(engine):
    calls = {name: call_of(name) for name in CALLS}
    for name, results in rotating.results_of_all(engine, calls).items():
        rotating.assert_close(results, (head_by_head(*CALLS[name]),), what=name)


@each_writing_engine
def test_of_q_and_k(engine):
    """In place, to the bits of a call for each."""
    both, alone = {}, {}
    for name, (layout, x, tables, options) in CALLS.items():
        named = {"layout": layout, **options}
        pair = (x.copy(), x[::-1].copy())
        both[name] = Call("apply_rotary_qk by tables", pair, tables, {**named, "inplace": True})
        for i, y in enumerate(pair):
            alone[name, i] = Call("apply_rotary by tables", (y.copy(),), tables, named)
    expected = rotating.results_of_all(engine, alone)
    for name, results in rotating.results_of_all(engine, both).items():
        for i, ours in enumerate(results):
            np.testing.assert_array_equal(ours, expected[name, i][0], err_msg=name)
        np.testing.assert_array_equal(both[name].rotated[0], results[0], err_msg=name)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
@rotating.each_exact_engine
def test_engines_agree_to_the_bit(engine, name, dtype):
    layout, x, tables, options = CALLS[name]
    call = Call(
        "apply_rotary by tables",
        (x.astype(dtype),),
        tuple(table.astype(dtype) for table in tables),
        {"layout": layout, **options},
    )
    (native,) = rotating.results_of("native", call)
    np.testing.assert_array_equal(rotating.results_of(engine, call)[0], native)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("engine", ["operators", "plain"])
def test_gradients_are_the_transpose(engine, name):
    call = call_of(name)
    weights = (heads(*call.rotated[0].shape, seed=7),)
    back = call_of(name, inverse=not call.named.get("inverse", False))
    expected = head_by_head(*CALLS[name][:1], weights[0], CALLS[name][2], back.named)
    rotating.assert_close(rotating.gradients_of(engine, call, weights), (expected,))


def test_gradients_reach_the_rows_of_tables():
    torch = pytest.importorskip("torch")
    cos, sin = (torch.tensor(t, requires_grad=True) for t in CACHE)
    rows = torch.tensor(EACH)
    pn.apply_rotary(torch.tensor(Q), None, pn.Tables(cos, sin, rows=rows)).sum().backward()
    assert cos.grad is not None
    used = torch.zeros(50, dtype=torch.bool)
    used[rows.flatten()] = True
    assert (cos.grad.abs().sum(-1) > 0).equal(used)


def test_rows_of_q_and_of_k(backend):
    """A query at the end of its keys: one cache of angles, rows of its own for each."""
    q, k = heads(2, 4, 1, 8), heads(2, 2, 9, 8)
    rows = np.array([8]), np.arange(9)
    both = pn.apply_rotary_qk(q, k, None, pn.Tables(*CACHE, rows=rows))
    np.testing.assert_array_equal(
        both[0], pn.apply_rotary(q, None, pn.Tables(*CACHE, rows=rows[0]))
    )
    np.testing.assert_array_equal(
        both[1], pn.apply_rotary(k, None, pn.Tables(*CACHE, rows=rows[1]))
    )
    alone = pn.apply_rotary_qk(None, k, None, pn.Tables(*CACHE, rows=rows))[1]
    np.testing.assert_array_equal(alone, both[1])


def test_tables_of_heads_where_k_has_fewer(backend):
    q, k = heads(2, 4, 5, 8), heads(2, 2, 5, 8)
    (q_cos, q_sin), (k_cos, k_sin) = angles(2, 4, 5, 4), angles(1, 2, 5, 4)
    both = pn.apply_rotary_qk(q, k, None, pn.Tables((q_cos, k_cos), (q_sin, k_sin)))
    np.testing.assert_array_equal(both[0], pn.apply_rotary(q, None, pn.Tables(q_cos, q_sin)))
    np.testing.assert_array_equal(both[1], pn.apply_rotary(k, None, pn.Tables(k_cos, k_sin)))


def test_no_row_is_read_that_is_not_there():
    """Kernels of CUDA get rows that nobody has looked at: the nearest is taken."""
    torch = pytest.importorskip("torch")
    from posenc_native.engines.plain import rotary
    from posenc_native.engines.torch.turns import frequency_turns

    rows = torch.tensor([-5, 0, 60, 49, 2**40])
    record = rotating.turned_by(*map(torch.tensor, CACHE), rows=rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rotary, "readable", lambda *tensors: False)
        (ours,) = rotary.apply_rotary("test", (torch.tensor(Q),), record, frequency_turns)
    clamped = np.clip(rows.numpy(), 0, 49)
    rotating.assert_close(
        (ours.numpy(),), (pn.apply_rotary(Q, None, pn.Tables(*CACHE, rows=clamped)),)
    )


# As other projects call it


def test_as_vllm_rotates_by_its_cache():
    """RotaryEmbedding.forward_native of vLLM: cos_sin_cache.index_select(0, positions)."""
    torch = pytest.importorskip("torch")
    cache = torch.cat([torch.tensor(t) for t in CACHE], -1)  # [n, 2P], one beside the other
    positions = torch.tensor([3, 49, 0, 12, 3])
    query = torch.tensor(heads(5, 6 * 16))  # of 16 dims, of which 8 are turned
    heads_of = query.view(5, 6, 16)
    cos, sin = cache.index_select(0, positions).chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    x1, x2 = heads_of[..., :8].chunk(2, dim=-1)
    turned = torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)
    expected = torch.cat((turned, heads_of[..., 8:]), -1)
    ours = pn.apply_rotary(
        heads_of, None, pn.Tables(cache[:, :4], cache[:, 4:], rows=positions), layout="thd"
    )
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


def test_as_onnx_rotates_by_position_ids():
    """RotaryEmbedding of ONNX opset 23: x [b, h, s, d], caches [n, d/2], position_ids [b, s]."""
    position_ids = EACH
    cos, sin = (table[position_ids][:, None] for table in CACHE)
    x1, x2 = np.split(Q, 2, axis=-1)
    expected = np.concatenate((cos * x1 - sin * x2, sin * x1 + cos * x2), axis=-1)
    ours = pn.apply_rotary(Q, None, pn.Tables(*CACHE, rows=position_ids))
    rotating.assert_close((ours,), (expected,))
    x1, x2 = Q[..., ::2], Q[..., 1::2]
    pairs = np.stack((cos * x1 - sin * x2, sin * x1 + cos * x2), -1).reshape(Q.shape)
    ours = pn.apply_rotary(Q, None, pn.Tables(*CACHE, rows=position_ids), pairing="interleaved")
    rotating.assert_close((ours,), (pairs,))


def test_sections_as_in_qwen2_vl():
    """apply_multimodal_rotary_pos_emb: cos [3, b, s, d], in sections of time, rows, columns."""
    torch = pytest.importorskip("torch")
    q = torch.tensor(Q)
    sections = [1, 2, 1]
    half = [torch.tensor(table) for table in angles(3, 2, 5, 4)]
    cos, sin = (torch.cat([t, t], -1) for t in half)
    cos, sin = (
        torch.cat([m[i % 3] for i, m in enumerate(t.split(sections * 2, dim=-1))], -1).unsqueeze(1)
        for t in (cos, sin)
    )
    rotated = torch.cat((-q[..., 4:], q[..., :4]), -1)
    expected = q * cos + rotated * sin
    axis_map = torch.tensor([0, 1, 1, 2])
    ours = pn.apply_rotary(q, None, pn.Tables(*half, axis_map=axis_map))
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-6)
