"""Goals and comparisons: like is compared with like, and verdicts follow from recorded times."""

import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

from benchmarks.cases.goals import RULES
from benchmarks.figures import judging, records
from benchmarks.figures.judging import AtLeast, AtMost, Gain, Rule


def row(name, mode, milliseconds, **more):
    return {
        "contestant": name, "mode": mode, "seconds": milliseconds * 1e-3, "limit": "copy",
        "times_limit": milliseconds / 0.5, "ours": False, "yardstick": False, **more,
    }  # fmt: skip


def mine(mode, milliseconds=1.0, name="mine"):
    return row(name, mode, milliseconds, ours=True)


def loop(mode, milliseconds):
    return row("loop", mode, milliseconds, yardstick=True)


def left_out(name, mode):
    return {"contestant": name, "mode": mode, "skipped": "left out", "left_out": True}


def case(*rows, name="a case, 1 thread", threads=1, gains=None):
    limit = {"seconds": 0.5e-3} | ({"times_one_thread": gains} if gains else {})
    return {
        "case": name, "threads": threads, "bytes": 1 << 20, "buffer_sets": 2,
        "limits": {"copy": limit}, "rows": list(rows),
    }  # fmt: skip


A, B = row("a", "fresh", 4.0), row("b", "out=", 2.0)


@pytest.mark.parametrize(
    ("ours", "others", "expected"),
    [
        # The best of the same mode, even if another mode has a faster one.
        (mine("fresh"), [A, B], ("a", 4, True)),
        (mine("out="), [A, B, row("c", "out=", 3.0)], ("b", 2, True)),
        (mine("out="), [row("d", "fresh", 0.5), B], ("b", 2, True)),
        # Where no peer has the mode, the best of any.
        (mine("in place"), [A, B], ("b", 2, False)),
        (mine("out="), [A], ("a", 4, False)),
        # What did not run is no peer, nor is a yardstick.
        (mine("in place"), [left_out("c", "in place"), A], ("a", 4, False)),
        (mine("fresh"), [loop("fresh", 0.1), A], ("a", 4, True)),
        (mine("fresh"), [loop("fresh", 0.1)], None),
        # A peer is one of the peers in its mode.
        (A, [B], ("a", 1, True)),
        (A, [row("c", "fresh", 2.0)], ("c", 0.5, True)),
    ],
)
def test_rows_are_compared_in_their_own_mode(ours, others, expected):
    best = judging.best_peer(case(ours, *others), ours)
    found = best and (best["contestant"], pytest.approx(best["times_as_fast"]), best["same_mode"])
    assert found == expected


PEERS = [A, B, loop("in place", 0.8), loop("out=", 1.5), row("neg", "fresh", 0.4, yardstick=True)]


@pytest.mark.parametrize(
    ("ours", "goal", "more", "expected"),
    [
        (mine("out="), AtMost(2.5), [], (2, True, "")),
        (mine("out="), AtMost(1.5), [], (2, False, "")),
        # Another bound with AVX2 alone.
        (mine("out="), AtMost(2.5, avx2=1.9), [], (2, True, "")),
        (mine("in place"), AtMost(2.6, of="neg"), [], (2.5, True, "")),
        (mine("in place"), AtMost(2.4, of="neg"), [], (2.5, False, "")),
        (mine("in place"), AtMost(2.4, of="nobody"), [], None),
        (mine("fresh"), AtLeast(5.0), [], (4, False, "")),
        (mine("out="), AtLeast(2.0), [], (2, True, "")),
        (mine("in place"), AtLeast(2.0), [], (2, True, "out=")),
        # A yardstick in the same mode, or none.
        (mine("in place"), AtLeast(1.0, of="loop"), [], (0.8, False, "")),
        (mine("out="), AtLeast(1.0, of="loop"), [], (1.5, True, "")),
        (mine("fresh"), AtLeast(1.0, of="loop"), [], None),
        (mine("in place"), AtLeast(3.0, of="a"), [], (4, True, "fresh")),
        (mine("in place"), AtLeast(3.0, of="nobody"), [], None),
        # Rows that were left out leave open what only they could decide: in their mode.
        (mine("fresh"), AtLeast(3.0), [left_out("c", "fresh")], (4, None, "c left out")),
        (mine("fresh"), AtLeast(5.0), [left_out("c", "fresh")], (4, False, "")),
        (mine("out="), AtLeast(2.0), [left_out("c", "fresh")], (2, True, "")),
        (mine("in place"), AtLeast(2.0), [left_out("c", "fresh")], (2, None, "c left out")),
        (mine("fresh"), AtLeast(3.0, of="a"), [left_out("c", "fresh")], (4, True, "")),
    ],
)  # fmt: skip
def test_goals_have_verdicts(ours, goal, more, expected):
    judged = judging.judged_case(case(ours, *PEERS, *more), [Rule("a case", None, (goal,))])
    goals = judged["rows"][0].get("goals", [])
    found = [(pytest.approx(g["figure"]), g["met"], g["remark"]) for g in goals]
    assert found == ([expected] if expected else [])


def test_a_bound_for_avx2_holds_there_alone():
    rules = [Rule("a case", "out=", (AtMost(1.5, avx2=2.1),))]
    verdicts = {}
    for isa in ("AVX-512", "AVX2", "NEON"):
        (goal,) = judging.judged_case(case(mine("out=")), rules, isa)["rows"][0]["goals"]
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
    alone = mine("in place", 1.5, "mine, 1 thread")
    of_another_mode = mine("out=", 9.0, "mine, 1 thread")
    two = case(mine("in place"), alone, of_another_mode, threads=2, gains=gains)
    judged = judging.judged_case(two, [Rule("", "in place", (Gain(goal),), "^mine$")])
    (verdict,) = judged["rows"][0]["goals"]
    assert (pytest.approx(verdict["figure"]), verdict["met"], verdict["remark"]) == expected
    assert "goals" not in judged["rows"][1]


def test_rules_are_for_rows_of_ours_by_name_mode_and_size():
    rules = [
        Rule("^a .*1 thread$", "out=", (AtMost(9.0),), "^mi"),
        Rule("a case", "out=", (AtMost(8.0),), least_bytes=(1 << 20) + 1),
        Rule("^another", None, (AtMost(7.0),)),
    ]
    rows = [mine("out="), mine("fresh"), mine("out=", name="our"), row("mint", "out=", 1.0)]
    judged = judging.judged_case(case(*rows), rules)
    assert [[g["goal"] for g in r.get("goals", [])] for r in judged["rows"]] == [
        ["at most 9 x copy"], [], [], [],
    ]  # fmt: skip


def figures(*cases, target="AVX3_ZEN4", quick=False):
    used = {"SIMD target in use": target}
    return {"machine": {"posenc_native": used}, "quick": quick, "cases": list(cases)}


def test_a_recorded_run_follows_the_goals_of_today():
    run = figures(case(mine("out=")))
    for bound, met in ((2.5, True), (1.5, False)):
        shown = judging.judged(run, [Rule("", None, (AtMost(bound),))])
        (entry,) = judging.all_goals(shown["cases"])
        assert entry[2]["met"] is met
    assert "goals" not in run["cases"][0]["rows"][0]
    quick = judging.judged({**run, "quick": True}, [Rule("", None, (AtMost(1.5),))])
    assert not [*judging.all_goals(quick["cases"])]


def test_what_is_missed_furthest_comes_first():
    run = case(mine("out="), mine("fresh", 2.0), row("a", "fresh", 3.0))
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
