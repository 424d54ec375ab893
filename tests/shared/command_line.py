"""The command line, called in this process or started, and asked for what it says."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from posenc_native import cli

LLAMA = {
    "model_type": "llama",
    "head_dim": 64,
    "rope_theta": 500000.0,
    "num_hidden_layers": 2,
    "max_position_embeddings": 131072,
}


def run(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "posenc_native", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


def output_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints that ends well and has nothing to complain of."""
    assert cli.main(shlex.split(command)) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def refusal(command: str | list[str], status: int, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that ends with this status."""
    words = shlex.split(command) if isinstance(command, str) else command
    assert cli.main(words) == status
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1, err
    assert err.startswith("posenc-native")
    return err


def commands(parser: Any = None) -> Iterator[Any]:
    """Every parser: of the program, of its commands, of theirs."""
    parser = parser or cli.program_parser("posenc-native")
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from commands(one)
