"""Every operator, over shapes at which kernels break, against the CPU; a file of tests.

    python -m pytest -p benchmarks.gpu.resume --progress FILE benchmarks/gpu/small_run.py

Small, because compute-sanitizer runs it too. The cases and the comparison are those of the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch_cases
from torch.utils._python_dispatch import TorchDispatchMode
from torch_cases import FAR, FLOATS, FRACTIONAL, ROTARY_CASES, RotaryCase, random

import posenc_native as pn
from benchmarks.gpu.device import Cuda
from posenc_native.core.calls.norms import Norm
from posenc_native.core.calls.rotation import Rotation, flat

Results = list[torch.Tensor]
_ops = torch.ops.posenc_native

# The cases of the tests have 5 tokens and heads of 16. These have odd numbers of everything: tokens
# around the ends of blocks, heads too narrow or too odd for vectors, slices that begin anywhere.
SIZES: list[tuple[RotaryCase, dict[str, int]]] = [
    *((case, {}) for case in ROTARY_CASES),
    (RotaryCase("one token", "bshd", pairs=64), {"b": 3, "s": 1, "h": 32, "d": 128}),
    (RotaryCase("many tokens", "bshd", pairs=64), {"b": 1, "s": 1037, "h": 3, "d": 128}),
    (RotaryCase("many heads", "shd", "interleaved", pairs=32), {"s": 3, "h": 71, "d": 64}),
    (RotaryCase("narrow", "thd", pairs=1), {"t": 257, "h": 5, "d": 2}),
    (RotaryCase("odd head", "bhsd", pairs=33), {"s": 33, "d": 67}),
    (RotaryCase("odd start", "bshd", "interleaved", 7, 13), {"s": 31, "d": 40}),
    (RotaryCase("odd blocks", "sd", 6, 3, 9), {"s": 129, "d": 24}),
    (RotaryCase("wide", "sd", pairs=512), {"s": 9, "d": 1027}),
]


def unaligned(x: torch.Tensor) -> torch.Tensor:
    """The same numbers one element past where they would be aligned, rows apart."""
    return torch.nn.functional.pad(x, (1, 2), value=7.0)[..., 1:-2]


def around(x: torch.Tensor) -> torch.Tensor:
    """The memory around what `unaligned` returned."""
    base = x._base
    assert base is not None
    return torch.cat([base[..., :1], base[..., -2:]], -1)


def into(call: Callable[..., object], like: torch.Tensor) -> Results:
    """What `call` writes to an `out` that is not aligned, and what is around it."""
    out = unaligned(torch.zeros_like(like))
    call(out=out)
    return [out, around(out)]


def every_way(call: Callable[..., Any], *xs: torch.Tensor) -> Results:
    """New results, in `out` and in place; of tensors that are aligned, that are not, and of both.

    `call` takes one tensor, or q and k, and the options of where its results go.
    """

    def go(*tensors: torch.Tensor, **where: Any) -> Results:
        results = call(*tensors, **where)
        return [results] if isinstance(results, torch.Tensor) else list(results)

    results = go(*xs)
    for aligned in range(len(xs) + 1):  # so many, from q on
        given, outs = (
            [*tensors[:aligned], *map(unaligned, tensors[aligned:])]
            for tensors in (xs, [torch.zeros_like(x) for x in xs])
        )
        results += go(*given, out=outs[0] if len(xs) == 1 else tuple(outs))
        results += map(around, outs[aligned:])
    views = [unaligned(x) for x in xs]
    in_place = {"out": views[0]} if len(xs) == 1 else {"inplace": True}
    return [*results, *go(*views, **in_place), *map(around, views)]


def tokens(case: RotaryCase, shape: tuple[int, ...]) -> int:
    """How many tokens x of this shape has."""
    return shape[case.layout.replace("t", "s").index("s")]


def rotary(case: RotaryCase, sizes: dict[str, int], dtype: torch.dtype, device: str) -> Results:
    """x, q and k rotated in every way, from phases and from tables."""
    shape = case.shape(**sizes)
    x, more = random(shape, dtype, device), random(shape, dtype, device, seed=1)
    (positions, inv_freq), options = case.arguments(device)
    results = []
    for pairing in ("same", "half" if case.pairing != "half" else "interleaved"):
        given = {"positions": positions, "inv_freq": inv_freq, "out_pairing": pairing, **options}
        results += every_way(partial(pn.apply_rotary, **given), x)
        results += every_way(partial(pn.apply_rotary_qk, **given), x, more)
    if positions is None or positions.numel():
        steps = tokens(case, shape) if positions is None else positions
        cos, sin = pn.rotary_tables(
            steps, inv_freq, axis_map=options["axis_map"], scale=case.scale, dtype=dtype
        )
        results += [cos, sin]
        # Not from tables made here, which would carry a difference of the two devices along.
        cos, sin = random(cos.shape, dtype, device, 2), unaligned(random(cos.shape, dtype, device))
        given = {"positions": None, "inv_freq": pn.Tables(cos, sin), **case.table_options()}
        results += every_way(partial(pn.apply_rotary, **given), x)
        results += every_way(partial(pn.apply_rotary_qk, **given), x, more)
    return results


def selective(
    layout: str, tokens: int, heads: int, pairs: int, dtype: torch.dtype, device: str
) -> Results:
    """q and k turned by angles that data decide, in every way, and gradients in whole numbers.

    Steps of 0 turn nothing.
    """
    sizes = {"b": 2, "s": tokens, "t": tokens}

    def numbers(count: int, width: int, seed: int, of: torch.dtype = dtype) -> torch.Tensor:
        shape = [(sizes | {"h": count, "d": width})[letter] for letter in layout]
        return random(shape, of, device, seed)

    q, k = numbers(2 * heads, 2 * pairs + 3, 0), numbers(heads, 2 * pairs + 3, 1)
    starts = None if "b" in layout else torch.tensor([0, tokens // 3, tokens // 3, tokens])
    rows = 2 if starts is None else 3
    state = (torch.arange(rows * heads * pairs).view(rows, heads, pairs) << 50).to(device)
    starts = starts if starts is None else starts.to(device)
    results = []
    for pairing, out_pairing in (
        ("half", "same"),
        ("interleaved", "same"),
        ("interleaved", "half"),
    ):
        options = {"layout": layout, "pairing": pairing, "out_pairing": out_pairing,
                   "rotary_start": 1, "starts": starts, "state": state}  # fmt: skip
        of_steps = torch.float64 if pairing == "half" else dtype
        steps = numbers(heads, pairs, 2, of_steps)

        def one(
            x: torch.Tensor, out: Any = None, steps: Any = steps, options: Any = options
        ) -> Any:
            to = {"inplace": True} if out is x else {"out": None if out is None else (None, out)}
            return pn.selective_rotary_qk(None, x, steps, **options, **to)[1]

        def two(*both: torch.Tensor, steps: Any = steps, options: Any = options, **to: Any) -> Any:
            return pn.selective_rotary_qk(*both, steps, **options, **to)

        results += [*every_way(one, q), *every_way(two, q, k)]
    axis = layout.index("t" if "t" in layout else "s")
    phases = pn.selective.accumulated_phases(steps, axis=axis)
    results += [phases, *pn.selective.phase_tables(phases)]
    whole = [(numbers(n, 2 * pairs + 3, 3 + n) * 4).round() for n in (2 * heads, heads) * 2]
    inputs = [x.requires_grad_() for x in (*whole[:2], torch.zeros_like(steps))]
    for count in (2, 1):
        both = [x if i < count else None for i, x in enumerate(inputs[:2])]
        turned = pn.selective_rotary_qk(*both, inputs[2], layout=layout, starts=starts)
        of = [inputs[0], *inputs[2 - (count > 1) :]]
        results += torch.autograd.grad(turned[:count], of, whole[2 : 2 + count])
    return results


def gradients(case: RotaryCase, sizes: dict[str, int], dtype: torch.dtype, device: str) -> Results:
    """Gradients of x, and of frequencies and positions in whole numbers: exact in any order.

    Frequencies of 0, or positions, turn nothing.
    """
    shape = case.shape(**sizes)
    q, k, of_q, of_k = ((random(shape, dtype, device, seed=i) * 4).round() for i in range(4))
    (positions, inv_freq), options = case.arguments(device)
    options["pairing"] = str(options["pairing"])
    if positions is None:
        positions = torch.arange(tokens(case, shape), device=device)
    heads = shape[case.layout.index("h")] if "h" in case.layout else 1
    each = [(positions, inv_freq), (positions, inv_freq.expand(heads, -1))]
    if case.axis_map is None:
        each.append((torch.stack([positions, positions + 3]), inv_freq.expand(2, heads, -1)))
    results = []
    for points, frequencies in each:
        count = torch.arange(frequencies.numel(), device=device).view(frequencies.shape)
        for turning, given in (
            (True, (points, frequencies)),
            (False, (points.long() % 8, 0.0 * count.double())),
            (False, (0 * points, (count % 8).double())),
        ):
            said = [*given, *(options if turning else options | {"scale": 1.0}).values()]
            for of_positions, copy in ((True, torch.clone), (False, unaligned)):
                tensors = [copy(t) for t in (of_q, of_k, q, k)]
                both = _ops.rotary_qk_backward(*tensors, *said, of_positions=of_positions)
                one = _ops.rotary_backward(*tensors[::2], *said, of_positions=of_positions)
                results += [*both[:2], one[0]] if turning else [*both, *one]
    return results


def normed(case: RotaryCase, sizes: dict[str, int], dtype: torch.dtype, device: str) -> Results:
    """q and k normed, rotated and appended in every way; gradients of q and k."""
    shape = case.shape(**sizes)
    lengths = dict(zip(case.layout.replace("t", "s"), shape, strict=True))
    q, k, v, of_q, of_k = (random(shape, dtype, device, seed=i) for i in range(5))
    (positions, inv_freq), options = case.arguments(device)
    del options["inverse"]
    heads, dims, batch = lengths.get("h", 1), lengths["d"], lengths.get("b", 1)
    weight = random((heads, dims), dtype, device, seed=6)
    slots = torch.arange(batch * lengths["s"], device=device).flip(0) - 1
    slots = slots.view(batch, -1) if "b" in case.layout else slots
    cache = (batch * lengths["s"] + 3, heads, dims)
    cos, sin = (random((lengths["s"], case.pairs), dtype, device, seed=i) for i in (7, 8))
    phases = {"positions": positions, "inv_freq": inv_freq}, options
    by_tables = {name: options[name] for name in ("layout", "pairing", "rotary_start")}
    tables = {"positions": None, "inv_freq": pn.Tables(cos, sin)}, by_tables
    results: Results = []
    for over, first in (("head", True), ("head", False), ("token", True), ("token", False)):
        norm = {"q_weight": weight, "norm_over": over, "norm_first": first, "weight_offset": 0.5}
        for given, more in (phases, tables):
            results += every_way(partial(pn.norm_rotary_qk, **given, **more, **norm), q, k)
            out = torch.empty_like(q), unaligned(k)
            for to in ({}, {"inplace": True}, {"out": out[1]}, {"out": out}):
                keys, values = (torch.zeros(cache, dtype=dtype, device=device) for _ in range(2))
                of_k_too = isinstance(to.get("out", out), tuple) and "inplace" not in to
                where = {"cache_layout": "shd", "return_k": of_k_too, **to}
                written = (q.clone(), k.clone(), v, *given.values(), keys, values, slots)
                appended = pn.rotary_append(*written, **where, **more, **norm)
                results += [t.clone() for t in (appended if of_k_too else [appended])]
                results += [keys, values]
        turned = (case.layout, str(case.pairing), case.rotary_start)
        said = Norm(weight, None, norm_over=over, weight_offset=0.5, norm_first=first)
        of = (of_q, of_k, q, k)
        turning = Rotation(positions, inv_freq, *turned, options["axis_map"], case.scale)
        results += _ops.norm_rotary_qk_backward(*of, *turning, "float32", *said)[:2]
        by = flat(Rotation(None, pn.Tables(cos, sin), *turned))
        results += _ops.norm_rotary_qk_from_tables_backward(*of, *by, *said)[:2]
    return results


def sinusoids(rows: int, dim: int, layout: str, dtype: torch.dtype, device: str) -> Results:
    """Tables and sums in every way."""
    points = torch.arange(rows, device=device) * 12345 - 2**40
    spec: dict[str, Any] = {"layout": layout, "base": 5e5, "shift": 0.5, "scale": 1.5}
    x = random((3, rows, dim), dtype, device)
    results = into(partial(pn.sinusoidal, points, dim, **spec), x[0])
    results += [
        pn.sinusoidal(values.to(device), dim, dtype=dtype, **spec)
        for values in (points, torch.tensor(FAR), torch.tensor(FRACTIONAL))
    ]
    spec |= {"x_scale": 3.0, "alpha": 0.5}
    for at in (points, points.double() + 0.25):
        results += every_way(partial(pn.add_sinusoidal, positions=at, **spec), x)
    return results


def relative(queries: int, keys: int, dtype: torch.dtype, device: str) -> Results:
    """Diagonals laid down, added and summed; columns looked up and scattered back."""
    entries, extra = queries + keys - 1, 9
    scores = random((2, 3, queries, keys), dtype, device)
    window = {"q_offset": torch.tensor([4, extra], device=device), "origin": queries - 1 + extra}
    results = []
    for count, given in ((entries, {}), (entries + extra, window)):
        for of in (dtype, torch.float64):
            diagonals = random((3, count), of, device, seed=1)
            results += every_way(
                partial(pn.add_toeplitz_bias, diagonals=diagonals, **given), scores
            )
            lay = partial(pn.toeplitz_bias, diagonals, queries, keys, **given)
            bias = lay(dtype=dtype)
            results += [bias, *into(lay, bias)]
        for x in (scores, unaligned(scores)):
            for keep in (1, 2):
                results.append(pn.diagonal_sums(x, keep=keep, entries=count, **given))
        width = count + 2
        x = random((2, 3, queries, width), dtype, device, seed=2)
        index = (torch.arange(count, device=device) - count // 2).clamp(-3, 20) + 3
        for columns in (None, index):
            gather = partial(pn.relative_gather, index=columns, k_len=keys, **given)
            results.append(gather(x))
            results += into(partial(gather, unaligned(x), content=scores, scale=0.3), scores)
        results.append(pn.relative_scatter(scores, None, width, scale=0.3, **given))
        # Whole numbers: their sums are exact in any order.
        whole = (scores * 4).round()
        for columns in (None, index, index.clamp(max=3), index.flip(0)):
            scatter = partial(pn.relative_scatter, unaligned(whole), columns, width, scale=0.5)
            results += into(partial(scatter, **given), x)
    return results


def grids(q_len: Any, k_len: Any, dtype: torch.dtype, device: str) -> Results:
    """Diagonals of queries and keys in a grid."""
    entries = tuple(q + k - 1 for q, k in zip(q_len, k_len, strict=True))
    scores = random((67, 2, math.prod(q_len), math.prod(k_len)), dtype, device)
    grid = {"q_len": q_len, "k_len": k_len}
    results = [pn.toeplitz_bias(random((2, *entries), device=device), q_len, k_len, dtype=dtype)]
    for x in (scores, unaligned(scores)):
        diagonals = random((2, *entries), torch.float32, device, seed=1)
        results.append(pn.add_toeplitz_bias(x, diagonals, **grid))
        results.append(pn.diagonal_sums(x, entries=entries, **grid))
    return results


_ARGUMENTS: dict[Callable[..., Results], list[tuple[Any, ...]]] = {
    rotary: SIZES, normed: SIZES, gradients: SIZES,
    sinusoids: [(1, 2, "interleaved"), (33, 66, "interleaved"), (5, 1030, "sin_cos"),
                (257, 6, "cos_sin"), (3, 4096, "interleaved")],
    selective: [("bshd", 1, 4, 32), ("thd", 45, 2, 7), ("bhsd", 71, 1, 16), ("sbhd", 16, 3, 64)],
    relative: [(1, 40), (8, 8), (9, 13), (33, 64), (70, 24), (5, 1030), (263, 9)],
    grids: [((7, 7), (7, 7)), ((3, 5), (4, 8)), ((2, 2, 3), (1, 4, 2))],
}  # fmt: skip


def _name(family: Callable[..., Results], arguments: tuple[Any, ...], dtype: torch.dtype) -> str:
    sizes = getattr(arguments[0], "name", " x ".join(map(str, arguments)))
    return f"{family.__name__}, {sizes}, {torch_cases.dtype_id(dtype)}"


CASES = [
    pytest.param(partial(family, *arguments, dtype), id=_name(family, arguments, dtype))
    for dtype in FLOATS
    for family, each in _ARGUMENTS.items()
    for arguments in each
]


class Seen(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removesuffix(".default")
        if name.startswith("posenc_native."):
            self.names.add(name.removeprefix("posenc_native."))
        return func(*args, **(kwargs or {}))


SEEN = Seen()


@pytest.mark.parametrize("compute", CASES)
def test_bits_are_those_of_the_cpu(compute: Callable[[str], Results], on: Cuda) -> None:
    expected = compute("cpu")
    with SEEN:
        results = compute(on.kind)
    wrong = []
    for number, (result, e) in enumerate(zip(results, expected, strict=True)):
        try:
            torch_cases.assert_same_bits(result, e)
        except AssertionError as error:
            wrong.append(f"result {number} differs from the CPU's:\n{error}")
    assert not wrong, "\n".join(wrong)


def test_every_operator_with_a_kernel_has_run(on: Cuda, in_parts: bool) -> None:
    if in_parts:
        pytest.skip("of a part nothing follows")
    key = {"cpu": "CPU", "cuda": "CUDA"}[on.kind]
    names = {
        name.removeprefix("posenc_native::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("posenc_native::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    }
    # What compositions for other devices need, made on the CPU.
    assert names - SEEN.names - {"frequency_turns"} == set()
