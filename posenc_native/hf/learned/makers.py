"""Modules that make tables from positions, run in float64: exact angles by a model's own formula.

A formula in float32 rounds an angle of a thousand radians by 3e-5. Only a model's code defines the
positions of its tokens (rows and columns of an image, frames of a video, fractions of a second) and
the bases of its frequencies. So that code runs on a copy of the module in which every float32 is a
float64, and the tables are rounded once, to the dtype of the model's tables.

    the same bits    it computes in float64 itself, or reads them from a buffer: it is left alone
    nearly the same  the copy's tables are used from now on
    something else   the model's own are used: their meaning is unknown
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from posenc_native.hf.holders import is_followed
from posenc_native.hf.instances import MARK

__all__ = ["exact_forward", "have_same_values", "may_make_tables"]

_NAMED = re.compile(r"rope|rotary|embednd", re.IGNORECASE)
_WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}
# A larger difference than float32's at a hundred thousand radians is not a rounding error.
_FURTHEST = 1e-2
# Among this many numbers from a formula in float32, at least one is rounded differently.
_ENOUGH = 4096


def may_make_tables(module: nn.Module) -> bool:
    """Whether a module may make tables by a formula, judged by its name and lack of weights."""
    named = _NAMED.search(type(module).__name__) is not None
    return named and next(module.parameters(), None) is None


class _InFloat64(TorchFunctionMode):
    """Every float32 is a float64 here: tensors, dtypes and torch's default results."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        arguments, named = tree_map(_wide, (args, kwargs or {}))
        if function in (Tensor.float, Tensor.half, Tensor.bfloat16):
            function = Tensor.double
        result = function(*arguments, **named)
        if isinstance(result, Tensor) and result.dtype in _WIDE:
            # torch makes a float32 from integers and from no tensors.
            if any(isinstance(value, Tensor) for value in tree_flatten((arguments, named))[0]):
                arguments, named = tree_map(_as_floats, (arguments, named))
            else:
                named["dtype"] = torch.float64
            try:
                result = function(*arguments, **named)
            except TypeError:  # it takes no dtype: convert its float32 result
                result = _wide(result)
        return result


def _wide(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return _WIDE.get(value, value)
    return value.to(_WIDE[value.dtype]) if _is_narrow(value) else value


def _as_floats(value: Any) -> Any:
    whole = isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
    return value.double() if whole else value


def _is_narrow(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in _WIDE


class _Copy:
    """A float64 copy of a module, with separate caches; renewed when the module has changed."""

    def __init__(self) -> None:
        self._settings: Any = None
        self._numbers: list[Tensor] = []
        self._copy: nn.Module | None = None

    def of(self, module: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
        settings, numbers = [], []
        for submodule in module.modules():
            settings.append(_settings_of(submodule))
            numbers += _numbers_of(submodule)
        # Values are compared: a write through .data changes neither version nor address.
        if (
            self._copy is None
            or settings != self._settings
            or not all(map(have_same_values, numbers, self._numbers))
        ):
            plain = copy.copy(module)
            # The copy must run the class's own forward, without what was put into the instance.
            for name in ("forward", MARK):
                plain.__dict__.pop(name, None)
            self._copy, self._settings = copy.deepcopy(plain).double(), settings
            self._numbers = [tensor.detach().clone() for tensor in numbers]
        return functools.partial(original, self._copy)


def have_same_values(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are alike: in dtype, device, shape and values."""
    if a.dtype != b.dtype or a.device != b.device or a.shape != b.shape:
        return False
    if a.is_cuda and torch.cuda.is_current_stream_capturing():
        return True  # waiting is not allowed
    size = a.shape[-1] * a.element_size() if a.ndim else 0
    if size and size % 8 == 0 and a.is_contiguous() and b.is_contiguous() and not a.is_conj():
        a, b = a.view(torch.int64), b.view(torch.int64)  # half the time, and NaN is NaN
    return torch.equal(a, b)


_PLAIN = (int, float, str, tuple, list, type(None), torch.dtype, torch.device)


def _settings_of(module: nn.Module) -> Any:
    """The settings that a module computes from, plain ones by value; of tensors only the names."""
    buffers = [name for name, buffer in module._buffers.items() if buffer is not None]
    settings = {
        name: (*value,)
        if isinstance(value, list)
        else value
        if isinstance(value, _PLAIN)
        else Tensor
        if isinstance(value, Tensor)
        else id(value)
        for name, value in vars(module).items()
        if name not in _NOT_ASKED
    }
    return buffers, settings


def _numbers_of(module: nn.Module) -> list[Tensor]:
    """The tensors that a module computes from, in the order of its `_settings_of`."""
    buffers = [buffer for buffer in module._buffers.values() if buffer is not None]
    attributes = (value for name, value in vars(module).items() if name not in _NOT_ASKED)
    return buffers + [value for value in attributes if isinstance(value, Tensor)]


# Attributes of every module; and those put into the instance.
_NOT_ASKED = {*vars(nn.Module()), "forward", MARK} - {"training"}


def exact_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that makes the tables of modules of one class in float64.

    Args:
        original: the class's own. It is called while torch.compile or a transform is active, if
            gradients are recorded for its inputs, and if it turns out to do something else.
    """
    known: dict[Any, dict[bool, torch.dtype] | None] = {}
    copies: weakref.WeakKeyDictionary[nn.Module, _Copy] = weakref.WeakKeyDictionary()

    def exact(self: nn.Module, args: Any, kwargs: Any) -> Any:
        forward = copies.setdefault(self, _Copy()).of(self, original)
        with torch.no_grad(), contextlib.ExitStack() as stack:
            for device in _devices((args, kwargs)):
                stack.enter_context(torch.autocast(device, enabled=False))
            stack.enter_context(_InFloat64())
            return forward(*args, **kwargs)

    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or is_followed():
            return original(self, *args, **kwargs)
        leaves = tree_flatten((args, kwargs))[0]
        key = type(self), *map(_kind, leaves), *map(_autocast, _devices(leaves))
        if key in known:
            dtypes = known[key]
            if dtypes is None:
                return original(self, *args, **kwargs)
            return _rounded(exact(self, args, kwargs), dtypes)
        theirs = original(self, *args, **kwargs)
        if any(x.is_cuda for x in _tensors(theirs)) and torch.cuda.is_current_stream_capturing():
            return theirs  # waiting is not allowed
        try:
            ours = exact(self, args, kwargs)
            dtypes = _dtypes(theirs, ours)
        except Exception:  # any error of a model with float64 inputs
            known[key] = None
            return theirs
        if dtypes is not None:
            ours = _rounded(ours, dtypes)
            if not _are_equal(theirs, ours):
                known[key] = dtypes
                return ours
            if sum(x.numel() for x in _tensors(theirs)) < _ENOUGH:
                return theirs  # among so few numbers, perhaps none needed rounding in between
        known[key] = None
        return theirs

    return forward


def _kind(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.device.type, value.requires_grad and torch.is_grad_enabled()
    return type(value)


def _autocast(device: str) -> Any:
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)


def _devices(value: Any) -> list[str]:
    return [*dict.fromkeys(("cpu", *(tensor.device.type for tensor in _tensors(value))))]


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]


def _dtypes(theirs: Any, ours: Any) -> dict[bool, torch.dtype] | None:
    """The dtypes of a module's real and complex tables; None: leave them alone."""
    own, exact = _tensors(theirs), _tensors(ours)
    if tree_flatten(theirs)[1] != tree_flatten(ours)[1] or len(own) != len(exact):
        return None
    dtypes: dict[bool, torch.dtype] = {}
    for a, b in zip(own, exact, strict=True):
        if not _is_narrow(a):
            if not torch.equal(a, b):
                return None
        elif (
            a.requires_grad
            or a.shape != b.shape
            or dtypes.setdefault(a.is_complex(), a.dtype) != a.dtype
            or not float((a.to(b.dtype) - b).abs().max()) <= _FURTHEST
        ):
            return None
    return dtypes


def _rounded(tables: Any, dtypes: dict[bool, torch.dtype]) -> Any:
    def rounded(table: Any) -> Any:
        if not isinstance(table, Tensor) or table.dtype not in _WIDE.values():
            return table
        return table.to(dtypes.get(table.is_complex(), table.dtype))

    return tree_map(rounded, tables)


def _are_equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(_tensors(a), _tensors(b), strict=True))
