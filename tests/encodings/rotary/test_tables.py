"""`Tables` where frequencies stand: one value for all functions that rotate."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import pytest
from oracle import assert_same_bits
from rotating import INPUTS

import posenc_native as pn

B, S, D = 2, 5, 8
ROPE = pn.Rotary(D)
COS, SIN = ROPE.tables(S)
TABLES = pn.Tables(COS, SIN)


def heads(count: int, seed: int, tokens: int = S) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((B, count, tokens, D)).astype(np.float32)


GIVEN = heads(4, 0), heads(2, 1), heads(2, 2)


def rotated(verb: str, positions: Any, angles: Any, of: Any = np.asarray, **options: Any) -> Any:
    """What a function returns, and what an append writes, in one tuple."""
    inputs, cache = [of(x) for x in GIVEN[: INPUTS[verb]]], []
    if verb == "rotary_append":
        cache = [of(np.zeros((B, 2, S + 1, D), np.float32)) for _ in range(2)]
        options["return_k"] = True
    slots = [of(np.arange(S))] if cache else []
    results = getattr(pn, verb)(*inputs, positions, angles, *cache, *slots, **options)
    return (*(results if isinstance(results, tuple) else (results,)), *cache)


each_verb = pytest.mark.parametrize("verb", INPUTS)


@pytest.fixture
def tensor() -> Any:
    return pytest.importorskip("torch").from_numpy


@each_verb
def test_arrays_are_rotated_as_by_positions(verb, native):
    for ours, expected in zip(rotated(verb, None, TABLES), rotated(verb, None, ROPE), strict=True):
        assert_same_bits(ours, expected)


@each_verb
def test_tensors_are_rotated_as_arrays(verb, native, tensor):
    tables = pn.Tables(tensor(COS), tensor(SIN))
    for ours, expected in zip(
        rotated(verb, None, tables, tensor), rotated(verb, None, TABLES), strict=True
    ):
        assert_same_bits(ours.numpy(), expected)


# --- The fast path


@pytest.fixture
def no_general_path(native, monkeypatch):
    def refuse(call: Any, *_: Any) -> None:
        raise AssertionError(f"{call.function} took the general path")

    for module in ("apply", "norm", "append"):
        verbs = importlib.import_module(f"posenc_native.encodings.rotary.{module}")
        monkeypatch.setattr(verbs, "run", refuse)


OPTIONS = {
    "plain": TABLES,
    "rows": pn.Tables(COS, SIN, np.arange(S)[::-1].copy()),
    "axes": pn.Tables(np.stack([COS, SIN]), np.stack([SIN, COS]), axis_map=np.array([0, 1, 1, 0])),
    "as written": pn.Tables(COS, SIN, compute="as_written"),
}


@pytest.mark.usefixtures("no_general_path")
@pytest.mark.parametrize("name", OPTIONS)
@each_verb
def test_arrays_and_tensors_take_the_fast_path(verb, name):
    rotated(verb, None, OPTIONS[name])
    torch = pytest.importorskip("torch")
    door = pytest.importorskip("posenc_native.engines.torch.door")
    if door.IS_OPEN:
        as_tensors = (
            torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in OPTIONS[name]
        )
        rotated(verb, None, pn.Tables(*as_tensors), torch.from_numpy)


@pytest.mark.usefixtures("no_general_path")
def test_pairs_take_the_fast_path():
    q, k = heads(4, 0), heads(2, 1, 7)
    cos, sin = ROPE.tables(7)
    for tables in (
        pn.Tables((COS, cos), (SIN, sin)),
        pn.Tables(cos, sin, (np.arange(S), np.arange(7))),
    ):
        of_q, of_k = pn.apply_rotary_qk(q, k, None, tables)
        assert_same_bits(of_q, pn.apply_rotary(q, None, TABLES))
        assert_same_bits(of_k, pn.apply_rotary(k, None, pn.Tables(cos, sin)))


@pytest.mark.parametrize("of", ["arrays", "tensors"])
def test_a_pair_where_q_or_k_is_none(of, backend):
    """k alone is rotated by its own tables, not by those of q."""
    make = np.asarray if of == "arrays" else pytest.importorskip("torch").from_numpy
    q, k = heads(4, 0), heads(2, 1, 7)
    cos, sin = ROPE.tables(7)
    tables = pn.Tables((make(COS), make(cos)), (make(SIN), make(sin)))
    expected = pn.apply_rotary_qk(make(q), make(k), None, tables)
    _, of_k = pn.apply_rotary_qk(None, make(k), None, tables)
    of_q, _ = pn.apply_rotary_qk(make(q), None, None, tables)
    for ours, one in zip((of_q, of_k), expected, strict=True):
        assert_same_bits(np.asarray(ours), np.asarray(one))


# --- Bad calls


BESIDE = {
    "positions": (np.arange(S), r"int64 \[5\]|ndarray \[5\]"),
    "axis_map": ([0, 0, 1, 1], r"\[0, 0, 1, 1\]"),
    "scale": (2.0, "2.0"),
}


@pytest.mark.parametrize("option", BESIDE)
@each_verb
def test_what_tables_stand_for_is_not_given_beside_them(verb, option, backend):
    value, shown = BESIDE[option]
    options = {option: value}
    positions = options.pop("positions", None)
    message = f"{verb}: {option}: expected None beside Tables: the tables stand for it, got "
    with pytest.raises(ValueError, match=f"^{message}({shown})"):
        rotated(verb, positions, TABLES, **options)


@pytest.mark.parametrize("verb", ["norm_rotary_qk", "rotary_append"])
def test_the_rounding_is_that_of_the_tables(verb, backend):
    message = rf"{verb}: compute: expected None beside Tables: Tables\(cos, sin, compute=\.\.\.\)"
    with pytest.raises(ValueError, match=f"^{message} stand for it, got 'as_written'"):
        rotated(verb, None, TABLES, compute="as_written")


def test_a_scale_of_1_is_none(backend):
    (expected,) = rotated("apply_rotary", None, TABLES)
    assert_same_bits(*rotated("apply_rotary", None, TABLES, scale=1.0), expected)


PAIRS = {
    "cos": pn.Tables((COS, COS), (SIN, SIN)),
    "rows": pn.Tables(COS, SIN, (np.arange(S), np.arange(S))),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("verb", ["apply_rotary", "norm_rotary_qk", "rotary_append"])
@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_pairs_are_for_two_that_are_rotated(kind, verb, name, backend):
    of: Any = np.asarray if kind == "arrays" else pytest.importorskip("torch").from_numpy
    tables = pn.Tables(
        *(tuple(map(of, x)) if isinstance(x, tuple) else of(x) for x in PAIRS[name][:2]),
        PAIRS[name].rows and tuple(map(of, PAIRS[name].rows)),
    )
    message = rf"^{verb}: {name}: expected one .*for q and k \(apply_rotary_qk takes pairs\)"
    with pytest.raises(TypeError, match=f"{message}, got a pair"):
        rotated(verb, None, tables, of)


@pytest.mark.parametrize(("name", "other"), [("cos", "sin"), ("sin", "cos")])
@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_cos_and_sin_are_pairs_together(kind, name, other, backend):
    of: Any = np.asarray if kind == "arrays" else pytest.importorskip("torch").from_numpy
    tables = TABLES._replace(**{name: of(COS), other: (of(COS), of(SIN))})
    with pytest.raises(TypeError, match=f"^apply_rotary_qk: {name}: expected a pair"):
        rotated("apply_rotary_qk", None, tables, of)


def test_an_operator_takes_half_a_pair(tensor):
    """Below the functions, which refuse it: what k lacks is that of q, and no memory of nobody."""
    torch = pytest.importorskip("torch")
    importlib.import_module("posenc_native.engines.torch.library")
    operator = getattr(torch.ops.posenc_native, "rotary_qk_from_tables", None)
    if operator is None:
        pytest.skip("the operators are not built")
    q, k, cos, sin = (tensor(x) for x in (GIVEN[0], GIVEN[1], COS, SIN))
    for own, of_k in (((-cos, None), (-cos, sin)), ((None, -sin), (cos, -sin))):
        rotated_q, rotated_k = operator(
            q, k, cos, sin, "bhsd", "half", 0, False, "float32", None, None, *own, None, -1, "same"
        )
        assert torch.equal(rotated_q, pn.apply_rotary(q, None, pn.Tables(cos, sin)))
        assert torch.equal(rotated_k, pn.apply_rotary(k, None, pn.Tables(*of_k)))


# --- torch


def test_gradients_reach_each_table_of_a_pair(tensor):
    torch = pytest.importorskip("torch")
    leaves = [tensor(x).double().requires_grad_() for x in (COS, COS + 1, SIN, SIN - 1)]
    q, k = (tensor(x).double() for x in GIVEN[:2])

    def turned(*tables: Any) -> Any:
        return pn.apply_rotary_qk(q, k, None, pn.Tables(tables[:2], tables[2:]))

    assert torch.autograd.gradcheck(turned, leaves)


@pytest.mark.parametrize("made", ["inside", "outside"])
def test_compiled(made, tensor):
    torch = pytest.importorskip("torch")
    q, k, cos, sin = (tensor(x) for x in (GIVEN[0], GIVEN[1], COS, SIN))

    def by_parts(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        return pn.apply_rotary_qk(q, k, None, pn.Tables(cos, sin, compute="as_written"))

    def by_value(q: Any, k: Any, tables: pn.Tables) -> Any:
        return pn.apply_rotary_qk(q, k, None, tables)

    expected = by_parts(q, k, cos, sin)
    compiled = functools.partial(torch.compile, fullgraph=True, backend="aot_eager")
    if made == "inside":
        results = compiled(by_parts)(q, k, cos, sin)
    else:
        results = compiled(by_value)(q, k, pn.Tables(cos, sin, compute="as_written"))
    for ours, theirs in zip(results, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("mapped", [None, 0], ids=["one for all", "mapped"])
def test_under_vmap(mapped, tensor):
    torch = pytest.importorskip("torch")
    x, tables = tensor(GIVEN[0]), pn.Tables(tensor(COS), tensor(SIN))
    if mapped is not None:
        tables = pn.Tables(*(torch.stack([table, -table]) for table in tables[:2]))

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        return pn.apply_rotary(x, None, pn.Tables(cos, sin), layout="hsd")

    results = torch.vmap(turned, in_dims=(0, mapped, mapped))(x, tables.cos, tables.sin)
    for i, one in enumerate(x):
        own = [table if mapped is None else table[i] for table in tables[:2]]
        assert torch.equal(results[i], turned(one, *own))


# --- The value


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        (TABLES, "Tables(float32 [5, 4], float32 [5, 4])"),
        (
            pn.Tables((COS, COS[:3]), (SIN, SIN[:3])),
            "Tables((float32 [5, 4], float32 [3, 4]), (float32 [5, 4], float32 [3, 4]))",
        ),
        (
            pn.Tables(COS, SIN, np.arange(3), compute="as_written"),
            "Tables(float32 [5, 4], float32 [5, 4], rows=int64 [3], compute='as_written')",
        ),
    ],
)
def test_its_text_has_shapes(tables, text):
    assert repr(tables) == text
