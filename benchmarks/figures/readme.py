"""README's table and pictures of speed and accuracy, from what is recorded: a row a measurement."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import judging, records, report, tables

GPU = records.RESULTS / "gpu-nvidia-h200.json"
POSITION = 1 << 20
OURS = "posenc_native"


@dataclass(frozen=True)
class Measurement:
    """A row: a case of the records, our row of it, and the rows of others that do the same."""

    words: str
    # The name in the picture.
    title: str
    case: str
    ours: tuple[str, str]  # contestant, mode
    others: dict[str, tuple[str, str]]
    # On the GPU: the time of the device, or that of the calling thread.
    gpu: str = ""


TRANSFORMERS, COMPILED = "transformers", "transformers, torch.compile"
FLASH, LIGER, INTERLEAVED = "flash-attn", "Liger Kernel", "rotary-embedding-torch"
JAX, NUMBA = "JAX, jit", "a numba loop"
# Written for the case, and without checks.
_LOOP = {NUMBA: ("numba, a loop", "in place"), JAX: ("JAX, jit", "fresh")}
_ON_A_GPU = {
    LIGER: ("Liger", "in place"),
    FLASH: ("flash-attn (Triton), twice", "in place"),
    TRANSFORMERS: ("transformers (Llama), eager", "fresh"),
}
_DECODE = "decode, 64 x 1 tokens, 32 + 8 heads, bfloat16"

# Every library that was measured beside the same call, and no other: a cell is a figure.
MEASUREMENTS = (
    Measurement(
        "rotate q and k, 4,096 tokens",
        "rotary, 4,096 tokens\nCPU",
        "rotary, q 32 + k 8 heads x 4096 x 128, torch bfloat16, half, 1 thread",
        ("apply_rotary_qk", "in place"),
        _LOOP
        | {
            COMPILED: ("transformers (Llama), torch.compile", "fresh"),
            TRANSFORMERS: ("transformers (Llama), eager", "fresh"),
        },
    ),
    Measurement(
        "the same, interleaved pairs",
        "rotary, interleaved pairs\nCPU",
        "rotary, q 32 + k 8 heads x 4096 x 128, torch bfloat16, interleaved, 1 thread",
        ("apply_rotary_qk", "in place"),
        _LOOP
        | {
            COMPILED: ("transformers (Cohere), torch.compile", "fresh"),
            TRANSFORMERS: ("transformers (Cohere), eager", "fresh"),
            INTERLEAVED: ("rotary-embedding-torch", "fresh"),
        },
    ),
    Measurement(
        "one token in a layer of a patched model",
        "rotary, one token in a model\nCPU",
        "decode in a model, rotation of a layer (q 32 + k 8 heads x 1 x 128, 4 layers, dynamic "
        "cache), torch bfloat16, 1 thread",
        ("hf.patch", "fresh"),
        {TRANSFORMERS: ("transformers (Llama)", "fresh")},
    ),
    Measurement(
        "the whole step of that model, 4 layers",
        "the whole step of that model\nCPU",
        "decode in a model, a step (q 32 + k 8 heads x 1 x 128, 4 layers, dynamic cache), torch "
        "bfloat16, 1 thread",
        ("hf.patch", "fresh"),
        {TRANSFORMERS: ("transformers (Llama)", "fresh")},
    ),
    Measurement(
        "T5 bias and its gradient, 16 heads, 2,048 tokens, float32",
        "T5 bias, forward and backward\nCPU",
        "relative: T5 bias, forward and backward to the table, 16 x 2048 x 2048, torch float32, "
        "1 thread",
        ("nn.T5RelativeBias", "in place"),
        {
            COMPILED: ("transformers (T5), torch.compile", "fresh"),
            TRANSFORMERS: ("transformers (T5), eager", "in place"),
        },
    ),
    Measurement(
        "H200, 16,384 tokens before heads: on the device",
        "rotary, 16,384 tokens\nH200",
        "prefill, 4 x 4096 tokens, 32 + 8 heads, bfloat16, bshd, half",
        ("apply_rotary_qk", "in place"),
        {COMPILED: ("transformers (Llama), torch.compile", "fresh")} | _ON_A_GPU,
        gpu="microseconds",
    ),
    Measurement(
        "H200, one token of 64 sequences: on the device",
        "rotary, one token of 64 rows\nH200, device",
        _DECODE,
        ("Rotary", "in place"),
        _ON_A_GPU,
        gpu="microseconds",
    ),
    Measurement(
        "the same: on the calling thread",
        "rotary, one token of 64 rows\nH200, calling thread",
        _DECODE,
        ("Rotary", "in place"),
        _ON_A_GPU,
        gpu="host_microseconds",
    ),
)
# By the name of the peer in the study of accuracy, whose angles they are.
ERRORS = {
    "float64 angle, rounded": "float64 angle, rounded to float32",
    "transformers (Llama)": TRANSFORMERS,
    "rotary-embedding-torch": INTERLEAVED,
}


@functools.cache
def _cpu() -> records.Figures:
    found = records.recorded_columns(tables.PROCESSOR)["AVX-512"]
    assert found is not None
    return found


@functools.cache
def _gpu() -> dict[str, Any]:
    return records.load(GPU)


def _case(of: Measurement) -> tables.Case:
    case = _gpu()["cases"][of.case] if of.gpu else tables.case_of(_cpu(), of.case)
    assert case is not None, of.case
    return case


def _row(of: Measurement, contestant: tuple[str, str]) -> judging.Row:
    """What is recorded. A name without a record fails."""
    rows = _case(of)["rows"]
    return next(row for row in rows if (row["contestant"], row["mode"]) == contestant)


def seconds(of: Measurement, contestant: tuple[str, str]) -> float:
    row = _row(of, contestant)
    return float(row[of.gpu] * 1e-6 if of.gpu else row["seconds"])


def error(peer: str) -> float:
    """Of cosine and sine in float32 at POSITION."""
    return next(
        float(row["error"])
        for row in _cpu()["accuracy"]
        if (row["peer"], row["position"]) == (peer, POSITION) and row["quantity"].startswith("rot")
    )


def _short(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-")


def _rows() -> Iterator[list[str]]:
    errors: dict[str, list[str]] = {}
    for peer, name in ERRORS.items():
        errors.setdefault(_short(error(peer)), []).append(name)
    others = "; ".join(f"{', '.join(names)} {value}" for value, names in errors.items())
    yield [f"error of cos and sin, 64 positions to {POSITION:,}", _short(error(OURS)), others]
    for of in MEASUREMENTS:
        row, times = _row(of, of.ours), report.duration(seconds(of, of.ours), 2)
        # In cache, and in a whole model, no memory bounds it.
        if not of.gpu and _case(of)["buffer_sets"] > 1 and "limit" in row:
            times += f", {row['times_limit']:.1f} x {row['limit']}"
        elif of.gpu == "microseconds" and row["of_copy"] > 0.8:
            times += f", {1 / row['of_copy']:.1f} x copy"
        others = sorted((seconds(of, one), name) for name, one in of.others.items())
        yield [of.words, times, "; ".join(f"{n} {report.duration(t, 2)}" for t, n in others)]


def table() -> list[str]:
    cpu, gpu = _cpu()["machine"], _gpu()["machine"]
    days = {records.day(_case(of)["recorded"]) for of in MEASUREMENTS if not of.gpu}
    days = sorted(days | {records.day(_cpu()["accuracy_recorded"])})
    instructions = report.instructions_text(cpu).partition(",")[0]
    note = (
        "32 + 8 heads of 128 dims, bfloat16, in place where possible. A copy, scale or add moves "
        "the same bytes. "
        f"CPU: one thread of {cpu['cpu']} ({instructions}), {', '.join(days)}, `make bench`. GPU: "
        f"{gpu['device']}, {gpu['date']}, `make gpu`."
    )
    lines = textwrap.wrap(note, 115, break_on_hyphens=False)
    return [*tables.markdown(("", OURS, "others"), list(_rows()), 3), "", *lines]


def multiples() -> list[tuple[str, dict[str, float]]]:
    """For the picture: of each measurement, each library's time as a multiple of ours."""
    found = []
    for of in MEASUREMENTS:
        ours = seconds(of, of.ours)
        times = {name: seconds(of, one) / ours for name, one in of.others.items()}
        found.append((f"{of.title}: {report.duration(ours, 2)}", times))
    return found


def errors() -> list[tuple[str, list[tuple[int, float]]]]:
    """For the picture: position and error, a curve for all libraries that agree where both are."""
    curves: list[tuple[list[str], dict[int, float]]] = []
    rows = [row for row in _cpu()["accuracy"] if row["error"] is not None]
    rows = [row for row in rows if row["quantity"].startswith("rotary")]
    rows = [row for row in rows if not row["peer"].startswith("plain")]  # libraries do as these
    for peer in dict.fromkeys(row["peer"] for row in rows):
        own = {row["position"]: row["error"] for row in rows if row["peer"] == peer}
        name = re.sub(r"( \(.*\)|, jit)$", "", peer)
        for names, points in curves:
            if all(points.get(position) in (None, of) for position, of in own.items()):
                names.append(name)
                points.update(own)
                break
        else:
            curves.append(([name], own))
    return [(", ".join(names), sorted(points.items())) for names, points in curves]


# Beside each other in README: name -> what is drawn.
PICTURES: dict[str, Callable[[], Any]] = {
    "readme-accuracy.png": errors,
    "readme-speed.png": multiples,
}


def digest(name: str) -> str:
    """Of what a picture shows; the picture carries it, which tells an old one."""
    return hashlib.sha256(json.dumps(PICTURES[name]()).encode()).hexdigest()


def draw(folder: Path = records.RESULTS) -> list[Path]:
    from . import plot  # matplotlib, where pictures are drawn

    drawn = {"readme-accuracy.png": plot.draw_errors, "readme-speed.png": plot.draw_multiples}
    return [drawn[name](PICTURES[name](), folder / name, digest(name)) for name in PICTURES]


def old_pictures(folder: Path = records.RESULTS) -> list[str]:
    """Those that show something else than what is recorded."""
    from . import plot

    return [name for name in PICTURES if plot.digest(folder / name) != digest(name)]
