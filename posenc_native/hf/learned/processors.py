"""Learned rotary functions in modules and in attention processors.

A module of timm calls such a function in its forward. In diffusers an attention module keeps a
processor, which is not a module and calls the function in ``__call__``:

    a global of its file      the method is copied with other globals
    imported in the method    and with an ``__import__`` that returns ours instead
    defined in the method     and with other code in its place, which calls ours
    written out in it         and with other code, see written.py

A processor is not changed: its module gets a copy, of a separate class that inherits from it.
"""

from __future__ import annotations

import ast
import builtins
import copy
import copyreg
import dis
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from posenc_native.hf.forms import NotServed
from posenc_native.hf.holders import (
    Way,
    gives_results_their_names,
    source_of,
    tells_its_module,
)
from posenc_native.hf.instances import MARK, Plan, global_names, slot, with_functions
from posenc_native.hf.signatures import title_of

from .functions import Learned, may_rotate
from .makers import exact_forward, may_make_tables
from .written import with_calls

__all__ = ["LearnedPlanner"]

# (name, reason): why a function is left to the model.
Report = Callable[[str, str], object]


class LearnedPlanner:
    """Plans for modules and processors; one per `patch`, so that a function is learned once."""

    def __init__(self, report: Report, inplace: bool | None) -> None:
        self._report = report
        self._inplace = inplace
        self._learned: dict[Callable[..., Any], Learned] = {}
        self._ours: dict[Any, Callable[..., Any]] = {}
        self._kinds: dict[type, type | str | None] = {}
        self._methods: dict[type, dict[str, Callable[..., Any]]] = {}
        # Weak: the methods of processors hold this planner.
        self._copies: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._sources: dict[types.FunctionType, ast.AST | None] = {}
        self._makers: dict[type, Callable[..., Any]] = {}

    def exact(self, module: nn.Module) -> Plan | None:
        """The plan for a module that makes tables by a formula; None if it makes none."""
        kind = type(module)
        if not may_make_tables(module) or not isinstance(kind.forward, types.FunctionType):
            return None
        try:
            slot(module, "forward")
        except NotServed:
            return None
        if kind not in self._makers:
            self._makers[kind] = exact_forward(kind.forward)
        return Plan(methods={"forward": self._makers[kind]})

    def plan(self, name: str, module: nn.Module) -> Plan | None:
        """The plan for a module; None if nothing in it calls such a function."""
        kind, plan = type(module), Plan()
        try:
            if kind not in self._methods:
                self._methods[kind] = self._methods_of(kind)
            for method in self._methods[kind]:
                slot(module, method)
            plan.methods = dict(self._methods[kind])
        except NotServed as reason:
            self._report(name, str(reason))
        for attribute, value in vars(module).items():
            if _is_processor(value):
                ours = self._kind_of(type(value))
                if isinstance(ours, str):
                    self._report(name, ours)
                elif ours is not None:
                    plan.attributes[attribute] = self._copy(value, ours)
        return plan if plan.methods or plan.attributes else None

    def _copy(self, processor: Any, kind: type) -> Any:
        """One copy per processor: modules that share a processor also share its copy."""
        own = self._copies.get(id(processor))
        if own is None:
            own = self._copies[id(processor)] = _of_kind(kind, processor.__dict__)
        return own

    def _methods_of(self, kind: type) -> dict[str, Callable[..., Any]]:
        """The methods of a class of modules that call such functions, with ours instead."""
        methods: dict[str, Callable[..., Any]] = {}
        for base in reversed(kind.__mro__):
            if base.__module__.partition(".")[0] in ("torch", "builtins"):
                continue
            for name, value in vars(base).items():
                methods.pop(name, None)
                plain = isinstance(value, types.FunctionType)
                if plain and (ours := self._with_ours(value)) is not None:
                    methods[name] = ours
        return methods

    def _kind_of(self, kind: type) -> type | str | None:
        """Our subclass of a processor's class; a reason if there is none; None if not needed."""
        if kind not in self._kinds:
            self._kinds[kind] = self._made(kind)
        return self._kinds[kind]

    def _made(self, kind: type) -> type | str | None:
        methods = {}
        for name in dict.fromkeys(name for base in kind.__mro__ for name in vars(base)):
            method = inspect.getattr_static(kind, name)
            if not isinstance(method, types.FunctionType):
                continue
            try:
                ours = self._with_ours(method)
            except NotServed as reason:
                return f"{kind.__name__}.{name}: {reason}"
            if ours is not None:
                methods[name] = ours
        if not methods:
            return None
        if any(vars(base).get("__slots__") for base in kind.__mro__):
            return f"{kind.__name__} has slots"
        body = {**methods, **_AS_BEFORE, MARK: True, "__module__": kind.__module__}
        body["_processors"] = weakref.WeakSet()  # those that live
        try:
            return type(kind.__name__, (kind,), body)
        except TypeError as error:
            return f"no class can inherit from {kind.__name__}: {error}"

    def _with_ours(self, method: types.FunctionType) -> Callable[..., Any] | None:
        """A method that calls ours instead of functions to learn; None if it calls none.

        Raises:
            NotServed: one of its functions cannot be replaced.
        """
        inner = inspect.unwrap(method)
        if not isinstance(inner, types.FunctionType):
            return None
        functions: dict[str, Any] = {}
        names = global_names(inner.__code__)
        for name in names:
            function = inner.__globals__.get(name)
            if may_rotate(name, function):
                functions[name] = self._in_place_of(function, inner, name)  # type: ignore[arg-type]
        importable = {name for name in names if may_be_imported(name)}
        if importable and importable & _imported(inner.__code__):
            importing = functools.partial(self._import, inner)
            if self._inplace is None:
                # Now, not when the model runs, perhaps in several threads at once.
                self._source(inner)
            functions["__builtins__"] = vars(builtins) | {"__import__": importing}
        code = inner.__code__
        if (calls := with_calls(inner)) is not None:
            code = calls[0]
            for name, rotation in calls[1].items():
                functions[name] = self._in_place_of(rotation, inner, name)
        code = self._with_ours_inside(inner, code, functions)
        if not functions:
            return None
        ours = with_functions(method, functions, code)
        return tells_its_module(ours) if self._inplace is None else ours

    def _with_ours_inside(
        self, method: types.FunctionType, whole: types.CodeType, functions: dict[str, Any]
    ) -> types.CodeType:
        """The code of a method whose inner functions to learn call ours, which are added."""
        constants = [*whole.co_consts]
        for at, code in enumerate(constants):
            if not isinstance(code, types.CodeType) or not may_be_imported(code.co_name):
                continue
            plain = not (code.co_posonlyargcount or code.co_kwonlyargcount) and not (
                code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
            )
            if code.co_freevars or not plain:
                what = "takes *args or **kwargs" if not plain else "uses variables of the method"
                raise NotServed(
                    f"{code.co_name}, which is defined in it, {what}: call "
                    "posenc_native.apply_rotary there, with Tables"
                )
            ours = f"_learned_{code.co_name}"
            own = types.FunctionType(code, method.__globals__)
            own.__module__ = f"{method.__module__}.{method.__qualname__}"
            functions[ours] = self._in_place_of(own, method, code.co_name, passed_on=True)
            arguments = ", ".join(code.co_varnames[: code.co_argcount])
            constants[at] = _code_of(f"def {code.co_name}({arguments}): return {ours}({arguments})")
        return whole.replace(co_consts=tuple(constants))

    def _in_place_of(
        self,
        function: Callable[..., Any],
        method: types.FunctionType,
        name: str,
        passed_on: bool = False,
    ) -> Callable[..., Any]:
        """The replacement that a method calls for the function that it knows by this name."""
        key = function, method, name
        if key in self._ours:
            return self._ours[key]
        if function not in self._learned:
            title = f"{function.__module__}.{title_of(function)}"
            self._learned[function] = Learned(function, lambda why: self._report(title, why))
        learned, inplace, starred = self._learned[function], self._inplace, False
        if inplace is None:
            told = functools.partial(
                gives_results_their_names, self._source(method), name, learned.arguments
            )
            starred = told(starred=True)
            inplace = None if starred or told() else False
        ours = self._ours[key] = learned.function(inplace, Way(passed_on, starred))
        return ours

    def _source(self, method: types.FunctionType) -> ast.AST | None:
        """The source of a method, parsed once."""
        if method not in self._sources:
            self._sources[method] = source_of(method)
        return self._sources[method]

    def _import(
        self,
        method: types.FunctionType,
        name: str,
        scope: Any = None,
        local: Any = None,
        wanted: Any = (),
        level: int = 0,
    ) -> Any:
        """``__import__`` that returns ours among the names that a method imports from a module."""
        module = builtins.__import__(name, scope, local, wanted, level)
        values = {n: getattr(module, n) for n in wanted or () if hasattr(module, n)}
        # If a name is missing, the import statement itself raises the error.
        if len(values) < len(wanted or ()) or not any(
            may_rotate(n, value) for n, value in values.items()
        ):
            return module
        return types.SimpleNamespace(
            **{
                n: self._in_place_of(value, method, n) if may_rotate(n, value) else value
                for n, value in values.items()
            }
        )


def may_be_imported(name: str) -> bool:
    """Whether a method that uses this name may import a function to learn."""
    return may_rotate(name, _of_two_arguments)


def _of_two_arguments(x: Any, tables: Any) -> Any:
    raise NotImplementedError


def _code_of(source: str) -> types.CodeType:
    """The code of the function that a line defines."""
    constants = compile(source, __name__, "exec").co_consts
    (code,) = (constant for constant in constants if isinstance(constant, types.CodeType))
    return code


def _imported(code: types.CodeType) -> set[str]:
    """The names that a code object imports from modules, also in its inner functions."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_FROM"}
    nested = (_imported(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return names.union(*nested)


def _is_processor(value: Any) -> bool:
    """Whether it is an object with a ``__call__`` written in Python, but not a module."""
    return (
        callable(value)
        and not isinstance(value, (nn.Module, type))
        and isinstance(inspect.getattr_static(type(value), "__call__"), types.FunctionType)
        and not hasattr(type(value), MARK)
    )


# --- processors of our classes --------------------------------------------------------------------


def _of_kind(kind: type, state: dict[str, Any]) -> Any:
    """An object that shares this state: an attribute set on one is set on both."""
    result: Any = object.__new__(kind)
    object.__setattr__(result, "__dict__", state)
    if hasattr(kind, MARK):
        _register(result)
    return result


def _register(processor: Any) -> None:
    """Tell diffusers what it knows of the original class, for as long as the processor lives.

    Layer skip looks a processor's class up, exactly, and refuses one that it does not find.
    """
    if "diffusers" not in sys.modules:
        return
    try:
        from diffusers.hooks._helpers import AttentionProcessorRegistry as registry

        known = registry.get(_base(processor))
    except (ImportError, AttributeError, ValueError):  # another version, or a class that it lacks
        return
    kind = type(processor)
    if kind not in registry._registry:
        registry.register(kind, known)
    # The registry would keep the class, and one is made by every patch.
    processors = kind.__dict__["_processors"]
    processors.add(processor)
    weakref.finalize(processor, _forget, registry._registry, kind).atexit = False


def _forget(registry: dict[type, Any], kind: type) -> None:
    """Remove a class from a registry if no processor of it is left."""
    if not [*kind.__dict__["_processors"]]:  # the one that has just died may still be counted
        registry.pop(kind, None)


def _pickled(self: Any, protocol: Any) -> Any:
    """Pickled as the original processor: classes made here cannot be found by name."""
    return copyreg._reconstructor, (_base(self), object, None), self.__dict__  # type: ignore[attr-defined]


def _copied(self: Any) -> Any:
    return _of_kind(type(self), copy.copy(_of_kind(_base(self), self.__dict__)).__dict__)


def _deeply_copied(self: Any, memo: dict[int, Any]) -> Any:
    own = copy.deepcopy(_of_kind(_base(self), self.__dict__), memo)
    result = memo[id(self)] = _of_kind(type(self), own.__dict__)
    return result


def _base(processor: Any) -> type:
    return type(processor).__mro__[1]


_AS_BEFORE = {"__reduce_ex__": _pickled, "__copy__": _copied, "__deepcopy__": _deeply_copied}
