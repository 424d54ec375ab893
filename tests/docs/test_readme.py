"""README states what is recorded. Its table: test_pages.py."""

import itertools
import json
import re

import pytest
from places import ROOT

for needed in ("torch", "ml_dtypes"):
    pytest.importorskip(needed, reason="requirements/test.txt has it")

from benchmarks.figures import readme, records, tables  # noqa: E402

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
        r"cast to bfloat16 with the model: .* the loss rises from position (\d+) on\. "
        r".* hold up to 1 million \(loss (\S+), exact (\S+)\), add (\S+) at 4 million and (\S+) "
        r"at 16 million\. .* the loss is still (\S+) at 64 million\.",
        text,
    )
    assert found
    # It rises where the loss is half a nat above, and at no position before.
    assert min(o for o, i in at.items() if rounded[i] > exact[i] + 0.5) == int(found[1])
    assert found[2] == f"{single[at[2**20]]:.4f}"
    assert found[3] == f"{exact[at[0]]:.4f}"
    assert found[4] == f"{single[at[2**22]] - exact[at[2**22]]:.3f}"
    assert found[5] == f"{single[at[2**24]] - exact[at[2**24]]:.2f}"
    assert found[6] == f"{exact[at[2**26]]:.4f}"
    assert all(abs(single[i] - exact[i]) < 1e-4 for offset, i in at.items() if offset <= 2**20)


@pytest.fixture(scope="module")
def figures():
    return json.loads((ROOT / "benchmarks/results/amd-epyc-2-cores.json").read_text())


def test_the_error_is_below_what_it_says(text, figures):
    claimed = float(re.search(r"exact to (\S+) at any position up to 2\^38", text)[1])
    ours = [row["error"] for row in figures["accuracy"] if row["peer"] == "posenc_native"]
    assert max(ours) < claimed
    double = float(re.search(r"float64 angle, .*? is off by (\S+) at 1 million", text)[1])
    of = {(row["peer"], row["position"]): row["error"] for row in figures["accuracy"]}
    assert f"{of['float64 angle, rounded', 2**20]:.1e}".replace(
        "e-0", "e-"
    ) == f"{double:.1e}".replace("e-0", "e-")


def test_rotations_take_as_long_as_it_says(text):
    """Every row of a rotation in the table at a glance."""
    words = r"\[(\S+) to (\S+) times as long as moving their bytes\]"
    low, high = map(float, re.search(words, text).groups())
    columns = records.recorded_columns(tables.PROCESSOR).values()
    lines = [line for line in tables.lines() if line["case"].startswith("rotary")]
    multiples = [
        tables.row_of(of, line["row"], line["mode"])["times_limit"]
        for line, figures in itertools.product(lines, columns)
        if (of := tables.case_of(figures, f"{line['case']}, 1 thread"))
    ]
    assert len(multiples) >= 16
    assert (low, high) == (round(min(multiples), 1), round(max(multiples), 1))


def test_on_a_gpu_it_says_who_is_ahead(text):
    """One token: Liger on the device, this library on the calling thread."""
    rows = {of.words: of for of in readme.MEASUREMENTS}
    for words, said in (
        ("H200, one token of 64 sequences: on the device", (1.25, 1.42)),
        ("the same: on the calling thread", (0.1, 0.125)),
    ):
        of = rows[words]
        ratio = readme.seconds(of, of.ours) / readme.seconds(of, of.others["Liger Kernel"])
        assert said[0] < ratio < said[1]
    assert "Liger's kernel takes three quarters of our device time" in text
    assert "our call returns in a ninth of its time" in text


def test_inside_vllm_it_is_as_recorded(text):
    """README and docs/howto/serving.md; `make engine-vllm ARGS=--record` renews the figures."""
    figures = json.loads((ROOT / "tests/in_vllm/figures.json").read_text())["figures"]
    page = (ROOT / "docs/howto/serving.md").read_text(encoding="utf-8")
    for name in ("test_far_positions[131072-8]: errors", "test_far_positions[1000000-8]: errors"):
        ours, theirs = (
            f"{float(x):.1e}".replace("e-0", "e-")
            for x in re.findall(r"[\d.]+e-\d+", figures[name])
        )
        assert f"| {theirs} | {ours} |" in page
    assert f"at position 1 million are off by {ours}, not {theirs}" in text
    ours, theirs = map(int, re.findall(r"\d+", figures["test_memory: peak memory of loading"]))
    assert f"| {theirs:,} MiB | {ours:,} MiB |" in page
