"""Gradients of rotations as kernels compute them, on every SIMD target and as CUDA's threads do.

They are compared with `rotary_gradients`, plain float64, and that one with finite
differences of rotations. What torch makes of them is in test_gradients.py.

Tolerances, all relative to sums of magnitudes of what is added up
    the gradient of x   as every rotation: `oracle.tolerance`
    other sums          a cross product has a gradient of x that is not yet rounded to its format;
                        each of the further n operations of a sum (products, additions, positions
                        and frequencies made numbers of the sum) adds half a unit of the last place
                        of float32, or of float64. The oracle itself is no better than that next
                        to float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import rotary_gradients
from oracle import COMPUTATION, DTYPES, assert_close, assert_same_bits
from targets import CUDA_ON_HOST, NATIVE, NEEDS_NATIVE

from posenc_native.core.calls.views import rotary_view
from posenc_native.engines import backend
from posenc_native.engines.plain import arrays as reference

KINDS = ["[P]", "[1, P]", "[H, P]", "[P] by axis", "[H, P] by axis", "[A, 1, P]", "[A, H, P]"]
LAYOUTS = ["bhsd", "bshd", "sbhd", "thd", "sd", "bsd", "hsd"]


@dataclass
class Call:
    """Arguments of a backward; `x` and `grad` hold one array, or those of q and k."""

    grad: tuple[np.ndarray, ...]
    x: tuple[np.ndarray, ...]
    positions: Any
    inv_freq: np.ndarray
    layout: str = "bhsd"
    pairing: Any = "half"
    start: int = 0
    axis_map: Any = None
    scale: float = 1.0
    inverse: bool = False
    of_positions: bool = True

    def arguments(self) -> tuple[Any, ...]:
        return (self.grad, self.x, self.positions, self.inv_freq, self.layout, self.pairing,
                self.start, self.axis_map, self.scale, self.inverse, self.of_positions)  # fmt: skip

    def run(self, module: ModuleType | Any = None) -> tuple[Any, Any, Any]:
        module = backend.implementation if module is None else module
        return module.rotary_backward(*self.arguments())  # type: ignore[no-any-return]


def call(
    kind: str, layout: str, dtype: str, *, heads: int | tuple[int, ...] = 3, tokens: int = 5,
    batch: int = 2, dim: int = 11, pairs: int = 4, axes: int = 2, batched: bool = False,
    seed: int = 0, **options: Any,
) -> Call:  # fmt: skip
    rng = np.random.default_rng(seed)
    counts = heads if isinstance(heads, tuple) else (heads,)
    sizes = {"b": batch, "s": tokens, "t": tokens, "d": dim}
    own = counts[0] if "h" in layout else 1
    shapes = {
        "[P]": (pairs,), "[1, P]": (1, pairs), "[H, P]": (own, pairs),
        "[A, 1, P]": (axes, 1, pairs), "[A, H, P]": (axes, own, pairs),
    }  # fmt: skip
    leading = (axes,) if "A" in kind or "axis" in kind else ()
    rows = (batch, tokens) if batched and "b" in layout else (tokens,)

    def normal() -> tuple[np.ndarray, ...]:
        return tuple(
            rng.standard_normal([{**sizes, "h": count}[axis] for axis in layout]).astype(
                DTYPES[dtype]
            )
            for count in counts
        )

    if "axis" in kind:
        options["axis_map"] = rng.integers(0, axes, pairs)
    return Call(
        normal(), normal(), rng.uniform(-20, 20, leading + rows),
        rng.uniform(0.1, 1.0, shapes[kind.removesuffix(" by axis")]), layout, **options,
    )  # fmt: skip


def in_float64(given: Call) -> Call:
    grad, x = (tuple(t.astype(np.float64) for t in tensors) for tensors in (given.grad, given.x))
    return replace(given, grad=grad, x=x)


def magnitudes(given: Call) -> tuple[list[np.ndarray], Call]:
    """Of the gradients of x, and the same call on magnitudes: all terms of its sums add up.

    With every angle 0, and the partners of x exchanged and one negative, a cross product of the
    rotation backwards is |x_a y_b| + |x_b y_a|.
    """
    pairs = given.inv_freq.shape[-1]
    view = rotary_view("test", given.x[0].shape, given.layout, given.pairing, given.start, pairs)
    half, dims = view.block // 2, slice(given.start, given.start + 2 * pairs)

    def in_pairs(t: np.ndarray) -> np.ndarray:
        part = np.abs(t[..., dims].astype(np.float64))
        return part.reshape(*t.shape[:-1], pairs // half, 2, half)

    turned, grads, xs = [], [], []
    for grad, x in zip(given.grad, given.x, strict=True):
        y = np.abs(grad.astype(np.float64))
        sums = np.broadcast_to(in_pairs(grad).sum(-2, keepdims=True), in_pairs(grad).shape)
        y[..., dims] = sums.reshape(*grad.shape[:-1], 2 * pairs) * abs(given.scale)
        turned.append(y)
        of_x = np.abs(x.astype(np.float64))
        of_x[..., dims] = (in_pairs(x) * np.array([1.0, -1.0])[:, None]).reshape(y[..., dims].shape)
        grads.append(y)
        xs.append(of_x)
    return turned, replace(given, grad=tuple(grads), x=tuple(xs), scale=1.0, inverse=False)


def sums_of(given: Call) -> tuple[Any, Any]:
    """Of a call of `magnitudes`, over |position| and over |frequency|.

    Where one of the two is 0, nothing turns, and the sum over the other is that of the products.
    """
    tokens = given.x[0].shape[given.layout.replace("t", "s").index("s")]
    positions = np.arange(tokens) if given.positions is None else given.positions
    positions, inv_freq = (np.abs(t.astype(np.float64)) for t in (positions, given.inv_freq))
    _, of_frequencies, _ = replace(given, positions=positions, inv_freq=0 * inv_freq).run(
        rotary_gradients
    )
    _, _, of_positions = replace(given, positions=0 * positions, inv_freq=inv_freq).run(
        rotary_gradients
    )
    return of_frequencies, of_positions


def assert_as_exact_as_they_can_be(given: Call) -> tuple[Any, Any, Any]:
    dtype = str(given.x[0].dtype)
    actual, exact = given.run(), in_float64(given).run(rotary_gradients)
    turned, absolute = magnitudes(given)
    for a, e, x, y in zip(actual[0], exact[0], given.x, turned, strict=True):
        assert a.dtype == x.dtype
        assert_close(a, e, y)
    # What a gradient of x is off by before it is rounded, in its place.
    errors = tuple(COMPUTATION[dtype] * y for y in turned)
    of_x = sums_of(replace(absolute, grad=errors))
    of_all = sums_of(absolute)
    counts = [x.shape[given.layout.index("h")] if "h" in given.layout else 1 for x in given.x]
    rows = given.x[0].size // (counts[0] * given.x[0].shape[-1])
    unit = 2.0**-52 if dtype == "float64" else 2.0**-24
    products = 2 * sum(counts)
    operations = (products + rows + 8, products + given.inv_freq.shape[-1] + 8)
    for a, e, off, magnitude, n in zip(
        actual[1:], exact[1:], of_x, of_all, operations, strict=True
    ):
        if e is None:
            assert a is None
            continue
        assert a.shape == e.shape
        assert a.dtype == np.float64
        excess = np.abs(a - e) - off - n * unit * magnitude
        assert np.all(excess <= 0), excess.max()
    return actual


# The oracle


@pytest.mark.parametrize("pairing", ["half", "interleaved", 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_is_the_derivative(kind, pairing):
    """Central differences, off by step^2 and by rounding / step."""
    for i, layout in enumerate(LAYOUTS):
        heads = (3, 3) if i % 2 and "h" in layout else (3,)
        given = call(
            kind, layout, "float64", heads=heads, batched=i % 3 == 0, pairing=pairing, start=2,
            scale=1.25, inverse=i % 2 == 0,
        )  # fmt: skip

        def loss(positions, inv_freq, x, given=given):
            options = (given.layout, given.pairing, given.start, given.axis_map, given.scale)
            return sum(
                (g * reference.apply_rotary(t, positions, inv_freq, *options, given.inverse, None))
                .sum()
                for g, t in zip(given.grad, x, strict=True)
            )  # fmt: skip

        values = (given.positions, given.inv_freq, given.x)
        of_x, of_frequencies, of_positions = given.run(rotary_gradients)
        rng = np.random.default_rng(i)
        steps = [rng.standard_normal(v.shape) for v in (given.positions, given.inv_freq)]
        steps.append(tuple(rng.standard_normal(x.shape) for x in given.x))
        if given.positions.size * 2 <= of_positions.size:  # one row for all of a batch
            of_positions = of_positions.sum(axis=1)
        expected = (
            (of_positions.reshape(given.positions.shape) * steps[0]).sum(),
            (of_frequencies * steps[1]).sum(),
            sum((g * s).sum() for g, s in zip(of_x, steps[2], strict=True)),
        )
        for which, e in enumerate(expected):
            ends = []
            for h in (1e-5, -1e-5):
                moved = list(values)
                if which == 2:
                    moved[2] = tuple(x + h * s for x, s in zip(values[2], steps[2], strict=True))
                else:
                    moved[which] = values[which] + h * steps[which]
                ends.append(loss(*moved))
            np.testing.assert_allclose((ends[0] - ends[1]) / 2e-5, e, rtol=1e-6, atol=1e-6)


# The kernels


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_layouts_and_pairings(kind, dtype, target):
    first = KINDS.index(kind) + list(DTYPES).index(dtype)
    for i, layout in enumerate(LAYOUTS):
        pairing = ["half", "interleaved", 4][(first + i) % 3]
        heads = (3, 3) if i % 2 and "h" in layout else (3,)
        assert_as_exact_as_they_can_be(
            call(
                kind, layout, dtype, heads=heads, batched=i % 3 == 0, pairing=pairing, start=i % 4,
                scale=1.25, inverse=i % 4 < 2, of_positions=i % 5 > 0, seed=i,
            )
        )  # fmt: skip


# Heads of q (and of k), tokens, head_dim, pairs: where blocks and vectors of kernels end.
SIZES = [
    ((32, 8), 3, 128, 64),
    ((130,), 3, 64, 32),  # heads of a token in several blocks of threads
    ((7, 3), 17, 64, 24),
    ((2, 1), 70, 80, 40),
    ((1,), 3, 640, 320),  # several blocks of vectors
    ((1,), 3, 600, 50),  # some of them have nothing to rotate
    ((1,), 2, 4200, 2100),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(("heads", "tokens", "dim", "pairs"), SIZES)
def test_sizes(heads, tokens, dim, pairs, pairing, dtype, target):
    for kind, batch in (("[P]", 2), ("[P] by axis", 1), ("[A, 1, P]", 1)):
        assert_as_exact_as_they_can_be(
            call(kind, "bshd", dtype, heads=heads, tokens=tokens, dim=dim, pairs=pairs, batch=batch,
                 pairing=pairing, batched=True)
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["[P]", "[H, P]", "[A, H, P]"])
def test_many_tokens(kind, target):
    """More pieces of work than are done at once: a block goes through several."""
    given = call(kind, "hsd", "float32", heads=(6, 6), tokens=1100, dim=8, pairs=4)
    assert_as_exact_as_they_can_be(given)


def test_sums_over_many_axes(target):
    """More frequencies than shared memory has room for, a row of pairs at a time."""
    given = call("[A, H, P]", "hsd", "float32", heads=2, tokens=3, dim=128, pairs=64, axes=90)
    assert_as_exact_as_they_can_be(given)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_arrays(dtype, target):
    rng = np.random.default_rng(2)
    memory = rng.standard_normal((2, 4, 9, 140)).astype(DTYPES[dtype])
    views = [
        memory[:, :, :, :64],
        memory[:, ::-1, :, 3:67],
        memory[..., 0:128:2],
        memory[..., ::-1][..., :64],
        memory.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)[..., 8:72],
        np.broadcast_to(memory[:1, :1, :, :64], (2, 4, 9, 64)),
        np.broadcast_to(memory[:1, :1, :1, :1], (2, 4, 9, 64)),  # the gradient of a sum
    ]
    inv_freq = rng.uniform(0.1, 1.0, (8, 32))[::-2, ::-1]
    positions = rng.integers(-50, 50, (2, 18))[:, ::2]
    for x, grad in zip(views, [*views[1:], views[0]], strict=True):
        for pairing in ("half", "interleaved"):
            given = Call((grad,), (x,), positions, inv_freq, pairing=pairing)
            assert_as_exact_as_they_can_be(given)


@pytest.mark.parametrize("kind", KINDS)
def test_alone_and_together(kind, target):
    """What is asked for changes nothing else, and q with k is the sum of both."""
    given = call(kind, "bshd", "float32", heads=(4, 4), dim=16, pairs=8)
    turned, frequencies, positions = given.run()
    without = replace(given, of_positions=False).run()
    assert without[2] is None
    for a, b in zip((*turned, frequencies), (*without[0], without[1]), strict=True):
        assert_same_bits(a, b)
    each = [
        replace(given, grad=(g,), x=(x,)).run() for g, x in zip(given.grad, given.x, strict=True)
    ]
    for i in range(2):
        assert_same_bits(each[i][0][0], turned[i])
    for together, apart in ((frequencies, 1), (positions, 2)):
        sums = each[0][apart] + each[1][apart]
        np.testing.assert_allclose(together, sums, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_x_has_the_bits_of_the_rotation_backwards(kind, dtype, target):
    given = call(kind, "bhsd", dtype, dim=24, pairs=10, start=3, scale=0.7)
    (turned,), _, _ = given.run()
    options = ("bhsd", "half", 3, given.axis_map, 0.7, True, None)
    assert_same_bits(
        turned,
        backend.implementation.apply_rotary(
            given.grad[0], given.positions, given.inv_freq, *options
        ),
    )


def test_positions_of_every_kind(target):
    given = call("[P]", "bshd", "float64", heads=2)
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        assert_as_exact_as_they_can_be(
            replace(given, positions=np.array([0, 1, 100, 127, 5], dtype=dtype))
        )
    counted, named = (
        replace(given, positions=positions).run() for positions in (None, np.arange(5))
    )
    assert_same_bits(counted[1], named[1])
    assert_same_bits(counted[2], named[2])
    # Far away, and so near to 0 that a fixed point of float32 would have nothing left.
    for positions in (np.array([2**40, -(2**33), 0, 1, -7]), np.array([-1e-10, 1e-9, 0, -3.5, 9])):
        for dtype in ("float32", "float64"):
            x, grad = ((t[0].astype(dtype),) for t in (given.x, given.grad))
            assert_as_exact_as_they_can_be(replace(given, x=x, grad=grad, positions=positions))
    for dtype in ("float32", "float64"):
        assert_as_exact_as_they_can_be(
            replace(given, positions=given.positions.astype(dtype),
                    inv_freq=given.inv_freq.astype(dtype))
        )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_do(kind, target):
    for sizes in ({"tokens": 0}, {"batch": 0}, {"dim": 8, "pairs": 0}, {"heads": 0}):
        given = call(kind, "bshd", "float32", **sizes)
        turned, frequencies, positions = given.run()
        assert frequencies.shape == given.inv_freq.shape
        assert not frequencies.any()
        assert not positions.any()
        if sizes.get("pairs") == 0:
            assert_same_bits(turned[0], given.grad[0])
        axes = len(given.positions) if given.positions.ndim > 1 else 1
        tokens, batch = sizes.get("tokens", 5), sizes.get("batch", 2)
        assert positions.shape == (axes, batch, tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_every_time(kind, target):
    """Whatever the number of threads: pieces and their order are fixed."""
    given = call(kind, "bhsd", "float32", heads=(4, 4), tokens=300, dim=256, pairs=128)
    module = backend.implementation
    before = module.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            module.set_num_threads(threads)
            turned, *sums = given.run()
            results.append((*turned, *sums))
    finally:
        module.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert_same_bits(a, b)


@NEEDS_NATIVE
def test_what_does_not_fit_is_refused():
    given = call("[P]", "bhsd", "float32")
    for module in filter(None, (NATIVE, CUDA_ON_HOST)):
        with pytest.raises(ValueError, match="x: expected shape"):
            replace(given, x=(given.x[0][:, :2],)).run(module)
        with pytest.raises(TypeError, match="x: expected float32"):
            replace(given, x=(given.x[0].astype(np.float64),)).run(module)


@NEEDS_NATIVE
@pytest.mark.parametrize(("grads", "inputs"), [(0, 0), (3, 3), (2000, 2000), (1, 2), (2, 1)])
def test_other_numbers_of_tensors_are_refused(grads, inputs):
    x = np.zeros((1, 1, 5, 8), np.float32)
    given = Call((x,) * grads, (x,) * inputs, None, np.ones(4))
    with pytest.raises(ValueError, match="rotary_backward: grad: expected one or two tensors"):
        given.run(NATIVE)


@NEEDS_NATIVE
@pytest.mark.parametrize(
    "positions",
    [np.array([2**63, 2**64 - 2, 5], np.uint64), np.array([-(2.0**-40), -(2.0**-55), -(2.0**-60)])],
    ids=["beyond int64", "just below 0"],
)
def test_positions_are_numbers_in_sums(target, positions):
    """Phases take uint64 for int64 and -2^-60 for a fraction after -1; sums must not."""
    x, grad = np.zeros((2, 1, 1, 3, 2))
    x[..., 0] = grad[..., 1] = 1
    given = Call((grad,), (x,), positions, np.array([0.25]))
    exact = given.run(rotary_gradients)
    for actual, expected in zip(given.run()[1:], exact[1:], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6 if target == "CUDA" else 1e-14)
