"""Parity and addition modulo 5, learned on short strings and tested on strings of a million tokens.

    python examples/parity.py               a minute on two cores
    python examples/parity.py --seed 1      other initial weights and strings

A model of one linear-attention layer reads a start token, then digits. At every token it says the
sum of the digits so far, modulo 2 (parity) or 5. Three models differ only in how they rotate
queries and keys: by angles that the tokens decide (selective), by position (fixed rotary), not at
all (none). They are trained on strings of at most 64 tokens.

A learned step is close to a fraction of a turn, but not equal to it, and its error grows with the
number of tokens. So the trained model is also read with its steps rounded to 1/30 turn ("rounded").
Then only the sum of the steps can be wrong. The same rounded steps are summed in three ways: exact,
in float32 token by token (a decoder that adds each step to an angle), and in float32 in chunks of
128 tokens, the order of the published kernel of Mamba-3 (angle_cumsum.py).

Prints a table for each task; writes a picture, and beside it all figures as .json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

try:
    import matplotlib  # noqa: F401  a missing package is an error now, not after a minute
    import numpy as np
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F

    import posenc_native as pn
except ImportError as error:
    sys.exit(f"parity: {error}: pip install 'posenc-native[demo]'")

TASKS = {"parity": 2, "sum modulo 5": 5}
LENGTHS = tuple(2**power for power in (6, 8, 10, 11, 12, 13, 14, 16, 18, 20))
PAIRS, WIDTH = 16, 16
WINDOW = 16  # the tokens before each length whose answers are scored
CHUNK = 128  # of the published kernel
BLOCK = 2**14  # tokens that are read at once
FEW_FROM = 2**14  # longer strings are fewer

# The name of a line: the model, whether its steps are rounded, how they are summed, its style.
# Lightness, dashes and markers tell lines apart without color.
WAYS: dict[str, tuple[str, bool, str, dict[str, Any]]] = {
    "exact": ("selective", True, "exact", {"color": "#10375c", "marker": "o", "ls": "-", "lw": 4}),
    "f32, chunks": (
        "selective", True, "chunks",
        {"color": "#4f9d8b", "marker": "v", "ls": (0, (5, 1)), "lw": 2},
    ),
    "f32, tokens": (
        "selective", True, "tokens", {"color": "#d9694f", "marker": "s", "ls": "--", "lw": 2},
    ),
    "not rounded": (
        "selective", False, "exact", {"color": "#7b5ea7", "marker": "D", "ls": ":", "lw": 2},
    ),
    "fixed rotary": (
        "fixed rotary", False, "exact", {"color": "#6b6b6b", "marker": "^", "ls": "-.", "lw": 1.5},
    ),
    "none": ("none", False, "exact", {"color": "#9a9a9a", "marker": "x", "ls": "-", "lw": 1.5}),
}  # fmt: skip


@dataclass
class Settings:
    """Of the training and the test."""

    seed: int = 0
    steps: tuple[int, ...] = (800, 1000)  # batches of each task
    length: int = 64  # tokens of the longest string to train on
    long: int = LENGTHS[-1]  # of the longest string to test on
    many: int = 64  # strings up to FEW_FROM tokens
    few: int = 2  # longer ones


@dataclass
class Figures:
    """What was measured.

    Attributes:
        settings: of the training and the test.
        machine: versions, threads and seconds.
        lengths: number of tokens read, the start token among them.
        degrees: learned steps of the selective model by task, a row for each digit; only those of
            pairs in which the start token's key is not 0.
        losses: by task and model, that of the last batch.
        shares: of right answers, by task and way, at every length.
    """

    settings: dict[str, Any]
    machine: dict[str, Any]
    lengths: list[int]
    degrees: dict[str, list[list[float]]]
    losses: dict[str, dict[str, float]]
    shares: dict[str, dict[str, list[float]]]


class Model(nn.Module):
    """One layer of causal linear attention, whose queries and keys are rotated, and a readout."""

    def __init__(self, kind: str, modulus: int) -> None:
        super().__init__()
        self.kind, self.modulus = kind, modulus
        self.embed = nn.Embedding(modulus + 1, WIDTH)  # the digits, then the start token
        self.q = nn.Linear(WIDTH, 2 * PAIRS)
        self.k = nn.Linear(WIDTH, 2 * PAIRS)
        self.v = nn.Linear(WIDTH, 8)
        self.steps = nn.Linear(WIDTH, PAIRS)
        self.readout = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, modulus))

    def step_of_each(self, rounded: bool = False) -> Tensor:
        """Radians by which each token of the vocabulary turns each pair, [modulus + 1, PAIRS]."""
        if self.kind == "none":
            return torch.zeros(self.modulus + 1, PAIRS)
        if self.kind == "fixed rotary":
            return (10000.0 ** (-torch.arange(PAIRS) / PAIRS)).expand(self.modulus + 1, PAIRS)
        steps: Tensor = math.pi * self.steps(self.embed.weight)
        return (steps.double() * (15 / math.pi)).round() * (math.pi / 15) if rounded else steps

    def keys(self) -> Tensor:
        """The key of each token of the vocabulary. ReLU lets a key be exactly 0."""
        return torch.relu(self.k(self.embed.weight))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [b, s, modulus] for tokens [b, s]."""
        tables = (self.q(self.embed.weight), self.keys(), self.step_of_each())
        q, k, steps = (table[tokens].unsqueeze(2) for table in tables)
        q, k, _ = pn.selective_rotary_qk(q, k, steps, layout="bshd")
        scores = (q.squeeze(2) @ k.squeeze(2).mT).tril()
        logits: Tensor = self.readout(scores @ self.v(self.embed.weight)[tokens])
        return logits


def strings(count: int, length: int, modulus: int, generator: torch.Generator) -> Tensor:
    """Random digits [count, length] after a start token, which is `modulus`."""
    tokens = torch.randint(0, modulus, (count, length), generator=generator)
    tokens[:, 0] = modulus
    return tokens


def answers(tokens: Tensor, modulus: int) -> Tensor:
    """The sum of the digits up to each token, modulo `modulus`."""
    return tokens.masked_fill(tokens == modulus, 0).cumsum(1) % modulus


def train(kind: str, modulus: int, total: int, settings: Settings) -> tuple[Model, float]:
    """A model trained on strings that become longer, and its last loss."""
    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    model = Model(kind, modulus)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=total)
    for step in range(total):
        longest = int(4 * (settings.length / 4) ** min(1.0, step / (0.8 * total)))
        length = int(torch.randint(2, longest + 1, (), generator=generator))
        tokens = strings(64, length, modulus, generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), answers(tokens, modulus).flatten())
        # Every key adds to what a query reads. A key of a digit that is merely small adds up over
        # a long string, so a penalty pushes these keys to exactly 0. The other models know the
        # digits from their keys and values alone, and are trained without it.
        penalty = 0.1 * model.keys()[:modulus].sum() if kind == "selective" else 0.0
        (loss + penalty).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval(), loss.item()


def tables_of(steps: Tensor, how: str) -> tuple[Tensor, Tensor]:
    """Cosines and sines [b, s, PAIRS], float32, of the sums of steps along the tokens."""
    if how == "exact":
        cos, sin = pn.selective.phase_tables(pn.selective.accumulated_phases(steps, axis=1))
        return cos, sin
    single = steps.float().numpy()
    if how == "tokens":  # NumPy adds one after the other, in the dtype of the array
        angles = np.cumsum(single, axis=1)
    else:
        rows, length, pairs = single.shape
        rest = -length % CHUNK
        parts = np.pad(single, ((0, 0), (0, rest), (0, 0))).reshape(rows, -1, CHUNK, pairs)
        within = np.cumsum(parts, axis=2)
        before = np.cumsum(within[:, :, -1], axis=1)
        within[:, 1:] += before[:, :-1, None]
        angles = within.reshape(rows, -1, pairs)[:, :length]
    turned = torch.from_numpy(angles)
    return turned.cos(), turned.sin()


@torch.inference_mode()
def accuracies(model: Model, tokens: Tensor, lengths: list[int], way: str) -> list[float]:
    """The share of right answers among the last tokens before each length."""
    _, rounded, how, _ = WAYS[way]
    cos, sin = tables_of(model.step_of_each(rounded)[tokens], how)

    def rotated(table: Tensor, part: slice) -> Tensor:
        x = table[tokens[:, part]].unsqueeze(2)
        x = pn.apply_rotary(
            x, None, pn.Tables(cos[:, None, part], sin[:, None, part]), layout="bshd"
        )
        return x.squeeze(2)

    queries, keys, values = model.q(model.embed.weight), model.keys(), model.v(model.embed.weight)
    right = answers(tokens, model.modulus)
    memory = torch.zeros(len(tokens), 2 * PAIRS, values.shape[1])  # sums of key x value
    read, shares = 0, []
    for length in lengths:
        while read < length - WINDOW:
            part = slice(read, min(read + BLOCK, length - WINDOW))
            memory += rotated(keys, part).mT @ values[tokens[:, part]]
            read = part.stop
        part = slice(read, length)
        q, k, v = rotated(queries, part), rotated(keys, part), values[tokens[:, part]]
        logits = model.readout((q @ k.mT).tril() @ v + q @ memory)
        shares.append((logits.argmax(-1) == right[:, part]).double().mean().item())
        memory += k.mT @ v
        read = length
    return shares


def measure(settings: Settings) -> Figures:
    """Train the three models on each task and read strings of every length."""
    begin = time.perf_counter()
    lengths = [length for length in LENGTHS if length <= settings.long]
    lots = (
        (settings.many, [length for length in lengths if length <= FEW_FROM]),
        (settings.few, [length for length in lengths if length > FEW_FROM]),
    )
    figures = Figures(asdict(settings), {}, lengths, {}, {}, {})
    threads = torch.get_num_threads()
    for (task, modulus), total in zip(TASKS.items(), settings.steps, strict=True):
        models = {}
        torch.set_num_threads(1)  # the batches are small
        for kind in ("selective", "fixed rotary", "none"):
            models[kind], loss = train(kind, modulus, total, settings)
            figures.losses.setdefault(task, {})[kind] = round(loss, 4)
            print(f"{task}, {kind}: loss {loss:.4f} after {total} batches", flush=True)
        torch.set_num_threads(threads)
        selective = models["selective"]
        with torch.inference_mode():
            key = selective.keys()[-1]
            used = key[:PAIRS] + key[PAIRS:] > 0
            degrees = selective.step_of_each()[:modulus, used].rad2deg()
        figures.degrees[task] = [[round(d, 2) for d in of_digit] for of_digit in degrees.tolist()]
        shares: dict[str, list[float]] = {way: [] for way in WAYS}
        for count, of_lot in lots:
            if of_lot:
                generator = torch.Generator().manual_seed(1000 + settings.seed)
                tokens = strings(count, of_lot[-1], modulus, generator)
                for way, (kind, *_) in WAYS.items():
                    # By then the other models guess; they needn't read a million tokens.
                    if kind != "selective" and of_lot[0] > FEW_FROM:
                        continue
                    # A few strings at a time, so that tables of angles stay below 100 MB.
                    size = max(1, 2**20 // of_lot[-1])
                    parts = [
                        accuracies(models[kind], part, of_lot, way) for part in tokens.split(size)
                    ]
                    means = np.mean(parts, axis=0)  # parts are equally large
                    shares[way] += [round(float(mean), 4) for mean in means]
        figures.shares[task] = shares
    figures.machine = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "seconds": round(time.perf_counter() - begin),
    }
    return figures


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


def short(length: int) -> str:
    """A power of two as contexts are named: 4k, 128k, 1M."""
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if length >= size:
            return f"{length // size}{unit}"
    return str(length)


def table(figures: Figures, task: str) -> list[list[str]]:
    """Heads, then a row for each length."""
    rows = [["tokens", *WAYS]]
    for place, length in enumerate(figures.lengths):
        cells = (
            f"{of[place]:.3f}" if place < len(of) else "-" for of in figures.shares[task].values()
        )
        rows.append([short(length), *cells])
    return rows


def draw(figures: Figures, out: Path) -> None:
    """Accuracy against length, a panel for each task and a line for each way."""
    from matplotlib.figure import Figure

    ink, gray = "#1a1a1a", "#6b6b6b"
    figure = Figure(figsize=(10.0, 5.0), dpi=110, facecolor="white")
    for place, (task, modulus) in enumerate(TASKS.items()):
        axes = figure.add_axes((0.065 + 0.485 * place, 0.245, 0.435, 0.505))
        for way, shares in reversed(figures.shares[task].items()):
            axes.plot(
                figures.lengths[: len(shares)], shares, label=way, ms=6, zorder=3, **WAYS[way][3]
            )
        axes.axhline(1 / modulus, color=gray, linewidth=1.0, linestyle=":", label="guess")
        axes.set_xscale("log", base=2)
        ticks = [length for length in figures.lengths if length.bit_length() % 2] or figures.lengths
        axes.set_xticks(ticks, [short(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(-0.03, 1.06)
        axes.set_xlabel("tokens read", color=ink)
        if not place:
            axes.set_ylabel("right answers", color=ink)
        axes.set_title(task, loc="left", fontsize=11, color=ink)
        axes.grid(True, color="#e6e6e6", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles[::-1],
        labels[::-1],
        loc="lower center",
        ncol=len(WAYS) + 1,
        frameon=False,
        fontsize=9,
    )
    title = "Counting with angles that the tokens decide, summed exactly and in float32"
    figure.text(0.02, 0.925, title, fontsize=14, weight="bold", color=ink)
    figure.text(
        0.02, 0.865,
        "One layer of linear attention, trained on strings of at most "
        f"{figures.settings['length']} tokens, reads longer ones",
        fontsize=10.5, color=gray,
    )  # fmt: skip
    figure.savefig(out)


def run(options: argparse.Namespace) -> None:
    """Train and read, or take an earlier run's figures; print, draw."""
    if not options.out.parent.is_dir():  # known now, not after a minute
        raise ValueError(f"--out: no folder {options.out.parent}")
    if options.redraw:
        figures = load(options.redraw)
    else:
        settings = Settings(options.seed)
        if options.quick:
            settings = Settings(options.seed, steps=(3, 3), long=2**11, many=4, few=1)
        figures = measure(settings)
        save(figures, options.out.with_suffix(".json"))
    for task in TASKS:
        print(f"\n{task}: share of right answers after so many tokens")
        for cells in table(figures, task):
            print("  ".join(cell.rjust(12) for cell in cells))
    draw(figures, options.out)
    print(f"see {options.out}")


def main() -> int:
    """The exit status; errors are one line."""
    parser = argparse.ArgumentParser(
        prog="parity", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--seed", type=int, default=0, help="of weights and strings; default: %(default)s")
    add("--out", type=Path, default=Path("parity.png"), help="default: %(default)s")
    add("--redraw", type=Path, metavar="JSON", help="show an earlier run's figures; no training")
    add("--quick", action="store_true", help="seconds, to see it run; its figures mean nothing")
    options = parser.parse_args()
    if options.out.suffix not in (".png", ".svg", ".pdf"):
        parser.error(f"--out: expected a name that ends in .png, .svg or .pdf, got {options.out}")
    try:
        run(options)
    except (OSError, ValueError) as error:
        print(f"parity: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
