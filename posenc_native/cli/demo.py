"""demo: a model of transformers on a text, both ways."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .options import add_output, at_least_one
from .parser import CommandError, add_command

_DESCRIPTION = """\
Reads a text through a transformers Llama (its own class, random weights from
a fixed seed, a token is a byte), once as transformers rotates queries and
keys and once after posenc_native.hf.patch. Prints a table and saves it as a
picture: how far the logits differ, whether the greedy continuation is the
same, how long rotary takes in prefill and decode, and how exact cos and sin
are. Needs posenc-native[demo]."""

_EXAMPLES = """\

--quick --tokens 4
--text book.txt -o book.png"""


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
        "--text", type=Path, metavar="FILE", help="a text to read; 4096 bytes of it"
    )
    parser.add_argument(
        "--tokens",
        type=at_least_one,
        metavar="N",
        default=32,
        help="length of the greedy continuation (default: %(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="on 256 bytes, in seconds; its times mean little"
    )
    add_output(parser, (".png",), default=Path("posenc_native_demo.png"))


def _run(options: argparse.Namespace) -> None:
    from posenc_native import demo

    try:
        demo.run(options.text, options.out, options.tokens, options.quick)
    except demo.DemoError as error:
        raise CommandError(str(error)) from error
