"""`make gpu` without a GPU: a stand-in takes CUDA's place, all else is real. No time is judged."""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from places import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

import torch_cases  # noqa: E402
from targets import NATIVE, NEEDS_NATIVE  # noqa: E402

from benchmarks.clock.harness import Case, Contestant, Skipped  # noqa: E402
from benchmarks.gpu import (  # noqa: E402
    checks,
    device,
    kit,
    record,
    report,
    rows,
    small_run,
    sources,
    steps,
    timing,
    wheels,
)
from benchmarks.gpu import times as times_program  # noqa: E402
from benchmarks.gpu.checks import FAILED, PASSED, SKIPPED, UNFINISHED  # noqa: E402
from benchmarks.gpu.stand_in import StandIn  # noqa: E402

pytestmark = NEEDS_NATIVE
THIS_PYTHON = f"cp{sys.version_info[0]}{sys.version_info[1]}"
PLATFORM = sysconfig.get_platform().replace("-", "_").replace(".", "_")


# --- Which steps a call runs, and for how long


def call(recorded, again=(), budget=steps.BUDGET):
    """A call in which every step takes all of its time, and fails if it is in `again`."""
    left = budget - steps.INSTALL.limit
    begun = []
    waiting = list(itertools.chain(*steps.to_run(recorded, dict.fromkeys(steps.NAMES, "key"))))
    while waiting:
        step, *waiting = waiting
        limit = steps.limit(step, waiting, left)
        if not limit:
            break
        assert step.least <= limit <= left
        left -= limit
        begun.append(step.name)
        status = FAILED if step.name in again else PASSED
        recorded[step.name] = {"status": status, "of": "key"}
    assert left >= 0
    return begun


def test_calls_share_the_steps_and_none_outlasts_its_budget():
    recorded = {}
    calls = [call(recorded) for _ in range(4)]
    assert [*itertools.chain(*calls)] == list(steps.NAMES)
    # The first tells whether anything works, the last of four has nothing left to do.
    assert calls[0][:2] == ["small run", "tests"]
    assert calls[3] == []
    # A machine's call ends after ten minutes.
    assert steps.BUDGET + 30 <= 600


def test_a_step_with_less_than_its_least_time_is_left_to_the_next_call():
    recorded = {}
    assert call(recorded, budget=steps.INSTALL.limit + 100) == ["small run"]
    assert call(recorded, budget=steps.INSTALL.limit + 119) == []
    assert call(recorded, budget=steps.INSTALL.limit + 120) == ["tests"]


def test_what_failed_has_another_try_after_the_others():
    recorded = {}
    assert "tests" in call(recorded, again=("tests",))
    then = [*call(recorded), *call(recorded)]
    assert then.index("tests") > then.index("racecheck")
    assert then.count("tests") == 1
    # Of other sources all of it is to run, in its order.
    changed = dict.fromkeys(steps.NAMES, "other")
    assert [step.name for step in steps.to_run(recorded, changed)[0]] == list(steps.NAMES)
    recorded["times"]["status"] = UNFINISHED
    recorded["memcheck"]["status"] = SKIPPED
    groups = steps.to_run(recorded, dict.fromkeys(steps.NAMES, "key"))
    assert [[step.name for step in group] for group in groups] == [["times"], ["memcheck"]]


def test_what_a_step_depends_on_is_there():
    for step in steps.STEPS:
        assert sources.digest(step.of)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        sources.digest(["benchmarks/gpu/no_such_file.py"])


def test_a_digest_is_of_names_and_contents(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    of_sources, of_all = ({"names": ["."], "root": tmp_path, "compiled": c} for c in (False, True))
    before = sources.digest(**of_sources), sources.digest(**of_all)
    (tmp_path / "b.so").write_bytes(b"compiled")
    assert sources.digest(**of_sources) == before[0]
    assert sources.digest(**of_all) != before[1]
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    assert sources.digest(**of_sources) != before[0]


# --- Programs under a limit


def run(tmp_path, code, limit, **more):
    return checks.run(
        [sys.executable, "-c", code], cwd=tmp_path, limit=limit, log=tmp_path / "log",
        environment=dict(os.environ) | more,
    )  # fmt: skip


def test_a_program_out_of_time_is_interrupted_and_has_a_moment_to_say_more(tmp_path):
    code = """
import time
print("begun", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("summary")
"""
    outcome = run(tmp_path, code, 4)
    # What ended in good order was still not given its time.
    assert (outcome.status, outcome.output) == (FAILED, "begun\nsummary\n")
    assert outcome.detail == "interrupted after 3 s"
    assert (tmp_path / "log").read_text() == "begun\nsummary\n"


def test_a_program_that_does_not_end_is_killed_and_its_output_kept(tmp_path):
    code = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("begun", flush=True)
time.sleep(60)
"""
    outcome = run(tmp_path, code, 4)
    assert (outcome.status, outcome.output) == (FAILED, "begun\n")
    assert outcome.detail == "killed after 4 s: it did not end when interrupted"


def test_a_program_can_be_interrupted_where_the_shell_ignores_interrupts(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome = run(tmp_path, "import time; time.sleep(60)", 4)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome.detail == "interrupted after 3 s"
    assert "KeyboardInterrupt" in outcome.output


def test_the_status_of_a_program_says_whether_more_is_to_do(tmp_path):
    for status, expected in ((0, PASSED), (checks.MORE_TO_DO, UNFINISHED), (1, FAILED)):
        assert run(tmp_path, f"import sys; sys.exit({status})", 30).status == expected
    # The log has all that ever ran, an outcome its own part.
    (tmp_path / "log").write_text("before\n")
    assert run(tmp_path, "print('after')", 30).output == "after\n"
    assert (tmp_path / "log").read_text() == "before\nafter\n"


@pytest.mark.parametrize("side_by_side", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tests_out_of_time_have_named_what_ran(side_by_side, tmp_path):
    if side_by_side:
        pytest.importorskip("xdist", reason="pytest-xdist runs tests side by side")
    files = ("nn/test_rotary", "hf/test_patch", "hf/test_compile", "hf/test_precision")
    for file in ("engines/tensors/test_cuda", *files):
        path = tmp_path / "tests" / f"{file}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def test_quick_cpu(): pass\ndef test_other(): assert False\n")
    with path.open("a") as file:
        file.write("import time\ndef test_that_hangs_cpu(): time.sleep(60)\n")
    # A plugin that is installed and broken.
    (tmp_path / "x-1.dist-info").mkdir()
    (tmp_path / "x-1.dist-info" / "entry_points.txt").write_text("[pytest11]\nx = no_such_module\n")
    environment = dict(os.environ) | checks.TEST_ENVIRONMENT | {"PYTHONPATH": str(tmp_path)}
    command = checks.test_command("cpu", tmp_path, quick=False, side_by_side=side_by_side)
    outcome = checks.judge_tests(
        checks.run(command, cwd=tmp_path, environment=environment, limit=16, log=tmp_path / "log")
    )
    assert outcome.status == FAILED
    assert outcome.output.count("PASSED") == 5, outcome.output
    assert "test_that_hangs_cpu" in outcome.output
    deselected = "" if side_by_side else ", 5 deselected"  # by each worker, which does not say so
    assert outcome.detail == f"5 passed{deselected}, interrupted after 12 s"


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (PASSED, "========= ERROR SUMMARY: 0 errors", PASSED),
        (UNFINISHED, "========= ERROR SUMMARY: 0 errors", UNFINISHED),
        (FAILED, "========= ERROR SUMMARY: 3 errors", FAILED),
        (PASSED, "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", FAILED),
        (FAILED, "small run: 1 differ\n========= ERROR SUMMARY: 0 errors", FAILED),
        (FAILED, "========= Error: Device not supported. Please refer to the documentation",
         SKIPPED),
        (FAILED, "Segmentation fault", FAILED),
        (PASSED, "1676 results", FAILED),
        (UNFINISHED, "1676 results", FAILED),
    ],
)  # fmt: skip
def test_what_compute_sanitizer_says_is_understood(status, output, expected):
    outcome = checks.judge_sanitizer(checks.Outcome(status, "", output))
    assert outcome.status == expected
    assert outcome.detail or output == "Segmentation fault"


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_the_summary_of_a_sanitizer_out_of_time_is_kept(tool, tmp_path):
    program = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"]
    command = checks.sanitizer_command(StandIn().sanitizer(), tool, program)
    outcome = checks.judge_sanitizer(
        checks.run(command, cwd=ROOT, environment=dict(os.environ), limit=4, log=tmp_path / "log")
    )
    assert outcome.status == FAILED
    assert re.fullmatch(r"\w+ SUMMARY: 0 .*, interrupted after 3 s", outcome.detail)


# --- The device and its stand-in


def test_one_file_asks_cuda():
    for path in (ROOT / "benchmarks" / "gpu").glob("*.py"):
        asks = re.findall(r"torch\.cuda|nvidia-smi|\"compute-sanitizer\"", path.read_text())
        assert bool(asks) == (path.name == "device.py"), path.name


def test_the_stand_in_can_all_that_a_device_can():
    wanted = {name for name in vars(device.Device) if not name.startswith("_")}
    for each in (device.Cuda, StandIn):
        assert {name for name in vars(each) if not name.startswith("_")} >= wanted
    assert device.named("stand-in").description().keys() == {
        "device", "compute_capability", "multiprocessors", "memory_bytes", "l2_bytes", "driver",
    }  # fmt: skip


@torch_cases.needs_cuda
def test_the_device_describes_itself_as_its_stand_in_does_cuda():
    found = device.Cuda().description()
    assert found.keys() == StandIn().description().keys()
    assert found["l2_bytes"] > 0


class Waking(StandIn):
    """A device whose clock is slow until it has worked for 100 ms."""

    def __init__(self):
        super().__init__()
        self._began = None

    @property
    def cycles_per_second(self):
        self._began = self._began or time.perf_counter()
        return 1e9 if time.perf_counter() - self._began > 0.1 else 2e8


def test_the_clock_is_calibrated_on_a_device_that_is_awake():
    # A lead by the slow clock would be a fifth of what it has to be. Sleep ends no sooner, and
    # somewhat later on a machine with other work.
    assert 0.5e9 < timing.Clock(Waking())._cycles_per_second <= 1.01e9


def queue(on, seconds):
    """Work of the device alone."""
    return lambda _: on.sleep(int(seconds * on.cycles_per_second))


def busy(seconds):
    """Work of the host, which is that of the stand-in too."""

    def run(_):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return run


def test_times_of_the_device_and_of_the_host_are_told_apart():
    on = StandIn()
    clock = timing.Clock(on)
    host = min(clock.host(queue(on, 2e-3), [None], 5) for _ in range(5))
    assert host < 1e-3
    samples = [clock.device(queue(on, 2e-3), [None], 3, 1e-3) for _ in range(5)]
    assert all(sample.seconds >= 2e-3 for sample in samples)
    assert min(clock.host(busy(1e-3), [None], 3) for _ in range(3)) >= 1e-3
    assert clock.device(busy(1e-3), [None], 3, 1e-3).seconds >= 1e-3


def test_a_sample_that_was_not_queued_in_time_is_taken_again(monkeypatch):
    clock = timing.Clock(StandIn())
    leads = []
    sleep = clock.on.sleep
    monkeypatch.setattr(clock.on, "sleep", lambda cycles: leads.append(cycles) or sleep(cycles))
    # Twice as slow as is thought: the second lead is long enough, where nothing disturbs it.
    sample = clock.device(busy(10e-3), [None], 2, 5e-3)
    assert sample.clean
    assert len(leads) >= 2
    assert leads[1] > 1.9 * leads[0]
    # Far slower than is thought: a bounded number of tries, and no claim to be clean.
    leads.clear()
    sample = clock.device(busy(10e-3), [None], 2, 0)
    assert not sample.clean
    assert len(leads) == 4


class OneNumber:
    nbytes = 4096

    def __init__(self):
        self.x, self.y = torch.ones(1024), torch.ones(1024)


def a_case(*contestants, name="a case"):
    copy = Contestant("copy", "out=", lambda b: b.y.copy_(b.x), "copy")
    return Case(name, 1, [OneNumber(), OneNumber()], [copy, *contestants])


def fails(message):
    def run(_):
        raise RuntimeError(message)

    return run


def test_figures_say_how_many_samples_were_not_clean():
    contestant = timing.Ours("ours", "fresh", lambda b: b.x * 2, "copy")
    samples = [timing.Sample(s * 1e-6, clean) for s, clean in ((1, True), (9, False), (2, True))]
    timed = timing.Timed(contestant, samples, [1e-6], 1)
    never = timing.Timed(contestant, [timing.Sample(9e-6, False)] * 2, [1e-6], 1)
    case = report.as_json(timing.Result(a_case(), [timed, never], []))
    assert [row["microseconds"] for row in case["rows"]] == pytest.approx([1.5, 9.0])
    assert [(row["samples"], row["samples_not_clean"]) for row in case["rows"]] == [(3, 1), (2, 2)]
    text = report.as_text(case | {"date": "today", "commit": None})
    assert "1 samples have time of the host in them: left out" in text
    assert "2 samples have time of the host in them: no other" in text


def test_a_peer_that_fails_is_left_out_and_one_of_ours_is_an_error():
    clock = timing.Clock(StandIn())
    gone = Skipped("gone", "fresh", "No module named 'gone'")
    case = a_case(Contestant("peer", "fresh", fails("no memory")), gone)
    result = timing.measure(clock, case, 2)
    assert [row.contestant.name for row in result.rows] == ["copy"]
    assert {row.name: row.reason for row in result.skipped} == {
        "gone": "No module named 'gone'", "peer": "RuntimeError: no memory",
    }  # fmt: skip
    with pytest.raises(RuntimeError, match="no memory"):
        timing.measure(clock, a_case(timing.Ours("ours", "fresh", fails("no memory"))), 2)


# --- The table of times


def test_a_run_that_is_cut_off_has_some_of_each_family():
    names = [name for name, _ in rows.cases(rows.Options(), "cpu")]
    families = [name.partition(",")[0] for name in names]
    assert len(set(names)) == len(names)
    assert len(set(families[: len(set(families))])) == len(set(families)) == 14
    assert families.count("prefill") == 12


@pytest.fixture
def table(monkeypatch, tmp_path):
    """The program that times, on cases of its own; `run` returns its exit status and what ran."""
    found = SimpleNamespace(ran=[], cases={}, results=tmp_path / "gpu-x.json", on=StandIn())

    def build(name):
        found.ran.append(name)
        return a_case(*found.cases[name], name=name)

    monkeypatch.setattr(rows, "cases", lambda *_: [(n, lambda n=n: build(n)) for n in found.cases])
    monkeypatch.setattr(device, "named", lambda name: found.on)

    def run(*more, of="one"):
        found.ran.clear()
        arguments = ["--device", "stand-in", "--quick", "--rounds", "1", "--of", of]
        return status(times_program, *arguments, "--results", str(found.results), *more)

    found.run = run
    return found


def status(program, *arguments):
    """What a program exits with."""
    try:
        program.main([*arguments])
    except SystemExit as exit_of_program:
        return exit_of_program.code
    return 0


def ours(name="ours"):
    return timing.Ours(name, "fresh", lambda b: b.x * 2, "copy")


def test_times_go_on_at_the_first_case_that_is_not_timed(table, capsys):
    table.cases = {"first": [ours()], "second": [ours()], "third": [ours()]}
    assert table.run("--filter", "second") == checks.MORE_TO_DO
    assert table.run("--until", "0") == checks.MORE_TO_DO
    assert table.ran == []
    assert table.run() == 0
    assert table.ran == ["first", "third"]
    assert "cases: 3 of 3 timed, 0 failed; goals missed: 0" in capsys.readouterr().out
    cases = record.load(table.results)["cases"]
    assert sorted(case["case"] for case in cases) == ["first", "second", "third"]
    text = table.results.with_suffix(".txt").read_text(encoding="utf-8")
    assert all(case["date"] in text and case["case"] in text for case in cases)
    # Nothing is left, until it is asked for again or the package is another.
    assert (table.run(), table.ran) == (0, [])
    assert (table.run("--again", "--filter", "third"), table.ran) == (0, ["third"])
    assert table.run("--filter", "third", of="other") == checks.MORE_TO_DO
    assert table.ran == ["third"]
    assert {case["of"] for case in record.load(table.results)["cases"]} == {"one", "other"}


def test_a_case_that_fails_is_reported_and_tried_again_last(table, capsys):
    table.cases = {"bad": [timing.Ours("ours", "fresh", fails("no memory"))], "good": [ours()]}
    assert table.run("--filter", "bad") == checks.MORE_TO_DO
    assert "bad" in table.run()
    assert table.ran == ["good", "bad"]
    bad = record.load(table.results)["cases"][0]
    assert (bad["case"], bad["not_run"]) == ("bad", "RuntimeError: no memory")
    assert "cases: 1 of 2 timed, 1 failed" in capsys.readouterr().out
    table.cases["bad"] = [ours()]
    assert (table.run(), table.ran) == (0, ["bad"])


class Losing(StandIn):
    """A device that is gone once `lose` was called."""

    gone = False

    def synchronize(self):
        if self.gone:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        super().synchronize()

    def lose(self, _=None):
        self.gone = True
        self.synchronize()


def test_a_lost_device_ends_the_times_and_names_the_case(table):
    table.on = Losing()
    table.cases = {
        "first": [ours()], "second": [timing.Ours("ours", "fresh", table.on.lose)],
        "third": [ours()],
    }  # fmt: skip
    said = table.run()
    assert said.startswith("times: the device is lost since second: RuntimeError: CUDA error: an")
    assert table.ran == ["first", "second"]
    recorded = [(case["case"], "rows" in case) for case in record.load(table.results)["cases"]]
    assert recorded == [("first", True), ("second", False)]
    table.on = StandIn()
    table.cases["second"] = [ours()]
    assert (table.run(), table.ran) == (0, ["third", "second"])


# --- The small run


@pytest.fixture
def few(monkeypatch):
    """The small run, on cases of its own."""
    found = SimpleNamespace(cases={}, on=StandIn())
    monkeypatch.setattr(small_run, "cases", lambda dtypes: list(found.cases.items()))
    monkeypatch.setattr(device, "named", lambda name: found.on)
    monkeypatch.setattr(torch_cases, "why_no_kernels", lambda name: None)
    monkeypatch.setattr(small_run, "_not_run", lambda kind, seen: set())
    found.run = lambda *more: status(small_run, "--device", "stand-in", *more)
    return found


def right(kind):
    return [torch.ones(3)]


def test_the_small_run_names_a_case_before_it_computes(few, capsys):
    said = []
    few.cases = {"first": lambda kind: said.append(capsys.readouterr().out) or [torch.ones(3)]}
    assert few.run() == 0
    assert said[0] == "case 1 of 1: first\n"
    assert "cases 1 to 1 of 1 are done" in capsys.readouterr().out


def test_the_small_run_goes_on_after_a_failure(few, capsys):
    calls = itertools.count()
    few.cases = {
        "fails": fails("no kernel"), "differs": lambda kind: [torch.full((3,), float(next(calls)))],
        "right": right,
    }  # fmt: skip
    said = few.run()
    assert "fails: RuntimeError: no kernel" in said
    assert "differs: result 0" in said
    out = capsys.readouterr().out
    assert "2 results of 0 operators on cpu: 2 differ or fail" in out
    assert "cases 1 to 3 of 3 are done" in out


def test_the_small_run_says_in_which_case_the_device_was_lost(few, capsys):
    few.on = Losing()
    few.cases = {"right": right, "loses": few.on.lose, "later": right}
    said = few.run()
    assert said.startswith("small run: the device is lost since case 2, loses, and later ones")
    out = capsys.readouterr().out
    assert "case 3" not in out
    outcome = checks.judge_small_run(checks.Outcome(FAILED, "exit status 1", out), 0)
    assert outcome.detail.endswith("it ended in case 2 of 3: loses, exit status 1")


def test_the_small_run_can_be_done_in_parts(few, capsys):
    few.cases = {"first": right, "second": right, "third": right}
    assert few.run("--until", "0", "--first", "1") == checks.MORE_TO_DO
    out = capsys.readouterr().out
    outcome = checks.judge_small_run(checks.Outcome(UNFINISHED, "", out), 1)
    assert outcome.done == 1
    assert few.run("--first", "1") == 0
    out = capsys.readouterr().out
    assert "first" not in out
    assert "cases 2 to 3 of 3 are done" in out


# --- Wheels and the kit


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x-1-py3-none-any", ""),
        ("x-1-py2.py3-none-any", ""),
        (f"x-1-{THIS_PYTHON}-{THIS_PYTHON}-{PLATFORM}", ""),
        (f"x-1-1build-{THIS_PYTHON}-none-{PLATFORM}", ""),
        (f"x-1-cp37-abi3-{PLATFORM}", ""),
        (f"x-1-cp27-cp27m-{PLATFORM}", "it is for cp27-cp27m, and this Python is 3."),
        (f"x-1-cp399-abi3-{PLATFORM}", "it is for cp399-abi3, and this Python is 3."),
        ("x-1-py3-none-win32", "it is for win32, and this machine is "),
        ("x-1-py3", "its name is none of a wheel"),
    ],
)
def test_which_wheels_this_python_takes(name, problem):
    found = wheels.misfit(Path(f"{name}.whl"))
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


@pytest.mark.parametrize(
    ("platform_tag", "fits"),
    [
        ("manylinux2014_x86_64", True), ("manylinux_2_27_x86_64.manylinux_2_28_x86_64", True),
        ("manylinux_2_31_x86_64", True), ("manylinux_2_32_x86_64", False),
        ("manylinux_3_0_x86_64", False), ("manylinux_2_17_aarch64", False),
        ("musllinux_1_2_x86_64", False), ("linux_x86_64", True),
    ],
)  # fmt: skip
def test_which_machines_a_wheel_is_for(platform_tag, fits, monkeypatch):
    monkeypatch.setattr(wheels.platform, "libc_ver", lambda: ("glibc", "2.31"))
    monkeypatch.setattr(wheels.sysconfig, "get_platform", lambda: "linux-x86_64")
    assert (wheels.misfit(Path(f"x-1-py3-none-{platform_tag}.whl")) == "") == fits


def make_wheel(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_what_can_be_imported_of_a_wheel_is_unpacked(tmp_path):
    wheel = make_wheel(
        tmp_path / "x-1-py3-none-any.whl",
        {"x/__init__.py": "", "x-1.dist-info/METADATA": "", "x-1.data/purelib/y.py": "",
         "x-1.data/platlib/z/z.so": "", "x-1.data/scripts/x": "", "x-1.data/headers/x.h": ""},
    )  # fmt: skip
    wheels.unpack(wheel, tmp_path / "site")
    found = [path for path in (tmp_path / "site").rglob("*") if path.is_file()]
    assert {str(path.relative_to(tmp_path / "site")) for path in found} == {
        "x/__init__.py", "x-1.dist-info/METADATA", "y.py", "z/z.so",
    }  # fmt: skip
    bad = make_wheel(tmp_path / "bad-1-py3-none-any.whl", {"../x.py": ""})
    with pytest.raises(ValueError, match=r"\.\./x\.py leads out"):
        wheels.unpack(bad, tmp_path / "site")


def test_the_newest_wheel_that_fits_is_taken(tmp_path):
    assert wheels.newest([tmp_path]) is None
    for age, name in enumerate(
        [f"0.2-{THIS_PYTHON}-{THIS_PYTHON}-{PLATFORM}",
         f"0.1-{THIS_PYTHON}-{THIS_PYTHON}-{PLATFORM}", "0.3-cp27-cp27m-win32"]
    ):  # fmt: skip
        path = tmp_path / f"posenc_native-{name}.whl"
        path.touch()
        os.utime(path, (age, 1_000_000 + age))
    assert wheels.newest([tmp_path]).name.startswith("posenc_native-0.1-")
    # An earlier folder counts for more than a newer wheel.
    (tmp_path / "kit").mkdir()
    first = tmp_path / "kit" / f"posenc_native-0.2-{THIS_PYTHON}-{THIS_PYTHON}-{PLATFORM}.whl"
    first.touch()
    os.utime(first, (1, 1))
    assert wheels.newest([tmp_path / "kit", tmp_path]) == first


def our_wheel(folder):
    """What a build would make of the package, of what is built here."""
    package = ROOT / "posenc_native"
    wheel = folder / f"posenc_native-0.1.0-{THIS_PYTHON}-{THIS_PYTHON}-{PLATFORM}.whl"
    # An editable install has its libraries elsewhere than its sources.
    assert NATIVE is not None
    libraries = Path(NATIVE.__file__).parent
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so":
                archive.write(path, path.relative_to(ROOT))
        for path in sorted(libraries.glob("*.so")):
            archive.write(path, f"posenc_native/{path.name}")
    wheels.describe(wheel, sources.digest(sources.PACKAGE), "90", "the kit's commit")
    return wheel


@pytest.fixture(scope="module")
def the_kit(tmp_path_factory):
    """What `make gpu-kit` leaves: the package, another one, Highway."""
    folder = tmp_path_factory.mktemp("gpu-kit")
    our_wheel(folder)
    make_wheel(folder / "brought_along-1-py3-none-any.whl", {"brought_along.py": "found = True\n"})
    (folder / "highway" / "hwy").mkdir(parents=True)
    (folder / "highway" / "hwy" / "highway.h").touch()
    return folder


def test_a_kit_is_read_as_it_will_be(the_kit):
    (wheel,) = the_kit.glob("posenc_native-*.whl")
    digest = sources.digest(sources.PACKAGE)
    given = (str(the_kit), "--gpus", "90", "--sources")
    assert status(kit, *given, digest) == 0
    wanted = {"sources": digest, "gpus": "90", "commit": sources.commit()}
    assert wheels.description(wheel) == wanted
    assert "sources were changed while it was built" in status(kit, *given, "x")
    wheels.describe(wheel, digest, "90", "the kit's commit")
    other = make_wheel(the_kit / "other-1-cp27-cp27m-win32.whl", {})
    try:
        said = status(kit, *given, digest)
    finally:
        other.unlink()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"cp27-cp27m, and this Python is {version}; make gpu-kit KIT_PYTHON={version}" in said


# --- The command


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python with what this one has but this project, which an editable install would hide."""
    folder = tmp_path_factory.mktemp("python")
    venv.create(folder, with_pip=False, symlinks=True)
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    # Paths alone: what .pth files over there would run, such as an editable install's, is left out.
    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (folder / "lib" / name / "site-packages" / "all.pth").write_text("\n".join(paths))
    return folder / "bin" / name


@pytest.fixture(scope="module")
def make_gpu(python):
    """Runs the command: exit status, output, and the lines of its summary."""

    def run_it(*arguments, **variables):
        command = [str(python), "-m", "benchmarks.gpu", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=ROOT, text=True, check=False, env=dict(os.environ) | variables,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        summary = done.stdout.partition("==> summary\n")[2]
        states = dict(re.findall(r"^    (\w+(?: \w+)?) +(passed|FAILED|skipped|unfinished|not run)",
                                 summary, re.M))  # fmt: skip
        return SimpleNamespace(status=done.returncode, output=done.stdout, states=states)

    return run_it


def finite_and_positive(*figures):
    return all(math.isfinite(figure) and figure > 0 for figure in figures)


KINDS = {
    "norm and rotation",
    "prefill", "decode", "packed", "backward", "sinusoidal table", "add sinusoidal",
    "bias of diagonals", "add bias", "diagonal sums", "shift", "look-ups", "windows of a grid",
    "decode with a bias",
}  # fmt: skip


@pytest.mark.slow
def test_two_dry_calls_with_a_kit_reach_every_step_and_are_merged(the_kit, tmp_path, make_gpu):
    given = ("--dry-run", "--kit", the_kit, "--out", tmp_path / "out")
    first = make_gpu(*given, "--steps", "small run,times", "--filter", "decode, 1 x")
    assert first.status == 0, first.output
    assert f"{the_kit}: 1 packages beside ours" in first.output
    assert first.states == dict.fromkeys(steps.NAMES, "not run") | {
        "install": "passed", "small run": "passed", "times": "unfinished",
    }  # fmt: skip
    assert "==> still to run: times\n" in first.output
    others = "tests, memcheck, racecheck, initcheck, synccheck"
    assert f"==> not asked for (--steps), and still to run: {others}\n" in first.output
    command = re.search(r"^==> next call: (.*)$", first.output, re.M)[1]
    assert command.startswith("python3 -m benchmarks.gpu --dry-run --kit ")
    results = tmp_path / "out" / "gpu-stand-in-quick.json"
    (before,) = record.load(results)["cases"]
    assert before["case"].startswith("decode, 1 x ")

    second = make_gpu(*given)
    assert second.status == 0, second.output
    assert second.states == dict.fromkeys(("install", *steps.NAMES), "passed")
    assert "nothing is left to run of what was asked for" in second.output
    assert "still to run" not in second.output
    # Of what the first call did nothing was done again.
    log = results.with_suffix(".log").read_text(encoding="utf-8")
    assert re.findall(r"^==> (.*), .* UTC, ", log, re.M) == [
        "install", "small run", "times",
        "install", "tests", "times", "memcheck", "racecheck", "initcheck", "synccheck",
    ]  # fmt: skip
    recorded = record.load(results)
    assert before in recorded["cases"]

    assert {path.suffix for path in results.parent.iterdir()} == {".json", ".txt", ".log"}
    assert recorded["steps"].keys() == {"install", *steps.NAMES}
    for entry in recorded["steps"].values():
        assert entry["date"].endswith("UTC")
        assert entry["commit"] == (sources.commit() or "the kit's commit")
    assert re.search(r"\d+ passed", recorded["steps"]["tests"]["detail"])
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        assert re.match(r"\w+ SUMMARY: 0 .* 0 differ", recorded["steps"][tool]["detail"])
    assert {"date", "device", "cuda", "packages", "posenc_native"} <= recorded["machine"].keys()
    assert {case["case"].partition(",")[0] for case in recorded["cases"]} == KINDS
    for case in recorded["cases"]:
        assert case["rows"][0]["contestant"] == "copy"
        assert any(row["ours"] for row in case["rows"])
        for row in case["rows"]:
            assert finite_and_positive(
                row["microseconds"], row["host_microseconds"], row["of_copy"], *row["quartiles"]
            ), row
        assert all(row["reason"] for row in case["skipped"])


def test_a_kit_for_another_python_is_refused(the_kit, tmp_path, make_gpu):
    other = make_wheel(the_kit / "other-1-cp27-cp27m-win32.whl", {})
    try:
        found = make_gpu("--dry-run", "--kit", the_kit, "--out", tmp_path)
    finally:
        other.unlink()
    assert found.status == 1
    assert found.states["install"] == "FAILED"
    assert set(found.states.values()) == {"FAILED", "not run"}
    assert f"{other}: it is for cp27-cp27m, and this Python is" in found.output
    assert "nothing else can run before install passes" in found.output


def test_a_wheel_of_other_sources_is_refused(tmp_path, make_gpu):
    wheel = our_wheel(tmp_path)
    wheels.describe(wheel, "others", "90", None)
    found = make_gpu("--dry-run", "--kit", tmp_path, "--out", tmp_path / "out")
    assert found.status == 1
    assert f"{wheel} was made of other sources than those here: make gpu-kit" in found.output


def test_what_was_built_is_not_built_again(tmp_path, make_gpu):
    (tmp_path / "no-kit").mkdir()
    given = ("--dry-run", "--build", "--kit", tmp_path / "no-kit", "--out", tmp_path)
    wheel = our_wheel(tmp_path)
    found = make_gpu(*given, "--steps", "synccheck", "--budget", 60, CUDAARCHS="90")
    assert found.status == 0, found.output
    assert f"    {wheel}\n" in found.output
    assert "building" not in found.output
    # Less is left than the step takes.
    assert "==> still to run: synccheck\n" in found.output
    # For another GPU it would be: here in too little time to begin.
    found = make_gpu(*given, "--steps", "synccheck", "--budget", 60, CUDAARCHS="80")
    assert "--budget: expected 240 s or more, got 60: install takes them" in found.output


def test_a_package_whose_kernels_do_not_run_is_not_installed(tmp_path, make_gpu):
    wheel = our_wheel(tmp_path)
    files = {}
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    del files["posenc_native/_torch_ops.so"]
    make_wheel(wheel, files)
    found = make_gpu("--dry-run", "--kit", tmp_path, "--out", tmp_path / "out")
    assert found.status == 1
    assert found.states["install"] == "FAILED"
    assert "s: the torch operators were not built\n" in found.output
    assert set(found.states.values()) == {"FAILED", "not run"}


def test_a_failing_install_is_reported(tmp_path, make_gpu):
    wheel = tmp_path / "posenc_native-0-py3-none-any.whl"
    wheel.write_bytes(b"no wheel")
    (tmp_path / "kit").mkdir()
    found = make_gpu("--dry-run", "--kit", tmp_path / "kit", "--wheel", wheel)
    assert found.status == 1
    assert found.states["install"] == "FAILED"
    assert "BadZipFile" in found.output
    assert "recorded nowhere: --quick without --out" in found.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "tests,times,tuna"], "--steps: no step tuna"),
        (["--kit", "no/folder"], "--kit: no folder no/folder; `make gpu-kit` makes one"),
        (["--wheel", "no.whl"], "--wheel: no file no.whl"),
        (["--installed", "--budget", "3"], "--budget: expected 10 s or more, got 3"),
    ],
)
def test_mistakes_of_the_command_line_are_named(arguments, said, make_gpu):
    found = make_gpu("--dry-run", *arguments)
    assert found.status != 0
    assert said in found.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs where there is no CUDA device")
def test_without_a_device_the_command_says_so(make_gpu):
    found = make_gpu("--installed")
    assert found.status == 1
    assert "has no torch that sees a CUDA device" in found.output
    assert "==>" not in found.output


def test_a_call_that_is_ended_leaves_what_there_is_and_nothing_running(the_kit, tmp_path, python):
    command = [str(python), "-m", "benchmarks.gpu", "--dry-run", "--kit", str(the_kit),
               "--out", str(tmp_path), "--steps", "small run"]  # fmt: skip
    path = tmp_path / "gpu-stand-in-quick.log"
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        for _ in until(60):
            if path.exists() and "case 1 of" in path.read_text(encoding="utf-8"):
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    recorded = record.load(path.with_suffix(".json"))
    assert recorded["steps"].keys() == {"install"}
    size = path.stat().st_size
    time.sleep(1)
    assert path.stat().st_size == size


def until(seconds) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")
