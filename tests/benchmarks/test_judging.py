"""Goals and comparisons: like is compared with like, and verdicts follow from recorded times."""

import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

from recorded import case, figures, left_out, ours, row, yardstick

from benchmarks.cases.goals import RULES
from benchmarks.figures import judging, records
from benchmarks.figures.judging import AtLeast, AtMost, Gain, Rule

A, B = row("a", "fresh", 4.0), row("b", "out=", 2.0)


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        # The best of the same mode, even if another mode has a faster one.
        (ours("fresh"), [A, B], ("a", 4, True)),
        (ours("out="), [A, B, row("c", "out=", 3.0)], ("b", 2, True)),
        (ours("out="), [row("d", "fresh", 0.5), B], ("b", 2, True)),
        # Where no peer has the mode, the best of any.
        (ours("in place"), [A, B], ("b", 2, False)),
        (ours("out="), [A], ("a", 4, False)),
        # What did not run is no peer, nor is a yardstick.
        (ours("in place"), [left_out("c", "in place"), A], ("a", 4, False)),
        (ours("fresh"), [yardstick("loop", "fresh", 0.1), A], ("a", 4, True)),
        (ours("fresh"), [yardstick("loop", "fresh", 0.1)], None),
        # A peer is one of the peers in its mode.
        (A, [B], ("a", 1, True)),
        (A, [row("c", "fresh", 2.0)], ("c", 0.5, True)),
    ],
)
def test_rows_are_compared_in_their_own_mode(own, others, expected):
    best = judging.best_peer(case("a case", own, *others), own)
    found = best and (best["contestant"], pytest.approx(best["times_as_fast"]), best["same_mode"])
    assert found == expected


PEERS = [
    A,
    B,
    yardstick("loop", "in place", 0.8),
    yardstick("loop", "out=", 1.5),
    yardstick("neg", "fresh", 0.4),
]


@pytest.mark.parametrize(
    ("own", "goal", "more", "expected"),
    [
        (ours("out="), AtMost(2.5), [], (2, True, "")),
        (ours("out="), AtMost(1.5), [], (2, False, "")),
        # Another bound with AVX2 alone.
        (ours("out="), AtMost(2.5, avx2=1.9), [], (2, True, "")),
        (ours("in place"), AtMost(2.6, of="neg"), [], (2.5, True, "")),
        (ours("in place"), AtMost(2.4, of="neg"), [], (2.5, False, "")),
        (ours("in place"), AtMost(2.4, of="nobody"), [], None),
        (ours("fresh"), AtLeast(5.0), [], (4, False, "")),
        (ours("out="), AtLeast(2.0), [], (2, True, "")),
        (ours("in place"), AtLeast(2.0), [], (2, True, "out=")),
        # A yardstick in the same mode, or none.
        (ours("in place"), AtLeast(1.0, of="loop"), [], (0.8, False, "")),
        (ours("out="), AtLeast(1.0, of="loop"), [], (1.5, True, "")),
        (ours("fresh"), AtLeast(1.0, of="loop"), [], None),
        (ours("in place"), AtLeast(3.0, of="a"), [], (4, True, "fresh")),
        (ours("in place"), AtLeast(3.0, of="nobody"), [], None),
        # Rows that were left out leave open what only they could decide: in their mode.
        (ours("fresh"), AtLeast(3.0), [left_out("c", "fresh")], (4, None, "c left out")),
        (ours("fresh"), AtLeast(5.0), [left_out("c", "fresh")], (4, False, "")),
        (ours("out="), AtLeast(2.0), [left_out("c", "fresh")], (2, True, "")),
        (ours("in place"), AtLeast(2.0), [left_out("c", "fresh")], (2, None, "c left out")),
        (ours("fresh"), AtLeast(3.0, of="a"), [left_out("c", "fresh")], (4, True, "")),
    ],
)  # fmt: skip
def test_goals_have_verdicts(own, goal, more, expected):
    judged = judging.judged_case(
        case("a case", own, *PEERS, *more), [Rule("a case", None, (goal,))]
    )
    goals = judged["rows"][0].get("goals", [])
    found = [(pytest.approx(g["figure"]), g["met"], g["remark"]) for g in goals]
    assert found == ([expected] if expected else [])


def test_a_bound_for_avx2_holds_there_alone():
    rules = [Rule("a case", "out=", (AtMost(1.5, avx2=2.1),))]
    verdicts = {}
    for isa in ("AVX-512", "AVX2", "NEON"):
        (goal,) = judging.judged_case(case("a case", ours("out=")), rules, isa)["rows"][0]["goals"]
        verdicts[isa] = goal["goal"], goal["met"], pytest.approx(goal["short"])
    assert verdicts == {
        "AVX-512": ("at most 1.5 x copy", False, 2 / 1.5),
        "AVX2": ("at most 2.1 x copy", True, 2 / 2.1),
        "NEON": ("at most 1.5 x copy", False, 2 / 1.5),
    }


@pytest.mark.parametrize(
    ("gains", "goal", "expected"),
    [
        (1.8, 1.7, (1.5, False, "")),
        (1.8, 1.4, (1.5, True, "")),
        (1.2, 1.7, (1.5, None, "copy gains 1.20")),
    ],
)
def test_a_second_thread_is_asked_for_what_a_copy_gains(gains, goal, expected):
    alone = ours("in place", 1.5, "apply, 1 thread")
    of_another_mode = ours("out=", 9.0, "apply, 1 thread")
    two = case("a case", ours("in place"), alone, of_another_mode, threads=2, gains=gains)
    judged = judging.judged_case(two, [Rule("", "in place", (Gain(goal),), "^apply$")])
    (verdict,) = judged["rows"][0]["goals"]
    assert (pytest.approx(verdict["figure"]), verdict["met"], verdict["remark"]) == expected
    assert "goals" not in judged["rows"][1]


def test_rules_are_for_rows_of_ours_by_name_mode_and_size():
    rules = [
        Rule("^a .*1 thread$", "out=", (AtMost(9.0),), "^app"),
        Rule("a case", "out=", (AtMost(8.0),), least_bytes=(1 << 20) + 1),
        Rule("^another", None, (AtMost(7.0),)),
    ]
    rows = [ours("out="), ours("fresh"), ours("out=", name="our"), row("apple", "out=", 1.0)]
    judged = judging.judged_case(case("a case", *rows), rules)
    assert [[g["goal"] for g in r.get("goals", [])] for r in judged["rows"]] == [
        ["at most 9 x copy"], [], [], [],
    ]  # fmt: skip


def test_a_recorded_run_follows_the_goals_of_today():
    run = figures(case("a case", ours("out=")))
    for bound, met in ((2.5, True), (1.5, False)):
        shown = judging.judged(run, [Rule("", None, (AtMost(bound),))])
        (entry,) = judging.all_goals(shown["cases"])
        assert entry[2]["met"] is met
    assert "goals" not in run["cases"][0]["rows"][0]
    quick = judging.judged({**run, "quick": True}, [Rule("", None, (AtMost(1.5),))])
    assert not [*judging.all_goals(quick["cases"])]


def test_what_is_missed_furthest_comes_first():
    run = case("a case", ours("out="), ours("fresh", 2.0), row("a", "fresh", 3.0))
    rules = [Rule("", None, (AtMost(1.5),)), Rule("", "fresh", (AtLeast(6.0), AtLeast(1.5)))]
    tally = judging.tally(judging.all_goals([judging.judged_case(run, rules)]))
    # Short by factors of 6 / 1.5, 4 / 1.5 and 2 / 1.5.
    missed = [(entry[1]["mode"], entry[2]["goal"]) for entry in tally.missed]
    assert missed == [
        ("fresh", "6 x as fast as the best peer"), ("fresh", "at most 1.5 x copy"),
        ("out=", "at most 1.5 x copy"),
    ]  # fmt: skip
    assert (tally.met, tally.unjudged) == (1, 0)


@pytest.mark.parametrize(
    ("target", "words"),
    [("AVX3_ZEN4", "AVX-512"), ("AVX3", "AVX-512"), ("AVX2", "AVX2"), ("NEON_BF16", "NEON")],
)
def test_targets_have_the_names_of_processors(target, words):
    assert judging.instructions(target) == words


RECORDED = records.load(records.RESULTS / "amd-epyc-2-cores.json")


def test_every_rule_is_for_something_that_is_recorded():
    rows = [(run, one) for run in RECORDED["cases"] for one in judging.timed(run) if one["ours"]]
    for rule in RULES:
        assert any(rule.holds(run, one) for run, one in rows), rule


# What each of these is asked, on one thread; of the rest a row has no more than one of a kind.
ASKED = {
    ("torch float32, half, 1 thread", "in place"): "at most 1.15 x in-place scale",
    ("torch float32, half, qkv, 1 thread", "out="): "at most 1.2 x copy",
    ("torch float16, interleaved, 1 thread", "in place"): "at most 1.3 x in-place scale",
    ("torch bfloat16, half, bshd, 1 thread", "out="): "at most 1.35 x copy",
    ("NumPy float32, half, 1 thread", "out="): "at most 1.3 x copy",
}


def test_rotations_are_asked_for_their_multiple_of_the_limit():
    shown = judging.judged(RECORDED, RULES)
    found = {}
    for run, one, goal in judging.all_goals(shown["cases"]):
        if goal["goal"].startswith("at most") and run["case"].startswith("rotary, q 32"):
            end = re.sub(".* x 128, ", "", run["case"])
            key = (end, one["mode"])
            assert key not in found, "two bounds of one row"
            found[key] = goal["goal"]
    assert ASKED.items() <= found.items()


def test_no_row_is_compared_across_modes_where_a_peer_has_its_own():
    shown = judging.judged(RECORDED, RULES)
    for run in shown["cases"]:
        modes = {r["mode"] for r in judging.timed(run) if not (r["ours"] or r["yardstick"])}
        for one in judging.timed(run):
            best = one.get("best_peer")
            assert (best is None) == (not modes)
            assert best is None or best["same_mode"] == (one["mode"] in modes)
