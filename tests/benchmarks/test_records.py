"""Files of results: what they are called, what is merged into them, pages made of them."""

import re
import shutil
import subprocess

import pytest

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

from recorded import BEST, case, figures, machine, ours, row

import benchmarks.figures.__main__ as program
from benchmarks.figures import judging, measured, readme, records, report, summary, tables
from benchmarks.figures.judging import AtLeast, AtMost, Rule


@pytest.mark.parametrize(
    ("used", "targets", "name", "words"),
    [
        ("AVX3_ZEN4", BEST, "some-9-2-cores", "AVX-512, the best instructions of this processor"),
        ("AVX2", BEST, "some-9-2-cores-avx2", "AVX2 instructions on a processor with AVX-512"),
        ("AVX3", BEST, "some-9-2-cores-avx3", "AVX3 instructions on a processor with AVX-512"),
        ("AVX2", "AVX2, SSE4", "some-9-2-cores", "AVX2, the best instructions of this processor"),
        ("NEON", "NEON", "some-9-2-cores", "NEON, the best instructions of this processor"),
    ],
)
def test_a_file_is_named_by_processor_and_lesser_instructions(used, targets, name, words):
    described = machine(used, targets)
    assert report.machine_name(described) == name
    text = report.machine_text(described)
    assert words in text
    lesser = name != "some-9-2-cores"
    assert ("shows the instructions, not the memory system" in text) == lesser


def times(of):
    return {c["case"]: c["rows"][0]["seconds"] for c in of["cases"]}


def test_cases_that_ran_take_the_places_of_those_recorded():
    before = figures(*(case(name, ours("out=", 1.0)) for name in ("a", "b", "c")))
    before["accuracy"] = ["of before"]
    before["machine"]["packages"] = {"numpy": "1", "rare": "3"}
    again = figures(
        case("d", ours("out=", 4.0)), case("b", ours("out=", 2.0)),
        rounds=7, date="2026-02-03T00:00:00", commit="d" * 40 + " and changes",
    )  # fmt: skip
    both = records.merged(before, again)
    assert [*times(both).items()] == [
        ("a, 1 thread", 1e-3), ("b, 1 thread", 2e-3), ("c, 1 thread", 1e-3), ("d, 1 thread", 4e-3),
    ]  # fmt: skip
    assert both["accuracy"] == ["of before"]
    packages = {"numpy": "1, 2", "rare": "3"}  # this run has no package "rare"
    assert both["machine"] == {**again["machine"], "packages": packages}
    assert records.origins_text(both).splitlines() == [
        f"recorded 2026-01-02, commit {'c' * 12}, 31 rounds: 2 cases, accuracy",
        f"recorded 2026-02-03, commit {'d' * 12} and changes, 7 rounds: 2 cases",
    ]
    # A third run knows when the first two were; the first is as it was.
    third = records.merged(both, figures(case("c", ours("out=", 3.0)), date="2026-03-04T00:00:00"))
    days = [line.split()[1] for line in records.origins_text(third).splitlines()]
    assert days == ["2026-01-02,", "2026-02-03,", "2026-03-04,"]
    assert third["machine"]["packages"]["numpy"] == "1, 2"
    assert times(before)["b, 1 thread"] == 1e-3
    assert records.merged(None, again) == again


@pytest.mark.parametrize(
    "other", [{"cpu": "Another"}, {"cores": 4}, {"caches": {"L1": 49152}}, {"used": "AVX2"}]
)
def test_another_machine_is_not_merged(other):
    with pytest.raises(ValueError, match="not the same machine"):
        records.merged(figures(case("a", ours("out=", 1.0))), figures(**other))


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_results_of_another_run_are_no_changes(tmp_path, monkeypatch):
    """A record of AVX2 after one of AVX-512 is of the same sources."""
    code, results = (tmp_path / "benchmarks" / name for name in ("figures/report.py", "results/x"))
    for path in (code, results):
        path.parent.mkdir(parents=True)
        path.write_text("1")
    as_someone = ("-c", "user.name=x", "-c", "user.email=x@y")
    for command in (("init",), ("add", "."), (*as_someone, "commit", "--message", "x")):
        subprocess.run(("git", *command), cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.setattr(report, "__file__", str(code))
    for path, says in ((results, False), (code, True)):
        path.write_text("2")
        assert report.machine()["commit"].endswith(" and changes") == says


def test_a_quick_run_is_not_merged_into_a_real_one():
    with pytest.raises(ValueError, match="not the same machine"):
        records.merged(figures(), {**figures(), "quick": True})


def test_columns_are_the_files_of_a_processor(tmp_path):
    assert records.recorded_columns("some-9-2-cores", tmp_path) == {"AVX-512": None, "AVX2": None}
    for used, name in (("AVX3_ZEN4", "some-9-2-cores"), ("AVX2", "some-9-2-cores-avx2")):
        records.write(tmp_path / f"{name}.json", figures(used=used))
        columns = records.recorded_columns("some-9-2-cores", tmp_path)
        assert columns[judging.instructions(used)] == figures(used=used)
    assert [*columns] == ["AVX-512", "AVX2"]
    beside = records.columns_beside(figures(case("a", ours("out=", 1.0))), tmp_path)
    assert beside["AVX-512"]["cases"]
    assert beside["AVX2"] == figures(used="AVX2")
    neon = figures(used="NEON", targets="NEON")
    assert records.columns_beside(neon, tmp_path) == {"NEON": neon}


PEER, STEADY = row("library", "fresh", 4.0), row("library", "out=", 0.9)
RULES = (Rule("^rotary, ", None, (AtMost(1.5), AtLeast(3.0))),)


def run(factor=1.0, **more):
    """Rows whose times are multiplied by factor; and those of two threads."""
    two = (
        ours("in place", 1.0, "add"), ours("in place", 1.1, "add, 1 thread"),
        ours("out=", 0.55, "add"), ours("out=", 0.6, "add, 1 thread"),
        ours("in place", 1.0, "sum"), ours("in place", 1.9, "sum, 1 thread"),
    )  # fmt: skip
    return figures(
        case("rotary, small", ours("out=", factor), ours("fresh", factor), PEER, STEADY),
        case("rotary, large", ours("out=", 0.5 * factor), ours("in place", factor), PEER, STEADY),
        case("relative: bias", ours("fresh", 2.0 * factor)),
        case("relative: bias", *two, threads=2, gains=1.5),
        **more,
    )


def table_of(page):
    """The cells of the page's table, by family and mode."""
    lines = (re.split(r" {2,}", line.strip()) for line in page.splitlines() if line[:2] == "  ")
    return {tuple(cells[:2]): cells[2:] for cells in lines}


def test_the_page_says_where_we_are_ahead_and_where_not():
    own = run()
    text = summary.page(own, {"AVX-512": own, "AVX2": None}, RULES)
    assert text.splitlines()[:3] == [
        "SUMMARY: Some(R) CPU 9 @ 2 GHz, 2 cores",
        "AVX-512, the best instructions of this processor",
        "AVX2: not recorded yet",
    ]
    # The median and worst multiple, rows ahead, the range of factors; no peer is in place.
    cells = table_of(text)
    assert cells["rotary", "out="] == ["1.50 (2.00)", "1/2", "0.90 to 1.80", "not recorded yet"]
    assert cells["rotary", "fresh"][:3] == ["2.00 (2.00)", "1/1", "4.0 to 4.0"]
    assert cells["rotary", "in place"][:3] == ["2.00 (2.00)", "0/1", "0.90 to 0.90 *"]
    assert cells["relative", "fresh"] == ["4.00 (4.00)", "not recorded yet"]
    assert "AVX-512, goals: 2 met, 6 missed, 0 not judged" in text
    worst = "3 x 3 x as fast as the best peer: worst 0.90, apply, out=; rotary, small, 1 thread"
    assert worst in text
    assert "behind the best peer in the same mode: 1 rows\n  0.90 x apply, out=, as library" in text


def test_the_page_lists_what_gains_less_than_its_limit_with_the_cause():
    own = run()
    text = summary.page(own, {"AVX-512": own, "AVX2": None}, ())
    listed = text.partition("a second thread: rows gain 1.09 to 1.90 x, ")[2].splitlines()
    assert listed[0] == "their limits 1.50 to 1.50 x"
    (slow, full) = listed[1:3]
    assert slow.startswith("  add, in place: 1.10 x, the limit 1.50 x: not explained; relative")
    assert full.startswith("  add, out=: 1.09 x, the limit 1.50 x: both threads are at the limit")
    assert "sum" not in "".join(listed)


def test_the_page_has_a_column_of_the_same_cases_with_other_instructions():
    own, other = run(), run(1.2, used="AVX2")
    own["cases"] = own["cases"][:1]
    text = summary.page(own, {"AVX-512": own, "AVX2": other}, RULES)
    assert table_of(text)["rotary", "fresh"] == [
        "2.00 (2.00)", "1/1", "4.0 to 4.0", "2.40 (2.40)", "1/1", "3.3 to 3.3",
    ]  # fmt: skip
    assert ("relative", "fresh") not in table_of(text)
    assert "AVX2 instructions on a processor with AVX-512" in text
    assert "\nAVX2, goals: 1 met, 3 missed, 0 not judged\n" in text


def test_the_page_of_what_is_recorded_is_read_in_a_minute():
    recorded = records.load(records.RESULTS / "amd-epyc-2-cores.json")
    for other in (None, recorded):
        lines = summary.page(recorded, {"AVX-512": recorded, "AVX2": other}).splitlines()
        assert 30 < len(lines) <= 60
    assert all(len(line) < 200 for line in lines)


def test_text_and_pictures_are_made_again_by_the_goals_of_today(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "x.json"
    records.write(path, run())
    program.main([path])
    text = path.with_suffix(".txt").read_text(encoding="utf-8")
    page = text[text.index("SUMMARY") :]
    assert capsys.readouterr().out.startswith(page)
    order = ["Some(R) CPU", "recorded 2026-01-02", "rotary, small, 1 thread:", "goals:", "SUMMARY"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


# ---------------------------------------------------------------------------------------- pages


def test_every_line_of_the_table_at_a_glance_is_recorded():
    recorded = records.recorded_columns(tables.PROCESSOR)["AVX-512"]
    for line in tables.lines():
        of = tables.case_of(recorded, f"{line['case']}, 1 thread")
        assert tables.row_of(of, line["row"], line["mode"]), f"not recorded: {line}"


def test_pictures_of_readme_carry_a_digest_of_what_they_show(tmp_path, monkeypatch):
    assert readme.old_pictures() == []
    other = {"readme-speed.png": lambda: [("other", {"transformers": 2.0})]}
    monkeypatch.setattr(readme, "PICTURES", readme.PICTURES | other)
    assert readme.old_pictures() == ["readme-speed.png"]
    readme.draw(tmp_path)
    assert readme.old_pictures(tmp_path) == []


def test_a_row_of_readme_without_a_record_is_an_error():
    with pytest.raises(StopIteration):
        readme.seconds(readme.MEASUREMENTS[0], ("nobody", "fresh"))


def test_what_nobody_measured_is_an_error():
    with pytest.raises(ValueError, match="nothing is recorded of 'case of another size'"):
        measured.text("case of another size")


def glance(columns):
    """The line of days below, and the cells behind the words and the mode, by line."""
    *rows, _, days = tables.at_a_glance(columns)
    cells = [[cell.strip() for cell in text.strip("|").split("|")][2:] for text in rows]
    return days, cells[2:]


def recorded(line, *rows, used="AVX3_ZEN4", **when):
    return records.with_origins(figures(case(line["case"], *rows), used=used, **when))


def test_the_table_at_a_glance_says_what_is_not_recorded():
    _, line = tables.lines()[:2]
    half = recorded(line, ours(line["mode"], 1.0, line["row"]), PEER, STEADY, used="AVX2")
    days, cells = glance({"AVX-512": None, "AVX2": half})
    assert days == "Recorded 2026-01-02 (AVX2)."
    assert cells[1] == ["not recorded yet", "1.00 ms, 2.00 x copy", "900 µs, library"]
    assert all(of == ["not recorded yet"] * 2 + [""] for of in cells[:1] + cells[2:])


def test_a_line_has_the_day_of_most_figures_and_a_figure_of_another_day_a_mark():
    at = range(5, 8)  # lines of three cases
    parts = [(line, ours(line["mode"], 1.0, line["row"])) for line in tables.lines()[5:8]]
    both = recorded(*parts[0], STEADY)
    both = records.merged(both, recorded(*parts[1], date="2026-02-03T00:00:00"))
    both = records.merged(both, recorded(*parts[2]))
    days, cells = glance({"AVX-512": both, "AVX2": both})
    assert days == "Recorded 2026-01-02; † 2026-02-03."
    words = "1.00 ms, 2.00 x copy"
    assert [cells[i][0] for i in at] == [words, f"{words} †", words]
