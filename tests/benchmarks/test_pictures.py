"""Pictures of benchmarks, and curves of cost as work grows. No time is judged."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
pytest.importorskip("matplotlib")

from matplotlib.figure import Figure  # noqa: E402
from recorded import case, ours, row, yardstick  # noqa: E402
from targets import NEEDS_NATIVE  # noqa: E402

import posenc_native as pn  # noqa: E402
from benchmarks.figures import plot, records  # noqa: E402
from benchmarks.studies import growth  # noqa: E402

PNG = b"\x89PNG\r\n\x1a\n"


def timed(name, threads=1):
    rows = [
        ours("in place", 2.5),
        ours("in place", 2.4, "Rotary"),
        ours("fresh", 9.0),
        yardstick("copy_", "out=", 3.0),
        row("a library", "fresh", 40.0),
        row("a library", "out=", 20.0),
        {"contestant": "another", "mode": "fresh", "skipped": "it is not there"},
    ]
    return case(name, *rows, threads=threads) | {"recorded": {"date": "2026-01-02T03:04:05"}}


ROTARY = "rotary, q 32 + k 8 heads x 4096 x 128, torch float32, half"
FIGURES = {
    "machine": {"cpu": "a processor"},
    "cases": [timed("relative: shift"), timed(ROTARY, 2), timed(ROTARY)],
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
        ("Rotary", "in place"), ("copy_", "out="), ("apply", "fresh"),
        ("a library", "out="),
    ]  # fmt: skip


def test_times_on_a_logarithmic_axis_are_marks_and_not_bars():
    axes = Figure().add_subplot()
    plot._draw_case(axes, FIGURES["cases"][2])
    assert axes.get_xscale() == "log"
    assert not axes.patches  # a bar would begin anywhere: there is no zero
    times = [line.get_xdata()[0] for line in axes.lines if line.get_marker() not in ("", "None")]
    assert times == pytest.approx([2.4e-3, 3e-3, 9e-3, 20e-3])


def test_panels_say_when_they_were_recorded():
    assert plot._day(FIGURES["cases"][0]["recorded"]) == " (2026-01-02)"
    assert plot._day(None) == ""


def test_pictures_are_small_files_beside_the_figures(tmp_path):
    path = tmp_path / "processor.json"
    pictures = plot.draw(FIGURES, path)
    assert [picture.name for picture in pictures] == [
        "processor-speed.png", "processor-accuracy.png",
    ]  # fmt: skip
    for picture in pictures:
        data = picture.read_bytes()
        assert data.startswith(PNG)
        assert 5_000 < len(data) < 150_000
    (other, _) = plot.draw(FIGURES, path, threads=2)
    assert other.name == "processor-speed-2-threads.png"


def test_figures_without_such_cases_have_no_picture(tmp_path):
    assert plot.draw(FIGURES | {"cases": [], "accuracy": []}, tmp_path / "none.json") == []


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
        growth.main(curves, rounds=1, quick=True, json=path)
    figures = records.load(path)
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
