"""Follow a value from its norm to its rotation in the source of a method, and rewrite the source.

A norm can be postponed if only the rotary function uses its result::

    v = views(self.norm(x))         views: .transpose(...), .view(...), .reshape(...)
    v = views(v)                    any number of times, and code that does not name v
    v, w = rotary(v, w, cos, sin)   which assigns its result to v again; or in an `if`

If a branch of an `if` uses v in another way, or does not rotate it where the other branch does, it
begins with the norm.
"""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from posenc_native.hf.forms import NotServed
from posenc_native.hf.instances import definition
from posenc_native.hf.signatures import RotaryArguments

__all__ = [
    "AT_ONCE", "NORMS", "NOW", "PUT_OFF", "UNLESS", "Fusion", "called_children", "rewritten",
]  # fmt: skip

# Names in the new code, which no model uses.
NORMS = "norms_"  # the keyword of the rotary function
UNLESS, PUT_OFF = "_posenc_unless", "_posenc_put_off_"
AT_ONCE, NOW = "_posenc_at_once", "_posenc_now"  # before all views, and after them
_LOCAL = "_posenc_norm_"

_VIEWS = ("transpose", "view", "reshape")


@dataclass
class _Site:
    """A norm that can be postponed, with its value followed up to here."""

    name: str  # of the variable
    norm: ast.Call
    views: int  # number of views taken
    rotary: ast.Call | None = None
    # Branches that begin with the norm, and the number of views taken there.
    branches: list[tuple[list[ast.stmt], int]] = field(default_factory=list)


@dataclass
class Fusion:
    """A method with postponed norms."""

    code: types.CodeType
    norms: tuple[str, ...]  # the children of the module that are these norms
    calls: int  # number of rotary functions that get norms


def called_children(function: types.FunctionType, children: Container[str]) -> list[str]:
    """The children of its module that a method calls, in the order of its source."""
    tree = _tree(function)
    calls = (node for node in ast.walk(tree) if _is_child_call(node, children))
    return [*dict.fromkeys(node.func.attr for node in calls)]  # type: ignore[attr-defined]


def rewritten(
    function: types.FunctionType, norms: Container[str], rotary: dict[str, RotaryArguments]
) -> Fusion:
    """The code of a method in which norms are postponed until the rotation.

    norms: names of children that are norms. rotary: names of rotary functions.

    Raises:
        NotServed: no norm can be postponed.
    """
    if function.__code__.co_freevars:
        raise NotServed("the method with the norm uses variables of an outer function")
    tree = copy.deepcopy(_tree(function))
    followed, reasons = [], []
    for site, after in _norms(tree, norms):
        reason = _follow(site, after, rotary)
        if any(views not in (0, site.views) for _, views in site.branches):
            reason = reason or "is used between two views"
        if site.name in function.__code__.co_cellvars:
            reason = reason or "is used by an inner function"
        if reason:
            reasons.append(f"the result of {_child(site)} {reason}")
        else:
            followed.append(site)
    # A call gets the norms of all its heads or of none.
    sites = []
    for site in followed:
        heads = _heads(site, rotary)
        if all(any(s.rotary is site.rotary and s.name == n for s in followed) for n in heads):
            sites.append(site)
    if not sites:
        raise NotServed(reasons[0] if reasons else "q or k is rotated without a norm before it")
    calls = {id(site.rotary): _heads(site, rotary) for site in sites}
    children = {_child(site) for site in sites}
    return Fusion(_compiled(tree, sites, calls, function), (*sorted(children),), len(calls))


def _tree(function: types.FunctionType) -> ast.FunctionDef:
    tree = definition(function.__code__)
    if not isinstance(tree, ast.FunctionDef):
        raise NotServed("the source of the method with the norm is not available")
    return tree


# --- finding --------------------------------------------------------------------------------------


def _norms(
    tree: ast.FunctionDef, norms: Container[str]
) -> Iterator[tuple[_Site, list[ast.stmt | None]]]:
    """Assignments of a norm to a variable, and the statements after each; None ends a context.

    Norms in loops are left out: a postponed norm could be that of an earlier iteration.
    """

    def search(
        block: list[ast.stmt], outer: list[ast.stmt | None]
    ) -> Iterator[tuple[_Site, list[ast.stmt | None]]]:
        for i, statement in enumerate(block):
            rest = [*block[i + 1 :], *outer]
            if isinstance(statement, ast.If):
                yield from search(statement.body, rest)
                yield from search(statement.orelse, rest)
            elif isinstance(statement, ast.With):
                yield from search(statement.body, [None])
            elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                name = getattr(statement.targets[0], "id", None)
                root, views = _below_views(statement.value, name)
                if name and _is_child_call(root, norms):
                    yield _Site(name, cast(ast.Call, root), views), rest

    yield from search(tree.body, [])


def _child(site: _Site) -> str:
    return cast(ast.Attribute, site.norm.func).attr


def _is_child_call(node: ast.AST | None, children: Container[str]) -> bool:
    """Whether it is ``self.child(x)``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
        and node.func.attr in children
        and len(node.args) == 1
        and not isinstance(node.args[0], ast.Starred)
        and not node.keywords
    )


def _below_views(value: ast.expr, name: str | None) -> tuple[ast.expr | None, int]:
    """The expression below the views, and their number; None if they use the variable."""
    views = 0
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in _VIEWS:
            break
        if any(_names(argument, name) for argument in (*value.args, *value.keywords)):
            return None, 0
        value, views = value.func.value, views + 1
    return value, views


def _names(node: ast.AST, name: str | None) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


def _heads(site: _Site, rotary: dict[str, RotaryArguments]) -> list[str]:
    """The variables that the rotary function of a site gets as heads; "" for other expressions."""
    call = cast(ast.Call, site.rotary)
    return rotary[cast(ast.Name, call.func).id].heads_in(call)


def _follow(
    site: _Site, statements: Sequence[ast.stmt | None], rotary: dict[str, RotaryArguments]
) -> str:
    """Follow a value to its rotation; returns "", or the reason why it reaches none."""
    for statement in statements:
        if statement is None:
            return "leaves a context manager"
        if not _names(statement, site.name):
            continue
        if isinstance(statement, ast.If) and not _names(statement.test, site.name):
            _follow_branches(site, statement, rotary)
            if site.rotary:
                return ""
            continue
        if not isinstance(statement, ast.Assign):
            return "is used in another way"
        (target, *others), value = statement.targets, statement.value
        if _is_rotary(value, rotary) and isinstance(value, ast.Call):
            loads = sum(isinstance(n, ast.Name) and n.id == site.name for n in ast.walk(value))
            starred = any(isinstance(argument, ast.Starred) for argument in value.args)
            site.rotary = value
            if loads == 1 and not starred and site.name in _heads(site, rotary):
                written = target.elts if isinstance(target, ast.Tuple) else [target]
                if others or site.name not in [
                    getattr(variable, "id", None) for variable in written
                ]:
                    return "may be used after the rotation"
                return ""
            site.rotary = None
        root, views = _below_views(value, site.name)
        is_same = not others and getattr(target, "id", None) == site.name
        if not is_same or getattr(root, "id", None) != site.name:
            return "is used in another way"
        site.views += views
    return "is not rotated afterwards"


def _follow_branches(site: _Site, statement: ast.If, rotary: dict[str, RotaryArguments]) -> None:
    """Follow a value into the branch that rotates it; the others, or all, begin with its norm."""
    for branch, other in (
        (statement.body, statement.orelse),
        (statement.orelse, statement.body),
    ):
        inside = replace(site, branches=[*site.branches])
        if not _follow(inside, branch, rotary):
            site.branches = [*inside.branches, (other, site.views)]
            site.rotary, site.views = inside.rotary, inside.views
            return
    for branch in (statement.body, statement.orelse):
        if any(_names(inside, site.name) for inside in branch):
            site.branches.append((branch, site.views))


def _is_rotary(value: ast.expr, rotary: Container[str]) -> bool:
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in rotary
    )


# --- rewriting ------------------------------------------------------------------------------------


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _compiled(
    tree: ast.FunctionDef, sites: list[_Site], calls: dict[int, list[str]],
    function: types.FunctionType,
) -> types.CodeType:  # fmt: skip
    """The code with postponed norms; lines of a traceback are those of the model's file."""
    for node in ast.walk(tree):
        if id(node) in calls:
            norms = ast.Tuple([_load(_LOCAL + name) for name in calls[id(node)]], ast.Load())
            cast(ast.Call, node).keywords.append(ast.keyword(NORMS, norms))
    for site in sites:
        own, local = site.norm.func, ast.Name(_LOCAL + site.name, ast.Store())
        put_off = ast.Call(_load(PUT_OFF + _child(site)), [own], [])
        site.norm.func = _load(UNLESS)
        site.norm.args = [ast.NamedExpr(local, put_off), own, *site.norm.args]
        for branch, views in site.branches:
            how = AT_ONCE if views == 0 else NOW
            done = ast.Call(_load(how), [_load(_LOCAL + site.name), _load(site.name)], [])
            branch[:0] = [
                _assign(site.name, done), _assign(_LOCAL + site.name, ast.Constant(None)),
            ]  # fmt: skip
    names = dict.fromkeys(site.name for site in sites)
    tree.body[:0] = [_assign(_LOCAL + name, ast.Constant(None)) for name in names]
    # The function object already has these; others would be evaluated again.
    tree.decorator_list, tree.returns = [], None
    for node in ast.walk(tree.args):
        if isinstance(node, ast.arg):
            node.annotation = None
    tree.args.defaults = [ast.Constant(None) for _ in tree.args.defaults]
    tree.args.kw_defaults = [d and ast.Constant(None) for d in tree.args.kw_defaults]
    module = ast.fix_missing_locations(ast.Module([tree], []))
    made = compile(module, function.__code__.co_filename, "exec", dont_inherit=True)
    return next(code for code in made.co_consts if isinstance(code, types.CodeType))
