"""One block of a model of diffusers or timm, before and after `posenc_native.hf.patch`.

A block is what a model repeats: attention and an MLP, with norms. It has the widths of the
published model, random weights, and what the model itself hands to it, tables of sines among that:
these are made before, since a model makes them once for all of its blocks.

It has no goal. Products of matrices are nearly all of its time, and they vary by more than what
rotating takes, which functions.py judges by itself.
"""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from benchmarks.clock.harness import Case, Contestant, Skipped
from benchmarks.peers.contestants import HEAD_DIM, Activations, Options, Row, label, missing
from benchmarks.peers.packages import timm_eva

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class _Model:
    """A model with one block.

    Attributes:
        package: where it comes from.
        shape: of q, at full size.
        block: the block's name in the model.
        make: the model in float32, and what its forward gets, in a number format.
    """

    package: str
    shape: tuple[int, ...]
    block: str
    make: Callable[[Options, torch.dtype], tuple[nn.Module, dict[str, Any]]]


class _Handed(Exception):
    """What a model was about to hand to its block."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__()
        self.arguments = arguments


# ----------------------------------------------------------------------------------------- models


def _grid(*extent: int) -> torch.Tensor:
    """Indices along each axis of every point of a grid."""
    return torch.cartesian_prod(*map(torch.arange, extent)).float()


def _flux(options: Options, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Any]]:
    """Flux.1 dev, a block of text and image side by side; 1024 x 1024 pixels."""
    side, text = options.size(64, 8), options.size(512, 8)
    model = _of_diffusers(
        "FluxTransformer2DModel",
        num_layers=1,
        num_single_layers=0,
        num_attention_heads=options.size(24, 2),
        guidance_embeds=True,
    )
    return model, {
        "hidden_states": torch.randn(1, side * side, 64, dtype=dtype),
        "encoder_hidden_states": torch.randn(1, text, 4096, dtype=dtype),
        "pooled_projections": torch.randn(1, 768, dtype=dtype),
        "timestep": torch.tensor([0.5]),
        "guidance": torch.tensor([3.5]),
        "img_ids": _grid(1, side, side),
        "txt_ids": torch.zeros(text, 3),
    }


def _qwen_image(options: Options, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Any]]:
    """Qwen-Image, 1024 x 1024 pixels."""
    side, text = options.size(64, 8), options.size(128, 8)
    model = _of_diffusers(
        "QwenImageTransformer2DModel", num_layers=1, num_attention_heads=options.size(24, 2)
    )
    return model, {
        "hidden_states": torch.randn(1, side * side, 64, dtype=dtype),
        "encoder_hidden_states": torch.randn(1, text, 3584, dtype=dtype),
        "encoder_hidden_states_mask": torch.ones(1, text, dtype=torch.int64),
        "timestep": torch.tensor([0.5]),
        "img_shapes": [[(1, side, side)]],
    }


def _ltx(options: Options, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Any]]:
    """LTX-Video, 97 frames of 768 x 512 pixels."""
    heads, frames = options.size(32, 2), options.size(13, 2)
    height, width = options.size(16, 4), options.size(24, 8)
    model = _of_diffusers(
        "LTXVideoTransformer3DModel",
        num_layers=1,
        num_attention_heads=heads,
        cross_attention_dim=heads * 64,
    )
    return model, {
        "hidden_states": torch.randn(1, frames * height * width, 128, dtype=dtype),
        "encoder_hidden_states": torch.randn(1, 128, 4096, dtype=dtype),
        "encoder_attention_mask": torch.ones(1, 128),
        "timestep": torch.tensor([500.0]),
        "num_frames": frames,
        "height": height,
        "width": width,
        "rope_interpolation_scale": (8 / 25, 32, 32),
    }


def _wan(options: Options, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Any]]:
    """Wan 2.1, 1.3B, 9 frames of 832 x 480 pixels: it makes 81, seven times as many tokens."""
    frames, height, width = options.size(3, 1), options.size(60, 16), options.size(104, 16)
    model = _of_diffusers(
        "WanTransformer3DModel",
        num_layers=1,
        num_attention_heads=options.size(12, 2),
        ffn_dim=options.size(8960, 64),
    )
    return model, {
        "hidden_states": torch.randn(1, 16, frames, height, width, dtype=dtype),
        "encoder_hidden_states": torch.randn(1, options.size(512, 8), 4096, dtype=dtype),
        "timestep": torch.tensor([500]),
    }


def _eva02(options: Options, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Any]]:
    size = options.size(448, 112)
    small = {"embed_dim": 128, "num_heads": 2, "img_size": size} if options.quick else {}
    model = timm_eva().eva02_large_patch14_448(depth=1, **small)
    return model, {"x": torch.randn(4, 3, size, size, dtype=dtype)}


def _dinov3(options: Options, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Any]]:
    """Images of as many patches as those of EVA02."""
    size = options.size(512, 128)
    small = {"embed_dim": 128, "num_heads": 2} if options.quick else {}
    model = timm_eva().vit_large_patch16_dinov3(depth=1, **small)
    return model, {"x": torch.randn(4, 3, size, size, dtype=dtype)}


_MODELS = {
    "Flux": _Model("diffusers", (1, 4608, 24, 128), "transformer_blocks.0", _flux),
    "Qwen-Image": _Model("diffusers", (1, 4224, 24, 128), "transformer_blocks.0", _qwen_image),
    "LTX": _Model("diffusers", (1, 4992, 2048), "transformer_blocks.0", _ltx),
    "Wan 1.3B": _Model("diffusers", (1, 4680, 12, 128), "blocks.0", _wan),
    "EVA02-L/448": _Model("timm", (4, 16, 1025, 64), "blocks.0", _eva02),
    "DINOv3 ViT-L": _Model("timm", (4, 16, 1029, 64), "blocks.0", _dinov3),
}


def _of_diffusers(name: str, **config: int | bool) -> nn.Module:
    model: nn.Module = getattr(importlib.import_module("diffusers"), name)(**config)
    return model


def _cast(model: nn.Module, dtype: torch.dtype) -> None:
    """To this number format, but for what `from_pretrained` of diffusers leaves in float32."""
    kept = getattr(model, "_keep_in_fp32_modules", None) or ()
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.is_floating_point() and not any(part in kept for part in name.split(".")):
            value.data = value.data.to(dtype)


# ------------------------------------------------------------------------------------------ blocks


@torch.no_grad()
def _arguments(model: nn.Module, block: nn.Module, given: dict[str, Any]) -> Arguments:
    """What the model hands to its block, which does not run."""

    def stop(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> NoReturn:
        raise _Handed((arguments, options))

    hook = block.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        model(**given)
    except _Handed as handed:
        return handed.arguments
    finally:
        hook.remove()
    raise RuntimeError(f"{type(model).__name__} has not called its block")


class _Block:
    """A model's block and what it gets; `skipped`: what of the model is not patched, and why."""

    def __init__(self, model: nn.Module, name: str, given: dict[str, Any], skipped: Any = ()):
        self._block = model.get_submodule(name)
        self._arguments, self._options = _arguments(model, self._block, given)
        self._skipped = skipped

    def run(self, _: Activations) -> Any:
        # As pipelines of diffusers have it.
        with torch.no_grad():
            result = self._block(*self._arguments, **self._options)
        if self._skipped:  # known after a first call only
            raise RuntimeError(f"not patched: {self._skipped}")
        return result


def _case(options: Options, of: _Model, dtype: torch.dtype, name: str, threads: int) -> Case:
    buffers = Activations((1, 1, HEAD_DIM), dtype)
    torch.manual_seed(0)
    rows: list[Row]
    try:
        model, given = of.make(options, dtype)
        if reason := missing("posenc_native.hf"):
            raise ImportError(reason)
    except ImportError as error:
        rows = [Skipped("unpatched", "fresh", str(error))]
        return Case(name, threads, [buffers], rows, in_cache=True)
    _cast(model.eval(), dtype)
    # Both have the same weights, in the same memory.
    patched = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    handle = importlib.import_module("posenc_native.hf").patch(patched)
    blocks = {
        "patched": _Block(patched, of.block, given, handle.skipped),
        "unpatched": _Block(model, of.block, given),
    }
    rows = [
        Contestant(title, "fresh", block.run, ours=title == "patched", checked=False)
        for title, block in blocks.items()
    ]
    return Case(name, threads, [buffers], rows, in_cache=True)


def cases(options: Options, threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """As rotary.cases; on several threads with --exhaustive only, since each takes minutes."""
    if threads > 1 and not options.exhaustive:
        return
    plural = "s" if threads > 1 else ""
    for model, of in _MODELS.items():
        sizes = " x ".join(map(str, of.shape))
        for dtype in (torch.float32, torch.bfloat16):
            name = (
                f"a block, {of.package} ({model}), q {sizes}, {label(dtype)}, "
                f"{threads} thread{plural}"
            )
            yield name, functools.partial(_case, options, of, dtype, name, threads)
