"""Which position encoding to choose: the same small transformer with each, on the same text.

    python examples/which_encoding                 minutes on two cores
    python examples/which_encoding --seeds 3       with the spread of three runs
    python examples/which_encoding --text FILE     your own text, UTF-8

A model that guesses the next character is trained on 128 characters at a time, then asked to read
1, 2 and 4 times as many. Every encoding gets the same initial weights, batches and number of steps.
Prints a table; writes a picture, and beside it all figures as .json.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import figure

TEXT = Path(__file__).parents[1] / "data" / "northanger_abbey.txt"
Report = Callable[[str, float], None]  # told the name of a run and the loss, after every step
Say = Callable[[Any], None]


def main() -> int:
    """The exit status; errors are one line."""
    parser = argparse.ArgumentParser(
        prog="which_encoding", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add, names = parser.add_argument, ", ".join(figure.STYLES)
    add("--text", type=Path, default=TEXT, help="default: Jane Austen's Northanger Abbey")
    add("--out", type=Path, default=Path("which_encoding.png"), help="default: %(default)s")
    add("--seeds", type=int, default=1, help="runs of each encoding; default: 1")
    add("--steps", type=int, default=400, help="batches to train on; default: 400")
    add("--only", nargs="+", choices=figure.STYLES, metavar="NAME", help=f"some of {names}")
    add("--redraw", type=Path, metavar="JSON", help="show an earlier run's figures; no training")
    add("--quick", action="store_true", help="seconds, to see it run; its figures mean nothing")
    options = parser.parse_args()
    if min(options.seeds, options.steps) < 1:
        parser.error("--seeds and --steps are at least 1")
    if options.out.suffix not in (".png", ".svg", ".pdf"):
        parser.error(f"--out: expected a name that ends in .png, .svg or .pdf, got {options.out}")
    missing = [name for name in ("torch", "matplotlib") if not importlib.util.find_spec(name)]
    if missing:
        print(
            f"which_encoding: needs {', '.join(missing)}: pip install 'posenc-native[demo]'",
            file=sys.stderr,
        )
        return 1
    try:
        run(options)
    except (OSError, ValueError) as error:
        print(f"which_encoding: {error}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    """Train, print, draw."""
    if not options.out.parent.is_dir():  # known now, not after minutes
        raise ValueError(f"--out: no folder {options.out.parent}")
    import experiment

    if options.redraw:
        figures = experiment.load(options.redraw)
    else:
        settings = experiment.Settings(steps=options.steps)
        if options.quick:
            settings = experiment.Settings(steps=3, length=16, batch=4, held_out=0.001)
        data = experiment.read(options.text, settings)
        chosen = options.only or list(figure.STYLES)
        total = options.seeds * len(chosen) * settings.steps
        with progress(total) as (report, say):
            figures = experiment.Figures(settings, [])
            for seed in range(options.seeds):
                for encoding in chosen:
                    one = experiment.run(encoding, seed, data, settings, report)
                    figures.runs.append(one)
                    experiment.save(figures, options.out.with_suffix(".json"))
                    say(f"{encoding}, seed {seed}: {one.held_out[1][0]:.3f} on text held out")
    figure.show(figures)
    figure.draw(figures, options.out)
    print(f"see {options.out}")


@contextmanager
def progress(total: int) -> Iterator[tuple[Report, Say]]:
    """A bar where somebody watches and rich is installed; else only what is said."""
    if not (sys.stdout.isatty() and importlib.util.find_spec("rich")):
        yield lambda name, loss: None, lambda text: print(text, flush=True)
        return
    from rich import progress

    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("rest"),
        progress.TimeRemainingColumn(),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=total)
        yield (
            lambda name, loss: bar.update(task, advance=1, description=f"{name}: {loss:.2f}"),
            bar.console.print,
        )


if __name__ == "__main__":
    sys.exit(main())
