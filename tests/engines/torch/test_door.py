"""Calls on plain tensors go to the NumPy module, past torch's dispatcher.

The results are the same. Calls do not go there if something follows what operators do:
test_followers.py has the list.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from interpreters import python  # noqa: E402
from targets import NOT_SANITIZED  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch_cases import FLOATS, assert_same_bits, dtype_id, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native.core.calls.rotation import Rotation  # noqa: E402
from posenc_native.engines import configuration  # noqa: E402
from posenc_native.engines.torch import door  # noqa: E402
from posenc_native.engines.torch.gradients import rotary as rotary_gradients  # noqa: E402

pytestmark = [
    torch_cases.needs_operators,
    pytest.mark.skipif(not door.IS_OPEN, reason="this torch does not exchange tensors"),
]
each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_id)
INV_FREQ = torch.tensor([1.0, 0.1, 0.01, 0.001])
COS, SIN = pn.rotary_tables(torch.arange(3), INV_FREQ)

# Calls on q [1, 2, 3, 8] and k [1, 1, 3, 8].
CALLS = {
    "apply_rotary": lambda q, k: (pn.apply_rotary(q, None, INV_FREQ),),
    "apply_rotary, out": lambda q, k: (
        pn.apply_rotary(q, None, INV_FREQ, out=torch.empty_like(q)),
    ),
    "apply_rotary_qk": lambda q, k: pn.apply_rotary_qk(q, k, None, INV_FREQ),
    "apply_rotary by tables": lambda q, k: (pn.apply_rotary(q, None, pn.Tables(COS, SIN)),),
    "apply_rotary_qk by tables": lambda q, k: pn.apply_rotary_qk(q, k, None, pn.Tables(COS, SIN)),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def qk(dtype=torch.float32):
    return random((1, 2, 3, 8), dtype), random((1, 1, 3, 8), dtype, seed=1)


@pytest.fixture
def asked(monkeypatch):
    """How often the NumPy module was asked, and what it answered."""
    answers = []

    class Spy:
        def __getattr__(self, name):
            function = getattr(pn.engines.backend.native.door, name)

            def ask(*args):
                answers.append(function(*args))
                return answers[-1]

            return ask

    spy = Spy()
    monkeypatch.setattr(pn.engines.backend, "door", spy)
    return answers


# Calls on x [2, 3, 8] and numbers of its dtype beside it.
X_CALLS = {
    "sinusoidal": lambda x, d: pn.sinusoidal(POSITIONS, 6, shift=0.5),
    "sinusoidal, out": lambda x, d: pn.sinusoidal(POSITIONS, 8, out=torch.empty_like(x[0])),
    "rotary_tables": lambda x, d: torch.stack(pn.rotary_tables(POSITIONS, INV_FREQ, scale=0.5)),
    "rotary_tables, several axes": lambda x, d: torch.stack(
        pn.rotary_tables(torch.arange(6).view(2, 3), INV_FREQ, axis_map=[0, 1, 1, 0])
    ),
    "rotary_tables of a Rotary": lambda x, d: torch.stack(pn.rotary_tables(POSITIONS, ROPE)),
    "add_sinusoidal": lambda x, d: pn.add_sinusoidal(x, POSITIONS, alpha=0.5),
    "add_sinusoidal from the first": lambda x, d: pn.add_sinusoidal(x, 7),
    "add_sinusoidal in place": lambda x, d: pn.add_sinusoidal(x.clone(), [3, 1, 9], x_scale=2.0),
    "add_sinusoidal, out": lambda x, d: pn.add_sinusoidal(x, out=torch.empty_like(x)),
    "toeplitz_bias": lambda x, d: pn.toeplitz_bias(d, 3, 8),
    "toeplitz_bias, out": lambda x, d: pn.toeplitz_bias(
        d, 3, 6, origin=4, q_offset=1, out=torch.empty(2, 3, 6, dtype=x.dtype)
    ),
    "toeplitz_bias, offsets": lambda x, d: pn.toeplitz_bias(
        d, 1, 4, origin=4, q_offset=torch.tensor([0, 2, 3])
    ),
    "add_toeplitz_bias": lambda x, d: pn.add_toeplitz_bias(x, d),
    "add_toeplitz_bias, another dtype": lambda x, d: pn.add_toeplitz_bias(x, DIAGONALS),
    "add_toeplitz_bias in place": lambda x, d: pn.add_toeplitz_bias(
        y := x.clone(), d, origin=3, q_offset=1, out=y
    ),
    "diagonal_sums": lambda x, d: pn.diagonal_sums(x),
    "diagonal_sums of all": lambda x, d: pn.diagonal_sums(x, keep=0),
    "relative_gather": lambda x, d: pn.relative_gather(x, torch.arange(7) % 5, 5),
    "relative_gather, shift": lambda x, d: pn.relative_gather(x, None, 6, scale=0.5),
    "relative_gather in place": lambda x, d: pn.relative_gather(
        x, INDEX, 8, content=(y := x.clone()), missing=-1, out=y
    ),
    "relative_scatter": lambda x, d: pn.relative_scatter(x, INDEX, 6, missing=-1),
    "relative_scatter, offset": lambda x, d: pn.relative_scatter(
        x, INDEX, 6, origin=4, q_offset=2, missing=-1, scale=2.0
    ),
}  # fmt: skip
POSITIONS, ROPE = torch.tensor([3, -1, 2**40]), pn.Rotary(8)
DIAGONALS, INDEX = random((2, 10), torch.float64, seed=2), torch.arange(10) % 6 - 1


@each_dtype
@pytest.mark.parametrize("name", X_CALLS)
def test_tables_and_distances_have_the_bits_of_the_operator(name, dtype, asked):
    x, call = random((2, 3, 8), dtype), X_CALLS[name]
    diagonals = DIAGONALS.clone().to(dtype)
    strided = torch.stack((x, x), -1)[..., 0]
    for one in (x, x.transpose(0, 1).contiguous().transpose(0, 1), strided):
        result, expected = call(one, diagonals), by_operator(call, one, diagonals)
        assert_same_bits(result, expected)
        assert result.stride() == expected.stride()
    assert not any(answer is NotImplemented for answer in asked)
    if name in ("add_sinusoidal", "toeplitz_bias", "add_toeplitz_bias", "diagonal_sums",
                "relative_gather", "relative_scatter"):  # fmt: skip
        assert call(x.requires_grad_(), diagonals.requires_grad_()).requires_grad


def by_operator(call, *tensors):
    with torch_cases.without_the_door():
        return call(*tensors)


@each_dtype
@torch_cases.each_rotary_case
def test_bits_and_strides_are_those_of_the_operator(case, dtype, asked):
    q, k = (random(case.shape(h=h), dtype, seed=h) for h in (4, 2))
    positional, options = case.arguments("cpu")

    def fresh(q, k):
        return (
            *pn.apply_rotary_qk(q, k, *positional, **options),
            pn.apply_rotary(q, *positional, **options),
        )

    def over(q, k):
        q, k = q.clone(), k.clone()
        pn.apply_rotary_qk(q, k, *positional, **options, inplace=True)
        return q, k, pn.apply_rotary(q, *positional, **options, out=torch.empty_like(q))

    permuted = tuple(t.transpose(0, -2).contiguous().transpose(0, -2) for t in (q, k))
    strided = tuple(torch.stack((t, t), -1)[..., 0] for t in (q, k))
    for tensors in ((q, k), permuted, strided):
        for call in (fresh, over):
            results, expected = call(*tensors), by_operator(call, *tensors)
            for one, other in zip(results, expected, strict=True):
                assert_same_bits(one, other)
                assert one.stride() == other.stride()
    assert len(asked) == 12
    assert not any(answer is NotImplemented for answer in asked)


@each_call
def test_calls_do_without_the_operator(call, asked):
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            call(*qk())
    assert len(asked) == 3
    assert not any(answer is NotImplemented for answer in asked)


@pytest.mark.parametrize("name", ["apply_rotary", "apply_rotary_qk", "apply_rotary_qk by tables"])
def test_derivatives_are_followed(name, asked):
    call = CALLS[name]
    q, k = qk()
    assert call(q.clone().requires_grad_(), k)[0].requires_grad
    if "qk" in name:
        assert call(q, k.clone().requires_grad_())[1].requires_grad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        tangent = forward_ad.unpack_dual(call(dual, k)[0]).tangent
    torch.testing.assert_close(tangent, call(torch.ones_like(q), k)[0], rtol=0, atol=1e-6)
    (mapped,) = torch.func.vmap(lambda q: call(q, k)[:1])(torch.stack((q, q)))
    assert_same_bits(mapped[1], call(q, k)[0])
    taken = [answer for answer in asked if answer is not NotImplemented]
    # The plain calls to compare with, and inside of the Functions that autograd follows.
    assert len(taken) == 2 + (2 if "qk" in name else 1)


def test_frequencies_and_positions_that_are_learned_are_followed():
    q, k = qk()
    learned = INV_FREQ.clone().requires_grad_()
    assert pn.apply_rotary_qk(q, k, None, learned)[0].requires_grad
    points = torch.arange(3.0, requires_grad=True)
    assert pn.apply_rotary(q, points, INV_FREQ).requires_grad
    with torch.no_grad():
        assert not pn.apply_rotary(q, points, learned).requires_grad


def test_tensors_whose_memory_is_not_their_value_are_left_to_the_operator():
    z = torch.complex(*(random((1, 2, 3, 8), seed=i) for i in (0, 1)))
    negated = torch.imag(z.conj())
    assert negated.is_neg()
    expected = pn.apply_rotary(negated.clone(), None, INV_FREQ)
    assert_same_bits(pn.apply_rotary(negated, None, INV_FREQ), expected)
    one_pair = torch.imag(torch.view_as_complex(random((1, 2, 2))).conj())
    assert_same_bits(
        pn.apply_rotary(one_pair, torch.tensor([1]), torch.ones(1), layout="sd"),
        pn.apply_rotary(one_pair.clone(), torch.tensor([1]), torch.ones(1), layout="sd"),
    )
    zeros = torch._efficientzerotensor((1, 2, 3, 8))
    try:
        rotated = pn.apply_rotary(zeros, None, INV_FREQ)
    except (RuntimeError, NotImplementedError):  # torch's own: no operator of ours takes them
        return
    assert not rotated.any()


LARGE = """
import os
import torch
import posenc_native as pn

torch.set_num_threads(3)
x, threads = torch.empty(1, 4, 1024, 256), lambda: len(os.listdir("/proc/self/task"))
pn.apply_rotary(x[..., :8, :], None, torch.ones(128), out=x[..., :8, :])
before = threads()
pn.apply_rotary(x, None, torch.ones(128), out=x)
print(threads() - before)
"""


@NOT_SANITIZED
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="runs on Linux")
def test_large_calls_have_the_threads_of_torch():
    # torch starts them with the first work for several, and keeps them.
    program = python(LARGE)
    assert program.returncode == 0, program.stderr
    assert program.stdout.strip() == "2"


def test_large_calls_do_without_the_dispatcher(asked):
    x = torch.ones(1, 4, 1024, 256)
    expected = pn.apply_rotary(x[:, :, -1:], 1023, torch.ones(128))
    rotated = pn.apply_rotary(x, None, torch.ones(128))
    pn.apply_rotary(x, None, torch.ones(128), out=x)
    assert not any(answer is NotImplemented for answer in asked)
    assert torch.equal(rotated, x)
    assert torch.equal(x[:, :, -1:], expected)


@pytest.mark.parametrize(
    "arguments",
    [
        {"inv_freq": None},
        {"scale": torch.tensor(2.0)},
        {"scale": torch.tensor(2.0, requires_grad=True)},
        {"scale": "2"},
        {"rotary_start": torch.tensor(0)},
        {"rotary_start": True},
        {"pairing": torch.tensor(2)},
        {"inverse": "no"},
        {"inverse": np.array([1, 2])},
        {"inplace": 1},
    ],
    ids=str,
)
def test_what_is_no_plain_number_is_the_operators(arguments):
    def outcome():
        q, k = qk()
        given = {"q": q, "k": k, "positions": None, "inv_freq": INV_FREQ} | arguments
        try:
            return [(t.tolist(), t.requires_grad) for t in pn.apply_rotary_qk(**given)]
        except Exception as error:
            return type(error), str(error)

    assert outcome() == by_operator(outcome)


def test_a_truth_that_is_none_is_its_own_error():
    x = np.zeros((1, 1, 1, 8), np.float32)
    with pytest.raises(ValueError, match="ambiguous"):
        pn.apply_rotary(x, None, np.ones(4), inverse=np.array([1, 2]))


@pytest.mark.parametrize(
    "negated",
    [
        lambda x: torch._neg_view(x),
        lambda x: torch.complex(x, x).conj().imag.as_strided(x.shape, (48, 24, 8, 1)),
    ],
)
def test_negated_views_keep_their_sign(negated):
    x = negated(qk()[0])
    assert x.is_neg()
    expected = pn.apply_rotary(x.resolve_neg().clone(), None, INV_FREQ)
    assert_same_bits(pn.apply_rotary(x, None, INV_FREQ), expected)


def test_the_autograd_functions_keep_the_operator():
    q, k = (t.requires_grad_() for t in qk())
    rotated = rotary_gradients.ROTARY_QK[False](q, k, *Rotation(None, INV_FREQ))
    for one, other in zip(rotated, pn.apply_rotary_qk(q, k, None, INV_FREQ), strict=True):
        assert_same_bits(one, other)


def test_the_configuration_says_whether_calls_are_read(monkeypatch):
    said = configuration.configuration()["calls (torch)"]
    assert said == "read directly"
    monkeypatch.setattr(door, "IS_OPEN", False)
    said = configuration.configuration()["calls (torch)"]
    assert said.startswith("through torch's dispatcher")
