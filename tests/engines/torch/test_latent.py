"""Latent attention on tensors: gradients, compiled steps, the module."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="requirements/test.txt has it")

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

ROPE = pn.Rotary(16, pairing="interleaved")
POSITIONS, SLOTS = torch.arange(5) + 70, torch.tensor([4, 2, -1, 0, 8])


def tensors(requires_grad=False):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, 5, 40), (2, 5, 16), (2, 5, 32)
    made = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [x.requires_grad_(requires_grad) for x in made]


def step(q, k_rope, latent, cache, rope=ROPE, **options):
    return rope.append_latent(q, k_rope, latent, POSITIONS, cache, SLOTS, **options)


def test_gradients_reach_q_and_the_key():
    q, k_rope, latent = tensors(requires_grad=True)
    cache = torch.zeros(2, 9, 48, dtype=torch.float64)
    ours = step(q, k_rope, latent, cache, return_k=True)
    turned = ROPE.apply(q[..., 24:], POSITIONS)
    theirs = torch.cat((q[..., :24], turned), -1), ROPE.apply(k_rope, POSITIONS, layout="bsd")
    grads = [torch.randn_like(x) for x in theirs]
    found, wanted = (torch.autograd.grad(x, (q, k_rope), grads) for x in (ours, theirs))
    for a, b in zip((*ours, *found), (*theirs, *wanted), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)
    assert cache._version > 0, "autograd knows that it was written"
    for options in ({"inplace": True}, {"out": torch.zeros_like(q)}):
        with pytest.raises(
            ValueError, match=r"Rotary\.append_latent: .* if a gradient is required"
        ):
            step(q, k_rope, latent, cache, **options)


def test_compiled_steps_write_the_same_bits():
    def steps(q, k_rope, latent, caches):
        new = step(q, k_rope, latent, caches[0])
        both = step(q, k_rope, latent, (caches[1][..., 16:], caches[1][..., :16]), return_k=True)
        return new, *both, step(q, k_rope, latent, caches[2], inplace=True)

    direct, compiled = torch.zeros(2, 3, 2, 9, 48, dtype=torch.float64)
    wanted = steps(*tensors(), direct)
    torch.compiler.reset()
    run = torch.compile(steps, fullgraph=True, backend="aot_eager", dynamic=True)
    for a, b in zip((*run(*tensors(), compiled), compiled), (*wanted, direct), strict=True):
        assert torch.equal(a, b)


def test_the_module_writes_like_its_rotary():
    caches = torch.zeros(2, 2, 9, 48, dtype=torch.float64)
    module = pnn.RotaryEmbedding(ROPE)
    assert torch.equal(step(*tensors(), caches[0], module), step(*tensors(), caches[1]))
    assert torch.equal(*caches)
