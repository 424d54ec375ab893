"""What a run of the benchmarks says: ratios, tables, the bar. No time is judged."""

import io

import pytest

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

from benchmarks.clock.harness import Case, Contestant, Result, Skipped
from benchmarks.clock.progress import Progress
from benchmarks.figures import judging, report


class Buffers:
    nbytes = 10**6
    work = out = 0


def contestant(name, mode="fresh", **options):
    return Contestant(name, mode, lambda b: None, "copy", **options)


def finished_case():
    """Rows of known times, in milliseconds; the limit takes half a millisecond."""
    times = {
        contestant("apply", "in place", ours=True): 1.0,
        contestant("apply", "fresh", ours=True): 3.0,
        contestant("copy_", "out=", yardstick=True): 0.5,
        contestant("library A"): 8.0,
        contestant("library B", "out="): 4.0,
    }
    missing = Skipped("library C", "fresh", "No module named 'c'")
    left_out = Skipped("library D", "fresh", "torch.compile is left out", left_out=True)
    case = Case("rotary, small, 1 thread", 1, [Buffers()], [*times, missing, left_out])
    result = Result(case, [(row, [ms * 1e-3] * 3) for row, ms in times.items()])
    result.limit_samples["copy"] = {"memcpy": [0.5e-3] * 3, "slow": [0.7e-3] * 3}
    return report.as_json(result)


GOALS = (judging.Rule("^rotary", "in place", (judging.AtMost(2.5), judging.AtLeast(8.0))),)


def judged_case():
    return judging.judged_case(finished_case(), GOALS)


def test_a_file_has_figures_and_no_verdicts():
    case = finished_case()
    assert [row.get("times_limit") for row in case["rows"][:3]] == pytest.approx([2, 6, 1])
    assert case["rows"][0]["gigabytes_per_second"] == pytest.approx(2.0)
    assert [row.get("left_out") for row in case["rows"][-2:]] == [None, True]
    assert not any({"goals", "best_peer"} & row.keys() for row in case["rows"])


def test_the_text_has_every_figure():
    lines = report.as_text(judged_case()).splitlines()
    for peer in ("library A, fresh", "library B, out="):
        assert any(line.startswith(f"  best peer: {peer}") for line in lines)
    mine, fresh = (line for line in lines if line.startswith("  > apply"))
    for figure in ("1.00 ms", "2.0 GB/s", "2.00 x copy", "4.0 x as fast (out=)"):
        assert figure in mine
    assert fresh.endswith("2.7 x as fast")  # as a peer in the same mode, so nothing more is said
    (yardstick,) = (line for line in lines if "copy_" in line)
    assert yardstick.startswith("  ~ ")
    assert "skipped: No module named 'c'" in lines[-2]


def test_goals_are_listed_where_they_are_missed():
    case = judged_case()
    (missed,) = (line for line in report.as_text(case).splitlines() if "not 8 x as fast" in line)
    assert missed.split()[0] == "4.00,"
    first, second = report.goals_text([case]).splitlines()
    assert first == "goals: 1 met, 1 missed, 0 not judged"
    assert "8 x as fast as the best peer (out=): 4.00, apply, in place; rotary, small" in second


def test_a_case_without_peers_has_no_best_one():
    row = contestant("apply", "in place", ours=True)
    result = Result(Case("alone", 1, [Buffers()], [row]), [(row, [1e-3])])
    result.limit_samples["copy"] = {"memcpy": [1e-3]}
    case = judging.judged_case(report.as_json(result))
    assert "best_peer" not in case["rows"][0]
    assert "as fast" not in report.as_text(case)


@pytest.mark.parametrize("digits", [2, 3])
def test_durations_have_so_many_digits(digits):
    seconds = (4e-7, 1.23e-6, 9.6e-6, 2.5e-3, 0.1, 12.0)
    expected = {
        2: ["400 ns", "1.2 µs", "9.6 µs", "2.5 ms", "100 ms", "12 s "],
        3: ["400 ns", "1.23 µs", "9.60 µs", "2.50 ms", "100 ms", "12.0 s "],
    }
    assert [report.duration(time, digits) for time in seconds] == expected[digits]


ERRORS = [
    {"peer": peer, "quantity": "rotary", "position": position, "error": error, "skipped": reason}
    for position in (4096, 1 << 24)
    for peer, error, reason in (
        ("posenc_native", 6e-8, None),
        ("library A", position * 6e-8, None),
        ("library C", None, "No module named 'c'"),
    )
]


def test_errors_are_a_table_of_peers_and_positions():
    text = report.accuracy_text(ERRORS)
    (heading,) = (line for line in text.splitlines() if line.startswith("  rotary"))
    assert heading.split() == ["rotary", "4,096", "16,777,216"]
    assert [line.split()[-2:] for line in text.splitlines() if "library A" in line] == [
        ["2.5e-04", "1.0e+00"]
    ]
    assert "skipped: No module named 'c'" in text


def test_costs_of_dtensors_are_judged_where_nothing_is_gathered():
    def cost(operation, cut, processes, over, collectives=0):
        return {
            "operation": operation, "cut": cut, "processes": processes, "local": 1e-5,
            "distributed": 1e-5 + over, "of_torch": 2e-5, "collectives": collectives,
        }  # fmt: skip

    rows = [cost("rotate", "b", n, 1e-4) for n in (1, 2)]
    rows += [cost("rotate", "d", 1, 9e-4), cost("rotate", "d", 2, 9e-4, 2)]
    text = report.many_devices_text(rows)
    goal = "goal, at most 150 us over local on one process, where nothing is gathered: met"
    assert text.splitlines()[-1].endswith(goal)
    (line,) = (line for line in text.splitlines() if "rotate, d cut" in line)
    assert line.split()[-1] == "2"
    slow = report.many_devices_text([*rows, cost("norm", "b", 1, 2e-4), cost("norm", "b", 2, 2e-4)])
    assert slow.splitlines()[-1].endswith("missed by norm, b cut: 200")


def test_progress_is_quiet_without_a_terminal(capsys):
    with Progress(3) as progress:
        progress.begin("a case")
        progress.advance()
        progress.say("what came out")
    assert capsys.readouterr().out == "what came out\n"


def test_progress_names_the_case_and_the_rest():
    console = pytest.importorskip("rich.console")
    shown = io.StringIO()
    with Progress(4, console.Console(file=shown, force_terminal=True, width=100)) as progress:
        progress.begin("rotary, a case")
        progress.advance()
        progress.say("what came out [1x2]")
        progress.begin("another case")
    text = shown.getvalue()
    for words in ("rotary, a case", "0:00:0", "25%", "what came out [1x2]\n", "another case"):
        assert words in text
