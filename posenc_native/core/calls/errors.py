"""Errors about arguments: their fields, from which the text is made.

Errors are plain ValueErrors and TypeErrors. Each error about an argument has a `Fault` as its
attribute `fault`, whether NumPy, torch or the native module raised it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

AnyError = TypeVar("AnyError", bound=Exception)


class Fault(NamedTuple):
    """An argument that is not as expected, with a suggested fix if one is known."""

    function: str
    argument: str
    expected: str
    got: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.function}: {self.argument}: expected {self.expected}, got {self.got}"
        return f"{text}; {self.hint}" if self.hint else text


def error_of(kind: type[AnyError], fault: Fault) -> AnyError:
    """An error of this kind that describes the fault."""
    function, argument, expected, got, hint = fault
    text = f"{function}: {argument}: expected {expected}, got {got}"
    error = kind(f"{text}; {hint}" if hint else text)
    if not _traced():
        error.fault = fault  # type: ignore[attr-defined]
    return error


def _traced() -> bool:
    """Whether torch.compile traces this; it cannot follow attributes of an exception.

    Then errors have no fault and no hint, but their text still reaches the user.
    """
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_dynamo_compiling()


def fault_of(error: BaseException) -> Fault | None:
    """The fault of an error about an argument of this library; None for any other error."""
    fault = None if _traced() else getattr(error, "fault", None)
    return fault if isinstance(fault, Fault) else None


def names_like(name: str, names: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """At most three suggested names: those contained in the name, else the nearest."""
    text = name.lower()
    within = sorted((option for option in names if option in text), key=len, reverse=True)
    if within:  # meta-llama/Llama-3.1-8B
        return within[:3]
    import difflib

    return difflib.get_close_matches(text, [*names], n=3, cutoff=cutoff)


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """A hint for a name that is not among these but like one of them; else ""."""
    near = names_like(name, names, cutoff=0.7) if isinstance(name, str) else []
    return f"did you mean {near[0]!r}?" if near else ""


def add_hint(error: BaseException, hint: str) -> None:
    """Add a suggested fix to an error about an argument."""
    fault = fault_of(error)
    if fault is not None and hint and not fault.hint:
        blame(error, hint=hint)


@contextmanager
def named(function: str) -> Iterator[None]:
    """Name this function in errors about arguments that another function raises inside."""
    try:
        yield
    except (ValueError, TypeError) as error:
        blame(error, function=function)
        raise


def blame(error: BaseException, **changes: str) -> None:
    """Change fields of an error about an argument, such as the name that the caller uses."""
    fault = fault_of(error)
    if fault is not None:
        error.fault = fault._replace(**changes)  # type: ignore[attr-defined]
        error.args = (str(error.fault),)  # type: ignore[attr-defined]


# The form of operators' errors after they crossed torch, which passes on only their text.
_CROSSED = re.compile(
    r"(?P<function>\w+): (?P<argument>[^:]+): expected (?P<expected>.+), got (?P<got>.+)", re.DOTALL
)


def error_from_text(kind: type[AnyError], text: str) -> AnyError:
    """The error for a text that csrc/bindings/torch/tensors.h wrote."""
    match = _CROSSED.fullmatch(text)
    return kind(text) if match is None else error_of(kind, Fault(**match.groupdict()))
