"""Models that torch.onnx.export writes: what ONNX Runtime computes, against the model or a formula.

An export takes torch two seconds and more, so few run here. The slow tests export every module,
with ONNX's operators of two versions, and run it at lengths that it was not exported with.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import outside  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402
from posenc_native.engines.plain import phases  # noqa: E402

# torch says so of an axis whose name other inputs have too.
pytestmark = pytest.mark.filterwarnings("ignore:# The axis name")

# The older one has no RotaryEmbedding; the newer one defines operators for bfloat16.
OPSETS = (18, 23)
FAR = 1_000_000


class Calls(nn.Module):
    """A model that calls a function; modules: those that it uses."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.used = function, nn.ModuleList(modules)

    def forward(self, a: Tensor, b: Tensor | None = None, c: Tensor | None = None) -> Any:
        """The function of the inputs that there are."""
        return self.function(*(x for x in (a, b, c) if x is not None))


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


def q_and_k(s: int) -> tuple[Tensor, ...]:
    return random(2, 4, s, 16), random(2, 2, s, 16)


def q_k_positions(s: int) -> tuple[Tensor, ...]:
    return *q_and_k(s), torch.arange(s) + FAR


def vectors(s: int) -> tuple[Tensor, ...]:
    return (random(2, s, 16),)


def scores(s: int) -> tuple[Tensor, ...]:
    return (random(2, 4, s, s),)


def rows_and_keys(s: int) -> tuple[Tensor, ...]:
    """Scores, or queries and keys, of which the queries are the last three."""
    return (random(2, 4, 3, s),)


ROPE = pn.Rotary(16)
AXES = pn.Rotary(16, axis_map=[0, 1] * 4, pairing="interleaved")
ALIBI, T5 = pnn.ALiBi(4, causal=True), pnn.T5RelativeBias(4, bidirectional=False, causal=True)
DETR = pnn.SinusoidalEmbedding(32, "detr", normalize=True, channels_first=True)
SHAW = pnn.ShawRelativePosition(16, left=4)
SELECTIVE = pnn.SelectiveRotaryEmbedding(16, 16, heads=2)
RECURRENT = pnn.RecurrentPositionalEncoding(8, 0.0, hidden=8)


def at_the_end(bias: nn.Module) -> Calls:
    """The bias of queries that are the last, by an offset that the lengths determine."""
    return Calls(lambda x: bias(x, q_offset=x.shape[3] - x.shape[2]), bias)


# The module; its inputs for a length; the axes of each that have this length.
Case = tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]], Sequence[Sequence[int]]]
MODULES: dict[str, Case] = {
    "RotaryEmbedding": (lambda: pnn.RotaryEmbedding(16), q_and_k, ((2,), (2,))),
    "NormRotaryEmbedding": (lambda: pnn.NormRotaryEmbedding(16, base=1e6), q_and_k, ((2,), (2,))),
    "LearnedRotaryEmbedding": (
        lambda: pnn.LearnedRotaryEmbedding(16), q_k_positions, ((2,), (2,), (0,))
    ),
    "XPos": (lambda: pnn.XPos(16, pairing="interleaved"), q_and_k, ((2,), (2,))),
    "SelectiveRotaryEmbedding": (
        lambda: Calls(lambda q, k, x: SELECTIVE(q, k, x)[:2], SELECTIVE),
        lambda s: (*q_and_k(s), *vectors(s)),
        ((2,), (2,), (1,)),
    ),
    "SinusoidalPositionalEncoding": (
        lambda: pnn.SinusoidalPositionalEncoding(16, dropout=0.0), vectors, ((1,),)
    ),
    "SinusoidalEmbedding": (
        lambda: Calls(lambda mask: DETR(mask=mask), DETR),
        lambda s: (torch.ones(2, s, 5, dtype=torch.bool),),
        ((1,),),
    ),
    "TimestepEmbedding": (
        lambda: pnn.TimestepEmbedding(16), lambda s: (torch.arange(s) * 111.37,), ((0,),)
    ),
    "FourierFeatures": (
        lambda: pnn.FourierFeatures(2, 16, std=10.0), lambda s: (random(s, 2),), ((0,),)
    ),
    "LinearPositionalEncoding": (lambda: pnn.LinearPositionalEncoding(16, 0.0), vectors, ((1,),)),
    "NormalizedPositionalEncoding": (
        lambda: pnn.NormalizedPositionalEncoding(16, 0.0), vectors, ((1,),)
    ),
    "LearnedPositionalEncoding": (
        lambda: pnn.LearnedPositionalEncoding(64, 16, 0.0), vectors, ((1,),)
    ),
    "RecurrentPositionalEncoding": (
        lambda: pnn.RecurrentPositionalEncoding(16, 0.0, hidden=8), vectors, ((1,),)
    ),
    "ALiBi": (lambda: at_the_end(ALIBI), rows_and_keys, ((3,),)),
    "Kerple": (lambda: pnn.Kerple(4), scores, ((2, 3),)),
    "Sandwich": (lambda: pnn.Sandwich(4), scores, ((2, 3),)),
    "T5RelativeBias": (lambda: at_the_end(T5), rows_and_keys, ((3,),)),
    "ClippedRelativeBias": (lambda: pnn.ClippedRelativeBias(4, 3), scores, ((2, 3),)),
    "ToeplitzBias": (lambda: pnn.ALiBi(4), scores, ((2, 3),)),  # the class of these
    "FIRE": (lambda: pnn.FIRE(4), scores, ((2, 3),)),
    "SwinRelativeBias": (
        lambda: pnn.SwinRelativeBias(4, 3), lambda s: (random(s, 4, 9, 9),), ((0,),)
    ),
    "SwinV2RelativeBias": (
        lambda: pnn.SwinV2RelativeBias(4, 3), lambda s: (random(s, 4, 9, 9),), ((0,),)
    ),
    "RelativePositionalEncoding": (
        lambda: pnn.RelativePositionalEncoding(64, num_heads=4, causal=True),
        lambda s: (random(2, 4, 3, 16), random(2, 4, s, 16)),
        ((), (2,)),
    ),
    "DecomposedRelativePosition": (
        lambda: pnn.DecomposedRelativePosition(16, (3, 4), k_size=(3, 2)),
        lambda s: (random(s, 4, 12, 16), random(s, 4, 6, 16)),
        ((0,), (0,)),
    ),
    "ShawRelativePosition": (
        lambda: pnn.ShawRelativePosition(16, left=4),
        lambda s: (random(2, 4, s, 16), random(2, 4, s, 16)),
        ((2,), (2,)),
    ),
}  # fmt: skip
ABSTRACT = {"PositionalEncoding"}  # the class of several
OTHERS: dict[str, Case] = {
    "positions of several axes": (
        lambda: Calls(AXES),
        lambda s: (*q_and_k(s), torch.stack([torch.arange(s), torch.arange(s) + FAR])),
        ((2,), (2,), (1,)),
    ),
    "fractional positions": (
        lambda: Calls(ROPE.apply), lambda s: (q_and_k(s)[0], torch.arange(s) - 2.75), ((2,), (0,))
    ),
    "from the length of a cache on": (
        lambda: Calls(lambda x, cache: ROPE.apply(x, cache.shape[2])),
        lambda s: (random(2, 4, 3, 16), random(2, 4, s, 16)),
        ((), (2,)),
    ),
    "rows of tables": (
        lambda: Calls(
            lambda x, rows: pn.apply_rotary(
                x, None, pn.Tables(*ROPE.tables(64, dtype=torch.float32), rows=rows)
            )
        ),
        lambda s: (q_and_k(s)[0], torch.arange(s)),
        ((2,), (0,)),
    ),
    "in place": (
        lambda: Calls(lambda x: pn.apply_rotary(x * 2, None, ROPE, out=x * 2)),
        lambda s: q_and_k(s)[:1],
        ((2,),),
    ),
    "a table of a length": (
        lambda: Calls(lambda x: pn.sinusoidal(x.shape[1], 16, device=x.device) + x),
        vectors,
        ((1,),),
    ),
    "sums by distance": (
        lambda: Calls(SHAW.attend, SHAW),
        lambda s: (scores(s)[0].softmax(-1), random(2, 4, s, 16)),
        ((2, 3), (2,)),
    ),
    "a search and a recurrence": (
        lambda: Calls(
            lambda x, y: (T5(x, q_offset=x.shape[3] - x.shape[2]), RECURRENT(y)), T5, RECURRENT
        ),
        lambda s: (*rows_and_keys(s), random(2, s, 8)),
        ((3,), (1,)),
    ),
    "packed sequences": (
        lambda: Calls(lambda bounds: pn.positions.packed_positions(bounds, 16)),
        lambda s: (torch.arange(s) * 2,),
        ((0,),),
    ),
}  # fmt: skip


def exported(model: nn.Module, case: Case, length: int, opset: int) -> Any:
    """A session of ONNX Runtime with the model, whose lengths are open."""
    runtime = outside.module("onnxruntime")
    outside.module("onnxscript")
    dim = torch.export.Dim("length", min=2, max=4096)
    axes = tuple(dict.fromkeys(own, dim) for own in case[2])
    with contextlib.redirect_stdout(io.StringIO()):  # steps, as they are done
        program = torch.onnx.export(
            model, case[1](length), dynamic_shapes=axes, opset_version=opset, verbose=False
        )
    domains = {node.domain for node in program.model_proto.graph.node}
    assert domains <= {"", "pkg.torch"}, domains  # all of them ONNX's own
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(
        program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(session: Any, inputs: tuple[Tensor, ...]) -> list[np.ndarray[Any, Any]]:
    names = [given.name for given in session.get_inputs()]
    results = session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))
    return list(results)


def assert_like_the_model(case: Case, opset: int, dtype: Any = torch.float32) -> None:
    """At the length of the export and at others, in units in the last place of the largest number.

    Sums of products have another order in ONNX Runtime: 8 units. Numbers of 16 bits are computed in
    float32 and rounded once on both sides: 1 unit. dtype: of the computation.
    """
    model = case[0]().eval()
    session = exported(model, case, 5, opset)
    units = 1 if dtype.itemsize == 2 else 8
    for length in (5, 8, 3):
        inputs = case[1](length)
        with torch.no_grad():
            expected = torch.utils._pytree.tree_leaves(model(*inputs))
        for got, want in zip(run(session, inputs), expected, strict=True):
            assert got.dtype == want.numpy().dtype
            hidden = want.isinf()
            assert (torch.as_tensor(got).isinf() == hidden).all()
            want = want.masked_fill(hidden, 0).double()
            difference = np.abs(np.where(hidden, 0, got) - want.numpy()).max()
            eps = torch.finfo(dtype).eps if got.dtype.kind == "f" else 0.0
            assert difference <= units * eps * max(want.abs().max().item(), 1.0)


def test_every_module_is_in_the_table() -> None:
    assert {*MODULES} | ABSTRACT == {*pnn.__all__}


def test_operations_that_onnx_lacks_in_onnx_runtime() -> None:
    """A search among bounds, a recurrence, and a mask whose offset is a symbolic int."""
    assert_like_the_model(OTHERS["a search and a recurrence"], OPSETS[0])


@pytest.mark.slow
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", [*MODULES, *OTHERS])
def test_modules_and_functions_in_onnx_runtime(name: str, opset: int) -> None:
    assert_like_the_model((MODULES | OTHERS)[name], opset)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["NormRotaryEmbedding", "SinusoidalPositionalEncoding", "ALiBi"])
def test_numbers_of_16_bits_in_onnx_runtime(name: str, dtype: Any) -> None:
    """bfloat16 between casts, since NumPy has none."""
    make, inputs, axes = MODULES[name]

    def model_of(narrow: nn.Module) -> Calls:
        def call(*given: Tensor) -> Any:
            results = narrow(*(x.to(dtype) for x in given))
            return torch.utils._pytree.tree_map(Tensor.float, results)

        return Calls(call, narrow)

    case: Case = (lambda: model_of(make().to(dtype)), inputs, axes)
    assert_like_the_model(case, OPSETS[1], dtype)


def test_positions_against_the_formula() -> None:
    """Far ones, also in float64, where torch's export rounds numbers of Python to float32."""
    inv_freq = torch.tensor(ROPE.inv_freq)

    def model(x: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        tables = pn.rotary_tables(positions, inv_freq, scale=1.1, dtype=torch.float64)
        return ROPE.apply(x, positions), *tables

    def inputs(s: int) -> tuple[Tensor, ...]:
        return torch.ones(1, 1, s, 16), torch.arange(s)

    case: Case = (lambda: Calls(model), inputs, ((2,), (0,)))
    session = exported(Calls(model).eval(), case, 4, OPSETS[1])
    positions = torch.tensor([0, 1, -FAR, FAR, 2**24 + 1, 12345])
    angle = positions.numpy()[:, None] * np.asarray(ROPE.inv_freq)
    cos, sin = np.cos(angle), np.sin(angle)
    rotated, *tables = run(session, (inputs(len(positions))[0], positions))
    # Cosines and sines are rounded, and their sum, which is below 2.
    assert np.abs(rotated[0, 0] - np.concatenate([cos - sin, cos + sin], -1)).max() <= 2.0**-23
    # Angles of the formula are rounded; so are frequencies in turns, the phase of up to half a turn
    # and its angle, and the results.
    phase = np.abs(positions.numpy())[:, None] * 2 * np.pi * 2.0**-65 + 2 * np.pi * 2.0**-53
    bound = np.abs(angle) * 2.0**-53 + phase + 4 * 2.0**-53
    for got, want in zip(tables, (cos, sin), strict=True):
        assert (np.abs(got - 1.1 * want) <= 1.1 * bound).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_turns_that_a_graph_computes_are_exact(dtype: Any) -> None:
    """Those of steps and of learned frequencies, against the products of 70 digits."""
    rng = np.random.default_rng(0)
    radians = np.exp2(rng.uniform(-80, 31, 2000)) * rng.choice([-1.0, 1.0], 2000)
    special = [0.0, 1.0, 2 * np.pi, -2 * np.pi, 2.0**31, -(2.0**31), 1e-300]
    radians = np.concatenate([radians, special]).astype(dtype)
    expected = phases.frequency_turns("test", radians)
    for got, want in zip(phases.turns_by_products(torch.tensor(radians)), expected, strict=True):
        assert (got.numpy() == want).all()


def test_the_strict_export_has_no_operators_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.onnx.export tries it second; there is_in_onnx_export() is the constant False."""
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    model = pnn.SinusoidalPositionalEncoding(16, dropout=0.0).eval()
    program = torch.export.export(model, vectors(5), strict=True)
    targets = [str(node.target) for node in program.graph.nodes]
    assert not [target for target in targets if "posenc_native" in target]
    monkeypatch.undo()
    program = torch.export.export(model, vectors(5), strict=True)
    assert any("posenc_native" in str(node.target) for node in program.graph.nodes)
