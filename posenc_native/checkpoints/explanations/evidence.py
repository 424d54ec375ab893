"""Guess the pairing of a checkpoint from the query and key weights of some layers."""

from __future__ import annotations

import os
import re
from typing import Any

from posenc_native.checkpoints.formats.description import Description
from posenc_native.checkpoints.weights import PairingEvidence, guess_pairing
from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.calls.errors import named
from posenc_native.core.calls.optional import absent, install_command
from posenc_native.encodings.rotary.rotary import Rotary

_QUERY = re.compile(r"(^|[._])(?P<name>q_proj|wq|attn_q)\.weight$")
_KEYS = {"q_proj": "k_proj", "wq": "wk", "attn_q": "attn_k"}
_LAYERS = 4  # to read: more layers give more evidence and cost more bytes


def evidence_of(
    path: str | os.PathLike[str], description: Description, function: str
) -> PairingEvidence:
    """`guess_pairing` for weights in a .safetensors file, with the head of a description.

    Raises:
        ValueError: the file has no such weights, or their shapes do not fit.
        OSError: the file cannot be read.
        ImportError: safetensors is not installed.
    """
    if absent("safetensors"):
        said = f"{function}: weights need the package safetensors: {install_command('safetensors')}"
        raise ImportError(said, name="safetensors")
    from safetensors import SafetensorError, safe_open

    arguments = (group.arguments for group in description.groups)
    rotary = Rotary(**next(entry for entry in arguments if entry is not None))
    # torch reads bfloat16, which NumPy does not have.
    framework = "numpy" if absent("torch") else "pt"
    path = os.fspath(path)
    with open(path, "rb") as opened:  # raises a clear error for an unreadable path
        is_gguf = opened.read(4) == b"GGUF"
    if is_gguf:
        hint = "its weights cannot be read: if they were permuted, say --permuted (permuted=True)"
        wrong_value(function, "weights", "a .safetensors file of floats", "a GGUF file", hint)
    try:
        with safe_open(path, framework) as file:
            layers = _some_layers(file)
    except (SafetensorError, TypeError) as error:
        wrong_value(function, "weights", "a .safetensors file of floats", str(error)[:160])
    if not layers:
        expected = f"weights named {', '.join(_KEYS)} and {', '.join(_KEYS.values())}"
        wrong_value(function, "weights", expected, f"none in {path}")
    with named(function):
        return guess_pairing(
            layers,
            rotary.head_dim,
            rotary_dim=rotary.rotary_dim,
            rotary_start=rotary.rotary_start,
        )


def _some_layers(file: Any) -> list[tuple[Any, Any]]:
    names = {*file.keys()}
    pairs = []
    for name in sorted(names):
        match = _QUERY.search(name)
        if match is None:
            continue
        key = f"{name[: match.start('name')]}{_KEYS[match['name']]}.weight"
        if key in names:
            pairs.append((name, key))
    # Spread over the depth of the model: the first layers often depend little on positions.
    step = max(1, len(pairs) // _LAYERS)
    return [
        (file.get_tensor(query), file.get_tensor(key)) for query, key in pairs[::step][:_LAYERS]
    ]
