"""Every operator once or a few times, over shapes at which kernels break; against the CPU.

    python -m benchmarks.gpu.small_run --device cuda

Small, because compute-sanitizer runs it too. The cases and the comparison are those of the tests.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import posenc_native as pn
from benchmarks.gpu import device
from benchmarks.gpu.checks import MORE_TO_DO
from posenc_native.base.norms import Norm
from posenc_native.base.rotation import Rotation, TableRotation

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "shared"))

import torch_cases
from torch_cases import FAR, FLOATS, FRACTIONAL, ROTARY_CASES, RotaryCase, random

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


def rotary(case: RotaryCase, sizes: dict[str, int], dtype: torch.dtype, device: str) -> Results:
    """x, q and k rotated in every way, from phases and from tables."""
    shape = case.shape(**sizes)
    x, more = random(shape, dtype, device), random(shape, dtype, device, seed=1)
    (positions, inv_freq), options = case.arguments(device)
    given = (positions, inv_freq)
    results = [pn.apply_rotary(x, *given, **options)]
    results.append(pn.apply_rotary(x, *given, **options, out=torch.empty_like(x)))
    view = unaligned(x)
    results += [pn.apply_rotary(view, *given, **options, out=view), around(view)]
    results.append(pn.apply_rotary(unaligned(x), *given, **options, out=unaligned(more)))
    results += pn.apply_rotary_qk(x, more, *given, **options)
    q, k = unaligned(x), unaligned(more)
    results += [*pn.apply_rotary_qk(q, k, *given, **options, inplace=True), around(q), around(k)]
    out = unaligned(more), unaligned(x)
    results += [*pn.apply_rotary_qk(x, more, *given, **options, out=out), *map(around, out)]
    moved = options | {"out_pairing": "half" if case.pairing != "half" else "interleaved"}
    results += pn.apply_rotary_qk(x, more, *given, **moved)
    view = unaligned(x)
    results += [pn.apply_rotary(view, *given, **moved, out=view), around(view)]
    if positions is None or positions.numel():
        tokens = shape[case.layout.index("t" if "t" in case.layout else "s")]
        steps = tokens if positions is None else positions
        cos, sin = pn.rotary_tables(
            steps, inv_freq, axis_map=options["axis_map"], scale=case.scale, dtype=dtype
        )
        results += [cos, sin]
        # Not from tables made here, which would carry a difference of the two devices along.
        cos, sin = random(cos.shape, dtype, device, 2), unaligned(random(cos.shape, dtype, device))
        options = case.table_options()
        results.append(pn.apply_rotary_tables(x, cos, sin, **options))
        results.append(pn.apply_rotary_tables(x, cos, sin, **options, out=torch.empty_like(x)))
        view = unaligned(x)
        results += [pn.apply_rotary_tables(view, cos, sin, **options, out=view), around(view)]
        results += pn.apply_rotary_qk_tables(x, more, cos, sin, **options)
        q, k = unaligned(x), unaligned(more)
        results += pn.apply_rotary_qk_tables(q, k, cos, sin, **options, inplace=True)
        results += [around(q), around(k)]
        out = torch.empty_like(x), unaligned(x)
        results += pn.apply_rotary_qk_tables(x, more, cos, sin, **options, out=out)
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
        tokens = shape[case.layout.index("t" if "t" in case.layout else "s")]
        positions = torch.arange(tokens, device=device)
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
    tables = [random((lengths["s"], case.pairs), dtype, device, seed=i) for i in (7, 8)]
    by_tables = {name: options[name] for name in ("layout", "pairing", "rotary_start")}
    results: Results = []
    for over, first in (("head", True), ("head", False), ("token", True), ("token", False)):
        norm = {"q_weight": weight, "norm_over": over, "norm_first": first, "weight_offset": 0.5}
        for function, given, more in (
            ("", (positions, inv_freq), options),
            ("_tables", tables, by_tables),
        ):
            rotate = getattr(pn, f"norm_rotary_qk{function}")
            append = getattr(pn, f"rotary_append{function}")
            results += rotate(q, unaligned(k), *given, **more, **norm)
            both = unaligned(q), unaligned(k)
            results += [*rotate(*both, *given, **more, **norm, inplace=True), *map(around, both)]
            out = torch.empty_like(q), unaligned(k)
            results += [*rotate(q, k, *given, **more, **norm, out=out), *map(around, out[1:])]
            for to in ({}, {"inplace": True}, {"out": out[1]}, {"out": out}):
                keys, values = (torch.zeros(cache, dtype=dtype, device=device) for _ in range(2))
                x = q.clone(), k.clone()
                both = isinstance(to.get("out", out), tuple) and "inplace" not in to
                given_all = (*x, v, *given, keys, values, slots)
                kept = {"cache_layout": "shd", "return_k": both, **to}
                appended = append(*given_all, **kept, **more, **norm)
                results += [one.clone() for one in (appended if both else [appended])]
                results += [keys, values]
        where = (case.layout, str(case.pairing), case.rotary_start)
        said = Norm(weight, None, norm_over=over, weight_offset=0.5, norm_first=first)
        turned = Rotation(positions, inv_freq, *where, options["axis_map"], case.scale)
        turning = (*turned, "float32", *said)
        results += _ops.norm_rotary_qk_backward(of_q, of_k, q, k, *turning)[:2]
        turning = (*TableRotation(*tables, *where), *said)
        results += _ops.norm_rotary_qk_from_tables_backward(of_q, of_k, q, k, *turning)[:2]
    return results


def sinusoids(rows: int, dim: int, layout: str, dtype: torch.dtype, device: str) -> Results:
    """Tables and sums in every way."""
    points = torch.arange(rows, device=device) * 12345 - 2**40
    spec: dict[str, Any] = {"layout": layout, "base": 5e5, "shift": 0.5, "scale": 1.5}
    results = [pn.sinusoidal(points, dim, dtype=dtype, **spec)]
    out = unaligned(torch.zeros(rows, dim, dtype=dtype, device=device))
    results += [pn.sinusoidal(points, dim, out=out, **spec), around(out)]
    results += [
        pn.sinusoidal(torch.tensor(values, device=device), dim, dtype=dtype, **spec)
        for values in (FAR, FRACTIONAL)
    ]
    x = random((3, rows, dim), dtype, device)
    results.append(pn.add_sinusoidal(x, points, x_scale=3.0, alpha=0.5, **spec))
    results.append(pn.add_sinusoidal(x, points.double() + 0.25, out=torch.empty_like(x), **spec))
    view = unaligned(x)
    results += [pn.add_sinusoidal(view, out=view, **spec), around(view)]
    return results


def relative(queries: int, keys: int, dtype: torch.dtype, device: str) -> Results:
    """Diagonals laid down, added and summed; columns looked up and scattered back."""
    entries, extra = queries + keys - 1, 9
    scores = random((2, 3, queries, keys), dtype, device)
    q_offset = torch.tensor([4, extra], device=device)
    window = {"q_offset": q_offset, "origin": queries - 1 + extra}
    results = []
    for count, given in ((entries, {}), (entries + extra, window)):
        for of in (dtype, torch.float64):
            diagonals = random((3, count), of, device, seed=1)
            results.append(pn.add_toeplitz_bias(scores, diagonals, **given))
            bias = pn.toeplitz_bias(diagonals, queries, keys, dtype=dtype, **given)
            results.append(bias)
            out = torch.empty_like(scores)
            results.append(pn.add_toeplitz_bias(scores, diagonals, out=out, **given))
            view = unaligned(scores)
            results += [pn.add_toeplitz_bias(view, diagonals, out=view, **given), around(view)]
            out = unaligned(torch.zeros_like(bias))
            pn.toeplitz_bias(diagonals, queries, keys, out=out, **given)
            results += [out, around(out)]
        for x in (scores, unaligned(scores)):
            for keep in (1, 2):
                results.append(pn.diagonal_sums(x, keep=keep, entries=count, **given))
        width = count + 2
        x = random((2, 3, queries, width), dtype, device, seed=2)
        index = (torch.arange(count, device=device) - count // 2).clamp(-3, 20) + 3
        for columns in (None, index):
            gather = [columns, keys]
            results.append(pn.relative_gather(x, *gather, **given))
            out = unaligned(torch.zeros_like(scores))
            pn.relative_gather(unaligned(x), *gather, content=scores, scale=0.3, out=out, **given)
            results += [out, around(out)]
        results.append(pn.relative_scatter(scores, None, width, scale=0.3, **given))
        # Whole numbers: their sums are exact in any order.
        whole = (scores * 4).round()
        for columns in (None, index, index.clamp(max=3), index.flip(0)):
            out = unaligned(torch.zeros_like(x))
            pn.relative_scatter(unaligned(whole), columns, width, scale=0.5, out=out, **given)
            results += [out, around(out)]
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


def cases(dtypes: list[torch.dtype]) -> Iterator[tuple[str, Any]]:
    """(name, what computes its results on a device)."""
    for dtype in dtypes:
        name = torch_cases.dtype_id(dtype)
        for case, sizes in SIZES:
            yield (
                f"{case.name}, {name}",
                lambda device, c=case, s=sizes, d=dtype: rotary(c, s, d, device),
            )
            yield (
                f"norms of {case.name}, {name}",
                lambda device, c=case, s=sizes, d=dtype: normed(c, s, d, device),
            )
            yield (
                f"gradients of {case.name}, {name}",
                lambda device, c=case, s=sizes, d=dtype: gradients(c, s, d, device),
            )
        for rows, dim, layout in (
            (1, 2, "interleaved"), (33, 66, "interleaved"), (5, 1030, "sin_cos"),
            (257, 6, "cos_sin"), (3, 4096, "interleaved"),
        ):  # fmt: skip
            yield (
                f"sinusoids, {rows} x {dim}, {layout}, {name}",
                lambda device, r=rows, w=dim, n=layout, d=dtype: sinusoids(r, w, n, d, device),
            )

        for queries, keys in ((1, 40), (8, 8), (9, 13), (33, 64), (70, 24), (5, 1030), (263, 9)):
            yield (
                f"relative, {queries} x {keys}, {name}",
                lambda device, q=queries, k=keys, d=dtype: relative(q, k, d, device),
            )
        for q_len, k_len in (((7, 7), (7, 7)), ((3, 5), (4, 8)), ((2, 2, 3), (1, 4, 2))):
            yield (
                f"grids, {q_len} x {k_len}, {name}",
                lambda device, q=q_len, k=k_len, d=dtype: grids(q, k, d, device),
            )


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


def _differences(name: str, compute: Any, kind: str, seen: Seen) -> tuple[int, list[str]]:
    """How many results a case has on the device, and which are not those of the CPU."""
    expected = compute("cpu")
    with seen:
        results = compute(kind)
    wrong = []
    for number, (result, e) in enumerate(zip(results, expected, strict=True)):
        try:
            torch_cases.assert_same_bits(result, e)
        except AssertionError as error:
            wrong.append(f"{name}: result {number}: {str(error).strip().splitlines()[0]}")
            print(f"{name}: result {number} differs from the CPU's:\n{error}", flush=True)
    return len(results), wrong


def _not_run(kind: str, seen: Seen) -> set[str]:
    """Operators with a kernel on the device that no case has called."""
    key = {"cpu": "CPU", "cuda": "CUDA"}[kind]
    names = {
        name.removeprefix("posenc_native::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("posenc_native::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    }
    # What compositions for other devices need, made on the CPU.
    return names - seen.names - {"frequency_turns"}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.small_run", description=__doc__)
    device.add_argument(parser)
    parser.add_argument("--quick", action="store_true", help="one dtype of the four")
    parser.add_argument("--first", type=int, default=0, help="so many cases are done already")
    parser.add_argument(
        "--until", type=float, default=math.inf, metavar="TIME",
        help="seconds since 1970 after which no case is begun; the exit status is 75 then",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    on = device.named(options.device)

    if reason := torch_cases.why_no_kernels(on.kind):
        sys.exit(f"small run: {reason}")
    everything = list(cases(FLOATS[1:2] if options.quick else FLOATS))
    wrong, count, done, seen, end = [], 0, options.first, Seen(), ""
    for name, compute in everything[options.first :]:
        if time.time() > options.until:
            break
        # Before it runs: what never returns, or takes the process along, is known by it.
        print(f"case {done + 1} of {len(everything)}: {name}", flush=True)
        try:
            results, differences = _differences(name, compute, on.kind, seen)
            count += results
            wrong += differences
        except Exception as error:
            traceback.print_exc()
            wrong.append(
                f"{name}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            )
            if lost := device.lost(on):
                end = f"the device is lost since case {done + 1}, {name}, and later ones cannot run"
                end += f": {lost}"
                break
        except KeyboardInterrupt:
            end = f"interrupted in case {done + 1}, {name}"
            break
        done += 1
    print(
        f"{count} results of {len(seen.names)} operators on {on.kind}: {len(wrong)} differ or fail"
    )
    if end:
        sys.exit(f"small run: {end}" + "".join(f"\n{line}" for line in wrong[:20]))
    # Of a part nothing follows.
    if (options.first, done) == (0, len(everything)) and (not_run := _not_run(on.kind, seen)):
        wrong.append("not run: " + ", ".join(sorted(not_run)))
    print(f"cases {options.first + 1} to {done} of {len(everything)} are done", flush=True)
    if wrong:
        sys.exit("small run: " + "\n".join(wrong[:20]))
    if done < len(everything):
        sys.exit(MORE_TO_DO)


if __name__ == "__main__":
    main()
