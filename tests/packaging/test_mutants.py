"""The planted faults of tests/mutants fit the sources; `make mutants` runs them."""

from __future__ import annotations

import os
import sys

import pytest
from places import ROOT

pytest.importorskip("tomllib", reason="runs with Python 3.11 or newer")

from mutants import __main__ as command
from mutants import mutant, switches
from mutants.plugin import function
from mutants.warm import Warm


def test_every_mutant_is_in_the_sources():
    by_file: dict[str, list[mutant.Mutant]] = {}
    for one in mutant.load():
        by_file.setdefault(one.file, []).append(one)
    for file, mutants in by_file.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert all(one.written(text) != text for one in mutants)
        if mutants[0].native:
            woven = switches.woven(text, mutants)
            assert all(f"On({one.number})" in woven for one in mutants)
            assert woven.count("\n") == text.count("\n")
        else:
            for one in mutants:
                compile(one.written(text), file, "exec")


def test_rows_of_the_matrix_are_of_mutants_and_of_tests_and_say_why_one_lives():
    rows = mutant.load_found()
    files = {one.name: one.file for one in mutant.load()}
    for row in rows.values():
        assert row.file == files[row.name]
        assert row.killed_by or row.judgment, row.name
        for killer in (row.killed_by, row.also_killed_by):
            if "::" in killer and row.by_a_test:  # it may have another name by now
                file, _, test = function(killer.partition(" (")[0]).partition("::")
                assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), row.name
        assert not row.also_killed_by.startswith(f"{row.killed_by.partition('::')[0]}::")


@pytest.mark.parametrize(
    ("before", "after", "switched"),
    [
        ("x = a + b < c;", "x = a + b <= c;", "x = (On ? (a + b <= c) : (a + b < c));"),
        ("return a * b;", "return a + b;", "return (On ? (a + b) : (a * b));"),
        ("if (a || b && c) {", "if (a && b && c) {", "if ((On ? (a && b && c) : (a || b && c))) {"),
        ("x = y ? a + 1 : b;", "x = y ? a + 2 : b;", "x = y ? (On ? (a + 2) : (a + 1)) : b;"),
        ("f(g(a), a, b);", "f(g(a), b, a);", "(On ? (f(g(a), b, a)) : (f(g(a), a, b)));"),
        ("x[i - 1] = y;", "x[i + 1] = y;", "x[(On ? (i + 1) : (i - 1))] = y;"),
        ("f(a);", "", "if (On) {  } else { f(a); }"),
        ("if (!a) return;", "if (a) return;", "if ((On ? (a) : (!a))) return;"),
        ("if (f(a, 0)) {", "if (!(f(a, 0))) {", "if ((On ? (!(f(a, 0))) : (f(a, 0)))) {"),
    ],
)
def test_what_a_switch_chooses_between(before, after, switched):
    one = mutant.Mutant("g007", "csrc/x.cc", before, after, "")
    woven = switches.woven(f"  {before}\n", [one])
    assert woven == f"  {switched}\n".replace("On", "posenc_mutants::On(7)")
    assert one.written(f"  {before}\n").strip() == after


@pytest.mark.parametrize(
    ("before", "after"),
    [("x = a +", "x = a -"), ("a + b = c;", "a - b = c;"), ("a = b + (", "a = b - (")],
)
def test_what_cannot_be_behind_a_switch_is_refused(before, after):
    with pytest.raises(ValueError, match=r"goes on|assignment"):
        switches.woven(before, [mutant.Mutant("g007", "csrc/x.cc", before, after, "")])


def runner(tmp_path, noticed_by):
    """Of tests of a second each, some of which notice the mutant; no test runs."""
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")

    class Noted(command.Runner):
        def run(self, m, tests, seconds):
            assert "x = 2" in (tmp_path / "a.py").read_text(encoding="utf-8")
            return next((test for test in tests if test in noticed_by), "")

    names = [f"tests/{file}.py::test_{i}" for file in "abc" for i in range(3)]
    return Noted(tmp_path, dict.fromkeys(names, 1.0)), names


@pytest.mark.parametrize(
    ("noticed_by", "second"),
    [
        (["tests/a.py::test_1", "tests/a.py::test_2"], mutant.ALONE),
        (["tests/a.py::test_1", "tests/c.py::test_2"], "tests/c.py::test_2"),
    ],
)
def test_a_second_killer_is_of_another_file(tmp_path, noticed_by, second):
    one = mutant.Mutant("h001", "a.py", "x = 1", "x = 2", "")
    noted, names = runner(tmp_path, noticed_by)
    row = mutant.Found("h001", "a.py", "tests/a.py::test_1", 1.0, len(names), "")
    assert noted.kill_again(one, row, names).also_killed_by == second
    assert (tmp_path / "a.py").read_text(encoding="utf-8") == "x = 1\n"
    rows = [noted.kill_again(one, row, names)]
    needed = {"tests/a.py", second.partition("::")[0]}
    assert set(command.idle_files(rows, names)) == {f"tests/{x}.py" for x in "abc"} - needed


def test_runs_of_a_warm_process_have_their_own_variables_and_end(tmp_path):
    (tmp_path / "test_a.py").write_text(
        "import os, time\n"
        "def test_a():\n"
        "    time.sleep(float(os.environ['SECONDS']))\n"
        "    assert os.environ['SECONDS'] == '0'\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    warm = Warm(sys.executable, tmp_path, environment, modules=("json", "no_such_module"))
    arguments = ["-q", "-p", "no:cacheprovider", str(tmp_path)]
    for seconds, status in (("0", 0), ("0.1", 1), ("60", None), ("0", 0)):
        timeout = 0.5 if status is None else 60
        assert warm.run(arguments, {"SECONDS": seconds}, timeout) == status
    warm.close()
