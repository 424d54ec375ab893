"""Bad calls with tensors: the error says which argument, and nothing has been written.

Each call is made by the operators and by the composition of torch operations, on every device.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native.engines.tensors import results  # noqa: E402

device = torch_cases.device


class Inputs:
    """Good arguments, to make bad ones of; `written` are those that a call might write."""

    def __init__(self, device="cpu"):
        self.device = device

        def numbers(*shape, seed):
            return random(shape, device=device, seed=seed)

        self.x = numbers(2, 3, 5, 8, seed=0)
        self.q, self.k = numbers(2, 3, 5, 8, seed=1), numbers(2, 1, 5, 8, seed=2)
        self.out = numbers(2, 3, 5, 8, seed=3)
        self.table = numbers(5, 8, seed=4)
        self.memory = numbers(480, seed=5)
        self.f = torch.tensor(pn.rotary_frequencies(8)[0], device=device)
        self.positions = torch.arange(5, device=device)
        self.cos, self.sin = numbers(5, 4, seed=6), numbers(5, 4, seed=7)
        self.written = [self.x, self.q, self.k, self.out, self.table, self.memory]

    def here(self, tensor):
        """A constant on the device of the other arguments."""
        return tensor.to(self.device)


def meta(tensor):
    return tensor.to("meta")


def rotate(i, **changes):
    arguments = {"x": i.x, "positions": i.positions, "inv_freq": i.f} | changes
    return pn.apply_rotary(**arguments)


def rotate_qk(i, **changes):
    arguments = {"q": i.q, "k": i.k, "positions": i.positions, "inv_freq": i.f} | changes
    return pn.apply_rotary_qk(**arguments)


def rotate_tables(i, **changes):
    return pn.apply_rotary_tables(**{"x": i.x, "cos": i.cos, "sin": i.sin} | changes)


def rotate_qk_tables(i, **changes):
    arguments = {"q": i.q, "k": i.k, "cos": i.cos, "sin": i.sin} | changes
    return pn.apply_rotary_qk_tables(**arguments)


def tables(i, **changes):
    return pn.rotary_tables(**{"positions": i.positions, "inv_freq": i.f} | changes)


def sinusoidal(i, **changes):
    return pn.sinusoidal(**{"positions": i.positions, "dim": 8} | changes)


def add(i, **changes):
    return pn.add_sinusoidal(**{"x": i.x, "positions": i.positions} | changes)


def expanded(size, dtype=torch.long):
    """That many numbers in the memory of one."""
    return torch.zeros((), dtype=dtype).expand(size)


V, T = ValueError, TypeError
COMPLEX, BOOL = torch.zeros(5, dtype=torch.complex64), torch.ones(5, dtype=torch.bool)
NAN = torch.tensor([0.0, 1.0, math.nan, 3.0, 4.0])
FAR = torch.tensor([0.0, 1.0, 2.0, 3.0, 2.0**63])

# name: (error, argument that the message names, call)
SHAPES = {
    "x of wrong rank": (V, "x", lambda i: rotate(i, x=i.x[0])),
    "x of wrong rank for the layout": (V, "x", lambda i: rotate(i, layout="hsd")),
    "x without axes": (V, "x", lambda i: rotate(i, x=torch.tensor(1.0))),
    "q of wrong rank": (V, "q", lambda i: rotate_qk(i, q=i.q[0], inplace=True)),
    "k of wrong rank": (V, "k", lambda i: rotate_qk(i, k=i.k[0], inplace=True)),
    "k of another length": (V, "k", lambda i: rotate_qk(i, k=i.k[:, :, :4], inplace=True)),
    "k of another batch": (V, "k", lambda i: rotate_qk(i, k=i.k[:1], inplace=True)),
    "k of another head_dim": (
        V, "k|inv_freq", lambda i: rotate_qk(i, k=i.k[..., :6], inplace=True),
    ),
    "positions too long": (V, "positions", lambda i: rotate(i, positions=torch.arange(6))),
    "positions too short": (V, "positions", lambda i: rotate(i, positions=torch.arange(4))),
    "one position for all": (V, "positions", lambda i: rotate(i, positions=torch.arange(1))),
    "a position without axes": (V, "positions", lambda i: rotate(i, positions=torch.tensor(3))),
    "positions [1, s] of another s": (
        V, "positions", lambda i: rotate(i, positions=i.positions[None, :4]),
    ),
    "positions [3, s] without axis_map": (
        V, "positions", lambda i: rotate(i, positions=i.positions.expand(3, 5), out=i.x),
    ),
    "positions [3, b, s] without axis_map": (
        V, "positions", lambda i: rotate_qk(i, positions=i.positions.expand(3, 2, 5)),
    ),
    "positions [s] with axis_map": (
        V, "positions", lambda i: rotate(i, axis_map=torch.tensor([0, 0, 0, 0])),
    ),
    "None with axis_map": (
        V, "positions", lambda i: rotate(i, positions=None, axis_map=torch.tensor([0, 0, 0, 0])),
    ),
    "positions [b, s] for packed tokens": (
        V, "positions",
        lambda i: rotate(i, x=i.x[0], layout="htd", positions=i.positions.expand(2, 5)),
    ),
    "axis_map of wrong length": (
        V, "axis_map",
        lambda i: rotate(i, positions=i.positions[None], axis_map=torch.tensor([0, 0])),
    ),
    "axis_map of wrong rank": (
        V, "axis_map",
        lambda i: tables(i, positions=i.positions[None], axis_map=torch.zeros(1, 4).long()),
    ),
    "axis_map past the axes": (
        V, "axis_map",
        lambda i: rotate(i, positions=i.positions[None], axis_map=torch.tensor([0, 0, 0, 1])),
    ),
    "axis_map below 0": (
        V, "axis_map",
        lambda i: rotate(i, positions=i.positions[None], axis_map=torch.tensor([0, 0, 0, -1])),
    ),
    "inv_freq of two axes": (V, "inv_freq", lambda i: tables(i, inv_freq=i.f[None])),
    "inv_freq without axes": (V, "inv_freq", lambda i: tables(i, inv_freq=torch.tensor(1.0))),
    "inv_freq not finite": (V, "inv_freq", lambda i: rotate(i, inv_freq=i.f * math.inf)),
    "inv_freq too large": (V, "inv_freq", lambda i: tables(i, inv_freq=i.f * 1e30)),
    "cos of wrong length": (V, "cos", lambda i: rotate_tables(i, cos=i.cos[:4], out=i.x)),
    "sin of wrong length": (V, "sin", lambda i: rotate_tables(i, sin=i.sin[:4], out=i.x)),
    "sin of other width": (V, "sin", lambda i: rotate_tables(i, sin=i.sin[:, :3], out=i.x)),
    "cos of full width": (
        V, "cos",
        lambda i: rotate_tables(i, cos=i.cos.repeat(1, 2), sin=i.sin.repeat(1, 2)),
    ),
    "cos without axes": (V, "cos", lambda i: rotate_tables(i, cos=torch.tensor(1.0))),
    "cos [s, 1, P]": (V, "cos", lambda i: rotate_tables(i, cos=i.cos[:, None])),
    "by tables: q of wrong rank": (V, "q", lambda i: rotate_qk_tables(i, q=i.q[0], inplace=True)),
    "by tables: k of wrong rank": (V, "k", lambda i: rotate_qk_tables(i, k=i.k[0], inplace=True)),
    "by tables: k of another length": (
        V, "k", lambda i: rotate_qk_tables(i, k=i.k[:, :, :4], inplace=True),
    ),
    "by tables: k of another batch": (
        V, "k", lambda i: rotate_qk_tables(i, k=i.k[:1], inplace=True),
    ),
    "by tables: k of another head_dim": (
        V, "k|cos", lambda i: rotate_qk_tables(i, k=i.k[..., :6], inplace=True),
    ),
    "by tables: cos of wrong length": (
        V, "cos", lambda i: rotate_qk_tables(i, cos=i.cos[:4], inplace=True),
    ),
    "by tables: sin of other width": (
        V, "sin", lambda i: rotate_qk_tables(i, sin=i.sin[:, :3], inplace=True),
    ),
    "by tables: cos without axes": (
        V, "cos", lambda i: rotate_qk_tables(i, cos=torch.tensor(1.0)),
    ),
    "by tables: cos of full width": (
        V, "cos",
        lambda i: rotate_qk_tables(i, cos=i.cos.repeat(1, 2), sin=i.sin.repeat(1, 2)),
    ),
    "add: x of one axis": (V, "x", lambda i: add(i, x=i.x[0, 0, 0])),
    "add: positions too long": (V, "positions", lambda i: add(i, positions=torch.arange(6))),
    "add: positions [b, s] for [b, h, s, d]": (
        V, "positions", lambda i: add(i, positions=i.positions.expand(2, 5)),
    ),
    "add: odd x": (V, "dim|x", lambda i: add(i, x=i.x[..., :7])),
    "odd dim": (V, "dim", lambda i: sinusoidal(i, dim=7)),
    "negative dim": (V, "dim", lambda i: sinusoidal(i, dim=-2)),
    "negative count": (V, "positions", lambda i: sinusoidal(i, positions=-1, device="cpu")),
}  # fmt: skip
SLICES = {
    "slice past the head": (V, "rotary_start", lambda i: rotate(i, rotary_start=1, out=i.x)),
    "more frequencies than pairs": (
        V, "inv_freq", lambda i: rotate(i, inv_freq=torch.ones(5), out=i.x),
    ),
    "slice before the head": (
        V, "rotary_start", lambda i: rotate(i, inv_freq=i.f[:1], rotary_start=-1),
    ),
    "slice far past": (
        V, "rotary_start", lambda i: rotate(i, inv_freq=i.f[:1], rotary_start=2**62),
    ),
    "qk: slice past the head": (
        V, "rotary_start", lambda i: rotate_qk(i, rotary_start=1, inplace=True),
    ),
    "by tables: slice past the head": (
        V, "rotary_start", lambda i: rotate_qk_tables(i, rotary_start=1, inplace=True),
    ),
    "by tables: start of a fraction": (
        T, "rotary_start", lambda i: rotate_qk_tables(i, rotary_start=0.0),
    ),
    "qk: start of a fraction": (
        T, "rotary_start", lambda i: rotate_qk(i, rotary_start=0.0, inverse=True),
    ),
    "by tables: start of a bool": (
        T, "rotary_start", lambda i: rotate_qk_tables(i, rotary_start=False, inverse=True),
    ),
    "by tables: unknown pairing": (
        V, "pairing", lambda i: rotate_qk_tables(i, pairing="neox", inplace=True),
    ),
    "by tables: odd block": (V, "pairing", lambda i: rotate_qk_tables(i, pairing=3)),
    "start of a fraction": (T, "rotary_start", lambda i: rotate(i, rotary_start=0.0)),
    "start of a bool": (T, "rotary_start", lambda i: rotate(i, rotary_start=False)),
    "unknown pairing": (V, "pairing", lambda i: rotate(i, pairing="neox", out=i.x)),
    "odd block": (V, "pairing", lambda i: rotate(i, pairing=3)),
    "block that does not divide": (V, "pairing", lambda i: rotate(i, pairing=6)),
    "block of 0": (V, "pairing", lambda i: rotate(i, pairing=0)),
    "negative block": (V, "pairing", lambda i: rotate_qk(i, pairing=-2)),
    "block larger than the slice": (V, "pairing", lambda i: rotate(i, pairing=16)),
    "pairing of a fraction": (T, "pairing", lambda i: rotate(i, pairing=4.0)),
    "pairing of bytes": (T, "pairing", lambda i: rotate_qk(i, pairing=b"x")),
    "a number as text": (V, "pairing", lambda i: rotate(i, pairing="4.0")),
}  # fmt: skip
LAYOUTS = {
    f"layout {layout!r}": (V, "layout", lambda i, layout=layout: rotate(i, layout=layout, out=i.x))
    for layout in ("", "bhds", "bbsd", "xhsd", "bhd", "bhtd", "BHSD", "tsd", "stsd", "bhsdd", "d")
} | {
    "layout of bytes": (T, "layout", lambda i: rotate(i, layout=b"bhsd")),
    "by tables: unknown layout": (
        V,
        "layout",
        lambda i: rotate_qk_tables(i, layout="bhds", inplace=True),
    ),
    "by tables: layout of bytes": (T, "layout", lambda i: rotate_qk_tables(i, layout=b"x")),
    "layout of a list": (T, "layout", lambda i: rotate_tables(i, layout=list("bhsd"))),
    "unknown table layout": (V, "layout", lambda i: sinusoidal(i, layout="half")),
    "table layout of None": (T, "layout", lambda i: add(i, layout=None)),
}
DTYPES = {
    "integer x": (T, "x", lambda i: rotate(i, x=i.x.int())),
    "complex x": (T, "x", lambda i: rotate(i, x=i.x.to(torch.complex64))),
    "bool x": (T, "x", lambda i: rotate(i, x=i.x > 0)),
    "8-bit x": (T, "x", lambda i: rotate(i, x=i.x.to(torch.float8_e4m3fn))),
    "8-bit x to add to": (T, "x", lambda i: add(i, x=i.x.to(torch.float8_e5m2))),
    "8-bit cos": (T, "cos", lambda i: rotate_tables(i, cos=i.cos.to(torch.float8_e4m3fn))),
    "integer q": (T, "q", lambda i: rotate_qk(i, q=i.q.int(), k=i.k.int())),
    "k of another dtype": (T, "k", lambda i: rotate_qk(i, k=i.k.double(), inplace=True)),
    "sin of another dtype": (T, "sin", lambda i: rotate_tables(i, sin=i.sin.double())),
    "by tables: integer q": (T, "q", lambda i: rotate_qk_tables(i, q=i.q.int(), k=i.k.int())),
    "by tables: k of another dtype": (
        T, "k", lambda i: rotate_qk_tables(i, k=i.k.double(), inplace=True),
    ),
    "by tables: integer cos": (T, "cos", lambda i: rotate_qk_tables(i, cos=i.cos.int())),
    "by tables: sin of another dtype": (
        T, "sin", lambda i: rotate_qk_tables(i, sin=i.sin.double(), inplace=True),
    ),
    **{
        f"{name} {label} positions": (T, "positions", lambda i, f=f, p=p: f(i, positions=i.here(p)))
        for name, f in [("rotate", rotate), ("qk", rotate_qk), ("tables", tables),
                        ("sinusoidal", sinusoidal), ("add", add)]
        for label, p in [("complex", COMPLEX), ("bool", BOOL), ("float16", NAN.half()),
                         ("bfloat16", NAN.bfloat16()), ("8-bit", NAN.to(torch.float8_e4m3fn))]
    },
    "bool positions in place": (
        T, "positions", lambda i: rotate(i, positions=i.here(BOOL), out=i.x),
    ),
    "NaN positions": (V, "positions", lambda i: rotate(i, positions=i.here(NAN), out=i.x)),
    "positions of 2^63": (V, "positions", lambda i: rotate(i, positions=i.here(FAR), out=i.x)),
    "NaN positions for a table": (V, "positions", lambda i: sinusoidal(i, positions=i.here(NAN))),
    "NaN positions to add": (V, "positions", lambda i: add(i, positions=i.here(NAN), out=i.x)),
    "NaN positions in qk": (
        V, "positions", lambda i: rotate_qk(i, positions=i.here(NAN), inplace=True),
    ),
    "float16 inv_freq": (T, "inv_freq", lambda i: rotate(i, inv_freq=i.f.half())),
    "integer inv_freq": (T, "inv_freq", lambda i: rotate(i, inv_freq=torch.ones(4).int())),
    "complex inv_freq": (T, "inv_freq", lambda i: tables(i, inv_freq=i.f.to(torch.complex128))),
    "float axis_map": (
        T, "axis_map", lambda i: rotate(i, positions=i.positions[None], axis_map=torch.zeros(4)),
    ),
    "bool axis_map": (
        T, "axis_map",
        lambda i: rotate(i, positions=i.positions[None], axis_map=torch.zeros(4).bool()),
    ),
    "integer table": (T, "dtype", lambda i: sinusoidal(i, dtype=torch.int32)),
    "complex table": (T, "dtype", lambda i: tables(i, dtype=torch.complex64)),
    "8-bit table": (T, "dtype", lambda i: sinusoidal(i, dtype=torch.float8_e4m3fn)),
    "a dtype by an unknown name": (T, "dtype", lambda i: sinusoidal(i, dtype="float99")),
    "a NumPy dtype that torch has not": (T, "dtype", lambda i: sinusoidal(i, dtype="longdouble")),
    "dim of a fraction": (T, "dim", lambda i: sinusoidal(i, dim=8.0)),
    "dim of a bool": (T, "dim", lambda i: sinusoidal(i, dim=True)),
}  # fmt: skip
NUMBERS = {
    "base 0": (V, "base", lambda i: sinusoidal(i, base=0.0)),
    "negative base": (V, "base", lambda i: add(i, base=-1.0, out=i.x)),
    "base NaN": (V, "base", lambda i: sinusoidal(i, base=math.nan)),
    "base infinite": (V, "base", lambda i: sinusoidal(i, base=math.inf)),
    "base of text": (T, "base", lambda i: sinusoidal(i, base="1e4")),
    "shift of dim / 2": (V, "shift", lambda i: sinusoidal(i, shift=4.0)),
    "scale NaN": (V, "scale", lambda i: add(i, scale=math.nan, out=i.x)),
    "scale too large": (V, "scale", lambda i: sinusoidal(i, scale=2.0**63)),
    "scale of text": (T, "scale", lambda i: rotate(i, scale="2")),
    "scale of bytes": (T, "scale", lambda i: rotate_qk(i, scale=b"x")),
    "scale of tables of text": (T, "scale", lambda i: tables(i, scale="2")),
    "x_scale of text": (T, "x_scale", lambda i: add(i, x_scale="2")),
    "scale beyond float32": (V, "scale", lambda i: rotate(i, scale=1e39, out=i.x)),
    "scale of q and k beyond float32": (V, "scale", lambda i: rotate_qk(i, scale=-1e39)),
    "scale of tables beyond float32": (V, "scale", lambda i: tables(i, scale=1e39)),
    "x_scale beyond float32": (V, "x_scale", lambda i: add(i, x_scale=1e39)),
    "alpha beyond float32": (V, "alpha", lambda i: add(i, alpha=1e39, out=i.x)),
    "base subnormal": (V, "base", lambda i: sinusoidal(i, base=1e-320)),
    "alpha of None": (T, "alpha", lambda i: add(i, alpha=None)),
}  # fmt: skip
OUTPUTS = {
    "out of another shape": (V, "out", lambda i: rotate(i, out=i.out[:, :2])),
    "out of another rank": (V, "out", lambda i: rotate(i, out=i.out[0])),
    "out that broadcasts": (V, "out", lambda i: rotate(i, x=i.x[:1], out=i.out)),
    "out of another dtype": (T, "out", lambda i: rotate(i, out=i.out.double())),
    "out of integers": (T, "out", lambda i: rotate(i, out=i.out.int())),
    "out of another kind": (T, "out", lambda i: rotate(i, out=i.out.cpu().numpy())),
    "out of a list": (T, "out", lambda i: add(i, out=i.out.tolist())),
    "expanded out": (V, "out", lambda i: rotate(i, out=i.out[:1].expand(2, 3, 5, 8))),
    "expanded q": (V, "q|out", lambda i: rotate_qk(i, q=i.q[:1].expand(2, -1, -1, -1),
                                                   inplace=True)),
    "expanded k": (V, "k|out", lambda i: rotate_qk(i, k=i.k[:1].expand(2, -1, -1, -1),
                                                   inplace=True)),
    "by tables: expanded q": (
        V, "q|out", lambda i: rotate_qk_tables(i, q=i.q[:1].expand(2, -1, -1, -1), inplace=True),
    ),
    "by tables: expanded k": (
        V, "k|out", lambda i: rotate_qk_tables(i, k=i.k[:1].expand(2, -1, -1, -1), inplace=True),
    ),
    "add: out of another shape": (V, "out", lambda i: add(i, out=i.out[:, :, :4])),
    "add: out of another dtype": (T, "out", lambda i: add(i, out=i.out.half())),
    "add: expanded out": (V, "out", lambda i: add(i, out=i.out[:1].expand(2, 3, 5, 8))),
    "tables: out of another shape": (V, "out", lambda i: rotate_tables(i, out=i.out[..., :6])),
    "tables: out of another dtype": (T, "out", lambda i: rotate_tables(i, out=i.out.bfloat16())),
    "table: out of another shape": (V, "out", lambda i: sinusoidal(i, dim=6, out=i.table)),
    "table: out of integers": (T, "out", lambda i: sinusoidal(i, out=i.table.int())),
    "table: out of another dtype": (
        T, "out", lambda i: sinusoidal(i, dtype=torch.float64, out=i.table),
    ),
    "table: out of an array": (T, "out", lambda i: sinusoidal(i, out=i.table.cpu().numpy())),
    "table: out elsewhere": (V, "out", lambda i: sinusoidal(i, device="meta", out=i.table)),
}  # fmt: skip


def shifted(i, offset, stride=(120, 40, 8, 1)):
    return i.memory.as_strided((2, 3, 5, 8), stride, offset)


OVERLAPS = {
    "one element on": (V, "out", lambda i: rotate(i, x=shifted(i, 0), out=shifted(i, 1))),
    "one row on": (V, "out", lambda i: rotate(i, x=shifted(i, 8), out=shifted(i, 0))),
    "the same memory in another order": (
        V, "out", lambda i: rotate(i, x=shifted(i, 0), out=shifted(i, 0, (120, 8, 24, 1))),
    ),
    "tokens over each other": (V, "out", lambda i: rotate(i, out=shifted(i, 0, (120, 40, 4, 1)))),
    "add: one element on": (V, "out", lambda i: add(i, x=shifted(i, 0), out=shifted(i, 1))),
    "tables: one row on": (
        V, "out", lambda i: rotate_tables(i, x=shifted(i, 0), out=shifted(i, 8)),
    ),
    "out in its own table": (
        V, "out",
        lambda i: rotate_tables(i, cos=i.memory[:20].view(5, 4), out=shifted(i, 0)),
    ),
    "out in its own positions": (
        V, "out",
        lambda i: rotate(i, positions=i.memory[100:105], out=shifted(i, 0)),
    ),
    "q in k": (
        V, "q|k", lambda i: rotate_qk(i, q=shifted(i, 0), k=shifted(i, 200)[:, :1], inplace=True),
    ),
    "q is k": (V, "q|k", lambda i: rotate_qk(i, q=i.q, k=i.q, inplace=True)),
    "by tables: q in k": (
        V, "q|k",
        lambda i: rotate_qk_tables(i, q=shifted(i, 0), k=shifted(i, 200)[:, :1], inplace=True),
    ),
    "by tables: q is k": (V, "q|k", lambda i: rotate_qk_tables(i, q=i.q, k=i.q, inplace=True)),
    "by tables: k in its own table": (
        V, "k", lambda i: rotate_qk_tables(i, k=shifted(i, 0), sin=i.memory[:20].view(5, 4),
                                           inplace=True),
    ),
    "a table in its positions": (
        V, "out", lambda i: sinusoidal(i, positions=i.memory[3:8], out=i.memory[:40].view(5, 8)),
    ),
}  # fmt: skip
DEVICES = {
    "positions elsewhere": (V, "positions", lambda i: rotate(i, positions=meta(i.positions))),
    "inv_freq elsewhere": (V, "inv_freq", lambda i: rotate(i, inv_freq=meta(i.f), out=i.x)),
    "x elsewhere": (V, "inv_freq|positions|x", lambda i: rotate(i, x=meta(i.x))),
    "out elsewhere": (V, "out", lambda i: rotate(i, out=meta(i.x))),
    "axis_map elsewhere": (
        V, "axis_map",
        lambda i: rotate(i, positions=i.positions[None],
                         axis_map=torch.zeros(4, dtype=torch.long, device="meta")),
    ),
    "k elsewhere": (V, "k", lambda i: rotate_qk(i, k=meta(i.k), inplace=True)),
    "q elsewhere": (V, "k|inv_freq|positions", lambda i: rotate_qk(i, q=meta(i.q), inplace=True)),
    "qk: positions elsewhere": (
        V, "positions", lambda i: rotate_qk(i, positions=meta(i.positions), inplace=True),
    ),
    "qk: inv_freq elsewhere": (
        V, "inv_freq", lambda i: rotate_qk(i, inv_freq=meta(i.f), inplace=True),
    ),
    "cos elsewhere": (V, "cos", lambda i: rotate_tables(i, cos=meta(i.cos), out=i.x)),
    "sin elsewhere": (V, "sin", lambda i: rotate_tables(i, sin=meta(i.sin), out=i.x)),
    "by tables: k elsewhere": (
        V, "k", lambda i: rotate_qk_tables(i, k=meta(i.k), inplace=True),
    ),
    "by tables: cos elsewhere": (
        V, "cos", lambda i: rotate_qk_tables(i, cos=meta(i.cos), inplace=True),
    ),
    "by tables: sin elsewhere": (
        V, "sin", lambda i: rotate_qk_tables(i, sin=meta(i.sin), inplace=True),
    ),
    "add: positions elsewhere": (V, "positions", lambda i: add(i, positions=meta(i.positions))),
    "add: out elsewhere": (V, "out", lambda i: add(i, out=meta(i.x))),
    "tables: inv_freq elsewhere": (V, "inv_freq", lambda i: tables(i, inv_freq=meta(i.f))),
    "table: positions elsewhere": (
        V, "positions", lambda i: sinusoidal(i, positions=meta(i.positions), out=i.table),
    ),
    "table: positions here, result there": (
        V, "positions", lambda i: sinusoidal(i, device="meta"),
    ),
}  # fmt: skip
SIZES = {
    "a count past all memory": (V, "positions|result", lambda i: sinusoidal(
        i, positions=2**62, device="cpu")),
    "a count past int64": (V, "positions|result", lambda i: sinusoidal(
        i, positions=2**70, dtype=torch.float32)),
    "a count times dim": (V, "positions|result|dim", lambda i: sinusoidal(
        i, positions=2**40, dim=2**30, device="cpu")),
    "a dim past int64": (V, "dim", lambda i: sinusoidal(i, dim=2**64)),
    "dim past all memory": (V, "positions|result|dim", lambda i: sinusoidal(i, dim=2**62)),
    "expanded positions": (V, "positions|result", lambda i: sinusoidal(
        i, positions=expanded(2**60), dim=16)),
    "expanded positions of tables": (V, "positions|result", lambda i: tables(
        i, positions=expanded(2**62))),
    "expanded positions by axes": (V, "positions|result", lambda i: tables(
        i, positions=expanded((2, 2**60)), axis_map=torch.tensor([0, 0, 1, 1]))),
    "a start past int64": (V, "rotary_start", lambda i: rotate(i, rotary_start=2**64)),
    "a block past int64": (V, "pairing", lambda i: rotate(i, pairing=2**64)),
}  # fmt: skip
KINDS = {
    "x of a list": (T, "x", lambda i: rotate(i, x=i.x.tolist())),
    "x of None": (T, "x", lambda i: rotate(i, x=None)),
    "q of a list": (T, "q", lambda i: rotate_qk(i, q=i.q.tolist())),
    "k of a list": (T, "k", lambda i: rotate_qk(i, k=i.k.tolist(), inplace=True)),
    "k of an array": (T, "k", lambda i: rotate_qk(i, k=i.k.cpu().numpy(), inplace=True)),
    "q of an array": (T, "k|q", lambda i: rotate_qk(i, q=i.q.cpu().numpy(), inplace=True)),
    "add: x of a list": (T, "x", lambda i: add(i, x=i.x.tolist())),
    "tables: x of an array, cos a tensor elsewhere": (
        T, "cos", lambda i: rotate_tables(i, x=i.x.cpu().numpy(), cos=meta(i.cos)),
    ),
    "by tables: q of a list": (T, "q", lambda i: rotate_qk_tables(i, q=i.q.tolist())),
    "by tables: k of an array": (
        T, "k", lambda i: rotate_qk_tables(i, k=i.k.cpu().numpy(), inplace=True),
    ),
    "by tables: q of an array": (T, "k|q", lambda i: rotate_qk_tables(i, q=i.q.cpu().numpy())),
    "by tables: cos of None": (T, "cos", lambda i: rotate_qk_tables(i, cos=None)),
    "by tables: sin of an array": (
        T, "sin", lambda i: rotate_qk_tables(i, sin=i.sin.cpu().numpy(), inplace=True),
    ),
    "cos of an array": (T, "cos", lambda i: rotate_tables(i, cos=i.cos.cpu().numpy())),
    "x of an array, out a tensor": (T, "out", lambda i: rotate(i, x=i.x.cpu().numpy(), out=i.out)),
    "add: x of an array, out a tensor": (
        T, "out", lambda i: add(i, x=i.x.cpu().numpy(), out=i.out),
    ),
    "x of an array, positions elsewhere": (
        T, "positions", lambda i: rotate(i, x=i.x.cpu().numpy(), positions=meta(i.positions)),
    ),
    "x of an array, positions of bfloat16": (
        T, "positions", lambda i: rotate(i, x=i.x.cpu().numpy(), positions=i.positions.bfloat16()),
    ),
    "x of an array, positions with gradient": (
        (V, T), "positions",
        lambda i: rotate(i, x=i.x.cpu().numpy(), positions=i.positions.float().requires_grad_()),
    ),
    "positions of text": (T, "positions", lambda i: rotate(i, positions="0 1 2 3 4")),
    "positions of a dict": (T, "positions", lambda i: rotate_qk(i, positions={})),
    "inv_freq of text": (T, "inv_freq", lambda i: rotate(i, inv_freq="abcd")),
    "ragged positions": (
        (V, T), "positions", lambda i: rotate(i, positions=[[0, 1], [2]]),
    ),
    "bool positions in a list": (T, "positions", lambda i: rotate(i, positions=[True] * 5)),
    "complex positions in an array": (
        T, "positions", lambda i: rotate(i, positions=np.zeros(5, complex)),
    ),
    "a bool for a count": (T, "positions", lambda i: sinusoidal(i, positions=True, device="cpu")),
}  # fmt: skip

# Values are looked at only where that needs no wait: on the CPU.
VALUES = {
    "axis_map past the axes", "axis_map below 0", "inv_freq not finite", "inv_freq too large",
    "NaN positions", "positions of 2^63", "NaN positions for a table", "NaN positions to add",
    "NaN positions in qk",
}  # fmt: skip

TABLES = [SHAPES, SLICES, LAYOUTS, DTYPES, NUMBERS, OUTPUTS, DEVICES, SIZES, KINDS]
BAD_CALLS = {name: call for table in TABLES for name, call in table.items()}
assert len(BAD_CALLS) == sum(map(len, TABLES))
assert BAD_CALLS.keys() >= VALUES


def made_on(device):
    """Within, tensors that a call of the tables makes are made on the device."""
    return contextlib.nullcontext() if device == "cpu" else torch.device(device)


def assert_refused(error, argument, call, device):
    inputs = Inputs(device)
    before = [t.clone() for t in inputs.written]
    pattern = rf"^(\w+): (({argument}): expected .*, got )"
    with made_on(device), pytest.raises(error, match=pattern) as caught:
        call(inputs)
    assert caught.value.__cause__ is None
    for tensor, copy in zip(inputs.written, before, strict=True):
        assert torch.equal(tensor, copy), "written in spite of the error"


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls(name, device):
    if device != "cpu" and name in VALUES:
        pytest.skip("values are looked at on the CPU only")
    assert_refused(*BAD_CALLS[name], device)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("error", "argument", "call"), OVERLAPS.values(), ids=OVERLAPS)
def test_partial_overlap(error, argument, call, device):
    assert_refused(error, argument, call, device)


@pytest.mark.parametrize(("error", "argument", "call"), OVERLAPS.values(), ids=OVERLAPS)
def test_partial_overlap_within_a_storage(error, argument, call, monkeypatch):
    """As on devices whose pointers are no addresses."""
    monkeypatch.setattr(results, "ADDRESSED", ())
    with torch_cases.composed():
        assert_refused(error, argument, call, "cpu")


def test_what_has_no_memory_does_not_overlap():
    memory = torch.empty(2, 9, 8, device="meta")
    x, out = memory[:, :5], memory[:, 1:6]
    assert pn.apply_rotary(x, None, pn.frequencies(8), layout="bsd", out=out) is out
    assert not results.overlap(x, out)


# Where x requires a gradient, the call goes another way, with the same errors.
GRAD = {
    name: (*BAD_CALLS[name][:2], call)
    for name, call in {
        "positions too long": lambda i: rotate(
            i, x=i.x.requires_grad_(), positions=torch.arange(6)
        ),
        "unknown pairing": lambda i: rotate_qk(i, q=i.q.requires_grad_(), pairing="neox"),
        "slice past the head": lambda i: rotate(i, x=i.x.requires_grad_() * 1, rotary_start=1),
        "cos of wrong length": lambda i: rotate_tables(
            i, x=i.x.requires_grad_(), cos=i.cos[:4].requires_grad_()
        ),
        "by tables: cos of wrong length": lambda i: rotate_qk_tables(
            i, q=i.q.requires_grad_(), cos=i.cos[:4].requires_grad_()
        ),
        "by tables: k of another dtype": lambda i: rotate_qk_tables(
            i, q=i.q.requires_grad_(), k=i.k.double()
        ),
        "integer table": lambda i: sinusoidal(i, dtype=torch.int32),
        "add: positions too long": lambda i: add(
            i, x=i.x.requires_grad_(), positions=torch.arange(6)
        ),
        "positions elsewhere": lambda i: rotate(
            i, x=i.x.requires_grad_(), positions=meta(i.positions)
        ),
    }.items()
}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("error", "argument", "call"), GRAD.values(), ids=GRAD)
def test_bad_calls_with_gradients(error, argument, call, device):
    assert_refused(error, argument, call, device)


# The good calls that the bad ones were made of, and some that look bad.
GOOD = {
    "rotate": rotate,
    "qk": rotate_qk,
    "tables": rotate_tables,
    "qk by tables": rotate_qk_tables,
    "rotary_tables": tables,
    "sinusoidal": sinusoidal,
    "add": add,
    "a list of positions": lambda i: rotate(i, positions=[0, 1, 2, 3, 4]),
    "an array of positions": lambda i: rotate(i, positions=np.arange(5)),
    "an int of positions": lambda i: rotate(i, positions=5),
    "a list of frequencies": lambda i: rotate(i, inv_freq=[1.0, 0.5, 0.25, 0.125]),
    "a list as axis_map": lambda i: rotate(i, positions=i.positions[None], axis_map=[0, 0, 0, 0]),
    "no frequencies": lambda i: rotate(i, inv_freq=torch.empty(0)),
    "out beside x in one memory": lambda i: rotate(
        i, x=shifted(i, 0)[..., :8], out=shifted(i, 240)
    ),
    "out between the rows of x": lambda i: rotate(
        i, x=i.memory.view(2, 3, 5, 16)[..., :8], out=i.memory.view(2, 3, 5, 16)[..., 8:]
    ),
    "q and k in one memory": lambda i: rotate_qk(
        i, q=i.memory.view(2, 3, 5, 16)[..., :8], k=i.memory.view(2, 3, 5, 16)[..., 8:],
        inplace=True,
    ),
    "by tables: q and k in one memory": lambda i: rotate_qk_tables(
        i, q=i.memory.view(2, 3, 5, 16)[..., :8], k=i.memory.view(2, 3, 5, 16)[..., 8:],
        inplace=True,
    ),
    "by tables: a number of NumPy as start": lambda i: rotate_qk_tables(
        i, rotary_start=np.int64(0), pairing=np.int32(4)
    ),
    "an array with tensors as positions": lambda i: rotate(
        i, x=i.x.cpu().numpy(), positions=i.positions.cpu(), inv_freq=i.f.cpu()
    ),
    "a number of NumPy as start": lambda i: rotate(i, rotary_start=np.int64(0)),
    "a number of NumPy as pairing": lambda i: rotate(i, pairing=np.int32(4)),
    "an int as scale": lambda i: rotate(i, scale=2),
    "a number of NumPy as scale": lambda i: rotate_qk(i, scale=np.float32(2)),
    "a dtype by its name": lambda i: sinusoidal(i, dtype="float16"),
    "a dtype of NumPy": lambda i: sinusoidal(i, dtype=np.float64),
}  # fmt: skip


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("call", GOOD.values(), ids=GOOD)
def test_good_calls(call, device):
    with made_on(device):
        result = call(Inputs(device))
    for each in result if isinstance(result, tuple) else (result,):
        assert torch.as_tensor(each).isfinite().all()


@pytest.mark.usefixtures("backend")
def test_out_may_lie_beside_x(device):
    i = Inputs(device)
    x, out = i.memory.view(2, 3, 5, 16)[..., :8], i.memory.view(2, 3, 5, 16)[..., 8:]
    expected, before = rotate(i, x=x.clone()), x.clone()
    rotate(i, x=x, out=out)
    assert torch.equal(out, expected)
    assert torch.equal(x, before)


@torch_cases.needs_operators
@pytest.mark.parametrize(
    "call",
    [
        lambda x, f: pn.apply_rotary(x, None, f),
        lambda x, f: pn.apply_rotary_qk(x, x, None, f),
        lambda x, f: pn.sinusoidal(torch.tensor([1]).expand(2**36), 2**13, dtype=torch.float64),
    ],
    ids=["apply_rotary", "apply_rotary_qk", "sinusoidal"],
)
def test_no_memory_for_the_result_is_an_error_of_its_kind(call):
    """Code that looks for the largest batch expects that, also through the stable ABI."""
    x = torch.zeros(1, 1, 1, 2**13).expand(2**36, 1, 1, 2**13)  # 2 PiB, but for the strides
    with pytest.raises(torch.OutOfMemoryError, match="no memory for the result"):
        call(x, torch.ones(2**12, dtype=torch.float64))
