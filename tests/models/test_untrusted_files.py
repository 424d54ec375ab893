"""Configurations in files that nobody vouches for: refused in a moment, or read."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

import posenc_native as pn
from posenc_native.core.calls.errors import fault_of
from posenc_native.models import files

LLAMA = '"model_type": "llama", "head_dim": 64, "rope_theta": 10000.0'


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "JSON"),
        (b"", "JSON"),
        (b"\xff\xfe{}", "UTF-8 text"),
        (f'{{{LLAMA}, "deep": {nested(1_000_000)}}}', "JSON of at most 100 levels"),
        (f'{{{LLAMA}, "deep": {nested(files.MOST_LEVELS)}}}', "JSON of at most 100 levels"),
        ('{"text_config":' * 900 + "{}" + "}" * 900, "JSON of at most 100 levels"),
        (f'{{{LLAMA}, "rope_theta": 500000.0}}', "each name once"),
        (f'{{{LLAMA}, "rope_scaling": {{"factor": 2, "factor": 4}}}}', "each name once"),
        (f'{{{LLAMA}, "digits": {"9" * 5000}}}', "numbers of at most 4300 digits"),
    ],
    ids=lambda value: repr(value)[:40],
)
@pytest.mark.parametrize("function", [pn.Rotary.from_config, pn.explain, pn.rotary.nope_layers])
def test_what_is_refused(function, content, expected, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r": config: expected .+, got .+") as error:
        function(path)
    assert fault_of(error.value).expected == expected
    assert len(str(error.value)) < 300


def test_a_file_without_an_end_is_not_read_to_it(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # takes no room on the disk
    endless = Path("/dev/zero")
    tracemalloc.start()
    try:
        for each in (path, tmp_path, *[endless] * endless.exists()):
            with pytest.raises(ValueError, match="a file of at most 16777216 bytes, got a longer"):
                pn.explain(each)
        assert tracemalloc.get_traced_memory()[1] < 3 * files.MOST_BYTES
    finally:
        tracemalloc.stop()


def test_what_is_read(tmp_path):
    path = tmp_path / "config.json"
    wanted = pn.Rotary.from_config(json.loads(f"{{{LLAMA}}}"))
    for more in (
        f'"deep": {nested(files.MOST_LEVELS - 1)}',
        '"rope_theta": 10000.0, "rope_theta": 1e4',  # twice, and the same
        '"time_step_limit": [0.0, Infinity], "other": NaN',  # as published files have it
    ):
        path.write_text(f"{{{LLAMA}, {more}}}", encoding="utf-8")
        assert pn.Rotary.from_config(path) == wanted
    text = f"{{{LLAMA}}}"
    path.write_text(text + " " * (files.MOST_BYTES - len(text)), encoding="utf-8")
    assert pn.Rotary.from_config(path) == wanted


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused_where_they_are_used(value, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(f'{{"model_type": "llama", "head_dim": 64, "rope_theta": {value}}}', "utf-8")
    with pytest.raises(ValueError, match=r"config\['rope_theta'\]: expected a finite number"):
        pn.Rotary.from_config(path)
