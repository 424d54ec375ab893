"""Rows of latent attention beside those that vLLM writes, in pages of any size.

vLLM's layer rotates q and the key, and its operator for CPUs copies latent and key to rows. It has
16-bit caches; vLLM's caches of 8 bits are written on GPUs only.
"""

from __future__ import annotations

import pytest
import torch
from vllm import _custom_ops as operators
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

import posenc_native as pn

HEADS, STILL, TURNED, LATENT = 4, 128, 64, 512
TOKENS, PAGES = 23, 6
YARN = {
    "rope_type": "deepseek_yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip


class _Length:
    max_model_len = 2560


@pytest.fixture(scope="module")
def layer():
    """The rotation of DeepSeek-V3."""
    config = VllmConfig()
    config.model_config = _Length()
    with set_current_vllm_config(config, check_compile=False):
        return get_rope(
            TURNED, 2560, is_neox_style=False, rope_parameters=YARN, dtype=torch.float32
        )


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rows_are_vllms(layer, dtype, page):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(TOKENS, HEADS, STILL + TURNED, generator=generator).to(dtype)
    both = torch.randn(TOKENS, LATENT + TURNED, generator=generator).to(dtype)
    latent, k_rope = both.split([LATENT, TURNED], -1)
    positions = torch.randint(0, 100, (TOKENS,), generator=generator)
    slots = torch.randperm(max(PAGES * page, TOKENS), generator=generator)[:TOKENS]
    slots[5] = -1
    theirs, ours = torch.zeros(2, -(-len(slots) // page) + PAGES, page, LATENT + TURNED).to(dtype)

    # As vLLM's DeepSeek does it: q in place, k with an axis of one head.
    wide_q, wide_k = q[..., STILL:].float(), k_rope[:, None].float()
    wanted_q, wanted_k = layer.forward_native(positions, wide_q, wide_k)
    rope = pn.Rotary(
        TURNED, inv_freq=layer._compute_inv_freq(YARN["factor"]), scale=layer.mscale,
        pairing="interleaved", layout="thd",
    )  # fmt: skip
    original = q.clone()
    result, turned = rope.append_latent(
        q, k_rope, latent, positions, ours, slots, cache_layout="psd", return_k=True, inplace=True
    )
    operators.amx_mla_concat_and_cache(latent, turned, theirs, slots)
    assert torch.equal(ours, theirs)
    assert (ours != 0).any(-1).sum() == TOKENS - 1
    assert torch.equal(result[..., :STILL], original[..., :STILL])
    # Angles within 100 * 2^-23, and one rounding to 16 bits.
    for x, y in ((result[..., STILL:], wanted_q), (turned[:, None], wanted_k)):
        torch.testing.assert_close(x.float(), y, rtol=torch.finfo(dtype).eps / 2, atol=8e-5)
