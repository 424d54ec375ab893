"""What autograd has to notice of a call that writes; inference mode, autocast, subclasses."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from gradient_cases import (  # noqa: E402
    IN_PLACE,
    ONE_OF_TWO,
    OUT,
    WRITERS,
    each_function,
    each_of,
    f_for,
)
from rotating import computing, public  # noqa: E402
from torch_cases import FLOATS, assert_same_bits, dtype_id, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native.engines.torch import library, recurrent  # noqa: E402, F401 - operators

pytestmark = torch_cases.needs_operators
kernel_device = torch_cases.kernel_device
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)


each_writer = each_of(WRITERS)


# --- What autograd has to notice


@each_writer
@pytest.mark.parametrize("engine", ["small", "operators"])
def test_writing_counts_as_one_version(write, engine, kernel_device):
    y = random((2, 3, 5, 8), device=kernel_device)
    before, version = y.clone(), y._version
    with computing(engine):
        write(y)
    assert not torch.equal(y, before)
    assert y._version == version + 1
    view = torch.cat([y, y])[2:]
    version = view._base._version
    write(view)
    assert view._base._version == version + 1


@each_writer
def test_backward_notices_that_a_saved_tensor_was_overwritten(write, kernel_device):
    x = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    y = random((2, 3, 5, 8), device=kernel_device, seed=1)
    product = x * y  # its backward needs y
    write(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize(
    "function",
    ["apply_rotary", "apply_rotary_qk", "apply_rotary by tables", "apply_rotary_qk by tables"],
)
def test_backward_notices_that_positions_or_tables_were_overwritten(function, kernel_device):
    x = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    positions, inv_freq = torch.arange(5, device=kernel_device), f_for(x)
    for argument in (0, 1):
        others = [positions.clone(), inv_freq.clone()]
        if "tables" in function:
            others = list(pn.rotary_tables(positions, inv_freq))
        if "qk" in function:
            result = public(function)(x, x * 2, *others)[0]
        else:
            result = public(function)(x, *others)
        others[argument] += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


@each_of(IN_PLACE | ONE_OF_TWO)
def test_a_leaf_that_requires_a_gradient_is_not_overwritten(write, kernel_device):
    leaf = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    before = leaf.detach().clone()
    for target in (leaf, leaf[:]):
        with pytest.raises(RuntimeError, match="leaf"):
            write(target)
        assert torch.equal(leaf, before)
    with torch.no_grad():
        write(leaf)
    assert not torch.equal(leaf, before)


@each_of(OUT)
def test_out_does_not_take_part_in_autograd(write, kernel_device):
    # As torch's own out=: written, such a tensor would keep a gradient that is not its own.
    leaf = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    for out in (leaf, leaf * 1):
        before = out.detach().clone()
        with pytest.raises((RuntimeError, ValueError)):
            write(out)
        assert torch.equal(out, before)


def test_out_of_an_input_with_gradient_is_refused(kernel_device):
    x = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    out = torch.zeros(2, 3, 5, 8, device=kernel_device)
    inv_freq = f_for(x)
    with pytest.raises(ValueError, match="apply_rotary: out: "):
        pn.apply_rotary(x, None, inv_freq, out=out)
    with pytest.raises(ValueError, match="add_sinusoidal: out: "):
        pn.add_sinusoidal(x, out=out)
    with pytest.raises(ValueError, match="apply_rotary: out: "):
        pn.apply_rotary(x, None, pn.Tables(*pn.rotary_tables(5, inv_freq)), out=out)
    assert not out.any()
    with torch.no_grad():
        pn.apply_rotary(x, None, inv_freq, out=out)
    assert_same_bits(out, pn.apply_rotary(x, None, inv_freq))


# --- Modes


@each_function
def test_no_grad_and_inference_mode_compute_the_same_and_record_nothing(function, kernel_device):
    x = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    expected = function(x)
    assert expected.requires_grad
    with torch.no_grad():
        result = function(x)
    assert not result.requires_grad
    assert_same_bits(result, expected)
    with torch.inference_mode():
        result = function(x)
        assert result.is_inference()
        assert_same_bits(result, expected)
        fresh = x.clone()
        assert fresh.is_inference()
        assert_same_bits(function(fresh), expected)
    assert not function(x.detach()).requires_grad


@each_writer
def test_inference_mode_writes(write, kernel_device):
    y = random((2, 3, 5, 8), device=kernel_device)
    with torch.inference_mode():
        inference = y.clone()
        write(inference)
    write(y)
    assert_same_bits(inference, y)


def test_autograd_saves_no_copy_of_the_input(kernel_device):
    saved = []
    x = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    positions, inv_freq = torch.arange(5, device=kernel_device), f_for(x)

    def pack(tensor):
        saved.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        pn.apply_rotary_qk(x, x * 1, positions, inv_freq)
        pn.apply_rotary_qk(x, x * 1, None, pn.Tables(*pn.rotary_tables(positions, inv_freq)))
        pn.add_sinusoidal(x)
    assert x.shape not in saved


@each_dtype
@each_function
def test_autocast_leaves_dtypes_alone(function, dtype, kernel_device):
    x = random((2, 3, 5, 8), dtype, kernel_device)
    ones = torch.ones(8, 8, device=kernel_device)
    expected = function(x)
    with torch.autocast(kernel_device, dtype=torch.bfloat16):
        result = function(x)
        linear = torch.nn.functional.linear(ones, ones)
    assert linear.dtype == torch.bfloat16
    assert result.dtype == dtype
    assert_same_bits(result, expected)


def test_autocast_leaves_positions_exact(kernel_device):
    # 16-bit floats have no 4097: cast, it would turn by the angle of 4096.
    positions = torch.tensor([4097.0, 2.0**20 + 1], device=kernel_device)
    with torch.autocast(kernel_device, dtype=torch.bfloat16):
        table = pn.sinusoidal(positions, 8)
        assert table.dtype == torch.float32
        encoded = pn.add_sinusoidal(torch.zeros(2, 8, device=kernel_device), positions)
    assert_same_bits(table, pn.sinusoidal(positions.long(), 8))
    assert_same_bits(encoded, table)


@each_function
def test_subclasses_of_tensor_pass_through(function, kernel_device):
    class Tagged(torch.Tensor):
        pass

    x = random((2, 3, 5, 8), device=kernel_device)
    result = function(x.as_subclass(Tagged))
    assert isinstance(result, Tagged)
    assert_same_bits(result.as_subclass(torch.Tensor), function(x))
    assert function(torch.nn.Parameter(x)).requires_grad


def test_the_raw_operators_do_not_lose_a_gradient_silently(kernel_device):
    x = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    result = library.ops.rotary(x, None, f_for(x))
    with pytest.warns(UserWarning, match="autograd kernel was not registered"):
        result.sum().backward()
