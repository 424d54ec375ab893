"""Plan the changes to every module of a group: a forward, functions, exact buffers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.encodings.rotary.tables import rotary_tables
from posenc_native.models.config import rotary_arguments as configured

from .forms import Form, NotServed, Tables
from .functions import PIECES, Replacement, TablesInUse, in_pieces, rotary_function
from .groups import RotaryUses, computes_cosines, rotary_uses
from .holders import gives_results_their_names, source_of, tells_its_module
from .instances import Plan, slot, with_functions
from .normed.proof import kinds_of_norms, names_norms, norms_put_off
from .position_functions import position_function
from .rotation import Rotation, probe_function
from .signatures import (
    constant_name,
    is_compiled,
    makes_tables,
    rotary_arguments,
    table_names,
    takes_positions,
    takes_tables,
)
from .speech import ROTATES, makes_speech_tables, rotates_speech, speech_rotation
from .tables import probe_tables

__all__ = ["Planner"]

# For each number of columns of a table: its form, and the angle of every column.
_TablesByWidth = dict[int, tuple[Form, tuple[int, ...]]]


class Planner:
    """Plans the changes to groups of modules; one per `patch`, so that nothing is probed twice."""

    def __init__(
        self, modules: dict[str, nn.Module], inplace: bool | None, fuse_norm: bool
    ) -> None:
        self._modules = modules
        self._inplace = inplace
        self._fuse_norm = fuse_norm
        self._rotations: dict[tuple[Callable[..., Any], Form], Rotation | str] = {}
        self._of_kind: dict[Any, Plan] = {}

    def plan(self, members: dict[str, nn.Module]) -> dict[str, Plan]:
        """The plan for each module of a group.

        Raises:
            NotServed: the group must be left alone.
        """
        for name, module in members.items():
            if is_compiled(module):
                title = name or type(module).__name__
                raise NotServed(f"torch.jit has compiled {title}, which may make or use its tables")
        makers = {name: module for name, module in members.items() if makes_tables(module)}
        users = {name: module for name, module in members.items() if name not in makers}
        for module in members.values():
            slot(module, "forward")
        if not makers:
            return {name: self._without_tables(module) for name, module in users.items()}
        probed = {
            name: _probe_maker(module, self._config_above(name)) for name, module in makers.items()
        }
        if not users:
            raise NotServed("no attention module around it calls a rotary function")
        if any(map(rotates_speech, users.values())):
            return self._of_speech(probed, makers, users)
        forms = dict.fromkeys(form for tables, _ in probed.values() for form in tables.forms)
        if len({form.packing for form in forms}) > 1:
            raise NotServed("the tables that it may get have different forms")
        functions = dict.fromkeys(
            function
            for module in users.values()
            for function in rotary_uses(type(module)).functions()
        )
        # A module that computes its own rows and adds them needs the tables in the model's form.
        whole = any(
            computes_cosines(type(self._modules[name.rpartition(".")[0]])) for name in makers
        )
        orders = {
            form: form.columns if whole else self._order(form, [*functions]) for form in forms
        }
        widths: _TablesByWidth = {}
        for form, order in orders.items():
            if widths.setdefault(len(order), (form, order)) != (form, order):
                raise NotServed("the tables that it may get have different forms")
        plans = {}
        for name, (tables, plan) in probed.items():
            plans[name] = plan
            if tables.forward is not None:
                held = itertools.chain(makers[name].buffers(), makers[name].parameters())
                device = next(held).device
                plan.methods["forward"] = tables.forward(orders, device)
            elif any(order != tuple(range(len(order))) for order in orders.values()):
                raise NotServed("its constant table is used in an unknown order")
        kinds: dict[Any, dict[str, nn.Module]] = {}
        for name, module in users.items():
            norms = kinds_of_norms(module) if self._fuse_norm else ()
            kinds.setdefault((type(module), norms), {})[name] = module
        for (kind, norms), alike in kinds.items():
            plan = self._of_users(kind, norms, [*alike.values()], widths)
            plans.update(dict.fromkeys(alike, plan))
        return plans

    def _config_above(self, name: str) -> Any:
        """The configuration of a module, or of the nearest one above it that has one."""
        while True:
            config = getattr(self._modules[name], "config", None)
            if config is not None or not name:
                return config
            name = name.rpartition(".")[0]

    def _of_speech(
        self,
        probed: dict[str, tuple[Tables, Plan]],
        makers: dict[str, nn.Module],
        users: dict[str, nn.Module],
    ) -> dict[str, Plan]:
        """The plans for an encoder of speech, whose attention rotates in a method of its own."""
        if not all(map(makes_speech_tables, makers.values())) or not all(
            map(rotates_speech, users.values())
        ):
            raise NotServed("some of its modules rotate in a method of their own, others do not")
        plans = {}
        for name, (tables, plan) in probed.items():
            device = next(makers[name].buffers()).device
            plan.methods["forward"] = cast(Any, tables.forward)({}, device)
            plans[name] = plan
        for name, module in users.items():
            slot(module, ROTATES)
            kind = type(module)
            if kind not in self._of_kind:
                self._of_kind[kind] = Plan(methods={ROTATES: speech_rotation(module)})
            plans[name] = self._of_kind[kind]
        return plans

    def _rotation(self, function: Callable[..., Any], form: Form) -> Rotation | str:
        """A function's rotation by tables of a form, or the reason why it is unknown."""
        if (function, form) not in self._rotations:
            try:
                rotation: Rotation | str = probe_function(function, form)
            except NotServed as reason:
                rotation = str(reason)
            self._rotations[function, form] = rotation
        return self._rotations[function, form]

    def _order(self, form: Form, functions: list[Callable[..., Any]]) -> tuple[int, ...]:
        """The order of the angles of a form that most of the functions can use."""
        rotations = (self._rotation(function, form) for function in functions)
        orders = [r.order for r in rotations if isinstance(r, Rotation) and r.pairing is not None]
        return max(orders, key=orders.count, default=tuple(range(form.angles)))

    def _of_users(
        self, kind: type[nn.Module], norms: Any, modules: list[nn.Module], widths: _TablesByWidth
    ) -> Plan:
        """One plan per class: torch.compile then traces every layer of it as the same code.

        modules: of this class, with norms of the same classes.
        """
        key = (kind, norms, *widths.values())
        if key not in self._of_kind:
            uses, notes = rotary_uses(kind), []
            replaced = {}
            for function in filter(takes_tables, uses.functions()):
                tables = {}
                for width, (form, order) in widths.items():
                    rotation = self._rotation(function, form)
                    if isinstance(rotation, str):
                        own = "rotated by the model's own function, with exact tables"
                        notes.append(f"{own}: {rotation}")
                    known = None if isinstance(rotation, str) else rotation
                    tables[width] = TablesInUse(form, order, known)
                turns = any(use.rotation for use in tables.values())
                inplace = turns and _where(self._inplace, kind, uses, function)
                ours = rotary_function(function, tables, inplace=inplace)
                replaced[function] = Replacement(function, ours, tables)
            fused = {}
            if self._fuse_norm:
                fused = _with_norms_put_off(kind, uses, replaced, modules, notes)
            self._of_kind[key] = _plan_with_functions(
                kind, uses, {function: new.ours for function, new in replaced.items()},
                "; ".join(dict.fromkeys(notes)), self._inplace is None, fused,
            )  # fmt: skip
        return self._of_kind[key]

    def _without_tables(self, module: nn.Module) -> Plan:
        """The plan for an attention module that gets no tables from other modules."""
        kind = type(module)
        uses = rotary_uses(kind)
        of_positions = [f for f in uses.functions() if takes_positions(f)]
        if not of_positions:
            return _plan_with_own_table(module, self._inplace)
        # The module rotates a head or a part of one, and has their sizes as attributes.
        sizes = tuple({n for n in vars(module).values() if type(n) is int and 1 < n <= 512})
        key = (kind, sizes)
        if key not in self._of_kind:
            replaced = {function: position_function(function, sizes) for function in of_positions}
            self._of_kind[key] = _plan_with_functions(kind, uses, replaced)
        return self._of_kind[key]


def _plan_with_functions(
    kind: type[nn.Module],
    uses: RotaryUses,
    replaced: dict[Callable[..., Any], Callable[..., Any]],
    note: str = "",
    telling: bool = False,
    fused: dict[str, Callable[..., Any]] | None = None,
) -> Plan:
    """The plan for an attention module whose methods call other functions.

    telling: whether these functions ask for the module that calls them. fused: methods that already
    have them.
    """
    methods = {}
    for name, called in uses.methods.items():
        functions = {n: replaced[f] for n, f in called.items() if f in replaced}
        if functions:
            method = (fused or {}).get(name) or with_functions(getattr(kind, name), functions)
            methods[name] = tells_its_module(method) if telling else method
    statics = {name: replaced[f] for name, f in uses.statics.items() if f in replaced}
    return Plan(methods, statics, note=note, fused=bool(fused))


def _with_norms_put_off(
    kind: type[nn.Module],
    uses: RotaryUses,
    replaced: dict[Callable[..., Any], Replacement],
    modules: list[nn.Module],
    notes: list[str],
) -> dict[str, Callable[..., Any]]:
    """Methods of a class with the norm in the rotation's pass; `notes` gets other reasons."""
    fused = {}
    for name, called in uses.methods.items():
        method = getattr(kind, name)
        functions = {n: replaced[f] for n, f in called.items() if f in replaced}
        if functions and names_norms(method, modules[0]):
            try:
                fused[name] = norms_put_off(method, functions, modules)
            except NotServed as reason:
                notes.append(f"its norm is not fused with the rotation: {reason}")
    return fused


def _where(
    inplace: bool | None, kind: type[nn.Module], uses: RotaryUses, function: Callable[..., Any]
) -> bool | None:
    """`inplace` for one function; for None, False if a method may use q and k afterwards."""
    if inplace is not None:
        return inplace
    if function in uses.statics.values():
        return False
    calls = (
        (m, name)
        for m, called in uses.methods.items()
        for name, f in called.items()
        if f is function
    )
    known = rotary_arguments(function)
    alone = all(
        gives_results_their_names(source_of(getattr(kind, method)), name, known)
        for method, name in calls
    )
    return None if alone else False


def _probe_maker(module: nn.Module, config: Any) -> tuple[Tables, Plan]:
    """How a rotary-embedding module makes its tables, and its plan without the forward."""
    exact = _buffers_before_casting(module, config)
    probe = copy.deepcopy(module).cpu()
    probe._buffers.update({name: buffer.cpu() for name, buffer in exact.items()})
    tables = probe_tables(probe)
    guarded = tuple(name for name in module._buffers if name.endswith("inv_freq"))
    if not tables.buffers:
        return tables, Plan(buffers=exact, guarded=guarded, note=_note_on_configuration(probe))
    device = next(module.buffers()).device
    buffers = {name: buffer.to(device) for name, buffer in tables.buffers.items()}
    return tables, Plan(buffers=buffers, guarded=(*buffers,), keep_originals=True)


def _buffers_before_casting(module: nn.Module, config: Any) -> dict[str, Tensor]:
    """The cast buffers of a rotary-embedding module, with their previous float32 values.

    config: with which the module was made.
    """
    exact: dict[str, Tensor] = {}
    fresh: nn.Module | None = None
    for name, buffer in module._buffers.items():
        if buffer is None or not (name.endswith("inv_freq") or name == constant_name(module)):
            continue
        if buffer.is_meta:
            raise NotServed(f"its {name} is on the meta device: load the weights first")
        if buffer.dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
            continue
        if fresh is None:
            try:
                fresh = cast(nn.Module, cast(Any, type(module))(config))
            except Exception:  # any error of a constructor; then the configuration decides
                fresh = nn.Module()
        value = fresh._buffers.get(name)
        if value is None and name.endswith("inv_freq"):
            value = _configured_frequencies(module, name)
        # Values that differ from these were set on purpose and stay.
        if value is None or not torch.equal(value.to(buffer.dtype), buffer.cpu()):
            value = buffer.float()
        exact[name] = value.to(buffer.device)
    return exact


def _configured_frequencies(module: nn.Module, name: str) -> Tensor | None:
    """Frequencies from the configuration of a module, in float32; None if it gives none."""
    layer_type = name.removesuffix("inv_freq").removesuffix("original_").removesuffix("_") or None
    try:
        rotary = Rotary(**configured(getattr(module, "config", None), layer_type))
    except (ValueError, TypeError, KeyError):
        return None
    return torch.tensor(rotary.inv_freq, dtype=torch.float32)


def _note_on_configuration(module: nn.Module) -> str:
    """A note if frequencies differ from those of the configuration; otherwise ""."""
    notes = []
    for name in table_names(module):
        expected = _configured_frequencies(module, name + "inv_freq")
        # The frequencies before any scaling that depends on the length.
        own = module._buffers.get(name + "original_inv_freq", module._buffers[name + "inv_freq"])
        if expected is None or own is None or len(expected) != len(own):
            continue
        # Sorted: some modules order their frequencies only in the tables (ERNIE 4.5 VL).
        own, expected = own.sort(descending=True)[0], expected.sort(descending=True)[0]
        off = (own - expected).abs() / expected.abs().clamp_min(1e-30)
        # transformers computes them in float32, in steps that may each be off by a few units.
        if float(off.max()) > 1e-5:
            pair = int(off.argmax())
            notes.append(
                f"{name}inv_freq differs from its configuration: pair {pair} has "
                f"{float(own[pair]):.6g}, not {float(expected[pair]):.6g}"
            )
    return "; ".join(notes)


def _plan_with_own_table(module: nn.Module, inplace: bool | None) -> Plan:
    """The plan for an attention module with ``embed_positions``: GPT-J, CodeGen.

    That buffer is [positions, sin and cos: 2 * P]; the forward gathers its rows by position and
    casts them to the dtype of the model. It gets an exact table instead, in pieces that survive
    the cast.
    """
    kind, table = type(module), module._buffers.get("embed_positions")
    if table is None or table.ndim != 2 or table.shape[1] % 2:
        raise NotServed(f"{kind.__name__} has no rotary embedding above it and no embed_positions")
    if table.is_meta:
        raise NotServed("its embed_positions is on the meta device: load the weights first")
    count, width = table.shape
    # In float32 and in the same steps as transformers.models.gptj.
    frequencies = 1.0 / (10000 ** (torch.arange(0, width, 2, dtype=torch.float32) / width))
    cos, sin = rotary_tables(torch.arange(count), frequencies)
    rows = min(count, 64)
    if not torch.allclose(
        torch.cat((sin, cos), dim=1)[:rows],
        table[:rows].float().cpu(),
        rtol=0,
        atol=1e-4 if table.dtype in (torch.float32, torch.float64) else 1e-2,
    ):
        raise NotServed(f"{kind.__name__} computes its tables in its own way")
    form, order = Form(tuple(range(width // 2)), ranks=(3,)), tuple(range(width // 2))
    uses = rotary_uses(kind)
    functions = {}
    for function in uses.functions():
        rotation = probe_function(function, form)
        if rotation.order != order:
            raise NotServed(f"{kind.__name__} uses its table in an unknown order")
        tables = {width // 2: TablesInUse(form, order, rotation)}
        where = _where(inplace, kind, uses, function)
        functions[function] = rotary_function(function, tables, inplace=where, pieces=PIECES)
    plan = _plan_with_functions(kind, uses, functions, telling=inplace is None)
    exact = torch.cat((in_pieces(sin), in_pieces(cos)), dim=1).to(table.device)
    plan.buffers, plan.guarded = {"embed_positions": exact}, ("embed_positions",)
    plan.keep_originals = True
    return plan
