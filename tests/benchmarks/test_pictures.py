"""Pictures of benchmarks, and curves of cost as work grows. No time is judged."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
pytest.importorskip("matplotlib")

from matplotlib.figure import Figure  # noqa: E402
from targets import NEEDS_NATIVE  # noqa: E402

import posenc_native as pn  # noqa: E402
from benchmarks.figures import plot  # noqa: E402
from benchmarks.studies import growth  # noqa: E402

PNG = b"\x89PNG\r\n\x1a\n"


def row(name, mode, seconds, *, ours=False, yardstick=False):
    return {
        "contestant": name, "mode": mode, "seconds": seconds, "ours": ours, "yardstick": yardstick,
    }  # fmt: skip


def case(name, threads=1):
    return {
        "case": f"{name}, {threads} thread{'s' * (threads > 1)}",
        "threads": threads,
        "limits": {"in-place scale": {"seconds": 2e-3}, "copy": {"seconds": 3e-3}},
        "rows": [
            row("apply_rotary_qk", "in place", 2.5e-3, ours=True),
            row("Rotary", "in place", 2.4e-3, ours=True),
            row("apply_rotary_qk", "fresh", 9e-3, ours=True),
            row("copy_", "out=", 3e-3, yardstick=True),
            row("a library", "fresh", 40e-3),
            row("a library", "out=", 20e-3),
            {"contestant": "another", "mode": "fresh", "skipped": "it is not there"},
        ],
    }


ROTARY = "rotary, q 32 + k 8 heads x 4096 x 128, torch float32, half"
FIGURES = {
    "machine": {"cpu": "a processor"},
    "cases": [case("relative: shift"), case(ROTARY, 2), case(ROTARY)],
    "accuracy": [
        {"peer": peer, "quantity": quantity, "position": position, "error": error}
        for quantity in ("rotary", "sinusoidal")
        for position in (4096, 1 << 24)
        for peer, error in (("posenc_native", 6e-8), ("a library", position * 6e-8), ("c", None))
    ],
}


def test_a_panel_shows_the_best_row_of_everyone():
    (shown,) = plot.panels(FIGURES, 1)
    assert shown is FIGURES["cases"][2]
    assert [(r["contestant"], r["mode"]) for r in plot.marks(shown)] == [
        ("Rotary", "in place"), ("copy_", "out="), ("apply_rotary_qk", "fresh"),
        ("a library", "out="),
    ]  # fmt: skip


def test_times_on_a_logarithmic_axis_are_marks_and_not_bars():
    axes = Figure().add_subplot()
    plot._draw_case(axes, FIGURES["cases"][2])
    assert axes.get_xscale() == "log"
    assert not axes.patches  # a bar would begin anywhere: there is no zero
    times = [line.get_xdata()[0] for line in axes.lines if line.get_marker() not in ("", "None")]
    assert times == [2.4e-3, 3e-3, 9e-3, 20e-3]


def test_pictures_are_small_files_beside_the_figures(tmp_path):
    path = tmp_path / "processor.json"
    path.write_text(json.dumps(FIGURES), encoding="utf-8")
    pictures = plot.draw(path)
    assert [picture.name for picture in pictures] == [
        "processor-speed.png", "processor-accuracy.png",
    ]  # fmt: skip
    for picture in pictures:
        data = picture.read_bytes()
        assert data.startswith(PNG)
        assert 5_000 < len(data) < 150_000
    (other, _) = plot.draw(path, threads=2)
    assert other.name == "processor-speed-2-threads.png"


def test_figures_without_such_cases_have_no_picture(tmp_path):
    path = tmp_path / "none.json"
    path.write_text(json.dumps(FIGURES | {"cases": [], "accuracy": []}), encoding="utf-8")
    assert plot.draw(path) == []


def test_durations_have_two_digits():
    found = [plot.duration(seconds) for seconds in (4e-7, 1.23e-6, 9.6e-6, 2.5e-3, 0.1, 12.0)]
    assert found == ["0.4 µs", "1.2 µs", "10 µs", "2.5 ms", "100 ms", "12 s"]


def points(*nanoseconds):
    return [
        {"x": 1 << i, "nanoseconds": value, "limit_nanoseconds": limit, "cores_used_by_others": 0}
        for i, (value, limit) in enumerate(nanoseconds)
    ]


def test_a_cliff_is_a_step_that_the_limit_does_not_have():
    curve = {
        "axis": "tokens",
        "lines": {
            "flat": points((1.0, 0.5), (1.2, 0.5), (0.2, 0.5)),
            "with the limit": points((1.0, 0.5), (2.0, 0.9)),
            "steep": points((1.0, 0.5), (1.4, 0.5), (1.5, 0.1)),
        },
    }
    assert growth.cliffs(curve) == ["steep: 1.40 x from 1 to 2 tokens, the limit 1.00 x"]


@pytest.fixture
def threads_as_before():
    before = torch.get_num_threads(), pn.get_num_threads()
    yield
    torch.set_num_threads(before[0])
    pn.set_num_threads(before[1])


@NEEDS_NATIVE
@pytest.mark.usefixtures("threads_as_before")
def test_curves_are_measured_and_kept(tmp_path):
    path = tmp_path / "growth.json"
    for curves in (("dim-cached", "threads"), ("distance",)):
        chosen = [argument for name in curves for argument in ("--curve", name)]
        growth.main(["--quick", "--rounds", "1", "--json", str(path), *chosen])
    figures = json.loads(path.read_text(encoding="utf-8"))
    assert list(figures["curves"]) == ["threads", "dim-cached", "distance"]
    for curve in figures["curves"].values():
        assert curve["lines"]
        for line in curve["lines"].values():
            assert all(p["nanoseconds"] > 0 and p["limit_nanoseconds"] > 0 for p in line)
    assert path.with_suffix(".png").read_bytes().startswith(PNG)
    text = path.with_suffix(".txt").read_text(encoding="utf-8")
    assert all(f"{name}: " in text for name in figures["curves"])


def test_buffers_fit_into_memory():
    wanted = 1 << 60
    assert growth.largest_buffer(wanted) < wanted
    assert growth.largest_buffer(4096) == 4096
