"""`posenc_native.hf.patch` changes instances, not classes: copies, hooks, what is saved."""

from __future__ import annotations

import ast
import copy
import time
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_patched import FAR, build, logits, traces  # noqa: E402

from posenc_native import hf  # noqa: E402
from posenc_native.hf import instances  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_another_model_of_the_class_is_not_touched() -> None:
    model, other = build("Llama"), build("Llama")
    with hf.patch(model):
        assert not traces(other)
        assert torch.equal(logits(other, FAR), logits(build("Llama"), FAR))
        assert not torch.equal(logits(model, FAR), logits(other, FAR))


def test_wrapped_models_are_found() -> None:
    model = build("Llama")
    wrapper = torch.nn.ModuleDict({"inside": torch.nn.Sequential(model)})
    handle = hf.patch(wrapper)
    assert handle.patched[0].startswith("inside.0.model.")
    handle.undo()
    assert not traces(model)


@pytest.mark.parametrize("name", ["Llama", "GPTJ"])
def test_deepcopy_of_a_patched_model_is_patched_by_itself(name: str) -> None:
    model = build(name)
    before = logits(model, FAR)
    handle = hf.patch(model)
    patched = logits(model, FAR)
    twin = copy.deepcopy(model)
    for module, other in zip(model.modules(), twin.modules(), strict=True):
        if "forward" in module.__dict__:
            assert module.forward.__self__ is module
            assert other.forward.__self__ is other
    handle.undo()
    assert torch.equal(logits(model, FAR), before)
    assert torch.equal(logits(twin, FAR), patched)
    hf.unpatch(twin)
    assert not traces(twin)
    assert torch.equal(logits(twin, FAR), before)


def test_threads_parse_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 cannot do it at once; here two of four would be in it together."""
    inside: list[int] = []
    seen: list[int] = []

    def parsed(source: str) -> Any:
        inside.append(1)
        time.sleep(0.01)
        seen.append(len(inside))
        inside.pop()
        return ast.parse(source)

    own = types.SimpleNamespace(**vars(ast) | {"parse": parsed})
    monkeypatch.setattr(instances, "ast", own)
    codes = [build.__code__, copy.copy.__code__, hf.patch.__wrapped__.__code__]
    instances._parsed.cache_clear()
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(instances.definition, 4 * codes))
    assert {*seen} == {1}


def test_undo_twice_and_after_an_error() -> None:
    model = build("Llama")
    handle = hf.patch(model)
    assert "active" in repr(handle)
    handle.undo()
    handle.undo()
    assert "undone" in repr(handle)
    with pytest.raises(KeyError), hf.patch(model):
        raise KeyError
    assert not traces(model)
    hf.patch(model).undo()  # and again


def test_state_dict_and_saving(tmp_path: Any) -> None:
    model = build("Llama")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    patched = hf.patch(model)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    model.load_state_dict(before)
    model.save_pretrained(tmp_path)
    expected = logits(model, FAR)
    patched.undo()
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    with hf.patch(loaded):
        assert torch.equal(logits(loaded, FAR), expected)


class Hook:
    """What accelerate.hooks.add_hook_to_module does to a module, and its removal."""

    def __init__(self, module: Any) -> None:
        self.module, self.calls = module, 0
        module._old_forward = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return module._old_forward(*args, **kwargs)

        module.forward = forward

    def remove(self) -> None:
        self.module.forward = self.module._old_forward
        del self.module._old_forward


@pytest.mark.parametrize("added", ["before patch", "after patch"])
@pytest.mark.parametrize("removed", ["before undo", "after undo"])
def test_hooks_of_accelerate_stay_outside(added: str, removed: str) -> None:
    model = build("Llama")
    before = logits(model, FAR)
    with hf.patch(model):
        expected = logits(model, FAR)
    targets = [model.model.layers[0].self_attn, model.model.rotary_emb]
    hooks = [Hook(module) for module in targets] if added == "before patch" else []
    handle = hf.patch(model)
    hooks = hooks or [Hook(module) for module in targets]
    assert torch.equal(logits(model, FAR), expected)
    assert [hook.calls for hook in hooks] == [1, 1]
    if removed == "before undo":
        for hook in hooks:
            hook.remove()
        assert torch.equal(logits(model, FAR), expected)
    handle.undo()
    assert torch.equal(logits(model, FAR), before)
    if removed == "after undo":
        assert [hook.calls for hook in hooks] == [2, 2]
        for hook in hooks:
            hook.remove()
    assert torch.equal(logits(model, FAR), before)
