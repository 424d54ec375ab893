"""Autograd of the operators.

Rotation is linear: its backward is the same operator, turned the other way, and may be
differentiated again. The derivative of a sinusoidal table by its positions is made of its own
entries. Each operator has up to three Functions:

    traced     with setup_context, the only form that torch.func takes and that compiles; its apply
               inspects signatures, which takes longer than a small rotation
    eager      with everything in forward, for ordinary training
    in place   the eager one, overwriting its inputs

Gradients of a backward go to memory of their own. To turn the incoming one where it lies would take
half the time for large ones, but whether somebody else holds it cannot be known: counts of
references, which have no public name, leave out memory shared by NumPy, DLPack or processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import arguments

_ops = torch.ops.posenc_native
Function = torch.autograd.Function


def call(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator's result; its errors as the exceptions they stand for."""
    try:
        return operator(*args, **kwargs)
    except RuntimeError as error:
        raise_ours(error)


def raise_ours(error: RuntimeError) -> NoReturn:
    """Raise what the error stands for: operators raise RuntimeError; ours say what they mean."""
    text = str(error)
    for kind in (ValueError, TypeError):
        if text.startswith(f"{kind.__name__}: "):
            raise kind(text.removeprefix(f"{kind.__name__}: ")) from None
    # Past the stable ABI torch's own errors have lost their kind; this one is worth having.
    if "empty" in text and "API call failed" in text:
        raise torch.OutOfMemoryError("posenc_native: no memory for the result") from error
    raise error


def needs_grad(*tensors: Tensor) -> bool:
    """Whether autograd has to record an operation on these tensors."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def needs_function(*tensors: Tensor) -> bool:
    """Whether an operator has to be called through its Function.

    For autograd, and for forward mode and torch.func: Functions refuse or follow those, where an
    operator by itself would lose tangents.
    """
    return transformed() or needs_grad(*tensors)


def transformed() -> bool:
    """Whether forward mode or a transform of torch.func is going on."""
    return forward_ad._current_level >= 0 or functorch_active()


def tracing() -> bool:
    """Whether torch.compile, torch.export or a torch.func transform is going on."""
    return torch.compiler.is_compiling() or functorch_active()


functorch_active: Callable[[], bool] = getattr(
    torch._C, "_are_functorch_transforms_active", lambda: False
)


def rotary(x: Tensor, *options: Any) -> Tensor:
    """Differentiable ``rotary(x, positions, inv_freq, ..., inverse)``."""
    if not needs_function(x):
        return call(_ops.rotary.default, x, *options)  # type: ignore[no-any-return]
    function = _RotaryTraced if tracing() else _RotaryEager
    return function.apply(x, *options)  # type: ignore[no-any-return]


def rotary_qk(q: Tensor, k: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """Differentiable ``rotary_qk(q, k, positions, inv_freq, ..., inverse)``."""
    if not needs_function(q, k):
        return call(_ops.rotary_qk.default, q, k, *options)  # type: ignore[no-any-return]
    if q is k and tracing():  # which torch.compile does not allow a Function
        rotated = rotary(q, *options)
        return rotated, rotated
    function = _RotaryQKTraced if tracing() else _RotaryQKEager
    return function.apply(q, k, *options)  # type: ignore[no-any-return]


def learned_rotary(x: Tensor, *options: Any) -> Tensor:
    """`rotary`, differentiable with respect to frequencies and positions too."""
    return apply(_Learned, x, *options)  # type: ignore[no-any-return]


def learned_rotary_qk(q: Tensor, k: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """`rotary_qk`, differentiable with respect to frequencies and positions too."""
    if q is k and tracing():  # as in rotary_qk
        rotated = learned_rotary(q, *options)
        return rotated, rotated
    return apply(_LearnedQK, q, k, *options)  # type: ignore[no-any-return]


def rotary_from_tables(x: Tensor, *options: Any) -> Tensor:
    """Differentiable ``rotary_from_tables(x, cos, sin, ..., inverse)``."""
    if not needs_function(x):
        return call(_ops.rotary_from_tables.default, x, *options)  # type: ignore[no-any-return]
    function = _FromTablesTraced if tracing() else _FromTablesEager
    return function.apply(x, *options)  # type: ignore[no-any-return]


def rotary_qk_from_tables(q: Tensor, k: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """Differentiable ``rotary_qk_from_tables(q, k, cos, sin, ..., inverse)``."""
    if not needs_function(q, k):
        return call(_ops.rotary_qk_from_tables.default, q, k, *options)  # type: ignore[no-any-return]
    if q is k and tracing():  # as above
        rotated = rotary_from_tables(q, *options)
        return rotated, rotated
    function = _QKFromTablesTraced if tracing() else _QKFromTablesEager
    return function.apply(q, k, *options)  # type: ignore[no-any-return]


def sinusoidal(positions: Tensor, *spec: Any) -> Tensor:
    """Differentiable ``sinusoidal(positions, dim, base, layout, shift, scale, dtype)``."""
    if not (positions.is_floating_point() and needs_function(positions)):
        return call(_ops.sinusoidal.default, positions, *spec)  # type: ignore[no-any-return]
    function = _SinusoidalTraced if tracing() else _SinusoidalEager
    return function.apply(positions, *spec)  # type: ignore[no-any-return]


def add_sinusoidal(x: Tensor, positions: Tensor | None, *options: Any) -> Tensor:
    """Differentiable ``add_sinusoidal(x, positions, x_scale, ...)``."""
    options = (positions, *options)
    if not needs_function(x) and (positions is None or not needs_grad(positions)):
        return call(_ops.add_sinusoidal.default, x, *options)  # type: ignore[no-any-return]
    function = _AddTraced if tracing() else _AddEager
    return function.apply(x, *options)  # type: ignore[no-any-return]


# --- Relative. Calls that want a gradient are those of training, on whole matrices: what the eager
# form of a Function would save does not count. torch.func and forward mode take the composition.
# Lengths are not kept for the backward, which torch.compile would lose where they are open: tensors
# have them.

# q_len, k_len and start as the operators take them, None where tensors say them; q_offset.
Grid = tuple[list[int] | None, list[int] | None, list[int] | None, Tensor | None]


def toeplitz_bias(diagonals: Tensor, shape: tuple[int, ...], dtype: Any, grid: Grid) -> Tensor:
    """Differentiable bias of a shape and dtype."""
    if needs_grad(diagonals):
        return apply(_Toeplitz, diagonals, shape, dtype, *grid)  # type: ignore[no-any-return]
    return _lay_diagonals(diagonals, shape, dtype, grid)


def add_toeplitz_bias(scores: Tensor, diagonals: Tensor, *grid: Any) -> Tensor:
    """Differentiable ``add_toeplitz_bias(scores, diagonals, q_len, k_len, start, q_offset)``."""
    if needs_grad(scores, diagonals):
        return apply(_AddToeplitz, scores, diagonals, *grid)  # type: ignore[no-any-return]
    return call(_ops.add_toeplitz_bias.default, scores, diagonals, *grid)  # type: ignore[no-any-return]


def diagonal_sums(grad: Tensor, shape: tuple[int, ...], grid: Grid) -> Tensor:
    """Differentiable sums of the shape of the diagonals."""
    if needs_grad(grad):
        return apply(_DiagonalSums, grad, shape, *grid)  # type: ignore[no-any-return]
    return _sum_diagonals(grad, shape, grid)


def relative_gather(x: Tensor, content: Tensor | None, k_len: int, *options: Any) -> Tensor:
    """Differentiable gather; options are index, start, q_offset, missing, scale."""
    if needs_grad(x) or (content is not None and needs_grad(content)):
        return apply(_Gather, x, content, k_len, *options)  # type: ignore[no-any-return]
    return _gather(x, content, k_len, options)


def relative_scatter(grad: Tensor, width: int, *options: Any) -> Tensor:
    """Differentiable scatter; options as those of the gather."""
    if needs_grad(grad):
        return apply(_Scatter, grad, width, *options)  # type: ignore[no-any-return]
    return _scatter(grad, width, options)


def _lay_diagonals(
    diagonals: Tensor, shape: tuple[int, ...], dtype: Any, grid: tuple[Any, ...]
) -> Tensor:
    if not tracing():
        return call(_ops.toeplitz_bias.default, diagonals, shape, dtype, *grid)  # type: ignore[no-any-return]
    out = diagonals.new_empty(shape, dtype=dtype)
    call(_ops.toeplitz_bias_out.default, diagonals, *grid, out=out)
    return out


def _axes(q_len: list[int] | None) -> int:
    return 1 if q_len is None else len(q_len)


def _sum_diagonals(grad: Tensor, shape: tuple[int, ...], grid: tuple[Any, ...]) -> Tensor:
    q_len, k_len, start, q_offset = grid
    keep = len(shape) - _axes(q_len)
    entries = None if start is None else list(shape[keep:])  # None: as many as there are distances
    sums = call(_ops.diagonal_sums.default, grad, keep, q_len, k_len, entries, start, q_offset)
    repeated = [axis for axis in range(keep) if shape[axis] == 1 and sums.shape[axis] != 1]
    return sums.sum(repeated, keepdim=True) if repeated else sums  # type: ignore[no-any-return]


def _gather(x: Tensor, content: Tensor | None, k_len: int, options: tuple[Any, ...]) -> Tensor:
    *columns, scale = options
    if not tracing():
        return call(_ops.relative_gather.default, x, *columns, content, scale, k_len)  # type: ignore[no-any-return]
    out = x.new_empty((*x.shape[:-1], k_len))
    call(_ops.relative_gather_out.default, x, *columns, content, scale, out=out)
    return out


def _scatter(grad: Tensor, width: int, options: tuple[Any, ...]) -> Tensor:
    if not tracing():
        by_column = _by_column(options[0], width)
        return call(_ops.relative_scatter.default, grad, *options, *by_column, width)  # type: ignore[no-any-return]
    out = grad.new_empty((*grad.shape[:-1], width))
    scatter_into(out, grad, *options)
    return out


def scatter_into(out: Tensor, grad: Tensor, *options: Any) -> None:
    """``relative_scatter`` with a result."""
    by_column = _by_column(options[0], out.shape[-1])
    call(_ops.relative_scatter_out.default, grad, *options, *by_column, out=out)


def _by_column(index: Tensor | None, width: int) -> tuple[Tensor | None, Tensor | None]:
    """On a GPU, the entries of the index sorted by column, and where each column begins."""
    if index is None or index.is_cpu:
        return None, None
    # Where an index of `missing` goes does not matter: before all columns, or behind them.
    by_column, order = torch.sort(index.long(), stable=True)
    return order, torch.searchsorted(by_column, torch.arange(width + 1, device=index.device))


def _shape_of(x: Tensor) -> Tensor:
    """A tensor of the shape of x that keeps none of its memory."""
    return x.detach().new_empty(()).expand(x.shape)


class _Toeplitz(Function):
    @staticmethod
    def forward(diagonals: Tensor, shape: Any, dtype: Any, *grid: Any) -> Any:
        return _lay_diagonals(diagonals, shape, dtype, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, (_shape_of(inputs[0]), *inputs[3:]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        diagonals, *grid = _saved(ctx)
        sums = diagonal_sums(grad, tuple(diagonals.shape), tuple(grid))
        return sums.to(diagonals.dtype), *[None] * 6


def _add_toeplitz_backward(ctx: Any, grad: Tensor) -> Any:
    diagonals, *grid = _saved(ctx)
    sums = None
    if ctx.needs_input_grad[1]:
        sums = diagonal_sums(grad, tuple(diagonals.shape), tuple(grid)).to(diagonals.dtype)
    return grad if ctx.needs_input_grad[0] else None, sums, *[None] * 4


class _AddToeplitz(Function):
    @staticmethod
    def forward(scores: Tensor, diagonals: Tensor, *grid: Any) -> Any:
        return call(_ops.add_toeplitz_bias.default, scores, diagonals, *grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, inputs[1:])

    backward = staticmethod(_add_toeplitz_backward)


class _DiagonalSums(Function):
    @staticmethod
    def forward(grad: Tensor, shape: Any, *grid: Any) -> Any:
        return _sum_diagonals(grad, shape, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, (_shape_of(inputs[0]), *inputs[2:]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        matrices, *grid = _saved(ctx)
        leading, q_offset = matrices.shape[:-2], grid[3]
        if q_offset is not None and q_offset.ndim != len(leading) - 1:
            # A bias has the axes of its q_offset and heads; scores may have others between them.
            zeros = matrices.new_zeros(()).expand(matrices.shape)
            return add_toeplitz_bias(zeros, grad, *grid), *[None] * 5
        # A bias has the leading axes of its diagonals.
        entries = grad.shape[grad.ndim - _axes(grid[0]) :]
        diagonals = grad.expand(*leading, *entries)
        bias = toeplitz_bias(diagonals, tuple(matrices.shape), matrices.dtype, tuple(grid))
        return bias, *[None] * 5


class _Gather(Function):
    @staticmethod
    def forward(x: Tensor, content: Tensor | None, k_len: int, *options: Any) -> Any:
        return _gather(x, content, k_len, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, (_shape_of(inputs[0]), *inputs[3:]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        by_column, *options = _saved(ctx)
        x = content = None
        if ctx.needs_input_grad[0]:
            x = relative_scatter(grad, by_column.shape[-1], *options)
        if ctx.needs_input_grad[1]:
            scale = options[-1]
            content = grad if scale == 1.0 else grad * scale
        return x, content, *[None] * 6


class _Scatter(Function):
    @staticmethod
    def forward(grad: Tensor, width: int, *options: Any) -> Any:
        return _scatter(grad, width, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, (_shape_of(inputs[0]), *inputs[2:]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        by_key, *options = _saved(ctx)
        return relative_gather(grad, None, by_key.shape[-1], *options), *[None] * 6


def apply(function: type[Function], *args: Any) -> Any:
    """Function.apply, which has no types."""
    return function.apply(*args)


# --- Options: all arguments after the inputs, tensors among them


def _save(ctx: Any, options: tuple[Any, ...]) -> None:
    # Tensors as torch saves them: it notices if positions are overwritten before the backward.
    ctx.save_for_backward(*[o for o in options if isinstance(o, Tensor)])
    ctx.is_tensor = [isinstance(o, Tensor) for o in options]
    ctx.others = [None if isinstance(o, Tensor) else o for o in options]


def _saved(ctx: Any) -> list[Any]:
    tensors = list(ctx.saved_tensors)
    return [
        tensors.pop(0) if is_tensor else other
        for is_tensor, other in zip(ctx.is_tensor, ctx.others, strict=True)
    ]


def _rotary_backward(ctx: Any, grad: Tensor) -> Any:
    *options, inverse = _saved(ctx)
    return rotary(grad, *options, not inverse), *[None] * (len(options) + 1)


def _rotary_qk_backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> Any:
    *options, inverse = _saved(ctx)
    return *rotary_qk(grad_q, grad_k, *options, not inverse), *[None] * (len(options) + 1)


def _from_tables_backward(ctx: Any, grad: Tensor) -> Any:
    *options, inverse, compute = _saved(ctx)
    return rotary_from_tables(grad, *options, not inverse, compute), *[None] * (len(options) + 2)


def _qk_from_tables_backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> Any:
    *options, inverse, compute = _saved(ctx)
    grads = rotary_qk_from_tables(grad_q, grad_k, *options, not inverse, compute)
    return *grads, *[None] * (len(options) + 2)


def _add_backward(ctx: Any, grad: Tensor) -> Any:
    positions, x_scale, alpha, *spec = _saved(ctx)
    x = by_position = None
    if ctx.needs_input_grad[0]:
        x = grad if x_scale == 1.0 else grad * x_scale
    if positions is not None and ctx.needs_input_grad[1]:
        of_table = _wide(grad) * alpha
        if positions.ndim < grad.ndim - 1:  # one row of the table for all of a batch
            of_table = of_table.sum(tuple(range(grad.ndim - 2)))
        by_position = _position_gradient(of_table, positions, grad.shape[-1], *spec)
    return x, by_position, *[None] * (len(spec) + 2)


def _sinusoidal_backward(ctx: Any, grad: Tensor) -> Any:
    positions, *spec, _dtype = _saved(ctx)
    return _position_gradient(_wide(grad), positions, *spec), *[None] * (len(spec) + 1)


def _position_gradient(
    grad: Tensor, positions: Tensor, dim: int, base: float, layout: str, shift: float, scale: float
) -> Tensor:
    """What grad, the gradient of a table, is for its positions: sin' = w cos, cos' = -w sin.

    The table is computed again, in the dtype of grad: exact where the result was rounded to half
    precision, cheaper than to keep it, and differentiable in turn.
    """
    table = sinusoidal(positions, dim, base, layout, shift, scale, grad.dtype)
    (sin, cos), (of_sin, of_cos) = (_sin_and_cos(t, layout) for t in (table, grad))
    rates = sinusoidal_rates(dim, base, shift, scale, grad)
    return ((of_sin * cos - of_cos * sin) * rates).sum(-1).to(positions.dtype)


def _sin_and_cos(table: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    if layout == "interleaved":
        return table[..., 0::2], table[..., 1::2]
    first, second = table.tensor_split(2, -1)
    return (second, first) if layout == "cos_sin" else (first, second)


def sinusoidal_rates(dim: int, base: float, shift: float, scale: float, like: Tensor) -> Tensor:
    """[dim / 2]: radians a position, for derivatives (angles themselves are fixed point)."""
    wide = torch.float32 if like.device.type == "mps" else torch.float64
    steps = torch.arange(dim // 2, dtype=wide, device=like.device)
    rates: Tensor = base ** (steps / (shift - dim / 2)) * scale if dim else steps
    return rates.to(like.dtype)


def _wide(x: Tensor) -> Tensor:
    """x as sums are formed: float32, or float64."""
    return x if x.dtype == torch.float64 else x.float()


def _learned_backward(ctx: Any, *grads: Tensor) -> Any:
    """Gradients of x, or of q and k, positions and frequencies."""
    count = len(grads)
    saved = _saved(ctx)
    inputs, (positions, inv_freq, *options) = saved[:count], saved[count:]
    of_positions, of_frequencies = ctx.needs_input_grad[count : count + 2]
    *layout, axis_map, scale, inverse = options
    if not torch.is_grad_enabled():
        operator = _ops.rotary_backward if count == 1 else _ops.rotary_qk_backward
        *turned, frequencies, points = call(
            operator.default, *grads, *inputs, positions, inv_freq, *options, of_positions
        )
    else:  # for a second derivative
        back = (positions, inv_freq, *layout, axis_map, scale, not inverse)
        turned = [_turn_back(grad, *back) for grad in grads]
        pairs = inv_freq.shape[-1]
        angles = [
            _angle_gradient(x, y, layout, pairs, inverse, inv_freq.ndim > 1)
            for x, y in zip(inputs, turned, strict=True)
        ]
        frequencies, points = _frequency_gradients(
            sum(angles[1:], angles[0]), positions, inv_freq, axis_map
        )
    if of_positions:
        if positions.ndim < points.ndim - (axis_map is None and inv_freq.ndim < 3):
            points = points.sum(1, keepdim=True)
        points = points.reshape(positions.shape).to(positions.dtype)
    return (
        *turned,
        points if of_positions else None,
        frequencies.to(inv_freq.dtype) if of_frequencies else None,
        *[None] * len(options),
    )


def _turn_back(grad: Tensor, positions: Tensor | None, inv_freq: Tensor, *options: Any) -> Tensor:
    if needs_grad(*(t for t in (positions, inv_freq) if t is not None and t.is_floating_point())):
        return learned_rotary(grad, positions, inv_freq, *options)
    return rotary(grad, positions, inv_freq, *options)


def _angle_gradient(
    x: Tensor, y: Tensor, options: list[Any], pairs: int, inverse: bool, by_head: bool
) -> Tensor:
    """Cross products of the pairs of x and y, [b, s, P], summed over heads, or [b, s, H, P]."""
    layout, pairing, rotary_start = options
    pairing_or_block = int(pairing) if pairing.lstrip("-").isdigit() else pairing
    view = arguments.rotary_view(
        "apply_rotary", tuple(x.shape), layout, pairing_or_block, rotary_start, pairs
    )
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    half = view.block // 2
    (a, b), (g, h) = (
        t[..., rotary_start : rotary_start + 2 * pairs]
        .to(real)
        .unflatten(-1, (pairs // half, 2, half))
        .unbind(-2)
        for t in (x, y)
    )
    cross = (a * h - b * g).flatten(-2)
    cross = -cross if inverse else cross
    letters = layout.replace("t", "s")
    for letter in "bsh":
        if letter not in letters:
            letters, cross = letter + letters, cross.unsqueeze(0)
    cross = cross.permute([letters.index(letter) for letter in "bshd"])
    summed: Tensor = cross if by_head else cross.sum(2)
    return summed


def _frequency_gradients(
    angles: Tensor, positions: Tensor | None, inv_freq: Tensor, axis_map: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of inv_freq and, [A, b, s], of positions, from those of the angles."""
    batch, tokens = angles.shape[:2]
    by_axis = axis_map is not None or inv_freq.ndim == 3
    if positions is None:
        points = torch.arange(tokens, device=angles.device).expand(1, 1, tokens)
    else:
        points = positions if by_axis else positions[None]
        points = points.unsqueeze(1) if points.ndim == 2 else points
    points = points.to(angles.dtype).expand(-1, batch, tokens)
    weights = inv_freq.to(angles.dtype)
    if inv_freq.ndim == 3:
        if weights.shape[1] == 1:
            angles = angles.sum(2, keepdim=True)
        return (
            torch.einsum("abs,bshp->ahp", points, angles),
            torch.einsum("bshp,ahp->abs", angles, weights),
        )
    if inv_freq.ndim == 2 and weights.shape[0] == 1:
        angles = angles.sum(2, keepdim=True)
    angles = angles if inv_freq.ndim == 2 else angles.unsqueeze(2)
    weights = weights if inv_freq.ndim == 2 else weights[None]
    # Which axis drives a pair, [A, P]: without an axis_map the only one.
    axes = torch.ones_like(weights[:1])
    if axis_map is not None:
        numbers = torch.arange(points.shape[0], device=angles.device)
        axes = (axis_map == numbers[:, None]).to(angles.dtype)
    frequencies = torch.einsum("abs,bshp,ap->hp", points, angles, axes)
    return (
        frequencies.reshape(inv_freq.shape),
        torch.einsum("bshp,hp,ap->abs", angles, weights, axes),
    )


# --- Functions. The traced ones are spelled out: torch.compile follows no factory.


class _RotaryTraced(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *options: Any) -> Any:
        return _ops.rotary.default(x, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, inputs[1:])

    backward = staticmethod(_rotary_backward)


class _RotaryQKTraced(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, *options: Any) -> Any:
        return _ops.rotary_qk.default(q, k, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, inputs[2:])

    backward = staticmethod(_rotary_qk_backward)


class _Learned(Function):
    @staticmethod
    def forward(x: Tensor, *options: Any) -> Any:
        return call(_ops.rotary.default, x, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, inputs)

    backward = staticmethod(_learned_backward)


class _LearnedQK(Function):
    @staticmethod
    def forward(q: Tensor, k: Tensor, *options: Any) -> Any:
        return call(_ops.rotary_qk.default, q, k, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, inputs)

    backward = staticmethod(_learned_backward)


class _FromTablesTraced(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *options: Any) -> Any:
        return _ops.rotary_from_tables.default(x, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, inputs[1:])

    backward = staticmethod(_from_tables_backward)


class _QKFromTablesTraced(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, *options: Any) -> Any:
        return _ops.rotary_qk_from_tables.default(q, k, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, inputs[2:])

    backward = staticmethod(_qk_from_tables_backward)


class _SinusoidalTraced(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(positions: Tensor, *spec: Any) -> Any:
        return _ops.sinusoidal.default(positions, *spec)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, inputs)

    backward = staticmethod(_sinusoidal_backward)


class _AddTraced(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *options: Any) -> Any:
        return _ops.add_sinusoidal.default(x, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, inputs[1:])

    backward = staticmethod(_add_backward)


def _eager(name: str, inputs: int, backward: Callable[..., Any]) -> type[Function]:
    def forward(ctx: Any, *args: Any) -> Any:
        _save(ctx, args[inputs:])
        return call(getattr(_ops, name).default, *args)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(f"{name}_eager", (Function,), members)


_RotaryEager = _eager("rotary", 1, _rotary_backward)
_RotaryQKEager = _eager("rotary_qk", 2, _rotary_qk_backward)
_FromTablesEager = _eager("rotary_from_tables", 1, _from_tables_backward)
_QKFromTablesEager = _eager("rotary_qk_from_tables", 2, _qk_from_tables_backward)
_SinusoidalEager = _eager("sinusoidal", 0, _sinusoidal_backward)
_AddEager = _eager("add_sinusoidal", 1, _add_backward)


def is_leaf_for_gradient(x: Tensor) -> bool:
    """Whether it is a leaf that requires a gradient, or a view of one."""
    base = x if x._base is None else x._base
    return base.is_leaf and base.requires_grad and torch.is_grad_enabled()


def _in_place(
    name: str,
    inputs: int,
    backward: Callable[..., Any],
    functional: Callable[..., Any],
) -> Callable[..., Any]:
    def forward(ctx: Any, *args: Any) -> Any:
        _save(ctx, args[inputs:])
        call(getattr(_ops, f"{name}_").default, *args)
        ctx.mark_dirty(*args[:inputs])
        return args[0] if inputs == 1 else args[:inputs]

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function = type(f"{name}_in_place", (Function,), members)

    def apply(*args: Any) -> Any:
        tensors = args[:inputs]
        if not tracing():
            if any(map(is_leaf_for_gradient, tensors)):
                # As torch's own operations say it, and before anything is written.
                raise RuntimeError(
                    "a leaf Variable that requires grad is being used in an in-place operation."
                )
            # A Function over views may have one output only.
            if inputs == 1 or all(x._base is None for x in tensors):
                return function.apply(*args)  # type: ignore[attr-defined]
        if inputs == 1:
            return args[0].copy_(functional(*args))
        return tuple(x.copy_(y) for x, y in zip(tensors, functional(*args), strict=True))

    return apply


# Differentiable and in place, for inputs that require a gradient (and are no leaves).
rotary_ = _in_place("rotary", 1, _rotary_backward, rotary)
rotary_qk_ = _in_place("rotary_qk", 2, _rotary_qk_backward, rotary_qk)
rotary_from_tables_ = _in_place("rotary_from_tables", 1, _from_tables_backward, rotary_from_tables)
rotary_qk_from_tables_ = _in_place(
    "rotary_qk_from_tables", 2, _qk_from_tables_backward, rotary_qk_from_tables
)
add_sinusoidal_ = _in_place("add_sinusoidal", 1, _add_backward, add_sinusoidal)
add_toeplitz_bias_ = _in_place("add_toeplitz_bias", 1, _add_toeplitz_backward, add_toeplitz_bias)
