"""ONNX: the rotating operators of a graph, and the caches of cosines and sines that they read.

    com.microsoft  RotaryEmbedding(input, position_ids, cos_cache, sin_cache)
    ai.onnx        RotaryEmbedding(X, cos_cache, sin_cache, position_ids)
    com.microsoft  GroupQueryAttention: do_rotary, rotary_interleaved; caches are inputs 7 and 8

A graph names neither a base nor a scaling. Frequencies are recovered from the caches: the angle of
position 1 gives them roughly, and the angles of 2, 4, 8 ... halve the error every time. Base and
scaling follow if those of a usual kind fit.

Source: runs of ONNX Runtime (tests/engines_at_hand); onnx 1.23 (RotaryEmbedding-23). Names and
caches by length are those that onnxruntime-genai's model builder writes; it was not run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from posenc_native.checkpoints.formats.description import (
    Description,
    Ground,
    RoundingError,
    Unknown,
)
from posenc_native.checkpoints.formats.fitting import explained, nice
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.settings import without_rotation
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.frequencies.scaling import rotary_frequencies
from posenc_native.models.config import LayerGroup
from posenc_native.models.entries import HEAD_LIMIT, KIND_LIMIT, LAYER_LIMIT

from .onnx_files import ONNX, Node, Numbers

TITLE = "ONNX graph"
_WORDS = {
    "layer_count": "names of nodes",
    "rotary_dim": "columns of cos_cache, rotary_embedding_dim",
    "head_dim": "columns of cos_cache",
    "pairing": "interleaved",
    "base": "recovered from cos_cache and sin_cache",
    "scaling": "recovered from cos_cache and sin_cache",
    "scale": "row 0 of cos_cache",
    "inv_freq": "recovered from cos_cache and sin_cache",
}
_LAYER = re.compile(r"layers?[./_](\d{1,4})(?!\d)")
_MOST_STEPS = 16  # from the input of an operator to its constant
_MOST_CACHES = 1 << 10
_MOST_SCALE = 1e3
_MOST_APART = 0.1  # radians, between an angle and its prediction from earlier ones
_FLOAT32 = 4e-7  # of frequencies that were computed in float32
_MOST_SEARCHED = 1 << 28  # bytes of a tensor, in the search for a second cache in it
_BASE = 10000.0  # assumed for LongRoPE's factors if nothing gives another base

# The first cache input of operators with do_rotary.
_ATTENTION = {"GroupQueryAttention": 7, "PagedAttention": 8, "SparseAttention": 9}
_RUN = frozenset({"RotaryEmbedding", "GroupQueryAttention"})  # records/onnxruntime.json
_WANTED = frozenset({*_ATTENTION, "Attention", "RotaryEmbedding", "Identity", "Cast", "If"})


class _Rotation(NamedTuple):
    """An operator that rotates, or an attention that does not (caches is None)."""

    layer: int | None
    interleaved: bool
    rotary_dim: int  # 0: twice the number of columns of its caches
    whole: bool | None  # whether that is the whole head; None: unknown
    caches: tuple[str, str] | None
    operator: str = ""  # that rotates


@dataclass(frozen=True)
class _Cache:
    """Frequencies of a pair of caches, for up to `rows` positions."""

    inv_freq: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64]  # relative, by frequency
    scale: float
    scale_error: float
    rows: int

    @property
    def key(self) -> tuple[bytes, float, int]:
        """Equal for equal caches."""
        return self.inv_freq.tobytes(), self.scale, self.rows


def read_onnx(path: Path, source: str, function: str) -> Description:
    """The description of an ONNX file."""
    file = ONNX(path, function, _WANTED)
    rotations = list(_rotations(file.nodes))
    if not any(rotation.caches for rotation in rotations):
        inner = any(node.numbers.get("do_rotary") for node in file.nodes)
        got = "one whose Attention computes its own frequencies" if inner else "none"
        expected = "an operator that rotates from caches (RotaryEmbedding, GroupQueryAttention)"
        wrong_value(function, "graph", expected, got)
    reader = _Reader(file, function)
    groups, unknown, length = reader.groups(rotations)
    return Description(
        source=source,
        format=TITLE,
        engine="ONNX Runtime",
        model_type=file.name if file.name.isprintable() else "",
        groups=groups,
        layer_count=None,
        length=length,
        nope_layers=without_rotation(groups),
        words=_WORDS,
        unknown=tuple(unknown),
        error=reader.error,
        safetensors=False,
        ground=_ground({rotation.operator for rotation in rotations}, reader.by_length),
    )


FORMAT = Format("onnx", TITLE, read_file=read_onnx, suffixes=(".onnx",))


def _ground(operators: set[str], by_length: bool) -> Ground:
    engine, version = "ONNX Runtime", "1.31.1"
    others = sorted(operators - _RUN - {""})
    if others:
        return Ground("unknown", engine, version, f"{', '.join(others)} was not run")
    if by_length:
        return Ground("unknown", engine, version, "no graph that chooses a cache by length was run")
    return Ground("run", engine, version)


def _rotations(nodes: list[Node]) -> Iterator[_Rotation]:
    apart = {_layer_of(node) for node in nodes if node.op_type == "RotaryEmbedding"}
    for node in nodes:
        inputs, layer = node.inputs, _layer_of(node)
        if node.op_type == "RotaryEmbedding":
            first = 2 if node.domain == "com.microsoft" else 1
            dim = node.numbers.get("rotary_embedding_dim", 0)
            interleaved = bool(node.numbers.get("interleaved"))
            if len(inputs) > first + 1:
                caches = inputs[first], inputs[first + 1]
                yield _Rotation(layer, interleaved, dim, dim == 0, caches, node.op_type)
        elif node.op_type in _ATTENTION:
            first = _ATTENTION[node.op_type]
            interleaved = bool(node.numbers.get("rotary_interleaved"))
            if node.numbers.get("do_rotary") and len(inputs) > first + 1:
                caches = inputs[first], inputs[first + 1]
                yield _Rotation(layer, interleaved, 0, None, caches, node.op_type)
            elif layer is not None and layer not in apart:
                yield _Rotation(layer, False, 0, None, None)


def _layer_of(node: Node) -> int | None:
    match = _LAYER.search(node.name)
    return int(match[1]) if match and int(match[1]) < LAYER_LIMIT else None


class _Reader:
    """Caches by name; a cache is read once."""

    def __init__(self, file: ONNX, function: str) -> None:
        self.file, self.function = file, function
        self.makers = {name: node for node in file.nodes for name in node.outputs}
        self.named: dict[tuple[str, str], list[_Cache]] = {}
        self.recovered: dict[Any, tuple[dict[str, Any], str]] = {}
        self.error: dict[int, RoundingError] = {}
        self.by_length = False

    def groups(
        self, rotations: list[_Rotation]
    ) -> tuple[tuple[LayerGroup, ...], list[Unknown], int | None]:
        """Groups of layers that rotate alike, unknown values, and the most rows of a cache."""
        members: dict[Any, set[int]] = {}
        values: dict[Any, dict[str, Any] | None] = {}
        unknown, rows = [Unknown("layer_count"), Unknown("softmax_correction")], []
        for rotation in rotations:
            key, arguments = None, None
            if rotation.caches is not None:
                caches = self._caches(*rotation.caches)
                key = (
                    rotation.interleaved,
                    rotation.rotary_dim or 2 * len(caches[0].inv_freq),
                    *(part for cache in caches for part in cache.key),
                )
                if key not in values and len(values) == KIND_LIMIT:
                    self._wrong(f"at most {KIND_LIMIT} rotations", "more")
                arguments, base = self._arguments(rotation, caches)
                rows.append(caches[0].rows)
                unknown += [Unknown("head_dim")] if not rotation.whole else []
                unknown += [Unknown("base", base)] if base else []
            values.setdefault(key, arguments)
            numbers = members.setdefault(key, set())
            if rotation.layer is not None:
                numbers.add(rotation.layer)
        groups = tuple(
            LayerGroup(None, tuple(sorted(members[key])), arguments)
            for key, arguments in values.items()
        )
        return groups, list(dict.fromkeys(unknown)), max(rows, default=None)

    def _arguments(self, rotation: _Rotation, caches: list[_Cache]) -> tuple[dict[str, Any], str]:
        """Arguments of `Rotary`, and a phrase about the base if it is assumed."""
        long, short = caches[0], caches[-1]
        pairs = len(long.inv_freq)
        rotary_dim = rotation.rotary_dim or 2 * pairs
        if rotary_dim != 2 * pairs:
            expected = f"twice the {pairs} columns of its caches"
            wrong_value(self.function, "rotary_embedding_dim", expected, rotary_dim)
        key = tuple(cache.key for cache in caches)
        if key not in self.recovered:
            by_length = long is not short
            self.by_length |= by_length
            recovered = _recovered_by_length(long, short) if by_length else _recovered(long)
            self.recovered[key] = recovered
            if by_length or "base" not in recovered[0]:  # frequencies from the file
                self._add_error(caches)
        arguments, base = self.recovered[key]
        pairing = "interleaved" if rotation.interleaved else "half"
        return {"head_dim": rotary_dim, "pairing": pairing, **arguments}, base

    def _add_error(self, caches: list[_Cache]) -> None:
        # Doubled: factors of LongRoPE were rounded to few digits, within the error.
        errors = [2 * cache.error for cache in caches]
        scales = [cache.scale_error for cache in caches]
        pairs = len(errors[0])
        if pairs in self.error:
            errors.append(np.asarray(self.error[pairs].inv_freq))
            scales.append(self.error[pairs].scale)
        self.error[pairs] = RoundingError(tuple(np.max(errors, 0).tolist()), max(scales))

    def _caches(self, cos: str, sin: str) -> list[_Cache]:
        """A pair of caches, or a pair for long and a pair for short sequences."""
        if (cos, sin) not in self.named:
            if len(self.named) == _MOST_CACHES:
                self._wrong(f"at most {_MOST_CACHES} caches", "more")
            both = self._tensors(cos), self._tensors(sin)
            counts = [len(tensors) for tensors in both]
            if not min(counts):
                self._wrong("constant caches", f"{cos[:64]!r}, which the graph computes")
            if counts[0] != counts[1]:
                self._wrong("as many caches of cosines as of sines", f"{counts[0]} and {counts[1]}")
            caches = [cache for pair in zip(*both, strict=True) for cache in self._read(*pair)]
            if len(caches) > 2:
                self._wrong("caches for long and for short sequences", f"{len(caches)} of them")
            if len({cache.inv_freq.shape for cache in caches}) > 1:
                self._wrong("caches of one width", "several")
            self.named[cos, sin] = sorted(caches, key=lambda cache: -cache.rows)
        return self.named[cos, sin]

    def _tensors(self, name: str) -> list[Numbers]:
        """The constants that a value may be; several if it comes from the branches of an If."""
        tensors: list[Numbers] = []
        seen: set[str] = set()
        names = [name]
        while names and len(seen) < _MOST_STEPS and len(tensors) < 3:
            name = names.pop(0)
            if name in seen:
                continue
            seen.add(name)
            tensor, node = self.file.tensor(name), self.makers.get(name)
            if tensor is not None:
                tensors.append(tensor)
            elif node is not None and node.op_type in ("Identity", "Cast"):
                names += node.inputs[:1]
            elif node is not None and node.op_type == "If":
                at = node.outputs.index(name)
                names += [outputs[at] for outputs in node.branches[:3] if at < len(outputs)]
        return tensors

    def _read(self, cos: Numbers, sin: Numbers) -> list[_Cache]:
        """A pair of caches; two if a second pair begins at a later row with position 0."""
        shapes = cos.shape, sin.shape
        fits = len(cos.shape) == 2 and cos.shape == sin.shape and cos.shape[0] >= 2
        if not fits or not 1 <= cos.shape[1] <= HEAD_LIMIT // 2:
            expected = "caches [positions, pairs] of one shape, of 2 positions or more"
            self._wrong(expected, " and ".join(str(list(shape)) for shape in shapes))
        cache = _cache(cos, sin)
        if cache is not None:
            return [cache]
        if cos.data.nbytes <= _MOST_SEARCHED:
            alike = (cos.data[:, 0] == cos.data[0, 0]) & (sin.data[:, 0] == sin.data[0, 0])
            for row in np.flatnonzero(alike)[1:5].tolist():
                rows = cos.shape[0]
                if not 2 <= row <= rows - 2:
                    continue
                before, after = (
                    _cache(cos.part(*part), sin.part(*part)) for part in ((0, row), (row, rows))
                )
                if before and after:
                    return [before, after]
        return self._wrong("cosines and sines of positions 0, 1, 2 ...", "other caches")

    def _wrong(self, expected: str, got: str) -> NoReturn:
        wrong_value(self.function, "graph", expected, got)


def _cache(cos: Numbers, sin: Numbers) -> _Cache | None:
    """The frequencies that give these cosines and sines; None if they are not such tables."""
    rows = cos.shape[0]
    places = [0, *(1 << power for power in range((rows - 1).bit_length())), rows - 1]
    c, s = cos.rows(places), sin.rows(places)
    step = max(cos.step, sin.step)
    smallest = max(cos.smallest, sin.smallest)
    if not (abs(c).max() <= _MOST_SCALE and abs(s).max() <= _MOST_SCALE):  # nor NaN
        return None
    scale = float(np.median(c[0]))
    if scale < 1 / _MOST_SCALE:
        return None
    near = 4 * step * scale
    if (abs(c[0] - scale) > near).any() or (abs(s[0]) > near).any():
        return None
    if (abs(np.hypot(c, s) - scale) > near).any():
        return None
    angles = np.arctan2(s, c)
    inv_freq = angles[1]
    for i, place in enumerate(places[2:], 2):
        over = place * inv_freq - angles[i]
        turned = angles[i] + 2 * math.pi * np.round(over / (2 * math.pi))
        # Products with powers of two are exact; that of the last row is rounded to float32.
        if (abs(place * inv_freq - turned) > _MOST_APART + place * 2.0**-23).any():
            return None
        if i < len(places) - 1:
            inv_freq = turned / place
    # Cosines and sines are rounded; the smaller of the two is rounded less and gives the angle.
    turns = np.maximum(abs(places[-2] * inv_freq), np.finfo(np.float32).tiny)
    error = _FLOAT32 + 2 * (step * np.minimum(turns, 1) + smallest / scale) / turns
    scale = 1.0 if abs(scale - 1) <= 2 * step else scale
    return _Cache(inv_freq, error, scale, 2 * step, rows)


def _recovered(cache: _Cache) -> tuple[dict[str, Any], str]:
    """Base and scaling if some fit, otherwise the frequencies."""
    pairs = len(cache.inv_freq)
    fit = explained(cache.inv_freq, cache.error, cache.rows)
    if fit is None:
        return {"inv_freq": cache.inv_freq.tolist(), "scale": cache.scale}, ""
    base, scaling = fit
    _, factor = rotary_frequencies(2 * pairs, base, scaling)
    scale = _same_scale(cache, factor)
    return {"base": base, "rotary_dim": 2 * pairs, "scaling": scaling, "scale": scale}, ""


def _recovered_by_length(long: _Cache, short: _Cache) -> tuple[dict[str, Any], str]:
    """LongRoPE. Its factors are relative to a base, which only unscaled frequencies show."""
    pairs = len(long.inv_freq)
    fit = explained(short.inv_freq, short.error)
    base = _BASE if fit is None or fit[1] is not None else fit[0]
    plain = base ** (-np.arange(pairs) / pairs)
    lists = {
        f"{name}_factor": [
            next(nice(ratio, error))
            for ratio, error in zip(plain / cache.inv_freq, cache.error, strict=True)
        ]
        for name, cache in (("short", short), ("long", long))
    }
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        **lists,
        "original_max_position_embeddings": short.rows,
        "max_position_embeddings": long.rows,
    }
    _, factor = rotary_frequencies(2 * pairs, base, scaling)
    scale = _same_scale(long, factor)
    if scale != factor:
        scaling["attention_factor"] = scale
    said = f"the factors are relative to {base:,.0f}" if base == _BASE else ""
    rotation = {"base": base, "rotary_dim": 2 * pairs, "scaling": scaling, "scale": scale}
    return rotation, said


def _same_scale(cache: _Cache, factor: float) -> float:
    """The factor that follows from the scaling if it may be the cache's; otherwise the cache's."""
    return factor if abs(cache.scale - factor) <= cache.scale_error * factor else cache.scale
