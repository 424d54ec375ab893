"""Let a loaded transformers model rotate its queries and keys through this library.

::

    from posenc_native import hf

    handle = hf.patch(model)     # generate, train, compile: as before, with an exact phase
    handle.undo()                # every module is as it was

    with hf.patch(model):        # the same for a while
        model.generate(...)

What a transformers model does: a rotary-embedding module turns position ids into cos and sin in
float32 (off by up to ``position * 2**-24``: 8e-3 at 128k), rounds them to the model's dtype, and
every attention module hands them with q and k to a function of its file, ``apply_rotary_pos_emb``.
After `patch` the first computes exact cos and sin in float32 (`posenc_native.rotary_tables`), and
the second calls `posenc_native.apply_rotary_qk_tables`.

Only instances are touched, never a class or a module of transformers. The rotary-embedding module
gets an instance-level ``forward``; an attention module gets one that is the same code with other
globals, in which the rotary function is replaced. So everything else those modules do (caches,
attention backends, scalings that change with the length) is still transformers' own.

How a model pairs the dimensions of a head, whether it rotates a part of them, and how its tables
are laid out is not looked up in a list of names; `posenc_native.hf_probe` finds it by calling the
model's own functions. A part of a model that does not answer like any known form is left alone.
"""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise ImportError(
        "posenc_native.hf needs torch (and transformers, for a model): "
        "pip install 'posenc-native[hf]'"
    ) from error

from .hf_probe import PIECES, NotServed, in_pieces, probe_function, probe_tables, table_names
from .rotary import rotary_tables

__all__ = ["Patch", "patch", "unpatch"]

_MARK = "_posenc_native"  # the attribute of a patched module that says how to restore it


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

    Served are models with the usual split into a rotary-embedding module and a function
    ``apply_rotary_pos_emb(q, k, cos, sin)``: Llama, Mistral, Qwen2, Qwen3, Gemma 1 to 3, Phi-3,
    GPT-NeoX, StableLM, OLMo, Cohere, GLM, DeepSeek-V3 and most others, the multi-axis positions of
    Qwen2-VL and its successors, and GPT-J and CodeGen, which keep a table in every attention
    module. Frequencies are the float32 values that transformers has, bit for bit, because the
    checkpoint was trained with them; if ``model.half()`` has rounded them, they are computed
    anew from the configuration. Logits differ from the model's own by what its phase is off.

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
        if _MARK in module.__dict__:
            raise ValueError(
                f"patch: model: expected a model that is not patched, got one whose module "
                f"{name or type(module).__name__!r} is; call .undo() of its handle, or unpatch"
            )
    plans: dict[str, _Plan] = {}
    skipped: dict[str, str] = {}
    for members in _groups(modules):
        # All of a group or nothing: a table of one kind never meets a function of the other.
        plan = _plan_group({name: modules[name] for name in members}, inplace)
        if isinstance(plan, str):
            skipped.update(dict.fromkeys(members, plan))
        else:
            plans.update(plan)
    if not plans:
        raise ValueError(_nothing_to_patch(model, skipped))
    for name in plans:
        _install(modules[name], plans[name])
    return Patch({name: modules[name] for name in plans}, skipped)


def unpatch(model: nn.Module) -> None:
    """Restore every patched module in `model`; one that is not patched stays as it is.

    ``handle.undo()`` does this for the modules it patched; this finds them by itself, for instance
    in a ``copy.deepcopy`` of a patched model.
    """
    for module in model.modules():
        _restore(module)


class Patch:
    """What `patch` did to a model.

    Attributes:
        patched: names of the modules that were patched, in the order of the model.
        skipped: name to reason, for rotary and attention modules that were left alone.
    """

    def __init__(self, modules: dict[str, nn.Module], skipped: dict[str, str]) -> None:
        self._modules = list(modules.values())
        self.patched = tuple(modules)
        self.skipped = skipped

    def undo(self) -> None:
        """Restore every module that was patched. A second call does nothing."""
        for module in self._modules:
            _restore(module)
        self._modules = []

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "active" if self._modules else "undone"
        return f"<Patch of {len(self.patched)} modules, {len(self.skipped)} skipped, {state}>"


# --- what belongs together ------------------------------------------------------------------------


def _groups(modules: dict[str, nn.Module]) -> Iterator[list[str]]:
    """Names of modules that share tables: rotary-embedding modules and who uses their output.

    An attention module gets its tables from the nearest module above it (or from itself) that holds
    rotary-embedding modules. One that keeps its own table is a group by itself.
    """
    holders: dict[str, list[str]] = {}  # name of the holder -> its rotary-embedding modules
    for name, module in modules.items():
        if table_names(module):
            holder = name.rpartition(".")[0]
            while isinstance(modules[holder], (nn.ModuleList, nn.ModuleDict)) and holder:
                holder = holder.rpartition(".")[0]
            holders.setdefault(holder, []).append(name)
    kinds = {type(module) for module in modules.values()}
    calls = {kind: bool(_rotary_functions(kind)) for kind in kinds}
    users: dict[str, list[str]] = {}
    alone: list[str] = []
    for name, module in modules.items():
        if not calls[type(module)]:
            continue
        above = name
        while above not in holders and above:
            above = above.rpartition(".")[0]
        if above in holders:
            users.setdefault(above, []).append(name)
        else:
            alone.append(name)
    for holder, tables in holders.items():
        yield tables + users.get(holder, [])
    for name in alone:
        yield [name]


def _rotary_functions(kind: type[nn.Module]) -> dict[str, Callable[..., Any]]:
    """Functions with arguments cos and sin that ``forward`` of a class calls by a global name."""
    forward = inspect.unwrap(kind.forward)
    if not isinstance(forward, types.FunctionType):
        return {}
    found = {}
    for name in _global_names(forward.__code__):
        function = forward.__globals__.get(name)
        if callable(function) and not isinstance(function, type):
            try:
                parameters = inspect.signature(function).parameters
            except (TypeError, ValueError):  # some builtins have none
                continue
            if "cos" in parameters and "sin" in parameters:
                found[name] = function
    return found


def _global_names(code: types.CodeType) -> set[str]:
    nested = (_global_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*nested)


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


@dataclass
class _Plan:
    """What one module gets: a forward, and buffers that must keep their precision."""

    forward: Callable[..., Any]
    buffers: dict[str, Tensor] = field(default_factory=dict)  # new values, exact
    guarded: tuple[str, ...] = ()  # buffers that no .half() may round
    keep_originals: bool = False  # the buffers mean something else now: put the old ones back


def _plan_group(members: dict[str, nn.Module], inplace: bool) -> dict[str, _Plan] | str:
    """What every module of a group gets, or why they are left alone."""
    try:
        # Probing must not depend on what the caller has switched on.
        with torch.no_grad(), torch.device("cpu"):
            return _plan_members(members, inplace)
    except NotServed as reason:
        return str(reason)


def _plan_members(members: dict[str, nn.Module], inplace: bool) -> dict[str, _Plan]:
    for module in members.values():
        _slot(module)
    plans: dict[str, _Plan] = {}
    forms: set[str] = set()
    widths: set[int] = set()  # pairs a head
    for name, module in members.items():
        if names := table_names(module):
            plans[name], form = _plan_tables(module)
            forms.add(form)
            widths |= {len(cast(Tensor, module._buffers[n + "inv_freq"])) for n in names}
    users = {name: module for name, module in members.items() if name not in plans}
    if not users:
        raise NotServed("no attention module around it calls a rotary function")
    if not plans:
        return {name: _plan_with_own_table(module, inplace) for name, module in users.items()}
    if len(forms) > 1:
        raise NotServed("the tables that it may get have different forms")
    # One new function a class: torch.compile then traces every layer of it as the same code.
    kinds: set[type[nn.Module]] = {type(module) for module in users.values()}
    forwards = {
        kind: _with_functions(
            kind.forward,
            {
                name: probe_function(function, form, frozenset(widths), inplace=inplace)
                for name, function in _rotary_functions(kind).items()
            },
        )
        for kind in kinds
    }
    return plans | {name: _Plan(forwards[type(module)]) for name, module in users.items()}


def _plan_tables(module: nn.Module) -> tuple[_Plan, str]:
    """The plan for a rotary-embedding module, and the form of its tables."""
    original = type(module).forward

    def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
        return _rewrap(original, lambda _: forward)

    exact = _exact_frequencies(module)
    probe = copy.deepcopy(module).cpu()
    probe._buffers.update({name: buffer.cpu() for name, buffer in exact.items()})
    tables = probe_tables(probe, wrap)
    guarded = tuple(name for name in module._buffers if name.endswith("inv_freq"))
    device = module._buffers[guarded[0]].device  # type: ignore[union-attr]
    return _Plan(wrap(tables.exact_forward(device)), exact, guarded), tables.form


def _exact_frequencies(module: nn.Module) -> dict[str, Tensor]:
    """Buffers of a rotary-embedding module that have been cast, again as they were in float32."""
    fresh: nn.Module | None = None
    exact: dict[str, Tensor] = {}
    for name, buffer in module._buffers.items():
        if buffer is None or not name.endswith("inv_freq"):
            continue
        if buffer.is_meta:
            raise NotServed(f"its {name} is on the meta device: load the weights first")
        if buffer.dtype in (torch.float32, torch.float64):
            continue
        if fresh is None:
            try:
                fresh = cast(nn.Module, cast(Any, type(module))(module.config))
            except Exception:  # whatever a constructor may raise: the cast values are what we have
                fresh = nn.Module()
        value = fresh._buffers.get(name)
        # Values that somebody else has set are not ours to correct.
        if value is None or not torch.equal(value.to(buffer.dtype), buffer.cpu()):
            value = buffer.float()
        exact[name] = value.to(buffer.device)
    return exact


def _plan_with_own_table(module: nn.Module, inplace: bool) -> _Plan:
    """The plan for an attention module with ``embed_positions``: GPT-J, CodeGen.

    That buffer is [positions, sin and cos: 2 * P]; the forward gathers rows of it by position and
    casts them to the dtype of the model. It gets an exact table instead, in pieces that survive
    the cast.
    """
    kind, table = type(module).__name__, module._buffers.get("embed_positions")
    if table is None or table.ndim != 2 or table.shape[1] % 2:
        raise NotServed(f"{kind} has no rotary embedding above it and no embed_positions")
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
        raise NotServed(f"{kind} computes its tables in its own way")
    functions = {
        name: probe_function(
            function, "plain", frozenset({width // 2}), inplace=inplace, pieces=PIECES
        )
        for name, function in _rotary_functions(type(module)).items()
    }
    exact = torch.cat((in_pieces(sin), in_pieces(cos)), dim=1).to(table.device)
    return _Plan(
        _with_functions(type(module).forward, functions),
        {"embed_positions": exact},
        ("embed_positions",),
        keep_originals=True,
    )


# --- the same code with another function in it ----------------------------------------------------


def _rewrap(
    function: Callable[..., Any],
    replace: Callable[[types.FunctionType], Callable[..., Any]],
) -> Callable[..., Any]:
    """`replace` applied to the innermost function, with the same decorators around the result."""
    if not isinstance(function, types.FunctionType):
        raise NotServed(f"its forward is not a plain function but {function!r}")
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is None:
        return replace(function)
    inner = _rewrap(wrapped, replace)
    cells = [
        types.CellType(inner) if cell.cell_contents is wrapped else cell
        for cell in function.__closure__ or ()
    ]
    if all(cell.cell_contents is not inner for cell in cells):
        raise NotServed(f"a decorator hides its forward: {function.__qualname__}")
    outer = _copy_function(function, function.__globals__, tuple(cells))
    outer.__dict__["__wrapped__"] = inner
    return outer


def _with_functions(
    forward: Callable[..., Any], functions: dict[str, Callable[..., Any]]
) -> Callable[..., Any]:
    """`forward` with other functions under some of its global names."""

    def replace(function: types.FunctionType) -> types.FunctionType:
        # Only what the code names, and no __name__: by that torch.compile would take this dict for
        # the module of that name and find the original function in it.
        needed = _global_names(function.__code__) | {"__builtins__", "__package__"}
        scope = {name: function.__globals__[name] for name in needed & function.__globals__.keys()}
        return _copy_function(function, scope | functions, function.__closure__)

    return _rewrap(forward, replace)


def _copy_function(
    function: types.FunctionType,
    scope: dict[str, Any],
    closure: tuple[types.CellType, ...] | None,
) -> types.FunctionType:
    result = types.FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, closure
    )
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(result, name, getattr(function, name))
    result.__dict__.update(function.__dict__)
    return result


# --- putting it into a module, and taking it out again --------------------------------------------


# Where an instance may hold its forward. A hook of accelerate puts its own into `forward` and keeps
# the one that it calls in `_old_forward`: it has to stay outside of ours.
_SLOTS = ("_old_forward", "forward")


@dataclass
class _State:
    """How to restore one module."""

    forward: Callable[..., Any]  # what was put in
    dtypes: dict[str, torch.dtype]  # what the guarded buffers would be without the guard
    originals: dict[str, Tensor]


def _slot(module: nn.Module) -> str:
    """The instance attribute through which ``forward`` of this module is to be replaced."""
    for slot in _SLOTS:
        if slot in module.__dict__:
            if getattr(module.__dict__[slot], "__func__", None) is not type(module).forward:
                raise NotServed("its forward has been replaced by something else already")
            return slot
    return "forward"


def _install(module: nn.Module, plan: _Plan) -> None:
    slot, buffers = _slot(module), cast("dict[str, Tensor]", module._buffers)
    module.__dict__[_MARK] = _State(
        forward=plan.forward,
        dtypes={name: buffers[name].dtype for name in plan.guarded},
        originals={name: buffers[name] for name in plan.buffers if plan.keep_originals},
    )
    buffers.update(plan.buffers)
    # Bound methods, not closures over the module: copy.deepcopy binds them to the copy.
    module.__dict__[slot] = types.MethodType(plan.forward, module)
    if plan.guarded:
        module.__dict__["_apply"] = types.MethodType(_apply_but_keep_precision, module)


def _restore(module: nn.Module) -> None:
    state: _State | None = module.__dict__.pop(_MARK, None)
    if state is None:
        return
    module.__dict__.pop("_apply", None)
    for slot in _SLOTS:  # hooks may have come or gone since
        if getattr(module.__dict__.get(slot), "__func__", None) is state.forward:
            if slot == "forward":
                del module.__dict__[slot]
            else:
                module.__dict__[slot] = types.MethodType(type(module).forward, module)
    buffers = cast("dict[str, Tensor]", module._buffers)
    for name, dtype in state.dtypes.items():
        # .to() gives back the very tensor where device and dtype are right already.
        buffers[name] = state.originals.get(name, buffers[name]).to(buffers[name].device, dtype)


def _apply_but_keep_precision(
    self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True
) -> nn.Module:
    """``Module._apply``, the one place through which ``.half()``, ``.to()`` and ``.cuda()`` go.

    The guarded buffers follow the device and keep their dtype.
    """
    state: _State = self.__dict__[_MARK]
    buffers = cast("dict[str, Tensor]", self._buffers)
    exact = {name: buffers[name] for name in state.dtypes}
    type(self)._apply(self, fn, recurse)
    for name, before in exact.items():
        if buffers[name].dtype != before.dtype:
            state.dtypes[name] = buffers[name].dtype
            buffers[name] = before.to(buffers[name].device)
    return self
