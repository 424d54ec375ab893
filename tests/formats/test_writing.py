"""explain --as: what one format writes, its reader reads as the same rotation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from published import PUBLISHED

import posenc_native as pn
from posenc_native.formats.binary.gguf import described
from posenc_native.formats.reading import FORMATS, read
from posenc_native.formats.writing import WRITERS, write

FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def read_again(form: str, entries: dict[str, Any]) -> Any:
    if form == "gguf":
        kept = {key: value for key, value in entries.items() if key not in FACTORS}
        factors = {key.removesuffix(".weight"): np.array(entries[key]) for key in FACTORS
                   if key in entries}  # fmt: skip
        return described(kept, factors, "again", "read")
    if form == "megatron":
        entries = {"hidden_size": 4096, "num_attention_heads": 32, **entries}
    if form == "mistral":
        entries = {"dim": 4096, "n_heads": 32, "hidden_dim": 1, **entries}
    return FORMATS["hf" if form == "hf" else form].read(entries, "again", "read")


CASES = [(form, name) for form in WRITERS for name in PUBLISHED]


@pytest.mark.parametrize(("form", "name"), CASES)
def test_what_is_written_is_read_as_the_same(form: str, name: str) -> None:
    """Unless the writer says that something is lost; then that is what differs."""
    layers = {} if "layer_types" in PUBLISHED[name] else {"num_hidden_layers": 12}
    model = read({**PUBLISHED[name], **layers}, "read")
    written = write(model, form)
    found = pn.compare(model, read_again(form, written.entries), permuted=True)
    # Pairings aside, which the writers speak of where a format cannot choose.
    assert not found or written.lost, str(found)
    assert all(sentence.endswith(".") for sentence in written.lost)


@pytest.mark.parametrize(
    ("form", "name", "lost"),
    [
        ("hf", "command-r", "pairing (interleaved)"),
        ("hf", "deepseek-v3", "softmax correction"),
        ("gguf", "gpt-oss", "truncate false"),
        ("gguf", "llama-3.1", "weights of queries and keys have to be permuted"),
        ("megatron", "gemma-3-4b", "one rotation for all layers"),
        ("megatron", "phi-3.5-mini", "scaling longrope"),
        ("mistral", "llama-3.1", "scaling llama3"),
        ("mistral", "qwen3", "pairing half"),
    ],
)
def test_what_cannot_be_said_is_said(form: str, name: str, lost: str) -> None:
    written = write(read({**PUBLISHED[name], "num_hidden_layers": 12}, "read"), form)
    assert any(lost in sentence for sentence in written.lost), written.lost


@pytest.mark.parametrize("form", ["gguf", "megatron"])
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2-lite"])
def test_latent_attention_keeps_its_softmax_correction(form: str, name: str) -> None:
    """Also of a file whose scaling does not name mscale_all_dim."""
    model = read({**PUBLISHED[name], "num_hidden_layers": 12}, "read")
    for source in (model, read_again("gguf", write(model, "gguf").entries)):
        written = write(source, form)
        assert written.lost == []
        assert not pn.compare(source, read_again(form, written.entries))


def test_a_model_without_rotation_is_said_to_have_none() -> None:
    config = {"model_type": "smollm3", "head_dim": 64, "num_hidden_layers": 2}
    written = write(read({**config, "no_rope_layers": [0, 0]}, "read"), "gguf")
    assert written.entries == {}
    assert written.lost == ["A model without rotary encoding."]
