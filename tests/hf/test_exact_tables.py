"""Tables that `hf.patch` makes with a diffusers model's own formula, run in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import diffusers  # noqa: E402, F401
from diffusers.models.transformers import (  # noqa: E402
    transformer_cogview4,
    transformer_flux,
    transformer_hunyuan_video,
    transformer_ltx,
    transformer_qwenimage,
)
from torch import Tensor, nn  # noqa: E402

from posenc_native.hf.learned import makers  # noqa: E402

Tables = tuple[Tensor, Tensor]


def exact(module: nn.Module) -> Callable[..., Any]:
    return makers.exact_forward(type(module).forward).__get__(module)


def columns(angles: list[np.ndarray]) -> np.ndarray:
    """[tokens, dims] from the angles of each axis, twice each."""
    return np.concatenate([np.repeat(each, 2, -1) for each in angles], -1)


# --- formulas, written anew in NumPy ---


def of_hunyuan_video() -> tuple[nn.Module, tuple[Any, ...], np.ndarray]:
    """Rows, columns and frames that are counted; base 256."""
    dims, sizes = [16, 56, 56], (3, 20, 24)
    module = transformer_hunyuan_video.HunyuanVideoRotaryPosEmbed(2, 1, dims, 256.0)
    grid = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij")).reshape(3, -1)
    angles = [
        np.outer(p, 256.0 ** -(np.arange(0, d, 2) / d)) for p, d in zip(grid, dims, strict=True)
    ]
    return module, (torch.zeros(1, 4, sizes[0], 2 * sizes[1], 2 * sizes[2]),), columns(angles)


def of_ltx() -> tuple[nn.Module, tuple[Any, ...], np.ndarray]:
    """Fractions of a video, from -1 to 1, times up to pi/2 * 10000: off by 5e-4 in float32."""
    dim, sizes, scale = 96, (4, 16, 24), (8 / 25, 32, 32)
    module = transformer_ltx.LTXVideoRotaryPosEmbed(dim)
    grid = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij")).reshape(3, -1)
    parts = [p * s / whole for p, s, whole in zip(grid, scale, (20, 2048, 2048), strict=True)]
    steps = 10000.0 ** np.linspace(0, 1, dim // 6) * math.pi / 2
    angles = np.stack([np.outer(2 * p - 1, steps) for p in parts], -1)
    given = torch.zeros(1, 8, 4), *sizes, scale
    return module, given, columns([angles.reshape(len(angles), -1)])[None]


ORACLES = {"HunyuanVideo": of_hunyuan_video, "LTX": of_ltx}


@pytest.mark.parametrize("name", ORACLES)
def test_tables_are_those_of_the_formula(name: str) -> None:
    module, given, angles = ORACLES[name]()
    own = module(*given)
    for _ in range(2):  # when they are compared with the model's own, and from then on
        ours: Tables = exact(module)(*given)
        for table, theirs, function in zip(ours, own, (np.cos, np.sin), strict=True):
            assert table.dtype == torch.float32
            error, before = (
                float(np.abs(x.double().numpy() - function(angles)).max()) for x in (table, theirs)
            )
            assert error <= 2.0**-25 + 1e-11  # float64 of ten thousand radians
            assert before > 4 * error


def test_what_is_exact_already_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flux computes in float64; small tables are compared again, larger ones have told."""
    runs: list[int] = []
    enter = makers._InFloat64.__enter__
    monkeypatch.setattr(makers._InFloat64, "__enter__", lambda self: runs.append(1) or enter(self))
    module = transformer_flux.FluxPosEmbed(10000, [16, 56, 56])
    forward, small, large = exact(module), torch.zeros(2, 3), torch.rand(300, 3) * 100
    for ids, count in ((small, 1), (small, 2), (large, 3), (large, 3), (small, 3)):
        for ours, theirs in zip(forward(ids), module(ids), strict=True):
            assert torch.equal(ours, theirs)
        assert len(runs) == count


def test_caches_of_a_module_are_not_filled() -> None:
    """Qwen-Image keeps tables by size with functools.lru_cache: what comes out is complex64."""
    module = transformer_qwenimage.QwenEmbedRope(10000, [8, 12, 12])
    before = copy.deepcopy(module)
    given = (1, 4, 5), torch.device("cpu"), 7
    expected = before(*given)
    for _ in range(2):
        for ours, theirs in zip(exact(module)(*given), expected, strict=True):
            assert torch.equal(ours, theirs)
    for mine, theirs in zip(module(*given), expected, strict=True):
        assert mine.dtype == theirs.dtype == torch.complex64


class RoPE(nn.Module):
    """Makes a table by what it is told."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make = make
        self.register_buffer("inv_freq", 100.0 ** -torch.linspace(0, 1, 64))

    def forward(self, positions: Tensor) -> Any:
        return self.make(torch.outer(positions.float(), self.inv_freq))


def wrong(angles: Tensor) -> Tensor:
    """Says something else in float64."""
    return angles.cos() if angles.dtype == torch.float32 else angles.sin()


def refuses(angles: Tensor) -> Tensor:
    assert angles.dtype == torch.float32
    return angles.cos()


POSITIONS = torch.arange(1000, 1100)
LEFT: dict[str, Callable[[Tensor], Any]] = {
    "other numbers": wrong,
    "an error": refuses,
    "whole numbers of its own": lambda angles: (angles.cos(), angles.mul(1e4).long()),
    "of two precisions": lambda angles: (angles.cos(), angles.bfloat16()),
}


@pytest.mark.parametrize("why", LEFT)
def test_what_float64_does_not_explain_is_the_models(why: str) -> None:
    module = RoPE(LEFT[why])
    forward = exact(module)
    for _ in range(2):
        ours, theirs = (makers._tensors(each(POSITIONS)) for each in (forward, module))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_rounded_once_to_what_the_model_has() -> None:
    module = RoPE(lambda angles: angles.cos().bfloat16())
    angles = np.outer(POSITIONS.numpy(), module.inv_freq.double().numpy())
    ours = exact(module)(POSITIONS)
    assert torch.equal(ours, torch.from_numpy(np.cos(angles)).bfloat16())
    assert not torch.equal(ours, module(POSITIONS))


def test_other_weights_other_tables() -> None:
    """A copy of the module is kept: it is made anew when buffers change, are cast or replaced."""
    module = RoPE(torch.cos)
    forward = exact(module)
    for change in (
        lambda: None,
        lambda: module.inv_freq.mul_(0.5),
        lambda: module.register_buffer("inv_freq", module.inv_freq * 3),
        lambda: module.load_state_dict({"inv_freq": torch.rand(64)}),
        lambda: module.bfloat16().float(),
        lambda: module.inv_freq.data.mul_(0.5),  # neither the version nor the address changes
    ):
        change()
        angles = np.outer(POSITIONS.numpy(), module.inv_freq.double().numpy())
        for _ in range(2):
            error = np.abs(forward(POSITIONS).double().numpy() - np.cos(angles)).max()
            assert error < 2.0**-24


def test_other_settings_other_tables() -> None:
    """A pipeline may change them between steps: a scale, a list of sizes."""
    module = RoPE(torch.cos)
    module.scale, module.sizes = 1.0, [2.0]
    module.make = lambda angles: (angles * module.scale * module.sizes[0]).cos()
    forward = exact(module)
    for change in (
        lambda: None,
        lambda: setattr(module, "scale", 0.5),
        lambda: module.sizes.append(3.0) or module.sizes.pop(0),
        lambda: setattr(module, "make", torch.sin),
    ):
        change()
        for _ in range(2):
            torch.testing.assert_close(forward(POSITIONS), module(POSITIONS), atol=1e-3, rtol=0)


def test_other_values_of_a_tensor_that_is_not_a_buffer() -> None:
    class Scaled(RoPE):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * self.factor

    module = Scaled(torch.cos)
    module.factor = torch.ones(64)
    forward = exact(module)
    for _ in range(3):
        torch.testing.assert_close(forward(POSITIONS), module(POSITIONS), atol=1e-3, rtol=0)
        module.factor.mul_(0.5)


@pytest.mark.usefixtures("nothing_compiled")
def test_followed_and_compiled_it_is_the_models() -> None:
    module = transformer_cogview4.CogView4RotaryPosEmbed(32, 2, (16, 16))
    x = torch.zeros(1, 4, 16, 16)
    own, forward = module(x), exact(module)
    compiled = torch.compile(forward, backend="eager")(x)
    assert all(torch.equal(a, b) for a, b in zip(compiled, own, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(forward(x), own, strict=True))
