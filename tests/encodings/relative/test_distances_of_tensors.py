"""Variants of relative encodings from torch: as from NumPy, as in models; gradients, tracing."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from compiling import assert_like_eager, compiled, groups  # noqa: E402
from torch_cases import assert_same_bits, random  # noqa: E402

import posenc_native as pn  # noqa: E402

device = torch_cases.device

# The first use is eager, as in engines/torch/test_compile.py.
pn.sinusoidal(torch.arange(2), 2)


def laid(diagonals, q_len, k_len):
    """[..., q_len, k_len], by the definition."""
    index = torch.arange(k_len) - torch.arange(q_len)[:, None] + q_len - 1
    return diagonals[..., index]


def double(*shape, seed=0):
    """Positive numbers that want a gradient."""
    return (random(shape, torch.float64, seed=seed).abs() + 0.1).requires_grad_()


def network(x):
    """[..., 1] to [..., 2], in NumPy and torch."""
    return x * (
        torch.tensor([1.0, -2.0]).to(x) if torch.is_tensor(x) else np.array([1, -2], x.dtype)
    )


SLOPES, R1, R2 = random((2, 3)).abs(), random((3,), seed=1).abs(), random((3,), seed=2).abs()
TABLE = random((32, 3), seed=3)
OFFSETS, MASK = torch.tensor([2, 0]), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
POSITIONS = torch.tensor([[-200, -7, 0], [1, 90, 91]])

# name: (function, inputs): all from tensors, so that each also runs on their arrays
FROM_TENSORS = {
    "positions": (lambda o: pn.relative.relative_positions(3, 5, q_offset=o), (OFFSETS,)),
    "alibi": (
        lambda s, o: pn.relative.alibi_diagonals(3, 4, 5, slopes=s, q_offset=o),
        (SLOPES, OFFSETS),
    ),
    "alibi causal": (
        lambda s: pn.relative.alibi_diagonals(3, 4, 5, slopes=s, symmetric=False, q_offset=0),
        (SLOPES[0],),
    ),
    "columns": (lambda s, m: pn.relative.alibi_columns(3, 5, slopes=s, key_mask=m), (SLOPES, MASK)),
    "columns in bfloat16": (
        lambda s, m: pn.relative.alibi_columns(3, 5, slopes=s, key_mask=m, rounding="bfloat16"),
        (SLOPES, MASK),
    ),
    "bucket": (pn.relative.relative_position_bucket, (POSITIONS,)),
    "t5": (lambda t, o: pn.relative.t5_diagonals(t, 4, 200, q_offset=o), (TABLE, OFFSETS)),
    "kerple": (lambda r, s: pn.relative.kerple_diagonals(r, s, 6, 4, q_offset=0), (R1, R2)),
    "kerple power": (
        lambda r, s: pn.relative.kerple_diagonals(r, s, 6, 4, kind="power", q_offset=0),
        (R1, R2),
    ),
    "sandwich": (lambda o: pn.relative.sandwich_diagonals(3, 6, 4, q_offset=o), (OFFSETS,)),
    "clipped index": (lambda o: pn.relative.clipped_index(3, 5, 2, q_offset=o), (OFFSETS,)),
    "clipped": (lambda t: pn.relative.clipped_diagonals(t, 4, 5, q_offset=0), (TABLE[:5],)),
    "swin": (lambda t: pn.relative.swin_diagonals(t, (2, 3)), (TABLE[:15],)),
    "deberta bucket": (lambda p: pn.relative.deberta_bucket(p, 32, 128), (POSITIONS,)),
    "deberta index": (
        lambda o: pn.relative.deberta_index(3, 5, q_offset=o, transposed=True),
        (OFFSETS,),
    ),
    "fire": (lambda c, t, o: pn.relative.fire_bias(3, 5, network, c=c, threshold=t, q_offset=o),
             (torch.tensor(0.2), torch.tensor([4.0]), OFFSETS)),
}  # fmt: skip
# Those without a tensor among their arguments: a device or a dtype asks for torch.
FROM_NUMBERS = {
    "positions": lambda **to: pn.relative.relative_positions(3, 5, device=to["device"], q_offset=0),
    "alibi": lambda **to: pn.relative.alibi_diagonals(12, 3, 50, **to, q_offset=0),
    "columns": lambda **to: pn.relative.alibi_columns(12, 50, **to),
    "sandwich": lambda **to: pn.relative.sandwich_diagonals(3, 4, 50, **to, q_offset=0),
    "clipped index": lambda **to: pn.relative.clipped_index(
        3, 5, 2, device=to["device"], q_offset=0
    ),
    "swin v2": lambda **to: pn.relative.swin_v2_coordinates((3, 4), (8, 8), **to),
    "deberta index": lambda **to: pn.relative.deberta_index(3, 5, device=to["device"], q_offset=0),
    "fire": lambda **to: pn.relative.fire_bias(3, 5, network, **to, q_offset=0),
}
# float64 of NumPy and torch may differ in the last bit of a logarithm, power or sum, and then, once
# in 2^29, in that of float32; so may what is computed from it in float32.
WITH_LOGARITHMS = {"kerple", "kerple power", "sandwich", "swin v2", "fire"}


def assert_equal(name, actual, expected):
    if name in WITH_LOGARITHMS:
        actual = torch_cases.to_numpy(actual)
        assert actual.dtype == expected.dtype
        np.testing.assert_array_max_ulp(actual, expected, 1)
    else:
        assert_same_bits(actual, expected)


@pytest.mark.parametrize("name", FROM_TENSORS)
def test_tensors_are_as_arrays(name, device):
    function, inputs = FROM_TENSORS[name]
    actual = function(*(t.to(device) for t in inputs))
    assert actual.device.type == device
    assert_equal(name, actual, function(*(t.numpy() for t in inputs)))


@pytest.mark.parametrize("name", FROM_NUMBERS)
def test_numbers_are_as_arrays(name, device):
    function = FROM_NUMBERS[name]
    actual = function(device=device)
    assert actual.device.type == device
    assert_equal(name, actual, function(device=None))


@pytest.mark.parametrize("dtype", torch_cases.FLOATS, ids=str)
def test_dtypes(dtype, device):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    name = str(dtype).removeprefix("torch.")
    of_numpy = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
    actual = pn.relative.alibi_diagonals(12, 40, 5000, dtype=dtype, device=device, q_offset=0)
    assert actual.dtype == dtype
    expected = pn.relative.alibi_diagonals(12, 40, 5000, dtype=of_numpy, q_offset=0)
    assert_same_bits(actual, expected)
    assert pn.relative.alibi_diagonals(2, 3, 4, dtype=dtype, q_offset=0).device.type == "cpu"
    table = TABLE.to(device, dtype)
    assert pn.relative.t5_diagonals(table, 3, 4, q_offset=0).dtype == dtype
    slopes = SLOPES.to(device, dtype)
    assert pn.relative.alibi_diagonals(3, 3, 4, slopes=slopes, q_offset=0).dtype == torch.float32


@pytest.mark.parametrize("dtype", torch_cases.POSITION_DTYPES[:-2], ids=str)
def test_integers(dtype):
    ends = torch.tensor([torch.iinfo(dtype).min, 5, torch.iinfo(dtype).max], dtype=dtype)
    for function in (pn.relative.relative_position_bucket, pn.relative.deberta_bucket):
        assert_same_bits(function(ends), function(ends.numpy()))
    offsets = torch.tensor([0, 100], dtype=dtype)
    assert_same_bits(
        pn.relative.relative_positions(2, 3, q_offset=offsets),
        pn.relative.relative_positions(2, 3, q_offset=[0, 100]),
    )


def test_arrays_go_where_tensors_are(device):
    mixed = pn.relative.alibi_diagonals(
        3, 2, 4, slopes=SLOPES[0].numpy(), q_offset=OFFSETS.to(device)
    )
    assert mixed.device.type == device
    assert_same_bits(mixed, pn.relative.alibi_diagonals(3, 2, 4, slopes=SLOPES[0], q_offset=[2, 0]))


# --- Gradients

# name: (function, inputs in float64)
DIFFERENTIABLE = {
    "alibi": (
        lambda s: pn.relative.alibi_diagonals(3, 4, 5, slopes=s, dtype=torch.float64, q_offset=0),
        (double(2, 3),),
    ),
    "columns": (
        lambda s: pn.relative.alibi_columns(3, 5, slopes=s, key_mask=MASK, dtype=torch.float64),
        (double(3),),
    ),
    "t5": (lambda t: pn.relative.t5_diagonals(t, 30, 40, q_offset=0), (double(32, 2),)),
    "t5 of a batch": (
        lambda t: pn.relative.t5_diagonals(t, 3, 4, bidirectional=False, q_offset=OFFSETS),
        (double(8, 2),),
    ),
    "kerple": (
        lambda r, s: pn.relative.kerple_diagonals(r, s, 6, 4, dtype=torch.float64, q_offset=0),
        (double(3), double(3, seed=1)),
    ),
    "kerple power": (
        lambda r, s: pn.relative.kerple_diagonals(
            r, s, 6, 4, kind="power", dtype=torch.float64, q_offset=0
        ),
        (double(3), double(3, seed=1)),
    ),
    "clipped": (lambda t: pn.relative.clipped_diagonals(t, 4, 5, q_offset=0), (double(5, 2),)),
    "swin": (lambda t: pn.relative.swin_diagonals(t, (2, 3)), (double(15, 2),)),
    "fire": (
        lambda c, t, w: pn.relative.fire_bias(
            6, 4, lambda x: torch.tanh(x * w), c=c, threshold=t, dtype=torch.float64, q_offset=0,
        ),
        (double(), torch.tensor([3.5], dtype=torch.float64, requires_grad=True), double(3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name):
    function, inputs = DIFFERENTIABLE[name]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("kind", ["log", "power"])
def test_gradients_at_distance_0(kind):
    r1, r2 = (r.clone().requires_grad_() for r in (R1, R2))
    diagonals = pn.relative.kerple_diagonals(
        r1, r2, 1, 5, kind=kind, q_offset=0
    )  # all of the future
    assert not diagonals.any()
    diagonals.sum().backward()
    assert not r1.grad.any()
    assert not r2.grad.any()


def test_gradients_of_a_half_precision_parameter():
    slopes = SLOPES[0].to(torch.bfloat16).requires_grad_()
    pn.relative.alibi_diagonals(3, 3, 1, slopes=slopes, q_offset=0).sum().backward()
    assert slopes.grad.dtype == torch.bfloat16
    assert slopes.grad.tolist() == [-3.0, -3.0, -3.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_fire_takes_dtype_and_device_of_a_module(dtype, device):
    module = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    module.to(device, dtype)
    bias = pn.relative.fire_bias(4, 5, module, q_offset=1)
    assert (bias.dtype, bias.device.type, bias.shape) == (dtype, device, (3, 4, 5))
    bias.sum().backward()
    assert module[0].weight.grad.abs().sum() > 0


# --- torch.compile


# With open lengths the slow tests compile all of them; test_compile_for_any_length does some.
each_dynamic = pytest.mark.parametrize(
    "dynamic", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["static", "dynamic"]
)


@each_dynamic
@groups(FROM_TENSORS)
def test_compile(function, inputs, dynamic):
    torch._dynamo.reset()
    assert_like_eager(function, *inputs, requires_grad=True, same_strides=False, dynamic=dynamic)


@each_dynamic
def test_compile_without_tensors(dynamic):
    torch._dynamo.reset()

    def shifted(x):
        return tuple(function(device=x.device) + x for function in FROM_NUMBERS.values())

    assert_like_eager(shifted, torch.zeros(()), dynamic=dynamic)


def test_compile_for_any_length():
    torch._dynamo.reset()

    def function(x):
        n, device = x.shape[0], x.device
        return (
            pn.relative.alibi_diagonals(3, 2, n, q_offset=0, device=device),
            pn.relative.t5_diagonals(TABLE, n, n),
            pn.relative.deberta_index(n, n, device=device),
            pn.relative.sandwich_diagonals(2, 1, n, q_offset=0, device=device),
            pn.relative.fire_bias(n, 4, network, q_offset=0, device=device),
        )

    fast = compiled(function, dynamic=True)
    for length in (5, 9, 33):
        x = torch.zeros(length)
        torch.testing.assert_close(fast(x), function(x), rtol=0, atol=0)


# --- The models' own code


@pytest.fixture(scope="module")
def models():
    """transformers.models; importing it is slow."""
    pytest.importorskip("transformers")
    from transformers import models

    return models


FAR = torch.arange(-100_000, 100_001)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(32, 128), (32, 1024), (320, 800), (64, 256), (512, 2048)]
)
def test_buckets_of_t5(models, bidirectional, num_buckets, max_distance):
    options = bidirectional, num_buckets, max_distance
    expected = models.t5.modeling_t5.T5Attention._relative_position_bucket(FAR, *options)
    assert_same_bits(pn.relative.relative_position_bucket(FAR, *options), expected)
    assert_same_bits(pn.relative.relative_position_bucket(FAR.numpy(), *options), expected)


def test_buckets_of_other_models(models):
    mpnet = models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket(FAR)
    assert_same_bits(pn.relative.relative_position_bucket(FAR), mpnet)
    layout = models.layoutlmv2.modeling_layoutlmv2.relative_position_bucket(FAR, True, 64, 256)
    assert_same_bits(pn.relative.relative_position_bucket(FAR, True, 64, 256), layout)
    prophet = models.prophetnet.modeling_prophetnet.compute_relative_buckets(32, 128, FAR)
    assert_same_bits(pn.relative.relative_position_bucket(FAR, False).int(), prophet.int())
    wavlm = models.wavlm.modeling_wavlm.WavLMAttention(16, 2)
    expected = wavlm._relative_positions_bucket(FAR)
    assert_same_bits(pn.relative.relative_position_bucket(FAR, True, 320, 800), expected)


@pytest.mark.parametrize("decoder", [True, False])
@pytest.mark.parametrize("name", ["t5", "mt5", "umt5", "longt5", "udop"])
def test_bias_of_t5(models, name, decoder):
    module = getattr(getattr(models, name), f"modeling_{name}")
    prefix = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5", "longt5": "LongT5", "udop": "Udop"}[name]
    config = getattr(getattr(models, name), f"configuration_{name}")
    config = getattr(config, f"{prefix}Config")(d_model=8, d_kv=4, num_heads=2, is_decoder=decoder)
    attention = getattr(module, f"{prefix}Attention")(config, has_relative_attention_bias=True)
    with torch.no_grad():
        attention.relative_attention_bias.weight.normal_()
    table = attention.relative_attention_bias.weight
    diagonals = pn.relative.t5_diagonals(table, 150, 170, bidirectional=not decoder, q_offset=0)
    assert_same_bits(laid(diagonals, 150, 170), attention.compute_bias(150, 170)[0])


def test_a_decoding_step_of_t5(models):
    config = models.t5.configuration_t5.T5Config(d_model=8, d_kv=4, num_heads=2, is_decoder=True)
    attention = models.t5.modeling_t5.T5Attention(config, has_relative_attention_bias=True)
    table = attention.relative_attention_bias.weight
    diagonals = pn.relative.t5_diagonals(table, 1, 200, bidirectional=False, q_offset=199)
    assert_same_bits(laid(diagonals, 1, 200), attention.compute_bias(200, 200)[0, :, -1:])


MASKS = torch.tensor([[1] * 300, [0] * 40 + [1] * 260, [1] * 100 + [0] * 200])


@pytest.mark.parametrize("heads", [1, 8, 12, 16, 32, 71, 112, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "rounding"), [("bloom", "float32"), ("falcon", "bfloat16")])
def test_columns_of_bloom_and_falcon(models, name, rounding, heads, dtype):
    module = getattr(getattr(models, name), f"modeling_{name}")
    expected = module.build_alibi_tensor(MASKS, heads, dtype).reshape(3, heads, 1, 300)
    options = {"key_mask": MASKS, "rounding": rounding, "dtype": dtype}
    assert_same_bits(pn.relative.alibi_columns(heads, 300, **options), expected)
    if dtype == torch.float32:
        from_numpy = pn.relative.alibi_columns(
            heads, 300, key_mask=MASKS.numpy(), rounding=rounding, dtype=np.float32
        )
        if rounding == "bfloat16":
            assert_same_bits(from_numpy, expected)
        else:  # torch's float32 power is off by up to a unit, which the product may double
            np.testing.assert_array_max_ulp(from_numpy, expected.numpy(), 2)
    if heads <= 8:  # slopes that are powers of two: no rounding to agree on
        assert_same_bits(
            pn.relative.alibi_columns(heads, 300, key_mask=MASKS, dtype=torch.float32),
            models.bloom.modeling_bloom.build_alibi_tensor(MASKS, heads, torch.float32)
            .reshape(3, heads, 1, 300),
        )  # fmt: skip


@pytest.mark.parametrize("max_bias", [8, 16])
@pytest.mark.parametrize("heads", [8, 12, 40])
def test_alibi_of_mpt(models, heads, max_bias):
    expected = models.mpt.modeling_mpt.build_mpt_alibi_tensor(heads, 50, alibi_bias_max=max_bias)
    slopes = pn.relative.alibi_slopes(heads, max_bias=max_bias)
    actual = pn.relative.alibi_diagonals(heads, 1, 50, slopes=slopes, q_offset=49, device="cpu")
    # The model's exponent, power and product are float32: an exponent of up to 16, half a unit off,
    # changes the slope by 16 ln 2 / 2 of them.
    torch.testing.assert_close(actual[:, None], expected, rtol=8 * 2.0**-23, atol=0)


@pytest.mark.parametrize("window", [(2, 3), (7, 7), (1, 4)])
def test_bias_of_swin(models, window):
    bias = models.swin.modeling_swin.SwinRelativePositionBias(3, window)
    table = bias.relative_position_bias_table
    with torch.no_grad():
        table.normal_()
    assert_same_bits(block_laid(pn.relative.swin_diagonals(table, window), window), bias()[0])


def block_laid(diagonals, window):
    """[H, tokens, tokens], by the definition: token j's coordinates minus token i's."""
    y, x = (t.flatten() for t in torch.meshgrid(*map(torch.arange, window), indexing="ij"))
    rows, columns = y[None] - y[:, None] + window[0] - 1, x[None] - x[:, None] + window[1] - 1
    return diagonals[:, rows, columns]


def test_patches_of_beit(models):
    window = (3, 4)
    index = models.beit.modeling_beit.BeitRelativePositionBias.generate_relative_position_index(
        window
    )
    table = random((5 * 7 + 3, 2))
    expected = table[index[1:, 1:]].permute(2, 0, 1)
    actual = block_laid(pn.relative.swin_diagonals(table[:-3], window), window)
    assert_same_bits(actual, expected)


@pytest.mark.parametrize(
    ("window", "pretrained"), [((4, 4), (0, 0)), ((8, 8), (6, 6)), ((3, 5), (0, 0))]
)
def test_coordinates_of_swin_v2(models, window, pretrained):
    module = models.swinv2.modeling_swinv2
    config = models.swinv2.configuration_swinv2.Swinv2Config(qkv_bias=True)
    attention = module.Swinv2SelfAttention(config, 8, 2, list(window), list(pretrained))
    expected, _ = attention.create_coords_table_and_index()
    actual = pn.relative.swin_v2_coordinates(window, pretrained, device="cpu")
    # Four roundings and a logarithm in float32 there: of |x| + 1 >= 1, so absolute errors.
    torch.testing.assert_close(actual, expected[0], rtol=4 * 2.0**-23, atol=4 * 2.0**-23)
    # The network for a table, as the docstring of swin_diagonals has it.
    values = 16 * torch.sigmoid(attention.continuous_position_bias_mlp(actual))
    bias = block_laid(pn.relative.swin_diagonals(values.flatten(0, -2), window), window)
    index = attention.relative_position_index.flatten()
    table = attention.continuous_position_bias_mlp(attention.relative_coords_table).view(-1, 2)
    tokens = window[0] * window[1]
    wanted = 16 * torch.sigmoid(table[index].view(tokens, tokens, 2).permute(2, 0, 1))
    torch.testing.assert_close(bias, wanted, rtol=1e-5, atol=1e-5)


# Beyond the trained length the model's buckets grow on, until they are clamped where they are used.
@pytest.mark.parametrize(
    ("bucket_size", "max_position"),
    [(256, 512), (32, 128), (64, 512), (128, 512), (255, 512), (256, 1024), (5, 20), (4, 8)],
)
def test_buckets_of_deberta(models, bucket_size, max_position):
    module = models.deberta_v2.modeling_deberta_v2
    expected = module.make_log_bucket_position(FAR, bucket_size, max_position).long()
    actual = pn.relative.deberta_bucket(FAR, bucket_size, max_position)
    near = FAR.abs() < max_position
    assert_same_bits(actual[near], expected[near])
    assert_same_bits(actual, expected.clamp(-bucket_size, bucket_size))


@pytest.mark.parametrize("position_buckets", [8, -1])
@pytest.mark.parametrize("kinds", [["c2p"], ["p2c"], ["c2p", "p2c"]])
def test_bias_of_deberta(models, kinds, position_buckets):
    heads, length, d = 2, 40, 4
    config = models.deberta_v2.configuration_deberta_v2.DebertaV2Config(
        hidden_size=heads * d, num_attention_heads=heads, relative_attention=True,
        pos_att_type=kinds, position_buckets=position_buckets, max_relative_positions=24,
        share_att_key=True,
    )  # fmt: skip
    attention = models.deberta_v2.modeling_deberta_v2.DisentangledSelfAttention(config).eval()
    span = attention.pos_ebd_size
    q, k = random((heads, length, d), seed=1), random((heads, length, d), seed=2)
    embeddings = random((2 * span, heads * d), seed=3)
    with torch.no_grad():
        expected = attention.disentangled_attention_bias(q, k, None, embeddings, 1 + len(kinds))
        scale = (d * (1 + len(kinds))) ** 0.5
        options = {
            "bucket_size": None if position_buckets < 0 else position_buckets, "max_position": 24,
            "device": "cpu",
        }  # fmt: skip
        actual = torch.zeros(heads, length, length)
        if "c2p" in kinds:
            keys = attention.transpose_for_scores(attention.key_proj(embeddings)[None], heads)
            columns = laid(pn.relative.deberta_index(length, length, **options), length, length)
            products = q @ keys.mT
            actual += products.gather(-1, columns.expand(heads, -1, -1)) / scale
        if "p2c" in kinds:
            queries = attention.transpose_for_scores(attention.query_proj(embeddings)[None], heads)
            index = pn.relative.deberta_index(length, length, transposed=True, **options)
            products = k @ queries.mT
            gathered = products.gather(-1, laid(index, length, length).expand(heads, -1, -1))
            actual += gathered.mT / scale
    torch.testing.assert_close(actual, expected)
