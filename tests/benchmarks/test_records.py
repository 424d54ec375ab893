"""Files of results: what they are called, what is merged into them, the page that sums them up."""

import json
import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

from benchmarks.figures import records, report, summary, tables
from benchmarks.figures.judging import AtLeast, AtMost, Rule

BEST = "AVX3_ZEN4, AVX3, AVX2, SSE4"


def machine(used="AVX3_ZEN4", targets=BEST, **more):
    return {
        "cpu": "Some(R) CPU 9 @ 2 GHz", "cores": 2, "commit": "c" * 40,
        "date": "2026-01-02T03:04:05",
        "caches": {"L1": 32768}, "system": "Linux", "python": "3.11", "compiler": "c++",
        "load_average": 0.0, "packages": {"numpy": "2"},
        "posenc_native": {
            "backend": "native", "torch operators": "built", "SIMD targets": targets,
            "SIMD target in use": used,
        },
        **more,
    }  # fmt: skip


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


def row(name, mode, milliseconds, **more):
    return {
        "contestant": name, "mode": mode, "seconds": milliseconds * 1e-3, "samples": 3,
        "quartiles": [milliseconds * 1e-3] * 2, "limit": "copy", "times_limit": milliseconds / 0.5,
        "gigabytes_per_second": 2.0, "ours": False, "yardstick": False, **more,
    }  # fmt: skip


def case(name, *rows, threads=1, gains=None):
    limit = {"seconds": 0.5e-3, "gigabytes_per_second": 4.0, "variant": "plain"}
    if gains:
        limit["times_one_thread"] = gains
    return {
        "case": f"{name}, {threads} thread{'s' * (threads > 1)}", "threads": threads,
        "bytes": 1 << 20, "buffer_sets": 2, "cores_used_by_others": 0.0,
        "limits": {"copy": limit}, "rows": list(rows),
    }  # fmt: skip


def ours(mode, milliseconds, name="apply"):
    return row(name, mode, milliseconds, ours=True)


def figures(*cases, rounds=31, **more):
    return {"machine": machine(**more), "quick": False, "rounds": rounds, "cases": list(cases)}


def times(of):
    return {c["case"]: c["rows"][0]["seconds"] for c in of["cases"]}


def test_cases_that_ran_take_the_places_of_those_recorded():
    before = figures(*(case(name, ours("out=", 1.0)) for name in ("a", "b", "c")))
    before["accuracy"] = ["of before"]
    again = figures(
        case("d", ours("out=", 4.0)), case("b", ours("out=", 2.0)),
        rounds=7, date="2026-02-03T00:00:00", commit="d" * 40 + " and changes",
    )  # fmt: skip
    both = records.merged(before, again)
    assert [*times(both).items()] == [
        ("a, 1 thread", 1e-3), ("b, 1 thread", 2e-3), ("c, 1 thread", 1e-3), ("d, 1 thread", 4e-3),
    ]  # fmt: skip
    assert both["accuracy"] == ["of before"]
    assert both["machine"] == again["machine"]
    assert records.origins_text(both).splitlines() == [
        f"recorded 2026-01-02, commit {'c' * 12}, 31 rounds: 2 cases, accuracy",
        f"recorded 2026-02-03, commit {'d' * 12} and changes, 7 rounds: 2 cases",
    ]
    # A third run knows when the first two were; the first is as it was.
    third = records.merged(both, figures(case("c", ours("out=", 3.0)), date="2026-03-04T00:00:00"))
    days = [line.split()[1] for line in records.origins_text(third).splitlines()]
    assert days == ["2026-01-02,", "2026-02-03,", "2026-03-04,"]
    assert times(before)["b, 1 thread"] == 1e-3
    assert records.merged(None, again) == again


@pytest.mark.parametrize("other", [{"cpu": "Another"}, {"cores": 4}, {"used": "AVX2"}])
def test_another_machine_is_not_merged(other):
    with pytest.raises(ValueError, match="not the same machine"):
        records.merged(figures(case("a", ours("out=", 1.0))), figures(**other))


def test_a_quick_run_is_not_merged_into_a_real_one():
    with pytest.raises(ValueError, match="not the same machine"):
        records.merged(figures(), {**figures(), "quick": True})


def test_columns_are_the_files_of_a_processor(tmp_path):
    assert records.recorded_columns("some-9-2-cores", tmp_path) == {"AVX-512": None, "AVX2": None}
    for used, name in (("AVX3_ZEN4", "some-9-2-cores"), ("AVX2", "some-9-2-cores-avx2")):
        records.write(tmp_path / f"{name}.json", figures(used=used))
        columns = records.recorded_columns("some-9-2-cores", tmp_path)
        assert columns[report.judging.instructions(used)] == figures(used=used)
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


def test_the_page_says_where_we_are_ahead_and_where_not():
    own = run()
    lines = summary.page(own, {"AVX-512": own, "AVX2": None}, RULES).splitlines()
    assert lines[0] == "SUMMARY: Some(R) CPU 9 @ 2 GHz, 2 cores"
    assert lines[1] == "AVX-512, the best instructions of this processor"
    assert lines[2] == "AVX2: not recorded yet"
    # The median and worst multiple, rows ahead, the range of factors; no peer is in place.
    found = {line[:27].strip(): line[27:].split("not recorded")[0] for line in lines}
    cells = {name: re.split(r" {2,}", text.strip()) for name, text in found.items()}
    assert cells["rotary            out="] == ["1.50 (2.00)", "1/2", "0.90 to 1.80"]
    assert cells["rotary            fresh"] == ["2.00 (2.00)", "1/1", "4.0 to 4.0"]
    assert cells["rotary            in place"] == ["2.00 (2.00)", "0/1", "0.90 to 0.90 *"]
    assert cells["relative          fresh"] == ["4.00 (4.00)"]
    text = "\n".join(lines)
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
    lines = summary.page(own, {"AVX-512": own, "AVX2": other}, RULES).splitlines()
    (fresh,) = (line for line in lines if line.startswith("rotary            fresh"))
    assert re.split(r" {2,}", fresh)[2:] == [
        "2.00 (2.00)", "1/1", "4.0 to 4.0", "2.40 (2.40)", "1/1", "3.3 to 3.3",
    ]  # fmt: skip
    assert not any(line.startswith("relative") for line in lines)
    assert "AVX2 instructions on a processor with AVX-512" in lines[2]
    assert "AVX2, goals: 1 met, 3 missed, 0 not judged" in lines


def test_the_page_of_what_is_recorded_is_read_in_a_minute():
    from benchmarks.cases.goals import RULES as all_rules

    recorded = records.load(records.RESULTS / "amd-epyc-2-cores.json")
    for columns in (
        {"AVX-512": recorded, "AVX2": None},
        {"AVX-512": recorded, "AVX2": recorded},
    ):
        lines = summary.page(recorded, columns, all_rules).splitlines()
        assert 30 < len(lines) <= 52
    assert all(len(line) < 200 for line in lines)


def test_a_text_is_written_again_by_the_goals_of_today(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(run()), encoding="utf-8")
    records.main([str(path)])
    text = path.with_suffix(".txt").read_text(encoding="utf-8")
    assert capsys.readouterr().out == f"{path.with_suffix('.txt')}\n"
    order = ["Some(R) CPU", "recorded 2026-01-02", "rotary, small, 1 thread:", "goals:", "SUMMARY"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_readme_has_what_is_recorded():
    tables.main([])  # exits where it has something else
    recorded = records.recorded_columns(tables.PROCESSOR)["AVX-512"]
    for line in tables.LINES:
        assert tables._row(recorded, line), f"not recorded: {line}"


def test_tables_say_what_is_not_recorded():
    line = tables.LINES[1]
    rows = ours(line.mode, 1.0, line.row), PEER, STEADY
    half = figures(case(line.case, *rows))
    text = tables.table({"AVX-512": None, "AVX2": half})
    assert text.count("not recorded yet") == 2 * len(tables.LINES) - 1
    (found,) = (row for row in text.splitlines() if "1.00 ms" in row)
    cells = [cell.strip() for cell in found.strip("|").split("|")]
    assert cells[1:] == ["out=", "not recorded yet", "1.00 ms, 2.00 x copy", "900 µs, library"]
