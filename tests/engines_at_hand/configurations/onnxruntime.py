"""ONNX files for ONNX Runtime: an operator that rotates, and the frequencies of its caches."""

from __future__ import annotations

from typing import Any

_OPERATORS = ("com.microsoft.RotaryEmbedding", "ai.onnx.RotaryEmbedding", "GroupQueryAttention")


def configurations() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for operator in _OPERATORS:
        attention = operator == "GroupQueryAttention"
        for interleaved in (0, 1):
            pairing = ("half", "interleaved")[interleaved]
            whole = {"interleaved": interleaved}
            some = whole if attention else whole | {"rotary_embedding_dim": 16, "num_heads": 1}
            for kind, pairs, given, others in (
                ("whole heads", 16, whole, {}),
                ("some dims", 8, some, {}),
                ("magnitude", 16, whole, {"magnitude": 1.25}),
            ):
                made[f"{operator}, {pairing}, {kind}"] = {
                    "operator": operator, "head_dim": 32, "attributes": given,
                    "frequencies": [10000.0 ** (-i / pairs) for i in range(pairs)], **others,
                }  # fmt: skip
        irregular = {"frequencies": [1.0, 0.7, 0.3, 0.25, 0.1, 0.03, 0.001, 0.0005]}
        sizes = {"operator": operator, "head_dim": 16, "attributes": {}}
        made[f"{operator}, no base"] = sizes | irregular
    for scale in (0.5, 2.0):
        made[f"com.microsoft.RotaryEmbedding, scale {scale}"] = {
            "operator": _OPERATORS[0],
            "head_dim": 16,
            "attributes": {"scale": scale},
        } | irregular
    return made
