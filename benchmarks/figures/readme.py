"""README's table and pictures of speed and accuracy, from what is recorded.

A row a library, a column a measurement; `python -m benchmarks.figures` fails where README differs.
"""

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

from . import records, report, tables

PAGE = Path(__file__).parents[2] / "README.md"
GPU = records.RESULTS / "gpu-nvidia-h200.json"
_BLOCK = re.compile(r"(<!-- readme: .*? -->\n).*?(<!-- /readme -->)", re.DOTALL)
POSITION = 1 << 20
OURS = "posenc_native"


@dataclass(frozen=True)
class Library:
    """A row: its facts, and which rows of the records are its own, by column."""

    name: str
    runs_on: str
    pairs: str
    # Column -> (contestant, mode); `error` -> the peer of the study of accuracy.
    of: dict[str, tuple[str, str]]
    # In the columns that it has no time in, of a library that runs on a GPU only.
    on_gpu: str = ""


@dataclass(frozen=True)
class Column:
    key: str
    heading: str
    # The name in the picture.
    title: str
    case: str
    gpu: bool = False


COLUMNS = (
    Column(
        "rotary",
        "rotate q and k: 4,096 tokens, CPU",
        "rotary, 4,096 tokens\nCPU",
        "rotary, q 32 + k 8 heads x 4096 x 128, torch bfloat16, half, 1 thread",
    ),
    Column(
        "layer",
        "one token in a model, CPU",
        "rotary, one token in a model\nCPU",
        "decode in a model, rotation of a layer (q 32 + k 8 heads x 1 x 128, 4 layers, dynamic "
        "cache), torch bfloat16, 1 thread",
    ),
    Column(
        "t5",
        "T5 bias and gradient, CPU",
        "T5 bias, forward and backward\nCPU",
        "relative: T5 bias, forward and backward to the table, 16 x 2048 x 2048, torch float32, "
        "1 thread",
    ),
    Column(
        "gpu",
        "16,384 tokens, H200",
        "rotary, 16,384 tokens\nH200",
        "prefill, 4 x 4096 tokens, 32 + 8 heads, bfloat16, bshd, half",
        gpu=True,
    ),
)
# rotary-embedding-torch has interleaved pairs alone: a case of its own, with its own time of ours.
NEIGHBORS = Column(
    "neighbors",
    "",
    "rotary, interleaved pairs\nCPU",
    "rotary, q 32 + k 8 heads x 4096 x 128, torch bfloat16, interleaved, 1 thread",
)

LIBRARIES = (
    Library(
        OURS,
        "CPU (SIMD), CUDA; NumPy, torch",
        "both",
        {
            "error": (OURS, ""),
            "rotary": ("apply_rotary_qk", "in place"),
            "neighbors": ("apply_rotary_qk", "in place"),
            "layer": ("hf.patch", "fresh"),
            "t5": ("nn.T5RelativeBias", "in place"),
            "gpu": ("apply_rotary_qk", "in place"),
        },
    ),
    Library(
        "transformers",
        "torch operations",
        "as in the model",
        {
            "error": ("transformers (Llama)", ""),
            "rotary": ("transformers (Llama), eager", "fresh"),
            "neighbors": ("transformers (Cohere), eager", "fresh"),
            "layer": ("transformers (Llama)", "fresh"),
            "t5": ("transformers (T5), eager", "in place"),
            "gpu": ("transformers (Llama), eager", "fresh"),
        },
    ),
    Library(
        "transformers, torch.compile",
        "compiled operations",
        "as in the model",
        {
            "rotary": ("transformers (Llama), torch.compile", "fresh"),
            "neighbors": ("transformers (Cohere), torch.compile", "fresh"),
            "t5": ("transformers (T5), torch.compile", "fresh"),
            "gpu": ("transformers (Llama), torch.compile", "fresh"),
        },
    ),
    Library(
        "rotary-embedding-torch",
        "torch operations",
        "interleaved",
        {
            "error": ("rotary-embedding-torch", ""),
            "neighbors": ("rotary-embedding-torch", "fresh"),
        },
    ),
    Library(
        "flash-attn",
        "Triton, GPU only",
        "both",
        {"gpu": ("flash-attn (Triton), twice", "in place")},
    ),
    Library("Liger Kernel", "Triton, GPU only", "half", {"gpu": ("Liger", "in place")}),
    Library("TransformerEngine", "CUDA, GPU only", "both", {}, "not measured"),
)


@functools.cache
def _cpu() -> records.Figures:
    found = records.recorded_columns(tables.PROCESSOR)["AVX-512"]
    assert found is not None
    return found


@functools.cache
def _gpu() -> dict[str, Any]:
    return records.load(GPU)


def seconds(column: Column, library: Library) -> float | None:
    """What is recorded; None where the library does not do this. A name without a record fails."""
    if column.key not in library.of:
        return None
    name, mode = library.of[column.key]
    case = _gpu()["cases"][column.case] if column.gpu else tables.case_of(_cpu(), column.case)
    assert case is not None, column.case
    row = next(row for row in case["rows"] if (row["contestant"], row["mode"]) == (name, mode))
    return float(row["microseconds"] * 1e-6 if column.gpu else row["seconds"])


def error(library: Library) -> float | None:
    """Of cosine and sine in float32 at POSITION."""
    if "error" not in library.of:
        return None
    peer = library.of["error"][0]
    return next(
        float(row["error"])
        for row in _cpu()["accuracy"]
        if (row["peer"], row["position"]) == (peer, POSITION) and row["quantity"].startswith("rot")
    )


def _cells(library: Library) -> Iterator[str]:
    yield f"**{library.name}**" if library.name == OURS else library.name
    yield library.runs_on
    yield library.pairs
    found = error(library)
    yield "" if found is None else f"{found:.1e}".replace("e-0", "e-")
    for column in COLUMNS:
        time = seconds(column, library)
        if time is None and column.key == "rotary" and "neighbors" in library.of:
            ours = report.duration(seconds(NEIGHBORS, LIBRARIES[0]) or 0.0, 2)
            time = seconds(NEIGHBORS, library)
            yield f"{report.duration(time or 0.0, 2)} (posenc_native: {ours})"
        else:
            missing = library.on_gpu if column.gpu else ""
            yield missing if time is None else report.duration(time, 2)


def table() -> str:
    headings = (
        *("", "runs on", "pairs", f"error of cos, sin at {POSITION:,}"),
        *(column.heading for column in COLUMNS),
    )
    cpu, gpu = _cpu()["machine"], _gpu()["machine"]
    cpu_days = sorted(
        {
            case["recorded"]["date"][:10]
            for column in (*COLUMNS, NEIGHBORS)
            if (case := tables.case_of(_cpu(), column.case))
        }
    )
    instructions = report.instructions_text(cpu).partition(",")[0]
    note = (
        "32 + 8 heads of 128 dims, bfloat16; T5: 16 heads, 2,048 tokens, float32; in place where "
        f"possible. CPU: one thread of {cpu['cpu']} ({instructions}), {', '.join(cpu_days)}, `make "
        f"bench`. GPU: {gpu['device']}, {gpu['date']}, `make gpu`. "
        "[Features of each library](docs/converting.md), [versions and all times](docs/speed.md)."
    )
    rows = [list(_cells(library)) for library in LIBRARIES]
    lines = textwrap.wrap(note, 115, break_on_hyphens=False)
    return "\n".join([*tables.markdown(headings, rows, 3), "", *lines]) + "\n"


def page(text: str) -> str:
    """README with what is recorded now between its marks."""
    found, count = _BLOCK.subn(lambda marks: f"{marks[1]}{table()}{marks[2]}", text)
    assert count == 1, "README.md: the marks of the table"
    return found


def multiples() -> list[tuple[str, dict[str, float]]]:
    """For the picture: of each column, each library's time as a multiple of ours."""
    found = []
    for column in (COLUMNS[0], NEIGHBORS, *COLUMNS[1:]):
        ours = seconds(column, LIBRARIES[0])
        assert ours is not None
        times = {one.name: seconds(column, one) for one in LIBRARIES[1:]}
        found.append(
            (f"{column.title}: {report.duration(ours, 2)}",
             {name: time / ours for name, time in times.items() if time is not None})
        )  # fmt: skip
    return found


def errors() -> list[tuple[str, list[tuple[int, float]]]]:
    """For the picture: position and error, a curve for all libraries that agree where both are."""
    curves: list[tuple[list[str], dict[int, float]]] = []
    rows = [row for row in _cpu()["accuracy"] if row["error"] is not None]
    rows = [row for row in rows if row["quantity"].startswith("rotary")]
    rows = [row for row in rows if not row["peer"].startswith("plain")]  # libraries alone
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
