"""Whether results are right: compared with the reference, by the tolerances of the tests."""

from __future__ import annotations

import inspect
import math
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import posenc_native as pn
from posenc_native.core.calls.views import rotary_view
from posenc_native.engines.plain import phases

from .bound import from_first
from .cases import Case, Described
from .cases.common import CACHES, SCALES
from .cases.rotary import INT_IS_FIRST, VERBS
from .engines import (
    HALF_UNITS,
    REFERENCE,
    Engine,
    Outcome,
    arguments_of,
    function_of,
    gathered,
    prepared,
)
from .memory import EIGHT_BITS

sys.path.append(str(Path(__file__).parents[1] / "tests" / "shared"))
from norms import roundings
from oracle import COMPUTATION, PER_POSITION, tolerance
from relative_numbers import assert_sums

Array = np.ndarray[Any, Any]
# The formats' largest numbers; past a share of them sums may overflow on the way.
LEAST = {"float16": 6e-8, "bfloat16": 1e-40, "float32": 2e-45, "float64": 5e-324}
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
    functions = {"bound_steps": "(Rotary|apply_rotary_qk)"}
    function = functions.get(case.function, case.function)
    form = rf"{function}: [^:]+: expected \S.*, got \S.*"
    if not re.fullmatch(form, str(error), re.DOTALL):
        return f"an error not of the house's form: {error}"
    return None


def value_fault(
    case: Case, copies: dict[int, Array], engine: Engine, outcome: Outcome
) -> str | None:
    """How results of an engine differ from the reference's, if they do."""
    copies = {key: array.copy() for key, array in copies.items()}
    arguments = spelled_out(case, arguments_of(case, copies))
    out = arguments.pop("out", None)
    if case.function != "bound_steps" and "inplace" in arguments:
        arguments["inplace"] = False
    if isinstance(out, np.ndarray) and case.function in ("sinusoidal", "toeplitz_bias"):
        arguments["dtype"] = out.dtype
    with prepared(engine), np.errstate(all="ignore"):
        try:
            _CHECKS[case.function](case, arguments, outcome.results)
        except AssertionError as error:
            return f"wrong results: {error}"
        except (ValueError, TypeError, IndexError) as error:
            return f"the reference raises {type(error).__name__}: {error}"
    return None


def spelled_out(case: Case, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a verb without its short forms: the reference is called with what they mean."""
    first = arguments.get("positions")
    if case.function == "add_sinusoidal" and isinstance(first, int):
        tokens = arguments["x"].shape[-2]
        return arguments | {"positions": np.arange(first, first + tokens)}
    if (
        "inv_freq" not in arguments
        or "layout" not in inspect.signature(function_of(case)).parameters
    ):
        return arguments
    described = case.arguments["inv_freq"]
    if isinstance(described, Described):
        del arguments["inv_freq"]
        arguments = arguments | _options_of(described)
    layout = arguments.get("layout", "bhsd")
    positions = arguments.get("positions")
    names = [name for name in ("x", "q", "k") if arguments.get(name) is not None]

    def spelled(one: Any, name: str) -> Any:
        if isinstance(one, int) and not isinstance(one, bool):
            return from_first(one, arguments[name], layout) if INT_IS_FIRST else np.arange(one)
        return one

    if isinstance(positions, tuple):
        pair = (spelled(one, n) for one, n in zip(positions, "qk", strict=True) if n in names)
        return arguments | {"positions": tuple(pair) if len(names) > 1 else (*pair,) * 2}
    return arguments | ({"positions": spelled(positions, names[0])} if names else {})


def _options_of(described: Described) -> dict[str, Any]:
    """The options of a rotation that a `Rotary` has, as arrays and numbers."""
    options = {n: v for n, v in described.arguments.items() if n not in ("head_dim", "query_scale")}
    options["inv_freq"] = np.array(options["inv_freq"], np.float64)
    if "axis_map" in options:
        options["axis_map"] = np.array(options["axis_map"], np.int64)
    return options


def _reference(case: Case, arguments: dict[str, Any], count: int = 1) -> tuple[Array, ...]:
    with prepared(REFERENCE):
        results = function_of(case)(**gathered(arguments))
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


# What q and k may each have of their own, by the argument.
PAIRS = ("positions", "rotary_start", "cos", "sin", "rows")
ROTATION = (
    "positions", "inv_freq", "cos", "sin", "rows", "layout", "pairing", "rotary_start", "axis_map",
    "scale", "inverse", "out_pairing",
)  # fmt: skip
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
MADE = tuple(f"{name}s" for name in SCALES)  # a result each, where scales are made


def _options(arguments: dict[str, Any], name: str) -> dict[str, Any]:
    """The rotation of one input alone."""
    i = int(name == "k")
    options = {n: arguments[n] for n in ROTATION if n in arguments}
    own = {n: options[n][i] for n in PAIRS if isinstance(options.get(n), tuple)}
    return options | own


def _turn(x: Array, options: dict[str, Any]) -> Array:
    """x rotated by the reference."""
    with prepared(REFERENCE):
        result: Array = pn.apply_rotary(x, **gathered(options))
    return result


def _magnitude(x: Array, options: dict[str, Any], dtype: Any, least: float) -> Array:
    """|a cos| + |b sin| of all pairs of |x|; least: what is added to a table's cosines and sines.

    Not a number where float32 cannot hold a factor: 0 times it is 0 for the reference, and NaN for
    what computes in float32. That is meant to be so.
    """
    options = options.copy()
    scale, inv_freq = float(abs(options.pop("scale", 1.0))), options.pop("inv_freq", None)
    if inv_freq is not None:
        options.pop("positions")
        options.pop("axis_map", None)
        layout = options.get("layout", "bhsd")
        tokens = x.shape[layout.index("t" if "t" in layout else "s")]
        options["cos"] = options["sin"] = np.full((tokens, inv_freq.shape[-1]), scale)
    else:
        for name in ("cos", "sin"):
            table = np.abs(options[name].astype(np.float64)) + least
            if least:  # rounded to the dtype of x
                table[table > LARGEST[str(dtype)]] = np.inf
            elif dtype != np.float64:
                table[table > LARGEST_FLOAT32] = np.inf
            options[name] = table
    nothing = np.zeros_like(options["cos"])
    parts = ({"sin": nothing}, {"cos": nothing})
    return sum(np.abs(_turn(np.abs(x), options | part)) for part in parts)  # type: ignore


def _underflow(x: Array, options: dict[str, Any], dtype: Any, least: float) -> Any:
    """What a rotation as written is off by because a step may be off by the least number."""
    if not least:
        return 0.0
    ones = {name: np.ones_like(options[name]) for name in ("cos", "sin") if name in options}
    return least * (1 + _magnitude(x, options | (ones or {"scale": 1.0}), dtype, 0.0))


def _still(x: Array, options: dict[str, Any]) -> Array:
    """Which dims are not turned."""
    pairs = options["cos" if "cos" in options else "inv_freq"].shape[-1]
    dims, start = np.arange(x.shape[-1]), options.get("rotary_start", 0)
    result: Array = (dims < start) | (dims >= start + 2 * pairs)
    return result


class Rotated(NamedTuple):
    """What an input has to become."""

    exact: Array
    magnitude: Array  # of its terms; what is not finite here is not compared
    more: Any  # that a result may be off by besides


def _rotated(arguments: dict[str, Any], name: str) -> Rotated:
    """An input rotated, perhaps after a norm: the formulas of core/calls/norms.py, in float64."""
    x, options = arguments[name], _options(arguments, name)
    wide, cut = x.astype(np.float64), _cut(options)
    # Rounded as written, each step may be off by half a unit, or by less than the least number.
    as_written = arguments.get("compute") == "as_written"
    steps = 8 * HALF_UNITS[str(x.dtype)] if as_written else 0.0
    least = 8 * LEAST[str(x.dtype)] if as_written else 0.0
    if not arguments["norm"]:
        magnitude = _magnitude(np.abs(wide), options, x.dtype, least)
        more = magnitude * (cut + steps) + _underflow(wide, options, x.dtype, least)
        return Rotated(_turn(wide, options), magnitude, more)
    layout = arguments.get("layout", "bhsd")
    heads = layout.index("h") if "h" in layout else None
    over = (x.ndim - 1,)
    if arguments.get("norm_over", "head") == "token" and heads is not None:
        over = (heads, x.ndim - 1)
    count = max(math.prod(x.shape[axis] for axis in over), 1)
    weight = arguments.get(f"{name}_weight")
    factor = largest = np.ones(1)
    if weight is not None:
        wide_weight, offset = weight.astype(np.float64), arguments.get("weight_offset", 0.0)
        shape = [1] * x.ndim
        shape[-1] = x.shape[-1]
        if wide_weight.size != x.shape[-1] and heads is not None:
            shape[heads] = x.shape[heads]
        factor = (wide_weight + offset).reshape(shape)
        largest = (np.abs(wide_weight) + abs(offset)).reshape(shape)
        if as_written:  # rounded to the dtype of x
            largest[largest > LARGEST[str(x.dtype)]] = np.nan

    def root(values: Array) -> Array:
        return 1 / np.sqrt(np.square(values).sum(axis=over, keepdims=True) / count + eps)

    eps, unit = arguments.get("eps", 1e-6), 2.0**-52 if x.dtype == np.float64 else 2.0**-24
    computed = COMPUTATION[str(x.dtype)] + cut + steps
    first = arguments.get("norm_first", True)
    y = wide if first else _turn(wide, options)
    terms = np.abs(wide) if first else _magnitude(wide, options, x.dtype, least)
    r = root(y)
    # Squares that a number of the computation can hold, and so no head of which all is nothing.
    small, large = (1e-140, 1e140) if x.dtype == np.float64 else (1e-17, 1e17)
    fits = (r > small) & (r < large) & (np.abs(y).max(axis=over, keepdims=True, initial=0) < large)
    if as_written:  # what overflows on the way is seen by the whole head
        most = np.abs(terms).max(axis=over, keepdims=True, initial=0)
        fits &= most < LARGEST[str(x.dtype)] / 4
    r = np.where(fits, r, np.nan)
    off = roundings(count) * unit
    if not first:  # a root of what is off itself, by more where terms cancel
        off = off + computed * np.sqrt(np.square(terms).sum(axis=over, keepdims=True) / count) * r
    # Products are no smaller than the least number, which a table may make large again.
    smallest = 2.0**-1074 if x.dtype == np.float64 else 2.0**-149
    normed, magnitude = y * r * factor, terms * r * largest
    lost = max(least, smallest) * (1 + largest)
    if x.dtype != np.float64:  # 0 times what float32 cannot hold is NaN there
        magnitude[np.maximum(magnitude, largest) > LARGEST_FLOAT32] = np.nan
    if not first:
        lost = lost + _underflow(wide, options, x.dtype, least) * r * largest
        return Rotated(normed, magnitude, magnitude * (computed + off + steps) + lost)
    lost = _magnitude(np.broadcast_to(lost, x.shape), options, x.dtype, least)
    lost = lost + _underflow(magnitude, options, x.dtype, least)
    magnitude = _magnitude(magnitude, options, x.dtype, least)
    return Rotated(_turn(normed, options), magnitude, magnitude * (cut + steps + off) + lost)


def _query_factors(scale: dict[str, Any], arguments: dict[str, Any]) -> Array:
    """The factors of queries by position with the axes of q: the formulas of Llama 4 and Qwen."""
    q, layout, positions = arguments["q"], arguments.get("layout", "bhsd"), arguments["positions"]
    tokens = layout.index("t" if "t" in layout else "s")
    own = positions[0] if isinstance(positions, tuple) else positions
    points = np.arange(q.shape[tokens]) if own is None else np.asarray(own)
    points = points.astype(np.float64)
    length = scale["original_max_position_embeddings"]
    if scale["type"] == "logn":
        factors = np.maximum(np.log(points + 1, where=points > -1, out=np.zeros_like(points)), 0)
        factors = np.maximum(factors / np.log(length), 1)
    else:
        steps = np.maximum(np.floor((points + scale["shift"]) / length), 0)
        factors = 1 + scale["beta"] * np.log1p(steps)
    shape = [1] * q.ndim
    shape[tokens] = factors.shape[-1]
    if factors.ndim == 2:
        shape[layout.index("b")] = factors.shape[0]
        if layout.index("b") > tokens:
            factors = factors.T
    return factors.reshape(shape)


def _check_queries(actual: Array, scale: dict[str, Any], arguments: dict[str, Any]) -> None:
    """q rotated, perhaps normed, times its factors."""
    assert actual.dtype == arguments["q"].dtype
    expected, factors = _rotated(arguments, "q"), _query_factors(scale, arguments)
    off = 4 * HALF_UNITS["float64" if actual.dtype == np.float64 else "float32"]
    pairs = isinstance(arguments["positions"], tuple)
    after = pairs or "g" in arguments.get("layout", "bhsd") or "out_pairing" in arguments
    if after or arguments.get("compute") == "as_written":  # multiplied when it has been rounded
        off += 4 * HALF_UNITS[str(actual.dtype)]
    exact, magnitude = expected.exact * factors, expected.magnitude * np.abs(factors)
    _assert_close(actual, exact, magnitude, expected.more * np.abs(factors) + off * magnitude)


def _check_one(actual: Array, arguments: dict[str, Any], name: str) -> None:
    """One of the inputs, rotated."""
    given, options = arguments[name], _options(arguments, name)
    assert actual.dtype == given.dtype, f"{actual.dtype}, not {given.dtype}"
    if not arguments["norm"]:
        still = _still(given, options)
        _assert_same(actual[..., still], given[..., still])
        if "cos" in options and arguments.get("compute") == "as_written":
            _assert_same(actual, _turn(given, options | {"compute": "as_written"}))
            return
    expected = _rotated(arguments, name)
    _assert_close(actual, expected.exact, expected.magnitude, expected.more)


def _check_rotary(case: Case, arguments: dict[str, Any], results: tuple[Array, ...]) -> None:
    arguments = _with_norm(case, arguments)
    names = ["x"] if "x" in arguments else ["q", "k"]
    if "keys" in arguments and not arguments.get("return_k"):
        names = ["q"]
    names = [name for name in names if arguments[name] is not None]  # one of q and k may be missing
    if "keys" in arguments:
        made = arguments.get("scales") or (None, None)
        names += [*CACHES, *(s for s, one in zip(MADE, made, strict=True) if one is not None)]
    assert len(results) == len(names), f"{len(results)} results, not {len(names)}"
    described = case.arguments.get("inv_freq")
    scale = described.arguments.get("query_scale") if isinstance(described, Described) else None
    for name, actual in zip(names, results, strict=True):
        if name in "xqk" and str(actual.dtype) in EIGHT_BITS:
            _check_rounded(case, arguments, name, actual)
        elif name == "q" and scale is not None:
            _check_queries(actual, scale, arguments)
        elif name not in (*CACHES, *MADE):
            _check_one(actual, arguments, name)
    if "keys" in arguments:
        _check_caches(case, arguments, dict(zip(names, results, strict=True)))


def _with_norm(case: Case, arguments: dict[str, Any]) -> dict[str, Any]:
    """Whether there is a norm, said by the arguments norm and eps, arrays for lists."""
    arrays = {n: np.asarray(v) for n, v in arguments.items() if isinstance(v, list)}
    for name, pair in arguments.items():
        if isinstance(pair, tuple) and any(isinstance(one, list) for one in pair):
            arrays[name] = tuple(np.asarray(one) if isinstance(one, list) else one for one in pair)
    arguments = arguments | arrays
    if "norm" in inspect.signature(function_of(case)).parameters:
        weighted = any(arguments.get(name) is not None for name in ("q_weight", "k_weight"))
        norm = weighted if arguments.get("norm") is None else bool(arguments["norm"])
    else:
        norm = "norm_over" in inspect.signature(function_of(case)).parameters
    return arguments | {"norm": norm}


def _check_caches(case: Case, arguments: dict[str, Any], results: dict[str, Array]) -> None:
    """What was written to slots, and that nothing else was."""
    k, v, keys, values = (arguments[name] for name in ("k", "v", *CACHES))
    # The reference says which head of which token goes where: it appends their numbers.
    numbered = np.arange(math.prod(k.shape[:-1]), dtype=np.float64).reshape(*k.shape[:-1], 1)
    places = np.full((*values.shape[:-1], 1), -1.0)
    nothing: dict[str, Any] = {
        "q": k.astype(np.float64),
        "norm": False,
        "q_weight": None,
        "k_weight": None,
        "return_k": False,
        **dict.fromkeys((*SCALES, "scales")),
    }
    nothing |= {"k": nothing["q"], "keys": keys.astype(np.float64)}
    _reference(case, arguments | nothing | {"v": numbered, "values": places})
    at = places[..., 0].astype(np.int64)
    there = at >= 0
    for name, before in (("keys", keys), ("values", values)):
        _assert_same(results[name][~there], before[~there])
    count = len(numbered.reshape(-1))
    of_eight_bits = [name for name in CACHES if str(arguments[name].dtype) in EIGHT_BITS]
    if of_eight_bits:
        wide = _unrounded(case, arguments)
    for name in of_eight_bits:
        _check_eight_bits(name, arguments, wide[name], there, results)
    if "values" not in of_eight_bits:
        _assert_same(results["values"][there], v.reshape(count, v.shape[-1])[at[there]])
    if "keys" in of_eight_bits:
        return
    written = results["keys"][there]
    if "k" in results:
        _assert_same(written, results["k"].reshape(count, k.shape[-1])[at[there]])
        return
    # As if it were returned, with what the cache has in the place of each token.
    expected = _rotated(arguments, "k")

    def rows(values: Any) -> Array:
        whole = np.broadcast_to(np.asarray(values, np.float64), k.shape)
        return whole.reshape(count, k.shape[-1])[at[there]]

    _assert_close(written, *(rows(part) for part in expected))


def _wide_inputs(arguments: dict[str, Any]) -> dict[str, Any]:
    """The inputs in float32, from which 8 bits are rounded."""
    inputs = {name: arguments[name] for name in "xqkv" if name in arguments}
    if arguments.get("compute") == "as_written":  # there all steps are rounded to the dtype of x
        return inputs
    return {
        name: x if x is None or x.dtype == np.float64 else x.astype(np.float32)
        for name, x in inputs.items()
    }


def _check_rounded(case: Case, arguments: dict[str, Any], name: str, actual: Array) -> None:
    """A result of 8 bits: that of float32, as this engine computes it, rounded once."""
    if "keys" in arguments:  # the same kernels, and more arguments
        return
    described = case.arguments.get("inv_freq")
    if isinstance(described, Described) and "query_scale" in described.arguments:
        return  # scales of other places: tests/encodings/rotary/test_eight_bit_results.py
    known = inspect.signature(function_of(case)).parameters
    inputs = _wide_inputs(arguments)
    taken = {n: v for n, v in (arguments | inputs).items() if n in known or n in ROTATION}
    results = function_of(case)(**gathered(taken))
    wide = results["qk".index(name)] if isinstance(results, tuple) else results
    _assert_same(
        actual.view(np.uint8), rounded_to_eight_bits(wide.astype(np.float32), actual.dtype)
    )


def _unrounded(case: Case, arguments: dict[str, Any]) -> dict[str, Array]:
    """What the engine that runs the checks appends to caches of float32."""
    inputs = _wide_inputs(arguments)
    wide = {name: np.zeros(arguments[name].shape, inputs["k"].dtype) for name in CACHES}
    others: dict[str, Any] = dict.fromkeys((*SCALES, "scales")) | {"return_k": False}
    function_of(case)(**gathered(arguments | inputs | wide | others))
    return {name: x.astype(np.float32) for name, x in wide.items()}


def _check_eight_bits(
    name: str, arguments: dict[str, Any], wide: Array, there: Array, results: dict[str, Array]
) -> None:
    """A cache of 8 bits: numbers of float32, divided by their scale and rounded once."""
    i = CACHES.index(name)
    dtype = results[name].dtype
    made = (arguments.get("scales") or (None, None))[i]
    if made is not None:
        scale = np.abs(wide).max(-1, initial=0) / np.float32(EIGHT_BITS[str(dtype)])
        _assert_same(results[MADE[i]], np.where(there, scale, made))
        divisor = np.where(scale == 0, np.float32(1), scale)
    else:
        scale = np.float32(1 if arguments.get(SCALES[i]) is None else arguments[SCALES[i]])
        layout = arguments.get("cache_layout", "bhsd")
        by_head = [-1 if letter == "h" else 1 for letter in layout[:-1]]
        divisor = np.broadcast_to(scale.reshape(by_head), there.shape)
    expected = rounded_to_eight_bits(wide[there] / divisor[there][:, None], dtype)
    _assert_same(results[name][there].view(np.uint8), expected)


def rounded_to_eight_bits(x: Array, dtype: Any) -> Array:
    """The bytes of float32 numbers in a format: to nearest even, saturating, NaN as 0x7f or 0."""
    most = EIGHT_BITS[str(dtype)]
    if dtype == np.int8:
        return np.nan_to_num(np.rint(np.clip(x, -128, most)), nan=0).astype(np.int8).view(np.uint8)
    result: Array = np.clip(x, -most, most).astype(dtype).view(np.uint8)
    result[np.isnan(x)] = 0x7F
    return result


def _check_bound(case: Case, arguments: dict[str, Any], results: tuple[Array, ...]) -> None:
    described = case.arguments["rotary"]
    scale = described.arguments.get("query_scale")
    common = _options_of(described) | {
        name: arguments[name] for name in ("layout", "inverse") if name in arguments
    }
    for i, (q, k, position) in enumerate(arguments["calls"]):
        if isinstance(position, int):
            position = from_first(position, q, arguments.get("layout", "bhsd"))
        call = common | {"positions": np.asarray(position), "norm": False}
        for name, x, actual in zip("qk", (q, k), results[2 * i : 2 * i + 2], strict=True):
            if name == "q" and scale is not None:
                _check_queries(actual, scale, call | {name: x})
            else:
                _check_one(actual, call | {name: x}, name)
            if arguments.get("inplace"):  # the next step may turn it again
                x[...] = actual


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


def _check_selective(case: Case, arguments: dict[str, Any], results: tuple[Array, ...]) -> None:
    names = [name for name in "qk" if arguments[name] is not None]
    wide = arguments | {name: arguments[name].astype(np.float64) for name in names}
    *exact, state = (one for one in _reference(case, wide) if one is not None)
    assert len(results) == len(names) + 1, f"{len(results)} results, not {len(names) + 1}"
    _assert_same(results[-1], state)
    pairs = arguments["steps"].shape[-1]
    for name, actual, expected in zip(names, results, exact, strict=False):
        x = arguments[name]
        assert actual.dtype == x.dtype, f"{actual.dtype}, not {x.dtype}"
        partner = _partners(arguments, x.shape[-1], pairs)
        still = partner == np.arange(x.shape[-1])
        _assert_same(actual[..., still], x[..., still])
        magnitude = np.abs(wide[name])
        magnitude = (magnitude + magnitude[..., partner]) * abs(arguments.get("scale", 1.0))
        _assert_close(actual[..., ~still], expected[..., ~still], magnitude[..., ~still])


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
    # A scale of 2^63 makes sums that a float16 cannot hold: infinite, as they have to be.
    held = magnitude < LARGEST[str(actual.dtype)] / 4
    actual, exact = np.where(held, actual, np.zeros_like(actual)), np.where(held, exact, 0.0)
    assert_sums(actual, exact, magnitude, additions)


_CHECKS = {
    **{verb.name: _check_rotary for verb in VERBS},
    "bound_steps": _check_bound,
    "rotary_backward": _check_backward,
    "rotary_tables": _check_rotary_tables,
    "selective_rotary_qk": _check_selective,
    "sinusoidal": _check_sinusoidal,
    "add_sinusoidal": _check_add_sinusoidal,
    "toeplitz_bias": _check_bias,
    "add_toeplitz_bias": _check_bits,
    "diagonal_sums": _check_sums,
    "relative_gather": _check_bits,
    "relative_scatter": _check_sums,
}
