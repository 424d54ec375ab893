"""Cases of rotations: what all verbs that rotate draw, each what it takes.

A `Verb` is a public function. Its inputs and its signature say what there is to draw; nothing here
is written for one of them alone, but for the steps of `Rotary.bind` and for gradients.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import posenc_native as pn
from fuzz.choices import Choices
from fuzz.memory import Operand
from fuzz.operands import FLOATS, INTEGERS, Builder

from .common import CACHES, Case, Described, Listed, finish, number, positions_of, result_dtype
from .eight_bits import cache_dtypes, scales_of_caches

# What an int stands for as positions of a verb: with False 0 .. p - 1, with True p .. p + s - 1.
INT_IS_FIRST = True
# Whether a verb takes a `Rotary` where frequencies are expected.
ROTARY_AS_FREQUENCIES = True

AXES = ("sd", "bsd", "hsd", "bhsd", "bhsd", "td", "htd")
GROUPED = ("gbshd", "gshd", "gthd")
CACHE_AXES = ("shd", "bshd", "pshd")


def _orders(axes: str) -> list[str]:
    return ["".join(order) + "d" for order in itertools.permutations(axes[:-1])]


LAYOUTS = {axes: _orders(axes) for axes in (*AXES, *GROUPED, *CACHE_AXES)}


@dataclass(frozen=True)
class Verb:
    """A function that rotates: its inputs in their order, and the keywords that it takes."""

    name: str
    inputs: tuple[str, ...]
    keywords: frozenset[str]

    @classmethod
    def of(cls, name: str, *inputs: str) -> Verb:
        """The public function of this name."""
        return cls(name, inputs, frozenset(inspect.signature(getattr(pn, name)).parameters))

    def takes(self, keyword: str) -> bool:
        """Whether it has this argument."""
        return keyword in self.keywords

    @property
    def norms(self) -> bool:
        """Whether it can norm: heads are along one axis then, and q and k have the same options."""
        return self.takes("norm_over")


VERBS = [
    Verb.of("apply_rotary", "x"),
    Verb.of("apply_rotary_qk", "q", "k"),
    Verb.of("norm_rotary_qk", "q", "k"),
    Verb.of("rotary_append", "q", "k", "v"),
]


# --- Heads


@dataclass
class Heads:
    """The inputs of a call: the sizes of each by letter, the operands, the number of pairs."""

    sizes: list[dict[str, int]]
    operands: list[Operand]
    pairs: int
    own_tokens: bool = False  # of q and of k

    def tokens(self, i: int = 0) -> int:
        """Of an input."""
        return self.sizes[i].get("t", self.sizes[i].get("s", 0))

    def rows(self, builder: Builder, i: int = 0) -> list[int]:
        """A shape of numbers by token: [s], [1, s] or [b, s]."""
        kind = builder.choices.below(5) if "b" in self.sizes[i] else 0
        before = [] if kind < 2 else [1] if kind == 2 else [self.sizes[i]["b"]]
        return [*before, self.tokens(i)]

    def heads(self, i: int) -> int:
        """Of an input."""
        return self.sizes[i].get("h", 1) * self.sizes[i].get("g", 1)

    def common_heads(self, builder: Builder) -> int:
        """As many as all that are turned have, or 1; now and then some are of another number."""
        heads = {self.heads(i) for i in range(len(self.sizes[:2]))}
        if len(heads) > 1:
            if builder.choices.chance(80):
                return 1
            builder.faults.append("inv_freq: heads")
        return 1 if builder.choices.chance(20) else max(heads)


def _turned(builder: Builder, arguments: dict[str, Any], dims: Sequence[int], more: bool) -> int:
    """Pairs, for heads of one width or of two; writes rotary_start, pairing and out_pairing."""
    choices = builder.choices
    most = min(dims) // 2
    pairs = most if choices.chance(50) else choices.integer(0, most)
    starts = tuple(choices.integer(0, dim - 2 * pairs) for dim in dims)
    if len(dims) > 1:
        arguments["rotary_start"] = starts
    elif choices.chance(40):
        arguments["rotary_start"] = starts[0]
    if builder.fault(1, "rotary_start"):
        dim = dims[0]
        arguments["rotary_start"] = choices.one_of((-1, dim + 1, dim - 2 * pairs + 1, 2**63 - 1))
    names = ["pairing", "out_pairing"] if more and choices.chance(25) else ["pairing"]
    for name in names:
        kind = choices.weighted(half=4, interleaved=4, block=2)
        if kind == "block" and pairs:
            arguments[name] = choices.one_of([2 * b for b in range(1, pairs + 1) if pairs % b == 0])
        else:
            arguments[name] = "interleaved" if kind == "interleaved" else "half"
        if builder.fault(0.7, name):
            arguments[name] = choices.one_of((0, 3, -2, 2 * pairs + 2, "full", 2**62, 4))
    return pairs


def _heads(builder: Builder, arguments: dict[str, Any], verb: Verb, groups: bool = True) -> Heads:
    """x, or q and k, and v; writes layout and which dims are turned."""
    choices = builder.choices
    grouped = (
        groups and choices.chance(10) and (not verb.norms or builder.fault(10, "layout: groups"))
    )
    layout = choices.one_of(LAYOUTS[choices.one_of(GROUPED if grouped else AXES)])
    letters = layout[:-1]
    # Rows of whole vectors have kernels of their own, if they are normed.
    wide = choices.one_of((32, 64, 128)) if verb.norms and choices.chance(20) else 0
    lengths = builder.sizes(len(letters), max(builder.elements // wide, 12) if wide else None)
    shared = dict(zip(letters, lengths, strict=True))
    dim = wide or min(builder.size(), max(builder.elements // max(math.prod(lengths), 1), 2))
    pair = len(verb.inputs) == 2 and not verb.norms
    own_tokens, own_starts = pair and choices.chance(15), pair and choices.chance(15)
    sizes = []
    for name in verb.inputs:
        one = shared | {"d": dim}
        if name == "k":
            for letter in set(letters) & set("gh" + "bst" * own_tokens):
                one[letter] = builder.size() % 9
            if math.prod(one.values()) > 2 * builder.elements:
                one |= dict.fromkeys(set(letters) & set("gh"), 1)
        if name == "v":
            one = sizes[1].copy()
        if (name == "k" and own_starts) or (name == "v" and choices.chance(40)):
            one["d"] = builder.size() % 40
        sizes.append(one)
    dims = [one["d"] for one in sizes[:2]] if own_starts else [dim]
    pairs = _turned(builder, arguments, dims, verb.takes("out_pairing"))
    if layout != "bhsd" or choices.chance(50):
        arguments["layout"] = layout
    if builder.fault(0.7, "layout"):
        arguments["layout"] = choices.one_of(
            ("", "d", "bhd", "sdb", "bhtd", "ssd", "xd", layout[::-1], "g" + layout)
        )
    dtype = choices.one_of(FLOATS)
    shapes = [[one[letter] for letter in layout] for one in sizes]
    operands = None
    if len(shapes) > 1 and choices.chance(25):
        axis = layout.index("h") if "h" in layout else choices.below(len(layout))
        operands = builder.apart(verb.inputs, shapes, dtype, axis)
    if operands is None:
        operands = []
        for name, shape in zip(verb.inputs, shapes, strict=True):
            own = dtype
            if operands and builder.fault(0.7, f"{name}: dtype"):
                own = choices.one_of(FLOATS)
            operands.append(builder.operand(name, shape, own, builder.numbers()))
    return Heads(sizes, operands, pairs, own_tokens)


# --- Angles


FREQUENCIES = [10000.0 ** (-i / 64) for i in range(64)]
ODD_FREQUENCIES = (
    0.0, -0.0, -0.5, 1.0, 2.0, 2.0000000001, 6.283185307179586, 100.25, 1e9, -1e15, 2.0**62, 9e18,
    -9.2e18, 1e-10, 2.0**-63, 2.0**-64, 1e-30, 1e-40, 2.0**-62 * 3, 3.3e-19,
)  # fmt: skip


def _frequencies(builder: Builder, count: int, finite: bool = False) -> list[float]:
    choices = builder.choices
    if choices.chance(80):
        first = choices.below(64)
        values = [FREQUENCIES[(first + i) % 64] for i in range(count)]
    else:
        values = [
            choices.one_of(ODD_FREQUENCIES) if choices.chance(50) else choices.one_of(FREQUENCIES)
            for _ in range(count)
        ]
    if count and not finite and builder.fault(0.7, "inv_freq: value"):
        bad = (float("nan"), float("inf"), 2.0**63, -(2.0**63), 1e30)
        values[choices.below(count)] = choices.one_of(bad)
    return values


def _axis_map(builder: Builder, pairs: int, axes: int) -> Operand:
    choices = builder.choices
    dtype = choices.one_of(INTEGERS)
    values = [choices.below(axes) for _ in range(pairs)]
    if values and builder.fault(1.5, "axis_map: value"):
        values[choices.below(pairs)] = choices.one_of((axes, -1 if dtype[0] == "i" else 127, 100))
    return builder.operand("axis_map", [pairs], dtype, values)


def _integers(
    builder: Builder, name: str, shape: Sequence[int], values: list[int], bad: Sequence[int]
) -> Operand | Listed:
    """Integers of any dtype that holds them, or a list; now and then a wrong one."""
    choices = builder.choices
    limits = {n: (-(2 ** (8 * s - 1)), 2 ** (8 * s - 1) - 1) for n, s in _SIZES.items()}
    limits |= {f"u{n}": (0, 2 ** (8 * s) - 1) for n, s in _SIZES.items()}

    def holds(dtype: str, values: Sequence[int]) -> bool:
        return all(limits[dtype][0] <= value <= limits[dtype][1] for value in values)

    dtype = choices.one_of([dtype for dtype in INTEGERS if holds(dtype, values)])
    bad = [value for value in (*bad, *limits[dtype]) if holds(dtype, [value])]
    if values and builder.fault(2, f"{name}: value"):
        values[choices.below(len(values))] = choices.one_of(bad)
    # Where elements share memory, not all have their values.
    operand = builder.operand(name, shape, dtype, values, output=name == "slots")
    return Listed(operand) if values and choices.chance(10) else operand


_SIZES = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}


def _positions(
    builder: Builder, heads: Heads, i: int, axes: Sequence[int], simple: bool = True
) -> Any:
    """Positions of an input: None, an int, a list or an array. simple: the first two may be."""
    choices = builder.choices
    kind = choices.weighted(none=20, count=6, listed=8, array=66)
    if simple and not axes and kind == "none":
        return None
    if simple and not axes and kind == "count":
        if INT_IS_FIRST:
            return choices.one_of((0, 1, 100, -3, 2**40))
        return heads.tokens(i)
    positions = positions_of(builder, [*axes, *heads.rows(builder, i)])
    # NumPy reads a list of numbers on both sides of 2^63 as float64.
    lists = kind == "listed" and positions.dtype != "uint64" and 0 not in positions.shape
    return Listed(positions) if lists else positions


def _by_positions(
    builder: Builder, arguments: dict[str, Any], heads: Heads, verb: Verb, by_head: bool = True,
    short: bool = True,
) -> None:  # fmt: skip
    """positions, inv_freq, axis_map, scale. short: what only public functions take may be drawn."""
    choices, pairs = builder.choices, heads.pairs
    kind = choices.weighted(P=60, HP=12 * by_head, AHP=12 * by_head, axis_map=16)
    axes = choices.integer(1, 4)
    before = [axes] if kind in ("AHP", "axis_map") else []
    if heads.own_tokens:
        arguments["positions"] = (
            _positions(builder, heads, 0, before, simple=choices.chance(20)),
            _positions(builder, heads, 1, before, simple=choices.chance(20)),
        )
        if all(isinstance(one, int) for one in arguments["positions"]):  # two tokens, then
            arguments["positions"] = (None, None)
    else:
        arguments["positions"] = _positions(builder, heads, 0, before, simple=short)
    shape = [*before, heads.common_heads(builder), pairs] if "H" in kind else [pairs]
    if kind == "axis_map" and by_head and choices.chance(20):
        shape = [heads.common_heads(builder), pairs]
    values = _frequencies(builder, math.prod(shape))
    dtype = choices.one_of(("float32", "float64"))
    arguments["inv_freq"] = builder.operand("inv_freq", shape, dtype, values)
    if kind == "axis_map":
        arguments["axis_map"] = _axis_map(builder, pairs, axes)
    if choices.chance(25):
        arguments["scale"] = number(builder, "scale", (0.5, 1.25, -2.0, 0.0, 1, 1e-3, 100.0))
    # A Rotary has one rotary_start, for q and k, and a list of no pairs says nothing of axes.
    fits = len(shape) == 1 and not isinstance(arguments.get("rotary_start"), tuple)
    fits = fits and (pairs > 0 or "axis_map" not in arguments)
    fits = fits and not builder.faults  # what a Rotary refuses, no verb sees
    if short and ROTARY_AS_FREQUENCIES and fits and choices.chance(25):
        arguments["inv_freq"] = _described(builder, arguments, heads)
        if "q" in verb.inputs and choices.chance(40):
            _scale_queries(choices, arguments["inv_freq"].arguments)
    if arguments.get("compute") == "as_written" and len(shape) > 1:
        builder.faults.append("compute: frequencies by head")


def _described(builder: Builder, arguments: dict[str, Any], heads: Heads) -> Described:
    """A `Rotary` in the place of the options that it has."""
    given = {n: arguments.pop(n) for n in _OF_ROTARY if n in arguments}
    if type(given.get("scale", 1.0)) not in (int, float):
        del given["scale"]
    if "axis_map" in given:
        given["axis_map"] = given["axis_map"].fill
        if not (given["axis_map"] and isinstance(given["axis_map"], list)):
            del given["axis_map"]
    frequencies = _frequencies(builder, heads.pairs, finite=True)
    return Described({"head_dim": heads.sizes[0]["d"], **given, "inv_freq": frequencies})


def _scale_queries(choices: Choices, rotary: dict[str, Any]) -> None:
    """A factor of queries by position, where no axis_map leaves open which position it is."""
    if "axis_map" in rotary:
        return
    length = choices.one_of((2, 7, 100, 8192, 1.5, 1e9))
    scale = {"type": "logn", "original_max_position_embeddings": length}
    if choices.chance(60):
        scale["type"] = "llama4"
        scale["beta"] = choices.one_of((0.1, 1, -0.5, 3.0))
        scale["shift"] = choices.one_of((0.0, 1.0, -2.5))
    rotary["query_scale"] = scale


_OF_ROTARY = ("pairing", "rotary_start", "axis_map", "scale", "inv_freq")


def _by_tables(builder: Builder, arguments: dict[str, Any], heads: Heads, verb: Verb) -> None:
    """cos, sin, rows, axis_map: the parts of `pn.Tables`, as arguments (`gathered`)."""
    choices, pairs = builder.choices, heads.pairs
    kind = choices.weighted(tokens=55, heads=15, rows=15, axis_map=15)
    dtype, axes, count = choices.one_of(FLOATS), choices.integer(1, 4), choices.integer(1, 9)
    own = [0, 1] if heads.own_tokens else [0]
    by_head = kind == "heads" and "h" in heads.sizes[0]
    common = heads.common_heads(builder) if by_head else 1
    tables: dict[str, list[Any]] = {"cos": [], "sin": [], "rows": []}
    for i in own:
        shape = [count, pairs]
        if kind != "rows":
            shape = [*heads.rows(builder, i), pairs]
            if by_head:
                # An axis b, if the layout has one.
                first = [heads.sizes[i].get("b", 1) if choices.chance(70) else 1]
                shape = [*(first if "b" in heads.sizes[i] else []), common, *shape[-2:]]
            shape = [axes, *shape] if kind == "axis_map" else shape
        for name in ("cos", "sin"):
            tables[name].append(builder.operand(name, shape, dtype, builder.numbers()))
        if kind == "rows":
            rows = heads.rows(builder, i)
            values = [choices.below(count) for _ in range(math.prod(rows))]
            tables["rows"].append(_integers(builder, "rows", rows, values, (count, -1, 2**40)))
    if own == [0, 1] and kind == "rows" and choices.chance(60):  # rows of the same tables
        tables["cos"], tables["sin"] = tables["cos"][:1], tables["sin"][:1]
    for name, each in tables.items():
        if each:
            arguments[name] = tuple(each) if len(each) > 1 else each[0]
    if kind == "axis_map":
        arguments["axis_map"] = _axis_map(builder, pairs, axes)


# --- Norms and caches


def _norm(builder: Builder, arguments: dict[str, Any], heads: Heads, verb: Verb) -> None:
    """Weights and how they are multiplied."""
    choices = builder.choices
    over = choices.one_of(("head", "head", "token"))
    if over == "token" or choices.chance(30):
        arguments["norm_over"] = over
    if builder.fault(0.7, "norm_over"):
        arguments["norm_over"] = choices.one_of(("", "heads", None, 1))
    for i, name in enumerate(("q_weight", "k_weight")):
        if choices.chance(60):
            number_of, dim = heads.heads(i), heads.sizes[i]["d"]
            shapes = {"head": ([dim], [number_of, dim]), "token": ([number_of, dim],)}[over]
            shape = choices.one_of((*shapes, [number_of * dim]) if over == "token" else shapes)
            arguments[name] = builder.operand(name, shape, choices.one_of(FLOATS))
    if verb.takes("norm") and choices.chance(40):
        weighted = "q_weight" in arguments or "k_weight" in arguments
        arguments["norm"] = True if weighted else choices.chance(50)
        if weighted and builder.fault(3, "norm"):
            arguments["norm"] = False
    if choices.chance(30):
        arguments["eps"] = number(builder, "eps", (0.0, 1e-5, 1.0, 1e-12))
    if builder.fault(0.5, "eps"):
        arguments["eps"] = -1e-6
    if choices.chance(30):
        arguments["weight_offset"] = number(builder, "weight_offset", (1.0, -0.5, 0.0, 1))
    if choices.chance(30):
        arguments["norm_first"] = choices.chance(40)


def _cache(builder: Builder, arguments: dict[str, Any], heads: Heads, verb: Verb) -> None:
    """keys, values, slots, scales."""
    choices = builder.choices
    layout = choices.one_of(LAYOUTS[choices.one_of(CACHE_AXES)])
    if layout != "bhsd" or choices.chance(50):
        arguments["cache_layout"] = layout
    if builder.fault(0.7, "cache_layout"):
        arguments["cache_layout"] = choices.one_of(("", "bpshd", "sd", "thd", "hds", None))
    rows = heads.rows(builder, 1)
    batch, tokens = heads.sizes[1].get("b", 1), heads.tokens(1)
    if "b" not in layout and batch > 1:
        rows = [batch, tokens]  # no slot twice
    apart = "b" in layout and len(rows) == 2
    needed = tokens if apart else math.prod(rows)
    page = choices.integer(1, 6)
    spare = choices.below(4)
    if builder.elements > 2000:  # a region holds no more
        page, spare = 1, 0
    sizes = {"b": batch, "h": heads.heads(1), "p": -(-needed // page) + spare, "s": needed + spare}
    slots = sizes["s"]
    if "p" in layout:
        sizes["s"], slots = page, sizes["p"] * page
    values: list[int] = []
    for _ in range(rows[0] if apart else 1):
        values += choices.shuffled(range(slots))[:needed]
    if choices.chance(40):
        values = [-1 if choices.chance(30) else value for value in values]
    bad = (slots, -2, values[0] if values else 0, slots + 2**32, 2**40)
    arguments["slots"] = _integers(builder, "slots", rows, values, bad)
    dtypes = cache_dtypes(builder, heads.operands[1].dtype)
    for name, i, dtype in zip(CACHES, (1, 2), dtypes, strict=True):
        shape = [(sizes | {"d": heads.sizes[i]["d"]})[letter] for letter in layout]
        arguments[name] = builder.operand(name, shape, dtype, builder.numbers(), output=True)
        if builder._repeats(arguments[name]):
            builder.faults.append(f"{name}: elements may share memory")
    scales_of_caches(builder, arguments, dtypes, shape[:-1], sizes["h"])
    if choices.chance(50):
        arguments["return_k"] = choices.chance(80)


# --- Calls


def _inplace(builder: Builder, arguments: dict[str, Any], operands: Sequence[Operand]) -> None:
    arguments["inplace"] = builder.choices.chance(80)
    may_not = any(builder._repeats(operand) or operand.read_only for operand in operands)
    if arguments["inplace"] and may_not:
        builder.faults.append("inplace, where elements share memory")


def _results(builder: Builder, arguments: dict[str, Any], heads: Heads, verb: Verb) -> None:
    """out and inplace: for one result, or for a pair of them, each where it is drawn."""
    choices = builder.choices
    count = len(verb.inputs[:2])
    if verb.takes("return_k") and not arguments.get("return_k"):
        count = 1
    inputs = heads.operands[:count]
    if not verb.takes("inplace"):
        out = builder.out(inputs[0], inputs[0].shape, inputs[0].dtype, replaceable=True)
        if out is not None:
            arguments["out"] = out
        return
    kind = choices.weighted(new=35, inplace=30, out=35)
    if kind == "inplace":
        _inplace(builder, arguments, inputs)
    if kind != "out":
        return
    outs = [
        builder.out(
            x, x.shape, x.dtype, replaceable=True,
            name="out" if count == 1 else f"out_{x.name}", needed=True,
        )
        for x in inputs
    ]  # fmt: skip
    if count == 2 and builder.fault(3, "out: of the other, or twice the same"):
        outs = choices.one_of((outs[::-1], [outs[0], outs[0]], inputs[::-1]))
    arguments["out"] = tuple(outs) if count > 1 else outs[0]
    if builder.fault(0.7, "out and inplace"):
        arguments["inplace"] = True


def _without_one(builder: Builder, arguments: dict[str, Any], heads: Heads, verb: Verb) -> None:
    """q or k may be None."""
    i = 0 if "v" in verb.inputs else builder.choices.below(2)
    arguments[verb.inputs[i]] = None
    if verb.norms and "h" not in arguments.get("layout", "bhsd"):
        builder.faults.append("layout: without heads one cannot be missing")
    out = arguments.get("out")
    if isinstance(out, tuple):
        arguments["out"] = tuple(None if j == i else one for j, one in enumerate(out))
    elif out is not None:
        del arguments["out"]  # of the queries that there are not


def rotation(builder: Builder, verb: Verb) -> Case:
    """A call of a verb."""
    choices, arguments = builder.choices, dict[str, Any]()
    heads = _heads(builder, arguments, verb)
    arguments |= dict(zip(verb.inputs, heads.operands, strict=True))
    by_tables = choices.chance(50)
    rounds = by_tables or verb.takes("compute")
    if rounds and choices.chance(50):
        arguments["compute"] = "as_written"
    if rounds and builder.fault(0.7, "compute"):
        arguments["compute"] = choices.one_of(("float64", "", None, 1))
    (_by_tables if by_tables else _by_positions)(builder, arguments, heads, verb)
    if verb.takes("inverse") and choices.chance(25):
        arguments["inverse"] = choices.chance(50)
    if verb.norms:
        _norm(builder, arguments, heads, verb)
    if "v" in verb.inputs:
        _cache(builder, arguments, heads, verb)
    _results(builder, arguments, heads, verb)
    if verb.takes("contiguous") and choices.chance(10):
        arguments["contiguous"] = choices.chance(80)
        if arguments["contiguous"] and (arguments.get("inplace") or "out" in arguments):
            builder.faults.append("contiguous, where memory is given")
    if len(verb.inputs) > 1 and choices.chance(6):
        _without_one(builder, arguments, heads, verb)
    return finish(builder, verb.name, arguments, verb.inputs[:2])


def bound_steps(builder: Builder) -> Case:
    """`Rotary.bind`, and steps of the same shape and of others."""
    choices, arguments = builder.choices, dict[str, Any]()
    verb = VERBS[1]
    layout, heads = _bindable(builder, arguments, verb)
    _by_positions(builder, arguments, heads, verb, by_head=False)
    first, calls = arguments["positions"], []
    given = arguments.pop("inv_freq") if _is_described(arguments) else None
    rotary = given or _described(builder, arguments, heads)
    first = first.operand if isinstance(first, Listed) else first
    axes = list(first.shape[:1]) if "axis_map" in rotary.arguments else []
    q, k = heads.operands
    inplace = choices.chance(50)  # each step has memory of its own then
    for i in range(choices.integer(1, 4)):
        step = heads
        if i == 0 or (not inplace and choices.chance(40)):
            pair = [q, k]
        elif choices.chance(50):
            pair = [builder.again(x, f"{x.name}{i}") for x in (q, k)]
        else:
            step = _others(builder, heads, layout, i)
            pair = step.operands
        position: Any = choices.one_of((0, 1, 77, -5, 2**40, 2**62))
        if axes or choices.chance(50):
            position = _positions(builder, step, 0, axes, simple=False)
        calls.append((*pair, position))
    del arguments["positions"]
    if verb.takes("inverse") and choices.chance(25):
        arguments["inverse"] = choices.chance(50)
    if inplace:
        _inplace(builder, arguments, [x for call in calls for x in call[:2]])
        if builder.faults and len(calls) > 1:  # a call that is refused has written nothing
            arguments["inplace"] = False
    arguments |= {"rotary": rotary, "q": q, "k": k, "calls": tuple(calls)}
    case = Case("bound_steps", arguments, builder.layout, builder.faults)
    if arguments.get("inplace"):
        case.returned = [x for call in calls for x in call[:2]]
        case.written = case.returned
    case.twin = {"bound": False}
    return case


def _bindable(
    builder: Builder, arguments: dict[str, Any], verb: Verb, groups: bool = True
) -> tuple[str, Heads]:
    """q and k of the same tokens, slices and pairs, as a `Rotary` describes them."""
    while True:
        arguments.clear()
        before = len(builder.layout.windows), len(builder.layout.operands), len(builder.faults)
        heads = _heads(builder, arguments, verb, groups)
        own = heads.own_tokens or isinstance(arguments.get("rotary_start"), tuple)
        if len(builder.faults) == before[2] and not own:
            arguments.pop("out_pairing", None)
            return arguments.get("layout", "bhsd"), heads
        del builder.layout.windows[before[0] :]
        del builder.layout.operands[before[1] :]
        del builder.faults[before[2] :]


def _others(builder: Builder, heads: Heads, layout: str, i: int) -> Heads:
    """q and k of another shape, dtype or memory layout."""
    sizes = [one.copy() for one in heads.sizes]
    for letter in set(layout) - {"d"}:
        if builder.choices.chance(40):
            length = builder.choices.integer(0, 5)
            for one in sizes:
                one[letter] = length
    dtype = (
        heads.operands[0].dtype if builder.choices.chance(60) else builder.choices.one_of(FLOATS)
    )
    operands = [
        builder.operand(f"{name}{i}", [one[letter] for letter in layout], dtype, builder.numbers())
        for name, one in zip("qk", sizes, strict=True)
    ]
    return Heads(sizes, operands, heads.pairs)


def _is_described(arguments: dict[str, Any]) -> bool:
    """Whether a `Rotary` stands in the place of frequencies."""
    return isinstance(arguments.get("inv_freq"), Described)


def rotary_backward(builder: Builder) -> Case:
    """The gradients of a rotation, of the module: not public, but what autograd calls."""
    arguments: dict[str, Any] = {}
    verb = VERBS[0] if builder.choices.chance(60) else VERBS[1]
    _, heads = _bindable(builder, arguments, verb, groups=False)
    given = heads.operands
    _by_positions(builder, arguments, heads, verb, short=False)
    if isinstance(arguments["positions"], Listed):
        arguments["positions"] = arguments["positions"].operand
    if builder.choices.chance(25):
        arguments["inverse"] = builder.choices.chance(50)
    grads = [
        builder.operand("grad", operand.shape, operand.dtype, builder.numbers())
        for operand in given
    ]
    arguments |= {"grads": tuple(grads), "inputs": tuple(given)}
    arguments["of_positions"] = builder.choices.chance(50)
    return Case("rotary_backward", arguments, builder.layout, builder.faults)


def rotary_tables(builder: Builder) -> Case:
    """Cosines and sines."""
    choices, arguments = builder.choices, dict[str, Any]()
    pairs = builder.size()
    rows = builder.sizes(choices.integer(0, 4), max(builder.elements // max(pairs, 1), 1))
    by_axis = choices.chance(30)
    axes = choices.integer(1, 4)
    if not by_axis and choices.chance(20):
        arguments["positions"] = builder.size()
    else:
        arguments["positions"] = positions_of(builder, [axes, *rows] if by_axis else rows)
    dtype = choices.one_of(("float32", "float64"))
    values = _frequencies(builder, pairs)
    arguments["inv_freq"] = builder.operand("inv_freq", [pairs], dtype, values)
    if by_axis:
        arguments["axis_map"] = _axis_map(builder, pairs, axes)
    if choices.chance(25):
        arguments["scale"] = number(builder, "scale", (0.5, 1.25, -2.0, 0.0, 1, 1e-3, 100.0))
    result_dtype(builder, arguments)
    return finish(builder, "rotary_tables", arguments)
