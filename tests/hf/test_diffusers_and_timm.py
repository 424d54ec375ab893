"""`hf.patch` of models of diffusers and timm: what they give, their gradients, and as they were."""

from __future__ import annotations

import copy
import functools
import gc
import importlib.util
import pickle
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
if importlib.util.find_spec("timm") is None:  # it is not imported: torchvision may not be there
    pytest.skip("needs timm", allow_module_level=True)

import diffusers_models  # noqa: E402
import timm_models  # noqa: E402
from diffusers.hooks import LayerSkipConfig, apply_layer_skip  # noqa: E402
from diffusers.hooks._helpers import AttentionProcessorRegistry  # noqa: E402
from matrices import others_slow  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from posenc_native import hf  # noqa: E402
from posenc_native.hf import instances  # noqa: E402
from posenc_native.hf.instances import MARK  # noqa: E402
from posenc_native.hf.learned import makers  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    # Of Mochi and Kandinsky, patched or not.
    pytest.mark.filterwarnings("ignore:In CPU autocast", "ignore:Mismatch dtype between input"),
]

MODELS: dict[str, tuple[Any, Callable[[], Any]]] = {
    f"{source.__name__.partition('_')[0]}: {name}": (source, make)
    for source in (diffusers_models, timm_models)
    for name, make in source.MODELS.items()
}
# Rounds what it has rotated to bfloat16, whatever it gets.
IN_16_BITS = ("diffusers: Kandinsky5",)
# Served as models of transformers are: by a function with arguments cos and sin.
BY_COS_AND_SIN = ("timm: Gemma4Vit",)


def results_of(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """All that a model gives, in one row."""

    def tensors(value: Any) -> list[Tensor]:
        if isinstance(value, Tensor):
            return [value.flatten()]
        each = value.values() if isinstance(value, dict) else value
        return [t for one in each if one is not None for t in tensors(one)]

    return torch.cat([t.double() for t in tensors(model(**inputs))])


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """q and k of every attention, by heads: what a pass of random weights hides shows here."""
    seen: list[Tensor] = []
    attend = nn.functional.scaled_dot_product_attention

    def recorded(query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.extend((query.detach().clone(), key.detach().clone()))
        return attend(query, key, *args, **kwargs)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", recorded)
    return seen


def with_gradients(model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The results, and the gradients of all weights by a sum of their squares."""
    model.zero_grad()
    results = results_of(model, inputs)
    results.square().mean().backward()
    grads = [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
    return results.detach(), torch.cat(grads)


def make_exact_tables(model: nn.Module) -> None:
    for module in filter(makers.may_make_tables, model.modules()):
        forward = makers.exact_forward(type(module).forward)
        module.forward = types.MethodType(forward, module)


def off(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_results_and_gradients_are_the_models(
    name: str, rotated: list[bool], attended: list[Tensor]
) -> None:
    """In float32; and in bfloat16, no further off than the model's own."""
    source, make = MODELS[name]
    model, inputs = make()
    # Angles of thousands of radians, which their float32 rounds: compared with exact ones.
    if name.startswith("diffusers: LTX"):
        make_exact_tables(model)
    before, grads_before = with_gradients(model, inputs)
    heads_before = [*attended]
    attended.clear()
    handle = hf.patch(model)
    after, grads_after = with_gradients(model, inputs)
    heads_after = [*attended]
    assert handle.skipped == {}
    assert bool(rotated) == (name not in BY_COS_AND_SIN)
    # Both round as float32 does, in other places; attention that is sharp makes more of it.
    step = 2.0**-8 if name in IN_16_BITS else 2.0**-23
    assert off(after, before) < 80 * step
    assert off(grads_after, grads_before) < 800 * step
    assert len(heads_after) == len(heads_before)
    for ours, theirs in zip(heads_after, heads_before, strict=True):
        assert off(ours, theirs) < 80 * step
    handle.undo()
    assert torch.equal(results_of(model, inputs), before)
    assert not any(MARK in module.__dict__ for module in model.modules())
    model.zero_grad()
    with torch.no_grad():
        cast = getattr(source, "cast_model", lambda model, dtype: model.to(dtype))
        model, inputs = cast(model, torch.bfloat16), source.cast(inputs, torch.bfloat16)
        rounded = results_of(model, inputs)
        rotated.clear()
        with hf.patch(model):
            rounded_after = results_of(model, inputs)
    assert bool(rotated) == (name not in BY_COS_AND_SIN)
    # One rounding in place of up to four. What a layer makes of it is up to chance: hence twice.
    assert off(rounded_after, before) < 2 * off(rounded, before)


# --- in place -------------------------------------------------------------------------------------

# A global of a file; imported in the method; written in it, called with a star; complex tables.
IN_PLACE = ["Flux", "HunyuanVideo15", "Wan", "QwenImage", "LTX", "ZImage"]
# Parts of q and k, in every one of them: put together with others afterwards.
FRESH = ["diffusers: CogVideoX", "diffusers: HunyuanVideo", "timm: EVA02"]


@pytest.mark.parametrize("name", [*(f"diffusers: {name}" for name in IN_PLACE), *FRESH])
def test_in_place_where_nobody_else_sees_it(name: str, rotated: list[bool]) -> None:
    """The first call of a kind is compared with the model's own, in fresh memory."""
    model, inputs = MODELS[name][1]()
    with torch.no_grad():
        with hf.patch(model, inplace=False):
            results_of(model, inputs)
            expected = results_of(model, inputs)
            assert {*rotated} == {False}
        with hf.patch(model):
            results_of(model, inputs)
            rotated.clear()
            assert torch.equal(results_of(model, inputs), expected)
    assert {*rotated} == {name not in FRESH}


def test_in_place_always(rotated: list[bool]) -> None:
    """Asked for, without a look at who holds what; never where a gradient is recorded."""
    model, inputs = MODELS["diffusers: CogVideoX"][1]()
    with hf.patch(model, inplace=True):
        with torch.no_grad():
            expected = results_of(model, inputs)
            rotated.clear()
            assert torch.equal(results_of(model, inputs), expected)
            assert {*rotated} == {True}
        rotated.clear()
        with_gradients(model, inputs)
        assert {*rotated} == {False}


def test_what_sees_q_gets_it_as_it_was(rotated: list[bool]) -> None:
    """A hook inside the attention of a processor; a norm that keeps what it gives."""
    model, inputs = MODELS["diffusers: Flux"][1]()
    kept: list[Tensor] = []
    norm = model.transformer_blocks[0].attn.norm_q

    def forward(x: Tensor) -> Tensor:
        kept.append(type(norm).forward(norm, x))
        return kept[-1]

    with torch.no_grad(), hf.patch(model):
        expected = results_of(model, inputs)
        rotated.clear()
        hook = norm.register_forward_hook(lambda module, given, result: kept.append(result))
        assert torch.equal(results_of(model, inputs), expected)
        assert rotated == [False, False, *[True] * 6]
        hook.remove()
        rotated.clear()
        norm.forward = forward
        assert torch.equal(results_of(model, inputs), expected)
        # Of text and image together: what the norm gives is copied.
        assert rotated == [True] * 8


# --- as they were ---------------------------------------------------------------------------------

COMPILED = ["diffusers: Flux", "diffusers: Wan", "diffusers: HunyuanVideo", "timm: EVA02"]


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("name", others_slow(COMPILED, *COMPILED[1:]))
def test_compiled(name: str) -> None:
    """A global, written in the processor, imported in it; a module's."""
    model, inputs = MODELS[name][1]()
    with torch.no_grad(), hf.patch(model):
        expected = results_of(model, inputs)
        found = results_of(torch.compile(model, backend="eager"), inputs)
    assert off(found, expected) < 1e-5


class Pipeline:
    """As a pipeline of diffusers has its parts."""

    def __init__(self, **components: Any) -> None:
        self.components = components


def test_pipelines_are_their_models() -> None:
    (flux, inputs), (wan, _) = (diffusers_models.MODELS[name]() for name in ("Flux", "Wan"))
    text = nn.Linear(2, 2)
    pipe = Pipeline(transformer=flux, transformer_2=wan, text_encoder=text, scheduler=object())
    with torch.no_grad():
        before = results_of(flux, inputs)
        handle = hf.patch(pipe)
        assert {name.partition(".")[0] for name in handle.patched} == {
            "transformer",
            "transformer_2",
        }
        assert off(results_of(flux, inputs), before) < 1e-5
        with pytest.raises(ValueError, match="patched, got one whose module"):
            hf.patch(pipe)
        hf.unpatch(pipe)
        assert torch.equal(results_of(flux, inputs), before)


def test_no_source_is_parsed_while_a_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that parse at once disturb each other in CPython 3.11; imports in a method did."""
    model, inputs = diffusers_models.MODELS["HunyuanVideo"]()
    with torch.no_grad():
        before = results_of(model, inputs)
        hf.patch(model)
        monkeypatch.setattr(instances, "_parsed", None)
        with ThreadPoolExecutor(4) as pool:
            for after in pool.map(torch.no_grad()(results_of), [model] * 4, [inputs] * 4):
                assert off(after, before) < 80 * 2.0**-23


def test_processors_are_copied_not_changed() -> None:
    model, _ = diffusers_models.MODELS["Flux"]()
    attention = model.transformer_blocks[0].attn
    processor, kind = attention.processor, type(attention.processor)
    call = kind.__call__
    handle = hf.patch(model)
    assert attention.processor is not processor
    assert isinstance(attention.processor, kind)
    assert kind.__call__ is call
    other = copy.deepcopy(model)
    assert hasattr(type(other.transformer_blocks[0].attn.processor), MARK)
    hf.unpatch(other)
    assert type(other.transformer_blocks[0].attn.processor) is kind
    # One that somebody has put there since stays.
    model.transformer_blocks[1].attn.set_processor(own := kind())
    handle.undo()
    assert attention.processor is processor
    assert model.transformer_blocks[1].attn.processor is own


def test_what_is_set_on_a_processor_stays() -> None:
    model, _ = diffusers_models.MODELS["Flux"]()
    with hf.patch(model):
        model.set_attention_backend("_native_math")
    assert model.transformer_blocks[0].attn.processor._attention_backend == "_native_math"


# diffusers itself cannot skip the attention of QwenImage whole.
@pytest.mark.parametrize(
    ("name", "scores"), [("QwenImage", True), ("CogView4", True), ("CogView4", False)]
)
def test_what_knows_processors_by_their_class_finds_it(name: str, scores: bool) -> None:
    """Layer skip looks `processor.__class__` up in a registry; no other test hooks processors."""
    make = diffusers_models.MODELS[name]
    results = []
    for patched in (False, True):
        model, inputs = make()
        if patched:
            hf.patch(model)
        skip = LayerSkipConfig(
            indices=[0], fqn="transformer_blocks", skip_attention=not scores,
            skip_attention_scores=scores, skip_ff=False,
        )  # fmt: skip
        apply_layer_skip(model, skip)
        with torch.no_grad():
            results.append(results_of(model, inputs))
    model, inputs = make()
    with torch.no_grad():
        assert off(results_of(model, inputs), results[0]) > 1e-3
    assert off(results[1], results[0]) < 80 * 2.0**-23


def test_a_patch_that_is_undone_leaves_no_class_behind() -> None:
    """In the registry of diffusers, which would keep it. A copy of the model still needs it."""
    gc.collect()  # models of other tests
    before = {*AttentionProcessorRegistry._registry}
    model, _ = diffusers_models.MODELS["QwenImage"]()
    with hf.patch(model):
        other = copy.deepcopy(model)
    gc.collect()
    kinds = {type(block.attn.processor) for block in other.transformer_blocks}
    assert {*AttentionProcessorRegistry._registry} - before == kinds
    del other, kinds
    gc.collect()
    assert {*AttentionProcessorRegistry._registry} == before


def test_one_model_under_two_names() -> None:
    model, _ = diffusers_models.MODELS["Flux"]()
    processor = model.transformer_blocks[0].attn.processor
    hf.patch(Pipeline(transformer=model, transformer_2=model)).undo()
    assert model.transformer_blocks[0].attn.processor is processor


def apply_rotary_emb(x: Tensor, freqs: Tensor) -> Tensor:
    return x * freqs


class _Rotates(nn.Module):
    def rotate(self, x: Tensor, freqs: Tensor) -> Tensor:
        return apply_rotary_emb(x, freqs)

    def forward(self, x: Tensor, freqs: Tensor) -> Tensor:
        return self.rotate(x, freqs)


class _RotatesNot(_Rotates):
    rotate = staticmethod(lambda x, freqs: x)  # type: ignore[assignment]


def test_a_method_that_a_class_replaces_is_not_brought_back() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match="got none; its classes are"):
        hf.patch(_RotatesNot())
    with hf.patch(_Rotates()):
        assert torch.equal(_RotatesNot()(x, 2 * x), x)


class _ImportsWhatIsNotThere:
    def __call__(self, x: Tensor) -> str:
        try:
            from diffusers.models.embeddings import apply_rotary_emb, apply_rotary_emb_faster
        except ImportError:
            return "not there"
        return apply_rotary_emb(apply_rotary_emb_faster, x)  # type: ignore[no-any-return]


def test_what_cannot_be_imported_is_missing_as_before() -> None:
    model = _Attention()
    model.processor = _ImportsWhatIsNotThere()  # type: ignore[assignment]
    with hf.patch(model):
        assert model.processor(torch.ones(2)) == "not there"  # type: ignore[call-arg]


def test_pickled_while_it_is_patched() -> None:
    model, inputs = diffusers_models.MODELS["Flux"]()
    with torch.no_grad():
        before = results_of(model, inputs)
        with hf.patch(model):
            again = pickle.loads(pickle.dumps(model))
        assert type(again.transformer_blocks[0].attn.processor).__qualname__ == "FluxAttnProcessor"
        assert torch.equal(results_of(again, inputs), before)


class _Attention(nn.Module):
    """Has a processor whose own function uses a variable of the method."""

    def __init__(self) -> None:
        super().__init__()
        self.processor = _Processor()


class _Processor:
    def __call__(self, x: Tensor, scale: float) -> Tensor:
        def apply_rotary_emb(x: Tensor, freqs: Tensor) -> Tensor:
            return x * freqs * scale

        return apply_rotary_emb(x, x)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            _Attention,
            "_Processor.__call__: apply_rotary_emb, which is defined in it, uses variables",
        ),
        (functools.partial(nn.Linear, 2, 2), "a model of transformers, diffusers or timm"),
        (functools.partial(nn.Linear, 2, 2), "call posenc_native.apply_rotary_qk"),
    ],
)
def test_what_is_not_served_says_what_to_do(model: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(ValueError, match=f"patch: model: .*{words}"):
        hf.patch(model())
