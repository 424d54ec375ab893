"""The demonstration: a real text through a real Llama, rotated by transformers and by this library.

The model is transformers' own LlamaForCausalLM with heads of a realistic size and random weights
from a fixed seed; a token is a byte of the text, so nothing is downloaded. Both ways run in the
same process on the same weights. What is compared:

- the logits of the whole text, and the greedy continuation from its last token;
- the logits of the same text moved to a later position. Rotary encoding depends on distances only,
  so with an exact phase they stay the same;
- the time of the rotary part alone, the two ways in turns, the median of the runs;
- the error of cos and sin at single positions, against decimal arithmetic with 60 digits.
"""

from __future__ import annotations

import contextlib
import decimal
import importlib.resources
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from . import configuration

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "DemoError",
    "Figures",
    "Section",
    "Sizes",
    "exact_cos_sin",
    "measure",
    "run",
    "sections",
]

DEFAULT_TEXT = "how_a_sentence_keeps_its_order.txt"
SHOWN_POSITIONS = (4096, 131072, 1048576)
MOVED_TO = 131072
LAYERS, QUERY_HEADS, KEY_HEADS, HEAD_DIM = 4, 32, 8, 128


class DemoError(Exception):
    """A demonstration that cannot run; the message is one line for the user."""


@dataclass(frozen=True)
class Sizes:
    """How much a demonstration does.

    Attributes:
        context: bytes of the text that are read.
        moved: how many of these are read again at a later position.
        prefill_repeats, decode_repeats: how often each is timed.
    """

    context: int
    moved: int
    prefill_repeats: int
    decode_repeats: int


FULL = Sizes(context=4096, moved=1024, prefill_repeats=7, decode_repeats=300)
QUICK = Sizes(context=256, moved=64, prefill_repeats=3, decode_repeats=20)


@dataclass(frozen=True)
class Figures:
    """What was measured. Pairs are (transformers, posenc_native); times are in seconds."""

    tokens: int
    spread: float  # standard deviation of the logits
    difference: float  # the largest between a logit and its twin
    continuation: tuple[list[int], list[int]]
    moved: tuple[float, float]  # largest change of a logit when the text stands elsewhere
    prefill: tuple[float, float, float]  # the third is posenc_native in place
    decode: tuple[float, float, float]
    errors: dict[int, tuple[float, float]]  # of cos and sin, by position
    facts: str

    def same_tokens(self) -> int:
        """How many tokens of the continuation are the same before the first that is not."""
        theirs, ours = self.continuation
        pairs = enumerate(zip(theirs, ours, strict=True))
        return next((i for i, (a, b) in pairs if a != b), len(theirs))


@dataclass(frozen=True)
class Section:
    """A part of the table: rows of what, transformers, posenc_native, comparison."""

    title: str
    rows: list[tuple[str, str, str, str]]


def run(text: Path | None, out: Path, new_tokens: int, quick: bool) -> None:
    """Run the demonstration, print its table, save its picture.

    Args:
        text: a text file to read; None for the one that ships with the package.
        out: where the PNG goes.
        new_tokens: length of the greedy continuation.
        quick: a short run on the first few bytes; its times mean little.

    Raises:
        DemoError: a package or the text is missing; the picture cannot be written.
    """
    needed = ("torch", "transformers", "matplotlib", "rich")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise DemoError(f"needs {', '.join(missing)}: pip install 'posenc-native[demo]'")
    data = _read(text)

    import rich
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=40),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("importing torch and transformers", total=1.0)
        figures = measure(
            data,
            new_tokens,
            QUICK if quick else FULL,
            lambda label, fraction: bar.update(task, description=label, completed=fraction),
        )
        try:
            _draw(figures, out)
        except OSError as error:
            raise DemoError(f"cannot write {out}: {error.strerror or error}") from error
        bar.update(task, description="done", completed=1.0)
    rich.print(_table(figures))
    print("Rotary depends on distances alone: logits should not move when the whole text does.")
    print(f"The table as a picture: {out}")


def _read(text: Path | None) -> bytes:
    if text is None:
        return (importlib.resources.files(__package__) / "data" / DEFAULT_TEXT).read_bytes()
    try:
        data = text.read_bytes()
    except OSError as error:
        raise DemoError(f"cannot read {text}: {error.strerror or error}") from error
    if len(data) < 2:
        raise DemoError(f"{text} is too short: 2 bytes at least")
    return data


# --- measuring ------------------------------------------------------------------------------------


class _Progress:
    """Reports how far the work is: steps of known weight, each in equal ticks."""

    def __init__(self, report: Callable[[str, float], None], total: float) -> None:
        self._report, self._total, self._done, self._share = report, total, 0.0, 0.0
        self._label = ""

    @contextlib.contextmanager
    def step(self, label: str, weight: float, ticks: int = 1) -> Iterator[None]:
        """Work that takes about `weight` seconds and calls `tick` so many times."""
        end, self._share, self._label = self._done + weight, weight / ticks, label
        self._report(label, self._done / self._total)
        yield
        self._done = end

    def tick(self, *_: object) -> None:
        self._done += self._share
        self._report(self._label, self._done / self._total)


def measure(
    data: bytes,
    new_tokens: int,
    sizes: Sizes = FULL,
    report: Callable[[str, float], None] = lambda label, fraction: None,
) -> Figures:
    """Run the model both ways and measure.

    Args:
        data: the text, of which ``sizes.context`` bytes are read.
        new_tokens: length of the greedy continuation.
        sizes: how much is done.
        report: is told what is being done and which fraction of all is done.
    """
    # Seconds, roughly; a prefill grows with the square of the text.
    reading, writing = 5.0 * (sizes.context / FULL.context) ** 2 + 0.1, 0.02 * new_tokens
    progress = _Progress(report, total=3.0 + 2 * (reading + writing + 1.5) + 4.5 + 0.5)
    with progress.step("importing torch and transformers", 3.0):
        import torch

        from . import hf

        model = _model()
    ids = torch.tensor([list(data[: sizes.context])])
    around = sorted({16 * 4**k for k in range(9)} | set(SHOWN_POSITIONS))
    # Several each: at a power of two itself, float32 makes no error at all.
    positions = {p: range(p, p + 8) for p in around}

    def read(way: str) -> tuple[Tensor, list[int], float, dict[int, Tensor]]:
        with progress.step(f"{way}: reading {ids.shape[1]} tokens", reading, LAYERS):
            result = model(ids, use_cache=True)
        logits = result.logits
        with progress.step(f"{way}: writing {new_tokens} tokens", writing, LAYERS * new_tokens):
            continuation = _continue(model, result, new_tokens)
        with progress.step(f"{way}: the text elsewhere", 1.5, 2 * LAYERS):
            text = ids[:, : sizes.moved]
            there = torch.arange(MOVED_TO, MOVED_TO + text.shape[1])[None]
            change = model(text, position_ids=there).logits - model(text).logits
        tables = {p: _cos_sin(model.model.rotary_emb, some) for p, some in positions.items()}
        return logits, continuation, float(change.abs().max()), tables

    hooks = [layer.register_forward_hook(progress.tick) for layer in model.model.layers]
    with torch.no_grad():
        theirs = read("transformers")
        with hf.patch(model):
            ours = read("posenc_native")
        for hook in hooks:
            hook.remove()
        with progress.step("timing the rotary part", 4.5, sizes.prefill_repeats + 1):
            prefill = _time_rotary(model, ids.shape[1], sizes.prefill_repeats, progress.tick)
            decode = _time_rotary(model, 1, sizes.decode_repeats)
    errors = {}
    with progress.step("cos and sin with 60 digits", 0.5, len(positions)):
        for position, some in positions.items():
            truth = _exact_tables(model.model.rotary_emb.inv_freq.tolist(), some)
            a, b = (float((way[3][position] - truth).abs().max()) for way in (theirs, ours))
            errors[position] = (a, b)
            progress.tick()
    return Figures(
        tokens=ids.shape[1],
        spread=float(theirs[0].std()),
        difference=float((ours[0] - theirs[0]).abs().max()),
        continuation=(theirs[1], ours[1]),
        moved=(theirs[2], ours[2]),
        prefill=prefill,
        decode=decode,
        errors=errors,
        facts=_facts(model, ids.shape[1], len(data)),
    )


def _model() -> Any:
    """A small Llama: heads as large models have them, everything else as small as will do."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=256,  # bytes
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=LAYERS,
        num_attention_heads=QUERY_HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=2 * SHOWN_POSITIONS[-1],
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},  # as Llama 3
        # With 0.02, what is usual, attention scores of so narrow a model are all about 0 and a
        # token hardly notices where another stands. So they have a standard deviation of 1.7.
        initializer_range=0.058,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(2017)
        return cast(Any, transformers.LlamaForCausalLM(config)).eval()


def _continue(model: Any, result: Any, count: int) -> list[int]:
    """The greedy continuation from a prefill, one token at a time on its cache."""
    tokens: list[int] = []
    for _ in range(count):
        token = result.logits[:, -1:].argmax(-1)
        tokens.append(int(token))
        result = model(token, past_key_values=result.past_key_values, use_cache=True)
    return tokens


def _cos_sin(rotary: Any, positions: range) -> Tensor:
    """Cosines and sines as the model's rotary module gives them: [2, positions, pairs]."""
    import torch

    pair = rotary(torch.zeros(1), position_ids=torch.tensor([list(positions)]))
    # transformers' tables hold every value twice, for a head's two halves.
    return torch.stack([table[0, :, : HEAD_DIM // 2] for table in pair]).double()


def _exact_tables(frequencies: list[float], positions: range) -> Tensor:
    """The same by `exact_cos_sin`."""
    import torch

    exact = [[exact_cos_sin(p, frequency) for frequency in frequencies] for p in positions]
    return torch.tensor(exact, dtype=torch.float64).movedim(-1, 0)


def _time_rotary(
    model: Any, tokens: int, repeats: int, tick: Callable[[], None] | None = None
) -> tuple[float, float, float]:
    """Median time of all that is rotary in one pass: transformers, ours, ours in place; in turns.

    That is the tables, once, and the rotation of q and k in each layer, as the modules do it.
    """
    import torch

    from . import hf

    def heads(count: int) -> Tensor:  # as attention modules make them: a transposed view
        return torch.randn(1, tokens, count, HEAD_DIM).transpose(1, 2)

    q, k = heads(QUERY_HEADS), heads(KEY_HEADS)
    positions = torch.arange(4096, 4096 + tokens)[None]

    def way() -> Callable[[], None]:
        tables = model.model.rotary_emb.forward
        layers = [layer.self_attn for layer in model.model.layers]
        rotations = [layer.forward.__globals__["apply_rotary_pos_emb"] for layer in layers]

        def once() -> None:
            cos, sin = tables(q, position_ids=positions)
            for rotate in rotations:
                rotate(q, k, cos, sin)

        return once

    ways = [way()]
    for inplace in (False, True):
        with hf.patch(model, inplace=inplace):
            ways.append(way())
    times: list[list[float]] = [[] for _ in ways]
    for i in range(repeats + 1):
        for once, samples in zip(ways, times, strict=True):
            start = time.perf_counter()
            once()
            if i:  # the first is to warm up
                samples.append(time.perf_counter() - start)
        if tick:
            tick()
    theirs, ours, in_place = (statistics.median(samples) for samples in times)
    return theirs, ours, in_place


def exact_cos_sin(position: int, frequency: float) -> tuple[float, float]:
    """cos and sin of ``position * frequency``, correctly rounded but for ties, by Taylor's series.

    Decimal arithmetic with 60 digits: the product of a position and a float32 is exact in it.
    """
    with decimal.localcontext() as context:
        context.prec = 60
        angle = Decimal(position) * Decimal(frequency) % (2 * _pi())
        sums = [Decimal(0), Decimal(0)]  # the even terms are those of cos, the odd those of sin
        term, n = Decimal(1), 0
        while n < 8 or abs(term) > Decimal("1e-30"):
            sums[n % 2] += term if n % 4 < 2 else -term
            n += 1
            term *= angle / n
        return float(sums[0]), float(sums[1])


def _pi() -> Decimal:
    """pi to 60 digits, by Machin's formula in integers."""

    def arctangent_of_inverse(n: int, unit: int) -> int:
        power = total = unit // n
        for k in range(1, 100):
            power //= n * n
            total += (-power if k % 2 else power) // (2 * k + 1)
        return total

    unit = 10**70
    return Decimal(
        4 * (4 * arctangent_of_inverse(5, unit) - arctangent_of_inverse(239, unit))
    ) / Decimal(unit)


def _facts(model: Any, read: int, total: int) -> str:
    import torch
    import transformers

    millions = sum(p.numel() for p in model.parameters()) / 1e6
    native = configuration.configuration()["backend"]
    return (
        f"{type(model).__name__}, {LAYERS} layers, {QUERY_HEADS} query and {KEY_HEADS} key heads "
        f"of {HEAD_DIM}\n"
        f"{millions:.0f} million random weights in float32, {read:,} of {total:,} bytes of text\n"
        f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, backend {native}"
    )


# --- showing --------------------------------------------------------------------------------------


def sections(figures: Figures) -> list[Section]:
    """The table: what both its printed form and its picture show."""
    same, count = figures.same_tokens(), len(figures.continuation[0])
    relative = f"{figures.difference / figures.spread:.0e} of spread"
    time_rows = [
        (name, _duration(theirs), _duration(ours), _ratio(theirs, ours, "faster", "slower"))
        for name, theirs, ours in (
            (f"prefill, {figures.tokens:,} tokens", figures.prefill[0], figures.prefill[1]),
            ("the same, in place", figures.prefill[0], figures.prefill[2]),
            ("decode, 1 token", figures.decode[0], figures.decode[1]),
        )
    ]
    return [
        Section(
            "The same model",
            [
                ("largest logit difference", "", f"{figures.difference:.1e}", relative),
                (
                    "greedy continuation",
                    f"{count} tokens",
                    f"{count} tokens",
                    "the same" if same == count else f"same up to {same}",
                ),
                (
                    f"logits move, text at {MOVED_TO:,}",
                    f"{figures.moved[0]:.1e}",
                    f"{figures.moved[1]:.1e}",
                    _ratio(*figures.moved, "less", "more"),
                ),
            ],
        ),
        Section(f"Time of rotary, {LAYERS} layers", time_rows),
        Section(
            "Largest error of cos and sin",
            [
                (
                    f"near position {position:,}",
                    f"{a:.1e}",
                    f"{b:.1e}",
                    _ratio(a, b, "less", "more"),
                )
                for position, (a, b) in figures.errors.items()
                if position in SHOWN_POSITIONS
            ],
        ),
    ]


def _ratio(theirs: float, ours: float, better: str, worse: str) -> str:
    larger, smaller = max(theirs, ours), max(min(theirs, ours), 1e-30)
    ratio = larger / smaller
    number = f"{ratio:.1f}" if ratio < 10 else f"{float(f'{ratio:.2g}'):,.0f}"
    return f"{number}× {better if ours <= theirs else worse}"


def _duration(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def _table(figures: Figures) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(
        title="Rotary encoding, two ways",
        caption=figures.facts,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for name, side in (("transformers", "right"), ("posenc_native", "right"), ("", "left")):
        table.add_column(name, justify=cast(Any, side), no_wrap=True)
    for section in sections(figures):
        table.add_row(f"[bold]{section.title}[/bold]")
        for what, *cells in section.rows:
            table.add_row(f" {what}", *cells)
        table.add_section()
    return table


def _draw(figures: Figures, out: Path) -> None:
    """The table above a chart of the error by position. Told apart without colour as well."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    ink, grey, orange = "#1a1a1a", "#666666", "#d9822b"
    figure = Figure(figsize=(10, 8.6), dpi=150, facecolor="white")
    figure.text(0.05, 0.955, "Rotary encoding, two ways", fontsize=17, weight="bold", color=ink)
    figure.text(0.05, 0.885, figures.facts, fontsize=9, color=grey, linespacing=1.5)

    columns = ((0.05, "left"), (0.60, "right"), (0.755, "right"), (0.785, "left"))
    y, step = 0.845, 0.0285

    def line(cells: tuple[str, ...], weight: str = "normal") -> None:
        for (x, side), cell in zip(columns, cells, strict=True):
            figure.text(x, y, cell, ha=side, fontsize=10.5, color=ink, weight=weight)

    def rule(width: float) -> None:
        figure.add_artist(Line2D([0.05, 0.95], [y, y], color=ink, linewidth=width))

    line(("", "transformers", "posenc_native", ""), weight="bold")
    y -= 0.012
    rule(1.2)
    for section in sections(figures):
        y -= step
        line((section.title, "", "", ""), weight="bold")
        for what, *cells in section.rows:
            y -= step
            line((f"   {what}", *cells))
        y -= 0.012
        rule(0.5)

    axes = figure.add_axes((0.115, 0.075, 0.70, y - 0.15))
    positions = list(figures.errors)
    for which, (name, colour, dashes, marker) in enumerate(
        (("transformers", orange, "--", "s"), ("posenc_native", ink, "-", "o"))
    ):
        values = [errors[which] for errors in figures.errors.values()]
        axes.plot(
            positions,
            values,
            color=colour,
            linestyle=dashes,
            marker=marker,
            markersize=5,
            linewidth=1.8,
        )
        axes.annotate(
            name,
            (positions[-1], values[-1]),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            weight="bold",
            color=colour,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(1e-8, 1.0)
    ticks = [16, 256, *SHOWN_POSITIONS]
    axes.set_xticks(ticks, [f"{p:,}" for p in ticks])
    axes.minorticks_off()
    axes.set_xlabel("position")
    axes.set_title("Largest error of cos and sin", loc="left", fontsize=11, weight="bold")
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, format="png")
