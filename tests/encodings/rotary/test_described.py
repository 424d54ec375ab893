"""Calls with a description take the fast path (the door), as calls with frequencies do.

That their results agree is tested beside the functions; these tests count what the door takes. It
refuses no call for its description but for those that the general path has an error for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from targets import NEEDS_NATIVE

import posenc_native as pn

pytestmark = NEEDS_NATIVE
ROPE = pn.Rotary(16, rotary_dim=12, pairing="interleaved", rotary_start=2, scale=0.5, layout="bshd")
AXES = pn.Rotary(16, axis_map=[0, 1, 0, 1, 0, 1, 0, 1], layout="bshd")


class Layer:
    """An object of somebody else that has a `Rotary`."""

    def __init__(self, rope: pn.Rotary) -> None:
        self.rope = rope

    def __rotary__(self) -> pn.Rotary:
        """The rotation of the layer."""
        return self.rope


class Own(pn.Rotary):
    """A subclass, which has a `Rotary` in itself."""


def own(rope: pn.Rotary) -> Own:
    return Own(**rope._arguments())


def module(rope: pn.Rotary) -> Any:
    pytest.importorskip("torch")
    return pn.nn.RotaryEmbedding(rope)


def of_numpy(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


def of_torch(*shape: int) -> Any:
    return pytest.importorskip("torch").from_numpy(of_numpy(*shape))


def results_of(made: Callable[..., Any], rope: Any, tokens: int, axes: int) -> dict[str, Any]:
    """The results of every function that takes a description, by its name."""
    q, k, v = made(2, tokens, 4, 16), made(2, tokens, 2, 16), made(2, tokens, 2, 16)
    integers = np.asarray if made is of_numpy else pytest.importorskip("torch").as_tensor
    at = integers(
        np.arange(7, 7 + tokens * axes).reshape((axes, tokens) if axes > 1 else (tokens,))
    )
    slots = integers(np.arange(tokens))
    caches = made(2, 2, 20, 16), made(2, 2, 20, 16)
    weight = made(16)
    return {
        "x": (pn.apply_rotary(q, at, rope),),
        "qk": pn.apply_rotary_qk(q, k, at, rope),
        "k": (pn.apply_rotary_qk(None, k, at, rope)[1],),
        "norm": pn.norm_rotary_qk(q, k, at, rope, q_weight=weight),
        "append": (pn.rotary_append(q, k, v, at, rope, *caches, slots), *caches),
        "tables": pn.rotary_tables(at, rope),
        "in place": pn.apply_rotary_qk(q, k, at, rope, inplace=True),
    }


@pytest.mark.parametrize("tokens", [1, 16])
@pytest.mark.parametrize("rope", [ROPE, AXES], ids=["one axis", "two axes"])
@pytest.mark.parametrize("described", [lambda rope: rope, own, Layer, module])
@pytest.mark.parametrize("made", [of_numpy, of_torch])
def test_every_function_takes_the_fast_path(
    made: Any, described: Any, rope: pn.Rotary, tokens: int, answers: Any
) -> None:
    axes = 1 if rope.axis_map is None else 2
    rope = pn.Rotary(**rope._arguments())  # that remembers no other call
    ours = results_of(made, described(rope), tokens, axes)
    assert len(answers) == len(ours)
    assert all(took for _, took in answers), answers
    expected = results_of(of_numpy, rope, tokens, axes)
    for name, results in ours.items():
        for a, b in zip(results, expected[name], strict=True):
            np.testing.assert_array_equal(np.asarray(a), b, err_msg=name)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"pairing": "half"}, "pairing"),
        ({"rotary_start": 0}, "rotary_start"),
        ({"scale": 1.0}, "scale"),
        ({"axis_map": [0] * 6}, "axis_map"),
    ],
)
def test_options_that_a_description_has_are_refused(
    options: Any, argument: str, answers: Any
) -> None:
    q = of_numpy(2, 3, 4, 16)
    with pytest.raises(ValueError, match=f"{argument}: expected no {argument} beside a Rotary"):
        pn.apply_rotary(q, 7, ROPE, **options)
    with pytest.raises(ValueError, match=f"{argument}: expected no {argument} beside a Rotary"):
        pn.norm_rotary_qk(q, q, 7, ROPE, inplace=True, **options)
    assert not any(took for _, took in answers)


def test_heads_of_another_width_are_refused(answers: Any) -> None:
    narrow, wide = of_numpy(2, 3, 4, 14), of_numpy(2, 3, 4, 16)
    before = narrow.copy()
    for call in (
        lambda: pn.apply_rotary(narrow, 7, Layer(ROPE), out=narrow),
        lambda: pn.apply_rotary_qk(narrow, narrow[:, :, :2], 7, ROPE, inplace=True),
        lambda: pn.norm_rotary_qk(narrow, narrow[:, :, :2], 7, ROPE, inplace=True),
        lambda: pn.apply_rotary_qk(wide, narrow, 7, ROPE),
    ):
        with pytest.raises(ValueError, match="heads of head_dim = 16"):
            call()
    assert not any(took for _, took in answers)
    np.testing.assert_array_equal(narrow, before)


def test_an_error_of_a_description_is_the_caller_s() -> None:
    class Broken:
        def __rotary__(self) -> pn.Rotary:
            raise RuntimeError("no rotation yet")

    with pytest.raises(RuntimeError, match="no rotation yet"):
        pn.apply_rotary(of_numpy(2, 3, 4, 16), 7, Broken())
