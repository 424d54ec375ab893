"""Rotary functions that are learned from their calls: every form of tables, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from posenc_native.hf.learned import functions as learned  # noqa: E402

PAIRINGS = ["interleaved", "half"]


def angles(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def repeated(table: Tensor, pairing: str) -> Tensor:
    """A column for each dim."""
    half = pairing == "half"
    return torch.cat((table, table), -1) if half else table.repeat_interleave(2, -1)


def turned(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """x rotated by tables with a column for each dim that are broadcast to it."""
    if pairing == "half":
        a, b = x.chunk(2, -1)
        other = torch.cat((-b, a), -1)
    else:
        other = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return (x.float() * cos + other.float() * sin).to(x.dtype)


def learning(
    function: Callable[..., Any], report: Callable[[str], Any], inplace: bool | None = False
) -> Callable[..., Any]:
    return learned.Learned(function, report).function(inplace)


# --- functions as models have them


def by_two(x, freqs, heads_first=True, pairing="interleaved"):  # type: ignore[no-untyped-def]
    """Flux: a tuple of tables for tokens, with a column for each dim."""
    at = (None, None) if heads_first else (None, slice(None), None)
    cos, sin = (each[at] for each in freqs)
    return turned(x, cos, sin, pairing)


def by_sin_and_cos(x, emb, half=False):  # type: ignore[no-untyped-def]
    """timm: one tensor, sin beside cos."""
    sin, cos = emb.chunk(2, -1)
    return turned(x, cos, sin, "half" if half else "interleaved")


def by_complex(x, freqs):  # type: ignore[no-untyped-def]
    """Qwen-Image: complex numbers for tokens, of heads that come after them."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs.unsqueeze(1)).flatten(3).to(x.dtype)


def by_matrices(x, rope):  # type: ignore[no-untyped-def]
    """Kandinsky: a matrix of rotation for each pair."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 1, 2)
    return (rope * pairs).sum(-1).flatten(-2).to(x.dtype)


def of_q_and_k(xq, xk, freqs_cis):  # type: ignore[no-untyped-def]
    return by_complex(xq, freqs_cis), by_complex(xk, freqs_cis)


def of_cos_and_of_sin(x, cos, sin):  # type: ignore[no-untyped-def]
    """Wan: the first column of a pair from cos, the second one from sin."""
    a, b, cos, sin = x[..., ::2], x[..., 1::2], cos[..., ::2], sin[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def by_sections(x, tables, rows):  # type: ignore[no-untyped-def]
    """Allegro: each axis of positions has a section of the dims, and tables of its own."""
    sections = [
        turned(part, cos[at][:, None], sin[at][:, None], "half")
        for part, (cos, sin), at in zip(x.chunk(len(rows), -1), tables, rows, strict=True)
    ]
    return torch.cat(sections, -1)


def of_angles(x, freqs):  # type: ignore[no-untyped-def]
    both = freqs.repeat_interleave(2, -1)
    return turned(x, both.cos(), both.sin(), "interleaved")


def a_part(x, freqs):  # type: ignore[no-untyped-def]
    """The first dims of a head alone."""
    width = freqs[0].shape[-1]
    return torch.cat((by_two(x[..., :width], freqs), x[..., width:]), -1)


def calls() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """A function, its arguments and options, by what is special about it."""
    a, b = angles(7, 8), angles(2, 7, 24)
    x, y = numbers(2, 3, 7, 16), numbers(2, 7, 3, 16)
    found: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {}
    for pairing, first in itertools.product(PAIRINGS, (True, False)):
        tables = repeated(a.cos(), pairing), repeated(a.sin(), pairing)
        options = {"heads_first": first, "pairing": pairing}
        found[f"two, {pairing}, heads first: {first}"] = (
            by_two,
            (x if first else y, tables),
            options,
        )
    for half in (False, True):
        tables = repeated(a.sin(), PAIRINGS[half]), repeated(a.cos(), PAIRINGS[half])
        found[f"sin and cos, half: {half}"] = (
            by_sin_and_cos,
            (x, torch.cat(tables, -1)),
            {"half": half},
        )
    places = [angles(n, 4) for n in (5, 6)]
    found["sections, indexed"] = (
        by_sections,
        (
            x,
            tuple((repeated(p.cos(), "half"), repeated(p.sin(), "half")) for p in places),
            tuple(torch.randint(len(p), (2, 7)) for p in places),
        ),
        {},
    )
    of_heads = angles(3, 7, 8)
    both = torch.cat([repeated(each, "half") for each in (of_heads.sin(), of_heads.cos())], -1)
    found["tables of each head"] = by_sin_and_cos, (x, both[None], True), {}
    circle = torch.polar(torch.ones_like(a), a)
    found["complex"] = by_complex, (y, circle), {}
    found["q and k"] = of_q_and_k, (y, numbers(2, 7, 1, 16, seed=2), circle), {}
    matrices = torch.stack((a.cos(), -a.sin(), a.sin(), a.cos()), -1).reshape(7, 1, 8, 2, 2)
    found["matrices"] = by_matrices, (y, matrices), {}
    wide = tuple(
        repeated(each, "interleaved")[:, :, None] for each in (b[..., :8].cos(), b[..., :8].sin())
    )
    found["cos and sin"] = of_cos_and_of_sin, (y, *wide), {}
    flat = tuple(repeated(each, "interleaved") for each in (b.cos(), b.sin()))
    found["as wide as a row"] = lambda x, freqs: turned(x, *freqs, "interleaved"), (
        numbers(2, 7, 48), flat,
    ), {}  # fmt: skip
    found["angles"] = of_angles, (x, a), {}
    part = tuple(repeated(each, "interleaved") for each in (a[:, :4].cos(), a[:, :4].sin()))
    found["a part"] = a_part, (x, part), {}
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", calls())
def test_each_form_of_tables(name: str, dtype: str, rotated: list[bool]) -> None:
    function, given, options = calls()[name]
    heads = 2 if function is of_q_and_k else 1
    xs = [x.to(getattr(torch, dtype)).requires_grad_() for x in given[:heads]]
    said: list[str] = []
    ours = learning(function, said.append)
    results = [learned._results(f(*xs, *given[heads:], **options)) for f in (ours, function)]
    assert said == []
    assert len(rotated) == heads
    grads = [torch.autograd.grad(sum((r**2).sum() for r in each), xs) for each in results]
    for a, b in itertools.chain(zip(*results, strict=True), zip(*grads, strict=True)):
        assert a.dtype == b.dtype
        # Each side rounds once what two products of at most x sqrt 2 make; float32 more often.
        bound = 8 * max(torch.finfo(a.dtype).eps, 2.0**-23) * float(b.detach().abs().max())
        torch.testing.assert_close(a.detach().double(), b.detach().double(), rtol=0, atol=bound)


def test_other_lengths_are_the_same_kind(rotated: list[bool]) -> None:
    seen: list[str] = []
    counted: list[int] = []

    def function(x, freqs):  # type: ignore[no-untyped-def]
        counted.append(len(x))
        return by_two(x, freqs)

    ours = learning(function, seen.append)
    for length in (7, 9, 300):
        a = angles(length, 8)
        tables = repeated(a.cos(), "interleaved"), repeated(a.sin(), "interleaved")
        x = numbers(2, 3, length, 16)
        torch.testing.assert_close(ours(x, tables), by_two(x, tables))
        if length == 7:
            learned_in = len(counted)
    assert len(counted) == learned_in
    assert len(rotated) == 3


def test_tables_are_looked_at_once_and_again_when_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    make = learned._Tables.made
    monkeypatch.setattr(
        learned._Tables, "made", staticmethod(lambda *given: made.append(1) or make(*given))
    )
    function = learned.Learned(by_two, lambda why: None)
    ours, kept = function.function(False), function._tables._kept
    a = angles(7, 8)
    x, tables = (
        numbers(2, 3, 7, 16),
        [repeated(a.cos(), PAIRINGS[0]), repeated(a.sin(), PAIRINGS[0])],
    )
    ours(x, tables)
    made.clear()
    ours(x, tables)
    assert made == []
    tables[0].mul_(2)
    torch.testing.assert_close(ours(x, tables), by_two(x, tables))
    assert len(made) == 1
    assert len(kept) == 1
    del tables
    assert len(kept) == 0


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_columns_of_a_pair_that_differ(pairing: str, rotated: list[bool]) -> None:
    """Each dim has its own angle, as in ERNIE-Image."""
    said: list[str] = []
    ours = learning(by_two, said.append)
    tables = numbers(7, 16, seed=3), numbers(7, 16, seed=4)
    results, gradients = [], []
    for function in (ours, by_two):
        x = numbers(2, 3, 7, 16).requires_grad_()
        results.append(function(x, tables, pairing=pairing))
        results[-1].square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients)
    assert (said, rotated != []) == ([], True)


def test_columns_that_are_not_read_may_not_differ(rotated: list[bool]) -> None:
    said: list[str] = []
    ours = learning(of_cos_and_of_sin, said.append)
    x, tables = numbers(2, 3, 7, 16), (numbers(7, 16, seed=3), numbers(7, 16, seed=4))
    assert torch.equal(ours(x, *tables), of_cos_and_of_sin(x, *tables))
    assert said == ["of_cos_and_of_sin got tables whose columns of a pair differ"]
    assert rotated == []


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x, freqs: x * freqs, "<lambda> is not a known rotation"),
        (lambda x, freqs: x.sum() + freqs, "<lambda> does not return its first arguments rotated"),
        (
            lambda x, freqs: x.view(2, 3, 7, 8) * freqs,
            "<lambda> cannot be called with small tensors: RuntimeError",
        ),
    ],
)
def test_what_is_no_rotation_is_left_to_the_model(
    function: Callable[..., Any], why: str, rotated: list[bool]
) -> None:
    said: list[str] = []
    ours = learning(function, said.append)
    x, freqs = numbers(2, 3, 7, 8), numbers(7, 8)
    for _ in range(2):
        assert torch.equal(ours(x, freqs), function(x, freqs))
    assert said == [why]  # once
    assert rotated == []


def test_calls_without_tables_are_the_models(rotated: list[bool]) -> None:
    ours = learning(lambda x, tables: x, lambda why: None)
    x = numbers(2, 3)
    assert ours(x, object()) is x
    assert ours(x, tables=None) is x
    assert rotated == []


def rotation(x, c, s):  # type: ignore[no-untyped-def]
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


def of_some_tokens(x, c, s, n=5):  # type: ignore[no-untyped-def]
    return torch.cat((rotation(x[:, :, :n], c[:n], s[:n]), x[:, :, n:]), 2)


def of_many_tokens(x, c, s):  # type: ignore[no-untyped-def]
    return rotation(x, c, -s if len(c) > 6 else s)


def asks_for_true(x, c, s, n=1):  # type: ignore[no-untyped-def]
    return rotation(x, c, -s if n is True else s)


def test_true_is_another_option_than_one() -> None:
    ours = learning(asks_for_true, print)
    x, c, s = numbers(2, 3, 7, 16), numbers(7, 8), numbers(7, 8)
    for n in (True, 1):
        torch.testing.assert_close(ours(x, c, s, n), asks_for_true(x, c, s, n))


@pytest.mark.parametrize("function", [of_some_tokens, of_many_tokens])
def test_a_function_that_counts_tokens_is_found_out(function: Callable[..., Any]) -> None:
    """Small tensors do not show it: the first call of a kind is compared."""
    said: list[str] = []
    ours = learning(function, said.append)
    x, c, s = numbers(2, 3, 7, 16), numbers(7, 8), numbers(7, 8)
    for _ in range(2):
        assert torch.equal(ours(x, c, s), function(x, c, s))
    assert len(said) == 1


@pytest.mark.parametrize("function", [rotation, of_many_tokens])
def test_the_first_call_may_be_recomputed(function: Callable[..., Any]) -> None:
    """Under gradient checkpointing, whose recomputation must save as many tensors as the call.

    The first call of a kind compares; no other test takes a gradient through one that is run again.
    """
    ours = learning(function, lambda why: None)
    x, c, s = numbers(2, 3, 7, 16).requires_grad_(), numbers(7, 8), numbers(7, 8)
    grads = []
    for call in (ours, function):
        again = checkpoint(call, x, c, s, use_reentrant=False)
        grads.append(torch.autograd.grad(again.square().sum(), x)[0])
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("heads", [2, 3, 4, 8, 32])
def test_heads_in_the_last_axis(heads: int, rotated: list[bool]) -> None:
    """LTX-2: [b, s, h d], with tables of each head."""

    def function(x, c, s):  # type: ignore[no-untyped-def]
        b, h, t, _ = c.shape
        return rotation(x.reshape(b, t, h, -1).swapaxes(1, 2), c, s).swapaxes(1, 2).reshape(x.shape)

    ours = learning(function, print)
    x, c, s = numbers(2, 20, heads * 16), numbers(2, heads, 20, 8), numbers(2, heads, 20, 8)
    torch.testing.assert_close(ours(x, c, s), function(x, c, s))
    assert len(rotated) == 1


def test_tables_are_not_kept_for_longer_than_the_models() -> None:
    """Nor are they views of them, where nothing had to be copied."""
    function = learned.Learned(rotation, print)
    for _ in range(3):
        function.function(False)(numbers(2, 3, 7, 16), numbers(7, 8), numbers(7, 8))
    assert len(function._tables._kept) == 0


def test_tables_with_other_memory_are_looked_at_again() -> None:
    ours = learning(rotation, print)
    x, c, s = numbers(2, 3, 7, 16), numbers(7, 8), numbers(7, 8)
    ours(x, c, s)
    c.data = 2 * c.data + 1
    torch.testing.assert_close(ours(x, c, s), rotation(x, c, s))


def test_tables_whose_memory_others_write_are_looked_at_again() -> None:
    """A write through .data changes neither the version nor the address, which older tests do."""
    ours = learning(rotation, print)
    x, c, s = numbers(2, 3, 7, 16), numbers(7, 8), numbers(7, 8)
    for table in (c, s):
        ours(x, c, s)
        table.data.copy_(table.flip(0))
        torch.testing.assert_close(ours(x, c, s), rotation(x, c, s))


def test_inference_first_then_training() -> None:
    ours = learning(rotation, print)
    x, c, s = numbers(2, 3, 7, 16), numbers(7, 8), numbers(7, 8)
    with torch.inference_mode():
        ours(x, c, s)
    x.requires_grad_()
    ours(x, c, s).sum().backward()


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_gradients_of_tables_that_are_learned(pairing: str) -> None:
    a = angles(7, 8)
    x, tables = numbers(2, 3, 7, 16), [repeated(t, pairing) for t in (a.cos(), a.sin())]
    grads = []
    for function in (learning(turned, print), turned):
        leaves = [t.clone().requires_grad_() for t in tables]
        grads.append(torch.autograd.grad(function(x, *leaves, pairing).square().sum(), leaves))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_under_autocast_results_have_the_models_dtype() -> None:
    def function(x, c, s):  # type: ignore[no-untyped-def]
        return rotation(torch.matmul(x, torch.eye(16)), c, s).to(
            torch.matmul(x, torch.eye(16)).dtype
        )

    ours = learning(function, print)
    x, c, s = numbers(2, 3, 7, 16), numbers(7, 8), numbers(7, 8)
    for enabled in (False, True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            assert ours(x, c, s).dtype == function(x, c, s).dtype


def test_results_come_as_the_model_gives_them() -> None:
    a = numbers(7, 8)
    x = numbers(2, 3, 7, 16)
    for gives in (tuple, list):
        ours = learning(lambda x, c, s, g=gives: g([rotation(x, c, s)]), print)
        assert type(ours(x, a, a)) is gives or len(ours(x, a, a)) == 1
    said: list[str] = []
    in_place = learning(lambda x, c, s: None, said.append)
    assert in_place(x, a, a) is None
    assert said == ["<lambda> does not return its first arguments rotated"]


def test_traced() -> None:
    ours = learning(rotation, print)
    x, c, s = numbers(2, 3, 7, 16), numbers(7, 8), numbers(7, 8)
    traced = torch.jit.trace(ours, (x, c, s))
    torch.testing.assert_close(traced(x, c, s), rotation(x, c, s))


def test_tensors_of_others_are_the_models(rotated: list[bool]) -> None:
    """Empty ones, those of a subclass or of another device, and what a transform follows."""
    said: list[str] = []
    ours = learning(by_sin_and_cos, said.append)
    emb = numbers(7, 32)
    assert ours(numbers(2, 3, 0, 16), emb[:0]).shape == (2, 3, 0, 16)

    class Own(torch.Tensor):
        pass

    x = numbers(2, 3, 7, 16)
    assert type(ours(x.as_subclass(Own), emb)) is Own
    assert ours(x.to("meta"), emb.to("meta")).is_meta
    torch.testing.assert_close(torch.func.vmap(lambda x: ours(x, emb))(x), by_sin_and_cos(x, emb))
    assert rotated == said == []


@pytest.mark.parametrize(
    ("name", "rotates"),
    {
        "apply_rotary_emb": True, "apply_rotary_emb_qwen": True, "apply_rot_embed_cat": True,
        "_apply_rotary_emb": True, "apply_rope": True, "apply_split_rotary_emb": True,
        "get_1d_rotary_pos_embed": False, "rope_params": False, "apply_mask": False,
    }.items(),
)  # fmt: skip
def test_functions_are_told_by_their_names(name: str, rotates: bool) -> None:
    assert learned.may_rotate(name, by_two) == rotates
    assert not learned.may_rotate(name, lambda x: x)
    assert not learned.may_rotate(name, lambda *args: args)
    assert not learned.may_rotate(name, torch.nn.Linear)


def test_in_place_one_tensor_for_q_and_k_is_turned_once() -> None:
    x = numbers(2, 7, 3, 16)
    a = angles(7, 8)
    circle = torch.polar(torch.ones_like(a), a)
    ours = learning(of_q_and_k, print, inplace=True)
    expected = of_q_and_k(x, x, circle)
    for _ in range(2):  # the first call of a kind is in fresh memory anyway
        for found, each in zip(ours(x, x, circle), expected, strict=True):
            torch.testing.assert_close(found, each)
