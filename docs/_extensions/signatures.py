"""Signatures with types that a reader of the reference knows.

A function for arrays and tensors has an overload for each; a page shows one signature instead: that
of the function itself, with every keyword. Where its annotation is Any, the overloads say what is
taken. Names of the package's own for types (`Pairing`, `TensorLike` ...) are written out.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)

# What annotations say, and what a page says for it. None: nothing that helps a reader.
NAMES = {
    "npt.ArrayLike": "ArrayLike",
    "SupportsArray": "ArrayLike",
    "Array": "ndarray",
    "npt.NDArray": "ndarray",
    "FloatArray": "ndarray",
    "Tensor": "Tensor",
    "torch.Tensor": "Tensor",
    "TensorLike": "Tensor",
    "OutTensor": "Tensor | None",
    "OutArray": "ndarray | None",
    "ArrayOrTensor": "ndarray | Tensor",
    "Numbers": "ArrayLike | Tensor",
    "NumbersOfTwo": "ArrayLike | Tensor",
    "Positions": "ArrayLike | Tensor",
    "Integers": "ArrayLike | Tensor",
    "Lengths": "int | ArrayLike | Tensor",
    "Frequencies": "ArrayLike | Tensor | Rotary",
    "SupportsRotary": "Rotary",
    "Dtype": "dtype | None",
    "NumPyDtype": "dtype | None",
    "TorchDtype": "dtype",
    "torch.dtype": "dtype",
    "torch.device": "device",
    "Device": "device | str",
    "os.PathLike": "PathLike",
    "nn.Module": "Module",
    "typing.Any": None,
    "Any": None,
    "Item": None,
}
# Arguments whose name says what they are where neither annotation nor overloads do.
BY_NAME = {
    "dtype": "dtype | None",
    "device": "device | str | None",
    "out": "ndarray | Tensor | None",
}
KEPT = {
    *(
        "int",
        "float",
        "bool",
        "str",
        "bytes",
        "complex",
        "dict",
        "list",
        "tuple",
        "None",
        "Literal",
    ),
    *("Mapping", "Sequence", "Iterable", "Callable", "Axes", "ScoreMod"),
}


def types_of(annotation: object, module: Any) -> list[str]:
    """The alternatives of an annotation, as a page writes them; of Any none."""
    if annotation is inspect.Parameter.empty:
        return []
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    try:
        return _alternatives(ast.parse(text, mode="eval").body, module)
    except SyntaxError:
        return []


def _alternatives(node: ast.expr, module: Any) -> list[str]:
    match node:
        case ast.BinOp(left, ast.BitOr(), right):
            return _unique([*_alternatives(left, module), *_alternatives(right, module)])
        case ast.Constant(value):
            return ["None"] if value is None else types_of(value, module)
        case ast.Name() | ast.Attribute():
            return _named(ast.unparse(node), module)
        case ast.Subscript(value, inside):
            name = ast.unparse(value)
            if name == "Literal":
                return [ast.unparse(node)]
            if name == "Pair":
                of = " | ".join(_alternatives(inside, module))
                return [f"tuple[{of}, {of}]"] if of else ["tuple"]
            if NAMES.get(name):
                return _named(name, module)
            if name == "tuple" and "Any" in ast.unparse(inside):
                return [name]
            parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
            written = [" | ".join(_inside(part, module)) or "Any" for part in parts]
            return [f"{name}[{', '.join(written)}]"]
    return [ast.unparse(node)]


def _inside(node: ast.expr, module: Any) -> list[str]:
    if isinstance(node, ast.Constant) and node.value is Ellipsis:
        return ["..."]
    if isinstance(node, ast.List):
        return [f"[{', '.join(' | '.join(_inside(e, module)) or 'Any' for e in node.elts)}]"]
    return _alternatives(node, module)


def _named(name: str, module: Any) -> list[str]:
    if name in NAMES:
        meaning = NAMES[name]
        return meaning.split(" | ") if meaning else []
    bare = name.rpartition(".")[2]
    alias = _aliases().get(bare)
    if isinstance(alias, ast.Constant):  # written as a string
        return types_of(alias.value, module)
    return [bare] if alias is None else _alternatives(alias, module)


@functools.cache
def _aliases() -> dict[str, ast.expr]:
    """The package's names for types, from its sources: some are for type checkers only."""
    found = {}
    for path in (Path(__file__).parents[2] / "posenc_native").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Assign([ast.Name(name)], ast.Subscript() | ast.BinOp() as value):
                    found[name] = value
                case ast.AnnAssign(ast.Name(name), ast.Name("TypeAlias"), value) if value:
                    found[name] = value
    return found


def _unique(words: Iterable[str]) -> list[str]:
    """None last, as it is written."""
    found = list(dict.fromkeys(words))
    return [word for word in found if word != "None"] + ["None"] * ("None" in found)


def typed(thing: Any, signature: inspect.Signature) -> inspect.Signature:
    """The signature with what a page shows for every annotation; as strings."""
    function = thing.__init__ if inspect.isclass(thing) else thing
    module = sys.modules.get(getattr(function, "__module__", ""))
    overloads = []
    if inspect.isfunction(function):
        overloads = [inspect.signature(each) for each in typing.get_overloads(function)]

    def written(name: str, own: object, others: list[object]) -> str | object:
        found = types_of(own, module)
        if not [word for word in found if word != "None"] and "Any" in str(own):
            for other in others:
                found = _unique([*found, *types_of(other, module)])
        if not found and name in BY_NAME:
            found = [BY_NAME[name]]
        return " | ".join(found) if found and found != ["None"] else inspect.Parameter.empty

    parameters = [
        parameter.replace(
            annotation=written(
                name,
                parameter.annotation,
                [o.parameters[name].annotation for o in overloads if name in o.parameters],
            )
        )
        for name, parameter in signature.parameters.items()
    ]
    result = written(
        "return", signature.return_annotation, [o.return_annotation for o in overloads]
    )
    if inspect.isclass(thing):
        result = inspect.Signature.empty
    return signature.replace(parameters=parameters, return_annotation=result)


def _text(signature: inspect.Signature) -> tuple[str, str]:
    """Arguments and result, as Sphinx takes them."""

    class Bare(str):  # a string annotation would be shown with its quotes
        __slots__ = ()

        def __repr__(self) -> str:
            return str(self)

    parameters = [
        parameter.replace(annotation=Bare(parameter.annotation))
        if isinstance(parameter.annotation, str)
        else parameter
        for parameter in signature.parameters.values()
    ]
    bare = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    result = signature.return_annotation
    return str(bare), "" if result is inspect.Signature.empty else str(result)


def _process(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, arguments: str, result: str
) -> tuple[str, str] | None:
    if not callable(thing) or arguments is None:
        return None
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return None
    if what == "method" and next(iter(signature.parameters), None) in ("self", "cls"):
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return _text(typed(thing, signature))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-signature", _process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
