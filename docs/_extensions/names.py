"""Names of the library, in pages and in docstrings, lead to the reference, or the build fails.

In a page (Markdown), code like `pn.sinusoidal` or `pnn.ALiBi` becomes a link. In a docstring a name
in single backticks does, unless it is an argument of what the docstring is about. The directive
``reference`` puts objects into the reference, first as a table, then one by one:

    ```{reference} posenc_native
    sinusoidal
    add_sinusoidal
    ```

A public name that no page has this way is a warning.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

LOGGER = logging.getLogger(__name__)

# As pages write them, and what they stand for; `pn.plot.heatmap` goes by pn.
MODULES = {
    "pn": "posenc_native",
    "pnn": "posenc_native.nn",
    "hf": "posenc_native.hf",
    "flex": "posenc_native.flex",
}
IN_PAGES = re.compile(rf"({'|'.join(MODULES)})\.([A-Za-z_]\w*(?:\.\w+)*)(\(\))?")
IN_DOCSTRINGS = re.compile(r"(?<![`:\\\w])`([A-Za-z_][\w.]*)`(?![`_\w])")


class Reference(SphinxDirective):
    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        names = [line.strip() for line in self.content if line.strip()]
        lines = ["```{eval-rst}", f".. currentmodule:: {module}", ""]
        lines += [".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   {name}" for name in names]
        for name in names:
            thing = getattr(importlib.import_module(module), name, None)
            if thing is None:
                raise self.error(f"reference: {module} has no {name}")
            kind, options = _kind(thing)
            lines += ["", f".. auto{kind}:: {name}", *options]
        return self.parse_text_to_nodes("\n".join([*lines, "```"]))


def _kind(thing: Any) -> tuple[str, list[str]]:
    if inspect.isclass(thing):
        options = ["   :members:", "   :special-members: __call__"]
        if hasattr(thing, "_fields"):  # a named tuple, whose docstring has its fields
            options = []
        # Methods of a base that has no page of its own.
        base = thing.__mro__[1]
        if base.__module__.startswith("posenc_native") and not _is_public(base):
            outside = next(b for b in thing.__mro__ if not b.__module__.startswith("posenc_native"))
            options.append(f"   :inherited-members: {outside.__name__}")
        return "class", options
    if callable(thing):
        return "function", []
    return "data", []


def _is_public(thing: type) -> bool:
    rooms = (importlib.import_module(f"posenc_native{room}") for room in ("", ".nn", ".flex"))
    return any(thing.__name__ in room.__all__ for room in rooms)


# --- Links


def _link_names(app: Sphinx, doctree: nodes.document) -> None:
    for literal in list(doctree.findall(nodes.literal)):
        match = IN_PAGES.fullmatch(literal.astext())
        ancestors: Iterator[nodes.Node] = _ancestors(literal)
        if match is None or any(
            isinstance(a, (nodes.reference, nodes.title, addnodes.pending_xref)) for a in ancestors
        ):
            continue
        target = f"{MODULES[match[1]]}.{match[2]}"
        reference = addnodes.pending_xref(
            "",
            literal.deepcopy(),
            refdomain="py",
            reftype="obj",
            reftarget=target,
            refdoc=app.env.docname,
            refexplicit=True,
            refwarn=True,
        )
        reference.source, reference.line = literal.source, literal.line
        literal.replace_self(reference)


def _ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def _mark_arguments(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """In a docstring, arguments in backticks are code: its own, in a method also its class's.

    So are the names of a class in its docstring, which tables repeat where these have no link.
    """
    own = _arguments(thing)
    if what == "class":
        own |= set(dir(thing))
    if what == "method":
        owner = thing.__qualname__.partition(".")[0]
        own |= _arguments(getattr(inspect.getmodule(thing), owner))

    def as_code(match: re.Match[str]) -> str:
        return f"``{match[1]}``" if match[1] in own else match[0]

    lines[:] = [IN_DOCSTRINGS.sub(as_code, line) for line in lines]


def _arguments(thing: Any) -> set[str]:
    try:
        return set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return set()


# --- Names from elsewhere


def _elsewhere(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Where a name is that is not of the docstring's own module.

    It is one of `posenc_native` or of one of its modules, without the module's name, or one of
    another project's, whose address conf.py lists.
    """
    if node.get("refdomain") != "py":
        return None
    name = node["reftarget"]
    objects = env.domains.python_domain.objects
    found = objects.get(f"posenc_native.{name}")
    if found is None and "." not in name:
        named = [objects[full] for full in objects if full.endswith(f".{name}")]
        named = [e for e in named if e.objtype in ("class", "function") and not e.aliased]
        found = named[0] if len(named) == 1 else None
    if found is not None:
        return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, content)
    if address := app.config.external_names.get(name):
        return nodes.reference("", "", content, internal=False, refuri=address)
    # A class of ours in a signature that a user gets and never makes: its methods tell.
    return content if node["reftype"] == "class" and _is_ours(name) else None


def _is_ours(name: str) -> bool:
    return name in _classes()


@functools.cache
def _classes() -> frozenset[str]:
    """All of the package; by its sources, since modules are imported when they are first needed."""
    sources = (Path(__file__).parents[2] / "posenc_native").rglob("*.py")
    found = (re.findall(r"^class (\w+)", path.read_text("utf-8"), re.M) for path in sources)
    return frozenset(itertools.chain.from_iterable(found))


# --- Everything public is there


def _check_public_names(app: Sphinx, env: BuildEnvironment) -> None:
    documented = set(env.domains.python_domain.objects)
    modules = app.config.public_modules
    for module in modules:
        for name in importlib.import_module(module).__all__:
            full = f"{module}.{name}"
            if full not in documented and full not in modules:
                LOGGER.warning("%s is public, but no page has it in a {reference}", full)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("external_names", {}, "env", [dict])
    app.add_config_value("public_modules", [], "", [list])
    app.add_directive("reference", Reference)
    app.connect("autodoc-process-docstring", _mark_arguments)
    app.connect("doctree-read", _link_names)
    app.connect("missing-reference", _elsewhere)
    app.connect("env-check-consistency", _check_public_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
