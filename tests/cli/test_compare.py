"""posenc-native compare and what explain says to programs: exit status, one line, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import LLAMA, output_of, refusal

import posenc_native as pn
from posenc_native import cli
from posenc_native.checkpoints.formats.reading import FORMATS


def ends(command: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints that ends with this status."""
    assert cli.main(command) == status
    out, err = capsys.readouterr()
    assert not err
    return out


def test_status_says_alike_or_different(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    override = model / "config.json"
    assert "rotate alike" in ends(["compare", str(model), str(override)], 0, capsys)
    other = f'{model}+{{"rope_theta": 10000.0}}'
    said = ends(["compare", str(model), other, "--at", "10,100"], 1, capsys)
    assert said == f"{pn.compare(str(model), other, at=[10, 100])}\n"
    assert "base: 500,000 (rope_theta) against 10,000 (rope_theta)" in said


def test_several_are_compared_with_the_first(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(model), "llama-3", "llama-3.1"]
    said = json.loads(ends(["compare", *names, "--json"], 1, capsys))
    assert said["sources"] == names
    assert {each["sources"][1] for each in said["differences"]} == {"llama-3", "llama-3.1"}
    assert said["alike"] is False


@pytest.mark.usefixtures("model")
def test_a_permutation_that_nobody_confirmed_has_a_status_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A correct conversion is not status 1, and weights that were not permuted are not status 0."""
    meta = {"dim": 128, "n_layers": 2, "n_heads": 2, "rope_theta": 500000.0}
    Path("params.json").write_text(json.dumps(meta), encoding="utf-8")
    command = ["compare", "path/to/model", "params.json"]
    said = ends(command, 3, capsys).splitlines()[0]
    assert said == (
        "path/to/model and params.json: only the expected permutation differs (--permuted)"
    )
    assert json.loads(ends([*command, "--json"], 3, capsys))["verdict"] == "alike if permuted"
    assert ends([*command, "--permuted"], 0, capsys).splitlines()[0].endswith("rotate alike")
    ends([*command, "llama-3.1"], 1, capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{model}", "nowhere"], "cannot read nowhere: No such file"),
        (["{model}", "broken.json"], "broken.json: config: expected JSON"),
        (["{model}", "{model}+{"], "overrides: expected JSON"),
        (["{model}", "{model}", "--weights", "x"], "--weights: expected 2 files"),
        (["{model}", "{model}", "--weights", ",x"], "cannot read x"),
        (["{model}", "{model}", "--at", "-1"], "at: expected positions"),
        (["{model}"], "compare: the following arguments are required: second\n"),
        ([], "compare: the following arguments are required: first, second\n"),
    ],
)
def test_what_cannot_be_read_is_status_2(
    words: list[str],
    said: str,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(model)
    Path("broken.json").write_text("{")
    typed = [word.replace("{model}", str(model)) for word in words]
    assert said in refusal(["compare", *typed], 2, capsys)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("explain broken.json", 1),
        ("explain --preset llama-9", 2),
        ("compare {model} nowhere", 2),
        ("compare {model} {model} --weights x", 2),
    ],
)
def test_a_program_reads_the_error_too(
    command: str, status: int, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON on stdout in every case, beside the line on stderr."""
    Path("broken.json").write_text("{")
    words = command.replace("{model}", str(model)).split()
    line = refusal(words, status, capsys)
    assert cli.main([*words, "--json"]) == status
    out, err = capsys.readouterr()
    assert err == line == f"posenc-native {words[0]}: {json.loads(out)['error']}\n"


def test_weights_has_a_file_for_each_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--weights FILE,FILE" in output_of("compare --help", capsys)


def test_explain_for_programs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads(output_of(f"explain {model} --json", capsys))
    (group,) = said["layers"]
    assert group["rotary"]["base"] == LLAMA["rope_theta"]
    assert group["rotary"]["inv_freq"] == pn.Rotary.from_config(LLAMA).inv_freq.tolist()
    assert said["length"] == LLAMA["max_position_embeddings"]
    assert json.loads(output_of("explain --preset gpt-oss --json", capsys))["layers"]
    assert output_of("explain --preset llama-3.1", capsys) == f"{pn.explain('llama-3.1')}\n"
    assert "did you mean" not in refusal("explain --preset llama-9", 2, capsys)
    assert "expected a path or --preset, got neither" in refusal("explain", 2, capsys)


def test_explain_in_words_of_others(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = json.loads(output_of(f"explain {model} --as megatron", capsys))
    assert entries["rotary_base"] == 500000.0
    assert not pn.compare({**entries, "hidden_size": 64}, model)
    assert cli.main(["explain", str(model), "--as", "mistral"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["rope_theta"] == 500000.0
    assert err == (
        "not expressed: The pairing half: Mistral's code rotates neighbors, so the weights of "
        "queries and keys have to be permuted. If they are, add --permuted.\n"
    )


def test_explain_in_words_of_others_for_permuted_weights(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The entries are the same, and compare agrees about the pairing with --permuted alone."""
    assert cli.main(["explain", str(model), "--as", "mistral"]) == 1
    entries = capsys.readouterr().out
    assert output_of(f"explain {model} --as mistral --permuted", capsys) == entries
    again = FORMATS["mistral"].read({"dim": 128, **json.loads(entries)}, "again", "test")
    assert pn.compare(model, again, assume=True).verdict == "alike if permuted"
    assert not pn.compare(model, again, permuted=True, assume=True)
    assert "--permuted: requires --as" in refusal(f"explain {model} --permuted", 2, capsys)


def test_info_has_numbers_and_lists(capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads(output_of("info --json", capsys))
    assert said["threads (NumPy)"] == pn.get_num_threads()
    assert isinstance(said["SIMD targets"], list)


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_knows_commands_and_options(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("shtab")
    script = output_of(f"completion {shell}", capsys)
    own = {"bash": "complete -o", "zsh": "#compdef", "tcsh": "complete posenc-native"}
    for word in (own[shell], "explain", "compare", "similarity-matrix", "permuted"):
        assert word in script
