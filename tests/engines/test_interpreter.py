"""What the interpreter does around a call: threads it ends, modules it imports, other threads that
write to the arguments, memory that stays behind. Each in a process of its own."""

from __future__ import annotations

import pytest
from interpreters import output_of, watched
from targets import NEEDS_NATIVE, NOT_SANITIZED

pytestmark = NEEDS_NATIVE


def test_the_interpreter_exits_while_daemon_threads_are_in_calls():
    """Until 3.14 CPython ends such threads by unwinding their stacks, destructors and all.

    Of arrays: with torch.neg in the place of the rotation torch 2.13 aborts by itself.
    """
    watched("""
        import threading, time
        import numpy as np
        import posenc_native as pn

        x = np.ones((4, 32, 512, 64), np.float32)
        inv_freq = pn.rotary.rotary_frequencies(64)[0]
        calls = [0] * 6

        def work(i):
            out = np.empty_like(x)
            while True:
                pn.apply_rotary(x, None, inv_freq, out=out)
                calls[i] += 1

        for i in range(6):
            threading.Thread(target=work, args=(i,), daemon=True).start()
        while sum(calls) < 6:
            time.sleep(0.01)
    """)


def test_numpy_is_found_before_the_first_call():
    """pybind11 gives the interpreter up to find it: a daemon thread may then meet its end."""
    assert output_of("""
        import sys
        import numpy as np
        from posenc_native.engines import backend

        positions = np.arange(3)
        sys.modules["numpy"] = None  # who asks for it now gets an error
        options = (10000.0, "interleaved", 0.0, 1.0, None, None)
        print(backend.door.sinusoidal(positions, 8, *options).shape)
    """) == "(3, 8)\n"  # fmt: skip


def test_the_first_calls_of_several_threads():
    """Whatever a first call imports, meanwhile other threads make first calls of their own."""
    assert watched("""
        import builtins, threading, time
        import numpy as np
        import posenc_native as pn

        original = builtins.__import__

        def slow_import(*args, **kwargs):
            time.sleep(0.02)
            return original(*args, **kwargs)

        x = np.ones((1, 2, 8, 64), np.float32)
        inv_freq = pn.rotary.rotary_frequencies(64)[0]
        start = threading.Barrier(8)
        results = []

        def work():
            start.wait()
            results.append(pn.apply_rotary(x, None, inv_freq))
            results.append(pn.add_sinusoidal(x[0]))

        threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
        builtins.__import__ = slow_import
        for thread in threads: thread.start()
        for thread in threads: thread.join(20)
        print(len(results))
    """) == "16\n"  # fmt: skip


@pytest.mark.parametrize("name", ["axis_map", "q_offset", "index"])
def test_an_argument_that_another_thread_changes_during_the_call(name):
    """Values that lead to memory were checked, but may be others when they are read again.

    Changed before the check they may be refused; what must not happen is that they are followed.
    """
    watched(f"""
        import contextlib, sys, threading, time
        import numpy as np
        import posenc_native as pn

        heads, tokens, pairs = 64, 2048, 32
        x = np.ones((1, heads, tokens, 2 * pairs), np.float32)
        inv_freq = pn.rotary.rotary_frequencies(2 * pairs)[0]
        positions = np.zeros((2, tokens), np.int64)
        diagonals = np.ones((4, 2 * tokens), np.float32)
        calls = {{
            "axis_map": lambda array: pn.apply_rotary(x, positions, inv_freq, axis_map=array),
            "q_offset": lambda array: pn.toeplitz_bias(
                diagonals, tokens, tokens, q_offset=array, origin=tokens
            ),
            "index": lambda array: pn.relative_gather(x, array, tokens),
        }}
        sizes = {{"axis_map": pairs, "q_offset": 1, "index": 2 * tokens - 1}}
        changing = np.zeros(sizes["{name}"], np.int64)
        called, restored = threading.Event(), threading.Event()
        sys.setswitchinterval(60)  # the other thread's turn comes when the call is being worked on

        def change():
            while True:
                called.wait()
                called.clear()
                changing.fill(2**40)
                time.sleep(0.001)
                changing.fill(0)
                restored.set()

        threading.Thread(target=change, daemon=True).start()
        done = 0
        for _ in range(50):
            called.set()
            with contextlib.suppress(ValueError):
                calls["{name}"](changing)
                done += 1
            restored.wait()
            restored.clear()
            if done == 10: break
        assert done > 0, "every call was refused before it read the values again"
    """)


@NOT_SANITIZED
def test_memory_that_a_large_call_needed_is_given_back():
    """A thread keeps the frequencies of small calls alone, and of an empty result makes none."""
    grown = watched("""
        import numpy as np
        import posenc_native as pn

        def resident():
            with open("/proc/self/status") as status:
                line = next(line for line in status if line.startswith("VmRSS"))
            return int(line.split()[1]) // 1024

        pairs = 1 << 21
        pn.sinusoidal(1, 64)
        before = resident()
        pn.sinusoidal(0, 1 << 27)
        pn.sinusoidal(np.zeros((3, 0)), 1 << 40)
        pn.sinusoidal(1, 2 * pairs)
        pn.rotary_tables(np.zeros(1), np.ones(pairs))
        pn.relative_gather(np.ones((1, 1, 2), np.float32), np.arange(pairs) % 2, pairs)
        print(resident() - before)
    """)
    assert int(grown) < 16  # MiB; frequencies take 32 and 48, the index 8
