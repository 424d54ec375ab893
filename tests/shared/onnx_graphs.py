"""Small ONNX files as exporters write them: rotations, and caches wherever they may be."""

from __future__ import annotations

import numpy as np
import pytest
from posenc_native.rotary import rotary_frequencies

onnx = pytest.importorskip("onnx", reason="writes the files")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the question if it is there

DTYPES = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
}  # fmt: skip
ML = "com.microsoft"


def cosines(rotary_dim, base, rows, scaling=None):
    """Caches as onnxruntime-genai computes them: in float32, the attention factor in both."""
    exact, factor = rotary_frequencies(rotary_dim, base, scaling)
    angles = np.arange(rows, dtype=np.float32)[:, None] * exact.astype(np.float32)
    return [each(angles) * np.float32(factor) for each in (np.cos, np.sin)]


def cast(array, dtype):
    return numpy_helper.to_array(numpy_helper.from_array(array)).astype(
        helper.tensor_dtype_to_np_dtype(DTYPES[dtype])
    )


def tensors(caches, names=("cos_cache", "sin_cache"), dtype="float32"):
    return [
        numpy_helper.from_array(cast(array, dtype), name)
        for array, name in zip(caches, names, strict=True)
    ]


def constants(given):
    return [helper.make_node("Constant", [], [each.name], value=each) for each in given]


def attention(layer, rotary=1, interleaved=0, caches=("cos_cache", "sin_cache"), **attributes):
    """GroupQueryAttention, by its name that of a layer."""
    inputs = ["q", "k", "v", "past_key", "past_value", "seqlens", "length", *caches]
    return helper.make_node(
        "GroupQueryAttention", inputs if rotary else inputs[:7], [f"attention_{layer}"], domain=ML,
        name=f"/model/layers.{layer}/attn/GroupQueryAttention", do_rotary=rotary,
        rotary_interleaved=interleaved, **{"num_heads": 8, "kv_num_heads": 2, **attributes},
    )  # fmt: skip


def rotary(layer, which="q", domain=ML, caches=("cos_cache", "sin_cache"), **attributes):
    """RotaryEmbedding of ONNX Runtime, or that of ONNX, whose inputs have another order."""
    inputs = [which, "positions", *caches] if domain == ML else [which, *caches, "positions"]
    return helper.make_node(
        "RotaryEmbedding", inputs, [f"{which}_{layer}"], domain=domain,
        name=f"/model/layers.{layer}/attn/{which}_rotary/RotaryEmbedding", **attributes,
    )  # fmt: skip


def by_length(large, small, dtype="float32"):
    """The If of onnxruntime-genai: caches for long sequences and for short ones."""
    branches = {}
    for name, caches in (("large", large), ("small", small)):
        names = [f"{kind}_cache_{name}" for kind in ("cos", "sin")]
        outputs = [helper.make_tensor_value_info(each, DTYPES[dtype], None) for each in names]
        nodes = constants(tensors(caches, names, dtype))
        branches[name] = helper.make_graph(nodes, f"{name}_rope_caches_graph", [], outputs)
    return helper.make_node(
        "If", ["/model/rope_caches_subgraph/Greater/output_0"], ["cos_cache", "sin_cache"],
        name="/model/rope_caches_subgraph/If",
        then_branch=branches["large"], else_branch=branches["small"],
    )  # fmt: skip


def model(nodes, initializers=(), inputs=(), outputs=()):
    graph = helper.make_graph(nodes, "main_graph", inputs, outputs, initializers)
    versions = [helper.make_opsetid("", 23), helper.make_opsetid(ML, 1)]
    return helper.make_model(graph, opset_imports=versions)


def save(path, nodes, initializers=(), **settings):
    """Writes a model and returns its path as a text."""
    onnx.save_model(model(nodes, initializers), str(path), **settings)
    return str(path)


def onnx_file(configuration, folder):
    """The file of a configuration for ONNX Runtime (tests/engines_at_hand): an operator, caches."""
    angles = np.arange(1024)[:, None] * np.asarray(configuration["frequencies"])
    caches = [each(angles) * configuration.get("magnitude", 1.0) for each in (np.cos, np.sin)]
    name, given = configuration["operator"], configuration.get("attributes", {})
    dims = configuration["head_dim"]
    if name == "GroupQueryAttention":
        node = attention(0, **given, num_heads=1, kv_num_heads=1)
        node.output.extend(["present_key", "present_value"])
        kinds = {"q": ["batch", 1, dims], "k": ["batch", 1, dims], "v": ["batch", 1, dims],
                 "past_key": ["batch", 1, "past", dims], "past_value": ["batch", 1, "past", dims],
                 "seqlens": ["batch"], "length": []}  # fmt: skip
        results = ["attention_0", "present_key", "present_value"]
    else:
        domain = ML if name.startswith(ML) else ""
        node = rotary(0, domain=domain, **given)
        whole = ["batch", "tokens", dims] if "num_heads" in given else ["batch", 1, "tokens", dims]
        kinds = {"q": whole, "positions": ["batch", "tokens"]}
        results = ["q_0"]
    integers = {"positions": TensorProto.INT64, "seqlens": TensorProto.INT32,
                "length": TensorProto.INT32}  # fmt: skip
    inputs = [
        helper.make_tensor_value_info(each, integers.get(each, TensorProto.FLOAT), shape)
        for each, shape in kinds.items()
    ]
    outputs = [helper.make_tensor_value_info(each, TensorProto.FLOAT, None) for each in results]
    graph = model([node], tensors(caches), inputs, outputs)
    graph.ir_version = 10
    path = str(folder / "model.onnx")
    onnx.save_model(graph, path)
    return path
