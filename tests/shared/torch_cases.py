"""What the tests of the torch side share: devices, rotary cases, random tensors, bits."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import posenc_native as pn
from posenc_native.engines import backend

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a CUDA device: run `make gpu` on a machine that has one",
)
# How far results of a GPU may be from those of a processor with fused multiply-add, in units in the
# last place of the largest number in the result. None: the phase, the polynomials and every fused
# or unfused product are the same in both.
DEVICE_ULPS = 0
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
POSITION_DTYPES = [
    torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
    torch.uint64, torch.float32, torch.float64,
]  # fmt: skip

needs_operators = pytest.mark.skipif(
    backend.torch_library() is None, reason="the torch operators were not built"
)


def dtype_id(value: object) -> str | None:
    """A name for dtypes in the names of tests; others keep theirs."""
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


@pytest.fixture(params=DEVICES)
def device(request):
    """Every device of this machine: with a kernel or by plain operations, results agree."""
    return request.param


def has_kernels(name: str) -> bool:
    """Whether the operators have a kernel on this kind of device."""
    from posenc_native.engines import torch as tensors  # noqa: F401 - loads the operators

    key = {"cpu": "CPU", "cuda": "CUDA"}[name]
    return torch._C._dispatch_has_kernel_for_dispatch_key("posenc_native::rotary", key)


@functools.cache
def why_no_kernels(name: str) -> str | None:
    """Why the operators do not run on this kind of device; None if they do."""
    if backend.torch_library() is None:
        return "the torch operators were not built"
    if not has_kernels(name):
        return f"the operators have no kernel on {name}"
    if name == "cuda":  # kernels for other GPUs, or for newer drivers, are of no use
        from posenc_native.engines.torch import cuda

        if problem := cuda.problem(torch.cuda.current_device()):
            return f"the operators do not run on {name}: {problem}"
    return None


@pytest.fixture(params=DEVICES)
def kernel_device(request):
    """Every device that the operators have kernels for, and run on."""
    if reason := why_no_kernels(request.param):
        pytest.skip(reason)
    return request.param


@contextlib.contextmanager
def without_the_door():
    """Inside, the general path takes every call, with the operators."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "door", backend.ClosedDoor())
        yield


@contextlib.contextmanager
def plain_operations():
    """Inside, plain torch operations compute tensors."""
    before = "native" if backend.implementation is backend.native else "reference"
    pn.set_backend("reference")
    try:
        yield
    finally:
        pn.set_backend(before)


def random(shape, dtype=torch.float32, device="cpu", seed=0, requires_grad=False) -> torch.Tensor:
    """Standard normal numbers, the same on every device."""
    values = np.random.default_rng(seed).standard_normal(tuple(shape))
    tensor = torch.from_numpy(values).to(device, dtype)
    # Called only for a gradient: inside torch.func the call itself is an error.
    return tensor.requires_grad_() if requires_grad else tensor


def to_numpy(tensor: torch.Tensor | np.ndarray) -> np.ndarray:
    """The same memory (on the CPU) as an array; bfloat16 is that of ml_dtypes."""
    if isinstance(tensor, np.ndarray):
        return tensor
    tensor = tensor.detach().cpu()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 of NumPy")
    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def bits(values: torch.Tensor | np.ndarray) -> np.ndarray:
    """Integers that are equal exactly where the floats are, NaN and -0 included."""
    if isinstance(values, torch.Tensor):  # by way of integers: NumPy itself has no bfloat16
        integer = getattr(torch, f"int{8 * values.element_size()}")
        values = values.detach().cpu().contiguous().view(integer).numpy()
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def assert_same_bits(actual: torch.Tensor | np.ndarray, expected: torch.Tensor | np.ndarray):
    """The two have one shape, one dtype and the same bits; within DEVICE_ULPS across devices."""
    names = [str(values.dtype).removeprefix("torch.") for values in (actual, expected)]
    assert names[0] == names[1]
    assert tuple(actual.shape) == tuple(expected.shape)
    if DEVICE_ULPS and len({_device_type(actual), _device_type(expected)}) == 2:
        a, b = (torch.as_tensor(to_numpy(v).astype(np.float64)) for v in (actual, expected))
        unit = torch.finfo(getattr(torch, names[0])).eps * float(b.abs().amax()) if b.numel() else 0
        torch.testing.assert_close(a, b, rtol=0, atol=DEVICE_ULPS * unit)
        return
    if not np.array_equal(bits(actual), bits(expected)):
        np.testing.assert_array_equal(bits(actual), bits(expected))  # says where


def _device_type(values: torch.Tensor | np.ndarray) -> str:
    return values.device.type if isinstance(values, torch.Tensor) else "cpu"


SIZES = {"b": 2, "s": 5, "t": 5, "h": 3, "d": 16}
INTEGERS = [0, 1, -7, 100, 4096]
FRACTIONAL = [0.5, 998.39, -3.25, 1e6 + 0.25, 7.0]
FAR = [2**31, -(2**31), 2**40 + 1, 10**6, -1]


@dataclass(frozen=True)
class RotaryCase:
    """One way to rotate: everything of a call but x and its dtype."""

    name: str
    layout: str = "bhsd"
    pairing: str | int = "half"
    rotary_start: int = 0
    pairs: int = 8
    # None, a list for the tokens, or a list for each of the axes; batched: another for each b.
    positions: Any = None
    batched: bool = False
    axis_map: tuple[int, ...] | None = None
    scale: float = 1.0
    inverse: bool = False

    def shape(self, **sizes: int) -> tuple[int, ...]:
        """The shape of x; sizes by letter where they are not those of SIZES."""
        return tuple((SIZES | sizes)[letter] for letter in self.layout)

    def position_tensor(self, device="cpu") -> torch.Tensor | None:
        """[s], [b, s], [A, s] or [A, b, s]."""
        if self.positions is None:
            return None
        values = torch.tensor(self.positions, device=device)
        return torch.stack([values, values + 3], -2) if self.batched else values

    def inv_freq(self, device="cpu") -> torch.Tensor:
        return torch.tensor(pn.rotary.rotary_frequencies(2 * self.pairs)[0], device=device)

    def options(self, device="cpu") -> dict[str, Any]:
        """The keyword arguments of apply_rotary."""
        axes = None if self.axis_map is None else torch.tensor(self.axis_map, device=device)
        return {
            "layout": self.layout, "pairing": self.pairing, "rotary_start": self.rotary_start,
            "axis_map": axes, "scale": self.scale, "inverse": self.inverse,
        }  # fmt: skip

    def table_options(self) -> dict[str, Any]:
        """The keyword arguments of apply_rotary beside tables."""
        return {
            "layout": self.layout, "pairing": self.pairing, "rotary_start": self.rotary_start,
            "inverse": self.inverse,
        }  # fmt: skip

    def arguments(self, device="cpu") -> tuple[tuple[Any, Any], dict[str, Any]]:
        """What follows x in a call: ((positions, inv_freq), keyword arguments)."""
        return (self.position_tensor(device), self.inv_freq(device)), self.options(device)

    def numpy_arguments(self) -> tuple[tuple[Any, Any], dict[str, Any]]:
        """The same as arrays."""
        positional, options = self.arguments()
        return tuple(map(_array, positional)), {k: _array(v) for k, v in options.items()}

    def tables(self, dtype=torch.float32, device="cpu") -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of the case, scale in them."""
        positions = self.position_tensor(device)
        return pn.rotary_tables(
            torch.arange(SIZES["s"], device=device) if positions is None else positions,
            self.inv_freq(device), axis_map=self.options(device)["axis_map"], scale=self.scale,
            dtype=dtype,
        )  # fmt: skip


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


ROTARY_CASES = [
    RotaryCase("bhsd"),
    RotaryCase("bshd-interleaved", "bshd", "interleaved", positions=INTEGERS),
    RotaryCase("sbhd-batched", "sbhd", positions=INTEGERS, batched=True),
    RotaryCase("thd-far", "thd", positions=FAR),
    RotaryCase("htd-far-interleaved", "htd", "interleaved", positions=FAR),
    RotaryCase("hsd-fractional", "hsd", "interleaved", positions=FRACTIONAL),
    RotaryCase("sd-blocks", "sd", 4, positions=INTEGERS),
    RotaryCase("bsd-partial", "bsd", pairs=4, positions=FRACTIONAL, batched=True),
    RotaryCase("trailing-slice", rotary_start=8, pairs=4, positions=INTEGERS),
    RotaryCase("middle-slice", "bshd", "interleaved", 4, 3, positions=INTEGERS, batched=True),
    RotaryCase("axes", positions=[INTEGERS, FAR], axis_map=(0, 1, 0, 1, 0, 1, 0, 1)),
    RotaryCase(
        "batched-axes-blocks", "sbhd", 8, positions=[INTEGERS, FRACTIONAL, FAR], batched=True,
        axis_map=(0, 0, 0, 0, 1, 1, 2, 2),
    ),
    RotaryCase("scaled", "hbsd", positions=INTEGERS, batched=True, scale=1.25),
    RotaryCase("inverse", "shd", "interleaved", positions=FAR, scale=0.5, inverse=True),
]  # fmt: skip
each_rotary_case = pytest.mark.parametrize("case", ROTARY_CASES, ids=lambda case: case.name)


def padded(x):
    return torch.nn.functional.pad(x, (3, 5))[..., 3:-5]
