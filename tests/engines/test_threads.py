"""Threads, forks and the interpreter lock; what the environment chooses at import."""

from __future__ import annotations

import json
import os
import threading
import time

import numpy as np
import pytest
from interpreters import output_of, python
from matrices import others_slow
from oracle import DTYPES, assert_same_bits
from targets import NATIVE, NEEDS_NATIVE, TARGETS

import posenc_native as pn
from posenc_native.engines import configuration

INV_FREQ = 1e4 ** (-np.arange(32) / 32)


# Threads


@NEEDS_NATIVE
@pytest.mark.usefixtures("native", "threads")
@pytest.mark.parametrize("dtype", others_slow(list(DTYPES), "bfloat16", "float64"))
def test_any_number_of_threads_gives_the_same_bits(dtype):
    # More and fewer rows than there are ranges of work; all calls large enough to be shared.
    rng = np.random.default_rng(1)
    for shape in [(7, 1, 40000, 64), (3, 5000, 4, 64), (1, 3, 1, 2**17)]:
        x = rng.standard_normal(shape).astype(DTYPES[dtype])
        tokens = shape[1]
        positions = rng.integers(0, 10**6, (shape[0], tokens))
        inv_freq = 1e4 ** (-np.arange(shape[3] // 2) / (shape[3] // 2))

        def everything(
            x=x, positions=positions, inv_freq=inv_freq, shape=shape
        ) -> list[np.ndarray]:
            some = positions.ravel()[: 2**22 // shape[3]]
            cos, sin = pn.rotary_tables(some, inv_freq, dtype=DTYPES[dtype])
            rows = x.reshape(-1, shape[3])
            return [
                *pn.apply_rotary_qk(x, x[:, :, :1], positions, inv_freq, layout="bshd"),
                *pn.apply_rotary_qk(
                    x,
                    x[:, :, :1],
                    None,
                    pn.Tables(*pn.rotary_tables(positions[0], inv_freq, dtype=DTYPES[dtype])),
                    layout="bshd",
                ),
                pn.sinusoidal(some, shape[3], dtype=DTYPES[dtype]),
                pn.add_sinusoidal(rows, x_scale=2.0),
                cos,
                sin,
            ]

        pn.set_num_threads(1)
        expected = everything()
        for count in (2, 3, 64):
            pn.set_num_threads(count)
            for actual, other in zip(everything(), expected, strict=True):
                assert_same_bits(actual, other)


@NEEDS_NATIVE
@pytest.mark.usefixtures("native", "threads")
def test_callers_on_several_threads_do_not_disturb_each_other():
    pn.set_num_threads(2)
    x = np.random.default_rng(2).standard_normal((4, 1000, 64)).astype(np.float32)
    starts = [0, 10, 10**6, 10**9]

    def rotated(start: int) -> np.ndarray:
        return pn.apply_rotary(x, np.arange(start, start + 1000), INV_FREQ, layout="hsd")

    expected = [rotated(start) for start in starts]
    results: dict[int, list[np.ndarray]] = {}

    def work(i: int) -> None:
        results[i] = [rotated(starts[i]) for _ in range(10)]

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(starts))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for i, wanted in enumerate(expected):
        assert len(results[i]) == 10
        for actual in results[i]:
            assert_same_bits(actual, wanted)


@NEEDS_NATIVE
@pytest.mark.usefixtures("native", "threads")
@pytest.mark.parametrize("count", [1, 2])
def test_a_large_call_lets_other_python_threads_run(count):
    pn.set_num_threads(count)
    # Steps that are not 1 make for the slowest way to write: tens of milliseconds a call.
    out = np.empty((60000, 256), np.float64)[:, ::2]
    x = np.ones((60000, 256), np.float64)[:, ::2]
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.0005):
            ticks.append(time.perf_counter())

    other = threading.Thread(target=tick)
    other.start()
    try:
        for _ in range(50):
            begin = time.perf_counter()
            pn.add_sinusoidal(x, out=out)
            end = time.perf_counter()
            # If the lock is not released, nothing happens between its first and last moments.
            quarter = (end - begin) / 4
            if any(begin + quarter < moment < end - quarter for moment in list(ticks)):
                break
        else:
            pytest.fail(f"nothing else ran during 50 calls of {end - begin:.3f} s")
    finally:
        stop.set()
        other.join()


@NEEDS_NATIVE
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_works_after_the_parent_used_threads():
    output = output_of(
        """
        import os, signal
        import numpy as np
        import posenc_native as pn

        pn.set_num_threads(2)
        expected = pn.sinusoidal(40000, 64)
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                signal.alarm(30)  # rather than wait for ever for a thread that is not there
                pn.set_num_threads(2)
                same = np.array_equal(pn.sinusoidal(40000, 64), expected)
                os._exit(0 if same else 1)
            children.append(child)
        print([os.waitpid(child, 0)[1] for child in children])
        print(np.array_equal(pn.sinusoidal(40000, 64), expected))
        """
    )
    assert output == "[0, 0, 0]\nTrue\n"


@NEEDS_NATIVE
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_pool_of_forked_processes_works():
    output = output_of(
        """
        import multiprocessing
        import numpy as np
        import posenc_native as pn

        def table(start):
            return pn.sinusoidal(np.arange(start, start + 20000), 64)

        pn.set_num_threads(2)
        expected = [table(start) for start in range(4)]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            results = pool.map_async(table, range(4)).get(timeout=30)
        print(all(map(np.array_equal, results, expected)))
        """
    )
    assert output == "True\n"


# Settings


@NEEDS_NATIVE
@pytest.mark.usefixtures("native", "threads")
def test_the_number_of_threads_is_kept():
    for count in (1, 2, np.int64(5), 2**31 - 1):
        pn.set_num_threads(count)
        assert pn.get_num_threads() == count
        assert type(pn.get_num_threads()) is int


@NEEDS_NATIVE
@pytest.mark.parametrize(
    ("value", "expected"),
    [("1", 1), ("3", 3), (" 7 ", 7), ("4,2", 4), ("0", None), ("many", None), ("", None),
     ("-2", None), (None, None), ("²", None), ("4294967297", None), ("9" * 5000, None)],
)  # fmt: skip
def test_openmp_variable_sets_the_number_of_threads(value, expected):
    code = "import posenc_native as pn; print(pn.get_num_threads())"
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    assert int(output_of(code, OMP_NUM_THREADS=value)) == (expected or processors)


@NEEDS_NATIVE
def test_backends_change_at_any_time(backend):
    # The reference rounds float64, so its float32 tables are the nearest ones; ours need not be.
    expected = pn.engines.backend.implementation.sinusoidal(
        1000, 64, 1e4, "interleaved", 0.0, 1.0, None, None
    )
    module = {"native": "_core", "reference": "plain.arrays"}[backend]
    assert pn.engines.backend.implementation.__name__.endswith(module)
    assert_same_bits(pn.sinusoidal(1000, 64), expected)
    other = "reference" if backend == "native" else "native"
    pn.set_backend(other)
    assert not np.array_equal(pn.sinusoidal(1000, 64), expected)
    pn.set_backend(backend)
    assert_same_bits(pn.sinusoidal(1000, 64), expected)


BACKEND_IN_USE = """
    import sys
    import posenc_native as pn
    from posenc_native.engines import configuration
    sys.modules["torch"] = None  # `configuration` would import it, which takes seconds
    print(pn.engines.backend.implementation.__name__, configuration.configuration()["backend"])
"""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, "posenc_native._core native", marks=NEEDS_NATIVE),
        pytest.param("", "posenc_native._core native", marks=NEEDS_NATIVE),
        pytest.param("native", "posenc_native._core native", marks=NEEDS_NATIVE),
        ("reference", "posenc_native.engines.plain.arrays reference"),
    ],
)
def test_backend_variable(value, expected):
    assert output_of(BACKEND_IN_USE, POSENC_BACKEND=value).strip() == expected


def test_backend_variable_that_is_wrong():
    result = python("import posenc_native", POSENC_BACKEND="cuda")
    assert result.returncode == 1
    assert "ValueError" in result.stderr
    assert "expected 'native' or 'reference', got 'cuda'" in result.stderr


TARGET_IN_USE = """
    import sys
    import posenc_native as pn
    from posenc_native.engines import configuration
    sys.modules["torch"] = None  # `configuration` would import it, which takes seconds
    print(pn.engines.backend.native.current_target())
    print(configuration.configuration()["SIMD target in use"])
    print(pn.sinusoidal(1000, 64).tobytes().hex())
"""


@NEEDS_NATIVE
@pytest.mark.usefixtures("native")
def test_target_variable():
    assert output_of(TARGET_IN_USE).split()[:2] == [TARGETS[0]] * 2
    assert output_of(TARGET_IN_USE, POSENC_ISA="").split()[:2] == [TARGETS[0]] * 2
    before = NATIVE.current_target()
    for target in TARGETS:
        *names, table = output_of(TARGET_IN_USE, POSENC_ISA=target).split()
        assert names == [target] * 2
        NATIVE.set_target(target)
        assert bytes.fromhex(table) == pn.sinusoidal(1000, 64).tobytes()
    NATIVE.set_target(before)


@NEEDS_NATIVE
@pytest.mark.parametrize("value", ["avx2000", "AVX", " AVX2", "0"])
def test_target_variable_that_is_wrong(value):
    result = python("import posenc_native", POSENC_ISA=value)
    assert result.returncode == 1
    assert (
        f"POSENC_ISA: expected one of {', '.join(NATIVE.available_targets())}, got {value!r}"
        in result.stderr
    )


@NEEDS_NATIVE
def test_an_unknown_target_is_refused():
    before = NATIVE.current_target()
    assert not NATIVE.set_target("avx2000")
    assert NATIVE.current_target() == before


@NEEDS_NATIVE
@pytest.mark.usefixtures("native")
@pytest.mark.skipif(len(TARGETS) < 2, reason="one SIMD target only")
def test_targets_differ_where_they_may():
    """Fused multiply-add or not: without a difference the targets would not be chosen at all."""
    results = set()
    before = NATIVE.current_target()
    for name in TARGETS:
        NATIVE.set_target(name)
        assert NATIVE.current_target() == name
        results.add(pn.sinusoidal(1000, 64).tobytes())
    NATIVE.set_target(before)
    assert len(results) <= 2
    if {"AVX2", "SSE4"} <= set(TARGETS):
        assert len(results) == 2


# What importing does


def test_importing_prints_nothing_and_loads_little():
    output = output_of(
        """
        import json, sys
        import posenc_native as pn

        pn.sinusoidal(3, 4)
        pn.Rotary(4)
        heavy = ("torch", "matplotlib", "transformers", "rich", "ml_dtypes", "scipy", "pandas")
        print(json.dumps([name for name in heavy if name in sys.modules]))
        """
    )
    assert json.loads(output) == []
    assert output_of("import posenc_native") == ""


def test_what_is_optional_is_named_but_not_loaded():
    output = output_of(
        "import sys, posenc_native as pn; print('nn' in dir(pn), 'torch' in sys.modules)"
    )
    assert output.split() == ["True", "False"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pn.nothing


def test_bfloat16_before_and_after_it_is_known():
    """ml_dtypes may be imported after the package was used."""
    output = output_of(
        """
        import numpy as np
        import posenc_native as pn

        pn.sinusoidal(3, 4)
        for wrong in (np.dtype("V2"), np.dtype([("a", "u2")])):
            try:
                pn.add_sinusoidal(np.zeros((2, 4), wrong))
            except TypeError:
                print("refused")
        import ml_dtypes
        print(pn.sinusoidal(3, 4, dtype=ml_dtypes.bfloat16).dtype)
        print(pn.add_sinusoidal(np.zeros((2, 4), ml_dtypes.bfloat16)).dtype)
        """
    )
    assert output.split() == ["refused", "refused", "bfloat16", "bfloat16"]


def test_show_config_says_what_is_in_use(backend, capsys):
    pn.show_config()
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    entries = dict(map(str.strip, line.split("  ", 1)) for line in lines)
    assert len(entries) == len(lines)
    texts = configuration.configuration_texts()
    assert entries == {name: text.strip() for name, text in texts.items()}
    assert entries["posenc_native"] == pn.__version__
    assert entries["numpy"] == np.__version__
    assert entries["backend"] == backend
    assert entries["threads (NumPy)"] == str(pn.get_num_threads())
    for name in ("python", "torch", "torch operators", "CUDA kernels"):
        assert entries[name]
    if NATIVE is not None:
        assert entries["native module"] == "built"
        assert entries["SIMD targets"] == ", ".join(NATIVE.available_targets())
        assert entries["SIMD target in use"] == NATIVE.current_target()
