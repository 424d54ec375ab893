"""Words of other libraries: what is said to a keyword or a name that is theirs."""

from __future__ import annotations

import inspect
import pickle
import pkgutil
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest
from bad_calls import x

import posenc_native as pn
from posenc_native.core.calls.errors import fault_of
from posenc_native.core.calls.suggestions.table import TABLE
from posenc_native.core.calls.suggestions.vocabulary import (
    MISSING,
    answered,
    keyword_hint,
    refuse,
    takes_words,
)

ROPE = pn.Rotary(8)

# name: (a call, what its message begins with, what it ends with)
CALLS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "dim and theta": (
        lambda: pn.rotary.rotary_frequencies(dim=128, theta=5e5),
        "rotary_frequencies: dim, theta: expected a keyword of rotary_dim, base, scaling, seq_len",
        "got dim=128, theta=500000.0; write rotary_dim=128; write base=500000.0",
    ),
    "a share": (
        lambda: pn.rotary.rotary_frequencies(64, partial_rotary_factor=0.5),
        "rotary_frequencies: partial_rotary_factor: ", "; write rotary_dim=int(0.5 * head_dim)",
    ),
    "a length": (
        lambda: pn.rotary.rotary_frequencies(64, max_position_embeddings=4096),
        "rotary_frequencies: max_position_embeddings: ",
        "; omit max_position_embeddings: nothing is precomputed, and any length works",
    ),
    "nothing": (
        pn.rotary.rotary_frequencies, "rotary_frequencies: arguments: expected rotary_dim, got ",
        "no rotary_dim",
    ),
    "a module of attention": (
        lambda: pn.sinusoidal(max_len=5, d_model=8),
        "sinusoidal: max_len, d_model: ", "; write positions=5 for 0 .. 5 - 1; write dim=8",
    ),
    "a flag": (
        lambda: pn.sinusoidal(5, 8, flip_sin_to_cos=True), "sinusoidal: flip_sin_to_cos: ",
        '; write layout="cos_sin"',
    ),
    "too few": (
        lambda: pn.sinusoidal(5), "sinusoidal: arguments: expected positions, dim", "got no dim",
    ),
    "an offset": (
        lambda: pn.add_sinusoidal(x(1, 4, 8), offset=3), "add_sinusoidal: offset: ",
        "; write positions=np.arange(3, 3 + seq) for seq tokens",
    ),
    "no array to show": (
        lambda: pn.add_sinusoidal(x(1, 4, 8), position_ids=np.arange(4)), "add_sinusoidal: ",
        "got position_ids=...; write positions=...",
    ),
    "a head": (
        lambda: pn.sinusoids.frequencies(head_dim=8),
        "frequencies: head_dim: ",
        "; write dim=8",
    ),
    "a slip": (
        lambda: pn.sinusoids.wavelengths(8, bse=3),
        "wavelengths: bse: ",
        "; did you mean base?",
    ),
    "no word": (lambda: pn.sinusoids.wavelengths(8, hue=3), "wavelengths: hue: ", "got hue=3"),
    # --- too many by position
    "two to rotate as one": (
        lambda: ROPE.apply(x(), x(2, 1, 5, 8), 7, inplace=True),
        "Rotary.apply: arguments: expected at most 2 by position (x, positions), got more, and inp",
        "; for q and k write rope(q, k, positions, inplace=True)",
    ),
    "two to rotate as one, in place": (
        lambda: ROPE.apply(x(2, 3, 5, 8), x(2, 1, 5, 8), inplace=True), "Rotary.apply: inplace: ",
        "; for q and k write rope(q, k, positions, inplace=True)",
    ),
    "two by frequencies": (
        lambda: pn.apply_rotary(x(2, 3, 5, 8), x(2, 1, 5, 8), None, ROPE), "apply_rotary: argum",
        "; for q and k write apply_rotary_qk(q, k, positions, inv_freq)",
    ),
    "an option by position": (
        lambda: ROPE(x(), x(), None, "bshd"), "Rotary: arguments: expected at most 3 by position (",
        'got more; write layout="bshd"',
    ),
    "options by position": (
        lambda: pn.Rotary(64, 1e4), "Rotary: arguments: expected at most 1 by position (head_dim)",
        "scaling, axis_map, rotary_start, layout, inv_freq, scale, query_scale",
    ),
    "twice": (
        lambda: pn.relative.alibi_slopes(8, num_heads=8),
        "alibi_slopes: num_heads: expected one value, got",
        "two values, by position and num_heads=8",
    ),
    # --- functions and methods with no answers of their own
    "heads of a bias": (
        lambda: pn.relative.alibi_slopes(n_heads=8),
        "alibi_slopes: n_heads: ", "; write num_heads=8",
    ),
    "an offset of queries": (
        lambda: pn.relative.alibi_diagonals(8, 1, 16, offset=15), "alibi_diagonals: offset: ",
        "; write q_offset=15",
    ),
    "a class method": (
        lambda: pn.Rotary.from_config({}, layer_typ="full"), "Rotary.from_config: layer_typ: ",
        "; did you mean layer_type or layer?",
    ),
    "no lengths": (
        lambda: pn.relative.alibi_diagonals(8),
        "alibi_diagonals: arguments: expected num_heads, q_len, k_l",
        "got no q_len, k_len",
    ),
    "a specification": (
        lambda: pn.SinusoidalSpec(d_model=8), "SinusoidalSpec: d_model: ", "; write dim=8",
    ),
    "of a configuration": (
        lambda: pn.explain(config={}, model="llama"), "explain: model: ", "got model='llama'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_word_of_others_is_told_what_to_write(name):
    call, begins, ends = CALLS[name]
    with pytest.raises(TypeError, match="expected") as caught:
        call()
    message = str(caught.value)
    assert message.startswith(begins)
    assert message.endswith(ends)
    fault = fault_of(caught.value)
    assert fault is not None
    assert str(fault) == message


VERB = [*inspect.signature(pn.apply_rotary_qk).parameters]
OBJECT = [*inspect.signature(pn.Rotary).parameters]
CALL = ["q", "k", "positions", "layout", "inverse", "inplace", "contiguous"]  # of a Rotary

# (a word, its value, the arguments of the function, what to write)
WORDS: list[tuple[str, object, list[str], str]] = [
    ("dim", 64, OBJECT, "write head_dim=64"),
    ("rope_theta", 5e5, OBJECT, "write base=500000.0"),
    ("theta", 5e5, VERB, "Rotary(head_dim, base=500000.0) for inv_freq"),
    ("interleaved", True, VERB, 'write pairing="interleaved"'),
    ("rotary_interleaved", False, VERB, 'write pairing="half"'),
    ("is_neox_style", False, OBJECT, 'write pairing="interleaved"'),
    ("is_neox_style", True, OBJECT, 'write pairing="half"'),
    ("interleaved", True, CALL, 'Rotary(..., pairing="interleaved")'),
    ("max_seq_len", 4096, OBJECT, "nothing is precomputed"),
    ("rope_scaling", {}, OBJECT, "write scaling={"),
    ("partial_rotary_factor", 0.25, OBJECT, "write rotary_dim=int(0.25 * head_dim)"),
    ("position_ids", 7, VERB, "write positions=7"),
    ("position_ids", None, OBJECT, "belong to the call that rotates"),
    ("offset", 7, VERB, "write positions=7, the position of the first token"),
    ("start_pos", 7, CALL, "write positions=7, the position of the first token"),
    ("cos_sin_cache", None, VERB, "Tables(cos, sin)"),
    ("unsqueeze_dim", 2, VERB, 'layout="bshd" for unsqueeze_dim=2'),
    ("in_place", True, VERB, "write inplace=True"),
]


@pytest.mark.parametrize(("word", "value", "known", "said"), WORDS)
def test_what_is_said_depends_on_the_function(word, value, known, said):
    assert said in keyword_hint(word, value, known)


def test_the_arguments_that_are_to_be_written_exist():
    """An answer that tells to write an argument is for functions that have it."""
    for row in TABLE:
        for beside, text in row.texts if row.kind == "keyword" else ():
            written = re.findall(r"^write (\w+)=", text)
            assert {*written} <= {*beside.split()}, row


@takes_words
def doubled(
    x: Any, by: float, more: NoReturn = MISSING, layout: str = "bhsd", **unknown: NoReturn
) -> Any:
    if unknown or more is not MISSING or x is MISSING or by is MISSING:
        refuse(doubled, x, by, more, **unknown)
    return by * x


def test_a_function_shows_its_true_arguments():
    assert str(inspect.signature(doubled)) == (
        "(x: 'Any', by: 'float', *, layout: 'str' = 'bhsd') -> 'Any'"
    )
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert "unknown" not in str(inspect.signature(pn.rotary.rotary_frequencies))
    with pytest.raises(TypeError, match=r"doubled: layuot: .*; did you mean layout\?"):
        doubled(2, 3, layuot="sd")
    with pytest.raises(TypeError, match="doubled: arguments: expected x, by, got no x"):
        doubled(by=2)


def test_torch_compile_follows_such_a_function():
    torch = pytest.importorskip("torch")
    compiled = torch.compile(doubled, fullgraph=True, backend="eager")
    assert compiled(torch.ones(2), 3, layout="sd").tolist() == [3, 3]


def test_modules_answer_wrong_calls():
    torch = pytest.importorskip("torch")
    q, k, scores = torch.ones(1, 4, 5, 8), torch.ones(1, 2, 5, 8), torch.ones(1, 8, 1, 5)
    module = pn.nn.RotaryEmbedding(8)
    calls: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: pn.nn.ALiBi(n_heads=8), "ALiBi: n_heads: .*; write num_heads=8"),
        (lambda: pn.nn.ALiBi(8)(scores, offset=4), "ALiBi: offset: .*; write q_offset=4"),
        (lambda: pn.nn.ALiBi(8)(), "ALiBi: arguments: expected scores, got no scores"),
        (lambda: module(q, k, pos=3), "RotaryEmbedding: pos: .*; write positions=3"),
        (lambda: module(q, k, 0, None, *range(3)), "Embedding: arguments: expected at most 6"),
        (lambda: module(q), r"got no k; for one tensor write module.rope.apply\(x, positions\)"),
        (lambda: module.apply(q), r"fn: .* got Tensor; for one tensor write module.rope.apply\("),
        (lambda: pn.nn.XPos(8)(q), "XPos: arguments: .*; the module takes both"),
        (lambda: type("Own", (pn.nn.XPos,), {})(dim=8), "Own: dim: .*; write head_dim=8"),
    )  # fmt: skip
    for call, said in calls:
        with pytest.raises(TypeError, match=said) as caught:
            call()
        assert caught.value.__context__ is None  # Python's own error is not shown


def test_errors_of_the_body_stay_what_they_are():
    @answered
    def adds(one: Any) -> Any:
        return one + "text"

    with pytest.raises(TypeError, match="unsupported operand") as caught:
        adds(1)
    assert fault_of(caught.value) is None
    assert adds("a") == "atext"


def test_public_functions_are_what_they_were():
    functions = {
        "alibi_slopes": pn.relative.alibi_slopes,
        "rotary_frequencies": pn.rotary.rotary_frequencies,
        "apply_rotary": pn.apply_rotary,
        "explain": pn.explain,
    }
    for name, function in functions.items():
        assert pickle.loads(pickle.dumps(function)) is function
        assert function.__name__ == name
        assert "unknown" not in str(inspect.signature(function))


def test_torch_compile_follows_functions_and_modules_that_answer():
    torch = pytest.importorskip("torch")
    bias = pn.nn.ALiBi(4)
    scores = torch.zeros(1, 4, 3, 3)

    def call(scores: Any) -> Any:
        wide = ROPE.apply(torch.ones(1, 4, 3, 8), layout="bhsd")
        return bias(scores) + pn.toeplitz_bias(bias.diagonals(3, 3), 3, 3) + wide[..., :3]

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    assert torch.equal(compiled(scores), call(scores))


def test_a_name_of_others_is_told_what_to_call():
    with pytest.raises(AttributeError, match=r"'apply_rope'; posenc_native\.apply_rotary_qk\(q, k"):
        pn.apply_rope  # noqa: B018 - to look is the test
    with pytest.raises(AttributeError, match=r"'RotaryPositionalEmbeddings'; .*interleaved"):
        pn.RotaryPositionalEmbeddings  # noqa: B018
    pytest.importorskip("torch")
    with pytest.raises(AttributeError, match=r"'rotate_half'; it is part of the rotation"):
        pn.nn.rotate_half  # noqa: B018
    for row in TABLE:
        for path in re.findall(r"posenc_native\.([\w.]+)", str(row.texts)):
            pkgutil.resolve_name(f"posenc_native.{path}")


def test_bfloat16_of_numpy_says_where_it_comes_from(monkeypatch):
    monkeypatch.setattr(np, "dtype", _no_bfloat16)  # as where ml_dtypes is not imported
    with pytest.raises(TypeError, match="float32, float64, got 'bfloat16'; import ml"):
        pn.sinusoidal(3, 8, dtype="bfloat16")


def _no_bfloat16(dtype: object) -> NoReturn:
    raise TypeError(dtype)
