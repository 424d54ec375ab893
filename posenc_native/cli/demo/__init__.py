"""demo: a real text through a real Llama, rotated by transformers and by this library.

It compares:

- the logits of the whole text, and the greedy continuation from its last token;
- the logits of the same text moved to a later position. Rotary encoding depends on distances only,
  so with an exact phase they stay the same;
- the time of rotary alone and of the whole model, in turns: the median, and how sure it is. With
  --compile also that of the model compiled, which takes minutes to compile;
- the same of a Qwen3, whose attention norms q and k before it rotates them: in one pass, and with
  the norm apart;
- where a head looks that finds a token by its distance, from 4 thousand tokens to 16 million;
- the error of cos and sin at single positions, against decimal arithmetic with 60 digits.
"""

from __future__ import annotations

import argparse
import importlib.resources
from pathlib import Path
from typing import Any

from posenc_native.base.optional import absent, install_command
from posenc_native.cli.options import add_output, at_least_one
from posenc_native.cli.parser import CommandError, add_command

from . import measure, picture, show

DEFAULT_TEXT = "how_a_sentence_keeps_its_order.txt"

_DESCRIPTION = """\
Reads a text through a transformers Llama (its own class, random weights from
a fixed seed, a token is a byte), once as transformers rotates queries and
keys and once after posenc_native.hf.patch. Prints a table and saves it as a
picture: how far the logits differ, whether the greedy continuation is the
same, how long rotary alone and the whole model take in prefill and decode,
where attention goes far from the start, and how exact cos and sin are. A
second table has the times of a Qwen3, with norm and rotation in one pass.
Needs torch, transformers, matplotlib and rich."""

_EXAMPLES = """\

--quick --tokens 4
--compile
--text book.txt -o book.png"""


_NOTES = """\
Rotary depends on distances alone: neither logits nor attention should move when
the whole text does. Times are medians; the ways took turns, and how many times
as fast ours is has an interval of 95 %. Where 1 is in it, no more than noise was
seen. This model is narrow: in wider ones rotary is a smaller part of the whole."""
_COMPILED = "Is it still faster when the model is compiled? --compile tells, in some minutes."


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "demo",
        _run,
        "run a real model on real text, rotated by transformers and by this library",
        _DESCRIPTION,
        _EXAMPLES,
    )
    parser.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help=f"a text to read; {measure.FULL.context} bytes of it",
    )
    parser.add_argument(
        "--tokens",
        type=at_least_one,
        metavar="N",
        default=32,
        help="length of the greedy continuation (default: %(default)s)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="time the model compiled by torch.compile, too; minutes, and needs a C++ compiler",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="on 128 bytes, in twenty seconds; its times mean little",
    )
    add_output(parser, (".png",), default=Path("posenc_native_demo.png"))


def _run(options: argparse.Namespace) -> None:
    run(options.text, options.out, options.tokens, options.quick, options.compile)


def run(text: Path | None, out: Path, new_tokens: int, quick: bool, compiled: bool) -> None:
    """Run the demonstration, print its table, save its picture.

    Args:
        text: a text file to read; None for the one that ships with the package.
        out: where the PNG goes.
        new_tokens: length of the greedy continuation.
        quick: a short run on the first few bytes; its times mean little.
        compiled: whether the models are also timed after torch.compile.

    Raises:
        CommandError: a package or the text is missing; the picture cannot be written.
    """
    needed = ("torch", "transformers", "matplotlib", "rich")
    if missing := absent(*needed):
        raise CommandError(f"needs {', '.join(missing)}: {install_command(*missing)}")
    data = _read_text(text)

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
        figures = measure.measure(
            data,
            new_tokens,
            measure.QUICK if quick else measure.FULL,
            compiled,
            lambda label, fraction: bar.update(task, description=label, completed=fraction),
        )
        try:
            picture.draw(figures, out)
        except OSError as error:
            raise CommandError(f"cannot write {out}: {error.strerror or error}") from error
        bar.update(task, description="done", completed=1.0)
    rich.print(*show.tables(figures), sep="\n\n")
    print(_NOTES, *([] if compiled else [_COMPILED]), f"As a picture: {out}", sep="\n")


def _read_text(text: Path | None) -> bytes:
    if text is None:
        return (importlib.resources.files(__package__) / DEFAULT_TEXT).read_bytes()
    try:
        with text.open("rb") as file:
            data = file.read(measure.FULL.context)
    except OSError as error:
        raise CommandError(f"cannot read {text}: {error.strerror or error}") from error
    if len(data) < 2:
        raise CommandError(f"{text} is too short: 2 bytes at least")
    return data
