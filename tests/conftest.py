"""Fixtures that all tests share: what computes, on which SIMD target, with how many threads.

Everything else that tests share is in shared/, from which pytest can import (pyproject.toml): exact
values and tolerances in oracle.py, strided arrays in arrays.py, what computes in targets.py ...
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import hypothesis
import pytest
from matrices import leave_pairs
from targets import (
    CUDA_ON_HOST,
    NATIVE,
    NEEDS_CUDA_ON_HOST,
    NEEDS_NATIVE,
    TESTED,
    backend_in_use,
    written_past_the_cache,
)

import posenc_native as pn
from posenc_native.engines import backend as implementations

# They run inside vLLM, with a configuration of their own: `make engine-vllm`.
collect_ignore = ["in_vllm"]

# Before torch loads OpenMP, here and in programs that tests start: its idle threads would spin for
# new work, on cores that another process of tests has work for.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Calls of 1 MiB have several threads already: the tests of threads need no large arrays.
for _module in (NATIVE, CUDA_ON_HOST):
    if _module is not None:
        _module.set_bytes_per_thread(1 << 19)

# Every run tries the same examples; HYPOTHESIS_PROFILE=explore looks for new ones.
SETTINGS = {
    "deadline": None,
    # The fixtures choose a backend or a target for all examples of a test alike.
    "suppress_health_check": [hypothesis.HealthCheck.function_scoped_fixture],
}
hypothesis.settings.register_profile("repeat", max_examples=30, derandomize=True, **SETTINGS)
hypothesis.settings.register_profile("explore", max_examples=1500, **SETTINGS)
hypothesis.settings.register_profile("few", max_examples=15, derandomize=True, **SETTINGS)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    yield
    leave_pairs(metafunc)


@pytest.fixture
def answers(monkeypatch: Any) -> list[tuple[str, bool]]:
    """What the door was asked for, and whether it took the call."""
    asked: list[tuple[str, bool]] = []

    class Spy:
        def __getattr__(self, name: str) -> Any:
            def ask(*arguments: Any) -> Any:
                result = getattr(implementations.native.door, name)(*arguments)
                asked.append((name, result is not NotImplemented))
                return result

            return ask

    monkeypatch.setattr(implementations, "door", Spy())
    return asked


@pytest.fixture
def figures() -> Iterator[ModuleType]:
    """pyplot, without windows; figures are closed before the test and after it."""
    reason = "pictures need matplotlib, which is not installed"
    pytest.importorskip("matplotlib", reason=reason).use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    pyplot.close("all")  # blocks of the documentation leave theirs open
    yield pyplot
    pyplot.close("all")


@pytest.fixture(params=[pytest.param("native", marks=NEEDS_NATIVE), "reference"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of the implementation in use: the test runs with each."""
    before = backend_in_use()
    pn.set_backend(request.param)
    yield request.param
    pn.set_backend(before)


@pytest.fixture
def native() -> Iterator[None]:
    """The native module computes, whatever the environment says."""
    before = backend_in_use()
    pn.set_backend("native")
    yield
    pn.set_backend(before)


@pytest.fixture(
    params=[
        *(TESTED or [pytest.param("none", marks=NEEDS_NATIVE)]),
        pytest.param("CUDA", marks=NEEDS_CUDA_ON_HOST),
    ]
)
def target(request: pytest.FixtureRequest, native: None) -> Iterator[str]:
    """Name of a SIMD target that native kernels run on, or "CUDA": the test runs with each."""
    assert NATIVE is not None
    if request.param == "CUDA":
        assert CUDA_ON_HOST is not None
        # Not the attribute alone: calls would go through the native module's door as before.
        implementations.use(CUDA_ON_HOST)
        yield request.param
        return
    before = NATIVE.current_target()
    assert NATIVE.set_target(request.param)
    yield request.param
    NATIVE.set_target(before)


@pytest.fixture
def low_threshold() -> Iterator[None]:
    """Outputs of 1 MiB are written past the cache already: small arrays take that path too."""
    with written_past_the_cache(1 << 20):
        yield


@pytest.fixture
def threads() -> Iterator[None]:
    """The test may change the number of threads."""
    before = pn.get_num_threads()
    yield
    pn.set_num_threads(before)


@pytest.fixture
def torch_threads() -> Iterator[None]:
    """The test may change the number of threads that torch has."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    """torch.compile begins anew, and so does the next test."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
