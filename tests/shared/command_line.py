"""The command line, started and asked for what it says."""

from __future__ import annotations

import argparse
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


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err.rstrip("\n")


def commands(parser: Any = None) -> Iterator[Any]:
    """Every parser: of the program, of its commands, of theirs."""
    parser = parser or cli._parser("posenc-native")
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from commands(one)
