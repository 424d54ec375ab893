"""Put other code into single modules of a model, and remove it again.

A module gets methods in its instance's ``__dict__``, where they hide the methods of its class, and
a record of the changes.
"""

from __future__ import annotations

import ast
import copy
import functools
import linecache
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, cast

import torch
from torch import Tensor, nn

from .forms import NotServed

__all__ = [
    "MARK", "Plan", "definition", "global_names", "install", "restore", "slot",
    "with_decorators_of", "with_functions",
]  # fmt: skip

MARK = "_posenc_native"  # the attribute of a patched module that says how to restore it


def global_names(code: types.CodeType) -> set[str]:
    """Names of globals and attributes that a code object uses, also in its inner functions."""
    nested = (global_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*nested)


def definition(code: types.CodeType) -> ast.AST | None:
    """The source of a function; None if its file is missing or has changed since the import.

    Functions of one file share its tree: it is only for reading.
    """
    found = _file_of(code)
    return None if found is None else _definition_in(found[0], code)


def rewritten(code: types.CodeType, change: ast.NodeTransformer) -> types.CodeType | None:
    """The code of a function whose source is changed; None if its source is unknown."""
    found = _file_of(code)
    if found is None:
        return None
    tree = copy.deepcopy(found[0])
    function = _definition_in(tree, code)
    if function is None:
        return None
    ast.fix_missing_locations(change.visit(function))
    # With the whole file: its imports from __future__, and the class around a method.
    return next(
        other
        for other in _codes(tree, code.co_filename)
        if (other.co_name, other.co_firstlineno) == (code.co_name, code.co_firstlineno)
    )


def _file_of(code: types.CodeType) -> tuple[ast.Module, list[types.CodeType]] | None:
    """The tree of a function's file, and all code in it; None if the function is not in it."""
    try:
        # In CPython 3.11 two threads that parse at the same time can disturb each other, which is
        # a SystemError. Other code may parse without this lock.
        with _parsing:
            found = _parsed("".join(linecache.getlines(code.co_filename)), code.co_filename)
    except (SyntaxError, ValueError, SystemError):
        return None
    return found if code in found[1] else None


def _definition_in(tree: ast.Module, code: types.CodeType) -> ast.AST | None:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min((node, *node.decorator_list), key=lambda part: part.lineno)
            if first.lineno == code.co_firstlineno:
                return node
    return None


_parsing = threading.Lock()


@functools.lru_cache(maxsize=1)  # the methods of a model are in few files, side by side
def _parsed(source: str, filename: str) -> tuple[ast.Module, list[types.CodeType]]:
    """The tree of a file, and all code in it."""
    tree = ast.parse(source)
    return tree, _codes(tree, filename)


def _codes(tree: ast.Module, filename: str) -> list[types.CodeType]:
    codes = [compile(tree, filename, "exec", dont_inherit=True)]
    for code in codes:
        codes.extend(inside for inside in code.co_consts if isinstance(inside, types.CodeType))
    return codes


@dataclass
class Plan:
    """The changes to one module: methods, functions, and buffers that must keep their precision."""

    methods: dict[str, Callable[..., Any]] = field(default_factory=dict)
    statics: dict[str, Callable[..., Any]] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)  # new values, exact
    guarded: tuple[str, ...] = ()  # buffers that .half() must not round
    keep_originals: bool = False  # the buffers now mean something else: restore the old ones
    attributes: dict[str, Any] = field(default_factory=dict)  # replacements of non-modules
    note: str = ""
    fused: bool = False  # norms are done in the pass of the rotation


# --- the same code with another function in it ----------------------------------------------------


def _rewrap(
    function: Callable[..., Any],
    replace: Callable[[types.FunctionType], Callable[..., Any]],
) -> Callable[..., Any]:
    """`replace` applied to the innermost function, with the same decorators around the result."""
    if not isinstance(function, types.FunctionType):
        raise NotServed(f"its forward is not a plain function but {function!r}")
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is None:
        return replace(function)
    inner = _rewrap(wrapped, replace)
    cells = [
        types.CellType(inner) if cell.cell_contents is wrapped else cell
        for cell in function.__closure__ or ()
    ]
    if all(cell.cell_contents is not inner for cell in cells):
        raise NotServed(f"a decorator hides its forward: {function.__qualname__}")
    outer = _copy_function(function, function.__code__, function.__globals__, tuple(cells))
    outer.__dict__["__wrapped__"] = inner
    return outer


def with_decorators_of(
    original: Callable[..., Any], forward: Callable[..., Any]
) -> Callable[..., Any]:
    """A forward with the decorators of the original."""
    return _rewrap(original, lambda _: forward)


def with_functions(
    forward: Callable[..., Any],
    functions: dict[str, Callable[..., Any]],
    code: types.CodeType | None = None,
) -> Callable[..., Any]:
    """`forward` with other functions under some of its global names, or also with other code."""

    def replace(function: types.FunctionType) -> types.FunctionType:
        own = code or function.__code__
        # Only the names that the code uses, and no __name__: torch.compile would look up the module
        # of that name instead of this dict, and find the original function there.
        needed = global_names(own) | {"__builtins__", "__package__"}
        scope = {name: function.__globals__[name] for name in needed & function.__globals__.keys()}
        return _copy_function(function, own, scope | functions, function.__closure__)

    return _rewrap(forward, replace)


def _copy_function(
    function: types.FunctionType,
    code: types.CodeType,
    scope: dict[str, Any],
    closure: tuple[types.CellType, ...] | None,
) -> types.FunctionType:
    result = types.FunctionType(code, scope, function.__name__, function.__defaults__, closure)
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(result, name, getattr(function, name))
    result.__dict__.update(function.__dict__)
    return result


# --- putting it into a module, and taking it out again --------------------------------------------


# Where an instance may hold its forward. A hook of accelerate puts its own into `forward` and keeps
# the one that it calls in `_old_forward`: the hook must stay outside of ours.
_SLOTS = ("_old_forward", "forward")


@dataclass
class _State:
    """How to restore one module."""

    put: dict[str, Callable[..., Any]]  # methods and functions that were put in, by name
    dtypes: dict[str, torch.dtype]  # the dtypes of the guarded buffers without the guard
    originals: dict[str, Tensor]
    attributes: dict[str, Any]  # the previous values

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled with the functions that were put in: they have no module."""
        if self.put:
            raise TypeError(
                "a patched model cannot be pickled; call handle.undo() first (or "
                "posenc_native.hf.unpatch(model)), or save model.state_dict()"
            )
        return super().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> _State:
        return _State(*(copy.deepcopy(getattr(self, part.name), memo) for part in fields(self)))


def slot(module: nn.Module, name: str) -> str:
    """The instance attribute in which a method of this module must be replaced."""
    for place in _SLOTS if name == "forward" else (name,):
        if place in module.__dict__:
            if getattr(module.__dict__[place], "__func__", None) is not type(module).forward:
                raise NotServed(f"its {name} has been replaced by something else already")
            return place
    return name


def install(module: nn.Module, plan: Plan) -> None:
    """Apply a plan to a module."""
    buffers = cast("dict[str, Tensor]", module._buffers)
    slots = {name: slot(module, name) for name in plan.methods}
    module.__dict__[MARK] = _State(
        put=plan.methods | plan.statics,
        dtypes={name: buffers[name].dtype for name in plan.guarded},
        originals={name: buffers[name] for name in plan.buffers if plan.keep_originals},
        attributes={name: module.__dict__[name] for name in plan.attributes},
    )
    module.__dict__.update(plan.attributes)
    buffers.update(plan.buffers)
    for name, method in plan.methods.items():
        # Bound methods, not closures over the module: copy.deepcopy binds them to the copy.
        module.__dict__[slots[name]] = types.MethodType(method, module)
    module.__dict__.update(plan.statics)
    if plan.guarded:
        module.__dict__["_apply"] = types.MethodType(_apply_but_keep_precision, module)


def restore(module: nn.Module) -> None:
    """Undo `install` for a module; does nothing if it was never called."""
    state: _State | None = module.__dict__.pop(MARK, None)
    if state is None:
        return
    module.__dict__.pop("_apply", None)
    for name, put in state.put.items():
        for place in _SLOTS if name == "forward" else (name,):  # hooks may have come or gone
            there = module.__dict__.get(place)
            if getattr(there, "__func__", there) is put:
                if place == name:
                    del module.__dict__[place]
                else:
                    module.__dict__[place] = types.MethodType(type(module).forward, module)
    for name, before in state.attributes.items():
        if hasattr(type(module.__dict__.get(name)), MARK):  # otherwise other code has replaced it
            module.__dict__[name] = before
    buffers = cast("dict[str, Tensor]", module._buffers)
    for name, dtype in state.dtypes.items():
        # .to() returns the same tensor if device and dtype are already right.
        buffers[name] = state.originals.get(name, buffers[name]).to(buffers[name].device, dtype)


def _apply_but_keep_precision(
    self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True
) -> nn.Module:
    """``Module._apply``, through which all of ``.half()``, ``.to()`` and ``.cuda()`` go.

    The guarded buffers follow the device and keep their dtype.
    """
    state: _State = self.__dict__[MARK]
    buffers = cast("dict[str, Tensor]", self._buffers)
    exact = {name: buffers[name] for name in state.dtypes}
    type(self)._apply(self, fn, recurse)
    for name, before in exact.items():
        if buffers[name].dtype != before.dtype:
            state.dtypes[name] = buffers[name].dtype
            buffers[name] = before.to(buffers[name].device)
    return self
