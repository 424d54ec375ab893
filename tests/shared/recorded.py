"""Figures as a run of the benchmarks records them, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

BEST = "AVX3_ZEN4, AVX3, AVX2, SSE4"


def machine(used: str = "AVX3_ZEN4", targets: str = BEST, **more: Any) -> dict[str, Any]:
    return {
        "cpu": "Some(R) CPU 9 @ 2 GHz", "cores": 2, "commit": "c" * 40,
        "date": "2026-01-02T03:04:05",
        "caches": {"L1": 32768}, "system": "Linux", "python": "3.11", "compiler": "c++",
        "load_average": 0.0, "packages": {"numpy": "2"},
        "posenc_native": {
            "backend": "native", "torch operators": "built", "SIMD targets": targets,
            "SIMD target in use": used,
        },
        **more,
    }  # fmt: skip


def row(name: str, mode: str, milliseconds: float, **more: Any) -> dict[str, Any]:
    """Of a peer; its limit takes half a millisecond."""
    return {
        "contestant": name, "mode": mode, "seconds": milliseconds * 1e-3, "samples": 3,
        "quartiles": [milliseconds * 1e-3] * 2, "limit": "copy", "times_limit": milliseconds / 0.5,
        "gigabytes_per_second": 2.0, "ours": False, "yardstick": False, **more,
    }  # fmt: skip


def ours(mode: str, milliseconds: float = 1.0, name: str = "apply") -> dict[str, Any]:
    return row(name, mode, milliseconds, ours=True)


def yardstick(name: str, mode: str, milliseconds: float) -> dict[str, Any]:
    return row(name, mode, milliseconds, yardstick=True)


def left_out(name: str, mode: str) -> dict[str, Any]:
    return {"contestant": name, "mode": mode, "skipped": "left out", "left_out": True}


def case(
    name: str, *rows: dict[str, Any], threads: int = 1, gains: float | None = None
) -> dict[str, Any]:
    limit: dict[str, Any] = {"seconds": 0.5e-3, "gigabytes_per_second": 4.0, "variant": "plain"}
    if gains:
        limit["times_one_thread"] = gains
    return {
        "case": f"{name}, {threads} thread{'s' * (threads > 1)}", "threads": threads,
        "bytes": 1 << 20, "buffer_sets": 2, "cores_used_by_others": 0.0,
        "limits": {"copy": limit}, "rows": list(rows),
    }  # fmt: skip


def figures(*cases: dict[str, Any], rounds: int = 31, **more: Any) -> dict[str, Any]:
    return {"machine": machine(**more), "quick": False, "rounds": rounds, "cases": list(cases)}
