"""What a release says of itself, to an index too, agrees; its recipe names the wheels to make."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
from email.message import Message
from pathlib import Path

import pytest
from places import ROOT


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def in_the_project(key: str) -> str:
    return re.search(rf'^{key} = "(.+)"$', text("pyproject.toml"), re.M)[1]


VERSION, LICENCE = in_the_project("version"), in_the_project("license")


def test_the_newest_entry_of_the_changelog_is_this_version_or_to_come():
    entries = re.findall(r"^## \[(.+?)\]( - \d{4}-\d\d-\d\d)?$", text("CHANGELOG.md"), re.M)
    first, date = entries[0]
    assert (first, bool(date)) in {("Unreleased", False), (VERSION, True)}
    assert all(date for _, date in entries[1:])
    assert f" {VERSION}," in text("CHANGELOG.md") or VERSION in dict(entries)


def test_the_citation():
    """Of the form 1.2.0, https://citation-file-format.github.io."""
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    citation = yaml.safe_load(text("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert set(citation) <= {"cff-version", "message", "title", "authors", "abstract", "type",
                             "version", "license", "keywords", "date-released"}  # fmt: skip
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert str(citation["version"]) == VERSION
    assert citation["authors"] == [{"name": "The posenc_native developers"}]
    assert citation["license"] == LICENCE


def build(what: str, folder: Path, **environment: str) -> Path:
    """The one file that a build with this hook leaves."""
    pytest.importorskip("scikit_build_core", reason="needs scikit-build-core")
    names = ("POSENC_REPOSITORY", "GITHUB_SERVER_URL", "GITHUB_REPOSITORY")
    variables = {name: value for name, value in os.environ.items() if name not in names}
    code = (
        "import sys; from scikit_build_core import build; getattr(build, sys.argv[1])(sys.argv[2])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, what, folder],
        cwd=ROOT, env=variables | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    return made


def metadata(folder: Path, **environment: str) -> Message:
    pytest.importorskip("pybind11", reason="needs pybind11")
    made = build("prepare_metadata_for_build_wheel", folder, **environment)
    return email.message_from_string((made / "METADATA").read_text(encoding="utf-8"))


def test_the_licence_is_one_everywhere():
    assert f'SPDX-License-Identifier = "{LICENCE}"' in text("REUSE.toml")
    assert text(f"LICENSES/{LICENCE}.txt") == text("LICENSE")
    assert "Highway" in text("NOTICE")


def test_the_sdist_has_all_that_the_tests_and_the_documentation_read(tmp_path):
    list_files = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(list_files, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode or not listed.stdout:  # a copy, in a folder that git ignores
        pytest.skip("no working copy of git")
    with tarfile.open(build("build_sdist", tmp_path)) as archive:
        files = {entry.name.partition("/")[2] for entry in archive if entry.isfile()}
    there = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    assert files - {"PKG-INFO"} == {name for name in there if not name.startswith(".ci/")}
    assert f"LICENSES/{LICENCE}.txt" in files  # a link here, a file of its own there


PYTHONS = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', text("pyproject.toml"))


@pytest.mark.parametrize(
    ("platform", "arch", "tag"),
    [
        ("linux", "x86_64", "manylinux_x86_64"),
        ("linux", "aarch64", "manylinux_aarch64"),
        ("macos", "arm64", "macosx_arm64"),
    ],
)
def test_wheels_of_a_release(platform, arch, tag):
    pytest.importorskip("cibuildwheel", reason="needs cibuildwheel, Python 3.11 or newer")
    command = [sys.executable, "-m", "cibuildwheel", "--platform", platform, "--archs", arch]
    done = subprocess.run(
        [*command, "--print-build-identifiers", str(ROOT)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # 3.14 is the first Python whose free-threaded build is supported by its makers.
    assert done.stdout.split() == [*(f"cp3{minor}-{tag}" for minor in PYTHONS), f"cp314t-{tag}"]


def test_the_recipe_names_files_that_are_there():
    recipe = text("pyproject.toml").partition("[tool.cibuildwheel]")[2]
    for name in re.findall(r"\{project\}/([\w./]+)", recipe):
        assert (ROOT / name).exists(), name


def test_the_headers_of_a_release_are_those_that_cmake_names():
    """scripts/release_libraries.sh reads both from there."""
    cmake = text("cmake/Highway.cmake")
    assert len(re.findall(r"URL (https[^ ]*)$", cmake, re.M)) == 1
    assert len(re.findall(r"URL_HASH SHA256=([0-9a-f]{64})$", cmake, re.M)) == 1


WORKFLOWS = ROOT / ".github" / "workflows"
# A commit and, for people and for Dependabot, its version.
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


@pytest.mark.parametrize("name", sorted(path.name for path in WORKFLOWS.glob("*")))
def test_workflows_can_do_no_more_than_they_have_to(name):
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    workflow = yaml.safe_load(text(f".github/workflows/{name}"))
    assert workflow["permissions"] == {"contents": "read"}
    for title, job in workflow["jobs"].items():
        assert job.get("permissions", {}) == ({"id-token": "write"} if title == "publish" else {})
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_actions_are_the_same_commits_everywhere():
    """A tag can be moved to another commit by whoever holds the repository."""
    lines = [line for path in WORKFLOWS.glob("*") for line in text(path).splitlines()]
    uses = {line.partition("uses: ")[2] for line in lines if "uses: " in line}
    assert len(uses) == len({each.partition("@")[0] for each in uses}) == 5
    assert [each for each in uses if not PINNED.fullmatch(each)] == []


PAGE = "https://example.org/team/posenc"
TARGET = re.compile(r"\]\(([^()\s]+)\)")


@pytest.mark.parametrize(
    "environment",
    [
        {"POSENC_REPOSITORY": PAGE + "/"},
        {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "team/posenc"},
    ],
    ids=["given", "a release"],
)
def test_links_lead_to_the_repository(tmp_path, environment):
    found = metadata(tmp_path, **environment)
    tag = f"v{found['Version']}"
    targets = TARGET.findall(found.get_payload())
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
    found = metadata(tmp_path)
    assert found.get_payload().strip() == text("README.md").strip()
    assert found["Description-Content-Type"].startswith("text/markdown")
    assert found.get_all("Project-URL") is None


def test_the_readme_is_short_and_its_links_lead_somewhere():
    readme = text("README.md")
    assert len(readme.splitlines()) <= 90
    for target in TARGET.findall(readme):
        assert (ROOT / target).exists(), target
