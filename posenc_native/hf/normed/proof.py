"""Make a method with postponed norms, and compare it with the model's own before it is used."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc_native.hf.forms import NotServed, packed
from posenc_native.hf.functions import Replacement
from posenc_native.hf.instances import with_functions
from posenc_native.hf.signatures import RotaryArguments, rotary_arguments

from .norms import NormProbe, at_once, now, probe_norm, unless, with_own_weight
from .source import AT_ONCE, NORMS, NOW, PUT_OFF, UNLESS, Fusion, called_children, rewritten

__all__ = ["kinds_of_norms", "names_norms", "norms_put_off"]

# A call of a rotary function: its name, positional arguments, keywords.
_Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def kinds_of_norms(module: nn.Module) -> tuple[Any, ...]:
    """The properties in which norms of attention modules may differ, hashable."""
    norms = ((n, child) for n, child in module.named_children() if "norm" in n.lower())
    return tuple((name, type(child), *_plain_attributes(child)) for name, child in norms)


def _plain_attributes(module: nn.Module) -> Iterable[Any]:
    """Names of parameters; names and values of attributes that are numbers or strings."""
    yield tuple(name for name, _ in module._parameters.items())
    for name, value in sorted(vars(module).items()):
        if name != "training" and isinstance(value, (bool, int, float, str)):
            yield name, value


def names_norms(method: Callable[..., Any], module: nn.Module) -> bool:
    """Whether a method uses a child of its module with "norm" in its name."""
    inner = inspect.unwrap(method)
    named = inner.__code__.co_names if isinstance(inner, types.FunctionType) else ()
    return any("norm" in name.lower() and name in named for name, _ in module.named_children())


def norms_put_off(
    method: Callable[..., Any],
    functions: dict[str, Replacement],
    modules: Iterable[nn.Module],
) -> Callable[..., Any]:
    """A method of attention modules that norms q and k in the pass that rotates them.

    Args:
        method: a method of the class of the modules.
        functions: the rotary functions that it calls, by their names in it.
        modules: those that have the method; their norms are of the same classes.

    Raises:
        NotServed: it cannot be proven that the results are the same.
    """
    inner = inspect.unwrap(method)
    if not isinstance(inner, types.FunctionType):
        raise NotServed("the method with the norm is not a plain function")
    first, *_ = modules = [*modules]
    probes, reasons = {}, []
    for name in called_children(inner, dict(first.named_children())):
        try:
            probes[name] = probe_norm(first.get_submodule(name), name)
        except NotServed as reason:
            if "norm" in name.lower():
                reasons.append(str(reason))
    if not probes:
        raise NotServed(reasons[0] if reasons else "no part of it is a norm of one tensor")
    arguments = {name: rotary_arguments(replacement.own) for name, replacement in functions.items()}
    try:
        fusion = rewritten(inner, probes, arguments)
    except NotServed as reason:
        raise NotServed("; ".join([*reasons, str(reason)])) from None
    scope: dict[str, Callable[..., Any]] = {UNLESS: unless, AT_ONCE: at_once, NOW: now}
    scope |= {PUT_OFF + name: probes[name].put_off for name in fusion.norms}
    # Use the first module whose call reaches every rotation: some layers rotate nothing.
    failed: NotServed | None = None
    for module in modules:
        own = _on_its_own(module, fusion.norms)
        try:
            _Proof(inner, functions, arguments, own, fusion).compare(scope, probes.values())
            break
        except NotServed as reason:
            failed = failed or reason
    else:
        raise failed or NotServed("there is no module of the class")
    replaced = {name: replacement.ours for name, replacement in functions.items()}
    return with_functions(method, scope | replaced, fusion.code)


class _Reached(Exception):
    """All expected calls were seen."""


@dataclass
class _Proof:
    """Calls of a method with small inputs, up to its rotary functions."""

    inner: types.FunctionType
    functions: dict[str, Replacement]
    arguments: dict[str, RotaryArguments]
    module: nn.Module  # with small parts
    fusion: Fusion

    def compare(self, scope: dict[str, Callable[..., Any]], probes: Iterable[NormProbe]) -> None:
        """Raise NotServed unless both give the same q and k; fill in `NormProbe.heads_axis`.

        scope: the functions that the fused method calls by name.
        """
        reasons = []
        for inputs in self.inputs():
            try:
                theirs = self.calls(inputs, {}, None)
                ours = self.calls(inputs, scope, self.fusion.code)
                pairs = [
                    pair
                    for their, our in zip(theirs, ours, strict=True)
                    for pair in self.rotated(their, our, probes)
                ]
            except Exception as error:  # any error of a model with foreign inputs
                reasons.append(str(error))
                continue
            for a, b, terms in pairs:
                # A sum of squares over all heads, products and a rotation, in float32.
                bound = (terms + 16) * 2.0**-24 * a.abs().max()
                if a.shape != b.shape or a.dtype != b.dtype or bool(((a - b).abs() > bound).any()):
                    raise NotServed("norm and rotation in one pass give other results")
            return
        raise NotServed(f"a call with small inputs does not reach the rotation: {reasons[0]}")

    def rotated(
        self, their: _Call, our: _Call, probes: Iterable[NormProbe]
    ) -> list[tuple[Tensor, Tensor, int]]:
        """The results of both calls of a rotary function, and the most terms of a mean."""
        (name, args, kwargs), (_, new_args, new_kwargs) = their, our
        _, rotary, tables = self.functions[name]
        known = self.arguments[name]
        arguments = known.by_name(new_args, new_kwargs)
        if any(norm is None for norm in arguments.get(NORMS, (None,))):
            raise NotServed("q or k reaches it without its norm")
        dim = arguments.get("unsqueeze_dim", known.defaults.get("unsqueeze_dim"))
        heads, table = tuple(arguments[head] for head in known.heads), arguments[known.tables[0]]
        use = tables[table.shape[-1]]
        rotation = use.rotation
        for axis in use.inserted:
            table = table.squeeze(axis)
        layout = None if rotation is None else rotation.layout(heads, table.shape, dim)
        if rotation is None or layout is None or not rotation.keeps_pairs:
            raise NotServed("a norm cannot be fused with that rotation")
        for probe in probes:
            probe.heads_axis = layout.index("h")
        results = [rotary(*args, **kwargs), rotary(*new_args, **new_kwargs)]
        tensors = [(result,) if isinstance(result, Tensor) else result for result in results]
        terms = max(x.shape[-1] * x.shape[layout.index("h")] for x in heads)
        return [(a, b, terms) for a, b in zip(*tensors, strict=True)]

    def calls(
        self,
        inputs: dict[str, Any],
        scope: dict[str, Callable[..., Any]],
        code: types.CodeType | None,
    ) -> list[_Call]:
        """The calls of rotary functions in one call of the method: as many as are fused."""
        made: list[_Call] = []

        def kept(name: str, *args: Any, **kwargs: Any) -> Any:
            """Replaces a rotary function and records its arguments."""
            made.append((name, args, kwargs))
            if len(made) == self.fusion.calls:
                raise _Reached
            known = self.arguments[name]
            arguments = known.by_name(args, kwargs)
            results = tuple(arguments[head] for head in known.heads)
            return results if len(results) > 1 else results[0]

        seen = {name: partial(kept, name) for name in self.functions}
        try:
            with_functions(self.inner, scope | seen, code)(self.module, **inputs)
        except _Reached:
            return made
        raise NotServed(f"it makes {len(made)} of {self.fusion.calls} calls of a rotary function")

    def inputs(self) -> Iterable[dict[str, Any]]:
        """Arguments for the method, in the shapes of attention."""
        parameters = [*inspect.signature(self.inner).parameters.values()][1:]
        width = next(
            (p.in_features for p in self.module.children() if isinstance(p, _Projection)), 64
        )
        tables = [item for function in self.functions.values() for item in function.tables.items()]
        random = torch.Generator("cpu").manual_seed(2)
        for columns, use in tables:
            for batch in ((1,), ()):
                x = torch.randn(*batch, 5, width, generator=random, dtype=torch.float32)
                angles = torch.randn(*batch, 5, columns, generator=random, dtype=torch.float32)
                pair = packed(angles.cos(), angles.sin(), use.form)
                known = {"position_embeddings": pair}
                known["position_ids"] = torch.arange(5).reshape(*batch, 5)
                if use.form.packing == "cos, sin":
                    known["cos"], known["sin"] = pair
                yield {
                    p.name: known.get(p.name, x if i == 0 else None)
                    for i, p in enumerate(parameters)
                    if p.kind is p.POSITIONAL_OR_KEYWORD
                    and (i == 0 or p.name in known or p.default is p.empty)
                }


class _Projection(nn.Module):
    """Replaces a projection, whose weights may be large, on another device or not loaded."""

    def __init__(self, like: nn.Module, seed: int) -> None:
        super().__init__()
        self.in_features: int = like.in_features  # type: ignore[assignment]
        self.out_features: int = like.out_features  # type: ignore[assignment]
        self.seed = seed

    def forward(self, x: Tensor) -> Tensor:
        random = torch.Generator("cpu").manual_seed(self.seed)
        shape = *x.shape[:-1], self.out_features
        return torch.randn(shape, generator=random, dtype=torch.float32)


def _on_its_own(module: nn.Module, norms: tuple[str, ...]) -> nn.Module:
    """A copy of an attention module on the CPU, with small parts and norms with random weights."""
    result = type(module).__new__(type(module))
    result.__dict__.update(module.__dict__)
    result.__dict__["training"] = False
    result.__dict__["_modules"] = {}
    for seed, (name, child) in enumerate(module._modules.items()):
        part = child
        if name in norms and child is not None:
            part, _ = with_own_weight(child, name)
        elif child is not None and all(
            type(getattr(child, n, None)) is int for n in ("in_features", "out_features")
        ):
            part = _Projection(child, seed)
        result._modules[name] = part
    return result
