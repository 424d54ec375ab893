"""One call of a rotation by every engine that there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from matrices import others_slow
from targets import CUDA_ON_HOST, NEEDS_CUDA_ON_HOST, NEEDS_NATIVE, backend_in_use

import posenc_native as pn
from posenc_native.core.calls.rotation import Rotation
from posenc_native.engines import backend

OF_ARRAYS = [
    pytest.param("native", marks=NEEDS_NATIVE),
    pytest.param("CUDA", marks=NEEDS_CUDA_ON_HOST),
    "reference",
]
QUICK = ("small", "operators", "plain", "vmap")
OF_TENSORS = [*QUICK[:3], "compiled", "vmap"]
# A graph takes seconds: most tests leave it to `make test-all`, and some of this name do not.
every_engine = pytest.mark.parametrize("engine", [*OF_ARRAYS, *OF_TENSORS])
each_engine = pytest.mark.parametrize("engine", [*OF_ARRAYS, *others_slow(OF_TENSORS, *QUICK)])
# Those that promise the bits of the native module.
each_exact_engine = pytest.mark.parametrize(
    "engine", ["native", pytest.param("CUDA", marks=NEEDS_CUDA_ON_HOST), "operators"]
)
# vmap writes to no memory of its caller.
each_writing_engine = pytest.mark.parametrize(
    "engine", [*OF_ARRAYS, *others_slow(OF_TENSORS[:-1], *QUICK[:3])]
)


@dataclass
class Call:
    """A public function and its arguments, arrays among them: the first ones are rotated."""

    function: str
    rotated: tuple[Any, ...]
    others: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> tuple[Any, ...]:
        return run_call(self.function, self.rotated, self.others, self.named)


# What each function rotates or writes; angles follow.
INPUTS = {"apply_rotary": 1, "apply_rotary_qk": 2, "norm_rotary_qk": 2, "rotary_append": 3}


def _by_tables(name: str, inputs: int) -> Callable[..., Any]:
    """The function with cos and sin in place of positions and frequencies."""

    def call(*given: Any, rows: Any = None, axis_map: Any = None, compute: str = "float32",
             **options: Any) -> Any:  # fmt: skip
        cos, sin, *others = given[inputs:]
        tables = pn.Tables(cos, sin, rows, axis_map, compute)  # type: ignore[arg-type]
        return getattr(pn, name)(*given[:inputs], None, tables, *others, **options)

    return call


_BY_TABLES = {f"{name} by tables": _by_tables(name, n) for name, n in INPUTS.items()}


def public(name: str) -> Any:
    """A public function; after "apply_rotary by tables", parts of tables are its arguments."""
    if name in _BY_TABLES:
        return _BY_TABLES[name]
    owners = (pn, pn.absolute, pn.positions, pn.relative, pn.rotary, pn.selective, pn.sinusoids)
    return getattr(next(owner for owner in owners if name in owner.__all__), name)


def turned_by(
    cos: Any, sin: Any, layout: str = "bhsd", *options: Any, rows: Any = None,
    axis_map: Any = None, compute: str = "float32", **named: Any,
) -> Rotation:  # fmt: skip
    """The record of a rotation by tables."""
    tables = pn.Tables(cos, sin, rows, axis_map, compute)  # type: ignore[arg-type]
    return Rotation(None, tables, layout, *options, **named)


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def each(convert: Callable[[Any], Any], value: Any) -> Any:
    """The arrays in tuples and dicts, converted; nothing else is."""
    if isinstance(value, tuple):
        return tuple(each(convert, one) for one in value)
    if isinstance(value, dict):
        return {key: each(convert, one) for key, one in value.items()}
    return convert(value) if isinstance(value, np.ndarray) else value


@contextmanager
def computing(engine: str) -> Iterator[None]:
    """Inside, this engine computes."""
    before = backend_in_use()
    pn.set_backend("reference" if engine in ("reference", "plain") else "native")
    if engine == "CUDA":
        backend.use(CUDA_ON_HOST)
    try:
        with past_small_calls(engine in ("operators", "vmap")):
            yield
    finally:
        pn.set_backend(before)


@contextmanager
def past_small_calls(wanted: bool) -> Iterator[None]:
    """Inside, the door is closed: the general path serves all calls."""
    with pytest.MonkeyPatch.context() as patch:
        if wanted:
            patch.setattr(backend, "door", backend.ClosedDoor())
        yield


def tensor_of(array: np.ndarray) -> Any:
    """A tensor of the same numbers and, where torch has them, the same strides."""
    import torch

    if any(stride < 0 for stride in array.strides):
        return torch.tensor(array.copy())
    return torch.from_numpy(array)


def tensors_of(values: Any) -> Any:
    """The same values with tensors in the memory of the arrays: one array is one tensor."""
    known: dict[int, Any] = {}
    return each(lambda array: known.setdefault(id(array), tensor_of(array)), values)


def results_of(engine: str, call: Call) -> tuple[Any, ...]:
    """What the engine computes, as arrays, None where there is nothing."""
    with computing(engine):
        if engine in ("native", "CUDA", "reference"):
            return call()
        torch = pytest.importorskip("torch")
        if engine == "vmap":
            return _by_vmap(torch, call)
        if engine == "compiled":
            torch.compiler.reset()
            run = torch.compile(run_call, fullgraph=True, backend="aot_eager")
            converted = tensors_of((call.rotated, call.others, call.named))
            results = run(call.function, *converted)
        else:
            results = run_call(call.function, *tensors_of((call.rotated, call.others, call.named)))
        return tuple(None if y is None else y.numpy() for y in results)


def results_of_all(engine: str, calls: Mapping[Any, Call]) -> dict[Any, tuple[Any, ...]]:
    """`results_of` several calls, by name; torch.compile makes one graph of all of them."""
    if engine != "compiled":
        return {name: results_of(engine, call) for name, call in calls.items()}
    torch = pytest.importorskip("torch")

    def run(every: list[Any]) -> list[tuple[Any, ...]]:
        return [run_call(function, *given) for function, given in every]

    every = [
        (call.function, tensors_of((call.rotated, call.others, call.named)))
        for call in calls.values()
    ]
    with computing(engine):
        torch.compiler.reset()
        results = torch.compile(run, fullgraph=True, backend="aot_eager")(every)
    return {
        name: tuple(None if y is None else y.numpy() for y in own)
        for name, own in zip(calls, results, strict=True)
    }


def run_call(function: str, rotated: Any, others: Any, named: Any) -> tuple[Any, ...]:
    return as_tuple(public(function)(*rotated, *others, **named))


def _by_vmap(torch: Any, call: Call) -> tuple[Any, ...]:
    """The first of two examples, of which the second has other numbers."""
    given = [tensor_of(x) for x in call.rotated if x is not None]
    stacked = [torch.stack([x, 1 - x]) for x in given]
    others, named = each(tensor_of, call.others), each(tensor_of, call.named)

    def of_one(*tensors: Any) -> tuple[Any, ...]:
        left = list(tensors)
        rotated = tuple(None if x is None else left.pop(0) for x in call.rotated)
        results = run_call(call.function, rotated, others, named)
        return tuple(y for y in results if y is not None)

    results = [y[0].numpy() for y in torch.func.vmap(of_one)(*stacked)]
    return tuple(None if x is None else results.pop(0) for x in call.rotated)


def gradients_of(engine: str, call: Call, weights: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    """Gradients of what is rotated, for a weighted sum of the results."""
    torch = pytest.importorskip("torch")
    with computing(engine):
        given = [tensor_of(x).clone().requires_grad_() for x in call.rotated if x is not None]
        left = list(given)
        rotated = tuple(None if x is None else left.pop(0) for x in call.rotated)
        others, named = each(tensor_of, call.others), each(tensor_of, call.named)
        results = [y for y in run_call(call.function, rotated, others, named) if y is not None]
        kept = [torch.as_tensor(w) for w in weights if w is not None]
        total = sum((y * w).sum() for y, w in zip(results, kept, strict=True))
        return tuple(g.numpy() for g in torch.autograd.grad(total, given))


def assert_close(
    actual: tuple[Any, ...], expected: tuple[Any, ...], rtol: float = 2e-6, what: str = ""
) -> None:
    """All results are near; rtol is of the largest number, as errors of a pair are of both."""
    assert len(actual) == len(expected), what
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours is None) == (theirs is None), what
        if ours is not None:
            assert ours.shape == theirs.shape, what
            largest = max(float(np.abs(theirs).max(initial=0)), 1e-30)
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=rtol * largest, err_msg=what)
