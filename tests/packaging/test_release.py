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
import release
from places import ROOT


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def in_the_project(key: str) -> str:
    return re.search(rf'^{key} = "(.+)"$', text("pyproject.toml"), re.M)[1]


VERSION, LICENSE = in_the_project("version"), in_the_project("license")


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
    assert citation["license"] == LICENSE


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
    assert f'SPDX-License-Identifier = "{LICENSE}"' in text("REUSE.toml")
    assert text(f"LICENSES/{LICENSE}.txt") == text("LICENSE")
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
    assert f"LICENSES/{LICENSE}.txt" in files  # a link here, a file of its own there


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
TARGET = re.compile(r'(?:\]\(|<img src=")([^()\s"]+)')


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
        assert (ROOT / path.partition("#")[0]).exists(), target
    addresses = dict(entry.split(", ") for entry in found.get_all("Project-URL"))
    assert addresses["Source"] == PAGE
    assert addresses["Changelog"] == f"{PAGE}/blob/{tag}/CHANGELOG.md"


def test_without_an_address_the_text_is_as_it_is(tmp_path):
    found = metadata(tmp_path)
    assert found.get_payload().strip() == text("README.md").strip()
    assert found["Description-Content-Type"].startswith("text/markdown")
    assert found.get_all("Project-URL") is None


def test_the_readme_is_short():
    """Where its links lead: tests/docs/test_links.py."""
    assert len(text("README.md").splitlines()) <= 100


# --- make release (scripts/release.py)


def wheel(folder: Path, *, cuda: bool = True, **changes: str) -> Path:
    """A wheel as a release has it, but for changes of its metadata; without contents."""
    import json
    import zipfile

    lines = {
        "Metadata-Version": "2.4",
        "Name": "posenc-native",
        "Version": VERSION,
        "License-Expression": LICENSE,
        "Description-Content-Type": "text/markdown",
        "Requires-Dist": "numpy>=1.26",
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    components = [{"name": "Highway"}, *([{"name": "CUDA Runtime"}] if cuda else [])]
    info = f"posenc_native-{VERSION}.dist-info"
    folder.mkdir(exist_ok=True)
    path = folder / f"posenc_native-{VERSION}-cp311-cp311-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", "".join(f"{k}: {v}\n" for k, v in lines.items()))
        archive.writestr(
            f"{info}/sboms/posenc_native.cdx.json", json.dumps({"components": components})
        )
        for name in ("LICENSE", "NOTICE"):
            archive.writestr(f"{info}/licenses/{name}", "")
        for name in ("_core.cpython-311-x86_64-linux-gnu.so", "_torch_ops.so"):
            archive.writestr(f"posenc_native/{name}", "")
    return path


def test_a_wheel_that_is_not_fit_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "DIST", tmp_path)
    monkeypatch.setattr(release, "CPU", tmp_path / "cpu")
    monkeypatch.setattr(release, "LARGEST", {tmp_path: 10_000, tmp_path / "cpu": 10_000})
    assert release.faults(wheel(tmp_path)) == []
    assert release.faults(wheel(tmp_path / "cpu", cuda=False)) == []
    assert "CUDA" not in str(release.faults(wheel(tmp_path, cuda=False))[0])
    assert release.faults(wheel(tmp_path / "cpu"))
    for changes, said in {
        ("Version", "9.9"): "is of version 9.9",
        ("License_Expression", "MIT"): "License-Expression: MIT",
        ("Requires_Dist", "torch"): "requires torch",
        ("Description_Content_Type", "text/plain"): "not Markdown",
    }.items():
        (found,) = release.faults(wheel(tmp_path, **dict([changes])))
        assert said in found
    monkeypatch.setitem(release.LARGEST, tmp_path, 100)
    assert "bytes, more than 100" in release.faults(wheel(tmp_path))[0]


def test_the_notes_of_a_release_are_its_part_of_the_changelog():
    changelog = (
        "# Changelog\n\n## [Unreleased]\n\nnew\n\n## [0.2.0] - 2026-01-01\n\n### Added\n\n- a\n\n"
        "## [0.1.0] - 2025-01-01\n\nold\n"
    )
    assert release.notes(changelog, "0.2.0") == "# posenc_native 0.2.0\n\n### Added\n\n- a\n"
    assert release.notes(changelog, "0.1.0") == "# posenc_native 0.1.0\n\nold\n"
    assert release.notes(changelog, "0.3.0") == "# posenc_native 0.3.0\n\nnew\n"
    with pytest.raises(SystemExit, match=r"no entry for 0\.3\.0"):
        release.notes("# Changelog\n\n## [Unreleased]\n\n", "0.3.0")
    assert release.notes(text("CHANGELOG.md"), VERSION)


def test_every_python_is_tried_with_the_oldest_and_the_newest_numpy(tmp_path):
    wheels = {"3.10": tmp_path, release.OWN: tmp_path, "3.14": tmp_path}
    found = list(release.environments(wheels, ["2.13.0"]))
    assert {one.python for one in found} == set(wheels)
    assert {(one.numpy, one.torch) for one in found if one.python == "3.10"} == {
        ("1.26.4", None),
        (None, None),
    }
    assert [one.python for one in found if one.torch] == [release.OWN]


def test_the_examples_that_a_release_runs_are_those_of_readme():
    blocks = release.readme_blocks()
    assert len(blocks) >= 3
    assert sum("torch" not in block and "hf" not in block for block in blocks) >= 1


def test_commands_of_a_workflow_run_here(tmp_path, monkeypatch, capfd):
    pytest.importorskip("yaml", reason="needs PyYAML")
    import workflow_steps

    with pytest.raises(SystemExit, match="has the jobs sdist, wheels, publish, not none"):
        workflow_steps.main(["release", "none"])
    repository = tmp_path / "repository"
    (repository / ".github/workflows").mkdir(parents=True)
    (repository / ".github/workflows/a.yml").write_text(
        "jobs:\n  b:\n    steps:\n      - uses: actions/checkout@v1\n"
        "      - run: echo said $WORD; git log --format=%s\n      - name: fails\n"
        "        run: exit 3\n"
        "      - run: echo not reached\n"
    )
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository))
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(workflow_steps, "ROOT", repository)
    assert workflow_steps.main(["a", "b", "WORD=hello"]) == 3
    said = capfd.readouterr().out
    assert "left out: actions/checkout@v1" in said
    assert "said hello\nfirst\n" in said
    assert "not reached" not in said
