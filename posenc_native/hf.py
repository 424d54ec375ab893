"""Let a loaded transformers model rotate its queries and keys through this library.

::

    from posenc_native import hf

    handle = hf.patch(model)     # generate, train, compile: as before, with an exact phase
    handle.undo()                # every module is as it was

    with hf.patch(model):        # the same for a while
        model.generate(...)

What a transformers model does: a rotary-embedding module turns position ids into cos and sin in
float32 (off by about ``position * 2**-24``: 5e-3 at 128k), rounds them to the model's dtype, and
every attention module hands them with q and k to a function of its file, ``apply_rotary_pos_emb``.
After `patch` the first computes exact cos and sin of half width in float32
(`posenc_native.rotary_tables`), the second calls `posenc_native.apply_rotary_tables`.

Only instances are touched, never a class or a module of transformers. The rotary-embedding module
gets an instance-level ``forward``; an attention module gets one that is the same code with other
globals, in which the rotary function is replaced. So everything else those modules do (caches,
attention backends, scalings that change with the length) is still transformers' own.

How a model pairs the dimensions of a head, whether it rotates a part of them, and how its tables
are laid out is not looked up in a list of names. It is found by probing the model's own functions
with small tensors. A part of a model that does not answer like any known form is left alone.
"""

from __future__ import annotations

import copy
import inspect
import itertools
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

from .rotary import apply_rotary_tables, rotary_tables

__all__ = ["Patch", "patch", "unpatch"]

_MARK = "_posenc_native"  # the attribute of a patched module that says how to restore it

# How a table of P values a token may be widened for a function that multiplies a head by it.
_FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "halves": lambda table: torch.cat((table, table), dim=-1),
    "pairs": lambda table: table.repeat_interleave(2, dim=-1),
    "plain": lambda table: table,
}

# "deinterleaved": takes pairs 2i, 2i + 1 and gives them as i, i + P (DeepSeek-V3).
_PAIRINGS = ("half", "interleaved", "deinterleaved")

# Where unsqueeze_dim puts the axis of heads into a table [b, s, P].
_LAYOUTS = {1: "bhsd", -3: "bhsd", 2: "bshd", -2: "bshd"}

# GPT-J gathers its tables and casts them to the dtype of the model. As a sum of three values of 8
# significant bits, a float32 number goes through bfloat16 unharmed.
_PIECES = 3


class _NotServedError(Exception):
    """Why a module is left alone."""


def patch(model: nn.Module) -> Patch:
    """Make `model` rotate its queries and keys through this library.

    Args:
        model: a transformers model, or any module that contains one (a wrapper, an adapter).
            Weights and buffers must be loaded (not on the meta device).

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
        plan = _plan_group({name: modules[name] for name in members})
        if isinstance(plan, str):
            skipped.update(dict.fromkeys(members, plan))
        else:
            plans.update(plan)
    if not plans:
        raise ValueError(_nothing_to_patch(model, skipped))
    for name, plan in plans.items():
        _install(modules[name], plan)
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


# --- what is put into a module, and taken out again -----------------------------------------------


@dataclass
class _Plan:
    """What one module gets: a forward, and buffers that must keep their precision."""

    forward: Callable[..., Any]
    buffers: dict[str, Tensor] = field(default_factory=dict)  # new values, exact
    guarded: tuple[str, ...] = ()  # buffers that no .half() may round
    keep_originals: bool = False  # the buffers mean something else now: put the old ones back


@dataclass
class _State:
    """How to restore one module."""

    slot: str  # the instance attribute that holds the new forward ...
    previous: Callable[..., Any] | None  # ... and what it held before, if anything
    dtypes: dict[str, torch.dtype]  # what the guarded buffers would be without the guard
    originals: dict[str, Tensor]


def _slot(module: nn.Module) -> str:
    """The instance attribute through which ``forward`` of this module is to be replaced.

    accelerate's hooks keep the real one in ``_old_forward`` and must stay outside of it.
    """
    if "_old_forward" in module.__dict__:
        return "_old_forward"
    if "forward" in module.__dict__:
        raise _NotServedError("its forward has been replaced by something else already")
    return "forward"


def _install(module: nn.Module, plan: _Plan) -> None:
    slot = _slot(module)
    buffers = module._buffers
    state = _State(
        slot=slot,
        previous=module.__dict__.get(slot),
        dtypes={name: cast(Tensor, buffers[name]).dtype for name in plan.guarded},
        originals={name: cast(Tensor, buffers[name]) for name in plan.buffers}
        if plan.keep_originals
        else {},
    )
    buffers.update(plan.buffers)
    # Bound methods, not closures over the module: copy.deepcopy binds them to the copy.
    module.__dict__[_MARK] = state
    module.__dict__[slot] = types.MethodType(plan.forward, module)
    if plan.guarded:
        module.__dict__["_apply"] = types.MethodType(_apply_but_keep_precision, module)


def _restore(module: nn.Module) -> None:
    state: _State | None = module.__dict__.pop(_MARK, None)
    if state is None:
        return
    module.__dict__.pop("_apply", None)
    if state.previous is None:
        del module.__dict__[state.slot]
    else:
        module.__dict__[state.slot] = state.previous
    for name, dtype in state.dtypes.items():
        buffer = cast(Tensor, module._buffers[name])
        # .to() gives back the very tensor where device and dtype are right already.
        module._buffers[name] = state.originals.get(name, buffer).to(buffer.device, dtype)


def _apply_but_keep_precision(
    self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True
) -> nn.Module:
    """``Module._apply``, the one place through which ``.half()``, ``.to()`` and ``.cuda()`` go.

    The guarded buffers follow the device and keep their dtype.
    """
    state: _State = self.__dict__[_MARK]
    exact = {name: cast(Tensor, self._buffers[name]) for name in state.dtypes}
    type(self)._apply(self, fn, recurse)  # type: ignore[no-untyped-call]
    for name, before in exact.items():
        after = cast(Tensor, self._buffers[name])
        if after.dtype != before.dtype:
            state.dtypes[name] = after.dtype
            self._buffers[name] = before.to(after.device)
    return self


# --- finding what belongs together ----------------------------------------------------------------


def _groups(modules: dict[str, nn.Module]) -> Iterator[list[str]]:
    """Names of modules that share tables: rotary-embedding modules and who uses their output.

    An attention module gets its tables from the nearest module above it (or from itself) that holds
    rotary-embedding modules. One that keeps its own table is a group by itself.
    """
    holders: dict[str, list[str]] = {}  # name of the holder -> its rotary-embedding modules
    for name, module in modules.items():
        if _table_names(module):
            holder = name.rpartition(".")[0]
            while isinstance(modules[holder], (nn.ModuleList, nn.ModuleDict)) and holder:
                holder = holder.rpartition(".")[0]
            holders.setdefault(holder, []).append(name)
    calls = {c: bool(_rotary_functions(c)) for c in {type(module) for module in modules.values()}}
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


def _table_names(module: nn.Module) -> list[str]:
    """What stands before ``inv_freq`` in the buffers of a rotary-embedding module; else nothing.

    Most have ``inv_freq`` itself. Models with several kinds of layer (Gemma 3) have one a kind:
    ``sliding_attention_inv_freq``, ``full_attention_inv_freq``.
    """
    return [
        name.removesuffix("inv_freq")
        for name, buffer in module._buffers.items()
        if name.endswith("inv_freq")
        and not name.endswith("original_inv_freq")
        and buffer is not None
        and buffer.ndim == 1
    ]


def _rotary_functions(module_class: type[nn.Module]) -> dict[str, Callable[..., Any]]:
    """Functions with arguments cos and sin that ``forward`` of this class calls by a global name.

    Theirs is the order (cos, sin) or (sin, cos), and they take one tensor or q and k before.
    """
    forward = inspect.unwrap(module_class.forward)
    if not isinstance(forward, types.FunctionType):
        return {}
    found = {}
    for name in _global_names(forward.__code__):
        function = forward.__globals__.get(name)
        if callable(function) and not isinstance(function, type):
            try:
                parameters = inspect.signature(function).parameters
            except (TypeError, ValueError):
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
        classes = sorted({type(m).__name__ for m in model.modules()} - set(dir(nn)))
        found = f"none that does; its classes are {', '.join(classes) or 'torch.nn only'}"
    return (
        f"patch: model: expected a model whose attention calls a rotary function "
        f"(apply_rotary_pos_emb or another with arguments cos and sin), got {found}"
    )


# --- the plan for a group -------------------------------------------------------------------------


def _plan_group(members: dict[str, nn.Module]) -> dict[str, _Plan] | str:
    """What every module of a group gets, or why they are left alone."""
    try:
        return _plan_members(members)
    except _NotServedError as reason:
        return str(reason)


def _plan_members(members: dict[str, nn.Module]) -> dict[str, _Plan]:
    for module in members.values():
        _slot(module)
    plans: dict[str, _Plan] = {}
    forms: set[str] = set()
    widths: set[int] = set()  # pairs a head
    for name, module in members.items():
        if _table_names(module):
            plans[name], form_of_tables, sizes = _plan_tables(module)
            forms.add(form_of_tables)
            widths |= sizes
    users = {name: module for name, module in members.items() if name not in plans}
    if not users:
        raise _NotServedError("no attention module around it calls a rotary function")
    if not plans:
        return {name: _plan_with_own_table(module) for name, module in users.items()}
    form = forms.pop()
    if forms:
        raise _NotServedError("the tables it gets have different forms")
    # One new function a class: torch.compile then traces every layer of it as the same code.
    forwards: dict[type, Callable[..., Any]] = {}
    for module in users.values():
        if type(module) not in forwards:
            forwards[type(module)] = _with_functions(
                type(module).forward,
                {
                    name: _rotary_function(function, form, frozenset(widths))
                    for name, function in _rotary_functions(type(module)).items()
                },
            )
    plans.update({name: _Plan(forwards[type(module)]) for name, module in users.items()})
    return plans


def _plan_tables(module: nn.Module) -> tuple[_Plan, str, set[int]]:
    """The plan for a rotary-embedding module, the form of its tables and their pairs a head."""
    original = inspect.unwrap(type(module).forward)
    names = _table_names(module)
    if "position_ids" not in inspect.signature(original).parameters:
        raise _NotServedError(f"{type(module).__name__}.forward takes no position_ids")
    if any(True for _ in module.parameters()) or not all(
        name.endswith("inv_freq") for name, _ in module.named_buffers()
    ):
        raise _NotServedError(f"{type(module).__name__} has parameters or other buffers")
    exact = _exact_frequencies(module)
    probe = copy.deepcopy(module).cpu()
    probe._buffers.update({name: buffer.cpu() for name, buffer in exact.items()})
    axes, form, axis_map = _table_form(probe, names)
    new = _rewrap(type(module).forward, lambda _: _exact_forward(names, axes, axis_map))
    _check_tables(probe, new, names, form, axes)
    guarded = tuple(name for name in module._buffers if name.endswith("inv_freq"))
    sizes = {len(cast(Tensor, module._buffers[name + "inv_freq"])) for name in names}
    return _Plan(new, exact, guarded), form, sizes


def _exact_frequencies(module: nn.Module) -> dict[str, Tensor]:
    """Buffers of a rotary-embedding module that have been cast, again as they were in float32."""
    fresh: nn.Module | None = None
    exact: dict[str, Tensor] = {}
    for name, buffer in module._buffers.items():
        if buffer is None or not name.endswith("inv_freq"):
            continue
        if buffer.is_meta:
            raise _NotServedError(f"its {name} is on the meta device: load the weights first")
        if buffer.dtype in (torch.float32, torch.float64):
            continue
        if fresh is None:
            try:
                with torch.device("cpu"):
                    fresh = cast(Any, type(module))(module.config)
            except Exception:  # whatever a constructor may raise: the cast values are what we have
                fresh = nn.Module()
        value = fresh._buffers.get(name)
        # Values that somebody else has set are not ours to correct.
        if value is None or not torch.equal(value.to(buffer.dtype), buffer.cpu()):
            value = buffer.float()
        exact[name] = value.to(buffer.device)
    return exact


def _exact_forward(
    names: list[str], axes: int | None, axis_map: Tensor | None
) -> Callable[..., tuple[Tensor, Tensor]]:
    """The innermost forward of a rotary-embedding module, below its decorators."""

    def forward(
        self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        name = names[0] if layer_type is None or names == [""] else f"{layer_type}_"
        if axes is not None:
            position_ids = position_ids.expand(axes, -1, -1)
        return rotary_tables(
            position_ids,
            getattr(self, name + "inv_freq"),
            axis_map=None if axis_map is None else axis_map.to(position_ids.device),
            scale=getattr(self, name + "attention_scaling", 1.0),
            dtype=torch.float64 if x.dtype == torch.float64 else torch.float32,
        )

    return forward


def _call_tables(
    forward: Callable[..., Any], module: nn.Module, name: str, positions: Tensor
) -> tuple[Tensor, Tensor]:
    kwargs = {"layer_type": name[:-1]} if name else {}
    result = forward(module, torch.zeros(1), position_ids=positions, **kwargs)
    if not (
        isinstance(result, tuple)
        and len(result) == 2
        and all(isinstance(table, Tensor) and table.is_floating_point() for table in result)
    ):
        raise _NotServedError(f"{type(module).__name__} does not return a pair (cos, sin)")
    return result


def _table_form(probe: nn.Module, names: list[str]) -> tuple[int | None, str, Tensor | None]:
    """How many position axes a rotary-embedding module takes, how it widens a table, its axis map.

    The axes are None where one position belongs to a token.
    """
    forward, name = type(probe).forward, names[0]
    frequencies = cast(Tensor, probe._buffers[name + "inv_freq"])
    tokens = torch.tensor([1, 2, 5, 13, 400, 1200])
    one_axis = _expect_tables(forward, probe, name, tokens[None])
    for axes in (2, 3, 4):
        # Every axis has other positions, so every pair of dimensions shows which one drives it.
        positions = torch.stack([tokens + axis * (tokens + 7) for axis in range(axes)])[:, None]
        try:
            cos, sin = _call_tables(forward, probe, name, positions)
        except (RuntimeError, IndexError, ValueError):
            continue
        if cos.ndim == 3:
            scale = getattr(probe, name + "attention_scaling", 1.0)
            table = torch.cat(rotary_tables(positions, frequencies, scale=scale), dim=-2)
            for form, widen in _FORMS.items():
                wide = widen(table)  # [axes, 1, cos and sin: 2 * tokens, width]
                if wide.shape[-1] == cos.shape[-1]:
                    difference = (wide - torch.cat((cos, sin), dim=-2)).abs().amax(dim=(1, 2))
                    found = difference.argmin(dim=0)  # [width]: an axis each
                    if torch.equal(widen(narrow := _narrow(found, form)), found):
                        return axes, form, narrow.contiguous()
            raise _NotServedError(f"{type(probe).__name__} mixes position axes in an unknown way")
    for form, widen in _FORMS.items():
        table, _ = rotary_tables(tokens[None], frequencies)
        if widen(table).shape == one_axis[0].shape and torch.allclose(
            widen(_narrow(one_axis[1], form)), one_axis[1], rtol=0, atol=1e-6
        ):
            return None, form, None
    raise _NotServedError(f"{type(probe).__name__} makes tables of an unknown form")


def _expect_tables(
    forward: Callable[..., Any], module: nn.Module, name: str, positions: Tensor
) -> tuple[Tensor, Tensor]:
    try:
        return _call_tables(forward, module, name, positions)
    except (RuntimeError, IndexError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise _NotServedError(
            f"{type(module).__name__} cannot be probed with positions "
            f"{list(positions.shape)}: {error}"
        ) from error


def _narrow(wide: Tensor, form: str) -> Tensor:
    """The table from which `_FORMS` makes the wide one."""
    if form == "halves":
        return wide[..., : wide.shape[-1] // 2]
    return wide[..., ::2] if form == "pairs" else wide


def _check_tables(
    probe: nn.Module, new: Callable[..., Any], names: list[str], form: str, axes: int | None
) -> None:
    """The new forward of a rotary-embedding module must give what the old one gives, but better."""
    # Beyond the trained length some scalings change their frequencies and their factor.
    beyond = 2 * int(getattr(probe, "max_seq_len_cached", 0)) + 3
    for name, last in itertools.product(names, (40, beyond)):
        frequencies = cast(Tensor, probe._buffers[name + "inv_freq"])
        phase_error = last * float(frequencies.abs().max()) * 2.0**-23  # of the old one, in radians
        if phase_error > 0.25:
            continue
        positions = torch.tensor([[0, 1, 3, last // 2, last]])
        if axes is not None:
            positions = torch.stack([positions + axis for axis in range(axes)])
        old = _expect_tables(type(probe).forward, copy.deepcopy(probe), name, positions)
        exact = _expect_tables(new, copy.deepcopy(probe), name, positions)
        scale = max(1.0, float(old[0].abs().max()))
        for a, b in zip(old, exact, strict=True):
            b = _FORMS[form](b)
            if a.shape != b.shape or float((a - b).abs().max()) > scale * (1e-5 + phase_error):
                raise _NotServedError(f"{type(probe).__name__} computes its tables in its own way")


# --- attention: the same code with another rotary function ----------------------------------------


def _rewrap(
    function: Callable[..., Any],
    replace: Callable[[types.FunctionType], Callable[..., Any]],
) -> Callable[..., Any]:
    """`replace` applied to the innermost function, with the same decorators around the result."""
    if not isinstance(function, types.FunctionType):
        raise _NotServedError(f"its forward is not a plain function but {function!r}")
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is None:
        return replace(function)
    inner = _rewrap(wrapped, replace)
    cells = list(function.__closure__ or ())
    held = [i for i, cell in enumerate(cells) if cell.cell_contents is wrapped]
    if not held:
        raise _NotServedError(f"a decorator hides its forward: {function.__qualname__}")
    for i in held:
        cells[i] = types.CellType(inner)
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
    result.__kwdefaults__ = function.__kwdefaults__
    result.__qualname__ = function.__qualname__
    result.__module__ = function.__module__
    result.__doc__ = function.__doc__
    result.__annotations__ = function.__annotations__
    result.__dict__.update(function.__dict__)
    return result


@dataclass(frozen=True)
class _Rotation:
    """What a model's rotary function does, in the words of `apply_rotary_tables`."""

    pairing: str  # one of _PAIRINGS
    inverse: bool = False
    part: str = "whole"  # of a head wider than the table: "leading", "trailing"; "whole": an error

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
        width = 2 * cos.shape[-1]
        if self.part == "whole" and x.shape[-1] != width:
            raise ValueError(f"patched model: expected heads of size {width}, got {x.shape[-1]}")
        if cos.shape[0] == 1:  # the same positions for the whole batch
            cos, sin = cos[0], sin[0]
        pairing = self.pairing
        if pairing == "deinterleaved":
            x, pairing = torch.cat((x[..., ::2], x[..., 1::2]), dim=-1), "half"
        return cast(
            Tensor,
            apply_rotary_tables(
                x,
                cos,
                sin,
                layout=layout,
                pairing=pairing,
                rotary_start=x.shape[-1] - width if self.part == "trailing" else 0,
                inverse=self.inverse,
            ),
        )


def _rotary_function(
    original: Callable[..., Any], form: str, widths: frozenset[int], pieces: int = 1
) -> Callable[..., Any]:
    """A function with the arguments of `original` that takes the tables of a patched model.

    Args:
        original: the model's function; it is probed here.
        form: how the model widens its tables, a key of `_FORMS`.
        widths: the pairs a head that tables of the model have; another width is an error, because
            then the model has cut a table to a size meant for its own form.
        pieces: the parts of which a table is the sum, side by side.
    """
    parameters = inspect.signature(original).parameters
    names = list(parameters)
    tensors = names[: min(names.index("cos"), names.index("sin"))]
    rest = [parameters[name] for name in names[len(tensors) + 2 :]]
    if (
        set(names[len(tensors) : len(tensors) + 2]) != {"cos", "sin"}
        or len(tensors) not in (1, 2)
        or any(parameters[name].default is not inspect.Parameter.empty for name in tensors)
        or any(p.default is inspect.Parameter.empty for p in rest)
    ):
        raise _NotServedError(f"{_title(original)} has unknown arguments: {', '.join(names)}")
    if "unsqueeze_dim" in parameters:
        default = parameters["unsqueeze_dim"].default
        rotation = _probe(original, tensors, names, form, {"unsqueeze_dim": 1}, "bhsd")
        if _probe(original, tensors, names, form, {"unsqueeze_dim": 2}, "bshd") != rotation:
            raise _NotServedError(f"{_title(original)} depends on unsqueeze_dim in its own way")
    else:  # GPT-J
        default = 2
        rotation = _probe(original, tensors, names, form, {}, "bshd")

    def rotary(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        cos, sin = given["cos"], given["sin"]
        if pieces > 1:
            cos = sum(cos.float().chunk(pieces, dim=-1))
            sin = sum(sin.float().chunk(pieces, dim=-1))
        if cos.shape[-1] not in widths:
            raise ValueError(
                f"patched model: expected tables of {sorted(widths)} pairs, got {cos.shape[-1]}"
            )
        layout = _LAYOUTS[given.get("unsqueeze_dim", default)]
        if len(tensors) == 1:
            return rotation(given[tensors[0]], cos, sin, layout)
        return tuple(rotation(given[name], cos, sin, layout) for name in tensors)

    rotary.__name__ = getattr(original, "__name__", "rotary")
    return rotary


def _title(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _probe(
    original: Callable[..., Any],
    tensors: list[str],
    names: list[str],
    form: str,
    kwargs: dict[str, int],
    layout: str,
) -> _Rotation:
    """What rotation a model's function does, found by comparing results on random numbers."""
    batch, tokens, pairs, rest = 2, 3, 4, 6
    random = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, device="cpu")

    def head(heads: int, size: int) -> Tensor:
        x = numbers(batch, heads, tokens, size)
        return x.transpose(1, 2) if layout == "bshd" else x

    def results(inputs: list[Tensor]) -> list[Tensor]:
        wide = {"cos": _FORMS[form](cos), "sin": _FORMS[form](sin)}
        given = dict(zip(tensors, inputs, strict=True)) | wide | kwargs
        # By position, as the models call them; kwargs by name.
        outputs = original(*(given[n] for n in names[: len(tensors) + 2]), **kwargs)
        return [outputs] if isinstance(outputs, Tensor) else list(outputs)

    def agrees(rotation: _Rotation, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
        expected = [rotation(x, cos, sin, layout) for x in inputs]
        return len(expected) == len(outputs) and all(
            a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5)
            for a, b in zip(expected, outputs, strict=True)
        )

    def find(size: int, parts: tuple[str, ...]) -> _Rotation | None:
        inputs = [head(heads, size) for heads in (2, 1)[: len(tensors)]]
        outputs = results(inputs)
        for pairing, inverse, part in itertools.product(_PAIRINGS, (False, True), parts):
            rotation = _Rotation(pairing, inverse, part)
            if agrees(rotation, inputs, outputs):
                return rotation
        return None

    cos, sin = numbers(batch, tokens, pairs), numbers(batch, tokens, pairs)
    try:
        exact_fit = find(2 * pairs, ("whole",))
    except Exception as error:
        raise _NotServedError(f"{_title(original)} cannot be probed: {error}") from error
    if exact_fit is None:
        raise _NotServedError(f"{_title(original)} rotates in an unknown way")
    try:
        wider = find(2 * pairs + rest, ("leading", "trailing"))
    except Exception:  # it takes nothing but whole heads
        return exact_fit
    if wider is None:
        raise _NotServedError(f"{_title(original)} rotates a part of a head in an unknown way")
    return wider


# --- GPT-J and CodeGen: a table in every attention module -----------------------------------------


def _plan_with_own_table(module: nn.Module) -> _Plan:
    """The plan for an attention module that gathers sin and cos from ``embed_positions``.

    That buffer is [positions, sin and cos: 2 * P], the forward gathers rows of it by position and
    casts them to the dtype of the model. It gets an exact table instead, in pieces that survive
    the cast.
    """
    table = module._buffers.get("embed_positions")
    if table is None or table.ndim != 2 or table.shape[1] % 2:
        raise _NotServedError(
            f"{type(module).__name__} has no rotary embedding above it and no embed_positions"
        )
    if table.is_meta:
        raise _NotServedError("its embed_positions is on the meta device: load the weights first")
    count, width = table.shape
    # In float32, and in these steps, as transformers.models.gptj does it.
    inverse = 1.0 / (10000 ** (torch.arange(0, width, 2, dtype=torch.int64, device="cpu") / width))
    cos, sin = rotary_tables(torch.arange(count, device="cpu"), inverse)
    rows = min(count, 64)
    tolerance = 1e-4 if table.dtype == torch.float32 else 1e-2
    if not torch.allclose(
        torch.cat((sin, cos), dim=1)[:rows], table[:rows].float().cpu(), rtol=0, atol=tolerance
    ):
        raise _NotServedError(f"{type(module).__name__} computes its tables in its own way")
    exact = torch.cat((_in_pieces(sin), _in_pieces(cos)), dim=1).to(table.device)
    functions = {
        name: _rotary_function(function, "plain", frozenset({width // 2}), pieces=_PIECES)
        for name, function in _rotary_functions(type(module)).items()
    }
    return _Plan(
        _with_functions(type(module).forward, functions),
        {"embed_positions": exact},
        ("embed_positions",),
        keep_originals=True,
    )


def _in_pieces(table: Tensor) -> Tensor:
    """A float32 table as `_PIECES` tables of bfloat16 numbers side by side, whose sum it is."""
    pieces = []
    for _ in range(_PIECES):
        piece = table.bfloat16().float()
        pieces.append(piece)
        table = table - piece
    return torch.cat(pieces, dim=-1)
