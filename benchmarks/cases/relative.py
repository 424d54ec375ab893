"""Which cases there are of relative encodings; the files beside build them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.clock.harness import Case
from benchmarks.peers.contestants import Options, label

from . import biases, decode, gathers, toeplitz
from .scores import HEADS


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """As rotary.cases, for relative encodings; on several threads the operations alone."""
    suffix = f"{threads} thread{'s' if threads > 1 else ''}"
    length = options.size(2048, 48)
    size = f"{HEADS} x {length} x {length}"
    for kind, build in (
        ("toeplitz bias", toeplitz.write_bias),
        ("add toeplitz bias", toeplitz.add_bias),
        ("diagonal sums", toeplitz.sum_diagonals),
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
    windows = " x ".join(map(str, biases.swin_shape(options)))
    of_length: dict[str, Any] = {
        f"relative: T5 bias, {one}": biases.t5_bias,
        f"relative: T5 bias, {both_ways}, {one}": biases.t5_bias_gradient,
        f"relative: ALiBi, {one}": biases.alibi_bias,
        f"relative: ALiBi, forward and backward to the slopes, {one}": biases.alibi_bias_gradient,
        f"relative: shift, {wide}": gathers.shift_alone,
        f"relative: shift and content, {wide}": gathers.shift_onto_content,
        f"relative: shift, forward and backward, {wide}": gathers.shift_and_back,
    }
    for name, build in of_length.items():
        yield name, functools.partial(build, options, length, threads, name)
    for dtype in (torch.float32, torch.bfloat16):
        name = f"relative: Swin bias, {windows}, {label(dtype)}, {suffix}"
        yield name, functools.partial(biases.swin_bias, options, dtype, threads, name)
    name = f"relative: Swin bias, {both_ways}, {windows}, torch float32, {suffix}"
    yield name, functools.partial(biases.swin_bias_gradient, options, threads, name)
    shaw_length = options.size(1024, 48)
    name = f"relative: Shaw scores, {HEADS} x {shaw_length} x 64, torch float32, {suffix}"
    yield name, functools.partial(gathers.shaw_scores, options, shaw_length, threads, name)
    heads, keys = options.size(32, 2), options.size(4096, 64)
    name = f"relative: decode, {heads} heads x 1 x {keys}, float32, {suffix}"
    yield name, functools.partial(decode.relative_scores, options, heads, keys, threads, name)
