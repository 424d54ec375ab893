"""Angles that data decide, of tokens on several ranks: beside one process, and what is sent.

Placements of every kind are cases of test_dtensors.py, which knows neither orders nor bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from processes import run

torch = pytest.importorskip("torch")

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.debug import CommDebugMode  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native.encodings.selective import operators, phases  # noqa: E402
from posenc_native.engines import arrays  # noqa: E402

B, H, K, S, P = 2, 4, 2, 24, 4
ORDERS = ["contiguous", "zigzag", "striped", "head_tail"]
# Terms of some tens are products in float32; they are added in float64, and rounded once.
BOUND = 2.0**-20


class Sent(CommDebugMode):
    """What this rank sends: the operation and the bytes of each."""

    def __enter__(self) -> Any:
        self.sent: list[tuple[str, int]] = []
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._overloadpacket in self.comm_registry:
            self.sent.append((func._overloadpacket.__name__, args[0].nbytes))
        return super().__torch_dispatch__(func, types, args, kwargs)


def mesh() -> Any:
    return init_device_mesh("cpu", (torch.distributed.get_world_size(),))


def inputs(*leading: int) -> list[Any]:
    """q, k, steps and gradients of q and k."""
    torch.manual_seed(0)
    sizes = (H, 2 * P), (K, 2 * P), (K, P), (H, 2 * P), (K, 2 * P)
    return [torch.randn(*leading, *size) for size in sizes]


def results(given: list[Any], **options: Any) -> list[Any]:
    """q, k and the state, then the gradients of q, k and steps."""
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    *rotated, state = pn.selective_rotary_qk(*leaves, **{"layout": "bshd", **options})
    return [*rotated, state, *torch.autograd.grad(rotated, leaves, given[3:])]


def differing(found: list[Any], expected: list[Any]) -> list[str]:
    names = "q", "k", "state", "gradient of q", "gradient of k", "gradient of steps"
    wrong = []
    for name, ours, theirs in zip(names, found, expected, strict=True):
        if name == "gradient of steps":
            fine = (ours - theirs).abs().max() <= BOUND * theirs.abs().max()
        else:
            fine = torch.equal(ours, theirs)
        if not fine:
            wrong.append(name)
    return wrong


def in_order(order: Any, packed: bool) -> list[str]:
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    part = pn.positions.ContextParallel(rank, ranks, order)
    options: dict[str, Any] = {"layout": "bshd", "state": torch.arange(B * K * P).view(B, K, P)}
    given, axis, own = inputs(B, S), 1, part.positions(S, device="cpu")
    if packed:
        starts = torch.tensor([0, 8, 8, S])
        options = {"layout": "thd", "state": torch.arange(3 * K * P).view(3, K, P) << 57}
        options["starts"] = starts
        given, axis, own = inputs(S), 0, part.packed(starts, S).indices
    expected = results(given, **options)
    cut = [
        DTensor.from_local(x.index_select(axis, own), mesh(), [Shard(axis)], run_check=False)
        for x in given
    ]
    found = results(cut, order=order, **options)
    local = [x.to_local() for x in found]
    theirs = [x if i == 2 else x.index_select(axis, own) for i, x in enumerate(expected)]
    wrong = differing(local, theirs)
    steps = pn.selective.accumulated_phases(
        cut[2], axis=axis, order=order, state=options["state"], starts=options.get("starts")
    )
    whole = pn.selective.accumulated_phases(
        given[2], axis=axis, state=options["state"], starts=options.get("starts")
    )
    if not torch.equal(steps.to_local(), whole.index_select(axis, own)):
        wrong.append("phases")
    return wrong


@pytest.mark.parametrize("order", ORDERS)
def test_orders(order: str) -> None:
    """A rank's tokens are several pieces of a row: test_dtensors.py has contiguous parts alone."""
    assert run(4, in_order, order, False) == [[]] * 4


def test_packed_rows_each_in_zigzag() -> None:
    """Every row is cut by itself, an empty one too: totals and states are those of its pieces."""
    assert run(4, in_order, "zigzag", True) == [[]] * 4


def sent(cuts: dict[str, Any], shape: tuple[int, ...]) -> list[Any]:
    """What is sent forwards and in all, and what is not as in one process."""
    devices = init_device_mesh("cpu", shape)
    placements = [Replicate() if axis is None else Shard("bsh".index(axis)) for axis in cuts]
    given = inputs(B, S)
    cut = [distribute_tensor(x, devices, placements) for x in given]
    with Sent() as forwards:
        pn.selective_rotary_qk(*cut[:3], layout="bshd")
    with Sent() as both:
        found = results(cut)
    wrong = differing([x.full_tensor() for x in found], results(given))
    return [forwards.sent, both.sent, wrong]


def test_one_total_is_sent() -> None:
    """Bytes, not only calls: one int64 a head and pair and one a head, then one float64 a pair."""
    total, later = B * K * (P + 1) * 8, B * K * P * 8
    gather = "all_gather_into_tensor"
    for answer in run(4, sent, ["s"], (4,)):
        assert answer == [[(gather, total)], [(gather, total), (gather, later)], []]
    # Of a part of the batch its own alone.
    for answer in run(4, sent, ["b", "s"], (2, 2)):
        assert answer == [[(gather, total // 2)], [(gather, total // 2), (gather, later // 2)], []]


def test_nothing_is_sent_along_batch_and_heads() -> None:
    """Backwards neither, which test_dtensors.py does not count."""
    assert run(4, sent, ["b", "h"], (2, 2)) == [[[], [], []]] * 4


def uneven() -> list[str]:
    given = inputs(B, 5)
    cut = [distribute_tensor(x, mesh(), [Shard(1)]) for x in given]
    return differing([x.full_tensor() for x in results(cut)], results(given))


def test_uneven_and_empty_parts() -> None:
    """A rank without a token takes part: of the quick tests none else has 5 tokens on 4 ranks."""
    assert run(4, uneven) == [[]] * 4


def compiled() -> list[bool]:
    """Which gradients of q alone, in packed rows, compiled, are those of one process."""
    q, _, steps, grad, _ = inputs(S)

    def rotate(q: Any, steps: Any, starts: Any) -> Any:
        return pn.selective_rotary_qk(q, None, steps, layout="thd", starts=starts)[0]

    gradients, starts = [], torch.tensor([0, 8, 8, S])
    for cut in (False, True):
        tensors = [distribute_tensor(x, mesh(), [Shard(0)]) if cut else x for x in (q, steps, grad)]
        leaves = [x.detach().requires_grad_() for x in tensors[:2]]
        call = torch.compile(rotate, backend="aot_eager", fullgraph=True) if cut else rotate
        gradients.append(torch.autograd.grad(call(*leaves, starts), leaves, tensors[2]))
    torch.compiler.reset()
    whole, parts = gradients
    off = [(x.full_tensor() - y).abs().max() for x, y in zip(parts, whole, strict=True)]
    return [bool(x <= BOUND * y.abs().max()) for x, y in zip(off, whole, strict=True)]


def test_compiled_gradients_of_packed_rows() -> None:
    """torch.compile knows no strides of gradients, and has none at all of the k that is None."""
    assert run(2, compiled) == [[True, True]] * 2


def chunked() -> bool:
    """A second call goes on from the state of the first, on every rank the same."""
    given = inputs(B, S)[:3]
    cut = [distribute_tensor(x, mesh(), [Shard(1)]) for x in given]
    whole = [distribute_tensor(x, mesh(), [Replicate()]) for x in given]
    _, _, state = pn.selective_rotary_qk(*cut, layout="bshd")
    ours = pn.selective_rotary_qk(*(x[:, :1] for x in whole), state=state, layout="bshd")
    _, _, plain = pn.selective_rotary_qk(*given, layout="bshd")
    theirs = pn.selective_rotary_qk(*(x[:, :1] for x in given), state=plain, layout="bshd")
    return all(torch.equal(x.full_tensor(), y) for x, y in zip(ours, theirs, strict=True))


def test_decoding_goes_on_from_the_state() -> None:
    """A prefill over ranks, then a token on all of them: the state is a DTensor, and whole."""
    assert run(4, chunked) == [True] * 4


def unseen() -> list[Any]:
    """Which heads of which tokens are NaN, of steps that nobody looks at: as on CUDA."""
    q, _, steps = inputs(1, 8)[:3]
    steps[0, 2, 1, 2] = float("nan")
    cut = [distribute_tensor(x, mesh(), [Shard(1)]) for x in (q, steps)]
    with mock.patch.object(phases, "readable", return_value=False), \
            mock.patch.object(arrays, "readable", return_value=False), \
            mock.patch.object(operators, "_takes", return_value=False):  # fmt: skip
        rotated = pn.selective_rotary_qk(cut[0], None, cut[1], layout="bshd")[0]
    return rotated.full_tensor().isnan().any(-1)[0].tolist()  # type: ignore[no-any-return]


def test_a_step_that_is_no_angle_is_seen_by_later_ranks() -> None:
    """Its NaN goes on over ranks in its head, as it does in one process over tokens."""
    from_there = [False, False, True, True]
    for wrong in run(4, unseen):
        assert wrong == [[False] * 4] * 2 + [from_there] * 6


def places() -> list[str]:
    """What is not as in one process: q along tokens, k along heads or plain, written anywhere."""
    q, k, steps = inputs(B, S)[:3]
    expected = pn.selective_rotary_qk(q, k, steps, layout="bshd")
    wrong = []
    for name in ("k by heads", "k plain", "k alone"):
        for way in ("new", "inplace", "out", "followed"):
            given = [None if name == "k alone" else distribute_tensor(q, mesh(), [Shard(1)])]
            given.append(
                k.clone() if name == "k plain" else distribute_tensor(k, mesh(), [Shard(2)])
            )
            if way == "followed" and given[0] is not None:
                given[0] = given[0] * torch.ones((), requires_grad=True)
            more: dict[str, Any] = {"inplace": way in ("inplace", "followed")}
            if way == "out" and name != "k plain":
                more = {"out": tuple(None if x is None else torch.empty_like(x) for x in given)}
            found = pn.selective_rotary_qk(*given, steps, **{"layout": "bshd", **more})
            written = more.get("out", given if more.get("inplace") else None)
            for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                if ours is None:
                    continue
                own = ours.full_tensor() if isinstance(ours, DTensor) else ours
                if not torch.equal(own, theirs):
                    wrong.append(f"{name}, {way}: result {i}")
                if i < 2 and written is not None and ours is not written[i]:
                    wrong.append(f"{name}, {way}: result {i} is elsewhere")
    return wrong


def test_where_results_go() -> None:
    """q and k that are cut in two ways are two calls; out, and a q that is followed in place."""
    assert run(4, places) == [[]] * 4


def on_one_rank(x: dict[str, Any]) -> dict[str, Any]:
    if torch.distributed.get_rank() == 0:
        x["steps"].to_local()[0, 0, 0, 0] = float("inf")
    return x


WRONG: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], type[Exception], str]] = {
    "a step on one rank": (
        on_one_rank, ValueError, r"steps: expected finite radians of at most 2\^31, got",
    ),
    "an order that is none": (
        lambda x: x | {"order": "ring"}, ValueError, "order: expected one of contiguous, zigzag",
    ),
    "an order of whole rows": (
        lambda x: {n: t.full_tensor() for n, t in x.items()} | {"order": "zigzag"}, ValueError,
        "order: expected 'contiguous' unless DTensors are cut along tokens, got 'zigzag'; DTensor.",
    ),
    "an order of tokens that are not cut": (
        lambda x: {n: t.redistribute(placements=[Shard(0)]) for n, t in x.items()}
        | {"order": "striped"},
        ValueError, "order: expected 'contiguous' unless DTensors are cut along tokens",
    ),
    "a length that ranks cannot share": (
        lambda x: {n: distribute_tensor(t.full_tensor()[:, :12], mesh(), [Shard(1)])
                   for n, t in x.items()} | {"order": "zigzag"},
        ValueError, 'order: expected a multiple of 8 for order="zigzag", got 12',
    ),
    "steps of a part": (
        lambda x: x | {"steps": x["steps"].to_local()}, ValueError,
        r"steps: expected shape \[b, s, h, P\] = .*from_local",
    ),
    "a state of the heads of a part": (
        lambda x: x | {"state": torch.zeros(B, 1, P, dtype=torch.int64)}, ValueError,
        r"state: expected shape \[b, h, P\] = \[2, 2, 4\], got",
    ),
    "in place, where steps learn": (
        lambda x: x | {"steps": x["steps"].requires_grad_(), "inplace": True}, ValueError,
        "inplace: expected new tensors if steps require a gradient",
    ),
    "in place, placed elsewhere": (
        lambda x: x | {"q": x["q"].redistribute(placements=[Shard(3)]), "inplace": True},
        ValueError, r"q: expected a DTensor placed like the result, \[R\], got \[S\(3\)\]",
    ),
    "k in place, placed elsewhere": (
        lambda x: x | {"k": x["k"].redistribute(placements=[Shard(3)]), "inplace": True},
        ValueError, r"k: expected a DTensor placed like the result, \[R\], got \[S\(3\)\]",
    ),
    "a plain out": (
        lambda x: x | {"out": (x["q"].full_tensor(), x["k"].full_tensor())}, TypeError,
        r"out\[0\]: expected a DTensor, as q is, got Tensor",
    ),
    "starts that no order cuts": (
        lambda x: {n: distribute_tensor(t.full_tensor()[0], mesh(), [Shard(0)])
                   for n, t in x.items()}
        | {"layout": "thd", "starts": [0, 8, S], "order": "striped"},
        ValueError, "order: expected 'contiguous', or 'zigzag', which cuts each row separately",
    ),
    "rows that zigzag cannot cut": (
        lambda x: {n: distribute_tensor(t.full_tensor()[0], mesh(), [Shard(0)])
                   for n, t in x.items()}
        | {"layout": "thd", "starts": [0, 6, S], "order": "zigzag"},
        ValueError, r"starts: expected rows of multiples of 8 tokens .* got \[0, 6, 24\]",
    ),
}  # fmt: skip


def error(name: str) -> str:
    given = dict(zip(("q", "k", "steps"), inputs(B, S)[:3], strict=True))
    cut = {n: distribute_tensor(x, mesh(), [Shard(1)]) for n, x in given.items()}
    call = WRONG[name][0](cut)
    before = [call[n].clone() for n in "qk"]
    q, k, steps = (call.pop(n) for n in ("q", "k", "steps"))
    try:
        pn.selective_rotary_qk(q, k, steps, **{"layout": "bshd", **call})
    except (ValueError, TypeError) as wrong:
        now = [x.detach() for x in (q, k)]
        same = all(torch.equal(as_plain(x), as_plain(y)) for x, y in zip(now, before, strict=True))
        return f"{type(wrong).__name__}: {wrong}" if same else "something has been written"
    return "no error"


def as_plain(x: Any) -> Any:
    return x.to_local() if isinstance(x, DTensor) else x


@pytest.mark.parametrize("name", WRONG)
def test_all_ranks_say_what_is_wrong(name: str) -> None:
    """Orders, and a step that one rank alone has: it would leave the others in a collective."""
    _, kind, words = WRONG[name]
    for said in run(4, error, name):
        assert re.match(f"{kind.__name__}: selective_rotary_qk: {words}", said), said
