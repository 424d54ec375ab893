"""SinusoidalSpec and GridCoordinates: tables of any arrangement.

The oracle is the definition, entry by entry in float64: what column c of a table says of a row.
"""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Any

import numpy as np
import oracle
import pytest
from oracle import DTYPES, assert_same_bits
from targets import NEEDS_NATIVE

import posenc_native as pn

LAYOUTS = ["interleaved", "sin_cos", "cos_sin"]
PLACES = ["outer", "middle", "inner"]
# Of positions below 50: an angle has a few roundings of 2^-53, a float32 entry two of 2^-24.
WIDE, SINGLE = 50 * 20 * 2.0**-53, 2.0**-23


def entry(function: str, coordinate: float, i: int, pairs: int, base: float, shift: float) -> float:
    angle = coordinate * base ** (-i / (pairs - shift)) if i else coordinate
    return math.sin(angle) if function == "sin" else math.cos(angle)


def defined(
    coordinates: Any, pairs: list[int], layout: str, place: str, order: tuple[int, ...],
    base: Any = 1e4, scale: Any = 1.0, shift: float = 0.0,
) -> np.ndarray:  # fmt: skip
    """[rows, columns] of coordinates [rows, A], each column by its coordinate, function and i."""
    bases = [base] * len(order) if isinstance(base, float) else base
    scales = [scale] * len(order) if isinstance(scale, float) else scale
    functions = ["cos", "sin"] if layout == "cos_sin" else ["sin", "cos"]
    columns = [
        (axis, function, i)
        for axis, function in itertools.product(order, functions)
        for i in range(pairs[axis])
    ]
    within = ["i", "function"] if layout == "interleaved" else ["function", "i"]
    within.insert(PLACES.index(place), "axis")
    ranks = {
        "axis": lambda c: order.index(c[0]),
        "function": lambda c: functions.index(c[1]),
        "i": lambda c: c[2],
    }
    columns.sort(key=lambda c: [ranks[name](c) for name in within])
    return np.array([
        [entry(f, row[a] * scales[a], i, pairs[a], bases[a], shift) for a, f, i in columns]
        for row in np.reshape(coordinates, (-1, len(order)))
    ])  # fmt: skip


def cells(*shape: int) -> np.ndarray:
    """[cells, A], the last axis fastest."""
    return np.array(list(itertools.product(*map(range, shape))), np.float64)


# --- The order of columns


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_order_of_columns(layout, place):
    for order in ((0,), (0, 1), (1, 0), (2, 0, 1)):
        shape = (4, 3, 5)[: len(order)]
        dim = 6 * len(order)
        options = {"base": 300.0, "scale": 0.7, "shift": 0.5, "layout": layout}
        expected = defined(cells(*shape), [3] * len(order), place=place, order=order, **options)
        spec = pn.SinusoidalSpec(dim=dim, axis_order=order, axis_place=place, **options)
        assert spec.pairs == (3,) * len(order)
        given = shape if len(order) > 1 else shape[0]
        table = spec(given, dtype=np.float64)
        assert table.shape == (*shape, dim)
        np.testing.assert_allclose(table.reshape(-1, dim), expected, rtol=0, atol=WIDE)
        np.testing.assert_allclose(spec(given).reshape(-1, dim), expected, rtol=0, atol=SINGLE)


def test_numbers_for_each_axis():
    options = {"base": (300.0, 50.0, 7.0), "scale": (1.0, -0.5, 2.0), "layout": "sin_cos"}
    shape, order = (2, 3, 4), (0, 2, 1)
    expected = defined(cells(*shape), [2, 3, 3], place="outer", order=order, **options)
    table = pn.SinusoidalSpec(16, axis_order=order, shares=(2, 3, 3), **options)(shape)
    np.testing.assert_allclose(table.reshape(-1, 16), expected, rtol=0, atol=SINGLE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_frequencies_given(layout):
    listed = (3.0, 0.25, -1.0)
    points = np.array([0.5, 7.0, -3.0])
    spec = pn.SinusoidalSpec(dim=6, inv_freq=listed, scale=2.0, layout=layout)
    sin, cos = (f(points[:, None] * listed * 2.0) for f in (np.sin, np.cos))
    expected = {
        "interleaved": np.stack([sin, cos], -1).reshape(3, 6),
        "sin_cos": np.concatenate([sin, cos], 1),
        "cos_sin": np.concatenate([cos, sin], 1),
    }[layout]
    np.testing.assert_allclose(spec(points), expected, rtol=0, atol=SINGLE)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dim", "axes"), [(7, 1), (9, 2), (13, 3), (1, 1), (0, 2)])
def test_widths_that_do_not_divide(dim, axes, layout):
    shape, order = (3, 4, 2)[:axes], tuple(range(axes))
    whole = dim // (2 * axes)
    positions: Any = shape if axes > 1 else shape[0]

    def table(remainder):
        spec = pn.SinusoidalSpec(
            dim=dim, axis_order=order, layout=layout, remainder=remainder, base=300.0
        )
        return spec(positions).reshape(math.prod(shape), -1)

    expected = defined(cells(*shape), [whole] * axes, layout, "outer", order, 300.0)
    expected = expected.reshape(math.prod(shape), -1)
    narrow = table("drop")
    assert narrow.shape == expected.shape
    np.testing.assert_allclose(narrow, expected, rtol=0, atol=SINGLE)
    padded = table("zeros")
    assert padded.shape == (math.prod(shape), dim)
    assert np.array_equal(padded[:, : narrow.shape[1]], narrow)
    assert not padded[:, narrow.shape[1] :].any()
    more = whole + (dim % (2 * axes) > 0)
    expected = defined(cells(*shape), [more] * axes, layout, "outer", order, 300.0)
    cut = table("cut")
    np.testing.assert_allclose(cut, expected.reshape(len(cut), -1)[:, :dim], rtol=0, atol=SINGLE)
    if dim % (2 * axes):
        with pytest.raises(ValueError, match=f"dim: expected a multiple of {2 * axes}, got {dim}"):
            table("error")


def test_a_single_pair_has_the_first_frequency():
    expected = defined(cells(5), [1], "sin_cos", "outer", (0,), scale=0.5)
    for shift in (0.0, 1.0, 3.0):
        spec = pn.SinusoidalSpec(dim=2, layout="sin_cos", shift=shift, scale=0.5)
        np.testing.assert_allclose(spec(5), expected, rtol=0, atol=SINGLE)


def test_coordinates_rows_and_positions_that_are_apart():
    points = np.array([[0.25, 4.0], [-1.5, 0.5]])
    spec = pn.SinusoidalSpec(dim=10, axis_order=(1, 0), include_coordinates=True)
    table = spec(points)
    assert np.array_equal(table[:, :2], points[:, ::-1])
    assert_same_bits(table[:, 2:], pn.SinusoidalSpec(dim=8, axis_order=(1, 0))(points))
    levels = np.array([0.5, 2.0, 80.0])
    assert_same_bits(pn.SinusoidalSpec(dim=8, logarithm=True)(levels), pn.sinusoidal(
        np.log(levels), 8))  # fmt: skip
    spec = pn.SinusoidalSpec(dim=8, zero_position=3)
    table, plain = spec(np.array([[3, 0], [5, 3]])), pn.sinusoidal(np.array([[3, 0], [5, 3]]), 8)
    assert not table[0, 0].any()
    assert not table[1, 1].any()
    assert np.array_equal(table[[0, 1], [1, 0]], plain[[0, 1], [1, 0]])
    spec = pn.SinusoidalSpec(dim=8, axis_order=(0, 1), zero_rows=2)
    table = spec((3, 2))
    assert table.shape == (8, 8)
    assert not table[:2].any()
    assert_same_bits(table[2:], pn.SinusoidalSpec(8, axis_order=(0, 1))((3, 2)).reshape(6, 8))
    assert spec(np.zeros((3, 2))).shape == (3, 8)  # zero_rows apply to shapes, not to coordinates
    assert spec((0, 2)).shape == (2, 8)


# --- Coordinates


@pytest.mark.usefixtures("backend")
def test_forms_of_coordinates():
    rows, columns = np.arange(4), np.arange(6)
    spec = pn.SinusoidalSpec(16, axis_order=(0, 1))
    table = spec((4, 6))
    stacked = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1)
    for given in ((rows[:, None], columns[None]), [rows[:, None].tolist(), columns], stacked,
                  stacked.astype(np.float32),
                  np.ones((4, 6), bool)):  # fmt: skip
        assert_same_bits(spec(given), table)
    assert_same_bits(spec(stacked[2:3, 5]), table[2:3, 5])
    assert_same_bits(spec(stacked[2, 5].astype(np.float64)), table[2, 5])
    assert_same_bits(pn.SinusoidalSpec(8)(5), pn.sinusoidal(5, 8))
    for shape in ((0, 3), (3, 0), (0, 0)):
        assert spec(shape).shape == (*shape, 16)
    far = 10**12 + np.arange(3)
    expected = np.concatenate([pn.sinusoidal(far, 8), pn.sinusoidal(-far, 8)], 1)
    assert_same_bits(spec((far, -far)), expected)


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_sizes_are_said_to_be_sizes(engine):
    """The oracle counts cells; older tests have no tuple for one coordinate and no array of sizes.

    Both were positions, without an error: (7,) the row of position 7, [5, 7] one cell.
    """
    xp = np if engine == "numpy" else pytest.importorskip("torch")
    one, two = (pn.SinusoidalSpec.preset("positional_encodings", 12, axes=n) for n in (1, 2))
    assert_same_bits(one(sizes=(7,)), pn.sinusoidal(7, 12))
    grid = np.stack(np.meshgrid(np.arange(5), np.arange(7), indexing="ij"), -1)
    x = xp.zeros((2, 5, 7, 12))
    for sizes in (x.shape[1:-1], xp.asarray([5, 7]), [*xp.asarray([5, 7])]):
        table = two(sizes=sizes)
        assert_same_bits(np.asarray(table), two(grid))
        assert isinstance(table, np.ndarray) == (engine == "numpy" or not hasattr(sizes, "dtype"))
    for sizes in (7, [7], xp.asarray([7]), x.shape[2:3]):
        assert_same_bits(np.asarray(one(sizes=sizes)), pn.sinusoidal(7, 12))
    levels = pn.SinusoidalSpec.preset("deformable_detr", 12, normalize=True)
    assert_same_bits(np.asarray(levels(sizes=xp.asarray([5, 7]))), levels((5, 7)))
    assert pn.SinusoidalSpec.preset("mae", 8, cls_token=True)(sizes=(2, 3)).shape == (7, 8)
    for wrong, match in (
        (lambda: one(x.shape[2:3]), r"write \[7\]\), or sizes=\(7,\) for 7 rows, got the tuple"),
        (lambda: one(x.shape[1:-1]), r"write \[5, 7\]\), or sizes= with a spec of 2 coordinates"),
        (lambda: two(xp.asarray([5, 7])), r"positions \[n, 2\] .*, or sizes= .* got int64 \[2\]"),
        (lambda: levels((xp.asarray(5), xp.asarray(7))), r"2 arrays \[n\] of positions, or sizes="),
        (lambda: two(sizes=(5,)), "sizes: expected 2 ints, one for each axis, got"),
        (lambda: two(sizes=xp.asarray([[5, 7]])), r"sizes: expected 2 ints, .* shape \[1, 2\]"),
        (lambda: two(sizes=(5, -7)), "sizes: expected an int in 0 .."),
        (lambda: two((5, 7), sizes=(5, 7)), "one of positions, sizes and mask, got several"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            wrong()
    for wrong, match in ((lambda: two(sizes=xp.asarray([5.0, 7.0])), "sizes: .*, got float"),
                         (lambda: two(sizes=5), "sizes: .*, got int"),
                         (two, "positions, or sizes=, or mask=, got none")):  # fmt: skip
        with pytest.raises(TypeError, match=match):
            wrong()
    # Positions stay positions.
    assert_same_bits(np.asarray(one(xp.asarray([7]))), pn.sinusoidal(np.array([7]), 12))
    assert_same_bits(one([7]), pn.sinusoidal(np.array([7]), 12))
    assert_same_bits(one((0.5,)), pn.sinusoidal(np.array([0.5]), 12))


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_masks_of_integers(engine):
    """Of 0 and 1; older tests have bools alone. [2, 4, 2] was read as positions of two columns."""
    xp = np if engine == "numpy" else pytest.importorskip("torch")
    detr = pn.SinusoidalSpec.preset("detr", 12)
    for columns in (2, 6):
        mask = np.arange(2 * 4 * columns).reshape(2, 4, columns) % 3 > 0
        expected = detr(mask)
        for dtype in (xp.int64, xp.uint8, xp.int32):
            given = xp.asarray(mask.tolist(), dtype=dtype)
            assert_same_bits(np.asarray(detr(mask=given)), expected)
            with pytest.raises(ValueError, match="write mask= for a mask of integers, sizes= for"):
                detr(given)
        assert_same_bits(np.asarray(detr(mask=xp.asarray(mask))), expected)
    with pytest.raises(ValueError, match="mask: expected the integers 0 and 1"):
        detr(mask=xp.asarray([[0, 2]]))
    with pytest.raises(TypeError, match="mask: expected bools, or the integers 0 and 1, got float"):
        detr(mask=xp.asarray([[0.0, 1.0]]))
    plain = pn.SinusoidalSpec(8, axis_order=(0, 1))  # cells are counted from 0: positions
    assert_same_bits(plain(np.ones((3, 2), int)), plain(np.ones((3, 2))))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("extent", [None, 5.0, (5.0, 2.0)])
@pytest.mark.parametrize(
    "options", [{}, {"first": 1}, {"first": 0.5, "drop": -0.25}, {"low": -1, "drop": 1.0}]
)
def test_coordinates_of_a_grid(options, extent, descending):
    grid = pn.sinusoids.GridCoordinates(extent=extent, descending=descending, **options)
    first, low, drop = (options.get(name, 0) for name in ("first", "low", "drop"))
    extents = (extent, extent) if not isinstance(extent, tuple) else extent
    for shape in ((4, 3), (2, 1)):
        placed = grid.of_shape(shape)
        masked = grid.of_mask(np.ones((3, *shape), bool), 2)
        for axis, (n, reach) in enumerate(zip(shape, extents, strict=True)):
            i = np.arange(n)[:: -1 if descending else 1]
            if reach is None:
                expected = low + i + first
            else:
                expected = low + reach * (i + first) / (n - drop or 1)
            np.testing.assert_allclose(placed[axis].ravel(), expected, rtol=1e-15, atol=1e-15)
            assert placed[axis].shape == ((n, 1), (1, n))[axis]
            if reach is None and first == int(first):
                assert placed[axis].dtype == np.int64
            np.testing.assert_array_equal(masked[axis], np.broadcast_to(placed[axis], (3, *shape)))


def test_coordinates_of_a_mask():
    mask = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]], bool)
    rows, columns = pn.sinusoids.GridCoordinates(first=1).of_mask(mask, 2)
    assert rows.tolist() == [[1, 1, 0, 1], [1, 1, 0, 1], [1, 2, 1, 1]]
    assert columns.tolist() == [[1, 2, 2, 3], [0, 0, 0, 0], [0, 1, 2, 2]]
    given = pn.sinusoids.GridCoordinates(first=1).of_mask(mask.tolist(), 2)
    np.testing.assert_array_equal(given, (rows, columns))
    (halves,) = pn.sinusoids.GridCoordinates(first=0.5, extent=1).of_mask(mask, 1)
    expected = np.array([[0.5, 1.5, 1.5, 2.5], [-0.5] * 4, [-0.5, 0.5, 1.5, 1.5]])
    np.testing.assert_allclose(halves, expected / [[3], [1], [2]], rtol=1e-15)


# --- Dtypes, tensors


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_are_rounded_once(dtype):
    spec = pn.SinusoidalSpec(dim=19, axis_order=(0, 1), remainder="zeros", layout="sin_cos")
    points = np.random.default_rng(0).uniform(-40, 40, (50, 2))
    table = spec(points, dtype=DTYPES[dtype])
    assert table.dtype == DTYPES[dtype]
    expected = defined(points, [4, 4], "sin_cos", "outer", (0, 1))
    oracle.assert_close(table[:, :16], expected, 1.0, WIDE)
    assert not table[:, 16:].astype(np.float64).any()


@NEEDS_NATIVE
@pytest.mark.parametrize("place", PLACES)
def test_tensors_have_the_bits_of_arrays(place):
    torch = pytest.importorskip("torch")
    options = {"axis_order": (1, 0), "axis_place": place, "include_coordinates": True}
    spec = pn.SinusoidalSpec(dim=18, **options)
    points = np.random.default_rng(0).uniform(-40, 40, (5, 2))
    expected = spec(points)
    tensor = torch.from_numpy(points)
    for given in (tensor, tensor.unbind(-1), (points[:, 0], tensor[:, 1])):
        result = spec(given)
        assert isinstance(result, torch.Tensor)
        assert_same_bits(result.numpy(), expected)
    assert_same_bits(spec(points, dtype=torch.float32).numpy(), expected)
    assert_same_bits(spec(points, device="cpu").numpy(), expected)
    assert_same_bits(spec((3, 4), device="cpu").numpy(), spec((3, 4)))
    assert spec((3, 4), device="meta").shape == (3, 4, 18)
    listed = pn.SinusoidalSpec(dim=4, inv_freq=(1.0, 0.3))
    assert_same_bits(listed(tensor).numpy(), listed(points))
    assert_same_bits(listed(5, device="cpu").numpy(), listed(5))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("place", PLACES)
def test_gradients_reach_coordinates(place):
    torch = pytest.importorskip("torch")
    options = {"axis_order": (1, 0), "axis_place": place, "include_coordinates": True, "base": 9.0}
    spec = pn.SinusoidalSpec(dim=10, **options)
    points = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p: spec(p, dtype=torch.float64), points)
    listed = pn.SinusoidalSpec(dim=8, axis_order=(1, 0), axis_place=place, inv_freq=(3.0, 0.25))
    assert torch.autograd.gradcheck(lambda p: listed(p, dtype=torch.float64), points)
    apart = [p.detach().requires_grad_() for p in (points[:, :1], points[None, :, 1])]
    assert torch.autograd.gradcheck(lambda *p: spec(p, dtype=torch.float64), apart)


def test_compiled_in_one_graph():
    torch = pytest.importorskip("torch")
    from compiling import compiled, together

    pn.sinusoidal(torch.arange(2), 2)  # the first use is eager
    mae = pn.SinusoidalSpec.preset("mae", 16, cls_token=True)
    detr = pn.SinusoidalSpec.preset("detr", 16, normalize=True)
    fairseq = pn.SinusoidalSpec.preset("fairseq", 15, padding_idx=1)
    nerf = pn.SinusoidalSpec.preset("nerf", 15)

    def by_name(x):
        # By name: torch.compile needs the hash of an object whose call it sees, and an object made
        # while it traces has none (torch 2.11).
        spec = pn.SinusoidalSpec.preset("detr", 16, normalize=True)
        return spec.__call__(x.shape[1:3], device=x.device)

    def of_tokens(tokens):
        return fairseq(pn.positions.padded_positions(tokens != 1, padding=1, start=2))

    x = torch.randn(2, 5, 7, 16)
    points = torch.randn(4, 3, requires_grad=True)
    # With dynamic=True torch makes tensors of the numbers in a spec that it sees being made.
    static = [(by_name, [x]), (detr, [x[..., 0] > 0])]
    opened = [
        (lambda x: mae(x.shape[1:3], device=x.device), [x]),
        (of_tokens, [torch.tensor([[5, 6, 1], [1, 4, 5]])]),
        (nerf, [points]),
    ]
    for cases, dynamic in ((static, False), (opened, True)):
        torch._dynamo.reset()
        function, inputs = together(cases)
        fast = compiled(function, dynamic=dynamic)
        for result, expected in zip(fast(*inputs), function(*inputs), strict=True):
            assert torch.equal(result, expected)
    grads = [torch.autograd.grad((f(*inputs)[-1] ** 3).sum(), points)[0] for f in (fast, function)]
    assert torch.equal(*grads)
    torch._dynamo.reset()


# --- What a spec is


def test_specs_are_values():
    spec = pn.SinusoidalSpec(
        dim=8, axis_order=[1, 0], base=[3, 4], grid=pn.sinusoids.GridCoordinates(low=1)
    )
    assert spec == pn.SinusoidalSpec(
        dim=8, axis_order=(1, 0), base=(3.0, 4.0), grid=pn.sinusoids.GridCoordinates(low=1)
    )
    assert spec != pn.SinusoidalSpec(dim=8, axis_order=(1, 0), base=(3.0, 4.0))
    assert hash(pickle.loads(pickle.dumps(spec))) == hash(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec
    with pytest.raises(AttributeError):
        spec.dim = 9  # type: ignore[misc]
    names = {"SinusoidalSpec": pn.SinusoidalSpec, "GridCoordinates": pn.sinusoids.GridCoordinates}
    assert eval(repr(spec), names) == spec


V, T = ValueError, TypeError
BAD_SPECS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no axes": ({"axis_order": ()}, V, "axis_order"),
    "an axis twice": ({"axis_order": (0, 0)}, V, "axis_order"),
    "an axis missing": ({"axis_order": (0, 2)}, V, "axis_order"),
    "a text as an axis": ({"axis_order": ("x",)}, T, "axis_order"),
    "layout": ({"layout": "sincos"}, V, "layout"),
    "place": ({"axis_place": "last"}, V, "axis_place"),
    "place None": ({"axis_place": None}, T, "axis_place"),
    "remainder": ({"remainder": "pad"}, V, "remainder"),
    "odd dim": ({"dim": 7}, V, "dim"),
    "negative dim": ({"dim": -2}, V, "dim"),
    "dim of float": ({"dim": 8.0}, T, "dim"),
    "dim for two": ({"dim": 6, "axis_order": (0, 1)}, V, "dim: expected a multiple of 4, got 6"),
    "dim with coordinates": ({"dim": 8, "axis_order": (0, 1), "include_coordinates": True}, V,
                             "dim: expected a multiple of 4 and 2 more, got 8"),
    "dim of less than coordinates": (
        {"dim": 1, "axis_order": (0, 1), "include_coordinates": True, "remainder": "zeros"},
        V, "dim",
    ),
    "base 0": ({"base": 0.0}, V, "base"),
    "bases for another number": ({"base": (1.0, 2.0)}, V, "base"),
    "scale nan": ({"scale": float("nan")}, V, "scale"),
    "shift": ({"shift": 4.0}, V, "shift"),
    "shares": ({"shares": (1, 2)}, V, "shares"),
    "shares of nothing": ({"shares": (0,)}, V, "shares"),
    "shares that do not divide": (
        {"dim": 10, "axis_order": (0, 1), "shares": (1, 2), "remainder": "zeros"}, V, "dim"
    ),
    "shares within": ({"dim": 12, "axis_order": (0, 1), "shares": (1, 2), "axis_place": "inner"}, V,
                      "axis_place"),
    "frequencies": ({"inv_freq": (1.0, 2.0)}, V, "inv_freq: expected 4 frequencies"),
    "a frequency": ({"inv_freq": (1.0, 2.0, 3.0, "x")}, T, "inv_freq"),
    "zero position of two": ({"axis_order": (0, 1), "zero_position": 1}, V, "zero_position"),
    "zero rows": ({"zero_rows": -1}, V, "zero_rows"),
    "grid": ({"grid": 3}, T, "grid"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "match"), BAD_SPECS.values(), ids=BAD_SPECS)
def test_specs_that_cannot_be(options, kind, match):
    with pytest.raises(kind, match=f"SinusoidalSpec: {match}"):
        pn.SinusoidalSpec(**{"dim": 8, **options})


TWO = {"dim": 8, "axis_order": (0, 1)}
BAD_POSITIONS: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "a shape of three": (TWO, (2, 3, 4), V, "positions"),
    "a negative size": (TWO, (2, -3), V, "shape"),
    "three coordinates": (TWO, (np.ones(3),) * 3, V, "positions"),
    "three columns": (TWO, np.ones((5, 3)), V, "positions"),
    "a number": (TWO, np.float64(3.0), T, "positions"),
    "an array of no axes": (TWO, np.array(3.0), V, "positions"),
    "do not broadcast": (TWO, (np.ones(3), np.ones(4)), V, "broadcast"),
    "complex": (TWO, np.ones((5, 2), complex), T, "positions"),
    "text": ({"dim": 8}, "abc", T, "positions"),
    "a mask of one axis": (TWO, np.ones(3, bool), V, "mask"),
    "nan": ({"dim": 8}, np.array([np.nan]), V, "positions"),
}


@pytest.mark.parametrize(
    ("options", "positions", "kind", "match"), BAD_POSITIONS.values(), ids=BAD_POSITIONS
)
def test_positions_that_cannot_be(options, positions, kind, match):
    with pytest.raises(kind, match=match):
        pn.SinusoidalSpec(**options)(positions)


def test_grids_that_cannot_be():
    for options in ({"first": "1"}, {"extent": (1.0, None)}, {"low": None}, {"drop": True}):
        with pytest.raises(TypeError, match=next(iter(options))):
            pn.sinusoids.GridCoordinates(**options)
    with pytest.raises(ValueError, match="extent"):
        pn.sinusoids.GridCoordinates(extent=(1.0,)).of_shape((2, 3))
    with pytest.raises(TypeError, match="mask"):
        pn.sinusoids.GridCoordinates().of_mask(np.ones((2, 3)), 2)
    for wrong in (np.ones(3, bool), (), (2, 3, 4)):
        with pytest.raises(ValueError, match=r"mask|positions"):
            pn.SinusoidalSpec(8, axis_order=(0, 1))(wrong)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_coordinates_that_no_table_has(kind):
    def given(values):
        if kind == "numpy":
            return np.array(values)
        return pytest.importorskip("torch").tensor(values)

    match = r"positions: expected coordinates that broadcast, got \[3\] and \[4\]"
    with pytest.raises(ValueError, match=match):
        pn.SinusoidalSpec(8, axis_order=(0, 1))([given([0.0] * 3), given([0.0] * 4)])
    spec = pn.SinusoidalSpec(dim=4, logarithm=True)
    for values in ([1.0, 0.0], [-1.0], [math.nan]):
        with pytest.raises(ValueError, match="positions: expected coordinates above 0, which have"):
            spec(given(values))
    with pytest.raises(ValueError, match="positions: expected coordinates above 0, which have"):
        spec(3)
    np.testing.assert_array_equal(spec(given([1.0]))[0], [0, 1, 0, 1])


def test_logarithms_and_coordinates_are_compiled():
    torch = pytest.importorskip("torch")
    spec = pn.SinusoidalSpec(dim=4, logarithm=True)
    grid = pn.SinusoidalSpec(8, axis_order=(0, 1))
    for build, arguments in (
        (spec, (torch.tensor([0.5, 2.0]),)),
        (lambda x, y: grid([x, y]), (torch.ones(3, 1), torch.ones(4))),
    ):
        torch._dynamo.reset()
        compiled = torch.compile(build, fullgraph=True, backend="eager", dynamic=True)
        torch.testing.assert_close(compiled(*arguments), build(*arguments))


def test_the_width_may_be_positional():
    assert pn.SinusoidalSpec(8, layout="sin_cos") == pn.SinusoidalSpec(dim=8, layout="sin_cos")
    with pytest.raises(TypeError):
        pn.SinusoidalSpec(8, (0,))
