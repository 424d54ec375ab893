"""posenc_native.nn, relative encodings: their definitions, and as parts of models."""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest

torch = pytest.importorskip("torch")

import relative_modules  # noqa: E402
import torch_cases  # noqa: E402
from compiling import compiled, together  # noqa: E402
from matrices import others_slow  # noqa: E402
from relative_modules import close, randomized  # noqa: E402
from torch_cases import FLOATS, assert_same_bits, dtype_id, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402
from posenc_native.nn import DecomposedRelativePosition  # noqa: E402

device = torch_cases.device
seed = relative_modules.seed
B, H, L, D = 2, 4, 6, 8


BIASES = {
    "ALiBi": lambda: pnn.ALiBi(H),
    "ALiBi causal": lambda: pnn.ALiBi(H, symmetric=False, causal=True),
    "ALiBi learned": lambda: pnn.ALiBi(H, learned=True),
    "Kerple": lambda: pnn.Kerple(H),
    "Kerple power": lambda: pnn.Kerple(H, kind="power"),
    "Sandwich": lambda: pnn.Sandwich(H, dim=16),
    "T5RelativeBias": lambda: pnn.T5RelativeBias(H, 16, 20),
    "T5RelativeBias decoder": lambda: pnn.T5RelativeBias(H, bidirectional=False, causal=True),
    "ClippedRelativeBias": lambda: pnn.ClippedRelativeBias(H, 3, 1),
    "FIRE": lambda: pnn.FIRE(H, hidden=8, threshold=3.0),
    "FIRE causal": lambda: pnn.FIRE(H, hidden=8, threshold=3.0, causal=True),
}
WINDOWS = {
    "SwinRelativeBias": lambda: pnn.SwinRelativeBias(H, (2, 3)),
    "SwinRelativeBias class": lambda: pnn.SwinRelativeBias(H, (1, 5), class_token=True),
    "SwinV2RelativeBias": lambda: pnn.SwinV2RelativeBias(H, (3, 2), hidden=16),
}
VECTORS = {
    "RelativePositionalEncoding": lambda: pnn.RelativePositionalEncoding(H * D, H),
    "RelativePositionalEncoding causal": lambda: pnn.RelativePositionalEncoding(
        H * D, H, causal=True, layout="interleaved", base=500.0, scale=1.0
    ),
    "ShawRelativePosition": lambda: pnn.ShawRelativePosition(D, 3, 1),
    "ShawRelativePosition keys": lambda: pnn.ShawRelativePosition(
        D, 2, values=False, causal=True, scale=0.5
    ),
    "DecomposedRelativePosition": lambda: DecomposedRelativePosition(
        D, (2, 3), k_size=(2, 4), scale=0.5
    ),
    "DecomposedRelativePosition class": lambda: DecomposedRelativePosition(
        D, (1, 5), k_size=(7, 1), class_token=True
    ),
}
MODULES = BIASES | WINDOWS | VECTORS
each_bias = pytest.mark.parametrize("make", BIASES.values(), ids=BIASES)
each_module = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)


def inputs(module, dtype=torch.float32, device="cpu"):
    if isinstance(module, tuple(type(make()) for make in VECTORS.values())):
        return tuple(random((B, H, n, D), dtype, device, n) for n in (L, L + 2))
    return (random((B, H, L, L), dtype, device),)


# --- Definitions


@pytest.mark.parametrize(("length", "rows"), [(5, 5), (5, 9), (7, 4)])
def test_the_skew_of_the_music_transformer(length, rows):
    q, table = random((B, H, length, D)), random((rows, D), seed=1)
    # Its rows are distances -(rows - 1) .. 0; too few are padded with zeros, too many left out.
    used = torch.cat([torch.zeros(max(length - rows, 0), D), table[-length:]])
    padded = torch.nn.functional.pad(q @ used.T, (1, 0))
    expected = padded.reshape(B, H, length + 1, length)[:, :, 1:].tril()
    actual = pn.relative_gather(q @ table.T, None, length, origin=rows - 1)
    close(actual.tril(), expected)
    assert not actual.triu(1).any()


@pytest.mark.parametrize(("q_len", "k_len", "q_offset"), [(6, 6, None), (3, 8, None), (4, 6, 1)])
def test_shaw_by_its_definition(q_len, k_len, q_offset):
    shaw = randomized(pnn.ShawRelativePosition(D, 3, 2)).double()
    q, k, v = (
        random((B, H, n, D), torch.float64, seed=i, requires_grad=True)
        for i, n in enumerate((q_len, k_len, k_len))
    )
    probabilities = torch.softmax(shaw(q, k, q_offset), -1)
    actual = shaw.attend(probabilities, v, q_offset)

    first = k_len - q_len if q_offset is None else q_offset
    distances = torch.arange(k_len) - torch.arange(first, first + q_len)[:, None]
    keys, values = (t[distances.clamp(-3, 2) + 3] for t in (shaw.key_table, shaw.value_table))
    scores = torch.einsum("bhid,bhijd->bhij", q, k[:, :, None] + keys) / math.sqrt(D)
    expected = torch.einsum("bhij,bhijd->bhid", torch.softmax(scores, -1), v[:, :, None] + values)
    close(actual, expected)
    leaves = [q, k, v, *shaw.parameters()]
    weights = random(actual.shape, torch.float64)
    for a, e in zip(
        torch.autograd.grad((actual * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    ):
        close(a, e)


@pytest.mark.parametrize("is_causal", [False, True], ids=["both", "causal"])
@pytest.mark.parametrize(("q_len", "k_len", "q_offset"), [(5, 5, None), (3, 8, None), (4, 4, 2)])
def test_relative_positional_encoding_by_its_definition(q_len, k_len, q_offset, is_causal):
    module = randomized(pnn.RelativePositionalEncoding(H * D, H, causal=is_causal)).double()
    q, k = (random((B, H, n, D), torch.float64, seed=n) for n in (q_len, k_len))
    first = k_len - q_len if q_offset is None else q_offset
    distances = torch.arange(first, first + q_len)[:, None] - torch.arange(k_len)
    table = pn.sinusoidal(distances, H * D, layout="sin_cos", dtype=torch.float64)
    if is_causal:  # keys of the future have no position score
        table = table * (distances >= 0)[..., None]
    close(module.matrix(q_len, k_len, first), table)
    rows = module.linear_pos(table).unflatten(-1, (H, D))
    expected = torch.einsum("bhid,bhjd->bhij", q + module.pos_bias_u[:, None], k)
    expected = expected + torch.einsum("bhid,ijhd->bhij", q + module.pos_bias_v[:, None], rows)
    if is_causal:
        expected = expected.masked_fill(distances < 0, -math.inf)
    close(module(q, k, q_offset), expected / math.sqrt(D))


# --- What all of them do


@each_bias
def test_the_bias_is_what_is_added(make):
    module = randomized(make())
    scores = random((B, H, 3, 7))
    for q_offset in (0, 4, torch.tensor([4, 1]), torch.tensor(4)):
        bias = module.bias(3, 7, q_offset)
        assert bias.shape[-3:] == (H, 3, 7)
        assert_same_bits(module(scores, q_offset), scores + bias)


CAUSAL = {
    "ALiBi": lambda **o: pnn.ALiBi(H, learned=True, **o),
    "Kerple": lambda **o: pnn.Kerple(H, **o),
    "Sandwich": lambda **o: pnn.Sandwich(H, dim=16, **o),
    "T5RelativeBias": lambda **o: pnn.T5RelativeBias(H, 16, 20, **o),
    "ClippedRelativeBias": lambda **o: pnn.ClippedRelativeBias(H, 3, 1, **o),
    "FIRE": lambda **o: pnn.FIRE(H, hidden=8, threshold=3.0, **o),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_bias_in_attention_is_its_mask_and_is_causal(name):
    """scaled_dot_product_attention, which refuses attn_mask and is_causal together."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    plain = randomized(CAUSAL[name]()).double()
    module = CAUSAL[name](causal=True).double()
    module.load_state_dict(plain.state_dict())
    q, k, v = (random((B, H, L, D), torch.float64, seed=n, requires_grad=True) for n in range(3))
    target = random((B, H, L, D), torch.float64, seed=3)
    found = sdpa(q, k, v, attn_mask=module.bias(L, L, dtype=torch.float64))
    (found * target).sum().backward()
    # By hand: the bias is a term of q . k, beside which is_causal can be given.
    unmasked = plain.bias(L, L, dtype=torch.float64).expand(B, -1, -1, -1)
    eye = torch.eye(L, dtype=torch.float64).expand(B, H, L, L)
    width = torch.tensor(D**-0.5, dtype=torch.float64)
    wide = torch.cat([q * width, unmasked], -1), torch.cat([k, eye], -1)
    expected = sdpa(*wide, v, is_causal=True, scale=1.0)
    (expected * target).sum().backward()
    close(found, expected)
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        close(ours.grad, theirs.grad)
    # A step of decoding has the last row.
    step = sdpa(q[:, :, -1:], k, v, attn_mask=module.bias(1, L, L - 1, dtype=torch.float64))
    close(step, expected[:, :, -1:])
    prefix = torch.tensor([2, 1])  # queries of each row behind as many cached keys
    later = torch.arange(L) > prefix[:, None, None] + torch.arange(3)[:, None]
    assert torch.equal(module.bias(3, L, prefix) == -math.inf, later[:, None].expand(-1, H, 3, L))


@each_bias
def test_offsets_of_a_batch_are_rows_of_the_full_bias(make):
    module, k_len = randomized(make()), 9
    full = module.bias(k_len, k_len)
    offsets = torch.tensor([8, 0, 5])
    steps = module.bias(1, k_len, offsets)
    for row, offset in zip(steps, offsets.tolist(), strict=True):
        close(row[:, 0], full[:, offset])
    # The first axis of the scores, whatever lies between it and the heads.
    scores = random((3, 2, H, 1, k_len))
    assert_same_bits(module(scores, offsets), scores + steps[:, None])
    assert_same_bits(module(scores[:, 0], offsets), scores[:, 0] + steps)
    for wrong in (scores[0], scores[:2], scores[0, 0]):
        with pytest.raises(ValueError, match=r": (diagonals|scores): "):
            module(wrong, offsets)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
@pytest.mark.parametrize("name", [*BIASES, *WINDOWS])
def test_the_sum_has_the_dtype_of_the_scores(name, dtype):
    module = randomized(MODULES[name]())
    (scores,) = inputs(module, dtype)
    with torch.no_grad():
        bias = module.bias(L, L) if name in BIASES else module.bias()
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        expected = (scores.to(wide) + bias.to(wide)).to(dtype)  # rounded once
        assert_same_bits(module(scores), expected)
        if "FIRE" not in name:
            place = scores.clone()
            assert module(place, inplace=True) is place
            assert_same_bits(place, expected)
        laid = module.bias(L, L, dtype=dtype) if name in BIASES else module.bias(dtype=dtype)
        assert laid.dtype == dtype
    bad = [scores[:, :1], scores[:, :2], scores[0, 0]]
    if name in WINDOWS:
        bad += [scores[..., :1], scores[..., :1, :]]
    for given in bad:
        with pytest.raises(ValueError, match=r"^\w+: (scores|diagonals): expected .*, got "):
            module(given)


@each_module
def test_the_state_is_the_parameters(make):
    module = make()
    assert not list(module.buffers())
    assert set(module.state_dict()) == {name for name, _ in module.named_parameters()}
    other = randomized(make())
    other.load_state_dict(module.state_dict())
    assert_same_bits(other(*inputs(other)), module(*inputs(module)))


def test_fire_loads_numbers_without_an_axis():
    module, other = randomized(pnn.FIRE(H)), pnn.FIRE(H)
    state = module.state_dict()
    old = {
        name: x.squeeze() if name in ("c", "threshold_scale") else x for name, x in state.items()
    }
    assert [x.ndim for x in old.values()].count(0) == 2
    other.load_state_dict(old)
    assert all(torch.equal(x, state[name]) for name, x in other.state_dict().items())


@each_module
def test_gradients_reach_every_parameter(make, device):
    module = randomized(make()).to(device)
    given = [t.requires_grad_() for t in inputs(module, device=device)]
    result = module(*given)
    if isinstance(module, pnn.ShawRelativePosition):
        result = module.attend(torch.softmax(result, -1), given[1])
    (result[result != -math.inf] ** 2).sum().backward()
    for tensor in (*given, *module.parameters()):
        assert tensor.grad.dtype == tensor.dtype
        assert tensor.grad.any()
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=dtype_id)
@each_module
def test_in_another_dtype(make, dtype):
    module = randomized(make())
    exact = copy.deepcopy(module).to(dtype).double()  # of the rounded parameters
    expected = exact(*(t.double() for t in inputs(module, dtype)))
    module = module.to(dtype)
    result = module(*inputs(module, dtype))
    assert result.dtype == dtype
    # Sums of H * D = 32 products at most, of numbers around 1.
    tolerance = 64 * torch.finfo(dtype).eps if dtype != torch.float64 else 1e-6
    close(result.double(), expected, rtol=tolerance, atol=tolerance)


CHANGES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": lambda m: saved(m),
    "eval, train": lambda m: m.eval().train(),
    "double, float": lambda m: m.double().float(),
    "share_memory": lambda m: m.share_memory(),
}


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@each_module
def test_what_happens_to_models_changes_nothing(make, change):
    module = make()
    given = inputs(module)
    expected = module(*given)
    assert_same_bits(change(module)(*given), expected)


@each_module
def test_on_the_meta_device(make):
    expected = make()(*inputs(make()))
    module = make().to("meta")
    result = module(*(t.to("meta") for t in inputs(module)))
    assert (result.shape, result.dtype, result.device.type) == (
        expected.shape, expected.dtype, "meta",
    )  # fmt: skip
    with torch.device("meta"):
        built = make()
    state = {name: t.clone() for name, t in make().state_dict().items()}
    built.load_state_dict(state, assign=True)
    other = make()
    other.load_state_dict(state)
    assert_same_bits(built(*inputs(built)), other(*inputs(other)))


@torch_cases.needs_operators
@pytest.mark.parametrize("part", others_slow(range(3), 0))
def test_forward_compiles(part):
    torch._dynamo.reset()
    modules = [randomized(MODULES[name]()) for name in MODULES if " " not in name][part::3]
    function, given = together((module, inputs(module)) for module in modules)
    fast = compiled(function)
    expected = function(*given)
    close(fast(*given), expected, rtol=0, atol=0)
    used = [p for m in modules for p in m.parameters() if p is not getattr(m, "value_table", None)]
    grads = [
        torch.autograd.grad(sum((y**2).sum() for y in run(*given) if y.requires_grad), used)
        for run in (fast, function)
    ]
    for a, e in zip(*grads, strict=True):
        close(a, e)
    with torch.no_grad():
        close(fast(*given), expected, rtol=0, atol=0)
    torch._dynamo.reset()


@torch_cases.needs_operators
def test_compiled_lengths_stay_open():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    names = ("ALiBi", "T5RelativeBias decoder", "FIRE causal")
    modules = [randomized(MODULES[name]()) for name in names]

    def function(scores):
        return tuple(module(scores, 0) for module in modules)

    fast = compiled(function, counter)
    counts = []
    for q_len, k_len in ((4, 5), (6, 9), (7, 30), (50, 8)):
        scores = random((B, H, q_len, k_len))
        close(fast(scores), function(scores), rtol=0, atol=0)
        counts.append(counter.frame_count)
    assert counts[-1] == counts[1], counts
    torch._dynamo.reset()


@each_module
def test_without_gradient_the_same_numbers(make):
    module = randomized(make())
    given = inputs(module)
    expected = module(*given)
    before = [t.clone() for t in given]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert_same_bits(module(*given), expected)
    for tensor, kept in zip(given, before, strict=True):
        assert torch.equal(tensor, kept)


def test_layers_share_diagonals():
    module = randomized(pnn.T5RelativeBias(H))
    scores = random((B, H, 3, 9))
    diagonals = module.diagonals(3, 9, 6)
    assert_same_bits(module(scores, diagonals=diagonals), module(scores, q_offset=6))
    with pytest.raises(ValueError, match="diagonals"):
        module(scores, diagonals=module.diagonals(3, 8, 6))


@each_module
def test_ensembles_by_vmap(make):
    module = randomized(make())
    parameters = {
        name: torch.stack([p.detach(), p.detach() * 1.5]) for name, p in module.named_parameters()
    }
    if not parameters:
        return
    given = inputs(module)

    def call(parameters):
        return torch.func.functional_call(module, parameters, given)

    with torch.no_grad():
        mapped = torch.vmap(call)(parameters)
        for i in range(2):
            close(mapped[i], call({name: p[i] for name, p in parameters.items()}))


def test_autocast_keeps_distances_exact():
    module = pnn.RelativePositionalEncoding(H * D, H)
    q, k = inputs(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = module(q, k)
    assert scores.dtype == torch.bfloat16
    close(scores.float(), module(q, k), rtol=0.05, atol=0.05)


def test_kerple_keeps_its_parameters_in_bounds():
    for kind, largest in (("log", None), ("power", 2.0)):
        module = pnn.Kerple(H, kind=kind)
        with torch.no_grad():
            module.r1.fill_(-1.0)
            module.r2.fill_(9.0)
        r1, r2 = torch.full((H,), 0.01), torch.full((H,), largest or 9.0)
        expected = pn.relative.kerple_diagonals(r1, r2, L, L, kind=kind)
        assert_same_bits(module.diagonals(L, L).detach(), expected)


V, T = ValueError, TypeError
Q = torch.zeros(B, H, L, D)
S = torch.zeros(B, H, L, L)
# (error, argument that the message names, call)
BAD = [
    (V, "num_heads", lambda: pnn.ALiBi(-1)),
    (T, "num_heads", lambda: pnn.ALiBi(8.0)),
    (T, "symmetric", lambda: pnn.ALiBi(8, symmetric=1)),
    (T, "causal", lambda: pnn.ALiBi(8, causal=1)),
    (T, "num_heads", lambda: pnn.Kerple("8")),
    (V, "kind", lambda: pnn.Kerple(8, kind="linear")),
    (V, "dim", lambda: pnn.Sandwich(8, dim=7)),
    (V, "base", lambda: pnn.Sandwich(8, base=0.0)),
    (T, "num_heads", lambda: pnn.Sandwich(None)),
    (V, "num_buckets", lambda: pnn.T5RelativeBias(8, 31)),
    (V, "max_distance", lambda: pnn.T5RelativeBias(8, 32, 8)),
    (T, "bidirectional", lambda: pnn.T5RelativeBias(8, bidirectional=None)),
    (V, "left", lambda: pnn.ClippedRelativeBias(8, -1)),
    (T, "right", lambda: pnn.ClippedRelativeBias(8, 1, 2.0)),
    (V, "threshold", lambda: pnn.FIRE(8, threshold=0.0)),
    (V, "hidden", lambda: pnn.FIRE(8, hidden=0)),
    (V, "window", lambda: pnn.SwinRelativeBias(8, 0)),
    (V, "window", lambda: pnn.SwinRelativeBias(8, ())),
    (T, "window", lambda: pnn.SwinRelativeBias(8, 7.0)),
    (T, "window", lambda: pnn.SwinRelativeBias(8, (7, None))),
    (V, "pretrained_window", lambda: pnn.SwinV2RelativeBias(8, 7, pretrained_window=-1)),
    (V, "pretrained_window", lambda: pnn.SwinV2RelativeBias(8, 7, pretrained_window=(6,))),
    (V, "hidden", lambda: pnn.SwinV2RelativeBias(8, 7, hidden=0)),
    (V, "d_model", lambda: pnn.RelativePositionalEncoding(7, 1)),
    (V, "d_model", lambda: pnn.RelativePositionalEncoding(8, 3)),
    (V, "num_heads", lambda: pnn.RelativePositionalEncoding(8, 0)),
    (V, "head_dim", lambda: pnn.RelativePositionalEncoding(8, 2, 0)),
    (V, "layout", lambda: pnn.RelativePositionalEncoding(8, 2, layout="half")),
    (V, "base", lambda: pnn.RelativePositionalEncoding(8, 2, base=-1.0)),
    (T, "scale", lambda: pnn.RelativePositionalEncoding(8, 2, scale="1")),
    (V, "head_dim", lambda: pnn.ShawRelativePosition(0, 2)),
    (V, "left", lambda: pnn.ShawRelativePosition(8, -2)),
    (V, "scale", lambda: pnn.ShawRelativePosition(8, 2, scale=math.nan)),
    (V, "scores", lambda: pnn.ALiBi(H)(S[0, 0])),
    (T, "scores", lambda: pnn.ALiBi(H)(S.int())),
    (V, "diagonals", lambda: pnn.ALiBi(H + 1)(S)),
    (V, "q_offset", lambda: pnn.ALiBi(H)(S, torch.zeros(B, 1).long())),
    (T, "q_offset", lambda: pnn.ALiBi(H)(S, 1.0)),
    (V, "q_len", lambda: pnn.ALiBi(H).bias(-1, 3)),
    (V, "scores", lambda: pnn.FIRE(H)(S[:, :1])),
    (V, "scores", lambda: pnn.SwinRelativeBias(H, 2)(S)),
    (V, "q", lambda: pnn.RelativePositionalEncoding(H * D, H)(Q[:, :1], Q)),
    (V, "k", lambda: pnn.RelativePositionalEncoding(H * D, H)(Q, Q[..., :1])),
    (T, "q_offset", lambda: pnn.RelativePositionalEncoding(H * D, H)(Q, Q, torch.arange(B))),
    (V, "k", lambda: pnn.ShawRelativePosition(D, 2)(Q, Q[..., :1])),
    (T, "q_offset", lambda: pnn.ShawRelativePosition(D, 2)(Q, Q, 1.5)),
]


@pytest.mark.parametrize(("error", "argument", "call"), BAD)
def test_bad_arguments(error, argument, call):
    with pytest.raises(error, match=rf"^\w+: {argument}: expected .*, got "):
        call()
