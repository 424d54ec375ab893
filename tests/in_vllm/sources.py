"""Sources of a version of vLLM, from its source package on PyPI: its own tests, its rotary layers.

pip does not get this package: it would build vLLM first, to learn what it requires.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import urllib.request
from pathlib import Path

INDEX = "https://pypi.org/simple/vllm/"
FOLDER = Path(__file__).parents[2] / "build" / "engine-vllm"

TESTS = (
    "tests/kernels/core/test_pos_encoding.py",
    "tests/kernels/core/test_rotary_embedding.py",
    "tests/compile/test_rotary_embedding_compile.py",
)
# What these import of their own, and the layers that --sources puts in front of vLLM's.
_NEEDED = (
    *TESTS,
    "tests/__init__.py",
    *(f"tests/kernels/{x}.py" for x in ("__init__", "utils", "quant_utils", "allclose_default")),
    "vllm/model_executor/layers/rotary_embedding/",
)


def sources(version: str) -> Path:
    """The folder with these files of a version; they are fetched once, 45 MB."""
    folder = FOLDER / f"vllm-{version}"
    if not folder.exists():
        package = _package(version)
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(package)) as archive:
            for member in archive.getmembers():
                member.name = member.name.partition("/")[2]
                if member.isfile() and member.name.startswith(_NEEDED):
                    archive.extract(member, partial, filter="data")
        partial.rename(folder)
    return folder


def _package(version: str) -> bytes:
    """The source package, if it has the sum that the index says."""
    kind = {"Accept": "application/vnd.pypi.simple.v1+json"}
    with urllib.request.urlopen(urllib.request.Request(INDEX, headers=kind)) as answer:
        files = {file["filename"]: file for file in json.load(answer)["files"]}
    file = files[f"vllm-{version}.tar.gz"]
    with urllib.request.urlopen(file["url"]) as answer:
        package: bytes = answer.read()
    if hashlib.sha256(package).hexdigest() != file["hashes"]["sha256"]:
        raise OSError(f"{file['url']} has not the sha256 that {INDEX} says")
    return package
