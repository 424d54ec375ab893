"""What an index shows: README with links that lead somewhere, and the project's addresses."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
from email.message import Message
from pathlib import Path

import pytest
from places import ROOT

PAGE = "https://example.org/team/posenc"
TARGET = re.compile(r"\]\(([^()\s]+)\)")


def built(folder: Path, **environment: str) -> Message:
    """The metadata of a wheel."""
    pytest.importorskip("scikit_build_core", reason="needs scikit-build-core")
    pytest.importorskip("pybind11", reason="needs pybind11")
    code = (
        "import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as make;"
        "print(make(sys.argv[1]))"
    )
    names = ("POSENC_REPOSITORY", "GITHUB_SERVER_URL", "GITHUB_REPOSITORY")
    variables = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", code, folder],
        cwd=ROOT, env=variables | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*/METADATA")
    return email.message_from_string(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "environment",
    [
        {"POSENC_REPOSITORY": PAGE + "/"},
        {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "team/posenc"},
    ],
    ids=["given", "a release"],
)
def test_links_lead_to_the_repository(tmp_path, environment):
    found = built(tmp_path, **environment)
    text, tag = found.get_payload(), f"v{found['Version']}"
    targets = TARGET.findall(text)
    assert len(targets) > 10
    for target in targets:
        kind, at, path = target.removeprefix(f"{PAGE}/").split("/", 2)
        assert kind == ("raw" if path.endswith(".png") else "blob"), target
        assert at == tag
        assert (ROOT / path).exists(), target
    addresses = dict(entry.split(", ") for entry in found.get_all("Project-URL"))
    assert addresses["Source"] == PAGE
    assert addresses["Changelog"] == f"{PAGE}/blob/{tag}/CHANGELOG.md"


def test_without_an_address_the_text_is_as_it_is(tmp_path):
    found = built(tmp_path)
    assert found.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert found["Description-Content-Type"].startswith("text/markdown")
    assert found.get_all("Project-URL") is None


def test_the_readme_is_short_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 90
    for target in TARGET.findall(text):
        assert (ROOT / target).exists(), target
