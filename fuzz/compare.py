"""Whether results are right: compared with the reference, by the tolerances of the tests."""

from __future__ import annotations

import itertools
import math
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from posenc_native.base.views import rotary_view
from posenc_native.engines.reference import phases

from .cases import Case
from .engines import REFERENCE, Outcome, arguments_of, function_of, prepared
from .memory import Operand

sys.path.append(str(Path(__file__).parents[1] / "tests" / "shared"))
from oracle import COMPUTATION, PER_POSITION, tolerance
from relative_numbers import assert_sums

Array = np.ndarray[Any, Any]
# The formats' largest numbers; past a share of them sums may overflow on the way.
LARGEST = {"float16": 6e4, "bfloat16": 1e38, "float32": 1e38, "float64": 1e307}


def quick_reference() -> None:
    """Let the reference keep what it computed of every frequency, not of whole vectors."""
    original = phases.fixed_point

    def fixed_point(frequencies: Any) -> tuple[int, ...]:
        return tuple(map(one, frequencies))

    one = lru_cache(1 << 16)(lambda w: original((w,))[0])
    phases.fixed_point = fixed_point  # type: ignore[assignment]


def same_bits(a: Array, b: Array) -> bool:
    """Equal to the bit; NaN is NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.tobytes() == b.tobytes():
        return True
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    with np.errstate(all="ignore"):
        return bool(np.all((a.view(unsigned) == b.view(unsigned)) | ((a != a) & (b != b))))


def error_fault(case: Case, error: BaseException) -> str | None:
    """What is wrong with an error, if anything."""
    if type(error) not in (ValueError, TypeError):
        return f"raised {type(error).__name__}: {error}"
    form = rf"{case.function}: [^:]+: expected \S.*, got \S.*"
    if not re.fullmatch(form, str(error), re.DOTALL):
        return f"an error not of the house's form: {error}"
    return None


def value_fault(case: Case, copies: dict[int, Array], outcome: Outcome) -> str | None:
    """How results differ from the reference's, if they do."""
    arguments = arguments_of(case, copies)
    arguments.pop("out", None)
    if "inplace" in arguments:
        arguments["inplace"] = False
    out = case.arguments.get("out")
    if isinstance(out, Operand) and case.function in ("sinusoidal", "toeplitz_bias"):
        arguments["dtype"] = copies[id(out)].dtype
    with np.errstate(all="ignore"):
        try:
            _CHECKS[case.function](case, arguments, outcome.results)
        except AssertionError as error:
            return f"wrong results: {error}"
        except (ValueError, TypeError, IndexError) as error:
            return f"the reference raises {type(error).__name__}: {error}"
    return None


def _reference(case: Case, arguments: dict[str, Any], count: int = 1) -> tuple[Array, ...]:
    with prepared(REFERENCE):
        results = function_of(case)(**arguments)
    return results if isinstance(results, tuple) else (results,)


def _assert_close(actual: Array, exact: Array, magnitude: Any, more: Any = 0.0) -> None:
    assert actual.shape == exact.shape, f"shape {actual.shape}, not {exact.shape}"
    magnitude = np.broadcast_to(np.asarray(magnitude, np.float64), exact.shape)
    counts = magnitude < LARGEST[str(actual.dtype)] / 4  # also False for NaN
    error = np.abs(actual.astype(np.float64) - exact)
    # Products of float32 or float64 are no smaller than its smallest number.
    smallest = 2.0**-1072 if actual.dtype == np.float64 else 2.0**-147
    bound = tolerance(actual.dtype, magnitude, exact) + more + smallest
    wrong = counts & ~(error <= bound)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {actual.size}, first at {at}: {actual[at]!r}, not {exact[at]!r}"
        )


def _assert_same(actual: Array, expected: Array) -> None:
    assert actual.shape == expected.shape, f"shape {actual.shape}, not {expected.shape}"
    assert actual.dtype == expected.dtype, f"{actual.dtype}, not {expected.dtype}"
    if not same_bits(actual, expected):
        differ = ~((actual == expected) | ((actual != actual) & (expected != expected)))
        at = tuple(int(i) for i in np.argwhere(differ)[0]) if differ.any() else "(a sign of zero)"
        raise AssertionError(f"bits differ, first at {at}: {actual[at]!r}, not {expected[at]!r}")


# --- Rotary


def _partners(arguments: dict[str, Any], dim: int, pairs: int) -> Array:
    """The dim that each is paired with; itself where it is not turned."""
    partner = np.arange(dim)
    start, pairing = arguments.get("rotary_start", 0), arguments.get("pairing", "half")
    block = {"half": max(2 * pairs, 2), "interleaved": 2}.get(pairing, pairing)
    turned = np.arange(2 * pairs)
    first = turned % block < block // 2
    partner[start : start + 2 * pairs] = start + np.where(
        first, turned + block // 2, turned - block // 2
    )
    return partner


def _highest(arguments: dict[str, Any]) -> float:
    """The highest frequency of a formula: the first, or for bases below 1 the last."""
    pairs = (arguments["dim"] if "dim" in arguments else arguments["x"].shape[-1]) // 2
    step = np.log(arguments.get("base", 1e4)) / max(pairs - arguments.get("shift", 0.0), 1e-300)
    return float(abs(arguments.get("scale", 1.0)) * np.exp(max(-step * (pairs - 1), 0.0)))


def _cut(arguments: dict[str, Any]) -> float:
    """What angles are off by because fractions of positions are cut at 2^-64, in radians."""
    positions, inv_freq = arguments.get("positions"), arguments.get("inv_freq")
    if not isinstance(positions, np.ndarray) or positions.dtype.kind != "f" or not positions.size:
        return 0.0
    if inv_freq is None:
        return 2.0**-62 * _highest(arguments)
    terms = len(inv_freq) if inv_freq.ndim == 3 else 1
    return float(terms * 2.0**-62 * np.abs(inv_freq.astype(np.float64)).max(initial=0.0))


def _check_rotary(case: Case, arguments: dict[str, Any], results: tuple[Array, ...]) -> None:
    names = ["x"] if "x" in arguments else ["q", "k"]
    there = [arguments[name] is not None for name in names]  # one of q and k may be missing
    names = list(itertools.compress(names, there))
    given = {name: arguments[name] for name in names}
    tables = "cos" in arguments

    def reference(more: dict[str, Any]) -> list[Array]:
        return list(itertools.compress(_reference(case, arguments | more), there))

    if arguments.get("compute") == "as_written":
        for actual, expected in zip(results, reference({}), strict=True):
            _assert_same(actual, expected)
        return
    wide = {name: x.astype(np.float64) for name, x in given.items()}
    exact = reference(wide)
    pairs = arguments["cos" if tables else "inv_freq"].shape[-1]
    for name, actual, e in zip(names, results, exact, strict=True):
        x = wide[name]
        assert actual.dtype == given[name].dtype
        partner = _partners(arguments, x.shape[-1], pairs)
        if tables:
            terms = {n: np.abs(w) for n, w in wide.items()}
            cos, sin = (np.abs(arguments[n].astype(np.float64)) for n in ("cos", "sin"))
            magnitude = sum(
                np.abs(reference(terms | table)[names.index(name)])
                for table in ({"cos": cos, "sin": 0 * sin}, {"cos": 0 * cos, "sin": sin})
            )
        else:
            magnitude = (np.abs(x) + np.abs(x[..., partner])) * abs(arguments.get("scale", 1.0))
        _assert_close(actual, e, magnitude, magnitude * _cut(arguments))
        still = partner == np.arange(x.shape[-1])
        _assert_same(actual[..., still], given[name][..., still])


def _check_backward(case: Case, arguments: dict[str, Any], results: tuple[Array, ...]) -> None:
    grads, inputs = arguments["grads"], arguments["inputs"]
    count, pairs = len(grads), arguments["inv_freq"].shape[-1]
    double = tuple(np.asarray(g, np.float64) for g in grads)
    points = tuple(np.asarray(x, np.float64) for x in inputs)
    exact = _reference(case, arguments | {"grads": double, "inputs": points})
    assert len(results) == len(exact)
    scale = abs(arguments.get("scale", 1.0))
    start, ys, xs, errors = arguments.get("rotary_start", 0), [], [], []
    finite = all(np.all(np.abs(t) < 1e4) for t in (*double, *points))
    for actual, e, g, x in zip(results, exact, double, points, strict=False):
        partner = _partners(arguments, x.shape[-1], pairs)
        y = (np.abs(g) + np.abs(g[..., partner])) * scale
        magnitude = np.where(partner == np.arange(len(partner)), np.abs(g), y)
        _assert_close(actual, e, magnitude, magnitude * _cut(arguments))
        # With |x_a| and -|x_b|, and nothing turned, cross products are sums of magnitudes.
        behind = (partner < np.arange(len(partner))) & (partner >= start)
        ys.append(y)
        xs.append(np.where(behind, -np.abs(x), np.abs(x)))
        errors.append(y * (COMPUTATION[str(actual.dtype)] + _cut(arguments)))
    if not finite:
        return
    unit = 2.0**-52 if inputs[0].dtype == np.float64 else 2.0**-24
    tokens = np.asarray(
        rotary_view("", inputs[0].shape, arguments.get("layout", "bhsd"), "half", 0, 0).tokens
    )
    positions = arguments.get("positions")
    positions = np.arange(tokens) if positions is None else positions
    positions = np.abs(positions.astype(np.float64))
    # Integers of 2^63 and more are no positions in float64: sums of smaller ones, made larger.
    far = 4.0 if positions.max(initial=0.0) >= 2.0**62 else 1.0
    positions = positions / far
    frequencies = np.abs(arguments["inv_freq"].astype(np.float64))
    plain = arguments | {"scale": 1.0, "inverse": False, "inputs": tuple(xs)}
    terms = sum(x.size for x in points) + pairs + 16
    cut = 2.0**-64 / (terms * unit)  # fractions of positions are
    nothing = [
        plain | {"positions": positions + cut, "inv_freq": 0 * frequencies},
        plain | {"positions": 0 * positions, "inv_freq": frequencies},
    ]
    for i, (actual, e) in enumerate(zip(results[count:], exact[count:], strict=True)):
        times = far if i == 0 else 1.0
        off = times * _reference(case, nothing[i] | {"grads": tuple(errors)})[count + i]
        sums = times * _reference(case, nothing[i] | {"grads": tuple(ys)})[count + i]
        assert actual.shape == e.shape, f"shape {actual.shape}, not {e.shape}"
        excess = np.abs(actual - e) - (off + terms * unit * sums + 2.0**-120 * terms)
        assert np.all(~(sums < 1e30) | (excess <= 0)), f"a sum is off by {excess.max()} more"


def _check_rotary_tables(case: Case, arguments: dict[str, Any], results: tuple[Array, ...]) -> None:
    dtype = np.dtype(arguments.get("dtype") or np.float32)
    exact = _reference(case, arguments | {"dtype": np.float64})
    for actual, e in zip(results, exact, strict=True):
        assert actual.dtype == dtype
        scale = abs(arguments.get("scale", 1.0))
        _assert_close(actual, e, scale, scale * _cut(arguments))


# --- Sinusoidal


def _per_position(arguments: dict[str, Any], positions: Any) -> Any:
    """What a table may be off by at its positions."""
    if isinstance(positions, (int, np.integer)):
        positions = np.arange(positions)
    # Frequencies themselves are good to about 2^-100: past a scale of 2^40 that shows.
    each = max(PER_POSITION, _highest(arguments) * 2.0**-98)
    return np.abs(np.asarray(positions).astype(np.float64))[..., None] * each + _cut(arguments)


def _check_sinusoidal(case: Case, arguments: dict[str, Any], results: tuple[Array, ...]) -> None:
    dtype = np.dtype(arguments.get("dtype") or np.float32)
    (exact,) = _reference(case, arguments | {"dtype": np.float64})
    assert results[0].dtype == dtype
    _assert_close(results[0], exact, 1.0, _per_position(arguments, arguments["positions"]))


def _check_add_sinusoidal(
    case: Case, arguments: dict[str, Any], results: tuple[Array, ...]
) -> None:
    x = arguments["x"].astype(np.float64)
    (exact,) = _reference(case, arguments | {"x": x})
    positions = arguments.get("positions")
    positions = x.shape[-2] if positions is None else positions
    alpha = abs(arguments.get("alpha", 1.0))
    magnitude = np.abs(x * arguments.get("x_scale", 1.0)) + alpha
    assert results[0].dtype == arguments["x"].dtype
    _assert_close(results[0], exact, magnitude, alpha * _per_position(arguments, positions))


# --- Relative


def _check_bits(case: Case, arguments: dict[str, Any], results: tuple[Array, ...]) -> None:
    _assert_same(results[0], _reference(case, arguments)[0])


def _check_bias(case: Case, arguments: dict[str, Any], results: tuple[Array, ...]) -> None:
    diagonals = arguments["diagonals"]
    dtype = np.dtype(arguments.get("dtype") or diagonals.dtype)
    (exact,) = _reference(
        case, arguments | {"diagonals": diagonals.astype(np.float64), "dtype": np.float64}
    )
    assert results[0].dtype == dtype
    _assert_close(results[0], exact, np.abs(exact))


def _check_sums(case: Case, arguments: dict[str, Any], results: tuple[Array, ...]) -> None:
    grad = arguments["grad"].astype(np.float64)
    (actual,) = results
    (exact,) = _reference(case, arguments | {"grad": grad})
    assert actual.shape == exact.shape, f"shape {actual.shape}, not {exact.shape}"
    if not np.all(np.abs(grad) < 1e4):
        return
    absolute = arguments | {"grad": np.abs(grad)}
    if "scale" in arguments:
        absolute["scale"] = abs(arguments["scale"])
    (magnitude,) = _reference(case, absolute)
    additions = grad.shape[-1]
    if case.function == "diagonal_sums":
        additions = math.prod(grad.shape)
    assert_sums(actual, exact, magnitude, additions)


_CHECKS = {
    "apply_rotary": _check_rotary,
    "apply_rotary_qk": _check_rotary,
    "apply_rotary_tables": _check_rotary,
    "apply_rotary_qk_tables": _check_rotary,
    "rotary_backward": _check_backward,
    "rotary_tables": _check_rotary_tables,
    "sinusoidal": _check_sinusoidal,
    "add_sinusoidal": _check_add_sinusoidal,
    "toeplitz_bias": _check_bias,
    "add_toeplitz_bias": _check_bits,
    "diagonal_sums": _check_sums,
    "relative_gather": _check_bits,
    "relative_scatter": _check_sums,
}
