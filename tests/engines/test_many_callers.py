"""Many Python threads, while settings change and the process forks: the bits of one thread."""

from __future__ import annotations

import importlib.util
import json
import os
import sysconfig
import textwrap

import pytest
from interpreters import output_of, watched
from targets import NEEDS_NATIVE, SANITIZER

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
NO_TORCH = importlib.util.find_spec("torch") is None
NEEDS_TORCH = pytest.mark.skipif(NO_TORCH, reason="torch is not installed")

# Threads call at random for a while; every result is compared. What one thread got is known before.
MANY_CALLERS = """
    import itertools, json, os, random, signal, threading, time
    import many_calls
    import posenc_native as pn
    from posenc_native.engines import backend

    many_calls.share_small_calls()
    native = backend.native
    before = native.current_target()
    wanted = {}  # of each call: of the native module on each target, and of the other backend
    for name, call in CALLS.items():
        wanted[name] = [], []
        for target in native.available_targets():
            assert native.set_target(target)
            wanted[name][0].append(call())
        native.set_target(before)
        pn.set_backend("reference")
        wanted[name][1].append(call())
        pn.set_backend("native")

    stop = threading.Event()
    errors, done, forks = [], [0] * 64, []

    def check(name):
        result = CALLS[name]()
        natives, others = wanted[name]
        # A call whose target changes in the middle goes on with the other one.
        if not (many_calls.same(result, others[0]) or many_calls.is_mixture(result, natives)):
            errors.append(name)

    def work(number):
        choice = random.Random(number)
        while not stop.is_set():
            try:
                check(choice.choice(names))
            except Exception as error:
                errors.append(repr(error))
                return
            done[number] += 1

    def change():
        targets = itertools.cycle(native.available_targets())
        for count in itertools.cycle((1, 2, 5, 3)):
            if stop.wait(0.002):
                break
            pn.set_num_threads(count)
            native.set_target(next(targets))
            pn.set_backend("reference" if count == 3 else "native")

    def fork():
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # rather than wait for ever for what a lost thread holds
            in_child()
            for name in of_child:
                check(name)
            os._exit(1 if errors else 0)
        forks.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    names, of_child = sorted(CALLS), sorted(CALLS)[::5]
    workers = [threading.Thread(target=work, args=(i,)) for i in range(64)]
    workers.append(threading.Thread(target=change))
    for worker in workers:
        worker.start()
    end = time.monotonic() + SECONDS
    while (time.monotonic() < end or min(done) < 1 or len(forks) < FORKS) and not errors:
        if FORKS > len(forks):
            fork()
        time.sleep(0.05)
    stop.set()
    for worker in workers:
        worker.join()
    print(json.dumps([errors, min(done) > 0, forks]))
"""
OF_ARRAYS = """
    import many_calls
    CALLS = many_calls.calls_of_arrays()
    in_child = lambda: None
"""
# What torch computes with after a fork is one thread: its own pool is lost.
OF_ARRAYS_AND_TENSORS = """
    import many_calls, torch
    torch.set_num_threads(2)
    CALLS = many_calls.calls_of_arrays() | many_calls.calls_of_tensors()
    in_child = lambda: torch.set_num_threads(1)
"""


@NEEDS_NATIVE
@pytest.mark.parametrize(
    "calls",
    [
        # Where torch is, the other one makes these calls too.
        pytest.param(OF_ARRAYS, id="arrays", marks=[] if NO_TORCH else [pytest.mark.slow]),
        pytest.param(OF_ARRAYS_AND_TENSORS, id="arrays and tensors", marks=NEEDS_TORCH),
    ],
)
@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_64_callers_while_settings_change_and_the_process_forks(calls, seconds):
    # Without the interpreter lock CPython itself does not survive it: a lock of importlib's that a
    # thread held, of a dict, is held for ever in the child (seen with 3.13). No more does a
    # sanitizer of threads know what to make of such a child.
    alone = FREE_THREADED or SANITIZER == "thread"
    forks = 0 if alone or not hasattr(os, "fork") else 4 if seconds == 2 else 20
    # Python 3.12 warns of a fork beside threads: it is what this is about.
    program = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"
    program += textwrap.dedent(calls) + f"SECONDS, FORKS = {seconds}, {forks}\n"
    errors, all_called, statuses = json.loads(watched(program + textwrap.dedent(MANY_CALLERS)))
    assert errors == []
    assert all_called
    assert statuses == [0] * forks


@NEEDS_NATIVE
@pytest.mark.skipif(not FREE_THREADED, reason="needs a free-threaded Python: `make free-threaded`")
def test_the_native_module_leaves_the_interpreter_lock_off():
    code = "import sys, posenc_native as pn; print(sys._is_gil_enabled()); pn.sinusoidal(3, 4)"
    assert output_of(code, PYTHON_GIL="") == "False\n"
