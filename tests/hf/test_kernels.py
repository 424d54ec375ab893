"""The layer for the package `kernels`: `posenc_native.hf.kernels.mapping`.

`make engine-kernels` runs these tests with the versions of transformers and kernels that go
together; without them, those of whole models are skipped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch_cases  # noqa: E402
from hf_patched import build, tokens  # noqa: E402
from interpreters import watched  # noqa: E402

from posenc_native import hf  # noqa: E402
from posenc_native.hf import kernels as hook  # noqa: E402
from posenc_native.hf import rotation  # noqa: E402
from posenc_native.hf.kernels import operators  # noqa: E402
from posenc_native.hf.kernels.functions import index_of  # noqa: E402

device = torch_cases.device

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Own(torch.nn.Module):
    """A decorated function of a model, as `kernels` wraps it."""

    kernel_layer_name = "rotary_pos_emb"

    def forward(self, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)

        def turned(x: Any) -> Any:
            first, second = x.chunk(2, dim=-1)
            return x * cos + torch.cat((-second, first), dim=-1) * sin

        return turned(q), turned(k)


@pytest.fixture
def layer() -> Own:
    return wrapped()


def wrapped() -> Own:
    module = Own()
    module.forward = MethodType(hook.RotaryPosEmb.forward, module)
    index_of(module, 8)  # probes, before calls are counted
    return module


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of our rotation."""
    seen: list[Any] = []
    real = rotation.apply_rotary_qk

    def counted(*args: Any, **kwargs: Any) -> Any:
        seen.append(args[0].dtype)
        return real(*args, **kwargs)

    monkeypatch.setattr(rotation, "apply_rotary_qk", counted)
    return seen


def inputs(
    dtype: Any = None, tables: Any = None, equal: bool = True, device: str = "cpu"
) -> list[Any]:
    """q, k, cos and sin, with halves of tables that are equal or not."""
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 5, h, 8, generator=random).transpose(1, 2) for h in (4, 2))
    cos, sin = torch.randn(2, 1, 5, 8, generator=random)
    if equal:
        cos, sin = (x[..., :4].repeat(1, 1, 2) for x in (cos, sin))
    dtypes = (dtype, dtype, tables or dtype, tables or dtype)
    return [x.to(device, d) for x, d in zip((q, k, cos, sin), dtypes, strict=True)]


@pytest.mark.parametrize("tables", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_result_has_the_dtype_of_a_product_and_is_rounded_once(
    layer: Own, calls: list[Any], dtype: Any, tables: Any, device: str
) -> None:
    args = inputs(dtype, tables, device=device)
    expected = Own()(*(x.double() for x in args))
    for ours, own, exact in zip(layer(*args), Own()(*args), expected, strict=True):
        assert ours.dtype == own.dtype
        assert (ours - exact).abs().max() <= torch.finfo(ours.dtype).eps * exact.abs().max()
    assert len(calls) == 1


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("compiled", [False, True])
def test_tables_whose_halves_differ_go_to_the_own_function(
    layer: Own, calls: list[Any], compiled: bool, device: str
) -> None:
    """HunYuan-VL has such tables for images, and equal halves for text."""
    function = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    text, image = inputs(device=device), inputs(equal=False, device=device)
    for args in (text, image):
        heads = [x.requires_grad_() for x in args[:2]]
        results = function(*args)
        expected = Own()(*args)
        gradients = torch.autograd.grad([x.sin().sum() for x in results], heads)
        wanted = torch.autograd.grad([x.sin().sum() for x in expected], heads)
        torch.testing.assert_close(results, expected)
        torch.testing.assert_close(gradients, wanted)
    used = len(calls)
    assert used >= 1
    text[2][..., 0] += 1  # after it was compared
    assert torch.equal(layer(*text)[0], Own()(*text)[0])
    assert len(calls) == used


def test_a_call_that_is_no_rotation_goes_to_the_own_function(layer: Own, calls: list[Any]) -> None:
    q, k, cos, sin = inputs()
    learned, learned_sin = (x.clone().requires_grad_() for x in (cos, sin))
    one_row = (q, k, cos[:, :1], sin[:, :1])
    more_tables = (q[:1], k[:1], cos.repeat(2, 1, 1), sin.repeat(2, 1, 1))
    of_sin = (q, k, cos, torch.cat((sin[..., :4], -sin[..., :4]), dim=-1))
    for args in ((q, k, learned, sin), (q, k, cos, learned_sin), of_sin, one_row, more_tables):
        assert torch.equal(layer(*args)[1], Own()(*args)[1])
    batched = torch.func.vmap(layer, (0, 0, None, None))
    args = (q[None], k[None], cos, sin)
    assert torch.equal(batched(*args)[0][0], Own()(q, k, cos, sin)[0])
    traced = torch.jit.trace(lambda *x: layer(*x), args)
    assert "aten::neg" in str(traced.graph)  # of the own function
    assert calls == []


def test_tables_of_inference_mode_are_compared_in_every_layer(layer: Own, calls: list[Any]) -> None:
    """They have no version that says whether they have been written to."""
    with torch.inference_mode():
        args = [x.clone() for x in inputs()]
        layer(*args)
        args[2][..., 0] += 1
        assert torch.equal(layer(*args)[0], Own()(*args)[0])
    assert len(calls) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_capture_cannot_compare_halves(layer: Own, calls: list[Any]) -> None:
    args = inputs(device="cuda")
    layer(*args)
    fresh = [x.clone() for x in args]
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        layer(*args)
        layer(*fresh)
    assert len(calls) == 2


def test_operators() -> None:
    """Their schema, fake, gradient and strides.

    In a process of its own: late in a run of all tests, torch's check of schemas ends with an
    internal error for operators that Python defines.
    """
    watched(f"""
        sys.path.append({str(Path(__file__).parent)!r})
        from test_kernels import check_operators, wrapped
        check_operators(wrapped())
    """)


def check_operators(layer: Own) -> None:
    args = [*inputs(), 1, index_of(layer, 8)]
    heads = [x.requires_grad_() for x in args[:2]]
    torch.library.opcheck(operators._operator, args)
    sliced = [torch.randn(2, 4, 5, 16)[..., :8].requires_grad_(), heads[1], *args[2:]]
    torch.library.opcheck(operators._operator, sliced)
    torch.library.opcheck(operators._backward_operator, [x.detach() for x in args[:4]] + args[4:])


def test_missing_package_or_changed_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from transformers.utils import import_utils

    monkeypatch.setattr(hook, "absent", lambda *_: ["kernels"])
    with pytest.raises(ImportError, match="mapping: needs pip install kernels"):
        hook.mapping()
    monkeypatch.setattr(hook, "absent", lambda *_: [])
    monkeypatch.setattr(hook, "version", lambda name: "9.9")
    monkeypatch.setitem(sys.modules, "kernels", SimpleNamespace(Mode=SimpleNamespace(INFERENCE=1)))
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda: False)
    with pytest.raises(ImportError, match=r"transformers 9\.9 calls kernels from .*, but 9\.9"):
        hook.mapping()
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda: True)
    with pytest.raises(ImportError, match=r"kernels 9\.9 has other modes .*TRAINING"):
        hook.mapping()


# --- models, with the package ---------------------------------------------------------------------


@pytest.fixture
def kernelize() -> Iterator[Any]:
    """kernels.kernelize with our mapping; afterwards the functions are the models' own."""
    kernels = pytest.importorskip("kernels", reason="make engine-kernels has it")
    if not transformers.utils.is_kernels_available():
        pytest.skip("transformers does not call this version of kernels; make engine-kernels")
    models = []

    def kernelized(model: Any, *modes: str) -> None:
        models.append(model)
        mode = kernels.Mode(0)
        for name in modes:
            mode |= kernels.Mode[name]
        kernels.kernelize(model, mode=mode, device="cpu")

    with kernels.use_kernel_mapping(hook.mapping(), inherit_mapping=False):
        yield kernelized
    with kernels.use_kernel_mapping({}, inherit_mapping=False):
        for model in models:
            kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu")


def results(model: Any, count: int = 24) -> list[Any]:
    """Logits, and the gradient of every parameter."""
    model.zero_grad()
    output = model(tokens(2, count)).logits
    output.square().mean().backward()
    return [output.detach(), *(p.grad.clone() for p in model.parameters())]


def close(ours: list[Any], own: list[Any]) -> None:
    """A rotation rounds three times in a model and once here; two layers pass that on."""
    for a, b in zip(ours, own, strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max() + 1e-9


# Halves; norms before the rotation; two kinds of tables; tables of half width; the other direction.
SERVED = ("Llama", "Qwen3", "Gemma3Text", "GptOss", "NanoChat")


@pytest.mark.parametrize("name", SERVED)
def test_models(kernelize: Any, calls: list[Any], name: str) -> None:
    model = build(name)
    own = results(model)
    kernelize(model, "TRAINING")
    ours = results(model)  # probes, and counts that too
    calls.clear()
    assert all(map(torch.equal, results(model), ours))
    assert len(calls) == model.config.num_hidden_layers
    close(ours, own)
    with torch.no_grad():
        kernelize(model, "INFERENCE")
        torch.testing.assert_close(model(tokens(2, 24)).logits, ours[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["Phi3", "Glm"])
def test_models_without_the_hook(kernelize: Any, calls: list[Any], name: str) -> None:
    """transformers decorates no partial and no interleaved rotation: they stay as they are."""
    model = build(name)
    own = results(model)
    kernelize(model, "TRAINING")
    calls.clear()
    assert all(map(torch.equal, results(model), own))
    assert calls == []


def test_patch_finds_the_function_behind_the_hook(kernelize: Any, calls: list[Any]) -> None:
    model = build("Llama")
    own = results(model)
    kernelize(model, "TRAINING")
    with hf.patch(model, inplace=False) as handle:
        assert "model.layers.0.self_attn" in handle.patched
        close(results(model), own)
    assert calls


@pytest.mark.usefixtures("nothing_compiled")
def test_compiled_model_of_dynamic_length(kernelize: Any, calls: list[Any]) -> None:
    model = build("Llama")
    own = [results(model, count) for count in (24, 9)]
    kernelize(model, "TRAINING", "TORCH_COMPILE")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    results(compiled)
    calls.clear()
    for count, expected in zip((24, 9), own, strict=True):
        close(results(compiled, count), expected)
    assert len(calls) == 8  # two layers, forward and backward, at two lengths


def test_mapping_has_every_device_and_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    import enum
    import sys

    from transformers.utils import import_utils

    mode = enum.Flag("Mode", "INFERENCE TRAINING TORCH_COMPILE")
    monkeypatch.setattr(hook, "absent", lambda *_: [])
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda: True)
    monkeypatch.setitem(sys.modules, "kernels", SimpleNamespace(Mode=mode))
    uses = [mode.INFERENCE, mode.TRAINING]
    modes = {*uses, *(use | mode.TORCH_COMPILE for use in uses)}
    mapped = hook.mapping()["rotary_pos_emb"]
    assert {device: {*kinds} for device, kinds in mapped.items()} == {"cpu": modes, "cuda": modes}
    # kernels keeps the model's own function where a layer lacks one of these.
    assert all(x.load().has_backward and x.load().can_torch_compile for x in mapped["cpu"].values())


def test_layer_is_a_repository_for_kernels() -> None:
    assert hook._Layer() == hook._Layer()
    assert hash(hook._Layer()) == hash(dataclasses.replace(hook._Layer()))
    assert hook._Layer().load() is hook.RotaryPosEmb
