"""`make gpu` without a GPU: a device, a clock and programs that are none. No time is judged."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import signal
import subprocess
import sys
import sysconfig
import zipfile
from types import SimpleNamespace

import pytest
from places import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

import torch_cases  # noqa: E402
from targets import NEEDS_NATIVE  # noqa: E402

import benchmarks.gpu.__main__ as gpu  # noqa: E402
from benchmarks import command  # noqa: E402
from benchmarks.clock.harness import Case, Contestant, Skipped  # noqa: E402
from benchmarks.gpu import (  # noqa: E402
    device,
    install,
    kit,
    record,
    resume,
    rows,
    small_run,
    steps,
    times,
    timing,
)  # fmt: skip
from benchmarks.gpu.steps import (  # noqa: E402
    FAILED,
    MORE_TO_DO,
    PASSED,
    SKIPPED,
    UNFINISHED,
    Outcome,
)  # fmt: skip

pytestmark = [
    NEEDS_NATIVE,
    # Of JAX, and of Python, where other tests in this process have brought threads: programs are
    # started by a fork, since their way to take an interrupt is set in between.
    pytest.mark.filterwarnings(r"ignore:.*fork\(\)"),
]
pytest_plugins = ["pytester"]
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
THIS_PYTHON = f"cp{VERSION.replace('.', '')}"
PLATFORM = sysconfig.get_platform().replace("-", "_").replace(".", "_")
OURS = f"{THIS_PYTHON}-{THIS_PYTHON}-{PLATFORM}"


# --- Which steps a call runs, and for how long


def one_call(recorded, fails=(), budget=steps.BUDGET):
    """A call in which every step takes all of its time, and fails if it is in `fails`."""
    left, begun = budget - 60, []
    waiting = list(itertools.chain(*steps.to_run(recorded, dict.fromkeys(steps.NAMES, "key"))))
    while waiting and (limit := steps.limit(waiting[0], waiting[1:], left)):
        step, *waiting = waiting
        assert step.least <= limit <= left
        left -= limit
        begun.append(step.name)
        recorded[step.name] = {"status": FAILED if step.name in fails else PASSED, "of": "key"}
    return begun


def test_calls_share_the_steps():
    recorded = {}
    calls = [one_call(recorded) for _ in range(4)]
    assert [*itertools.chain(*calls)] == list(steps.NAMES)
    # The first tells whether anything works, the last of four has nothing left to do.
    assert calls[0][:2] == ["small run", "tests"]
    assert calls[3] == []
    assert steps.BUDGET + 30 <= 600  # a machine's call ends after ten minutes
    # What has less than its least time is left to the next call.
    recorded = {}
    budgets = [one_call(recorded, budget=60 + seconds) for seconds in (100, 119, 120)]
    assert budgets == [["small run"], [], ["tests"]]


def test_what_failed_has_another_try_after_the_others():
    recorded = {}
    assert "tests" in one_call(recorded, fails=("tests",))
    then = [*one_call(recorded), *one_call(recorded)]
    assert then.index("tests") > then.index("racecheck")
    assert then.count("tests") == 1
    # Of other sources all of it is to run, in its order.
    changed = dict.fromkeys(steps.NAMES, "other")
    assert [step.name for step in steps.to_run(recorded, changed)[0]] == list(steps.NAMES)
    recorded["times"]["status"], recorded["memcheck"]["status"] = UNFINISHED, SKIPPED
    groups = steps.to_run(recorded, dict.fromkeys(steps.NAMES, "key"))
    assert [[step.name for step in group] for group in groups] == [["times"], ["memcheck"]]


def test_a_digest_is_of_names_and_contents(tmp_path):
    for step in steps.STEPS:
        assert kit.digest(step.of)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        kit.digest(["benchmarks/gpu/no_such_file.py"])
    (tmp_path / "a.py").write_text("x = 1\n")
    before = kit.digest(["."], tmp_path), kit.digest(["."], tmp_path, compiled=True)
    (tmp_path / "b.so").write_bytes(b"compiled")
    assert kit.digest(["."], tmp_path) == before[0]
    assert kit.digest(["."], tmp_path, compiled=True) != before[1]
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    assert kit.digest(["."], tmp_path) != before[0]


# --- Programs under a limit


def run(tmp_path, code, limit=1.0):
    return steps.run(["sh", "-c", code], cwd=tmp_path, environment=dict(os.environ), limit=limit,
                     log=tmp_path / "log")  # fmt: skip


def test_a_program_out_of_time_is_interrupted_and_killed_where_that_does_not_end_it(tmp_path):
    (tmp_path / "log").write_text("before\n")  # all that ever ran; an outcome has its own part
    ends = "trap 'echo summary; exit 0' INT; echo begun; sleep 60 & wait"
    # What ended in good order was still not given its time.
    outcome = Outcome(FAILED, "interrupted after 1 s", "begun\nsummary\n")
    assert run(tmp_path, ends) == outcome
    assert (tmp_path / "log").read_text() == "before\nbegun\nsummary\n"
    stays = "trap '' INT; echo begun; sleep 60"
    said = "killed after 1 s: it did not end when interrupted"
    assert run(tmp_path, stays) == Outcome(FAILED, said, "begun\n")


def test_a_program_can_be_interrupted_where_the_shell_ignores_interrupts(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome = run(tmp_path, "sleep 60")
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome.detail == "interrupted after 1 s"


@pytest.mark.parametrize(("status", "said"), [(0, PASSED), (MORE_TO_DO, UNFINISHED), (1, FAILED)])
def test_the_status_of_a_program_says_whether_more_is_to_do(status, said, tmp_path):
    assert run(tmp_path, f"exit {status}", 30).status == said


def test_a_call_that_is_ended_leaves_nothing_running(tmp_path):
    before = signal.signal(signal.SIGALRM, gpu._terminated)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(SystemExit):
            run(tmp_path, "echo $$; sleep 60", 30)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "log").read_text()), 0)


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (PASSED, "========= ERROR SUMMARY: 0 errors", PASSED),
        (UNFINISHED, "========= ERROR SUMMARY: 0 errors", UNFINISHED),
        (FAILED, "========= ERROR SUMMARY: 3 errors", FAILED),
        (PASSED, "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", FAILED),
        (PASSED, "========= ERROR SUMMARY: 2 errors\n========= ERROR SUMMARY: 0 errors", FAILED),
        (FAILED, "=== 1 failed in 3.0s\n========= ERROR SUMMARY: 0 errors", FAILED),
        (FAILED, "========= Error: Device not supported. Please refer to the documentation",
         SKIPPED),
        (FAILED, "a.py::test_a Segmentation fault", FAILED),
        (PASSED, "=== 82 passed in 3.0s", FAILED),
        (UNFINISHED, "=== 82 passed in 3.0s", FAILED),
    ],
)  # fmt: skip
def test_what_compute_sanitizer_says_is_understood(status, output, expected):
    outcome = steps.judge_sanitizer(steps.judge(Outcome(status, "", output)))
    assert outcome.status == expected
    assert outcome.detail


# --- Tests that go on where an earlier call stopped


class Losing(device.StandIn):
    """A device that is gone once `lose` was called."""

    gone = False

    def synchronize(self):
        if self.gone:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def lose(self, _=None):
        self.gone = True
        self.synchronize()


@pytest.fixture
def some_tests(pytester, monkeypatch):
    """Runs tests under the plugin: how they ended, what was said, and which ran by now."""
    on = Losing()
    monkeypatch.setattr(device, "DEVICES", {"cpu": lambda: on})
    progress = pytester.path / "progress"

    def run_them(code, *more):
        pytester.makepyfile(test_a=code)
        options = "--rootdir . -v -p no:cacheprovider -p no:warnings -p benchmarks.gpu.resume"
        given = (*options.split(), "--device", "cpu", "--progress", progress, *more)
        result = pytester.runpytest_inprocess(*given)
        status = {0: PASSED, MORE_TO_DO: UNFINISHED}.get(result.ret, FAILED)
        outcome = steps.judge(Outcome(status, "", result.stdout.str()))
        lines = [line.replace("test_a.py::test_", "") for line in progress.read_text().split("\n")]
        return status, outcome.detail, ", ".join(filter(None, lines))

    return run_them


def test_tests_that_passed_are_not_repeated_and_those_that_did_not_come_last(some_tests):
    code = "def test_a(): assert {0}\ndef test_b(): 0\ndef test_c(in_parts): assert {0} == in_parts"
    status, said, ran = some_tests(code.format(False), "--filter", "test_")
    assert (status, said) == (FAILED, "1 failed, 2 passed")
    assert ran == "begun a, begun b, passed b, begun c, passed c"
    code += "\ndef test_d(): 0"
    assert some_tests(code.format(True), "--filter", "d")[:2] == (
        UNFINISHED, "1 passed, 3 deselected",
    )  # fmt: skip
    code += "\ndef test_e(): 0"
    status, said, now = some_tests(code.format(True))
    assert (status, said) == (PASSED, "2 passed, 3 deselected")
    assert now.endswith("passed d, begun e, passed e, begun a, passed a")
    assert some_tests(code.format(True))[0] == PASSED  # nothing is left


def test_tests_out_of_time_are_unfinished(some_tests, monkeypatch):
    code = "def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass"
    clock = SimpleNamespace(time=itertools.count().__next__)  # it ticks as it is read
    monkeypatch.setattr(resume, "time", clock)
    ran = "begun a, passed a, begun b, passed b"
    assert some_tests(code, "--until", "1") == (UNFINISHED, "2 passed, out of time", ran)
    assert some_tests(code)[1] == "1 passed, 2 deselected"


def test_a_lost_device_ends_the_tests_and_names_the_last(some_tests):
    status, said, ran = some_tests(
        "def test_a(): pass\ndef test_b(on): on.lose()\ndef test_c(): pass"
    )
    assert (status, ran) == (FAILED, "begun a, passed a, begun b")
    words = "1 failed, 1 passed, the device is lost since test_b: RuntimeError: CUDA error: an"
    assert said.startswith(words)


@pytest.mark.parametrize(
    "family", ["rotary", "normed", "gradients", "sinusoids", "relative", "grids"]
)
def test_the_small_run_computes_the_same_twice(family):
    case = next(c for c in small_run.CASES if c.id.startswith(f"{family}, ") and "float32" in c.id)
    (compute,) = case.values
    results = compute("cpu")
    assert len(results) >= 5
    for a, b in zip(results, compute("cpu"), strict=True):
        torch_cases.assert_same_bits(a, b)


# --- The device, and the clock


def test_one_file_asks_cuda():
    for path in (ROOT / "benchmarks" / "gpu").glob("*.py"):
        asks = re.findall(r"torch\.cuda|nvidia-smi", path.read_text())
        assert bool(asks) == (path.name == "device.py"), path.name


def test_the_stand_in_can_all_that_a_device_can():
    methods = [{n for n in vars(of) if n[0] != "_"} for of in (device.Cuda, device.StandIn)]
    assert methods[0] - methods[1] == {"problem"}
    keys = {"device", "compute_capability", "multiprocessors", "memory_bytes", "l2_bytes", "driver"}
    assert device.StandIn().description().keys() == keys


@torch_cases.needs_cuda
def test_the_device_describes_itself_as_its_stand_in_does():
    found = device.Cuda().description()
    assert found.keys() == device.StandIn().description().keys()
    assert found["l2_bytes"] > 0


class Queue(device.StandIn):
    """A device whose queue is the moment at which it will be empty, of a clock of its own."""

    def __init__(self):
        self.time = self.empty = 0.0
        self.leads = []

    def now(self):
        self.time += 1e-9
        return self.time

    def work(self, seconds):
        """Of the device alone."""
        self.empty = max(self.empty, self.time) + seconds

    def sleep(self, cycles):
        self.leads.append(cycles)
        self.work(cycles / (1e9 if self.time > 0.1 else 2e8))  # its clock is slow until it is awake

    def synchronize(self):
        self.time = max(self.time, self.empty)

    def event(self):
        event = SimpleNamespace(at=0.0, synchronize=self.synchronize)
        event.record = lambda: setattr(event, "at", max(self.empty, self.time))
        event.query = lambda: self.time >= event.at
        event.elapsed_time = lambda end: (end.at - event.at) * 1e3
        return event

    def busy(self, seconds):
        """Work of the host, which the device waits for."""
        self.time += seconds


@pytest.fixture
def queue():
    return Queue()


def test_the_clock_is_calibrated_on_a_device_that_is_awake(queue):
    # A lead by the slow clock would be a fifth of what it has to be.
    assert timing.Clock(queue, queue.now).cycles_per_second == pytest.approx(1e9)


def test_times_of_the_device_and_of_the_host_are_told_apart(queue):
    clock = timing.Clock(queue, queue.now)
    assert clock.host(lambda b: queue.work(2e-3), [None], 5) < 1e-6
    assert clock.device(lambda b: queue.work(2e-3), [None], 3, 1e-3).seconds == pytest.approx(2e-3)
    assert clock.host(lambda b: queue.busy(1e-3), [None], 3) == pytest.approx(1e-3)


def test_a_sample_that_was_not_queued_in_time_is_taken_again(queue):
    clock = timing.Clock(queue, queue.now)
    queue.leads.clear()
    # Twice as slow as is thought: the second lead is long enough.
    assert clock.device(lambda b: queue.busy(10e-3), [None], 2, 5e-3).clean
    assert [lead / queue.leads[0] for lead in queue.leads] == pytest.approx([1, 2], rel=0.01)
    # Far slower than is thought: a bounded number of tries, and no claim to be clean.
    queue.leads.clear()
    assert not clock.device(lambda b: queue.busy(10e-3), [None], 2, 0).clean
    assert len(queue.leads) == 4


def a_case(*contestants, name="a case"):
    copy = Contestant("copy", "out=", lambda b: b.target.copy_(b.memory), "copy")
    sets = [rows.Memory(torch.float32, 1024) for _ in range(2)]
    return Case(name, 1, sets, [copy, *contestants])


def fails(_):
    raise RuntimeError("no memory")


def ours(run=lambda b: b.memory * 2, goal=None):
    return timing.Ours("ours", "fresh", run, "copy", goal=goal)


def test_figures_say_how_many_samples_were_not_clean_and_whether_goals_are_met():
    def timed(contestant, *samples):
        samples = [timing.Sample(seconds * 1e-6, clean) for seconds, clean in samples]
        return timing.Timed(contestant, samples, [7e-6], 1)

    copy = timed(a_case().contestants[0], (1, True), (9, False), (2, True))
    cheaper = dataclasses.replace(timing.OF_HOST, bound=0.5)
    two = [timed(ours(goal=goal), (9, False), (9, False)) for goal in (timing.OF_COPY, cheaper)]
    met = timed(ours(goal=timing.OF_HOST), (1.5, True))
    case = timing.figures(a_case(), [copy, *two, met], [])
    assert [row["microseconds"] for row in case["rows"]] == pytest.approx([1.5, 9.0, 9.0, 1.5])
    assert [(row["samples"], row["samples_not_clean"]) for row in case["rows"]] == [
        (3, 1), (2, 2), (2, 2), (1, 0),
    ]  # fmt: skip
    assert [row["goal"]["met"] for row in case["rows"][1:]] == [False, False, True]
    text = times.as_text(case | {"date": "today", "commit": None})
    for said in ("1 samples have time of the host in them: left out", "no other",
                 "goal: 0.90 of the copy, MISSED", "goal: 3 x the copy's host, met"):  # fmt: skip
        assert said in text


def test_a_row_that_is_slower_than_recorded_fails(tmp_path):
    """The best of all records counts, so that a second try is judged as the first."""
    named = ("device", "compute_capability", "multiprocessors", "driver", "cuda", "python", "date")
    machine: dict = dict.fromkeys(named, "1")
    machine |= {"memory_bytes": 1, "l2_bytes": 1, "packages": {}, "posenc_native": {}}
    copy = timing.Timed(a_case().contestants[0], [timing.Sample(1e-6, True)], [7e-6], 1)
    said = []
    for seconds in (1.25e-6, 1.3e-6, 1.5e-6, 1.5e-6, 1.2e-6):
        own = timing.Timed(ours(), [timing.Sample(seconds, True)], [7e-6], 1)
        case = timing.figures(a_case(), [copy, own], []) | {"date": "today", "commit": None}
        times.keep(tmp_path / "times.json", machine, False, case)
        said.append([times.is_slower(row) for row in case["rows"]])
    assert said == [[False, slower] for slower in (False, False, True, True, False)]
    assert "SLOWER" not in (tmp_path / "times.txt").read_text(encoding="utf-8")
    assert "SLOWER: was 0.83" in times.as_text({**case, "rows": [copy_row(case, 0.5)]})


def copy_row(case, of_copy):
    """Our row of a case, with another bandwidth."""
    return case["rows"][1] | {"of_copy": of_copy}


def test_a_peer_that_fails_is_left_out_and_one_of_ours_is_an_error():
    clock = timing.Clock(device.StandIn())
    gone = Skipped("gone", "fresh", "No module named 'gone'")
    case = timing.measure(clock, a_case(Contestant("peer", "fresh", fails), gone), 2)
    assert [row["contestant"] for row in case["rows"]] == ["copy"]
    assert {row["contestant"]: row["reason"] for row in case["skipped"]} == {
        "gone": "No module named 'gone'", "peer": "RuntimeError: no memory",
    }  # fmt: skip
    with pytest.raises(RuntimeError, match="no memory"):
        timing.measure(clock, a_case(ours(fails)), 2)


# --- The table of times


def test_a_run_that_is_cut_off_has_some_of_each_family():
    families = [name.partition(",")[0] for name in rows.cases(quick=False)]
    assert len(set(families[: len(set(families))])) == len(set(families)) == len(rows.TABLE) == 16
    assert families.count("prefill") == 12


def test_every_row_runs():
    for name in rows.cases(quick=True):
        case = rows.build(name, rows.Options(quick=True, compiled=False), "cpu")
        assert any(row.ours for row in case.contestants if isinstance(row, Contestant)), name
        for row in case.contestants:
            if isinstance(row, Contestant):
                row.run(case.buffers[0])
            else:
                assert row.reason


@NEEDS_NATIVE
@pytest.mark.parametrize(
    ("family", "row", "copies"),
    [
        ("prefill", "apply_rotary_qk", "2 scores"),
        ("backward", "apply_rotary_qk, learned inv_freq", "3 scores"),
        ("shift", "relative_gather", "2 scores"),
        ("shift", "relative_gather of content", "3 scores"),
        ("shift", "relative_scatter", "scores + x"),
        ("sinusoidal table", "sinusoidal", "scores"),
        ("norm and rotation", "rotary_append, norm", "2 q + 4 k"),
    ],
)
def test_true_bytes_are_counted(family, row, copies):
    """What has to be read and written, each once: the wide rows of a shift, values and caches."""
    name = next(name for name in rows.cases(quick=True) if name.startswith(family))
    case = rows.build(name, rows.Options(quick=True, compiled=False), "cpu")
    buffers = case.buffers[0]
    parts = {"scores": buffers.nbytes}
    parts |= {key: getattr(buffers, key).nbytes for key in "xqk" if hasattr(buffers, key)}
    expected = sum(
        int(count or 1) * parts[part] for count, part in re.findall(r"(\d*) ?([a-z]+)", copies)
    )
    contestant = next(c for c in case.contestants if getattr(c, "name", "") == row)
    timed = timing.Timed(contestant, [timing.Sample(1.0, True)], [1.0])
    assert timed.figures(buffers.nbytes)["nbytes"] == expected


def test_cases_are_recorded_as_they_are_timed(some_tests, monkeypatch, tmp_path):
    cases = {"good": lambda b: b.memory * 2, "bad": fails}
    build = lambda name, *_: a_case(ours(cases[name]), name=name)  # noqa: E731
    monkeypatch.setattr(rows, "cases", lambda _: cases)
    monkeypatch.setattr(rows, "build", build)
    for name in ("_WARM", "_SAMPLE", "_HOST_SAMPLE"):
        monkeypatch.setattr(timing, name, 0.0)
    results = tmp_path / "gpu-x.json"
    given = ("-s", "--quick", "--commit", "123abc", "--results", results)
    ends = [some_tests("from benchmarks.gpu.times import *", *given)[:2]]
    recorded = record.load(results)["cases"]
    assert recorded["bad"]["not_run"] == "RuntimeError: no memory"
    assert {case["commit"] for case in recorded.values()} == {"123abc"}
    # The next call tries the one again that has no times, and keeps the others.
    cases["bad"] = cases["good"]
    ends.append(some_tests("from benchmarks.gpu.times import *", *given)[:2])
    assert ends == [(FAILED, "1 failed, 1 passed"), (PASSED, "1 passed, 1 deselected")]
    found = record.load(results)
    assert found["cases"]["good"] == recorded["good"]
    assert found["machine"]["device"] == "stand-in"
    assert all("rows" in case for case in found["cases"].values())
    text = results.with_suffix(".txt").read_text(encoding="utf-8")
    assert text.startswith("stand-in, compute capability none")
    assert "good: " in text
    assert "bad: " in text


# --- Wheels and the kit


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x-1-py2.py3-none-any", ""),
        (f"x-1-1build-{OURS}", ""),
        ("x-1-cp27-cp27m-win32", "it is for cp27-cp27m-win32, and this is Python 3."),
        ("x-1-py3", "Invalid wheel filename"),
    ],
)
def test_which_wheels_this_python_takes(name, problem, tmp_path):
    found = kit.misfit(tmp_path / f"{name}.whl")
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def make_wheel(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_what_can_be_imported_of_a_wheel_is_unpacked(tmp_path):
    wheel = make_wheel(tmp_path / "x-1-py3-none-any.whl", {"x/y.py": "", "../z.py": ""})
    kit.unpack(wheel, tmp_path / "site")
    assert (tmp_path / "site" / "x" / "y.py").exists()
    assert not (tmp_path / "z.py").exists()
    bad = make_wheel(tmp_path / "bad-1-py3-none-any.whl", {"bad-1.data/purelib/x.py": ""})
    with pytest.raises(command.Refused, match="does not lie where it is imported from"):
        kit.unpack(bad, tmp_path / "site")


def test_the_newest_wheel_that_fits_is_taken(tmp_path):
    (tmp_path / "kit").mkdir()
    folders = [tmp_path / "kit", tmp_path]
    assert kit.newest(folders) is None
    for age, name in enumerate([f"0.2-{OURS}", f"0.1-{OURS}", "0.3-cp27-cp27m-win32"]):
        path = tmp_path / f"posenc_native-{name}.whl"
        path.touch()
        os.utime(path, (age, 1_000_000 + age))
    assert kit.newest(folders).name.startswith("posenc_native-0.1-")
    # An earlier folder counts for more than a newer wheel.
    first = tmp_path / "kit" / f"posenc_native-0.2-{OURS}.whl"
    first.touch()
    os.utime(first, (1, 1))
    assert kit.newest(folders) == first


@pytest.fixture
def the_kit(tmp_path):
    """What `make gpu-kit` leaves: the package (one that computes nothing), another, Highway."""
    folder = tmp_path / "gpu-kit"
    (folder / "highway" / "hwy").mkdir(parents=True)
    (folder / "highway" / "hwy" / "highway.h").touch()
    wheel = folder / f"posenc_native-0.1.0-{OURS}.whl"
    make_wheel(wheel, {"posenc_native/__init__.py": ""})
    kit.describe(wheel, kit.digest(kit.PACKAGE), "90", "the kit's commit")
    make_wheel(folder / "brought_along-1-py3-none-any.whl", {"brought_along.py": ""})
    return SimpleNamespace(folder=folder, wheel=wheel)


def test_a_kit_is_read_as_it_will_be(the_kit):
    digest = kit.digest(kit.PACKAGE)
    kit.complete(the_kit.folder, digest, "90")
    wanted = {"sources": digest, "gpus": "90", "commit": kit.commit()}
    assert kit.description(the_kit.wheel) == wanted
    with pytest.raises(command.Refused, match="sources were changed while it was built"):
        kit.complete(the_kit.folder, "x", "90")
    make_wheel(the_kit.folder / "other-1-cp27-cp27m-win32.whl", {})
    with pytest.raises(command.Refused, match=f"make gpu-kit KIT_PYTHON={VERSION}"):
        kit.complete(the_kit.folder, digest, "90")


# --- The command


@pytest.fixture
def make_gpu(the_kit, tmp_path, monkeypatch, capsys):
    """A call whose programs end as `ends` says by step: status, output, how the steps stand."""
    found = SimpleNamespace(ends={}, ran=[], show=Outcome(PASSED), out=tmp_path / "out")
    folders = (tmp_path / f"call-{number}" for number in itertools.count())

    def program(given, *, cwd, limit, log, **_):
        assert limit > 0
        if gpu._SHOW in given:
            where = cwd.parent / "site" / "posenc_native" / "__init__.py"
            return Outcome(found.show.status, "", f"{where}\n{found.show.output}")
        found.ran.append(" ".join(given))
        with log.open("a") as file:
            file.write("said\n")
        return (
            found.ends.pop(0) if found.ends else Outcome(PASSED, "", "== ERROR SUMMARY: 0 errors")
        )

    def call(*given, kit_folder=the_kit.folder):
        found.ran.clear()
        given = ["--dry-run", "--kit", kit_folder, "--out", found.out, *given]
        monkeypatch.setattr(sys, "argv", ["gpu", *map(str, given)])
        folder = next(folders)
        folder.mkdir()
        succeeded = command.run(gpu.Call).run("stand-in", folder)
        output = capsys.readouterr().out
        states = dict(re.findall(r"^    (\w+(?: \w+)?) +(passed|FAILED|skipped|unfinished|not run)",
                                 output.partition("==> summary\n")[2], re.M))  # fmt: skip
        return SimpleNamespace(succeeded=succeeded, output=output, states=states)

    monkeypatch.setattr(steps, "run", program)
    found.call = call
    return found


def test_calls_with_a_kit_reach_every_step_and_are_merged(make_gpu, the_kit, monkeypatch):
    monkeypatch.setattr(kit, "commit", lambda: None)
    make_gpu.ends = [Outcome(PASSED), Outcome(UNFINISHED)]
    first = make_gpu.call("--steps", "small run,times")
    assert first.succeeded
    assert f"{the_kit.folder}: 1 packages beside ours" in first.output
    assert first.states == dict.fromkeys(steps.NAMES, "not run") | {
        "install": "passed", "small run": "passed", "times": "unfinished",
    }  # fmt: skip
    assert "==> still to run: times\n" in first.output
    others = "tests, memcheck, racecheck, initcheck, synccheck"
    assert f"==> not asked for (--steps), and still to run: {others}\n" in first.output
    assert "==> next call: python3 -m benchmarks.gpu --dry-run --kit " in first.output

    second = make_gpu.call()
    assert second.states == dict.fromkeys(("install", *steps.NAMES), "passed")
    assert "nothing is left to run of what was asked for" in second.output
    # Of what the first call did nothing was done again.
    assert len(make_gpu.ran) == len(steps.NAMES) - 1
    (results,) = make_gpu.out.glob("*.json")
    log = results.with_suffix(".log").read_text(encoding="utf-8")
    assert re.findall(r"^==> (.*), .* UTC, ", log, re.M) == [
        "install", "small run", "times",
        "install", "tests", "times", "memcheck", "racecheck", "initcheck", "synccheck",
    ]  # fmt: skip
    assert record.load(results)["steps"]["tests"]["commit"] == "the kit's commit"


def test_what_fails_is_recorded_and_named(make_gpu):
    make_gpu.ends = [Outcome(FAILED, "exit status 1", "a.py::test_a \nSegmentation fault")]
    found = make_gpu.call("--steps", "small run,tests")
    assert not found.succeeded
    assert found.states["small run"] == "FAILED"
    assert found.states["tests"] == "passed"  # the rest goes on
    assert "it ended in a.py::test_a , exit status 1\n" in found.output
    assert "==> failed: small run\n" in found.output
    make_gpu.call("--steps", "tests", "--again")
    assert len(make_gpu.ran) == 1


def test_a_kit_for_another_python_is_refused(make_gpu, the_kit):
    other = make_wheel(the_kit.folder / "other-1-cp27-cp27m-win32.whl", {})
    found = make_gpu.call()
    assert not found.succeeded
    assert found.states["install"] == "FAILED"
    assert set(found.states.values()) == {"FAILED", "not run"}
    assert f"{other}: it is for cp27-cp27m-win32, and this is Python" in found.output
    assert "nothing else can run before install passes" in found.output


def test_a_wheel_of_other_sources_is_refused(make_gpu, the_kit):
    kit.describe(the_kit.wheel, "others", "90", None)
    found = make_gpu.call()
    assert not found.succeeded
    said = f"{the_kit.wheel} was made of other sources than those here: make gpu-kit"
    assert said in found.output
    assert make_gpu.call("--wheel", the_kit.wheel).succeeded  # as it is


def test_what_was_built_is_not_built_again(make_gpu, the_kit, tmp_path, monkeypatch):
    make_gpu.out = the_kit.folder
    monkeypatch.setenv("CUDAARCHS", "90")
    (tmp_path / "no-kit").mkdir()
    given = ("--build", "--steps", "synccheck", "--budget", 60)
    found = make_gpu.call(*given, kit_folder=tmp_path / "no-kit")
    assert found.succeeded
    assert f"    {the_kit.wheel}\n" in found.output
    # Less is left than the step takes.
    assert "==> still to run: synccheck\n" in found.output
    # For another GPU it would be: here in too little time to begin.
    monkeypatch.setenv("CUDAARCHS", "80")
    found = make_gpu.call(*given, kit_folder=tmp_path / "no-kit")
    assert "--budget: to build takes 240 s or more, and" in found.output


def test_a_package_whose_kernels_do_not_run_is_not_installed(make_gpu):
    make_gpu.show = Outcome(FAILED, "", "the torch operators were not built\n")
    found = make_gpu.call()
    assert not found.succeeded
    assert "s: the torch operators were not built\n" in found.output
    assert set(found.states.values()) == {"FAILED", "not run"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--steps", "tests,times,tuna"], "--steps: no step tuna"),
        (["--kit", "no/folder"], "--kit: no folder no/folder; `make gpu-kit` makes one"),
        (["--wheel", "no.whl"], "--wheel: no file no.whl"),
        (["--build", "--installed"], "one of --wheel, --build and --installed"),
    ],
)
def test_mistakes_of_the_command_line_are_named(given, said):
    with pytest.raises(SystemExit, match=re.escape(said)):
        command.run(gpu.Call, given)


def test_what_is_missing_is_named(tmp_path):
    assert install.missing(["json", "pytest"], tmp_path) == ""
    assert "has no no_such_module: bring the folder" in install.missing(
        ["no_such_module"], tmp_path
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs where there is no CUDA device")
def test_without_a_device_it_says_so():
    with pytest.raises(LookupError, match="torch sees no CUDA device"):
        device.Cuda().description()


def test_the_command_needs_a_bare_python():
    code = ("import sys; sys.modules |= dict.fromkeys(['torch', 'numpy', 'pytest', 'packaging']);"
            "import benchmarks.gpu.__main__")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.slow
def test_a_dry_run_passes(tmp_path):
    given = ["--dry-run", "--installed", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu", *given], cwd=ROOT, check=False,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    assert done.returncode == 0, done.stdout
    recorded = record.load(tmp_path / "gpu-stand-in-quick.json")
    states = {name: entry["status"] for name, entry in recorded["steps"].items()}
    assert states == dict.fromkeys(("install", *steps.NAMES), PASSED)
    assert recorded["cases"].keys() == rows.cases(quick=True).keys()
