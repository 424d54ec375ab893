"""Whether anything except an attention module can see the q and k that it is about to rotate.

If not, they are rotated in place: that needs no fresh memory, which for long prompts costs more
than the rotation. All of these conditions must hold, and an unknown condition counts as violated:

- the call is written ``q, k = rotate(q, k, ...)``: after it the method has no q and k either;
- no forward hook on a submodule of the attention, or on all modules;
- no other reference to q or k, from Python or C++, and no other tensor on their memory;
- the memory is torch's own: that of NumPy, of a file or of another process has other readers;
- no gradient, no torch.compile, no tracer, no mode, no transform of torch.func.

Reference counts are compared with those of a value that is known to have no other holder. So the
test does not depend on how many references an interpreter or a version of torch needs for a call.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module

from posenc_native.engines.following import transformed

from .instances import definition
from .signatures import RotaryArguments

__all__ = [
    "Way", "gives_results_their_names", "is_followed", "nobody_else_sees", "source_of",
    "tells_its_module",
]  # fmt: skip

# Bytes of q below which fresh memory costs no more than these checks and colder caches.
SMALLEST = 1 << 22


class Way(NamedTuple):
    """How a call reaches the function that replaces a model's."""

    passed_on: bool = False  # through a function that only passes its arguments on
    starred: bool = False  # written with a star, rotate(q, *tables): a tuple holds all of them


def nobody_else_sees(heads: tuple[Tensor, ...], way: Way = Way()) -> bool:  # noqa: B008
    """Whether heads may be rotated in place, asked by the function that replaces a model's.

    That function must hold no references from its call except ``*args``, ``**kwargs`` and `heads`.
    """
    # torch.compile plans memory itself, and could not trace the following code.
    if torch.compiler.is_compiling() or heads[0].nbytes < SMALLEST:
        return False
    modules = _calling.modules
    if not modules or is_followed() or any(map(_has_hooks, modules)):
        return False
    expected = _references_without_holders(way)
    return all(n == expected for n in _references(heads)) and all(_is_alone(x) for x in heads)


def is_followed() -> bool:
    """Whether something other than autograd traces torch's operations on this thread."""
    following = torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()
    return following or transformed()


# --- hooks ----------------------------------------------------------------------------------------


class _Calling(threading.local):
    """The attention module, or a processor's, whose method runs on this thread, and its caller."""

    modules: tuple[nn.Module, ...] = ()


_calling = _Calling()


def tells_its_module(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that tells `nobody_else_sees` the module it belongs to.

    A diffusers processor gets its module as the first argument.
    """

    @functools.wraps(method)
    def telling(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return method(self, *args, **kwargs)
        modules = tuple(value for value in (self, *args[:1]) if isinstance(value, nn.Module))
        outer, _calling.modules = _calling.modules, modules
        try:
            return method(self, *args, **kwargs)
        finally:
            _calling.modules = outer

    return telling


def _has_hooks(module: nn.Module) -> bool:
    """Whether a module inside this one has a hook before or after its forward."""
    if every_module._global_forward_hooks or every_module._global_forward_pre_hooks:
        return True
    inside = [*module._modules.values()]
    while inside:
        submodule = inside.pop()
        if submodule is not None:
            if submodule._forward_hooks or submodule._forward_pre_hooks:
                return True
            inside.extend(submodule._modules.values())
    return False


# --- references -----------------------------------------------------------------------------------


def _references(values: tuple[Any, ...]) -> list[int]:
    return [sys.getrefcount(value) for value in values]


def _references_without_holders(way: Way) -> int:
    """The `_references` if only a method and the call of its rotary function hold a value."""

    def rotary(*args: Any, **kwargs: Any) -> Any:
        heads = args[:2]
        return _references(heads)

    def passing_on(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        return rotary(q, k, cos, sin)

    called = passing_on if way.passed_on else rotary
    tables = None, None

    def forward() -> Any:
        q, k = object(), object()
        q, k = called(q, k, None, None)
        return q

    def starred() -> Any:
        q, k = object(), object()
        q, k = called(q, k, *tables)
        return q

    # Measured in every call: a debugger or a compiler may change how functions are called.
    return starred() if way.starred else forward()  # type: ignore[no-any-return]


# The attributes of tensors that are needed below. If torch lacks one, no tensor counts as alone.
_CAN_COUNT = (
    hasattr(Tensor, "_use_count")
    and hasattr(torch._C, "_storage_Use_Count")
    and hasattr(torch, "_debug_has_internal_overlap")
    and hasattr(torch.UntypedStorage, "resizable")
)


def _is_alone(x: Tensor) -> bool:
    """Whether only its variable holds a tensor and its memory."""
    if (
        not _CAN_COUNT
        or type(x) is not Tensor
        or not (x.is_cpu or x.is_cuda)
        or x.requires_grad
        or (x.is_inference() and not torch.is_inference_mode_enabled())
        or torch._debug_has_internal_overlap(x) != 0  # 2: torch cannot tell
    ):
        return False
    return _holders(x) == _holders_of_a_lone_tensor(x._base is not None)


def _holders(x: Tensor) -> tuple[int | bool, ...]:
    """The references to a tensor, to its memory, and to its base; without Python's x.

    The last item says whether torch has allocated the memory for this process alone.
    """
    storage, base = x.untyped_storage(), x._base
    counts = [
        x._use_count(),  # type: ignore[attr-defined]
        weakref.getweakrefcount(x),
        torch._C._storage_Use_Count(storage._cdata),
        sys.getrefcount(storage),
    ]
    if base is not None:
        counts += [base._use_count()]  # type: ignore[attr-defined]
        counts += [weakref.getweakrefcount(base), sys.getrefcount(base)]
    return *counts, storage.resizable() and not (x.is_cpu and storage.is_shared())


@functools.cache
def _holders_of_a_lone_tensor(is_view: bool) -> tuple[int | bool, ...]:
    with torch.inference_mode(False), torch.no_grad():
        x = torch.zeros(1, device="cpu")
        if is_view:
            x = x.view(1, 1)
        return _holders(x)


# --- the method that calls ------------------------------------------------------------------------


def source_of(method: Callable[..., Any]) -> ast.AST | None:
    """The source of a method without its decorators; None if it is unknown."""
    inner = inspect.unwrap(method)
    return definition(inner.__code__) if isinstance(inner, types.FunctionType) else None


def gives_results_their_names(
    tree: ast.AST | None, name: str, arguments: RotaryArguments, starred: bool = False
) -> bool:
    """Whether a method uses a rotary function only as ``q, k = name(q, k, ...)``.

    Anything that the method holds under other names counts as a reference or as a tensor on the
    same memory. False if its source is unknown.

    tree: the `source_of` the method.
    starred: the calls have a star, ``name(q, k, *tables)``; all of them or none.
    """
    if tree is None:
        return False
    used = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
    calls = [node for node in ast.walk(tree) if _overwrites_heads(node, name, arguments)]
    stars = [any(isinstance(part, ast.Starred) for part in ast.walk(call)) for call in calls]
    return 0 < used == len(calls) and all(star == starred for star in stars)


def _overwrites_heads(node: ast.AST, name: str, arguments: RotaryArguments) -> bool:
    """Whether a node assigns ``name(...)`` to the same variables that are its heads."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return False
    call, (target, *others) = node.value, node.targets
    if others or getattr(call.func, "id", None) != name:
        return False
    written = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [getattr(value, "id", None) for value in written]
    read = arguments.heads_in(call, len(names))
    return {*read} == {*names} and len(read) == len(names)
