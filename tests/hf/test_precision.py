"""`posenc_native.hf.patch`: casts, scalings and axes leave the phase exact."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch_cases  # noqa: E402
from hf_patched import COMMON, FAR, SHORT, TOKENS, build, distance, logits, tokens  # noqa: E402

from posenc_native import hf  # noqa: E402

device = torch_cases.device

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


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
    with hf.patch(model, inplace=False):
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
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 16},
    "longrope": {"factor": 2.0, "short_factor": [1.0 + i / 8 for i in range(8)],
                 "long_factor": [2.0 + i / 2 for i in range(8)],
                 "original_max_position_embeddings": 16},
}  # fmt: skip


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
