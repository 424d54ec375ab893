"""Small timm models that rotate q and k, and inputs for them.

Each function of MODELS returns a model with random weights and the arguments of its forward. The
same numbers come out each time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn


class _Anything(type):
    """Classes whose attributes are classes like them: InterpolationMode.BICUBIC, for one."""

    def __getattr__(cls, name: str) -> Any:
        return _anything(name)


def _anything(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything(name, (), {})


@contextlib.contextmanager
def _torchvision() -> Iterator[None]:
    """Let timm be imported without torchvision, of which none of these models uses anything.

    The stand-in goes when timm is there: others ask whether torchvision is installed, too.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision"):
        yield
        return
    # What outside.py leaves when it could not import timm: packages without their contents.
    if not hasattr(sys.modules.get("timm"), "create_model"):
        for name in [name for name in sys.modules if name.split(".")[0] == "timm"]:
            del sys.modules[name]
    parts = ("", ".datasets", ".ops", ".ops.misc", ".transforms", ".transforms.functional")
    for part in parts:
        module = ModuleType("torchvision" + part)
        module.__path__ = []
        module.__getattr__ = _anything
        sys.modules[module.__name__] = module
    try:
        yield
    finally:
        for part in parts:
            del sys.modules["torchvision" + part]


with _torchvision():
    from timm.layers import RotAttentionPool2d
    from timm.models.deepseek_vit import DeepseekVitClassifier
    from timm.models.eva import Eva
    from timm.models.gemma4_vit import Gemma4VitClassifier
    from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg
    from timm.models.qwen3_vit import Qwen3VitClassifier
    from timm.models.vision_transformer_sam import VisionTransformerSAM

Case = tuple[nn.Module, dict[str, Any]]

PROJECTIONS = ("q", "k", "qkv", "q_proj", "k_proj")
PATCH, ROWS, COLUMNS = 8, 4, 5
SHARED: dict[str, Any] = {"num_classes": 8, "embed_dim": 64, "depth": 2, "num_heads": 2}


def sharpen(model: nn.Module) -> None:
    """Make attention look at few tokens, which positions choose.

    timm draws weights so small that scores are near zero. Those of norms between projection and
    rotation stay.
    """
    for name, module in model.named_modules():
        last = name.rsplit(".", 1)[-1]
        if isinstance(module, nn.Linear) and last in PROJECTIONS:
            nn.init.normal_(module.weight, std=2 * module.in_features**-0.5)
        elif isinstance(module, nn.Linear) and last in ("proj", "head"):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)


def build(kind: Callable[..., nn.Module], *arguments: Any, **options: Any) -> nn.Module:
    """A model. Inputs drawn after it are always the same, too."""
    torch.manual_seed(0)
    model = kind(*arguments, **options).eval()
    sharpen(model)
    return model


def cast(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The inputs in this precision."""
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in inputs.items()
    }


def image(rows: int = ROWS, columns: int = COLUMNS) -> torch.Tensor:
    """Two images of this many patches."""
    return torch.randn(2, 3, rows * PATCH, columns * PATCH)


def eva_like(**options: Any) -> nn.Module:
    given = {"img_size": (ROWS * PATCH, COLUMNS * PATCH), "patch_size": PATCH}
    more = {"use_rot_pos_emb": True, "head_init_scale": 1.0}
    return build(Eva, **{**SHARED, **given, **more, **options})


def dinov3(**options: Any) -> Case:
    model = eva_like(
        rope_type="dinov3", rope_temperature=100.0, rope_rotate_half=True, use_abs_pos_emb=False,
        num_reg_tokens=4, init_values=1.0, dynamic_img_size=True, **options,
    )  # fmt: skip
    return model, {"x": image()}


def naflex(**options: Any) -> nn.Module:
    shared = {name: value for name, value in SHARED.items() if name != "num_classes"}
    config = NaFlexVitCfg(
        patch_size=PATCH, pos_embed="none", global_pool="avg", **{**shared, **options}
    )
    return build(NaFlexVit, config, num_classes=8)


def naflex_patches(**options: Any) -> Case:
    """Two images of different sizes, in patches: each has its own tables."""
    model = naflex(**options)
    coordinates = torch.zeros(2, ROWS * COLUMNS, 2, dtype=torch.int64)
    valid = torch.zeros(2, ROWS * COLUMNS, dtype=torch.bool)
    for index, (rows, columns) in enumerate([(ROWS, COLUMNS), (3, 3)]):
        grid = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        coordinates[index, : len(grid)] = grid
        valid[index, : len(grid)] = True
    hidden = torch.randn(2, ROWS * COLUMNS, 3 * PATCH * PATCH)
    return model, {"x": hidden, "patch_coord": coordinates, "patch_valid": valid}


class Pooled(nn.Module):
    """Features of an image, pooled by attention with rotated q and k."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, PATCH, PATCH)
        self.pool = RotAttentionPool2d(64, 16, num_heads=2, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.stem(x) * 3)


MODELS: dict[str, Callable[[], Case]] = {
    "DINOv3": dinov3,
    # With the attention of other models.
    "DINOv3Rope": lambda: dinov3(attn_type="rope"),
    "DeepseekVit": lambda: (
        build(DeepseekVitClassifier, img_size=6 * PATCH, patch_size=PATCH, **SHARED),
        {"x": image(3, 6)},
    ),
    "EVA02": lambda: (
        eva_like(qkv_fused=False, swiglu_mlp=True, ref_feat_shape=(8, 8)), {"x": image()},
    ),
    # An image of another size than the model was made for: tables from each call.
    "EvaDynamic": lambda: (eva_like(dynamic_img_size=True), {"x": image(3, 6)}),
    # As the EVA large enough for one matrix; with no positions but the rotation.
    "EvaFused": lambda: (eva_like(use_abs_pos_emb=False), {"x": image()}),
    # Fewer k than q.
    "EvaGrouped": lambda: (
        eva_like(num_heads=4, num_kv_heads=2, attn_type="rope", qkv_fused=False, qk_norm=True),
        {"x": image()},
    ),
    "EvaMRope": lambda: (
        eva_like(rope_type="mrope", attn_type="rope", rope_mrope_section=(4, 6, 6)),
        {"x": image()},
    ),
    # Frequencies that each layer and head has learned.
    "EvaMixed": lambda: (
        eva_like(rope_type="mixed", attn_type="rope", rope_grid_indexing="xy"), {"x": image()},
    ),
    "Gemma4Vit": lambda: (
        build(Gemma4VitClassifier, img_size=6 * PATCH, patch_size=PATCH, head_dim=32,
              intermediate_size=64, position_embedding_size=16, **SHARED),
        {"x": image(3, 6)},
    ),
    "NaFlex": lambda: (naflex(rope_type="axial"), {"x": image()}),
    "NaFlexDINOv3": lambda: naflex_patches(
        rope_type="dinov3", rope_temperature=100.0, rope_rotate_half=True
    ),
    "NaFlexMRope": lambda: naflex_patches(
        rope_type="mrope", rope_rotate_half=True, rope_mrope_section=(4, 6, 6), attn_gated=True
    ),
    "NaFlexMixed": lambda: naflex_patches(rope_type="mixed"),
    "NaFlexPatches": lambda: naflex_patches(rope_type="axial"),
    "PerceptionEncoder": lambda: (
        eva_like(attn_type="rope", global_pool="map", use_pre_transformer_norm=True,
                 use_post_transformer_norm=True, use_fc_norm=False, ref_feat_shape=(8, 8),
                 rope_grid_offset=1.0, rope_grid_indexing="xy"),
        {"x": image()},
    ),
    "Pool": lambda: (build(Pooled, pool_type="", class_token=True), {"x": image()}),
    "PoolDINOv3": lambda: (build(Pooled, pool_type="", rope_type="dinov3"), {"x": image()}),
    # Tables as a pair, q and k from matrices of their own, and one token as the result.
    "PoolSeparate": lambda: (build(Pooled, qkv_separate=True, rope_type="base"), {"x": image()}),
    "Qwen3Vit": lambda: (
        build(Qwen3VitClassifier, img_size=4 * PATCH, patch_size=PATCH, mlp_ratio=2.0,
              pos_embed_grid_size=8, **SHARED),
        {"x": image(4, 6)},
    ),
    # Layers with attention in windows and in the whole image, each with its own tables.
    "SAM": lambda: (
        build(VisionTransformerSAM, img_size=4 * PATCH, patch_size=PATCH, use_rope=True,
              window_size=3, global_attn_indexes=(1,), neck_chans=16, **SHARED),
        {"x": image(4, 4)},
    ),
}  # fmt: skip
