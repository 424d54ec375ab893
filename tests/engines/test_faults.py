"""Signals, and systems that give no more memory or threads: a call ends whole, or has not begun."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
from interpreters import watched
from targets import NEEDS_NATIVE, NOT_SANITIZED

pytestmark = [
    NEEDS_NATIVE,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="needs /proc and limits that Linux keeps"
    ),
    NOT_SANITIZED,
]

STATUS = """
import os, resource, threading, time
import numpy as np
import posenc_native as pn

def status(name):
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(name + ":"):
                return int(line.split()[1])

at_start = status("Threads")

def more_threads():
    for _ in range(200):  # a thread that has been waited for is counted until the system is done
        if status("Threads") <= at_start:
            break
        time.sleep(0.01)
    return status("Threads") - at_start

"""


# --- Signals

# An interrupt in the middle of a call, many times. How long a call takes is not known: each attempt
# that came too early or too late is made again, with more rows.
INTERRUPTS = (
    STATUS
    + """
import faulthandler, json, signal

# A shell's background jobs ignore interrupts, and so would this.
signal.signal(signal.SIGINT, signal.default_int_handler)
dim, wanted = 64, 12
pn.set_num_threads(THREADS)
pn.engines.backend.native.set_bytes_per_thread(1 << 16)
pn.sinusoidal(1, dim, dtype=np.float64)  # an interrupt of its imports leaves a file open
memory, whole, attempts, rows = [], [], 0, 1 << 16
sent, begun = [], threading.Event()

def interrupt():
    begun.wait()
    time.sleep(0.005)
    sent.append(time.perf_counter())
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

while len(whole) < wanted and attempts < 600:
    attempts += 1
    begun.clear()
    sender = threading.Thread(target=interrupt)
    sender.start()
    interrupted = called = False
    # Strided, the slowest way to write; the last row is known.
    out = np.zeros((rows, 2 * dim), np.float64)[:, ::2]
    positions = np.zeros(rows)
    positions[-1] = attempts
    try:
        begin = time.perf_counter()
        begun.set()
        pn.sinusoidal(positions, dim, out=out)
        called = True
        sender.join()
        time.sleep(0.1)  # the interrupt comes here at the latest
    except KeyboardInterrupt:
        interrupted = True
    end = time.perf_counter()
    sender.join()
    assert interrupted
    # The interrupt is raised as soon as the call is over, hence long after it was sent.
    # On a busy machine it may come before the call, which then has written no 1.
    if not called and begin < sent[-1] < end - 0.01 and out[0, 1] == 1:
        assert np.array_equal(out[-1], pn.sinusoidal([attempts], dim, dtype=np.float64)[0])
        assert np.array_equal(out[0], out[rows // 2])
        whole.append(True)
        out = positions = None
        memory.append(status("VmRSS"))
    elif rows < 1 << 18:
        rows *= 2
print(json.dumps([len(whole), max(memory[4:]) - memory[3], more_threads()]))
"""
)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_interrupt_during_a_call_is_raised_when_it_has_ended(threads):
    code = INTERRUPTS.replace("THREADS", str(threads))
    times, growth, left = json.loads(watched(code, OPENBLAS_NUM_THREADS="1"))
    assert times == 12
    assert growth < 8 << 10  # KiB; a result has 64 MiB
    assert left == 0


def test_an_interrupt_does_not_leak_a_fresh_result():
    """Raised before the result has a name, which then is nobody's."""
    code = (
        STATUS
        + """
import signal

def handler(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
pn.set_num_threads(2)
pn.sinusoidal(1 << 18, 64)
interrupted, before = 0, None
for attempt in range(30):
    signal.setitimer(signal.ITIMER_REAL, 0.002)  # a call takes longer
    try:
        result = pn.sinusoidal(1 << 18, 64)
    except KeyboardInterrupt:
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    result = None
    if attempt == 5:
        before = status("VmRSS")
print(interrupted > 0, status("VmRSS") - before < 32 << 10, more_threads())
"""
    )
    assert watched(code, OPENBLAS_NUM_THREADS="1").split() == ["True", "True", "0"]


# --- Limits

LIMITS = (
    STATUS
    + """
# The stack of the main thread grows by need, and where addresses have ended the system ends a
# process whose stack cannot grow. So it grows now, by more than any call takes.
def grow(depth):
    return depth and list(map(grow, [depth - 1]))

grow(900)

def limit(kind, value):
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))

def used():  # bytes of addresses
    return status("VmSize") * 1024

for name in pn.__all__:
    getattr(pn, name)  # a function is imported when it is first asked for
# Room for each thread's first words: where not a page is left, the C library ends a process whose
# thread throws for the first time.
PAGES = 64 * resource.getpagesize()
AS = resource.RLIMIT_AS
hard = resource.getrlimit(AS)[1]
native = pn.engines.backend.native
inv_freq = pn.rotary.rotary_frequencies(64)[0]
x = np.ones((1, 2, 5000, 64), np.float32)
calls = {
    "sinusoidal": lambda out: pn.sinusoidal(10000, 64, out=out),
    "apply_rotary": lambda out: pn.apply_rotary(x, None, inv_freq, out=out),
}
outs = {"sinusoidal": np.zeros((10000, 64), np.float32), "apply_rotary": np.zeros_like(x)}
pn.set_num_threads(1)
wanted = {name: call(np.zeros_like(outs[name])) for name, call in calls.items()}
native.set_bytes_per_thread(1 << 12)
pn.set_num_threads(64)
"""
)


def test_without_addresses_for_threads_results_are_right():
    """A thread needs a stack. The first few are given, then none."""
    code = (
        LIMITS
        + """
right = []
for room in (0, 1 << 20, 9 << 20, 40 << 20):
    limit(AS, used() + room)
    for name, call in calls.items():
        outs[name][:] = -7
        call(outs[name])
    if room == 0:
        try:
            threading.Thread(target=print).start()
        except (RuntimeError, MemoryError):
            print("no thread")
    limit(AS, hard)  # to compare takes memory
    right += [np.array_equal(outs[name], wanted[name]) for name in calls]
print(right == [True] * 8)
print(more_threads())
"""
    )
    assert watched(code, OPENBLAS_NUM_THREADS="1").split() == ["no", "thread", "True", "0"]


def test_without_threads_results_are_right():
    """RLIMIT_NPROC counts the threads of a user, and not those of root: be another one then."""
    code = (
        LIMITS
        + """
import sys
if os.getuid() == 0:
    try:
        os.setuid(65534)
    except OSError as error:
        sys.exit(print(f"skip: {error}"))
limit(resource.RLIMIT_NPROC, 0)
try:
    threading.Thread(target=lambda: None).start()
except RuntimeError:
    pass
else:
    sys.exit(print("skip: the system gives threads beyond the limit"))
for name, call in calls.items():
    outs[name][:] = -7
    print(np.array_equal(call(outs[name]), wanted[name]))
"""
    )
    output = watched(code, OPENBLAS_NUM_THREADS="1")
    if output.startswith("skip: "):
        pytest.skip(output.removeprefix("skip: ").strip())
    assert output.split() == ["True", "True"]


def test_without_memory_for_a_result_there_is_a_memory_error():
    code = (
        LIMITS
        + """
import gc
# More than 64 MiB each: what glibc sets aside for the threads of another arena is less.
large = np.ones((1, 16, 65536, 20), np.float32)
diagonals = np.ones((16, 2199), np.float32)
scores = np.ones((16, 1100, 1100), np.float32)
columns, index = np.ones((16, 1100, 4), np.float32), np.zeros(2199, np.int64)
wide = 9 << 20  # 72 MiB of frequencies
calls = {
    "sinusoidal": lambda: pn.sinusoidal(1 << 18, 80),
    "sinusoidal, of many frequencies": lambda: pn.sinusoidal(1, wide, out=row),
    "add_sinusoidal": lambda: pn.add_sinusoidal(large),
    "rotary_tables": lambda: pn.rotary_tables(10 << 16, inv_freq),
    "apply_rotary": lambda: pn.apply_rotary(large, None, inv_freq[:10]),
    "apply_rotary_qk": lambda: pn.apply_rotary_qk(large, large, None, inv_freq[:10]),
    "toeplitz_bias": lambda: pn.toeplitz_bias(diagonals, 1100, 1100),
    "add_toeplitz_bias": lambda: pn.add_toeplitz_bias(scores, diagonals),
    "relative_gather": lambda: pn.relative_gather(columns, index, 1100),
    "relative_scatter": lambda: pn.relative_scatter(scores[:, :, :1], index[:1100], 1100),
}
row = np.zeros((1, wide), np.float32)
for name, call in calls.items():
    row[:] = -7
    gc.collect()
    limit(AS, used() + (1 << 20))
    try:
        call()
    except MemoryError:
        error = True
    else:
        error = False
    limit(AS, hard)
    untouched = bool((row == -7).all())
    call()  # what was kept of the failed call must not serve this one
    print(f"{name}: {error} {untouched}")
calls["sinusoidal, of many frequencies"]()
pair = row.reshape(-1, 2)
print(np.array_equal(pair.min(0), [0, 1]), np.array_equal(pair.max(0), [0, 1]))
"""
    )
    *lines, last = watched(code, OPENBLAS_NUM_THREADS="1").splitlines()
    assert len(lines) == 10
    assert [line for line in lines if not line.endswith(": True True")] == []
    assert last == "True True"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_without_memory_for_a_tensor_there_is_an_error_of_torch():
    """A RuntimeError, as torch's own functions raise on the CPU; mostly its OutOfMemoryError."""
    code = (
        LIMITS
        + """
import torch
torch.set_num_threads(2)
inv_freq = torch.from_numpy(inv_freq)
x = torch.ones(1, 16, 20000, 64)
diagonals, scores = torch.ones(16, 2199), torch.ones(16, 1100, 1100)
columns, index = torch.ones(16, 1100, 4), torch.zeros(2199, dtype=torch.int64)
given, learned = x.half().requires_grad_(), inv_freq.clone().requires_grad_()
ones, positions = torch.ones_like(given), torch.arange(10 << 16)
calls = {
    "sinusoidal": lambda: pn.sinusoidal(positions, 80, dtype=torch.float32),
    "add_sinusoidal": lambda: pn.add_sinusoidal(x),
    "rotary_tables": lambda: pn.rotary_tables(positions, inv_freq),
    "apply_rotary": lambda: pn.apply_rotary(x, None, inv_freq),
    "apply_rotary_qk": lambda: pn.apply_rotary_qk(x, x, None, inv_freq),
    "backward": lambda: pn.apply_rotary(given, None, learned).backward(ones),
    "toeplitz_bias": lambda: pn.toeplitz_bias(diagonals, 1100, 1100),
    "add_toeplitz_bias": lambda: pn.add_toeplitz_bias(scores, diagonals),
    "relative_gather": lambda: pn.relative_gather(columns, index, 1100),
    "relative_scatter": lambda: pn.relative_scatter(scores[:, :, :1], index[:1100], 1100),
}
pn.apply_rotary(x, None, inv_freq)  # torch's threads have begun
for name, call in calls.items():
    limit(AS, used() + (1 << 20))
    try:
        call()
    except RuntimeError as error:
        found = "memory" in str(error)
    else:
        found = False
    limit(AS, hard)
    call()
    print(f"{name}: {found}")
"""
    )
    lines = watched(code, OPENBLAS_NUM_THREADS="1").splitlines()
    assert len(lines) == 10
    assert [line for line in lines if not line.endswith(": True")] == []


def test_frequencies_of_a_call_without_memory_are_not_kept():
    """Memory ends in each of the steps of a call: it fails or is right, and so is the next one."""
    code = (
        LIMITS
        + """
import gc
pairs = 1 << 16
frequencies = [np.linspace(1, 2 + i, pairs) for i in range(3)]
x = np.ones((1, 1, 1, 2 * pairs), np.float32)
out = np.zeros_like(x)
sums = np.ones((1, 2000, 500), np.float32)
runs = np.arange(2499) % 7
columns = np.ones((1, 2000, 7), np.float32)
gathered = np.zeros((1, 2000, 500), np.float32)
def each(i):
    positions = np.array([5 + i])
    yield pn.apply_rotary(x, positions, frequencies[i], out=out)
    yield pn.sinusoidal(positions, 2 * pairs + 2 * i, out=np.zeros((1, 2 * pairs + 2 * i)))
    yield pn.relative_gather(columns, runs, 500, out=gathered)
    yield pn.diagonal_sums(sums)

pn.set_num_threads(1)
wanted = [[result.copy() for result in each(i)] for i in range(3)]
pn.set_num_threads(64)
failed = wrong = 0
for room in range(PAGES, 5 << 20, 256 << 10):
    for i in range(3):
        gc.collect()
        limit(AS, used() + room)
        try:
            results = []
            for result in each(i):
                results.append(result.copy())
        except MemoryError:
            failed += 1
        limit(AS, hard)
        wrong += not all(map(np.array_equal, results, wanted[i]))
        wrong += not all(map(np.array_equal, each(i), wanted[i]))
print(failed > 0, wrong, more_threads())
"""
    )
    assert watched(code, OPENBLAS_NUM_THREADS="1").split() == ["True", "0", "0"]


def test_without_memory_on_one_of_several_threads_there_is_a_memory_error():
    """Each of the threads needs a row of its own: some have it, and one has not."""
    code = (
        LIMITS
        + """
dims = 17 << 20  # 68 MiB: more than glibc sets aside for the threads of another arena
q = np.ones((1, 1, 3, dims), np.float32)
weight = np.arange(dims, dtype=np.float32) / dims
out = np.zeros_like(q), None
def call():
    return pn.norm_rotary_qk(q, None, None, inv_freq[:2], q_weight=weight, out=out)

wanted = call()[0].copy()
pn.set_num_threads(3)
failed = wrong = 0
for room in range(PAGES, 640 << 20, 64 << 20):
    out[0][:] = -7
    limit(AS, used() + room)
    try:
        call()
    except MemoryError:
        failed += 1
    else:
        wrong += not np.array_equal(out[0], wanted)
    limit(AS, hard)
print(failed > 1, wrong)
"""
    )
    assert watched(code, OPENBLAS_NUM_THREADS="1").split() == ["True", "0"]


def test_a_stack_of_512_kib_is_enough():
    """As macOS gives to threads that are not the first one. Rotations of float64 need the most."""
    code = (
        STATUS
        + """
dtypes = np.float16, np.float32, np.float64
inv_freq = pn.rotary.rotary_frequencies(64)[0]
errors = []

def every_kernel(dtype):
    x = np.ones((1, 4, 300, 64), dtype)
    for pairing in ("half", "interleaved"):
        pn.apply_rotary_qk(x, x[:, :1], None, inv_freq, pairing=pairing)
    pn.sinusoidal(100, 8192, dtype=dtype)
    pn.sinusoidal(np.arange(300) + 0.5, 512, dtype=dtype)
    pn.add_sinusoidal(x)
    scores, diagonals = np.ones((1, 300, 3000), dtype), np.ones((1, 3299), dtype)
    pn.toeplitz_bias(diagonals, 300, 3000)
    pn.add_toeplitz_bias(scores, diagonals)
    pn.diagonal_sums(scores)
    index = pn.relative.clipped_index(300, 3000, 8, q_offset=0)
    pn.relative_gather(pn.relative_scatter(scores, index, 17), index, 3000)

def work():
    try:
        for target in pn.engines.backend.native.available_targets():
            pn.engines.backend.native.set_target(target)
            for dtype in dtypes:
                every_kernel(dtype)
    except Exception as error:
        errors.append(error)

pn.set_num_threads(1)  # on the thread of the caller
threading.stack_size(512 << 10)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(errors)
"""
    )
    assert watched(code) == "[]\n"
