"""README states what is recorded. Its table and pictures: tests/benchmarks/test_records.py."""

import json
import re

import pytest
from places import ROOT

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def text():
    return " ".join(README.read_text(encoding="utf-8").split())


def test_the_losses_are_those_of_the_example(text):
    recorded = json.loads((ROOT / "examples/results/far_positions.json").read_text())
    at = {offset: i for i, offset in enumerate(recorded["offsets"])}
    exact, single = recorded["losses"]["exact"], recorded["losses"]["float32"]
    rounded = recorded["losses"]["bfloat16"]
    found = re.search(
        r"loss up to position 1 million \(float32 (\S+), exact (\S+)\), and adds (\S+) at "
        r"4 million and (\S+) at 16 million\. .* cast to bfloat16 does it fail "
        r"early, from (\d+) on\. .* the loss is still (\S+) at 64 million\.",
        text,
    )
    assert found
    assert found[1] == f"{single[at[2**20]]:.4f}"
    assert found[2] == f"{exact[at[0]]:.4f}"
    assert found[3] == f"{single[at[2**22]] - exact[at[2**22]]:.3f}"
    assert found[4] == f"{single[at[2**24]] - exact[at[2**24]]:.2f}"
    assert found[6] == f"{exact[at[2**26]]:.4f}"
    # It fails where the loss is half a nat above, and at no position before.
    fails = [offset for offset, i in at.items() if rounded[i] > exact[i] + 0.5]
    assert min(fails) == int(found[5])
    assert all(abs(single[i] - exact[i]) < 1e-4 for offset, i in at.items() if offset <= 2**20)


def test_the_error_is_below_what_it_says(text):
    figures = json.loads((ROOT / "benchmarks/results/amd-epyc-2-cores.json").read_text())
    claimed = float(re.search(r"off by less than (\S+) up to position 2\^38", text)[1])
    ours = [row["error"] for row in figures["accuracy"] if row["peer"] == "posenc_native"]
    assert max(ours) < claimed
