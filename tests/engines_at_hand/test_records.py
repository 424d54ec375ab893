"""explain says of an engine what the engine did (records/), or that it is unknown."""

import contextlib
import importlib
import json
from pathlib import Path

import pytest
from records import ENGINES, configurations_of, read_record
from verdicts import assert_same

import posenc_native as pn

_ANSWERS = [
    pytest.param(engine, name, answer, id=f"{engine}: {name}")
    for engine in ENGINES
    for name, answer in read_record(engine).answers.items()
]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_record_is_of_todays_configurations(engine):
    recorded = {name: entry["configuration"] for name, entry in read_record(engine).answers.items()}
    assert recorded == json.loads(json.dumps(configurations_of(engine)))


@pytest.mark.parametrize(("engine", "name", "answer"), _ANSWERS)
def test_explain_says_what_the_engine_did(engine, name, answer, tmp_path):
    source = _source(engine, answer["configuration"], tmp_path)
    if "refused" in answer:
        _refuses(source)
        return
    if not any(group["rotary"] for group in answer["layers"]):
        with contextlib.suppress(ValueError):  # what does not rotate may be refused
            assert all(group.rotary is None for group in pn.explain(source).layers)
        return
    explanation = pn.explain(source)
    ground = explanation.description.ground
    if ground.kind == "unknown":
        assert ground.why
        return
    if ground.kind == "run":
        assert ground.version in read_record(engine).version
    assert_same(explanation, answer)


@pytest.mark.parametrize("engine", ENGINES)
def test_most_of_what_an_engine_did_is_known(engine, tmp_path):
    """An unknown ground passes above: a reader that says so of everything would hide all faults."""
    grounds = {}
    for name, answer in read_record(engine).answers.items():
        rotated = any(group["rotary"] for group in answer.get("layers", []))
        # Most classes take no parameters by layer type.
        if rotated and "by layer type" not in name:
            source = _source(engine, answer["configuration"], tmp_path)
            grounds[name] = pn.explain(source).description.ground.kind
    unknown = [name for name, kind in grounds.items() if kind != "run"]
    assert len(unknown) <= 0.12 * len(grounds), unknown


def _source(engine, configuration, folder: Path):
    """What explain reads; adapters of engines with files of their own write them."""
    if engine == "llama_cpp":
        pytest.importorskip("gguf", reason="writes the files")
        return importlib.import_module("gguf_files").gguf_file(configuration, folder)
    if engine == "onnxruntime":
        return importlib.import_module("onnx_graphs").onnx_file(configuration, folder)
    return configuration


def _refuses(source):
    """An engine's refusal is an error, or at least no verdict on the ground of a run."""
    try:
        explanation = pn.explain(source)
    except (ValueError, TypeError):
        return
    assert explanation.description.ground.kind == "unknown"
