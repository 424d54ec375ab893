"""Checkpoints: find the pairing of weights, and convert weights to another pairing.

    `guess_pairing`         from the weights alone
    `expected_pairing`      from known correct results: the reliable check
    `permute_qk`            the heads of q or k reordered for another pairing
    `permute_state_dict`    all of a state dict

`explain` and `compare` are names of posenc_native: they read how a checkpoint rotates from the
files of transformers, Meta, Mistral, MLX, llama.cpp (GGUF), ONNX, Megatron, TorchTitan, torchtune,
vLLM, SGLang and TensorRT-LLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_native.encodings.namespaces import lazy

if TYPE_CHECKING:
    from .weights import expected_pairing as expected_pairing
    from .weights import guess_pairing as guess_pairing
    from .weights import permute_qk as permute_qk
    from .weights import permute_state_dict as permute_state_dict
else:
    __all__, __getattr__, __dir__ = lazy(
        __name__,
        {"weights": "expected_pairing guess_pairing permute_qk permute_state_dict"},
    )
