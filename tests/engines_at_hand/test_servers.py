"""The table of what vLLM and SGLang were run with (served.json) is what their records show."""

import pytest
from records import read_record

import posenc_native as pn
from posenc_native.checkpoints.formats.serving.served import _seen

ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}


def _grounds(engine):
    for name, answer in read_record(engine).answers.items():
        try:
            yield name, answer, pn.explain(answer["configuration"]).description
        except ValueError:
            assert "refused" in answer, name


@pytest.mark.parametrize("engine", ENGINES)
def test_most_of_what_was_run_is_known(engine):
    """test_records allows an unknown ground: a mistake in the table would hide all faults."""
    answered = [
        (name, description.ground.kind)
        for name, answer, description in _grounds(engine)
        if "refused" not in answer
    ]
    unknown = [name for name, kind in answered if kind != "run"]
    assert len(unknown) <= 0.05 * len(answered), unknown


@pytest.mark.parametrize("engine", ENGINES)
def test_the_table_names_only_what_was_run(engine):
    ran = {
        description.model_type
        for _, answer, description in _grounds(engine)
        if "refused" not in answer
    }
    rules = _seen()[ENGINES[engine]]
    assert {*rules["ran"]} <= ran
    assert rules["version"] == read_record(engine).version
