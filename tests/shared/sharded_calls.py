"""Calls of operations, for sharded_compare.py: whole tensors, which are cut how, a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import posenc_native as pn

B, H, K, S, D, P = 3, 4, 2, 5, 16, 8  # three rows and five tokens are uneven on 2 and 4 ranks
Tensors = dict[str, Tensor]
INV_FREQ = torch.from_numpy(pn.rotary.rotary_frequencies(D)[0])


@dataclass(frozen=True)
class Case:
    make: Callable[[], Tensors]
    axes: dict[str, str]  # of what is cut; what is not here stays whole
    call: Callable[..., Any]  # of all tensors by name; in place where the case says so
    # Axes along which nothing is communicated.
    free: str = "bhs"
    in_place: Sequence[str] = ()  # what is written to with inplace=True
    sums: bool = False  # results are sums over ranks, whose order is another
    gradients: bool = True
    learned: Sequence[str] = ()  # whole tensors with a gradient
    written: Sequence[str] = ()  # caches, which are no sums that are still to be made


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


def q_and_k(**more: Any) -> Tensors:
    return {"q": randn(B, H, S, D), "k": randn(B, K, S, D), **more}


QK = {"q": "bhsd", "k": "bhsd"}
X = {"x": "bhsd"}
DIAGONALS = 2 * S - 1


def tables(*shape: int) -> Tensors:
    positions = torch.arange(int(np.prod(shape))).reshape(shape)
    cos, sin = pn.rotary_tables(positions * 7, INV_FREQ)
    return {"cos": cos, "sin": sin}


def rotate(q: Tensor, k: Tensor, **more: Any) -> Any:
    positions, inv_freq = more.pop("positions", None), more.pop("inv_freq", INV_FREQ)
    return pn.apply_rotary_qk(q, k, positions, inv_freq, **more)


def norm(q: Tensor, k: Tensor, **more: Any) -> Any:
    return pn.norm_rotary_qk(q, k, None, INV_FREQ, **more)


def selective(q: Tensor, k: Tensor | None, steps: Tensor, **more: Any) -> Any:
    """Without the state, which has no gradient."""
    more.setdefault("layout", "bhsd")
    return tuple(
        x
        for x in pn.selective_rotary_qk(q, k, steps, **{"layout": "bshd", **more})[:2]
        if x is not None
    )


def states(*shape: int) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, shape)


def append(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, **more: Any) -> Any:
    """Also what the caches hold then."""
    keys, values = keys.clone(), values.clone()
    slots = torch.tensor([[4, 2, -1, 0, 8], [0, 1, 2, 3, 4], [7, 5, 3, 1, 0]])
    results = pn.rotary_append(
        q, k, v, None, INV_FREQ, keys, values, slots, return_k=q is not None, **more
    )
    if not torch.compiler.is_compiling():
        assert (keys._version, values._version) == (1, 1), "autograd knows that they were written"
    return (*(results if isinstance(results, tuple) else ()), keys, values)


def quantized(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, made: Tensor, **more: Any
) -> Any:
    """Into caches of 8 bits: keys with scales of heads, values with scales that are made."""
    keys, values, made = keys.clone(), values.clone(), made.clone()
    of_heads = torch.linspace(0.01, 0.1, K)
    pn.rotary_append(
        q, k, v, None, INV_FREQ, keys, values, torch.arange(S), scales=(None, made),
        k_scale=of_heads, **more,
    )  # fmt: skip
    assert made._version == 1, "autograd knows that they were written"
    return keys, values, made


def append_latent(q: Tensor, k_rope: Tensor, latent: Tensor, cache: Tensor, **more: Any) -> Any:
    """Also the rows of the cache then."""
    cache, slots = cache.clone(), torch.tensor([4, 2, -1, 0, 8])
    rope = pn.Rotary(D, inv_freq=INV_FREQ)
    results = rope.append_latent(q, k_rope, latent, 7, cache, slots, return_k=True, **more)
    return *results, cache


def caches_of_eight_bits() -> Tensors:
    of_cache = {"keys": (B, K, 9, D), "values": (B, K, 9, 6)}
    numbers = {n: torch.randint(-9, 9, shape, dtype=torch.int8) for n, shape in of_cache.items()}
    return {"v": randn(B, K, S, 6), **numbers, "made": torch.rand(B, K, 9)}


def caches() -> Tensors:
    return {"v": randn(B, K, S, 6), "keys": randn(B, K, 9, D), "values": randn(B, K, 9, 6)}


ROWS_OF_FREQUENCIES = pn.Rotary.rows([pn.Rotary(D, base=10.0 ** (i + 3)) for i in range(B)])
SCALED = pn.Rotary(
    D, query_scale={"beta": 0.1, "original_max_position_embeddings": 8}
)  # at positions up to 165
CACHES = {"v": "bhsd", "keys": "bhce", "values": "bhce"}


def rows(lowest: int = 0) -> Tensor:
    return torch.arange(B * S).reshape(B, S) * 11 + lowest


_POSITIONS = {
    "counted": {},
    "of tokens": {"positions": torch.arange(S) * 3},
    "of rows": {"positions": rows()},
    "one row": {"positions": rows()[:1]},
    "floats": {"positions": torch.linspace(-2, 9, S, dtype=torch.float64)},
}
_TABLES = {"[s, P]": (S,), "[b, s, P]": (B, S), "[1, s, P]": (1, S), "[b, h, s, P]": (B, H, S)}

CASES: dict[str, Case] = {
    **{
        f"apply_rotary_qk, {name}": Case(
            lambda more=more: q_and_k(**more), QK, rotate, in_place="qk"
        )
        for name, more in _POSITIONS.items()
    },
    "apply_rotary_qk, positions cut too": Case(
        lambda: q_and_k(positions=rows()), {**QK, "positions": "bs"}, rotate, in_place="qk"
    ),
    "apply_rotary_qk, tokens of each": Case(
        lambda: {"q": randn(B, H, S, D), "k": randn(B, K, S + 2, D),
                 "k_positions": torch.arange(S + 2) - 4},
        QK, lambda q, k, k_positions, **o: rotate(q, k, positions=(None, k_positions), **o),
        in_place="qk",
    ),
    "apply_rotary, frequencies by head": Case(
        lambda: {"x": randn(B, H, S, D), "inv_freq": torch.rand(H, P, dtype=torch.float64)},
        X, lambda x, inv_freq: pn.apply_rotary(x, None, inv_freq), learned=["inv_freq"],
    ),
    "apply_rotary, axes": Case(
        lambda: {"x": randn(B, H, S, D), "inv_freq": torch.rand(2, 1, P, dtype=torch.float64),
                 "positions": torch.rand(2, B, S, dtype=torch.float64)},
        X, lambda x, inv_freq, positions: pn.apply_rotary(x, positions, inv_freq),
        learned=["inv_freq", "positions"],
    ),
    "apply_rotary, learned": Case(
        lambda: {"x": randn(B, H, S, D), "inv_freq": INV_FREQ.clone(),
                 "positions": torch.rand(S, dtype=torch.float64) * 20},
        X, lambda x, inv_freq, positions: pn.apply_rotary(x, positions, inv_freq),
        learned=["inv_freq", "positions"],
    ),
    "apply_rotary, sbghd": Case(
        lambda: {"x": randn(S, B, 2, 2, D), "inv_freq": torch.rand(4, P, dtype=torch.float64)},
        {"x": "sbghd"}, lambda x, inv_freq: pn.apply_rotary(x, None, inv_freq, layout="sbghd"),
        free="sbgh",
    ),
    "apply_rotary, packed": Case(
        lambda: {"x": randn(B * S, H, D)}, {"x": "thd"},
        lambda x: pn.apply_rotary(
            x,
            pn.positions.packed_positions(torch.tensor([0, 4, 15]), B * S),
            INV_FREQ,
            layout="thd",
        ),
        free="th",
    ),
    **{
        f"apply_rotary by tables, {name}": Case(
            lambda shape=shape: {"x": randn(B, H, S, D), **tables(*shape)},
            X, lambda x, cos, sin: pn.apply_rotary(x, None, pn.Tables(cos, sin)),
            learned=["cos", "sin"],
        )
        for name, shape in _TABLES.items()
    },
    "apply_rotary_qk by tables, rows": Case(
        lambda: q_and_k(**tables(40), rows=rows(3) % 40), QK,
        lambda q, k, cos, sin, rows, **o: pn.apply_rotary_qk(
            q, k, None, pn.Tables(cos, sin, rows=rows), **o
        ),
        in_place="qk",
    ),
    "rotary_tables": Case(lambda: {"positions": rows()}, {"positions": "bs"},
                          lambda positions: pn.rotary_tables(positions, INV_FREQ), free="bs",
                          gradients=False),
    "norm_rotary_qk": Case(lambda: q_and_k(q_weight=torch.rand(H, D), k_weight=torch.rand(D)), QK,
                           norm, in_place="qk", learned=["q_weight", "k_weight"]),
    "norm_rotary_qk, over tokens": Case(
        lambda: q_and_k(q_weight=torch.rand(H * D), k_weight=torch.rand(K, D)), QK,
        lambda **o: norm(norm_over="token", **o), free="bs", in_place="qk",
        learned=["q_weight", "k_weight"],
    ),
    "norm_rotary_qk, q alone": Case(
        lambda: {"q": randn(B, H, S, D)}, {"q": "bhsd"}, lambda q: norm(q, None)[:1]
    ),
    "norm_rotary_qk by tables": Case(
        lambda: q_and_k(**tables(B, S)), QK,
        lambda q, k, cos, sin, **o: pn.norm_rotary_qk(q, k, None, pn.Tables(cos, sin), **o),
        in_place="qk",
    ),
    "rows of frequencies": Case(
        lambda: q_and_k(), QK,
        lambda q, k, **o: pn.apply_rotary_qk(q, k, rows(), ROWS_OF_FREQUENCIES, **o),
        in_place="qk",
    ),
    "queries scaled by position": Case(
        lambda: q_and_k(positions=rows()), {**QK, "positions": "bs"},
        lambda q, k, positions, **o: pn.apply_rotary_qk(q, k, positions, SCALED, **o),
        in_place="qk",
    ),
    "rotary_append": Case(lambda: q_and_k(**caches()), {**QK, **CACHES}, append, gradients=False,
                          written=["keys", "values"]),
    "rotary_append, norm": Case(
        lambda: q_and_k(**caches(), q_weight=torch.rand(H, D)), {**QK, **CACHES}, append,
        gradients=False, written=["keys", "values"],
    ),
    "rotary_append, 8 bits": Case(
        lambda: q_and_k(**caches_of_eight_bits()), {**QK, **CACHES, "made": "bhc"}, quantized,
        gradients=False, written=["keys", "values", "made"],
    ),
    "append_latent": Case(
        lambda: {"q": randn(B, H, S, D + 3), "k_rope": randn(B, S, D), "latent": randn(B, S, 6),
                 "cache": randn(B, 9, D + 6)},
        {"q": "bhsd", "k_rope": "bsd", "latent": "bsd", "cache": "bce"}, append_latent, free="b",
        gradients=False, written=["cache"],
    ),
    "sinusoidal": Case(lambda: {"positions": rows()}, {"positions": "bs"},
                       lambda positions: pn.sinusoidal(positions, 8), free="bs", gradients=False),
    "add_sinusoidal": Case(
        lambda: {"x": randn(B, S, D)}, {"x": "bsd"},
        lambda x, inplace=False: pn.add_sinusoidal(x, out=x if inplace else None), free="bs",
        in_place="x",
    ),
    "add_sinusoidal, positions": Case(
        lambda: {"x": randn(B, S, D), "positions": torch.rand(B, S, dtype=torch.float64)},
        {"x": "bsd"}, lambda x, positions: pn.add_sinusoidal(x, positions), free="bs",
        learned=["positions"],
    ),
    "toeplitz_bias": Case(lambda: {"diagonals": randn(B, H, DIAGONALS)}, {"diagonals": "bhe"},
                          lambda diagonals: pn.toeplitz_bias(diagonals, S, S), free="bh"),
    "toeplitz_bias, q_offset": Case(
        lambda: {"diagonals": randn(H, 40), "q_offset": torch.arange(B) * 2}, {"diagonals": "he"},
        lambda diagonals, q_offset: pn.toeplitz_bias(
            diagonals, S, S + 2, q_offset=q_offset, origin=15
        ),
        free="h",
    ),
    "toeplitz_bias, q_offset, an axis for the batch": Case(
        lambda: {"diagonals": randn(1, H, 40), "q_offset": torch.arange(B) * 2},
        {"diagonals": "1he"},
        lambda diagonals, q_offset: pn.toeplitz_bias(
            diagonals, S, S + 2, q_offset=q_offset, origin=15
        ),
        free="h",
    ),
    "add_toeplitz_bias": Case(
        lambda: {"scores": randn(B, H, S, S + 2), "diagonals": randn(H, 2 * S + 1)},
        {"scores": "bhqk"},
        lambda scores, diagonals, inplace=False: pn.add_toeplitz_bias(
            scores, diagonals, out=scores if inplace else None
        ),
        free="bhqk", in_place=["scores"], learned=["diagonals"],
    ),
    "add_toeplitz_bias, both cut": Case(
        lambda: {"scores": randn(B, H, S, S), "diagonals": randn(B, H, 40),
                 "q_offset": torch.arange(B)},
        {"scores": "bhqk", "diagonals": "bhe"},
        lambda scores, diagonals, q_offset: pn.add_toeplitz_bias(
            scores, diagonals, q_offset=q_offset, origin=20
        ),
        free="bhqk",
    ),
    "add_toeplitz_bias, grid": Case(
        lambda: {"scores": randn(B, H, 4, 4), "diagonals": randn(H, 3, 3)}, {"scores": "bhqk"},
        lambda scores, diagonals: pn.add_toeplitz_bias(
            scores, diagonals, q_len=(2, 2), k_len=(2, 2)
        ),
        free="bh", learned=["diagonals"],
    ),
    "diagonal_sums": Case(lambda: {"grad": randn(B, H, S, S + 2)}, {"grad": "bhqk"},
                          lambda grad: pn.diagonal_sums(grad), free="bhqk", sums=True),
    "diagonal_sums, batch kept": Case(
        lambda: {"grad": randn(B, H, S, S)}, {"grad": "bhqk"},
        lambda grad: pn.diagonal_sums(grad, keep=2), free="bhqk", sums=True,
    ),
    "relative_gather": Case(
        lambda: {"x": randn(B, H, S, 6), "index": torch.arange(DIAGONALS) % 6,
                 "content": randn(B, H, S, S)},
        {"x": "bhqw", "content": "bhqk"},
        lambda x, index, content: pn.relative_gather(x, index, S, content=content, scale=0.5),
        free="bhq",
    ),
    "relative_gather, shift": Case(
        lambda: {"x": randn(B, H, S, DIAGONALS)}, {"x": "bhqw"},
        lambda x: pn.relative_gather(x, None, S), free="bhq",
    ),
    "relative_scatter": Case(
        lambda: {"grad": randn(B, H, S, S), "index": torch.arange(DIAGONALS) % 6},
        {"grad": "bhqk"}, lambda grad, index: pn.relative_scatter(grad, index, 6), free="bhq",
    ),
    "selective_rotary_qk": Case(
        lambda: q_and_k(steps=randn(B, K, S, P)), {**QK, "steps": "bhsd"}, selective, free="b",
        in_place="qk",
    ),
    "selective_rotary_qk, steps of each head": Case(
        lambda: {name: randn(B, H, S, n) for name, n in (("q", D), ("k", D), ("steps", P))},
        {**QK, "steps": "bhsd"}, selective, free="bh",
    ),
    "selective_rotary_qk, steps for all heads": Case(
        lambda: q_and_k(steps=randn(B, 1, S, P)), QK, selective, free="bh",
        learned=["steps"],
    ),
    "selective_rotary_qk, packed": Case(
        lambda: {"q": randn(B * S, H, D), "steps": randn(B * S, H, P)},
        {"q": "thd", "steps": "thd"},
        lambda q, steps: selective(
            q, None, steps, layout="thd", starts=torch.tensor([0, 4, 4, 9, 15])
        ),
        free="h",
    ),
    "selective_rotary_qk, states": Case(
        lambda: {"k": randn(S, B, H, D), "steps": randn(S, B, H, P), "state": states(B, H, P)},
        {"k": "sbhd", "steps": "sbhd"},
        lambda k, steps, state: pn.selective_rotary_qk(
            None, k, steps, state=state, layout="sbhd", inverse=True
        )[1:],
        free="bh", gradients=False,
    ),
    "selective_rotary_qk, states of rows": Case(
        lambda: {"q": randn(B * S, H, D), "steps": randn(B * S, 1, P), "state": states(3, 1, P)},
        {"q": "thd"},
        lambda q, steps, state: pn.selective_rotary_qk(
            q, None, steps, state=state, layout="thd", starts=torch.tensor([0, 4, 9, 15])
        )[::2],
        free="", gradients=False,
    ),
    "accumulated_phases": Case(
        lambda: {"steps": randn(B, S, P), "state": states(B, P)}, {"steps": "bsp"},
        lambda steps, state: pn.selective.accumulated_phases(steps, axis=1, state=state), free="bp",
        gradients=False,
    ),
    "accumulated_phases, rows": Case(
        lambda: {"steps": randn(H, 9), "state": states(3, H)}, {"steps": "hs"},
        lambda steps, state: pn.selective.accumulated_phases(
            steps, axis=-1, state=state, starts=torch.tensor([0, 4, 4, 9])
        ),
        free="h", gradients=False,
    ),
    "phase_tables": Case(
        lambda: {"phases": states(B, S, P)}, {"phases": "bsp"},
        lambda phases: pn.selective.phase_tables(phases), free="bsp", gradients=False,
    ),
}  # fmt: skip
