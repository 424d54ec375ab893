"""The benchmark harness runs, and its memory limits do what they say. No time is judged."""

import dataclasses
import importlib.util
import math
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

import benchmarks.__main__ as program  # noqa: E402
import posenc_native as pn  # noqa: E402
from benchmarks import command  # noqa: E402
from benchmarks.cases import biases, gathers, toeplitz  # noqa: E402
from benchmarks.clock import harness, limits  # noqa: E402
from benchmarks.figures import records, report  # noqa: E402
from benchmarks.studies import fresh  # noqa: E402
from posenc_native import nn as pnn  # noqa: E402

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler"
)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000, 4096, 5 * 1024 + 3])
@pytest.mark.parametrize("kind", limits.KINDS)
def test_every_variant_of_a_memory_limit_does_its_work(kind, count, threads):
    guard = 8
    rng = np.random.default_rng(count)
    # Buffers begin 9 floats in, so that no alignment helps.
    buffer, source = (
        rng.standard_normal(guard + 9 + count + guard).astype(np.float32) for _ in range(2)
    )
    inner = slice(guard + 9, guard + 9 + (threads if kind == "sum" else count))
    given = slice(guard + 9, guard + 9 + count)
    reads = kind not in ("in-place scale", "fill")
    for variant, name in enumerate(limits.variants(kind)):
        got, src = buffer.copy(), source.copy()
        limits.run(
            kind,
            variant,
            got[inner].ctypes.data,
            src[given].ctypes.data if reads else None,
            4 * count,
            value=-2.0,  # a power of two: scaling twice rounds nothing
            threads=threads,
            repeats=2,
        )
        want = buffer.copy()
        match kind:
            case "in-place scale":
                want[inner] *= 4
            case "copy":
                want[inner] = source[inner]
            case "fill":
                want[inner] = -2
            case "in-place add":
                want[inner] += source[inner]
                want[inner] += source[inner]
            case "sum":
                # Float32 sums of count numbers, in any order: each addition is off by half an ulp.
                numbers = source[given].astype(np.float64)
                bound = count * 2.0**-24 * np.abs(numbers).sum()
                assert abs(got[inner].sum(dtype=np.float64) - numbers.sum()) <= bound, name
                want[inner] = got[inner]
        np.testing.assert_array_equal(got, want, err_msg=name)
        np.testing.assert_array_equal(src, source, err_msg=name)


# What has to be there for a peer to be timed.
PACKAGES = {
    "transformers (Llama)": "transformers", "rotary-embedding-torch": "rotary_embedding_torch",
    "x-transformers": "x_transformers", "torchtune": "torchtune", "timm": "timm",
    "ONNX Runtime": "onnxruntime", "JAX": "jax", "numba": "numba",
}  # fmt: skip


@pytest.fixture
def run_benchmarks(monkeypatch, capsys):
    """Quickly, in this process, of which nothing stays changed; returns what is printed."""
    monkeypatch.setattr(program, "_fix_thresholds_of_malloc", lambda: None)
    before = torch.get_num_threads(), pn.get_num_threads()

    def run(**options):
        program.main(quick=True, threads=[1], **options)
        return capsys.readouterr().out

    yield run
    torch.set_num_threads(before[0])
    pn.set_num_threads(before[1])


def finite_and_positive(*figures):
    return all(math.isfinite(figure) and figure > 0 for figure in figures)


@pytest.mark.slow
def test_a_quick_run_fills_in_every_row(tmp_path, run_benchmarks):
    path = tmp_path / "figures.json"
    text = run_benchmarks(rounds=2, json=path)
    names = run_benchmarks(list=True).splitlines()
    figures = records.load(path)

    assert figures["quick"] is True
    assert {"date", "commit", "cpu", "cores", "caches", "packages"} <= figures["machine"].keys()
    assert [*(case["case"] for case in figures["cases"]), "accuracy", "many devices"] == names
    assert {name.partition(",")[0] for name in names} == {
        "accuracy",
        "many devices",
        "a block",
        "a function of diffusers (Flux)",
        "a function of diffusers (HunyuanVideo)",
        "a function of diffusers (LTX)",
        "a function of diffusers (Qwen-Image)",
        "a function of timm (EVA02-L/448)",
        "before attention",
        "rotary",
        "rotary backward",
        "sinusoidal table",
        "add sinusoidal",
        "decode",
        "decode in a model",
        "rotary: by tables",
        "rotary: tables of each head",
        "rotary: tables of each head and row",
        "rotary: tables of the whole width",
        "rotary: learned for all heads",
        "rotary: learned for each head",
        "rotary: learned for each head and axis",
        "rotary: key cache",
        "relative: toeplitz bias",
        "relative: add toeplitz bias",
        "relative: diagonal sums",
        "relative: T5 bias",
        "relative: ALiBi",
        "relative: shift",
        "relative: shift and content",
        "relative: Swin bias",
        "selective: steps of each head",
        "selective: forward and backward",
        "relative: Shaw scores",
        "relative: decode",
    }
    for case in figures["cases"]:
        assert case["case"] in text
        for limit in case["limits"].values():
            assert finite_and_positive(limit["seconds"], *limit["variants"].values())
            assert limit["seconds"] == limit["variants"][limit["variant"]]
        modes = {row["mode"] for row in case["rows"] if row.get("ours")}
        # What is small, and what has only fresh results.
        fresh = ("a block", "a function of", "before attention, backward", "decode",
                 "relative: decode",
                 "relative: diagonal sums", "relative: Shaw scores", "rotary: learned",
                 "relative: shift, forward and backward", "relative: ALiBi, forward and backward",
                 "add sinusoidal, forward and backward",
                 "selective: forward and backward")  # fmt: skip
        assert {"fresh"} < modes or case["case"].startswith(fresh)
        for row in case["rows"]:
            if "skipped" in row:
                assert not row.get("ours"), "a row of this library may not be left out"
                assert row["skipped"]
                continue
            assert finite_and_positive(row["seconds"], *row["quartiles"], row["samples"]), row
            if "limit" in row:
                assert finite_and_positive(row["gigabytes_per_second"], row["times_limit"]), row

    # A peer is timed or says why not; one that computes something else is noticed.
    peers = [row for case in figures["cases"] for row in case["rows"] if not row.get("ours")]
    for name in ("transformers (Llama)", "rotary-embedding-torch", "x-transformers", "torchtune",
                 "timm", "ONNX Runtime", "JAX", "numba", "plain torch", "plain NumPy"):  # fmt: skip
        of_peer = [row for row in peers if row["contestant"].startswith(name)]
        assert of_peer, name
        package = PACKAGES.get(name)
        if package is None or importlib.util.find_spec(package):
            assert any("seconds" in row for row in of_peer), f"{name} is there, but never timed"
    for row in peers:
        assert "something else" not in row.get("skipped", ""), row
        assert not re.match(r"\w+(Error|Exception)\b", row.get("skipped", "")), row

    positions = {row["position"] for row in figures["accuracy"]}
    assert positions == {1 << 12, 1 << 17, 1 << 20, 1 << 24}
    for row in figures["accuracy"]:
        if row["error"] is None:
            assert row["skipped"]
            assert row["peer"] != "posenc_native"
        elif row["peer"] == "posenc_native":
            assert 0 < row["error"] < 1.2e-7
        elif row["peer"].startswith("float64"):  # little more than rounding to float32
            assert 0 < row["error"] < 2.0**-25 + 2**24 * 2.0**-52
        else:  # float32 angles: each is off by half a unit of its last place, and more
            assert 1.2e-7 < row["error"] <= 2
    for quantity in {row["quantity"] for row in figures["accuracy"]}:
        of = [row for row in figures["accuracy"] if row["quantity"] == quantity]
        assert sum(row["peer"] == "posenc_native" for row in of) == len(positions)
        assert sum(row["peer"] == "plain torch" for row in of) == len(positions)

    assert {row["processes"] for row in figures["many_devices"]} == {1, 2}
    for row in figures["many_devices"]:
        assert finite_and_positive(row["local"], row["distributed"], row["of_torch"])
        # One process gathers nothing from others; batch, tokens and heads stay where they are.
        assert bool(row["collectives"]) == (row["cut"] == "d" and row["processes"] == 2), row
    assert report.many_devices_text(figures["many_devices"]) in text


def test_a_part_is_merged_into_what_is_recorded(tmp_path, run_benchmarks):
    path = tmp_path / "figures.json"
    parts = ("rotary: key cache", "decode, a sinusoidal row")
    texts = [run_benchmarks(filter=[part], rounds=1, merge=True, json=path) for part in parts]
    figures = records.load(path)
    assert [
        case["case"].startswith(part) for case, part in zip(figures["cases"], parts, strict=True)
    ]
    assert all(case["recorded"]["rounds"] == 1 for case in figures["cases"])
    # Each run ends with a page of what it ran, the file with one of all that there is.
    text = path.with_suffix(".txt").read_text(encoding="utf-8")
    for page, there in ((texts[0], (1, 0)), (texts[1], (0, 1)), (text, (1, 1))):
        lines = page.partition("SUMMARY")[2].splitlines()
        names = ("  rotary variants", "  decode")
        assert [any(line.startswith(name) for line in lines) for name in names] == [*there]
    assert ": 2 cases\n" in text
    with pytest.raises(command.Refused, match="no case has nothing"):
        run_benchmarks(filter=["nothing"])


def option_of(
    only: Sequence[str] = (),
    pause: float = 1.5,
    small: bool = True,
    at: Path | None = None,
    hidden: int = 3,
    sizes: Sequence[int] = (1, 2),
) -> None:
    """Do it.

    Args:
        only: some, in
            two lines of 100 %
        pause: so long
        small: do not
        at: a place
        sizes: some
    """
    if at == Path("refused"):
        raise command.Refused("not there")
    SEEN.append((only, pause, small, at, hidden, sizes))


SEEN = []


def test_options_are_the_parameters_of_a_function(capsys):
    command.run(option_of, [])
    options = "--only a --only b --pause 2 --no-small --at x --hidden 4 --sizes 3,4"
    command.run(option_of, options.split())
    assert [
        ([], 1.5, True, None, 3, (1, 2)),
        (["a", "b"], 2.0, False, Path("x"), 4, [3, 4]),
    ] == SEEN
    with pytest.raises(SystemExit, match=r"test_benchmarks: not there$"):
        command.run(option_of, ["--at", "refused"])
    with pytest.raises(SystemExit):
        command.run(option_of, ["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--only TEXT some, in two lines of 100 % --pause X so long" in shown
    assert "hidden" not in shown


class OneNumber:
    """Buffers of a case that doubles a number."""

    nbytes = 4096

    def __init__(self):
        self.x, self.result = np.full(1024, 3.0, np.float32), np.zeros(1024, np.float32)
        self.work, self.out = self.x.ctypes.data, self.result.ctypes.data


def doubling(*contestants, threads=1):
    job = harness.Job(lambda b: [b.x * 2], lambda b: [b.x], lambda b: [b.result], 1e-6)
    return harness.Case("doubling", threads, [OneNumber()], list(contestants), job=job)


def doubled_fresh(b):
    return [b.x * 2]


def test_what_computes_something_else_is_not_timed():
    case = doubling(
        harness.Contestant("right", "fresh", doubled_fresh, "copy", ours=True),
        harness.Contestant("right", "in place", lambda b: np.multiply(b.x, 2, out=b.x)),
        harness.Contestant("right", "out=", lambda b: np.multiply(b.x, 2, out=b.result)),
        harness.Contestant("wrong", "fresh", lambda b: [b.x * 3]),
        harness.Contestant("nothing", "in place", lambda b: None),
        harness.Contestant("nothing into", "out=", lambda b: None),
        harness.Contestant("not a number", "fresh", lambda b: [b.x * np.nan]),
        harness.Contestant("narrow", "fresh", lambda b: [b.x[:-1] * 2]),
        harness.Contestant("cannot", "fresh", lambda b: b.y),
        harness.Contestant("other work", "fresh", lambda b: None, checked=False),
        harness.Contestant("as pairs", "fresh", lambda b: (b.x, 2), result=lambda r: [r[0] * r[1]]),
    )
    result = harness.measure(case, 1)
    assert [(row.name, row.mode) for row, _ in result.rows] == [
        ("right", "fresh"), ("right", "in place"), ("right", "out="),
        ("other work", "fresh"), ("as pairs", "fresh"),
    ]  # fmt: skip
    skipped = {
        row.name: row.reason for row in result.case.contestants if isinstance(row, harness.Skipped)
    }
    assert skipped.keys() == {
        "wrong", "nothing", "nothing into", "not a number", "narrow", "cannot",
    }  # fmt: skip
    assert all("something else" in reason for name, reason in skipped.items() if name != "cannot")
    assert "AttributeError" in skipped["cannot"]
    with pytest.raises(AssertionError, match="something else"):
        harness.measure(
            doubling(harness.Contestant("ours", "fresh", lambda b: [b.x], ours=True)), 1
        )


@pytest.mark.parametrize("first", [1.0, math.nan])
def test_a_number_that_is_none_is_found_in_any_result(first):
    job = harness.Job(lambda b: (b.x, b.x), lambda b: b.x, lambda b: b.x, 1e-6)
    row = harness.Contestant("half of it", "fresh", lambda b: (b.x * first, b.x * (np.nan / first)))
    case = harness.Case("two results", 1, [OneNumber()], [row], job=job)
    (judged,) = harness.measure(case, 1).case.contestants
    assert "something else" in judged.reason


class Decaying:
    """Numbers that a call in place halves."""

    nbytes, work, out = 0, 0, 0

    def __init__(self, dtype):
        self.numbers = torch.linspace(1, 2, 1000, dtype=dtype)

    def halve(self):
        self.numbers /= 2


@pytest.mark.parametrize(("dtype", "steps"), [(torch.float32, 200), (torch.float16, 20)])
def test_buffers_whose_numbers_vanish_are_not_timed(dtype, steps):
    # They take some processors several times as long.
    row = harness.Contestant("halve", "in place", Decaying.halve, ours=True, checked=False)
    keep = dataclasses.replace(row, name="keep", run=lambda b: b.numbers.neg_())
    job = harness.Job(None, lambda b: b.numbers, None, 0.0)
    case = harness.Case("decaying", 1, [Decaying(dtype)], [keep], job=job)
    harness.measure(case, steps)
    case.contestants = [row]
    with pytest.raises(RuntimeError, match=r"decaying: 100% of the numbers of set 0 are 0, sub"):
        harness.measure(case, steps)
    # Where results are something else, it is what is overwritten that counts.
    elsewhere = harness.Job(None, lambda b: torch.zeros(9), None, 0.0, lambda b: b.numbers)
    with pytest.raises(RuntimeError, match="decaying"):
        harness.measure(dataclasses.replace(case, job=elsewhere), 1)
    case = harness.Case("sums", 1, [Decaying(dtype)], [keep], job=elsewhere)
    harness.measure(case, steps)


def test_relative_peers_do_the_same_work():
    heads, length = biases.HEADS, 11
    diagonals = torch.randn(heads, 2 * length - 1)
    bias = pn.toeplitz_bias(diagonals, length, length)
    assert torch.equal(toeplitz.by_index(diagonals, length), bias)
    assert torch.equal(diagonals.unfold(-1, length, 1).flip(-2), bias)

    # Whole numbers, so that no order of the sums rounds.
    grad = torch.randint(-8, 9, (heads, length, length)).float()
    steps = torch.arange(length)
    index = (steps - steps[:, None] + (length - 1)).flatten()
    sums = pn.diagonal_sums(grad)
    assert torch.equal(toeplitz.sum_by_shear(grad), sums)
    assert torch.equal(toeplitz.sum_by_index(grad, index), sums)

    x = torch.randn(1, heads, length, 2 * length - 1)
    shifted = pn.relative_gather(x, None, length)
    assert torch.equal(gathers.strided_shift(x), shifted)
    if shift := gathers.conformer_shift():
        assert torch.equal(shift(x), shifted)


def test_relative_peers_from_transformers_do_the_same_work():
    pytest.importorskip("transformers")
    scores = torch.randn(1, biases.HEADS, 300, 300)
    t5, attention = pnn.T5RelativeBias(biases.HEADS), biases.t5_peer()
    t5.weight.data.copy_(attention.relative_attention_bias.weight)
    assert torch.equal(t5(scores), scores + attention.compute_bias(300, 300))
    if peer := biases.swin_peer():
        scores = torch.randn(4, 3, 49, 49)
        swin = pnn.SwinRelativeBias(3, biases.WINDOW)
        swin.load_state_dict(peer.state_dict())
        assert torch.equal(swin(scores), scores + peer())


@pytest.mark.skipif(sys.platform != "linux", reason="asks for pages as Linux has them")
@pytest.mark.parametrize("library", ["NumPy", "torch"])
def test_fresh_results_are_timed_beside_what_a_pool_would_give(library):
    ways = fresh.measure(library, 1 << 20, 1)
    assert ways.keys() == {"copy", "reused", "fresh", "populated"}
    assert finite_and_positive(*(way["seconds"] for way in ways.values()))
    # Pages that are mapped for a call are new in every call; memory that is there never is.
    assert ways["populated"]["faults"] > ways["reused"]["faults"]
    heading, line = fresh.text({"kept": {f"{library}, 1 MiB": ways}}).splitlines()
    assert len(heading) == len(line)
    assert line.split()[-1] == f"{ways['populated']['faults']:.0f}"
