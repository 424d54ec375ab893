"""`Rotary.bind`: the bits, the errors and the followers of an ordinary call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import posenc_native as pn
from posenc_native.engines import backend

native = pytest.mark.skipif(backend.native is None, reason="without native code")

SHAPES = {"bhsd": (2, 3, 1, 16), "bshd": (2, 1, 3, 16), "sbhd": (1, 2, 3, 16), "thd": (5, 3, 16)}
DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def heads(shape: Any, dtype: Any = np.float32, seed: int = 0) -> tuple[Any, Any]:
    """q, and k with a head less."""
    random = np.random.default_rng(seed)
    q = random.standard_normal(shape).astype(dtype)
    return q, random.standard_normal(shape).astype(dtype)


def tensors(arrays: Any) -> list[Any]:
    torch = pytest.importorskip("torch")
    return [
        torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
        if x.dtype == ml_dtypes.bfloat16
        else torch.from_numpy(x.copy())
        for x in arrays
    ]


def same(ours: Any, theirs: Any) -> bool:
    return all(
        (a.tolist(), a.shape, a.dtype) == (b.tolist(), b.shape, b.dtype)
        for a, b in zip(ours, theirs, strict=True)
    )


class Counting:
    """Counts the calls that a bound rotation has not taken itself."""

    def __init__(self, rope: pn.Rotary) -> None:
        self.rope, self.calls = rope, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.rope(*args, **kwargs)


def counted(rope: pn.Rotary, *args: Any, **kwargs: Any) -> tuple[Any, Counting]:
    step: Any = rope.bind(*args, **kwargs)
    step._rotary = Counting(rope)
    return step, step._rotary


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_the_bits_of_an_ordinary_call(kind: str, layout: str, dtype: Any, inplace: bool) -> None:
    shape = SHAPES[layout]
    make: Callable[[Any], Any] = tensors if kind == "tensors" else list
    for pairing, inverse in (("half", False), ("interleaved", True), (8, False)):
        rope = pn.Rotary(16, pairing=pairing, rotary_dim=8, rotary_start=4, scale=1.5)
        step, ordinary = counted(
            rope, *make(heads(shape, dtype)), layout=layout, inverse=inverse, inplace=inplace
        )
        tokens = shape[layout.replace("t", "s").index("s")]
        for first in (0, 77, -3, 2**40):
            given = heads(shape, dtype, seed=first % 100)
            positions = make([np.arange(first, first + tokens)])[0]
            expected = rope(*make(given), positions, layout=layout, inverse=inverse)
            for position in (first, positions):
                q, k = make([x.copy() for x in given])
                rotated = step(q, k, position)
                assert same(rotated, expected)
                assert (rotated[0] is q, rotated[1] is k) == (inplace, inplace)
                assert inplace or same((q, k), make(given))
        if backend.implementation is backend.native is not None:
            assert not ordinary.calls


@native
def test_positions_of_every_kind() -> None:
    rope = pn.Rotary(16)
    q, k = heads((2, 3, 4, 16))
    step, ordinary = counted(rope, q, k)
    rows = np.array([[5, 6, 7, 8], [50, 51, 52, 53]])
    taken: list[Any] = [rows, rows.astype(np.int32), rows.astype(np.uint8), rows[::-1], rows[0]]
    taken += [np.broadcast_to(rows[:1], (2, 4)), np.arange(8)[::2], 9]
    for position in taken:
        positions = np.arange(9, 13) if isinstance(position, int) else position
        assert same(step(q, k, position), rope(q, k, positions))
    assert not ordinary.calls
    passed_on: list[Any] = [rows + 0.5, None, [1, 2, 3, 4], np.int64(9)]
    for position in passed_on:
        positions = np.arange(9, 13) if isinstance(position, np.int64) else position
        assert same(step(q, k, position), rope(q, k, positions))
    assert ordinary.calls == len(passed_on)


@native
def test_what_differs_from_what_was_bound_is_an_ordinary_call() -> None:
    rope = pn.Rotary(16)
    q, k = heads((2, 3, 1, 16))
    step, ordinary = counted(rope, q, k)
    unaligned = np.frombuffer(bytes(1) + q.tobytes(), np.uint8)[1:].view(np.float32)

    class Subclass(np.ndarray):  # type: ignore[type-arg]
        pass

    others = {
        "more rows": heads((3, 3, 1, 16)),
        "another head": (heads((2, 4, 1, 16))[0], k),
        "more tokens": heads((2, 3, 2, 16)),
        "float64": heads((2, 3, 1, 16), np.float64),
        "other strides": (q.repeat(2, axis=-1)[..., ::2], k),
        "transposed": (np.asfortranarray(q), k),
        "a subclass": (q.view(Subclass), k),
    }
    for name, (other_q, other_k) in others.items():
        before = ordinary.calls
        tokens = np.shape(other_q)[2]
        expected = rope(other_q, other_k, np.arange(7, 7 + tokens))
        assert same(step(other_q, other_k, 7), expected), name
        assert ordinary.calls == before + 1, name
    with pytest.raises(ValueError, match="apply_rotary_qk: q: expected aligned memory"):
        step(unaligned.reshape(q.shape), k, 7)


WRONG: dict[str, Callable[[Any, Any], tuple[Any, Any, Any]]] = {
    "another shape of k": lambda q, k: (q, k[:1].copy(), np.array([7])),
    "another dtype of k": lambda q, k: (q, k.astype(np.float64), np.array([7])),
    "a missing axis": lambda q, k: (q[0].copy(), k[0].copy(), np.array([7])),
    "narrow heads": lambda q, k: (q[..., :8].copy(), k[..., :8].copy(), np.array([7])),
    "positions of other tokens": lambda q, k: (q, k, np.array([7, 8])),
    "positions of other rows": lambda q, k: (q, k, np.arange(3)[:, None]),
    "positions of three axes": lambda q, k: (q, k, np.zeros((1, 2, 1), int)),
    "positions that are not numbers": lambda q, k: (q, k, np.array(["7"])),
    "a bool": lambda q, k: (q, k, True),
    "integers": lambda q, k: (q.astype(int), k.astype(int), np.array([7])),
    "one array for both": lambda q, k: (q, q, np.array([7])),
    "views that overlap": lambda q, k: (q, q[::-1], np.array([7])),
    "positions in q": lambda q, k: (q, k, q.view(np.int64)[:, 0, :, 0]),
    "positions in k": lambda q, k: (q, k, k.view(np.int64)[:, 0, :, 0]),
    "a row shown twice": lambda q, k: (np.broadcast_to(q[:1], q.shape), k, np.array([7])),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_errors_are_those_of_an_ordinary_call(kind: str, what: str) -> None:
    torch = pytest.importorskip("torch") if kind == "tensors" else None
    rope = pn.Rotary(16)
    q, k = heads((2, 3, 1, 16))
    arrays_alone = ("views that overlap", "positions that are not numbers", "a row shown twice")
    if torch is not None and what in arrays_alone:
        pytest.skip("torch makes none of it from an array")
    given = WRONG[what](q, k)
    if torch is not None:
        given = tuple(torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in given)
        q, k = torch.from_numpy(q), torch.from_numpy(k)
    step = rope.bind(q, k, inplace=True)
    before = given[0].tolist()
    with pytest.raises((ValueError, TypeError)) as expected:
        rope(*given, inplace=True)
    with pytest.raises(expected.type) as error:
        step(*given)
    assert str(error.value) == str(expected.value)
    assert given[0].tolist() == before


def test_read_only_arrays_and_wrong_kinds() -> None:
    rope = pn.Rotary(16)
    q, k = heads((2, 3, 1, 16))
    step = rope.bind(q, k, inplace=True)
    q.flags.writeable = False
    with pytest.raises(ValueError, match="q: expected a writable array"):
        step(q, k, 7)
    with pytest.raises(ValueError, match="positions: expected an int of 64 bits"):
        step(k, k.copy(), 2**63)
    with pytest.raises(TypeError):
        step(k)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="layout"):
        rope.bind(k, k.copy(), layout="bhsx")
    with pytest.raises(ValueError, match="4 axes for layout"):
        rope.bind(k[0], k[0])


@native
@pytest.mark.parametrize("first", [2**63 - 2, -(2**63)])
def test_the_last_and_the_first_positions_of_64_bits(first: int) -> None:
    rope = pn.Rotary(16)
    q, k = heads((2, 3, 2, 16))
    expected = rope(q, k, np.array([first, first + 1]))
    for ours, theirs in zip(rope.bind(q, k)(q, k, first), expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_slices_of_one_array() -> None:
    """They cross each other in memory and have no element in common."""
    rope = pn.Rotary(16)
    packed = heads((2, 1, 6, 16))[0]
    q, k = packed[:, :, :4], packed[:, :, 4:]
    expected = rope(q, k, np.array([7]), layout="bshd")
    step = rope.bind(q, k, layout="bshd", inplace=True)
    assert same(step(q, k, 7), expected)


def test_empty_and_several_axes() -> None:
    rope = pn.Rotary(16)
    none = np.zeros((0, 3, 1, 16), np.float32)
    assert rope.bind(none, none)(none, none, 7)[0].shape == none.shape
    axial = pn.Rotary(16, axis_map=[0] * 4 + [1] * 4)
    q, k = heads((2, 3, 4, 16))
    positions = np.arange(8).reshape(2, 4)
    assert same(axial.bind(q, k)(q, k, positions), axial(q, k, positions))


def test_the_reference_is_followed() -> None:
    rope = pn.Rotary(16)
    q, k = heads((2, 3, 1, 16))
    step, ordinary = counted(rope, q, k)
    before = backend.implementation
    pn.set_backend("reference")
    try:
        assert same(step(q, k, 7), rope(q, k, np.array([7])))
        assert ordinary.calls == 1
    finally:
        backend.use(before)


# --- torch ----------------------------------------------------------------------------------------


def bound_tensors(**options: Any) -> tuple[Any, Any, Any, Any, Counting]:
    q, k = tensors(heads((2, 3, 1, 16)))
    rope = pn.Rotary(16)
    step, ordinary = counted(rope, q, k, **options)
    return rope, q, k, step, ordinary


def test_gradients_flow() -> None:
    torch = pytest.importorskip("torch")
    rope, q, k, step, ordinary = bound_tensors()
    q.requires_grad_()
    step(q, k, 7)[0].square().sum().backward()
    ours, q.grad = q.grad, None
    rope(q, k, torch.tensor([7]))[0].square().sum().backward()
    assert torch.equal(ours, q.grad)
    assert ordinary.calls == 1
    with torch.no_grad():
        assert not step(q, k, 7)[0].requires_grad


def test_autograd_learns_what_was_overwritten() -> None:
    torch = pytest.importorskip("torch")
    _, q, k, step, _ = bound_tensors(inplace=True)
    factor = torch.ones_like(q, requires_grad=True)
    product = q * factor
    versions = q._version, k._version
    step(q, k, 7)
    assert (q._version, k._version) == (versions[0] + 1, versions[1] + 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_tensors_of_inference_mode_outside_of_it() -> None:
    torch = pytest.importorskip("torch")
    _, q, k, step, _ = bound_tensors(inplace=True)
    with torch.inference_mode():
        frozen = q.clone()
        step(frozen, k.clone(), 7)
    before = frozen.clone()
    with pytest.raises(RuntimeError, match="inference tensor"):
        step(frozen, k, 7)
    assert torch.equal(frozen, before)


@native
def test_modes_and_transforms_follow() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    rope, q, k, step, ordinary = bound_tensors()

    class Follows(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    with Follows():
        step(q, k, torch.tensor([7]))
    assert seen
    position = torch.tensor([7])
    ours = torch.func.vmap(lambda x: step(x, k, position)[0])(torch.stack((q, q)))
    assert same(ours, torch.stack((rope(q, k, position)[0],) * 2))
    assert ordinary.calls == 2


def test_tensors_that_are_not_plain() -> None:
    torch = pytest.importorskip("torch")
    rope, q, k, step, _ = bound_tensors()
    position = torch.tensor([7])
    negated = torch.complex(q, q).conj().imag
    assert negated.is_neg()
    for other in (torch.nn.Parameter(q, requires_grad=False), negated, q.to("meta")):
        if other.is_meta:
            assert step(other, k.to("meta"), 7)[0].is_meta
        else:
            assert same(step(other, k, 7), rope(other, k, position))
    freed = q.clone()
    freed.untyped_storage().resize_(0)
    with pytest.raises((ValueError, RuntimeError)):
        step(freed, k, 7)


@pytest.mark.parametrize("inplace", [False, True])
def test_compiled(inplace: bool) -> None:
    torch = pytest.importorskip("torch")
    rope, q, k, step, _ = bound_tensors(inplace=inplace)
    expected = rope(q, k, torch.tensor([7]))
    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, k, position: step(q * 1.0, k * 1.0, position), backend="eager", fullgraph=True
    )
    assert same(compiled(q, k, torch.tensor([7])), expected)
    torch.compiler.reset()


@native
def test_large_tensors_are_bound_too() -> None:
    torch = pytest.importorskip("torch")
    q, k = torch.randn(1, 32, 512, 64), torch.randn(1, 8, 512, 64)
    rope = pn.Rotary(64)
    step, ordinary = counted(rope, q, k)
    assert same(step(q, k, 7), pn.apply_rotary_qk(q, k, torch.arange(7, 519), rope.inv_freq))
    assert ordinary.calls == 0


def test_repr() -> None:
    q, k = heads((2, 3, 1, 16))
    text = repr(pn.Rotary(16).bind(q, k, inplace=True))
    assert text.startswith("<Rotary(16")
    assert "inplace=True" in text


@native
def test_frequencies_of_each_head_are_left_to_ordinary_calls():
    """A bound rotation has room for one row of frequencies."""
    q, k = np.ones((2, 1, 3, 1, 16), np.float32)
    inv_freq = np.ones((3, 8))
    bound = backend.native.bind_rotary_qk(q, k, inv_freq, "bhsd", "half", 0, 1.0, False, True)
    assert bound is NotImplemented


@native
def test_slices_of_a_packed_projection_stay_bound():
    """Those that lie as far apart; others may have elements in common, as the last ones do."""
    inv_freq = pn.rotary.rotary_frequencies(16, 10000.0)[0]
    first, packed = heads((5, 7, 16))[0], heads((5, 7, 16))[1]
    options = (inv_freq, "thd", "half", 0, 1.0, False, True)
    bound = backend.native.bind_rotary_qk(first[:, :4], first[:, 4:6], *options)
    expected = pn.Rotary(16)(packed[:, :4], packed[:, 4:6], np.arange(5), layout="thd")
    assert same(bound(packed[:, :4], packed[:, 4:6], np.arange(5)), expected)
    assert bound(packed[:, :4], packed[:, 5:], np.arange(5)) is NotImplemented
    assert bound(packed[:, :4], packed[:, 3:5], np.arange(5)) is NotImplemented
