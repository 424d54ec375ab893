"""A case as Python that anybody can run: the memory, the operands, the call."""

from __future__ import annotations

import inspect
from typing import Any

import posenc_native as pn

from . import bound, memory
from .cases import Case, Described, Dtype, Listed, case_of
from .memory import PAGE, Operand

_HEAD = """\
import ctypes, mmap
from typing import Any
import ml_dtypes, numpy as np
import posenc_native as pn
Bytes = Any
"""


def snippet_of(seed: int) -> str:
    """The case of a seed."""
    return snippet(case_of(seed))


def snippet(case: Case) -> str:
    """The call of a case, with its memory between guard pages as it was."""
    lines = [_HEAD.rstrip(), inspect.getsource(memory.guarded).rstrip()]
    if any(isinstance(operand.fill, tuple) for operand in case.layout.operands):
        lines.append(inspect.getsource(memory.numbers).rstrip())
    for i, window in enumerate(case.layout.windows):
        size = -(-window.size // PAGE) * PAGE + 2 * PAGE
        part = {"end": f"[-{window.size}:]", "begin": f"[:{window.size}]"}.get(
            window.place, f"[{PAGE}:{PAGE + window.size}]"
        )
        if not window.size:
            part = "[:0]"
        lines.append(f"m{i} = guarded({size}){part}; m{i}[...] = {window.canary}")
    names: dict[int, str] = {}
    for operand in case.layout.operands:
        name = operand.name if operand.name not in names.values() else f"{operand.name}_2"
        names[id(operand)] = name
        lines.append(
            f"{name} = np.ndarray({operand.shape}, {operand.dtype!r}, m{operand.window}, "
            f"{operand.offset}, {operand.strides})"
        )
        if isinstance(operand.fill, tuple):
            kind, first = operand.fill
            lines.append(
                f"{name}[...] = numbers({kind!r}, {first}, {name}.size, {name}.dtype)"
                f".reshape({name}.shape)"
            )
        elif operand.fill is not None:
            values = repr(operand.fill).replace("nan", "np.nan").replace("inf", "np.inf")
            lines.append(f"{name}[...] = np.array({values}, {name}.dtype).reshape({name}.shape)")
        if operand.read_only:
            lines.append(f"{name}.flags.writeable = False")
    lines.append(_call(case, names))
    return "\n".join(lines)


def _call(case: Case, names: dict[int, str]) -> str:
    def written(value: Any) -> str:
        if isinstance(value, Operand):
            return names[id(value)]
        if isinstance(value, tuple):
            return f"({', '.join(map(written, value))},)"
        if isinstance(value, Dtype):
            return repr(value.name)
        if isinstance(value, Listed):
            return f"{names[id(value.operand)]}.tolist()"
        if isinstance(value, Described):
            return f"pn.Rotary({', '.join(f'{n}={v!r}' for n, v in value.arguments.items())})"
        if isinstance(value, float):
            return (
                f"float({str(value)!r})"
                if value != value or value in (1e999, -1e999)
                else repr(value)
            )
        return repr(value)

    given = {name: written(value) for name, value in case.arguments.items()}
    if case.function == "rotary_backward":
        from .engines import ROTATION

        rotation = [given.get(name, repr(default)) for name, default in ROTATION]
        order = [given["grads"], given["inputs"], *rotation, given["of_positions"]]
        return f"from posenc_native import _core\n_core.rotary_backward({', '.join(order)})"
    if "cos" in given:
        parts = [f"{n}={given.pop(n)}" for n in pn.Tables._fields if n in given]
        given |= {"positions": "None", "inv_freq": f"pn.Tables({', '.join(parts)})"}
    call = f"{case.function}({', '.join(f'{n}={v}' for n, v in given.items())})"
    if case.function == "bound_steps":
        functions = (bound.from_first, bound.bound_steps)
        return "\n".join(
            ["from collections.abc import Sequence", *map(inspect.getsource, functions), call]
        )
    return f"pn.{call}"
