"""What runs a case: the native module, CUDA on the host, operators of torch, plain operations.

All are reached through the public functions; `backend.use` says what computes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import posenc_native as pn
from posenc_native.engines import backend
from posenc_native.engines.plain import arrays as reference

from .bound import bound_steps
from .cases import Case, Described, Dtype, Listed
from .memory import Arena, Operand, dtype_of

sys.path.append(str(Path(__file__).parents[1] / "tests" / "shared"))
from rotary_gradients import rotary_backward

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

ROTATION = (
    ("positions", None), ("inv_freq", None), ("layout", "bhsd"), ("pairing", "half"),
    ("rotary_start", 0), ("axis_map", None), ("scale", 1.0), ("inverse", False),
)  # fmt: skip
# Threads of the NumPy functions begin with calls of 128 KiB; these many bytes each then.
BYTES_PER_THREAD = 1 << 14


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


NATIVE = backend.native
CUDA = _module("posenc_native._cuda_on_host")
if CUDA is not None:
    CUDA.use_tables(pn.Tables)
OPERATORS = torch is not None and backend.torch_library() is not None
TARGETS: list[str] = [] if NATIVE is None else NATIVE.available_targets()
# Their results have the same bits; without fused multiply-add the last place differs.
FUSED = [target for target in TARGETS if target not in ("SSE2", "SSSE3", "SSE4")]


@dataclass(frozen=True)
class Engine:
    """A way to run a case."""

    kind: str  # native, cuda, reference; of tensors: small, operator, plain
    target: str = ""
    threads: int = 1
    streaming: bool = False

    @property
    def of_tensors(self) -> bool:
        """Whether operands are tensors."""
        return self.kind in ("small", "operator", "plain")

    @property
    def fused(self) -> bool:
        """Whether results have the bits of all others that fuse."""
        return self.kind in ("cuda", "small", "operator") or self.target in FUSED


REFERENCE = Engine("reference")
_state: dict[str, Any] = {}


def _set(name: str, function: Callable[[Any], Any], value: Any) -> None:
    if _state.get(name) != value:
        function(value)
        _state[name] = value


class prepared:
    """Inside, the public functions run on this engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __enter__(self) -> None:
        kind = self.engine.kind
        self.before = backend.implementation
        if kind in ("native", "small"):
            assert NATIVE is not None
            backend.use(NATIVE)
            _set("target", NATIVE.set_target, self.engine.target)
            _set("threads", NATIVE.set_num_threads, self.engine.threads)
            _set("bytes", NATIVE.set_bytes_per_thread, BYTES_PER_THREAD)
            _set("streaming", NATIVE.set_non_temporal_bytes, int(self.engine.streaming))
        elif kind in ("cuda", "operator"):  # with another module, tensors take the operator
            assert CUDA is not None
            backend.use(CUDA)
        else:
            backend.use(reference)

    def __exit__(self, *_: object) -> None:
        backend.use(self.before)


@dataclass
class Outcome:
    """What a call came to."""

    results: tuple[np.ndarray[Any, Any], ...] = ()
    error: BaseException | None = None
    same_objects: bool = True  # results that should be arguments are


def _resolve(value: Any, arrays: dict[int, Any], tensors: bool) -> Any:
    if isinstance(value, Operand):
        return arrays[id(value)]
    if isinstance(value, tuple):
        return tuple(_resolve(part, arrays, tensors) for part in value)
    if isinstance(value, Listed):
        return arrays[id(value.operand)].tolist()
    if isinstance(value, Described):
        return pn.Rotary(**value.arguments)
    if isinstance(value, Dtype):
        return getattr(torch, value.name) if tensors else dtype_of(value.name)
    return value


def function_of(case: Case) -> Callable[..., Any]:
    """The public function; of gradients, that of the module in use."""
    if case.function == "rotary_backward":
        return _rotary_backward
    if case.function == "bound_steps":
        return bound_steps
    function: Callable[..., Any] = getattr(pn, case.function)
    return function


def _rotary_backward(grads: Any, inputs: Any, of_positions: bool, **options: Any) -> Any:
    rotation = [options.get(name, default) for name, default in ROTATION]
    backward = getattr(backend.implementation, "rotary_backward", rotary_backward)
    turned, *sums = backward(grads, inputs, *rotation, of_positions)
    return (*turned, *(s for s in sums if s is not None))


def arguments_of(case: Case, arrays: dict[int, Any], tensors: bool = False) -> dict[str, Any]:
    """The arguments, arrays or tensors in the place of operands."""
    return {name: _resolve(value, arrays, tensors) for name, value in case.arguments.items()}


def gathered(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, with the parts of tables in one value."""
    if "cos" not in arguments:
        return arguments
    parts = {name: arguments[name] for name in pn.Tables._fields if name in arguments}
    others = {name: value for name, value in arguments.items() if name not in parts}
    return others | {"positions": None, "inv_freq": pn.Tables(**parts)}


def run(case: Case, engine: Engine, arrays: dict[int, Any], twin: bool = False) -> Outcome:
    """Calls the function; results are copies, of what was returned and then of what was written."""
    with prepared(engine), np.errstate(all="ignore"):
        try:
            arguments = arguments_of(case, arrays, engine.of_tensors)
            arguments = gathered(arguments | (case.twin if twin else {}))
            results = function_of(case)(**arguments)
        except Exception as error:
            return Outcome(error=error)
    several = _several(results)
    same = all(one is arrays[id(to)] for one, to in zip(several, case.returned, strict=False))
    several += tuple(arrays[id(operand)] for operand in case.effects)
    if engine.of_tensors:
        return Outcome(tuple(_to_array(t) for t in several), same_objects=same)
    return Outcome(tuple(np.array(result) for result in several), same_objects=same)


def _several(results: Any) -> tuple[Any, ...]:
    """The results of a call; a missing q or k has none."""
    several = results if isinstance(results, tuple) else (results,)
    return tuple(result for result in several if result is not None)


# --- Tensors


# Functions that are linear in all of their floats together, and what these are.
LINEAR = {
    "apply_rotary": ("x",),
    "apply_rotary_qk": ("q", "k"),
    "selective_rotary_qk": ("q", "k"),
    "toeplitz_bias": ("diagonals",),
    "add_toeplitz_bias": ("scores", "diagonals"),
    "diagonal_sums": ("grad",),
    "relative_gather": ("x", "content"),
    "relative_scatter": ("grad",),
}
# Half a unit in the last place of 1.
HALF_UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def adjoint_fault(case: Case, tensors: dict[int, Any]) -> str | None:
    """What is wrong with gradients of a function y = f(x) that is linear: <g, y> = <x, f* g>."""
    arguments = arguments_of(case, tensors, tensors=True)
    arguments.pop("out", None)
    arguments.pop("inplace", None)
    inputs = {name: arguments.get(name) for name in LINEAR[case.function]}
    inputs = {name: x.detach().requires_grad_() for name, x in inputs.items() if x is not None}
    with prepared(Engine("operator")):
        results = _several(function_of(case)(**gathered(arguments | inputs)))
        results = tuple(y for y in results if y.requires_grad)  # integers have no gradient
        torch.manual_seed(0)
        grads = [torch.randn(y.shape, dtype=torch.float64).to(y.dtype) for y in results]
        found = torch.autograd.grad(results, list(inputs.values()), grads, allow_unused=True)
    difference = scale = 0.0
    unit = 0.0
    for tensor, other, sign in (
        *zip(results, grads, [1] * len(grads), strict=True),
        *zip(inputs.values(), found, [-1] * len(inputs), strict=True),
    ):
        if other is None:
            return "an input has no gradient"
        if other.shape != tensor.shape or other.dtype != tensor.dtype:
            return f"a gradient is {other.dtype} {list(other.shape)}"
        products = tensor.detach().double() * other.double()
        difference += sign * float(products.sum())
        scale += float(products.abs().sum())
        unit = max(unit, HALF_UNITS[str(tensor.dtype).removeprefix("torch.")])
    # A number is rounded where it is stored, and sums of float32 at each of their terms.
    terms = 8 + max(tensor.numel() for tensor in (*results, *inputs.values()))
    bound = scale * (8 * unit + terms * max(2.0**-53, min(unit, 2.0**-24)))
    if scale < 1e30 and abs(difference) > bound + 1e-6 * (unit == 2.0**-11):
        return f"<g, y> and <x, f* g> differ by {difference}, more than {bound}"
    return None


def tensors_of(case: Case, arena: Arena) -> dict[int, Any] | None:
    """The operands as tensors of the same memory; None where no tensor can be so."""
    result = {}
    for operand in case.layout.operands:
        tensor = _tensor(operand, arena)
        if tensor is None:
            return None
        result[id(operand)] = tensor
    return result


def _tensor(operand: Operand, arena: Arena) -> Any:
    name = operand.dtype
    item = dtype_of(name).itemsize
    window = arena.window(operand.window)
    if (
        operand.read_only
        or not hasattr(torch, name)
        or any(stride < 0 or stride % item for stride in operand.strides)
        or (window.ctypes.data + operand.offset) % item
    ):
        return None
    lead = operand.offset % item
    memory = window[lead : lead + (len(window) - lead) // item * item]
    if not len(memory):
        return torch.empty(operand.shape, dtype=getattr(torch, name))
    whole = torch.from_numpy(memory).view(getattr(torch, name))
    strides = [stride // item for stride in operand.strides]
    try:
        return whole.as_strided(operand.shape, strides, (operand.offset - lead) // item)
    except RuntimeError:  # strides of axes of one element that torch does not take
        return None


_WORDS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


def _to_array(tensor: Any) -> np.ndarray[Any, Any]:
    if isinstance(tensor, np.ndarray):  # nothing among the arguments was of torch
        return tensor.copy()
    name = str(tensor.dtype).removeprefix("torch.")
    words = tensor.detach().contiguous().view(getattr(torch, _WORDS[tensor.element_size()]))
    return words.numpy().copy().view(dtype_of(name))
