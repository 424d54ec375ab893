"""nn.NormRotaryEmbedding: torch's RMS norm and the rotation of RotaryEmbedding in one.

Tolerances. In float64 both ways take a few roundings of 2**-53 each, of results of up to 10; sums
for gradients have up to 2 * 5 * 3 terms. 1e-12 is a hundred times that. In 16 bits a result is the
float64 one, rounded once, and some float32 roundings before: see `assert_rounded_once`.
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from compiling import assert_like_eager  # noqa: E402
from matrices import others_slow  # noqa: E402
from torch_cases import assert_same_bits, dtype_id, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402
from posenc_native.core.calls.errors import fault_of  # noqa: E402

device = torch_cases.device

D, H, KV = 16, 3, 1
Q, K = 5 * random((2, H, 5, D)), random((2, KV, 5, D), seed=1)
FAR = torch.tensor([0, 10**6, -3, 2**31, 4097])

# The arguments of a module.
CASES = {
    "head": {},
    "eps": {"eps": 0.5},
    "no weights": {"weights": False},
    "by head": {"heads": H, "kv_heads": KV},
    "token": {"norm_over": "token", "heads": H, "kv_heads": KV},
    "token, no weights": {"norm_over": "token", "weights": False},
    "1 + w": {"weight_offset": 1.0},
    "after": {"norm_first": False},
    "slice": {"rotary_dim": 8, "rotary_start": 4, "pairing": "interleaved", "base": 5e5},
    "scaled": {"scaling": {"rope_type": "yarn", "factor": 4.0,
                           "original_max_position_embeddings": 64}},
    "axes": {"pairing": 8, "axis_map": [0, 0, 0, 0, 1, 1, 1, 1]},
}  # fmt: skip
each_case = pytest.mark.parametrize("options", CASES.values(), ids=CASES)
NORM = ("eps", "norm_over", "weight_offset", "norm_first", "heads", "kv_heads", "weights")


def made(options, dtype=torch.float32):
    """A module whose weights are no longer those of the beginning, and differ for q and k."""
    module = pnn.NormRotaryEmbedding(D, **options).to(dtype)
    with torch.no_grad():
        for i, weight in enumerate(module.parameters()):
            weight.add_(random(weight.shape, dtype, seed=2 + i))
    return module


def positions_of(module):
    return FAR if module.rope.axis_map is None else torch.stack([FAR, FAR + 1])


class InSteps(torch.nn.Module):
    """The same of torch's RMSNorm, one for q and one for k, and of RotaryEmbedding."""

    def __init__(self, module, options):
        super().__init__()
        self.rope = pnn.RotaryEmbedding(
            D, **{name: value for name, value in options.items() if name not in NORM}
        )
        self.first = options.get("norm_first", True)
        self.over_token = options.get("norm_over") == "token"
        self.norms = torch.nn.ModuleList()
        self.by_head = []
        for heads, weight in ((H, module.q_weight), (KV, module.k_weight)):
            width = heads * D if self.over_token else D
            norm = torch.nn.RMSNorm(width, options.get("eps", 1e-6), elementwise_affine=False)
            self.norms.append(norm)
            if weight is None:
                self.by_head.append(None)
                continue
            own = torch.nn.Parameter(weight.detach().clone() + options.get("weight_offset", 0.0))
            norm.register_parameter("own", own)
            self.by_head.append(own)

    def normed(self, i, x):
        norm, weight = self.norms[i], self.by_head[i]
        if self.over_token:
            y = norm(x.transpose(1, 2).flatten(2)).unflatten(2, (-1, D)).transpose(1, 2)
        else:
            y = norm(x)
        return y if weight is None else y * (weight if weight.ndim == 1 else weight[:, None])

    def forward(self, q, k, positions):
        if self.first:
            return self.rope(self.normed(0, q), self.normed(1, k), positions)
        q, k = self.rope(q, k, positions)
        return self.normed(0, q), self.normed(1, k)


@each_case
def test_it_is_rms_norm_and_rotary_embedding(options, device):
    module = made(options, torch.float64)
    steps = InSteps(module, options).to(device)
    module = module.to(device)
    points = positions_of(module).to(device)
    inputs = [
        [x.to(device, torch.float64).requires_grad_() for x in (Q, K)] for _ in (module, steps)
    ]
    ours, theirs = module(*inputs[0], points), steps(*inputs[1], points)
    weights = [random(y.shape, torch.float64, device, seed=7) for y in ours]
    (sum((y * w).sum() for y, w in zip(ours, weights, strict=True))).backward()
    (sum((y * w).sum() for y, w in zip(theirs, weights, strict=True))).backward()
    gradients = [
        [x.grad for x in (*xs, *m.parameters())]
        for xs, m in zip(inputs, (module, steps), strict=True)
    ]
    assert len(gradients[0]) == (2 if options.get("weights") is False else 4)
    for a, b in zip([*ours, *gradients[0]], [*theirs, *gradients[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@each_case
def test_it_is_norm_rotary_qk(options, device):
    module = made(options).to(device)
    rope, norm = module.rope, {name: getattr(module, name) for name in NORM[:4]}
    inv_freq = torch.tensor(rope.inv_freq, device=device)
    axis_map = None if rope.axis_map is None else torch.tensor(rope.axis_map, device=device)
    q, k, points = Q.to(device), K.to(device), positions_of(module).to(device)
    expected = pn.norm_rotary_qk(
        q, k, points, inv_freq, q_weight=module.q_weight, k_weight=module.k_weight, **norm,
        pairing=rope.pairing, rotary_start=rope.rotary_start, axis_map=axis_map, scale=rope.scale,
    )  # fmt: skip
    for a, b in zip(module(q, k, points), expected, strict=True):
        assert_same_bits(a, b)
    turned = module(q.transpose(1, 2), k.transpose(1, 2), points, layout="bshd")
    for a, b in zip(turned, expected, strict=True):
        assert_same_bits(a.transpose(1, 2), b)
    with torch.no_grad():
        given = q.clone(), k.clone()
        results = module(*given, points, inplace=True)
        assert results[0] is given[0]
        assert results[1] is given[1]
        for a, b in zip(results, expected, strict=True):
            assert_same_bits(a, b)


def test_contiguous_results(device):
    module = made({}).to(device)
    q, k = (x.to(device).transpose(1, 2).contiguous().transpose(1, 2) for x in (Q, K))
    results = module(q, k, contiguous=True)
    assert all(y.is_contiguous() for y in results)
    for a, b in zip(results, module(q, k), strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=dtype_id)
@each_case
def test_a_half_model_rounds_once(options, dtype, device):
    module = made(options, dtype).to(device)
    exact = copy.deepcopy(module).double()
    q, k, points = Q.to(device, dtype), K.to(device, dtype), positions_of(module).to(device)
    for a, b in zip(module(q, k, points), exact(q.double(), k.double(), points), strict=True):
        assert a.dtype == dtype
        # Half a unit of the result; and of float32 some 16 roundings, of values that the square
        # root of 16 dims, the weights (below 5) and the scale bound.
        bound = b.abs() * torch.finfo(dtype).eps / 2 + 4 * 5 * 1.2 * 16 * 2.0**-24
        assert ((a.double() - b).abs() <= bound).all()


# --- What happens to models


@each_case
def test_the_state_is_the_weights(options):
    module = pnn.NormRotaryEmbedding(D, **options)
    names = set() if options.get("weights") is False else {"q_weight", "k_weight"}
    assert set(module.state_dict()) == names
    assert not list(module.buffers())
    for weight in module.parameters():
        assert weight.dtype == torch.float32
        assert (weight == (0.0 if options.get("weight_offset") else 1.0)).all()


def _saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


CHANGES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": _saved,
    "double and back": lambda m: m.double().float(),
    "eval, train": lambda m: m.eval().train(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@each_case
def test_what_changes_nothing(options, change):
    module = made(options)
    points = positions_of(module)
    expected = module(Q, K, points)
    changed = change(module)
    assert repr(changed) == repr(module)
    for a, b in zip(changed(Q, K, points), expected, strict=True):
        assert_same_bits(a, b)


@each_case
def test_a_copy_has_weights_of_its_own(options):
    module = made(options)
    expected = module(Q, K, positions_of(module))
    other = copy.deepcopy(module)
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    for a, b in zip(module(Q, K, positions_of(module)), expected, strict=True):
        assert_same_bits(a, b)


@each_case
def test_meta_to_empty_and_reset_make_a_fresh_module(options):
    with torch.device("meta"):
        module = pnn.NormRotaryEmbedding(D, **options)
    assert all(weight.is_meta for weight in module.parameters())
    q, k = module.to("meta")(Q.to("meta"), K.to("meta"), positions_of(module).to("meta"))
    assert (q.shape, k.shape, q.is_meta) == (Q.shape, K.shape, True)
    module = module.to_empty(device="cpu")
    with torch.no_grad():
        for weight in module.parameters():
            weight.fill_(float("nan"))  # what memory may hold
    module.reset_parameters()
    fresh, points = pnn.NormRotaryEmbedding(D, **options), positions_of(module)
    for a, b in zip(module(Q, K, points), fresh(Q, K, points), strict=True):
        assert_same_bits(a, b)


def test_bfloat16_moves_the_weights_and_not_the_frequencies(device):
    module = made({}).to(device)
    rounded = copy.deepcopy(module)
    with torch.no_grad():
        for weight in rounded.parameters():
            weight.copy_(weight.bfloat16())
    module.bfloat16()
    assert module.q_weight.dtype == module.k_weight.dtype == torch.bfloat16
    q, k, points = Q.to(device), K.to(device), FAR.to(device)
    for a, b in zip(module(q, k, points), rounded(q, k, points), strict=True):
        assert_same_bits(a, b)


class Attention(torch.nn.Module):
    """As models have it: the weights of the norms under q_norm and k_norm."""

    def __init__(self, *shape):
        super().__init__()
        for name, seed in (("q_norm", 3), ("k_norm", 4)):
            norm = torch.nn.RMSNorm(shape)
            norm.weight.data.copy_(random(shape, seed=seed))
            setattr(self, name, norm)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (D,)),
        ({"heads": H}, (H, D)),
        ({"norm_over": "token", "heads": H}, (H * D,)),  # OLMo 2 has them in a row
        ({"norm_over": "token", "heads": H}, (H, D)),
    ],
)
def test_weights_of_a_model_load(options, shape):
    attention = Attention(*shape)
    module = pnn.NormRotaryEmbedding(D, **options)
    given = {"q_weight": attention.q_norm.weight, "k_weight": attention.k_norm.weight}
    before = dict(given)
    assert not any(module.load_state_dict(given))
    assert given == before
    for name, norm in (("q_weight", attention.q_norm), ("k_weight", attention.k_norm)):
        assert torch.equal(getattr(module, name).flatten(), norm.weight.flatten())
    inside = torch.nn.Sequential(pnn.NormRotaryEmbedding(D, **options))
    inside.load_state_dict({f"0.{name}": weight for name, weight in given.items()})
    assert torch.equal(inside[0].q_weight, module.q_weight)
    again = pnn.NormRotaryEmbedding(D, **options)
    again.load_state_dict(module.state_dict())
    assert torch.equal(again.k_weight, module.k_weight)


def test_weights_that_do_not_fit():
    module = pnn.NormRotaryEmbedding(D)
    with pytest.raises(RuntimeError, match="size mismatch for q_weight"):
        module.load_state_dict({"q_weight": torch.ones(D + 1), "k_weight": torch.ones(D)})
    with pytest.raises(RuntimeError, match="k_weight"):
        module.load_state_dict({"q_weight": torch.ones(D)})


# --- Of published models


CONFIG = {"model_type": "qwen3", "head_dim": D, "rope_theta": 5e5, "rms_norm_eps": 1e-5}


@pytest.mark.parametrize(
    ("module", "rope", "text"),
    [
        (lambda: pnn.NormRotaryEmbedding.from_config(CONFIG, eps=CONFIG["rms_norm_eps"]),
         lambda: pn.Rotary.from_config(CONFIG),
         "NormRotaryEmbedding(16, base=500000.0, eps=1e-05)"),
        (lambda: pnn.NormRotaryEmbedding.preset("qwen3", weights=False),
         lambda: pn.Rotary.preset("qwen3"), "NormRotaryEmbedding.preset('qwen3', weights=False)"),
        (lambda: pnn.NormRotaryEmbedding(pn.Rotary(8, scale=0.5), heads=2, kv_heads=1),
         lambda: pn.Rotary(8, scale=0.5), "NormRotaryEmbedding(8, scale=0.5, heads=2, kv_heads=1)"),
        (lambda: pnn.NormRotaryEmbedding(pnn.RotaryEmbedding(8), norm_first=False, heads=2),
         lambda: pn.Rotary(8), "NormRotaryEmbedding(8, norm_first=False, heads=2)"),
    ],
)  # fmt: skip
def test_of_a_rotation(module, rope, text):
    made = module()
    assert made.rope == rope()
    assert repr(made) == text
    again = eval(text, {"NormRotaryEmbedding": pnn.NormRotaryEmbedding})
    assert (again.rope, repr(again)) == (made.rope, text)
    assert pnn.RotaryEmbedding(made).rope == rope()


def test_options_of_the_module_are_not_of_the_rotation():
    xpos = pnn.XPos.from_config(CONFIG, gamma=0.5)
    assert xpos.decay["gamma"] == 0.5
    assert repr(pnn.XPos.preset("qwen3", gamma=0.5)) == "XPos.preset('qwen3', gamma=0.5)"
    with pytest.raises(ValueError, match="RotaryEmbedding: head_dim"):
        pnn.RotaryEmbedding.preset("qwen3", base=5e5)


# --- Followed by torch


@pytest.mark.parametrize("name", others_slow(["head", "token", "1 + w", "after", "axes"], "axes"))
def test_compiled(name, device):
    torch.compiler.reset()
    module = made(CASES[name]).to(device)
    points = positions_of(module).to(device)
    weights = [weight.detach() for weight in module.parameters()]

    def call(q, k, q_weight, k_weight):
        given = {"q_weight": q_weight, "k_weight": k_weight}
        return torch.func.functional_call(module, given, (q, k, points))

    assert_like_eager(call, Q, K, *weights, device=device, requires_grad=True)


def test_compiled_as_it_is():
    torch.compiler.reset()
    module = made({})
    expected = module(Q, K, FAR)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for a, b in zip(compiled(Q, K, FAR), expected, strict=True):
        assert_same_bits(a, b)
    with torch.no_grad():
        module.q_weight.mul_(2)  # a graph reads the weights as they are
    assert_same_bits(compiled(Q, K, FAR)[0], module(Q, K, FAR)[0])


def test_exported_and_mapped():
    module = made({})
    expected = module(Q, K, FAR)
    exported = torch.export.export(module, (Q, K, FAR)).module()
    mapped = torch.func.vmap(lambda q, k: module(q, k, FAR))(Q[:, None], K[:, None])
    # float32 composed in another order: 16 roundings of values below 60.
    for a, b, c in zip(exported(Q, K, FAR), mapped, expected, strict=True):
        torch.testing.assert_close(a, c, rtol=0, atol=60 * 16 * 2.0**-24)
        torch.testing.assert_close(b[:, 0], c, rtol=0, atol=60 * 16 * 2.0**-24)


# --- What is refused


@pytest.mark.parametrize(
    ("error", "argument", "call"),
    [
        (ValueError, "eps", lambda: pnn.NormRotaryEmbedding(D, eps=-1e-6)),
        (TypeError, "eps", lambda: pnn.NormRotaryEmbedding(D, eps=None)),
        (ValueError, "norm_over", lambda: pnn.NormRotaryEmbedding(D, norm_over="heads")),
        (ValueError, "weight_offset", lambda: pnn.NormRotaryEmbedding(D, weight_offset=1e400)),
        (ValueError, "heads", lambda: pnn.NormRotaryEmbedding(D, norm_over="token")),
        (ValueError, "heads", lambda: pnn.NormRotaryEmbedding(D, heads=0)),
        (ValueError, "heads", lambda: pnn.NormRotaryEmbedding(D, heads=2, weights=False)),
        (ValueError, "kv_heads", lambda: pnn.NormRotaryEmbedding(D, kv_heads=2)),
        (ValueError, "kv_heads", lambda: pnn.NormRotaryEmbedding(D, heads=2, kv_heads=0)),
        (TypeError, "kv_heads", lambda: pnn.NormRotaryEmbedding(D, heads=2, kv_heads=1.0)),
        (ValueError, "head_dim", lambda: pnn.NormRotaryEmbedding(pn.Rotary(D), base=5e5)),
        (ValueError, "rotary_dim", lambda: pnn.NormRotaryEmbedding(D, rotary_dim=3)),
        (ValueError, "q", lambda: pnn.NormRotaryEmbedding(8)(Q, K)),
        (ValueError, "k", lambda: pnn.NormRotaryEmbedding(D)(Q, K[..., :8])),
        (TypeError, "k", lambda: pnn.NormRotaryEmbedding(D)(Q, K.double())),
        (TypeError, "q", lambda: pnn.NormRotaryEmbedding(D)(Q.tolist(), K)),
        (ValueError, "q_weight", lambda: pnn.NormRotaryEmbedding(D, heads=H + 1)(Q, K)),
        (ValueError, "k_weight", lambda: pnn.NormRotaryEmbedding(D, heads=H)(Q, K)),
        (ValueError, "layout", lambda: pnn.NormRotaryEmbedding(D)(Q, K, layout="bhds")),
        (ValueError, "inplace", lambda: pnn.NormRotaryEmbedding(D)(Q, K, inplace=True)),
        (
            ValueError,
            "contiguous",
            lambda: pnn.NormRotaryEmbedding(D)(Q, K, inplace=True, contiguous=True),
        ),
    ],
)
def test_wrong_arguments(error, argument, call):
    before = Q.clone(), K.clone()
    with pytest.raises(error) as raised:
        call()
    assert fault_of(raised.value).argument == argument
    assert torch.equal(Q, before[0])
    assert torch.equal(K, before[1])
