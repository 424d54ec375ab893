"""Bad calls of relative encodings with tensors: errors name the argument."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import assert_same_bits, random  # noqa: E402

import posenc_native as pn  # noqa: E402

pytestmark = [
    torch_cases.needs_operators,
    pytest.mark.filterwarnings(
        "ignore:.*should not be instantiated:DeprecationWarning",
        "ignore:.*treespec.*:FutureWarning",
    ),
]


class Inputs:
    """Good arguments, to make bad ones of."""

    def __init__(self):
        self.s, self.d = random((2, 3, 4, 5)), random((3, 8), seed=1)
        self.x, self.index = random((2, 3, 4, 6)), torch.tensor([0, 1, 2, 3, 4, 5, 5, 5])
        self.c, self.memory = random((2, 3, 4, 5), seed=2), random((240,), seed=3)
        self.written = [self.s, self.d, self.x, self.c, self.memory]


def lay(i, d=None, q_len=4, k_len=5, **options):
    return pn.toeplitz_bias(i.d if d is None else d, q_len, k_len, **options)


def add(i, s=None, d=None, **options):
    return pn.add_toeplitz_bias(i.s if s is None else s, i.d if d is None else d, **options)


def sums(i, g=None, **options):
    return pn.diagonal_sums(i.s if g is None else g, **options)


def gather(i, x=None, k_len=5, **options):
    index = options.pop("index", i.index)
    return pn.relative_gather(i.x if x is None else x, index, k_len, **options)


def scatter(i, g=None, width=6, **options):
    index = options.pop("index", i.index)
    return pn.relative_scatter(i.s if g is None else g, index, width, **options)


V, T = ValueError, TypeError
META = torch.zeros(2, 3, 4, 5, device="meta")
B = torch.tensor([1, 0])
BAD = {
    "lay: too few diagonals": (V, "diagonals", lambda i: lay(i, q_len=6)),
    "lay: too many without origin": (V, "diagonals", lambda i: lay(i, k_len=4)),
    "lay: a negative length": (V, "q_len", lambda i: lay(i, q_len=-1)),
    "lay: a length of a fraction": (T, "k_len", lambda i: lay(i, k_len=5.0)),
    "lay: a length of a bool": (T, "q_len", lambda i: lay(i, q_len=True)),
    "lay: four axes": (V, "q_len", lambda i: lay(i, q_len=(1,) * 4, k_len=(1,) * 4)),
    "lay: a grid and a length": (V, "k_len", lambda i: lay(i, q_len=(2, 2))),
    "lay: a grid of too few axes": (V, "diagonals", lambda i: lay(i, i.d[0], (2, 2), (2, 2))),
    "lay: offset without origin": (V, "origin", lambda i: lay(i, q_offset=1)),
    "lay: offsets without origin": (V, "origin", lambda i: lay(i, q_offset=B)),
    "lay: offsets for a grid": (
        V, "q_offset",
        lambda i: lay(i, i.s, (1, 1), (1, 1), origin=(2, 2), q_offset=B),
    ),
    "lay: an offset for a grid": (
        V, "q_offset", lambda i: lay(i, i.s, (1, 1), (1, 1), origin=(2, 2), q_offset=1),
    ),
    "lay: origin too small": (V, "diagonals", lambda i: lay(i, origin=2)),
    "lay: origin too large": (V, "diagonals", lambda i: lay(i, origin=4)),
    "lay: an offset too large": (V, "diagonals", lambda i: lay(i, origin=3, q_offset=1)),
    "lay: one offset too large": (V, "diagonals", lambda i: lay(i, origin=3, q_offset=B)),
    "lay: far offsets": (
        V, "diagonals", lambda i: lay(i, origin=3, q_offset=torch.tensor([-(2**63), 0])),
    ),
    "lay: offsets of floats": (T, "q_offset", lambda i: lay(i, origin=3, q_offset=B.float())),
    "lay: offsets of bools": (T, "q_offset", lambda i: lay(i, origin=3, q_offset=B > 0)),
    "lay: an offset of text": (T, "q_offset", lambda i: lay(i, origin=3, q_offset="1")),
    "lay: origin of a fraction": (T, "origin", lambda i: lay(i, origin=3.0)),
    "lay: origin of two numbers": (V, "origin", lambda i: lay(i, origin=(3, 3))),
    "lay: origin far away": (V, "origin", lambda i: lay(i, origin=2**62)),
    "lay: batch of another size": (
        V, "diagonals", lambda i: lay(i, torch.zeros(3, 3, 9), origin=4, q_offset=B),
    ),
    "lay: integers": (T, "diagonals", lambda i: lay(i, i.d.int())),
    "lay: complex": (T, "diagonals", lambda i: lay(i, i.d + 0j)),
    "lay: dtype of integers": (T, "dtype", lambda i: lay(i, dtype=torch.int32)),
    "lay: dtype and out": (T, "out", lambda i: lay(i, dtype=torch.float64, out=i.c[0])),
    "lay: out of another shape": (V, "out", lambda i: lay(i, out=i.c)),
    "lay: out of integers": (T, "out", lambda i: lay(i, out=i.c[0].int())),
    "lay: out an array": (T, "out", lambda i: lay(i, out=np.zeros((3, 4, 5)))),
    "lay: out a list": (T, "out", lambda i: lay(i, out=[])),
    "lay: out expanded": (V, "out", lambda i: lay(i, out=i.c[:1, :1].expand(1, 3, 4, 5)[0])),
    "lay: out elsewhere": (V, "out", lambda i: lay(i, out=META[0])),
    "lay: offsets elsewhere": (
        V, "q_offset", lambda i: lay(i, origin=3, q_offset=B.to("meta")),
    ),
    "lay: no matrix has so many": (V, "result|k_len|q_len", lambda i: lay(
        i, torch.zeros(1).expand(2**31, 2**32 - 1), 2**31, 2**31)),
    "add: scores of one axis": (V, "scores", lambda i: add(i, i.s[0, 0, 0])),
    "add: scores of integers": (T, "scores", lambda i: add(i, i.s.int())),
    "add: diagonals of integers": (T, "diagonals", lambda i: add(i, d=i.d.int())),
    "add: integers for diagonals": (T, "diagonals", lambda i: add(i, d=i.d.long().numpy())),
    "add: too few diagonals": (V, "diagonals", lambda i: add(i, d=i.d[:, 1:], out=i.s)),
    "add: too many diagonals": (V, "diagonals", lambda i: add(i, i.s[..., 1:])),
    "add: other heads": (V, "diagonals", lambda i: add(i, d=i.d[:2], out=i.s)),
    "add: one head": (V, "diagonals", lambda i: add(i, d=i.d[:1], out=i.s)),
    "add: one head of scores": (V, "diagonals", lambda i: add(i, i.s[:, :1])),
    "add: batch of another size": (V, "diagonals", lambda i: add(i, d=i.d.expand(3, 3, 8))),
    "add: more axes than scores": (V, "diagonals", lambda i: add(i, i.s[0], i.d[None])),
    "add: lengths not the scores'": (V, "scores", lambda i: add(i, q_len=5, k_len=4, out=i.s)),
    "add: a grid not the scores'": (V, "scores", lambda i: add(i, q_len=(2, 2), k_len=(2, 2))),
    "add: offset without origin": (V, "origin", lambda i: add(i, q_offset=1, out=i.s)),
    "add: offsets of another batch": (
        V, "q_offset", lambda i: add(i, origin=3, q_offset=torch.zeros(3).long(), out=i.s),
    ),
    "add: an offset too large": (V, "diagonals", lambda i: add(i, origin=3, q_offset=B, out=i.s)),
    "add: diagonals elsewhere": (V, "diagonals", lambda i: add(i, d=i.d.to("meta"), out=i.s)),
    "add: scores elsewhere": (V, "diagonals", lambda i: add(i, META)),
    "add: offsets elsewhere": (
        V, "q_offset", lambda i: add(i, origin=3, q_offset=B.to("meta"), out=i.s),
    ),
    "add: out elsewhere": (V, "out", lambda i: add(i, out=META)),
    "add: out of another shape": (V, "out", lambda i: add(i, out=i.c[:1])),
    "add: out of another dtype": (T, "out", lambda i: add(i, out=i.c.double())),
    "add: out of a list": (T, "out", lambda i: add(i, out=[])),
    "add: out expanded": (V, "out", lambda i: add(i, out=i.c[:1].expand(2, 3, 4, 5))),
    "sums: one axis": (V, "grad", lambda i: sums(i, i.s[0, 0, 0])),
    "sums: integers": (T, "grad", lambda i: sums(i, i.s.int())),
    "sums: more axes than there are": (V, "keep", lambda i: sums(i, keep=3)),
    "sums: fewer than no axes": (V, "keep", lambda i: sums(i, keep=-1)),
    "sums: keep of a fraction": (T, "keep", lambda i: sums(i, keep=1.0)),
    "sums: too few entries": (V, "diagonals|entries", lambda i: sums(i, entries=7)),
    "sums: entries of a grid": (V, "entries", lambda i: sums(i, entries=(8, 1))),
    "sums: entries without origin": (V, "diagonals|entries", lambda i: sums(i, entries=9)),
    "sums: origin too small": (V, "diagonals|entries", lambda i: sums(i, entries=9, origin=2)),
    "sums: offset without origin": (V, "origin", lambda i: sums(i, q_offset=B)),
    "sums: offsets elsewhere": (
        V, "q_offset", lambda i: sums(i, entries=9, origin=4, q_offset=B.to("meta")),
    ),
    "gather: x of one axis": (V, "x", lambda i: gather(i, i.x[0, 0, 0])),
    "gather: x of integers": (T, "x", lambda i: gather(i, i.x.int())),
    "gather: negative k_len": (V, "k_len", lambda i: gather(i, k_len=-1)),
    "gather: k_len of None": (T, "k_len", lambda i: gather(i, k_len=None)),
    "gather: index too short": (V, "index", lambda i: gather(i, k_len=6)),
    "gather: index too long": (V, "index", lambda i: gather(i, k_len=4, out=i.c[..., :4])),
    "gather: index of two axes": (V, "index", lambda i: gather(i, index=i.index[None])),
    "gather: index of floats": (T, "index", lambda i: gather(i, index=i.index.float(), out=i.c)),
    "gather: index of bools": (T, "index", lambda i: gather(i, index=i.index > 0)),
    "gather: index of text": (T, "index", lambda i: gather(i, index=["0"] * 8)),
    "gather: a column too far": (V, "index", lambda i: gather(i, index=i.index + 1, out=i.c)),
    "gather: a column below 0": (V, "index", lambda i: gather(i, index=i.index - 1, out=i.c)),
    "gather: another is missing": (
        V, "index", lambda i: gather(i, index=i.index - 1, missing=-2, out=i.c),
    ),
    "gather: missing a column": (V, "missing", lambda i: gather(i, missing=5, out=i.c)),
    "gather: missing of a fraction": (T, "missing", lambda i: gather(i, missing=-1.0)),
    "gather: missing of a bool": (T, "missing", lambda i: gather(i, missing=True)),
    "gather: missing far away": (V, "missing", lambda i: gather(i, missing=2**63)),
    "gather: offset without origin": (V, "origin", lambda i: gather(i, q_offset=1, out=i.c)),
    "gather: shift, offsets without origin": (
        V, "origin", lambda i: gather(i, index=None, q_offset=B),
    ),
    "gather: an offset too large": (V, "index", lambda i: gather(i, origin=3, q_offset=B)),
    "gather: offsets of another batch": (
        V, "q_offset", lambda i: gather(i, index=None, origin=3, q_offset=torch.arange(3)),
    ),
    "gather: content of another shape": (V, "content", lambda i: gather(i, content=i.c[:1])),
    "gather: content of another dtype": (
        T, "content", lambda i: gather(i, content=i.c.double(), out=i.c),
    ),
    "gather: content an array": (T, "content", lambda i: gather(i, content=i.c.numpy())),
    "gather: content elsewhere": (V, "content", lambda i: gather(i, content=META, out=i.c)),
    "gather: index elsewhere": (V, "index", lambda i: gather(i, index=i.index.to("meta"))),
    "gather: scale not finite": (V, "scale", lambda i: gather(i, scale=float("nan"), out=i.c)),
    "gather: scale beyond float32": (V, "scale", lambda i: gather(i, scale=1e39, out=i.c)),
    "scatter: scale beyond float32": (V, "scale", lambda i: scatter(i, scale=1e39)),
    "gather: scale of text": (T, "scale", lambda i: gather(i, scale="2")),
    "gather: out of another shape": (V, "out", lambda i: gather(i, out=i.x)),
    "gather: out of another dtype": (T, "out", lambda i: gather(i, out=i.c.half())),
    "gather: out elsewhere": (V, "out", lambda i: gather(i, out=META)),
    "gather: out is x": (V, "out", lambda i: gather(i, i.x, 6, index=None, out=i.x)),
    "scatter: grad of one axis": (V, "grad", lambda i: scatter(i, i.s[0, 0, 0])),
    "scatter: grad of integers": (T, "grad", lambda i: scatter(i, i.s.int())),
    "scatter: negative width": (V, "width", lambda i: scatter(i, width=-1)),
    "scatter: a column too far": (V, "index", lambda i: scatter(i, width=5, out=i.c)),
    "scatter: index too short": (V, "index", lambda i: scatter(i, index=i.index[1:], out=i.x)),
    "scatter: index elsewhere": (V, "index", lambda i: scatter(i, index=i.index.to("meta"))),
    "scatter: missing a column": (V, "missing", lambda i: scatter(i, missing=0, out=i.x)),
    "scatter: out of another shape": (V, "out", lambda i: scatter(i, out=i.c)),
    "scatter: out is grad": (V, "out", lambda i: scatter(i, width=5, index=None, out=i.s)),
    "scatter: offset without origin": (V, "origin", lambda i: scatter(i, q_offset=B, out=i.x)),
}  # fmt: skip
# The composition compares addresses as the operators do.
OVERLAPS = {
    "lay": lambda i: lay(i, i.memory[:24].view(3, 8), out=i.memory[:60].view(3, 4, 5)),
    "add": lambda i: add(i, i.memory[:120].view(2, 3, 4, 5), out=i.memory[1:121].view(2, 3, 4, 5)),
    "add, diagonals": lambda i: add(
        i, d=i.memory[:24].view(3, 8), out=i.memory[:120].view(2, 3, 4, 5)
    ),
    "gather": lambda i: gather(
        i, i.memory[:144].view(2, 3, 4, 6), out=i.memory[120:].view(2, 3, 4, 5)
    ),
    "gather, content": lambda i: gather(
        i, content=i.memory[:120].view(2, 3, 4, 5), out=i.memory[5:125].view(2, 3, 4, 5)
    ),
    "scatter": lambda i: scatter(
        i, i.memory[:120].view(2, 3, 4, 5), out=i.memory[96:].view(2, 3, 4, 6)
    ),
}
BAD |= {f"overlap: {name}": (V, "out", call) for name, call in OVERLAPS.items()}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", BAD)
def test_bad_calls(name):
    error, argument, call = BAD[name]
    inputs = Inputs()
    before = [t.clone() for t in inputs.written]
    with pytest.raises(error, match=rf"^\w+: ({argument}): expected .*, got ") as caught:
        call(inputs)
    assert caught.value.__cause__ is None
    for tensor, kept in zip(inputs.written, before, strict=True):
        assert torch.equal(tensor, kept), "written in spite of the error"


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("diagonals", lambda i: add(i, i.s.requires_grad_(), i.d[:2])),
        ("diagonals", lambda i: add(i, d=i.d[:, 1:].requires_grad_())),
        ("diagonals", lambda i: add(i, i.s.requires_grad_() * 1, origin=3, q_offset=B)),
        ("diagonals", lambda i: lay(i, i.d.requires_grad_(), origin=3, q_offset=B)),
        ("index", lambda i: gather(i, i.x.requires_grad_(), index=i.index + 1)),
        ("index", lambda i: scatter(i, i.s.requires_grad_(), width=5)),
    ],
)
@pytest.mark.usefixtures("backend")
def test_bad_calls_with_gradients(argument, call):
    with pytest.raises(ValueError, match=rf"^\w+: {argument}: expected .*, got "):
        call(Inputs())


GOOD = {
    "an int of NumPy": lambda i: add(i, origin=np.int64(4), q_offset=np.int32(1)),
    "a list of lengths": lambda i: lay(i, q_len=[4], k_len=[5]),
    "an array of offsets": lambda i: add(
        i, d=random((3, 9)), origin=4, q_offset=np.array([1, 0], np.uint8)
    ),
    "a dtype by its name": lambda i: lay(i, dtype="float16"),
    "a dtype of NumPy": lambda i: lay(i, dtype=np.float64),
    "scale of an int": lambda i: gather(i, scale=2),
    "missing of NumPy": lambda i: gather(i, missing=np.int64(-(2**63))),
    "a bias between the scores": lambda i: add(
        i, i.memory.view(2, 3, 4, 10)[..., :5], out=i.memory.view(2, 3, 4, 10)[..., 5:]
    ),
    "diagonals that repeat": lambda i: add(i, d=i.d[:1].expand(3, 8)),
}  # fmt: skip


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("call", GOOD.values(), ids=GOOD)
def test_good_calls(call):
    assert call(Inputs()).isfinite().all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_arrays_of_diagonals_are_for_tensors_too(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 of NumPy")
    diagonals = pn.alibi_diagonals(3, 4, 5, dtype=dtype, q_offset=0)
    scores = random((2, 3, 4, 5), torch.bfloat16)
    tensor = torch.as_tensor(diagonals.astype(np.float64))
    assert_same_bits(pn.add_toeplitz_bias(scores, diagonals), pn.add_toeplitz_bias(scores, tensor))
