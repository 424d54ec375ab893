"""What is timed of relative encodings: biases, their gradients, shifts; and the code of models."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

import posenc_native as pn
from benchmarks.clock.harness import Case, Contestant, Job, Skipped
from benchmarks.peers.contestants import (
    NOTHING,
    Activations,
    Options,
    Row,
    Table,
    address,
    and_alone,
    compile_row,
    label,
    many,
    missing,
    normal,
    ours,
)
from benchmarks.peers.rotary import tolerance
from posenc_native import nn

HEADS = 16
# Multiples of the memory limits to reach, on one thread.
FILL, ADD, SUM, SHIFT = 1.15, 1.2, 1.3, 1.2


class _Gradient:
    """The gradient of scores."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.grad = normal(int(np.prod(shape)), dtype).reshape(shape)
        self.sums = normal(64, np.float32)  # of the memory limit, one number for each thread
        self.work, self.out = address(self.grad), address(self.sums)
        self.nbytes = self.grad.nbytes


class _Shift:
    """Position scores with a column for each distance, content scores, and room for a result."""

    def __init__(self, length: int, *, in_place: bool = False) -> None:
        self.x = torch.randn(1, HEADS, length, 2 * length - 1)
        self.result = torch.randn(1, HEADS, length, length)  # the content scores
        self.nbytes = self.result.nbytes
        self.work, self.out = address(self.x), address(self.result)
        if in_place:
            self.work, self.out = self.out, self.work


def _job(
    dtype: Any,
    expected: Callable[[Any], Any],
    changed: Callable[[Any], Any],
    written: Callable[[Any], Any] | None = None,
) -> Job:
    """Of results that are rounded once or twice: where they are in place, and with "out="."""
    return Job(
        expected,
        changed,
        written or changed,
        tolerance(dtype, _NO_ANGLES),
    )


_NO_ANGLES = np.zeros(1)
# Sums of up to millions of float32 numbers, in any order, relative to the largest of them.
_SUMS = 5e-3


def _sums_job(expected: Callable[[Any], Any]) -> Job:
    """Of sums, which are returned whatever the mode."""
    return Job(expected, expected, expected, _SUMS)


def _returned(result: Any) -> Any:
    return result


def _shape(length: int) -> tuple[int, int, int]:
    return HEADS, length, length


def _frozen(module: torch.nn.Module) -> Any:
    """A module whose parameters want no gradient."""
    return module.requires_grad_(False)


# ------------------------------------------------------------------------------ the operations


def by_index(diagonals: torch.Tensor, length: int) -> torch.Tensor:
    """The bias, by an index of every query and key."""
    steps = torch.arange(length)
    return diagonals[:, steps - steps[:, None] + (length - 1)]


def _bias(options: Options, length: int, dtype: Any, threads: int, name: str) -> Case:
    shape = _shape(length)
    sets = options.make_sets(lambda: Table(shape, dtype))
    diagonals = normal(HEADS * (2 * length - 1), dtype).reshape(HEADS, -1)

    def write(b: Table) -> None:
        pn.toeplitz_bias(diagonals, length, length, out=b.table)

    goal = options.goal(threads, FILL, "x")
    rows: list[Row] = [
        *and_alone(options, threads, ours("toeplitz_bias", "out=", write, goal, limit="fill")),
        ours(
            "toeplitz_bias",
            "fresh",
            lambda b: pn.toeplitz_bias(diagonals, length, length),
            limit="fill",
        ),
    ]
    if isinstance(dtype, torch.dtype):

        def row_by_row(b: Table) -> None:
            for i in range(length):
                b.table[:, i] = diagonals[:, length - 1 - i : 2 * length - 1 - i]

        def call(function: Callable[..., Any], b: Table) -> Any:
            return function(diagonals, length)

        rows += [
            Contestant("a slice for each query", "out=", row_by_row, "fill"),
            Contestant(
                "unfold, flip", "fresh", lambda b: diagonals.unfold(-1, length, 1).flip(-2), "fill"
            ),
            Contestant("by index", "fresh", functools.partial(call, by_index), "fill"),
            compile_row(options, "by index, torch.compile", by_index, call, "fill"),
        ]
    else:
        view = sliding_window_view(diagonals, length, -1)[:, ::-1]
        rows += [
            Contestant("a strided view", "out=", lambda b: np.copyto(b.table, view), "fill"),
            Contestant("a strided view", "fresh", lambda b: view.copy(), "fill"),
        ]
    job = _job(dtype, lambda b: pn.toeplitz_bias(diagonals, length, length), lambda b: b.table)
    return Case(name, threads, sets, rows, job=job)


def _add_bias(options: Options, length: int, dtype: Any, threads: int, name: str) -> Case:
    shape = _shape(length)
    sets = options.make_sets(lambda: Activations(shape, dtype))
    diagonals = normal(HEADS * (2 * length - 1), dtype).reshape(HEADS, -1)
    bias = pn.toeplitz_bias(diagonals, length, length)
    goal = options.goal(threads, ADD, "x")

    def into(b: Activations) -> None:
        pn.add_toeplitz_bias(b.x, diagonals, out=b.result)

    rows: list[Row] = [
        *and_alone(
            options,
            threads,
            ours(
                "add_toeplitz_bias",
                "in place",
                lambda b: pn.add_toeplitz_bias(b.x, diagonals, out=b.x),
                goal,
            ),
        ),
        ours("add_toeplitz_bias", "out=", into),
        ours("add_toeplitz_bias", "fresh", lambda b: pn.add_toeplitz_bias(b.x, diagonals)),
    ]
    ready = "scores + bias, bias ready"
    if isinstance(dtype, torch.dtype):

        def add(x: torch.Tensor, diagonals: torch.Tensor) -> torch.Tensor:
            return x + by_index(diagonals, length)

        def add_in_place(x: torch.Tensor, diagonals: torch.Tensor) -> torch.Tensor:
            return x.add_(by_index(diagonals, length))

        def call(function: Callable[..., Any], b: Activations) -> Any:
            return function(b.x, diagonals)

        compiled = "scores + by index, torch.compile"
        rows += [
            Contestant(ready, "in place", lambda b: b.x.add_(bias), "in-place scale"),
            Contestant(ready, "out=", lambda b: torch.add(b.x, bias, out=b.result), "copy"),
            Contestant(ready, "fresh", lambda b: b.x + bias, "copy"),
            compile_row(options, compiled, add_in_place, call, "in-place scale", "in place"),
            compile_row(options, compiled, add, call, "copy"),
        ]
    else:
        rows += [
            Contestant(ready, "in place", lambda b: np.add(b.x, bias, out=b.x), "in-place scale"),
            Contestant(ready, "out=", lambda b: np.add(b.x, bias, out=b.result), "copy"),
            Contestant(ready, "fresh", lambda b: b.x + bias, "copy"),
        ]
    job = _job(
        dtype,
        lambda b: pn.add_toeplitz_bias(b.x, diagonals),
        lambda b: b.x,
        lambda b: b.result,
    )
    return Case(name, threads, sets, rows, job=job)


def sum_by_shear(grad: torch.Tensor) -> torch.Tensor:
    """Sums along diagonals by padding: rows one longer than they are put diagonals into columns."""
    length = grad.shape[-1]
    padded = torch.nn.functional.pad(grad, (length, 0)).flatten(1)
    sheared = torch.nn.functional.pad(padded, (0, length)).unflatten(1, (length, 2 * length + 1))
    return sheared.sum(1, dtype=torch.float32)[:, 1:-1]


def sum_by_index(grad: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The backward of a look-up, as autograd of most code runs it."""
    heads, length = grad.shape[:2]
    sums = torch.zeros(heads, 2 * length - 1, dtype=torch.float32)
    return sums.index_add_(1, index, grad.flatten(1).float())


def _diagonal_sums(options: Options, length: int, dtype: Any, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: _Gradient(_shape(length), dtype))
    goal = options.goal(threads, SUM, "x")
    sums = ours("diagonal_sums", "fresh", lambda b: pn.diagonal_sums(b.grad), goal, limit="sum")
    rows: list[Row] = [*and_alone(options, threads, sums)]
    if isinstance(dtype, torch.dtype):
        steps = torch.arange(length)
        index = (steps - steps[:, None] + (length - 1)).flatten()

        def call(function: Callable[..., Any], b: _Gradient) -> Any:
            return function(b.grad)

        rows += [
            Contestant(
                "torch.sum of all",
                "fresh",
                lambda b: b.grad.sum(),
                "sum",
                yardstick=True,
                checked=False,
            ),
            Contestant("pad, view, sum", "fresh", lambda b: sum_by_shear(b.grad), "sum"),
            compile_row(options, "pad, view, sum, torch.compile", sum_by_shear, call, "sum"),
            Contestant("index_add", "fresh", lambda b: sum_by_index(b.grad, index), "sum"),
        ]
    else:
        rows += [
            Contestant(
                "np.sum of all",
                "fresh",
                lambda b: b.grad.sum(),
                "sum",
                yardstick=True,
                checked=False,
            ),
            Contestant(
                "np.trace of each",
                "fresh",
                lambda b: [
                    b.grad.trace(e, axis1=1, axis2=2, dtype=np.float32)
                    for e in range(1 - length, length)
                ],
                "sum",
                result=lambda sums: np.stack(sums, -1),
            ),
        ]
    return Case(name, threads, sets, rows, job=_sums_job(lambda b: pn.diagonal_sums(b.grad)))


# ------------------------------------------------------------------------------------ T5 and ALiBi


def t5_peer() -> Any:
    """T5Attention of transformers, with a bias of its own."""
    module = importlib.import_module("transformers.models.t5.modeling_t5")
    config = importlib.import_module("transformers").T5Config(num_heads=HEADS)
    return module.T5Attention(config, has_relative_attention_bias=True)


def _t5(options: Options, length: int, threads: int, name: str) -> Case:
    """Bias added to scores, no gradient: what the first layer of a T5 does."""
    sets = options.make_sets(lambda: Activations((1, *_shape(length)), torch.float32))
    module = _frozen(nn.T5RelativeBias(HEADS))
    rows: list[Row] = [
        ours("nn.T5RelativeBias", "in place", lambda b: module(b.x, inplace=True)),
        ours("nn.T5RelativeBias", "fresh", lambda b: module(b.x)),
    ]
    peer = "transformers (T5)"
    if reason := missing("transformers", "transformers.models.t5.modeling_t5"):
        return Case(name, threads, sets, [*rows, Skipped(peer, "fresh", reason)])
    attention = _frozen(t5_peer())
    module.weight.copy_(attention.relative_attention_bias.weight)
    bias = attention.compute_bias(length, length).contiguous()

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + attention.compute_bias(length, length)

    def add_in_place(x: torch.Tensor) -> torch.Tensor:
        return x.add_(attention.compute_bias(length, length))

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return function(b.x)

    rows += [
        Contestant(f"{peer}, bias ready", "in place", lambda b: b.x.add_(bias), "in-place scale"),
        Contestant(f"{peer}, bias ready", "fresh", lambda b: b.x + bias, "copy"),
        Contestant(f"{peer}, eager", "in place", lambda b: add_in_place(b.x), "in-place scale"),
        Contestant(f"{peer}, eager", "fresh", lambda b: add(b.x), "copy"),
        compile_row(
            options, f"{peer}, torch.compile", add_in_place, call, "in-place scale", "in place"
        ),
        compile_row(options, f"{peer}, torch.compile", add, call, "copy"),
    ]
    job = _job(torch.float32, lambda b: module(b.x), lambda b: b.x)
    return Case(name, threads, sets, rows, job=job)


def _gradient(
    make: Callable[[torch.Tensor], torch.Tensor], weight: torch.Tensor
) -> Callable[[Activations], Any]:
    """Forward from scores, which want no gradient themselves, and backward to the weight."""

    def run(b: Activations) -> Any:
        # detach: in place, these would carry the graph of every call before.
        return torch.autograd.grad(make(b.x.detach()), weight, b.result)

    return run


def _t5_gradient(options: Options, length: int, threads: int, name: str) -> Case:
    """Bias added to scores, and the gradient of the table from that of the scores."""
    sets = options.make_sets(lambda: Activations((1, *_shape(length)), torch.float32))
    module = nn.T5RelativeBias(HEADS)
    limit = "in-place add"  # scores are read and written, their gradient is read
    rows: list[Row] = [
        dataclasses.replace(
            ours(
                "nn.T5RelativeBias",
                "in place",
                _gradient(lambda x: module(x, inplace=True), module.weight),
                limit=limit,
            ),
            result=_returned,
        ),
        ours("nn.T5RelativeBias", "fresh", _gradient(module, module.weight), limit=limit),
    ]
    peer = "transformers (T5)"
    if reason := missing("transformers", "transformers.models.t5.modeling_t5"):
        return Case(name, threads, sets, [*rows, Skipped(peer, "fresh", reason)])
    attention = t5_peer()
    weight = attention.relative_attention_bias.weight
    module.weight.data.copy_(weight.data)

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + attention.compute_bias(length, length)

    def add_in_place(x: torch.Tensor) -> torch.Tensor:
        return x.add_(attention.compute_bias(length, length))

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return _gradient(function, weight)(b)

    rows += [
        Contestant(
            f"{peer}, eager",
            "in place",
            _gradient(add_in_place, weight),
            limit,
            result=_returned,
        ),
        Contestant(f"{peer}, eager", "fresh", _gradient(add, weight), limit),
        compile_row(options, f"{peer}, torch.compile", add, call, limit),
    ]
    job = _sums_job(lambda b: _gradient(module, module.weight)(b)[0])
    return Case(name, threads, sets, rows, job=job)


def _alibi(options: Options, length: int, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: Activations((1, *_shape(length)), torch.float32))
    module = nn.ALiBi(HEADS)
    slopes = torch.from_numpy(pn.alibi_slopes(HEADS)).float()[:, None, None]

    def columns(b: Activations) -> Any:
        return b.x.add_(pn.alibi_columns(HEADS, length, device="cpu"))

    def add_in_place(x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(length)
        return x.sub_(slopes * (steps - steps[:, None]).abs())

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return function(b.x)

    plain = "slopes * distances"
    rows: list[Row] = [
        ours("nn.ALiBi", "in place", lambda b: module(b.x, inplace=True)),
        ours("nn.ALiBi", "fresh", lambda b: module(b.x)),
        # The same to a softmax, as are MPT's and BLOOM's.
        dataclasses.replace(ours("scores.add_(alibi_columns)", "in place", columns), checked=False),
        Contestant(
            f"{plain}, eager", "in place", functools.partial(call, add_in_place), "in-place scale"
        ),
        compile_row(
            options, f"{plain}, torch.compile", add_in_place, call, "in-place scale", "in place"
        ),
    ]
    # Both add a number for each key, the same for all queries: cheaper work, so no peers.
    peer = "transformers (MPT)"
    if reason := missing("transformers", "transformers.models.mpt.modeling_mpt"):
        rows.append(Skipped(peer, "fresh", reason))
    else:
        build = importlib.import_module(
            "transformers.models.mpt.modeling_mpt"
        ).build_mpt_alibi_tensor
        rows += [
            Contestant(
                peer,
                "in place",
                lambda b: b.x.add_(build(HEADS, length)),
                "in-place scale",
                yardstick=True,
                checked=False,
            ),
            Contestant(
                peer,
                "fresh",
                lambda b: b.x + build(HEADS, length),
                "copy",
                yardstick=True,
                checked=False,
            ),
        ]
    peer = "transformers (BLOOM)"
    if reason := missing("transformers", "transformers.models.bloom.modeling_bloom"):
        rows.append(Skipped(peer, "in place", reason))
    else:
        bloom = importlib.import_module("transformers.models.bloom.modeling_bloom")
        mask = torch.ones(1, length, dtype=torch.long)
        rows.append(
            Contestant(
                peer,
                "in place",
                lambda b: b.x.add_(bloom.build_alibi_tensor(mask, HEADS, torch.float32)),
                "in-place scale",
                yardstick=True,
                checked=False,
            )
        )
    job = _job(torch.float32, lambda b: module(b.x), lambda b: b.x)
    return Case(name, threads, sets, rows, job=job)


def _alibi_gradient(options: Options, length: int, threads: int, name: str) -> Case:
    """Bias added to scores, and the gradient of learned slopes from that of the scores."""
    sets = options.make_sets(lambda: Activations((1, *_shape(length)), torch.float32))
    module = nn.ALiBi(HEADS, learned=True)
    slopes = torch.from_numpy(pn.alibi_slopes(HEADS)).float()[:, None, None].requires_grad_()
    limit = "in-place add"  # scores are read and written, their gradient is read

    def add(x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(length)
        return x - slopes * (steps - steps[:, None]).abs()

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return _gradient(function, slopes)(b)

    def flat(gradient: Any) -> Any:
        return gradient[0].flatten()

    own = _gradient(module, module.slopes)
    plain = "slopes * distances"
    rows: list[Row] = [
        dataclasses.replace(ours("nn.ALiBi, learned", "fresh", own, limit=limit), result=flat),
        Contestant(f"{plain}, eager", "fresh", functools.partial(call, add), limit, result=flat),
        compile_row(options, f"{plain}, torch.compile", add, call, limit, result=flat),
    ]
    return Case(name, threads, sets, rows, job=_sums_job(lambda b: flat(own(b))))


# ------------------------------------------------------------------------------------------- shifts


def strided_shift(x: torch.Tensor) -> torch.Tensor:
    """The relative shift as a view: rows that begin one entry earlier each."""
    batch, heads, length, width = x.shape
    strides = (*x.stride()[:2], width - 1, 1)
    return x.as_strided((batch, heads, length, length), strides, x.storage_offset() + length - 1)


def conformer_shift() -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The shift of transformers, by padding: a view of a padded copy. It wants nothing of self."""
    name = "transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer"
    if missing("transformers", name):
        return None
    attention = importlib.import_module(name).FastSpeech2ConformerAttention
    return functools.partial(attention.shift_relative_position_tensor, None)


CONFORMER = "transformers (FastSpeech2)"


def _shift(options: Options, length: int, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: _Shift(length))
    goal = options.goal(threads, SHIFT, "x")
    job = _job(torch.float32, lambda b: pn.relative_gather(b.x, None, length), lambda b: b.result)
    rows: list[Row] = [
        ours(
            "relative_gather",
            "out=",
            lambda b: pn.relative_gather(b.x, None, length, out=b.result),
            goal,
        ),
        ours("relative_gather", "fresh", lambda b: pn.relative_gather(b.x, None, length)),
        Contestant(
            "as_strided, copy_", "out=", lambda b: b.result.copy_(strided_shift(b.x)), "copy"
        ),
        Contestant("as_strided, clone", "fresh", lambda b: strided_shift(b.x).contiguous(), "copy"),
    ]
    if (shift := conformer_shift()) is None:
        rows.append(Skipped(CONFORMER, "fresh", missing("transformers") or "not in this release"))
        return Case(name, threads, sets, rows, job=job)

    def contiguous(x: torch.Tensor) -> torch.Tensor:
        return shift(x).contiguous()

    def call(function: Callable[..., Any], b: _Shift) -> Any:
        return function(b.x)

    rows += [
        Contestant(f"{CONFORMER}, a view", "fresh", functools.partial(call, shift), "copy"),
        compile_row(options, f"{CONFORMER}, compiled", contiguous, call, "copy"),
    ]
    return Case(name, threads, sets, rows, job=job)


def _content_shift(options: Options, length: int, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: _Shift(length, in_place=True))
    limit = "in-place add"

    def gather(b: _Shift) -> Any:
        return pn.relative_gather(b.x, None, length, content=b.result, scale=0.5, out=b.result)

    def gather_fresh(b: _Shift) -> Any:
        return pn.relative_gather(b.x, None, length, content=b.result, scale=0.5)

    job = _job(torch.float32, gather_fresh, lambda b: b.result)
    rows: list[Row] = [
        ours("relative_gather, content, scale", "in place", gather, limit=limit),
        ours("relative_gather, content, scale", "fresh", gather_fresh, limit=limit),
        Contestant(
            "as_strided, add_, mul_",
            "in place",
            lambda b: b.result.add_(strided_shift(b.x)).mul_(0.5),
            limit,
        ),
    ]
    if (shift := conformer_shift()) is None:
        rows.append(Skipped(CONFORMER, "fresh", missing("transformers") or "not in this release"))
        return Case(name, threads, sets, rows, job=job)

    def scores(content: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (content + shift(x)) * 0.5

    def call(function: Callable[..., Any], b: _Shift) -> Any:
        return function(b.result, b.x)

    rows += [
        Contestant(
            f"{CONFORMER}, eager",
            "in place",
            lambda b: b.result.add_(shift(b.x)).mul_(0.5),
            limit,
        ),
        Contestant(f"{CONFORMER}, eager", "fresh", functools.partial(call, scores), limit),
        compile_row(options, f"{CONFORMER}, compiled", scores, call, limit),
    ]
    return Case(name, threads, sets, rows, job=job)


def _shift_gradient(options: Options, length: int, threads: int, name: str) -> Case:
    """The shift and its transpose, all results fresh."""
    sets = options.make_sets(lambda: _Shift(length))

    def call(function: Callable[..., Any], b: _Shift) -> Any:
        x = b.x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x, b.result)

    def gather(x: torch.Tensor) -> Any:
        return pn.relative_gather(x, None, length)

    job = _job(torch.float32, lambda b: call(gather, b)[0], lambda b: b.result)
    rows: list[Row] = [
        Contestant("relative_gather", "fresh", functools.partial(call, gather), ours=True)
    ]
    if (shift := conformer_shift()) is None:
        rows.append(Skipped(CONFORMER, "fresh", missing("transformers") or "not in this release"))
        return Case(name, threads, sets, rows, job=job)
    rows += [
        Contestant(f"{CONFORMER}, eager", "fresh", functools.partial(call, shift)),
        compile_row(options, f"{CONFORMER}, compiled", shift, call, None),
    ]
    return Case(name, threads, sets, rows, job=job)


# -------------------------------------------------------------------------------------------- Swin

WINDOW = (7, 7)


def _swin_shape(options: Options) -> tuple[int, int, int, int]:
    """Swin-T's first stage: 64 windows an image of 224 x 224, 3 heads, 8 images."""
    return options.size(8 * 64, 4), 3, 49, 49


def swin_peer() -> Any:
    """Swin's bias in transformers, with a table that is not zero; None where it is not there."""
    if missing("transformers", "transformers.models.swin.modeling_swin"):
        return None
    module = importlib.import_module("transformers.models.swin.modeling_swin")
    if not hasattr(module, "SwinRelativePositionBias"):
        return None
    bias = module.SwinRelativePositionBias(3, WINDOW)
    torch.nn.init.normal_(bias.relative_position_bias_table, std=0.02)
    return bias


SWIN = "transformers (Swin)"


def _swin_missing() -> Skipped:
    return Skipped(SWIN, "fresh", missing("transformers") or "not in this release")


def _swin(options: Options, dtype: torch.dtype, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: Activations(_swin_shape(options), dtype))
    module = _frozen(nn.SwinRelativeBias(3, WINDOW).to(dtype))
    rows: list[Row] = [
        ours("nn.SwinRelativeBias", "in place", lambda b: module(b.x, inplace=True)),
        ours("nn.SwinRelativeBias", "fresh", lambda b: module(b.x)),
    ]
    if (peer := swin_peer()) is None:
        return Case(name, threads, sets, [*rows, _swin_missing()])
    peer = _frozen(peer.to(dtype))
    module.relative_position_bias_table.copy_(peer.relative_position_bias_table)
    ready = peer()

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + peer()

    def add_in_place(x: torch.Tensor) -> torch.Tensor:
        return x.add_(peer())

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return function(b.x)

    rows += [
        Contestant(f"{SWIN}, bias ready", "in place", lambda b: b.x.add_(ready), "in-place scale"),
        Contestant(
            f"{SWIN}, eager", "in place", functools.partial(call, add_in_place), "in-place scale"
        ),
        Contestant(f"{SWIN}, eager", "fresh", functools.partial(call, add), "copy"),
        compile_row(
            options, f"{SWIN}, torch.compile", add_in_place, call, "in-place scale", "in place"
        ),
        compile_row(options, f"{SWIN}, torch.compile", add, call, "copy"),
    ]
    job = _job(dtype, lambda b: module(b.x), lambda b: b.x)
    return Case(name, threads, sets, rows, job=job)


def _swin_gradient(options: Options, threads: int, name: str) -> Case:
    sets = options.make_sets(lambda: Activations(_swin_shape(options), torch.float32))
    module = nn.SwinRelativeBias(3, WINDOW)
    table = module.relative_position_bias_table
    limit = "in-place add"
    rows: list[Row] = [
        dataclasses.replace(
            ours(
                "nn.SwinRelativeBias",
                "in place",
                _gradient(lambda x: module(x, inplace=True), table),
                limit=limit,
            ),
            result=_returned,
        ),
        ours("nn.SwinRelativeBias", "fresh", _gradient(module, table), limit=limit),
    ]
    if (peer := swin_peer()) is None:
        return Case(name, threads, sets, [*rows, _swin_missing()])
    weight = peer.relative_position_bias_table
    table.data.copy_(weight.data)

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + peer()

    def call(function: Callable[..., Any], b: Activations) -> Any:
        return _gradient(function, weight)(b)

    rows += [
        Contestant(
            f"{SWIN}, eager",
            "in place",
            _gradient(lambda x: x.add_(peer()), weight),
            limit,
            result=_returned,
        ),
        Contestant(f"{SWIN}, eager", "fresh", _gradient(add, weight), limit),
        compile_row(options, f"{SWIN}, torch.compile", add, call, limit),
    ]
    job = _sums_job(lambda b: _gradient(module, table)(b)[0])
    return Case(name, threads, sets, rows, job=job)


# ---------------------------------------------------------------------------------- Shaw and decode


class _Queries:
    """Queries and keys."""

    work = out = 0  # no limit is measured on them

    def __init__(self, length: int) -> None:
        self.q, self.k = (torch.randn(1, HEADS, length, 64) for _ in range(2))
        self.nbytes = self.q.nbytes + self.k.nbytes


def _shaw(options: Options, length: int, threads: int, name: str) -> Case:
    """Scores of content and position, products of matrices and all."""
    left = options.size(128, 8)
    sets = options.make_sets(lambda: _Queries(length))
    module = _frozen(nn.ShawRelativePosition(64, left=left, values=False))
    steps = torch.arange(length)
    index = (steps - steps[:, None]).clamp(-left, left) + left

    def by_vectors(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        vectors = module.key_table[index]  # [q_len, k_len, head_dim]
        return (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, vectors)) * module.scale

    def by_products(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        products = q @ module.key_table.mT
        return (q @ k.mT + products.gather(-1, index.expand(1, HEADS, -1, -1))) * module.scale

    def call(function: Callable[..., Any], b: _Queries) -> Any:
        return function(b.q, b.k)

    rows: list[Row] = [
        Contestant("nn.ShawRelativePosition", "fresh", functools.partial(call, module), ours=True),
        Contestant("table[index], einsum", "fresh", functools.partial(call, by_vectors)),
        compile_row(options, "table[index], einsum, compiled", by_vectors, call, None),
        Contestant("products, gather", "fresh", functools.partial(call, by_products)),
        compile_row(options, "products, gather, compiled", by_products, call, None),
        Contestant("content alone", "fresh", lambda b: b.q @ b.k.mT, yardstick=True, checked=False),
    ]
    job = _sums_job(functools.partial(call, module))
    return Case(name, threads, sets, rows, job=job)


def _decode(options: Options, heads: int, keys: int, threads: int, name: str) -> Case:
    """One new query of one sequence, its scores in cache: mostly the price of a call."""
    buffers = Activations((1, heads, 1, keys), torch.float32)
    array = normal(heads * keys, np.float32).reshape(1, heads, 1, keys)
    last = keys - 1
    # Made once for all calls: entry `last` is distance 0.
    table = torch.randn(heads, keys)
    numpy_table = table.numpy().copy()
    t5 = _frozen(nn.T5RelativeBias(heads, bidirectional=False))
    alibi = nn.ALiBi(heads)
    positions = torch.randn(1, heads, 1, keys)

    def from_numpy(b: Activations) -> None:
        pn.add_toeplitz_bias(array, numpy_table, out=array)

    rows: list[Row] = [
        ours(
            "torch: add_toeplitz_bias",
            "in place",
            lambda b: pn.add_toeplitz_bias(b.x, table, q_offset=last, origin=last, out=b.x),
        ),
        ours(
            "torch: relative_gather, content",
            "in place",
            lambda b: pn.relative_gather(positions, None, keys, content=b.x, origin=0, out=b.x),
        ),
        ours("torch: nn.T5RelativeBias", "in place", lambda b: t5(b.x, last, inplace=True)),
        ours("torch: nn.T5RelativeBias", "fresh", lambda b: t5(b.x, last)),
        ours("torch: nn.ALiBi", "in place", lambda b: alibi(b.x, last, inplace=True)),
        ours("NumPy: add_toeplitz_bias", "in place", from_numpy),
    ]
    peer = "transformers (T5)"
    if reason := missing("transformers", "transformers.models.t5.modeling_t5"):
        rows.append(Skipped(peer, "in place", reason))
    else:
        module = importlib.import_module("transformers.models.t5.modeling_t5")
        config = importlib.import_module("transformers").T5Config(num_heads=heads, is_decoder=True)
        attention = _frozen(module.T5Attention(config, True, layer_idx=0))

        def add(x: torch.Tensor) -> torch.Tensor:
            return x + attention.compute_bias(1, keys, past_seen_tokens=last)

        def call(function: Callable[..., Any], b: Activations) -> Any:
            return function(b.x)

        rows += [
            Contestant(f"{peer}, eager", "fresh", functools.partial(call, add), "copy"),
            compile_row(options, f"{peer}, torch.compile", add, call, "copy"),
        ]
    ready = table[None, :, None]
    rows += [
        Contestant(
            "scores.add_(bias), bias ready", "in place", lambda b: b.x.add_(ready), "in-place scale"
        ),
        NOTHING,
    ]
    return Case(name, threads, [buffers], many(options, rows), in_cache=True)


# -------------------------------------------------------------------------------------------- cases


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """As benchmarks.rows.cases, for relative encodings; on several threads the operations alone."""
    suffix = f"{threads} thread{'s' if threads > 1 else ''}"
    length = options.size(2048, 48)
    size = f"{HEADS} x {length} x {length}"
    for kind, build in (
        ("toeplitz bias", _bias),
        ("add toeplitz bias", _add_bias),
        ("diagonal sums", _diagonal_sums),
    ):
        for dtype in (torch.float32, torch.bfloat16, np.float32):
            if not (threads == 1 or options.exhaustive or dtype is torch.float32):
                continue
            name = f"relative: {kind}, {size}, {label(dtype)}, {suffix}"
            yield name, functools.partial(build, options, length, dtype, threads, name)
    if threads > 1 and not options.exhaustive:
        return
    one = f"{size}, torch float32, {suffix}"
    both_ways = "forward and backward to the table"
    wide = f"{HEADS} x {length} x {2 * length - 1}, torch float32, {suffix}"
    windows = " x ".join(map(str, _swin_shape(options)))
    of_length: dict[str, Any] = {
        f"relative: T5 bias, {one}": _t5,
        f"relative: T5 bias, {both_ways}, {one}": _t5_gradient,
        f"relative: ALiBi, {one}": _alibi,
        f"relative: ALiBi, forward and backward to the slopes, {one}": _alibi_gradient,
        f"relative: shift, {wide}": _shift,
        f"relative: shift and content, {wide}": _content_shift,
        f"relative: shift, forward and backward, {wide}": _shift_gradient,
    }
    for name, build in of_length.items():
        yield name, functools.partial(build, options, length, threads, name)
    for dtype in (torch.float32, torch.bfloat16):
        name = f"relative: Swin bias, {windows}, {label(dtype)}, {suffix}"
        yield name, functools.partial(_swin, options, dtype, threads, name)
    name = f"relative: Swin bias, {both_ways}, {windows}, torch float32, {suffix}"
    yield name, functools.partial(_swin_gradient, options, threads, name)
    shaw_length = options.size(1024, 48)
    name = f"relative: Shaw scores, {HEADS} x {shaw_length} x 64, torch float32, {suffix}"
    yield name, functools.partial(_shaw, options, shaw_length, threads, name)
    heads, keys = options.size(32, 2), options.size(4096, 64)
    name = f"relative: decode, {heads} heads x 1 x {keys}, float32, {suffix}"
    yield name, functools.partial(_decode, options, heads, keys, threads, name)
