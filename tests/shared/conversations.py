"""Random conversations of text, images and videos, and their positions in transformers (M-RoPE)."""

from __future__ import annotations

import types

import numpy as np
from outside import module

FAMILIES = {
    # folder in transformers, its model, what our function is told, whether frames stand alone
    "qwen2_vl": ("qwen2_vl", "Qwen2VLModel", {}),
    "qwen2_5_vl": ("qwen2_5_vl", "Qwen2_5_VLModel", {}),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLModel", {"split_frames": True}),
    "glm4v": ("glm4v", "Glm4vModel", {"split_frames": True}),
    "ernie4_5_vl": ("ernie4_5_vl_moe", "Ernie4_5_VLMoeModel", {"temporal_merge_size": 2}),
}


def their_rope_index(family, merge, **vision):
    folder, name, _ = FAMILIES[family]
    model = getattr(module(f"transformers.models.{folder}.modeling_{folder}"), name)
    options = types.SimpleNamespace(
        spatial_merge_size=merge, tokens_per_second=4, temporal_merge_size=2
    )
    owner = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=options))
    owner.get_vision_position_ids = types.MethodType(model.get_vision_position_ids, owner)
    return lambda **arguments: model.get_rope_index(owner, **arguments, **vision)


def conversation(rng, rows, merge, *, split, temporal, padding):
    """Token types [b, s], mask, grids of images and of videos: a random interleaving."""
    lines, images, videos = [], [], []
    for _ in range(rows):
        line = [0] * rng.integers(0, 4)
        for _ in range(rng.integers(0, 4)):
            t, h, w = rng.integers(1, 4), *(merge * rng.integers(1, 5, 2))
            cells = h * w // merge**2
            if rng.random() < 0.5:
                images.append([1, h, w])
                line += [1] * cells
            else:
                videos.append([t * temporal, h, w])
                frames = [2] * cells
                line += [*frames, 0, 0] * t if split else frames * t
            line += [0] * rng.integers(1, 4)
        lines.append(line or [0])
    length = max(map(len, lines))
    kinds, mask = np.zeros((2, rows, length), np.int64)
    for row, line in enumerate(lines):
        left = {"left": length - len(line), "right": 0, "both": (length - len(line)) // 2}[padding]
        kinds[row, left : left + len(line)] = line
        mask[row, left : left + len(line)] = 1
    return kinds, mask, *(np.array(g, np.int64).reshape(-1, 3) for g in (images, videos))


def tensors(torch, *arrays):
    return [None if a is None else torch.from_numpy(np.asarray(a)) for a in arrays]
