"""demo: a real text through a real Llama, rotated by transformers and by this library.

It prints three numbers first: how many times faster rotary and the whole model are, and how much
smaller the error is. Then it compares:

- the logits of the whole text, and the greedy continuation from its last token;
- the logits of the same text moved to a later position. Rotary encoding depends on distances only,
  so with an exact phase they stay the same;
- the time of rotary alone and of the whole model, measured in turns: medians, and a factor if the
  rounds agree on it. With --compile also the time of the compiled model;
- the same for a Qwen3, whose attention norms q and k before it rotates them: in one pass, and with
  a separate norm;
- the tokens that a head attends to if it finds a token by its distance, at positions from 4
  thousand to 16 million;
- the error of cos and sin at single positions.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import Annotated

from posenc_native.cli.kinds import Count, Text, output, reading
from posenc_native.cli.parser import CommandError
from posenc_native.cli.terminal import progress, show_text
from posenc_native.core.calls.optional import absent, install_command

from . import measure, picture, show

DEFAULT_TEXT = "how_a_sentence_keeps_its_order.txt"
DEFAULT_PICTURE = Path("posenc_native_demo.png")

_NOTES = """\
Rotary depends on distances alone, so neither logits nor attention should change
when the whole text moves. Times are medians. The variants took turns; a factor
is printed only if its 95 % interval does not contain 1. This model is narrow:
in wider models rotary is a smaller part of the time."""
_COMPILED = "--compile also times the compiled model; it takes some minutes."


def demo(
    text: Text | None = None,
    tokens: Count = 32,
    compile: bool = False,  # noqa: A002 - the name of the option
    quick: bool = False,
    out: Annotated[Path, output(".png")] = DEFAULT_PICTURE,
) -> None:
    """Run a real model on real text, rotated by transformers and by this library.

    Reads a text with a transformers Llama (its own class, random weights from a
    fixed seed, a token is a byte): once unmodified, once after
    posenc_native.hf.patch. Prints three numbers, then a table, and saves both as
    a picture: how far the logits differ, whether the greedy continuation is the
    same, how long rotary alone and the whole model take in prefill and decode,
    how much attention falls on wrong tokens far from the start, and how exact
    cos and sin are. A second table times a Qwen3, with norm and rotation in one
    pass. Takes a minute. Needs torch, transformers and matplotlib.

    Args:
        text: a text, of which 512 bytes are read
        tokens: length of the greedy continuation
        compile: also time the model compiled by torch.compile; minutes, and needs a C++ compiler
        quick: 64 bytes of text, on one thread; takes twenty seconds

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
