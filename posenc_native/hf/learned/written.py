"""Rotations that a method writes out, ``x * cos + rotate_half(x) * sin``, as calls of a function.

Written so, no function has x, cos and sin as its arguments, and there is nothing to learn. The
method gets other code, in which each such sum is a call.
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable
from typing import Any

from posenc_native.hf.instances import global_names, rewritten

__all__ = ["with_calls"]

_TURNS = re.compile(r"^_?rotate_(half|every_two)$")


def with_calls(method: types.FunctionType) -> tuple[types.CodeType, dict[str, Any]] | None:
    """The code of a method with calls in place of sums, and what they call, by name.

    None if there is no such sum, or no source.
    """
    turns = {
        name: method.__globals__[name]
        for name in global_names(method.__code__)
        if _TURNS.search(name) and isinstance(method.__globals__.get(name), types.FunctionType)
    }
    if not turns:
        return None
    change = _Calls(turns)
    code = rewritten(method.__code__, change)
    if code is None or not change.called:
        return None
    return code, {_name(turn): _rotation(turns[turn]) for turn in sorted(change.called)}


class _Calls(ast.NodeTransformer):
    """Replaces sums by calls."""

    def __init__(self, turns: dict[str, Any]) -> None:
        self._turns = turns
        self.called: set[str] = set()

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """A sum, or another operation."""
        match node:
            case ast.BinOp(
                ast.BinOp(ast.Name(x), ast.Mult(), ast.Name(cos)),
                ast.Add(),
                ast.BinOp(ast.Call(ast.Name(turn), [ast.Name(y)], []), ast.Mult(), ast.Name(sin)),
            ) if x == y and turn in self._turns:
                self.called.add(turn)
                arguments: list[ast.expr] = [ast.Name(a, ast.Load()) for a in (x, cos, sin)]
                call = ast.Call(ast.Name(_name(turn), ast.Load()), arguments, [])
                return ast.copy_location(call, node)
        return self.generic_visit(node)


def _name(turn: str) -> str:
    return f"_rotated_by_{turn}"


def _rotation(turn: Callable[..., Any]) -> Callable[..., Any]:
    """The sum, as a function."""

    def rotation(x: Any, cos: Any, sin: Any) -> Any:
        return x * cos + turn(x) * sin

    rotation.__module__ = turn.__module__
    rotation.__qualname__ = rotation.__name__ = f"x * cos + {turn.__name__}(x) * sin"
    return rotation
