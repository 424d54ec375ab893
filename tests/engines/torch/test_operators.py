"""What torch asks of an operator: schema, fake tensors, autograd registration; the SIMD target."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from rotating import turned_by  # noqa: E402
from torch_cases import (  # noqa: E402
    FAR,
    FLOATS,
    FRACTIONAL,
    INTEGERS,
    ROTARY_CASES,
    assert_same_bits,
    dtype_id,
    padded,
    random,
)

import posenc_native as pn  # noqa: E402
from posenc_native.core.calls.caches import Cache  # noqa: E402
from posenc_native.core.calls.norms import Norm  # noqa: E402
from posenc_native.core.calls.rotation import Rotation, flat  # noqa: E402
from posenc_native.engines import backend  # noqa: E402
from posenc_native.engines.torch import library, recurrent  # noqa: E402, F401 - operators

pytestmark = torch_cases.needs_operators
kernel_device = torch_cases.kernel_device

operators = torch.ops.posenc_native
BY_NAME = {case.name: case for case in ROTARY_CASES}


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
        return (*grads, *args), {"of_positions": of_positions}

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


def pair_sample(sample, return_k=True):
    """The sample of q and k with memory for both results, or for q alone."""

    def make(device, requires_grad):
        args, _ = sample(device, requires_grad)
        q, k = (torch.empty_like(x).detach() for x in args[:2])
        return args, {"out_q": q, "out_k": k if return_k else None}

    return make


def add_sample(positions=None, dtype=torch.float32, out=False):
    def make(device, requires_grad):
        x = random((2, 5, 8), dtype, device, requires_grad=requires_grad)
        points = None if positions is None else torch.tensor(positions, device=device)
        args = (x, points, 2.0, 0.5, *SPEC)
        return args, {"out": torch.empty_like(x).detach()} if out else {}

    return make


def norm_sample(
    tables=False, tensors=2, dtype=torch.float32, append=False, over="head", eight_bits=False
):
    """q and k with weights of both; twice for a backward; with caches, which make their scales."""

    def make(device, requires_grad):
        case = BY_NAME["bhsd"]
        q, k = (random(case.shape(h=3 - i), dtype, device, i) for i in range(2))
        grads = [random(x.shape, dtype, device, 7) for x in (q, k)] if tensors == 4 else []
        if tensors != 4:
            q, k = q.requires_grad_(requires_grad), k.requires_grad_(requires_grad)
        weights = [random((x.shape[1], x.shape[-1]), torch.float32, device, 3) for x in (q, k)]
        where = (case.layout, str(case.pairing), case.rotary_start)
        if tables:
            given = flat(turned_by(*case.tables(device=device), *where))
        else:
            given = Rotation(*case.arguments(device)[0], *where)
        options = (*given, *([] if tables else ["float32"]), *Norm(*weights, norm_over=over))
        if not append:
            return (*grads, q, k, *options), {}
        shape, of_cache = (*k.shape[:2], 9, k.shape[3]), torch.int8 if eight_bits else dtype
        caches = [torch.zeros(shape, dtype=of_cache, device=device) for _ in "kv"]
        slots = torch.arange(k.shape[2], device=device)
        cache = Cache(*caches, slots, "bhsd", over == "head")
        if eight_bits:
            made = torch.zeros(shape[:-1], device=device)
            of_heads = torch.ones(k.shape[1], device=device)
            cache = cache._replace(k_scales=made, v_scale_of_heads=of_heads)
        return (q, k, k.detach().clone(), *options, *cache), {}

    return make


NORM_SAMPLES = {
    f"{name}{suffix}{end}": [
        ("head", norm_sample(bool(suffix), append=append, tensors=tensors)),
        ("token", norm_sample(bool(suffix), tensors, torch.bfloat16, append, "token")),
        *([("8 bits", norm_sample(append=True, eight_bits=True))] if append and not suffix else []),
    ]
    for suffix in ("", "_from_tables")
    for name, end, tensors, append in (
        ("norm_rotary_qk", "", 2, False),
        ("norm_rotary_qk", "_", 2, False),
        ("norm_rotary_qk", "_backward", 4, False),
        ("rotary_append", "", 2, True),
        ("rotary_append", "_", 2, True),
    )
}
NORM_SAMPLES |= {
    f"{name}_out": [
        (of, pair_sample(sample, name.startswith("norm") or of != "token"))
        for of, sample in samples
    ]
    for name, samples in NORM_SAMPLES.items()
    if not name.endswith(("_", "_backward"))
}


def transposed(x):
    return x.transpose(0, 1).contiguous().transpose(0, 1)


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


def steps_sample(tensors, form, case):
    """Rotations by steps: heads that share those of one, and packed rows with states."""

    def make(device, requires_grad):
        rows = case == "rows"
        inner, heads = (9,) if rows else (2, 5), [4, 2][:tensors]
        x = [torch.randn(*inner, h, 7) for h in heads]
        steps = torch.randn(*inner, 2, 3, dtype=torch.float64 if rows else torch.float32)
        state, starts = (torch.arange(18).view(3, 2, 3) << 58, torch.tensor([0, 4, 4, 9]))
        options = (state, starts, "thd", "interleaved", 1) if rows else (None, None, "bshd")
        if form == "_backward":
            x = [torch.randn_like(one) for one in x] + x + [torch.empty_like(steps)]
        names = ["out"] if tensors == 1 else ["out_q", "out_k"]
        outs = dict(zip(names, map(torch.empty_like, x), strict=True)) if form == "_out" else {}
        return (*x, steps, *options), outs

    return make


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
    "rotary_qk_out": [("slice", pair_sample(rotary_sample("middle-slice", tensors=2)))],
    "rotary_qk_from_tables_out": [
        ("far", pair_sample(table_sample("thd-far", torch.bfloat16, tensors=2))),
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
    "accumulated_phases": [
        ("float32", lambda device, _: ((random((2, 7, 3), device=device), None), {})),
        ("a state", lambda device, _: (
            (random((3, 7, 2), torch.float64, device).transpose(0, 2),
             torch.arange(6, device=device).view(2, 3)),
            {},
        )),
        ("bfloat16", lambda device, _: (
            (random((7, 3), torch.bfloat16, device), torch.arange(3, device=device)),
            {},
        )),
    ],
    "phase_tables": [
        ("float32", lambda device, _: (
            (torch.arange(35, device=device).view(5, 7) << 58, torch.float32),
            {},
        )),
        ("float16", lambda device, _: ((torch.arange(5, device=device) << 60, torch.float16), {})),
    ],
    **{
        f"{name}{form}": [(case, steps_sample(tensors, form, case)) for case in ("heads", "rows")]
        for tensors, name in ((1, "rotary_by_steps"), (2, "rotary_qk_by_steps"))
        for form in ("", "_", "_out", "_backward")
    },
    "recurrent_positions": [("gru", recurrent_sample)],
    "recurrent_positions_backward": [
        ("gru", lambda device, grad: (
            (random((5, 3), device=device), random((5, 3), device=device, seed=1),
             *recurrent_sample(device, False)[0][1:]),
            {},
        )),
    ],
    **NORM_SAMPLES,
    "sinusoidal_turns": [("shift", lambda device, _: ((8, 1e4, 1.0, 0.5), {}))],
    # Without tensors; nothing to trace.
    "current_target": [],
    "runners": [],
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
# Nothing is registered for autograd: the first sample of each shows that calls go on without it.
@pytest.mark.parametrize(
    ("name", "make", "requires_grad"),
    [
        pytest.param(op, make, grad, id=f"{op}-{label}{'-grad' * grad}")
        for op, samples in SAMPLES.items()
        for i, (label, make) in enumerate(samples)
        for grad in ([False, True] if i == 0 else [False])
    ],
)
def test_opcheck(name, make, requires_grad, kernel_device):
    args, kwargs = make(kernel_device, requires_grad)
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    # What takes half of the time has no views to follow, and goes forwards on its way back: the
    # first sample of each, with a gradient, is enough.
    checks += ["test_aot_dispatch_dynamic"] if requires_grad else []
    torch.library.opcheck(getattr(operators, name).default, args, kwargs, test_utils=checks)


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
