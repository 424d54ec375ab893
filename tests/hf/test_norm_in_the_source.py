"""Which ways from a norm to the rotation are followed in the source of a method, and which are not.

Each class here is an attention whose method does something between the two. What is followed has
its norm joined with the rotation; what is not is left alone, for the reason in the table. Either
way it computes what it computed.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hf_norm_sources import (  # noqa: E402
    WIDTH,
    BetweenViews,
    CallsSuper,
    D,
    Doubled,
    InAContext,
    InALoop,
    InATest,
    InBranches,
    InBranchesNotRotated,
    KeptUnderAnotherName,
    Model,
    NormInALoop,
    OnlyQ,
    OtherNorm,
    OverPairsOfHeads,
    OverPositions,
    OverTheToken,
    OverTheTokenNotRotated,
    Plain,
    ScaledAfter,
    SeenByAFunction,
    SeenInBetween,
    TokensFirst,
    WithAFactor,
    WithDefaults,
)  # fmt: skip
from torch import nn  # noqa: E402

from posenc_native import hf  # noqa: E402

FOLLOWED = (Plain, TokensFirst, OverTheToken, InBranches, WithDefaults)
# Of the same methods, as parts of a model whose other layers rotate.
NOT_ROTATED = {OverTheTokenNotRotated: OverTheToken, InBranchesNotRotated: InBranches}
NOT_FOLLOWED = {
    SeenInBetween: "the result of q_norm is used in another way",
    WithAFactor: "q or k is rotated without a norm before it",
    ScaledAfter: "the result of k_norm is used in another way",
    KeptUnderAnotherName: "the result of q_norm may be used after the rotation",
    InATest: "the result of q_norm is used in another way",
    InALoop: "the result of q_norm is used in another way",
    NormInALoop: "q or k is rotated without a norm before it",
    InAContext: "the result of q_norm leaves a context manager",
    BetweenViews: "the result of q_norm is used between two views",
    OnlyQ: "q or k is rotated without a norm before it",
    SeenByAFunction: "the result of q_norm is used by an inner function",
    CallsSuper: "the method with the norm uses variables of an outer function",
    OverPairsOfHeads: "does not reach the rotation",
    OverPositions: "give other results",
}
OTHER_NORMS = {
    "LayerNorm": (lambda: nn.LayerNorm(D), "q_norm has more than a vector of weights: LayerNorm"),
    "LayerNorm without bias": (
        lambda: nn.LayerNorm(D, bias=False), "q_norm is not an RMS norm: LayerNorm",
    ),
    "eps of the dtype": (lambda: nn.RMSNorm(D), "q_norm is not an RMS norm: RMSNorm"),
    "a factor": (Doubled, "q_norm is not an RMS norm: Doubled"),
    "identity": (nn.Identity, "q_norm is not an RMS norm: Identity"),
    "of torch": (lambda: nn.RMSNorm(D, eps=1e-3), None),
    "of torch, without weights": (
        lambda: nn.RMSNorm(D, eps=1e-3, elementwise_affine=False), None,
    ),
}  # fmt: skip


def with_random_norms(model: Any) -> Any:
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def outputs(model: Any) -> Any:
    torch.manual_seed(1)
    with torch.no_grad():
        return model(torch.randn(2, 5, WIDTH))


def assert_same_as_before(model: Any, before: Any) -> None:
    # Some roundings of float32, of values below 16; and a phase below 5, off by 5 * 2**-24.
    for a, b in zip(outputs(model), before, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=16 * 32 * 2.0**-24)


@pytest.mark.parametrize("kind", FOLLOWED)
def test_followed(kind: Any) -> None:
    model = with_random_norms(Model(kind()))
    before = outputs(model)
    with hf.patch(model, fuse_norm=True) as handle:
        assert handle.fused == ("attention",)
        assert_same_as_before(model, before)
        # By the other ways through the method.
        model.attention.flag = False
        changed = outputs(model)
    assert_same_as_before(model, changed)


@pytest.mark.parametrize("kind", NOT_ROTATED)
def test_a_layer_that_does_not_rotate_norms_at_once(kind: Any) -> None:
    model = with_random_norms(Model(NOT_ROTATED[kind]()))
    model.attention.rotates = False
    before = outputs(model)
    model.attention.rotates = True
    with hf.patch(model, fuse_norm=True) as handle:
        assert handle.fused == ("attention",)
        model.attention.rotates = False
        assert_same_as_before(model, before)
    alone = with_random_norms(Model(kind()))
    with hf.patch(alone, fuse_norm=True) as handle:
        assert not handle.fused
        assert "it makes 0 of 1 calls of a rotary function" in handle.notes["attention"]


@pytest.mark.parametrize("kind", NOT_FOLLOWED)
def test_not_followed(kind: Any) -> None:
    model = with_random_norms(Model(kind()))
    before = outputs(model)
    with hf.patch(model, fuse_norm=True) as handle:
        assert not handle.fused
        assert handle.notes["attention"].startswith("its norm is not fused with the rotation: ")
        assert NOT_FOLLOWED[kind] in handle.notes["attention"]
        assert_same_as_before(model, before)


@pytest.mark.parametrize("name", OTHER_NORMS)
def test_norms(name: str) -> None:
    make, reason = OTHER_NORMS[name]
    model = with_random_norms(Model(OtherNorm(make())))
    before = outputs(model)
    with hf.patch(model, fuse_norm=True) as handle:
        assert handle.fused == (("attention",) if reason is None else ())
        assert (reason or "") in handle.notes.get("attention", "")
        assert_same_as_before(model, before)


def test_a_traceback_shows_the_lines_of_the_model() -> None:
    model = with_random_norms(Model(Plain()))
    with hf.patch(model, fuse_norm=True):
        code = model.attention.forward.__func__.__wrapped__.__code__
    assert code.co_filename == Plain.forward.__code__.co_filename
    assert code.co_firstlineno == Plain.forward.__code__.co_firstlineno
    lines = [{line for *_, line in c.co_lines() if line} for c in (code, Plain.forward.__code__)]
    assert lines[0] == lines[1]
