"""What a rotation does, read by running unit vectors through it.

Nothing here knows a formula of any engine. NumPy alone is imported: adapters import this module in
the environment of their engine.

    e_i at position 1 ─► engine ─► cos and sin of pair (i, j) ─► angle, length
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# x [tokens, dims], positions [axes, tokens] (or [tokens] with one axis) -> rotated x.
Rotate = Callable[[Array, Array], Array]

# At position 1 the angle is the frequency; far away slow pairs, too, show their partners.
_FAR = 1000
_DIGITS = 6  # float32 has seven
_FLOAT32 = 2.0**-24


def read_rotation(rotate: Rotate, dims: int, axes: int = 1) -> dict[str, Any] | None:
    """The pairs that a rotation turns, with frequencies and magnitude; None if it turns nothing.

    Args:
        rotate: rotates x [tokens, dims] at integer positions: [tokens], or [axes, tokens].
        dims: of a head.
        axes: of a position.

    Returns:
        ``rotary_dim``, ``rotary_start``, ``pairing`` ("half" or "interleaved"), ``frequencies``
        (of the pairs, in radians per position), ``magnitude`` (the length of a rotated unit
        vector), and with several axes ``axes``: the axis of each pair, or None if it does not turn.

    Raises:
        ValueError: the engine does something that these words cannot say.
    """
    near = [_turned(rotate, dims, axes, axis, 1) for axis in range(axes)]
    far = [_turned(rotate, dims, axes, axis, _FAR) for axis in range(axes)]
    partners = _partners(far, dims)
    turning = [i for i, j in enumerate(partners) if j is not None]
    if not turning:
        return None
    pairing, start, count = _layout(partners, dims)
    offset = 1 if pairing == "interleaved" else count // 2
    firsts = range(start, start + count, 2) if offset == 1 else range(start, start + offset)
    frequencies, of_axis, lengths = [], [], []
    for i in firsts:
        j = i + offset
        angles = [float(np.arctan2(x[i, j], x[i, i])) for x in near]
        driving = [axis for axis, x in enumerate(far) if abs(x[i, j]) > _FLOAT32]
        if len(driving) > 1:
            raise ValueError(f"pair ({i}, {j}) turns by axes {driving}")
        axis = driving[0] if driving else 0
        frequencies.append(angles[axis] if driving else 0.0)
        of_axis.append(axis if driving else None)
        lengths.append(float(np.hypot(near[axis][i, i], near[axis][i, j])))
        expected = _FAR * frequencies[-1]
        got = float(np.arctan2(far[axis][i, j], far[axis][i, i]))
        apart = abs((got - expected + np.pi) % (2 * np.pi) - np.pi)
        if apart > 16 * _FAR * max(abs(frequencies[-1]), 1) * _FLOAT32 + 1e-4:
            raise ValueError(f"pair ({i}, {j}): the angle does not grow with the position")
    magnitude = float(np.median(lengths))
    if np.abs(np.array(lengths) - magnitude).max() > 1e-5 * magnitude:
        raise ValueError(f"pairs have different magnitudes: {min(lengths)} to {max(lengths)}")
    result: dict[str, Any] = {
        "rotary_dim": count,
        "rotary_start": start,
        "pairing": pairing,
        "frequencies": [_rounded(frequency) for frequency in frequencies],
        "magnitude": _rounded(magnitude),
    }
    return result | ({"axes": of_axis} if axes > 1 else {})


def serve(
    package: str, rotations: Callable[[Any], Iterable[tuple[int, Mapping[str, Any] | None]]]
) -> None:
    """Read configurations from standard input, and write what the engine does with each.

    Args:
        package: the distribution whose version is recorded.
        rotations: for a configuration (layer, rotation) of every attention layer, as
            `read_rotation` returns it (None: q and k are used as they are). Layers without
            attention are left out. An exception is the engine's refusal, and is recorded.
    """
    answers = {}
    out, sys.stdout = sys.stdout, sys.stderr  # engines print
    for name, configuration in json.load(sys.stdin).items():
        answers[name] = answer(rotations, configuration)
    json.dump({"package": package, "version": version(package), "answers": answers}, out)
    out.flush()  # some engines end the process abruptly


def answer(rotations: Callable[[Any], Any], configuration: Any) -> dict[str, Any]:
    """What the engine does with a configuration: its ``layers``, or how it ``refused``."""
    try:
        return {"layers": _numbered(rotations(configuration))}
    except Exception as error:  # whatever the engine raises is its answer
        lines = f"{type(error).__name__}: {error}".splitlines() or [""]
        return {"refused": lines[0][:160]}


def _numbered(rotations: Iterable[tuple[int, Any]]) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for layer, rotation in rotations:
        new = {"layers": [], "rotary": rotation}
        groups.setdefault(json.dumps(rotation), new)["layers"].append(layer)
    return list(groups.values())


def _turned(rotate: Rotate, dims: int, axes: int, axis: int, position: int) -> Array:
    """Row i is the rotated unit vector e_i."""
    positions = np.zeros((axes, dims), np.int64)
    positions[axis] = position
    rotated = rotate(np.eye(dims, dtype=np.float32), positions if axes > 1 else positions[0])
    return np.asarray(rotated, np.float64)


def _partners(far: Sequence[Array], dims: int) -> list[int | None]:
    """For each dim the dim that it is turned into; None if it stays in place."""
    moved = np.max([np.abs(x) for x in far], axis=0)
    np.fill_diagonal(moved, 0)
    partners: list[int | None] = []
    for i in range(dims):
        others = np.flatnonzero(moved[i] > _FLOAT32)
        if len(others) > 1:
            raise ValueError(f"dim {i} is turned into dims {others.tolist()}")
        partners.append(int(others[0]) if len(others) else None)
    return partners


def _layout(partners: Sequence[int | None], dims: int) -> tuple[str, int, int]:
    """Pairing, first rotated dim and their number; pairs of frequency 0 stay in place."""
    pairs = [(i, j) for i, j in enumerate(partners) if j is not None and i < j]
    offsets = {j - i for i, j in pairs}
    if len(offsets) != 1:
        raise ValueError(f"pairs are {sorted(offsets)} dims apart")
    offset = offsets.pop()
    first, last = pairs[0][0], pairs[-1][1]
    if offset == 1:
        return "interleaved", first, last + 1 - first
    # The first pair is the fastest of a block; the block may end with pairs that stand still.
    if first + 2 * offset > dims or first + offset > pairs[0][1]:
        raise ValueError(f"pairs {offset} dims apart do not fit into a head of {dims}")
    return "half", first, 2 * offset


def _rounded(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")
