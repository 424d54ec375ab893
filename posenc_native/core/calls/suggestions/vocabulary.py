"""Answers to wrong calls and wrong words, from the table of suggestions (`table.py`).

Python refuses a call whose arguments do not fit the signature before the body runs. `answered`
wraps a function: after Python's TypeError it raises an error that says what to write. Public names
of the package, and the methods of its classes, are wrapped where they become public
(`posenc_native.__getattr__`, `answer_methods`).

A wrapper takes 0.1 microseconds. Functions for which that is long answer themselves:

    @takes_words
    def apply_rotary(x, positions, inv_freq, more=MISSING, layout=None, ..., **unknown):
        if unknown or more is not MISSING:
            refuse(apply_rotary, x, positions, inv_freq, more, **unknown)
        ...                                    # the fast path, which takes no MISSING
        refuse_missing(apply_rotary, x, positions, inv_freq)

`more` takes a first argument too many. The arguments after it are thus keyword-only, as in the
signature that the decorator gives to help() and inspect; Python would look up the default of each
argument after a ``*`` in a dict, which takes longer. NoReturn lets type checkers refuse `more` and
`unknown`. The decorator returns the same function.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from posenc_native.core.calls.arguments import INTEGER_DTYPES, dtype_name, plain
from posenc_native.core.calls.errors import Fault, error_of

if TYPE_CHECKING:
    from .table import Row

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
AnyClass = TypeVar("AnyClass", bound=type)


class _Missing:
    """The default of a required argument."""


# The class, not an instance: torch.compile compares symbolic lengths with no instance (torch 2.11).
MISSING: Any = _Missing
_OWNERS = ("self", "cls")  # the first arguments of methods, which callers do not write
_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


# --- Wrong calls


def answered(function: AnyFunction, module: str = "") -> AnyFunction:
    """The function, whose wrong calls say what to write; the same function if it is fast.

    module: where it is public, if elsewhere than where it is defined.
    """
    code = inspect.unwrap(function).__code__
    if {"door", "unknown"} & {*code.co_names, *code.co_varnames}:  # a wrapper would take too long
        return function

    @functools.wraps(function)
    def call(*args: Any, **words: Any) -> Any:
        try:
            return function(*args, **words)
        except TypeError:
            error = wrong_call(function, args, words)
            if error is None:
                raise
        raise error

    call.__module__ = module or call.__module__  # pickle looks for it there
    return call  # type: ignore[return-value]


def answer_methods(kind: AnyClass) -> AnyClass:
    """A class whose constructor and public methods are `answered`."""
    for name, member in [*vars(kind).items()]:
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        if isinstance(member, FunctionType) and len(inspect.signature(member).parameters) > 1:
            setattr(kind, name, answered(member))
        elif isinstance(member, classmethod):
            setattr(kind, name, classmethod(answered(member.__func__)))
    return kind


def takes_words(function: AnyFunction) -> AnyFunction:
    """Let a function answer wrong calls itself; see the docstring of this module.

    Sets attributes only. Required arguments get the default MISSING.
    """
    signature = inspect.signature(function)
    shown = []
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for name, parameter in signature.parameters.items():
        if name == "more":
            kind = inspect.Parameter.KEYWORD_ONLY
        elif name != "unknown":
            shown.append(parameter.replace(kind=kind))
    itself: Any = function
    itself.__defaults__ = tuple(
        MISSING if parameter.default is parameter.empty else parameter.default
        for name, parameter in signature.parameters.items()
        if name not in (*_OWNERS, "unknown")
    )
    itself.__signature__ = signature.replace(parameters=shown)
    for name in ("more", "unknown"):
        itself.__annotations__.pop(name, None)
    return function


def refuse(of: Callable[..., Any], /, *args: Any, **words: Any) -> None:
    """Raise the TypeError for a wrong call of a function that takes words.

    args: the values of its arguments by position, of which some may be MISSING; for a method they
        begin with its object.
    """
    error = wrong_call(of, args, words)
    if error is not None:
        raise error


def refuse_missing(of: Callable[..., Any], /, *args: Any) -> None:
    """As `refuse`, if one of the arguments is MISSING."""
    if any(value is MISSING for value in args):
        refuse(of, *args)


def wrong_call(
    of: Callable[..., Any], args: Sequence[Any], words: dict[str, Any]
) -> TypeError | None:
    """The error for a call whose arguments do not fit the signature; None if they fit."""
    parameters = [*inspect.signature(of).parameters.values()]
    names = [of.__qualname__ if parameters and parameters[0].name in _OWNERS else of.__name__]
    if parameters and parameters[0].name in _OWNERS and args:
        owner, *args = args
        names, parameters = _names_of_method(of, owner), parameters[1:]
    several = {parameter.kind for parameter in parameters} & {*_SEVERAL}
    keywords = [parameter.name for parameter in parameters if parameter.kind not in _SEVERAL]
    places = [parameter.name for parameter in parameters if parameter.kind in _BY_POSITION]
    positional = dict(zip(places, args, strict=False))
    present = {name for name, value in positional.items() if value is not MISSING} | {*words}
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in _SEVERAL
    ]
    unknown = {word: value for word, value in words.items() if word not in keywords}
    shown = ", ".join(f"{word}={_written(value)}" for word, value in unknown.items())
    twice = [word for word in words if word in positional and positional[word] is not MISSING]
    absent = [name for name in required if name not in present]
    beside = {*keywords, *names}
    surplus = [value for value in args[len(places) :] if value is not MISSING]
    if surplus and inspect.Parameter.VAR_POSITIONAL not in several:
        expected = f"at most {len(places)} by position ({', '.join(places)})"
        got = f"more, and {shown}" if shown else "more"
        hint = surplus_hint(args, unknown, beside)
        hint = hint or _by_keyword(surplus[0], keywords[len(places) :])
        return error_of(TypeError, Fault(names[0], "arguments", expected, got, hint))
    if unknown and inspect.Parameter.VAR_KEYWORD not in several:
        hint = surplus_hint(args, unknown, beside)
        hints = [keyword_hint(word, value, keywords, names) for word, value in unknown.items()]
        hint = hint or "; ".join(dict.fromkeys(filter(None, hints)))
        expected = f"a keyword of {', '.join(keywords)}"
        return error_of(TypeError, Fault(names[0], ", ".join(unknown), expected, shown, hint))
    if twice:
        got = f"two values, by position and {twice[0]}={_written(words[twice[0]])}"
        return error_of(TypeError, Fault(names[0], twice[0], "one value", got))
    if absent:
        hint = _missing_hint(absent, required, positional, beside)
        expected, got = ", ".join(required), f"no {', '.join(absent)}"
        return error_of(TypeError, Fault(names[0], "arguments", expected, got, hint))
    return None


def _names_of_method(of: Callable[..., Any], owner: object) -> list[str]:
    """The method of the class of its object, which errors name, and of the classes it is based on.

    The class that defines a method may be private. Constructors and calls have the name of a class.
    """
    kind = owner if isinstance(owner, type) else type(owner)
    method = "" if of.__name__ in ("__init__", "__call__", "forward") else f".{of.__name__}"
    return [f"{base.__name__}{method}" for base in kind.__mro__]


def surplus_hint(args: Sequence[Any], unknown: dict[str, Any], beside: set[str]) -> str:
    """A hint for q and k in a call that rotates one tensor.

    unknown: keywords that the function does not have; beside: its names and arguments.
    """
    if len(args) < 2 or not _axes(args[0]) == _axes(args[1]) > 2 or _whole(args[1]):
        return ""
    options = "".join(f", {word}={_written(value)}" for word, value in unknown.items())
    return _suggested("surplus", "arguments", beside).replace("{options}", options)


def _by_keyword(value: object, options: list[str]) -> str:
    """A hint for an option by position."""
    if isinstance(value, str) and "layout" in options and {*value} <= {*"bhstgd"}:
        return f'write layout="{value}"'
    return f"write other arguments by keyword: {', '.join(options)}" if options else ""


def _missing_hint(
    absent: list[str], required: list[str], positional: dict[str, Any], beside: set[str]
) -> str:
    """A hint for the first missing argument that has a hint."""
    if absent == required:
        return ""  # a call without arguments does not tell what was meant
    hint = _left_out(positional) if absent == required[-1:] else ""
    return hint or next(filter(None, (missing_hint(name, beside) for name in absent)), "")


def _left_out(positional: dict[str, Any]) -> str:
    """A hint for an argument whose place in a call by position has the next argument's value."""
    if {"k", "v"} <= {*positional} and _axes(positional["v"]) != _axes(positional["k"]):
        return "did you leave out v?"
    positions = positional.get("positions")
    described = hasattr(type(positions), "__rotary__")
    cache = _axes(positions) > 2 and not _whole(positions)
    return "did you leave out positions?" if described or cache else ""


def _axes(array: Any) -> int:
    return len(getattr(array, "shape", ()))


def _whole(array: Any) -> bool:
    """Whether an array or a tensor has an integer dtype, as positions with several axes have."""
    return dtype_name(getattr(array, "dtype", "")) in INTEGER_DTYPES


# --- Words


def keyword_hint(
    word: str, value: object, keywords: Sequence[str], names: Sequence[str] = ()
) -> str:
    """A hint for an unknown keyword of a function with these keywords; "" without a hint.

    names: names of the function.
    """
    hint = _suggested("keyword", word.lower(), {*keywords, *names}, value)
    if hint:
        return hint.replace("{value}", _written(value)).replace("{word}", word)
    near = _near(word.lower(), keywords, 0.6)
    return f"did you mean {' or '.join(near)}?" if near else ""


def missing_hint(argument: str, beside: set[str]) -> str:
    """A hint for a missing argument of a function with these names and arguments."""
    return _suggested("missing", argument, beside)


def unknown_name(module: str, name: str, names: Sequence[str] = ()) -> AttributeError:
    """The error for a name that a module of the package does not have.

    names: its names, of which similar ones are suggested.
    """
    hint = _suggested("name", name)
    if not hint and (like := meant(name, names)):
        hint = f"did you mean {' or '.join(like)}?"
    text = f"module {module!r} has no attribute {name!r}"
    text = f"{text}; {hint}" if hint else text
    return AttributeError(text, name=name, obj=sys.modules[module])


def value_hint(value: object, names: Sequence[str]) -> str:
    """A hint that translates another library's value of an option with these names here."""
    text = value.lower().replace("-", "_").replace(" ", "_") if isinstance(value, str) else ""
    for row in _rows("value", text):
        if row.here in names and value != row.here:
            return f"{value!r} is {row.here!r} here"
    return ""


def meant(word: str, names: Sequence[str]) -> list[str]:
    """At most two names of pictures, commands or options that the word may stand for.

    "-" in names counts as "_".
    """
    by_text = {name.replace("-", "_"): name for name in names}
    text = word.lower().replace("-", "_")
    for row in _rows("picture", text):
        like = [by_text[name] for name in row.here.split() if name in by_text]
        if like:
            return like
    return [by_text[name] for name in _near(text, [*by_text], 0.75)]


def _rows(kind: str, word: str) -> Iterator[Row]:
    """The rows of the table for a word."""
    from .table import TABLE  # here: it is read only after an error

    return (row for row in TABLE if row.kind == kind and word in row.words.split())


def _suggested(kind: str, word: str, beside: set[str] | None = None, value: object = None) -> str:
    """The text of the table for a word of a function with these names; "" if it has none."""
    holds = {*(beside or ()), *([str(value).lower()] if isinstance(value, bool) else [])}
    for row in _rows(kind, word):
        for name in row.here.split():
            if name in holds:
                return f"write {name}={{value}}"
        for condition, text in row.texts:
            if {*condition.split()} <= holds:
                return text
    return ""


def _near(word: str, names: Sequence[str], cutoff: float) -> list[str]:
    import difflib

    return difflib.get_close_matches(word, names, n=2, cutoff=cutoff)


def _written(value: object) -> str:
    """A value as code, if it is short."""
    if value is None or isinstance(value, (numbers.Number, str)):
        text = repr(plain(value))
        return text if len(text) <= 40 else "..."
    return "..."
