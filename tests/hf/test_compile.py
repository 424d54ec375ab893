"""`posenc_native.hf.patch` and torch.compile."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch_cases  # noqa: E402
from compiling import needs_inductor  # noqa: E402
from hf_patched import FAR, SHORT, TOKENS, build, distance, logits, tokens  # noqa: E402
from matrices import others_slow  # noqa: E402

from posenc_native import hf  # noqa: E402

device = torch_cases.device

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("inplace", others_slow([None, False, True], None))
def test_compile_whole_model(inplace: bool | None, device: str) -> None:
    needs_inductor(device)
    model = build("Llama").to(device)
    with hf.patch(model, inplace=inplace):
        expected = logits(model)
        compiled = torch.compile(model, fullgraph=True)
        assert distance(logits(compiled), expected) < SHORT


@pytest.mark.usefixtures("nothing_compiled")
def test_compile_with_gradients_and_dynamic_lengths() -> None:
    model = build("Llama")
    with hf.patch(model):
        # aot_eager: the graph of inductor without its code generator, which is not ours to test.
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
        for count in (TOKENS, 9):
            ids = tokens(2, count)
            model.zero_grad()
            model(ids).logits.square().mean().backward()
            expected = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            compiled(ids).logits.square().mean().backward()
            for parameter, gradient in zip(model.parameters(), expected, strict=True):
                assert (parameter.grad - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-9


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("name", others_slow(["Gemma3Text", "Cohere", "GPTJ"], "Gemma3Text"))
def test_compile_other_forms(name: str) -> None:
    model = build(name)
    with hf.patch(model):
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        assert distance(logits(compiled), logits(model)) < SHORT


@pytest.mark.usefixtures("nothing_compiled")
def test_compile_follows_patch_and_undo() -> None:
    model = build("Llama")
    compiled = torch.compile(model, backend="eager")
    before = logits(compiled, FAR)
    with hf.patch(model):
        torch.compiler.reset()
        assert torch.equal(logits(compiled, FAR), logits(model, FAR))
        assert not torch.equal(logits(compiled, FAR), before)
    torch.compiler.reset()
    assert torch.equal(logits(compiled, FAR), before)
