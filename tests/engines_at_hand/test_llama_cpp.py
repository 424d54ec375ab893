"""The rows of llama_cpp.json say of llama.cpp what it did, no more and no less."""

import pytest
from records import read_record

import posenc_native as pn
from posenc_native.checkpoints.formats.binary.gguf_words import architectures

pytest.importorskip("gguf", reason="writes the files")
from gguf_files import gguf_file

ANSWERS = read_record("llama_cpp").answers


def test_rows_name_only_what_was_run():
    ran, refused = set(), set()
    for answer in ANSWERS.values():
        name = answer["configuration"]["metadata"]["general.architecture"]
        (refused if "refused" in answer else ran).add(name)
    rows = architectures()
    assert {name for name in rows if "run" in rows[name]} == ran
    assert {name for name in rows if "refused" in rows[name]} <= refused


@pytest.mark.parametrize(
    "name",
    ["cogvlm", "deepseek4", "falcon-h1", "granitehybrid", "plm"],
)
def test_what_was_not_run_is_unknown(name, tmp_path):
    given = {"block_count": 4, "context_length": 4096, "embedding_length": 64,
             "attention.head_count": 4, "rope.dimension_count": 16,
             "attention.compress_rope_freq_base": 1e5}  # fmt: skip
    metadata = {"general.architecture": name} | {f"{name}.{key}": given[key] for key in given}
    ground = pn.explain(gguf_file({"metadata": metadata}, tmp_path)).description.ground
    assert ground.kind == "unknown"
    assert ground.why == f"llama.cpp was not run with a file of {name} with no scaling"
