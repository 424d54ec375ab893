"""Where engines are meant to differ: that is no finding."""

from __future__ import annotations

from .cases import Case
from .engines import Engine

# What a finding says, and why engines differ there.
EXPLAINED = {
    "expected aligned memory": "kernels refuse unaligned arrays, which the reference reads",
    "no memory for the result": "of what is too large each library has an error of its own",
    "array is too big": "of what is too large each library has an error of its own",
}


def explained(case: Case, engine: Engine, text: str) -> str | None:
    """What explains a finding, if anything does."""
    if engine.kind == "cuda" and "steps: expected finite radians" in text:
        return "on a GPU nobody looks at steps: what is no angle makes NaN"
    if "not the bits" in text and 0 in (case.arguments.get(n, 1) for n in ("scale", "alpha")):
        return "signs of zeros: in half precision an engine turns a scaled angle by another"
    return next((why for words, why in EXPLAINED.items() if words in text), None)
