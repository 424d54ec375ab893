"""The simple absolute encodings as modules, and how they meet embeddings."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import re

import numpy as np
import pytest

import posenc_native as pn

try:
    import torch
except ImportError:  # the tests that need it ask for it
    torch = None
needs_torch = pytest.mark.skipif(torch is None, reason="torch")
if torch is not None:
    from posenc_native import nn as pnn

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")

U = 2.0**-24
D = 8
if torch is not None:
    MODULES = {
        "sinusoidal": lambda **o: pnn.SinusoidalPositionalEncoding(D, 0.0, **o),
        "sinusoidal learned": lambda **o: pnn.SinusoidalPositionalEncoding(
            D, 0.0, alpha=0.7, learned_alpha=True, **o
        ),
        "linear": lambda **o: pnn.LinearPositionalEncoding(D, 0.0, scale=0.5, **o),
        "linear learned": lambda **o: pnn.LinearPositionalEncoding(
            D, 0.0, dim=D, scale=0.5, learned=True, **o
        ),
        "normalized": lambda **o: pnn.NormalizedPositionalEncoding(D, 0.0, low=-1.0, **o),
        "learned": lambda **o: pnn.LearnedPositionalEncoding(30, D, 0.0, std=1.0, **o),
        "learned offset": lambda **o: pnn.LearnedPositionalEncoding(
            30, D, 0.0, offset=2, padding_idx=1, std=1.0, **o
        ),
        "recurrent": lambda **o: pnn.RecurrentPositionalEncoding(D, 0.0, num_positions=30, **o),
        "recurrent narrow": lambda **o: pnn.RecurrentPositionalEncoding(
            D, 0.0, hidden=3, num_positions=30, **o
        ),
    }
    PARAMETERS = {
        "sinusoidal": (), "sinusoidal learned": ("alpha",), "linear": (),
        "linear learned": ("scale",), "normalized": (), "learned": ("weight",),
        "learned offset": ("weight",),
        "recurrent": ("start", "weight_hh", "bias_ih", "bias_hh"),
        "recurrent narrow": (
            "start", "weight_hh", "bias_ih", "bias_hh", "output.weight", "output.bias"
        ),
    }  # fmt: skip
else:
    MODULES, PARAMETERS = {}, {}
each_module = pytest.mark.parametrize("name", MODULES)
# One of each kind, since tracing takes seconds.
each_kind = pytest.mark.parametrize(
    "name", ["sinusoidal", "linear learned", "normalized", "learned offset", "recurrent narrow"]
)
POSITIONS = [[0, 3, 9, 29, 1], [4, 4, 0, 2, 28]]


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(2, 5, D)


@needs_torch
@each_module
@pytest.mark.parametrize("how", ["add", "multiply", "concatenate"])
def test_modules_combine_their_encoding(name, how, x):
    module = MODULES[name](how=how, x_scale="sqrt")
    for positions in (None, torch.tensor(POSITIONS[0]), torch.tensor(POSITIONS)):
        encoding = module.encoding(5 if positions is None else positions)
        assert encoding.shape[:-1] == ((5,) if positions is None else positions.shape)
        expected = pn.absolute.combine(x, encoding, how=how, x_scale=math.sqrt(D))
        # The sinusoidal module makes no table: it rounds product and sum once.
        unit = 2 * U * expected.abs().max() if name == "sinusoidal" else 0
        assert (module(x, positions) - expected).abs().max() <= unit
        assert torch.equal(module(x, encoding=encoding), expected)
    # Positions count from 0 by default.
    if not name.startswith("normalized"):
        torch.testing.assert_close(module(x), module(x, torch.arange(5)), rtol=0, atol=100 * U)
    assert module(x[:, :0]).shape == (2, 0, D + (how == "concatenate") * encoding.shape[-1])
    # A start, and the batch second.
    if not name.startswith("normalized"):
        at = torch.arange(5) + 20
        torch.testing.assert_close(module(x, start=20), module(x, at), rtol=0, atol=100 * U)
        with pytest.raises(ValueError, match="start: expected 0 if positions are given, got 2"):
            module(x, at, start=2)
    second = MODULES[name](how=how, x_scale="sqrt", batch_first=False)
    second.load_state_dict(module.state_dict())
    for at in (None, torch.tensor(POSITIONS)):
        assert torch.equal(second(x.transpose(0, 1), at), module(x, at).transpose(0, 1))
    with pytest.raises(ValueError, match=rf"Encoding: x: .*seq, batch, d_model = {D}"):
        second(x[0, 0])
    for wrong in (x[..., :-1], x[0, 0]):
        with pytest.raises(ValueError, match=rf"Encoding: x: .*d_model = {D}"):
            module(wrong)


@needs_torch
@each_module
def test_only_what_is_learned_is_saved(name, x, tmp_path):
    module = MODULES[name]()
    assert tuple(module.state_dict()) == PARAMETERS[name]
    assert not list(module.buffers())
    torch.manual_seed(5)
    other = MODULES[name]()
    other.load_state_dict(module.state_dict())
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x), module(x))
    assert str(D) in repr(module)
    if PARAMETERS[name]:
        module(x).square().sum().backward()
    for parameter in module.parameters():
        assert parameter.grad.abs().max() > 0


@needs_torch
@each_module
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_modules_of_other_dtypes(name, dtype, x):
    dtype = getattr(torch, dtype)
    module = MODULES[name]().to(dtype)
    result = module(x.to(dtype))
    assert result.dtype == dtype
    # The same parameters in float32 or wider; x rounded before.
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = copy.deepcopy(module).to(wide)(x.to(dtype).to(wide)).to(dtype)
    assert torch.equal(result, expected)
    half = MODULES[name]()(x.to(dtype))  # parameters of float32
    assert half.dtype == dtype


@needs_torch
@each_kind
def test_modules_compile(name, x):
    module = MODULES[name](x_scale=2.0)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for length, at in ((5, ()), (9, ())):
        x = torch.randn(2, length, D)
        expected = module(x, *at)
        result = compiled(x, *at)
        torch.testing.assert_close(result, expected, rtol=2 * U, atol=8 * U)
        if PARAMETERS[name]:
            grads = [
                torch.autograd.grad(y.square().sum(), list(module.parameters()))
                for y in (result, expected)
            ]
            for a, b in zip(*grads, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


@needs_torch
@each_kind
def test_modules_export(name, x):
    module = MODULES[name]()
    length = torch.export.Dim("length", max=30)
    program = torch.export.export(module, (x,), dynamic_shapes={"x": {1: length}}).module()
    x = torch.randn(2, 9, D)
    torch.testing.assert_close(program(x), module(x), rtol=2 * U, atol=8 * U)


@needs_torch
def test_normalized_modules_know_lengths_and_masks(x):
    module = pnn.NormalizedPositionalEncoding(D, 0.0, how="concatenate", low=-1.0)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    shares = module(x, mask=mask)[..., D]
    np.testing.assert_allclose(shares, [[-1, -1, -1, 0, 1], [-1, -1 / 3, 1 / 3, 1, -1]], rtol=4 * U)
    lengths = module(x, length=torch.tensor([3, 9]))[..., D]
    np.testing.assert_array_equal(lengths, [[-1, 0, 1, 2, 3], [-1, -0.75, -0.5, -0.25, 0]])
    np.testing.assert_array_equal(module(x, length=9)[0, :, D], [-1, -0.75, -0.5, -0.25, 0])
    # A step of decoding needs the length.
    step = module(x[:, :1], torch.tensor([2]), length=9)
    np.testing.assert_array_equal(step[0, :, D], [-0.5])
    assert torch.equal(module(x[:, :1], start=2, length=9), step)
    step = module(x[:, :1], start=2, length=torch.tensor([3, 9]))
    np.testing.assert_array_equal(step[:, 0, D], [1, -0.5])
    with pytest.raises(ValueError, match="start: expected 0"):
        module(x, start=2, mask=mask)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, mask=mask), module(x, mask=mask))
    assert torch.equal(
        compiled(x, length=torch.tensor([3, 9])), module(x, length=torch.tensor([3, 9]))
    )
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("dtype", "position"),
    [("uint64", 2**64 - 1), ("uint64", 2**63), ("int64", 2**63 - 1), ("int64", -(2**63))],
)
def test_extreme_positions_are_named_as_they_are(dtype, position, kind):
    table, positions = np.ones((4, 2), np.float32), np.array([1, position], dtype)
    if kind == "torch":
        if torch is None:
            pytest.skip("torch")
        table, positions = torch.from_numpy(table), torch.from_numpy(positions)
    shown = re.escape(f"{float(position):g}")  # its sign and magnitude: neither cut off nor wrapped
    with pytest.raises(ValueError, match=f"expected positions in -2 .. 1, .* got {shown}$"):
        pn.absolute.learned_positions(table, positions, offset=2)


def test_an_empty_length_has_no_positions():
    assert pn.absolute.normalized_positions(0).shape == (0, 1)
    assert pn.absolute.normalized_positions(0, 0).shape == (0, 1)
    # A row without tokens in a batch, whose positions mean nothing.
    assert pn.absolute.normalized_positions(np.zeros((2, 3)), np.array([3, 0])).shape == (2, 3, 1)


@needs_torch
def test_values_are_not_looked_at_where_there_are_none():
    with torch._subclasses.fake_tensor.FakeTensorMode():
        rows = pn.absolute.learned_positions(torch.ones(4, 2), torch.tensor([9]))
        assert pn.positions.packed_positions(torch.tensor([0, 4, 2]), 6).shape == (6,)
        assert pn.absolute.normalized_positions(torch.ones(1, 3), torch.tensor([-2])).shape == (
            1,
            3,
            1,
        )
    assert rows.shape == (1, 2)


@needs_torch
def test_a_padding_row_of_torch_that_is_none():
    with pytest.raises(ValueError, match="learned_positions: padding_idx: expected a row"):
        pn.absolute.learned_positions(torch.ones(4, 2), torch.tensor([0]), padding_idx=9)


@needs_torch
def test_positions_beyond_the_table(x):
    module = pnn.LearnedPositionalEncoding(4, D)
    with pytest.raises(ValueError, match=r"expected positions in 0 .. 3, of a table of 4 rows"):
        module(x)
    with pytest.raises(ValueError, match="got 9"):
        module(x, torch.tensor([0, 1, 9, 2, 3]))
    with pytest.raises(ValueError, match="got -1"):
        module(x, torch.tensor([0, 1, -1, 2, 3]))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with pytest.raises((ValueError, RuntimeError), match="of a table of 4 rows"):
        compiled(x)
    with pytest.raises((IndexError, RuntimeError), match="index out of range"):
        compiled(x[:, :1], torch.tensor([4]))
    torch._dynamo.reset()
    with pytest.raises(ValueError, match="num_positions"):
        pnn.RecurrentPositionalEncoding(D)(x, torch.arange(5))


@needs_torch
def test_resampled_modules(x):
    module = pnn.LearnedPositionalEncoding(1 + 4 * 4, D, 0.0, offset=2, padding_idx=1, std=1.0)
    grid = module.resampled((6, 5), prefix=1)
    assert grid.num_positions == 1 + 30
    assert torch.equal(grid.weight[:3], module.weight[:3])
    expected = pn.absolute.resample_positions(module.weight.detach()[3:], (6, 5))
    assert torch.equal(grid.weight[3:], expected)
    assert grid.weight.is_leaf
    assert grid.weight.requires_grad
    assert grid(torch.randn(2, 31, D)).shape == (2, 31, D)
    assert module.num_positions == 17  # as it was
    options = {"antialias": False, "interpolate_offset": 0.1}
    scaled = module.resampled((6, 5), prefix=1, **options)
    expected = pn.absolute.resample_positions(module.weight.detach()[3:], (6, 5), **options)
    assert torch.equal(scaled.weight[3:], expected)
    at_end = module.resampled(9, suffix=1)  # a class token last
    assert torch.equal(at_end.weight[[0, 1, -1]], module.weight[[0, 1, -1]])
    line = pnn.LearnedPositionalEncoding(8, D, 0.0, std=1.0)
    longer = line.resampled(16, interpolation="linear", antialias=False, align_corners=True)
    torch.testing.assert_close(longer.weight[[0, 15]], line.weight[[0, 7]], rtol=4 * U, atol=0)


@needs_torch
@pytest.mark.parametrize("hidden", [None, 3])
def test_decoding_with_the_state_of_a_recurrent_module(hidden):
    module = pnn.RecurrentPositionalEncoding(D, 0.0, hidden=hidden)
    x = torch.randn(2, 12, D)
    whole = module(x)
    states = module.states(8)
    outputs = [module(x[:, :8], encoding=module.projected(states))]
    state = states[-1]
    for i in range(8, 12):
        step = module.states(1, state)
        outputs.append(module(x[:, i : i + 1], encoding=module.projected(step)))
        state = step[-1]
    torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=0, atol=100 * U)
    assert module(torch.zeros(1, 700, D)).isfinite().all()  # any length


@needs_torch
def test_learned_positions_are_learned():
    """Targets that are a function of the position alone."""
    torch.manual_seed(0)
    target = torch.randn(6, D)
    for name in ("learned", "recurrent"):
        module = MODULES[name]()
        optimizer = torch.optim.Adam(module.parameters(), 0.05)
        losses = []
        for _ in range(60):
            loss = (module(torch.zeros(1, 6, D)) - target.tanh()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.2 * losses[0]


@needs_torch
def test_dropout_is_for_training(x):
    for make in (pnn.LearnedPositionalEncoding, pnn.SinusoidalPositionalEncoding):
        sizes = (30, D) if make is pnn.LearnedPositionalEncoding else (D,)
        module = make(*sizes, 0.5)
        assert (module(x) == 0).any()
        assert not (module.eval()(x) == 0).any()
        assert make(*sizes).dropout.p == 0.1


@needs_torch
def test_the_modules_are_called_alike():
    """One model takes any of them: forward(x, positions=None), dropout and x_scale."""
    kinds = [
        pnn.SinusoidalPositionalEncoding, pnn.LearnedPositionalEncoding,
        pnn.LinearPositionalEncoding, pnn.NormalizedPositionalEncoding,
        pnn.RecurrentPositionalEncoding,
    ]  # fmt: skip
    for kind in kinds:
        names = list(inspect.signature(kind.forward).parameters.values())
        assert [p.name for p in names[1:3]] == ["x", "positions"]
        assert names[2].default is None
        options = inspect.signature(kind).parameters
        assert options["dropout"].default == 0.1
        assert options["x_scale"].default == 1.0
        assert options["batch_first"].default is True
        assert names[3].name == "start"
    for kind in kinds:
        assert issubclass(kind, pnn.PositionalEncoding)
        assert inspect.signature(kind).parameters["how"].default == "add"
    with pytest.raises(NotImplementedError):
        pnn.PositionalEncoding(D)(torch.zeros(1, 2, D))


@needs_torch
@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("how: expected one of", lambda: pnn.LinearPositionalEncoding(D, how="sum")),
        ("x_scale: expected a number or 'sqrt'",
         lambda: pnn.LinearPositionalEncoding(D, x_scale="double")),
        ("d_model", lambda: pnn.LinearPositionalEncoding(-1)),
        ("scale: expected a finite", lambda: pnn.LinearPositionalEncoding(D, scale=math.inf)),
        ("low: expected a finite", lambda: pnn.NormalizedPositionalEncoding(D, low=math.inf)),
        ("init: expected one of", lambda: pnn.LearnedPositionalEncoding(3, D, init="xavier")),
        ("padding_idx: expected a row below 5",
         lambda: pnn.LearnedPositionalEncoding(3, D, offset=2, padding_idx=5)),
        ("num_positions", lambda: pnn.LearnedPositionalEncoding(-3, D)),
        ("hidden", lambda: pnn.RecurrentPositionalEncoding(D, hidden=-1)),
    ],
)  # fmt: skip
def test_errors_of_modules(match, call):
    with pytest.raises(ValueError, match=match):
        call()
