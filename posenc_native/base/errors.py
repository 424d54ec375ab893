"""What is wrong with a call: fields, of which the text of an error is made.

Errors are plain ValueErrors and TypeErrors; those about an argument have a `Fault` as their
attribute `fault`, from NumPy, torch and the native module alike.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

AnyError = TypeVar("AnyError", bound=Exception)


class Fault(NamedTuple):
    """An argument that is not what was expected, and what may have been meant by it."""

    function: str
    argument: str
    expected: str
    got: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.function}: {self.argument}: expected {self.expected}, got {self.got}"
        return f"{text}; {self.hint}" if self.hint else text


def error_of(kind: type[AnyError], fault: Fault) -> AnyError:
    """The error of a kind that says what the fault is."""
    function, argument, expected, got, hint = fault
    text = f"{function}: {argument}: expected {expected}, got {got}"
    error = kind(f"{text}; {hint}" if hint else text)
    if not _traced():
        error.fault = fault  # type: ignore[attr-defined]
    return error


def _traced() -> bool:
    """Whether torch.compile runs this: it follows no attribute of an exception.

    Then errors have no fault and no hint; their text reaches the user all the same.
    """
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_dynamo_compiling()


def fault_of(error: BaseException) -> Fault | None:
    """The fault of an error about an argument of this library, None of any other error."""
    fault = None if _traced() else getattr(error, "fault", None)
    return fault if isinstance(fault, Fault) else None


def names_like(name: str, names: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """At most three names that may have been meant: those in the name, else the nearest."""
    text = name.lower()
    within = sorted((each for each in names if each in text), key=len, reverse=True)
    if within:  # meta-llama/Llama-3.1-8B
        return within[:3]
    import difflib

    return difflib.get_close_matches(text, [*names], n=3, cutoff=cutoff)


def add_hint(error: BaseException, hint: str) -> None:
    """Write into an error about an argument what may have been meant."""
    fault = fault_of(error)
    if fault is not None and hint and not fault.hint:
        blame(error, hint=hint)


@contextmanager
def named(function: str) -> Iterator[None]:
    """Errors about arguments, raised inside by another function, have the name of this one."""
    try:
        yield
    except (ValueError, TypeError) as error:
        blame(error, function=function)
        raise


def blame(error: BaseException, **changes: str) -> None:
    """Change fields of an error about an argument: what its caller calls the argument."""
    fault = fault_of(error)
    if fault is not None:
        error.fault = fault._replace(**changes)  # type: ignore[attr-defined]
        error.args = (str(error.fault),)  # type: ignore[attr-defined]


# What errors of operators look like after they have crossed torch, which passes on text alone.
_CROSSED = re.compile(
    r"(?P<function>\w+): (?P<argument>[^:]+): expected (?P<expected>.+), got (?P<got>.+)", re.DOTALL
)


def error_from_text(kind: type[AnyError], text: str) -> AnyError:
    """The error whose text csrc/bindings/torch/tensors.h wrote."""
    found = _CROSSED.fullmatch(text)
    return kind(text) if found is None else error_of(kind, Fault(**found.groupdict()))
