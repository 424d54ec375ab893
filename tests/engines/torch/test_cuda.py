"""What only a CUDA device can show: streams, graphs, no waiting, large tensors."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import tempfile
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import cuda_calls  # noqa: E402
import torch_cases  # noqa: E402
from compiling import needs_inductor  # noqa: E402
from cuda_calls import (  # noqa: E402
    CALLS,
    HEAD_DIM,
    MODULE,
    Inputs,
    as_tuple,
    assert_all_same,
    each_call,
    inv_freq,
)
from torch._dynamo.utils import counters  # noqa: E402
from torch_cases import assert_same_bits, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

pytestmark = [torch_cases.needs_operators, torch_cases.needs_cuda]
kernels = cuda_calls.kernels


# --- Streams

# Long enough that a kernel on another stream would overtake what is before it on this one.
DELAY = 20_000_000  # cycles, about 10 ms


@each_call
def test_work_goes_to_the_current_stream(call):
    expected = call(Inputs())
    torch.cuda.synchronize()
    inputs, late = Inputs(), Inputs()
    for tensor in (late.x, late.k):
        tensor.zero_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(DELAY)
        # On any other stream the call would see the zeros.
        late.x.copy_(inputs.x)
        late.k.copy_(inputs.k)
        results = call(late)
        copies = tuple(r.clone() for r in as_tuple(results))
    side.synchronize()
    assert_all_same(copies, expected)


def test_two_streams_do_not_disturb_each_other():
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [Inputs(shape=(2, 3, 501 + n, HEAD_DIM)) for n in range(2)]
    expected = [[call(Inputs(shape=i.x.shape)) for call in CALLS.values()] for i in inputs]
    torch.cuda.synchronize()
    for _ in range(5):
        results = [[], []]
        for call in CALLS.values():
            for n, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    fresh = Inputs(shape=inputs[n].x.shape)
                    results[n].append(call(fresh))
        torch.cuda.synchronize()
        for n, result in itertools.product(range(2), range(len(CALLS))):
            assert_all_same(results[n][result], expected[n][result])


# --- CUDA graphs


@each_call
def test_capture_and_replay(call):
    expected = call(Inputs())
    inputs, source = Inputs(), Inputs()
    # What is made once, on the first call, is made before.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(Inputs())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call(inputs)
    # Capturing computes nothing; a replay does, with what the arguments hold by then.
    for _ in range(3):
        for tensor, original in zip(inputs.tensors, source.tensors, strict=True):
            tensor.copy_(original)
        graph.replay()
        torch.cuda.synchronize()
        assert_all_same(results, expected)
    assert inputs.positions.equal(source.positions)


def test_a_captured_decoding_step_follows_its_position():
    q, k = random((1, 4, 1, HEAD_DIM), device="cuda"), random((1, 2, 1, HEAD_DIM), device="cuda")
    original_q, original_k = q.clone(), k.clone()
    position, f = torch.tensor([0], device="cuda"), inv_freq()
    graph = torch.cuda.CUDAGraph()
    pn.apply_rotary_qk(q.clone(), k.clone(), position, f, inplace=True)
    with torch.cuda.graph(graph):
        pn.apply_rotary_qk(q, k, position, f, inplace=True)
    for step in (1, 77, 2**40):
        q.copy_(original_q)
        k.copy_(original_k)
        position.fill_(step)
        graph.replay()
        expected = pn.apply_rotary_qk(original_q, original_k, torch.tensor([step]).cuda(), f)
        assert_all_same((q, k), expected)


def test_a_captured_append_follows_its_position_and_its_slot():
    rope = pn.Rotary(HEAD_DIM)
    q, k, v = (random((1, n, 1, HEAD_DIM), device="cuda", seed=n) for n in (4, 2, 1))
    v = v.expand_as(k)
    weight = random((HEAD_DIM,), device="cuda")
    position, slot = (torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(2))
    caches = torch.zeros(2, 1, 2, 8, HEAD_DIM, device="cuda")
    rope.append(q, k, v, position, *caches.clone(), slot, q_weight=weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = rope.append(q, k, v, position, *caches, slot, q_weight=weight)
    expected = torch.zeros_like(caches, device="cpu")
    for step in (3, 5, 2):
        position.fill_(step * 1000)
        slot.fill_(step)
        graph.replay()
        on_cpu = [x.cpu() for x in (q, k, v)]
        own = rope.append(*on_cpu, step * 1000, *expected, [step], q_weight=weight.cpu())
        assert_all_same((result.cpu(), *caches.cpu()), (own, *expected))


def test_the_first_call_of_a_module_may_be_captured():
    # Moving it copied its frequencies: a capture allows no copy from the host.
    q, k = random((1, 4, 1, HEAD_DIM), device="cuda"), random((1, 2, 1, HEAD_DIM), device="cuda")
    position = torch.tensor([77], device="cuda")
    pnn.RotaryEmbedding(HEAD_DIM, base=3e5).to("cuda")(q, k, position)  # what all modules share
    rope = pnn.RotaryEmbedding(HEAD_DIM).to("cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = rope(q, k, position)
    graph.replay()
    torch.cuda.synchronize()
    assert_all_same(results, rope(q, k, position))


# --- torch.compile


@pytest.fixture
def _fresh_compiler():
    needs_inductor("cuda")
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(mode):
    def step(q, k, x, positions, f):
        q, k = pn.apply_rotary_qk(q * 2, k * 2, positions, f, inplace=True)
        x = pn.add_sinusoidal(x, positions) + pn.apply_rotary(x, positions, f)
        return q + 1, k + 1, x, *MODULE(q, k, positions)

    fast = torch.compile(step, fullgraph=True, mode=mode)
    with torch.no_grad():
        for seed in range(4):  # the third call of reduce-overhead is the first to replay a graph
            i = Inputs()
            q, k, x = i.x + seed, i.k + seed, i.other + seed
            expected = step(q, k, x, i.positions + seed, i.f)
            torch.compiler.cudagraph_mark_step_begin()
            results = [r.clone() for r in fast(q, k, x, i.positions + seed, i.f)]
            # Inductor may fuse the sums and products around the operators.
            torch.testing.assert_close(results, list(expected), rtol=1e-6, atol=1e-6)
    assert not counters["inductor"]["cudagraph_skips"]


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_module_compiled_before_it_ran_leaves_nothing_on_the_cpu():
    # Frequencies copied to the device in every call would keep the graph from being captured.
    rope, inputs = pnn.RotaryEmbedding(HEAD_DIM, base=3e5), Inputs()
    fast = torch.compile(rope, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        results = tuple(r.clone() for r in fast(inputs.x, inputs.k, inputs.positions))
    assert_all_same(results, rope(inputs.x, inputs.k, inputs.positions))
    assert not counters["inductor"]["cudagraph_skips"]


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_with_gradients(mode):
    def loss(q, k, positions, f):
        q, k = pn.apply_rotary_qk(q, k, positions, f)
        return (q * k).square().mean()

    fast = torch.compile(loss, fullgraph=True, mode=mode)
    for _ in range(4):
        i = Inputs()
        q, k = i.x.requires_grad_(), i.k.requires_grad_()
        torch.compiler.cudagraph_mark_step_begin()
        gradients = [g.clone() for g in torch.autograd.grad(fast(q, k, i.positions, i.f), (q, k))]
        expected = torch.autograd.grad(loss(q, k, i.positions, i.f), (q, k))
        torch.testing.assert_close(gradients, list(expected), rtol=1e-5, atol=1e-6)
    assert not counters["inductor"]["cudagraph_skips"]


# --- Nothing waits for the device


@contextlib.contextmanager
def no_waiting():
    """Inside, everything that torch knows to wait for the device is an error."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@each_call
def test_no_call_waits_for_the_device(call):
    call(Inputs())  # what is made once may wait
    inputs = Inputs()
    torch.cuda.synchronize()
    with no_waiting():
        torch.cuda._sleep(10 * DELAY)
        call(inputs)
        # Nor in a way that torch does not know of: the device still sleeps when the call returns.
        busy = not torch.cuda.current_stream().query()
    assert busy
    torch.cuda.synchronize()


@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "grad"])
def test_no_backward_waits_for_the_device(requires_grad):
    def run(i):
        q, k = pn.apply_rotary_qk(i.x, i.k, i.fractions, i.f)
        x = pn.add_sinusoidal(pn.apply_rotary(i.other, i.axes, i.f, axis_map=i.axis_map))
        loss = q.sum() + k.sum() + x.sum()
        if requires_grad:
            loss.backward()

    def inputs():
        i = Inputs()
        for tensor in (i.x, i.k, i.other, i.fractions, i.f):
            tensor.requires_grad_(requires_grad)
        return i

    run(inputs())
    second = inputs()
    with no_waiting():
        run(second)


# --- Devices


def test_errors_name_the_device():
    i = Inputs()
    for argument, call in {
        "positions": lambda: pn.apply_rotary(i.x, i.positions.cpu(), i.f),
        "inv_freq": lambda: pn.apply_rotary_qk(i.x, i.k, None, i.f.cpu(), inplace=True),
        "k": lambda: pn.apply_rotary_qk(i.x, i.k.cpu(), None, i.f, inplace=True),
        "axis_map": lambda: pn.rotary_tables(i.axes, i.f, axis_map=i.axis_map.cpu()),
        "sin": lambda: pn.apply_rotary(i.x, None, pn.Tables(i.cos, i.sin.cpu()), out=i.x),
        "cos": lambda: pn.apply_rotary_qk(
            i.x, i.k, None, pn.Tables(i.cos.cpu(), i.sin), inplace=True
        ),
        "out": lambda: pn.add_sinusoidal(i.x, out=i.out.cpu()),
    }.items():
        before = i.x.clone()
        with pytest.raises(ValueError, match=rf"\w+: {argument}: expected .*cuda.*, got cpu"):
            call()
        assert i.x.equal(before)
    with pytest.raises(ValueError, match=r"expected .*cpu.*, got cuda"):
        pn.apply_rotary(i.x.cpu(), i.positions, i.f.cpu())


@each_call
def test_a_second_device(call):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs a second CUDA device")
    expected = call(Inputs("cuda:0"))
    # The current device is the first.
    results = call(Inputs("cuda:1"))
    assert {r.device for r in as_tuple(results)} == {torch.device("cuda:1")}
    assert_all_same(results, expected)
    assert torch.cuda.current_device() == 0
    with pytest.raises(ValueError, match=r"expected .*, got cuda:0"):
        pn.apply_rotary(Inputs("cuda:1").x, None, inv_freq("cuda:0"))


# --- Large tensors


def needs_memory(count):
    free, _ = torch.cuda.mem_get_info()
    if free < count:
        pytest.skip(f"needs {count / 1e9:.0f} GB of device memory, {free / 1e9:.0f} GB are free")


@pytest.fixture
def _memory_returned():
    """One test after the other, whatever the number of processes; the memory is then free again."""
    with Path(tempfile.gettempdir(), "posenc-native-large-tests").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        torch.cuda.empty_cache()
        yield
        torch.cuda.empty_cache()


# 2^31 elements and some, in few long rows or in very many short ones.
LARGE = {
    "long rows": (2, 2**19 + 8, 17, 128),  # bshd
    "many tokens": (1, 2**24 + 1, 1, 128),
    "many heads": (1, 129, 2**17 + 3, 128),
}


@pytest.mark.usefixtures("_memory_returned")
@pytest.mark.parametrize("shape", LARGE.values(), ids=LARGE)
def test_more_elements_than_an_int_counts(shape):
    needs_memory(6_000_000_000)
    x = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
    assert x.numel() > 2**31
    # Normal numbers in one pass, with no large temporary; the same in each slice.
    x.normal_(generator=torch.Generator("cuda").manual_seed(0))
    f = inv_freq(dim=128)
    _, s, h, _ = shape
    rows = torch.tensor([0, 1, s // 3, s // 2, s - 2, s - 1])
    heads = torch.tensor(sorted({0, h // 2, h - 1}))
    before = x[:, rows.cuda()][:, :, heads.cuda()].cpu()
    assert pn.apply_rotary(x, None, f, layout="bshd", out=x) is x
    expected = pn.apply_rotary(before, rows, f.cpu(), layout="bshd")
    assert_same_bits(x[:, rows.cuda()][:, :, heads.cuda()], expected)
    pn.apply_rotary(x, None, f, layout="bshd", inverse=True, out=x)
    # Twice rounded to bfloat16, of pairs of magnitude (|a| + |b|).
    back = x[:, rows.cuda()][:, :, heads.cuda()].cpu().float()
    assert (back - before.float()).abs().max() <= 4 * before.abs().max() * 2.0**-8


@pytest.mark.usefixtures("_memory_returned")
def test_large_tables_and_sums():
    needs_memory(6_000_000_000)
    length, dim = 2**20 + 1, 2048
    table = pn.sinusoidal(length, dim, dtype=torch.bfloat16, device="cuda")
    assert table.numel() > 2**31
    rows = torch.tensor([0, 1, length // 2, length - 1])
    expected = pn.sinusoidal(rows, dim, dtype=torch.bfloat16)
    assert_same_bits(table[rows.cuda()], expected)
    pn.add_sinusoidal(table, out=table)
    assert_same_bits(table[rows.cuda()], pn.add_sinusoidal(expected, rows))


@pytest.mark.usefixtures("_memory_returned")
def test_large_biases_and_their_sums():
    needs_memory(10_000_000_000)
    queries, keys = 2**16 + 8, 2**15 + 24
    diagonals = random((1, queries + keys - 1), torch.bfloat16)
    bias = pn.toeplitz_bias(diagonals.cuda(), queries, keys)
    assert bias.numel() > 2**31
    for row in (0, 1, 2**15 + 1, queries - 1):
        begin = queries - 1 - row
        assert_same_bits(bias[0, row], diagonals[0, begin : begin + keys])
    pn.add_toeplitz_bias(bias, -diagonals.cuda(), out=bias)
    assert not bias.any()
    bias.fill_(1.0)
    sums = pn.diagonal_sums(bias)[0].cpu()
    entries = torch.arange(queries + keys - 1)
    lengths = torch.minimum(entries + 1, entries.flip(0) + 1).clamp(max=min(queries, keys))
    assert sums.equal(lengths.float())
    # There are columns for the last rows only.
    shifted = pn.relative_gather(bias, None, 64)[0]
    columns = torch.arange(queries).flip(0)[:, None] + torch.arange(64)
    assert shifted.cpu().equal((columns < keys).bfloat16())
