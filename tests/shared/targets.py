"""What computes: the native module, its SIMD targets, CUDA's kernels on the host."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

import posenc_native as pn
from posenc_native.engines import backend as implementations

NATIVE = implementations.native
TARGETS: list[str] = [] if NATIVE is None else NATIVE.available_targets()
if "AVX3_BF16" in TARGETS:
    TARGETS.remove("AVX3")  # the same kernels, but for test_bfloat16_instructions.py
# What a test of values runs on: the widest vectors. engines/test_targets.py holds the other targets
# against these; `make test-all` runs every test on each.
TESTED = TARGETS if os.environ.get("POSENC_TEST_TARGETS") == "all" else TARGETS[:1]
# Bytes of an output that is written past the cache, with `low_threshold`; some to spare.
LARGE = 5 << 18
# A module like the native one whose kernels are those of CUDA, run on the host thread by thread.
try:
    CUDA_ON_HOST: ModuleType | None = importlib.import_module("posenc_native._cuda_on_host")
    CUDA_ON_HOST.use_tables(pn.Tables)  # type: ignore[union-attr]
except ImportError:
    CUDA_ON_HOST = None
NEEDS_CUDA_ON_HOST = pytest.mark.skipif(CUDA_ON_HOST is None, reason="built by scripts/setup.sh")
# Set by scripts/sanitize.sh: "address" or "thread".
SANITIZER = os.environ.get("POSENC_SANITIZED")
NOT_SANITIZED = pytest.mark.skipif(
    SANITIZER is not None,
    reason="sanitizers take memory, stack and instructions of their own: run by `make test`",
)
NEEDS_NATIVE = pytest.mark.skipif(NATIVE is None, reason="the native module is not built")


def backend_in_use() -> str:
    return "native" if implementations.implementation is NATIVE else "reference"


@contextmanager
def written_past_the_cache(count: int = 1) -> Iterator[None]:
    """Inside, outputs of at least so many bytes are written past the cache."""
    assert NATIVE is not None
    NATIVE.set_non_temporal_bytes(count)
    try:
        yield
    finally:
        NATIVE.set_non_temporal_bytes(0)
