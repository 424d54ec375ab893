"""The operators under torch: what torch asks of an operator, the bits of NumPy, strided memory,
version counters, the modes of autograd.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import (  # noqa: E402
    FAR,
    FLOATS,
    FRACTIONAL,
    INTEGERS,
    POSITION_DTYPES,
    ROTARY_CASES,
    assert_same_bits,
    dtype_id,
    each_rotary_case,
    random,
    to_numpy,
)

import posenc_native as pn  # noqa: E402
from posenc_native import backend, torch_ops, torch_recurrent  # noqa: E402, F401 - operators

pytestmark = torch_cases.needs_operators
kernel_device = torch_cases.kernel_device

operators = torch.ops.posenc_native
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
BY_NAME = {case.name: case for case in ROTARY_CASES}


# --- torch.library.opcheck: schema, fake tensors, autograd registration, tracing

# op: [(what the sample shows, f(device, requires_grad) -> (args, kwargs))]
SPEC = (1e4, "sin_cos", 1.0, 0.5)


def rotary_sample(name, dtype=torch.float32, tensors=1, view=lambda x: x, out=False):
    def make(device, requires_grad):
        case = BY_NAME[name]
        x = [view(random(case.shape(h=3 - i), dtype, device)) for i in range(tensors)]
        x = [t.requires_grad_(requires_grad) for t in x]
        positional, options = case.arguments(device)
        args = (*x, *positional, case.layout, str(case.pairing), case.rotary_start,
                options["axis_map"], case.scale, case.inverse)  # fmt: skip
        return args, {"out": torch.empty_like(x[0]).detach()} if out else {}

    return make


def backward_sample(name, of_positions, dtype=torch.float32, tensors=1):
    def make(device, requires_grad):
        if device != "cpu":
            pytest.skip("the composition serves other devices")
        args, _ = rotary_sample(name, dtype, tensors)(device, requires_grad)
        grads = [random(x.shape, dtype, device, seed=7) for x in args[:tensors]]
        return (*grads, *args, of_positions), {}

    return make


def table_sample(name, dtype=torch.float32, tensors=1, view=lambda x: x, out=False):
    def make(device, requires_grad):
        case = BY_NAME[name]
        x = [view(random(case.shape(h=3 - i), dtype, device)) for i in range(tensors)]
        x = [t.requires_grad_(requires_grad) for t in x]
        args = (*x, *case.tables(device=device), case.layout, str(case.pairing), case.rotary_start,
                case.inverse)  # fmt: skip
        return args, {"out": torch.empty_like(x[0]).detach()} if out else {}

    return make


def add_sample(positions=None, dtype=torch.float32, out=False):
    def make(device, requires_grad):
        x = random((2, 5, 8), dtype, device, requires_grad=requires_grad)
        points = None if positions is None else torch.tensor(positions, device=device)
        args = (x, points, 2.0, 0.5, *SPEC)
        return args, {"out": torch.empty_like(x).detach()} if out else {}

    return make


def transposed(x):
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def padded(x):
    return torch.nn.functional.pad(x, (3, 5))[..., 3:-5]


def expanded(x):
    return x[:1].expand(x.shape)


def add_bias_sample(dtype=torch.float32, out=False, view=lambda x: x):
    def make(device, requires_grad):
        scores = view(random((2, 3, 4, 6), dtype, device))
        diagonals = random((3, 12), device=device, requires_grad=requires_grad)
        offset = torch.tensor([3, 1], device=device)
        args = (scores.requires_grad_(requires_grad), diagonals, [], [], [6], offset)
        return args, {"out": torch.empty_like(scores).detach()} if out else {}

    return make


def look_up_sample(scatter, dtype=torch.float32, out=False, index=(0, 0, 1, 2, -1, 3, 4, 4)):
    def make(device, requires_grad):
        x = random((2, 4, 5), dtype, device, requires_grad=requires_grad)
        content = random((2, 4, 5), dtype, device, 1, requires_grad=requires_grad)
        columns = None if index is None else torch.tensor(index, device=device)
        added = (0.5, None, None) if scatter else (content, 0.5)
        args = (x, columns, None if index else 2, None, -1, *added)
        if scatter and columns is not None and not columns.is_cpu:
            pytest.skip("the index has to be sorted")
        return (args, {"out": torch.empty_like(x).detach()}) if out else ((*args, 5), {})

    return make


def recurrent_sample(device, requires_grad):
    shapes = ((3,), (9, 3), (9,), (9,))
    state = [random(s, device=device, seed=i, requires_grad=requires_grad)
             for i, s in enumerate(shapes)]  # fmt: skip
    return (5, *state), {}


SAMPLES = {
    "sinusoidal": [
        (str(points.dtype), lambda device, _, p=points, d=dtype: ((p.to(device), 8, *SPEC, d), {}))
        for points, dtype in [
            (torch.tensor(FAR), torch.float64),
            (torch.tensor(FRACTIONAL), torch.bfloat16),
            (torch.tensor([INTEGERS, INTEGERS], dtype=torch.int32).T, torch.float16),
            (torch.tensor(3, dtype=torch.uint8), torch.float32),
        ]
    ],
    "sinusoidal_out": [
        ("out", lambda device, _: (
            (torch.tensor(FAR, device=device), 8, *SPEC),
            {"out": torch.empty(5, 16, device=device)[:, ::2]},
        )),
    ],
    "add_sinusoidal": [("none", add_sample()), ("float16", add_sample(FAR, torch.float16))],
    "add_sinusoidal_": [("one a row", add_sample([FAR, FRACTIONAL]))],
    "add_sinusoidal_out": [("out", add_sample(INTEGERS, torch.bfloat16, out=True))],
    "rotary_tables": [
        (name, lambda device, _, case=BY_NAME[name]: (
            (case.position_tensor(device), case.inv_freq(device).float(),
             case.options(device)["axis_map"], 1.5, torch.float32),
            {},
        ))
        for name in ("hsd-fractional", "axes", "batched-axes-blocks")
    ],
    "rotary": [
        *[(case.name, rotary_sample(case.name)) for case in ROTARY_CASES],
        *[(dtype_id(d), rotary_sample("bhsd", d)) for d in FLOATS],
        ("transposed", rotary_sample("bshd-interleaved", view=transposed)),
        ("padded", rotary_sample("middle-slice", view=padded)),
        ("stride 0", rotary_sample("bhsd", view=expanded)),
    ],
    "rotary_": [
        ("axes", rotary_sample("batched-axes-blocks")),
        ("padded", rotary_sample("bhsd", torch.float16, view=padded)),
    ],
    "rotary_out": [("out", rotary_sample("trailing-slice", out=True))],
    "rotary_qk": [
        ("far", rotary_sample("thd-far", tensors=2)),
        ("views", rotary_sample("sbhd-batched", torch.bfloat16, tensors=2, view=transposed)),
    ],
    "rotary_qk_": [
        ("far", rotary_sample("thd-far", tensors=2)),
        ("padded", rotary_sample("scaled", torch.bfloat16, tensors=2, view=padded)),
    ],
    "rotary_backward": [
        ("axes", backward_sample("batched-axes-blocks", True)),
        ("scaled", backward_sample("scaled", False, torch.bfloat16)),
    ],
    "rotary_qk_backward": [("far", backward_sample("thd-far", True, tensors=2))],
    "rotary_from_tables": [
        ("batched", table_sample("sbhd-batched")),
        ("inverse", table_sample("inverse", torch.float16)),
    ],
    "rotary_from_tables_": [("packed", table_sample("thd-far"))],
    "rotary_from_tables_out": [("slice", table_sample("middle-slice", out=True))],
    "rotary_qk_from_tables": [
        ("far", table_sample("thd-far", tensors=2)),
        ("views", table_sample("sbhd-batched", torch.bfloat16, tensors=2, view=transposed)),
    ],
    "rotary_qk_from_tables_": [
        ("inverse", table_sample("inverse", tensors=2)),
        ("padded", table_sample("middle-slice", torch.float16, tensors=2, view=padded)),
    ],
    "toeplitz_bias": [
        ("grid", lambda device, grad: (
            (random((3, 3, 4), device=device, requires_grad=grad), [3, 4, 6], torch.float16,
             [2, 2], [2, 3]),
            {},
        )),
    ],
    "toeplitz_bias_out": [
        ("out", lambda device, grad: (
            (random((3, 9), torch.float64, device, requires_grad=grad), [], [], [], None),
            {"out": torch.empty(3, 4, 12, device=device)[..., ::2]},
        )),
    ],
    "add_toeplitz_bias": [
        ("plain", add_bias_sample()),
        ("transposed", add_bias_sample(torch.float16, view=transposed)),
        ("stride 0", add_bias_sample(view=expanded)),
    ],
    "add_toeplitz_bias_": [("padded", add_bias_sample(torch.bfloat16, view=padded))],
    "add_toeplitz_bias_out": [("out", add_bias_sample(out=True))],
    "diagonal_sums": [
        ("all", lambda device, grad: (
            (random((2, 3, 4, 6), torch.float16, device, requires_grad=grad), 0, *[None] * 5),
            {},
        )),
        ("table", lambda device, grad: (
            (random((2, 3, 4, 6), device=device, requires_grad=grad), 1, None, None, [12], [6],
             torch.tensor([3, 1], device=device)),
            {},
        )),
    ],
    "relative_gather": [
        ("index", look_up_sample(False)),
        ("shift", look_up_sample(False, torch.bfloat16, index=None)),
    ],
    "relative_gather_out": [("out", look_up_sample(False, torch.float16, out=True))],
    "relative_scatter": [
        ("index", look_up_sample(True)),
        ("shift", look_up_sample(True, torch.bfloat16, index=None)),
    ],
    "relative_scatter_out": [("out", look_up_sample(True, torch.float16, out=True))],
    "frequency_turns": [
        # On the CPU always: it is what prepares a composition for another device.
        ("float32", lambda *_: ((BY_NAME["bhsd"].inv_freq().float(),), {})),
    ],
    "recurrent_positions": [("gru", recurrent_sample)],
    "recurrent_positions_backward": [
        ("gru", lambda device, grad: (
            (random((5, 3), device=device), random((5, 3), device=device, seed=1),
             *recurrent_sample(device, False)[0][1:]),
            {},
        )),
    ],
    "sinusoidal_turns": [("shift", lambda device, _: ((8, 1e4, 1.0, 0.5), {}))],
    # Without tensors; nothing to trace.
    "current_target": [],
    "set_target": [],
    # Tested in test_cuda_support.py.
    "cuda_architectures": [],
    "cuda_versions": [],
    "cuda_failure": [],
}  # fmt: skip


def test_every_operator_has_a_sample():
    prefix = "posenc_native::"
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith(prefix)]
    assert {name.removeprefix(prefix) for name in names} == set(SAMPLES)


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize(
    ("name", "make"),
    [(op, make) for op, samples in SAMPLES.items() for _, make in samples],
    ids=[f"{op}-{label}" for op, samples in SAMPLES.items() for label, _ in samples],
)
def test_opcheck(name, make, requires_grad, kernel_device):
    args, kwargs = make(kernel_device, requires_grad)
    torch.library.opcheck(getattr(operators, name).default, args, kwargs)


def test_the_operators_run_on_the_simd_target_asked_for():
    before = operators.current_target()
    x = random((4, 3, 16))
    try:
        for target in backend.native.available_targets():
            assert operators.set_target(target)
            assert operators.current_target() == target
            on_target = operators.rotary(x, None, BY_NAME["bhsd"].inv_freq(), "shd")
            native = backend.native.current_target()
            assert backend.native.set_target(target)
            expected = pn.apply_rotary(
                x.numpy(), None, BY_NAME["bhsd"].inv_freq().numpy(), layout="shd"
            )
            assert backend.native.set_target(native)
            assert_same_bits(on_target, expected)
        assert not operators.set_target("no such target")
    finally:
        assert operators.set_target(before)


# --- The same bits from NumPy and from torch, however the call is made


@each_dtype
@each_rotary_case
def test_apply_rotary_has_the_bits_of_numpy(case, dtype, kernel_device):
    x = random(case.shape(), dtype, kernel_device)
    positional, options = case.arguments(kernel_device)
    numpy_positional, numpy_options = case.numpy_arguments()
    expected = pn.apply_rotary(to_numpy(x), *numpy_positional, **numpy_options)
    assert not np.array_equal(torch_cases.bits(expected), torch_cases.bits(x))
    assert_same_bits(pn.apply_rotary(x, *positional, **options), expected)

    with_grad = pn.apply_rotary(x.clone().requires_grad_(), *positional, **options)
    assert_same_bits(with_grad, expected)

    out = torch.full_like(x, torch.nan)
    assert pn.apply_rotary(x, *positional, **options, out=out) is out
    assert_same_bits(out, expected)

    again = x.clone()
    assert pn.apply_rotary(again, *positional, **options, out=again) is again
    assert_same_bits(again, expected)


@each_dtype
@each_rotary_case
def test_apply_rotary_qk_has_the_bits_of_two_calls(case, dtype, kernel_device):
    q, k = (random(case.shape(h=h), dtype, kernel_device, seed=h) for h in (4, 2))
    positional, options = case.arguments(kernel_device)
    numpy_positional, numpy_options = case.numpy_arguments()
    expected = pn.apply_rotary_qk(to_numpy(q), to_numpy(k), *numpy_positional, **numpy_options)
    single = [pn.apply_rotary(t, *positional, **options) for t in (q, k)]
    pairs = [
        pn.apply_rotary_qk(q, k, *positional, **options),
        pn.apply_rotary_qk(q.clone().requires_grad_(), k, *positional, **options),
        pn.apply_rotary_qk(q.clone(), k.clone(), *positional, **options, inplace=True),
        single,
    ]
    for rotated_q, rotated_k in pairs:
        assert_same_bits(rotated_q, expected[0])
        assert_same_bits(rotated_k, expected[1])


@pytest.mark.parametrize("table_dtype", FLOATS, ids=lambda d: f"tables-{dtype_id(d)}")
@each_dtype
@pytest.mark.parametrize("name", ["bhsd", "sbhd-batched", "thd-far", "middle-slice", "inverse"])
def test_apply_rotary_tables_has_the_bits_of_numpy(name, dtype, table_dtype, kernel_device):
    case = BY_NAME[name]
    x = random(case.shape(), dtype, kernel_device)
    cos, sin = case.tables(table_dtype, kernel_device)
    options = case.table_options()
    expected = pn.apply_rotary_tables(to_numpy(x), to_numpy(cos), to_numpy(sin), **options)
    assert_same_bits(pn.apply_rotary_tables(x, cos, sin, **options), expected)
    out = torch.full_like(x, torch.nan)
    assert pn.apply_rotary_tables(x, cos, sin, **options, out=out) is out
    assert_same_bits(out, expected)
    again = x.clone()
    pn.apply_rotary_tables(again, cos, sin, **options, out=again)
    assert_same_bits(again, expected)


@pytest.mark.parametrize("table_dtype", FLOATS, ids=lambda d: f"tables-{dtype_id(d)}")
@each_dtype
@pytest.mark.parametrize("name", ["bhsd", "sbhd-batched", "thd-far", "middle-slice", "inverse"])
def test_apply_rotary_qk_tables_has_the_bits_of_two_calls(name, dtype, table_dtype, kernel_device):
    case = BY_NAME[name]
    q, k = (random(case.shape(h=h), dtype, kernel_device, seed=h) for h in (4, 2))
    tables = case.tables(table_dtype, kernel_device)
    options = case.table_options()
    numpy_tables = [to_numpy(table) for table in tables]
    expected = pn.apply_rotary_qk_tables(to_numpy(q), to_numpy(k), *numpy_tables, **options)
    places = q.clone(), k.clone()
    in_place = pn.apply_rotary_qk_tables(*places, *tables, **options, inplace=True)
    assert in_place[0] is places[0]
    assert in_place[1] is places[1]
    pairs = [
        pn.apply_rotary_qk_tables(q, k, *tables, **options),
        pn.apply_rotary_qk_tables(q.clone().requires_grad_(), k, *tables, **options),
        in_place,
        [pn.apply_rotary_tables(t, *tables, **options) for t in (q, k)],
    ]
    for rotated_q, rotated_k in pairs:
        assert_same_bits(rotated_q, expected[0])
        assert_same_bits(rotated_k, expected[1])


@each_dtype
@each_rotary_case
def test_rotary_tables_have_the_bits_of_numpy(case, dtype, kernel_device):
    cos, sin = case.tables(dtype, kernel_device)
    (positions, inv_freq), options = case.numpy_arguments()
    positions = 5 if positions is None else positions
    expected = pn.rotary_tables(
        positions, inv_freq, axis_map=options["axis_map"], scale=case.scale,
        dtype=to_numpy(cos).dtype,
    )  # fmt: skip
    assert_same_bits(cos, expected[0])
    assert_same_bits(sin, expected[1])


@each_dtype
@pytest.mark.parametrize("layout", ["interleaved", "sin_cos", "cos_sin"])
@pytest.mark.parametrize("positions", [INTEGERS, FAR, FRACTIONAL, [INTEGERS, FAR], []])
def test_sinusoidal_has_the_bits_of_numpy(positions, layout, dtype, kernel_device):
    points = torch.tensor(positions, device=kernel_device)
    options = {"base": 5e5, "layout": layout, "shift": 1.0, "scale": 1.5}
    table = pn.sinusoidal(points, 18, dtype=dtype, **options)
    expected = pn.sinusoidal(to_numpy(points), 18, dtype=to_numpy(table).dtype, **options)
    assert table.shape == (*points.shape, 18)
    assert_same_bits(table, expected)
    out = torch.full((*points.shape, 18), torch.nan, dtype=dtype, device=kernel_device)
    assert pn.sinusoidal(points, 18, out=out, **options) is out
    assert_same_bits(out, expected)


@pytest.mark.parametrize("dtype", POSITION_DTYPES, ids=dtype_id)
def test_positions_of_every_dtype_have_the_bits_of_numpy(dtype, kernel_device):
    long = torch.tensor([0, 1, 2, 100, 127])
    whole, long = long.to(dtype).to(kernel_device), long.to(kernel_device)
    assert_same_bits(pn.sinusoidal(whole, 8), pn.sinusoidal(to_numpy(whole), 8))
    assert_same_bits(pn.sinusoidal(whole, 8), pn.sinusoidal(long, 8))
    case = BY_NAME["bhsd"]
    x, inv_freq = random(case.shape(), device=kernel_device), case.inv_freq(kernel_device)
    assert_same_bits(pn.apply_rotary(x, whole, inv_freq), pn.apply_rotary(x, long, inv_freq))


def test_an_int_makes_a_tensor_where_a_torch_dtype_or_device_is_given(kernel_device):
    expected = pn.sinusoidal(7, 8)
    assert_same_bits(pn.sinusoidal(7, 8, dtype=torch.float32), expected)
    table = pn.sinusoidal(7, 8, device=kernel_device)
    assert table.device.type == kernel_device
    assert_same_bits(table, expected)
    out = torch.empty(7, 8, device=kernel_device)
    assert_same_bits(pn.sinusoidal(7, 8, out=out), expected)
    cos, sin = pn.rotary_tables(7, BY_NAME["bhsd"].inv_freq(kernel_device))
    expected = pn.rotary_tables(7, BY_NAME["bhsd"].inv_freq().numpy())
    assert_same_bits(cos, expected[0])
    assert_same_bits(sin, expected[1])


@each_dtype
@pytest.mark.parametrize("layout", ["interleaved", "sin_cos", "cos_sin"])
@pytest.mark.parametrize("positions", [None, FAR, [FAR, FRACTIONAL]], ids=["none", "s", "b,s"])
def test_add_sinusoidal_has_the_bits_of_numpy(positions, layout, dtype, kernel_device):
    x = random((2, 5, 18), dtype, kernel_device)
    points = None if positions is None else torch.tensor(positions, device=kernel_device)
    options = {"x_scale": 3.0, "alpha": 0.5, "layout": layout, "shift": 1.0, "base": 5e5}
    numpy_points = None if points is None else to_numpy(points)
    expected = pn.add_sinusoidal(to_numpy(x), numpy_points, **options)
    assert_same_bits(pn.add_sinusoidal(x, points, **options), expected)
    assert_same_bits(pn.add_sinusoidal(x.clone().requires_grad_(), points, **options), expected)
    out = torch.full_like(x, torch.nan)
    assert pn.add_sinusoidal(x, points, **options, out=out) is out
    assert_same_bits(out, expected)
    again = x.clone()
    assert pn.add_sinusoidal(again, points, **options, out=again) is again
    assert_same_bits(again, expected)


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# Enough bytes that a call is divided, and a number of rows that does not divide evenly.
@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize(
    "call",
    [
        lambda x, inv_freq: pn.apply_rotary(x, None, inv_freq, pairing="interleaved"),
        lambda x, inv_freq: pn.apply_rotary_qk(x, x[:, :3] * 2, None, inv_freq)[1],
        lambda x, inv_freq: pn.apply_rotary(x * 1, None, inv_freq, out=x * 1),
        lambda x, inv_freq: pn.add_sinusoidal(x, layout="sin_cos"),
        lambda x, inv_freq: pn.sinusoidal(torch.arange(4001), 128),
        lambda x, inv_freq: pn.rotary_tables(torch.arange(8001), inv_freq)[1],
        lambda x, inv_freq: pn.apply_rotary_qk_tables(
            x, x[:, :3] * 2, *pn.rotary_tables(torch.arange(701), inv_freq)
        )[1],
    ],
    ids=["rotary", "qk", "in place", "add", "sinusoidal", "tables", "qk by tables"],
)
def test_threads_do_not_change_bits(call):
    x = random((1, 7, 701, 128))
    inv_freq = torch.tensor(pn.rotary_frequencies(128)[0])
    torch.set_num_threads(1)
    one = call(x, inv_freq)
    torch.set_num_threads(2)
    assert_same_bits(call(x, inv_freq), one)


# --- Strided memory


@each_dtype
def test_slices_of_a_packed_qkv_are_rotated_where_they_are(dtype, kernel_device):
    b, s, heads, kv_heads, d = 2, 5, 4, 2, 16
    packed = random((b, s, (heads + 2 * kv_heads) * d), dtype, kernel_device)
    inv_freq = BY_NAME["bhsd"].inv_freq(kernel_device)
    positions = torch.tensor(FAR, device=kernel_device)

    def split(qkv):
        q, k, v = qkv.split([heads * d, kv_heads * d, kv_heads * d], -1)
        return q.unflatten(-1, (heads, d)), k.unflatten(-1, (kv_heads, d)), v

    q, k, v = (t.clone() for t in split(packed))
    expected = pn.apply_rotary_qk(q, k, positions, inv_freq, layout="bshd")
    for layout in ("bshd", "bhsd"):
        work = packed.clone()
        views = split(work)[:2]
        if layout == "bhsd":
            views = [t.transpose(1, 2) for t in views]
        functional = pn.apply_rotary_qk(*views, positions, inv_freq, layout=layout)
        torch.testing.assert_close(work, packed, rtol=0, atol=0)
        by_tables = work.clone()
        there = split(by_tables)[:2]
        if layout == "bhsd":
            there = [t.transpose(1, 2) for t in there]
        real = torch.float64 if dtype == torch.float64 else torch.float32
        tables = pn.rotary_tables(positions, inv_freq, dtype=real)
        pn.apply_rotary_qk_tables(*there, *tables, layout=layout, inplace=True)
        assert_same_bits(split(by_tables)[2], v)
        result = pn.apply_rotary_qk(*views, positions, inv_freq, layout=layout, inplace=True)
        assert result[0] is views[0]
        assert result[1] is views[1]
        for new, same, view in zip(functional, there, views, strict=True):
            assert_same_bits(new, view)
            assert_same_bits(same, view)
        in_q, in_k, in_v = split(work)
        assert_same_bits(in_q, expected[0])
        assert_same_bits(in_k, expected[1])
        assert_same_bits(in_v, v)


@each_rotary_case
def test_any_strides_of_x_positions_and_out_give_the_same_bits(case, kernel_device):
    x = random(case.shape(), device=kernel_device)
    (positions, inv_freq), options = case.arguments(kernel_device)
    expected = pn.apply_rotary(x, positions, inv_freq, **options)
    backwards = tuple(reversed(range(x.ndim)))
    views = {
        "axes reversed": x.permute(backwards).contiguous().permute(backwards),
        "every other": torch.repeat_interleave(x, 2, -1)[..., ::2],
        "offset": torch.cat([x[:1], x])[1:],
        "padded": padded(x),
    }
    for name, view in views.items():
        assert torch.equal(view, x), name
        assert_same_bits(pn.apply_rotary(view, positions, inv_freq, **options), expected)
        out = torch.zeros_like(torch.cat([view, view], -1))[..., 1 : 1 + x.shape[-1]]
        pn.apply_rotary(x, positions, inv_freq, **options, out=out)
        assert_same_bits(out, expected)
        around = torch.cat([view, view + 1], -1)
        part = around[..., : x.shape[-1]]
        pn.apply_rotary(part, positions, inv_freq, **options, out=part)
        assert_same_bits(part, expected)
        assert torch.equal(around[..., x.shape[-1] :], view + 1)
    if positions is not None:
        strided = torch.stack([positions, positions * 0], -1)[..., 0]
        assert not strided.is_contiguous()
        frequencies = torch.stack([inv_freq, inv_freq * 0], -1)[:, 0]
        assert_same_bits(pn.apply_rotary(x, strided, frequencies, **options), expected)


def test_expanded_inputs_give_the_bits_of_their_copies(kernel_device):
    case = BY_NAME["sbhd-batched"]
    (_, inv_freq), options = case.arguments(kernel_device)
    x = random(case.shape(), device=kernel_device)[:, :1].expand(case.shape())
    positions = torch.tensor(FAR, device=kernel_device).expand(2, 5)
    assert 0 in x.stride()
    assert 0 in positions.stride()
    expected = pn.apply_rotary(x.contiguous(), positions.contiguous(), inv_freq, **options)
    assert_same_bits(pn.apply_rotary(x, positions, inv_freq, **options), expected)
    cos, sin = case.tables(device=kernel_device)
    cos, sin = cos[:1, :1].expand(cos.shape), sin[:1, :1].expand(sin.shape)
    options = case.table_options()
    expected = pn.apply_rotary_tables(x.contiguous(), cos.contiguous(), sin.contiguous(), **options)
    assert_same_bits(pn.apply_rotary_tables(x, cos, sin, **options), expected)
    for rotated in pn.apply_rotary_qk_tables(x, x, cos, sin, **options):
        assert_same_bits(rotated, expected)
    row = random((5, 8), device=kernel_device)[:1].expand(2, 5, 8)
    assert_same_bits(pn.add_sinusoidal(row), pn.add_sinusoidal(row.contiguous()))


@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.transpose(1, 2),
        lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(3, -1, -1, -1),
        lambda x: x[:, :, :0],
    ],
    ids=["contiguous", "transposed", "permuted", "step", "expanded", "empty"],
)
def test_results_have_the_strides_of_empty_like(view, requires_grad, kernel_device):
    x = view(random((2, 4, 6, 16), device=kernel_device)).requires_grad_(requires_grad)
    like = torch.empty_like(x).stride()
    inv_freq = BY_NAME["bhsd"].inv_freq(kernel_device)
    tables = pn.rotary_tables(torch.arange(x.shape[2], device=kernel_device), inv_freq)
    assert pn.apply_rotary(x, None, inv_freq).stride() == like
    assert [t.stride() for t in pn.apply_rotary_qk(x, x, None, inv_freq)] == [like, like]
    assert pn.apply_rotary_tables(x, *tables).stride() == like
    assert [t.stride() for t in pn.apply_rotary_qk_tables(x, x, *tables)] == [like, like]
    assert pn.add_sinusoidal(x).stride() == like


def test_a_negated_view_is_read_as_its_values(kernel_device):
    # The imaginary part of a conjugate: memory with the other sign, and a bit that says so.
    parts = (random((2, 3, 5, 8), device=kernel_device, seed=seed) for seed in (0, 1))
    z = torch.complex(*parts).conj().imag
    assert z.is_neg()
    inv_freq = torch.tensor(pn.rotary_frequencies(8)[0], device=kernel_device)
    expected = pn.apply_rotary(z.resolve_neg(), None, inv_freq)
    assert_same_bits(pn.apply_rotary(z, None, inv_freq), expected)


def test_empty_tensors_are_valid(kernel_device):
    def empty(*shape, **options):
        return torch.empty(shape, device=kernel_device, **options)

    inv_freq = BY_NAME["bhsd"].inv_freq(kernel_device)
    for shape in [(0, 3, 5, 16), (2, 0, 5, 16), (2, 3, 0, 16)]:
        x = empty(*shape, requires_grad=True)
        rotated = pn.apply_rotary(x, None, inv_freq)
        assert rotated.shape == x.shape
        rotated.sum().backward()
        assert x.grad.shape == x.shape
        q, k = pn.apply_rotary_qk(empty(*shape), empty(*shape), None, inv_freq)
        assert q.shape == k.shape == x.shape
        tables = pn.rotary_tables(torch.arange(shape[2], device=kernel_device), inv_freq)
        q, k = pn.apply_rotary_qk_tables(empty(*shape), empty(*shape), *tables)
        assert q.shape == k.shape == x.shape
    assert pn.sinusoidal(empty(0, 3), 8).shape == (0, 3, 8)
    assert pn.sinusoidal(torch.arange(3, device=kernel_device), 0).shape == (3, 0)
    assert pn.add_sinusoidal(empty(2, 0, 8)).shape == (2, 0, 8)
    assert [t.shape for t in pn.rotary_tables(empty(0), inv_freq)] == [(0, 8), (0, 8)]
    x = random((2, 3, 5, 16), device=kernel_device)
    assert_same_bits(pn.apply_rotary(x, None, empty(0, dtype=torch.float64)), x)


# --- What autograd has to notice


def inv_freq_8(device="cpu"):
    return torch.tensor(pn.rotary_frequencies(8)[0], device=device)


# f(x) writes over the tensor it is given: every function, in place and by out=.
WRITERS = {
    "apply_rotary-in place": lambda y: pn.apply_rotary(y, None, inv_freq_8(y.device), out=y),
    "apply_rotary-out": lambda y: pn.apply_rotary(
        torch.ones_like(y), None, inv_freq_8(y.device), out=y
    ),
    "apply_rotary_qk-q": lambda y: pn.apply_rotary_qk(
        y, torch.ones_like(y), None, inv_freq_8(y.device), inplace=True
    ),
    "apply_rotary_qk-k": lambda y: pn.apply_rotary_qk(
        torch.ones_like(y), y, None, inv_freq_8(y.device), inplace=True
    ),
    "apply_rotary_qk-options": lambda y: pn.apply_rotary_qk(
        torch.ones_like(y), y, None, inv_freq_8(y.device), inplace=True, scale=2.0
    ),
    "apply_rotary_tables-in place": lambda y: pn.apply_rotary_tables(
        y, *pn.rotary_tables(5, inv_freq_8(y.device)), out=y
    ),
    "apply_rotary_tables-out": lambda y: pn.apply_rotary_tables(
        torch.ones_like(y), *pn.rotary_tables(5, inv_freq_8(y.device)), out=y
    ),
    "apply_rotary_qk_tables-q": lambda y: pn.apply_rotary_qk_tables(
        y, torch.ones_like(y), *pn.rotary_tables(5, inv_freq_8(y.device)), inplace=True
    ),
    "apply_rotary_qk_tables-k": lambda y: pn.apply_rotary_qk_tables(
        torch.ones_like(y), y, *pn.rotary_tables(5, inv_freq_8(y.device)), inplace=True
    ),
    "add_sinusoidal-in place": lambda y: pn.add_sinusoidal(y, out=y),
    "add_sinusoidal-out": lambda y: pn.add_sinusoidal(torch.ones_like(y), out=y),
    "sinusoidal-out": lambda y: pn.sinusoidal(
        torch.arange(30, device=y.device).reshape(2, 3, 5), 8, out=y
    ),
    "Rotary-in place": lambda y: pn.Rotary(8)(y, torch.ones_like(y), inplace=True),
    "Rotary.apply-out": lambda y: pn.Rotary(8).apply(torch.ones_like(y), out=y),
}
each_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@each_writer
def test_writing_counts_as_one_version(write, kernel_device):
    y = random((2, 3, 5, 8), device=kernel_device)
    before, version = y.clone(), y._version
    write(y)
    assert not torch.equal(y, before)
    assert y._version == version + 1
    view = torch.cat([y, y])[2:]
    version = view._base._version
    write(view)
    assert view._base._version == version + 1


@each_writer
def test_backward_notices_that_a_saved_tensor_was_overwritten(write, kernel_device):
    x = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    y = random((2, 3, 5, 8), device=kernel_device, seed=1)
    product = x * y  # its backward needs y
    write(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize(
    "function",
    ["apply_rotary", "apply_rotary_qk", "apply_rotary_tables", "apply_rotary_qk_tables"],
)
def test_backward_notices_that_positions_or_tables_were_overwritten(function, kernel_device):
    x = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    positions, inv_freq = torch.arange(5, device=kernel_device), inv_freq_8(kernel_device)
    for argument in (0, 1):
        others = [positions.clone(), inv_freq.clone()]
        if "tables" in function:
            others = list(pn.rotary_tables(positions, inv_freq))
        if "qk" in function:
            result = getattr(pn, function)(x, x * 2, *others)[0]
        else:
            result = getattr(pn, function)(x, *others)
        others[argument] += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


IN_PLACE = {name: f for name, f in WRITERS.items() if "in place" in name or "_qk" in name}


@pytest.mark.parametrize("write", IN_PLACE.values(), ids=IN_PLACE)
def test_a_leaf_that_requires_a_gradient_is_not_overwritten(write, kernel_device):
    leaf = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    before = leaf.detach().clone()
    for target in (leaf, leaf[:]):
        with pytest.raises(RuntimeError, match="leaf"):
            write(target)
        assert torch.equal(leaf, before)
    with torch.no_grad():
        write(leaf)
    assert not torch.equal(leaf, before)


OUT = {name: f for name, f in WRITERS.items() if name.endswith("out")}


@pytest.mark.parametrize("write", OUT.values(), ids=OUT)
def test_out_does_not_take_part_in_autograd(write, kernel_device):
    # As torch's own out=: written, such a tensor would keep a gradient that is not its own.
    leaf = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    for out in (leaf, leaf * 1):
        before = out.detach().clone()
        with pytest.raises((RuntimeError, ValueError)):
            write(out)
        assert torch.equal(out, before)


def test_out_of_an_input_with_gradient_is_refused(kernel_device):
    x = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    out = torch.zeros(2, 3, 5, 8, device=kernel_device)
    inv_freq = inv_freq_8(kernel_device)
    with pytest.raises(ValueError, match="apply_rotary: out: "):
        pn.apply_rotary(x, None, inv_freq, out=out)
    with pytest.raises(ValueError, match="add_sinusoidal: out: "):
        pn.add_sinusoidal(x, out=out)
    with pytest.raises(ValueError, match="apply_rotary_tables: out: "):
        pn.apply_rotary_tables(x, *pn.rotary_tables(5, inv_freq), out=out)
    assert not out.any()
    with torch.no_grad():
        pn.apply_rotary(x, None, inv_freq, out=out)
    assert_same_bits(out, pn.apply_rotary(x, None, inv_freq))


# --- Modes


FUNCTIONS = {
    "apply_rotary": lambda x: pn.apply_rotary(x, None, inv_freq_8(x.device)),
    "apply_rotary_qk": lambda x: pn.apply_rotary_qk(x, x * 2, None, inv_freq_8(x.device))[0],
    "apply_rotary_tables": lambda x: pn.apply_rotary_tables(
        x, *pn.rotary_tables(5, inv_freq_8(x.device))
    ),
    "apply_rotary_qk_tables": lambda x: pn.apply_rotary_qk_tables(
        x, x * 2, *pn.rotary_tables(5, inv_freq_8(x.device))
    )[0],
    "add_sinusoidal": lambda x: pn.add_sinusoidal(x),
    "Rotary": lambda x: pn.Rotary(8)(x, x * 2)[0],
    "Rotary.apply": lambda x: pn.Rotary(8).apply(x),
}
each_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


@each_function
def test_no_grad_and_inference_mode_compute_the_same_and_record_nothing(function, kernel_device):
    x = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    expected = function(x)
    assert expected.requires_grad
    with torch.no_grad():
        result = function(x)
    assert not result.requires_grad
    assert_same_bits(result, expected)
    with torch.inference_mode():
        result = function(x)
        assert result.is_inference()
        assert_same_bits(result, expected)
        fresh = x.clone()
        assert fresh.is_inference()
        assert_same_bits(function(fresh), expected)
    assert not function(x.detach()).requires_grad


@each_writer
def test_inference_mode_writes(write, kernel_device):
    y = random((2, 3, 5, 8), device=kernel_device)
    with torch.inference_mode():
        inference = y.clone()
        write(inference)
    write(y)
    assert_same_bits(inference, y)


def test_autograd_saves_no_copy_of_the_input(kernel_device):
    saved = []
    x = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    positions, inv_freq = torch.arange(5, device=kernel_device), inv_freq_8(kernel_device)

    def pack(tensor):
        saved.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        pn.apply_rotary_qk(x, x * 1, positions, inv_freq)
        pn.apply_rotary_qk_tables(x, x * 1, *pn.rotary_tables(positions, inv_freq))
        pn.add_sinusoidal(x)
    assert x.shape not in saved


@each_dtype
@each_function
def test_autocast_leaves_dtypes_alone(function, dtype, kernel_device):
    x = random((2, 3, 5, 8), dtype, kernel_device)
    ones = torch.ones(8, 8, device=kernel_device)
    expected = function(x)
    with torch.autocast(kernel_device, dtype=torch.bfloat16):
        result = function(x)
        linear = torch.nn.functional.linear(ones, ones)
    assert linear.dtype == torch.bfloat16
    assert result.dtype == dtype
    assert_same_bits(result, expected)


def test_autocast_leaves_positions_exact(kernel_device):
    # 16-bit floats have no 4097: cast, it would turn by the angle of 4096.
    positions = torch.tensor([4097.0, 2.0**20 + 1], device=kernel_device)
    with torch.autocast(kernel_device, dtype=torch.bfloat16):
        table = pn.sinusoidal(positions, 8)
        assert table.dtype == torch.float32
        encoded = pn.add_sinusoidal(torch.zeros(2, 8, device=kernel_device), positions)
    assert_same_bits(table, pn.sinusoidal(positions.long(), 8))
    assert_same_bits(encoded, table)


@each_function
def test_subclasses_of_tensor_pass_through(function, kernel_device):
    class Tagged(torch.Tensor):
        pass

    x = random((2, 3, 5, 8), device=kernel_device)
    result = function(x.as_subclass(Tagged))
    assert isinstance(result, Tagged)
    assert_same_bits(result.as_subclass(torch.Tensor), function(x))
    assert function(torch.nn.Parameter(x)).requires_grad


def test_the_raw_operators_do_not_lose_a_gradient_silently(kernel_device):
    x = random((2, 3, 5, 8), device=kernel_device, requires_grad=True)
    result = torch_ops._ops.rotary(x, None, inv_freq_8(kernel_device))
    with pytest.warns(UserWarning, match="autograd kernel was not registered"):
        result.sum().backward()
