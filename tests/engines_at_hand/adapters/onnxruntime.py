"""ONNX Runtime: the operator of a file, run with unit vectors.

An attention shows its rotated keys: a token a row of the batch, after as many keys as its position.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

# In place of this folder, whose modules have the names of engines.
sys.path[:1] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "shared")]

import onnxruntime  # noqa: E402
from onnx_graphs import onnx_file  # noqa: E402
from probe import read_rotation, serve  # noqa: E402


def rotations(configuration: Any) -> list[tuple[int, Any]]:
    dims = configuration["head_dim"]
    with tempfile.TemporaryDirectory() as folder:
        path = onnx_file(configuration, Path(folder))
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def rotate(x: Any, positions: Any) -> Any:
        feeds = {"q": x[None], "positions": positions[None]}
        if len(session.get_inputs()[0].shape) == 4:
            feeds["q"] = x[None, None]
        return session.run(None, feeds)[0].reshape(x.shape)

    def rotate_keys(x: Any, positions: Any) -> Any:
        (past,) = np.unique(positions)
        tokens = x[:, None]
        keys = np.zeros((len(x), 1, past, dims), np.float32)
        lengths = np.full(len(x), past, np.int32)
        feeds = {"q": tokens, "k": tokens, "v": tokens, "past_key": keys, "past_value": keys,
                 "seqlens": lengths, "length": np.array(past + 1, np.int32)}  # fmt: skip
        return session.run(["present_key"], feeds)[0][:, 0, past]

    attention = configuration["operator"] == "GroupQueryAttention"
    return [(0, read_rotation(rotate_keys if attention else rotate, dims))]


if __name__ == "__main__":
    serve("onnxruntime", rotations)
