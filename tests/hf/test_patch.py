"""`posenc_native.hf.patch` on tiny random models of transformers' own classes.

Tolerances. transformers computes a phase in float32: at position p it is off by up to
p * 2**-24 radians, and so are cos and sin. At the 24 positions of the short tests that is 1.4e-6,
about as much as float32 rounds elsewhere; logits may differ by 1e-4 of their spread. At positions
around 60 000 it is 3.6e-3, and the patched model must be closer by far to one in float64.
"""

from __future__ import annotations

import copy
import gc
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch_cases  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from posenc_native import hf  # noqa: E402

device = torch_cases.device

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """These models are too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SHORT = 1e-4  # of the spread of the logits
TOKENS = 24
FAR = 60_000
VOCABULARY = 64

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 65536,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GPTJ = {
    "vocab_size": VOCABULARY,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "rotary_dim": 8,
    "n_positions": 65536,
    "bos_token_id": 1,
    "eos_token_id": None,
}
HEADS_OF_16 = {"head_dim": 16}
DEEPSEEK = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": COMMON,
    "Mistral": COMMON,
    "Qwen2": COMMON,
    "Qwen3": COMMON | HEADS_OF_16,
    "Gemma": COMMON | HEADS_OF_16,
    "Gemma2": COMMON | HEADS_OF_16,
    # One frequency vector a kind of layer.
    "Gemma3Text": COMMON | HEADS_OF_16 | {"layer_types": ["sliding_attention", "full_attention"]},
    "Phi3": COMMON,
    "Olmo": COMMON,
    # A part of each head, sliced by the rotary function (GPT-NeoX) or by the attention.
    "GPTNeoX": COMMON | {"rotary_pct": 0.5},
    "Phi": COMMON | {"partial_rotary_factor": 0.5},
    "StableLm": COMMON | {"partial_rotary_factor": 0.5},
    # Neighbours are pairs; tables with repeated values (Cohere), in halves (GLM), of one's own.
    "Cohere": COMMON,
    "Glm": COMMON | HEADS_OF_16,
    "GPTJ": GPTJ,
    "CodeGen": GPTJ,
    # Pairs of neighbours go in, halves come out; tables of half width; the other direction.
    "DeepseekV3": COMMON | DEEPSEEK,
    "GptOss": COMMON
    | HEADS_OF_16
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"},
    "NanoChat": COMMON,
}


EXPERTS = ("DeepseekV3", "GptOss")


def build(name: str, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**(ARCHITECTURES[name] | kwargs))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:  # attention of a fresh model hardly looks at positions
            torch.nn.init.normal_(parameter, 0.0, 0.15)
    return model


def tokens(batch: int = 2, count: int = TOKENS) -> Any:
    return torch.randint(2, VOCABULARY, (batch, count), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model: Any, first: int = 0, ids: Any = None, step: int = 1) -> Any:
    here = next(model.parameters()).device
    ids = (tokens() if ids is None else ids).to(here)
    positions = first + step * torch.arange(ids.shape[1], device=here)[None]
    return model(input_ids=ids, position_ids=positions).logits


def distance(a: Any, b: Any) -> float:
    """Largest difference as a fraction of the spread of b."""
    return float((a.double() - b.double()).abs().max() / b.double().std())


def traces(model: Any) -> list[str]:
    names = ("forward", "_apply", "_posenc_native")
    return [name for module in model.modules() for name in names if name in module.__dict__]


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
    with hf.patch(model, inplace=True):
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


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", ["Llama", "Cohere", "GPTJ", "DeepseekV3"])
def test_gradients(name: str, inplace: bool, device: str) -> None:
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


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", ["Llama", "GPTJ"])
def test_inference_mode(name: str, inplace: bool, device: str) -> None:
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


# --- compiled -------------------------------------------------------------------------------------


@pytest.fixture
def _fresh_compiler() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    gc.collect()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("inplace", [False, True])
def test_compile_whole_model(inplace: bool, device: str) -> None:
    model = build("Llama").to(device)
    with hf.patch(model, inplace=inplace):
        expected = logits(model)
        compiled = torch.compile(model, fullgraph=True)
        assert distance(logits(compiled), expected) < SHORT


@pytest.mark.usefixtures("_fresh_compiler")
def test_compile_with_gradients_and_dynamic_lengths() -> None:
    model = build("Llama")
    with hf.patch(model):
        # aot_eager: the graph of inductor without its code generator, which is not ours to test.
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
        for count in (TOKENS, 9, 33):
            ids = tokens(2, count)
            model.zero_grad()
            model(ids).logits.square().mean().backward()
            expected = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            compiled(ids).logits.square().mean().backward()
            for parameter, gradient in zip(model.parameters(), expected, strict=True):
                assert (parameter.grad - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-9


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("name", ["Gemma3Text", "Cohere", "GPTJ"])
def test_compile_other_forms(name: str) -> None:
    model = build(name)
    with hf.patch(model):
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        assert distance(logits(compiled), logits(model)) < SHORT


@pytest.mark.usefixtures("_fresh_compiler")
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


# --- instances, not classes -----------------------------------------------------------------------


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


# --- precision ------------------------------------------------------------------------------------


def exact_tables(inv_freq: Any, first: int) -> tuple[Any, Any]:
    phases = torch.arange(first, first + TOKENS, dtype=torch.float64)[:, None] * inv_freq.double()
    return phases.cos(), phases.sin()


@pytest.mark.parametrize("cast", ["half", "bfloat16", "double"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_casting_the_model_does_not_touch_the_phase(cast: str, when: str) -> None:
    model, untouched = build("Llama"), build("Llama")
    frequencies = model.model.rotary_emb.inv_freq.clone()
    if when == "before":
        getattr(model, cast)()
    handle = hf.patch(model)
    if when == "after":
        getattr(model, cast)()
    getattr(untouched, cast)()
    rotary = model.model.rotary_emb
    x = torch.zeros(1, dtype=next(model.parameters()).dtype)
    tables = rotary(x, position_ids=torch.arange(FAR, FAR + TOKENS)[None])
    for table, exact in zip(tables, exact_tables(frequencies, FAR), strict=True):
        assert table.dtype == (torch.float64 if cast == "double" else torch.float32)
        assert (table[0] - exact).abs().max() < 2e-7
    assert model(tokens()).logits.dtype == x.dtype
    handle.undo()
    for name, buffer in untouched.named_buffers():
        assert torch.equal(dict(model.named_buffers())[name], buffer), name
    assert torch.equal(logits(model), logits(untouched))


def test_own_frequencies_are_kept() -> None:
    model = build("Llama").bfloat16()
    own = model.model.rotary_emb.inv_freq * 0.75
    model.model.rotary_emb.inv_freq = own
    with hf.patch(model):
        cos, _ = model.model.rotary_emb(torch.zeros(1), torch.arange(100)[None])
        assert torch.equal(model.model.rotary_emb.inv_freq, own.float())
        exact = (torch.arange(100.0).double()[:, None] * own.double()).cos()
        assert (cos[0] - exact).abs().max() < 2e-7


@pytest.mark.parametrize("name", ["Llama", "Cohere"])
def test_bfloat16_is_rounded_once(name: str, device: str) -> None:
    model = build(name).to(device).bfloat16()
    attention = model.model.layers[0].self_attn
    q = torch.randn(1, 4, TOKENS, 16, dtype=torch.bfloat16).to(device)
    positions = torch.arange(TOKENS, device=device)[None]

    def rotated(model_dtype: Any) -> Any:
        x = torch.zeros(1, dtype=model_dtype, device=device)
        tables = model.model.rotary_emb(x, positions)
        rotate = attention.forward.__globals__["apply_rotary_pos_emb"]
        return rotate(q.to(model_dtype), q.to(model_dtype), *tables)[0]

    theirs = rotated(torch.bfloat16)
    with hf.patch(model):
        ours, exact = rotated(torch.bfloat16), rotated(torch.float64)
    assert ours.dtype == torch.bfloat16
    # The last bit may differ where float32 arithmetic falls on the other side of a boundary.
    assert (ours == exact.bfloat16()).float().mean() > 0.999
    assert (theirs == exact.bfloat16()).float().mean() < 0.95


def test_tables_of_gptj_survive_the_cast_to_bfloat16() -> None:
    model = build("GPTJ").bfloat16()
    positions = torch.arange(FAR, FAR + TOKENS)[None]
    with hf.patch(model):
        rows = model.transformer.h[0].attn._get_embed_positions(positions)[0, positions[0]]
        assert torch.equal(rows.bfloat16().float(), rows)
        sin, cos = (sum(half.chunk(3, dim=1)) for half in rows.chunk(2, dim=1))
    frequencies = 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8)
    for table, exact in zip((cos, sin), exact_tables(frequencies, FAR), strict=True):
        assert (table - exact).abs().max() < 2e-7


def test_autocast_keeps_the_tables(device: str) -> None:
    model, positions = build("Llama").to(device), torch.arange(9, device=device)[None]
    with hf.patch(model), torch.autocast(device, torch.bfloat16), torch.no_grad():
        cos, sin = model.model.rotary_emb(torch.zeros(1, device=device), positions)
        assert cos.dtype == sin.dtype == torch.float32
        model(tokens().to(device))


SCALINGS = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "longrope": {
        "factor": 2.0,
        "short_factor": [1.0 + i / 8 for i in range(8)],
        "long_factor": [2.0 + i / 2 for i in range(8)],
        "original_max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize("cast", [False, True], ids=["float32", "cast"])
@pytest.mark.parametrize("kind", SCALINGS)
def test_scalings_with_their_changes_of_length(kind: str, cast: bool, device: str) -> None:
    parameters = {"rope_type": kind, "rope_theta": 10000.0} | SCALINGS[kind]
    model = build("Llama", max_position_embeddings=16, rope_parameters=parameters).to(device)
    theirs = copy.deepcopy(model)
    if cast:  # there and back: the frequencies of a model that is not patched are rounded then
        model.bfloat16()
    handle = hf.patch(model)
    if cast:
        model.float()
        model.load_state_dict(theirs.state_dict())
    # Short, beyond the trained length, short again: the frequencies follow.
    for count in (10, 40, 10, 60):
        assert distance(logits(model, 0, tokens(2, count)), logits(theirs, 0, tokens(2, count))) < (
            SHORT
        )
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    torch.testing.assert_close(
        model.model.rotary_emb.inv_freq, theirs.model.rotary_emb.inv_freq, rtol=0, atol=0
    )
    handle.undo()
    if not cast:
        assert torch.equal(logits(model), logits(theirs))


# --- several position axes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sections"), [("Qwen2VLText", [2, 3, 3]), ("Qwen3VLText", [4, 2, 2])]
)
def test_multi_axis_positions(name: str, sections: list[int], device: str) -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
    config = getattr(transformers, f"{name}Config")(**(COMMON | {"rope_parameters": rope}))
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.15)
    axes = torch.randint(0, 40, (3, 2, TOKENS), generator=torch.Generator().manual_seed(2))
    model, axes, ids = model.to(device), axes.to(device), tokens().to(device)
    with torch.no_grad():
        several = model(input_ids=ids, position_ids=axes).last_hidden_state
        text = model(input_ids=ids).last_hidden_state
        mixed = model(input_ids=ids, position_ids=axes.flip(0)).last_hidden_state
        assert distance(mixed, several) > 1e-2  # the axes are told apart
        with hf.patch(model):
            ours = model(input_ids=ids, position_ids=axes).last_hidden_state
            assert distance(ours, several) < SHORT
            assert distance(model(input_ids=ids).last_hidden_state, text) < SHORT


# --- what cannot be patched -----------------------------------------------------------------------


def test_not_a_module() -> None:
    with pytest.raises(TypeError, match=r"patch: model: expected a torch.nn.Module, got str"):
        hf.patch("meta-llama/Llama-3.2-1B")  # type: ignore[arg-type]


def test_model_without_rotary_encoding() -> None:
    config = transformers.GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=8)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=r"apply_rotary_pos_emb.*got none.*GPT2Attention"):
        hf.patch(model)
    assert not traces(model)


def test_patched_already() -> None:
    model = build("Llama")
    with hf.patch(model):
        with pytest.raises(ValueError, match=r"not patched, got one .*'model.*undo"):
            hf.patch(model)
        assert len(traces(model)) == 2 * 2 + 3  # of the first patch


def test_weights_must_be_loaded() -> None:
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON))
    with pytest.raises(ValueError, match="meta device"):
        hf.patch(model)


def test_replaced_forward_is_not_replaced_again() -> None:
    model = build("Llama")
    attention = model.model.layers[1].self_attn
    attention.forward = lambda *args, **kwargs: None
    with pytest.raises(ValueError, match="replaced by something else"):
        hf.patch(model)
    del attention.forward
    assert not traces(model)


class OwnRotary(torch.nn.Module):
    def __init__(self, pairs: int = 4) -> None:
        super().__init__()
        self.inv_freq = torch.nn.Buffer(torch.logspace(0, -2, pairs), persistent=False)

    def forward(self, x: Any, position_ids: Any) -> Any:
        phase = position_ids[..., None].float() * self.inv_freq
        return torch.cat((phase, phase), -1).cos(), torch.cat((phase, phase), -1).sin()


class SquaredRotary(OwnRotary):
    def forward(self, x: Any, position_ids: Any) -> Any:
        phase = position_ids[..., None].float().square() * self.inv_freq
        return torch.cat((phase, phase), -1).cos(), torch.cat((phase, phase), -1).sin()


class ShiftedRotary(OwnRotary):
    def forward(self, x: Any, position_ids: Any) -> Any:
        near = position_ids.clamp(max=200)
        return super().forward(x, torch.where(position_ids < 200, near, near + 5))

    max_seq_len_cached = 100


class LearnedRotary(OwnRotary):
    def __init__(self) -> None:
        super().__init__()
        self.alpha = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: Any, position_ids: Any) -> Any:
        return super().forward(x, position_ids * self.alpha)


def rotate_usual(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    turned = [torch.cat((-x[..., 4:], x[..., :4]), -1) for x in (q, k)]
    return q * cos + turned[0] * sin, k * cos + turned[1] * sin


def rotate_queries_only(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    return rotate_usual(q, k, cos, sin, unsqueeze_dim)[0], k


def rotate_with_mask(q: Any, k: Any, cos: Any, sin: Any, mask: Any) -> Any:
    return rotate_usual(q, k, cos, sin)


class Attention(torch.nn.Module):
    cut: int | None = None

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        return rotate_usual(x, x, cos[..., : self.cut], sin[..., : self.cut])


class QueriesOnly(Attention):
    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        return rotate_queries_only(x, x, cos, sin)


class WithMask(Attention):
    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        return rotate_with_mask(x, x, cos, sin, None)


class Model(torch.nn.Module):
    def __init__(self, rotary: Any, *attentions: Any) -> None:
        super().__init__()
        self.rotary, self.layers = rotary, torch.nn.ModuleList(attentions)

    def forward(self, x: Any) -> Any:
        cos, sin = self.rotary(x, position_ids=torch.arange(x.shape[2])[None])
        return [layer(x, cos, sin) for layer in self.layers]


def test_models_from_elsewhere_are_served_by_what_they_do() -> None:
    model, x = Model(OwnRotary(), Attention(), Attention()), torch.randn(2, 3, 7, 8)
    before = model(x)
    with hf.patch(model) as handle:
        assert handle.patched == ("rotary", "layers.0", "layers.1")
        for a, b in zip(model(x), before, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rotary", "attention", "reason"),
    [
        (SquaredRotary(), Attention(), "SquaredRotary makes tables of an unknown form"),
        (ShiftedRotary(), Attention(), "ShiftedRotary computes its tables in its own way"),
        (LearnedRotary(), Attention(), "LearnedRotary has parameters or other buffers"),
        (OwnRotary(), torch.nn.Identity(), "no attention module around it calls"),
        (torch.nn.Identity(), Attention(), "no rotary embedding above it"),
    ],
)
def test_unknown_ways_are_left_alone(rotary: Any, attention: Any, reason: str) -> None:
    model = Model(rotary, attention)
    with pytest.raises(ValueError, match=reason):
        hf.patch(model)
    assert not traces(model)


@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        (QueriesOnly(), "rotate_queries_only rotates q and k in different ways"),
        (WithMask(), "rotate_with_mask has unknown arguments: q, k, cos, sin, mask"),
    ],
)
def test_unknown_functions_get_exact_tables_in_their_form(attention: Any, reason: str) -> None:
    model = Model(OwnRotary(), Attention(), attention)
    near, far = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 60_000, 8)
    expected = model(near)
    exact = [[t.double() for t in each] for each in copy.deepcopy(model).double()(far.double())]
    with hf.patch(model) as handle:
        assert [*handle.notes] == ["layers.1"]
        note = f"rotated by the model's own function, with exact tables: {reason}"
        assert handle.notes["layers.1"] == note
        for ours, theirs in zip(model(near), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        # Sums of two products of float32; a float32 phase would be off by 60000 * 2**-24 = 4e-3.
        for ours, theirs in zip(model(far), exact, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                assert (a - b).abs().max() < 1e-5
    assert not traces(model)


def test_a_group_is_patched_as_a_whole_or_not_at_all() -> None:
    served, other = Model(OwnRotary(), Attention()), Model(SquaredRotary(), Attention())
    both = torch.nn.ModuleDict({"served": served, "other": other})
    with hf.patch(both) as handle:
        assert handle.patched == ("served.rotary", "served.layers.0")
        assert set(handle.skipped) == {"other.rotary", "other.layers.0"}
        assert "unknown form" in handle.skipped["other.layers.0"]
        assert not traces(other)


def test_tables_cut_for_their_old_width_are_an_error() -> None:
    model, x = Model(OwnRotary(), Attention()), torch.randn(2, 3, 7, 8)
    with hf.patch(model):
        model(x)
        model.layers[0].cut = 2
        with pytest.raises(ValueError, match=r"expected tables of \[4\] columns, got 2"):
            model(x)
        model.layers[0].cut = None
        with pytest.raises(ValueError, match="expected heads of size 8, got 10"):
            model(torch.randn(2, 3, 7, 10))


def test_decorators_stay() -> None:
    # torch.no_grad() around transformers' forward: tables have no history.
    model = build("Llama")
    with hf.patch(model):
        cos, _ = model.model.rotary_emb(torch.zeros(1), torch.arange(4)[None])
        assert not cos.requires_grad
        forward = type(model.model.rotary_emb).forward
        assert model.model.rotary_emb.forward.__func__.__code__ is forward.__code__
    assert math.isclose(float(cos[0, 0, 0]), 1.0)
