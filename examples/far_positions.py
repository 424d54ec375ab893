"""Does a model notice that its angles are off? The same text, read at ever later positions.

    python examples/far_positions.py               minutes on two cores
    python examples/far_positions.py --text FILE   your own text, UTF-8

The transformer of which_encoding, with rotary positions, is trained on windows that begin at
position 0. Then it reads text that was held out, in windows that begin at 0, 256 ... 64M, with
angles made in three ways. Rotary scores depend on distances alone, so the loss of a window is the
same wherever it begins, but for the errors of its angles. Prints a table; writes a picture, and
beside it all figures as .json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

try:
    import matplotlib  # noqa: F401  that it is there is known now, not after minutes
    import torch
    from torch import Tensor, nn

    import posenc_native as pn
    from posenc_native import nn as pnn
except ImportError as error:
    sys.exit(f"far_positions: {error}: pip install 'posenc-native[demo]'")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "which_encoding"))
import experiment  # noqa: E402  what has to be on the path first

TEXT = HERE / "data" / "northanger_abbey.txt"
OFFSETS = (0, *(2**k for k in (8, 10, 12, 14, 17, 20, 22, 23, 24, 26)))


class Exact(nn.Module):
    """Rotates by the angles of this library, from position `offset` on."""

    def __init__(self, rope: pnn.RotaryEmbedding, offset: int) -> None:
        super().__init__()
        self.rope, self.offset = rope, offset

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q and k, rotated."""
        return self.rope(q, k, self.offset)


class Usual(Exact):
    """Rotates by the cosine and sine of position times frequency, in the number formats named."""

    angle: torch.dtype
    table = torch.float32

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q and k, rotated; only the angles have errors, all else is as in `Exact`."""
        rope = self.rope.rope
        positions = torch.arange(self.offset, self.offset + q.shape[1])
        inv_freq = torch.tensor(rope.inv_freq, dtype=self.angle)
        angles = torch.outer(positions.to(self.angle), inv_freq)
        cos, sin = (
            rope.scale * table.to(self.table).float() for table in (angles.cos(), angles.sin())
        )
        options = {"pairing": rope.pairing, "rotary_start": rope.rotary_start}
        return pn.apply_rotary_qk(q, k, None, pn.Tables(cos, sin), layout=rope.layout, **options)


class Float32(Usual):
    """As most libraries compute angles."""

    angle = torch.float32


class Float32Cast(Float32):
    """The same, cosine and sine cast along with a model, after they have been computed."""

    table = torch.bfloat16


class BFloat16(Usual):
    """As angles come out where positions and frequencies were cast along with a model."""

    angle = torch.bfloat16


# The name at a line, how its angles are made, and its style: told apart without color, too, by
# lightness, dashes and marker. What has no name has no line: it would lie on another.
WAYS: dict[str, tuple[str | None, type[Exact], dict[str, Any]]] = {
    "exact": ("exact", Exact, {"color": "#10375c", "marker": "o", "ls": "-", "lw": 4, "ms": 9}),
    "float32": (
        "angles in\nfloat32",
        Float32,
        {"color": "#d9694f", "marker": "s", "ls": "--", "lw": 2, "ms": 5},
    ),
    "f32, cast": (None, Float32Cast, {}),
    "bfloat16": (
        "angles in\nbfloat16",
        BFloat16,
        {"color": "#6b6b6b", "marker": "^", "ls": "-.", "lw": 2, "ms": 6},
    ),
}
TICKS = (0, 256, 4096, 2**17, 2**20, 2**24, 2**26)


@dataclass
class Figures:
    """What was measured.

    Attributes:
        settings: of the training.
        machine: versions and threads.
        windows: how many were read at every offset.
        offsets: positions at which windows begin.
        losses: by the way that angles are made, at every offset, nats a character.
        letters: loss of a guess that knows how often each character occurs, and nothing else.
    """

    settings: dict[str, Any]
    machine: dict[str, Any]
    windows: int
    offsets: list[int]
    losses: dict[str, list[float]]
    letters: float


def measure(text: Path, settings: experiment.Settings, most: int | None) -> Figures:
    """Train near position 0, read everywhere; at most so many windows."""
    vocabulary, training, held_out = experiment.read(text, settings)

    steps = itertools.count(1)

    def report(_: str, loss: float) -> None:
        if (step := next(steps)) % 100 == 0 or step == settings.steps:
            print(f"trained on {step} of {settings.steps} batches: {loss:.2f}", flush=True)

    model, _ = experiment.train("rotary", 0, vocabulary, training, settings, report)
    rope = model.rope
    first = torch.arange(0, len(held_out) - settings.length, settings.length)[:most, None]
    windows = held_out[first + torch.arange(settings.length + 1)]
    losses: dict[str, list[float]] = {way: [] for way in WAYS}
    with torch.inference_mode():
        for offset in OFFSETS:
            for way, (_, kind, _) in WAYS.items():
                model.rope = kind(rope, offset)
                parts = [experiment.cross_entropy(model, part) for part in windows.split(32)]
                losses[way].append(round(torch.cat(parts).double().mean().item(), 6))
            print(f"read at {offset:,}", flush=True)
    counts = torch.bincount(training, minlength=vocabulary).double() + 1
    surprise = -(counts / counts.sum()).log()
    return Figures(
        asdict(settings),
        {"torch": torch.__version__, "threads": torch.get_num_threads()},
        len(windows),
        list(OFFSETS),
        losses,
        round(surprise[windows[:, 1:]].mean().item(), 4),
    )


def save(figures: Figures, file: Path) -> None:
    """Write them as JSON, a line for each field."""
    fields = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in asdict(figures).items())
    file.write_text("{" + ",\n".join(fields) + "}\n", encoding="utf-8")


def load(file: Path) -> Figures:
    """Figures that `save` wrote.

    Raises:
        ValueError: a file that it did not write.
    """
    try:
        return Figures(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise ValueError(f"{file}: expected figures that this program wrote") from None


def short(position: int) -> str:
    """A power of two as contexts are named: 4k, 128k, 1M."""
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if position >= size:
            return f"{position // size}{unit}"
    return str(position)


def table(figures: Figures) -> list[list[str]]:
    """Heads, then a row for each offset."""
    rows = [["position", *figures.losses]]
    for place, offset in enumerate(figures.offsets):
        rows.append([short(offset), *(f"{of[place]:.4f}" for of in figures.losses.values())])
    return rows


def draw(figures: Figures, out: Path) -> None:
    """Loss against position, a line for each way, named at its right end."""
    from matplotlib.figure import Figure

    ink, gray = "#1a1a1a", "#6b6b6b"
    figure = Figure(figsize=(9.0, 5.0), dpi=110, facecolor="white")
    axes = figure.add_axes((0.08, 0.12, 0.725, 0.66))
    for way, losses in figures.losses.items():
        name, _, style = WAYS[way]
        if name is None:
            continue
        axes.plot(figures.offsets, losses, zorder=3, **style)
        axes.annotate(
            name, (figures.offsets[-1], losses[-1]), xytext=(10, 0), textcoords="offset points",
            va="center", color=style["color"], weight="bold", linespacing=1.3, zorder=4,
            annotation_clip=False,
        )  # fmt: skip
    axes.axhline(figures.letters, color=gray, linewidth=1.0, linestyle=":")
    axes.annotate(
        "a guess that knows how often each character occurs", (2**14, figures.letters),
        xytext=(0, -5), textcoords="offset points", va="top", color=gray, fontsize=9,
    )  # fmt: skip
    # Position 0 has a place, and all others are on a logarithmic axis.
    axes.set_xscale("symlog", base=2, linthresh=256, linscale=1.0)
    axes.set_xticks(TICKS, [short(tick) for tick in TICKS])
    axes.minorticks_off()
    axes.set_xlim(-24, figures.offsets[-1] * 1.4)
    axes.set_ylim(0, None)
    axes.set_xlabel("position at which the text begins", color=ink)
    axes.set_ylabel("loss, nats a character", color=ink)
    axes.grid(True, color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    title = f"With exact angles a model reads at {short(figures.offsets[-1])} as it does at 0"
    figure.text(0.02, 0.925, title, fontsize=14, weight="bold", color=ink)
    figure.text(
        0.02, 0.865,
        f"A transformer with rotary positions, trained on {figures.settings['length']} characters "
        "from position 0, reads text it has not seen",
        fontsize=10.5, color=gray,
    )  # fmt: skip
    figure.savefig(out)


def run(options: argparse.Namespace) -> None:
    """Train and read, or take an earlier run's figures; print, draw."""
    if not options.out.parent.is_dir():  # known now, not after minutes
        raise ValueError(f"--out: no folder {options.out.parent}")
    if options.redraw:
        figures = load(options.redraw)
    else:
        settings = experiment.Settings(steps=options.steps, factors=(1,))
        if options.quick:
            settings = replace(settings, steps=3, length=16, batch=4, held_out=0.001)
        figures = measure(options.text, settings, 8 if options.quick else None)
        save(figures, options.out.with_suffix(".json"))
    print("Loss on text that was held out, nats a character; it begins at")
    for cells in table(figures):
        print("  ".join(cell.rjust(9) for cell in cells))
    draw(figures, options.out)
    print(f"see {options.out}")


def main() -> int:
    """The exit status; errors are one line."""
    parser = argparse.ArgumentParser(
        prog="far_positions", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--text", type=Path, default=TEXT, help="default: Jane Austen's Northanger Abbey")
    add("--out", type=Path, default=Path("far_positions.png"), help="default: %(default)s")
    add("--steps", type=int, default=400, help="batches to train on; default: 400")
    add("--redraw", type=Path, metavar="JSON", help="show an earlier run's figures; no training")
    add("--quick", action="store_true", help="seconds, to see it run; its figures mean nothing")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps is at least 1")
    if options.out.suffix not in (".png", ".svg", ".pdf"):
        parser.error(f"--out: expected a name that ends in .png, .svg or .pdf, got {options.out}")
    try:
        run(options)
    except (OSError, ValueError) as error:
        print(f"far_positions: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
