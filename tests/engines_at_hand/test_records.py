"""explain says of an engine what the engine did (records/), or that it is unknown."""

import functools
import importlib
import json
from pathlib import Path

import pytest
from records import ENGINES, by_model, configurations_of, read_record
from verdicts import assert_same

import posenc_native as pn
from posenc_native.checkpoints.formats.serving import served

RECORDS = {engine: read_record(engine) for engine in ENGINES}
# Names in the table of what vLLM and SGLang were run with (served.json).
SERVERS = {"vllm": "vLLM", "sglang": "SGLang"}
# The share of configurations that a reader may know nothing of.
MOST_UNKNOWN = {"llama_cpp": 0.0, "sglang": 0.05, "vllm": 0.05}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_record_is_of_todays_configurations(engine):
    recorded = {name: entry["configuration"] for name, entry in RECORDS[engine].answers.items()}
    assert recorded == json.loads(json.dumps(configurations_of(engine)))


@pytest.mark.parametrize(
    ("engine", "answers"),
    [
        pytest.param(engine, answers, id=f"{engine}: {model}")
        for engine in ENGINES
        for model, answers in by_model(RECORDS[engine].answers).items()
    ],
)
def test_explain_says_what_the_engine_did(engine, answers, explained, subtests):
    for name, answer in answers.items():
        with subtests.test(name):
            _assert_said(engine, answer, explained(engine, name))


def _assert_said(engine, answer, said):
    # What does not rotate may be refused, as what the engine refuses: by no other error than these.
    if isinstance(said, Exception):
        rotated = any(group["rotary"] for group in answer.get("layers", []))
        assert not rotated, said
        assert "refused" in answer or isinstance(said, ValueError)
        return
    ground = said.description.ground
    if "refused" in answer:  # no error, but no verdict on the ground of a run
        assert ground.kind == "unknown"
    elif not any(group["rotary"] for group in answer["layers"]):
        assert all(group.rotary is None for group in said.layers)
    elif ground.kind == "unknown":
        assert ground.why
    else:
        if ground.kind == "run":
            assert ground.version in RECORDS[engine].version
        assert_same(said, answer)


@pytest.mark.parametrize("engine", ENGINES)
def test_most_of_what_an_engine_did_is_known(engine, explained):
    """An unknown ground passes above: a reader that says so of everything would hide all faults."""
    grounds = {}
    for name, answer in RECORDS[engine].answers.items():
        rotated = any(group["rotary"] for group in answer.get("layers", []))
        # Most classes take no parameters by layer type.
        if rotated and "by layer type" not in name:
            grounds[name] = explained(engine, name).description.ground.kind
    unknown = [name for name, kind in grounds.items() if kind != "run"]
    assert len(unknown) <= MOST_UNKNOWN.get(engine, 0.12) * len(grounds), unknown


def test_a_file_that_llama_cpp_refused_is_said_to_be_refused(explained):
    for name, answer in RECORDS["llama_cpp"].answers.items():
        ground = explained("llama_cpp", name).description.ground
        assert ("refused" in ground.why) == ("refused" in answer), name


@pytest.mark.parametrize("engine", SERVERS)
def test_the_table_of_a_server_names_only_what_was_run(engine, explained):
    ran = {
        explained(engine, name).description.model_type
        for name, answer in RECORDS[engine].answers.items()
        if "refused" not in answer
    }
    rules = served._seen()[SERVERS[engine]]
    assert {*rules["ran"]} <= ran
    assert rules["version"] == RECORDS[engine].version


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    """What explain says of a configuration, once for all tests: an explanation, or its error."""

    @functools.cache
    def said(engine, name):
        folder = tmp_path_factory.mktemp("source")
        source = _source(engine, RECORDS[engine].answers[name]["configuration"], folder)
        try:
            return pn.explain(source)
        except (ValueError, TypeError) as error:
            return error

    return said


def _source(engine, configuration, folder: Path):
    """What explain reads; adapters of engines with files of their own write them."""
    if engine == "llama_cpp":
        pytest.importorskip("gguf", reason="writes the files")
        return importlib.import_module("gguf_files").gguf_file(configuration, folder)
    if engine == "onnxruntime":
        return importlib.import_module("onnx_graphs").onnx_file(configuration, folder)
    return configuration
