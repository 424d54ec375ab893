"""What `patch` does to a model: which of its modules belong together, and what each gets."""

from __future__ import annotations

import copy
import inspect
import itertools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from posenc_native.rotary import Rotary, rotary_tables

from .functions import (
    PIECES,
    Rotation,
    in_pieces,
    probe_function,
    rotary_function,
    takes_tables,
)
from .instances import MARK, Plan, global_names, install, restore, rewrap, slot, with_functions
from .position_functions import position_function, takes_positions
from .tables import (
    Form,
    NotServed,
    Tables,
    constant_name,
    makes_tables,
    probe_tables,
    table_names,
)

__all__ = ["Patch", "patch", "unpatch"]


def patch(model: nn.Module, *, inplace: bool = False) -> Patch:
    """Make `model` rotate its queries and keys through this library.

    Args:
        model: a transformers model, or any module that contains one (a wrapper, an adapter).
            Weights and buffers must be loaded (not on the meta device).
        inplace: where no gradient is needed, rotate q and k where they are instead of into fresh
            memory. For long prompts that is several times faster. It is right as long as nothing
            else uses q and k from before the rotation. No attention module of transformers 5.23
            that was tried does (112 models, results compared bit for bit), but a forward hook that
            keeps the output of a ``q_proj`` would see it rotated, hence not the default.

    Returns:
        A handle: ``.undo()`` restores every module, and it is a context manager that does so at
        its end. ``.patched`` names the modules that were patched; ``.skipped`` says of every
        rotary module that was left alone why.

    Raises:
        TypeError: `model` is not a torch module.
        ValueError: nothing in it can be patched (the message says what was found), or it is
            patched already.

    Served is what a probe finds to be a rotation by position, in models that make their tables in
    one module and rotate in a function:

    - text: Llama, Mistral, Mixtral, Qwen2, Qwen3, Gemma 1 to 4, Phi to Phi-3.5-MoE, GPT-NeoX,
      StableLM, OLMo, Cohere, GLM, ERNIE 4.5, Falcon, gpt-oss, EXAONE, SmolLM3, ModernBERT and
      most others, with heads that are rotated in part and every scaling of transformers;
      DeepSeek-V2 and Llama 4, whose tables are complex; DeepSeek-V3 and other latent attention;
      GPT-J and CodeGen, which keep a table in every attention module; RoFormer
    - tokens with a position on several axes: Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4V, ERNIE 4.5 VL
      and HunYuan-VL, the last with a composition of torch operations: the two dims of a pair have
      different axes
    - vision: the towers of these models, Pixtral, DINOv3, SAM 2 and 3 (also their memory), Gemma
      4, Llama 4, Kimi, MiniMax-M3, V-JEPA 2 (a composition too)

    A function that does more than rotate (or a call that asks it to) stays the model's own and gets
    exact tables. Not served, and listed in ``.skipped`` with the reason: frequencies that are
    learned (Mistral Large 4), tables that are angles for the attention to take the cosine of
    (CLVP), tables made of lengths or features in place of positions (Wav2Vec2-Conformer,
    SeamlessM4T, EfficientLoFTR, MusicFlamingo, ESMFold2).

    Frequencies are the float32 values that transformers has, bit for bit, because the checkpoint
    was trained with them; if ``model.half()`` has rounded them, they are computed anew from the
    configuration. ``.notes`` tells where they are not what the configuration says. Logits differ
    from the model's own by what its phase is off.

    - Gradients flow as before. ``state_dict`` is the same before and after.
    - ``model.half()``, ``.bfloat16()``, ``.to(...)`` may come before or after: frequencies and
      tables stay float32. In half precision the rotated values are rounded once, not four times.
    - ``torch.compile(model, fullgraph=True)`` works; patch and undo *before* compiling, or call
      ``torch.compiler.reset()`` after.
    - ``copy.deepcopy(model)`` gives a patched model of its own; `unpatch` restores it.
    - ``pickle`` of a whole model (``torch.save(model)``) does not work while it is patched;
      ``save_pretrained`` and ``state_dict`` do.

    Example::

        model = AutoModelForCausalLM.from_pretrained(...)
        handle = posenc_native.hf.patch(model)
        model.generate(**inputs)
        handle.undo()
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"patch: model: expected a torch.nn.Module, got {type(model).__name__}")
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if MARK in module.__dict__:
            raise ValueError(
                f"patch: model: expected a model that is not patched, got one whose module "
                f"{name or type(module).__name__!r} is; call .undo() of its handle, or unpatch"
            )
    plans: dict[str, Plan] = {}
    skipped: dict[str, str] = {}
    planner = _Planner(modules, inplace)
    for members in _groups(modules):
        # All of a group or nothing: a table of one kind never meets a function of the other.
        try:
            # Probing must not depend on what the caller has switched on.
            with torch.no_grad(), torch.device("cpu"), torch.autocast("cpu", enabled=False):
                plans.update(planner.plan({name: modules[name] for name in members}))
        except NotServed as reason:
            skipped.update(dict.fromkeys(members, str(reason)))
    if not plans:
        raise ValueError(_nothing_to_patch(model, skipped))
    for name in plans:
        install(modules[name], plans[name])
    patched = {name: modules[name] for name in modules if name in plans}
    notes = {name: plans[name].note for name in patched if plans[name].note}
    return Patch(patched, skipped, notes)


def unpatch(model: nn.Module) -> None:
    """Restore every patched module in `model`; one that is not patched stays as it is.

    ``handle.undo()`` does this for the modules it patched; this finds them by itself, for instance
    in a ``copy.deepcopy`` of a patched model.
    """
    for module in model.modules():
        restore(module)


class Patch:
    """What `patch` did to a model.

    Attributes:
        patched: names of the modules that were patched, in the order of the model.
        skipped: name to reason, for rotary and attention modules that were left alone.
        notes: name to remark, for patched modules with something to know: frequencies that are not
            those of the configuration (set by hand, or lost while loading), or a rotation that is
            left to the model's own function, with exact tables.
    """

    def __init__(
        self, modules: dict[str, nn.Module], skipped: dict[str, str], notes: dict[str, str]
    ) -> None:
        self._modules = list(modules.values())
        self.patched = tuple(modules)
        self.skipped = skipped
        self.notes = notes

    def undo(self) -> None:
        """Restore every module that was patched. A second call does nothing."""
        for module in self._modules:
            restore(module)
        self._modules = []

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "active" if self._modules else "undone"
        return f"<Patch of {len(self.patched)} modules, {len(self.skipped)} skipped, {state}>"


# --- what belongs together ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Uses:
    """The rotary functions that the methods of a class call.

    Attributes:
        methods: from the name of a method, the functions that it finds under global names.
        statics: rotary functions that are static methods of the class.
    """

    methods: dict[str, dict[str, Callable[..., Any]]]
    statics: dict[str, Callable[..., Any]]

    def functions(self) -> list[Callable[..., Any]]:
        named = [function for found in self.methods.values() for function in found.values()]
        return list(dict.fromkeys([*named, *self.statics.values()]))

    def __bool__(self) -> bool:
        return bool(self.methods or self.statics)


def _uses(kind: type[nn.Module]) -> _Uses:
    methods: dict[str, dict[str, Callable[..., Any]]] = {}
    statics: dict[str, Callable[..., Any]] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        for name, value in vars(base).items():
            if isinstance(value, staticmethod):
                if takes_tables(value.__func__):
                    statics[name] = value.__func__
            elif isinstance(value, types.FunctionType):
                methods[name] = _called_functions(value)
    return _Uses({name: found for name, found in methods.items() if found}, statics)


def _called_functions(method: types.FunctionType) -> dict[str, Callable[..., Any]]:
    """Functions of tables, or of positions, that a method calls by a global name."""
    inner = inspect.unwrap(method)
    if not isinstance(inner, types.FunctionType):
        return {}
    found = {}
    for name in global_names(inner.__code__):
        function = inner.__globals__.get(name)
        if function is not None and (takes_tables(function) or takes_positions(function)):
            found[name] = function
    return found


def _computes_cosines(kind: type[nn.Module]) -> bool:
    forward = inspect.unwrap(kind.forward)
    return isinstance(forward, types.FunctionType) and "cos" in global_names(forward.__code__)


def _groups(modules: dict[str, nn.Module]) -> Iterator[list[str]]:
    """Names of modules that share tables: rotary-embedding modules and who uses their output.

    An attention module gets its tables from the nearest module above it (or from itself) that holds
    rotary-embedding modules. One that keeps its own table is a group by itself.
    """
    holders: dict[str, list[str]] = {}  # name of the holder -> its rotary-embedding modules
    for name, module in modules.items():
        if makes_tables(module):
            holder = name.rpartition(".")[0]
            while isinstance(modules[holder], (nn.ModuleList, nn.ModuleDict)) and holder:
                holder = holder.rpartition(".")[0]
            holders.setdefault(holder, []).append(name)
    uses = {kind: _uses(kind) for kind in {type(module) for module in modules.values()}}
    users: dict[str, list[str]] = {}
    alone: list[str] = []
    for name, module in modules.items():
        if not uses[type(module)] or makes_tables(module):
            continue
        above = name
        while above not in holders and above:
            above = above.rpartition(".")[0]
        if above in holders:
            users.setdefault(above, []).append(name)
        else:
            alone.append(name)
    for holder, tables in holders.items():
        # An embedding of sines that nothing rotates by is added to the tokens.
        if holder in users or not all(isinstance(modules[name], nn.Embedding) for name in tables):
            yield tables + users.get(holder, [])
    for name in alone:
        yield [name]


def _nothing_to_patch(model: nn.Module, skipped: dict[str, str]) -> str:
    if skipped:
        name, reason = next(iter(skipped.items()))
        found = f"{len(skipped)} rotary modules that cannot be served, the first {name!r}: {reason}"
    else:
        kinds = sorted({type(m).__name__ for m in model.modules()} - set(dir(nn)))
        found = f"none that does; its classes are {', '.join(kinds) or 'torch.nn only'}"
    return (
        f"patch: model: expected a model whose attention calls a rotary function "
        f"(apply_rotary_pos_emb or another with arguments cos and sin), got {found}"
    )


# --- what each gets -------------------------------------------------------------------------------


# For each number of columns of a table: its form, and the angle of every column.
_Widths = dict[int, tuple[Form, tuple[int, ...]]]


class _Planner:
    """What every module of a group gets; one for a `patch`, so that nothing is probed twice."""

    def __init__(self, modules: dict[str, nn.Module], inplace: bool) -> None:
        self._modules = modules
        self._inplace = inplace
        self._rotations: dict[tuple[Callable[..., Any], Form], Rotation | str] = {}
        self._of_kind: dict[Any, Plan] = {}

    def plan(self, members: dict[str, nn.Module]) -> dict[str, Plan]:
        """From the modules of a group, what each gets.

        Raises:
            NotServed: the group must be left alone.
        """
        makers = {name: module for name, module in members.items() if makes_tables(module)}
        users = {name: module for name, module in members.items() if name not in makers}
        for module in members.values():
            slot(module, "forward")
        if not makers:
            return {name: self._without_tables(module) for name, module in users.items()}
        probed = {name: _probe_maker(module) for name, module in makers.items()}
        if not users:
            raise NotServed("no attention module around it calls a rotary function")
        forms = dict.fromkeys(form for tables, _ in probed.values() for form in tables.forms)
        if len({form.packing for form in forms}) > 1:
            raise NotServed("the tables that it may get have different forms")
        functions = dict.fromkeys(
            function for module in users.values() for function in _uses(type(module)).functions()
        )
        # Who adds rows of its own to the tables finds them in the form that it knows.
        whole = any(
            _computes_cosines(type(self._modules[name.rpartition(".")[0]])) for name in makers
        )
        orders = {
            form: form.columns if whole else self._order(form, [*functions]) for form in forms
        }
        widths: _Widths = {}
        for form, order in orders.items():
            if widths.setdefault(len(order), (form, order)) != (form, order):
                raise NotServed("the tables that it may get have different forms")
        plans = {}
        for name, (tables, plan) in probed.items():
            plans[name] = plan
            if tables.forward is not None:
                held = itertools.chain(makers[name].buffers(), makers[name].parameters())
                device = next(held).device
                wrap = partial(_with_inner, type(makers[name]).forward)
                plan.methods["forward"] = wrap(tables.forward(orders, device))
            elif any(order != tuple(range(len(order))) for order in orders.values()):
                raise NotServed("its constant table is used in an unknown order")
        for name, module in users.items():
            plans[name] = self._of_user(type(module), widths)
        return plans

    def _rotation(self, function: Callable[..., Any], form: Form) -> Rotation | str:
        """What a function does with tables of a form, or why that is not known."""
        if (function, form) not in self._rotations:
            try:
                found: Rotation | str = probe_function(function, form)
            except NotServed as reason:
                found = str(reason)
            self._rotations[function, form] = found
        return self._rotations[function, form]

    def _order(self, form: Form, functions: list[Callable[..., Any]]) -> tuple[int, ...]:
        """The order of the angles of a form that most of what rotates by it can use."""
        found = (self._rotation(function, form) for function in functions)
        orders = [r.order for r in found if isinstance(r, Rotation) and r.pairing is not None]
        return max(orders, key=orders.count, default=tuple(range(form.angles)))

    def _of_user(self, kind: type[nn.Module], widths: _Widths) -> Plan:
        """One plan a class: torch.compile then traces every layer of it as the same code."""
        key = (kind, *widths.values())
        if key not in self._of_kind:
            uses, notes = _uses(kind), []
            replaced = {}
            for function in uses.functions():
                if not takes_tables(function):
                    continue
                tables: dict[int, tuple[Form, tuple[int, ...], Rotation | None]] = {}
                for width, (form, order) in widths.items():
                    rotation = self._rotation(function, form)
                    if isinstance(rotation, str):
                        own = "rotated by the model's own function, with exact tables"
                        notes.append(f"{own}: {rotation}")
                    known = None if isinstance(rotation, str) else rotation
                    tables[width] = form, order, known
                replaced[function] = rotary_function(function, tables, inplace=self._inplace)
            self._of_kind[key] = _replace(kind, uses, replaced, "; ".join(dict.fromkeys(notes)))
        return self._of_kind[key]

    def _without_tables(self, module: nn.Module) -> Plan:
        """The plan for an attention module that gets no tables from elsewhere."""
        kind = type(module)
        uses = _uses(kind)
        of_positions = [f for f in uses.functions() if takes_positions(f)]
        if not of_positions:
            return _plan_with_own_table(module, self._inplace)
        # What it asks for is the size of a head or of a part of one, and it knows these sizes.
        sizes = tuple({n for n in vars(module).values() if type(n) is int and 1 < n <= 512})
        key = (kind, sizes)
        if key not in self._of_kind:
            replaced = {function: position_function(function, sizes) for function in of_positions}
            self._of_kind[key] = _replace(kind, uses, replaced)
        return self._of_kind[key]


def _replace(
    kind: type[nn.Module],
    uses: _Uses,
    replaced: dict[Callable[..., Any], Callable[..., Any]],
    note: str = "",
) -> Plan:
    """The plan for an attention module whose methods find other functions."""
    methods = {}
    for name, found in uses.methods.items():
        functions = {n: replaced[f] for n, f in found.items() if f in replaced}
        if functions:
            methods[name] = with_functions(getattr(kind, name), functions)
    statics = {name: replaced[f] for name, f in uses.statics.items() if f in replaced}
    return Plan(methods, statics, note=note)


def _with_inner(original: Callable[..., Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward with the decorators of the original around it."""
    return rewrap(original, lambda _: forward)


def _probe_maker(module: nn.Module) -> tuple[Tables, Plan]:
    """How a rotary-embedding module makes its tables, and its plan but for the forward."""
    exact = _exact_buffers(module)
    probe = copy.deepcopy(module).cpu()
    probe._buffers.update({name: buffer.cpu() for name, buffer in exact.items()})
    tables = probe_tables(probe, partial(_with_inner, type(module).forward))
    guarded = tuple(name for name in module._buffers if name.endswith("inv_freq"))
    if not tables.buffers:
        return tables, Plan(buffers=exact, guarded=guarded, note=_off_configuration(probe))
    device = next(module.buffers()).device
    buffers = {name: buffer.to(device) for name, buffer in tables.buffers.items()}
    return tables, Plan(buffers=buffers, guarded=(*buffers,), keep_originals=True)


def _exact_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers of a rotary-embedding module that have been cast, again as they were in float32."""
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
                fresh = cast(nn.Module, cast(Any, type(module))(module.config))
            except Exception:  # whatever a constructor may raise: there is the configuration
                fresh = nn.Module()
        value = fresh._buffers.get(name)
        if value is None and name.endswith("inv_freq"):
            value = _configured(module, name)
        # Values that somebody else has set are not ours to correct.
        if value is None or not torch.equal(value.to(buffer.dtype), buffer.cpu()):
            value = buffer.float()
        exact[name] = value.to(buffer.device)
    return exact


def _configured(module: nn.Module, name: str) -> Tensor | None:
    """Frequencies as the configuration of a module says, in float32; None if it does not."""
    layer_type = name.removesuffix("inv_freq").removesuffix("original_").removesuffix("_") or None
    try:
        rotary = Rotary.from_config(getattr(module, "config", None), layer_type)
    except (ValueError, TypeError, KeyError):
        return None
    return torch.tensor(rotary.inv_freq, dtype=torch.float32)


def _off_configuration(module: nn.Module) -> str:
    """What is to be said about frequencies that are not those of the configuration."""
    notes = []
    for name in table_names(module):
        expected = _configured(module, name + "inv_freq")
        # Before any scaling that follows the length.
        own = module._buffers.get(name + "original_inv_freq", module._buffers[name + "inv_freq"])
        if expected is None or own is None or len(expected) != len(own):
            continue
        # Which pair has which may be left to the tables (ERNIE 4.5 VL).
        own, expected = own.sort(descending=True)[0], expected.sort(descending=True)[0]
        off = (own - expected).abs() / expected.abs().clamp_min(1e-30)
        # transformers computes them in float32, in steps that may be off by a few units each.
        if float(off.max()) > 1e-5:
            pair = int(off.argmax())
            notes.append(
                f"{name}inv_freq is not that of its configuration: pair {pair} has "
                f"{float(own[pair]):.6g}, not {float(expected[pair]):.6g}"
            )
    return "; ".join(notes)


def _plan_with_own_table(module: nn.Module, inplace: bool) -> Plan:
    """The plan for an attention module with ``embed_positions``: GPT-J, CodeGen.

    That buffer is [positions, sin and cos: 2 * P]; the forward gathers rows of it by position and
    casts them to the dtype of the model. It gets an exact table instead, in pieces that survive
    the cast.
    """
    kind, table = type(module), module._buffers.get("embed_positions")
    if table is None or table.ndim != 2 or table.shape[1] % 2:
        raise NotServed(f"{kind.__name__} has no rotary embedding above it and no embed_positions")
    if table.is_meta:
        raise NotServed("its embed_positions is on the meta device: load the weights first")
    count, width = table.shape
    # In float32 and in these steps, as transformers.models.gptj does it.
    frequencies = 1.0 / (10000 ** (torch.arange(0, width, 2, dtype=torch.int64) / width))
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
    uses = _uses(kind)
    functions = {}
    for function in uses.functions():
        rotation = probe_function(function, form)
        if rotation.order != order:
            raise NotServed(f"{kind.__name__} uses its table in an unknown order")
        functions[function] = rotary_function(
            function, {width // 2: (form, order, rotation)}, inplace=inplace, pieces=PIECES
        )
    plan = _replace(kind, uses, functions)
    exact = torch.cat((in_pieces(sin), in_pieces(cos)), dim=1).to(table.device)
    plan.buffers, plan.guarded = {"embed_positions": exact}, ("embed_positions",)
    plan.keep_originals = True
    return plan
