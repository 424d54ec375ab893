"""Queries, keys and values out of one matrix, as a projection makes them: `Rotary.split_qkv`.

    stacked   q0 q1 q2 q3 | k0 k1 | v0 v1          heads of q, then of k, then of v
    grouped   q0 q1 k0 v0 | q2 q3 k1 v1            by group: its heads of q, its k, its v (Megatron)

    forward    matrix ──► split, norm, rotation, copy ──► q, k, v        one pass
    backward   grad_q, grad_k, grad_v ──► one matrix                     no concatenation after it

Each number is read once and written once; with a norm, grouped heads are copied first. The gradient
is the inverse rotation, which writes to its part of the matrix; with a norm autograd joins the
parts.

Source: ``fused_qkv_rope`` of TransformerEngine, for what is fused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_value
from posenc_native.core.calls.norms import NORM_KEYWORDS, Norm
from posenc_native.core.calls.views import check_layout
from posenc_native.engines import late
from posenc_native.engines.arrays import any_dtensor

from .apply import apply_rotary_qk
from .norm import norm_rotary_qk

_FUNCTION = "Rotary.split_qkv"


class Packed(NamedTuple):
    """The matrix of a call: how it is split, and what happens to its parts."""

    rope: Any
    positions: Any
    heads: int
    kv_heads: int
    grouped: bool
    layout: str  # of the results
    norm: Norm

    @property
    def tokens(self) -> str:
        """The letters of the matrix before its last axis."""
        return self.layout.replace("h", "").replace("d", "")

    @property
    def of_parts(self) -> str:
        """The layout of the parts of a matrix."""
        return self.tokens + ("ghd" if self.grouped else "hd")

    def parts(self, matrix: Any) -> tuple[Any, Any, Any]:
        """q, k and v in a matrix, as views."""
        before, count, width = matrix.shape[:-1], self.kv_heads, self.rope.head_dim
        if self.grouped:
            sizes = [self.heads // count, 1, 1]
            x = matrix.reshape(*before, count, sum(sizes), width)
        else:
            sizes = [self.heads, count, count]
            x = matrix.reshape(*before, sum(sizes), width)
        if is_tensor(x):
            q, k, v = x.split(sizes, -2)  # whose gradients autograd joins in one pass
        else:
            q, k, v = np.split(x, np.cumsum(sizes[:-1]), -2)
        return q, k, v

    def as_part(self, x: Any) -> Any:
        """A result, or its gradient, with the axes of the parts."""
        x = _permuted(x, self.layout, self.tokens + "hd")
        if not self.grouped:
            return x
        return x.reshape(*x.shape[:-2], self.kv_heads, x.shape[-2] // self.kv_heads, x.shape[-1])

    def by_heads(self, part: Any) -> Any:
        """A part with its heads along one axis, as norms need it; a copy if it is grouped."""
        if not self.grouped:
            return part
        return part.reshape(*part.shape[:-3], part.shape[-3] * part.shape[-2], part.shape[-1])

    def new(self, matrix: Any, heads: int) -> Any:
        """Memory for a result."""
        sizes = dict(zip(self.tokens, matrix.shape[:-1], strict=True))
        shape = [{**sizes, "h": heads, "d": self.rope.head_dim}[letter] for letter in self.layout]
        return matrix.new_empty(shape) if is_tensor(matrix) else np.empty(shape, matrix.dtype)

    def split(self, matrix: Any) -> tuple[Any, Any, Any]:
        """New q, k and v; each number is read once and written once."""
        q, k, v = self.parts(matrix)
        values = self.new(matrix, self.kv_heads)
        self.as_part(values)[...] = v
        if self.layout == self.tokens + "hd":  # memory of the operation itself, in large pages
            return *self._heads(q, k, self.norm), values
        queries, keys = self.new(matrix, self.heads), self.new(matrix, self.kv_heads)
        if self.norm.norm:
            outs = [_permuted(x, self.layout, self.tokens + "hd") for x in (queries, keys)]
            self._normed(self.by_heads(q), self.by_heads(k), self.norm, (outs[0], outs[1]))
        else:
            self._rotated(q, k, out=(self.as_part(queries), self.as_part(keys)))
        return queries, keys, values

    def composed(self, matrix: Any, q_weight: Any, k_weight: Any) -> tuple[Any, Any, Any]:
        """The same by operations that autograd, compilers and transforms follow."""
        q, k, v = self.parts(matrix)
        q, k = self._heads(q, k, self.norm._replace(q_weight=q_weight, k_weight=k_weight))
        return tuple(
            _permuted(x, self.tokens + "hd", self.layout).contiguous()
            for x in (q, k, self.by_heads(v))
        )

    def gradient(self, shape: Any, grads: Any) -> Any:
        """The gradient of a matrix without a norm, to which those of its parts are written."""
        gradient = grads[0].new_empty(shape)
        q, k, v = self.parts(gradient)
        of_q, of_k, of_v = map(self.as_part, grads)
        v[...] = of_v
        self._rotated(of_q, of_k, inverse=True, out=(q, k))
        return gradient

    def _heads(self, q: Any, k: Any, norm: Norm) -> tuple[Any, Any]:
        """q and k normed and rotated, new, with the axes of the matrix and then heads."""
        if norm.norm:
            q, k = self._normed(self.by_heads(q), self.by_heads(k), norm, None)
            return q, k
        q, k = self._rotated(q, k)
        return self.by_heads(q), self.by_heads(k)

    def _rotated(self, q: Any, k: Any, **options: Any) -> Any:
        return apply_rotary_qk(q, k, self.positions, self.rope, layout=self.of_parts, **options)

    def _normed(self, q: Any, k: Any, norm: Norm, out: Any) -> Any:
        options = {name: getattr(norm, name) for name in NORM_KEYWORDS}
        return norm_rotary_qk(
            q, k, self.positions, self.rope, layout=self.tokens + "hd", out=out, **options
        )


def split_qkv(
    rope: Any, qkv: Any, positions: Any, heads: Any, kv_heads: Any, grouped: Any, layout: Any,
    norm: Norm,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """`Rotary.split_qkv`."""
    if not is_tensor(qkv):
        qkv = arguments.as_operand(_FUNCTION, "qkv", qkv)
    heads = _count("heads", heads)
    kv_heads = heads if kv_heads is None else _count("kv_heads", kv_heads)
    if heads % kv_heads:
        wrong_value(_FUNCTION, "kv_heads", f"a divisor of heads = {heads}", kv_heads)
    layout = check_layout(_FUNCTION, rope.layout if layout is None else layout)
    if "h" not in layout or "g" in layout:
        wrong_value(_FUNCTION, "layout", "letters of b, s (or t), h and d", repr(layout))
    call = Packed(rope, positions, heads, kv_heads, bool(grouped), layout, norm)
    width = (heads + 2 * kv_heads) * rope.head_dim
    if qkv.ndim != len(call.tokens) + 1 or qkv.shape[-1] != width:
        axes = ", ".join([*call.tokens, f"(heads + 2 kv_heads) head_dim = {width}"])
        wrong_value(_FUNCTION, "qkv", f"shape [{axes}] for layout {layout!r}", list(qkv.shape))
    if not is_tensor(qkv):
        return call.split(qkv)
    late.torch_operations()
    from posenc_native.engines.following import needs_grad, tracing, transformed

    weights = norm.q_weight, norm.k_weight
    tensors = [x for x in (qkv, *weights, positions) if is_tensor(x)]
    followed = tracing() or transformed() or any_dtensor(*tensors)
    if not followed and not needs_grad(*tensors):
        return call.split(qkv)
    # The gradients of a norm are new tensors: writing them to the matrix takes as long as joining
    # them.
    if followed or norm.norm or (is_tensor(positions) and needs_grad(positions)):
        return call.composed(qkv, *weights)
    from posenc_native.engines.torch.gradients.packed import recorded

    return recorded(call, qkv)  # type: ignore[no-any-return]


def _count(argument: str, value: Any) -> int:
    count = arguments.size(_FUNCTION, argument, value)
    if count == 0:
        wrong_value(_FUNCTION, argument, "an int >= 1", 0)
    return count


def _permuted(x: Any, letters: str, order: str) -> Any:
    """x with its axes in another order."""
    axes = [letters.index(letter) for letter in order]
    return x.permute(axes) if is_tensor(x) else x.transpose(axes)
