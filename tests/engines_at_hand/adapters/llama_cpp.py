"""llama.cpp: its own graph of a tiny file; unit vectors are put into the rotations of the graph.

A file has the metadata and factors of the configuration. Other tensors are zeros: llama.cpp names
those that it misses, and their shapes. Its evaluation callback is called before and after every
operation: before a rotation it writes unit vectors and the positions, after it reads the result.

    callback(ROPE, before): q, k := unit vectors, positions := 1 ─► ggml ─► callback(ROPE, after)
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# In place of this folder, whose modules have the names of engines.
sys.path[:1] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "shared")]

import llama_cpp  # noqa: E402
from gguf_files import write_gguf  # noqa: E402
from llama_cpp._ggml import libggml  # noqa: E402
from probe import read_rotation, serve  # noqa: E402

_MOST_LOADS = 2000
_ENDED = "the process ended"
_CONTEXT = 512  # the default of llama_context_params
# What files need besides, and what does not concern the rotation.
_OTHER = {
    "vocab_size": 64, "feed_forward_length": 64, "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5, "attention.group_norm_epsilon": 1e-5,
    "attention.group_norm_groups": 8, "use_parallel_residual": False, "logit_scale": 1.0,
    "attention.clamp_kqv": 1.0, "attention.q_lora_rank": 64, "residual_scale": 1.0,
    "xielu.alpha_n": 1.0, "xielu.alpha_p": 1.0, "xielu.beta": 1.0, "xielu.eps": 1e-7,
    "ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2, "ssm.inner_size": 128,
    "ssm.time_step_rank": 4, "shortconv.l_cache": 3, "embedding_length_per_layer_input": 32,
    "attention.shared_kv_layers": 0, "kda.head_dim": 32, "swiglu_clamp_exp": 7.0,
    "kda.safe_gate": True, "kda.gate_lower_bound": -5.0, "attention.output_group_count": 8,
    "attention.output_lora_rank": 32, "hyper_connection.count": 4, "hash_layer_count": 0,
    "hyper_connection.sinkhorn_iterations": 2, "hyper_connection.epsilon": 1e-6,
    "hyper_connection.magnitude": 2.0, "attention.indexer.head_count": 4,
    "attention.indexer.key_length": 16, "attention.indexer.top_k": 4096,
    "hrm.layers_per_stack": 1, "hrm.h_cycles": 2, "hrm.l_cycles": 2, "expert_weights_scale": 1.0,
    "embedding_scale": 1.0,
}  # fmt: skip
_EXPERTS = {
    "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32,
    "expert_latent_length": 32, "interleave_moe_layer_step": 2, "expert_count": 2,
    "expert_used_count": 2, "expert_shared_count": 1, "expert_gating_func": 2,
    "expert_group_scale": 1.0, "experts_per_group": 1, "leading_dense_block_count": 1,
    "expert_chunk_feed_forward_length": 32, "moe_every_n_layers": 2,
}  # fmt: skip
# llama.cpp takes them as optional, and needs them for some architectures.
_OPTIONAL: tuple[dict[str, slice], ...] = (
    {},
    {"attn_qkv.weight": slice(None)},
    {name: slice(None, None, 2) for name in ("attn_qkv.weight", "attn_gate.weight")},
)


class _Tensor(ctypes.Structure):
    """struct ggml_tensor."""


_Tensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(_Tensor) * 10),
    ("view_src", ctypes.POINTER(_Tensor)),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
    ("extra", ctypes.c_void_p),
]
libggml.ggml_op_name.restype = ctypes.c_char_p
_ROPE = next(op for op in range(200) if libggml.ggml_op_name(op) == b"ROPE")


def rotations(configuration: Any) -> list[tuple[int, Any]]:
    """What the graph does: of a file with few tensors, with experts, or with fused projections."""
    refused = ""
    for other in (_OTHER, _OTHER | _EXPERTS):
        for optional in _OPTIONAL:
            try:
                return _apart(configuration, other, optional)
            except RuntimeError as error:
                refused = refused if optional else f"{error}"
            if refused != _ENDED:
                break
        if refused != _ENDED and not re.search("expert|n_ids_used", refused):
            break
    raise RuntimeError(refused)


def _apart(
    configuration: Any, other: dict[str, Any], optional: dict[str, slice]
) -> list[tuple[int, Any]]:
    """In a process of its own: llama.cpp ends it where it asserts."""
    with tempfile.TemporaryDirectory() as folder:
        answer, errors = Path(folder, "answer.json"), Path(folder, "errors.txt")
        child = os.fork()
        if child == 0:
            os.environ["GGML_NO_BACKTRACE"] = "1"
            for stream in (1, 2):
                os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
            try:
                said: Any = list(_rotations(configuration, other, optional, folder))
            except Exception as error:
                said = f"{error}"
            answer.write_text(json.dumps(said))
            os._exit(0)
        os.waitpid(child, 0)
        if not answer.exists():
            lines = [line for line in errors.read_text().splitlines() if "GGML_ASSERT" in line]
            raise RuntimeError(re.sub(r"^\S*/", "", lines[0]) if lines else _ENDED)
        said = json.loads(answer.read_text())
    if isinstance(said, str):
        raise RuntimeError(said)
    return [(layer, rotation) for layer, rotation in said]


def _rotations(
    configuration: Any, other: dict[str, Any], optional: dict[str, slice], folder: str
) -> Iterator[tuple[int, Any]]:
    model = _load(configuration, other, optional, str(Path(folder, "model.gguf")))
    graph = _Graph(model, configuration.get("seq_len", _CONTEXT))
    for layer, nodes in sorted(graph.layers().items()):
        read = [read_rotation(graph.rotate(node), graph.dims[node], graph.axes) for node in nodes]
        # Some have the rotated dims of keys alone in a tensor, and those of queries in a head.
        starts = [rotation["rotary_start"] for rotation in read if rotation]
        alike = [rotation and rotation | {"rotary_start": min(starts)} for rotation in read]
        if any(rotation != alike[0] for rotation in alike):
            raise ValueError(f"layer {layer}: {', '.join(nodes)} rotate differently")
        yield layer, alike[0] if alike else None


_LOG: list[str] = []


@llama_cpp.llama_log_callback
def _log(level: int, text: bytes, data: Any) -> None:
    _LOG.append(text.decode(errors="replace"))


def _load(configuration: Any, other: dict[str, Any], optional: dict[str, slice], path: str) -> Any:
    """The model; zeros for all tensors that llama.cpp wants besides those of the configuration."""
    metadata = dict(configuration["metadata"])
    name = metadata["general.architecture"]
    tensors = {key: np.array(value) for key, value in configuration.get("tensors", {}).items()}
    blocks = range(metadata[f"{name}.block_count"])
    tensors |= {
        f"blk.{i}.{key}": np.zeros(1) for key, part in optional.items() for i in blocks[part]
    }
    given = {f"{name}.{key}": value for key, value in other.items()}
    given |= {key: value for key, value in other.items() if key.startswith("xielu")}
    given |= {"tokenizer.ggml.model": "none", "tokenizer.ggml.token_type_count": 2}
    llama_cpp.llama_log_set(_log, None)
    parameters = llama_cpp.llama_model_default_params()
    shapes: dict[str, Any] = {}
    for _ in range(_MOST_LOADS):
        write_gguf(path, {**given, **metadata}, tensors)
        _LOG.clear()
        model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        if model:
            return model
        said = "".join(_LOG)
        error = re.search(r"error loading model\S*: (.*)", said)
        error = error[1] if error else said[-160:]
        missing = re.search(r"tensor '([^']+)' not found", error)
        shape = re.search(r"tensor '([^']+)' has wrong shape; expected ([\d, ]+), got", error)
        if missing:
            like = re.sub(r"\d+", "0", missing[1])
            tensors[missing[1]] = np.zeros(shapes.get(like, (1,)), np.float32)
        elif shape and shape[1] not in configuration.get("tensors", {}):
            sizes = tuple(int(size) for size in shape[2].split(","))[::-1]
            shapes[re.sub(r"\d+", "0", shape[1])] = sizes
            tensors[shape[1]] = np.zeros(sizes, np.float32)
        else:
            raise ValueError(error)
    raise ValueError(f"no end of missing tensors: {error}")


class _Graph:
    """A context; runs its graph with unit vectors in all rotations."""

    def __init__(self, model: Any, length: int) -> None:
        vocab = llama_cpp.llama_model_get_vocab(model)
        self.tokens = llama_cpp.llama_vocab_n_tokens(vocab)
        self.number = 64
        self.axes = 1
        self.dims: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self.attentions: set[int] = set()
        self.results: dict[bytes, dict[str, Any]] = {}
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self._evaluated)
        parameters = llama_cpp.llama_context_default_params()
        parameters.cb_eval = self.callback
        parameters.n_ctx = length
        parameters.type_k = parameters.type_v = 0  # float32
        parameters.n_threads = parameters.n_threads_batch = 1
        self.context = llama_cpp.llama_init_from_model(model, parameters)
        if not self.context:
            raise ValueError("".join(_LOG)[-160:])
        self.batch = llama_cpp.llama_batch_init(self.number, 0, 1)
        self._run(np.zeros((4, self.number), np.int32))

    def layers(self) -> dict[int, list[str]]:
        """The rotations of every layer with attention."""
        found: dict[int, list[str]] = {layer: [] for layer in self.attentions}
        for node, layer in self.seen.items():
            found.setdefault(layer, []).append(node)
        return found

    def rotate(self, node: str) -> Any:
        """The rotation of an operation, for `read_rotation`."""

        def rotate(x: Any, positions: Any) -> Any:
            positions = np.atleast_2d(positions)[:, :1] + np.zeros((1, self.number), np.int64)
            key = positions.tobytes()
            if key not in self.results:
                self.results[key] = self._run(positions)
            dims = self.dims[node]
            return x @ self.results[key][node][:dims]

        return rotate

    def _run(self, positions: Any) -> dict[str, Any]:
        self.positions, self.read, self.error = positions, {}, None
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.batch.n_tokens = self.number
        for i in range(self.number):
            self.batch.token[i] = i % self.tokens
            self.batch.pos[i] = i
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = 0
            self.batch.logits[i] = i + 1 == self.number
        if llama_cpp.llama_decode(self.context, self.batch) != 0:
            raise ValueError("".join(_LOG)[-160:])
        if self.error:
            raise self.error
        return self.read

    def _evaluated(self, pointer: int, asks: bool, data: Any) -> bool:
        tensor = ctypes.cast(pointer, ctypes.POINTER(_Tensor)).contents
        try:
            if asks:
                attention = re.match(rb"cache_k_l(\d+)", tensor.name)
                if attention:
                    self.attentions.add(int(attention[1]))
            if tensor.op == _ROPE:
                self._rope(tensor, asks)
        except Exception as error:
            self.error = self.error or error
        return True

    def _rope(self, tensor: _Tensor, before: bool) -> None:
        name, layer = _named(tensor)
        if "indexer" in name:
            return
        dims, _, tokens, _ = tensor.ne
        if tokens != self.number or dims > self.number:
            raise ValueError(f"{name} rotates {list(tensor.ne)}")
        if before:
            self.dims[name], self.seen[name] = dims, layer
            places = _array(tensor.src[1].contents, np.int32).reshape(-1)
            self.axes = places.size // tokens
            places[:] = self.positions[: self.axes].reshape(-1)
            q = _array(tensor.src[0].contents, np.float32)[0]  # [tokens, heads, dims]
            q[:] = np.eye(tokens, dims, dtype=np.float32)[:, None]
        else:
            rotated = _array(tensor, np.float32)[0]
            if not np.isfinite(rotated).all():
                raise ValueError(f"{name} gives NaN")
            if (rotated != rotated[:, :1]).any():
                raise ValueError(f"{name}: heads are rotated differently")
            self.read[name] = rotated[:, 0].copy()


def _named(tensor: _Tensor) -> tuple[str, int]:
    """Name and layer of an operation: its own, or that of its input."""
    first = tensor.name.decode()
    name = first
    for _ in range(8):
        found = re.search(r"-(\d+)", name)
        if found:
            return f"{first} of {name}", int(found[1])
        tensor = tensor.src[0].contents
        name = tensor.name.decode()
    raise ValueError(f"{first} has no layer")


def _array(tensor: _Tensor, dtype: Any) -> Any:
    """The numbers of a tensor, to read and write."""
    shape, strides = tensor.ne[::-1], tensor.nb[::-1]
    whole = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (whole + np.dtype(dtype).itemsize)).from_address(tensor.data)
    flat = np.frombuffer(memory, dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, strides)


if __name__ == "__main__":
    serve("llama-cpp-python", rotations)
