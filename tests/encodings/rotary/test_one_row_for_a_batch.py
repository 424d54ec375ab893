"""Positions [1, s], and tables [1, s, P], stand for any batch: as if their row were repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import posenc_native as pn

B, H, S, D = 3, 2, 5, 8
FREQ = pn.rotary.rotary_frequencies(D)[0]
AXES = np.array([0, 1, 1, 0])
ROPE = pn.Rotary(D)
ROW = np.array([[7, 3, 0, 12, 5]])
ROWS = np.stack([ROW, ROW[:, ::-1]])  # of two axes


def heads(seed: int = 0, layout: str = "bhsd") -> np.ndarray:
    sizes = {"b": B, "h": H, "s": S, "d": D}
    shape = [sizes[letter] for letter in layout]
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


Q, K = heads(1), heads(2)[:, :1]

# name: (call of the points, the points with one row for the batch, which axis is the batch)
CALLS: dict[str, tuple[Callable[[Any, Any], Any], np.ndarray, int]] = {
    "apply_rotary": (lambda of, p: pn.apply_rotary(of(Q), p, FREQ), ROW, 0),
    "floats": (lambda of, p: pn.apply_rotary(of(Q), p, FREQ), ROW + 0.25, 0),
    "bshd": (lambda of, p: pn.apply_rotary(of(heads(0, "bshd")), p, FREQ, layout="bshd"), ROW, 0),
    "sbhd": (lambda of, p: pn.apply_rotary(of(heads(0, "sbhd")), p, FREQ, layout="sbhd"), ROW, 0),
    "in place": (lambda of, p: pn.apply_rotary(x := of(Q.copy()), p, FREQ, out=x), ROW, 0),
    "q and k": (lambda of, p: pn.apply_rotary_qk(of(Q), of(K), p, FREQ), ROW, 0),
    "two axes": (lambda of, p: pn.apply_rotary(of(Q), p, FREQ, axis_map=AXES), ROWS, 1),
    "q and k, two axes": (lambda of, p: pn.apply_rotary_qk(of(Q), of(K), p, FREQ, axis_map=AXES),
                          ROWS, 1),
    "summed axes": (lambda of, p: pn.apply_rotary(of(Q), p, np.stack([FREQ, FREQ[::-1]])[:, None]),
                    ROWS, 1),
    "tables": (
        lambda of, p: pn.apply_rotary(of(Q), None, pn.Tables(*pn.rotary_tables(p, FREQ))),
        ROW,
        0,
    ),
    "tables of q and k": (
        lambda of, p: pn.apply_rotary_qk(of(Q), of(K), None, pn.Tables(*pn.rotary_tables(p, FREQ))),
        ROW, 0,
    ),
    "Rotary": (lambda of, p: ROPE(of(Q), of(K), p), ROW, 0),
    "Rotary.apply": (lambda of, p: ROPE.apply(of(Q), p), ROW, 0),
    "Rotary.bind": (lambda of, p: ROPE.bind(of(Q), of(K))(of(Q), of(K), p), ROW, 0),
    "xPos": (
        lambda of, p: pn.apply_rotary_qk(of(Q), of(K), None, pn.rotary.xpos_tables(p, of(FREQ))),
        ROW, 0,
    ),
    "rerotate": (lambda of, p: pn.rerotate(of(Q), p, None, ROPE), ROW, 0),
    "FullWidthRotary": (
        lambda of, p: pn.rotary.FullWidthRotary(ROPE, ROPE).apply(of(Q), p),
        ROW,
        0,
    ),
    "add_sinusoidal": (lambda of, p: pn.add_sinusoidal(of(Q[:, 0]), p), ROW, 0),
    "add_sinusoidal, four axes": (
        lambda of, p: pn.add_sinusoidal(of(Q), p), np.stack([ROW, ROW[:, ::-1]], 1), 0
    ),
}  # fmt: skip


def repeated(points: np.ndarray, axis: int) -> np.ndarray:
    return np.repeat(points, B, axis)


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, tuple):
        return all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    return bool(np.array_equal(np.asarray(ours), np.asarray(theirs)))


@pytest.mark.parametrize("name", CALLS)
def test_of_arrays(backend, name):
    call, points, axis = CALLS[name]
    assert same(call(np.asarray, points), call(np.asarray, repeated(points, axis)))


@pytest.mark.parametrize("name", CALLS)
def test_of_tensors(backend, name):
    torch = pytest.importorskip("torch")
    call, points, axis = CALLS[name]
    one, each = torch.tensor(points), torch.tensor(repeated(points, axis))
    assert same(call(torch.tensor, one), call(torch.tensor, each))


@pytest.mark.parametrize("name", ["Rotary.bind", "bind of tensors"])
def test_bound_calls_serve_it_themselves(native, monkeypatch, name):
    kind = np.asarray
    if name != "Rotary.bind":
        kind = pytest.importorskip("torch").tensor
    q, k, row = kind(Q), kind(K), kind(ROW)
    step, expected = ROPE.bind(q, k), ROPE(q, k, row)
    monkeypatch.setattr(step, "_rotary", None)  # no ordinary call can be made
    assert same(step(q, k, row), expected)


@pytest.mark.parametrize("name", ["floats", "q and k, two axes", "summed axes", "add_sinusoidal"])
def test_gradients_are_summed_over_the_batch(backend, name):
    torch = pytest.importorskip("torch")
    call, points, axis = CALLS[name]
    grads = []
    for given in (points, repeated(points, axis)):
        leaf = torch.tensor(given, dtype=torch.float64, requires_grad=True)
        results = call(torch.tensor, leaf)
        results = results if isinstance(results, tuple) else (results,)
        sum((r * torch.arange(r.numel()).view(r.shape)).sum() for r in results).backward()
        grads.append(leaf.grad)
    one, each = grads
    assert one.shape == points.shape
    # The same numbers of float32 results, added up in another order.
    torch.testing.assert_close(one, each.sum(axis, keepdim=True), rtol=1e-4, atol=1e-2)


def test_second_derivatives():
    torch = pytest.importorskip("torch")
    x = torch.tensor(Q, dtype=torch.float64, requires_grad=True)
    points = torch.tensor(ROW + 0.5, requires_grad=True)
    frequencies = torch.tensor(FREQ)
    call = lambda x, p: pn.apply_rotary(x, p, frequencies).square().mul(x).sum((0, 1, 3))  # noqa: E731
    assert torch.autograd.gradgradcheck(call, (x, points))


@pytest.mark.parametrize("mapped", [None, 0, 1], ids=["one for all", "mapped", "mapped inside"])
def test_under_vmap(backend, mapped):
    torch = pytest.importorskip("torch")
    x = torch.tensor(np.stack([Q, 2 * Q]))
    points = torch.tensor(ROW)
    if mapped is not None:
        points = torch.stack([points, points + 100], mapped)
    for function in (
        lambda x, p: pn.apply_rotary(x, p, torch.tensor(FREQ)),
        lambda x, p: pn.apply_rotary(x, None, pn.Tables(*pn.rotary_tables(p, torch.tensor(FREQ)))),
        lambda x, p: pn.add_sinusoidal(x[:, 0], p),
    ):
        ours = torch.vmap(function, (0, mapped))(x, points)
        rows = [points] * 2 if mapped is None else points.unbind(mapped)
        theirs = [function(one, row.expand(B, S)) for one, row in zip(x, rows, strict=True)]
        assert torch.equal(ours, torch.stack(theirs))


def test_compiled_and_on_the_meta_device():
    torch = pytest.importorskip("torch")
    q, row, frequencies = torch.tensor(Q), torch.tensor(ROW), torch.tensor(FREQ)
    rotate = torch.compile(pn.apply_rotary, backend="aot_eager", fullgraph=True)
    assert torch.equal(rotate(q, row, frequencies), pn.apply_rotary(q, row[0], frequencies))
    meta = pn.apply_rotary(q.to("meta"), row.to("meta"), frequencies.to("meta"))
    assert meta.shape == q.shape
