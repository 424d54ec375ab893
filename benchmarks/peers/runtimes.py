"""How other runtimes are called fairly: ONNX Runtime on bound buffers, JAX on as many cores."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from benchmarks.clock.harness import Contestant

from .contestants import address, missing

# ------------------------------------------------------------------------------------- ONNX Runtime


def bound_session(
    name: str,
    graph: Any,
    threads: int,
    sets: Sequence[Any],
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    constants: dict[str, np.ndarray],
    number: np.dtype,
) -> Contestant:
    """A graph of ONNX Runtime, whose inputs and outputs are bound to attributes of the buffers."""
    onnx: Any = importlib.import_module("onnx")
    runtime: Any = importlib.import_module("onnxruntime")
    opset = [onnx.helper.make_opsetid("", 23)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=11)
    settings = runtime.SessionOptions()
    settings.log_severity_level = 3
    settings.intra_op_num_threads = threads
    # Its idle threads would spin while the other contestants run.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = runtime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )

    def bind(b: Any) -> Any:
        binding = session.io_binding()
        for array, shape in inputs.items():
            binding.bind_input(array, "cpu", 0, number, shape, address(getattr(b, array)))
        for array, shape in outputs.items():
            binding.bind_output(array, "cpu", 0, number, shape, address(getattr(b, array)))
        for constant, array in constants.items():
            binding.bind_ortvalue_input(constant, runtime.OrtValue.ortvalue_from_numpy(array))
        return binding

    bindings = {b.out: bind(b) for b in sets}
    limit = "copy" if inputs else "fill"
    return Contestant(name, "out=", lambda b: session.run_with_iobinding(bindings[b.out]), limit)


# ---------------------------------------------------------------------------------------------- JAX


def import_jax() -> Any:
    """JAX, for the CPU."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return importlib.import_module("jax")


def missing_jax() -> str | None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return missing("jax")


@functools.cache
def _jax_pool() -> list[int]:
    """The threads that JAX starts, which it has no setting for."""

    def tasks() -> set[int]:
        return {int(task) for task in os.listdir("/proc/self/task")}

    if not hasattr(os, "sched_setaffinity"):
        return []
    before = tasks()
    jax = import_jax()
    jax.jit(lambda x: x + 1)(np.zeros(1 << 20, np.float32)).block_until_ready()
    return sorted(tasks() - before)


def on_threads(threads: int, *, large: bool = True) -> Callable[[], AbstractContextManager[object]]:
    """The context of a run of JAX: with one thread it and its pool share one core, or the pool
    would help.
    """
    if not (pool := _jax_pool()):
        return nullcontext
    cores = sorted(os.sched_getaffinity(0))
    allowed = set(cores[:1]) if threads == 1 else set(cores)
    for task in pool:
        os.sched_setaffinity(task, allowed)
    if threads > 1 or not large:  # JAX computes what is small in the thread that calls
        return nullcontext

    @contextmanager
    def pinned() -> Iterator[None]:
        os.sched_setaffinity(0, allowed)
        try:
            yield
        finally:
            os.sched_setaffinity(0, cores)

    return pinned


def jax_array(array: Any) -> Any:
    """The same memory as an array of JAX; a copy where its alignment is not JAX's."""
    jnp: Any = importlib.import_module("jax.numpy")
    return jnp.from_dlpack(array)
