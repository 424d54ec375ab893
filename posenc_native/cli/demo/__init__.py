"""demo: a real text through a real Llama, rotated by transformers and by this library.

It compares:

- the logits of the whole text, and the greedy continuation from its last token;
- the logits of the same text moved to a later position. Rotary encoding depends on distances only,
  so with an exact phase they stay the same;
- the time of rotary alone and of the whole model, in turns: medians, and how many times as fast
  where the rounds agree on it. With --compile also that of the model compiled;
- the same of a Qwen3, whose attention norms q and k before it rotates them: in one pass, and with
  the norm apart;
- where a head looks that finds a token by its distance, from 4 thousand tokens to 16 million;
- the error of cos and sin at single positions.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import Annotated

from posenc_native.base.optional import absent, install_command
from posenc_native.cli.kinds import Count, Text, output, reading
from posenc_native.cli.parser import CommandError
from posenc_native.cli.terminal import progress, show_text

from . import measure, picture, show

DEFAULT_TEXT = "how_a_sentence_keeps_its_order.txt"
DEFAULT_PICTURE = Path("posenc_native_demo.png")

_NOTES = """\
Rotary depends on distances alone: neither logits nor attention should move when
the whole text does. Times are medians; the ways took turns, and "faster" stands
only where rounds agree on how much (95 %, within a factor of 1.5). This model
is narrow: in wider ones rotary is a smaller part of the whole."""
_COMPILED = "Still faster when the model is compiled? --compile tells, in some minutes."


def demo(
    text: Text | None = None,
    tokens: Count = 32,
    compile: bool = False,  # noqa: A002 - the name of the option
    quick: bool = False,
    out: Annotated[Path, output(".png")] = DEFAULT_PICTURE,
) -> None:
    """Run a real model on real text, rotated by transformers and by this library.

    Reads a text through a transformers Llama (its own class, random weights from
    a fixed seed, a token is a byte), once as transformers rotates queries and
    keys and once after posenc_native.hf.patch. Prints a table and saves it as a
    picture: how far the logits differ, whether the greedy continuation is the
    same, how long rotary alone and the whole model take in prefill and decode,
    where attention goes far from the start, and how exact cos and sin are. A
    second table has the times of a Qwen3, with norm and rotation in one pass.
    Needs torch, transformers and matplotlib.

    Args:
        text: a text to read; 1024 bytes of it
        tokens: length of the greedy continuation
        compile: time the model compiled by torch.compile, too; minutes, and needs a C++ compiler
        quick: on 128 bytes and one thread, in twenty seconds
        out: where to write: .png; a file that is there is replaced

    Examples:
        $
        $ --quick --tokens 4
        $ --compile
        $ --text book.txt -o book.png
    """
    needed = ("torch", "transformers", "matplotlib")
    if missing := absent(*needed):
        raise CommandError(f"needs {', '.join(missing)}: {install_command(*missing)}")
    data = _read_text(text)
    with progress("importing torch and transformers", 1.0) as done:
        sizes = measure.QUICK if quick else measure.FULL
        figures = measure.measure(data, tokens, sizes, compile, done)
        try:
            picture.draw(figures, out)
        except OSError as error:
            raise CommandError(f"cannot write {out}: {error.strerror or error}") from error
    show_text(f"\n{show.text_of(figures)}\n")
    print(_NOTES, *([] if compile else [_COMPILED]), f"As a picture: {out}", sep="\n")


def _read_text(text: Path | None) -> bytes:
    if text is None:
        return (importlib.resources.files(__package__) / DEFAULT_TEXT).read_bytes()
    with reading(text), text.open("rb") as file:
        data = file.read(measure.FULL.context)
    if len(data) < 2:
        raise CommandError(f"{text} is too short: 2 bytes at least")
    return data
