"""`posenc_native.hf.patch` on tiny random models of transformers' own classes.

Tolerances. transformers computes a phase in float32: at position p it is off by up to
p * 2**-24 radians, and so are cos and sin. At the 24 positions of the short tests that is 1.4e-6,
about as much as float32 rounds elsewhere; logits may differ by 1e-4 of their spread. At positions
around 60 000 it is 3.6e-3, and the patched model must be closer by far to one in float64.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import pickle
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch_cases  # noqa: E402
from hf_patched import ARCHITECTURES, FAR, SHORT, TOKENS, build, distance, logits, tokens, traces  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from posenc_native import hf  # noqa: E402

device = torch_cases.device

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


EXPERTS = ("DeepseekV3", "GptOss")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture(name: str, device: str) -> None:
    if device != "cpu" and name in EXPERTS:
        pytest.skip("experts are summed up in no fixed order there: no bits to compare")
    model = build(name).to(device)
    before = logits(model)
    assert distance(logits(model, step=0), before) > 1e-2  # so positions matter to these logits

    handle = hf.patch(model)
    assert handle.patched
    assert not handle.skipped
    assert len(traces(model)) >= 2 * 2
    patched = logits(model)
    assert distance(patched, before) < SHORT

    # Far from 0 transformers' phase is off; a patched model in float64 is the truth.
    ours = logits(model, FAR)
    truth = logits(copy.deepcopy(model).double(), FAR)
    handle.undo()
    assert distance(ours, truth) < SHORT
    assert distance(logits(model, FAR), truth) > 10 * distance(ours, truth)

    assert torch.equal(logits(model), before)
    assert not traces(model)
    for inplace in (False, True):
        with hf.patch(model, inplace=inplace):
            assert torch.equal(logits(model), patched)


@pytest.mark.parametrize("name", ["Llama", "Gemma3Text", "GPTNeoX", "Cohere", "GPTJ"])
def test_generate_gives_the_same_tokens(name: str, device: str) -> None:
    model, ids = build(name).to(device), tokens().to(device)
    arguments = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **arguments)
    with hf.patch(model):
        assert torch.equal(model.generate(ids, **arguments), expected)
        without_cache = model.generate(ids, use_cache=False, **arguments)
        assert torch.equal(without_cache, expected)
    assert not traces(model)


@pytest.mark.parametrize("save", [pickle.dumps, lambda model: torch.save(model, io.BytesIO())])
def test_a_patched_model_says_why_it_cannot_be_pickled(save: Callable[[Any], Any]) -> None:
    model = build("Llama")
    with hf.patch(model) as handle:
        twin = copy.deepcopy(model)
        for one in (model, handle, twin):
            with pytest.raises(TypeError, match=r"call handle\.undo\(\) first"):
                save(one)
        torch.save(model.state_dict(), io.BytesIO())
        assert torch.equal(logits(twin), logits(model))
    hf.unpatch(twin)
    assert not traces(twin)
    save(model)
    save(twin)


@pytest.mark.parametrize("inplace", [None, False, True])
@pytest.mark.parametrize("name", ["Llama", "Cohere", "GPTJ", "DeepseekV3"])
def test_gradients(name: str, inplace: bool | None, device: str) -> None:
    model, ids = build(name).to(device).train(), tokens().to(device)

    def gradients() -> Any:
        model.zero_grad()
        torch.manual_seed(0)  # dropout
        model(ids, labels=ids).loss.backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    with hf.patch(model, inplace=inplace):
        actual = gradients()
    assert actual.keys() == expected.keys()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(
            actual[parameter], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max() + 1e-6)
        )


@pytest.fixture
def _defaults() -> Any:
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


@pytest.mark.usefixtures("_defaults")
@pytest.mark.parametrize("name", ["Qwen3", "GPTJ"])
def test_no_default_of_torch_changes_the_patch(name: str) -> None:
    model = build(name).half()

    def description() -> Any:
        found = []
        for fuse_norm in (False, True):
            with hf.patch(model, fuse_norm=fuse_norm) as handle:
                buffers = {n: float(b.double().sum()) for n, b in model.named_buffers()}
                found.append((handle.patched, handle.fused, handle.notes, handle.skipped, buffers))
        return found

    expected = description()
    assert bool(expected[1][1]) == (name == "Qwen3")
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        torch.set_default_dtype(dtype)
        assert description() == expected
    torch.set_default_dtype(torch.float32)
    for default in ("meta", "cpu"):
        torch.set_default_device(default)
        assert description() == expected


@pytest.mark.usefixtures("_defaults")
def test_no_module_of_ours_keeps_tensors_on_a_default_device() -> None:
    torch.set_default_device("meta")
    for info in pkgutil.walk_packages(hf.__path__, "posenc_native.hf."):
        spec = importlib.util.find_spec(info.name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        held = [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
        assert not any(tensor.is_meta for tensor in held)


@pytest.mark.parametrize("options", [{}, {"inplace": True}, {"fuse_norm": True}], ids=str)
def test_forward_mode(options: dict[str, bool], device: str) -> None:
    model = build("Qwen3").to(device).double()
    model.config._attn_implementation = "eager"  # torch's own attention has no forward mode
    embeddings = model.model.embed_tokens(tokens().to(device)).detach()
    tangent = torch.randn(embeddings.shape, dtype=torch.float64).to(device)

    def derivative() -> Any:
        def run(x: Any) -> Any:
            return model(inputs_embeds=x, use_cache=False).logits

        with torch.no_grad():
            return torch.func.jvp(run, (embeddings,), (tangent,))[1]

    expected = derivative()
    with hf.patch(model, **options):
        assert distance(derivative(), expected) < SHORT


def test_in_place_means_where_q_and_k_are(device: str) -> None:
    model = build("Llama").to(device)
    attention = model.model.layers[0].self_attn
    q, k = torch.randn(2, 4, 5, 16, device=device), torch.randn(2, 1, 5, 16, device=device)
    k = k.expand(2, 2, 5, 16)
    with hf.patch(model, inplace=True):
        rotate = attention.forward.__globals__["apply_rotary_pos_emb"]
        cos, sin = model.model.rotary_emb(q, torch.arange(5, device=device)[None])
        before_q, before_k = q.clone(), k.clone()
        with torch.no_grad():
            rotated_q, rotated_k = rotate(q, k, cos, sin)
        assert rotated_q is q
        assert not torch.equal(q, before_q)
        # Several heads of k are one in memory: that cannot be turned in place.
        assert torch.equal(k, before_k)
        assert torch.equal(rotated_k[:, 0], rotated_k[:, 1])
        weights = torch.randn(2, 4, 5, 16, device=device, requires_grad=True)
        again, _ = rotate(weights, k, cos, sin)
        assert again.requires_grad
        assert again is not weights


def rotations(call: Any) -> list[str]:
    """The operators that a call rotates by."""
    names: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if "posenc_native.rotary" in str(func) and "rotary_tables" not in str(func):
                names.append(str(func).removeprefix("posenc_native.").removesuffix(".default"))
            return func(*args, **(kwargs or {}))

    with Watch():
        call()
    return names


@torch_cases.needs_operators
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", ["Llama", "GPTNeoX", "Cohere", "DeepseekV3"])
def test_q_and_k_of_a_layer_are_one_call(name: str, inplace: bool, device: str) -> None:
    if reason := torch_cases.why_no_kernels(device):
        pytest.skip(reason)
    model = build(name).to(device)
    expected = ["rotary_qk_from_tables" + "_" * inplace] * 2
    with hf.patch(model, inplace=inplace):
        assert rotations(lambda: logits(model)) == expected
        with torch.inference_mode():
            assert rotations(lambda: logits(model)) == expected


@torch_cases.needs_operators
def test_what_q_and_k_differ_in_needs_two_calls(device: str) -> None:
    if reason := torch_cases.why_no_kernels(device):
        pytest.skip(reason)
    model = build("Llama").to(device)
    q, k = torch.randn(2, 4, 5, 16, device=device), torch.randn(2, 2, 5, 16, device=device)
    with hf.patch(model, inplace=True):
        rotate = model.model.layers[0].self_attn.forward.__globals__["apply_rotary_pos_emb"]
        tables = model.model.rotary_emb(q, torch.arange(5, device=device)[None])
        expected = [t.clone() for t in rotate(q.clone(), k.clone(), *tables)]
        for each_q, each_k in ((q, k[:1]), (q, k.double()), (q, k[:, :1].expand(2, 2, 5, 16))):
            copies = each_q.clone(), each_k if 0 in each_k.stride() else each_k.clone()
            alone = rotate(copies[1], copies[1], *tables)[1].clone()
            rotated: list[Any] = []
            names = rotations(lambda c=copies, r=rotated: r.extend(rotate(*c, *tables)))
            assert len(names) == 2
            assert torch.equal(rotated[0], expected[0])
            assert torch.equal(rotated[1], alone)
        # One tensor for both is turned once.
        assert all(torch.equal(t, expected[0]) for t in rotate(q, q, *tables))


@pytest.mark.parametrize("inplace", [None, False, True])
@pytest.mark.parametrize("name", ["Llama", "GPTJ"])
def test_inference_mode(name: str, inplace: bool | None, device: str) -> None:
    model = build(name).to(device)
    with hf.patch(model, inplace=inplace):
        expected = logits(model, FAR)
        with torch.inference_mode():
            assert torch.equal(logits(model, FAR), expected)


def test_a_patched_model_moves_to_another_device(device: str) -> None:
    for name in ("Llama", "GPTJ"):
        moved, there = build(name), build(name).to(device)
        with hf.patch(moved), hf.patch(there):
            moved.to(device)
            assert torch.equal(logits(moved, FAR), logits(there, FAR))
        assert torch.equal(logits(moved, FAR), logits(there, FAR))


def test_left_padding_gives_a_row_its_own_positions(device: str) -> None:
    model = build("Llama").to(device)
    ids, mask = tokens(3).to(device), torch.ones(3, TOKENS, dtype=torch.long, device=device)
    mask[1, :5] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    arguments = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    with torch.no_grad():
        expected = model(**arguments).logits
        with hf.patch(model):
            assert distance(model(**arguments).logits, expected) < SHORT


def test_heads_that_are_too_narrow_for_all_coordinates() -> None:
    """Two pairs, of time and height; positions have a width all the same, which turns nothing."""
    kind = pytest.importorskip(
        "transformers.models.qwen3_5.modeling_qwen3_5",
        reason="this transformers has no Qwen3.5, whose heads turn in part, by three axes",
    )
    configuration = transformers.Qwen3_5TextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, head_dim=16,
        num_attention_heads=4, num_key_value_heads=2, linear_num_value_heads=4,
        linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model = kind.Qwen3_5TextModel(configuration).eval()
    ids = torch.arange(7)[None]
    with torch.no_grad():
        own = model(ids).last_hidden_state
        with hf.patch(model) as handle:
            assert not handle.skipped
            torch.testing.assert_close(model(ids).last_hidden_state, own)
