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
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import backend

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DemoError", "Figures", "Section", "measure", "run", "sections"]

DEFAULT_TEXT = "how_a_sentence_keeps_its_order.txt"
SHOWN_POSITIONS = (4096, 131072, 1048576)
LAYERS, QUERY_HEADS, KEY_HEADS, HEAD_DIM = 4, 32, 8, 128


class DemoError(Exception):
    """A demonstration that cannot run; the message is one line for the user."""


@dataclass(frozen=True)
class _Sizes:
    context: int  # bytes of the text that are read
    moved: int  # of these, how many are read again at a later position
    prefill_repeats: int
    decode_repeats: int


_FULL = _Sizes(context=4096, moved=1024, prefill_repeats=7, decode_repeats=300)
_QUICK = _Sizes(context=256, moved=64, prefill_repeats=3, decode_repeats=20)


@dataclass
class Figures:
    """What was measured. Pairs are (transformers, posenc_native); times are in seconds."""

    tokens: int = 0
    text_bytes: int = 0
    spread: float = 0.0  # standard deviation of the logits
    difference: float = 0.0  # largest, between the two ways
    continuation: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    moved_to: int = SHOWN_POSITIONS[1]
    moved_tokens: int = 0
    moved: tuple[float, float] = (0.0, 0.0)  # largest change of a logit
    prefill: tuple[float, float] = (0.0, 0.0)
    decode: tuple[float, float] = (0.0, 0.0)
    errors: dict[int, tuple[float, float]] = field(default_factory=dict)  # by position
    facts: str = ""

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
        DemoError: something to run it is missing: a package, the text, the folder of the picture.
    """
    needed = ("torch", "transformers", "matplotlib", "rich")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise DemoError(f"needs {', '.join(missing)}: pip install 'posenc-native[demo]'")
    data = _read(text)
    if not out.parent.is_dir():
        raise DemoError(f"cannot write {out}: no folder {out.parent}")

    import rich
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=40),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("importing torch and transformers", total=1.0)
        figures = measure(
            data,
            new_tokens,
            _QUICK if quick else _FULL,
            lambda label, fraction: bar.update(task, description=label, completed=fraction),
        )
        bar.update(task, description="drawing", completed=1.0)
        try:
            _draw(figures, out)
        except OSError as error:
            raise DemoError(f"cannot write {out}: {error.strerror or error}") from error
    rich.print(_table(figures))
    rich.print(f"The table as a picture: {out}", end="\n")


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
    def step(self, label: str, weight: float, ticks: int) -> Iterator[None]:
        """Work that takes about `weight` seconds and calls `tick` so many times."""
        end, self._share, self._label = self._done + weight, weight / max(ticks, 1), label
        self._report(label, self._done / self._total)
        yield
        self._done = end

    def tick(self, *_: object) -> None:
        self._done += self._share
        self._report(self._label, self._done / self._total)


def measure(
    data: bytes,
    new_tokens: int,
    sizes: _Sizes = _FULL,
    report: Callable[[str, float], None] = lambda label, fraction: None,
) -> Figures:
    """Run the model both ways and measure.

    Args:
        data: the text, of which ``sizes.context`` bytes are read.
        new_tokens: length of the greedy continuation.
        sizes: how much is done.
        report: is told what is being done and which fraction of all is done.
    """
    # Seconds, roughly: a prefill grows with the square of the text.
    prefill = 5.0 * (sizes.context / _FULL.context) ** 2 + 0.1
    per_way = prefill + 0.02 * new_tokens + 1.5
    progress = _Progress(report, 6.0 + 2 * per_way + 5.0)
    with progress.step("importing torch and transformers", 6.0, 1):
        import torch

        from . import hf

        model = _model()
    rotary, attentions = model.model.rotary_emb, [layer.self_attn for layer in model.model.layers]
    ids = torch.tensor([list(data[: sizes.context])])
    moved = ids[:, : sizes.moved]
    figures = Figures(tokens=ids.shape[1], text_bytes=len(data), moved_tokens=moved.shape[1])
    logits: list[Tensor] = []
    continuations: list[list[int]] = []
    changes: list[float] = []
    positions = sorted({16 * 4**k for k in range(9)} | set(SHOWN_POSITIONS))
    tables: list[dict[int, Tensor]] = []

    hooks = [layer.register_forward_hook(progress.tick) for layer in model.model.layers]
    with torch.no_grad():
        for way in ("transformers", "posenc_native"):
            handle = hf.patch(model) if way == "posenc_native" else contextlib.nullcontext()
            with handle:
                with progress.step(f"{way}: reading {ids.shape[1]} tokens", prefill, LAYERS):
                    result = model(ids, use_cache=True)
                logits.append(result.logits)
                with progress.step(
                    f"{way}: writing {new_tokens} tokens", 0.02 * new_tokens, LAYERS * new_tokens
                ):
                    continuations.append(_continue(model, result, new_tokens))
                del result  # its cache is large
                with progress.step(f"{way}: the text moved", 1.5, 2 * LAYERS):
                    there = torch.arange(figures.moved_to, figures.moved_to + moved.shape[1])[None]
                    shift = model(moved, position_ids=there).logits - model(moved).logits
                    changes.append(float(shift.abs().max()))
                tables.append({p: _cos_sin(rotary, p) for p in positions})
        for hook in hooks:
            hook.remove()
        repeats = sizes.prefill_repeats + sizes.decode_repeats // 10
        with hf.patch(model), progress.step("timing the rotary part", 4.5, repeats):
            figures.prefill = _time_rotary(
                rotary, attentions, ids.shape[1], sizes.prefill_repeats, progress.tick
            )
            figures.decode = _time_rotary(rotary, attentions, 1, sizes.decode_repeats, None)
    frequencies = [float(f) for f in rotary.inv_freq]
    with progress.step("cos and sin with 60 digits", 0.5, len(positions)):
        for position in positions:
            exact = [exact_cos_sin(position, frequency) for frequency in frequencies]
            truth = torch.tensor(exact, dtype=torch.float64).T.flatten()
            theirs, ours = (float((table[position] - truth).abs().max()) for table in tables)
            figures.errors[position] = (theirs, ours)
            progress.tick()
    figures.spread = float(logits[0].std())
    figures.difference = float((logits[1] - logits[0]).abs().max())
    figures.continuation = (continuations[0], continuations[1])
    figures.moved = (changes[0], changes[1])
    figures.facts = _facts(model)
    return figures


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
        return transformers.LlamaForCausalLM(config).eval()


def _continue(model: Any, result: Any, count: int) -> list[int]:
    """The greedy continuation from a prefill, one token at a time on its cache."""
    tokens: list[int] = []
    for _ in range(count):
        token = result.logits[:, -1:].argmax(-1)
        tokens.append(int(token))
        result = model(token, past_key_values=result.past_key_values, use_cache=True)
    return tokens


def _cos_sin(rotary: Any, position: int) -> Tensor:
    """Cosines, then sines, of a position as the model's rotary module gives them: [2 * pairs]."""
    import torch

    pair = rotary(torch.zeros(1), position_ids=torch.tensor([[position]]))
    # transformers' tables hold every value twice, for a head's two halves.
    return torch.cat([table[0, 0, : HEAD_DIM // 2] for table in pair]).double()


def _time_rotary(
    rotary: Any,
    attentions: list[Any],
    tokens: int,
    repeats: int,
    tick: Callable[[], None] | None,
) -> tuple[float, float]:
    """Median time of all that is rotary in one pass of a patched model, both ways in turns.

    That is the tables, once, and the rotation of q and k in each layer. transformers' own way is in
    the classes, ours in the instances.
    """
    import torch

    def heads(count: int) -> Tensor:  # as attention modules make them: a transposed view
        return torch.randn(1, tokens, count, HEAD_DIM).transpose(1, 2)

    q, k = heads(QUERY_HEADS), heads(KEY_HEADS)
    positions = torch.arange(4096, 4096 + tokens)[None]

    def way(tables: Callable[..., Any], forwards: list[Any]) -> Callable[[], None]:
        rotations = [forward.__globals__["apply_rotary_pos_emb"] for forward in forwards]

        def once() -> None:
            cos, sin = tables(q, position_ids=positions)
            for rotate in rotations:
                rotate(q, k, cos, sin)

        return once

    original = type(rotary).forward.__get__(rotary)
    ways = (
        way(original, [type(attention).forward for attention in attentions]),
        way(rotary.forward, [attention.forward for attention in attentions]),
    )
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(repeats + 1):
        for once, samples in zip(ways, times, strict=True):
            start = time.perf_counter()
            once()
            if i:  # the first is to warm up
                samples.append(time.perf_counter() - start)
        if tick and i:
            tick()
    return statistics.median(times[0]), statistics.median(times[1])


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


def _facts(model: Any) -> str:
    import torch
    import transformers

    millions = sum(p.numel() for p in model.parameters()) / 1e6
    native = backend.configuration()["backend"]
    return (
        f"{type(model).__name__}, {LAYERS} layers, {QUERY_HEADS} query and {KEY_HEADS} key heads "
        f"of {HEAD_DIM}, {millions:.0f} million random weights in float32\n"
        f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, backend {native}"
    )


# --- showing --------------------------------------------------------------------------------------


def sections(figures: Figures) -> list[Section]:
    """The table: what both its printed form and its picture show."""
    same, count = figures.same_tokens(), len(figures.continuation[0])
    agree = "the same" if same == count else f"the same up to token {same}"
    moved_theirs, moved_ours = figures.moved
    return [
        Section(
            "The same model",
            [
                (
                    f"largest difference of a logit, {figures.tokens:,} tokens",
                    "—",
                    f"{figures.difference:.1e}",
                    f"{figures.difference / figures.spread:.1e} of their spread",
                ),
                ("greedy continuation", f"{count} tokens", f"{count} tokens", agree),
                (
                    f"largest change of a logit, text moved to {figures.moved_to:,}",
                    f"{moved_theirs:.1e}",
                    f"{moved_ours:.1e}",
                    f"{_times(moved_theirs, moved_ours)} less",
                ),
            ],
        ),
        Section(
            f"Time of rotary, {LAYERS} layers",
            [
                (name, _duration(theirs), _duration(ours), f"{_times(theirs, ours)} faster")
                for name, (theirs, ours) in (
                    (f"prefill, {figures.tokens:,} tokens", figures.prefill),
                    ("decode, 1 token", figures.decode),
                )
            ],
        ),
        Section(
            "Largest error of cos and sin",
            [
                (
                    f"at position {position:,}",
                    f"{figures.errors[position][0]:.1e}",
                    f"{figures.errors[position][1]:.1e}",
                    f"{_times(*figures.errors[position])} closer",
                )
                for position in SHOWN_POSITIONS
            ],
        ),
    ]


def _times(larger: float, smaller: float) -> str:
    ratio = larger / max(smaller, 1e-30)
    return f"{ratio:.1f} times" if ratio < 10 else f"{float(f'{ratio:.2g}'):,.0f} times"


def _duration(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def _table(figures: Figures) -> Any:
    from rich.table import Table

    table = Table(title="Rotary encoding, two ways", caption=figures.facts, title_justify="left")
    table.caption_justify = "left"
    table.add_column("")
    for name in ("transformers", "posenc_native", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for section in sections(figures):
        table.add_row(f"[bold]{section.title}[/bold]")
        for what, theirs, ours, comparison in section.rows:
            table.add_row(f"  {what}", theirs, ours, comparison)
        table.add_section()
    return table


def _draw(figures: Figures, out: Path) -> None:
    """The table above a chart of the error by position. Told apart without colour as well."""
    from matplotlib.figure import Figure

    ink, grey, theirs_colour = "#1a1a1a", "#666666", "#d9822b"
    figure = Figure(figsize=(10, 8.6), dpi=150, facecolor="white", layout=None)
    figure.text(0.05, 0.955, "Rotary encoding, two ways", fontsize=17, weight="bold", color=ink)
    figure.text(0.05, 0.9, figures.facts, fontsize=9, color=grey, linespacing=1.5)

    columns = ((0.05, "left"), (0.60, "right"), (0.755, "right"), (0.785, "left"))
    y, step = 0.858, 0.0305

    def line(cells: tuple[str, ...], **style: Any) -> None:
        for (x, side), cell in zip(columns, cells, strict=True):
            figure.text(x, y, cell, ha=side, fontsize=10.5, **({"color": ink} | style))

    def rule(width: float) -> None:
        figure.add_artist(Line2D([0.05, 0.95], [y, y], color=ink, linewidth=width))

    from matplotlib.lines import Line2D

    line(("", "transformers", "posenc_native", ""), weight="bold")
    y -= 0.012
    rule(1.2)
    for section in sections(figures):
        y -= step
        line((section.title, "", "", ""), weight="bold")
        for row in section.rows:
            y -= step
            line(("   " + row[0], *row[1:]))
        y -= 0.013
        rule(0.5)

    axes = figure.add_axes((0.115, 0.075, 0.70, y - 0.155))
    positions = list(figures.errors)
    for name, which, style in (
        ("transformers", 0, {"color": theirs_colour, "linestyle": "--", "marker": "s"}),
        ("posenc_native", 1, {"color": ink, "linestyle": "-", "marker": "o"}),
    ):
        values = [figures.errors[p][which] for p in positions]
        axes.plot(positions, values, label=name, markersize=5, linewidth=1.8, **style)
        axes.annotate(
            name,
            (positions[-1], values[-1]),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            weight="bold",
            color=style["color"],
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
