"""Weights of queries and keys: convert them between pairings, and find out which pairing they have.

A model whose rotation pairs dims i and i + P gives the same scores as a model that pairs 2i and
2i + 1, once the rows that make these dims are exchanged in both projections. Checkpoints exist in
both orders: Llama as published is interleaved, in Hugging Face's form it is half-split. A model
that runs with the wrong pairing raises no error; its results are just bad.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.arguments import is_tensor, wrong_value
from posenc_native.core.calls.errors import error_of, fault_of
from posenc_native.core.calls.suggestions.vocabulary import value_hint
from posenc_native.core.calls.views import PAIRINGS, rotary_view

if TYPE_CHECKING:
    from typing_extensions import NotRequired, TypedDict, Unpack

    from posenc_native.core.calls.kinds import Array, Number, SupportsArray, Tensor, TensorLike

__all__ = ["PairingEvidence", "expected_pairing", "guess_pairing", "permute_qk",
           "permute_state_dict"]  # fmt: skip

# Entries of state dicts with an axis of query or key dims, under the names that most projects use:
# projections (Hugging Face, Llama as published, GGUF), norms of heads, LoRA's outer factor and
# magnitude.
QK_ENTRIES = (
    r"(?:^|[._])(?:q_proj|k_proj|wq|wk|attn_q|attn_k|q_norm|k_norm|attn_q_norm|attn_k_norm)"
    r"(?:\.base_layer)?\.(?:weight|bias|lora_B(?:\.\w+)?(?:\.weight)?"
    r"|lora_magnitude_vector(?:\.\w+)?(?:\.weight)?)$"
)


if TYPE_CHECKING:

    class Permutation(TypedDict):
        """Keywords of a reordering of head dims."""

        to: str | int
        source: NotRequired[str | int | None]
        rotary_dim: NotRequired[int | None]
        rotary_start: NotRequired[int]
        axis: NotRequired[int]
        heads: NotRequired[Iterable[int] | None]


@overload
def permute_qk(weight: TensorLike, head_dim: int, **options: Unpack[Permutation]) -> Tensor: ...
@overload
def permute_qk(weight: SupportsArray[Number], head_dim: int,
               **options: Unpack[Permutation]) -> Array[Number]: ...  # fmt: skip
def permute_qk(
    weight: Any,
    head_dim: int,
    *,
    to: str | int,
    source: str | int | None = None,
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    axis: int = 0,
    heads: Iterable[int] | None = None,
) -> Any:
    """Reorder the dims of query or key heads for a rotation with another pairing.

    Values are moved, not computed: any dtype works, also quantized dtypes if an element stands for
    one dim of a head, and the conversion back is exact. Apply it to everything that has an axis of
    head dims: projection weights and biases, norms of heads, the outer factors B of LoRA, scales of
    quantized rows; for queries and keys, not for values.

    Args:
        weight: an array or tensor; its `axis` has ``heads * head_dim`` dims, head after head:
            ``[heads * head_dim, in]``, ``[head_dim]``, ``[in, heads, head_dim]`` with axis -1, or a
            fused projection of queries, keys and values with `heads`.
        head_dim: dims of a head.
        to: the target pairing: "half", "interleaved" or an even block size, as in
            `posenc_native.apply_rotary`.
        source: the current pairing; None for the other of "half" and "interleaved".
        rotary_dim: how many dims are rotated, even; None for those from `rotary_start` on.
        rotary_start: first rotated dim; the others stay where they are.
        axis: the axis of head dims.
        heads: the heads on that axis to reorder, all by default. For a fused projection these are
            ``range(num_heads + num_kv_heads)`` if queries come first, then keys, then values,
            and ``[h for h in range(3 * num_heads) if h % 3 < 2]`` if the three alternate.

    Returns:
        An array or tensor like `weight`, with its own memory. Gradients reach `weight`.

    Raises:
        ValueError: an axis that is not a multiple of `head_dim`, or sizes and names that do not
            fit.
        TypeError: not an array or tensor.

    Source: the function ``permute`` of transformers' ``convert_llama_weights_to_hf.py``, which is
    the case from "interleaved" to "half" of whole heads.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> pn.checkpoints.permute_qk(np.arange(8), 8, to="half")
        array([0, 2, 4, 6, 1, 3, 5, 7])
        >>> pn.checkpoints.permute_qk(np.arange(8), 4, to="half", heads=[1])
        array([0, 1, 2, 3, 4, 6, 5, 7])
    """
    function = "permute_qk"
    if is_tensor(weight):
        arguments.check_memory(function, "weight", weight)
    else:
        weight = arguments.as_operand(function, "weight", weight)
    if source is None:
        if isinstance(to, str) and to not in PAIRINGS:
            expected = "'half', 'interleaved' or an even int"
            wrong_value(function, "to", expected, repr(to), value_hint(to, PAIRINGS))
        if to not in PAIRINGS:
            wrong_value(function, "source", f"a pairing to go with to={to!r}", None)
        source = PAIRINGS[1 - PAIRINGS.index(to)]
    order = _head_order(function, head_dim, source, to, rotary_dim, rotary_start)
    rank = weight.ndim
    if not -rank <= axis < rank:
        wrong_value(function, "axis", f"one of the axes of {list(weight.shape)}", axis)
    length = weight.shape[axis]
    if not head_dim or length % head_dim:
        expected = f"a multiple of head_dim = {head_dim} on axis {axis}"
        wrong_value(function, "weight", expected, list(weight.shape))
    index = np.arange(length).reshape(-1, head_dim)
    chosen = list(range(len(index)) if heads is None else heads)
    if not all(0 <= head < len(index) for head in chosen) or len(set(chosen)) < len(chosen):
        wrong_value(function, "heads", f"numbers in 0 .. {len(index) - 1}, each once", chosen)
    index[chosen] = index[chosen][:, order]
    if isinstance(weight, np.ndarray):
        return weight.take(index.reshape(-1), axis)
    import torch

    rows = torch.from_numpy(index.reshape(-1)).to(weight.device)
    if weight.is_complex() or (weight.is_floating_point() and weight.dtype.itemsize > 1):
        return weight.index_select(axis, rows)
    # torch cannot select from every dtype, but it can from integers of the same size.
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = weight.view(integers[weight.dtype.itemsize])
    return bits.index_select(axis, rows).view(weight.dtype)


def permute_state_dict(
    state: Mapping[str, Any],
    head_dim: int,
    *,
    to: str | int,
    names: str | Sequence[str] | Mapping[str, Mapping[str, Any]] = QK_ENTRIES,
    **options: Any,
) -> dict[str, Any]:
    """Reorder all query and key entries of a state dict with `permute_qk`.

    Args:
        state: entries by name.
        head_dim, to: as in `permute_qk`.
        names: selects entries: a regular expression that is searched for in their names, several of
            them, or a mapping from them to further arguments of `permute_qk`, as for fused
            projections: ``{r"query_key_value\\.(weight|bias)$": {"heads": ...}}``. The first match
            counts. By default: weights and biases of q_proj, k_proj, wq, wk, attn_q and attn_k, the
            norms q_norm and k_norm, and LoRA's B of these. Pass names if a model also has attention
            without rotation (a vision tower, cross-attention).
        options: further arguments of `permute_qk` for all entries.

    Returns:
        A new dict in the same order. Entries that were not selected are the objects of `state`.

    Raises:
        ValueError: no entry matches; as in `permute_qk`, with the name of the entry.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> state = {"layers.0.wq.weight": np.eye(4), "layers.0.wv.weight": np.eye(4)}
        >>> permuted = pn.checkpoints.permute_state_dict(state, 4, to="half")
        >>> permuted["layers.0.wq.weight"].argmax(1), permuted["layers.0.wv.weight"].argmax(1)
        (array([0, 2, 1, 3]), array([0, 1, 2, 3]))
    """
    function = "permute_state_dict"
    if isinstance(names, str):
        names = (names,)
    rules = names if isinstance(names, Mapping) else {pattern: {} for pattern in names}
    result, matched = dict(state), False
    for name, weight in state.items():
        rule = next((rules[pattern] for pattern in rules if re.search(pattern, name)), None)
        if rule is None:
            continue
        matched = True
        keywords = {"head_dim": head_dim, "to": to, **options, **rule}
        try:
            result[name] = permute_qk(weight, **keywords)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{function}: {name}: {error}") from None
    if not matched:
        wrong_value(function, "names", "patterns that match the name of an entry", list(rules))
    return result


@dataclass(frozen=True)
class PairingEvidence:
    """The pairing that weights were made for.

    Attributes:
        pairing: the answer; None if the evidence decides nothing.
        scores: a number by pairing. From `expected_pairing`: the error relative to the
            reference; small is right. From `guess_pairing`: how strongly the dims that this pairing
            joins are related, in standard deviations of random pairings; large is right.

    Example:
        >>> PairingEvidence("half", {"half": 1e-7, "interleaved": 0.8}).pairing
        'half'
    """

    pairing: str | int | None
    scores: Mapping[str | int, float]


def expected_pairing(
    run: Callable[[Any], Any],
    reference: Any,
    *,
    pairings: Iterable[str | int] = PAIRINGS,
    tolerance: float = 0.1,
) -> PairingEvidence:
    """Find the pairing that reproduces known correct results: the reliable check.

    Args:
        run: computes logits, attention scores or hidden states for a pairing, with the weights in
            question: a model, or queries and keys of a layer, for two tokens or more.
        reference: the correct result, from a run of the original: an array or tensor of the same
            shape.
        pairings: the pairings to try, at least two: a small error alone decides nothing.
        tolerance: largest relative error of a result that counts as right. Increase it for coarsely
            quantized weights, whose results are off.

    Returns:
        `PairingEvidence`, with the relative error of every pairing: the root of the mean squared
        difference divided by that of the reference. The best pairing is the answer if it is within
        the tolerance and the error of the next is four times as large.

    Raises:
        ValueError: results of another shape than the reference, a reference of zeros, fewer than
            two pairings.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rng = np.random.default_rng(0)
        >>> q, k = rng.standard_normal((2, 1, 4, 10, 16))
        >>> def scores(pairing):
        ...     rotated_q, rotated_k = pn.Rotary(16, pairing=pairing)(q, k)
        ...     return rotated_q @ rotated_k.swapaxes(-1, -2)
        >>> pn.checkpoints.expected_pairing(scores, scores("interleaved")).pairing
        'interleaved'
    """
    function = "expected_pairing"
    known = _numbers(function, "reference", reference)
    size = float(np.sqrt(np.mean(np.square(known)))) if known.size else 0.0
    if not 0 < size < np.inf:
        wrong_value(function, "reference", "finite values that are not all 0", size)
    tried = list(dict.fromkeys(pairings))
    if len(tried) < 2:
        wrong_value(function, "pairings", "two or more, to compare", tried)
    errors: dict[str | int, float] = {}
    for pairing in tried:
        result = _numbers(function, "run", run(pairing))
        arguments.check_shape(function, "run", result.shape, known.shape)
        errors[pairing] = float(np.sqrt(np.mean(np.square(result - known)))) / size
    best, *others = sorted(errors, key=lambda pairing: errors[pairing])
    right = errors[best] <= tolerance and all(errors[o] > 4 * errors[best] for o in others)
    return PairingEvidence(best if right else None, errors)


def guess_pairing(
    layers: Iterable[tuple[Any, Any]],
    head_dim: int,
    *,
    rotary_dim: int | None = None,
    rotary_start: int = 0,
) -> PairingEvidence:
    """Guess the pairing of trained weights, if there is no reference to compare with.

    A rotated score contains products of a query dim and a different key dim only for partners, as
    ``sin(t) * (q_b k_a - q_a k_b)``. So training changes ``w_qb . w_ka - w_qa . w_kb``
    for partners a, b and leaves it to chance for other dims. The score of a pairing is the sum of
    its squares (of rows of length 1) over its pairs, compared with all ways to pair the dims of a
    head.

    How good the guess is: the thresholds were set on 54 small models (two layers, heads of 16, 32
    or 64 dims, trained on induction or on second-order Markov chains, or not at all). On 24 others,
    each in both orders, it named the right pairing for 29 and no pairing for 19, mostly for those
    with few dims or half learned tasks; it never named the wrong pairing. On 50 more with one head
    of 64 dims it was right for 99 of 100 and undecided for the last. Large models have not been
    tried. If there is a configuration, trust `Rotary.from_config` more, and `expected_pairing` more
    than both.

    Args:
        layers: ``(q_weight, k_weight)`` of some layers, the more the better, arrays or tensors of
            floats, ``[heads * head_dim, in]`` and ``[kv_heads * head_dim, in]``.
        head_dim, rotary_dim, rotary_start: as in `permute_qk`.

    Returns:
        `PairingEvidence`. The pairing is None unless its score is at least 3 and exceeds the
        other's by 1.

    Raises:
        ValueError: shapes that do not fit, weights that are not finite, fewer than 8 rotated dims.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> q, k = np.random.default_rng(0).standard_normal((2, 64, 128))  # untrained
        >>> pn.checkpoints.guess_pairing([(q, k)], head_dim=32).pairing is None
        True
    """
    function = "guess_pairing"
    orders = {
        pairing: _head_order(function, head_dim, pairing, "interleaved", rotary_dim, rotary_start)
        for pairing in PAIRINGS
    }
    dim = head_dim - rotary_start if rotary_dim is None else rotary_dim
    rotated = slice(rotary_start, rotary_start + dim)
    if dim < 8:
        wrong_value(function, "rotary_dim", "8 or more", dim)
    links = np.zeros((dim, dim))
    for q_weight, k_weight in layers:
        heads = []
        for argument, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
            rows = _numbers(function, argument, weight)
            if rows.ndim != 2 or rows.shape[0] % head_dim or not rows.shape[0]:
                expected = f"shape [heads * {head_dim}, in]"
                wrong_value(function, argument, expected, list(rows.shape))
            if not np.isfinite(rows).all():
                wrong_value(function, argument, "finite weights", "infinite ones or NaN")
            rows = rows.reshape(-1, head_dim, rows.shape[1])[:, rotated]
            heads.append(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-30))
        q_rows, k_rows = heads
        if len(q_rows) % len(k_rows) or q_rows.shape[-1] != k_rows.shape[-1]:
            expected = "heads that divide those of q_weight, and the same inputs"
            wrong_value(function, "k_weight", expected, [len(k_rows) * head_dim, k_rows.shape[-1]])
        k_rows = np.repeat(k_rows, len(q_rows) // len(k_rows), axis=0)
        products = q_rows @ k_rows.swapaxes(-1, -2)
        links += np.square(products - products.swapaxes(-1, -2)).sum(0)
    mean, deviation = _sum_of_random_pairs(links)
    scores: dict[str | int, float] = {}
    for pairing, order in orders.items():
        first, second = order[rotated].reshape(-1, 2).T - rotary_start
        total = float(links[first, second].sum())
        scores[pairing] = (total - mean) / deviation if deviation > 0 else 0.0
    best, other = sorted(scores, key=lambda pairing: -scores[pairing])
    clear = scores[best] >= 3 and scores[best] - scores[other] >= 1
    return PairingEvidence(best if clear else None, scores)


def _head_order(
    function: str,
    head_dim: int,
    source: str | int,
    to: str | int,
    rotary_dim: int | None,
    rotary_start: int,
) -> npt.NDArray[np.int64]:
    """The dims of a head with the pairing `source`, in the order of the pairing `to`."""
    head_dim = arguments.size(function, "head_dim", head_dim)
    if head_dim > arguments.WIDTH_LIMIT:
        wrong_value(function, "head_dim", f"an int in 0 .. {arguments.WIDTH_LIMIT}", head_dim)
    start = arguments.size(function, "rotary_start", rotary_start)
    rest = max(head_dim - start, 0)
    width = arguments.even_size(function, "rotary_dim", rest if rotary_dim is None else rotary_dim)
    order = np.arange(head_dim)
    dims = {}
    for name, pairing in (("source", source), ("to", to)):
        try:
            view = rotary_view(
                function, (1, head_dim), "sd", pairing, start, width // 2, "head_dim", "rotary_dim"
            )
        except (ValueError, TypeError) as error:
            fault = fault_of(error)
            if fault is None or fault.argument != "pairing":
                raise
            raise error_of(type(error), fault._replace(argument=name)) from None
        blocks = np.arange(width).reshape(-1, 2, view.block // 2)
        dims[name] = start + blocks.swapaxes(1, 2).reshape(-1, 2)  # in the order of the pairs
    order[dims["to"]] = dims["source"]
    return order


def _sum_of_random_pairs(links: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard deviation of the sum over the pairs of a random perfect matching.

    A matching contains a pair with probability 1 / (n - 1), two disjoint pairs with
    1 / ((n - 1) (n - 3)), and never two pairs that share a dim.
    """
    count = len(links)
    rows = links.sum(1)
    total, squares = float(rows.sum()) / 2, float(np.square(links).sum()) / 2
    disjoint = total**2 + squares - float(np.square(rows).sum())
    mean = total / (count - 1)
    variance = squares / (count - 1) + disjoint / ((count - 1) * (count - 3)) - mean**2
    return mean, float(np.sqrt(max(variance, 0.0)))


def _numbers(function: str, argument: str, values: Any) -> npt.NDArray[np.float64]:
    """An array or tensor of any floats as float64."""
    if is_tensor(values):
        arguments.check_memory(function, argument, values)
        values = values.detach().cpu().double().numpy()
    return arguments.as_numbers(function, argument, values)
