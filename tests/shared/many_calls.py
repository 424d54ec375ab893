"""Calls of the public functions, of sizes small and large, for tests of threads and processes.

Small calls keep the interpreter lock, middle ones give it back, large ones start threads: more so
after `share_small_calls`. Every call returns the bits of its results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import posenc_native as pn
from posenc_native.engines import backend

Call = Callable[[], "list[np.ndarray]"]
HEAD_DIM = 32
INV_FREQ = pn.rotary.rotary_frequencies(HEAD_DIM)[0]


def share_small_calls() -> None:
    """Let calls of 64 KiB have threads of their own."""
    assert backend.native is not None
    backend.native.set_bytes_per_thread(1 << 16)


def _bits(*results: Any) -> list[np.ndarray]:
    arrays = [r if isinstance(r, np.ndarray) else r.detach().numpy() for r in results]
    return [np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}") for a in arrays]


def _calls(x: Any, scores: Any, convert: Callable[[np.ndarray], Any]) -> dict[str, Call]:
    """Of x [b, h, s, d] and scores [h, q, k], arrays or tensors."""
    _, _, tokens, _ = x.shape
    heads, queries, keys = scores.shape
    rng = np.random.default_rng(tokens)
    positions = convert(rng.integers(0, 10**6, tokens))
    inv_freq = convert(INV_FREQ)
    diagonals = convert(rng.standard_normal((heads, queries + keys - 1)).astype(np.float32))
    columns = convert(rng.standard_normal((heads, queries, 17)).astype(np.float32))
    index = convert(pn.relative.clipped_index(queries, keys, 8, q_offset=0))
    cos, sin = pn.rotary_tables(positions, inv_freq)
    copy = (lambda a: a.copy()) if isinstance(x, np.ndarray) else (lambda a: a.clone())

    def in_place() -> list[np.ndarray]:
        q, k = copy(x), copy(x[:, :1])
        pn.apply_rotary_qk(q, k, positions, inv_freq, inplace=True)
        return _bits(q, k)

    return {
        "sinusoidal": lambda: _bits(pn.sinusoidal(positions, HEAD_DIM)),
        "add_sinusoidal": lambda: _bits(pn.add_sinusoidal(x, positions)),
        "rotary_tables": lambda: _bits(*pn.rotary_tables(positions, inv_freq)),
        "apply_rotary": lambda: _bits(pn.apply_rotary(x, positions, inv_freq)),
        "apply_rotary_qk in place": in_place,
        "apply_rotary by tables": lambda: _bits(pn.apply_rotary(x, None, pn.Tables(cos, sin))),
        "toeplitz_bias": lambda: _bits(pn.toeplitz_bias(diagonals, queries, keys)),
        "add_toeplitz_bias": lambda: _bits(pn.add_toeplitz_bias(scores, diagonals)),
        "diagonal_sums": lambda: _bits(pn.diagonal_sums(scores)),
        "relative_gather": lambda: _bits(pn.relative_gather(columns, index, keys)),
        "relative_scatter": lambda: _bits(pn.relative_scatter(scores, index, 17)),
    }


# Tokens of x; queries and keys of the scores. Calls of KiB and of MiB.
SIZES = [(3, 5), (70, 67), (1000, 300)]


def calls_of_arrays() -> dict[str, Call]:
    rng = np.random.default_rng(0)
    found = {
        f"spec of {dim}": (lambda dim=dim: _bits(pn.sinusoidal(200, dim))) for dim in (6, 64, 500)
    }
    for tokens, keys in SIZES:
        x = rng.standard_normal((1, 4, tokens, HEAD_DIM)).astype(np.float32)
        scores = rng.standard_normal((2, keys, keys)).astype(np.float32)
        for name, call in _calls(x, scores, np.asarray).items():
            found[f"{name}, {tokens} tokens"] = call
    return found


def calls_of_tensors() -> dict[str, Call]:
    import torch

    def backward(x: Any) -> list[np.ndarray]:
        given = x.clone().requires_grad_()
        pn.apply_rotary(given, None, torch.from_numpy(INV_FREQ)).sum().backward()
        return _bits(given.grad)

    generator = torch.Generator().manual_seed(0)
    found: dict[str, Call] = {}
    for tokens, keys in SIZES:
        x = torch.randn((1, 4, tokens, HEAD_DIM), generator=generator)
        scores = torch.randn((2, keys, keys), generator=generator)
        for name, call in _calls(x, scores, torch.as_tensor).items():
            found[f"{name}, tensor, {tokens} tokens"] = call
        found[f"backward, {tokens} tokens"] = lambda x=x: backward(x)
    return found


def same(results: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return len(results) == len(others) and all(map(np.array_equal, results, others))


def is_mixture(results: list[np.ndarray], variants: list[list[np.ndarray]]) -> bool:
    """Whether every element is that of one of the variants."""
    return all(
        np.all(np.any([result == variant[i] for variant in variants], axis=0))
        for i, result in enumerate(results)
    )
