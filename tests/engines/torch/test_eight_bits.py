"""Tensors in caches of 8 bits: by every way to the kernels, and where plain operations compute."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="requirements/test.txt has it")

import posenc_native as pn  # noqa: E402

ROPE = pn.Rotary(64)
FORMATS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]


def tensors(dtype, requires_grad=False):
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 4, 6, 64), (1, 2, 6, 64), (1, 2, 6, 40)
    q, k, v = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return q.requires_grad_(requires_grad), k, v


def caches(dtype):
    shapes = (1, 2, 9, 64), (1, 2, 9, 40)
    return [torch.zeros(shape, dtype=dtype) for shape in shapes]


def append(q, k, v, keys, values, **options):
    return ROPE.append(q, k, v, 70, keys, values, torch.arange(6) + 2, **options)


def assert_same(ours, theirs):
    for x, y in zip(ours, theirs, strict=True):
        assert torch.equal(x.view(torch.uint8), y.view(torch.uint8))


SCALES = [
    lambda: {"k_scale": 0.3, "v_scale": torch.tensor([0.02, 3.0])},
    lambda: {"scales": (torch.zeros(1, 2, 9), torch.zeros(1, 2, 9))},
]


@pytest.fixture(params=SCALES, ids=["given", "made"])
def scales(request):
    return request.param


@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_a_compiled_step_writes_the_same_bits(kind, scales):
    inputs, direct, compiled = tensors(torch.bfloat16), caches(kind), caches(kind)
    ours, theirs = scales(), scales()
    wanted = append(*inputs, *direct, **theirs)
    torch.compiler.reset()
    step = torch.compile(append, fullgraph=True, backend="aot_eager")
    assert torch.equal(step(*inputs, *compiled, **ours), wanted)
    assert_same(compiled, direct)
    if "scales" in ours:
        assert_same(ours["scales"], theirs["scales"])


@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_with_a_gradient_keys_are_rounded_once_too(kind, scales):
    """Plain operations write the caches there. Angles within an ulp may move a number by a step."""
    inputs, direct = tensors(torch.float32), caches(kind)
    append(*inputs, *direct, **scales())
    q, k, v = tensors(torch.float32, requires_grad=True)
    plain = caches(kind)
    append(q, k, v, *plain, **scales()).sum().backward()
    assert q.grad is not None
    assert_same(plain[1:], direct[1:])
    steps = [x.view(torch.uint8).int() for x in (plain[0], direct[0])]
    assert (steps[0] - steps[1]).abs().max() <= 1
    assert (steps[0] != steps[1]).sum() <= 2
    # From bfloat16, never through bfloat16.
    half = tensors(torch.bfloat16, requires_grad=True)
    for_half, for_float = caches(kind), caches(kind)
    append(*half, *for_half, **scales())
    append(*(x.detach().float().requires_grad_() for x in half), *for_float, **scales())
    assert_same(for_half, for_float)


@pytest.mark.parametrize("k_scale", [None, torch.ones(1).numpy()], ids=["door", "operator"])
def test_autograd_sees_that_scales_were_written(k_scale):
    made = (None if k_scale is not None else torch.zeros(1, 2, 9), torch.zeros(1, 2, 9))
    written = [x for x in (*made, *caches(torch.int8)) if x is not None]
    before = [x._version for x in written]
    append(*tensors(torch.float32), *written[-2:], k_scale=k_scale, scales=made)
    assert all(x._version > version for x, version in zip(written, before, strict=True))


def test_arrays_of_scales_go_with_tensors():
    inputs, ours, theirs = tensors(torch.float32), caches(torch.int8), caches(torch.int8)
    scale = torch.tensor([0.5, 0.25])
    append(*inputs, *ours, k_scale=scale.numpy(), v_scale=scale.numpy())
    append(*inputs, *theirs, k_scale=scale, v_scale=scale)
    assert_same(ours, theirs)


def test_memory_for_scales_is_a_tensor():
    made = (None, torch.zeros(1, 2, 9).numpy())
    with pytest.raises(TypeError, match=r"scales\[1\]: expected a tensor, as q is, got ndarray"):
        append(*tensors(torch.float32), *caches(torch.int8), scales=made)
