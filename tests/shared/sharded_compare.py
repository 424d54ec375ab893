"""Calls of DTensors beside the same calls of whole tensors: what tests of several ranks compare.

A `Case` has whole tensors, the letters of the axes of those that are cut, and a call. `compare`
runs on each rank: it cuts the tensors as placements say and holds the results, put together again,
against those of one process.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from sharded_calls import CASES, Case, Tensors
from sharded_modules import MODULES
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from posenc_native.engines.torch.sharded.cut import Cut


@dataclass
class Found:
    wrong: list[str] = field(default_factory=list)
    compared: int = 0

    def expect(self, fine: bool, what: str) -> None:
        self.compared += 1
        if not fine:
            self.wrong.append(what)


def compare(
    shape: tuple[int, ...], names: Sequence[str], ways: Sequence[str]
) -> tuple[list[str], int]:
    """Every case of these names, its tensors cut in every way that a mesh of this shape can.

    Returns what is wrong, and how much was compared.
    """
    mesh = init_device_mesh("cpu", shape)
    found = Found()
    for name in names:
        case = (CASES | MODULES)[name]
        first = next(iter(case.axes.values()))
        for letters in _letters(first, len(shape), "most" in ways):
            about = f"{name}, mesh {list(shape)} cuts {letters}"
            try:
                _compare(found, about, case, mesh, letters, ways)
            except Exception:
                found.expect(False, f"{about}: {traceback.format_exc()}")
    return found.wrong, found.compared


def compare_wrongly(name: str) -> list[str]:
    """`compare`, of parts that all begin at 0: what it finds is why its silence says something."""
    right = Cut.span
    try:
        Cut.span = lambda cut, name: (0, right(cut, name)[1])
        return compare((2,), [name], ["gradients", "in place"])[0]
    finally:
        Cut.span = right


def _letters(axes: str, dims: int, most: bool) -> list[tuple[str, ...]]:
    """Which axis each dimension of a mesh cuts: "" none, "+" is to be summed."""
    one = [*axes, "", "+"]
    if dims == 1:
        return [(letter,) for letter in one]
    pairs = [(a, b) for a in one for b in one]
    return pairs if most else pairs[:: len(one) // 2 + 1]


def placements_of(letters: Sequence[str], axes: str) -> list[Any]:
    return [
        Partial() if letter == "+"
        else Shard(axes.index(letter)) if letter and letter in axes
        else Replicate()
        for letter in letters
    ]  # fmt: skip


def cut(x: Tensor, mesh: Any, placements: list[Any]) -> DTensor:
    """A whole tensor, the same on each rank, as a DTensor with these placements."""
    if not any(isinstance(p, Partial) for p in placements):
        return distribute_tensor(x.detach().clone(), mesh, placements)
    for dim, placement in enumerate(placements):
        if isinstance(placement, Partial) and mesh.size(dim) > 1:
            # 2 x - x + 0: exact in any order.
            x = x * (2.0, -1.0, 0.0)[min(mesh.get_local_rank(dim), 2)]
    sharded = [Replicate() if isinstance(p, Partial) else p for p in placements]
    local = distribute_tensor(x.detach().clone(), mesh, sharded, src_data_rank=None).to_local()
    shape, stride = torch.Size(x.shape), x.contiguous().stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def _compare(
    found: Found, about: str, case: Case, mesh: Any, letters: Sequence[str], ways: Sequence[str]
) -> None:
    torch.manual_seed(1)
    tensors = case.make()
    placements = {name: placements_of(letters, axes) for name, axes in case.axes.items()}
    for name in case.written:
        placements[name] = placements_of([one.strip("+") for one in letters], case.axes[name])
    integers = any(not tensors[name].is_floating_point() for name in case.axes)
    if "+" in letters and integers:
        return
    compiled = "compile" in ways
    if compiled:
        torch.compiler.reset()
    backend = "inductor" if "inductor" in ways else "aot_eager"  # code is a matter of each rank
    call = torch.compile(case.call, fullgraph=True, backend=backend) if compiled else case.call

    def sharded() -> Tensors:
        return tensors | {n: cut(tensors[n], mesh, placements[n]) for n in case.axes}

    expected = as_tuple(case.call(**tensors))
    given = sharded()
    communicated = CommDebugMode()
    with nullcontext() if compiled else communicated:  # which torch.compile does not follow
        results = as_tuple(call(**given))
    free = all(letter == "" or letter in case.free for letter in letters)
    # Half of what is compared would be cut elsewhere: such axes are gathered.
    same = len(set(case.axes.values())) == 1
    if free and same and not compiled:
        found.expect(communicated.get_total_counts() == 0, f"{about}: communicates")
    for result, whole in zip(results, expected, strict=True):
        if not isinstance(result, DTensor):
            found.expect(False, f"{about}: a plain result")
            continue
        found.expect(result.shape == whole.shape, f"{about}: shape {list(result.shape)}")
        found.expect(agree(result.full_tensor(), whole, case.sums), f"{about}: values")
        if free and same and not case.sums:
            kept = [str(p) for p in result.placements]
            cut_still = sum("S" in p for p in kept) == sum(letter != "" for letter in letters)
            found.expect(cut_still, f"{about}: result {kept}")
    if case.in_place and "in place" in ways:
        _compare_in_place(found, about, case, sharded(), expected, call)
    if case.gradients and "gradients" in ways:
        _compare_gradients(found, about, case, tensors, sharded(), call)


def _compare_in_place(
    found: Found, about: str, case: Case, given: Tensors, expected: Any, call: Any
) -> None:
    before = [given[name].full_tensor().clone() for name in case.in_place]  # type: ignore[attr-defined]
    try:
        results = as_tuple(call(**given, inplace=True))
    except (ValueError, RuntimeError) as error:  # RuntimeError: torch.compile's, with its text
        found.expect("placed like the result" in str(error), f"{about}: in place: {error}")
        expected = before  # nothing has been written
    else:
        found.expect(
            all(r is given[n] for r, n in zip(results, case.in_place, strict=True)),
            f"{about}: in place, another result",
        )
    for name, whole in zip(case.in_place, expected, strict=True):
        now = given[name].full_tensor()  # type: ignore[attr-defined]
        found.expect(agree(now, whole, False), f"{about}: in place: {name}")


def _compare_gradients(
    found: Found, about: str, case: Case, tensors: Tensors, given: Tensors, call: Any
) -> None:
    names = [*case.axes, *case.learned]
    names = [name for name in names if tensors[name].is_floating_point()]
    plain = tensors | {n: tensors[n].detach().clone().requires_grad_() for n in names}
    given = given | {n: tensors[n].detach().clone() for n in case.learned}
    for name in names:
        given[name].requires_grad_()
    expected = as_tuple(case.call(**plain))
    results = as_tuple(call(**given))
    torch.manual_seed(2)
    grads = [torch.randn_like(whole) for whole in expected]
    wanted = torch.autograd.grad(expected, [plain[n] for n in names], grads)
    given_grads = []
    for result, grad in zip(results, grads, strict=True):
        own = [Replicate() if isinstance(p, Partial) else p for p in result.placements]  # type: ignore[attr-defined]
        given_grads.append(distribute_tensor(grad, result.device_mesh, own))  # type: ignore[attr-defined]
    found_grads = torch.autograd.grad(results, [given[n] for n in names], given_grads)
    for name, ours, whole in zip(names, found_grads, wanted, strict=True):
        x = given[name]
        if isinstance(x, DTensor):
            found.expect(isinstance(ours, DTensor), f"{about}: gradient of {name} is plain")
            own = [Replicate() if isinstance(p, Partial) else p for p in x.placements]
            placed = [Replicate() if isinstance(p, Partial) else p for p in ours.placements]  # type: ignore[attr-defined]
            found.expect(placed == own, f"{about}: gradient of {name}: {ours.placements}")  # type: ignore[attr-defined]
            ours = ours.full_tensor()  # type: ignore[attr-defined]
        # Of what all parts share the gradient is a sum over them, in another order. That of steps
        # is one over the tokens of later parts.
        shared = case.sums or name in case.learned or name in ("diagonals", "steps")
        found.expect(agree(ours, whole, shared), f"{about}: gradient of {name}")


def agree(ours: Tensor, theirs: Tensor, sums: bool) -> bool:
    """The same bits; of sums, as many roundings apart as there are terms: a few hundred."""
    if sums:
        return torch.allclose(
            ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.detach().abs().max())
        )
    return torch.equal(ours, theirs)


def as_tuple(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)
